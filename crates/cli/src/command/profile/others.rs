//! Other measurements of a program that `profile times --measured FILE` reads from what `--format json` has printed: the records `latency` and
//! `caller`, and those of the metric `trips`.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader};
use std::path::Path;

use ingraft_report::{CallTarget, MeasuredCalls, OtherMeasurements, SavedProfile, UNPROFILED};
use serde::Deserialize;
use serde_json::Value;

use crate::exit::Failure;

use super::Counts;

/// A function of a file: the name of its module, and the offset of its first instruction.
type FunctionKey = (String, String);

/// A place of a call: the name of the module, the name of the function, and the offset of the call in the function.
type CallSiteKey = (String, String, String);

/// A loop: the name of the module, the name of the function, and the offset of the header in the function.
type LoopKey = (String, String, String);

/// The metric of the numbers of iterations.
const TRIPS: &str = "trips";

/// The records of files.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MeasuredRecords {
    calls: BTreeMap<FunctionKey, MeasuredCalls>,
    callees: BTreeMap<CallSiteKey, BTreeMap<FunctionKey, u64>>,
    /// Numbers of iterations in the place of times, for each process.
    trips: BTreeMap<LoopKey, BTreeMap<i32, MeasuredCalls>>,
}

/// A record, as far as it matters here.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ReadRecord {
    Latency(ReadLatency),
    Caller(ReadCaller),
    Sample(ReadSample),
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct ReadLatency {
    module: String,
    offset: String,
    timed: u64,
    mean_ns: Option<f64>,
    self_ns: Option<f64>,
    stddev_ns: Option<f64>,
    /// Only some calls have times.
    #[serde(default, rename = "if")]
    condition: Option<String>,
    #[serde(default)]
    clock: Option<String>,
    /// The clock was taken out before the end.
    #[serde(default)]
    taken_out_ns: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct ReadCaller {
    module: String,
    offset: String,
    caller_module: Option<String>,
    caller: Option<String>,
    call_site: Option<String>,
    calls: i64,
    /// Only some calls were counted.
    #[serde(default, rename = "if")]
    condition: Option<String>,
}

#[derive(Debug, Deserialize)]
struct ReadSample {
    pid: i32,
    metric: String,
    focus: String,
    value: i64,
    #[serde(default)]
    sum: Option<u64>,
    #[serde(default)]
    stddev: Option<f64>,
}

/// The loop of a focus `/Code/MODULE/FUNCTION/#loop@0xOFFSET`.
fn loop_of(focus: &str) -> Option<LoopKey> {
    let (place, header) = focus.strip_prefix("/Code/")?.rsplit_once("/#loop@")?;
    let (module, function) = place.split_once('/')?;
    Some((module.to_owned(), function.to_owned(), header.to_owned()))
}

/// The calls of two measurements together.
fn together(a: MeasuredCalls, b: MeasuredCalls) -> MeasuredCalls {
    let timed = a.timed.saturating_add(b.timed);
    if timed == 0 {
        return a;
    }
    let parts = [a.timed as f64 / timed as f64, b.timed as f64 / timed as f64];
    let mean = parts[0] * a.mean + parts[1] * b.mean;
    let stddev = a.stddev.zip(b.stddev).map(|(one, other)| {
        let within = parts[0] * one * one + parts[1] * other * other;
        (within + parts[0] * parts[1] * (a.mean - b.mean).powi(2)).sqrt()
    });
    let own = a.own.zip(b.own).map(|(one, other)| parts[0] * one + parts[1] * other);
    MeasuredCalls { timed, mean, own, stddev }
}

impl MeasuredRecords {
    /// Reads the records of files, one on each line.
    pub(super) fn read(files: &[impl AsRef<Path>]) -> Result<MeasuredRecords, Failure> {
        let mut records = MeasuredRecords::default();
        for path in files.iter().map(AsRef::as_ref) {
            let wrong = |what: String| {
                let hint =
                    "give the output of `ingraft latency`, `ingraft callers` or `ingraft watch` with --format json";
                Failure::usage(format!("{}: {what}", path.display()), hint)
            };
            let file = std::fs::File::open(path).map_err(|e| wrong(e.to_string()))?;
            let (mut is_empty, mut first_wrong) = (true, None);
            for (at, line) in BufReader::new(file).split(b'\n').enumerate() {
                let line = line.map_err(|e| wrong(e.to_string()))?;
                // A command that was measured prints to the same file, so that other lines mean nothing.
                let value: Option<Value> = serde_json::from_slice(&line).ok();
                let Some(value) = value.filter(|value| value.get("type").is_some_and(Value::is_string)) else {
                    continue;
                };
                match serde_json::from_value(value) {
                    Ok(record) => {
                        records.add(record);
                        is_empty = false;
                    }
                    Err(e) => first_wrong = first_wrong.or_else(|| Some(format!("line {}: {e}", at + 1))),
                }
            }
            if is_empty {
                return Err(wrong(first_wrong.unwrap_or_else(|| "there is no record in it".to_owned())));
            }
        }
        Ok(records)
    }

    fn add(&mut self, record: ReadRecord) {
        match record {
            ReadRecord::Latency(ReadLatency {
                module,
                offset,
                timed,
                mean_ns,
                self_ns,
                stddev_ns,
                condition,
                clock,
                taken_out_ns,
            }) => {
                let is_whole =
                    condition.is_none() && taken_out_ns.is_none() && clock.is_none_or(|clock| clock == "wall");
                let Some(mean) = mean_ns.filter(|_| timed > 0 && is_whole) else { return };
                let own = self_ns.map(|sum| sum / timed as f64);
                let calls = MeasuredCalls { timed, mean, own, stddev: stddev_ns };
                let all = self.calls.entry((module, offset));
                all.and_modify(|known| *known = together(*known, calls)).or_insert(calls);
            }
            ReadRecord::Caller(ReadCaller { condition: Some(_), .. }) => {}
            ReadRecord::Caller(ReadCaller { module, offset, caller_module, caller, call_site, calls, .. }) => {
                let (Some(place), Ok(calls)) = (caller_module.zip(caller).zip(call_site), u64::try_from(calls)) else {
                    return;
                };
                let ((caller_module, caller), call_site) = place;
                let callees = self.callees.entry((caller_module, caller, call_site)).or_default();
                let sum = callees.entry((module, offset)).or_default();
                *sum = sum.saturating_add(calls);
            }
            ReadRecord::Sample(ReadSample { pid, metric, focus, value, sum, stddev }) => {
                let Some((place, timed)) = loop_of(&focus).zip(u64::try_from(value).ok()) else { return };
                let Some(sum) = sum.filter(|_| metric == TRIPS && timed > 0) else { return };
                let trips = MeasuredCalls { timed, mean: sum as f64 / timed as f64, own: None, stddev };
                // Values are those since the request, so the newest record has all.
                self.trips.entry(place).or_default().insert(pid, trips);
            }
            ReadRecord::Other => {}
        }
    }

    /// Whether there is a time of a call.
    pub(super) fn has_times(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Assigns the records to the functions of a profile. A function that shares its name with another one of its module has no loops and no
    /// callees by call site, because records name it.
    pub(super) fn of<'p>(&self, all: impl Iterator<Item = Counts<'p>>, profile: &SavedProfile) -> OtherMeasurements {
        let calls = vec![None; profile.functions.len()];
        let mut others = OtherMeasurements { calls, ..OtherMeasurements::default() };
        let counts: Vec<Counts<'_>> = all.collect();
        let mut keys: HashMap<FunctionKey, usize> = HashMap::new();
        let mut names: HashMap<(&str, &str), usize> = HashMap::new();
        for one in &counts {
            let key = (one.id.module.clone(), one.id.offset.clone());
            if let Some(slot) = others.calls.get_mut(one.index) {
                *slot = self.calls.get(&key).copied();
            }
            keys.insert(key, one.index);
            *names.entry((&one.id.module, &one.id.function)).or_default() += 1;
        }
        for one in counts.iter().filter(|one| names.get(&(&*one.id.module, &*one.id.function)) == Some(&1)) {
            let trips: Vec<(usize, f64)> = self.trips_of(one).collect();
            if !trips.is_empty() {
                others.trips.insert(one.index, trips);
            }
            for site in one.counts.call_sites.iter().filter(|site| site.callee == CallTarget::Indirect) {
                let Some(block) = one.counts.blocks.get(site.block) else { continue };
                let place = (one.id.module.clone(), one.id.function.clone(), one.offset(block.last));
                let callees = self.callees.get(&place).into_iter().flatten();
                let known: Vec<(usize, u64)> =
                    callees.map(|(callee, calls)| (keys.get(callee).copied().unwrap_or(UNPROFILED), *calls)).collect();
                if known.iter().any(|(callee, _)| *callee != UNPROFILED) {
                    others.indirect.insert((one.index, site.block), known);
                }
            }
        }
        others
    }

    /// The variance of the number of iterations of loops of a function, by the indexes of their headers.
    fn trips_of(&self, counts: &Counts<'_>) -> impl Iterator<Item = (usize, f64)> {
        let is_its = |(module, function, _): &&LoopKey| *module == counts.id.module && *function == counts.id.function;
        let of = |(key, processes): (&LoopKey, &BTreeMap<i32, MeasuredCalls>)| {
            let header = (0..counts.counts.blocks.len()).find(|block| counts.block(*block).as_ref() == Some(&key.2))?;
            let all = processes.values().copied().reduce(together)?;
            Some((header, all.stddev?.powi(2)))
        };
        self.trips.iter().filter(move |(key, _)| is_its(key)).filter_map(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<MeasuredRecords, Failure> {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("write");
        MeasuredRecords::read(&[file.path()])
    }

    #[test]
    fn calls_of_several_processes_add_up() {
        let record = |timed, mean: f64, stddev: f64, own: u64| {
            format!(
                "{{\"type\":\"latency\",\"module\":\"m\",\"offset\":\"0x10\",\"timed\":{timed},\"mean_ns\":{mean},\"stddev_ns\":{stddev},\"self_ns\":{own}}}\n"
            )
        };
        let text = record(2, 10.0, 0.0, 20) + "\n{\"type\":\"attached\",\"pid\":1}\n" + &record(2, 20.0, 0.0, 20);
        let records = read(&text).expect("records");
        let expected = MeasuredCalls { timed: 4, mean: 15.0, own: Some(10.0), stddev: Some(5.0) };
        assert_eq!(records.calls.into_values().collect::<Vec<_>>(), [expected]);
    }

    #[test]
    fn callees_are_known_by_call_site() {
        let text = "{\"type\":\"caller\",\"module\":\"m\",\"offset\":\"0x10\",\"caller_module\":\"m\",\"caller\":\"f\",\
                    \"call_site\":\"0x8\",\"calls\":5}\n{\"type\":\"caller\",\"module\":\"m\",\"offset\":\"0x10\",\
                    \"caller_module\":null,\"caller\":null,\"call_site\":null,\"calls\":7}\n";
        let records = read(text).expect("records");
        let site = records.callees.get(&("m".to_owned(), "f".to_owned(), "0x8".to_owned())).expect("a call site");
        assert_eq!(site.values().copied().collect::<Vec<_>>(), [5]);
        assert!(!records.has_times());
    }

    #[test]
    fn the_newest_sample_of_trips_counts() {
        let sample = |metric: &str, value: i64, stddev: f64| {
            format!(
                "{{\"type\":\"sample\",\"pid\":1,\"metric\":\"{metric}\",\"focus\":\"/Code/m/a/b/#loop@0x8\",\"value\":{value},\
                 \"sum\":10,\"stddev\":{stddev}}}\n"
            )
        };
        let text = sample("trips", 1, 0.0) + &sample("trips", 5, 3.0) + &sample("iterations", 9, 9.0);
        let records = read(&text).expect("records");
        let trips = records.trips.get(&("m".to_owned(), "a/b".to_owned(), "0x8".to_owned())).expect("a loop");
        let expected = MeasuredCalls { timed: 5, mean: 2.0, own: None, stddev: Some(3.0) };
        assert_eq!(trips.get(&1), Some(&expected));
        assert_eq!(loop_of("/Code/m/f"), None);
    }

    #[test]
    fn other_files_are_refused() {
        let what = |text: &str| read(text).expect_err("no records").what;
        assert!(what("CALLS  FUNCTION\n").contains("no record"));
        assert!(what("{\"type\":\"latency\"}\n").contains("line 1"));
        assert!(MeasuredRecords::read(&["/nonexistent/file"]).is_err());
    }
}
