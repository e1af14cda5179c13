//! Evidence about a target, added up over the readings, and its division among the hypotheses: a pure function of the sums.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ingraft_api::{NamedFunction, SampledMode, SampledSite, SamplingReading, ThreadUsage, WaitedKind};
use ingraft_model::{Pid, Tid};

use super::causes::{self, Cause};
use super::hypothesis::Hypothesis;

/// Share of a thread's looks from which on waits for other threads, and for input from pipes, are those of a thread that has nothing to do.
const WORKER: f64 = 0.9;
/// Longest time that a page fault takes, on average. If there were fewer faults than that explains, the time in the kernel outside of system
/// calls is that of interrupts.
const FAULT_MAX: Duration = Duration::from_micros(500);

/// Processor time in which samples of running threads are too few to wait for.
const QUIET: Duration = Duration::from_millis(200);

/// Sums of the readings of a target so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Observation {
    pub(super) pid: Pid,
    /// Time that the looks are of.
    pub(super) span: Duration,
    /// Usage of each thread in this time.
    usage: BTreeMap<Tid, ThreadUsage>,
    /// Looks at waiting threads by site; the number in the key is 0.
    waits: HashMap<SampledSite, u64>,
    /// Samples of running threads by site; the number in the key is 0.
    runs: HashMap<SampledSite, u64>,
    /// Processor time between two samples of a running thread.
    period: Duration,
}

/// A part of the time of the threads that looks saw.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Part {
    pub(super) tid: Tid,
    /// Hypothesis that the time speaks for; `None` for time that speaks for no hypothesis.
    pub(super) speaks_for: Option<Hypothesis>,
    /// The function that runs, or that is charged with a wait.
    pub(super) function: Option<NamedFunction>,
    /// The first caller of `function`, if a part of a running function has one.
    pub(super) caller: Option<NamedFunction>,
    /// System call of a wait; empty for a thread that runs.
    pub(super) call: String,
    /// The object of a wait, if it has a name.
    pub(super) object: Option<ObjectName>,
    /// Whether the hypothesis is inferred from the value of a futex alone.
    pub(super) inferred: bool,
    /// Whether the thread waited for a lock in the whole time.
    pub(super) parked: bool,
    /// Whether the thread ran in the kernel.
    pub(super) kernel: bool,
    /// Number of looks or samples that saw it.
    pub(super) samples: u64,
    /// The time, in looks at one thread.
    pub(super) looks: f64,
}

/// Name of an object that threads wait for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ObjectName {
    /// A mutex of pthreads, by its address.
    Mutex(u64),
    /// Another lock, by the address of its futex.
    Futex(u64),
    /// The other side of a socket; empty if it is not known.
    Socket(String),
    /// A file, a device, a pipe.
    File(String),
}

/// Sums over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Totals {
    pub(super) threads: usize,
    pub(super) cpu: Duration,
    pub(super) delayed: Duration,
    pub(super) minor_faults: u64,
    pub(super) major_faults: u64,
    pub(super) block_delay: Duration,
    /// Looks at threads in any state.
    pub(super) looks: u64,
    /// Largest number of looks at one thread.
    pub(super) rounds: u64,
}

impl Totals {
    /// Whether the threads hardly ran, so that few samples of running threads come.
    pub(super) fn is_quiet(&self) -> bool {
        self.cpu < QUIET
    }
}

impl Observation {
    /// Whether both kinds of readings have come.
    pub(super) fn has_both(&self) -> bool {
        !self.period.is_zero() && !self.span.is_zero()
    }

    /// Adds a reading of waiting threads.
    pub(super) fn add_waiting(&mut self, reading: SamplingReading) {
        self.pid = reading.pid;
        self.span += reading.span;
        add_sites(&mut self.waits, reading.sites);
        for usage in reading.usage {
            let sum = self.usage.entry(usage.tid).or_insert_with(|| nothing(usage.tid));
            sum.name.clone_from(&usage.name);
            sum.looks += usage.looks;
            sum.running += usage.running;
            sum.missed += usage.missed;
            sum.cpu += usage.cpu;
            sum.system += usage.system;
            sum.delayed += usage.delayed;
            sum.minor_faults += usage.minor_faults;
            sum.major_faults += usage.major_faults;
            sum.block_delay += usage.block_delay;
            sum.waits += usage.waits;
        }
    }

    /// Adds a reading of running threads.
    pub(super) fn add_running(&mut self, reading: SamplingReading) {
        self.pid = reading.pid;
        self.period = reading.period;
        add_sites(&mut self.runs, reading.sites);
    }

    /// Name of a thread; empty if it is not known.
    pub(super) fn thread_name(&self, tid: Tid) -> &str {
        self.usage.get(&tid).map(|usage| usage.name.as_str()).unwrap_or_default()
    }

    /// Sums over all threads.
    pub(super) fn totals(&self) -> Totals {
        self.usage.values().fold(Totals { threads: self.usage.len(), ..Totals::default() }, |sum, usage| Totals {
            threads: sum.threads,
            cpu: sum.cpu + usage.cpu,
            delayed: sum.delayed + usage.delayed,
            minor_faults: sum.minor_faults + usage.minor_faults,
            major_faults: sum.major_faults + usage.major_faults,
            block_delay: sum.block_delay + usage.block_delay,
            looks: sum.looks + usage.looks,
            rounds: sum.rounds.max(usage.looks),
        })
    }

    /// Divides the looks at all threads among the hypotheses.
    pub(super) fn parts(&self) -> Vec<Part> {
        let faults_fit = self.faults_fit();
        let mut waits: HashMap<Tid, Vec<(&SampledSite, u64)>> = HashMap::new();
        self.waits.iter().for_each(|(site, samples)| waits.entry(site.tid).or_default().push((site, *samples)));
        let mut runs: HashMap<Tid, Vec<(&SampledSite, u64)>> = HashMap::new();
        self.runs.iter().for_each(|(site, samples)| runs.entry(site.tid).or_default().push((site, *samples)));
        let mut parts = Vec::new();
        let rounds = self.totals().rounds;
        for usage in self.usage.values().filter(|usage| usage.looks > 0) {
            let (running, waiting) = self.divided(usage, rounds);
            let of_thread = waits.get(&usage.tid).map(Vec::as_slice).unwrap_or_default();
            waiting_parts(usage, of_thread, waiting, &mut parts);
            let of_thread = runs.get(&usage.tid).map(Vec::as_slice).unwrap_or_default();
            running_parts(usage, of_thread, (running, faults_fit), &mut parts);
        }
        parts
    }

    /// Time of a thread on a processor, and time in which it waited, in looks. The kernel's clocks are more exact than looks, which come when the
    /// engine has a processor. Time in which the thread was ready and had no processor is in neither.
    fn divided(&self, usage: &ThreadUsage, rounds: u64) -> (f64, f64) {
        let looks = usage.looks as f64;
        // A thread that began later had fewer looks.
        let present = self.span.as_secs_f64() * looks / rounds.max(1) as f64;
        let (cpu, delayed) = (usage.cpu.as_secs_f64(), usage.delayed.as_secs_f64());
        if cpu + delayed <= 0.0 || present <= 0.0 {
            return (usage.running as f64, looks - usage.running.min(usage.looks) as f64);
        }
        let running = (cpu / present).min(1.0);
        let waiting = ((present - cpu - delayed) / present).clamp(0.0, 1.0);
        (looks * running, looks * waiting)
    }

    /// Number of samples of running threads.
    pub(super) fn run_samples(&self) -> u64 {
        self.runs.values().sum()
    }

    /// Whether the page faults that the kernel counted explain the time in the kernel outside of system calls.
    fn faults_fit(&self) -> bool {
        let faulting = self.runs.iter().filter(|(site, _)| site.mode == SampledMode::Fault);
        let samples: u64 = faulting.map(|(_, samples)| samples).sum();
        let time = self.period.as_secs_f64() * samples as f64;
        let Totals { minor_faults, major_faults, .. } = self.totals();
        // A major fault waits for a disk, and a sample of it may be at any time of that.
        major_faults > 0 || time <= FAULT_MAX.as_secs_f64() * minor_faults as f64
    }
}

fn add_sites(sums: &mut HashMap<SampledSite, u64>, sites: Vec<SampledSite>) {
    for site in sites {
        let samples = site.samples;
        *sums.entry(SampledSite { samples: 0, ..site }).or_default() += samples;
    }
}

/// Usage of a thread that has used nothing.
pub(super) fn nothing(tid: Tid) -> ThreadUsage {
    ThreadUsage {
        tid,
        name: String::new(),
        looks: 0,
        running: 0,
        missed: 0,
        cpu: Duration::ZERO,
        system: Duration::ZERO,
        delayed: Duration::ZERO,
        minor_faults: 0,
        major_faults: 0,
        block_delay: Duration::ZERO,
        waits: 0,
    }
}

/// The parts of a thread's waits, which took the time of `waiting` looks. A look that found the thread waiting, but had no sample, counts for the waits that have samples.
fn waiting_parts(usage: &ThreadUsage, sites: &[(&SampledSite, u64)], waiting: f64, parts: &mut Vec<Part>) {
    let seen: u64 = sites.iter().map(|(_, samples)| samples).sum();
    let per_sample = if seen == 0 { 0.0 } else { waiting / seen as f64 };
    let may_lack_work = |site: &SampledSite| matches!(causes::cause(site), Cause::Worker | Cause::Input);
    let as_worker: u64 = sites.iter().filter(|(site, _)| may_lack_work(site)).map(|(_, samples)| samples).sum();
    let is_worker = as_worker as f64 * per_sample >= WORKER * usage.looks as f64;
    // The thread did not go on in the whole time.
    let is_still = usage.waits == 0 && usage.running == 0;
    for (site, samples) in sites {
        let speaks_for = match causes::cause(site) {
            Cause::Idle => Some(Hypothesis::Idle),
            Cause::Worker | Cause::Input if is_worker || is_still => Some(Hypothesis::Idle),
            Cause::Worker => Some(Hypothesis::Threads),
            Cause::Input => Some(Hypothesis::InputOutput),
            Cause::Of(_) if is_still && site.mode == SampledMode::Waiting => Some(Hypothesis::Idle),
            Cause::Of(hypothesis) => Some(hypothesis),
            Cause::Other => None,
        };
        // A thread that never gets a lock is parked on purpose, as idle threads of redis are, or in a deadlock. Looks cannot tell which.
        let is_lock = causes::cause(site) == Cause::Of(Hypothesis::Locks);
        parts.push(Part {
            tid: usage.tid,
            speaks_for,
            function: causes::charged(site).cloned(),
            caller: None,
            call: site.call.clone(),
            object: object_name(site),
            inferred: is_lock && causes::is_inferred(site),
            parked: is_lock && is_still,
            kernel: false,
            samples: *samples,
            looks: *samples as f64 * per_sample,
        });
    }
    if seen == 0 && waiting > 0.0 {
        parts.push(unknown(usage.tid, None, waiting));
    }
}

/// The parts of a thread's time on a processor, which is that of `running` looks.
fn running_parts(
    usage: &ThreadUsage,
    sites: &[(&SampledSite, u64)],
    (running, faults_fit): (f64, bool),
    parts: &mut Vec<Part>,
) {
    let seen: u64 = sites.iter().map(|(_, samples)| samples).sum();
    if seen == 0 && running > 0.0 {
        parts.push(unknown(usage.tid, Some(Hypothesis::Processor), running));
    }
    for (site, samples) in sites {
        let speaks_for = match causes::cause(site) {
            _ if site.mode == SampledMode::Fault && !faults_fit => Hypothesis::Processor,
            Cause::Of(hypothesis) => hypothesis,
            Cause::Idle | Cause::Worker | Cause::Input | Cause::Other => Hypothesis::Processor,
        };
        let function = match speaks_for {
            Hypothesis::Processor => causes::running(site),
            _ => causes::charged(site),
        };
        // Of a function of a library, the caller in the program tells more than the next one.
        let charged = causes::charged(site).filter(|charged| Some(*charged) != function);
        let next = site.functions.iter().skip_while(|f| Some(*f) != function).nth(1);
        parts.push(Part {
            tid: usage.tid,
            speaks_for: Some(speaks_for),
            function: function.cloned(),
            caller: charged.or(next).filter(|_| function.is_some()).cloned(),
            call: site.functions.first().map(|f| f.function.clone()).unwrap_or_default(),
            object: None,
            inferred: false,
            parked: false,
            kernel: site.mode != SampledMode::Program,
            samples: *samples,
            looks: running * *samples as f64 / seen as f64,
        });
    }
}

/// A part of which only the hypothesis is known.
fn unknown(tid: Tid, speaks_for: Option<Hypothesis>, looks: f64) -> Part {
    let (function, caller, object) = (None, None, None);
    let (call, inferred, parked, kernel, samples) = (String::new(), false, false, false, 0);
    Part { tid, speaks_for, function, caller, call, object, inferred, parked, kernel, samples, looks }
}

fn object_name(site: &SampledSite) -> Option<ObjectName> {
    let object = site.object.as_ref()?;
    Some(match object.kind {
        WaitedKind::Futex if causes::is_mutex(site) => ObjectName::Mutex(object.address),
        WaitedKind::Futex => ObjectName::Futex(object.address),
        WaitedKind::Socket => ObjectName::Socket(object.peer.clone()),
        WaitedKind::File | WaitedKind::Device | WaitedKind::Pipe | WaitedKind::Anonymous => {
            ObjectName::File(object.name.clone())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{observed, on, run, usage, wait};
    use super::*;

    fn sums(observation: &Observation) -> BTreeMap<Option<Hypothesis>, u64> {
        let mut sums = BTreeMap::new();
        for part in observation.parts() {
            *sums.entry(part.speaks_for).or_default() += part.looks.round() as u64;
        }
        sums
    }

    #[test]
    fn all_looks_are_divided() {
        let waits = vec![wait(1, "nanosleep", &["m:f"], 30), wait(1, "exit_group", &[], 10)];
        let runs = vec![
            run(1, SampledMode::Program, &["m:g"], 75),
            run(1, SampledMode::SystemCall, &["libc.so.6:munmap", "m:h"], 25),
        ];
        let mut of = usage(1, 100, 40, 5);
        of.missed = 20;
        let found = sums(&observed(vec![of], waits, runs));
        // The 20 looks without a sample are divided as the others.
        let expected = [
            (None, 15),
            (Some(Hypothesis::Processor), 30),
            (Some(Hypothesis::Memory), 10),
            (Some(Hypothesis::Sleeps), 45),
        ];
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn time_without_a_processor_speaks_for_nothing() {
        let waits = || vec![wait(1, "fsync", &["m:f"], 10)];
        let delayed = Duration::from_millis(700);
        let of = ThreadUsage { cpu: Duration::from_millis(100), delayed, ..usage(1, 100, 90, 5) };
        let found = [(Some(Hypothesis::Processor), 10), (Some(Hypothesis::Disk), 20)].into();
        assert_eq!(sums(&observed(vec![of], waits(), vec![])), found);
        // Without the kernel's clocks, looks tell it.
        let of = ThreadUsage { cpu: Duration::ZERO, ..usage(1, 100, 90, 5) };
        let found = [(Some(Hypothesis::Processor), 90), (Some(Hypothesis::Disk), 10)].into();
        assert_eq!(sums(&observed(vec![of], waits(), vec![])), found);
    }

    #[test]
    fn threads_that_only_wait_for_input_from_a_pipe_are_idle() {
        let reads = |samples| vec![on(WaitedKind::Pipe, wait(1, "read", &["m:f"], samples))];
        let idle = [(Some(Hypothesis::Idle), 95), (Some(Hypothesis::Processor), 5)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 5, 9)], reads(95), vec![])), idle);
        let fed = [(Some(Hypothesis::InputOutput), 60), (Some(Hypothesis::Processor), 40)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 40, 9)], reads(60), vec![])), fed);
    }

    #[test]
    fn threads_that_do_nothing_in_the_whole_time_are_idle() {
        let waits = || vec![on(WaitedKind::Socket, wait(1, "read", &["m:f"], 100))];
        assert_eq!(sums(&observed(vec![usage(1, 100, 0, 0)], waits(), vec![])), [(Some(Hypothesis::Idle), 100)].into());
        let reads = [(Some(Hypothesis::InputOutput), 100)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 0, 3)], waits(), vec![])), reads);
        let lock = || vec![wait(1, "futex", &["libc.so.6:pthread_mutex_lock"], 100)];
        let observation = observed(vec![usage(1, 100, 0, 0)], lock(), vec![]);
        assert_eq!(sums(&observation), [(Some(Hypothesis::Idle), 100)].into());
        assert!(observation.parts().iter().all(|part| part.parked), "parked or in a deadlock");
        let locks = [(Some(Hypothesis::Locks), 100)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 0, 3)], lock(), vec![])), locks);
    }

    #[test]
    fn a_worker_without_work_is_idle() {
        let waits = |n| vec![wait(1, "futex", &["libc.so.6:pthread_cond_wait", "m:work"], n)];
        let idle = [(Some(Hypothesis::Idle), 95), (Some(Hypothesis::Processor), 5)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 5, 9)], waits(95), vec![])), idle);
        let waiting = [(Some(Hypothesis::Threads), 60), (Some(Hypothesis::Processor), 40)].into();
        assert_eq!(sums(&observed(vec![usage(1, 100, 40, 9)], waits(60), vec![])), waiting);
    }

    #[test]
    fn faults_that_the_kernel_did_not_count_are_interrupts() {
        let runs = || vec![run(1, SampledMode::Fault, &["m:touch"], 100)];
        let of = |minor_faults| ThreadUsage { minor_faults, ..usage(1, 100, 100, 0) };
        let memory = [(Some(Hypothesis::Memory), 100)].into();
        assert_eq!(sums(&observed(vec![of(5000)], vec![], runs())), memory);
        let busy = [(Some(Hypothesis::Processor), 100)].into();
        assert_eq!(sums(&observed(vec![of(5)], vec![], runs())), busy);
    }
}
