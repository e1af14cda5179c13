//! What control can reach in one function, and where it leaves.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic};
use ingraft_model::{Refusal, Svma};

use crate::flow::body::{Body, Indirect, is_direct_branch};
use crate::functions::sweep;
use crate::text::decode;

/// The way of control through a function.
pub(crate) struct Flow {
    /// For each instruction of the body, whether control reaches it.
    pub reached: Vec<bool>,
    /// Instructions that leave the function: returns and jumps to other functions. Sorted.
    pub exits: Vec<usize>,
    /// Where its own jumps land, sorted.
    pub joins: Vec<u64>,
    /// Its jumps to stated places inside: where each lands, and where it lies. Sorted.
    pub branches: Vec<(u64, u64)>,
    /// Where control arrives by a table, by an exception, or from outside. Sorted.
    pub unstated: Vec<u64>,
    /// The first bytes behind it or a part of it, where control runs off the end.
    pub runs_on: Vec<u64>,
}

/// Follows control from the entry and the landing pads, on behind calls as if all returned. Fails unless it is known where every jump leads.
pub(crate) fn follow(body: &Body<'_>) -> Result<Flow, Refusal> {
    let mut walk = Walk {
        body,
        budget: body.budget(),
        work: vec![body.function.start],
        flow: Flow {
            reached: vec![false; body.code.len()],
            exits: Vec::new(),
            joins: Vec::new(),
            branches: Vec::new(),
            unstated: Vec::new(),
            runs_on: Vec::new(),
        },
    };
    for range in &body.inside {
        walk.work.extend(body.image.landing_pads_in(range));
    }
    walk.flow.unstated.clone_from(&walk.work);
    while let Some(at) = walk.work.pop() {
        walk.flow.joins.push(at);
        walk.path(at)?;
    }
    let mut flow = walk.flow;
    // Where control arrives by a way that is not known, it may leave by one that is not known either. The table of functions alone makes
    // the first byte of a part such a place.
    let elsewhere =
        |at| body.image.function_containing(Svma(at)).is_some_and(|other| other.start != body.function.start);
    let starts_part = |at| body.inside.iter().any(|range| range.start == at);
    let unexplained = |(i, reached): (&Instruction, &bool)| {
        let at = i.ip();
        !reached && body.image.arrivals().get(at) && !starts_part(at) && !elsewhere(at)
    };
    if body.code.iter().zip(&flow.reached).any(unexplained) {
        return Err(Refusal::EnteredFromElsewhere);
    }
    // A jump through a register surely leaves the function only if no code is left inside that it could lead to.
    let through_register = |i: &&usize| {
        let i = &body.code[**i];
        i.flow_control() == FlowControl::IndirectBranch && !i.is_ip_rel_memory_operand()
    };
    if let Some(jump) = flow.exits.iter().find(through_register) {
        let left = |(i, reached): (&Instruction, &bool)| !reached && !decode::is_nop(i) && i.code() != Code::Int3;
        if body.code.iter().zip(&flow.reached).any(left) {
            return Err(Refusal::UnresolvedJump { offset: body.function.offset_of(body.code[*jump].ip()) });
        }
    }
    flow.joins.sort_unstable();
    flow.joins.dedup();
    flow.branches.sort_unstable();
    flow.unstated.sort_unstable();
    flow.exits.sort_unstable();
    flow.runs_on.sort_unstable();
    flow.runs_on.dedup();
    Ok(flow)
}

impl Flow {
    /// Whether the instruction of that index leaves the function.
    pub fn leaves(&self, index: usize) -> bool {
        self.exits.binary_search(&index).is_ok()
    }

    /// The jumps to an address, if these are all ways by which control arrives there other than by running on or returning.
    pub fn jumps_to(&self, at: u64) -> Option<impl Iterator<Item = u64> + '_> {
        let first = self.branches.partition_point(|b| b.0 < at);
        let jumps = self.branches[first..].iter().take_while(move |b| b.0 == at).map(|b| b.1);
        self.unstated.binary_search(&at).is_err().then_some(jumps)
    }

    /// Whether control can arrive at an address other than by running on.
    pub fn lands(&self, body: &Body<'_>, at: u64) -> bool {
        body.image.arrivals().get(at) || self.joins.binary_search(&at).is_ok() || body.is_resumed(at)
    }
}

struct Walk<'a> {
    body: &'a Body<'a>,
    budget: usize,
    work: Vec<u64>,
    flow: Flow,
}

impl Walk<'_> {
    /// Straight on from an address until control goes elsewhere or has been there.
    fn path(&mut self, mut at: u64) -> Result<(), Refusal> {
        let body = self.body;
        let mut next = body.index_of(at);
        loop {
            let index = next.ok_or_else(|| Refusal::UnknownInstruction { offset: body.function.offset_of(at) })?;
            if std::mem::replace(&mut self.flow.reached[index], true) {
                return Ok(());
            }
            let i = &body.code[index];
            match i.flow_control() {
                FlowControl::ConditionalBranch | FlowControl::XbeginXabortXend if is_direct_branch(i) => {
                    self.branch(index, i.near_branch_target())?;
                }
                FlowControl::UnconditionalBranch if is_direct_branch(i) => {
                    return self.branch(index, i.near_branch_target());
                }
                FlowControl::IndirectBranch => return self.indirect(index),
                FlowControl::Return => {
                    self.flow.exits.push(index);
                    return Ok(());
                }
                FlowControl::Exception | FlowControl::UnconditionalBranch => return Ok(()),
                _ if matches!(i.code(), Code::Int3 | Code::Hlt) => return Ok(()),
                _ => {}
            }
            at = i.next_ip();
            next = body.code.get(index + 1).filter(|i| i.ip() == at).map(|_| index + 1).or_else(|| body.index_of(at));
            if next.is_none() && !body.contains(at) {
                // The callee of a call at the end does not return, and behind a crash nothing follows.
                let calls = matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
                self.flow.runs_on.extend((!calls && !decode::crashes(i)).then_some(at));
                return Ok(());
            }
        }
    }

    fn branch(&mut self, index: usize, target: u64) -> Result<(), Refusal> {
        if self.body.contains(target) {
            self.work.push(target);
            self.flow.branches.push((target, self.body.code[index].ip()));
            return Ok(());
        }
        // Behind a call that never returns, compilers leave jumps to the end of the function: never taken, and no harm as an exit.
        let ends = self.body.inside.iter().any(|range| range.end == target);
        if !ends && !self.body.image.is_tail_target(target) && self.may_come_back(target) {
            return Err(self.unresolved(index));
        }
        self.flow.exits.push(index);
        Ok(())
    }

    /// Whether a jump into the middle of another function may lead back into this one, as a jump to a part would. Hand-written functions
    /// that share their ends do not.
    fn may_come_back(&mut self, target: u64) -> bool {
        let body = self.body;
        let Some(other) = body.image.function_containing(Svma(target)) else { return true };
        let Some(left) = self.budget.checked_sub(other.size as usize) else { return true };
        self.budget = left;
        let comes_back = |i: &Instruction| {
            let target = i.near_branch_target();
            is_direct_branch(i)
                && i.mnemonic() != Mnemonic::Call
                && target != body.function.start
                && body.contains(target)
        };
        sweep::instructions(body.image.elf(), other.start, other.start + other.size).iter().any(comes_back)
    }

    fn indirect(&mut self, index: usize) -> Result<(), Refusal> {
        // Through a slot of the loader, or a pointer variable.
        if self.body.code[index].is_ip_rel_memory_operand() {
            self.flow.exits.push(index);
            return Ok(());
        }
        let inside = |at: &u64| self.body.contains(*at);
        match self.body.indirect(index, &mut self.budget) {
            Indirect::Table(t) if t.bounded && t.places.iter().all(inside) => {
                self.flow.unstated.extend(&t.places);
                self.work.extend(t.places);
            }
            Indirect::Table(t) if t.bounded && !t.places.iter().any(inside) => self.flow.exits.push(index),
            Indirect::Leaves => self.flow.exits.push(index),
            Indirect::Table(_) | Indirect::Unknown => return Err(self.unresolved(index)),
        }
        Ok(())
    }

    fn unresolved(&self, index: usize) -> Refusal {
        Refusal::UnresolvedJump { offset: self.body.function.offset_of(self.body.code[index].ip()) }
    }
}
