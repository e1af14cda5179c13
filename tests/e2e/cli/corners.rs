//! Tests of targets in difficult states: stopped, filtered, short of memory, with their own gs base, deleted, replaced, loading libraries,
//! or ending.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, exposed, open_directory, program, scaled, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{tool, unprivileged_tool};

/// Starts a target as an unprivileged user if the tests run as root; otherwise as the same user.
fn unprivileged(name: &str, directory: &Path, arguments: &[&str]) -> Mutatee {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(exposed(&program(name).expect("gcc"), directory));
    command.args(arguments);
    if ingraft_testing::is_root() {
        command.uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY);
    }
    Mutatee::spawn(&mut command)
}

fn send(target: &Mutatee, signal: Signal) {
    kill(Pid::from_raw(target.pid()), signal).expect("signal the target");
}

#[test]
fn a_stopped_target_stays_stopped_and_is_measured_when_it_continues() {
    let mut target = Mutatee::start("threads", &["3"]);
    let before = Text::of(target.pid());
    send(&target, Signal::SIGSTOP);
    wait_until("it is stopped", || target::state(target.pid()) == 'T');
    let session = tool().count(target.pid(), &["work_0"]);
    wait_until("it is stopped again", || target::state(target.pid()) == 'T');
    target.tell("solo 100");
    send(&target, Signal::SIGCONT);
    target.reply().assert_right();
    send(&target, Signal::SIGSTOP);
    wait_until("it is stopped", || target::state(target.pid()) == 'T');
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 100);
    wait_until("it is still stopped", || target::state(target.pid()) == 'T');
    target::assert_clean(target.pid(), &before);
    send(&target, Signal::SIGCONT);
    target.ask("go 100").assert_right();
}

#[test]
fn a_process_that_shares_the_memory_is_held_and_counted_like_a_thread() {
    let mut target = Mutatee::start("sharer", &[]);
    let before = Text::of(target.pid());
    for _ in 0..scaled(10, 200) {
        target.ask("spin");
        let session = tool().count(target.pid(), &["work"]);
        target.ask("rest").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.calls("work") > 0, "the child has called: {outcome:#?}");
        target::assert_clean(target.pid(), &before);
        let session = tool().count(target.pid(), &["work"]);
        target.ask("go 100000").assert_right();
        target.ask("spin");
        target.ask("rest");
        let earlier = target.ask("rest").tally("work");
        target.ask("go 100000").assert_right();
        let now = target.ask("spin").tally("work");
        assert!(now >= earlier + 200_000, "both have called");
        // The measurement is removed while the child stays inside the function.
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert!(outcome.calls("work") >= 400_000, "{outcome:#?}");
        target::assert_clean(target.pid(), &before);
        target.ask("rest").assert_right();
    }
    let session = tool().count(target.pid(), &["work"]);
    target.ask("go 100000").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work"), 200_000, "exact although the two have one thread pointer");
    target.ask("quit").assert_right();
}

#[test]
fn a_filtered_target_is_measured_or_refused_but_never_killed() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    target.ask("filter");
    let mut session = tool().start(["count", "-p", &target.pid_text(), "work"]);
    let attached = session.try_wait_for("attached").is_some();
    target.ask("work 50").assert_right();
    if attached {
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("work"), 50);
    } else {
        let _ = session.finish().assert_error(4, &["seccomp"]);
    }
    target.ask("work 50").assert_right();
    target::assert_clean(target.pid(), &before);
    assert!(target.alive());
}

#[test]
fn a_filtered_target_is_refused_without_privilege() {
    let directory = open_directory();
    let mut target = unprivileged("corner", directory.path(), &[]);
    let before = Text::of(target.pid());
    target.ask("filter");
    let _ = unprivileged_tool().run(["count", "-p", &target.pid_text(), "work"]).assert_error(4, &["seccomp"]);
    target.ask("work 50").assert_right();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn no_memory_left_in_the_target() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    target.ask("limit");
    let _ =
        tool().run(["count", "-p", &target.pid_text(), "work"]).assert_error(1, &["memory", "mmap", "address space"]);
    target::assert_clean(target.pid(), &before);
    target.ask("work 50").assert_right();
}

#[test]
fn a_target_that_uses_the_gs_base_itself() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    target.ask("gs");
    let session = tool().count(target.pid(), &["work"]);
    target.ask("work 500").assert_right();
    target.ask("gs?").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work"), 500);
    target.ask("gs?").assert_right();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_target_that_takes_the_gs_base_while_it_is_measured() {
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work"]);
    target.ask("work 500").assert_right();
    target.ask("gs");
    target.ask("work 500").assert_right();
    target.ask("gs?").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work"), 1000);
    target.ask("gs?").assert_right();
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_thread_that_does_not_stop() {
    // The only thread waits for its vfork child and cannot stop before the child ends.
    let mut target = Mutatee::start("corner", &[]);
    let before = Text::of(target.pid());
    target.tell("hang");
    target.wait_line("hanging");
    wait_until("it hangs", || !target::children(target.pid()).is_empty());
    let mut session = tool().start(["count", "-p", &target.pid_text(), "work"]);
    let attached = session.try_wait_for("attached").is_some();
    if attached {
        target.tell("unhang");
        target.reply().assert_right();
        target.ask("work 20").assert_right();
        let outcome = session.interrupt().assert_code(0).assert_removed();
        assert_eq!(outcome.calls("work"), 20);
    } else {
        let outcome = session.finish();
        assert!(matches!(outcome.status.code(), Some(1 | 4)), "{outcome:#?}");
        target.tell("unhang");
        target.reply().assert_right();
    }
    target::assert_clean(target.pid(), &before);
    target.ask("work 20").assert_right();
}

#[test]
fn an_executable_that_was_deleted() {
    let directory = open_directory();
    let copy = exposed(&program("threads").expect("gcc"), directory.path());
    let mut target = Mutatee::spawn(Command::new(&copy).arg("2"));
    std::fs::remove_file(&copy).expect("delete the executable");
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work_0"]);
    target.ask("solo 30").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 30);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn an_executable_that_was_replaced_by_another_build() {
    let directory = open_directory();
    let copy = exposed(&program("threads").expect("gcc"), directory.path());
    let mut target = Mutatee::spawn(Command::new(&copy).arg("2"));
    std::fs::remove_file(&copy).expect("delete the executable");
    std::fs::copy(program("shapes").expect("gcc"), &copy).expect("put another in its place");
    let before = Text::of(target.pid());
    let session = tool().count(target.pid(), &["work_0"]);
    target.ask("solo 30").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("work_0"), 30);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn libraries_that_come_and_go() {
    let library = program("libplugin.so").expect("gcc");
    let library = library.to_str().expect("a path");
    let mut target = Mutatee::start("loads", &[library]);
    target.ask("open");
    let session = tool().count(target.pid(), &["plugin_work", "local_work"]);
    let truth = target.ask("call 50");
    // The library is unloaded while it is measured, and loaded again, maybe at the same address.
    target.ask("close").assert_right();
    target.ask("call 10").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(outcome.calls("plugin_work"), truth.tally("plugin_work"));
    assert_eq!(outcome.calls("local_work"), 60);
    assert_eq!(target::arenas(target.pid()), 0);
    target.ask("open").assert_right();
    target.ask("call 10").assert_right();
}

#[test]
fn text_that_is_mapped_shared_is_refused() {
    let library = program("libplugin.so").expect("gcc");
    let library = library.to_str().expect("a path");
    let mut target = Mutatee::start("loads", &[library]);
    target.ask("shared");
    let before = Text::of(target.pid());
    let _ = tool().run(["count", "-p", &target.pid_text(), "libplugin:plugin_work"]).assert_error(3, &["shared"]);
    target::assert_clean(target.pid(), &before);
    target.ask("sharedcall 10").assert_right();
}

#[test]
fn it_becomes_another_program() {
    for command in ["exec", "threadexec"] {
        let mut target = Mutatee::start("corner", &[]);
        let tool = tool();
        let session = tool.count(target.pid(), &["work"]);
        target.ask("work 30").assert_right();
        let path = program("corner").expect("gcc");
        target.tell(&format!("{command} {}", path.display()));
        target.wait_line("ready");
        let outcome = session.finish().assert_code(0);
        assert_eq!(outcome.calls("work"), 30, "{command}");
        assert_eq!(outcome.all("ended").len(), 1, "{command}: {outcome:#?}");
        target.ask("work 5").assert_right();
        assert_eq!(target::arenas(target.pid()), 0);
        assert!(tool.inserted(target.pid()).is_empty());
    }
}

#[test]
fn it_ends_or_crashes_while_it_is_measured() {
    for command in ["exit 3", "crash"] {
        let mut target = Mutatee::start("corner", &[]);
        let session = tool().count(target.pid(), &["work"]);
        target.ask("work 30").assert_right();
        target.tell(command);
        let outcome = session.finish().assert_code(0);
        assert_eq!(outcome.calls("work"), 30, "{command}");
        assert_eq!(outcome.all("ended").len(), 1, "{command}: {outcome:#?}");
    }
}

#[test]
fn it_ends_at_any_moment() {
    let tool = tool();
    let mut random = 0x2545_f491_4f6c_dd1d_u64 ^ u64::from(std::process::id());
    for round in 0..scaled(20, 300) {
        let target = Mutatee::start("threads", &["4"]);
        let session = tool.start(["count", "-p", &target.pid_text(), "threads:*", "libc:*", "--for", "20ms"]);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 80_000));
        drop(target);
        let outcome = session.finish();
        assert!(matches!(outcome.status.code(), Some(0 | 3 | 5)), "round {round}: {outcome:#?}");
        assert!(!outcome.stderr.contains("panicked"), "round {round}: {outcome:#?}");
    }
}

#[test]
fn insert_and_remove_storm_keeps_memory_bounded() {
    let mut target = Mutatee::start("threads", &["4"]);
    let before = Text::of(target.pid());
    target.ask("spin");
    let tool = tool();
    let mut first = None;
    for round in 0..scaled(15, 1000) {
        let outcome =
            tool.run(["count", "-p", &target.pid_text(), "threads:*", "--for", "1ms"]).assert_code(0).assert_removed();
        assert!(outcome.all("count").len() > 10);
        if round == 2 {
            first = Some(target::Size::of(target.pid()));
        }
    }
    let (first, last) = (first.expect("three rounds"), target::Size::of(target.pid()));
    assert!(
        last.maps <= first.maps && last.files <= first.files && last.resident <= first.resident + 512,
        "{first:?} grew to {last:?}"
    );
    target::assert_clean(target.pid(), &before);
    target.ask("rest").assert_right();
}
