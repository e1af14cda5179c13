//! The server that `demo` measures: a key-value store with a thread for each connection. The server does not know ingraft. It keeps a tally
//! of its calls, so that ingraft's numbers can be compared with it.
//!
//! Protocol, in lines: `GET key`, `SET key value`, and `TALLY`, which answers a line for each thread and then `.`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::exit::{Failure, Stop};

/// The functions that are counted, in the order of a tally.
pub(super) const FUNCTIONS: [&str; 5] =
    ["demo_handle_request", "demo_parse", "demo_lookup", "demo_store", "demo_render"];

/// Largest number of connections over the server's life.
const MOST: usize = 128;

/// Numbers of the calls that one thread has made. Only that thread writes; the alignment keeps other data off its cache lines, so that
/// counting costs nearly nothing.
#[repr(align(128))]
struct Tally {
    /// Thread id; 0 if the tally is not in use.
    tid: AtomicI32,
    calls: [AtomicU64; FUNCTIONS.len()],
}

impl Tally {
    const fn new() -> Self {
        Tally { tid: AtomicI32::new(0), calls: [const { AtomicU64::new(0) }; FUNCTIONS.len()] }
    }

    fn count(&self, function: usize) {
        self.calls[function].fetch_add(1, Ordering::Relaxed);
    }
}

static TALLIES: [Tally; MOST] = [const { Tally::new() }; MOST];
static CONNECTIONS: AtomicUsize = AtomicUsize::new(0);

type Store = RwLock<HashMap<u64, u64>>;

/// The request in one line of text.
enum StoreRequest {
    Get(u64),
    Set(u64, u64),
    Wrong,
}

/// Serves on a port of the loopback until the standard input ends, that is, until the process that started the server is gone.
pub(crate) fn run() -> Result<(), Stop> {
    let cannot =
        |e: io::Error| Failure::failed(format!("the demo's server cannot serve: {e}"), "check that the loopback is up");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{address}").and_then(|()| stdout.flush()).map_err(cannot)?;
    let accepting = std::thread::Builder::new().name("accept".to_owned());
    accepting.spawn(move || accept(&listener)).map_err(cannot)?;
    // Nothing is ever sent on the standard input; only its end matters.
    io::stdin().read_to_end(&mut Vec::new()).map_err(cannot)?;
    Ok(())
}

fn accept(listener: &TcpListener) {
    let store = Arc::new(Store::default());
    for connection in listener.incoming().flatten() {
        let Some(tally) = TALLIES.get(CONNECTIONS.fetch_add(1, Ordering::Relaxed)) else { return };
        let store = Arc::clone(&store);
        let worker = std::thread::Builder::new().name("worker".to_owned());
        // If no thread can be started, the connection is closed, and the client notices.
        let _closed = worker.spawn(move || serve(connection, &store, tally));
    }
}

/// Answers a connection until it ends.
fn serve(connection: TcpStream, store: &Store, tally: &Tally) -> io::Result<()> {
    tally.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Release);
    connection.set_nodelay(true)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let mut writer = BufWriter::new(connection);
    let (mut line, mut answer) = (String::new(), String::new());
    while reader.read_line(&mut line)? > 0 {
        answer.clear();
        match line.trim_end() {
            "TALLY" => report(&mut answer),
            request => demo_handle_request(request, store, tally, &mut answer),
        }
        writer.write_all(answer.as_bytes())?;
        // All requests that have arrived already are answered with one write.
        if reader.buffer().is_empty() {
            writer.flush()?;
        }
        line.clear();
    }
    Ok(())
}

fn report(answer: &mut String) {
    for tally in &TALLIES {
        let tid = tally.tid.load(Ordering::Acquire);
        if tid != 0 {
            let calls = tally.calls.each_ref().map(|n| n.load(Ordering::Relaxed).to_string());
            let _infallible = writeln!(answer, "{tid} {}", calls.join(" "));
        }
    }
    answer.push_str(".\n");
}

#[inline(never)]
fn demo_handle_request(line: &str, store: &Store, tally: &Tally, answer: &mut String) {
    tally.count(0);
    let found = match demo_parse(line, tally) {
        StoreRequest::Get(key) => demo_lookup(key, store, tally),
        StoreRequest::Set(key, value) => Some(demo_store(key, value, store, tally)),
        StoreRequest::Wrong => None,
    };
    demo_render(found, tally, answer);
}

#[inline(never)]
fn demo_parse(line: &str, tally: &Tally) -> StoreRequest {
    tally.count(1);
    let mut words = black_box(line).split(' ');
    let (command, mut number) = (words.next(), || words.next().and_then(|w| w.parse().ok()));
    match (command, number(), number()) {
        (Some("GET"), Some(key), None) => StoreRequest::Get(key),
        (Some("SET"), Some(key), Some(value)) => StoreRequest::Set(key, value),
        _ => StoreRequest::Wrong,
    }
}

#[inline(never)]
fn demo_lookup(key: u64, store: &Store, tally: &Tally) -> Option<u64> {
    tally.count(2);
    store.read().unwrap_or_else(PoisonError::into_inner).get(&black_box(key)).copied()
}

#[inline(never)]
fn demo_store(key: u64, value: u64, store: &Store, tally: &Tally) -> u64 {
    tally.count(3);
    store.write().unwrap_or_else(PoisonError::into_inner).insert(black_box(key), value).unwrap_or(value)
}

#[inline(never)]
fn demo_render(found: Option<u64>, tally: &Tally, answer: &mut String) {
    tally.count(4);
    let _infallible = match black_box(found) {
        Some(value) => writeln!(answer, "VALUE {value}"),
        None => writeln!(answer, "NONE"),
    };
}

/// The tally as a client reads it: the calls of each function by thread id.
pub(super) type Tallies = HashMap<i32, [u64; FUNCTIONS.len()]>;

/// Asks the server for its tally.
pub(super) fn ask_tally(connection: &mut BufReader<TcpStream>) -> io::Result<Tallies> {
    connection.get_mut().write_all(b"TALLY\n")?;
    let mut tallies = Tallies::new();
    let mut line = String::new();
    loop {
        line.clear();
        if connection.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if line == ".\n" {
            return Ok(tallies);
        }
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("a tally like `{}`", line.trim_end()));
        let mut words = line.split_whitespace();
        let tid = words.next().and_then(|w| w.parse().ok()).ok_or_else(wrong)?;
        let mut calls = [0; FUNCTIONS.len()];
        for call in &mut calls {
            *call = words.next().and_then(|w| w.parse().ok()).ok_or_else(wrong)?;
        }
        tallies.insert(tid, calls);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_answered_and_tallied() {
        static TALLY: Tally = Tally::new();
        let store = Store::default();
        let mut answers = String::new();
        for line in ["GET 1", "SET 1 7", "GET 1", "SET 1 8", "GET", "SET x 1", ""] {
            demo_handle_request(line, &store, &TALLY, &mut answers);
        }
        assert_eq!(answers, "NONE\nVALUE 7\nVALUE 7\nVALUE 7\nNONE\nNONE\nNONE\n");
        assert_eq!(TALLY.calls.each_ref().map(|n| n.load(Ordering::Relaxed)), [7, 7, 2, 2, 7]);
    }
}
