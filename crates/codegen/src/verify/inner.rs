//! Changes that points make in copies of instructions that other points displace: a springboard over a copy of the point's own
//! instruction, and a redirected copy of a jump.

use ingraft_model::{Avma, BackBranch, FreeRegisters, PcMove, PointKind, SiteKind, TextWrite};
use rustc_hash::FxHashMap;

use super::equivalence::{self, InstructionPair};
use super::interpreter::Interpreter;
use super::memory::decode;
use super::{Flaw, PointProof, VerifyError, fail};
use crate::code::body::{Held, Probe, Way};
use crate::code::woven::{DisplacedCopy, StackView, WovenPoint};
use crate::patch::weave::{PointRequest, Weave};
use crate::snippet::slot;

/// Length in bytes of a springboard in the arena.
const ROOM: usize = 5;

/// Copies of displaced instructions that points may need, each with the point whose code holds the copy.
pub(super) struct Hosts<'a>(FxHashMap<DisplacedCopy, &'a WovenPoint>);

impl<'a> Hosts<'a> {
    pub fn new(requests: &[PointRequest<'a>], weave: &'a Weave) -> Self {
        let woven =
            weave.woven.iter().flatten().map(Box::as_ref).chain(requests.iter().flat_map(|r| r.beside).copied());
        Hosts(woven.flat_map(|point| point.inner.iter().map(move |inner| (*inner, point))).collect())
    }
}

/// Checks the copies that a point offers to others: they are copies of displaced instructions, as the point states them, and each has room
/// for a springboard.
pub(super) fn offered(
    interpreter: &mut Interpreter<'_>,
    point: &WovenPoint,
    pairs: &mut Vec<InstructionPair>,
) -> Result<(), VerifyError> {
    if point.inner.is_empty() {
        return Ok(());
    }
    let first: FxHashMap<(u64, u64), InstructionPair> =
        pairs.iter().filter(|p| p.first).map(|p| ((p.copy, p.original), *p)).collect();
    for offer in &point.inner {
        let copy = offer.copy.0;
        let Some(pair) = first.get(&(copy, offer.original.0)).copied() else {
            return fail(copy, Flaw::NotEquivalent);
        };
        let instruction = interpreter.memory().decode(copy)?;
        let bytes = interpreter.memory().bytes(copy).and_then(|b| b.first_chunk::<ROOM>());
        if bytes != Some(&offer.bytes) || copy % 4096 > 4096 - ROOM as u64 {
            return fail(copy, Flaw::NotOriginal);
        }
        let next = instruction.is_jcc_short_or_near().then_some((Avma(pair.original_end), Avma(instruction.next_ip())));
        if offer.next != next {
            return fail(copy, Flaw::Astray);
        }
        let is_jump = next.is_some() || instruction.is_jmp_short_or_near();
        let leads = (is_jump && pair.original_end > pair.original).then(|| Avma(instruction.near_branch_target()));
        let long = matches!(instruction.len(), 5 | 6);
        if offer.leads != leads || is_jump && (!long || copy % 4096 + instruction.len() as u64 > 4096) {
            return fail(copy, Flaw::Astray);
        }
        // Control never reaches the bytes that fill the room.
        let mut at = instruction.next_ip();
        while at < copy + ROOM as u64 {
            let filler = interpreter.memory().decode(at)?;
            if filler.code() != iced_x86::Code::Int3 {
                return fail(at, Flaw::Untiled);
            }
            interpreter.mark(&filler)?;
            let (original, original_end) = (pair.original, pair.original_end);
            pairs.push(InstructionPair { original, original_end, copy: at, first: false, back: Some(original) });
            at = filler.next_ip();
        }
    }
    Ok(())
}

impl PointProof<'_> {
    /// Proves a point with a host. Returns the write that leads to the point.
    pub(super) fn within(
        &self,
        interpreter: &mut Interpreter<'_>,
        host: DisplacedCopy,
        hosts: &Hosts<'_>,
    ) -> Result<TextWrite, VerifyError> {
        let (site, point, original) = (self.site(), self.point, host.original);
        let copy = host.copy.0;
        // The point's code replaces the host's copy. The host must be an entry or a point after a call, so its own snippets run before all
        // copies.
        let proven =
            |h: &&WovenPoint| matches!(h.kind, PointKind::Entry | PointKind::CallAfter) && h.function == point.function;
        let bytes = site.bytes.get(usize::from(site.point)..).unwrap_or_default();
        let right = matches!(site.point_kind(), PointKind::Exit | PointKind::CallBefore)
            && point.kind == site.point_kind()
            && point.inner.is_empty()
            && point.redirected.is_empty()
            && point.removal.text.is_empty()
            && original.0 == self.point_at()
            && point.function == site.function.to_avma(self.request.bias)
            && (point.at, point.resume, &point.first) == (host.copy, Some(original), &None)
            && point.leave.0 >= point.slot.0 + slot::LEN;
        if !right || !hosts.0.get(&host).is_some_and(proven) {
            return fail(copy, Flaw::Unmatched);
        }
        interpreter.begin(site, point);
        let mut pairs = Vec::new();
        let (base, tail) = (point.base.0, point.tail.0);
        let home = if site.point_kind() == PointKind::Exit && decode(bytes, original.0)?.is_jcc_short_or_near() {
            let Some((_, next)) = host.next else { return fail(copy, Flaw::Astray) };
            Some(equivalence::leaves_if(interpreter, bytes, original.0, base, tail, Some(next.0), &mut pairs)?)
        } else {
            equivalence::run(interpreter, bytes, original.0, tail, &|target| target, &mut pairs)?
        };
        if home.is_some_and(|home| home != point.home.0) {
            return fail(copy, Flaw::NotEquivalent);
        }
        let begin = self.past_condition(interpreter, base)?;
        self.snippets(interpreter, begin, &pairs)?;
        let displacement = i32::try_from(base.wrapping_sub(copy + ROOM as u64).cast_signed());
        let Ok(displacement) = displacement else { return fail(copy, Flaw::Astray) };
        let [a, b, c, d] = displacement.to_le_bytes();
        let padded = |[a, b, c, d, e]: [u8; ROOM]| [a, b, c, d, e, 0, 0, 0];
        Ok(TextWrite { at: host.copy, len: ROOM as u8, old: padded(host.bytes), new: padded([0xe9, a, b, c, d]) })
    }

    /// Whether the site is that of a point at this position in the copy of its function.
    fn is_position(&self, at: Avma) -> bool {
        let (site, bias) = (self.site(), self.request.bias);
        let own = site.at.to_avma(bias);
        match site.point_kind() {
            // The springboard lies after an `endbr64`.
            PointKind::Entry => at == own || at == self.point.function && at.offset(4) == own,
            PointKind::Exit | PointKind::CallBefore => at.0 == self.point_at(),
            PointKind::CallAfter | PointKind::Block | PointKind::Edge => at == own,
        }
    }

    /// Proves a point in the copy of its function, which was proven before. Adds the moves of threads that have arrived at the point and
    /// have passed the probe. Returns the write that leads to the point.
    pub(super) fn at_probe(
        &self,
        interpreter: &mut Interpreter<'_>,
        probe: &Probe,
        expected: &mut Vec<PcMove>,
    ) -> Result<TextWrite, VerifyError> {
        let (site, point, copy) = (self.site(), self.point, probe.copy.0);
        let right = self.request.probe.as_ref() == Some(probe)
            && point.kind == site.point_kind()
            && probe.point.kind() == point.kind
            && self.is_position(probe.at(point.function))
            && point.host.is_none()
            && point.inner.is_empty()
            && point.redirected.is_empty()
            && point.removal.text.is_empty()
            && point.function == site.function.to_avma(self.request.bias)
            && (point.at, point.resume, &point.first) == (probe.copy, Some(probe.original), &None)
            && point.leave.0 >= point.slot.0 + slot::LEN;
        if !right {
            return fail(copy, Flaw::Unmatched);
        }
        let fits_call = match &site.kind {
            // A register that is free at the beginning of the block may hold an argument here.
            SiteKind::Block { free } | SiteKind::Edge { free } => *free == FreeRegisters::default(),
            SiteKind::CallBefore => point.stack == StackView::CALLED,
            SiteKind::Entry { .. } | SiteKind::Exit { .. } | SiteKind::CallAfter { .. } => false,
        };
        if probe.holds == Held::Called && !fits_call {
            return fail(copy, Flaw::Unmatched);
        }
        interpreter.begin(site, point);
        let mut pairs = Vec::new();
        let (base, tail) = (point.base.0, point.tail.0);
        let leaves = |interpreter: &mut Interpreter<'_>, pairs: &mut Vec<InstructionPair>, at: u64, way: Way| {
            let jump = interpreter.memory().decode(at)?;
            interpreter.mark(&jump)?;
            let (original, original_end) = (probe.original.0, probe.original.0);
            pairs.push(InstructionPair { original, original_end, copy: at, first: false, back: Some(way.original.0) });
            let leads = jump.is_jmp_short_or_near() && jump.near_branch_target() == way.copy.0;
            if leads { Ok(()) } else { fail(at, Flaw::NotEquivalent) }
        };
        let own = Way { copy: probe.copy, original: probe.original };
        match probe.holds {
            // The jump to this point may stand over the code of another one, which has nothing to do any more.
            Held::Nop | Held::Called | Held::Point(_) => leaves(interpreter, &mut pairs, tail, probe.next())?,
            // A thread that has not executed the jump yet may execute the one in the text.
            Held::Jump(to) => leaves(interpreter, &mut pairs, tail, Way { copy: to.copy, ..own })?,
            Held::Branch(taken, next) => {
                leaves(interpreter, &mut pairs, tail, taken)?;
                let stays = interpreter.memory().decode(base)?;
                interpreter.mark(&stays)?;
                let (original, back) = (probe.original.0, Some(probe.original.0));
                pairs.push(InstructionPair { original, original_end: original, copy: base, first: false, back });
                let mut opposite = stays;
                opposite.negate_condition_code();
                // The sixth byte belongs to the displacement.
                let [a, b, c, d, e] = probe.bytes;
                let original_jump = decode(&[a, b, c, d, e, 0], copy)?;
                let is_opposite = stays.is_jcc_short_or_near()
                    && stays.near_branch_target() == next.copy.0
                    && original_jump.is_jcc_near()
                    && original_jump.condition_code() == opposite.condition_code();
                if !is_opposite {
                    return fail(base, Flaw::NotEquivalent);
                }
            }
        }
        if point.home != probe.next().copy {
            return fail(copy, Flaw::NotEquivalent);
        }
        let begin = match probe.holds {
            Held::Branch(..) => interpreter.memory().decode(base)?.next_ip(),
            Held::Nop | Held::Called | Held::Jump(_) | Held::Point(_) => base,
        };
        self.snippets(interpreter, begin, &pairs)?;
        // The thread is about to leave the function, or to make the call.
        let passed = match (site.point_kind(), probe.holds) {
            (PointKind::Exit, Held::Nop) | (PointKind::CallBefore, Held::Called) => Some(Avma(copy + ROOM as u64)),
            (PointKind::CallBefore, Held::Jump(call)) => Some(call.copy),
            (PointKind::Exit | PointKind::CallBefore, _)
            | (PointKind::Entry | PointKind::CallAfter | PointKind::Block | PointKind::Edge, _) => None,
        };
        expected.extend(passed.map(|from| PcMove { from, to: point.base }));
        let displacement = i32::try_from(base.wrapping_sub(copy + ROOM as u64).cast_signed());
        let Ok(displacement) = displacement else { return fail(copy, Flaw::Astray) };
        let [a, b, c, d] = displacement.to_le_bytes();
        let padded = |[a, b, c, d, e]: [u8; ROOM]| [a, b, c, d, e, 0, 0, 0];
        Ok(TextWrite { at: probe.copy, len: ROOM as u8, old: padded(probe.bytes), new: padded([0xe9, a, b, c, d]) })
    }

    /// Returns the writes that redirect jumps to the springboard in the copies that other points hold, so that the jumps lead to the tail.
    pub(super) fn redirected(&self, hosts: &Hosts<'_>) -> Result<Vec<TextWrite>, VerifyError> {
        let (site, point) = (self.site(), self.point);
        let begins = |to: Avma| to == point.at || site.point_kind() == PointKind::Entry && to == point.function;
        let mut writes = Vec::with_capacity(point.redirected.len());
        for inner in &point.redirected {
            let copy = inner.copy.0;
            let stated = |b: &BackBranch| b.at.to_avma(self.request.bias) == inner.original;
            let proven = hosts.0.get(inner).is_some_and(|h| h.function == point.function);
            let leads = inner.leads.filter(|to| proven && begins(*to) && site.back_branches().iter().any(stated));
            let Some(old) = leads else { return fail(copy, Flaw::Unmatched) };
            let end = copy + if inner.next.is_some() { 6 } else { 5 };
            let to = |target: u64| i32::try_from(target.wrapping_sub(end).cast_signed()).ok();
            let (Some(old), Some(new)) = (to(old.0), to(point.tail.0)) else { return fail(copy, Flaw::Astray) };
            let padded = |n: i32| (u64::from(n.cast_unsigned())).to_le_bytes();
            writes.push(TextWrite { at: Avma(end - 4), len: 4, old: padded(old), new: padded(new) });
        }
        Ok(writes)
    }
}
