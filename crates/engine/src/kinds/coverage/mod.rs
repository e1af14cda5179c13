//! Coverage: the blocks and edges of functions that have run. A probe is taken out when it has told that its place has run.
//!
//! A round reads the counters of the probes in shared memory, without a stop. All probes that have counted, and those whose answers follow
//! from these, are removed in one stop.

mod answers;
mod rounds;

use std::sync::Arc;
use std::time::Instant;

use ingraft_model::{FunctionId, Instrumentation, MetricInfo, Placing, Refusal};
use ingraft_profile::{Coverage, Inside, ProbeAt, coverage_probes};
use ingraft_report::{ProfileKind, SavedProfile};
use rustc_hash::FxHashSet;

use crate::api::{CoverageOptions, Removed};
use crate::background::each;
use crate::error::Error;
use crate::measure::request::WantedPair;
use crate::measure::sizes;
use crate::pairs::{Pair, PairKey};
use crate::program::modules::Modules;
use crate::readings::values::Columns;
use crate::session::{InsertedPairs, KindRequest, Locked, Running};
use crate::weaving::positions::Observer;

use super::graph::FunctionGraph;
use super::profile::functions::{Functions, Plan, Profiled, tell_last};
use super::profile::leaps::LeapCounter;
use super::whole;

use self::answers::{ProbeAnswers, covered, profile, settled};
use self::rounds::Rounds;

/// Name of the metric that the pairs have.
const METRIC: &str = "coverage";

/// The coverage of functions.
pub struct CoverageKind {
    options: CoverageOptions,
    functions: Functions<CoveragePlan>,
    rounds: Rounds,
    /// The last coverage, read before the code was taken out.
    last: Option<Result<SavedProfile, Error>>,
}

/// The plan to cover one function.
#[derive(Debug)]
pub struct CoveragePlan {
    graph: FunctionGraph,
    /// Probes that tell what has run.
    probes: Vec<ProbeAt>,
    /// Whether the function is not copied, so that blocks without room in the text have no probe.
    in_place: bool,
}

impl Plan for CoveragePlan {
    fn graph(&self) -> &FunctionGraph {
        &self.graph
    }

    fn places(&self) -> &[ProbeAt] {
        &self.probes
    }

    fn instrumentation(&self, metric: Arc<MetricInfo>) -> Instrumentation {
        let insertions = self.graph.counting(&self.probes, metric);
        let placing = if self.in_place { Placing::InText } else { Placing::Anywhere };
        Instrumentation { apart: true, placing, ..insertions }
    }
}

impl CoveragePlan {
    /// Plans the probes of a function.
    fn new(modules: &Modules, function: FunctionId, options: CoverageOptions) -> Result<Self, Refusal> {
        let (graph, ..) = FunctionGraph::of(modules, function)?;
        let probes = coverage_probes(&graph.cfg, options.branches);
        Ok(CoveragePlan { graph, probes, in_place: options.in_place })
    }
}

impl CoverageKind {
    /// A coverage that has not begun.
    pub fn new(options: CoverageOptions) -> Self {
        CoverageKind { options, functions: Functions::default(), rounds: Rounds::default(), last: None }
    }

    /// Returns which blocks and edges have run, at one moment at which all threads are held.
    pub fn read(&self, at: &Locked<'_>) -> Result<SavedProfile, Error> {
        let functions = &self.functions;
        let (counters, mut values): (_, Vec<Vec<u64>>) = (functions.counters(at), Vec::new());
        let moment = functions.observe(at, &mut |columns| {
            let sum = |counter: &u32| columns.sum(*counter).cast_unsigned();
            values = counters.iter().map(|of| of.iter().map(sum).collect()).collect();
        })?;
        let early = functions.stands(at, &moment.seen);
        let anywhere = !moment.seen.unknown.is_empty() || moment.cut_off > 0 || moment.leaps.any();
        let saved = functions.saved(at, |n, f, module| {
            let values = values.get(n).map_or(&[][..], Vec::as_slice);
            let in_run = early.get(&n).is_some_and(|stands| stands.iter().any(|stand| stand.run.is_some()));
            let inside = Inside { begin: f.began_inside(), end: anywhere || in_run };
            let CoveragePlan { graph, probes, .. } = &*f.plan;
            let answers = at.pair(&f.key).map(|pair| ProbeAnswers::new(pair.probes(), pair.came_back(), values));
            let answers = answers.unwrap_or_else(|| ProbeAnswers::without_code(probes.len()));
            let (coverage, why) = covered(&answers, &graph.cfg, probes, inside);
            profile(graph, &coverage, module, why)
        });
        Ok(SavedProfile { kind: ProfileKind::Coverage, held_ns: moment.held_ns(), ..saved })
    }

    /// Takes out the probes that have told all that they can. Returns whether there were any.
    fn retire_probes(&self, at: &mut Locked<'_>) -> Result<bool, Error> {
        let told = at.columns(|columns| {
            let told = self.functions.all.iter().filter_map(|f| Some((f, news(at, columns, f)?)));
            each(&told.collect::<Vec<_>>(), |(f, (pair, came))| {
                let inside = Inside { begin: f.began_inside(), end: true };
                let (cfg, probes) = (&f.plan.graph.cfg, &f.plan.probes);
                let coverage = Coverage::told(cfg, probes, came).with_earlier(cfg, inside);
                let ids = settled(probes, &coverage).filter_map(|n| pair.probes().get(n)?.as_ref().ok().copied());
                (f.key.clone(), ids.collect::<FxHashSet<u64>>())
            })
        });
        let told: Vec<(PairKey, FxHashSet<u64>)> = told.unwrap_or_default();
        if told.is_empty() {
            return Ok(false);
        }
        let probes = at.withdraw(&told)?;
        tracing::debug!(functions = told.len(), probes, "probes that have told all were taken out");
        Ok(true)
    }
}

impl Running for CoverageKind {
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let named = whole::functions(asked, true)?;
        let plan = |function| CoveragePlan::new(asked.modules, function, self.options);
        Ok(self.functions.wanted(asked, (&named, METRIC), plan))
    }

    fn reserved(&self) -> u64 {
        sizes::AWAITED
    }

    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        let observer = self.functions.prepare(at, wanted.iter());
        wanted.extend(LeapCounter::wanted(at));
        Ok(observer)
    }

    fn inserted(&mut self, at: &mut Locked<'_>, begun: &mut InsertedPairs<'_>) {
        self.functions.inserted(at, begun);
    }

    fn failed(&mut self, _: &mut Locked<'_>) {
        self.functions.failed();
    }

    fn tick(&mut self, at: &mut Locked<'_>) {
        if !self.rounds.is_due() {
            return;
        }
        let begin = Instant::now();
        at.target().take_longest_hold(); // discards the holds of earlier operations
        let news = self.retire_probes(at).unwrap_or_else(|error| {
            tracing::debug!(%error, "probes that have told all stay in; it is tried again");
            false
        });
        let held = at.target().take_longest_hold().held;
        self.rounds.after(news, begin.elapsed(), held);
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

/// Answers of the probes of a function, with the function's pair; `None` if no probe that is still woven has counted.
fn news<'c>(
    at: &'c Locked<'_>,
    columns: &Columns<'_>,
    function: &Profiled<CoveragePlan>,
) -> Option<(&'c Pair, Vec<Option<bool>>)> {
    let pair = at.pair(&function.key).filter(|pair| pair.is_woven())?;
    let values: Vec<u64> = pair.counters().iter().map(|counter| columns.sum(*counter).cast_unsigned()).collect();
    let came = answers::came(pair.probes(), pair.came_back(), &values);
    let left: FxHashSet<u64> = pair.snippets().iter().map(|(_, id)| *id).collect();
    answers::has_news(&came, pair.probes(), &left).then_some((pair, came))
}
