//! The engine dies between every two steps that touch the target. The target survives with correct results, and can be restored.

mod common;

use std::process::Command;
use std::time::Duration;

use common::{COUNTED_BYTES, Mutatee, hand_patch, until, within};
use ingraft_model::{Avma, AvmaRange, PatchPlan, Pid};
use ingraft_process::{ApplyOptions, DataAreaRequest, ProcessError, Target};

/// All operations of a measurement, in a process that kills itself at a given step.
#[test]
#[ignore = "run by the tests below"]
fn engine() {
    let number = |name: &str| std::env::var(name).expect(name).parse::<u64>().expect(name);
    let counted = Avma(number("COUNTED"));
    ingraft_process::abort_after(number("STEP"));
    let target = Target::open(Pid(number("TARGET") as i32)).expect("open");
    let survey = target.survey(None).expect("survey");
    let request = DataAreaRequest { identity: survey.identity, ..DataAreaRequest::default() };
    let area = target.create_area(&request).expect("area");
    let layout = area.layout();
    let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
    let patch = hand_patch(counted, arena.start, layout.counter(0));
    target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
    let options =
        ApplyOptions { check_quiet: patch.remove.retired.clone(), reset_gs: Some(layout), ..ApplyOptions::default() };
    let mut quiet = target.apply(&patch.remove, &options).expect("remove").quiet;
    while !quiet {
        quiet = target.quiet(&patch.remove.retired).expect("quiet");
    }
    target.unmap(&[arena, layout.range()]).expect("unmap");
}

/// Runs the engine until it dies at `step`. Returns `false` if it completes before that.
fn dies_at(mutatee: &Mutatee, counted: Avma, step: u64) -> bool {
    let output = Command::new(std::env::current_exe().expect("own program"))
        .args(["--exact", "engine", "--ignored", "--nocapture", "--test-threads=1"])
        .env("TARGET", mutatee.child.id().to_string())
        .env("COUNTED", counted.0.to_string())
        .env("STEP", step.to_string())
        .output()
        .expect("engine");
    if output.status.success() {
        return false;
    }
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(output.status.signal(), Some(9), "step {step}: {}", String::from_utf8_lossy(&output.stderr));
    true
}

/// Removes everything that the dead engine has left, as a successor does.
fn clean(target: &Target, counted: Avma) {
    let mut bytes = [0; 13];
    target.read(counted, &mut bytes).expect("read");
    let areas = target.find_areas().expect("areas");
    let arenas: Vec<AvmaRange> = (target.maps().expect("maps").into_iter())
        .filter(|m| m.exec && m.path.as_os_str().is_empty())
        .map(|m| m.range)
        .collect();
    if bytes != COUNTED_BYTES {
        let counter = areas[0].start.0 as u32;
        let patch = hand_patch(counted, arenas[0].start, counter);
        target.apply(&patch.remove, &ApplyOptions::default()).expect("restore");
        target.read(counted, &mut bytes).expect("read");
        assert_eq!(bytes, COUNTED_BYTES);
    }
    until("nobody is in the arena", || target.quiet(&arenas).expect("quiet"));
    // An engine that died between two calls may have left a part of an area, which is found by the name of its file.
    let mut ours = arenas;
    ours.extend(areas);
    target.unmap(&ours).expect("unmap");
}

fn kill_at_every_step(args: &[&str], every: usize, disturb: impl Fn(&Mutatee)) {
    let mutatee = Mutatee::start("proc_worker", args);
    let counted = mutatee.address("counted");
    let target = mutatee.target();
    // `target` searches for gadgets once. The engine is a new process for each step, and searches each time.
    let mut steps = 0;
    for step in (1..).step_by(every) {
        disturb(&mutatee);
        let died = dies_at(&mutatee, counted, step);
        until("it is free", || target.status().is_ok_and(|s| s.tracer == 0));
        assert!(target.is_alive(), "killed at step {step}");
        clean(&target, counted);
        steps = step;
        if !died {
            break;
        }
    }
    let left = target.maps().expect("maps");
    assert!(!left.iter().any(|m| m.exec && m.path.as_os_str().is_empty()), "{left:?}");
    println!("{args:?}: {steps} steps; {}", mutatee.finish());
}

#[test]
fn working_threads_survive() {
    within(Duration::from_secs(900), || kill_at_every_step(&["3"], 1, |_| ()));
}

#[test]
fn sleeping_threads_survive() {
    within(Duration::from_secs(900), || kill_at_every_step(&["3", "idle"], 1, |_| ()));
}

#[test]
fn starting_and_ending_threads_and_signals_survive() {
    within(Duration::from_secs(900), || kill_at_every_step(&["2", "churn"], 3, |m| m.signal(10)));
}

#[test]
fn an_end_in_between_is_told() {
    within(Duration::from_secs(60), || {
        let mut mutatee = Mutatee::start("proc_worker", &["2"]);
        let target = mutatee.target();
        mutatee.child.kill().expect("kill");
        mutatee.child.wait().expect("wait");
        assert!(!target.is_alive());
        assert!(target.survey(None).is_err_and(|e| e.is_gone()));
        assert!(target.create_area(&DataAreaRequest::default()).is_err_and(|e: ProcessError| e.is_gone()));
        assert!(target.apply(&PatchPlan::default(), &ApplyOptions::default()).is_err());
    });
}
