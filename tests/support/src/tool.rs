//! The command line under test: it runs with `--format json`, and its objects are collected meanwhile.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::target::watch_the_host;
use crate::{NOBODY, bound, is_root};

/// The `ingraft` program with a state directory of its own.
pub struct Tool {
    program: PathBuf,
    state: Arc<tempfile::TempDir>,
    daemon: Option<(String, Option<PathBuf>)>,
    clock: Option<&'static str>,
    unprivileged: bool,
}

impl Tool {
    /// Returns a tool for the program at a path, usually `env!("CARGO_BIN_EXE_ingraft")` or [`crate::sibling`].
    pub fn new(program: impl AsRef<Path>) -> Tool {
        let state = Arc::new(crate::open_directory());
        Tool { program: program.as_ref().to_owned(), state, daemon: None, clock: None, unprivileged: false }
    }

    /// Makes a tool that runs without any privilege when the tests run as root.
    pub fn unprivileged(program: impl AsRef<Path>) -> Tool {
        let mut tool = Tool::new(program);
        tool.program = crate::exposed(&tool.program, tool.state.path());
        tool.unprivileged = true;
        tool
    }

    /// Makes the tool a client of a daemon.
    #[must_use]
    pub fn with_daemon(mut self, uri: &str, token: Option<&Path>) -> Tool {
        self.daemon = Some((uri.to_owned(), token.map(Path::to_owned)));
        self
    }

    /// Makes the tool use another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: &'static str) -> Tool {
        self.clock = Some(clock);
        self
    }

    /// Directory of the journal and the cache.
    pub fn state_directory(&self) -> PathBuf {
        self.state.path().join("state")
    }

    /// Returns the command with these arguments, without starting it. The flag for JSON comes second.
    pub fn command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        let mut arguments = arguments.into_iter();
        command.args(arguments.next()).args(["--format", "json"]).args(arguments);
        self.prepare(&mut command);
        command
    }

    /// Returns the command exactly as a person would type it.
    pub fn plain_command<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments);
        self.prepare(&mut command);
        command
    }

    fn prepare(&self, command: &mut Command) {
        use std::os::unix::process::CommandExt;
        command
            .env("INGRAFT_STATE_DIR", self.state_directory())
            .env_remove("INGRAFT_DAEMON")
            .env_remove("INGRAFT_TOKEN");
        if let Some(clock) = self.clock {
            command.env("INGRAFT_CLOCK", clock);
        }
        if let Some((uri, token)) = &self.daemon {
            command.env("INGRAFT_DAEMON", uri);
            if let Some(token) = token {
                command.env("INGRAFT_TOKEN", token);
            }
        }
        if self.unprivileged && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
    }

    /// Starts the command with these arguments.
    pub fn start<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Session {
        let mut session = Session::start(self.command(arguments).stdin(Stdio::null()));
        session.state = Some(Arc::clone(&self.state));
        session
    }

    /// Starts the command exactly as a person would type it: its lines are text. Wait for them by [`Session::wait_for_word`].
    pub fn start_plain<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Session {
        let mut session = Session::start(self.plain_command(arguments).stdin(Stdio::null()));
        session.state = Some(Arc::clone(&self.state));
        session
    }

    /// Starts the command with these arguments and waits for its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Outcome {
        self.start(arguments).finish()
    }

    /// Starts a count of functions in a process and waits until it is attached.
    pub fn count(&self, pid: i32, functions: &[&str]) -> Session {
        self.measure("count", pid, functions)
    }

    /// Starts a measurement of functions in a process by this command (such as `count`), and waits until it is attached.
    pub fn measure(&self, command: &str, pid: i32, functions: &[&str]) -> Session {
        let pid = pid.to_string();
        // The target may do nothing but call the measured functions, so the limit of the cost is lifted.
        let mut session = self.start([command, "-p", &pid, "--max-overhead", "1000000"].iter().chain(functions));
        session.wait_for("attached");
        session
    }

    /// Insertions that `status` lists for one process. Other tests may measure other processes.
    pub fn inserted(&self, pid: i32) -> Vec<Value> {
        let outcome = self.run(["status"]).assert_code(0);
        outcome.all("inserted").into_iter().filter(|inserted| inserted["pid"] == pid).cloned().collect()
    }

    /// Removes everything from a process; panics unless that succeeds.
    pub fn detach(&self, pid: i32) -> Outcome {
        self.run(["detach", "-p", &pid.to_string()]).assert_code(0)
    }
}

/// Values that `latency` reports for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the protocol")]
pub struct Latency {
    pub calls: u64,
    pub timed: u64,
    pub sum_ns: u64,
    /// Time without the callees that are measured too; `None` if it is not known.
    pub self_ns: Option<u64>,
    pub min_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub max_ns: u64,
    pub left: u64,
    pub unseen: u64,
    pub unrecorded: u64,
    pub left_by_tail_jump: u64,
}

impl Latency {
    fn read(object: &Value) -> Latency {
        let number = |key: &str| object[key].as_u64().unwrap_or(0);
        let own = object["self_ns"].as_u64();
        // The two sums are converted from ticks by themselves. Both may be wrong where stacks are switched while calls end.
        assert!(own.is_none_or(|own| own <= number("sum_ns") + 1) || number("unseen") > 0, "{object}");
        Latency {
            self_ns: own,
            calls: number("calls"),
            timed: number("timed"),
            sum_ns: number("sum_ns"),
            min_ns: number("min_ns"),
            p50_ns: number("p50_ns"),
            p99_ns: number("p99_ns"),
            max_ns: number("max_ns"),
            left: number("left"),
            unseen: number("unseen"),
            unrecorded: number("unrecorded"),
            left_by_tail_jump: number("left_by_tail_jump"),
        }
    }
}

/// A running `ingraft`.
pub struct Session {
    child: Child,
    objects: Vec<Value>,
    other: Vec<String>,
    taken: usize,
    lines: Receiver<(bool, String)>,
    stderr: String,
    description: String,
    /// State directory of the command, which lives as long as the session.
    state: Option<Arc<tempfile::TempDir>>,
}

impl Session {
    /// Starts a prepared command and collects its output.
    pub fn start(command: &mut Command) -> Session {
        watch_the_host();
        let description = format!("{command:?}");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{description}: {error}"));
        let (sender, lines) = channel();
        let err_sender = sender.clone();
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send((true, line))));
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| err_sender.send((false, line)))
        });
        Session {
            child,
            objects: Vec::new(),
            other: Vec::new(),
            taken: 0,
            lines,
            stderr: String::new(),
            description,
            state: None,
        }
    }

    /// Text that the command has printed on its standard error so far.
    pub fn stderr(&self) -> &str {
        &self.stderr
    }

    /// Process id of the command.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    fn accept(&mut self, (stdout, line): (bool, String)) {
        if stdout {
            match serde_json::from_str(&line) {
                Ok(object) => self.objects.push(object),
                Err(_) => self.other.push(line),
            }
        } else {
            self.stderr.push_str(&line);
            self.stderr.push('\n');
        }
    }

    /// Returns the next object of a type. Panics if the program ends or takes too long before it.
    pub fn wait_for(&mut self, kind: &str) -> Value {
        self.try_wait_for(kind).unwrap_or_else(|| {
            panic!("{}: no '{kind}' came; objects {:?}\nstderr:\n{}", self.description, self.objects, self.stderr)
        })
    }

    /// Returns the next object of a type; `None` if the program ends before it.
    pub fn try_wait_for(&mut self, kind: &str) -> Option<Value> {
        self.try_wait_for_any(&[kind])
    }

    /// Returns the next object of any of these types; `None` if the program ends before it.
    pub fn try_wait_for_any(&mut self, kinds: &[&str]) -> Option<Value> {
        let deadline = Instant::now() + bound();
        loop {
            while let Some(object) = self.objects.get(self.taken) {
                self.taken += 1;
                if kinds.iter().any(|kind| object["type"] == *kind) {
                    return Some(object.clone());
                }
            }
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.accept(line),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => panic!(
                    "{}: neither {kinds:?} nor an end came; objects {:?}\nstderr:\n{}",
                    self.description, self.objects, self.stderr
                ),
            }
        }
    }

    /// Waits until the program has printed a word on its standard error. Panics if the program ends or takes too long before.
    pub fn wait_for_word(&mut self, word: &str) {
        let deadline = Instant::now() + bound();
        while !self.stderr.contains(word) {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => self.accept(line),
                Err(_) => panic!("{}: '{word}' did not come\nstderr:\n{}", self.description, self.stderr),
            }
        }
    }

    /// Sends the program a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("signal the program under test");
    }

    /// Sends SIGINT, then waits as [`Session::finish`] does.
    pub fn interrupt(self) -> Outcome {
        self.signal(Signal::SIGINT);
        self.finish()
    }

    /// Sends SIGKILL, and waits for the program's end.
    pub fn kill(mut self) {
        self.child.kill().expect("kill the program under test");
        self.child.wait().expect("wait for the program under test");
    }

    /// Waits for the program's end, and returns its outcome.
    pub fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + bound();
        // A target that the program started may keep the streams open after the program's end. The program's own output is in the pipe
        // when it has
        // ended, and only has to be read.
        let mut ended = None;
        loop {
            let patience = Duration::from_millis(if ended.is_some() { 1000 } else { 20 });
            match self.lines.recv_timeout(patience) {
                Ok(line) => self.accept(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if ended.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {
                    ended = self.child.try_wait().expect("look at the program under test");
                    let (objects, stderr) = (&self.objects, &self.stderr);
                    let late = Instant::now() > deadline && ended.is_none();
                    assert!(!late, "{}: did not end; objects {objects:?}\nstderr:\n{stderr}", self.description);
                }
            }
        }
        let status = self.child.wait().expect("wait for the program under test");
        Outcome {
            status,
            objects: std::mem::take(&mut self.objects),
            other: std::mem::take(&mut self.other),
            stderr: std::mem::take(&mut self.stderr),
            description: std::mem::take(&mut self.description),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // The test has failed. The program may clean up its target, but not for long.
            self.signal(Signal::SIGINT);
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(5) && matches!(self.child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// Output of a finished `ingraft`.
#[derive(Debug)]
pub struct Outcome {
    /// Exit status of the process.
    pub status: ExitStatus,
    /// The objects on stdout, in order.
    pub objects: Vec<Value>,
    /// Lines on stdout that are no objects, such as the output of a started command.
    pub other: Vec<String>,
    /// The whole text on stderr.
    pub stderr: String,
    /// The command as text, for messages of failed tests.
    pub description: String,
}

impl Outcome {
    /// Returns this outcome if the program has this exit code; panics otherwise.
    #[must_use]
    #[track_caller]
    pub fn assert_code(self, code: i32) -> Outcome {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    /// Returns all objects of a type.
    pub fn all(&self, kind: &str) -> Vec<&Value> {
        self.objects.iter().filter(|object| object["type"] == kind).collect()
    }

    /// Returns the only object of a type.
    #[track_caller]
    pub fn one(&self, kind: &str) -> &Value {
        let all = self.all(kind);
        assert_eq!(all.len(), 1, "one '{kind}' expected: {self:#?}");
        all[0]
    }

    /// Sum of the calls of all functions with this last name, over all modules.
    #[track_caller]
    pub fn calls(&self, function: &str) -> u64 {
        let of_name = self.all("count").into_iter().filter(|object| object["function"] == function);
        let calls: Vec<u64> = of_name.map(|object| object["calls"].as_u64().expect("calls is a number")).collect();
        assert!(!calls.is_empty(), "no count of {function}: {self:#?}");
        calls.iter().sum()
    }

    /// Times of the function with this last name.
    #[track_caller]
    pub fn latency(&self, function: &str) -> Latency {
        let all = self.all("latency");
        let Some(object) = all.into_iter().find(|object| object["function"] == function) else {
            panic!("no latency of {function}: {self:#?}")
        };
        Latency::read(object)
    }

    /// Times of all functions, each with its name.
    pub fn latencies(&self) -> Vec<(String, Latency)> {
        let name = |object: &Value| object["function"].as_str().expect("function is text").to_owned();
        self.all("latency").into_iter().map(|object| (name(object), Latency::read(object))).collect()
    }

    /// Calls of every function by name; the calls of functions with equal names are added up.
    pub fn counts(&self) -> BTreeMap<String, u64> {
        let mut counts = BTreeMap::new();
        for object in self.all("count") {
            let name = object["function"].as_str().expect("function is text").to_owned();
            *counts.entry(name).or_default() += object["calls"].as_u64().expect("calls is a number");
        }
        counts
    }

    /// Calls of one function by thread id. Panics if some calls have no thread id.
    #[track_caller]
    pub fn threads(&self, function: &str) -> BTreeMap<u64, u64> {
        let count = self.all("count").into_iter().find(|object| object["function"] == function).expect("a count");
        let threads = count["threads"].as_array().expect("threads is a list");
        let mut sums = BTreeMap::new();
        for thread in threads {
            let tid = thread["tid"].as_u64().unwrap_or_else(|| panic!("a thread without id: {threads:?}"));
            *sums.entry(tid).or_default() += thread["calls"].as_u64().expect("calls is a number");
        }
        sums
    }

    /// Panics unless the report says that the removal is complete: one `removed` object, with the text restored and no child left.
    #[must_use]
    #[track_caller]
    pub fn assert_removed(self) -> Outcome {
        let removed = self.one("removed");
        // If the process has ended, its text is gone with it.
        let is_gone = removed["text_restored"].is_null() && !self.all("ended").is_empty();
        assert!(is_gone || removed["text_restored"] == true, "{self:#?}");
        assert_eq!(removed["children_left"].as_array().map(Vec::len), Some(0), "{self:#?}");
        self
    }

    /// Panics unless the program failed with this exit code, inserted nothing, and printed one `error` object on stderr. The `what` and
    /// the
    /// `hint` of this object must be one line each, and `what` must contain these words.
    #[must_use]
    #[track_caller]
    pub fn assert_error(self, code: i32, words: &[&str]) -> Outcome {
        let outcome = self.assert_code(code);
        let errors: Vec<Value> = outcome.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let errors: Vec<_> = errors.iter().filter(|object: &&Value| object["type"] == "error").collect();
        assert_eq!(errors.len(), 1, "one error object expected: {outcome:#?}");
        let (what, hint) =
            (errors[0]["what"].as_str().unwrap_or_default(), errors[0]["hint"].as_str().unwrap_or_default());
        assert!(!what.is_empty() && !what.contains('\n'), "what is one line: {outcome:#?}");
        assert!(!hint.is_empty() && !hint.contains('\n'), "hint is one line: {outcome:#?}");
        let text = format!("{what} {hint}").to_lowercase();
        assert!(
            words.is_empty() || words.iter().any(|word| text.contains(&word.to_lowercase())),
            "none of {words:?} is in: {what} / {hint}"
        );
        outcome
    }
}
