//! Interpreter for the instructions of fixed routines, with a memory that knows every access.

use std::collections::BTreeMap;
use std::ops::Range;

use iced_x86::{Code, ConditionCode, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

/// Carry, zero, sign, direction and overflow flag. No routine reads the others.
pub const CF: u64 = 1;
pub const ZF: u64 = 1 << 6;
pub const SF: u64 = 1 << 7;
pub const DF: u64 = 1 << 10;
pub const OF: u64 = 1 << 11;

/// Words by address, a multiple of 8. MemoryWords that are not there are 0.
pub type MemoryWords = BTreeMap<u64, u64>;

/// State of a thread, and memory.
#[derive(Clone, Debug)]
pub struct Machine {
    pub registers: [u64; 16],
    pub flags: u64,
    pub fs: u64,
    pub gs: u64,
    pub rip: u64,
    pub words: MemoryWords,
    /// Memory that exists. An access to any other memory fails the test.
    pub mapped: Vec<Range<u64>>,
    /// Address of the lowest byte that was written below the first stack pointer.
    pub lowest: u64,
    /// Word that another thread changes right before the next `cmpxchg` of it, and its new value.
    pub race: Option<(u64, u64)>,
    top: u64,
}

/// Numbers of registers.
pub const RAX: usize = 0;
pub const RCX: usize = 1;
pub const RDX: usize = 2;
pub const RBX: usize = 3;
pub const RSP: usize = 4;
pub const RSI: usize = 6;
pub const RDI: usize = 7;
pub const R8: usize = 8;
pub const R9: usize = 9;
pub const R10: usize = 10;
pub const R11: usize = 11;

/// Top of the stack at the beginning.
pub const STACK: u64 = 0x7000_0000;
const STACK_LEN: u64 = 0x4000;
/// Address of the routine under test.
pub const CODE: u64 = 0x40_0000;
/// Place at which a routine that was entered from a snippet returns.
pub const BACK: u64 = 0x50_0000;

impl Machine {
    /// A thread that is about to execute code. All registers have different values.
    pub fn new(code: &[u8]) -> Self {
        let mut registers = std::array::from_fn(|r| 0x0123_4567_89ab_cdefu64.wrapping_mul(2 * r as u64 + 3));
        registers[RSP] = STACK;
        registers[RAX] = BACK;
        let mut machine = Machine {
            registers,
            flags: 0x202,
            fs: 0,
            gs: 0,
            rip: CODE,
            words: MemoryWords::new(),
            mapped: Vec::new(),
            lowest: STACK,
            race: None,
            top: STACK,
        };
        machine.mapped.push(STACK - STACK_LEN..STACK + 0x1000);
        machine.load(CODE, code);
        machine
    }

    /// Stores code or data, and makes the memory exist.
    pub fn load(&mut self, at: u64, bytes: &[u8]) {
        self.mapped.push(at..at + bytes.len() as u64);
        for (at, byte) in (at..).zip(bytes) {
            self.write(at, 1, u64::from(*byte));
        }
    }

    pub fn read(&self, at: u64, bytes: usize) -> u64 {
        self.check(at, bytes);
        if bytes == 8 && at.is_multiple_of(8) {
            return self.words.get(&at).copied().unwrap_or_default();
        }
        (0..bytes as u64).rev().fold(0, |value, n| value << 8 | self.byte(at + n))
    }

    pub fn write(&mut self, at: u64, bytes: usize, value: u64) {
        self.check(at, bytes);
        if (self.top - STACK_LEN..self.top).contains(&at) {
            self.lowest = self.lowest.min(at);
        }
        if bytes == 8 && at.is_multiple_of(8) {
            self.words.insert(at, value);
            return;
        }
        for n in 0..bytes as u64 {
            let (place, shift) = ((at + n) & !7, 8 * ((at + n) & 7));
            let word = self.words.entry(place).or_default();
            *word = *word & !(0xff << shift) | (value >> (8 * n) & 0xff) << shift;
        }
    }

    fn byte(&self, at: u64) -> u64 {
        self.words.get(&(at & !7)).copied().unwrap_or_default() >> (8 * (at & 7)) & 0xff
    }

    fn check(&self, at: u64, bytes: usize) {
        let exists = self.mapped.iter().any(|range| range.contains(&at) && at + bytes as u64 <= range.end);
        assert!(exists, "{bytes} bytes at {at:#x} do not exist; rip {:#x}, {:x?}", self.rip, self.registers);
    }

    /// Words that differ from those of another machine: address, own value, the other's. The words below the first stack pointer belong to
    /// the routine and are left out.
    pub fn changes(&self, other: &Machine) -> Vec<(u64, u64, u64)> {
        let own = self.top - STACK_LEN..self.top;
        let places = self.words.keys().chain(other.words.keys()).filter(|at| !own.contains(at));
        let value = |m: &Machine, at: &u64| m.words.get(at).copied().unwrap_or_default();
        let mut all: Vec<_> = places.map(|at| (*at, value(self, at), value(other, at))).collect();
        all.retain(|(_, own, other)| own != other);
        all.dedup();
        all
    }

    /// Executes instructions until control leaves `code`. `other` executes those that the machine does not know.
    pub fn run(&mut self, code: Range<u64>, other: &mut dyn FnMut(&mut Machine, &Instruction)) {
        let mut steps = 0;
        while code.contains(&self.rip) {
            let bytes: [u8; 15] = std::array::from_fn(|n| self.byte(self.rip + n as u64) as u8);
            let i = Decoder::with_ip(64, &bytes, self.rip, DecoderOptions::NONE).decode();
            self.rip = i.next_ip();
            if !self.step(&i) {
                other(self, &i);
            }
            steps += 1;
            assert!(steps < 2_000_000, "the routine does not end");
        }
    }

    fn address(&self, i: &Instruction) -> u64 {
        let segment = match i.memory_segment() {
            Register::GS => self.gs,
            Register::FS => self.fs,
            _ => 0,
        };
        segment.wrapping_add(self.effective(i))
    }

    fn effective(&self, i: &Instruction) -> u64 {
        let index = self.register(i.memory_index()).wrapping_mul(u64::from(i.memory_index_scale()));
        self.register(i.memory_base()).wrapping_add(index).wrapping_add(i.memory_displacement64())
    }

    fn register(&self, r: Register) -> u64 {
        if r == Register::None {
            return 0;
        }
        assert!(r.is_gpr() && !matches!(r, Register::AH | Register::BH | Register::CH | Register::DH));
        let value = self.registers[r.full_register().number()];
        if r.size() == 8 { value } else { value & ((1 << (8 * r.size())) - 1) }
    }

    fn size(i: &Instruction, n: u32) -> usize {
        match i.op_kind(n) {
            OpKind::Register => i.op_register(n).size(),
            OpKind::Memory => i.memory_size().size(),
            _ if n > 0 => Self::size(i, 0),
            _ => 8,
        }
    }

    /// Value of an operand, zero-extended.
    fn operand(&self, i: &Instruction, n: u32) -> u64 {
        match i.op_kind(n) {
            OpKind::Register => self.register(i.op_register(n)),
            OpKind::Memory => self.read(self.address(i), i.memory_size().size()),
            _ => i.immediate(n) & mask(Self::size(i, 0)),
        }
    }

    fn store(&mut self, i: &Instruction, n: u32, value: u64) {
        match i.op_kind(n) {
            OpKind::Register => {
                let r = i.op_register(n);
                // A write to 32 bits clears the upper half.
                assert!(r.size() >= 4);
                self.registers[r.full_register().number()] = value & mask(r.size());
            }
            OpKind::Memory => self.write(self.address(i), i.memory_size().size(), value),
            kind => panic!("a write to {kind:?}"),
        }
    }

    pub fn push(&mut self, value: u64) {
        self.registers[RSP] -= 8;
        self.write(self.registers[RSP], 8, value);
    }

    pub fn pop(&mut self) -> u64 {
        let value = self.read(self.registers[RSP], 8);
        self.registers[RSP] += 8;
        value
    }

    fn set(&mut self, flag: u64, is_set: bool) {
        self.flags = if is_set { self.flags | flag } else { self.flags & !flag };
    }

    /// Sets the flags for a result of so many bytes.
    fn flags_of(&mut self, size: usize, result: u64, carry: bool, overflow: bool) {
        self.set(ZF, result & mask(size) == 0);
        self.set(SF, sign(size, result));
        self.set(CF, carry);
        self.set(OF, overflow);
    }

    fn add(&mut self, size: usize, a: u64, b: u64) -> u64 {
        let result = a.wrapping_add(b) & mask(size);
        let overflow = sign(size, a) == sign(size, b) && sign(size, a) != sign(size, result);
        self.flags_of(size, result, result < a & mask(size), overflow);
        result
    }

    fn subtract(&mut self, size: usize, a: u64, b: u64) -> u64 {
        let result = a.wrapping_sub(b) & mask(size);
        let overflow = sign(size, a) != sign(size, b) && sign(size, a) != sign(size, result);
        self.flags_of(size, result, a & mask(size) < b & mask(size), overflow);
        result
    }

    fn holds(&self, condition: ConditionCode) -> bool {
        let [c, z, s, o] = [CF, ZF, SF, OF].map(|flag| self.flags & flag != 0);
        match condition {
            ConditionCode::e => z,
            ConditionCode::ne => !z,
            ConditionCode::b => c,
            ConditionCode::ae => !c,
            ConditionCode::be => c || z,
            ConditionCode::a => !c && !z,
            ConditionCode::s => s,
            ConditionCode::ns => !s,
            ConditionCode::l => s != o,
            ConditionCode::ge => s == o,
            ConditionCode::le => z || s != o,
            ConditionCode::g => !z && s == o,
            other => panic!("condition {other:?}"),
        }
    }

    /// Executes an instruction. Returns false if the machine does not know it.
    #[expect(clippy::too_many_lines, reason = "one arm for each mnemonic")]
    fn step(&mut self, i: &Instruction) -> bool {
        let size = Self::size(i, 0);
        match i.mnemonic() {
            Mnemonic::Push => {
                let value = self.operand(i, 0);
                self.push(value);
            }
            Mnemonic::Pop => {
                let value = self.pop();
                self.store(i, 0, value);
            }
            Mnemonic::Pushfq => self.push(self.flags),
            Mnemonic::Popfq => self.flags = self.pop(),
            Mnemonic::Cld => self.set(DF, false),
            Mnemonic::Mov => {
                let value = self.operand(i, 1);
                self.store(i, 0, value);
            }
            Mnemonic::Movzx => {
                let value = self.operand(i, 1);
                self.store(i, 0, value);
            }
            Mnemonic::Movsxd => {
                let value = self.operand(i, 1) as u32 as i32;
                self.store(i, 0, i64::from(value).cast_unsigned());
            }
            Mnemonic::Lea => {
                let value = self.effective(i);
                self.store(i, 0, value);
            }
            Mnemonic::Add => {
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                let value = self.add(size, a, b);
                self.store(i, 0, value);
            }
            Mnemonic::Sub => {
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                let value = self.subtract(size, a, b);
                self.store(i, 0, value);
            }
            Mnemonic::Cmp => {
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                self.subtract(size, a, b);
            }
            Mnemonic::Neg => {
                let a = self.operand(i, 0);
                let value = self.subtract(size, 0, a);
                self.store(i, 0, value);
            }
            Mnemonic::Inc | Mnemonic::Dec => {
                let (a, carry) = (self.operand(i, 0), self.flags & CF != 0);
                let up = i.mnemonic() == Mnemonic::Inc;
                let value = if up { self.add(size, a, 1) } else { self.subtract(size, a, 1) };
                self.set(CF, carry);
                self.store(i, 0, value);
            }
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xor | Mnemonic::Test => {
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                let value = match i.mnemonic() {
                    Mnemonic::Or => a | b,
                    Mnemonic::Xor => a ^ b,
                    _ => a & b,
                };
                self.flags_of(size, value, false, false);
                if i.mnemonic() != Mnemonic::Test {
                    self.store(i, 0, value);
                }
            }
            Mnemonic::Shl | Mnemonic::Shr | Mnemonic::Sar => {
                let (a, by) = (self.operand(i, 0), self.operand(i, 1) & if size == 8 { 63 } else { 31 });
                let signed = (a << (64 - 8 * size)).cast_signed() >> (64 - 8 * size);
                let value = match i.mnemonic() {
                    Mnemonic::Shl => a << by,
                    Mnemonic::Shr => a >> by,
                    _ => (signed >> by).cast_unsigned(),
                } & mask(size);
                // No routine reads another flag of a shift.
                if by != 0 {
                    self.set(ZF, value == 0);
                }
                self.store(i, 0, value);
            }
            Mnemonic::Imul => {
                let (a, b) = match i.op_count() {
                    2 => (self.operand(i, 0), self.operand(i, 1)),
                    _ => (self.operand(i, 1), self.operand(i, 2)),
                };
                self.store(i, 0, a.wrapping_mul(b));
            }
            Mnemonic::Bt | Mnemonic::Bts => {
                assert!(matches!(i.op1_kind(), OpKind::Immediate8), "a bit in a register");
                let (a, bit) = (self.operand(i, 0), 1 << (i.immediate8() as u64 & (8 * size as u64 - 1)));
                self.set(CF, a & bit != 0);
                if i.mnemonic() == Mnemonic::Bts {
                    self.store(i, 0, a | bit);
                }
            }
            Mnemonic::Xadd => {
                assert!(
                    i.has_lock_prefix() || i.segment_prefix() == Register::GS,
                    "only a thread's own word needs no prefix"
                );
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                let value = self.add(size, a, b);
                self.store(i, 1, a);
                self.store(i, 0, value);
            }
            // Without a prefix, only a signal handler can change the word in between.
            Mnemonic::Cmpxchg => {
                let place = self.address(i);
                if let Some((at, value)) = self.race.take_if(|race| race.0 == place) {
                    self.write(at, 8, value);
                }
                let (a, b) = (self.operand(i, 0), self.operand(i, 1));
                let wanted = self.registers[RAX] & mask(size);
                self.subtract(size, wanted, a);
                if a == wanted { self.store(i, 0, b) } else { self.registers[RAX] = a }
            }
            Mnemonic::Rdgsbase => self.store(i, 0, self.gs),
            Mnemonic::Rdfsbase => self.store(i, 0, self.fs),
            Mnemonic::Wrgsbase => self.gs = self.operand(i, 0),
            Mnemonic::Jmp if i.code() == Code::Jmp_rm64 => self.rip = self.operand(i, 0),
            Mnemonic::Jmp => self.rip = i.near_branch_target(),
            _ if i.is_jcc_short_or_near() => {
                if self.holds(i.condition_code()) {
                    self.rip = i.near_branch_target();
                }
            }
            _ => return false,
        }
        true
    }
}

fn mask(size: usize) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

fn sign(size: usize, value: u64) -> bool {
    value >> (8 * size - 1) & 1 != 0
}

/// For routines without instructions that the machine does not know.
pub fn none(_: &mut Machine, i: &Instruction) {
    panic!("{i} at {:#x}", i.ip());
}
