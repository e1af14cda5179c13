//! Texts in keys: what lies behind the end of a text is cleared, so that equal texts are equal words.

use iced_x86::code_asm::{byte_ptr, ecx, r8, r8d, r9, r9d, rcx, rdx, rsp};
use ingraft_model::table::TEXT_BYTES;

use crate::code::cost::Cost;
use crate::code::environment::Assembly;
use crate::code::listing::{Listing, SAVED};

/// Length of a text that ends at its first zero byte.
pub(crate) const AT_ZERO: i64 = i64::MIN;
/// Number of bytes in a word.
const WORD: u64 = 8;
/// Cost of the routine in the worst case: a comparison or a store, and a branch, for each byte.
pub(crate) const COST: Cost =
    Cost { slots: 4 * TEXT_BYTES + 24, jumps: TEXT_BYTES + 4, clocks: 0, vdso: 0, locked: 0, system_calls: 0 };

impl Listing<'_> {
    /// Emits [`crate::code::routine::Routine::Cut`].
    pub(crate) fn cut(&mut self) -> Result<(), Assembly> {
        let [mut ends_at_zero, mut empty, mut unreadable, mut next, mut whole, mut count, mut clear, mut done] =
            std::array::from_fn(|_| self.a.create_label());
        let byte = byte_ptr(rsp + r8 + WORD * SAVED.len() as u64);
        self.enter(&[])?;
        // r8 is the number of bytes that stay.
        self.a.test(rdx, rdx)?;
        self.a.js(ends_at_zero)?;
        self.a.je(empty)?;
        self.a.test(rcx, rcx)?;
        self.a.je(unreadable)?;
        self.a.mov(r8, rcx)?;
        self.a.cmp(rdx, rcx)?;
        self.a.ja(whole)?;
        self.a.mov(r8, rdx)?;
        self.a.jmp(count)?;

        self.a.set_label(&mut ends_at_zero)?;
        self.a.mov(r9, AT_ZERO)?;
        self.a.cmp(rdx, r9)?;
        self.a.jne(empty)?;
        self.a.test(rcx, rcx)?;
        self.a.je(unreadable)?;
        self.a.xor(r8d, r8d)?;
        self.a.set_label(&mut next)?;
        self.a.movzx(r9d, byte)?;
        self.a.test(r9d, r9d)?;
        self.a.je(count)?;
        self.a.inc(r8d)?;
        self.a.cmp(r8, rcx)?;
        self.a.jb(next)?;

        // No end was seen. If memory ends there, so does the text; else it is longer than what was read.
        self.a.set_label(&mut whole)?;
        self.a.cmp(r8d, TEXT_BYTES as i32)?;
        self.a.jne(count)?;
        self.a.mov(ecx, TEXT_BYTES + 2)?;
        self.a.jmp(done)?;

        self.a.set_label(&mut unreadable)?;
        self.a.xor(r8d, r8d)?;
        self.a.xor(ecx, ecx)?;
        self.a.jmp(clear)?;
        self.a.set_label(&mut empty)?;
        self.a.xor(r8d, r8d)?;
        self.a.set_label(&mut count)?;
        self.a.mov(ecx, r8d)?;
        self.a.inc(ecx)?;
        self.a.set_label(&mut clear)?;
        self.a.cmp(r8d, TEXT_BYTES as i32)?;
        self.a.jae(done)?;
        self.a.mov(byte, 0)?;
        self.a.inc(r8d)?;
        self.a.jmp(clear)?;
        self.a.set_label(&mut done)?;
        self.exit(&[])
    }
}
