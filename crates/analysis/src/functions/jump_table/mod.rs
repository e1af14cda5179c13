//! Targets of indirect jumps through tables as compilers write them.
//!
//! A table holds addresses (`jmp [table + i*8]`, or loaded first) or distances (`movsxd r, [table + i*4]; add r, base; jmp r`). Its address
//! is proven if every definition that reaches its use makes the same constant. Its end is proven by a bound of the index on every way to
//! the jump: all entries within the bound are read, so the targets found may be too many, never too few.
//!
//! If the width of the index is its only bound, as in a `switch` over all values of a type, the content shows the end: the next word that is no
//! code, or the start of another table. That rests on how compilers write tables. Assembly that reads a part of one table as another, or
//! addresses a table by a place in front of it (dav1d), uses other bounds, for which the content shows nothing.

mod bound;
mod frame;
mod interval;
mod read;
mod trace;

use std::cell::{Cell, RefCell};
use std::ops::Range;

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

use crate::file::elf::{Elf, ImageKind};
use crate::file::relocs::CodePointerWords;
use crate::functions::jump_table::bound::IndexBound;
use crate::functions::jump_table::trace::{BackwardTrace, ReachingDefinition};

pub(crate) use self::trace::Predecessors;

/// Largest number of instructions that are visited to resolve one jump.
const STEPS_MAX: usize = 20_000;
/// Largest number of entries that are read. Compilers make no table with more.
const ENTRIES_MAX: usize = 65_536;
/// Largest number of conditional copies, and of values on the stack, that are followed one after the other.
const DEPTH: usize = 4;

/// The answer for one indirect jump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ResolvedJump {
    /// The jump goes through a table.
    Table(TableTargets),
    /// The jump goes through a pointer that was loaded or passed. It is a tail call, or a computed jump between places whose absolute
    /// addresses the file holds.
    Pointer,
    /// The jump goes to an address computed from the table of distances at one of these addresses. If there are none, the table may be
    /// anywhere.
    Distances(Vec<u64>),
}

/// Content of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableTargets {
    /// Addresses to which the entries lead, sorted.
    pub places: Vec<u64>,
    /// Whether the table leads to no other address.
    pub bounded: bool,
    /// Whether a bound of the index proves the end of the table, and not the content of the table. Then every address is a target.
    pub exact: bool,
    /// Whether the table holds addresses, not distances.
    pub absolute: bool,
    /// Addresses of the tables, sorted.
    pub tables: Vec<u64>,
}

/// Resolves indirect jumps by the instructions of one function, which are sorted by address.
pub(crate) struct JumpResolver<'a> {
    pub image: &'a Elf,
    pub pointers: &'a CodePointerWords,
    pub code: &'a [Instruction],
    /// The function, as far as it is known: its head, and its parts.
    pub inside: &'a [Range<u64>],
    /// The ways by which control arrives at each instruction.
    pub before: &'a Predecessors,
    /// Addresses of tables in the image, sorted, as far as they are known.
    pub tables: &'a [u64],
    /// Remaining steps for the whole function, and the tables that were read.
    pub memory: &'a TableMemo,
}

/// A table that has been read, the bound of its index, and its targets.
type ReadTable = (JumpTable, Option<IndexBound>, Option<TableTargets>);

/// Remaining steps for the jump tables of one function, and the tables that were read.
pub(crate) struct TableMemo {
    /// Remaining number of steps back over instructions.
    fuel: Cell<usize>,
    /// Tables that have been read, each with its bound.
    read: RefCell<Vec<ReadTable>>,
}

impl TableMemo {
    /// Returns the state before the first table, for a function with this number of instructions.
    pub fn new(instructions: usize) -> Self {
        TableMemo { fuel: Cell::new(256 * instructions + 65_536), read: RefCell::default() }
    }
}

/// Width and meaning of the entries of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EntryEncoding {
    /// Addresses of eight bytes.
    Addresses,
    /// Addresses of four bytes, zero-extended.
    ShortAddresses,
    /// Signed distances from an address.
    Distances(u64),
}

/// A table.
#[derive(Clone, Copy, PartialEq, Eq)]
struct JumpTable {
    at: u64,
    entries: EntryEncoding,
}

impl JumpResolver<'_> {
    /// Resolves the indirect jump at an index, reading at most `budget` entries.
    pub fn resolve(&self, jump: usize, budget: &mut usize) -> ResolvedJump {
        let i = &self.code[jump];
        match i.op0_kind() {
            OpKind::Memory => self.loaded(jump, EntryEncoding::Addresses, DEPTH, budget),
            OpKind::Register => self.register(jump, i.op0_register().full_register(), DEPTH, budget),
            _ => ResolvedJump::Pointer,
        }
    }

    /// Resolves a jump to the address in a register, by all definitions of the register that reach the jump.
    fn register(&self, at: usize, register: Register, depth: usize, budget: &mut usize) -> ResolvedJump {
        let Some(definitions) = self.trace().definitions(at, register) else { return self.unknown() };
        self.any_of(definitions, depth, budget)
    }

    /// Resolves a jump to a value that has several definitions.
    fn any_of(&self, definitions: Vec<ReachingDefinition>, depth: usize, budget: &mut usize) -> ResolvedJump {
        let mut found: Option<ResolvedJump> = None;
        for definition in definitions {
            let one = match definition {
                ReachingDefinition::Outside => ResolvedJump::Pointer,
                ReachingDefinition::At(at, register) => self.defined(at, register, depth, budget),
            };
            found = Some(match found {
                Some(other) => self.either(other, one),
                None => one,
            });
        }
        found.unwrap_or(ResolvedJump::Pointer)
    }

    /// Combines two answers, each of which is possible.
    fn either(&self, a: ResolvedJump, b: ResolvedJump) -> ResolvedJump {
        match (a, b) {
            (ResolvedJump::Table(a), ResolvedJump::Table(b)) => ResolvedJump::Table(a.and(b)),
            (ResolvedJump::Pointer, ResolvedJump::Pointer) => ResolvedJump::Pointer,
            (ResolvedJump::Pointer, ResolvedJump::Table(t)) | (ResolvedJump::Table(t), ResolvedJump::Pointer)
                if t.absolute =>
            {
                ResolvedJump::Pointer
            }
            _ => self.unknown(),
        }
    }

    /// Resolves a jump to the address that an instruction writes to a register.
    fn defined(&self, at: usize, register: Register, depth: usize, budget: &mut usize) -> ResolvedJump {
        let i = &self.code[at];
        let Some(depth) = depth.checked_sub(1) else { return self.unknown() };
        if i.op0_kind() != OpKind::Register || i.op0_register().full_register() != register {
            return if i.mnemonic() == Mnemonic::Xchg { ResolvedJump::Pointer } else { self.unknown() };
        }
        let places =
            |at| TableTargets { places: vec![at], bounded: true, exact: true, absolute: true, tables: Vec::new() };
        match i.mnemonic() {
            Mnemonic::Add if i.op1_kind() == OpKind::Register => {
                self.sum(at, register, i.op1_register().full_register(), budget)
            }
            Mnemonic::Lea if let Some(place) = constant_address(i) => ResolvedJump::Table(places(place)),
            Mnemonic::Mov if let Some(place) = constant_number(i) => ResolvedJump::Table(places(place)),
            Mnemonic::Lea if i.memory_index_scale() == 1 && i.memory_displacement64() == 0 => {
                let (a, b) = (i.memory_base(), i.memory_index());
                if a == Register::None || b == Register::None { self.unknown() } else { self.sum(at, a, b, budget) }
            }
            Mnemonic::Mov if i.op1_kind() == OpKind::Memory => {
                let short = i.op0_register().size() == 4;
                self.loaded(
                    at,
                    if short { EntryEncoding::ShortAddresses } else { EntryEncoding::Addresses },
                    depth,
                    budget,
                )
            }
            // A masked or scrambled pointer (glibc keeps some rotated and xored) is a pointer.
            Mnemonic::And | Mnemonic::Or | Mnemonic::Xchg | Mnemonic::Ror | Mnemonic::Rol | Mnemonic::Xor => {
                ResolvedJump::Pointer
            }
            Mnemonic::Pop => ResolvedJump::Pointer,
            _ if is_cmov(i) => {
                let kept = self.register(at, register, depth, budget);
                let moved = match i.op1_kind() {
                    OpKind::Register => self.register(at, i.op1_register().full_register(), depth, budget),
                    _ => ResolvedJump::Pointer,
                };
                self.either(kept, moved)
            }
            _ => self.unknown(),
        }
    }

    /// Resolves a jump to an address that an instruction loads.
    fn loaded(&self, at: usize, entries: EntryEncoding, depth: usize, budget: &mut usize) -> ResolvedJump {
        let i = &self.code[at];
        if let Some(definitions) = self.trace().definitions_of_slot(at) {
            let Some(depth) = depth.checked_sub(1) else { return self.unknown() };
            return self.any_of(definitions, depth, budget);
        }
        let scale = if entries == EntryEncoding::ShortAddresses { 4 } else { 8 };
        if i.memory_index() == Register::None || i.memory_index_scale() != scale || i.has_segment_prefix() {
            return ResolvedJump::Pointer;
        }
        let Some(table) = self.table_address(at) else { return ResolvedJump::Pointer };
        let table = JumpTable { at: table, entries };
        match self.read_at(at, table, budget) {
            Some(targets) if targets.bounded || self.are_pointers(&table) => ResolvedJump::Table(targets),
            None if self.are_pointers(&table) => ResolvedJump::Pointer,
            _ => self.unknown(),
        }
    }

    /// Whether all entries of a table that lead to code are known as addresses that data holds, whatever the length of the table.
    fn are_pointers(&self, table: &JumpTable) -> bool {
        let is_relocated = self.image.kind() != ImageKind::Executable;
        table.entries == EntryEncoding::Addresses && (is_relocated || table.at.is_multiple_of(8))
    }

    /// Resolves a jump to the sum of two registers: a distance from a table, and the address to which the distance is added.
    fn sum(&self, at: usize, a: Register, b: Register, budget: &mut usize) -> ResolvedJump {
        for (distance, base) in [(a, b), (b, a)] {
            let Some(base) = self.trace().constant(at, base) else { continue };
            if let Some(all) = self.each_definition(at, distance, |load| self.distances(load, base, budget)) {
                return ResolvedJump::Table(all);
            }
        }
        self.unknown()
    }

    /// Targets of the table whose entry an instruction writes to a register, as a distance.
    fn distances(&self, at: usize, base: u64, budget: &mut usize) -> Option<TableTargets> {
        let i = &self.code[at];
        match (i.code(), i.op1_kind()) {
            (Code::Movsxd_r64_rm32, OpKind::Memory) => self.distances_at(at, base, budget),
            // Without optimisation, gcc extends the sign by an instruction of its own.
            (Code::Movsxd_r64_rm32, OpKind::Register) => {
                self.loaded_distances(at, i.op1_register().full_register(), base, budget)
            }
            (Code::Cdqe, _) => self.loaded_distances(at, Register::RAX, base, budget),
            _ => None,
        }
    }

    /// Targets of the tables whose entries a register may hold, not extended.
    fn loaded_distances(&self, at: usize, r: Register, base: u64, budget: &mut usize) -> Option<TableTargets> {
        self.each_definition(at, r, |load| match (self.code[load].code(), self.code[load].op1_kind()) {
            (Code::Mov_r32_rm32, OpKind::Memory) => self.distances_at(load, base, budget),
            _ => None,
        })
    }

    /// Targets of the table from which this instruction loads a distance.
    fn distances_at(&self, load: usize, base: u64, budget: &mut usize) -> Option<TableTargets> {
        let i = &self.code[load];
        if i.memory_index() == Register::None || i.has_segment_prefix() {
            return None;
        }
        let based = i.memory_base() != Register::None;
        let table = |at| JumpTable { at, entries: EntryEncoding::Distances(base) };
        match i.memory_index_scale() {
            4 => self.read_at(load, table(self.table_address(load)?), budget),
            // The index was multiplied before, as gcc does without optimisation.
            1 if based => {
                let (a, b) = (i.memory_base().full_register(), i.memory_index().full_register());
                let known = |r| self.trace().constant(load, r);
                let (scaled, at) = [(a, b), (b, a)].into_iter().find_map(|(r, of)| Some((r, known(of)?)))?;
                let table = table(at.wrapping_add(i.memory_displacement64()));
                self.each_definition(load, scaled, |at| {
                    let index = multiplied_by_four(&self.code[at])?;
                    self.read_by(at, index, table, budget)
                })
            }
            _ => None,
        }
    }

    /// The targets of all tables that definitions of a register lead to. `None` if one leads to none.
    fn each_definition(
        &self,
        at: usize,
        r: Register,
        mut targets: impl FnMut(usize) -> Option<TableTargets>,
    ) -> Option<TableTargets> {
        let mut all: Option<TableTargets> = None;
        for definition in self.trace().definitions(at, r)? {
            let ReachingDefinition::At(at, _) = definition else { return None };
            let table = targets(at)?;
            all = Some(match all {
                Some(others) => others.and(table),
                None => table,
            });
        }
        all
    }

    /// Targets of the table that an instruction reads.
    fn read_at(&self, at: usize, table: JumpTable, budget: &mut usize) -> Option<TableTargets> {
        self.read_by(at, self.code[at].memory_index().full_register(), table, budget)
    }

    /// The same, for an index in this register.
    fn read_by(&self, at: usize, index: Register, table: JumpTable, budget: &mut usize) -> Option<TableTargets> {
        let bound = self.bound(at, index).or_else(|| self.bound_by_arithmetic(at, index));
        let known = |read: &&ReadTable| read.0 == table && read.1 == bound;
        if let Some(read) = self.memory.read.borrow().iter().find(known) {
            return read.2.clone();
        }
        let targets = self.read(&table, bound, budget);
        self.memory.read.borrow_mut().push((table, bound, targets.clone()));
        targets
    }

    /// The address of the table that the memory operand of an instruction indexes.
    fn table_address(&self, at: usize) -> Option<u64> {
        let i = &self.code[at];
        match i.memory_base() {
            Register::None => Some(i.memory_displacement64()),
            base => Some(self.trace().constant(at, base.full_register())?.wrapping_add(i.memory_displacement64())),
        }
    }

    fn trace(&self) -> BackwardTrace<'_> {
        let go = self.image.is_go();
        BackwardTrace { code: self.code, before: self.before, go, fuel: &self.memory.fuel, through_stack: true }
    }

    /// Subtracts steps from the remaining ones; `None` if too few remain.
    fn spend(&self, steps: usize) -> Option<()> {
        let fuel = &self.memory.fuel;
        fuel.set(fuel.get().checked_sub(steps)?);
        Some(())
    }

    fn unknown(&self) -> ResolvedJump {
        ResolvedJump::Distances(self.table_candidates())
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
}

impl TableTargets {
    /// The targets of two tables.
    fn and(mut self, other: TableTargets) -> TableTargets {
        self.places.extend(other.places);
        self.places.sort_unstable();
        self.places.dedup();
        self.tables.extend(other.tables);
        self.tables.sort_unstable();
        self.tables.dedup();
        let (bounded, exact) = (self.bounded && other.bounded, self.exact && other.exact);
        TableTargets { bounded, exact, absolute: self.absolute && other.absolute, ..self }
    }
}

/// The address that a `lea` computes, if it does not depend on registers.
pub(crate) fn constant_address(i: &Instruction) -> Option<u64> {
    if i.is_ip_rel_memory_operand() {
        return Some(i.ip_rel_memory_address());
    }
    (i.memory_base() == Register::None && i.memory_index() == Register::None).then(|| i.memory_displacement64())
}

/// The register of which an instruction computes four times the value, and nothing else.
fn multiplied_by_four(i: &Instruction) -> Option<Register> {
    match i.code() {
        Code::Lea_r64_m if i.memory_base() == Register::None && i.memory_displacement64() == 0 => {
            (i.memory_index_scale() == 4).then(|| i.memory_index().full_register())
        }
        Code::Shl_rm64_imm8 if i.op0_kind() == OpKind::Register && i.immediate8() == 2 => {
            Some(i.op0_register().full_register())
        }
        _ => None,
    }
}

/// The number that an instruction moves into a register.
fn constant_number(i: &Instruction) -> Option<u64> {
    match i.code() {
        Code::Mov_r32_imm32 => Some(u64::from(i.immediate32())),
        Code::Mov_rm64_imm32 if i.op0_kind() == OpKind::Register => Some(i.immediate(1)),
        Code::Mov_r64_imm64 => Some(i.immediate64()),
        _ => None,
    }
}

fn is_cmov(i: &Instruction) -> bool {
    i.condition_code() != iced_x86::ConditionCode::None && i.flow_control() == iced_x86::FlowControl::Next
}
