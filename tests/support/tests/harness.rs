//! Tests of the harness itself: target programs report the truth about themselves, servers start without privilege, and `kill_at` kills.

use std::process::Command;

use ingraft_testing::server::{Nginx, Postgres, Redis};
use ingraft_testing::step::{Fate, kill_at};
use ingraft_testing::target::{self, Size, Text};
use ingraft_testing::{Mutatee, program, skip};

#[test]
fn target_programs_are_right_without_us() {
    for name in [
        "threads",
        "threads-stripped",
        "threads-static",
        "threads-static-pie",
        "threads-no-pie",
        "threads-musl",
        "threads-musl-static",
        "threads-musl-plain",
        "threads-cet",
    ] {
        if let Err(why) = program(name) {
            eprintln!("skipped: {name}: {why}");
            continue;
        }
        let mut target = Mutatee::start(name, &["4"]);
        target.ask("spin");
        target.ask("rest");
        let told = target.ask("go 800");
        told.assert_right();
        assert_eq!(told.threads().values().sum::<u64>(), told.tally("work_0"), "{name}");
        assert!(target.end().success(), "{name}");
    }
    let library = program("libplugin.so").expect("gcc");
    for (name, arguments, commands) in [
        ("spin", &["2"][..], &["beat", "leave"][..]),
        ("family", &[], &["fork 3 3", "vfork 3", "spawn 3", "keep", "poke 3", "drop"]),
        ("shapes", &[], &["run 10"]),
        ("throws", &[], &["throw 10", "jump 10", "cancel 3", "trace"]),
        ("blocked", &[], &["check", "stay", "tick 5", "release"]),
        ("signals", &["2"], &["go 1000"]),
        ("loads", &[library.to_str().expect("a path")], &["open", "call 3", "close", "shared", "sharedcall 3"]),
        ("corner", &[], &["work 3", "argument 1 2", "gs", "gs?", "zombie", "limit", "filter", "work 3"]),
        ("twin", &[], &["work 3", "panic 3"]),
        ("gopher", &[], &["go 1000"]),
        ("parked", &[], &["go 1"]),
        ("bench", &[], &["measure 1000 1 2"]),
    ] {
        if let Err(why) = program(name) {
            eprintln!("skipped: {name}: {why}");
            continue;
        }
        let mut target = Mutatee::start(name, arguments);
        for command in commands {
            let told = target.ask(command);
            told.assert_right();
            assert!(
                !told.lines.iter().any(|line| line.starts_with("unknown") || line.starts_with("early")),
                "{name}: {told:?}"
            );
        }
    }
}

#[test]
fn code_of_an_untouched_process_is_equal_to_itself() {
    let target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    target::assert_clean(target.pid(), &before);
    assert!(Size::of(target.pid()).maps > 10);
    assert_eq!(target::threads(target.pid()).len(), 3);
}

#[test]
fn redis_starts_and_counts() {
    let redis = match Redis::start() {
        Ok(redis) => redis,
        Err(why) => skip!("{why}"),
    };
    let first = redis.command_calls();
    assert_eq!(redis.command_calls() - first, 1, "each answer lacks the asking itself");
    redis.load(&["-n", "100", "-q", "-t", "set"]);
    assert!(redis.command_calls() > first + 100);
    assert!(Text::of(redis.pid()) == Text::of(redis.pid()));
}

#[test]
fn nginx_starts_and_serves() {
    let nginx = match Nginx::start() {
        Ok(nginx) => nginx,
        Err(why) => skip!("{why}"),
    };
    nginx.request(50);
    assert_eq!(nginx.workers().len(), 2);
}

#[test]
fn postgres_starts_and_answers() {
    let postgres = match Postgres::start() {
        Ok(postgres) => postgres,
        Err(why) => skip!("{why}"),
    };
    let mut session = postgres.session();
    assert_eq!(session.ask("select 6 * 7;"), "42");
    assert_eq!(postgres.backends(), [session.pid]);
}

#[test]
fn the_killer_kills_where_it_should() {
    const WRITE: &[u64] = &[1];
    let directory = ingraft_testing::open_directory();
    let marker = directory.path().join("marker");
    let script = format!("echo a; echo b; : > {}; echo c", marker.display());
    let command = || {
        let mut command = Command::new("dash");
        command.arg("-c").arg(&script);
        command
    };
    assert_eq!(kill_at(&mut command(), WRITE, 1, |_, _| {}), Fate::Killed);
    assert!(!marker.exists());
    assert_eq!(kill_at(&mut command(), WRITE, 2, |_, _| {}), Fate::Killed);
    assert!(marker.exists());
    assert_eq!(kill_at(&mut command(), WRITE, 99, |_, _| {}), Fate::Ended(3));
}
