//! Proof of a plan that moves points from the text into copies of their functions. The removal records of the points, the copies and the new
//! points were proven before.

use std::collections::BTreeMap;

use ingraft_model::{Avma, AvmaRange, FirstInstruction, PatchPlan, PcMove, PointKind, TextWrite};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{Flaw, VerifyError, check_writes, fail};
use crate::patch::rehost::Rehosted;

/// Bytes of a list of writes, before and after them.
type Bytes = BTreeMap<u64, (u8, u8)>;

/// Proves a plan of [`crate::rehost`] for these points and this insertion.
///
/// The plan passes if
/// - after it, each byte is what the insertion makes of the original text;
/// - each thread in old code moves to an address whose equivalent in the text is the same, or leaves the code by single steps;
/// - each thread in an island of old code, or at a springboard behind a first instruction that stays, leaves it by single steps;
/// - a thread that has run the snippets of a point does not run them again;
/// - to a probe behind a pushed return address, only points at the same call move.
pub fn verify_rehosted(points: &[Rehosted<'_>], insertion: &PatchPlan, plan: &PatchPlan) -> Result<(), VerifyError> {
    check_writes(&plan.text)?;
    if let Some(point) = points.iter().find(|point| point.probe.is_some_and(|probe| !probe.can_take_over(point.old))) {
        return fail(point.old.at.0, Flaw::Unmatched);
    }
    let first = plan.text.first().map_or(Avma(0), |write| write.at);
    let removal = points.iter().flat_map(|point| point.old.records()).flat_map(|record| &record.text);
    let removed = bytes(removal);
    // Writes of the insertion into bytes that no removal writes are the same in the plan. All others are compared byte by byte.
    let is_apart = |w: &&TextWrite| removed.range(w.at.0..w.at.0 + u64::from(w.len)).next().is_none();
    let apart: FxHashSet<&TextWrite> = insertion.text.iter().filter(is_apart).collect();
    if plan.text.iter().filter(|write| apart.contains(write)).count() != apart.len() {
        return fail(first.0, Flaw::Unmatched);
    }
    let others = |writes: &[TextWrite]| bytes(writes.iter().filter(|write| !apart.contains(write)));
    let (inserted, all) = (others(&insertion.text), others(&plan.text));
    for (at, (old, new)) in &all {
        let right = match (removed.get(at), inserted.get(at)) {
            (Some((woven, original)), Some((before, after))) => woven == old && original == before && after == new,
            (Some(own), None) | (None, Some(own)) => own == &(*old, *new),
            (None, None) => false,
        };
        if !right {
            return fail(*at, Flaw::NotOriginal);
        }
    }
    if let Some((at, _)) = removed.iter().chain(&inserted).find(|(at, _)| !all.contains_key(at)) {
        return fail(*at, Flaw::Unmatched);
    }
    let codes = || points.iter().flat_map(|point| point.old.records()).map(|r| &r.code).filter(|c| c.start < c.end);
    let retired: FxHashSet<&AvmaRange> = plan.retired.iter().collect();
    if plan.code != insertion.code || codes().any(|code| !retired.contains(code)) {
        return fail(first.0, Flaw::Unmatched);
    }
    if let Some(pair) = plan.step_out.windows(2).find(|pair| pair[0].end > pair[1].start) {
        return fail(pair[1].start.0, Flaw::Disorder);
    }
    let is_left = |code: &AvmaRange| {
        let after = plan.step_out.partition_point(|range| range.start <= code.start);
        let range = after.checked_sub(1).and_then(|index| plan.step_out.get(index));
        range.is_some_and(|range| code.end <= range.end)
    };
    let left = points.iter().flat_map(|point| point.old.records()).flat_map(|record| &record.step_out);
    if let Some(code) = codes().chain(left).find(|code| !is_left(code)) {
        return fail(code.start.0, Flaw::BadMove);
    }
    moves(points, insertion, plan)?;
    for old in points.iter().map(|point| point.old) {
        let inside = |at: Avma| old.records().any(|record| record.code.contains(&at));
        let islands = old.records().flat_map(|record| &record.moves).map(|m| m.from).filter(|at| !inside(*at));
        // A jump of five bytes; of a springboard only its first byte, where a thread may be.
        let springboard = old.first.as_ref().map(|_| (old.at, old.at.offset(1)));
        for (island, end) in islands.map(|at| (at, at.offset(5))).chain(springboard) {
            let next = plan.moves.get(plan.moves.partition_point(|m| m.from < island));
            if next.is_some_and(|m| m.from < end) || !is_left(&(island..end)) {
                return fail(island.0, Flaw::BadMove);
            }
        }
    }
    Ok(())
}

fn bytes<'a>(writes: impl Iterator<Item = &'a TextWrite>) -> Bytes {
    let each = |write: &'a TextWrite| (write.at.0..).zip(write.old_bytes().iter().zip(write.new_bytes()));
    writes.flat_map(each).map(|(at, (old, new))| (at, (*old, *new))).collect()
}

fn moves(points: &[Rehosted<'_>], insertion: &PatchPlan, plan: &PatchPlan) -> Result<(), VerifyError> {
    let inserted: FxHashMap<Avma, Avma> = insertion.moves.iter().map(|m| (m.from, m.to)).collect();
    let mut known: FxHashMap<Avma, Vec<(Avma, &Rehosted<'_>)>> = FxHashMap::default();
    for point in points {
        for m in point.old.records().flat_map(|record| &record.moves) {
            known.entry(m.from).or_default().push((m.to, point));
        }
    }
    let mut last = None;
    for PcMove { from, to } in &plan.moves {
        let own = inserted.get(from) == Some(to);
        let allowed = |(text, point): &(Avma, &Rehosted<'_>)| {
            let old = point.old;
            // The thread has run the snippets, and is about to execute the point's instruction.
            let at_point = Some(*text) == old.resume || old.kind == PointKind::Entry && *text == old.function;
            // A thread behind a first instruction that ran once must not run its copy, which follows the probe.
            let at_point = at_point && !old.first.as_ref().is_some_and(FirstInstruction::runs_once);
            let passed = (old.tail..old.tail_end).contains(from);
            let ran = passed && at_point;
            match point.probe.filter(|_| ran && old.returns_to.is_none()) {
                Some(probe) => *to == probe.next().copy,
                // This thread has executed the first instruction, but not run the snippets.
                None if !passed && old.first.is_some() && *text == old.at => false,
                None => to == text || inserted.get(text) == Some(to) && !ran,
            }
        };
        let old = known.get(from).is_some_and(|its| its.iter().any(allowed));
        if !own && !old || last >= Some(*from) {
            return fail(from.0, Flaw::BadMove);
        }
        last = Some(*from);
    }
    Ok(())
}
