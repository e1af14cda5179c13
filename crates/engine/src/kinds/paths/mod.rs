//! Counts of the paths of functions, by Ball and Larus, "Efficient path profiling" (1996), through whole functions as in Ammons, Ball and Larus,
//! "Exploiting hardware performance counters with flow and context sensitive profiling" (1997).
//!
//! `plan.rs` numbers the paths of a function (crate `ingraft-profile`), and makes the code. `answer.rs` makes a profile of the counts.

mod answer;
mod plan;

use ingraft_model::layout::COUNTERS;
use ingraft_model::{Activations, BlockId, FunctionId, KeyTable, Offset, Refusal, Shape};
use ingraft_report::SavedProfile;

use crate::api::{InspectedPath, PathChoice, PathsOptions, Removed};
use crate::error::Error;
use crate::measure::request::{WantedPair, refuse_large};
use crate::measure::sizes;
use crate::program::modules::Modules;
use crate::readings::values::{Columns, Ruler, Slots};
use crate::session::{InsertedPairs, KindRequest, Locked, Running};
use crate::weaving::positions::Observer;
use crate::weaving::trial::text_of;

use super::profile::functions::{Functions, Plan as _, Profiled, tell_last};
use super::whole;

use self::answer::CountedPaths;
use self::plan::PathsPlan;

/// Name of the metric that the pairs have.
const METRIC: &str = "path_profile";

/// Counts of the paths of functions.
pub struct PathsKind {
    options: PathsOptions,
    functions: Functions<PathsPlan>,
    /// The last counts, read before the code was taken out.
    last: Option<Result<SavedProfile, Error>>,
}

impl PathsKind {
    /// Counts that have not begun.
    pub fn new(options: &PathsOptions) -> Self {
        PathsKind { options: *options, functions: Functions::default(), last: None }
    }

    /// Counts of all paths, and of the blocks and edges on them, at one moment at which all threads are held.
    pub fn read(&self, at: &Locked<'_>) -> Result<SavedProfile, Error> {
        let mut all: Vec<CountedPaths> = Vec::new();
        let moment = self.functions.observe(at, &mut |columns| {
            let open = columns.open();
            let of = |f: &Profiled<PathsPlan>| {
                let Some(pair) = at.pair(&f.key) else { return CountedPaths::default() };
                let (counters, variables) = (pair.counters(), pair.variables());
                let Some((calls, broken_off)) = PathsPlan::outcomes(counters) else { return CountedPaths::default() };
                CountedPaths {
                    is_known: true,
                    counts: f.plan.counts(&table(columns, counters.first(), variables.first().map(|v| v.shape))),
                    outcomes: outcomes(columns, calls),
                    broken_off: columns.sum(broken_off).cast_unsigned(),
                    open: open.get(&(COUNTERS + 8 * calls)).copied().unwrap_or(0),
                }
            };
            all = self.functions.all.iter().map(of).collect();
        })?;
        let (family, none) = (at.has_family(), CountedPaths::default());
        let saved = self
            .functions
            .saved(at, |n, f, module| all.get(n).unwrap_or(&none).profile(at.modules(), &f.plan, module, family));
        Ok(SavedProfile { held_ns: moment.held_ns(), ..saved })
    }
}

impl Running for PathsKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let PathsKind { options, functions, .. } = self;
        let named = whole::functions(asked, false)?;
        refuse_large(asked.modules, &named, &asked.request.functions.join(" "))?;
        Ok(functions.wanted_as_a_whole(asked, (&named, METRIC), |function, text| {
            PathsPlan::new((asked.modules, text), function, options)
        }))
    }

    fn reserved(&self) -> u64 {
        sizes::AWAITED
    }

    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        Ok(self.functions.prepare(at, wanted))
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        self.functions.inserted(at, begun);
    }

    fn failed(&mut self, _: &mut Locked<'_>) {
        self.functions.failed();
    }

    fn last(&mut self, at: &mut Locked<'_>) {
        self.last = Some(self.read(at));
    }

    fn ended(&mut self, _: &mut Locked<'_>, removed: &mut Removed) {
        tell_last(self.last.take(), removed);
    }
}

/// Number of the paths of a function, and the path with a number.
pub(super) fn inspected(
    modules: &Modules,
    function: FunctionId,
    PathChoice { number, options }: PathChoice,
) -> Result<(u64, Option<InspectedPath>), Refusal> {
    let (plan, _) = PathsPlan::new((modules, &text_of(modules, function.module)), function, &options)?;
    let graph = plan.graph();
    let at =
        |block: BlockId| graph.cfg.blocks.get(block).map(|block| Offset::between(graph.first.0, block.range.start.0));
    let possible = plan.paths.paths().unsigned_abs();
    let path = i64::try_from(number).ok().filter(|_| number < possible).and_then(|number| plan.paths.path(number));
    let path = path.map(|path| InspectedPath {
        number,
        possible,
        begins: path.begins,
        blocks: path.blocks.iter().filter_map(|block| at(*block)).collect(),
        ends: path.ends,
        next: path.next.and_then(at),
    });
    Ok((possible, path))
}

/// The values by key of a variable, of all threads together.
fn table(columns: &Columns<'_>, first: Option<&u32>, shape: Option<Shape>) -> KeyTable {
    let Some((first, shape)) = first.zip(shape) else { return KeyTable::default() };
    let mut sum = KeyTable::default();
    for (_, raw) in columns.threads(Slots { first: *first, shape }, &[], Ruler::PLAIN) {
        raw.table.iter().for_each(|table| sum.merge(table));
    }
    sum
}

/// Numbers of calls by outcome.
fn outcomes(columns: &Columns<'_>, first: u32) -> Activations {
    columns.together(Slots { first, shape: Shape::Counter }, &[first], Ruler::PLAIN).1
}
