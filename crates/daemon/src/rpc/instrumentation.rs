//! `ingraft.v1.Instrumentation`.

use ingraft_api::{EnableRequest, MeasurementId};
use ingraft_engine::{Caller, Engine};
use ingraft_wire::enabled::description;
use ingraft_wire::process::target;
use ingraft_wire::{MessageParts, ProtocolFailure, v1};
use tonic::{Request, Response, Status};

use crate::audit;
use crate::auth;
use crate::core::{Core, payer};
use crate::rpc::{Answers, answers, enable, list};
use crate::waiting::WaitingMessages;

/// The service that inserts and removes measurements.
pub struct InstrumentationService(pub Core);

#[tonic::async_trait]
impl v1::instrumentation_server::Instrumentation for InstrumentationService {
    type EnableStream = Answers<v1::EnableResponse>;

    async fn enable(&self, request: Request<v1::EnableRequest>) -> Result<Response<Self::EnableStream>, Status> {
        let caller = auth::caller(&request)?;
        let client = auth::client(&request);
        let request = request.into_inner();
        let target = audit::target(request.target.as_ref());
        let order = enable::PendingInsertion::of(client, &target, request.measure.as_ref());
        let request = EnableRequest::try_from(request).map_err(|e| order.refuse(e))?;
        Ok(enable::insert(&self.0, order, move |engine, max_pairs, progress| {
            let request = EnableRequest { max_pairs, ..request.clone() };
            engine.enable(&request, caller, &|text| progress.say(text))
        }))
    }

    type DescribeStream = Answers<v1::DescribeResponse>;

    async fn describe(&self, request: Request<v1::DescribeRequest>) -> Result<Response<Self::DescribeStream>, Status> {
        let caller = auth::caller(&request)?;
        let id = MeasurementId(request.into_inner().measurement);
        let (pid, pairs) = self.0.engine_call(move |engine| engine.pairs(id, caller)).await?;
        answers(description(id, pid, pairs))
    }

    type RemoveStream = Answers<v1::RemoveResponse>;

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Result<Response<Self::RemoveStream>, Status> {
        let caller = auth::caller(&request)?;
        let by = auth::client(&request).as_ref().map(audit::who);
        let id = MeasurementId(request.into_inner().measurement);
        remove(&self.0, id, caller, by).await
    }

    async fn keep(&self, request: Request<v1::KeepRequest>) -> Result<Response<v1::KeepResponse>, Status> {
        let caller = auth::caller(&request)?;
        let v1::KeepRequest { measurement, keep } = request.into_inner();
        let id = MeasurementId(measurement);
        let keeper = self.0.keeper().clone();
        let kept = self.0.engine_call(move |engine| {
            engine.keep(id, keep, caller)?;
            keeper.keep(id, keep);
            Ok(())
        });
        kept.await?;
        Ok(Response::new(v1::KeepResponse {}))
    }

    type ListStream = Answers<v1::ListInsertedResponse>;

    async fn list(&self, request: Request<v1::ListInsertedRequest>) -> Result<Response<Self::ListStream>, Status> {
        let caller = auth::caller(&request)?;
        let looked = |engine: &Engine| engine.state_dir().to_string_lossy().into_owned();
        let found = self.0.engine_call(move |engine| Ok((looked(engine), engine.status(caller)?)));
        let (state_dir, found) = found.await?;
        let head = v1::ListInsertedResponse { inserted: Vec::new(), state_dir };
        let parts = MessageParts::new(found.into_iter().map(v1::Inserted::from));
        let parts = parts.map(|inserted| v1::ListInsertedResponse { inserted, state_dir: String::new() });
        answers(std::iter::once(head).chain(parts))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Result<Response<v1::DetachResponse>, Status> {
        let caller = auth::caller(&request)?;
        let by = auth::client(&request).as_ref().map(audit::who);
        let target = target(request.into_inner().target).map_err(ProtocolFailure::from)?;
        let core = self.0.clone();
        let removed = self.0.engine_call(move |engine| {
            let removed = engine.detach(&target, caller)?;
            if let Some(removed) = &removed {
                core.audit().detached(engine, &removed_by(by.as_deref()), removed);
            }
            Ok(removed)
        });
        let removed = removed.await?;
        Ok(Response::new(v1::DetachResponse { removed: removed.as_ref().map(Into::into) }))
    }
}

/// Removes a measurement for a caller, and returns the answer. `by` names the caller for the audit log.
pub async fn remove(
    core: &Core,
    id: MeasurementId,
    caller: Caller,
    by: Option<String>,
) -> Result<Response<Answers<v1::RemoveResponse>>, Status> {
    let shared = core.clone();
    let removed = core.engine_call(move |engine| {
        let removed = engine.remove(id, caller)?;
        shared.keeper().removed(id);
        shared.audit().ended(id, &removed_by(by.as_deref()), (&removed).into());
        Ok(removed)
    });
    // Send the result of the removal even if many bytes wait already, because it cannot be requested again.
    Ok(list(WaitingMessages::lazy(enable::removal(id, removed.await?, payer().as_ref()))))
}

fn removed_by(who: Option<&str>) -> String {
    format!("removed by {}", who.unwrap_or("this program").escape_debug())
}
