//! Errors of the engine, with the reasons of the table in `ingraft_api`.

use std::borrow::Cow;

pub use ingraft_api::{ErrorClass, Reason};
use ingraft_mdl::Diagnostic;
use ingraft_model::Pid;
use ingraft_process::{ApplyError, Denial};

/// An error, with one line for the problem and one line for the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Reason, which has a stable word for scripts and the wire.
    pub reason: Reason,
    /// Problem in one line.
    pub what: String,
    /// Remedy in one line; empty if there is none.
    pub advice: Cow<'static, str>,
    /// Whether a removal has failed, so that the code is still inserted in the target.
    pub code_stays: bool,
    /// The target, if there is one.
    pub pid: Option<Pid>,
    /// Process of the engine that holds the target, or of the tracer, if that is the problem and the process is known.
    pub holder: Option<Pid>,
    /// Diagnostics of MDL, if the definitions are the problem.
    pub diagnostics: Box<[Diagnostic]>,
    /// Number of metric-focus pairs of the request, if there are too many.
    pub pairs: Option<usize>,
}

impl Error {
    /// An error without target and diagnostics.
    pub fn new(reason: Reason, what: impl Into<String>, advice: impl Into<Cow<'static, str>>) -> Self {
        Error {
            reason,
            what: what.into(),
            advice: advice.into(),
            code_stays: false,
            pid: None,
            holder: None,
            diagnostics: Box::default(),
            pairs: None,
        }
    }

    /// Line for the user: the state of the target, if the reason says it, and the remedy.
    pub fn hint(&self) -> String {
        let advice = &self.advice;
        match (self.pid.filter(|_| self.code_stays), self.reason.is_unchanged(), advice.is_empty()) {
            (Some(pid), _, nothing) => {
                let first = if nothing { "try again" } else { advice };
                format!("{first}; until then the code stays in, and works: `ingraft detach -p {pid}` takes it out")
            }
            (None, true, true) => "nothing was changed in the target".to_owned(),
            (None, true, false) => format!("nothing was changed; {advice}"),
            (None, false, _) => advice.clone().into_owned(),
        }
    }

    /// The same error with a target.
    #[must_use]
    pub fn about(mut self, pid: Pid) -> Self {
        self.pid = Some(pid);
        self
    }

    /// The error for MDL that cannot be used; the diagnostics state the places and reasons.
    pub fn mdl(diagnostics: Vec<Diagnostic>) -> Self {
        let first = diagnostics.iter().find(|d| d.is_error());
        let of_author =
            |d: &&Diagnostic| d.line > 0 && ingraft_mdl::shipped::FILES.iter().all(|(name, _)| *name != d.file);
        let what = first.map_or_else(String::new, |d| match Some(d).filter(of_author) {
            Some(d) => format!("{} ({}:{}:{})", d.message, d.file, d.line, d.column),
            None => d.message.clone(),
        });
        let hint = first.and_then(|d| d.help.clone()).unwrap_or_else(|| match first {
            // The text is the value of a flag or an argument, not a file.
            Some(d) if d.file.starts_with("--") || d.file == "command line" => {
                "docs/mdl.md has the language of expressions".to_owned()
            }
            Some(d) if of_author(&d) => format!("`ingraft check {}` shows what else can be told of the text", d.file),
            Some(d) if d.code == ingraft_mdl::codes::NOT_FOUND => {
                "`ingraft functions` lists the functions of a process by module".to_owned()
            }
            Some(d) if d.code == ingraft_mdl::codes::FOCUS => {
                "leave that part of the focus out, or name what is measured".to_owned()
            }
            _ => "`ingraft metrics` says what can be measured, and where".to_owned(),
        });
        let mut error = Error::new(Reason::Mdl, what, hint);
        error.diagnostics = diagnostics.into();
        error
    }

    /// The error for a failed operation on a process.
    pub fn process(pid: Pid, e: ingraft_process::ProcessError) -> Self {
        use ingraft_process::ProcessError as P;
        let reason = match &e {
            P::Denied(d) => reason_of_denial(d),
            P::Gone(_) => Reason::TargetEnded,
            P::Replaced(_) => Reason::TargetReplaced,
            P::Seccomp => Reason::Seccomp,
            P::UserDispatch => Reason::UserDispatch,
            P::ShadowStack => Reason::ShadowStack,
            P::Unstoppable { .. } => Reason::UnstoppableThread,
            P::HoldTooLong { .. } => Reason::HoldTooLong,
            P::NoRoom { .. } | P::JournalFull { .. } => Reason::NoRoom,
            P::Start { .. } => Reason::CannotStart,
            P::Call { source, .. } if source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => {
                Reason::TargetMemoryLimit
            }
            P::Shortage(_) => Reason::TargetMemoryLimit,
            P::Mappings { .. } => Reason::TargetMappingLimit,
            e if e.is_out_of_files() => Reason::TargetFileLimit,
            e if e.is_locked_out() => Reason::TargetMemoryLimit,
            P::NoCarrier(_) | P::NoGadget(_) => Reason::NoCarrier,
            P::Ptrace { .. }
            | P::File { .. }
            | P::Malformed { .. }
            | P::Memory { .. }
            | P::Call { .. }
            | P::NoArea { .. }
            | P::Outside(_)
            | P::Own { .. } => Reason::Process,
        };
        let holder = match &e {
            P::Denied(d) => tracer(d),
            _ => None,
        };
        Error { holder, ..Error::new(reason, e.to_string(), e.hint()).about(pid) }
    }

    /// The error for a plan that was not applied.
    pub fn apply(pid: Pid, e: ApplyError) -> Self {
        if let ApplyError::Process(e) = e {
            return Error::process(pid, e);
        }
        let (reason, advice) = match &e {
            ApplyError::Changed { .. } => (Reason::TextChanged, "something else patches the same code; end it first"),
            ApplyError::SharedText { .. } => {
                (Reason::SharedText, "start the program from a private mapping of its file")
            }
            ApplyError::NotMapped { .. } => (Reason::NotMapped, "the module was unloaded meanwhile; try again"),
            ApplyError::Busy { .. } | ApplyError::Suspended { .. } => (Reason::Busy, "try again"),
            ApplyError::Preempts => {
                (Reason::SuspendedContexts, "measure a process of this program that uses less memory")
            }
            ApplyError::Faulted { .. } => (Reason::Busy, "try again when the handler has returned"),
            ApplyError::BadPlan { .. } | ApplyError::Process(_) => (Reason::BadPlan, "this is a defect of ingraft"),
        };
        Error::new(reason, e.to_string(), advice).about(pid)
    }

    /// Whether a limit on the target's memory or mappings leaves too little room.
    pub fn is_shortage(&self) -> bool {
        matches!(self.reason, Reason::TargetMemoryLimit | Reason::TargetMappingLimit)
    }

    /// The same error for a removal: its hint says that the code is still inserted, and how to remove it later.
    #[must_use]
    pub fn at_removal(mut self) -> Self {
        self.code_stays = self.reason.class() != ErrorClass::Gone && self.reason != Reason::NoSuchMeasurement;
        self
    }

    /// The error for a process that cannot be attached to.
    pub fn denied(pid: Pid, d: &Denial) -> Self {
        Error { holder: tracer(d), ..Error::new(reason_of_denial(d), d.to_string(), d.hint()).about(pid) }
    }
}

/// The process that traces the target, if that is why it cannot be attached to.
fn tracer(d: &Denial) -> Option<Pid> {
    match d {
        Denial::Traced { tracer_pid, .. } => Some(*tracer_pid),
        _ => None,
    }
}

fn reason_of_denial(d: &Denial) -> Reason {
    match d {
        Denial::NoSuchProcess(_) => Reason::NoSuchProcess,
        Denial::Zombie(_) => Reason::Zombie,
        Denial::KernelThread(_) => Reason::KernelThread,
        Denial::Ourselves(_) => Reason::OwnProcess,
        Denial::Traced { .. } => Reason::AlreadyTraced,
        Denial::Translated { .. } => Reason::Translated,
        Denial::NotX86_64 { .. } => Reason::ForeignCode,
        Denial::OtherUser { .. }
        | Denial::Privileged { .. }
        | Denial::Yama { .. }
        | Denial::NotDumpable(_)
        | Denial::NotYours { .. }
        | Denial::UserNamespace(_)
        | Denial::Forbidden(_) => Reason::NotPermitted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_fails_does_not_say_that_nothing_is_there() {
        let hint = |reason, advice: &'static str| Error::new(reason, "", advice).about(Pid(7)).at_removal().hint();
        let rest = "until then the code stays in, and works: `ingraft detach -p 7` takes it out";
        assert_eq!(hint(Reason::Busy, "try again later"), format!("try again later; {rest}"));
        assert_eq!(hint(Reason::Process, ""), format!("try again; {rest}"));
        let strace = "end strace (process 3) or let it detach";
        assert_eq!(hint(Reason::AlreadyTraced, strace), format!("{strace}; {rest}"));
        let gone = Error::new(Reason::TargetEnded, "", "start again").about(Pid(7)).at_removal();
        assert_eq!(gone.hint(), "start again");
    }

    #[test]
    fn an_error_says_that_the_target_is_unchanged() {
        let hint = |reason, advice: &'static str| Error::new(reason, "", advice).about(Pid(7)).hint();
        assert_eq!(hint(Reason::Busy, "try again"), "nothing was changed; try again");
        assert_eq!(hint(Reason::Codegen, ""), "nothing was changed in the target");
        assert_eq!(hint(Reason::TextChanged, "end the debugger"), "end the debugger");
    }
}
