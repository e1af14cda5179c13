//! A program that the engine starts is held before its first instruction and whenever it has mapped code.

mod common;

use std::ffi::OsString;
use std::time::Duration;

use common::{compile, hand_patch, within};
use ingraft_model::{Bias, Svma};
use ingraft_process::{
    AT_ENTRY, ApplyOptions, DataAreaRequest, ExitStatus, ProcessError, SharedArea, StandardStreams, StartStage, spawn,
};

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

#[test]
fn stops_come_in_order_and_the_end_is_told() {
    within(Duration::from_secs(60), || {
        let mut stops = Vec::new();
        let target = spawn(&words(&["sh", "-c", "exit 7"]), StandardStreams::Inherited, |target, start| {
            let files = target.files().expect("files").len();
            stops.push((start, files));
        })
        .expect("spawn");
        assert_eq!(target.wait_exit(Duration::from_secs(10)), Some(ExitStatus::Code(7)));
        assert_eq!(stops.first(), Some(&(StartStage::Begun, 2)), "the program and its loader");
        assert!(stops.iter().any(|s| s.0 == StartStage::Mapped && s.1 == 3), "{stops:?}");
        assert_eq!(stops.last().map(|s| s.0), Some(StartStage::Loaded));
        assert!(!target.is_alive());
    });
}

#[test]
fn a_program_that_is_not_there() {
    within(Duration::from_secs(60), || {
        let error = spawn(&words(&["/no/such/program"]), StandardStreams::Inherited, |_, _| panic!("nothing to hold"))
            .expect_err("started");
        assert!(
            matches!(&error, ProcessError::Start { source, .. } if source.kind() == std::io::ErrorKind::NotFound),
            "{error}"
        );
        assert!(spawn(&[], StandardStreams::Inherited, |_, _| ()).is_err());
    });
}

/// proc_once calls `counted` once in a constructor and twice in main.
fn every_call_is_counted(flags: &[&str], compiler: &str) {
    let program = common::compile_with(compiler, "proc_once", flags);
    let symbols = std::process::Command::new("nm").arg(&program).output().expect("nm").stdout;
    let symbols = String::from_utf8(symbols).expect("nm");
    let value = |name: &str| {
        let line = symbols.lines().find(|l| l.ends_with(&format!(" T {name}"))).expect(name);
        Svma(u64::from_str_radix(&line[..16], 16).expect("value"))
    };
    let (counted, start) = (value("counted"), value("_start"));
    let mut area: Option<SharedArea> = None;
    let mut stops = Vec::new();
    let target = spawn(&[program.into_os_string()], StandardStreams::Inherited, |target, stop| {
        stops.push(stop);
        if area.is_some() {
            return;
        }
        let made = match target.create_area(&DataAreaRequest::default()) {
            Ok(made) => made,
            Err(ProcessError::NoGadget(_)) if stop != StartStage::Loaded => return, // The libc is not mapped yet.
            Err(e) => panic!("{e}"),
        };
        let entry = target.aux(AT_ENTRY).expect("entry");
        let counted = counted.to_avma(Bias(entry - start.0));
        let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
        let patch = hand_patch(counted, arena.start, made.layout().counter(0));
        let applied = target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
        assert_eq!(applied.threads, 1);
        area = Some(made);
    })
    .expect("spawn");
    assert_eq!(target.wait_exit(Duration::from_secs(10)), Some(ExitStatus::Code(0)), "{stops:?}");
    assert_eq!(area.expect("area").counter(0, 0).expect("counter"), 3, "{stops:?}");
}

#[test]
fn constructors_are_counted() {
    within(Duration::from_secs(60), || every_call_is_counted(&[], "cc"));
}

#[test]
fn a_static_program_is_counted() {
    within(Duration::from_secs(60), || every_call_is_counted(&["-static"], "cc"));
}

#[test]
fn a_musl_program_is_counted() {
    if std::process::Command::new("musl-gcc").arg("--version").output().is_err() {
        println!("not tested: no musl-gcc");
        return;
    }
    within(Duration::from_secs(60), || every_call_is_counted(&["-static"], "musl-gcc"));
}

#[test]
fn it_can_be_changed_later_as_well() {
    within(Duration::from_secs(60), || {
        let program = compile("proc_once");
        let target =
            spawn(&[program.into_os_string(), "wait".into()], StandardStreams::Inherited, |_, _| ()).expect("spawn");
        assert_eq!(target.status().expect("status").tracer, 0);
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        target.unmap(&[area.layout().range()]).expect("unmap");
        assert_eq!(target.wait_exit(Duration::from_millis(1)), None);
        common::kill(target.pid(), libc::SIGTERM);
        assert_eq!(target.wait_exit(Duration::from_secs(10)), Some(ExitStatus::Signal(15)));
    });
}

#[test]
fn streams_that_lead_nowhere() {
    within(Duration::from_secs(60), || {
        // The script's exit status shows whether each stream is the null device.
        let script = "for fd in 0 1 2; do [ /proc/self/fd/$fd -ef /dev/null ] || exit 3; done; exit 9";
        let target = spawn(&words(&["sh", "-c", script]), StandardStreams::Null, |_, _| ()).expect("spawn");
        assert_eq!(target.wait_exit(Duration::from_secs(30)), Some(ExitStatus::Code(9)));
    });
}
