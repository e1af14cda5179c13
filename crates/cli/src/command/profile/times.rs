//! `ingraft profile times`: mean and variance of the times of functions, and what the variance of one of them comes from.

use std::cmp::Reverse;

use ingraft_api::{EnableRequest, Kind, MeasuredSuspects, SharesOptions};
use ingraft_model::Capacity;
use ingraft_report::{
    ComparedCounters, CostFit, CostUnit, CounterCost, ModuleCode, NoTimes, NodeTime, PredictedTimes, SavedProfile,
    TimedPart, Untimed, VarianceCause, VarianceRange, VarianceShare, compared_counters, profiled_callees, times,
};

use crate::args::{Format, ProfileArgs, TimesUnit};
use crate::command::report::modules;
use crate::exit::{Failure, Stop};
use crate::measure::TargetMeasurement;
use crate::objects::times::{CauseObject, CounterPlacesObject, TimeCostsObject, TimeObject};
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped_u64, plural, short, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, Output};

use super::explained::Explanation;
use super::others::MeasuredRecords;
use super::suspects::{CalleeTime, suspects};
use super::timed::TimedFunction;
use super::trips::{self, MeasuredTrips};
use super::{Counts, ROWS, share};

/// Largest number of calls that are measured in a second.
const LIMIT: u32 = 50_000;
/// Capacity of the buffer of each thread in bytes: that of the calls of a tenth of a second.
const BUFFER: u32 = 1 << 19;

/// Choices for times.
#[derive(Debug)]
pub(super) struct TimesOptions {
    unit: CostUnit,
    /// Other measurements of the program.
    records: MeasuredRecords,
    /// Whether the iterations of loops are printed.
    trips: bool,
    /// Whether placements of counters are compared.
    counters: bool,
}

impl TimesOptions {
    /// Takes the choices from the flags, and reads the files that they name.
    pub(super) fn of(args: &ProfileArgs) -> Result<Self, Failure> {
        let records = MeasuredRecords::read(&args.measured)?;
        let unit = match args.unit {
            Some(TimesUnit::Ns) => CostUnit::Nanoseconds,
            Some(TimesUnit::Instructions) | None => CostUnit::Instructions,
        };
        if unit == CostUnit::Nanoseconds && !records.has_times() {
            let hint = "measure with `ingraft latency FUNCTION… --format json > FILE`, and add `--measured FILE`";
            return Err(Failure::usage("times in nanoseconds need measured times of calls", hint));
        }
        Ok(TimesOptions { unit, records, trips: args.trips, counters: args.counters })
    }
}

/// A number that has a bound.
fn finite(number: f64) -> Option<f64> {
    Some(number).filter(|number| number.is_finite())
}

/// The times of a process.
pub(super) struct ProcessTimes<'p> {
    host: Option<String>,
    pid: i32,
    unit: CostUnit,
    trips: bool,
    counters: bool,
    /// Costs that were fitted to measured times.
    costs: Option<CostFit>,
    profile: &'p SavedProfile,
    timed: Vec<TimedFunction<'p>>,
    /// Functions whose times do not follow from their counts, with the reasons.
    without: Vec<(Counts<'p>, Untimed)>,
    /// Functions that have run, and of which no call began while they were profiled.
    in_progress: Vec<Counts<'p>>,
    /// Values that were measured of the function whose module and offset these are; `None` if nothing was.
    measured: Option<(&'p Suspected, &'p MeasuredSuspects)>,
    /// Measured numbers of iterations.
    loops: MeasuredTrips<'p>,
}

/// A function of whose parts some are suspected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspected {
    /// Index of the daemon's process among those that are measured: its host and id.
    process: (Option<String>, i32),
    module: String,
    /// Offset of the first instruction.
    offset: String,
}

impl Suspected {
    /// Whether a measurement is about the process of the function.
    pub(super) fn is_of(&self, site: &TargetMeasurement) -> bool {
        self.process == (site.host(), site.pid())
    }

    fn is(&self, id: &RecordedFunction) -> bool {
        self.module == id.module && self.offset == id.offset
    }
}

impl<'p> ProcessTimes<'p> {
    /// Computes the times of the functions of a profile.
    pub(super) fn of(site: &TargetMeasurement, profile: &'p SavedProfile, options: &TimesOptions) -> Self {
        let (mut timed, mut without, mut in_progress) = (Vec::new(), Vec::new(), Vec::new());
        let unit = options.unit;
        let others = options.records.of(Counts::all(site, profile), profile);
        let computed = times(profile, &others, unit);
        let mut all: Vec<_> = computed.functions.into_iter().map(Some).collect();
        let mut compared: Vec<_> = match options.counters {
            true => compared_counters(profile).into_iter().map(Result::ok).collect(),
            false => Vec::new(),
        };
        for counts in Counts::all(site, profile) {
            match all.get_mut(counts.index).and_then(Option::take) {
                Some(Ok(times)) => {
                    let measured = others.calls.get(counts.index).copied().flatten();
                    let measured = measured.filter(|_| unit == CostUnit::Nanoseconds);
                    let counters = compared.get_mut(counts.index).and_then(Option::take);
                    timed.push(TimedFunction { counts, times, unit, measured, counters });
                }
                Some(Err(Untimed::NoTimes(NoTimes::NotCalled))) if counts.instructions() > 0 => {
                    in_progress.push(counts)
                }
                Some(Err(Untimed::NoTimes(NoTimes::NotCalled))) | None => {}
                Some(Err(why)) => without.push((counts, why)),
            }
        }
        let TimesOptions { trips, counters, .. } = *options;
        let (host, pid) = (site.host(), site.pid());
        let costs = computed.costs;
        let (measured, loops) = (None, MeasuredTrips::new());
        ProcessTimes { host, pid, unit, trips, counters, costs, profile, timed, without, in_progress, measured, loops }
    }

    /// The same with what was measured of parts of a function, and of loops.
    pub(super) fn confirmed(
        self,
        measured: Option<(&'p Suspected, &'p MeasuredSuspects)>,
        loops: MeasuredTrips<'p>,
    ) -> Self {
        ProcessTimes { measured, loops, ..self }
    }

    /// A request to measure the iterations of the loops that iterate most. `None` if that was not asked for, or if they have less than `least` entries.
    pub(super) fn trips_request(&self, least: u64) -> Option<EnableRequest> {
        let all: Vec<&TimedFunction<'_>> = self.timed.iter().filter(|_| self.trips).collect();
        trips::request(&all, least)
    }

    /// The suspected parts of the function with a name, and a request to measure them. `None` if fewer than `least` of its calls began, or if nothing is
    /// suspected. Of several functions with the name, the one with the most instructions is taken.
    pub(super) fn suspect(&self, name: &str, least: u64) -> Option<(Suspected, EnableRequest)> {
        let one = self.named(name).max_by_key(|one| one.counts.instructions())?;
        let callees = profiled_callees(self.profile, one.counts.counts).into_iter().map(|callee| {
            let callee = self.timed.iter().find(|other| Some(other.counts.index) == callee)?;
            let PredictedTimes { mean, variance, .. } = &callee.times.times;
            Some(CalleeTime { mean: *mean, variance: variance.independent })
        });
        let suspects = suspects(one.counts.counts, &one.times, &callees.collect::<Vec<_>>());
        if suspects.is_empty() || one.counts.counts.calls < least {
            return None;
        }
        let id = &one.counts.id;
        let suspected =
            Suspected { process: (self.host.clone(), self.pid), module: id.module.clone(), offset: id.offset.clone() };
        let functions = vec![format!("{}+{}", id.module, id.offset)];
        let capacity = Capacity::of_bytes(BUFFER)?;
        let kind = Kind::Shares(SharesOptions { suspects, limit: Some(LIMIT), capacity });
        Some((suspected, EnableRequest { functions, kind, ..EnableRequest::default() }))
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
            one.places().map_or(Ok(()), |record| out.object(&Object::CounterPlaces(record)))?;
            let trips = trips::records(one, &self.loops);
            trips.into_iter().try_for_each(|record| out.object(&Object::Trips(record)))?;
        }
        if let Some(record) = self.cost_record() {
            out.object(&Object::TimeCosts(record))?;
        }
        for (one, code) in self.explained(explained, format) {
            let Explanation { causes, whole, .. } = self.explanation(one, &code);
            causes.into_iter().try_for_each(|cause| out.object(&Object::Cause(cause)))?;
            whole.map_or(Ok(()), |whole| out.object(&Object::Explained(whole)))?;
        }
        Ok(())
    }

    /// The causes of the variance of a function.
    fn explanation(&self, one: &TimedFunction<'_>, code: &ModuleCode) -> Explanation {
        let measured = self.measured.filter(|(suspected, _)| suspected.is(&one.counts.id));
        Explanation::new(one, code, measured.map(|(_, measured)| measured))
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
        let is_measured = self.unit == CostUnit::Nanoseconds;
        let mut table = TextTable::new()
            .shrinking("FUNCTION")
            .left("MODULE")
            .right("CALLS")
            .right("SHARE")
            .right("SELF")
            .right("MEAN")
            .right("DEVIATION")
            .right("INDEPENDENT");
        table = if is_measured { table.right("MEASURED").right("ITS DEVIATION") } else { table };
        table = table.right("CALLS LEFT OUT").optional(&["SHARE", "MODULE"]);
        for one in all.iter().take(ROWS) {
            table.row(one.cells(whole, is_measured));
        }
        let mut text = table.render(width) + &self.notes();
        if let Some(first) = self.in_progress.first() {
            let count = plural(self.in_progress.len() as u64, "function", "functions");
            let name = &first.id.function;
            text += &format!("{DIM}{count} have run, and no call of them began: {name}{DIM:#}\n");
        }
        if self.trips {
            text += &trips::table(&all, &self.loops, width);
        }
        if self.counters {
            text += &counters_table(&all, width);
        }
        for (one, code) in self.explained(explained, format) {
            text += &self.explanation(one, &code).text(&one.counts.id.function, width);
        }
        text
    }

    /// Explains the columns of the table.
    fn notes(&self) -> String {
        let (unit, own) = match self.unit {
            CostUnit::Instructions => ("numbers of instructions in a call", "SELF is exact; SHARE is that of SELF."),
            CostUnit::Nanoseconds => ("those of a call", "SELF is predicted; SHARE is that of the instructions."),
        };
        let mut text = format!(
            "{DIM}Times are {unit}. {own} MEAN is predicted with the means of the profiled\n\
             functions that it calls, without CALLS LEFT OUT, whose callees are not known or have no times. The deviations are predicted,\n\
             as if loops had as many iterations each time: DEVIATION if all iterations of a loop take equally long, INDEPENDENT if they\n\
             do not depend on each other.{DIM:#}\n"
        );
        if let Some(record) = self.cost_record() {
            let costs = [
                (record.instruction_ns, "for an instruction"),
                (record.memory_ns, "more for an access to memory"),
                (record.branch_ns, "more for a branch"),
                (record.left_out_call_ns, "for a call that is left out"),
                (record.call_ns, "for being called"),
            ];
            let costs = costs.iter().filter(|(cost, _)| *cost > 0.0);
            let costs: Vec<String> = costs.map(|(cost, what)| format!("{} {what}", time(*cost))).collect();
            text += &format!(
                "{DIM}Costs were fitted to the measured times of {} without callees: {}. The times so predicted are off by {:.0} %.{DIM:#}\n",
                plural(record.functions, "function", "functions"),
                costs.join(", "),
                100.0 * record.error,
            );
        }
        text
    }

    /// The record of the fitted costs.
    fn cost_record(&self) -> Option<TimeCostsObject> {
        let fit = self.costs.as_ref()?;
        let [instruction_ns, memory_ns, branch_ns, left_out_call_ns, call_ns] = *fit.costs.first_chunk()?;
        Some(TimeCostsObject {
            host: self.host.clone(),
            pid: self.pid,
            instruction_ns,
            memory_ns,
            branch_ns,
            left_out_call_ns,
            call_ns,
            functions: fit.rows as u64,
            error: fit.error,
        })
    }
}

/// Placements of counters, for the functions with the most executed instructions.
fn counters_table(all: &[&TimedFunction<'_>], width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("FUNCTION")
        .right("BLOCKS")
        .right("INCREMENTS")
        .right("CONDITIONS")
        .right("INCREMENTS")
        .right("PAPER")
        .right("INCREMENTS")
        .right("TREE")
        .right("INCREMENTS");
    let known = all.iter().filter_map(|one| Some((one, one.counters?)));
    for (one, counters) in known.take(ROWS) {
        let ComparedCounters { blocks, conditions, control, tree } = counters;
        let cells = [blocks, conditions, control, tree]
            .map(|CounterCost { counters, increments }| [grouped_u64(counters).into(), short(increments).into()]);
        table
            .row([Cell::from(one.counts.id.function.clone())].into_iter().chain(cells.into_iter().flatten()).collect());
    }
    format!(
        "\n{}{DIM}Counters, and what they would have executed: in each block; for each control condition; for the conditions whose counts do\n\
         not follow from others (Sarkar 1989, section 3); on the edges that a maximum spanning tree lacks (Ball and Larus 1994), as here.\n\
         All are in the places that are cheapest for these counts.{DIM:#}\n",
        table.render(width)
    )
}

impl TimedFunction<'_> {
    /// A time for people.
    pub(super) fn number(&self, value: f64) -> String {
        match self.unit {
            CostUnit::Instructions => short(value),
            CostUnit::Nanoseconds => time(value),
        }
    }

    /// The cells of the function in the table; `whole` is the number of instructions of all functions.
    fn cells(&self, whole: u64, is_measured: bool) -> Vec<Cell> {
        let PredictedTimes { mean, variance, .. } = &self.times.times;
        let left_out = Some(self.times.left_out).filter(|calls| *calls > 0.0);
        let mut cells = vec![
            self.counts.id.function.clone().into(),
            Cell::styled(self.counts.id.module.clone(), DIM),
            grouped_u64(self.counts.counts.calls).into(),
            share(self.counts.instructions(), whole).into(),
            self.number(self.times.own).into(),
            self.number(*mean).into(),
            finite(variance.equal.sqrt()).map_or_else(|| "∞".to_owned(), |deviation| self.number(deviation)).into(),
            self.number(variance.independent.sqrt()).into(),
        ];
        if is_measured {
            let measured = |value: Option<f64>| value.map(time).unwrap_or_default();
            cells.push(measured(self.measured.map(|measured| measured.mean)).into());
            cells.push(measured(self.measured.and_then(|measured| measured.stddev)).into());
        }
        cells.push(left_out.map_or_else(String::new, short).into());
        cells
    }

    /// The record of the counters of the function.
    fn places(&self) -> Option<CounterPlacesObject> {
        let ComparedCounters { blocks, conditions, control, tree } = self.counters?;
        Some(CounterPlacesObject {
            id: self.counts.id.clone(),
            blocks: blocks.counters,
            block_increments: blocks.increments,
            conditions: conditions.counters,
            condition_increments: conditions.increments,
            control_counters: control.counters,
            control_increments: control.increments,
            tree_counters: tree.counters,
            tree_increments: tree.increments,
        })
    }

    /// Offset of the block that is or begins a part; `None` for the function.
    pub(super) fn node(&self, part: TimedPart) -> Option<String> {
        match part {
            TimedPart::Function => None,
            TimedPart::Block(block) | TimedPart::Loop(block) => self.counts.block(block),
        }
    }

    /// The records of the function and of its loops and blocks that have run.
    fn records(&self) -> Vec<TimeObject> {
        let measured = |node: &NodeTime| self.measured.filter(|_| node.origin == TimedPart::Function);
        let record = |node: &NodeTime| TimeObject {
            id: self.counts.id.clone(),
            node: self.node(node.origin),
            kind: match node.origin {
                TimedPart::Function => "function",
                TimedPart::Block(_) => "block",
                TimedPart::Loop(_) => "loop",
            },
            unit: match self.unit {
                CostUnit::Instructions => "instructions",
                CostUnit::Nanoseconds => "ns",
            },
            frequency: node.frequency,
            iterations: node.iterations,
            mean: node.mean,
            variance: finite(node.variance.equal),
            stddev: finite(node.variance.equal.sqrt()),
            independent_stddev: node.variance.independent.sqrt(),
            measured_mean: measured(node).map(|calls| calls.mean),
            measured_stddev: measured(node).and_then(|calls| calls.stddev),
            own: (node.origin == TimedPart::Function).then_some(self.times.own),
            calls_left_out: (node.origin == TimedPart::Function).then_some(self.times.left_out),
            inexact: self.counts.counts.inexact.clone(),
        };
        self.times.times.nodes.iter().filter(|node| node.frequency > 0.0).map(record).collect()
    }

    /// The causes of the variance.
    pub(super) fn causes(&self, code: &ModuleCode) -> Vec<CauseObject> {
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
                predicted_equal: Some(equal).filter(|_| self.is_bounded()),
                measured: None,
                missed: None,
            }
        };
        self.times.times.shares.iter().map(cause).collect()
    }

    /// Whether the variance has a bound if all iterations of an entry of a loop take equally long.
    pub(super) fn is_bounded(&self) -> bool {
        self.times.times.variance.equal.is_finite()
    }

    /// Whether a block ends in a call. Its branch is then whether the call has returned.
    fn ends_in_call(&self, block: usize) -> bool {
        self.counts.counts.call_sites.iter().any(|call| call.block == block)
    }
}
