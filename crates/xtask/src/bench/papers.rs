//! The tables of Ammons, Ball and Larus, "Exploiting hardware performance counters with flow and context sensitive profiling" (1997), for our programs:
//! table 3 (trees of calling contexts), and tables 4 and 5 (paths and functions by their part in an event). Reads of memory stand in the place of the
//! misses of a cache, because machines for tests have no counters of the processor. There are no limits.

use ingraft_testing::{Outcome, have};
use serde_json::Value;

use super::programs::{PROGRAMS, run};
use super::{BenchRow, short};

/// Number of programs in the tables.
const SHOWN: usize = 8;

pub fn rows() -> Vec<BenchRow> {
    let mut rows = Vec::new();
    for program in PROGRAMS.iter().filter(|program| have(program.name)).take(SHOWN) {
        let outcome = |command: &[&str]| run(program, Some(command)).1;
        let told = |table: &str, text: Option<String>| {
            let what = format!("{table}, {}", program.name);
            text.map_or_else(|| BenchRow::skipped(&what, "nothing was told"), |text| BenchRow::told(&what, text))
        };
        rows.push(told("table 3", outcome(&["profile", "contexts"]).as_ref().map(contexts)));
        let paths = outcome(&["profile", "paths", "--stats"]);
        rows.push(told("table 4", paths.as_ref().map(|outcome| classes(outcome, "paths"))));
        rows.push(told("table 5", paths.as_ref().map(|outcome| classes(outcome, "functions"))));
    }
    rows.push(BenchRow::skipped("tables 4 and 5 with misses of a cache", "this needs counters of the processor"));
    rows
}

/// A row of table 3.
fn contexts(outcome: &Outcome) -> String {
    let all = outcome.one("contexts");
    let number = |key: &str| match all[key].as_u64() {
        Some(whole) => whole.to_string(),
        None => all[key].as_f64().map_or_else(String::new, short),
    };
    format!(
        "{} contexts, height {}, degree {}, mean depth of leaves {}, most of one function {}, {} of recursive calls",
        number("nodes"),
        number("height"),
        number("degree"),
        number("leaf_depth"),
        number("replication"),
        number("back_edges")
    )
}

/// A row of table 4 or 5: for each class the number, and its parts in all instructions and reads.
fn classes(outcome: &Outcome, of: &str) -> String {
    let records: Vec<&Value> = outcome.all("path_class").into_iter().filter(|record| record["of"] == of).collect();
    let number = |record: &Value, key: &str| record[key].as_f64().unwrap_or(0.0);
    let Some(all) = records.iter().find(|record| record["class"] == "all") else { return String::new() };
    let share = |record: &Value, key: &str| 100.0 * number(record, key) / number(all, key).max(1.0);
    let one = |record: &&Value| {
        let class = record["class"].as_str().unwrap_or_default();
        let each = match of {
            "functions" => {
                format!(" with {} paths each", short(number(record, "paths") / number(record, "number").max(1.0)))
            }
            _ => String::new(),
        };
        format!(
            "{class} {}{each} ({:.0} % of instructions, {:.0} % of reads)",
            number(record, "number"),
            share(record, "instructions"),
            share(record, "memory_reads")
        )
    };
    records.iter().map(one).collect::<Vec<_>>().join("; ")
}
