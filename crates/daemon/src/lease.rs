//! Leases of measurements that are not kept: a plain table without clock, lock and task.
//!
//! A measurement is leased when it is inserted. It expires when no stream was opened for [`LEASE`], when its client ended the last stream
//! and opened none for [`GRACE`], or when its target ended and no client read it for [`LEASE`]. A read renews the lease.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ingraft_engine::MeasurementId;

/// Time that a measurement waits for its first stream.
pub const LEASE: Duration = Duration::from_secs(30);
/// Time that a measurement waits for the next stream after its client ended the last one.
pub const GRACE: Duration = Duration::from_secs(1);

/// The cause of the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// The client has ended the stream, or its connection has ended.
    Client,
    /// The target has ended.
    Target,
}

#[derive(Debug)]
struct Lease {
    streams: u32,
    until: Instant,
}

/// The leases of all measurements that are not kept.
#[derive(Debug, Default)]
pub struct Leases {
    leased: HashMap<MeasurementId, Lease>,
    /// Number of open streams of each kept measurement. These streams hold the lease again if the measurement is no longer kept.
    kept: HashMap<MeasurementId, u32>,
}

impl Leases {
    /// Leases a measurement that was inserted, or records that it is kept.
    pub fn inserted(&mut self, id: MeasurementId, keep: bool, now: Instant) {
        if keep {
            self.kept.insert(id, 0);
        } else {
            self.leased.insert(id, Lease { streams: 0, until: now + LEASE });
        }
    }

    /// Counts a newly opened stream.
    pub fn opened(&mut self, id: MeasurementId) {
        match self.leased.get_mut(&id) {
            Some(lease) => lease.streams += 1,
            None => *self.kept.entry(id).or_insert(0) += 1,
        }
    }

    /// Counts the end of a stream. The time until a leased measurement expires begins anew.
    pub fn closed(&mut self, id: MeasurementId, by: EndedBy, now: Instant) {
        if let Some(lease) = self.leased.get_mut(&id) {
            lease.streams = lease.streams.saturating_sub(1);
            lease.until = now
                + match by {
                    EndedBy::Client => GRACE,
                    EndedBy::Target => LEASE,
                };
        } else if let Some(streams) = self.kept.get_mut(&id) {
            *streams = streams.saturating_sub(1);
        }
    }

    /// Renews the lease of a measurement that a client has read.
    pub fn read(&mut self, id: MeasurementId, now: Instant) {
        if let Some(lease) = self.leased.get_mut(&id) {
            lease.until = lease.until.max(now + LEASE);
        }
    }

    /// Records whether a measurement is kept from now on.
    pub fn keep(&mut self, id: MeasurementId, keep: bool, now: Instant) {
        let streams = self.leased.remove(&id).map(|l| l.streams).or_else(|| self.kept.remove(&id)).unwrap_or(0);
        if keep {
            self.kept.insert(id, streams);
        } else {
            self.leased.insert(id, Lease { streams, until: now + LEASE });
        }
    }

    /// Deletes a removed measurement from the table, whatever the cause of its removal.
    pub fn removed(&mut self, id: MeasurementId) {
        self.leased.remove(&id);
        self.kept.remove(&id);
    }

    /// Deletes the expired measurements from the table, and returns them.
    pub fn expired(&mut self, now: Instant) -> Vec<MeasurementId> {
        let mut ids: Vec<_> =
            self.leased.extract_if(|_, lease| lease.streams == 0 && lease.until <= now).map(|(id, _)| id).collect();
        ids.sort();
        ids
    }

    /// Returns the time at which the next measurement expires without further activity; `None` if none can expire.
    pub fn next(&self) -> Option<Instant> {
        self.leased.values().filter(|lease| lease.streams == 0).map(|lease| lease.until).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MeasurementId = MeasurementId(1);
    const S: Duration = Duration::from_secs(1);

    fn leased(now: Instant) -> Leases {
        let mut leases = Leases::default();
        leases.inserted(A, false, now);
        leases
    }

    #[test]
    fn without_a_stream_it_expires() {
        let t = Instant::now();
        let mut l = leased(t);
        assert_eq!(l.next(), Some(t + LEASE));
        assert!(l.expired(t + LEASE - S).is_empty());
        assert_eq!(l.expired(t + LEASE), [A]);
        assert!(l.expired(t + LEASE).is_empty(), "only once");
        assert_eq!(l.next(), None);
    }

    #[test]
    fn streams_hold_it_and_the_last_one_lets_go() {
        let t = Instant::now();
        let mut l = leased(t);
        l.opened(A);
        l.opened(A);
        l.closed(A, EndedBy::Client, t);
        assert_eq!(l.next(), None);
        assert!(l.expired(t + 1000 * LEASE).is_empty());
        l.closed(A, EndedBy::Client, t + 100 * S);
        assert_eq!(l.next(), Some(t + 100 * S + GRACE));
        l.opened(A);
        assert!(l.expired(t + 200 * S).is_empty(), "opened again in time");
    }

    #[test]
    fn the_end_of_the_target_leaves_time_to_read() {
        let t = Instant::now();
        let mut l = leased(t);
        l.opened(A);
        l.closed(A, EndedBy::Target, t);
        assert!(l.expired(t + GRACE + S).is_empty());
        l.read(A, t + 20 * S);
        assert!(l.expired(t + LEASE).is_empty());
        assert_eq!(l.expired(t + 20 * S + LEASE), [A]);
    }

    #[test]
    fn kept_ones_stay_until_they_are_no_longer_kept() {
        let t = Instant::now();
        let mut l = leased(t);
        l.opened(A);
        l.keep(A, true, t);
        l.closed(A, EndedBy::Client, t);
        assert!(l.expired(t + 1000 * LEASE).is_empty());
        l.opened(A);
        l.keep(A, false, t);
        assert!(l.expired(t + 1000 * LEASE).is_empty(), "its stream is still open");
        l.closed(A, EndedBy::Client, t);
        assert_eq!(l.expired(t + GRACE), [A]);
    }

    #[test]
    fn a_removed_one_is_forgotten() {
        let t = Instant::now();
        let mut l = leased(t);
        l.removed(A);
        l.closed(A, EndedBy::Client, t);
        assert_eq!(l.next(), None);
    }
}
