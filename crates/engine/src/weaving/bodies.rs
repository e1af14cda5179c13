//! Copies of whole functions, for points without room in the text: when a function is copied, and the records of its copy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_codegen::verify::{verify_bodies_on, verify_body, verify_weave};
use ingraft_codegen::{
    Arena, BodyCode, BodyPoint, BodyRequest, Chain, Environment, InlinePoint, RemovalRecord, TextSpace, WithCopy,
    WovenBody, WovenPoint, share_slow_routines, weave_bodies_on,
};
use ingraft_model::{FunctionBody, FunctionId, FunctionPoint, ModuleId, PatchPlan, Placing, PointId, Refusal, Site};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::background::Quick;
use crate::error::Error;
use crate::program::file_id::FileId;
use crate::program::modules::{ModuleFile, Modules};
use crate::recovery::journal::{PointChain, PointRecord};
use crate::weaving::arenas::{ARENA_MAX, NewArenas, arena_for};
use crate::weaving::attempt::RefusedPairs;
use crate::weaving::original::OriginalText;
use crate::weaving::plan::{PlannedChange, Subject, Unit, Woven, WovenAnew, append, codegen_error};
use crate::weaving::points::functions_of;
use crate::weaving::sites::{FoundPoint, Text, host, whole};
use crate::weaving::unproven::{defect, unproven};
use crate::weaving::wanted::{NewMini, NewPoint, WantedPoints, place_among, to_add};

/// The copy of a function.
#[derive(Clone, Debug)]
pub(super) struct Body {
    pub woven: WovenBody,
    /// The text of the function before it was copied.
    pub original: OriginalText,
    /// Index of the arena that holds the copy.
    pub arena: usize,
}

/// A point as it can be woven into the copy of its function.
#[derive(Clone, Debug)]
pub struct Hosted {
    /// Site of the point.
    pub site: Arc<Site>,
    /// The function.
    pub body: Arc<FunctionBody>,
}

/// Functions whose points of a request are woven into copies, and functions that cannot be copied, with the reasons.
#[derive(Debug, Default)]
pub struct Copies {
    chosen: FxHashMap<FunctionId, Arc<FunctionBody>>,
    refused: FxHashMap<FunctionId, Refusal>,
    /// The chosen functions whose points have room in the text, too: copies make them cheaper if they are busy.
    dispensable: FxHashSet<FunctionId>,
}

impl Copies {
    /// Chooses the functions to copy: those with a copy, and those in which a wanted point lacks room. Notes for all points of these
    /// functions how they can be woven into the copy.
    pub fn choose(
        woven: Option<&Woven>,
        (text, modules): (&Text<'_>, &Modules),
        wanted: &[WantedPoints<'_>],
        sites: &mut [Result<Vec<FoundPoint>, Refusal>],
    ) -> Self {
        let mut copies = Copies::default();
        let is_copied = |function: &FunctionId| woven.is_some_and(|woven| woven.bodies.contains_key(function));
        for (w, sites) in wanted.iter().zip(&*sites) {
            if copies.chosen.contains_key(&w.function) {
                continue;
            }
            let found = || sites.iter().flatten();
            let may_move = |f: &FoundPoint| w.minis_for(f).any(|mini| mini.placing != Placing::InText);
            let lacks_room = || found().any(|f| f.site.is_err() && may_move(f));
            let prefers = || w.minis.iter().any(|mini| matches!(mini.placing, Placing::InCopy | Placing::InCopyIfBusy));
            let known = || found().find_map(|found| Some(Arc::clone(&found.hosted.as_ref()?.body)));
            let needed = is_copied(&w.function) || lacks_room() || prefers();
            if needed && let Some(body) = known().or_else(|| whole(text, modules, w.function).ok()) {
                copies.chosen.insert(w.function, body);
            }
        }
        let is_needed = |(w, sites): (&WantedPoints<'_>, &Result<Vec<FoundPoint>, Refusal>)| {
            let must = w.minis.iter().any(|mini| mini.placing == Placing::InCopy);
            must || sites.iter().flatten().any(|found| found.site.is_err())
        };
        let needed: FxHashSet<FunctionId> =
            wanted.iter().zip(&*sites).filter(|its| is_needed(*its)).map(|(w, _)| w.function).collect();
        let is_dispensable = |function: &FunctionId| !needed.contains(function) && !is_copied(function);
        copies.dispensable = copies.chosen.keys().copied().filter(is_dispensable).collect();
        for (w, sites) in wanted.iter().zip(sites) {
            if let (Ok(found), Some(body)) = (sites, copies.chosen.get(&w.function)) {
                host(w.kind, body, found);
            }
        }
        copies
    }

    /// Chooses the functions some of whose points were refused in the text for want of room, although each of them alone has room. Returns
    /// these functions.
    pub(super) fn add_refused(
        &mut self,
        (text, modules): (&Text<'_>, &Modules),
        wanted: &[WantedPoints<'_>],
        sites: &mut [Result<Vec<FoundPoint>, Refusal>],
        refused: &RefusedPairs,
    ) -> Vec<FunctionId> {
        let is_new =
            |function: &FunctionId| !self.chosen.contains_key(function) && !self.refused.contains_key(function);
        let minis = wanted.iter().flat_map(|w| &w.minis);
        let in_text: FxHashSet<usize> =
            minis.filter(|mini| mini.placing == Placing::InText).map(|mini| mini.pair).collect();
        let may_move = refused.keys().filter(|(_, pair)| !in_text.contains(pair));
        let functions: FxHashSet<FunctionId> = may_move.map(|(function, _)| *function).filter(is_new).collect();
        let mut chosen = Vec::new();
        for function in functions {
            match whole(text, modules, function) {
                Ok(body) => {
                    self.chosen.insert(function, body);
                    chosen.push(function);
                }
                Err(refusal) => drop(self.refused.insert(function, refusal)),
            }
        }
        if chosen.is_empty() {
            return chosen;
        }
        for (w, sites) in wanted.iter().zip(sites) {
            if let (Ok(found), Some(body)) = (sites, self.chosen.get(&w.function)) {
                host(w.kind, body, found);
            }
        }
        chosen
    }

    /// Site of a point, and whether the point is woven into the copy of its function.
    pub fn site<'f>(&self, function: FunctionId, found: &'f FoundPoint) -> Result<(&'f Site, bool), Refusal> {
        match &found.hosted {
            Some(hosted) if self.chosen.contains_key(&function) => Ok((&hosted.site, true)),
            hosted => found.site.as_ref().map(|site| (&**site, false)).map_err(|in_text| {
                let body = self.refused.get(&function).filter(|_| hosted.is_some());
                body.unwrap_or(in_text).clone()
            }),
        }
    }

    /// The functions to copy.
    pub(super) fn chosen(&self) -> impl Iterator<Item = (FunctionId, &Arc<FunctionBody>)> {
        self.chosen.iter().map(|(function, body)| (*function, body))
    }

    /// A function that is to be copied, or is copied.
    pub(super) fn body_of(&self, function: FunctionId) -> Option<&Arc<FunctionBody>> {
        self.chosen.get(&function)
    }

    /// Whether a function is to be copied.
    pub(super) fn has_chosen(&self, function: FunctionId) -> bool {
        self.chosen.contains_key(&function)
    }

    /// The functions with refused points whose copies can be done without, each with the reason.
    pub(super) fn done_without(&self, refused: &RefusedPairs) -> Vec<(FunctionId, Refusal)> {
        let is_its = |((function, _), _): &(&(FunctionId, usize), &Refusal)| {
            self.dispensable.contains(function) && self.chosen.contains_key(function)
        };
        let functions: FxHashMap<FunctionId, Refusal> =
            refused.iter().filter(is_its).map(|((function, _), refusal)| (*function, refusal.clone())).collect();
        functions.into_iter().collect()
    }

    /// Gives up copies.
    pub fn give_up(&mut self, refused: Vec<(FunctionId, Refusal)>) {
        for (function, refusal) in refused {
            self.chosen.remove(&function);
            self.refused.insert(function, refusal);
        }
    }
}

impl Body {
    /// Entry of one of its records for the journal, which has no snippets of its own.
    pub fn chain(&self, removal: &RemovalRecord) -> PointChain {
        let start = removal.code.start;
        let chain = Chain { function: self.woven.function, slot: start, leave: start, snippets: Vec::new() };
        PointChain { key: removal.key(), chain }
    }

    /// The record of the counting copy: its own, or that of the whole copy of which it is a part.
    pub fn counting(&self) -> &RemovalRecord {
        let apart = self.woven.counting.as_ref().and_then(|counting| counting.apart.as_ref());
        apart.unwrap_or(&self.woven.removal)
    }

    pub fn records(&self, modules: &Modules, module: ModuleId) -> impl Iterator<Item = PointRecord> {
        let file = modules.file(module).map(ModuleFile::id).unwrap_or_default();
        self.woven.records().map(move |removal| PointRecord { file, removal: removal.clone() })
    }
}

/// Points that are woven into the copies of their functions, by function.
pub(super) type BodyPoints = FxHashMap<FunctionId, Vec<BodyPoint>>;

/// The points of copies among these. If several have the same key, it is one point with the snippets of all, in the order in which they come
/// to run when the later ones are added.
pub(super) fn body_points<'a, 'p: 'a>(env: &Environment, points: impl Iterator<Item = &'a NewPoint<'p>>) -> BodyPoints {
    let mut all: FxHashMap<FunctionPoint, (&Site, Vec<&NewMini<'p>>)> = FxHashMap::default();
    for point in points.filter(|point| point.in_copy) {
        let Some((_, known)) = all.get_mut(&point.point) else {
            all.insert(point.point, (point.site, point.minis.clone()));
            continue;
        };
        let kind = point.point.point.kind();
        for mini in to_add(&point.minis, kind) {
            if known.iter().all(|known| known.id != mini.id) {
                let index = place_among(known.iter().map(|known| known.role), kind, mini.role);
                known.insert(index, mini);
            }
        }
    }
    let mut bodies = BodyPoints::default();
    for (FunctionPoint { function, point }, (site, minis)) in all {
        let code = code_in_copy(env, site, &minis);
        bodies.entry(function).or_default().push(BodyPoint { point, code, with_copy: None });
    }
    bodies
}

/// The code of snippets at a point of a copy.
fn code_in_copy(env: &Environment, site: &Site, minis: &[&NewMini<'_>]) -> BodyCode {
    let snippets = minis.iter().map(|mini| (&**mini.snippet, &*mini.counters));
    BodyCode::of(env, InlinePoint::of(site), snippets)
}

impl NewPoint<'_> {
    /// The point as one that is known when its function is copied; `None` for a point in the text.
    fn in_copy(&self, env: &Environment) -> Option<BodyPoint> {
        let only = match self.minis.as_slice() {
            [only] => Some(only.id),
            _ => None,
        };
        self.in_copy.then(|| BodyPoint {
            point: self.point.point,
            code: code_in_copy(env, self.site, &self.minis),
            with_copy: only.map(|id| WithCopy { id, at: InlinePoint::of(self.site) }),
        })
    }
}

impl Woven {
    /// The copies of functions of a module.
    pub(super) fn bodies_of(&self, module: ModuleId) -> impl Iterator<Item = &WovenBody> {
        self.bodies.range(functions_of(module)).map(|(_, body)| &body.woven)
    }

    /// The copies into which no point is woven, because their points were refused, each with such a reason.
    pub(super) fn idle_bodies(&self, refused: &RefusedPairs) -> Vec<(FunctionId, Refusal)> {
        let is_idle = |function: &&FunctionId| self.points_of(**function).all(|(_, point)| point.probe.is_none());
        let why = |function: &FunctionId| {
            let known = refused.iter().find(|((of, _), _)| of == function);
            (*function, known.map_or(Refusal::NoSuchPoint, |(_, refusal)| refusal.clone()))
        };
        self.bodies.keys().filter(is_idle).map(why).collect()
    }

    /// Forgets the copy of a function, which is about to be removed. Returns it.
    pub(super) fn remove_body(&mut self, function: FunctionId) -> Option<Arc<Body>> {
        let body = self.bodies.remove(&function)?;
        if let Some(text) = self.texts.get_mut(&function.module.0) {
            text.release_body(&body.woven);
        }
        Some(body)
    }

    /// Forgets the copies of functions of a module whose text is gone. Returns their records.
    pub(super) fn retire_bodies(&mut self, modules: &Modules, module: ModuleId) -> Vec<PointRecord> {
        let own: Vec<FunctionId> = self.bodies.keys().filter(|f| f.module == module).copied().collect();
        let gone: Vec<Arc<Body>> = own.iter().filter_map(|function| self.bodies.remove(function)).collect();
        for removal in gone.iter().flat_map(|body| body.woven.records()) {
            self.leave_idle(std::slice::from_ref(&removal.code));
        }
        gone.iter().flat_map(|body| body.records(modules, module)).collect()
    }

    /// Gives up the counting copy of a function, because points of the function change. Returns whether there is one that was given up, now or
    /// earlier.
    pub(super) fn give_up_counting(
        &mut self,
        modules: &Modules,
        function: FunctionId,
        (plan, gone): (&mut PatchPlan, &mut Vec<PointRecord>),
    ) -> bool {
        let Some(body) = self.bodies.get_mut(&function).filter(|body| body.woven.counting.is_some()) else {
            return false;
        };
        if body.woven.is_counting()
            && let Some((given_up, apart)) = Arc::make_mut(body).woven.give_up_counting()
        {
            append(plan, given_up);
            let file = modules.file(function.module).map(ModuleFile::id).unwrap_or_default();
            gone.extend(apart.map(|removal| PointRecord { file, removal }));
        }
        true
    }

    /// Copies the functions that new points need. Points whose function cannot be copied, or whose position the copy does not have, are taken
    /// away from `points`; in the first case, `change` names the function as one without a copy. `known` has the points of functions with more
    /// points than those.
    pub(super) fn weave_bodies(
        &mut self,
        subject: Subject<'_>,
        copies: &Copies,
        points: &mut NewPoints<'_>,
        (known, made): (&BodyPoints, &mut MadeBodies),
        change: &mut PlannedChange,
        mapped: &mut NewArenas<'_>,
    ) -> Result<(), Error> {
        let all = || points.values().flatten();
        let mut needed: Vec<FunctionId> = all().filter(|p| p.in_copy).map(|p| p.point.function).collect();
        needed.sort_unstable();
        needed.dedup();
        let in_text: FxHashSet<FunctionId> = all().filter(|p| !p.in_copy).map(|p| p.point.function).collect();
        let mut own = BodyPoints::default();
        for point in all().filter(|point| !in_text.contains(&point.point.function)) {
            own.entry(point.point.function).or_default().extend(point.in_copy(subject.env));
        }
        let own = |function: &FunctionId| known.get(function).or(own.get(function)).map_or(&[][..], Vec::as_slice);
        needed.retain(|function| !self.bodies.contains_key(function));
        let mut tasks: Vec<CopyTask<'_>> = Vec::with_capacity(needed.len());
        for function in needed {
            match (copies.chosen.get(&function), in_text.contains(&function)) {
                (Some(_), true) => change.not_copied.push((function, overlap(subject.modules, function))),
                (Some(body), false) => tasks.push(CopyTask { function, body, points: own(&function) }),
                (None, _) => {}
            }
        }
        let mut with_copies: FxHashMap<FunctionPoint, (FileId, usize, Box<WovenPoint>)> = FxHashMap::default();
        for tasks in tasks.chunk_by(|a, b| a.function.module == b.function.module) {
            for (task, woven) in tasks.iter().zip(self.weave_tasks(subject, tasks, (&mut change.plan, mapped))?) {
                match woven {
                    Ok(CopiedFunction { file, body, plan, points }) => {
                        for woven in points {
                            let point = woven.probe.map_or(PointId::Entry, |probe| probe.point);
                            let function = task.function;
                            with_copies.insert(FunctionPoint { function, point }, (file, body.arena, woven));
                        }
                        self.bodies.insert(task.function, Arc::clone(&body));
                        made.0.insert(task.function, MadeBody { file, body, plan });
                    }
                    Err(refusal) => change.not_copied.push((task.function, refusal)),
                }
            }
        }
        let (bodies, woven) = (&self.bodies, &mut self.points);
        points.values_mut().for_each(|points| {
            points.retain(|p| {
                if !p.in_copy {
                    return true;
                }
                let Some(body) = bodies.get(&p.point.function) else { return false };
                let probe = body.woven.probe(p.point.point);
                if let Err(refusal) = &probe {
                    change.refused.extend(p.minis.iter().map(|m| ((p.point.function, m.pair), refusal.clone())));
                    return false;
                }
                if let Some((file, arena, own)) = with_copies.remove(&p.point) {
                    let point = Arc::new(p.woven_as(own, arena));
                    change.new_points.push(WovenAnew::new(file, Unit::Point(Arc::clone(&point))));
                    woven.insert(p.point, point);
                    return false;
                }
                true
            });
        });
        Ok(())
    }

    /// Copies functions of one module. Returns the result for each, in order. Routines that the copies share are added to `plan`.
    fn weave_tasks(
        &mut self,
        Subject { target, modules, env }: Subject<'_>,
        tasks: &[CopyTask<'_>],
        (plan, mapped): (&mut PatchPlan, &mut NewArenas<'_>),
    ) -> Result<Vec<Result<CopiedFunction, Refusal>>, Error> {
        let Some(first) = tasks.first() else { return Ok(Vec::new()) };
        let number = first.function.module;
        let Some((file, module)) = modules.module(number) else {
            return Ok(tasks.iter().map(|_| Err(Refusal::NoSuchFunction)).collect());
        };
        let text = self.texts.entry(number.0).or_insert_with(|| {
            let mut text = TextSpace::new();
            text.add_padding(module.bias, module.image.padding());
            text
        });
        let name = |task: &CopyTask<'_>| {
            modules.resolve(task.function).map_or(Cow::Borrowed(""), |(_, _, f)| f.display_name())
        };
        let names: Vec<Cow<'_, str>> = tasks.iter().map(name).collect();
        let request = |(task, name)| {
            let (task, name): (&CopyTask<'_>, &Cow<'_, str>) = (task, name);
            BodyRequest { body: task.body, bias: module.bias, name, points: task.points }
        };
        let requests: Vec<BodyRequest<'_>> = tasks.iter().zip(&names).map(request).collect();
        let mut copied: Vec<Result<CopiedFunction, Refusal>> = Vec::with_capacity(tasks.len());
        for batch in batches(&requests) {
            let quick = Quick::of(0);
            let mut left: Vec<(usize, BodyRequest<'_>)> = (copied.len()..).zip(batch.iter().copied()).collect();
            copied.extend(left.iter().map(|_| Err(Refusal::NoRoomNearby)));
            let mut bytes = Arena::estimate_bytes(0) + batch.iter().map(BodyRequest::room).sum::<u64>();
            loop {
                let index = arena_for(&mut self.arenas, target, &file.text(), bytes, mapped)?;
                let Some(arena) = self.arenas.get_mut(index) else { break };
                let requests: Vec<BodyRequest<'_>> = left.iter().map(|(_, request)| *request).collect();
                let shared = share_slow_routines(env, arena, &requests).map_err(codegen_error)?;
                verify_weave(env, arena, text, &[], &shared).map_err(|e| defect(&e))?;
                append(plan, shared.plan);
                let mut woven = weave_bodies_on(&quick, env, arena, text, &requests).map_err(codegen_error)?;
                let of_proof = requests.iter().zip(&woven).filter_map(|(r, woven)| Some((r, woven.as_ref().ok()?)));
                let of_proof: Vec<_> = of_proof.collect();
                if verify_bodies_on(&quick, env, arena, text, &of_proof).is_err() {
                    drop(of_proof);
                    for (request, woven) in requests.iter().zip(&mut woven) {
                        let flaw = woven.as_ref().ok().and_then(|w| verify_body(env, arena, text, request, w).err());
                        let Some(flaw) = flaw else { continue };
                        if let Ok(copy) = std::mem::replace(woven, Err(unproven(&flaw))) {
                            // Nothing was written there.
                            text.release_body(&copy.body);
                            arena.release(&copy.body.removal.code);
                        }
                    }
                }
                for ((number, request), woven) in left.iter().zip(woven) {
                    let done = woven.map(|woven| {
                        let original = OriginalText::of(request.body, module.bias);
                        let body = Arc::new(Body { woven: woven.body, original, arena: index });
                        CopiedFunction { file: file.id(), body, plan: woven.plan, points: woven.points }
                    });
                    if let Some(copied) = copied.get_mut(*number) {
                        *copied = done;
                    }
                }
                left.retain(|(number, _)| matches!(copied.get(*number), Some(Err(Refusal::NoRoomNearby))));
                if left.is_empty() || !arena.lacked_room() || bytes >= ARENA_MAX {
                    break;
                }
                bytes = (bytes * 4).min(ARENA_MAX);
            }
        }
        Ok(copied)
    }
}

/// A function to copy.
struct CopyTask<'a> {
    function: FunctionId,
    body: &'a FunctionBody,
    /// The points that come with the copy.
    points: &'a [BodyPoint],
}

/// Estimated room in bytes of the copies that are made at once. An arena for more may not find room near a module.
const BATCH: u64 = 16 << 20;

/// Divides functions into batches.
fn batches<'r, 'a>(requests: &'r [BodyRequest<'a>]) -> impl Iterator<Item = &'r [BodyRequest<'a>]> {
    let mut room = 0;
    requests.chunk_by(move |before, _| {
        room += before.room();
        let goes_on = room < BATCH;
        if !goes_on {
            room = 0;
        }
        goes_on
    })
}

/// New points, by their modules.
pub(super) type NewPoints<'a> = BTreeMap<ModuleId, Vec<NewPoint<'a>>>;

/// The copies that a change makes.
#[derive(Debug, Default)]
pub(super) struct MadeBodies(FxHashMap<FunctionId, MadeBody>);

#[derive(Debug)]
struct MadeBody {
    file: FileId,
    body: Arc<Body>,
    /// The plan that inserts the copy.
    plan: PatchPlan,
}

impl MadeBodies {
    /// Whether a copy is one of these.
    pub(super) fn has(&self, function: &FunctionId) -> bool {
        self.0.contains_key(function)
    }

    /// Takes the copy of a function out, if it is one of these.
    pub(super) fn take(&mut self, function: &FunctionId) -> Option<Arc<Body>> {
        self.0.remove(function).map(|made| made.body)
    }

    /// Adds the copies to a change, before its points.
    pub(super) fn add_to(self, change: &mut PlannedChange) {
        let mut made: Vec<(FunctionId, MadeBody)> = self.0.into_iter().collect();
        made.sort_unstable_by_key(|(function, _)| *function);
        let points = (std::mem::take(&mut change.plan), std::mem::take(&mut change.new_points));
        for (_, MadeBody { file, body, plan }) in made {
            change.new_points.push(WovenAnew::new(file, Unit::Body(body)));
            append(&mut change.plan, plan);
        }
        append(&mut change.plan, points.0);
        change.new_points.extend(points.1);
    }
}

/// A copy, with the file whose text it changes and the plan that inserts it.
struct CopiedFunction {
    file: FileId,
    body: Arc<Body>,
    plan: PatchPlan,
    /// The points that were woven together with it.
    #[expect(clippy::vec_box, reason = "each point is kept in its box")]
    points: Vec<Box<WovenPoint>>,
}

/// Refusal of a function that gets points in the text.
fn overlap(modules: &Modules, function: FunctionId) -> Refusal {
    let other = modules.resolve(function).map_or_else(String::new, |(_, _, f)| f.display_name().into_owned());
    Refusal::Overlap { other }
}

/// Copies of functions, by function.
pub(super) type Bodies = BTreeMap<FunctionId, Arc<Body>>;

#[cfg(test)]
mod tests {
    use ingraft_model::{Expr, FreeRegisters, Gpr, PointId, SiteKind, Snippet, Stmt, Svma, VariableId};

    use super::*;
    use crate::weaving::trial::environment;

    #[test]
    fn snippets_that_move_stand_in_the_copy_together_with_new_ones() {
        let count = Arc::new(Snippet { stmts: vec![Stmt::Add(VariableId(0), Expr::Const(1))] });
        let free = FreeRegisters { scratch: vec![Gpr(0)], flags: true };
        let site = Site::new(SiteKind::Block { free }, Svma(0x1000), Svma(0x1000), vec![0x90; 8]);
        let minis = [(1, &[5][..]), (2, &[7]), (3, &[9])]
            .map(|(id, counters)| NewMini { counters: counters.into(), ..NewMini::plain(id, 0, &count) });
        let point = FunctionPoint { function: functions_of(ModuleId(0)).start, point: PointId::Entry };
        let (first, later) = minis.split_at(1);
        let points = [first, later].map(|minis| minis.iter().collect());
        let points = points.map(|minis| NewPoint { point, site: &site, minis, in_copy: true });
        let env = environment();
        let bodies = body_points(&env, points.iter());
        let woven = bodies.get(&point.function).expect("points of the function");
        // The later ones are in front of the other, as where a call begins, in their own order.
        let all = [(&*count, &[7][..]), (&*count, &[9]), (&*count, &[5])];
        let code = BodyCode::of(&env, InlinePoint::of(&site), all.into_iter());
        assert!(matches!(code, BodyCode::Inline(_)), "{code:?}");
        assert_eq!(woven.iter().map(|point| (point.point, &point.code)).collect::<Vec<_>>(), [(PointId::Entry, &code)]);
    }
}
