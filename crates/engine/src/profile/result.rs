//! Profiles of functions from the values of counters and the positions of threads.

use ingraft_model::{Callee as Called, EdgeTarget, Svma};
use ingraft_profile::{Coverage, Defect, Partial, RunCounts, Runs};
use ingraft_report::{BlockCount, CallCount, Callee, EdgeCount, EdgeEnd, FunctionProfile};
use rustc_hash::FxHashMap;

use crate::program::callees::named;
use crate::program::modules::{Module, Modules};

use super::plan::Plan;

/// Values of a function's counters, and what makes them inexact.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// Sum over all threads of each counter, in the order of the plan.
    pub counters: Vec<u64>,
    /// Threads inside of runs when counting began and ended.
    pub partial: Partial,
    /// Reason why the counts are not exact, with the bound; `None` if they are exact.
    pub inexact: Option<String>,
}

/// Derives the counts of a function. `module` is the index of its module in the saved profile. The calls of a library that is not loaded any
/// more are left out.
pub fn counts(modules: &Modules, (plan, runs): (&Plan, &Runs), counted: &Counted, module: usize) -> FunctionProfile {
    let file = plan.resolve(modules).map(|(file, _)| file);
    let counts = match runs.counts(&counted.counters, &counted.partial) {
        Ok(counts) => counts,
        Err(defect) => return contradictory((plan, runs), counted, module, &defect),
    };
    let block = |n: usize| counts.blocks.get(n).copied().unwrap_or_default();
    let edge = |n: usize| counts.edges.get(n).copied().flatten();
    FunctionProfile {
        calls: counts.calls.unwrap_or_default(),
        call_sites: file.map_or_else(Vec::new, |file| call_sites(file, plan, &counts)),
        inexact: counted.inexact.clone(),
        ..function(plan, module, &block, &edge)
    }
}

/// The counts of a function whose counters contradict each other: those that counters have told directly. The others are unknown.
fn contradictory((plan, runs): (&Plan, &Runs), counted: &Counted, module: usize, defect: &Defect) -> FunctionProfile {
    let measured = runs.measured(&plan.cfg, &counted.counters);
    let block = |n: usize| measured.blocks.get(n).copied().flatten();
    let edge = |n: usize| measured.edges.get(n).copied().flatten();
    let lost = match defect.lost() {
        Some(1) => "; at least 1 run has ended in the middle".to_owned(),
        Some(lost) => format!("; at least {lost} runs have ended in the middle"),
        None => String::new(),
    };
    let known = "only what counters tell directly is known, and `ingraft trace` of the function tells all";
    let why = format!("no execution has these counts: {defect}{lost}; {known}");
    FunctionProfile {
        calls: measured.calls.unwrap_or_default(),
        unknown: (0..plan.cfg.blocks.len()).filter(|n| block(*n).is_none()).collect(),
        inexact: Some(counted.inexact.iter().fold(why, |why, more| format!("{why}; {more}"))),
        ..function(plan, module, &|n| block(n).unwrap_or_default(), &edge)
    }
}

/// The coverage of a function. `module` is the index of its module in the saved profile.
pub fn coverage(plan: &Plan, coverage: &Coverage, module: usize, inexact: Option<String>) -> FunctionProfile {
    let ran = |known: Option<&Option<bool>>| known.copied().flatten().map(u64::from);
    let block = |n: usize| ran(coverage.blocks.get(n)).unwrap_or_default();
    let edge = |n: usize| ran(coverage.edges.get(n));
    let unknown = coverage.blocks.iter().enumerate().filter(|(_, known)| known.is_none());
    FunctionProfile {
        calls: plan.cfg.entry.map_or(0, block),
        unknown: unknown.map(|(n, _)| n).collect(),
        inexact,
        ..function(plan, module, &block, &edge)
    }
}

/// A function with the counts of its blocks and edges, by their indexes.
fn function(
    plan: &Plan,
    module: usize,
    block: &dyn Fn(usize) -> u64,
    edge: &dyn Fn(usize) -> Option<u64>,
) -> FunctionProfile {
    let blocks = plan.cfg.blocks.iter().zip(&plan.events).enumerate().map(|(n, (of, events))| BlockCount {
        start: of.range.start,
        size: u32::try_from(of.range.end.0.saturating_sub(of.range.start.0)).unwrap_or(u32::MAX),
        instructions: of.instructions,
        last: events.last,
        count: block(n),
    });
    let edges = plan.cfg.edges.iter().enumerate().map(|(n, of)| EdgeCount {
        from: of.from,
        to: match of.to {
            EdgeTarget::Block(to) => EdgeEnd::Block(to),
            EdgeTarget::Outside(at) => EdgeEnd::Outside(at),
            EdgeTarget::Dynamic => EdgeEnd::Dynamic,
        },
        kind: of.kind,
        count: edge(n),
    });
    FunctionProfile {
        module,
        name: plan.symbol.clone(),
        start: plan.first,
        size: plan.size,
        calls: 0,
        blocks: blocks.collect(),
        unknown: Vec::new(),
        edges: edges.collect(),
        call_sites: Vec::new(),
        inexact: None,
    }
}

/// The calls that were executed.
fn call_sites(module: &Module, plan: &Plan, counts: &RunCounts) -> Vec<CallCount> {
    let calls = |block: &usize| plan.events.get(*block).is_some_and(|events| events.calls > 0);
    let executed = |block: usize| counts.ends.get(block).copied().filter(|count| *count > 0);
    let blocks: Vec<(usize, u64)> =
        (0..plan.cfg.blocks.len()).filter(calls).filter_map(|block| Some((block, executed(block)?))).collect();
    if blocks.is_empty() {
        return Vec::new();
    }
    let Some(f) = module.function(plan.function.function) else { return Vec::new() };
    let sites = module.image.call_sites(f).unwrap_or_default();
    let known: FxHashMap<Svma, _> = sites.into_iter().map(|site| (site.at, site)).collect();
    let callee = |at: Svma| match known.get(&at) {
        Some(site) => match named(module, plan.function, site) {
            Some(Some(function)) => module.function(function.function).map(|f| Callee::Own(f.start())),
            Some(None) | None => match site.callee {
                Called::Direct(at) => module.image.stub_slot(at).and_then(|slot| module.image.import_at(slot)),
                Called::Slot(slot) => module.image.import_at(slot),
                Called::Computed => None,
            }
            .map(|name| Callee::Named(name.to_owned())),
        },
        None => None,
    };
    let call = |(block, count): (usize, u64)| {
        let at = plan.events.get(block).map_or(Svma(0), |events| events.last);
        CallCount { block, callee: callee(at).unwrap_or(Callee::Indirect), count }
    };
    blocks.into_iter().map(call).collect()
}
