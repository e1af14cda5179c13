//! `ingraft.v1.Processes`.

use ingraft_engine::Caller;
use ingraft_wire::{Failure, FailureKind, Parts, v1};
use tonic::{Request, Response, Status};

use crate::auth;
use crate::core::{Core, Host};
use crate::rpc::{Answers, answers, convert, enable};

/// Lists and starts processes.
pub struct Service(pub Core);

/// A program runs as the daemon's user. Whoever is not that user could become it this way.
fn may_start(caller: Caller, own: u32) -> Result<(), Failure> {
    match caller {
        Caller::Engine => Ok(()),
        Caller::Uid(uid) if uid == own => Ok(()),
        Caller::Uid(uid) => Err(Failure::new(
            FailureKind::Denied,
            "launch_other_user",
            format!("the daemon starts programs as uid {own} only, and the caller is uid {uid}"),
            "start it yourself and measure it by its pid, or run ingraft without --daemon",
        )),
    }
}

#[tonic::async_trait]
impl v1::processes_server::Processes for Service {
    type ListStream = Answers<v1::ListProcessesResponse>;

    async fn list(&self, request: Request<v1::ListProcessesRequest>) -> Result<Response<Self::ListStream>, Status> {
        let caller = auth::caller(&request)?;
        let glob = Some(request.into_inner().glob).filter(|glob| !glob.is_empty());
        let found = self.0.engine_call(move |engine| engine.processes(glob.as_deref(), caller)).await?;
        answers(
            Parts::new(found.into_iter().map(convert::process))
                .map(|processes| v1::ListProcessesResponse { processes }),
        )
    }

    type LaunchStream = Answers<v1::EnableResponse>;

    async fn launch(&self, request: Request<v1::LaunchRequest>) -> Result<Response<Self::LaunchStream>, Status> {
        let caller = auth::caller(&request)?;
        may_start(caller, nix::unistd::geteuid().as_raw())?;
        let inherit_streams = self.0.host() == Host::CommandLine;
        let request = convert::launch(request.into_inner(), inherit_streams).map_err(Failure::from)?;
        Ok(enable::insert(&self.0, request.enable.keep, move |engine, progress| {
            engine.launch(&request, caller, &|text| progress.say(text))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_started_for_the_own_user_only() {
        assert!(may_start(Caller::Engine, 0).is_ok());
        assert!(may_start(Caller::Uid(1000), 1000).is_ok());
        assert_eq!(may_start(Caller::Uid(1000), 0).unwrap_err().reason, "launch_other_user");
    }
}
