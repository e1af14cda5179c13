//! Proof of the code of a point in the counting copy of its function.

use iced_x86::{Code, ConditionCode, Instruction, OpKind};

use super::super::state::AbstractState;
use super::super::{Flaw, VerifyError, fail};
use super::{Interpreter, Mode};
use crate::snippet::inline::InlinePoint;

impl Interpreter<'_> {
    /// Proves code that begins at `at`: it goes on at `end` or at this probe, in both cases without a change of anything that the function may
    /// need. Returns its instructions, each with its end, in the order of their addresses.
    pub fn inline(
        &mut self,
        (at, end): (u64, u64),
        point: InlinePoint,
        probe: u64,
    ) -> Result<Vec<(u64, u64)>, VerifyError> {
        self.restart();
        (self.scratch, self.flags_dead) = (point.registers(), point.flags());
        (self.tail, self.probe) = (end, Some(probe));
        (self.slot, self.leave, self.base, self.slow) = (end, end, end, end);
        (self.is_added, self.pushed, self.red_zone) = (true, 0, point.has_red_zone());
        self.chain.clear();
        self.asides.clear();
        self.execute(at, AbstractState::entry(), Mode::Point)?;
        self.no_loops()?;
        let mut instructions: Vec<_> = self.visits.iter().map(|(at, (end, _))| (*at, *end)).collect();
        instructions.sort_unstable();
        Ok(instructions)
    }

    /// Checks that the code just proven comes to its probe, which holds a conditional jump, only with flags by which the jump is taken: a thread that
    /// has come to the code has taken the jump. The instructions right before compare two numbers.
    pub fn takes_branch(&self, probe: u64) -> Result<(), VerifyError> {
        let jump = self.memory.decode(probe)?;
        let all = || self.visits.keys().filter_map(|at| self.memory.decode(*at).ok());
        let branches = |i: &Instruction| i.is_jmp_short_or_near() || i.is_jcc_short_or_near();
        for leaving in all().filter(|i| branches(i) && i.near_branch_target() == probe) {
            let at = leaving.ip();
            let (compare, load) = (self.before(at, 1).unwrap_or_default(), self.before(at, 2).unwrap_or_default());
            let r = load.op0_register();
            let known = leaving.is_jmp_short_or_near()
                && load.code() == Code::Mov_r64_imm64
                && compare.code() == Code::Cmp_rm64_imm32
                && compare.op0_kind() == OpKind::Register
                && compare.op0_register() == r
                && holds(jump.condition_code(), load.immediate64().cast_signed(), compare.immediate32to64());
            let enters = |i: &Instruction| branches(i) && (compare.ip()..=at).contains(&i.near_branch_target());
            if !known || all().any(|i| enters(&i)) {
                return fail(at, Flaw::Astray);
            }
        }
        Ok(())
    }
}

/// Whether a condition holds after the comparison of two numbers.
fn holds(condition: ConditionCode, a: i64, b: i64) -> bool {
    let (difference, overflows) = a.overflowing_sub(b);
    let (zero, negative, below) = (a == b, difference < 0, a.cast_unsigned() < b.cast_unsigned());
    let even = (difference as u8).count_ones().is_multiple_of(2);
    let less = negative != overflows;
    match condition {
        ConditionCode::None => false,
        ConditionCode::o => overflows,
        ConditionCode::no => !overflows,
        ConditionCode::b => below,
        ConditionCode::ae => !below,
        ConditionCode::e => zero,
        ConditionCode::ne => !zero,
        ConditionCode::be => below || zero,
        ConditionCode::a => !below && !zero,
        ConditionCode::s => negative,
        ConditionCode::ns => !negative,
        ConditionCode::p => even,
        ConditionCode::np => !even,
        ConditionCode::l => less,
        ConditionCode::ge => !less,
        ConditionCode::le => less || zero,
        ConditionCode::g => !less && !zero,
    }
}
