//! The few instructions of [`crate::snippet::inline`], as bytes. Each has one form, so that the code of many points takes little time.

use ingraft_model::Gpr;

/// Operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlineOperand {
    /// A word of the thread's shard, by its displacement.
    Own(u32),
    /// A word of the thread's shard, by a register and a displacement.
    OwnFrom(Gpr, u32),
    /// A word of the thread's shard, by 8 times a register and a displacement.
    OwnTimes8(Gpr, u32),
}

/// OperandWidth of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperandWidth {
    /// 32 bits. In a register, the upper half becomes 0.
    Half,
    /// 64 bits.
    Whole,
}

/// BranchCondition of a branch, as its number in an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BranchCondition {
    AboveOrEqual = 3,
    Equal = 4,
    NotEqual = 5,
    BelowOrEqual = 6,
    Above = 7,
}

/// Instructions one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Encoder {
    pub bytes: Vec<u8>,
    /// Number of bytes of the first instruction.
    pub first: usize,
}

impl Encoder {
    fn put(&mut self, instruction: &[u8]) {
        if self.bytes.is_empty() {
            self.first = instruction.len();
        }
        self.bytes.extend_from_slice(instruction);
    }

    /// Adds an instruction with a memory operand; `register` is its other operand, or the extension of its opcode.
    fn at(&mut self, width: OperandWidth, opcode: u8, register: u8, memory: InlineOperand, immediate: &[u8]) {
        let (address, rex, displacement): (&[u8], u8, u32) = match memory {
            InlineOperand::Own(displacement) => (&[0x04, 0x25], 0, displacement),
            InlineOperand::OwnFrom(base, displacement) => (&[0x80 | base.0 & 7], base.0 >> 3, displacement),
            InlineOperand::OwnTimes8(index, displacement) => {
                (&[0x04, 0xc5 | (index.0 & 7) << 3], (index.0 >> 3) << 1, displacement)
            }
        };
        let rex = 0x40 | u8::from(width == OperandWidth::Whole) << 3 | (register >> 3) << 2 | rex;
        let mut bytes = Vec::with_capacity(16);
        bytes.push(0x65);
        if rex != 0x40 {
            bytes.push(rex);
        }
        bytes.push(opcode);
        bytes.extend_from_slice(address);
        if let Some(modrm) = bytes.len().checked_sub(address.len()).and_then(|at| bytes.get_mut(at)) {
            *modrm |= (register & 7) << 3;
        }
        bytes.extend_from_slice(&displacement.to_le_bytes());
        bytes.extend_from_slice(immediate);
        self.put(&bytes);
    }

    /// Adds an instruction whose operand is a register; `other` is its other operand, or the extension of its opcode.
    fn on(&mut self, width: OperandWidth, opcode: &[u8], other: u8, r: Gpr, immediate: &[u8]) {
        let rex = 0x40 | u8::from(width == OperandWidth::Whole) << 3 | (other >> 3) << 2 | r.0 >> 3;
        let mut bytes = Vec::with_capacity(16);
        if rex != 0x40 {
            bytes.push(rex);
        }
        bytes.extend_from_slice(opcode);
        bytes.push(0xc0 | (other & 7) << 3 | r.0 & 7);
        bytes.extend_from_slice(immediate);
        self.put(&bytes);
    }

    pub fn load(&mut self, to: Gpr, from: InlineOperand) {
        self.at(OperandWidth::Whole, 0x8b, to.0, from, &[]);
    }

    pub fn store(&mut self, to: InlineOperand, from: Gpr) {
        self.at(OperandWidth::Whole, 0x89, from.0, to, &[]);
    }

    /// Stores a number, extended with its sign.
    pub fn store_number(&mut self, width: OperandWidth, to: InlineOperand, number: i32) {
        self.at(width, 0xc7, 0, to, &number.to_le_bytes());
    }

    pub fn increment(&mut self, what: InlineOperand) {
        self.at(OperandWidth::Whole, 0xff, 0, what, &[]);
    }

    pub fn add_to(&mut self, what: InlineOperand, number: i32) {
        self.at(OperandWidth::Whole, 0x81, 0, what, &number.to_le_bytes());
    }

    pub fn add_small(&mut self, what: InlineOperand, number: i8) {
        self.at(OperandWidth::Whole, 0x83, 0, what, &number.to_le_bytes());
    }

    /// Sets bits in the lower half of a word.
    pub fn or_half(&mut self, what: InlineOperand, bits: i32) {
        self.at(OperandWidth::Half, 0x81, 1, what, &bits.to_le_bytes());
    }

    /// Compares bits in the lower half of a word with 0.
    pub fn test_half(&mut self, what: InlineOperand, bits: i32) {
        self.at(OperandWidth::Half, 0xf7, 0, what, &bits.to_le_bytes());
    }

    /// Clears bits in the lower half of a word, but for those of a mask.
    pub fn and_half_at(&mut self, what: InlineOperand, mask: i32) {
        self.at(OperandWidth::Half, 0x81, 4, what, &mask.to_le_bytes());
    }

    /// Compares memory with a register.
    pub fn compare(&mut self, what: InlineOperand, with: Gpr) {
        self.at(OperandWidth::Whole, 0x39, with.0, what, &[]);
    }

    /// Compares memory with a number.
    pub fn compare_number(&mut self, width: OperandWidth, what: InlineOperand, with: i32) {
        self.at(width, 0x81, 7, what, &with.to_le_bytes());
    }

    /// Compares a register with a number.
    pub fn compare_register(&mut self, width: OperandWidth, what: Gpr, with: i32) {
        self.on(width, &[0x81], 7, what, &with.to_le_bytes());
    }

    pub fn test(&mut self, what: Gpr) {
        self.on(OperandWidth::Whole, &[0x85], what.0, what, &[]);
    }

    /// Sets a register to a number.
    pub fn load_number(&mut self, to: Gpr, number: i64) {
        let mut bytes = vec![0x48 | to.0 >> 3, 0xb8 | to.0 & 7];
        bytes.extend_from_slice(&number.to_le_bytes());
        self.put(&bytes);
    }

    pub fn add_number(&mut self, to: Gpr, number: i32) {
        self.on(OperandWidth::Whole, &[0x81], 0, to, &number.to_le_bytes());
    }

    /// Adds a small number to the lower half of a register.
    pub fn add_small_half(&mut self, to: Gpr, number: i8) {
        self.on(OperandWidth::Half, &[0x83], 0, to, &number.to_le_bytes());
    }

    /// Masks the lower half of a register.
    pub fn and_half(&mut self, to: Gpr, mask: i32) {
        self.on(OperandWidth::Half, &[0x81], 4, to, &mask.to_le_bytes());
    }

    pub fn or(&mut self, to: Gpr, with: Gpr) {
        self.on(OperandWidth::Whole, &[0x09], with.0, to, &[]);
    }

    pub fn xor(&mut self, to: Gpr, with: Gpr) {
        self.on(OperandWidth::Whole, &[0x31], with.0, to, &[]);
    }

    pub fn multiply(&mut self, to: Gpr, with: Gpr) {
        self.on(OperandWidth::Whole, &[0x0f, 0xaf], to.0, with, &[]);
    }

    pub fn shift_left(&mut self, to: Gpr, by: u8) {
        self.on(OperandWidth::Whole, &[0xc1], 4, to, &[by]);
    }

    pub fn shift_right(&mut self, to: Gpr, by: u8) {
        self.on(OperandWidth::Whole, &[0xc1], 5, to, &[by]);
    }

    /// Adds `lea r32, [base + number]`.
    pub fn lea_half(&mut self, to: Gpr, base: Gpr, number: i32) {
        let rex = 0x40 | (to.0 >> 3) << 2 | base.0 >> 3;
        let mut bytes = Vec::with_capacity(8);
        if rex != 0x40 {
            bytes.push(rex);
        }
        bytes.extend_from_slice(&[0x8d, 0x80 | (to.0 & 7) << 3 | base.0 & 7]);
        bytes.extend_from_slice(&number.to_le_bytes());
        self.put(&bytes);
    }

    /// Loads a word of the stack, so many bytes above the stack pointer.
    pub fn load_stack(&mut self, to: Gpr, above: i32) {
        self.stack(0x8b, to, above);
    }

    /// Sets a register to the address so many bytes above the stack pointer.
    pub fn lea_stack(&mut self, to: Gpr, above: i32) {
        self.stack(0x8d, to, above);
    }

    fn stack(&mut self, opcode: u8, to: Gpr, above: i32) {
        let [a, b, c, d] = above.to_le_bytes();
        self.put(&[0x48 | (to.0 >> 3) << 2, opcode, 0x84 | (to.0 & 7) << 3, 0x24, a, b, c, d]);
    }

    /// Lowers the stack pointer without a change of flags.
    pub fn lower_stack(&mut self, by: i32) {
        self.stack(0x8d, Gpr(4), -by);
    }

    /// Raises the stack pointer without a change of flags.
    pub fn raise_stack(&mut self, by: i32) {
        self.stack(0x8d, Gpr(4), by);
    }

    pub fn push(&mut self, r: Gpr) {
        self.push_or_pop(0x50, r);
    }

    pub fn pop(&mut self, r: Gpr) {
        self.push_or_pop(0x58, r);
    }

    /// Loads the arithmetic flags into ax.
    pub fn load_flags(&mut self) {
        self.put(&[0x9f]);
        self.put(&[0x0f, 0x90, 0xc0]);
    }

    /// Sets the arithmetic flags to those that [`Encoder::load_flags`] has loaded into ax.
    pub fn restore_flags(&mut self) {
        self.put(&[0x04, 0x7f]);
        self.put(&[0x9e]);
    }

    fn push_or_pop(&mut self, opcode: u8, r: Gpr) {
        match r.0 < 8 {
            true => self.put(&[opcode | r.0]),
            false => self.put(&[0x41, opcode | r.0 & 7]),
        }
    }

    /// Adds a jump. Returns the offset of its displacement, which is written later.
    pub fn jump(&mut self) -> u32 {
        self.put(&[0xe9, 0, 0, 0, 0]);
        self.bytes.len() as u32 - 4
    }

    /// Adds a conditional jump. Returns the offset of its displacement, which is written later.
    pub fn branch(&mut self, condition: BranchCondition) -> u32 {
        self.put(&[0x0f, 0x80 | condition as u8, 0, 0, 0, 0]);
        self.bytes.len() as u32 - 4
    }
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    use super::*;

    fn text(write: impl FnOnce(&mut Encoder)) -> Vec<String> {
        let mut code = Encoder::default();
        write(&mut code);
        let mut formatter = IntelFormatter::new();
        let shown = |i| {
            let mut text = String::new();
            formatter.format(&i, &mut text);
            text
        };
        let all = Decoder::with_ip(64, &code.bytes, 0, DecoderOptions::NONE).into_iter();
        let all: Vec<_> = all.collect();
        assert_eq!(all[0].len(), code.first);
        all.into_iter().map(shown).collect()
    }

    #[test]
    fn the_instructions_are_those_that_were_meant() {
        let (a, b) = (Gpr(0), Gpr(11));
        let operands =
            [InlineOperand::Own(0x1000), InlineOperand::OwnFrom(a, 0x1000), InlineOperand::OwnFrom(b, 0x1000)];
        let scaled = [InlineOperand::OwnTimes8(Gpr(1), 0x1000), InlineOperand::OwnTimes8(b, 0x1000)];
        let all = operands.into_iter().chain(scaled);
        let shown = text(|code| {
            all.for_each(|at| code.load(Gpr(9), at));
            code.store(operands[2], Gpr(4));
            code.store_number(OperandWidth::Half, operands[1], 7);
            code.store_number(OperandWidth::Whole, operands[0], -1);
            code.increment(scaled[1]);
            code.add_to(operands[0], 1000);
            code.add_small(operands[0], -64);
            code.or_half(operands[2], 4);
            code.and_half_at(operands[2], !4);
            code.test_half(operands[1], 4);
            code.compare(operands[2], Gpr(4));
            code.compare_number(OperandWidth::Half, operands[1], 9);
        });
        assert_eq!(
            shown,
            [
                "mov r9,gs:[1000h]",
                "mov r9,gs:[rax+1000h]",
                "mov r9,gs:[r11+1000h]",
                "mov r9,gs:[rcx*8+1000h]",
                "mov r9,gs:[r11*8+1000h]",
                "mov gs:[r11+1000h],rsp",
                "mov dword ptr gs:[rax+1000h],7",
                "mov qword ptr gs:[1000h],0FFFFFFFFFFFFFFFFh",
                "inc qword ptr gs:[r11*8+1000h]",
                "add qword ptr gs:[1000h],3E8h",
                "add qword ptr gs:[1000h],0FFFFFFFFFFFFFFC0h",
                "or dword ptr gs:[r11+1000h],4",
                "and dword ptr gs:[r11+1000h],0FFFFFFFBh",
                "test dword ptr gs:[rax+1000h],4",
                "cmp gs:[r11+1000h],rsp",
                "cmp dword ptr gs:[rax+1000h],9",
            ]
        );
    }

    #[test]
    fn registers_and_the_stack_are_those_that_were_meant() {
        let (a, b) = (Gpr(0), Gpr(11));
        let shown = text(|code| {
            code.compare_register(OperandWidth::Whole, b, 5);
            code.compare_register(OperandWidth::Half, a, 5);
            code.test(b);
            code.load_number(b, 1 << 61);
            code.add_number(a, -2);
            code.add_small_half(b, 4);
            code.and_half(b, 1023);
            code.or(a, b);
            code.xor(b, a);
            code.multiply(a, b);
            code.shift_left(b, 20);
            code.shift_right(a, 17);
            code.lea_half(a, b, -64);
            code.load_stack(b, 16);
            code.lea_stack(a, 8);
            code.lower_stack(128);
            code.raise_stack(128);
            code.push(b);
            code.pop(Gpr(1));
            let field = code.branch(BranchCondition::BelowOrEqual);
            assert_eq!(field as usize, code.bytes.len() - 4);
        });
        assert_eq!(
            shown[..19],
            [
                "cmp r11,5",
                "cmp eax,5",
                "test r11,r11",
                "mov r11,2000000000000000h",
                "add rax,0FFFFFFFFFFFFFFFEh",
                "add r11d,4",
                "and r11d,3FFh",
                "or rax,r11",
                "xor r11,rax",
                "imul rax,r11",
                "shl r11,14h",
                "shr rax,11h",
                "lea eax,[r11-40h]",
                "mov r11,[rsp+10h]",
                "lea rax,[rsp+8]",
                "lea rsp,[rsp-80h]",
                "lea rsp,[rsp+80h]",
                "push r11",
                "pop rcx",
            ]
        );
        assert!(shown[19].starts_with("jbe "), "{}", shown[19]);
    }
}
