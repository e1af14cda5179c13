//! Writing to variables of the program.

use iced_x86::code_asm::{al, ax, byte_ptr, dword_ptr, eax, edx, qword_ptr, rax, rcx, word_ptr};
use ingraft_model::{Avma, Expr, IntegerWidth};

use crate::code::environment::Assembly;
use crate::code::routine::Routine;
use crate::snippet::generator::Generator;

impl Generator<'_> {
    /// Sets an integer that stays mapped and writable. In a fork child, which has memory of its own, the code does nothing.
    pub(crate) fn store(&mut self, at: Avma, width: IntegerWidth, value: &Expr) -> Result<(), Assembly> {
        let mut child = self.a.create_label();
        self.value(value)?;
        self.a.cmp(dword_ptr(u64::from(self.env.data.alive())), 0)?;
        self.a.je(child)?;
        match width {
            IntegerWidth::One => self.a.mov(byte_ptr(at.0), al)?,
            IntegerWidth::Two => self.a.mov(word_ptr(at.0), ax)?,
            IntegerWidth::Four => self.a.mov(dword_ptr(at.0), eax)?,
            IntegerWidth::Eight => self.a.mov(qword_ptr(at.0), rax)?,
        }
        self.place(&mut child)
    }

    /// Sets an integer at any address. If the address cannot be written, the routine counts a failure.
    pub(crate) fn write(&mut self, address: &Expr, width: IntegerWidth, value: &Expr) -> Result<(), Assembly> {
        self.used = [true; 3];
        self.value(value)?;
        self.push(rax)?;
        self.value(address)?;
        let mut behind = self.a.create_label();
        self.a.mov(rcx, rax)?;
        self.a.mov(edx, width.bytes())?;
        self.routine(Routine::Write, behind)?;
        self.place(&mut behind)?;
        self.pop(rcx)
    }
}
