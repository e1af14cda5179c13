//! `ingraft.v1.Daemon`.

use ingraft_wire::{MESSAGE_BYTES, PROTOCOL, v1};
use tonic::{Request, Response, Status};

use crate::core::{BACKLOG, Core, INTERVAL_MIN};
use crate::lease::{GRACE, LEASE};
use crate::rpc::convert::{count, nanoseconds};

/// Answers about the program itself.
pub struct Service(pub Core);

#[tonic::async_trait]
impl v1::daemon_server::Daemon for Service {
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

    async fn limits(&self, _request: Request<v1::LimitsRequest>) -> Result<Response<v1::LimitsResponse>, Status> {
        Ok(Response::new(v1::LimitsResponse {
            message_bytes: MESSAGE_BYTES as u64,
            interval_min_ns: nanoseconds(INTERVAL_MIN),
            backlog: count(BACKLOG),
            lease_ns: nanoseconds(LEASE),
            grace_ns: nanoseconds(GRACE),
        }))
    }
}
