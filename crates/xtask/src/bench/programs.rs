//! Real programs whose processor time is measured, while they are plain and while they are measured. The processor time is the target's own, as
//! the kernel accounts for it.

use std::io::Write;
use std::process::{Command, Stdio};

use ingraft_testing::{Outcome, Session, target, wait_until};

use super::tool;

/// A program that begins to work when it reads its standard input.
pub(super) struct BenchProgram {
    pub name: &'static str,
    arguments: &'static [&'static str],
    /// The measured functions.
    functions: &'static str,
    input: fn() -> Vec<u8>,
}

const PERL: &str = "my $l = <STDIN>; my %h; for my $i (1..400000) { my $k = 'k' . ($i % 5000); \
    $h{$k} .= substr($i, 0, 2) if length($h{$k} || '') < 80; $h{$k} =~ s/1/x/; }";
const PYTHON: &str = "import sys\nsys.stdin.readline()\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)\n\
    fib(26)\nd = {}\nfor i in range(400000): d[str(i % 1000)] = d.get(str(i % 1000), 0) + i\n";
const LUA: &str = "io.read() local t = {} for i = 1, 1500000 do local k = 'k' .. i * 7919 % 10007 t[k] = (t[k] or 0) + i end \
    local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end fib(27)";
const AWK: &str =
    "{ a[$3] += $2; s = s substr($4, 1, 1); if (length(s) > 1000) s = \"\" } END { for (k in a) n++; print n }";
const SED: &str = "s/word([0-9]+) tail/\\1 word/; s/1/2/g; h; G";
const SQL: &str = "create table t(a integer primary key, b text, c int);
    with recursive n(i) as (select 1 union all select i + 1 from n where i < 120000)
    insert into t select i, 'row ' || i, i * 7919 % 10007 from n; create index k on t(c);
    select count(*), sum(length(b)) from t where c between 100 and 5000;
    select c, count(*) from t group by c order by 2 desc limit 3; update t set b = b || 'x' where a % 3 = 0;\n";

pub(super) const PROGRAMS: &[BenchProgram] = &[
    BenchProgram { name: "perl", arguments: &["-e", PERL], functions: "perl:*", input: line },
    BenchProgram { name: "/usr/bin/python3.11", arguments: &["-c", PYTHON], functions: "python3.11:*", input: line },
    BenchProgram { name: "mawk", arguments: &[AWK], functions: "mawk:*", input: || words(300_000) },
    BenchProgram { name: "sort", arguments: &["-k2n", "--parallel=1"], functions: "sort:*", input: || words(300_000) },
    BenchProgram { name: "gzip", arguments: &["-9", "-c"], functions: "gzip:*", input: || words(500_000) },
    BenchProgram { name: "bzip2", arguments: &["-c"], functions: "libbz2*:*", input: || words(500_000) },
    BenchProgram { name: "xz", arguments: &["-T1", "-3", "-c"], functions: "liblzma*:*", input: || words(500_000) },
    BenchProgram { name: "bc", arguments: &["-lq"], functions: "bc:*", input: || b"scale=1200; a(1)\n".to_vec() },
    BenchProgram { name: "sqlite3", arguments: &[":memory:"], functions: "libsqlite3*:*", input: || SQL.into() },
    BenchProgram { name: "lua5.4", arguments: &["-e", LUA], functions: "lua5.4:*", input: line },
    BenchProgram { name: "sed", arguments: &["-E", SED], functions: "sed:*", input: || words(300_000) },
];

fn line() -> Vec<u8> {
    b"\n".to_vec()
}

fn words(lines: u32) -> Vec<u8> {
    (0..lines).flat_map(|i| format!("{i} {} word{} tail\n", i * 7919 % 10007, i % 977).into_bytes()).collect()
}

/// Runs a program, measured by a command of `ingraft` or plain. Returns its processor time in seconds from its input on, and what the command
/// has told.
pub(super) fn run(program: &BenchProgram, command: Option<&[&str]>) -> (f64, Option<Outcome>) {
    let mut plain = Command::new(program.name);
    plain.args(program.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = plain.spawn().expect("the program starts");
    let pid = i32::try_from(child.id()).expect("a process id");
    wait_until("the program reads", || WAITS.iter().any(|call| target::waits_in(pid, *call)));
    let tool = tool();
    let session = command.map(|command| {
        let id = pid.to_string();
        let mut session = tool.start([command, &["-p", &id, "--max-overhead", "10000", program.functions]].concat());
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
    let outcome = session.map(Session::finish);
    let _ = child.wait();
    let _ = feeder.join();
    (used, outcome)
}

/// Numbers of the system calls in which a program waits for its input: `read` and `poll`.
const WAITS: [u32; 2] = [0, 7];

/// Processor time of the main thread in seconds, to the nanosecond; 0 if it is gone.
fn processor_seconds(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/schedstat")).unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}
