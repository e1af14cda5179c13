//! Checks of the answers of `ingraft`: relations that hold within each answer, whatever the server did.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_testing::Outcome;
use serde_json::Value;

/// Largest difference of two times in nanoseconds that comes from rounding: moments and times are rounded each by itself.
const ROUNDING_NS: u64 = 2;
/// Largest number of faults of one answer that are told.
const FAULTS_MAX: usize = 5;

/// Returns what is wrong with an answer, each fault with a record that has it.
pub fn faults(outcome: &Outcome) -> Vec<String> {
    let mut found = Vec::new();
    found.extend(outcome.other.iter().map(|line| format!("a line that is no JSON: {line}")));
    let objects = outcome.stderr.lines().filter(|line| serde_json::from_str::<Value>(line).is_err());
    found.extend(objects.map(|line| format!("a line on standard error that is no JSON: {line}")));
    for removed in outcome.all("removed") {
        let is_gone = !outcome.all("ended").is_empty();
        let is_clean = removed["text_restored"] == true && removed["children_left"] == Value::Array(Vec::new());
        if !is_clean && !is_gone {
            found.push(format!("not removed: {removed}"));
        }
    }
    for object in &outcome.objects {
        let fault = match object["type"].as_str() {
            Some("slow") => slow(object),
            Some("calls") => calls(outcome, object),
            Some("count") => count(object),
            Some("latency") => latency(object),
            Some(_) => None,
            None => Some("a record without a type".to_owned()),
        };
        found.extend(fault.map(|fault| format!("{fault}: {}", shortened(&object.to_string()))));
    }
    // With --interval, the same contexts are told several times.
    if outcome.all("profile").is_empty() {
        found.extend(contexts(&outcome.objects));
        found.extend(paths(&outcome.objects));
    }
    found.truncate(FAULTS_MAX);
    found
}

/// The first part of a long record.
fn shortened(text: &str) -> String {
    text.chars().take(2000).collect()
}

fn number(object: &Value, key: &str) -> u64 {
    object[key].as_u64().unwrap_or(0)
}

/// Whether a name stands for a function that is known.
fn is_name(value: &Value) -> bool {
    value.as_str().is_some_and(|name| !name.is_empty() && !name.starts_with("0x") && !name.contains('?'))
}

/// Returns what is wrong with a slow call and the calls inside.
fn slow(call: &Value) -> Option<String> {
    let inside = call["calls"].as_array()?;
    let elapsed = call["elapsed_ns"].as_u64();
    let own = call["self_ns"].as_u64();
    let (Some(elapsed), Some(own)) = (elapsed, own) else { return Some("a time that is no number".to_owned()) };
    if !is_name(&call["module"]) || !is_name(&call["function"]) {
        return Some("an unknown function".to_owned());
    }
    let sum: u64 = own + inside.iter().map(|call| number(call, "elapsed_ns")).sum::<u64>();
    if sum != elapsed {
        return Some(format!("own times add up to {sum} of {elapsed} ns in {}", call["function"]));
    }
    // The slow call itself has no `at_ns`: it begins at 0.
    let begin = number(call, "at_ns");
    let mut earliest = begin;
    for child in inside {
        let at = number(child, "at_ns");
        if at + ROUNDING_NS < earliest {
            return Some(format!("{} begins at {at}, before {earliest}", child["function"]));
        }
        earliest = at + number(child, "elapsed_ns");
    }
    if earliest > begin + elapsed + ROUNDING_NS {
        return Some(format!("calls inside of {} end at {earliest}, after {}", call["function"], begin + elapsed));
    }
    inside.iter().find_map(slow)
}

/// Returns what is wrong with the numbers of printed calls.
fn calls(outcome: &Outcome, calls: &Value) -> Option<String> {
    let parts = ["printed", "unmet", "skipped", "lost", "left"].map(|key| number(calls, key));
    let sum: u64 = parts.iter().sum();
    if sum != number(calls, "calls") {
        return Some(format!("the parts add up to {sum}"));
    }
    let shown = outcome.all("slow").into_iter().filter(|slow| slow["pid"] == calls["pid"]).count();
    (shown as u64 != parts[0]).then(|| format!("{shown} slow calls are shown"))
}

fn count(count: &Value) -> Option<String> {
    let Some(calls) = count["calls"].as_u64() else { return Some("no number of calls".to_owned()) };
    let threads = count["threads"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum: u64 = threads.iter().map(|thread| number(thread, "calls")).sum();
    (sum != calls).then(|| format!("the threads have {sum} calls"))
}

fn latency(latency: &Value) -> Option<String> {
    let buckets = latency["buckets"].as_array().map(Vec::as_slice).unwrap_or_default();
    let sum: u64 = buckets.iter().map(|bucket| bucket[2].as_u64().unwrap_or(0)).sum();
    let timed = number(latency, "timed");
    if sum != timed {
        return Some(format!("the buckets have {sum} calls, {timed} are timed"));
    }
    if timed > number(latency, "calls") {
        return Some("more calls are timed than were made".to_owned());
    }
    let ranks = ["min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns"].map(|key| number(latency, key));
    // Percentiles are within 4 % of the true ones.
    let is_ordered = ranks.windows(2).all(|pair| pair[0] <= pair[1] + pair[1] / 20);
    if timed > 0 && !is_ordered {
        return Some("percentiles that are not in order".to_owned());
    }
    let own = latency["self_ns"].as_u64().unwrap_or(0);
    (own > number(latency, "sum_ns") + 1 && number(latency, "unseen") == 0)
        .then(|| "more own time than time".to_owned())
}

/// Key of a function in one process.
type SoakFunction = (u64, String, String, String);

fn key(object: &Value) -> SoakFunction {
    let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
    (number(object, "pid"), text("module"), text("function"), text("offset"))
}

/// Returns what is wrong with calling contexts.
fn contexts(objects: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let mut parents: BTreeMap<(u64, u64), Option<u64>> = BTreeMap::new();
    let mut nodes: BTreeMap<u64, u64> = BTreeMap::new();
    for context in objects.iter().filter(|object| object["type"] == "context") {
        let (pid, id, parent) = (number(context, "pid"), number(context, "id"), context["parent"].as_u64());
        let told = shortened(&context.to_string());
        if parent.is_some_and(|parent| !parents.contains_key(&(pid, parent))) {
            found.push(format!("a parent that is not told before: {told}"));
        }
        if !is_name(&context["module"]) || !is_name(&context["function"]) {
            found.push(format!("an unknown function: {told}"));
        }
        let metrics = context["metrics"].as_object();
        if metrics.is_some_and(|metrics| metrics.values().any(|value| value.as_u64().is_none())) {
            found.push(format!("a negative value: {told}"));
        }
        if context["kind"] == "recursion" {
            let back_to = context["back_to"].as_u64();
            let mut above = parent;
            while above.is_some() && above != back_to {
                above = above.and_then(|id| parents.get(&(pid, id)).copied().flatten());
            }
            if above.is_none() {
                found.push(format!("a recursion that leads to no context above: {told}"));
            }
        } else {
            *nodes.entry(pid).or_default() += 1;
        }
        parents.insert((pid, id), parent);
    }
    found
}

/// Numbers of the paths of one function.
#[derive(Default)]
struct PathSums {
    entries: u64,
    exits: u64,
    /// Paths that begin at a block behind those that have ended there.
    next: BTreeMap<String, i128>,
}

/// Returns what is wrong with paths. Each path that begins at a loop follows one that has ended there, and each call ends once; both up to the
/// paths that are not told.
fn paths(objects: &[Value]) -> Vec<String> {
    let mut sums: BTreeMap<SoakFunction, PathSums> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for path in objects.iter().filter(|object| object["type"] == "path") {
        let count = number(path, "count");
        if !seen.insert((key(path), number(path, "path"), path["context"].as_u64())) {
            found.push(format!("a path that is told twice: {}", shortened(&path.to_string())));
        }
        let sums = sums.entry(key(path)).or_default();
        if path["begins"] == "entry" {
            sums.entries += count;
        }
        if path["ends"] == "exit" {
            sums.exits += count;
        }
        if path["begins"] == "loop" {
            *sums.next.entry(path["blocks"][0].to_string()).or_default() += i128::from(count);
        }
        if path["ends"] == "loop" {
            *sums.next.entry(path["next"].to_string()).or_default() -= i128::from(count);
        }
    }
    for whole in objects.iter().filter(|object| object["type"] == "paths" && object["inexact"].is_null()) {
        let Some(sums) = sums.get(&key(whole)) else { continue };
        let untold: u64 = ["late", "open", "left", "unlisted"].iter().map(|key| number(whole, key)).sum();
        let elsewhere = |key: &str, value: &str| {
            let is = |object: &&Value| object["type"] == "path" && object[key] == value;
            objects.iter().filter(is).any(|object| self::key(object) == self::key(whole))
        };
        if sums.entries.abs_diff(sums.exits) > untold && !elsewhere("begins", "elsewhere") && !elsewhere("ends", "call")
        {
            let (entries, exits) = (sums.entries, sums.exits);
            found
                .push(format!("{entries} paths from the entry, {exits} to an exit: {}", shortened(&whole.to_string())));
        }
        for (block, rest) in &sums.next {
            if rest.unsigned_abs() > u128::from(untold) {
                let told = shortened(&whole.to_string());
                found.push(format!("{rest} more paths begin at {block} than have ended there: {told}"));
            }
        }
    }
    found
}

/// Number of calls of a function by an answer, of all processes: by its counts, its contexts, or its paths from the entry. `None` if the
/// function is refused.
pub fn calls_of(outcome: &Outcome, function: &str) -> Option<u64> {
    let is_it = |object: &&Value| {
        let name = object["function"].as_str().unwrap_or_default();
        // Names of C++ have the types of the arguments behind them, and some have the version of the library before these.
        name == function || name.strip_prefix(function).is_some_and(|rest| rest.starts_with(['(', '[']))
    };
    if outcome.all("refused").iter().any(is_it) {
        return None;
    }
    let of_kind = |kind: &str| outcome.all(kind).into_iter().filter(is_it).collect::<Vec<_>>();
    let sum = |objects: Vec<&Value>, key: &str| objects.iter().map(|object| number(object, key)).sum::<u64>();
    // With both, `profile paths --contexts` told them.
    if !outcome.all("path").is_empty() || !outcome.all("paths").is_empty() {
        let entries = of_kind("path").into_iter().filter(|path| path["begins"] == "entry").collect();
        return Some(sum(entries, "count"));
    }
    Some(["count", "context", "latency"].into_iter().map(|kind| sum(of_kind(kind), "calls")).sum())
}
