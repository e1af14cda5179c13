//! Tests of the shipped metrics, of the examples of the language reference, and of Paradyn's dialect: values must equal the program's own.

use std::path::Path;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, scaled, skip, source_directory};
use serde_json::Value;

use crate::tool;

/// A metric at a focus, and the value that the program reports for it.
struct Claim {
    pair: String,
    /// Key of the sample that holds the value.
    field: &'static str,
    value: i64,
    /// Largest allowed difference from `value`; 0 for everything but times.
    off: i64,
}

fn claims(reply: &Reply) -> Vec<Claim> {
    let claim = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| -> i64 { words[at].parse().expect("a number") };
        // A time may be off by a reading of the clock at each end, by delays on a busy machine between the two, and by one percent.
        let off = match words[0] {
            "is" => 0,
            "took" => number(2) / 100 + 50_000 * number(3),
            "computed" => number(2) / 100 + target::slice_slack_ns().cast_signed(),
            _ => return None,
        };
        let (metric, function) = words[1].split_once('@').expect("a pair");
        let focus = if function.is_empty() { String::new() } else { format!("@/Code/tally/{function}") };
        let (metric, field) = metric.strip_suffix(".sum").map_or((metric, "value"), |metric| (metric, "sum"));
        Some(Claim { pair: format!("{metric}{focus}"), field, value: number(2), off })
    };
    reply.lines.iter().filter_map(claim).collect()
}

/// Returns the last value of a pair (`METRIC@FOCUS`), summed over all targets.
#[track_caller]
pub(crate) fn value(outcome: &Outcome, pair: &str) -> i64 {
    last(outcome, pair, "value")
}

/// Returns the last value of a key in the samples of a pair (`METRIC@FOCUS`), summed over all targets.
#[track_caller]
pub(crate) fn last(outcome: &Outcome, pair: &str, field: &str) -> i64 {
    let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
    let samples = outcome.all("sample").into_iter().filter(|s| s["metric"] == metric && s["focus"] == focus);
    // A distribution without values has no sum.
    let nothing = (field == "sum").then_some(0);
    let number = |sample: &Value| sample[field].as_i64().or(nothing).expect("a number");
    let last: std::collections::BTreeMap<_, _> =
        samples.map(|sample| (sample["pid"].as_i64(), number(sample))).collect();
    assert!(!last.is_empty(), "no sample of {pair}: {outcome:#?}");
    last.values().sum()
}

/// Watches pairs in processes, with further definitions. Returns when all processes are attached.
pub(crate) fn watch(pids: &[i32], files: &[&str], pairs: &[&str]) -> Session {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let targets = pids.iter().flat_map(|pid| ["-p", pid]);
    let files = files.iter().flat_map(|file| ["-I", file]);
    let fixed = ["watch", "--interval", "500ms"].into_iter();
    let mut session = tool().start(fixed.chain(targets).chain(pairs.iter().copied()).chain(files));
    pids.iter().for_each(|_| _ = session.wait_for("attached"));
    session
}

/// Watches all pairs that the program will report while it obeys commands, and compares their values with the program's.
fn compare(program: &str, files: &[&str], commands: &[&str], wanted: impl Fn(&str) -> bool) {
    let known = |target: &mut Mutatee| {
        let told = commands.iter().map(|command| target.ask(command)).last().expect("a command");
        claims(&told).into_iter().filter(|claim| wanted(&claim.pair)).collect::<Vec<_>>()
    };
    let mut pairs: Vec<String> = known(&mut Mutatee::start(program, &[])).into_iter().map(|claim| claim.pair).collect();
    assert!(!pairs.is_empty());
    pairs.sort();
    pairs.dedup();
    let mut target = Mutatee::start(program, &[]);
    let before = Text::of(target.pid());
    let session = watch(&[target.pid()], files, &pairs.iter().map(String::as_str).collect::<Vec<_>>());
    let known = known(&mut target);
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let wrong: Vec<String> = known
        .iter()
        .map(|claim| (claim, last(&outcome, &claim.pair, claim.field)))
        .filter(|(claim, seen)| (seen - claim.value).abs() > claim.off)
        .map(|(claim, seen)| format!("{} ({}): {seen}, but the program says {}", claim.pair, claim.field, claim.value))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", outcome.stderr);
    target::assert_clean(target.pid(), &before);
}

fn study() -> String {
    format!("study {} 5000", scaled(4, 40))
}

#[test]
fn heap() {
    compare("tally", &[], &[&format!("heap {}", scaled(300, 30_000))], |_| true);
}

#[test]
fn files_and_sockets() {
    let (files, sockets) = (format!("files {}", scaled(300, 10_000)), format!("sockets {}", scaled(20, 300)));
    compare("tally", &[], &[&files, &sockets], |_| true);
}

#[test]
fn threads_and_their_locks() {
    compare("tally", &[], &[&format!("locks {} 6", scaled(100, 3000))], |_| true);
}

#[test]
fn waits() {
    compare("tally", &[], &[&format!("waits {} 4000", scaled(20, 200))], |_| true);
}

#[test]
fn work() {
    compare("tally", &[], &[&format!("work {} 2000", scaled(60, 600))], |_| true);
}

#[test]
fn compression_databases_and_encryption() {
    let headers = ["zlib.h", "sqlite3.h", "openssl/ssl.h"];
    if let Some(missing) = headers.iter().find(|header| !Path::new("/usr/include").join(header).exists()) {
        skip!("{missing} is not installed");
    }
    let commands = ["zlib", "sqlite", "tls"].map(|library| format!("{library} {}", scaled(100, 3000)));
    compare("libraries", &[], &commands.each_ref().map(String::as_str), |_| true);
}

#[test]
fn times_of_compression() {
    if !Path::new("/usr/include/zlib.h").exists() {
        skip!("zlib.h is not installed");
    }
    compare("libraries", &[], &[&format!("pack {}", scaled(20, 500))], |_| true);
}

fn in_source(name: &str) -> String {
    source_directory().join(name).to_str().expect("a path").to_owned()
}

#[test]
fn the_examples_of_the_paradyn_study_give_the_right_numbers() {
    let file = in_source("tests/golden/mdl/paradyn_examples.mdl");
    let of_it = ["heap_requests@", "large_write_bytes", "lock_wait@", "cpu_self@"];
    compare("tally", &[&file], &[&study()], |pair| of_it.iter().any(|metric| pair.starts_with(metric)));
}

#[test]
fn paradyns_metrics_and_those_of_calls() {
    let of_these =
        ["null_arguments@", "procedure_calls@", "io_ops@", "io_bytes@", "sync_ops@", "cpu_latency@", "self_latency@"];
    compare("tally", &[], &[&study()], |pair| of_these.iter().any(|metric| pair.starts_with(metric)));
}

#[test]
fn what_of_the_paradyn_study_does_not_apply_says_so() {
    let file = in_source("tests/golden/mdl/paradyn_examples.mdl");
    let target = Mutatee::start("tally", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let said = |pair: &str| tool().run(["watch", "-p", &pid, pair, "-I", &file, "--for", "100ms"]);
    // The first metric is for another kind of program, the second one is for loops only, and the third one finds nothing in this program.
    let _ = said("mpi_bytes_out").assert_error(2, &["mpi"]);
    let _ = said("loop_trips").assert_error(2, &["measures nothing without a focus"]);
    let outcome = said("queue_depth").assert_code(0).assert_removed();
    assert_eq!(value(&outcome, "queue_depth"), 0);
    assert!(outcome.stderr.contains("stays at 0"), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn restrictions_mean_what_the_reference_says() {
    let file = in_source("tests/e2e/mdl/semantics.mdl");
    compare("tally", &[&file], &[&study()], |pair| {
        ["careless_requests", "exclusive_requests", "my_large_writes"].iter().any(|metric| pair.starts_with(metric))
    });
}

#[test]
fn a_lock_and_a_function_restrict_together() {
    let file = in_source("tests/golden/mdl/paradyn_examples.mdl");
    let mut target = Mutatee::start("tally", &[]);
    let before = Text::of(target.pid());
    let address = target.ask("heap 1").after("mutex").to_owned();
    let both = |mutex: &str| format!("lock_wait@/Code/tally/study,/SyncObject/Mutex/{mutex}");
    let (this, other) = (both(&address), both("0x10"));
    let any = "lock_wait@/Code/tally/study,/SyncObject/Mutex";
    let session = watch(&[target.pid()], &[&file], &[&this, &other, any]);
    let own: i64 =
        target.ask(&study()).after("took lock_wait@study").split(' ').next().and_then(|n| n.parse().ok()).expect("ns");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    for pair in [this.as_str(), any] {
        let seen = value(&outcome, pair);
        assert!((seen - own).abs() < own / 100 + 400_000, "{pair}: {seen} ns, but the program says {own} ns");
    }
    assert_eq!(value(&outcome, &other), 0);
    target::assert_clean(target.pid(), &before);
}

/// Returns the examples of the language reference that have no findings.
fn examples() -> Vec<String> {
    let page = std::fs::read_to_string(source_directory().join("docs/mdl.md")).expect("the language reference");
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("```mdl") {
            let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push(text.join("\n") + "\n");
        }
    }
    found
}

#[test]
fn examples_of_the_reference_can_be_enabled() {
    let target = Mutatee::start("tally", &[]);
    let before = Text::of(target.pid());
    let mut metrics = 0;
    for text in examples() {
        let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
        std::fs::write(file.path(), &text).expect("an example");
        let name = file.path().to_str().expect("a path");
        for metric in text.lines().filter_map(|line| line.trim().strip_prefix("name \"")?.strip_suffix("\";")) {
            let focus = if text.contains("constraint perFunction") { "@/Code/tally/study" } else { "" };
            let pid = target.pid_text();
            let pair = format!("{metric}{focus}");
            let outcome = tool().run(["watch", "-p", &pid, &pair, "-I", name, "--for", "50ms", "--allow-calls"]);
            if text.contains("print(") {
                let _ = outcome.assert_error(2, &["ingraft print"]);
            } else if text.contains("hwCounter") && outcome.stderr.contains("event_not_counted") {
                println!("skipped: {metric}: this machine does not count its event");
            } else {
                let _ = outcome.assert_code(0).assert_removed();
            }
            metrics += 1;
        }
    }
    assert!(metrics >= 7, "{metrics} metrics found");
    target::assert_clean(target.pid(), &before);
}

#[test]
fn examples_of_the_reference_give_the_right_numbers() {
    let file = tempfile::Builder::new().suffix(".mdl").tempfile().expect("a file");
    // The examples at the beginning of the page are files of their own.
    std::fs::write(file.path(), examples().split_off(5).concat()).expect("the examples");
    let of_these = ["my_latency", "my_slow_calls"];
    compare("tally", &[file.path().to_str().expect("a path")], &[&study()], |pair| {
        of_these.iter().any(|metric| pair.starts_with(metric))
    });
}
