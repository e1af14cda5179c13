//! The calls that an exception, a longjmp or the end of their thread had left when code was taken out.
//!
//! A call that is in progress then leaves an open record, which nothing closes any more. The code of other pairs finds this record as soon as
//! the call has returned, and counts the call as left. So the numbers of left calls are read in the stop of the removal.

use ingraft_model::{Avma, Tid};
use ingraft_process::{HeldThreads, Visitor};
use rustc_hash::FxHashMap;

use crate::pairs::{Pair, PairKey};
use crate::readings::values::{Columns, Rows, Shards};

use super::control::Control;
use super::driver::Session;

/// The counters of left calls of pairs, and their values in the stop in which the code of the pairs is taken out.
pub(super) struct LeftCalls<'s> {
    session: &'s Session,
    counters: Vec<u32>,
    in_stop: Option<Rows>,
}

impl<'s> LeftCalls<'s> {
    /// The counters of these pairs. Their values are read when this visits the stop.
    pub fn of<'k>(session: &'s Session, control: &Control, keys: impl Iterator<Item = &'k PairKey>) -> Self {
        let counters = keys.filter_map(|key| control.pairs.get(key)).flat_map(Pair::left_calls).collect();
        LeftCalls { session, counters, in_stop: None }
    }

    /// Number of calls of a pair that each thread has counted as left since the stop; nothing if there was no stop.
    pub fn since<S: Shards>(&self, pair: &Pair, now: &Columns<'_, S>) -> FxHashMap<Option<Tid>, u64> {
        let Some(then) = &self.in_stop else { return FxHashMap::default() };
        let own: Vec<u32> = pair.left_calls().collect();
        let is_own = |index: usize| self.counters.get(index).is_some_and(|counter| own.contains(counter));
        let mut since = by_thread(&now.rows(&own), |_| true);
        for (tid, earlier) in by_thread(then, is_own) {
            since.entry(tid).and_modify(|now| *now = now.saturating_sub(earlier));
        }
        since
    }
}

impl Visitor for LeftCalls<'_> {
    fn knows(&self, _pc: Avma) -> bool {
        true
    }

    fn visit(&mut self, _held: &mut HeldThreads<'_>) {
        // Pairs that only count have no such counters, and the stop need not last longer for them.
        if !self.counters.is_empty() {
            self.in_stop = self.session.shared().columns().map(|columns| columns.rows(&self.counters));
        }
    }
}

/// Sums by thread of the counters that are meant.
fn by_thread(rows: &Rows, meant: impl Fn(usize) -> bool) -> FxHashMap<Option<Tid>, u64> {
    let mut sums: FxHashMap<Option<Tid>, u64> = FxHashMap::default();
    for (tid, row) in &rows.held {
        let own = row.iter().filter(|(index, _)| meant(*index)).map(|(_, value)| value.cast_unsigned());
        let sum = sums.entry(*tid).or_default();
        *sum = own.fold(*sum, u64::wrapping_add);
    }
    sums
}
