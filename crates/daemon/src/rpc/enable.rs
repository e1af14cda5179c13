//! Insertions. They report their progress, and then their result in parts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_api::{Enabled, MeasurementId, Removed, Terms};
use ingraft_engine::{Caller, Engine, Error};
use ingraft_wire::enabled::description;
use ingraft_wire::{ProtocolFailure, printed, profile, trace, v1};
use tonic::{Response, Status};

use crate::audit::AuditedRequest;
use crate::auth::AuthenticatedClient;
use crate::backlog::{Changes, KeptReading};
use crate::core::{Core, payer, spawn};
use crate::failure::failed;
use crate::keeper;
use crate::quota::{Begun, Payer};
use crate::recorder;
use crate::recording::PAIRS_MAX;
use crate::rpc::{Answers, CallProgress};
use crate::waiting::{self, AnswerPart, PartSender, WaitingMessages};

use v1::enable_response::Event;

/// Pause between two attempts of a deferred insertion: the first one, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Time between two messages about the progress of an insertion.
const TELL: Duration = Duration::from_millis(200);

/// An insertion to be made for a client or for the program itself. `client` and `asked` are `None` only for the program itself.
#[derive(Clone, Debug)]
pub struct PendingInsertion {
    /// Whether the measurement stays in the target when its client is gone.
    pub keep: bool,
    /// Terms of the measurement.
    pub terms: Terms,
    /// Client that requests the insertion.
    pub client: Option<AuthenticatedClient>,
    /// Description of the request for the audit log.
    pub asked: Option<AuditedRequest>,
    /// Lower bound of the number of pairs.
    pub pairs: usize,
}

impl PendingInsertion {
    /// Reads the order from a request.
    pub fn of(client: Option<AuthenticatedClient>, target: &str, measure: Option<&v1::Measure>) -> PendingInsertion {
        PendingInsertion {
            keep: measure.is_some_and(|measure| measure.keep),
            terms: measure.map(Terms::from).unwrap_or_default(),
            asked: AuditedRequest::of(client.as_ref(), target, measure),
            client,
            pairs: measure.map_or(0, |m| m.pairs.len() + m.functions.len()),
        }
    }

    /// Converts a failure to the status that refuses the insertion, and writes the refusal to the audit log.
    pub fn refuse(&self, failure: impl Into<ProtocolFailure>) -> Status {
        let failure = failure.into();
        if let Some(client) = &self.client {
            client.table.note_refusal(&failure.reason);
        }
        if let Some(asked) = &self.asked {
            asked.refused(&failure);
        }
        failure.into_status()
    }

    /// Counts the measurement to the client. Called on a blocking thread.
    fn begin(&self, engine: &Engine) -> Result<Option<Begun>, ProtocolFailure> {
        let Some(AuthenticatedClient { holder, table, .. }) = &self.client else { return Ok(None) };
        let alive = |id| engine.pairs(id, Caller::Engine).ok().map(|(_, pairs)| pairs.len());
        table.begin(*holder, self.pairs, alive).map(Some)
    }

    /// Returns the number of pairs for which the quotas on pairs and histories have room; `None` if they are not limited.
    fn room(&self, core: &Core) -> Option<usize> {
        let recorded = self.terms.history.then_some(PAIRS_MAX);
        let quotas = self.client.as_ref().map(|AuthenticatedClient { holder, table, .. }| {
            let have = core.recorder().histories(&table.measurements(*holder));
            let (pairs, histories) = table.room(*holder, have);
            if self.terms.history { pairs.min(histories / 2) } else { pairs }
        });
        recorded.into_iter().chain(quotas).min()
    }

    /// Fails if the quotas on pairs and histories have no room for this many pairs.
    fn refuse_pairs(&self, core: &Core, pairs: usize) -> Result<(), ProtocolFailure> {
        if let Some(AuthenticatedClient { holder, table, .. }) = &self.client {
            table.refuse_pairs(*holder, pairs)?;
        }
        self.refuse_histories(core, pairs)
    }

    /// If the order requests histories, fails if there is no room for those of `pairs` pairs.
    fn refuse_histories(&self, core: &Core, pairs: usize) -> Result<(), ProtocolFailure> {
        if !self.terms.history {
            return Ok(());
        }
        recorder::permit(pairs)?;
        let Some(AuthenticatedClient { holder, table, .. }) = &self.client else { return Ok(()) };
        let have = core.recorder().histories(&table.measurements(*holder));
        table.refuse_histories(*holder, have, 2 * pairs)
    }
}

/// Makes an insertion. `call` calls the engine, with a maximum number of pairs (`None` if there is none). If it fails for a reason that may
/// pass, it is attempted again until `order.terms.wait` is over. The measurement is leased as soon as it is inserted, and removed at once if the
/// client is gone by then.
pub fn insert(
    core: &Core,
    order: PendingInsertion,
    call: impl Fn(&Engine, Option<usize>, &CallProgress<v1::EnableResponse>) -> Result<Enabled, Error>
    + Clone
    + Send
    + 'static,
) -> Response<Answers<v1::EnableResponse>> {
    let (send, told) = waiting::channel(8);
    let core = core.clone();
    spawn(async move {
        let deadline = Instant::now() + order.terms.wait;
        let mut pause = RETRY.0;
        for tries in 1.. {
            match insert_once(&core, &order, call.clone(), &send).await {
                Ok((enabled, now_ns)) => {
                    return announce(&core, &order, enabled, now_ns, &send).await;
                }
                Err(failure) if failure.may_pass() && Instant::now() + pause < deadline => {
                    let deferred = v1::Deferred { reason: failure.reason, what: failure.what, tries };
                    drop(send.try_send(Ok(AnswerPart::Message(response(Event::Deferred(deferred))))));
                }
                // If the client is gone, no answer is needed.
                Err(failure) => return drop(send.send(Err(order.refuse(failure))).await),
            }
            tokio::select! {
                () = send.closed() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            }
        }
    });
    Response::new(Box::pin(told))
}

type Messages = PartSender<v1::EnableResponse>;

/// Attempts an insertion once. On success, leases the measurement, and returns it with the present Unix time in nanoseconds.
async fn insert_once(
    core: &Core,
    order: &PendingInsertion,
    call: impl Fn(&Engine, Option<usize>, &CallProgress<v1::EnableResponse>) -> Result<Enabled, Error> + Send + 'static,
    send: &Messages,
) -> Result<(Enabled, u64), ProtocolFailure> {
    let progress =
        CallProgress::new(send.clone(), |text| response(Event::Progress(v1::Progress { text, ..Default::default() })));
    let undertaking = core.undertake();
    let own = Arc::clone(&undertaking);
    let (shared, order) = (core.clone(), order.clone());
    let inserted = core.engine_value(move |engine| {
        let begun = order.begin(engine)?;
        order.refuse_pairs(&shared, order.pairs)?;
        // The engine knows the number of pairs once it has resolved the patterns, before it changes the target.
        let enabled = own.run(|| call(engine, order.room(&shared), &progress)).map_err(|error| {
            let too_many = error.pairs.and_then(|pairs| order.refuse_pairs(&shared, pairs).err());
            too_many.unwrap_or_else(|| failed(error))
        })?;
        if let Some(begun) = begun
            && let Err(failure) = begun.inserted(enabled.id, enabled.pairs.len())
        {
            // Another request has used the room in the meantime, or libraries have added pairs. Remove a measurement that is too large.
            engine.remove(enabled.id, Caller::Engine).map_err(failed)?;
            return Err(failure);
        }
        shared.keeper().inserted(enabled.id, order.keep);
        if let Some(asked) = &order.asked {
            shared.audit().inserted(engine, asked, &enabled);
        }
        Ok((enabled, ingraft_engine::now_ns()))
    });
    tokio::pin!(inserted);
    let mut is_wanted = true;
    loop {
        tokio::select! {
            inserted = &mut inserted => return inserted?,
            // A measurement that nobody gets must not change the target.
            () = send.closed(), if is_wanted => {
                is_wanted = false;
                undertaking.give_up();
            }
            () = tokio::time::sleep(TELL) => if let Some(step) = undertaking.progress() {
                let left_ns = step.left.map(|left| u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
                let told = v1::Progress { text: step.what, percent: Some(step.percent.into()), left_ns };
                // A client that reads too slowly gets the next one.
                drop(send.try_send(Ok(AnswerPart::Message(response(Event::Progress(told))))));
            }
        }
    }
}

/// Begins to record histories if the order requests them, and sends the result of the insertion to the client.
async fn announce(core: &Core, order: &PendingInsertion, enabled: Enabled, now_ns: u64, send: &Messages) {
    let id = enabled.id;
    if order.terms.history {
        let permitted = order.refuse_histories(core, enabled.pairs.len());
        if let Err(failure) = permitted {
            keeper::remove(core, id).await;
            return drop(send.send(Err(order.refuse(failure))).await);
        }
        recorder::begin(core, id, &enabled.pairs, now_ns);
    }
    let answer = match WaitingMessages::packed(payer().as_ref(), ingraft_wire::enabled::enabled(enabled)) {
        Ok(answer) => answer,
        Err(failure) => {
            // Without an answer, the client does not know the measurement, so remove it.
            keeper::remove(core, id).await;
            return drop(send.send(Err(order.refuse(failure))).await);
        }
    };
    let (answer, begun) = answer.with_receipt();
    // Once a client has the number of the measurement, it is responsible for the measurement, even if it reads no further.
    let is_told = send.send(Ok(AnswerPart::Many(answer))).await.is_ok() && begun.await.is_ok();
    if !is_told && !order.keep {
        keeper::remove(core, id).await;
    }
}

fn response(event: Event) -> v1::EnableResponse {
    v1::EnableResponse { event: Some(event) }
}

/// Returns the messages of a removal.
pub fn removal(
    id: MeasurementId,
    removed: Removed,
    payer: Option<&Payer>,
) -> impl Iterator<Item = v1::RemoveResponse> + Send + use<> {
    use v1::remove_response::Event;
    let head = Event::Removed((&removed).into());
    let pid = removed.pid;
    let measured = removed.grown.into_iter().flat_map(move |pairs| description(id, pid, pairs));
    let ended = removed.last.as_ref().and_then(|last| last.ended).map(Into::into);
    let last = removed.last.map(|last| Changes::whole(KeptReading::last(last, payer)));
    let last = last.into_iter().flatten();
    let profile = removed.profile.map(|profile| profile::parts(*profile)).into_iter().flatten();
    let events = std::iter::once(head).chain(measured.map(Event::Measured)).chain(last.map(Event::Last));
    let trace = removed.trace.map(|rest| trace::parts(trace::rest(rest.chunks, rest.end))).into_iter().flatten();
    let printed = removed.printed.map(printed::messages).into_iter().flatten();
    let events = events.chain(profile.map(Event::Profile)).chain(trace.map(Event::Trace));
    let shares = removed.shares.map(|shares| Event::Shares(shares.into()));
    let events = events.chain(printed.map(Event::Printed)).chain(shares);
    events.chain(ended.map(Event::Ended)).map(|event| v1::RemoveResponse { event: Some(event) })
}

#[cfg(test)]
mod tests {
    use ingraft_api::{Ended, MetricFocus, PairInfo, Reading, Value};
    use ingraft_model::{Focus, MetricInfo, Pid};

    use super::*;

    fn pair() -> PairInfo {
        let metric = MetricInfo {
            name: "calls".into(),
            unit: "calls".into(),
            aggregate: Default::default(),
            style: Default::default(),
            units_type: Default::default(),
            histogram: false,
            constraints: Vec::new(),
            flavors: Vec::new(),
            developer: false,
            doc: String::new(),
            text: String::new().into(),
        };
        let pair = MetricFocus { metric: "calls".into(), focus: Focus::parse("/Code/m/f").unwrap() };
        PairInfo::new(pair.into(), metric.into())
    }

    #[test]
    fn a_removal_ends_with_the_last_values() {
        let ended = Some(Ended { status: Some(0), signal: None, exec: false });
        let last = Some(Reading { time_ns: 1, values: vec![Value::from(9)], ended });
        let removed = Removed { pid: Pid(7), text_restored: true, last, ..Removed::default() };
        let count = |removed| removal(MeasurementId(5), removed, None).count();
        assert_eq!(count(removed.clone()), 3);
        assert_eq!(count(Removed { last: None, ..removed.clone() }), 1);
        let grown = Removed { grown: Some(vec![pair()].into()), ..removed };
        assert_eq!(count(grown), 5, "an Enabled and pairs before the values");
    }
}
