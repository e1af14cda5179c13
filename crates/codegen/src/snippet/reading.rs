//! Reading the memory of the program, and setting it. A snippet must never fault, so only what stays mapped as long as the process lives is loaded as it is.
//! Everything else is read by process_vm_readv(2) of the process on itself, which answers for memory that is not there instead of faulting, also
//! when another thread unmaps it at that moment; and of its own memory a process needs nobody's leave (mm_access() in the kernel). Its counterpart
//! process_vm_writev(2) writes what the program itself may write, and nothing else.

use iced_x86::code_asm::al;
use iced_x86::code_asm::{
    ax, byte_ptr, cl, cx, dword_ptr, eax, ecx, edi, edx, qword_ptr, r8, r8d, r9, r9d, r10, r11, rax, rcx, rdi, rdx,
    rsi, rsp, word_ptr,
};
use ingraft_model::layout::header;
use ingraft_model::{Avma, Expr, Scalar, Snippet, ThreadIdentity, Width};

use crate::code::environment::{Assembly, CodegenError, Environment};
use crate::code::routine::Routine;
use crate::snippet::event;
use crate::snippet::generator::Generator;
use crate::snippet::routines::Writer;

/// What is done with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

impl Access {
    /// process_vm_readv(2), process_vm_writev(2).
    pub const fn number(self) -> i32 {
        match self {
            Access::Read => 310,
            Access::Write => 311,
        }
    }

    /// The word of the header that counts what was not possible.
    pub const fn failed(self) -> u32 {
        match self {
            Access::Read => header::READS_FAILED,
            Access::Write => header::WRITES_FAILED,
        }
    }
}

/// Where the value to write lies when it is needed: above what the routine has saved.
pub(crate) const VALUE: i32 = 64;
/// What covers every length that is asked for, and is less than the room for the answer.
pub(crate) const LENGTHS: i32 = 15;
/// How many calls that read a clock one of these costs at worst: 1.13 µs where such a call took 0.52.
pub(crate) const SYSTEM_CALLS: u32 = 3;

/// Everything that the snippet reads can be read.
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
    if snippet.writes() && env.readable.process.is_none() {
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
    /// What lies at an address that stays mapped, in rax.
    pub(crate) fn load(&mut self, at: Avma, scalar: Scalar) -> Result<(), Assembly> {
        match scalar.width {
            Width::One => self.a.mov(al, byte_ptr(at.0))?,
            Width::Two => self.a.mov(ax, word_ptr(at.0))?,
            Width::Four => self.a.mov(eax, dword_ptr(at.0))?,
            Width::Eight => self.a.mov(rax, qword_ptr(at.0))?,
        }
        match (scalar.width, scalar.signed) {
            (Width::One, true) => self.a.movsx(rax, al)?,
            (Width::One, false) => self.a.movzx(eax, al)?,
            (Width::Two, true) => self.a.movsx(rax, ax)?,
            (Width::Two, false) => self.a.movzx(eax, ax)?,
            (Width::Four, true) => self.a.movsxd(rax, eax)?,
            (Width::Four, false) | (Width::Eight, _) => {}
        }
        Ok(())
    }

    /// What lies at any address, in rax; 0 if nothing does. rcx and rdx are overwritten.
    pub(crate) fn read(&mut self, address: &Expr, scalar: Scalar) -> Result<(), Assembly> {
        self.value(address)?;
        self.used = [true; 3];
        let mut answer = self.a.create_label();
        self.a.mov(rcx, rax)?;
        self.a.mov(edx, scalar.width.bytes())?;
        self.routine(Routine::Read, answer)?;
        self.place(&mut answer)?;
        match (scalar.width, scalar.signed) {
            (Width::One, true) => self.a.movsx(rax, cl)?,
            (Width::Two, true) => self.a.movsx(rax, cx)?,
            (Width::Four, true) => self.a.movsxd(rax, ecx)?,
            _ => self.a.mov(rax, rcx)?,
        }
        Ok(())
    }
}

impl Writer<'_> {
    /// See [`Routine::Read`] and [`Routine::Write`]. What lies between the room for the answer, or what is written, and the call is compared by the
    /// verifier, instruction by instruction.
    pub(crate) fn memory(&mut self, access: Access) -> Result<(), Assembly> {
        let [mut parent, mut whole, mut done] = std::array::from_fn(|_| self.a.create_label());
        self.save()?;
        // a fork child has another number, and nobody reads what it counts
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
        // room for the answer or what is written, then where that is, then where it comes from or goes (struct iovec)
        match access {
            Access::Read => self.a.xor(r8d, r8d)?,
            Access::Write => self.a.mov(r8, qword_ptr(rsp + VALUE))?,
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
        // where threads know their numbers, their own: it also works when the main thread has ended by itself
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
