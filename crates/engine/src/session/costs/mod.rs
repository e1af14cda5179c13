//! Costs of the measurements of a target.
//!
//! The cost of a pair is the worst case of its snippets times the number of their runs, which counters in the shards count. The thread
//! `watch` of the session reads these counters, so no client has to read values for that. If a measurement exceeds its limit, the thread
//! removes the code of its most expensive pairs until the rest is within the limit. Pairs that only count are reported and stay.

mod accounts;
mod caches;
pub mod limits;
mod rates;

pub use self::accounts::{CounterSum, Ledger, Timers};
pub use self::limits::{Excesses, PERCENT};
pub use self::rates::{PairRate, Rates};
