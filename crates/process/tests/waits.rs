//! The engine's stops have no effect on system calls in which the target waits.

mod common;

use std::time::Duration;

use common::{HandPatch, Mutatee, hand_patch, hand_patch_of, until, within};
use ingraft_model::{Avma, PcMove};
use ingraft_process::{ApplyOptions, DataAreaRequest, ProcessError, Target};

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

/// A springboard covers the system call in which the thread sleeps, which would be repeated in the middle of the springboard.
#[test]
fn a_thread_asleep_under_a_springboard_waits_on_in_the_copy() {
    within(Duration::from_secs(60), || {
        let mut mutatee = Mutatee::start("proc_pauses", &[]);
        let target = mutatee.target();
        let said = mutatee.listen();
        let counted = mutatee.address("counted");
        let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
        let displaced = [0xb8, 34, 0, 0, 0, 0x90, 0x0f, 0x05];
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        let HandPatch { mut insert, mut remove, code } =
            hand_patch_of(counted, displaced, arena.start, area.layout().counter(0));
        let (text, copy) = (counted.offset(4), code.end.offset(-13));
        let pairs: Vec<(Avma, Avma)> = [5, 6].map(|n| (text.offset(n), copy.offset(n))).to_vec();
        insert.moves = pairs.iter().map(|&(from, to)| PcMove { from, to }).collect();
        let back = pairs.iter().copied().chain([(text.offset(8), copy.offset(8))]);
        let start = [arena.start, copy].map(|from| PcMove { from, to: text });
        remove.moves = start.into_iter().chain(back.map(|(to, from)| PcMove { from, to })).collect();
        let at_once = ApplyOptions { patience: Duration::ZERO, ..ApplyOptions::default() };
        for _ in 0..20 {
            for plan in [&insert, &remove] {
                until("it waits", || all_asleep(&target, 1));
                let applied = target.apply(plan, &at_once).expect("applied at once");
                assert_eq!((applied.attempts, applied.moved), (1, 1));
                mutatee.signal(libc::SIGUSR1);
                assert_eq!(said.recv().expect("output"), "returned -4");
            }
        }
        assert_eq!(said.try_recv().ok(), None);
    });
}
