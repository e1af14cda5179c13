//! The places that a value comes from: functions with their next callers.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use ingraft_report::{ContextKind, ReturnSite};

use super::amounts::{amount, share, title};
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
    let mut table = TextTable::new().right(&title(name)).right("SHARE").right("CALLS").shrinking("FUNCTION");
    table = table.shrinking("CALLED BY").kept("FUNCTION", 20);
    for (place, value, calls) in places.iter().take(ROWS) {
        let callers = place.callers.iter().map(|(function, site)| {
            let at = site.map(|site| names.site(site, Some(*function))).unwrap_or_default();
            let at = if at.is_empty() { at } else { format!(" {at}") };
            format!("{}{at}", names.function(*function))
        });
        table.row(vec![
            amount(name, *value).into(),
            share(*value, whole).into(),
            grouped_u64(*calls).into(),
            names.function(place.function).into(),
            Cell::styled(callers.collect::<Vec<_>>().join(" ← "), DIM),
        ]);
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

/// The places with their values and calls, those with the largest values first.
fn places(shown: &ShownContexts<'_>) -> Vec<(LeafPlace, i64, u64)> {
    let contexts = &shown.contexts.contexts;
    let mut sums: BTreeMap<LeafPlace, (i64, u64)> = BTreeMap::new();
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
        *sum = (sum.0.saturating_add(value), sum.1.saturating_add(context.calls));
    }
    let mut places: Vec<_> = sums.into_iter().map(|(place, (value, calls))| (place, value, calls)).collect();
    places.sort_by_key(|(_, value, calls)| Reverse((*value, *calls)));
    places
}
