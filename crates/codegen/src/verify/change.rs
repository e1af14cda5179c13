//! Proofs of the smaller plans: one snippet more or less at a woven point, and removal.

use ingraft_model::{Avma, PatchPlan, PcMove, TextWrite};

use super::memory::Memory;
use super::walk::Walk;
use super::{Flaw, VerifyError, check_writes, fail, prove_routines};
use crate::arena::Arena;
use crate::environment::Environment;
use crate::mini::{MiniRequest, WovenMini};
use crate::weave::{Inner, WovenPoint};

/// Proves a removal: every original byte comes back, every record of the points is in the plan, nothing else is.
pub fn verify_removal(plan: &PatchPlan, points: &[WovenPoint]) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    if let Some(code) = plan.code.first() {
        return fail(code.at.0, Flaw::Forbidden);
    }
    let stays = |host: &Inner| !points.iter().any(|p| p.exits.contains(host));
    if let Some(host) = points.iter().filter_map(|p| p.host).find(stays) {
        return fail(host.copy.0, Flaw::Unmatched);
    }
    let records = || points.iter().flat_map(WovenPoint::records);
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

/// Proves the plan of [`crate::remove_within`]: the copy that held the springboard is what it was, and threads go on there.
pub fn verify_removed_within(plan: &PatchPlan, point: &WovenPoint) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    let (Some(host), [write]) = (point.host, plan.text.as_slice()) else {
        return fail(point.at.0, Flaw::Unmatched);
    };
    let leads = write.old_bytes().split_first().is_some_and(|(opcode, displacement)| {
        *opcode == 0xe9 && displacement.len() == 4 && target(host.copy.0, displacement) == point.base
    });
    if write.at != host.copy || write.new_bytes() != host.bytes || !leads {
        return fail(write.at.0, Flaw::NotOriginal);
    }
    let inside = |to: Avma| match host.next {
        _ if to == host.original => host.copy,
        Some((text, copy)) if to == text => copy,
        _ => to,
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

/// Proves the plan of [`crate::add_mini`]: `after` is the point as it will be, with the snippet that was asked for.
pub fn verify_added(
    env: &Environment,
    arena: &Arena,
    plan: &PatchPlan,
    after: &WovenPoint,
    request: &MiniRequest<'_>,
) -> Result<(), VerifyError> {
    check_live_jump(plan, after)?;
    let found = after.minis.iter().enumerate().find(|(_, m)| m.id == request.id);
    let Some((index, mini)) = found else { return fail(after.at.0, Flaw::Unmatched) };
    let memory = Memory::new(&plan.code, &arena.range())?;
    let next = after.minis.get(index + 1).map_or(after.leave, |m| m.start).0;
    let mut walk = Walk::new(env, arena, &memory, std::iter::once(request));
    let mut proven = vec![(mini.range.start.0, mini.range.end.0)];
    prove_routines(&mut walk, arena, &memory, &mut proven)?;
    walk.begin_added(after, mini, next);
    walk.added(mini.start.0)?;
    walk.twin(mini)?;
    walk.tile(&mini.range)?;
    walk.all_tiled()?;
    for (address, state) in walk.visited(&mini.range) {
        let harmless = after.pushed == 0 && state.is_some_and(|s| walk.harmless(s));
        match mini.removal.moves.iter().find(|m| m.from.0 == address) {
            Some(m) if Some(m.to) == after.resume && harmless => {}
            Some(_) => return fail(address, Flaw::BadMove),
            None if mini.removal.step_out.iter().any(|r| r.start.0 <= address && address < r.end.0) => {}
            None => return fail(address, Flaw::BadMove),
        }
    }
    if mini.removal.code != mini.range || !plan.moves.is_empty() || !plan.retired.is_empty() {
        return fail(mini.start.0, Flaw::BadMove);
    }
    memory.all_proven(&mut proven)
}

/// Proves the plan of [`crate::remove_mini`]: `before` and `after` are the point as it was and as it will be.
pub fn verify_removed(plan: &PatchPlan, before: &WovenPoint, after: &WovenPoint) -> Result<(), VerifyError> {
    let write = check_live_jump(plan, after)?;
    let gone = |m: &&WovenMini| !after.minis.contains(m);
    let (Some(mini), true) = (before.minis.iter().find(gone), plan.code.is_empty()) else {
        return fail(after.at.0, Flaw::Unmatched);
    };
    let next = target(write.at.0 - 1, write.new_bytes());
    let mut expected = [mini.start, mini.jump].map(|from| PcMove { from, to: next });
    expected.sort_unstable();
    if plan.moves != expected || target(write.at.0 - 1, write.old_bytes()) != mini.start {
        return fail(mini.start.0, Flaw::BadMove);
    }
    // what is neither at its first nor at its last instruction is stepped
    let stepped = |at: Avma| plan.step_out.iter().any(|r| r.start <= at && at < r.end);
    let plain = mini.jump.0 == mini.start.0 + 9 && mini.range.start == mini.start;
    let middle = [mini.range.start, mini.start.offset(8), mini.jump.offset(-1)];
    if !plain && middle.into_iter().any(|at| at != mini.jump && at != mini.start && !stepped(at)) {
        return fail(mini.start.0, Flaw::BadMove);
    }
    if plan.retired == [mini.range.clone()] { Ok(()) } else { fail(mini.start.0, Flaw::Unmatched) }
}

/// The one write of a change: a jump of the chain that leads to the next part of it afterwards.
fn check_live_jump<'a>(plan: &'a PatchPlan, after: &WovenPoint) -> Result<&'a TextWrite, VerifyError> {
    check_writes(&plan.text)?;
    let [write] = plan.text.as_slice() else { return fail(after.at.0, Flaw::Unmatched) };
    let jumps = std::iter::once(after.slot).chain(after.minis.iter().map(|m| m.jump));
    let starts = after.minis.iter().map(|m| m.start).chain([after.leave]);
    let found = jumps.zip(starts).find(|(jump, _)| jump.0 + 1 == write.at.0);
    let Some((jump, start)) = found.filter(|_| write.len == 4) else { return fail(write.at.0, Flaw::Astray) };
    if target(jump.0, write.new_bytes()) == start { Ok(write) } else { fail(write.at.0, Flaw::Astray) }
}

/// Where a `jmp rel32` with this displacement leads.
fn target(jump: u64, displacement: &[u8]) -> Avma {
    let displacement = displacement.first_chunk::<4>().map_or(0, |d| i32::from_le_bytes(*d));
    Avma((jump + 5).wrapping_add_signed(i64::from(displacement)))
}
