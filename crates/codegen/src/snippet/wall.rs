//! The clock of wall timers, records and marks: the time stamp counter or, if that is unusable, CLOCK_MONOTONIC in nanoseconds. Code reads
//! CLOCK_MONOTONIC by the vDSO or by a system call. The kernel keeps this clock from going back, and both ways read the same clock.
//!
//! A call of the vDSO's function leaves a return address of an arena on the stack, as calls of the program's functions do (see `calling`).
//! While it is there, a word of the thread's shard says so. The function does not block and calls no function of the program, so only
//! registers must be saved.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, CodeAssembler, eax, edi, qword_ptr, r11, rax, rbp, rcx, rdi, rdx, rsi, rsp,
};
use ingraft_model::WallClock;

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::cpu::{CLOCK_GETTIME, NS_PER_SECOND};
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// Clock of clock_gettime(2).
pub(crate) const CLOCK_MONOTONIC: i32 = 1;
/// Registers that a reading overwrites, except rax, rdx and those that every routine saves.
const OVERWRITTEN: [AsmRegister64; 4] = [rcx, rsi, rdi, r11];

impl Generator<'_> {
    /// Reads the time into rax; overwrites rdx. RDTSC does not serialise: instructions before and after it may overlap the reading by some
    /// nanoseconds.
    pub(crate) fn wall_clock(&mut self) -> Result<(), Assembly> {
        if self.env.wall == WallClock::Tsc {
            self.a.rdtsc()?;
            self.a.shl(rdx, 32)?;
            return Ok(self.a.or(rax, rdx)?);
        }
        let mut answer = self.a.create_label();
        self.routine(Routine::Time, answer)?;
        self.place(&mut answer)?;
        Ok(self.a.mov(rax, rdx)?)
    }
}

impl Listing<'_> {
    /// Emits [`Routine::Time`] if the vDSO tells the time.
    pub(crate) fn time(&mut self) -> Result<(), Assembly> {
        let Some(function) = self.holes.vdso else { return Err(Assembly("no function tells the time".to_owned())) };
        let open = self.own(self.holes.readings_open);
        let last = self.own(self.holes.readings_open.wrapping_sub(8));
        self.enter(&[])?;
        keeping(&mut self.a, last, rdx, |a| {
            a.push(rbp)?;
            a.inc(open)?;
            a.mov(rbp, rsp)?;
            // Room for a timespec.
            a.sub(rsp, 16)?;
            a.and(rsp, -16)?;
            a.mov(edi, CLOCK_MONOTONIC)?;
            a.mov(rsi, rsp)?;
            a.mov(rax, function)?;
            a.call(rax)?;
            a.pop(rcx)?;
            a.pop(rdx)?;
            a.mov(rsp, rbp)?;
            a.dec(open)?;
            Ok(a.pop(rbp)?)
        })?;
        self.exit(&[])
    }
}

impl Writer<'_> {
    /// Emits [`Routine::Time`] if a system call tells the time.
    pub(crate) fn time(&mut self) -> Result<(), Assembly> {
        self.save()?;
        self.time_by_system_call(rdx)?;
        self.leave()
    }

    /// Reads the time into rax, and keeps all other registers.
    pub(crate) fn wall_clock(&mut self) -> Result<(), Assembly> {
        self.a.push(rdx)?;
        if self.env.wall == WallClock::Tsc {
            self.a.rdtsc()?;
            self.a.shl(rdx, 32)?;
            self.a.or(rax, rdx)?;
        } else {
            self.time_by_system_call(rax)?;
        }
        Ok(self.a.pop(rdx)?)
    }

    fn time_by_system_call(&mut self, into: AsmRegister64) -> Result<(), Assembly> {
        let last = qword_ptr(u64::from(self.env.data.displacement(self.env.data.readings_open() - 8))).gs();
        keeping(&mut self.a, last, into, |a| {
            // Room for a timespec.
            a.push(rcx)?;
            a.push(rcx)?;
            a.mov(edi, CLOCK_MONOTONIC)?;
            a.mov(rsi, rsp)?;
            a.mov(eax, CLOCK_GETTIME)?;
            a.syscall()?;
            a.pop(rcx)?;
            Ok(a.pop(rdx)?)
        })
    }
}

/// Emits a reading. `read` leaves its result in eax and the timespec in rcx and rdx. `last` is the last reading in this thread; the word is in
/// the first record, which belongs to no call. If `read` fails, the result is that reading. Overwrites rax and rdx.
fn keeping(
    a: &mut CodeAssembler,
    last: AsmMemoryOperand,
    into: AsmRegister64,
    read: impl Fn(&mut CodeAssembler) -> Result<(), Assembly>,
) -> Result<(), Assembly> {
    let mut failed = a.create_label();
    for r in OVERWRITTEN {
        a.push(r)?;
    }
    read(a)?;
    a.test(eax, eax)?;
    a.jne(failed)?;
    a.imul_3(rcx, rcx, NS_PER_SECOND)?;
    a.add(rdx, rcx)?;
    a.mov(last, rdx)?;
    a.set_label(&mut failed)?;
    a.mov(into, last)?;
    for r in OVERWRITTEN.into_iter().rev() {
        a.pop(r)?;
    }
    Ok(())
}
