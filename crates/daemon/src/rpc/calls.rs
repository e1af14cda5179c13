//! `ingraft.v1.Calls`.

use ingraft_api::PrintedCalls;
use ingraft_engine::MeasurementId;
use ingraft_wire::printed::messages;
use ingraft_wire::v1;
use tonic::{Request, Response, Status};

use crate::auth;
use crate::core::{Core, payer};
use crate::failure::failed;
use crate::rpc::{Answers, list};
use crate::waiting::WaitingMessages;

/// The service that reads printed calls.
pub struct CallsService(pub Core);

#[tonic::async_trait]
impl v1::calls_server::Calls for CallsService {
    type ReadStream = Answers<v1::PrintedCalls>;

    async fn read(&self, request: Request<v1::ReadCallsRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::ReadCallsRequest { measurement, begin } = request.into_inner();
        let id = MeasurementId(measurement);
        let payer = payer();
        let parts = self.0.engine_list(move |engine| {
            let printed = engine.take_printed(id, caller).map_err(failed)?;
            let sites = if begin { printed.sites } else { Vec::new() };
            WaitingMessages::packed(payer.as_ref(), messages(PrintedCalls { sites, ..printed }))
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }
}
