//! Sites, threads and observations for the tests of this folder.

use std::time::Duration;

use ingraft_api::{NamedFunction, SampledMode, SampledSite, SamplingReading, ThreadUsage, WaitedKind, WaitedThing};
use ingraft_model::{Pid, Svma, Tid};

use super::evidence::{Observation, nothing};

/// A function of a module, as `module:name`.
pub(super) fn function(text: &str) -> NamedFunction {
    let (module, function) = text.split_once(':').expect("a module");
    let offset = Svma(text.bytes().map(u64::from).sum());
    NamedFunction { module: module.to_owned(), function: function.to_owned(), offset }
}

/// A site of a thread that waits in this call.
pub(super) fn wait(tid: i32, call: &str, functions: &[&str], samples: u64) -> SampledSite {
    SampledSite {
        tid: Tid(tid),
        mode: SampledMode::Waiting,
        call: call.to_owned(),
        object: None,
        functions: functions.iter().copied().map(function).collect(),
        innermost: true,
        samples,
    }
}

pub(super) fn on(kind: WaitedKind, site: SampledSite) -> SampledSite {
    SampledSite { object: Some(WaitedThing { kind, ..WaitedThing::default() }), ..site }
}

/// Usage of a thread: looks in any state, looks that found it running, and waits.
pub(super) fn usage(tid: i32, looks: u64, running: u64, waits: u64) -> ThreadUsage {
    let cpu = Duration::from_secs(1).mul_f64(running as f64 / looks as f64);
    ThreadUsage { name: format!("t{tid}"), looks, running, waits, cpu, ..nothing(Tid(tid)) }
}

/// A site of a thread that runs.
pub(super) fn run(tid: i32, mode: SampledMode, functions: &[&str], samples: u64) -> SampledSite {
    SampledSite { mode, ..wait(tid, "", functions, samples) }
}

/// An observation of a second with these threads, waits and runs.
pub(super) fn observed(usage: Vec<ThreadUsage>, waits: Vec<SampledSite>, runs: Vec<SampledSite>) -> Observation {
    let mut observation = Observation::default();
    let span = Duration::from_secs(1);
    let pid = Pid(7);
    observation.add_waiting(SamplingReading { pid, span, usage, sites: waits, ..SamplingReading::default() });
    let period = Duration::from_millis(1);
    observation.add_running(SamplingReading { pid, span, period, sites: runs, ..SamplingReading::default() });
    observation
}
