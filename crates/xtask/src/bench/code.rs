//! Measures the speed of the analysis, the share of functions in real programs that can be counted, and the memory that woven code takes.

use std::process::Command;
use std::time::Instant;

use ingraft_testing::server::{Nginx, Postgres, Redis};
use ingraft_testing::{Mutatee, Tool, source_directory, target};

use super::{BenchRow, median, short, tool};

pub fn rows() -> Vec<BenchRow> {
    let mut rows = Vec::new();
    match Postgres::start() {
        Ok(postgres) => {
            let session = postgres.session();
            rows.extend(speed(session.pid));
            rows.push(countable(session.pid, "postgres"));
            rows.extend(memory(session.pid));
        }
        Err(why) => rows.push(BenchRow::skipped("analysis of postgres", why)),
    }
    match Redis::start() {
        Ok(redis) => rows.push(countable(redis.pid(), "redis-server")),
        Err(why) => rows.push(BenchRow::skipped("countable functions of redis-server", why)),
    }
    match Nginx::start() {
        Ok(nginx) => rows.push(countable(nginx.workers()[0], "nginx")),
        Err(why) => rows.push(BenchRow::skipped("countable functions of nginx", why)),
    }
    let python = "/usr/bin/python3.11";
    if std::path::Path::new(python).exists() {
        let worker = source_directory().join("tests/mutatees/worker.py");
        let target = Mutatee::spawn(Command::new(python).arg("-u").arg(worker));
        rows.extend(["python3.11", "libc", "libcrypto"].map(|module| countable(target.pid(), module)));
    } else {
        rows.push(BenchRow::skipped(
            "countable functions of python3.11, libc, libcrypto",
            format!("{python} is not installed"),
        ));
    }
    rows
}

/// Measures the analysis: the time that a command takes longer with nothing cached than with everything cached.
fn speed(pid: i32) -> Vec<BenchRow> {
    let executable =
        target::maps(pid).into_iter().filter(|m| m.permissions.contains('x') && m.name.ends_with("/postgres"));
    let bytes: u64 = executable.map(|mapping| mapping.end - mapping.start).sum();
    let mut functions = 0;
    let mut timed = |tool: &Tool| {
        let start = Instant::now();
        let outcome = tool.run(["functions", "-p", &pid.to_string(), "postgres:*"]).assert_code(0);
        functions = outcome.all("function").len();
        start.elapsed().as_secs_f64()
    };
    let rounds: Vec<(f64, f64)> = (0..7)
        .map(|_| {
            let fresh = tool();
            (timed(&fresh), timed(&fresh))
        })
        .collect();
    let (cold, warm) = (median(rounds.iter().map(|r| r.0)), median(rounds.iter().map(|r| r.1)));
    let seconds = (cold - warm).max(1e-6);
    let detail =
        format!(" (`ingraft functions` takes {} ms, {} ms with the cache)", short(cold * 1e3), short(warm * 1e3));
    vec![
        BenchRow::at_least("analysis of postgres, code", bytes as f64 / 1e6 / seconds, 60.0, " MB/s", &detail),
        BenchRow::at_least("analysis of postgres, functions", functions as f64 / seconds, 100_000.0, "/s", ""),
    ]
}

fn countable(pid: i32, module: &str) -> BenchRow {
    let outcome = tool().run(["functions", "-p", &pid.to_string(), &format!("{module}:*")]).assert_code(0);
    let all = outcome.all("function");
    let refused = all.iter().filter(|function| function["how"]["entry"] == "refused").count();
    let percent = 100.0 * (all.len() - refused) as f64 / all.len() as f64;
    let detail = format!(" ({} of {})", all.len() - refused, all.len());
    BenchRow::at_least(format!("countable functions of {module}"), percent, 99.0, " %", &detail)
}

fn memory(pid: i32) -> Vec<BenchRow> {
    let tool = tool();
    let session = tool.count(pid, &["postgres:*"]);
    let inserted = tool.inserted(pid);
    let outcome = session.interrupt().assert_code(0);
    let functions = outcome.all("count").len() as f64;
    let bytes = inserted[0]["bytes"].as_f64().unwrap_or(f64::NAN);
    vec![BenchRow::at_most(
        "code in the target, a function",
        bytes / functions,
        64.0,
        " bytes",
        &format!(" ({bytes} for {functions})"),
    )]
}
