//! Proof of the points that are woven together with the copy of their function, as a part of the proof of the ordinary copy.
//!
//! Such a point passes if
//! - its code is the check of the shard, the way to the slow routine, and a plain count in the slot, between two changes of the stack pointer;
//! - the register of the check and the flags are free there, and the counter is that of the request;
//! - a write of the slot, or of the jump that replaces the code later, lies on one page;
//! - the point states where all that is.

use iced_x86::{Code, Register};
use ingraft_model::layout::OWNER;
use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, Gpr, PointId, PointKind, ThreadIdentity};
use rustc_hash::FxHashMap;

use super::body::BodyProof;
use super::counting::{INCREMENT, at_address, moves_stack};
use super::rules::number_of;
use super::state::{RED_ZONE, RED_ZONE_WORDS};
use super::{Flaw, VerifyError, fail};
use crate::code::arena::Arena;
use crate::code::body::{Held, PROBE, Probe};
use crate::code::environment::Environment;
use crate::code::woven::{StackView, WovenMini, WovenPoint};
use crate::patch::body::{BodyCode, BodyPoint};
use crate::patch::with_copy::WithCopy;
use crate::snippet::slot;

/// Facts for the proof of such points.
pub(super) struct PointRules<'a> {
    pub env: &'a Environment,
    pub arena: &'a Arena,
    /// The points that may be woven together with the copy, by the request; `None` if the copy exists already, and its points were proven.
    requested: Option<FxHashMap<PointId, (WithCopy, u32)>>,
}

impl<'a> PointRules<'a> {
    /// The rules for a new copy.
    pub fn of_request(env: &'a Environment, arena: &'a Arena, points: &[BodyPoint]) -> Self {
        let own = |point: &BodyPoint| match (&point.code, point.with_copy) {
            (BodyCode::Count(counter), Some(with)) if *counter < env.data.counters() => {
                Some((point.point, (with, env.data.counter(*counter))))
            }
            _ => None,
        };
        PointRules { env, arena, requested: Some(points.iter().filter_map(own).collect()) }
    }

    /// The rules for a copy that exists.
    pub fn of_known(env: &'a Environment, arena: &'a Arena) -> Self {
        PointRules { env, arena, requested: None }
    }

    /// Displacement of the counter in the slot of a point whose check uses this register; `None` if any counter may stand there. Fails if the
    /// point may not stand there.
    fn counter(&self, at: u64, point: &PointId, r: Gpr) -> Result<Option<u32>, VerifyError> {
        let Some(requested) = &self.requested else { return Ok(None) };
        let Some((with, counter)) = requested.get(point) else { return fail(at, Flaw::Unmatched) };
        let is_of_graph = matches!(point.kind(), PointKind::Block | PointKind::Edge);
        let free = with.at.flags() && with.at.registers() >> r.0 & 1 != 0 && !with.at.is_moving();
        if is_of_graph && free { Ok(Some(*counter)) } else { fail(at, Flaw::Lost) }
    }
}

impl BodyProof<'_> {
    /// Takes the code of a point that was woven together with the copy. A thread that has not begun it resumes at `original`. Returns the address
    /// after it.
    pub(super) fn point_with_copy(
        &mut self,
        at: u64,
        (point, r): (PointId, Gpr),
        original: u64,
    ) -> Result<u64, VerifyError> {
        let counter = self.rules.counter(at, &point, r)?;
        let (env, arena) = (self.rules.env, self.rules.arena);
        let ThreadIdentity::FsOffset(offset) = env.identity else { return fail(at, Flaw::Unmatched) };
        let first = self.take(at, original)?;
        let mut next = first.next_ip();
        let mut inside = || {
            let i = self.memory.decode(next)?;
            next = i.next_ip();
            Ok::<_, VerifyError>(i)
        };
        let (identity, compare, over, lea, jump) = (inside()?, inside()?, inside()?, inside()?, inside()?);
        let (count, raise) = (inside()?, inside()?);
        let own = |register: Register| number_of(register) == Some(r.0);
        let checked = identity.code() == Code::Mov_r32_rm32
            && own(identity.op0_register())
            && at_address(&identity, Register::FS, offset.into())
            && compare.code() == Code::Cmp_rm32_r32
            && own(compare.op1_register())
            && at_address(&compare, Register::GS, env.data.displacement(OWNER).into())
            && over.code() == Code::Je_rel8_64
            && over.near_branch_target() == count.ip();
        let slow = arena.slow(r).map(|slow| slow.range.start.0);
        let enters = lea.code() == Code::Lea_r64_m
            && own(lea.op0_register())
            && lea.is_ip_rel_memory_operand()
            && lea.ip_rel_memory_address() == count.ip()
            && jump.code() == Code::Jmp_rel32_64
            && Some(jump.near_branch_target()) == slow;
        let bytes = self.memory.bytes(count.ip()).unwrap_or_default();
        let operand = bytes.get(INCREMENT.len()..slot::LEN as usize);
        let counts = bytes.starts_with(&INCREMENT)
            && counter.is_none_or(|counter| operand == Some(counter.to_le_bytes().as_slice()));
        let kept = moves_stack(&first, RED_ZONE.wrapping_neg()) && moves_stack(&raise, RED_ZONE);
        if !(checked && enters && counts && kept) {
            return fail(at, Flaw::NotEquivalent);
        }
        let on_one_page = |at: u64, len: u64| at % PAGE + len <= PAGE;
        if first.len() < PROBE || !on_one_page(at, PROBE as u64) || !on_one_page(count.ip(), slot::LEN) {
            return fail(at, Flaw::Straddles);
        }
        for i in [identity, compare, over, lea, jump, count, raise] {
            self.take_inside(i.ip(), i.next_ip())?;
        }
        self.met(point, at, original, Held::Point(r));
        Ok(raise.next_ip())
    }

    /// Checks that points are those whose code stands in the copy, and what they state.
    pub(super) fn points_with_copy(&self, points: &[Box<WovenPoint>]) -> Result<(), VerifyError> {
        let probes = self.body.probes.iter().filter(|probe| matches!(probe.holds, Held::Point(_)));
        let own: Vec<&Probe> = probes.collect();
        if own.len() != points.len() {
            return fail(self.body.function.0, Flaw::Unmatched);
        }
        own.into_iter().zip(points).try_for_each(|(probe, point)| self.states(probe, point))
    }

    fn states(&self, probe: &Probe, point: &WovenPoint) -> Result<(), VerifyError> {
        let at = probe.copy;
        let wrong = || fail(at.0, Flaw::Unmatched);
        let (Held::Point(r), Some(slot)) = (probe.holds, probe.slot()) else { return wrong() };
        let requested = self.rules.requested.as_ref().and_then(|requested| requested.get(&probe.point));
        let (Some((with, counter)), Some(slow)) = (requested, self.rules.arena.slow(r)) else { return wrong() };
        let bytes = self.memory.bytes(slot.start.0).unwrap_or_default();
        // The code after the slot was met as the last of the point.
        let tail = Avma(self.memory.decode(slot.end.0)?.next_ip());
        let places = (point.at, point.base, point.slot, point.leave) == (at, at, slot.start, slot.end)
            && (point.tail, point.tail_end, point.home) == (tail, tail, tail)
            && probe.next().copy == tail
            && bytes.starts_with(&INCREMENT);
        let state = point.kind == probe.point.kind()
            && point.resume == Some(probe.original)
            && point.stack == StackView::FUNCTION
            && point.function == self.body.function
            && point.scratch == Some(r)
            && (!point.rax_free || with.at.registers() & 1 != 0)
            && point.pushed == RED_ZONE_WORDS;
        let alone = point.first.is_none()
            && point.returns_to.is_none()
            && point.host.is_none()
            && point.probe.as_ref() == Some(probe)
            && point.inner.is_empty()
            && point.redirected.is_empty()
            && point.rooms.is_empty();
        let counts = |mini: &WovenMini| {
            mini.id == with.id
                && mini.count == Some(*counter)
                && mini.code.is_none()
                && mini.removal == Default::default()
        };
        let [mini] = point.minis.as_slice() else { return wrong() };
        let removal = &point.removal;
        let removed = removal.text.is_empty()
            && removal.moves.is_empty()
            && removal.step_out == [slow.range.clone()]
            && removal.code == (slot.start..slot.start);
        if places && state && alone && counts(mini) && removed { Ok(()) } else { wrong() }
    }
}
