//! Mini trampolines: one snippet's code at one point, and the jump to the next.

use ingraft_model::patch::ArenaCode;
use ingraft_model::{Avma, AvmaRange, Clock, CpuClock, Gpr, Snippet, Stmt, ThreadIdentity};

use crate::arena::Arena;
use crate::block::{Back, Block, EmitError};
use crate::cost::Cost;
use crate::environment::{CodegenError, Environment};
use crate::event;
use crate::reading;
use crate::routine::{self, Routine};
use crate::slow::{COUNT, LOCKED_COUNT, MARKER};
use crate::snippet::{self, Access, Code};
use crate::stencil::Stencils;
use crate::weave::RemovalRecord;

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

/// A snippet in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenMini {
    /// Its number.
    pub id: u64,
    /// Displacement of its counter, if it is a plain count: alone at its point it stands in the slot.
    pub count: Option<u32>,
    /// Its code in the chain; none if it stands in the point's slot.
    pub code: Option<MiniCode>,
    /// Its worst case, with the jumps to it and to the next one.
    pub cost: Cost,
    /// What removing the whole point has to know about it.
    pub removal: RemovalRecord,
}

/// The code of a snippet in the chain of its point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MiniCode {
    /// All of it, with the twin that counts in shard 0.
    pub range: AvmaRange,
    /// Where the jump before it leads.
    pub start: Avma,
    /// Its last instruction, a live `jmp rel32` to the next one or to the point's `leave`.
    pub jump: Avma,
}

impl WovenMini {
    /// A plain count in the slot of its point, with what it costs there.
    pub(crate) fn in_slot(id: u64, count: u32, cost: Cost) -> Self {
        WovenMini { id, count: Some(count), code: None, cost, removal: RemovalRecord::default() }
    }

    /// Code in a chain, which ends where the next snippet's begins or the block ends.
    pub(crate) fn in_chain(
        env: &Environment,
        id: u64,
        compiled: &Compiled,
        parts: Parts,
        end: u64,
        block: &Block,
    ) -> Self {
        let (moves, step_out) = block.exits(parts.first, end);
        let range = Avma(parts.first)..Avma(end);
        let removal = RemovalRecord { text: Vec::new(), moves, step_out, code: range.clone() };
        let code = MiniCode { range, start: Avma(parts.start), jump: Avma(parts.jump) };
        let cost = parts.cost(env, compiled, block);
        WovenMini { id, count: compiled.as_count(), code: Some(code), cost, removal }
    }
}

/// How the stack looks to the snippets of a point, in bytes from the stack pointer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackView {
    /// What tells one call from another, the same at its beginning and its end. Of a function it is the stack pointer at its entry. Of a
    /// call that a function makes it is one byte less than the stack pointer before it, so that it lies between those of caller and
    /// callee.
    pub key: i8,
    /// Where arguments on the stack begin.
    pub arguments: i8,
}

impl StackView {
    /// At entries and exits.
    pub const FUNCTION: StackView = StackView { key: 0, arguments: 8 };
    /// At a call whose return address is pushed.
    pub const CALLED: StackView = StackView { key: 7, arguments: 8 };
    /// Before and behind a call.
    pub const CALLING: StackView = StackView { key: -1, arguments: 0 };
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

/// A snippet's code, independent of its address.
#[derive(Clone, Debug)]
pub(crate) enum Compiled {
    /// One increment of the counter at this displacement.
    Count(u32),
    /// Code for this thread's shard and for shard 0; only the latter with locked counters.
    Code { own: Option<Code>, shared: Code },
}

/// Checks that a request makes sense at any point.
pub(crate) fn check(env: &Environment, request: &MiniRequest<'_>) -> Result<(), CodegenError> {
    let counters = env.data.counters();
    if let Some(&index) = request.counters.iter().find(|&&index| index >= counters) {
        return Err(CodegenError::CounterOutOfRange { index, counters });
    }
    if env.cpu == CpuClock::None && request.snippet.reads(Clock::Cpu) {
        return Err(CodegenError::NoCpuClock);
    }
    if env.loader.is_none() && request.snippet.stmts.contains(&Stmt::Await) {
        return Err(CodegenError::NoLoader);
    }
    if request.snippet.interferes() {
        let why = match env.vectors {
            _ if env.identity == ThreadIdentity::Locked => Some("threads cannot be told apart"),
            _ if request.snippet.calls().is_empty() => None,
            Some(vectors) if vectors.is_sound() => None,
            _ => Some("the processor's state cannot be kept"),
        };
        why.map_or(Ok(()), |why| Err(CodegenError::NoCall { why }))?;
    }
    reading::check(env, request.snippet)?;
    snippet::check(request.snippet, request.counters, counters)
}

/// Compiles a request for a point.
pub(crate) fn compile(
    env: &Environment,
    frame: &Frame,
    request: &MiniRequest<'_>,
    stencils: &mut Stencils,
) -> Result<Compiled, CodegenError> {
    if let Some(&index) = request.snippet.as_increment().and_then(|v| request.counters.get(v.0 as usize)) {
        return Ok(Compiled::Count(env.data.counter(index)));
    }
    let mut code = |access| snippet::compile(request.snippet, request.counters, env, frame, access, stencils);
    let own = frame.private.map(|_| code(Access::Own)).transpose()?;
    Ok(Compiled::Code { own, shared: code(Access::Shared)? })
}

/// Where the parts of a mini trampoline lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    pub first: u64,
    pub start: u64,
    pub jump: u64,
}

impl Parts {
    /// What the code costs that this is about.
    pub fn cost(&self, env: &Environment, code: &Compiled, block: &Block) -> Cost {
        let calls = |routine: Routine| match (routine, env.cpu) {
            (Routine::CpuTime, CpuClock::SystemCall) => 1,
            (Routine::Read | Routine::Write, _) => reading::SYSTEM_CALLS,
            (Routine::Usage, _) => 1,
            _ => 0,
        };
        let exits = code.usual().map_or(&[][..], |usual| &usual.exits);
        let system_calls = exits.iter().map(|(_, routine)| calls(*routine)).sum();
        let of = |which| exits.iter().filter(move |(_, routine)| *routine == which);
        let read: Cost = of(Routine::Event).map(|_| event::COST).sum();
        let called = of(Routine::Call);
        let called: Cost = called.filter_map(|(_, r)| Some(Cost::of(0, &routine::assemble(env, *r).ok()?))).sum();
        let routines = Cost { system_calls, ..called } + read;
        // what is written around the snippet's own code, and that
        let (own_bytes, own) =
            code.usual().map_or((0, Cost::default()), |usual| (usual.bytes.len() as u64, usual.cost));
        Cost::of(self.start, block.stretch(self.start, self.jump - own_bytes)) + own + Cost::jumps(2) + routines
    }
}

impl Compiled {
    /// The displacement of the counter, if this is a plain count.
    pub fn as_count(&self) -> Option<u32> {
        match self {
            Compiled::Count(counter) => Some(*counter),
            Compiled::Code { .. } => None,
        }
    }

    /// The jumps to routines of all of it.
    fn exits(&self) -> impl Iterator<Item = Routine> {
        let codes = match self {
            Compiled::Code { own, shared } => [own.as_ref(), Some(shared)],
            Compiled::Count(_) => [None, None],
        };
        codes.into_iter().flatten().flat_map(|code| &code.exits).map(|(_, routine)| *routine)
    }

    /// What runs in a thread that has what it needs, if it is more than a count.
    fn usual(&self) -> Option<&Code> {
        match self {
            Compiled::Code { own: Some(code), .. } | Compiled::Code { own: None, shared: code } => Some(code),
            Compiled::Count(_) => None,
        }
    }

    /// Writes the shared routines that this code needs and the arena does not have yet.
    pub fn routines(&self, env: &Environment, arena: &mut Arena, plan: &mut Vec<ArenaCode>) -> Result<(), EmitError> {
        for routine in self.exits() {
            if arena.routine(routine).is_some() {
                continue;
            }
            let bytes = routine::assemble(env, routine)?;
            let len = bytes.len() as u64;
            let at = arena.place(len, |a| a.next_multiple_of(16)).ok_or(EmitError::OutOfReach)?;
            arena.take(at, len);
            arena.routines[routine as usize] = Some(Avma(at)..Avma(at + len));
            plan.push(ArenaCode { at: Avma(at), bytes });
        }
        Ok(())
    }
}

/// Writes compiled code, its jumps to routines set right.
fn put(code: &Code, arena: &Arena, block: &mut Block) -> Result<(), EmitError> {
    let start = block.here();
    block.put_unit(&code.bytes);
    for (end, routine) in &code.exits {
        let target = arena.routine(*routine).ok_or(EmitError::OutOfReach)?;
        block.patch_relative(start + u64::from(*end) - 4, target.start.0)?;
    }
    Ok(())
}

/// Writes a mini trampoline that goes on at `next`.
pub(crate) fn emit(
    frame: &Frame,
    arena: &Arena,
    code: &Compiled,
    next: u64,
    block: &mut Block,
) -> Result<Parts, EmitError> {
    let first = block.here();
    let back = frame.back();
    let mut start = first;
    match (code, frame.private) {
        (Compiled::Count(counter), Some(_)) => block.put_absolute(&COUNT, *counter, back),
        (Compiled::Count(counter), None) => block.put_absolute(&LOCKED_COUNT, *counter, back),
        (Compiled::Code { own: Some(own), shared }, Some((r, walk))) => {
            // the twin goes on with the walk at this mini's jump, whose address follows from the lengths
            let tail_of_twin = 12;
            start = first + shared.bytes.len() as u64 + tail_of_twin;
            let jump = start + 8 + own.bytes.len() as u64;
            put(shared, arena, block)?;
            block.lea(r, jump, Back::StepOut)?;
            block.jmp(walk, Back::StepOut)?;
            block.put_relative(&MARKER, first, back)?;
            put(own, arena, block)?;
        }
        (Compiled::Code { shared, .. }, _) => put(shared, arena, block)?,
    }
    let jump = block.here();
    block.jmp(next, back)?;
    Ok(Parts { first, start, jump })
}
