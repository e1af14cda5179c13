//! Targets that are difficult to measure. The engine measures each, or refuses it with a reason and leaves nothing behind.

mod common;

use std::time::Duration;

use common::{Mutatee, hand_patch, hand_patch_of, until, within};
use ingraft_model::{Avma, PatchPlan, TextWrite, ThreadIdentity};
use ingraft_process::{
    ApplyError, ApplyOptions, DataAreaRequest, Denial, FaultFrames, Mapping, ProcessError, Target, attachable,
};

fn ours(m: &Mapping) -> bool {
    m.path.to_string_lossy().contains("ingraft") || (m.exec && m.path.as_os_str().is_empty())
}

fn nothing_left(target: &Target) {
    assert!(!target.maps().expect("maps").iter().any(ours));
    let files = std::fs::read_dir(format!("/proc/{}/fd", target.pid())).expect("fd");
    let links: Vec<_> = files.filter_map(|f| std::fs::read_link(f.expect("entry").path()).ok()).collect();
    assert!(!links.iter().any(|l| l.to_string_lossy().contains("ingraft")), "{links:?}");
}

/// Runs all operations of a measurement, and checks that nothing is left in the target. Returns the number of shards.
fn whole_line(mutatee: &Mutatee) -> u32 {
    let target = mutatee.target();
    let counted = mutatee.address("counted");
    let area = target.create_area(&DataAreaRequest::default()).expect("area");
    let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
    let patch = hand_patch(counted, arena.start, area.layout().counter(0));
    target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
    until("calls are counted", || area.counter(0, 0).expect("counter") > 3);
    target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
    until("quiet", || target.quiet(&patch.remove.retired).expect("quiet"));
    target.unmap(&[arena, area.layout().range()]).expect("unmap");
    nothing_left(&target);
    area.layout().shards
}

fn bounded(test: impl FnOnce() + Send + 'static) {
    within(Duration::from_secs(60), test);
}

#[test]
fn filtered_system_calls() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["seccomp"]);
        until("it filters", || mutatee.target().status().expect("status").seccomp == 2);
        assert!(mutatee.target().survey(None).expect("survey").filtered);
        whole_line(&mutatee);
        mutatee.finish();
    });
}

/// The target's only thread sleeps uninterruptibly again and again, but never for long.
#[test]
fn a_thread_that_dozes_is_borrowed_when_it_wakes() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["doze"]);
        for _ in 0..20 {
            whole_line(&mutatee);
        }
        mutatee.finish();
    });
}

#[test]
fn limited_address_space() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["limit"]);
        assert!(whole_line(&mutatee) < DataAreaRequest::default().shards);
        mutatee.finish();
        let mutatee = Mutatee::start("proc_hostile", &["tight"]);
        let error = mutatee.target().create_area(&DataAreaRequest::default()).expect_err("made");
        assert!(matches!(&error, ProcessError::Shortage(_)), "{error}");
        nothing_left(&mutatee.target());
        mutatee.finish();
    });
}

#[test]
fn limited_file_size() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["filesize"]);
        whole_line(&mutatee);
        mutatee.finish();
    });
}

#[test]
fn locked_memory_is_not_filled() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["mlock"]);
        let target = mutatee.target();
        let before = target.status().expect("status").locked_kib;
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        assert_eq!(target.status().expect("status").locked_kib, before);
        target.unmap(&[area.layout().range()]).expect("unmap");
        whole_line(&mutatee);
        mutatee.finish();
    });
}

#[test]
fn own_use_of_gs() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["gs"]);
        let survey = mutatee.target().survey(None).expect("survey");
        assert_eq!(survey.identity, ThreadIdentity::Locked);
        assert!(survey.why_locked.is_some());
        let options = ApplyOptions::default();
        let applied = mutatee.target().apply(&PatchPlan::default(), &options).expect("look");
        assert_eq!(applied.bases[0].gs_base, 0x1234000);
        mutatee.finish();
    });
}

#[test]
fn shared_and_foreign_text() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["shared"]);
        let target = mutatee.target();
        let shared = mutatee.address("shared");
        let write = |at| PatchPlan {
            text: vec![TextWrite { at, len: 1, old: [0xf3, 0, 0, 0, 0, 0, 0, 0], new: [0xcc, 0, 0, 0, 0, 0, 0, 0] }],
            ..PatchPlan::default()
        };
        let refused = |plan: &PatchPlan| target.apply(plan, &ApplyOptions::default()).expect_err("applied");
        assert!(matches!(refused(&write(shared)), ApplyError::SharedText { .. }));
        assert!(matches!(refused(&write(Avma(0x10))), ApplyError::NotMapped { .. }));
        let counted = mutatee.address("counted");
        assert!(matches!(refused(&write(counted.offset(4))), ApplyError::Changed { .. }));
        let mut crossing = write(counted.offset(4095 - (counted.0 & 4095) as i64));
        crossing.text[0].len = 2;
        assert!(matches!(refused(&crossing), ApplyError::BadPlan { .. }));
        mutatee.finish();
    });
}

/// A program counter that only a signal frame on an alternate stack holds is moved.
#[test]
fn saved_program_counters_move() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["spin"]);
        let target = mutatee.target();
        let at = |name: &str| target.read_u64(mutatee.address(name)).expect("read");
        until("it is in the handler", || at("handler") == 1);
        let spinning = mutatee.address("spinning");
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        let arena = target.map_arena(&(spinning..spinning.offset(4096)), 4096).expect("arena");
        let displaced = [0x48, 0x8d, 0x47, 0x11, 0xeb, 0xfe, 0x66, 0x90];
        let mut patch = hand_patch_of(spinning, displaced, arena.start, area.layout().counter(0));
        // Without the moves, the plan is refused.
        let moves = std::mem::take(&mut patch.insert.moves);
        let options = ApplyOptions { patience: Duration::from_millis(50), ..ApplyOptions::default() };
        let error = target.apply(&patch.insert, &options).expect_err("applied");
        assert!(matches!(error, ApplyError::Busy { at, .. } if at == spinning.offset(8)), "{error}");
        patch.insert.moves = moves;
        assert_eq!(target.apply(&patch.insert, &options).expect("insert").moved, 1);
        assert!(!target.quiet(&patch.remove.retired).expect("quiet"), "a frame points there");
        assert_eq!(target.apply(&patch.remove, &options).expect("remove").moved, 1);
        assert!(target.quiet(&patch.remove.retired).expect("quiet"));
        assert_eq!(target.apply(&patch.insert, &options).expect("insert").moved, 1);
        // Set the mutatee's own flag, as a debugger would.
        common::poke(target.pid(), mutatee.address("go"), 1);
        until("it went on", || at("finished") != 0);
        assert_eq!((at("finished"), at("saved")), (1, arena.start.0 + 13), "{arena:?}");
        mutatee.finish();
    });
}

/// A handler of a fault may skip the instruction, so an insertion waits for it, and a removal leaves it where it is.
#[test]
fn handlers_of_faults_return_first() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["fault"]);
        let target = mutatee.target();
        let at = |name: &str| target.read_u64(mutatee.address(name)).expect("read");
        until("it is in the handler", || at("handler") == 1);
        let faulting = mutatee.address("faulting");
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        let arena = target.map_arena(&(faulting..faulting.offset(4096)), 4096).expect("arena");
        let displaced = [0x48, 0x8d, 0x47, 0x11, 0x0f, 0x0b, 0x66, 0x90];
        let patch = hand_patch_of(faulting, displaced, arena.start, area.layout().counter(0));
        let options = ApplyOptions { patience: Duration::from_millis(50), ..ApplyOptions::default() };
        let error = target.apply(&patch.insert, &options).expect_err("applied");
        assert!(matches!(error, ApplyError::Faulted { at, .. } if at == faulting.offset(8)), "{error}");
        let leave = ApplyOptions { faults: FaultFrames::Leave, ..options.clone() };
        let removal = PatchPlan { text: Vec::new(), ..patch.insert.clone() };
        assert_eq!(target.apply(&removal, &leave).expect("apply").moved, 0, "the program counter stays");
        common::poke(target.pid(), mutatee.address("go"), 1);
        until("it went on", || at("finished") != 0);
        assert_eq!((at("finished"), at("saved")), (1, faulting.0 + 8));
        assert_eq!(target.apply(&patch.insert, &options).expect("insert").moved, 0);
        mutatee.finish();
    });
}

#[test]
fn a_vfork_parent_does_not_delay() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &["vfork"]);
        for _ in 0..20 {
            whole_line(&mutatee);
        }
        mutatee.finish();
    });
}

#[test]
fn a_traced_process_is_refused_by_name() {
    bounded(|| {
        let mutatee = Mutatee::start("proc_hostile", &[]);
        let mut strace = std::process::Command::new("strace")
            .args(["-o", "/dev/null", "-p", &mutatee.child.id().to_string()])
            .stderr(std::process::Stdio::null())
            .spawn();
        let Ok(strace) = strace.as_mut() else {
            println!("not tested: no strace");
            return;
        };
        until("it is traced", || matches!(attachable(mutatee.pid()), Err(Denial::Traced { .. })));
        let denial = attachable(mutatee.pid()).expect_err("attachable");
        assert!(
            matches!(&denial, Denial::Traced { tracer, tracer_pid, .. } if tracer == "strace" && tracer_pid.0 == strace.id() as i32)
        );
        assert!(Target::open(mutatee.pid()).is_err());
        strace.kill().expect("kill");
        strace.wait().expect("wait");
        until("it is free", || attachable(mutatee.pid()).is_ok());
        mutatee.finish();
    });
}
