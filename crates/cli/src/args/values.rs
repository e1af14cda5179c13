//! Values of arguments: durations, numbers, addresses, foci.

use std::time::Duration;

use ingraft_model::{Flavor, Focus};

use super::PairArg;

/// Error of a text that is no duration.
pub(super) const NO_DURATION: &str =
    "not a duration; write a number, with its unit unless it is in seconds, such as 10s or 500ms";

/// Reads `10s`, `500ms`, `0.5s`, `1min 30s`; a number without a unit is in seconds.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let is_number = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(|c: char| c.is_ascii_alphabetic());
    let seconds = text.parse::<f64>().ok().filter(|_| is_number);
    let read = match seconds {
        // A number that is too large for a duration is longer than a year.
        Some(seconds) => Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)),
        None => humantime::parse_duration(text),
    };
    match read {
        Ok(d) if d.is_zero() => Err("must be longer than nothing".to_owned()),
        Ok(d) if d > Duration::from_secs(366 * 86_400) => Err("longer than a year".to_owned()),
        Ok(d) => Ok(d),
        Err(_) if text.strip_prefix('-').is_some_and(|rest| duration(rest).is_ok()) => {
            Err("a duration is not negative".to_owned())
        }
        Err(_) => Err(NO_DURATION.to_owned()),
    }
}

pub(super) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        d if d < Duration::from_millis(1) => Err("shorter than 1ms".to_owned()),
        d if d > Duration::from_secs(3600) => Err("longer than an hour".to_owned()),
        d => Ok(d),
    }
}

pub(super) fn address(text: &str) -> Result<u64, String> {
    let digits = text.trim().strip_prefix("0x").unwrap_or(text.trim());
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let number = u64::from_str_radix(digits, 16).ok().filter(|_| is_number);
    number.ok_or_else(|| "not an address; write it in hexadecimal, such as 0x55d0c81b3f20".to_owned())
}

pub(super) fn phase(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        d if d < Duration::from_secs(1) => Err("shorter than 1s".to_owned()),
        d => Ok(d),
    }
}

pub(super) fn percent(text: &str) -> Result<f64, String> {
    match text.trim().trim_end_matches('%').parse::<f64>() {
        Ok(p) if p > 0.0 && p <= 1_000_000.0 => Ok(p),
        Ok(p) if p > 1_000_000.0 => Err("more than 1000000".to_owned()),
        Ok(_) => Err("must be more than 0".to_owned()),
        Err(_) => Err("not a number".to_owned()),
    }
}

pub(super) fn flavor(text: &str) -> Result<Flavor, String> {
    Flavor::parse(text).map_err(|e| e.to_string())
}

pub(super) fn focus(text: &str) -> Result<Focus, String> {
    Focus::parse(text).map_err(|e| e.to_string())
}

pub(super) fn pair(text: &str) -> Result<PairArg, String> {
    let (metric, focus) = text.split_once('@').unwrap_or((text, ""));
    if metric.is_empty() {
        return Err("no metric before the `@`".to_owned());
    }
    let focus = Focus::parse(focus).map_err(|e| e.to_string())?;
    Ok(PairArg { metric: metric.to_owned(), focus })
}
