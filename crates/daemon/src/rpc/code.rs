//! `ingraft.v1.Code`.

use std::num::NonZeroU32;

use ingraft_api::{FunctionList, InspectRequest, PathChoice};
use ingraft_model::Avma;
use ingraft_wire::{FieldError, MessageParts, ProtocolFailure, process, v1};
use tonic::{Request, Response, Status};
use v1::functions_response::Event;
use v1::inspect_response::Event as Inspected;

use crate::auth;
use crate::core::{Core, payer, spawn};
use crate::failure::failed;
use crate::rpc::{Answers, CallProgress, sampling};
use crate::waiting::{self, AnswerPart, WaitingMessages};

/// The service that lists and describes functions.
pub struct CodeService(pub Core);

fn response(event: Event) -> v1::FunctionsResponse {
    v1::FunctionsResponse { event: Some(event) }
}

fn inspected(event: Inspected) -> v1::InspectResponse {
    v1::InspectResponse { event: Some(event) }
}

#[tonic::async_trait]
impl v1::code_server::Code for CodeService {
    type FunctionsStream = Answers<v1::FunctionsResponse>;
    type InspectStream = Answers<v1::InspectResponse>;
    type SampleStream = Answers<v1::SampleResponse>;

    async fn functions(
        &self,
        request: Request<v1::FunctionsRequest>,
    ) -> Result<Response<Self::FunctionsStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::FunctionsRequest { target, patterns, blocks } = request.into_inner();
        let target = process::target(target).map_err(ProtocolFailure::from)?;
        let (send, told) = waiting::channel(8);
        let core = self.0.clone();
        spawn(async move {
            let progress = CallProgress::new(send.clone(), |text| {
                response(Event::Progress(v1::Progress { text, ..Default::default() }))
            });
            let payer = payer();
            let found = core.engine_list(move |engine| {
                let found = engine.functions(&target, &patterns, blocks, caller, &|text| progress.say(text));
                let FunctionList { pid, functions, untyped } = found.map_err(failed)?;
                let mut parts = MessageParts::new(functions.into_iter().map(v1::Function::from)).peekable();
                let none = parts.peek().is_none().then(Vec::new);
                let chunk = move |functions| response(Event::Functions(v1::FunctionChunk { pid: pid.0, functions }));
                let untyped = MessageParts::new(untyped.into_iter().map(v1::UntypedSymbol::from));
                let symbols =
                    untyped.map(move |symbols| response(Event::Untyped(v1::UntypedChunk { pid: pid.0, symbols })));
                WaitingMessages::packed(payer.as_ref(), parts.chain(none).map(chunk).chain(symbols))
            });
            let found = found.await.and_then(|found| found).map_err(ProtocolFailure::into_status);
            // If the client is gone, no answer is needed.
            drop(send.send(found.map(AnswerPart::Many)).await);
        });
        Ok(Response::new(Box::pin(told)))
    }
    async fn inspect(&self, request: Request<v1::InspectRequest>) -> Result<Response<Self::InspectStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::InspectRequest { target, pattern, instructions, path, longest } = request.into_inner();
        let target = process::target(target).map_err(ProtocolFailure::from)?;
        if pattern.is_empty() {
            return Err(ProtocolFailure::from(FieldError::missing("pattern")).into_status());
        }
        let path = path.map(|number| PathChoice { number, longest: NonZeroU32::new(longest) });
        let request = InspectRequest { target, pattern, instructions, path };
        let (send, told) = waiting::channel(8);
        let core = self.0.clone();
        spawn(async move {
            let progress = CallProgress::new(send.clone(), |text| {
                inspected(Inspected::Progress(v1::Progress { text, ..Default::default() }))
            });
            let payer = payer();
            let found = core.engine_list(move |engine| {
                let found = engine.inspect(&request, caller, &|text| progress.say(text)).map_err(failed)?;
                let pid = found.pid.0;
                let items = found.functions.into_iter().flat_map(ingraft_wire::code::items);
                let chunk = move |items| inspected(Inspected::Code(v1::CodeChunk { pid, items }));
                WaitingMessages::packed(payer.as_ref(), MessageParts::new(items).map(chunk))
            });
            let found = found.await.and_then(|found| found).map_err(ProtocolFailure::into_status);
            // If the client is gone, no answer is needed.
            drop(send.send(found.map(AnswerPart::Many)).await);
        });
        Ok(Response::new(Box::pin(told)))
    }

    async fn locate(&self, request: Request<v1::LocateRequest>) -> Result<Response<v1::LocateResponse>, Status> {
        let caller = auth::caller(&request)?;
        let v1::LocateRequest { target, address } = request.into_inner();
        let target = process::target(target).map_err(ProtocolFailure::from)?;
        let found = self.0.engine_list(move |engine| engine.locate(&target, Avma(address), caller));
        let found = found.await.and_then(|found| found.map_err(failed)).map_err(ProtocolFailure::into_status)?;
        Ok(Response::new(found.into()))
    }
    async fn sample(&self, request: Request<v1::SampleRequest>) -> Result<Response<Self::SampleStream>, Status> {
        let caller = auth::caller(&request)?;
        sampling::sample(&self.0, request.into_inner(), caller)
    }
}
