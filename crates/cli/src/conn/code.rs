//! Requests about code: functions, functions in detail, and what lies at an address.

use std::num::NonZeroU32;
use std::time::Duration;

use ingraft_api::{FunctionList, Inspection, Location, PathChoice, SamplingReading, SamplingRequest};
use ingraft_model::Pid;
use ingraft_wire::sampling::SamplingCollector;
use ingraft_wire::{code, known, sampling, v1};
use tonic::Streaming;
use v1::code_client::CodeClient;

use super::{Client, RequestTarget};
use crate::exit::Failure;
use crate::output::progress::Progress;

impl Client {
    /// Lists the functions of a target that match any of the patterns, and the matching symbols that are not known to be functions. With
    /// `blocks`, the functions have their basic blocks and edges among the kinds of points.
    pub(crate) async fn functions(
        &self,
        target: &RequestTarget,
        patterns: &[String],
        blocks: bool,
        progress: &mut Progress,
    ) -> Result<FunctionList, Failure> {
        use v1::functions_response::Event;
        let mut client = CodeClient::new(self.service.clone());
        let target = Some(target.spec().into());
        let request = v1::FunctionsRequest { target, patterns: patterns.to_vec(), blocks };
        let mut stream = self.answer(client.functions(request), progress).await?;
        let mut list = FunctionList { pid: Pid(0), functions: Vec::new(), untyped: Vec::new() };
        while let Some(part) = self.next(&mut stream, progress).await? {
            match part.event {
                Some(Event::Progress(p)) => progress.say(&p.text),
                Some(Event::Functions(chunk)) => {
                    list.pid = Pid(chunk.pid);
                    list.functions.extend(known(chunk.functions).map_err(|e| self.garbled(&e))?);
                }
                Some(Event::Untyped(chunk)) => {
                    list.pid = Pid(chunk.pid);
                    list.untyped.extend(known(chunk.symbols).map_err(|e| self.garbled(&e))?);
                }
                None => {}
            }
        }
        Ok(list)
    }

    /// Describes the functions that a pattern matches.
    pub(crate) async fn inspect(
        &self,
        target: &RequestTarget,
        pattern: &str,
        (instructions, path): (bool, Option<PathChoice>),
        progress: &mut Progress,
    ) -> Result<Inspection, Failure> {
        use v1::inspect_response::Event;
        let mut client = CodeClient::new(self.service.clone());
        let target = Some(target.spec().into());
        let longest = path.and_then(|path| path.longest).map_or(0, NonZeroU32::get);
        let path = path.map(|path| path.number);
        let request = v1::InspectRequest { target, pattern: pattern.to_owned(), instructions, path, longest };
        let mut stream = self.answer(client.inspect(request), progress).await?;
        let mut found = Inspection { pid: Pid(0), functions: Vec::new() };
        while let Some(part) = self.next(&mut stream, progress).await? {
            match part.event {
                Some(Event::Progress(p)) => progress.say(&p.text),
                Some(Event::Code(chunk)) => {
                    found.pid = Pid(chunk.pid);
                    for item in chunk.items {
                        code::add_item(&mut found.functions, item).map_err(|e| self.garbled(&e))?;
                    }
                }
                None => {}
            }
        }
        Ok(found)
    }

    /// Finds out what lies at an address.
    pub(crate) async fn locate(
        &self,
        target: &RequestTarget,
        address: u64,
        progress: &mut Progress,
    ) -> Result<Location, Failure> {
        let mut client = CodeClient::new(self.service.clone());
        let request = v1::LocateRequest { target: Some(target.spec().into()), address };
        let found = self.answer(client.locate(request), progress).await?;
        found.try_into().map_err(|e| self.garbled(&e))
    }
    /// Begins to sample a target.
    pub(crate) async fn sample(
        &self,
        request: SamplingRequest,
        interval: Duration,
        progress: &mut Progress,
    ) -> Result<SamplingStream, Failure> {
        let mut client = CodeClient::new(self.service.clone());
        let request = sampling::request(request, interval);
        let stream = self.answer(client.sample(request), progress).await?;
        Ok(SamplingStream { client: self.clone(), stream, collector: SamplingCollector::default() })
    }
}

/// The readings of a sampling. The sampling ends when the value is dropped.
pub(crate) struct SamplingStream {
    client: Client,
    stream: Streaming<v1::SampleResponse>,
    collector: SamplingCollector,
}

impl SamplingStream {
    /// Waits for the next reading, and shows progress meanwhile if there is some; `None` after the last one.
    pub(crate) async fn next(
        &mut self,
        mut progress: Option<&mut Progress>,
    ) -> Result<Option<SamplingReading>, Failure> {
        loop {
            let part = match &mut progress {
                Some(progress) => self.client.next(&mut self.stream, progress).await?,
                None => self.stream.message().await.map_err(|s| self.client.failure(&s))?,
            };
            let Some(part) = part else { return Ok(None) };
            let Some(event) = part.event else { continue };
            if let (v1::sample_response::Event::Progress(p), Some(progress)) = (&event, &mut progress) {
                progress.say(&p.text);
            }
            if let Some(reading) = self.collector.add(event).map_err(|e| self.client.garbled(&e))? {
                return Ok(Some(reading));
            }
        }
    }
}
