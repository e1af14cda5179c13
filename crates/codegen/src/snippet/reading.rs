//! Reading and writing the program's memory. A snippet must never fault, so a plain load or store is used only for memory that stays
//! mapped as long as the process lives.
//!
//! All other memory is read by process_vm_readv(2) of the process on itself. If the memory is not mapped, the system call fails instead of
//! faulting, even if another thread unmaps it at that moment. A process needs no permission for its own memory (mm_access() in the
//! kernel). The counterpart process_vm_writev(2) writes to memory that the program itself may write to, and to no other.

use iced_x86::code_asm::al;
use iced_x86::code_asm::{
    ax, byte_ptr, cl, cx, dword_ptr, eax, ecx, edi, edx, qword_ptr, r8, r8d, r9, r9d, r10, r11, rax, rcx, rdi, rdx,
    rsi, rsp, word_ptr,
};
use ingraft_model::layout::header;
use ingraft_model::{Avma, Expr, IntegerWidth, Scalar, Snippet, ThreadIdentity};

use crate::code::environment::{Assembly, CodegenError, Environment};
use crate::code::routine::Routine;
use crate::snippet::event;
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// Kind of access to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryAccess {
    Read,
    Write,
}

impl MemoryAccess {
    /// System call number of process_vm_readv(2) or process_vm_writev(2).
    pub const fn number(self) -> i32 {
        match self {
            MemoryAccess::Read => 310,
            MemoryAccess::Write => 311,
        }
    }

    /// Offset of the word in the header that counts failed accesses.
    pub const fn failed(self) -> u32 {
        match self {
            MemoryAccess::Read => header::READS_FAILED,
            MemoryAccess::Write => header::WRITES_FAILED,
        }
    }
}

/// Offset in bytes from the stack pointer to the value to write, after the routine has saved its registers.
pub(crate) const VALUE: i32 = 64;
/// Mask for the length of an access in bytes. The mask covers every length that snippets use, and is less than the 16 bytes of room for
/// the answer.
pub(crate) const LENGTHS: i32 = 15;
/// Worst-case cost of one access, in system calls that read a clock: an access took 1.13 µs where such a call took 0.52 µs.
pub(crate) const SYSTEM_CALLS: u32 = 3;

/// Checks that the snippet can read and write all memory, events and other data that it uses in this environment.
pub(crate) fn check(env: &Environment, snippet: &Snippet) -> Result<(), CodegenError> {
    let mut result = Ok(());
    snippet.each_expr(&mut |e| match e {
        Expr::Load(at, scalar) if !env.readable.lasts(*at, scalar.width.bytes().into()) => {
            result = Err(CodegenError::Fleeting { at: at.0 });
        }
        Expr::Read(..) | Expr::Usage(_) if env.readable.process.is_none() => result = Err(CodegenError::NoReads),
        Expr::ThreadPointer if !matches!(env.identity, ThreadIdentity::FsOffset(_)) => {
            result = Err(CodegenError::NoThreadPointer);
        }
        Expr::Event(_) if !event::can_read(env) => result = Err(CodegenError::NoEvents),
        _ => {}
    });
    if (snippet.writes() || snippet.reads_texts()) && env.readable.process.is_none() {
        return Err(CodegenError::NoReads);
    }
    for (at, width) in snippet.stores() {
        if !env.readable.lasts(at, width.bytes().into()) {
            return Err(CodegenError::Fleeting { at: at.0 });
        }
    }
    result
}

impl Generator<'_> {
    /// Loads a value that stays mapped into rax.
    pub(crate) fn load(&mut self, at: Avma, scalar: Scalar) -> Result<(), Assembly> {
        match scalar.width {
            IntegerWidth::One => self.a.mov(al, byte_ptr(at.0))?,
            IntegerWidth::Two => self.a.mov(ax, word_ptr(at.0))?,
            IntegerWidth::Four => self.a.mov(eax, dword_ptr(at.0))?,
            IntegerWidth::Eight => self.a.mov(rax, qword_ptr(at.0))?,
        }
        match (scalar.width, scalar.signed) {
            (IntegerWidth::One, true) => self.a.movsx(rax, al)?,
            (IntegerWidth::One, false) => self.a.movzx(eax, al)?,
            (IntegerWidth::Two, true) => self.a.movsx(rax, ax)?,
            (IntegerWidth::Two, false) => self.a.movzx(eax, ax)?,
            (IntegerWidth::Four, true) => self.a.movsxd(rax, eax)?,
            (IntegerWidth::Four, false) | (IntegerWidth::Eight, _) => {}
        }
        Ok(())
    }

    /// Reads a value at any address into rax, or 0 if the address is not mapped; overwrites rcx and rdx.
    pub(crate) fn read(&mut self, address: &Expr, scalar: Scalar) -> Result<(), Assembly> {
        self.value(address)?;
        self.used = [true; 3];
        let mut answer = self.a.create_label();
        self.a.mov(rcx, rax)?;
        self.a.mov(edx, scalar.width.bytes())?;
        self.routine(Routine::Read, answer)?;
        self.place(&mut answer)?;
        match (scalar.width, scalar.signed) {
            (IntegerWidth::One, true) => self.a.movsx(rax, cl)?,
            (IntegerWidth::Two, true) => self.a.movsx(rax, cx)?,
            (IntegerWidth::Four, true) => self.a.movsxd(rax, ecx)?,
            _ => self.a.mov(rax, rcx)?,
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// Emits [`Routine::Read`] or [`Routine::Write`]. The verifier compares the instructions from the mask of the length to the system
    /// call one by one.
    pub(crate) fn memory(&mut self, access: MemoryAccess) -> Result<(), Assembly> {
        let [mut parent, mut whole, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.save()?;
        // A fork child has another process id, and no engine reads its counters.
        self.a.cmp(dword_ptr(u64::from(self.env.data.alive())), 0)?;
        self.a.jne(parent)?;
        self.a.xor(ecx, ecx)?;
        self.a.jmp(done)?;
        self.a.set_label(&mut parent)?;
        let keep = [rdx, rsi, rdi, r11];
        for r in keep {
            self.a.push(r)?;
        }
        self.a.and(edx, LENGTHS)?;
        // On the stack, from the top down: the buffer, the iovec structure for the buffer, and the iovec structure for the program's
        // memory.
        match access {
            MemoryAccess::Read => self.a.xor(r8d, r8d)?,
            MemoryAccess::Write => self.a.mov(r8, qword_ptr(rsp + VALUE))?,
        }
        self.a.push(r8)?;
        self.a.push(r8)?;
        self.a.mov(r9, rsp)?;
        self.a.push(rdx)?;
        self.a.push(r9)?;
        self.a.mov(rsi, rsp)?;
        self.a.push(rdx)?;
        self.a.push(rcx)?;
        self.a.mov(r10, rsp)?;
        // If the thread's id is known, it is used as the process id: it works even after the main thread has ended.
        match self.env.identity {
            ThreadIdentity::FsOffset(offset) => self.a.mov(edi, dword_ptr(u64::from(offset)).fs())?,
            ThreadIdentity::FsBase | ThreadIdentity::Locked => {
                self.a.mov(edi, self.env.readable.process.unwrap_or_default())?;
            }
        }
        self.a.mov(edx, 1)?;
        self.a.mov(r8d, 1)?;
        self.a.xor(r9d, r9d)?;
        self.a.mov(eax, access.number())?;
        self.a.syscall()?;
        for r in [rcx, rdx, r9, r9, rcx, r9] {
            self.a.pop(r)?;
        }
        self.a.cmp(rax, rdx)?;
        self.a.je(whole)?;
        self.a.lock().inc(dword_ptr(u64::from(self.env.data.displacement(access.failed()))))?;
        self.a.xor(ecx, ecx)?;
        self.a.set_label(&mut whole)?;
        for r in keep.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.a.set_label(&mut done)?;
        self.leave()
    }
}
