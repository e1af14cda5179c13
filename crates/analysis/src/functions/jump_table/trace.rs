//! Definitions of a register that reach an instruction, found by following control backwards.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::functions::jump_table::{STEPS_MAX, constant_address, constant_number};
use crate::text::transfer::ControlTransfer;

/// The ways by which control arrives at the instructions of one function.
#[derive(Debug, Default)]
pub(crate) struct Predecessors {
    /// Branches: (target, index of the branch), sorted.
    branches: Vec<(u64, usize)>,
    /// The jumps through tables. Each list has those with the same targets, sorted: an interpreter may have hundreds, which all lead to hundreds
    /// of places.
    hubs: Vec<Vec<usize>>,
    /// The targets of those jumps: (target, index of the list), sorted.
    hub_targets: Vec<(u64, usize)>,
    /// The targets of each list, with its index.
    hub_indices: FxHashMap<Vec<u64>, usize>,
    /// The definitions that reach the jumps of a list, as far as they were asked for.
    memo: RefCell<FxHashMap<HubQuery, Rc<[ReachingDefinition]>>>,
    /// Addresses at which control arrives from outside, so that no register is known there. Sorted.
    entries: Vec<u64>,
    /// For each instruction, whether control reaches it. Empty if that is not known; then all count as reached.
    reached: Vec<bool>,
    /// Indices of the calls that never return, sorted.
    pub last_calls: Vec<usize>,
    /// Entries that may be none, sorted: only a number of a file without relocations has their value (`LOAD_CONST 1; RETURN_VALUE` in the code of
    /// Python is 0x530164). They say nothing about the length of a table: its content does.
    pub doubtful: Vec<u64>,
}

impl Predecessors {
    /// The predecessors along direct branches, from all instructions or from those that control reaches.
    pub fn new(code: &[Instruction], mut entries: Vec<u64>, reached: Vec<bool>) -> Self {
        let counts = |index: &usize| reached.get(*index).is_none_or(|reached| *reached);
        let target = |index: usize| Some((ControlTransfer::of(code.get(index)?).branch_target()?, index));
        let mut branches: Vec<_> = (0..code.len()).filter(counts).filter_map(target).collect();
        branches.sort_unstable();
        entries.sort_unstable();
        Predecessors { branches, entries, reached, ..Predecessors::default() }
    }

    /// Adds the edges of jumps through tables: the index of each jump, with its targets.
    pub fn add_tables<'t>(&mut self, tables: impl Iterator<Item = (usize, &'t Vec<u64>)>) {
        for (jump, targets) in tables {
            let next = self.hubs.len();
            let hub = match self.hub_indices.get(targets) {
                Some(hub) => *hub,
                None => {
                    self.hub_indices.insert(targets.clone(), next);
                    self.hub_targets.extend(targets.iter().map(|target| (*target, next)));
                    self.hubs.push(Vec::new());
                    next
                }
            };
            self.hubs[hub].push(jump);
        }
        for jumps in &mut self.hubs {
            jumps.sort_unstable();
            jumps.dedup();
        }
        self.hub_targets.sort_unstable();
        self.memo.get_mut().clear();
    }

    /// Whether all instructions count as reached, even those to which no instruction leads.
    pub(super) fn is_guess(&self) -> bool {
        self.reached.is_empty()
    }

    /// Whether control may arrive at an address with unknown registers.
    pub(super) fn is_entry(&self, at: u64) -> bool {
        self.entries.binary_search(&at).is_ok()
    }

    /// Whether an entry may be none.
    pub(super) fn is_doubtful(&self, at: u64) -> bool {
        self.doubtful.binary_search(&at).is_ok()
    }

    /// Calls `found` with the index of each predecessor of an instruction, and whether control arrives from there by a jump.
    pub(super) fn each(&self, code: &[Instruction], index: usize, mut found: impl FnMut(usize, bool)) {
        self.each_direct(code, index, &mut found);
        let jumps = self.hubs_at(code[index].ip()).filter_map(|hub| self.hubs.get(hub)).flatten();
        jumps.for_each(|jump| found(*jump, true));
    }

    /// The same without jumps through tables.
    fn each_direct(&self, code: &[Instruction], index: usize, mut found: impl FnMut(usize, bool)) {
        let at = code[index].ip();
        // Predecessors by falling through end at this address. If instructions overlap, there may be several.
        let near = (index.saturating_sub(15)..index).rev().take_while(|before| code[*before].ip() + 15 >= at);
        for before in near.filter(|before| code[*before].next_ip() == at) {
            let transfer = ControlTransfer::of(&code[before]);
            let counts = self.reached.get(before).is_none_or(|reached| *reached);
            let returns = transfer.comes_back() && self.last_calls.binary_search(&before).is_err();
            if counts && (transfer.runs_on() || returns) {
                found(before, false);
            }
        }
        let first = self.branches.partition_point(|branch| branch.0 < at);
        self.branches[first..].iter().take_while(|branch| branch.0 == at).for_each(|branch| found(branch.1, true));
    }

    /// The lists of jumps through tables that lead to an address.
    fn hubs_at(&self, at: u64) -> impl Iterator<Item = usize> {
        let first = self.hub_targets.partition_point(|target| target.0 < at);
        self.hub_targets[first..].iter().take_while(move |target| target.0 == at).map(|target| target.1)
    }
}

/// A definition that reaches a use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReachingDefinition {
    /// The instruction of this index writes the register.
    At(usize, Register),
    /// The value comes from the caller, from a callee, or from memory.
    Outside,
}

/// A place that holds a value: a register, or eight bytes of the stack at a distance from `rsp` or `rbp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum RegisterOrSlot {
    Register(Register),
    Slot(Register, i64),
}

/// A list of jumps through tables, a place at these jumps, and [`BackwardTrace::through_stack`].
type HubQuery = (usize, RegisterOrSlot, bool);

/// Follows control backwards.
pub(super) struct BackwardTrace<'a> {
    pub code: &'a [Instruction],
    pub before: &'a Predecessors,
    /// Whether calls preserve no register, as in Go.
    pub go: bool,
    /// Number of steps that are left for all searches in the function.
    pub fuel: &'a Cell<usize>,
    /// Whether a value is followed to the stack. A store by another pointer could change it there, if it is no register that a compiler keeps
    /// on the stack but a variable.
    pub through_stack: bool,
}

impl BackwardTrace<'_> {
    /// All definitions of a register that may reach an instruction, given by its index. Copies are followed to their sources. `None` if the
    /// search takes too many steps.
    pub fn definitions(&self, index: usize, register: Register) -> Option<Vec<ReachingDefinition>> {
        self.definitions_of(index, RegisterOrSlot::Register(register.full_register()))
    }

    /// All definitions of the value that an instruction loads from the stack, as [`BackwardTrace::definitions`] finds them. Also `None` if
    /// the instruction loads from elsewhere.
    pub fn definitions_of_slot(&self, index: usize) -> Option<Vec<ReachingDefinition>> {
        let (base, distance) = slot(&self.code[index])?;
        self.definitions_of(index, RegisterOrSlot::Slot(base, distance))
    }

    fn definitions_of(&self, index: usize, holder: RegisterOrSlot) -> Option<Vec<ReachingDefinition>> {
        let mut search = DefinitionSearch::new(STEPS_MAX);
        search.work.push((index, holder));
        self.run(search, true)
    }

    /// The definitions that reach all jumps of a list. They are searched for once.
    fn definitions_at_hub(&self, hub: usize, holder: RegisterOrSlot) -> Option<Rc<[ReachingDefinition]>> {
        let query = (hub, holder, self.through_stack);
        if let Some(known) = self.before.memo.borrow().get(&query) {
            return Some(Rc::clone(known));
        }
        let mut search = DefinitionSearch::new(STEPS_MAX + 2 * self.code.len());
        search.hubs.insert((hub, holder));
        for jump in &self.before.hubs[hub] {
            self.back(&mut search, *jump, holder)?;
        }
        let found: Rc<[ReachingDefinition]> = self.run(search, false)?.into();
        self.before.memo.borrow_mut().insert(query, Rc::clone(&found));
        Some(found)
    }

    /// Goes on with a search to its end. With `remembers`, the definitions that reach jumps through tables are those of their lists.
    fn run(&self, mut search: DefinitionSearch, remembers: bool) -> Option<Vec<ReachingDefinition>> {
        while let Some((at, holder)) = search.work.pop() {
            let ip = self.code[at].ip();
            if self.before.is_entry(ip) {
                search.found.push(ReachingDefinition::Outside);
            }
            let mut ways = Vec::new();
            self.before.each_direct(self.code, at, |before, _| ways.push(before));
            for hub in self.before.hubs_at(ip) {
                if !search.hubs.insert((hub, holder)) {
                    continue;
                }
                if remembers {
                    search.found.extend_from_slice(&self.definitions_at_hub(hub, holder)?);
                } else {
                    ways.extend_from_slice(&self.before.hubs[hub]);
                }
            }
            for before in ways {
                self.back(&mut search, before, holder)?;
            }
        }
        let mut found = search.found;
        found.sort_unstable_by_key(|definition| match definition {
            ReachingDefinition::At(at, _) => *at,
            ReachingDefinition::Outside => usize::MAX,
        });
        found.dedup();
        Some(found)
    }

    /// Goes back over one instruction, and notes what a search finds there.
    fn back(&self, search: &mut DefinitionSearch, before: usize, holder: RegisterOrSlot) -> Option<()> {
        search.steps = search.steps.checked_sub(1)?;
        self.fuel.set(self.fuel.get().checked_sub(1)?);
        match self.step(&mut search.info, before, holder) {
            DefinitionStep::Through(holder) => {
                if search.seen.insert((before, holder)) {
                    search.work.push((before, holder));
                }
            }
            DefinitionStep::Defined(definition) => search.found.push(definition),
        }
        Some(())
    }

    /// The constant that a register holds before an instruction on every path; `None` if there is no such constant.
    pub fn constant(&self, index: usize, register: Register) -> Option<u64> {
        let mut constant = None;
        for definition in self.definitions(index, register)? {
            let value = self.constant_of(definition)?;
            if constant.is_some_and(|other| other != value) {
                return None;
            }
            constant = Some(value);
        }
        constant
    }

    /// The constant that a definition makes; `None` if the value is no constant.
    pub fn constant_of(&self, definition: ReachingDefinition) -> Option<u64> {
        let ReachingDefinition::At(at, _) = definition else { return None };
        let i = &self.code[at];
        match i.code() {
            Code::Lea_r64_m => constant_address(i),
            _ => constant_number(i),
        }
    }

    /// Goes back over one instruction. Returns the place that holds, before the instruction, the value that `holder` has after it; or the
    /// definition, if the instruction computes the value.
    fn step(&self, info: &mut InstructionInfoFactory, at: usize, holder: RegisterOrSlot) -> DefinitionStep {
        let i = &self.code[at];
        match holder {
            RegisterOrSlot::Register(register) => self.register_step(info, i, at, register),
            RegisterOrSlot::Slot(base, distance) => slot_step(info, i, base, distance),
        }
    }

    fn register_step(
        &self,
        info: &mut InstructionInfoFactory,
        i: &Instruction,
        at: usize,
        register: Register,
    ) -> DefinitionStep {
        if is_call(i) {
            // A guess is allowed to assume that code which uses a register after a call knows that the callee preserves it.
            let kept = !self.go && is_callee_saved(register) || self.before.is_guess() && register != Register::RAX;
            return if kept {
                DefinitionStep::Through(RegisterOrSlot::Register(register))
            } else {
                DefinitionStep::Defined(ReachingDefinition::Outside)
            };
        }
        if !writes(info, i, register) {
            return DefinitionStep::Through(RegisterOrSlot::Register(register));
        }
        if i.code() == Code::Mov_r64_rm64 || i.code() == Code::Mov_rm64_r64 {
            if i.op1_kind() == OpKind::Register {
                return DefinitionStep::Through(RegisterOrSlot::Register(i.op1_register()));
            }
            if let Some((base, distance)) = slot(i).filter(|_| self.through_stack) {
                return DefinitionStep::Through(RegisterOrSlot::Slot(base, distance));
            }
        }
        DefinitionStep::Defined(ReachingDefinition::At(at, register))
    }
}

/// State of a search for definitions.
struct DefinitionSearch {
    /// Number of steps that are left.
    steps: usize,
    /// Instructions to go back from, each with the place of the value there.
    work: Vec<(usize, RegisterOrSlot)>,
    seen: FxHashSet<(usize, RegisterOrSlot)>,
    /// Lists of jumps through tables that were searched.
    hubs: FxHashSet<(usize, RegisterOrSlot)>,
    found: Vec<ReachingDefinition>,
    info: InstructionInfoFactory,
}

impl DefinitionSearch {
    fn new(steps: usize) -> Self {
        DefinitionSearch {
            steps,
            work: Vec::new(),
            seen: FxHashSet::default(),
            hubs: FxHashSet::default(),
            found: Vec::new(),
            info: InstructionInfoFactory::new(),
        }
    }
}

enum DefinitionStep {
    Through(RegisterOrSlot),
    Defined(ReachingDefinition),
}

/// Goes back over one instruction, for a value in a slot of the stack.
fn slot_step(info: &mut InstructionInfoFactory, i: &Instruction, base: Register, distance: i64) -> DefinitionStep {
    const OUTSIDE: DefinitionStep = DefinitionStep::Defined(ReachingDefinition::Outside);
    let same = DefinitionStep::Through(RegisterOrSlot::Slot(base, distance));
    if is_call(i) {
        // A callee does not change the slots that its caller uses for spilled registers. It may change its arguments on the stack, but
        // compilers do not read these again.
        return same;
    }
    let moved = match i.mnemonic() {
        _ if base != Register::RSP => 0,
        Mnemonic::Push | Mnemonic::Pop | Mnemonic::Pushfq | Mnemonic::Popfq => i64::from(i.stack_pointer_increment()),
        Mnemonic::Add | Mnemonic::Sub if i.op0_register() == Register::RSP && i.op1_kind() != OpKind::Register => {
            let by = i.immediate(1).cast_signed();
            if i.mnemonic() == Mnemonic::Add { by } else { -by }
        }
        _ => 0,
    };
    if moved == 0 && writes(info, i, base) {
        return OUTSIDE;
    }
    if i.mnemonic() == Mnemonic::Push && base == Register::RSP && distance < 8 {
        let whole = distance == 0 && i.op0_kind() == OpKind::Register;
        return if whole { DefinitionStep::Through(RegisterOrSlot::Register(i.op0_register())) } else { OUTSIDE };
    }
    if i.op0_kind() == OpKind::Memory
        && i.memory_base() == base
        && i.memory_index() == Register::None
        && !matches!(i.mnemonic(), Mnemonic::Cmp | Mnemonic::Test | Mnemonic::Push)
    {
        let start = i.memory_displacement64().cast_signed();
        let size = i.memory_size().size().max(1) as i64;
        if start == distance && i.code() == Code::Mov_rm64_r64 {
            return DefinitionStep::Through(RegisterOrSlot::Register(i.op1_register()));
        }
        if start < distance + 8 && distance < start + size {
            return OUTSIDE;
        }
    }
    DefinitionStep::Through(RegisterOrSlot::Slot(base, distance.wrapping_add(moved)))
}

/// Returns the slot of the stack that an instruction loads, as base register and distance.
fn slot(i: &Instruction) -> Option<(Register, i64)> {
    let base = i.memory_base();
    let plain = matches!(base, Register::RSP | Register::RBP) && i.memory_index() == Register::None;
    (plain && !i.has_segment_prefix()).then(|| (base, i.memory_displacement64().cast_signed()))
}

fn is_call(i: &Instruction) -> bool {
    ControlTransfer::of(i).comes_back()
}

pub(super) fn is_callee_saved(register: Register) -> bool {
    matches!(register, Register::RBX | Register::RBP | Register::RSP)
        || matches!(register, Register::R12 | Register::R13 | Register::R14 | Register::R15)
}

/// Whether an instruction may change any part of a register.
pub(super) fn writes(info: &mut InstructionInfoFactory, i: &Instruction, register: Register) -> bool {
    info.info(i).used_registers().iter().any(|used| {
        used.register().full_register() == register
            && !matches!(used.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    })
}
