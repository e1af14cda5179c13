//! Outcome of a catch-up.

use std::collections::BTreeMap;

use ingraft_model::Tid;

/// Outcome for the calls that were in progress when code was inserted. All 0 if no state of any metric depends on them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CaughtUp {
    /// Number of calls whose flags, timers and other states are as if the code had been there when the calls began.
    pub calls: u64,
    /// Numbers of calls whose exits are unseen because a part of their state is missing, by the reason.
    pub missed: BTreeMap<Uncaught, u64>,
    /// Number of threads whose stacks could not be unwound to the end. Their calls beyond that are unseen.
    pub not_unwound: u32,
    /// The activation records that were opened: the thread of each, and the first counter of its activations.
    pub opened: Vec<(Tid, u32)>,
}

/// Reason why a call in progress stays as if it had not been seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Uncaught {
    /// The entry's code needs an argument of the call, which may be gone.
    #[error("their arguments are not known any more")]
    Arguments,
    /// The entry's code needs a value that the program's memory held when the call began.
    #[error("what memory held then is not known any more")]
    Memory,
    /// The entry's code needs the time at which the call began.
    #[error("when they began is not known")]
    Begin,
    /// The thread has no shard and can get none: it uses gs itself, has no id yet, or all shards are taken.
    #[error("their threads have no counters of their own")]
    NoShard,
    /// The call is on another stack than the one on which the thread began.
    #[error("they are on another stack than the calls around them")]
    OtherStack,
    /// The measurement already has open calls in that thread, and this call cannot be ordered among them.
    #[error("they are around calls that are measured already")]
    Mixed,
}

impl CaughtUp {
    pub(super) fn missed(&mut self, why: Uncaught, calls: u64) {
        if calls > 0 {
            *self.missed.entry(why).or_default() += calls;
        }
    }

    /// Adds the numbers of another outcome.
    pub fn add(&mut self, other: CaughtUp) {
        self.calls += other.calls;
        self.not_unwound += other.not_unwound;
        self.opened.extend(other.opened);
        for (why, calls) in other.missed {
            self.missed(why, calls);
        }
    }

    /// One line for each reason why calls were not caught up.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        self.missed.iter().map(|(why, calls)| match calls {
            1 => format!("1 call in progress was not caught up: {why}"),
            n => format!("{n} calls in progress were not caught up: {why}"),
        })
    }
}
