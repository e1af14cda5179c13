//! Causes of lost time that the program `ailing` can have, for tests and benchmarks of searches for them.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::{Mutatee, Reply};

/// A cause, and what a search for it must find.
#[derive(Clone, Copy, Debug)]
pub struct Cause {
    /// Words for the cause.
    pub name: &'static str,
    /// The hypothesis that holds.
    pub hypothesis: &'static str,
    /// The function of the program that loses the time.
    pub function: &'static str,
    kind: CauseKind,
}

#[derive(Clone, Copy, Debug)]
enum CauseKind {
    Commands(&'static [&'static str]),
    /// The program writes to a disk beside idle workers.
    Disk,
    /// The program waits for a server of this process.
    Upstream,
}

const fn of(name: &'static str, hypothesis: &'static str, function: &'static str, kind: CauseKind) -> Cause {
    Cause { name, hypothesis, function, kind }
}

/// A loop that computes.
pub const HOT_LOOP: Cause = of("a hot loop", "processor bound", "burns", CauseKind::Commands(&["burn"]));
/// A mutex that threads wait for; the program tells its address.
pub const MUTEX: Cause = of("a contended mutex", "waits for locks", "takes_turns", CauseKind::Commands(&["contend"]));
/// A slow disk behind many idle workers.
pub const DISK: Cause = of("a slow disk", "waits for the disk", "stores", CauseKind::Disk);
/// Memory that is mapped and unmapped all the time.
pub const PAGE_FAULTS: Cause = of("page faults", "waits for memory", "churns", CauseKind::Commands(&["churn"]));
/// A callee that sleeps.
pub const SLEEP: Cause = of("a sleeping callee", "sleeps", "naps", CauseKind::Commands(&["pool 4", "doze"]));
/// Another server that is slow.
pub const UPSTREAM: Cause = of("a slow upstream", "waits for input or output", "asks_upstream", CauseKind::Upstream);
/// System calls that fail and are made again.
pub const RETRIES: Cause = of("calls that fail", "retries", "polls", CauseKind::Commands(&["spin"]));

/// A program with a cause.
pub struct Ailing {
    /// The program.
    pub target: Mutatee,
    /// The answer to the last command.
    pub reply: Reply,
    /// Address of the server that the program asks, if it asks one.
    pub upstream: Option<String>,
    _directory: Option<TempDir>,
}

impl Cause {
    /// Starts the program with the cause. Files on a disk are made below `disk`: the system's directory for temporary files may be in memory, where
    /// no write is forced to a disk.
    pub fn start(&self, disk: &Path) -> Ailing {
        let mut target = Mutatee::start("ailing", &[]);
        let (mut directory, mut upstream) = (None, None);
        let reply = match self.kind {
            CauseKind::Commands(commands) => {
                let replies: Vec<Reply> = commands.iter().map(|command| target.ask(command)).collect();
                replies.into_iter().last().expect("a command")
            }
            CauseKind::Disk => {
                let directory = directory.insert(tempfile::tempdir_in(disk).expect("a directory"));
                target.ask("pool 64");
                target.ask(&format!("store {}", directory.path().join("data").display()))
            }
            CauseKind::Upstream => {
                let port = slow_server();
                upstream = Some(format!("127.0.0.1:{port}"));
                target.ask(&format!("ask {port}"))
            }
        };
        Ailing { target, reply, upstream, _directory: directory }
    }
}

/// Starts a server that answers one client, each byte after 20 ms. It ends with its client, or with this process. Returns its port.
fn slow_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("the target");
        let mut byte = [0];
        while client.read_exact(&mut byte).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
            if client.write_all(&byte).is_err() {
                return;
            }
        }
    });
    port
}
