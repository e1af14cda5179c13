//! Leaps: jumps by which a thread may leave a signal handler for good, such as siglongjmp. The run that the signal has interrupted ends then
//! in the middle, where nothing counts. So one counter of each profile tells how many leaps there were, and with them how many runs may have
//! ended so.
//!
//! A jump that restores the signal mask is taken for a leap, because a program that leaves a handler without restoring the mask never gets the
//! signal again, unless the handler does not block it. So jumps between the functions of an interpreter, which do not restore the mask, are no
//! leaps. Nor is a jump in a process that has no handler: a second counter tells whether one was set since the profile began.

use std::collections::BTreeSet;

use ingraft_model::{CallSite, FunctionRef, Insertion, Instrumentation, Offset, Parts, PointKind, VariableId};

use crate::program::callees::named;
use crate::program::modules::{Module, Modules};

use super::plan;

/// Name of the metric that the pair of leaps has.
pub const METRIC: &str = "handler_leaps";
/// Functions that restore the signal mask if it was saved, and then jump. In glibc, longjmp is the same function as siglongjmp.
const JUMPS: [&str; 2] = ["siglongjmp", "__longjmp_chk"];
/// Functions by which these restore the mask.
const MASKS: [&str; 4] = ["sigprocmask", "__sigprocmask", "pthread_sigmask", "__pthread_sigmask"];
/// The function that sets handlers, which all others of the C library call.
const SETS_HANDLERS: &str = "sigaction";
/// The counters of leaps, and of calls that may set a handler.
const LEAPS: VariableId = VariableId(0);
const HANDLERS: VariableId = VariableId(1);
/// The function that continues in a saved context.
const CONTEXT: &str = "setcontext";

/// The code that counts the leaps of a process; `None` if no module that was analysed has such functions.
pub fn instrumentation(modules: &Modules) -> Option<Instrumentation> {
    let named = |name: &&str| modules.functions_named_exactly(name);
    let jumps: BTreeSet<FunctionRef> = JUMPS.iter().flat_map(named).collect();
    let mut insertions: Vec<Insertion> = jumps.into_iter().flat_map(|jump| leaps(modules, jump)).collect();
    if modules.loaded().any(|(_, _, module)| module.image.imports_any(&[CONTEXT])) {
        let contexts = modules.functions_named_exactly(CONTEXT);
        insertions.extend(contexts.into_iter().map(|f| insertion(f, PointKind::Entry, Parts::All)));
    }
    if insertions.is_empty() {
        return None;
    }
    let setting = modules.functions_named_exactly(SETS_HANDLERS).into_iter();
    insertions.extend(setting.map(|f| plan::insertion(f, PointKind::Entry, Parts::All, HANDLERS)));
    let variables = [plan::variable(0), plan::variable(1)].into();
    Some(Instrumentation { variables, ..plan::empty(insertions, plan::metric_named(METRIC)) })
}

/// The code that counts the leaps of a function: at each block in which it restores the mask. If none is found, each call is counted.
fn leaps(modules: &Modules, function: FunctionRef) -> Vec<Insertion> {
    let Some((_, module, f)) = modules.resolve(function) else { return Vec::new() };
    let cfg = module.image.cfg(f);
    let sites = module.image.call_sites(f).unwrap_or_default();
    let restoring = sites.iter().filter(|site| restores(module, function, site));
    let blocks: BTreeSet<usize> =
        restoring.filter_map(|site| cfg.blocks.iter().position(|block| block.range.contains(&site.at))).collect();
    let at = |block: usize| Some(Offset::between(f.start().0, cfg.blocks.get(block)?.range.start.0));
    let own: Vec<Insertion> = blocks
        .into_iter()
        .filter_map(|block| Some(insertion(function, PointKind::Block, Parts::Block(at(block)?))))
        .collect();
    if own.is_empty() { vec![insertion(function, PointKind::Entry, Parts::All)] } else { own }
}

/// Whether a call restores the signal mask.
fn restores(module: &Module, caller: FunctionRef, call: &CallSite) -> bool {
    let Some(Some(callee)) = named(module, caller, call) else { return false };
    let names = |name: &str| MASKS.contains(&name);
    module.function(callee.function).is_some_and(|f| f.names().iter().any(|name| names(name.mangled())))
}

fn insertion(function: FunctionRef, point: PointKind, parts: Parts) -> Insertion {
    plan::insertion(function, point, parts, LEAPS)
}
