//! `ingraft.v1.Code`.

use ingraft_engine::FunctionList;
use ingraft_wire::{Failure, Parts, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use v1::functions_response::Event;

use crate::auth;
use crate::core::{Core, spawn};
use crate::rpc::{Answers, Progress, convert};

/// Reads code.
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
        let (send, receive) = mpsc::channel(8);
        let core = self.0.clone();
        spawn(async move {
            let progress = Progress::new(send.clone(), |text| response(Event::Progress(v1::Progress { text })));
            let found = core
                .engine_call(move |engine| engine.functions(&target, &patterns, caller, &|text| progress.say(text)));
            match found.await {
                Ok(FunctionList { pid, functions, untyped }) => {
                    let mut parts = Parts::new(functions.into_iter().map(convert::function)).peekable();
                    let none = parts.peek().is_none().then(Vec::new);
                    for functions in parts.chain(none) {
                        let chunk = v1::FunctionChunk { pid: pid.0, functions };
                        if send.send(Ok(response(Event::Functions(chunk)))).await.is_err() {
                            return;
                        }
                    }
                    for symbols in Parts::new(untyped.into_iter().map(convert::untyped_symbol)) {
                        let chunk = v1::UntypedChunk { pid: pid.0, symbols };
                        if send.send(Ok(response(Event::Untyped(chunk)))).await.is_err() {
                            return;
                        }
                    }
                }
                // When the client has gone, nobody needs to know.
                Err(failure) => drop(send.send(Err(failure.into_status())).await),
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }
}
