//! Proof of a new counting copy in the place of one that was given up.
//!
//! It passes if
//! - the ordinary copy passes as [`verify_body`](super::verify_body) proves it, but for its springboards, which stay;
//! - the counting copy passes as the first one of a function does;
//! - each older gate becomes a jump to the gate of the same block, or stays a jump to the block's arrival; nothing else is written;
//! - each instruction has the equivalent address in the text that the removal record names.

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, PcMove};

use super::body::BodyProof;
use super::memory::Memory;
use super::with_copy::PointRules;
use super::{Flaw, VerifyError, check_writes, counting, fail};
use crate::code::arena::Arena;
use crate::code::block::{jmp_bytes, text_write};
use crate::code::body::WovenBody;
use crate::code::environment::Environment;
use crate::patch::body::BodyRequest;
use crate::patch::renewal::CountingRenewal;

/// Proves a plan of [`crate::renew_counting`]. `body` is the copy before the change. The caller compares [`CountingRenewal::ordinary`] with the target, apart
/// from the probes.
pub fn verify_renewal(
    env: &Environment,
    arena: &Arena,
    request: &BodyRequest<'_>,
    body: &WovenBody,
    renewal: &CountingRenewal,
) -> Result<(), VerifyError> {
    let CountingRenewal { plan, counting, ordinary } = renewal;
    let at = counting.code.start.0;
    let (Some(before), Some(apart)) = (body.counting.as_ref().filter(|c| !c.open), &counting.apart) else {
        return fail(at, Flaw::Unmatched);
    };
    let same_gates = before.gates.iter().map(|g| (g.block, g.at, g.arrival));
    if !same_gates.eq(counting.gates.iter().map(|g| (g.block, g.at, g.arrival))) {
        return fail(at, Flaw::Unmatched);
    }
    check_writes(&plan.text)?;
    let mut expected = Vec::new();
    for gate in &counting.gates {
        let closed = jmp_bytes(gate.at.0, gate.arrival.0).ok_or(VerifyError { at: gate.at, flaw: Flaw::Astray })?;
        if closed != gate.bytes {
            expected.push(text_write(gate.at.0, &closed, &gate.bytes));
        }
    }
    expected.sort_unstable_by_key(|write| write.at);
    let [code] = plan.code.as_slice() else { return fail(at, Flaw::Unmatched) };
    let own = code.at == apart.code.start && apart.code.end == code.at.offset(code.bytes.len() as i64);
    let bare = plan.moves.is_empty() && plan.step_out.is_empty() && plan.retired.is_empty();
    let record = apart.text.is_empty() && apart.step_out == counting.inside && apart.code == counting.code;
    if plan.text != expected || !own || !bare || !record {
        return fail(at, Flaw::Unmatched);
    }
    let start = body.removal.code.start;
    let end = start.offset(ordinary.len() as i64);
    if end > body.removal.code.end {
        return fail(start.0, Flaw::Unmatched);
    }
    let all = [ArenaCode { at: start, bytes: ordinary.clone() }, code.clone()];
    let memory = Memory::new(&all, &arena.range())?;
    let body = WovenBody { counting: Some(counting.clone()), ..body.clone() };
    let mut proof = BodyProof::new(request, &body, &memory, PointRules::of_known(env, arena));
    proof.ordinary()?;
    counting::prove(env, arena, &mut proof)?;
    proof.tiled(&[start..end, counting.code.clone()])?;
    proof.probes()?;
    let inside = proof.ends.iter().filter(|(at, _)| counting.code.contains(&Avma(**at)));
    let mut moves: Vec<PcMove> = inside.map(|(at, (_, to))| PcMove { from: Avma(*at), to: Avma(*to) }).collect();
    moves.sort_unstable();
    if moves == apart.moves { Ok(()) } else { fail(at, Flaw::BadMove) }
}
