//! Whole stacks below functions, by samples: the kernel samples threads that run, and the engine looks at threads that wait. Shares are of the
//! time in a function, not of its calls. A stack on which little time passes may have no sample.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_api::{ModulePlace, NamedFunction, SampledState, SamplingMethod, SamplingReading, SamplingRequest};
use ingraft_model::Pid;
use tokio::task::JoinHandle;

use super::{call_name, source};
use crate::args::Format;
use crate::conn::{Client, RequestTarget};
use crate::exit::Failure;
use crate::measure::TargetMeasurement;
use crate::objects::RecordedFunction;
use crate::objects::stacks::{StackFrame, StackObject};
use crate::output::number::{percent, plural, share_variance};
use crate::output::progress::Progress;
use crate::output::{DIM, HEADING};

/// Time between two readings of the samples.
const INTERVAL: Duration = Duration::from_millis(100);
/// Largest number of stacks of a target. The samples of further ones count as those of a stack of which nothing is known.
const STACKS_MAX: usize = 1 << 16;
/// The states that are sampled.
const STATES: [SampledState; 2] = [SampledState::Running, SampledState::Waiting];

/// A stack below a function: the calls, innermost first, and whether these are all.
type StackKey = (Vec<ModulePlace>, bool);

/// Number and time of samples of threads that run, and of those that wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StackTimes {
    samples: [u64; 2],
    time: [Duration; 2],
}

impl StackTimes {
    fn whole(&self) -> f64 {
        self.time.iter().sum::<Duration>().as_secs_f64()
    }
}

/// The samples of a target by function and stack.
#[derive(Debug, Default)]
struct StackSums {
    functions: HashMap<NamedFunction, HashMap<StackKey, StackTimes>>,
    stacks: usize,
    /// Whether the kernel has taken the samples of threads that run.
    by_kernel: bool,
    /// Sentences on what the samples lack.
    notes: Vec<String>,
}

impl StackSums {
    fn add(&mut self, state: SampledState, reading: SamplingReading) {
        let number = usize::from(state == SampledState::Waiting);
        self.by_kernel |= reading.method == SamplingMethod::Perf;
        self.note(reading.note);
        for stack in reading.stacks {
            let of = self.functions.entry(stack.function).or_default();
            let mut key = (stack.frames, stack.whole);
            if !of.contains_key(&key) {
                if self.stacks >= STACKS_MAX {
                    key = (Vec::new(), false);
                }
                self.stacks += 1;
            }
            let times = of.entry(key).or_default();
            times.samples[number] += stack.samples;
            let samples = u32::try_from(stack.samples).unwrap_or(u32::MAX);
            times.time[number] = times.time[number].saturating_add(reading.period.saturating_mul(samples));
        }
    }

    fn note(&mut self, note: String) {
        if !note.is_empty() && !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// The records of the stacks below a function, at most `most`, those with the largest shares first.
    fn records(&self, (pid, host): (Pid, Option<&str>), function: &NamedFunction, most: usize) -> Vec<StackObject> {
        let Some(stacks) = self.functions.get(function) else { return Vec::new() };
        let mut all: Vec<_> = stacks.iter().collect();
        all.sort_by_cached_key(|((frames, whole), times)| {
            let frames: Vec<_> = frames.iter().map(|frame| (frame.module.clone(), frame.at)).collect();
            (Reverse(times.time.iter().sum::<Duration>()), frames, *whole)
        });
        let sum = all.iter().fold(StackTimes::default(), |sum, (_, times)| StackTimes {
            samples: [0, 1].map(|i| sum.samples[i] + times.samples[i]),
            time: [0, 1].map(|i| sum.time[i].saturating_add(times.time[i])),
        });
        let record = |((frames, whole), times): &(&StackKey, &StackTimes)| {
            let (share, share_error) = share(times, &sum);
            let [samples, looks] = times.samples;
            let sampled = if self.by_kernel { "sampled" } else { "looked at" };
            StackObject {
                id: RecordedFunction::new(function.clone(), pid, host.map(str::to_owned)),
                stack: frames.iter().map(StackFrame::from).collect(),
                whole: *whole,
                share,
                share_error,
                samples,
                looks,
                how: BTreeMap::from([("share", "derived"), ("samples", sampled), ("looks", "looked at")]),
            }
        };
        all.iter().take(most).map(record).collect()
    }
}

/// The share of a stack in the time of all stacks of a function, and its standard error. Each sample stands for the time between two samples
/// of its kind.
fn share(of: &StackTimes, sum: &StackTimes) -> (f64, f64) {
    let whole = sum.whole();
    if whole <= 0.0 {
        return (0.0, 0.0);
    }
    let share = (of.whole() / whole).min(1.0);
    if share <= 0.0 || share >= 1.0 {
        return (share, share_variance(share, sum.samples.iter().sum::<u64>() as f64).sqrt());
    }
    let variance: f64 = (0..2)
        .filter(|i| sum.samples[*i] > 0)
        .map(|i| {
            let (n, all) = (of.samples[i] as f64, sum.samples[i] as f64);
            let period = sum.time[i].as_secs_f64() / all;
            period * period * (n * (1.0 - share).powi(2) + (all - n) * share * share)
        })
        .sum();
    (share, variance.sqrt() / whole)
}

/// The sampling of one target.
struct StackSampling {
    pid: Pid,
    host: Option<String>,
    sums: Arc<Mutex<StackSums>>,
    tasks: Vec<JoinHandle<()>>,
}

impl Drop for StackSampling {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// The samplings of all targets of a command.
pub(super) struct StackSamplings {
    functions: Vec<String>,
    period: Duration,
    targets: Vec<StackSampling>,
}

impl StackSamplings {
    /// No samplings yet. Stacks below the functions that these patterns match are counted, each thread with this time between two samples.
    pub(super) fn new(functions: Vec<String>, period: Duration) -> Self {
        StackSamplings { functions, period, targets: Vec::new() }
    }

    /// Begins to sample the targets that are not sampled yet.
    pub(super) fn follow(&mut self, sites: &[TargetMeasurement]) {
        for site in sites {
            let (pid, host) = (Pid(site.pid()), site.host());
            if site.ended || self.targets.iter().any(|target| (target.pid, &target.host) == (pid, &host)) {
                continue;
            }
            let sums = Arc::default();
            let request = |state| SamplingRequest {
                target: RequestTarget::Pid(pid.0).spec(),
                patterns: self.functions.clone(),
                threads: Vec::new(),
                state,
                period: self.period,
                stacks: true,
                sites: false,
                calls: false,
            };
            let start = |state| tokio::spawn(sample(site.client().clone(), request(state), Arc::clone(&sums)));
            let tasks = STATES.into_iter().map(start).collect();
            self.targets.push(StackSampling { pid, host, sums, tasks });
        }
    }

    /// The stacks below a function, at most `most`, those with the largest shares first.
    pub(super) fn records(
        &self,
        pid: i32,
        host: Option<&str>,
        function: &NamedFunction,
        most: usize,
    ) -> Vec<StackObject> {
        let of = self.targets.iter().find(|target| target.pid.0 == pid && target.host.as_deref() == host);
        of.map_or_else(Vec::new, |of| lock(&of.sums).records((of.pid, host), function, most))
    }

    /// Sentences on what the samples lack, each once.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.targets.iter().flat_map(|target| lock(&target.sums).notes.clone()).collect();
        notes.sort_unstable();
        notes.dedup();
        notes
    }
}

fn lock(sums: &Mutex<StackSums>) -> MutexGuard<'_, StackSums> {
    sums.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds the samples of a target up until the target ends.
async fn sample(client: Client, request: SamplingRequest, sums: Arc<Mutex<StackSums>>) {
    let state = request.state;
    let taken = async {
        let mut progress = Progress::new("reading the program", Format::Json);
        let mut stream = client.sample(request, INTERVAL, &mut progress).await?;
        drop(progress);
        while let Some(reading) = stream.next(None).await? {
            lock(&sums).add(state, reading);
        }
        Ok::<(), Failure>(())
    };
    if let Err(failure) = taken.await {
        let threads = if state == SampledState::Running { "that run" } else { "that wait" };
        lock(&sums).note(format!("stacks of threads {threads} are not sampled: {}", failure.what));
    }
}

/// The stacks below a function for people.
pub(super) fn text(function: &str, stacks: &[StackObject], hidden: usize) -> String {
    let (samples, looks) = stacks.iter().fold((0, 0), |(s, l), stack| (s + stack.samples, l + stack.looks));
    if stacks.is_empty() {
        return format!(
            "{HEADING}stacks of {function}{HEADING:#}: no sample met it, so its calls are too short or too rare for samples; \
             the numbers of its callers are exact\n"
        );
    }
    let mut text = format!(
        "{HEADING}stacks of {function}{HEADING:#}: shares of the time in it, by {} of running and {} at waiting threads\n",
        plural(samples, "sample", "samples"),
        plural(looks, "look", "looks")
    );
    // Writing to a String never fails.
    for stack in stacks {
        let shares = format!("{:>6} ± {:<5}", percent(100.0 * stack.share), percent(100.0 * stack.share_error));
        let mut lines: Vec<String> = stack.stack.iter().map(line).collect();
        if !stack.whole {
            let what = if lines.is_empty() { "its callers are not known" } else { "further callers are not known" };
            lines.push(format!("{DIM}{what}{DIM:#}"));
        } else if lines.is_empty() {
            lines.push(format!("{DIM}no caller{DIM:#}"));
        }
        for (number, line) in lines.iter().enumerate() {
            let begin = if number == 0 { shares.as_str() } else { "" };
            let _ = writeln!(text, "  {begin:<14}  {line}");
        }
    }
    if hidden > 0 {
        let _ = writeln!(text, "{DIM}and {}{DIM:#}", plural(hidden as u64, "more stack", "more stacks"));
    }
    text
}

/// A call on a stack for people.
fn line(frame: &StackFrame) -> String {
    let name = call_name(frame.function.as_deref(), &frame.inlined);
    let name = name.unwrap_or_else(|| frame.module.clone());
    let at = frame.source.as_deref().map_or_else(String::new, |at| format!("  {DIM}{}{DIM:#}", source(at)));
    // Names come from other processes, so control characters, which could move the cursor, become `?`.
    let name: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    format!("{name}+{}{at}", frame.call_site)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::StackSamples;
    use ingraft_model::Svma;

    use super::*;

    fn function(name: &str, offset: u64) -> NamedFunction {
        NamedFunction { module: "m".to_owned(), function: name.to_owned(), offset: Svma(offset) }
    }

    fn frame(name: &str, at: u64, inlined: &[&str]) -> ModulePlace {
        ModulePlace {
            module: "m".to_owned(),
            at: Svma(at),
            function: Some(function(name, 0x100)),
            source: Some(("dir/a.c".into(), at)),
            inlined: inlined.iter().map(|name| (*name).to_owned()).collect(),
            ..ModulePlace::default()
        }
    }

    fn reading(period: u64, stacks: &[(&[ModulePlace], bool, u64)]) -> SamplingReading {
        let stack = |(frames, whole, samples): &(&[ModulePlace], bool, u64)| StackSamples {
            function: function("f", 0x80),
            frames: frames.to_vec(),
            whole: *whole,
            samples: *samples,
        };
        let period = Duration::from_millis(period);
        SamplingReading { period, stacks: stacks.iter().map(stack).collect(), ..SamplingReading::default() }
    }

    #[test]
    fn shares_are_of_running_and_waiting_time() {
        let (a, main) = (frame("a", 0x110, &["helper"]), frame("main", 0x120, &[]));
        let way = [a, main.clone()];
        let mut sums = StackSums::default();
        sums.add(SampledState::Running, reading(2, &[(&way, true, 30), (&[main], true, 10)]));
        sums.add(SampledState::Running, reading(2, &[(&way, true, 10), (&[], false, 10)]));
        sums.add(SampledState::Waiting, reading(4, &[(&way, true, 20)]));
        let found = sums.records((Pid(7), None), &function("f", 0x80), 10);
        let shares: Vec<_> =
            found.iter().map(|s| (s.stack.len(), (1e3 * s.share).round(), s.samples, s.looks, s.whole)).collect();
        assert_eq!(shares, [(2, 800.0, 40, 20, true), (0, 100.0, 10, 0, false), (1, 100.0, 10, 0, true)]);
        let only = StackTimes { samples: [25, 0], time: [Duration::from_secs(25), Duration::ZERO] };
        let all = StackTimes { samples: [100, 0], time: [Duration::from_secs(100), Duration::ZERO] };
        let (share, error) = share(&only, &all);
        assert!((share - 0.25).abs() < 1e-12 && (error - (0.25_f64 * 0.75 / 100.0).sqrt()).abs() < 1e-12, "binomial");
        let one = StackTimes { samples: [1, 0], time: [Duration::from_millis(2), Duration::ZERO] };
        let (share, error) = super::share(&one, &one);
        assert!(share >= 1.0 && error > 0.2, "one sample does not tell how often another stack is seen: {error}");
        expect![[r#"
            stacks of f: shares of the time in it, by 60 samples of running and 20 looks at waiting threads
                80 % ± 4.2 %  helper (inlined into a)+0x10  a.c:272
                              main+0x20  a.c:288
                10 % ± 3.1 %  its callers are not known
                10 % ± 3.1 %  main+0x20  a.c:288
            and 2 more stacks
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text("f", &found, 2)).to_string());
        assert!(sums.records((Pid(7), None), &function("g", 0), 10).is_empty());
        assert!(text("g", &[], 0).contains("no sample met it"));
    }
}
