//! Tests with servers that were not written for these tests, under load. All their functions are counted, then forty are timed, then the
//! engine is killed, in several rounds. Every request gets the usual answer, and the code is restored to the byte each time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ingraft_testing::field::Field;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Outcome, Session, Until, scaled, skip, wait_until};

use crate::tool;

/// Functions that are timed at once.
const TIMED: usize = 40;
/// Clients that make requests all the time.
const CLIENTS: usize = 2;

/// Panics unless the server survives all rounds and has its original code.
fn lives(server: Result<Field, String>, can_be_timed: bool) {
    let server = match server {
        Ok(server) => server,
        Err(why) => skip!("{why}"),
    };
    let (tool, pid) = (tool(), server.pid());
    let (answered, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    server.request(20);
    std::thread::scope(|scope| {
        let _until = Until(&stop);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    server.request(2);
                    answered.fetch_add(2, Ordering::Relaxed);
                }
            });
        }
        let serves = |more: u64| {
            let earlier = answered.load(Ordering::Relaxed);
            wait_until("requests are answered", || answered.load(Ordering::Relaxed) >= earlier + more);
        };
        serves(4);
        let before = Text::of(pid);
        let ends = |session: Session| -> Outcome {
            serves(8);
            assert_eq!(target::tracer(pid), 0, "untraced while it measures");
            let outcome = session.interrupt().assert_code(0).assert_removed();
            before.assert_in(pid);
            outcome
        };
        for round in 0..scaled(2, 20) {
            let outcome = ends(tool.count(pid, &[]));
            let called =
                outcome.all("count").into_iter().filter(|count| count["calls"].as_u64().is_some_and(|n| n > 0));
            let called: Vec<String> = called
                .map(|count| {
                    format!("{}+{}", count["module"].as_str().unwrap_or("?"), count["offset"].as_str().unwrap_or("?"))
                })
                .collect();
            eprintln!("round {round}: {} functions called", called.len());
            assert!(called.len() > TIMED, "a server calls more than {}", called.len());
            let some: Vec<&str> = called.iter().step_by(called.len() / TIMED).take(TIMED).map(String::as_str).collect();
            if can_be_timed {
                ends(tool.measure("latency", pid, &some));
            }
            let mut session = tool.start(["count", "-p", &pid.to_string()]);
            if round % 2 == 0 {
                session.wait_for("attached");
                serves(4);
            } else {
                // The engine is killed at some moment between its start and the completion of the insertion.
                std::thread::sleep(Duration::from_millis(97 * round));
            }
            session.kill();
            serves(4);
            let outcome = tool.detach(pid);
            assert!(outcome.all("removed").iter().all(|removed| removed["text_restored"] != false), "{outcome:#?}");
            before.assert_in(pid);
            assert_eq!(target::signed_arenas(pid), 0, "no arena stays");
            serves(4);
        }
    });
}

#[test]
fn node() {
    lives(Field::node(&[]), true);
}

#[test]
fn node_with_its_text_in_huge_pages() {
    lives(Field::node(&["--use-largepages=on"]), true);
}

#[test]
fn go_net_http() {
    // Functions of Go have no exit points.
    lives(Field::go(), false);
}

#[test]
fn java() {
    lives(Field::java(), true);
}

#[test]
fn haproxy() {
    lives(Field::haproxy(), true);
}

#[test]
fn mariadb() {
    lives(Field::mariadb(), true);
}
