//! Samples of where the threads of a target run or wait. A thread of the engine takes them and unwinds the stacks; a reading counts them by
//! function. Nothing is inserted, and the sampling ends when its value is dropped.

mod attribution;
mod calls;
mod compiled;
mod peers;
mod stacks;
mod taking;
mod tally;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ingraft_model::Tid;
use ingraft_process::{LookCounts, ProcessError, Target, ThreadAccount};

use self::attribution::Attribution;
use self::calls::CallTally;
use self::stacks::StackTally;
use self::taking::{SampledStack, Taken, Taking};
use self::tally::{FramePlace, SampleTally, SiteKey};
use super::{Engine, lock, open, resolve};
use crate::api::*;
use crate::error::{Error, Reason};
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::modules::Modules;
use crate::program::pattern::Pattern;
use crate::session::now_ns;
use crate::session::replaced::Before;
use crate::session::warnings::{STOPPED, is_stopped};
use crate::weaving::catch_up::Walker;

/// Largest number of samplings of an engine at a time: each has a thread. A command makes two for each process that it samples.
const SAMPLINGS_MAX: usize = 256;
/// Shortest time between two samples of a thread.
const PERIOD_MIN: Duration = Duration::from_millis(1);
/// Time between two samples of a thread if the request names none. A period that divides no second evenly does not fall into step with
/// timers of the program.
const PERIOD: Duration = Duration::from_nanos(1_000_000_000 / 499);

/// A sampling of a target. It ends when the value is dropped.
pub struct Sampling {
    engine: Engine,
    caller: Caller,
    target: Arc<Target>,
    taking: Taking,
    /// Whether the answers have stacks.
    with_stacks: bool,
    reader: Mutex<SampleReader>,
    /// Whether readings have sites and usage.
    sites: bool,
    /// Whether readings have the calls on the stacks.
    with_calls: bool,
    _turn: SamplingTurn,
}

/// One of the samplings that an engine may have.
struct SamplingTurn(Arc<AtomicUsize>);

impl SamplingTurn {
    fn take(all: &Arc<AtomicUsize>) -> Result<Self, Error> {
        let turn = SamplingTurn(Arc::clone(all));
        if all.fetch_add(1, Ordering::Relaxed) < SAMPLINGS_MAX {
            return Ok(turn);
        }
        let what = format!("{SAMPLINGS_MAX} samplings run already, and the engine makes no more");
        Err(Error::new(Reason::QuotaExceeded, what, "wait until another one ends"))
    }
}

impl Drop for SamplingTurn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// State between two readings.
struct SampleReader {
    attribution: Attribution,
    last: Instant,
    cpu: Duration,
    lost: u64,
    throttled: u64,
    looks: u64,
    rounds: u64,
    /// Usage of each thread at the last reading.
    usage: BTreeMap<Tid, (ThreadAccount, LookCounts)>,
}

impl std::fmt::Debug for Sampling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampling").field("taking", &self.taking).finish_non_exhaustive()
    }
}

impl Engine {
    /// Begins to sample the threads of a process.
    pub fn sample(
        &self,
        request: &SamplingRequest,
        caller: Caller,
        progress: &dyn Fn(&str),
    ) -> Result<Sampling, Error> {
        let turn = SamplingTurn::take(&self.inner.samplings)?;
        if request.stacks && request.patterns.is_empty() {
            let what = "stacks are asked for, but no function below which they are";
            return Err(Error::new(Reason::InvalidField, what, "name a function"));
        }
        let pid = resolve(&request.target, caller)?;
        let before = Before::of(pid, caller);
        let begin = || {
            let target = Arc::new(open(pid, caller)?);
            let modules = Modules::of(&target)?;
            if !request.patterns.is_empty() {
                let patterns: Vec<Pattern> = request.patterns.iter().map(|text| Pattern::parse(text)).collect();
                modules.load(&target, &self.inner.context.images, &patterns, progress);
                resolve_patterns(&modules, &request.patterns, Missing::Fails)?;
            }
            // The file of a program that ends soon can be read only now. Those of libraries are analysed when samples are in them.
            progress("analysing the program");
            modules.load_files(&target, &self.inner.context.images, &|file| file.is_program);
            progress("reading how stacks are unwound");
            let walker = Walker::for_samples(&target, &modules);
            let period = if request.period.is_zero() { PERIOD } else { request.period.max(PERIOD_MIN) };
            let samplings = Arc::clone(&self.inner.samplings);
            let wanted = (&*request.threads, request.sites);
            let taking = Taking::begin(Arc::clone(&target), request.state, wanted, period, (walker, samplings))?;
            target.check(caller.rights()).map_err(|e| Error::process(pid, e))?;
            let reader = SampleReader {
                attribution: Attribution::new(modules, request.patterns.clone()),
                last: Instant::now(),
                cpu: target.cpu_time().unwrap_or_default(),
                lost: 0,
                throttled: 0,
                looks: 0,
                rounds: 0,
                usage: if request.sites { used(&target, &BTreeMap::new()) } else { BTreeMap::new() },
            };
            let reader = Mutex::new(reader);
            let (with_stacks, sites, with_calls) = (request.stacks, request.sites, request.calls);
            let engine = self.clone();
            Ok(Sampling { engine, caller, target, taking, with_stacks, reader, sites, with_calls, _turn: turn })
        };
        begin().map_err(|e| before.explain(e))
    }
}

impl Sampling {
    /// Whether the target has ended, or has executed another program: the next reading is the last.
    pub fn has_ended(&self) -> bool {
        self.taking.ended().is_some()
    }

    /// The samples since the last reading.
    pub fn read(&self) -> Result<SamplingReading, Error> {
        let mut reader = lock(&self.reader);
        // The end is noted after the last samples.
        let mut ended = self.taking.ended();
        let taken = self.taking.take();
        if ended.is_none() {
            ended = self.checked()?;
        }
        let (tally, stacks, calls) = self.count(&mut reader.attribution, &taken, ended.is_none());
        let (now, runs) = (Instant::now(), ended.is_none());
        // If the process has ended, its last known processor time counts.
        let cpu = self.target.cpu_time().unwrap_or(taken.facts.cpu).max(reader.cpu);
        let name = |tid: Tid| self.target.thread_name(tid).unwrap_or_default();
        let facts = &taken.facts;
        let span = now.duration_since(reader.last);
        let rounds = facts.rounds.saturating_sub(reader.rounds);
        // Rounds of looks come as they can; the kernel's samples come by the clock.
        let period = u32::try_from(rounds).ok().and_then(|rounds| span.checked_div(rounds));
        let mut reading = SamplingReading {
            pid: self.target.pid(),
            time_ns: now_ns(),
            span,
            cpu: cpu.saturating_sub(reader.cpu),
            period: period.unwrap_or(self.taking.period()),
            method: self.taking.method(),
            note: self.note(runs),
            with_kernel: facts.with_kernel,
            looks: facts.looks.saturating_sub(reader.looks),
            samples: tally.samples,
            kernel: tally.kernel,
            cut: tally.cut,
            lost: facts.lost.saturating_sub(reader.lost),
            throttled: facts.throttled.saturating_sub(reader.throttled),
            unsampled_threads: facts.unsampled_threads,
            functions: reader.attribution.functions(&tally),
            threads: tally.threads(&name),
            elsewhere: tally.elsewhere(),
            stacks,
            sites: reader.attribution.sites(&tally),
            calls,
            usage: Vec::new(),
            ended,
        };
        if self.sites {
            let before = std::mem::take(&mut reader.usage);
            // A thread that has ended, or a process that has, is not in the present usage.
            let present = used(&self.target, &taken.looks);
            reading.usage = usage_since(&before, &present, &name);
            reader.usage = present;
        }
        // The answer may be about a program that the caller may not trace, if the process has executed one meanwhile.
        if reading.ended.is_none() {
            reading.ended = self.checked()?;
            if reading.ended.is_some_and(|ended| ended.exec) {
                return Err(Error::process(self.target.pid(), ProcessError::Replaced(self.target.pid())));
            }
        }
        if reading.ended.is_some_and(|ended| ended.exec) {
            // The last looks may be at the new program, before anybody knew of it.
            (reading.sites, reading.usage) = (Vec::new(), Vec::new());
            reading.functions.iter_mut().for_each(|function| function.waits.clear());
            reading.calls.iter_mut().for_each(|call| call.waits.clear());
        }
        let SampleReader { last, cpu: cpu_before, lost, throttled, looks, rounds, .. } = &mut *reader;
        (*last, *cpu_before) = (now, cpu);
        (*lost, *throttled, *looks, *rounds) = (facts.lost, facts.throttled, facts.looks, facts.rounds);
        Ok(reading)
    }

    /// One sentence on why a better way was not taken, or on why there is nothing to see.
    fn note(&self, runs: bool) -> String {
        let stopped = runs && is_stopped(&self.target);
        if stopped { STOPPED.to_owned() } else { self.taking.note().to_owned() }
    }

    /// Checks that the target is still the program that the caller may trace. Returns its end if it has ended.
    fn checked(&self) -> Result<Option<Ended>, Error> {
        match self.target.check(self.caller.rights()) {
            Ok(()) => Ok(None),
            Err(ProcessError::Gone(_)) => Ok(Some(Ended { status: None, signal: None, exec: false })),
            Err(ProcessError::Replaced(_)) => Ok(Some(Ended { status: None, signal: None, exec: true })),
            Err(e) => Err(Error::process(self.target.pid(), e)),
        }
    }

    /// Counts samples by function and, if asked for, by stack and by chain of calls. Looks at the target again only as long as it runs.
    fn count(
        &self,
        attribution: &mut Attribution,
        taken: &Taken,
        runs: bool,
    ) -> (SampleTally, Vec<StackSamples>, Vec<SampledCall>) {
        let store = &self.engine.inner.context.images;
        attribution.begin_reading();
        if !runs {
            attribution.forget_target();
        } else if attribution.meets_unknown(&self.target, store, taken)
            && let Ok(generated) = self.engine.generated(&self.target)
        {
            let generated = Arc::new(generated);
            self.taking.set_generated(&generated);
            attribution.set_generated(generated);
        }
        // Another library may be at the addresses of one that was unloaded.
        if runs && attribution.refresh(&self.target) {
            self.taking.set_walker(Walker::for_samples(&self.target, attribution.modules()));
        }
        let mut tally = SampleTally::default();
        let mut stacks = StackTally::new(attribution.wanted().filter(|_| self.with_stacks).unwrap_or_default());
        let mut calls = CallTally::new(attribution.wanted().filter(|_| self.with_calls));
        let mut places: Vec<FramePlace> = Vec::new();
        for stack in &taken.stacks {
            let frames = taken.frames(stack);
            let found = frames.iter().enumerate().map(|(i, at)| attribution.place(&self.target, store, *at, i == 0));
            places.clear();
            places.extend(found);
            stacks.add(&places, frames, stack.whole);
            if self.with_calls {
                calls.add(stack, &places);
            }
            if self.sites {
                let key = self.site(attribution, taken, stack, runs);
                tally.add_to_site(key, places.iter().cloned());
            }
            tally.add(stack, places.drain(..));
        }
        let stacks = attribution.stacks(&self.target, store, stacks);
        (tally, stacks, attribution.call_tree(calls))
    }
}

impl Sampling {
    /// The key of a sample's site, without the functions.
    fn site(&self, attribution: &mut Attribution, taken: &Taken, stack: &SampledStack, runs: bool) -> SiteKey {
        let mode = match (stack.kernel, taken.frames(stack).first()) {
            (true, Some(at)) if runs && !attribution.is_after_call(&self.target, *at) => SampledMode::Fault,
            (true, _) => SampledMode::SystemCall,
            (false, _) => stack.mode,
        };
        let object = taken.object(stack).cloned();
        SiteKey { tid: stack.tid, mode, call: stack.call, object, functions: Vec::new(), innermost: false }
    }
}

/// The usage of each thread since its birth, and the looks at it so far.
fn used(target: &Target, looks: &BTreeMap<Tid, LookCounts>) -> BTreeMap<Tid, (ThreadAccount, LookCounts)> {
    let threads = target.threads().unwrap_or_default().into_iter();
    let of = |tid| Some((tid, (target.thread_usage(tid)?, looks.get(&tid).copied().unwrap_or_default())));
    threads.filter_map(of).collect()
}

/// The usage of each present thread since `before`. A thread that was not there before has used all of it since.
fn usage_since(
    before: &BTreeMap<Tid, (ThreadAccount, LookCounts)>,
    present: &BTreeMap<Tid, (ThreadAccount, LookCounts)>,
    name: &dyn Fn(Tid) -> String,
) -> Vec<ThreadUsage> {
    let since = |(tid, (now, looks)): (&Tid, &(ThreadAccount, LookCounts))| {
        let (then, looked) = before.get(tid).copied().unwrap_or_default();
        ThreadUsage {
            tid: *tid,
            name: name(*tid),
            looks: looks.looks.saturating_sub(looked.looks),
            running: looks.running.saturating_sub(looked.running),
            missed: looks.missed.saturating_sub(looked.missed),
            cpu: now.cpu.saturating_sub(then.cpu),
            system: now.system.saturating_sub(then.system),
            delayed: now.delayed.saturating_sub(then.delayed),
            minor_faults: now.minor_faults.saturating_sub(then.minor_faults),
            major_faults: now.major_faults.saturating_sub(then.major_faults),
            block_delay: now.block_delay.saturating_sub(then.block_delay),
            waits: now.waits.saturating_sub(then.waits),
        }
    };
    present.iter().map(since).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_that_since_the_last_reading() {
        let of = |waits, looks| {
            let usage = ThreadAccount { waits, ..Default::default() };
            (usage, LookCounts { looks, running: looks, missed: 0 })
        };
        let before = BTreeMap::from([(Tid(1), of(5, 10)), (Tid(2), of(9, 10))]);
        let present = BTreeMap::from([(Tid(1), of(7, 30)), (Tid(3), of(2, 4))]);
        let usage = usage_since(&before, &present, &|tid| format!("t{}", tid.0));
        let found: Vec<_> = usage.iter().map(|t| (t.name.as_str(), t.waits, t.looks, t.running)).collect();
        assert_eq!(found, [("t1", 2, 20, 20), ("t3", 2, 4, 4)]);
    }

    #[test]
    fn an_engine_has_a_bounded_number_of_samplings() {
        let all = Arc::default();
        let turns: Vec<_> = (0..SAMPLINGS_MAX).map(|_| SamplingTurn::take(&all).expect("a turn")).collect();
        assert!(SamplingTurn::take(&all).is_err_and(|e| e.reason == Reason::QuotaExceeded));
        drop(turns);
        assert_eq!(all.load(Ordering::Relaxed), 0, "refused ones do not count");
        assert!(SamplingTurn::take(&all).is_ok());
    }
}
