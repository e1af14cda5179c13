//! The holders of locks for which threads have waited.

use std::collections::BTreeMap;

use ingraft_report::{CallingContext, ContextKind, ContextProfile, LockHolder, LockWait};

use super::amounts::{amount, share};
use super::names::ContextNames;
use super::shown::ShownContexts;
use crate::output::DIM;
use crate::output::number::{grouped_u64, plural};
use crate::output::table::{Cell, TextTable};

/// Number of rows.
const ROWS: usize = 20;
/// Largest number of callers of a row, besides the function.
const CALLERS: usize = 3;
/// Name of a metric of times, which tells their unit.
const TIME: &str = "wall_ns";

/// Words by which rows are told apart: the lock, who waits, and who holds it.
type WaitRow = (String, String, String);

/// Name of the metric of waits for locks.
const LOCK_WAIT: &str = "lock_wait_ns";
/// Parts of names of functions whose locks tell who holds them.
const TELLING: [&str; 2] = ["pthread_mutex_", "pthread_rwlock_"];

/// The functions that waited for locks which do not tell who holds them, those with the most time first.
pub(super) fn untold(contexts: &ContextProfile) -> Vec<usize> {
    let Some(metric) = contexts.metrics.iter().position(|name| name == LOCK_WAIT) else { return Vec::new() };
    let is_untold = |function: usize| {
        contexts.functions.get(function).is_some_and(|of| !TELLING.iter().any(|part| of.name.contains(part)))
    };
    let mut sums: BTreeMap<usize, i64> = BTreeMap::new();
    for context in contexts.contexts.iter().filter(|context| is_untold(context.function)) {
        let ns = context.metrics.get(metric).copied().unwrap_or(0);
        let sum = sums.entry(context.function).or_default();
        *sum = sum.saturating_add(ns);
    }
    let mut found: Vec<(usize, i64)> = sums.into_iter().filter(|(_, ns)| *ns > 0).collect();
    found.sort_by_key(|(_, ns)| std::cmp::Reverse(*ns));
    found.into_iter().map(|(function, _)| function).collect()
}

/// The waits with the most time as a table; empty if there are none.
pub(super) fn table(shown: &ShownContexts<'_>, names: &ContextNames<'_>, width: Option<usize>) -> String {
    let holders = &shown.contexts.holders;
    if holders.is_empty() {
        return String::new();
    }
    let mut rows: BTreeMap<WaitRow, (u64, u64)> = BTreeMap::new();
    for wait in holders {
        let waiter = waiting(shown, wait);
        let holder = match wait.holder {
            LockHolder::Context(context) => chain(shown, names, context),
            LockHolder::Outside => "(outside of measured functions)".to_owned(),
            LockHolder::Nobody => "(nobody: it was given back)".to_owned(),
            LockHolder::Untold => "(readers, or not known)".to_owned(),
        };
        let row = rows.entry((lock(wait), chain(shown, names, waiter), holder)).or_default();
        *row = (row.0.saturating_add(wait.ns), row.1.saturating_add(wait.looks));
    }
    let whole = holders.iter().map(|wait| wait.ns).fold(0, u64::saturating_add);
    let signed = |ns: u64| i64::try_from(ns).unwrap_or(i64::MAX);
    let mut rows: Vec<(WaitRow, (u64, u64))> = rows.into_iter().collect();
    rows.sort_by_key(|(_, (ns, _))| std::cmp::Reverse(*ns));
    let mut table = TextTable::new().right("≈ WAITED").right("SHARE").right("LOOKS").shrinking("LOCK");
    table = table.shrinking("HELD IN").shrinking("WAITED FOR IN");
    for ((lock, waiter, holder), (ns, looks)) in rows.iter().take(ROWS) {
        table.row(vec![
            amount(TIME, signed(*ns)).into(),
            share(signed(*ns), signed(whole)).into(),
            grouped_u64(*looks).into(),
            lock.as_str().into(),
            holder.as_str().into(),
            Cell::styled(waiter.clone(), DIM),
        ]);
    }
    let more = rows.len().saturating_sub(ROWS) as u64;
    let more =
        if more > 0 { format!("{DIM}and {}{DIM:#}\n", plural(more, "more row", "more rows")) } else { String::new() };
    format!("{}{more}\n", table.render(width))
}

/// The name of a lock, or its address.
fn lock(wait: &LockWait) -> String {
    if wait.name.is_empty() { format!("{:#x}", wait.lock) } else { wait.name.clone() }
}

/// The context in which a thread has called the function that waits, if its caller is measured.
fn waiting(shown: &ShownContexts<'_>, wait: &LockWait) -> usize {
    let of = shown.contexts.contexts.get(wait.waiter);
    of.and_then(|context| context.parent).unwrap_or(wait.waiter)
}

/// The function of a context with its next callers.
fn chain(shown: &ShownContexts<'_>, names: &ContextNames<'_>, context: usize) -> String {
    let contexts = &shown.contexts.contexts;
    let mut chain: Vec<String> = Vec::new();
    let mut next = contexts.get(context);
    while let Some(at) = next.filter(|_| chain.len() <= CALLERS) {
        chain.push(names.function(at.function));
        next = at.parent.and_then(|parent| contexts.get(parent)).filter(|_| is_called(at));
    }
    if next.is_some() {
        chain.push("…".to_owned());
    }
    chain.join(" ← ")
}

/// Whether a context has a caller to show. A handler has interrupted what is above it, which has not called it.
fn is_called(context: &CallingContext) -> bool {
    !matches!(context.kind, ContextKind::Signal)
}
