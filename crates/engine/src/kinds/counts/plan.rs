//! The plan to count all blocks and edges of one function: its counters, and the code for them.

use std::sync::{Arc, OnceLock};

use ingraft_analysis::block_events;
use ingraft_codegen::TextSpace;
use ingraft_model::{
    BlockId, EVENT_NAMES, Expr, FunctionBody, FunctionId, IndexVec, Instrumentation, MetricInfo, Refusal, Shape,
    Snippet, Stmt, Svma, VariableId, VariableKind,
};
use ingraft_profile::{Earlier, EarlierProfile, NotCounted, Position, ProbeAt, RunEvents, Runs, Wishes};

use crate::api::{CountsOptions, Inclusive};
use crate::kinds::graph::FunctionGraph;
use crate::kinds::profile::functions::Plan;
use crate::kinds::profile::stands::Stand;
use crate::program::modules::{Module, Modules};
use crate::weaving::trial;

use super::spans::{self, Spans};

/// Number of increments that take as long as the jump from the count of a taken branch to its target (`cargo xtask bench edges`).
const DETOUR: u32 = 2;

/// The plan to count all blocks and edges of one function.
#[derive(Debug)]
pub struct CountsPlan {
    graph: FunctionGraph,
    /// Counters, and the derivation of all counts from them.
    pub runs: Runs,
    /// The spans of inclusive totals; `None` if there are none.
    pub spans: Option<Spans>,
    /// The inclusive totals that were asked for.
    pub inclusive: Option<Inclusive>,
    /// Increments of the counters, computed at the first query of event totals.
    increments: OnceLock<Vec<Numbers>>,
}

/// Numbers of events of each kind, in the order of [`EVENT_NAMES`].
pub type Numbers = [i64; EVENT_NAMES.len()];

impl Plan for CountsPlan {
    fn graph(&self) -> &FunctionGraph {
        &self.graph
    }

    fn places(&self) -> &[ProbeAt] {
        self.runs.counters()
    }

    fn instrumentation(&self, metric: Arc<MetricInfo>) -> Instrumentation {
        self.counting(metric, None)
    }
}

impl CountsPlan {
    /// Plans the counters of a function. Fails if not all of its counts can be counted or derived.
    ///
    /// The places where code can count are those of a copy on trial. `text` is the text of the module with nothing woven into it. `leaps` says
    /// whether threads may leave signal handlers for good, and with them the runs that signals have interrupted: calls are then counted as
    /// they begin. Also returns the function, which was analysed as a whole: the insertion needs it again, and the image has it as long as
    /// somebody holds it.
    pub fn new(
        (modules, text): (&Modules, &TextSpace),
        function: FunctionId,
        options: &CountsOptions,
        leaps: bool,
    ) -> Result<(CountsPlan, Arc<FunctionBody>), Refusal> {
        let (graph, module, f) = FunctionGraph::of(modules, function)?;
        let body = module.image.body(f)?;
        let copy = trial::copy(modules, function, &body, text)?;
        let probes = graph.probes(&copy);
        let FunctionGraph { cfg, events, .. } = &graph;
        let spans = options.inclusive.map(|of| Spans::new((module, f, &body), (cfg, events), &copy, of.calls));
        let earlier = options.earlier.as_deref().and_then(|earlier| earlier_counts(modules, function, earlier));
        let wishes = Wishes { earlier, check: options.check, entries: leaps, detour: DETOUR };
        let runs = Runs::placed(cfg, &probes, &wishes).map_err(|why| match (why, copy.why_exposed) {
            // A block that runs in the text has no counter.
            (NotCounted::Block(_) | NotCounted::Activations, Some(exposed)) => exposed,
            (why, _) => graph.refusal(why),
        })?;
        Ok((CountsPlan { graph, runs, spans, inclusive: options.inclusive, increments: OnceLock::new() }, body))
    }

    /// The code that counts: one counter for each place. If there are inclusive totals, `clock` is the counter of their event clock.
    pub fn counting(&self, metric: Arc<MetricInfo>, clock: Option<u32>) -> Instrumentation {
        let mut counting = self.graph.counting(self.places(), metric);
        let (Some(clock), Some(of)) = (clock, self.inclusive) else { return counting };
        let clock_id = VariableId(u32::try_from(counting.variables.len()).unwrap_or(u32::MAX));
        for insertion in &mut counting.insertions {
            let counter = insertion.snippet.as_increment().map(|variable| variable.0 as usize);
            let events = counter.and_then(|n| self.increments().get(n)?.get(of.event).copied()).unwrap_or_default();
            if events != 0 {
                let mut stmts = insertion.snippet.stmts.clone();
                stmts.push(Stmt::Add(clock_id, Expr::Const(events)));
                insertion.snippet = Arc::new(Snippet { stmts });
            }
        }
        let alias = spans::variable("clock".to_owned(), VariableKind::Counter, Shape::Alias(clock));
        let variables = counting.variables.iter().cloned().chain([alias]).collect();
        Instrumentation { variables, ..counting }
    }

    /// For each counter, the numbers of events that one unit stands for.
    pub fn increments(&self) -> &[Numbers] {
        self.increments.get_or_init(|| {
            let mut all = vec![Numbers::default(); self.runs.counters().len()];
            for kind in 0..EVENT_NAMES.len() {
                let increments = RunEvents::new(&self.runs, &self.events_of(kind)).increments();
                for number in all.iter_mut().zip(increments).filter_map(|(all, own)| Some((all.get_mut(kind)?, own))) {
                    *number.0 = number.1;
                }
            }
            all
        })
    }

    /// Numbers of events that a thread in the function has executed besides what its counters tell.
    pub fn executed(&self, modules: &Modules, stand: &Stand) -> Numbers {
        let module = self.graph.resolve(modules).map(|(module, _)| module);
        let part = |(block, until)| module.map_or_else(Numbers::default, |module| self.part(module, block, until));
        let executed = [
            stand.run.map_or_else(Numbers::default, |position| self.before(position)),
            stand.left.map_or_else(Numbers::default, |block| part((block, None))),
            part(stand.part),
        ];
        let mut sum = Numbers::default();
        for numbers in &executed {
            sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum = sum.wrapping_add(*number));
        }
        sum
    }

    /// Numbers of events that a thread at a position in a run must be credited with, besides those of its counters, up to the first
    /// instruction of its block.
    fn before(&self, position: Position) -> Numbers {
        std::array::from_fn(|kind| RunEvents::new(&self.runs, &self.events_of(kind)).before(position))
    }

    /// Number of events of one kind in one execution of each block.
    fn events_of(&self, kind: usize) -> IndexVec<BlockId, i64> {
        self.graph.events.iter().map(|of| of.numbers().get(kind).copied().unwrap_or_default().into()).collect()
    }

    /// Numbers of events of a block up to an instruction, or of all of it. `module` has the function.
    fn part(&self, module: &Module, block: BlockId, until: Option<Svma>) -> Numbers {
        let (Some(whole), Some(of)) = (self.graph.events.get(block), self.graph.cfg.blocks.get(block)) else {
            return Numbers::default();
        };
        let events = match until {
            Some(until) if of.range.contains(&until) => {
                let length = usize::try_from(until.0 - of.range.start.0).unwrap_or_default();
                block_events(of.range.start, module.image.bytes_at(of.range.start, length).unwrap_or_default())
            }
            Some(_) | None => *whole,
        };
        events.numbers().map(i64::from)
    }
}

/// Counts of a function in an earlier profile; `None` if it has none.
pub fn earlier_counts<'e>(modules: &Modules, function: FunctionId, earlier: &'e EarlierProfile) -> Option<&'e Earlier> {
    let (_, module, f) = modules.resolve(function)?;
    earlier.of(module.image.build_id()?, f.start())
}
