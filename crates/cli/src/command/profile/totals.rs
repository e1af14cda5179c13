//! Event totals of threads, as records and as a table.

use std::cmp::Reverse;

use ingraft_api::{ThreadTotals, TotalsReading};
use ingraft_model::EVENT_NAMES;

use super::{ROWS, heading, number};
use crate::measure::TargetMeasurement;
use crate::objects::totals::{EventTotalsObject, ThreadTotal};
use crate::objects::{Object, millis};
use crate::output::DIM;
use crate::output::number::plural;
use crate::output::table::{Cell, TextTable};

/// The records of a reading: one for each kind of event.
pub(super) fn records(site: &TargetMeasurement, totals: &TotalsReading) -> Vec<Object> {
    let record = |(kind, event): (usize, &'static str)| {
        let of = |thread: &ThreadTotals| thread.events.get(kind).copied().unwrap_or_default();
        Object::EventTotals(EventTotalsObject {
            host: site.host(),
            pid: site.pid(),
            time_ns: totals.time_ns,
            event,
            total: totals.threads.iter().map(of).fold(0, u64::wrapping_add),
            threads: totals
                .threads
                .iter()
                .map(|thread| ThreadTotal {
                    tid: thread.tid.map(|tid| tid.0),
                    name: Some(thread.name.clone()).filter(|name| !name.is_empty()),
                    ended: thread.ended,
                    total: of(thread),
                })
                .collect(),
            functions: u32::try_from(totals.functions).unwrap_or(u32::MAX),
            stopped_ms: millis(totals.held),
            inexact: totals.inexact.clone(),
        })
    };
    EVENT_NAMES.into_iter().enumerate().map(record).collect()
}

/// A line about the reading, the threads with the most instructions, and all threads together.
pub(super) fn table(site: &TargetMeasurement, totals: &TotalsReading, width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .left("THREAD")
        .shrinking("NAME")
        .right("INSTRUCTIONS")
        .right("CALLS")
        .right("BRANCHES")
        .right("READS")
        .right("WRITES")
        .optional(&["WRITES", "READS", "BRANCHES"]);
    let mut all: Vec<&ThreadTotals> = totals.threads.iter().collect();
    all.sort_by_key(|thread| Reverse(thread.events));
    let mut row = |thread: String, name: Cell, events: [u64; EVENT_NAMES.len()]| {
        let [instructions, calls, branches, reads, writes] = events.map(number).map(Cell::from);
        table.row(vec![thread.into(), name, instructions, calls, branches, reads, writes]);
    };
    for thread in all.iter().take(ROWS) {
        let name = match (thread.tid, thread.ended) {
            (Some(_), false) => Cell::from(thread.name.clone()),
            (Some(_), true) => Cell::styled("ended", DIM),
            (None, true) => Cell::styled("ended threads", DIM),
            (None, false) => Cell::styled("threads that cannot be told apart", DIM),
        };
        row(thread.tid.map_or_else(String::new, |tid| tid.0.to_string()), name, thread.events);
    }
    let mut sum = [0_u64; EVENT_NAMES.len()];
    for thread in &all {
        sum.iter_mut().zip(thread.events).for_each(|(sum, events)| *sum = sum.wrapping_add(events));
    }
    row(String::new(), plural(all.len() as u64, "thread", "threads").into(), sum);
    heading(site, (totals.time_ns, totals.held), totals.functions as u64) + &table.render(width)
}
