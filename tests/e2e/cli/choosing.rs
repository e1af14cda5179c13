//! Tests of several targets, named by one name, by a control group, or one by one. Later processes are measured too, and one that is gone
//! does not prevent the measurement of the others.

use std::path::{Path, PathBuf};
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, Outcome, program, skip};

use crate::tool;

/// A program with a name that no other test uses.
pub struct Own {
    directory: tempfile::TempDir,
    name: String,
}

impl Own {
    fn new(name: &str) -> Own {
        Own::of("family", name)
    }

    /// Copies a mutatee, and names the copy after the test.
    pub fn of(mutatee: &str, name: &str) -> Own {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let name = format!("{name}-{}", std::process::id());
        std::fs::copy(program(mutatee).expect("gcc"), directory.path().join(&name)).expect("copy a program");
        Own { directory, name }
    }

    /// Name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// Starts the program.
    pub fn start(&self) -> Mutatee {
        Mutatee::spawn(&mut Command::new(self.path()))
    }
}

/// Returns the calls of a function in one of several processes.
fn calls_in(outcome: &Outcome, target: &Mutatee, function: &str) -> u64 {
    let counts = outcome.all("count");
    let its = counts.iter().find(|c| c["pid"] == target.pid() && c["function"] == function);
    its.and_then(|count| count["calls"].as_u64()).unwrap_or_else(|| panic!("no count of {function}: {outcome:#?}"))
}

#[test]
fn every_process_of_a_name_is_measured() {
    let own = Own::new("every");
    let mut targets = [own.start(), own.start(), own.start()];
    let before = targets.each_ref().map(|target| Text::of(target.pid()));
    let mut session = tool().start(["count", "-n", &own.name, "--all", "parent_work"]);
    for target in &targets {
        let attached = session.wait_for("attached");
        assert_eq!(attached["pid"], target.pid(), "in order of their ids");
        assert_eq!(attached["parent"], std::process::id());
        assert_eq!(attached["title"].as_str(), own.path().to_str());
    }
    for (target, calls) in targets.iter_mut().zip(3..) {
        target.ask(&format!("fork {calls} 1")).assert_right();
    }
    let outcome = session.interrupt().assert_code(0);
    for (target, calls) in targets.iter().zip(3..) {
        assert_eq!(calls_in(&outcome, target, "parent_work"), calls);
    }
    assert_eq!(outcome.one("combined")["value"], 3 + 4 + 5);
    for (target, before) in targets.iter().zip(&before) {
        target::assert_clean(target.pid(), before);
    }
}

#[test]
fn one_process_must_be_meant_unless_all_are() {
    let own = Own::new("one");
    let _targets = [own.start(), own.start()];
    let outcome = tool().run(["count", "-n", &own.name, "parent_work", "--for", "10ms"]).assert_code(3);
    assert!(outcome.stderr.contains("--all") && outcome.stderr.contains("repeating -p"), "{}", outcome.stderr);
    let _ = tool().run(["count", "-n", "no-such-program", "--all", "f"]).assert_error(3, &["no-such-program"]);
    let _ = tool().run(["count", "--all", "f"]).assert_error(2, &["--name"]);
}

#[test]
fn later_processes_of_a_name_are_measured_too() {
    let own = Own::new("later");
    let mut first = own.start();
    let mut session = tool().start(["count", "-n", &own.name, "--all", "--follow", "fork", "parent_work"]);
    session.wait_for("attached");
    let mut second = own.start();
    let attached = session.wait_for("attached");
    assert_eq!(attached["pid"], second.pid());
    first.ask("fork 5 1").assert_right();
    second.ask("fork 7 1").assert_right();
    let outcome = session.interrupt().assert_code(0);
    // The parent calls the function once for each child, and each child calls it once.
    assert_eq!(calls_in(&outcome, &first, "parent_work"), 5 + 5, "children that are born meanwhile count with it");
    assert_eq!(calls_in(&outcome, &second, "parent_work"), 7 + 7);
    let since = |target: &Mutatee| {
        let counts = outcome.all("count");
        let its = counts.iter().find(|c| c["pid"] == target.pid() && c["function"] == "parent_work");
        its.expect("a count")["exact_since_ns"].as_u64()
    };
    assert_eq!((since(&first), since(&second).is_some()), (None, true), "what came later says since when");
}

#[test]
fn one_that_is_gone_does_not_end_the_command() {
    let mut target = Mutatee::start("family", &[]);
    let mut gone = Command::new("true").spawn().expect("coreutils");
    let dead = gone.id().to_string();
    gone.wait().expect("its end");
    let pid = target.pid_text();
    let mut session = tool().start(["count", "-p", &dead, "-p", &pid, "parent_work"]);
    session.wait_for("attached");
    target.ask("fork 4 1").assert_right();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("parent_work"), 4);
    assert!(outcome.stderr.contains(&dead), "{}", outcome.stderr);
    let _ = tool().run(["count", "-p", &dead, "parent_work"]).assert_error(3, &[&dead]);
}

/// Number of processes of which most are not measured yet when the first one is.
const MANY: usize = 12;

#[test]
fn a_signal_during_the_insertion_keeps_the_values_of_those_that_are_in() {
    let mut targets: Vec<Mutatee> = (0..MANY).map(|_| Mutatee::start("family", &[])).collect();
    let before: Vec<Text> = targets.iter().map(|target| Text::of(target.pid())).collect();
    let pids: Vec<String> = targets.iter().map(Mutatee::pid_text).collect();
    let mut arguments = vec!["count"];
    pids.iter().for_each(|pid| arguments.extend(["-p", pid]));
    // Everything takes long enough for the signal.
    arguments.push("*");
    let mut session = tool().start(&arguments);
    session.wait_for("attached");
    targets[0].ask("fork 4 1").assert_right();
    let outcome = session.interrupt().assert_code(0);
    assert_eq!(calls_in(&outcome, &targets[0], "parent_work"), 4);
    let measured = outcome.all("attached").len();
    assert_eq!(outcome.all("removed").len(), measured, "{outcome:?}");
    let told = outcome.stderr.contains("was interrupted before the measurement of all had begun");
    assert_eq!(told, measured < MANY, "{measured} are measured: {}", outcome.stderr);
    for (target, before) in targets.iter_mut().zip(&before) {
        target::assert_clean(target.pid(), before);
        target.ask("fork 2 1").assert_right();
    }
}

#[test]
fn a_list_of_processes_has_parents_and_titles() {
    let own = Own::new("titles");
    let target = own.start();
    let outcome = tool().run(["ps", &own.name]).assert_code(0);
    let process = outcome.one("process");
    assert_eq!((&process["pid"], &process["parent"]), (&target.pid().into(), &std::process::id().into()));
    assert_eq!(process["title"].as_str(), own.path().to_str());
}

/// A control group of version 2, which is removed at the end of its test.
struct Group(PathBuf);

impl Group {
    fn new(above: &Path, name: &str) -> std::io::Result<Group> {
        let folder = above.join(name);
        std::fs::create_dir(&folder).map(|()| Group(folder))
    }

    fn take(&self, target: &Mutatee) {
        std::fs::write(self.0.join("cgroup.procs"), target.pid_text()).expect("move a process");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(std::fs::remove_dir(&self.0));
    }
}

/// Returns the directory where control groups of version 2 are mounted; `None` if they are not mounted.
fn mount() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").ok()?;
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"))?;
    line.split(' ').nth(1).map(PathBuf::from)
}

#[test]
fn every_process_of_a_control_group_is_measured() {
    let Some(mount) = mount() else { skip!("no control groups of version 2 are mounted") };
    let name = format!("ingraft-test-{}", std::process::id());
    let Ok(group) = Group::new(&mount, &name) else { skip!("no control group can be made (not root)") };
    let below = Group::new(&group.0, "below").expect("a group below it");
    let mut targets = [Mutatee::start("family", &[]), Mutatee::start("family", &[])];
    group.take(&targets[0]);
    below.take(&targets[1]);
    for path in [name.as_str(), group.0.to_str().expect("a path")] {
        let mut session = tool().start(["count", "--cgroup", path, "parent_work"]);
        let mut attached = [0, 1].map(|_| session.wait_for("attached")["pid"].as_i64());
        attached.sort_unstable();
        let mut pids = targets.each_ref().map(|target| Some(i64::from(target.pid())));
        pids.sort_unstable();
        assert_eq!(attached, pids);
        targets.iter_mut().for_each(|target| target.ask("fork 2 1").assert_right());
        let outcome = session.interrupt().assert_code(0);
        assert!(targets.iter().all(|target| calls_in(&outcome, target, "parent_work") == 2), "{outcome:#?}");
    }
    for target in targets {
        target.end();
    }
    let _ = tool().run(["count", "--cgroup", &name, "f"]).assert_error(3, &[&name]);
    let _ = tool().run(["count", "--cgroup", "no/such/group", "f"]).assert_error(3, &["no/such/group"]);
    drop(below);
}
