//! Measures commands about whole programs: all functions of a large program, many processes at once, the replay of a long trace.

use std::io::Read;
use std::process::Stdio;
use std::time::Instant;

use ingraft_testing::server::Postgres;
use ingraft_testing::{Mutatee, Tool, open_directory, program, target};

use super::{BenchRow, median, short, tool};

/// Number of commands of which the median is taken.
const ROUNDS: usize = 5;

/// Number of processes that one command measures.
const PROCESSES: usize = 50;

/// Number of lines of a replay for which the limit holds, and the size of the traced run that has about as many.
const LINES: f64 = 6e6;
const RUN: &str = "90000";

pub fn rows() -> Vec<BenchRow> {
    let mut rows = Vec::new();
    match Postgres::start() {
        Ok(postgres) => {
            let session = postgres.session();
            let pid = session.pid.to_string();
            let edges = ["profile", "edges", "-p", &pid, "postgres:*"];
            let times = ["latency", "-p", &pid, "postgres:*"];
            let what = "all functions of a PostgreSQL backend";
            rows.push(attached(&format!("an edge profile of {what}, cold"), &edges, (1, 4.0), None));
            let warm = warm_tool(&edges, 1);
            rows.push(attached(&format!("an edge profile of {what}, cached"), &edges, (1, 1.5), Some(&warm)));
            let warm = warm_tool(&times, 1);
            rows.push(attached(&format!("times of {what}, cached"), &times, (1, 1.0), Some(&warm)));
        }
        Err(why) => rows.push(BenchRow::skipped("all functions of a PostgreSQL backend", why)),
    }
    rows.push(processes());
    rows.push(replay());
    rows
}

/// A tool with the files that a command leaves for later ones. The command attaches to `targets` targets.
fn warm_tool(arguments: &[&str], targets: usize) -> Tool {
    let tool = tool();
    let mut session = tool.start(arguments);
    (0..targets).for_each(|_| drop(session.wait_for("attached")));
    let _ = session.interrupt().assert_code(0);
    tool
}

/// Measures the time from the start of a command until it has attached to `targets` targets, and its processor time until then. Without
/// `warm`, nothing is cached.
fn attached(what: &str, arguments: &[&str], (targets, limit): (usize, f64), warm: Option<&Tool>) -> BenchRow {
    let measured: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let cold = tool();
            let start = Instant::now();
            let mut session = warm.unwrap_or(&cold).start(arguments);
            (0..targets).for_each(|_| drop(session.wait_for("attached")));
            let both = (start.elapsed().as_secs_f64(), target::processor_seconds(session.pid()));
            let outcome = session.interrupt().assert_code(0);
            assert_eq!(outcome.all("removed").len(), targets, "{outcome:?}");
            both
        })
        .collect();
    let detail = format!(" ({} s of processor time)", short(median(measured.iter().map(|(_, used)| *used))));
    BenchRow::at_most(what, median(measured.iter().map(|(elapsed, _)| *elapsed)), limit, " s", &detail)
}

fn processes() -> BenchRow {
    let targets: Vec<Mutatee> = (0..PROCESSES).map(|_| Mutatee::start("bench", &[])).collect();
    let pids: Vec<String> = targets.iter().map(Mutatee::pid_text).collect();
    let mut arguments = vec!["count"];
    pids.iter().for_each(|pid| arguments.extend(["-p", pid]));
    arguments.push("*");
    let warm = warm_tool(&arguments, PROCESSES);
    let what = format!("counts of all functions of {PROCESSES} processes");
    attached(&what, &arguments, (PROCESSES, 1.2), Some(&warm))
}

/// Measures how long `ingraft replay` takes to print the sequence of blocks of a long run.
fn replay() -> BenchRow {
    let directory = open_directory();
    let file = directory.path().join("determ.trace").display().to_string();
    let what = "replay of 6 million lines";
    let determ = match program("determ") {
        Ok(determ) => determ.display().to_string(),
        Err(why) => return BenchRow::skipped(what, why),
    };
    let functions = ["hash_step", "hash_text", "fib", "even", "odd", "compare"];
    let trace =
        [&["trace", "-o", &file, "--until-exit", "--own-status"], &functions[..], &["--", &determ, RUN]].concat();
    let _ = tool().run(trace).assert_code(0);
    let rounds: Vec<(f64, f64)> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            let mut replay = tool().plain_command(["replay", &file]).stdout(Stdio::piped()).spawn().expect("ingraft");
            let mut output = replay.stdout.take().expect("stdout is piped");
            let (mut lines, mut bytes) = (0, vec![0; 1 << 16]);
            while let Ok(read @ 1..) = output.read(&mut bytes) {
                lines += bytes[..read].iter().filter(|byte| **byte == b'\n').count();
            }
            assert!(replay.wait().is_ok_and(|status| status.success()));
            (start.elapsed().as_secs_f64(), lines as f64)
        })
        .collect();
    let lines = median(rounds.iter().map(|(_, lines)| *lines));
    let seconds = median(rounds.iter().map(|(elapsed, lines)| elapsed * LINES / lines));
    BenchRow::at_most(what, seconds, 2.0, " s", &format!(" (from {} lines)", short(lines)))
}
