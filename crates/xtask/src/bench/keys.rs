//! Measures the cost of a call that is counted by a value: by its caller, by an argument, and under a condition that is not met.

use super::BenchRow;
use super::short;
use super::times::{TimedCalls, measured};

pub fn rows() -> Vec<BenchRow> {
    let row = |what: &str, command: &[&str], limit: f64| {
        let calls = measured(command);
        let TimedCalls { plain, woven, .. } = calls;
        let detail = format!(" ({} ns a call, unmeasured {} ns)", short(woven), short(plain));
        BenchRow::at_most(what, woven - plain, limit, " ns", &detail)
    };
    vec![
        row("a call counted by its caller", &["callers", "woven"], 2.5),
        row("a call counted by an argument, one key", &["count", "woven", "--by", "$arg[0] & 0"], 6.0),
        row("a call counted by an argument, 256 keys", &["count", "woven", "--by", "$arg[0] & 255"], 6.0),
        row("a call counted by an argument, 1,024 keys", &["count", "woven", "--by", "$arg[0] & 1023"], 6.0),
        row("a condition on an argument that is not met", &["count", "woven", "--if", "$arg[0] == 0"], 5.0),
    ]
}
