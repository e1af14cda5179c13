//! The thread that takes samples of a target and unwinds their stacks.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ingraft_analysis::Registers;
use ingraft_model::{Avma, Tid};
use ingraft_process::{
    LookCounts, SampledRegisters, Target, ThreadLooks, ThreadSample, ThreadSampler, ThreadState, WaitDetails,
    WaitedObject, own_processor_time,
};
use rustc_hash::FxHashMap;

use super::peers::SocketPeers;
use crate::api::{CodePart, Ended, SampledMode, SampledState, SamplingMethod, WaitedThing};
use crate::error::{Error, Reason};
use crate::requests::lock;
use crate::session::event_refused;
use crate::weaving::catch_up::{OriginalPositions, Walker};
use crate::weaving::parts::Generated;

/// Time between two looks at the rings of the kernel.
const DRAIN: Duration = Duration::from_millis(20);
/// Time between two looks for new threads, and for another program in the process.
const FOLLOW: Duration = Duration::from_millis(100);
/// Time between two searches for code that was not mapped before.
const SEARCH: Duration = Duration::from_secs(1);
/// Longest wait before the thread notices that it is to end.
const SLICE: Duration = Duration::from_millis(20);
/// Number of addresses that wait for a reading; further samples are lost.
const WAITING_MAX: usize = 4 << 20;
/// Largest number of frames of one sample, more than its part of the stack has room for.
const SAMPLE_FRAMES_MAX: usize = 4096;
/// Number of objects of waits that wait for a reading; samples of further ones have none.
const OBJECTS_MAX: usize = 1 << 14;
/// Number of threads of which the last stack is kept, at most 16 KiB each.
const UNWOUND_MAX: usize = 512;
/// Shortest time between two rounds of looks for which threads are held.
const HELD_PERIOD: Duration = Duration::from_millis(10);
/// Number of times that the pause after a round of looks is longer than the round: looks at a process take at most this fraction of a
/// processor, and less the more samplings there are.
const LOOKS_SHARE: u32 = 50;
/// Number of times that the pause is longer for each sampling of the engine. With one at waiting and one at running threads for each process,
/// all looks at waiting threads take at most a tenth of a processor.
const LOOKS_EACH: u32 = 5;

/// A sample with its stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampledStack {
    pub tid: Tid,
    /// Whether the thread ran in the kernel.
    pub kernel: bool,
    /// Whether the stack was unwound to the end.
    pub whole: bool,
    /// System call in which the thread waits; `None` for a thread that runs.
    pub call: Option<i64>,
    /// Activity of the thread; [`SampledMode::Program`] for a thread that runs.
    pub mode: SampledMode,
    /// Index of the object of the wait among those of all samples.
    pub object: Option<u32>,
    /// Indices of its frames among the addresses of all samples.
    pub begin: u32,
    pub end: u32,
}

/// Facts about the samples since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TakingFacts {
    pub with_kernel: bool,
    pub lost: u64,
    pub throttled: u64,
    pub looks: u64,
    /// Rounds of looks; 0 if the kernel samples.
    pub rounds: u64,
    pub unsampled_threads: usize,
    /// Processor time of the process when the thread last looked.
    pub cpu: Duration,
}

/// Samples that wait for a reading.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub stacks: Vec<SampledStack>,
    addresses: Vec<Avma>,
    objects: Vec<WaitedThing>,
    object_numbers: FxHashMap<WaitedObject, u32>,
    /// Looks so far at each present thread.
    pub looks: BTreeMap<Tid, LookCounts>,
    pub facts: TakingFacts,
    /// Samples for which there was no room here.
    dropped: u64,
}

impl Taken {
    /// The frames of a sample, innermost first.
    pub fn frames(&self, stack: &SampledStack) -> &[Avma] {
        self.addresses.get(stack.begin as usize..stack.end as usize).unwrap_or_default()
    }

    /// The object of the wait of a sample.
    pub fn object(&self, stack: &SampledStack) -> Option<&WaitedThing> {
        self.objects.get(usize::try_from(stack.object?).ok()?)
    }

    /// The number of an object; `None` if there are too many.
    fn number_of(&mut self, object: WaitedObject, peers: &SocketPeers) -> Option<u32> {
        if let Some(number) = self.object_numbers.get(&object) {
            return Some(*number);
        }
        let number = u32::try_from(self.objects.len()).ok().filter(|_| self.objects.len() < OBJECTS_MAX)?;
        self.objects.push(peers.describe(&object));
        self.object_numbers.insert(object, number);
        Some(number)
    }

    fn push(&mut self, stack: SampledStack, frames: impl Iterator<Item = Avma>) {
        let begin = self.addresses.len();
        if begin >= WAITING_MAX || self.stacks.len() >= WAITING_MAX {
            self.dropped += 1;
            return;
        }
        self.addresses.extend(frames.take(WAITING_MAX));
        let index = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        self.stacks.push(SampledStack { begin: index(begin), end: index(self.addresses.len()), ..stack });
    }
}

/// State that the thread shares with readers.
struct TakingState {
    target: Arc<Target>,
    stop: AtomicBool,
    taken: Mutex<Taken>,
    ended: Mutex<Option<Ended>>,
    /// Generated code that the thread is to use from now on.
    generated: Mutex<Option<Arc<Vec<Generated>>>>,
    /// Unwind tables that the thread is to use from now on.
    walker: Mutex<Option<Walker>>,
}

/// The taking of samples. It ends when the value is dropped.
pub(super) struct Taking {
    state: Arc<TakingState>,
    thread: Option<JoinHandle<()>>,
    method: SamplingMethod,
    period: Duration,
    note: String,
}

impl std::fmt::Debug for Taking {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Taking").field("method", &self.method).finish_non_exhaustive()
    }
}

/// Way in which samples come.
enum SampleSource {
    Perf(ThreadSampler),
    Looks(ThreadLooks),
}

impl Taking {
    /// Begins to take samples of the threads of a target, or only of `threads` if there are any. With `details`, samples of waiting threads
    /// have the objects of the waits. `samplings` has the number of samplings of the engine.
    pub fn begin(
        target: Arc<Target>,
        wanted: SampledState,
        (threads, details): (&[Tid], bool),
        period: Duration,
        (walker, samplings): (Walker, Arc<AtomicUsize>),
    ) -> Result<Self, Error> {
        let pid = target.pid();
        let period_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX);
        let mut note = String::new();
        let looks =
            |state| ThreadLooks::begin(&target, state, threads).map_err(|missing| event_refused(missing).about(pid));
        let (source, method, period) = match wanted {
            SampledState::Waiting => {
                let looks = looks(ThreadState::Waiting)?;
                let looks = if details { looks.with_details() } else { looks };
                (SampleSource::Looks(looks), SamplingMethod::Looks, period)
            }
            SampledState::Running => match ThreadSampler::begin(&target, period_ns, threads) {
                Ok(sampler) => (SampleSource::Perf(sampler), SamplingMethod::Perf, period),
                Err(e) => {
                    let refused = event_refused(e);
                    if refused.reason == Reason::NoSuchThread || refused.reason == Reason::Process {
                        return Err(refused.about(pid));
                    }
                    note = format!("threads are held for a moment for each sample, because {}", refused.what);
                    let looks = looks(ThreadState::Running)?;
                    (SampleSource::Looks(looks), SamplingMethod::Held, period.max(HELD_PERIOD))
                }
            },
        };
        let state = Arc::new(TakingState {
            target,
            stop: AtomicBool::new(false),
            taken: Mutex::default(),
            ended: Mutex::default(),
            generated: Mutex::default(),
            walker: Mutex::default(),
        });
        let worker = SampleWorker {
            state: Arc::clone(&state),
            source,
            period,
            samplings,
            walker,
            generated: Arc::default(),
            original: FxHashMap::default(),
            places: OriginalPositions::default(),
            cpu: Duration::ZERO,
            peers: SocketPeers::default(),
            is_lost: false,
            searched: Instant::now(),
            unwound: FxHashMap::default(),
        };
        let spawned = std::thread::Builder::new().name("samples".into()).spawn(move || worker.run());
        let failed = |e| Error::process(pid, ingraft_process::ProcessError::Own { what: "start a thread", source: e });
        Ok(Taking { state, thread: Some(spawned.map_err(failed)?), method, period, note })
    }

    /// The samples since the last call.
    pub fn take(&self) -> Taken {
        let mut taken = lock(&self.state.taken);
        let next = Taken { facts: taken.facts, looks: taken.looks.clone(), dropped: taken.dropped, ..Taken::default() };
        let mut taken = std::mem::replace(&mut *taken, next);
        taken.facts.lost = taken.facts.lost.saturating_add(taken.dropped);
        taken
    }

    /// The end of the target, if it has ended. All samples were taken before.
    pub fn ended(&self) -> Option<Ended> {
        *lock(&self.state.ended)
    }

    pub fn method(&self) -> SamplingMethod {
        self.method
    }

    /// Time between two samples of a thread.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// One sentence on why a better way was not taken.
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Has stacks unwound from this generated code.
    pub fn set_generated(&self, generated: &Arc<Vec<Generated>>) {
        *lock(&self.state.generated) = Some(Arc::clone(generated));
    }

    /// Has stacks unwound by these tables.
    pub fn set_walker(&self, walker: Walker) {
        *lock(&self.state.walker) = Some(walker);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has ended the samples, and nothing else.
            drop(thread.join());
        }
    }
}

/// State of the thread that takes samples.
struct SampleWorker {
    state: Arc<TakingState>,
    source: SampleSource,
    period: Duration,
    /// Number of samplings of the engine.
    samplings: Arc<AtomicUsize>,
    walker: Walker,
    generated: Arc<Vec<Generated>>,
    /// Equivalent original addresses of addresses in generated code, as far as they were met.
    original: FxHashMap<Avma, Option<Avma>>,
    places: OriginalPositions,
    /// Processor time of the process at the last look for new threads.
    cpu: Duration,
    /// The other sides of sockets that threads have waited for.
    peers: SocketPeers,
    /// Whether a stack has ended in code that was not mapped when the tables were read, and the time of the last search for such code.
    is_lost: bool,
    searched: Instant,
    /// The last stack of each waiting thread, for at most [`UNWOUND_MAX`] threads.
    unwound: FxHashMap<Tid, UnwoundStack>,
}

/// A stack with its frames.
struct UnwoundStack {
    registers: SampledRegisters,
    stack: Vec<u8>,
    frames: Vec<Avma>,
    /// Whether the frames are complete.
    whole: bool,
}

impl UnwoundStack {
    /// Whether the frames are those of a thread with these registers and this stack.
    fn is_of(&self, registers: &SampledRegisters, stack: &[u8]) -> bool {
        self.registers == *registers && self.stack == stack
    }
}

impl SampleWorker {
    fn run(mut self) {
        let state = Arc::clone(&self.state);
        let mut due = Instant::now();
        let mut followed = Instant::now();
        while !state.stop.load(Ordering::Relaxed) {
            let rest = due.saturating_duration_since(Instant::now()).min(SLICE);
            // The wait for the end of a process counts in milliseconds.
            let wait = if rest < Duration::from_millis(1) { Duration::ZERO } else { rest };
            if wait.is_zero() {
                std::thread::sleep(rest);
            }
            let over = state.target.ends_within(wait);
            if !over && Instant::now() < due {
                continue;
            }
            self.hear();
            let (begin, worked) = (Instant::now(), own_processor_time());
            self.drain();
            due = match self.source {
                SampleSource::Perf(_) => begin + DRAIN,
                SampleSource::Looks(_) => {
                    // On a busy machine, a round may wait long for a processor, which costs nobody anything.
                    let samplings = u32::try_from(self.samplings.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
                    let pause = LOOKS_SHARE.max(LOOKS_EACH.saturating_mul(samplings));
                    begin + self.period.max(own_processor_time().saturating_sub(worked).saturating_mul(pause))
                }
            };
            let mut replaced = false;
            if !over && followed.elapsed() >= FOLLOW {
                followed = Instant::now();
                self.follow();
                // A process that has ended maps no program either.
                replaced = !state.target.is_same_program() && state.target.is_alive();
            }
            if over || replaced {
                *lock(&state.ended) = Some(Ended { status: None, signal: None, exec: replaced });
                return;
            }
        }
    }

    /// Takes over what a reader has found out.
    fn hear(&mut self) {
        if let Some(generated) = lock(&self.state.generated).take() {
            self.generated = generated;
            self.original.clear();
            self.unwound.clear();
        }
        if let Some(walker) = lock(&self.state.walker).take() {
            self.walker = walker;
            self.unwound.clear();
        }
    }

    fn follow(&mut self) {
        self.cpu = self.state.target.cpu_time().unwrap_or(self.cpu);
        if std::mem::take(&mut self.is_lost) && self.searched.elapsed() >= SEARCH {
            self.searched = Instant::now();
            self.walker.find_code(&self.state.target);
            // Threads that still wait have the frames that were found before.
            self.unwound.clear();
        }
        // Threads that have ended leave their places to others.
        if self.unwound.len() >= UNWOUND_MAX {
            self.unwound.clear();
        }
        match &mut self.source {
            SampleSource::Perf(sampler) => sampler.follow(&self.state.target),
            SampleSource::Looks(looks) => looks.follow(&self.state.target),
        }
    }

    fn drain(&mut self) {
        let SampleWorker { state, source, walker, generated, original, places, cpu, peers, is_lost, unwound, .. } =
            self;
        let mut found: Vec<(SampledStack, Vec<Avma>, Option<WaitedObject>)> = Vec::new();
        let mut each = |sample: &ThreadSample<'_>| {
            let stack = SampledStack {
                tid: sample.tid,
                kernel: sample.kernel,
                whole: false,
                call: sample.call,
                mode: sample.wait.as_ref().map_or(SampledMode::Program, mode),
                object: None,
                begin: 0,
                end: 0,
            };
            let object = sample.wait.as_ref().and_then(|wait| wait.object.clone());
            let (stack, frames) = match sample.registers {
                Some(registers) => {
                    // A thread that waits on has the same registers and stack, and so the same frames.
                    let waits = sample.call.is_some();
                    let last = unwound.get(&sample.tid).filter(|last| waits && last.is_of(&registers, sample.stack));
                    let (frames, whole) = match last {
                        Some(last) => (last.frames.clone(), last.whole),
                        None => walk(walker, places, generated, original, (&registers, sample.stack)),
                    };
                    *is_lost |= !whole && frames.last().is_some_and(|at| !walker.guesses_at(*at));
                    if waits && last.is_none() && (unwound.len() < UNWOUND_MAX || unwound.contains_key(&sample.tid)) {
                        let (stack, frames) = (sample.stack.to_vec(), frames.clone());
                        unwound.insert(sample.tid, UnwoundStack { registers, stack, frames, whole });
                    }
                    (SampledStack { whole, ..stack }, frames)
                }
                None => (stack, Vec::new()),
            };
            found.push((stack, frames, object));
        };
        let mut counts = BTreeMap::new();
        let facts = match source {
            SampleSource::Perf(sampler) => {
                sampler.drain(&mut each);
                TakingFacts {
                    with_kernel: sampler.samples_kernel(),
                    lost: sampler.lost(),
                    throttled: sampler.throttled(),
                    looks: 0,
                    rounds: 0,
                    unsampled_threads: sampler.unsampled_threads(),
                    cpu: *cpu,
                }
            }
            SampleSource::Looks(looks) => {
                looks.look(&state.target, &mut each);
                counts = looks.counts();
                TakingFacts {
                    with_kernel: true,
                    lost: looks.missed(),
                    throttled: 0,
                    looks: looks.looks(),
                    rounds: looks.rounds(),
                    unsampled_threads: 0,
                    cpu: *cpu,
                }
            }
        };
        peers.find(&state.target, found.iter().filter_map(|(_, _, object)| object.as_ref()));
        let mut taken = lock(&state.taken);
        (taken.facts, taken.looks) = (facts, counts);
        for (stack, frames, object) in found {
            let object = object.and_then(|object| taken.number_of(object, peers));
            taken.push(SampledStack { object, ..stack }, frames.into_iter());
        }
    }
}

/// The activity of a waiting thread.
fn mode(wait: &WaitDetails) -> SampledMode {
    match wait {
        WaitDetails { stopped: true, .. } => SampledMode::Stopped,
        WaitDetails { uninterruptible: true, .. } => SampledMode::Uninterruptible,
        WaitDetails { .. } => SampledMode::Waiting,
    }
}

/// The frames of a sample, innermost first, and whether they are complete. The first is the address of the thread itself, also if it could
/// not be unwound from there.
fn walk(
    walker: &mut Walker,
    places: &OriginalPositions,
    generated: &[Generated],
    original: &mut FxHashMap<Avma, Option<Avma>>,
    (registers, stack): (&SampledRegisters, &[u8]),
) -> (Vec<Avma>, bool) {
    let pc = registers.pc;
    let is_generated = generated.iter().any(|g| g.arenas.iter().any(|arena| arena.contains(&pc)));
    let at = match is_generated {
        true => *original.entry(pc).or_insert_with(|| equivalent(generated, pc)),
        false => Some(pc),
    };
    let Some(at) = at else { return (vec![pc], false) };
    let from = Registers { pc: at.0, general: registers.general };
    let Some(sp) = from.sp() else { return (vec![at], false) };
    let mut read = |at: u64| {
        let begin = usize::try_from(at.checked_sub(sp)?).ok()?;
        let word = stack.get(begin..begin.checked_add(8)?)?;
        word.try_into().ok().map(u64::from_le_bytes)
    };
    let walk = walker.walk_from(from, places, &mut read);
    if walk.frames.is_empty() {
        return (vec![at], walk.whole);
    }
    let frames = walk.frames.iter().take(SAMPLE_FRAMES_MAX).map(|frame| frame.at).collect();
    (frames, walk.whole && walk.frames.len() <= SAMPLE_FRAMES_MAX)
}

/// The original instruction that is equivalent to one in generated code; `None` if there is none, as in code that has changed the stack.
fn equivalent(generated: &[Generated], pc: Avma) -> Option<Avma> {
    let found = generated.iter().flat_map(|g| &g.points).try_for_each(|point| match point.part_at(pc) {
        Some(part) => ControlFlow::Break((point, part.part)),
        None => ControlFlow::Continue(()),
    });
    let ControlFlow::Break((point, part)) = found else { return None };
    let exact = point.moves.binary_search_by_key(&pc, |m| m.from).ok().and_then(|i| point.moves.get(i));
    exact.filter(|_| part == CodePart::Relocated).map(|m| m.to)
}
