//! Trials: code that is inserted for a moment to test what looks and samples suggest. Each trial is removed as soon as it has answered.

use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, MetricFocus, NamedFunction, Reading, Terms};
use ingraft_model::Focus;

use super::finding::Finding;
use super::hypothesis::Hypothesis;
use super::pasted::{Pasted, pattern};
use crate::args::CallSelection;
use crate::command::expression::{Computed, ExpressionMetric};
use crate::conn::{InsertionRequest, RequestTarget};
use crate::output::number::{plural, short, time};

/// Largest number of functions of a trial.
pub(super) const FUNCTIONS_MAX: usize = 4;
/// Condition of a call that has failed, for functions that return -1 then, as a `long` or an `int`.
pub(super) const FAILED: &str = "$return == -1 || $return == 4294967295";
/// Share of the calls of a function that must fail, and number of them, so that the caller is said to try again.
const FAILING: f64 = 0.5;
const FAILED_MIN: u64 = 100;
/// Number of calls from which on their times can refute a finding, and the part of the claimed time that they must have.
const CALLS_MIN: u64 = 20;
const CLAIMED: f64 = 0.25;
/// Metrics of functions.
const CALLS: &str = "calls";
const TIMES: &str = "latency";
/// Metrics of mutexes, by mutex.
const WAIT: &str = "lock_wait_by_object";
const LOCKS: &str = "lock_operations_by_object";
/// Words that end the evidence of a finding that no trial has tested.
pub(super) const LOOKS_ALONE: &str = "from looks alone";

/// Values that a trial has of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TriedFunction {
    /// Module and offset.
    key: (String, u64),
    /// Calls that have begun.
    calls: u64,
    /// Number of timed calls, their mean time and 99th percentile in nanoseconds.
    times: Option<(u64, f64, Option<u64>)>,
    /// Reason why the function could not be measured.
    refused: Option<String>,
}

/// Values of a trial.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TrialResult {
    /// Time of the trial.
    span: Duration,
    functions: Vec<TriedFunction>,
    /// Address, locks, and nanoseconds of waits of each mutex.
    mutexes: Vec<(u64, u64, u64)>,
    /// Reason why there was no trial.
    failed: Option<String>,
}

/// The functions that a trial times: the first of each hypothesis that holds, then further ones.
pub(super) fn chosen(findings: &[Finding]) -> Vec<NamedFunction> {
    let candidates = || findings.iter().filter(|finding| finding.holds && finding.parent != Some(1));
    let mut first = Vec::new();
    let mut further = Vec::new();
    let mut seen: Vec<Hypothesis> = Vec::new();
    for finding in candidates() {
        let Some(function) = &finding.function else { continue };
        if first.contains(function) || further.contains(function) {
            continue;
        }
        if seen.contains(&finding.hypothesis) {
            further.push(function.clone());
        } else {
            seen.push(finding.hypothesis);
            first.push(function.clone());
        }
    }
    first.into_iter().chain(further).take(FUNCTIONS_MAX).collect()
}

/// The request of a trial of functions, and of mutexes if `mutexes`. `clocks` tells whether calls are timed.
pub(super) fn times_request(
    pid: i32,
    functions: &[NamedFunction],
    (mutexes, clocks): (bool, bool),
    budget: f64,
) -> InsertionRequest {
    let metrics: &[&str] = if clocks { &[CALLS, TIMES] } else { &[CALLS] };
    let of_mutexes: &[&str] = if mutexes { &[WAIT, LOCKS] } else { &[] };
    let pair = |metric: &&str| MetricFocus { metric: (*metric).to_owned(), focus: Focus::default() }.into();
    let measure = EnableRequest {
        pairs: of_mutexes.iter().map(pair).collect(),
        functions: functions.iter().map(pattern).collect(),
        function_metrics: metrics.iter().map(|metric| (*metric).to_owned()).collect(),
        max_overhead: Some(budget),
        ..EnableRequest::default()
    };
    InsertionRequest { target: RequestTarget::Pid(pid), measure, terms: Terms::default() }
}

/// The request of a trial of failed calls.
pub(super) fn failures_request(pid: i32, functions: &[NamedFunction], budget: f64) -> InsertionRequest {
    let failed = CallSelection { condition: Some(FAILED.to_owned()), ..CallSelection::default() };
    let definitions = [failed_calls(&failed), ExpressionMetric::new(Computed::Returns, &CallSelection::default())];
    let measure = EnableRequest {
        functions: functions.iter().map(pattern).collect(),
        function_metrics: definitions.iter().map(|definition| definition.metric.clone()).collect(),
        definitions: ExpressionMetric::sources(&definitions),
        max_overhead: Some(budget),
        ..EnableRequest::default()
    };
    InsertionRequest { target: RequestTarget::Pid(pid), measure, terms: Terms::default() }
}

fn failed_calls(failed: &CallSelection) -> ExpressionMetric {
    ExpressionMetric::new(Computed::Calls, failed)
}

/// Functions of a trial of failed calls of which most calls have failed, with the number of failed and of all calls.
pub(super) fn retried(enabled: &Enabled, reading: &Reading) -> Vec<(NamedFunction, u64, u64)> {
    let failed = CallSelection { condition: Some(FAILED.to_owned()), ..CallSelection::default() };
    let failing = failed_calls(&failed).metric;
    let mut found: Vec<(NamedFunction, u64, u64)> = Vec::new();
    for (pair, value) in enabled.pairs.iter().zip(&reading.values) {
        let Some(function) = pair.function.as_ref().filter(|_| pair.refused.is_empty()) else { continue };
        let at = found.iter().position(|(known, ..)| known == function).unwrap_or_else(|| {
            found.push((function.clone(), 0, 0));
            found.len() - 1
        });
        let calls = u64::try_from(value.value).unwrap_or(0);
        if let Some((_, failed, all)) = found.get_mut(at) {
            *(if pair.pair.metric == failing { failed } else { all }) += calls;
        }
    }
    found.retain(|(_, failed, all)| *failed >= FAILED_MIN && *failed as f64 >= FAILING * *all as f64);
    found
}

impl TrialResult {
    /// No trial, for this reason.
    pub(super) fn failed(why: String) -> Self {
        TrialResult { failed: Some(why), ..TrialResult::default() }
    }

    /// The values of a trial.
    pub(super) fn of(enabled: &Enabled, reading: &Reading) -> Self {
        let mut result = TrialResult {
            span: Duration::from_nanos(reading.time_ns.saturating_sub(enabled.since_ns)),
            ..TrialResult::default()
        };
        for (pair, value) in enabled.pairs.iter().zip(&reading.values) {
            let details = value.details();
            match pair.pair.metric.as_str() {
                WAIT | LOCKS => {
                    for key in details.keys.iter().flat_map(|keys| &keys.values) {
                        let number = u64::try_from(key.value).unwrap_or(0);
                        let (_, locks, wait) = result.mutex(key.key);
                        *(if pair.pair.metric == WAIT { wait } else { locks }) += number;
                    }
                }
                metric => {
                    let Some(function) = &pair.function else { continue };
                    let timed = result.function((function.module.clone(), function.offset.0));
                    if let Some(refused) = pair.refused.first() {
                        timed.refused = Some(refused.reason.to_string());
                    } else if metric == CALLS {
                        timed.calls = u64::try_from(value.value).unwrap_or(0);
                    } else if let Some(times) = details.distribution.as_deref().filter(|d| d.count > 0)
                        && details.taken_out.is_none()
                    {
                        timed.times = times.mean().map(|mean| (times.count, mean, times.quantile(0.99)));
                    }
                }
            }
        }
        for refused in &enabled.refused {
            let timed = result.function((refused.function.module.clone(), refused.function.offset.0));
            timed.refused = Some(refused.reason.to_string());
        }
        result
    }

    fn function(&mut self, key: (String, u64)) -> &mut TriedFunction {
        let at = self.functions.iter().position(|timed| timed.key == key).unwrap_or_else(|| {
            self.functions.push(TriedFunction { key, ..TriedFunction::default() });
            self.functions.len() - 1
        });
        &mut self.functions[at]
    }

    fn mutex(&mut self, address: u64) -> &mut (u64, u64, u64) {
        let at = self.mutexes.iter().position(|mutex| mutex.0 == address).unwrap_or_else(|| {
            self.mutexes.push((address, 0, 0));
            self.mutexes.len() - 1
        });
        &mut self.mutexes[at]
    }

    /// Adds what the trial found to the findings, and ends those that it refutes. `activity` is the mean number of active threads.
    pub(super) fn annotate(&self, findings: &mut [Finding], pasted: &Pasted, activity: f64) {
        for finding in findings.iter_mut().filter(|finding| finding.holds) {
            if let Some(why) = &self.failed {
                if finding.function.is_some() || finding.mutex.is_some() {
                    say(finding, &format!("{LOOKS_ALONE}: {why}"));
                }
                continue;
            }
            let key = finding.function.as_ref().map(|function| (function.module.clone(), function.offset.0));
            if let Some(timed) = self.functions.iter().find(|timed| Some(&timed.key) == key.as_ref()) {
                self.judge(timed, finding, pasted, activity);
            }
            if let Some((_, locks, wait)) = self.mutexes.iter().find(|mutex| Some(mutex.0) == finding.mutex) {
                let seconds = self.span.as_secs_f64().max(1e-9);
                let waiting = *wait as f64 / 1e9 / seconds;
                say(
                    finding,
                    &format!(
                        "timed for {}: {} locks/s, {waiting:.2} threads wait for it on average",
                        time(self.span.as_nanos() as f64),
                        short(*locks as f64 / seconds)
                    ),
                );
            }
        }
    }

    /// Adds the calls of a function to a finding, and judges it by their times.
    fn judge(&self, timed: &TriedFunction, finding: &mut Finding, pasted: &Pasted, activity: f64) {
        if let Some(why) = &timed.refused {
            return say(finding, &format!("{LOOKS_ALONE}: {why}"));
        }
        let seconds = self.span.as_secs_f64().max(1e-9);
        let span = time(self.span.as_nanos() as f64);
        let calls = short(timed.calls as f64 / seconds);
        let Some((count, mean, p99)) = timed.times else {
            let text = match timed.calls {
                0 => format!(
                    "counted for {span}: no call began, so its calls last longer, or there was no work for it any more"
                ),
                _ => format!("counted for {span}: {calls} calls/s; none was timed"),
            };
            return say(finding, &text);
        };
        let p99 = p99.map(|p99| format!(", p99 {}", time(p99 as f64))).unwrap_or_default();
        let mut text = format!("timed for {span}: {calls} calls/s, mean {}{p99}", time(mean));
        let found = count as f64 * mean / 1e9 / seconds;
        let claimed = finding.share * activity;
        let contradicts = count >= CALLS_MIN && found < CLAIMED * claimed;
        // The looks may have seen calls that last longer than the trial, so the times of others refute no wait.
        if contradicts && count == timed.calls && !finding.hypothesis.waits() {
            finding.holds = false;
            text += &format!("; refuted: its calls take {found:.2} threads, the looks claim {claimed:.2}");
        } else {
            if contradicts {
                text += &format!(
                    "; these calls take {found:.2} threads, and the looks claim {claimed:.2}, so others last longer"
                );
            }
            // Of a wait, the times tell more than the samples.
            let function = finding.function.as_ref().filter(|_| finding.hypothesis.waits());
            if let Some(command) = function.map(|function| pasted.latency(function)) {
                finding.command = command;
            }
        }
        say(finding, &text);
    }
}

/// Puts what a trial found in the place of the words that no trial was made.
fn say(finding: &mut Finding, text: &str) {
    let evidence = finding.evidence.trim_end_matches(LOOKS_ALONE).trim_end_matches("; ");
    finding.evidence = format!("{evidence}; {text}");
}

/// Text about functions whose calls fail.
pub(super) fn failing(retried: &[(NamedFunction, u64, u64)]) -> String {
    let of = |(function, failed, all): &(NamedFunction, u64, u64)| {
        format!("{} of {} of {} failed", short(*failed as f64), plural(*all, "call", "calls"), function.function)
    };
    retried.iter().map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_api::{Details, KeyValue, Keys, PairInfo, Value};

    use super::super::tests::function;
    use super::*;

    fn finding(id: u64, parent: u64, hypothesis: Hypothesis, name: &str) -> Finding {
        Finding {
            id,
            parent: Some(parent),
            hypothesis,
            place: String::new(),
            share: 0.8,
            share_error: 0.1,
            holds: true,
            evidence: format!("seen; {LOOKS_ALONE}"),
            command: "ingraft hot".to_owned(),
            refuted_by: String::new(),
            function: Some(function(name)),
            mutex: None,
        }
    }

    fn result(calls: u64, times: Option<(u64, f64)>) -> TrialResult {
        let key = (function("m:f").module, function("m:f").offset.0);
        let times = times.map(|(count, mean)| (count, mean, Some(2_000_000)));
        let functions = vec![TriedFunction { key, calls, times, refused: None }];
        TrialResult { span: Duration::from_secs(2), functions, ..TrialResult::default() }
    }

    /// The finding of a wait in `m:f` after a trial with this result.
    fn judged(result: &TrialResult) -> Finding {
        judged_as(Hypothesis::Disk, result)
    }

    fn judged_as(hypothesis: Hypothesis, result: &TrialResult) -> Finding {
        let mut findings = [finding(3, 2, hypothesis, "m:f")];
        result.annotate(&mut findings, &Pasted::default(), 1.0);
        let [finding] = findings;
        finding
    }

    #[test]
    fn times_confirm_and_refute() {
        let confirmed = judged(&result(1000, Some((1000, 1_600_000.0))));
        assert!(confirmed.holds && confirmed.command.starts_with("ingraft latency"), "{confirmed:?}");
        assert_eq!(confirmed.evidence, "seen; timed for 2 s: 500 calls/s, mean 1.6 ms, p99 2 ms");
        let short = result(1000, Some((1000, 1_000.0)));
        let refuted = judged_as(Hypothesis::Processor, &short);
        assert!(!refuted.holds && refuted.evidence.contains("refuted"), "{refuted:?}");
        let longer = judged(&short);
        assert!(longer.holds && longer.evidence.contains("others last longer"), "{longer:?}");
        let in_progress = judged_as(Hypothesis::Processor, &result(1001, Some((1000, 1_000.0))));
        assert!(in_progress.holds, "{in_progress:?}");
        let few = judged(&result(3, Some((3, 1_000.0))));
        assert!(few.holds, "three calls refute nothing");
        let none = judged(&result(0, None));
        assert!(none.holds && none.evidence.contains("no call began") && none.command == "ingraft hot", "{none:?}");
    }

    #[test]
    fn what_was_not_tried_rests_on_looks() {
        let failed = judged(&TrialResult::failed("no such function".to_owned()));
        assert_eq!(failed.evidence, "seen; from looks alone: no such function");
        let mut refused = result(0, None);
        refused.functions[0].refused = Some("too short".to_owned());
        assert_eq!(judged(&refused).evidence, "seen; from looks alone: too short");
    }

    #[test]
    fn the_first_function_of_each_hypothesis_is_timed_first() {
        let findings = [
            finding(2, 1, Hypothesis::Disk, "m:whole"),
            finding(3, 2, Hypothesis::Disk, "m:a"),
            finding(4, 2, Hypothesis::Disk, "m:b"),
            finding(5, 9, Hypothesis::Sleeps, "m:c"),
            Finding { holds: false, ..finding(6, 9, Hypothesis::Sleeps, "m:d") },
            finding(7, 9, Hypothesis::Sleeps, "m:a"),
        ];
        assert_eq!(chosen(&findings), ["m:a", "m:c", "m:b"].map(function));
        let many: Vec<Finding> = (0..9).map(|n| finding(n, 100, Hypothesis::Disk, &format!("m:{n}"))).collect();
        assert_eq!(chosen(&many).len(), FUNCTIONS_MAX);
    }

    fn enabled(pairs: &[(&str, &str)]) -> Enabled {
        let pair = |(metric, name): &(&str, &str)| {
            let pair = MetricFocus { metric: (*metric).to_owned(), focus: Focus::default() };
            let function = Some(function(name)).filter(|_| !name.starts_with(':'));
            PairInfo { function, ..PairInfo::new(Arc::new(pair), crate::fake::metric(metric)) }
        };
        Enabled { pairs: Arc::new(pairs.iter().map(pair).collect()), ..Enabled::default() }
    }

    #[test]
    fn calls_that_mostly_fail_are_retries() {
        let failed =
            failed_calls(&CallSelection { condition: Some(FAILED.to_owned()), ..CallSelection::default() }).metric;
        let all = ExpressionMetric::new(Computed::Returns, &CallSelection::default()).metric;
        let enabled = enabled(&[(&failed, "c:read"), (&failed, "c:write"), (&all, "c:read"), (&all, "c:write")]);
        let values = [900, 200, 1000, 1000].map(Value::from).to_vec();
        let reading = Reading { time_ns: 1, values, ended: None };
        assert_eq!(retried(&enabled, &reading), [(function("c:read"), 900, 1000)]);
        assert_eq!(failing(&retried(&enabled, &reading)), "900 of 1,000 calls of read failed");
    }

    #[test]
    fn waits_are_told_by_mutex() {
        let keyed = |value| {
            let values = vec![KeyValue { key: 64, value, ..KeyValue::default() }];
            Value::new(value, Details { keys: Some(Keys { values, ..Keys::default() }), ..Details::default() })
        };
        let values = vec![keyed(3_000_000_000), keyed(800)];
        let reading = Reading { time_ns: 2_000_000_000, values, ended: None };
        let result = TrialResult::of(&enabled(&[(WAIT, ":"), (LOCKS, ":")]), &reading);
        let mut findings = [Finding { mutex: Some(64), function: None, ..finding(3, 2, Hypothesis::Locks, "m:f") }];
        result.annotate(&mut findings, &Pasted::default(), 4.0);
        let expected = "seen; timed for 2 s: 400 locks/s, 1.50 threads wait for it on average";
        assert_eq!(findings[0].evidence, expected);
    }
}
