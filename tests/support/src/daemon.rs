//! A running `ingraftd` with a state directory and a socket of its own.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{BOUND, Tool};

/// A running daemon. Dropping it kills the daemon (kill -9), unless [`Daemon::terminate`] has ended it properly.
pub struct Daemon {
    child: Child,
    /// Addresses that the daemon printed when it was ready.
    pub addresses: Vec<String>,
    directory: PathBuf,
    lines: Receiver<String>,
    log: Arc<Mutex<String>>,
}

impl Daemon {
    /// Starts a daemon whose socket and state lie in `directory`, with further `arguments`, and waits until it listens.
    pub fn start<S: AsRef<OsStr>>(program: &Path, directory: &Path, arguments: impl IntoIterator<Item = S>) -> Daemon {
        let arguments: Vec<S> = arguments.into_iter().collect();
        let own = ["--listen".into(), format!("unix:{}/socket", directory.display())];
        let is_address = |argument: &&S| argument.as_ref() == "--listen" || argument.as_ref() == "--metrics";
        let listens = 1 + arguments.iter().filter(is_address).count();
        let mut child = Command::new(program)
            .args(own)
            .args(&arguments)
            .arg("--state-dir")
            .arg(directory.join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let stdout = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let log = Arc::new(Mutex::new(String::new()));
        let stderr = BufReader::new(child.stderr.take().expect("stderr is piped"));
        let kept = Arc::clone(&log);
        std::thread::spawn(move || {
            for line in stderr.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line);
                eprintln!("{line}");
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let mut daemon = Daemon { child, log, addresses: Vec::new(), directory: directory.to_owned(), lines };
        while daemon.addresses.len() < listens {
            let line = daemon.lines.recv_timeout(BOUND).expect("the daemon says where it listens");
            let uri =
                line.strip_prefix("listening on ").unwrap_or_else(|| panic!("unexpected line from the daemon: {line}"));
            daemon.addresses.push(uri.to_owned());
        }
        daemon
    }

    /// Process id of the daemon.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a process id")
    }

    /// Text of the daemon's log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for lines in the daemon's log that contain all of these words, and returns them. Panics if there is none.
    pub fn logged(&self, words: &[&str]) -> Vec<String> {
        let mut found = Vec::new();
        crate::wait_until(&format!("the daemon logs {words:?}"), || {
            let log = self.log();
            found = log.lines().filter(|l| words.iter().all(|w| l.contains(w))).map(str::to_owned).collect();
            !found.is_empty()
        });
        found
    }

    /// Path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        self.directory.join("socket")
    }

    /// URI of the daemon's socket.
    pub fn uri(&self) -> String {
        format!("unix:{}", self.socket().display())
    }

    /// Returns a command line that is a client of the daemon.
    pub fn client(&self, program: impl AsRef<Path>) -> Tool {
        Tool::new(program).with_daemon(&self.uri(), None)
    }

    /// Sends SIGTERM, waits for the daemon's end, and returns its exit status.
    pub fn terminate(mut self) -> ExitStatus {
        kill(Pid::from_raw(self.pid()), Signal::SIGTERM).expect("signal the daemon");
        let mut status = None;
        crate::wait_until("the daemon ends", || {
            status = self.child.try_wait().expect("wait for the daemon");
            status.is_some()
        });
        status.expect("waited for it")
    }

    /// Sends SIGKILL, and waits for the daemon's end.
    pub fn kill(mut self) {
        self.child.kill().expect("kill the daemon");
        self.child.wait().expect("wait for the daemon");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The daemon may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
