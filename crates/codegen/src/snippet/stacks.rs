//! Activation records of stacks that no thread executes, see [`ingraft_model::layout::stacks`]. A thread sets its records aside when it leaves a
//! stack, and fetches those of the stack to which it comes.
//!
//! If a call of the thread restores a timer, nothing is set aside or fetched: to stop that timer and start it again, the routines would have to
//! read clocks.
//!
//! Each record is removed from the thread right after it was copied, and added before its words are written, so a signal handler in between finds
//! the records of this stack that are left, or a record that no search passes. In a fork child, which shares the data area, records stay.

use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, dword_ptr, eax, ecx, edi, esi, qword_ptr, r8, r8d, r9, r9d, r10, rax, rcx, rdi, rdx, rsi,
};
use ingraft_model::StackSwitch;
use ingraft_model::layout::stacks::{
    FREE, NEXT, OUTERMOST, OWNER, PLACE, PLACE_BITS, PLACES, PROBES, RECORD, RECORDS, RECORDS_MAX, SPENT, USED,
};
use ingraft_model::layout::{self, TOP, record};
use ingraft_model::table::MULTIPLIER;

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};
use crate::snippet::pool::RecordPool;

/// The records that are set aside.
const ASIDE: RecordPool =
    RecordPool { free: FREE, used: USED, records: RECORDS, size: RECORD, most: RECORDS_MAX, link: NEXT };
/// Counter of a record's activations: calls that ended without an exit.
const LEFT: u32 = 0;
/// Bits of [`record::RESTORE`] that tell of a timer.
const TIMER: u32 = record::RESTORE_WALL | record::RESTORE_CPU;
/// Alignment in bytes of a stack pointer between calls.
const ALIGNMENT: i32 = 16;
/// Registers that the routines use in addition to those of every routine.
const USED_REGISTERS: [AsmRegister64; 4] = [rcx, rdx, rsi, rdi];

impl Generator<'_> {
    /// Sets the records of the stack aside that control leaves, or fetches those of the stack to which it has come.
    pub(crate) fn switch(&mut self, switch: StackSwitch) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            return Ok(());
        }
        self.used = [true, self.used[1], true];
        let mut end = self.a.create_label();
        self.call()?;
        let routine = match switch {
            StackSwitch::Leave => Routine::LeaveStack,
            StackSwitch::Enter => Routine::EnterStack,
        };
        self.routine(routine, end)?;
        self.place(&mut end)
    }
}

impl Listing<'_> {
    /// Word of the first record of the thread, which belongs to no call.
    fn of_thread(&self, field: u32) -> u32 {
        self.holes.records + field
    }

    /// Loads the key of the stack into rdx, the address of the shard with its records into r10, and that of its first place into r8. Jumps to
    /// `none` in a fork child.
    fn stack(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        self.a.cmp(dword_ptr(u64::from(self.holes.alive)), 0)?;
        self.a.je(none)?;
        self.a.add(rdx, ALIGNMENT - 1)?;
        self.a.and(rdx, -ALIGNMENT)?;
        self.a.mov(r10, self.holes.stacks)?;
        self.a.mov(r8, MULTIPLIER)?;
        self.a.imul_2(r8, rdx)?;
        self.a.shr(r8, u64::BITS - PLACE_BITS)?;
        self.a.shl(r8, PLACE.trailing_zeros())?;
        Ok(self.a.lea(r8, qword_ptr(r10 + r8 + PLACES))?)
    }

    /// Drops the records of the stack at the place in r8, whose calls have ended without an exit, and frees the place. Uses rax, rdi, rsi, r9.
    fn drop_stack(&mut self) -> Result<(), Assembly> {
        let [mut again, mut counted, mut empty] = std::array::from_fn(|_| self.a.create_label());
        self.a.set_label(&mut again)?;
        self.a.mov(rsi, qword_ptr(r8 + OUTERMOST))?;
        self.a.test(esi, esi)?;
        self.a.je(empty)?;
        ASIDE.locate(self)?;
        // A record whose measurement was removed has the name 0.
        self.a.mov(eax, dword_ptr(r9 + record::NAME))?;
        self.a.test(eax, eax)?;
        self.a.je(counted)?;
        self.a.inc(self.own_from(rax, 8 * LEFT))?;
        self.a.set_label(&mut counted)?;
        self.next_aside()?;
        self.a.jmp(again)?;
        self.a.set_label(&mut empty)?;
        Ok(self.a.mov(qword_ptr(r8), 0)?)
    }

    /// Removes the outermost record, number in rsi and address in r9, from the place in r8, and adds it to the unused ones. Uses rax and rdi.
    fn next_aside(&mut self) -> Result<(), Assembly> {
        self.a.mov(rax, qword_ptr(r9 + NEXT))?;
        self.a.mov(qword_ptr(r8 + OUTERMOST), rax)?;
        ASIDE.give_back(self, qword_ptr(r9 + NEXT))
    }

    /// Emits [`Routine::LeaveStack`].
    pub(crate) fn leave_stack(&mut self) -> Result<(), Assembly> {
        let [mut probe, mut other, mut claim, mut taken, mut claimed, mut next, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_REGISTERS)?;
        self.stack(done)?;
        // Records that an earlier stack with this key has left are of no use: the stack was given up.
        self.a.mov(ecx, PROBES)?;
        self.a.set_label(&mut probe)?;
        self.a.cmp(qword_ptr(r8), rdx)?;
        self.a.jne(other)?;
        self.drop_stack()?;
        self.a.set_label(&mut other)?;
        self.a.add(r8, PLACE as i32)?;
        self.a.dec(ecx)?;
        self.a.jne(probe)?;
        self.load_last(done)?;
        self.refuse_timers(done)?;

        self.a.sub(r8, (PROBES * PLACE) as i32)?;
        self.a.mov(ecx, PROBES)?;
        self.a.set_label(&mut claim)?;
        self.a.cmp(qword_ptr(r8), 0)?;
        self.a.jne(taken)?;
        self.a.xor(eax, eax)?;
        self.a.lock().cmpxchg(qword_ptr(r8), rdx)?;
        self.a.je(claimed)?;
        self.a.set_label(&mut taken)?;
        self.a.add(r8, PLACE as i32)?;
        self.a.dec(ecx)?;
        self.a.jne(claim)?;
        // Without a place, the records are dropped.
        self.a.xor(r8d, r8d)?;
        self.a.jmp(next)?;

        self.a.set_label(&mut claimed)?;
        self.a.mov(rax, self.own(layout::OWNER))?;
        self.a.mov(qword_ptr(r8 + OWNER), rax)?;
        self.a.mov(qword_ptr(r8 + OUTERMOST), 0)?;
        for word in [0, 8] {
            self.a.mov(rax, self.own(self.of_thread(record::SPENT + word)))?;
            self.a.mov(qword_ptr(r8 + (SPENT + word)), rax)?;
        }

        self.a.set_label(&mut next)?;
        self.a.zero_bytes()?;
        self.set_all_aside(done)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED_REGISTERS)
    }

    /// Sets all records of the thread aside, at the place in r8, or drops them if r8 is 0. Jumps to `done` then. Uses rax, rcx, rdi, rsi, r9.
    fn set_all_aside(&mut self, done: CodeLabel) -> Result<(), Assembly> {
        let mut next = self.a.create_label();
        self.a.set_label(&mut next)?;
        self.load_last(done)?;
        self.set_aside()?;
        self.a.sub(self.own(TOP), record::SIZE as i32)?;
        Ok(self.a.jmp(next)?)
    }

    /// Jumps to `some` if a record of the thread would stop or start a timer. Uses rcx and r9.
    fn refuse_timers(&mut self, some: CodeLabel) -> Result<(), Assembly> {
        let [mut next, mut none] = std::array::from_fn(|_| self.a.create_label());
        self.a.mov(rcx, self.own(TOP))?;
        self.a.set_label(&mut next)?;
        self.require_record(none)?;
        let restore = self.last(record::RESTORE);
        self.a.test(dword_ptr(rcx + self.holes.at(restore)).gs(), TIMER as i32)?;
        self.a.jne(some)?;
        self.a.sub(rcx, record::SIZE as i32)?;
        self.a.jmp(next)?;
        self.a.set_label(&mut none)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Loads the top of the records of the thread into rcx. Jumps to `none` if no record is one of a call. Uses r9.
    fn load_last(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        self.a.mov(rcx, self.own(TOP))?;
        self.require_record(none)
    }

    /// Jumps to `none` if the record below the top in rcx is not one of a call. Uses r9.
    fn require_record(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        self.a.lea(r9, qword_ptr(rcx - 2 * record::SIZE as i32))?;
        self.a.cmp(r9, (record::ROOM - record::SIZE) as i32)?;
        Ok(self.a.jae(none)?)
    }

    /// Sets the last record of the thread aside, at the place in r8, or drops it if r8 is 0 or no record is left. rcx has the top. Uses rax, rdi, rsi, r9.
    fn set_aside(&mut self) -> Result<(), Assembly> {
        let [mut undone, mut dropped, mut done] = std::array::from_fn(|_| self.a.create_label());
        let last = |l: &Self, field: u32| l.own_from(rcx, l.last(field));
        self.a.mov(r9, last(self, record::NAME))?;
        self.a.shr(r9, 32)?;
        self.a.and(r9d, !record::HANDED.cast_signed())?;
        self.a.je(undone)?;
        self.a.mov(rax, self.own_from(r9, 0))?;
        self.a.mov(rdi, last(self, record::SAVED))?;
        self.a.mov(self.own_from(r9, 0), rdi)?;
        self.a.mov(last(self, record::SAVED), rax)?;
        self.a.set_label(&mut undone)?;
        self.a.test(r8, r8)?;
        self.a.je(dropped)?;
        ASIDE.take(self, dropped)?;
        for field in (0..record::SIZE).step_by(8) {
            self.a.mov(rax, last(self, field))?;
            self.a.mov(qword_ptr(r9 + field), rax)?;
        }
        self.a.mov(rax, qword_ptr(r8 + OUTERMOST))?;
        self.a.mov(qword_ptr(r9 + NEXT), rax)?;
        self.a.mov(qword_ptr(r8 + OUTERMOST), rsi)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut dropped)?;
        self.a.mov(rax, last(self, record::NAME))?;
        self.a.mov(eax, eax)?;
        self.a.test(eax, eax)?;
        self.a.je(done)?;
        self.a.inc(self.own_from(rax, 8 * LEFT))?;
        self.a.set_label(&mut done)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Emits [`Routine::EnterStack`].
    pub(crate) fn enter_stack(&mut self) -> Result<(), Assembly> {
        let [mut probe, mut found, mut own, mut dropped, mut next, mut redone, mut full, mut last, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_REGISTERS)?;
        self.stack(done)?;
        self.refuse_timers(done)?;
        self.a.mov(ecx, PROBES)?;
        self.a.set_label(&mut probe)?;
        self.a.cmp(qword_ptr(r8), rdx)?;
        self.a.je(found)?;
        self.a.add(r8, PLACE as i32)?;
        self.a.dec(ecx)?;
        self.a.jne(probe)?;
        self.a.jmp(done)?;

        self.a.set_label(&mut found)?;
        self.a.mov(rax, self.own(layout::OWNER))?;
        self.a.cmp(qword_ptr(r8 + OWNER), rax)?;
        self.a.je(own)?;
        self.a.set_label(&mut full)?;
        self.a.zero_bytes()?;
        self.drop_stack()?;
        self.a.jmp(done)?;

        // The function may have left a stack to which control does not return.
        self.a.set_label(&mut own)?;
        self.a.mov(rdx, r8)?;
        self.a.xor(r8d, r8d)?;
        self.set_all_aside(dropped)?;
        self.a.set_label(&mut dropped)?;
        self.a.mov(r8, rdx)?;
        for word in [0, 8] {
            self.a.mov(rax, qword_ptr(r8 + (SPENT + word)))?;
            self.a.mov(self.own(self.of_thread(record::SPENT + word)), rax)?;
        }
        self.a.set_label(&mut next)?;
        self.a.mov(rsi, qword_ptr(r8 + OUTERMOST))?;
        self.a.test(esi, esi)?;
        self.a.je(last)?;
        ASIDE.locate(self)?;
        self.load_top()?;
        self.a.cmp(ecx, record::ROOM as i32)?;
        self.a.jae(full)?;
        // A signal handler may use the record until it is taken, and after that it leaves it alone.
        self.a.mov(self.next(record::SP), -1)?;
        self.a.add(self.own(TOP), record::SIZE as i32)?;
        self.a.mov(self.next(record::SP), -1)?;
        for field in (8..record::SIZE).step_by(8) {
            self.a.mov(rax, qword_ptr(r9 + field))?;
            self.a.mov(self.next(field), rax)?;
        }
        self.a.mov(edi, dword_ptr(r9 + record::RESTORE))?;
        self.a.and(edi, !record::HANDED.cast_signed())?;
        self.a.je(redone)?;
        self.a.mov(rax, self.own_from(rdi, 0))?;
        self.a.mov(self.next(record::SAVED), rax)?;
        self.a.mov(rax, qword_ptr(r9 + record::SAVED))?;
        self.a.mov(self.own_from(rdi, 0), rax)?;
        self.a.set_label(&mut redone)?;
        self.a.mov(rax, qword_ptr(r9 + record::SP))?;
        self.a.mov(self.next(record::SP), rax)?;
        self.next_aside()?;
        self.a.jmp(next)?;
        self.a.set_label(&mut last)?;
        self.a.mov(qword_ptr(r8), 0)?;
        self.a.set_label(&mut done)?;
        self.exit(&USED_REGISTERS)
    }
}
