//! Counts of functions from the values of counters and the positions of threads.

use ingraft_model::Key;
use ingraft_profile::{Defect, Partial};
use ingraft_report::FunctionProfile;

use crate::kinds::calls::call_sites;
use crate::kinds::profile::functions::Plan as _;
use crate::program::modules::Modules;

use super::doubts::left_out;
use super::plan::CountsPlan;

/// Values of a function's counters, and what makes them inexact.
#[derive(Clone, Debug, Default)]
pub struct CounterValues {
    /// Sum over all threads of each counter, in the order of the plan.
    pub counters: Vec<u64>,
    /// Threads inside of runs when counting began and ended.
    pub partial: Partial,
    /// Reason why the counts are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
}

/// Derives the counts of a function. `module` is the index of its module in the saved profile. The calls of a library that is not loaded any
/// more are left out.
pub fn counts(modules: &Modules, plan: &CountsPlan, counted: &CounterValues, module: usize) -> FunctionProfile {
    let graph = plan.graph();
    let file = graph.resolve(modules).map(|(file, _)| file);
    let counts = match plan.runs.counts(&counted.counters, &counted.partial) {
        Ok(counts) => counts,
        Err(defect) => return contradictory(plan, counted, module, &defect),
    };
    let block = |n| counts.blocks.get(n).copied().flatten().unwrap_or_default();
    let unknown = plan.runs.unknown();
    let inexact = left_out(unknown.len());
    let edge = |n| counts.edges.get(n).copied().flatten();
    FunctionProfile {
        calls: counts.calls.unwrap_or_default(),
        call_sites: file
            .map_or_else(Vec::new, |file| call_sites(file, graph, &|block| counts.ends.get(block).copied().flatten())),
        unknown: unknown.iter().map(|block| block.index()).collect(),
        inexact: inexact.into_iter().chain(counted.inexact.clone()).reduce(|all, more| format!("{all}; {more}")),
        ..graph.profile(module, &block, &edge)
    }
}

/// The counts of a function whose counters contradict each other: those that counters have told directly. The others are unknown.
fn contradictory(plan: &CountsPlan, counted: &CounterValues, module: usize, defect: &Defect) -> FunctionProfile {
    let graph = plan.graph();
    let measured = plan.runs.measured(&graph.cfg, &counted.counters);
    let block = |n| measured.blocks.get(n).copied().flatten();
    let edge = |n| measured.edges.get(n).copied().flatten();
    let lost = match defect.lost() {
        Some(1) => "; at least 1 run has ended in the middle".to_owned(),
        Some(lost) => format!("; at least {lost} runs have ended in the middle"),
        None => String::new(),
    };
    let known = "only what counters tell directly is known, and `ingraft trace` of the function tells all";
    let why = format!("no execution has these counts: {defect}{lost}; {known}");
    FunctionProfile {
        calls: measured.calls.unwrap_or_default(),
        unknown: graph.cfg.blocks.keys().filter(|n| block(*n).is_none()).map(Key::index).collect(),
        inexact: Some(counted.inexact.iter().fold(why, |why, more| format!("{why}; {more}"))),
        ..graph.profile(module, &|n| block(n).unwrap_or_default(), &edge)
    }
}
