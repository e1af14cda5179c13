//! Values by key in a thread's own shard, see [`ingraft_model::table`]. In shard 0, where several threads may be at once, everything counts as
//! what found no place.

use iced_x86::code_asm::{AsmMemoryOperand, eax, ecx, qword_ptr, rax, rcx, rdx};
use ingraft_model::table::{KEYS, MULTIPLIER, OF_ZERO, OTHERS, PLACE_BITS, PLACES, PROBES, TAKEN, VALUES};
use ingraft_model::{Expr, VariableId};

use crate::environment::Assembly;
use crate::snippet::{Access, Generator, Operand};

/// Makes any number that of a place.
const PLACE_MASK: i32 = (PLACES - 1) as i32;

impl Generator<'_> {
    /// Adds to the value of a key. The key is in rdx, the number of a place in rcx; what is added, if it is no constant, on the stack.
    pub(crate) fn add_at(&mut self, table: VariableId, key: &Expr, amount: &Expr) -> Result<(), Assembly> {
        if self.access == Access::Shared {
            let source = self.source(amount)?;
            let _ = self.a.lock();
            return self.add(self.word(table, OTHERS), &source);
        }
        self.used = [true; 3];
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        if known.is_none() {
            self.value(amount)?;
            self.push(rax)?;
        }
        self.value(key)?;
        let [mut zero, mut taken, mut found, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.a.mov(rdx, rax)?;
        self.a.test(rdx, rdx)?;
        self.a.je(zero)?;
        self.a.mov(rcx, MULTIPLIER)?;
        self.a.imul_2(rcx, rdx)?;
        self.a.shr(rcx, u64::BITS - PLACE_BITS)?;
        for probe in 0..PROBES {
            if probe > 0 {
                self.a.inc(ecx)?;
            }
            self.a.and(ecx, PLACE_MASK)?;
            self.a.cmp(self.at_place(table, KEYS), rdx)?;
            self.a.je(found)?;
            self.a.xor(eax, eax)?;
            self.a.cmpxchg(self.at_place(table, KEYS), rdx)?;
            self.a.je(taken)?;
        }
        self.add_amount(self.word(table, OTHERS), known)?;
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.add_amount(self.word(table, OF_ZERO), known)?;
        self.a.jmp(end)?;
        self.place(&mut taken)?;
        self.a.inc(self.word(table, TAKEN))?;
        self.place(&mut found)?;
        self.add_amount(self.at_place(table, VALUES), known)?;
        self.place(&mut end)?;
        // every path has taken the amount from the stack
        self.depth -= i32::from(known.is_none());
        Ok(())
    }

    /// Adds the amount, which lies on the stack if it is none that is known.
    fn add_amount(&mut self, to: AsmMemoryOperand, known: Option<i32>) -> Result<(), Assembly> {
        if known.is_none() {
            self.a.pop(rax)?;
        }
        self.add(to, &known.map_or(Operand::Register(rax), Operand::Immediate))
    }

    /// A word of a table that stands alone.
    fn word(&self, table: VariableId, n: u32) -> AsmMemoryOperand {
        let word = qword_ptr(u64::from(self.env.data.counter(self.index(table) + n)));
        if self.access == Access::Own { word.gs() } else { word }
    }

    /// The key or the value of the place in rcx.
    fn at_place(&self, table: VariableId, first: u32) -> AsmMemoryOperand {
        qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(table) + first))).gs()
    }
}
