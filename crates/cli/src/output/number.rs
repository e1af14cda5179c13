//! Numbers, formatted for people.

use std::borrow::Cow;
use std::time::Duration;

/// Formats a number with thousands separators: `1,234,567`.
pub(crate) fn grouped(n: i64) -> String {
    let digits = n.unsigned_abs().to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if n < 0 {
        out.push('-');
    }
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Formats a size or a count with thousands separators.
pub(crate) fn grouped_u64(n: u64) -> String {
    grouped(i64::try_from(n).unwrap_or(i64::MAX))
}

/// Cell of a number that is not known.
pub(crate) const UNKNOWN: &str = "?";

/// Formats a sum over the blocks of a function: as a bound if it is not the whole, because some blocks have no count.
pub(crate) fn sum_of_known(sum: u64, is_whole: bool) -> String {
    match (is_whole, sum) {
        (true, _) => grouped_u64(sum),
        (false, 0) => UNKNOWN.to_owned(),
        (false, _) => format!("≥{}", grouped_u64(sum)),
    }
}

/// Formats a rate or another quantity that was not counted: whole numbers from 100 on, otherwise about three digits.
pub(crate) fn short(x: f64) -> String {
    let magnitude = x.abs();
    if magnitude >= 99.95 {
        grouped(x.round() as i64)
    } else if magnitude >= 9.995 {
        trim(format!("{x:.1}"))
    } else if magnitude < 0.005 {
        // Two digits of a small number, such as a part of a processor.
        let digits = if magnitude > 0.0 { 1.0 - magnitude.log10().floor() } else { 0.0 };
        trim(format!("{x:.0$}", digits.clamp(0.0, 6.0) as usize))
    } else {
        trim(format!("{x:.2}"))
    }
}

/// The singular of a unit: `query` of `queries`, `call` of `calls`.
pub(crate) fn singular(unit: &str) -> Cow<'_, str> {
    if let Some(stem) = unit.strip_suffix("ies") {
        return format!("{stem}y").into();
    }
    let hissing = ["sses", "shes", "ches", "xes"].iter().any(|end| unit.ends_with(end));
    let is_plural = !unit.ends_with("ss") && !unit.ends_with("us");
    let stem = if hissing { unit.strip_suffix("es") } else { unit.strip_suffix('s').filter(|_| is_plural) };
    stem.unwrap_or(unit).into()
}

/// Formats nanoseconds in about three digits: `7 ns`, `1.25 µs`, `31.4 ms`, `2.1 s`.
pub(crate) fn time(ns: f64) -> String {
    // A unit ends where its number would be rounded to 1,000.
    let (number, unit) = match ns {
        ns if ns < 999.5 => (ns, "ns"),
        ns if ns < 999.5e3 => (ns / 1e3, "µs"),
        ns if ns < 999.5e6 => (ns / 1e6, "ms"),
        ns => (ns / 1e9, "s"),
    };
    format!("{} {unit}", short(number))
}

/// Formats a value of a metric with its unit; nanoseconds are formatted in the unit that fits.
pub(crate) fn quantity(value: u64, unit: &str) -> String {
    if unit == "nanoseconds" { time(value as f64) } else { format!("{} {unit}", grouped_u64(value)) }
}

fn trim(text: String) -> String {
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short.is_empty() || short == "-" || short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// Formats a share: `0.3 %`.
pub(crate) fn percent(p: f64) -> String {
    match p {
        p if p >= 10.0 => format!("{p:.0} %"),
        p if p >= 0.1 => format!("{p:.1} %"),
        p if p >= 0.01 => format!("{p:.2} %"),
        _ => "less than 0.01 %".to_owned(),
    }
}

/// Variance of a share that `n` independent samples give: that of a binomial distribution. If all samples or none fall on the part, they do
/// not prove a share of 1 or 0. The variance is then that of the shares from which such samples come, if all shares are equally likely before.
pub(crate) fn share_variance(share: f64, n: f64) -> f64 {
    if n <= 0.0 {
        0.0
    } else if share <= 0.0 || share >= 1.0 {
        (n + 1.0) / ((n + 2.0).powi(2) * (n + 3.0))
    } else {
        share * (1.0 - share) / n
    }
}

/// Formats milliseconds: `0.82 ms`, `31 ms`, `2.1 s`.
pub(crate) fn millis(ms: f64) -> String {
    match ms {
        ms if ms >= 1000.0 => format!("{:.1} s", ms / 1000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms if ms >= 1.0 => format!("{ms:.1} ms"),
        ms if ms >= 0.001 => format!("{ms:.2} ms"),
        _ => "0 ms".to_owned(),
    }
}

/// Formats a size in bytes: `512 B`, `4 KiB`, `1.5 MiB`.
pub(crate) fn bytes(n: u64) -> String {
    match n {
        n if n < 1024 => format!("{n} B"),
        n if n < 1024 * 1024 => format!("{} KiB", trim(format!("{:.1}", n as f64 / 1024.0))),
        n => format!("{} MiB", trim(format!("{:.1}", n as f64 / (1024.0 * 1024.0)))),
    }
}

/// Formats the time since an event in the largest fitting unit: `12 s`, `3 min`, `5 h`, `2 days`.
pub(crate) fn ago(d: Duration) -> String {
    let s = d.as_secs();
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} days", s / 86_400),
    }
}

/// Formats a number with a noun: `1 function`, `2 functions`.
pub(crate) fn plural(n: u64, one: &str, many: &str) -> String {
    format!("{} {}", grouped_u64(n), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_grouped_exactly() {
        for (n, expected) in [
            (0, "0"),
            (7, "7"),
            (999, "999"),
            (1000, "1,000"),
            (-1000, "-1,000"),
            (-999, "-999"),
            (1_234_567, "1,234,567"),
            (i64::MAX, "9,223,372,036,854,775,807"),
            (i64::MIN, "-9,223,372,036,854,775,808"),
        ] {
            assert_eq!(grouped(n), expected);
        }
        assert_eq!(grouped_u64(u64::MAX), "9,223,372,036,854,775,807");
    }

    #[test]
    fn rates_have_about_three_digits() {
        for (r, expected) in [
            (0.0, "0"),
            (0.04, "0.04"),
            (1.5, "1.5"),
            (9.99, "9.99"),
            (12.34, "12.3"),
            (99.96, "100"),
            (123_456.7, "123,457"),
            (-2.0, "-2"),
            (-0.001, "-0.001"),
            (0.003_456, "0.0035"),
            (0.000_99, "0.00099"),
            (1e-7, "0"),
        ] {
            assert_eq!(short(r), expected, "{r}");
        }
    }

    #[test]
    fn times_and_sizes() {
        assert_eq!(
            [millis(0.0), millis(0.82), millis(1.26), millis(31.4), millis(2100.0)].join("|"),
            "0 ms|0.82 ms|1.3 ms|31 ms|2.1 s"
        );
        let times = [0.0, 7.0, 999.4, 999.5, 1250.0, 31_415.9, 999_499.0, 999_500.0, 2.1e9, 5e12].map(time);
        assert_eq!(times.join("|"), "0 ns|7 ns|999 ns|1 µs|1.25 µs|31.4 µs|999 µs|1 ms|2.1 s|5,000 s");
        assert_eq!([quantity(1250, "nanoseconds"), quantity(1250, "bytes")].join("|"), "1.25 µs|1,250 bytes");
        assert_eq!([bytes(0), bytes(512), bytes(4096), bytes(1_572_864)].join("|"), "0 B|512 B|4 KiB|1.5 MiB");
        let s = Duration::from_secs;
        assert_eq!([ago(s(12)), ago(s(200)), ago(s(7200)), ago(s(200_000))].join("|"), "12 s|3 min|2 h|2 days");
        assert_eq!(
            [percent(12.0), percent(0.31), percent(0.02), percent(0.0)].join("|"),
            "12 %|0.3 %|0.02 %|less than 0.01 %"
        );
        let units =
            ["calls", "queries", "misses", "flushes", "switches", "processes", "CPUs", "bytes", "status", "mass"];
        let ones = "call query miss flush switch process CPU byte status mass";
        assert_eq!(units.map(singular).join(" "), ones);
        assert_eq!([plural(1, "call", "calls"), plural(1200, "call", "calls")].join("|"), "1 call|1,200 calls");
    }
}
