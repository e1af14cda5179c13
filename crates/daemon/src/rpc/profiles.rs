//! `ingraft.v1.Profiles`.

use ingraft_engine::{EnableRequest, MeasurementId};
use ingraft_wire::v1;
use tonic::{Request, Response, Status};

use crate::audit;
use crate::auth;
use crate::core::{Core, payer};
use crate::failure::failed;
use crate::rpc::{Answers, convert, enable, instrumentation, list};
use crate::waiting::Waiting;

/// The service that starts, reads and stops profiles.
pub struct Service(pub Core);

#[tonic::async_trait]
impl v1::profiles_server::Profiles for Service {
    type StartStream = Answers<v1::EnableResponse>;

    async fn start(&self, request: Request<v1::StartProfileRequest>) -> Result<Response<Self::StartStream>, Status> {
        let caller = auth::caller(&request)?;
        let client = auth::client(&request);
        let v1::StartProfileRequest {
            target,
            functions,
            wait_ns,
            await_modules,
            check,
            coverage,
            branches,
            in_place,
            earlier,
            inclusive,
            inclusive_calls,
        } = request.into_inner();
        let measure = v1::Measure {
            functions,
            wait_ns,
            await_modules,
            check,
            profile: true,
            coverage,
            branches,
            in_place,
            earlier,
            inclusive,
            inclusive_calls,
            ..v1::Measure::default()
        };
        let name = audit::target(target.as_ref());
        let order = enable::Order::of(client, &name, Some(&measure));
        let request = v1::EnableRequest { target, measure: Some(measure) };
        let request = convert::enable(request).map_err(|e| order.refuse(e))?;
        Ok(enable::insert(&self.0, order, move |engine, max_pairs, progress| {
            let request = EnableRequest { max_pairs, ..request.clone() };
            engine.enable(&request, caller, &|text| progress.say(text))
        }))
    }

    type QueryStream = Answers<v1::QueryProfileResponse>;

    async fn query(&self, request: Request<v1::QueryProfileRequest>) -> Result<Response<Self::QueryStream>, Status> {
        let caller = auth::caller(&request)?;
        let id = MeasurementId(request.into_inner().measurement);
        let payer = payer();
        let parts = self.0.engine_list(move |engine| {
            let reading = engine.profile(id, caller).map_err(failed)?;
            let parts = convert::profile(reading).map(|part| v1::QueryProfileResponse { part: Some(part) });
            Waiting::packed(payer.as_ref(), parts)
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }

    type EventTotalsStream = Answers<v1::EventTotalsResponse>;

    async fn event_totals(
        &self,
        request: Request<v1::EventTotalsRequest>,
    ) -> Result<Response<Self::EventTotalsStream>, Status> {
        let caller = auth::caller(&request)?;
        let id = MeasurementId(request.into_inner().measurement);
        let payer = payer();
        let parts = self.0.engine_list(move |engine| {
            let reading = engine.event_totals(id, caller).map_err(failed)?;
            Waiting::packed(payer.as_ref(), convert::event_totals(reading))
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }

    type StopStream = Answers<v1::RemoveResponse>;

    async fn stop(&self, request: Request<v1::StopProfileRequest>) -> Result<Response<Self::StopStream>, Status> {
        let caller = auth::caller(&request)?;
        let by = auth::client(&request).as_ref().map(audit::who);
        let id = MeasurementId(request.into_inner().measurement);
        instrumentation::remove(&self.0, id, caller, by).await
    }
}
