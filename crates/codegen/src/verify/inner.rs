//! Exits that are woven into the copies that their function's entry displaces: their springboards lie in the arena.

use ingraft_model::{Avma, PointKind, TextWrite};

use super::lockstep::{self, Pair};
use super::memory::decode;
use super::walk::Walk;
use super::{Flaw, Proof, VerifyError, fail};
use crate::slot;
use crate::weave::{Inner, WovenPoint};

/// Bytes of a springboard in the arena.
const ROOM: usize = 5;

/// The exits that an entry offers are copies of displaced instructions, with room for a springboard each in front of anything else, and as
/// they are stated.
pub(super) fn exits(walk: &mut Walk<'_>, point: &WovenPoint, pairs: &mut Vec<Pair>) -> Result<(), VerifyError> {
    for exit in &point.exits {
        let copy = exit.copy.0;
        let Some(pair) = pairs.iter().find(|p| p.first && p.copy == copy && p.original == exit.original.0).copied()
        else {
            return fail(copy, Flaw::NotEquivalent);
        };
        let instruction = *walk.memory().decode(copy)?;
        let bytes = walk.memory().bytes(copy).and_then(|b| b.first_chunk::<ROOM>());
        if bytes != Some(&exit.bytes) || copy % 4096 > 4096 - ROOM as u64 {
            return fail(copy, Flaw::NotOriginal);
        }
        let next = instruction.is_jcc_short_or_near().then_some((Avma(pair.original_end), Avma(instruction.next_ip())));
        if exit.next != next {
            return fail(copy, Flaw::Astray);
        }
        // what fills the room is never reached
        let mut at = instruction.next_ip();
        while at < copy + ROOM as u64 {
            let filler = *walk.memory().decode(at)?;
            if filler.code() != iced_x86::Code::Int3 {
                return fail(at, Flaw::Untiled);
            }
            walk.mark(&filler)?;
            let (original, original_end) = (pair.original, pair.original_end);
            pairs.push(Pair { original, original_end, copy: at, first: false, back: Some(original) });
            at = filler.next_ip();
        }
    }
    Ok(())
}

impl Proof<'_> {
    /// Proves an exit with a host; the write that leads to it.
    pub(super) fn within<'w>(
        &self,
        walk: &mut Walk<'_>,
        host: Inner,
        mut hosts: impl Iterator<Item = &'w WovenPoint>,
    ) -> Result<TextWrite, VerifyError> {
        let (site, point, original) = (self.site(), self.point, host.original);
        let copy = host.copy.0;
        let proven =
            |h: &WovenPoint| h.kind == PointKind::Entry && h.function == point.function && h.exits.contains(&host);
        let right = site.within
            && site.kind == PointKind::Exit
            && site.point == 0
            && point.kind == site.kind
            && !site.after
            && !point.after
            && point.exits.is_empty()
            && point.removal.text.is_empty()
            && original == site.at.to_avma(self.request.bias)
            && point.function == site.function.to_avma(self.request.bias)
            && (point.at, point.resume) == (host.copy, Some(original))
            && point.leave.0 == point.slot.0 + slot::LEN;
        if !right || !hosts.any(proven) {
            return fail(copy, Flaw::Unmatched);
        }
        walk.begin(site, point);
        let mut pairs = Vec::new();
        let (base, tail) = (point.base.0, point.tail.0);
        let home = if decode(&site.bytes, original.0)?.is_jcc_short_or_near() {
            let Some((_, next)) = host.next else { return fail(copy, Flaw::Astray) };
            Some(lockstep::leaves_if(walk, &site.bytes, original.0, base, tail, Some(next.0), &mut pairs)?)
        } else {
            lockstep::run(walk, &site.bytes, original.0, tail, &|target| target, &mut pairs)?
        };
        if home.is_some_and(|home| home != point.home.0) {
            return fail(copy, Flaw::NotEquivalent);
        }
        let begin = self.past_condition(walk, base)?;
        self.snippets(walk, begin, &pairs)?;
        let displacement = i32::try_from(base.wrapping_sub(copy + ROOM as u64).cast_signed());
        let Ok(displacement) = displacement else { return fail(copy, Flaw::Astray) };
        let [a, b, c, d] = displacement.to_le_bytes();
        let padded = |[a, b, c, d, e]: [u8; ROOM]| [a, b, c, d, e, 0, 0, 0];
        Ok(TextWrite { at: host.copy, len: ROOM as u8, old: padded(host.bytes), new: padded([0xe9, a, b, c, d]) })
    }
}
