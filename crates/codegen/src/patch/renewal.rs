//! A new counting copy in the place of one that was given up, because points of the function have changed. The ordinary copy stays where it is, with
//! all code of points that lies behind its probes. So does the memory of the first counting copy, whose gates lead to those of the new one.

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, BlockId, PatchPlan};
use rustc_hash::FxHashSet;

use crate::code::arena::Arena;
use crate::code::block::{EmitError, jmp_bytes, text_write};
use crate::code::body::{CountingCopy, Gate, WovenBody};
use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::RemovalRecord;
use crate::patch::body::{ALIGNMENT, BodyRequest, Calling, DecodedBlocks, ordinary};
use crate::patch::counting;
use crate::patch::with_copy::PointsWithCopy;

/// Largest number of places at which a counting copy is tried: its length depends on its place.
const PLACES_MAX: usize = 8;

/// A new counting copy, and the plan that inserts it.
#[derive(Clone, Debug)]
pub struct CountingRenewal {
    /// The plan.
    pub plan: PatchPlan,
    /// The counting copy, which lies apart from the ordinary one.
    pub counting: CountingCopy,
    /// The ordinary copy without any point, as it must lie in the target except for the probes, and for the slots of points that were woven
    /// together with it.
    pub ordinary: Vec<u8>,
}

/// Makes a new counting copy of a function whose counting copy was given up. The points of the request are all points of the function, as they
/// are now. Returns `None` if there can be none: the function has never had one, nothing in it is a plain count, the arena has no room, or the
/// request does not describe the copy that exists.
pub fn renew_counting(
    env: &Environment,
    arena: &mut Arena,
    request: &BodyRequest<'_>,
    body: &WovenBody,
) -> Result<Option<CountingRenewal>, CodegenError> {
    match renewed(env, arena, request, body) {
        Ok(renewal) => Ok(renewal),
        Err(EmitError::Codegen(e)) => Err(e),
        Err(EmitError::OutOfReach | EmitError::ArenaFull | EmitError::Unshared) => Ok(None),
    }
}

fn renewed(
    env: &Environment,
    arena: &mut Arena,
    request: &BodyRequest<'_>,
    body: &WovenBody,
) -> Result<Option<CountingRenewal>, EmitError> {
    let Some(before) = body.counting.as_ref().filter(|counting| !counting.open) else { return Ok(None) };
    let Ok(code) = DecodedBlocks::of(env, request) else { return Ok(None) };
    let calling = |called: &ingraft_model::AvmaRange| {
        let block = body.blocks.find_sorted(&called.start, |way| way.original)?;
        Calling::of(request, &code, block)
    };
    let calls: Option<Vec<Calling>> = body.called.iter().map(calling).collect();
    let Some(calls) = calls else { return Ok(None) };
    let own = PointsWithCopy::known(env, arena, &body.probes);
    let (mut copy, probes, _) = ordinary(request, &code, &own, (&calls, &body.exposed), body.removal.code.start.0)?;
    let same = copy.labels.iter().copied().eq(body.blocks.iter().map(|way| way.copy.0)) && probes == body.probes;
    if !same || request.body.entry != body.entry {
        return Ok(None);
    }
    let ordinary = copy.out.bytes.clone();
    let springboards: FxHashSet<BlockId> = before.gates.iter().map(|gate| gate.block).collect();
    let aligned = |a: u64| a.next_multiple_of(ALIGNMENT);
    let mut room = request.room();
    for _ in 0..PLACES_MAX {
        let at = arena.place(room, aligned).ok_or(EmitError::ArenaFull)?;
        copy.out.restart(at);
        let Some(counting) = counting::emit(env, &mut copy, &probes, &springboards)? else { return Ok(None) };
        let len = copy.out.bytes.len() as u64;
        if len > room {
            room = len;
            continue;
        }
        let (moves, step_out) = copy.out.exits(at, copy.out.here());
        let code = Avma(at)..Avma(at + len);
        let apart = RemovalRecord { text: Vec::new(), moves, step_out, code: code.clone() };
        let gates: Option<Vec<Gate>> = before.gates.iter().map(|old| renewed_gate(old, &counting)).collect();
        let counting =
            CountingCopy { gates: gates.ok_or(EmitError::OutOfReach)?, apart: Some(apart), code, ..counting };
        let opening = |gate: &Gate| gate.opens().then(|| Some(text_write(gate.at.0, &gate.closed()?, &gate.bytes)))?;
        let mut text: Vec<_> = counting.gates.iter().filter_map(opening).collect();
        text.sort_unstable_by_key(|write| write.at);
        arena.take(at, len);
        let code = vec![ArenaCode { at: Avma(at), bytes: copy.out.bytes }];
        return Ok(Some(CountingRenewal {
            plan: PatchPlan { code, text, ..PatchPlan::default() },
            counting,
            ordinary,
        }));
    }
    Ok(None)
}

/// A gate of the first counting copy that leads to the gate of another one. It stays closed if that one has no gate at the block. `None` if a
/// jump does not reach.
fn renewed_gate(old: &Gate, counting: &CountingCopy) -> Option<Gate> {
    let bytes = match counting.gate(old.block) {
        Some(gate) => jmp_bytes(old.at.0, gate.at.0)?,
        None => old.closed()?,
    };
    Some(Gate { bytes, ..*old })
}
