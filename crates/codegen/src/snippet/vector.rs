//! Values by index in a thread's own shard, see [`ingraft_model::vector`]. Several threads may use shard 0 at once, so there all values
//! are added to the counter for numbers outside the ranges, unless the index is a constant.

use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, eax, ecx, qword_ptr, rax, rcx};
use ingraft_model::vector::{FIRST, OUTSIDE, USED};
use ingraft_model::{Expr, Ranges, VariableId};

use crate::code::environment::Assembly;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

impl Generator<'_> {
    /// Adds to the value of the granule in which a number lies. An amount that is not constant is on the stack meanwhile.
    pub(crate) fn add_in(
        &mut self,
        v: VariableId,
        ranges: Ranges,
        number: &Expr,
        amount: &Expr,
    ) -> Result<(), Assembly> {
        if let Some(index) = self.known_index(ranges, number) {
            return self.add_to_word(v, index.map_or(OUTSIDE, |index| FIRST + index), amount);
        }
        self.used = [true; 3];
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        if known.is_none() {
            self.value(amount)?;
            self.push(rax)?;
        }
        let [mut outside, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.granule(ranges, number, outside)?;
        self.add_known(self.at_granule(v)?, known)?;
        self.a.jmp(end)?;
        self.place(&mut outside)?;
        self.add_known(self.word_of(v, OUTSIDE)?, known)?;
        self.place(&mut end)?;
        self.a.inc(self.word_of(v, USED)?)?;
        // Both paths have popped the amount.
        self.depth -= i32::from(known.is_none());
        Ok(())
    }

    /// Computes this thread's value of the granule in which a number lies into rax; 0 outside the ranges.
    pub(crate) fn value_in(&mut self, v: VariableId, ranges: Ranges, number: &Expr) -> Result<(), Assembly> {
        match self.known_index(ranges, number) {
            Some(Some(index)) => return Ok(self.a.mov(rax, self.word_of(v, FIRST + index)?)?),
            Some(None) => return Ok(self.a.xor(eax, eax)?),
            None => {}
        }
        self.used = [true; 3];
        let [mut outside, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.granule(ranges, number, outside)?;
        self.a.mov(rax, self.at_granule(v)?)?;
        self.a.jmp(end)?;
        self.place(&mut outside)?;
        self.a.xor(eax, eax)?;
        self.place(&mut end)
    }

    /// Index of the granule, or `Some(None)` for the counter outside the ranges; `None` if the code must compute the index.
    fn known_index(&self, ranges: Ranges, number: &Expr) -> Option<Option<u32>> {
        match (number, self.access) {
            (Expr::Const(number), _) => Some(ranges.index(*number)),
            (_, ShardAccess::Shared) => Some(None),
            (_, ShardAccess::Own) => None,
        }
    }

    /// Operand for the value of the granule whose index is in ecx.
    fn at_granule(&self, v: VariableId) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(v)? + FIRST))).gs())
    }

    /// Computes the index of a granule into ecx. Jumps to `outside` if the number is outside the ranges.
    fn granule(&mut self, ranges: Ranges, number: &Expr, outside: CodeLabel) -> Result<(), Assembly> {
        self.value(number)?;
        match i32::try_from(ranges.base()) {
            Ok(0) => {}
            Ok(base) => self.a.sub(rax, base)?,
            Err(_) => {
                self.a.mov(rcx, ranges.base())?;
                self.a.sub(rax, rcx)?;
            }
        }
        // For a number below the base, the difference is negative or wraps. As an unsigned number it is larger than any length.
        match i32::try_from(ranges.length()) {
            Ok(length) => self.a.cmp(rax, length)?,
            Err(_) => {
                self.a.mov(rcx, ranges.length())?;
                self.a.cmp(rax, rcx)?;
            }
        }
        self.a.jae(outside)?;
        let granule = ranges.granule();
        if granule.is_power_of_two() {
            self.a.shr(rax, granule.trailing_zeros())?;
        } else {
            self.a.mov(rcx, granule)?;
            self.a.cqo()?;
            self.a.idiv(rcx)?;
        }
        self.a.mov(ecx, eax)?;
        Ok(self.a.and(ecx, ranges.mask() as i32)?)
    }

    /// Adds to the n-th word of a variable.
    fn add_to_word(&mut self, v: VariableId, n: u32, amount: &Expr) -> Result<(), Assembly> {
        let source = self.source(amount)?;
        if self.access == ShardAccess::Shared {
            let _ = self.a.lock();
        }
        self.add(self.word_of(v, n)?, &source)?;
        let used = self.word_of(v, USED)?;
        match self.access {
            ShardAccess::Own => Ok(self.a.inc(used)?),
            ShardAccess::Shared => Ok(self.a.mov(used, 1)?),
        }
    }

    /// Adds an amount that is known, or pops it from the stack.
    fn add_known(&mut self, to: AsmMemoryOperand, known: Option<i32>) -> Result<(), Assembly> {
        if known.is_none() {
            self.a.pop(rax)?;
        }
        self.add(to, &known.map_or(Operand::Register(rax), Operand::Immediate))
    }
}
