//! The threads that are held while one of them makes system calls for the engine.

mod common;

use common::{Mutatee, until};
use ingraft_model::Tid;
use ingraft_process::Target;

/// The threads in this state, given by its letter in /proc.
fn threads_in(target: &Target, state: char) -> Vec<Tid> {
    let mut tids = target.threads().expect("threads");
    tids.retain(|tid| target.thread_status(*tid).is_ok_and(|status| status.state == state));
    tids
}

/// Starts this many threads, and returns how many of the process are held while one of them is borrowed, and how many there are.
fn held(threads: usize, kind: &str) -> (usize, usize) {
    let mutatee = Mutatee::start("proc_threads", &[&threads.to_string(), kind]);
    let target = mutatee.target();
    let asleep = if kind == "half" { threads / 2 } else { threads };
    until("threads sleep", || threads_in(&target, 'S').len() > asleep);
    let held = target.remote(|remote| Ok(threads_in(remote.target(), 't').len())).expect("borrowed");
    (held, target.threads().expect("threads").len())
}

#[test]
fn all_threads_are_held_if_more_run_than_there_are_processors() {
    let processors = std::thread::available_parallelism().expect("processors").get();
    let (held, all) = held(4 * (processors + 1), "half");
    assert_eq!(held, all);
}

#[test]
fn sleeping_threads_of_a_quiet_target_are_not_disturbed() {
    let (held, _) = held(8, "idle");
    assert_eq!(held, 1);
}
