//! Measures the cost of a timed call, beside two readings of the clock by hand.

use ingraft_testing::{Mutatee, Session, open_directory, wait_until};

use super::{BenchRow, median, short, tool};

const CALLS: u64 = 5_000_000;
const ROUNDS: usize = 21;

pub fn rows() -> Vec<BenchRow> {
    let timer = measured(&["watch", "wall_time@/Code/bench/woven"]);
    let histogram = measured(&["latency", "woven"]);
    let cpu = measured(&["watch", "cpu_time@/Code/bench/woven"]);
    let detail = |m: &TimedCalls| {
        format!(" ({} ns, by hand {} ns, unmeasured {} ns)", short(m.woven), short(m.clock), short(m.plain))
    };
    let mut rows = vec![
        BenchRow::at_most("a timed call of an empty function", timer.ratio, 1.3, "x", &detail(&timer)),
        BenchRow::at_most(
            "a call in a histogram of times, beside a timed one",
            histogram.ratio / timer.ratio,
            1.5,
            "x",
            &detail(&histogram),
        ),
        BenchRow::at_most(
            "a call with a timer of processor time, beside a timed one",
            cpu.ratio / timer.ratio,
            1.5,
            "x",
            &detail(&cpu),
        ),
    ];
    rows.extend(not_met());
    for (metric, measured) in [("wall_time", &timer), ("latency", &histogram), ("cpu_time", &cpu)] {
        rows.extend(super::predicted(metric, measured.woven - measured.plain));
    }
    rows
}

/// A count under the flag of a function that never runs.
const GATED: &str = r#"
constraint insideFunction /Code/* is inclusive;
resourceList gatedFunctions is procedure { items { "woven" }; flavor { unix }; }
metric gated {
    name "gated"; units calls; aggregateOperator sum; style EventCounter;
    constraint insideFunction;
    base is counter { foreach f in gatedFunctions append preInsn f.entry constrained (* gated++; *) }
}
"#;

fn not_met() -> [BenchRow; 2] {
    let directory = open_directory();
    let file = directory.path().join("gated.mdl");
    std::fs::write(&file, GATED).expect("write a definition");
    let file = file.to_str().expect("a path");
    let gated = measured(&["watch", "gated@/Code/bench/clock3", "-I", file]);
    let counted = measured(&["watch", "calls@/Code/bench/woven"]);
    let detail = |m: &TimedCalls| format!(" ({} ns a call, unmeasured {} ns)", short(m.woven), short(m.plain));
    let [whole, count] = [&gated, &counted].map(|m| m.woven - m.plain);
    [
        BenchRow::at_most("a constraint that is not met, point included", whole, 1.0, " ns", &detail(&gated)),
        BenchRow::at_most("the same, beside a call that is counted", whole - count, 1.0, " ns", &detail(&counted)),
    ]
}

/// Nanoseconds a call, and the median of the ratios of woven to hand-made calls.
pub(super) struct TimedCalls {
    pub(super) plain: f64,
    clock: f64,
    pub(super) woven: f64,
    ratio: f64,
}

/// Measures `woven` while a command measures it.
pub(super) fn measured(command: &[&str]) -> TimedCalls {
    measured_for(command, CALLS, ROUNDS)
}

/// Measures `woven` in so many rounds of so many calls while a command measures it.
fn measured_for(command: &[&str], calls: u64, rounds: usize) -> TimedCalls {
    let mut target = Mutatee::start("bench", &[]);
    let pid = target.pid_text();
    let mut session = tool().start(command.iter().chain(&["-p", &pid, "--max-overhead", "10000"]));
    session.wait_for("attached");
    let told = target.ask(&format!("measure {calls} {rounds} 1"));
    let _ = session.interrupt().assert_code(0).assert_removed();
    of_lines(&told.lines)
}

/// Measures `woven` as [`measured`] does, while a command prints its lines into a file.
pub(super) fn measured_printing(command: &[&str], calls: u64, rounds: usize) -> TimedCalls {
    let mut target = Mutatee::start("bench", &[]);
    let printing = Printing::start(target.pid(), command);
    let told = target.ask(&format!("measure {calls} {rounds} 1"));
    printing.end();
    of_lines(&told.lines)
}

/// A command that prints calls into a file, as a person would type it.
pub(super) struct Printing {
    session: Session,
    file: tempfile::NamedTempFile,
}

impl Printing {
    /// Starts the command and waits until its first line tells that the code is inserted.
    pub(super) fn start(pid: i32, command: &[&str]) -> Printing {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let path = file.path().display().to_string();
        let pid = pid.to_string();
        let more = ["-p", &pid, "--max-overhead", "10000", "--limit", "none", "--buffer", "65536", "-o", &path];
        let session = tool().start_plain(command.iter().chain(&more));
        let is_inserted = || std::fs::read_to_string(file.path()).is_ok_and(|text| text.contains("point"));
        wait_until("the code is inserted", is_inserted);
        Printing { session, file }
    }

    /// Ends the command. Returns its lines.
    pub(super) fn end(self) -> String {
        let _ = self.session.interrupt().assert_code(0);
        std::fs::read_to_string(self.file.path()).expect("the lines")
    }
}

/// Times that the target tells of its rounds.
fn of_lines(lines: &[String]) -> TimedCalls {
    let of_kind = |kind: &str| {
        let begin = format!("time {kind} 1 ");
        let values = lines.iter().filter_map(|line| line.strip_prefix(&begin)?.parse::<f64>().ok());
        values.collect::<Vec<f64>>()
    };
    let (plain, clock, woven) = (of_kind("plain"), of_kind("clock"), of_kind("woven"));
    let ratio = median(woven.iter().zip(&clock).map(|(woven, clock)| woven / clock));
    TimedCalls { plain: median(plain), clock: median(clock), woven: median(woven), ratio }
}
