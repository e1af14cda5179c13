//! Errors of the engine as failures of the protocol.

use ingraft_engine::Error;
use ingraft_wire::{ProtocolFailure, v1};

/// Converts an error of the engine to a failure.
pub fn failed(error: Error) -> ProtocolFailure {
    let hint = error.hint();
    let mut failure = ProtocolFailure::new(error.reason, error.what, hint);
    (failure.pid, failure.holder) = (error.pid, error.holder);
    failure.diagnostics = error.diagnostics.iter().map(diagnostic).collect();
    failure
}

/// Converts a diagnostic about MDL text.
pub fn diagnostic(diagnostic: &ingraft_engine::Diagnostic) -> v1::Diagnostic {
    // MDL and the protocol have separate types for the severity.
    let severity = match diagnostic.severity {
        ingraft_engine::Severity::Error => v1::Severity::Error,
        ingraft_engine::Severity::Warning => v1::Severity::Warning,
        ingraft_engine::Severity::Note => v1::Severity::Note,
    };
    v1::Diagnostic {
        file: diagnostic.file.clone(),
        line: diagnostic.line,
        column: diagnostic.column,
        severity: severity.into(),
        message: diagnostic.message.clone(),
        help: diagnostic.help.clone().unwrap_or_default(),
        start: diagnostic.span.start.into(),
        end: diagnostic.span.end.into(),
        code: diagnostic.code.to_owned(),
        notes: diagnostic.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use ingraft_api::{ErrorClass, Reason};
    use ingraft_model::Pid;

    use super::*;

    #[test]
    fn an_error_keeps_what_it_says() {
        let error = Error::new(Reason::AlreadyTraced, "traced by gdb (pid 7)", "end gdb").about(Pid(3));
        let failure = ProtocolFailure::from_status(&failed(error).into_status());
        assert_eq!((failure.class, failure.reason.as_str()), (ErrorClass::Denied, "already_traced"));
        assert_eq!((failure.what.as_str(), failure.hint.as_str()), ("traced by gdb (pid 7)", "end gdb"));
        assert_eq!(failure.pid, Some(Pid(3)));
    }
}
