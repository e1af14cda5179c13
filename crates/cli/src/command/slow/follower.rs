//! The command of `--then`: the first slow call starts it, and it ends with the search.
//!
//! It is another `ingraft`, which measures with the engine of this one.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::args::{Common, Format, SlowArgs};
use crate::output;

/// A command that a slow call starts.
pub(super) struct Follower {
    /// Arguments without the process; empty if no command follows.
    arguments: Vec<String>,
    functions: Vec<String>,
    running: Option<Child>,
}

impl Follower {
    /// The command that the arguments name.
    pub(super) fn new(args: &SlowArgs, common: &Common) -> Self {
        let mut follower = Follower { arguments: Vec::new(), functions: Vec::new(), running: None };
        let [kind, file] = args.then.as_slice() else { return follower };
        let kind = if kind == "profile" { &["profile", "edges"][..] } else { &["trace"] };
        follower.arguments.extend(kind.iter().map(ToString::to_string));
        follower.arguments.extend(["-o".to_owned(), file.clone(), "--max-overhead".to_owned(), "100000".to_owned()]);
        for daemon in &common.daemons {
            follower.arguments.extend(["--daemon".to_owned(), daemon.clone()]);
        }
        let files = [
            ("--state-dir", &common.state_dir),
            ("--token-file", &common.token_file),
            ("--tls-ca", &common.tls_ca),
            ("--tls-cert", &common.tls_cert),
            ("--tls-key", &common.tls_key),
        ];
        for (name, file) in files {
            let file = file.iter().map(|file| file.display().to_string());
            follower.arguments.extend(file.flat_map(|file| [name.to_owned(), file]));
        }
        follower.functions = std::iter::once(&args.function).chain(&args.callees).cloned().collect();
        follower
    }

    /// Starts the command, unless it was started. It says on the standard error what it does, and why it fails.
    pub(super) fn start(&mut self, pid: i32, format: Format) {
        if self.arguments.is_empty() || self.running.is_some() {
            return;
        }
        let arguments = std::mem::take(&mut self.arguments);
        let started = std::env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.args(arguments).args(["-p", &pid.to_string()]).args(&self.functions);
            command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()
        });
        match started {
            Ok(child) => self.running = Some(child),
            Err(error) => output::warn(&format!("--then: the command does not start: {error}"), format),
        }
    }

    /// Ends the command, and waits until it has saved what it has measured.
    pub(super) fn end(&mut self, format: Format) {
        let Some(mut child) = self.running.take() else { return };
        if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            // If it has ended already, nothing else has its number until it is waited for, and its status says why.
            let _ = kill_process(pid, Signal::INT);
        }
        match child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => output::warn(&format!("--then: the command has failed ({status})"), format),
            Err(error) => output::warn(&format!("--then: {error}"), format),
        }
    }
}
