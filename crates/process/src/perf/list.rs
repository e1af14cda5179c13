//! The events of this machine, as `perf list` lists them.

use super::name::{HARDWARE_EVENTS, PerfEvent, SOFTWARE_EVENTS, caches};
use super::open::{CounterScope, EventError, PerfCounter};
use super::pmu::DEVICES;
use crate::sys;

/// An event of the list.
#[derive(Debug)]
pub struct ListedEvent {
    /// Name of the event, as requests give it.
    pub name: String,
    /// Other names that mean the same.
    pub aliases: Vec<String>,
    /// `software`, `hardware`, `cache`, or the name of the unit that counts the event.
    pub group: String,
    /// Reason why the event cannot be counted here: the kernel's answer to a test on this process. `None` if it can be counted.
    pub problem: Option<EventError>,
}

/// All events with names: those of every machine, and those of this machine's units.
pub fn event_list() -> Vec<ListedEvent> {
    let table = |events: &[(&[&str], u64)], group: &str| {
        let listed = events.iter().filter_map(|(names, _)| {
            let (name, aliases) = names.split_first()?;
            Some(listed((*name).to_owned(), aliases.iter().map(|a| (*a).to_owned()).collect(), group))
        });
        listed.collect::<Vec<_>>()
    };
    let mut all = table(&SOFTWARE_EVENTS, "software");
    all.extend(table(&HARDWARE_EVENTS, "hardware"));
    all.extend(caches().map(|(name, _)| listed(name, Vec::new(), "cache")));
    all.extend(of_units().into_iter().map(|(unit, name)| listed(format!("{unit}/{name}/"), Vec::new(), &unit)));
    all
}

fn listed(name: String, aliases: Vec<String>, group: &str) -> ListedEvent {
    let tried = PerfEvent::parse(&name).map_err(EventError::from);
    let problem = tried.and_then(|event| PerfCounter::open(&event, sys::own_tid(), CounterScope::Alone)).err();
    ListedEvent { name, aliases, group: group.to_owned(), problem }
}

/// All units with the names of their events, sorted.
fn of_units() -> Vec<(String, String)> {
    let names = |path: &std::path::Path| -> Vec<String> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    };
    let mut all = Vec::new();
    for unit in names(DEVICES.as_ref()) {
        let events = names(&std::path::Path::new(DEVICES).join(&unit).join("events"));
        // The same directory has files with the units and scales of events; their names contain a dot.
        let events = events.into_iter().filter(|e| !e.contains('.'));
        all.extend(events.map(|event| (unit.clone(), event)));
    }
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_is_an_event() {
        for event in event_list() {
            for name in std::iter::once(&event.name).chain(&event.aliases) {
                PerfEvent::parse(name).expect("an event");
            }
        }
    }
}
