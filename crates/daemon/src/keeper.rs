//! Removal of measurements whose lease has expired. It adds a clock and a task to the table of [`crate::lease`].

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ingraft_engine::{Caller, MeasurementId};
use tokio::sync::Notify;

use crate::core::Core;
use crate::lease::{EndedBy, Leases};

/// The leases of a running engine.
#[derive(Debug, Default)]
pub struct Keeper {
    leases: Mutex<Leases>,
    changed: Notify,
}

impl Keeper {
    fn table(&self) -> MutexGuard<'_, Leases> {
        // Each change of the table is one call, so a panic between two calls leaves the table consistent.
        self.leases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leases a measurement that was inserted, or records that it is kept.
    pub fn inserted(&self, id: MeasurementId, keep: bool) {
        self.table().inserted(id, keep, Instant::now());
        self.changed.notify_one();
    }

    /// Counts an open stream of a measurement until the guard is dropped.
    pub fn open(self: &std::sync::Arc<Self>, id: MeasurementId) -> OpenStream {
        self.table().opened(id);
        OpenStream { keeper: self.clone(), id, by: EndedBy::Client }
    }

    /// Renews the lease of a measurement that a client has read.
    pub fn read(&self, id: MeasurementId) {
        self.table().read(id, Instant::now());
    }

    /// Records whether a measurement is kept from now on.
    pub fn keep(&self, id: MeasurementId, keep: bool) {
        self.table().keep(id, keep, Instant::now());
        self.changed.notify_one();
    }

    /// Deletes a removed measurement from the table.
    pub fn removed(&self, id: MeasurementId) {
        self.table().removed(id);
    }
}

/// An open stream of a measurement.
#[derive(Debug)]
pub struct OpenStream {
    keeper: std::sync::Arc<Keeper>,
    id: MeasurementId,
    by: EndedBy,
}

impl OpenStream {
    /// Records that the stream ends because the target has ended, and not because the client is gone.
    pub fn target_ended(&mut self) {
        self.by = EndedBy::Target;
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.keeper.table().closed(self.id, self.by, Instant::now());
        self.keeper.changed.notify_one();
    }
}

/// Removes measurements that expire, until the engine closes.
pub async fn keep_house(core: Core) {
    let mut closing = core.closing();
    loop {
        let next = core.keeper().table().next();
        let due = async {
            match next {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = core.keeper().changed.notified() => {}
            () = closing.wait() => return,
        }
        let expired = core.keeper().table().expired(Instant::now());
        for id in expired {
            remove(&core, id).await;
        }
    }
}

/// Removes a measurement whose lease has expired. An error is only logged.
pub async fn remove(core: &Core, id: MeasurementId) {
    core.keeper().removed(id);
    match core.engine_call(move |engine| engine.remove(id, Caller::Engine)).await {
        Ok(removed) => {
            core.audit().ended(id, "its client went away", (&removed).into());
            tracing::debug!(measurement = id.0, pid = removed.pid.0, "removed: its client went away");
        }
        Err(failure) => tracing::warn!(measurement = id.0, reason = failure.reason, "not removed: {failure}"),
    }
}
