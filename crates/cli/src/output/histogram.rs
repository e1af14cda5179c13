//! A distribution for people: quantiles, and a histogram of a few lines on a logarithmic scale.

use ingraft_model::Distribution;

use super::number::grouped_u64;
use super::table::TextTable;

/// The quantiles in tables, by name.
pub(crate) const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];

/// Largest number of histograms that are drawn without being asked for.
pub(crate) const HANDFUL: usize = 5;

/// Largest number of lines of a histogram, unless its values span too many sizes even for the coarsest bins.
const LINES: usize = 20;
/// Width of the longest bar in columns, if there is room.
const BAR: usize = 40;
/// Width of the columns before the bars.
const FIGURES: usize = 40;

/// First values of the bins of a decade, in tenths of its first value; the sets of bins go from fine to coarse. The numbers are easy to
/// read.
const STEPS: [&[u64]; 4] = [
    &[10, 12, 14, 16, 18, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90],
    &[10, 15, 20, 30, 40, 50, 70],
    &[10, 20, 50],
    &[10],
];

/// A bin of a drawn histogram: the number of values from `first` (inclusive) to `end` (exclusive).
#[derive(Debug, PartialEq, Eq)]
struct DrawnBin {
    first: u64,
    end: u64,
    count: u64,
}

/// Renders one line for each bin. `what` is the title of the counts; `quantity` formats a value with its unit.
pub(crate) fn render(d: &Distribution, what: &str, quantity: impl Fn(u64) -> String, width: Option<usize>) -> String {
    let bins = bins(d);
    let largest = bins.iter().map(|bin| bin.count).max().unwrap_or(0).max(1);
    let columns = width.map_or(BAR, |width| width.saturating_sub(FIGURES).clamp(LINES / 2, BAR));
    let mut table = TextTable::new().right("FROM").right("TO").right(what).right("SHARE").left("");
    for DrawnBin { first, end, count } in bins {
        let bar = bar(count as f64 / largest as f64 * columns as f64);
        let share = share(count, d.count);
        table.row(vec![
            quantity(first).into(),
            quantity(end).into(),
            grouped_u64(count).into(),
            share.into(),
            bar.into(),
        ]);
    }
    table.render(width)
}

/// A part as a share of the whole, short enough for a column; empty for a part of 0.
pub(crate) fn share(count: u64, all: u64) -> String {
    match 100.0 * count as f64 / all as f64 {
        _ if count == 0 => String::new(),
        percent if percent < 0.05 => "< 0.1 %".to_owned(),
        percent => format!("{percent:.1} %"),
    }
}

/// A bar of this many columns, drawn in eighths; at least one eighth if the number is not 0.
fn bar(columns: f64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (columns * 8.0).round().max(if columns > 0.0 { 1.0 } else { 0.0 }) as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

/// The bins from the smallest to the largest value, as fine as the number of lines allows. Adjacent bins without a value are merged. The
/// bounds of bins differ from those of the distribution's buckets, so a value near a bound may be counted on the other side of it.
fn bins(d: &Distribution) -> Vec<DrawnBin> {
    if d.count == 0 {
        return Vec::new();
    }
    let mut candidates = STEPS.iter().map(|steps| bins_between(d, &bounds(steps, d.min, d.max)));
    candidates.find(|bins| bins.len() <= LINES).unwrap_or_else(|| bins_between(d, &bounds(&[10], d.min, d.max)))
}

fn bins_between(d: &Distribution, bounds: &[u64]) -> Vec<DrawnBin> {
    let mut out: Vec<DrawnBin> = Vec::new();
    let mut below = 0;
    for pair in bounds.windows(2) {
        let (first, end) = (pair[0], pair[1]);
        let until = if end > d.max { d.count } else { d.count_below(end) };
        let count = until - std::mem::replace(&mut below, until);
        match out.last_mut() {
            Some(gap) if gap.count == 0 && count == 0 => gap.end = end,
            _ => out.push(DrawnBin { first, end, count }),
        }
    }
    out
}

/// The bounds of the bins that contain all values from `min` to `max`.
fn bounds(steps: &[u64], min: u64, max: u64) -> Vec<u64> {
    let decades = (0..20).map(|exponent| 10_u128.pow(exponent));
    let numbers = decades.flat_map(|decade| steps.iter().map(move |&step| (decade * u128::from(step)).div_ceil(10)));
    let mut all: Vec<u64> = std::iter::once(0).chain(numbers.map_while(|n| u64::try_from(n).ok())).collect();
    // In the first decade the finest steps are less than one unit apart, so some bounds are equal.
    all.dedup();
    all.push(u64::MAX);
    let first = all.partition_point(|&bound| bound <= min).saturating_sub(1);
    let end = all.partition_point(|&bound| bound <= max).min(all.len() - 1);
    all[first..=end].to_vec()
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;
    use crate::fake::distribution;
    use crate::output::number::time;

    fn check(values: impl IntoIterator<Item = u64>, width: Option<usize>, expected: Expect) {
        let text = render(&distribution(values), "CALLS", |ns| time(ns as f64), width);
        expected.assert_eq(&anstream::adapter::strip_str(&text).to_string());
    }

    #[test]
    fn narrow_values_have_fine_bins() {
        check(
            (1000..1400).chain(1500..1600),
            None,
            expect![[r#"
              FROM      TO  CALLS   SHARE
              1 µs  1.2 µs    200  40.0 %  ████████████████████████████████████████
            1.2 µs  1.4 µs    194  38.8 %  ██████████████████████████████████████▊
            1.4 µs  1.6 µs    106  21.2 %  █████████████████████▎
        "#]],
        );
    }

    #[test]
    fn wide_values_have_coarse_bins() {
        let fast = (0..10_000).map(|i| 800 + i % 1000);
        check(
            fast.chain([30_000, 2_000_000_000]),
            Some(60),
            expect![[r#"
              FROM      TO  CALLS    SHARE
            800 ns  900 ns  1,000   10.0 %  ██████████
            900 ns    1 µs  1,000   10.0 %  ██████████
              1 µs  1.2 µs  2,000   20.0 %  ████████████████████
            1.2 µs  1.4 µs  2,000   20.0 %  ████████████████████
            1.4 µs  1.6 µs  2,000   20.0 %  ████████████████████
            1.6 µs  1.8 µs  1,940   19.4 %  ███████████████████▍
            1.8 µs    2 µs     60    0.6 %  ▋
              2 µs   30 µs      0
             30 µs   35 µs      1  < 0.1 %  ▏
             35 µs     2 s      0
               2 s   2.5 s      1  < 0.1 %  ▏
        "#]],
        );
    }

    #[test]
    fn one_value() {
        check(
            [7],
            None,
            expect![[r#"
            FROM    TO  CALLS    SHARE
            7 ns  8 ns      1  100.0 %  ████████████████████████████████████████
        "#]],
        );
    }

    #[test]
    fn no_value() {
        check([], None, expect![]);
    }

    #[test]
    fn nothing_is_lost_and_lines_are_few() {
        for values in
            [vec![0], vec![0, u64::from(u32::MAX)], (0..5000).map(|i| i * i * i).collect(), vec![u64::MAX >> 1]]
        {
            let d = distribution(values.iter().copied());
            let bins = bins(&d);
            assert_eq!(bins.iter().map(|bin| bin.count).sum::<u64>(), values.len() as u64);
            assert!(bins.len() <= LINES && bins[0].count > 0 && bins[bins.len() - 1].count > 0, "{bins:?}");
        }
        let all_sizes = distribution((0..44).map(|bits| 1 << bits));
        assert!(bins(&all_sizes).len() <= LINES);
    }
}
