//! The thread that looks at the contexts of threads ([`ContextLooks`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant};

use ingraft_model::Tid;
use ingraft_process::{SharedArea, Target, own_processor_time, run_promptly, thread_exists};

use crate::readings::looks::ContextLooks;
use crate::readings::values::Shards;

/// Mean time between two rounds of looks, if they take little time.
const PERIOD: Duration = Duration::from_millis(1);
/// Number of times that the mean time between two rounds is longer than a round: they take at most this part of a processor.
const SHARE: u32 = 50;
/// Number of rounds whose time is taken together.
const ROUNDS: u32 = 32;

/// A thread that looks at the contexts of threads until this is dropped.
pub struct LookingThread {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LookingThread {
    /// Starts to look. `own_ids` says whether the owners of shards are ids of threads of the target, as the engine sees them. Fails if the engine can
    /// have no further thread.
    pub fn start(
        looks: Arc<ContextLooks>,
        (area, target): (Arc<SharedArea>, Arc<Target>),
        own_ids: bool,
    ) -> std::io::Result<Self> {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let work = move || {
            run_promptly();
            let mut random = RandomShares::new(target.pid().0.unsigned_abs().into());
            let (begin, mut spent) = (Instant::now(), own_processor_time());
            let mut period = PERIOD;
            let mut rounds = (1..=ROUNDS).cycle();
            // A process that has ended has no contexts, but its area still has the last ones.
            while !target.ends_within(Duration::ZERO) {
                // The looks of the last round are taken after the thread was told to end.
                let is_last = over.load(Ordering::Acquire);
                let claims = Shards::claims(&*area);
                let lives = |owner: u64| !own_ids || thread_exists(target.pid(), Tid(owner as i32));
                looks.round(begin.elapsed(), &claims, lives, |shard, counter| Shards::load(&*area, shard, counter));
                if is_last {
                    return;
                }
                if rounds.next() == Some(ROUNDS) {
                    let now = own_processor_time();
                    period = period_of(now.saturating_sub(spent));
                    spent = now;
                }
                // A pause at random, so that no program runs in step with the looks.
                park_timeout(period.mul_f64(0.5 + random.next()));
            }
        };
        let thread = std::thread::Builder::new().name("looks".to_owned()).spawn(work)?;
        Ok(LookingThread { is_over, thread: Some(thread) })
    }
}

impl Drop for LookingThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread ends within microseconds. An error would be a panic in it, which it reports itself.
            let _ = thread.join();
        }
    }
}

/// Mean time between two rounds, if [`ROUNDS`] of them have taken so much time of the processor.
fn period_of(spent: Duration) -> Duration {
    PERIOD.max(spent * SHARE / ROUNDS)
}

/// Pseudo-random numbers from 0 to 1 (xorshift64*).
struct RandomShares(u64);

impl RandomShares {
    fn new(seed: u64) -> Self {
        // Zero would stay zero. The odd number spreads seeds that are close to each other.
        RandomShares(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f64 / (1_u64 << 24) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_shares_are_spread_evenly() {
        let mut random = RandomShares::new(7);
        let shares: Vec<f64> = (0..10_000).map(|_| random.next()).collect();
        let mean = shares.iter().sum::<f64>() / 10_000.0;
        assert!((0.48..0.52).contains(&mean), "{mean}");
        let of = |tenth: u32| shares.iter().filter(|share| (**share * 10.0) as u32 == tenth).count();
        assert!((0..10).all(|tenth| (850..1150).contains(&of(tenth))));
    }

    #[test]
    fn looks_take_a_fiftieth_of_a_processor() {
        assert_eq!(period_of(Duration::from_micros(5) * ROUNDS), PERIOD);
        assert_eq!(period_of(Duration::from_micros(200) * ROUNDS), Duration::from_millis(10));
    }
}
