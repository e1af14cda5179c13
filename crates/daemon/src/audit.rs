//! Audit log. For every measurement it records the user, the request, the process, the permissions given, and how the measurement ended. It
//! also records every refused request. Text that users choose (names of processes, metrics, functions) is quoted, so that it cannot imitate
//! another part of a log line.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ingraft_engine::{AtEnd, Caller, Enabled, Engine, MeasurementId, Removed};
use ingraft_model::Pid;
use ingraft_wire::{ProtocolFailure, v1};

use crate::auth::AuthenticatedClient;
use crate::quota::QuotaHolder;

/// Maximum length, in bytes, of the description of a request.
const ASKED_BYTES: usize = 400;

/// A request and the user that made it, as the log names them.
#[derive(Clone, Debug)]
pub struct AuditedRequest {
    who: String,
    target: String,
    what: String,
    calls_allowed: bool,
    keep: bool,
}

/// Returns a user as the log names it.
pub fn who(client: &AuthenticatedClient) -> String {
    let holder = match client.holder {
        QuotaHolder::User(uid) => match name_of(uid) {
            Some(name) => format!("uid {uid} ({name})"),
            None => format!("uid {uid}"),
        },
        QuotaHolder::Token => "token".to_owned(),
        other @ (QuotaHolder::Certificate(_) | QuotaHolder::Stranger(..) | QuotaHolder::Nobody) => other.to_string(),
    };
    let from = match client.caller {
        Caller::Engine => "as the daemon's user, from",
        Caller::User { .. } => "from",
    };
    format!("{holder} {from} {}", client.origin)
}

/// Returns the name of a user in /etc/passwd. Network directories are not queried, because the log must not wait for them.
fn name_of(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Returns the name of a process; empty if the process has ended.
pub fn name(pid: Pid) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm"))
        .map_or_else(|_| String::new(), |name| name.trim_end().to_owned())
}

impl AuditedRequest {
    /// Describes what a request asks for. Returns `None` if the program itself makes the request, which is not logged.
    pub fn of(
        client: Option<&AuthenticatedClient>,
        target: &str,
        measure: Option<&v1::Measure>,
    ) -> Option<AuditedRequest> {
        let client = client?;
        let none = v1::Measure::default();
        let measure = measure.unwrap_or(&none);
        let metric = Some(measure.function_metric.as_str()).filter(|m| !m.is_empty()).unwrap_or("calls");
        let pairs = measure.pairs.iter().map(|pair| match pair.focus.as_str() {
            "" | "/" => pair.metric.clone(),
            focus => format!("{}@{focus}", pair.metric),
        });
        let metrics = || std::iter::once(metric).chain(measure.more_function_metrics.iter().map(String::as_str));
        let of_function = |function| metrics().map(move |metric| format!("{metric} of {function}"));
        let functions = measure.functions.iter().flat_map(of_function);
        let all = measure.pairs.len() + measure.functions.len() * (1 + measure.more_function_metrics.len());
        let (mut what, mut told) = (String::new(), 0);
        for one in pairs.chain(functions) {
            if what.len() + one.len() > ASKED_BYTES {
                break;
            }
            let _ = write!(what, "{}{one}", if told == 0 { "" } else { ", " });
            told += 1;
        }
        if told < all {
            let _ = write!(what, "{}{} more", if told == 0 { "" } else { ", and " }, all - told);
        }
        Some(AuditedRequest {
            who: who(client),
            target: target.to_owned(),
            what,
            calls_allowed: measure.allow_calls,
            keep: measure.keep,
        })
    }

    /// Logs that the request was refused.
    pub fn refused(&self, failure: &ProtocolFailure) {
        let AuditedRequest { who, target, what, calls_allowed, keep: _ } = self;
        let (reason, why) = (&failure.reason, &failure.what);
        tracing::info!(target: "ingraftd::audit", ?who, ?target, ?what, calls_allowed, reason, ?why, "refused");
    }
}

/// Describes the target of a request for the log.
pub fn target(target: Option<&v1::Target>) -> String {
    match target.and_then(|target| target.which.as_ref()) {
        Some(v1::target::Which::Pid(pid)) => format!("{pid} {}", name(Pid(*pid))).trim_end().to_owned(),
        Some(v1::target::Which::Name(name)) => name.clone(),
        None => String::new(),
    }
}

struct OpenEntry {
    asked: AuditedRequest,
    pid: Pid,
    name: String,
    since: Instant,
    /// Function that the engine calls when the target ends. The engine calls it only as long as this reference exists.
    tell: Option<Arc<AtEnd>>,
}

/// Known state of a target's code at the end of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeState {
    /// The code is as it was before the measurement.
    Restored,
    /// The code is not as it was before the measurement.
    NotRestored,
    /// The target has ended.
    Gone,
    /// Another request removed the measurement, and only its answer has the state of the code.
    Unknown,
}

impl From<&Removed> for CodeState {
    fn from(removed: &Removed) -> CodeState {
        if removed.text_restored { CodeState::Restored } else { CodeState::NotRestored }
    }
}

/// The measurements whose end has not been logged yet.
#[derive(Default)]
pub struct Audit {
    open: Mutex<HashMap<MeasurementId, OpenEntry>>,
}

impl Audit {
    fn open(&self) -> MutexGuard<'_, HashMap<MeasurementId, OpenEntry>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs that a measurement was inserted.
    pub fn inserted(self: &Arc<Self>, engine: &Engine, asked: &AuditedRequest, enabled: &Enabled) {
        let (measurement, pid, name) = (enabled.id.0, enabled.pid.0, name(enabled.pid));
        let (pairs, points, refused) = (enabled.pairs.len(), enabled.points, enabled.refused.len());
        let AuditedRequest { who, target: _, what, calls_allowed, keep } = asked;
        tracing::info!(
            target: "ingraftd::audit",
            measurement, ?who, pid, ?name, ?what, pairs, points, refused, calls_allowed, keep, "inserted"
        );
        let open = OpenEntry { asked: asked.clone(), pid: enabled.pid, name, since: Instant::now(), tell: None };
        self.open().insert(enabled.id, open);
        let (audit, id) = (Arc::downgrade(self), enabled.id);
        let tell: Arc<AtEnd> = Arc::new(move || {
            if let Some(audit) = audit.upgrade() {
                audit.ended(id, "its target ended", CodeState::Gone);
            }
        });
        // An end between the insertion and this line was not logged, because the measurement was not open yet. So check whether it still
        // exists.
        let lives = engine.at_end(id, Caller::Engine, &tell).is_ok() && engine.pairs(id, Caller::Engine).is_ok();
        if !lives {
            return self.ended(id, "removed while it was inserted", CodeState::Unknown);
        }
        if let Some(open) = self.open().get_mut(&id) {
            open.tell = Some(tell);
        }
    }

    /// Logs that a measurement has ended. Only the first end is logged.
    pub fn ended(&self, id: MeasurementId, why: &str, code: CodeState) {
        let Some(OpenEntry { asked, pid, name, since, tell }) = self.open().remove(&id) else { return };
        let (measurement, pid, seconds, who) = (id.0, pid.0, since.elapsed().as_secs_f64(), asked.who);
        let restored = match code {
            CodeState::Restored => "yes",
            CodeState::NotRestored => "no",
            CodeState::Gone => "nothing to restore",
            CodeState::Unknown => "unknown",
        };
        tracing::info!(target: "ingraftd::audit", measurement, ?who, pid, ?name, seconds, restored, "ended: {why}");
        // Drop this outside of the lock: it may be the last reference to the function.
        drop(tell);
    }

    /// Logs the end of all measurements of a target from which everything was removed. A measurement that the engine still has was inserted
    /// later.
    pub fn detached(&self, engine: &Engine, why: &str, removed: &Removed) {
        let here = |(_, open): &(&MeasurementId, &OpenEntry)| open.pid == removed.pid;
        let ids: Vec<_> = self.open().iter().filter(here).map(|(id, _)| *id).collect();
        let gone = ids.into_iter().filter(|id| engine.pairs(*id, Caller::Engine).is_err());
        gone.for_each(|id| self.ended(id, why, removed.into()));
    }

    /// Logs, at the end of the daemon, each measurement that it leaves in its target.
    pub fn left(&self) {
        for (id, OpenEntry { asked, pid, name, .. }) in self.open().drain() {
            let (measurement, pid, who) = (id.0, pid.0, asked.who);
            tracing::info!(target: "ingraftd::audit", measurement, ?who, pid, ?name, keep = asked.keep, "left in: ingraftd ends");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::auth::{Origin, Peer};
    use crate::quota::{Quotas, ResourceTable};

    fn root() -> AuthenticatedClient {
        AuthenticatedClient {
            caller: Caller::User { uid: 0, gid: 0 },
            holder: QuotaHolder::User(0),
            origin: Origin::Socket(Some(Peer { uid: 0, gid: 0, pid: Some(7) })),
            table: ResourceTable::new(Quotas::default(), 1024),
        }
    }

    /// A removal by `ingraft detach` may come between the insertion and its log line.
    #[test]
    fn what_is_removed_while_it_is_inserted_has_an_end() {
        let directory = tempfile::tempdir().unwrap();
        let config = ingraft_engine::Config {
            state_dir: directory.path().to_owned(),
            program: "ingraftd".into(),
            max_overhead: 1.0,
            clock: ingraft_engine::ClockChoice::Auto,
        };
        let engine = Engine::start(config).unwrap();
        let asked = AuditedRequest::of(Some(&root()), "7", None).unwrap();
        let enabled = Enabled {
            id: MeasurementId(5),
            pid: Pid(7),
            parent: Pid(1),
            title: String::new(),
            attached: true,
            threads: 1,
            modules: 1,
            functions: 1,
            points: 1,
            since_ns: 0,
            attach_time: Duration::ZERO,
            stopped: ingraft_model::HoldTime::default(),
            pairs: Arc::default(),
            refused: Vec::new(),
            caught_up: 0,
            not_unwound: 0,
            warnings: Vec::new(),
        };
        let audit = Arc::new(Audit::default());
        audit.inserted(&engine, &asked, &enabled);
        assert!(audit.open().is_empty(), "the engine does not know it any more");
    }

    #[test]
    fn what_was_asked_for_is_short() {
        let client = root();
        let pair = |n| v1::MetricFocus { metric: format!("metric{n}"), focus: "/Code/x".to_owned() };
        let measure = v1::Measure { pairs: (0..1000).map(pair).collect(), allow_calls: true, ..v1::Measure::default() };
        let asked = AuditedRequest::of(Some(&client), "7", Some(&measure)).unwrap();
        assert!(asked.what.starts_with("metric0@/Code/x, metric1@/Code/x"), "{}", asked.what);
        assert!(asked.what.len() < 500 && asked.what.ends_with(" more"), "{}", asked.what);
        assert_eq!((asked.who.as_str(), asked.calls_allowed), ("uid 0 (root) from process 7", true));
        assert!(AuditedRequest::of(None, "7", Some(&measure)).is_none());
    }
}
