//! `ingraft.v1.Daemon`.

use std::time::Duration;

use ingraft_engine::Caller;
use ingraft_wire::{MESSAGE_BYTES, PROTOCOL, ProtocolFailure, v1};
use tonic::{Request, Response, Status};

use crate::auth::{self, AuthenticatedClient};
use crate::core::{BACKLOG, Core, INTERVAL_MIN};
use crate::lease::{GRACE, LEASE};

/// The service that describes the program itself and its limits.
pub struct DaemonService(pub Core);

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[tonic::async_trait]
impl v1::daemon_server::Daemon for DaemonService {
    async fn version(&self, request: Request<v1::VersionRequest>) -> Result<Response<v1::VersionResponse>, Status> {
        let asker = request.into_inner();
        tracing::debug!(client = asker.client, version = asker.version, "version asked");
        Ok(Response::new(v1::VersionResponse {
            name: self.0.host().program().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: PROTOCOL,
            pid: i32::try_from(std::process::id()).unwrap_or(0),
            features: Vec::new(),
        }))
    }

    async fn limits(&self, request: Request<v1::LimitsRequest>) -> Result<Response<v1::LimitsResponse>, Status> {
        let quotas = match auth::client(&request) {
            Some(client) => quotas(&self.0, client).await?,
            None => Vec::new(),
        };
        Ok(Response::new(v1::LimitsResponse {
            message_bytes: MESSAGE_BYTES as u64,
            interval_min_ns: nanoseconds(INTERVAL_MIN),
            backlog: u32::try_from(BACKLOG).unwrap_or(u32::MAX),
            lease_ns: nanoseconds(LEASE),
            grace_ns: nanoseconds(GRACE),
            quotas,
        }))
    }
}

/// Returns the quotas of a client, and its use of them.
async fn quotas(
    core: &Core,
    AuthenticatedClient { holder, table, .. }: AuthenticatedClient,
) -> Result<Vec<v1::Quota>, ProtocolFailure> {
    let shared = core.clone();
    let found = core.engine_value(move |engine| {
        table.refresh(holder, |id| engine.pairs(id, Caller::Engine).ok().map(|(_, pairs)| pairs.len()));
        let histories = shared.recorder().histories(&table.measurements(holder));
        let mut all = table.used(holder);
        all.push(("max-user-histories", table.quotas().user_histories, histories));
        all.push(("max-definitions", table.quotas().definitions, *shared.defined()));
        all
    });
    let quota = |(name, limit, used): (&str, usize, usize)| v1::Quota {
        name: name.to_owned(),
        limit: limit as u64,
        used: used as u64,
    };
    Ok(found.await?.into_iter().map(quota).collect())
}
