//! Measures the time for which threads are held during an insertion or a removal.

use std::os::unix::process::CommandExt;
use std::process::Command;

use ingraft_testing::server::Postgres;
use ingraft_testing::{Mutatee, NOBODY, Tool, exposed, is_root, open_directory, program, sibling};

use super::{BenchRow, guarded, median, short, tool};

pub fn rows() -> Vec<BenchRow> {
    let mut rows = guarded("held, 8 busy threads", || threads(8, true, true, 31, 1.0));
    rows.extend(guarded("held, 512 idle threads", || threads(512, false, false, 15, 15.0)));
    rows.extend(guarded("held, 512 busy threads", || threads(512, true, false, 15, 30.0)));
    rows.extend(guarded("held, as told", told));
    rows.extend(guarded("held, 200 deep threads", deep));
    rows.extend(guarded("held, PostgreSQL", postgres));
    rows
}

/// Inserts and removes one function in rounds; returns medians of the longest time a thread was held in one piece.
fn held(tool: &Tool, pid: i32, functions: &[&str], rounds: usize) -> (f64, f64) {
    let (mut inserted, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let session = tool.count(pid, functions);
        let outcome = session.interrupt().assert_code(0);
        inserted.push(outcome.one("attached")["stopped_ms"].as_f64().unwrap_or(f64::NAN));
        removed.push(outcome.one("removed")["stopped_ms"].as_f64().unwrap_or(f64::NAN));
    }
    (median(inserted), median(removed))
}

fn threads(count: usize, busy: bool, unprivileged: bool, rounds: usize, limit: f64) -> Vec<BenchRow> {
    let directory = open_directory();
    // The program runs in a session of its own, as servers do. Threads of one session share the processors evenly with the thread that
    // measures.
    let mut command = Command::new("setsid");
    command.arg(exposed(&program("threads").expect("gcc"), directory.path())).arg(count.to_string());
    let tool = if unprivileged && is_root() {
        command.uid(NOBODY).gid(NOBODY);
        Tool::unprivileged(sibling("ingraft"))
    } else {
        tool()
    };
    let mut target = Mutatee::spawn(&mut command);
    if busy {
        target.ask("spin");
    }
    let (inserted, removed) = held(&tool, target.pid(), &["work_0"], rounds);
    let what = format!(
        "held to insert one function, {count} {} threads{}",
        if busy { "busy" } else { "idle" },
        if unprivileged { ", without privilege" } else { "" }
    );
    vec![BenchRow::at_most(what, inserted, limit, " ms", &format!(" (to remove {} ms)", short(removed)))]
}

/// Compares the reported hold time with the time that the worse of two spinning threads misses by its own clocks.
fn told() -> Vec<BenchRow> {
    let (mut target, tool) = (Mutatee::start("gaps", &["2"]), tool());
    let (mut told, mut missed) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        target.ask("look");
        let session = tool.count(target.pid(), &["work"]);
        missed.push(target.ask("look").number("away") as f64 / 1e6);
        let outcome = session.interrupt().assert_code(0);
        told.push(outcome.one("attached")["stopped_ms"].as_f64().unwrap_or(f64::NAN));
    }
    let (told, missed) = (median(told), median(missed));
    let detail = format!(" ({} ms missed, {} ms told)", short(missed), short(told));
    let limit = (told * 1.1).max(told + 0.1) / told;
    vec![BenchRow::at_most(
        "time that the worst of 2 spinning threads missed, beside what is told",
        missed / told,
        limit,
        "x",
        &detail,
    )]
}

/// Measures the hold time if 200 threads have the timed function on their stacks, 30 calls deep.
fn deep() -> Vec<BenchRow> {
    let target = Mutatee::start("onstack", &["200", "29"]);
    let tool = tool();
    let mut inserted = Vec::new();
    for _ in 0..15 {
        let mut session = tool.start(["watch", "-p", &target.pid_text(), "wall_time@/Code/onstack/deep"]);
        let attached = session.wait_for("attached");
        assert_eq!(attached["caught_up"], 200 * 30);
        inserted.push(attached["stopped_ms"].as_f64().unwrap_or(f64::NAN));
        let _ = session.interrupt().assert_code(0).assert_removed();
    }
    vec![BenchRow::at_most("held to catch up 200 threads 30 calls deep", median(inserted), 20.0, " ms", "")]
}

fn postgres() -> Vec<BenchRow> {
    let what = "held to insert all functions of a PostgreSQL backend";
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => return vec![BenchRow::skipped(what, why)],
    };
    let session = postgres.session();
    let (inserted, removed) = held(&tool(), session.pid, &["postgres:*"], 9);
    vec![
        BenchRow::at_most(what, inserted, 10.0, " ms", ""),
        BenchRow::at_most("held to remove them", removed, 10.0, " ms", ""),
    ]
}
