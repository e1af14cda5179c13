//! Units that count events, as the kernel describes them in /sys/bus/event_source/devices: `type`, `format/TERM` with the bits of a term,
//! and `events/NAME` with the terms that an event's name stands for.

use std::path::Path;

use super::name::EventProblem;

/// Directory in which the kernel describes the units.
pub(super) const DEVICES: &str = "/sys/bus/event_source/devices";

/// Access to the files that describe a unit.
pub(super) trait Sysfs {
    /// Text of a file of a unit; `None` if the file cannot be read.
    fn read(&self, unit: &str, file: &str) -> Option<String>;
}

/// The description of this machine's units.
pub(super) struct MachineSysfs;

impl Sysfs for MachineSysfs {
    fn read(&self, unit: &str, file: &str) -> Option<String> {
        std::fs::read_to_string(Path::new(DEVICES).join(unit).join(file)).ok()
    }
}

/// Whether a word from a request may be used in a path.
fn is_name(word: &str) -> bool {
    !word.is_empty() && !word.starts_with('.') && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
}

/// The type of a unit, and the words of configuration for these terms.
pub(super) fn resolve(unit: &str, terms: &str, sysfs: &dyn Sysfs) -> Result<(u32, [u64; 3]), EventProblem> {
    let none = || EventProblem::NoUnit(unit.to_owned());
    let kind = is_name(unit).then(|| sysfs.read(unit, "type")).flatten().ok_or_else(none)?;
    let kind: u32 = kind.trim().parse().map_err(|_| none())?;
    let mut config = [0; 3];
    apply(unit, terms, sysfs, &mut config, true)?;
    Ok((kind, config))
}

fn apply(unit: &str, terms: &str, sysfs: &dyn Sysfs, config: &mut [u64; 3], names: bool) -> Result<(), EventProblem> {
    for term in terms.trim().split(',') {
        let wrong = |why| EventProblem::Term { unit: unit.to_owned(), term: term.to_owned(), why };
        let (name, value) = term.split_once('=').map_or((term, None), |(name, value)| (name, Some(value)));
        if !is_name(name) {
            return Err(wrong("it is no word"));
        }
        if value.is_none()
            && names
            && let Some(meaning) = sysfs.read(unit, &format!("events/{name}"))
        {
            // The terms of a named event contain no further names.
            apply(unit, &meaning, sysfs, config, false)?;
            continue;
        }
        // A term without a value has the value 1, as in perf.
        let value = match value {
            None => 1,
            Some(text) => number(text).ok_or_else(|| wrong("its value is no number"))?,
        };
        match ["config", "config1", "config2"].iter().position(|word| *word == name) {
            Some(word) => config[word] |= value,
            None => {
                let format = sysfs.read(unit, &format!("format/{name}")).ok_or_else(|| wrong("it has no such term"))?;
                spread(format.trim(), value, config).ok_or_else(|| wrong("the value does not fit"))?;
            }
        }
    }
    Ok(())
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Distributes the bits of a value over the configuration as a format says: `config:0-7,32-35`, `config1:8`. `None` if the value has more
/// bits, or if the format cannot be parsed.
fn spread(format: &str, mut value: u64, config: &mut [u64; 3]) -> Option<()> {
    let (word, ranges) = format.split_once(':')?;
    let word = ["config", "config1", "config2"].iter().position(|known| *known == word)?;
    for range in ranges.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        if low > high || high > 63 {
            return None;
        }
        let bits = high - low + 1;
        let mask = u64::MAX >> (64 - bits);
        config[word] |= (value & mask) << low;
        value = if bits == 64 { 0 } else { value >> bits };
    }
    (value == 0).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit like the processor cores of Intel and AMD.
    struct Core;
    impl Sysfs for Core {
        fn read(&self, unit: &str, file: &str) -> Option<String> {
            let text = match file {
                "type" => "4\n",
                "format/event" => "config:0-7,32-35\n",
                "format/umask" => "config:8-15\n",
                "format/edge" => "config:18\n",
                "format/offcore_rsp" => "config1:0-63\n",
                "format/odd" => "config9:0-3\n",
                "events/cpu-cycles" => "event=0x3c\n",
                "events/mem-loads" => "event=0xcd,umask=0x1,offcore_rsp=3\n",
                "events/loop" => "loop\n",
                _ => return None,
            };
            (unit == "cpu").then(|| text.to_owned())
        }
    }

    #[test]
    fn terms_go_where_the_formats_say() {
        let of = |terms: &str| resolve("cpu", terms, &Core);
        assert_eq!(of("event=0x3c,umask=1"), Ok((4, [0x13c, 0, 0])));
        assert_eq!(of("event=0x1c2,edge"), Ok((4, [0x1_0004_00c2, 0, 0])));
        assert_eq!(of("cpu-cycles"), Ok((4, [0x3c, 0, 0])));
        assert_eq!(of("mem-loads,edge=1"), Ok((4, [0x4_01cd, 3, 0])));
        assert_eq!(of("config=0x10,config2=7"), Ok((4, [0x10, 0, 7])));
        assert_eq!(of("offcore_rsp=0xffffffffffffffff"), Ok((4, [0, u64::MAX, 0])));
    }

    #[test]
    fn what_a_unit_does_not_know_is_said() {
        for (terms, why) in [
            ("event=0x1000", "the value does not fit"),
            ("umask=x", "its value is no number"),
            ("nothing=1", "it has no such term"),
            ("odd=1", "the value does not fit"),
            ("loop", "it has no such term"),
            ("../type", "it is no word"),
            ("", "it is no word"),
        ] {
            let term = terms.to_owned();
            assert_eq!(resolve("cpu", terms, &Core), Err(EventProblem::Term { unit: "cpu".into(), term, why }));
        }
        assert_eq!(resolve("../cpu", "event=1", &Core), Err(EventProblem::NoUnit("../cpu".into())));
        assert_eq!(resolve("gpu", "event=1", &Core), Err(EventProblem::NoUnit("gpu".into())));
    }
}
