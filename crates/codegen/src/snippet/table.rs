//! Values by key in a thread's own shard, see [`ingraft_model::table`]. Several threads may use shard 0 at once, so there code only adds
//! to the counter for changes without a place.

use iced_x86::code_asm::{AsmMemoryOperand, CodeLabel, eax, ecx, edx, qword_ptr, rax, rcx, rdx, rsp};
use ingraft_model::object::TIME_MASK;
use ingraft_model::table::{FIRST, MULTIPLIER, OF_ZERO, OTHERS, PROBES, TAKEN};
use ingraft_model::{Expr, KeyField, ObjectState, Places, TableShape, VariableId};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::cut;
use crate::snippet::generator::{Generator, Operand, ShardAccess};

/// Change of a value.
#[derive(Clone, Copy)]
enum ValueChange {
    Add(i32),
    /// Adds the number on top of the stack, and pops it.
    AddPushed,
    Mark(ObjectState),
}

/// Key that is looked up.
#[derive(Clone, Copy)]
enum SoughtKey<'a> {
    /// A number, which is the key of its place.
    Number(&'a Expr),
    /// So many words on the stack, below so many others.
    Pushed { words: u32, below: u32 },
}

impl SoughtKey<'_> {
    /// The operands of the words.
    fn words(self) -> impl Iterator<Item = (u32, AsmMemoryOperand)> {
        let (words, below) = match self {
            SoughtKey::Number(_) => (0, 0),
            SoughtKey::Pushed { words, below } => (words, below),
        };
        (0..words).map(move |word| (word, qword_ptr(rsp + u64::from(8 * (below + word)))))
    }
}

impl Generator<'_> {
    /// Adds to the value of a key.
    pub(crate) fn add_at(
        &mut self,
        table: (VariableId, TableShape),
        key: &[KeyField],
        amount: &Expr,
    ) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return self.add_to_others(table.0, amount);
        }
        let known = if let Expr::Const(c) = amount { i32::try_from(*c).ok() } else { None };
        let sought = match key {
            [KeyField::Number(key)] => SoughtKey::Number(key),
            parts => {
                for part in parts.iter().rev() {
                    self.push_part(part)?;
                }
                SoughtKey::Pushed { words: table.1.parts.words(), below: u32::from(known.is_none()) }
            }
        };
        let change = match known {
            Some(known) => ValueChange::Add(known),
            None => {
                self.value(amount)?;
                self.push(rax)?;
                ValueChange::AddPushed
            }
        };
        self.at_key(table, sought, change)?;
        // Every path has popped the amount.
        self.depth -= i32::from(known.is_none());
        sought.words().try_for_each(|_| self.pop(rcx))
    }

    /// Pushes the words of a part of a key, the last one first.
    fn push_part(&mut self, part: &KeyField) -> Result<(), Assembly> {
        match part {
            KeyField::Number(e) => {
                self.value(e)?;
                self.push(rax)
            }
            KeyField::Text(e) => {
                self.push_text(e)?;
                self.a.mov(rdx, cut::AT_ZERO)?;
                self.cut_text()
            }
            KeyField::BoundedText(e, length) => {
                self.push_text(e)?;
                self.push(rcx)?;
                self.value(length)?;
                self.a.mov(rdx, rax)?;
                self.pop(rcx)?;
                self.cut_text()
            }
        }
    }

    /// Cuts the text that was pushed last, of which the number of bytes that were read is in rcx, to the length in rdx; pushes the word that
    /// precedes the text in a key.
    fn cut_text(&mut self) -> Result<(), Assembly> {
        let mut answer = self.a.create_label();
        self.routine(Routine::Cut, answer)?;
        self.place(&mut answer)?;
        self.push(rcx)
    }

    /// Records the state of an object, and the time, as the value of its key.
    pub(crate) fn mark(&mut self, v: VariableId, key: &Expr, state: ObjectState) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return self.add_to_others(v, &Expr::Const(1));
        }
        self.at_key((v, TableShape::OBJECTS), SoughtKey::Number(key), ValueChange::Mark(state))
    }

    fn add_to_others(&mut self, v: VariableId, amount: &Expr) -> Result<(), Assembly> {
        let source = self.source(amount)?;
        let _ = self.a.lock();
        self.add(self.word_of(v, OTHERS)?, &source)
    }

    /// Computes this thread's value of a key that is a number into rax. The key may have two places, see [`ingraft_model::table`]; their
    /// values are added.
    pub(crate) fn value_at(&mut self, v: VariableId, places: Places, key: &Expr) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(self.a.xor(eax, eax)?);
        }
        let [mut zero, mut end] = std::array::from_fn(|_| self.a.create_label());
        self.number(key, zero)?;
        self.hash(places)?;
        self.a.xor(eax, eax)?;
        for probe in 0..PROBES {
            let mut other = self.a.create_label();
            self.probe(v, places, probe)?;
            self.a.jne(other)?;
            self.a.add(rax, self.at_place(v, FIRST + 1)?)?;
            self.place(&mut other)?;
        }
        self.a.jmp(end)?;
        self.place(&mut zero)?;
        self.a.mov(rax, self.word_of(v, OF_ZERO)?)?;
        self.place(&mut end)
    }

    /// Loads a key that is a number into rdx. Jumps to `zero` for key 0, which has a counter of its own.
    fn number(&mut self, key: &Expr, zero: CodeLabel) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.value(key)?;
        self.a.mov(rdx, rax)?;
        self.a.test(rdx, rdx)?;
        Ok(self.a.je(zero)?)
    }

    /// Computes the hash of the words of a key into rdx; it is never 0. Each step keeps all bits of what was computed before.
    fn hash_of_words(&mut self, key: SoughtKey<'_>) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.a.xor(edx, edx)?;
        self.a.mov(rcx, MULTIPLIER)?;
        for (_, word) in key.words() {
            self.a.xor(rdx, word)?;
            self.a.imul_2(rdx, rcx)?;
            self.a.mov(rax, rdx)?;
            self.a.shr(rax, 32)?;
            self.a.xor(rdx, rax)?;
        }
        Ok(self.a.or(rdx, 1)?)
    }

    /// Computes the number of the place for the key in rdx into rcx.
    fn hash(&mut self, places: Places) -> Result<(), Assembly> {
        self.a.mov(rcx, MULTIPLIER)?;
        self.a.imul_2(rcx, rdx)?;
        // Twice the number: each place has two counters. The mask in `probe` clears the lowest bit.
        Ok(self.a.shr(rcx, u64::BITS - 1 - places.bits())?)
    }

    /// Computes twice the number of the next place into rcx, and compares the key of that place with rdx.
    fn probe(&mut self, v: VariableId, places: Places, probe: u32) -> Result<(), Assembly> {
        if probe > 0 {
            self.a.add(ecx, 2)?;
        }
        self.a.and(ecx, 2 * (places.count() as i32 - 1))?;
        Ok(self.a.cmp(self.at_place(v, FIRST)?, rdx)?)
    }

    /// Changes the value of a key.
    fn at_key(
        &mut self,
        (v, table): (VariableId, TableShape),
        key: SoughtKey<'_>,
        change: ValueChange,
    ) -> Result<(), Assembly> {
        let [mut zero, mut taken, mut found, mut end] = std::array::from_fn(|_| self.a.create_label());
        match key {
            SoughtKey::Number(key) => self.number(key, zero)?,
            SoughtKey::Pushed { .. } => self.hash_of_words(key)?,
        }
        self.hash(table.places)?;
        for probe in 0..PROBES {
            self.probe(v, table.places, probe)?;
            self.a.je(found)?;
            self.a.xor(eax, eax)?;
            self.a.cmpxchg(self.at_place(v, FIRST)?, rdx)?;
            self.a.je(taken)?;
        }
        self.change_others(v, change)?;
        self.a.jmp(end)?;
        if let SoughtKey::Number(_) = key {
            self.place(&mut zero)?;
            self.change(self.word_of(v, OF_ZERO)?, change)?;
            self.a.jmp(end)?;
        }
        self.place(&mut taken)?;
        self.a.inc(self.word_of(v, TAKEN)?)?;
        if let SoughtKey::Pushed { .. } = key {
            return self.at_row((v, table), key, change, [found, end]);
        }
        self.place(&mut found)?;
        self.change(self.at_place(v, FIRST + 1)?, change)?;
        self.place(&mut end)
    }

    /// Stores the words of a key behind the place in rcx, which was just taken, and changes its value. From `found` on, compares the words
    /// with those of a place that was taken before: a place of another key with this hash, or of a key whose words an interrupted code has
    /// not stored yet, is none for this key.
    fn at_row(
        &mut self,
        (v, table): (VariableId, TableShape),
        key: SoughtKey<'_>,
        change: ValueChange,
        [mut found, mut end]: [CodeLabel; 2],
    ) -> Result<(), Assembly> {
        let [mut equal, mut other] = std::array::from_fn(|_| self.a.create_label());
        for (word, pushed) in key.words() {
            self.a.mov(rax, pushed)?;
            self.a.mov(self.at_place(v, table.word(word))?, rax)?;
        }
        self.a.jmp(equal)?;
        self.place(&mut found)?;
        self.a.xor(edx, edx)?;
        for (word, pushed) in key.words() {
            self.a.mov(rax, pushed)?;
            self.a.xor(rax, self.at_place(v, table.word(word))?)?;
            self.a.or(rdx, rax)?;
        }
        self.a.jne(other)?;
        self.place(&mut equal)?;
        self.change(self.at_place(v, FIRST + 1)?, change)?;
        self.a.jmp(end)?;
        self.place(&mut other)?;
        self.change_others(v, change)?;
        self.place(&mut end)
    }

    /// Counts a change of a key that has no place.
    fn change_others(&mut self, v: VariableId, change: ValueChange) -> Result<(), Assembly> {
        match change {
            ValueChange::Mark(_) => Ok(self.a.inc(self.word_of(v, OTHERS)?)?),
            change @ (ValueChange::Add(_) | ValueChange::AddPushed) => self.change(self.word_of(v, OTHERS)?, change),
        }
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
    pub(crate) fn word_of(&self, v: VariableId, n: u32) -> Result<AsmMemoryOperand, Assembly> {
        let word = qword_ptr(u64::from(self.env.data.counter(self.index(v)? + n)));
        Ok(if self.access == ShardAccess::Own { word.gs() } else { word })
    }

    /// Operand for the word of the place in rcx, in the part of the table that begins at counter `first`.
    fn at_place(&self, v: VariableId, first: u32) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rcx * 8 + u64::from(self.env.data.counter(self.index(v)? + first))).gs())
    }
}
