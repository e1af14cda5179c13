//! `ingraft.v1.Processes`.

use std::time::Duration;

use ingraft_api::{LaunchRequest, ProcessFilter, Reason};
use ingraft_model::Pid;
use ingraft_wire::{MessageParts, ProtocolFailure, v1};
use tonic::{Request, Response, Status};

use crate::auth;
use crate::core::{Core, ServingProgram, payer};
use crate::failure::failed;
use crate::rpc::{Answers, enable, list};
use crate::waiting::WaitingMessages;

/// The service that lists and starts processes.
pub struct ProcessesService(pub Core);

#[tonic::async_trait]
impl v1::processes_server::Processes for ProcessesService {
    type ListStream = Answers<v1::ListProcessesResponse>;

    async fn list(&self, request: Request<v1::ListProcessesRequest>) -> Result<Response<Self::ListStream>, Status> {
        let caller = auth::caller(&request)?;
        let filter = ProcessFilter::try_from(request.into_inner()).map_err(ProtocolFailure::from)?;
        let chosen = filter.name.is_some() || filter.cgroup.is_some();
        let payer = payer();
        let found = self.0.engine_list(move |engine| {
            let found = engine.processes(&filter, caller).map_err(failed)?;
            let parts = MessageParts::new(found.into_iter().map(v1::Process::from));
            let parts = parts.map(move |processes| v1::ListProcessesResponse { processes, chosen });
            WaitingMessages::packed(payer.as_ref(), parts)
        });
        Ok(list(found.await??))
    }

    async fn children(&self, request: Request<v1::ChildrenRequest>) -> Result<Response<v1::ChildrenResponse>, Status> {
        let caller = auth::caller(&request)?;
        let parents: Vec<_> = request.into_inner().pids.into_iter().map(Pid).collect();
        let found = self.0.engine_call(move |engine| engine.children(&parents, caller)).await?;
        Ok(Response::new(v1::ChildrenResponse { children: found.into_iter().map(Into::into).collect() }))
    }

    type LaunchStream = Answers<v1::EnableResponse>;

    async fn launch(&self, request: Request<v1::LaunchRequest>) -> Result<Response<Self::LaunchStream>, Status> {
        let caller = auth::caller(&request)?;
        let client = auth::client(&request);
        let request = request.into_inner();
        let program = request.command.first().map(|word| String::from_utf8_lossy(word).into_owned());
        let mut order = enable::PendingInsertion::of(client, &program.unwrap_or_default(), request.measure.as_ref());
        // The program is started only once, so a failed insertion is not attempted again.
        order.terms.wait = Duration::ZERO;
        auth::own_user_only(caller, || {
            // The program runs as the daemon's user, so another user could act as that user.
            ProtocolFailure::new(
                Reason::LaunchOtherUser,
                "the daemon starts programs for its own user only",
                "start it yourself and measure it by its pid, or run ingraft without --daemon",
            )
        })
        .map_err(|failure| order.refuse(failure))?;
        let mut request = LaunchRequest::try_from(request).map_err(|e| order.refuse(e))?;
        request.inherit_streams = self.0.host() == ServingProgram::CommandLine;
        Ok(enable::insert(&self.0, order, move |engine, max_pairs, progress| {
            let mut request = request.clone();
            request.enable.max_pairs = max_pairs;
            engine.launch(&request, caller, &|text| progress.say(text))
        }))
    }
}
