//! The engine's stops have no effect on system calls in which the target waits.

mod common;

use std::time::Duration;

use common::{Mutatee, hand_patch, until, within};
use ingraft_process::{ApplyOptions, ProcessError, Target};

const FOR_EVER: [&str; 17] = [
    "read",
    "futex",
    "poll",
    "ppoll",
    "select",
    "epoll_wait",
    "epoll_timeout",
    "accept",
    "accept_timeout",
    "recv_timeout",
    "sigsuspend",
    "sigtimedwait",
    "semop",
    "sem_wait",
    "wait",
    "clock_nanosleep",
    "pause",
];

fn all_asleep(target: &Target, threads: usize) -> bool {
    let tids = target.threads().expect("threads");
    tids.len() == threads
        && tids.iter().all(|t| {
            let syscall =
                std::fs::read_to_string(format!("/proc/{}/task/{t}/syscall", target.pid())).unwrap_or_default();
            syscall.split(' ').next().and_then(|n| n.parse::<i64>().ok()).is_some_and(|n| n >= 0)
        })
}

/// Makes one stop of every kind.
fn stop_of_each_kind(target: &Target, mutatee: &Mutatee) -> Result<(), ProcessError> {
    let counted = mutatee.address("counted");
    target.survey(None)?;
    let arena = target.map_arena(&(counted..counted.offset(4096)), 4096)?;
    let patch = hand_patch(counted, arena.start, 0x1000);
    target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
    target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
    assert!(target.quiet(&patch.remove.retired).expect("quiet"));
    target.unmap(&[arena])
}

#[test]
fn waits_for_ever_never_end() {
    within(Duration::from_secs(300), || {
        let mut mutatee = Mutatee::start("proc_waits", &FOR_EVER);
        let target = mutatee.target();
        let said = mutatee.listen();
        until("all wait", || all_asleep(&target, FOR_EVER.len()));
        for _ in 0..200 {
            stop_of_each_kind(&target, &mutatee).expect("stops");
        }
        until("all wait", || all_asleep(&target, FOR_EVER.len()));
        assert_eq!(said.try_recv().ok(), None);
    });
}

/// The target's only thread waits in this call, and has to make the engine's system calls as well.
#[test]
fn a_single_waiting_thread_carries_calls() {
    for name in FOR_EVER {
        within(Duration::from_secs(60), move || {
            let mut mutatee = Mutatee::start("proc_waits", &[name]);
            let target = mutatee.target();
            let said = mutatee.listen();
            until("it waits", || all_asleep(&target, 1));
            for _ in 0..20 {
                stop_of_each_kind(&target, &mutatee).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            until("it waits", || all_asleep(&target, 1));
            assert_eq!(said.try_recv().ok(), None, "{name}");
        });
    }
}

#[test]
fn times_run_out_when_they_should() {
    for name in ["nanosleep", "poll_timeout", "futex_timeout"] {
        within(Duration::from_secs(60), move || {
            let mut mutatee = Mutatee::start("proc_waits", &[name]);
            let target = mutatee.target();
            let said = mutatee.listen();
            until("it waits", || all_asleep(&target, 1));
            let line = loop {
                stop_of_each_kind(&target, &mutatee).unwrap_or_else(|e| panic!("{name}: {e}"));
                if let Ok(line) = said.recv_timeout(Duration::from_millis(50)) {
                    break line;
                }
            };
            let words: Vec<&str> = line.split(' ').collect();
            let time: u64 = words[2].parse().expect("time");
            assert!((2990..3900).contains(&time), "{line}");
            assert!(matches!((words[3], words[4]), ("0", _) | ("-1", "110")), "{line}");
        });
    }
}
