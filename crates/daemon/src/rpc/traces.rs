//! `ingraft.v1.Traces`.

use ingraft_api::Reason;
use ingraft_engine::MeasurementId;
use ingraft_wire::{ProtocolFailure, trace, v1};
use tonic::{Request, Response, Status};

use crate::auth;
use crate::core::{Core, payer};
use crate::failure::failed;
use crate::rpc::{Answers, list};
use crate::waiting::WaitingMessages;

/// The service that reads traces.
pub struct TracesService(pub Core);

#[tonic::async_trait]
impl v1::traces_server::Traces for TracesService {
    type ReadStream = Answers<v1::ReadTraceResponse>;

    async fn read(&self, request: Request<v1::ReadTraceRequest>) -> Result<Response<Self::ReadStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::ReadTraceRequest { measurement, begin } = request.into_inner();
        let id = MeasurementId(measurement);
        let payer = payer();
        let parts = self.0.engine_list(move |engine| {
            let mut bytes = Vec::new();
            if begin {
                let (program, code) = engine.traced(id, caller).map_err(failed)?;
                bytes = trace::beginning(program, code).ok_or_else(too_large)?;
            }
            bytes.extend(trace::chunks(engine.take_trace(id, caller).map_err(failed)?));
            let parts = trace::parts(bytes).map(|part| v1::ReadTraceResponse { part: Some(part) });
            WaitingMessages::packed(payer.as_ref(), parts)
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }
}

fn too_large() -> ProtocolFailure {
    let what = "the functions of the trace are too many for its file";
    ProtocolFailure::new(Reason::TooManyFunctions, what, "name fewer functions")
}
