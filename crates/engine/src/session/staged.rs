//! Insertion in two stages: code that only counts comes first, and tells what the other code would cost.
//!
//! Rates of calls differ by many orders of magnitude, and are not known before something counts. If all pairs were inserted at once, those
//! that cost too much would be taken out later, each at its own moment, and their values could not be compared with the others.

use std::time::{Duration, Instant};

use ingraft_model::FunctionRef as MdlFunction;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::TakenOut;
use crate::error::Error;
use crate::measure::request::Wanted;
use crate::pairs::{PairKey, is_costly};
use crate::weaving::catch_up::CaughtUp;
use crate::weaving::positions::Observer;

use super::clocks::now_ns;
use super::control::Control;
use super::cost::{PERCENT, Predicted};
use super::driver::Session;

/// Time for which calls are counted before the costly code comes.
const LOOK: Duration = Duration::from_millis(100);

/// Result of an insertion.
pub(super) struct Inserted {
    /// Keys of all wanted pairs, in their order.
    pub keys: Vec<(PairKey, Option<MdlFunction>)>,
    /// Calls in progress that were caught up.
    pub caught_up: CaughtUp,
    /// Pairs that would cost too much, and so have no code.
    pub dear: Vec<(PairKey, TakenOut)>,
}

impl Session {
    /// Whether a request is inserted in two stages: some of its pairs only count, and others would cost more.
    pub(super) fn is_staged(wanted: &[Wanted]) -> bool {
        let costly = |w: &Wanted| is_costly(&w.instrumentation.variables);
        wanted.iter().any(costly) && !wanted.iter().all(costly)
    }

    /// Inserts the pairs that only count, looks how often their functions are called, and inserts those of the others that together cost at
    /// most `limit` percent of a processor. If it fails, nothing of the request stays.
    pub(super) fn insert_staged(
        &self,
        control: &mut Control,
        mut wanted: Vec<Wanted>,
        whole: bool,
        limit: f64,
    ) -> Result<Inserted, Error> {
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        Self::fit_histograms(control, &mut wanted, &keys, 0);
        let (mut costly, counting): (Vec<Wanted>, Vec<Wanted>) =
            wanted.into_iter().partition(|w| is_costly(&w.instrumentation.variables));
        self.refuse_hopeless_pairs(control, &costly)?;
        // If it is known already that nothing would be timed, the target is not touched.
        let known = self.predicted(control, &costly, &self.known_rates(control));
        if too_dear(&known, limit).len() == costly.len() {
            self.refuse_costly(control, &costly, limit)?;
        }
        let counting = self.insert_fitted(control, counting, whole, &mut Observer::default())?;
        let Inserted { keys: counted, mut caught_up, .. } = counting;
        let rates = self.rates_of_calls(control, &counted);
        let predicted = self.predicted(control, &costly, &rates);
        let dear = too_dear(&predicted, limit);
        let mut out = Vec::new();
        for at in dear {
            let (Some(w), Some(cost)) = (costly.get_mut(at), predicted.get(at)) else { continue };
            w.instrumentation.insertions.clear();
            let (hits_per_s, cost_ns_per_s) = (cost.hits_per_s as u64, cost.ns_per_s as u64);
            let limit_ns_per_s = (limit * PERCENT) as u64;
            out.push((
                PairKey::of(w),
                TakenOut { hits_per_s, cost_ns_per_s, limit_ns_per_s, ..TakenOut::free(now_ns()) },
            ));
        }
        match self.insert_fitted(control, costly, whole, &mut Observer::default()) {
            Ok(more) => caught_up.add(more.caught_up),
            Err(error) => {
                self.take_back(control, &counted);
                return Err(error);
            }
        }
        Ok(Inserted { keys, caught_up, dear: out })
    }

    /// Calls per second of the functions whose calls are counted, over [`LOOK`].
    fn rates_of_calls(
        &self,
        control: &Control,
        counted: &[(PairKey, Option<MdlFunction>)],
    ) -> FxHashMap<MdlFunction, f64> {
        let counter = |(key, function): &(PairKey, Option<MdlFunction>)| {
            Some(((*function)?, control.pairs.get(key)?.counters.first().copied()?))
        };
        let counters: Vec<(MdlFunction, u32)> = counted.iter().filter_map(counter).collect();
        let read = || -> Vec<i64> {
            let shared = self.shared();
            let Some(columns) = shared.columns() else { return Vec::new() };
            counters.iter().map(|(_, counter)| columns.sum(*counter)).collect()
        };
        let (begin, before) = (Instant::now(), read());
        std::thread::sleep(LOOK);
        let (seconds, after) = (begin.elapsed().as_secs_f64(), read());
        let mut rates = FxHashMap::default();
        for ((function, _), (before, after)) in counters.iter().zip(before.iter().zip(&after)) {
            let rate = after.wrapping_sub(*before).max(0) as f64 / seconds;
            let most: &mut f64 = rates.entry(*function).or_default();
            *most = most.max(rate);
        }
        rates
    }

    /// Takes pairs out again that no measurement uses yet. If that fails, they count until the target is detached.
    fn take_back(&self, control: &mut Control, keys: &[(PairKey, Option<MdlFunction>)]) {
        let mut seen = FxHashSet::default();
        let keys: Vec<_> = keys.iter().filter(|(key, _)| seen.insert(key.clone())).cloned().collect();
        control.pairs.add_users(&keys);
        let views = self.views(control, &keys);
        let last = control.measurements.is_empty();
        if let Err(error) = self.take_measurement_out(control, &views, last) {
            tracing::warn!(%error, "code that counts stays in after a failed insertion");
            return;
        }
        self.drop_users(control, &views);
    }
}

/// Indices of the pairs that get no code, the most expensive ones first, so that the others together cost at most `limit` percent of a
/// processor.
fn too_dear(predicted: &[Predicted], limit: f64) -> Vec<usize> {
    let mut left: f64 = predicted.iter().map(|p| p.ns_per_s).sum();
    let mut order: Vec<usize> = (0..predicted.len()).collect();
    order.sort_by(|a, b| predicted[*b].ns_per_s.total_cmp(&predicted[*a].ns_per_s));
    let mut dear = Vec::new();
    for at in order {
        if left <= limit * PERCENT {
            break;
        }
        left -= predicted[at].ns_per_s;
        dear.push(at);
    }
    dear
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_expensive_pairs_get_no_code() {
        let of = |percent: f64| Predicted { ns_per_s: percent * PERCENT, hits_per_s: 1.0 };
        let pairs = [of(1.0), of(4.0), of(0.0), of(3.0)];
        assert_eq!(too_dear(&pairs, 8.0), Vec::<usize>::new());
        assert_eq!(too_dear(&pairs, 5.0), [1]);
        assert_eq!(too_dear(&pairs, 2.0), [1, 3]);
        assert_eq!(too_dear(&pairs, 0.5), [1, 3, 0]);
        assert_eq!(too_dear(&[], 5.0), Vec::<usize>::new());
    }
}
