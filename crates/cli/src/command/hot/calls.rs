//! Calls of the functions that hold most samples: counters in their code tell the number exactly, and clocks tell how long calls take, where
//! they fit the budget. Counters and clocks come and go as `classes` decides; a number that a removed counter has told stays.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, NamedFunction, Reading, Terms, Value};
use ingraft_model::{Distribution, Pid};
use tokio::time::Instant;

use super::classes::{self, COLD, ClassChanges, ClassedFunction};
use super::rows::HotRows;
use crate::conn::{Client, InsertionRequest, RequestTarget};
use crate::exit::{Failure, Stop};
use crate::measure::announcement;
use crate::objects::hot::HotObject;
use crate::objects::{Object, RemovedObject};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};

/// Metric that counts calls, and metric of their times.
const CALLS: &str = "calls";
const TIMES: &str = "latency";
/// Time between two decisions.
const DECISION: Duration = Duration::from_secs(1);
/// Number of decisions in a row after which clocks that do not fit are removed.
const LATE: u32 = 2;
/// Smallest budget of an insertion of clocks, in percent of a processor.
const BUDGET_MIN: f64 = 0.01;

/// Functions whose calls are counted or timed, by one insertion.
struct CountedCalls {
    client: Client,
    enabled: Enabled,
    /// The last reading, and the one before the last decision; `None` before the first.
    reading: Option<Reading>,
    before: Option<Reading>,
    /// Whether the insertion has clocks.
    is_clock: bool,
    /// Number of decisions in a row by which it was not needed.
    unneeded: u32,
}

/// The counted functions of a target.
#[derive(Default)]
pub(super) struct HotCalls {
    counted: Vec<CountedCalls>,
    /// Insertions that are being removed. A signal may end the removal in the middle.
    falling: Vec<CountedCalls>,
    /// Calls that removed counters have told.
    past: HashMap<NamedFunction, FunctionCalls>,
    never_counted: HashSet<NamedFunction>,
    never_timed: HashSet<NamedFunction>,
    last: Option<Instant>,
    /// Largest number of recent samples at a decision; `None` before the first one.
    most: Option<f64>,
}

/// Calls of a function.
#[derive(Clone, Debug, Default, PartialEq)]
struct FunctionCalls {
    calls: u64,
    /// Time in which they were counted, in nanoseconds.
    span_ns: u64,
    /// Times of calls in nanoseconds; `None` without a clock.
    times: Option<Distribution>,
}

/// Calls of a function in all targets together.
#[derive(Default)]
struct SummedCalls {
    calls: u64,
    /// Calls in a second; `None` if no time has passed in any target.
    rate: Option<f64>,
    times: Distribution,
    /// Processor time per second in the targets that have a rate.
    busy: f64,
}

impl FunctionCalls {
    /// Calls in a second; `None` if no time has passed.
    fn rate(&self) -> Option<f64> {
        (self.span_ns > 0).then(|| self.calls as f64 * 1e9 / self.span_ns as f64)
    }
}

impl CountedCalls {
    /// The functions that are measured, each with its value in a reading.
    fn values<'c>(
        &'c self,
        reading: Option<&'c Reading>,
    ) -> impl Iterator<Item = (&'c NamedFunction, Option<&'c Value>)> {
        let pairs = self.enabled.pairs.iter().enumerate().filter(|(_, pair)| pair.refused.is_empty());
        pairs.filter_map(move |(i, pair)| {
            let value = reading.and_then(|reading| reading.values.get(i));
            let is_in = value.is_none_or(|value| value.details().taken_out.is_none());
            Some((pair.function.as_ref().filter(|_| is_in)?, value))
        })
    }

    /// Calls in a second since the last decision.
    fn rates(&self) -> impl Iterator<Item = (&NamedFunction, Option<f64>)> {
        let (from, before) = match &self.before {
            Some(before) => (before.time_ns, Some(before)),
            None => (self.enabled.since_ns, None),
        };
        let span = self.reading.as_ref().map_or(0, |reading| reading.time_ns.saturating_sub(from));
        let was: HashMap<&NamedFunction, i64> =
            self.values(before).filter_map(|(function, value)| Some((function, value?.value))).collect();
        self.values(self.reading.as_ref()).map(move |(function, value)| {
            let calls = value.map(|value| value.value - was.get(function).copied().unwrap_or(0));
            let calls = calls.filter(|calls| *calls >= 0 && span > 0);
            (function, calls.map(|calls| calls as f64 * 1e9 / span as f64))
        })
    }

    /// Adds the last reading to the calls of its functions.
    fn add_to(&self, all: &mut HashMap<NamedFunction, FunctionCalls>) {
        let span_ns = self.reading.as_ref().map_or(0, |reading| reading.time_ns.saturating_sub(self.enabled.since_ns));
        for (function, value) in self.values(self.reading.as_ref()) {
            let Some(value) = value else { continue };
            let of = all.entry(function.clone()).or_default();
            if !self.is_clock {
                of.calls += u64::try_from(value.value).unwrap_or(0);
                of.span_ns += span_ns;
            } else if let Some(times) = value.details().distribution.as_deref().filter(|d| d.count > 0) {
                of.times = Some(times.clone());
            }
        }
    }
}

impl HotCalls {
    /// Decides once in a second which functions get counters and clocks, and which lose them. All clocks together stay in the budget, in
    /// percent of a processor.
    pub(super) async fn adapt(
        &mut self,
        client: &Client,
        rows: &HotRows,
        budget: f64,
        begun: std::time::Instant,
        out: &mut Output,
    ) -> Result<(), Stop> {
        self.read().await?;
        if self.last.is_some_and(|last| last.elapsed() < DECISION) {
            return Ok(());
        }
        self.last = Some(Instant::now());
        let (names, functions) = self.functions(rows);
        // A sum of nothing is -0.
        let recent = functions.iter().fold(0.0, |sum: f64, function| sum + function.samples);
        self.most = Some(self.most.map_or(recent, |most| most.max(recent)));
        let changes = classes::decide(&functions, budget / 100.0);
        for counted in &mut self.counted {
            counted.before = counted.reading.clone();
        }
        self.fall(&names, &changes, out).await?;
        let of = |numbers: &[usize]| numbers.iter().filter_map(|i| names.get(*i).cloned()).collect::<Vec<_>>();
        let spent: f64 = changes.timed.iter().filter_map(|i| functions.get(*i)?.rate).map(classes::cost).sum();
        let (pid, left) = (rows.sum().pid, (budget - 100.0 * spent).max(BUDGET_MIN));
        for (functions, is_clock, budget) in [(of(&changes.count), false, budget), (of(&changes.time), true, left)] {
            if !functions.is_empty() {
                self.rise(client, (pid, functions), is_clock, budget, begun, out).await?;
            }
        }
        Ok(())
    }

    /// All functions with recent samples or a counter, as a decision sees them.
    fn functions(&self, rows: &HotRows) -> (Vec<NamedFunction>, Vec<ClassedFunction>) {
        let mut all: HashMap<&NamedFunction, ClassedFunction> = HashMap::new();
        for (function, samples) in rows.recent_samples() {
            all.entry(function).or_default().samples = samples;
        }
        for counted in &self.counted {
            for (function, rate) in counted.rates() {
                let of = all.entry(function).or_default();
                match counted.is_clock {
                    true => of.is_timed = true,
                    false => (of.is_counted, of.rate) = (true, rate),
                }
            }
        }
        for (function, of) in &mut all {
            // Code of a just-in-time compiler is in no file.
            let is_compiled = function.module.starts_with('[');
            of.never_counted = is_compiled || self.never_counted.contains(*function);
            of.never_timed = self.never_timed.contains(*function);
        }
        let mut all: Vec<_> = all.into_iter().map(|(function, of)| (function.clone(), of)).collect();
        all.sort_by(|(a, _), (b, _)| (&a.module, a.offset, &a.function).cmp(&(&b.module, b.offset, &b.function)));
        all.into_iter().unzip()
    }

    /// Removes the insertions of which nothing has been needed for a while.
    async fn fall(&mut self, names: &[NamedFunction], changes: &ClassChanges, out: &mut Output) -> Result<(), Stop> {
        let those = |numbers: &[usize]| numbers.iter().filter_map(|i| names.get(*i).cloned()).collect::<HashSet<_>>();
        let (hot, timed) = (those(&changes.hot), those(&changes.timed));
        for counted in &mut self.counted {
            let needed = if counted.is_clock { &timed } else { &hot };
            let is_needed = counted.values(counted.reading.as_ref()).any(|(function, _)| needed.contains(function));
            counted.unneeded = if is_needed { 0 } else { counted.unneeded + 1 };
            // The engine has taken the clock out, because it cost too much.
            let out = |value: &Value| value.details().taken_out.is_some();
            let pairs = counted.enabled.pairs.iter().zip(counted.reading.iter().flat_map(|reading| &reading.values));
            self.never_timed
                .extend(pairs.filter(|(_, value)| out(value)).filter_map(|(pair, _)| pair.function.clone()));
        }
        let is_late = |counted: &mut CountedCalls| counted.unneeded >= if counted.is_clock { LATE } else { COLD };
        self.falling.extend(self.counted.extract_if(.., is_late));
        self.take_out(out).await
    }

    /// Inserts counters or clocks. The budget is for clocks, in percent of a processor.
    async fn rise(
        &mut self,
        client: &Client,
        (pid, functions): (Pid, Vec<NamedFunction>),
        is_clock: bool,
        budget: f64,
        begun: std::time::Instant,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
        let patterns: Vec<String> =
            functions.iter().map(|function| format!("{}+{:#x}", function.module, function.offset.0)).collect();
        let what = if is_clock {
            "timing the calls of rarely called functions"
        } else {
            "counting the calls of hot functions"
        };
        let mut progress = Progress::new(what, format);
        let metric = if is_clock { TIMES } else { CALLS };
        let enabled = client.enable(&request(pid, &patterns, metric, budget), &mut progress).await;
        drop(progress);
        let never = if is_clock { &mut self.never_timed } else { &mut self.never_counted };
        match enabled {
            Ok((client, enabled)) => {
                let attach_ms = begun.elapsed().as_secs_f64() * 1e3;
                let announced = announcement(&enabled, client.host(), attach_ms);
                let counted = CountedCalls { client, enabled, reading: None, before: None, is_clock, unneeded: 0 };
                let measured: HashSet<&NamedFunction> = counted.values(None).map(|(function, _)| function).collect();
                never.extend(functions.into_iter().filter(|function| !measured.contains(function)));
                self.counted.push(counted);
                out.object(&announced)
            }
            Err(failure) => {
                never.extend(functions);
                if !is_clock {
                    output::warn(&format!("calls are not counted: {}", failure.what), format);
                }
                Ok(())
            }
        }
    }

    /// Reads the numbers of calls.
    pub(super) async fn read(&mut self) -> Result<(), Failure> {
        for counted in &mut self.counted {
            let (id, pairs) = (counted.enabled.id, counted.enabled.pairs.len());
            counted.reading = Some(counted.client.read(id, pairs).await?);
        }
        Ok(())
    }

    /// Reason why no function was ever counted; `None` if some were, or if a warning has told why they could not be.
    pub(super) fn why_none(&self) -> Option<String> {
        let is_tried = !self.counted.is_empty() || !self.past.is_empty() || !self.never_counted.is_empty();
        (!is_tried).then(|| classes::why_none(self.most))
    }

    /// Removes all counters and clocks, and reads them a last time.
    pub(super) async fn remove(&mut self, out: &mut Output) -> Result<(), Stop> {
        self.falling.append(&mut self.counted);
        self.take_out(out).await
    }

    /// Removes insertions, and keeps what they have told. All are removed, also if one of the removals fails.
    async fn take_out(&mut self, out: &mut Output) -> Result<(), Stop> {
        let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
        let mut result = Ok(());
        while let Some(last) = self.falling.last() {
            let answer = last.client.remove(last.enabled.id, last.enabled.pairs.len()).await;
            let Some(mut counted) = self.falling.pop() else { break };
            match answer {
                Ok((answer, _)) => {
                    if let Some(last) = &answer.last {
                        counted.reading = Some(last.clone());
                    }
                    let removed = RemovedObject::new(&answer, counted.client.host());
                    let pid = counted.enabled.pid.0;
                    let warn = |what: &String| output::warn(&words::disturbed(pid, &removed.host, what), format);
                    removed.warnings.iter().for_each(warn);
                    result = result.and(out.object(&Object::Removed(removed)));
                }
                Err(failure) => result = result.and(Err(failure.into())),
            }
            counted.add_to(&mut self.past);
        }
        result
    }

    /// The calls by function.
    fn by_function(&self) -> impl Iterator<Item = (NamedFunction, FunctionCalls)> {
        let mut all = self.past.clone();
        self.counted.iter().for_each(|counted| counted.add_to(&mut all));
        // A clock tells no number of calls in a function without a counter.
        all.into_iter().filter(|(_, of)| of.span_ns > 0)
    }
}

/// Adds the calls in all these targets to the rows of their functions. The mean time of a call that has no clock follows from the processor
/// time and the rate of the calls, in the targets where the calls are counted.
pub(super) fn annotate<'t>(targets: impl Iterator<Item = (&'t HotCalls, &'t HotRows)>, rows: &mut [HotObject]) {
    let mut sums: HashMap<(String, String), SummedCalls> = HashMap::new();
    for (calls, samples) in targets {
        for (function, of) in calls.by_function() {
            let busy = samples.busy(&function);
            let sum = sums.entry((function.module, crate::objects::hex(function.offset.0))).or_default();
            sum.calls += of.calls;
            if let Some((rate, busy)) = of.rate().zip(busy) {
                sum.busy += busy;
                sum.rate = Some(sum.rate.unwrap_or(0.0) + rate);
            }
            of.times.iter().for_each(|times| sum.times.merge(times));
        }
    }
    for row in rows {
        let Some(of) = sums.get(&(row.module.clone(), row.offset.clone())) else { continue };
        row.calls = Some(of.calls);
        row.calls_per_s = of.rate;
        row.how.insert("calls", "counted");
        match of.times.mean() {
            Some(mean) => {
                row.mean_ns = Some(mean);
                let quantile = |q| of.times.quantile(q);
                (row.p50_ns, row.p90_ns, row.p99_ns) = (quantile(0.5), quantile(0.9), quantile(0.99));
                row.how.insert("mean_ns", "clocked");
            }
            None => {
                row.mean_ns = of.rate.filter(|rate| *rate > 0.0).map(|rate| 1e9 * of.busy / rate);
                if row.mean_ns.is_some() {
                    row.how.insert("mean_ns", "derived");
                }
            }
        }
    }
}

/// The request to measure functions by a metric.
fn request(pid: Pid, patterns: &[String], metric: &str, budget: f64) -> InsertionRequest {
    let measure = EnableRequest {
        functions: patterns.to_vec(),
        function_metrics: vec![metric.to_owned()],
        max_overhead: Some(budget),
        ..EnableRequest::default()
    };
    InsertionRequest { target: RequestTarget::Pid(pid.0), measure, terms: Terms::default() }
}
