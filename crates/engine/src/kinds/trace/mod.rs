//! Traces: the sequence of all blocks that threads execute in functions, as tokens in the buffers of threads.
//!
//! `plan.rs` chooses the places of a function that write tokens (crate `ingraft-profile`), and makes the code for them. `condition.rs` makes
//! the code of the condition that a trace waits for.

pub mod condition;
mod plan;

use std::sync::Arc;

use ingraft_model::token::Token;
use ingraft_model::{Focus, FunctionId, Insertion, ModuleId, PointKind, Refusal};
use ingraft_process::TickClock;
use ingraft_report::{TraceChunk, TraceEnd, TracedCode, TracedProgram, TracedRoutine, UnprofiledFunction};
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use crate::api::{MeasurementId, MetricFocus, RefusedFunction, Removed, TraceOptions, TraceRest};
use crate::background::in_background;
use crate::error::{Error, Reason};
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::callees::may_unwind;
use crate::program::modules::Modules;
use crate::session::{
    Drained, InsertedPairs, KindRequest, LastRecords, Locked, NewBuffers, Records, Running, Session, now_ns,
};
use crate::weaving::positions::Observer;

use super::graph::module_info;
use super::whole;

use self::plan::{Buffer, METRIC, TracePlan, buffered, instrumentation, mark};

/// A trace of functions.
pub struct TraceKind {
    options: TraceOptions,
    /// Plans of the functions, in the order of their numbers, until the code was inserted.
    plans: Vec<TracePlan>,
    /// The points at which code tells where a thread leaves calls.
    marked: FxHashSet<(FunctionId, PointKind)>,
    /// The program, and the functions as they were when the trace began: tokens name them by their numbers. `None` before.
    begun: Option<(TracedProgram, TracedCode)>,
}

impl Records for TraceKind {
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

impl TraceKind {
    /// A trace that has not begun.
    pub fn new(options: &TraceOptions) -> Self {
        TraceKind { options: options.clone(), plans: Vec::new(), marked: FxHashSet::default(), begun: None }
    }

    /// The program and the functions, for the beginning of a file; `None` if the trace has not begun.
    pub fn beginning(&self) -> Option<(TracedProgram, TracedCode)> {
        self.begun.clone()
    }

    /// The code for points at which a thread leaves calls that are not marked yet. Adds them to the marked ones.
    fn new_marks(
        at: &Locked<'_>,
        (buffer, waits): (Buffer, bool),
        marked: &mut FxHashSet<(FunctionId, PointKind)>,
    ) -> Vec<Insertion> {
        let all = at.leaving_points().into_iter();
        let new = all.filter(|(function, kind, _)| marked.insert((*function, *kind)));
        new.filter_map(|(function, kind, token)| mark(function, kind, (token, waits), buffer)).collect()
    }
}

impl Running for TraceKind {
    fn patterns(&self) -> Vec<&str> {
        self.options.when.iter().map(|when| when.function.as_str()).collect()
    }

    /// The pair of the trace, with the code of all functions. A function that cannot be traced has code that is refused for the reason.
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let modules = asked.modules;
        let functions = whole::functions(asked, false)?;
        if functions.is_empty() {
            let what = "a trace is of functions that are loaded when it begins, and none of these is";
            let hint = "trace the running program (-p) once it has loaded the library";
            return Err(Error::new(Reason::NotLoadedYet, what, hint));
        }
        let when = self.options.when.as_ref();
        let condition = when.map(|when| condition::evaluate(asked, when)).transpose()?;
        let texts = whole::texts(modules, &functions);
        let plan = |function: &FunctionId| {
            let text = texts.get(&function.module).ok_or(Refusal::NoSuchFunction)?;
            TracePlan::new((modules, text), *function)
        };
        let planned: Vec<_> = in_background(|| functions.par_iter().map(plan).collect());
        let (mut plans, mut refused) = (Vec::new(), Vec::new());
        for (function, plan) in functions.iter().zip(planned) {
            match plan {
                Ok(plan) => plans.push(plan),
                Err(why) => refused.push((*function, why)),
            }
        }
        let unwinds = may_unwind(modules, &functions);
        let code = instrumentation(&plans, &refused, (&self.options, condition), unwinds).ok_or_else(|| {
            let what = format!("a trace of {} functions is not possible", functions.len());
            Error::new(Reason::TooManyFunctions, what, "name fewer functions")
        })?;
        self.plans = plans;
        Ok(vec![WantedPair::owned(owner(asked.id), pair(), code)])
    }

    /// Adds the code that tells where a thread leaves calls. Fails if threads would wait for room in buffers of two traces: a wait ends when
    /// those of one trace are empty.
    fn prepare(&mut self, at: &mut Locked<'_>, wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        let traced = wanted.first_mut().filter(|_| !self.plans.is_empty());
        let buffer = traced.as_ref().and_then(|w| Buffer::of(&w.instrumentation.variables));
        let (Some(traced), Some(buffer)) = (traced, buffer) else { return Ok(Observer::default()) };
        let waits = self.options.lossless;
        if waits && at.any_waits_for_room() {
            let what = "threads of this process wait for room in the buffers of another trace already";
            let hint = "end that trace, or trace without `--lossless`; gaps are marked";
            return Err(Error::new(Reason::NoWaits, what, hint).about(at.target().pid()));
        }
        // If such a function is traced itself, its entry comes after the mark.
        let mut insertions = TraceKind::new_marks(at, (buffer, waits), &mut self.marked);
        insertions.append(&mut traced.instrumentation.insertions);
        traced.instrumentation.insertions = insertions;
        Ok(Observer::default())
    }

    fn inserted(&mut self, at: &mut Locked<'_>, _: &mut InsertedPairs<'_>) {
        let plans = std::mem::take(&mut self.plans);
        let TraceOptions { capacity, times, lossless, .. } = self.options;
        let Some(pair) = at.pair(&key(at.id())).filter(|_| !plans.is_empty()) else { return };
        let Some(first) = Buffer::of(pair.variables()).and_then(|buffer| buffer.first(pair.counters())) else { return };
        let code = code_of(at.modules(), pair.refusals(), plans);
        let program = TracedProgram {
            host: String::new(),
            pid: u32::try_from(at.target().pid().0).unwrap_or_default(),
            program: at.program(),
            began_ns: now_ns(),
            clock: times.then(|| at.wall_clock().map(TickClock::scale)).flatten(),
        };
        at.begin_buffers::<TraceKind>(NewBuffers {
            first,
            capacity,
            times,
            waits: lossless,
            values: false,
            grouped: false,
            burst: None,
            contexts: None,
        });
        self.begun = Some((program, code));
    }

    fn needs_libraries(&self) -> bool {
        true
    }

    /// Weaves the code that tells where a thread leaves calls into libraries that were loaded since. The numbers of the functions are those of
    /// the beginning.
    fn grown(&mut self, at: &mut Locked<'_>) -> Result<bool, Error> {
        let (key, mut marked) = (key(at.id()), self.marked.clone());
        let variables = at.pair(&key).filter(|_| self.begun.is_some()).map(|pair| Arc::clone(pair.variables()));
        let buffer = variables.as_ref().and_then(|variables| Buffer::of(variables));
        let (Some(variables), Some(buffer)) = (variables, buffer) else { return Ok(true) };
        let insertions = TraceKind::new_marks(at, (buffer, at.waits_for_room()), &mut marked);
        if !insertions.is_empty() {
            at.extend(key, buffered(insertions, variables))?;
            self.marked = marked;
        }
        Ok(true)
    }

    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let Some(LastRecords { drained, unbuffered, filtered, .. }) = at.end_buffers::<TraceKind>() else { return };
        let end = TraceEnd { ended_ns: now_ns(), unbuffered };
        removed.trace = Some(TraceRest { chunks: chunks(drained), end });
        let what = "the program began to filter its system calls, so that its threads did not wait for room any more";
        removed.warnings.extend(filtered.then(|| what.to_owned()));
    }
}

/// The tokens that the threads of a trace have written since the last call. Does not stop the target.
pub fn take(session: &Session, id: MeasurementId) -> Result<Vec<TraceChunk>, Error> {
    session.drain::<TraceKind>(id).map(chunks).ok_or_else(|| no_trace(id))
}

/// The error for a measurement that is no trace.
pub fn no_trace(id: MeasurementId) -> Error {
    let what = format!("measurement {} is no trace", id.0);
    Error::new(Reason::NoTrace, what, "read its values instead")
}

fn owner(measurement: MeasurementId) -> Owner {
    Owner { measurement, purpose: PairPurpose::Asked }
}

fn pair() -> Arc<MetricFocus> {
    Arc::new(MetricFocus { metric: METRIC.to_owned(), focus: Focus::default() })
}

fn key(measurement: MeasurementId) -> PairKey {
    PairKey::owned(owner(measurement), pair())
}

/// The chunks of a trace from the records of its buffers.
fn chunks(drained: Vec<Drained>) -> Vec<TraceChunk> {
    let gap = Token::Gap.bytes().unwrap_or_default();
    let chunk = |of: Drained| {
        let Drained { tid, stream, sequence, time_ns, ticks, mut bytes, gap: has_gap } = of;
        if has_gap {
            bytes.extend(&gap);
        }
        TraceChunk { tid, stream, sequence, time_ns, ticks, tokens: bytes }
    };
    drained.into_iter().map(chunk).collect()
}

/// The functions of a trace, as its file describes them, with those that were refused.
fn code_of(modules: &Modules, refusals: &[(FunctionId, RefusedFunction)], plans: Vec<TracePlan>) -> TracedCode {
    let all = plans.iter().map(|plan| plan.graph.function).chain(refusals.iter().map(|(f, _)| *f));
    let mut named: Vec<ModuleId> = all.map(|f| f.module).collect();
    named.sort_unstable();
    named.dedup();
    let index = |module: ModuleId| named.binary_search(&module).unwrap_or_default();
    let routine = |TracePlan { graph, places, .. }: TracePlan| TracedRoutine {
        module: index(graph.function.module),
        name: graph.symbol,
        size: graph.size,
        cfg: graph.cfg,
        places,
    };
    let refused = refusals.iter().map(|(f, refused)| UnprofiledFunction {
        module: index(f.module),
        name: refused.function.function.clone(),
        start: refused.function.offset,
        why: refused.reason.to_string(),
    });
    TracedCode {
        modules: named.iter().map(|module| module_info(modules, *module).unwrap_or_default()).collect(),
        refused: refused.collect(),
        // A function that is refused writes no token, but keeps its number.
        functions: plans.into_iter().map(routine).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_taken_as_far_as_they_are_complete() {
        let enter = Token::Enter(300).bytes().expect("a token");
        let passage = Token::Passage(500).bytes().expect("a token");
        assert_eq!((enter.len(), passage.len()), (2, 2));
        let bytes = [enter, passage].concat();
        for (length, complete) in [(0, 0), (1, 0), (2, 2), (3, 2), (4, 4)] {
            assert_eq!(TraceKind::complete(&bytes[..length]), Ok(complete), "{length} bytes");
        }
        assert_eq!(TraceKind::complete(&[1, 0xfa, 0x03]), Err(1), "no token begins so");
    }

    #[test]
    fn a_chunk_ends_with_its_gap() {
        let drained = Drained { tid: 7, stream: 1, sequence: 2, time_ns: 3, ticks: 4, bytes: vec![1, 2], gap: true };
        let whole = Drained { gap: false, sequence: 3, ..drained.clone() };
        let [gap, whole] = chunks(vec![drained, whole]).try_into().expect("two chunks");
        assert_eq!(gap, TraceChunk { tid: 7, stream: 1, sequence: 2, time_ns: 3, ticks: 4, tokens: vec![1, 2, 0xff] });
        assert_eq!(whole, TraceChunk { sequence: 3, tokens: vec![1, 2], ..gap });
    }
}
