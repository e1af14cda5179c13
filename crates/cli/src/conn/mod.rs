//! Connections to engines: to the one inside this command over a channel in memory, or to daemons over sockets. Both offer the same gRPC
//! services. Only this module knows gRPC; it returns plain values.

mod code;
mod endpoint;
mod history;
mod neighbours;
mod profiles;
mod request;

pub(crate) use endpoint::Use;
pub(crate) use history::HistorySpan;
pub(crate) use request::{InsertionRequest, ProcessSelector, RequestTarget};

use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{
    EnableRequest, Enabled, Ended, EventEntry, Inserted, LowerRequest, LoweredMetric, MeasurementId, PairInfo,
    PrintedCalls, ProcessEntry, ProcessFilter, Reading, Removed,
};
use ingraft_model::MetricInfo;
use ingraft_wire::enabled::Collector;
use ingraft_wire::{FieldError, Snapshot, known, printed, profile, v1};
use tokio::sync::mpsc;
use tonic::Streaming;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use v1::calls_client::CallsClient;
use v1::instrumentation_client::InstrumentationClient;
use v1::metrics_client::MetricsClient;
use v1::processes_client::ProcessesClient;
use v1::traces_client::TracesClient;

use crate::args::Common;
use crate::exit::{Exit, Failure};
use crate::output::progress::Progress;
use crate::output::words;
use endpoint::{Neighbour, RequestHeaders};
use neighbours::Neighbours;

type EngineChannel = InterceptedService<Channel, RequestHeaders>;

/// Limit of a part of a profile, in bytes. A part holds at least one function, and an interpreter's loop has a million edges.
const PROFILE_PART_BYTES: usize = 256 << 20;

/// The engines that a command uses.
pub(crate) struct Engines {
    clients: Vec<Client>,
    embedded: Option<ingraft_daemon::Embedded>,
}

/// One engine.
#[derive(Clone)]
pub(crate) struct Client {
    service: EngineChannel,
    host: Option<String>,
    streams: Option<Arc<Streams>>,
    /// Process of the other command whose engine this is; `None` if it is that of this command or of a daemon.
    joined: Option<i32>,
    /// Engines of other commands; `None` unless this engine is that of this command.
    neighbours: Option<Arc<Neighbours>>,
}

/// Largest number of streams of samples on one connection. A daemon allows a hundred or more on each; a further call would wait until a
/// stream ends.
const STREAMS: usize = 64;

/// One step of a stream of values.
#[derive(Clone, Debug)]
pub(crate) enum StreamEvent {
    /// All pairs of a measurement that has grown. Later readings include the values of the new pairs.
    Grown(Arc<Vec<PairInfo>>),
    /// The values at one time, and the number of readings that were lost before this one.
    Reading(Reading, u64),
    /// The target has ended.
    Ended(Ended),
    /// The condition of a trace has held.
    Held,
}

/// Way to an engine outside of this command.
enum OutsideEngine {
    Daemon(String, Common),
    Neighbour(Neighbour),
}

/// Connections of a command to one engine for its streams of samples, apart from the one on which it makes its calls.
struct Streams {
    way: OutsideEngine,
    /// The latest connection, and the number of streams that it has had.
    latest: tokio::sync::Mutex<Option<(EngineChannel, usize)>>,
}

impl Streams {
    fn new(way: OutsideEngine) -> Self {
        Streams { way, latest: tokio::sync::Mutex::default() }
    }

    /// A connection for one more stream; `None` if the engine of another command does not listen any more.
    async fn next(&self) -> Result<Option<EngineChannel>, Failure> {
        let mut latest = self.latest.lock().await;
        if let Some((service, streams)) = latest.as_mut().filter(|(_, streams)| *streams < STREAMS) {
            *streams += 1;
            return Ok(Some(service.clone()));
        }
        let (channel, headers) = match &self.way {
            OutsideEngine::Daemon(uri, common) => endpoint::connect(uri, common).await?,
            OutsideEngine::Neighbour(neighbour) => match neighbour.connect().await {
                Some(channel) => (channel, RequestHeaders::default()),
                None => return Ok(None),
            },
        };
        let service = InterceptedService::new(channel, headers);
        *latest = Some((service.clone(), 1));
        Ok(Some(service))
    }
}

impl Engines {
    /// Connects to the daemons that the flags name, or starts the embedded engine.
    pub(crate) async fn connect(common: &Common, purpose: Use) -> Result<Self, Failure> {
        if common.daemons.is_empty() {
            let state_dir = endpoint::state_dir(common)?;
            let (channel, embedded) = endpoint::embedded(common, purpose, state_dir.clone()).await?;
            let neighbours = Some(Arc::new(Neighbours::new(state_dir)));
            let client = Client { neighbours, ..Client::new(channel, RequestHeaders::default(), None) };
            return Ok(Engines { clients: vec![client], embedded: Some(embedded) });
        }
        let several = common.daemons.len() > 1;
        let mut clients = Vec::new();
        for uri in &common.daemons {
            let (channel, headers) = endpoint::connect(uri, common).await?;
            let host = several.then(|| uri.clone());
            let streams = Some(Arc::new(Streams::new(OutsideEngine::Daemon(uri.clone(), common.clone()))));
            clients.push(Client { streams, ..Client::new(channel, headers, host) });
        }
        Ok(Engines { clients, embedded: None })
    }

    /// The engine of a test, on a channel.
    #[cfg(test)]
    pub(crate) fn of_test(channel: Channel) -> Self {
        Engines { clients: vec![Client::new(channel, RequestHeaders::default(), None)], embedded: None }
    }

    /// All engines.
    pub(crate) fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Whether the engine ends with this command.
    pub(crate) fn is_embedded(&self) -> bool {
        self.embedded.is_some()
    }

    /// Processes of other commands that use the embedded engine.
    pub(crate) fn others(&self) -> Vec<i32> {
        self.embedded.as_ref().map(ingraft_daemon::Embedded::others).unwrap_or_default()
    }

    /// Returns when no other command uses the embedded engine. Leaves the engines that this command has joined, because their commands wait
    /// for it in the same way.
    pub(crate) async fn deserted(&mut self) {
        self.clients.clear();
        if let Some(embedded) = &mut self.embedded {
            embedded.deserted().await;
        }
    }

    /// Ends the embedded engine, which removes what is still inserted.
    pub(crate) async fn close(self) {
        drop(self.clients);
        if let Some(embedded) = self.embedded {
            embedded.close().await;
        }
    }
}

impl Client {
    fn new(channel: Channel, headers: RequestHeaders, host: Option<String>) -> Self {
        let service = InterceptedService::new(channel, headers);
        Client { service, host, streams: None, joined: None, neighbours: None }
    }

    /// The daemon's address, if there are several.
    pub(crate) fn host(&self) -> Option<String> {
        self.host.clone()
    }

    fn failure(&self, status: &tonic::Status) -> Failure {
        let failure = Failure { host: self.host(), ..ingraft_wire::ProtocolFailure::from_status(status).into() };
        self.engine_ended(&failure.reason).unwrap_or(failure)
    }

    /// Waits for the next message of an answer; shows progress meanwhile.
    async fn next<T>(&self, stream: &mut Streaming<T>, progress: &mut Progress) -> Result<Option<T>, Failure> {
        loop {
            tokio::select! {
                message = stream.message() => return message.map_err(|s| self.failure(&s)),
                () = progress.due() => progress.show(),
            }
        }
    }

    /// Waits for an answer; shows progress meanwhile.
    async fn answer<T>(
        &self,
        call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
        progress: &mut Progress,
    ) -> Result<T, Failure> {
        tokio::pin!(call);
        loop {
            tokio::select! {
                answer = &mut call => {
                    return answer.map(tonic::Response::into_inner).map_err(|s| self.failure(&s));
                }
                () = progress.due() => progress.show(),
            }
        }
    }

    /// Lists the processes whose name matches.
    pub(crate) async fn processes(
        &self,
        glob: Option<&str>,
        progress: &mut Progress,
    ) -> Result<Vec<ProcessEntry>, Failure> {
        let filter = ProcessFilter { glob: glob.map(str::to_owned), ..ProcessFilter::default() };
        self.list_processes(filter, progress).await
    }

    /// Lists the living processes of a name or a control group, in order of their ids.
    pub(crate) async fn choose(
        &self,
        choice: &ProcessSelector,
        progress: &mut Progress,
    ) -> Result<Vec<ProcessEntry>, Failure> {
        let ProcessSelector { name, cgroup } = choice.clone();
        let mut found = self.list_processes(ProcessFilter { glob: None, name, cgroup }, progress).await?;
        // The daemon is usually on the same machine, so the list may contain this command itself.
        let own = i32::try_from(std::process::id()).ok();
        found.retain(|process| Some(process.pid.0) != own);
        Ok(found)
    }

    async fn list_processes(
        &self,
        filter: ProcessFilter,
        progress: &mut Progress,
    ) -> Result<Vec<ProcessEntry>, Failure> {
        let mut client = ProcessesClient::new(self.service.clone());
        let chooses = filter.name.is_some() || filter.cgroup.is_some();
        let request = v1::ListProcessesRequest::from(filter);
        let mut stream = self.answer(client.list(request), progress).await?;
        let mut out = Vec::new();
        while let Some(part) = self.next(&mut stream, progress).await? {
            if chooses && !part.chosen {
                // A daemon that does not know these fields of the request returns all processes, although the request asks for none of
                // them.
                let what = "the daemon does not choose processes by name or control group";
                let failure = Failure::failed(what, "install the same version of ingraftd as of ingraft");
                return Err(Failure { host: self.host(), ..failure });
            }
            out.extend(self.known(part.processes)?);
        }
        Ok(out)
    }

    /// Lists the children of processes.
    pub(crate) async fn children(&self, parents: Vec<i32>) -> Result<Vec<i32>, Failure> {
        let mut client = ProcessesClient::new(self.service.clone());
        let answer = client.children(v1::ChildrenRequest { pids: parents }).await;
        let children = answer.map_err(|s| self.failure(&s))?.into_inner().children;
        Ok(children.into_iter().map(|child| child.pid).collect())
    }

    /// Lists the metrics that are known, including those that these sources define.
    pub(crate) async fn metrics(
        &self,
        definitions: &[(String, String)],
        progress: &mut Progress,
    ) -> Result<Vec<MetricInfo>, Failure> {
        let mut client = MetricsClient::new(self.service.clone());
        let definitions = definitions.iter().cloned().map(Into::into).collect();
        let request = v1::ListMetricsRequest { definitions, events: false };
        let mut stream = self.answer(client.list(request), progress).await?;
        let mut out = Vec::new();
        while let Some(part) = self.next(&mut stream, progress).await? {
            out.extend(self.known(part.metrics)?);
        }
        Ok(out)
    }

    /// Lists the events that metrics can name.
    pub(crate) async fn events(&self, progress: &mut Progress) -> Result<Vec<EventEntry>, Failure> {
        let mut client = MetricsClient::new(self.service.clone());
        let request = v1::ListMetricsRequest { definitions: Vec::new(), events: true };
        let mut stream = self.answer(client.list(request), progress).await?;
        let mut out = Vec::new();
        while let Some(part) = self.next(&mut stream, progress).await? {
            out.extend(self.known(part.events)?);
        }
        Ok(out)
    }

    /// Fetches the snippets that metrics are lowered to.
    pub(crate) async fn lower(
        &self,
        ask: &LowerRequest,
        progress: &mut Progress,
    ) -> Result<Vec<LoweredMetric>, Failure> {
        let mut client = MetricsClient::new(self.service.clone());
        let request = v1::LowerRequest::from(ask.clone());
        let mut stream = self.answer(client.lower(request), progress).await?;
        let mut out = Vec::new();
        while let Some(part) = self.next(&mut stream, progress).await? {
            out.extend(self.known(part.metrics)?);
        }
        Ok(out)
    }

    /// Inserts a measurement into a process, or starts a command with it. Fails if another engine holds the process.
    async fn enable_here(&self, request: &InsertionRequest, progress: &mut Progress) -> Result<Enabled, Failure> {
        let InsertionRequest { target, measure, terms } = request.clone();
        let mut stream = match target {
            RequestTarget::Command(command) => {
                let request = v1::LaunchRequest::from((command, measure, terms));
                let mut client = ProcessesClient::new(self.service.clone());
                self.answer(client.launch(request), progress).await?
            }
            RequestTarget::Pid(_) | RequestTarget::Name(_) | RequestTarget::Each(_) => {
                let measure = EnableRequest { target: target.spec(), ..measure };
                let mut client = InstrumentationClient::new(self.service.clone());
                self.answer(client.enable(v1::EnableRequest::from((measure, terms))), progress).await?
            }
        };
        let mut collector = Collector::default();
        while let Some(part) = self.next(&mut stream, progress).await? {
            use v1::enable_response::Event;
            match part.event {
                Some(Event::Progress(p)) => {
                    progress.say(&words::step(&p.text, p.percent, p.left_ns.map(Duration::from_nanos)));
                }
                Some(Event::Deferred(d)) => {
                    let wait = humantime::format_duration(terms.wait);
                    progress.once(&format!("deferred: {}; it is tried again for up to {wait}", d.what));
                }
                Some(event) => collector.add(event),
                None => {}
            }
        }
        self.whole(collector)
    }

    /// The answer whose parts have all arrived.
    fn whole(&self, collector: Collector) -> Result<Enabled, Failure> {
        let enabled = collector.finish().map_err(|e| self.garbled(&e))?;
        enabled.ok_or_else(|| self.incomplete("the measurement"))
    }

    /// Reads messages; those that only a later version knows are left out.
    fn known<T: TryFrom<W, Error = FieldError>, W>(&self, messages: Vec<W>) -> Result<Vec<T>, Failure> {
        known(messages).map_err(|e| self.garbled(&e))
    }

    /// Sends the values of a measurement with `pairs` pairs to `events`, each with `tag`. Returns when the measurement or the target ends,
    /// or when the receiver is gone.
    pub(crate) async fn stream(
        self,
        id: MeasurementId,
        pairs: usize,
        interval: Duration,
        tag: usize,
        events: mpsc::Sender<(usize, Result<StreamEvent, Failure>)>,
    ) {
        let result = self.stream_into(id, pairs, interval, tag, &events).await;
        if let Err(failure) = result {
            // If the receiver is gone, the measurement is over, and its failure does not matter.
            let _over = events.send((tag, Err(failure))).await;
        }
    }

    async fn stream_into(
        &self,
        id: MeasurementId,
        pairs: usize,
        interval: Duration,
        tag: usize,
        events: &mpsc::Sender<(usize, Result<StreamEvent, Failure>)>,
    ) -> Result<(), Failure> {
        use v1::stream_response::Event as Wire;
        let interval_ns = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let service = match &self.streams {
            Some(streams) => streams.next().await?.unwrap_or_else(|| self.service.clone()),
            None => self.service.clone(),
        };
        let mut client = MetricsClient::new(service);
        let request = v1::StreamRequest { measurement: id.0, interval_ns, threads: false };
        let answer = client.stream(request).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut snapshot = Snapshot::new(pairs);
        let mut dropped = 0;
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            let event = match part.event {
                Some(Wire::Sample(sample)) => {
                    if snapshot.is_outgrown_by(&sample) {
                        let grown = self.measured(id).await?;
                        snapshot.grow(grown.len());
                        if events.send((tag, Ok(StreamEvent::Grown(grown)))).await.is_err() {
                            break;
                        }
                    }
                    if !snapshot.apply(sample).map_err(|e| self.garbled(&e))? {
                        continue;
                    }
                    let lost = snapshot.dropped - std::mem::replace(&mut dropped, snapshot.dropped);
                    StreamEvent::Reading(reading(&snapshot), lost)
                }
                Some(Wire::Ended(ended)) => StreamEvent::Ended(ended.try_into().map_err(|e| self.garbled(&e))?),
                None => continue,
            };
            if events.send((tag, Ok(event))).await.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Fetches all pairs of a measurement: more than at the insertion if libraries were loaded since.
    pub(crate) async fn measured(
        &self,
        MeasurementId(measurement): MeasurementId,
    ) -> Result<Arc<Vec<PairInfo>>, Failure> {
        let mut client = InstrumentationClient::new(self.service.clone());
        let answer = client.describe(v1::DescribeRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut collector = Collector::default();
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            collector.add_described(part);
        }
        Ok(self.whole(collector)?.pairs)
    }

    /// Reads the values of the first `pairs` pairs once, by thread; the values of later pairs are left out.
    pub(crate) async fn read(
        &self,
        MeasurementId(measurement): MeasurementId,
        pairs: usize,
    ) -> Result<Reading, Failure> {
        use v1::read_response::Event as Wire;
        let mut client = MetricsClient::new(self.service.clone());
        let answer = client.read(v1::ReadRequest { measurement, threads: true }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut snapshot = Snapshot::new(pairs);
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            if let Some(Wire::Sample(mut sample)) = part.event {
                sample.values.retain(|value| usize::try_from(value.pair).is_ok_and(|pair| pair < pairs));
                snapshot.apply(sample).map_err(|e| self.garbled(&e))?;
            }
        }
        Ok(reading(&snapshot))
    }

    /// Reads the next bytes of the file of a trace; with `begin`, its first ones too.
    pub(crate) async fn read_trace(
        &self,
        MeasurementId(measurement): MeasurementId,
        begin: bool,
    ) -> Result<Vec<u8>, Failure> {
        let mut client = TracesClient::new(self.service.clone());
        let answer = client.read(v1::ReadTraceRequest { measurement, begin }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut bytes = Vec::new();
        while let Some(answer) = stream.message().await.map_err(|s| self.failure(&s))? {
            bytes.extend(answer.part.map(|part| part.bytes).unwrap_or_default());
        }
        Ok(bytes)
    }

    /// Reads the calls that a measurement has printed; with `begin`, the functions too.
    pub(crate) async fn read_calls(
        &self,
        MeasurementId(measurement): MeasurementId,
        begin: bool,
    ) -> Result<PrintedCalls, Failure> {
        let mut client = CallsClient::new(self.service.clone());
        let answer = client.read(v1::ReadCallsRequest { measurement, begin }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut calls = PrintedCalls::default();
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            printed::add(&mut calls, part).map_err(|e| self.garbled(&e))?;
        }
        Ok(calls)
    }

    /// Removes a measurement, which has `pairs` pairs unless it has grown since. Returns the rest of the file of a trace as bytes.
    pub(crate) async fn remove(
        &self,
        MeasurementId(measurement): MeasurementId,
        pairs: usize,
    ) -> Result<(Removed, Vec<u8>), Failure> {
        use v1::remove_response::Event as Wire;
        let mut client = InstrumentationClient::new(self.service.clone()).max_decoding_message_size(PROFILE_PART_BYTES);
        let answer = client.remove(v1::RemoveRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut snapshot = Snapshot::new(pairs);
        let (mut removed, mut complete, mut ended): (Option<Removed>, bool, Option<Ended>) = (None, false, None);
        let (mut parts, mut trace): (Vec<v1::Profile>, Vec<u8>) = (Vec::new(), Vec::new());
        let (mut grown, mut calls): (_, Option<PrintedCalls>) = (Collector::default(), None);
        let mut shares = None;
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            match part.event {
                Some(Wire::Removed(r)) => removed = Some(r.try_into().map_err(|e| self.garbled(&e))?),
                Some(Wire::Measured(part)) => {
                    grown.add_described(part);
                    snapshot.grow(grown.pairs());
                }
                Some(Wire::Last(sample)) => complete = snapshot.apply(sample).map_err(|e| self.garbled(&e))?,
                Some(Wire::Profile(part)) => parts.push(part),
                Some(Wire::Trace(part)) => trace.extend(part.bytes),
                Some(Wire::Printed(part)) => {
                    printed::add(calls.get_or_insert_default(), part).map_err(|e| self.garbled(&e))?;
                }
                Some(Wire::Shares(part)) => shares = Some(part.try_into().map_err(|e| self.garbled(&e))?),
                Some(Wire::Ended(e)) => ended = Some(e.try_into().map_err(|e| self.garbled(&e))?),
                None => {}
            }
        }
        let mut removed = removed.ok_or_else(|| self.incomplete("the removal"))?;
        removed.printed = calls;
        removed.shares = shares;
        removed.last = complete.then(|| Reading { ended, ..reading(&snapshot) });
        if grown.has_begun() {
            removed.grown = Some(self.whole(grown)?.pairs);
        }
        if !parts.is_empty() {
            removed.profile = Some(Box::new(profile::whole(parts).map_err(|e| self.garbled(&e))?));
        }
        Ok((removed, trace))
    }

    /// Fetches the instrumentation in each target.
    pub(crate) async fn inserted(&self, progress: &mut Progress) -> Result<Vec<Inserted>, Failure> {
        Ok(self.look(progress).await?.1)
    }

    /// Returns the directory in which the engine looks for journals, and everything that is inserted.
    pub(crate) async fn look(&self, progress: &mut Progress) -> Result<(String, Vec<Inserted>), Failure> {
        let mut client = InstrumentationClient::new(self.service.clone());
        let mut stream = self.answer(client.list(v1::ListInsertedRequest {}), progress).await?;
        let (mut state_dir, mut out) = (String::new(), Vec::new());
        while let Some(part) = self.next(&mut stream, progress).await? {
            if !part.state_dir.is_empty() {
                state_dir = part.state_dir;
            }
            out.extend(self.known(part.inserted)?);
        }
        Ok((state_dir, out))
    }

    /// Removes everything from a target; `None` if nothing was inserted there.
    pub(crate) async fn detach(
        &self,
        target: &RequestTarget,
        progress: &mut Progress,
    ) -> Result<Option<Removed>, Failure> {
        let mut client = InstrumentationClient::new(self.service.clone());
        let request = v1::DetachRequest { target: Some(target.spec().into()) };
        let answer = self.answer(client.detach(request), progress).await?;
        answer.removed.map(Removed::try_from).transpose().map_err(|e| self.garbled(&e))
    }

    /// The failure if an answer ended too early.
    fn incomplete(&self, what: &str) -> Failure {
        let what = format!("the engine's answer about {what} is incomplete");
        Failure {
            host: self.host(),
            ..Failure::new(Exit::Failed, what, "run `ingraft status` to see what is inserted")
        }
    }

    /// The failure if an answer contradicts itself.
    fn garbled(&self, error: &FieldError) -> Failure {
        let what = format!("the engine's answer is not understood: {error}");
        Failure {
            host: self.host(),
            ..Failure::new(Exit::Failed, what, "use the same version of ingraft and ingraftd")
        }
    }
}

/// The values that a snapshot has.
fn reading(snapshot: &Snapshot) -> Reading {
    Reading { time_ns: snapshot.time_ns, values: snapshot.values.clone(), ended: None }
}
