//! Threads that count: which of them live, and the shards of those that have ended.

use ingraft_model::Tid;
use ingraft_process::{SharedArea, thread_exists};
use rustc_hash::FxHashSet;

use crate::readings::values::{LastSeen, Shards};

use super::driver::Session;
use super::roster::{DividedShards, HeldShard};
use super::shared::Shared;

/// Number of shards that keep their memory when their threads have ended, beside two for each living thread. New threads take the lowest shards
/// that are free, so others have memory only if many threads have begun and ended between two looks at them.
const SHARDS_KEPT: usize = 32;

impl Session {
    /// Whether some thread that counts has ended, or was not seen yet. The check takes one look-up for each thread that counts.
    pub(super) fn misses_threads(&self) -> bool {
        let shared = self.shared();
        let Some(area) = shared.area().filter(|_| shared.roster().frees_shards()) else { return false };
        let exists = |process: Option<_>, tid| thread_exists(process.unwrap_or(self.pid()), tid);
        shared.roster().misses(&Shards::claims(&**area), exists)
    }

    /// Whether there are timers of wall time or looks at threads, and timers of processor time. If so, the end of a thread must be noticed soon,
    /// because its running timers are read up to that end, and looks find it where it has ended.
    pub(super) fn timers(&self) -> (bool, bool) {
        let shared = self.shared();
        let timers = shared.timers();
        (timers.wall > 0 || shared.has_looks(), timers.cpu > 0)
    }

    /// Frees the shards of threads that have ended. Their values stay in [`Shared`].
    pub(super) fn retire_ended_threads(&self) {
        let mut shared = self.shared_mut();
        let shared = &mut *shared;
        // The next thread may have the same fs base already; then it simply continues with the shard.
        let Some(area) = shared.area().filter(|_| shared.roster().frees_shards()).cloned() else { return };
        if shared.roster().children().is_leaving() {
            return;
        }
        let claims = Shards::claims(&*area);
        if claims.is_empty() {
            return;
        }
        let Ok(live) = self.target.threads() else { return };
        // The clock is read before any shard, so that it is not ahead of the values that readers got for a living thread.
        let now = self.clocks.now();
        let own_namespace = self.target.status().is_ok_and(|s| s.own_id == self.pid().0);
        let own_id = |tid| self.target.thread_status(tid).ok().map(|s| s.own_id);
        let mut living = shared.roster_mut().living(&live, (!own_namespace).then_some(&own_id));
        if shared.roster().children().count() {
            living.extend(self.look_at_children(shared, &area, &claims, &living));
            for shard in area.unborn().unwrap_or_default() {
                shared.free_unborn(shard);
            }
        }
        let is_there = |tid| self.target.thread_cpu_ns(tid).is_some();
        let divided = shared.roster().divide(claims, &mut living, own_namespace, is_there);
        let running = self.free_shards(shared, &area, divided, now);
        // the present value is the last known one if such a thread ends
        for tid in running {
            self.clocks.cpu_ticks(&self.target, tid);
        }
        let known = shared.roster_mut().keep(&living);
        self.clocks.cpu_seen().retain(|tid, _| known.contains(tid));
    }

    /// Looks for threads of followed children among the owners of shards that are no threads of the target. Returns their identities.
    fn look_at_children(
        &self,
        shared: &mut Shared,
        area: &SharedArea,
        claims: &[(u32, u64)],
        living: &FxHashSet<u64>,
    ) -> Vec<u64> {
        let strangers = claims.iter().map(|(_, identity)| *identity).filter(|id| !living.contains(id));
        let found: Vec<_> = strangers.filter_map(|id| self.find_followed(Tid(id as i32), area.layout())).collect();
        let identities = found.iter().map(|(tid, _)| tid.0 as u64).collect();
        let was_born = |tid: Tid| {
            let (shard, _) = claims.iter().find(|(_, identity)| *identity == tid.0 as u64)?;
            area.was_born(*shard).ok()
        };
        let follows = area.follows_births().unwrap_or(false);
        shared.roster_mut().children_mut().note(found, follows.then_some(&was_born));
        identities
    }

    /// Frees the shards of threads that have ended. Returns the living threads in which a timer of processor time runs.
    fn free_shards(&self, shared: &mut Shared, area: &SharedArea, divided: DividedShards, now: u64) -> Vec<Tid> {
        let seen = self.clocks.cpu_seen();
        area.keep_memory_of(SHARDS_KEPT + 2 * divided.held.len());
        for held @ HeldShard { shard, tid, .. } in divided.ended {
            // the kernel still has the processor time of a child whose parent has not fetched its status
            let of_child = |tid: Tid| {
                let ticks = self.clocks.ticks_of(self.target.child_cpu_ns(tid)?);
                shared.roster().children().process_of(tid).map(|_| ticks)
            };
            let cpu = || tid.and_then(|tid| of_child(tid).or_else(|| seen.get(&tid).copied())).unwrap_or(0);
            let last = LastSeen { wall: now, cpu: area.cpu_last(shard).unwrap_or(0).max(cpu()) };
            shared.end_thread(held, last, self.clocks.wall().ok());
        }
        let running = divided.held.into_iter().filter(|held| shared.runs_cpu_timer(held.shard));
        running.filter_map(|held| held.tid).collect()
    }
}
