//! Looks at the contexts of threads. The engine reads the present context of each thread from the tree in its shard, about a thousand times a
//! second, without a stop, and adds up the time that each look stands for.
//!
//! ```text
//! rounds      |---------|-----|------------------------|-------|
//! time        [----](---------](--------------)(-------------)(---]     from the middle before a round to the middle after it
//! ```
//!
//! A look stands for the time from the middle between its round and the one before to the middle between its round and the next one. So a
//! round that comes late stands for much time, as does the one before, and the times of a thread add up to the time for which it was looked at.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_model::ContextShape;
use ingraft_model::contexts::CURRENT;
use rustc_hash::FxHashMap;
/// Looks at the contexts of all threads in one tree of contexts. They are kept beside the tree, as values of metrics that no code changes.
#[derive(Debug)]
pub struct ContextLooks {
    /// First counter of the tree.
    first: u32,
    shape: ContextShape,
    /// Number of the metric with the time that looks stand for, in nanoseconds. The next one has the number of looks.
    metric: u32,
    state: Mutex<LookState>,
}

#[derive(Debug, Default)]
struct LookState {
    /// The threads that the last round has seen, in the order of their shards.
    threads: Vec<LookedThread>,
    /// Times of the last round and of the one before.
    rounds: (Option<Duration>, Duration),
    /// Sum of the squares of the times that looks stand for, in square microseconds.
    squares: u64,
}

/// Looks at one thread.
#[derive(Debug)]
struct LookedThread {
    shard: u32,
    /// Identity of the thread.
    owner: u64,
    /// The context at the last look.
    context: u64,
    /// The last looks, all of which have seen this context.
    last: LookedValue,
    /// The looks before.
    values: FxHashMap<u64, LookedValue>,
}

/// Looks that have seen one context.
#[derive(Clone, Copy, Debug, Default)]
struct LookedValue {
    /// Time that the looks stand for, in nanoseconds.
    ns: i64,
    looks: i64,
}

/// Looks at one thread, by the counters that would hold them.
#[derive(Clone, Debug)]
pub struct LookedCounters {
    shape: ContextShape,
    metric: u32,
    values: FxHashMap<u64, LookedValue>,
}

impl ContextLooks {
    /// No looks yet. `first` is the first counter of the tree, and `metric` the number of the first of the two metrics.
    pub fn new(first: u32, shape: ContextShape, metric: u32) -> Self {
        ContextLooks { first, shape, metric, state: Mutex::default() }
    }

    /// First counter of the tree.
    pub fn first(&self) -> u32 {
        self.first
    }

    fn state(&self) -> MutexGuard<'_, LookState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at every thread. `now` is the time since the first round, `claims` are the shards of threads with their owners, `lives` tells whether
    /// an owner lives, and `load` reads a counter of a shard.
    pub fn round(
        &self,
        now: Duration,
        claims: &[(u32, u64)],
        lives: impl Fn(u64) -> bool,
        load: impl Fn(u32, u32) -> i64,
    ) {
        let mut state = self.state();
        let LookState { threads, rounds, squares } = &mut *state;
        let (last, before) = *rounds;
        let gap = last.map_or(Duration::ZERO, |last| now.saturating_sub(last));
        let half = nanoseconds(gap / 2);
        let context = |shard: u32| self.shape.context(load(shard, self.first + CURRENT).cast_unsigned());
        let mut known = claims.len() as u64;
        if !threads.iter().map(|thread| (thread.shard, thread.owner)).eq(claims.iter().copied()) {
            // Looks that do not belong to a claim are at a thread that has ended meanwhile.
            let all = std::mem::take(threads).into_iter().map(|thread| ((thread.shard, thread.owner), thread));
            let mut all: FxHashMap<(u32, u64), LookedThread> = all.collect();
            let mut of = |claim: &(u32, u64)| {
                let thread = all.remove(claim);
                known -= u64::from(thread.is_none());
                thread.unwrap_or_else(|| LookedThread::new(*claim, context(claim.0), half))
            };
            *threads = claims.iter().map(&mut of).collect();
        }
        let stood_for = (last.unwrap_or(now).saturating_sub(before) + gap) / 2;
        *squares = squares.saturating_add(square(stood_for).saturating_mul(known));
        // A thread that has ended holds its shard until its values are taken over.
        for thread in threads.iter_mut().filter(|thread| lives(thread.owner)) {
            thread.look(context(thread.shard), half);
        }
        *rounds = (Some(now), last.unwrap_or(now));
    }

    /// The looks at the thread that holds a shard; `None` without a look.
    pub fn of(&self, shard: u32) -> Option<LookedCounters> {
        let state = self.state();
        let at = state.place_of(shard)?;
        Some(self.counters(state.threads.get(at)?))
    }

    /// Takes the looks at the thread that held a shard and has ended; `None` without a look.
    pub fn take(&self, shard: u32) -> Option<LookedCounters> {
        let mut state = self.state();
        let at = state.place_of(shard)?;
        Some(self.counters(&state.threads.remove(at)))
    }

    fn counters(&self, thread: &LookedThread) -> LookedCounters {
        let mut values = thread.values.clone();
        // A thread that has ended before the first look at it was nowhere.
        if thread.last.looks > 0 {
            values.entry(thread.context).or_default().add(thread.last);
        }
        LookedCounters { shape: self.shape, metric: self.metric, values }
    }

    /// Sum of the squares of the times that looks stand for, in square microseconds.
    pub fn squares(&self) -> u64 {
        self.state().squares
    }
}

impl LookState {
    fn place_of(&self, shard: u32) -> Option<usize> {
        self.threads.binary_search_by_key(&shard, |thread| thread.shard).ok()
    }
}

impl LookedThread {
    /// A thread that has begun since the last round, and no look yet. `half` is half of the time since then, in nanoseconds.
    fn new((shard, owner): (u32, u64), context: u64, half: i64) -> Self {
        LookedThread { shard, owner, context, last: LookedValue { ns: -half, looks: 0 }, values: FxHashMap::default() }
    }

    /// Adds a look. `half` is half of the time since the last round, in nanoseconds, for which each of the two looks stands.
    fn look(&mut self, context: u64, half: i64) {
        self.last.ns = self.last.ns.saturating_add(half);
        if context != self.context {
            let before = std::mem::take(&mut self.last);
            self.values.entry(self.context).or_default().add(before);
            self.context = context;
        }
        self.last.add(LookedValue { ns: half, looks: 1 });
    }
}

impl LookedValue {
    fn add(&mut self, other: LookedValue) {
        self.ns = self.ns.saturating_add(other.ns);
        self.looks = self.looks.saturating_add(other.looks);
    }
}

impl LookedCounters {
    /// The value of a counter of the tree, by its index in the tree; `None` if it has no value of looks.
    pub fn value(&self, counter: u32) -> Option<i64> {
        let (context, metric) = self.shape.value_in(counter)?;
        let value = self.values.get(&context).copied().unwrap_or_default();
        match metric.checked_sub(self.metric)? {
            0 => Some(value.ns),
            1 => Some(value.looks),
            _ => None,
        }
    }
}

fn nanoseconds(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

/// The square of a time, in square microseconds.
fn square(time: Duration) -> u64 {
    u64::try_from(time.as_micros().saturating_mul(time.as_micros())).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use ingraft_model::contexts::OUTSIDE;

    use super::*;

    const FIRST: u32 = 100;

    fn looks() -> ContextLooks {
        ContextLooks::new(FIRST, ContextShape::of_bits(3, true, false).expect("a size"), 1)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A round in which each shard has a context.
    fn round(looks: &ContextLooks, at: u64, contexts: &[(u32, u64, i64)]) {
        let claims: Vec<_> = contexts.iter().map(|(shard, owner, _)| (*shard, *owner)).collect();
        // The odd ones have ended.
        let lives = |owner: u64| owner.is_multiple_of(2);
        looks.round(ms(at), &claims, lives, |shard, counter| {
            assert_eq!(counter, FIRST + CURRENT);
            contexts.iter().find(|(of, ..)| *of == shard).expect("a claim").2
        });
    }

    /// Milliseconds and looks in a context, 0 for the one outside of all.
    fn value(of: &LookedCounters, context: u32) -> (i64, i64) {
        let first = if context == 0 { OUTSIDE } else { of.shape.values() + context - 1 };
        let value = |metric| of.value(first + metric).expect("a value of looks");
        (value(1) / 1_000_000, value(2))
    }

    #[test]
    fn a_look_stands_for_the_time_around_it() {
        let looks = looks();
        let rounds = [(0, 1), (2, 5), (4, 1), (54, 5), (56, 5)];
        rounds.iter().for_each(|(at, context)| round(&looks, *at, &[(2, 70, *context)]));
        let of = looks.of(2).expect("looks");
        // The late round stands for half of the time in which there was none.
        assert_eq!([value(&of, 1), value(&of, 5)], [(1 + 1 + 25, 2), (1 + 1 + 25 + 1 + 1, 3)]);
        assert_eq!(value(&of, 0), (0, 0));
        assert!(looks.of(3).is_none());
        let squares: u64 = [1, 2, 26, 26].iter().map(|ms: &u64| (ms * 1000).pow(2)).sum();
        assert_eq!(looks.squares(), squares, "the last look does not yet stand for all of its time");
    }

    #[test]
    fn a_thread_may_have_begun_anywhere_between_two_rounds() {
        let looks = looks();
        round(&looks, 0, &[]);
        round(&looks, 2, &[(2, 70, 0)]);
        round(&looks, 4, &[(2, 70, 9), (3, 72, 9)]);
        assert_eq!(value(&looks.of(2).expect("looks"), 0), (2, 1));
        assert_eq!(value(&looks.of(3).expect("looks"), 9), (1, 1));
    }

    #[test]
    fn looks_at_an_ended_thread_are_taken_once() {
        let looks = looks();
        round(&looks, 0, &[(2, 70, 5), (3, 72, 5)]);
        round(&looks, 2, &[(2, 70, 5), (3, 72, 5)]);
        assert_eq!(value(&looks.take(2).expect("looks"), 5), (2, 2));
        assert!(looks.take(2).is_none());
        // Another thread has the shard of the second one.
        round(&looks, 4, &[(3, 74, 1)]);
        let of = looks.of(3).expect("looks");
        assert_eq!([value(&of, 1), value(&of, 5)], [(1, 1), (0, 0)]);
    }

    #[test]
    fn an_ended_thread_is_not_looked_at() {
        let looks = looks();
        round(&looks, 0, &[(2, 70, 5), (3, 71, 5)]);
        round(&looks, 2, &[(2, 70, 5), (3, 71, 5)]);
        assert_eq!(value(&looks.of(2).expect("looks"), 5), (2, 2));
        assert_eq!(value(&looks.of(3).expect("looks"), 5), (0, 0));
    }

    #[test]
    fn only_the_counters_of_looks_are_theirs() {
        let looks = looks();
        round(&looks, 0, &[(2, 70, 0)]);
        let of = looks.of(2).expect("looks");
        let theirs: Vec<_> = (0..of.shape.slots()).filter(|counter| of.value(*counter).is_some()).collect();
        assert_eq!(theirs.len(), 2 * (1 + of.shape.places() as usize));
        assert!([CURRENT, OUTSIDE, OUTSIDE + 3, of.shape.values()].iter().all(|counter| !theirs.contains(counter)));
    }
}
