//! Warnings about a new measurement: the parts that its values lack, and their cost.

use ingraft_analysis::AsyncUnwinder;
use ingraft_model::{CpuClock, FunctionId, WallClock};
use ingraft_process::{Target, TickClock};

use crate::measure::request::{Missing, WantedPair};
use crate::measure::{calls, request, sizes};
use crate::pairs::PairKey;
use crate::program::labels;
use crate::program::modules::Modules;
use crate::program::stubs;
use crate::weaving::cost::Prices;

use super::control::Control;
use super::driver::Session;
use super::enable::NewMeasurement;
use super::kind::Running;
use super::measurement::warnings_of;
use super::view::View;

/// Beginning of the warning that each clock of processor time needs a system call.
const SYSTEM_CALLS: &str =
    "processor time is read by a system call at each entry and exit here, some hundred nanoseconds, because";
const NO_AREAS: &str = "the program's threads have no rseq areas that tell of switches";
const NO_COUNTER: &str = "the time stamp counter is not the clock";

/// Warning for definitions that call functions.
const CALLS_COST: &str = "what the called functions themselves take is in no cost";

/// Result of a thread that ends in a signal handler which has interrupted generated code.
const CUT_SHORT: &str =
    "if the signal has interrupted the code of a point, the thread skips its destructors and cleanup handlers";

/// Warnings that follow from a request, from the kind of its measurement, and from its target before the insertion.
pub(super) fn of_request(
    (target, modules): (&Target, &Modules),
    (new, kind): (&NewMeasurement<'_>, &dyn Running),
    awaited: &[request::Awaited],
) -> Vec<String> {
    let request = new.request;
    let flavors = new.library.unknown_flavors(&request.flavors).into_iter().map(with_help);
    let from_memory = modules.loaded().filter(|(_, _, m)| m.from_memory);
    let from_memory =
        from_memory.map(|(_, file, _)| format!("{} was read from memory: its file cannot be reached", file.name));
    let mut warnings: Vec<String> = flavors.chain(from_memory).collect();
    if new.missing == Missing::ModulesMayCome {
        warnings.extend(warnings_of(awaited, modules));
    }
    warnings.extend(is_stopped(target).then(|| STOPPED.to_owned()));
    warnings.extend(labels::warning(modules, &request.functions));
    warnings.extend(stubs::warning(modules, &request.functions));
    warnings.extend(kind.warnings(modules));
    warnings
}

/// Warnings about the values of events and of metrics.
pub(super) fn of_values(before: &[View], wanted: &[WantedPair]) -> Vec<String> {
    let events = before.iter().filter_map(|v| v.own.as_ref()?.events()?.warning());
    let metrics = wanted.iter().flat_map(|w| w.warnings.iter().map(ToString::to_string));
    events.chain(metrics).collect()
}

/// The warning that the time in called functions is not in the cost, if any function is called.
pub(super) fn of_calls(wanted: &[WantedPair]) -> Option<String> {
    wanted.iter().any(|w| calls::has_calls(&w.instrumentation)).then(|| CALLS_COST.to_owned())
}

/// Warning about a process that a signal has stopped.
pub const STOPPED: &str =
    "the process is stopped, as by SIGSTOP or Ctrl-Z, and does nothing until a SIGCONT (kill -CONT) lets it go on";

/// Whether a signal has stopped a process. A thread that is held for a moment is in another state.
pub fn is_stopped(target: &Target) -> bool {
    target.status().is_ok_and(|status| status.state == 'T')
}

impl Session {
    /// Warnings about pairs that were woven.
    pub(super) fn insertion_warnings(&self, control: &Control, keys: &[(PairKey, Option<FunctionId>)]) -> Vec<String> {
        let pairs = || keys.iter().filter_map(|(key, _)| Some((key, control.pairs.get(key)?)));
        let unmeasured =
            keys.iter().filter_map(|(key, function)| control.pairs.get(key)?.why_unmeasured(key, *function));
        let mut warnings: Vec<String> = unmeasured.collect();
        let resolutions = pairs().filter_map(|(_, pair)| sizes::of_variables(&pair.variables));
        warnings.extend(resolutions.min().and_then(sizes::warning));
        warnings.extend(self.mapped_again(control));
        if let Some((AsyncUnwinder::Handler, name)) = control.modules.unwinder() {
            warnings.push(format!("the signal handler {name} may end its thread: {CUT_SHORT}"));
        }
        // the C library of a program that is started is mapped later
        warnings.extend(control.family.births().first_warning());
        warnings
    }

    /// Warnings about the clocks that the code of a request reads.
    pub(super) fn clock_warnings(&self, control: &Control, reads_wall: bool, reads_cpu: bool) -> Vec<String> {
        let mut warnings = Vec::new();
        if reads_wall {
            warnings.extend(control.attached.as_ref().and_then(|a| self.other_clock(a.env.wall)));
        }
        let calling = control.attached.as_ref().filter(|a| reads_cpu && a.env.cpu == CpuClock::SystemCall);
        if let Some(attached) = calling {
            let why = if attached.env.wall == WallClock::Tsc { NO_AREAS } else { NO_COUNTER };
            warnings.push(format!("{SYSTEM_CALLS} {why}"));
        }
        warnings
    }

    /// Warnings about code that the program has mapped a second time at another address.
    fn mapped_again(&self, control: &Control) -> Vec<String> {
        let Some(attached) = &control.attached else { return Vec::new() };
        let warning = |module| {
            let at = control.modules.again(module, attached.woven.text_of(module).map(|w| w.at))?;
            let name = &control.modules.file(module)?.name;
            Some(format!(
                "code of {name} is mapped a second time, at {:#x}: calls that are made there are not counted",
                at.0
            ))
        };
        attached.woven.modules().into_iter().filter_map(warning).collect()
    }

    /// The warning that code reads another clock than the time stamp counter, with the cost of that.
    fn other_clock(&self, wall: WallClock) -> Option<String> {
        let prices = Prices::here();
        let (how, ns) = match wall {
            WallClock::Tsc => return None,
            WallClock::Vdso(_) => ("through the vDSO", prices.vdso_ns),
            WallClock::SystemCall => ("by a system call", prices.system_call_ns),
        };
        let problem = self.clocks.wall().ok().and_then(TickClock::problem);
        let why = problem.map_or_else(|| "as was asked for".to_owned(), |problem| format!("because {problem}"));
        Some(format!("the time is read {how}, some {ns:.0} ns each time, {why}"))
    }
}

/// A diagnostic as one line with its help, without its code.
fn with_help(ingraft_mdl::Diagnostic { message, help, .. }: ingraft_mdl::Diagnostic) -> String {
    help.map_or_else(|| message.clone(), |help| format!("{message}; {help}"))
}
