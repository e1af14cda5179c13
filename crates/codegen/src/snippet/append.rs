//! Appends to the buffer in a thread's own shard, see [`ingraft_model::buffer`]. Several threads may use shard 0 at once, so there bytes are
//! only counted as lost.

use iced_x86::code_asm::{AsmMemoryOperand, byte_ptr, dl, eax, ecx, edx, qword_ptr, rax, rcx, rsp};
use ingraft_model::buffer::{CLOSED, Capacity, FIRST, LOST, POSITION, SLACK, TAKEN};
use ingraft_model::snippet::Appended;
use ingraft_model::{VariableId, token};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};

impl Generator<'_> {
    /// Appends bytes to a buffer, or counts them as lost.
    pub(crate) fn append(&mut self, v: VariableId, capacity: Capacity, appended: &Appended) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            let _ = self.a.lock();
            return Ok(self.a.inc(self.word_of(v, LOST)?)?);
        }
        self.used[0] = true;
        let [mut full, mut end] = std::array::from_fn(|_| self.a.create_label());
        if appended.waits {
            self.wait_for_room(v, capacity)?;
        }
        if appended.time {
            // The clock is read before room is reserved: the time is not after the entry.
            self.used = [true; 3];
            self.wall_clock()?;
            self.a.mov(rcx, rax)?;
        }
        self.a.mov(rax, self.word_of(v, POSITION)?)?;
        self.a.sub(rax, self.word_of(v, TAKEN)?)?;
        self.a.cmp(rax, (capacity.bytes() - SLACK) as i32)?;
        self.a.jae(full)?;
        self.a.mov(eax, appended.length())?;
        self.a.xadd(self.word_of(v, POSITION)?, rax)?;
        self.mask_place(capacity)?;
        if appended.time {
            self.a.mov(self.at_byte(v)?, i32::from(token::STACK))?;
            self.next_place(capacity)?;
            self.a.mov(self.at_byte(v)?, i32::from(token::TIME))?;
            self.append_digits(v, capacity, token::TIME_DIGITS)?;
        }
        if appended.stack {
            self.append_stack(v, capacity)?;
        }
        for (n, byte) in appended.bytes.iter().enumerate() {
            if n > 0 {
                self.next_place(capacity)?;
            }
            self.a.mov(self.at_byte(v)?, i32::from(*byte))?;
        }
        self.a.jmp(end)?;
        self.place(&mut full)?;
        self.a.mov(self.word_of(v, TAKEN)?, CLOSED)?;
        self.a.inc(self.word_of(v, LOST)?)?;
        self.place(&mut end)
    }

    /// Waits if the buffer is full and not closed.
    fn wait_for_room(&mut self, v: VariableId, capacity: Capacity) -> Result<(), Assembly> {
        let mut go_on = self.a.create_label();
        self.a.mov(rax, self.word_of(v, POSITION)?)?;
        self.a.sub(rax, self.word_of(v, TAKEN)?)?;
        self.a.sub(rax, (capacity.bytes() - SLACK) as i32)?;
        // A closed buffer is further behind than any capacity.
        self.a.cmp(rax, SLACK as i32)?;
        self.a.ja(go_on)?;
        self.routine(Routine::Room, go_on)?;
        self.place(&mut go_on)
    }

    /// Appends the stack pointer at the point. The place of the next byte is then in eax.
    fn append_stack(&mut self, v: VariableId, capacity: Capacity) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.a.lea(rcx, qword_ptr(rsp + (8 * self.depth + i32::from(self.frame.stack.key))))?;
        self.a.shr(rcx, 3)?;
        self.a.mov(self.at_byte(v)?, i32::from(token::STACK))?;
        self.append_digits(v, capacity, token::STACK_BYTES - 1)
    }

    /// Appends the lowest bits of rcx, seven in each byte, after the place in eax. The place of the next byte is then in eax.
    fn append_digits(&mut self, v: VariableId, capacity: Capacity, count: u32) -> Result<(), Assembly> {
        for _ in 0..count {
            self.next_place(capacity)?;
            self.a.mov(edx, ecx)?;
            self.a.or(edx, 0x80)?;
            self.a.mov(self.at_byte(v)?, dl)?;
            self.a.shr(rcx, 7)?;
        }
        self.next_place(capacity)
    }

    /// Operand for the byte whose place is in eax.
    fn at_byte(&self, v: VariableId) -> Result<AsmMemoryOperand, Assembly> {
        Ok(byte_ptr(rax + u64::from(self.env.data.counter(self.index(v)? + FIRST))).gs())
    }

    fn next_place(&mut self, capacity: Capacity) -> Result<(), Assembly> {
        self.a.inc(eax)?;
        self.mask_place(capacity)
    }

    fn mask_place(&mut self, capacity: Capacity) -> Result<(), Assembly> {
        Ok(self.a.and(eax, (capacity.bytes() - 1) as i32)?)
    }
}
