//! Folding histories: the course of a value over any length of time, in limited memory. When all bins are in use, adjacent bins are merged
//! and the bin width doubles (Paradyn's folding histograms; Hollingsworth, Miller, Cargille 1994).

use std::iter;

/// Maximum number of bins of a history. It is even, so that all bins can be merged in pairs.
pub const BINS: usize = 1000;

/// Length of an interval in nanoseconds. It is the bin width until the first fold; a later bin keeps the minimum and the maximum over its
/// intervals.
pub const INTERVAL_NS: u64 = 200_000_000;

/// Kind of the values in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Course {
    /// A growing total. The value of an interval is the increase in it. Between two readings the increase is assumed to be even.
    Total,
    /// A level. The value of an interval is that of the first reading at or after the end of the interval.
    Level,
}

/// Values of successive intervals, summarised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Number of intervals with a value; if 0, the other fields mean nothing.
    pub intervals: u64,
    /// Sum over the intervals, in the metric's unit. Divided by `intervals`, it is the mean.
    pub sum: i64,
    /// The smallest value of an interval.
    pub min: i64,
    /// The largest value of an interval.
    pub max: i64,
}

impl Bin {
    /// Returns a bin of this many intervals with this sum, spread over them as evenly as integers can be.
    fn even(intervals: u64, sum: i64) -> Bin {
        let n = i128::from(intervals).max(1);
        let least = i128::from(sum).div_euclid(n);
        let most = least + i128::from(i128::from(sum).rem_euclid(n) != 0);
        Bin { intervals, sum, min: clamp(least), max: clamp(most) }
    }

    /// Returns the bin of the intervals of both bins.
    #[must_use]
    pub fn plus(self, other: Bin) -> Bin {
        match (self.intervals, other.intervals) {
            (_, 0) => self,
            (0, _) => other,
            _ => Bin {
                intervals: self.intervals + other.intervals,
                sum: self.sum.saturating_add(other.sum),
                min: self.min.min(other.min),
                max: self.max.max(other.max),
            },
        }
    }
}

fn clamp(value: i128) -> i64 {
    i64::try_from(value).unwrap_or(if value < 0 { i64::MIN } else { i64::MAX })
}

/// History of one value since a start time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    course: Course,
    start_ns: u64,
    folds: u32,
    bins: Vec<Bin>,
    /// Number of intervals since the start that are over. Each is in a bin, or ended before the first reading.
    done: u64,
    /// The total at the end of the last interval that is over.
    edge: i64,
    /// The latest reading: its time and its value.
    last: (u64, i64),
}

impl History {
    /// A history that begins at `start_ns` (Unix time in nanoseconds). The first reading is `value` at `now_ns`; a time before the start
    /// counts as the start.
    pub fn new(course: Course, start_ns: u64, now_ns: u64, value: i64) -> History {
        let now_ns = now_ns.max(start_ns);
        let done = (now_ns - start_ns) / INTERVAL_NS;
        History { course, start_ns, folds: 0, bins: Vec::new(), done, edge: value, last: (now_ns, value) }
    }

    /// Records a reading. A reading that is not later than the previous one is ignored: the next reading includes its increase.
    pub fn record(&mut self, now_ns: u64, value: i64) {
        let (then_ns, before) = self.last;
        if now_ns <= then_ns {
            return;
        }
        let over = (now_ns - self.start_ns) / INTERVAL_NS;
        while over > (BINS as u64) << self.folds && self.folds < 63 {
            self.fold();
        }
        while self.done < over {
            // Only the first interval can contain the previous reading, so it may have another value than the rest. All later ones have
            // equal values.
            let first = self.done * INTERVAL_NS + self.start_ns < then_ns;
            let bin = self.done >> self.folds;
            let until = if first { self.done + 1 } else { over.min((bin + 1) << self.folds) };
            let end_ns = self.start_ns + until * INTERVAL_NS;
            let part = i128::from(end_ns - then_ns) * (i128::from(value) - i128::from(before));
            let edge = clamp(i128::from(before) + part / i128::from(now_ns - then_ns));
            let intervals = until - self.done;
            let had = match self.course {
                Course::Total => Bin::even(intervals, edge.saturating_sub(self.edge)),
                Course::Level => Bin {
                    intervals,
                    sum: value.saturating_mul(i64::try_from(intervals).unwrap_or(i64::MAX)),
                    min: value,
                    max: value,
                },
            };
            self.add(bin as usize, had);
            (self.done, self.edge) = (until, edge);
        }
        self.last = (now_ns, value);
    }

    /// Ends the history at the latest reading. The time after the last whole interval becomes a shorter interval of its own.
    pub fn close(&mut self) {
        let (now_ns, value) = self.last;
        if now_ns == self.start_ns + self.done * INTERVAL_NS {
            return;
        }
        if self.done >= (BINS as u64) << self.folds {
            self.fold();
        }
        let had = match self.course {
            Course::Total => Bin::even(1, value.saturating_sub(self.edge)),
            Course::Level => Bin::even(1, value),
        };
        self.add((self.done >> self.folds) as usize, had);
        (self.done, self.edge) = (self.done + 1, value);
    }

    fn add(&mut self, bin: usize, had: Bin) {
        if self.bins.len() <= bin {
            self.bins.resize(bin + 1, Bin::default());
        }
        self.bins[bin] = self.bins[bin].plus(had);
    }

    fn fold(&mut self) {
        self.folds += 1;
        self.bins = self.bins.chunks(2).map(|two| two.iter().fold(Bin::default(), |sum, bin| sum.plus(*bin))).collect();
    }

    /// Start of the history: Unix time in nanoseconds.
    pub fn start_ns(&self) -> u64 {
        self.start_ns
    }

    /// Kind of the values.
    pub fn course(&self) -> Course {
        self.course
    }

    /// Width of each bin in nanoseconds.
    pub fn width_ns(&self) -> u64 {
        INTERVAL_NS.saturating_mul(1 << self.folds.min(63))
    }

    /// The bins from the start on, at most [`BINS`]. The last one may still grow.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Returns the history in at most `columns` columns for display. All but the last merge the same number of bins.
    pub fn columns(&self, columns: usize) -> Vec<Bin> {
        let each = self.bins.len().div_ceil(columns.max(1)).max(1);
        self.bins.chunks(each).map(|some| some.iter().copied().fold(Bin::default(), Bin::plus)).collect()
    }

    /// Rebuilds a history from its parts, for example from a message, to display it. Returns `None` if no history has these parts.
    pub fn from_parts(course: Course, start_ns: u64, width_ns: u64, bins: Vec<Bin>) -> Option<History> {
        let folds = (width_ns / INTERVAL_NS).checked_ilog2()?;
        if bins.len() > BINS || folds > 62 || width_ns != INTERVAL_NS << folds.min(36) {
            return None;
        }
        let done = (bins.len() as u64) << folds;
        let last = start_ns.checked_add(done.checked_mul(INTERVAL_NS)?)?;
        Some(History { course, start_ns, folds, bins, done, edge: 0, last: (last, 0) })
    }

    /// Sum over all bins.
    pub fn sum(&self) -> i64 {
        self.bins.iter().copied().chain(iter::once(Bin::default())).fold(Bin::default(), Bin::plus).sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const I: u64 = INTERVAL_NS;

    fn total() -> History {
        History::new(Course::Total, 0, 0, 0)
    }

    #[test]
    fn an_interval_has_what_was_added_in_it() {
        let mut history = total();
        history.record(I, 10);
        history.record(2 * I, 10);
        history.record(3 * I + 1, 14);
        let sums: Vec<i64> = history.bins().iter().map(|b| b.sum).collect();
        assert_eq!(sums, [10, 0, 3], "the last reading came a moment after the end of its interval");
        assert_eq!(history.width_ns(), I);
    }

    #[test]
    fn what_came_between_readings_is_spread_evenly() {
        let mut history = total();
        history.record(I / 2, 1);
        history.record(4 * I + I / 2, 9);
        let bins: Vec<_> = history.bins().iter().map(|b| b.sum).collect();
        assert_eq!(bins, [2, 2, 2, 2]);
    }

    #[test]
    fn folding_keeps_sums_and_extremes() {
        let mut history = total();
        let mut value = 0;
        for i in 1..=2500u64 {
            value += if i == 700 { 1000 } else { 1 };
            history.record(i * I, value);
        }
        assert_eq!(history.width_ns(), 4 * I);
        assert_eq!(history.bins().len(), 625);
        assert_eq!(history.sum(), value);
        let spike = history.bins()[699 / 4];
        assert_eq!(spike, Bin { intervals: 4, sum: 1003, min: 1, max: 1000 });
    }

    #[test]
    fn a_gap_of_days_costs_no_time() {
        let mut history = total();
        history.record(I, 5);
        history.record(30 * 86_400 * 1_000_000_000, 5_000_000);
        assert!(history.bins().len() <= BINS);
        let complete = history.bins().iter().map(|b| b.intervals).sum::<u64>();
        assert_eq!(complete, 30 * 86_400 * 5);
        assert_eq!(history.sum(), 5_000_000);
    }

    #[test]
    fn levels_are_kept_as_they_were() {
        let mut history = History::new(Course::Level, 0, 0, 0);
        history.record(I, 7);
        history.record(3 * I, 1);
        let bins: Vec<_> = history.bins().iter().map(|b| (b.sum, b.min, b.max)).collect();
        assert_eq!(bins, [(7, 7, 7), (1, 1, 1), (1, 1, 1)]);
    }

    #[test]
    fn who_comes_late_has_nothing_before() {
        let mut history = History::new(Course::Total, 0, 2 * I + 1, 100);
        history.record(4 * I, 130);
        let bins: Vec<_> = history.bins().iter().map(|b| (b.intervals, b.sum)).collect();
        assert_eq!(bins[..2], [(0, 0), (0, 0)]);
        assert_eq!(bins[2].0, 1);
        assert_eq!(history.sum(), 30);
    }

    #[test]
    fn an_end_in_the_middle_of_an_interval_loses_nothing() {
        let mut history = total();
        history.record(2 * I + I / 4, 9);
        history.close();
        assert_eq!((history.sum(), history.bins().len()), (9, 3));
        let mut full = total();
        (1..=BINS as u64).for_each(|i| full.record(i * I, i as i64));
        full.close();
        assert_eq!(full.bins().len(), BINS, "nothing was open");
        full.record(BINS as u64 * I + 1, 2000);
        full.close();
        assert_eq!((full.sum(), full.bins().len()), (2000, BINS / 2 + 1));
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing() {
        let mut history = total();
        history.record(2 * I, 2);
        history.record(I, 3);
        history.record(3 * I, 4);
        assert_eq!(history.sum(), 4);
    }

    #[test]
    fn what_is_told_comes_back() {
        let mut history = total();
        (1..5000u64).for_each(|i| history.record(i * I, i as i64));
        let back = History::from_parts(Course::Total, 0, history.width_ns(), history.bins().to_vec()).unwrap();
        assert_eq!((back.bins(), back.width_ns()), (history.bins(), history.width_ns()));
        assert_eq!(History::from_parts(Course::Total, 0, 1, Vec::new()), None);
        assert_eq!(History::from_parts(Course::Total, 0, 3 * I, Vec::new()), None);
        assert_eq!(History::from_parts(Course::Total, 0, u64::MAX, Vec::new()), None);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_whenever_it_is_read(steps in prop::collection::vec((1u64..1 << 36, -1000i64..1_000_000), 1..400)) {
            let mut history = History::new(Course::Total, 17, 17, -5);
            let (mut now, mut value) = (17, -5);
            for (time, more) in steps {
                now += time;
                value += more;
                history.record(now, value);
            }
            // Record a last reading after the end of the interval that is not over.
            history.record(now.next_multiple_of(I) + 17 + I, value);
            prop_assert_eq!(history.sum(), value + 5);
            prop_assert!(history.bins().len() <= BINS);
            for bin in history.bins() {
                let n = bin.intervals as i64;
                prop_assert!(bin.min.saturating_mul(n) <= bin.sum && bin.sum <= bin.max.saturating_mul(n));
            }
            let columns = history.columns(40);
            prop_assert!(columns.len() <= 40);
            prop_assert_eq!(columns.iter().map(|b| b.sum).sum::<i64>(), history.sum());
        }
    }
}
