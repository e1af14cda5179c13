//! The processor time of a thread: the time stamp counter and an offset, as long as the kernel has not switched the thread.
//!
//! The kernel clears a thread's pointer to a restartable sequence (rseq(2)) on its way back to a program that it had switched away from, or
//! sent a signal to, outside of that sequence. The pointer to a sequence that nobody ever executes, put there right before the offset is made,
//! hence tells whether the offset still holds. At a function's entry or exit no sequence of the program's own can be active, so what the pointer
//! holds then is left over, and the kernel would clear it as well.

use iced_x86::code_asm::{
    AsmMemoryOperand, dword_ptr, eax, ecx, edi, qword_ptr, r9, r10, r11, rax, rcx, rdi, rdx, rsi, rsp,
};
use ingraft_model::CpuClock;
use ingraft_model::layout::{self, header};

use crate::code::environment::{Assembly, Environment};
use crate::code::routine::Routine;
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// clock_gettime(2), and the clock of the calling thread.
pub(crate) const CLOCK_GETTIME: i32 = 228;
pub(crate) const THREAD_CPUTIME: i32 = 3;
/// Where glibc keeps the thread pointer itself, from fs.
pub(crate) const SELF: u32 = 0x10;
/// From the pointer to a sequence to the number of the processor (struct rseq), which is negative in an area that is not registered.
pub(crate) const PROCESSOR: i32 = -4;
pub(crate) const NS_PER_SECOND: i32 = 1_000_000_000;
/// Binary digits of `header::CPU_RATE` behind the point.
const RATE_DIGITS: u32 = 32;

/// A word of this thread's shard.
fn own(env: &Environment, word: u32) -> AsmMemoryOperand {
    qword_ptr(u64::from(env.data.displacement(word))).gs()
}

/// A place relative to fs, sign-extended.
fn thread(offset: i32) -> u64 {
    i64::from(offset).cast_unsigned()
}

/// Address of the descriptor; it is below 2 GiB.
fn descriptor(env: &Environment) -> i32 {
    env.data.displacement(header::DESCRIPTOR).cast_signed()
}

impl Generator<'_> {
    /// The thread's processor time in rax; rdx is overwritten.
    pub(crate) fn cpu_clock(&mut self) -> Result<(), Assembly> {
        let env = self.env;
        let [mut renew, mut answer, mut end] = std::array::from_fn(|_| self.a.create_label());
        let last = own(env, layout::CPU_LAST);
        if let CpuClock::Rseq { slot, .. } = env.cpu {
            let slot = qword_ptr(thread(slot)).fs();
            // looked at before and after the counter is read: what an interrupted reading has missed in between is renewed. Before, it is
            // compared with the shard's word, which is 0 as long as there is no offset.
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
    /// Reads the processor time by a system call, renews the offset, and leaves the reading in rax and in the shard. Everything else but the
    /// flags stays. A reading that failed is the last one.
    pub(crate) fn renew(&mut self) -> Result<(), Assembly> {
        let env = self.env;
        let [mut put, mut failed, mut invalid, mut done] = std::array::from_fn(|_| self.a.create_label());
        let keep = [rcx, rdx, rsi, rdi, r9, r10, r11];
        for r in keep {
            self.a.push(r)?;
        }
        // A signal handler that renews in between is noticed by this number.
        self.a.inc(own(env, layout::CPU_RENEWALS))?;
        self.a.mov(r9, own(env, layout::CPU_RENEWALS))?;
        if let CpuClock::Rseq { slot, .. } = env.cpu {
            // Not in fork children, and only where this thread's area is, known by its libc's own pointer to it and registered: elsewhere the
            // shard says that there is no offset, and every reading comes here.
            self.a.cmp(dword_ptr(u64::from(env.data.alive())), 0)?;
            self.a.je(put)?;
            self.a.rdfsbase(rcx)?;
            self.a.cmp(qword_ptr(u64::from(SELF)).fs(), rcx)?;
            self.a.jne(put)?;
            self.a.cmp(dword_ptr(thread(slot.wrapping_add(PROCESSOR))).fs(), 0)?;
            self.a.jl(put)?;
            // whoever takes the descriptor away must know all that point to it, hence before it does
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
        // room for a timespec
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
        // the kernel has read its clock about half way between
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
