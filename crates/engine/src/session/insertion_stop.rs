//! The facts about an insertion that matter in its stop.

use std::time::Duration;

use crate::weaving::positions::{Observer, ProgramCounters};

/// The stop of an insertion: what is known of the threads before it, and what it must note of them.
#[derive(Debug, Default)]
pub(super) struct InsertionStop {
    /// The observer of the stop.
    pub observer: Observer,
    /// Whether the functions that are woven have never run, so that no call of them can be in progress.
    pub unrun: bool,
    /// Time for which the change is tried again while a thread stands where code comes; `None` for the usual time.
    pub patience: Option<Duration>,
}

impl InsertionStop {
    /// The stop of other code that comes with this insertion: nobody observes it.
    pub(super) fn beside(&self) -> Self {
        InsertionStop { observer: Observer::default(), ..*self }
    }

    /// Where the threads were in the stop; empty if nobody has observed it.
    pub(super) fn into_seen(self) -> ProgramCounters {
        self.observer.seen.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Tid;
    use rustc_hash::FxHashSet;

    use crate::pairs::tests::function;

    use super::*;

    #[test]
    fn code_beside_an_insertion_is_as_new_and_unobserved() {
        for unrun in [false, true] {
            let functions = FxHashSet::from_iter([function(0, 1)]);
            let stop = InsertionStop { observer: Observer { functions, seen: None }, unrun, patience: None };
            let beside = stop.beside();
            assert_eq!((stop.unrun, beside.unrun), (unrun, unrun));
            assert_eq!((stop.observer.functions.len(), beside.observer.functions.len()), (1, 0));
        }
    }

    #[test]
    fn a_stop_that_nobody_observed_has_seen_no_threads() {
        assert!(InsertionStop::default().into_seen().threads.is_empty());
        let mut stop = InsertionStop::default();
        stop.observer.seen = Some(ProgramCounters { threads: vec![Tid(7)], ..ProgramCounters::default() });
        assert_eq!(stop.into_seen().threads, [Tid(7)]);
    }
}
