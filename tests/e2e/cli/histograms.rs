//! Tests of histograms: the share of each function in the time, values by size, and the values of the latest interval.

use ingraft_testing::{Mutatee, Outcome, Tool};
use serde_json::Value;

use crate::tool;

/// Measures `nap` and `spin` while `spin` takes most of the time and `nap` has the slowest calls.
fn measured(tool: &Tool, sort: &str) -> Outcome {
    let mut target = Mutatee::start("times", &[]);
    let arguments = ["latency", "-p", &target.pid_text(), "nap", "spin", "around", "--sort", sort];
    let mut session = tool.start(arguments);
    session.wait_for("attached");
    // On a busy machine, a thread that computes loses its processor for tens of milliseconds at a time, so the naps are longer.
    target.ask("nap 2 60000");
    target.ask("spin 100 4000");
    session.interrupt().assert_code(0).assert_removed()
}

/// Returns the number of values in all `buckets`. Panics unless the buckets are in order and none is empty.
#[track_caller]
fn in_buckets(object: &Value) -> u64 {
    let buckets = object["buckets"].as_array().unwrap_or_else(|| panic!("no buckets: {object}"));
    let numbers =
        |bucket: &Value| -> Vec<u64> { bucket.as_array().into_iter().flatten().filter_map(Value::as_u64).collect() };
    let buckets: Vec<Vec<u64>> = buckets.iter().map(numbers).collect();
    assert!(buckets.iter().all(|b| b.len() == 3 && b[0] < b[1] && b[2] > 0), "{object}");
    assert!(buckets.windows(2).all(|pair| pair[0][0] < pair[1][0]), "{object}");
    buckets.iter().map(|bucket| bucket[2]).sum()
}

#[test]
fn latency_shows_where_the_time_goes() {
    let tool = tool();
    let names = |outcome: &Outcome| -> Vec<String> {
        outcome.all("latency").iter().filter_map(|l| l["function"].as_str().map(str::to_owned)).collect()
    };
    let by_total = measured(&tool, "total");
    assert_eq!(names(&by_total), ["spin", "nap", "around"]);
    assert_eq!(names(&measured(&tool, "max")), ["nap", "spin", "around"]);
    assert_eq!(names(&measured(&tool, "name")), ["around", "nap", "spin"]);
    let all = by_total.all("latency");
    let share = |l: &Value| l["share"].as_f64().expect("a share");
    assert!((all.iter().map(|l| share(l)).sum::<f64>() - 1.0).abs() < 1e-9, "{all:#?}");
    assert!(share(all[0]) > 0.6 && share(all[2]) == 0.0, "{all:#?}");
    for l in &all[..2] {
        let (calls, sum) = (l["calls"].as_f64().expect("calls"), l["sum_ns"].as_f64().expect("a sum"));
        assert!((l["mean_ns"].as_f64().expect("a mean") - sum / calls).abs() < 1.0, "{l}");
        assert_eq!(l["calls"].as_u64(), Some(in_buckets(l)), "{l}");
        let threads = l["threads"].as_array().expect("threads");
        assert_eq!(threads.iter().map(in_buckets).sum::<u64>(), in_buckets(l), "{l}");
    }
    assert!(all[2]["mean_ns"].is_null() && in_buckets(all[2]) == 0, "{}", all[2]);
}

#[test]
fn watch_tells_the_latest_interval_from_all_of_the_time() {
    let mut target = Mutatee::start("times", &[]);
    let pid = target.pid_text();
    let mut session = tool().start(["watch", "-p", &pid, "latency@/Code/times/nap", "--interval", "50ms"]);
    session.wait_for("attached");
    target.ask("nap 60 1000");
    target.ask("nap 20 30000");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let samples = outcome.all("sample");
    let number = |object: &Value, key: &str| object[key].as_u64();
    assert!(samples[0]["interval"].is_null(), "nothing is before the first sample: {}", samples[0]);
    let mut sum = number(samples[0], "value").expect("a value");
    for sample in &samples[1..] {
        let interval = &sample["interval"];
        assert!(number(interval, "ns").is_some_and(|ns| ns > 0), "{sample}");
        sum += number(interval, "count").expect("a count");
        assert_eq!(
            (number(sample, "value"), number(interval, "count")),
            (Some(sum), Some(in_buckets(interval))),
            "{sample}"
        );
        assert_eq!(number(sample, "value"), Some(in_buckets(sample)), "{sample}");
    }
    assert_eq!(sum, 80);
    let slow = |object: &Value| number(object, "p50").is_some_and(|p50| p50 >= 29_000_000);
    assert!(samples.iter().any(|sample| slow(&sample["interval"])), "{samples:#?}");
    assert!(samples.iter().all(|sample| !slow(sample)), "most of all calls are fast: {samples:#?}");
}
