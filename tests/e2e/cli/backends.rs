//! Tests of servers that fork a process for each client or on command. The tests follow the children from their beginning, and compare the
//! counts with the server's own statistics: no call may be lost.

use std::process::Stdio;

use ingraft_testing::server::{Nginx, Postgres, PostgresSession};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Outcome, Session, scaled, skip, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tool;

/// Watches metrics in a process and in the children that it will have. Returns when the process and `others`, its present children, are
/// attached.
pub(crate) fn follow(pid: i32, others: &[i32], metrics: &[&str]) -> Session {
    let pid = pid.to_string();
    let fixed = ["watch", "-p", &pid, "--follow", "fork", "--interval", "200ms", "--max-overhead", "10000"];
    let mut session = tool().start(fixed.iter().chain(metrics).copied());
    for _ in 0..=others.len() {
        session.wait_for("attached");
    }
    session
}

/// Returns the last value of a metric in a process, including the children that it had since the insertion.
#[track_caller]
pub(crate) fn value_in(outcome: &Outcome, pid: i32, metric: &str) -> i64 {
    let samples = outcome.all("sample");
    let of_pair = samples.into_iter().rfind(|s| s["metric"] == metric && s["pid"] == pid);
    of_pair.and_then(|s| s["value"].as_i64()).unwrap_or_else(|| panic!("no {metric} of {pid}: {outcome:#?}"))
}

/// Returns a statistic of the server over all statements, except those that ask for statistics.
fn told(sql: &mut PostgresSession, what: &str) -> f64 {
    let answer = sql.ask(&format!("select {what} from pg_stat_statements where query not like '%pg_stat%';"));
    answer.parse().expect("a number")
}

/// Runs pgbench, and compares the values measured in its backends with what the server reports. `processes` is the number of new backends.
fn pgbench(arguments: &[&str], processes: u64) {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut sql = postgres.session();
    sql.tell("create extension pg_stat_statements;");
    assert_eq!(sql.ask("select 1;"), "1");
    let before = Text::of(postgres.pid());
    let metrics = ["postgres_executions", "postgres_execution_time", "postgres_execution_latency"];
    let session = follow(postgres.pid(), &target::children(postgres.pid()), &metrics);
    assert_eq!(sql.ask("select pg_stat_statements_reset() is null;"), "f");
    let mut load = postgres.client("pgbench");
    load.args(["-n", "-c", "8"]).args(arguments).arg("postgres").stdout(Stdio::null()).stderr(Stdio::null());
    assert!(load.status().expect("pgbench").success());
    wait_until("its backends have ended", || postgres.backends() == [sql.pid]);
    let (calls, time) = (told(&mut sql, "sum(calls)") as i64, told(&mut sql, "sum(total_exec_time)"));
    let outcome = session.interrupt().assert_code(0);
    let of = |metric: &str| value_in(&outcome, postgres.pid(), metric);
    assert_eq!((of("postgres_executions"), of("postgres_execution_latency")), (calls, calls));
    let ms = of("postgres_execution_time") as f64 / 1e6;
    // PostgreSQL reads its own clock inside of the measured function, so its times are shorter. In a new process, the measured code lies
    // in
    // pages that the process has not touched.
    let off = 0.01 * time + 0.002 * calls as f64 + 0.02 * processes as f64;
    assert!((ms - time).abs() < off, "{ms} ms, but PostgreSQL says {time} ms in {calls} calls");
    println!("{calls} calls, {ms:.3} ms; PostgreSQL says {time:.3} ms");
    assert!(outcome.all("removed").iter().all(|removed| removed["text_restored"] != false), "{outcome:#?}");
    target::assert_clean(postgres.pid(), &before);
    target::assert_clean(sql.pid, &before);
    assert_eq!(sql.ask("select 1;"), "1");
}

#[test]
fn backends_that_stay() {
    pgbench(&["-t", &scaled(100, 5000).to_string()], 8);
}

#[test]
fn a_backend_for_each_transaction() {
    let each = scaled(25, 500);
    pgbench(&["-C", "-S", "-t", &each.to_string()], 8 * each);
}

#[test]
fn workers_that_replace_others() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let old = nginx.workers();
    let before = Text::of(nginx.pid());
    let session = follow(nginx.pid(), &old, &["nginx_requests"]);
    nginx.request(100);
    let mut rounds = 0;
    for round in 1..=scaled(3, 30) {
        let replaced = nginx.workers();
        kill(Pid::from_raw(nginx.pid()), Signal::SIGHUP).expect("it is ours");
        wait_until("the workers are new", || {
            let workers = nginx.workers();
            workers.len() == 2 && workers.iter().all(|worker| !replaced.contains(worker))
        });
        nginx.request(200);
        rounds = round;
    }
    let workers = nginx.workers();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(value_in(&outcome, nginx.pid(), "nginx_requests"), 200 * rounds.cast_signed());
    assert_eq!(old.iter().map(|&pid| value_in(&outcome, pid, "nginx_requests")).sum::<i64>(), 100);
    for pid in workers.into_iter().chain([nginx.pid()]) {
        target::assert_clean(pid, &before);
    }
    nginx.request(10);
}
