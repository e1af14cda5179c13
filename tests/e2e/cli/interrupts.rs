//! Tests of insertions that take long: they tell how far they are, and a signal ends them before they change the target.

use std::fmt::Write as _;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ingraft_testing::target::{self, Text};
use ingraft_testing::{Daemon, Tool, have, open_directory, output, sibling, skip, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::terminal::{on_terminal, quoted};
use crate::tool;

/// Number of functions of the large program.
const FUNCTIONS: usize = 150_000;

/// Number of the system call pause(2).
const PAUSE: u32 = 34;

/// A large program that waits until it is killed.
struct Large(Child);

impl Large {
    fn start(directory: &Path) -> Large {
        let mut source = String::from(".globl main\n.type main, @function\nmain: push %rbp\n1: call pause\njmp 1b\n");
        source += ".size main, .-main\n";
        for n in 0..FUNCTIONS {
            let lines = "mov %edi, %eax\nadd $1, %eax\nimul $3, %eax, %eax\ncmp $7, %eax\nje 1f\nadd $2, %eax\n1: ret";
            writeln!(source, ".globl f{n}\n.type f{n}, @function\nf{n}: {lines}\n.size f{n}, .-f{n}").expect("text");
        }
        source += ".section .note.GNU-stack, \"\", @progbits\n";
        let (file, program) = (directory.join("large.s"), directory.join("large"));
        std::fs::write(&file, source).expect("a source");
        output(Command::new("gcc").arg("-o").arg(&program).arg(&file));
        let child = Command::new(&program).stdin(Stdio::null()).spawn().expect("run it");
        let large = Large(child);
        wait_until("it waits", || target::waits_in(large.pid(), PAUSE));
        large
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.0.id()).expect("a process id")
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a count of all functions on a terminal. Interrupts it once `word` appears there; waits for its end otherwise. Returns the output,
/// and the time from the interrupt to the end.
fn counted_on_terminal(tool: &Tool, pid: i32, word: Option<&str>) -> (String, Duration) {
    let plain = tool.plain_command(["count", "-p", &pid.to_string(), ":*", "--for", "100ms"]);
    let directory = open_directory();
    let own = directory.path().join("pid");
    let line = format!("sh -c 'echo $$ >\"$0\"; exec \"$@\"' '{}' {}", own.display(), quoted(&plain));
    let (mut child, mut output) = on_terminal(&line, &plain);
    let (mut text, mut part) = (String::new(), [0; 4096]);
    let mut since = None;
    loop {
        let n = output.read(&mut part).expect("the terminal's output");
        if n == 0 {
            break;
        }
        text += &String::from_utf8_lossy(&part[..n]);
        if since.is_none() && word.is_some_and(|word| text.contains(word)) {
            let pid = std::fs::read_to_string(&own).expect("a process id").trim().parse().expect("a process id");
            kill(Pid::from_raw(pid), Signal::SIGINT).expect("interrupt it");
            since = Some(Instant::now());
        }
    }
    child.wait().expect("script ends");
    (text, since.map_or(Duration::ZERO, |since| since.elapsed()))
}

#[test]
fn a_long_insertion_tells_how_far_it_is_and_can_be_given_up() {
    if !have("script") {
        skip!("no script (util-linux)");
    }
    let directory = open_directory();
    let large = Large::start(directory.path());
    let before = Text::of(large.pid());
    // The first run analyses the program, whose analysis the other runs have from the cache.
    let (tool, begin) = (tool(), Instant::now());
    let (text, _) = counted_on_terminal(&tool, large.pid(), None);
    let whole = begin.elapsed();
    assert!(text.contains("generating code for") && text.contains(" %, about "), "{text}");
    target::assert_clean(large.pid(), &before);
    let mut given_up = 0;
    for word in ["reading the program", "analysing", "generating code"] {
        let fresh = crate::tool();
        let (text, took) = counted_on_terminal(&fresh, large.pid(), Some(word));
        target::assert_clean(large.pid(), &before);
        if !text.contains(word) || text.contains(" points in after ") {
            // That step took less than half a second, or everything was in when the signal came.
            continue;
        }
        assert!(text.contains("given up"), "{word}: {text}");
        assert!(took * 2 < whole, "{word}: ended {took:?} after the signal, and {whole:?} are for all of it");
        given_up += 1;
    }
    assert!(given_up > 0, "no insertion was given up");
}

#[test]
fn a_daemon_gives_up_what_its_client_does_not_want() {
    let directory = open_directory();
    let large = Large::start(directory.path());
    let before = Text::of(large.pid());
    let daemon = Daemon::start(&sibling("ingraftd"), directory.path(), ["--log", "error"]);
    let client = daemon.client(env!("CARGO_BIN_EXE_ingraft"));
    let session = client.start(["count", "-p", &large.pid().to_string(), ":*", "--for", "100ms"]);
    wait_until("the daemon has begun", || target::arenas(large.pid()) > 0);
    let outcome = session.interrupt().assert_code(1);
    assert!(outcome.stderr.contains("given up"), "{outcome:#?}");
    // The last arena is unmapped by a thread that is still traced.
    wait_until("nothing is left", || target::arenas(large.pid()) == 0 && target::tracer(large.pid()) == 0);
    target::assert_clean(large.pid(), &before);
    assert!(client.inserted(large.pid()).is_empty());
    assert!(daemon.terminate().success());
}
