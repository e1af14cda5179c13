//! One linear pass over the code of every function. The pass notes, in bit sets, the addresses where control can arrive other than by
//! falling through, and the call targets; and per function, the facts that the choice of scratch registers needs. It decodes every
//! instruction once; only a branch to the middle of an instruction starts a second decoding there.

use std::ops::Range;

use iced_x86::{
    Code, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

use crate::file::elf::{Elf, ImageKind, u32_at};
use crate::file::relocs::CodePointerWords;
use crate::functions::explore;
use crate::functions::facts::CodeFacts;
use crate::functions::jump_table::{
    JumpResolver, Predecessors, ResolvedJump, TableMemo, TableTargets, constant_address,
};
use crate::text::bits::TextBits;
use crate::text::decode;
use crate::text::transfer::ControlTransfer;

/// System call number of `arch_prctl`.
const SYS_ARCH_PRCTL: u32 = 158;
/// Code `ARCH_SET_GS` of `arch_prctl`, its first argument.
const ARCH_SET_GS: u32 = 0x1001;
/// Largest distance, in instructions, of a system call from the instruction that loads its argument.
const GS_DISTANCE: usize = 8;
/// Largest distance, in instructions, of an addition from the instruction that makes the address of code.
const SUM_DISTANCE: usize = 4;

/// Largest distance, in instructions, of a comparison from the instruction that makes the address of code.
const COMPARISON_DISTANCE: usize = 6;

/// Largest number of rounds in which jump tables are followed: the code at a target may read another table.
const ROUNDS: usize = 4;

/// Input of the pass, and the sets that the pass fills.
pub(crate) struct Sweep<'a> {
    pub image: &'a Elf,
    pub pointers: &'a CodePointerWords,
    /// Addresses where control can arrive other than by falling through.
    pub arrivals: TextBits,
    /// Targets of direct calls.
    pub calls: TextBits,
    /// Addresses that data holds or that an instruction makes.
    pub addressed: TextBits,
    /// Targets of branches out of a function, except those to and from possible parts.
    pub branched: TextBits,
    /// Addresses of code with which code of other functions compares values.
    pub compared: TextBits,
    /// Start and end of each piece that may be a part of another function, sorted.
    pub parts: Vec<(u64, u64)>,
    /// Address of `arch_prctl` itself, if the image defines it.
    pub arch_prctl: Option<u64>,
}

/// A maximal range of functions that overlap; usually one function.
#[derive(Clone, Debug)]
pub(crate) struct SweepUnit {
    pub start: u64,
    pub end: u64,
    /// Start and end of each function of the unit, sorted; the first start is `start`.
    pub functions: Vec<(u64, u64)>,
}

impl SweepUnit {
    /// Start of the innermost function that holds an address of the unit.
    fn innermost(&self, at: u64) -> Option<u64> {
        let after = self.functions.partition_point(|f| f.0 <= at);
        self.functions[..after].iter().rev().take(8).find(|f| at < f.1).map(|f| f.0)
    }
}

/// Results of the pass for one unit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Swept {
    /// Facts of each function, in the order of the unit's functions.
    pub facts: Vec<CodeFacts>,
    /// (function, branch): branches of a function back to its own first byte or to the byte after its `endbr64`.
    pub back_branches: Vec<(u64, u64)>,
    /// Jumps out of the unit into a possible part.
    pub to_parts: Vec<PartJump>,
    /// (branch, target): jumps out of the unit, if the unit is itself a possible part or the target lies in one.
    pub around_parts: Vec<(u64, u64)>,
    /// (instruction, target): jumps out of the unit, directly or through a table, and the first address after the unit if control runs on
    /// there.
    pub others: Vec<(u64, u64)>,
    /// Addresses of the tables that the unit's indirect jumps read.
    pub tables: Vec<u64>,
    /// Whether the code sets the gs base; data does not look like such code by chance.
    pub sets_gs: bool,
    /// Whether the code has a gs prefix or loads the segment register.
    pub uses_gs: bool,
}

/// A jump into the possible part that begins at `part`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartJump {
    pub part: u64,
    pub from: u64,
    pub conditional: bool,
}

/// The instructions of a range of code, and the buffers for decoding them.
#[derive(Default)]
struct DecodedRange {
    code: Vec<Instruction>,
    boundaries: Vec<u64>,
    pending: Vec<u64>,
}

/// Buffers that one thread reuses from unit to unit.
pub(crate) struct SweepBuffers {
    decoded: DecodedRange,
    info: InstructionInfoFactory,
    /// Whether an instruction of each `Code` overwrites its first operand: 0 not known yet, 1 no, 2 yes.
    overwrites: Vec<u8>,
}

impl SweepBuffers {
    pub fn new() -> Self {
        let overwrites = vec![0; Code::values().len()];
        SweepBuffers { decoded: DecodedRange::default(), info: InstructionInfoFactory::new(), overwrites }
    }

    /// The general register that an instruction overwrites as its first operand, as a mask.
    fn overwritten(&mut self, i: &Instruction) -> u16 {
        let register = i.op0_register();
        let is_general = i.op0_kind() == OpKind::Register && (register.is_gpr64() || register.is_gpr32());
        if is_general && self.overwrites_first(i) { 1 << register.number() } else { 0 }
    }

    fn overwrites_first(&mut self, i: &Instruction) -> bool {
        let Some(known) = self.overwrites.get_mut(i.code() as usize) else { return false };
        if *known == 0 {
            let options = InstructionInfoOptions::NO_MEMORY_USAGE | InstructionInfoOptions::NO_REGISTER_USAGE;
            let access = self.info.info_options(i, options).op0_access();
            *known = if matches!(access, OpAccess::Write | OpAccess::ReadWrite) { 2 } else { 1 };
        }
        *known == 2
    }
}

impl Sweep<'_> {
    /// Decodes a unit and returns its results; adds to the sets.
    pub fn unit(&self, unit: &SweepUnit, scratch: &mut SweepBuffers) -> Swept {
        let mut out = Swept { facts: vec![CodeFacts::default(); unit.functions.len()], ..Swept::default() };
        let invalid = decode_all(self.image, unit.start, unit.end, &mut scratch.decoded);
        let code = std::mem::take(&mut scratch.decoded.code);
        let fixed = self.image.kind() == ImageKind::Executable;
        let is_part = self.part_with(unit.start).is_some();
        let mut indirect: Vec<usize> = Vec::new();
        let mut set_gs_at = None;
        let mut arch_prctl_at = None;
        let mut function = 0;
        for (index, i) in code.iter().enumerate() {
            while unit.functions.get(function + 1).is_some_and(|f| f.0 <= i.ip()) {
                function += 1;
            }
            let facts = &mut out.facts[function];
            facts.writes |= scratch.overwritten(i);
            let transfer = ControlTransfer::of(i);
            match transfer {
                ControlTransfer::Next => {
                    if i.code() == Code::Mov_r32_imm32 && i.immediate32() == SYS_ARCH_PRCTL {
                        arch_prctl_at = Some(index);
                    }
                    self.address(i, fixed, index, &mut set_gs_at, &mut out);
                    self.sum(i, fixed, &code[index.saturating_sub(SUM_DISTANCE)..index]);
                    self.comparison(
                        i,
                        fixed,
                        unit.functions[function],
                        &code[index.saturating_sub(COMPARISON_DISTANCE)..index],
                    );
                    if i.len() == 1 && i.ip() == unit.functions[function].0 && is_returned_into(self.image, i.ip()) {
                        self.address_taken(i.next_ip());
                    }
                }
                ControlTransfer::Branch(to) | ControlTransfer::Transaction(to) | ControlTransfer::Jump(to) => {
                    self.branch(i, to, unit, is_part, &mut out, function);
                }
                ControlTransfer::Call(_) | ControlTransfer::System => {
                    self.arrivals.set(i.next_ip());
                    let set_gs = set_gs_at.take_if(|at| index - *at <= GS_DISTANCE).is_some();
                    if let ControlTransfer::Call(target) = transfer {
                        self.arrivals.set(target);
                        self.calls.set(target);
                        facts.calls_out |= self.leaves(target);
                        // a call of `arch_prctl` by name, or by number through the function `syscall`
                        let by_number = arch_prctl_at.take_if(|at| index - *at <= GS_DISTANCE).is_some();
                        out.sets_gs |= set_gs && (by_number || Some(target) == self.arch_prctl);
                    } else {
                        // The instruction `syscall`: rax holds the number, and the first argument shows that arch_prctl sets the gs base.
                        out.sets_gs |= set_gs;
                    }
                }
                ControlTransfer::IndirectCall => {
                    self.arrivals.set(i.next_ip());
                    facts.calls_out = true;
                    set_gs_at = None;
                }
                ControlTransfer::Indirect => {
                    if i.op0_kind() == OpKind::Memory && i.is_ip_rel_memory_operand() {
                        facts.calls_out |= self.is_of_linker(i.ip_rel_memory_address());
                    } else {
                        indirect.push(index);
                    }
                }
                ControlTransfer::Return | ControlTransfer::Stop => {}
            }
        }
        if let Some(last) = code.last().filter(|last| falls_through(last)) {
            self.arrivals.set(last.next_ip());
            if ControlTransfer::of(last).runs_on() {
                out.others.push((last.ip(), last.next_ip()));
            }
        }
        if !indirect.is_empty() {
            self.indirect_jumps(unit, &code, &indirect, &mut out);
        }
        // Data among code often looks like a gs prefix, so the instruction counts only if control reaches it.
        out.uses_gs = code.iter().any(explore::uses_gs) && self.reaches_gs(unit);
        if invalid.is_some() {
            out.facts.iter_mut().for_each(|f| f.invalid = invalid);
        }
        scratch.decoded.code = code;
        out
    }

    /// Sweeps code in a gap between functions, or data: the targets of its branches count as reached.
    pub fn gap(&self, from: u64, until: u64, scratch: &mut SweepBuffers) -> Swept {
        let unit = SweepUnit { start: from, end: until, functions: vec![(from, until)] };
        // The gs prefix is not considered, because data is full of bytes that look like one.
        Swept { uses_gs: false, ..self.unit(&unit, scratch) }
    }

    fn reaches_gs(&self, unit: &SweepUnit) -> bool {
        let reaches = |f: &(u64, u64)| explore::reach(self.image, self.pointers, f.0, unit.end).uses_gs;
        // Only files that are made to exhaust the analysis have so many overlapping functions.
        unit.functions.len() > 64 || unit.functions.iter().any(reaches)
    }

    /// Whether an address is in a table of the linker, whose words lead to functions. A variable may hold the address of a label.
    fn is_of_linker(&self, at: u64) -> bool {
        let mut tables = [".got", ".got.plt"].into_iter().filter_map(|name| self.image.section(name));
        tables.any(|table| at.checked_sub(table.svma).is_some_and(|offset| offset < table.file.len() as u64))
    }

    /// Whether a call goes to a stub of the linker or out of the text.
    fn leaves(&self, target: u64) -> bool {
        self.image.text_index(target).is_none_or(|index| self.image.text[index].stubs)
    }

    fn branch(&self, i: &Instruction, target: u64, unit: &SweepUnit, is_part: bool, out: &mut Swept, function: usize) {
        self.arrivals.set(target);
        if (unit.start..unit.end).contains(&target) {
            if unit.functions.len() > 1 && unit.innermost(i.ip()) != unit.innermost(target) {
                self.branched.set(target);
            }
            // The byte four bytes before the target counts as well, because the function may begin with an endbr64.
            for start in [target, target.wrapping_sub(4)] {
                if let Ok(at) = unit.functions.binary_search_by_key(&start, |f| f.0)
                    && (start == target || self.image.begins_with_endbr(start))
                    && (start..unit.functions[at].1).contains(&i.ip())
                {
                    out.back_branches.push((start, i.ip()));
                }
            }
            return;
        }
        out.facts[function].calls_out |= self.leaves(target);
        if let Some(part) = self.part_with(target) {
            let conditional = i.flow_control() == FlowControl::ConditionalBranch;
            out.to_parts.push(PartJump { part, from: i.ip(), conditional });
            out.around_parts.push((i.ip(), target));
        } else if is_part {
            out.around_parts.push((i.ip(), target));
        } else {
            out.others.push((i.ip(), target));
        }
    }

    /// Records the addresses outside of the function with which an instruction compares a value.
    fn comparison(&self, i: &Instruction, fixed: bool, (start, end): (u64, u64), before: &[Instruction]) {
        if i.mnemonic() != Mnemonic::Cmp {
            return;
        }
        for at in compared_with(i, fixed, before).filter(|at| !(start..end).contains(at)) {
            self.address_taken(at);
            self.compared.set(at);
        }
    }

    /// Start of the possible part that contains an address.
    fn part_with(&self, at: u64) -> Option<u64> {
        let after = self.parts.partition_point(|part| part.0 <= at);
        let (start, end) = *self.parts.get(after.checked_sub(1)?)?;
        (at < end).then_some(start)
    }

    /// Records the address of code that an instruction computes or has as an immediate, and whether the instruction sets the gs base.
    fn address(&self, i: &Instruction, fixed: bool, index: usize, set_gs_at: &mut Option<usize>, out: &mut Swept) {
        match i.code() {
            Code::Lea_r64_m => constant_address(i).into_iter().for_each(|at| self.address_taken(at)),
            Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 | Code::Mov_rm32_imm32 | Code::Pushq_imm32 => {
                let value = i.immediate32();
                if i.code() == Code::Mov_r32_imm32 && value == ARCH_SET_GS {
                    *set_gs_at = Some(index);
                }
                if fixed {
                    self.address_taken(u64::from(value));
                }
            }
            Code::Mov_r64_imm64 if fixed => self.address_taken(i.immediate64()),
            Code::Wrgsbase_r32 | Code::Wrgsbase_r64 => out.sets_gs = true,
            _ => {}
        }
    }

    /// Notes the sum of an address of code and a small number, as hand-made return addresses are computed: `lea f(%rip), %rcx; inc %rcx`.
    /// `before` are the instructions before `i`.
    fn sum(&self, i: &Instruction, fixed: bool, before: &[Instruction]) {
        let number = match i.code() {
            Code::Inc_rm64 => 1,
            Code::Add_rm64_imm8 => i.immediate(1),
            _ => return,
        };
        let register = i.op0_register();
        let made = before.iter().rev().find(|made| made.op0_register().full_register() == register);
        let address = match made.map(|made| (made, made.code())) {
            Some((made, Code::Lea_r64_m)) => constant_address(made),
            Some((made, Code::Mov_r32_imm32)) if fixed => Some(u64::from(made.immediate32())),
            Some((made, Code::Mov_rm64_imm32)) if fixed => Some(made.immediate(1)),
            _ => None,
        };
        address.into_iter().for_each(|at| self.address_taken(at.wrapping_add(number)));
    }

    fn address_taken(&self, svma: u64) {
        self.arrivals.set(svma);
        self.addressed.set(svma);
    }

    fn indirect_jumps(&self, unit: &SweepUnit, code: &[Instruction], indirect: &[usize], out: &mut Swept) {
        let whole = unit.start..unit.end;
        // A compiled function has more bytes than distinct targets. The budget keeps the cost of any other one in proportion to its size.
        let mut budget = 16 * (unit.end - unit.start) as usize + 256;
        let resolved = self.resolve(unit, code, indirect, &mut budget);
        let mut first_unresolved = None;
        for (&jump, resolved) in indirect.iter().zip(resolved) {
            let mut unresolved = false;
            match resolved {
                ResolvedJump::Table(TableTargets { places: targets, tables, .. }) => {
                    targets.iter().for_each(|t| self.arrivals.set(*t));
                    let from = code[jump].ip();
                    for &target in targets.iter().filter(|t| !whole.contains(*t)) {
                        let part = self.part_with(target);
                        out.to_parts.extend(part.map(|part| PartJump { part, from, conditional: true }));
                        out.others.push((from, target));
                    }
                    out.tables.extend(tables);
                }
                // Whether it leaves the function is not known. Callers of a computed goto know what the function overwrites.
                ResolvedJump::Pointer => {}
                ResolvedJump::Distances(tables) => {
                    unresolved = true;
                    for target in tables.iter().flat_map(|table| self.candidate(&whole, *table, &mut budget)) {
                        self.arrivals.set(target);
                        unresolved = false;
                    }
                }
            }
            if unresolved {
                first_unresolved = first_unresolved.or(Some(code[jump].ip()));
            }
        }
        for facts in &mut out.facts {
            facts.unresolved = first_unresolved;
        }
    }

    /// Resolves the indirect jumps of a unit, until tables lead to no more addresses. All instructions count as reached.
    fn resolve(
        &self,
        unit: &SweepUnit,
        code: &[Instruction],
        indirect: &[usize],
        budget: &mut usize,
    ) -> Vec<ResolvedJump> {
        let inside = unit.start..unit.end;
        let entries = unit.functions.iter().map(|f| f.0).collect();
        let mut before = Predecessors::new(code, entries, Vec::new());
        let memory = TableMemo::new(code.len());
        let mut resolved: Vec<ResolvedJump> = Vec::new();
        for _ in 0..ROUNDS {
            let (image, pointers, inside) = (self.image, self.pointers, std::slice::from_ref(&inside));
            let resolver =
                JumpResolver { image, pointers, code, inside, before: &before, tables: &[], memory: &memory };
            let again: Vec<_> = indirect.iter().map(|jump| resolver.resolve(*jump, budget)).collect();
            if again == resolved {
                break;
            }
            resolved = again;
            let tables = indirect.iter().zip(&resolved).filter_map(|(jump, resolved)| match resolved {
                ResolvedJump::Table(targets) => Some((*jump, targets)),
                _ => None,
            });
            before.add_tables(tables.map(|(jump, targets)| (jump, &targets.places)));
        }
        resolved
    }

    /// Distances read from a table whose bound is not known, as targets inside of the unit.
    fn candidate(&self, whole: &Range<u64>, table: u64, budget: &mut usize) -> Vec<u64> {
        let Some(bytes) = self.image.data_from(table) else { return Vec::new() };
        let distances = bytes.chunks_exact(4).take(*budget).map_while(|bytes| u32_at(bytes, 0));
        let targets = distances.map(|d| table.wrapping_add(i64::from(d as i32) as u64));
        let targets: Vec<u64> = targets.take_while(|target| whole.contains(target)).collect();
        *budget -= targets.len();
        targets
    }
}

/// The addresses with which an instruction compares a value. `before` are the instructions before it; `fixed` tells whether the image has
/// one address only, so that a number may be the address of code.
fn compared_with<'c>(
    i: &'c Instruction,
    fixed: bool,
    before: &'c [Instruction],
) -> impl Iterator<Item = u64> + use<'c> {
    let number = (fixed && matches!(i.op1_kind(), OpKind::Immediate32to64)).then(|| i.immediate32to64() as u64);
    let registers = [(i.op0_kind(), i.op0_register()), (i.op1_kind(), i.op1_register())].into_iter();
    let registers = registers.filter(|(kind, register)| *kind == OpKind::Register && register.is_gpr64());
    let made = move |(_, register): (OpKind, Register)| {
        let made = before.iter().rev().find(|made| made.op0_register().full_register() == register)?;
        match made.code() {
            Code::Lea_r64_m => constant_address(made),
            Code::Mov_r32_imm32 if fixed => Some(u64::from(made.immediate32())),
            Code::Mov_rm64_imm32 | Code::Mov_r64_imm64 if fixed => made.try_immediate(1).ok(),
            _ => None,
        }
    };
    number.into_iter().chain(registers.filter_map(made))
}

/// Whether code at an address has a form that only a hand-made return address needs: a one-byte `nop`, a call, and a `nop`, so that the
/// byte before the return address and the call itself lie in one function (Go's `goexit`).
pub(crate) fn is_returned_into(image: &Elf, start: u64) -> bool {
    image.data_at(start, 7).is_some_and(|b| b[..2] == [0x90, 0xe8] && b[6] == 0x90)
}

/// Whether control can continue after an instruction. It can after a call, whose return address the pass has noted already.
fn falls_through(i: &Instruction) -> bool {
    let transfer = ControlTransfer::of(i);
    transfer.runs_on() || transfer.comes_back()
}

/// Decodes from start to end, then again from every branch target of the unit that is no instruction boundary so far. Leaves the
/// instructions sorted; returns the address of the first bytes that are no instruction.
fn decode_all(image: &Elf, start: u64, end: u64, decoded: &mut DecodedRange) -> Option<u64> {
    let DecodedRange { code, boundaries, pending } = decoded;
    code.clear();
    pending.clear();
    boundaries.clear();
    boundaries.resize(((end - start) as usize).div_ceil(64), 0);
    let mut bad = None;
    decode::range(
        image,
        start,
        end,
        code,
        |_| true,
        |at| {
            bad.get_or_insert(at);
        },
    );
    for i in code.iter() {
        let at = (i.ip() - start) as usize;
        boundaries[at / 64] |= 1 << (at % 64);
    }
    let linear = code.len();
    let mut seen = 0;
    // At most one decoding begins at each byte, so the loop ends.
    while seen < code.len() {
        for i in &code[seen..] {
            if matches!(i.op0_kind(), OpKind::NearBranch64) {
                let target = i.near_branch_target();
                if (start..end).contains(&target) {
                    let at = (target - start) as usize;
                    if boundaries[at / 64] >> (at % 64) & 1 == 0 {
                        pending.push(target);
                    }
                }
            }
        }
        seen = code.len();
        for target in pending.drain(..) {
            let fresh = |at: u64| {
                let at = (at - start) as usize;
                let new = boundaries[at / 64] >> (at % 64) & 1 == 0;
                boundaries[at / 64] |= 1 << (at % 64);
                new
            };
            decode::range(image, target, end, code, fresh, |_| {});
        }
    }
    if code.len() > linear {
        code.sort_by_key(|i| i.ip());
    }
    bad
}

/// The instructions of a range of code, sorted, as the pass decodes them.
pub(crate) fn instructions(image: &Elf, start: u64, end: u64) -> Vec<Instruction> {
    let mut decoded = DecodedRange::default();
    decode_all(image, start, end, &mut decoded);
    decoded.code
}
