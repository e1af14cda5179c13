//! Calls of functions of the program. The routine for these calls is one of two places that leave a return address of an arena on a stack;
//! the other one is in `wall`.
//!
//! The routine saves the whole processor state that a function may change, on the thread's own stack. There the state stays right even if
//! a signal handler calls again meanwhile, or the function switches to another stack or returns on another thread. The saved state needs
//! as much stack as a signal that arrives at this point. As everywhere in generated code, nothing is in use below the stack pointer.
//!
//! While the function runs, the thread's gs base leads every point into the slow path, which skips the snippets of the point. So the
//! function causes no further calls, and snippets do not count calls that only the measurement has caused. The header holds the number of
//! open calls; the arenas stay as long as it is not 0.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, dword_ptr, eax, ecx, edx, ptr, qword_ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax,
    rbp, rbx, rcx, rdi, rdx, rsi, rsp, word_ptr,
};
use ingraft_model::layout::{CALL_SP, CALLING, header};
use ingraft_model::{Called, Expr, ProgramCall};

use crate::code::environment::Assembly;
use crate::code::listing::Listing;
use crate::code::routine::Routine;
use crate::snippet::generator::{Generator, ShardAccess};
use crate::snippet::words::{WORDS, words_of};

/// Registers that the routine saves on the stack; rcx is not among them, because it returns the result.
const KEPT: [AsmRegister64; 14] = [rax, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
/// Offset in bytes of the header in an XSAVE area, and number of its 8-byte words. The words must be 0 (SDM vol. 1, 13.4.2).
const XSAVE_HEADER: u32 = 512;
const XSAVE_HEADER_WORDS: u32 = 8;
/// Alignment in bytes that XSAVE requires of its area.
const ALIGNMENT: u32 = 64;

impl Generator<'_> {
    /// Calls a function; leaves its result in rax.
    pub(crate) fn call_function(&mut self, call: &ProgramCall) -> Result<(), Assembly> {
        self.used[0] = true;
        self.used[1] = true;
        let before = self.depth;
        // Texts stay on the stack until the call has returned.
        let mut texts = [0; ProgramCall::ARGS_MAX];
        for (arg, text) in call.args.iter().zip(&mut texts) {
            if let Expr::Text(arg) = arg {
                for word in words_of(arg).into_iter().rev() {
                    self.value(&Expr::Const(word))?;
                    self.push(rax)?;
                }
                *text = self.depth;
            }
        }
        let texts_end = self.depth;
        for n in (0..ProgramCall::ARGS_MAX).rev() {
            match (call.args.get(n), texts.get(n)) {
                (Some(Expr::Text(_)), Some(text)) => self.a.lea(rax, qword_ptr(rsp + 8 * (self.depth - text)))?,
                (Some(Expr::Address(v)), _) => {
                    let slot = self.env.data.counter(self.index(*v)?);
                    self.a.rdgsbase(rax)?;
                    self.a.lea(rax, qword_ptr(rax + slot))?;
                }
                (arg, _) => self.value(arg.unwrap_or(&Expr::Const(0)))?,
            }
            self.push(rax)?;
        }
        if let Called::At(at) = call.callee {
            self.a.mov(rax, at.0)?;
        }
        self.push(rax)?;
        let mut behind = self.a.create_label();
        self.routine(Routine::Call, behind)?;
        self.place(&mut behind)?;
        self.depth -= WORDS;
        for _ in before..texts_end {
            self.pop(rax)?;
        }
        Ok(self.a.mov(rax, rcx)?)
    }

    /// Emits the code of a snippet with calls for a thread without a shard: only a count of missed calls. Without a shard, nothing would
    /// keep the called function from running the snippet again.
    pub(crate) fn missed_calls(&mut self) -> Result<(), Assembly> {
        debug_assert_eq!(self.access, ShardAccess::Shared);
        let missed = u64::from(self.env.data.displacement(header::CALLS_MISSED));
        Ok(self.a.lock().inc(dword_ptr(missed))?)
    }
}

impl Listing<'_> {
    /// Emits the routine. On entry, rax holds the resume address, and the words are on the stack; on return, rcx holds the result. Nothing
    /// else changes except by the function itself. In a fork child the routine makes no call, because no engine reads the child's values.
    pub(crate) fn call(&mut self) -> Result<(), Assembly> {
        let Some(vectors) = self.holes.vectors else { return Err(Assembly("no state to keep".to_owned())) };
        let [mut child, mut forked] = std::array::from_fn(|_| self.a.create_label());
        let (alive, open) = (dword_ptr(u64::from(self.holes.alive)), dword_ptr(self.place(header::CALLS_OPEN)));
        let size = vectors.bytes.next_multiple_of(ALIGNMENT);
        let components = |a: &mut CodeAssembler| {
            a.mov(eax, vectors.components as u32)?;
            a.mov(edx, (vectors.components >> 32) as u32)
        };

        self.a.cmp(alive, 0)?;
        self.a.je(child)?;
        self.a.pushfq()?;
        self.a.cld()?;
        for r in KEPT {
            self.a.push(r)?;
        }
        self.a.mov(rbp, rsp)?;
        self.a.sub(rsp, (size + ALIGNMENT) as i32)?;
        self.a.and(rsp, -(ALIGNMENT as i32))?;
        self.a.mov(qword_ptr(rsp + size), rbp)?;
        self.a.xor(eax, eax)?;
        for n in 0..XSAVE_HEADER_WORDS {
            self.a.mov(qword_ptr(rsp + (XSAVE_HEADER + 8 * n)), rax)?;
        }
        components(&mut self.a)?;
        self.a.xsave64(ptr(rsp))?;
        // A function expects an empty x87 stack, and the control word of its thread.
        self.a.fninit()?;
        self.a.fldcw(word_ptr(rsp))?;

        self.a.lock().inc(open)?;
        self.a.mov(self.own(CALL_SP), rsp)?;
        self.a.rdgsbase(rax)?;
        self.a.add(rax, CALLING as i32)?;
        self.a.wrgsbase(rax)?;
        let word = |n: i32| qword_ptr(rbp + 8 * (KEPT.len() as i32 + 1 + n));
        for (n, r) in (0..).zip([rbx, rdi, rsi, rdx, rcx, r8, r9]) {
            self.a.mov(r, word(n))?;
        }
        // A variadic function finds in al the number of vector registers with arguments: none.
        self.a.xor(eax, eax)?;
        self.a.call(rbx)?;
        self.a.mov(rcx, rax)?;
        self.a.rdgsbase(rax)?;
        self.a.and(rax, (self.holes.stride() as i32).wrapping_neg())?;
        self.a.wrgsbase(rax)?;
        // If the function has forked, this may be the child, which must not decrement the count of open calls.
        self.a.cmp(alive, 0)?;
        self.a.je(forked)?;
        self.a.lock().dec(open)?;
        self.a.set_label(&mut forked)?;

        components(&mut self.a)?;
        self.a.xrstor64(ptr(rsp))?;
        self.a.mov(rsp, qword_ptr(rsp + size))?;
        for r in KEPT.into_iter().rev() {
            self.a.pop(r)?;
        }
        self.a.popfq()?;
        self.a.lea(rsp, qword_ptr(rsp + 8 * WORDS))?;
        self.a.jmp(rax)?;
        self.a.set_label(&mut child)?;
        self.a.xor(ecx, ecx)?;
        self.a.lea(rsp, qword_ptr(rsp + 8 * WORDS))?;
        Ok(self.a.jmp(rax)?)
    }
}
