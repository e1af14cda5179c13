//! Looks at the holders of locks. The entry of a function that waits for a lock stores the lock's address in a variable of the thread, and the end
//! of the call stores 0. A look that finds an address there reads from the lock which thread holds it, and the present context of that thread.
//!
//! ```text
//! waiting thread       lock of the C library       thread that holds it
//! lock: 0x55…40   ->   owner: 4712            ->   context: flush <- write_back <- main
//! context: pthread_mutex_lock <- get <- serve
//! ```
//!
//! A look stands for half of the time since the round before, and half of the time until the next one. All is read while the threads run: a lock that
//! changes hands between two readings is told as that of the wrong holder.
//!
//! The thread that looks may take a processor from a thread that holds a lock. Others then begin to wait for it until the look is over, which no look
//! should see. So a wait is left out that has begun after the look was due.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_model::contexts::{CURRENT, FIRST, KEY, function_of};
use ingraft_model::{ContextShape, ContextTree};
use ingraft_report::LockHolder;
use rustc_hash::FxHashMap;

use super::code::LockKind;

/// Looks at the threads that wait for locks, and at those that hold the locks.
pub struct HolderLooks {
    /// First counter of the tree of contexts.
    tree: u32,
    shape: ContextShape,
    /// Counter with the address of the lock for which a thread waits.
    lock: u32,
    /// The functions that wait for locks, by their numbers in the keys of contexts.
    functions: FxHashMap<u32, LockKind>,
    /// Whether threads are told apart by the ids that locks have of their owners.
    has_ids: bool,
    state: Mutex<HolderState>,
}

#[derive(Default)]
struct HolderState {
    /// The contexts of threads that wait and of those that hold locks, without calls.
    contexts: ContextTree,
    /// Index of each context that was looked up, by its shard, the owner of the shard, and the context there; with its key.
    known: FxHashMap<(u32, u64, u64), (u64, usize)>,
    waits: FxHashMap<LockedWait, WaitValue>,
    /// The waits that the last round has seen.
    last: Vec<LockedWait>,
    /// Time of the last round.
    now: Option<Duration>,
}

/// A thread that waits for a lock, and its holder. Contexts are indexes in a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockedWait {
    /// Address of the lock.
    pub lock: u64,
    /// The context of the thread that waits.
    pub waiter: usize,
    /// The holder.
    pub holder: LockHolder,
}

/// Looks that have seen the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WaitValue {
    /// Time that the looks stand for, in nanoseconds.
    pub ns: u64,
    /// Number of looks.
    pub looks: u64,
}

impl LockKind {
    /// Offset in the lock of the id of the thread that holds it alone (glibc: `__owner` of `pthread_mutex_t`, `__cur_writer` of `pthread_rwlock_t`);
    /// `None` if the lock does not tell it.
    fn owner(self) -> Option<usize> {
        match self {
            LockKind::Mutex => Some(8),
            LockKind::ReadWrite => Some(24),
            LockKind::Other => None,
        }
    }
}

impl HolderLooks {
    /// No looks yet. `tree` is the first counter of the tree, `lock` the counter with the address of a lock, `functions` are those that wait, by
    /// their numbers, and `has_ids` tells whether the owners of shards are the ids that locks have of their owners.
    pub fn new(
        (tree, shape): (u32, ContextShape),
        lock: u32,
        functions: FxHashMap<u32, LockKind>,
        has_ids: bool,
    ) -> Self {
        HolderLooks { tree, shape, lock, functions, has_ids, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, HolderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counter with the address of the lock for which a thread waits.
    pub fn lock(&self) -> u32 {
        self.lock
    }

    /// Counter with the present context of a thread.
    pub fn current(&self) -> u32 {
        self.tree + CURRENT
    }

    /// Looks at every thread. `now` is the time since the first round, `claims` are the shards of threads with their owners, `load` reads a counter
    /// of a shard, `id_at` the id of a thread at an offset in the lock at an address, and `was_due` tells whether the present call of the thread that
    /// holds a shard had begun when the round was due.
    pub fn round(
        &self,
        now: Duration,
        claims: &[(u32, u64)],
        load: impl Fn(u32, u32) -> i64,
        id_at: impl Fn(u64, usize) -> Option<u32>,
        was_due: impl Fn(u32) -> bool,
    ) {
        let mut state = self.state();
        let state = &mut *state;
        let gap = now.saturating_sub(state.now.unwrap_or(now));
        let half = u64::try_from((gap / 2).as_nanos()).unwrap_or(u64::MAX);
        state.now = Some(now);
        for wait in std::mem::take(&mut state.last) {
            state.add(wait, WaitValue { ns: half, looks: 0 });
        }
        for (shard, owner) in claims {
            let lock = load(*shard, self.lock).cast_unsigned();
            if lock == 0 {
                continue;
            }
            let Some((waiter, function)) = self.context(state, (*shard, *owner), &load) else { continue };
            // The address is left over from a call that has ended without an exit.
            let Some(kind) = self.functions.get(&function).filter(|_| was_due(*shard)) else { continue };
            let id = kind.owner().filter(|_| self.has_ids).and_then(|at| id_at(lock, at));
            let id = u64::from(id.unwrap_or(0));
            // The thread has got it already, and is about to return.
            if id == *owner && self.has_ids {
                continue;
            }
            let holder = match claims.iter().find(|(_, owner)| *owner == id) {
                _ if id == 0 && self.has_ids && *kind == LockKind::Mutex => LockHolder::Nobody,
                _ if id == 0 => LockHolder::Untold,
                Some(claim) => {
                    let found = self.context(state, *claim, &load).map(|(context, _)| context);
                    // A thread that has just got the lock is where it has asked for it.
                    let has_got = load(claim.0, self.lock).cast_unsigned() == lock;
                    let above = |context: usize| state.contexts.contexts.get(context)?.parent;
                    let found = if has_got { found.and_then(above) } else { found };
                    found.map_or(LockHolder::Outside, LockHolder::Context)
                }
                None => LockHolder::Outside,
            };
            let wait = LockedWait { lock, waiter, holder };
            state.add(wait, WaitValue { ns: half, looks: 1 });
            state.last.push(wait);
        }
    }

    /// Index of the present context of the thread that holds a shard, and the number of its function; `None` outside of all contexts.
    fn context(
        &self,
        state: &mut HolderState,
        (shard, owner): (u32, u64),
        load: &impl Fn(u32, u32) -> i64,
    ) -> Option<(usize, u32)> {
        let of_tree = |n: u32| load(shard, self.tree + n);
        let context = self.shape.context(of_tree(CURRENT).cast_unsigned());
        let place = context.checked_sub(1)? as u32;
        let key = of_tree(FIRST + place + KEY).cast_unsigned();
        let known = state.known.get(&(shard, owner, context)).filter(|(of, _)| *of == key);
        let index = match known {
            Some((_, index)) => *index,
            None => {
                let index = state.contexts.found(self.shape, context, of_tree)?;
                state.known.insert((shard, owner, context), (key, index));
                index
            }
        };
        Some((index, function_of(key)))
    }

    /// The waits that were seen so far, those with the most time first, with contexts of `tree`, to which contexts are added that it lacks.
    pub fn waits(&self, tree: &mut ContextTree) -> Vec<(LockedWait, WaitValue)> {
        let state = self.state();
        let indexes = tree.merge(&state.contexts);
        let here = |index: usize| indexes.get(index).copied();
        let moved = state.waits.iter().filter_map(|(wait, value)| {
            let holder = wait.holder.moved(here)?;
            Some((LockedWait { waiter: here(wait.waiter)?, holder, ..*wait }, *value))
        });
        let mut waits: Vec<_> = moved.collect();
        waits.sort_unstable_by_key(|(wait, value)| (std::cmp::Reverse(value.ns), *wait));
        waits
    }
}

impl HolderState {
    fn add(&mut self, wait: LockedWait, more: WaitValue) {
        let value = self.waits.entry(wait).or_default();
        value.ns = value.ns.saturating_add(more.ns);
        value.looks = value.looks.saturating_add(more.looks);
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::contexts::{PARENT, PARENT_BIAS, PLACE, TAKEN, key};

    use super::*;

    const TREE: u32 = 100;
    const LOCK: u32 = 7;
    /// Numbers of the functions: one that locks a mutex, and others.
    const MUTEX: u32 = 1;
    const SERVE: u32 = 2;
    const FLUSH: u32 = 3;

    fn shape() -> ContextShape {
        ContextShape::of_bits(3, true, false).expect("a size")
    }

    fn looks(has_ids: bool) -> HolderLooks {
        let functions = [(MUTEX, LockKind::Mutex), (9, LockKind::ReadWrite)].into_iter().collect();
        HolderLooks::new((TREE, shape()), LOCK, functions, has_ids)
    }

    fn of(place: u64) -> u64 {
        1 + u64::from(PLACE) * place
    }

    /// Counters of a thread that is in a context and waits for a lock, or for none: `serve` is in place 1, a mutex is locked there in place 2, and
    /// `flush` is in place 5.
    fn shard(current: u64, lock: u64) -> FxHashMap<u32, i64> {
        let at = |place: u32, word: u32| TREE + FIRST + PLACE * place + word;
        let words = [
            (LOCK, lock),
            (TREE + CURRENT, current),
            (TREE + TAKEN, 3),
            (at(1, KEY), key(SERVE, 0x10)),
            (at(1, PARENT), PARENT_BIAS),
            (at(2, KEY), key(MUTEX, 0x20)),
            (at(2, PARENT), of(1) + PARENT_BIAS),
            (at(5, KEY), key(FLUSH, 0x30)),
            (at(5, PARENT), PARENT_BIAS),
        ];
        words.into_iter().map(|(counter, word)| (counter, word.cast_signed())).collect()
    }

    /// A round in which the threads 70, 71, … have these counters, and locks these owners.
    fn round(looks: &HolderLooks, ms: u64, shards: &[FxHashMap<u32, i64>], owners: &[(u64, u32)]) {
        let claims: Vec<(u32, u64)> = (2..).zip(70..).take(shards.len()).collect();
        let load = |shard: u32, counter: u32| shards[shard as usize - 2].get(&counter).copied().unwrap_or(0);
        let id_at = |lock: u64, offset: usize| {
            let at = lock + offset as u64;
            owners.iter().find(|(of, _)| *of == at).map(|(_, id)| *id)
        };
        // The calls of odd threads have begun after the round was due.
        let was_due = |shard: u32| shard.is_multiple_of(2);
        looks.round(Duration::from_millis(ms), &claims, load, id_at, was_due);
    }

    /// A wait: lock, function that waits and its caller, function that holds it (0 outside of all, 1000 if nobody does), milliseconds, looks.
    type ToldWait = (u64, [u32; 2], Option<u32>, u64, u64);

    fn told(looks: &HolderLooks) -> Vec<ToldWait> {
        let mut tree = ContextTree::default();
        let all = looks.waits(&mut tree);
        let function = |index: usize| tree.contexts[index].function;
        let row = |(wait, value): (LockedWait, WaitValue)| {
            let caller = tree.contexts[wait.waiter].parent.map_or(0, function);
            let holder = match wait.holder {
                LockHolder::Context(index) => Some(function(index)),
                LockHolder::Outside => Some(0),
                LockHolder::Nobody => Some(1000),
                LockHolder::Untold => None,
            };
            (wait.lock, [function(wait.waiter), caller], holder, value.ns / 1_000_000, value.looks)
        };
        all.into_iter().map(row).collect()
    }

    #[test]
    fn a_wait_is_told_with_the_context_of_the_holder() {
        let looks = looks(true);
        let threads = [shard(of(2), 0x40), shard(of(5), 0), shard(0, 0)];
        round(&looks, 0, &threads, &[(0x48, 71)]);
        round(&looks, 2, &threads, &[(0x48, 71)]);
        round(&looks, 6, &threads, &[(0x48, 72)]);
        round(&looks, 8, &threads, &[]);
        round(&looks, 9, &[shard(of(1), 0), shard(0, 0), shard(0, 0)], &[]);
        let waits = [MUTEX, SERVE];
        assert_eq!(
            told(&looks),
            [
                (0x40, waits, Some(FLUSH), 2 + 2, 2),
                (0x40, waits, Some(0), 2 + 1, 1),
                // 1.5 ms
                (0x40, waits, Some(1000), 1, 1),
            ]
        );
    }

    #[test]
    fn a_wait_that_the_look_has_caused_is_left_out() {
        let looks = looks(true);
        round(&looks, 0, &[shard(of(5), 0), shard(of(2), 0x40)], &[(0x48, 70)]);
        assert_eq!(told(&looks), []);
    }

    #[test]
    fn a_thread_that_has_just_got_a_lock_is_where_it_has_asked_for_it() {
        let looks = looks(true);
        round(&looks, 0, &[shard(of(2), 0x40), shard(of(2), 0x40)], &[(0x48, 71)]);
        assert_eq!(told(&looks), [(0x40, [MUTEX, SERVE], Some(SERVE), 0, 1)]);
    }

    #[test]
    fn a_thread_that_has_the_lock_does_not_wait() {
        let looks = looks(true);
        round(&looks, 0, &[shard(of(2), 0x40)], &[(0x48, 70)]);
        assert_eq!(told(&looks), []);
        // The address is left over: the thread is in no function that waits.
        round(&looks, 2, &[shard(of(1), 0x40), shard(0, 0x40)], &[(0x48, 71)]);
        assert_eq!(told(&looks), []);
    }

    #[test]
    fn without_ids_nobody_is_told() {
        let looks = looks(false);
        round(&looks, 0, &[shard(of(2), 0x40), shard(of(5), 0)], &[(0x48, 71)]);
        assert_eq!(told(&looks), [(0x40, [MUTEX, SERVE], None, 0, 1)]);
    }
}
