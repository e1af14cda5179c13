//! Abstract execution of generated code. For each instruction it finds which registers still hold their values at the point, and which
//! words the code has pushed. If several paths meet, only facts that hold on all of them are kept.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use iced_x86::{
    Code, ConditionCode, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpKind,
    Register,
};
use ingraft_model::layout::{OWNER, TOP};
use ingraft_model::{Avma, AvmaRange, Called, Gpr, PointKind, ProgramCall, Site, ThreadIdentity};
use rustc_hash::FxHashMap;

mod inline;
mod passing;
mod transfers;

use super::fixed;
use super::listed::Listed;
use super::memory::Memory;
use super::proof_cache::{Executed, ExecutedCode, MovedRange, Visited};
use super::rules::{is_absolute, may_read, may_write, number_of, permitted, writes};
use super::state::{AbstractState, CALLEE, FLAGS, FlagsTransfer, IMAGE, OTHER, Parent, RED_ZONE_WORDS, RegisterBound};
use super::system_call::{self, SystemCall};
use super::{Flaw, VerifyError, fail};
use crate::code::arena::{Arena, SlowRoutine};
use crate::code::block::{LINK, link_target, straddles};
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::code::woven::MiniCode;
use crate::code::woven::WovenPoint;
use crate::snippet::mini::MiniRequest;
use crate::snippet::slot::{self, LEN, Slot};
use crate::snippet::slow::{COUNT, LOCKED_COUNT, MARKER};

/// Kind of generated code that is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Point,
    /// Code of a snippet for shard 0. The code ends in the slow routine, which walks on from the link at this address.
    Twin(u64),
    /// A shared routine.
    Routine(Routine),
}

fn called(call: &ProgramCall) -> Option<u64> {
    match call.callee {
        Called::At(at) => Some(at.0),
        Called::Named(_) => None,
    }
}

/// First number of the shape of an added snippet. The first number of a point's shape is smaller.
const ADDED: u64 = u64::MAX;

/// Result for one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visit {
    /// A displaced instruction, which is proven elsewhere.
    Marked,
    /// Executed instruction, with the index of its state.
    State(u32),
}

/// Facts that all proofs of a plan share.
pub(super) struct PlanFacts<'a> {
    env: &'a Environment,
    memory: &'a Memory<'a>,
    /// Slow routines, by register number.
    slow: Vec<(u8, &'a SlowRoutine)>,
    /// Entries of the shared routines.
    routines: Vec<(u64, Routine)>,
    /// Sorted addresses of the functions that snippets of the plan may call.
    callees: Vec<u64>,
    /// Variables of the program that snippets may set: address and length in bytes.
    stores: Vec<(u64, usize)>,
    /// Whether snippets may write to memory at addresses that they compute.
    writes: bool,
    /// Tables of listed keys that snippets may read.
    listed: Vec<Listed>,
    /// Code that was executed so far.
    executed: Executed,
}

impl<'a> PlanFacts<'a> {
    /// Collects the facts. `requests` are the snippets of the plan; only their calls are allowed.
    pub fn new<'r>(
        env: &'a Environment,
        arena: &'a Arena,
        memory: &'a Memory<'a>,
        requests: impl Iterator<Item = &'r MiniRequest<'r>>,
    ) -> Self {
        let (mut callees, mut stores, mut writes) = (Vec::new(), Vec::new(), false);
        // Many requests share one snippet, which is examined once.
        let (mut seen, mut listed) = (FxHashMap::default(), Vec::new());
        for request in requests {
            let snippet = request.snippet;
            let known = seen.entry(std::ptr::from_ref(snippet));
            let is_new = matches!(known, Entry::Vacant(_));
            let listings = known.or_insert_with(|| snippet.listings());
            listed.extend(listings.iter().filter_map(|(v, listing)| Listed::of(env, request, *v, *listing)));
            if !is_new {
                continue;
            }
            callees.extend(snippet.calls().into_iter().filter_map(called));
            writes |= snippet.writes();
            stores.extend(snippet.stores().into_iter().map(|(at, width)| (at.0, width.bytes() as usize)));
        }
        let lasting = |(at, bytes): &(u64, usize)| env.readable.lasts(Avma(*at), *bytes as u64);
        stores.retain(lasting);
        callees.sort_unstable();
        callees.dedup();
        listed.dedup();
        PlanFacts {
            env,
            memory,
            slow: arena.slow.iter().enumerate().filter_map(|(r, s)| Some((r as u8, s.as_ref()?))).collect(),
            routines: Routine::ALL.iter().filter_map(|r| Some((arena.routine(*r)?.start.0, *r))).collect(),
            callees,
            stores,
            writes,
            listed,
            executed: Executed::default(),
        }
    }
}

impl<'a> PlanFacts<'a> {
    pub fn env(&self) -> &'a Environment {
        self.env
    }

    pub fn memory(&self) -> &'a Memory<'a> {
        self.memory
    }

    /// Whether an address is a function that may be called.
    pub fn may_call(&self, at: u64) -> bool {
        self.callees.binary_search(&at).is_ok()
    }
}

pub(super) struct Interpreter<'a> {
    facts: &'a PlanFacts<'a>,
    env: &'a Environment,
    memory: &'a Memory<'a>,
    /// The jumps to routines in the current proof: address of the jump, and where the routine comes back to.
    passes: Vec<(u64, u64)>,
    /// Branches that lead backwards, as the current proof has met them: target and branch.
    backwards: Vec<(u64, u64)>,
    info: InstructionInfoFactory,
    /// Instructions of the current proof: end and result, by address.
    visits: FxHashMap<u64, (u64, Visit)>,
    /// Address of each visited instruction, by its end.
    before: FxHashMap<u64, u64>,
    states: Vec<AbstractState>,
    tiled: usize,
    scratch: u16,
    flags_dead: bool,
    /// The tail, where generated code ends; the slot; and the end of the chain.
    tail: u64,
    slot: u64,
    leave: u64,
    base: u64,
    /// Probe to which code of a point in a counting copy may go; `None` for other code.
    probe: Option<u64>,
    /// Address of the jump to the slow routine, before the base.
    slow: u64,
    /// The slot and the links, each with the address to which it must lead.
    chain: Vec<(u64, u64)>,
    /// For each snippet: the range of its code aside, and its place in the chain, from the first instruction to the link.
    asides: Vec<(AvmaRange, AvmaRange)>,
    /// Whether the code is that of a snippet that is added to a woven point.
    is_added: bool,
    /// Number of words on the stack that must stay there: the words that the base trampoline has pushed before an added snippet.
    pushed: usize,
    /// Whether the words below the stack pointer at the point may be in use, so that nothing may be pushed over them.
    red_zone: bool,
    /// Parts of this point's code, and its shape: the key by which equivalent code is found.
    parts: Vec<MovedRange>,
    shape: Vec<u64>,
    /// Proven code that this point's code is equivalent to. The instructions of that code count as visited.
    alike: Option<Arc<ExecutedCode>>,
}

impl<'a> Interpreter<'a> {
    pub fn new(facts: &'a PlanFacts<'a>) -> Self {
        Interpreter {
            facts,
            env: facts.env,
            memory: facts.memory,
            passes: Vec::new(),
            backwards: Vec::new(),
            info: InstructionInfoFactory::new(),
            visits: FxHashMap::default(),
            before: FxHashMap::default(),
            states: Vec::new(),
            tiled: 0,
            scratch: 0,
            flags_dead: false,
            tail: 0,
            slot: 0,
            leave: 0,
            base: 0,
            probe: None,
            slow: 0,
            chain: Vec::new(),
            asides: Vec::new(),
            is_added: false,
            pushed: 0,
            red_zone: false,
            parts: Vec::new(),
            shape: Vec::new(),
            alike: None,
        }
    }

    pub fn memory(&self) -> &'a Memory<'a> {
        self.memory
    }

    pub fn environment(&self) -> &'a Environment {
        self.env
    }

    /// Begins another proof.
    fn restart(&mut self) {
        self.visits.clear();
        self.before.clear();
        self.states.clear();
        self.passes.clear();
        self.backwards.clear();
        self.alike = None;
        self.probe = None;
        self.tiled = 0;
    }

    fn set(&mut self, instruction: &Instruction, visit: Visit) {
        let (at, end) = (instruction.ip(), instruction.next_ip());
        self.visits.insert(at, (end, visit));
        self.before.insert(end, at);
    }

    fn visit(&self, at: u64) -> Option<Visit> {
        self.visits.get(&at).map(|(_, visit)| *visit)
    }

    /// The n-th instruction before an address, if it and the instructions in between were visited and lie without a gap.
    fn before(&self, at: u64, n: usize) -> Option<Instruction> {
        let start = (0..n).try_fold(at, |at, _| self.before.get(&at).copied())?;
        self.memory.decode(start).ok()
    }

    /// Number of instructions that the current proof has visited.
    fn touched(&self) -> usize {
        self.visits.len() + self.alike.as_ref().map_or(0, |known| known.len())
    }

    fn state(&self, visit: Visit) -> Option<&AbstractState> {
        match visit {
            Visit::State(n) => self.states.get(n as usize),
            Visit::Marked => None,
        }
    }

    /// Starts the proof of a point.
    pub fn begin(&mut self, site: &Site, point: &WovenPoint) {
        self.restart();
        self.scratch = site.scratch().iter().filter(|r| r.0 < 16 && r.0 != 4).fold(0, |mask, r| mask | 1 << r.0);
        self.flags_dead = site.are_flags_free();
        self.tail = point.tail.0;
        self.slot = point.slot.0;
        self.leave = point.leave.0;
        self.is_added = false;
        self.pushed = 0;
        self.red_zone = matches!(point.kind, PointKind::Block | PointKind::Edge);
        self.base = point.base.0;
        self.slow = point.removal.code.start.0;
        let chain = || point.minis.iter().filter_map(|m| m.code.as_ref());
        let links = std::iter::once(point.slot).chain(chain().map(|m| m.link));
        let starts = chain().map(|m| m.start).chain([point.leave]);
        self.chain.clear();
        self.chain.extend(links.zip(starts).map(|(link, start)| (link.0, start.0)));
        self.asides.clear();
        self.asides.extend(chain().map(|m| (m.aside(), m.start..m.link)));
    }

    /// Whether only dead registers and flags have changed.
    pub fn harmless(&self, state: &AbstractState) -> bool {
        state.stack.len() == self.pushed
            && state.stack.words().iter().all(|w| *w == OTHER)
            && !state.kept & !self.scratch == 0
            && (state.flags_kept || self.flags_dead)
    }

    /// Records an instruction that is proven elsewhere. Fails if the instruction was visited already.
    pub fn mark(&mut self, instruction: &Instruction) -> Result<(), VerifyError> {
        if self.visit(instruction.ip()).is_some() {
            return fail(instruction.ip(), Flaw::Untiled);
        }
        self.set(instruction, Visit::Marked);
        Ok(())
    }

    /// Instructions in a range that [`Interpreter::tile`] has accepted. For each, the flag says whether a thread at the instruction has changed
    /// nothing that is live. The flag is `None` for instructions that are proven elsewhere.
    pub fn visited(&self, range: &AvmaRange) -> impl Iterator<Item = (u64, Option<bool>)> {
        let (from, until) = (range.start.0, range.end.0);
        let harmless = |visit: Visit| self.state(visit).map(|state| self.harmless(state));
        let own = self.visits.iter().map(move |(at, (_, visit))| (*at, harmless(*visit)));
        let alike = self.alike.iter().flat_map(move |known| known.instructions(&self.parts, from..until));
        own.filter(move |(at, _)| (from..until).contains(at)).chain(alike.map(|(at, harmless)| (at, Some(harmless))))
    }

    /// Checks that the visited instructions fill the range exactly, except for gaps between two of them (see [`Self::gap`]).
    pub fn tile(&mut self, range: &AvmaRange) -> Result<(), VerifyError> {
        let mut at = range.start.0;
        while at < range.end.0 {
            let behind_gap = || self.visit_at(self.gap(at).filter(|_| at != range.start.0)?);
            let Some((end, count)) = self.visit_at(at).or_else(behind_gap) else { return fail(at, Flaw::Untiled) };
            self.tiled += count;
            at = end;
        }
        if at == range.end.0.max(range.start.0) { Ok(()) } else { fail(at, Flaw::Untiled) }
    }

    /// End of the visited instructions from `at` on, and their number; `None` if `at` was not visited.
    fn visit_at(&self, at: u64) -> Option<(u64, usize)> {
        let run = self.alike.as_ref().and_then(|known| known.run_at(&self.parts, at));
        match (run, self.visits.get(&at)) {
            (Some(run), None) => Some(run),
            (None, Some((end, _))) => Some((*end, 1)),
            _ => None,
        }
    }

    /// End of a gap that begins at an address: breakpoints to which no path leads, fewer than the bytes of a link. `None` if there is none.
    fn gap(&self, at: u64) -> Option<u64> {
        let is_free = |at: &u64| {
            self.visit_at(*at).is_none() && self.facts.memory().bytes(*at).is_some_and(|b| b.starts_with(&[0xcc]))
        };
        (at..at + LINK).find(|at| !is_free(at))
    }

    /// Ends a proof: checks that no instruction was visited outside the ranges that were tiled, and that no branch closes a loop.
    pub fn conclude(&self) -> Result<(), VerifyError> {
        if self.tiled != self.touched() {
            return fail(self.slot, Flaw::Untiled);
        }
        self.no_loops()
    }

    /// Executes code from `at` on, in the state at the point, until every path has left in a permitted way. If equivalent code was proven
    /// before, executes nothing.
    pub fn from(&mut self, at: u64, point: &WovenPoint) -> Result<(), VerifyError> {
        self.measure(at, point);
        self.alike = self.facts.executed.alike(self.facts, &self.shape, &self.parts);
        if self.alike.is_none() {
            self.execute(at, AbstractState::entry(), Mode::Point)?;
        }
        let begins = |bytes: &[u8], what: &[u8]| bytes.starts_with(what);
        let leave = self.leave;
        let Some(bytes) = self.memory.bytes(leave) else { return fail(leave, Flaw::NoInstruction) };
        // The slow routine would take the tail for a snippet.
        if begins(bytes, &COUNT[..4]) || begins(bytes, &MARKER) {
            return fail(leave, Flaw::Forbidden);
        }
        if self.alike.is_some() || self.visit(self.slot).is_some() { Ok(()) } else { fail(self.slot, Flaw::Astray) }
    }

    /// Determines the parts of a point's code, which begins at `begin`, and the shape. Code must have the same shape to be equivalent.
    fn measure(&mut self, begin: u64, point: &WovenPoint) {
        let aside = |(aside, _): &(AvmaRange, AvmaRange)| (aside.start.0, aside.end.0);
        let first = point.removal.code.start.0;
        self.parts.clear();
        self.parts.extend([(first, first.max(point.base.0)), (begin, self.tail)]);
        self.parts.extend(self.asides.iter().map(aside).filter(|(from, until)| from < until));
        let places = [self.slot, self.leave, self.tail].into_iter();
        let chain = self.chain.iter().flat_map(|(link, start)| [*link, *start]);
        let asides = self.asides.iter().flat_map(|(_, place)| [place.start.0, place.end.0]);
        let lengths = self.parts.iter().map(|(from, until)| until.wrapping_sub(*from));
        let registers = u64::from(self.red_zone) << 32 | u64::from(self.scratch) << 1 | u64::from(self.flags_dead);
        let scratch = point.scratch.map_or(u64::MAX, |r| u64::from(r.0));
        self.shape.clear();
        self.shape.extend([registers, scratch, self.chain.len() as u64, self.asides.len() as u64]);
        self.shape.extend(places.chain(chain).chain(asides).map(|at| at.wrapping_sub(begin)));
        self.shape.extend(lengths);
    }

    /// Determines the parts and the shape of an added snippet, like [`Self::measure`]. The order of the parts is a part of the shape,
    /// because execution depends on the direction of branches.
    fn measure_added(&mut self, mini: &MiniCode) {
        let aside = mini.aside();
        let own = (mini.start.0, mini.own().end.0);
        let next = (self.tail, self.tail.saturating_add(1));
        self.parts.clear();
        self.parts.extend([own, next]);
        self.parts.extend(Some((aside.start.0, aside.end.0)).filter(|(from, until)| from < until));
        self.parts.sort_unstable();
        let number = |part: (u64, u64)| self.parts.iter().position(|p| *p == part).map_or(u64::MAX, |n| n as u64);
        let (own_number, next_number) = (number(own), number(next));
        let registers = u64::from(self.red_zone) << 32 | u64::from(self.scratch) << 1 | u64::from(self.flags_dead);
        self.shape.clear();
        self.shape.extend([ADDED, registers, self.pushed as u64, own_number, next_number]);
        self.shape.push(mini.link.0.wrapping_sub(mini.start.0));
        self.shape.extend(self.parts.iter().map(|(from, until)| until.wrapping_sub(*from)));
    }

    /// Keeps the results for a point, its twins included, for points with equivalent code.
    pub fn keep(&mut self) {
        if self.alike.is_some() {
            return;
        }
        let executed = self.visits.iter().filter_map(|(at, (_, visit))| {
            let state = self.state(*visit)?;
            Some(Visited { at: *at, harmless: self.harmless(state), bound: state.bound })
        });
        self.facts.executed.keep(self.facts, &self.shape, &self.parts, executed.collect());
    }

    /// Checks the slot: it is the point's only snippet, in the form that the slow routine recognises, or a nop followed by the chain. The
    /// slot must lie on one page.
    pub fn slot(&mut self, point: &WovenPoint) -> Result<(), VerifyError> {
        let at = self.slot;
        let bytes = self.memory.bytes(at).and_then(|b| b.first_chunk::<{ LEN as usize }>());
        let Some([opcode @ .., a, b, c, d]) = bytes else { return fail(at, Flaw::NoInstruction) };
        if at % 4096 > 4096 - LEN {
            return fail(at, Flaw::Straddles);
        }
        if Slot::of(point).operand() != u32::from_le_bytes([*a, *b, *c, *d]) {
            return fail(at, Flaw::Unmatched);
        }
        let slot = self.memory.decode(at)?;
        if point.minis.iter().all(|m| m.code.is_some()) {
            let right = *opcode == slot::NOP && slot.next_ip() == at + LEN;
            return if right { Ok(()) } else { fail(at, Flaw::Astray) };
        }
        let count = if self.env.identity == ThreadIdentity::Locked { LOCKED_COUNT } else { COUNT };
        let alone = point.minis.len() == 1 && point.has_bare_slot() && *opcode == count && slot.next_ip() == at + LEN;
        if alone { Ok(()) } else { fail(at, Flaw::Astray) }
    }

    /// Checks that the instructions right before the slot let a thread pass only if the shard is its own, and never in a fork child.
    pub fn guards(&self, point: &WovenPoint) -> Result<(), VerifyError> {
        if self.alike.is_some() {
            return Ok(());
        }
        let astray = || fail(point.slot.0, Flaw::Astray);
        let before = |n: usize| self.before(point.slot.0, n).unwrap_or_default();
        let alive = |compare: &Instruction, jump: &Instruction, to: u64| {
            compare.code() == Code::Cmp_rm32_imm8
                && compare.memory_displacement64() == u64::from(self.env.data.alive())
                && compare.immediate8to32() == 0
                && matches!(jump.code(), Code::Je_rel8_64 | Code::Je_rel32_64)
                && jump.near_branch_target() == to
        };
        let (jump, compare, identity) = (before(1), before(2), before(3));
        let Some(r) = point.scratch else {
            let right = self.env.identity == ThreadIdentity::Locked && alive(&compare, &jump, point.leave.0);
            return if right { Ok(()) } else { astray() };
        };
        let slow = jump.near_branch_target();
        let owner = compare.memory_segment() == Register::GS
            && compare.memory_displacement64() == u64::from(self.env.data.displacement(OWNER))
            && number_of(identity.op0_register()) == Some(r.0)
            && number_of(compare.op1_register()) == Some(r.0)
            && jump.code() == Code::Jne_rel8_64
            && self.enters_slow_routine(slow, r)?;
        let right = owner
            && match self.env.identity {
                ThreadIdentity::FsOffset(_) => {
                    compare.code() == Code::Cmp_rm32_r32
                        && identity.code() == Code::Mov_r32_rm32
                        && identity.memory_segment() == Register::FS
                }
                ThreadIdentity::FsBase => {
                    compare.code() == Code::Cmp_rm64_r64
                        && identity.code() == Code::Rdfsbase_r64
                        && alive(&before(5), &before(4), slow)
                }
                ThreadIdentity::Locked => false,
            };
        // No other instruction leads to the slot, and no jump skips these.
        if right { Ok(()) } else { astray() }
    }

    /// Whether the code at `at` is `lea r, [slot]` and the jump to the routine for `r`. Other code could loop.
    fn enters_slow_routine(&self, at: u64, r: Gpr) -> Result<bool, VerifyError> {
        let lea = self.memory.decode(at)?;
        let jump = self.memory.decode(lea.next_ip())?;
        let routine = self.facts.slow.iter().find(|(s, _)| *s == r.0).map(|(_, s)| s.range.start.0);
        Ok(lea.code() == Code::Lea_r64_m
            && lea.ip_rel_memory_address() == self.slot
            && jump.code() == Code::Jmp_rel32_64
            && Some(jump.near_branch_target()) == routine)
    }

    /// Starts the proof of a snippet that is added to a woven point. Generated code ends at `next`, where the chain continues.
    pub fn begin_added(&mut self, point: &WovenPoint, mini: &MiniCode, next: u64) {
        self.restart();
        let free = point.scratch.map_or(0, |r| 1u16 << (r.0 & 15)) | u16::from(point.rax_free);
        self.scratch = free;
        self.flags_dead = true;
        self.tail = next;
        self.slot = point.slot.0;
        self.is_added = true;
        self.pushed = usize::from(point.pushed);
        self.red_zone = matches!(point.kind, PointKind::Block | PointKind::Edge);
        self.base = self.slot;
        self.chain.clear();
        self.chain.push((mini.link.0, next));
        self.asides = vec![(mini.aside(), mini.start..mini.link)];
    }

    /// Executes an added snippet from its first instruction on. If equivalent code was proven before, executes nothing.
    pub fn added(&mut self, mini: &MiniCode) -> Result<(), VerifyError> {
        self.measure_added(mini);
        self.alike = self.facts.executed.alike(self.facts, &self.shape, &self.parts);
        if self.alike.is_some() {
            return Ok(());
        }
        let at = mini.start.0;
        let mut state = AbstractState::entry();
        for _ in 0..self.pushed {
            state.stack.push(at, OTHER)?;
        }
        self.execute(at, state, Mode::Point)
    }

    /// Proves the twin of a snippet, if there is one, and that the slow routine finds its way across the snippet.
    pub fn twin(&mut self, mini: &MiniCode) -> Result<(), VerifyError> {
        let start = mini.start.0;
        let state = self.visit(start).and_then(|visit| self.state(visit)).cloned();
        if state.is_none() && self.alike.is_none() {
            return fail(start, Flaw::Untiled);
        }
        let (link, aside) = (self.memory.decode(mini.link.0)?, mini.aside());
        let is_link = self.memory.bytes(mini.link.0).and_then(|bytes| link_target(mini.link.0, bytes)).is_some();
        if !is_link || link.next_ip() != mini.own().end.0 || straddles(mini.link.0, LINK) {
            return fail(mini.link.0, Flaw::Astray);
        }
        let bytes = self.memory.bytes(start).unwrap_or_default();
        let private = self.env.identity != ThreadIdentity::Locked;
        if !private || bytes.starts_with(&COUNT) {
            let direct = !private || mini.link.0 == start + 9;
            return if direct && aside.start == aside.end { Ok(()) } else { fail(start, Flaw::Astray) };
        }
        let marker = self.memory.decode(start)?;
        let leads = bytes
            .get(4..8)
            .and_then(|d| d.first_chunk::<4>())
            .map(|d| marker.next_ip().wrapping_add_signed(i64::from(i32::from_le_bytes(*d))));
        if !bytes.starts_with(&MARKER) || marker.len() != 8 || leads != Some(aside.start.0) {
            return fail(start, Flaw::Astray);
        }
        match state {
            Some(state) => self.execute(aside.start.0, state, Mode::Twin(mini.link.0)),
            // The twin was proven with the equivalent point.
            None => Ok(()),
        }
    }

    /// Displacement of a counter.
    pub fn displacement(&self, counter: u32) -> u32 {
        self.env.data.counter(counter)
    }

    /// Whether the code of a snippet is one increment of the counter at that displacement.
    pub fn counts(&self, start: u64, behind: u64, displacement: u32) -> bool {
        self.memory.decode(start).is_ok_and(|i| {
            i.code() == Code::Inc_rm64 && i.next_ip() == behind && i.memory_displacement64() == u64::from(displacement)
        })
    }

    /// Proves a shared slow routine.
    pub fn slow_routine(&mut self, r: u8, routine: &SlowRoutine) -> Result<(), VerifyError> {
        self.restart();
        fixed::prove_slow(self, self.env, r, routine)
    }

    /// Proves a shared routine.
    pub fn routine(&mut self, at: u64, routine: Routine) -> Result<(), VerifyError> {
        self.restart();
        if let Some(proof) = fixed::prove(self, self.env, routine, at) {
            return proof;
        }
        let mode = Mode::Routine(routine);
        self.execute(at, AbstractState::entry(), mode)?;
        // The instructions right before a system call set its arguments, so no jump may lead in between.
        let visited = || self.visits.keys().filter_map(|at| self.memory.decode(*at).ok());
        let calls =
            visited().filter(|i| i.code() == Code::Syscall).filter_map(|i| Some((self.call(&i, mode)?.start, i.ip())));
        let calls: Vec<_> = calls.collect();
        for branch in visited().filter(|i| i.is_jmp_short_or_near() || i.is_jcc_short_or_near()) {
            let target = branch.near_branch_target();
            if calls.iter().any(|(start, call)| target > *start && target <= *call) {
                return fail(branch.ip(), Flaw::Astray);
            }
        }
        Ok(())
    }

    fn call(&self, i: &Instruction, mode: Mode) -> Option<SystemCall> {
        let before = |n: usize| self.before(i.ip(), n).unwrap_or_default();
        let Mode::Routine(routine) = mode else { return None };
        system_call::call(self.env, routine, i.ip(), &before)
    }

    /// Checks a system call of a routine, and applies its effect to the state.
    fn system_call(&mut self, i: &Instruction, state: &mut AbstractState, mode: Mode) -> Result<(), VerifyError> {
        let at = i.ip();
        let Some(call) = self.call(i, mode) else { return fail(at, Flaw::Forbidden) };
        if call.pushed.is_some_and(|pushed| state.stack.len() != pushed) {
            return fail(at, Flaw::Stack);
        }
        // The kernel writes the answer over words that the routine has pushed.
        for _ in 0..call.writes {
            state.stack.pop().ok_or(VerifyError { at: Avma(at), flaw: Flaw::Stack })?;
        }
        for _ in 0..call.writes {
            state.stack.push(at, OTHER)?;
        }
        [0, 1, 11].into_iter().for_each(|r| state.lose(r));
        state.flags_kept = false;
        Ok(())
    }

    fn execute(&mut self, at: u64, state: AbstractState, mode: Mode) -> Result<(), VerifyError> {
        let mut others = vec![(at, state)];
        while let Some((at, mut state)) = others.pop() {
            let mut next = Some(at);
            while let Some(at) = next {
                next = self.step(at, &mut state, mode, &mut others)?;
            }
        }
        Ok(())
    }

    /// Executes the instruction at `at`. Returns the address at which control continues, and adds further ones to `others`. Returns `None`
    /// if control has left the code, or if the state holds nothing new.
    fn step(
        &mut self,
        at: u64,
        state: &mut AbstractState,
        mode: Mode,
        others: &mut Vec<(u64, AbstractState)>,
    ) -> Result<Option<u64>, VerifyError> {
        if self.leaves(at, state, mode)? {
            return Ok(None);
        }
        let instruction = &self.memory.decode(at)?;
        match self.visit(at) {
            None => {
                self.set(instruction, Visit::State(self.states.len() as u32));
                self.states.push(state.clone());
            }
            // Generated code must not run into displaced instructions.
            Some(Visit::Marked) => return fail(at, Flaw::Untiled),
            Some(Visit::State(n)) => {
                let Some(old) = self.states.get_mut(n as usize) else { return fail(at, Flaw::Untiled) };
                if old.stack != state.stack {
                    return fail(at, Flaw::Stack);
                }
                state.meet(old);
                if *state == *old {
                    return Ok(None);
                }
                *old = state.clone();
            }
        }
        let behind = Some(instruction.next_ip());
        match instruction.flow_control() {
            FlowControl::Next => {
                self.forward(at, instruction.next_ip(), mode)?;
                let compared = state.parent == Parent::Compared;
                self.effect(instruction, state, mode)?;
                if compared {
                    state.parent = Parent::Unknown;
                }
                state.compared = compared_with(instruction);
                Ok(behind)
            }
            FlowControl::Call if instruction.code() == Code::Syscall => {
                self.system_call(instruction, state, mode)?;
                state.compared = None;
                Ok(behind)
            }
            FlowControl::Call if instruction.code() == Code::Call_rel32_64 && mode == Mode::Point => {
                self.calls(instruction, state)?;
                Ok(behind)
            }
            FlowControl::UnconditionalBranch if instruction.is_jmp_short_or_near() => {
                let target = instruction.near_branch_target();
                if let Some((_, routine)) = self.facts.routines.iter().find(|(entry, _)| *entry == target) {
                    let back = self.past_routine(at, state, *routine)?;
                    if !self.passes.contains(&(at, back)) {
                        self.passes.push((at, back));
                    }
                    return Ok(Some(back));
                }
                self.forward(at, target, mode)?;
                Ok(Some(target))
            }
            FlowControl::ConditionalBranch if instruction.is_jcc_short_or_near() => {
                self.forward(at, instruction.near_branch_target(), mode)?;
                others.push((instruction.near_branch_target(), state.clone()));
                if state.parent == Parent::Compared && instruction.condition_code() == ConditionCode::e {
                    state.parent = Parent::Yes;
                }
                if let (Some((r, limit)), ConditionCode::ae) = (state.compared, instruction.condition_code()) {
                    state.know(RegisterBound::Most(r, limit - 1));
                }
                Ok(behind)
            }
            FlowControl::IndirectBranch if instruction.code() == Code::Jmp_rm64 => {
                self.returns(instruction, state, mode)?;
                Ok(None)
            }
            _ => fail(at, Flaw::Forbidden),
        }
    }

    /// Applies an instruction to the state. Fails if generated code must not contain the instruction at this place.
    fn effect(&mut self, i: &Instruction, state: &mut AbstractState, mode: Mode) -> Result<(), VerifyError> {
        if self.saves_or_restores(i, state, mode)? {
            return Ok(());
        }
        self.check_accesses(i, state, mode)?;
        self.note_bound(i, state);
        let env = self.env;
        if i.rflags_modified() != 0 {
            state.flags_kept = false;
            let compares = i.code() == Code::Cmp_rm32_imm8
                && i.memory_displacement64() == u64::from(env.data.alive())
                && i.memory_base() == Register::None
                && i.memory_index() == Register::None
                && i.segment_prefix() == Register::None
                && i.immediate8to32() == 0;
            if compares {
                state.parent = Parent::Compared;
            }
        }
        if i.code() == Code::Lea_r64_m
            && i.is_ip_rel_memory_operand()
            && let Some(r) = number_of(i.op0_register())
        {
            state.pointer = Some((r, i.ip_rel_memory_address()));
        }
        Ok(())
    }

    /// Applies an instruction that saves or restores registers and flags, or does nothing. Returns false for any other instruction; fails
    /// if the instruction is not permitted.
    fn saves_or_restores(
        &mut self,
        i: &Instruction,
        state: &mut AbstractState,
        mode: Mode,
    ) -> Result<bool, VerifyError> {
        let at = i.ip();
        match i.code() {
            Code::Lea_r64_m if i.op0_register() == Register::RSP => self.crosses_red_zone(i, state, mode)?,
            Code::Push_r64 | Code::Pushfq if self.past_red_zone(at, state).is_err() => return fail(at, Flaw::Stack),
            Code::Pop_r64 | Code::Popfq if self.red_zone && state.stack.len() <= usize::from(RED_ZONE_WORDS) => {
                return fail(at, Flaw::Stack);
            }
            Code::Push_r64 => {
                let r = number_of(i.op0_register()).filter(|r| *r != 4);
                // An address in the arena must stay in a register.
                if state.pointer.is_some_and(|(p, _)| Some(p) == r) || mode_register(mode) == r {
                    return fail(at, Flaw::Forbidden);
                }
                if r == Some(0) && state.image == FlagsTransfer::Whole {
                    return state.stack.push(at, IMAGE).map(|()| true);
                }
                if r.is_some_and(|r| state.bound == RegisterBound::Callee(r)) {
                    return state.stack.push(at, CALLEE).map(|()| true);
                }
                let value = r.filter(|r| state.kept & 1 << r != 0).unwrap_or(OTHER);
                state.stack.push(at, value)?;
            }
            Code::Pushfq => {
                state.stack.push(at, if state.flags_kept { FLAGS } else { OTHER })?;
            }
            Code::Pop_r64 if state.stack.len() <= self.pushed => return fail(at, Flaw::Stack),
            Code::Pop_r64 => {
                let (Some(r), Some(value)) = (number_of(i.op0_register()), state.stack.pop()) else {
                    return fail(at, Flaw::Stack);
                };
                if r == 4 {
                    return fail(at, Flaw::Stack);
                }
                state.lose(r);
                if value == r {
                    state.kept |= 1 << r;
                }
                if (r, value) == (0, IMAGE) {
                    state.image = FlagsTransfer::Whole;
                }
            }
            Code::Popfq => {
                let Some(value) = state.stack.pop() else { return fail(at, Flaw::Stack) };
                if value != FLAGS {
                    return fail(at, Flaw::Lost);
                }
                state.flags_kept = true;
            }
            Code::Lahf => {
                let kept = state.flags_kept;
                state.lose(0);
                state.image = if kept { FlagsTransfer::Low } else { FlagsTransfer::None };
            }
            Code::Seto_rm8 if i.op0_register() == Register::AL && state.image == FlagsTransfer::Low => {
                state.image = FlagsTransfer::Whole;
            }
            // The addition overflows if al is 1, and not if al is 0.
            Code::Add_AL_imm8 if i.immediate8() == 0x7f && state.image == FlagsTransfer::Whole => {
                state.image = FlagsTransfer::Overflow;
                state.flags_kept = false;
            }
            Code::Sahf => {
                state.flags_kept = state.image == FlagsTransfer::Overflow;
                if !state.flags_kept {
                    return fail(at, Flaw::Lost);
                }
            }
            // These moves bring the answer of a routine past the register with the resume address.
            Code::Mov_rm64_r64 | Code::Mov_r64_rm64
                if matches!(mode, Mode::Routine(_)) && i.op_kinds().all(|k| k == OpKind::Register) =>
            {
                state.moves(i);
            }
            Code::Nop_rm32 | Code::Nop_rm16 | Code::Nopd => {}
            _ if !permitted(i.mnemonic()) => return fail(at, Flaw::Forbidden),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Checks that an instruction writes only registers and memory that generated code may change, and reads only memory that such code
    /// may read.
    fn check_accesses(&mut self, i: &Instruction, state: &mut AbstractState, mode: Mode) -> Result<(), VerifyError> {
        let at = i.ip();
        let env = self.env;
        let bounds = [state.bound, state.earlier];
        let info = self.info.info_options(i, InstructionInfoOptions::NONE);
        for used in info.used_registers() {
            if !writes(used.access()) {
                continue;
            }
            match number_of(used.register()) {
                Some(4) => return fail(at, Flaw::Stack),
                Some(r) => state.lose(r),
                None => return fail(at, Flaw::Forbidden),
            }
        }
        for memory in info.used_memory() {
            let stored = (memory.displacement(), memory.memory_size().size());
            let store = mode == Mode::Point
                && state.parent == Parent::Yes
                && i.mnemonic() == Mnemonic::Mov
                && is_absolute(memory)
                && self.facts.stores.contains(&stored);
            let by = |permits: &dyn Fn(RegisterBound) -> bool| bounds.into_iter().any(permits);
            let listed =
                |l: &Listed| by(&|bound| l.permits(i, memory, bound)) && matches!(mode, Mode::Point | Mode::Twin(_));
            if self.facts.listed.iter().any(listed) {
                continue;
            }
            if writes(memory.access()) && !store && !by(&|bound| may_write(env, i, memory, bound, mode)) {
                return fail(at, Flaw::ForeignWrite);
            }
            if !by(&|bound| may_read(env, i, memory, bound, mode)) {
                return fail(at, Flaw::ForeignRead);
            }
        }
        Ok(())
    }

    /// Records the bound or the meaning of a register that an instruction sets.
    fn note_bound(&mut self, i: &Instruction, state: &mut AbstractState) {
        let env = self.env;
        match i.code() {
            Code::Mov_r64_rm64
                if i.segment_prefix() == Register::GS
                    && i.memory_base() == Register::None
                    && i.memory_index() == Register::None
                    && i.memory_displacement64() == u64::from(env.data.displacement(TOP)) =>
            {
                state.know(number_of(i.op0_register()).map_or(RegisterBound::None, RegisterBound::Top));
            }
            Code::Mov_r64_imm64 if env.loader == Some(Avma(i.immediate64())) => {
                state.know(number_of(i.op0_register()).map_or(RegisterBound::None, RegisterBound::Loader));
            }
            Code::Mov_r64_imm64 | Code::Mov_r32_imm32 | Code::Mov_rm64_imm32
                if i.op0_kind() == OpKind::Register && self.facts.callees.binary_search(&i.immediate(1)).is_ok() =>
            {
                state.know(number_of(i.op0_register()).map_or(RegisterBound::None, RegisterBound::Callee));
            }
            Code::And_EAX_imm32 => state.know(RegisterBound::Most(0, i.immediate32())),
            Code::And_rm32_imm32 if i.op0_kind() == OpKind::Register => {
                let bound = number_of(i.op0_register())
                    .map_or(RegisterBound::None, |r| RegisterBound::Most(r, i.immediate32()));
                state.know(bound);
            }
            Code::Mov_r32_imm32 => {
                let known = number_of(i.op0_register());
                state.know(known.map_or(RegisterBound::None, |r| RegisterBound::Exactly(r, i.immediate32())));
            }
            // A mask that is negative as an i8 gives a bound that is larger than any table, so no access is permitted by it.
            Code::And_rm32_imm8 if i.op0_kind() == OpKind::Register => {
                let most = i.immediate8to32().cast_unsigned();
                state.know(number_of(i.op0_register()).map_or(RegisterBound::None, |r| RegisterBound::Most(r, most)));
            }
            _ => {}
        }
    }
}

/// The register and the number that an instruction compares.
fn compared_with(i: &Instruction) -> Option<(u8, u32)> {
    let limit = u32::try_from(i.immediate32to64()).ok().filter(|limit| *limit > 0)?;
    let compares = i.code() == Code::Cmp_rm64_imm32 && i.op0_kind() == OpKind::Register;
    Some((number_of(i.op0_register())?, limit)).filter(|_| compares)
}

fn mode_register(mode: Mode) -> Option<u8> {
    match mode {
        Mode::Routine(_) => Some(0),
        Mode::Point | Mode::Twin(_) => None,
    }
}
