//! Differences between the calling contexts of two profiles.

use std::cmp::Reverse;

use ingraft_model::Svma;
use ingraft_report::{ChangedValue, ContextChange, ContextValue, MergeError, SavedProfile, context_diff};

use crate::command::contexts::amounts::{amount, title};
use crate::command::contexts::{by_function, records};
use crate::command::report::tables::shown;
use crate::exit::Stop;
use crate::objects::changes::ContextChangeObject;
use crate::objects::{Object, RecordedFunction, hex};
use crate::output::number::{grouped, plural};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, Output, json_line};

/// Largest number of callers of a row.
const CALLERS: usize = 3;

/// The contexts of two profiles.
pub(in crate::command::report) struct ContextChanges {
    changes: Vec<ContextChange>,
    /// Names of the metrics.
    metrics: Vec<String>,
}

/// The contexts of two profiles with what differs; told apart by function only if that is asked for.
pub(in crate::command::report) fn changes(
    old: &SavedProfile,
    new: &SavedProfile,
    merged: bool,
) -> Result<ContextChanges, MergeError> {
    let metrics = new.contexts.as_ref().map(|contexts| contexts.metrics.clone()).unwrap_or_default();
    let changes = if merged {
        let merged = |profile: &SavedProfile| SavedProfile {
            contexts: profile.contexts.as_ref().map(by_function),
            ..profile.clone()
        };
        context_diff(&merged(old), &merged(new))?
    } else {
        context_diff(old, new)?
    };
    Ok(ContextChanges { changes, metrics })
}

impl ContextChanges {
    /// The contexts with the largest differences of a value, in the context alone.
    pub(in crate::command::report) fn table(&self, of: ContextValue, top: usize, width: Option<usize>) -> String {
        let own = |change: &ContextChange| change.values(of).own;
        let mut all: Vec<&ContextChange> = self.changes.iter().filter(|change| own(change).difference() != 0).collect();
        if all.is_empty() {
            return "no context differs\n".to_owned();
        }
        all.sort_by_key(|change| Reverse(own(change).difference().unsigned_abs()));
        let name = match of {
            ContextValue::Calls => "calls",
            ContextValue::Metric(metric) => self.metrics.get(metric).map_or("", String::as_str),
        };
        let text = |value: i64| if of == ContextValue::Calls { grouped(value) } else { amount(name, value) };
        let mut table = TextTable::new().right("CHANGE").right(&format!("OLD {}", title(name)));
        table =
            table.right(&format!("NEW {}", title(name))).shrinking("FUNCTION").shrinking("CALLED BY").left("MODULE");
        table = table.optional(&["MODULE"]).kept("FUNCTION", 20);
        for change in all.iter().take(top) {
            let values = own(change);
            let ChangedValue { old, new } = values;
            let difference = i64::try_from(values.difference()).unwrap_or(if new > old { i64::MAX } else { i64::MIN });
            let sign = if difference > 0 { "+" } else { "" };
            table.row(vec![
                format!("{sign}{}", text(difference)).into(),
                text(old).into(),
                text(new).into(),
                shown(&change.name, change.start).into(),
                Cell::styled(self.callers(change), DIM),
                Cell::styled(change.module.clone(), DIM),
            ]);
        }
        let more = all.len().saturating_sub(top) as u64;
        let more = match more {
            0 => String::new(),
            more => format!("{DIM}and {}; --top shows more of them{DIM:#}\n", plural(more, "context", "contexts")),
        };
        table.render(width) + &more
    }

    /// The next callers of a context, with a sign for more.
    fn callers(&self, of: &ContextChange) -> String {
        let parent = |change: &ContextChange| change.parent.and_then(|parent| self.changes.get(parent));
        let mut all = std::iter::successors(parent(of), |change| parent(change));
        let mut names: Vec<String> = all.by_ref().take(CALLERS).map(|one| shown(&one.name, one.start)).collect();
        names.extend(all.next().map(|_| "…".to_owned()));
        names.join(" ← ")
    }

    /// Writes a record for each context that differs, or that leads to one.
    pub(in crate::command::report) fn objects(&self, pid: u32, out: &mut Output) -> Result<(), Stop> {
        let mut leads: Vec<bool> = self.changes.iter().map(ContextChange::differs).collect();
        for (index, change) in self.changes.iter().enumerate().rev() {
            let is_needed = leads.get(index).copied().unwrap_or(false);
            if let Some(parent) = change.parent.and_then(|parent| leads.get_mut(parent)) {
                *parent |= is_needed;
            }
        }
        let mut numbers: Vec<u64> = Vec::with_capacity(leads.len());
        let mut last = 0;
        for (change, leads) in self.changes.iter().zip(leads) {
            last += u64::from(leads);
            numbers.push(last);
            if !leads {
                continue;
            }
            let parent = change.parent.and_then(|parent| numbers.get(parent)).copied();
            let record = Object::ContextChange(self.record(pid, (last, parent), change));
            out.verbatim(json_line(&record).as_bytes())?;
        }
        Ok(())
    }

    fn record(&self, pid: u32, (id, parent): (u64, Option<u64>), change: &ContextChange) -> ContextChangeObject {
        let is_known = change.site_module.is_some() || change.site != Svma(0);
        let metrics = |of: fn(&ChangedValue) -> i64| {
            let values = self.metrics.iter().zip(&change.metrics);
            values.map(|(name, values)| (name.clone(), of(&values.own))).collect()
        };
        let calls = |calls: i64| u64::try_from(calls).unwrap_or(0);
        ContextChangeObject {
            id_of_function: RecordedFunction {
                host: None,
                pid: pid.cast_signed(),
                module: change.module.clone(),
                function: shown(&change.name, change.start),
                offset: hex(change.start.0),
            },
            id,
            parent,
            kind: records::kind(change.kind),
            caller_module: change.site_module.clone(),
            call_site: is_known.then(|| hex(change.site.0)),
            old_calls: calls(change.calls.own.old),
            new_calls: calls(change.calls.own.new),
            old_metrics: metrics(|own| own.old),
            new_metrics: metrics(|own| own.new),
        }
    }
}
