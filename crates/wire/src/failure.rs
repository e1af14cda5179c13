//! Errors in the protocol. An error has a gRPC status code, a message that describes it, and details. The details are a
//! `google.rpc.ErrorInfo` with a stable reason and a hint, and as many diagnostics as fit. Details are sent in headers, for which HTTP/2
//! implementations allow 16 KiB in all. So this file limits the size of every part.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use ingraft_api::{ErrorClass, Reason};
use ingraft_model::Pid;
use prost::Message;
use tonic::{Code, Status};
use tonic_types::pb;

use crate::parts::in_list;
use crate::v1;

/// The `domain` of every ErrorInfo that ingraft sends.
pub const DOMAIN: &str = "ingraft";

fn millis(delay: Duration) -> u32 {
    u32::try_from(delay.as_millis()).unwrap_or(u32::MAX)
}

/// An error in the form that both sides use.
#[derive(Clone, Debug, PartialEq)]
pub struct ProtocolFailure {
    /// Class of the failure: that of the reason, or of the status code if the other side gave another one.
    pub class: ErrorClass,
    /// The word of the [`Reason`]; a word that this version does not know if a later one has sent it.
    pub reason: String,
    /// Description of the error in one line.
    pub what: String,
    /// Advice in one line; may be empty.
    pub hint: String,
    /// Process id of the target, if the error is about one.
    pub pid: Option<Pid>,
    /// Process id of the engine that holds the target, or of the tracer, if that is the error and the process is known.
    pub holder: Option<Pid>,
    /// Diagnostics about MDL text, as many as fit.
    pub diagnostics: Box<[v1::Diagnostic]>,
    /// Number of diagnostics that did not fit.
    pub omitted: u32,
    /// Time in milliseconds after which another attempt makes sense; `None` if waiting does not help.
    pub retry_ms: Option<u32>,
}

/// Maximum sizes of the encoded parts in bytes. Together, with base64, percent encoding and the other headers, they are below 16 KiB.
const WHAT_BYTES: usize = 1024;
const HINT_BYTES: usize = 512;
const DIAGNOSTICS_BYTES: usize = 4096;

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";
const DIAGNOSTICS: &str = "type.googleapis.com/ingraft.v1.Diagnostics";
const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

impl ProtocolFailure {
    /// An error without target and diagnostics.
    pub fn new(reason: Reason, what: impl Into<String>, hint: impl Into<String>) -> Self {
        ProtocolFailure {
            class: reason.class(),
            retry_ms: reason.retry_ms(),
            reason: reason.word().to_owned(),
            what: what.into(),
            hint: hint.into(),
            pid: None,
            holder: None,
            diagnostics: Box::default(),
            omitted: 0,
        }
    }

    /// Whether an insertion that failed for this reason may succeed later.
    pub fn may_pass(&self) -> bool {
        Reason::of(&self.reason).is_some_and(Reason::may_pass)
    }

    /// Returns the failure with the time after which another attempt makes sense.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_ms = Some(millis(delay));
        self
    }

    /// Encodes the failure as a status.
    pub fn into_status(self) -> Status {
        let what = shortened(self.what, WHAT_BYTES);
        let mut metadata = HashMap::from([("hint".to_owned(), shortened(self.hint, HINT_BYTES))]);
        for (key, process) in [("pid", self.pid), ("holder", self.holder)] {
            metadata.extend(process.map(|process| (key.to_owned(), process.to_string())));
        }
        let info = pb::ErrorInfo { reason: self.reason, domain: DOMAIN.to_owned(), metadata };
        let mut details = vec![detail(ERROR_INFO, &info)];
        let (diagnostics, left_out) = fitting(self.diagnostics.into_vec(), DIAGNOSTICS_BYTES);
        let omitted = self.omitted.saturating_add(left_out);
        if !diagnostics.is_empty() || omitted > 0 {
            details.push(detail(DIAGNOSTICS, &v1::Diagnostics { diagnostics, omitted }));
        }
        if let Some(ms) = self.retry_ms {
            let retry_delay = prost_types::Duration::try_from(Duration::from_millis(ms.into())).ok();
            details.push(detail(RETRY_INFO, &pb::RetryInfo { retry_delay }));
        }
        let code = code(self.class);
        let status = pb::Status { code: code.into(), message: what.clone(), details };
        Status::with_details(code, what, status.encode_to_vec().into())
    }

    /// Decodes a received status. If it does not come from ingraft, the reason is derived from the status code.
    pub fn from_status(status: &Status) -> Self {
        let (reason, hint) = unexplained(status.code());
        let mut failure = ProtocolFailure::new(reason, with_causes(status), hint);
        failure.class = class_of(status.code());
        let breaks = ["transport error", "connection closed"];
        // If the other side explains the failure, it is not one of the connection, whatever words its message contains.
        if status.details().is_empty() && breaks.iter().any(|words| failure.what.contains(words)) {
            // The connection was refused or has broken. In TLS 1.3, a client learns that its certificate is refused only after it has sent
            // its first request, if at all.
            failure.class = ErrorClass::Unavailable;
            failure.reason = Reason::Unavailable.word().to_owned();
            failure.hint =
                "the daemon closed the connection, and its log may say why; at an https:// address, use a certificate \
                            that its client-ca has signed (--tls-cert, --tls-key)"
                    .into();
        }
        let Ok(details) = pb::Status::decode(status.details()) else { return failure };
        for detail in details.details {
            match detail.type_url.as_str() {
                ERROR_INFO => {
                    if let Ok(info) = pb::ErrorInfo::decode(detail.value.as_slice())
                        && info.domain == DOMAIN
                    {
                        failure.hint = info.metadata.get("hint").cloned().unwrap_or_default();
                        let process = |key: &str| info.metadata.get(key).and_then(|p| p.parse().ok()).map(Pid);
                        (failure.pid, failure.holder) = (process("pid"), process("holder"));
                        failure.class = explained_class(&info.reason, status.code());
                        failure.reason = info.reason;
                    }
                }
                RETRY_INFO => {
                    let info = pb::RetryInfo::decode(detail.value.as_slice()).ok();
                    failure.retry_ms = info.and_then(|info| Duration::try_from(info.retry_delay?).ok()).map(millis);
                }
                DIAGNOSTICS => {
                    if let Ok(message) = v1::Diagnostics::decode(detail.value.as_slice()) {
                        failure.diagnostics = message.diagnostics.into();
                        failure.omitted = message.omitted;
                    }
                }
                _ => {}
            }
        }
        failure
    }
}

/// The status code of a class.
pub fn code(class: ErrorClass) -> Code {
    match class {
        ErrorClass::Usage => Code::InvalidArgument,
        ErrorClass::NotFound => Code::NotFound,
        ErrorClass::Denied => Code::PermissionDenied,
        ErrorClass::Unauthenticated => Code::Unauthenticated,
        ErrorClass::Gone => Code::Aborted,
        ErrorClass::Version | ErrorClass::Precondition => Code::FailedPrecondition,
        ErrorClass::Unavailable => Code::Unavailable,
        ErrorClass::Exhausted => Code::ResourceExhausted,
        ErrorClass::Late => Code::DeadlineExceeded,
        ErrorClass::Failed => Code::Internal,
    }
}

/// The class of a status code.
fn class_of(code: Code) -> ErrorClass {
    match code {
        Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => ErrorClass::Usage,
        Code::NotFound => ErrorClass::NotFound,
        Code::PermissionDenied => ErrorClass::Denied,
        Code::Unauthenticated => ErrorClass::Unauthenticated,
        Code::Aborted => ErrorClass::Gone,
        Code::FailedPrecondition | Code::Unimplemented => ErrorClass::Version,
        Code::Unavailable => ErrorClass::Unavailable,
        Code::ResourceExhausted => ErrorClass::Exhausted,
        Code::DeadlineExceeded => ErrorClass::Late,
        Code::Ok | Code::Cancelled | Code::Unknown | Code::Internal | Code::DataLoss => ErrorClass::Failed,
    }
}

/// The class of a failure that the other side has explained. Two classes have the same code; the reason tells them apart.
fn explained_class(word: &str, status: Code) -> ErrorClass {
    match (class_of(status), Reason::of(word).map(Reason::class)) {
        (ErrorClass::Version, known) if known != Some(ErrorClass::Version) => ErrorClass::Precondition,
        (class, _) => class,
    }
}

/// Reason and hint for a status without an ErrorInfo. Such a status comes from the gRPC library of either side, or from another program.
fn unexplained(code: Code) -> (Reason, &'static str) {
    match code {
        Code::Unimplemented => (
            Reason::Unimplemented,
            "the other side is another version or no ingraftd; install the same version on both",
        ),
        Code::Unavailable => (Reason::Unavailable, "check that ingraftd runs and listens at this address"),
        Code::OutOfRange => {
            (Reason::MessageTooLarge, "send less in one request; `Daemon.Limits` says how much may be sent")
        }
        Code::DeadlineExceeded => (Reason::DeadlineExceeded, "give the request more time, or ask for less"),
        Code::Cancelled => (Reason::Cancelled, "the call was ended before its answer; nothing is left of it"),
        _ => (Reason::Unexplained, "the log of the daemon may say more"),
    }
}

/// Adds an ErrorInfo to a status without details, so that every error of the server has one. Returns `None` if the status has details
/// already.
pub fn explained(status: &Status) -> Option<Status> {
    if !status.details().is_empty() || status.code() == Code::Ok {
        return None;
    }
    let failure = ProtocolFailure::from_status(status);
    let says = |word: &&str| status.message().contains(*word);
    // A message that cannot be decoded is an error of the request, whatever code the library gives it.
    if status.code() == Code::Internal && ["decode", "protocol error", "request message"].iter().any(says) {
        let hint = "send the messages that proto/ingraft/v1 describes, framed as gRPC says";
        return Some(ProtocolFailure::new(Reason::MalformedMessage, failure.what, hint).into_status());
    }
    let explained = failure.into_status();
    // Keep the code, which is more specific than the class of the failure.
    let details = pb::Status::decode(explained.details()).unwrap_or_default();
    let details = pb::Status { code: status.code().into(), ..details }.encode_to_vec();
    Some(Status::with_details(status.code(), explained.message().to_owned(), details.into()))
}

/// Returns the message of a status with the messages of its causes, which say why a connection broke.
fn with_causes(status: &Status) -> String {
    let mut text = status.message().to_owned();
    if text.is_empty() {
        text = status.code().description().to_owned();
    }
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

impl fmt::Display for ProtocolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl std::error::Error for ProtocolFailure {}

impl From<ProtocolFailure> for Status {
    fn from(failure: ProtocolFailure) -> Self {
        failure.into_status()
    }
}

fn detail(type_url: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: type_url.to_owned(), value: message.encode_to_vec() }
}

/// Returns the diagnostics that fit into `limit` bytes, and the number of the others. If not all fit, errors come first. Otherwise the
/// order is kept.
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

/// Shortens a text to at most `limit` bytes, at the end of a character. If anything was cut off, an ellipsis ends the text.
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

    fn diagnostic(message: String) -> v1::Diagnostic {
        v1::Diagnostic { file: "m.mdl".into(), line: 1, column: 2, message, ..v1::Diagnostic::default() }
    }

    proptest! {
        #[test]
        fn a_failure_crosses_the_wire(
            reason in proptest::sample::select(Reason::ALL),
            what in ".{1,100}",
            hint in ".{0,100}",
            pid in proptest::option::of(1..i32::MAX),
            holder in proptest::option::of(1..i32::MAX),
            retry in proptest::option::of(0..100_000_u32),
            messages in proptest::collection::vec(".{0,20}", 0..5),
        ) {
            let mut failure = ProtocolFailure::new(reason, what, hint);
            failure.retry_ms = retry;
            (failure.pid, failure.holder) = (pid.map(Pid), holder.map(Pid));
            failure.diagnostics = messages.into_iter().map(diagnostic).collect();
            prop_assert_eq!(ProtocolFailure::from_status(&failure.clone().into_status()), failure);
        }

        #[test]
        fn any_failure_is_small_enough_for_headers(what in ".{0,4000}", hint in ".{0,4000}", n in 0_usize..500) {
            let mut failure = ProtocolFailure::new(Reason::Mdl, what, hint);
            failure.diagnostics = (0..n).map(|i| diagnostic(format!("number {i}"))).collect();
            let status = failure.into_status();
            // Percent encoding can triple the message, and base64 adds a third to the details.
            prop_assert!(status.message().len() * 3 + status.details().len() * 4 / 3 < 15 * 1024);
            let back = ProtocolFailure::from_status(&status);
            prop_assert_eq!(back.diagnostics.len() + back.omitted as usize, n);
        }

        #[test]
        fn any_details_are_read_or_ignored(bytes in proptest::collection::vec(any::<u8>(), 0..200), code in 0..20) {
            let _ = ProtocolFailure::from_status(&Status::with_details(Code::from(code), "x", bytes.into()));
        }
    }

    #[test]
    fn statuses_of_others_get_a_hint() {
        let failure = ProtocolFailure::from_status(&Status::unimplemented(""));
        assert_eq!((failure.class, failure.reason.as_str()), (ErrorClass::Version, "unimplemented"));
        assert!(!failure.what.is_empty() && !failure.hint.is_empty());
        assert_eq!(ProtocolFailure::from_status(&Status::unavailable("tcp connect error")).reason, "unavailable");
    }

    #[test]
    fn details_go_before_the_words_of_a_message() {
        let what = "no function matches `transport error`";
        let failure = ProtocolFailure::new(Reason::NoSuchFunction, what, "`ingraft functions` lists them");
        assert_eq!(ProtocolFailure::from_status(&failure.clone().into_status()), failure);
        let broken = ProtocolFailure::from_status(&Status::unknown("transport error"));
        assert_eq!((broken.class, broken.reason.as_str()), (ErrorClass::Unavailable, "unavailable"));
    }

    #[test]
    fn every_status_can_be_explained() {
        for code in (1..17).map(Code::from) {
            let explained = explained(&Status::new(code, "x")).unwrap();
            assert_eq!(explained.code(), code);
            let details = pb::Status::decode(explained.details()).unwrap();
            assert_eq!((details.code, details.details[0].type_url.as_str()), (code.into(), ERROR_INFO));
            assert!(super::explained(&explained).is_none());
        }
        let malformed = explained(&Status::internal("failed to decode Protobuf message: x")).unwrap();
        assert_eq!(malformed.code(), Code::InvalidArgument);
        assert_eq!(ProtocolFailure::from_status(&malformed).reason, "malformed_message");
    }

    #[test]
    fn a_word_of_a_later_version_is_kept() {
        let info = pb::ErrorInfo { reason: "moon_phase".into(), domain: DOMAIN.into(), ..pb::ErrorInfo::default() };
        let details = pb::Status { details: vec![detail(ERROR_INFO, &info)], ..pb::Status::default() };
        let status = Status::with_details(Code::FailedPrecondition, "x", details.encode_to_vec().into());
        let failure = ProtocolFailure::from_status(&status);
        assert_eq!((failure.class, failure.reason.as_str()), (ErrorClass::Precondition, "moon_phase"));
        assert!(!failure.may_pass());
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
