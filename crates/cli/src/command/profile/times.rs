//! `ingraft profile times`: mean and variance of the times of functions, and what the variance of one of them comes from.

use std::cmp::Reverse;

use ingraft_report::{
    FunctionTimes, ModuleCode, NoTimes, NodeTime, PredictedTimes, SavedProfile, TimedPart, Untimed, VarianceCause,
    VarianceRange, VarianceShare, times,
};

use crate::args::Format;
use crate::command::report::modules;
use crate::exit::Stop;
use crate::measure::TargetMeasurement;
use crate::objects::Object;
use crate::objects::times::{CauseObject, TimeObject};
use crate::output::number::{grouped_u64, plural, short};
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, HEADING, Output};

use super::{Counts, ROWS, share};

/// Unit of the times.
const UNIT: &str = "instructions";

/// A number that has a bound.
fn finite(number: f64) -> Option<f64> {
    Some(number).filter(|number| number.is_finite())
}

/// A function with its times.
struct TimedFunction<'p> {
    counts: Counts<'p>,
    times: FunctionTimes,
}

/// The times of a process.
pub(super) struct ProcessTimes<'p> {
    profile: &'p SavedProfile,
    timed: Vec<TimedFunction<'p>>,
    /// Functions whose times do not follow from their counts, with the reasons.
    without: Vec<(Counts<'p>, Untimed)>,
    /// Functions that have run, and of which no call began while they were profiled.
    in_progress: Vec<Counts<'p>>,
}

impl<'p> ProcessTimes<'p> {
    /// Computes the times of the functions of a profile.
    pub(super) fn of(site: &TargetMeasurement, profile: &'p SavedProfile) -> Self {
        let (mut timed, mut without, mut in_progress) = (Vec::new(), Vec::new(), Vec::new());
        let mut all: Vec<_> = times(profile).into_iter().map(Some).collect();
        for counts in Counts::all(site, profile) {
            match all.get_mut(counts.index).and_then(Option::take) {
                Some(Ok(times)) => timed.push(TimedFunction { counts, times }),
                Some(Err(Untimed::NoTimes(NoTimes::NotCalled))) if counts.instructions() > 0 => {
                    in_progress.push(counts)
                }
                Some(Err(Untimed::NoTimes(NoTimes::NotCalled))) | None => {}
                Some(Err(why)) => without.push((counts, why)),
            }
        }
        ProcessTimes { profile, timed, without, in_progress }
    }

    /// The functions with a name.
    fn named(&self, name: &str) -> impl Iterator<Item = &TimedFunction<'p>> {
        self.timed.iter().filter(move |one| one.counts.is_named(name))
    }

    /// Warns of functions without times, and of a name that no function has.
    pub(super) fn warn(&self, explained: Option<&str>, format: Format) {
        let mut told: Vec<&Untimed> = Vec::new();
        for (counts, why) in &self.without {
            if told.contains(&why) {
                continue;
            }
            told.push(why);
            let more = match self.without.iter().filter(|(_, other)| other == why).count() - 1 {
                0 => String::new(),
                n => format!("; the same is true of {}", plural(n as u64, "other function", "other functions")),
            };
            output::warn(&format!("`{}` has no times: {why}{more}", counts.id.function), format);
        }
        if let Some(name) = explained.filter(|name| self.named(name).next().is_none()) {
            let failed = self.without.iter().find(|(counts, _)| counts.is_named(name));
            let why = match failed {
                Some((_, why)) => format!("it has no times: {why}"),
                None => "no call of a profiled function with this name began".to_owned(),
            };
            output::warn(&format!("`{name}` cannot be explained: {why}"), format);
        }
    }

    /// Prints the records of all functions, and the causes of the variance of those that are to be explained.
    pub(super) fn objects(&self, explained: Option<&str>, format: Format, out: &mut Output) -> Result<(), Stop> {
        for one in &self.timed {
            one.records().into_iter().try_for_each(|record| out.object(&Object::Time(record)))?;
        }
        for (one, code) in self.explained(explained, format) {
            one.causes(&code).into_iter().try_for_each(|cause| out.object(&Object::Cause(cause)))?;
        }
        Ok(())
    }

    /// The functions that are to be explained, each with the code of its module.
    fn explained(&self, name: Option<&str>, format: Format) -> Vec<(&TimedFunction<'p>, ModuleCode)> {
        let functions = name.into_iter().flat_map(|name| self.named(name));
        let code = |one: &TimedFunction<'_>| {
            let module = self.profile.modules.get(one.counts.counts.module);
            module.map_or_else(ModuleCode::default, |module| modules::of_file(module, format))
        };
        functions.map(|one| (one, code(one))).collect()
    }

    /// The tables for people.
    pub(super) fn tables(&self, explained: Option<&str>, format: Format, width: Option<usize>) -> String {
        let mut all: Vec<&TimedFunction<'_>> = self.timed.iter().collect();
        all.sort_by_key(|one| Reverse(one.counts.instructions()));
        let others = self.without.iter().map(|(counts, _)| counts).chain(&self.in_progress);
        let whole = all.iter().map(|one| &one.counts).chain(others).map(Counts::instructions);
        let whole: u64 = whole.fold(0, u64::saturating_add);
        let mut table = TextTable::new()
            .shrinking("FUNCTION")
            .left("MODULE")
            .right("CALLS")
            .right("SHARE")
            .right("SELF")
            .right("MEAN")
            .right("DEVIATION")
            .right("INDEPENDENT")
            .right("CALLS LEFT OUT")
            .optional(&["SHARE", "MODULE"]);
        for one in all.iter().take(ROWS) {
            let PredictedTimes { mean, variance, .. } = &one.times.times;
            let left_out = Some(one.times.left_out).filter(|calls| *calls > 0.0);
            table.row(vec![
                one.counts.id.function.clone().into(),
                Cell::styled(one.counts.id.module.clone(), DIM),
                grouped_u64(one.counts.counts.calls).into(),
                share(one.counts.instructions(), whole).into(),
                short(one.times.own).into(),
                short(*mean).into(),
                finite(variance.equal.sqrt()).map_or_else(|| "∞".to_owned(), short).into(),
                short(variance.independent.sqrt()).into(),
                left_out.map_or_else(String::new, short).into(),
            ]);
        }
        let mut text = table.render(width);
        text += &format!(
            "{DIM}Times are numbers of {UNIT} in a call. SELF is exact; SHARE is that of SELF. MEAN is predicted with the means of the profiled\n\
             functions that it calls, without CALLS LEFT OUT, whose callees are not known or have no times. The deviations are predicted,\n\
             as if loops had as many iterations each time: DEVIATION if all iterations of a loop take equally long, INDEPENDENT if they\n\
             do not depend on each other.{DIM:#}\n"
        );
        if let Some(first) = self.in_progress.first() {
            let count = plural(self.in_progress.len() as u64, "function", "functions");
            let name = &first.id.function;
            text += &format!("{DIM}{count} have run, and no call of them began: {name}{DIM:#}\n");
        }
        for (one, code) in self.explained(explained, format) {
            text += &one.explanation(&code, width);
        }
        text
    }
}

impl TimedFunction<'_> {
    /// Offset of the block that is or begins a part; `None` for the function.
    fn node(&self, part: TimedPart) -> Option<String> {
        match part {
            TimedPart::Function => None,
            TimedPart::Block(block) | TimedPart::Loop(block) => self.counts.block(block),
        }
    }

    /// The records of the function and of its loops and blocks that have run.
    fn records(&self) -> Vec<TimeObject> {
        let record = |node: &NodeTime| TimeObject {
            id: self.counts.id.clone(),
            node: self.node(node.origin),
            kind: match node.origin {
                TimedPart::Function => "function",
                TimedPart::Block(_) => "block",
                TimedPart::Loop(_) => "loop",
            },
            unit: UNIT,
            frequency: node.frequency,
            iterations: node.iterations,
            mean: node.mean,
            variance: finite(node.variance.equal),
            stddev: finite(node.variance.equal.sqrt()),
            independent_stddev: node.variance.independent.sqrt(),
            measured_stddev: None,
            own: (node.origin == TimedPart::Function).then_some(self.times.own),
            calls_left_out: (node.origin == TimedPart::Function).then_some(self.times.left_out),
            inexact: self.counts.counts.inexact.clone(),
        };
        self.times.times.nodes.iter().filter(|node| node.frequency > 0.0).map(record).collect()
    }

    /// The causes of the variance.
    fn causes(&self, code: &ModuleCode) -> Vec<CauseObject> {
        let cause = |share: &VarianceShare| {
            let (what, block) = match share.cause {
                VarianceCause::Branch(block) if self.ends_in_call(block) => ("left", Some(block)),
                VarianceCause::Branch(block) => ("branch", Some(block)),
                VarianceCause::Exit(block) => ("exit", Some(block)),
                VarianceCause::Trips(block) => ("loop", Some(block)),
                VarianceCause::Callee(block) => ("callee", Some(block)),
                VarianceCause::Arrival => ("arrival", None),
            };
            let block = block.and_then(|block| self.counts.counts.blocks.get(block));
            // A branch or a call is the last instruction of its block.
            let at = block.map(|block| if what == "loop" { block.start } else { block.last });
            let VarianceRange { equal, independent } = share.share;
            CauseObject {
                id: self.counts.id.clone(),
                what,
                at: at.map(|at| self.counts.offset(at)),
                source: at.and_then(|at| code.line(at)).map(|(file, line)| format!("{file}:{line}")),
                predicted: independent,
                predicted_equal: Some(equal).filter(|_| self.times.times.variance.equal.is_finite()),
                measured: None,
            }
        };
        self.times.times.shares.iter().map(cause).collect()
    }

    /// Whether a block ends in a call. Its branch is then whether the call has returned.
    fn ends_in_call(&self, block: usize) -> bool {
        self.counts.counts.call_sites.iter().any(|call| call.block == block)
    }

    /// A table of the causes.
    fn explanation(&self, code: &ModuleCode, width: Option<usize>) -> String {
        let name = &self.counts.id.function;
        let causes = self.causes(code);
        if causes.is_empty() {
            return format!(
                "\n{HEADING}{name}{HEADING:#}: no branch and no callee makes calls differ (numbers of iterations are not measured)\n"
            );
        }
        let mut table = TextTable::new().right("SHARE").left("CAUSE").left("AT").shrinking("SOURCE");
        for cause in causes.into_iter().take(ROWS) {
            let what = match cause.what {
                "branch" => "ways of a branch",
                "exit" => "end of a loop",
                "left" => "calls that have not returned",
                "loop" => "iterations of a loop",
                "callee" => "a called function",
                _ => "entries in the middle",
            };
            let percent = format!("{:.1} %", 100.0 * cause.predicted);
            let source = cause.source.unwrap_or_default();
            table.row(vec![percent.into(), what.into(), cause.at.unwrap_or_default().into(), source.into()]);
        }
        let table = table.render(width);
        format!(
            "\n{HEADING}{name}{HEADING:#}: what the variance comes from, if iterations do not depend on each other\n{table}"
        )
    }
}
