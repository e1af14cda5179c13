//! Errors on the wire: a gRPC status code, the message as what went wrong, and details: a `google.rpc.ErrorInfo` with a stable reason
//! and a hint, and diagnostics as far as they fit. Details travel in headers, for which HTTP/2 implementations allow 16 KiB in all:
//! hence every part is bounded here.

use std::collections::HashMap;
use std::fmt;

use ingraft_model::Pid;
use prost::Message;
use tonic::{Code, Status};
use tonic_types::pb;

use crate::parts::in_list;
use crate::v1;

/// The `domain` of every ErrorInfo of ours.
pub const DOMAIN: &str = "ingraft";
/// The class of an error; each has its own status code, so that it survives the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailureKind {
    /// The request itself is wrong (INVALID_ARGUMENT).
    Usage,
    /// No such target, function, metric, measurement; an ambiguous name; all refused (NOT_FOUND).
    NotFound,
    /// Not permitted, traced or held by another (PERMISSION_DENIED).
    Denied,
    /// The caller has not proven who it is (UNAUTHENTICATED).
    Unauthenticated,
    /// The target ended before the measurement could start (ABORTED).
    Gone,
    /// The two sides do not speak the same version (FAILED_PRECONDITION).
    Version,
    /// Nobody answers, or the engine is ending (UNAVAILABLE).
    Unavailable,
    /// Anything that failed while running (INTERNAL).
    Failed,
}

/// Reasons for which an insertion that fails now may be possible later.
const PASSING: [&str; 5] = ["already_traced", "busy", "held", "no_carrier", "unstoppable_thread"];

/// Whether what failed for this reason may work when it is tried again.
pub fn may_pass(reason: &str) -> bool {
    PASSING.contains(&reason)
}

/// An error as both sides of the wire see it.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// Its class.
    pub kind: FailureKind,
    /// A stable word, listed in docs/protocol.md.
    pub reason: String,
    /// One line what.
    pub what: String,
    /// One line what to do; may be empty.
    pub hint: String,
    /// The target, if there is one.
    pub pid: Option<Pid>,
    /// Diagnostics of MDL, as many as fitted.
    pub diagnostics: Vec<v1::Diagnostic>,
    /// How many diagnostics did not fit.
    pub omitted: u32,
}

/// Bounds of the encoded parts in bytes; together, with base64, percent encoding and the other headers, below 16 KiB.
const WHAT_BYTES: usize = 1024;
const HINT_BYTES: usize = 512;
const DIAGNOSTICS_BYTES: usize = 4096;

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const DIAGNOSTICS: &str = "type.googleapis.com/ingraft.v1.Diagnostics";

impl Failure {
    /// An error without target and diagnostics.
    pub fn new(kind: FailureKind, reason: impl Into<String>, what: impl Into<String>, hint: impl Into<String>) -> Self {
        Failure {
            kind,
            reason: reason.into(),
            what: what.into(),
            hint: hint.into(),
            pid: None,
            diagnostics: Vec::new(),
            omitted: 0,
        }
    }

    /// As it is sent.
    pub fn into_status(self) -> Status {
        let what = shortened(self.what, WHAT_BYTES);
        let mut metadata = HashMap::from([("hint".to_owned(), shortened(self.hint, HINT_BYTES))]);
        if let Some(pid) = self.pid {
            metadata.insert("pid".to_owned(), pid.to_string());
        }
        let info = pb::ErrorInfo { reason: self.reason, domain: DOMAIN.to_owned(), metadata };
        let mut details = vec![detail(ERROR_INFO, &info)];
        let (diagnostics, left_out) = fitting(self.diagnostics, DIAGNOSTICS_BYTES);
        let omitted = self.omitted.saturating_add(left_out);
        if !diagnostics.is_empty() || omitted > 0 {
            details.push(detail(DIAGNOSTICS, &v1::Diagnostics { diagnostics, omitted }));
        }
        let code = self.kind.code();
        let status = pb::Status { code: code.into(), message: what.clone(), details };
        Status::with_details(code, what, status.encode_to_vec().into())
    }

    /// As it was received, also from a side that is not ours: then the reason is that of the status code.
    pub fn from_status(status: &Status) -> Self {
        let kind = FailureKind::of(status.code());
        let (reason, hint) = kind.unexplained();
        let mut failure = Failure::new(kind, reason, status.message(), hint);
        if failure.what.is_empty() {
            failure.what = status.code().description().to_owned();
        }
        let Ok(details) = pb::Status::decode(status.details()) else { return failure };
        for detail in details.details {
            match detail.type_url.as_str() {
                ERROR_INFO => {
                    if let Ok(info) = pb::ErrorInfo::decode(detail.value.as_slice())
                        && info.domain == DOMAIN
                    {
                        failure.hint = info.metadata.get("hint").cloned().unwrap_or_default();
                        failure.pid = info.metadata.get("pid").and_then(|p| p.parse().ok()).map(Pid);
                        failure.reason = info.reason;
                    }
                }
                DIAGNOSTICS => {
                    if let Ok(message) = v1::Diagnostics::decode(detail.value.as_slice()) {
                        failure.diagnostics = message.diagnostics;
                        failure.omitted = message.omitted;
                    }
                }
                _ => {}
            }
        }
        failure
    }
}

impl FailureKind {
    /// The status code of the class.
    pub fn code(self) -> Code {
        match self {
            FailureKind::Usage => Code::InvalidArgument,
            FailureKind::NotFound => Code::NotFound,
            FailureKind::Denied => Code::PermissionDenied,
            FailureKind::Unauthenticated => Code::Unauthenticated,
            FailureKind::Gone => Code::Aborted,
            FailureKind::Version => Code::FailedPrecondition,
            FailureKind::Unavailable => Code::Unavailable,
            FailureKind::Failed => Code::Internal,
        }
    }

    fn of(code: Code) -> Self {
        match code {
            Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => FailureKind::Usage,
            Code::NotFound => FailureKind::NotFound,
            Code::PermissionDenied => FailureKind::Denied,
            Code::Unauthenticated => FailureKind::Unauthenticated,
            Code::Aborted => FailureKind::Gone,
            Code::FailedPrecondition | Code::Unimplemented => FailureKind::Version,
            Code::Unavailable => FailureKind::Unavailable,
            Code::Ok
            | Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Internal
            | Code::DataLoss => FailureKind::Failed,
        }
    }

    /// Reason and hint when the other side gave none.
    fn unexplained(self) -> (&'static str, &'static str) {
        match self {
            FailureKind::Version => {
                ("unimplemented", "the other side is another version or no ingraftd; install the same version on both")
            }
            FailureKind::Unavailable => ("unavailable", "check that ingraftd runs and listens at this address"),
            FailureKind::Usage
            | FailureKind::NotFound
            | FailureKind::Denied
            | FailureKind::Unauthenticated
            | FailureKind::Gone
            | FailureKind::Failed => ("unexplained", "the log of the daemon may say more"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for Failure {}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        failure.into_status()
    }
}

fn detail(type_url: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}

/// The diagnostics that fit into `limit` bytes, errors first, and how many do not. Those that fit keep their order.
pub fn fitting(mut diagnostics: Vec<v1::Diagnostic>, limit: usize) -> (Vec<v1::Diagnostic>, u32) {
    let all = diagnostics.len();
    if diagnostics.iter().map(in_list).sum::<usize>() > limit {
        diagnostics.sort_by_key(|d| d.severity != i32::from(v1::Severity::Error));
        let mut used = 0;
        diagnostics.retain(|d| {
            used += in_list(d);
            used <= limit
        });
    }
    let omitted = u32::try_from(all - diagnostics.len()).unwrap_or(u32::MAX);
    (diagnostics, omitted)
}

/// At most `limit` bytes, cut at a character, with an ellipsis when something was cut off.
fn shortened(mut text: String, limit: usize) -> String {
    if text.len() > limit {
        text.truncate(text.floor_char_boundary(limit.saturating_sub('…'.len_utf8())));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [FailureKind; 8] = [
        FailureKind::Usage,
        FailureKind::NotFound,
        FailureKind::Denied,
        FailureKind::Unauthenticated,
        FailureKind::Gone,
        FailureKind::Version,
        FailureKind::Unavailable,
        FailureKind::Failed,
    ];

    fn diagnostic(message: String) -> v1::Diagnostic {
        v1::Diagnostic { file: "m.mdl".into(), line: 1, column: 2, message, ..v1::Diagnostic::default() }
    }

    proptest! {
        #[test]
        fn a_failure_crosses_the_wire(
            kind in proptest::sample::select(&KINDS[..]),
            reason in "[a-z_]{1,20}",
            what in ".{1,100}",
            hint in ".{0,100}",
            pid in proptest::option::of(1..i32::MAX),
            messages in proptest::collection::vec(".{0,20}", 0..5),
        ) {
            let mut failure = Failure::new(kind, reason, what, hint);
            failure.pid = pid.map(Pid);
            failure.diagnostics = messages.into_iter().map(diagnostic).collect();
            prop_assert_eq!(Failure::from_status(&failure.clone().into_status()), failure);
        }

        #[test]
        fn any_failure_is_small_enough_for_headers(what in ".{0,4000}", hint in ".{0,4000}", n in 0_usize..500) {
            let mut failure = Failure::new(FailureKind::Usage, "mdl", what, hint);
            failure.diagnostics = (0..n).map(|i| diagnostic(format!("number {i}"))).collect();
            let status = failure.into_status();
            // Percent encoding triples the message, base64 adds a third to the details.
            prop_assert!(status.message().len() * 3 + status.details().len() * 4 / 3 < 15 * 1024);
            let back = Failure::from_status(&status);
            prop_assert_eq!(back.diagnostics.len() + back.omitted as usize, n);
        }

        #[test]
        fn any_details_are_read_or_ignored(bytes in proptest::collection::vec(any::<u8>(), 0..200), code in 0..20) {
            let _ = Failure::from_status(&Status::with_details(Code::from(code), "x", bytes.into()));
        }
    }

    #[test]
    fn statuses_of_others_get_a_hint() {
        let failure = Failure::from_status(&Status::unimplemented(""));
        assert_eq!((failure.kind, failure.reason.as_str()), (FailureKind::Version, "unimplemented"));
        assert!(!failure.what.is_empty() && !failure.hint.is_empty());
        assert_eq!(Failure::from_status(&Status::unavailable("tcp connect error")).reason, "unavailable");
    }

    #[test]
    fn errors_come_before_warnings_when_not_all_fit() {
        let mut list: Vec<_> = (0..10).map(|i| diagnostic(format!("{i}"))).collect();
        list[9].severity = v1::Severity::Error.into();
        let (kept, omitted) = fitting(list, 40);
        assert_eq!(kept[0].message, "9");
        assert_eq!(kept.len() + omitted as usize, 10);
    }
}
