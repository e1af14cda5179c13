//! Reachability in one function: the instructions that control reaches, the transfers between them, and the ways in and out.

use iced_x86::{Code, FlowControl, Instruction};
use ingraft_model::{Refusal, Svma};

use crate::file::elf::ImageKind;
use crate::flow::body::DecodedFunction;
use crate::flow::jumps;
use crate::flow::traversal::{Doubts, FoundTransfers, REACHED, Traversal};
use crate::flow::ways_in;
use crate::functions::discovered::SideEntry;
use crate::text::decode;

/// Control flow of a function, first from the entry and the landing pads alone, then from all ways in.
pub(crate) struct FlowGraph {
    /// For each instruction of the body, whether control reaches it from the entry or a landing pad.
    reached: Vec<u8>,
    /// For each instruction, whether control reaches it from any way in, and whether it begins a block ([`REACHED`], `LEADER`).
    pub marks: Vec<u8>,
    /// Transfers of control that are reached from the entry or a landing pad.
    pub found: FoundTransfers,
    /// Transfers of control that are reached only from other ways in.
    pub others: FoundTransfers,
    /// The ways in from outside, except returns from calls and entries of jump tables.
    pub ways_in: Vec<ingraft_model::WayIn>,
    /// Reasons why the ways in and out are not proven.
    pub doubts: Doubts,
}

impl FlowGraph {
    /// Follows control from the entry, the landing pads and then every other way in. Control is assumed to return from every call.
    pub fn new(body: &DecodedFunction<'_>) -> FlowGraph {
        Self::of(Traversal::new(body))
    }

    /// Follows control as [`FlowGraph::new`] does, but never examines callees, not even to resolve jump tables.
    pub fn with_all_returns(body: &DecodedFunction<'_>) -> FlowGraph {
        Self::of(Traversal { trusts_calls: true, ..Traversal::new(body) })
    }

    fn of(mut traversal: Traversal<'_>) -> FlowGraph {
        let body = traversal.body;
        traversal.work.push(body.function.start);
        for range in &body.inside {
            traversal.work.extend(body.image.landing_pads_in(range));
        }
        traversal.found.unstated.clone_from(&traversal.work);
        jumps::settle(&mut traversal);
        let unexplained = is_entered_otherwise(body, &traversal.marks);
        let (first, mut found) = (traversal.jumps.len(), std::mem::take(&mut traversal.found));
        let before = traversal.marks.clone();
        let ways_in = ways_in::enter(&mut traversal);
        let reached = if before == traversal.marks { Vec::new() } else { before };
        jumps::conclude(&mut traversal, &mut found, first);
        found.sort();
        traversal.found.sort();
        let Traversal { marks, found: others, doubts, .. } = traversal;
        let mut graph = FlowGraph { reached, marks, found, others, ways_in, doubts };
        if unexplained {
            graph.doubts.ways_out.get_or_insert(Refusal::EnteredFromElsewhere);
        }
        if let Some(refusal) = graph.left_behind(body, |index| graph.reaches(index)) {
            graph.doubts.ways_out.get_or_insert(refusal);
        }
        if let Some(refusal) = graph.left_behind(body, |index| graph.marks[index] & REACHED != 0) {
            graph.doubts.ways_in.get_or_insert(refusal);
        }
        graph
    }

    /// Returns the control flow of a function if all of its ways out are known. Otherwise the error is the first reason why they are not.
    pub fn complete(body: &DecodedFunction<'_>) -> Result<FlowGraph, Refusal> {
        let graph = FlowGraph::new(body);
        match &graph.doubts.ways_out {
            Some(refusal) => Err(refusal.clone()),
            None => Ok(graph),
        }
    }

    /// Whether control reaches the instruction of that index from the entry or a landing pad.
    pub fn reaches(&self, index: usize) -> bool {
        let marks = if self.reached.is_empty() { &self.marks } else { &self.reached };
        marks.get(index).is_some_and(|mark| mark & REACHED != 0)
    }

    /// Whether the instruction of that index leaves the function.
    pub fn leaves(&self, index: usize) -> bool {
        self.found.exits.binary_search(&index).is_ok()
    }

    /// Addresses of the jumps to an address. `None` if control may arrive there in ways other than these jumps, falling through and
    /// returns.
    pub fn jumps_to(&self, at: u64) -> Option<impl Iterator<Item = u64> + '_> {
        let branches = &self.found.branches;
        let first = branches.partition_point(|b| b.0 < at);
        let jumps = branches[first..].iter().take_while(move |b| b.0 == at).map(|b| b.1);
        self.found.unstated.binary_search(&at).is_err().then_some(jumps)
    }

    /// Refusal for the first jump through a pointer, if the function has code that was not reached, to which
    /// that jump could lead: the program may compute addresses of code that nothing names, as LuaJIT does with offsets of its bytecodes.
    fn left_behind<'a>(&'a self, body: &DecodedFunction<'_>, is_reached: impl Fn(usize) -> bool) -> Option<Refusal> {
        let through_register = |index: &&usize| {
            let i = &body.code[**index];
            i.flow_control() == FlowControl::IndirectBranch && !i.is_ip_rel_memory_operand()
        };
        let through = |found: &'a FoundTransfers| found.exits.iter().chain(&found.dynamic).chain(&found.gotos);
        let jump = [&self.found, &self.others].into_iter().flat_map(through).filter(through_register).min()?;
        let left = |index: &usize| {
            let i = &body.code[*index];
            !is_reached(*index) && !decode::is_nop(i) && i.code() != Code::Int3
        };
        let offset = body.function.offset_of(body.code[*jump].ip());
        (0..body.code.len()).any(|index| left(&index)).then_some(Refusal::UnresolvedJump { offset })
    }

    /// Whether control can arrive at an address other than by falling through, or a static probe is there: in both cases, no springboard that
    /// begins before it may cover it.
    pub fn lands(&self, body: &DecodedFunction<'_>, at: u64) -> bool {
        self.arrives(body, at) || body.is_resumed(at)
    }

    /// Whether only a number of a file without relocations speaks for an address that lies within an instruction to which control leads.
    fn equals_by_chance(&self, body: &DecodedFunction<'_>, at: u64) -> bool {
        let entry = || body.image.side_entries_in(&(at..at + 1)).first();
        if body.image.elf().kind() != ImageKind::Executable || !entry().is_some_and(SideEntry::may_be_a_number) {
            return false;
        }
        let next = body.code.partition_point(|i| i.ip() < at);
        let begins = body.code.get(next).is_some_and(|i| i.ip() == at);
        let before = body.code[..next].iter().zip(&self.marks).rev().take_while(|(i, _)| i.ip() + 15 > at);
        let mut covering = before.filter(|(i, mark)| i.next_ip() > at && **mark & REACHED != 0);
        !begins && covering.next().is_some()
    }

    /// As [`FlowGraph::lands`], apart from calls that the language's runtime has suspended.
    pub fn arrives(&self, body: &DecodedFunction<'_>, at: u64) -> bool {
        body.image.arrivals().get(at) && !self.equals_by_chance(body, at)
            || self.found.joins.binary_search(&at).is_ok()
            || body.image.is_probe(at)
    }
}

/// Whether control may arrive at an instruction that was not reached. If one way in is unknown, a way out may be unknown too. The first
/// byte of a part does not count, because the table of functions alone lists it as such a place.
fn is_entered_otherwise(body: &DecodedFunction<'_>, marks: &[u8]) -> bool {
    let elsewhere =
        |at| body.image.function_containing(Svma(at)).is_some_and(|other| other.start != body.function.start);
    let starts_part = |at| body.inside.iter().any(|range| range.start == at);
    // Padding only leads to the instruction after it.
    let leads_on = |index: usize| {
        let rest = &body.code[index..];
        let filling = rest.iter().take_while(|i| decode::is_nop(i)).count();
        let straight = rest.windows(2).take(filling).all(|pair| pair[0].next_ip() == pair[1].ip());
        filling > 0 && straight && marks.get(index + filling).is_some_and(|mark| mark & REACHED != 0)
    };
    let unexplained = |(index, i): (usize, &Instruction)| {
        let at = i.ip();
        let entered = marks[index] & REACHED == 0 && body.image.arrivals().get(at);
        entered && !starts_part(at) && !elsewhere(at) && !leads_on(index)
    };
    body.code.iter().enumerate().any(unexplained)
}
