//! Which code goes where in one target: arenas, text taken, woven points; from insertions to one verified plan.

use std::collections::HashMap;

use ingraft_analysis::FunctionKind;
use ingraft_codegen::verify::{verify_added, verify_removed, verify_weave};
use ingraft_codegen::{
    Arena, Environment, MiniRequest, PointRequest, RemovalRecord, TextSpace, WovenPoint, add_mini, remove_mini,
    weave_points,
};
use ingraft_mdl::{FunctionRef, ModuleRef, Role};
use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, Refusal, Site, Snippet, ThreadIdentity, VariableId};
use ingraft_process::Target;
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use crate::background::in_background;
use crate::error::{Error, ErrorKind};
use crate::modules::Modules;

/// How far code may be away from what it serves: a little less than a 32-bit displacement reaches.
const REACH: u64 = (1 << 31) - (1 << 20);

/// First bytes of an arena, by which one that a dead engine left is told from anything else.
pub const SIGNATURE: &[u8; 16] = b"ingraft's arena\0";
/// Bytes at the start of an arena that hold no code.
const SIGNATURE_ROOM: u64 = SIGNATURE.len() as u64;

fn whole_arena(arena: &Arena) -> AvmaRange {
    let range = arena.range();
    range.start.offset(-(SIGNATURE_ROOM as i64))..range.end
}

/// A snippet for the entry of a function.
pub struct NewMini<'a> {
    /// Number, unique in the session.
    pub id: u64,
    /// When it runs among the others.
    pub role: Role,
    /// The code.
    pub snippet: &'a Snippet,
    /// Counter of each of its variables.
    pub counters: &'a [u32],
}

/// The generated code of one target.
#[derive(Clone, Debug, Default)]
pub struct Woven {
    arenas: Vec<Arena>,
    /// Text taken, and padding for islands, per module.
    texts: FxHashMap<u32, TextSpace>,
    /// Woven entries.
    points: FxHashMap<FunctionRef, Point>,
    /// What a dead engine wove; it can only go as a whole.
    adopted: Vec<RemovalRecord>,
    /// Its arenas: what in them is free is not known.
    adopted_arenas: Vec<AvmaRange>,
}

#[derive(Clone, Debug)]
struct Point {
    woven: WovenPoint,
    arena: usize,
}

/// What weaving a request gives.
#[derive(Debug, Default)]
pub struct Change {
    /// To apply.
    pub plan: PatchPlan,
    /// Points that are new, with what undoes them.
    pub new_points: Vec<(FunctionRef, RemovalRecord)>,
    /// Functions that cannot be woven.
    pub refused: HashMap<FunctionRef, Refusal>,
}

/// An entry that can be woven, as far as its bytes tell, and agrees with the memory of the target.
pub fn entry_site(target: &Target, modules: &Modules, function: FunctionRef) -> Result<Site, Refusal> {
    let (file, module, f) = modules.resolve(function).ok_or(Refusal::NotAFunction { what: "no such function" })?;
    match f.kind() {
        FunctionKind::Normal => {}
        FunctionKind::IfuncResolver => return Err(Refusal::IfuncResolver),
        FunctionKind::Stub => return Err(Refusal::NotAFunction { what: "a stub of the linker" }),
    }
    if file.is_shared() {
        return Err(Refusal::SharedText);
    }
    let site = module.image.entry_site(f)?;
    let mut now = vec![0; site.bytes.len()];
    let unreadable = Refusal::NotAFunction { what: "its memory cannot be read" };
    target.read(site.at.to_avma(module.bias), &mut now).map_err(|_| unreadable)?;
    match now.iter().zip(&site.bytes).position(|(a, b)| a != b) {
        None => Ok(site),
        Some(i) => {
            let offset = site.at.0 - site.function.0 + i as u64;
            Err(Refusal::BytesDiffer { offset: u32::try_from(offset).unwrap_or(u32::MAX) })
        }
    }
}

/// Which of these functions' entries cannot be woven, and why: found out by weaving all of them into an arena that does not exist.
pub fn refusals(target: &Target, modules: &Modules, functions: &[FunctionRef]) -> FxHashMap<FunctionRef, Refusal> {
    let data = DataArea { base: Avma(1 << 30), stride: 1 << 20, shards: 64, journal_bytes: 0 };
    let env = Environment { data, identity: ThreadIdentity::FsOffset(0x2d0), shadow_stack: false, ticks: TICKS };
    let count = Snippet::increment(VariableId(0));
    let minis = [MiniRequest { id: 0, snippet: &count, counters: &[0] }];
    let sites: Vec<_> = in_background(|| functions.par_iter().map(|f| (*f, entry_site(target, modules, *f))).collect());
    let mut refused = FxHashMap::default();
    let mut by_module: FxHashMap<ModuleRef, Vec<(FunctionRef, &Site)>> = FxHashMap::default();
    for (function, site) in &sites {
        match site {
            Ok(site) => by_module.entry(function.module).or_default().push((*function, site)),
            Err(refusal) => {
                refused.insert(*function, refusal.clone());
            }
        }
    }
    for (number, members) in by_module {
        let Some((file, module)) = modules.module(number) else { continue };
        let start = file.text().end.0.next_multiple_of(4096);
        let mut arena = Arena::new(Avma(start)..Avma(start + Arena::estimate_bytes(members.len())));
        let mut text = TextSpace::new();
        text.add_padding(module.bias, module.image.padding());
        let entries: Vec<_> = members
            .iter()
            .map(|(_, site)| PointRequest { site, bias: module.bias, name: "another function", minis: &minis })
            .collect();
        // A request as a whole fails only for reasons that this one does not have.
        let Ok(weave) = weave_points(&env, &mut arena, &mut text, &entries) else { continue };
        refused.extend(members.iter().zip(weave.woven).filter_map(|((f, _), woven)| Some((*f, woven.err()?))));
    }
    refused
}

impl Woven {
    /// Takes over what a dead engine wove.
    pub fn adopt(adopted: Vec<RemovalRecord>, adopted_arenas: Vec<AvmaRange>) -> Self {
        Woven { adopted, adopted_arenas, ..Woven::default() }
    }

    /// Arenas that are mapped.
    pub fn arenas(&self) -> Vec<AvmaRange> {
        self.arenas.iter().map(whole_arena).chain(self.adopted_arenas.iter().cloned()).collect()
    }

    /// Bytes of code in use.
    pub fn code_bytes(&self) -> u64 {
        let adopted = self.adopted.iter().map(|r| r.code.end.0.saturating_sub(r.code.start.0));
        self.arenas.iter().map(Arena::used).chain(adopted).sum()
    }

    /// Number of woven points.
    pub fn len(&self) -> usize {
        self.points.len() + self.adopted.len()
    }

    /// Everything that takes all points out, with the module of each if it is known.
    pub fn records(&self) -> impl Iterator<Item = (Option<ModuleRef>, &RemovalRecord)> {
        let own = self.points.iter().flat_map(|(f, p)| p.woven.records().map(|r| (Some(f.module), r)));
        own.chain(self.adopted.iter().map(|r| (None, r)))
    }

    /// The pages of text that hold a springboard: module and address of one byte of each.
    pub fn text_at(&self) -> impl Iterator<Item = (ModuleRef, Avma)> {
        self.points.iter().flat_map(|(f, p)| p.woven.removal.text.iter().map(move |w| (f.module, w.at)))
    }

    /// Chooses springboards and writes code for snippets at entries. The target is not changed, except that arenas are mapped;
    /// `record` is told of each before.
    pub fn weave(
        &mut self,
        target: &Target,
        modules: &Modules,
        env: &Environment,
        requests: &[(FunctionRef, Vec<NewMini<'_>>)],
        record: &mut dyn FnMut(&AvmaRange) -> Result<(), Error>,
    ) -> Result<Change, Error> {
        let mut change = Change::default();
        let (old, new): (Vec<_>, Vec<_>) = requests.iter().partition(|(f, _)| self.points.contains_key(f));
        self.weave_new(target, modules, env, &new, &mut change, record)?;
        for (function, minis) in old {
            let Some(point) = self.points.get_mut(function) else { continue };
            let Some(arena) = self.arenas.get_mut(point.arena) else { continue };
            // Each goes in front of what is there; the last one added runs first.
            for mini in minis.iter().rev() {
                let request = MiniRequest { id: mini.id, snippet: mini.snippet, counters: mini.counters };
                let plan = add_mini(env, arena, &mut point.woven, &request).map_err(codegen_error)?;
                verify_added(env, arena, &plan, &point.woven).map_err(|e| defect(&e))?;
                append(&mut change.plan, plan);
            }
        }
        sort(&mut change.plan);
        Ok(change)
    }

    fn weave_new(
        &mut self,
        target: &Target,
        modules: &Modules,
        env: &Environment,
        requests: &[&(FunctionRef, Vec<NewMini<'_>>)],
        change: &mut Change,
        record: &mut dyn FnMut(&AvmaRange) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let functions: Vec<FunctionRef> = requests.iter().map(|(f, _)| *f).collect();
        let sites: Vec<_> = in_background(|| functions.par_iter().map(|f| entry_site(target, modules, *f)).collect());
        let mut by_module: FxHashMap<u32, Vec<usize>> = FxHashMap::default();
        for (i, (request, site)) in requests.iter().zip(&sites).enumerate() {
            match site {
                Ok(_) => by_module.entry(request.0.module.0).or_default().push(i),
                Err(refusal) => {
                    change.refused.insert(request.0, refusal.clone());
                }
            }
        }
        let mut modules_in_order: Vec<_> = by_module.into_iter().collect();
        modules_in_order.sort_unstable_by_key(|(m, _)| *m);
        for (number, members) in modules_in_order {
            let Some((file, module)) = modules.module(ModuleRef(number)) else { continue };
            let arena_index = self.arena_for(target, &file.text(), members.len(), change, record)?;
            let text = self.texts.entry(number).or_insert_with(|| {
                let mut text = TextSpace::new();
                text.add_padding(module.bias, module.image.padding());
                text
            });
            let minis: Vec<Vec<MiniRequest<'_>>> = members
                .iter()
                .map(|&i| {
                    let mut minis: Vec<_> = requests[i].1.iter().collect();
                    minis.sort_by_key(|m| m.role);
                    minis.iter().map(|m| MiniRequest { id: m.id, snippet: m.snippet, counters: m.counters }).collect()
                })
                .collect();
            let names: Vec<String> = members
                .iter()
                .map(|&i| {
                    modules.resolve(requests[i].0).map_or_else(String::new, |(_, _, f)| f.display_name().into_owned())
                })
                .collect();
            let entries: Vec<PointRequest<'_>> = members
                .iter()
                .zip(&minis)
                .zip(&names)
                .filter_map(|((&i, minis), name)| {
                    let site = sites[i].as_ref().ok()?;
                    Some(PointRequest { site, bias: module.bias, name, minis })
                })
                .collect();
            let weave = weave_points(env, &mut self.arenas[arena_index], text, &entries).map_err(codegen_error)?;
            verify_weave(env, &self.arenas[arena_index], text, &entries, &weave).map_err(|e| defect(&e))?;
            for (&i, woven) in members.iter().zip(weave.woven) {
                let function = requests[i].0;
                match woven {
                    Ok(woven) => {
                        change.new_points.push((function, whole_record(&woven)));
                        self.points.insert(function, Point { woven, arena: arena_index });
                    }
                    Err(refusal) => {
                        change.refused.insert(function, refusal);
                    }
                }
            }
            append(&mut change.plan, weave.plan);
        }
        Ok(())
    }

    /// An arena within reach of a module with room for so many points; a new one is mapped if there is none.
    fn arena_for(
        &mut self,
        target: &Target,
        text: &AvmaRange,
        points: usize,
        change: &mut Change,
        record: &mut dyn FnMut(&AvmaRange) -> Result<(), Error>,
    ) -> Result<usize, Error> {
        let bytes = Arena::estimate_bytes(points);
        let reaches = |range: &AvmaRange| {
            text.end.0.saturating_sub(range.start.0) < REACH && range.end.0.saturating_sub(text.start.0) < REACH
        };
        let room = |arena: &Arena| arena.range().end.0 - arena.touched().end.0 >= bytes;
        if let Some(i) = self.arenas.iter().position(|a| reaches(&a.range()) && room(a)) {
            return Ok(i);
        }
        let failed = |e| Error::process(target.pid(), e);
        loop {
            let range = target.find_arena(text, bytes + SIGNATURE_ROOM).map_err(failed)?;
            // Recorded before it is there: should we die in between, whoever comes next knows where to look for it.
            record(&range)?;
            if target.map_arena_at(&range).map_err(failed)? {
                change.plan.code.push(ArenaCode { at: range.start, bytes: SIGNATURE.to_vec() });
                self.arenas.push(Arena::new(range.start.offset(SIGNATURE_ROOM as i64)..range.end));
                return Ok(self.arenas.len() - 1);
            }
        }
    }

    /// Takes snippets out of points; points without snippets go altogether. Returns the plan and the points that go.
    pub fn unweave(&mut self, minis: &[(FunctionRef, u64)]) -> Result<(PatchPlan, Vec<Avma>), Error> {
        let mut plan = PatchPlan::default();
        let mut gone = Vec::new();
        let mut left: FxHashMap<FunctionRef, Vec<u64>> = FxHashMap::default();
        for (function, id) in minis {
            left.entry(*function).or_default().push(*id);
        }
        let mut order: Vec<_> = left.into_iter().collect();
        order.sort_unstable_by_key(|(f, _)| *f);
        for (function, ids) in order {
            let Some(point) = self.points.get_mut(&function) else { continue };
            if point.woven.minis.iter().all(|m| ids.contains(&m.id)) {
                let removed = RemovalRecord::combine(point.woven.records());
                gone.extend(point.woven.removal.text.first().map(|w| w.at));
                append(&mut plan, removed);
                if let Some(text) = self.texts.get_mut(&function.module.0) {
                    text.release_point(&point.woven);
                }
                self.points.remove(&function);
                continue;
            }
            for id in ids {
                let arena = &self.arenas[point.arena];
                let before = point.woven.clone();
                let removed = remove_mini(arena, &mut point.woven, id).map_err(codegen_error)?;
                verify_removed(&removed, &before, &point.woven).map_err(|e| defect(&e))?;
                append(&mut plan, removed);
            }
        }
        sort(&mut plan);
        Ok((plan, gone))
    }

    /// Code that a removal left behind may be used again: no thread is in it.
    pub fn release(&mut self, retired: &[AvmaRange]) {
        for range in retired {
            for arena in &mut self.arenas {
                let all = arena.range();
                if all.start <= range.start && range.end <= all.end {
                    arena.release(range);
                }
            }
        }
    }

    /// Goes back to what was before a weaving that failed or was not applied. The arenas that were mapped for it stay, empty.
    pub fn go_back_to(&mut self, before: Woven) {
        let failed = std::mem::replace(self, before);
        let new = failed.arenas.iter().skip(self.arenas.len()).map(|a| Arena::new(a.range()));
        self.arenas.extend(new);
    }
}

/// All records of a point as one, for the journal.
fn whole_record(point: &WovenPoint) -> RemovalRecord {
    let mut whole = point.removal.clone();
    for mini in &point.minis {
        whole.moves.extend_from_slice(&mini.removal.moves);
        whole.step_out.extend_from_slice(&mini.removal.step_out);
    }
    whole
}

fn append(plan: &mut PatchPlan, mut more: PatchPlan) {
    plan.code.append(&mut more.code);
    plan.text.append(&mut more.text);
    plan.moves.append(&mut more.moves);
    plan.step_out.append(&mut more.step_out);
    plan.retired.append(&mut more.retired);
}

/// Brings a plan into order. A live jump may have been rewritten several times in one change: then the first `old` and the
/// last `new` remain.
fn sort(plan: &mut PatchPlan) {
    plan.text.sort_by_key(|w| w.at);
    plan.text.dedup_by(|later, first| {
        let same = later.at == first.at;
        if same {
            first.new = later.new;
        }
        same
    });
    plan.moves.sort_unstable();
    plan.moves.dedup();
    plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
    plan.step_out.dedup();
    plan.retired.sort_unstable_by_key(|r| r.start);
}

fn codegen_error(e: ingraft_codegen::CodegenError) -> Error {
    Error::new(
        ErrorKind::Failed,
        "codegen",
        format!("code could not be generated: {e}"),
        "nothing was changed in the target",
    )
}

fn defect(e: &dyn std::fmt::Display) -> Error {
    Error::new(
        ErrorKind::Failed,
        "unproven_plan",
        format!("the verifier refused the change: {e}"),
        "nothing was changed in the target; this is a defect of ingraft",
    )
}
