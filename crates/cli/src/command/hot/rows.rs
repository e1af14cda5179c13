//! The samples of a target so far, added up by function, and the shares that follow from them. The samples of several targets together are
//! rows of the same kind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use ingraft_api::{NamedFunction, SampledState, SamplingMethod, SamplingReading};
use ingraft_model::{Pid, Tid};

use crate::args::HotSort;
use crate::objects::hex;
use crate::objects::hot::{HotObject, NamedShare, SampledTarget, SamplesObject, ThreadShare};
use crate::output::number::share_variance;

/// Time after which samples count half as recent ones.
const HALF_LIFE: Duration = Duration::from_secs(3);

/// The samples of one function so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct FunctionSum {
    own: u64,
    total: u64,
    /// Weights of the samples of `own` and `total`, and of those of `own` in the kernel. Each sample of one target has the weight 1.
    own_weight: f64,
    total_weight: f64,
    kernel_weight: f64,
    /// Time that `total` stands for.
    time: Duration,
    /// Recent samples in the function itself; those of [`HALF_LIFE`] ago count half.
    recent: f64,
    /// Weights of the samples of `total` by the system call in which the thread waits.
    waits: BTreeMap<String, f64>,
}

/// The samples of a target so far, or of several targets together.
#[derive(Clone, Debug, Default)]
pub(super) struct HotRows {
    state: SampledState,
    functions: HashMap<NamedFunction, FunctionSum>,
    threads: BTreeMap<Tid, (String, u64)>,
    /// Weights of the samples outside of known functions.
    elsewhere: BTreeMap<String, f64>,
    /// Sums over all readings; lists, period and notes of the latest one.
    sum: SamplingReading,
    /// Weights of all samples in the base, of the samples in the state, and of those of them in the kernel.
    weight: f64,
    sample_weight: f64,
    kernel_weight: f64,
    /// Sum of the squares of the weights in the base.
    squares: f64,
    /// Thread time that the base stands for, in seconds.
    base_time: f64,
    /// Number of targets, if there are several, and the number of processors that they used on average.
    targets: Option<usize>,
    processors: Option<f64>,
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
            sum.own_weight += function.own as f64;
            sum.recent += function.own as f64;
            sum.total += function.total;
            sum.total_weight += function.total as f64;
            sum.kernel_weight += function.kernel as f64;
            let samples = u32::try_from(function.total).unwrap_or(u32::MAX);
            sum.time = sum.time.saturating_add(reading.period.saturating_mul(samples));
            add_all(&mut sum.waits, function.waits.iter().map(|wait| (&wait.name, wait.samples as f64)));
        }
        for thread in threads {
            let (name, samples) = self.threads.entry(thread.tid).or_default();
            name.clone_from(&thread.name);
            *samples += thread.samples;
        }
        add_all(&mut self.elsewhere, elsewhere.iter().map(|place| (&place.name, place.samples as f64)));
        let base = match self.state {
            SampledState::Running => reading.samples,
            SampledState::Waiting => reading.looks,
        };
        self.weight += base as f64;
        self.squares += base as f64;
        self.sample_weight += reading.samples as f64;
        self.kernel_weight += reading.kernel as f64;
        self.base_time += base as f64 * reading.period.as_secs_f64();
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

    /// The samples of several targets together. A sample weighs as much as the time between two samples of its target, so that a target that
    /// is sampled more often has no larger share. If that time is the same everywhere, each sample has the weight 1.
    pub(super) fn together(state: SampledState, all: &[&HotRows]) -> Self {
        let mut sum = HotRows { state, targets: Some(all.len()), ..HotRows::default() };
        let base: u64 = all.iter().map(|rows| rows.base()).sum();
        let base_time: f64 = all.iter().map(|rows| rows.base_time).sum();
        // Without a sample, no weight is needed.
        let mean = if base == 0 { 1.0 } else { base_time / base as f64 };
        for rows in all {
            let period = rows.base_time / rows.base().max(1) as f64;
            sum.add_weighted(rows, if mean > 0.0 { period / mean } else { 1.0 });
        }
        // A target that goes on may have been sampled later or shorter than others. One that has ended uses no processor afterwards.
        let busy = |rows: &&HotRows| {
            let span = if rows.sum.ended.is_some() { sum.sum.span } else { rows.sum.span };
            share(rows.sum.cpu.as_secs_f64(), span.as_secs_f64())
        };
        sum.processors = Some(all.iter().map(busy).sum());
        sum.sum.pid = Pid(0);
        sum.sum.period = Duration::try_from_secs_f64(mean).unwrap_or_default();
        sum
    }

    fn add_weighted(&mut self, rows: &HotRows, weight: f64) {
        for (function, more) in &rows.functions {
            let sum = self.functions.entry(function.clone()).or_default();
            sum.own += more.own;
            sum.total += more.total;
            sum.own_weight += weight * more.own_weight;
            sum.total_weight += weight * more.total_weight;
            sum.kernel_weight += weight * more.kernel_weight;
            sum.time = sum.time.saturating_add(more.time);
            add_all(&mut sum.waits, more.waits.iter().map(|(name, waits)| (name, weight * waits)));
        }
        add_all(&mut self.elsewhere, rows.elsewhere.iter().map(|(name, samples)| (name, weight * samples)));
        self.weight += weight * rows.weight;
        self.sample_weight += weight * rows.sample_weight;
        self.kernel_weight += weight * rows.kernel_weight;
        self.squares += weight * weight * rows.squares;
        self.base_time += rows.base_time;
        let (is_first, more) = (self.sum.span.is_zero(), &rows.sum);
        let sum = &mut self.sum;
        sum.time_ns = sum.time_ns.max(more.time_ns);
        sum.span = sum.span.max(more.span);
        sum.cpu += more.cpu;
        sum.looks += more.looks;
        sum.samples += more.samples;
        sum.kernel += more.kernel;
        sum.cut += more.cut;
        sum.lost += more.lost;
        sum.throttled += more.throttled;
        sum.unsampled_threads += more.unsampled_threads;
        sum.with_kernel = more.with_kernel && (is_first || sum.with_kernel);
        if is_first || more.method != SamplingMethod::Perf {
            sum.method = more.method;
        }
        if !sum.note.contains(&more.note) {
            let separator = if sum.note.is_empty() { "" } else { "; " };
            sum.note = format!("{}{separator}{}", sum.note, more.note);
        }
    }

    /// The threads with samples.
    pub(super) fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    /// Share of the samples in the base, from 0 to 1.
    pub(super) fn sample_share(&self) -> f64 {
        share(self.sample_weight, self.weight)
    }

    /// Thread time that the samples stand for, in seconds.
    pub(super) fn sample_time(&self) -> f64 {
        self.base_time * self.sample_share()
    }

    /// Number of processors that the targets used on average.
    pub(super) fn processors(&self) -> f64 {
        let SamplingReading { cpu, span, .. } = &self.sum;
        self.processors.unwrap_or_else(|| share(cpu.as_secs_f64(), span.as_secs_f64()))
    }

    /// Processor time of a function and of all that it has called, per second.
    pub(super) fn busy(&self, function: &NamedFunction) -> Option<f64> {
        let time = self.functions.get(function)?.time;
        (!self.sum.span.is_zero()).then(|| time.as_secs_f64() / self.sum.span.as_secs_f64())
    }

    fn sum_of(&self, function: &NamedFunction) -> FunctionSum {
        self.functions.get(function).cloned().unwrap_or_default()
    }

    /// The row of a function, with the shares of these samples.
    fn row(&self, function: &NamedFunction, (running, waiting): (&HotRows, &HotRows), host: Option<&str>) -> HotObject {
        let sum = self.sum_of(function);
        let part = |weight: f64| share(weight, self.weight);
        let effective = self.weight * self.weight / self.squares.max(f64::MIN_POSITIVE);
        let sampled = match self.sum.method {
            SamplingMethod::Perf => "sampled",
            SamplingMethod::Held | SamplingMethod::Looks => "looked at",
        };
        let (runs, waits) = (running.sum_of(function), waiting.sum_of(function));
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let cpu_ns = (!running.sum.span.is_zero()).then(|| ns(runs.time));
        let wall_ns = (!waiting.sum.span.is_zero()).then(|| ns(waits.time.saturating_add(runs.time)));
        let kernel = share(runs.kernel_weight, runs.own_weight);
        let mut how = BTreeMap::from([("self", sampled), ("total", sampled)]);
        how.extend(cpu_ns.map(|_| ("cpu_ns", "derived")));
        how.extend(wall_ns.map(|_| ("wall_ns", "derived")));
        HotObject {
            of: self.target(host),
            module: function.module.clone(),
            function: function.function.clone(),
            offset: hex(function.offset.0),
            own: part(sum.own_weight),
            self_error: error(part(sum.own_weight), effective),
            total: part(sum.total_weight),
            total_error: error(part(sum.total_weight), effective),
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
            waits: shares(&waits.waits, waits.total_weight),
            how,
        }
    }

    fn target(&self, host: Option<&str>) -> SampledTarget {
        let pid = self.targets.is_none().then_some(self.sum.pid.0);
        SampledTarget { host: host.map(str::to_owned), pid, targets: self.targets }
    }

    /// The record of all samples. That of several targets together has no threads.
    pub(super) fn samples(&self, host: Option<&str>) -> SamplesObject {
        let sum = &self.sum;
        let runs = self.state == SampledState::Running;
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let mut threads: Vec<ThreadShare> = self
            .threads
            .iter()
            .map(|(tid, (name, samples))| ThreadShare {
                host: None,
                pid: None,
                tid: tid.0,
                name: Some(name.clone()).filter(|name| !name.is_empty()),
                samples: *samples,
            })
            .collect();
        threads.sort_by_key(|thread| Reverse(thread.samples));
        SamplesObject {
            of: self.target(host),
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
            kernel: (runs && sum.with_kernel).then(|| share(self.kernel_weight, self.sample_weight)),
            cut: sum.cut,
            lost: sum.lost,
            throttled: sum.throttled,
            unsampled_threads: sum.unsampled_threads as u64,
            looks: sum.looks,
            waits: if runs { 0 } else { sum.samples },
            note: Some(sum.note.clone()).filter(|note| !note.is_empty()),
            elsewhere: shares(&self.elsewhere, self.weight),
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
        // A number of microsamples has an order.
        let micro = |weight: f64| (weight * 1e6).round() as u64;
        let (own, total) = (micro(sum.own_weight), micro(sum.total_weight));
        let samples = match sort {
            HotSort::Own => (own, total),
            HotSort::Total => (total, own),
        };
        let by_time = other.sum_of(function).time;
        (Reverse(samples), Reverse(by_time), function.module.clone(), function.offset, function.function.clone())
    });
    all.into_iter().map(|(function, _)| main.row(function, (running, waiting), host)).collect()
}

fn add_all<'n>(sums: &mut BTreeMap<String, f64>, more: impl Iterator<Item = (&'n String, f64)>) {
    for (name, samples) in more {
        *sums.entry(name.clone()).or_default() += samples;
    }
}

/// Names with their shares, the largest first.
fn shares(sums: &BTreeMap<String, f64>, base: f64) -> Vec<NamedShare> {
    let mut all: Vec<_> = sums.iter().collect();
    all.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    all.into_iter().map(|(name, samples)| NamedShare { name: name.clone(), share: share(*samples, base) }).collect()
}

/// A share from 0 to 1.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Standard error of a share of this number of samples.
fn error(share: f64, samples: f64) -> f64 {
    share_variance(share.min(1.0), samples).sqrt()
}

#[cfg(test)]
mod tests {
    use ingraft_api::{NamedSamples, SampledFunction, SampledThread};
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
        let names: Vec<&str> = own.iter().map(|row| row.function.as_str()).collect();
        assert_eq!(names, ["f", "g", "main"]);
        assert_eq!((own[0].own, own[0].kernel, own[0].cpu_ns), (0.65, Some(0.1), Some(260_000_000)));
        assert!((own[0].self_error - (0.65_f64 * 0.35 / 200.0).sqrt()).abs() < 1e-12);
        assert_eq!((own[2].total, own[2].wall_ns), (1.0, None));
        let of_all = (201.0_f64 / 203.0).sqrt() / 202.0;
        assert!((own[2].total_error - of_all).abs() < 1e-12, "all of 200 samples do not prove a share of 1");
        let total = found(HotSort::Total, Some("h"));
        assert_eq!((total[0].function.as_str(), total[0].of.host.as_deref()), ("main", Some("h")));
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
        let wait = total.iter().find(|row| row.function == "wait").expect("its row");
        assert_eq!((wait.total, wait.wall_ns, wait.cpu_ns), (0.4, Some(90_000_000), Some(10_000_000)));
        let calls: Vec<_> = wait.waits.iter().map(|w| (w.name.as_str(), w.share)).collect();
        assert_eq!(calls, [("futex", 0.75), ("read", 0.25)]);
        assert_eq!((wait.how["wall_ns"], wait.how["self"]), ("derived", "looked at"));
        let runs = functions(&running, &rows, SampledState::Running, HotSort::Own, None);
        let names: Vec<&str> = runs.iter().map(|row| row.function.as_str()).collect();
        assert_eq!(names, ["f", "wait", "futex_wait"], "those that only wait come last");
        assert_eq!((runs[2].own, runs[2].cpu_ns, runs[2].wall_ns), (0.0, Some(0), Some(80_000_000)));
    }

    #[test]
    fn targets_are_added_up_by_time() {
        let rows = |state, reading| {
            let mut rows = HotRows::new(state);
            rows.add(reading);
            rows
        };
        let pid = |pid, reading| SamplingReading { pid: Pid(pid), ..reading };
        // The same time between two samples: each sample counts as one.
        let one =
            rows(SampledState::Running, pid(7, reading(vec![function("f", 60, 60, 6), function("g", 40, 40, 0)])));
        let two = rows(SampledState::Running, pid(8, reading(vec![function("f", 300, 300, 0)])));
        let both = HotRows::together(SampledState::Running, &[&one, &two]);
        let waiting = HotRows::new(SampledState::Waiting);
        let found = functions(&both, &waiting, SampledState::Running, HotSort::Own, None);
        assert_eq!((found[0].function.as_str(), found[0].own, found[0].self_samples), ("f", 0.9, 360));
        assert!((found[0].self_error - (0.9_f64 * 0.1 / 400.0).sqrt()).abs() < 1e-12, "{found:?}");
        assert_eq!((found[0].of.pid, found[0].of.targets, found[0].cpu_ns), (None, Some(2), Some(720_000_000)));
        let samples = both.samples(None);
        assert_eq!((samples.base, samples.span_ns, samples.cpu_ns), (400, 1_000_000_000, 1_800_000_000));
        assert!((both.processors() - 1.8).abs() < 1e-9, "{samples:?}");
        assert_eq!((samples.kernel, samples.of.targets, samples.period_ns), (Some(6.0 / 400.0), Some(2), 2_000_000));
        // A process that is looked at ten times as often has no larger share.
        let looks = |looks, period, waits| SamplingReading {
            looks,
            period: Duration::from_millis(period),
            method: SamplingMethod::Looks,
            ..reading(vec![function(if waits == looks { "sleep" } else { "wait" }, 0, waits, 0)])
        };
        let often = rows(SampledState::Waiting, SamplingReading { samples: 1000, ..looks(1000, 1, 1000) });
        let seldom = rows(SampledState::Waiting, SamplingReading { samples: 50, ..looks(100, 10, 50) });
        let both = HotRows::together(SampledState::Waiting, &[&often, &seldom]);
        let running = HotRows::new(SampledState::Running);
        let found = functions(&running, &both, SampledState::Waiting, HotSort::Total, None);
        let totals: Vec<_> = found.iter().map(|row| (row.function.as_str(), (row.total * 1e9).round())).collect();
        assert_eq!(totals, [("sleep", 5e8), ("wait", 2.5e8)]);
        // Weighted looks tell less than the same number of equal ones.
        let effective = (2.0 * 1000.0_f64).powi(2) / (1000.0 + 100.0 * 100.0);
        assert!((found[1].total_error - (0.25_f64 * 0.75 / effective).sqrt()).abs() < 1e-9, "{found:?}");
        assert!((both.sample_share() - 0.75).abs() < 1e-12);
    }

    #[test]
    fn targets_without_samples_add_nothing() {
        let mut idle = HotRows::new(SampledState::Running);
        idle.add(SamplingReading { note: "why".to_owned(), ..reading(Vec::new()) });
        let both = HotRows::together(SampledState::Running, &[&idle, &idle]);
        let samples = both.samples(None);
        assert_eq!((samples.base, both.sample_share(), samples.note.as_deref()), (0, 0.0, Some("why")));
        assert_eq!(HotRows::together(SampledState::Running, &[]).base(), 0);
    }

    #[test]
    fn without_samples_there_are_no_shares() {
        let rows = HotRows::new(SampledState::Running);
        let waiting = HotRows::new(SampledState::Waiting);
        assert!(functions(&rows, &waiting, SampledState::Running, HotSort::Own, None).is_empty());
        assert_eq!((share(0.0, 0.0), error(0.0, 0.0)), (0.0, 0.0));
        assert_eq!((error(0.0, 5.0), error(1.0, 1.0)), (error(1.0, 5.0), (2.0_f64 / 36.0).sqrt()));
        assert_eq!(rows.samples(None).base, 0);
    }
}
