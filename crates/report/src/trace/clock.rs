//! The clock of a trace: converts the stamps of entries to Unix time.
//!
//! Each chunk tells the clock's ticks and Unix time at one moment. Between two such moments, time is interpolated, so the result does not
//! drift from the machine's clock however long the trace is. Before the first and after the last one, the scale of the file is used.

use ingraft_model::Scale;

use crate::trace::TraceChunk;

/// Shortest time in nanoseconds between two moments that are kept, except for the last one.
const APART_NS: u64 = 1_000_000_000;

/// The clock of a trace.
#[derive(Clone, Debug)]
pub struct TraceClock {
    scale: Scale,
    /// Ticks and Unix time in nanoseconds; both ascend.
    moments: Vec<(u64, u64)>,
}

impl TraceClock {
    /// A clock whose ticks have this length.
    pub fn new(scale: Scale) -> Self {
        TraceClock { scale, moments: Vec::new() }
    }

    /// Takes in the moment at which a chunk was read. A moment before the last one is left out.
    pub fn note(&mut self, chunk: &TraceChunk) {
        let new = (chunk.ticks, chunk.time_ns);
        if self.moments.last().is_some_and(|last| new.0 <= last.0 || new.1 <= last.1) || chunk.ticks == 0 {
            return;
        }
        if let [.., before, last] = self.moments.as_mut_slice()
            && last.1 - before.1 < APART_NS
        {
            *last = new;
        } else {
            self.moments.push(new);
        }
    }

    /// Unix time in nanoseconds of a stamp; `None` if no chunk tells a moment.
    pub fn unix_ns(&self, stamp: u64) -> Option<u64> {
        let after = self.moments.partition_point(|moment| moment.0 <= stamp);
        let before = after.checked_sub(1).and_then(|at| self.moments.get(at));
        Some(match (before, self.moments.get(after)) {
            (Some(a), Some(b)) => {
                let part = u128::from(stamp - a.0) * u128::from(b.1 - a.1) / u128::from(b.0 - a.0);
                a.1 + u64::try_from(part).unwrap_or(u64::MAX)
            }
            (Some(a), None) => a.1.saturating_add(self.scale.apply(stamp - a.0)),
            (None, Some(b)) => b.1.saturating_sub(self.scale.apply(b.0 - stamp)),
            (None, None) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clock(moments: &[(u64, u64)]) -> TraceClock {
        // A tick is half a nanosecond.
        let mut clock = TraceClock::new(Scale { mult: 1, shift: 1 });
        let chunk = |&(ticks, time_ns): &(u64, u64)| TraceChunk { ticks, time_ns, ..TraceChunk::default() };
        moments.iter().for_each(|moment| clock.note(&chunk(moment)));
        clock
    }

    #[test]
    fn time_is_interpolated_between_moments() {
        let clock = clock(&[(1000, 5000), (3000, 7000)]);
        let times = [1000, 1500, 3000, 3002, 998].map(|stamp| clock.unix_ns(stamp));
        assert_eq!(times, [5000, 5500, 7000, 7001, 4999].map(Some));
    }

    #[test]
    fn moments_that_are_close_are_left_out_but_the_last() {
        let moments: Vec<_> = (1..=2500).map(|n| (2_000_000 * n, 1_000_000 * n)).collect();
        let clock = clock(&moments);
        assert!(clock.moments.len() <= 5, "{:?}", clock.moments);
        assert_eq!(clock.moments.last(), moments.last());
    }

    #[test]
    fn moments_that_go_back_are_left_out() {
        let clock = clock(&[(0, 9), (1000, 5000), (900, 6000), (2000, 4000), (2000, 6000)]);
        assert_eq!(clock.moments, [(1000, 5000), (2000, 6000)]);
        assert_eq!(TraceClock::new(Scale::ONE).unix_ns(1), None);
    }
}
