//! Threads that count: which of them live, and the shards of those that have ended.

use ingraft_model::{Clock, ThreadIdentity, Tid};
use ingraft_process::{SharedArea, thread_exists};
use rustc_hash::FxHashSet;

use crate::readings::values::{ENDED_MAX, LastSeen, Shards};

use super::driver::Session;
use super::shared::Shared;

impl Session {
    /// Whether some thread that counts has ended, or was not seen yet. The check takes one look-up for each thread that counts.
    pub(super) fn misses_threads(&self) -> bool {
        let shared = self.shared();
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (&shared.area, shared.identity) else { return false };
        let lives = |tid: &Tid| thread_exists(shared.followed.get(tid).copied().unwrap_or(self.pid()), *tid);
        let child = |id: u64| Some(Tid(id as i32)).filter(|tid| shared.followed.contains_key(tid));
        let known = |id: u64| shared.tids.get(&id).copied().or_else(|| child(id));
        Shards::claims(&**area).iter().any(|(_, identity)| !known(*identity).is_some_and(|tid| lives(&tid)))
    }

    /// Whether there are timers of wall time, and of processor time. If so, the end of a thread must be noticed soon, because its running
    /// timers are read up to that end.
    pub(super) fn timers(&self) -> (bool, bool) {
        let shared = self.shared();
        (shared.timers.wall > 0, shared.timers.cpu > 0)
    }

    /// Frees the shards of threads that have ended. Their values stay in [`Shared::ended`].
    pub(super) fn retire_ended_threads(&self) {
        let mut shared = self.shared_mut();
        let shared = &mut *shared;
        // The next thread may have the same fs base already; then it simply continues with the shard.
        let (Some(area), Some(ThreadIdentity::FsOffset(_))) = (shared.area.clone(), shared.identity) else { return };
        if shared.leaving {
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
        let mut living = self.identities(shared, &live, own_namespace);
        if shared.family {
            living.extend(self.look_at_children(shared, &area, &claims, &living));
            for shard in area.unborn().unwrap_or_default() {
                Shards::free(&*area, shard, shared.used_counters);
            }
        }
        let running = self.free_shards(shared, &area, claims, &mut living, (now, own_namespace));
        // the present value is the last known one if such a thread ends
        for tid in running {
            self.clocks.cpu_ticks(&self.target, tid);
        }
        shared.tids.retain(|id, _| living.contains(id));
        let known: FxHashSet<Tid> = shared.tids.values().chain(shared.followed.keys()).copied().collect();
        self.clocks.cpu_seen().retain(|tid, _| known.contains(tid));
    }

    /// The identities of the target's living threads, as these see themselves. Notes the thread of each identity.
    fn identities(&self, shared: &mut Shared, live: &[Tid], own_namespace: bool) -> FxHashSet<u64> {
        let mut living = FxHashSet::default();
        for &tid in live {
            let id = if own_namespace {
                tid.0
            } else if let Some((id, _)) = shared.tids.iter().find(|(_, known)| **known == tid) {
                *id as i32
            } else {
                self.target.thread_status(tid).map_or(tid.0, |s| s.own_id)
            };
            let id = id as u64;
            shared.tids.insert(id, tid);
            shared.followed.remove(&tid);
            living.insert(id);
        }
        living
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
        if area.follows_births().unwrap_or(false) {
            let new = found.iter().filter(|(tid, pid)| tid.0 == pid.0 && !shared.followed.contains_key(tid));
            for (tid, pid) in new {
                let shard = claims.iter().find(|(_, identity)| *identity == tid.0 as u64).map(|(shard, _)| *shard);
                if shard.is_some_and(|shard| area.was_born(shard).is_ok_and(|born| !born)) {
                    shared.stateless.insert(*pid);
                }
            }
        }
        let identities = found.iter().map(|(tid, _)| tid.0 as u64).collect();
        if shared.followed.len() < ENDED_MAX {
            shared.followed.extend(found);
        }
        identities
    }

    /// Frees the shards of owners that do not live. Returns the living threads in which a timer of processor time runs. Adds an owner to
    /// `living` if the kernel still knows its thread.
    fn free_shards(
        &self,
        shared: &mut Shared,
        area: &SharedArea,
        claims: Vec<(u32, u64)>,
        living: &mut FxHashSet<u64>,
        (now, own_namespace): (u64, bool),
    ) -> Vec<Tid> {
        // Counters are allocated from 0 on.
        let used = shared.used_counters;
        let mut running = Vec::new();
        let seen = self.clocks.cpu_seen();
        for (shard, identity) in claims {
            let tid = shared.tids.get(&identity).copied().or(own_namespace.then_some(Tid(identity as i32)));
            // the kernel's list ends early if a thread ends while the list is being read
            let is_there = |tid: Tid| self.target.thread_cpu_ns(tid).is_some();
            if !living.contains(&identity) && tid.is_some_and(is_there) {
                living.insert(identity);
            }
            if !living.contains(&identity) {
                // the kernel still has the processor time of a child whose parent has not fetched its status
                let ended = |tid: Tid| {
                    let ticks = self.clocks.ticks_of(self.target.child_cpu_ns(tid)?);
                    Some(ticks).filter(|_| shared.followed.contains_key(&tid))
                };
                let cpu = || tid.and_then(|tid| ended(tid).or_else(|| seen.get(&tid).copied())).unwrap_or(0);
                let last = LastSeen { wall: now, cpu: area.cpu_last(shard).unwrap_or(0).max(cpu()) };
                shared.buffers.end_streams(area, (shard, identity), &shared.tids, self.clocks.wall().ok());
                shared.ended.bury(area, &shared.shapes, shard, tid, used, last);
            } else if shared.timers.cpu > 0 && shared.shapes.timers(Clock::Cpu).any(|n| area.load(shard, n + 1) < 0) {
                running.extend(tid);
            }
        }
        running
    }
}
