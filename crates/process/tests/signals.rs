//! Each signal arrives exactly once. A stopped target stays stopped, and can still be changed.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Mutatee, hand_patch, until, within};
use ingraft_model::{Avma, Pid};
use ingraft_process::{ApplyOptions, DataAreaRequest, Target};

/// Calls sigqueue(3). Returns false if the queue is full.
fn queue(pid: i32, value: usize) -> bool {
    let signal = libc::SIGRTMIN() + 4;
    let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
    // SAFETY: the call takes plain values.
    unsafe { libc::sigqueue(pid, signal, value) == 0 }
}

#[test]
fn queued_signals_arrive_exactly_once() {
    within(Duration::from_secs(120), || {
        let mutatee = Mutatee::start("proc_signals", &["4"]);
        let target = mutatee.target();
        let counted = mutatee.address("counted");
        let pid = target.pid().0;
        let stop = Arc::new(AtomicBool::new(false));
        let sender = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || {
                let mut sent = 0;
                while !stop.load(Ordering::Relaxed) && sent < 300_000 {
                    if queue(pid, sent) {
                        sent += 1;
                    } else {
                        std::thread::yield_now();
                    }
                    if sent % 64 == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                }
                sent
            }
        });
        let area = target.create_area(&DataAreaRequest::default()).expect("area");
        for _ in 0..300 {
            target.survey(None).expect("survey");
            let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
            let patch = hand_patch(counted, arena.start, area.layout().counter(0));
            target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
            target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
            until("quiet", || target.quiet(&patch.remove.retired).expect("quiet"));
            target.unmap(&[arena]).expect("unmap");
        }
        stop.store(true, Ordering::Relaxed);
        let sent = sender.join().expect("sender");
        let received = mutatee.address("received");
        until("all arrived", || {
            let mut count = [0; 4];
            target.read(received, &mut count).expect("read");
            u32::from_le_bytes(count) as usize == sent
        });
        let said = mutatee.finish();
        assert_eq!(said.trim(), format!("done received {sent} lost 0 twice 0"));
        println!("{said}");
    });
}

fn states(target: &Target) -> Vec<char> {
    let tids = target.threads().expect("threads");
    let state = |t| {
        let text = std::fs::read_to_string(format!("/proc/{}/task/{t}/stat", target.pid())).expect("stat");
        text[text.rfind(')').expect("name") + 2..].chars().next().expect("state")
    };
    tids.into_iter().map(state).collect()
}

fn all(target: &Target, state: char) -> bool {
    states(target).into_iter().all(|s| s == state)
}

/// Status of a stopped or continued child from waitpid(2), without waiting.
fn parent_sees(pid: i32) -> Option<i32> {
    let mut status = 0;
    let options = libc::WUNTRACED | libc::WCONTINUED | libc::WNOHANG;
    // SAFETY: the kernel writes one int.
    let r = unsafe { libc::waitpid(pid, &raw mut status, options) };
    (r == pid).then_some(status)
}

#[test]
fn a_stopped_target_stays_stopped() {
    within(Duration::from_secs(120), || {
        for args in [&["4"][..], &["3", "idle"]] {
            let mutatee = Mutatee::start("proc_worker", args);
            let target = mutatee.target();
            let counted = mutatee.address("counted");
            mutatee.signal(libc::SIGSTOP);
            until("it is stopped", || all(&target, 'T'));
            assert_eq!(parent_sees(target.pid().0), Some(libc::SIGSTOP << 8 | 0x7f));
            let area = target.create_area(&DataAreaRequest::default()).expect("area");
            let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
            let patch = hand_patch(counted, arena.start, area.layout().counter(0));
            for _ in 0..100 {
                target.survey(None).expect("survey");
                target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
                target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
            }
            target.apply(&patch.insert, &ApplyOptions::default()).expect("insert");
            until("it is stopped", || all(&target, 'T'));
            assert_eq!(area.counter(0, 0).expect("counter"), 0);
            assert_eq!(parent_sees(target.pid().0), None, "the parent saw something");
            mutatee.signal(libc::SIGCONT);
            until("calls are counted", || area.counter(0, 0).expect("counter") > 0);
            assert_eq!(parent_sees(target.pid().0), Some(0xffff));
            target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
            mutatee.finish();
        }
    });
}

/// The parent of a mutatee, in a process of its own. It stops and continues its child, and must be notified each time.
#[test]
#[ignore = "run by the test below"]
fn parent() {
    let mutatee = Mutatee::start("proc_worker", &["3"]);
    println!("parent of {}", mutatee.ready);
    let pid = mutatee.pid().0;
    for _ in 0..100 {
        mutatee.signal(libc::SIGSTOP);
        until("it was told to stop", || parent_sees(pid) == Some(libc::SIGSTOP << 8 | 0x7f));
        mutatee.signal(libc::SIGCONT);
        until("it was told to go on", || parent_sees(pid) == Some(0xffff));
    }
    mutatee.signal(libc::SIGSTOP);
    until("it was told to stop", || parent_sees(pid) == Some(libc::SIGSTOP << 8 | 0x7f));
    println!("stopped");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("go on");
    assert_eq!(parent_sees(pid), None);
    mutatee.signal(libc::SIGCONT);
    until("it was told to go on", || parent_sees(pid) == Some(0xffff));
    println!("said {}", mutatee.finish());
}

#[test]
fn stops_and_continues_in_between_are_obeyed() {
    within(Duration::from_secs(120), || {
        let mut parent = Command::new(std::env::current_exe().expect("own program"))
            .args(["--exact", "parent", "--ignored", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("parent");
        let mut lines = BufReader::new(parent.stdout.take().expect("stdout")).lines().map_while(Result::ok);
        let ready = lines.find(|l| l.contains("parent of")).expect("ready");
        let words: Vec<&str> = ready.split_ascii_whitespace().collect();
        let after = |word| words[words.iter().position(|w| *w == word).expect("word") + 1];
        let target = Target::open(Pid(after("ready").parse().expect("pid"))).expect("open");
        let counted = Avma(u64::from_str_radix(&after("counted")[2..], 16).expect("address"));

        let stopped = Arc::new(AtomicBool::new(false));
        let reader = std::thread::spawn({
            let stopped = Arc::clone(&stopped);
            move || {
                let at_end = lines.find(|l| l == "stopped");
                stopped.store(true, Ordering::Relaxed);
                (at_end, lines)
            }
        });
        let mut rounds = 0;
        while !stopped.load(Ordering::Relaxed) {
            let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).expect("arena");
            let patch = hand_patch(counted, arena.start, 0x1000);
            let mut plan = patch.insert.clone();
            plan.code[0].bytes[..9].copy_from_slice(&[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0]); // This code counts nothing.
            target.apply(&plan, &ApplyOptions::default()).expect("insert");
            target.apply(&patch.remove, &ApplyOptions::default()).expect("remove");
            // A thread that was stopped in the arena leaves it when the target continues.
            while !target.quiet(&patch.remove.retired).expect("quiet") {}
            target.unmap(&[arena]).expect("unmap");
            rounds += 1;
        }
        let (at_end, mut lines) = reader.join().expect("reader");
        assert!(at_end.is_some(), "the parent failed");
        // Each thread that the last operation released stops again as soon as it runs.
        while !all(&target, 'T') {}
        println!("{rounds} rounds");
        drop(parent.stdin.take());
        assert!(lines.any(|l| l.starts_with("said done")));
        assert!(parent.wait().expect("wait").success());
    });
}
