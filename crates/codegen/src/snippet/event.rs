//! Hardware events, read by each thread itself with RDPMC (perf_event_open(2), linux/perf_event.h).
//!
//! At its first reading a thread opens a counter of its own and maps the counter's page over a page that its shard reserves for it. Then
//! it closes the descriptor, because the mapping keeps the counter open: the program can neither see nor close anything. The page says
//! which hardware counter has the event now, and what must be added to that counter. The counter is pinned: the kernel either counts all
//! the time, or says on the page that no hardware counter has the event. In the second case, and if the kernel has refused the counter,
//! the result is the previous reading, and the header counts the failure.

use iced_x86::code_asm::{
    AsmMemoryOperand, cl, dword_ptr, eax, ecx, edi, edx, esi, qword_ptr, r8, r8d, r9, r9d, r10, r10d, r11, r11d, rax,
    rcx, rdi, rdx, rsi, word_ptr,
};
use ingraft_model::layout::{EVENT_PAGES, EVENT_WORDS, EVENT_WORDS_BYTES, EVENTS_MAX, event, header};
use ingraft_model::machine::PAGE;
use ingraft_model::{ThreadIdentity, VariableId};

use crate::code::cost::Cost;
use crate::code::environment::{Assembly, Environment};
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};

/// System call numbers of perf_event_open(2), mmap(2) and close(2).
const PERF_EVENT_OPEN: u32 = 298;
const MMAP: u32 = 9;
const CLOSE: u32 = 3;
/// PERF_FLAG_FD_CLOEXEC; MAP_SHARED | MAP_FIXED; PROT_READ.
const CLOSE_ON_EXEC: u32 = 8;
const SHARED_FIXED: u32 = 0x11;
const READABLE: u32 = 1;
/// Offsets of fields of the page (struct perf_event_mmap_page): `lock`, which changes with each update; `index`, the hardware counter plus
/// 1, or 0; `offset`, the number to add; `capabilities`; and `pmc_width`, the width of the counter in bits.
const LOCK: u32 = 8;
const INDEX: u32 = 12;
const OFFSET: u32 = 16;
const CAPABILITIES: u32 = 40;
const WIDTH: u32 = 48;
/// Bit `cap_user_rdpmc` of the capabilities.
const MAY_READ: i32 = 4;
/// Number of attempts to read a page that does not change meanwhile. An update by the kernel takes longer than a reading.
const TRIES: u32 = 8;
/// Offset in bytes of the last reading in an event's words.
const LAST: u32 = 8;

/// Cost of a reading that is not a thread's first: the routine's instructions, and RDPMC, which takes about as long as a reading of the
/// clock.
pub(crate) const COST: Cost = Cost { slots: 80, jumps: 4, clocks: 1, vdso: 0, locked: 0, system_calls: 0 };

/// Whether threads can open counters of their own: the code must know the thread's id, and the program must be allowed to make system
/// calls.
pub(crate) fn can_read(env: &Environment) -> bool {
    matches!(env.identity, ThreadIdentity::FsOffset(_)) && env.readable.process.is_some()
}

impl Generator<'_> {
    /// Reads the event's count into rax; overwrites rcx and rdx.
    pub(crate) fn event(&mut self, v: VariableId) -> Result<(), Assembly> {
        if self.access == ShardAccess::Shared {
            let unread = self.env.data.displacement(header::EVENTS_UNREAD);
            self.a.lock().inc(dword_ptr(u64::from(unread)))?;
            return Ok(self.a.xor(eax, eax)?);
        }
        self.used = [true; 3];
        let mut answer = self.a.create_label();
        self.a.mov(edx, self.index(v)?)?;
        self.routine(Routine::Event, answer)?;
        self.place(&mut answer)?;
        Ok(self.a.mov(rax, rcx)?)
    }
}

impl Listing<'_> {
    /// Emits [`Routine::Event`].
    pub(crate) fn event(&mut self) -> Result<(), Assembly> {
        let [mut read, mut again, mut unread, mut whole, mut done] = std::array::from_fn(|_| self.a.create_label());
        let keep = [rdx, rsi, rdi, r11];
        self.enter(&keep)?;
        // r9 is the offset of the event's words, r10 the offset of its page.
        self.a.and(edx, EVENTS_MAX as i32 - 1)?;
        self.a.mov(r9d, edx)?;
        self.a.shl(r9d, EVENT_WORDS_BYTES.trailing_zeros())?;
        self.a.mov(r10d, edx)?;
        self.a.shl(r10d, PAGE.trailing_zeros())?;
        self.a.mov(eax, self.state())?;
        self.a.cmp(eax, event::OPEN as i32)?;
        self.a.je(read)?;
        self.a.test(eax, eax)?;
        self.a.jne(unread)?;
        self.open()?;
        self.a.test(rax, rax)?;
        self.a.jne(unread)?;
        self.a.mov(self.state(), event::OPEN)?;

        self.a.set_label(&mut read)?;
        self.a.mov(esi, TRIES)?;
        self.a.set_label(&mut again)?;
        self.a.mov(edi, self.page(LOCK))?;
        self.a.mov(eax, self.page(CAPABILITIES))?;
        self.a.test(eax, MAY_READ)?;
        self.a.je(unread)?;
        self.a.mov(ecx, self.page(INDEX))?;
        self.a.test(ecx, ecx)?;
        self.a.je(unread)?;
        self.a.mov(r8, self.own_from(r10, EVENT_PAGES + OFFSET))?;
        self.a.movzx(r11d, word_ptr(r10 + self.holes.at(EVENT_PAGES + WIDTH)).gs())?;
        self.a.dec(ecx)?;
        self.a.rdpmc()?;
        self.a.shl(rdx, 32)?;
        self.a.or(rax, rdx)?;
        // Sign-extend the counter from its width to 64 bits.
        self.a.mov(ecx, 64)?;
        self.a.sub(ecx, r11d)?;
        self.a.shl(rax, cl)?;
        self.a.sar(rax, cl)?;
        self.a.add(r8, rax)?;
        self.a.mov(rcx, r8)?;
        self.a.cmp(edi, self.page(LOCK))?;
        self.a.je(whole)?;
        self.a.dec(esi)?;
        self.a.jne(again)?;

        self.a.set_label(&mut unread)?;
        let count = dword_ptr(self.place(header::EVENTS_UNREAD));
        self.a.lock().inc(count)?;
        self.a.mov(rcx, self.own_from(r9, EVENT_WORDS + LAST))?;
        self.a.jmp(done)?;
        self.a.set_label(&mut whole)?;
        self.a.mov(self.own_from(r9, EVENT_WORDS + LAST), rcx)?;
        self.a.set_label(&mut done)?;
        self.exit(&keep)
    }

    /// Opens this thread's counter and maps its page. Leaves 0 in rax on success, and any other value on failure; keeps r9 and r10.
    fn open(&mut self) -> Result<(), Assembly> {
        let ThreadIdentity::FsOffset(tid) = self.holes.identity else {
            return Err(Assembly("threads have no numbers".to_owned()));
        };
        let mut none = self.a.create_label();
        // A signal handler that reads the event meanwhile finds no counter.
        self.a.mov(self.state(), event::REFUSED)?;
        self.a.mov(edi, r9d)?;
        self.a.shl(edi, (header::EVENT_BYTES / EVENT_WORDS_BYTES).trailing_zeros())?;
        self.a.add(edi, self.holes.at(header::EVENTS).cast_signed())?;
        // By the thread's id: a vfork child that runs this code opens the counter for the thread whose shard this is.
        self.a.mov(esi, dword_ptr(u64::from(tid)).fs())?;
        self.a.mov(rdx, -1i64)?;
        self.a.push(r10)?;
        self.a.mov(r10, rdx)?;
        self.a.mov(r8d, CLOSE_ON_EXEC)?;
        self.a.mov(eax, PERF_EVENT_OPEN)?;
        self.a.syscall()?;
        self.a.pop(r10)?;
        self.a.test(eax, eax)?;
        self.a.js(none)?;
        self.a.mov(r8d, eax)?;
        self.a.rdgsbase(rdi)?;
        self.a.lea(rdi, qword_ptr(rdi + r10 + self.holes.at(EVENT_PAGES)))?;
        self.a.mov(esi, PAGE as u32)?;
        self.a.mov(edx, READABLE)?;
        self.a.push(r9)?;
        self.a.push(r10)?;
        self.a.mov(r10d, SHARED_FIXED)?;
        self.a.xor(r9d, r9d)?;
        self.a.mov(eax, MMAP)?;
        self.a.syscall()?;
        self.a.pop(r10)?;
        self.a.pop(r9)?;
        self.a.sub(rax, rdi)?;
        self.a.push(rax)?;
        self.a.mov(edi, r8d)?;
        self.a.mov(eax, CLOSE)?;
        self.a.syscall()?;
        self.a.pop(rax)?;
        self.a.set_label(&mut none)?;
        Ok(self.a.zero_bytes()?)
    }

    /// Operand for a 4-byte field of the page.
    fn page(&self, field: u32) -> AsmMemoryOperand {
        dword_ptr(r10 + self.holes.at(EVENT_PAGES + field)).gs()
    }

    /// Operand for the state of this thread's counter.
    fn state(&self) -> AsmMemoryOperand {
        dword_ptr(r9 + self.holes.at(EVENT_WORDS)).gs()
    }
}
