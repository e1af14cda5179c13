//! `ingraft replay`: regenerates the sequence of blocks from the file of a trace. No engine is needed.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use ingraft_model::glob::glob_match;
use ingraft_model::{EdgeTarget, Key, Svma};
use ingraft_report::{
    BlockCount, EdgeCount, EdgeEnd, FunctionProfile, ModuleCode, ModuleInfo, ProfiledProgram, SavedProfile, TraceClock,
    TraceError, TraceRecord, TraceRecords, TraceReplay, TraceStep, TracedFunction, TracedProgram, TracedRoutine,
    UnprofiledFunction,
};

use crate::args::{Format, ReplayArgs};
use crate::command::report::{modules, records, tables};
use crate::exit::{Exit, Failure, Stop};
use crate::objects::{self, Object, RecordedFunction, traces};
use crate::output::number::plural;
use crate::output::{self, Output};

/// Reason of all functions that are not traced, as a stable word: the file has only the sentence.
const NOT_TRACED: &str = "not_traced";
/// Number of rows of the tables of a summary.
const ROWS: usize = 20;

/// Runs the command.
pub(crate) fn run(args: &ReplayArgs, format: Format, out: &mut Output) -> Result<(), Stop> {
    let mut trace = TraceOutline::read(&args.file, format)?;
    let wanted = trace.choose(&args.functions)?;
    let traced: Result<Vec<TracedFunction>, _> = trace.routines.iter().map(TracedRoutine::traced).collect();
    let traced = traced.map_err(|e| unreadable(&args.file, &e.into()))?;
    let names = trace.routines.iter().map(|routine| tables::shown(&routine.name, start(routine))).collect();
    let mut replay = ReplayRun { trace: &trace, wanted, names, code: Vec::new(), profile: trace.profile(), args };
    if args.instructions {
        replay.code = modules::code(&replay.profile, &[], format)?;
    }
    out.begin_batch();
    let unknown = replay.all(&traced, out);
    let written = out.end_batch();
    let unknown = unknown?;
    written?;
    if args.summary {
        replay.summary(format, out)?;
    }
    unknown.iter().try_for_each(|thread| out.object(&Object::Replayed(thread.clone())))?;
    tell(&unknown, format);
    Ok(())
}

/// Warns of what the trace does not tell.
fn tell(unknown: &[traces::ReplayedObject], format: Format) {
    let sum = |of: fn(&traces::ReplayedObject) -> u64| unknown.iter().map(of).fold(0, u64::saturating_add);
    let gaps = sum(|thread| thread.gaps);
    if gaps > 0 {
        let what = format!("steps are missing at {}, mostly because a buffer was full", plural(gaps, "gap", "gaps"));
        output::warn(&what, format);
    }
    let lost = sum(|thread| thread.lost);
    if lost > 0 {
        let times = plural(lost, "time", "times");
        let what = format!("activations were lost {times}: an exception, a longjmp or a switch of stacks left them");
        output::warn(&what, format);
    }
    let skipped = sum(|thread| thread.skipped);
    if skipped > 0 {
        let tokens = plural(skipped, "token", "tokens");
        output::warn(&format!("{tokens} of activations whose beginning is not known are left out"), format);
    }
    let defects = sum(|thread| thread.defects);
    if defects > 0 {
        let what = format!("{} of the file contradict the ones before", plural(defects, "token", "tokens"));
        output::warn(&what, format);
    }
}

fn unreadable(path: &Path, why: &TraceError) -> Failure {
    let hint = "name a file that `ingraft trace … -o FILE` has written";
    Failure::failed(format!("cannot read {}: {why}", path.display()), hint)
}

/// The records of a file up to its end, or to where it is cut.
fn records_of(path: &Path) -> Result<TraceRecords<BufReader<File>>, Failure> {
    let cannot = |e: std::io::Error| Failure::usage(format!("cannot read {}: {e}", path.display()), "check the path");
    TraceRecords::new(BufReader::new(File::open(path).map_err(cannot)?)).map_err(|e| unreadable(path, &e))
}

/// A trace without its chunks.
struct TraceOutline {
    program: TracedProgram,
    /// The clock of the entries; `None` if they do not tell the time.
    clock: Option<TraceClock>,
    /// Whether the file has only the newest part.
    newest: bool,
    modules: Vec<ModuleInfo>,
    routines: Vec<TracedRoutine>,
    /// Functions that were asked for and are not traced.
    refused: Vec<UnprofiledFunction>,
}

impl TraceOutline {
    /// Reads what the chunks refer to. Warns if the file has no end.
    fn read(path: &Path, format: Format) -> Result<Self, Failure> {
        let program = TracedProgram::default();
        let (modules, routines, refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut trace = TraceOutline { program, clock: None, newest: false, modules, routines, refused };
        let mut ended = false;
        for record in records_of(path)? {
            match record {
                Ok(TraceRecord::Program(program)) => {
                    trace.clock = program.clock.map(TraceClock::new);
                    trace.program = program;
                }
                Ok(TraceRecord::Code(code)) => {
                    let before = trace.modules.len();
                    trace.modules.extend(code.modules);
                    let later = |f: TracedRoutine| TracedRoutine { module: f.module + before, ..f };
                    trace.routines.extend(code.functions.into_iter().map(later));
                    let later = |f: UnprofiledFunction| UnprofiledFunction { module: f.module + before, ..f };
                    trace.refused.extend(code.refused.into_iter().map(later));
                }
                Ok(TraceRecord::Chunk(chunk)) => trace.clock.iter_mut().for_each(|clock| clock.note(&chunk)),
                Ok(TraceRecord::End(_)) => ended = true,
                Ok(TraceRecord::Newest(_)) => trace.newest = true,
                Err(TraceError::Cut) => break,
                Err(why) => return Err(unreadable(path, &why)),
            }
        }
        if !ended {
            let what = format!("{} has no end: its writer was killed, or still writes", path.display());
            output::warn(&what, format);
        }
        Ok(trace)
    }

    fn module(&self, index: usize) -> &str {
        self.modules.get(index).map(|module| module.name.as_str()).unwrap_or_default()
    }

    /// Whether a function of a module, by its name and address, matches a pattern.
    fn matches(&self, pattern: &str, (module, name, start): (usize, &str, Svma)) -> bool {
        let shown = tables::shown(name, start);
        let is_it = |glob: &str| glob_match(glob, &shown) || glob_match(glob, name);
        let of_module = |at: usize| {
            let (of, glob) = (pattern.get(..at), pattern.get(at + 1..));
            of.zip(glob).is_some_and(|(of, glob)| glob_match(of, self.module(module)) && is_it(glob))
        };
        is_it(pattern) || pattern.match_indices(':').any(|(at, _)| of_module(at))
    }

    /// For each function, whether it matches one of the patterns. Leaves only matching functions among those that are not traced. Fails if a
    /// pattern matches no function.
    fn choose(&mut self, patterns: &[String]) -> Result<Vec<bool>, Failure> {
        let traced = |f: &TracedRoutine, pattern: &str| self.matches(pattern, (f.module, &f.name, start(f)));
        let refused = |f: &UnprofiledFunction, pattern: &str| self.matches(pattern, (f.module, &f.name, f.start));
        let is_some = |pattern: &String| {
            self.routines.iter().any(|f| traced(f, pattern)) || self.refused.iter().any(|f| refused(f, pattern))
        };
        if let Some(none) = patterns.iter().find(|pattern| !is_some(pattern)) {
            let hint = "`ingraft replay FILE --summary` names the functions of the trace";
            return Err(Failure::new(Exit::NotFound, format!("the trace has no function {none}"), hint));
        }
        let wanted =
            |is_it: &dyn Fn(&str) -> bool| patterns.is_empty() || patterns.iter().any(|pattern| is_it(pattern));
        let chosen = self.routines.iter().map(|f| wanted(&|pattern| traced(f, pattern))).collect();
        let left = self.refused.iter().filter(|f| wanted(&|pattern| refused(f, pattern))).cloned().collect();
        self.refused = left;
        Ok(chosen)
    }

    /// A profile of the functions in which nothing was executed.
    fn profile(&self) -> SavedProfile {
        let function = |routine: &TracedRoutine| FunctionProfile {
            module: routine.module,
            name: routine.name.clone(),
            start: start(routine),
            size: routine.size,
            calls: 0,
            blocks: blocks(routine),
            unknown: Vec::new(),
            edges: edges(routine),
            call_sites: Vec::new(),
            inexact: None,
            details: None,
            paths: None,
        };
        SavedProfile {
            host: self.program.host.clone(),
            pid: self.program.pid,
            program: self.program.program.clone(),
            began_ns: self.program.began_ns,
            modules: self.modules.clone(),
            functions: self.routines.iter().map(function).collect(),
            refused: self.refused.clone(),
            ..SavedProfile::default()
        }
    }
}

/// First byte of a function.
fn start(routine: &TracedRoutine) -> Svma {
    let entry = routine.cfg.entry.and_then(|entry| routine.cfg.blocks.get(entry));
    entry.map_or(Svma(0), |block| block.range.start)
}

fn blocks(routine: &TracedRoutine) -> Vec<BlockCount> {
    let block = |block: &ingraft_model::Block| BlockCount {
        start: block.range.start,
        size: u32::try_from(block.range.end.0.saturating_sub(block.range.start.0)).unwrap_or(u32::MAX),
        instructions: block.instructions,
        // The file of a trace does not have the bytes.
        last: block.range.start,
        count: 0,
    };
    routine.cfg.blocks.iter().map(block).collect()
}

/// The edges of a function. A replay does not tell apart several edges between two blocks, so they have no counts.
fn edges(routine: &TracedRoutine) -> Vec<EdgeCount> {
    let edge = |edge: &ingraft_model::Edge| EdgeCount {
        from: edge.from.index(),
        to: match edge.to {
            EdgeTarget::Block(block) => EdgeEnd::Block(block.index()),
            EdgeTarget::Outside(at) => EdgeEnd::Outside(at),
            EdgeTarget::Dynamic => EdgeEnd::Dynamic,
        },
        kind: edge.kind,
        count: None,
    };
    routine.cfg.edges.iter().map(edge).collect()
}

/// The thread of a step.
#[derive(Clone, Copy)]
struct Thread {
    tid: u32,
    stream: u32,
    /// Unix time in nanoseconds of its latest entry, if the trace tells it.
    time_ns: Option<u64>,
}

/// Nanoseconds as seconds.
fn seconds(ns: i128) -> String {
    let (sign, ns) = (if ns < 0 { "-" } else { "" }, ns.unsigned_abs());
    format!("{sign}{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// A replay, and what it has counted.
struct ReplayRun<'a> {
    trace: &'a TraceOutline,
    /// For each function, whether its steps are wanted.
    wanted: Vec<bool>,
    /// Name of each function, as people see it.
    names: Vec<String>,
    /// Code of each module; empty if blocks are printed.
    code: Vec<ModuleCode>,
    /// Number of calls and executions so far.
    profile: SavedProfile,
    args: &'a ReplayArgs,
}

impl ReplayRun<'_> {
    /// Replays all chunks. Returns what is not known of each thread.
    fn all(&mut self, traced: &[TracedFunction], out: &mut Output) -> Result<Vec<traces::ReplayedObject>, Stop> {
        let mut replay = TraceReplay::new(traced);
        if self.trace.newest {
            replay = replay.of_newest_part();
        }
        for record in records_of(&self.args.file)? {
            let chunk = match record {
                Ok(TraceRecord::Chunk(chunk)) => chunk,
                Ok(_) => continue,
                Err(_) => break, // The first reading has told why.
            };
            if !self.args.threads.is_empty() && !self.args.threads.contains(&chunk.tid) {
                continue;
            }
            let mut printed = Ok(());
            let mut take = |step, stamp: Option<u64>| {
                if printed.is_ok() {
                    let time_ns = stamp.zip(self.trace.clock.as_ref()).and_then(|(stamp, clock)| clock.unix_ns(stamp));
                    let thread = Thread { tid: chunk.tid, stream: chunk.stream, time_ns };
                    printed = self.step(thread, step, out);
                }
            };
            let read = replay.chunk(&chunk, &mut take);
            printed?;
            read.map_err(|e| unreadable(&self.args.file, &e.into()))?;
        }
        let pid = self.trace.program.pid.cast_signed();
        let one = |(stream, tid, unknown): (u32, u32, ingraft_report::Unknown)| traces::ReplayedObject {
            pid,
            tid,
            stream,
            gaps: unknown.gaps,
            lost: unknown.lost,
            skipped: unknown.skipped,
            defects: unknown.defects,
            ahead: unknown.ahead,
        };
        let threads: Vec<_> = replay.unknown().map(one).collect();
        if threads.is_empty() && !self.args.threads.is_empty() {
            let hint = "leave out --thread to see all threads";
            return Err(Failure::new(Exit::NotFound, "the trace has no such thread", hint).into());
        }
        Ok(threads)
    }

    /// Counts a step, or prints it.
    fn step(&mut self, thread: Thread, step: TraceStep, out: &mut Output) -> Result<(), Stop> {
        let (number, depth) = match step {
            TraceStep::Enter { function, depth }
            | TraceStep::Block { function, depth, .. }
            | TraceStep::Leave { function, depth } => (function as usize, depth),
            TraceStep::Gap | TraceStep::Condition if self.args.summary => return Ok(()),
            TraceStep::Condition => {
                let Thread { tid, stream, time_ns } = thread;
                let pid = self.trace.program.pid.cast_signed();
                out.object(&Object::Condition(traces::ConditionObject { pid, tid, stream, time_ns }))?;
                return out.text(&format!("{}  the condition holds\n", self.begin(thread)));
            }
            TraceStep::Gap => {
                let pid = self.trace.program.pid.cast_signed();
                let Thread { tid, stream, .. } = thread;
                out.object(&Object::Gap(traces::GapObject { pid, tid, stream }))?;
                return out.text(&format!("{}  steps are missing\n", self.begin(thread)));
            }
        };
        if !self.wanted.get(number).copied().unwrap_or_default() {
            return Ok(());
        }
        if self.args.summary {
            self.count(number, step);
            return Ok(());
        }
        let mut print = |word, at: Option<Svma>| self.print(thread, number, (word, depth, at), out);
        match step {
            TraceStep::Condition => Ok(()),
            TraceStep::Enter { .. } => print("enter", None),
            TraceStep::Leave { .. } => print("leave", None),
            TraceStep::Gap => Ok(()),
            TraceStep::Block { block, .. } => {
                let function = self.profile.functions.get(number);
                let Some(block) = function.and_then(|function| function.blocks.get(block.index())) else {
                    return Ok(());
                };
                let code = function.and_then(|function| self.code.get(function.module));
                match code {
                    Some(code) => code.steps(block).iter().try_for_each(|step| print("instruction", Some(step.at))),
                    None => print("block", Some(block.start)),
                }
            }
        }
    }

    fn count(&mut self, number: usize, step: TraceStep) {
        let Some(function) = self.profile.functions.get_mut(number) else { return };
        match step {
            TraceStep::Enter { .. } => function.calls += 1,
            TraceStep::Block { block, .. } => {
                if let Some(block) = function.blocks.get_mut(block.index()) {
                    block.count += 1;
                }
            }
            TraceStep::Leave { .. } | TraceStep::Gap | TraceStep::Condition => {}
        }
    }

    fn print(
        &self,
        thread: Thread,
        number: usize,
        (step, depth, at): (&'static str, u32, Option<Svma>),
        out: &mut Output,
    ) -> Result<(), Stop> {
        let Some(routine) = self.trace.routines.get(number) else { return Ok(()) };
        let start = start(routine);
        let at = at.map(|at| records::offset(at, start));
        if out.json() {
            let id = self.id(number, routine);
            let Thread { tid, stream, time_ns } = thread;
            return out.object(&Object::Step(traces::StepObject { id, tid, stream, step, depth, at, time_ns }));
        }
        let name = self.names.get(number).map(String::as_str).unwrap_or_default();
        let indent = 2 * depth.min(64) as usize;
        let begin = self.begin(thread);
        out.text(&match (at, step) {
            (Some(at), "block") => format!("{begin}  {:indent$}  {name}#{at}\n", ""),
            (Some(at), _) => format!("{begin}  {:indent$}  {name}+{at}\n", ""),
            (None, step) => format!("{begin}  {:indent$}{step} {name}\n", ""),
        })
    }

    /// The beginning of a line: the thread and, if entries tell it, the time in seconds since the trace began.
    fn begin(&self, Thread { tid, time_ns, .. }: Thread) -> String {
        if self.trace.clock.is_none() {
            return tid.to_string();
        }
        let since = time_ns.map(|ns| i128::from(ns) - i128::from(self.trace.program.began_ns));
        format!("{tid}  {:>15}", since.map(seconds).unwrap_or_default())
    }

    fn id(&self, number: usize, routine: &TracedRoutine) -> RecordedFunction {
        RecordedFunction {
            host: None,
            pid: self.trace.program.pid.cast_signed(),
            module: self.trace.module(routine.module).to_owned(),
            function: self.names.get(number).cloned().unwrap_or_default(),
            offset: format!("{:#x}", start(routine).0),
        }
    }

    /// Prints how often functions and blocks were executed.
    fn summary(&mut self, format: Format, out: &mut Output) -> Result<(), Stop> {
        let mut wanted = self.wanted.iter();
        // A function whose code could not be inserted has a number, and writes nothing: it has no counts.
        let refused =
            |f: &FunctionProfile| self.trace.refused.iter().any(|r| (r.module, r.start) == (f.module, f.start));
        self.profile.functions.retain(|f| wanted.next().copied().unwrap_or_default() && !refused(f));
        if !out.json() {
            let code = modules::code(&self.profile, &[], format)?;
            return out.text(&tables::profile(&ProfiledProgram::new(&self.profile, code), ROWS, out.width()));
        }
        for function in &self.profile.functions {
            let id = RecordedFunction {
                host: None,
                pid: self.profile.pid.cast_signed(),
                module: self.trace.module(function.module).to_owned(),
                function: tables::shown(&function.name, function.start),
                offset: format!("{:#x}", function.start.0),
            };
            records::blocks(function, &id).iter().try_for_each(|block| out.object(block))?;
        }
        for refused in &self.profile.refused {
            out.object(&Object::Refused(objects::RefusedObject {
                host: None,
                pid: self.profile.pid.cast_signed(),
                module: self.trace.module(refused.module).to_owned(),
                function: tables::shown(&refused.name, refused.start),
                offset: format!("{:#x}", refused.start.0),
                metric: None,
                focus: None,
                reason: NOT_TRACED.to_owned(),
                why_not: refused.why.clone(),
            }))?;
        }
        Ok(())
    }
}
