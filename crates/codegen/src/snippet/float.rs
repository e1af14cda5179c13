//! Floating-point arguments of the program, converted to integers.

use iced_x86::code_asm::{
    AsmRegisterXmm, cl, eax, ecx, edx, rax, rcx, rdx, xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7,
};
use ingraft_model::{Float, FloatFormat};

use crate::code::environment::Assembly;
use crate::snippet::generator::Generator;

/// Registers of the first eight floating-point arguments.
const VECTORS: [AsmRegisterXmm; Float::ARGS_MAX as usize] = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7];
/// Largest exponent of a number that fits into an i64.
const EXPONENT_MAX: u32 = 62;

impl Generator<'_> {
    /// Loads the bits of a floating-point argument into rax.
    pub(crate) fn float(&mut self, float: Float) -> Result<(), Assembly> {
        let Some(vector) = VECTORS.get(usize::from(float.register)).copied() else {
            return Err(Assembly("no register".to_owned()));
        };
        match float.format {
            FloatFormat::Double => self.a.movq(rax, vector)?,
            FloatFormat::Single => self.a.movd(eax, vector)?,
        }
        Ok(())
    }

    /// Truncates the floating-point number whose bits are in rax to an integer. The code uses integer instructions only, because a
    /// converting instruction would set status flags in the thread's MXCSR register, or trap.
    pub(crate) fn truncate(&mut self, format: FloatFormat) -> Result<(), Assembly> {
        self.used = [true; 3];
        let [mut none, mut positive, mut done] = std::array::from_fn(|_| self.a.create_label());
        let (fraction, bias) = (format.fraction_bits(), format.bias());
        self.a.mov(rcx, rax)?;
        self.a.mov(rdx, rax)?;
        self.a.shr(rcx, fraction)?;
        self.a.and(ecx, (2 * bias + 1) as i32)?;
        self.a.sub(ecx, bias as i32)?;
        // This branch is also taken by numbers below 1, whose exponent is negative.
        self.a.cmp(ecx, EXPONENT_MAX as i32)?;
        self.a.ja(none)?;
        // The fraction goes below the highest bit, which stands for the implicit leading 1.
        self.a.shl(rax, 64 - fraction)?;
        self.a.shr(rax, 1)?;
        self.push(rdx)?;
        self.a.mov(rdx, 1u64 << 63)?;
        self.a.or(rax, rdx)?;
        self.pop(rdx)?;
        self.a.neg(ecx)?;
        self.a.add(ecx, 63)?;
        self.a.shr(rax, cl)?;
        match format {
            FloatFormat::Double => self.a.test(rdx, rdx)?,
            FloatFormat::Single => self.a.test(edx, edx)?,
        }
        self.a.jns(positive)?;
        self.a.neg(rax)?;
        self.place(&mut positive)?;
        self.a.jmp(done)?;
        self.place(&mut none)?;
        self.a.xor(eax, eax)?;
        self.place(&mut done)
    }
}
