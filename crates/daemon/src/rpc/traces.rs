//! `ingraft.v1.Traces`.

use ingraft_engine::{EnableRequest, MeasurementId};
use ingraft_wire::{Failure, FailureKind, trace, v1};
use tonic::{Request, Response, Status};

use crate::audit;
use crate::auth;
use crate::core::{Core, payer};
use crate::failure::failed;
use crate::rpc::{Answers, convert, enable, instrumentation, list};
use crate::waiting::Waiting;

/// The service that starts, reads and stops traces.
pub struct Service(pub Core);

#[tonic::async_trait]
impl v1::traces_server::Traces for Service {
    type StartStream = Answers<v1::EnableResponse>;

    async fn start(&self, request: Request<v1::StartTraceRequest>) -> Result<Response<Self::StartStream>, Status> {
        let caller = auth::caller(&request)?;
        let client = auth::client(&request);
        let v1::StartTraceRequest { target, functions, wait_ns, buffer, times, when, lossless } = request.into_inner();
        let measure = v1::Measure {
            functions,
            wait_ns,
            trace_buffer: buffer,
            trace_times: times,
            trace_when: when,
            trace_lossless: lossless,
            ..v1::Measure::default()
        };
        let name = audit::target(target.as_ref());
        let order = enable::Order::of(client, &name, Some(&measure));
        let request = v1::EnableRequest { target, measure: Some(measure) };
        let request = convert::enable(request).and_then(convert::traced).map_err(|e| order.refuse(e))?;
        Ok(enable::insert(&self.0, order, move |engine, max_pairs, progress| {
            let request = EnableRequest { max_pairs, ..request.clone() };
            engine.enable(&request, caller, &|text| progress.say(text))
        }))
    }

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
            Waiting::packed(payer.as_ref(), parts)
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }

    type StopStream = Answers<v1::RemoveResponse>;

    async fn stop(&self, request: Request<v1::StopTraceRequest>) -> Result<Response<Self::StopStream>, Status> {
        let caller = auth::caller(&request)?;
        let by = auth::client(&request).as_ref().map(audit::who);
        let id = MeasurementId(request.into_inner().measurement);
        instrumentation::remove(&self.0, id, caller, by).await
    }
}

fn too_large() -> Failure {
    let what = "the functions of the trace are too many for its file";
    Failure::new(FailureKind::Usage, "too_many_functions", what, "name fewer functions")
}
