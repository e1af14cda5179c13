//! A Rust program with functions that end by jumps to other functions.
//!
//! run N US          N calls of `tails::work::direct` and of `tails::work::through`; the last function of each sleeps for US microseconds
//! The answer has `ns FUNCTION TIME`, from right before each call to right after it, and `tally FUNCTION CALLS`.
use std::io::BufRead;
use std::time::{Duration, Instant};

mod work {
    use super::*;

    #[inline(never)]
    pub fn slow(us: u64) -> u64 {
        std::thread::sleep(Duration::from_micros(us));
        std::hint::black_box(us) + 1
    }

    #[inline(never)]
    pub fn direct(us: u64) -> u64 {
        slow(us ^ 1)
    }

    #[inline(never)]
    pub fn middle(us: u64) -> u64 {
        slow(us + 2)
    }

    #[inline(never)]
    pub fn through(us: u64) -> u64 {
        if us == 3 {
            return 0;
        }
        middle(us - 1)
    }
}

fn main() {
    let mut accounts = [("direct", 0_u128, 0_u64), ("through", 0, 0)];
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["run", n, us] = words[..] {
            let (n, us): (u64, u64) = (n.parse().expect("a number"), us.parse().expect("a number"));
            for _ in 0..n {
                for (account, call) in accounts.iter_mut().zip([work::direct, work::through]) {
                    let begin = Instant::now();
                    std::hint::black_box(call(std::hint::black_box(us)));
                    account.1 += begin.elapsed().as_nanos();
                    account.2 += 1;
                }
            }
        }
        for (name, ns, calls) in accounts {
            println!("ns {name} {ns}");
            println!("tally {name} {calls}");
        }
        println!("done");
    }
}
