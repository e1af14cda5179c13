//! The loader's hook: a thread that has just mapped a library tells the engine, and waits until the measured functions of the library are
//! woven, so that no call of them is missed.
//!
//! The loader calls an empty function (`r_brk` in link.h) before and after it maps or unmaps a library, and stores in `r_state` which of
//! these it is. The thread waits only after a mapping; at that time, glibc and musl have not yet run any code of the library. The wait
//! ends with the engine's answer, at the time limit, or when nobody listens any more. An engine that works on a large library renews the
//! limit: a thread at its limit waits once more if the engine has renewed it meanwhile. A thread that waited in vain clears the
//! flag that says that the engine listens, so that a dead engine costs one delay in all.

use iced_x86::code_asm::{dword_ptr, eax, ecx, edi, edx, esi, r8d, r9d, r10, r11, rcx, rdi, rdx, rsi, rsp};
use ingraft_model::layout::{LOADER_WAIT_NS, header};

use crate::code::environment::Assembly;
use crate::snippet::cpu::{CLOCK_GETTIME, NS_PER_SECOND};
use crate::snippet::routines::Writer;
use crate::snippet::wall::CLOCK_MONOTONIC;

/// futex(2) between processes. FUTEX_WAIT_BITSET has an absolute time limit, so that signals do not make the wait longer.
pub(crate) const FUTEX: i32 = 202;
pub(crate) const FUTEX_WAKE: i32 = 1;
pub(crate) const FUTEX_WAIT_BITSET: i32 = 9;
pub(crate) const ANY_BIT: i32 = -1;
/// Number of waiters to wake: only the engine waits there.
pub(crate) const ONE: i32 = 1;
pub(crate) const EINTR: i32 = 4;
pub(crate) const EAGAIN: i32 = 11;
const ETIMEDOUT: i32 = 110;
/// Value of `r_state` while a library is being unmapped. The value is 0 if the loader neither maps nor unmaps.
const RT_DELETE: i32 = 2;

impl Writer<'_> {
    /// Emits the routine, which is valid only if the address of `r_state` is known. Otherwise `check_snippet` refuses every snippet that
    /// needs the routine.
    pub(crate) fn await_engine(&mut self) -> Result<(), Assembly> {
        let word = |at: u32| u64::from(self.env.data.displacement(at));
        let address = |at: u32| self.env.data.displacement(at).cast_signed();
        let (listening, loads) = (word(header::LISTENING), word(header::LOADS));
        let (answered, before) = (word(header::ANSWERED), word(header::LOADER_STATE));
        let renewed = word(header::RENEWED);
        let (loads_at, answered_at) = (address(header::LOADS), address(header::ANSWERED));
        let alive = u64::from(self.env.data.alive());
        let state = self.env.loader.map_or(0, |at| at.0);
        let [mut consistent, mut begin, mut wait, mut gone, mut over, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        let keep = [rcx, rdx, rsi, rdi, r11];
        self.save()?;
        for r in keep {
            self.a.push(r)?;
        }
        self.a.mov(rcx, state)?;
        self.a.mov(ecx, dword_ptr(rcx))?;
        self.a.test(ecx, ecx)?;
        self.a.je(consistent)?;
        self.a.mov(dword_ptr(before), ecx)?;
        self.a.jmp(done)?;

        self.a.set_label(&mut consistent)?;
        self.a.cmp(dword_ptr(alive), 0)?;
        self.a.je(done)?;
        self.a.mov(r8d, 1)?;
        self.a.lock().xadd(dword_ptr(loads), r8d)?;
        self.a.inc(r8d)?;
        // No other thread changes this word, because the loader holds a lock of its own from the beginning of its work to its end.
        self.a.mov(r9d, dword_ptr(before))?;
        self.a.mov(dword_ptr(before), 0)?;
        self.a.cmp(dword_ptr(listening), 0)?;
        self.a.je(done)?;
        self.a.mov(edi, loads_at)?;
        self.a.mov(esi, FUTEX_WAKE)?;
        self.a.mov(edx, ONE)?;
        self.a.mov(eax, FUTEX)?;
        self.a.syscall()?;
        self.a.cmp(r9d, RT_DELETE)?;
        self.a.je(done)?;

        self.a.set_label(&mut begin)?;
        self.a.mov(dword_ptr(renewed), 0)?;
        self.time_limit(LOADER_WAIT_NS)?;
        self.a.jne(gone)?;

        self.a.set_label(&mut wait)?;
        self.a.mov(edx, dword_ptr(answered))?;
        self.a.mov(ecx, edx)?;
        self.a.sub(ecx, r8d)?;
        self.a.jns(over)?;
        self.a.cmp(dword_ptr(listening), 0)?;
        self.a.je(over)?;
        self.a.mov(edi, answered_at)?;
        self.a.mov(esi, FUTEX_WAIT_BITSET)?;
        self.a.mov(r10, rsp)?;
        self.a.mov(r9d, ANY_BIT)?;
        self.a.mov(eax, FUTEX)?;
        self.a.syscall()?;
        self.a.test(eax, eax)?;
        self.a.je(wait)?;
        self.a.cmp(eax, -EAGAIN)?;
        self.a.je(wait)?;
        self.a.cmp(eax, -EINTR)?;
        self.a.je(wait)?;
        self.a.cmp(eax, -ETIMEDOUT)?;
        self.a.jne(gone)?;
        self.a.cmp(dword_ptr(renewed), 0)?;
        self.a.je(gone)?;
        self.a.pop(rcx)?;
        self.a.pop(rcx)?;
        self.a.jmp(begin)?;
        self.a.set_label(&mut gone)?;
        self.a.mov(dword_ptr(listening), 0)?;
        self.a.set_label(&mut over)?;
        self.a.pop(rcx)?;
        self.a.pop(rcx)?;
        self.a.set_label(&mut done)?;
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.leave()
    }

    /// Pushes the time at which this number of nanoseconds, less than a second, will have passed: a struct timespec of CLOCK_MONOTONIC. The
    /// flags tell whether the clock was read (equal) or not. Overwrites rax, rcx, rsi, rdi and r11.
    pub(crate) fn time_limit(&mut self, ns: u32) -> Result<(), Assembly> {
        let mut whole = self.a.create_label();
        // Room for a timespec.
        self.a.push(rcx)?;
        self.a.push(rcx)?;
        self.a.mov(edi, CLOCK_MONOTONIC)?;
        self.a.mov(rsi, rsp)?;
        self.a.mov(eax, CLOCK_GETTIME)?;
        self.a.syscall()?;
        self.a.pop(rsi)?;
        self.a.pop(rdi)?;
        self.a.add(rdi, ns as i32)?;
        self.a.cmp(rdi, NS_PER_SECOND)?;
        self.a.jl(whole)?;
        self.a.sub(rdi, NS_PER_SECOND)?;
        self.a.inc(rsi)?;
        self.a.set_label(&mut whole)?;
        self.a.push(rdi)?;
        self.a.push(rsi)?;
        Ok(self.a.test(eax, eax)?)
    }
}
