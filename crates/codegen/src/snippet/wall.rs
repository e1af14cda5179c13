//! The clock of wall timers, records and marks: the time stamp counter or, if that is unusable, CLOCK_MONOTONIC in nanoseconds. Code reads
//! CLOCK_MONOTONIC by the vDSO or by a system call. The kernel keeps this clock from going back, and both ways read the same clock.
//!
//! A call of the vDSO's function leaves a return address of an arena on the stack, as calls of the program's functions do (see `calling`).
//! While it is there, a word of the thread's shard says so. The function does not block and calls no function of the program, so only
//! registers must be saved.

use iced_x86::code_asm::{
    AsmMemoryOperand, AsmRegister64, eax, edi, qword_ptr, r11, rax, rbp, rcx, rdi, rdx, rsi, rsp,
};
use ingraft_model::WallClock;

use crate::code::environment::{Assembly, Environment};
use crate::code::routine::Routine;
use crate::snippet::cpu::{CLOCK_GETTIME, NS_PER_SECOND};
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// Clock of clock_gettime(2).
pub(crate) const CLOCK_MONOTONIC: i32 = 1;
/// Registers that a reading overwrites, except rax, rdx and those that every routine saves.
const OVERWRITTEN: [AsmRegister64; 4] = [rcx, rsi, rdi, r11];

/// Operand for the last reading in this thread. The word is in the first record, which belongs to no call.
fn last(env: &Environment) -> AsmMemoryOperand {
    qword_ptr(u64::from(env.data.displacement(env.data.readings_open() - 8))).gs()
}

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

impl Writer<'_> {
    /// Emits [`Routine::Time`].
    pub(crate) fn time(&mut self) -> Result<(), Assembly> {
        self.save()?;
        let WallClock::Vdso(function) = self.env.wall else {
            self.time_by_system_call(rdx)?;
            return self.leave();
        };
        let open = qword_ptr(u64::from(self.env.data.displacement(self.env.data.readings_open()))).gs();
        self.keeping(rdx, |w| {
            w.a.push(rbp)?;
            w.a.inc(open)?;
            w.a.mov(rbp, rsp)?;
            // Room for a timespec.
            w.a.sub(rsp, 16)?;
            w.a.and(rsp, -16)?;
            w.a.mov(edi, CLOCK_MONOTONIC)?;
            w.a.mov(rsi, rsp)?;
            w.a.mov(rax, function.0)?;
            w.a.call(rax)?;
            w.a.pop(rcx)?;
            w.a.pop(rdx)?;
            w.a.mov(rsp, rbp)?;
            w.a.dec(open)?;
            Ok(w.a.pop(rbp)?)
        })?;
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
        self.keeping(into, |w| {
            // Room for a timespec.
            w.a.push(rcx)?;
            w.a.push(rcx)?;
            w.a.mov(edi, CLOCK_MONOTONIC)?;
            w.a.mov(rsi, rsp)?;
            w.a.mov(eax, CLOCK_GETTIME)?;
            w.a.syscall()?;
            w.a.pop(rcx)?;
            Ok(w.a.pop(rdx)?)
        })
    }

    /// Emits a reading. `read` leaves its result in eax and the timespec in rcx and rdx. If `read` fails, the result is the previous
    /// reading. Overwrites rax and rdx.
    fn keeping(
        &mut self,
        into: AsmRegister64,
        read: impl Fn(&mut Self) -> Result<(), Assembly>,
    ) -> Result<(), Assembly> {
        let mut failed = self.a.create_label();
        for r in OVERWRITTEN {
            self.a.push(r)?;
        }
        read(self)?;
        self.a.test(eax, eax)?;
        self.a.jne(failed)?;
        self.a.imul_3(rcx, rcx, NS_PER_SECOND)?;
        self.a.add(rdx, rcx)?;
        self.a.mov(last(self.env), rdx)?;
        self.a.set_label(&mut failed)?;
        self.a.mov(into, last(self.env))?;
        for r in OVERWRITTEN.into_iter().rev() {
            self.a.pop(r)?;
        }
        Ok(())
    }
}
