//! Printed calls: a record of values for each call, in the buffers of threads.
//!
//! The `print` statement of a metric says what is printed. `code.rs` joins the code of the metric in all functions; `answer.rs` makes
//! calls of the records that threads have made, and applies the limit.

pub(super) mod answer;
mod code;

use std::sync::{Arc, Mutex, PoisonError};

use ingraft_model::records::{RecordCounts, TakenRecord};
use ingraft_model::{Focus, FunctionId, RecordColumn, VariableKind};
use ingraft_process::TickClock;

use crate::api::{
    CallNumbers, EnableRequest, MeasurementId, MetricFocus, NamedFunction, PrintOptions, PrintedCall, PrintedCalls,
    PrintedColumn, PrintedSite, PrintedValue, Removed,
};
use crate::error::{Error, Reason};
use crate::measure::request::{self, Owner, PairPurpose, WantedPair};
use crate::pairs::{PairKey, is_costly};
use crate::session::{Drained, InsertedPairs, KindRequest, Locked, NewBuffers, Records, Running, Session, values_in};

use self::answer::{Counted, Limiter};
use self::code::{BUFFER, CALLS, METRIC, PASSED, PrintCode};
use super::code::look;
use super::no_print;

/// Calls of functions that are printed.
pub struct PrintKind {
    options: PrintOptions,
    /// The functions, in the order of their numbers.
    sites: Vec<(FunctionId, Vec<RecordColumn>)>,
    /// The counters, and the functions as they were when the code was inserted; `None` before.
    begun: Option<PrintStart>,
    state: Mutex<State>,
}

/// Offset of the counter of calls without a record among those of activations ([`ingraft_model::Shape::Activations`]).
pub(super) const UNRECORDED: u32 = 2;

struct PrintStart {
    calls: u32,
    passed: u32,
    /// First counters of the activations of the calls.
    activations: Vec<u32>,
    sites: Vec<PrintedSite>,
}

struct State {
    limiter: Limiter,
    printed: u64,
    limited: u64,
}

impl Records for PrintKind {
    fn complete(bytes: &[u8]) -> Result<usize, usize> {
        Ok(bytes.len())
    }
}

impl PrintKind {
    /// A measurement that has not begun.
    pub fn new(options: PrintOptions) -> Self {
        let state = State { limiter: Limiter::new(options.limit), printed: 0, limited: 0 };
        PrintKind { options, sites: Vec::new(), begun: None, state: Mutex::new(state) }
    }

    /// The calls in what threads have appended since the last time.
    fn answer(&self, drained: Vec<Drained>, at: &Locked<'_>) -> PrintedCalls {
        let Some(begun) = &self.begun else { return PrintedCalls::default() };
        let (now, unix) = at.wall_clock().map(TickClock::with_unix_time).unwrap_or_default();
        let scale = at.wall_clock().map(TickClock::scale);
        let ns = |ticks: u64| scale.map_or(0, |scale| scale.apply(ticks));
        let records = drained
            .into_iter()
            .flat_map(|Drained { tid, bytes, .. }| values_in(&bytes).into_iter().map(move |record| (tid, record)));
        let mut records: Vec<(u32, TakenRecord)> = records.collect();
        let ticks = |record: &TakenRecord| record.words.first().copied().unwrap_or(0);
        records.sort_by_key(|(_, record)| ticks(record));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut calls = Vec::new();
        for (tid, record) in records {
            let site = usize::from(record.number);
            let Some((_, columns)) = self.sites.get(site) else { continue };
            if !state.limiter.permits(ns(ticks(&record))) {
                state.limited += 1;
                continue;
            }
            let Some((ticks, values)) = answer::call(&record, columns) else { continue };
            let time_ns = unix.saturating_sub(ns(now.saturating_sub(ticks)));
            calls.push(PrintedCall { site: record.number.into(), tid, time_ns, values, tree: None });
        }
        state.printed += calls.len() as u64;
        drop(state);
        place_callers(&mut calls, at);
        PrintedCalls { sites: begun.sites.clone(), calls, counts: CallNumbers::default() }
    }

    /// Numbers of calls. `last` are the final numbers of records.
    fn counts(&self, at: &Locked<'_>, last: Option<RecordCounts>) -> CallNumbers {
        let Some(begun) = &self.begun else { return CallNumbers::default() };
        // In this order: a call that goes on meanwhile is told as one that has not come so far yet.
        let passed = at.sum(begun.passed);
        let records = last.unwrap_or_else(|| at.record_counts());
        let calls = at.sum(begun.calls).max(passed);
        let unrecorded: u64 = begun.activations.iter().map(|first| at.sum(first + UNRECORDED)).sum();
        let common = at.common(begun.calls).saturating_sub(at.common(begun.passed));
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Counted {
            calls,
            passed,
            made: records.made,
            skipped: records.skipped,
            lost: records.lost,
            unfollowed: unrecorded.saturating_add(common),
            printed: state.printed,
            limited: state.limited,
        }
        .counts(last.is_some())
    }
}

/// The pairs of a request for calls that are printed or slow.
pub(super) fn printing(asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
    if asked.request.keep || asked.request.family {
        let what = "printed calls end with their command, and are not those of fork children";
        return Err(Error::new(Reason::ProfileKept, what, "leave out --no-remove and --follow fork"));
    }
    let wanted = request::of_metrics(asked.library, asked.modules, asked.request, asked.missing)?;
    if wanted.is_empty() {
        let what = "calls are printed of functions that are loaded when it begins, and none of these is";
        let hint = "print those of the running program (-p) once it has loaded the library";
        return Err(Error::new(Reason::NotLoadedYet, what, hint));
    }
    Ok(wanted)
}

/// A column as clients see it.
pub(super) fn printed_column(column: &RecordColumn) -> PrintedColumn {
    PrintedColumn { name: column.name.clone(), content: column.content.kind() }
}

/// Adds the places of callers.
pub(super) fn place_callers(calls: &mut [PrintedCall], at: &Locked<'_>) {
    let values = calls.iter_mut().flat_map(|PrintedCall { values, tree, .. }| {
        let inside = tree.iter_mut().flat_map(|tree| &mut tree.calls).flat_map(|call| &mut call.values);
        values.iter_mut().chain(inside)
    });
    let callers = values.filter_map(|value| match value {
        PrintedValue::Caller(address, place) => Some((*address, place)),
        _ => None,
    });
    at.place_code(callers);
}

impl Running for PrintKind {
    /// One pair with the code in all functions.
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error> {
        let wanted = printing(asked)?;
        let foci: Vec<Focus> = wanted.iter().map(|wanted| wanted.pair.focus.clone()).collect();
        let PrintCode { instrumentation, sites } = PrintCode::new(wanted, self.options)?;
        let looks = sites.iter().zip(foci);
        let mut all: Vec<WantedPair> = looks.map(|((function, _), focus)| look(*function, focus, asked.id)).collect();
        self.sites = sites;
        let only = if let [(function, _)] = self.sites.as_slice() { Some(*function) } else { None };
        let print = WantedPair { function: only, ..WantedPair::owned(owner(asked.id), pair(), instrumentation) };
        if !is_costly(&print.instrumentation.variables) {
            all.clear();
        }
        all.push(print);
        Ok(all)
    }

    fn looks_first(&self, _: &EnableRequest) -> bool {
        true
    }

    fn inserted(&mut self, at: &mut Locked<'_>, _: &mut InsertedPairs<'_>) {
        let Some(pair) = at.pair(&key(at.id())) else { return };
        let counter = |variable: ingraft_model::VariableId| pair.counters().get(variable.0 as usize).copied();
        let (Some(calls), Some(passed), Some(first)) = (counter(CALLS), counter(PASSED), counter(BUFFER)) else {
            return;
        };
        let named = |function| crate::pairs::function_ref(at.modules(), function).unwrap_or_default();
        let sites = self.sites.iter().map(|(function, columns)| PrintedSite {
            function: named(*function) as NamedFunction,
            columns: columns.iter().map(printed_column).collect(),
            left_out: false,
        });
        let sites = sites.collect();
        let (capacity, burst) = (self.options.capacity, code::burst(self.options));
        at.begin_buffers::<PrintKind>(NewBuffers {
            first,
            capacity,
            times: false,
            waits: false,
            values: true,
            grouped: false,
            burst,
            contexts: None,
        });
        let variables = pair.variables().iter().zip(pair.counters());
        let activations = variables.filter(|(variable, _)| variable.kind == VariableKind::Activations);
        let activations = activations.map(|(_, first)| *first).collect();
        self.begun = Some(PrintStart { calls, passed, activations, sites });
    }

    fn needs_libraries(&self) -> bool {
        true
    }

    /// Libraries that were loaded since have no part.
    fn grown(&mut self, _: &mut Locked<'_>) -> Result<bool, Error> {
        Ok(true)
    }

    fn ended(&mut self, at: &mut Locked<'_>, removed: &mut Removed) {
        let Some(last) = at.end_buffers::<PrintKind>() else { return };
        let mut printed = self.answer(last.drained, at);
        printed.counts = self.counts(at, Some(last.counts));
        removed.printed = Some(printed);
    }
}

/// The calls that were printed since the last time, if the measurement prints calls. Does not stop the target.
pub(super) fn take(session: &Session, id: MeasurementId) -> Option<Result<PrintedCalls, Error>> {
    let drained = session.drain::<PrintKind>(id)?;
    Some(session.with_kind(id, |kind, at| {
        let kind = kind.downcast_ref::<PrintKind>().ok_or_else(|| no_print(id))?;
        let mut printed = kind.answer(drained, at);
        printed.counts = kind.counts(at, None);
        Ok(printed)
    }))
}

fn owner(measurement: MeasurementId) -> Owner {
    Owner { measurement, purpose: PairPurpose::Asked }
}

fn pair() -> Arc<MetricFocus> {
    Arc::new(MetricFocus { metric: METRIC.to_owned(), focus: Focus::default() })
}

fn key(measurement: MeasurementId) -> PairKey {
    PairKey::owned(owner(measurement), pair())
}
