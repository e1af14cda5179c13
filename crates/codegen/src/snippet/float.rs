//! Floating-point numbers of the program, of which code makes integers.

use iced_x86::code_asm::{
    AsmRegisterXmm, cl, eax, ecx, edx, rax, rcx, rdx, xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7,
};
use ingraft_model::{Float, FloatFormat};

use crate::code::environment::Assembly;
use crate::snippet::generator::Generator;

/// Where arguments are.
const VECTORS: [AsmRegisterXmm; Float::ARGS_MAX as usize] = [xmm0, xmm1, xmm2, xmm3, xmm4, xmm5, xmm6, xmm7];
/// The largest exponent of a number that fits.
const EXPONENT_MAX: u32 = 62;

impl Generator<'_> {
    /// A floating-point number as it is written, in rax.
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

    /// The floating-point number that is written in rax, truncated. By integers alone, as an instruction that converts would leave notes in the
    /// thread's control word, or trap.
    pub(crate) fn truncate(&mut self, format: FloatFormat) -> Result<(), Assembly> {
        self.used = [true; 3];
        let [mut none, mut positive, mut done] = std::array::from_fn(|_| self.a.create_label());
        let (fraction, bias) = (format.fraction_bits(), format.bias());
        self.a.mov(rcx, rax)?;
        self.a.mov(rdx, rax)?;
        self.a.shr(rcx, fraction)?;
        self.a.and(ecx, (2 * bias + 1) as i32)?;
        self.a.sub(ecx, bias as i32)?;
        // also what is less than 1, whose exponent is negative
        self.a.cmp(ecx, EXPONENT_MAX as i32)?;
        self.a.ja(none)?;
        // the fraction below the bit that is not written, which is the highest one
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
