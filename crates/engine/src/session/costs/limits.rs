//! Decisions about costs: which pairs are taken out so that a measurement is within its limit, which get no code at all, and whether a request
//! is refused because it would cost too much.

use std::sync::Arc;

use ingraft_codegen::Cost;
use ingraft_model::{FunctionId, Insertion, Instrumentation, PointKind, Snippet, Variable};
use rustc_hash::FxHashMap;

use crate::api::{Costs, MeasurementId, MetricFocus, PAIRS_TOLD, PairCost, TakenOut};
use crate::error::{Error, Reason};
use crate::pairs::is_costly;

use super::caches::{self, Displacement};
use super::rates::PairRate;
use crate::weaving::cost::Prices;

/// Number of consecutive readings at which a measurement must be over its limit. So a short burst of hits removes no pair.
const WINDOWS: u32 = 2;
/// Nanoseconds of processor time per second that are one percent of a processor.
pub const PERCENT: f64 = 1e7;

/// Number of readings in a row at which each measurement was over its limit.
#[derive(Debug, Default)]
pub struct Excesses(FxHashMap<MeasurementId, u32>);

impl Excesses {
    /// Notes a reading. Returns whether pairs of the measurement are to be taken out.
    pub fn note(&mut self, id: MeasurementId, is_over: bool) -> bool {
        let readings = self.0.entry(id).or_default();
        *readings = if is_over { *readings + 1 } else { 0 };
        *readings >= WINDOWS
    }

    /// Forgets a measurement whose pairs were taken out.
    pub fn forget(&mut self, id: MeasurementId) {
        self.0.remove(&id);
    }

    /// Notes that no measurement is over its limit.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// The measurement that pays for a pair: of those that measure it, each with its limit, the one with the highest limit.
pub fn payer(users: impl Iterator<Item = (MeasurementId, f64)>) -> Option<MeasurementId> {
    users.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(id, _)| id)
}

/// Indices of the costs that must go so that the sum of the others is at most `limit`, the highest first.
fn beyond(costs: &[f64], limit: f64) -> Vec<usize> {
    let mut left: f64 = costs.iter().sum();
    let mut order: Vec<usize> = (0..costs.len()).collect();
    order.sort_by(|a, b| costs[*b].total_cmp(&costs[*a]));
    let goes = |at: &usize| {
        let over = left > limit;
        left -= costs[*at];
        over
    };
    order.into_iter().take_while(goes).collect()
}

/// The pairs of a measurement that must be taken out so that the others cost at most `limit` percent of a processor, with the reason, chosen as by
/// [`too_dear`]. `pays` tells whether the measurement pays for a pair: a pair of several measurements stays as long as one of them
/// may pay for it. It is asked only if all pairs together cost more than the limit, because the answer needs a search.
pub fn excess<K>(
    mut costs: Vec<(K, PairRate)>,
    limit: f64,
    helps: impl Fn(&K) -> bool,
    pays: impl Fn(&K) -> bool,
    now_ns: u64,
) -> Vec<(K, TakenOut)> {
    if costs.iter().map(|(_, rate)| rate.ns_per_s).sum::<f64>() <= limit * PERCENT {
        return Vec::new();
    }
    costs.retain(|(key, _)| pays(key));
    let (keys, rates): (Vec<&K>, Vec<PairRate>) = costs.iter().map(|(key, rate)| (key, *rate)).unzip();
    let going = too_dear(&rates, &|at| keys.get(at).is_some_and(|key| helps(key)), limit);
    let mut costs: Vec<_> = costs.into_iter().map(Some).collect();
    let taken = going.into_iter().filter_map(|at| costs[at].take());
    taken.map(|(key, rate)| (key, rate.too_much(limit, now_ns))).collect()
}

impl PairRate {
    /// The removal of a pair with this rate, or the refusal of its code, because of a limit in percent of a processor.
    pub fn too_much(&self, limit: f64, now_ns: u64) -> TakenOut {
        TakenOut {
            hits_per_s: self.hits_per_s as u64,
            cost_ns_per_s: self.ns_per_s as u64,
            limit_ns_per_s: (limit * PERCENT) as u64,
            ..TakenOut::free(now_ns)
        }
    }
}

/// Indices of the pairs that get no code, the most expensive first, so that the others together cost at most `limit` percent of a processor.
/// Pairs that only help others, as `helps` says, come after those that were asked for.
pub fn too_dear(predicted: &[PairRate], helps: &dyn Fn(usize) -> bool, limit: f64) -> Vec<usize> {
    let (helpers, asked): (Vec<usize>, Vec<usize>) = (0..predicted.len()).partition(|at| helps(*at));
    let mut left = limit * PERCENT;
    let mut dear = Vec::new();
    for group in [asked, helpers] {
        let costs: Vec<f64> = group.iter().filter_map(|at| Some(predicted.get(*at)?.ns_per_s)).collect();
        let out = beyond(&costs, left);
        left -= costs.iter().sum::<f64>() - out.iter().filter_map(|n| costs.get(*n)).sum::<f64>();
        dear.extend(out.iter().filter_map(|n| group.get(*n)));
    }
    dear
}

/// The costs of pairs that are not inserted yet, if their functions are called so often per second. `pairs` has the code of each pair; `None`
/// for a pair that is woven already. Pairs that only count cost nothing here. `price` returns the worst case of an insertion.
pub fn predict<'i>(
    pairs: impl Iterator<Item = Option<&'i Instrumentation>>,
    rates: &FxHashMap<FunctionId, f64>,
    price: &dyn Fn(&Insertion, &[Variable]) -> Cost,
) -> Vec<PairRate> {
    let mut each: FxHashMap<(*const Snippet, PointKind), Cost> = FxHashMap::default();
    // The number of the pair, the lines that a run uses, and the rate.
    let mut code: Vec<(usize, f64, f64)> = Vec::new();
    let of = |(number, instrumentation): (usize, Option<&Instrumentation>)| {
        let mut sum = PairRate::default();
        let Some(Instrumentation { variables, insertions, .. }) = instrumentation else { return sum };
        if !is_costly(variables) {
            return sum;
        }
        for insertion in insertions {
            // Most functions of a large program are not called, and need no price.
            let Some(rate) = rates.get(&insertion.function).filter(|rate| **rate > 0.0) else { continue };
            let known = each.entry((Arc::as_ptr(&insertion.snippet), insertion.point));
            let cost = *known.or_insert_with(|| price(insertion, variables));
            sum.ns_per_s += rate * Prices::here().ns(cost);
            code.push((number, caches::lines(f64::from(cost.slots)), *rate));
            sum.hits_per_s = sum.hits_per_s.max(*rate);
        }
        sum
    };
    let mut sums: Vec<PairRate> = pairs.enumerate().map(of).collect();
    let displacement = Displacement::by(code.iter().map(|(_, lines, rate)| (*lines, *rate)));
    for (number, lines, rate) in code {
        if let Some(sum) = sums.get_mut(number) {
            sum.ns_per_s += rate * displacement.cycles(lines, rate) * Prices::here().cycle_ns;
        }
    }
    sums
}

/// The error for a request whose pairs together would cost more than `limit` percent of a processor; `None` if they cost less.
pub fn refusal<'p>(predicted: &[PairRate], pairs: impl Iterator<Item = &'p MetricFocus>, limit: f64) -> Option<Error> {
    let total: f64 = predicted.iter().map(|rate| rate.ns_per_s).sum();
    let (rate, worst) = predicted.iter().zip(pairs).max_by(|(a, _), (b, _)| a.ns_per_s.total_cmp(&b.ns_per_s))?;
    if total <= limit * PERCENT {
        return None;
    }
    let what = format!(
        "`{}` at {} would cost {:.0} % of one processor ({:.0} calls a second, {:.1} ns each), more than the limit of {limit} %",
        worst.metric,
        worst.focus,
        rate.ns_per_s / PERCENT,
        rate.hits_per_s,
        rate.ns_per_s / rate.hits_per_s.max(1.0),
    );
    let percent = (total / PERCENT * 1.5).ceil();
    let hint = format!("measure what is called less often, or allow it with --max-overhead {percent:.0}");
    Some(Error::new(Reason::TooDear, what, hint))
}

/// Calls per second from which on a function is busy: a copy of it saves some nanoseconds a call.
pub const BUSY: f64 = 10_000.0;

/// Calls per second of functions, by the highest rate that is known of each. A rate of several functions, or of none, tells of no function.
pub fn most_called(rates: impl Iterator<Item = (Option<FunctionId>, f64)>) -> FxHashMap<FunctionId, f64> {
    let mut called: FxHashMap<FunctionId, f64> = FxHashMap::default();
    for (function, rate) in rates.filter_map(|(function, rate)| Some((function?, rate))) {
        let most = called.entry(function).or_default();
        *most = most.max(rate);
    }
    called
}

/// Sums up the costs of all pairs. `closed_ns` is the cost so far of the pairs that are gone, and `cpu_ns` the processor time of the target in
/// these seconds; `None` if it is not known.
pub fn summary(mut pairs: Vec<PairCost>, closed_ns: f64, seconds: f64, cpu_ns: Option<f64>) -> Costs {
    pairs.sort_by(|a, b| b.cost_ns_per_s.total_cmp(&a.cost_ns_per_s).then_with(|| a.pair.metric.cmp(&b.pair.metric)));
    let observed_ns = closed_ns + pairs.iter().map(|p| p.observed_ns).sum::<f64>();
    Costs {
        cost_ns_per_s: pairs.iter().map(|p| p.cost_ns_per_s).sum(),
        observed_ns_per_s: Some(observed_ns / seconds),
        of_target: cpu_ns.filter(|cpu| *cpu > 0.0).map(|cpu| observed_ns / cpu),
        pair_count: pairs.len() as u32,
        pairs: {
            pairs.truncate(PAIRS_TOLD);
            pairs
        },
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use ingraft_codegen::SLOTS_PER_CYCLE;
    use ingraft_model::{Focus, Shape, VariableKind};

    use crate::pairs::tests::{function, insertion, instrumentation, variable};

    use super::*;

    fn percent(percent: f64) -> PairRate {
        PairRate { ns_per_s: percent * PERCENT, hits_per_s: 10.0 * percent }
    }

    #[test]
    fn the_most_expensive_pairs_get_no_code() {
        for (costs, limit, dear) in [
            (&[1.0, 4.0, 0.0, 3.0][..], 8.0, &[][..]),
            (&[1.0, 4.0, 0.0, 3.0], 7.9, &[1]),
            (&[1.0, 4.0, 0.0, 3.0], 4.0, &[1]),
            (&[1.0, 4.0, 0.0, 3.0], 3.9, &[1, 3]),
            (&[1.0, 4.0, 0.0, 3.0], 0.5, &[1, 3, 0]),
            (&[1.0, 4.0, 0.0, 3.0], 0.0, &[1, 3, 0]),
            // of equal costs, the first one goes first
            (&[2.0, 2.0, 2.0], 4.0, &[0]),
            (&[2.0, 2.0, 2.0], 3.0, &[0, 1]),
            (&[], 5.0, &[]),
            (&[], 0.0, &[]),
        ] {
            let predicted: Vec<PairRate> = costs.iter().map(|cost| percent(*cost)).collect();
            assert_eq!(too_dear(&predicted, &|_| false, limit), dear, "{costs:?} {limit}");
        }
    }

    #[test]
    fn pairs_that_help_others_come_last() {
        let predicted: Vec<PairRate> = [1.0, 4.0, 2.0, 3.0].iter().map(|cost| percent(*cost)).collect();
        // The second one and the fourth one were asked for.
        let dear = |limit| too_dear(&predicted, &|at| at % 2 == 0, limit);
        assert_eq!(dear(10.0), Vec::<usize>::new());
        assert_eq!(dear(9.0), [2]);
        assert_eq!(dear(7.5), [2, 0]);
        assert_eq!(dear(6.0), [1], "the other one leaves room for both helpers");
        assert_eq!(dear(2.0), [1, 3, 2]);
    }

    #[test]
    fn pairs_go_for_which_the_measurement_pays() {
        let costs = || vec![("a", percent(1.0)), ("b", percent(4.0)), ("c", percent(3.0))];
        for (limit, shared, going) in [
            (8.0, "", &[][..]),
            (7.0, "", &["b"][..]),
            (3.0, "", &["b", "c"]),
            (0.0, "", &["b", "c", "a"]),
            // another measurement pays for the most expensive one, so that the rest is within the limit
            (4.0, "b", &[]),
            (3.0, "b", &["c"]),
            (0.5, "abc", &[]),
        ] {
            let out = excess(costs(), limit, |_| false, |key| !shared.contains(key), 5);
            assert_eq!(out.iter().map(|(key, _)| *key).collect::<Vec<_>>(), going, "{limit} {shared}");
        }
        // One that only helps goes first, although it costs least.
        let out = excess(costs(), 7.5, |key| *key == "a", |_| true, 5);
        assert_eq!(out.iter().map(|(key, _)| *key).collect::<Vec<_>>(), ["a"]);
        let why = excess(costs(), 7.5, |_| false, |_| true, 5)[0].1;
        assert_eq!((why.hits_per_s, why.cost_ns_per_s, why.limit_ns_per_s), (40, 40_000_000, 75_000_000));
        assert_eq!((why.time_ns, why.own_gs, why.rewritten), (5, false, false));
    }

    #[test]
    fn the_payer_is_searched_only_if_it_matters() {
        let asked = Cell::new(0);
        let pays = |_: &u32| {
            asked.set(asked.get() + 1);
            true
        };
        assert!(excess(vec![(1, percent(2.0)), (2, percent(3.0))], 5.0, |_| false, pays, 0).is_empty());
        assert_eq!(asked.get(), 0);
        assert_eq!(excess(vec![(1, percent(2.0)), (2, percent(3.1))], 5.0, |_| false, pays, 0).len(), 1);
        assert_eq!(asked.get(), 2);
    }

    #[test]
    fn the_measurement_with_the_highest_limit_pays() {
        let of = |limits: &[f64]| payer((1..).map(MeasurementId).zip(limits.iter().copied())).map(|id| id.0);
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[3.0]), Some(1));
        assert_eq!(of(&[3.0, 5.0, 4.0]), Some(2));
        assert_eq!(of(&[5.0, 5.0]), Some(2), "the later one");
        assert_eq!(of(&[5.0, f64::INFINITY]), Some(2), "one without a limit");
    }

    #[test]
    fn two_readings_over_the_limit_remove_pairs() {
        let (one, other) = (MeasurementId(1), MeasurementId(2));
        let mut excesses = Excesses::default();
        assert!(!excesses.note(one, true));
        assert!(!excesses.note(other, true), "each measurement has its own readings");
        assert!(!excesses.note(one, false), "a short burst");
        assert!(excesses.note(other, true));
        assert!(excesses.note(other, true), "the removal has failed, and is tried again");
        assert!(!excesses.note(one, true));
        excesses.clear();
        assert!(!excesses.note(one, true));
        assert!(excesses.note(one, true));
        excesses.forget(one);
        assert!(!excesses.note(one, true));
    }

    #[test]
    fn costs_are_predicted_from_calls_and_worst_cases() {
        let of = |shape, functions: &[u32]| {
            let mut one = instrumentation(vec![variable(VariableKind::Counter, shape)]);
            one.insertions =
                functions.iter().map(|n| insertion(function(0, *n), PointKind::Entry, Vec::new())).collect();
            one
        };
        let rates = FxHashMap::from_iter([(function(0, 1), 100.0), (function(0, 2), 30.0)]);
        let costly = Shape::Activations;
        let pairs = [
            Some(of(costly, &[1])),
            Some(of(costly, &[1, 2, 2])),
            Some(of(costly, &[3])),
            Some(of(Shape::Counter, &[1])),
            Some(of(costly, &[])),
            None,
        ];
        let cycles = |cycles: u32| Cost { slots: SLOTS_PER_CYCLE * cycles, ..Cost::default() };
        let in_cycles = |rate: &PairRate| (rate.ns_per_s / Prices::here().cycle_ns).round();
        let predicted = predict(pairs.iter().map(Option::as_ref), &rates, &|_, _| cycles(5));
        let both: Vec<(f64, f64)> = predicted.iter().map(|rate| (in_cycles(rate), rate.hits_per_s)).collect();
        assert_eq!(both, [(500.0, 100.0), (800.0, 100.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0)]);
        // A function that is not called has no price.
        let idle = FxHashMap::from_iter([(function(0, 1), 0.0)]);
        assert_eq!(predict(pairs.iter().map(Option::as_ref), &idle, &|_, _| panic!("no call"))[1], PairRate::default());
        // the same snippet has one price, at each kind of points
        let mut shared = of(costly, &[1, 2]);
        shared.insertions[1].snippet = Arc::clone(&shared.insertions[0].snippet);
        let asked = Cell::new(0);
        let price = |_: &Insertion, _: &[Variable]| {
            asked.set(asked.get() + 1);
            cycles(asked.get())
        };
        assert_eq!(in_cycles(&predict([Some(&shared)].into_iter(), &rates, &price)[0]), 130.0);
        shared.insertions[1].point = PointKind::Exit;
        asked.set(0);
        assert_eq!(in_cycles(&predict([Some(&shared)].into_iter(), &rates, &price)[0]), 100.0 + 2.0 * 30.0);
        // Many functions displace each other's code.
        let all: Vec<u32> = (0..2_000).collect();
        let rates: FxHashMap<FunctionId, f64> = all.iter().map(|n| (function(0, *n), 10.0)).collect();
        let many = predict([Some(&of(costly, &all))].into_iter(), &rates, &|_, _| cycles(5));
        assert!(in_cycles(&many[0]) > 2.0 * 5.0 * 10.0 * 2_000.0, "{many:?}");
    }

    #[test]
    fn a_request_beyond_its_limit_is_refused_with_its_worst_pair() {
        let pair = |metric: &str| MetricFocus { metric: metric.to_owned(), focus: Focus::default() };
        let pairs = [pair("calls"), pair("time")];
        let of = |costs: &[f64], limit| {
            let rates: Vec<PairRate> = costs.iter().map(|cost| percent(*cost)).collect();
            refusal(&rates, pairs.iter(), limit)
        };
        assert!(of(&[], 0.0).is_none());
        assert!(of(&[2.0, 3.0], 5.0).is_none());
        let error = of(&[2.0, 3.0], 4.0).expect("too much");
        assert_eq!(error.reason, Reason::TooDear);
        assert!(error.what.starts_with("`time` at "), "{}", error.what);
        assert!(error.what.contains("3 % of one processor (30 calls a second, 1000000.0 ns each)"), "{}", error.what);
        assert!(error.hint().ends_with("--max-overhead 8"), "{}", error.hint());
        assert!(of(&[3.0, 3.0], 4.0).expect("too much").what.starts_with("`time`"), "the last of equal ones");
    }

    #[test]
    fn a_function_is_called_as_often_as_its_most_frequent_code_runs() {
        let (f, g) = (function(0, 1), function(0, 2));
        let rates = [(Some(f), 3.0), (None, 100.0), (Some(f), 7.0), (Some(g), 0.0), (Some(f), 5.0)];
        assert_eq!(most_called(rates.into_iter()), FxHashMap::from_iter([(f, 7.0), (g, 0.0)]));
    }

    #[test]
    fn the_summary_names_the_most_expensive_pairs_and_sums_all() {
        let cost = |metric: String, ns| PairCost {
            pair: Arc::new(MetricFocus { metric, focus: Focus::default() }),
            hit_ns: 1.0,
            hits_per_s: 1.0,
            cost_ns_per_s: ns,
            observed_ns: 2.0 * ns,
        };
        let all = |count: usize| (0..count).map(|n| cost(format!("m{n:03}"), (n / 2) as f64)).collect::<Vec<_>>();
        let costs = summary(all(5), 10.0, 4.0, Some(100.0));
        let names: Vec<&str> = costs.pairs.iter().map(|p| p.pair.metric.as_str()).collect();
        assert_eq!(names, ["m004", "m002", "m003", "m000", "m001"], "equal costs by name");
        assert_eq!((costs.cost_ns_per_s, costs.observed_ns_per_s), (4.0, Some(18.0 / 4.0)));
        assert_eq!((costs.of_target, costs.pair_count), (Some(0.18), 5));
        let many = summary(all(PAIRS_TOLD + 1), 0.0, 1.0, Some(0.0));
        assert_eq!((many.pairs.len(), many.pair_count as usize), (PAIRS_TOLD, PAIRS_TOLD + 1));
        assert_eq!(many.observed_ns_per_s, Some(2.0 * many.cost_ns_per_s), "the pair that is not named counts too");
        assert_eq!(many.of_target, None, "a target that has not run");
        assert_eq!(summary(Vec::new(), 3.0, 1.5, None).observed_ns_per_s, Some(2.0));
    }
}
