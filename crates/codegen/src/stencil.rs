//! Code that differs only in which counters it uses is encoded once: a list of instructions that equals an earlier one but for addresses
//! and immediates of four or eight bytes is that one's bytes with these written over (copy-and-patch, Xu and Kjolstad, OOPSLA 2021).

use iced_x86::code_asm::{CodeAssembler, CodeAssemblerResult};
use iced_x86::{BlockEncoderOptions, ConstantOffsets, IcedError, Instruction, Register};

use crate::cost::Cost;

/// As many are kept: a metric has a few for each kind of point.
const KEPT: usize = 32;

/// What was encoded so far.
#[derive(Default)]
pub(crate) struct Stencils(Vec<Stencil>);

struct Stencil {
    instructions: Vec<Instruction>,
    result: CodeAssemblerResult,
    cost: Cost,
}

/// Instructions as bytes, for address 0.
pub(crate) struct Encoded<'a> {
    pub bytes: Vec<u8>,
    /// The dearest path through it.
    pub cost: Cost,
    /// Where labels lie that were set at the same places.
    pub labels: &'a CodeAssemblerResult,
}

impl Stencils {
    /// Encodes what was assembled.
    pub fn encode(&mut self, a: &mut CodeAssembler) -> Result<Encoded<'_>, IcedError> {
        let known = self.0.iter().enumerate().rev().find_map(|(n, s)| Some((n, s.with(a.instructions())?)));
        let (n, bytes) = match known {
            Some(known) => known,
            None => self.encode_anew(a)?,
        };
        let Stencil { result, cost, .. } = &self.0[n];
        Ok(Encoded { bytes, cost: *cost, labels: result })
    }

    fn encode_anew(&mut self, a: &mut CodeAssembler) -> Result<(usize, Vec<u8>), IcedError> {
        let options =
            BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS | BlockEncoderOptions::RETURN_CONSTANT_OFFSETS;
        let result = a.assemble_options(0, options)?;
        let bytes = result.inner.code_buffer.clone();
        if self.0.len() == KEPT {
            self.0.remove(0);
        }
        self.0.push(Stencil { instructions: a.instructions().to_vec(), result, cost: Cost::of(0, &bytes) });
        Ok((self.0.len() - 1, bytes))
    }
}

impl Stencil {
    /// The code of these instructions, if they differ from the stencil's only in what can be written over.
    fn with(&self, instructions: &[Instruction]) -> Option<Vec<u8>> {
        // labels are told by the addresses that instructions have
        let alike = |(new, old): (&Instruction, &Instruction)| new.code() == old.code() && new.ip() == old.ip();
        if instructions.len() != self.instructions.len() || !instructions.iter().zip(&self.instructions).all(alike) {
            return None;
        }
        let encoded = &self.result.inner;
        let mut bytes = encoded.code_buffer.clone();
        for (n, (new, old)) in instructions.iter().zip(&self.instructions).enumerate().filter(|(_, (a, b))| a != b) {
            let start = *encoded.new_instruction_offsets.get(n)? as usize;
            for (offset, value) in differences(new, old, encoded.constant_offsets.get(n)?)? {
                let field = bytes.get_mut(start + offset..)?;
                match value {
                    Value::Four(value) => *field.first_chunk_mut()? = value,
                    Value::Eight(value) => *field.first_chunk_mut()? = value,
                }
            }
        }
        Some(bytes)
    }
}

/// A field of an instruction.
enum Value {
    Four([u8; 4]),
    Eight([u8; 8]),
}

/// The fields in which an instruction differs from another one, with their offsets; none if it differs otherwise, or could be encoded
/// otherwise with these values.
fn differences(
    new: &Instruction,
    old: &Instruction,
    constants: &ConstantOffsets,
) -> Option<impl Iterator<Item = (usize, Value)> + use<>> {
    let mut same = *new;
    let (mut displacement, mut immediate) = (None, None);
    // without a base register a displacement has 32 bits, whatever its value
    let written = constants.displacement_size() == 4 && new.memory_base() == Register::None;
    if written && new.memory_displacement64() != old.memory_displacement64() {
        let value = i32::try_from(new.memory_displacement64().cast_signed()).ok()?;
        displacement = Some((constants.displacement_offset(), Value::Four(value.to_le_bytes())));
        same.set_memory_displacement64(old.memory_displacement64());
        same.set_memory_displ_size(old.memory_displ_size());
    }
    match constants.immediate_size() {
        4 if new.immediate32() != old.immediate32() => {
            immediate = Some((constants.immediate_offset(), Value::Four(new.immediate32().to_le_bytes())));
            same.set_immediate32(old.immediate32());
        }
        8 if new.immediate64() != old.immediate64() => {
            immediate = Some((constants.immediate_offset(), Value::Eight(new.immediate64().to_le_bytes())));
            same.set_immediate64(old.immediate64());
        }
        _ => {}
    }
    (same == *old).then(|| displacement.into_iter().chain(immediate))
}

#[cfg(test)]
mod tests {
    use iced_x86::code_asm::{dword_ptr, qword_ptr, rax, rcx};

    use super::*;

    fn code(counter: u64, small: i32, wide: i64, add: i32) -> CodeAssembler {
        let mut a = CodeAssembler::new(64).unwrap();
        let mut end = a.create_label();
        a.cmp(dword_ptr(counter).gs(), add).unwrap();
        a.je(end).unwrap();
        a.mov(rax, wide).unwrap();
        a.add(qword_ptr(counter + 8).gs(), rax).unwrap();
        a.mov(rcx, qword_ptr(rax + small)).unwrap();
        a.set_label(&mut end).unwrap();
        a.inc(qword_ptr(rax * 8 + (counter as i32)).gs()).unwrap();
        a
    }

    fn alone(mut a: CodeAssembler) -> Vec<u8> {
        a.assemble(0).unwrap()
    }

    #[test]
    fn what_is_written_over_is_what_would_be_encoded() {
        let mut stencils = Stencils::default();
        let values = [(0x10_0000, 8, 1 << 40, 300), (0x7fff_0000, 8, -(1 << 50), 100_000), (0x10, 8, 1 << 40, 300)];
        for (counter, small, wide, add) in values {
            let encoded = stencils.encode(&mut code(counter, small, wide, add)).unwrap();
            assert_eq!(encoded.bytes, alone(code(counter, small, wide, add)));
            assert_eq!(stencils.0.len(), 1, "{counter:x} {small} {wide} {add}");
        }
    }

    #[test]
    fn what_would_be_encoded_otherwise_is_encoded_anew() {
        let mut stencils = Stencils::default();
        // a short displacement, a short immediate, and a wide one that fits 32 bits
        let values =
            [(0x1000, 8, 1 << 40, 300), (0x1000, 800, 1 << 40, 300), (0x1000, 8, 1 << 40, 3), (0x1000, 8, 5, 300)];
        for (counter, small, wide, add) in values {
            let encoded = stencils.encode(&mut code(counter, small, wide, add)).unwrap();
            assert_eq!(encoded.bytes, alone(code(counter, small, wide, add)));
        }
    }

    #[test]
    fn only_so_many_are_kept() {
        let mut stencils = Stencils::default();
        for n in 0..100 {
            let mut a = CodeAssembler::new(64).unwrap();
            (0..n).for_each(|_| a.nop().unwrap());
            a.ret().unwrap();
            assert_eq!(stencils.encode(&mut a).unwrap().bytes.len(), n + 1);
        }
        assert_eq!(stencils.0.len(), KEPT);
    }
}
