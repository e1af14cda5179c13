//! Traces of a session: the buffers of threads, and the chunks that the engine takes from them while the target runs.
//!
//! In a lossless trace, a thread whose buffer is full waits until the engine has emptied all buffers. The wait makes system calls, so it ends
//! for good when a filter of system calls appears in the target.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_analysis::Function;
use ingraft_model::buffer::{LOST, Reader, Words as _};
use ingraft_model::token::Token;
use ingraft_model::{Capacity, FunctionRef as MdlFunction, Insertion, ModuleRef, PointKind, Tid};
use ingraft_process::{SharedArea, TickClock};
use ingraft_report::{Chunk, Refused, TraceEnd, TracedCode, TracedProgram, TracedRoutine};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{MeasurementId, TraceOptions, TraceRest};
use crate::error::{Error, Reason};
use crate::measure::request::Wanted;
use crate::profile::trace::{Buffer, TracePlan, buffered, mark};
use crate::program::modules::Modules;
use crate::readings::values::Shards;
use crate::weaving::positions::Observer;
use crate::weaving::wanted::Wanted as WantedPoints;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::pair::{Pair, PairKey};
use super::profile::module_info;
use super::renewal::FILTERS_MAX;
use super::shared::Shared;

/// Largest number of bytes that are kept of threads that have ended, until somebody reads the trace. Of further threads, only a gap is told.
const ENDED_MAX: usize = 64 << 20;

/// Time between two checks for filters of system calls while threads may wait for room.
const FILTERS_EVERY: Duration = Duration::from_millis(50);

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

/// The buffers of a trace.
#[derive(Debug)]
pub(super) struct Drain {
    /// First counter of the buffer in every shard.
    first: u32,
    capacity: Capacity,
    /// Whether the entries of functions write the time.
    times: bool,
    /// Waits of threads for room in their buffers; `None` if no thread may wait.
    waits: Option<Waits>,
    /// Whether the waits have ended because the program filters its system calls.
    filtered: bool,
    /// The stream of each shard that a thread holds.
    streams: FxHashMap<u32, Stream>,
    /// Number of the next stream.
    next: u32,
    /// Last chunks of threads that have ended.
    ended: Vec<Chunk>,
}

/// Waits of threads for room in their buffers.
#[derive(Debug)]
struct Waits {
    /// Number of times that the engine has told threads that the buffers are empty.
    drains: u32,
    /// Time of the latest check for filters of system calls.
    checked: Instant,
}

/// The tokens of one thread.
#[derive(Debug)]
struct Stream {
    identity: u64,
    number: u32,
    sequence: u64,
    reader: Reader,
    /// Beginning of a token whose end was not written yet.
    rest: Vec<u8>,
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
        if waits && self.shared().traces.values().any(|drain| drain.waits.is_some()) {
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
        let waits = self.shared().traces.get(&id).is_some_and(|drain| drain.waits.is_some());
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
        // `permit_waits` has told once.
        let waits = lossless.then(|| Waits { drains: 1, checked: Instant::now() });
        let (streams, ended) = (FxHashMap::default(), Vec::new());
        let drain = Drain { first, capacity, times, waits, filtered: false, streams, next: 0, ended };
        self.shared_mut().traces.insert(id, drain);
        control.traces.insert(id, Trace { key, code, program, marked });
    }

    /// The program and the functions of a trace.
    pub fn traced(&self, id: MeasurementId) -> Result<(TracedProgram, TracedCode), Error> {
        let control = self.control();
        let trace = control.traces.get(&id).ok_or_else(|| no_trace(id))?;
        Ok((trace.program.clone(), trace.code.clone()))
    }

    /// The last tokens of a trace whose code was taken out; `None` if the measurement is no trace.
    pub(super) fn end_trace(&self, id: MeasurementId) -> Option<TraceRest> {
        let chunks = self.take_trace(id).ok()?;
        let shared = self.shared();
        let unbuffered = shared.traces.get(&id).zip(shared.area.as_ref()).and_then(|(drain, area)| {
            // Threads without a shard of their own count here what they would have written.
            Some(area.buffer(0, drain.first, drain.capacity.slots())?.load(LOST))
        });
        Some(TraceRest { chunks, end: TraceEnd { ended_ns: now_ns(), unbuffered: unbuffered.unwrap_or(0) } })
    }

    /// The tokens that threads have written since the last call. Does not stop the target.
    pub fn take_trace(&self, id: MeasurementId) -> Result<Vec<Chunk>, Error> {
        self.look_for_filters(id);
        let mut shared = self.shared_mut();
        let Shared { area, tids, traces, .. } = &mut *shared;
        let drain = traces.get_mut(&id).ok_or_else(|| no_trace(id))?;
        let mut chunks = std::mem::take(&mut drain.ended);
        let Some(area) = area else { return Ok(chunks) };
        let now = drain.now(self.clocks.wall().ok());
        for (shard, identity) in Shards::claims(&**area) {
            chunks.extend(drain.take(area, (shard, identity), tids, now));
        }
        if let Some(waits) = &mut drain.waits
            && let Err(error) = area.drained(&mut waits.drains)
        {
            tracing::debug!(%error, "threads that wait for room are not told");
        }
        Ok(chunks)
    }

    /// Ends the waits of a trace if a filter of system calls is active in a thread of the target: it may forbid the calls by which threads
    /// wait.
    fn look_for_filters(&self, id: MeasurementId) {
        let is_due = |drain: &mut Drain| {
            let waits = drain.waits.as_mut().filter(|waits| waits.checked.elapsed() >= FILTERS_EVERY);
            waits.map(|waits| waits.checked = Instant::now()).is_some()
        };
        let due = self.shared_mut().traces.get_mut(&id).is_some_and(is_due);
        if due && self.target.has_filter(FILTERS_MAX) {
            self.end_waits();
            if let Some(drain) = self.shared_mut().traces.get_mut(&id) {
                drain.filtered = true;
            }
        }
    }

    /// Ends the waits of a trace whose code was taken out. Returns a warning if they have ended before.
    pub(super) fn waits_ended(&self, id: MeasurementId) -> Option<String> {
        let of_drain = |drain: &Drain| (drain.filtered, drain.waits.is_some());
        let (filtered, waits) = self.shared().traces.get(&id).map(of_drain).unwrap_or_default();
        if waits {
            self.end_waits();
        }
        let what = "the program began to filter its system calls, so that its threads did not wait for room any more";
        filtered.then(|| what.to_owned())
    }

    /// Ends the waits of threads for room in their buffers for good.
    pub(super) fn end_waits(&self) {
        let mut shared = self.shared_mut();
        let mut waits = false;
        shared.traces.values_mut().for_each(|drain| waits |= drain.waits.take().is_some());
        if let Some(area) = shared.area.as_ref().filter(|_| waits)
            && let Err(error) = area.end_waits()
        {
            tracing::debug!(%error, "threads wait for room until their time is over");
        }
    }

    /// Permits threads to wait for room before code is inserted in which they do. Fails if the engine cannot empty the buffers fast enough.
    pub(super) fn permit_waits(&self, area: &SharedArea, wanted: &[WantedPoints<'_>]) -> Result<(), Error> {
        if !wanted.iter().any(|w| w.minis.iter().any(|mini| mini.snippet.waits_for_room())) {
            return Ok(());
        }
        if !area.is_mapped() {
            let what = "threads cannot wait for room in a trace's buffer: the engine cannot map their buffers";
            let hint = "trace without `--lossless`; gaps are marked";
            return Err(Error::new(Reason::NoWaits, what, hint).about(self.pid()));
        }
        area.begin_waits().map_err(|e| self.failed(e))
    }
}

impl Shared {
    /// Takes the last tokens of a thread that has ended, before its shard is freed.
    pub(super) fn end_streams(&mut self, area: &SharedArea, (shard, identity): (u32, u64), clock: Option<&TickClock>) {
        for drain in self.traces.values_mut() {
            let now = drain.now(clock);
            let last = drain.take(area, (shard, identity), &self.tids, now);
            let held: usize = drain.ended.iter().map(|chunk| chunk.tokens.len()).sum();
            // Nobody may come for the tokens.
            let bounded = |chunk: Chunk| match held.saturating_add(chunk.tokens.len()) <= ENDED_MAX {
                true => chunk,
                false => Chunk { tokens: Token::Gap.bytes().unwrap_or_default(), ..chunk },
            };
            drain.ended.extend(last.map(bounded));
            drain.streams.remove(&shard);
        }
    }
}

impl Drain {
    /// The present moment: ticks of the clock, or 0 if the trace has no times, and Unix time. It is read before tokens are taken, so that it
    /// is later than the stamps of the chunk before.
    fn now(&self, clock: Option<&TickClock>) -> (u64, u64) {
        clock.filter(|_| self.times).map_or_else(|| (0, now_ns()), TickClock::with_unix_time)
    }

    /// Takes the tokens of the thread that holds a shard. `ticks` is the time by the trace's clock, or 0.
    fn take(
        &mut self,
        area: &SharedArea,
        (shard, identity): (u32, u64),
        tids: &FxHashMap<u64, Tid>,
        (ticks, time_ns): (u64, u64),
    ) -> Option<Chunk> {
        let buffer = area.buffer(shard, self.first, self.capacity.slots())?;
        let known = self.streams.get(&shard).is_some_and(|stream| stream.identity == identity);
        if !known {
            let (number, reader) = (self.next, Reader::new(self.capacity));
            self.next += 1;
            self.streams.insert(shard, Stream { identity, number, sequence: 0, reader, rest: Vec::new() });
        }
        let stream = self.streams.get_mut(&shard)?;
        let taken = stream.reader.take(&buffer);
        let mut tokens = std::mem::take(&mut stream.rest);
        tokens.extend(taken.bytes);
        let mut whole = 0;
        let mut broken = false;
        while let Some(rest) = tokens.get(whole..).filter(|rest| !rest.is_empty()) {
            match Token::read(rest) {
                Ok(Some((_, length))) => whole += length,
                Ok(None) => break,
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        stream.rest = tokens.split_off(whole);
        if taken.gap || broken {
            // The rest is the work of the program, if there is any: every append is whole before a gap.
            stream.rest.clear();
            tokens.extend(Token::Gap.bytes().unwrap_or_default());
        }
        if tokens.is_empty() {
            return None;
        }
        let sequence = stream.sequence;
        stream.sequence += 1;
        let tid = tids.get(&identity).map_or(identity as u32, |tid| tid.0.cast_unsigned());
        Some(Chunk { tid, stream: stream.number, sequence, time_ns, ticks, tokens })
    }
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
