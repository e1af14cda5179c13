//! Threads that wait for locks of the standard library of Rust.
//!
//! hold N MS   N rounds. In each, `l_takes` waits for a mutex that another thread holds for MS milliseconds from when this one is about to wait, then
//!             `l_reads` for a read-write lock that another thread holds as a writer.
//! The answer has a line for each function: `waited FUNCTION NS`, by the clock of the thread that waits.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

static STOCK: Mutex<u64> = Mutex::new(0);
static PRICES: RwLock<u64> = RwLock::new(0);
/// Whether the other thread has the lock, and whether this one is about to wait.
static IS_HELD: AtomicBool = AtomicBool::new(false);
static WAITS: AtomicBool = AtomicBool::new(false);

fn until(flag: &AtomicBool) {
    while !flag.load(Ordering::SeqCst) {
        thread::yield_now();
    }
}

/// Keeps a lock until the other thread has waited for so long.
fn keep(time: Duration) {
    IS_HELD.store(true, Ordering::SeqCst);
    until(&WAITS);
    thread::sleep(time);
}

#[inline(never)]
#[unsafe(no_mangle)]
fn l_takes() {
    *STOCK.lock().unwrap() += 1;
}

#[inline(never)]
#[unsafe(no_mangle)]
fn l_reads() -> u64 {
    *PRICES.read().unwrap()
}

/// Time for which a function waits while another thread holds the lock.
fn waited(waits: impl FnOnce(), holds: impl FnOnce() + Send + 'static) -> Duration {
    IS_HELD.store(false, Ordering::SeqCst);
    WAITS.store(false, Ordering::SeqCst);
    let holder = thread::spawn(holds);
    until(&IS_HELD);
    let begin = Instant::now();
    WAITS.store(true, Ordering::SeqCst);
    waits();
    let time = begin.elapsed();
    holder.join().unwrap();
    time
}

fn main() {
    println!("ready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [rounds, ms] = numbers[..] else { std::process::exit(2) };
        let time = Duration::from_millis(ms);
        let (mut taken, mut read) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..rounds {
            taken += waited(l_takes, move || {
                let _held = STOCK.lock().unwrap();
                keep(time);
            });
            read += waited(
                || {
                    l_reads();
                },
                move || {
                    let _held = PRICES.write().unwrap();
                    keep(time);
                },
            );
        }
        println!("waited l_takes {}\nwaited l_reads {}\ndone", taken.as_nanos(), read.as_nanos());
    }
}
