//! Tests of files that a target names by debug links: devices, pipes, terminals, circular links, files outside of the target's root, and
//! files
//! that its user may not read. The daemon answers, its memory stays bounded, and it ends when asked to.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use ingraft_testing::{Daemon, Mutatee, exposed, have, is_root, open_directory, output, program, skip};

use crate::{client, daemon};

const MIB: u64 = 1 << 20;

/// Returns a copy of a program without symbols, with the debug link that this argument of objcopy makes.
fn linked(directory: &Path, copy: &str, base: &str, link: &str) -> PathBuf {
    let made = directory.join(copy);
    fs::copy(program(base).expect("gcc"), &made).expect("copy a program");
    output(Command::new("objcopy").args(["--strip-all", link]).arg(&made));
    made
}

/// Returns the argument of objcopy for a debug link with this name and any checksum.
fn any_name(directory: &Path, name: &str) -> String {
    let mut section = name.as_bytes().to_vec();
    section.resize((section.len() + 1).next_multiple_of(4) + 4, 0);
    let file = directory.join("section");
    fs::write(&file, section).expect("a section");
    format!("--add-section=.gnu_debuglink={}", file.display())
}

/// Returns a file with the symbols of a program, and the argument of objcopy for a debug link to this file.
fn debug_file(directory: &Path, name: &str, base: &str) -> (PathBuf, String) {
    let debug = directory.join(name);
    output(Command::new("objcopy").arg("--only-keep-debug").arg(program(base).expect("gcc")).arg(&debug));
    let link = format!("--add-gnu-debuglink={}", debug.display());
    (debug, link)
}

/// Returns the names of the functions that the daemon finds in a process.
fn functions(daemon: &Daemon, pid: i32, pattern: &str) -> Vec<String> {
    let outcome = client(daemon).run(["functions", "-p", &pid.to_string(), pattern]);
    outcome.all("function").iter().filter_map(|f| Some(f["function"].as_str()?.to_owned())).collect()
}

fn peak_memory(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the daemon's status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.split_ascii_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

#[test]
fn a_debug_link_to_anything_else_than_a_file() {
    if !have("objcopy") {
        skip!("binutils is not installed");
    }
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let at = |name: &str| directory.path().join(name);
    symlink("/dev/zero", at("zero.debug")).expect("a link");
    symlink("/dev/ptmx", at("terminal.debug")).expect("a link");
    symlink("circle.debug", at("circle.debug")).expect("a link");
    symlink("/proc/self/exe", at("magic.debug")).expect("a link");
    output(Command::new("mkfifo").arg(at("pipe.debug")));
    fs::create_dir(at("folder.debug")).expect("a directory");
    fs::File::create(at("sparse.debug")).and_then(|f| f.set_len(1 << 40)).expect("a sparse file");
    let links = ["zero", "terminal", "circle", "magic", "pipe", "folder", "sparse", "..", "../../etc/passwd", ""];
    for (number, link) in links.iter().enumerate() {
        let link = if link.is_empty() || link.contains('.') { (*link).to_owned() } else { format!("{link}.debug") };
        let copy = linked(directory.path(), &format!("linked-{number}"), "threads", &any_name(directory.path(), &link));
        let mut target = Mutatee::spawn(Command::new(copy).arg("1"));
        assert!(!functions(&daemon, target.pid(), &format!("linked-{number}:*")).is_empty(), "{link}");
        target.ask("go 10").assert_right();
    }
    let peak = peak_memory(daemon.pid());
    assert!(peak < 200 * MIB, "the daemon took {} MiB", peak / MIB);
    assert!(daemon.terminate().success());
}

#[test]
fn a_debug_file_that_the_user_may_not_read() {
    if !have("objcopy") || !is_root() {
        skip!("it needs binutils, and root");
    }
    use std::os::unix::process::CommandExt;
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    for (copy, mode, found) in [("refused", 0o600, false), ("granted", 0o644, true)] {
        let (debug, link) = debug_file(directory.path(), &format!("{copy}.debug"), "threads");
        let copy = linked(directory.path(), copy, "threads", &link);
        fs::set_permissions(&debug, fs::Permissions::from_mode(mode)).expect("chmod");
        let mut command = Command::new(&copy);
        command.arg("1").uid(ingraft_testing::NOBODY).gid(ingraft_testing::NOBODY);
        let target = Mutatee::spawn(&mut command);
        let names = functions(&daemon, target.pid(), &format!("{}:*", copy.file_name().expect("a name").display()));
        assert_eq!(names.iter().any(|name| name == "work_0"), found, "{mode:o}: {} functions", names.len());
    }
    assert!(daemon.terminate().success());
}

#[test]
fn a_debug_link_out_of_the_root_of_the_target() {
    if !have("objcopy") || !have("chroot") || !is_root() {
        skip!("it needs binutils, and root");
    }
    let directory = open_directory();
    let daemon = daemon(directory.path(), &[]);
    let jail = open_directory();
    let (outside, link) = debug_file(directory.path(), "outside.debug", "threads-static");
    // The target has another root directory. There, the path under which the daemon sees the program must exist as well.
    let inside = jail.path().join(jail.path().strip_prefix("/").expect("an absolute path"));
    fs::create_dir_all(&inside).expect("directories");
    symlink(&outside, inside.join("outside.debug")).expect("a link");
    let copy = linked(directory.path(), "jailed", "threads-static", &link);
    let copy = exposed(&copy, jail.path());
    let name = copy.file_name().expect("a name").to_owned();
    let target = Mutatee::spawn(Command::new("chroot").arg(jail.path()).arg(Path::new("/").join(name)).arg("1"));
    let names = functions(&daemon, target.pid(), "jailed:*");
    assert!(!names.is_empty() && !names.iter().any(|name| name == "work_0"), "{} functions", names.len());
    assert!(daemon.terminate().success());
}
