//! Requests, and the processes that they are about.

use std::ffi::OsString;

use ingraft_api::{EnableRequest, Reason, TargetSpec, Terms};
use ingraft_model::Pid;

use crate::exit::{Exit, Failure};

/// The process or processes that a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestTarget {
    /// The process with this id.
    Pid(i32),
    /// The one process of this name.
    Name(String),
    /// Every process of a name or a control group.
    Each(ProcessSelector),
    /// A command to start, with its arguments.
    Command(Vec<OsString>),
}

/// A name, a control group, or both; selects every process that matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ProcessSelector {
    /// The command name, or the base name of the first argument or of the executable.
    pub(crate) name: Option<String>,
    /// The path of a control group.
    pub(crate) cgroup: Option<String>,
}

impl ProcessSelector {
    /// The failure if no process matches the choice.
    pub(crate) fn nobody(&self) -> Failure {
        let what = match (&self.name, &self.cgroup) {
            (Some(name), Some(group)) => format!("no process of the control group `{group}` is called `{name}`"),
            (None, Some(group)) => format!("no process is in the control group `{group}`"),
            (name, None) => format!("no process is called `{}`", name.as_deref().unwrap_or_default()),
        };
        Failure::new(Exit::NotFound, what, "`ingraft ps` lists the processes").because(Reason::NoSuchProcess)
    }
}

/// A measurement to insert.
#[derive(Clone, Debug)]
pub(crate) struct InsertionRequest {
    /// Process to insert the measurement into. The target of `measure` is ignored.
    pub(crate) target: RequestTarget,
    /// The measurement.
    pub(crate) measure: EnableRequest,
    /// Terms that the daemon keeps, and not its engine.
    pub(crate) terms: Terms,
}

impl RequestTarget {
    /// Whether the target is a program that the command starts.
    pub(crate) fn is_started(&self) -> bool {
        matches!(self, RequestTarget::Command(_))
    }

    /// The process for an engine, which knows no command and no choice of processes.
    pub(crate) fn spec(&self) -> TargetSpec {
        match self {
            RequestTarget::Pid(pid) => TargetSpec::Pid(Pid(*pid)),
            RequestTarget::Name(name) => TargetSpec::Name(name.clone()),
            RequestTarget::Each(_) | RequestTarget::Command(_) => TargetSpec::default(),
        }
    }
}

impl InsertionRequest {
    /// Id of the process that the request names; `None` if the request names it in another way.
    pub(crate) fn pid(&self) -> Option<i32> {
        match self.target {
            RequestTarget::Pid(pid) => Some(pid),
            RequestTarget::Name(_) | RequestTarget::Each(_) | RequestTarget::Command(_) => None,
        }
    }
}
