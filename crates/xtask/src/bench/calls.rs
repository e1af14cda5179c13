//! Measures the cost of a counted call, beside the same patch made by hand.

use ingraft_testing::Mutatee;

use super::{BenchRow, median, short, tool};

// A round takes a millisecond or two, so that other work on the machine disturbs few rounds.
const CALLS: u64 = 1_000_000;
const ROUNDS: usize = 301;

pub fn rows() -> Vec<BenchRow> {
    let mut target = Mutatee::start("bench", &[]);
    let session = tool().count(target.pid(), &["woven"]);
    let mut rows = Vec::new();
    for threads in [1, 2] {
        let told = target.ask(&format!("measure {CALLS} {ROUNDS} {threads}"));
        let of_kind = |kind: &str| {
            let begin = format!("time {kind} {threads} ");
            let values = told.lines.iter().filter_map(|line| line.strip_prefix(&begin)?.parse::<f64>().ok());
            values.collect::<Vec<f64>>()
        };
        let (plain, hand, woven) = (of_kind("plain"), of_kind("hand"), of_kind("woven"));
        // Each round measures the three kinds of call one after the other, so other work disturbs their ratio less than their times.
        let ratio = median(woven.iter().zip(&hand).map(|(woven, hand)| woven / hand));
        let (plain, hand, woven) = (median(plain), median(hand), median(woven));
        let detail = format!(" ({} ns, by hand {} ns, unmeasured {} ns)", short(woven), short(hand), short(plain));
        if threads == 1 {
            rows.extend(super::predicted("calls", woven - plain));
        }
        rows.push(BenchRow::at_most(
            format!("a counted call of an empty function, threads: {threads}"),
            ratio,
            1.3,
            "x",
            &detail,
        ));
    }
    let told = target.ask("measure 1000 1 1");
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.calls("woven"), told.tally("woven"), "what was measured was counted");
    rows
}
