//! The walk along control flow from given places of one function.

use iced_x86::OpKind;
use ingraft_model::{Refusal, Svma};

use crate::flow::body::{Body, Indirect};
use crate::functions::discovered::Door;
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
    fn both(&mut self, refusal: Refusal) {
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
}

impl<'a> Walk<'a> {
    pub fn new(body: &'a Body<'a>) -> Self {
        let marks = vec![0; body.code.len()];
        let budget = body.budget();
        Walk { body, budget, work: Vec::new(), marks, found: Found::default(), doubts: Doubts::default() }
    }

    /// Follows control from the places in `work`, on behind calls as if all returned.
    pub fn run(&mut self) {
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
        let i = &self.body.code[index];
        // Through a slot of the loader, or a pointer variable.
        if i.is_ip_rel_memory_operand() {
            return self.found.exits.push(index);
        }
        let inside = |at: &u64| self.body.contains(*at);
        let refusal = self.unresolved(index);
        if !matches!(i.op0_kind(), OpKind::Register | OpKind::Memory) {
            self.found.unresolved.push(index);
            return self.doubts.both(refusal);
        }
        match self.body.indirect(index, &mut self.budget) {
            Indirect::Table(t) if t.bounded && t.places.iter().all(inside) => {
                self.found.unstated.extend(&t.places);
                self.work.extend(&t.places);
                self.found.tables.push((index, t.places));
            }
            Indirect::Table(t) if t.bounded && !t.places.iter().any(inside) => self.found.exits.push(index),
            Indirect::Leaves => self.found.exits.push(index),
            Indirect::Pointer => {
                self.pointer(index);
                self.doubts.ways_out.get_or_insert(refusal);
            }
            Indirect::Table(t) if t.absolute => {
                self.pointer(index);
                self.doubts.ways_out.get_or_insert(refusal);
            }
            Indirect::Table(_) | Indirect::Unknown => {
                self.found.unresolved.push(index);
                self.doubts.both(refusal);
            }
        }
    }

    /// A jump through a pointer leads only to places whose address is taken, if it does not leave the function.
    fn pointer(&mut self, index: usize) {
        let (body, image) = (self.body, self.body.image);
        let doors = body.inside.iter().flat_map(|range| image.doors_in(range));
        let taken = doors.filter(|door| door.why & Door::ADDRESSED != 0).map(|door| door.at);
        let places: Vec<u64> = taken.filter(|at| body.index_of(*at).is_some()).collect();
        self.found.unstated.extend(&places);
        self.work.extend(&places);
        self.found.tables.push((index, places));
    }

    fn unresolved(&self, index: usize) -> Refusal {
        Refusal::UnresolvedJump { offset: self.body.function.offset_of(self.body.code[index].ip()) }
    }
}
