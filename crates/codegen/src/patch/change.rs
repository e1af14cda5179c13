//! Adding snippets to a woven point, removing them, and removing points. A removal is the concatenation of records.

use std::borrow::Borrow;

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, PatchPlan, PcMove, TextWrite};

use crate::code::arena::{Arena, ROUNDS};
use crate::code::block::{CodeBuffer, EmitError, LINK, jmp_bytes, link_bytes, straddles, text_write};
use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::WovenMini;
use crate::code::woven::{DisplacedCopy, RemovalRecord, WovenPoint};
use crate::snippet::mini::{self, BaseState, Compiled, MiniParts, MiniRequest};
use crate::snippet::slot::Slot;
use crate::snippet::template::Templates;

/// Adds a snippet to a woven point, as the `index`-th, or as the last one if the point has fewer. The plan rewrites the link before the
/// snippet, or the slot. A count that stood alone in the slot moves into the chain.
pub fn add_mini(
    env: &Environment,
    arena: &mut Arena,
    point: &mut WovenPoint,
    request: &MiniRequest<'_>,
    index: usize,
) -> Result<PatchPlan, CodegenError> {
    add_mini_from(env, arena, point, request, index, &mut Templates::default())
}

/// Adds a snippet as [`add_mini`] does, and compiles it from a template if a snippet was compiled before that differs in its counters only.
pub fn add_mini_from<'a>(
    env: &Environment,
    arena: &mut Arena,
    point: &mut WovenPoint,
    request: &MiniRequest<'a>,
    index: usize,
    templates: &mut Templates<'a>,
) -> Result<PatchPlan, CodegenError> {
    env.check()?;
    mini::check(env, request)?;
    if point.lacks_input_of(request.snippet) {
        return Err(CodegenError::ArgumentOverwritten { at: point.at.0 });
    }
    let frame = point.frame(arena)?;
    let code = mini::compile(env, &frame, request, templates)?;
    let mut plan = PatchPlan::default();
    code.routines(env, arena, &mut plan.code).map_err(no_room)?;
    let slot = Slot::of(point);
    let alone = code.as_count().filter(|_| point.minis.is_empty() && point.has_bare_slot());
    if let Some(counter) = alone {
        let counting = slot.counting(counter);
        plan.text = slot.becomes(counting).ok_or(CodegenError::ArenaFull)?;
        plan.step_out = arena.slow_routines();
        point.minis.push(WovenMini::in_slot(request.id, counter, counting.cost()));
        return Ok(plan);
    }
    let index = index.min(point.minis.len());
    // The new snippet, and the count that stands in the slot, if there is one.
    let mut pieces = vec![(request.id, code)];
    let kept: Vec<WovenMini> = point.minis.iter().filter(|m| m.code.is_some()).cloned().collect();
    let unslotted = point.minis.iter().find(|m| m.code.is_none()).and_then(|m| Some((m.id, m.count?)));
    let first = if unslotted.is_some() { 0 } else { index };
    if let Some((id, counter)) = unslotted {
        pieces.insert(usize::from(index == 0), (id, Compiled::Count(counter)));
    }
    let next = kept.get(first).and_then(|m| m.code.as_ref()).map_or(point.leave, |c| c.start).0;

    let mut block = CodeBuffer::default();
    let parts = place(&frame, arena, &pieces, next, &mut block)?;
    let start = block.at;
    let before = first.checked_sub(1).and_then(|i| kept.get(i)).and_then(|m| m.code.as_ref());
    plan.text = match before {
        Some(before) => relink(before.link, next, start).map(|write| vec![write]),
        None => slot.becomes(slot.leading_to(start)),
    }
    .ok_or(CodegenError::ArenaFull)?;
    arena.take(block.at, block.bytes.len() as u64);
    let woven = pieces.iter().zip(&parts);
    let woven = woven.map(|((id, code), parts)| WovenMini::in_chain(env, *id, code, parts, false, &block));
    if unslotted.is_some() {
        // A thread in a slow routine may be about to read which counter the slot held.
        plan.step_out = arena.slow_routines();
    }
    let mut minis = kept;
    minis.splice(first..first, woven.collect::<Vec<_>>());
    point.minis = minis;
    plan.code.push(ArenaCode { at: Avma(block.at), bytes: block.bytes });
    Ok(plan)
}

/// Writes pieces at a free place where no link lies on two pages.
fn place(
    frame: &BaseState,
    arena: &Arena,
    pieces: &[(u64, Compiled<'_>)],
    next: u64,
    block: &mut CodeBuffer,
) -> Result<Vec<MiniParts>, CodegenError> {
    let mut at = arena.place(0, |a| a).ok_or(CodegenError::ArenaFull)?;
    for _ in 0..ROUNDS {
        block.restart(at);
        let parts = chain(frame, arena, pieces, next, block).map_err(no_room)?;
        let fields: Vec<u64> = parts.iter().map(|p| p.link - at).collect();
        let adjust = |start: u64| {
            let mut place = start;
            while fields.iter().any(|field| straddles(place + field, LINK)) {
                place += 1;
            }
            place
        };
        let place = arena.place(block.bytes.len() as u64, adjust).ok_or(CodegenError::ArenaFull)?;
        if place == at {
            return Ok(parts);
        }
        at = place;
    }
    Err(CodegenError::ArenaFull)
}

/// Writes pieces one after the other. Each link leads to the next piece, and the last link to `next`.
fn chain(
    frame: &BaseState,
    arena: &Arena,
    pieces: &[(u64, Compiled<'_>)],
    next: u64,
    block: &mut CodeBuffer,
) -> Result<Vec<MiniParts>, EmitError> {
    let mut all: Vec<MiniParts> = Vec::with_capacity(pieces.len());
    for (_, code) in pieces {
        let mut parts = mini::emit(frame, arena, code, block)?;
        mini::emit_aside(frame, arena, code, &mut parts, block)?;
        all.push(parts);
    }
    let nexts = all.iter().skip(1).map(|p| p.start).chain([next]);
    for (parts, next) in all.iter().zip(nexts) {
        block.set_link(parts.link, next)?;
    }
    Ok(all)
}

fn no_room(e: EmitError) -> CodegenError {
    match e {
        EmitError::OutOfReach | EmitError::ArenaFull | EmitError::Unshared => CodegenError::ArenaFull,
        EmitError::Codegen(e) => e,
    }
}

/// Removes one snippet from a point's chain. Of the other code, only the link before the snippet changes. But if a plain count remains
/// alone, it moves to the slot, provided that no code lies between the slot and `leave`.
pub fn remove_mini(arena: &Arena, point: &mut WovenPoint, id: u64) -> Result<PatchPlan, CodegenError> {
    let missing = CodegenError::NoSuchMini { id, at: point.at.0 };
    let index = point.minis.iter().position(|m| m.id == id).ok_or(missing)?;
    let slot = Slot::of(point);
    let code_at = |i: usize| point.minis.get(i).and_then(|m| m.code.as_ref());
    let next = code_at(index + 1).map_or(point.leave, |c| c.start);
    // A thread in a shared routine may be about to resume at the link that is removed, or to read the slot.
    let mut plan = PatchPlan { step_out: arena.shared(), ..PatchPlan::default() };
    let other = 1usize.checked_sub(index).filter(|_| point.minis.len() == 2).and_then(|i| point.minis.get(i));
    let rest = other.filter(|_| point.has_bare_slot()).and_then(|m| Some((m, m.count?)));
    let mut alone = None;
    let writes = match (code_at(index), rest) {
        // The snippet is the count in the slot.
        (None, _) => slot.becomes(slot.leading_to(next.0)),
        (Some(_), Some((mini, counter))) => {
            let counting = slot.counting(counter);
            if let Some(code) = &mini.code {
                plan.moves
                    .extend([PcMove { from: code.start, to: point.slot }, PcMove { from: code.link, to: point.leave }]);
                plan.retired.push(code.range.clone());
            }
            alone = Some(WovenMini::in_slot(mini.id, counter, counting.cost()));
            slot.becomes(counting)
        }
        (Some(code), None) => match index.checked_sub(1).and_then(code_at) {
            Some(before) => relink(before.link, code.start.0, next.0).map(|write| vec![write]),
            None => slot.becomes(slot.leading_to(next.0)),
        },
    };
    plan.text = writes.ok_or(CodegenError::ArenaFull)?;
    // A thread at the first instruction or at the link may skip the rest; a thread in between is single-stepped.
    let next = if alone.is_some() && index == 0 { point.slot } else { next };
    let mini = point.minis.remove(index);
    if let Some(code) = mini.code {
        plan.moves.extend([PcMove { from: code.start, to: next }, PcMove { from: code.link, to: next }]);
        plan.step_out.extend([code.own(), code.aside()].into_iter().filter(|range| range.start < range.end));
        plan.retired.extend(Some(code.range).filter(|range| range.start < range.end));
    }
    if let Some(alone) = alone {
        point.minis = vec![alone];
    }
    plan.step_out.sort_unstable_by_key(|r| r.start);
    plan.moves.sort_unstable();
    plan.retired.sort_unstable_by_key(|r| r.start);
    Ok(plan)
}

/// Plans the removal of a point that has changed the code of other points, or the copy of its function. `stays` says of each copy that the
/// point needs ([`WovenPoint::needs`]) whether it stays, and `body_stays` whether the copy of the function does. Returns `None` if none of
/// them stays: then the records alone remove the point.
pub fn remove_within(
    point: &WovenPoint,
    stays: impl Fn(&DisplacedCopy) -> bool,
    body_stays: bool,
) -> Option<PatchPlan> {
    let mut plan = RemovalRecord::combine(point.records());
    if let Some(probe) = point.probe.filter(|_| body_stays) {
        for m in &mut plan.moves {
            m.to = probe.in_copy(m.to);
        }
        if point.is_with_copy() {
            let slot = Slot::of(point);
            let empty = slot.leading_to(point.leave.0);
            plan.text.extend(if slot == empty { Vec::new() } else { slot.becomes(empty)? });
        } else {
            plan.text.push(probe.leading(point.base)?.inverse());
        }
        plan.text.sort_unstable_by_key(|w| w.at);
        return Some(plan);
    }
    let redirected: Vec<&DisplacedCopy> = point.redirected.iter().filter(|inner| stays(inner)).collect();
    let host = point.host.filter(|host| stays(host));
    if redirected.is_empty() && host.is_none() {
        return None;
    }
    for inner in redirected {
        plan.text.push(inner.leading(point.tail.0)?.inverse());
    }
    if let Some(host) = host {
        for m in &mut plan.moves {
            if m.to == host.original {
                m.to = host.copy;
            } else if let Some((_, copy)) = host.next.filter(|(text, _)| *text == m.to) {
                m.to = copy;
            }
        }
        plan.text.push(text_write(host.copy.0, &jmp_bytes(host.copy.0, point.base.0)?, &host.bytes));
    }
    plan.text.sort_unstable_by_key(|w| w.at);
    Some(plan)
}

/// Plans the removal of points, together with the points that are woven into them.
pub fn remove_points<'a, P: Borrow<WovenPoint> + 'a>(points: impl IntoIterator<Item = &'a P>) -> PatchPlan {
    RemovalRecord::combine(points.into_iter().flat_map(|point| point.borrow().records()))
}

impl RemovalRecord {
    /// Key that identifies the record: the address where the code begins.
    pub fn key(&self) -> Avma {
        self.code.start
    }

    /// Plan of a removal: all records of the removed points and of their snippets.
    pub fn combine<'a>(records: impl IntoIterator<Item = &'a RemovalRecord>) -> PatchPlan {
        let mut plan = PatchPlan::default();
        for r in records {
            plan.text.extend_from_slice(&r.text);
            plan.moves.extend_from_slice(&r.moves);
            plan.step_out.extend_from_slice(&r.step_out);
            if r.code.start < r.code.end {
                plan.retired.push(r.code.clone());
            }
        }
        plan.text.sort_unstable_by_key(|w| w.at);
        // Each record is in order, which this sort makes use of.
        plan.moves.sort();
        plan.moves.dedup();
        plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
        plan.step_out.dedup();
        plan.retired.sort_unstable_by_key(|r| r.start);
        plan
    }
}

/// Write that changes the target of the link at `link` from `old` to `new`.
fn relink(link: Avma, old: u64, new: u64) -> Option<TextWrite> {
    Some(text_write(link.0, &link_bytes(link.0, old)?, &link_bytes(link.0, new)?))
}
