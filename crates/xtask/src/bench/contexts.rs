//! Measures what calling contexts cost: a call, and the processor time of real programs and of a server whose functions are all in contexts.

use ingraft_testing::server::Redis;
use ingraft_testing::target::processor_seconds;
use ingraft_testing::{Session, have};

use super::programs::{PROGRAMS, run};
use super::times::{TimedCalls, measured};
use super::{BenchRow, median, short, tool};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// Arguments of redis-benchmark, and the number of requests that they mean.
const LOAD: [&str; 6] = ["-q", "-n", "100000", "-t", "set,get", "--csv"];
const REQUESTS: f64 = 200_000.0;

pub fn rows() -> Vec<BenchRow> {
    let mut rows =
        vec![call("a call in its context", &[], 8.0), call("the same with its time", &["--metric", "time"], 30.0)];
    rows.extend(PROGRAMS.iter().map(|program| {
        let what = format!("contexts of all functions of {}, beside the plain program", program.name);
        if !have(program.name) {
            return BenchRow::skipped(what, "it is not installed");
        }
        let both = (0..ROUNDS).map(|_| (run(program, None).0, run(program, Some(&["profile", "contexts"])).0));
        let both: Vec<(f64, f64)> = both.collect();
        let (plain, told) = (median(both.iter().map(|both| both.0)), median(both.iter().map(|both| both.1)));
        let detail = format!(" ({} s, plain {} s)", short(told), short(plain));
        BenchRow::at_most(what, told / plain.max(1e-9), 1.9, "x", &detail)
    }));
    match Redis::start() {
        Ok(redis) => rows.extend([
            server(&redis, "contexts of all functions of redis-server", &["profile", "contexts"], "10000", 1.9),
            server(&redis, "those that fit the usual limit of the cost", &["profile", "contexts"], "5", 1.11),
            server(&redis, "`heap` of redis-server", &["heap"], "10000", 1.9),
            server(&redis, "that of those that fit the usual limit", &["heap"], "5", 1.11),
        ]),
        Err(why) => rows.push(BenchRow::skipped("contexts of redis-server", why)),
    }
    rows
}

/// The cost of one call.
fn call(what: &str, flags: &[&str], limit: f64) -> BenchRow {
    let TimedCalls { plain, woven, .. } = measured(&[&["profile", "contexts", "woven"], flags].concat());
    let detail = format!(" ({} ns a call, unmeasured {} ns)", short(woven), short(plain));
    BenchRow::at_most(what, woven - plain, limit, " ns", &detail)
}

/// Processor time of redis-server under load while a command measures it, beside that without.
fn server(redis: &Redis, what: &str, command: &[&str], overhead: &str, limit: f64) -> BenchRow {
    let pid = redis.pid().to_string();
    let load = || {
        let before = processor_seconds(redis.pid());
        redis.load(&LOAD);
        processor_seconds(redis.pid()) - before
    };
    let (mut ratios, mut plain_us) = (Vec::new(), 0.0);
    for _ in 0..ROUNDS {
        let plain = load();
        let all = [command, &["-p", &pid, "redis-server:*", "--max-overhead", overhead]].concat();
        let mut session: Session = tool().start(all);
        std::thread::scope(|scope| {
            let attached = scope.spawn(|| drop(session.wait_for("attached")));
            while !attached.is_finished() {
                load();
            }
        });
        let told = load();
        let _ = session.interrupt().assert_code(0).assert_removed();
        ratios.push(told / plain.max(1e-9));
        plain_us = 1e6 * plain / REQUESTS;
    }
    let detail = format!(" (plain {} µs of the processor for a request)", short(plain_us));
    BenchRow::at_most(format!("{what}, processor time beside none"), median(ratios), limit, "x", &detail)
}
