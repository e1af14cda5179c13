//! Calls of functions of the program: the only place where a return address of an arena is on a stack.
//!
//! The whole state of the processor that a function may change is kept on the thread's own stack, where it stays right whatever the function
//! does: another call of ours in a signal handler, a switch to another stack, a return on another thread. It takes what a signal
//! that arrives there would take. Below the stack pointer nothing is in use, as everywhere where code of ours runs.
//!
//! While the function runs, the thread's gs base leads every point into the slow path, which skips its snippets: they neither call again nor count
//! what only we have caused. How many calls are open is counted in the header; the arenas stay as long as any is.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, dword_ptr, eax, ecx, edx, ptr, qword_ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax,
    rbp, rbx, rcx, rdi, rdx, rsi, rsp, word_ptr,
};
use ingraft_model::layout::{CALL_SP, CALLING, header};
use ingraft_model::{Call, Called, Expr};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::{Access, Generator};
use crate::snippet::routines::Writer;

/// Words that a snippet pushes for a call: the arguments from the last to the first, then the function. The routine takes them away.
pub(crate) const WORDS: i32 = Call::ARGS_MAX as i32 + 1;
/// What is kept on the stack; rcx has the answer.
const KEPT: [AsmRegister64; 14] = [rax, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15];
/// Where the header of the area for XSAVE lies, and its words. They must be 0 (SDM vol. 1, 13.4.2).
const XSAVE_HEADER: u32 = 512;
const XSAVE_HEADER_WORDS: u32 = 8;
/// XSAVE wants its area at a multiple of this.
const ALIGNMENT: u32 = 64;

/// A text and the zero byte behind it, as words.
pub(crate) fn words_of(text: &str) -> Vec<i64> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize((text.len() / 8 + 1) * 8, 0);
    bytes.chunks_exact(8).filter_map(|word| Some(i64::from_le_bytes(*word.first_chunk()?))).collect()
}

impl Generator<'_> {
    /// Calls a function; what it returns is in rax.
    pub(crate) fn call_function(&mut self, call: &Call) -> Result<(), Assembly> {
        self.used[0] = true;
        self.used[1] = true;
        let before = self.depth;
        // texts lie on the stack as long as the call
        let mut texts = [0; Call::ARGS_MAX];
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
        for n in (0..Call::ARGS_MAX).rev() {
            match (call.args.get(n), texts.get(n)) {
                (Some(Expr::Text(_)), Some(text)) => self.a.lea(rax, qword_ptr(rsp + 8 * (self.depth - text)))?,
                (Some(Expr::Address(v)), _) => {
                    let slot = self.env.data.counter(self.index(*v));
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

    /// What is left of a snippet with calls where the thread has no shard, and so nothing that keeps it from calling again: a note.
    pub(crate) fn missed_calls(&mut self) -> Result<(), Assembly> {
        debug_assert_eq!(self.access, Access::Shared);
        let missed = u64::from(self.env.data.displacement(header::CALLS_MISSED));
        Ok(self.a.lock().inc(dword_ptr(missed))?)
    }
}

impl Writer<'_> {
    /// The routine. It is entered with the way back in rax and the words on the stack, leaves the result in rcx, and nothing else is changed
    /// but by the function itself. In a fork child, whose values are nobody's, it calls nothing.
    pub(crate) fn call(&mut self) -> Result<(), Assembly> {
        let Some(vectors) = self.env.vectors else { return Err(Assembly("no state to keep".to_owned())) };
        let data = &self.env.data;
        let [mut child, mut forked] = std::array::from_fn(|_| self.a.create_label());
        let alive = || dword_ptr(u64::from(data.alive()));
        let open = || dword_ptr(u64::from(data.displacement(header::CALLS_OPEN)));
        let size = vectors.bytes.next_multiple_of(ALIGNMENT);
        let components = |a: &mut CodeAssembler| {
            a.mov(eax, vectors.components as u32)?;
            a.mov(edx, (vectors.components >> 32) as u32)
        };

        self.a.cmp(alive(), 0)?;
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
        // a function finds no values in the x87 unit, and the modes of its thread
        self.a.fninit()?;
        self.a.fldcw(word_ptr(rsp))?;

        self.a.lock().inc(open())?;
        self.a.mov(qword_ptr(u64::from(data.displacement(CALL_SP))).gs(), rsp)?;
        self.a.rdgsbase(rax)?;
        self.a.add(rax, CALLING as i32)?;
        self.a.wrgsbase(rax)?;
        let word = |n: i32| qword_ptr(rbp + 8 * (KEPT.len() as i32 + 1 + n));
        for (n, r) in (0..).zip([rbx, rdi, rsi, rdx, rcx, r8, r9]) {
            self.a.mov(r, word(n))?;
        }
        // no argument is in a vector register, should it look
        self.a.xor(eax, eax)?;
        self.a.call(rbx)?;
        self.a.mov(rcx, rax)?;
        self.a.rdgsbase(rax)?;
        self.a.and(rax, (data.stride as i32).wrapping_neg())?;
        self.a.wrgsbase(rax)?;
        // the function may have forked
        self.a.cmp(alive(), 0)?;
        self.a.je(forked)?;
        self.a.lock().dec(open())?;
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
