//! Measures the cost of inserting, deleting and sampling many metric-focus pairs at once.

use std::time::{Duration, Instant};

use ingraft_testing::server::Postgres;
use ingraft_testing::{Daemon, Tool, open_directory, sibling, target};

use super::{BenchRow, median, short};

pub fn rows() -> Vec<BenchRow> {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => return vec![BenchRow::skipped("1,000 and 10,000 metric-focus pairs", why)],
    };
    let session = postgres.session();
    let directory = open_directory();
    let daemon = Daemon::start::<&str>(&sibling("ingraftd"), directory.path(), []);
    let client = daemon.client(sibling("ingraft"));
    let functions = functions(&client, session.pid);
    let mut rows = inserted(&client, session.pid, &functions);
    rows.push(sampled(&daemon, &client, session.pid, &functions));
    drop(session);
    assert!(daemon.terminate().success());
    rows
}

/// Returns functions whose entries and exits can be woven, by names that a focus can have.
fn functions(client: &Tool, pid: i32) -> Vec<String> {
    let listed = client.run(["functions", "-p", &pid.to_string(), "postgres:*"]).assert_code(0);
    let whole = |f: &&&serde_json::Value| f["how"]["entry"] == "in-place" && f["how"]["exit"] == "in-place";
    let mut names: Vec<String> = listed
        .all("function")
        .iter()
        .filter(whole)
        .filter(|f| f["size"].as_u64().is_some_and(|size| size >= 32))
        .filter_map(|f| f["function"].as_str())
        .filter(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'))
        .map(str::to_owned)
        .collect();
    names.sort();
    // Functions that share a name would be one pair.
    let mut single: Vec<String> = Vec::with_capacity(names.len());
    for of_name in names.chunk_by(|a, b| a == b) {
        if let [name] = of_name {
            single.push(name.clone());
        }
    }
    single
}

fn pairs(metric: &str, functions: &[String]) -> Vec<String> {
    functions.iter().map(|name| format!("{metric}@/Code/postgres/{name}")).collect()
}

fn inserted(client: &Tool, pid: i32, functions: &[String]) -> Vec<BenchRow> {
    // Another function is inserted first, because other benchmarks measure the costs of the first insertion in a target.
    let other = functions.last().map_or("*", String::as_str);
    let first = client.count(pid, &[&format!("postgres:{other}")]);
    let (mut took, mut held_in, mut out, mut held_out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..9 {
        let mut arguments = vec!["watch".to_owned(), "-p".to_owned(), pid.to_string()];
        arguments.extend(pairs("wall_time", functions.get(..1000).unwrap_or(functions)));
        let mut session = client.start(&arguments);
        let changed = session.wait_for("changed");
        session.wait_for("sample");
        let number = |object: &serde_json::Value, key: &str| object[key].as_f64().unwrap_or(f64::NAN);
        took.push(number(&changed, "attach_ms"));
        held_in.push(number(&changed, "stopped_ms"));
        let start = Instant::now();
        let outcome = session.interrupt().assert_code(0);
        out.push(start.elapsed().as_secs_f64() * 1e3);
        held_out.push(number(outcome.one("removed"), "stopped_ms"));
    }
    let _ = first.interrupt().assert_code(0);
    vec![
        BenchRow::at_most(
            "1,000 wall timers inserted in postgres, the command's start included",
            median(took),
            50.0,
            " ms",
            "",
        ),
        BenchRow::at_most("held to insert them", median(held_in), 5.0, " ms", ""),
        BenchRow::at_most("them deleted, the command's end included", median(out), 50.0, " ms", ""),
        BenchRow::at_most("held to delete them", median(held_out), 5.0, " ms", ""),
    ]
}

fn sampled(daemon: &Daemon, client: &Tool, pid: i32, functions: &[String]) -> BenchRow {
    let mut arguments: Vec<String> =
        ["watch", "-p", &pid.to_string(), "--interval", "100ms"].map(str::to_owned).to_vec();
    // The engine reads more places in memory for a timer than for a count.
    let half = functions.get(..5_000).unwrap_or(functions);
    arguments.extend(pairs("calls", half));
    arguments.extend(pairs("wall_time", half));
    let mut session = client.start(&arguments);
    session.wait_for("sample");
    let (start, used) = (Instant::now(), target::processor_seconds(daemon.pid()));
    std::thread::sleep(Duration::from_secs(10));
    let share = (target::processor_seconds(daemon.pid()) - used) / start.elapsed().as_secs_f64();
    let outcome = session.interrupt().assert_code(0);
    let detail = format!(" of one core ({} pairs)", short(arguments.len() as f64 - 5.0));
    assert!(outcome.all("changed").is_empty(), "stopped meanwhile: {outcome:?}");
    BenchRow::at_most(
        "a daemon with 10,000 pairs, half of them timers, sampled at 10 Hz",
        share * 100.0,
        2.0,
        " %",
        &detail,
    )
}
