//! Measures the search for slow calls: what a call costs that is inside of one that may be slow, how a server fares, and whether one slow call
//! among many is found.

use ingraft_testing::server::{Postgres, PostgresSession};
use ingraft_testing::target::processor_seconds;
use ingraft_testing::{Mutatee, Session};

use super::times::{TimedCalls, measured};
use super::{BenchRow, median, short, tool};

/// Number of times that a slow call is looked for, and number of calls of which one is slow.
const SEARCHES: u64 = 20;
const CALLS: u64 = 1_000_000;
/// Number of measurements of a server of which the median is taken, and number of statements of each.
const ROUNDS: usize = 5;
const STATEMENTS: usize = 2_000;

pub fn rows() -> Vec<BenchRow> {
    let row = |what: &str, outer: &str, limit: f64| {
        let TimedCalls { plain, woven, .. } = measured(&["slow", outer, "--callees", "woven", "--over", "100s"]);
        let detail = format!(" ({} ns a call, unmeasured {} ns)", short(woven), short(plain));
        BenchRow::at_most(what, woven - plain, limit, " ns", &detail)
    };
    let mut rows = vec![
        row("a call while no call that may be slow runs", "clock3", 2.0),
        row("a call inside of one that may be slow", "call_many", 25.0),
    ];
    match Postgres::start() {
        Ok(postgres) => rows.extend([
            server(&postgres, "all functions of a PostgreSQL backend", "10000", 2.0),
            server(&postgres, "those that fit the usual limit of the cost", "5", 1.11),
        ]),
        Err(why) => rows.push(BenchRow::skipped("slow statements of a PostgreSQL backend", why)),
    }
    rows.push(found());
    rows
}

/// Processor time of a backend that selects rows by key while slow statements are looked for, beside that without.
fn server(postgres: &Postgres, what: &str, overhead: &str, limit: f64) -> BenchRow {
    let what = format!("slow statements with {what}, beside none");
    let (mut ratios, mut left_out) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let mut session = postgres.session();
        let plain = selects(&mut session);
        let looking = Looking::start(&mut session, overhead);
        let searched = selects(&mut session);
        left_out = looking.end();
        ratios.push(searched / plain.max(1e-9));
    }
    BenchRow::at_most(what, median(ratios), limit, "x", &format!(" ({left_out} functions left out)"))
}

/// Processor time in seconds of some statements.
fn selects(session: &mut PostgresSession) -> f64 {
    let select = |session: &mut PostgresSession, n: usize| {
        session.ask(&format!("select abalance from pgbench_accounts where aid = {};", 1 + n * 37 % 90_000));
    };
    (0..100).for_each(|n| select(session, n));
    let before = processor_seconds(session.pid);
    (0..STATEMENTS).for_each(|n| select(session, n));
    processor_seconds(session.pid) - before
}

/// A command that looks for slow statements of a backend.
struct Looking(Session);

impl Looking {
    /// Starts the command, while the backend works, so that the command learns how often functions are called.
    fn start(session: &mut PostgresSession, overhead: &str) -> Looking {
        let pid = session.pid.to_string();
        let arguments = ["slow", "-p", &pid, "PortalRun", "--over", "10s", "--max-overhead", overhead];
        let mut looking = tool().start(arguments);
        std::thread::scope(|scope| {
            let attached = scope.spawn(|| drop(looking.wait_for("attached")));
            while !attached.is_finished() {
                selects(session);
            }
        });
        Looking(looking)
    }

    /// Ends the command. Returns the number of functions that it left out.
    fn end(self) -> usize {
        let outcome = self.0.interrupt().assert_code(0).assert_removed();
        outcome.one("calls")["left_out"].as_array().map_or(0, Vec::len)
    }
}

/// Searches that have found the one slow call, and no call that was faster by the program's own clock.
fn found() -> BenchRow {
    let what = format!("searches that find one slow call of {CALLS}, and no other");
    let right = (0..SEARCHES).filter(|n| finds(n * CALLS / SEARCHES + 7)).count();
    BenchRow::at_least(what, right as f64, SEARCHES as f64, "", &format!(" of {SEARCHES}"))
}

fn finds(at: u64) -> bool {
    let mut target = Mutatee::start("slow", &[]);
    let pid = target.pid_text();
    let arguments = ["slow", "-p", &pid, "serve_planted", "$arg[0]", "--over", "10ms", "--max-overhead", "10000"];
    let mut session = tool().start(arguments);
    session.wait_for("attached");
    let told = target.ask(&format!("plant {at} {CALLS}"));
    let outcome = session.interrupt().assert_code(0).assert_removed();
    let known: Vec<u64> =
        told.lines.iter().filter_map(|line| line.strip_prefix("slow ")?.split_once(' ')?.0.parse().ok()).collect();
    let seen: Vec<Option<u64>> = outcome.all("slow").iter().map(|slow| slow["values"]["$arg[0]"].as_u64()).collect();
    seen.contains(&Some(at)) && seen.iter().all(|n| n.is_some_and(|n| known.contains(&n)))
}
