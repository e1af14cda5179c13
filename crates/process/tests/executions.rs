//! A program executes another one while the engine seizes its threads. The kernel delays the execve until the tracer has reaped the traced
//! threads that it ends. It also delays the tracer's next request until the execve is over.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use common::within;
use ingraft_model::Pid;
use ingraft_process::{DataAreaRequest, Target, before_steps};

/// Process id and input of the program, until the program has been told to execute another.
static TELL: Mutex<Option<(u32, ChildStdin)>> = Mutex::new(None);

/// A line of the status of a thread of the program other than its main thread, if there is one.
fn of_the_other(pid: u32, line: &str) -> Option<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let other = tasks.flatten().find(|task| task.file_name().to_str() != Some(&pid.to_string()))?;
    let status = std::fs::read_to_string(other.path().join("status")).ok()?;
    status.lines().find_map(|text| text.strip_prefix(line)).map(|rest| rest.trim().to_owned())
}

/// Once the other thread is traced, makes the program execute another one, and waits until the kernel has killed the other thread for that.
fn execute_once_traced(_step: u64) {
    let mut tell = TELL.lock().expect("nobody failed");
    let is_traced = |pid: u32| of_the_other(pid, "TracerPid:").is_some_and(|tracer| tracer != "0");
    if let Some((pid, mut stdin)) = tell.take_if(|(pid, _)| is_traced(*pid)) {
        stdin.write_all(b"x").expect("a command");
        while of_the_other(pid, "State:").is_some_and(|state| !state.starts_with(['Z', 'X'])) {
            std::thread::sleep(Duration::from_micros(100));
        }
        // Keep the input open, because the new program waits for questions.
        std::mem::forget(stdin);
    }
}

#[test]
fn a_program_that_executes_another_and_its_tracer_do_not_wait_for_each_other() {
    within(Duration::from_secs(60), || {
        let program = common::compile_with("cc", "proc_execs", &["-no-pie"]);
        let mut child = Command::new(&program)
            .args(["busy", program.to_str().expect("a path")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start");
        let mut lines = BufReader::new(child.stdout.take().expect("output")).lines().map_while(Result::ok);
        assert!(lines.next().expect("a line").starts_with("ready"));
        let target = Target::open(Pid(child.id().cast_signed())).expect("may be traced");
        *TELL.lock().expect("nobody failed") = Some((child.id(), child.stdin.take().expect("input")));
        before_steps(execute_once_traced);
        let made = target.create_area(&DataAreaRequest::default());
        assert!(made.is_err(), "its program is gone: {made:?}");
        assert!(TELL.lock().expect("nobody failed").is_none(), "it never executed anything");
        assert!(lines.next().expect("the new program").starts_with("guest"));
        child.kill().expect("its own child");
        child.wait().expect("its own child");
    });
}

/// The kernel takes the memory of a process away some time before it tells that the process has ended.
#[test]
fn a_program_that_ends_with_much_memory_has_not_executed_another() {
    let mut child = Command::new("dd")
        .args(["if=/dev/zero", "of=/dev/null", "bs=300M", "count=1"])
        .stderr(Stdio::null())
        .spawn()
        .expect("start dd");
    let target = Target::open(Pid(child.id().cast_signed())).expect("may be traced");
    while target.is_alive() {
        assert!(target.is_same_program() || !target.is_alive(), "it executes nothing");
    }
    child.wait().expect("it has ended");
}
