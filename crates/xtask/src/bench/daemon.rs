//! Measures the cost of a daemon that samples a thousand functions ten times a second.

use std::time::{Duration, Instant};

use ingraft_testing::server::Redis;
use ingraft_testing::{Daemon, open_directory, sibling, target};

use super::{BenchRow, short, tool};

pub fn rows() -> Vec<BenchRow> {
    let what = "a daemon with 1,000 functions sampled at 10 Hz";
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => return vec![BenchRow::skipped(what, why)],
    };
    let pid = redis.pid().to_string();
    let listed = tool().run(["functions", "-p", &pid, "redis-server:*"]).assert_code(0);
    let mut names: Vec<String> = listed
        .all("function")
        .into_iter()
        .filter(|function| function["how"]["entry"] == "in-place")
        .filter_map(|function| function["function"].as_str())
        .filter(|name| !name.contains([',', '/', '+', '{', '@']))
        .map(|name| format!("calls@/Code/redis-server/{name}"))
        .collect();
    names.sort();
    names.dedup();
    names.truncate(1000);
    let directory = open_directory();
    let daemon = Daemon::start::<&str>(&sibling("ingraftd"), directory.path(), []);
    let client = daemon.client(sibling("ingraft"));
    let mut arguments = vec!["watch".to_owned(), "-p".into(), pid, "--interval".into(), "100ms".into()];
    arguments.extend(names.iter().cloned());
    let mut session = client.start(&arguments);
    session.wait_for("sample");
    let done = std::sync::atomic::AtomicBool::new(false);
    let share = std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                redis.load(&["-n", "20000", "-q", "-c", "10", "-t", "set,get"]);
            }
        });
        let (start, used) = (Instant::now(), target::processor_seconds(daemon.pid()));
        std::thread::sleep(Duration::from_secs(10));
        let share = (target::processor_seconds(daemon.pid()) - used) / start.elapsed().as_secs_f64();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        load.join().expect("no client error");
        share
    });
    let outcome = session.interrupt().assert_code(0);
    let stops = outcome.all("changed").len();
    assert!(daemon.terminate().success());
    let detail = format!(" of one core ({} functions, {} stops)", short(names.len() as f64), stops);
    vec![BenchRow::at_most(what, share * 100.0, 2.0, " %", &detail)]
}
