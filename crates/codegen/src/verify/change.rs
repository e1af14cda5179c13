//! Proofs of the smaller plans: one snippet more or less at a woven point, and removal.

use ingraft_model::{Avma, PatchPlan};

use super::{Flaw, VerifyError, check_writes, fail};
use crate::weave::WovenPoint;

/// Proves a removal: every original byte comes back, every record of the points is in the plan, nothing else is.
pub fn verify_removal(plan: &PatchPlan, points: &[WovenPoint]) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    if let Some(code) = plan.code.first() {
        return fail(code.at.0, Flaw::Forbidden);
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

/// Proves the plan of one snippet more or less: `after` is the point as it will be.
pub fn verify_change(plan: &PatchPlan, after: &WovenPoint) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    let [write] = plan.text.as_slice() else { return fail(after.at.0, Flaw::Unmatched) };
    // the jump that is rewritten, and where the chain goes on from it
    let jumps = std::iter::once(after.slot).chain(after.minis.iter().map(|m| m.jump));
    let starts = after.minis.iter().map(|m| m.start).chain([after.leave]);
    let Some((jump, start)) = jumps.zip(starts).find(|(jump, _)| jump.0 + 1 == write.at.0) else {
        return fail(write.at.0, Flaw::Astray);
    };
    let displacement = write.new_bytes().first_chunk::<4>().filter(|_| write.len == 4);
    let leads = displacement.map(|d| Avma((jump.0 + 5).wrapping_add_signed(i64::from(i32::from_le_bytes(*d)))));
    if leads == Some(start) { Ok(()) } else { fail(write.at.0, Flaw::Astray) }
}
