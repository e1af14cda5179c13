//! Traces of a session: their code, and the chunks that the engine takes from the buffers of threads while the target runs.

use std::sync::Arc;

use ingraft_analysis::Function;
use ingraft_model::token::Token;
use ingraft_model::{FunctionRef as MdlFunction, Insertion, ModuleRef, PointKind};
use ingraft_process::TickClock;
use ingraft_report::{Chunk, Refused, TraceEnd, TracedCode, TracedProgram, TracedRoutine};
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, TraceOptions, TraceRest};
use crate::error::{Error, Reason};
use crate::measure::request::Wanted;
use crate::profile::trace::{Buffer, TracePlan, buffered, mark};
use crate::program::modules::Modules;
use crate::weaving::positions::Observer;

use super::buffers::{Drained, LastRecords, NewBuffers, Records};
use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::pair::{Pair, PairKey};
use super::profile::module_info;

/// A trace of a measurement.
#[derive(Debug)]
pub(super) struct Trace {
    key: PairKey,
    program: TracedProgram,
    /// The functions, as they were when the trace began: tokens name them by their numbers.
    code: TracedCode,
    /// The points at which code tells where a thread leaves calls.
    marked: FxHashSet<(MdlFunction, PointKind)>,
}

/// A trace that is about to begin.
#[derive(Debug)]
pub(super) struct NewTrace {
    key: PairKey,
    plans: Arc<[TracePlan]>,
    marked: FxHashSet<(MdlFunction, PointKind)>,
}

impl Records for Trace {
    fn complete(bytes: &[u8]) -> Result<usize, usize> {
        let mut length = 0;
        while let Some(rest) = bytes.get(length..).filter(|rest| !rest.is_empty()) {
            match Token::read(rest) {
                Ok(Some((_, of_token))) => length += of_token,
                Ok(None) => break,
                Err(_) => return Err(length),
            }
        }
        Ok(length)
    }
}

impl Session {
    /// Makes the pair of a trace its own, because it has its own buffers, and adds the code that tells where a thread leaves calls. `None` if
    /// no pair is a trace. Fails if threads would wait for room in buffers of two traces: a wait ends when those of one trace are empty.
    pub(super) fn begin_trace(
        &self,
        control: &Control,
        id: MeasurementId,
        wanted: &mut [Wanted],
    ) -> Result<Option<NewTrace>, Error> {
        let Some(traced) = wanted.iter_mut().find(|w| !w.traced.is_empty()) else { return Ok(None) };
        let mut marked = FxHashSet::default();
        // If such a function is traced itself, its entry comes after the mark.
        let Some(buffer) = Buffer::of(&traced.instrumentation.variables) else { return Ok(None) };
        let waits = traced.instrumentation.insertions.iter().any(|insertion| insertion.snippet.waits_for_room());
        if waits && self.shared().buffers.wait(None) {
            let what = "threads of this process wait for room in the buffers of another trace already";
            let hint = "end that trace, or trace without `--lossless`; gaps are marked";
            return Err(Error::new(Reason::NoWaits, what, hint).about(self.pid()));
        }
        let mut insertions = self.new_marks(control, (buffer, waits), &mut marked);
        insertions.append(&mut traced.instrumentation.insertions);
        traced.instrumentation.insertions = insertions;
        traced.helpers = format!("trace {}", id.0).into();
        Ok(Some(NewTrace { key: PairKey::of(traced), plans: Arc::clone(&traced.traced), marked }))
    }

    /// The code for points at which a thread leaves calls that are not marked yet. Adds them to the marked ones.
    fn new_marks(
        &self,
        control: &Control,
        (buffer, waits): (Buffer, bool),
        marked: &mut FxHashSet<(MdlFunction, PointKind)>,
    ) -> Vec<Insertion> {
        let all = self.marks(&control.modules).into_iter();
        let new = all.filter(|(function, kind, _)| marked.insert((*function, *kind)));
        new.filter_map(|(function, kind, token)| mark(function, kind, (token, waits), buffer)).collect()
    }

    /// Weaves the code that tells where a thread leaves calls into libraries that were loaded since.
    pub(super) fn mark_more(&self, control: &mut Control, id: MeasurementId) -> Result<(), Error> {
        let Some(trace) = control.traces.get(&id) else { return Ok(()) };
        let (key, mut marked) = (trace.key.clone(), trace.marked.clone());
        let pair = control.pairs.get(&key).map(|pair| (pair.counters.clone(), pair.variables.clone()));
        let Some((counters, variables)) = pair else { return Ok(()) };
        let Some(buffer) = Buffer::of(&variables) else { return Ok(()) };
        let waits = self.shared().buffers.wait(Some(id));
        let insertions = self.new_marks(control, (buffer, waits), &mut marked);
        if insertions.is_empty() {
            return Ok(());
        }
        self.extend(control, vec![(key, buffered(insertions, variables), counters)], &mut Observer::default())?;
        if let Some(trace) = control.traces.get_mut(&id) {
            trace.marked = marked;
        }
        Ok(())
    }

    /// Notes a trace whose code was inserted.
    pub(super) fn note_trace(
        &self,
        control: &mut Control,
        id: MeasurementId,
        &TraceOptions { capacity, times, lossless, .. }: &TraceOptions,
        NewTrace { key, plans, marked }: NewTrace,
    ) {
        let Some(pair) = control.pairs.get(&key) else { return };
        let first = Buffer::of(&pair.variables).and_then(|buffer| buffer.first(&pair.counters));
        let (Some(first), Some(code)) = (first, code_of(&control.modules, pair, &plans)) else { return };
        let program = TracedProgram {
            host: String::new(),
            pid: u32::try_from(self.pid().0).unwrap_or_default(),
            program: self.program(),
            began_ns: now_ns(),
            clock: times.then(|| self.clocks.wall().ok().map(TickClock::scale)).flatten(),
        };
        let new = NewBuffers { first, capacity, times, waits: lossless };
        self.shared_mut().buffers.begin::<Trace>(id, new);
        control.traces.insert(id, Trace { key, code, program, marked });
    }

    /// The program and the functions of a trace.
    pub fn traced(&self, id: MeasurementId) -> Result<(TracedProgram, TracedCode), Error> {
        let control = self.control();
        let trace = control.traces.get(&id).ok_or_else(|| no_trace(id))?;
        Ok((trace.program.clone(), trace.code.clone()))
    }

    /// The last tokens of a trace whose code was taken out, and a warning if threads have not waited for room until then; `None` if the
    /// measurement is no trace.
    pub(super) fn end_trace(&self, id: MeasurementId) -> Option<(TraceRest, Option<String>)> {
        let LastRecords { drained, unbuffered, filtered } = self.end_buffers::<Trace>(id)?;
        let rest = TraceRest { chunks: chunks(drained), end: TraceEnd { ended_ns: now_ns(), unbuffered } };
        let what = "the program began to filter its system calls, so that its threads did not wait for room any more";
        Some((rest, filtered.then(|| what.to_owned())))
    }

    /// The tokens that threads have written since the last call. Does not stop the target.
    pub fn take_trace(&self, id: MeasurementId) -> Result<Vec<Chunk>, Error> {
        self.drain::<Trace>(id).map(chunks).ok_or_else(|| no_trace(id))
    }
}

/// The chunks of a trace from the records of its buffers.
fn chunks(drained: Vec<Drained>) -> Vec<Chunk> {
    let gap = Token::Gap.bytes().unwrap_or_default();
    let chunk = |of: Drained| {
        let Drained { tid, stream, sequence, time_ns, ticks, mut bytes, gap: has_gap } = of;
        if has_gap {
            bytes.extend(&gap);
        }
        Chunk { tid, stream, sequence, time_ns, ticks, tokens: bytes }
    };
    drained.into_iter().map(chunk).collect()
}

/// The functions of a trace, as its file describes them; `None` if one of them is unknown.
fn code_of(modules: &Modules, pair: &Pair, plans: &[TracePlan]) -> Option<TracedCode> {
    let all = plans.iter().map(|plan| plan.function).chain(pair.unwoven.iter().map(|(f, _)| *f));
    let mut named: Vec<ModuleRef> = all.map(|f| f.module).collect();
    named.sort_unstable();
    named.dedup();
    let index = |module: ModuleRef| named.binary_search(&module).unwrap_or_default();
    let routine = |plan: &TracePlan| {
        let (_, _, function) = modules.resolve(plan.function)?;
        Some(TracedRoutine {
            module: index(plan.function.module),
            name: raw_name(function),
            size: function.size(),
            cfg: plan.cfg.clone(),
            places: plan.places.clone(),
        })
    };
    let refused = pair.unwoven.iter().map(|(f, refused)| Refused {
        module: index(f.module),
        name: refused.function.function.clone(),
        start: refused.function.offset,
        why: refused.reason.to_string(),
    });
    Some(TracedCode {
        modules: named.iter().map(|module| module_info(modules, *module).unwrap_or_default()).collect(),
        // A function that is refused writes no token, but keeps its number.
        functions: plans.iter().map(routine).collect::<Option<Vec<_>>>()?,
        refused: refused.collect(),
    })
}

/// Name as the symbol table has it.
fn raw_name(function: &Function) -> String {
    function.names().first().map_or_else(|| function.display_name().into_owned(), |name| name.mangled().to_owned())
}

fn no_trace(id: MeasurementId) -> Error {
    let what = format!("measurement {} is no trace", id.0);
    Error::new(Reason::NoTrace, what, "read its values instead")
}
