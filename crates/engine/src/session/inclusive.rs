//! Inclusive event totals of a profile: its event clock, the pairs that follow calls, and the totals at one moment.

use std::sync::Arc;

use ingraft_model::{Focus, FunctionRef as MdlFunction, Shape, Tid, VariableKind};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{InclusiveTotal, MeasurementId, MetricFocus};
use crate::error::Error;
use crate::measure::request::Wanted;
use crate::profile::inclusive::{self, Counters, IN_PROGRESS};
use crate::profile::plan::Plan;
use crate::readings::values::{Row, Rows};
use crate::weaving::catch_up::CaughtUp;
use crate::weaving::cost::Meters;
use crate::weaving::positions::Seen;

use super::control::Control;
use super::doubts::Leaps;
use super::driver::Session;
use super::insert;
use super::pair::{Pair, PairKey, Unloaded};
use super::profile::{Profile, Profiled, Stand, stands};
use super::totals::{doubts, executed};
use super::view::View;

/// Number of counters of a span: its sum, its state, and four outcomes of its calls.
const SLOTS: usize = 6;
const STATE: usize = 1;
const OUTCOMES: usize = 2;

/// State of the inclusive totals of a profile.
#[derive(Debug, Default)]
pub(super) struct Clock {
    /// Counter of the event clock; `None` if the profile has no inclusive totals.
    pub(super) counter: Option<u32>,
    /// For spans that were in progress when counting began, by the first counter of their activations: the events of the runs that their threads
    /// had begun, which their sums have too much.
    late: FxHashMap<u32, i64>,
    /// Reason why spans that were in progress when counting began may be missing.
    uncaught: Option<&'static str>,
}

/// The spans of a profile whose totals are read, and their counters.
pub(super) struct Sought {
    /// The event clock, then [`SLOTS`] counters of each span.
    pub(super) counters: Vec<u32>,
    spans: Vec<Span>,
    /// Totals that are not measured, by function, and by its block for a call.
    missing: Vec<(usize, Option<usize>, String)>,
}

/// A span whose total is read.
struct Span {
    /// Index of the function in the profile.
    function: usize,
    /// Block that the call ends; `None` for the function.
    block: Option<usize>,
    /// First counter of the activations.
    activations: u32,
}

/// Sums over all threads for a span.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    events: i64,
    /// Outcomes of the calls, in the order of [`ingraft_model::Activations`].
    outcomes: [i64; 4],
    /// Number of spans in progress of threads that cannot be told from others. Those of ended threads count as left already.
    lost: i64,
}

/// Inclusive totals of a function.
#[derive(Clone, Debug, Default)]
pub(super) struct OfFunction {
    /// The function with all that it calls.
    pub(super) whole: InclusiveTotal,
    /// The calls that it makes, each with the block that it ends.
    pub(super) calls: Vec<(usize, InclusiveTotal)>,
}

/// Whether a pair follows calls for a profile, or holds its event clock. Such a pair has no value for clients.
pub(super) fn is_of_inclusive(key: &PairKey) -> bool {
    [inclusive::CLOCK, inclusive::FUNCTIONS, inclusive::CALLS].contains(&&*key.text)
}

/// The key of another pair of the same function and profile.
fn beside(key: &PairKey, metric: &str) -> PairKey {
    let pair = MetricFocus { metric: metric.to_owned(), focus: key.pair.focus.clone() };
    PairKey { helpers: Arc::clone(&key.helpers), ..PairKey::new(metric.into(), Arc::new(pair)) }
}

/// The key of the pair with the event clock of a profile.
fn clock_key(id: MeasurementId) -> PairKey {
    let pair = MetricFocus { metric: inclusive::CLOCK.to_owned(), focus: Focus::default() };
    PairKey { helpers: format!("profile {}", id.0).into(), ..PairKey::new(inclusive::CLOCK.into(), Arc::new(pair)) }
}

impl Session {
    /// Adds what inclusive totals need to a profile that asks for them: the code of the profile also adds to its event clock, and further pairs
    /// follow the calls.
    pub(super) fn begin_inclusive(
        &self,
        control: &mut Control,
        id: MeasurementId,
        wanted: &mut Vec<Wanted>,
    ) -> Result<(), Error> {
        let is_asked = |w: &Wanted| w.plan.as_ref().is_some_and(|plan| plan.inclusive().is_some());
        if !wanted.iter().any(is_asked) {
            return Ok(());
        }
        let known = control.profiles.get(&id).and_then(|profile| profile.clock.counter);
        let clock = known.map_or_else(|| self.make_clock(control, id), Ok)?;
        let mut more = Vec::new();
        for w in wanted.iter_mut() {
            let Some(plan) = w.plan.clone() else { continue };
            let Some(spans) = &plan.spans else { continue };
            w.instrumentation = plan.instrumentation(Some(clock));
            let of_function = spans.of_function(plan.function, clock);
            for instrumentation in [Some(of_function), spans.of_calls(plan.function, clock)].into_iter().flatten() {
                let metric = instrumentation.metric.name.clone();
                more.push(Wanted {
                    pair: Arc::new(MetricFocus { metric, focus: w.pair.focus.clone() }),
                    function: w.function,
                    instrumentation,
                    plan: None,
                    body: None,
                    traced: Arc::default(),
                    warnings: Vec::new(),
                    helpers: Arc::clone(&w.helpers),
                });
            }
        }
        // Pairs that were taken out because of their cost do not come again.
        let known = control.measurements.get(&id).map_or(&[][..], |measurement| &measurement.hidden.inclusive);
        let is_gone = |key: &PairKey| !control.pairs.contains_key(key) && known.iter().any(|view| view.key == *key);
        more.retain(|w| !is_gone(&PairKey::of(w)));
        wanted.append(&mut more);
        Ok(())
    }

    /// Takes a counter for the event clock of a profile. A pair without code holds it, so that it is given back like those of other pairs.
    fn make_clock(&self, control: &mut Control, id: MeasurementId) -> Result<u32, Error> {
        let limit = insert::counters_max(control);
        let counter = control.counters.take(1, limit).ok_or_else(|| insert::too_many(limit).about(self.pid()))?;
        let variable = inclusive::variable("clock".to_owned(), VariableKind::Counter, Shape::Counter);
        let pair = Pair {
            metric: crate::profile::plan::metric_named(inclusive::CLOCK),
            variables: [variable].into(),
            counters: vec![counter],
            minis: Vec::new(),
            probes: Vec::new(),
            unloaded: Unloaded::No,
            unwind_targets: Vec::new(),
            unlanded: Vec::new(),
            restores: false,
            unwoven: Vec::new(),
            unmeasured: false,
            thread: None,
            object: None,
            index_names: None,
            meters: Meters::default(),
            numberings: Vec::new(),
            group: None,
            users: 0,
        };
        control.pairs.insert(clock_key(id), pair);
        control.profiles.entry(id).or_default().clock.counter = Some(counter);
        Ok(counter)
    }

    /// Undoes the beginning of a profile whose insertion has failed.
    pub(super) fn forget_profile(control: &mut Control, id: MeasurementId) {
        let Some(profile) = control.profiles.remove(&id) else { return };
        if let Some(counter) = profile.clock.counter.filter(|_| control.pairs.remove(&clock_key(id)).is_some()) {
            control.counters.give_back(counter, 1);
        }
    }

    /// Takes the pairs that follow calls out of a list of pairs, because they have no values for clients. Returns the views of those that the
    /// measurement does not have yet, and of its event clock.
    pub(super) fn split_inclusive(
        &self,
        control: &Control,
        id: MeasurementId,
        keys: &mut Vec<(PairKey, Option<MdlFunction>)>,
    ) -> Vec<View> {
        let mut own: Vec<_> = keys.extract_if(.., |(key, _)| is_of_inclusive(key)).collect();
        own.push((clock_key(id), None));
        let known = control.measurements.get(&id).map_or(&[][..], |measurement| &measurement.hidden.inclusive);
        let known: FxHashSet<&PairKey> = known.iter().map(|view| &view.key).collect();
        own.retain(|(key, _)| !known.contains(key));
        self.views(control, &own)
    }
}

impl Clock {
    /// Notes that code of a library has run before it was inserted.
    pub(super) fn note_late_library(&mut self) {
        self.uncaught = Some("what ran in a library before it was measured is missing");
    }

    /// Notes the spans that were in progress when functions were inserted. `functions` has the new ones, each with its threads inside of runs.
    pub(super) fn note(&mut self, control: &Control, functions: &[Profiled], caught_up: &CaughtUp, is_first: bool) {
        if self.counter.is_none() || functions.is_empty() {
            return;
        }
        if !caught_up.missed.is_empty() || caught_up.not_unwound > 0 {
            self.uncaught = Some("calls that were in progress when counting began may be missing");
        } else if !caught_up.opened.is_empty() && !is_first {
            self.uncaught =
                Some("calls that were in progress when a library was loaded may be wrong by the events of one run");
        }
        let mut late: FxHashMap<Tid, i64> = FxHashMap::default();
        for f in functions {
            let Some(event) = f.plan.inclusive().map(|of| of.event) else { continue };
            for stand in f.late.iter().map(|late| &late.stand) {
                let sum = late.entry(stand.tid).or_default();
                *sum = sum.wrapping_add(events_of(control, &f.plan, stand, event));
            }
        }
        // Of a recursion, only the outermost call adds to the sum.
        let opened: FxHashSet<(Tid, u32)> = caught_up.opened.iter().copied().collect();
        for (tid, activations) in opened {
            let Some(events) = late.get(&tid) else { continue };
            let sum = self.late.entry(activations).or_default();
            *sum = sum.wrapping_add(*events);
        }
    }
}

/// Events that a thread has executed besides those on the event clock.
fn events_of(control: &Control, plan: &Plan, stand: &Stand, event: usize) -> i64 {
    executed(control, plan, stand).get(event).copied().unwrap_or_default()
}

impl Sought {
    /// The spans of a profile. Without inclusive totals there are none.
    pub(super) fn of(control: &Control, profile: &Profile) -> Sought {
        let mut sought = Sought { counters: Vec::new(), spans: Vec::new(), missing: Vec::new() };
        let Some(clock) = profile.clock.counter else { return sought };
        sought.counters.push(clock);
        for (n, f) in profile.functions.iter().enumerate() {
            let Some(spans) = &f.plan.spans else { continue };
            sought.add(control, (n, None, 0), &beside(&f.key, inclusive::FUNCTIONS));
            let key = beside(&f.key, inclusive::CALLS);
            let mut number = 0;
            for call in &spans.calls {
                match &call.place {
                    Ok(_) => {
                        sought.add(control, (n, Some(call.block), number), &key);
                        number += 1;
                    }
                    Err(why) => sought.missing.push((n, Some(call.block), why.clone())),
                }
            }
        }
        sought
    }

    fn add(&mut self, control: &Control, (function, block, number): (usize, Option<usize>, usize), key: &PairKey) {
        let missing = |why: &str| (function, block, why.to_owned());
        let Some(pair) = control.pairs.get(key) else {
            return self.missing.push(missing("the code that follows the calls was taken out"));
        };
        // The code of an unloaded library is gone, its counters are not.
        let was_woven = !pair.minis.is_empty() || pair.unloaded != Unloaded::No;
        let counters = Counters::of(&pair.counters, number).filter(|_| was_woven);
        let Some(Counters { sum, state, activations }) = counters else {
            let refused = pair.unwoven.first().map(|(_, refused)| refused.reason.to_string());
            let why = refused.unwrap_or_else(|| "the code that follows the calls is not in the target".to_owned());
            return self.missing.push(missing(&why));
        };
        self.counters.extend([sum, state]);
        self.counters.extend((0..4).map(|n| activations + n));
        self.spans.push(Span { function, block, activations });
    }

    /// The totals of each function. `rows` has the values of the counters by thread.
    pub(super) fn totals(
        &self,
        (control, profile): (&Control, &Profile),
        (seen, ended, leaps): (&Seen, u64, &Leaps),
        rows: &Rows,
    ) -> Vec<OfFunction> {
        let mut all = vec![OfFunction::default(); profile.functions.len()];
        if self.counters.is_empty() {
            return all;
        }
        let begun = begun(control, profile, seen);
        let living: FxHashSet<Tid> = seen.threads.iter().copied().collect();
        let over = seen.threads.is_empty();
        let mut sums = vec![Sum::default(); self.spans.len()];
        for (tid, row) in &rows.held {
            let lives = tid.filter(|tid| over || living.contains(tid));
            add(&mut sums, row, lives.map(|tid| begun.get(&tid).copied().unwrap_or_default()));
        }
        // Open calls of threads that have ended count as left already.
        let is_state = |index: usize| index.checked_sub(1).is_some_and(|place| place % SLOTS == STATE);
        let over_with: Row = rows.ended.iter().filter(|(index, _)| !is_state(*index)).copied().collect();
        add(&mut sums, &over_with, None);
        let mut common = doubts(control, profile, seen, ended);
        common.extend(leaps.words());
        common.extend(profile.clock.uncaught.map(str::to_owned));
        if rows.held.iter().any(|(tid, row)| tid.is_none() && !row.is_empty()) {
            common.push("threads without counters of their own are not followed".to_owned());
        }
        for (span, sum) in self.spans.iter().zip(sums) {
            let late = profile.clock.late.get(&span.activations).copied().unwrap_or_default();
            let total = sum.total(late, &common);
            let Some(of) = all.get_mut(span.function) else { continue };
            match span.block {
                None => of.whole = total,
                Some(block) => of.calls.push((block, total)),
            }
        }
        for (function, block, why) in &self.missing {
            let total = InclusiveTotal { events: None, inexact: Some(why.clone()) };
            let Some(of) = all.get_mut(*function) else { continue };
            match block {
                None => of.whole = total,
                Some(block) => of.calls.push((*block, total)),
            }
        }
        all.iter_mut().for_each(|of| of.calls.sort_by_key(|(block, _)| *block));
        all
    }
}

/// Events of the runs that threads are in, which the event clock does not have yet, by thread.
fn begun(control: &Control, profile: &Profile, seen: &Seen) -> FxHashMap<Tid, i64> {
    let mut begun: FxHashMap<Tid, i64> = FxHashMap::default();
    let Some(attached) = &control.attached else { return begun };
    let plans: Vec<&Plan> = profile.functions.iter().map(|f| &*f.plan).collect();
    for (n, stands) in stands(control, &attached.woven, &plans, seen, false) {
        let Some((plan, of)) = plans.get(n).and_then(|plan| Some((plan, plan.inclusive()?))) else { continue };
        for stand in &stands {
            let sum = begun.entry(stand.tid).or_default();
            *sum = sum.wrapping_add(events_of(control, plan, stand, of.event));
        }
    }
    begun
}

/// Adds the values of a thread to the sums. `begun` is what the event clock lacks; `None` if spans in progress are not those of one thread that
/// is there.
fn add(sums: &mut [Sum], row: &Row, begun: Option<i64>) {
    let clock = row.first().filter(|(index, _)| *index == 0).map_or(0, |(_, value)| *value);
    for (index, value) in row {
        let Some(place) = index.checked_sub(1) else { continue };
        let Some(sum) = sums.get_mut(place / SLOTS) else { continue };
        match (place % SLOTS, begun) {
            (0, _) => sum.events = sum.events.wrapping_add(*value),
            (STATE, Some(begun)) => {
                let since = clock.wrapping_add(begun).wrapping_add(IN_PROGRESS).wrapping_sub(*value);
                sum.events = sum.events.wrapping_add(since);
            }
            (STATE, None) => sum.lost += 1,
            (outcome, _) => {
                if let Some(number) = sum.outcomes.get_mut(outcome - OUTCOMES) {
                    *number = number.wrapping_add(*value);
                }
            }
        }
    }
}

impl Sum {
    /// The total, with the reasons why it is not exact. `late` is to be taken away.
    fn total(self, late: i64, common: &[String]) -> InclusiveTotal {
        let [left, unseen, unrecorded, jumped] = self.outcomes;
        let mut reasons = Vec::new();
        for (number, why) in [
            (left + self.lost, "left by exceptions, by longjmp or with their threads"),
            (unseen, "in progress when counting began"),
            (unrecorded, "not followed, because their threads had no room for another record"),
            (jumped, "ended by a jump to a function that is not known"),
        ] {
            match number {
                0 => {}
                1 => reasons.push(format!("1 call was {why}, and its events are missing")),
                n => reasons.push(format!("{n} calls were {why}, and their events are missing")),
            }
        }
        reasons.extend_from_slice(common);
        let events = u64::try_from(self.events.wrapping_sub(late)).ok();
        if events.is_none() {
            reasons.push("no execution has these counts".to_owned());
        }
        InclusiveTotal { events, inexact: (!reasons.is_empty()).then(|| reasons.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: i64 = IN_PROGRESS;

    #[test]
    fn spans_in_progress_count_up_to_the_present_instruction() {
        let mut sums = vec![Sum::default(); 2];
        // The clock, the sum and the state of the first span, and the state of the second one.
        let row = vec![(0, 100), (1, 30), (2, FIRST + 60), (1 + SLOTS + STATE, FIRST)];
        add(&mut sums, &row, Some(7));
        assert_eq!(sums[0].total(0, &[]).events, Some(30 + 100 + 7 - 60));
        assert_eq!(sums[1].total(5, &[]), InclusiveTotal { events: Some(107 - 5), inexact: None });
        // Of another thread, the clock is 0, and a run that it was in has begun before.
        add(&mut sums, &vec![(2, FIRST - 4)], Some(0));
        assert_eq!(sums[0].total(0, &[]).events, Some(77 + 4));
    }

    #[test]
    fn what_is_missing_is_told() {
        let mut sums = vec![Sum::default()];
        add(&mut sums, &vec![(0, 9), (1, 8), (2, FIRST), (3, 1), (6, 2)], None);
        let total = sums[0].total(0, &["a doubt".to_owned()]);
        assert_eq!(total.events, Some(8));
        let why = total.inexact.expect("a reason");
        assert_eq!(
            why,
            "2 calls were left by exceptions, by longjmp or with their threads, and their events are missing; \
             2 calls were ended by a jump to a function that is not known, and their events are missing; a doubt"
        );
        assert_eq!(Sum { events: 3, ..Sum::default() }.total(4, &[]).events, None);
    }
}
