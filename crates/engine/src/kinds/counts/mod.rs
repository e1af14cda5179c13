//! Counts: exact counts of all blocks and edges of functions, from counters on some of them.
//!
//! `plan.rs` cuts the control-flow graph of a function at its calls, chooses the counters (crate `ingraft-profile`), and makes the code for
//! them. `result.rs` derives all counts from the counters and the positions of threads. `totals.rs` sums up events by thread. `spans.rs` makes
//! the code for events of functions with all that they call, and `inclusive.rs` reads them. `doubts.rs` tells why counts are not exact.

mod doubts;
mod inclusive;
mod plan;
mod result;
mod spans;
pub mod totals;

use ingraft_model::EVENT_NAMES;
use ingraft_profile::{Partial, Position};
use ingraft_report::{ProfileKind, SavedProfile};
use rustc_hash::FxHashMap;

use crate::api::{CountsOptions, Removed};
use crate::error::{Error, Reason};
use crate::measure::request::{Missing, WantedPair, refuse_large};
use crate::measure::sizes;
use crate::readings::values::Rows;
use crate::session::{InsertedPairs, KindRequest, Locked, Occasion, Running};
use crate::weaving::positions::Observer;

use super::profile::functions::{Functions, Plan as _, tell_last};
use super::profile::leaps::LeapCounter;
use super::profile::stands::Stand;
use super::whole;

use self::doubts::{CountDoubts, suspects};
use self::inclusive::{EventClock, OfFunction, Sought};
use self::plan::{CountsPlan, earlier_counts};
use self::result::CounterValues;

/// Name of the metric that the pairs have.
const METRIC: &str = "edge_profile";
/// Hint at the use of earlier profiles.
const EARLIER: &str = "use a profile of the same build of the program, or leave out --weights";

/// Exact counts of functions.
pub struct CountsKind {
    options: CountsOptions,
    functions: Functions<CountsPlan>,
    clock: EventClock,
    /// The last counts, read before the code was taken out.
    last: Option<Result<SavedProfile, Error>>,
}

impl CountsKind {
    /// Counts that have not begun.
    pub fn new(options: &CountsOptions) -> Self {
        CountsKind {
            options: options.clone(),
            functions: Functions::default(),
            clock: EventClock::default(),
            last: None,
        }
    }

    /// Counts of all blocks and edges, at one moment at which all threads are held.
    pub fn read(&self, at: &Locked<'_>) -> Result<SavedProfile, Error> {
        let CountsKind { functions, clock, .. } = self;
        let counters = functions.counters(at);
        let (mut values, mut rows): (Vec<Vec<u64>>, _) = (Vec::new(), Rows::default());
        let sought = Sought::of(at, functions, clock);
        let moment = functions.observe(at, &mut |columns| {
            let sum = |counter: &u32| columns.sum(*counter).cast_unsigned();
            values = counters.iter().map(|of| of.iter().map(sum).collect()).collect();
            rows = columns.rows(&sought.counters);
        })?;
        let suspects = suspects(at, &counters, &moment);
        let inclusive = sought.totals(at, (functions, clock), &moment, &rows);
        let early = positions(functions.stands(at, &moment.seen));
        let mut saved = functions.saved(at, |n, f, module| {
            let counters = values.get(n).cloned().unwrap_or_default();
            let runs = &f.plan.runs;
            let may_have_run = !runs.tells_calls(&f.plan.graph().cfg) || counters.iter().any(|count| *count > 0);
            let unknown = if f.unknown { functions.unknown } else { 0 };
            let doubts = CountDoubts {
                taken_out: at.pair(&f.key).is_none(),
                family: at.has_family(),
                unknown: unknown + suspects.get(n).copied().unwrap_or_default(),
                leaps: moment.leaps.words().filter(|_| may_have_run),
            };
            let late = f.late.iter().filter_map(|late| late.stand.run).collect();
            let partial = Partial { late, early: early.get(&n).cloned().unwrap_or_default() };
            result::counts(at.modules(), &f.plan, &CounterValues { counters, partial, inexact: doubts.words() }, module)
        });
        let late: usize = functions.all.iter().map(|f| f.late_runs()).sum();
        let early: usize = early.values().map(Vec::len).sum();
        let event = functions.all.first().and_then(|f| f.plan.inclusive).and_then(|of| EVENT_NAMES.get(of.event));
        let details = saved.functions.iter_mut().filter_map(|function| function.details.as_mut());
        for (details, OfFunction { whole, calls }) in details.zip(inclusive) {
            (details.inclusive, details.calls) = (event.map(|_| whole), calls);
        }
        Ok(SavedProfile {
            kind: ProfileKind::Counts,
            corrected: (late as u64, early as u64),
            held_ns: moment.held_ns(),
            inclusive: event.map_or_else(String::new, ToString::to_string),
            ..saved
        })
    }
}

impl Running for CountsKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let leaps = asked.modules.leaves_handlers(asked.target);
        let CountsKind { options, functions, .. } = self;
        let named = whole::functions(asked, false)?;
        refuse_large(asked.modules, &named, &asked.request.functions.join(" "))?;
        if let Some(earlier) = options.earlier.as_deref().filter(|_| asked.missing == Missing::Fails)
            && !named.iter().any(|function| earlier_counts(asked.modules, *function, earlier).is_some())
        {
            let what = "the earlier profile has counts of none of these functions";
            return Err(Error::new(Reason::NoEarlierCounts, what, EARLIER));
        }
        Ok(functions.wanted_as_a_whole(asked, (&named, METRIC), |function, text| {
            CountsPlan::new((asked.modules, text), function, options, leaps)
        }))
    }

    fn reserved(&self) -> u64 {
        sizes::AWAITED
    }

    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        let observer = self.functions.prepare(at, wanted.iter());
        if self.options.inclusive.is_some() {
            self.clock.prepare(at, &self.functions, wanted)?;
        }
        wanted.extend(LeapCounter::wanted(at));
        Ok(observer)
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        let (modules, is_first) = (self.functions.new_modules(), !self.functions.has_begun());
        let of_loader = at.modules().loader(at.target()).is_some_and(|loader| modules.contains(&loader));
        let new = self.functions.inserted(at, begun);
        if may_be_in_progress(begun.occasion, of_loader) {
            self.clock.begin(at, new, begun.caught_up, is_first);
        }
        if !modules.is_empty() && begun.occasion == (Occasion::Library { ran: true }) {
            self.clock.note_late_library();
        }
        begun.keys.extend(self.clock.key(at).map(|key| (key, None)));
    }

    fn failed(&mut self, at: &mut Locked<'_>) {
        self.functions.failed();
        self.clock.failed(at);
    }

    fn last(&mut self, at: &mut Locked<'_>) {
        self.last = Some(self.read(at));
    }

    fn reads_before_end(&self) -> bool {
        true
    }

    fn ended(&mut self, _: &mut Locked<'_>, removed: &mut Removed) {
        tell_last(self.last.take(), removed);
    }
}

/// Whether calls may be in progress in the functions that are inserted. `of_loader` tells whether some of them are the loader's.
fn may_be_in_progress(occasion: Occasion, of_loader: bool) -> bool {
    match occasion {
        // Of a program that the engine starts, only the loader has run.
        Occasion::Start => of_loader,
        Occasion::Running | Occasion::Library { .. } => true,
    }
}

/// The positions of threads inside of runs.
fn positions(stands: FxHashMap<usize, Vec<Stand>>) -> FxHashMap<usize, Vec<Position>> {
    let runs =
        stands.into_iter().map(|(n, stands)| (n, stands.iter().filter_map(|stand| stand.run).collect::<Vec<_>>()));
    runs.filter(|(_, positions)| !positions.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_model::{BlockId, Tid};

    #[test]
    fn only_the_loader_has_run_in_a_program_that_is_started() {
        assert!(!may_be_in_progress(Occasion::Start, false));
        assert!(may_be_in_progress(Occasion::Start, true));
        assert!(may_be_in_progress(Occasion::Running, false));
        assert!(may_be_in_progress(Occasion::Library { ran: false }, false));
    }

    #[test]
    fn threads_outside_of_runs_have_no_position() {
        let stand = |run| Stand { tid: Tid(1), run, left: None, part: (BlockId(0), None) };
        let stands = [(0, vec![stand(None)]), (1, vec![stand(None), stand(Some(Position::Block(BlockId(3))))])];
        let positions = positions(stands.into_iter().collect());
        assert_eq!(positions.into_iter().collect::<Vec<_>>(), [(1, vec![Position::Block(BlockId(3))])]);
    }
}
