//! A call that ends by a jump to another function (`return slow(x);`) lasts until that function has returned. Its record stays open at the
//! jump. The exits of the function that is jumped to close it, or those of the functions to which that one jumps in turn.
//!
//! Three kinds of jumps are followed: to a fixed address, through a slot that the loader fills, and through a pointer variable, which the
//! snippet compares with its value at the insertion. At any other jump the record is discarded and the call counted (`left_by_tail_jump`).
//! The same happens where a cycle of jumps leads back to a function that opens such a record, because the number of open records would be
//! unbounded.
//!
//! A record that only restores the calling context closes at a jump to a function that calls nothing and has no code of the request: no
//! context begins in it. `memset` and `memcpy` are such functions. Else each of their calls, from wherever, would pay for the jumps to them.
//!
//! Every record closes at a jump to `__cxa_end_catch`, which cannot be followed to its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ingraft_analysis::FunctionKind;
use ingraft_model::{
    Avma, BinaryOp, CallRecord, CallSite, Callee, Expr, FunctionId, Insertion, Instrumentation, PointKind, Restore,
    Role, Scalar, Shape, Snippet, Stmt, Svma, ValueUnit, Variable, VariableId, VariableKind, Whose,
};
use ingraft_process::Target;
use rayon::prelude::*;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::background::in_background;
use crate::program::callees::callees;
use crate::program::images::ImageStore;
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::program::variables::data_of;
use crate::weaving::exits::Exits;

use super::admitted::BoundPair;

/// The function to which a call jumps whose last act is to catch an exception. The call ends there: what is left is to destroy the exception, by a
/// function that only the exception knows.
const END_OF_CATCH: &str = "__cxa_end_catch";
/// The library that has the functions of most slots.
const LIBC: &str = "libc";
/// Largest number of functions through which a call is followed.
const FUNCTIONS_MAX: usize = 64;
/// Largest number of records of other functions that the exits of one function close. Each record costs other callers a comparison.
const CLOSERS_MAX: usize = 16;

/// Functions into which no call is followed.
#[derive(Clone, Copy)]
pub struct TailBarriers<'a> {
    /// Functions whose entries cannot be woven, as an earlier attempt has shown.
    pub unlanded: &'a FxHashSet<FunctionId>,
    /// Functions that are called too often to get code of the request: each of their calls, from wherever, would pay for the jumps to them. If some
    /// pairs only help others (`PairKey::helps`), calls of the others are followed all the same.
    pub too_busy: &'a FxHashSet<FunctionId>,
}

/// A jump from a function to another one.
#[derive(Clone, Copy)]
struct Jump {
    /// Address of the jump instruction.
    at: Svma,
    /// Function that the jump leads to; `None` if unknown.
    to: Option<FunctionId>,
    /// Address and value of the pointer that the jump goes through; the jump leads to `to` as long as the pointer has this value.
    while_pointer: Option<(Avma, u64)>,
    /// Whether the jump ends a call that has caught an exception, see [`END_OF_CATCH`].
    ends_catch: bool,
}

impl Jump {
    /// The function to which the jump leads as long as the program runs.
    fn lasting(&self) -> Option<FunctionId> {
        self.to.filter(|_| self.while_pointer.is_none())
    }
}

type Jumps = Vec<Jump>;

/// Snippet that the engine adds because of tail jumps.
pub struct Derived {
    /// Function of its points.
    pub function: FunctionId,
    /// Kind of its points: the exits or the entry.
    pub kind: PointKind,
    /// Index of its pair in the request.
    pub pair: usize,
    /// Position among the snippets of its point.
    pub role: Role,
    /// Code that is woven at each of the points.
    pub snippet: Arc<Snippet>,
    /// Exits of the function at which the snippet is woven, if the points are exits.
    pub exits: Exits,
}

/// The code at the exits of one function that ends a call.
struct Closer<'a> {
    function: FunctionId,
    snippet: &'a Snippet,
    role: Role,
    /// The record to open at jumps, if the code itself closes no record but uses the result of the call.
    record: Option<CallRecord>,
}

impl Closer<'_> {
    /// The snippet with every `Close` replaced by `of(…)`. `Whose::Own` keeps the other statements; `Whose::Earlier` keeps only the
    /// conditions around a `Close`.
    fn instead(&self, whose: Whose, of: &dyn Fn(&CallRecord, &[Stmt]) -> Stmt) -> Vec<Stmt> {
        match &self.record {
            None => instead(&self.snippet.stmts, whose == Whose::Own, of),
            Some(record) => {
                let open = (whose == Whose::Own).then(|| Stmt::Open(record.clone(), Vec::new()));
                open.into_iter().chain([of(record, &self.snippet.stmts)]).collect()
            }
        }
    }
}

/// Name of the variable for the outcomes of calls whose results come from functions that they jump to.
const RESULTS: &str = "results behind jumps";

/// Additions to a request because of tail jumps.
#[derive(Default)]
pub struct TailCalls {
    /// Snippets to add to those of the request.
    pub derived: Vec<Derived>,
    /// The functions that are jumped to, whose entries must tell handed records from left ones, each with the first pair that needs this.
    pub entries: FxHashMap<FunctionId, usize>,
    /// All pairs that need such an entry, by function.
    pub users: FxHashMap<FunctionId, FxHashSet<usize>>,
    /// The exits of functions that are jumps to other functions.
    pub(super) jumps: FxHashMap<FunctionId, Arc<FxHashSet<Svma>>>,
    /// The code of pairs that ends calls of a function, and that must not stand at jumps.
    pub(super) enders: FxHashSet<(FunctionId, usize, *const Snippet)>,
}

impl TailCalls {
    /// The exits at which a snippet of a pair, given by its index, does not stand; `None` if it stands at all exits.
    pub fn jumps_without(&self, function: FunctionId, pair: usize, snippet: &Snippet) -> Option<&Arc<FxHashSet<Svma>>> {
        self.jumps.get(&function).filter(|_| self.enders.contains(&(function, pair, std::ptr::from_ref(snippet))))
    }
}

impl TailCalls {
    /// Determines where the calls of pairs continue.
    pub fn of(
        (target, modules, images): (&Target, &Modules, &ImageStore),
        bound: &[BoundPair],
        barred: TailBarriers<'_>,
    ) -> TailCalls {
        let mut found = TailCalls::default();
        let mut closers: Vec<Vec<Closer<'_>>> = Vec::with_capacity(bound.len());
        for (_, instrumentation, _) in bound {
            let number = instrumentation.variables.iter().position(|v| v.name == RESULTS);
            let activations = number.and_then(|n| u32::try_from(n).ok()).map(VariableId);
            let record = activations.map(|activations| CallRecord { activations, kept: Vec::new(), restore: None });
            let stops = stopped_at_calls(instrumentation);
            let closer = |i: &Insertion| {
                // a state that does not continue during calls ends at the jump, and so does the sum of a path
                let restored = restored(&i.snippet.stmts);
                let is_sum = |v: &VariableId| {
                    let variable = instrumentation.variables.get(v.0 as usize);
                    variable.is_some_and(|variable| variable.kind == VariableKind::PathSum)
                };
                if restored.iter().any(|v| is_sum(v) || stops.contains(&(i.function, i.group, *v))) {
                    return None;
                }
                let record = record.clone().filter(|_| awaits_result(i));
                (i.point == PointKind::Exit && (record.is_some() || closes(&i.snippet.stmts))).then_some(record)
            };
            let closing = instrumentation.insertions.iter().filter_map(|i| Some((i, closer(i)?)));
            let closing =
                closing.map(|(i, record)| Closer { function: i.function, snippet: &i.snippet, role: i.role, record });
            closers.push(closing.collect());
        }
        let starts: FxHashSet<FunctionId> = closers.iter().flatten().map(|c| c.function).collect();
        if starts.is_empty() {
            return found;
        }
        let graph = TailJumpGraph::new(target, modules, images, starts);
        let contexts = bound.iter().map(|(_, instrumentation, _)| only_restore_contexts(instrumentation));
        let contexts: Vec<bool> = contexts.collect();
        let silent = if contexts.contains(&true) { graph.silent(modules, bound) } else { FxHashSet::default() };
        let nothing = FxHashSet::default();
        let has_helpers = bound.iter().any(|(key, ..)| key.helps());
        let matters = |pair: usize| has_helpers && bound.get(pair).is_some_and(|(key, ..)| !key.helps());
        let mut at_exits: FxHashMap<FunctionId, usize> = FxHashMap::default();
        for (pair, closers) in
            closers.iter().enumerate().flat_map(|(pair, all)| by_records(all).map(move |some| (pair, some)))
        {
            let silent = if contexts.get(pair) == Some(&true) { &silent } else { &nothing };
            let too_busy = if matters(pair) { &nothing } else { barred.too_busy };
            Follow {
                graph: &graph,
                barred: TailBarriers { too_busy, ..barred },
                silent,
                pair,
                closers: &closers,
                at_exits: &mut at_exits,
                found: &mut found,
            }
            .run();
        }
        // The end of a call comes before the ends of those that have jumped to it.
        found.derived.sort_by_key(|derived| !closes(&derived.snippet.stmts));
        found
    }
}

/// Adds the variable that a pair needs if results of its functions come from other functions, to which they jump.
pub fn await_results(target: &Target, modules: &Modules, instrumentation: &mut Instrumentation) {
    let jumps = |i: &&Insertion| jumps_of(target, modules, i.function).is_some_and(|jumps| !jumps.is_empty());
    if instrumentation.insertions.iter().filter(|i| awaits_result(i)).any(|i| jumps(&i)) {
        let mut variables = instrumentation.variables.to_vec();
        variables.push(Variable {
            name: RESULTS.to_owned(),
            kind: VariableKind::Activations,
            shape: Shape::Activations,
            unit: ValueUnit::Plain,
            sampled: true,
        });
        instrumentation.variables = variables.into();
    }
}

/// The variables that code at the calls of a function changes: timers that it stops, flags that it clears.
fn stopped_at_calls(instrumentation: &Instrumentation) -> FxHashSet<(FunctionId, u32, VariableId)> {
    fn changed(stmts: &[Stmt], found: &mut Vec<VariableId>) {
        for stmt in stmts {
            if let Stmt::Add(v, _) | Stmt::Set(v, _) | Stmt::Start(v, _) | Stmt::Stop(v, _) = stmt {
                found.push(*v);
            }
            changed(stmt.body().unwrap_or_default(), found);
        }
    }
    let at_calls = instrumentation.insertions.iter().filter(|i| i.point.is_at_call());
    let of = |i: &Insertion| {
        let mut found = Vec::new();
        changed(&i.snippet.stmts, &mut found);
        let (function, group) = (i.function, i.group);
        found.into_iter().map(move |v| (function, group, v))
    };
    at_calls.flat_map(of).collect()
}

/// The variables that closed records restore.
fn restored(stmts: &[Stmt]) -> Vec<VariableId> {
    let of = |stmt: &Stmt| {
        let own = match stmt {
            Stmt::Close(record, _) => record.restore.map(Restore::variable),
            _ => None,
        };
        own.into_iter().chain(restored(stmt.body().unwrap_or_default())).collect::<Vec<_>>()
    };
    stmts.iter().flat_map(of).collect()
}

/// Whether code at an exit uses the result of the call without a record of the call.
fn awaits_result(i: &Insertion) -> bool {
    i.point == PointKind::Exit && !closes(&i.snippet.stmts) && uses_result(&i.snippet)
}

/// Whether code uses the result of a call.
fn uses_result(snippet: &Snippet) -> bool {
    let mut found = false;
    snippet.each_expr(&mut |e| found |= matches!(e, Expr::Return | Expr::Float(_)));
    found
}

/// Whether the records of a pair only restore the calling context, and no value is added up in contexts.
fn only_restore_contexts(instrumentation: &Instrumentation) -> bool {
    // Code also counts its runs.
    let counts = |stmt: &&Stmt| matches!(stmt, Stmt::Add(_, Expr::Const(_)));
    let own = |i: &Insertion| i.snippet.stmts.iter().filter(|stmt| !counts(stmt)).cloned().collect::<Vec<Stmt>>();
    instrumentation.insertions.iter().all(|i| match (i.point, own(i).as_slice()) {
        (PointKind::Entry, [Stmt::Open(record, body)]) => {
            record.kept.is_empty() && matches!(body.as_slice(), [Stmt::Enter(_, shape, _)] if !shape.metrics())
        }
        (PointKind::Exit, [Stmt::Close(record, body)]) => {
            record.kept.is_empty() && matches!(body.as_slice(), [Stmt::Set(_, Expr::Restored)])
        }
        _ => false,
    })
}

/// Whether code closes a record.
fn closes(stmts: &[Stmt]) -> bool {
    stmts.iter().any(|stmt| matches!(stmt, Stmt::Close(..)) || stmt.body().is_some_and(closes))
}

/// The statements with every `Close` replaced by `of(…)`; the others are kept if `all`, else only the conditions around a `Close`.
fn instead(stmts: &[Stmt], all: bool, of: &dyn Fn(&CallRecord, &[Stmt]) -> Stmt) -> Vec<Stmt> {
    let each = |stmt: &Stmt| match stmt {
        Stmt::Close(record, body) => Some(of(record, body)),
        Stmt::If(condition, body) => {
            let body = instead(body, all, of);
            (!body.is_empty()).then(|| Stmt::If(condition.clone(), body))
        }
        other => all.then(|| other.clone()),
    };
    stmts.iter().filter_map(each).collect()
}

/// Groups the code at exits by the records that it closes.
fn by_records<'c, 'a>(closers: &'c [Closer<'a>]) -> impl Iterator<Item = Vec<&'c Closer<'a>>> {
    fn closed(stmts: &[Stmt], found: &mut BTreeSet<VariableId>) {
        for stmt in stmts {
            if let Stmt::Close(record, _) = stmt {
                found.insert(record.activations);
            }
            closed(stmt.body().unwrap_or_default(), found);
        }
    }
    let mut groups: BTreeMap<BTreeSet<VariableId>, Vec<&'c Closer<'a>>> = BTreeMap::new();
    for closer in closers {
        let mut records: BTreeSet<VariableId> = closer.record.iter().map(|record| record.activations).collect();
        closed(&closer.snippet.stmts, &mut records);
        groups.entry(records).or_default().push(closer);
    }
    groups.into_values()
}

/// Graph of the jumps between functions.
struct TailJumpGraph {
    jumps: FxHashMap<FunctionId, Jumps>,
    /// Number of the cycle of each function; functions from which jumps lead to each other have the same number.
    circle: FxHashMap<FunctionId, usize>,
}

impl TailJumpGraph {
    /// Builds the graph of all jumps that are reachable from these functions.
    fn new(target: &Target, modules: &Modules, images: &ImageStore, starts: FxHashSet<FunctionId>) -> TailJumpGraph {
        let mut jumps: FxHashMap<FunctionId, Jumps> = FxHashMap::default();
        let mut next: Vec<FunctionId> = starts.into_iter().collect();
        while !next.is_empty() {
            load_targets(target, modules, images, &next);
            let of = |f: &FunctionId| (*f, jumps_of(target, modules, *f).unwrap_or_default());
            let found: Vec<_> = in_background(|| next.par_iter().map(of).collect());
            jumps.extend(found);
            let new: FxHashSet<FunctionId> = next
                .iter()
                .filter_map(|f| jumps.get(f))
                .flatten()
                .filter_map(|jump| jump.to)
                .filter(|to| !jumps.contains_key(to))
                .collect();
            next = new.into_iter().collect();
        }
        let circle = circles(&jumps);
        TailJumpGraph { jumps, circle }
    }

    fn jumps_of(&self, function: FunctionId) -> &[Jump] {
        self.jumps.get(&function).map_or(&[], Vec::as_slice)
    }

    /// The functions to which jumps lead that call no other function, and have no code of these pairs.
    fn silent(&self, modules: &Modules, bound: &[BoundPair]) -> FxHashSet<FunctionId> {
        let own = bound.iter().flat_map(|(_, instrumentation, _)| &instrumentation.insertions).map(|i| i.function);
        let own: FxHashSet<FunctionId> = own.collect();
        let reached: FxHashSet<FunctionId> = self.jumps.values().flatten().filter_map(Jump::lasting).collect();
        let reached: Vec<FunctionId> = reached.difference(&own).copied().collect();
        in_background(|| reached.into_par_iter().filter(|to| calls_nothing(modules, *to)).collect())
    }

    fn in_one_circle(&self, a: FunctionId, b: FunctionId) -> bool {
        self.circle.get(&a).is_some_and(|circle| self.circle.get(&b) == Some(circle))
    }
}

/// Analyses the libraries to which functions jump through slots of the loader. A slot that the loader has not filled yet is assumed to be
/// for a function of the C library.
fn load_targets(target: &Target, modules: &Modules, images: &ImageStore, functions: &[FunctionId]) {
    let pointers = |f: &FunctionId| -> Vec<Option<Avma>> {
        let Some((file, module, function)) = modules.resolve(*f) else { return Vec::new() };
        let sites = module.image.exit_sites(function).unwrap_or_default();
        let slot = |callee| match callee {
            Callee::Direct(at) => module.image.stub_slot(at),
            Callee::Slot(slot) => Some(slot),
            Callee::Computed => None,
        };
        let slots = sites.iter().flatten().filter_map(|site| slot(module.image.tail_jump(function, site)?));
        let pointer = |slot: Svma| {
            let mut word = [0; 8];
            let there = target.read(slot.to_avma(module.bias), &mut word).is_ok();
            let pointer = Some(Avma(u64::from_le_bytes(word))).filter(|_| there);
            // Before the loader has relocated a file, its slots lead to no code.
            let leads = |pointer: &Avma| modules.mapped().any(|other| other.text().contains(pointer));
            let target = pointer.filter(|pointer| !file.text().contains(pointer) && leads(pointer));
            // a pointer of the program itself does not wait for the loader
            (target.is_some() || module.image.import_at(slot).is_some()).then_some(target)
        };
        slots.filter_map(pointer).collect()
    };
    let pointers: Vec<Option<Avma>> = in_background(|| functions.par_iter().flat_map_iter(pointers).collect());
    let unfilled = pointers.contains(&None);
    let wanted = |file: &ModuleFile| {
        let leads = |pointer: &Avma| file.text().contains(pointer);
        pointers.iter().flatten().any(leads) || unfilled && file.names.iter().any(|name| name == LIBC)
    };
    // jumps into a library that cannot be analysed are not followed
    for error in modules.load_files(target, images, &wanted) {
        tracing::debug!(%error, "jumps into a library are not followed");
    }
}

/// The jumps of a function to other functions; `None` if not all of its exits are known.
fn jumps_of(target: &Target, modules: &Modules, function: FunctionId) -> Option<Jumps> {
    let (_, module, f) = modules.resolve(function)?;
    let sites = module.image.exit_sites(f).ok()?;
    let data = data_of(modules);
    let mut jumps = Jumps::new();
    for site in sites.into_iter().flatten() {
        let Some(callee) = module.image.tail_jump(f, &site) else { continue };
        let at = Svma(site.at.0 + u64::from(site.point));
        let call = CallSite { at, len: site.own - site.point, callee };
        let (known, while_pointer) = match callee {
            // the slot is not one of the loader's but a variable of the program
            Callee::Slot(slot) if module.image.import_at(slot).is_none() => {
                let slot = slot.to_avma(module.bias);
                let lasts = data.contains(&slot) && data.contains(&slot.offset(7));
                let mut word = [0; 8];
                let there = lasts && target.read(slot, &mut word).is_ok();
                let pointer = Some(u64::from_le_bytes(word)).filter(|_| there);
                let to = pointer.and_then(|pointer| modules.function_at(Avma(pointer)));
                (to.into_iter().collect(), pointer.map(|pointer| (slot, pointer)))
            }
            Callee::Direct(_) | Callee::Slot(_) | Callee::Computed => {
                (callees(target, modules, function, module, &call), None)
            }
        };
        let to = match known.as_slice() {
            [to] => Some(*to).filter(|to| takes_over(modules, *to)),
            _ => None,
        };
        let ends_catch = is_end_of_catch(modules, module, callee, &known);
        jumps.push(Jump { at: site.at, to, while_pointer, ends_catch });
    }
    Some(jumps)
}

/// Whether a jump leads to [`END_OF_CATCH`], by the name that its slot imports, or by the function itself.
fn is_end_of_catch(modules: &Modules, module: &Module, callee: Callee, known: &[FunctionId]) -> bool {
    let slot = match callee {
        Callee::Direct(at) => module.image.stub_slot(at),
        Callee::Slot(slot) => Some(slot),
        Callee::Computed => None,
    };
    let imported = slot.and_then(|slot| module.image.import_at(slot)).is_some_and(|name| name == END_OF_CATCH);
    let is_it = |function: &FunctionId| {
        modules.module(function.module).is_some_and(|(_, m)| m.named(END_OF_CATCH).contains(&function.function))
    };
    imported || known.iter().any(is_it)
}

/// Whether the calls of other functions can end in a function: as far as its code tells, its entry and all of its exits can be woven.
fn takes_over(modules: &Modules, to: FunctionId) -> bool {
    modules.resolve(to).is_some_and(|(_, module, f)| {
        let exits = || module.image.exit_sites(f).is_ok_and(|sites| sites.iter().all(Result::is_ok));
        f.kind() == FunctionKind::Normal && module.image.entry_site(f).is_ok() && exits()
    })
}

/// Whether a function calls no other one, and ends in no jump to another one.
fn calls_nothing(modules: &Modules, function: FunctionId) -> bool {
    modules.resolve(function).is_some_and(|(_, module, f)| {
        module.image.exit_sites(f).is_ok_and(|exits| !exits.is_empty()) && module.image.callees(f).is_empty()
    })
}

/// Numbers functions so that those from which jumps lead to each other have the same number (Tarjan's algorithm for strongly connected
/// components, without recursion).
fn circles(jumps: &FxHashMap<FunctionId, Jumps>) -> FxHashMap<FunctionId, usize> {
    let mut circle: FxHashMap<FunctionId, usize> = FxHashMap::default();
    let mut seen: FxHashMap<FunctionId, usize> = FxHashMap::default();
    let (mut lowest, mut open): (Vec<usize>, Vec<FunctionId>) = (Vec::new(), Vec::new());
    for &root in jumps.keys() {
        if seen.contains_key(&root) {
            continue;
        }
        let mut path: Vec<(FunctionId, usize)> = vec![(root, 0)];
        while let Some((function, taken)) = path.last_mut() {
            let function = *function;
            if *taken == 0 {
                seen.insert(function, lowest.len());
                lowest.push(lowest.len());
                open.push(function);
            }
            let number = seen.get(&function).copied().unwrap_or_default();
            let next = jumps.get(&function).and_then(|all| all.get(*taken)).map(|jump| jump.to);
            *taken += 1;
            match next {
                Some(Some(to)) => match seen.get(&to) {
                    None => path.push((to, 0)),
                    Some(known) if !circle.contains_key(&to) => lowest[number] = lowest[number].min(lowest[*known]),
                    Some(_) => {}
                },
                Some(None) => {}
                None => {
                    path.pop();
                    if let Some(before) = path.last().and_then(|(f, _)| seen.get(f)) {
                        lowest[*before] = lowest[*before].min(lowest[number]);
                    }
                    if lowest[number] == number {
                        while let Some(member) = open.pop() {
                            circle.insert(member, number);
                            if member == function {
                                break;
                            }
                        }
                    }
                }
            }
        }
    }
    circle
}

impl TailBarriers<'_> {
    fn has(&self, function: &FunctionId) -> bool {
        self.unlanded.contains(function) || self.too_busy.contains(function)
    }
}

/// Follows the calls of one pair.
struct Follow<'a> {
    graph: &'a TailJumpGraph,
    barred: TailBarriers<'a>,
    /// Functions in which calls need not end that have jumped to them.
    silent: &'a FxHashSet<FunctionId>,
    pair: usize,
    /// The code at the exits of functions that open the same records.
    closers: &'a [&'a Closer<'a>],
    /// Number of records of other functions that the exits of each function close.
    at_exits: &'a mut FxHashMap<FunctionId, usize>,
    found: &'a mut TailCalls,
}

impl Follow<'_> {
    fn run(&mut self) {
        let own: FxHashSet<FunctionId> = self.closers.iter().map(|c| c.function).collect();
        // records with one name can only be closed by the same code
        let alike = self.closers.windows(2).all(|two| two[0].snippet == two[1].snippet);
        let mut targets: FxHashMap<(FunctionId, Svma), Option<FunctionId>> = FxHashMap::default();
        let mut passed: FxHashSet<FunctionId> = FxHashSet::default();
        for closer in self.closers {
            if self.graph.jumps_of(closer.function).is_empty() {
                continue;
            }
            for function in self.reached(closer.function, &own, alike, &mut targets) {
                *self.at_exits.entry(function).or_default() += 1;
                let code = |record: &CallRecord, body: &[Stmt]| Stmt::CloseHanded(record.clone(), body.to_vec());
                let exits = self.returns(function);
                self.add(function, closer, closer.instead(Whose::Earlier, &code), exits);
                // Each call that has jumped there has a record.
                let ends: Vec<Svma> = self
                    .graph
                    .jumps_of(function)
                    .iter()
                    .filter(|jump| self.ends_at(**jump))
                    .map(|jump| jump.at)
                    .collect();
                for at in ends {
                    let exits = Exits::Unless(at, [].into());
                    self.add(function, closer, closer.instead(Whose::Earlier, &code), exits);
                }
                if !own.contains(&function) && passed.insert(function) {
                    self.pass(function, closer, Whose::Earlier, &targets);
                }
            }
            self.found.enders.insert((closer.function, self.pair, std::ptr::from_ref(closer.snippet)));
            self.pass(closer.function, closer, Whose::Own, &targets);
            // registers the jumps, so that `jumps_without` excludes them
            self.returns(closer.function);
        }
    }

    /// The functions in which calls of `start` may end.
    fn reached(
        &mut self,
        start: FunctionId,
        own: &FxHashSet<FunctionId>,
        alike: bool,
        targets: &mut FxHashMap<(FunctionId, Svma), Option<FunctionId>>,
    ) -> Vec<FunctionId> {
        let mut reached = Vec::new();
        let mut seen = FxHashSet::from_iter([start]);
        let mut next = VecDeque::from([start]);
        while let Some(function) = next.pop_front() {
            for &jump in self.graph.jumps_of(function) {
                if self.ends_at(jump) {
                    continue;
                }
                let Jump { at, to, .. } = jump;
                let is_free = |to: &FunctionId| {
                    let back = own.contains(to) && self.graph.in_one_circle(function, *to);
                    let room = self.at_exits.get(to).is_none_or(|count| *count < CLOSERS_MAX);
                    alike && !back && room && seen.len() < FUNCTIONS_MAX && !self.barred.has(to)
                };
                let to = *targets.entry((function, at)).or_insert_with(|| to.filter(is_free));
                let Some(to) = to.filter(|to| seen.insert(*to)) else { continue };
                self.need(to);
                reached.push(to);
                next.push_back(to);
            }
        }
        reached
    }

    /// Notes that the entry of a function must tell handed records from left ones.
    fn need(&mut self, function: FunctionId) {
        self.found.entries.entry(function).or_insert(self.pair);
        self.found.users.entry(function).or_default().insert(self.pair);
    }

    /// Adds the code at the jumps of a function, for its own records or for those of functions that have jumped to it.
    fn pass(
        &mut self,
        function: FunctionId,
        closer: &Closer<'_>,
        whose: Whose,
        targets: &FxHashMap<(FunctionId, Svma), Option<FunctionId>>,
    ) {
        for &jump in self.graph.jumps_of(function) {
            let Jump { at, while_pointer, .. } = jump;
            if self.ends_at(jump) {
                if whose == Whose::Own {
                    let close = |record: &CallRecord, body: &[Stmt]| Stmt::Close(record.clone(), body.to_vec());
                    self.add(function, closer, closer.instead(whose, &close), Exits::Unless(at, [].into()));
                }
                continue;
            }
            let to = targets.get(&(function, at)).copied().flatten();
            let give_up = |record: &CallRecord, body: &[Stmt]| Stmt::GiveUp(record.clone(), whose, body.to_vec());
            let given_up = closer.instead(whose, &give_up);
            let needs: Arc<[_]> = match to {
                None => [].into(),
                Some(to) => {
                    let first = self.found.entries.get(&to).map(|pair| (to, *pair));
                    std::iter::once((to, self.pair)).chain(first).collect()
                }
            };
            if to.is_some() {
                let hand = |record: &CallRecord, body: &[Stmt]| Stmt::HandOver(record.clone(), whose, body.to_vec());
                let mut handed = closer.instead(whose, &hand);
                if let Some((slot, pointer)) = while_pointer {
                    let is = |op| {
                        let sides =
                            [Expr::Load(slot, Scalar::POINTER), Expr::Const(pointer.cast_signed())].map(Box::new);
                        let [now, then] = sides;
                        Expr::Binary(op, now, then)
                    };
                    handed =
                        vec![Stmt::If(is(BinaryOp::Equal), handed), Stmt::If(is(BinaryOp::NotEqual), given_up.clone())];
                }
                self.add(function, closer, handed, Exits::While(at, Arc::clone(&needs)));
            }
            self.add(function, closer, given_up, Exits::Unless(at, needs));
        }
    }

    /// Whether calls end at a jump, although the function that it leads to returns for them.
    fn ends_at(&self, jump: Jump) -> bool {
        jump.ends_catch || jump.lasting().is_some_and(|to| self.silent.contains(&to))
    }

    fn add(&mut self, function: FunctionId, closer: &Closer<'_>, stmts: Vec<Stmt>, exits: Exits) {
        let snippet = Arc::new(Snippet { stmts });
        let derived = Derived { function, kind: PointKind::Exit, pair: self.pair, role: closer.role, snippet, exits };
        self.found.derived.push(derived);
    }

    /// The exits of a function that are no jumps to other functions.
    fn returns(&mut self, function: FunctionId) -> Exits {
        let jumps = self.graph.jumps_of(function);
        if jumps.is_empty() {
            return Exits::All;
        }
        let all = self.found.jumps.entry(function);
        Exits::But(Arc::clone(all.or_insert_with(|| Arc::new(jumps.iter().map(|jump| jump.at).collect()))))
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use ingraft_model::ModuleId;

    #[test]
    fn functions_that_jump_to_each_other_are_one_circle() {
        let f = |function| FunctionId { module: ModuleId(0), function };
        let jump = |to| Jump { at: Svma(0), to: Some(f(to)), while_pointer: None, ends_catch: false };
        // 1 leads to 2; 2 and 3 lead to each other; 3 leads to 4; 4 leads to no known function
        let unknown = Jump { at: Svma(0), to: None, while_pointer: None, ends_catch: false };
        let jumps = [(1, vec![jump(2)]), (2, vec![unknown, jump(3)]), (3, vec![jump(4), jump(2)]), (4, vec![unknown])];
        let circle = circles(&jumps.into_iter().map(|(function, jumps)| (f(function), jumps)).collect());
        let number = |function| circle.get(&f(function)).copied().expect("a number");
        assert_eq!(number(2), number(3));
        let different: FxHashSet<usize> = [1, 2, 4].into_iter().map(number).collect();
        assert_eq!(different.len(), 3);
    }
}
