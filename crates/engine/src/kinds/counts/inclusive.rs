//! Inclusive event totals of counts: the event clock, the pairs that follow calls, and the totals at one moment.

use std::sync::Arc;

use ingraft_model::{BlockId, Focus, Key, Shape, Tid, VariableKind};
use ingraft_report::InclusiveTotal;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{MeasurementId, MetricFocus};
use crate::error::Error;
use crate::kinds::code::metric_named;
use crate::kinds::profile::functions::{Functions, Moment, Plan as _, Profiled};
use crate::kinds::profile::stands::Stand;
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::modules::Modules;
use crate::readings::values::{NonzeroCounters, Rows};
use crate::session::Locked;
use crate::weaving::catch_up::CaughtUp;
use crate::weaving::positions::ProgramCounters;

use super::doubts;
use super::plan::CountsPlan;
use super::spans::{self, IN_PROGRESS, SpanCounters};

/// Number of counters of a span: its sum, its state, and four outcomes of its calls.
const SLOTS: usize = 6;
const STATE: usize = 1;
const OUTCOMES: usize = 2;

/// State of the inclusive totals of a measurement.
#[derive(Debug, Default)]
pub struct EventClock {
    /// Counter of the event clock; `None` without inclusive totals.
    counter: Option<u32>,
    /// Whether the clock belongs to an insertion in progress.
    is_new: bool,
    /// For spans that were in progress when counting began, by the first counter of their activations: the events of the runs that their threads
    /// had begun, which their sums have too much.
    late: FxHashMap<u32, i64>,
    /// Reason why spans that were in progress when counting began may be missing.
    uncaught: Option<&'static str>,
}

/// The spans of a profile whose totals are read, and their counters.
pub struct Sought {
    /// The event clock, then [`SLOTS`] counters of each span.
    pub counters: Vec<u32>,
    spans: Vec<Span>,
    /// Totals that are not measured, by function, and by its block for a call.
    missing: Vec<(usize, Option<BlockId>, String)>,
}

/// A span whose total is read.
struct Span {
    /// Index of the function in the profile.
    function: usize,
    /// Block that the call ends; `None` for the function.
    block: Option<BlockId>,
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
pub struct OfFunction {
    /// The function with all that it calls.
    pub whole: InclusiveTotal,
    /// The calls that it makes, each with the block that it ends.
    pub calls: Vec<(usize, InclusiveTotal)>,
}

/// The owner of a pair that has no value for clients.
fn hidden(measurement: MeasurementId) -> Owner {
    Owner { measurement, purpose: PairPurpose::Hidden }
}

/// The key of the pair of another metric beside that of a function.
fn beside(key: &PairKey, metric: &str, measurement: MeasurementId) -> PairKey {
    let pair = MetricFocus { metric: metric.to_owned(), focus: key.pair().focus.clone() };
    PairKey::owned(hidden(measurement), Arc::new(pair))
}

/// The key of the pair with the event clock.
fn clock_key(measurement: MeasurementId) -> PairKey {
    let pair = MetricFocus { metric: spans::CLOCK.to_owned(), focus: Focus::default() };
    PairKey::owned(hidden(measurement), Arc::new(pair))
}

impl EventClock {
    /// Adds what inclusive totals need to pairs that count functions: their code also adds to the event clock, and further pairs follow the
    /// calls.
    pub fn prepare(
        &mut self,
        at: &mut Locked<'_>,
        functions: &Functions<CountsPlan>,
        wanted: &mut Vec<WantedPair>,
    ) -> Result<(), Error> {
        if !wanted.iter().any(|w| functions.plan_of(w).is_some()) {
            return Ok(());
        }
        let clock = match self.counter {
            Some(known) => known,
            None => self.begin_clock(at)?,
        };
        let mut more = Vec::new();
        for w in wanted.iter_mut() {
            let Some(plan) = functions.plan_of(w) else { continue };
            let Some(spans) = &plan.spans else { continue };
            let function = plan.graph().function;
            w.instrumentation = plan.counting(Arc::clone(&w.instrumentation.metric), Some(clock));
            let codes = [Some(spans.of_function(function, clock)), spans.of_calls(function, clock)];
            more.extend(codes.into_iter().flatten().map(|instrumentation| {
                let metric = instrumentation.metric.name.clone();
                let pair = Arc::new(MetricFocus { metric, focus: w.pair.focus.clone() });
                WantedPair { function: w.function, ..WantedPair::owned(hidden(at.id()), pair, instrumentation) }
            }));
        }
        wanted.append(&mut more);
        Ok(())
    }

    /// Takes a counter for the event clock. A pair without code holds it, so that it is given back like those of other pairs.
    fn begin_clock(&mut self, at: &mut Locked<'_>) -> Result<u32, Error> {
        let variable = spans::variable("clock".to_owned(), VariableKind::Counter, Shape::Counter);
        let counter = at.hold_counter(clock_key(at.id()), metric_named(spans::CLOCK), variable)?;
        (self.counter, self.is_new) = (Some(counter), true);
        Ok(counter)
    }

    /// Gives the clock back whose insertion has failed.
    pub fn failed(&mut self, at: &mut Locked<'_>) {
        if std::mem::take(&mut self.is_new) {
            self.counter = None;
            at.release_counter(&clock_key(at.id()));
        }
    }

    /// The key of the clock's pair, which is inserted now; `None` without inclusive totals.
    pub fn key(&mut self, at: &Locked<'_>) -> Option<PairKey> {
        self.is_new = false;
        self.counter.map(|_| clock_key(at.id()))
    }

    /// Notes that code of a library has run before it was inserted.
    pub fn note_late_library(&mut self) {
        self.uncaught = Some("what ran in a library before it was measured is missing");
    }

    /// Notes the spans that were in progress when functions were inserted. `functions` has the new ones, each with its threads inside of runs.
    pub fn begin(&mut self, at: &Locked<'_>, functions: &[Profiled<CountsPlan>], caught_up: &CaughtUp, is_first: bool) {
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
            let Some(event) = f.plan.inclusive.map(|of| of.event) else { continue };
            for stand in f.late.iter().map(|late| &late.stand) {
                let sum = late.entry(stand.tid).or_default();
                *sum = sum.wrapping_add(events_of(at.modules(), &f.plan, stand, event));
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
fn events_of(modules: &Modules, plan: &CountsPlan, stand: &Stand, event: usize) -> i64 {
    plan.executed(modules, stand).get(event).copied().unwrap_or_default()
}

impl Sought {
    /// The spans of the functions. Without inclusive totals there are none.
    pub fn of(at: &Locked<'_>, functions: &Functions<CountsPlan>, clock: &EventClock) -> Sought {
        let mut sought = Sought { counters: Vec::new(), spans: Vec::new(), missing: Vec::new() };
        let Some(clock) = clock.counter else { return sought };
        sought.counters.push(clock);
        for (n, f) in functions.all.iter().enumerate() {
            let Some(spans) = &f.plan.spans else { continue };
            sought.add(at, (n, None, 0), &beside(&f.key, spans::FUNCTIONS, at.id()));
            let key = beside(&f.key, spans::CALLS, at.id());
            let mut number = 0;
            for call in &spans.calls {
                match &call.points {
                    Ok(_) => {
                        sought.add(at, (n, Some(call.block), number), &key);
                        number += 1;
                    }
                    Err(why) => sought.missing.push((n, Some(call.block), why.clone())),
                }
            }
        }
        sought
    }

    fn add(&mut self, at: &Locked<'_>, (function, block, number): (usize, Option<BlockId>, usize), key: &PairKey) {
        let missing = |why: &str| (function, block, why.to_owned());
        let Some(pair) = at.pair(key) else {
            return self.missing.push(missing("the code that follows the calls was taken out"));
        };
        let counters = SpanCounters::of(pair.counters(), number).filter(|_| pair.was_woven());
        let Some(SpanCounters { sum, state, activations }) = counters else {
            let refused = pair.refusals().first().map(|(_, refused)| refused.reason.to_string());
            let why = refused.unwrap_or_else(|| "the code that follows the calls is not in the target".to_owned());
            return self.missing.push(missing(&why));
        };
        self.counters.extend([sum, state]);
        self.counters.extend((0..4).map(|n| activations + n));
        self.spans.push(Span { function, block, activations });
    }

    /// The totals of each function. `rows` has the values of the counters by thread.
    pub fn totals(
        &self,
        at: &Locked<'_>,
        (functions, clock): (&Functions<CountsPlan>, &EventClock),
        moment: &Moment,
        rows: &Rows,
    ) -> Vec<OfFunction> {
        let mut all = vec![OfFunction::default(); functions.all.len()];
        if self.counters.is_empty() {
            return all;
        }
        let sums = self.sums(&begun(at, functions, &moment.seen), &moment.seen, rows);
        let mut common = doubts::of_totals(at, functions, moment);
        common.extend(clock.uncaught.map(str::to_owned));
        if rows.held.iter().any(|(tid, row)| tid.is_none() && !row.is_empty()) {
            common.push("threads without counters of their own are not followed".to_owned());
        }
        let mut put = |function: usize, block: Option<BlockId>, total: InclusiveTotal| {
            let Some(of) = all.get_mut(function) else { return };
            match block {
                None => of.whole = total,
                Some(block) => of.calls.push((block.index(), total)),
            }
        };
        for (span, sum) in self.spans.iter().zip(sums) {
            let late = clock.late.get(&span.activations).copied().unwrap_or_default();
            put(span.function, span.block, sum.total(late, &common));
        }
        for (function, block, why) in &self.missing {
            put(*function, *block, InclusiveTotal { events: None, inexact: Some(why.clone()) });
        }
        all.iter_mut().for_each(|of| of.calls.sort_by_key(|(block, _)| *block));
        all
    }

    /// The sums of each span over all threads. `begun` has the events of the runs that threads are in.
    fn sums(&self, begun: &FxHashMap<Tid, i64>, seen: &ProgramCounters, rows: &Rows) -> Vec<Sum> {
        let living: FxHashSet<Tid> = seen.threads.iter().copied().collect();
        let over = seen.threads.is_empty();
        let mut sums = vec![Sum::default(); self.spans.len()];
        for (tid, row) in &rows.held {
            let lives = tid.filter(|tid| over || living.contains(tid));
            add(&mut sums, row, lives.map(|tid| begun.get(&tid).copied().unwrap_or_default()));
        }
        // Open calls of threads that have ended count as left already.
        let is_state = |index: usize| index.checked_sub(1).is_some_and(|place| place % SLOTS == STATE);
        let over_with: NonzeroCounters = rows.ended.iter().filter(|(index, _)| !is_state(*index)).copied().collect();
        add(&mut sums, &over_with, None);
        sums
    }
}

/// Events of the runs that threads are in, which the event clock does not have yet, by thread.
fn begun(at: &Locked<'_>, functions: &Functions<CountsPlan>, seen: &ProgramCounters) -> FxHashMap<Tid, i64> {
    let mut begun: FxHashMap<Tid, i64> = FxHashMap::default();
    for (n, stands) in functions.stands(at, seen) {
        let plan = functions.all.get(n).map(|f| &*f.plan);
        let Some((plan, of)) = plan.and_then(|plan| Some((plan, plan.inclusive?))) else { continue };
        for stand in &stands {
            let sum = begun.entry(stand.tid).or_default();
            *sum = sum.wrapping_add(events_of(at.modules(), plan, stand, of.event));
        }
    }
    begun
}

/// Adds the values of a thread to the sums. `begun` is what the event clock lacks; `None` if spans in progress are not those of one thread that
/// is there.
fn add(sums: &mut [Sum], row: &NonzeroCounters, begun: Option<i64>) {
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
