//! Records of values in the buffer of a thread's own shard, see [`ingraft_model::records`]. Several threads may use shard 0 at once, so there
//! records are only counted as lost.

use iced_x86::code_asm::{
    AsmMemoryOperand, dword_ptr, eax, ecx, edi, edx, qword_ptr, r8, r8d, r9, r9d, r10, r11, rax, rcx, rdi, rdx, rsi,
    rsp,
};
use ingraft_model::buffer::{Capacity, FIRST, LOST, POSITION, TAKEN};
use ingraft_model::layout::header;
use ingraft_model::machine::PAGE;
use ingraft_model::records::{self, KEPT, MADE, PERMITTED, SKIPPED};
use ingraft_model::{Expr, RecordField, Recorded, ThreadIdentity, VariableId};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};
use crate::snippet::reading::MemoryAccess;
use crate::snippet::routines::Writer;

/// Offset in bytes from the stack pointer to the words for a text, after [`Routine::Text`] has saved its registers and pushed the places of
/// the program's memory.
pub(crate) const TEXT: i32 = 8 * (4 + 4 + 4);
/// Number of places of the program's memory: a text may lie on two pages, and the second one may not be mapped.
pub(crate) const PLACES: i32 = 2;
/// Largest limit with which records are rare, so that they do not count for the cost of the code.
const SMALL: u32 = 1000;
/// Length of a text in bytes.
const TEXT_BYTES: i32 = RecordField::TEXT_BYTES as i32;

impl Generator<'_> {
    /// Appends a record to a buffer, or counts it as skipped or lost. A full buffer is noticed before the values are computed. It is looked
    /// at again right before the room is reserved, because a signal handler may have filled it meanwhile.
    pub(crate) fn record(&mut self, v: VariableId, capacity: Capacity, recorded: &Recorded) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            let _ = self.a.lock();
            return Ok(self.a.inc(self.word_of(v, LOST)?)?);
        }
        self.used[0] = true;
        self.used[1] = true;
        let [mut skip, mut full, mut lost, mut end] = std::array::from_fn(|_| self.a.create_label());
        let before = self.exits.len();
        if let Some(limit) = recorded.limit {
            self.a.mov(rax, self.word_of(v, MADE)?)?;
            self.a.sub(rax, self.word_of(v, PERMITTED)?)?;
            self.a.cmp(rax, i32::try_from(limit).unwrap_or(i32::MAX))?;
            if limit <= SMALL {
                let mut branch = self.a.create_label();
                self.a.set_label(&mut branch)?;
                self.limits.push(branch);
            }
            self.a.jge(skip)?;
        }
        self.a.inc(self.word_of(v, MADE)?)?;
        self.room(v, capacity, recorded.leaves_room)?;
        self.a.jae(lost)?;
        let values = self.push_values(recorded)?;
        self.room(v, capacity, recorded.leaves_room)?;
        self.a.jae(full)?;
        self.a.mov(eax, 8 * recorded.words())?;
        self.a.xadd(self.word_of(v, POSITION)?, rax)?;
        self.mask_word(capacity)?;
        for _ in 0..values {
            self.next_word(capacity)?;
            self.pop(rcx)?;
            self.a.mov(self.at_word(v)?, rcx)?;
        }
        // The header comes last: the reader takes what has one.
        self.a.sub(eax, 8 * values)?;
        self.mask_word(capacity)?;
        self.a.mov(self.at_word(v)?, records::header(recorded.number, recorded.words()) as i32)?;
        self.a.jmp(end)?;
        self.place(&mut full)?;
        for _ in 0..values {
            self.a.pop(rcx)?;
        }
        self.place(&mut lost)?;
        self.a.inc(self.word_of(v, LOST)?)?;
        if let Some(limit) = recorded.limit {
            if limit <= SMALL {
                self.rare.extend(before..self.exits.len());
            }
            self.a.jmp(end)?;
            self.place(&mut skip)?;
            self.a.inc(self.word_of(v, SKIPPED)?)?;
        }
        self.place(&mut end)
    }

    /// Begins a group of records, see [`ingraft_model::records`]. A thread without a shard of its own makes none.
    pub(crate) fn begin_group(&mut self, v: VariableId) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used[0] = true;
        self.a.mov(rax, self.word_of(v, KEPT)?)?;
        self.a.mov(self.word_of(v, POSITION)?, rax)?;
        Ok(self.a.mov(self.word_of(v, LOST)?, 0)?)
    }

    /// Keeps a group of records.
    pub(crate) fn keep_group(&mut self, v: VariableId) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used[0] = true;
        self.a.mov(rax, self.word_of(v, POSITION)?)?;
        Ok(self.a.mov(self.word_of(v, KEPT)?, rax)?)
    }

    /// Loads the number of records that were lost into rax.
    pub(crate) fn lost(&mut self, v: VariableId) -> Result<(), Assembly> {
        Ok(self.a.mov(rax, self.word_of(v, LOST)?)?)
    }

    /// Compares the bytes in the buffer with those that it may have.
    fn room(&mut self, v: VariableId, capacity: Capacity, leaves_room: bool) -> Result<(), Assembly> {
        self.a.mov(rax, self.word_of(v, POSITION)?)?;
        self.a.sub(rax, self.word_of(v, TAKEN)?)?;
        Ok(self.a.cmp(rax, records::room(capacity, leaves_room) as i32)?)
    }

    /// Pushes the values of a record, the last one first. Returns the number of words.
    fn push_values(&mut self, recorded: &Recorded) -> Result<i32, Assembly> {
        for field in recorded.fields.iter().rev() {
            match field {
                RecordField::Number(e) => {
                    self.value(e)?;
                    self.push(rax)?;
                }
                RecordField::Text(e) => {
                    self.push_text(e)?;
                    self.push(rcx)?;
                }
            }
        }
        if recorded.time {
            self.used[2] = true;
            self.wall_clock()?;
            self.push(rax)?;
        }
        Ok(recorded.words() as i32 - 1)
    }

    /// Pushes the words of the text at an address, the last one first; those that could not be read are 0. Leaves the number of bytes that
    /// were read in rcx.
    pub(crate) fn push_text(&mut self, address: &Expr) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.value(address)?;
        self.a.mov(rcx, rax)?;
        self.a.xor(eax, eax)?;
        for _ in 0..RecordField::TEXT_BYTES / 8 {
            self.push(rax)?;
        }
        let mut answer = self.a.create_label();
        self.routine(Routine::Text, answer)?;
        self.place(&mut answer)
    }

    /// Operand for the word of the buffer whose place is in eax.
    fn at_word(&self, v: VariableId) -> Result<AsmMemoryOperand, Assembly> {
        Ok(qword_ptr(rax + u64::from(self.env.data.counter(self.index(v)? + FIRST))).gs())
    }

    fn next_word(&mut self, capacity: Capacity) -> Result<(), Assembly> {
        self.a.add(eax, 8)?;
        self.mask_word(capacity)
    }

    fn mask_word(&mut self, capacity: Capacity) -> Result<(), Assembly> {
        Ok(self.a.and(eax, (capacity.bytes() - 8) as i32)?)
    }
}

impl Writer<'_> {
    /// Emits [`Routine::Text`]. The verifier compares the instructions from the place of the words to the system call one by one: the kernel
    /// writes at most [`RecordField::TEXT_BYTES`] bytes, to the words that were pushed before the routine.
    pub(crate) fn text(&mut self) -> Result<(), Assembly> {
        let [mut parent, mut one, mut read, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.save()?;
        // A fork child has another process id, and no engine reads its counters.
        self.a.cmp(dword_ptr(u64::from(self.env.data.alive())), 0)?;
        self.a.jne(parent)?;
        self.a.xor(ecx, ecx)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut parent)?;
        let keep = [rdx, rsi, rdi, r11];
        for r in keep {
            self.a.push(r)?;
        }
        // The bytes on the first page, and the rest.
        self.a.mov(r8d, ecx)?;
        self.a.and(r8d, PAGE as i32 - 1)?;
        self.a.mov(r9d, PAGE as i32)?;
        self.a.sub(r9d, r8d)?;
        self.a.cmp(r9d, TEXT_BYTES)?;
        self.a.jle(one)?;
        self.a.mov(r9d, TEXT_BYTES)?;
        self.a.set_label(&mut one)?;
        self.a.mov(r8d, TEXT_BYTES)?;
        self.a.sub(r8d, r9d)?;
        self.a.mov(rdx, rcx)?;
        self.a.add(rdx, r9)?;
        for r in [r8, rdx, r9, rcx] {
            self.a.push(r)?;
        }
        self.a.mov(r10, rsp)?;
        self.a.lea(r9, qword_ptr(rsp + TEXT))?;
        self.a.mov(edx, TEXT_BYTES)?;
        self.a.push(rdx)?;
        self.a.push(r9)?;
        self.a.mov(rsi, rsp)?;
        // If the thread's id is known, it is used as the process id: it works even after the main thread has ended.
        match self.env.identity {
            ThreadIdentity::FsOffset(offset) => self.a.mov(edi, dword_ptr(u64::from(offset)).fs())?,
            ThreadIdentity::FsBase | ThreadIdentity::Locked => {
                self.a.mov(edi, self.env.readable.process.unwrap_or_default())?;
            }
        }
        self.a.mov(edx, 1)?;
        self.a.mov(r8d, PLACES)?;
        self.a.xor(r9d, r9d)?;
        self.a.mov(eax, MemoryAccess::Read.number())?;
        self.a.syscall()?;
        for _ in 0..6 {
            self.a.pop(rcx)?;
        }
        self.a.xor(ecx, ecx)?;
        self.a.cmp(rax, 0)?;
        self.a.jg(read)?;
        self.a.lock().inc(dword_ptr(u64::from(self.env.data.displacement(header::READS_FAILED))))?;
        self.a.xor(eax, eax)?;
        self.a.set_label(&mut read)?;
        self.a.mov(rcx, rax)?;
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.a.set_label(&mut done)?;
        self.leave()
    }
}
