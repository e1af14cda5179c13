//! Names of events, as `perf list` shows them (perf-list(1), perf_event_open(2)).

use std::fmt;

use super::pmu::{self, Sysfs};

/// PERF_TYPE_HARDWARE, _SOFTWARE, _HW_CACHE and _RAW.
pub(super) const HARDWARE: u32 = 0;
pub(super) const SOFTWARE: u32 = 1;
pub(super) const CACHE: u32 = 3;
pub(super) const RAW: u32 = 4;

/// Software events: their names, the preferred one first, and PERF_COUNT_SW_*.
pub(super) const SOFTWARE_EVENTS: [(&[&str], u64); 10] = [
    (&["cpu-clock"], 0),
    (&["task-clock"], 1),
    (&["page-faults", "faults"], 2),
    (&["context-switches", "cs"], 3),
    (&["cpu-migrations", "migrations"], 4),
    (&["minor-faults"], 5),
    (&["major-faults"], 6),
    (&["alignment-faults"], 7),
    (&["emulation-faults"], 8),
    (&["cgroup-switches"], 11),
];

/// Hardware events: their names, the preferred one first, and PERF_COUNT_HW_*.
pub(super) const HARDWARE_EVENTS: [(&[&str], u64); 10] = [
    (&["cpu-cycles", "cycles"], 0),
    (&["instructions"], 1),
    (&["cache-references"], 2),
    (&["cache-misses"], 3),
    (&["branch-instructions", "branches"], 4),
    (&["branch-misses"], 5),
    (&["bus-cycles"], 6),
    (&["stalled-cycles-frontend", "idle-cycles-frontend"], 7),
    (&["stalled-cycles-backend", "idle-cycles-backend"], 8),
    (&["ref-cycles"], 9),
];

/// Caches: name, PERF_COUNT_HW_CACHE_*, and the indices of their events in [`OPERATIONS`].
const CACHES: [(&str, u64, &[usize]); 7] = [
    ("L1-dcache", 0, &[0, 1, 2]),
    ("L1-icache", 1, &[0, 2]),
    ("LLC", 2, &[0, 1, 2]),
    ("dTLB", 3, &[0, 1, 2]),
    ("iTLB", 4, &[0]),
    ("branch", 5, &[0]),
    ("node", 6, &[0, 1, 2]),
];

/// Operations on caches: the word for all of them, and the word before `-misses`. The index is PERF_COUNT_HW_CACHE_OP_*.
const OPERATIONS: [(&str, &str); 3] = [("loads", "load"), ("stores", "store"), ("prefetches", "prefetch")];

/// An event that can be counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PerfEvent {
    name: String,
    /// Type and the three words of configuration of struct perf_event_attr.
    pub(super) kind: u32,
    pub(super) config: [u64; 3],
    /// Whether the event is counted in user mode (`user`), and in the kernel (`kernel`).
    pub(super) user: bool,
    pub(super) kernel: bool,
}

/// Reason why a name is no event that can be counted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventProblem {
    /// No event has this name.
    #[error("no event is called `{0}`")]
    Unknown(String),
    /// The name is that of a tracepoint, which is not counted.
    #[error("`{0}` is a tracepoint: those are not counted")]
    Tracepoint(String),
    /// The modifier after the colon contains another letter than `u` and `k`.
    #[error(
        "the modifier `{modifier}` of `{event}` is not known: `u` counts in the program alone, `k` in the kernel alone"
    )]
    Modifier {
        /// The event.
        event: String,
        /// Modifier after its colon.
        modifier: String,
    },
    /// The machine has no unit with this name.
    #[error("this machine has no unit `{0}` that counts: /sys/bus/event_source/devices names them")]
    NoUnit(String),
    /// The unit does not know the term, or the value does not fit it.
    #[error("`{term}` says nothing to the unit `{unit}`: {why}")]
    Term {
        /// The unit.
        unit: String,
        /// The term.
        term: String,
        /// Reason why the term is refused.
        why: &'static str,
    },
}

impl PerfEvent {
    /// Parses a name as `perf list` shows it: `page-faults`, `cycles:u`, `LLC-load-misses`, `r1a8`, `cpu/event=0x3c,umask=1/`. Looks units
    /// of the machine up in /sys.
    pub fn parse(name: &str) -> Result<PerfEvent, EventProblem> {
        PerfEvent::parse_with(name, &pmu::MachineSysfs)
    }

    pub(super) fn parse_with(name: &str, sysfs: &dyn Sysfs) -> Result<PerfEvent, EventProblem> {
        let unknown = || EventProblem::Unknown(name.to_owned());
        if let Some((unit, rest)) = name.split_once('/') {
            let (terms, modifiers) = rest.rsplit_once('/').ok_or_else(unknown)?;
            let (kind, config) = pmu::resolve(unit, terms, sysfs)?;
            // After a unit's terms, perf accepts modifiers with and without a colon.
            return PerfEvent { name: name.to_owned(), kind, config, user: true, kernel: true }
                .restricted(modifiers.strip_prefix(':').unwrap_or(modifiers));
        }
        let (plain, modifiers) = name.split_once(':').map_or((name, None), |(plain, m)| (plain, Some(m)));
        let Some((kind, config)) = generic(plain) else {
            return Err(match modifiers {
                Some(_) => EventProblem::Tracepoint(name.to_owned()),
                None => unknown(),
            });
        };
        let event = PerfEvent { name: name.to_owned(), kind, config: [config, 0, 0], user: true, kernel: true };
        match modifiers {
            Some("") => Err(EventProblem::Modifier { event: plain.to_owned(), modifier: String::new() }),
            Some(modifiers) => event.restricted(modifiers),
            None => Ok(event),
        }
    }

    fn restricted(mut self, modifiers: &str) -> Result<PerfEvent, EventProblem> {
        if modifiers.is_empty() {
            return Ok(self);
        }
        if !modifiers.chars().all(|c| matches!(c, 'u' | 'k')) {
            let event = self.name.trim_end_matches(modifiers).trim_end_matches(':').to_owned();
            return Err(EventProblem::Modifier { event, modifier: modifiers.to_owned() });
        }
        self.user = modifiers.contains('u');
        self.kernel = modifiers.contains('k');
        Ok(self)
    }

    /// Name of the event, as it was requested.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for PerfEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Type and configuration of a raw event, or of an event whose name exists on every machine.
fn generic(name: &str) -> Option<(u32, u64)> {
    let in_table = |table: &[(&[&str], u64)], kind| {
        table.iter().find(|(names, _)| names.contains(&name)).map(|(_, config)| (kind, *config))
    };
    in_table(&SOFTWARE_EVENTS, SOFTWARE)
        .or_else(|| in_table(&HARDWARE_EVENTS, HARDWARE))
        .or_else(|| caches().find(|(known, _)| known == name).map(|(_, config)| (CACHE, config)))
        .or_else(|| raw(name).map(|config| (RAW, config)))
}

/// Configuration of a raw event, which is `r` followed by hexadecimal digits.
fn raw(name: &str) -> Option<u64> {
    let digits = name.strip_prefix('r').filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u64::from_str_radix(digits, 16).ok()
}

/// The names of all cache events, with their configurations.
pub(super) fn caches() -> impl Iterator<Item = (String, u64)> {
    CACHES.iter().flat_map(|(cache, id, operations)| {
        operations.iter().flat_map(move |operation| {
            let (all, each) = OPERATIONS[*operation];
            let config = |miss: u64| id | (*operation as u64) << 8 | miss << 16;
            [(format!("{cache}-{all}"), config(0)), (format!("{cache}-{each}-misses"), config(1))]
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;
    impl Sysfs for Nothing {
        fn read(&self, _: &str, _: &str) -> Option<String> {
            None
        }
    }

    fn of(name: &str) -> Result<(u32, u64, bool, bool), EventProblem> {
        PerfEvent::parse_with(name, &Nothing).map(|e| (e.kind, e.config[0], e.user, e.kernel))
    }

    #[test]
    fn names_as_perf_list_has_them() {
        assert_eq!(of("page-faults"), Ok((1, 2, true, true)));
        assert_eq!(of("cs:u"), Ok((1, 3, true, false)));
        assert_eq!(of("cycles:k"), Ok((0, 0, false, true)));
        assert_eq!(of("branch-misses:uk"), Ok((0, 5, true, true)));
        assert_eq!(of("L1-dcache-loads"), Ok((3, 0, true, true)));
        assert_eq!(of("LLC-load-misses"), Ok((3, 0x1_0002, true, true)));
        assert_eq!(of("dTLB-prefetch-misses"), Ok((3, 0x1_0203, true, true)));
        assert_eq!(of("branch-loads"), Ok((3, 5, true, true)));
        assert_eq!(of("r1a8"), Ok((4, 0x1a8, true, true)));
        assert_eq!(caches().count(), 32);
    }

    #[test]
    fn what_is_no_event_is_refused_by_name() {
        let unknown = |name: &str| Err(EventProblem::Unknown(name.to_owned()));
        for name in ["", "cycels", "r", "rxyz", "r11112222333344445", "iTLB-stores", "cpu/event=1", "Page-Faults"] {
            assert_eq!(of(name), unknown(name));
        }
        assert_eq!(of("sched:sched_switch"), Err(EventProblem::Tracepoint("sched:sched_switch".into())));
        assert!(matches!(of("cycles:p"), Err(EventProblem::Modifier { modifier, .. }) if modifier == "p"));
        assert!(matches!(of("cycles:"), Err(EventProblem::Modifier { .. })));
        assert_eq!(of("cpu/event=1/"), Err(EventProblem::NoUnit("cpu".into())));
    }
}
