//! The walk along control flow from given places of one function.

use ingraft_model::{Refusal, Svma};

use crate::flow::body::Body;
use crate::flow::jumps::{Jump, Leads};
use crate::functions::jump_table::Memory;
use crate::functions::sweep;
use crate::text::decode;
use crate::text::transfer::Transfer;

/// Transfers that a walk has found. Instructions are named by their index in the body.
#[derive(Default)]
pub(crate) struct Found {
    /// Instructions that leave the function: returns, and jumps to other functions.
    pub exits: Vec<usize>,
    /// Places at which a walk began, or to which a branch or table leads.
    pub joins: Vec<u64>,
    /// Branches to stated places inside: target, and address of the branch.
    pub branches: Vec<(u64, u64)>,
    /// The places at which control arrives by a table, by an exception, or from outside.
    pub unstated: Vec<u64>,
    /// The first bytes behind the function or a part of it, where control runs off the end.
    pub runs_on: Vec<u64>,
    /// Indirect jumps through a table, and the targets.
    pub tables: Vec<(usize, Vec<u64>)>,
    /// Indirect jumps that may leave through a pointer.
    pub dynamic: Vec<usize>,
    /// Indirect jumps whose targets inside of the function are not all known.
    pub unresolved: Vec<usize>,
}

impl Found {
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

/// Marks of instructions.
pub(crate) const REACHED: u8 = 1;
/// The instruction begins a block.
pub(crate) const LEADER: u8 = 2;

pub(crate) struct Walk<'a> {
    pub body: &'a Body<'a>,
    pub budget: usize,
    pub work: Vec<u64>,
    /// For each instruction of the body, [`REACHED`] and [`LEADER`].
    pub marks: Vec<u8>,
    pub found: Found,
    pub doubts: Doubts,
    /// Calls that are known to never return, by index, sorted.
    pub last_calls: Vec<usize>,
    /// Whether all calls count as such that return.
    pub trusts_calls: bool,
    /// Indirect jumps that are reached, in the order in which they were found.
    pub jumps: Vec<Jump>,
    /// Number of instructions that are reached.
    pub reached: usize,
    /// The same when the indirect jumps were last found to lead nowhere new.
    pub settled: usize,
    /// Whether only tables count so far whose end a bound of the index proves.
    pub exact_tables: bool,
    /// Work on jump tables.
    pub memory: Memory,
}

impl<'a> Walk<'a> {
    pub fn new(body: &'a Body<'a>) -> Self {
        let marks = vec![0; body.code.len()];
        let budget = body.budget();
        Walk {
            body,
            budget,
            work: Vec::new(),
            marks,
            found: Found::default(),
            doubts: Doubts::default(),
            jumps: Vec::new(),
            last_calls: Vec::new(),
            trusts_calls: false,
            reached: 0,
            settled: 0,
            exact_tables: true,
            memory: Memory::new(body.code.len()),
        }
    }

    /// Follows control from the places in `work`, on behind calls as if all returned.
    pub(super) fn run(&mut self) {
        while let Some(at) = self.work.pop() {
            self.found.joins.push(at);
            self.path(at);
        }
    }

    /// Straight on from an address until control goes elsewhere or has been there.
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
                // Instructions that overlap may lead to one place, which then begins a block.
                *mark |= LEADER;
                return;
            }
            *mark |= REACHED;
            self.reached += 1;
            let i = &body.code[index];
            let transfer = Transfer::of(i);
            match transfer {
                Transfer::Next => begins = false,
                Transfer::Branch(to) => {
                    self.branch(index, to);
                    begins = true;
                }
                Transfer::Transaction(to) => {
                    let (offset, why) = (body.function.offset_of(i.ip()), "a hardware transaction begins there");
                    self.doubts.ways_in.get_or_insert(Refusal::NotDisplaceable { offset, why });
                    self.branch(index, to);
                    begins = true;
                }
                Transfer::Jump(to) => return self.branch(index, to),
                Transfer::Indirect => return self.indirect(index),
                Transfer::Return => return self.found.exits.push(index),
                Transfer::Stop => return,
                Transfer::Call(_) | Transfer::IndirectCall | Transfer::System => begins = true,
            }
            at = i.next_ip();
            next = body.code.get(index + 1).filter(|i| i.ip() == at).map(|_| index + 1).or_else(|| body.index_of(at));
            if next.is_none() && !body.contains(at) {
                // The callee of a call at the end does not return, and behind a crash nothing follows.
                let calls = matches!(transfer, Transfer::Call(_) | Transfer::IndirectCall | Transfer::System);
                self.found.runs_on.extend((!calls && !decode::crashes(i)).then_some(at));
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
        // Behind a call that never returns, compilers leave jumps to the end of the function: never taken, and no harm as an exit.
        let ends = self.body.inside.iter().any(|range| range.end == target);
        if !ends && !self.body.image.is_tail_target(target) && self.may_come_back(target) {
            let refusal = self.unresolved(index);
            self.doubts.ways_out.get_or_insert(refusal);
        }
        self.found.exits.push(index);
    }

    /// Whether a jump into the middle of another function may lead back into this one, as a jump to a part would. Hand-written functions
    /// that share their ends do not.
    fn may_come_back(&mut self, target: u64) -> bool {
        let body = self.body;
        let Some(other) = body.image.function_containing(Svma(target)) else { return true };
        let Some(left) = self.budget.checked_sub(other.size as usize) else { return true };
        self.budget = left;
        let comes_back = |i: &iced_x86::Instruction| {
            let target = Transfer::of(i).branch_target();
            target.is_some_and(|target| target != body.function.start && body.contains(target))
        };
        sweep::instructions(body.image.elf(), other.start, other.start + other.size).iter().any(comes_back)
    }

    fn indirect(&mut self, index: usize) {
        // Through a slot of the loader, or a pointer variable.
        if self.body.code[index].is_ip_rel_memory_operand() {
            self.found.exits.push(index);
            self.found.dynamic.push(index);
        } else {
            self.jumps.push(Jump { index, leads: Leads::Unknown });
        }
    }

    pub fn unresolved(&self, index: usize) -> Refusal {
        Refusal::UnresolvedJump { offset: self.body.function.offset_of(self.body.code[index].ip()) }
    }
}
