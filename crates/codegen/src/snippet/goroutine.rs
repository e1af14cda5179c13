//! Activation records of goroutines, see [`ingraft_model::layout::goroutine`]. A goroutine moves between threads, so the record of a call
//! lies in the list of its goroutine between entry and exit. It is in the records of the executing thread only while code builds it, or uses
//! it at the exit.
//!
//! Only the thread that executes a goroutine uses its list. The runtime never moves a goroutine while its program counter lies in generated
//! code, because it knows no such code (runtime/preempt.go, `isAsyncSafePoint`). A signal handler of the runtime has a goroutine of its own.
//! Before the handler has switched to it, its stack pointer lies outside the stack of the interrupted goroutine, and such calls have no
//! record. The unused records are common to all threads, and change by a `cmpxchg` of their head, whose upper half counts the changes.
//!
//! In a fork child, which shares the data area, calls have no records.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeLabel, dword_ptr, eax, ecx, esi, qword_ptr, r8, r9, r10, rax, rcx, rdi, rdx,
    rsi, rsp,
};
use ingraft_model::CallRecord;
use ingraft_model::layout::goroutine::{
    FREE, INSIDE, MULTIPLIER, NOTES_KEY, PLACE, PLACE_BITS, PLACES, PROBES, RECORDS, RECORDS_MAX, STACK, USED,
};
use ingraft_model::layout::{TOP, record};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::Generator;
use crate::snippet::pool::RecordPool;

/// Counters of a record's activations: calls that ended without an exit, and calls that could not be recorded.
const LEFT: u32 = 0;
const UNRECORDED: u32 = 2;
/// Number of words that a record keeps.
const KEPT: u32 = record::KEPT_MAX;
/// The records of goroutines.
const RECORD_POOL: RecordPool =
    RecordPool { free: FREE, used: USED, records: RECORDS, size: record::SIZE, most: RECORDS_MAX, link: record::SAVED };
/// Registers that the routines use in addition to those of every routine.
const USED_REGISTERS: [AsmRegister64; 3] = [rdx, rsi, rdi];

impl Generator<'_> {
    /// Moves the record that was just built into the list of the goroutine.
    pub(crate) fn park(&mut self) -> Result<(), Assembly> {
        let mut parked = self.a.create_label();
        self.call()?;
        self.routine(Routine::Park, parked)?;
        self.place(&mut parked)
    }

    /// Ends the records of the goroutine's calls that have ended without an exit.
    pub(crate) fn prune_goroutine(&mut self) -> Result<(), Assembly> {
        if self.env.goroutine.is_none() {
            return Ok(());
        }
        self.used = [true; 3];
        let mut end = self.a.create_label();
        self.call()?;
        self.routine(Routine::PruneGoroutine, end)?;
        self.place(&mut end)
    }

    /// Takes the record of this call from the list of the goroutine, and jumps to `none` if there is none. The record is then the thread's
    /// last one, and rcx holds the top.
    pub(crate) fn fetch(&mut self, r: &CallRecord, none: CodeLabel) -> Result<(), Assembly> {
        let mut answer = self.a.create_label();
        self.call()?;
        self.a.mov(ecx, self.offset(r.activations)? as i32)?;
        self.routine(Routine::Fetch, answer)?;
        self.place(&mut answer)?;
        self.a.test(ecx, ecx)?;
        Ok(self.a.je(none)?)
    }
}

impl Listing<'_> {
    /// Operand for a field of the record at r9.
    fn field(field: u32) -> AsmMemoryOperand {
        qword_ptr(r9 + field)
    }

    /// Operand for a field of the thread's record after the last one; rcx holds the top.
    pub(super) fn next(&self, field: u32) -> AsmMemoryOperand {
        self.own_from(rcx, self.holes.records + field)
    }

    /// Offset of a field of the thread's last record from the top of its records.
    pub(super) fn last(&self, field: u32) -> u32 {
        self.holes.records + field - record::SIZE
    }

    /// Loads the top of the thread's records into rcx. Creates the first record, which belongs to no call, if the thread has none.
    pub(super) fn load_top(&mut self) -> Result<(), Assembly> {
        let mut used = self.a.create_label();
        let first = self.holes.records;
        self.a.mov(rcx, self.own(TOP))?;
        self.a.test(ecx, ecx)?;
        self.a.jne(used)?;
        self.a.mov(self.own(first + record::SP), -1)?;
        self.a.mov(self.own(first + record::NAME), 0)?;
        self.a.mov(self.own(TOP), record::SIZE as i32)?;
        self.a.mov(ecx, record::SIZE)?;
        self.a.set_label(&mut used)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Loads the address of the goroutine's place into r8, that of the shard with the lists into r10, and replaces the stack pointer in rdx
    /// by the key of the call. Jumps to `none` if the thread executes no goroutine, if the call is not on its stack, or if no place is free.
    pub(super) fn goroutine(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        let Some(pointer) = self.holes.goroutine else { return Err(Assembly("no goroutines".to_owned())) };
        let [mut probe, mut next, mut found] = std::array::from_fn(|_| self.a.create_label());
        self.a.cmp(dword_ptr(u64::from(self.holes.alive)), 0)?;
        self.a.je(none)?;
        // A thread that has no thread pointer yet executes no goroutine.
        self.a.rdfsbase(rax)?;
        self.a.test(rax, rax)?;
        self.a.je(none)?;
        self.a.mov(rax, qword_ptr(i64::from(pointer).cast_unsigned()).fs())?;
        self.a.test(rax, rax)?;
        self.a.je(none)?;
        self.a.mov(r9, qword_ptr(rax + (STACK + 8)))?;
        self.a.cmp(rdx, r9)?;
        self.a.jae(none)?;
        self.a.cmp(rdx, qword_ptr(rax + STACK))?;
        self.a.jb(none)?;
        self.a.sub(rdx, r9)?;
        self.a.mov(r10, self.holes.lists)?;
        self.a.mov(r9, MULTIPLIER)?;
        self.a.imul_2(r9, rax)?;
        self.a.shr(r9, u64::BITS - PLACE_BITS)?;
        self.a.shl(r9, PLACE.trailing_zeros())?;
        self.a.lea(r8, qword_ptr(r10 + r9 + PLACES))?;
        self.a.mov(esi, PROBES)?;
        self.a.set_label(&mut probe)?;
        self.a.cmp(qword_ptr(r8), rax)?;
        self.a.je(found)?;
        self.a.cmp(qword_ptr(r8), 0)?;
        self.a.jne(next)?;
        self.a.mov(r9, rax)?;
        self.a.xor(eax, eax)?;
        self.a.lock().cmpxchg(qword_ptr(r8), r9)?;
        self.a.mov(rax, r9)?;
        self.a.je(found)?;
        self.a.set_label(&mut next)?;
        self.a.add(r8, PLACE as i32)?;
        self.a.dec(esi)?;
        self.a.jne(probe)?;
        self.a.jmp(none)?;
        self.a.set_label(&mut found)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Loads the address of the record whose number is in rsi into r9.
    pub(super) fn locate(&mut self) -> Result<(), Assembly> {
        RECORD_POOL.locate(self)
    }

    /// Loads number and address of the record in the word at r8 + 8, the goroutine's last one. Jumps to `none` if there is none.
    pub(super) fn last_of_goroutine(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        self.a.mov(esi, dword_ptr(r8 + 8))?;
        self.a.test(esi, esi)?;
        self.a.je(none)?;
        self.locate()
    }

    /// Adds the record at r9, whose number is in rsi, to the unused ones.
    fn give_back(&mut self) -> Result<(), Assembly> {
        self.give_back_all(Self::field(record::SAVED))
    }

    /// Adds records to the unused ones. The number of the first one is in rsi, and `link` is the link of the last one. Uses rax and rdi.
    pub(super) fn give_back_all(&mut self, link: AsmMemoryOperand) -> Result<(), Assembly> {
        RECORD_POOL.give_back(self, link)
    }

    /// Takes an unused record: its number in rsi, its address in r9. Jumps to `none` if there is none.
    pub(super) fn take(&mut self, none: CodeLabel) -> Result<(), Assembly> {
        RECORD_POOL.take(self, none)
    }

    /// Removes the goroutine's last record, which is at r9 and whose call has ended without an exit. If it keeps notes, they
    /// end. If it has a context, the next record with one in the same tree takes over the time of the calls inside. Uses rcx.
    fn drop_stale(&mut self) -> Result<(), Assembly> {
        let [mut ended, mut own, mut counted, mut next, mut caller, mut alone] =
            std::array::from_fn(|_| self.a.create_label());
        // A record of the list, by its distance from the first one in rax.
        let other = |field: u32| RECORDS + field;
        // The notes of a call end with it, and so do those that the engine has ended.
        self.a.mov(eax, dword_ptr(r8 + NOTES_KEY))?;
        self.a.test(eax, eax)?;
        self.a.je(ended)?;
        self.a.cmp(eax, dword_ptr(r9 + record::SP))?;
        self.a.jne(own)?;
        self.a.set_label(&mut ended)?;
        self.forget_notes()?;
        self.a.set_label(&mut own)?;
        // A record whose measurement was removed has the name 0.
        self.a.mov(eax, dword_ptr(r9 + record::NAME))?;
        self.a.test(eax, eax)?;
        self.a.je(counted)?;
        self.a.inc(self.own_from(rax, 8 * LEFT))?;
        self.a.set_label(&mut counted)?;
        self.a.mov(ecx, dword_ptr(r9 + record::RESTORE))?;
        self.a.and(ecx, !record::HANDED.cast_signed())?;
        self.a.je(alone)?;
        self.a.mov(rdi, Self::field(record::SAVED))?;
        self.a.set_label(&mut next)?;
        self.a.test(rdi, rdi)?;
        self.a.je(alone)?;
        self.a.mov(rax, rdi)?;
        self.a.shl(rax, record::SIZE.trailing_zeros())?;
        self.a.mov(esi, dword_ptr(r10 + rax + other(record::RESTORE)))?;
        self.a.and(esi, !record::HANDED.cast_signed())?;
        self.a.cmp(esi, ecx)?;
        self.a.je(caller)?;
        self.a.mov(rdi, qword_ptr(r10 + rax + other(record::SAVED)))?;
        self.a.jmp(next)?;
        self.a.set_label(&mut caller)?;
        self.a.mov(rcx, Self::field(INSIDE))?;
        self.a.add(qword_ptr(r10 + rax + other(INSIDE)), rcx)?;
        self.a.set_label(&mut alone)?;
        self.a.mov(esi, dword_ptr(r8 + 8))?;
        self.a.mov(rax, Self::field(record::SAVED))?;
        self.a.mov(qword_ptr(r8 + 8), rax)?;
        self.give_back()
    }

    /// Emits [`Routine::PruneGoroutine`].
    pub(crate) fn prune_goroutine(&mut self) -> Result<(), Assembly> {
        let [mut again, mut left, mut own, mut unmark, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_REGISTERS)?;
        self.load_top()?;
        self.goroutine(done)?;
        self.a.set_label(&mut again)?;
        self.last_of_goroutine(done)?;
        self.a.cmp(Self::field(record::SP), rdx)?;
        self.a.ja(done)?;
        self.a.je(own)?;
        self.a.set_label(&mut left)?;
        self.drop_stale()?;
        self.a.jmp(again)?;
        self.a.set_label(&mut own)?;
        // The record belongs to this very frame: either it was handed over, or an earlier call with the same frame has left it.
        self.a.test(dword_ptr(r9 + record::RESTORE), record::HANDED)?;
        self.a.je(left)?;
        self.a.set_label(&mut unmark)?;
        self.a.and(dword_ptr(r9 + record::RESTORE), !record::HANDED.cast_signed())?;
        self.a.mov(rsi, Self::field(record::SAVED))?;
        self.a.test(rsi, rsi)?;
        self.a.je(done)?;
        self.locate()?;
        self.a.cmp(Self::field(record::SP), rdx)?;
        self.a.jne(done)?;
        self.a.test(dword_ptr(r9 + record::RESTORE), record::HANDED)?;
        self.a.jne(unmark)?;
        self.a.set_label(&mut done)?;
        self.a.mov(rcx, self.own(TOP))?;
        self.exit(&USED_REGISTERS)
    }

    /// Emits [`Routine::Park`].
    pub(crate) fn park(&mut self) -> Result<(), Assembly> {
        let [mut none, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_REGISTERS)?;
        self.goroutine(none)?;
        self.take(none)?;
        self.a.mov(rcx, self.own(TOP))?;
        self.a.mov(Self::field(record::SP), rdx)?;
        for field in std::iter::once(record::NAME).chain((0..KEPT).map(|n| record::KEPT + 8 * n)) {
            self.a.mov(rax, self.own_from(rcx, self.last(field)))?;
            self.a.mov(Self::field(field), rax)?;
        }
        self.a.mov(rax, qword_ptr(r8 + 8))?;
        self.a.mov(Self::field(record::SAVED), rax)?;
        self.a.mov(qword_ptr(r8 + 8), rsi)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut none)?;
        self.a.mov(rcx, self.own(TOP))?;
        self.a.mov(eax, dword_ptr(rcx + self.holes.at(self.last(record::NAME))).gs())?;
        self.a.inc(self.own_from(rax, 8 * UNRECORDED))?;
        self.a.set_label(&mut done)?;
        self.a.sub(self.own(TOP), record::SIZE as i32)?;
        self.a.mov(rcx, self.own(TOP))?;
        self.exit(&USED_REGISTERS)
    }

    /// Emits [`Routine::Fetch`].
    pub(crate) fn fetch(&mut self) -> Result<(), Assembly> {
        let [mut again, mut level, mut walk, mut hit, mut none, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        self.enter(&USED_REGISTERS)?;
        self.a.push(rcx)?;
        self.load_top()?;
        self.a.cmp(ecx, record::ROOM as i32)?;
        self.a.jae(none)?;
        self.goroutine(none)?;
        self.a.set_label(&mut again)?;
        self.last_of_goroutine(none)?;
        self.a.cmp(Self::field(record::SP), rdx)?;
        self.a.jae(level)?;
        self.drop_stale()?;
        self.a.jmp(again)?;
        // The frame has several records if several pairs measure its function.
        self.a.set_label(&mut level)?;
        self.a.lea(rdi, qword_ptr(r8 + 8))?;
        self.a.set_label(&mut walk)?;
        self.a.cmp(Self::field(record::SP), rdx)?;
        self.a.jne(none)?;
        self.a.mov(eax, dword_ptr(r9 + record::NAME))?;
        self.a.cmp(rax, qword_ptr(rsp))?;
        self.a.je(hit)?;
        self.a.lea(rdi, Self::field(record::SAVED))?;
        self.a.mov(rsi, qword_ptr(rdi))?;
        self.a.test(rsi, rsi)?;
        self.a.je(none)?;
        self.locate()?;
        self.a.jmp(walk)?;
        self.a.set_label(&mut hit)?;
        self.a.mov(rax, Self::field(record::SAVED))?;
        self.a.mov(qword_ptr(rdi), rax)?;
        self.a.mov(rcx, self.own(TOP))?;
        // A signal handler may use the record until it is taken, and after that it leaves it alone.
        self.a.mov(self.next(record::SP), -1)?;
        self.a.add(self.own(TOP), record::SIZE as i32)?;
        self.a.mov(self.next(record::SP), -1)?;
        for field in std::iter::once(record::NAME).chain((0..KEPT).map(|n| record::KEPT + 8 * n)) {
            self.a.mov(rax, Self::field(field))?;
            self.a.mov(self.next(field), rax)?;
        }
        self.give_back()?;
        self.a.mov(rcx, self.own(TOP))?;
        self.a.jmp(done)?;
        self.a.set_label(&mut none)?;
        self.a.xor(ecx, ecx)?;
        self.a.set_label(&mut done)?;
        // The name.
        self.a.pop(rdi)?;
        self.exit(&USED_REGISTERS)
    }
}
