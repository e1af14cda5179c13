//! Values of keys that the engine lists, see [`ingraft_model::listed`]. Code looks a key up in shard 0, and changes the value in the shard
//! that the code works on.

use iced_x86::code_asm::{AsmMemoryOperand, ecx, qword_ptr, rax, rcx, rdx};
use ingraft_model::listed::PROBES;
use ingraft_model::table::MULTIPLIER;
use ingraft_model::{Expr, KeyListing, VariableId};

use crate::code::environment::Assembly;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

impl Generator<'_> {
    /// Adds to the value of a key if the key is listed. An amount that is not constant is on the stack meanwhile.
    pub(crate) fn add_listed(
        &mut self,
        table: VariableId,
        listing: KeyListing,
        key: &Expr,
        amount: &Expr,
    ) -> Result<(), Assembly> {
        self.used = [true; 3];
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        if known.is_none() {
            self.value(amount)?;
            self.push(rax)?;
        }
        let [mut found, mut none, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.value(key)?;
        self.a.mov(rdx, rax)?;
        // Key 0 is not listed, because 0 marks a free place.
        self.a.test(rdx, rdx)?;
        self.a.je(none)?;
        self.a.mov(rcx, MULTIPLIER)?;
        self.a.imul_2(rcx, rdx)?;
        self.a.shr(rcx, listing.shift())?;
        for probe in 0..PROBES {
            if probe > 0 {
                self.a.inc(ecx)?;
            }
            self.a.and(ecx, (listing.places() - 1) as i32)?;
            self.a.mov(rax, self.listed_word(table, 0)?)?;
            self.a.cmp(rax, rdx)?;
            self.a.je(found)?;
            if probe + 1 < PROBES {
                self.a.test(rax, rax)?;
                self.a.je(none)?;
            }
        }
        self.place(&mut none)?;
        if known.is_none() {
            self.a.pop(rax)?;
        }
        self.a.jmp(end)?;
        self.place(&mut found)?;
        if known.is_none() {
            self.a.pop(rax)?;
        }
        let value = self.listed_word(table, listing.value(0))?;
        let value = if self.access == ShardAccess::Own { value.gs() } else { value };
        if self.access == ShardAccess::Shared {
            let _ = self.a.lock();
        }
        self.add(value, &known.map_or(Operand::Register(rax), Operand::Immediate))?;
        self.place(&mut end)?;
        // Both paths have popped the amount.
        self.depth -= i32::from(known.is_none());
        Ok(())
    }

    /// Operand for a word in shard 0: the word of the place in rcx, in the part of the table that begins at counter `first`.
    fn listed_word(&self, table: VariableId, first: u32) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(table)? + first))))
    }
}
