//! Transfers of generated code: where branches may lead, where control may leave, and the stack pointer past the red zone.

use iced_x86::{FlowControl, Instruction, OpKind, Register};
use ingraft_model::{Avma, AvmaRange};
use rustc_hash::FxHashSet;

use super::super::rules::number_of;
use super::super::state::{AbstractState, OTHER, RED_ZONE, RED_ZONE_WORDS, Stack};
use super::super::{Flaw, VerifyError, fail};
use super::{Interpreter, Mode};
use crate::code::routine::Routine;

impl Interpreter<'_> {
    /// Checks that no branch that leads backwards closes a loop, on the ways that were visited. Each target is followed once, for all branches to it.
    pub(super) fn no_loops(&self) -> Result<(), VerifyError> {
        let mut targets: Vec<u64> = self.backwards.iter().map(|(target, _)| *target).collect();
        targets.sort_unstable();
        targets.dedup();
        for from in targets {
            let reached = self.reached(from);
            let closes = |(target, branch): &&(u64, u64)| *target == from && reached.contains(branch);
            if let Some((_, branch)) = self.backwards.iter().find(closes) {
                return fail(*branch, Flaw::Astray);
            }
        }
        Ok(())
    }

    /// The instructions to which control that is at `from` can come, on ways that were visited.
    fn reached(&self, from: u64) -> FxHashSet<u64> {
        let (mut work, mut seen) = (vec![from], FxHashSet::default());
        while let Some(at) = work.pop() {
            if !seen.insert(at) || self.visit(at).is_none() {
                continue;
            }
            let Ok(i) = self.memory.decode(at) else { continue };
            let branches = i.is_jmp_short_or_near() || i.is_jcc_short_or_near();
            let pass = self.passes.iter().filter(|(jump, _)| *jump == at).map(|(_, back)| *back);
            work.extend(pass);
            work.extend(branches.then(|| i.near_branch_target()));
            work.extend((i.flow_control() != FlowControl::UnconditionalBranch).then(|| i.next_ip()));
        }
        seen
    }

    /// Checks that generated code has no loop: a branch leads forwards, out of the code, or along the chain of snippets, or it is noted for
    /// [`Interpreter::no_loops`]. Code aside of a snippet is reached only from the snippet, and returns to the snippet's link.
    pub(super) fn forward(&mut self, at: u64, target: u64, mode: Mode) -> Result<(), VerifyError> {
        if let Some((_, next)) = self.chain.iter().find(|(jump, _)| *jump == at) {
            return if *next == target { Ok(()) } else { fail(at, Flaw::Astray) };
        }
        let holds = |range: &AvmaRange, at: u64| range.contains(&Avma(at));
        let is_aside = self.asides.iter().find(|(aside, _)| holds(aside, target));
        if let Some((aside, place)) = is_aside
            && !(holds(aside, at) || target > at && holds(place, at))
        {
            return fail(at, Flaw::Astray);
        }
        let back = self.asides.iter().any(|(aside, place)| holds(aside, at) && target == place.end.0);
        let guard = (self.base..self.slot).contains(&at) && target == self.slow && self.slow < self.base;
        let slow = |target: u64| self.facts.slow.iter().any(|(_, s)| s.range.start.0 == target || s.walk.0 == target);
        let leaves = back || target == self.tail || guard || slow(target);
        let is_new = !self.backwards.contains(&(target, at));
        if target <= at && !leaves && !matches!(mode, Mode::Routine(_)) && is_new {
            self.backwards.push((target, at));
        }
        Ok(())
    }

    /// Whether control leaves generated code at `at`. Fails if the state does not permit it.
    pub(super) fn leaves(&self, at: u64, state: &AbstractState, mode: Mode) -> Result<bool, VerifyError> {
        if matches!(mode, Mode::Routine(_)) {
            return Ok(false);
        }
        if at == self.tail || Some(at) == self.probe {
            return match mode {
                Mode::Point if self.harmless(state) => Ok(true),
                Mode::Point if state.stack.len() == self.pushed => fail(at, Flaw::Lost),
                Mode::Point | Mode::Twin(_) | Mode::Routine(_) => fail(at, Flaw::Stack),
            };
        }
        for (r, routine) in &self.facts.slow {
            let (entry, place) = match mode {
                Mode::Twin(jump) => (routine.walk.0, jump),
                Mode::Point | Mode::Routine(_) => (routine.range.start.0, self.slot),
            };
            if at == entry {
                // Only the code before the slot enters the routine from there, and an added snippet lies behind the slot.
                if mode == Mode::Point && self.is_added {
                    return fail(at, Flaw::Astray);
                }
                self.past_red_zone(at, state)?;
                return if state.pointer == Some((*r, place)) { Ok(true) } else { fail(at, Flaw::Astray) };
            }
        }
        Ok(false)
    }

    /// Applies a `lea` that brings the stack pointer below the red zone or back.
    pub(super) fn crosses_red_zone(
        &self,
        i: &Instruction,
        state: &mut AbstractState,
        mode: Mode,
    ) -> Result<(), VerifyError> {
        let moves = |by: u64| i.memory_displacement64() == by;
        let plain = i.memory_base() == Register::RSP && i.memory_index() == Register::None;
        let may = plain && self.red_zone && mode == Mode::Point && self.pushed == 0;
        if may && moves(RED_ZONE.wrapping_neg()) && state.stack.len() == 0 {
            return (0..RED_ZONE_WORDS).try_for_each(|_| state.stack.push(i.ip(), OTHER));
        }
        if may && moves(RED_ZONE) && state.stack.len() == usize::from(RED_ZONE_WORDS) {
            state.stack = Stack::default();
            return Ok(());
        }
        fail(i.ip(), Flaw::Stack)
    }

    /// Checks that the stack pointer is below the red zone, if the point has one.
    pub(super) fn past_red_zone(&self, at: u64, state: &AbstractState) -> Result<(), VerifyError> {
        let right = !self.red_zone || state.stack.len() >= usize::from(RED_ZONE_WORDS);
        if right { Ok(()) } else { fail(at, Flaw::Stack) }
    }

    /// Checks the end of a routine: a jump to rax, with all registers unchanged except the answer.
    pub(super) fn returns(&self, i: &Instruction, state: &AbstractState, mode: Mode) -> Result<(), VerifyError> {
        let (r, changed) = match mode {
            Mode::Routine(Routine::CpuTime | Routine::Await | Routine::Room) => (0, 0),
            Mode::Routine(Routine::Time) => (0, 1 << 2),
            // The answer is in rcx.
            Mode::Routine(_) => (0, 1 << 1),
            Mode::Point | Mode::Twin(_) => return fail(i.ip(), Flaw::Forbidden),
        };
        if i.op0_kind() != OpKind::Register || number_of(i.op0_register()) != Some(r) {
            return fail(i.ip(), Flaw::Forbidden);
        }
        if state.stack.len() != 0 {
            return fail(i.ip(), Flaw::Stack);
        }
        if !state.kept & !changed == 0 { Ok(()) } else { fail(i.ip(), Flaw::Lost) }
    }
}
