//! Resource usage that the kernel counts for each thread. The thread itself asks by getrusage(2), which needs neither a descriptor nor
//! permanent memory.

use iced_x86::code_asm::{eax, ecx, edi, edx, r8, r8d, r9, r10, r11, rcx, rdi, rdx, rsi, rsp};
use ingraft_model::Usage;

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// System call number of getrusage(2).
pub(crate) const GETRUSAGE: i32 = 98;
/// RUSAGE_THREAD.
pub(crate) const THREAD: i32 = 1;
/// Number of 8-byte words in the answer (struct rusage), and indices of words in it: minor faults, followed by major faults; voluntary
/// switches, followed by involuntary ones.
pub(crate) const WORDS: usize = 18;
const FAULTS: usize = 8;
const SWITCHES: usize = 16;

impl Generator<'_> {
    /// Reads the sum of the counts in `usage` into rax; overwrites rcx and rdx.
    pub(crate) fn usage(&mut self, usage: Usage) -> Result<(), Assembly> {
        self.used = [true; 3];
        let mut answer = self.a.create_label();
        self.a.mov(edx, usage.counts())?;
        self.routine(Routine::Usage, answer)?;
        self.place(&mut answer)?;
        Ok(self.a.mov(iced_x86::code_asm::rax, rcx)?)
    }
}

impl Writer<'_> {
    /// Emits [`Routine::Usage`].
    pub(crate) fn usage(&mut self) -> Result<(), Assembly> {
        self.save()?;
        let keep = [rdx, rsi, rdi, r11];
        for r in keep {
            self.a.push(r)?;
        }
        self.a.xor(r8d, r8d)?;
        for _ in 0..WORDS {
            self.a.push(r8)?;
        }
        self.a.mov(edi, THREAD)?;
        self.a.mov(rsi, rsp)?;
        self.a.mov(eax, GETRUSAGE)?;
        self.a.syscall()?;
        for word in 0..WORDS {
            self.a.pop(match word {
                FAULTS => r8,
                _ if word == FAULTS + 1 => r9,
                SWITCHES => r10,
                _ => rcx,
            })?;
        }
        self.a.add(r10, rcx)?;
        self.a.xor(ecx, ecx)?;
        for (bit, count) in (0..).zip([r8, r9, r10]) {
            let mut other = self.a.create_label();
            self.a.btr(edx, bit)?;
            self.a.jae(other)?;
            self.a.add(rcx, count)?;
            self.a.set_label(&mut other)?;
        }
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.leave()
    }
}
