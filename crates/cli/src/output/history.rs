//! The history of a value as one line for people.

use ingraft_model::history::INTERVAL_NS;
use ingraft_model::{Bin, Course, History};

use super::number::{short, time};

/// Width of a curve in columns.
const COLUMNS: usize = 50;
/// Glyphs of a column, from the least to the largest mean.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Glyph of a column without a known interval.
const GAP: char = '·';

/// A curve of the means in at most `COLUMNS` columns, then the least, the mean and the largest amount of any interval. `time_unit` means
/// that the values are times; the rate is then time per time and has this unit.
pub(crate) fn line(history: &History, unit: &str, time_unit: bool) -> String {
    let all = history.columns(1).first().copied().unwrap_or_default();
    if all.intervals == 0 {
        return "nothing yet: it is told after a fifth of a second".to_owned();
    }
    let columns = history.columns(COLUMNS);
    let curve: String = glyphs(&columns).collect();
    let each = history.bins().len().div_ceil(COLUMNS).max(1) as u64;
    let width = time(history.width_ns().saturating_mul(each) as f64);
    let amount = |x: f64| match history.course() {
        Course::Level => format!("{} {unit}", short(x)),
        Course::Total if time_unit => format!("{} {unit}", short(x / INTERVAL_NS as f64)),
        Course::Total => format!("{} {unit}/s", short(x * 1e9 / INTERVAL_NS as f64)),
    };
    let (least, mean, most) = (amount(all.min as f64), amount(average(all)), amount(all.max as f64));
    format!("{curve}  {width} each; least {least}, mean {mean}, most {most}")
}

fn average(bin: Bin) -> f64 {
    bin.sum as f64 / bin.intervals.max(1) as f64
}

fn glyphs(columns: &[Bin]) -> impl Iterator<Item = char> + '_ {
    let most = columns.iter().filter(|c| c.intervals > 0).map(|c| average(*c)).fold(0.0, f64::max);
    columns.iter().map(move |&column| {
        let share = if most > 0.0 { average(column).max(0.0) / most } else { 0.0 };
        let level = (share * (LEVELS.len() - 1) as f64).round() as usize;
        if column.intervals == 0 { GAP } else { LEVELS[level.min(LEVELS.len() - 1)] }
    })
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    fn history(course: Course, values: &[i64]) -> History {
        let mut history = History::new(course, 0, 0, 0);
        let mut value = 0;
        for (i, v) in (1..).zip(values) {
            value = if course == Course::Total { value + v } else { *v };
            history.record(i * INTERVAL_NS, value);
        }
        history
    }

    #[test]
    fn a_curve_and_its_extremes() {
        let text = line(&history(Course::Total, &[0, 1, 2, 4, 8, 4, 2, 1, 0]), "calls", false);
        expect!["▁▂▃▅█▅▃▂▁  200 ms each; least 0 calls/s, mean 12.2 calls/s, most 40 calls/s"].assert_eq(&text);
    }

    #[test]
    fn a_long_one_has_wider_columns() {
        let text = line(&history(Course::Total, &[7; 1200]), "calls", false);
        expect!["██████████████████████████████████████████████████  4.8 s each; least 35 calls/s, mean 35 calls/s, most 35 calls/s"]
            .assert_eq(&text);
    }

    #[test]
    fn levels_and_times() {
        let text = line(&history(Course::Level, &[5, 0, -5, 10]), "bytes", false);
        expect!["▅▁▁█  200 ms each; least -5 bytes, mean 2.5 bytes, most 10 bytes"].assert_eq(&text);
        let text = line(&history(Course::Total, &[100_000_000, 200_000_000]), "CPUs", true);
        expect!["▅█  200 ms each; least 0.5 CPUs, mean 0.75 CPUs, most 1 CPUs"].assert_eq(&text);
    }

    #[test]
    fn nothing_is_said_to_be_nothing() {
        let text = line(&history(Course::Total, &[]), "calls", false);
        expect!["nothing yet: it is told after a fifth of a second"].assert_eq(&text);
    }
}
