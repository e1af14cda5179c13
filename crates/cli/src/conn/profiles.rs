//! Profiles that are read while they run.

use ingraft_model::EVENT_NAMES;
use ingraft_report::SavedProfile;
use ingraft_wire::{profile, v1};
use v1::profiles_client::ProfilesClient;

use super::{Client, PROFILE_PART_BYTES};
use crate::exit::Failure;

/// Event totals of a profile at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Totals {
    /// Unix time of the reading in nanoseconds.
    pub(crate) time_ns: u64,
    /// Longest time for which a thread was held, in nanoseconds.
    pub(crate) held_ns: u64,
    /// Number of functions whose events are counted.
    pub(crate) functions: u32,
    /// Reasons why the totals are not exact.
    pub(crate) inexact: Option<String>,
    pub(crate) threads: Vec<ThreadTotals>,
}

/// Event totals of a thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTotals {
    /// The thread; `None` for several threads together.
    pub(crate) tid: Option<i32>,
    /// Name of the thread; empty if it is not known.
    pub(crate) name: String,
    /// Whether the thread, or all of the threads, have ended.
    pub(crate) ended: bool,
    /// Numbers of events, in the order of [`EVENT_NAMES`].
    pub(crate) events: [u64; EVENT_NAMES.len()],
}

impl Client {
    /// Reads the counts of a profile, which goes on.
    pub(crate) async fn profile(&self, measurement: u64) -> Result<SavedProfile, Failure> {
        let mut client = ProfilesClient::new(self.service.clone()).max_decoding_message_size(PROFILE_PART_BYTES);
        let answer = client.query(v1::QueryProfileRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut parts = Vec::new();
        while let Some(answer) = stream.message().await.map_err(|s| self.failure(&s))? {
            parts.extend(answer.part);
        }
        profile::whole(parts).map_err(|e| self.garbled(&e))
    }

    /// Reads the event totals of a profile, which goes on.
    pub(crate) async fn event_totals(&self, measurement: u64) -> Result<Totals, Failure> {
        let mut client = ProfilesClient::new(self.service.clone());
        let answer = client.event_totals(v1::EventTotalsRequest { measurement }).await;
        let mut stream = answer.map_err(|s| self.failure(&s))?.into_inner();
        let mut totals = Totals::default();
        while let Some(part) = stream.message().await.map_err(|s| self.failure(&s))? {
            if let Some(v1::EventTotalsHead { time_ns, held_ns, functions, inexact }) = part.head {
                totals = Totals { time_ns, held_ns, functions, inexact, threads: Vec::new() };
            }
            totals.threads.extend(part.threads.into_iter().map(|of| ThreadTotals {
                tid: of.tid,
                name: of.name,
                ended: of.ended,
                events: [of.instructions, of.calls, of.branches, of.reads, of.writes],
            }));
        }
        Ok(totals)
    }
}
