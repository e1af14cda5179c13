//! Waits for code that is not in the caches of a core when it runs. Code of many functions, each of which runs rarely, displaces itself and the code of
//! the program.
//!
//! The model is that of Che, Tung and Wang ("Hierarchical Web Caching Systems", 2002) for a cache that drops what was not used for the longest
//! time: all lines stay for the same time, the one in which as many lines are used as the cache has. A line that is used at random with a known
//! rate is gone at its next use with a probability that follows from this time.

/// A level of the caches.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    /// Number of its lines that code can have.
    lines: f64,
    /// Cycles for a line that is not in this level, but in the next one. Fetches overlap, so this is less than the time of one fetch.
    cycles: f64,
}

/// Two levels displace code: branch predictors and translations of addresses, which hold as much as some thousand lines have, and the second
/// level of the caches, of which half is left to the program. A core fetches ahead from the second level, so the size of the first one, 512 lines,
/// hardly matters. Measured on programs with 50 to 3,000 functions that are called at random: with 600 functions a count costs as much as with 50,
/// and with 3,000 functions four times as much.
const LEVELS: [Level; 2] = [Level { lines: 4096.0, cycles: 16.0 }, Level { lines: 16384.0, cycles: 14.0 }];
/// Number of lines of the program's own that are used together with each line of the code of points.
const OWN_LINES: f64 = 1.0;
/// Mean length of an instruction that takes a slot, in bytes.
const SLOT_BYTES: f64 = 4.5;
/// Length of a line in bytes.
const LINE: f64 = 64.0;
/// Number of slots from which on code stands apart from that of the program: a base trampoline has as many.
const APART: f64 = 6.0;
/// Part of the wait for a line that is left if the line follows another one, because cores fetch the next lines ahead.
const AHEAD: f64 = 0.25;

/// Number of lines for which one run of code waits, with those of its counters.
pub fn lines(slots: f64) -> f64 {
    2.0 * (slots / APART).min(1.0) + AHEAD * slots * SLOT_BYTES / LINE
}

/// For each level, the time in seconds for which a line stays.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Displacement {
    stays: [f64; LEVELS.len()],
}

impl Displacement {
    /// The displacement by code that uses so many lines in a run, and runs so often in a second.
    pub fn by(code: impl Iterator<Item = (f64, f64)> + Clone) -> Self {
        Displacement { stays: LEVELS.map(|level| stay(&code, level.lines)) }
    }

    /// Cycles that code with this rate waits for its lines in a run.
    pub fn cycles(&self, lines: f64, per_s: f64) -> f64 {
        if per_s <= 0.0 {
            return 0.0;
        }
        let wait = |(level, stays): (Level, f64)| level.cycles * (-per_s * stays).exp();
        lines * LEVELS.into_iter().zip(self.stays).map(wait).sum::<f64>()
    }
}

/// The time in seconds in which as many lines are used as a cache has; infinite if it has room for all.
fn stay(code: &(impl Iterator<Item = (f64, f64)> + Clone), room: f64) -> f64 {
    let runs = || code.clone().filter(|(_, per_s)| *per_s > 0.0);
    let used =
        |time: f64| runs().map(|(lines, per_s)| (1.0 + OWN_LINES) * lines * -(-per_s * time).exp_m1()).sum::<f64>();
    if used(f64::INFINITY) <= room {
        return f64::INFINITY;
    }
    // Between a nanosecond and eleven days.
    let (mut low, mut high) = (-9.0_f64, 6.0_f64);
    for _ in 0..24 {
        let middle = f64::midpoint(low, high);
        if used(10f64.powf(middle)) < room { low = middle } else { high = middle }
    }
    10f64.powf(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_that_fits_waits_for_nothing() {
        let few = Displacement::by(std::iter::repeat_n((3.0, 1e6), 50));
        assert_eq!(few.cycles(3.0, 1e6), 0.0);
    }

    #[test]
    fn code_of_many_functions_waits_for_nearly_all_of_its_lines() {
        let many = Displacement::by(std::iter::repeat_n((3.0, 2_700.0), 3_000));
        let cycles = many.cycles(3.0, 2_700.0);
        // 18,000 lines are used in turn, and 4,096 have room.
        assert!((20.0..48.0).contains(&cycles), "{cycles}");
        // A function that runs a thousand times as often as the others stays.
        let hot = many.cycles(3.0, 2_700_000.0);
        assert!(hot < 0.01, "{hot}");
        assert!(many.cycles(3.0, 1.0) > 47.0, "one that hardly runs waits for all");
    }

    #[test]
    fn a_line_that_is_used_at_random_stays_as_long_as_the_others() {
        // One half of the code has room, so about half of the runs find their lines: 1 - e^-t with t = ln 2.
        let lines = LEVELS[0].lines;
        let code = std::iter::repeat_n((1.0, 100.0), (2.0 * lines / (1.0 + OWN_LINES)) as usize);
        let half = Displacement::by(code);
        let share = half.cycles(1.0, 100.0) / LEVELS[0].cycles;
        assert!((share - 0.5).abs() < 0.01, "{share}");
        // Rates that are all multiplied change nothing.
        let code = std::iter::repeat_n((1.0, 1e7), (2.0 * lines / (1.0 + OWN_LINES)) as usize);
        assert!((Displacement::by(code).cycles(1.0, 1e7) / LEVELS[0].cycles - 0.5).abs() < 0.01);
    }
}
