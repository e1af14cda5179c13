//! The clients of the demo's server: a bounded load that can be paused, so that two tallies can be compared while no request is in
//! progress.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of clients, each with a connection of its own.
pub(super) const CLIENTS: usize = 4;
/// Number of requests that a client sends at once.
const BATCH: u64 = 16;
/// Time between two batches of one client: all clients together send at most 80,000 requests per second.
const PERIOD: Duration = Duration::from_micros(800);
/// Longest time for an answer; a server that exceeds it has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Running clients.
pub(super) struct Load {
    shared: Arc<LoadControl>,
    clients: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct LoadControl {
    state: Mutex<LoadState>,
    changed: Condvar,
    answered: AtomicU64,
    /// Longest time from a batch to its last answer, in nanoseconds.
    slowest_ns: AtomicU64,
}

#[derive(Default)]
struct LoadState {
    paused: bool,
    ended: bool,
    /// Number of clients that wait for the end of a pause, and for no answer.
    resting: usize,
    /// Failure of the first client that failed.
    failure: Option<String>,
}

impl LoadControl {
    fn state(&self) -> MutexGuard<'_, LoadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the load is paused; returns whether the client goes on.
    fn go_on(&self) -> bool {
        let mut state = self.state();
        if state.paused && !state.ended {
            state.resting += 1;
            self.changed.notify_all();
            while state.paused && !state.ended {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.resting -= 1;
        }
        !state.ended
    }
}

impl Load {
    /// Connects the clients and starts the load.
    pub(super) fn start(server: SocketAddr) -> io::Result<Self> {
        let shared = Arc::new(LoadControl::default());
        let mut load = Load { shared: Arc::clone(&shared), clients: Vec::new() };
        for client in 0..CLIENTS {
            let connection = connect(server)?;
            let shared = Arc::clone(&shared);
            let thread = std::thread::Builder::new().name(format!("client {client}"));
            load.clients.push(thread.spawn(move || {
                if let Err(e) = work(connection, client as u64, &shared) {
                    shared.state().failure.get_or_insert_with(|| e.to_string());
                    shared.changed.notify_all();
                }
            })?);
        }
        Ok(load)
    }

    /// Pauses the load. When the function returns, every request that was sent has been answered.
    pub(super) fn pause(&self) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.state();
        state.paused = true;
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if state.resting == CLIENTS {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("no answer in {} s", PATIENCE.as_secs()));
            }
            (state, _) = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Resumes the load after a pause.
    pub(super) fn resume(&self) {
        self.shared.state().paused = false;
        self.shared.changed.notify_all();
    }

    /// Returns the failure of the first client that failed, if one did.
    pub(super) fn failure(&self) -> Option<String> {
        self.shared.state().failure.clone()
    }

    /// Number of requests that have been answered.
    pub(super) fn answered(&self) -> u64 {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Longest time that a client waited since the last call of this function.
    pub(super) fn take_slowest(&self) -> Duration {
        Duration::from_nanos(self.shared.slowest_ns.swap(0, Ordering::Relaxed))
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        for client in self.clients.drain(..) {
            let _panicked = client.join();
        }
    }
}

/// Opens a connection whose reads and writes have a time limit.
pub(super) fn connect(server: SocketAddr) -> io::Result<BufReader<TcpStream>> {
    let connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_nodelay(true)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    Ok(BufReader::new(connection))
}

fn work(mut connection: BufReader<TcpStream>, client: u64, shared: &LoadControl) -> io::Result<()> {
    let mut requests = String::new();
    let mut answer = String::new();
    let mut due = Instant::now();
    for round in 0_u64.. {
        if !shared.go_on() {
            break;
        }
        requests.clear();
        for i in 0..BATCH {
            let n = round * BATCH + i;
            // Every fourth request writes; clients share half of their keys.
            let key = if i % 2 == 0 { n % 1000 } else { client * 1000 + n % 1000 };
            let _infallible =
                if i % 4 == 3 { writeln!(requests, "SET {key} {n}") } else { writeln!(requests, "GET {key}") };
        }
        let sent = Instant::now();
        connection.get_mut().write_all(requests.as_bytes())?;
        for _ in 0..BATCH {
            answer.clear();
            if connection.read_line(&mut answer)? == 0 {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection"));
            }
            if !(answer.starts_with("VALUE ") || answer == "NONE\n") {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("an answer like `{}`", answer.trim_end()),
                ));
            }
        }
        let waited = u64::try_from(sent.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.slowest_ns.fetch_max(waited, Ordering::Relaxed);
        shared.answered.fetch_add(BATCH, Ordering::Relaxed);
        // A late batch does not bring the next ones forward, so the load stays bounded after a pause.
        due = (due + PERIOD).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    Ok(())
}
