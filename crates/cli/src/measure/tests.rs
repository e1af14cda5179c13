//! Whole commands against an engine with a script.

use expect_test::{Expect, expect};
use ingraft_wire::{Failure as WireFailure, FailureKind, v1};

use super::*;
use crate::args::{Cli, Command};
use crate::command;
use crate::fake::{Paper, Script, serve};

/// A signal reaches the whole process: the test that sends one runs alone.
static QUIET: tokio::sync::RwLock<()> = tokio::sync::RwLock::const_new(());

/// Runs a command; answers what it printed and how it ended.
async fn run_command(words: &str, script: Script, paper: Paper) -> (String, Result<(), Stop>) {
    let _quiet = QUIET.read().await;
    run_loud(words, script, paper).await
}

async fn run_loud(words: &str, script: Script, paper: Paper) -> (String, Result<(), Stop>) {
    let cli = <Cli as clap::Parser>::try_parse_from(words.split(' ')).unwrap();
    let engines = Engines::of_test(serve(script).await);
    let context = Context { engines: &engines, common: &cli.common, started: std::time::Instant::now() };
    let mut out = Output::to_sink(cli.common.format, Box::new(paper.clone()));
    let result = match cli.command {
        Command::Count(args) => command::count::run(args, context, &mut out).await,
        Command::Watch(args) => command::watch::run(args, context, &mut out).await,
        _ => panic!("no measurement"),
    };
    (paper.read(), result)
}

/// The time of the attachment is the only thing that differs from run to run.
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
            {"type":"attached","pid":7,"threads":4,"modules":9,"functions":5120,"points":2,"attach_ms":…,"stopped_ms":0.812,"measurement":107}
            {"type":"ended","pid":7,"status":0,"signal":null}
            {"type":"count","pid":7,"module":"server","function":"processCommand","offset":"0x5c1b0","calls":1000,"threads":[{"tid":7,"calls":1000}]}
            {"type":"count","pid":7,"module":"server","function":"call","offset":"0x5c1b0","calls":1500,"threads":[{"tid":7,"calls":1500}]}
            {"type":"removed","pid":7,"stopped_ms":0.6,"text_restored":true,"children_left":[],"corrections":{"late_start":0,"early_end":0}}
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
            {"type":"attached","pid":7,"threads":4,"modules":9,"functions":5120,"points":1,"attach_ms":…,"stopped_ms":0.812,"measurement":107}
            {"type":"sample","pid":7,"time_ns":1000000000,"metric":"calls","focus":"/Code/server/call","value":0,"rate":null,"unit":"calls"}
            {"type":"sample","pid":7,"time_ns":1500000000,"metric":"calls","focus":"/Code/server/call","value":600,"rate":1200.0,"unit":"calls"}
            {"type":"sample","pid":7,"time_ns":2000000000,"metric":"calls","focus":"/Code/server/call","value":900,"rate":600.0,"unit":"calls"}
            {"type":"cost","pid":7,"ns_per_s":3000000.0,"percent":0.3}
            {"type":"removed","pid":7,"stopped_ms":0.6,"text_restored":true,"children_left":[],"corrections":{"late_start":0,"early_end":0}}
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
        processCommand  server  1,000    1,000        1
        call            server  1,500    1,500        1
        process 7: cost 0.3 % of one processor
        process 7: removed, held for 0.60 ms; its code is as it was"#]]
    .assert_eq(&lines.join("\n"));
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
    let failure = WireFailure::new(FailureKind::NotFound, "no_such_process", "no process 8", "look at `ingraft ps`");
    let script = Script { failure: Some((8, failure)), ..script() };
    let removed = script.removed.clone();
    let (_, result) = run_command("ingraft count -p 7 -p 8 call --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!(
        (failure.kind, failure.what.as_str(), failure.hint.as_str()),
        (Kind::NotFound, "no process 8", "look at `ingraft ps`")
    );
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn a_broken_stream_fails_but_removes_and_prints() {
    let script = Script { breaks: true, ..script() };
    let removed = script.removed.clone();
    let (text, result) = run_command("ingraft count -p 7 call --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!(failure.kind, Kind::Failed);
    assert!(text.contains("\"count\"") && text.contains("\"removed\""), "{text}");
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn text_that_was_not_restored_is_a_failure() {
    let script = Script { text_differs: true, ..script() };
    let (text, result) =
        run_command("ingraft count -p 7 call --for 10ms --format json", script, Paper::default()).await;
    let Err(Stop::Failure(failure)) = result else { panic!("{result:?}") };
    assert_eq!((failure.kind, failure.pid), (Kind::Failed, Some(7)));
    assert!(text.contains("\"text_restored\":false"), "{text}");
}

#[tokio::test]
async fn a_signal_ends_a_measurement_like_its_time() {
    let _alone = QUIET.write().await;
    // Taken over before it is sent, so that it cannot end the test itself.
    let _ours = Signals::take().unwrap();
    let script = script();
    let removed = script.removed.clone();
    let kill = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let me = rustix::process::getpid();
        rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
    });
    let (text, result) = run_loud("ingraft count -p 7 call --format json", script, Paper::default()).await;
    kill.await.unwrap();
    assert!(result.is_ok(), "{result:?}");
    assert!(text.contains("\"calls\":1000"), "{text}");
    assert_eq!(*removed.lock().unwrap(), [107]);
}

#[tokio::test]
async fn nothing_stays_in_without_a_daemon() {
    let cli = <Cli as clap::Parser>::try_parse_from(["ingraft", "count", "-p", "7", "x", "--no-remove"]).unwrap();
    assert!(cli.check().is_err_and(|failure| failure.kind == Kind::Usage));
}
