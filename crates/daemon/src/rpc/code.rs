//! `ingraft.v1.Code`.

use ingraft_engine::FunctionList;
use ingraft_wire::{Failure, Parts, v1};
use tonic::{Request, Response, Status};
use v1::functions_response::Event;

use crate::auth;
use crate::core::{Core, payer, spawn};
use crate::rpc::{Answers, Progress, convert};
use crate::waiting::{self, Part, Waiting};

/// The service that lists functions.
pub struct Service(pub Core);

fn response(event: Event) -> v1::FunctionsResponse {
    v1::FunctionsResponse { event: Some(event) }
}

#[tonic::async_trait]
impl v1::code_server::Code for Service {
    type FunctionsStream = Answers<v1::FunctionsResponse>;

    async fn functions(
        &self,
        request: Request<v1::FunctionsRequest>,
    ) -> Result<Response<Self::FunctionsStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::FunctionsRequest { target, patterns } = request.into_inner();
        let target = convert::target(target).map_err(Failure::from)?;
        let (send, told) = waiting::channel(8);
        let core = self.0.clone();
        spawn(async move {
            let progress = Progress::new(send.clone(), |text| response(Event::Progress(v1::Progress { text })));
            let payer = payer();
            let found = core.engine_list(move |engine| {
                let found = engine.functions(&target, &patterns, caller, &|text| progress.say(text));
                let FunctionList { pid, functions, untyped } = found.map_err(convert::failure)?;
                let mut parts = Parts::new(functions.into_iter().map(convert::function)).peekable();
                let none = parts.peek().is_none().then(Vec::new);
                let chunk = move |functions| response(Event::Functions(v1::FunctionChunk { pid: pid.0, functions }));
                let untyped = Parts::new(untyped.into_iter().map(convert::untyped_symbol));
                let symbols =
                    untyped.map(move |symbols| response(Event::Untyped(v1::UntypedChunk { pid: pid.0, symbols })));
                Waiting::packed(payer.as_ref(), parts.chain(none).map(chunk).chain(symbols))
            });
            let found = found.await.and_then(|found| found).map_err(Failure::into_status);
            // If the client is gone, no answer is needed.
            drop(send.send(found.map(Part::Many)).await);
        });
        Ok(Response::new(Box::pin(told)))
    }
}
