//! The threads that count: how shards name them, which of them live, and which are those of fork children.

use ingraft_model::{Pid, ThreadIdentity, Tid};
use ingraft_process::ThreadBase;
use rustc_hash::{FxHashMap, FxHashSet};

use super::children::Followed;

/// The threads that count.
#[derive(Debug, Default)]
pub(super) struct Roster {
    /// The value by which a shard names its thread; `None` without a data area.
    identity: Option<ThreadIdentity>,
    /// Thread ids in the engine's pid namespace, by identity: the id that the thread itself sees, or its fs base.
    tids: FxHashMap<u64, Tid>,
    children: Followed,
}

/// A shard, and the thread that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldShard {
    pub(super) shard: u32,
    pub(super) identity: u64,
    /// Id of the thread; `None` if it is not known.
    pub(super) tid: Option<Tid>,
}

/// The shards of threads that have ended, and the others.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct DividedShards {
    pub(super) ended: Vec<HeldShard>,
    pub(super) held: Vec<HeldShard>,
}

impl Roster {
    /// The threads of a target whose threads are told apart so. `children_count` tells whether fork children count too.
    pub(super) fn new(identity: ThreadIdentity, children_count: bool) -> Self {
        Roster { identity: Some(identity), tids: FxHashMap::default(), children: Followed::new(children_count) }
    }

    /// Whether each thread has a shard that is freed when the thread has ended.
    pub(super) fn frees_shards(&self) -> bool {
        matches!(self.identity, Some(ThreadIdentity::FsOffset(_)))
    }

    /// The fork children.
    pub(super) fn children(&self) -> &Followed {
        &self.children
    }

    /// The fork children, to be changed.
    pub(super) fn children_mut(&mut self) -> &mut Followed {
        &mut self.children
    }

    /// The noted thread with an identity.
    pub(super) fn noted(&self, identity: u64) -> Option<Tid> {
        self.tids.get(&identity).copied()
    }

    /// Notes the thread that has an identity.
    pub(super) fn note(&mut self, identity: u64, tid: Tid) {
        self.tids.insert(identity, tid);
    }

    /// Notes the thread pointers of threads, if these are the threads' identities.
    pub(super) fn note_bases(&mut self, threads: &[ThreadBase]) {
        if self.identity == Some(ThreadIdentity::FsBase) {
            self.tids.extend(threads.iter().map(|t| (t.fs_base, t.tid)));
        }
    }

    /// The thread with an identity, for readers. Without a better answer, the identity is taken for the thread's id if it is one.
    pub(super) fn thread(&self, identity: u64) -> Option<Tid> {
        self.noted(identity).or(self.frees_shards().then_some(Tid(identity as i32)))
    }

    /// Whether some thread with a shard has ended, or was not seen yet. `exists` tells whether a process has a thread; the process is `None`
    /// for the target.
    pub(super) fn misses(&self, claims: &[(u32, u64)], exists: impl Fn(Option<Pid>, Tid) -> bool) -> bool {
        let child = |id: u64| Some(Tid(id as i32)).filter(|tid| self.children.process_of(*tid).is_some());
        let lives = |tid: Tid| exists(self.children.process_of(tid), tid);
        let is_known = |id: &u64| self.noted(*id).or_else(|| child(*id)).is_some_and(lives);
        !claims.iter().all(|(_, identity)| is_known(identity))
    }

    /// The identities of the target's living threads, as these see themselves. Notes the thread of each identity. `own_id` returns the id that a
    /// thread sees, if its ids differ from those of the engine; `None` for a thread that is gone.
    pub(super) fn living(&mut self, live: &[Tid], own_id: Option<&dyn Fn(Tid) -> Option<i32>>) -> FxHashSet<u64> {
        let mut living = FxHashSet::default();
        for &tid in live {
            let known = || self.tids.iter().find(|(_, known)| **known == tid).map(|(id, _)| *id as i32);
            let id = own_id.map_or(tid.0, |own_id| known().or_else(|| own_id(tid)).unwrap_or(tid.0)) as u64;
            self.tids.insert(id, tid);
            self.children.forget(tid);
            living.insert(id);
        }
        living
    }

    /// Divides the shards into those of ended threads and the others. `own_ids` says whether an identity is the id of its thread in the engine's
    /// namespace. The kernel's list of threads ends early if a thread ends while the list is being read, so `is_there` is asked again about
    /// each thread that is not among the living; then the thread joins them.
    pub(super) fn divide(
        &self,
        claims: Vec<(u32, u64)>,
        living: &mut FxHashSet<u64>,
        own_ids: bool,
        is_there: impl Fn(Tid) -> bool,
    ) -> DividedShards {
        let mut divided = DividedShards::default();
        for (shard, identity) in claims {
            let tid = self.noted(identity).or(own_ids.then_some(Tid(identity as i32)));
            if !living.contains(&identity) && tid.is_some_and(&is_there) {
                living.insert(identity);
            }
            let of_its_kind = if living.contains(&identity) { &mut divided.held } else { &mut divided.ended };
            of_its_kind.push(HeldShard { shard, identity, tid });
        }
        divided
    }

    /// Number of threads with a shard that the end of the target may have stopped inside of runs. If the target has ended `by_itself`, a thread
    /// has ended the process by a call; it is taken for the main thread, if that has a shard.
    pub(super) fn cut_off(&self, claims: &[(u32, u64)], main: Tid, by_itself: bool) -> u64 {
        let is_main = |id: &u64| self.noted(*id).map_or(*id as i32 == main.0, |tid| tid == main);
        let counts = by_itself && claims.iter().any(|(_, id)| is_main(id));
        (claims.len() as u64).saturating_sub(u64::from(counts))
    }

    /// Forgets the target's threads that have ended. Returns all threads that are still known.
    pub(super) fn keep(&mut self, living: &FxHashSet<u64>) -> FxHashSet<Tid> {
        self.tids.retain(|id, _| living.contains(id));
        self.tids.values().copied().chain(self.children.threads()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_ID: ThreadIdentity = ThreadIdentity::FsOffset(720);

    fn roster(tids: &[(u64, i32)]) -> Roster {
        let mut roster = Roster::new(BY_ID, true);
        tids.iter().for_each(|(id, tid)| roster.note(*id, Tid(*tid)));
        roster
    }

    fn set(ids: &[u64]) -> FxHashSet<u64> {
        ids.iter().copied().collect()
    }

    #[test]
    fn readers_take_an_unknown_identity_for_an_id() {
        for (identity, thread) in
            [(BY_ID, Some(Tid(9))), (ThreadIdentity::FsBase, None), (ThreadIdentity::Locked, None)]
        {
            let mut roster = Roster::new(identity, false);
            assert_eq!(roster.thread(9), thread, "{identity:?}");
            roster.note(9, Tid(5));
            assert_eq!(roster.thread(9), Some(Tid(5)));
        }
        assert_eq!(Roster::default().thread(9), None, "there is no data area");
    }

    #[test]
    fn thread_pointers_are_noted_only_if_shards_are_named_by_them() {
        let bases = [ThreadBase { tid: Tid(5), fs_base: 0x7000, gs_base: 0 }];
        for (identity, noted) in [(ThreadIdentity::FsBase, 1), (BY_ID, 0), (ThreadIdentity::Locked, 0)] {
            let mut roster = Roster::new(identity, false);
            roster.note_bases(&bases);
            assert_eq!(roster.tids.len(), noted, "{identity:?}");
        }
    }

    #[test]
    fn threads_of_a_target_are_noted_by_the_ids_that_they_see() {
        let mut roster = roster(&[]);
        assert_eq!(roster.living(&[Tid(10), Tid(11)], None), set(&[10, 11]));
        assert_eq!(roster.thread(11), Some(Tid(11)));
        // in another namespace, a thread is asked once
        let own_id = |tid: Tid| (tid != Tid(102)).then_some(tid.0 - 100);
        let mut inside = Roster::new(BY_ID, true);
        assert_eq!(inside.living(&[Tid(101)], Some(&own_id)), set(&[1]));
        let never = |_| -> Option<i32> { panic!("it is known") };
        assert_eq!(inside.living(&[Tid(101)], Some(&never)), set(&[1]));
        assert_eq!(inside.living(&[Tid(102)], Some(&own_id)), set(&[102]), "it has just ended");
    }

    #[test]
    fn a_thread_of_the_target_is_no_thread_of_a_child_any_more() {
        let mut roster = roster(&[]);
        roster.children_mut().note(vec![(Tid(10), Pid(10))], None);
        roster.living(&[Tid(10)], None);
        assert_eq!(roster.children().process_of(Tid(10)), None);
    }

    #[test]
    fn an_unknown_or_ended_thread_is_missed() {
        let mut roster = roster(&[(1, 101), (2, 102)]);
        roster.children_mut().note(vec![(Tid(7), Pid(6))], None);
        let exists = |process: Option<Pid>, tid: Tid| match process {
            None => tid == Tid(101),
            Some(process) => (process, tid) == (Pid(6), Tid(7)),
        };
        for (claims, misses) in [
            (vec![], false),
            (vec![(3, 1)], false),
            (vec![(3, 7)], false),
            (vec![(3, 1), (4, 2)], true),
            (vec![(3, 8)], true),
            (vec![(3, 101)], true),
        ] {
            assert_eq!(roster.misses(&claims, exists), misses, "{claims:?}");
        }
    }

    #[test]
    fn shards_of_ended_threads_are_told_from_the_others() {
        let roster = roster(&[(1, 101), (2, 102), (3, 103)]);
        let claim = |shard, identity, tid: Option<i32>| HeldShard { shard, identity, tid: tid.map(Tid) };
        // 1 lives, 2 has ended, 3 was missing in the kernel's list, 4 is not known
        let claims = vec![(10, 1), (11, 2), (12, 3), (13, 4)];
        let is_there = |tid: Tid| tid == Tid(103);
        let mut living = set(&[1]);
        let divided = roster.divide(claims.clone(), &mut living, false, is_there);
        assert_eq!(divided.held, [claim(10, 1, Some(101)), claim(12, 3, Some(103))]);
        assert_eq!(divided.ended, [claim(11, 2, Some(102)), claim(13, 4, None)]);
        assert_eq!(living, set(&[1, 3]));
        // in the engine's namespace, an identity is an id
        let is_there = |tid: Tid| tid == Tid(4);
        let divided = roster.divide(claims, &mut set(&[1, 2, 3]), true, is_there);
        assert_eq!(divided.held.last(), Some(&claim(13, 4, Some(4))));
        assert!(divided.ended.is_empty());
        assert_eq!(roster.divide(Vec::new(), &mut set(&[]), true, |_| true), DividedShards::default());
    }

    #[test]
    fn the_thread_that_ends_the_process_is_not_cut_off() {
        let roster = roster(&[(1, 101), (2, 102)]);
        for (claims, main, by_itself, cut_off) in [
            (&[][..], 101, true, 0),
            (&[(7, 1), (8, 2)], 101, true, 1),
            (&[(7, 1), (8, 2)], 101, false, 2),
            (&[(7, 2)], 101, true, 1),
            // an identity that was not noted is an id
            (&[(7, 2), (9, 103)], 103, true, 1),
        ] {
            assert_eq!(roster.cut_off(claims, Tid(main), by_itself), cut_off, "{claims:?} {main} {by_itself}");
        }
    }

    #[test]
    fn ended_threads_are_forgotten_but_for_those_of_children() {
        let mut roster = roster(&[(1, 101), (2, 102)]);
        roster.children_mut().note(vec![(Tid(7), Pid(6))], None);
        let known = roster.keep(&set(&[2, 9]));
        assert_eq!(known, FxHashSet::from_iter([Tid(102), Tid(7)]));
        assert_eq!(roster.tids.len(), 1);
    }
}
