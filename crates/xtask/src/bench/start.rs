//! Measures the time from the start of a command to the first value.

use std::time::Instant;

use ingraft_testing::server::Redis;

use super::{BenchRow, median, tool};

pub fn rows() -> Vec<BenchRow> {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => return vec![BenchRow::skipped("attach to first value of redis-server", why)],
    };
    let pid = redis.pid().to_string();
    let first_value = |tool: &ingraft_testing::Tool| {
        let start = Instant::now();
        let mut session = tool.start(["watch", "-p", &pid, "calls@/Code/redis-server/call"]);
        session.wait_for("sample");
        let elapsed = start.elapsed().as_secs_f64() * 1e3;
        let _ = session.interrupt().assert_code(0).assert_removed();
        elapsed
    };
    // Each run has a state directory of its own, so that nothing is cached.
    let cold = median((0..9).map(|_| first_value(&tool())));
    let warm_tool = tool();
    first_value(&warm_tool);
    let warm = median((0..15).map(|_| first_value(&warm_tool)));
    vec![
        BenchRow::at_most("attach to first value of redis-server, cold", cold, 250.0, " ms", ""),
        BenchRow::at_most("attach to first value of redis-server, cached", warm, 60.0, " ms", ""),
    ]
}
