//! Times of calls by calling context. The end of a timed call counts the bucket of its time below the call's context, and adds the time at the place
//! of the bucket. A call keeps its context in its record, because a call that ends by a tail jump may end in another one.

use std::collections::BTreeMap;

use ingraft_model::contexts::VALUES;
use ingraft_model::histogram::{HEAD, OWN};
use ingraft_model::{
    Activations, BinaryOp, Clock, ContextShape, ContextTree, CountedValue, Distribution, Expr, KeptValue, Resolution,
    Scale, Stmt, TimeUnit, VariableId,
};
use ingraft_process::TickClock;
use ingraft_report::{CallTimes, ContextProfile, UntimedCalls};

use crate::readings::values::Columns;
use crate::session::Locked;

use super::ContextsKind;
use super::code::{TREE_OF, in_own_context};

/// Width of the buckets.
const RESOLUTION: Resolution = Resolution::Fine;
/// Number of the metric at the place of a bucket that is the sum of its times.
const SUM: u8 = 0;
/// Number of the metric that is the sum of the times without those of the timed calls inside.
const OWN_SUM: u8 = 1;
/// Variable with the number of calls that have ended and had begun before the measurement. It is the first one of a pair, and 0 without times.
pub const EARLIER: VariableId = VariableId(0);

/// Adds what the end of a call with a number does, and the values that its record keeps for it.
pub(super) fn add(
    clock: Clock,
    (shape, function): (ContextShape, u32),
    kept: &mut Vec<KeptValue>,
    exit: &mut Vec<Stmt>,
) {
    kept.extend([KeptValue::Time(clock), KeptValue::Spent(clock), KeptValue::Inside]);
    let time = || Expr::Elapsed(clock, TimeUnit::Ticks);
    let is_unknown = Expr::Binary(BinaryOp::Equal, Box::new(Expr::Saved(KeptValue::Inside)), Box::new(Expr::Const(0)));
    let timed = vec![
        Stmt::EnterValue(TREE_OF, shape, VALUES | function, Some(RESOLUTION), time()),
        Stmt::AddContext(TREE_OF, shape, SUM, time()),
        Stmt::AddContext(TREE_OF, shape, OWN_SUM, Expr::Saved(KeptValue::Spent(clock))),
    ];
    exit.push(in_own_context(timed));
    exit.push(Stmt::If(is_unknown, vec![Stmt::Add(EARLIER, Expr::Const(1))]));
}

impl ContextsKind {
    /// Whether calls have times in each context.
    pub(super) fn has_times(&self) -> bool {
        !self.options.timed.is_empty()
    }

    /// The clock of the times.
    pub(super) fn clock(&self) -> Clock {
        if self.options.cpu { Clock::Cpu } else { Clock::Wall }
    }

    /// Takes the buckets out of a tree, and tells the times of each context in nanoseconds.
    pub(super) fn take_times(&self, at: &Locked<'_>, tree: &mut ContextTree) -> Vec<CallTimes> {
        let scale = at.wall_clock().map_or(Scale::ONE, TickClock::scale);
        times(&tree.take_values(), tree, scale)
    }

    /// The timed functions, each with the numbers of its calls that have no times.
    pub(super) fn timed_calls(
        &self,
        columns: &Columns<'_>,
        earlier: &[Option<u32>],
        outcomes: &[Option<Activations>],
    ) -> Vec<UntimedCalls> {
        let timed = self.sites.iter().enumerate().filter(|(_, site)| site.is_timed);
        let of = |(function, _): (usize, _)| {
            let counter = earlier.get(function).copied().flatten();
            let earlier = counter.map_or(0, |counter| u64::try_from(columns.sum(counter)).unwrap_or(0));
            let outcome = outcomes.get(function).copied().flatten().unwrap_or_default();
            UntimedCalls { function, left_by_tail_jump: outcome.left_by_tail_jump, earlier }
        };
        timed.map(of).collect()
    }
}

/// Adds times to a profile of the contexts of a tree.
pub(super) fn with_times(profile: &mut Option<ContextProfile>, timed: Vec<UntimedCalls>, times: Vec<CallTimes>) {
    if let Some(profile) = profile {
        (profile.timed, profile.times) = (timed, times);
    }
}

/// The times in each context, from the buckets that were counted below contexts of the tree.
fn times(values: &[CountedValue], tree: &ContextTree, scale: Scale) -> Vec<CallTimes> {
    let mut all: BTreeMap<(Option<usize>, u32), Vec<&CountedValue>> = BTreeMap::new();
    for value in values {
        // A call without a context of its own has that of its caller, which says nothing.
        let is_own = |index: &usize| tree.contexts.get(*index).is_some_and(|of| of.function == value.function);
        all.entry((value.context.filter(is_own), value.function)).or_default().push(value);
    }
    let of = |((context, function), values): ((Option<usize>, u32), Vec<&CountedValue>)| CallTimes {
        context,
        function: (function as usize).saturating_sub(1),
        times: distribution(&values, scale),
    };
    all.into_iter().map(of).collect()
}

/// The distribution of the times in buckets. The largest one is exact if it is alone in its bucket, and so is the smallest one.
fn distribution(values: &[&CountedValue], scale: Scale) -> Distribution {
    let mut slots = vec![0_u64; (HEAD + RESOLUTION.buckets()) as usize];
    let (mut sum, mut own, mut count) = (0_u64, 0_u64, 0_u64);
    let sum_of = |value: &CountedValue, metric: u8| value.metrics[metric as usize].cast_unsigned();
    let mut ends: Option<(&CountedValue, &CountedValue)> = None;
    for value in values {
        let bucket = usize::try_from(value.value).ok().and_then(|bucket| slots.get_mut(HEAD as usize + bucket));
        let Some(slot) = bucket else { continue };
        *slot = slot.saturating_add(value.count);
        count = count.saturating_add(value.count);
        sum = sum.wrapping_add(sum_of(value, SUM));
        own = own.wrapping_add(sum_of(value, OWN_SUM));
        let (first, last) = ends.unwrap_or((value, value));
        ends = Some((
            if value.value < first.value { value } else { first },
            if value.value > last.value { value } else { last },
        ));
    }
    let Some((first, last)) = ends else { return Distribution::default() };
    let bounds = |value: &CountedValue| RESOLUTION.bounds(u32::try_from(value.value).unwrap_or(0));
    let alone = |value: &CountedValue| (value.count == 1).then(|| sum_of(value, SUM));
    slots[0] = sum;
    slots[1] = alone(last).unwrap_or_else(|| bounds(last).1.saturating_sub(1));
    slots[2] = !alone(first).unwrap_or_else(|| bounds(first).0);
    slots[OWN as usize] = own.saturating_add(count);
    let times = Distribution::from_slots(RESOLUTION, &slots, scale);
    Distribution { squares: None, ..times }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(context: Option<usize>, function: u32, times: &[u64]) -> Vec<CountedValue> {
        let mut all: BTreeMap<u32, CountedValue> = BTreeMap::new();
        for time in times {
            let bucket = RESOLUTION.bucket_of(*time);
            let empty = CountedValue { context, function, value: i64::from(bucket), count: 0, metrics: [0; 4] };
            let value = all.entry(bucket).or_insert(empty);
            value.count += 1;
            value.metrics[SUM as usize] += *time as i64;
            value.metrics[OWN_SUM as usize] += 1;
        }
        all.into_values().collect()
    }

    fn of(times: &[u64], scale: Scale) -> Distribution {
        distribution(&counted(None, 1, times).iter().collect::<Vec<_>>(), scale)
    }

    #[test]
    fn buckets_become_a_distribution() {
        let times = of(&[100, 10_001, 10_002, 70_000], Scale::ONE);
        assert_eq!((times.count, times.sum, times.own), (4, 90_103, Some(4)));
        assert_eq!((times.min, times.max), (100, 70_000), "alone in their buckets");
        assert_eq!((times.squares, times.buckets.len()), (None, 3));
        let crowded = of(&[70_000, 70_001], Scale::ONE);
        assert!(
            crowded.min <= 70_000 && crowded.max >= 70_001 && crowded.max - crowded.min < 70_000 / 32,
            "{crowded:?}"
        );
        assert_eq!(of(&[], Scale::ONE), Distribution::default());
        // Ticks of half a nanosecond.
        let halved = of(&[200, 1 << 43], Scale { mult: 1, shift: 1 });
        assert_eq!((halved.sum, halved.min, halved.max), (100 + (1 << 42), 100, 1 << 42));
    }

    #[test]
    fn times_are_those_of_contexts_of_their_function() {
        let mut tree = ContextTree::default();
        let context = |function, parent| ingraft_model::contexts::TreeContext {
            parent,
            function,
            return_address: 1,
            calls: 5,
            back: None,
            metrics: [0; 4],
        };
        tree.contexts = vec![context(1, None), context(2, Some(0))];
        let values = [counted(Some(1), 2, &[100, 200]), counted(Some(0), 2, &[300]), counted(None, 1, &[400])].concat();
        let times = times(&values, &tree, Scale::ONE);
        let rows: Vec<_> = times.iter().map(|of| (of.context, of.function, of.times.sum)).collect();
        assert_eq!(rows, [(None, 0, 400), (None, 1, 300), (Some(1), 1, 300)]);
    }
}
