//! Measures all functions of a server at once, under load. Calls are exact, times are close to those of functions that are measured alone,
//! and nearly all functions have counts of their edges.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use ingraft_testing::server::{Nginx, Postgres, PostgresSession};
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Outcome, scaled, skip};

use crate::tool;

/// Largest ratio of a function's time among all functions to its time alone. Code and data of the measurement take their part of the
/// caches, measured callees take time of their own, and buckets are coarser (a quarter of a value).
const TIMES: u64 = 6;
/// Difference in nanoseconds that is always allowed between the two times: some calls miss the caches.
const SLACK_NS: u64 = 300;

fn times(outcome: &Outcome, function: &str) -> [u64; 2] {
    let rows = outcome.all("latency");
    let row = rows.iter().find(|row| row["function"] == function).unwrap_or_else(|| panic!("no {function}"));
    ["calls", "p50_ns"].map(|key| row[key].as_u64().unwrap_or_else(|| panic!("no {key}: {row}")))
}

/// Compares the median of a function among all functions with its median alone.
#[track_caller]
fn assert_alike(function: &str, all: u64, alone: u64) {
    println!("{function}: {all} ns among all, {alone} ns alone");
    assert!(2 * all + SLACK_NS >= alone && all <= TIMES * alone + SLACK_NS, "{function}: {all} ns, alone {alone} ns");
}

#[test]
fn of_a_postgresql_backend() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut sql = postgres.session();
    let statements = scaled(500, 20_000);
    let load = |sql: &mut PostgresSession| {
        for n in 0..statements {
            let balance = sql.ask(&format!("select abalance from pgbench_accounts where aid = {};", n % 1000 + 1));
            assert_eq!(balance, "0");
        }
    };
    load(&mut sql);
    let before = Text::of(sql.pid);
    let pid = sql.pid.to_string();
    let fixed = ["latency", "-p", &pid, "--max-overhead", "10000"];
    let mut session = tool().start(fixed.into_iter().chain(["postgres:*"]));
    session.wait_for("attached");
    load(&mut sql);
    let all = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(sql.pid, &before);
    // Each statement calls these functions once.
    for function in ["PortalStart", "PortalRun", "ExecutorStart", "ExecutorRun", "raw_parser", "standard_planner"] {
        assert_eq!(times(&all, function)[0], statements, "{function}");
    }
    // These call few functions that are measured too: each such call costs two readings of the clock, which take 10 ns and more each on some machines.
    let ten = [
        "hash_bytes",
        "hash_search_with_hash_value",
        "LWLockAcquire",
        "LWLockRelease",
        "palloc",
        "MemoryContextAllocZeroAligned",
        "lappend",
        "palloc0",
        "ReleaseCatCache",
        "ResourceOwnerEnlargeBuffers",
    ];
    for function in ten {
        let mut session = tool().start(fixed.into_iter().chain([function]));
        session.wait_for("attached");
        load(&mut sql);
        let alone = session.interrupt().assert_code(0).assert_removed();
        assert_alike(function, times(&all, function)[1], times(&alone, function)[1]);
    }
    target::assert_clean(sql.pid, &before);
}

/// The code that only counts comes first, and leaves room in its arenas for the code that times.
#[test]
fn of_the_libraries_of_a_program() {
    if !ingraft_testing::have("lua5.4") {
        skip!("lua5.4 is not installed");
    }
    let mut lua = Command::new("lua5.4");
    lua.args([
        "-e",
        "print('ready') io.stdout:flush() io.read() for i = 1, 20000 do string.format('%d', i) end io.read()",
    ]);
    let mut lua = lua.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("lua5.4 starts");
    let pid = i32::try_from(lua.id()).expect("a process id");
    // The loader reads too, so the program itself tells that its libraries are loaded.
    let mut line = String::new();
    BufReader::new(lua.stdout.take().expect("stdout is piped")).read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let before = Text::of(pid);
    let number = pid.to_string();
    for command in [&["latency"][..], &["profile", "contexts"]] {
        let own = [command, &["-p", &number, "*", "--max-overhead", "10000"]].concat();
        let mut session = tool().start(own);
        session.wait_for("attached");
        let _ = session.interrupt().assert_code(0).assert_removed();
        target::assert_clean(pid, &before);
    }
    lua.kill().expect("lua5.4 ends");
    lua.wait().expect("lua5.4 ends");
}

#[test]
fn of_the_workers_of_nginx() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    let workers = nginx.workers();
    let before = Text::of(workers[0]);
    let pids: Vec<String> = workers.iter().map(ToString::to_string).collect();
    let fixed = ["latency", "-p", &pids[0], "-p", &pids[1], "--max-overhead", "10000"];
    let requests = scaled(1000, 50_000);
    let load = || (0..4).for_each(|_| nginx.request(requests as usize / 4));
    load();
    let measure = |function: &str| {
        let mut session = tool().start(fixed.into_iter().chain([function]));
        workers.iter().for_each(|_| drop(session.wait_for("attached")));
        load();
        let outcome = session.interrupt().assert_code(0);
        workers.iter().for_each(|&pid| target::assert_clean(pid, &before));
        outcome
    };
    let together = |outcome: &Outcome, function: &str| {
        let rows = outcome.all("latency").into_iter().filter(|row| row["function"] == function);
        rows.fold((0, 0), |(calls, time), row| {
            let of = |key: &str| row[key].as_u64().unwrap_or(0); // a worker without a call has no time
            (calls + of("calls"), time.max(of("p50_ns")))
        })
    };
    let all = measure("nginx:*");
    // Each request calls these functions once.
    for function in ["ngx_http_process_request", "ngx_http_handler", "ngx_http_send_header"] {
        assert_eq!(together(&all, function).0, requests, "{function}");
    }
    for function in ["ngx_http_parse_request_line", "ngx_http_parse_header_line", "ngx_palloc", "ngx_hash_find"] {
        let alone = measure(function);
        assert_eq!(together(&alone, function).0, together(&all, function).0, "{function}");
        assert_alike(function, together(&all, function).1, together(&alone, function).1);
    }
}

/// The server reports errors in its signal handlers, and the code for that calls half of the program. One of its libraries ends threads.
#[test]
fn edges_of_a_postgresql_backend() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut sql = postgres.session();
    assert_eq!(sql.ask("select 6 * 7;"), "42");
    let before = Text::of(sql.pid);
    let arguments = ["profile", "edges", "-p", &sql.pid.to_string(), "--max-overhead", "10000", "postgres:*"];
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    for _ in 0..100 {
        assert_eq!(sql.ask("select 6 * 7;"), "42");
    }
    let outcome = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(sql.pid, &before);
    let refused = outcome.all("refused");
    let profiled: BTreeSet<&str> =
        outcome.all("edge").into_iter().filter_map(|edge| edge["function"].as_str()).collect();
    println!("{} functions profiled, {} refused", profiled.len(), refused.len());
    assert!(profiled.len() > 10_000, "{} functions have edges", profiled.len());
    assert!(refused.len() < profiled.len() / 50, "{} refused: {:?}", refused.len(), refused.first());
    // Each statement is parsed once.
    let first =
        outcome.all("edge").into_iter().filter(|edge| edge["function"] == "raw_parser" && edge["from"] == "0x0");
    assert_eq!(first.filter_map(|edge| edge["count"].as_u64()).sum::<u64>(), 100);
}
