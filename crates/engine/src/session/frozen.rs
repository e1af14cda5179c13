//! Values of pairs whose code was taken out while measurements still read them.

use ingraft_model::Tid;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::TakenOut;
use crate::pairs::PairKey;
use crate::readings::values::Raw;

use super::view::View;

/// The values of a pair that was taken out.
#[derive(Debug)]
pub(super) struct Frozen {
    /// Values by thread, including ended threads.
    pub rows: Vec<(Option<Tid>, Raw)>,
    /// Time and reason of the removal.
    pub why: TakenOut,
}

/// The values of all pairs that were taken out, by the first counter of their values.
#[derive(Debug, Default)]
pub(super) struct FrozenPairs(FxHashMap<u32, Frozen>);

impl FrozenPairs {
    /// Whether no pair was taken out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values of a pair; `None` if it was not taken out.
    pub fn get(&self, first: u32) -> Option<&Frozen> {
        self.0.get(&first)
    }

    /// Whether a pair was taken out.
    pub fn contains(&self, first: u32) -> bool {
        self.0.contains_key(&first)
    }

    /// Notes the values of a pair that was taken out.
    pub fn insert(&mut self, first: u32, frozen: Frozen) {
        self.0.insert(first, frozen);
    }

    /// Forgets a pair whose values nobody reads any more.
    pub fn remove(&mut self, first: u32) {
        self.0.remove(&first);
    }

    /// The keys of those pairs that were taken out.
    pub fn keys_among<'v>(&self, views: impl Iterator<Item = &'v View>) -> FxHashSet<PairKey> {
        views.filter(|view| self.contains(view.value.first)).map(|view| view.key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_that_were_taken_out_are_known_by_their_first_counter() {
        let mut frozen = FrozenPairs::default();
        assert!(frozen.is_empty());
        for first in [3, 5] {
            frozen.insert(first, Frozen { rows: vec![(None, Raw::default())], why: TakenOut::free(7) });
        }
        let views = [("a", 3), ("b", 4), ("c", 5)].map(|(metric, first)| View::of_counter(metric, first));
        let keys = [&views[0], &views[2]].map(|view| view.key.clone());
        assert_eq!(frozen.keys_among(views.iter()), FxHashSet::from_iter(keys));
        assert!(frozen.get(3).is_some_and(|pair| pair.why.time_ns == 7 && pair.rows.len() == 1));
        frozen.remove(3);
        assert!(frozen.get(3).is_none() && !frozen.contains(3) && frozen.contains(5) && !frozen.is_empty());
    }
}
