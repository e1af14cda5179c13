//! The thread that looks at the contexts of threads ([`ContextLooks`]), and at the holders of locks ([`HolderLooks`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, park_timeout};
use std::time::{Duration, Instant};

use ingraft_model::contexts::CURRENT;
use ingraft_model::{Avma, Tid};
use ingraft_process::{SharedArea, Target, TickClock, own_processor_time, run_promptly, thread_exists};

use crate::readings::looks::ContextLooks;
use crate::readings::values::Shards;

use super::holders::HolderLooks;

/// Mean time between two rounds of looks, if they take little time.
const PERIOD: Duration = Duration::from_millis(1);
/// Number of times that the mean time between two rounds is longer than a round: they take at most this part of a processor.
const SHARE: u32 = 50;
/// Number of bytes of a lock that are read.
const LOCK_LEN: usize = 32;
/// Number of rounds whose time is taken together.
const ROUNDS: u32 = 32;

/// Looks that a thread takes.
#[derive(Clone, Default)]
pub struct TakenLooks {
    /// Looks at the contexts of threads.
    pub contexts: Option<Arc<ContextLooks>>,
    /// Looks at the holders of locks.
    pub holders: Option<Arc<HolderLooks>>,
    /// The clock of the times that records of calls which wait for locks keep; `None` if they keep none.
    pub clock: Option<TickClock>,
}

impl TakenLooks {
    /// The counters that a round should read at one moment in the shard of each thread.
    fn counters(&self) -> Vec<u32> {
        // Both are about one tree.
        let current = self.contexts.as_ref().map(|looks| looks.first() + CURRENT);
        let current = current.or_else(|| self.holders.as_ref().map(|looks| looks.current()));
        let lock = self.holders.as_ref().map(|looks| looks.lock());
        lock.into_iter().chain(current).collect()
    }
}

/// Counters of the shards of all threads, read at once: as long as a round lasts, it may keep a thread of the target from running, and what others do
/// meanwhile is no matter of looks.
struct LookedShards<'c> {
    counters: &'c [u32],
    /// The values by shard, in the order of the shards.
    values: Vec<(u32, Vec<i64>)>,
}

impl<'c> LookedShards<'c> {
    fn take(counters: &'c [u32], claims: &[(u32, u64)], load: impl Fn(u32, u32) -> i64) -> Self {
        let of = |(shard, _): &(u32, u64)| (*shard, counters.iter().map(|counter| load(*shard, *counter)).collect());
        LookedShards { counters, values: claims.iter().map(of).collect() }
    }

    /// The first bytes of the locks whose addresses are the values of a counter.
    fn locks(&self, counter: u32, target: &Target) -> Vec<(u64, [u8; LOCK_LEN])> {
        let values = self.values.iter().filter_map(|(shard, _)| self.value(*shard, counter));
        let mut all: Vec<u64> = values.map(i64::cast_unsigned).filter(|lock| *lock != 0).collect();
        all.sort_unstable();
        all.dedup();
        let read = |lock: u64| {
            let mut bytes = [0; LOCK_LEN];
            target.read(Avma(lock), &mut bytes).ok().map(|()| (lock, bytes))
        };
        all.into_iter().filter_map(read).collect()
    }

    /// The value of a counter; `None` if it was not read.
    fn value(&self, shard: u32, counter: u32) -> Option<i64> {
        let n = self.counters.iter().position(|of| *of == counter)?;
        let at = self.values.binary_search_by_key(&shard, |(shard, _)| *shard).ok()?;
        self.values.get(at)?.1.get(n).copied()
    }
}

/// A thread that looks at the threads of a target until this is dropped.
pub struct LookingThread {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LookingThread {
    /// Starts to look. `own_ids` says whether the owners of shards are ids of threads of the target, as the engine sees them. Fails if the engine can
    /// have no further thread.
    pub fn start(
        looks: TakenLooks,
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
            let counters = looks.counters();
            let read = |shard, counter| Shards::load(&*area, shard, counter);
            let (mut claims, mut due) = (Shards::claims(&*area), Duration::ZERO);
            // A process that has ended has no contexts, but its area still has the last ones.
            while !target.ends_within(Duration::ZERO) {
                let snapshot = LookedShards::take(&counters, &claims, read);
                let of_locks = |of: &Arc<HolderLooks>| snapshot.locks(of.lock(), &target);
                let locks = looks.holders.as_ref().map(of_locks).unwrap_or_default();
                let now = begin.elapsed();
                let late = now.saturating_sub(due);
                let ticks = looks.clock.as_ref().map(TickClock::ticks);
                // The looks of the last round are taken after the thread was told to end.
                let is_last = over.load(Ordering::Acquire);
                claims = Shards::claims(&*area);
                let lives = |owner: u64| !own_ids || thread_exists(target.pid(), Tid(owner as i32));
                let load = |shard, counter| snapshot.value(shard, counter).unwrap_or_else(|| read(shard, counter));
                if let Some(looks) = &looks.contexts {
                    looks.round(now, &claims, lives, load);
                }
                let was_due = |shard| {
                    let Some((clock, ticks)) = looks.clock.as_ref().zip(ticks) else { return true };
                    let age = area.last_kept(shard).map(|since| clock.scale().apply(ticks.saturating_sub(since)));
                    age.is_none_or(|ns| Duration::from_nanos(ns) > late)
                };
                if let Some(looks) = &looks.holders {
                    let id_at = |lock, offset| {
                        let (_, bytes) = locks.get(locks.binary_search_by_key(&lock, |(of, _)| *of).ok()?)?;
                        Some(u32::from_le_bytes(bytes.get(offset..)?.first_chunk().copied()?))
                    };
                    looks.round(now, &claims, load, id_at, was_due);
                }
                if is_last {
                    return;
                }
                if rounds.next() == Some(ROUNDS) {
                    let now = own_processor_time();
                    period = period_of(now.saturating_sub(spent));
                    spent = now;
                }
                // A pause at random, so that no program runs in step with the looks.
                let pause = period.mul_f64(0.5 + random.next());
                due = begin.elapsed() + pause;
                park_timeout(pause);
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
