//! Values by key in a thread's own shard, see [`ingraft_model::table`]. Several threads may use shard 0 at once, so there code only adds
//! to the counter for changes without a place.

use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, eax, ecx, qword_ptr, rax, rcx, rdx};
use ingraft_model::object::TIME_MASK;
use ingraft_model::table::{KEYS, MULTIPLIER, OF_ZERO, OTHERS, PLACE_BITS, PLACES, PROBES, TAKEN, VALUES};
use ingraft_model::{Expr, ObjectState, VariableId};

use crate::code::environment::Assembly;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

/// Mask that turns any number into the number of a place.
const PLACE_MASK: i32 = (PLACES - 1) as i32;

/// Change of a value.
#[derive(Clone, Copy)]
enum ValueChange {
    Add(i32),
    /// Adds the number on top of the stack, and pops it.
    AddPushed,
    Mark(ObjectState),
}

impl Generator<'_> {
    /// Adds to the value of a key.
    pub(crate) fn add_at(&mut self, table: VariableId, key: &Expr, amount: &Expr) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return self.add_to_others(table, amount);
        }
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        if known.is_none() {
            self.value(amount)?;
            self.push(rax)?;
        }
        self.at_key(
            table,
            key,
            if let Some(known) = known { ValueChange::Add(known) } else { ValueChange::AddPushed },
        )?;
        // Every path has popped the amount.
        self.depth -= i32::from(known.is_none());
        Ok(())
    }

    /// Records the state of an object, and the time, as the value of its key.
    pub(crate) fn mark(&mut self, table: VariableId, key: &Expr, state: ObjectState) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return self.add_to_others(table, &Expr::Const(1));
        }
        self.at_key(table, key, ValueChange::Mark(state))
    }

    fn add_to_others(&mut self, table: VariableId, amount: &Expr) -> Result<(), Assembly> {
        let source = self.source(amount)?;
        let _ = self.a.lock();
        self.add(self.word_of(table, OTHERS)?, &source)
    }

    /// Computes this thread's value of a key into rax. A key may have two places, see [`ingraft_model::table`]; their values are added.
    pub(crate) fn value_at(&mut self, table: VariableId, key: &Expr) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        let [mut zero, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.hash(key, zero)?;
        self.a.xor(eax, eax)?;
        for probe in 0..PROBES {
            let mut other = self.a.create_label();
            self.probe(table, probe)?;
            self.a.jne(other)?;
            self.a.add(rax, self.at_place(table, VALUES)?)?;
            self.place(&mut other)?;
        }
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.a.mov(rax, self.word_of(table, OF_ZERO)?)?;
        self.place(&mut end)
    }

    /// Loads a key into rdx and its hash into rcx. Jumps to `zero` for key 0, which has a counter of its own.
    fn hash(&mut self, key: &Expr, zero: CodeLabel) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.value(key)?;
        self.a.mov(rdx, rax)?;
        self.a.test(rdx, rdx)?;
        self.a.je(zero)?;
        self.a.mov(rcx, MULTIPLIER)?;
        self.a.imul_2(rcx, rdx)?;
        Ok(self.a.shr(rcx, u64::BITS - PLACE_BITS)?)
    }

    /// Computes the number of the next place into rcx, and compares the key of that place with rdx.
    fn probe(&mut self, table: VariableId, probe: u32) -> Result<(), Assembly> {
        if probe > 0 {
            self.a.inc(ecx)?;
        }
        self.a.and(ecx, PLACE_MASK)?;
        Ok(self.a.cmp(self.at_place(table, KEYS)?, rdx)?)
    }

    /// Changes the value of a key.
    fn at_key(&mut self, table: VariableId, key: &Expr, change: ValueChange) -> Result<(), Assembly> {
        let [mut zero, mut taken, mut found, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.hash(key, zero)?;
        for probe in 0..PROBES {
            self.probe(table, probe)?;
            self.a.je(found)?;
            self.a.xor(eax, eax)?;
            self.a.cmpxchg(self.at_place(table, KEYS)?, rdx)?;
            self.a.je(taken)?;
        }
        match change {
            ValueChange::Mark(_) => self.a.inc(self.word_of(table, OTHERS)?)?,
            change @ (ValueChange::Add(_) | ValueChange::AddPushed) => {
                self.change(self.word_of(table, OTHERS)?, change)?
            }
        }
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.change(self.word_of(table, OF_ZERO)?, change)?;
        self.a.jmp(end)?;
        self.place(&mut taken)?;
        self.a.inc(self.word_of(table, TAKEN)?)?;
        self.place(&mut found)?;
        self.change(self.at_place(table, VALUES)?, change)?;
        self.place(&mut end)
    }

    /// Changes a value. Overwrites rax and, for a mark, rdx.
    fn change(&mut self, value: AsmMemoryOperand, change: ValueChange) -> Result<(), Assembly> {
        match change {
            ValueChange::Add(amount) => self.add(value, &Operand::Immediate(amount)),
            ValueChange::AddPushed => {
                self.a.pop(rax)?;
                self.add(value, &Operand::Register(rax))
            }
            ValueChange::Mark(state) => {
                // The fence keeps the processor from reading the clock before this thread's earlier loads, which may show changes by other
                // threads.
                self.a.lfence()?;
                self.wall_clock()?;
                self.a.and(rax, TIME_MASK as i32)?;
                self.a.or(rax, state.bits() as i32)?;
                Ok(self.a.mov(value, rax)?)
            }
        }
    }

    /// Operand for the n-th word of a variable, in the shard that the code works on.
    pub(crate) fn word_of(&self, table: VariableId, n: u32) -> Result<AsmMemoryOperand, Assembly> {
        let word = qword_ptr(u64::from(self.env.data.counter(self.index(table)? + n)));
        Ok(if self.access == ShardAccess::Own { word.gs() } else { word })
    }

    /// Operand for the word of the place in rcx, in the part of the table that begins at counter `first`.
    fn at_place(&self, table: VariableId, first: u32) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(table)? + first))).gs())
    }
}
