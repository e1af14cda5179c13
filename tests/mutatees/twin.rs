//! A Rust program with counted functions: mangled names, generics, panics that unwind through them.
//!
//! work N            calls `twin::shapes::area` N times
//! panic N           N panics caught two counted frames up
use std::io::BufRead;

mod shapes {
    #[inline(never)]
    pub fn area<T: Into<u64> + Copy>(side: T) -> u64 {
        let side: u64 = side.into();
        std::hint::black_box(side * side + 1)
    }
    #[inline(never)]
    pub fn thrower(n: u64) -> u64 {
        if std::hint::black_box(n) != u64::MAX {
            std::panic::resume_unwind(Box::new(n));
        }
        n
    }
    #[inline(never)]
    pub fn middle(n: u64) -> u64 {
        std::hint::black_box(thrower(n)) + 1
    }
}

fn main() {
    let (mut area, mut thrown, mut wrong) = (0u64, 0u64, 0u64);
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let mut words = line.split_whitespace();
        let command = words.next().unwrap_or("");
        let n: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        match command {
            "work" => {
                for i in 0..n {
                    wrong += u64::from(shapes::area(i as u32) != i * i + 1);
                }
                area += n;
            }
            "panic" => {
                for i in 0..n {
                    let caught = std::panic::catch_unwind(|| shapes::middle(i));
                    wrong += u64::from(caught.err().and_then(|value| value.downcast::<u64>().ok()).map(|v| *v) != Some(i));
                }
                thrown += n;
            }
            _ => println!("unknown command {line}"),
        }
        println!("tally area {area}\ntally middle {thrown}\ntally thrower {thrown}\nwrong {wrong}\ndone");
    }
}
