//! The embedded engine of the command line: the same services, on an in-memory channel.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ingraft_engine::{Engine, Removed};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint, Server};

use crate::core::{Core, ServingProgram};
use crate::joining::Joining;
use crate::rpc;

/// Size of the in-memory channel's buffer in each direction, in bytes.
const BUFFER: usize = 256 << 10;

/// Time for the last answers to be read after the engine has ended.
const GOODBYE: Duration = Duration::from_secs(1);

/// A served engine in this process. It must be closed, so that nothing stays in a target. If it is not closed, the journal has records of
/// everything that it leaves behind.
pub struct Embedded {
    core: Core,
    channel: Channel,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
    joining: Option<Joining>,
}

/// Reason why the engine could not be served.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The descriptors of the protocol cannot be read.
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The in-memory connection could not be made.
    #[error("cannot connect to the embedded engine: {0}")]
    Connect(#[from] tonic::transport::Error),
}

/// Serves an engine on an in-memory channel. If it is `joinable`, serves it to other commands of this user too. Needs a tokio runtime that
/// exists until [`Embedded::close`].
pub async fn embedded(engine: Engine, joinable: bool) -> Result<Embedded, EmbeddedError> {
    let core = Core::new(engine, ServingProgram::CommandLine);
    core.start_keeper();
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (routes, _health) = rpc::routes(&core).await?;
    // Without the socket, the command works for itself, and other commands are told that it holds its targets.
    let joining = joinable.then(|| Joining::open(&core, routes.clone()).inspect_err(|e| tracing::debug!("{e}")).ok());
    let server = Server::builder().add_routes(routes);
    // The stream of connections must not end, because the server ends with it.
    let connections = tokio_stream::once(Ok::<_, io::Error>(theirs)).chain(tokio_stream::pending());
    let mut closing = core.closing();
    let until = async move { closing.wait().await };
    let server = tokio::spawn(server.serve_with_incoming_shutdown(connections, until));
    let mut ours = Some(ours);
    let connector = tower::service_fn(move |_| {
        // The duplex stream carries one connection only.
        let stream = ours.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(stream.map(TokioIo::new))
    });
    let channel = Endpoint::from_static("http://embedded.invalid").connect_with_connector(connector).await?;
    Ok(Embedded { core, channel, server, joining: joining.flatten() })
}

impl Embedded {
    /// Returns a channel to the services. Clones are cheap.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Returns the processes of other commands that use the engine.
    pub fn others(&self) -> Vec<i32> {
        self.joining.as_ref().map(Joining::peers).unwrap_or_default()
    }

    /// Returns when no other command uses the engine.
    pub async fn deserted(&mut self) {
        if let Some(joining) = &mut self.joining {
            joining.deserted().await;
        }
    }

    /// Ends the engine: calls in progress finish, and then every measurement that is not kept is removed.
    pub async fn close(self) -> Vec<Result<Removed, ingraft_engine::Error>> {
        let removed = self.core.close().await;
        // The server may still be sending its last answers. After the timeout, a client that has not read them does not get them.
        if tokio::time::timeout(GOODBYE, self.server).await.is_err() {
            tracing::debug!("an answer was not taken");
        }
        if let Some(joining) = self.joining {
            joining.close(GOODBYE).await;
        }
        removed
    }
}
