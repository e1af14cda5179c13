//! Following of control in one function, from given addresses.

use ingraft_model::{Refusal, Svma};

use crate::flow::body::DecodedFunction;
use crate::flow::jumps::{IndirectJump, Leads};
use crate::functions::jump_table::TableMemo;
use crate::functions::sweep;
use crate::text::decode;
use crate::text::transfer::ControlTransfer;

/// Transfers of control that were found. Each instruction is given by its index in the body.
#[derive(Default)]
pub(crate) struct FoundTransfers {
    /// Instructions that leave the function: returns, and jumps to other functions.
    pub exits: Vec<usize>,
    /// Addresses at which the search began, or to which a branch or a jump table leads.
    pub joins: Vec<u64>,
    /// Direct branches within the function: target, and address of the branch.
    pub branches: Vec<(u64, u64)>,
    /// Addresses at which control arrives by a jump table, by an exception, or from outside.
    pub unstated: Vec<u64>,
    /// The first address after the function or a part of it, if control runs off the end there.
    pub runs_on: Vec<u64>,
    /// Indirect jumps through a table, with their targets.
    pub tables: Vec<(usize, Vec<u64>)>,
    /// Indirect jumps that may leave through a pointer.
    pub dynamic: Vec<usize>,
    /// Indirect jumps through a pointer that stay in the function.
    pub gotos: Vec<usize>,
    /// Indirect jumps whose targets inside of the function are not all known.
    pub unresolved: Vec<usize>,
}

impl FoundTransfers {
    /// Sorts the lists and removes repetitions.
    pub fn sort(&mut self) {
        for list in [&mut self.joins, &mut self.unstated, &mut self.runs_on] {
            list.sort_unstable();
            list.dedup();
        }
        self.branches.sort_unstable();
        self.exits.sort_unstable();
        self.dynamic.sort_unstable();
        self.unresolved.sort_unstable();
        self.tables.sort_unstable();
    }
}

/// First reasons why something about a function is not proven.
#[derive(Clone, Default)]
pub(crate) struct Doubts {
    /// About the ways in.
    pub ways_in: Option<Refusal>,
    /// About the ways out.
    pub ways_out: Option<Refusal>,
}

impl Doubts {
    pub fn both(&mut self, refusal: Refusal) {
        self.ways_in.get_or_insert_with(|| refusal.clone());
        self.ways_out.get_or_insert(refusal);
    }
}

/// Mark of an instruction: control reaches it.
pub(crate) const REACHED: u8 = 1;
/// Mark of an instruction: it begins a block.
pub(crate) const LEADER: u8 = 2;

pub(crate) struct Traversal<'a> {
    pub body: &'a DecodedFunction<'a>,
    pub budget: usize,
    pub work: Vec<u64>,
    /// For each instruction of the body, [`REACHED`] and [`LEADER`].
    pub marks: Vec<u8>,
    pub found: FoundTransfers,
    pub doubts: Doubts,
    /// Indices of the calls that are known to never return, sorted.
    pub last_calls: Vec<usize>,
    /// Whether all calls are assumed to return.
    pub trusts_calls: bool,
    /// Indirect jumps that are reached, in the order in which they were found.
    pub jumps: Vec<IndirectJump>,
    /// Number of instructions that are reached.
    pub reached: usize,
    /// Value of `reached` when the indirect jumps were last resolved and led to no new instruction.
    pub settled: usize,
    /// Whether jump tables are used only if a bound of the index proves their end.
    pub exact_tables: bool,
    /// Results about jump tables that several attempts share.
    pub memory: TableMemo,
}

impl<'a> Traversal<'a> {
    pub fn new(body: &'a DecodedFunction<'a>) -> Self {
        let marks = vec![0; body.code.len()];
        let budget = body.budget();
        Traversal {
            body,
            budget,
            work: Vec::new(),
            marks,
            found: FoundTransfers::default(),
            doubts: Doubts::default(),
            jumps: Vec::new(),
            last_calls: Vec::new(),
            trusts_calls: false,
            reached: 0,
            settled: 0,
            exact_tables: true,
            memory: TableMemo::new(body.code.len()),
        }
    }

    /// Follows control from the addresses in `work`. Control is assumed to return from every call.
    pub(super) fn run(&mut self) {
        while let Some(at) = self.work.pop() {
            self.found.joins.push(at);
            self.path(at);
        }
    }

    /// Follows control from an address, by falling through, until it leaves or comes to an instruction that was reached before.
    fn path(&mut self, mut at: u64) {
        let body = self.body;
        let mut next = body.index_of(at);
        let mut begins = true;
        loop {
            let Some(index) = next else {
                return self.doubts.both(Refusal::UnknownInstruction { offset: body.function.offset_of(at) });
            };
            let mark = &mut self.marks[index];
            if begins {
                *mark |= LEADER;
            }
            if *mark & REACHED != 0 {
                // Overlapping instructions may end at the same address, which then begins a block.
                *mark |= LEADER;
                return;
            }
            *mark |= REACHED;
            self.reached += 1;
            let i = &body.code[index];
            let transfer = ControlTransfer::of(i);
            match transfer {
                ControlTransfer::Next => begins = false,
                ControlTransfer::Branch(to) => {
                    self.branch(index, to);
                    begins = true;
                }
                ControlTransfer::Transaction(to) => {
                    let (offset, why) = (body.function.offset_of(i.ip()), "a hardware transaction begins there");
                    self.doubts.ways_in.get_or_insert(Refusal::NotDisplaceable { offset, why });
                    self.branch(index, to);
                    begins = true;
                }
                ControlTransfer::Jump(to) => return self.branch(index, to),
                ControlTransfer::Indirect => return self.indirect(index),
                ControlTransfer::Return => return self.found.exits.push(index),
                ControlTransfer::Stop => return,
                ControlTransfer::Call(_) | ControlTransfer::IndirectCall | ControlTransfer::System => begins = true,
            }
            at = i.next_ip();
            next = body.code.get(index + 1).filter(|i| i.ip() == at).map(|_| index + 1).or_else(|| body.index_of(at));
            if next.is_none() && !body.contains(at) {
                // The callee of a call at the end does not return, and control does not pass an instruction that crashes.
                let calls = matches!(
                    transfer,
                    ControlTransfer::Call(_) | ControlTransfer::IndirectCall | ControlTransfer::System
                );
                let ends = calls || decode::crashes(i) || decode::crashes_soon(body.image.elf(), at);
                self.found.runs_on.extend((!ends).then_some(at));
                return;
            }
        }
    }

    fn branch(&mut self, index: usize, target: u64) {
        if self.body.contains(target) {
            self.work.push(target);
            self.found.branches.push((target, self.body.code[index].ip()));
            return;
        }
        // After a call that never returns, compilers leave jumps to the end of the function. Such a jump is never taken, so it may count as
        // an exit.
        let ends = self.body.inside.iter().any(|range| range.end == target);
        if !ends && !self.body.image.is_tail_target(target) && self.may_come_back(target) {
            let refusal = self.unresolved(index);
            self.doubts.ways_out.get_or_insert(refusal);
        }
        self.found.exits.push(index);
    }

    /// Whether control may come back from a jump into the middle of another function, because the target is a part of this one. It does not
    /// come back in functions of assembly that share their ends.
    fn may_come_back(&mut self, target: u64) -> bool {
        let body = self.body;
        let Some(other) = body.image.function_containing(Svma(target)) else { return true };
        let Some(left) = self.budget.checked_sub(other.size as usize) else { return true };
        self.budget = left;
        let comes_back = |i: &iced_x86::Instruction| {
            let target = ControlTransfer::of(i).branch_target();
            target.is_some_and(|target| target != body.function.start && body.contains(target))
        };
        sweep::instructions(body.image.elf(), other.start, other.start + other.size).iter().any(comes_back)
    }

    fn indirect(&mut self, index: usize) {
        // The jump goes through a slot of the loader or a pointer variable, so it leaves the function.
        if self.body.code[index].is_ip_rel_memory_operand() {
            self.found.exits.push(index);
            self.found.dynamic.push(index);
        } else {
            self.jumps.push(IndirectJump { index, leads: Leads::Unknown });
        }
    }

    pub fn unresolved(&self, index: usize) -> Refusal {
        Refusal::UnresolvedJump { offset: self.body.function.offset_of(self.body.code[index].ip()) }
    }
}
