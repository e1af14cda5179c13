//! The places that a value comes from: functions with their next callers.

use std::collections::BTreeMap;

use ingraft_report::{ContextKind, ContextValue, ReturnSite};

use super::amounts::{amount, share};
use super::names::ContextNames;
use super::shown::ShownContexts;
use crate::output::DIM;
use crate::output::number::{grouped_u64, plural};
use crate::output::table::{Cell, TextTable};

/// Number of rows.
const ROWS: usize = 20;
/// Largest number of callers of a row.
const CALLERS: usize = 3;

/// A function with its next callers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LeafPlace {
    function: usize,
    /// The callers, the next one first, each with the place of its call; none of a tail jump or a signal.
    callers: Vec<(usize, Option<ReturnSite>)>,
}

/// The places with the largest values as a table.
pub(super) fn table(shown: &ShownContexts<'_>, names: &ContextNames<'_>, width: Option<usize>) -> String {
    let places = places(shown);
    let name = shown.value_name();
    let whole = shown.whole(shown.value);
    let mut table = TextTable::new().right(&shown.title(name)).right("SHARE");
    for metric in others(shown) {
        table = table.right(&shown.title(shown.metric_name(metric)));
    }
    table = table.right("CALLS").shrinking("FUNCTION");
    table = table.shrinking("CALLED BY").kept("FUNCTION", 20);
    for (place, values, calls) in places.iter().take(ROWS) {
        let callers = place.callers.iter().map(|(function, site)| {
            let at = site.map(|site| names.site(site, Some(*function))).unwrap_or_default();
            let at = if at.is_empty() { at } else { format!(" {at}") };
            format!("{}{at}", names.function(*function))
        });
        let (value, more) = values.split_first().map_or((0, &[][..]), |(value, more)| (*value, more));
        let mut cells: Vec<Cell> = vec![amount(name, value).into(), share(value, whole).into()];
        let more = others(shown).zip(more).map(|(metric, value)| amount(shown.metric_name(metric), *value).into());
        cells.extend(more);
        cells.push(grouped_u64(*calls).into());
        cells.push(names.function(place.function).into());
        cells.push(Cell::styled(callers.collect::<Vec<_>>().join(" ← "), DIM));
        table.row(cells);
    }
    if places.is_empty() {
        return String::new();
    }
    let more = places.len().saturating_sub(ROWS) as u64;
    let more = if more > 0 {
        format!("{DIM}and {}{DIM:#}\n", plural(more, "more place", "more places"))
    } else {
        String::new()
    };
    format!("{}{more}\n", table.render(width))
}

/// The metrics besides the one that decides.
fn others(shown: &ShownContexts<'_>) -> impl Iterator<Item = usize> {
    shown.metrics.iter().copied().filter(|metric| ContextValue::Metric(*metric) != shown.value)
}

/// The places with their values, the one that decides first, and with their calls; those with the largest values first.
fn places(shown: &ShownContexts<'_>) -> Vec<(LeafPlace, Vec<i64>, u64)> {
    let contexts = &shown.contexts.contexts;
    let mut sums: BTreeMap<LeafPlace, (Vec<i64>, u64)> = BTreeMap::new();
    for (context, value) in contexts.iter().zip(shown.contexts.values(shown.value)) {
        if value == 0 {
            continue;
        }
        let mut callers = Vec::new();
        let mut at = context;
        while let Some(caller) = at.parent.and_then(|parent| contexts.get(parent)).filter(|_| callers.len() < CALLERS) {
            let is_call = matches!(at.kind, ContextKind::Call | ContextKind::Recursion(_));
            callers.push((caller.function, is_call.then_some(at.site)));
            at = caller;
        }
        let sum = sums.entry(LeafPlace { function: context.function, callers }).or_default();
        let more = others(shown).map(|metric| context.metrics.get(metric).copied().unwrap_or(0));
        let values: Vec<i64> = std::iter::once(value).chain(more).collect();
        sum.0.resize(values.len(), 0);
        sum.0.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.saturating_add(value));
        sum.1 = sum.1.saturating_add(context.calls);
    }
    let mut places: Vec<_> = sums.into_iter().map(|(place, (values, calls))| (place, values, calls)).collect();
    places.sort_by(|(_, values, calls), (_, other, others)| (other, others).cmp(&(values, calls)));
    places
}
