//! Whole commands against an engine that answers from a script.

use expect_test::{Expect, expect};
use ingraft_api::Reason;
use ingraft_model::{Activations, Distribution};
use ingraft_wire::{ProtocolFailure, v1};

use super::*;
use crate::args::{Cli, Command};
use crate::command;
use crate::exit::Exit;
use crate::fake::{Paper, Script, distribution, serve};

/// Lock for tests that must run alone: a signal reaches the whole process, so the test that sends one takes the lock for writing.
static QUIET: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Runs a command; returns its output and its result.
async fn run_command(words: &str, script: Script, paper: Paper) -> (String, Result<(), Stop>) {
    let _quiet = QUIET.read().await;
    run_loud(words, script, paper, Output::to_sink).await
}

/// Runs a command with its output on a terminal; returns the output.
async fn run_on_screen(words: &str, script: Script) -> String {
    let _quiet = QUIET.read().await;
    let (text, result) = run_loud(words, script, Paper::default(), |_, sink| Output::to_screen(sink)).await;
    assert!(result.is_ok(), "{result:?}");
    text
}

type Open = fn(Format, Box<dyn std::io::Write + Send>) -> Output;

async fn run_loud(words: &str, script: Script, paper: Paper, open: Open) -> (String, Result<(), Stop>) {
    let cli = <Cli as clap::Parser>::try_parse_from(words.split(' ')).unwrap();
    let engines = Engines::of_test(serve(script).await);
    let status = Cell::new(0);
    let context =
        CommandContext { engines: &engines, common: &cli.common, started: std::time::Instant::now(), status: &status };
    let mut out = open(cli.common.format, Box::new(paper.clone()));
    let result = match cli.command {
        Command::Count(args) => command::count::run(args, context, &mut out).await,
        Command::Latency(args) => command::latency::run(args, context, &mut out).await,
        Command::Watch(args) => command::watch::run(args, context, &mut out).await,
        _ => panic!("no measurement"),
    };
    (paper.read(), result)
}

/// Replaces the times of the insertion, which are all that differs from run to run.
fn without_times(text: &str) -> String {
    let line = |line: &str| {
        let Some(at) = line.find("\"attach_ms\":") else { return line.replace("in after", "in") };
        let rest = line[at..].find(',').map_or("", |end| &line[at + end..]);
        format!("{}\"attach_ms\":…{rest}", &line[..at])
    };
    text.lines().map(|l| line(l) + "\n").collect()
}

async fn check(words: &str, script: Script, expected: Expect) {
    let removed = script.removed.clone();
    let (text, result) = run_command(words, script, Paper::default()).await;
    assert!(result.is_ok(), "{result:?}");
    expected.assert_eq(&without_times(&text));
    assert_eq!(*removed.lock().unwrap(), [107]);
}

fn script() -> Script {
    Script {
        functions: vec!["processCommand", "call"],
        readings: vec![vec![0, 0], vec![600, 1200]],
        last: vec![1000, 1500],
        ..Script::default()
    }
}

#[tokio::test]
async fn count_for_scripts() {
    let script = Script { ends: Some(v1::Ended { status: Some(0), signal: None, exec: false }), ..script() };
    check(
        "ingraft count -p 7 processCommand call --format json",
        script,
        expect![[r#"
            {"type":"attached","pid":7,"parent":0,"title":"","threads":4,"modules":9,"functions":5120,"points":2,"attach_ms":…,"stopped_ms":0.812,"waited_ms":0.012,"measurement":107,"caught_up":3,"not_unwound":0}
            {"type":"ended","pid":7,"status":0,"signal":null}
            {"type":"count","pid":7,"module":"server","function":"processCommand","offset":"0x5c1b0","calls":1000,"threads":[{"tid":7,"calls":1000}]}
            {"type":"count","pid":7,"module":"server","function":"call","offset":"0x5c1b0","calls":1500,"threads":[{"tid":7,"calls":1500}]}
            {"type":"removed","pid":7,"stopped_ms":0.6,"waited_ms":0.002,"text_restored":null,"children_left":[],"corrections":{"late_start":0,"early_end":0}}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn watch_for_scripts() {
    check(
        "ingraft watch -p 7 calls@/Code/server --for 300ms --format json",
        Script { functions: vec!["call"], readings: vec![vec![0], vec![600]], last: vec![900], ..Script::default() },
        expect![[r#"
            {"type":"attached","pid":7,"parent":0,"title":"","threads":4,"modules":9,"functions":5120,"points":1,"attach_ms":…,"stopped_ms":0.812,"waited_ms":0.012,"measurement":107,"caught_up":3,"not_unwound":0}
            {"type":"sample","pid":7,"time_ns":1000000000,"metric":"calls","focus":"/Code/server/call","value":0,"rate":null,"unit":"calls"}
            {"type":"sample","pid":7,"time_ns":1500000000,"metric":"calls","focus":"/Code/server/call","value":600,"rate":1200.0,"unit":"calls"}
            {"type":"sample","pid":7,"time_ns":2000000000,"metric":"calls","focus":"/Code/server/call","value":900,"rate":600.0,"unit":"calls"}
            {"type":"cost","pid":7,"ns_per_s":3000000.0,"percent":0.3}
            {"type":"removed","pid":7,"stopped_ms":0.6,"waited_ms":0.002,"text_restored":true,"children_left":[],"corrections":{"late_start":0,"early_end":0}}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn watch_for_people() {
    let script =
        Script { functions: vec!["call"], readings: vec![vec![0], vec![600]], last: vec![900], ..Script::default() };
    let (text, result) = run_command("ingraft watch -p 7 calls --for 300ms", script, Paper::default()).await;
    assert!(result.is_ok());
    let lines: Vec<&str> = text.lines().skip(1).collect();
    expect![[r#"
            0.000 s  calls@/Code/server/call  0 calls
            0.500 s  calls@/Code/server/call  600 calls  1,200 calls/s
            1.000 s  calls@/Code/server/call  900 calls  600 calls/s
        process 7: cost 0.3 % of one processor
        process 7: removed, held for 0.60 ms; its code is as it was"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn count_for_people() {
    let script = Script { refused: vec!["tiny"], ..script() };
    let (text, result) = run_command("ingraft count -p 7 * --for 300ms", script, Paper::default()).await;
    assert!(result.is_ok());
    assert!(text.starts_with("process 7: 2 points in after "), "{text}");
    let lines: Vec<&str> = text.lines().skip(1).collect();
    expect![[r#"
        FUNCTION        MODULE  CALLS  CALLS/S  THREADS
        call            server  1,500    1,500        1
        processCommand  server  1,000    1,000        1
        process 7: cost 0.3 % of one processor
        process 7: removed, held for 0.60 ms; its code is as it was"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn functions_without_a_call_share_a_line_of_the_counts() {
    let lines = async |functions: Vec<&'static str>, last: Vec<i64>, target: &str| {
        let script = Script { functions, readings: vec![last.clone()], last, ends: latencies().ends, ..script() };
        let (text, result) = run_command(&format!("ingraft count {target} ?"), script, Paper::default()).await;
        assert!(result.is_ok(), "{result:?}");
        let words = |line: &str| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ");
        let shown = text.lines().filter(|line| line.contains("server") || line.contains("without a call"));
        shown.map(words).collect::<Vec<_>>()
    };
    let five = || vec!["a", "b", "c", "d", "e"];
    let few = lines(five(), vec![3, 0, 7, 0, 7], "-p 7").await;
    assert_eq!(few, ["c server 7", "e server 7", "a server 3", "2 functions without"]);
    let many = lines(five(), vec![0, 0, 7, 0, 0], "-p 7").await;
    assert_eq!(many, ["c server 7", "4 functions without"]);
    assert_eq!(lines(vec!["a"], vec![0], "-p 7").await, ["a server 0"], "a function that was named");
    let two = lines(vec!["a", "b"], vec![0, 7], "-p 7 -p 8").await;
    assert!(two.iter().any(|line| line == "2 rows without"), "{two:?}");
}

fn parts() -> Script {
    Script {
        functions: vec!["call/#0x1a", "call/#0x1a->0x40", "call/#0x0->-0x8", "call/#loop@0x1a"],
        readings: vec![vec![0, 0, 0, 0]],
        last: vec![7, 5, 1, 6],
        ends: Some(v1::Ended { status: Some(0), signal: None, exec: false }),
        ..Script::default()
    }
}

#[tokio::test]
async fn blocks_edges_and_loops_for_scripts() {
    let words = "ingraft count -p 7 call#* call#*->* call#loop@* --format json";
    let (text, result) = run_command(words, parts(), Paper::default()).await;
    assert!(result.is_ok(), "{result:?}");
    let counts: Vec<&str> = text.lines().filter(|line| line.contains("\"threads\":[")).collect();
    expect![[r#"
        {"type":"count","pid":7,"module":"server","function":"call","offset":"0x5c1b0","block":"0x1a","calls":7,"threads":[{"tid":7,"calls":7}]}
        {"type":"edge","pid":7,"module":"server","function":"call","offset":"0x5c1b0","from":"0x1a","to":"0x40","kind":"fall-through","count":5,"threads":[{"tid":7,"count":5}]}
        {"type":"edge","pid":7,"module":"server","function":"call","offset":"0x5c1b0","from":"0x0","to":"-0x8","kind":null,"count":1,"threads":[{"tid":7,"count":1}]}
        {"type":"count","pid":7,"module":"server","function":"call","offset":"0x5c1b0","loop":"0x1a","calls":6,"threads":[{"tid":7,"calls":6}]}"#]]
    .assert_eq(&counts.join("\n"));
}

#[tokio::test]
async fn blocks_edges_and_loops_for_people() {
    let words = "ingraft count -p 7 call#* call#*->* call#loop@*";
    let (text, result) = run_command(words, parts(), Paper::default()).await;
    assert!(result.is_ok(), "{result:?}");
    let rows: Vec<&str> = text.lines().filter_map(|line| line.split(" server").next()?.strip_prefix("call#")).collect();
    assert_eq!(rows.iter().map(|row| row.trim()).collect::<Vec<_>>(), ["0x1a", "0x1a->0x40", "0x0->-0x8", "loop@0x1a"]);
}

/// Distribution of this number of calls, of which one in a hundred is slow.
fn times(calls: i64) -> Distribution {
    let times = distribution((0..calls as u64).map(|i| if i % 100 == 99 { 3_000_000 + i } else { 1000 + i }));
    Distribution { own: Some(times.sum / 2), ..times }
}

fn latencies() -> Script {
    Script {
        readings: vec![vec![0, 0], vec![600, 0]],
        last: vec![1000, 0],
        distribution: Some(times),
        ends: Some(v1::Ended { status: Some(0), signal: None, exec: false }),
        ..script()
    }
}

#[tokio::test]
async fn latency_for_scripts() {
    let missing = Activations { left: 3, ..Activations::default() };
    check(
        "ingraft latency -p 7 processCommand call --format json",
        Script { missing, ..latencies() },
        expect![[r#"
            {"type":"attached","pid":7,"parent":0,"title":"","threads":4,"modules":9,"functions":5120,"points":2,"attach_ms":…,"stopped_ms":0.812,"waited_ms":0.012,"measurement":107,"caught_up":3,"not_unwound":0}
            {"type":"ended","pid":7,"status":0,"signal":null}
            {"type":"latency","pid":7,"module":"server","function":"processCommand","offset":"0x5c1b0","clock":"wall","calls":1000,"timed":1000,"sum_ns":31489500,"self_ns":15744750,"stddev_ns":298401.84691662015,"min_ns":1000,"p50_ns":1504,"p90_ns":1908,"p99_ns":2014,"p999_ns":3000999,"max_ns":3000999,"buckets":[[992,1008,8],[1008,1024,16],[1024,1056,32],[1056,1088,32],[1088,1120,31],[1120,1152,32],[1152,1184,32],[1184,1216,31],[1216,1248,32],[1248,1280,32],[1280,1312,31],[1312,1344,32],[1344,1376,32],[1376,1408,31],[1408,1440,32],[1440,1472,32],[1472,1504,31],[1504,1536,32],[1536,1568,32],[1568,1600,31],[1600,1632,32],[1632,1664,32],[1664,1696,32],[1696,1728,31],[1728,1760,32],[1760,1792,32],[1792,1824,31],[1824,1856,32],[1856,1888,32],[1888,1920,31],[1920,1952,32],[1952,1984,32],[1984,2016,15],[2949120,3014656,10]],"mean_ns":31489.5,"share":1.0,"threads":[{"tid":7,"calls":1000,"timed":1000,"sum_ns":31489500,"self_ns":15744750,"stddev_ns":298401.84691662015,"min_ns":1000,"p50_ns":1504,"p90_ns":1908,"p99_ns":2014,"p999_ns":3000999,"max_ns":3000999,"buckets":[[992,1008,8],[1008,1024,16],[1024,1056,32],[1056,1088,32],[1088,1120,31],[1120,1152,32],[1152,1184,32],[1184,1216,31],[1216,1248,32],[1248,1280,32],[1280,1312,31],[1312,1344,32],[1344,1376,32],[1376,1408,31],[1408,1440,32],[1440,1472,32],[1472,1504,31],[1504,1536,32],[1536,1568,32],[1568,1600,31],[1600,1632,32],[1632,1664,32],[1664,1696,32],[1696,1728,31],[1728,1760,32],[1760,1792,32],[1792,1824,31],[1824,1856,32],[1856,1888,32],[1888,1920,31],[1920,1952,32],[1952,1984,32],[1984,2016,15],[2949120,3014656,10]],"left":3}],"left":3,"left_by_tail_jump":0,"timed_since_ns":null,"taken_out_ns":null}
            {"type":"latency","pid":7,"module":"server","function":"call","offset":"0x5c1b0","clock":"wall","calls":0,"timed":0,"sum_ns":null,"self_ns":null,"stddev_ns":null,"min_ns":null,"p50_ns":null,"p90_ns":null,"p99_ns":null,"p999_ns":null,"max_ns":null,"buckets":[],"mean_ns":null,"share":0.0,"threads":[{"tid":7,"calls":0,"timed":0,"sum_ns":null,"self_ns":null,"stddev_ns":null,"min_ns":null,"p50_ns":null,"p90_ns":null,"p99_ns":null,"p999_ns":null,"max_ns":null,"buckets":[],"left":3}],"left":3,"left_by_tail_jump":0,"timed_since_ns":null,"taken_out_ns":null}
            {"type":"removed","pid":7,"stopped_ms":0.6,"waited_ms":0.002,"text_restored":null,"children_left":[],"corrections":{"late_start":0,"early_end":0}}
        "#]],
    )
    .await;
}

#[tokio::test]
async fn latency_for_people() {
    let missing = Activations { left: 3, unseen: 1, unrecorded: 1200, left_by_tail_jump: 0 };
    let script = Script { missing, ..latencies() };
    let (text, result) = run_command("ingraft latency -p 7 processCommand call", script, Paper::default()).await;
    assert!(result.is_ok());
    let lines: Vec<&str> = text.lines().skip(2).collect();
    expect![[r#"
        FUNCTION        MODULE  CALLS  TIMED     SELF    SHARE    TOTAL     MEAN  STDDEV     P50      P90      P99  P99.9   MAX
        processCommand  server  1,000  1,000  15.7 ms  100.0 %  31.5 ms  31.5 µs  298 µs  1.5 µs  1.91 µs  2.01 µs   3 ms  3 ms
        1 function without a call: call
        6 calls of call, processCommand ended by an exception, by longjmp or with its thread; their times are not in the table
        2 calls of call, processCommand had begun before the measurement; their times are not in the table
        2,400 calls of call, processCommand could not be recorded; their times are not in the table

        processCommand: 1,000 timed calls
          FROM      TO  CALLS   SHARE
          1 µs  1.2 µs    198  19.8 %  ████████████████████████████████████████
        1.2 µs  1.4 µs    198  19.8 %  ████████████████████████████████████████
        1.4 µs  1.6 µs    198  19.8 %  ████████████████████████████████████████
        1.6 µs  1.8 µs    198  19.8 %  ████████████████████████████████████████
        1.8 µs    2 µs    190  19.0 %  ██████████████████████████████████████▍
          2 µs  2.5 µs      8   0.8 %  █▋
        2.5 µs  2.5 ms      0
        2.5 ms    3 ms      7   0.7 %  █▍
          3 ms  3.5 ms      3   0.3 %  ▋
    "#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn latencies_are_sorted_by_any_column() {
    let script = || Script {
        functions: vec!["b", "a", "c"],
        readings: vec![vec![50, 0, 900]],
        last: vec![50, 0, 900],
        ..latencies()
    };
    // Numbers and names have different orders, and neither is the order of the functions in the request.
    for (sort, expected) in [("calls", "c b"), ("total", "c b"), ("p50", "c b"), ("p99.9", "c b"), ("name", "b c")] {
        let words = format!("ingraft latency -p 7 ? --sort {sort}");
        let (text, result) = run_command(&words, script(), Paper::default()).await;
        assert!(result.is_ok());
        let rows = text.lines().filter(|line| line.contains("server"));
        let names: Vec<&str> = rows.filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(names.join(" "), expected, "{sort}: {text}");
    }
}

#[tokio::test]
async fn histograms_of_many_functions_have_to_be_asked_for() {
    let values = vec![10; 8];
    let script = || Script {
        functions: vec!["a", "b", "c", "d", "e", "f", "g", "h"],
        readings: vec![values.clone()],
        last: values.clone(),
        ..latencies()
    };
    for (flags, expected) in [("", 0), (" --histogram", 8)] {
        let words = format!("ingraft latency -p 7 ?{flags}");
        let (text, result) = run_command(&words, script(), Paper::default()).await;
        assert!(result.is_ok());
        assert_eq!(text.lines().filter(|line| line.contains("FROM")).count(), expected, "{text}");
    }
}

#[tokio::test]
async fn histograms_are_watched() {
    let script = Script { functions: vec!["call"], readings: vec![vec![0], vec![600]], last: vec![900], ..latencies() };
    let words = "ingraft watch -p 7 latency@/Code/server/call";
    let (text, result) = run_command(&format!("{words} --format json"), script.clone(), Paper::default()).await;
    assert!(result.is_ok());
    let samples: Vec<&str> = text.lines().filter(|line| line.contains("\"sample\"")).collect();
    expect![[r#"
        {"type":"sample","pid":7,"time_ns":1000000000,"metric":"latency","focus":"/Code/server/call","value":0,"rate":null,"unit":"nanoseconds","sum":null,"stddev":null,"min":null,"p50":null,"p90":null,"p99":null,"p999":null,"max":null,"buckets":[]}
        {"type":"sample","pid":7,"time_ns":1500000000,"metric":"latency","focus":"/Code/server/call","value":600,"rate":1200.0,"unit":"nanoseconds","sum":18773700,"stddev":298401.75755165494,"min":1000,"p50":1302,"p90":1544,"p99":1599,"p999":3000599,"max":3000599,"buckets":[[992,1008,8],[1008,1024,16],[1024,1056,32],[1056,1088,32],[1088,1120,31],[1120,1152,32],[1152,1184,32],[1184,1216,31],[1216,1248,32],[1248,1280,32],[1280,1312,31],[1312,1344,32],[1344,1376,32],[1376,1408,31],[1408,1440,32],[1440,1472,32],[1472,1504,31],[1504,1536,32],[1536,1568,32],[1568,1600,31],[2949120,3014656,6]],"interval":{"ns":500000000,"count":600,"sum":18773700,"stddev":298401.75755165494,"min":1000,"p50":1302,"p90":1544,"p99":1599,"p999":3000599,"max":3000599,"buckets":[[992,1008,8],[1008,1024,16],[1024,1056,32],[1056,1088,32],[1088,1120,31],[1120,1152,32],[1152,1184,32],[1184,1216,31],[1216,1248,32],[1248,1280,32],[1280,1312,31],[1312,1344,32],[1344,1376,32],[1376,1408,31],[1408,1440,32],[1440,1472,32],[1472,1504,31],[1504,1536,32],[1536,1568,32],[1568,1600,31],[2949120,3014656,6]]}}
        {"type":"sample","pid":7,"time_ns":2000000000,"metric":"latency","focus":"/Code/server/call","value":900,"rate":600.0,"unit":"nanoseconds","sum":28295550,"stddev":298401.8203863989,"min":1000,"p50":1453,"p90":1817,"p99":1918,"p999":3000899,"max":3000899,"buckets":[[992,1008,8],[1008,1024,16],[1024,1056,32],[1056,1088,32],[1088,1120,31],[1120,1152,32],[1152,1184,32],[1184,1216,31],[1216,1248,32],[1248,1280,32],[1280,1312,31],[1312,1344,32],[1344,1376,32],[1376,1408,31],[1408,1440,32],[1440,1472,32],[1472,1504,31],[1504,1536,32],[1536,1568,32],[1568,1600,31],[1600,1632,32],[1632,1664,32],[1664,1696,32],[1696,1728,31],[1728,1760,32],[1760,1792,32],[1792,1824,31],[1824,1856,32],[1856,1888,32],[1888,1920,11],[2949120,3014656,9]],"interval":{"ns":500000000,"count":300,"sum":9521850,"stddev":298401.71985080227,"min":1600,"p50":1750,"p90":1871,"p99":1918,"p999":3000899,"max":3000899,"buckets":[[1600,1632,32],[1632,1664,32],[1664,1696,32],[1696,1728,31],[1728,1760,32],[1760,1792,32],[1792,1824,31],[1824,1856,32],[1856,1888,32],[1888,1920,11],[2949120,3014656,3]]}}"#]]
    .assert_eq(&samples.join("\n"));
    let (text, result) = run_command(words, script, Paper::default()).await;
    assert!(result.is_ok());
    let bars = text.lines().skip_while(|line| *line != "latency@/Code/server/call: 900 values");
    assert!(bars.filter(|line| line.contains('█')).count() >= 5, "{text}");
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(" s  ")).map(str::trim_start).collect();
    expect![[r#"
        0.000 s  latency@/Code/server/call  0 values
        0.500 s  latency@/Code/server/call  600 values  1,200 values/s  p50 1.3 µs  p90 1.54 µs  p99 1.6 µs  p99.9 3 ms  max 3 ms  last 500 ms: 600  p50 1.3 µs  p90 1.54 µs  p99 1.6 µs  p99.9 3 ms  max 3 ms
        1.000 s  latency@/Code/server/call  900 values  600 values/s  p50 1.45 µs  p90 1.82 µs  p99 1.92 µs  p99.9 3 ms  max 3 ms  last 500 ms: 300  p50 1.75 µs  p90 1.87 µs  p99 1.92 µs  p99.9 3 ms  max 3 ms"#]]
    .assert_eq(&lines.join("\n"));
}

#[tokio::test]
async fn tables_redraw_themselves() {
    let words = |text: &str, line: usize| {
        text.lines().nth(line).unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ")
    };
    // The lines are the announcement, then the heading and the row of each frame.
    let text = run_on_screen("ingraft count -p 7 call", Script { ends: latencies().ends, ..script() }).await;
    assert_eq!(words(&text, 4), "FUNCTION MODULE CALLS CALLS/S");
    assert_eq!(words(&text, 5), "call server 1,200 2,400");
    let text = run_on_screen("ingraft latency -p 7 call", latencies()).await;
    assert_eq!(words(&text, 4), "FUNCTION CALLS TIMED SELF SHARE TOTAL MEAN P50 P99 MAX");
    assert_eq!(words(&text, 5), "proc…and 600 600 9.39 ms 100.0 % 18.8 ms 31.3 µs 1.3 µs 1.6 µs 3 ms");
    let text = run_on_screen("ingraft watch -p 7 latency@/Code/server", latencies()).await;
    assert_eq!(words(&text, 4), "METRIC FOCUS VALUE RATE UNIT P50 P90 P99 P99.9 MAX");
    let row = words(&text, 5);
    assert!(row.ends_with("600 1,200/s values 1.3 µs 1.54 µs 1.6 µs 3 ms 3 ms"), "{row}");
}

#[tokio::test]
async fn a_reader_that_went_away_leaves_nothing_in() {
    let script = script();
    let removed = script.removed.clone();
    let paper = Paper { torn_after: Some(1), ..Paper::default() };
    let words = "ingraft watch -p 7 calls --until-exit --format json";
    let (text, result) = run_command(words, script, paper).await;
    assert!(matches!(result, Err(Stop::ReaderGone)), "{result:?}");
    assert_eq!(text.lines().count(), 1);
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn trouble_with_the_second_target_takes_the_first_one_out() {
    let failure = ProtocolFailure::new(Reason::AlreadyTraced, "gdb traces process 8", "end gdb");
    let script = Script { failure: Some((8, failure)), ..script() };
    let removed = script.removed.clone();
    let (_, result) = run_command("ingraft count -p 7 -p 8 call --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!(
        (failure.exit, failure.what.as_str(), failure.hint.as_str()),
        (Exit::Denied, "gdb traces process 8", "end gdb")
    );
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn a_second_target_that_is_gone_is_left_out() {
    let gone = |pid| ProtocolFailure::new(Reason::NoSuchProcess, format!("no process {pid}"), "look");
    let command = |pid| {
        let script = Script { failure: Some((pid, gone(pid))), ..script() };
        run_command("ingraft count -p 7 -p 8 call --for 10ms --format json", script, Paper::default())
    };
    for (pid, other) in [(8, "\"pid\":7"), (7, "\"pid\":8")] {
        let (text, result) = command(pid).await;
        assert!(result.is_ok(), "{result:?}");
        assert!(text.lines().all(|line| line.contains(other)), "{text}");
    }
}

#[tokio::test]
async fn a_broken_stream_fails_but_removes_and_prints() {
    let script = Script { breaks: true, ..script() };
    let removed = script.removed.clone();
    let (text, result) = run_command("ingraft count -p 7 call --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!(failure.exit, Exit::Failed);
    assert!(text.contains("\"count\"") && text.contains("\"removed\""), "{text}");
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn text_that_was_not_restored_is_a_failure() {
    let script = Script { text_differs: true, ..script() };
    let (text, result) =
        run_command("ingraft count -p 7 call --for 10ms --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!((failure.exit, failure.pid), (Exit::Failed, Some(7)));
    assert!(text.contains("\"text_restored\":false"), "{text}");
}

#[tokio::test]
async fn a_signal_ends_a_measurement_like_its_time() {
    let _alone = QUIET.write().await;
    // The test takes the signal over before it sends it, so that the signal cannot end the test itself.
    let _ours = Signals::take().unwrap();
    let script = script();
    let removed = script.removed.clone();
    let kill = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
    });
    let (text, result) =
        run_loud("ingraft count -p 7 call --format json", script, Paper::default(), Output::to_sink).await;
    kill.await.unwrap();
    assert!(result.is_ok(), "{result:?}");
    assert!(text.contains("\"calls\":1000"), "{text}");
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn a_signal_ends_an_insertion_that_takes_long() {
    let _alone = QUIET.write().await;
    let _ours = Signals::take().unwrap();
    // The signal is sent repeatedly, because the test cannot see when the command takes signals over.
    let kill = tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
        }
    });
    let script = Script { hangs: true, ..script() };
    let (_, result) =
        run_loud("ingraft count -p 7 call --format json", script, Paper::default(), Output::to_sink).await;
    kill.abort();
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert!(failure.to_string().contains("given up"), "{failure}");
}

#[tokio::test]
async fn nothing_stays_in_without_a_daemon() {
    let cli = <Cli as clap::Parser>::try_parse_from(["ingraft", "count", "-p", "7", "x", "--no-remove"]).unwrap();
    assert!(cli.check().is_err_and(|failure| failure.exit == Exit::Usage));
}

#[tokio::test]
async fn several_targets_are_added_up() {
    let (text, result) =
        run_command("ingraft count -p 7 -p 8 call --for 200ms --format json", script(), Paper::default()).await;
    assert!(result.is_ok(), "{result:?}");
    let combined: Vec<&str> = text.lines().filter(|line| line.contains("\"combined\"")).collect();
    expect![[r#"
        {"type":"combined","time_ns":2000000000,"metric":"calls","focus":"/Code/server/processCommand","value":2000,"rate":1600.0,"unit":"calls","targets":2,"heard":2}
        {"type":"combined","time_ns":2000000000,"metric":"calls","focus":"/Code/server/call","value":3000,"rate":1200.0,"unit":"calls","targets":2,"heard":2}"#]]
    .assert_eq(&combined.join("\n"));
    let (text, result) = run_command("ingraft count -p 7 -p 8 call --for 200ms", script(), Paper::default()).await;
    assert!(result.is_ok(), "{result:?}");
    assert!(text.lines().any(|line| line.contains("all 2") && line.contains("3,000")), "{text}");
}
