//! `ingraft.v1.Profiles`.

use ingraft_api::MeasurementId;
use ingraft_wire::totals::event_totals;
use ingraft_wire::{profile, v1};
use tonic::{Request, Response, Status};

use crate::auth;
use crate::core::{Core, payer};
use crate::failure::failed;
use crate::rpc::{Answers, list};
use crate::waiting::WaitingMessages;

/// The service that reads profiles.
pub struct ProfilesService(pub Core);

#[tonic::async_trait]
impl v1::profiles_server::Profiles for ProfilesService {
    type QueryStream = Answers<v1::QueryProfileResponse>;

    async fn query(&self, request: Request<v1::QueryProfileRequest>) -> Result<Response<Self::QueryStream>, Status> {
        let caller = auth::caller(&request)?;
        let id = MeasurementId(request.into_inner().measurement);
        let payer = payer();
        let parts = self.0.engine_list(move |engine| {
            let reading = engine.profile(id, caller).map_err(failed)?;
            let parts = profile::parts(reading).map(|part| v1::QueryProfileResponse { part: Some(part) });
            WaitingMessages::packed(payer.as_ref(), parts)
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
            WaitingMessages::packed(payer.as_ref(), event_totals(reading))
        });
        let parts = parts.await??;
        self.0.keeper().read(id);
        Ok(list(parts))
    }
}
