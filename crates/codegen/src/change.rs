//! Snippets that come to and go from a woven point, and points that go: removal is the concatenation of records.

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, PatchPlan, PcMove, TextWrite};

use crate::arena::Arena;
use crate::block::{Block, EmitError, displacement, jmp_bytes, straddles, text_write};
use crate::environment::{CodegenError, Environment};
use crate::mini::{self, MiniRequest, WovenMini};
use crate::weave::{RemovalRecord, WovenPoint};

/// Adds a snippet to those at a woven point, as the `index`-th (behind all others if there are fewer). The live jump before it is rewritten.
pub fn add_mini(
    env: &Environment,
    arena: &mut Arena,
    point: &mut WovenPoint,
    request: &MiniRequest<'_>,
    index: usize,
) -> Result<PatchPlan, CodegenError> {
    env.check()?;
    mini::check(env, request)?;
    let frame = point.frame(arena)?;
    let code = mini::compile(env, &frame, request)?;
    let mut plan = PatchPlan::default();
    code.routines(env, arena, &mut plan.code).map_err(no_room)?;
    let index = index.min(point.minis.len());
    let next = point.minis.get(index).map_or(point.leave, |m| m.start).0;
    let before = index.checked_sub(1).and_then(|i| point.minis.get(i)).map_or(point.slot, |m| m.jump);
    let mut block = Block::default();
    let mut at = arena.place(0, |a| a).ok_or(CodegenError::ArenaFull)?;
    let parts = loop {
        block.restart(at);
        let parts = mini::emit(&frame, arena, &code, next, &mut block).map_err(no_room)?;
        let field = parts.jump + 1 - at;
        let adjust = |start: u64| if straddles(start + field, 4) { start + 4 } else { start };
        let place = arena.place(block.bytes.len() as u64, adjust).ok_or(CodegenError::ArenaFull)?;
        if place == at {
            break parts;
        }
        at = place;
    };
    let write = retarget(before, next, parts.start).ok_or(CodegenError::ArenaFull)?;
    arena.take(at, block.bytes.len() as u64);
    let range = Avma(at)..Avma(block.here());
    let (moves, step_out) = block.exits(at, block.here());
    let removal = RemovalRecord { text: Vec::new(), moves, step_out, code: range.clone() };
    let (start, jump, cost) = (Avma(parts.start), Avma(parts.jump), parts.cost(env, &code, &block));
    let woven = WovenMini { id: request.id, range, start, jump, cost, removal };
    point.minis.insert(index, woven);
    plan.code.push(ArenaCode { at: Avma(at), bytes: block.bytes });
    plan.text.push(write);
    Ok(plan)
}

fn no_room(e: EmitError) -> CodegenError {
    match e {
        EmitError::OutOfReach => CodegenError::ArenaFull,
        EmitError::Codegen(e) => e,
    }
}

/// Takes one snippet out of a point's chain; the others' code is not touched, only the jump before it.
pub fn remove_mini(arena: &Arena, point: &mut WovenPoint, id: u64) -> Result<PatchPlan, CodegenError> {
    let missing = CodegenError::NoSuchMini { id, at: point.at.0 };
    let index = point.minis.iter().position(|m| m.id == id).ok_or(missing)?;
    let before = index.checked_sub(1).and_then(|i| point.minis.get(i)).map_or(point.slot, |m| m.jump);
    let next = point.minis.get(index + 1).map_or(point.leave, |m| m.start);
    let mini = point.minis.remove(index);
    let write = retarget(before, mini.start.0, next.0).ok_or(CodegenError::ArenaFull)?;
    // on its first instruction and on its last one a thread may skip the rest; in between it is stepped, and in a slow routine too, which
    // may be about to go on from the jump that goes away
    let mut moves = vec![PcMove { from: mini.start, to: next }, PcMove { from: mini.jump, to: next }];
    moves.sort_unstable();
    let mut step_out = arena.shared();
    step_out.extend(mini.removal.step_out.iter().cloned());
    step_out.sort_unstable_by_key(|r| r.start);
    Ok(PatchPlan { text: vec![write], moves, step_out, retired: vec![mini.range], ..PatchPlan::default() })
}

/// Takes an exit out of the entry's code that it is woven into, which stays. None if it has no host: then it is removed by its records.
pub fn remove_within(point: &WovenPoint) -> Option<PatchPlan> {
    let host = point.host?;
    let mut plan = RemovalRecord::combine(point.records());
    for m in &mut plan.moves {
        if m.to == host.original {
            m.to = host.copy;
        } else if let Some((_, copy)) = host.next.filter(|(text, _)| *text == m.to) {
            m.to = copy;
        }
    }
    plan.text = vec![text_write(host.copy.0, &jmp_bytes(host.copy.0, point.base.0)?, &host.bytes)];
    Some(plan)
}

/// Takes points out altogether, those included that are woven into them.
pub fn remove_points<'a>(points: impl IntoIterator<Item = &'a WovenPoint>) -> PatchPlan {
    RemovalRecord::combine(points.into_iter().flat_map(WovenPoint::records))
}

impl RemovalRecord {
    /// What tells it from all others: where its code begins.
    pub fn key(&self) -> Avma {
        self.code.start
    }

    /// The plan of a removal: all records of the points that go, snippets included.
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
        plan.moves.sort_unstable();
        plan.moves.dedup();
        plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
        plan.step_out.dedup();
        plan.retired.sort_unstable_by_key(|r| r.start);
        plan
    }
}

/// The write that makes the live jump at `jump` lead elsewhere: its displacement only, so that the first byte of the instruction
/// is never part of a write.
fn retarget(jump: Avma, old: u64, new: u64) -> Option<TextWrite> {
    let end = jump.0.wrapping_add(5);
    let old = displacement(end, old)?.to_le_bytes();
    let new = displacement(end, new)?.to_le_bytes();
    Some(text_write(jump.0 + 1, &old, &new))
}
