//! The causes of a function's variance: predicted ones, and measured shares of suspects.

use ingraft_api::{MeasuredSuspect, MeasuredSuspects, Suspect};
use ingraft_model::Offset;
use ingraft_report::{ModuleCode, SharePart};

use crate::objects::times::{CauseObject, ExplainedObject};
use crate::output::number::{grouped_u64, plural, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING};

use super::ROWS;
use super::suspects::predicted;
use super::timed::TimedFunction;

/// Difference of a measured share from the predicted one from which on it is told.
const DIFFERENT: f64 = 0.25;

/// The causes of a function's variance.
pub(super) struct Explanation {
    /// The causes, those with the largest shares first: the measured ones, if there are some.
    pub(super) causes: Vec<CauseObject>,
    /// The measured calls; `None` if nothing was measured.
    pub(super) whole: Option<ExplainedObject>,
    /// Sentences about what was measured.
    notes: Vec<String>,
}

/// The word of a suspect's cause, and the offset that its record has.
fn place(suspect: Suspect) -> (&'static str, Offset) {
    match suspect {
        Suspect::CallSite(at) => ("callee", at),
        Suspect::Loop(at) => ("loop", at),
    }
}

/// Words for a cause.
fn words(what: &str) -> &'static str {
    match what {
        "branch" => "ways of a branch",
        "exit" => "end of a loop",
        "left" => "calls that have not returned",
        "loop" => "iterations of a loop",
        "callee" => "a called function",
        _ => "entries in the middle",
    }
}

/// A share for people.
fn percent(share: f64) -> String {
    // Rounded numbers around 0 have no sign.
    format!("{:.1} %", (1000.0 * share).round() / 10.0 + 0.0)
}

/// The parts that were measured, for their shares.
fn parts(suspects: &[MeasuredSuspect]) -> Vec<SharePart> {
    let is_measured = |one: &MeasuredSuspect| one.refused.is_none();
    // Indexes count all parts, and values only those that were measured.
    let index = |at: &u32| -> Option<usize> {
        let at = usize::try_from(*at).ok()?;
        suspects.get(at).filter(|one| is_measured(one))?;
        Some(suspects.iter().take(at).filter(|one| is_measured(one)).count())
    };
    let part = |one: &MeasuredSuspect| match one.suspect {
        Suspect::Loop(_) => SharePart::Loop,
        Suspect::CallSite(_) => SharePart::CallSite { inside: one.inside.iter().filter_map(index).collect() },
    };
    suspects.iter().filter(|one| is_measured(one)).map(part).collect()
}

impl Explanation {
    /// The causes of the variance of a function. `code` is that of its module.
    pub(super) fn new(one: &TimedFunction<'_>, code: &ModuleCode, measured: Option<&MeasuredSuspects>) -> Self {
        let mut explanation = Explanation { causes: one.causes(code), whole: None, notes: Vec::new() };
        if let Some(measured) = measured {
            explanation.confirm(one, code, measured);
        }
        explanation
    }

    /// Adds the measured shares.
    fn confirm(&mut self, one: &TimedFunction<'_>, code: &ModuleCode, measured: &MeasuredSuspects) {
        let MeasuredSuspects { suspects, moments, tick_ns, counts, recursive } = measured;
        let shares = moments.shares(&parts(suspects));
        let mut values = shares.iter().flat_map(|shares| shares.parts.iter().copied());
        let asked: Vec<Suspect> = suspects.iter().map(|one| one.suspect).collect();
        let expected = predicted(one.counts.counts, &one.times, &asked);
        for (suspect, expected) in suspects.iter().zip(expected) {
            let (what, offset) = place(suspect.suspect);
            let at = offset.in_name();
            if let Some(why) = &suspect.refused {
                let parts = if what == "loop" { "the iterations of the loop" } else { "the calls" };
                self.notes.push(format!("{parts} at {at} were not measured: {why}"));
                continue;
            }
            let Some(value) = values.next() else { continue };
            let missed = Some(suspect.missed).filter(|missed| *missed > 0);
            if let Some(missed) = missed {
                let (calls, at) = (plural(missed, "call", "calls"), &at);
                self.notes.push(format!(
                    "{calls} at {at} did not return, or were nested too deeply: their time is in the rest"
                ));
            }
            if (value - expected).abs() >= DIFFERENT {
                let [expected, value] = [expected, value].map(percent);
                self.notes.push(format!(
                    "at {at}, {expected} were predicted and {value} measured: branches or iterations depend on each other, or \
                     instructions do not tell the time"
                ));
            }
            let known = self.causes.iter_mut().find(|cause| cause.what == what && cause.at.as_ref() == Some(&at));
            if let Some(cause) = known {
                (cause.measured, cause.missed) = (Some(value), missed);
                continue;
            }
            let source = code.line(one.counts.counts.start.offset(offset.0));
            self.causes.push(CauseObject {
                id: one.counts.id.clone(),
                what,
                at: Some(at),
                source: source.map(|(file, line)| format!("{file}:{line}")),
                predicted: 0.0,
                predicted_equal: one.is_bounded().then_some(0.0),
                measured: Some(value),
                missed,
            });
        }
        let share = |cause: &CauseObject| cause.measured.unwrap_or(f64::NEG_INFINITY);
        self.causes.sort_by(|a, b| share(b).total_cmp(&share(a)));
        let deviation = moments.covariance(0, 0).map(|variance| variance.max(0.0).sqrt() * tick_ns);
        self.whole = Some(ExplainedObject {
            id: one.counts.id.clone(),
            calls: counts.calls,
            measured: moments.calls,
            skipped: counts.skipped,
            lost: counts.lost,
            left: counts.left,
            recursive: *recursive,
            mean_ns: moments.mean(0).map(|mean| mean * tick_ns),
            stddev_ns: deviation,
            remainder: shares.map(|shares| shares.remainder),
        });
    }

    /// A table of the causes of the function with this name.
    pub(super) fn text(self, name: &str, width: Option<usize>) -> String {
        let Explanation { causes, whole, notes } = self;
        let Some(whole) = whole else {
            if causes.is_empty() {
                return format!(
                    "\n{HEADING}{name}{HEADING:#}: no branch and no callee makes calls differ (numbers of iterations are not measured)\n"
                );
            }
            let mut table = TextTable::new().right("SHARE").left("CAUSE").left("AT").shrinking("SOURCE");
            for cause in causes.into_iter().take(ROWS) {
                table.row([vec![percent(cause.predicted).into()], cells(cause)].concat());
            }
            let table = table.render(width);
            return format!(
                "\n{HEADING}{name}{HEADING:#}: what the variance comes from, if iterations do not depend on each other\n{table}"
            );
        };
        let mut table =
            TextTable::new().right("MEASURED").right("PREDICTED").left("CAUSE").left("AT").shrinking("SOURCE");
        let shown = |cause: &CauseObject| cause.measured.is_some() || cause.predicted > 0.0;
        for cause in causes.into_iter().filter(shown).take(ROWS) {
            let shares = [cause.measured.map_or_else(String::new, percent), percent(cause.predicted)];
            table.row([shares.map(Cell::from).to_vec(), cells(cause)].concat());
        }
        if let Some(remainder) = whole.remainder {
            table.row(["", "everything else", "", ""].into_iter().fold(
                vec![percent(remainder).into()],
                |mut row, cell| {
                    row.push(cell.into());
                    row
                },
            ));
        }
        let mut text = format!("\n{HEADING}{name}{HEADING:#}: what the variance comes from, {}\n", summary(&whole));
        text += &table.render(width);
        text += &format!(
            "{DIM}MEASURED is the covariance of what was measured with the time of the function, divided by the variance of that time.\n\
             What the iterations of a loop explain of calls in it counts for the loop. PREDICTED is as if iterations did not depend on each other.{DIM:#}\n"
        );
        notes.into_iter().for_each(|note| text += &format!("{note}\n"));
        text
    }
}

/// The cells of a cause behind its shares.
fn cells(cause: CauseObject) -> Vec<Cell> {
    let source = cause.source.unwrap_or_default();
    vec![words(cause.what).into(), cause.at.unwrap_or_default().into(), source.into()]
}

/// Words about the measured calls.
fn summary(whole: &ExplainedObject) -> String {
    let ExplainedObject { calls, measured, skipped, lost, left, recursive, mean_ns, stddev_ns, .. } = whole;
    let mut text = format!("measured in {} of {}", grouped_u64(*measured), plural(*calls, "call", "calls"));
    let others =
        [(skipped, "skipped"), (lost, "lost"), (left, "without a return"), (recursive, "more inside of others")];
    for (count, what) in others.into_iter().filter(|(count, _)| **count > 0) {
        text += &format!(", {} {what}", grouped_u64(*count));
    }
    if let (Some(mean), Some(deviation)) = (mean_ns, stddev_ns) {
        text += &format!(" (mean {}, deviation {})", time(*mean), time(*deviation));
    }
    text
}
