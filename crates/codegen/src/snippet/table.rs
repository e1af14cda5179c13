//! Values by key in a thread's own shard, see [`ingraft_model::table`]. In shard 0, where several threads may be at once, everything counts as
//! what found no place.

use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, eax, ecx, qword_ptr, rax, rcx, rdx};
use ingraft_model::object::TIME_MASK;
use ingraft_model::table::{KEYS, MULTIPLIER, OF_ZERO, OTHERS, PLACE_BITS, PLACES, PROBES, TAKEN, VALUES};
use ingraft_model::{Expr, ObjectState, VariableId};

use crate::code::environment::Assembly;
use crate::snippet::generator::{Access, Generator, Operand};

/// Makes any number that of a place.
const PLACE_MASK: i32 = (PLACES - 1) as i32;

/// What becomes of a value.
#[derive(Clone, Copy)]
enum Change {
    Add(i32),
    /// What lies on the stack is added, and taken from there.
    AddPushed,
    Mark(ObjectState),
}

impl Generator<'_> {
    /// Adds to the value of a key.
    pub(crate) fn add_at(&mut self, table: VariableId, key: &Expr, amount: &Expr) -> Result<(), Assembly> {
        if self.access == Access::Shared {
            return self.add_to_others(table, amount);
        }
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        if known.is_none() {
            self.value(amount)?;
            self.push(rax)?;
        }
        self.at_key(table, key, if let Some(known) = known { Change::Add(known) } else { Change::AddPushed })?;
        // every path has taken the amount from the stack
        self.depth -= i32::from(known.is_none());
        Ok(())
    }

    /// Notes what an object is from now on.
    pub(crate) fn mark(&mut self, table: VariableId, key: &Expr, state: ObjectState) -> Result<(), Assembly> {
        if self.access == Access::Shared {
            return self.add_to_others(table, &Expr::Const(1));
        }
        self.at_key(table, key, Change::Mark(state))
    }

    fn add_to_others(&mut self, table: VariableId, amount: &Expr) -> Result<(), Assembly> {
        let source = self.source(amount)?;
        let _ = self.a.lock();
        self.add(self.word_of(table, OTHERS), &source)
    }

    /// This thread's value of a key, in rax. A key may have two places, see [`ingraft_model::table`]: both count.
    pub(crate) fn value_at(&mut self, table: VariableId, key: &Expr) -> Result<(), Assembly> {
        if self.access == Access::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        let [mut zero, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.hash(key, zero)?;
        self.a.xor(eax, eax)?;
        for probe in 0..PROBES {
            let mut other = self.a.create_label();
            self.probe(table, probe)?;
            self.a.jne(other)?;
            self.a.add(rax, self.at_place(table, VALUES))?;
            self.place(&mut other)?;
        }
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.a.mov(rax, self.word_of(table, OF_ZERO))?;
        self.place(&mut end)
    }

    /// A key in rdx and its hash in rcx; key 0 is elsewhere.
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

    /// The number of the next place in rcx, and whether its key is that in rdx.
    fn probe(&mut self, table: VariableId, probe: u32) -> Result<(), Assembly> {
        if probe > 0 {
            self.a.inc(ecx)?;
        }
        self.a.and(ecx, PLACE_MASK)?;
        Ok(self.a.cmp(self.at_place(table, KEYS), rdx)?)
    }

    /// Changes the value of a key.
    fn at_key(&mut self, table: VariableId, key: &Expr, change: Change) -> Result<(), Assembly> {
        let [mut zero, mut taken, mut found, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.hash(key, zero)?;
        for probe in 0..PROBES {
            self.probe(table, probe)?;
            self.a.je(found)?;
            self.a.xor(eax, eax)?;
            self.a.cmpxchg(self.at_place(table, KEYS), rdx)?;
            self.a.je(taken)?;
        }
        match change {
            Change::Mark(_) => self.a.inc(self.word_of(table, OTHERS))?,
            change @ (Change::Add(_) | Change::AddPushed) => self.change(self.word_of(table, OTHERS), change)?,
        }
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.change(self.word_of(table, OF_ZERO), change)?;
        self.a.jmp(end)?;
        self.place(&mut taken)?;
        self.a.inc(self.word_of(table, TAKEN))?;
        self.place(&mut found)?;
        self.change(self.at_place(table, VALUES), change)?;
        self.place(&mut end)
    }

    /// Changes a value; rax and, for a mark, rdx are overwritten.
    fn change(&mut self, value: AsmMemoryOperand, change: Change) -> Result<(), Assembly> {
        match change {
            Change::Add(amount) => self.add(value, &Operand::Immediate(amount)),
            Change::AddPushed => {
                self.a.pop(rax)?;
                self.add(value, &Operand::Register(rax))
            }
            Change::Mark(state) => {
                // the clock is not read before what this thread has seen of others
                self.a.lfence()?;
                self.wall_clock()?;
                self.a.and(rax, TIME_MASK as i32)?;
                self.a.or(rax, state.bits() as i32)?;
                Ok(self.a.mov(value, rax)?)
            }
        }
    }

    /// A word of a variable, in the shard that the code works on.
    pub(crate) fn word_of(&self, table: VariableId, n: u32) -> AsmMemoryOperand {
        let word = qword_ptr(u64::from(self.env.data.counter(self.index(table) + n)));
        if self.access == Access::Own { word.gs() } else { word }
    }

    /// The key or the value of the place in rcx.
    fn at_place(&self, table: VariableId, first: u32) -> AsmMemoryOperand {
        qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(table) + first))).gs()
    }
}
