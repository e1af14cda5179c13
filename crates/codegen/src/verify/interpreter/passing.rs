//! The effects of shared routines on the state of a snippet that enters them, by a jump or by a call.

use iced_x86::Instruction;
use ingraft_model::{Avma, ProgramCall};

use super::super::rules::are_counters;
use super::super::state::{AbstractState, CALLEE, OTHER, Parent, RegisterBound};
use super::super::{Flaw, VerifyError, fail, system_call};
use super::Interpreter;
use crate::code::routine::Routine;

impl Interpreter<'_> {
    /// Returns the address at which a snippet continues after a jump to a shared routine, and applies the routine's effect. The flags
    /// change. After a routine for activation records, rcx is the top of the records.
    pub(super) fn past_routine(
        &mut self,
        at: u64,
        state: &mut AbstractState,
        routine: Routine,
    ) -> Result<u64, VerifyError> {
        let Some((0, back)) = state.pointer else { return fail(at, Flaw::Astray) };
        self.past_red_zone(at, state)?;
        (state.flags_kept, state.compared) = (false, None);
        if state.parent == Parent::Compared {
            state.parent = Parent::Unknown;
        }
        match routine {
            Routine::Prune
            | Routine::Find
            | Routine::GiveUp
            | Routine::PruneGoroutine
            | Routine::Park
            | Routine::Fetch => {
                state.lose(1);
                state.bound = RegisterBound::Top(1);
            }
            Routine::Call => {
                if state.stack.pop() != Some(CALLEE) {
                    return fail(at, Flaw::Undeclared);
                }
                for _ in 0..ProgramCall::ARGS_MAX {
                    state.stack.pop().ok_or(VerifyError { at: Avma(at), flaw: Flaw::Stack })?;
                }
                if state.stack.len() < self.pushed {
                    return fail(at, Flaw::Stack);
                }
                // The function may have forked.
                state.parent = Parent::Unknown;
                state.lose(1);
            }
            Routine::Write if !self.facts.writes => return fail(at, Flaw::ForeignWrite),
            Routine::Text | Routine::Cut => {
                // The kernel or the routine writes over words that the snippet has pushed, and that hold nothing it needs.
                let words = state.stack.words().get(self.pushed..).unwrap_or_default();
                let text = words.len().checked_sub(system_call::TEXT_WORDS).and_then(|from| words.get(from..));
                if !text.is_some_and(|text| text.iter().all(|word| *word == OTHER)) {
                    return fail(at, Flaw::Stack);
                }
                state.lose(1);
            }
            Routine::Read | Routine::Write | Routine::Usage | Routine::Event => state.lose(1),
            Routine::Descriptor | Routine::KeepsNotes => state.lose(1),
            Routine::Time => state.lose(2),
            Routine::OpenTimed
            | Routine::CloseTimed
            | Routine::CloseTimedOwn
            | Routine::ObserveCoarse
            | Routine::ObserveMedium
            | Routine::ObserveFine => return fail(at, Flaw::Forbidden),
            Routine::CpuTime
            | Routine::Await
            | Routine::Room
            | Routine::Fork
            | Routine::Forked
            | Routine::LeaveStack
            | Routine::EnterStack
            | Routine::Enter
            | Routine::EnterMoving
            | Routine::LeaveMoving
            | Routine::BeginNotes
            | Routine::AddNote
            | Routine::TellNotes
            | Routine::EndNotes => {}
        }
        Ok(back)
    }

    /// Applies the effect of a call of a shared routine. The counters that the routine may change are known by the offset in ecx.
    pub(super) fn calls(&self, call: &Instruction, state: &mut AbstractState) -> Result<(), VerifyError> {
        let (at, target) = (call.ip(), call.near_branch_target());
        let routine = self.facts.routines.iter().find(|(entry, _)| *entry == target).map(|(_, routine)| *routine);
        let Some((routine, counters)) = routine.and_then(|routine| Some((routine, routine.counters_called()?))) else {
            return fail(at, Flaw::Forbidden);
        };
        self.past_red_zone(at, state)?;
        let first = |bound: &RegisterBound| match bound {
            RegisterBound::Exactly(1, offset) => Some(*offset),
            _ => None,
        };
        if !first(&state.bound).is_some_and(|offset| are_counters(&self.env.data, offset, counters)) {
            return fail(at, Flaw::ForeignWrite);
        }
        [0, 1, 2].into_iter().for_each(|r| state.lose(r));
        (state.flags_kept, state.compared) = (false, None);
        if state.parent == Parent::Compared {
            state.parent = Parent::Unknown;
        }
        if routine.observed().is_none() {
            state.bound = RegisterBound::Top(1);
        }
        Ok(())
    }
}
