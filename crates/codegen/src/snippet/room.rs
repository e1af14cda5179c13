//! The wait for room in a thread's buffer: a thread that is about to append to a full buffer waits until the engine has emptied the buffers of all
//! threads.
//!
//! The engine counts how often it has emptied them ([`header::DRAINS`]), and wakes the threads that wait for the next time. A thread that has
//! waited in vain sets the number to 0, with which no thread waits, so a dead engine or one that is stopped costs each thread one delay at
//! most. The engine sets the number again when it next empties the buffers.
//!
//! The snippet compares the room once more after the wait. If a signal handler has interrupted an append, the engine cannot take the bytes
//! behind it, and the wait may have been in vain. The loss is then counted as without a wait.

use iced_x86::code_asm::{dword_ptr, eax, edi, edx, esi, r8d, r9d, r10, r11, rcx, rdi, rdx, rsi, rsp};
use ingraft_model::layout::{ROOM_WAIT_NS, header};

use crate::code::environment::Assembly;
use crate::snippet::loader::{ANY_BIT, EAGAIN, EINTR, FUTEX, FUTEX_WAIT_BITSET};
use crate::snippet::routines::Writer;

impl Writer<'_> {
    /// Emits [`crate::code::routine::Routine::Room`].
    pub(crate) fn await_room(&mut self) -> Result<(), Assembly> {
        let drains_at = self.env.data.displacement(header::DRAINS);
        let drains = dword_ptr(u64::from(drains_at));
        let alive = dword_ptr(u64::from(self.env.data.alive()));
        let [mut wait, mut vain, mut over, mut done] = std::array::from_fn(|_| self.a.create_label());
        let keep = [rcx, rdx, rsi, rdi, r11];
        self.save()?;
        for r in keep {
            self.a.push(r)?;
        }
        // In a fork child, nobody empties the buffers.
        self.a.cmp(alive, 0)?;
        self.a.je(done)?;
        self.a.mov(r8d, drains)?;
        self.a.test(r8d, r8d)?;
        self.a.je(done)?;
        self.time_limit(ROOM_WAIT_NS)?;
        self.a.jne(vain)?;

        self.a.set_label(&mut wait)?;
        self.a.mov(edx, drains)?;
        self.a.cmp(edx, r8d)?;
        self.a.jne(over)?;
        self.a.mov(edi, drains_at.cast_signed())?;
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
        self.a.set_label(&mut vain)?;
        // If the engine has just counted on, its number stays.
        self.a.mov(eax, r8d)?;
        self.a.xor(edx, edx)?;
        self.a.lock().cmpxchg(drains, edx)?;
        self.a.set_label(&mut over)?;
        self.a.pop(rcx)?;
        self.a.pop(rcx)?;
        self.a.set_label(&mut done)?;
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.leave()
    }
}
