//! Processor time of a thread: the time stamp counter plus an offset, which holds as long as the kernel has not switched the thread.
//!
//! A thread's rseq area has a pointer to a restartable sequence (rseq(2)). If the kernel switches away from the thread or sends it a
//! signal outside of that sequence, it clears the pointer before it returns to the program. The renewing routine stores a pointer to a
//! sequence that is never executed, right before it computes the offset. So the offset is valid as long as the pointer is still there. No
//! sequence of the program can be active at the entry or exit of a function. A pointer that the routine finds there is left over, and the
//! kernel would clear it as well.

use iced_x86::code_asm::{
    AsmMemoryOperand, dword_ptr, eax, ecx, edi, qword_ptr, r9, r10, r11, rax, rcx, rdi, rdx, rsi, rsp,
};
use ingraft_model::CpuClock;
use ingraft_model::layout::{self, header};

use crate::code::environment::{Assembly, Environment};
use crate::code::routine::Routine;
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// Number of clock_gettime(2), and the clock that measures the processor time of the calling thread (CLOCK_THREAD_CPUTIME_ID).
pub(crate) const CLOCK_GETTIME: i32 = 228;
pub(crate) const THREAD_CPUTIME: i32 = 3;
/// Offset from fs of the word where glibc stores the thread pointer itself.
pub(crate) const SELF: u32 = 0x10;
/// Offset from the pointer to a sequence to the number of the processor (`cpu_id` of struct rseq). The number is negative in an area that
/// is not registered.
pub(crate) const PROCESSOR: i32 = -4;
pub(crate) const NS_PER_SECOND: i32 = 1_000_000_000;
/// Fractional bits of `header::CPU_RATE`.
const RATE_DIGITS: u32 = 32;

/// Operand for a word of this thread's shard.
fn own(env: &Environment, word: u32) -> AsmMemoryOperand {
    qword_ptr(u64::from(env.data.displacement(word))).gs()
}

/// Address operand for an offset from fs, sign-extended.
fn thread(offset: i32) -> u64 {
    i64::from(offset).cast_unsigned()
}

/// Address of the descriptor; it is below 2 GiB.
fn descriptor(env: &Environment) -> i32 {
    env.data.displacement(header::DESCRIPTOR).cast_signed()
}

impl Generator<'_> {
    /// Reads the thread's processor time into rax; overwrites rdx.
    pub(crate) fn cpu_clock(&mut self) -> Result<(), Assembly> {
        let env = self.env;
        let [mut renew, mut answer, mut end] = std::array::from_fn(|_| self.a.create_label());
        let last = own(env, layout::CPU_LAST);
        if let CpuClock::Rseq { slot, .. } = env.cpu {
            let slot = qword_ptr(thread(slot)).fs();
            // The pointer is compared before and after the counter is read. If the kernel has interrupted the reading in between, the
            // second comparison fails, and the offset is renewed. The first comparison is with the shard's word, which is 0 as long as
            // there is no offset.
            self.a.mov(rax, own(env, layout::CPU_DESCRIPTOR))?;
            self.a.cmp(slot, rax)?;
            self.a.jne(renew)?;
            self.a.rdtsc()?;
            self.a.shl(rdx, 32)?;
            self.a.or(rax, rdx)?;
            self.a.add(rax, own(env, layout::CPU_OFFSET))?;
            self.a.cmp(slot, descriptor(env))?;
            self.a.jne(renew)?;
            self.a.cmp(rax, last)?;
            self.a.jb(answer)?;
            self.a.mov(last, rax)?;
            self.a.jmp(end)?;
            self.place(&mut renew)?;
        }
        self.routine(Routine::CpuTime, answer)?;
        self.place(&mut answer)?;
        self.a.mov(rax, last)?;
        self.place(&mut end)
    }
}

impl Writer<'_> {
    /// Reads the processor time by a system call, renews the offset, and leaves the reading in rax and in the shard. All other registers
    /// but the flags keep their values. If the system call fails, the result is the previous reading.
    pub(crate) fn renew(&mut self) -> Result<(), Assembly> {
        let env = self.env;
        let [mut put, mut failed, mut invalid, mut done] = std::array::from_fn(|_| self.a.create_label());
        let keep = [rcx, rdx, rsi, rdi, r9, r10, r11];
        for r in keep {
            self.a.push(r)?;
        }
        // This number shows whether a signal handler has renewed the offset in between.
        self.a.inc(own(env, layout::CPU_RENEWALS))?;
        self.a.mov(r9, own(env, layout::CPU_RENEWALS))?;
        if let CpuClock::Rseq { slot, .. } = env.cpu {
            // The thread gets an offset only in the target itself, not in a fork child, and only if its rseq area is certain: the libc's
            // own copy of the thread pointer must match, and the area must be registered. Elsewhere the shard says that there is no
            // offset, and every reading takes this path.
            self.a.cmp(dword_ptr(u64::from(env.data.alive())), 0)?;
            self.a.je(put)?;
            self.a.rdfsbase(rcx)?;
            self.a.cmp(qword_ptr(u64::from(SELF)).fs(), rcx)?;
            self.a.jne(put)?;
            self.a.cmp(dword_ptr(thread(slot.wrapping_add(PROCESSOR))).fs(), 0)?;
            self.a.jl(put)?;
            // The code that removes the descriptor must know all pointers to it, so the shard records the address of the pointer before
            // the pointer is set.
            self.a.lea(rcx, qword_ptr(rcx + slot))?;
            self.a.mov(own(env, layout::CPU_SLOT), rcx)?;
            self.a.mov(qword_ptr(thread(slot)).fs(), descriptor(env))?;
            self.a.mov(own(env, layout::CPU_DESCRIPTOR), descriptor(env))?;
        }
        self.a.set_label(&mut put)?;
        self.a.rdtsc()?;
        self.a.shl(rdx, 32)?;
        self.a.or(rax, rdx)?;
        self.a.mov(r10, rax)?;
        // Room for a timespec.
        self.a.push(rcx)?;
        self.a.push(rcx)?;
        self.a.mov(edi, THREAD_CPUTIME)?;
        self.a.mov(rsi, rsp)?;
        self.a.mov(eax, CLOCK_GETTIME)?;
        self.a.syscall()?;
        self.a.mov(ecx, eax)?;
        self.a.pop(rsi)?;
        self.a.pop(rdi)?;
        self.a.rdtsc()?;
        self.a.shl(rdx, 32)?;
        self.a.or(rax, rdx)?;
        self.a.test(ecx, ecx)?;
        self.a.jne(failed)?;
        // The kernel has read its clock about half way between the two readings of the counter.
        self.a.add(r10, rax)?;
        self.a.shr(r10, 1)?;
        self.a.imul_3(rsi, rsi, NS_PER_SECOND)?;
        self.a.add(rsi, rdi)?;
        self.a.mov(rax, qword_ptr(u64::from(env.data.displacement(header::CPU_RATE))))?;
        self.a.mul(rsi)?;
        self.a.shrd(rax, rdx, RATE_DIGITS)?;
        self.a.mov(rdx, rax)?;
        self.a.sub(rdx, r10)?;
        self.a.mov(own(env, layout::CPU_OFFSET), rdx)?;
        self.a.cmp(rax, own(env, layout::CPU_LAST))?;
        self.a.jb(invalid)?;
        self.a.mov(own(env, layout::CPU_LAST), rax)?;
        self.a.set_label(&mut invalid)?;
        self.a.cmp(r9, own(env, layout::CPU_RENEWALS))?;
        self.a.je(done)?;
        self.a.set_label(&mut failed)?;
        self.a.mov(own(env, layout::CPU_DESCRIPTOR), 0)?;
        self.a.set_label(&mut done)?;
        self.a.mov(rax, own(env, layout::CPU_LAST))?;
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        Ok(())
    }
}
