//! The shipped metrics, each against what the program says of itself.

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, Reply, Session, scaled};

use crate::tool;

/// A metric, a function of the program that restricts it, and the value that the program knows.
struct Claim {
    pair: String,
    value: i64,
    /// Calls that took it, if it is a time.
    calls: Option<i64>,
}

fn claims(reply: &Reply) -> Vec<Claim> {
    let claim = |line: &String| {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).map(|word| word.parse().expect("a number"));
        let calls = match words.first() {
            Some(&"is") => None,
            Some(&"took") => number(4),
            _ => return None,
        };
        Some(Claim { pair: format!("{}@/Code/tally/{}", words[1], words[2]), value: number(3)?, calls })
    };
    reply.lines.iter().filter_map(claim).collect()
}

/// The last value of a pair, as `METRIC@FOCUS`.
#[track_caller]
pub(crate) fn value(outcome: &Outcome, pair: &str) -> i64 {
    let (metric, focus) = pair.split_once('@').unwrap_or((pair, ""));
    let mut samples = outcome.all("sample").into_iter();
    let last = samples.rfind(|sample| sample["metric"] == metric && sample["focus"] == focus);
    let last = last.unwrap_or_else(|| panic!("no sample of {pair}: {outcome:#?}"));
    last["value"].as_i64().expect("a value is a number")
}

pub(crate) fn watch(pids: &[i32], pairs: &[&str]) -> Session {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let targets = pids.iter().flat_map(|pid| ["-p", pid]);
    let mut session = tool().start(["watch", "--interval", "500ms"].into_iter().chain(targets).chain(pairs.iter().copied()));
    pids.iter().for_each(|_| _ = session.wait_for("attached"));
    session
}

/// Runs commands of the program with all metrics that it knows the values of, and compares.
fn compare(commands: &[String]) {
    let pairs: Vec<String> = {
        let mut rehearsal = Mutatee::start("tally", &[]);
        let told = commands.iter().map(|command| rehearsal.ask(command)).last().expect("a command");
        claims(&told).into_iter().map(|claim| claim.pair).collect()
    };
    assert!(!pairs.is_empty());
    let mut target = Mutatee::start("tally", &[]);
    let before = Text::of(target.pid());
    let session = watch(&[target.pid()], &pairs.iter().map(String::as_str).collect::<Vec<_>>());
    let told = commands.iter().map(|command| target.ask(command)).last().expect("a command");
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let wrong: Vec<String> = claims(&told)
        .into_iter()
        .filter_map(|Claim { pair, value: own, calls }| {
            let seen = value(&outcome, &pair);
            // A call of a clock at each end, and for the rest one percent.
            let off = calls.map_or(0, |calls| own / 100 + 20_000 * calls);
            ((seen - own).abs() > off).then(|| format!("{pair}: {seen}, but the program says {own}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}\n{}", outcome.stderr);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn heap() {
    compare(&[format!("heap {}", scaled(300, 30_000))]);
}

#[test]
fn files_and_sockets() {
    compare(&[format!("files {}", scaled(300, 10_000)), format!("sockets {}", scaled(20, 300))]);
}

#[test]
fn threads_and_their_locks() {
    compare(&[format!("locks {} 6", scaled(100, 3000))]);
}

#[test]
fn waits() {
    compare(&[format!("waits {} 4000", scaled(20, 200))]);
}
