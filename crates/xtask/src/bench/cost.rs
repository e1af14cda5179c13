//! Measures how much processor time `ingraft latency` of all functions takes in real programs, beside the cost that it predicts. The processor
//! time is the target's own, as the kernel accounts for it.

use std::io::Write;
use std::process::{Command, Stdio};

use ingraft_testing::{have, target, wait_until};

use super::{BenchRow, median, short, tool};

/// Number of runs of which the median is taken.
const ROUNDS: usize = 3;
/// Largest ratio between the two costs, either way.
const LIMIT: f64 = 4.0 / 3.0;

/// A program that begins to work when it reads its standard input.
struct BenchProgram {
    name: &'static str,
    arguments: &'static [&'static str],
    /// The timed functions.
    functions: &'static str,
    input: fn() -> Vec<u8>,
}

const PERL: &str = "my $l = <STDIN>; my %h; for my $i (1..400000) { my $k = 'k' . ($i % 5000); \
    $h{$k} .= substr($i, 0, 2) if length($h{$k} || '') < 80; $h{$k} =~ s/1/x/; }";
const PYTHON: &str = "import sys\nsys.stdin.readline()\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n\
    fib(26)\nd = {}\nfor i in range(400000): d[str(i % 1000)] = d.get(str(i % 1000), 0) + i\n";
const AWK: &str =
    "{ a[$3] += $2; s = s substr($4, 1, 1); if (length(s) > 1000) s = \"\" } END { for (k in a) n++; print n }";
const SED: &str = "s/word([0-9]+) tail/\\1 word/; s/1/2/g; h; G";
const SQL: &str = "create table t(a integer primary key, b text, c int);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 120000)
    insert into t select i, 'row ' || i, i * 7919 % 10007 from n; create index k on t(c);
    select count(*), sum(length(b)) from t where c between 100 and 5000;
    select c, count(*) from t group by c order by 2 desc limit 3; update t set b = b || 'x' where a % 3 = 0;\n";

const PROGRAMS: &[BenchProgram] = &[
    BenchProgram { name: "perl", arguments: &["-e", PERL], functions: "perl:*", input: line },
    BenchProgram { name: "/usr/bin/python3.11", arguments: &["-c", PYTHON], functions: "python3.11:*", input: line },
    BenchProgram { name: "mawk", arguments: &[AWK], functions: "mawk:*", input: || words(300_000) },
    BenchProgram { name: "sort", arguments: &["-k2n", "--parallel=1"], functions: "sort:*", input: || words(300_000) },
    BenchProgram { name: "gzip", arguments: &["-9", "-c"], functions: "gzip:*", input: || words(500_000) },
    BenchProgram { name: "bzip2", arguments: &["-c"], functions: "libbz2*:*", input: || words(500_000) },
    BenchProgram { name: "xz", arguments: &["-T1", "-3", "-c"], functions: "liblzma*:*", input: || words(500_000) },
    BenchProgram { name: "bc", arguments: &["-lq"], functions: "bc:*", input: || b"scale=1200; a(1)\n".to_vec() },
    BenchProgram { name: "sqlite3", arguments: &[":memory:"], functions: "libsqlite3*:*", input: || SQL.into() },
    BenchProgram { name: "sed", arguments: &["-E", SED], functions: "sed:*", input: || words(300_000) },
];

fn line() -> Vec<u8> {
    b"\n".to_vec()
}

fn words(lines: u32) -> Vec<u8> {
    (0..lines).flat_map(|i| format!("{i} {} word{} tail\n", i * 7919 % 10007, i % 977).into_bytes()).collect()
}

pub fn rows() -> Vec<BenchRow> {
    let price = super::predicted_ns("latency");
    PROGRAMS.iter().map(|program| row(program, price)).collect()
}

fn row(program: &BenchProgram, price: f64) -> BenchRow {
    let what = format!("predicted cost of times in {}, beside its processor time", program.name);
    if !have(program.name) {
        return BenchRow::skipped(what, "it is not installed");
    }
    let runs: Vec<((f64, u64), f64)> = (0..ROUNDS).map(|_| (run(program, true), run(program, false).0)).collect();
    let taken = median(runs.iter().map(|((timed, _), plain)| timed - plain));
    let calls = runs.first().map_or(0, |((_, calls), _)| *calls) as f64;
    let (predicted, measured) = (calls * price / 1e9, taken.max(1e-9));
    let ratio = (predicted / measured).max(measured / predicted);
    let detail = format!(
        " ({} s predicted, {} s measured: {} ns a call beside {})",
        short(predicted),
        short(measured),
        short(measured / calls * 1e9),
        short(price)
    );
    BenchRow::at_most(what, ratio, LIMIT, "x", &detail)
}

/// Runs a program. Returns its processor time in seconds from its input on, and the number of timed calls.
fn run(program: &BenchProgram, timed: bool) -> (f64, u64) {
    let mut command = Command::new(program.name);
    command.args(program.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().expect("the program starts");
    let pid = i32::try_from(child.id()).expect("a process id");
    wait_until("the program reads", || WAITS.iter().any(|call| target::waits_in(pid, *call)));
    let tool = tool();
    let session = timed.then(|| {
        let id = pid.to_string();
        let mut session = tool.start(["latency", "-p", &id, "--max-overhead", "10000", program.functions]);
        session.wait_for("attached");
        session
    });
    let before = processor_seconds(pid);
    let mut stdin = child.stdin.take().expect("stdin is piped");
    let input = (program.input)();
    let feeder = std::thread::spawn(move || {
        // The program may end before it has read everything.
        let _ = stdin.write_all(&input);
    });
    wait_until("the program ends", || target::state(pid) == 'Z');
    let used = processor_seconds(pid) - before;
    let calls = session.map_or(0, |session| {
        let outcome = session.finish();
        outcome.all("latency").iter().filter_map(|row| row["timed"].as_u64()).sum()
    });
    let _ = child.wait();
    let _ = feeder.join();
    (used, calls)
}

/// Numbers of the system calls in which a program waits for its input: `read` and `poll`.
const WAITS: [u32; 2] = [0, 7];

/// Processor time of the main thread in seconds, to the nanosecond; 0 if it is gone.
fn processor_seconds(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}
