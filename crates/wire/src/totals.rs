//! Event totals of profiles. They are split into messages, and put together again.

use ingraft_api::{ThreadTotals, TotalsReading};

use crate::MessageParts;
use crate::field::{FieldError, WireField, read};
use crate::v1;

impl From<ThreadTotals> for v1::ThreadEvents {
    fn from(of: ThreadTotals) -> Self {
        let [instructions, calls, branches, reads, writes] = of.events;
        let tid = of.tid.to_wire();
        v1::ThreadEvents { tid, name: of.name, ended: of.ended, instructions, calls, branches, reads, writes }
    }
}

impl TryFrom<v1::ThreadEvents> for ThreadTotals {
    type Error = FieldError;

    fn try_from(of: v1::ThreadEvents) -> Result<Self, FieldError> {
        let events = [of.instructions, of.calls, of.branches, of.reads, of.writes];
        Ok(ThreadTotals { tid: read("tid", of.tid)?, name: of.name, ended: of.ended, events })
    }
}

/// Splits event totals into messages.
pub fn event_totals(reading: TotalsReading) -> impl Iterator<Item = v1::EventTotalsResponse> + Send {
    let TotalsReading { time_ns, held, functions, threads, inexact } = reading;
    let head = v1::EventTotalsHead { time_ns, held_ns: held.to_wire(), functions: functions.to_wire(), inexact };
    let first = v1::EventTotalsResponse { head: Some(head), threads: Vec::new() };
    let parts = MessageParts::new(threads.into_iter().map(v1::ThreadEvents::from));
    std::iter::once(first).chain(parts.map(|threads| v1::EventTotalsResponse { head: None, threads }))
}

/// Adds a part to event totals.
pub fn add_totals(totals: &mut TotalsReading, part: v1::EventTotalsResponse) -> Result<(), FieldError> {
    if let Some(v1::EventTotalsHead { time_ns, held_ns, functions, inexact }) = part.head {
        let (held, functions) = (read("held_ns", held_ns)?, read("functions", functions)?);
        *totals = TotalsReading { time_ns, held, functions, inexact, threads: Vec::new() };
    }
    for thread in part.threads {
        totals.threads.push(thread.try_into()?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::{Any, Source, comes_back};

    impl Any for ThreadTotals {
        fn any(s: &mut Source<'_>) -> Self {
            ThreadTotals { tid: s.next(), name: s.next(), ended: s.next(), events: s.next() }
        }
    }

    impl Any for TotalsReading {
        fn any(s: &mut Source<'_>) -> Self {
            let functions = s.next::<u32>() as usize;
            TotalsReading { time_ns: s.next(), held: s.next(), functions, threads: s.next(), inexact: s.next() }
        }
    }

    #[test]
    fn event_totals_come_back() {
        comes_back(|reading: TotalsReading| {
            let mut totals = TotalsReading::default();
            event_totals(reading).try_for_each(|part| add_totals(&mut totals, part)).map_err(|e| e.to_string())?;
            Ok(totals)
        });
    }
}
