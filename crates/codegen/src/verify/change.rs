//! Proofs of smaller plans: adding one snippet to a woven point, removing one, and removing points.

use std::borrow::Borrow;

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, AvmaRange, PatchPlan, PcMove, TextWrite};
use rustc_hash::FxHashSet;

use super::interpreter::{Interpreter, PlanFacts};
use super::memory::Memory;
use super::{Flaw, VerifyError, check_writes, fail, prove_routines, ways_out};
use crate::code::arena::Arena;
use crate::code::block::{LINK, link_target};
use crate::code::body::{Held, Probe};
use crate::code::environment::Environment;
use crate::code::spread::{self, OneThread, Spread};
use crate::code::woven::{DisplacedCopy, MiniCode, WovenMini, WovenPoint};
use crate::snippet::mini::MiniRequest;
use crate::snippet::slot::{OPCODE, Slot};
use crate::snippet::slow::{COUNT, LOCKED_COUNT};

/// Proves a removal: the plan has every record of the points and nothing else, so every original byte is written back.
pub fn verify_removal<P: Borrow<WovenPoint>>(plan: &PatchPlan, points: &[P]) -> Result<(), VerifyError> {
    let points = || points.iter().map(Borrow::borrow);
    check_writes(&plan.text)?;
    if let Some(code) = plan.code.first() {
        return fail(code.at.0, Flaw::Forbidden);
    }
    let offered: FxHashSet<&DisplacedCopy> = points().flat_map(|p| &p.inner).collect();
    if let Some(stays) = points().flat_map(WovenPoint::needs).find(|inner| !offered.contains(inner)) {
        return fail(stays.copy.0, Flaw::Unmatched);
    }
    let records = || points().flat_map(WovenPoint::records);
    let mut text: Vec<_> = records().flat_map(|r| r.text.iter().copied()).collect();
    text.sort_unstable_by_key(|w| w.at);
    if text != plan.text {
        return fail(plan.text.first().map_or(0, |w| w.at.0), Flaw::Unmatched);
    }
    let mut moves: Vec<_> = records().flat_map(|r| r.moves.iter().copied()).collect();
    moves.sort_unstable();
    moves.dedup();
    if let Some(twice) = moves.windows(2).find(|pair| pair[0].from == pair[1].from) {
        return fail(twice[0].from.0, Flaw::BadMove);
    }
    if moves != plan.moves {
        return fail(plan.moves.first().map_or(0, |m| m.from.0), Flaw::BadMove);
    }
    for range in records().flat_map(|r| &r.step_out) {
        if plan.step_out.binary_search_by_key(&(range.start, range.end), |r| (r.start, r.end)).is_err() {
            return fail(range.start.0, Flaw::BadMove);
        }
    }
    let mut code: Vec<_> = records().map(|r| &r.code).filter(|c| c.start < c.end).collect();
    code.sort_unstable_by_key(|c| c.start);
    if !code.into_iter().eq(&plan.retired) {
        return fail(plan.retired.first().map_or(0, |r| r.start.0), Flaw::Unmatched);
    }
    Ok(())
}

/// Proves the plan of [`crate::remove_within`]: code that stays gets back the bytes that the point has changed in it, and threads resume
/// there.
pub fn verify_removed_within(
    plan: &PatchPlan,
    point: &WovenPoint,
    stays: impl Fn(&DisplacedCopy) -> bool,
    body_stays: bool,
) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    let with_copy = point.is_with_copy() && body_stays;
    let emptied = if with_copy { emptied(point)? } else { Vec::new() };
    let probe = point.probe.filter(|_| body_stays);
    let host = point.host.filter(|host| stays(host));
    let redirected: Vec<&DisplacedCopy> = point.redirected.iter().filter(|inner| stays(inner)).collect();
    let own = point.removal.text.len();
    let probed = usize::from(probe.is_some() && !with_copy) + emptied.len();
    if plan.text.len() != own + redirected.len() + usize::from(host.is_some()) + probed {
        return fail(point.at.0, Flaw::Unmatched);
    }
    for write in &plan.text {
        let back = |end: u64, bytes: &[u8]| target(end - 5, bytes);
        let own = point.removal.text.contains(write);
        let held = host.is_some_and(|host| {
            let old = write.old_bytes().split_first();
            let leads = old.is_some_and(|(opcode, d)| *opcode == 0xe9 && back(host.copy.0 + 5, d) == Some(point.base));
            write.at == host.copy && write.new_bytes() == host.bytes && leads
        });
        let probed = !with_copy
            && probe.is_some_and(|probe| {
                let old = write.old_bytes().split_first();
                let leads =
                    old.is_some_and(|(opcode, d)| *opcode == 0xe9 && back(probe.copy.0 + 5, d) == Some(point.base));
                write.at == probe.copy && write.new_bytes() == probe.bytes && leads
            });
        let redirected = redirected.iter().any(|inner| {
            let end = inner.copy.0 + if inner.next.is_some() { 6 } else { 5 };
            let (old, new) = (back(end, write.old_bytes()), back(end, write.new_bytes()));
            write.at.0 == end - 4
                && write.len == 4
                && old == Some(point.tail)
                && inner.leads.is_some()
                && new == inner.leads
        });
        if !own && !held && !redirected && !probed && !emptied.contains(write) {
            return fail(write.at.0, Flaw::NotOriginal);
        }
    }
    let inside = |to: Avma| match host {
        Some(host) if to == host.original => host.copy,
        Some(DisplacedCopy { next: Some((text, copy)), .. }) if to == text => copy,
        _ => equivalent(probe.as_ref(), to),
    };
    let mut moves: Vec<_> =
        point.records().flat_map(|r| &r.moves).map(|m| PcMove { from: m.from, to: inside(m.to) }).collect();
    moves.sort_unstable();
    moves.dedup();
    let stepped = point.records().flat_map(|r| &r.step_out).all(|r| plan.step_out.contains(r));
    let mut code: Vec<_> = point.records().map(|r| r.code.clone()).filter(|c| c.start < c.end).collect();
    code.sort_unstable_by_key(|c| c.start);
    let right = moves == plan.moves && stepped && code == plan.retired && plan.code.is_empty();
    if right { Ok(()) } else { fail(point.at.0, Flaw::BadMove) }
}

/// The writes that take the last snippet out of the slot of a point whose code stays in the copy.
fn emptied(point: &WovenPoint) -> Result<Vec<TextWrite>, VerifyError> {
    let slot = Slot::of(point);
    let empty = slot.leading_to(point.leave.0);
    let writes = if slot == empty { Some(Vec::new()) } else { slot.becomes(empty) };
    writes.ok_or(VerifyError { at: point.slot, flaw: Flaw::Astray })
}

/// Address at which a thread resumes that leaves the code of a point at a probe which stays: in the copy, where it has an equivalent there.
fn equivalent(probe: Option<&Probe>, to: Avma) -> Avma {
    let Some(probe) = probe else { return to };
    let ways = match probe.holds {
        Held::Nop | Held::Called | Held::Point(_) => [None, None],
        Held::Jump(taken) => [Some(taken), None],
        Held::Branch(taken, next) => [Some(taken), Some(next)],
    };
    if to == probe.original {
        return probe.copy;
    }
    ways.into_iter().flatten().find(|way| way.original == to).map_or(to, |way| way.copy)
}

/// A snippet that was added to a woven point, as the verifier reads it.
#[derive(Clone, Copy, Debug)]
pub struct Added<'a> {
    /// The plan, without its code.
    pub plan: &'a PatchPlan,
    /// The point after the change, with the requested snippet.
    pub after: &'a WovenPoint,
    /// The request of the snippet.
    pub request: MiniRequest<'a>,
}

/// Proves the plan of [`crate::add_mini`]: `after` is the point after the change, with the requested snippet.
pub fn verify_added(
    env: &Environment,
    arena: &Arena,
    plan: &PatchPlan,
    after: &WovenPoint,
    request: &MiniRequest<'_>,
) -> Result<(), VerifyError> {
    verify_all_added(&OneThread, env, arena, &plan.code, &[Added { plan, after, request: *request }])
}

/// Proves plans of [`crate::add_mini_from`] that are applied in one stop, in the order in which they were made. `code` is the new code of
/// all of them. Snippets that differ in their addresses and counters only are executed once. The proof is made in parts that `spread` runs.
pub fn verify_all_added(
    spread: &dyn Spread,
    env: &Environment,
    arena: &Arena,
    code: &[ArenaCode],
    added: &[Added<'_>],
) -> Result<(), VerifyError> {
    let memory = Memory::new(code, &arena.range())?;
    let facts = PlanFacts::new(env, arena, &memory, added.iter().map(|added| &added.request));
    let mut proven = Vec::with_capacity(2 * added.len() + 4);
    prove_routines(&mut Interpreter::new(&facts), arena, &memory, &mut proven)?;
    // The plans are applied together, so a thread leaves these ranges if one of the plans demands it.
    let mut step_out: Vec<&AvmaRange> = added.iter().flat_map(|added| &added.plan.step_out).collect();
    step_out.sort_unstable_by_key(|range| (range.start, range.end));
    step_out.dedup();
    let steps_out = arena.slow_routines().iter().all(|range| step_out.contains(&range));
    let parts = spread::map(spread, added.chunks(ADDED_OF_PART).collect(), |added| {
        let (mut interpreter, mut proven) = (Interpreter::new(&facts), Vec::with_capacity(2 * added.len()));
        added.iter().try_for_each(|added| added.prove(&mut interpreter, steps_out, &mut proven)).map(|()| proven)
    });
    for part in parts {
        proven.extend(part?);
    }
    memory.all_proven(&mut proven)
}

/// Number of added snippets that one part of the proof covers.
const ADDED_OF_PART: usize = 400;

impl Added<'_> {
    /// Proves one added snippet, and the count that got code of its own because of it. `steps_out` says whether no thread is in a slow
    /// routine when the plan is applied.
    fn prove(
        &self,
        interpreter: &mut Interpreter<'_>,
        steps_out: bool,
        proven: &mut Vec<(u64, u64)>,
    ) -> Result<(), VerifyError> {
        let Added { plan, after, request } = self;
        let change = check_live_jump(plan, after)?;
        let Some(index) = after.minis.iter().position(|m| m.id == request.id) else {
            return fail(after.at.0, Flaw::Unmatched);
        };
        if !plan.moves.is_empty() || !plan.retired.is_empty() {
            return fail(after.at.0, Flaw::BadMove);
        }
        if after.lacks_input_of(request.snippet) {
            return fail(after.at.0, Flaw::Lost);
        }
        let minis: Vec<_> = after.minis.iter().filter_map(|m| Some((m, m.code.as_ref()?))).collect();
        let mut new = Vec::with_capacity(2);
        if change.counted.is_some() && !steps_out {
            return fail(after.slot.0, Flaw::BadMove);
        }
        for (i, (mini, code)) in minis.iter().enumerate() {
            // The count that stood alone in the slot gets code of its own, next to the code of the new snippet.
            let unslotted = change.counted.is_some() && minis.len() == 2;
            let is_new = mini.id == request.id;
            if !is_new && !unslotted {
                continue;
            }
            if !is_new && mini.count != change.counted {
                return fail(code.start.0, Flaw::NotEquivalent);
            }
            let next = minis.get(i + 1).map_or(after.leave, |(_, next)| next.start).0;
            proven.push((code.range.start.0, code.range.end.0));
            interpreter.begin_added(after, code, next);
            prove_code(interpreter, after, mini, code)?;
            new.push(i);
        }
        // The rewritten link must lead to the new code.
        let data = &interpreter.environment().data;
        let leads = match (new.first(), after.minis.get(index).and_then(|m| m.count)) {
            (Some(first), _) => change.link == *first && (new.len() == 2) == change.counted.is_some(),
            // The new snippet is a count in a slot that led to no snippet.
            (None, Some(count)) => {
                let place = u64::from(count);
                let counter = place >= u64::from(data.counter(0)) && place < data.base.0 + data.stride;
                after.minis.len() == 1 && counter && count % 8 == data.counter(0) % 8 && steps_out
            }
            (None, None) => false,
        };
        if leads { Ok(()) } else { fail(after.slot.0, Flaw::Astray) }
    }
}

/// Proves the code of a snippet that was added to a point, after [`Interpreter::begin_added`].
fn prove_code(
    interpreter: &mut Interpreter<'_>,
    after: &WovenPoint,
    mini: &WovenMini,
    code: &MiniCode,
) -> Result<(), VerifyError> {
    interpreter.added(code)?;
    interpreter.twin(code)?;
    if mini.count.is_some_and(|count| !interpreter.counts(code.start.0, code.link.0, count)) {
        return fail(code.start.0, Flaw::NotEquivalent);
    }
    interpreter.keep();
    interpreter.tile(&code.range)?;
    interpreter.conclude()?;
    let home = after.resume.filter(|_| after.pushed == 0);
    let allowed = |_, harmless: Option<bool>| home.filter(|_| harmless == Some(true));
    let used = ways_out(&mini.removal, interpreter.visited(&code.range), allowed)?;
    // The snippet's code is not part of the point's own code.
    let is_own = mini.removal.code == code.range && code.range.start == code.start;
    if used == mini.removal.moves.len() && is_own { Ok(()) } else { fail(code.start.0, Flaw::BadMove) }
}

/// Proves the plan of [`crate::remove_mini`]: `before` and `after` are the point before and after the change.
pub fn verify_removed(
    arena: &Arena,
    plan: &PatchPlan,
    before: &WovenPoint,
    after: &WovenPoint,
) -> Result<(), VerifyError> {
    let change = check_live_jump(plan, after)?;
    let at = after.at.0;
    let Some(index) = before.minis.iter().position(|m| after.minis.iter().all(|other| other.id != m.id)) else {
        return fail(at, Flaw::Unmatched);
    };
    let (gone, kept): (Vec<_>, Vec<_>) = before.minis.iter().enumerate().partition(|(i, _)| *i == index);
    let same = |(one, other): (&(usize, &WovenMini), &WovenMini)| {
        let slotted = other.code.is_none() && other.count.is_some();
        one.1.id == other.id && one.1.count == other.count && (slotted || one.1 == other)
    };
    if kept.len() != after.minis.len() || !kept.iter().zip(&after.minis).all(same) || !plan.code.is_empty() {
        return fail(at, Flaw::Unmatched);
    }
    let slotted = kept.first().filter(|_| in_slot(after).is_some());
    // The snippet after the removed one is in the slot or in the chain.
    let later = after.minis.get(index).map(|m| m.code.as_ref().map_or(after.slot, |code| code.start));
    let next = later.unwrap_or(after.leave);
    let mut moves = Vec::with_capacity(4);
    let mut retired = Vec::with_capacity(2);
    let ways = [gone.first().map(|(_, m)| (m, next, next)), slotted.map(|(_, m)| (m, after.slot, after.leave))];
    for (mini, to_start, to_jump) in ways.into_iter().flatten() {
        let Some(code) = &mini.code else { continue };
        moves.extend([PcMove { from: code.start, to: to_start }, PcMove { from: code.link, to: to_jump }]);
        retired.extend(Some(code.range.clone()).filter(|range| range.start < range.end));
        // A thread between the first instruction and the link is single-stepped.
        let plain = code.link.0 == code.start.0 + 9 && code.range.start == code.start;
        let stepped = |range: &AvmaRange| range.start >= range.end || plan.step_out.contains(range);
        if !plain && ![code.own(), code.aside()].iter().all(stepped) {
            return fail(code.start.0, Flaw::BadMove);
        }
    }
    moves.sort_unstable();
    retired.sort_unstable_by_key(|r| r.start);
    let link = if in_slot(after).is_some() { 0 } else { index };
    if change.link != link || change.counted != in_slot(before) {
        return fail(at, Flaw::Astray);
    }
    if plan.moves != moves || !stepped_out(plan, &arena.slow_routines()) {
        return fail(at, Flaw::BadMove);
    }
    if plan.retired == retired { Ok(()) } else { fail(at, Flaw::Unmatched) }
}

/// Displacement of the count that stands in the slot; `None` if the slot holds no count.
fn in_slot(point: &WovenPoint) -> Option<u32> {
    point.minis.iter().find(|m| m.code.is_none()).and_then(|m| m.count)
}

/// Whether no thread is in these ranges when the plan is applied.
fn stepped_out(plan: &PatchPlan, ranges: &[AvmaRange]) -> bool {
    ranges.iter().all(|range| plan.step_out.contains(range))
}

/// Change that the writes of a plan make.
struct WrittenChange {
    /// Index of the snippet to which the changed link leads, or the number of snippets if the link leads to the end.
    link: usize,
    /// Displacement of the count that stood in the slot before the change.
    counted: Option<u32>,
}

/// Checks the writes of a change: they change one link of the chain, or the slot. Afterwards the link or slot leads to the next part of
/// the chain, or the slot is the only snippet.
fn check_live_jump(plan: &PatchPlan, after: &WovenPoint) -> Result<WrittenChange, VerifyError> {
    check_writes(&plan.text)?;
    let chain = || after.minis.iter().filter_map(|m| m.code.as_ref());
    let froms = std::iter::once(after.slot).chain(chain().map(|m| m.link));
    let starts = chain().map(|m| m.start).chain([after.leave]);
    let mut links = froms.zip(starts).enumerate();
    let Some((write, rest)) = plan.text.split_first() else { return fail(after.at.0, Flaw::Unmatched) };
    let astray = || fail(write.at.0, Flaw::Astray);
    if write.at != after.slot {
        let found = links.skip(1).find(|(_, (from, _))| *from == write.at);
        let whole = u64::from(write.len) == LINK && rest.is_empty();
        let Some((link, (from, start))) = found.filter(|_| whole) else { return astray() };
        let right = link_target(from.0, write.new_bytes()) == Some(start.0);
        return if right { Ok(WrittenChange { link, counted: None }) } else { astray() };
    }
    let count = if after.scratch.is_some() { COUNT } else { LOCKED_COUNT };
    let leads = |bytes: &[u8]| Slot::target_of(after.slot.0, bytes).map(Avma);
    let (old, new) = (write.old_bytes(), write.new_bytes());
    let slot = Slot::of(after);
    let was_count = old == count;
    let right = usize::from(write.len) == count.len()
        && (was_count || leads(old).is_some())
        && match in_slot(after) {
            Some(_) => new == count && after.minis.len() == 1 && after.has_bare_slot(),
            None => leads(new).is_some() && leads(new) == links.next().map(|(_, (_, start))| start),
        };
    // The operand is rewritten when a count enters or leaves the slot.
    let operand = match rest {
        [] => in_slot(after).is_none().then_some(None),
        [w] => {
            let place = w.at.0 == after.slot.0 + OPCODE && w.len == 4;
            let old = w.old_bytes().first_chunk().map(|old| u32::from_le_bytes(*old));
            let other = was_count != in_slot(after).is_some();
            let right = place && other && w.new_bytes() == slot.operand().to_le_bytes();
            right.then_some(old.filter(|_| was_count))
        }
        _ => None,
    };
    match operand {
        Some(counted) if right && counted.is_some() == was_count => Ok(WrittenChange { link: 0, counted }),
        _ => astray(),
    }
}

/// Target of a `jmp rel32` at `jump` with this displacement; `None` if the displacement is shorter than four bytes.
fn target(jump: u64, displacement: &[u8]) -> Option<Avma> {
    let displacement = i32::from_le_bytes(*displacement.first_chunk::<4>()?);
    Some(Avma((jump + 5).wrapping_add_signed(i64::from(displacement))))
}
