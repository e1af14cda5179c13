//! Where indirect jumps lead: jump tables as compilers write them, found by looking back from the jump over the function's
//! instructions. The shapes: an absolute table (`jmp [table+i*8]`, or loaded first), and a table of distances
//! (`lea b,[rip+table]; movsxd r,[b+i*4]; add r,b; jmp r`), bounded by a comparison or a mask of the index. Without a bound,
//! entries are read while they point into the function.

use std::ops::Range;

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::file::elf::{Elf, u32_at, u64_at};
use crate::file::relocs::Pointers;
use crate::text::decode;

/// How far back a definition is looked for, in instructions.
const LOOK_BACK: usize = 64;
/// How far back the address of a table is looked for: compilers hoist it out of loops.
const LOOK_BACK_TABLE: usize = 2000;

/// What was found out about an indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resolved {
    /// Its targets, in the order of the table.
    Table(Targets),
    /// Through a pointer that was loaded or passed: a tail call, or a computed jump between places whose absolute
    /// addresses the file holds.
    Pointer,
    /// To an address computed from the table of distances at one of these places (or anywhere, if there is none).
    Distances(Vec<u64>),
}

/// What a table holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Targets {
    /// In the order of the table.
    pub places: Vec<u64>,
    /// Whether these are all: the index is bounded. Otherwise entries were read while they point into the function.
    pub bounded: bool,
    /// Whether the table holds addresses, not distances.
    pub absolute: bool,
}

/// Looks at the instructions of one function, sorted by address.
pub(crate) struct Resolver<'a> {
    pub image: &'a Elf,
    pub pointers: &'a Pointers,
    pub code: &'a [Instruction],
    /// The function, as far as it is known: its head, and its parts.
    pub inside: &'a [Range<u64>],
}

struct Table {
    at: u64,
    /// Added to each distance; `None` for a table of absolute addresses.
    base: Option<u64>,
    /// Index of the instruction that reads it, and the register that indexes it.
    read_by: usize,
    index: Register,
}

impl Resolver<'_> {
    /// Resolves the indirect jump at an index, reading at most `budget` entries.
    pub fn resolve(&self, jump: usize, budget: &mut usize) -> Resolved {
        let instruction = &self.code[jump];
        if instruction.op0_kind() == OpKind::Memory {
            return match self.absolute(jump, jump) {
                Some(table) => self.read(&table, budget).map_or(Resolved::Pointer, Resolved::Table),
                None => Resolved::Pointer,
            };
        }
        if instruction.op0_kind() != OpKind::Register {
            return Resolved::Pointer;
        }
        self.register(jump, instruction.op0_register(), budget)
    }

    fn register(&self, jump: usize, register: Register, budget: &mut usize) -> Resolved {
        let mut register = register.full_register();
        let mut at = jump;
        for _ in 0..LOOK_BACK {
            let Some(before) = self.before(at) else { return Resolved::Pointer };
            at = before;
            let i = &self.code[at];
            if i.flow_control() == FlowControl::Call || i.flow_control() == FlowControl::IndirectCall {
                // What a call returns is a pointer like any other.
                return Resolved::Pointer;
            }
            if i.op0_kind() != OpKind::Register || i.op0_register().full_register() != register {
                continue;
            }
            match i.mnemonic() {
                Mnemonic::Add if i.op1_kind() == OpKind::Register => {
                    let table = self.distances(at, register, i.op1_register().full_register());
                    return match table.and_then(|t| self.read(&t, budget)) {
                        Some(targets) => Resolved::Table(targets),
                        None => Resolved::Distances(self.table_candidates()),
                    };
                }
                Mnemonic::Mov if i.op1_kind() == OpKind::Register => register = i.op1_register().full_register(),
                Mnemonic::Mov if i.op1_kind() == OpKind::Memory => {
                    let table = self.absolute(at, at).and_then(|t| self.read(&t, budget));
                    return table.map_or(Resolved::Pointer, Resolved::Table);
                }
                Mnemonic::Lea if constant_address(i).is_some() => {
                    let places = constant_address(i).into_iter().collect();
                    return Resolved::Table(Targets { places, bounded: true, absolute: true });
                }
                Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt => {}
                Mnemonic::Pop | Mnemonic::Mov => return Resolved::Pointer,
                // A masked or scrambled pointer (glibc keeps some rotated and xored) is a pointer.
                Mnemonic::And | Mnemonic::Or | Mnemonic::Xchg | Mnemonic::Ror | Mnemonic::Rol | Mnemonic::Xor => {}
                _ if is_cmov(i) => return Resolved::Pointer,
                _ => return Resolved::Distances(self.table_candidates()),
            }
        }
        Resolved::Pointer
    }

    /// The table of absolute addresses that an instruction's memory operand reads, if it is indexed.
    fn absolute(&self, at: usize, read_by: usize) -> Option<Table> {
        let i = &self.code[at];
        if i.memory_index() == Register::None || i.memory_index_scale() != 8 {
            return None;
        }
        let disp = i.memory_displacement64();
        let table = match i.memory_base() {
            Register::None => disp,
            base => self.address_in(at, base.full_register())?.wrapping_add(disp),
        };
        Some(Table { at: table, base: None, read_by, index: i.memory_index().full_register() })
    }

    /// The table of distances whose entry and base are added at an index.
    fn distances(&self, add: usize, a: Register, b: Register) -> Option<Table> {
        let mut at = add;
        for _ in 0..LOOK_BACK {
            at = self.before(at)?;
            let i = &self.code[at];
            if i.op0_kind() != OpKind::Register || i.op1_kind() != OpKind::Memory {
                continue;
            }
            let loaded = i.op0_register().full_register();
            let wide = matches!(i.code(), Code::Movsxd_r64_rm32 | Code::Mov_r32_rm32);
            if !wide
                || (loaded != a && loaded != b)
                || i.memory_index() == Register::None
                || i.memory_index_scale() != 4
            {
                continue;
            }
            let other = if loaded == a { b } else { a };
            let disp = i.memory_displacement64();
            let base = self.address_in(add, other)?;
            let table = match i.memory_base().full_register() {
                Register::None => disp,
                register => self.address_in(at, register)?.wrapping_add(disp),
            };
            return Some(Table { at: table, base: Some(base), read_by: at, index: i.memory_index().full_register() });
        }
        None
    }

    /// The constant address that a register holds before an index: of the nearest `lea` before it, else of any in the function.
    fn address_in(&self, before: usize, register: Register) -> Option<u64> {
        let constant = |i: &Instruction| {
            if i.op0_kind() != OpKind::Register || i.op0_register().full_register() != register {
                return None;
            }
            match i.code() {
                Code::Lea_r64_m => constant_address(i),
                Code::Mov_r32_imm32 => Some(u64::from(i.immediate32())),
                Code::Mov_r64_imm64 => Some(i.immediate64()),
                _ => None,
            }
        };
        let from = before.saturating_sub(LOOK_BACK_TABLE);
        let found = self.code[from..before].iter().rev().find_map(constant);
        found.or_else(|| self.code[before..].iter().take(LOOK_BACK_TABLE).find_map(constant))
    }

    /// Addresses of data that the function computes: one of them may be a table that was spilled.
    fn table_candidates(&self) -> Vec<u64> {
        let data = |i: &Instruction| {
            let address = match i.code() {
                Code::Lea_r64_m => constant_address(i)?,
                _ => return None,
            };
            (address % 4 == 0 && self.image.text_index(address).is_none()).then_some(address)
        };
        let mut found: Vec<u64> = self.code.iter().filter_map(data).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Targets of a table; `None` if not even the first entry makes sense.
    fn read(&self, table: &Table, budget: &mut usize) -> Option<Targets> {
        let bound = self.bound(table.read_by, table.index);
        let size = if table.base.is_some() { 4 } else { 8 };
        let bytes = self.image.data_from(table.at)?;
        let limit = bound.unwrap_or(4096).min(65_536).min(*budget);
        let mut targets = Vec::new();
        for entry in 0..limit {
            let place = table.at + entry as u64 * size;
            let target = match table.base {
                Some(base) => u32_at(bytes, entry * 4).map(|d| base.wrapping_add(i64::from(d as i32) as u64)),
                None => self.pointers.get(place).or_else(|| u64_at(bytes, entry * 8)),
            };
            let Some(target) = target else { break };
            let inside = self.contains(target);
            // With a bound, a case may lie in the cold part.
            if !inside && (bound.is_none() || self.image.text_index(target).is_none()) {
                break;
            }
            targets.push(target);
        }
        *budget -= targets.len();
        let all = bound == Some(targets.len());
        let plausible = !targets.is_empty() && (all || bound.is_none() || *budget == 0);
        plausible.then_some(Targets { places: targets, bounded: all, absolute: table.base.is_none() })
    }

    fn contains(&self, target: u64) -> bool {
        self.inside.iter().any(|range| range.contains(&target))
    }

    /// Distances read from a table whose bound is not known, as targets inside of the function.
    pub fn read_candidate(&self, table: u64, budget: &mut usize) -> Vec<u64> {
        let mut targets = Vec::new();
        let Some(bytes) = self.image.data_from(table) else { return targets };
        for distance in bytes.chunks_exact(4).take(*budget) {
            let distance = u32_at(distance, 0).unwrap_or_default();
            let target = table.wrapping_add(i64::from(distance as i32) as u64);
            if !self.contains(target) {
                break;
            }
            targets.push(target);
        }
        *budget -= targets.len();
        targets
    }

    /// How many values the index has: from `cmp index, n; ja`, or a mask.
    fn bound(&self, read_by: usize, index: Register) -> Option<usize> {
        let mut aliases = vec![index];
        let mut memory: Option<Instruction> = None;
        // A comparison of another register, which a copy further back may turn out to be of the same value.
        let mut compared: Option<(Register, usize)> = None;
        let mut at = read_by;
        let mut above = None;
        for _ in 0..LOOK_BACK {
            let next = self.before(at)?;
            // A conditional branch taken to get here, or not taken, decides which way the comparison bounds.
            let i = &self.code[next];
            if i.is_jcc_short_or_near() {
                let taken = i.near_branch_target() == self.code[at].ip();
                above = match (i.mnemonic(), taken) {
                    (Mnemonic::Ja, false) | (Mnemonic::Jbe, true) => Some(1),
                    (Mnemonic::Jae, false) | (Mnemonic::Jb, true) => Some(0),
                    _ => None,
                };
                at = next;
                continue;
            }
            at = next;
            let register0 = (i.op0_kind() == OpKind::Register).then(|| i.op0_register().full_register());
            let mine = register0.is_some_and(|r| aliases.contains(&r));
            match i.mnemonic() {
                Mnemonic::Cmp => {
                    let same_memory = memory.is_some_and(|m| same_operand(&m, i));
                    if let (Some(extra), Some(n)) = (above, immediate(i)) {
                        let n = usize::try_from(n.checked_add(extra)?).ok().filter(|&n| n > 0);
                        if mine || same_memory {
                            return n;
                        }
                        compared = compared.or(register0.zip(n));
                    }
                }
                Mnemonic::And if mine => {
                    if let Some(mask) = immediate(i).filter(|m| *m < 65_536 && (m + 1).is_power_of_two()) {
                        return Some(mask as usize + 1);
                    }
                    return None;
                }
                Mnemonic::Mov | Mnemonic::Movzx | Mnemonic::Movsxd if mine => match i.op1_kind() {
                    OpKind::Register => {
                        if let Some((register, n)) = compared
                            && register == i.op1_register().full_register()
                        {
                            return Some(n);
                        }
                        aliases.retain(|a| Some(*a) != register0);
                        aliases.push(i.op1_register().full_register());
                    }
                    OpKind::Memory if i.mnemonic() != Mnemonic::Movsxd => {
                        aliases.retain(|a| Some(*a) != register0);
                        memory = Some(*i);
                    }
                    _ => return None,
                },
                // The compared register is a copy of the index.
                Mnemonic::Mov if copies_to(i, compared.map(|c| c.0), &aliases) => return compared.map(|c| c.1),
                Mnemonic::Test | Mnemonic::Push | Mnemonic::Bt => {}
                _ if mine => return None,
                // The compared register gets its value here: it is no copy.
                _ if compared.is_some_and(|c| Some(c.0) == register0) => compared = None,
                _ => {}
            }
        }
        None
    }

    /// The instruction that runs before another: the one in front, or, behind an unconditional transfer, the branch that
    /// leads to it.
    fn before(&self, at: usize) -> Option<usize> {
        let here = &self.code[at];
        // Filling in front of a loop or a case is run through at most.
        let is_code = |i: &usize| !decode::is_nop(&self.code[*i]);
        if let Some(i) = (at.saturating_sub(8)..at).rev().find(is_code) {
            let flow = self.code[i].flow_control();
            let ends =
                matches!(flow, FlowControl::UnconditionalBranch | FlowControl::IndirectBranch | FlowControl::Return);
            if !ends && self.code[i..at].iter().zip(&self.code[i + 1..=at]).all(|(a, b)| a.next_ip() == b.ip()) {
                return Some(i);
            }
        }
        let from = at.saturating_sub(LOOK_BACK_TABLE);
        let until = at.saturating_add(LOOK_BACK_TABLE).min(self.code.len());
        let leads_here = |i: &usize| {
            let i = &self.code[*i];
            matches!(i.flow_control(), FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
                && i.near_branch_target() == here.ip()
        };
        (from..at).rev().find(leads_here).or_else(|| (at + 1..until).find(leads_here))
    }
}

/// The address that a `lea` makes whatever the registers hold.
pub(crate) fn constant_address(i: &Instruction) -> Option<u64> {
    if i.is_ip_rel_memory_operand() {
        return Some(i.ip_rel_memory_address());
    }
    (i.memory_base() == Register::None && i.memory_index() == Register::None).then(|| i.memory_displacement64())
}

/// Whether an instruction copies at least 32 bits of one of `from` to a register.
fn copies_to(i: &Instruction, to: Option<Register>, from: &[Register]) -> bool {
    i.op1_kind() == OpKind::Register
        && i.op0_register().size() >= 4
        && to == Some(i.op0_register().full_register())
        && from.contains(&i.op1_register().full_register())
}

fn is_cmov(i: &Instruction) -> bool {
    i.condition_code() != iced_x86::ConditionCode::None && i.flow_control() == FlowControl::Next
}

fn immediate(i: &Instruction) -> Option<u64> {
    match i.op1_kind() {
        OpKind::Immediate8 => Some(u64::from(i.immediate8())),
        OpKind::Immediate16 => Some(u64::from(i.immediate16())),
        OpKind::Immediate32 => Some(u64::from(i.immediate32())),
        // Sign-extended ones that are negative are no bound of a table.
        OpKind::Immediate8to16 | OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
            Some(i.immediate(1)).filter(|n| *n < 1 << 31)
        }
        _ => None,
    }
}

fn same_operand(load: &Instruction, compare: &Instruction) -> bool {
    compare.op0_kind() == OpKind::Memory
        && load.memory_base() == compare.memory_base()
        && load.memory_index() == compare.memory_index()
        && load.memory_index_scale() == compare.memory_index_scale()
        && load.memory_displacement64() == compare.memory_displacement64()
}
