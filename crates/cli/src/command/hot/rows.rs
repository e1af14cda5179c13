//! The samples of a target so far, added up by function, and the shares that follow from them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ingraft_api::{NamedFunction, NamedSamples, SampledState, SamplingMethod, SamplingReading};
use ingraft_model::{Pid, Tid};

use crate::args::HotSort;
use crate::objects::RecordedFunction;
use crate::objects::hot::{HotObject, NamedShare, SamplesObject, ThreadShare};
use crate::output::number::share_variance;

/// Time after which samples count half as recent ones.
const HALF_LIFE: Duration = Duration::from_secs(3);

/// The samples of one function so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct FunctionSum {
    own: u64,
    total: u64,
    kernel: u64,
    /// Time that `total` stands for.
    time: Duration,
    /// Recent samples in the function itself; those of [`HALF_LIFE`] ago count half.
    recent: f64,
    waits: BTreeMap<String, u64>,
}

/// The samples of a target so far.
#[derive(Clone, Debug, Default)]
pub(super) struct HotRows {
    state: SampledState,
    functions: HashMap<NamedFunction, FunctionSum>,
    threads: BTreeMap<Tid, (String, u64)>,
    elsewhere: BTreeMap<String, u64>,
    /// Sums over all readings; lists, period and notes of the latest one.
    sum: SamplingReading,
}

impl HotRows {
    /// No samples yet, of threads in this state.
    pub(super) fn new(state: SampledState) -> Self {
        HotRows { state, ..HotRows::default() }
    }

    /// Adds a reading.
    pub(super) fn add(&mut self, reading: SamplingReading) {
        let SamplingReading { functions, threads, elsewhere, .. } = &reading;
        let fade = 0.5_f64.powf(reading.span.as_secs_f64() / HALF_LIFE.as_secs_f64());
        self.functions.values_mut().for_each(|sum| sum.recent *= fade);
        for function in functions {
            let sum = self.functions.entry(function.function.clone()).or_default();
            sum.own += function.own;
            sum.recent += function.own as f64;
            sum.total += function.total;
            sum.kernel += function.kernel;
            let samples = u32::try_from(function.total).unwrap_or(u32::MAX);
            sum.time = sum.time.saturating_add(reading.period.saturating_mul(samples));
            add_all(&mut sum.waits, &function.waits);
        }
        for thread in threads {
            let (name, samples) = self.threads.entry(thread.tid).or_default();
            name.clone_from(&thread.name);
            *samples += thread.samples;
        }
        add_all(&mut self.elsewhere, elsewhere);
        let before = std::mem::take(&mut self.sum);
        self.sum = SamplingReading {
            span: before.span + reading.span,
            cpu: before.cpu + reading.cpu,
            looks: before.looks + reading.looks,
            samples: before.samples + reading.samples,
            kernel: before.kernel + reading.kernel,
            cut: before.cut + reading.cut,
            lost: before.lost + reading.lost,
            throttled: before.throttled + reading.throttled,
            functions: Vec::new(),
            threads: Vec::new(),
            elsewhere: Vec::new(),
            ..reading
        };
    }

    /// Sums over all readings; the lists are empty.
    pub(super) fn sum(&self) -> &SamplingReading {
        &self.sum
    }

    /// Recent samples in each function itself; older ones count less.
    pub(super) fn recent_samples(&self) -> impl Iterator<Item = (&NamedFunction, f64)> {
        self.functions.iter().map(|(function, sum)| (function, sum.recent))
    }

    /// Number that shares are of: all samples, or for waiting threads, all looks.
    pub(super) fn base(&self) -> u64 {
        match self.state {
            SampledState::Running => self.sum.samples,
            SampledState::Waiting => self.sum.looks,
        }
    }

    fn sum_of(&self, function: &NamedFunction) -> FunctionSum {
        self.functions.get(function).cloned().unwrap_or_default()
    }

    /// The row of a function, with the shares of these samples.
    fn row(&self, function: &NamedFunction, (running, waiting): (&HotRows, &HotRows), host: Option<&str>) -> HotObject {
        let (sum, base) = (self.sum_of(function), self.base());
        let sampled = match self.sum.method {
            SamplingMethod::Perf => "sampled",
            SamplingMethod::Held | SamplingMethod::Looks => "looked at",
        };
        let (runs, waits) = (running.sum_of(function), waiting.sum_of(function));
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cpu_ns = (!running.sum.span.is_zero()).then(|| ns(runs.time));
        let wall_ns = (!waiting.sum.span.is_zero()).then(|| ns(waits.time.saturating_add(runs.time)));
        let kernel = share(runs.kernel, runs.own);
        let mut how = BTreeMap::from([("self", sampled), ("total", sampled)]);
        how.extend(cpu_ns.map(|_| ("cpu_ns", "derived")));
        how.extend(wall_ns.map(|_| ("wall_ns", "derived")));
        HotObject {
            id: RecordedFunction::new(function.clone(), self.sum.pid, host.map(str::to_owned)),
            own: share(sum.own, base),
            self_error: error(sum.own, base),
            total: share(sum.total, base),
            total_error: error(sum.total, base),
            self_samples: sum.own,
            total_samples: sum.total,
            calls: None,
            calls_per_s: None,
            mean_ns: None,
            p50_ns: None,
            p90_ns: None,
            p99_ns: None,
            kernel: (running.sum.with_kernel && runs.own > 0).then_some(kernel),
            wall_ns,
            cpu_ns,
            waits: shares(&waits.waits, waits.total),
            how,
        }
    }

    /// The record of all samples.
    pub(super) fn samples(&self, host: Option<&str>) -> SamplesObject {
        let sum = &self.sum;
        let runs = self.state == SampledState::Running;
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let mut threads: Vec<ThreadShare> = self
            .threads
            .iter()
            .map(|(tid, (name, samples))| ThreadShare {
                tid: tid.0,
                name: Some(name.clone()).filter(|name| !name.is_empty()),
                samples: *samples,
            })
            .collect();
        threads.sort_by_key(|thread| Reverse(thread.samples));
        let Pid(pid) = sum.pid;
        SamplesObject {
            host: host.map(str::to_owned),
            pid,
            time_ns: sum.time_ns,
            span_ns: ns(sum.span),
            cpu_ns: ns(sum.cpu),
            period_ns: ns(sum.period),
            state: if runs { "running" } else { "waiting" },
            method: match sum.method {
                SamplingMethod::Perf => "perf",
                SamplingMethod::Held => "held",
                SamplingMethod::Looks => "looks",
            },
            base: self.base(),
            samples: sum.samples,
            kernel: (runs && sum.with_kernel).then(|| share(sum.kernel, sum.samples)),
            cut: sum.cut,
            lost: sum.lost,
            throttled: sum.throttled,
            unsampled_threads: sum.unsampled_threads as u64,
            looks: sum.looks,
            waits: if runs { 0 } else { sum.samples },
            note: Some(sum.note.clone()).filter(|note| !note.is_empty()),
            elsewhere: shares(&self.elsewhere, self.base()),
            threads,
        }
    }
}

/// The functions with samples of threads that run or wait, sorted. Shares are of the samples in one state.
pub(super) fn functions(
    running: &HotRows,
    waiting: &HotRows,
    state: SampledState,
    sort: HotSort,
    host: Option<&str>,
) -> Vec<HotObject> {
    let (main, other) = if state == SampledState::Running { (running, waiting) } else { (waiting, running) };
    let more = other.functions.keys().filter(|function| !main.functions.contains_key(*function));
    let mut all: Vec<(&NamedFunction, FunctionSum)> =
        main.functions.keys().chain(more).map(|function| (function, main.sum_of(function))).collect();
    all.sort_by_cached_key(|(function, sum)| {
        let samples = match sort {
            HotSort::Own => (sum.own, sum.total),
            HotSort::Total => (sum.total, sum.own),
        };
        let by_time = other.sum_of(function).time;
        (Reverse(samples), Reverse(by_time), function.module.clone(), function.offset, function.function.clone())
    });
    all.into_iter().map(|(function, _)| main.row(function, (running, waiting), host)).collect()
}

fn add_all(sums: &mut BTreeMap<String, u64>, more: &[NamedSamples]) {
    for NamedSamples { name, samples } in more {
        *sums.entry(name.clone()).or_default() += samples;
    }
}

/// Names with their shares, the largest first.
fn shares(sums: &BTreeMap<String, u64>, base: u64) -> Vec<NamedShare> {
    let mut all: Vec<_> = sums.iter().collect();
    all.sort_by_key(|(_, samples)| Reverse(**samples));
    all.into_iter().map(|(name, samples)| NamedShare { name: name.clone(), share: share(*samples, base) }).collect()
}

/// A share from 0 to 1.
fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Standard error of a share of samples.
fn error(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { share_variance(share(part, whole).min(1.0), whole as f64).sqrt() }
}

#[cfg(test)]
mod tests {
    use ingraft_api::{SampledFunction, SampledThread};
    use ingraft_model::Svma;

    use super::*;

    fn function(name: &str, own: u64, total: u64, kernel: u64) -> SampledFunction {
        let function = NamedFunction { module: "m".to_owned(), function: name.to_owned(), offset: Svma(16) };
        SampledFunction { function, own, total, kernel, waits: Vec::new() }
    }

    fn reading(functions: Vec<SampledFunction>) -> SamplingReading {
        SamplingReading {
            pid: Pid(7),
            span: Duration::from_secs(1),
            cpu: Duration::from_millis(900),
            period: Duration::from_millis(2),
            with_kernel: true,
            samples: functions.iter().map(|f| f.own).sum(),
            kernel: functions.iter().map(|f| f.kernel).sum(),
            functions,
            threads: vec![SampledThread { tid: Tid(8), name: "w".to_owned(), samples: 50, kernel: 0 }],
            ..SamplingReading::default()
        }
    }

    #[test]
    fn readings_are_added_up() {
        let mut rows = HotRows::new(SampledState::Running);
        rows.add(reading(vec![function("f", 70, 70, 7), function("main", 0, 100, 0), function("g", 30, 30, 0)]));
        rows.add(reading(vec![function("f", 60, 60, 6), function("main", 10, 100, 0), function("g", 30, 30, 0)]));
        let waiting = HotRows::new(SampledState::Waiting);
        let found = |sort, host| functions(&rows, &waiting, SampledState::Running, sort, host);
        let own = found(HotSort::Own, None);
        let names: Vec<&str> = own.iter().map(|row| row.id.function.as_str()).collect();
        assert_eq!(names, ["f", "g", "main"]);
        assert_eq!((own[0].own, own[0].kernel, own[0].cpu_ns), (0.65, Some(0.1), Some(260_000_000)));
        assert!((own[0].self_error - (0.65_f64 * 0.35 / 200.0).sqrt()).abs() < 1e-12);
        assert_eq!((own[2].total, own[2].wall_ns), (1.0, None));
        let of_all = (201.0_f64 / 203.0).sqrt() / 202.0;
        assert!((own[2].total_error - of_all).abs() < 1e-12, "all of 200 samples do not prove a share of 1");
        let total = found(HotSort::Total, Some("h"));
        assert_eq!((total[0].id.function.as_str(), total[0].id.host.as_deref()), ("main", Some("h")));
        let samples = rows.samples(None);
        assert_eq!((samples.samples, samples.base, samples.span_ns), (200, 200, 2_000_000_000));
        assert_eq!((samples.kernel, samples.threads[0].samples), (Some(0.065), 100));
    }

    #[test]
    fn waits_are_shares_of_all_looks() {
        let mut rows = HotRows::new(SampledState::Waiting);
        let waits = |of: &[(&str, u64)]| {
            of.iter().map(|(name, samples)| NamedSamples { name: (*name).to_owned(), samples: *samples }).collect()
        };
        let waiting = SampledFunction { waits: waits(&[("futex", 30), ("read", 10)]), ..function("wait", 0, 40, 0) };
        rows.add(SamplingReading {
            looks: 100,
            samples: 40,
            method: SamplingMethod::Looks,
            ..reading(vec![waiting, function("futex_wait", 40, 40, 0)])
        });
        let mut running = HotRows::new(SampledState::Running);
        running.add(reading(vec![function("wait", 0, 5, 0), function("f", 10, 10, 1)]));
        let total = functions(&running, &rows, SampledState::Waiting, HotSort::Total, None);
        let wait = total.iter().find(|row| row.id.function == "wait").expect("its row");
        assert_eq!((wait.total, wait.wall_ns, wait.cpu_ns), (0.4, Some(90_000_000), Some(10_000_000)));
        let calls: Vec<_> = wait.waits.iter().map(|w| (w.name.as_str(), w.share)).collect();
        assert_eq!(calls, [("futex", 0.75), ("read", 0.25)]);
        assert_eq!((wait.how["wall_ns"], wait.how["self"]), ("derived", "looked at"));
        let runs = functions(&running, &rows, SampledState::Running, HotSort::Own, None);
        let names: Vec<&str> = runs.iter().map(|row| row.id.function.as_str()).collect();
        assert_eq!(names, ["f", "wait", "futex_wait"], "those that only wait come last");
        assert_eq!((runs[2].own, runs[2].cpu_ns, runs[2].wall_ns), (0.0, Some(0), Some(80_000_000)));
    }

    #[test]
    fn without_samples_there_are_no_shares() {
        let rows = HotRows::new(SampledState::Running);
        let waiting = HotRows::new(SampledState::Waiting);
        assert!(functions(&rows, &waiting, SampledState::Running, HotSort::Own, None).is_empty());
        assert_eq!((share(0, 0), error(0, 0)), (0.0, 0.0));
        assert_eq!((error(0, 5), error(1, 1)), (error(5, 5), (2.0_f64 / 36.0).sqrt()));
        assert_eq!(rows.samples(None).base, 0);
    }
}
