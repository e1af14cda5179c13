//! Commands that join the engine of another command of the same user: the socket at which that engine serves them, and the processes that
//! are connected there.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ingraft_engine::socket_path;
use ingraft_model::Pid;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tonic::service::Routes;

use crate::auth::{ListenerAuth, Origin, Peer};
use crate::call::Serving;
use crate::core::Core;
use crate::listen::{ListenError, SocketFile, accept, listen_privately};
use crate::quota::{Quotas, ResourceTable};
use crate::reception::Reception;
use crate::run::files;

/// Number of connections of each process.
type Peers = BTreeMap<i32, usize>;

/// The socket of an embedded engine for other commands of its user. Its file exists as long as this value: a command that finds the file
/// while nobody listens knows that the engine is about to end.
pub struct Joining {
    peers: watch::Receiver<Peers>,
    served: JoinHandle<()>,
    _file: SocketFile,
}

impl Joining {
    /// Listens at the socket of this process in the engine's state directory.
    pub fn open(core: &Core, routes: Routes) -> Result<Joining, ListenError> {
        let path = socket_path(core.engine().state_dir(), Pid(std::process::id().cast_signed()));
        let io_error = |source| ListenError::Io { doing: format!("listen at {}", path.display()), source };
        let (listener, file) = listen_privately(&path)?;
        let listener = UnixListener::from_std(listener).map_err(io_error)?;
        let table = ResourceTable::new(Quotas::default(), files().map_err(io_error)?);
        let (peers, seen) = watch::channel(Peers::new());
        let serving = Serving { routes, access: ListenerAuth::Peer, table, closing: core.closing() };
        let served = tokio::spawn(serve(listener, serving, peers));
        Ok(Joining { peers: seen, served, _file: file })
    }

    /// Returns the processes that are connected.
    pub fn peers(&self) -> Vec<i32> {
        self.peers.borrow().keys().copied().collect()
    }

    /// Returns when no process is connected.
    pub async fn deserted(&mut self) {
        // The sender exists as long as connections are served.
        drop(self.peers.wait_for(Peers::is_empty).await);
    }

    /// Waits for the connections to end after the engine has ended, but at most for this time. Then removes the file.
    pub async fn close(self, at_most: Duration) {
        if tokio::time::timeout(at_most, self.served).await.is_err() {
            tracing::debug!("another command did not let go of its connection");
        }
    }
}

/// Serves the connections of other commands of this user until the engine ends.
async fn serve(listener: UnixListener, serving: Serving, peers: watch::Sender<Peers>) {
    let closing = serving.closing.clone();
    let reception = Arc::new(Reception::new(serving, None));
    let own = nix::unistd::geteuid().as_raw();
    let mut open = JoinSet::new();
    accept(listener, closing, |io, origin| {
        while open.try_join_next().is_some() {}
        let Origin::Socket(Some(Peer { uid, pid, .. })) = origin else { return };
        if uid != own {
            return;
        }
        let Some(seat) = reception.admit(origin) else { return };
        let counted = CountedConnection::new(&peers, pid.unwrap_or_default());
        let reception = Arc::clone(&reception);
        open.spawn(async move {
            reception.serve(io, origin, seat).await;
            drop(counted);
        });
    })
    .await;
    while open.join_next().await.is_some() {}
}

/// A connection of a process, which counts until this value is dropped.
struct CountedConnection {
    peers: watch::Sender<Peers>,
    pid: i32,
}

impl CountedConnection {
    fn new(peers: &watch::Sender<Peers>, pid: i32) -> CountedConnection {
        peers.send_modify(|peers| *peers.entry(pid).or_default() += 1);
        CountedConnection { peers: peers.clone(), pid }
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.peers.send_modify(|peers| {
            if let Some(connections) = peers.get_mut(&self.pid) {
                *connections -= 1;
            }
            peers.retain(|_, connections| *connections > 0);
        });
    }
}
