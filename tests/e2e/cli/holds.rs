//! Compares the reported hold time with the time that threads miss by their own clocks.

use ingraft_testing::{Mutatee, Outcome};

use crate::tool;

/// Number of insertions and removals. Other work on the machine disturbs some of them: the host may take a processor away from a thread,
/// and
/// the thread cannot tell this from a hold.
const ROUNDS: usize = 20;

/// Returns the longest time, in milliseconds, for which any thread did not run since the previous call.
fn away(target: &mut Mutatee) -> f64 {
    target.ask("look").number("away") as f64 / 1e6
}

fn told(outcome: &Outcome, kind: &str) -> f64 {
    outcome.one(kind)["stopped_ms"].as_f64().expect("a time")
}

#[test]
fn the_time_that_is_told_is_what_the_worst_thread_missed() {
    let mut target = Mutatee::start("gaps", &["2"]);
    let (mut inserted, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        away(&mut target);
        let session = tool().count(target.pid(), &["work"]);
        let at_insertion = away(&mut target);
        let outcome = session.interrupt().assert_code(0).assert_removed();
        inserted.push((told(&outcome, "attached"), at_insertion));
        removed.push((told(&outcome, "removed"), away(&mut target)));
    }
    for (what, rounds) in [("insertions", inserted), ("removals", removed)] {
        let count = |agree: fn(&&(f64, f64)) -> bool| rounds.iter().filter(agree).count();
        let (enough, not_too_much) = (
            count(|(told, missed)| *missed <= told * 1.1 + 0.1),
            // Some threads are held for a part of the hold time only.
            count(|(told, missed)| *told <= missed * 1.5 + 0.5),
        );
        let both = enough * 2 >= ROUNDS && not_too_much * 2 >= ROUNDS;
        assert!(both, "{what}: {enough} and {not_too_much} of {ROUNDS} agree (told, missed, in ms): {rounds:?}");
    }
}
