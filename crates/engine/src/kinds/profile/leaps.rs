//! Leaps: jumps by which a thread may leave a signal handler for good, such as siglongjmp. The run that the signal has interrupted ends then
//! in the middle, where nothing counts. So one counter of each profile tells how many leaps there were, and with them how many runs may have
//! ended so.
//!
//! A jump that restores the signal mask is taken for a leap, because a program that leaves a handler without restoring the mask never gets the
//! signal again, unless the handler does not block it. So jumps between the functions of an interpreter, which do not restore the mask, are no
//! leaps. Nor is a jump in a process that has no handler: a second counter tells whether one was set since the profile began.

use std::collections::BTreeSet;
use std::sync::Arc;

use ingraft_model::{
    BlockId, CallSite, Focus, FunctionId, Insertion, Instrumentation, Parts, PointId, PointKind, VariableId,
};

use crate::api::{MeasurementId, MetricFocus};
use crate::kinds::code;
use crate::kinds::graph::block_of;
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::callees::named;
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::session::{InsertedPairs, Locked, Occasion};

/// Name of the metric that the pair of leaps has.
const METRIC: &str = "handler_leaps";
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

/// Signals for which glibc sets handlers of its own.
const OF_LIBC: u64 = 0b11 << 31;

/// Leaps since a profile began.
#[derive(Clone, Debug, Default)]
pub struct Leaps {
    /// Number of leaps that were counted.
    pub counted: u64,
    /// Function whose leaps are not counted, with the reason; `None` if all are.
    blind: Option<String>,
}

impl Leaps {
    /// Whether a run may have ended in the middle.
    pub fn any(&self) -> bool {
        self.counted > 0 || self.blind.is_some()
    }

    /// A sentence about the counts that the leaps may change; `None` if there were none.
    pub fn words(&self) -> Option<String> {
        if let Some(blind) = &self.blind {
            return Some(format!("jumps out of signal handlers may have ended runs in the middle, and {blind}"));
        }
        match self.counted {
            0 => None,
            1 => Some(
                "1 jump may have left a signal handler (siglongjmp) and the run that the signal had interrupted, which may change the counts of one path by 1"
                    .to_owned(),
            ),
            n => Some(format!(
                "{n} jumps may have left signal handlers (siglongjmp) and the runs that the signals had interrupted: each may change the counts of one path by 1"
            )),
        }
    }
}

/// The pair that counts the leaps of a profile. It has no value for clients.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeapCounter {
    /// Whether the process had a handler of a signal when the profile began.
    handled: bool,
}

impl LeapCounter {
    /// The pair with its code; `None` if the process makes no leaps.
    pub fn wanted(at: &Locked<'_>) -> Option<WantedPair> {
        if !at.modules().leaves_handlers(at.target()) {
            return None;
        }
        let has_some = |file: &ModuleFile| file.is_program || file.is_c_library();
        for error in at.load(&has_some) {
            tracing::debug!(%error, "leaps of a file that cannot be analysed are not counted");
        }
        let instrumentation = instrumentation(at.modules())?;
        Some(WantedPair::owned(owner(at.id()), pair(), instrumentation))
    }

    /// Notes the pair when the profile begins.
    pub fn inserted(&mut self, at: &Locked<'_>, begun: &InsertedPairs<'_>) {
        let key = key(at.id());
        if !matches!(begun.occasion, Occasion::Library { .. }) && begun.keys.iter().any(|(own, _)| *own == key) {
            self.handled = at.target().status().map_or(true, |status| status.caught & !OF_LIBC != 0);
        }
    }

    /// The counters of the leaps, and of the calls that may have set a handler; empty if there is no pair.
    pub fn counters(at: &Locked<'_>) -> Vec<u32> {
        at.pair(&key(at.id())).map_or_else(Vec::new, |pair| pair.counters().to_vec())
    }

    /// The leaps since the profile began, by the values of the counters.
    pub fn leaps(self, at: &Locked<'_>, values: &[u64]) -> Leaps {
        let refused = at.pair(&key(at.id())).and_then(|pair| pair.refusals().first());
        let blind = refused.map(|(_, f)| format!("those by `{}` are not counted: {}", f.function.function, f.reason));
        Leaps { counted: counted(values, self.handled), blind }
    }
}

/// Number of leaps by the values of the counters. `handled` tells whether the process had a handler when the profile began.
fn counted(values: &[u64], handled: bool) -> u64 {
    let handlers = values.get(1).is_none_or(|calls| *calls > 0);
    values.first().copied().filter(|_| handled || handlers).unwrap_or_default()
}

fn owner(measurement: MeasurementId) -> Owner {
    Owner { measurement, purpose: PairPurpose::Hidden }
}

fn pair() -> Arc<MetricFocus> {
    Arc::new(MetricFocus { metric: METRIC.to_owned(), focus: Focus::default() })
}

fn key(measurement: MeasurementId) -> PairKey {
    PairKey::owned(owner(measurement), pair())
}

/// The code that counts the leaps of a process; `None` if no module that was analysed has such functions.
fn instrumentation(modules: &Modules) -> Option<Instrumentation> {
    let named = |name: &&str| modules.functions_named_exactly(name);
    let jumps: BTreeSet<FunctionId> = JUMPS.iter().flat_map(named).collect();
    let mut insertions: Vec<Insertion> = jumps.into_iter().flat_map(|jump| leaps(modules, jump)).collect();
    if modules.loaded().any(|(_, _, module)| module.image.imports_any(&[CONTEXT])) {
        let contexts = modules.functions_named_exactly(CONTEXT);
        insertions.extend(contexts.into_iter().map(|f| insertion(f, PointKind::Entry, Parts::All)));
    }
    if insertions.is_empty() {
        return None;
    }
    let setting = modules.functions_named_exactly(SETS_HANDLERS).into_iter();
    insertions.extend(setting.map(|f| code::increment(f, PointKind::Entry, Parts::All, HANDLERS)));
    let variables = [code::variable(0), code::variable(1)].into();
    Some(Instrumentation { variables, ..code::empty(insertions, code::metric_named(METRIC)) })
}

/// The code that counts the leaps of a function: at each block in which it restores the mask. If none is found, each call is counted.
fn leaps(modules: &Modules, function: FunctionId) -> Vec<Insertion> {
    let Some((_, module, f)) = modules.resolve(function) else { return Vec::new() };
    let cfg = module.image.cfg(f);
    let sites = module.image.call_sites(f).unwrap_or_default();
    let restoring = sites.iter().filter(|site| restores(module, function, site));
    let blocks: BTreeSet<BlockId> = restoring.filter_map(|site| block_of(&cfg, site.at)).collect();
    let points = blocks.into_iter().filter_map(|block| PointId::of_block(&cfg, block, f.start()));
    let own: Vec<Insertion> = points.map(|point| insertion(function, PointKind::Block, Parts::One(point))).collect();
    if own.is_empty() { vec![insertion(function, PointKind::Entry, Parts::All)] } else { own }
}

/// Whether a call restores the signal mask.
fn restores(module: &Module, caller: FunctionId, call: &CallSite) -> bool {
    let Some(Some(callee)) = named(module, caller, call) else { return false };
    let names = |name: &str| MASKS.contains(&name);
    module.function(callee.function).is_some_and(|f| f.names().iter().any(|name| names(name.mangled())))
}

fn insertion(function: FunctionId, point: PointKind, parts: Parts) -> Insertion {
    code::increment(function, point, parts, LEAPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_without_handlers_are_no_leaps() {
        assert_eq!(counted(&[3, 0], false), 0);
        assert_eq!(counted(&[3, 0], true), 3, "there was a handler before");
        assert_eq!(counted(&[3, 1], false), 3, "a handler was set since");
        assert_eq!(counted(&[], true), 0, "there is no pair");
    }

    #[test]
    fn leaps_are_told() {
        assert!(!Leaps::default().any());
        assert_eq!(Leaps::default().words(), None);
        let one = Leaps { counted: 1, blind: None };
        assert!(one.any() && one.words().is_some_and(|words| words.starts_with("1 jump may have left")));
        let two = Leaps { counted: 2, blind: None };
        assert!(two.words().is_some_and(|words| words.starts_with("2 jumps may have left")));
        let blind = Leaps { counted: 0, blind: Some("those by `f` are not counted".to_owned()) };
        assert!(blind.any() && blind.words().is_some_and(|words| words.ends_with("those by `f` are not counted")));
    }
}
