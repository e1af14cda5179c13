//! Requests from the flags of a command: their targets, their options, and the files with definitions.

use ingraft_api::{EnableRequest, Terms};

use crate::args;
use crate::conn::{InsertionRequest, ProcessSelector, RequestTarget};
use crate::exit::Failure;

/// Returns the targets that the flags name.
pub(super) fn targets(target: &args::TargetArgs) -> Vec<RequestTarget> {
    if !target.command.is_empty() {
        return vec![RequestTarget::Command(target.command.clone())];
    }
    all_running(&target.running)
}

/// Returns the running targets that the flags name; a name or control group whose processes are all meant is one target.
pub(crate) fn all_running(target: &args::RunningTargets) -> Vec<RequestTarget> {
    match choice(&target.single, target.all, target.cgroup.as_deref()) {
        Some(choice) => vec![RequestTarget::Each(choice)],
        None => running(&target.single),
    }
}

/// Returns the name or control group whose processes the flags all mean; `None` if the flags mean single processes.
pub(crate) fn choice(running: &args::RunningTarget, all: bool, cgroup: Option<&str>) -> Option<ProcessSelector> {
    let name = running.name.clone().filter(|_| all || cgroup.is_some());
    let choice = ProcessSelector { name, cgroup: cgroup.map(str::to_owned) };
    (choice.name.is_some() || choice.cgroup.is_some()).then_some(choice)
}

/// The request for a measurement: `own` is what the command asks for, and the rest is what the flags say.
pub(crate) fn request(target: RequestTarget, flags: &args::Measure, own: EnableRequest) -> InsertionRequest {
    let measure = EnableRequest {
        keep: flags.no_remove,
        max_overhead: flags.max_overhead,
        max_hold: flags.max_hold,
        beside_uprobes: flags.beside_uprobes,
        family: flags.follow.contains(&args::FollowMode::Fork),
        await_modules: flags.wait.is_some() || target.is_started(),
        ..own
    };
    InsertionRequest { target, measure, terms: Terms { history: false, wait: flags.wait.unwrap_or_default() } }
}

/// Returns the single running targets that the flags name.
pub(crate) fn running(target: &args::RunningTarget) -> Vec<RequestTarget> {
    if let Some(name) = &target.name {
        return vec![RequestTarget::Name(name.clone())];
    }
    let mut pids = target.pids.clone();
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().map(RequestTarget::Pid).collect()
}

/// Reads MDL files.
pub(crate) fn sources(files: &[std::path::PathBuf]) -> Result<Vec<(String, String)>, Failure> {
    files
        .iter()
        .map(|path| {
            let name = path.display().to_string();
            match std::fs::read(path) {
                // Bytes that are no UTF-8 become a diagnostic about the definitions, not an error of the command.
                Ok(bytes) => Ok((name, String::from_utf8_lossy(&bytes).into_owned())),
                Err(e) => Err(Failure::usage(format!("cannot read {name}: {e}"), "check the path")),
            }
        })
        .collect()
}
