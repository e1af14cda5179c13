//! Proof of the copy of a whole function. The text and the copy are decoded side by side, block by block.
//!
//! The copy passes if
//! - each block has one copy, whose instructions have the same effect, and every edge leads to the copy of its target;
//! - calls, system calls and instructions that fault on purpose are not copied: the copy jumps to them;
//! - every springboard leads to the copy of its own block, lies where control can arrive only at its first byte, and covers no instruction
//!   that stays in the text;
//! - every block at which control arrives in the text has a springboard, or is named as exposed, with all blocks to which it leads, or runs
//!   in the text up to a call that leads to the copy;
//! - such a call is the only way out of its block and keeps its length; the copy has the block's probes there, and jumps to the callee;
//! - each probe is a nop or a jump at the position that it names;
//! - each instruction of the copy has one equivalent address in the text, and each original instruction one in the copy;
//! - no thread is moved from behind a system call, because the kernel may restart the call before that address.

use std::collections::BTreeMap;

use iced_x86::{Code, FlowControl, Instruction};
use ingraft_model::{
    Avma, AvmaRange, BlockId, BodyBlock, Edge, EdgeKind, EdgeTarget, Entered, IndexVec, Key, Offset, PatchPlan, PcMove,
    PointId, TextWrite,
};
use rustc_hash::{FxHashMap, FxHashSet};

use super::counting;
use super::equivalence::equal;
use super::memory::{Memory, decode};
use super::with_copy::PointRules;
use super::{Flaw, VerifyError, check_writes, fail};
use crate::code::arena::Arena;
use crate::code::body::{Held, PROBE, Probe, Way, WovenBody};
use crate::code::environment::Environment;
use crate::code::spread::{self, Spread};
use crate::patch::body::{BodyRequest, BodyWeave};
use crate::patch::text_space::TextSpace;

/// Number of blocks before an address that are examined for its bytes.
const NEAR: usize = 70;

/// Number of copies that are proven as one part.
const PART: usize = 32;

/// Proves plans of [`crate::weave_bodies_on`] as [`verify_body`] does each. The proofs are made in parts that `spread` runs.
pub fn verify_bodies_on(
    spread: &dyn Spread,
    env: &Environment,
    arena: &Arena,
    text: &TextSpace,
    copies: &[(&BodyRequest<'_>, &BodyWeave)],
) -> Result<(), VerifyError> {
    let prove = |part: &[(&BodyRequest<'_>, &BodyWeave)]| {
        part.iter().try_for_each(|(request, weave)| verify_body(env, arena, text, request, weave))
    };
    spread::map(spread, copies.chunks(PART).collect(), prove).into_iter().collect()
}

/// Proves a plan of [`crate::weave_body`] and the removal record of the copy.
pub fn verify_body(
    env: &Environment,
    arena: &Arena,
    text: &TextSpace,
    request: &BodyRequest<'_>,
    weave: &BodyWeave,
) -> Result<(), VerifyError> {
    let BodyWeave { plan, body, points } = weave;
    check_writes(&plan.text)?;
    let memory = Memory::new(&plan.code, &arena.range())?;
    let rules = PointRules::of_request(env, arena, request.points);
    let mut proof = BodyProof::new(request, body, &memory, rules);
    proof.claims(plan)?;
    proof.ordinary()?;
    let whole = body.counting.as_ref().is_none_or(|counting| counting.apart.is_none());
    if !whole {
        return fail(body.function.0, Flaw::Unmatched);
    }
    counting::prove(env, arena, &mut proof)?;
    proof.tiled(std::slice::from_ref(&body.removal.code))?;
    proof.probes()?;
    proof.points_with_copy(points)?;
    let doors = proof.springboards(text)?;
    proof.exposed(&doors)?;
    proof.moves(plan, &doors)
}

pub(super) struct BodyProof<'a> {
    pub(super) request: &'a BodyRequest<'a>,
    pub(super) body: &'a WovenBody,
    pub(super) memory: &'a Memory<'a>,
    /// Rules for points that are woven together with the copy.
    pub(super) rules: PointRules<'a>,
    /// Instructions of the copies that are proven: end, and equivalent address in the text.
    pub(super) ends: FxHashMap<u64, (u64, u64)>,
    /// Instructions of the code of points, in which threads have no equivalent address: first byte and end.
    inside: BTreeMap<u64, u64>,
    /// Blocks to which blocks lead that may run in the text, besides the marker.
    mixed: FxHashSet<BlockId>,
    /// Block of the `endbr64` before the block to which callers come, if these are two blocks.
    marker: Option<BlockId>,
    /// Blocks to which the marker leads, if it may run in the text.
    behind_marker: FxHashSet<BlockId>,
    /// Calls that lead to the copy, by their blocks.
    pub(super) calls: BTreeMap<BlockId, Instruction>,
    /// Blocks that lead to others.
    pub(super) leading: FxHashSet<BlockId>,
    /// First byte and end of each instruction that stays in the text.
    kept: BTreeMap<u64, u64>,
    /// Addresses to which system calls return.
    behind_system_calls: FxHashSet<u64>,
    /// Original instructions that are copied, each with the equivalent address in the copy.
    copies: Vec<PcMove>,
    /// The copy of each instruction, behind the probes before it, by its block and its original address.
    pub(super) copied: FxHashMap<(BlockId, u64), u64>,
    /// The probes that were met, as they must be claimed.
    held: Vec<(PointId, Avma, u64, Held)>,
}

/// Springboards of a copy.
struct CopySpringboards {
    /// First byte of each, with the block to whose copy it leads.
    doors: FxHashMap<u64, BlockId>,
    /// First byte of each springboard that makes room for an island, and leads to the copy of the instruction there.
    rooms: FxHashSet<u64>,
    /// First byte of each island.
    islands: FxHashSet<u64>,
}

impl<'a> BodyProof<'a> {
    /// A proof that has not begun.
    pub(super) fn new(
        request: &'a BodyRequest<'a>,
        body: &'a WovenBody,
        memory: &'a Memory<'a>,
        rules: PointRules<'a>,
    ) -> Self {
        BodyProof {
            request,
            body,
            memory,
            rules,
            ends: FxHashMap::default(),
            inside: BTreeMap::new(),
            mixed: FxHashSet::default(),
            marker: None,
            behind_marker: FxHashSet::default(),
            calls: BTreeMap::new(),
            leading: request.body.edges.iter().map(|edge| edge.from).collect(),
            kept: BTreeMap::new(),
            behind_system_calls: FxHashSet::default(),
            copies: Vec::new(),
            copied: FxHashMap::default(),
            held: Vec::new(),
        }
    }

    /// Proves the ordinary copy, but for its springboards and for moves of threads.
    pub(super) fn ordinary(&mut self) -> Result<(), VerifyError> {
        let (request, body) = (self.request, self.body);
        let blocks = &request.body.blocks;
        let starts = || blocks.iter().map(|b| b.block.range.start.to_avma(request.bias));
        let sorted = blocks.as_slice().windows(2).all(|pair| match pair {
            [a, b] => a.block.range.start < b.block.range.start,
            _ => true,
        });
        let stated = body.blocks.iter().map(|way| way.original).eq(starts()) && body.entry == request.body.entry;
        if body.function != request.body.function.to_avma(request.bias) || !stated || !sorted {
            return fail(body.function.0, Flaw::Unmatched);
        }
        self.calls = self.called()?;
        let first = self.block_at(body.function.0);
        self.marker = first.filter(|first| request.body.entry.is_some_and(|entry| entry != *first));
        let from_text = |edge: &Edge| self.is_exposed(edge.from) && Some(edge.from) != self.marker;
        let leads = |edge: &Edge| target(edge).filter(|_| from_text(edge));
        let mixed = request.body.edges.iter().filter_map(leads).collect();
        let of_marker = |edge: &&Edge| Some(edge.from) == self.marker && self.is_exposed(edge.from);
        let behind_marker = request.body.edges.iter().filter(of_marker).filter_map(target).collect();
        (self.mixed, self.behind_marker) = (mixed, behind_marker);
        for (index, block) in blocks.entries() {
            self.block(index, block)?;
        }
        self.arrivals()?;
        self.at_calls()
    }

    /// Checks what a plan and its removal record must have in common.
    fn claims(&self, plan: &PatchPlan) -> Result<(), VerifyError> {
        let body = self.body;
        let at = body.function.0;
        let inverse: Vec<TextWrite> = body.removal.text.iter().map(TextWrite::inverse).collect();
        if inverse != plan.text || !plan.step_out.is_empty() {
            return fail(at, Flaw::Unmatched);
        }
        if !plan.retired.is_empty() { fail(at, Flaw::Unmatched) } else { Ok(()) }
    }

    /// The calls of the blocks that are named as running in the text up to their calls.
    fn called(&self) -> Result<BTreeMap<BlockId, Instruction>, VerifyError> {
        let (body, blocks) = (&self.request.body, &self.request.body.blocks);
        let mut calls = BTreeMap::new();
        for named in &self.body.called {
            let wrong = || fail(named.start.0, Flaw::Unmatched);
            let named_block = self.block_at(named.start.0).and_then(|index| Some((index, blocks.get(index)?)));
            let Some((index, block)) = named_block else { return wrong() };
            let range = &block.block.range;
            let (mut at, mut rest) = (named.start.0, block.bytes.as_slice());
            let mut last = None;
            while !rest.is_empty() {
                let i = decode(rest, at)?;
                (at, rest) = (i.next_ip(), rest.get(i.len()..).unwrap_or_default());
                last = Some(i);
            }
            let Some(call) = last.filter(|i| i.code() == Code::Call_rel32_64) else { return wrong() };
            let mut others = blocks.entries().filter(|(other, _)| *other != index).map(|(_, b)| &b.block.range);
            let alone = others.all(|other| other.end <= range.start || other.start >= range.end);
            let mut leaving = body.edges.iter().filter(|edge| edge.from == index);
            let right = range.end.to_avma(self.request.bias) == named.end
                && call.next_ip() == named.end.0
                && !self.is_exposed(index)
                && leaving.all(|edge| edge.kind == EdgeKind::CallReturn)
                && alone;
            if !right || calls.last_key_value().is_some_and(|(last, _)| *last >= index) {
                return wrong();
            }
            calls.insert(index, call);
        }
        Ok(calls)
    }

    /// Address of a block in the text. Fails if the function has no such block.
    pub(super) fn start(&self, block: BlockId) -> Result<u64, VerifyError> {
        self.way(block).map(|way| way.original.0)
    }

    /// Address of the copy of a block. Fails if the function has no such block.
    pub(super) fn label(&self, block: BlockId) -> Result<u64, VerifyError> {
        self.way(block).map(|way| way.copy.0)
    }

    fn way(&self, block: BlockId) -> Result<&Way, VerifyError> {
        self.body.blocks.get(block).ok_or(VerifyError { at: self.body.function, flaw: Flaw::Unmatched })
    }

    pub(super) fn block_at(&self, at: u64) -> Option<BlockId> {
        self.body.blocks.find_sorted(&at, |way| way.original.0)
    }

    /// Offset of an address in the text from the first byte of the function.
    pub(super) fn offset(&self, at: u64) -> Offset {
        Offset::between(self.body.function.0, at)
    }

    /// Takes the instruction at `at` in the copy, whose equivalent in the text is `original`. Returns it.
    pub(super) fn take(&mut self, at: u64, original: u64) -> Result<Instruction, VerifyError> {
        let i = self.memory.decode(at)?;
        if self.ends.insert(at, (i.next_ip(), original)).is_some() {
            return fail(at, Flaw::Untiled);
        }
        Ok(i)
    }

    /// Takes an instruction of the code of a point that was proven.
    pub(super) fn take_inside(&mut self, at: u64, end: u64) -> Result<(), VerifyError> {
        let twice = self.ends.contains_key(&at) || self.inside.insert(at, end).is_some();
        if twice { fail(at, Flaw::Untiled) } else { Ok(()) }
    }

    /// Ranges of the instructions in these parts of the code that threads leave by single-stepping.
    pub(super) fn inside(&self, is_its: impl Fn(Avma) -> bool) -> Vec<AvmaRange> {
        let mut ranges: Vec<AvmaRange> = Vec::new();
        for (at, end) in self.inside.iter().filter(|(at, _)| is_its(Avma(**at))) {
            match ranges.last_mut() {
                Some(last) if last.end.0 == *at => last.end = Avma(*end),
                _ => ranges.push(Avma(*at)..Avma(*end)),
            }
        }
        ranges
    }

    /// Takes nops, which change nothing. Returns the address after them.
    fn nops(&mut self, mut at: u64, original: u64) -> Result<u64, VerifyError> {
        while self.memory.bytes(at).is_some_and(|bytes| bytes.starts_with(&[0x90])) {
            at = self.take(at, original)?.next_ip();
        }
        Ok(at)
    }

    /// Takes the nop of a probe or the code of its point, and the nops before it. Returns the address after it.
    fn probe(&mut self, at: u64, point: PointId, original: u64) -> Result<u64, VerifyError> {
        match self.held_at(&point) {
            Some(Held::Point(r)) => {
                let at = self.nops(at, original)?;
                self.point_with_copy(at, (point, r), original)
            }
            _ => self.replaceable(at, point, original, Held::Nop),
        }
    }

    /// Notes a probe that was met.
    pub(super) fn met(&mut self, point: PointId, at: u64, original: u64, held: Held) {
        self.held.push((point, Avma(at), original, held));
    }

    fn replaceable(&mut self, at: u64, point: PointId, original: u64, held: Held) -> Result<u64, VerifyError> {
        let at = self.nops(at, original)?;
        let nop = self.take(at, original)?;
        if nop.code() != Code::Nop_rm32 || nop.len() != PROBE || at % 4096 > 4096 - PROBE as u64 {
            return fail(at, Flaw::NotEquivalent);
        }
        self.held.push((point, Avma(at), original, held));
        Ok(nop.next_ip())
    }

    fn block(&mut self, index: BlockId, block: &BodyBlock) -> Result<(), VerifyError> {
        let (start, label) = (self.start(index)?, self.label(index)?);
        let point = PointId::Block(self.offset(start));
        self.copies.push(PcMove { from: Avma(start), to: Avma(label) });
        let is_called = self.calls.contains_key(&index);
        let mut copy = if is_called { label } else { self.probe(label, point, start)? };
        let (mut at, mut rest) = (start, block.bytes.as_slice());
        while !rest.is_empty() {
            let original = decode(rest, at)?;
            if is_unusual(&original) {
                return fail(at, Flaw::Forbidden);
            }
            if stays(&original) {
                self.kept.insert(at, original.next_ip());
                if original.code() == Code::Syscall {
                    self.behind_system_calls.insert(original.next_ip());
                }
                let copy = self.nops(copy, at)?;
                self.copied.insert((index, at), copy);
                let jump = self.take(copy, at)?;
                let home = jump.code() == Code::Jmp_rel32_64 && jump.near_branch_target() == at;
                let calls = matches!(original.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
                if calls && original.code() != Code::Syscall && !is_called {
                    let call = Held::Jump(Way { copy: Avma(at), original: Avma(at) });
                    self.jump(PointId::CallBefore(self.offset(at)), copy, at, call)?;
                }
                return if home && rest.len() == original.len() { Ok(()) } else { fail(copy, Flaw::NotEquivalent) };
            }
            if at != start {
                self.copies.push(PcMove { from: Avma(at), to: Avma(copy) });
            }
            let Some(next) = self.instruction(index, &original, copy)? else {
                return if rest.len() == original.len() { Ok(()) } else { fail(copy, Flaw::NotEquivalent) };
            };
            copy = next;
            at = original.next_ip();
            rest = rest.get(original.len()..).unwrap_or_default();
        }
        self.run_on(index, at, copy)
    }

    /// Compares the end of a block that runs on.
    fn run_on(&mut self, from: BlockId, end: u64, copy: u64) -> Result<(), VerifyError> {
        let to = self.block_at(end);
        let point = match to {
            Some(to) => self.edge(from, to, EdgeKind::FallThrough)?,
            None => PointId::Exit(self.offset(end)),
        };
        let copy = self.probe(copy, point, end)?;
        let label = to.map(|to| self.label(to)).transpose()?;
        // Nops before the next copy belong to this one, unless a probe follows them.
        if label == Some(copy) {
            return Ok(());
        }
        let after = self.nops(copy, end)?;
        if label == Some(after) {
            return Ok(());
        }
        let jump = self.take(after, end)?;
        let right = jump.code() == Code::Jmp_rel32_64 && jump.near_branch_target() == label.unwrap_or(end);
        if right { Ok(()) } else { fail(after, Flaw::NotEquivalent) }
    }

    /// The point at an edge.
    pub(super) fn edge(&self, from: BlockId, to: BlockId, kind: EdgeKind) -> Result<PointId, VerifyError> {
        let (from, to) = (self.offset(self.start(from)?), self.offset(self.start(to)?));
        Ok(PointId::Edge { from, to, kind })
    }

    /// Compares an instruction with its copy. Returns the end of the copy, or `None` if control never continues there.
    fn instruction(&mut self, from: BlockId, o: &Instruction, copy: u64) -> Result<Option<u64>, VerifyError> {
        let at = o.ip();
        let branches = matches!(o.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
        if !branches {
            let ends = matches!(o.flow_control(), FlowControl::Return | FlowControl::IndirectBranch);
            let leaves = ends && !self.leading.contains(&from);
            let copy = if leaves { self.probe(copy, PointId::Exit(self.offset(at)), at)? } else { copy };
            let copy = if equal_at(self.memory, o, copy)? { copy } else { self.nops(copy, at)? };
            self.copied.insert((from, at), copy);
            let c = self.take(copy, at)?;
            let plain = ends || o.flow_control() == FlowControl::Next && !o.is_privileged();
            if !plain || !equal(o, &c) {
                return fail(copy, Flaw::NotEquivalent);
            }
            return Ok((!ends).then_some(c.next_ip()));
        }
        let target = o.near_branch_target();
        let to = self.block_at(target);
        let label = to.map_or(Ok(target), |to| self.label(to))?;
        let copy = self.nops(copy, at)?;
        self.copied.insert((from, at), copy);
        let point = match to {
            Some(to) => self.edge(from, to, EdgeKind::Taken)?,
            None => PointId::Exit(self.offset(at)),
        };
        // The code of the point is on the way of a thread that has taken the branch.
        let own = self.held_at(&point).filter(|held| matches!(held, Held::Point(_)));
        if own.is_some() && o.is_jmp_short_or_near() {
            let after = self.probe(copy, point, target)?;
            return self.jumps(after, target, label).map(|()| None);
        }
        let first = self.take(copy, at)?;
        let (jump, right) = if o.is_jmp_short_or_near() {
            (first, first.is_jmp_near())
        } else if o.is_jcc_short_or_near() {
            (first, first.is_jcc_near() && first.condition_code() == o.condition_code())
        } else {
            // loop 1f; jmp 2f; 1: jmp target; 2:
            let over = self.take(first.next_ip(), o.next_ip())?;
            let jump = self.take(over.next_ip(), target)?;
            let same = first.code() == o.code() && (o.is_loop() || o.is_loopcc() || o.is_jcx_short());
            let leads = first.near_branch_target() == jump.ip()
                && over.is_jmp_short_or_near()
                && over.near_branch_target() == jump.next_ip();
            (jump, same && leads && jump.is_jmp_near())
        };
        if right && own.is_some() {
            let after = self.probe(jump.near_branch_target(), point, target)?;
            self.jumps(after, target, label)?;
            return Ok(Some(jump.next_ip()));
        }
        if !right || jump.near_branch_target() != label {
            return fail(copy, Flaw::NotEquivalent);
        }
        let (end, conditional) = (jump.next_ip(), jump.is_jcc_near());
        let way = |copy, original| Way { copy: Avma(copy), original: Avma(original) };
        let taken = way(label, target);
        let held = if conditional { Held::Branch(taken, way(end, o.next_ip())) } else { Held::Jump(taken) };
        let before = if jump.ip() == copy { at } else { target };
        self.jump(point, jump.ip(), before, held)?;
        Ok((!o.is_jmp_short_or_near()).then_some(end))
    }

    /// Takes a jump of five bytes to an address in the copy.
    fn jumps(&mut self, at: u64, original: u64, to: u64) -> Result<(), VerifyError> {
        let jump = self.take(at, original)?;
        let right = jump.code() == Code::Jmp_rel32_64 && jump.near_branch_target() == to;
        if right { Ok(()) } else { fail(at, Flaw::NotEquivalent) }
    }

    /// Notes a jump as a probe.
    fn jump(&mut self, point: PointId, at: u64, original: u64, held: Held) -> Result<(), VerifyError> {
        self.held.push((point, Avma(at), original, held));
        if at % 4096 > 4096 - PROBE as u64 { fail(at, Flaw::Straddles) } else { Ok(()) }
    }

    /// The points at which control arrives that comes to a block's original address, in order.
    pub(super) fn arrivals_at(&self, block: BlockId) -> Result<Vec<PointId>, VerifyError> {
        let mut points = Vec::new();
        if self.mixed.contains(&block) || self.calls.contains_key(&block) {
            return Ok(points);
        }
        let at = self.start(block)?;
        // Control that comes from the marker within the function is no call.
        let by_calls = self.marker.is_none_or(|marker| !self.mixed.contains(&marker));
        if self.request.body.entry == Some(block) && by_calls {
            points.push(PointId::Entry);
        }
        if let Some((from, kind)) = self.along(block).filter(|_| !self.behind_marker.contains(&block)) {
            let returns = kind == EdgeKind::CallReturn && !self.behind_system_calls.contains(&at);
            points.extend(returns.then_some(PointId::CallAfter(self.offset(at))));
            points.push(self.edge(from, block, kind)?);
        }
        Ok(points)
    }

    /// The edge along which alone control arrives that comes to a block's original address: the block that it leaves, and its kind.
    fn along(&self, block: BlockId) -> Option<(BlockId, EdgeKind)> {
        let body = &self.request.body;
        let Entered::Along { from, kind } = body.blocks.get(block)?.entered else { return None };
        body.edges_from(from).contains(&Edge { from, to: EdgeTarget::Block(block), kind }).then_some((from, kind))
    }

    /// Compares what calls in the text lead to: the probes of their blocks, and a jump to the callee.
    fn at_calls(&mut self) -> Result<(), VerifyError> {
        for (block, call) in self.calls.clone() {
            let (callee, at) = (call.near_branch_target(), self.start(block)?);
            let from_text = self.mixed.contains(&block) || self.behind_marker.contains(&block);
            let into = self.request.body.edges.iter().filter(|edge| target(edge) == Some(block)).count();
            let only = self.along(block).filter(|_| !from_text && into == 1);
            let edge = only.map(|(from, kind)| self.edge(from, block, kind)).transpose()?;
            let own = [PointId::Block(self.offset(at)), PointId::CallBefore(self.offset(call.ip()))];
            let points: Vec<PointId> = edge.into_iter().chain(own).collect();
            let Some(mut after) = points.first().and_then(|first| self.claimed(first)).map(|at| at.0) else {
                return fail(at, Flaw::Unmatched);
            };
            let field = Avma(call.next_ip() - 4);
            let write = self.body.removal.text.iter().find(|write| write.at == field && write.len == 4);
            let leads = write.and_then(|write| write.old_bytes().first_chunk()).is_some_and(|displacement| {
                let displacement = i64::from(i32::from_le_bytes(*displacement));
                call.next_ip().wrapping_add_signed(displacement) == after
            });
            if !leads {
                return fail(field.0, Flaw::Astray);
            }
            for point in points {
                after = self.replaceable(after, point, callee, Held::Called)?;
            }
            let jump = self.take(after, callee)?;
            if jump.code() != Code::Jmp_rel32_64 || jump.near_branch_target() != callee {
                return fail(after, Flaw::NotEquivalent);
            }
        }
        Ok(())
    }

    fn is_exposed(&self, block: BlockId) -> bool {
        self.body.exposed.binary_search(&block).is_ok()
    }

    /// Compares the arrivals of blocks: probes right before the block, or probes and a jump to it.
    fn arrivals(&mut self) -> Result<(), VerifyError> {
        for block in self.body.blocks.keys() {
            let points = self.arrivals_at(block)?;
            let Some(first) = points.first() else { continue };
            let (start, label) = (self.start(block)?, self.label(block)?);
            let Some(at) = self.claimed(first) else { return fail(start, Flaw::Unmatched) };
            let mut after = at.0;
            for point in points {
                after = self.probe(after, point, start)?;
            }
            if after == label {
                continue;
            }
            let before_label = self.memory.bytes(after).is_some_and(|bytes| bytes.starts_with(&[0x90]));
            let after = if before_label && after < label { self.nops(after, start)? } else { after };
            if after == label {
                continue;
            }
            let jump = self.take(after, start)?;
            if jump.code() != Code::Jmp_rel32_64 || jump.near_branch_target() != label {
                return fail(after, Flaw::NotEquivalent);
            }
        }
        Ok(())
    }

    /// Address of the probe that is claimed for a point.
    pub(super) fn claimed(&self, point: &PointId) -> Option<Avma> {
        let found = self.body.probes.binary_search_by_key(point, |probe| probe.point).ok()?;
        self.body.probes.get(found).map(|probe| probe.copy)
    }

    /// Instruction at the probe that is claimed for a point.
    pub(super) fn held_at(&self, point: &PointId) -> Option<Held> {
        let found = self.body.probes.binary_search_by_key(point, |probe| probe.point).ok()?;
        self.body.probes.get(found).map(|probe| probe.holds)
    }

    /// Checks that the instructions that were met fill these ranges and the whole memory, except for nops that control reaches only by running
    /// on.
    pub(super) fn tiled(&mut self, ranges: &[AvmaRange]) -> Result<(), VerifyError> {
        let mut proven: Vec<(u64, u64)> = ranges.iter().map(|range| (range.start.0, range.end.0)).collect();
        for range in ranges {
            self.tile(range)?;
        }
        let inside = |at: u64, end: u64| ranges.iter().any(|code| at >= code.start.0 && end <= code.end.0);
        let apart = self.inside.iter().all(|(at, end)| inside(*at, *end) && !self.ends.contains_key(at));
        if !apart || !self.ends.iter().all(|(at, (end, _))| inside(*at, *end)) {
            return fail(self.body.function.0, Flaw::Untiled);
        }
        self.memory.all_proven(&mut proven)
    }

    fn tile(&mut self, code: &AvmaRange) -> Result<(), VerifyError> {
        let mut at = code.start.0;
        while at < code.end.0 {
            match self.ends.get(&at).map(|(end, _)| end).or_else(|| self.inside.get(&at)) {
                Some(end) => at = *end,
                // A nop before a probe: the instruction after it is equivalent.
                None if self.memory.bytes(at).is_some_and(|bytes| bytes.starts_with(&[0x90])) => {
                    let mut next = at + 1;
                    while self.memory.bytes(next).is_some_and(|b| b.starts_with(&[0x90]))
                        && !self.ends.contains_key(&next)
                    {
                        next += 1;
                    }
                    let Some((_, original)) = self.ends.get(&next).copied() else { return fail(at, Flaw::Untiled) };
                    for nop in at..next {
                        self.ends.insert(nop, (nop + 1, original));
                    }
                    at = next;
                }
                None => return fail(at, Flaw::Untiled),
            }
        }
        if at == code.end.0 { Ok(()) } else { fail(code.start.0, Flaw::Untiled) }
    }

    /// Checks that the claimed probes are those that were met.
    pub(super) fn probes(&mut self) -> Result<(), VerifyError> {
        self.held.sort_unstable_by_key(|(point, ..)| *point);
        // An instruction that two blocks have in common has two copies.
        let (mut points, mut twice) = (FxHashSet::default(), FxHashSet::default());
        twice.extend(self.held.iter().filter(|(point, ..)| !points.insert(*point)).map(|(point, ..)| *point));
        self.held.retain(|(point, ..)| !twice.contains(point));
        let claimed = self.body.probes.iter().map(|p: &Probe| (p.point, p.copy, p.original.0, p.holds));
        if !claimed.eq(self.held.iter().copied()) {
            return fail(self.body.function.0, Flaw::Unmatched);
        }
        for probe in &self.body.probes {
            if self.memory.bytes(probe.copy.0).is_none_or(|bytes| !bytes.starts_with(&probe.bytes)) {
                return fail(probe.copy.0, Flaw::NotOriginal);
            }
        }
        Ok(())
    }

    /// Original bytes at an address, by the blocks, their sites and the padding.
    fn original(&self, text: &TextSpace, at: u64, len: usize) -> Option<Vec<u8>> {
        (at..).take(len).map(|at| self.original_byte(text, at)).collect()
    }

    fn original_byte(&self, text: &TextSpace, at: u64) -> Option<u8> {
        let within = |start: u64, bytes: &[u8]| bytes.get(usize::try_from(at.checked_sub(start)?).ok()?).copied();
        let (bias, blocks) = (self.request.bias, &self.request.body.blocks);
        // A site states bytes after its block.
        let until = blocks.partition_point(|b| b.block.range.start.to_avma(bias).0 <= at).index();
        let near = blocks.as_slice().get(until.saturating_sub(NEAR)..until).unwrap_or_default();
        let known = near.iter().rev().find_map(|b| {
            let own = within(b.block.range.start.to_avma(bias).0, &b.bytes);
            own.or_else(|| b.room.as_ref().ok().and_then(|site| within(site.at.to_avma(bias).0, &site.bytes)))
        });
        known.or_else(|| text.padding_at(at).and_then(|(start, bytes)| within(start, bytes)))
    }

    /// Checks the writes to the text, and finds the springboards.
    fn springboards(&self, text: &TextSpace) -> Result<CopySpringboards, VerifyError> {
        let mut doors = FxHashMap::default();
        let mut rooms: FxHashSet<u64> = FxHashSet::default();
        let writes = &self.body.removal.text;
        let islands: FxHashSet<u64> = writes.iter().filter_map(island_of).collect();
        for w in writes {
            if self.original(text, w.at.0, usize::from(w.len)).is_none_or(|old| old != w.new_bytes()) {
                return fail(w.at.0, Flaw::NotOriginal);
            }
        }
        let by_address: FxHashMap<u64, &TextWrite> = writes.iter().map(|w| (w.at.0, w)).collect();
        let fields: FxHashSet<u64> = self.calls.values().map(|call| call.next_ip() - 4).collect();
        let first: FxHashMap<u64, u64> = self.copies.iter().rev().map(|m| (m.from.0, m.to.0)).collect();
        for (index, block) in self.request.body.blocks.entries() {
            let Some(site) = block.room.as_ref().ok().filter(|_| !self.calls.contains_key(&index)) else { continue };
            if site.at != block.block.range.start && self.request.body.block_at(site.at).is_some() {
                continue;
            }
            let at = site.at.to_avma(self.request.bias);
            let is_known = islands.contains(&at.0) || fields.contains(&at.0);
            let Some(w) = by_address.get(&at.0).filter(|_| !is_known) else { continue };
            let lands = |l: &ingraft_model::Svma| l.0 > site.at.0 && l.0 < site.at.0 + u64::from(w.len);
            if site.landings.iter().any(lands) {
                return fail(at.0, Flaw::LandingInside);
            }
            let to = match island_of(w) {
                Some(island) => by_address.get(&island).and_then(|w| jump_of(w)),
                None => jump_of(w),
            };
            if to != Some(self.door_of(index)?) {
                return fail(at.0, Flaw::Astray);
            }
            // An instruction of another block that holds the address may run in the text.
            let before = self.request.body.blocks.as_slice().get(..index.index()).unwrap_or_default();
            if before.iter().rev().take(NEAR).any(|other| other.block.range.end > block.block.range.start) {
                return fail(at.0, Flaw::LandingInside);
            }
            self.covers_nothing_kept(at.0, w.len)?;
            doors.insert(at.0, index);
        }
        let is_known = |at: u64| doors.contains_key(&at) || islands.contains(&at) || fields.contains(&at);
        for w in writes.iter().filter(|w| !is_known(w.at.0)) {
            // A range that is displaced to make room: its copy is that of its first instruction.
            let copy = first.get(&w.at.0).copied();
            if w.len != 5 || copy.is_none() || jump_of(w) != copy {
                return fail(w.at.0, Flaw::Astray);
            }
            rooms.insert(w.at.0);
        }
        for &island in &islands {
            let padding =
                text.padding_at(island).is_some_and(|(start, bytes)| island + 5 <= start + bytes.len() as u64);
            let has_springboard = |at: &u64| rooms.contains(at) || doors.contains_key(at);
            if !padding && !self.is_in_room(island, has_springboard) {
                return fail(island, Flaw::Astray);
            }
            self.covers_nothing_kept(island, 5)?;
        }
        rooms.iter().try_for_each(|at| self.covers_nothing_kept(*at, 5))?;
        Ok(CopySpringboards { doors, rooms, islands })
    }

    /// Whether an island lies right after the springboard of a range that is displaced for it, and in that range.
    fn is_in_room(&self, island: u64, has_springboard: impl Fn(&u64) -> bool) -> bool {
        let rooms = self.request.body.blocks.iter().filter_map(|b| b.room.as_ref().ok());
        rooms.flat_map(|site| &site.island_rooms).any(|room| {
            let at = room.at.to_avma(self.request.bias).0;
            at + 5 == island && room.bytes.len() >= 10 && has_springboard(&at)
        })
    }

    /// Checks that bytes of the text belong to no instruction that stays there.
    fn covers_nothing_kept(&self, at: u64, len: u8) -> Result<(), VerifyError> {
        let last = self.kept.range(..at + u64::from(len)).next_back();
        if last.is_some_and(|(_, end)| *end > at) { fail(at, Flaw::LandingInside) } else { Ok(()) }
    }

    /// Address to which the springboard of a block must lead: its gate, or its arrival in the ordinary copy.
    fn door_of(&self, block: BlockId) -> Result<u64, VerifyError> {
        let gate = self.body.counting.as_ref().and_then(|counting| counting.gate(block));
        gate.map_or_else(|| self.arrival(block), |gate| Ok(gate.at.0))
    }

    /// Address in the ordinary copy at which control arrives that comes from the text.
    pub(super) fn arrival(&self, block: BlockId) -> Result<u64, VerifyError> {
        // Nops before the probe, which keep it on one page, may be skipped.
        match self.arrivals_at(block)?.first() {
            Some(point) => self.claimed(point).map_or_else(|| fail(self.start(block)?, Flaw::Unmatched), |at| Ok(at.0)),
            None => self.label(block),
        }
    }

    /// Checks that every arrival in the text leads to the copy, except at blocks that are named, and at those to which they lead.
    fn exposed(&self, found: &CopySpringboards) -> Result<(), VerifyError> {
        let mut with_door = IndexVec::filled(false, self.body.blocks.len());
        found.doors.values().chain(self.calls.keys()).for_each(|block| with_door.set(*block, true));
        let misses = |block: BlockId| !self.is_exposed(block) && with_door.get(block) != Some(&true);
        for (index, block) in self.request.body.blocks.entries() {
            if block.entered != Entered::Never && misses(index) {
                return fail(self.start(index)?, Flaw::Astray);
            }
        }
        for edge in &self.request.body.edges {
            let in_text = self.is_exposed(edge.from) || self.calls.contains_key(&edge.from);
            if let Some(to) = target(edge).filter(|to| in_text && misses(*to)) {
                return fail(self.start(to)?, Flaw::Astray);
            }
        }
        Ok(())
    }

    /// Checks the moves of threads, into the copy and out of it.
    fn moves(&mut self, plan: &PatchPlan, found: &CopySpringboards) -> Result<(), VerifyError> {
        let mut doors = found.rooms.clone();
        for (at, block) in &found.doors {
            doors.extend([*at, self.start(*block)?]);
        }
        let stays = |m: &&PcMove| doors.contains(&m.from.0) || self.behind_system_calls.contains(&m.from.0);
        let mut copies: Vec<PcMove> = self.copies.iter().filter(|m| !stays(m)).copied().collect();
        copies.sort_unstable();
        copies.dedup();
        if let Some(twice) = copies.windows(2).find(|pair| pair[0].from == pair[1].from) {
            return fail(twice[0].from.0, Flaw::BadMove);
        }
        if copies != plan.moves {
            return fail(plan.moves.first().map_or(self.body.function.0, |m| m.from.0), Flaw::BadMove);
        }
        let record = &self.body.removal;
        if record.step_out != self.inside(|_| true) {
            return fail(record.code.start.0, Flaw::BadMove);
        }
        let mut inside = 0;
        for m in &record.moves {
            match self.ends.get(&m.from.0) {
                Some((_, original)) if m.to.0 == *original => inside += 1,
                Some(_) => return fail(m.from.0, Flaw::BadMove),
                // An island: the thread takes the springboard again.
                None => {
                    let short = |w: &TextWrite| w.at == m.to && island_of(w) == Some(m.from.0);
                    if !record.text.iter().any(short) {
                        return fail(m.from.0, Flaw::BadMove);
                    }
                }
            }
        }
        let of_islands = record.moves.iter().filter(|m| found.islands.contains(&m.from.0)).count();
        let all = inside + of_islands == record.moves.len() && of_islands == found.islands.len();
        if all && inside == self.ends.len() { Ok(()) } else { fail(record.code.start.0, Flaw::BadMove) }
    }
}

pub(super) fn target(edge: &Edge) -> Option<BlockId> {
    match edge.to {
        EdgeTarget::Block(to) => Some(to),
        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    }
}

/// Whether an instruction must stay in the text: it pushes a return address, is a system call, or faults on purpose.
pub(super) fn stays(i: &Instruction) -> bool {
    match i.flow_control() {
        FlowControl::Call | FlowControl::IndirectCall | FlowControl::Interrupt | FlowControl::Exception => true,
        FlowControl::Next => i.code() == Code::Hlt,
        FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Return
        | FlowControl::XbeginXabortXend => false,
    }
}

/// Whether an instruction enters the kernel, or another segment, other than by `syscall`.
fn is_unusual(i: &Instruction) -> bool {
    match i.flow_control() {
        FlowControl::Call => !matches!(i.code(), Code::Call_rel32_64 | Code::Syscall),
        FlowControl::Interrupt => i.code() != Code::Int3,
        FlowControl::Next
        | FlowControl::IndirectCall
        | FlowControl::Exception
        | FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Return
        | FlowControl::XbeginXabortXend => false,
    }
}

/// Whether the instruction at `copy` is equal to an original one.
fn equal_at(memory: &Memory<'_>, o: &Instruction, copy: u64) -> Result<bool, VerifyError> {
    memory.decode(copy).map(|c| equal(o, &c))
}

/// Target of the jump that the inverse of a write puts in place; `None` if it is no `jmp rel32`.
fn jump_of(w: &TextWrite) -> Option<u64> {
    let [0xe9, disp @ ..] = w.old_bytes() else { return None };
    let disp = i32::from_le_bytes(*disp.first_chunk()?);
    Some((w.at.0 + 5).wrapping_add_signed(i64::from(disp)))
}

/// First byte of the island to which the inverse of a write leads; `None` if it is no jump of two bytes.
fn island_of(w: &TextWrite) -> Option<u64> {
    let [0xeb, disp] = *w.old_bytes() else { return None };
    Some((w.at.0 + 2).wrapping_add_signed(i64::from(disp.cast_signed())))
}
