//! Measures how well `ingraft hot` finds planted functions, and what it costs the program. The samples of one program say little, so there are many
//! programs: 20, or `INGRAFT_BENCH_PROGRAMS`.

use std::time::{Duration, Instant};

use ingraft_testing::{Mutatee, Outcome, Session};
use serde_json::Value;

use super::{BenchRow, median, tool, trials};

/// Time within which the planted function is first.
const FIRST_WITHIN: Duration = Duration::from_secs(10);
/// Number of samples from which on shares are compared.
const ENOUGH: u64 = 400;
/// Beginning of the time in which the cost counts.
const WARM_UP: Duration = Duration::from_secs(3);
/// Length of that time.
const SPAN: Duration = Duration::from_secs(4);

pub fn rows() -> Vec<BenchRow> {
    let all = trials();
    let unit = format!(" of {all}");
    let running: Vec<HotSearch> = (0..all).map(|_| running()).collect();
    let waiting: Vec<HotSearch> = (0..all).map(|_| waiting()).collect();
    let mut rows = Vec::new();
    let count =
        |found: &[HotSearch], is_right: fn(&HotSearch) -> bool| found.iter().filter(|one| is_right(one)).count() as f64;
    let detail = |found: &[HotSearch]| {
        let times = found.iter().map(|one| one.took.as_secs_f64());
        let longest = times.clone().fold(0.0, f64::max);
        format!(" ({:.1} s in the median, {longest:.1} s at most)", median(times))
    };
    let mut row = |what: &str, found: &[HotSearch], is_right: fn(&HotSearch) -> bool| {
        let right = count(found, is_right);
        rows.push(BenchRow::at_least(what, right, all as f64, &unit, &detail(found)));
    };
    row("the function with 70 % of the processor time is the first within 10 s", &running, |one| one.is_first);
    row("shares of 70, 20 and 10 % within four standard errors", &running, |one| one.is_near);
    row("off-cpu: functions that sleep and wait for a lock are the first within 10 s", &waiting, |one| one.is_first);
    row("off-cpu: their shares of a half each within four standard errors", &waiting, |one| one.is_near);
    rows.push(cost());
    rows
}

/// Result of one program.
struct HotSearch {
    is_first: bool,
    is_near: bool,
    took: Duration,
}

/// Reads tables until there are enough samples. Returns the time that it took.
fn enough(session: &mut Session, begin: Instant) -> Duration {
    loop {
        let samples = session.wait_for("samples");
        if samples["base"].as_u64().is_some_and(|base| base >= ENOUGH) || begin.elapsed() > FIRST_WITHIN {
            return begin.elapsed();
        }
    }
}

/// The rows of the last table, in their order.
fn table(outcome: &Outcome) -> Vec<&Value> {
    let ends = outcome.objects.iter().enumerate().filter(|(_, object)| object["type"] == "samples").map(|(i, _)| i);
    let ends: Vec<usize> = ends.collect();
    let [.., before, last] = ends.as_slice() else { return outcome.all("hot") };
    outcome.objects[before + 1..*last].iter().filter(|object| object["type"] == "hot").collect()
}

/// A share and its standard error.
fn share(row: &Value, key: &str) -> (f64, f64) {
    let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    (number(key), number(&format!("{key}_error")))
}

fn running() -> HotSearch {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let begin = Instant::now();
    let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "200ms"]);
    let took = enough(&mut session, begin);
    let outcome = session.interrupt().assert_code(0);
    let truth = target.ask("rest");
    let rows = table(&outcome);
    let is_near = |function: &str| {
        let part = truth.number(&format!("ns {function}")) as f64 / truth.number("ns laps") as f64;
        let row = rows.iter().find(|row| row["function"] == function);
        row.is_some_and(|row| {
            let (share, error) = share(row, "self");
            (share - part).abs() <= 4.0 * error
        })
    };
    let is_near = ["seventy", "twenty", "ten"].into_iter().all(is_near);
    let is_first = took <= FIRST_WITHIN && rows.first().is_some_and(|row| row["function"] == "seventy");
    HotSearch { is_first, is_near, took }
}

fn waiting() -> HotSearch {
    let mut target = Mutatee::start("planted", &[]);
    let threads = [target.ask("sleep").number("tid sleeper"), target.ask("lock").number("tid waiter")];
    let [sleeper, waiter] = threads.map(|tid| tid.to_string());
    let begin = Instant::now();
    let pid = target.pid_text();
    let arguments = ["hot", "-p", &pid, "planted:*", "--off-cpu", "--sort", "total", "--interval", "200ms"];
    let threads = ["--thread", &sleeper, "--thread", &waiter];
    let mut session = tool().start(arguments.into_iter().chain(threads));
    let took = enough(&mut session, begin);
    let outcome = session.interrupt().assert_code(0);
    target.ask("unlock");
    target.ask("wake");
    let rows = table(&outcome);
    let names = ["sleeps", "waits_for_lock"];
    let first: Vec<&&Value> = rows.iter().take(2).collect();
    let is_first = names.iter().all(|name| first.iter().any(|row| row["function"] == *name));
    // Each of two threads waits nearly all the time.
    let is_near = |row: &&&Value| {
        let (share, _) = share(row, "total");
        let base = outcome.all("samples").last().and_then(|samples| samples["base"].as_f64()).unwrap_or(f64::NAN);
        (share - 0.5).abs() <= 4.0 * (0.25 / base).sqrt()
    };
    let is_near = first.len() == 2 && first.iter().all(is_near);
    HotSearch { is_first: is_first && took <= FIRST_WITHIN, is_near, took }
}

/// Processor time of a lap of the busy thread while it is sampled, beside the same without samples.
fn cost() -> BenchRow {
    let mut target = Mutatee::start("planted", &[]);
    target.ask("run");
    let lap = |target: &mut Mutatee| {
        let numbers = |target: &mut Mutatee| {
            let reply = target.ask("tell");
            (reply.number("laps") as f64, reply.number("ns laps") as f64)
        };
        let (laps, ns) = numbers(target);
        std::thread::sleep(SPAN);
        let (more_laps, more_ns) = numbers(target);
        (more_ns - ns) / (more_laps - laps)
    };
    let ratios: Vec<f64> = (0..5)
        .map(|_| {
            let plain = lap(&mut target);
            let mut session = tool().start(["hot", "-p", &target.pid_text(), "--interval", "1s"]);
            session.wait_for("samples");
            std::thread::sleep(WARM_UP);
            let sampled = lap(&mut target);
            drop(session.interrupt().assert_code(0));
            sampled / plain
        })
        .collect();
    target.ask("rest");
    let percent = 100.0 * (median(ratios) - 1.0);
    BenchRow::at_most("a program that is sampled is slower, after 3 s", percent, 2.0, " %", "")
}
