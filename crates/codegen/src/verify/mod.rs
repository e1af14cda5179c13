//! The verifier: it proves from bytes alone that a plan does what it must and nothing else. The verifier shares with the generator only
//! the instruction decoder, types, constants, the encoding of slots and links, and the listings of fixed routines (`fixed`). The verifier
//! trusts neither the plan nor the woven points: it reads them as claims.
//!
//! A plan passes if
//! - text writes are sorted, disjoint, at most 8 bytes, on one page, and expect the original bytes;
//! - springboards lead to a base trampoline, and control cannot land inside them;
//! - a first instruction that stays in place before a springboard has the same effect if its effect on the stack pointer is taken back and it
//!   runs again, or it leaves alone what snippets need; and no snippet reads an argument that it overwrites (`first`);
//! - code before the tail changes only dead registers, dead flags, counters and its own words on the stack (`interpreter`);
//! - the tail, which is the copy of the displaced instructions, does the same as these (`equivalence`), and control continues in the text
//!   where it would without the point;
//! - no code in an arena has a call instruction or pushes an address of the arena, except calls of fixed routines that return, about counters
//!   (`interpreter`), the routine that calls functions which a snippet names, and the routine that asks the vDSO for the time;
//! - a fixed routine has the bytes of its listing, with the numbers of this environment (`fixed`);
//! - every byte of new code belongs to a proven instruction, and no jump leads into the middle of an instruction;
//! - at every instruction of code that will be removed, a thread has a resume address or can be single-stepped.

mod body;
mod change;
mod counting;
mod equivalence;
mod first;
mod fixed;
mod inner;
mod interpreter;
mod listed;
mod memory;
mod proof_cache;
mod rehost;
mod renewal;
mod rules;
mod state;
mod system_call;
mod waiting;
mod with_copy;

use iced_x86::Code;
use ingraft_model::{Avma, IslandRoom, PcMove, PointKind, Site, TextWrite};

use crate::code::arena::Arena;
use crate::code::environment::Environment;
use crate::code::routine::Routine;
use crate::code::spread::{self, OneThread, Spread};
use crate::code::woven::WovenMini;
use crate::code::woven::{RemovalRecord, WovenPoint};
use crate::patch::text_space::TextSpace;
use crate::patch::weave::{PointRequest, Weave};
use crate::snippet::slot;
use inner::Hosts;

pub use body::{verify_bodies_on, verify_body};
pub use change::{Added, verify_added, verify_all_added, verify_removal, verify_removed, verify_removed_within};
use equivalence::InstructionPair;
use interpreter::{Interpreter, PlanFacts};
use memory::Memory;
pub use rehost::verify_rehosted;
pub use renewal::verify_renewal;

/// Defect of a plan. The cause is a defect of the generator, or of the code that passes the plan to the verifier.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the plan is wrong at {at}: {flaw}")]
pub struct VerifyError {
    /// Address at which the plan is wrong.
    pub at: Avma,
    /// Kind of the defect.
    pub flaw: Flaw,
}

/// Kinds of defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// Text writes or code overlap or are out of order.
    #[error("writes overlap or are not sorted")]
    Disorder,
    /// A text write has no bytes, more than 8, or bytes after its length.
    #[error("a malformed text write")]
    Malformed,
    /// A text write lies on two pages.
    #[error("a text write straddles two pages")]
    Straddles,
    /// The bytes that a write expects are not the original ones.
    #[error("the expected bytes are not the original ones")]
    NotOriginal,
    /// The plan's text writes are not those of its points.
    #[error("text writes and removal records do not match")]
    Unmatched,
    /// New code lies outside the arena.
    #[error("code outside of the arena")]
    OutsideArena,
    /// A springboard or a rewritten branch does not lead where it must.
    #[error("a springboard or branch leads to the wrong place")]
    Astray,
    /// Control can land inside a springboard.
    #[error("control can land inside a springboard")]
    LandingInside,
    /// The bytes are no valid instruction, or the plan has not written them.
    #[error("no instruction")]
    NoInstruction,
    /// Generated code must not contain the instruction.
    #[error("an instruction that must not be there")]
    Forbidden,
    /// An instruction writes to memory that is neither a counter nor the code's own stack.
    #[error("a write to foreign memory")]
    ForeignWrite,
    /// An instruction reads memory that may not be mapped.
    #[error("a read of foreign memory")]
    ForeignRead,
    /// Pushes and pops do not match.
    #[error("unbalanced stack")]
    Stack,
    /// A register or flag that may be live is lost.
    #[error("a live register or flag is lost")]
    Lost,
    /// The tail does not do what the original instructions do.
    #[error("the displaced instructions are not equivalent")]
    NotEquivalent,
    /// A jump leads into the middle of an instruction, or some code is not proven.
    #[error("overlapping or unproven code")]
    Untiled,
    /// Code calls a function of the program that no snippet names.
    #[error("a call that nobody has asked for")]
    Undeclared,
    /// A move of program counters is missing, or leads to an address that is not equivalent.
    #[error("a program counter has no right way to go")]
    BadMove,
}

pub(crate) fn fail<T>(at: u64, flaw: Flaw) -> Result<T, VerifyError> {
    Err(VerifyError { at: Avma(at), flaw })
}

/// Proves a plan of [`crate::weave_points`] and the removal records of its points.
pub fn verify_weave(
    env: &Environment,
    arena: &Arena,
    text: &TextSpace,
    requests: &[PointRequest<'_>],
    weave: &Weave,
) -> Result<(), VerifyError> {
    verify_weave_on(&OneThread, env, arena, text, requests, weave)
}

/// Proves a plan as [`verify_weave`] does. The points are proven in parts that `spread` runs.
pub fn verify_weave_on(
    spread: &dyn Spread,
    env: &Environment,
    arena: &Arena,
    text: &TextSpace,
    requests: &[PointRequest<'_>],
    weave: &Weave,
) -> Result<(), VerifyError> {
    let plan = &weave.plan;
    check_writes(&plan.text)?;
    let memory = Memory::new(&plan.code, &arena.range())?;
    let facts = PlanFacts::new(env, arena, &memory, requests.iter().flat_map(|r| r.minis));
    let mut interpreter = Interpreter::new(&facts);
    let mut proven = Vec::with_capacity(2 * weave.woven.len() + 4);
    for routine in arena.slow.iter().enumerate().filter_map(|(r, s)| Some((r, s.as_ref()?))) {
        let (r, routine) = routine;
        // A routine of an earlier plan was proven with that plan.
        if memory.holds(routine.range.start.0) {
            interpreter.slow_routine(r as u8, routine)?;
            interpreter.tile(&routine.range)?;
            interpreter.conclude()?;
            proven.push((routine.range.start.0, routine.range.end.0));
        }
    }
    prove_routines(&mut interpreter, arena, &memory, &mut proven)?;
    let mut behind = Vec::with_capacity(requests.len());
    for (request, point) in requests.iter().zip(&weave.woven) {
        behind.push(first::behind(request, point.as_deref().ok())?);
    }
    let requests: Vec<_> = requests.iter().zip(&behind).map(|(request, site)| request.at(site.as_deref())).collect();
    spread.check();
    let hosts = Hosts::new(&requests, weave);
    let proofs: Vec<PointProof<'_>> = requests
        .iter()
        .zip(&weave.woven)
        .filter_map(|(request, point)| Some(PointProof { text, request, point: point.as_ref().ok()? }))
        .collect();
    let all = Points::prove_all(spread, &proofs, &facts, &hosts)?;
    let (mut writes, mut expected) = (all.writes, all.expected);
    proven.extend(all.proven);
    spread.check();
    writes.sort_unstable_by_key(|w| w.at);
    if writes != plan.text {
        return fail(plan.text.first().map_or(0, |w| w.at.0), Flaw::Unmatched);
    }
    check_insertion_moves(&plan.moves, &plan.text, &mut expected)?;
    memory.all_proven(&mut proven)
}

/// Number of points that one part of the proof covers. Parts run in parallel.
const POINTS_OF_PART: usize = 200;

/// Results for the points of a plan.
#[derive(Default)]
struct Points {
    writes: Vec<TextWrite>,
    /// Allowed moves of threads from displaced instructions.
    expected: Vec<PcMove>,
    /// Ranges of the points' code.
    proven: Vec<(u64, u64)>,
}

impl Points {
    /// Proves points in parts. Overlaps between the code of points in different parts are found after all results are collected.
    fn prove_all(
        spread: &dyn Spread,
        proofs: &[PointProof<'_>],
        facts: &PlanFacts<'_>,
        hosts: &Hosts<'_>,
    ) -> Result<Self, VerifyError> {
        let parts = spread::map(spread, proofs.chunks(POINTS_OF_PART).collect(), |proofs| {
            let mut part = Points::default();
            part.prove(proofs, &mut Interpreter::new(facts), hosts).map(|()| part)
        });
        let mut all = Points::default();
        for part in parts {
            let part = part?;
            all.writes.extend(part.writes);
            all.expected.extend(part.expected);
            all.proven.extend(part.proven);
        }
        Ok(all)
    }

    fn prove(
        &mut self,
        proofs: &[PointProof<'_>],
        interpreter: &mut Interpreter<'_>,
        hosts: &Hosts<'_>,
    ) -> Result<(), VerifyError> {
        for proof in proofs {
            let point = proof.point;
            match (point.probe, point.host) {
                (Some(probe), _) => self.writes.push(proof.at_probe(interpreter, &probe, &mut self.expected)?),
                (None, Some(host)) => self.writes.push(proof.within(interpreter, host, hosts)?),
                (None, None) => proof.run(interpreter, &mut self.expected)?,
            }
            self.writes.extend(proof.redirected(hosts)?);
            self.writes.extend(point.removal.text.iter().map(TextWrite::inverse));
            self.proven.extend(point.records().map(|r| (r.code.start.0, r.code.end.0)));
        }
        Ok(())
    }
}

/// Proves the shared routines that this plan writes. Other routines were proven with the plans that wrote them.
fn prove_routines(
    interpreter: &mut Interpreter<'_>,
    arena: &Arena,
    memory: &Memory<'_>,
    proven: &mut Vec<(u64, u64)>,
) -> Result<(), VerifyError> {
    let known = Routine::ALL.iter().filter_map(|r| Some((*r, arena.routine(*r)?)));
    for (routine, range) in known.filter(|(_, range)| memory.holds(range.start.0)) {
        interpreter.routine(range.start.0, routine)?;
        interpreter.tile(range)?;
        interpreter.conclude()?;
        proven.push((range.start.0, range.end.0));
    }
    Ok(())
}

fn check_writes(text: &[TextWrite]) -> Result<(), VerifyError> {
    let mut end = 0;
    for w in text {
        let (at, len) = (w.at.0, usize::from(w.len));
        if len == 0 || len > 8 || w.old.iter().skip(len).chain(w.new.iter().skip(len)).any(|&b| b != 0) {
            return fail(at, Flaw::Malformed);
        }
        if at < end {
            return fail(at, Flaw::Disorder);
        }
        if at % 4096 + len as u64 > 4096 {
            return fail(at, Flaw::Straddles);
        }
        end = at + len as u64;
    }
    Ok(())
}

/// Checks that every move is one of the expected moves, and that every instruction that loses bytes has a move.
fn check_insertion_moves(moves: &[PcMove], text: &[TextWrite], expected: &mut [PcMove]) -> Result<(), VerifyError> {
    expected.sort_unstable();
    let mut next = 0;
    let mut write = text.iter().peekable();
    for e in expected.iter() {
        while write.next_if(|w| w.at.0 + u64::from(w.len) <= e.from.0).is_some() {}
        // An instruction at which a springboard begins has no move.
        let inside = write.peek().is_some_and(|w| w.at <= e.from);
        if moves.get(next) == Some(e) {
            next += 1;
        } else if inside {
            return fail(e.from.0, Flaw::BadMove);
        }
    }
    match moves.get(next) {
        Some(unexpected) => fail(unexpected.from.0, Flaw::BadMove),
        None => Ok(()),
    }
}

/// Checks that each of these instructions has the move that is allowed, or lies in a range to single-step. Returns the number of such
/// moves. Moves that are not sorted are not found.
fn ways_out(
    record: &RemovalRecord,
    visited: impl Iterator<Item = (u64, Option<bool>)>,
    allowed: impl Fn(u64, Option<bool>) -> Option<Avma>,
) -> Result<usize, VerifyError> {
    let (code, moves) = (&record.code, &record.moves);
    if moves.is_empty() && record.step_out.iter().any(|r| r.start <= code.start && code.end <= r.end) {
        return Ok(0);
    }
    let inner = moves.iter().position(|m| !code.contains(&m.from)).unwrap_or(moves.len());
    let inner = moves.get(..inner).unwrap_or_default();
    let mut used = 0;
    for (at, harmless) in visited {
        match inner.binary_search_by_key(&Avma(at), |m| m.from).ok().and_then(|found| inner.get(found)) {
            Some(m) if Some(m.to) == allowed(at, harmless) => used += 1,
            None if record.step_out.iter().any(|r| r.contains(&Avma(at))) => {}
            _ => return fail(at, Flaw::BadMove),
        }
    }
    Ok(used)
}

/// Proof of one point.
struct PointProof<'a> {
    text: &'a TextSpace,
    request: &'a PointRequest<'a>,
    point: &'a WovenPoint,
}

impl PointProof<'_> {
    fn site(&self) -> &Site {
        self.request.site
    }

    fn run(&self, interpreter: &mut Interpreter<'_>, expected: &mut Vec<PcMove>) -> Result<(), VerifyError> {
        let (site, bias) = (self.site(), self.request.bias);
        let point = self.point;
        let at = site.at.to_avma(bias);
        let entry = site.point_kind() == PointKind::Entry;
        if point.kind != site.point_kind() {
            return fail(at.0, Flaw::Unmatched);
        }
        let stays = first::staying(self.request, point)?;
        // The first byte of the springboard.
        let board = Avma(at.0 + stays);
        if point.at != board
            || point.function != site.function.to_avma(bias)
            || point.leave.0 < point.slot.0 + slot::LEN
        {
            return fail(at.0, Flaw::Astray);
        }
        interpreter.begin(site, point);

        // Pairs of original instructions and their copies.
        let mut pairs: Vec<InstructionPair> = Vec::new();
        // A branch to the springboard, or to the function's first byte, must be redirected to the tail.
        let begins = |t: u64| site.arrival().is_some() && t == at.0 || entry && t == point.function.0;
        let resolve = |t: u64| if begins(t) { point.tail.0 } else { t };
        let mut springboard = None;
        for w in &point.removal.text {
            if self.original(w.at.0, w.len).is_none_or(|old| old != w.new_bytes()) {
                return fail(w.at.0, Flaw::NotOriginal);
            }
            if w.at == board {
                springboard = Some(w);
            }
        }
        if self.is_called() {
            return self.call(interpreter);
        }
        if point.resume != Some(Avma(self.point_at())) {
            return fail(at.0, Flaw::Unmatched);
        }
        let Some(springboard) = springboard else { return fail(at.0, Flaw::Astray) };
        if self.follow(springboard) != Some(point.base.0) {
            return fail(at.0, Flaw::Astray);
        }
        let inside = |l: &ingraft_model::Svma| l.0 > site.at.0 && l.0 < site.at.0 + stays + u64::from(springboard.len);
        if site.landings.iter().any(inside) {
            return fail(at.0, Flaw::LandingInside);
        }
        let raised = first::taken_back(interpreter, point, &mut pairs)?;
        let begin = self.before(interpreter, raised, &mut pairs)?;
        let home = self.behind(interpreter, begin, &resolve, &mut pairs)?;
        let past_own = home.is_some_and(|h| h > at.0 + u64::from(site.own));
        if past_own || home.is_some_and(|h| h < board.0 + u64::from(springboard.len) || h != point.home.0) {
            return fail(at.0, Flaw::NotEquivalent);
        }
        let displaced_end = pairs.iter().map(|p| p.original_end).max().unwrap_or(at.0);
        let covered = displaced_end - at.0;
        if stays + u64::from(springboard.len) > covered && u64::from(site.own) > covered {
            return fail(at.0, Flaw::NotEquivalent);
        }
        // A thread at the first instruction may have arrived by one of the function's own branches, so it must not run the snippets.
        let looped = site.arrival().is_some() && !site.back_branches().is_empty();
        // Nor must one behind a first instruction that stays in place, which has begun the call.
        let mut begins = if looped || board != point.start() && stays == 0 { Vec::new() } else { vec![at.0] };
        for branch in site.back_branches() {
            let b = branch.at.to_avma(bias).0;
            let redirected = point.redirected.iter().any(|inner| inner.original.0 == b);
            if b >= at.0 && b < displaced_end || redirected {
                continue;
            }
            begins.extend(self.redirect(interpreter, branch, at.0..displaced_end, &resolve, &mut pairs)?);
        }
        for room in &site.island_rooms {
            begins.extend(self.island_room(interpreter, room, &mut pairs)?);
        }
        inner::offered(interpreter, point, &mut pairs)?;
        let first_parts = pairs.iter().filter(|p| p.first && !begins.contains(&p.original));
        // A thread at the point's instruction has not passed the point yet.
        let arrival = |p: &InstructionPair| {
            if p.original == self.point_at() && site.arrival().is_none() { begin } else { p.copy }
        };
        expected.extend(first_parts.map(|p| PcMove { from: Avma(p.original), to: Avma(arrival(p)) }));
        if looped && entry && point.function != at {
            expected.push(PcMove { from: point.function, to: point.tail });
        }

        let begin = self.past_condition(interpreter, begin)?;
        self.snippets(interpreter, begin, &pairs)
    }

    /// Whether the point's call itself leads to the base.
    fn is_called(&self) -> bool {
        let site = self.site();
        let now = || memory::decode(&self.text_now()?, site.at.to_avma(self.request.bias).0).ok();
        site.point_kind().is_at_call() && now().is_some_and(|i| i.is_call_near())
    }

    /// The site's own bytes after the plan is applied.
    fn text_now(&self) -> Option<Vec<u8>> {
        let (site, at) = (self.site(), self.site().at.to_avma(self.request.bias).0);
        let mut bytes = site.bytes.get(..usize::from(site.own))?.to_vec();
        for w in &self.point.removal.text {
            let Some(offset) = w.at.0.checked_sub(at).and_then(|n| usize::try_from(n).ok()) else { continue };
            if let Some(place) = bytes.get_mut(offset..offset + usize::from(w.len)) {
                place.copy_from_slice(w.old_bytes());
            }
        }
        Some(bytes)
    }

    /// Proves a call that leads to the base. The changed instruction must still be a call with the same end, so that it pushes the same
    /// return address. The tail is the jump to the callee.
    fn call(&self, interpreter: &mut Interpreter<'_>) -> Result<(), VerifyError> {
        let (site, point) = (self.site(), self.point);
        let at = site.at.to_avma(self.request.bias).0;
        let original = memory::decode(&site.bytes, at)?;
        let call = memory::decode(&self.text_now().unwrap_or_default(), at)?;
        let end = original.next_ip();
        let leads = call.code() == Code::Call_rel32_64
            && call.next_ip() == end
            && call.near_branch_target() == point.base.0
            && matches!(original.code(), Code::Call_rel32_64 | Code::Call_rm64)
            && site.point_kind() != PointKind::CallAfter
            && site.point == 0;
        let [write] = point.removal.text.as_slice() else { return fail(at, Flaw::Unmatched) };
        if !leads || write.at.0 < at || write.at.0 + u64::from(write.len) > end || point.home.0 != end {
            return fail(at, Flaw::Astray);
        }
        if site.landings.iter().any(|l| l.0 > site.at.0 && l.to_avma(self.request.bias).0 < end) {
            return fail(at, Flaw::LandingInside);
        }
        let mut pairs = Vec::new();
        let callee = equivalence::called(interpreter, &original, point.tail.0, &mut pairs)?;
        if point.resume != callee.map(Avma) {
            return fail(at, Flaw::Unmatched);
        }
        self.snippets(interpreter, point.base.0, &pairs)
    }

    /// Proves the code before the tail, from the base on and along the links.
    fn snippets(
        &self,
        interpreter: &mut Interpreter<'_>,
        begin: u64,
        pairs: &[InstructionPair],
    ) -> Result<(), VerifyError> {
        let point = self.point;
        let at = point.at;
        interpreter.from(begin, point)?;
        interpreter.guards(point)?;
        if point.minis.len() != self.request.minis.len() {
            return fail(at.0, Flaw::Unmatched);
        }
        interpreter.slot(point)?;
        for (mini, request) in point.minis.iter().zip(self.request.minis) {
            let (start, behind) = mini.code.as_ref().map_or((point.slot, point.leave), |code| (code.start, code.link));
            if let Some(code) = &mini.code {
                interpreter.twin(code)?;
            }
            let counter = request.snippet.as_increment().and_then(|v| request.counters.get(v.0 as usize));
            let displacement = counter.map(|index| interpreter.displacement(*index));
            if displacement.is_some_and(|counter| !interpreter.counts(start.0, behind.0, counter))
                || mini.count != displacement
            {
                return fail(start.0, Flaw::NotEquivalent);
            }
            let code = mini.code.as_ref().map(|code| &code.range);
            if code.is_some_and(|range| *range != mini.removal.code) {
                return fail(start.0, Flaw::Unmatched);
            }
        }
        interpreter.keep();
        for record in point.records() {
            interpreter.tile(&record.code)?;
            self.ways_home(interpreter, record, pairs)?;
        }
        // Changes in the text belong to the point, not to a snippet.
        let alone = |m: &WovenMini| {
            m.removal.text.is_empty() && m.removal.moves.iter().all(|to| m.removal.code.contains(&to.from))
        };
        if !point.minis.iter().all(alone) {
            return fail(at.0, Flaw::Unmatched);
        }
        interpreter.conclude()?;
        self.islands_have_ways(&point.removal)
    }

    /// Address of the point's instruction.
    fn point_at(&self) -> u64 {
        self.site().at.to_avma(self.request.bias).0 + u64::from(self.site().point)
    }

    /// Checks that the instructions before the point run first, without a gap. Returns the end of their copies.
    fn before(
        &self,
        interpreter: &mut Interpreter<'_>,
        begin: u64,
        pairs: &mut Vec<InstructionPair>,
    ) -> Result<u64, VerifyError> {
        let bytes = self.site().bytes.get(..usize::from(self.site().point)).unwrap_or_default();
        equivalence::straight(interpreter, bytes, self.site().at.to_avma(self.request.bias).0, begin, pairs)
    }

    /// Compares the point's instruction and those after it with the tail. Returns the home address, if the tail has one.
    fn behind(
        &self,
        interpreter: &mut Interpreter<'_>,
        begin: u64,
        resolve: &impl Fn(u64) -> u64,
        pairs: &mut Vec<InstructionPair>,
    ) -> Result<Option<u64>, VerifyError> {
        let (at, tail) = (self.point_at(), self.point.tail.0);
        let bytes = self.site().bytes.get(usize::from(self.site().point)..).unwrap_or_default();
        if self.site().point_kind() == PointKind::Exit && memory::decode(bytes, at)?.is_jcc_short_or_near() {
            return equivalence::leaves_if(interpreter, bytes, at, begin, tail, None, pairs).map(Some);
        }
        if self.site().point_kind().is_at_call() {
            let stays = interpreter.memory().decode(tail)?;
            if stays.code() == Code::Jmp_rel32_64 && stays.near_branch_target() == at {
                return equivalence::stays(interpreter, at, tail, pairs).map(Some);
            }
        }
        equivalence::run(interpreter, bytes, at, tail, resolve, pairs)
    }

    /// End of the branch past the snippets for a thread that does not take a conditional exit. For other code, `begin`.
    fn past_condition(&self, interpreter: &Interpreter<'_>, begin: u64) -> Result<u64, VerifyError> {
        if self.site().point_kind() != PointKind::Exit {
            return Ok(begin);
        }
        let i = interpreter.memory().decode(begin)?;
        Ok(if i.is_jcc_short_or_near() { i.next_ip() } else { begin })
    }

    /// Original bytes at an address, as the site and the padding state them.
    fn original(&self, at: u64, len: u8) -> Option<&[u8]> {
        let bias = self.request.bias;
        let within = |start: u64, bytes: &'_ [u8]| -> Option<std::ops::Range<usize>> {
            let offset = usize::try_from(at.checked_sub(start)?).ok()?;
            let end = offset.checked_add(usize::from(len))?;
            (end <= bytes.len()).then_some(offset..end)
        };
        let site = self.request.site;
        if let Some(range) = within(site.at.to_avma(bias).0, &site.bytes) {
            return site.bytes.get(range);
        }
        for b in site.back_branches() {
            if let Some(range) = within(b.from.to_avma(bias).0, &b.bytes) {
                return b.bytes.get(range);
            }
        }
        for c in &site.island_rooms {
            if let Some(range) = within(c.at.to_avma(bias).0, &c.bytes) {
                return c.bytes.get(range);
            }
        }
        let (start, bytes) = self.text.padding_at(at)?;
        bytes.get(within(start, bytes)?)
    }

    /// Target of the jump that a write puts in place, followed through an island of the same point.
    fn follow(&self, w: &TextWrite) -> Option<u64> {
        // A record holds the inverse of a write: `old` is the new code.
        let bytes = w.old_bytes();
        match *bytes {
            [0xe9, a, b, c, d] => Some((w.at.0 + 5).wrapping_add_signed(i64::from(i32::from_le_bytes([a, b, c, d])))),
            [0xeb, disp] => self.island((w.at.0 + 2).wrapping_add_signed(i64::from(disp.cast_signed()))),
            _ => None,
        }
    }

    fn island(&self, at: u64) -> Option<u64> {
        if !self.is_room(at) {
            return None;
        }
        let w = self.point.removal.text.iter().find(|w| w.at.0 == at && w.len == 5)?;
        (w.old[0] == 0xe9).then(|| self.follow(w)).flatten()
    }

    /// Whether five bytes are padding, or are free because this point displaces a range for an island.
    fn is_room(&self, at: u64) -> bool {
        if let Some((start, bytes)) = self.text.padding_at(at) {
            return at + 5 <= start + bytes.len() as u64;
        }
        let within = |c: &IslandRoom| {
            let start = c.at.to_avma(self.request.bias);
            self.point.rooms.contains(&start) && at == start.0 + 5 && c.bytes.len() >= 10
        };
        self.site().island_rooms.iter().any(within)
    }

    /// Checks a range that is displaced to make room for an island: all of it must be displaced. Returns the address of the range, or
    /// `None` if the point does not displace it.
    fn island_room(
        &self,
        interpreter: &mut Interpreter<'_>,
        c: &IslandRoom,
        pairs: &mut Vec<InstructionPair>,
    ) -> Result<Option<u64>, VerifyError> {
        let at = c.at.to_avma(self.request.bias).0;
        if !self.point.rooms.contains(&Avma(at)) {
            return Ok(None);
        }
        let write = self.point.removal.text.iter().find(|w| w.at.0 == at);
        let copy = write.filter(|w| w.len == 5).and_then(|w| self.follow(w));
        let Some(copy) = copy else { return fail(at, Flaw::Astray) };
        let end = at + c.bytes.len() as u64;
        let mut own = Vec::new();
        let home = equivalence::run(interpreter, &c.bytes, at, copy, &|target| target, &mut own)?;
        let into = |target: u64| target > at && target < end;
        let mut rest = c.bytes.as_slice();
        while !rest.is_empty() {
            let i = memory::decode(rest, end - rest.len() as u64)?;
            if into(i.near_branch_target()) {
                return fail(i.ip(), Flaw::LandingInside);
            }
            rest = rest.get(i.len()..).unwrap_or_default();
        }
        if home.is_some_and(|home| home != end) || own.iter().map(|p| p.original_end).max() != Some(end) {
            return fail(at, Flaw::NotEquivalent);
        }
        pairs.append(&mut own);
        Ok(Some(at))
    }

    /// Checks that a function's own branch to the point leads to the tail. Returns the start of the range that is displaced with the
    /// branch, if there is one.
    fn redirect(
        &self,
        interpreter: &mut Interpreter<'_>,
        branch: &ingraft_model::BackBranch,
        displaced: std::ops::Range<u64>,
        resolve: &impl Fn(u64) -> u64,
        pairs: &mut Vec<InstructionPair>,
    ) -> Result<Option<u64>, VerifyError> {
        let bias = self.request.bias;
        let (from, at) = (branch.from.to_avma(bias).0, branch.at.to_avma(bias).0);
        let astray = || VerifyError { at: Avma(at), flaw: Flaw::Astray };
        let offset = usize::try_from(at.wrapping_sub(from)).map_err(|_| astray())?;
        let original = branch.bytes.get(offset..).ok_or_else(astray)?;
        // Padding after the branch may hold an island.
        let end = memory::decode(original, at)?.next_ip();
        let until = branch.until.to_avma(bias).0;
        let inside = |w: &&TextWrite| w.at.0 >= from && w.at.0 < end && !displaced.contains(&w.at.0);
        // Bytes before the branch's own range may be displaced for an island.
        let last = self.point.removal.text.iter().filter(inside).max_by_key(|w| w.at);
        let Some(w) = last else { return Err(astray()) };
        if let [0xe9, ..] = *w.old_bytes()
            && w.len == 5
        {
            let offset = usize::try_from(w.at.0 - from).map_err(|_| astray())?;
            let bytes = branch.bytes.get(offset..).ok_or_else(astray)?;
            let target = self.follow(w).ok_or_else(astray)?;
            let mut own = Vec::new();
            let home = equivalence::run(interpreter, bytes, w.at.0, target, resolve, &mut own)?;
            let range_end = own.iter().map(|p| p.original_end).max().unwrap_or(0);
            let takes_branch = own.iter().any(|p| p.original == at);
            // Control that continues after the range must find a whole instruction.
            if w.at.0 > at
                || !takes_branch
                || w.at.0 + 5 > until
                || home.is_some_and(|h| h < w.at.0 + 5)
                || range_end > until
            {
                return Err(astray());
            }
            pairs.extend(own);
            return Ok(Some(w.at.0));
        }
        let target = equivalence::patched_target(original, at, w).ok_or_else(astray)?;
        let target = if w.len == 1 { self.island(target).ok_or_else(astray)? } else { target };
        if target == self.point.tail.0 { Ok(None) } else { Err(astray()) }
    }

    /// Checks that each instruction has a move to an equivalent address, or lies in a range to single-step.
    fn ways_home(
        &self,
        interpreter: &Interpreter<'_>,
        record: &RemovalRecord,
        pairs: &[InstructionPair],
    ) -> Result<(), VerifyError> {
        let home = self.point.resume;
        let proven_elsewhere = |at| pairs.iter().find(|p| p.copy == at).and_then(|pair| pair.back).map(Avma);
        let allowed = |at, harmless: Option<bool>| match harmless {
            Some(harmless) => home.filter(|_| harmless),
            None => proven_elsewhere(at),
        };
        let used = ways_out(record, interpreter.visited(&record.code), allowed)?;
        let islands = record.moves.iter().filter(|m| !record.code.contains(&m.from)).count();
        if used + islands == record.moves.len() { Ok(()) } else { fail(record.code.start.0, Flaw::BadMove) }
    }

    /// Checks that a thread in an island, which lies in the text, moves to the point's springboard.
    fn islands_have_ways(&self, record: &RemovalRecord) -> Result<(), VerifyError> {
        let is_island = |at: u64| self.island(at).is_some();
        for m in record.moves.iter().filter(|m| m.from < record.code.start || m.from >= record.code.end) {
            if m.to != self.point.at || !is_island(m.from.0) {
                return fail(m.from.0, Flaw::BadMove);
            }
        }
        for w in record.text.iter().filter(|w| w.at != self.point.at && w.len == 5 && is_island(w.at.0)) {
            if !record.moves.iter().any(|m| m.from == w.at) {
                return fail(w.at.0, Flaw::BadMove);
            }
        }
        Ok(())
    }
}
