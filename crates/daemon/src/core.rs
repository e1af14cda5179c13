//! What all services share: the engine, who serves it, the leases, and whether it is closing.

use std::sync::Arc;
use std::time::Duration;

use ingraft_engine::{Engine, Error, Removed};
use ingraft_wire::{Failure, FailureKind};
use tokio::sync::{RwLock, watch};

use crate::keeper::{self, Keeper};
use crate::recorder::Recorder;
use crate::rpc::convert;

/// Least time between two samples of a stream.
pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Readings that wait for a slow reader before the oldest is dropped.
pub const BACKLOG: usize = 16;

/// Who serves the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// The command line, for itself.
    CommandLine,
    /// The daemon, for others.
    Daemon,
}

impl Host {
    /// The name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Host::CommandLine => "ingraft",
            Host::Daemon => "ingraftd",
        }
    }
}

/// Shared by all services; cheap to clone.
#[derive(Clone)]
pub struct Core {
    shared: Arc<Shared>,
}

struct Shared {
    engine: Engine,
    host: Host,
    keeper: Arc<Keeper>,
    recorder: Recorder,
    closing: watch::Sender<bool>,
    /// Held shared by every call that may change a target, exclusively by the end: nothing is inserted after the end has begun.
    changes: Arc<RwLock<()>>,
}

/// Waits for the engine to begin to end.
pub struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Returns when the end has begun.
    pub async fn wait(&mut self) {
        // The sender lives as long as the core; without it everything has ended.
        drop(self.0.wait_for(|closing| *closing).await);
    }
}

impl Core {
    /// Serves an engine.
    pub fn new(engine: Engine, host: Host) -> Self {
        let shared = Shared {
            engine,
            host,
            keeper: Arc::default(),
            recorder: Recorder::default(),
            closing: watch::Sender::new(false),
            changes: Arc::default(),
        };
        Core { shared: Arc::new(shared) }
    }

    /// Who serves it.
    pub fn host(&self) -> Host {
        self.shared.host
    }

    /// The leases.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.shared.keeper
    }

    /// What values did over time.
    pub fn recorder(&self) -> &Recorder {
        &self.shared.recorder
    }

    /// Tells when the engine begins to end.
    pub fn closing(&self) -> Closing {
        Closing(self.shared.closing.subscribe())
    }

    /// Starts the task that removes what expires.
    pub fn start_keeper(&self) {
        tokio::spawn(keeper::keep_house(self.clone()));
    }

    /// Calls the engine on a blocking thread. A call goes on to its end when its caller is cancelled. A panic of the engine ends
    /// the call only.
    pub async fn engine_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Failure> {
        self.engine_value(call).await?.map_err(convert::failure)
    }

    /// The same for a call that cannot fail.
    pub async fn engine_value<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        let changes = self.shared.changes.clone();
        let guard = changes.try_read_owned().map_err(|_| shutting_down())?;
        if *self.shared.closing.borrow() {
            return Err(shutting_down());
        }
        let shared = self.shared.clone();
        tokio::task::spawn_blocking(move || {
            let _guard = guard;
            call(&shared.engine)
        })
        .await
        .map_err(|e| {
            Failure::new(
                FailureKind::Failed,
                "bug",
                format!("the engine failed in an unforeseen way: {e}"),
                "please report this with the log; `ingraft detach` restores the target",
            )
        })
    }

    /// Ends: streams end, calls in progress come to their end, measurements that are not kept are removed. Later calls are refused.
    pub async fn close(&self) -> Vec<Result<Removed, Error>> {
        self.shared.closing.send_replace(true);
        let guard = self.shared.changes.clone().write_owned().await;
        let shared = self.shared.clone();
        let removed = tokio::task::spawn_blocking(move || {
            let _guard = guard;
            shared.engine.shutdown()
        });
        removed.await.unwrap_or_else(|e| {
            tracing::error!("the engine's end failed in an unforeseen way: {e}");
            Vec::new()
        })
    }
}

/// The failure of calls and streams while the engine ends.
pub fn shutting_down() -> Failure {
    Failure::new(
        FailureKind::Unavailable,
        "shutting_down",
        "the engine is shutting down",
        "measurements that are not kept are being removed; try again when it runs again",
    )
}
