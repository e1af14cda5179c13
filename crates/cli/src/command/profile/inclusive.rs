//! Inclusive event totals: those of functions as a column of their table, those of calls as a table and records of their own.

use std::cmp::Reverse;
use std::collections::HashMap;

use ingraft_model::Svma;
use ingraft_report::{CallTarget, InclusiveTotal, SavedProfile, UnsavedDetails};

use crate::objects::CallSiteObject;
use crate::output::number::plural;
use crate::output::table::TextTable;

use super::{Counts, ROWS, known};

/// Title of the column of inclusive totals; `None` if the profile has none.
pub(super) fn title(profile: &SavedProfile) -> Option<&'static str> {
    Some(match profile.inclusive.as_str() {
        "" => return None,
        "calls" => "INCLUSIVE CALLS",
        "branches" => "INCLUSIVE BRANCHES",
        "memory-reads" => "INCLUSIVE READS",
        "memory-writes" => "INCLUSIVE WRITES",
        _ => "INCLUSIVE",
    })
}

/// Names of the functions of a profile, by module and first byte.
pub(super) struct FunctionNames<'p>(HashMap<(usize, Svma), &'p str>);

impl<'p> FunctionNames<'p> {
    /// The names that the calls of a profile need: none if it has no inclusive totals.
    pub(super) fn of(profile: &'p SavedProfile) -> Self {
        let named = Counts::named(profile).map(|(of, details)| ((of.module, of.start), details.name.as_str()));
        // Of functions with the same first byte, the first one names the callee.
        FunctionNames(if title(profile).is_some() { named.rev().collect() } else { HashMap::new() })
    }
}

/// The calls that a function has made, with their inclusive totals.
pub(super) fn calls(counts: &Counts<'_>, profile: &SavedProfile, names: &FunctionNames<'_>) -> Vec<CallSiteObject> {
    let totals: HashMap<usize, &InclusiveTotal> =
        counts.details.calls.iter().rev().map(|(block, total)| (*block, total)).collect();
    let name = |callee: &CallTarget| match callee {
        CallTarget::Own(at) => names.0.get(&(counts.counts.module, *at)).map(|name| (*name).to_owned()),
        CallTarget::Named(name) => Some(name.clone()),
        CallTarget::Other { .. } | CallTarget::Indirect | CallTarget::System => None,
    };
    let one = |site: &ingraft_report::CallCount| {
        let InclusiveTotal { events, inexact } = totals.get(&site.block).copied()?.clone();
        Some(CallSiteObject {
            id: counts.id.clone(),
            call_site: counts.offset(counts.counts.blocks.get(site.block)?.last),
            callee: name(&site.callee),
            event: profile.inclusive.clone(),
            calls: site.count,
            inclusive: events,
            inclusive_inexact: inexact,
        })
    };
    counts.counts.call_sites.iter().filter_map(one).collect()
}

/// The calls with the largest inclusive totals; empty if the profile has none.
pub(super) fn table(all: &[Counts<'_>], profile: &SavedProfile, width: Option<usize>) -> String {
    let names = FunctionNames::of(profile);
    let mut calls: Vec<CallSiteObject> = all.iter().flat_map(|counts| calls(counts, profile, &names)).collect();
    let Some(title) = title(profile).filter(|_| !calls.is_empty()) else { return String::new() };
    calls.sort_by_key(|call| Reverse(call.inclusive));
    let mut table = TextTable::new().shrinking("CALL").shrinking("CALLEE").right("CALLS").right(title);
    for call in calls.into_iter().take(ROWS) {
        table.row(vec![
            format!("{}+{}", call.id.function, call.call_site).into(),
            call.callee.unwrap_or_else(|| "?".to_owned()).into(),
            known(Some(call.calls)).into(),
            known(call.inclusive).into(),
        ]);
    }
    format!("\n{}", table.render(width))
}

/// The warning that inclusive totals are not exact, if some are not.
pub(super) fn warning(profile: &SavedProfile) -> Option<String> {
    let of = |(_, details): (_, &UnsavedDetails)| {
        let own = details.inclusive.iter().chain(details.calls.iter().map(|(_, total)| total));
        own.filter_map(|total| total.inexact.clone()).map(|why| (details.name.clone(), why)).collect::<Vec<_>>()
    };
    let inexact: Vec<(String, String)> = Counts::named(profile).flat_map(of).collect();
    let (name, why) = inexact.first()?;
    Some(match inexact.len() - 1 {
        0 => format!("an inclusive total of `{name}` is not exact: {why}"),
        n => {
            let others = plural(n as u64, "other one", "other ones");
            format!("an inclusive total of `{name}` and {others} are not exact: {why}")
        }
    })
}
