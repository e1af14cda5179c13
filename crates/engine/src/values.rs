//! Values: the sum of what every thread has in its shard, of what ended threads left, and of the counters that all share.
//! Read while the target runs; each slot has one writer, so a read is never torn and never too high.

use std::collections::HashMap;

use ingraft_model::Tid;
use ingraft_process::SharedArea;

/// The shards of a data area.
pub trait Shards {
    /// The shards that threads hold: index and identity of the thread.
    fn claims(&self) -> Vec<(u32, u64)>;
    /// One counter of one shard; 0 outside of the area.
    fn load(&self, shard: u32, counter: u32) -> i64;
    /// Frees the shard of a thread that has ended; its first `counters` values.
    fn free(&self, shard: u32, counters: u32) -> Vec<i64>;
    /// Sets a counter to 0 in every shard. Nothing may count into it.
    fn clear(&self, counter: u32);
}

impl Shards for SharedArea {
    // A target that is gone through whose memory the area was read counts no more: its shards read as 0.
    fn claims(&self) -> Vec<(u32, u64)> {
        SharedArea::claims(self)
            .map_or_else(|_| Vec::new(), |claims| claims.iter().map(|c| (c.shard, c.owner)).collect())
    }

    fn load(&self, shard: u32, counter: u32) -> i64 {
        self.counter(shard, counter).map_or(0, u64::cast_signed)
    }

    fn free(&self, shard: u32, counters: u32) -> Vec<i64> {
        self.free_shard(shard, counters).map_or_else(|_| Vec::new(), |v| v.into_iter().map(u64::cast_signed).collect())
    }

    fn clear(&self, counter: u32) {
        if let Err(error) = self.zero_counter(counter) {
            tracing::debug!(%error, "a counter was not cleared");
        }
    }
}

/// Most ended threads that are kept apart; what ends beyond that is added to the thread that could not be told.
const ENDED_MAX: usize = 100_000;

/// What ended threads left: per thread, the counters that are not 0.
#[derive(Debug, Default)]
pub struct EndedThreads {
    threads: HashMap<Option<Tid>, HashMap<u32, i64>>,
}

impl EndedThreads {
    /// Takes over what a thread that has ended left in its shard, and frees the shard. Only when the thread is certainly gone.
    pub fn bury(&mut self, shards: &dyn Shards, shard: u32, tid: Option<Tid>, counters: u32) {
        let tid = if self.threads.len() < ENDED_MAX || self.threads.contains_key(&tid) { tid } else { None };
        let record = self.threads.entry(tid).or_default();
        for (counter, value) in (0..).zip(shards.free(shard, counters)).filter(|&(_, value)| value != 0) {
            let sum = record.entry(counter).or_default();
            *sum = sum.wrapping_add(value);
        }
    }

    /// Sets a counter back to 0 everywhere, before it is used for something else. Nothing may count it any more.
    pub fn clear(&mut self, shards: &dyn Shards, counter: u32) {
        for record in self.threads.values_mut() {
            record.remove(&counter);
        }
        shards.clear(counter);
    }
}

/// All threads that counted, to read many counters from.
pub struct Columns<'a> {
    shards: &'a dyn Shards,
    ended: &'a EndedThreads,
    held: Vec<(u32, Option<Tid>)>,
}

impl<'a> Columns<'a> {
    /// Looks up who holds which shard; `tid` turns an identity into a thread id.
    pub fn new(shards: &'a dyn Shards, ended: &'a EndedThreads, tid: &dyn Fn(u64) -> Option<Tid>) -> Self {
        let mut held = vec![(0, None)];
        held.extend(shards.claims().into_iter().map(|(shard, identity)| (shard, tid(identity))));
        Columns { shards, ended, held }
    }

    /// A counter's value in every thread that has one other than 0, sorted by thread, each thread once.
    pub fn threads(&self, counter: u32) -> Vec<(Option<Tid>, i64)> {
        let live = self.held.iter().map(|&(shard, tid)| (tid, self.shards.load(shard, counter)));
        let ended = self.ended.threads.iter().map(|(&tid, record)| (tid, record.get(&counter).copied().unwrap_or(0)));
        let mut all: Vec<_> = live.chain(ended).filter(|&(_, value)| value != 0).collect();
        all.sort_by_key(|&(tid, _)| (tid.is_none(), tid));
        all.dedup_by(|next, first| {
            let same = next.0 == first.0;
            if same {
                first.1 = first.1.wrapping_add(next.1);
            }
            same
        });
        all
    }

    /// A counter's sum over all threads.
    pub fn sum(&self, counter: u32) -> i64 {
        let live = self.held.iter().map(|&(shard, _)| self.shards.load(shard, counter));
        let ended = self.ended.threads.values().filter_map(|record| record.get(&counter).copied());
        live.chain(ended).fold(0, i64::wrapping_add)
    }
}

/// Hands out counter indices, lowest first, so that few pages of each shard are touched.
#[derive(Debug, Default)]
pub struct CounterAllocator {
    free: std::collections::BTreeSet<u32>,
    next: u32,
}

impl CounterAllocator {
    /// Begins behind the counters that a taken-over target already uses.
    pub fn starting_at(next: u32) -> Self {
        CounterAllocator { free: Default::default(), next }
    }

    /// A free counter below `limit`.
    pub fn take(&mut self, limit: u32) -> Option<u32> {
        if let Some(index) = self.free.pop_first() {
            return Some(index);
        }
        (self.next < limit).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    /// Gives a counter back that was cleared.
    pub fn give_back(&mut self, index: u32) {
        self.free.insert(index);
    }

    /// One more than the highest counter ever used.
    pub fn used(&self) -> u32 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Default)]
    struct Fake {
        claims: RefCell<Vec<(u32, u64)>>,
        values: RefCell<HashMap<(u32, u32), i64>>,
    }

    impl Shards for Fake {
        fn claims(&self) -> Vec<(u32, u64)> {
            self.claims.borrow().clone()
        }
        fn load(&self, shard: u32, counter: u32) -> i64 {
            self.values.borrow().get(&(shard, counter)).copied().unwrap_or(0)
        }
        fn free(&self, shard: u32, counters: u32) -> Vec<i64> {
            self.claims.borrow_mut().retain(|c| c.0 != shard);
            (0..counters).map(|c| self.values.borrow_mut().remove(&(shard, c)).unwrap_or(0)).collect()
        }
        fn clear(&self, counter: u32) {
            self.values.borrow_mut().retain(|k, _| k.1 != counter);
        }
    }

    #[test]
    fn values_survive_their_threads() {
        let shards = Fake::default();
        let mut ended = EndedThreads::default();
        let tid = |id: u64| Some(Tid(id as i32));
        for (shard, id, value) in [(2, 70, 5), (3, 71, 7), (4, 70, 1)] {
            shards.claims.borrow_mut().push((shard, id));
            shards.values.borrow_mut().insert((shard, 1), value);
        }
        shards.values.borrow_mut().insert((0, 1), 2);
        let expected = [(Some(Tid(70)), 6), (Some(Tid(71)), 7), (None, 2)];
        assert_eq!(Columns::new(&shards, &ended, &tid).threads(1), expected);
        ended.bury(&shards, 2, Some(Tid(70)), 4);
        ended.bury(&shards, 4, Some(Tid(70)), 4);
        let columns = Columns::new(&shards, &ended, &tid);
        assert_eq!(columns.threads(1), expected);
        assert_eq!(columns.sum(1), 15);
        assert_eq!(shards.claims(), [(3, 71)]);
        ended.clear(&shards, 1);
        assert_eq!(Columns::new(&shards, &ended, &tid).sum(1), 0);
    }

    #[test]
    fn counters_are_used_again() {
        let mut counters = CounterAllocator::default();
        assert_eq!((counters.take(2), counters.take(2), counters.take(2)), (Some(0), Some(1), None));
        counters.give_back(0);
        assert_eq!(counters.take(2), Some(0));
        assert_eq!(counters.used(), 2);
    }
}
