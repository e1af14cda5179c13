//! The fork children that count like threads of the target.

use ingraft_model::{Pid, Tid};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::readings::values::ENDED_MAX;

/// The fork children of a target, and their threads.
#[derive(Debug, Default)]
pub struct Followed {
    /// Whether fork children count like threads of the target.
    counts: bool,
    /// Process of each thread of children, including ended threads.
    threads: FxHashMap<Tid, Pid>,
    /// Children that began without the state of the thread that forked.
    stateless: FxHashSet<Pid>,
    /// Whether everything is being taken out of the target and its children, so that children are not looked at.
    leaving: bool,
}

impl Followed {
    /// No children yet; `counts` tells whether children count like threads of the target.
    pub fn new(counts: bool) -> Self {
        Followed { counts, ..Followed::default() }
    }

    /// Whether fork children count like threads of the target.
    pub fn count(&self) -> bool {
        self.counts
    }

    /// Whether everything is being taken out of the target and its children.
    pub fn is_leaving(&self) -> bool {
        self.leaving
    }

    /// Notes that everything is about to be taken out, if children count, or that this has failed or is done. Returns whether children leave
    /// with the target.
    pub fn set_leaving(&mut self, leaving: bool) -> bool {
        self.leaving = leaving && self.counts;
        self.leaving
    }

    /// The process of a thread; `None` if it is no known thread of a child.
    pub fn process_of(&self, tid: Tid) -> Option<Pid> {
        self.threads.get(&tid).copied()
    }

    /// All known threads of children, including ended ones.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    /// Number of children that began without the state of the thread that forked.
    pub fn stateless(&self) -> usize {
        self.stateless.len()
    }

    /// Forgets a thread, because one of the target has its id now.
    pub fn forget(&mut self, tid: Tid) {
        self.threads.remove(&tid);
    }

    /// Notes threads of children that were found, each with its process. `was_born` tells of the main thread of a new child whether it began
    /// with the state of the thread that forked; `None` while births are not followed.
    pub fn note(&mut self, found: Vec<(Tid, Pid)>, was_born: Option<&dyn Fn(Tid) -> Option<bool>>) {
        let is_new = |(tid, pid): &&(Tid, Pid)| tid.0 == pid.0 && !self.threads.contains_key(tid);
        let without = |(tid, _): &&(Tid, Pid)| was_born.and_then(|was_born| was_born(*tid)) == Some(false);
        let stateless: Vec<Pid> = found.iter().filter(is_new).filter(without).map(|(_, pid)| *pid).collect();
        self.stateless.extend(stateless);
        if self.threads.len() < ENDED_MAX {
            self.threads.extend(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_children_are_known_by_their_process() {
        let mut children = Followed::new(true);
        children.note(vec![(Tid(7), Pid(7)), (Tid(9), Pid(7))], None);
        assert_eq!(children.process_of(Tid(9)), Some(Pid(7)));
        assert_eq!(children.process_of(Tid(8)), None);
        children.note(vec![(Tid(9), Pid(8))], None);
        assert_eq!(children.process_of(Tid(9)), Some(Pid(8)), "another child has the id now");
        children.forget(Tid(9));
        assert_eq!(children.threads().collect::<Vec<_>>(), [Tid(7)]);
    }

    #[test]
    fn only_new_main_threads_tell_how_a_child_began() {
        let found = || vec![(Tid(7), Pid(7)), (Tid(8), Pid(7)), (Tid(9), Pid(9))];
        for (answer, stateless) in [(Some(false), 2), (Some(true), 0), (None, 0)] {
            let mut children = Followed::new(true);
            children.note(found(), Some(&move |_| answer));
            assert_eq!(children.stateless(), stateless, "{answer:?}");
            children.note(found(), Some(&|_| Some(false)));
            assert_eq!(children.stateless(), stateless, "they are known already");
        }
        let mut children = Followed::new(true);
        children.note(found(), None);
        assert_eq!(children.stateless(), 0, "births are not followed");
        children.note(vec![(Tid(7), Pid(7)), (Tid(10), Pid(10))], Some(&|tid| Some(tid == Tid(7))));
        assert_eq!(children.stateless(), 1);
    }

    #[test]
    fn a_target_without_children_does_not_leave_any() {
        for (counts, leaving) in [(false, false), (true, true)] {
            let mut children = Followed::new(counts);
            assert_eq!(children.set_leaving(true), leaving);
            assert_eq!((children.count(), children.is_leaving()), (counts, leaving));
            children.set_leaving(false);
            assert!(!children.is_leaving());
        }
    }

    #[test]
    fn the_number_of_known_threads_is_bounded() {
        let mut children = Followed::new(true);
        let threads = |from: i32, to: i32| (from..to).map(|tid| (Tid(tid), Pid(1))).collect::<Vec<_>>();
        children.note(threads(0, ENDED_MAX as i32), None);
        children.note(threads(ENDED_MAX as i32, ENDED_MAX as i32 + 1), None);
        assert_eq!(children.threads().count(), ENDED_MAX);
    }
}
