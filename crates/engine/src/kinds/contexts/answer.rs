//! A profile of contexts, from the trees of threads.

use ingraft_analysis::Function;
use ingraft_model::{Activations, Avma, ContextTree, ModuleId, Scale, Shape, Svma, TreeContext, VariableId};
use ingraft_process::TickClock;
use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, LockWait, ProfileKind, ReturnSite, SavedProfile,
    UnprofiledFunction,
};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{ContextMetric, ContextsOptions, RefusedFunction};
use crate::kinds::graph::{module_info, symbol};
use crate::pairs::Pair;
use crate::program::symbols::Symbols;
use crate::readings::values::{Columns, Ruler, Slots};
use crate::session::{Locked, now_ns};

use super::code::{ACTIVATIONS, MemoryRole};
use super::holders::{LockedWait, WaitValue};
use super::latencies::{self, EARLIER};
use super::{ContextSite, ContextsKind};

/// Reason for a function without code.
const TOO_DEAR: &str = "its calls are so many that telling their contexts would exceed --max-overhead";

/// The modules of a profile, with their indexes.
struct ProfileModules {
    modules: Vec<ModuleId>,
}

impl ProfileModules {
    fn index(&self, module: ModuleId) -> usize {
        self.modules.binary_search(&module).unwrap_or_default()
    }
}

/// The functions as they are while the measurement has code.
pub struct FunctionStates {
    /// Number of functions without code that allocate or free.
    memory_left_out: u64,
    /// First counter of the activations of each function's calls; `None` without code.
    activations: Vec<Option<u32>>,
    /// Counter of the calls of each function that have ended without a time; `None` without code.
    earlier: Vec<Option<u32>>,
    /// The functions without code.
    without: Vec<(ModuleId, UnprofiledFunction)>,
}

impl FunctionStates {
    /// The calls of each function by outcome; `None` without code.
    pub fn outcomes(&self, columns: &Columns<'_>) -> Vec<Option<Activations>> {
        self.activations.iter().map(|first| first.map(|first| outcomes_of(columns, first))).collect()
    }
}

impl ContextsKind {
    /// The functions as they are now.
    pub fn states(&self, at: &Locked<'_>) -> FunctionStates {
        let refused = at.refused();
        let known: FxHashSet<_> = refused.iter().map(|(function, _)| *function).collect();
        let dear = self.sites.iter().filter(|site| !known.contains(&site.function) && at.is_left_out(&site.key));
        let dear = dear.filter_map(|site| {
            let (_, _, function) = at.modules().resolve(site.function)?;
            let (name, why) = (symbol(function), TOO_DEAR.to_owned());
            Some((site.function.module, UnprofiledFunction { module: 0, name, start: function.start(), why }))
        });
        let refused = refused.into_iter().map(|(id, RefusedFunction { function, reason })| {
            let (name, start, why) = (function.function, function.offset, reason.to_string());
            (id.module, UnprofiledFunction { module: 0, name, start, why })
        });
        let without = refused.chain(dear).collect();
        let has_code = |site: &&ContextSite| at.pair(&site.key).is_some_and(Pair::is_woven);
        let memory = self.sites.iter().filter(|site| site.role.memory.is_some());
        FunctionStates {
            memory_left_out: memory.filter(|site| !has_code(site)).count() as u64,
            activations: self.sites.iter().map(|site| counter(at, site, ACTIVATIONS)).collect(),
            earlier: self.sites.iter().map(|site| counter(at, site, EARLIER)).collect(),
            without,
        }
    }

    /// The contexts of all threads. Threads run meanwhile, so calls in progress may be told in part.
    pub fn read(&self, at: &Locked<'_>, states: &FunctionStates) -> SavedProfile {
        self.follow(at);
        let live = self.live_tree(at);
        let (mut tree, mut outcomes, mut timed) = (ContextTree::default(), Vec::new(), Vec::new());
        let _ = at.columns(|columns| {
            tree = self.tree.map_or_else(ContextTree::default, |first| columns.tree(first, self.shape));
            outcomes = states.outcomes(columns);
            timed = self.timed_calls(columns, &states.earlier, &outcomes);
        });
        let times = if self.has_times() { self.take_times(at, &mut tree) } else { Vec::new() };
        if let Some(live) = &live {
            tree.merge(live);
        }
        let waits = self.looked.holders.as_ref().map(|looks| looks.waits(&mut tree)).unwrap_or_default();
        let mut saved = self.saved(at, states, &tree, &outcomes);
        if let Some(contexts) = saved.contexts.as_mut().filter(|_| !waits.is_empty()) {
            let variables = at.variables();
            contexts.holders = waits.into_iter().map(|wait| wait_for_lock(wait, &variables)).collect();
        }
        latencies::with_times(&mut saved.contexts, timed, times);
        saved
    }

    /// A profile of the contexts of a tree, with the calls of each function by outcome.
    pub fn saved(
        &self,
        at: &Locked<'_>,
        states: &FunctionStates,
        tree: &ContextTree,
        outcomes: &[Option<Activations>],
    ) -> SavedProfile {
        let addresses: FxHashSet<u64> = tree.contexts.iter().map(|context| context.return_address).collect();
        let sites: FxHashMap<u64, Option<(ModuleId, Svma)>> =
            addresses.iter().map(|address| (*address, place(at, *address))).collect();
        let functions = self.sites.iter().map(|site| site.function.module);
        let callers = sites.values().flatten().map(|(module, _)| *module);
        let all: FxHashSet<ModuleId> =
            functions.chain(callers).chain(states.without.iter().map(|(module, _)| *module)).collect();
        let mut all: Vec<ModuleId> = all.into_iter().collect();
        all.sort_unstable();
        let modules = ProfileModules { modules: all };
        let without = states
            .without
            .iter()
            .map(|(module, function)| UnprofiledFunction { module: modules.index(*module), ..function.clone() });
        let unseen =
            self.sites.iter().zip(outcomes).filter_map(|(site, outcome)| match (site.role.memory?, (*outcome)?) {
                // A block is freed when the call begins, so nothing is missing of a call that jumps to another function.
                (MemoryRole::Frees, outcome) => Some(outcome.unrecorded),
                (MemoryRole::Allocates(_) | MemoryRole::Resizes(_) | MemoryRole::Stores(_), outcome) => {
                    Some(outcome.unrecorded.saturating_add(outcome.left_by_tail_jump))
                }
            });
        let live = self.live_facts(unseen.fold(0, u64::saturating_add), states.memory_left_out);
        let contexts = ContextProfile { live, ..self.profile(at, tree, &sites, outcomes, &modules) };
        SavedProfile {
            kind: ProfileKind::Contexts,
            pid: u32::try_from(at.target().pid().0).unwrap_or_default(),
            program: self.program.clone(),
            began_ns: self.began_ns,
            ended_ns: now_ns(),
            modules: modules.modules.iter().map(|id| module_info(at.modules(), *id).unwrap_or_default()).collect(),
            refused: without.collect(),
            contexts: Some(contexts),
            ..SavedProfile::default()
        }
    }

    fn profile(
        &self,
        at: &Locked<'_>,
        tree: &ContextTree,
        sites: &FxHashMap<u64, Option<(ModuleId, Svma)>>,
        outcomes: &[Option<Activations>],
        modules: &ProfileModules,
    ) -> ContextProfile {
        let metrics: Vec<ContextMetric> = ContextsOptions::values(&self.options.metrics).collect();
        let scale = at.wall_clock().map(TickClock::scale);
        let nested = self.below_allocations(tree);
        let values = |all: &[i64], is_nested: bool| -> Vec<i64> {
            let of_metrics = metrics.iter().zip(all).map(|(metric, of)| in_units(*metric, is_nested, *of, scale));
            // The sums follow the metrics, and the event follows the sums.
            let others = self.options.before_event() - metrics.len() + usize::from(self.options.event.is_some());
            of_metrics.chain(all.iter().skip(metrics.len()).take(others).copied()).collect()
        };
        let site = |address: u64| match sites.get(&address).copied().flatten() {
            Some((module, at)) => ReturnSite { module: Some(modules.index(module)), at },
            None => ReturnSite { module: None, at: Svma(address) },
        };
        let function = |site: &ContextSite, outcome: &Option<Activations>| {
            let outcome = outcome.unwrap_or_default();
            let resolved = at.modules().resolve(site.function);
            let named = |(_, _, f): (_, _, &Function)| (symbol(f), f.start(), f.size());
            let (name, start, size) = resolved.map(named).unwrap_or_default();
            ContextFunction {
                module: modules.index(site.function.module),
                name,
                start,
                size,
                left: outcome.left,
                unseen: outcome.unseen,
                unrecorded: outcome.unrecorded,
                left_by_tail_jump: outcome.left_by_tail_jump,
            }
        };
        // After a tail jump, the call goes on that was made of the function that has jumped, so it does not return to that function.
        let is_tail = |above: &TreeContext, context: &TreeContext| {
            let caller = sites.get(&context.return_address).copied().flatten();
            let jumped = self.sites.get((above.function as usize).saturating_sub(1));
            let in_it = |(module, site): (ModuleId, Svma)| {
                let call = Svma(site.0.wrapping_sub(1));
                let function = jumped.filter(|jumped| jumped.function.module == module);
                function
                    .and_then(|jumped| at.modules().resolve(jumped.function))
                    .is_some_and(|(_, _, function)| function.contains(call))
            };
            above.return_address == context.return_address && !caller.is_some_and(in_it)
        };
        let context = |(n, context): (usize, &TreeContext)| {
            let above = context.parent.and_then(|parent| tree.contexts.get(parent));
            let kind = match context.back {
                Some(back) => ContextKind::Recursion(back),
                None if sites.get(&context.return_address).is_some_and(|site| is_restorer(at, *site)) => {
                    ContextKind::Signal
                }
                None if above.is_some_and(|above| is_tail(above, context)) => ContextKind::Tail,
                None => ContextKind::Call,
            };
            CallingContext {
                parent: context.parent,
                function: (context.function as usize).saturating_sub(1),
                site: site(context.return_address),
                kind,
                calls: context.calls,
                metrics: values(&context.metrics, nested.contains(&n)),
            }
        };
        let names = self.options.metrics.iter().flat_map(|m| m.names()).copied();
        let names = names.chain(self.options.sums.iter().map(|sum| &*sum.name));
        ContextProfile {
            functions: self.sites.iter().zip(outcomes).map(|(site, outcome)| function(site, outcome)).collect(),
            contexts: tree.contexts.iter().enumerate().map(context).collect(),
            metrics: names.chain(self.options.event.as_deref()).map(ToOwned::to_owned).collect(),
            outside: values(&tree.outside, false),
            full: tree.full,
            look_squares: self.looked.contexts.as_ref().map_or(0, |looks| looks.squares()),
            ..ContextProfile::default()
        }
    }

    /// The contexts below those of functions that allocate.
    fn below_allocations(&self, tree: &ContextTree) -> FxHashSet<usize> {
        let allocates = |function: u32| {
            let site = (function as usize).checked_sub(1).and_then(|n| self.sites.get(n));
            site.is_some_and(|site| site.role.allocates.is_some())
        };
        let mut below = FxHashSet::default();
        for (n, context) in tree.contexts.iter().enumerate() {
            let Some(parent) = context.parent else { continue };
            let of_parent = tree.contexts.get(parent).is_some_and(|parent| allocates(parent.function));
            if of_parent || below.contains(&parent) {
                below.insert(n);
            }
        }
        below
    }
}

/// A wait for a lock as a profile has it.
fn wait_for_lock((wait, value): (LockedWait, WaitValue), variables: &Symbols) -> LockWait {
    LockWait {
        lock: wait.lock,
        name: variables.name(wait.lock).unwrap_or_default(),
        waiter: wait.waiter,
        holder: wait.holder,
        ns: value.ns,
        looks: value.looks,
    }
}

/// `mov rax, SYS_rt_sigreturn; syscall`: to these instructions the handler of a signal returns.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// Whether a call that returns there is one of a handler by the kernel.
fn is_restorer(at: &Locked<'_>, site: Option<(ModuleId, Svma)>) -> bool {
    let found = site.and_then(|(module, place)| {
        let (_, module) = at.modules().module(module)?;
        module.image.bytes_at(place, RESTORER.len())
    });
    found.is_some_and(|bytes| bytes == RESTORER)
}

/// A value of a metric in its unit: ticks become nanoseconds.
fn in_units(metric: ContextMetric, is_nested: bool, value: i64, scale: Option<Scale>) -> i64 {
    match metric {
        // An allocation inside of another one is a part of it.
        ContextMetric::AllocatedBytes if is_nested => 0,
        ContextMetric::AllocatedBytes
        | ContextMetric::LiveBytes
        | ContextMetric::LiveBlocks
        | ContextMetric::Looks
        | ContextMetric::Instructions
        | ContextMetric::Reads
        | ContextMetric::Writes => value,
        ContextMetric::WallTime | ContextMetric::CpuTime | ContextMetric::WaitTime | ContextMetric::LockTime => {
            let ticks = u64::try_from(value).unwrap_or(0);
            i64::try_from(scale.map_or(0, |scale| scale.apply(ticks))).unwrap_or(i64::MAX)
        }
    }
}

/// First counter of a variable of a function; `None` without code.
fn counter(at: &Locked<'_>, site: &ContextSite, variable: VariableId) -> Option<u32> {
    at.pair(&site.key)?.counters().get(variable.0 as usize).copied()
}

/// Numbers of calls by outcome.
fn outcomes_of(columns: &Columns<'_>, first: u32) -> Activations {
    columns.together(Slots { first, shape: Shape::Counter }, &[first], Ruler::PLAIN).1
}

/// The module and the address in its file of an address of the process.
fn place(at: &Locked<'_>, address: u64) -> Option<(ModuleId, Svma)> {
    let (id, _, module) = at.modules().loaded().find(|(_, file, _)| file.text().contains(&Avma(address)))?;
    Some((id, Avma(address).to_svma(module.bias)))
}
