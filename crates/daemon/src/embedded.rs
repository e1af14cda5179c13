//! The engine inside the command line: the same services, served on an in-memory channel.

use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ingraft_engine::{Engine, Removed};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt;
use tonic::transport::{Channel, Endpoint, Server};

use crate::core::{Core, Host};
use crate::rpc;

/// Bytes in flight in each direction.
const BUFFER: usize = 256 << 10;

/// Time that the last answers have to be read after the engine has ended.
const GOODBYE: Duration = Duration::from_secs(1);

/// A served engine in this process. It must be closed, so that nothing stays in a target. If it is not closed, everything that it leaves is
/// in the journal.
pub struct Embedded {
    core: Core,
    channel: Channel,
    server: JoinHandle<Result<(), tonic::transport::Error>>,
}

/// Reason why the engine could not be served.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// The descriptors of the protocol are not readable.
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    /// The in-memory connection could not be made.
    #[error("cannot connect to the embedded engine: {0}")]
    Connect(#[from] tonic::transport::Error),
}

/// Serves an engine on an in-memory channel. Needs a tokio runtime, which must live until [`Embedded::close`].
pub async fn embedded(engine: Engine) -> Result<Embedded, EmbeddedError> {
    let core = Core::new(engine, Host::CommandLine);
    core.start_keeper();
    let (ours, theirs) = tokio::io::duplex(BUFFER);
    let (routes, _health) = rpc::routes(&core).await?;
    let server = Server::builder().add_routes(routes);
    // The stream of connections must not end: that would be taken for the end of the server.
    let connections = tokio_stream::once(Ok::<_, io::Error>(theirs)).chain(tokio_stream::pending());
    let mut closing = core.closing();
    let until = async move { closing.wait().await };
    let server = tokio::spawn(server.serve_with_incoming_shutdown(connections, until));
    let mut ours = Some(ours);
    let connector = tower::service_fn(move |_| {
        // A duplex is one connection: there is no second one.
        let stream = ours.take().ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(stream.map(TokioIo::new))
    });
    let channel = Endpoint::from_static("http://embedded.invalid").connect_with_connector(connector).await?;
    Ok(Embedded { core, channel, server })
}

impl Embedded {
    /// Returns a channel to the services; cheap to clone.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// Ends the engine: removes every measurement that is not to be kept. Calls in progress come to their end first.
    pub async fn close(self) -> Vec<Result<Removed, ingraft_engine::Error>> {
        let removed = self.core.close().await;
        // The last answers of the server are on their way. A client that does not take them does not want them.
        if tokio::time::timeout(GOODBYE, self.server).await.is_err() {
            tracing::debug!("an answer was not taken");
        }
        removed
    }
}
