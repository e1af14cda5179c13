//! Tests with servers that were not written for these tests, under load. All their functions are counted, then forty are timed, then the
//! engine is killed, in several rounds. Every request gets the usual answer, and the code is restored to the byte each time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ingraft_testing::field::Field;
use ingraft_testing::target::{self, Text};
use ingraft_testing::{Outcome, Session, Until, full, scaled, skip, wait_until};

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
            let outcome = ends(tool.count(pid, &["*"]));
            let called = called(&outcome);
            eprintln!("round {round}: {} functions called", called.len());
            assert!(called.len() > TIMED, "a server calls more than {}", called.len());
            let timed = some(&called, TIMED);
            let timed: Vec<&str> = timed.iter().map(String::as_str).collect();
            if can_be_timed {
                ends(tool.measure("latency", pid, &timed));
            }
            let mut session = tool.start(["count", "-p", &pid.to_string(), "*"]);
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

/// Functions that are traced, or whose blocks are counted, at once.
const FOLLOWED: usize = 10;

/// A kind of measurement: its name, and the command by the name of the server's program, the functions that it calls, and a file for a trace.
type Kind = (&'static str, fn(&str, &[String], &str) -> Vec<String>);

const KINDS: &[Kind] = &[
    ("counts", |_, _, _| words(&["count"])),
    ("times", |_, called, _| [words(&["latency"]), some(called, TIMED)].concat()),
    ("edges", |program, _, _| words(&["profile", "edges", &format!("{program}:*")])),
    ("edges of libc", |_, _, _| words(&["profile", "edges", "libc.so.6:*"])),
    ("coverage", |program, _, _| words(&["profile", "coverage", &format!("{program}:*")])),
    ("trace", |_, called, file| [words(&["trace", "-o", file]), some(called, FOLLOWED)].concat()),
    ("blocks", |_, called, _| {
        let blocks = some(called, FOLLOWED).into_iter().map(|function| format!("{function}#*"));
        [words(&["count"]), blocks.collect()].concat()
    }),
];

fn words(text: &[&str]) -> Vec<String> {
    text.iter().copied().map(str::to_owned).collect()
}

/// Takes at most `count` of the functions, from all parts of the list.
fn some(called: &[String], count: usize) -> Vec<String> {
    called.iter().step_by((called.len() / count).max(1)).take(count).cloned().collect()
}

/// Names of the functions that a count has seen, by module and offset.
fn called(outcome: &Outcome) -> Vec<String> {
    let counts = outcome.all("count").into_iter().filter(|count| count["calls"].as_u64().is_some_and(|n| n > 0));
    let name = |count: &serde_json::Value| {
        format!("{}+{}", count["module"].as_str().unwrap_or("?"), count["offset"].as_str().unwrap_or("?"))
    };
    counts.map(name).collect()
}

/// Measures a server by every kind of measurement, and kills the engine in each. Panics unless the server gives right answers all
/// the time and has its original code after each round. Prints what was done.
fn survives(name: &str) {
    if !full() {
        skip!("twenty servers are measured in the long form only");
    }
    let server = match Field::named(name) {
        Ok(server) => server,
        Err(why) => skip!("{why}"),
    };
    let (tool, pid) = (tool(), server.pid());
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).expect("the program of the server");
    let program = program.file_name().expect("a name").to_string_lossy().into_owned();
    let directory = ingraft_testing::open_directory();
    let file = directory.path().join("trace").display().to_string();
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
        let counted = tool.count(pid, &["*"]);
        serves(8);
        let called = called(&counted.interrupt().assert_code(0).assert_removed());
        let start = |kind: &Kind| -> Session {
            let command = (kind.1)(&program, &called, &file);
            let at = command
                .iter()
                .position(|word| word.starts_with('-') || word.contains([':', '+']))
                .unwrap_or(command.len());
            let target = words(&["-p", &pid.to_string(), "--max-overhead", "10000"]);
            tool.start([&command[..at], &target, &command[at..]].concat())
        };
        let (rounds, kills) = (long("INGRAFT_ROUNDS", 10), long("INGRAFT_KILLS", 20));
        let mut held = 0.0f64;
        let chosen = std::env::var("INGRAFT_KINDS").unwrap_or_default();
        let is_chosen = |kind: &Kind| chosen.is_empty() || chosen.split(',').any(|name| name == kind.0);
        for kind in KINDS.iter().filter(|kind| is_chosen(kind)) {
            let (mut measured, mut why) = (0, String::new());
            for _ in 0..rounds {
                let mut session = start(kind);
                if session.try_wait_for("attached").is_none() {
                    let outcome = session.finish();
                    assert!(is_refusal(&outcome), "{outcome:#?}");
                    why.clone_from(&outcome.stderr);
                    before.assert_in(pid);
                    break;
                }
                serves(8);
                let outcome = session.interrupt().assert_code(0).assert_removed();
                before.assert_in(pid);
                let records = ["attached", "changed", "removed"].iter().flat_map(|kind| outcome.all(kind));
                held = records.filter_map(|record| record["stopped_ms"].as_f64()).fold(held, f64::max);
                measured += 1;
            }
            eprintln!("{name}: {}: {measured} rounds {why}", kind.0);
        }
        for kill in 0..kills {
            let kind = &KINDS[kill as usize % KINDS.len()];
            let mut session = start(kind);
            if kill % 2 == 0 {
                let _ = session.try_wait_for("attached");
                serves(4);
            } else {
                // The engine is killed at some moment between its start and the completion of the insertion.
                std::thread::sleep(Duration::from_millis(61 * kill));
            }
            session.kill();
            serves(4);
            let outcome = tool.detach(pid);
            assert!(outcome.all("removed").iter().all(|removed| removed["text_restored"] != false), "{outcome:#?}");
            before.assert_in(pid);
            serves(4);
        }
        let answers = answered.load(Ordering::Relaxed);
        eprintln!(
            "{name}: {kills} kills, {answers} right answers, no other; held for {held:.1} ms at most; text restored"
        );
    });
}

/// Whether a measurement was refused before it began: all its functions, or the target as a whole, which has no room for the code.
fn is_refusal(outcome: &Outcome) -> bool {
    let code = outcome.status.code();
    let has_no_room = || outcome.all("error").iter().any(|error| error["reason"] == "no_room");
    code == Some(3) || code == Some(1) && has_no_room()
}

/// Number of repetitions, which the environment can change.
fn long(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

macro_rules! survive {
    ($($name:ident)*) => {
        mod twenty {
            $(
                #[test]
                fn $name() {
                    super::survives(stringify!($name));
                }
            )*
        }
    };
}

survive! {
    apache2 dovecot erlang etcd haproxy java lighttpd mariadb memcached mosquitto named node php rabbitmq ruby slapd squid stunnel
    unbound varnish
}
