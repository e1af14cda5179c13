//! Mini trampolines: the code of one snippet at one point, and the jump to the next one.

use std::ops::Range;
use std::sync::Arc;

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, Clock, CpuClock, Gpr, Snippet, ThreadIdentity, WallClock};

use crate::code::arena::Arena;
use crate::code::block::{Back, CodeBuffer, EmitError, LINK_NOP};
use crate::code::cost::Cost;
use crate::code::environment::{CodegenError, Environment};
use crate::code::routine::Routine;
use crate::code::woven::{MiniCode, RemovalRecord, StackView, WovenMini, WovenPoint};
use crate::snippet::generator::{self, ShardAccess, SnippetCode};
use crate::snippet::reading;
use crate::snippet::routines;
use crate::snippet::slow::{COUNT, LOCKED_COUNT, MARKER};
use crate::snippet::template::{CounterBinding, Templates};
use crate::snippet::{check, cut, event};

/// Request to put one snippet at a point.
#[derive(Clone, Copy, Debug)]
pub struct MiniRequest<'a> {
    /// Number of the snippet, by which it is removed again; unique at the point.
    pub id: u64,
    /// Snippet to compile.
    pub snippet: &'a Snippet,
    /// Index of the first counter of each variable, by the variable's number.
    pub counters: &'a [u32],
}

impl WovenMini {
    /// Describes a plain count in the slot of its point; `cost` is its cost there.
    pub(crate) fn in_slot(id: u64, count: u32, cost: Cost) -> Self {
        WovenMini { id, count: Some(count), code: None, cost, removal: RemovalRecord::default() }
    }

    /// Describes code in a chain. With `inline`, the code is part of the point's own code.
    pub(crate) fn in_chain(
        env: &Environment,
        id: u64,
        compiled: &Compiled<'_>,
        parts: &MiniParts,
        inline: bool,
        block: &CodeBuffer,
    ) -> Self {
        let first = if inline { parts.aside.start } else { parts.start };
        let (moves, step_out) = block.exits(first, parts.aside.end);
        let range = Avma(first)..Avma(parts.aside.end);
        let removal = RemovalRecord { text: Vec::new(), moves, step_out, code: range.clone() };
        let code = MiniCode { start: Avma(parts.start), link: Avma(parts.link), range };
        let jumps = Cost::jumps(if inline { 0 } else { 2 });
        let cost = parts.cost(env, compiled, block) + jumps;
        WovenMini { id, count: compiled.as_count(), code: Some(code), cost, removal }
    }
}

/// State in which the base trampoline of a point enters the snippets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BaseState {
    /// Resume point of a thread that has nothing to restore. If the point has no resume address, the thread is single-stepped out of the
    /// code.
    pub home: Back,
    pub stack: StackView,
    /// Scratch register, and address at which its slow routine begins to walk the chain; `None` with locked counters.
    pub private: Option<(Gpr, u64)>,
    /// Whether snippets may overwrite rax.
    pub rax_free: bool,
    /// Number of words that the base trampoline has pushed. At an exit, the first word is rax, the function's result.
    pub pushed: u8,
}

impl BaseState {
    /// Resume point for an instruction with only changes of dead registers before it or after it.
    pub fn back(&self) -> Back {
        if self.pushed == 0 { self.home } else { Back::StepOut }
    }
}

impl WovenPoint {
    pub(crate) fn frame(&self, arena: &Arena) -> Result<BaseState, CodegenError> {
        let private = match self.scratch {
            None => None,
            Some(r) => match arena.slow(r) {
                Some(slow) => Some((r, slow.walk.0)),
                None => return Err(CodegenError::OtherEnvironment { at: self.at.0 }),
            },
        };
        let home = self.resume.map_or(Back::StepOut, |at| Back::To(at.0));
        Ok(BaseState { home, stack: self.stack, private, rax_free: self.rax_free, pushed: self.pushed })
    }
}

/// Compiled snippet, independent of its address.
#[derive(Clone, Debug)]
pub(crate) enum Compiled<'a> {
    /// Increment of the counter at this displacement.
    Count(u32),
    /// Code that several snippets may share. `bound` holds the counters to write over those of the code, if the code was compiled for
    /// others.
    Code { codes: Arc<Codes>, bound: Option<CounterBinding<'a>> },
}

/// Code for the thread's own shard and code for shard 0. With locked counters, only the second exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    own: Option<SnippetCode>,
    shared: SnippetCode,
}

/// Part of the code of a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnippetPart {
    /// Code for the thread's own shard.
    Own,
    /// Code for the thread's own shard that runs only sometimes.
    Cold,
    /// Code for shard 0.
    Shared,
}

impl SnippetPart {
    pub const ALL: [SnippetPart; 3] = [SnippetPart::Own, SnippetPart::Cold, SnippetPart::Shared];
}

impl Codes {
    pub fn part(&self, part: SnippetPart) -> Option<&SnippetCode> {
        match part {
            SnippetPart::Own => self.own.as_ref(),
            SnippetPart::Cold => self.own.as_ref()?.cold.as_deref(),
            SnippetPart::Shared => Some(&self.shared),
        }
    }

    pub fn part_mut(&mut self, part: SnippetPart) -> Option<&mut SnippetCode> {
        match part {
            SnippetPart::Own => self.own.as_mut(),
            SnippetPart::Cold => self.own.as_mut()?.cold.as_deref_mut(),
            SnippetPart::Shared => Some(&mut self.shared),
        }
    }
}

/// Checks that a request is valid at any point.
pub(crate) fn check(env: &Environment, request: &MiniRequest<'_>) -> Result<(), CodegenError> {
    check_snippet(env, request.snippet).and_then(|()| check_counters(env, request))
}

/// Checks that the snippet of a request is valid, whatever its counters.
pub(crate) fn check_snippet(env: &Environment, snippet: &Snippet) -> Result<(), CodegenError> {
    if env.cpu == CpuClock::None && snippet.reads(Clock::Cpu) {
        return Err(CodegenError::NoCpuClock);
    }
    if env.loader.is_none() && snippet.awaits_engine() {
        return Err(CodegenError::NoLoader);
    }
    if snippet.interferes() {
        let why = match env.vectors {
            _ if env.identity == ThreadIdentity::Locked => Some("threads cannot be told apart"),
            _ if snippet.calls().is_empty() => None,
            Some(vectors) if vectors.is_sound() => None,
            _ => Some("the processor's state cannot be kept"),
        };
        why.map_or(Ok(()), |why| Err(CodegenError::NoCall { why }))?;
    }
    reading::check(env, snippet)
}

/// Checks that the counters of a request exist and suffice for its snippet.
pub(crate) fn check_counters(env: &Environment, request: &MiniRequest<'_>) -> Result<(), CodegenError> {
    let counters = env.data.counters();
    if let Some(&index) = request.counters.iter().find(|&&index| index >= counters) {
        return Err(CodegenError::CounterOutOfRange { index, counters });
    }
    check::snippet(request.snippet, request.counters, counters)
}

/// Compiles a request for a point.
pub(crate) fn compile<'a>(
    env: &Environment,
    frame: &BaseState,
    request: &MiniRequest<'a>,
    templates: &mut Templates<'a>,
) -> Result<Compiled<'a>, CodegenError> {
    let why = match (frame.stack.moving, env.goroutine) {
        (true, _) if request.snippet.is_bound_to_thread() => Some("the snippet keeps state for its thread"),
        (true, None) if request.snippet.has_records() => Some("there are no records of goroutines"),
        (true | false, _) => None,
    };
    if let Some(why) = why {
        return Err(CodegenError::NoGoroutines { why });
    }
    if !env.stacks && request.snippet.switches_stacks() {
        return Err(CodegenError::NoStacks);
    }
    match request.snippet.as_increment().and_then(|v| request.counters.get(v.0 as usize)) {
        Some(&index) => Ok(Compiled::Count(env.data.counter(index))),
        None => {
            let (codes, bound) = templates.compile(env, frame, request)?;
            Ok(Compiled::Code { codes, bound })
        }
    }
}

/// Compiles a snippet that is more than a count.
pub(crate) fn compile_anew(
    env: &Environment,
    frame: &BaseState,
    request: &MiniRequest<'_>,
) -> Result<Codes, CodegenError> {
    let code = |access| generator::compile(request.snippet, request.counters, env, frame, access);
    let own = frame.private.map(|_| code(ShardAccess::Own)).transpose()?;
    Ok(Codes { own, shared: code(ShardAccess::Shared)? })
}

/// Addresses of the parts of a mini trampoline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MiniParts {
    pub start: u64,
    pub link: u64,
    /// See [`MiniCode::aside`].
    pub aside: Range<u64>,
}

impl MiniParts {
    /// Cost of the snippet `code` at these addresses, without the link to it and the link to the next one.
    pub fn cost(&self, env: &Environment, code: &Compiled<'_>, block: &CodeBuffer) -> Cost {
        let calls = |routine: Routine| match (routine, env.cpu) {
            (Routine::CpuTime, CpuClock::SystemCall) => 1,
            (Routine::Time, _) if env.wall == WallClock::SystemCall => 1,
            (Routine::Read | Routine::Text | Routine::Write, _) => reading::SYSTEM_CALLS,
            (Routine::Usage, _) => 1,
            _ => 0,
        };
        let exits = || code.usual().into_iter().flat_map(SnippetCode::usual_routines);
        let system_calls = exits().map(calls).sum();
        let of = |which| exits().filter(move |routine| *routine == which);
        let read: Cost = of(Routine::Event).map(|_| event::COST).chain(of(Routine::Cut).map(|_| cut::COST)).sum();
        let asks = if let WallClock::Vdso(_) = env.wall { of(Routine::Time).count() as u32 } else { 0 };
        let moving = [
            Routine::PruneGoroutine,
            Routine::Park,
            Routine::Fetch,
            Routine::EnterMoving,
            Routine::LeaveMoving,
            Routine::KeepsNotes,
            Routine::BeginNotes,
            Routine::AddNote,
            Routine::EndNotes,
            Routine::LeaveStack,
            Routine::EnterStack,
        ];
        let moving = moving.into_iter().flat_map(of);
        let timed = Routine::ALL.into_iter().filter(|routine| routine.counters_called().is_some()).flat_map(of);
        let called = of(Routine::Call).chain(of(Routine::Time)).chain(moving).chain(timed);
        let called: Cost = called.filter_map(|r| Some(Cost::of(0, &routines::assemble(env, r).ok()?))).sum();
        let routines = Cost { system_calls, vdso: asks, ..called } + read;
        // The cost of the snippet's own code is known; the block knows the cost of the instructions before it.
        let (own_bytes, own) =
            code.usual().map_or((0, Cost::default()), |usual| (usual.bytes.len() as u64, usual.whole_cost()));
        block.cost(self.start, self.link - own_bytes) + own + routines
    }
}

impl Compiled<'_> {
    /// Displacement of the counter, if this is a plain count.
    pub fn as_count(&self) -> Option<u32> {
        match self {
            Compiled::Count(counter) => Some(*counter),
            Compiled::Code { .. } => None,
        }
    }

    fn codes(&self) -> Option<&Codes> {
        match self {
            Compiled::Code { codes, .. } => Some(codes),
            Compiled::Count(_) => None,
        }
    }

    /// Routines to which the code jumps, in all parts.
    fn exits(&self) -> impl Iterator<Item = Routine> {
        let codes = self.codes().into_iter().flat_map(|codes| [codes.own.as_ref(), Some(&codes.shared)]);
        codes.flatten().flat_map(SnippetCode::routines)
    }

    /// Code that a thread runs normally: that for its own shard, or with locked counters that for shard 0. `None` for a plain count.
    fn usual(&self) -> Option<&SnippetCode> {
        self.codes().map(|codes| codes.own.as_ref().unwrap_or(&codes.shared))
    }

    /// Writes a part, with its counters and its jumps to routines filled in.
    fn put(&self, part: SnippetPart, arena: &Arena, block: &mut CodeBuffer) -> Result<(), EmitError> {
        let Compiled::Code { codes, bound } = self else { return Ok(()) };
        let Some(code) = codes.part(part) else { return Ok(()) };
        let start = block.here();
        block.put_unit(&code.bytes);
        if let Some(bound) = bound {
            bound.write_over(part, block.rest_from(start));
        }
        for (end, routine) in &code.exits {
            let target = arena.routine(*routine).ok_or(EmitError::OutOfReach)?;
            block.patch_relative(start + u64::from(*end) - 4, target.start.0)?;
        }
        Ok(())
    }

    /// Writes the shared routines that this code needs and that the arena does not have yet.
    pub fn routines(&self, env: &Environment, arena: &mut Arena, plan: &mut Vec<ArenaCode>) -> Result<(), EmitError> {
        for routine in self.exits() {
            if arena.routine(routine).is_some() {
                continue;
            }
            arena.may_share()?;
            let bytes = routines::assemble(env, routine)?;
            let len = bytes.len() as u64;
            let at = arena.place(len, |a| a.next_multiple_of(16)).ok_or(EmitError::ArenaFull)?;
            arena.take(at, len);
            arena.routines[routine as usize] = Some(Avma(at)..Avma(at + len));
            plan.push(ArenaCode { at: Avma(at), bytes });
        }
        Ok(())
    }
}

/// Writes a mini trampoline, whose link leads to the next address. `emit_aside` writes the other parts.
pub(crate) fn emit(
    frame: &BaseState,
    arena: &Arena,
    code: &Compiled<'_>,
    block: &mut CodeBuffer,
) -> Result<MiniParts, EmitError> {
    let (start, back) = (block.here(), frame.back());
    match (code, frame.private) {
        (Compiled::Count(counter), Some(_)) => block.put_absolute(&COUNT, *counter, back),
        (Compiled::Count(counter), None) => block.put_absolute(&LOCKED_COUNT, *counter, back),
        (Compiled::Code { .. }, Some(_)) => {
            block.put_relative(&MARKER, start, back)?;
            code.put(SnippetPart::Own, arena, block)?;
        }
        (Compiled::Code { .. }, None) => code.put(SnippetPart::Shared, arena, block)?,
    }
    let link = block.here();
    block.put(&LINK_NOP, back);
    Ok(MiniParts { start, link, aside: block.here()..block.here() })
}

/// Writes the parts of a mini trampoline that lie aside: the twin for shard 0, which makes the slow routine walk on at the link, and the
/// code that runs only sometimes, which continues at the link.
pub(crate) fn emit_aside(
    frame: &BaseState,
    arena: &Arena,
    code: &Compiled<'_>,
    parts: &mut MiniParts,
    block: &mut CodeBuffer,
) -> Result<(), EmitError> {
    let (Some(codes), Some((r, walk))) = (code.codes(), frame.private) else { return Ok(()) };
    let first = block.here();
    code.put(SnippetPart::Shared, arena, block)?;
    block.lea(r, parts.link, Back::StepOut)?;
    block.jmp(walk, Back::StepOut)?;
    block.patch_relative(parts.start + MARKER.len() as u64, first)?;
    if codes.part(SnippetPart::Cold).is_some() {
        block.patch_relative(parts.link - 4, block.here())?;
        code.put(SnippetPart::Cold, arena, block)?;
        block.jmp(parts.link, Back::StepOut)?;
    }
    parts.aside = first..block.here();
    Ok(())
}
