//! The generated code of one target and its places: arenas, displaced text, woven points; and verified plans that change them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_codegen::verify::{verify_removed, verify_removed_within};
use ingraft_codegen::{
    Arena, Cost, DisplacedCopy, Environment, MiniRequest, RemovalRecord, TextSpace, WovenBody, WovenPoint, remove_mini,
    remove_within,
};
use ingraft_model::{
    Avma, AvmaRange, FunctionId, FunctionPoint, ModuleId, PatchPlan, PointId, PointKind, Refusal, Site, Stmt, TextWrite,
};
use ingraft_process::Target;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::background::{each, each_in_background};
use crate::error::{Error, Reason};
use crate::program::file_id::FileId;
use crate::program::modules::{ModuleFile, Modules};
use crate::recovery::journal::{Entries, JournalRecord, NOBODY, PointChain, PointRecord, SHARED};
use crate::undertaking::{begin_step, interruptible};
use crate::weaving::arenas::{NewArenas, SIGNATURE_ROOM};
use crate::weaving::attempt::{Attempt, RefusedPairs, dependents, partial};
use crate::weaving::bodies::{Bodies, Body, Copies};
use crate::weaving::exits::hosts;
use crate::weaving::moving;
use crate::weaving::points::{Mini, Point, PointsByFunction};
use crate::weaving::sites::{FoundPoint, Text, are_known, in_copy, sites, whole};
use crate::weaving::unproven::defect;
use crate::weaving::wanted::{NewMini, NewPoint, WantedPoints, with_edges};

fn holds(arena: &Arena, code: &AvmaRange) -> bool {
    let all = arena.range();
    all.start <= code.start && code.end <= all.end
}

/// Key of the entry of a function, which is before the keys of all other points of the function.
fn entry(function: FunctionId) -> FunctionPoint {
    FunctionPoint { function, point: PointId::Entry }
}

fn whole_arena(arena: &Arena) -> AvmaRange {
    let range = arena.range();
    range.start.offset(-(SIGNATURE_ROOM as i64))..range.end
}

/// Cost of a count in a counting copy: one instruction that changes a word of memory.
const COUNT_IN_COPY: Cost = Cost { slots: 2, jumps: 0, clocks: 0, vdso: 0, locked: 0, system_calls: 0 };

/// Id of the snippet that prunes stale activations. It is at every entry at which a record is opened, before all other snippets.
pub const PRUNE: u64 = 0;

/// Index of the pair of a snippet that is woven already and moves with its point.
pub(super) const KEPT: usize = usize::MAX;

/// The generated code of one target.
#[derive(Clone, Debug, Default)]
pub struct Woven {
    pub(super) arenas: Vec<Arena>,
    /// Text that is in use and padding for islands, for each module.
    pub(super) texts: FxHashMap<u32, TextSpace>,
    /// Woven points.
    pub(super) points: PointsByFunction,
    /// Copies of whole functions, into which points are woven that have no room in the text.
    pub(super) bodies: Bodies,
    /// Code that nothing leads to any more, kept until it is known that no thread is in it.
    idle: Vec<AvmaRange>,
    /// Whether a thread may wait for room in a buffer, and then go on in idle code.
    idle_waits: bool,
    /// Ids of the snippets at which threads wait for the engine: at the loader's hook, and where a thread ends the process.
    pub hooks: Vec<u64>,
    /// Records of points that are gone from the target, with their text or without, and that fork children may still have.
    inherited: Vec<PointRecord>,
    /// Records of points that a dead engine wove. The points of a function can only be removed together.
    adopted: Vec<PointRecord>,
    /// The snippets at those points, by the points' keys, as far as the dead engine has recorded them.
    adopted_chains: BTreeMap<Avma, PointChain>,
    /// Arenas of a dead engine. It is not known which parts of them are free.
    adopted_arenas: Vec<AvmaRange>,
}

/// Code of a dead engine that no measurement needs.
#[derive(Debug)]
pub struct Spare {
    /// Points that can be removed.
    pub points: Vec<PointRecord>,
    /// Points that keep some of their snippets: the remaining snippets, and the writes that remove the others.
    pub chains: Vec<(PointChain, Vec<TextWrite>)>,
}

/// Result of weaving a request.
#[derive(Debug, Default)]
pub struct PlannedChange {
    /// The plan to apply.
    pub plan: PatchPlan,
    /// New points.
    pub new_points: Vec<WovenAnew>,
    /// Functions that cannot be woven for a pair of the request, with the reasons.
    pub refused: FxHashMap<(FunctionId, usize), Refusal>,
    /// Functions that were to be copied and cannot be, with the reasons.
    pub(super) not_copied: Vec<(FunctionId, Refusal)>,
    /// Points that get further snippets, in the order of the changes.
    pub chains: Vec<PointChain>,
    /// Points in the text whose snippets move into copies.
    pub gone: Vec<PointRecord>,
}

/// A change that is planned: it holds once its plan has been applied to the target. To drop it is to give it up.
#[derive(Debug)]
pub struct Planned {
    /// The plan, and what the request gets.
    pub change: PlannedChange,
    /// The generated code of the target as the change leaves it.
    pub woven: Woven,
}

/// A removal that is planned, like [`Planned`].
#[derive(Debug)]
pub struct PlannedRemoval {
    /// The plan.
    pub plan: PatchPlan,
    /// The points that go.
    pub gone: Vec<PointRecord>,
    /// The snippets that stay at points that lose others.
    pub chains: Vec<PointChain>,
    /// New counting copies.
    pub new_points: Vec<WovenAnew>,
    /// The generated code of the target as the removal leaves it.
    pub woven: Woven,
}

/// A new point, or a new copy of a function.
#[derive(Debug)]
pub struct WovenAnew {
    /// The file whose text changes.
    pub file: FileId,
    unit: Unit,
}

#[derive(Debug)]
pub(super) enum Unit {
    Point(Arc<Point>),
    Body(Arc<Body>),
    /// The counting copy of a function, which lies apart from the ordinary one.
    Counting(Arc<Body>),
}

impl WovenAnew {
    pub(super) fn new(file: FileId, unit: Unit) -> Self {
        WovenAnew { file, unit }
    }

    /// Key in the journal.
    pub fn key(&self) -> Avma {
        match &self.unit {
            Unit::Point(point) => point.woven.removal.key(),
            Unit::Body(body) => body.woven.removal.key(),
            Unit::Counting(body) => body.counting().key(),
        }
    }

    /// Snippets of the point, for the journal. A copy of a function has none.
    pub fn chain(&self) -> PointChain {
        match &self.unit {
            Unit::Point(point) => point.chain(),
            Unit::Body(body) => body.chain(&body.woven.removal),
            Unit::Counting(body) => body.chain(body.counting()),
        }
    }

    /// Adds what the journal keeps of it.
    pub fn note(&self, entries: &mut Entries) {
        entries.add_point(self.file, self.records());
        entries.add_first(&JournalRecord::Chain(self.chain()));
    }

    /// Removal records; a removal applies all of them.
    pub fn records(&self) -> impl Iterator<Item = &RemovalRecord> + Clone {
        let (point, body) = match &self.unit {
            Unit::Point(point) => (Some(point.woven.records()), None),
            Unit::Body(body) => (None, Some(&body.woven.removal)),
            Unit::Counting(body) => (None, Some(body.counting())),
        };
        point.into_iter().flatten().chain(body)
    }
}

/// The target to weave, its modules, and the facts about the target on which generated code depends.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub target: &'a Target,
    pub modules: &'a Modules,
    pub env: &'a Environment,
}

impl Woven {
    /// Takes over the points and arenas of a dead engine.
    pub fn adopt(
        adopted: Vec<PointRecord>,
        adopted_chains: BTreeMap<Avma, PointChain>,
        adopted_arenas: Vec<AvmaRange>,
    ) -> Self {
        Woven { adopted, adopted_chains, adopted_arenas, ..Woven::default() }
    }

    /// The part of a dead engine's code that no measurement needs. `owners` are the first counters of the values of the pairs that are
    /// needed. If no snippet of a function belongs to one of these pairs, all points of the function can be removed. At points that stay,
    /// writes bypass the snippets of other pairs. `follow` means that needed pairs follow calls, so that the snippets that such pairs share
    /// stay. Points whose owners the dead engine has not recorded stay.
    pub fn spare(&self, owners: &FxHashSet<u32>, follow: bool) -> Spare {
        let stays = |owner: u64| match u32::try_from(owner) {
            Ok(SHARED) => follow,
            Ok(NOBODY) | Err(_) => false,
            Ok(owner) => owners.contains(&owner),
        };
        let chain = |point: &PointRecord| self.adopted_chains.get(&point.removal.key());
        let needed: FxHashSet<Avma> = self
            .adopted
            .iter()
            .filter_map(chain)
            .filter(|c| c.chain.snippets.iter().any(|(owner, _)| stays(*owner)))
            .map(|c| c.chain.function)
            .collect();
        let goes = |point: &&PointRecord| chain(point).is_some_and(|c| !needed.contains(&c.chain.function));
        let points = self.adopted.iter().filter(goes).cloned().collect();
        let left = self.adopted.iter().filter_map(chain).filter(|c| needed.contains(&c.chain.function));
        let past = |known: &PointChain| {
            let is_used = known.chain.snippets.iter().any(|(owner, _)| stays(*owner));
            let serves = |owner: u64| is_used && owner == u64::from(NOBODY);
            let (chain, writes) = known.chain.keeping(|owner| stays(owner) || serves(owner));
            (!writes.is_empty()).then_some((PointChain { key: known.key, chain }, writes))
        };
        Spare { points, chains: left.filter_map(past).collect() }
    }

    /// Forgets points of a dead engine that were removed.
    pub fn forget_adopted(&mut self, points: &[PointRecord]) {
        let gone: FxHashSet<Avma> = points.iter().map(|p| p.removal.key()).collect();
        self.adopted.retain(|p| !gone.contains(&p.removal.key()));
        self.adopted_chains.retain(|key, _| !gone.contains(key));
    }

    /// Notes the present snippets of a point of a dead engine.
    pub fn change_adopted(&mut self, chain: PointChain) {
        self.adopted_chains.insert(chain.key, chain);
    }

    /// The first counters of the pairs of a dead engine that have code in a range of text; `None` if there is no such code.
    pub fn adopted_within(&self, text: &AvmaRange) -> Option<FxHashSet<u32>> {
        let lies = |w: &TextWrite| w.at < text.end && text.start < w.at.offset(w.len.into());
        let mut its = self.adopted.iter().filter(|point| point.removal.text.iter().any(lies)).peekable();
        its.peek()?;
        let chains = its.filter_map(|point| self.adopted_chains.get(&point.removal.key()));
        let owners = chains.flat_map(|c| &c.chain.snippets).filter_map(|(owner, _)| u32::try_from(*owner).ok());
        Some(owners.collect())
    }

    /// Ranges of the mapped arenas.
    pub fn arenas(&self) -> Vec<AvmaRange> {
        self.arenas.iter().map(whole_arena).chain(self.adopted_arenas.iter().cloned()).collect()
    }

    /// Length in bytes of the code in use.
    pub fn code_bytes(&self) -> u64 {
        let adopted = self.adopted.iter().map(|r| r.removal.code.end.0.saturating_sub(r.removal.code.start.0));
        self.arenas.iter().map(Arena::used).chain(adopted).sum()
    }

    pub(super) fn places_of(&self, function: FunctionId) -> impl Iterator<Item = FunctionPoint> + '_ {
        self.points.of(function).iter().map(|(place, _)| *place)
    }

    /// Costs of the hits that each counter counts, as if no other snippets stood at the points. The cost at a point is the worst case of
    /// the counter's snippets and of the code on the way to them. The result has the sum over the points, and the number of points.
    ///
    /// Snippets without a counter of their own cost their part at the entry of their function.
    pub fn costs(&self) -> FxHashMap<u32, (Cost, u32)> {
        let mut costs: FxHashMap<u32, (Cost, u32)> = FxHashMap::default();
        costs.reserve(self.points.len());
        for points in self.points.by_function() {
            let told = costs_told_by_entries(points);
            let function = points.first().map(|(place, _)| place.function);
            let counts =
                function.and_then(|function| self.bodies.get(&function)).is_some_and(|b| b.woven.is_counting());
            for (place, point) in points {
                let pruning = point.woven.minis.iter().find(|m| m.id == PRUNE).map(|m| m.cost);
                for (woven, mini) in point.woven.minis.iter().zip(&point.minis) {
                    let Some(meter) = mini.meter else { continue };
                    // stale activations are pruned before a snippet that may open a record
                    let prune = pruning.filter(|_| !meter.plain).unwrap_or_default();
                    let others = told.get(&mini.owner).filter(|_| place.point == PointId::Entry);
                    let sum = costs.entry(meter.counter).or_default();
                    let cost = match counts && meter.plain && point.woven.probe.is_some() {
                        // Nearly all threads run the counting copy.
                        true => COUNT_IN_COPY,
                        false => point.woven.cost + prune + woven.cost,
                    };
                    *sum = (sum.0 + cost + others.copied().unwrap_or_default(), sum.1.saturating_add(1));
                }
            }
        }
        costs
    }

    /// Whether all that is woven was woven by this engine.
    pub fn knows_all(&self) -> bool {
        self.adopted.is_empty()
    }

    /// Removal records of everything that this engine has written into the text: of points, without their snippets, and of copies of
    /// functions.
    pub fn changes(&self) -> impl Iterator<Item = &RemovalRecord> {
        let points = self.points.values().map(|point| &point.woven.removal);
        points.chain(self.bodies.values().map(|body| &body.woven.removal))
    }

    /// The copies of functions.
    pub fn copied(&self) -> impl Iterator<Item = &WovenBody> {
        self.bodies.values().map(|body| &body.woven)
    }

    /// The points of this engine.
    pub fn points(&self) -> impl Iterator<Item = (&FunctionPoint, &WovenPoint)> {
        self.points.iter().map(|(place, point)| (place, &*point.woven))
    }

    /// The points of a function that this engine has woven.
    pub fn points_of(&self, function: FunctionId) -> impl Iterator<Item = (FunctionPoint, &WovenPoint)> {
        self.points.of(function).iter().map(|(place, point)| (*place, &*point.woven))
    }

    /// Removal records of the points of a dead engine.
    pub fn adopted(&self) -> impl Iterator<Item = &RemovalRecord> {
        self.adopted.iter().map(|point| &point.removal)
    }

    /// The points of a function, with their snippets.
    pub(super) fn known(&self, function: FunctionId) -> &[(FunctionPoint, Arc<Point>)] {
        self.points.of(function)
    }

    /// A point by its key.
    pub(super) fn woven_at(&self, place: &FunctionPoint) -> Option<&WovenPoint> {
        self.points.get(place).map(|point| &*point.woven)
    }

    /// Forgets the points of a function. Returns them.
    pub(super) fn forget_points(&mut self, function: FunctionId) -> Vec<Arc<Point>> {
        let gone: Vec<Arc<Point>> = self.points.take(function).into_iter().map(|(_, point)| point).collect();
        if let Some(text) = self.text_space(function.module) {
            gone.iter().for_each(|point| text.release_point(&point.woven));
        }
        gone
    }

    /// Takes back points of a function that were forgotten or changed: `before` is the generated code with them. Returns whether their text is
    /// still free.
    pub(super) fn restore_points(&mut self, function: FunctionId, before: &Woven) -> bool {
        before.points.of(function).iter().all(|(place, point)| {
            self.points.insert(*place, Arc::clone(point));
            match (self.texts.get_mut(&function.module.0), before.texts.get(&function.module.0)) {
                (Some(text), Some(before)) => text.take_again(&point.woven, before),
                _ => true,
            }
        })
    }

    /// Forgets a point.
    pub(super) fn remove_point(&mut self, place: &FunctionPoint) {
        self.points.remove(place);
    }

    /// Text that is in use in a module.
    pub(super) fn text_space(&mut self, module: ModuleId) -> Option<&mut TextSpace> {
        self.texts.get_mut(&module.0)
    }

    /// Whether a function runs as a copy.
    pub fn is_copied(&self, function: FunctionId) -> bool {
        self.bodies.contains_key(&function)
    }

    /// Number of snippets at a point; `None` if the point is not woven.
    pub fn snippets_at(&self, place: &FunctionPoint) -> Option<usize> {
        self.points.get(place).map(|p| p.woven.minis.len())
    }

    /// Whether a uprobe would make threads continue in the middle of a springboard: one on the first byte of the function, or one on any
    /// instruction of a function that is copied.
    pub fn is_exposed(&self, modules: &Modules, function: FunctionId) -> bool {
        let Some((_, module, f)) = modules.resolve(function) else { return false };
        let first = f.start().to_avma(module.bias);
        let covers = |w: &TextWrite| (w.at..w.at.offset(w.len.into())).contains(&first);
        let mut points = self.known(function).iter().flat_map(|(_, point)| &point.woven.removal.text);
        self.bodies.contains_key(&function) || points.any(covers)
    }

    /// Address of the springboard at a function's entry.
    pub fn entry_of(&self, function: FunctionId) -> Option<Avma> {
        let point = self.woven_at(&entry(function))?;
        match point.probe {
            Some(_) => self.bodies.get(&function)?.woven.entry_springboard(),
            None => Some(point.at),
        }
    }

    /// Number of woven points.
    pub fn len(&self) -> usize {
        self.points.len() + self.adopted.len()
    }

    /// Records that remove all points, in the target and in fork children.
    pub fn records(&self, modules: &Modules) -> Vec<PointRecord> {
        let own = self.points.iter().map(|(place, p)| point_record(modules, place.function.module, p));
        let bodies = self.bodies.iter().flat_map(|(function, body)| body.records(modules, function.module));
        own.chain(bodies).chain(self.adopted.iter().cloned()).chain(self.inherited.iter().cloned()).collect()
    }

    /// The modules that have points.
    pub fn modules(&self) -> Vec<ModuleId> {
        let mut found = Vec::new();
        let mut next = ModuleId(0);
        while let Some(module) = self.points.next_module(next) {
            found.push(module);
            next = ModuleId(module.0 + 1);
        }
        found
    }

    /// The writes to the text of a module.
    pub fn text_of(&self, module: ModuleId) -> impl Iterator<Item = &TextWrite> {
        let points = self.points.of_module(module);
        points
            .flat_map(|(_, p)| &p.woven.removal.text)
            .chain(self.bodies_of(module).flat_map(|body| &body.removal.text))
    }

    /// Forgets the points of a module whose text is gone, so that the engine writes nothing there any more. Returns their records.
    pub fn retire(&mut self, modules: &Modules, module: ModuleId) -> Vec<PointRecord> {
        let mut functions: Vec<FunctionId> = self.points.of_module(module).map(|(place, _)| place.function).collect();
        functions.dedup();
        let points: Vec<_> = functions.into_iter().flat_map(|function| self.points.take(function)).collect();
        self.texts.remove(&module.0);
        let mut gone = Vec::with_capacity(points.len());
        for (_, point) in points {
            gone.push(point_record(modules, module, &point));
            self.idle_waits |= point.minis.iter().any(|mini| mini.snippet.waits_for_room());
            self.leave_idle(&RemovalRecord::combine(point.woven.records()).retired);
        }
        gone.extend(self.retire_bodies(modules, module));
        gone
    }

    /// Keeps records of points that are gone, for the fork children that still have them.
    pub fn keep_inherited(&mut self, records: Vec<PointRecord>) {
        for record in records {
            if !self.inherited.contains(&record) {
                self.inherited.push(record);
            }
        }
    }

    /// Drops the records for fork children, when there are no fork children any more.
    pub fn drop_inherited(&mut self) {
        self.inherited.clear();
    }

    /// The pages of text that hold a springboard, as module and address of one byte of each.
    pub fn text_at(&self) -> impl Iterator<Item = (ModuleId, Avma)> {
        let module = |place: &FunctionPoint| place.function.module;
        let points =
            self.points.iter().flat_map(move |(at, p)| p.woven.removal.text.iter().map(move |w| (module(at), w.at)));
        let bodies = self.bodies.iter();
        points.chain(bodies.flat_map(|(f, body)| body.woven.removal.text.iter().map(move |w| (f.module, w.at))))
    }

    /// Plans a change: chooses springboards and generates code for snippets. The target is not changed, except that arenas are mapped. They stay,
    /// empty, even if the plan fails or is dropped; `record` is called with each before it is mapped. If a point of a function cannot be woven
    /// for a pair, none of the pair's snippets in that function is woven.
    pub fn plan(
        &mut self,
        target: &Target,
        modules: &Modules,
        env: &Environment,
        wanted: &[WantedPoints<'_>],
        record: &mut dyn FnMut(&AvmaRange) -> Result<(), Error>,
    ) -> Result<Planned, Error> {
        let subject = Subject { target, modules, env };
        let mut mapped = NewArenas { record, signatures: Vec::new(), ranges: Vec::new() };
        let planned = interruptible(|| self.plan_within(subject, wanted, &mut mapped));
        self.arenas.extend(mapped.ranges.into_iter().map(Arena::new));
        planned
    }

    fn plan_within(
        &self,
        subject: Subject<'_>,
        wanted: &[WantedPoints<'_>],
        mapped: &mut NewArenas<'_>,
    ) -> Result<Planned, Error> {
        let modules = subject.modules;
        let text = Text::new(subject.target, self.changes());
        let in_copies = with_edges(wanted);
        let is_in_copy = |w: &WantedPoints<'_>| w.minis.iter().all(|mini| in_copies.contains(&(w.function, mini.pair)));
        let look = |w: &WantedPoints<'_>| {
            let mut found = match w.kind {
                PointKind::Block | PointKind::Edge if is_in_copy(w) => {
                    in_copy(&text, modules, w.function, (w.kind, &w.wanted_points()))
                }
                kind => sites(&text, modules, w.function, kind),
            };
            w.assign(&mut found);
            found
        };
        begin_step(|| format!("finding {}", in_words(wanted.len())), wanted.len() as u64);
        let mut sites: Vec<_> = match wanted.iter().all(|w| are_known(modules, w.function, w.kind)) {
            true => each(wanted, look),
            false => each_in_background(wanted, look),
        };
        let hosts = hosts(&text, modules, wanted, &mut sites);
        let mut copies = Copies::choose(Some(self), (&text, modules), wanted, &mut sites);
        let mut moving = moving::points(self, (&text, modules), &mut copies);
        let records = subject.env.goroutine.is_some();
        let refused = |(w, sites): (&WantedPoints<'_>, &Result<Vec<FoundPoint>, Refusal>), copies: &Copies| {
            w.refused(sites, copies, records)
        };
        let mut refused_at_all: RefusedPairs =
            wanted.iter().zip(&sites).flat_map(|its| refused(its, &copies)).collect();
        let mut attempt = Attempt::at(self, mapped);
        // The functions that are woven again; `None` for all.
        let mut again: Option<FxHashSet<FunctionId>> = None;
        loop {
            let is_its = |w: &WantedPoints<'_>| again.as_ref().is_none_or(|again| again.contains(&w.function));
            let its: Vec<_> = wanted.iter().zip(&sites).filter(|(w, _)| is_its(w)).collect();
            // Each attempt looks at every point twice, generates its code and proves it.
            let how = if again.is_some() { " in another way" } else { "" };
            begin_step(|| format!("generating code for {}{how}", in_words(its.len())), 4 * its.len() as u64);
            let found = each(&its, |(w, sites)| w.points(sites, &refused_at_all, &copies));
            let moves_again = |function: &FunctionId| again.as_ref().is_none_or(|again| again.contains(function));
            attempt.move_points(subject, (&moving, moves_again), (&copies, &found), mapped)?;
            attempt.weave(subject, found, (&hosts, &copies), mapped)?;
            let mut anew = std::mem::take(&mut attempt.change.refused);
            let mut not_copied = std::mem::take(&mut attempt.change.not_copied);
            not_copied.extend(attempt.woven.idle_bodies(&anew));
            not_copied.extend(copies.done_without(&anew));
            let mut next: FxHashSet<FunctionId> = not_copied.iter().map(|(function, _)| *function).collect();
            copies.give_up(not_copied);
            anew.retain(|(function, _), _| !next.contains(function));
            let chosen = copies.add_refused((&text, modules), wanted, &mut sites, &anew);
            if !chosen.is_empty() {
                moving = moving::points(self, (&text, modules), &mut copies);
                anew.retain(|(function, _), _| !chosen.contains(function));
            }
            let given_up = wanted.iter().zip(&sites).filter(|(w, _)| next.contains(&w.function));
            anew.extend(given_up.flat_map(|its| refused(its, &copies)));
            next.extend(chosen);
            next.extend(partial(wanted, &sites, &anew));
            next.extend(dependents(wanted, &anew));
            refused_at_all.extend(anew);
            if next.is_empty() {
                break;
            }
            let kept = attempt.withdraw(&next, self);
            if !kept {
                attempt = Attempt::at(self, mapped);
            }
            again = kept.then_some(next);
        }
        let Planned { mut change, mut woven } = attempt.finish();
        change.refused = refused_at_all;
        // a successor recognises an arena by its signature, so signatures are written before any code
        change.plan.code.splice(..0, mapped.signatures.drain(..));
        // A thread before a call that begins a block moves into the copy; the point before the call is later on its way.
        change.plan.moves.sort_by_key(|m| m.from);
        change.plan.moves.dedup_by_key(|m| m.from);
        sort(&mut change.plan)?;
        change.plan = woven.with_moves(&moving, &copies, change.plan)?;
        woven.leave_idle(&change.plan.retired);
        Ok(Planned { change, woven })
    }

    /// Adds entries without snippets for exits that only these entries can hold, unless the entries are woven or among the points.
    pub(super) fn add_hosts<'a>(&self, hosts: &'a FxHashMap<FunctionId, Arc<Site>>, points: &mut Vec<NewPoint<'a>>) {
        let entries: FxHashSet<FunctionId> =
            points.iter().filter(|p| p.point.point == PointId::Entry).map(|p| p.point.function).collect();
        let mut missing: Vec<FunctionId> =
            points.iter().filter(|p| !p.in_copy && p.site.is_within_entry()).map(|p| p.point.function).collect();
        missing.retain(|function| !entries.contains(function) && self.points.get(&entry(*function)).is_none());
        missing.dedup();
        points.extend(missing.into_iter().filter_map(|function| {
            let site = hosts.get(&function)?;
            Some(NewPoint { point: entry(function), site, minis: Vec::new(), in_copy: false })
        }));
    }

    /// Plans to remove snippets from points; points without snippets are removed. With `renew`, functions that keep some get new counting copies.
    pub fn plan_removal(
        &self,
        (target, modules, env): (&Target, &Modules, &Environment),
        minis: &[(FunctionId, u64)],
        renew: bool,
    ) -> Result<PlannedRemoval, Error> {
        let subject = Subject { target, modules, env };
        let mut woven = self.clone();
        let mut plan = PatchPlan::default();
        let (mut new_points, mut given_up) = (Vec::new(), Vec::new());
        let (mut gone, mut chains) = (Vec::new(), Vec::new());
        let mut left: FxHashMap<FunctionId, Vec<u64>> = FxHashMap::default();
        for (function, id) in minis {
            left.entry(*function).or_default().push(*id);
        }
        let mut order: Vec<_> = left.into_iter().collect();
        order.sort_unstable_by_key(|(f, _)| *f);
        for (function, ids) in order {
            let places: Vec<FunctionPoint> = woven.places_of(function).collect();
            let idle = |p: &Point| p.woven.minis.iter().all(|m| m.id == PRUNE || ids.contains(&m.id));
            let staying = staying(&woven.points, &places, idle);
            let offered: FxHashSet<DisplacedCopy> = staying
                .iter()
                .filter_map(|place| woven.points.get(place))
                .flat_map(|p| p.woven.inner.iter().copied())
                .collect();
            let stays = |inner: &DisplacedCopy| offered.contains(inner);
            let needs_body = |place: &FunctionPoint| woven.points.get(place).is_some_and(|p| p.woven.probe.is_some());
            let body_stays = staying.iter().any(needs_body);
            for place in places {
                let Some(point) = woven.points.get(&place) else { continue };
                let is_idle = idle(point);
                woven.idle_waits |= point.minis.iter().any(|mini| mini.snippet.waits_for_room());
                if !staying.contains(&place) {
                    let removed = match remove_within(&point.woven, stays, body_stays) {
                        Some(alone) => {
                            verify_removed_within(&alone, &point.woven, stays, body_stays).map_err(|e| defect(&e))?;
                            alone
                        }
                        None => RemovalRecord::combine(point.woven.records()),
                    };
                    gone.push(point_record(modules, function.module, point));
                    append(&mut plan, removed);
                    if let Some(text) = woven.texts.get_mut(&function.module.0) {
                        text.release_point(&point.woven);
                    }
                    continue;
                }
                let Some(point) = woven.points.get_mut(&place) else { continue };
                for id in ids.iter().chain(is_idle.then_some(&PRUNE)) {
                    let Some(index) = point.woven.minis.iter().position(|m| m.id == *id) else { continue };
                    let arena = &woven.arenas[point.arena];
                    let before = Arc::clone(point);
                    let point = Arc::make_mut(point);
                    let removed = remove_mini(arena, &mut point.woven, *id).map_err(codegen_error)?;
                    verify_removed(arena, &removed, &before.woven, &point.woven).map_err(|e| defect(&e))?;
                    point.minis.remove(index);
                    append(&mut plan, removed);
                    chains.push(point.chain());
                }
            }
            woven.points.retain(function, |place| staying.contains(place));
            if body_stays {
                given_up.extend(woven.give_up_counting(modules, function, (&mut plan, &mut gone)).then_some(function));
            } else if let Some(body) = woven.remove_body(function) {
                append(&mut plan, RemovalRecord::combine(body.woven.records()));
                gone.extend(body.records(modules, function.module));
            }
        }
        if renew && !given_up.is_empty() {
            let text = Text::new(target, self.changes());
            let find = |function| whole(&text, modules, function).ok();
            woven.renew_counting(subject, (&given_up, &find), (&mut plan, &mut new_points))?;
        }
        sort(&mut plan)?;
        woven.leave_idle(&plan.retired);
        Ok(PlannedRemoval { plan, gone, chains, new_points, woven })
    }

    /// The shared routines of all arenas in which a thread may be about to read a word that a change writes.
    pub fn routines(&self) -> Vec<AvmaRange> {
        let reads = |arena: &Arena| {
            let mut shared = arena.shared();
            shared.retain(|range| Some(range) != arena.room());
            shared
        };
        self.arenas.iter().map(reads).collect::<Vec<_>>().concat()
    }

    /// The shared routines from which threads may return into idle code, and which they leave soon.
    pub fn routines_of_passers(&self) -> Vec<AvmaRange> {
        self.arenas.iter().flat_map(|arena| self.without_room(arena, Arena::shared_by_passers)).collect()
    }

    /// These shared routines, without the one from which no thread returns into idle code: there, threads wait for room in a buffer.
    fn without_room(&self, arena: &Arena, of: fn(&Arena) -> Vec<AvmaRange>) -> Vec<AvmaRange> {
        let mut routines = of(arena);
        routines.retain(|range| self.idle_waits || Some(range) != arena.room());
        routines
    }

    /// Whether threads wait for the engine at a point.
    fn is_hook(&self, point: &Point) -> bool {
        point.woven.minis.iter().any(|mini| self.hooks.contains(&mini.id))
    }

    /// The routines in which threads wait for the engine. None if a function in which they wait has other code: then it is not known what a waiting
    /// thread has executed of that code.
    pub(super) fn waiting_routines(&self) -> Vec<AvmaRange> {
        let alone = |(place, point): &(FunctionPoint, Arc<Point>)| {
            let others = || self.points.of(place.function).len() > 1 || self.is_copied(place.function);
            !self.is_hook(point) || point.woven.minis.len() == 1 && !others()
        };
        if !self.points.iter().all(alone) {
            return Vec::new();
        }
        self.arenas.iter().filter_map(Arena::awaiting).cloned().collect()
    }

    /// Notes code that a removal left behind.
    pub fn leave_idle(&mut self, code: &[AvmaRange]) {
        self.idle.extend_from_slice(code);
    }

    /// The ranges that must be free of threads before idle code can be reused, sorted: that code, and the routines that it calls and that
    /// return to it.
    pub fn idle(&self) -> Vec<AvmaRange> {
        let holds = |arena: &&Arena| self.idle.iter().any(|code| holds(arena, code));
        // a waiting thread came from the hook's snippet and returns there; it waits while the code of unloaded libraries becomes idle
        let routines = if self.points.values().any(|point| self.is_hook(point)) {
            Arena::shared_by_passers
        } else {
            Arena::shared
        };
        let routines = self.arenas.iter().filter(holds).flat_map(|arena| self.without_room(arena, routines));
        let ranges: Vec<AvmaRange> = self.idle.iter().cloned().chain(routines).collect();
        // a point without room of its own lies within the code of another point
        joined(ranges)
    }

    /// Frees idle code in these ranges of [`Woven::idle`] for reuse, because no thread is in it. An arena without points is reset.
    pub fn release(&mut self, quiet: &[AvmaRange]) {
        let is_quiet = |code: &AvmaRange| {
            let next = quiet.partition_point(|r| r.start <= code.start);
            next.checked_sub(1).and_then(|i| quiet.get(i)).is_some_and(|r| code.end <= r.end)
        };
        let (released, idle): (Vec<_>, Vec<_>) = std::mem::take(&mut self.idle).into_iter().partition(is_quiet);
        self.idle = idle;
        self.idle_waits &= !self.idle.is_empty();
        for (number, arena) in self.arenas.iter_mut().enumerate() {
            let mut its = released.iter().filter(|code| holds(arena, code)).peekable();
            if its.peek().is_none() {
                continue;
            }
            let its: Vec<&AvmaRange> = its.collect();
            its.into_iter().for_each(|code| arena.release(code));
            if self.points.values().all(|p| p.arena != number)
                && self.bodies.values().all(|b| b.arena != number)
                && !self.idle.iter().any(|code| holds(arena, code))
            {
                *arena = Arena::new(arena.range());
            }
        }
    }
}

/// Ranges in the order of their addresses, with those that overlap joined.
pub(super) fn joined(mut ranges: Vec<AvmaRange>) -> Vec<AvmaRange> {
    ranges.sort_unstable_by_key(|r| r.start);
    ranges.dedup_by(|later, first| {
        let overlap = later.start < first.end;
        if overlap {
            first.end = first.end.max(later.end);
        }
        overlap
    });
    ranges
}

/// The points of a function that stay when the idle ones are removed. A point that displaces instructions of other points stays as long as
/// they do.
fn staying(
    points: &PointsByFunction,
    places: &[FunctionPoint],
    idle: impl Fn(&Point) -> bool,
) -> FxHashSet<FunctionPoint> {
    let (mut left, mut stay): (Vec<_>, Vec<_>) =
        places.iter().filter_map(|place| Some((place, points.get(place)?))).partition(|(_, point)| idle(point));
    let mut from = 0;
    while let Some(new) = stay.get(from..).filter(|new| !new.is_empty()) {
        let needed: FxHashSet<&DisplacedCopy> = new.iter().flat_map(|(_, point)| point.woven.needs()).collect();
        from = stay.len();
        let (hosts, rest): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, point)| point.woven.inner.iter().any(|inner| needed.contains(inner)));
        left = rest;
        stay.extend(hosts);
    }
    stay.into_iter().map(|(place, _)| *place).collect()
}

/// Costs of snippets without a counter at the points of one function, by their owners: those at its dearest exit, and one of the others.
fn costs_told_by_entries(points: &[(FunctionPoint, Arc<Point>)]) -> FxHashMap<u32, Cost> {
    let (mut exits, mut others): (FxHashMap<u32, Cost>, FxHashMap<u32, Cost>) = Default::default();
    for (place, point) in points {
        let mut here: FxHashMap<u32, Cost> = FxHashMap::default();
        let untold = point.woven.minis.iter().zip(&point.minis).filter(|(_, mini)| mini.meter.is_none());
        for (woven, mini) in untold.filter(|(_, mini)| !matches!(mini.owner, NOBODY | SHARED)) {
            *here.entry(mini.owner).or_insert(point.woven.cost) += woven.cost;
        }
        let of = if matches!(place.point, PointId::Exit(_)) { &mut exits } else { &mut others };
        for (owner, cost) in here {
            let known = of.entry(owner).or_default();
            *known = std::cmp::max_by_key(*known, cost, |cost| cost.weight());
        }
    }
    others.into_iter().for_each(|(owner, cost)| *exits.entry(owner).or_default() += cost);
    exits
}

impl NewMini<'_> {
    pub(super) fn known(&self) -> Mini {
        let (snippet, counters) = (Arc::clone(self.snippet), Arc::clone(&self.counters));
        Mini { role: self.role, snippet, counters, meter: self.meter, owner: self.owner() }
    }

    /// The owner of the snippet in the journal: the first counter of its pair, which is that of the pair's value.
    fn owner(&self) -> u32 {
        let internal = |stmt: &Stmt| matches!(stmt, Stmt::Await | Stmt::Fork | Stmt::Forked);
        let serves = self.id == PRUNE || self.snippet.stmts.iter().any(internal);
        self.counters.first().copied().unwrap_or(if serves { NOBODY } else { SHARED })
    }

    pub(super) fn request(&self) -> MiniRequest<'_> {
        MiniRequest { id: self.id, snippet: self.snippet, counters: &self.counters }
    }
}

/// All removal records of a point, merged into one for the journal.
pub(super) fn point_record(modules: &Modules, module: ModuleId, point: &Point) -> PointRecord {
    let RemovalRecord { text, code, .. } = &point.woven.removal;
    let all = |of: fn(&RemovalRecord) -> usize| point.woven.records().map(of).sum();
    let mut removal = RemovalRecord {
        text: text.clone(),
        moves: Vec::with_capacity(all(|record| record.moves.len())),
        step_out: Vec::with_capacity(all(|record| record.step_out.len())),
        code: code.clone(),
    };
    for record in point.woven.records() {
        removal.moves.extend_from_slice(&record.moves);
        removal.step_out.extend_from_slice(&record.step_out);
    }
    PointRecord { file: modules.file(module).map(ModuleFile::id).unwrap_or_default(), removal }
}

pub(super) fn append(plan: &mut PatchPlan, mut more: PatchPlan) {
    plan.code.append(&mut more.code);
    plan.text.append(&mut more.text);
    plan.moves.append(&mut more.moves);
    plan.step_out.append(&mut more.step_out);
    plan.retired.append(&mut more.retired);
}

/// A number of points in words.
fn in_words(points: usize) -> String {
    if points == 1 { "1 point".to_owned() } else { format!("{points} points") }
}

/// Sorts a plan. If one change has rewritten a live jump several times, the first `old` and the last `new` remain. Fails if a write does not
/// expect what the one before it has written: then two changes want the same bytes.
fn sort(plan: &mut PatchPlan) -> Result<(), Error> {
    let mut contradiction = None;
    plan.text.sort_by_key(|w| w.at);
    plan.text.dedup_by(|later, first| {
        let same = later.at == first.at;
        if same {
            let follows = later.len == first.len && later.old == first.new;
            contradiction = contradiction.or((!follows).then_some(first.at));
            first.new = later.new;
        }
        same
    });
    if let Some(at) = contradiction {
        return Err(defect(&format_args!("two writes at {at} contradict each other")));
    }
    plan.moves.sort_unstable();
    plan.moves.dedup();
    plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
    plan.step_out.dedup();
    plan.retired.sort_unstable_by_key(|r| r.start);
    Ok(())
}

pub(super) fn codegen_error(e: ingraft_codegen::CodegenError) -> Error {
    let hint = match e {
        ingraft_codegen::CodegenError::ArenaFull => "name fewer functions, or those of one library",
        _ => "",
    };
    Error::new(Reason::Codegen, format!("code could not be generated: {e}"), hint)
}
