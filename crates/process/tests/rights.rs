//! A process executes a program with more privileges right before any step of an operation. The operation does not affect the new program.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use common::{hand_patch, within};
use ingraft_model::{Avma, Pid};
use ingraft_process::{
    ApplyOptions, DataAreaRequest, Denial, ProcessError, Rights, Target, before_steps, permitted, steps,
};

/// Id of an ordinary user.
const USER: u32 = 65534;

/// Execution that a step waits for, so that the next step meets the new program.
struct Exec {
    stdin: ChildStdin,
    pid: u32,
    thread: u32,
}

static AT: AtomicU64 = AtomicU64::new(u64::MAX);
static EXEC: Mutex<Option<Exec>> = Mutex::new(None);

fn is_guest(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|text| text.ends_with(b"\0guest\0"))
}

impl Exec {
    /// Makes the program execute another one. Returns once it has, or once its thread is held and cannot.
    fn go(mut self) -> ChildStdin {
        let _ = self.stdin.write_all(b"x"); // This fails if the program was killed.
        let begin = Instant::now();
        let held = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/task/{}/stat", self.pid, self.thread));
            stat.is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" t")))
        };
        while !is_guest(self.pid) && !held() && begin.elapsed() < Duration::from_secs(2) {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.stdin
    }
}

/// The two programs in a directory that all users can read: the ordinary one, and its copy that runs as root.
fn programs() -> Option<(tempdir::Dir, PathBuf, PathBuf)> {
    let dir = tempdir::Dir::new("rights");
    let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&dir.path).expect("metadata"));
    if owner != 0 {
        println!("skipped: only root can make a setuid program of another user");
        return None;
    }
    let built = common::compile_with("cc", "proc_execs", &["-no-pie"]);
    let copy = |name: &str, mode: u32| {
        let path = dir.path.join(name);
        std::fs::copy(&built, &path).expect("copy");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode");
        path
    };
    let (plain, setuid) = (copy("plain", 0o755), copy("setuid", 0o4755));
    let ids = Command::new(&setuid).arg("guest").uid(USER).gid(USER).stdin(Stdio::null()).output().expect("start");
    if String::from_utf8_lossy(&ids.stdout).trim() != format!("guest {USER} 0") {
        println!("skipped: setuid has no effect in {} (nosuid)", dir.path.display());
        return None;
    }
    Some((dir, plain, setuid))
}

mod tempdir {
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    pub struct Dir {
        pub path: PathBuf,
    }

    impl Dir {
        pub fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("ingraft-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a directory");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("mode");
            Dir { path }
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

struct Mutatee {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Mutatee {
    fn start(plain: &Path, guest: &Path, mode: &str) -> (Self, Exec, Avma) {
        let mut child = Command::new(plain)
            .arg(mode)
            .arg(guest)
            .uid(USER)
            .gid(USER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        let stdin = child.stdin.take().expect("stdin");
        let mut mutatee = Mutatee { out: BufReader::new(child.stdout.take().expect("stdout")), child };
        let ready = mutatee.line();
        let words: Vec<&str> = ready.split_ascii_whitespace().collect();
        let ["ready", pid, "counted", address, "thread", thread] = words[..] else { panic!("{ready}") };
        let counted = Avma(u64::from_str_radix(address.trim_start_matches("0x"), 16).expect("an address"));
        let exec = Exec { stdin, pid: pid.parse().expect("a pid"), thread: thread.parse().expect("a tid") };
        (mutatee, exec, counted)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }
}

impl Drop for Mutatee {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs all operations of a measurement.
fn measure(pid: Pid, counted: Avma, rights: Rights) -> Result<(), String> {
    let target = Target::open_for(pid, rights).map_err(|e| e.to_string())?;
    let _acting = target.act_for(rights);
    let say = |e: ProcessError| e.to_string();
    let survey = target.survey(None).map_err(say)?;
    let request = DataAreaRequest { identity: survey.identity, shards: 64, ..DataAreaRequest::default() };
    let area = target.create_area(&request).map_err(say)?;
    let layout = area.layout();
    let arena = target.map_arena(&(counted..counted.offset(4096)), 4096).map_err(say)?;
    let patch = hand_patch(counted, arena.start, layout.counter(0));
    target.apply(&patch.insert, &ApplyOptions::default()).map_err(|e| e.to_string())?;
    let options =
        ApplyOptions { check_quiet: patch.remove.retired.clone(), reset_gs: Some(layout), ..ApplyOptions::default() };
    let mut quiet = target.apply(&patch.remove, &options).map_err(|e| e.to_string())?.quiet;
    while !quiet {
        quiet = target.quiet(&patch.remove.retired).map_err(|e| e.to_string())?;
    }
    target.unmap(&[arena, layout.range()]).map_err(say)
}

/// Runs the operations of a measurement once for each of their steps, with an exec right before that step.
fn exec_before_every_step(mode: &'static str, rights: Rights, stride: u64) {
    within(Duration::from_secs(500), move || {
        let Some((_dir, plain, setuid)) = programs() else { return };
        before_steps(|n| {
            if n >= AT.load(Ordering::SeqCst) {
                let mut exec = EXEC.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(ready) = exec.take() {
                    AT.store(u64::MAX, Ordering::SeqCst);
                    STDIN.lock().unwrap_or_else(PoisonError::into_inner).replace(ready.go());
                }
            }
        });
        for (tried, n) in (1..).step_by(stride as usize).enumerate() {
            let (mut mutatee, exec, counted) = Mutatee::start(&plain, &setuid, mode);
            let pid = mutatee.child.id();
            EXEC.lock().unwrap_or_else(PoisonError::into_inner).replace(exec);
            AT.store(steps() + n, Ordering::SeqCst);
            let outcome = measure(Pid(pid.cast_signed()), counted, rights);
            AT.store(u64::MAX, Ordering::SeqCst);
            let unused = EXEC.lock().unwrap_or_else(PoisonError::into_inner).take();
            if unused.is_some() {
                outcome.expect("without an exec it works");
                println!("{tried} of {n} steps");
                assert!(tried > 20, "{tried} steps");
                return;
            }
            let mut stdin = STDIN.lock().unwrap_or_else(PoisonError::into_inner).take().expect("its input");
            assert_eq!(mutatee.line(), format!("guest {USER} 0"), "step {n}: {outcome:?}");
            stdin.write_all(b"?\n").expect("ask");
            assert_eq!(mutatee.line(), "guest clean", "step {n}: {outcome:?}");
            drop(stdin);
            let status = mutatee.child.wait().expect("wait");
            assert!(status.success(), "step {n}: {status} after {outcome:?}");
        }
    });
}

static STDIN: Mutex<Option<ChildStdin>> = Mutex::new(None);

#[test]
fn exec_by_the_main_thread_for_a_user() {
    exec_before_every_step("main", Rights::User { uid: USER, gid: USER }, 3);
}

#[test]
fn exec_by_another_thread_for_root() {
    exec_before_every_step("worker", Rights::All, 3);
}

#[test]
fn exec_with_memory_that_another_process_keeps() {
    exec_before_every_step("shared", Rights::All, 3);
}

#[test]
#[ignore = "every step, in all forms: minutes"]
fn exec_before_all_steps() {
    let user = Rights::User { uid: USER, gid: USER };
    for (mode, rights) in
        [("main", user), ("worker", user), ("shared", user), ("main", Rights::All), ("worker", Rights::All)]
    {
        exec_before_every_step(mode, rights, 1);
    }
}

/// User, group and capabilities of this thread.
fn credentials() -> Vec<String> {
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
    let wanted = |line: &&str| ["Uid:", "Gid:", "CapPrm:", "CapEff:"].iter().any(|key| line.starts_with(key));
    status.lines().filter(wanted).map(str::to_owned).collect()
}

/// The rights to trace are those that the kernel grants.
#[test]
fn rights_are_what_the_user_could_do() {
    within(Duration::from_secs(60), || {
        let Some((dir, plain, setuid)) = programs() else { return };
        let user = Rights::User { uid: USER, gid: USER };
        let before = credentials();
        let not_yours = |pid: u32, rights: Rights| {
            let answer = permitted(Pid(pid.cast_signed()), rights);
            matches!(answer, Err(Denial::NotYours { .. }))
        };
        let (own, _exec, _) = Mutatee::start(&plain, &setuid, "main");
        let pid = own.child.id();
        assert_eq!(permitted(Pid(pid.cast_signed()), user), Ok(()));
        assert!(not_yours(pid, Rights::User { uid: USER - 1, gid: USER }));
        assert!(not_yours(pid, Rights::User { uid: USER, gid: USER - 1 }));
        assert!(not_yours(std::os::unix::process::parent_id(), user), "root's");
        // A setuid program, and one with a file that only root can read.
        let hidden = dir.path.join("hidden");
        std::fs::copy(&plain, &hidden).expect("copy");
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o711)).expect("mode");
        for program in [&setuid, &hidden] {
            let mut guest = Command::new(program)
                .arg("guest")
                .uid(USER)
                .gid(USER)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("start");
            let mut line = String::new();
            BufReader::new(guest.stdout.take().expect("stdout")).read_line(&mut line).expect("a line");
            assert!(not_yours(guest.id(), user), "{}", program.display());
            assert_eq!(permitted(Pid(guest.id().cast_signed()), Rights::All), Ok(()));
            drop(guest.stdin.take());
            guest.wait().expect("wait");
        }
        // This thread has the credentials that it had before.
        assert_eq!(credentials(), before);
    });
}
