//! Tests of targets close to a limit on their memory. An insertion that does not fit is refused with the sizes, and the target lives.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Mutatee, have, is_root, output, program, skip};

use crate::tool;

const MIB: u64 = 1 << 20;

/// A control group with a limit on memory, removed when dropped.
struct Group {
    path: PathBuf,
    names: Names,
}

/// Names of the files in a control group, which differ between the two versions.
struct Names {
    limit: &'static str,
    usage: &'static str,
    none: &'static str,
}

const V1: Names = Names { limit: "memory.limit_in_bytes", usage: "memory.usage_in_bytes", none: "-1" };
const V2: Names = Names { limit: "memory.max", usage: "memory.current", none: "max" };

impl Group {
    /// Makes a new group; the error says why this machine cannot have one.
    fn new(name: &str) -> Result<Group, String> {
        if !is_root() {
            return Err("only root makes control groups".to_owned());
        }
        let mounts = fs::read_to_string("/proc/mounts").map_err(|e| format!("/proc/mounts: {e}"))?;
        let of_type = |kind: &str, option: &str| {
            let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
            let has =
                |f: &[&str]| f.get(2) == Some(&kind) && f.get(3).is_some_and(|o| o.split(',').any(|o| o == option));
            fields.filter(|f| has(f)).find_map(|f| Some(PathBuf::from(f.get(1)?)))
        };
        let (root, names) = match (of_type("cgroup", "memory"), of_type("cgroup2", "rw")) {
            (Some(root), _) => (root, V1),
            (None, Some(root)) => (root, V2),
            (None, None) => return Err("no file system of control groups is mounted".to_owned()),
        };
        let path = root.join(format!("ingraft-test-{name}-{}", std::process::id()));
        fs::create_dir(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        let group = Group { path, names };
        match group.path.join(group.names.limit).exists() {
            true => Ok(group),
            false => Err("control groups here do not limit memory".to_owned()),
        }
    }

    fn number(&self, file: &str) -> u64 {
        fs::read_to_string(self.path.join(file)).expect("a file of the group").trim().parse().expect("a number")
    }

    fn add(&self, pid: i32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).expect("move the target into the group");
    }

    /// Sets the limit so that this many bytes are left.
    fn leave(&self, bytes: u64) {
        // The kernel charges memory in advance in portions, which an idle group gives back.
        let limit = (self.number(self.names.usage) + bytes).next_multiple_of(4096);
        fs::write(self.path.join(self.names.limit), limit.to_string()).expect("set the limit");
    }

    fn lift(&self) {
        fs::write(self.path.join(self.names.limit), self.names.none).expect("lift the limit");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        for pid in fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(parent.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Panics unless the error states the memory that is needed and the memory that is left.
#[track_caller]
fn assert_figures(outcome: &ingraft_testing::Outcome) {
    assert!(outcome.stderr.contains("\"reason\":\"target_memory_limit\""), "{outcome:#?}");
    assert!(outcome.stderr.contains("MiB") && outcome.stderr.contains("leaves"), "{outcome:#?}");
}

#[test]
fn all_of_libc_is_refused_with_1_mb_of_room_and_counted_with_enough() {
    let group = match Group::new("libc") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let mut target = Mutatee::start("threads", &["4"]);
    group.add(target.pid());
    target.ask("go 100").assert_right();
    let before = Text::of(target.pid());
    group.leave(MIB);
    let outcome = tool().run(["count", "-p", &target.pid_text(), "libc.so.6:*"]);
    assert!(target.alive(), "the target was killed: {outcome:#?}");
    let outcome = outcome.assert_error(1, &["memory"]);
    assert_figures(&outcome);
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();

    // The kernel has charged memory in advance since, so the limit is set again. It leaves room for a few functions.
    group.leave(MIB);
    let few = tool().count(target.pid(), &["threads:work_0"]);
    target.ask("solo 50").assert_right();
    assert_eq!(few.interrupt().assert_code(0).assert_removed().calls("work_0"), 50);
    target::assert_clean(target.pid(), &before);

    group.lift();
    group.leave(64 * MIB);
    let session = tool().count(target.pid(), &["libc.so.6:*", "threads:work_0"]);
    target.ask("go 1000").assert_right();
    let _ = session.interrupt().assert_code(0).assert_removed();
    target::assert_clean(target.pid(), &before);
    target.ask("go 100").assert_right();
    assert!(target.alive());
}

/// Counters of all functions fit, timers do not; nothing of the request stays.
#[test]
fn times_that_do_not_fit_leave_no_counter_behind() {
    let group = match Group::new("times") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let mut target = Mutatee::start("threads", &["64"]);
    let before = Text::of(target.pid());
    group.add(target.pid());
    target.ask("go 100").assert_right();
    let pid = target.pid_text();
    let run = |left: u64, command: &'static str| {
        group.leave(left);
        let outcome = tool().run([command, "-p", &pid, "libc.so.6:*", "--max-overhead", "10000", "--for", "50ms"]);
        group.lift();
        target::assert_clean(target.pid(), &before);
        outcome
    };
    // With many threads, times need much more room than counters.
    assert_eq!(run(32 * MIB, "count").assert_code(0).one("removed")["text_restored"], true);
    let outcome = run(32 * MIB, "latency").assert_error(1, &["must stay free"]);
    assert!(outcome.all("attached").is_empty(), "{outcome:#?}");
    target.ask("go 100").assert_right();
    assert!(target.alive());
}

#[test]
fn a_library_that_does_not_fit_is_left_alone() {
    let group = match Group::new("library") {
        Ok(group) => group,
        Err(why) => skip!("{why}"),
    };
    let path = |name| program(name).expect("gcc").to_str().expect("a path").to_owned();
    let mut target = Mutatee::start("loads", &[&path("libplugin.so"), &path("libother.so")]);
    group.add(target.pid());
    target.ask("open");
    let session = tool().count(target.pid(), &["libplugin:plugin_work", "loads:local_work"]);
    let first = target.ask("call 50");
    first.assert_right();
    target.ask("close").assert_right();
    group.leave(MIB / 8);
    target.ask("open");
    target.ask("call 50").assert_right();
    assert!(target.alive());
    group.lift();
    let outcome = session.interrupt().assert_code(0).assert_removed();
    assert_eq!(outcome.calls("plugin_work"), 50, "{outcome:#?}");
    assert_eq!(outcome.calls("local_work"), 100);
    assert!(format!("{outcome:?}").contains("must stay free"), "the refusal is told: {outcome:#?}");
    target.ask("call 50").assert_right();
}

#[test]
fn half_of_the_address_space_stays_the_targets() {
    if !have("prlimit") {
        skip!("util-linux has no prlimit here");
    }
    let mut target = Mutatee::start("threads", &["2"]);
    let before = Text::of(target.pid());
    let size = |pid: i32| {
        let text = fs::read_to_string(format!("/proc/{pid}/statm")).expect("statm");
        text.split(' ').next().and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
    };
    let limit = |bytes: u64| {
        let soft = format!("--as={bytes}:");
        output(Command::new("prlimit").args(["--pid", &target.pid_text(), &soft]));
    };
    let used = size(target.pid());
    // An eighth of the rest is for the journal, half stays the target's, and 64 threads need a MiB each.
    limit(used + 150 * MIB);
    let outcome = tool().run(["count", "-p", &target.pid_text(), "threads:work_0"]).assert_error(1, &["address space"]);
    assert_figures(&outcome);
    assert_eq!(size(target.pid()), used, "nothing was mapped");
    limit(used + 1024 * MIB);
    let session = tool().count(target.pid(), &["threads:work_0"]);
    let taken = size(target.pid()) - used;
    assert!(taken <= 520 * MIB, "{} MiB were taken", taken / MIB);
    target.ask("solo 50").assert_right();
    assert_eq!(session.interrupt().assert_code(0).assert_removed().calls("work_0"), 50);
    target::assert_clean(target.pid(), &before);
}

#[test]
fn a_target_with_no_more_mappings_or_files_is_left_alone() {
    let mut target = Mutatee::start("crowd", &[]);
    let before = Text::of(target.pid());
    let pid = target.pid_text();
    let is_open = |number: &usize| fs::symlink_metadata(format!("/proc/{}/fd/{number}", target.pid())).is_ok();
    let first_free = (0..).find(|number| !is_open(number)).expect("some number");
    let limit = |files: usize| {
        let limit = format!("--nofile={files}:");
        let done = Command::new("prlimit").args(["--pid", &pid, &limit]).status();
        assert!(done.expect("prlimit").success());
    };
    let count = || ["count", "-p", &pid, "--for", "1s", "f_*"];
    limit(first_free);
    let outcome = tool().run(count()).assert_error(1, &["open files"]);
    assert!(outcome.stderr.contains("\"reason\":\"target_file_limit\""), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    limit(1024);
    target.ask("map 30");
    let outcome = tool().run(count()).assert_error(1, &["vm.max_map_count"]);
    assert!(outcome.stderr.contains("\"reason\":\"target_mapping_limit\""), "{outcome:#?}");
    target::assert_clean(target.pid(), &before);
    target.ask("all 1");
}
