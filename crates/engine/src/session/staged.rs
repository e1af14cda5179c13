//! Insertion in two stages: code that only counts comes first, and tells what the other code would cost.
//!
//! Rates of calls differ by many orders of magnitude, and are not known before something counts. If all pairs were inserted at once, those
//! that cost too much would be taken out later, each at its own moment, and their values could not be compared with the others.

use std::time::{Duration, Instant};

use ingraft_model::{FunctionId, Placing, PointKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::TakenOut;
use crate::background::each_in_background;
use crate::error::Error;
use crate::measure::request::WantedPair;
use crate::pairs::{PairKey, is_costly};
use crate::program::modules::Modules;
use crate::undertaking::interruptible;
use crate::weaving::catch_up::CaughtUp;

use super::clocks::now_ns;
use super::control::Control;
use super::costs::limits::{BUSY, most_called, too_dear};
use super::driver::Session;
use super::insertion_stop::InsertionStop;
use super::view::View;

/// Time for which calls are counted before the costly code comes.
const LOOK: Duration = Duration::from_millis(100);

/// Least number of functions that are called for which their code is put in one place: that of fewer fits into the caches of a processor.
const MANY: usize = 64;

/// Result of an insertion.
pub(super) struct InsertionResult {
    /// Keys of all wanted pairs, in their order.
    pub keys: Vec<(PairKey, Option<FunctionId>)>,
    /// Calls in progress that were caught up.
    pub caught_up: CaughtUp,
    /// Pairs that would cost too much, and so have no code.
    pub dear: Vec<(PairKey, TakenOut)>,
}

impl Session {
    /// Whether a request is inserted in two stages: some of its pairs only count, and others would cost more.
    pub(super) fn is_staged(wanted: &[WantedPair]) -> bool {
        let costly = |w: &WantedPair| is_costly(&w.instrumentation.variables);
        wanted.iter().any(costly) && !wanted.iter().all(costly)
    }

    /// Inserts the pairs that only count, looks how often their functions are called, and inserts those of the others that together cost at
    /// most `limit` percent of a processor. If it fails, nothing of the request stays.
    pub(super) fn insert_staged(
        &self,
        control: &mut Control,
        mut wanted: Vec<WantedPair>,
        whole: bool,
        limit: f64,
    ) -> Result<InsertionResult, Error> {
        let keys: Vec<_> = wanted.iter().map(|w| (PairKey::of(w), w.function)).collect();
        Self::fit_sizes(control, &mut wanted, &keys, 0);
        let (mut costly, plain): (Vec<WantedPair>, Vec<WantedPair>) =
            wanted.into_iter().partition(|w| is_costly(&w.instrumentation.variables));
        // If some pairs count for this purpose alone, the values of all others begin in one stop.
        let for_this = plain.iter().any(WantedPair::is_hidden);
        let (counting, others): (Vec<_>, Vec<_>) = plain.into_iter().partition(|w| w.is_hidden() == for_this);
        self.refuse_hopeless_pairs(control, &costly)?;
        // If it is known already that nothing would be timed, the target is not touched.
        let helps: Vec<bool> = costly.iter().map(|w| PairKey::of(w).helps()).collect();
        let helps = |at: usize| helps.get(at) == Some(&true);
        let known = self.predicted(control, &costly, &self.known_rates(control));
        if too_dear(&known, &helps, limit).len() == costly.len() {
            self.refuse_costly(control, &costly, limit)?;
        }
        let again = counting.clone();
        let counting = self.insert_fitted(control, counting, whole, &mut InsertionStop::default())?;
        let InsertionResult { keys: counted, mut caught_up, .. } = counting;
        // If the insertion is given up, that ends the search, and the next insertion fails.
        let find = || interruptible(|| find_exits(&control.modules, &costly));
        let rates = self.rates_of_calls(control, &counted, || drop(find()));
        let predicted = self.predicted(control, &costly, &rates);
        let dear = too_dear(&predicted, &helps, limit);
        for w in costly.iter_mut().filter(|w| w.instrumentation.placing == Placing::InCopyIfBusy) {
            let is_busy = w.function.and_then(|function| rates.get(&function)).is_some_and(|rate| *rate >= BUSY);
            w.instrumentation.placing = if is_busy { Placing::InCopy } else { Placing::Anywhere };
        }
        let mut out = Vec::new();
        for at in dear {
            let (Some(w), Some(cost)) = (costly.get_mut(at), predicted.get(at)) else { continue };
            w.instrumentation.insertions.clear();
            control.too_busy.extend(w.function);
            out.push((PairKey::of(w), cost.too_much(limit, now_ns())));
        }
        costly.extend(others);
        let costly = self.in_one_place(control, again, costly, &rates);
        let result = self.insert_fitted(control, costly, whole, &mut InsertionStop::default());
        control.too_busy.clear();
        let result = result.map_err(|error| (&counted, error));
        let more = result.and_then(|more| self.all_unmeasured(control, &keys).map_or(Ok(more), |e| Err((&keys, e))));
        match more {
            Ok(more) => caught_up.add(more.caught_up),
            Err((its, error)) => {
                self.take_back(control, its, |control, views| {
                    let last = control.measurements.is_empty();
                    self.take_measurement_out(control, views, last).map(drop)
                });
                return Err(error);
            }
        }
        Ok(InsertionResult { keys, caught_up, dear: out })
    }

    /// Calls per second of the functions whose calls are counted, over [`LOOK`] or as long as `meanwhile` takes. If that is longer, the target may
    /// have lacked a processor meanwhile, so it is looked at again, and the larger rate counts.
    fn rates_of_calls(
        &self,
        control: &Control,
        counted: &[(PairKey, Option<FunctionId>)],
        meanwhile: impl FnOnce(),
    ) -> FxHashMap<FunctionId, f64> {
        let counter = |(key, function): &(PairKey, Option<FunctionId>)| {
            Some(((*function)?, control.pairs.get(key)?.counters.first().copied()?))
        };
        let counters: Vec<(FunctionId, u32)> = counted.iter().filter_map(counter).collect();
        let read = || -> Vec<i64> {
            let shared = self.shared();
            let Some(columns) = shared.columns() else { return Vec::new() };
            counters.iter().map(|(_, counter)| columns.sum(*counter)).collect()
        };
        let look = |meanwhile: &mut dyn FnMut()| -> (Vec<f64>, Duration) {
            let (begin, before) = (Instant::now(), read());
            meanwhile();
            std::thread::sleep(LOOK.saturating_sub(begin.elapsed()));
            let (took, after) = (begin.elapsed(), read());
            let rate = |(before, after): (&i64, &i64)| after.wrapping_sub(*before).max(0) as f64 / took.as_secs_f64();
            (before.iter().zip(&after).map(rate).collect(), took)
        };
        let mut meanwhile = Some(meanwhile);
        let (mut rates, took) = look(&mut || meanwhile.take().into_iter().for_each(|meanwhile| meanwhile()));
        if took > 2 * LOOK {
            let (again, _) = look(&mut || ());
            rates.iter_mut().zip(again).for_each(|(rate, again)| *rate = rate.max(again));
        }
        let functions = counters.iter().map(|(function, _)| Some(*function));
        most_called(functions.zip(rates))
    }

    /// Takes out the code that counts calls of functions which get costly code, if these are many, and adds it to the costly code: then all code of
    /// a call stands in one place, and so do its counters. Functions that were called come first.
    fn in_one_place(
        &self,
        control: &mut Control,
        mut counting: Vec<WantedPair>,
        mut costly: Vec<WantedPair>,
        rates: &FxHashMap<FunctionId, f64>,
    ) -> Vec<WantedPair> {
        let called = called(&costly, rates);
        let of_all = counting.len();
        counting.retain(|w| w.function.is_some_and(|function| called.contains(&function)));
        // The target is not left without any code meanwhile.
        if called.len() >= MANY && counting.len() < of_all {
            let keys: Vec<_> = counting.iter().map(|w| (PairKey::of(w), w.function)).collect();
            self.take_back(control, &keys, |control, views| self.unweave_within(control, views));
            costly.splice(..0, counting);
        }
        put_first(&called, &mut costly);
        costly
    }

    /// Takes pairs out again that no measurement uses yet, by `take_out`. If that fails, they count until the target is detached.
    fn take_back(
        &self,
        control: &mut Control,
        keys: &[(PairKey, Option<FunctionId>)],
        take_out: impl FnOnce(&mut Control, &[View]) -> Result<(), Error>,
    ) {
        let mut seen = FxHashSet::default();
        let keys: Vec<_> = keys.iter().filter(|(key, _)| seen.insert(key.clone())).cloned().collect();
        control.pairs.add_users(&keys);
        let views = self.views(control, &keys);
        if let Err(error) = take_out(control, &views) {
            tracing::warn!(%error, "code that only counts stays in");
            return;
        }
        self.drop_users(control, &views);
    }
}

/// The functions that were called and get costly code.
fn called(costly: &[WantedPair], rates: &FxHashMap<FunctionId, f64>) -> FxHashSet<FunctionId> {
    let has_code = |w: &&WantedPair| !w.instrumentation.insertions.is_empty();
    let is_called = |function: &FunctionId| rates.get(function).is_some_and(|rate| *rate > 0.0);
    costly.iter().filter(has_code).filter_map(|w| w.function).filter(is_called).collect()
}

/// Puts the pairs of these functions first, those of one function together. The others keep their order.
fn put_first(functions: &FxHashSet<FunctionId>, wanted: &mut [WantedPair]) {
    wanted.sort_by_key(|w| match w.function.filter(|function| functions.contains(function)) {
        Some(function) => (false, Some(function)),
        None => (true, None),
    });
}

/// Finds the exits at which the code of pairs will stand, so that the images know them when the code comes.
fn find_exits(modules: &Modules, wanted: &[WantedPair]) -> Result<(), Error> {
    let exits =
        |w: &&WantedPair| w.instrumentation.insertions.iter().any(|insertion| insertion.point == PointKind::Exit);
    let functions: Vec<FunctionId> = wanted.iter().filter(exits).filter_map(|w| w.function).collect();
    each_in_background(&functions, |function| {
        if let Some((_, module, f)) = modules.resolve(*function) {
            drop(module.image.exit_sites(f));
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_model::{Focus, Shape, VariableKind};

    use super::*;
    use crate::api::{MeasurementId, MetricFocus};
    use crate::measure::request::{Owner, PairPurpose};
    use crate::pairs::tests::{function, insertion, instrumentation, variable};

    fn pair(metric: &str, of: Option<u32>, has_code: bool) -> WantedPair {
        let mut code = instrumentation(vec![variable(VariableKind::Counter, Shape::Counter)]);
        if has_code {
            code.insertions = vec![insertion(function(0, of.unwrap_or(0)), PointKind::Entry, Vec::new())];
        }
        let pair = Arc::new(MetricFocus { metric: metric.to_owned(), focus: Focus::default() });
        let owner = Owner { measurement: MeasurementId(1), purpose: PairPurpose::Asked };
        WantedPair { function: of.map(|of| function(0, of)), ..WantedPair::owned(owner, pair, code) }
    }

    #[test]
    fn functions_that_are_called_come_first() {
        let costly =
            [pair("a", Some(9), true), pair("b", None, true), pair("c", Some(3), false), pair("d", Some(4), true)];
        let rates = [(9, 0.5), (3, 70.0), (4, 0.0), (5, 8.0)];
        let rates = rates.into_iter().map(|(of, rate)| (function(0, of), rate)).collect();
        let called = called(&costly, &rates);
        assert_eq!(
            called,
            FxHashSet::from_iter([function(0, 9)]),
            "3 gets no code, 4 is not called, 5 is not asked for"
        );

        let mut wanted: Vec<WantedPair> = costly.into();
        wanted.extend([pair("e", Some(9), true), pair("f", Some(1), true)]);
        let both = FxHashSet::from_iter([function(0, 9), function(0, 1)]);
        put_first(&both, &mut wanted);
        let names: Vec<&str> = wanted.iter().map(|w| w.pair.metric.as_str()).collect();
        assert_eq!(names, ["f", "a", "e", "b", "c", "d"]);
    }
}
