//! Calls of the functions that hold most samples: counters in their code tell the number exactly, and clocks tell how long calls take, where
//! they fit the budget. The engine decides which clocks fit: it counts the calls first.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, NamedFunction, Reading, Terms};
use ingraft_model::Pid;
use tokio::time::Instant;

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
/// Part of the samples whose functions get counters.
const PART: f64 = 0.95;
/// Number of samples before any function gets a counter, and of one function before it gets one.
const SAMPLES_MIN: u64 = 50;
const OWN_MIN: u64 = 3;
/// Largest number of functions of one insertion, and of all.
const FUNCTIONS_MAX: usize = 64;
const ALL_MAX: usize = 256;
/// Time between two insertions.
const PAUSE: Duration = Duration::from_secs(3);

/// Functions whose calls are counted, by one insertion.
struct CountedCalls {
    client: Client,
    enabled: Enabled,
    /// The last reading; `None` before the first.
    reading: Option<Reading>,
}

/// The counted functions of a target.
#[derive(Default)]
pub(super) struct HotCalls {
    counted: Vec<CountedCalls>,
    tried: HashSet<NamedFunction>,
    last: Option<Instant>,
}

/// Calls of a function.
#[derive(Clone, Debug, Default, PartialEq)]
struct FunctionCalls {
    calls: u64,
    /// Calls in a second since the insertion; `None` if no time has passed.
    rate: Option<f64>,
    /// Mean time of a call, and its 50th, 90th and 99th percentile in nanoseconds; `None` without a clock.
    times: Option<(f64, [Option<u64>; 3])>,
}

/// The functions that are to get counters: those that hold most of the samples, and that no insertion has tried.
fn chosen<'f>(
    own: impl Iterator<Item = (&'f NamedFunction, u64)>,
    tried: &HashSet<NamedFunction>,
) -> Vec<&'f NamedFunction> {
    let mut own: Vec<_> = own.filter(|(_, samples)| *samples > 0).collect();
    own.sort_by_key(|(function, samples)| (std::cmp::Reverse(*samples), &function.module, function.offset));
    let all: u64 = own.iter().map(|(_, samples)| samples).sum();
    if all < SAMPLES_MIN {
        return Vec::new();
    }
    let mut before = 0;
    let holds_most = own.into_iter().take_while(|(_, samples)| {
        let goes_on = (before as f64) < PART * all as f64 && *samples >= OWN_MIN;
        before += samples;
        goes_on
    });
    let new = holds_most.map(|(function, _)| function).filter(|function| !tried.contains(*function));
    new.take(FUNCTIONS_MAX.min(ALL_MAX.saturating_sub(tried.len()))).collect()
}

impl HotCalls {
    /// Gives counters to functions that have come to hold most of the samples. The clocks of all insertions together stay in the budget, in
    /// percent of a processor.
    pub(super) async fn extend(
        &mut self,
        client: &Client,
        rows: &HotRows,
        budget: f64,
        begun: std::time::Instant,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
        if self.last.is_some_and(|last| last.elapsed() < PAUSE) {
            return Ok(());
        }
        let new: Vec<NamedFunction> = chosen(rows.own_samples(), &self.tried).into_iter().cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        self.last = Some(Instant::now());
        // Each insertion may use half of what is left.
        let share = budget / f64::from(1 << (self.counted.len() + 1).min(30));
        let pid = rows.sum().pid;
        let patterns: Vec<String> =
            new.iter().map(|function| format!("{}+{:#x}", function.module, function.offset.0)).collect();
        self.tried.extend(new);
        let mut progress = Progress::new("counting the calls of the functions with most samples", format);
        let mut enabled = client.enable(&request(pid, &patterns, &[CALLS, TIMES], share), &mut progress).await;
        if enabled.is_err() {
            // No clock fits the budget, or none can be placed: calls are counted nevertheless.
            enabled = client.enable(&request(pid, &patterns, &[CALLS], share), &mut progress).await;
        }
        drop(progress);
        match enabled {
            Ok((client, enabled)) => {
                let attach_ms = begun.elapsed().as_secs_f64() * 1e3;
                let announced = announcement(&enabled, client.host(), attach_ms);
                self.counted.push(CountedCalls { client, enabled, reading: None });
                out.object(&announced)
            }
            Err(failure) => {
                output::warn(&format!("calls are not counted: {}", failure.what), format);
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

    /// Removes the counters, and reads them a last time. All are removed, also if one of the removals fails.
    pub(super) async fn remove(&mut self, out: &mut Output) -> Result<(), Stop> {
        let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
        let mut result = Ok(());
        for counted in &mut self.counted {
            match counted.client.remove(counted.enabled.id, counted.enabled.pairs.len()).await {
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
        }
        result
    }

    /// Adds the calls to the rows of their functions. The mean time of a call that has no clock follows from the processor time and the rate
    /// of the calls.
    pub(super) fn annotate(&self, rows: &mut [HotObject], span: Duration) {
        let calls = self.by_function();
        for row in rows {
            let Some(of) = calls.get(&(row.id.module.as_str(), row.id.offset.clone())) else { continue };
            row.calls = Some(of.calls);
            row.calls_per_s = of.rate;
            row.how.insert("calls", "counted");
            let busy = row.cpu_ns.map(|ns| ns as f64 / span.as_secs_f64().max(1e-9));
            match of.times {
                Some((mean, [p50, p90, p99])) => {
                    (row.mean_ns, row.p50_ns, row.p90_ns, row.p99_ns) = (Some(mean), p50, p90, p99);
                    row.how.insert("mean_ns", "clocked");
                }
                None => {
                    row.mean_ns = busy.zip(of.rate.filter(|rate| *rate > 0.0)).map(|(busy, rate)| busy / rate);
                    if row.mean_ns.is_some() {
                        row.how.insert("mean_ns", "derived");
                    }
                }
            }
        }
    }

    /// The calls by module and offset, as records print them.
    fn by_function(&self) -> HashMap<(&str, String), FunctionCalls> {
        let mut all: HashMap<(&str, String), FunctionCalls> = HashMap::new();
        for CountedCalls { enabled, reading, .. } in &self.counted {
            let Some(reading) = reading else { continue };
            let span = reading.time_ns.saturating_sub(enabled.since_ns);
            for (pair, value) in enabled.pairs.iter().zip(&reading.values) {
                let Some(function) = pair.function.as_ref().filter(|_| pair.refused.is_empty()) else { continue };
                let of = all.entry((&function.module, crate::objects::hex(function.offset.0))).or_default();
                let details = value.details();
                if pair.pair.metric == CALLS {
                    of.calls = u64::try_from(value.value).unwrap_or(0);
                    of.rate = (span > 0).then(|| of.calls as f64 * 1e9 / span as f64);
                } else if let Some(times) = details.distribution.as_deref().filter(|d| d.count > 0)
                    && details.taken_out.is_none()
                {
                    let quantiles = [0.5, 0.9, 0.99].map(|q| times.quantile(q));
                    of.times = times.mean().map(|mean| (mean, quantiles));
                }
            }
        }
        all
    }
}

/// The request to measure functions by these metrics.
fn request(pid: Pid, patterns: &[String], metrics: &[&str], budget: f64) -> InsertionRequest {
    let measure = EnableRequest {
        functions: patterns.to_vec(),
        function_metrics: metrics.iter().map(|metric| (*metric).to_owned()).collect(),
        max_overhead: Some(budget),
        ..EnableRequest::default()
    };
    InsertionRequest { target: RequestTarget::Pid(pid.0), measure, terms: Terms::default() }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Svma;

    use super::*;

    fn function(n: u64) -> NamedFunction {
        NamedFunction { module: "m".to_owned(), function: format!("f{n}"), offset: Svma(n) }
    }

    fn numbers(own: &[(u64, u64)], tried: &[u64]) -> Vec<u64> {
        let own: Vec<_> = own.iter().map(|(n, samples)| (function(*n), *samples)).collect();
        let tried = tried.iter().map(|n| function(*n)).collect();
        chosen(own.iter().map(|(f, n)| (f, *n)), &tried).into_iter().map(|f| f.offset.0).collect()
    }

    #[test]
    fn functions_that_hold_most_samples_are_counted() {
        assert_eq!(numbers(&[(1, 100), (2, 700), (3, 190), (4, 10)], &[]), [2, 3, 1]);
        assert_eq!(numbers(&[(1, 100), (2, 700), (3, 190), (4, 10)], &[2, 1]), [3], "the others were tried before");
        assert!(numbers(&[(1, 10), (2, 20)], &[]).is_empty(), "too few samples");
        assert_eq!(numbers(&[(1, 60), (2, 2), (3, 2)], &[]), [1], "too few samples of the others");
        assert!(numbers(&[], &[]).is_empty());
    }

    #[test]
    fn insertions_are_bounded() {
        let many: Vec<_> = (0..1000).map(|n| (n, 1000)).collect();
        assert_eq!(numbers(&many, &[]).len(), FUNCTIONS_MAX);
        let tried: Vec<u64> = (0..ALL_MAX as u64).collect();
        assert!(numbers(&many, &tried).is_empty());
    }
}
