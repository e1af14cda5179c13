//! Clients that keep a server busy: the numbers of their requests, the longest wait for an answer, and the requests that failed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::servers::LoadedServer;

/// Number of clients.
pub const CLIENTS: usize = 2;
/// Number of requests that a client makes before it looks whether it shall wait.
const BATCH: usize = 10;
/// Shortest and longest rest of a client after a batch.
const REST_MIN: Duration = Duration::from_millis(1);
const REST_MAX: Duration = Duration::from_millis(5);
/// Number of failed requests after which a client gives up.
const FAILURES_MAX: usize = 5;

/// State that the clients of a server share with the command that measures it.
#[derive(Default)]
pub struct ServerLoad {
    /// Number of answers.
    answered: AtomicU64,
    /// Longest wait for an answer in nanoseconds since the last reading.
    longest_ns: AtomicU64,
    /// Time in nanoseconds for which the machine has let a thread wait that only sleeps, since the last reading.
    starved_ns: AtomicU64,
    /// Messages of requests that failed since the last reading.
    failures: Mutex<Vec<String>>,
    /// Whether the clients shall end.
    pub stop: AtomicBool,
    /// Whether the clients shall make no requests now.
    paused: AtomicBool,
    /// Number of clients that are making requests.
    busy: AtomicUsize,
}

impl ServerLoad {
    /// Makes requests until [`ServerLoad::stop`] is set.
    pub fn keep_busy(&self, server: &dyn LoadedServer, client: usize) {
        let mut failures = 0;
        while !self.stop.load(Ordering::SeqCst) && failures < FAILURES_MAX {
            self.busy.fetch_add(1, Ordering::SeqCst);
            let (waits, began) = (self.paused.load(Ordering::SeqCst), Instant::now());
            if !waits && !self.request(server, client, BATCH) {
                failures += 1;
            }
            self.busy.fetch_sub(1, Ordering::SeqCst);
            // A client rests as long as it has worked, so that the command that measures finds a processor.
            std::thread::sleep(began.elapsed().clamp(REST_MIN, REST_MAX));
        }
    }

    /// Notes until [`ServerLoad::stop`] is set how long the machine lets a thread wait for a processor: other work, or the host of a virtual
    /// machine, may delay requests too.
    pub fn watch_machine(&self) {
        const SLEEP: Duration = Duration::from_millis(20);
        const USUAL: Duration = Duration::from_millis(100);
        while !self.stop.load(Ordering::SeqCst) {
            let began = Instant::now();
            std::thread::sleep(SLEEP);
            let took = began.elapsed();
            if took > USUAL {
                self.starved_ns.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::SeqCst);
            }
        }
    }

    /// Makes `count` requests, and returns whether all of them got the right answer.
    pub fn request(&self, server: &dyn LoadedServer, client: usize, count: usize) -> bool {
        let mut sent = Instant::now();
        let mut answered = || {
            let now = Instant::now();
            let waited = u64::try_from((now - sent).as_nanos()).unwrap_or(u64::MAX);
            sent = now;
            self.longest_ns.fetch_max(waited, Ordering::SeqCst);
            self.answered.fetch_add(1, Ordering::SeqCst);
        };
        let made = catch_unwind(AssertUnwindSafe(|| server.request(client, count, &mut answered)));
        let Err(panic) = &made else { return true };
        let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a panic without a message").to_owned();
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
        false
    }

    /// Makes the clients wait, and returns when none of them waits for an answer any more.
    pub fn pause(&self) {
        self.paused.store(true, Ordering::SeqCst);
        ingraft_testing::wait_until("all requests are answered", || self.busy.load(Ordering::SeqCst) == 0);
    }

    /// Lets the clients go on.
    pub fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
    }

    /// Number of answers so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::SeqCst)
    }

    /// Longest wait for an answer since the last call of this function.
    pub fn take_longest(&self) -> Duration {
        Duration::from_nanos(self.longest_ns.swap(0, Ordering::SeqCst))
    }

    /// Time for which the machine has let a sleeping thread wait since the last call of this function.
    pub fn take_starved(&self) -> Duration {
        Duration::from_nanos(self.starved_ns.swap(0, Ordering::SeqCst))
    }

    /// Messages of the requests that failed since the last call of this function.
    pub fn take_failures(&self) -> Vec<String> {
        std::mem::take(&mut self.failures.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
