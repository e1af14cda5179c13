//! Metrics whose values the engine itself knows, without code in the target.

use ingraft_model::{Aggregate, MetricInfo, Style, UnitsType};

/// A metric of the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Internal {
    /// Time in which at least one thread of the target was held.
    PauseTime,
    /// Cost of the woven code, predicted from the latest rates.
    PredictedCost,
    /// Cost of the hits so far.
    ObservedCost,
    /// Number of processors of the machine.
    NumberOfCpus,
    /// Number of threads of the target.
    ActiveThreads,
    /// Number of threads of the target, under its other name.
    CurrentThreads,
    /// Number of pairs with a counter.
    ActCounters,
    /// Number of pairs with a timer of wall time.
    ActWallTimers,
    /// Number of pairs with a timer of processor time.
    ActProcTimers,
    /// Whether the target runs.
    ActiveProcesses,
    /// Number of calls that definitions made and that ended otherwise than by a return.
    CallsLeft,
    /// Number of times that code which calls or sets something was left out.
    CallsMissed,
    /// Number of memory reads that failed.
    ReadsFailed,
    /// Number of memory stores that failed.
    WritesFailed,
    /// Number of readings of processor events that failed.
    EventsUnread,
}

/// Description of an [`Internal`], in the order of [`MetricInfo`].
struct InternalFacts {
    name: &'static str,
    unit: &'static str,
    aggregate: Aggregate,
    units_type: UnitsType,
    developer: bool,
    doc: &'static str,
}

impl Internal {
    /// All metrics of the engine itself.
    pub const ALL: [Internal; 15] = [
        Internal::PauseTime,
        Internal::PredictedCost,
        Internal::ObservedCost,
        Internal::NumberOfCpus,
        Internal::ActiveThreads,
        Internal::CurrentThreads,
        Internal::ActCounters,
        Internal::ActWallTimers,
        Internal::ActProcTimers,
        Internal::ActiveProcesses,
        Internal::CallsLeft,
        Internal::CallsMissed,
        Internal::ReadsFailed,
        Internal::WritesFailed,
        Internal::EventsUnread,
    ];

    /// The metric with that name.
    pub fn named(name: &str) -> Option<Internal> {
        Internal::ALL.into_iter().find(|i| i.facts().name == name)
    }

    /// Whether the value accumulates from the request on; otherwise it is a level.
    pub fn adds_up(self) -> bool {
        self.facts().units_type == UnitsType::Normalized
    }

    #[expect(clippy::too_many_lines, reason = "a table")]
    fn facts(self) -> InternalFacts {
        let level = |name, unit, aggregate, developer, doc| InternalFacts {
            name,
            unit,
            aggregate,
            units_type: UnitsType::Sampled,
            developer,
            doc,
        };
        let time = |name, aggregate, doc| InternalFacts {
            name,
            unit: "CPUs",
            aggregate,
            units_type: UnitsType::Normalized,
            developer: false,
            doc,
        };
        match self {
            Internal::PauseTime => time(
                "pause_time",
                Aggregate::Max,
                "Time in which threads of the target were held for ingraft's changes.",
            ),
            Internal::ObservedCost => time(
                "observed_cost",
                Aggregate::Sum,
                "Processor time that the woven code has taken: how often it ran, each time at its worst case.",
            ),
            Internal::PredictedCost => level(
                "predicted_cost",
                "ns/s",
                Aggregate::Sum,
                false,
                "Nanoseconds of processor time in a second that the woven code takes if it runs on as often as lately.",
            ),
            Internal::NumberOfCpus => {
                level("number_of_cpus", "CPUs", Aggregate::Sum, false, "Processors of the machine that are on line.")
            }
            Internal::ActiveThreads => {
                level("active_threads", "threads", Aggregate::Max, false, "Threads of the target.")
            }
            Internal::CurrentThreads => {
                level("numOfCurrentThreads", "threads", Aggregate::Max, true, "Threads of the target.")
            }
            Internal::ActCounters => {
                level("numOfActCounters", "counters", Aggregate::Max, true, "Pairs of this target with a counter.")
            }
            Internal::ActWallTimers => level(
                "numOfActWallTimers",
                "timers",
                Aggregate::Max,
                true,
                "Pairs of this target with a timer of the time that passes.",
            ),
            Internal::ActProcTimers => level(
                "numOfActProcTimers",
                "timers",
                Aggregate::Max,
                true,
                "Pairs of this target with a timer of processor time.",
            ),
            Internal::ActiveProcesses => level(
                "active_processes",
                "processes",
                Aggregate::Sum,
                false,
                "Processes of the request that have not ended.",
            ),
            Internal::CallsLeft => level(
                "calls_left",
                "calls",
                Aggregate::Sum,
                false,
                "Calls of functions of the target by definitions that did not return.",
            ),
            Internal::CallsMissed => level(
                "calls_missed",
                "calls",
                Aggregate::Sum,
                false,
                "How often code that calls a function or sets a variable was left out, because its thread had no counters of its own.",
            ),
            Internal::ReadsFailed => level(
                "reads_failed",
                "reads",
                Aggregate::Sum,
                false,
                "Readings of the target's memory by definitions that found nothing there and gave 0.",
            ),
            Internal::WritesFailed => level(
                "writes_failed",
                "writes",
                Aggregate::Sum,
                false,
                "How often definitions were to set memory of the target that could not be written, and left it as it was.",
            ),
            Internal::EventsUnread => level(
                "events_unread",
                "reads",
                Aggregate::Sum,
                false,
                "Readings of events of the processor by definitions that found no counter: values that begin or end there are too small.",
            ),
        }
    }

    /// Description of the metric for lists.
    pub fn info(self) -> MetricInfo {
        let InternalFacts { name, unit, aggregate, units_type, developer, doc } = self.facts();
        let style = if units_type == UnitsType::Sampled { Style::SampledFunction } else { Style::EventCounter };
        MetricInfo {
            name: name.to_owned(),
            unit: unit.to_owned(),
            aggregate,
            style,
            units_type,
            histogram: false,
            constraints: Vec::new(),
            flavors: Vec::new(),
            developer,
            doc: doc.to_owned(),
            text: "".into(),
        }
    }
}

/// Reason why a metric of Paradyn's daemon or front end has no meaning here; `None` for other names.
pub fn without_meaning(name: &str) -> Option<&'static str> {
    Some(match name {
        "sampling_rate" => "every client reads at an interval of its own; --interval sets it",
        "stackwalk_time" => "stacks are only looked at while threads are held, which pause_time has",
        "bucket_width" => "values are not folded into buckets here",
        "cpu_daemon" => "the engine is a process of its own; watch it like any other",
        "hybrid_cost" | "smooth_obs_cost" => {
            "costs are exact counts of hits and need no smoothing; watch observed_cost"
        }
        _ => return None,
    })
}

/// Number of processors in a list of the kernel, such as `0-3,8`.
pub fn processors(list: &str) -> Option<i64> {
    list.trim().split(',').try_fold(0i64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (i64, i64) = (first.parse().ok()?, last.parse().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_once() {
        for internal in Internal::ALL {
            assert_eq!(Internal::named(&internal.info().name), Some(internal));
            assert_eq!(without_meaning(&internal.info().name), None);
        }
        assert!(without_meaning("sampling_rate").is_some());
    }

    #[test]
    fn processors_of_a_list() {
        assert_eq!(processors("0\n"), Some(1));
        assert_eq!(processors("0-3,8,10-11\n"), Some(7));
        assert_eq!(processors(""), None);
    }
}
