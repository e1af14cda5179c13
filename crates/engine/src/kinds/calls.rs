//! Calls that the functions of a profile have made.

use ingraft_model::{BlockId, Callee as Called, Key, Svma};
use ingraft_report::{CallCount, CallTarget};
use rustc_hash::FxHashMap;

use crate::program::callees::named;
use crate::program::modules::Module;

use super::graph::FunctionGraph;

/// The calls that a function has made. `ends` tells how often control came to the end of a block.
pub fn call_sites(module: &Module, graph: &FunctionGraph, ends: &dyn Fn(BlockId) -> Option<u64>) -> Vec<CallCount> {
    let calling = graph.events.entries().filter(|(_, events)| events.calls > 0);
    let executed = |block: BlockId| ends(block).filter(|count| *count > 0);
    let calls: Vec<(BlockId, Svma, u64)> =
        calling.filter_map(|(block, events)| Some((block, events.last, executed(block)?))).collect();
    if calls.is_empty() {
        return Vec::new();
    }
    let Some(f) = module.function(graph.function.function) else { return Vec::new() };
    let sites = module.image.call_sites(f).unwrap_or_default();
    let known: FxHashMap<Svma, _> = sites.into_iter().map(|site| (site.at, site)).collect();
    let callee = |at: Svma| match known.get(&at) {
        Some(site) => match named(module, graph.function, site) {
            Some(Some(function)) => module.function(function.function).map(|f| CallTarget::Own(f.start())),
            Some(None) | None => match site.callee {
                Called::Direct(at) => module.image.stub_slot(at).and_then(|slot| module.image.import_at(slot)),
                Called::Slot(slot) => module.image.import_at(slot),
                Called::Computed => None,
            }
            .map(|name| CallTarget::Named(name.to_owned())),
        },
        None => None,
    };
    let call = |(block, at, count): (BlockId, Svma, u64)| CallCount {
        block: block.index(),
        callee: callee(at).unwrap_or(CallTarget::Indirect),
        count,
    };
    calls.into_iter().map(call).collect()
}
