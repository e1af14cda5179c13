//! Mini trampolines: one snippet's code at one point, and the jump to the next.

use std::ops::Range;
use std::sync::Arc;

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, Clock, CpuClock, Gpr, Snippet, Stmt, ThreadIdentity, WallClock};

use crate::code::arena::Arena;
use crate::code::block::{Back, Block, EmitError, LINK_NOP};
use crate::code::cost::Cost;
use crate::code::environment::{CodegenError, Environment};
use crate::code::routine::Routine;
use crate::code::woven::{MiniCode, RemovalRecord, StackView, WovenMini, WovenPoint};
use crate::snippet::event;
use crate::snippet::generator::{self, Access, Code};
use crate::snippet::reading;
use crate::snippet::routines;
use crate::snippet::slow::{COUNT, LOCKED_COUNT, MARKER};
use crate::snippet::template::{Bound, Templates};

/// What to do at a point.
#[derive(Clone, Copy, Debug)]
pub struct MiniRequest<'a> {
    /// Number by which it is removed again; unique at its point.
    pub id: u64,
    /// The code.
    pub snippet: &'a Snippet,
    /// Counter index of each variable, by its number.
    pub counters: &'a [u32],
}

impl WovenMini {
    /// A plain count in the slot of its point, with what it costs there.
    pub(crate) fn in_slot(id: u64, count: u32, cost: Cost) -> Self {
        WovenMini { id, count: Some(count), code: None, cost, removal: RemovalRecord::default() }
    }

    /// Code in a chain; `inline` within its point's own.
    pub(crate) fn in_chain(
        env: &Environment,
        id: u64,
        compiled: &Compiled<'_>,
        parts: &Parts,
        inline: bool,
        block: &Block,
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

/// What the base trampoline of a point leaves to its snippets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where a thread goes that has nothing to restore; with nowhere to go it is stepped.
    pub home: Back,
    pub stack: StackView,
    /// The scratch register and the entry of its slow routine that walks on; none with locked counters.
    pub private: Option<(Gpr, u64)>,
    /// Whether rax may be overwritten.
    pub rax_free: bool,
    /// Words that the base trampoline has pushed. At an exit the first of them is rax, the function's result.
    pub pushed: u8,
}

impl Frame {
    /// Where a thread goes from an instruction before or behind which only dead registers have changed.
    pub fn back(&self) -> Back {
        if self.pushed == 0 { self.home } else { Back::StepOut }
    }
}

impl WovenPoint {
    pub(crate) fn frame(&self, arena: &Arena) -> Result<Frame, CodegenError> {
        let private = match self.scratch {
            None => None,
            Some(r) => match arena.slow(r) {
                Some(slow) => Some((r, slow.walk.0)),
                None => return Err(CodegenError::OtherEnvironment { at: self.at.0 }),
            },
        };
        let home = self.resume.map_or(Back::StepOut, |at| Back::To(at.0));
        Ok(Frame { home, stack: self.stack, private, rax_free: self.rax_free, pushed: self.pushed })
    }
}

/// A snippet's code, independent of its address.
#[derive(Clone, Debug)]
pub(crate) enum Compiled<'a> {
    /// One increment of the counter at this displacement.
    Count(u32),
    /// Code that others may share, and the counters that are to stand in it if it was written for others.
    Code { codes: Arc<Codes>, bound: Option<Bound<'a>> },
}

/// Code for this thread's shard and for shard 0; only the latter with locked counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    own: Option<Code>,
    shared: Code,
}

/// A part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// For the thread's own shard.
    Own,
    /// What of that runs only sometimes.
    Cold,
    /// For shard 0.
    Shared,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Own, Part::Cold, Part::Shared];
}

impl Codes {
    pub fn part(&self, part: Part) -> Option<&Code> {
        match part {
            Part::Own => self.own.as_ref(),
            Part::Cold => self.own.as_ref()?.cold.as_deref(),
            Part::Shared => Some(&self.shared),
        }
    }

    pub fn part_mut(&mut self, part: Part) -> Option<&mut Code> {
        match part {
            Part::Own => self.own.as_mut(),
            Part::Cold => self.own.as_mut()?.cold.as_deref_mut(),
            Part::Shared => Some(&mut self.shared),
        }
    }
}

/// Checks that a request makes sense at any point.
pub(crate) fn check(env: &Environment, request: &MiniRequest<'_>) -> Result<(), CodegenError> {
    check_snippet(env, request.snippet).and_then(|()| check_counters(env, request))
}

/// The same of its snippet, whatever counters it has.
pub(crate) fn check_snippet(env: &Environment, snippet: &Snippet) -> Result<(), CodegenError> {
    if env.cpu == CpuClock::None && snippet.reads(Clock::Cpu) {
        return Err(CodegenError::NoCpuClock);
    }
    if env.loader.is_none() && snippet.stmts.contains(&Stmt::Await) {
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

/// The same of its counters.
pub(crate) fn check_counters(env: &Environment, request: &MiniRequest<'_>) -> Result<(), CodegenError> {
    let counters = env.data.counters();
    if let Some(&index) = request.counters.iter().find(|&&index| index >= counters) {
        return Err(CodegenError::CounterOutOfRange { index, counters });
    }
    generator::check(request.snippet, request.counters, counters)
}

/// Compiles a request for a point.
pub(crate) fn compile<'a>(
    env: &Environment,
    frame: &Frame,
    request: &MiniRequest<'a>,
    templates: &mut Templates<'a>,
) -> Result<Compiled<'a>, CodegenError> {
    match request.snippet.as_increment().and_then(|v| request.counters.get(v.0 as usize)) {
        Some(&index) => Ok(Compiled::Count(env.data.counter(index))),
        None => {
            let (codes, bound) = templates.compile(env, frame, request)?;
            Ok(Compiled::Code { codes, bound })
        }
    }
}

/// Compiles what is more than a count.
pub(crate) fn compile_anew(env: &Environment, frame: &Frame, request: &MiniRequest<'_>) -> Result<Codes, CodegenError> {
    let code = |access| generator::compile(request.snippet, request.counters, env, frame, access);
    let own = frame.private.map(|_| code(Access::Own)).transpose()?;
    Ok(Codes { own, shared: code(Access::Shared)? })
}

/// Where the parts of a mini trampoline lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub start: u64,
    pub link: u64,
    /// See [`MiniCode::aside`].
    pub aside: Range<u64>,
}

impl Parts {
    /// What the code costs that this is about, without the links to it and to the next.
    pub fn cost(&self, env: &Environment, code: &Compiled<'_>, block: &Block) -> Cost {
        let calls = |routine: Routine| match (routine, env.cpu) {
            (Routine::CpuTime, CpuClock::SystemCall) => 1,
            (Routine::Time, _) if env.wall == WallClock::SystemCall => 1,
            (Routine::Read | Routine::Write, _) => reading::SYSTEM_CALLS,
            (Routine::Usage, _) => 1,
            _ => 0,
        };
        let exits = || code.usual().into_iter().flat_map(Code::routines);
        let system_calls = exits().map(calls).sum();
        let of = |which| exits().filter(move |routine| *routine == which);
        let read: Cost = of(Routine::Event).map(|_| event::COST).sum();
        let asks = if let WallClock::Vdso(_) = env.wall { of(Routine::Time).count() as u32 } else { 0 };
        let called = of(Routine::Call).chain(of(Routine::Time));
        let called: Cost = called.filter_map(|r| Some(Cost::of(0, &routines::assemble(env, r).ok()?))).sum();
        let routines = Cost { system_calls, vdso: asks, ..called } + read;
        // what is written around the snippet's own code, and that
        let (own_bytes, own) =
            code.usual().map_or((0, Cost::default()), |usual| (usual.bytes.len() as u64, usual.whole_cost()));
        block.cost(self.start, self.link - own_bytes) + own + routines
    }
}

impl Compiled<'_> {
    /// The displacement of the counter, if this is a plain count.
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

    /// The jumps to routines of all of it.
    fn exits(&self) -> impl Iterator<Item = Routine> {
        let codes = self.codes().into_iter().flat_map(|codes| [codes.own.as_ref(), Some(&codes.shared)]);
        codes.flatten().flat_map(Code::routines)
    }

    /// What runs in a thread that has what it needs, if it is more than a count.
    fn usual(&self) -> Option<&Code> {
        self.codes().map(|codes| codes.own.as_ref().unwrap_or(&codes.shared))
    }

    /// Writes a part, its counters and its jumps to routines set right.
    fn put(&self, part: Part, arena: &Arena, block: &mut Block) -> Result<(), EmitError> {
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

    /// Writes the shared routines that this code needs and the arena does not have yet.
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

/// Writes a mini trampoline that goes on right behind itself; what lies aside is still to come.
pub(crate) fn emit(frame: &Frame, arena: &Arena, code: &Compiled<'_>, block: &mut Block) -> Result<Parts, EmitError> {
    let (start, back) = (block.here(), frame.back());
    match (code, frame.private) {
        (Compiled::Count(counter), Some(_)) => block.put_absolute(&COUNT, *counter, back),
        (Compiled::Count(counter), None) => block.put_absolute(&LOCKED_COUNT, *counter, back),
        (Compiled::Code { .. }, Some(_)) => {
            block.put_relative(&MARKER, start, back)?;
            code.put(Part::Own, arena, block)?;
        }
        (Compiled::Code { .. }, None) => code.put(Part::Shared, arena, block)?,
    }
    let link = block.here();
    block.put(&LINK_NOP, back);
    Ok(Parts { start, link, aside: block.here()..block.here() })
}

/// Writes what of a mini trampoline lies aside: the twin, which goes on with the walk at its link, and what goes on at the link.
pub(crate) fn emit_aside(
    frame: &Frame,
    arena: &Arena,
    code: &Compiled<'_>,
    parts: &mut Parts,
    block: &mut Block,
) -> Result<(), EmitError> {
    let (Some(codes), Some((r, walk))) = (code.codes(), frame.private) else { return Ok(()) };
    let first = block.here();
    code.put(Part::Shared, arena, block)?;
    block.lea(r, parts.link, Back::StepOut)?;
    block.jmp(walk, Back::StepOut)?;
    block.patch_relative(parts.start + MARKER.len() as u64, first)?;
    if codes.part(Part::Cold).is_some() {
        block.patch_relative(parts.link - 4, block.here())?;
        code.put(Part::Cold, arena, block)?;
        block.jmp(parts.link, Back::StepOut)?;
    }
    parts.aside = first..block.here();
    Ok(())
}
