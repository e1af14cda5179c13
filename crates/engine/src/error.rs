//! Errors, classified by the party that must act on them.

use ingraft_mdl::Diagnostic;
use ingraft_model::Pid;
use ingraft_process::{ApplyError, Denial};

/// The class of an error, from which the exit code of the command line and the status code of gRPC follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// The request itself is wrong (exit 2).
    Usage,
    /// The target, function or metric does not exist, a name is ambiguous, or all functions are refused (exit 3).
    NotFound,
    /// The target may not be traced, or another program traces or holds it (exit 4).
    Denied,
    /// The target ended before the measurement could start (exit 5).
    Gone,
    /// Any other failure while running (exit 1).
    Failed,
}

/// An error, with one line for the problem and one line for the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// Class of the error.
    pub kind: ErrorKind,
    /// A stable word for scripts and the wire, e.g. `no_such_process`.
    pub reason: &'static str,
    /// Problem in one line.
    pub what: String,
    /// Remedy in one line.
    pub hint: String,
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
    pub fn new(kind: ErrorKind, reason: &'static str, what: impl Into<String>, hint: impl Into<String>) -> Self {
        let (what, hint) = (what.into(), hint.into());
        Error { kind, reason, what, hint, pid: None, holder: None, diagnostics: Box::default(), pairs: None }
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
            Some(d) if of_author(&d) => format!("`ingraft check {}` shows what else can be told of the text", d.file),
            Some(d) if d.code == ingraft_mdl::codes::NOT_FOUND => {
                "`ingraft functions` lists the functions of a process by module".to_owned()
            }
            Some(d) if d.code == ingraft_mdl::codes::FOCUS => {
                "leave that part of the focus out, or name what is measured".to_owned()
            }
            _ => "`ingraft metrics` says what can be measured, and where".to_owned(),
        });
        let mut error = Error::new(ErrorKind::Usage, "mdl", what, hint);
        error.diagnostics = diagnostics.into();
        error
    }

    /// The error for a failed operation on a process.
    pub fn process(pid: Pid, e: ingraft_process::Error) -> Self {
        use ingraft_process::Error as P;
        let (kind, reason) = match &e {
            P::Denied(d) => denial_class(d),
            P::Gone(_) => (ErrorKind::Gone, "target_ended"),
            P::Replaced(_) => (ErrorKind::Gone, "target_replaced"),
            P::Seccomp => (ErrorKind::Denied, "seccomp"),
            P::UserDispatch => (ErrorKind::Denied, "user_dispatch"),
            P::ShadowStack => (ErrorKind::Denied, "shadow_stack"),
            P::Unstoppable { .. } => (ErrorKind::Failed, "unstoppable_thread"),
            P::HoldTooLong { .. } => (ErrorKind::Failed, "hold_too_long"),
            P::NoRoom { .. } | P::JournalFull { .. } => (ErrorKind::Failed, "no_room"),
            P::Start { .. } => (ErrorKind::NotFound, "cannot_start"),
            P::Call { source, .. } if source.raw_os_error() == Some(rustix::io::Errno::NOMEM.raw_os_error()) => {
                (ErrorKind::Failed, "target_memory_limit")
            }
            P::Shortage(_) => (ErrorKind::Failed, "target_memory_limit"),
            P::Mappings { .. } => (ErrorKind::Failed, "target_mapping_limit"),
            e if e.is_out_of_files() => (ErrorKind::Failed, "target_file_limit"),
            e if e.is_locked_out() => (ErrorKind::Failed, "target_memory_limit"),
            P::NoCarrier(_) | P::NoGadget(_) => (ErrorKind::Failed, "no_carrier"),
            P::Ptrace { .. }
            | P::File { .. }
            | P::Malformed { .. }
            | P::Memory { .. }
            | P::Call { .. }
            | P::NoArea { .. }
            | P::Outside(_)
            | P::Own { .. } => (ErrorKind::Failed, "process"),
        };
        let holder = match &e {
            P::Denied(d) => tracer(d),
            _ => None,
        };
        Error { holder, ..Error::new(kind, reason, e.to_string(), e.hint()).about(pid) }
    }

    /// The error for a plan that was not applied.
    pub fn apply(pid: Pid, e: ApplyError) -> Self {
        if let ApplyError::Process(e) = e {
            return Error::process(pid, e);
        }
        let (reason, hint) = match &e {
            ApplyError::Changed { .. } => ("text_changed", "something else patches the same code; end it first"),
            ApplyError::SharedText { .. } => ("shared_text", "start the program from a private mapping of its file"),
            ApplyError::NotMapped { .. } => ("not_mapped", "the module was unloaded meanwhile; try again"),
            ApplyError::Busy { .. } | ApplyError::Suspended { .. } => ("busy", "try again; nothing was changed"),
            ApplyError::Preempts => {
                ("suspended_contexts", "nothing was changed; measure a process of this program that uses less memory")
            }
            ApplyError::Faulted { .. } => ("busy", "try again when the handler has returned; nothing was changed"),
            ApplyError::BadPlan { .. } | ApplyError::Process(_) => {
                ("bad_plan", "this is a defect of ingraft; nothing was changed")
            }
        };
        Error::new(ErrorKind::Failed, reason, e.to_string(), hint).about(pid)
    }

    /// Whether a limit on the target's memory or mappings leaves too little room.
    pub fn is_shortage(&self) -> bool {
        matches!(self.reason, "target_memory_limit" | "target_mapping_limit")
    }

    /// The same error for a removal: its hint says that the code is still inserted, and how to remove it later.
    #[must_use]
    pub fn at_removal(mut self) -> Self {
        const UNCHANGED: [&str; 2] = ["nothing was changed in the target", "nothing was changed"];
        if let (Some(pid), false) = (self.pid, self.kind == ErrorKind::Gone || self.reason == "no_such_measurement") {
            let rest = UNCHANGED.iter().fold(self.hint.clone(), |hint, words| hint.replace(words, ""));
            let rest = rest.trim_matches([';', ' ']);
            let first = if rest.is_empty() { "try again" } else { rest };
            self.hint =
                format!("{first}; until then the code stays in, and works: `ingraft detach -p {pid}` takes it out");
        }
        self
    }

    /// The error for a process that cannot be attached to.
    pub fn denied(pid: Pid, d: &Denial) -> Self {
        let (kind, reason) = denial_class(d);
        Error { holder: tracer(d), ..Error::new(kind, reason, d.to_string(), d.hint()).about(pid) }
    }
}

/// The process that traces the target, if that is why it cannot be attached to.
fn tracer(d: &Denial) -> Option<Pid> {
    match d {
        Denial::Traced { tracer_pid, .. } => Some(*tracer_pid),
        _ => None,
    }
}

fn denial_class(d: &Denial) -> (ErrorKind, &'static str) {
    match d {
        Denial::NoSuchProcess(_) => (ErrorKind::NotFound, "no_such_process"),
        Denial::Zombie(_) => (ErrorKind::NotFound, "zombie"),
        Denial::KernelThread(_) => (ErrorKind::Denied, "kernel_thread"),
        Denial::Ourselves(_) => (ErrorKind::Denied, "own_process"),
        Denial::Traced { .. } => (ErrorKind::Denied, "already_traced"),
        Denial::Translated { .. } => (ErrorKind::Denied, "translated"),
        Denial::NotX86_64 { .. } => (ErrorKind::Denied, "foreign_code"),
        Denial::OtherUser { .. }
        | Denial::Privileged { .. }
        | Denial::Yama { .. }
        | Denial::NotDumpable(_)
        | Denial::NotYours { .. }
        | Denial::UserNamespace(_)
        | Denial::Forbidden(_) => (ErrorKind::Denied, "not_permitted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_that_fails_does_not_say_that_nothing_is_there() {
        let hint = |hint: &str| Error::new(ErrorKind::Failed, "busy", "", hint).about(Pid(7)).at_removal().hint;
        let rest = "until then the code stays in, and works: `ingraft detach -p 7` takes it out";
        assert_eq!(hint("try again; nothing was changed"), format!("try again; {rest}"));
        assert_eq!(hint("nothing was changed in the target"), format!("try again; {rest}"));
        assert_eq!(
            hint("end strace (process 3) or let it detach"),
            format!("end strace (process 3) or let it detach; {rest}")
        );
        assert_eq!(hint("nothing was changed; raise the limit by 3 MiB"), format!("raise the limit by 3 MiB; {rest}"));
        let gone = Error::new(ErrorKind::Gone, "target_ended", "", "start again").about(Pid(7)).at_removal();
        assert_eq!(gone.hint, "start again");
    }
}
