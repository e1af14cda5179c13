//! Insertions. They report their progress, and then their result in parts.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_engine::{Caller, Enabled, Engine, Error, PairInfo, RefusedFunction};
use ingraft_model::Pid;
use ingraft_wire::{Failure, Parts, profile, trace, v1};
use tonic::{Response, Status};

use crate::audit::Asked;
use crate::auth::Client;
use crate::backlog::{Changes, Kept};
use crate::core::{Core, payer, spawn};
use crate::failure::failed;
use crate::keeper;
use crate::quota::{Begun, Payer};
use crate::recorder;
use crate::recording::PAIRS_MAX;
use crate::rpc::convert::{self, count, nanoseconds};
use crate::rpc::{Answers, Progress};
use crate::waiting::{self, Part, Teller, Waiting};

use v1::enable_response::Event;

/// Treatment of a measurement after its insertion.
#[derive(Clone, Copy, Debug)]
pub struct Afterwards {
    /// Whether the measurement stays in the target when its client is gone.
    pub keep: bool,
    /// Whether histories of its values are recorded.
    pub history: bool,
}

/// Pause between two attempts of a deferred insertion: the first one, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Time between two messages about the progress of an insertion.
const TELL: Duration = Duration::from_millis(200);

/// Longest time for which an insertion is attempted again, or a started program waits for a library.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// Returns the time for which an insertion is attempted again after a failure.
fn wait(measure: Option<&v1::Measure>) -> Duration {
    Duration::from_nanos(measure.map_or(0, |m| m.wait_ns)).min(WAIT_MAX)
}

impl Afterwards {
    /// Reads the treatment from a request.
    pub fn of(measure: Option<&v1::Measure>) -> Self {
        Afterwards { keep: measure.is_some_and(|m| m.keep), history: measure.is_some_and(|m| m.history) }
    }
}

/// An insertion to be made for a client or for the program itself. `client` and `asked` are `None` only for the program itself.
#[derive(Clone, Debug)]
pub struct Order {
    /// Treatment of the measurement after its insertion.
    pub afterwards: Afterwards,
    /// Time for which the insertion is attempted again after a failure.
    pub wait: Duration,
    /// Client that requests the insertion.
    pub client: Option<Client>,
    /// Description of the request for the audit log.
    pub asked: Option<Asked>,
    /// Lower bound of the number of pairs.
    pub pairs: usize,
}

impl Order {
    /// Reads the order from a request.
    pub fn of(client: Option<Client>, target: &str, measure: Option<&v1::Measure>) -> Order {
        Order {
            afterwards: Afterwards::of(measure),
            wait: wait(measure),
            asked: Asked::of(client.as_ref(), target, measure),
            client,
            pairs: measure.map_or(0, |m| m.pairs.len() + m.functions.len()),
        }
    }

    /// Converts a failure to the status that refuses the insertion, and writes the refusal to the audit log.
    pub fn refuse(&self, failure: impl Into<Failure>) -> Status {
        let failure = failure.into();
        if let Some(asked) = &self.asked {
            asked.refused(&failure);
        }
        failure.into_status()
    }

    /// Counts the measurement to the client. Called on a blocking thread.
    fn begin(&self, engine: &Engine) -> Result<Option<Begun>, Failure> {
        let Some(Client { holder, table, .. }) = &self.client else { return Ok(None) };
        let alive = |id| engine.pairs(id, Caller::Engine).ok().map(|(_, pairs)| pairs.len());
        table.begin(*holder, self.pairs, alive).map(Some)
    }

    /// Returns the number of pairs for which the quotas on pairs and histories have room; `None` if they are not limited.
    fn room(&self, core: &Core) -> Option<usize> {
        let recorded = self.afterwards.history.then_some(PAIRS_MAX);
        let quotas = self.client.as_ref().map(|Client { holder, table, .. }| {
            let have = core.recorder().histories(&table.measurements(*holder));
            let (pairs, histories) = table.room(*holder, have);
            if self.afterwards.history { pairs.min(histories / 2) } else { pairs }
        });
        recorded.into_iter().chain(quotas).min()
    }

    /// Fails if the quotas on pairs and histories have no room for this many pairs.
    fn refuse_pairs(&self, core: &Core, pairs: usize) -> Result<(), Failure> {
        if let Some(Client { holder, table, .. }) = &self.client {
            table.refuse_pairs(*holder, pairs)?;
        }
        self.refuse_histories(core, pairs)
    }

    /// If the order requests histories, fails if there is no room for those of `pairs` pairs.
    fn refuse_histories(&self, core: &Core, pairs: usize) -> Result<(), Failure> {
        if !self.afterwards.history {
            return Ok(());
        }
        recorder::permit(pairs)?;
        let Some(Client { holder, table, .. }) = &self.client else { return Ok(()) };
        let have = core.recorder().histories(&table.measurements(*holder));
        table.refuse_histories(*holder, have, 2 * pairs)
    }
}

/// Makes an insertion. `call` calls the engine, with a maximum number of pairs (`None` if there is none). If it fails for a reason that may
/// pass, it is attempted again until `order.wait` is over. The measurement is leased as soon as it is inserted, and removed at once if the
/// client is gone by then.
pub fn insert(
    core: &Core,
    order: Order,
    call: impl Fn(&Engine, Option<usize>, &Progress<v1::EnableResponse>) -> Result<Enabled, Error> + Clone + Send + 'static,
) -> Response<Answers<v1::EnableResponse>> {
    let (send, told) = waiting::channel(8);
    let core = core.clone();
    spawn(async move {
        let deadline = Instant::now() + order.wait;
        let mut pause = RETRY.0;
        for tries in 1.. {
            match insert_once(&core, &order, call.clone(), &send).await {
                Ok((enabled, now_ns)) => {
                    return announce(&core, &order, enabled, now_ns, &send).await;
                }
                Err(failure) if failure.may_pass() && Instant::now() + pause < deadline => {
                    let deferred = v1::Deferred { reason: failure.reason, what: failure.what, tries };
                    drop(send.try_send(Ok(Part::Message(response(Event::Deferred(deferred))))));
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

type Messages = Teller<v1::EnableResponse>;

/// Attempts an insertion once. On success, leases the measurement, and returns it with the present Unix time in nanoseconds.
async fn insert_once(
    core: &Core,
    order: &Order,
    call: impl Fn(&Engine, Option<usize>, &Progress<v1::EnableResponse>) -> Result<Enabled, Error> + Send + 'static,
    send: &Messages,
) -> Result<(Enabled, u64), Failure> {
    let progress =
        Progress::new(send.clone(), |text| response(Event::Progress(v1::Progress { text, ..Default::default() })));
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
        shared.keeper().inserted(enabled.id, order.afterwards.keep);
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
                let (percent, left_ns) = (Some(u32::from(step.percent)), step.left.map(nanoseconds));
                let told = v1::Progress { text: step.what, percent, left_ns };
                // A client that reads too slowly gets the next one.
                drop(send.try_send(Ok(Part::Message(response(Event::Progress(told))))));
            }
        }
    }
}

/// Begins to record histories if the order requests them, and sends the result of the insertion to the client.
async fn announce(core: &Core, order: &Order, enabled: Enabled, now_ns: u64, send: &Messages) {
    let (id, afterwards) = (enabled.id, order.afterwards);
    if afterwards.history {
        let permitted = order.refuse_histories(core, enabled.pairs.len());
        if let Err(failure) = permitted {
            keeper::remove(core, id).await;
            return drop(send.send(Err(order.refuse(failure))).await);
        }
        recorder::begin(core, id, &enabled.pairs, now_ns);
    }
    let answer = match Waiting::packed(payer().as_ref(), events(enabled).map(response)) {
        Ok(answer) => answer,
        Err(failure) => {
            // Without an answer, the client does not know the measurement, so remove it.
            keeper::remove(core, id).await;
            return drop(send.send(Err(order.refuse(failure))).await);
        }
    };
    let (answer, begun) = answer.with_receipt();
    // Once a client has the number of the measurement, it is responsible for the measurement, even if it reads no further.
    let is_told = send.send(Ok(Part::Many(answer))).await.is_ok() && begun.await.is_ok();
    if !is_told && !afterwards.keep {
        keeper::remove(core, id).await;
    }
}

fn response(event: Event) -> v1::EnableResponse {
    v1::EnableResponse { event: Some(event) }
}

/// Returns the messages about an insertion: one Enabled, then the pairs and the refused functions.
fn events(enabled: Enabled) -> impl Iterator<Item = Event> + Send + 'static {
    let head = v1::Enabled {
        measurement: enabled.id.0,
        pid: enabled.pid.0,
        attached: enabled.attached,
        threads: enabled.threads,
        modules: enabled.modules,
        functions: enabled.functions,
        points: enabled.points,
        attach_ns: nanoseconds(enabled.attach_time),
        stopped_ns: nanoseconds(enabled.stopped.held),
        waited_ns: nanoseconds(enabled.stopped.waited),
        pair_count: count(enabled.pairs.len()),
        refused_count: refused_count(&enabled.pairs, &enabled.refused),
        metrics: metrics(&enabled.pairs),
        warnings: enabled.warnings,
        caught_up: enabled.caught_up,
        not_unwound: enabled.not_unwound,
        since_ns: enabled.since_ns,
        parent: enabled.parent.0,
        title: enabled.title,
    };
    let Enabled { pairs, refused, .. } = enabled;
    let first = std::iter::once(Event::Enabled(head));
    let all = first.chain(pair_chunks(Arc::clone(&pairs)).map(Event::Pairs));
    all.chain(refused_chunks(pairs, refused).map(Event::Refused))
}

/// Returns the messages of a description: those of the insertion, with the fields that are still known.
pub fn description(
    id: u64,
    pid: Pid,
    pairs: Arc<Vec<PairInfo>>,
) -> impl Iterator<Item = v1::DescribeResponse> + Send + 'static {
    use v1::describe_response::Event;
    let head = v1::Enabled {
        measurement: id,
        pid: pid.0,
        points: pairs.iter().fold(0, |sum, pair| sum.saturating_add(pair.points)),
        pair_count: count(pairs.len()),
        refused_count: refused_count(&pairs, &[]),
        metrics: metrics(&pairs),
        ..v1::Enabled::default()
    };
    let first = std::iter::once(Event::Enabled(head));
    let all = first.chain(pair_chunks(Arc::clone(&pairs)).map(Event::Pairs));
    let all = all.chain(refused_chunks(pairs, Vec::new()).map(Event::Refused));
    all.map(|event| v1::DescribeResponse { event: Some(event) })
}

fn pair_chunks(pairs: Arc<Vec<PairInfo>>) -> impl Iterator<Item = v1::PairChunk> + Send + 'static {
    let each = (0..pairs.len()).filter_map(move |n| pairs.get(n).map(convert::pair));
    Parts::new(each).scan(0, |first, pairs| {
        let chunk = v1::PairChunk { first: *first, pairs };
        *first += count(chunk.pairs.len());
        Some(chunk)
    })
}

fn refused_chunks(
    pairs: Arc<Vec<PairInfo>>,
    others: Vec<RefusedFunction>,
) -> impl Iterator<Item = v1::RefusedChunk> + Send + 'static {
    let of_pairs = (0..pairs.len()).flat_map(move |n| {
        let refused = pairs.get(n).map_or(&[][..], |pair| pair.refused.as_slice());
        refused.iter().map(|refused| convert::refused(refused, Some(n))).collect::<Vec<_>>()
    });
    let all = others.into_iter().map(|refused| convert::refused(&refused, None)).chain(of_pairs);
    Parts::new(all).map(|functions| v1::RefusedChunk { functions })
}

fn refused_count(pairs: &[PairInfo], others: &[RefusedFunction]) -> u32 {
    count(pairs.iter().map(|pair| pair.refused.len()).sum::<usize>() + others.len())
}

/// Returns the metrics of the pairs, each once, sorted by name.
fn metrics(pairs: &[PairInfo]) -> Vec<v1::Metric> {
    let by_name: BTreeMap<_, _> = pairs.iter().map(|pair| (&pair.metric.name, &pair.metric)).collect();
    by_name.into_values().map(|metric| v1::Metric::from(metric.as_ref())).collect()
}

/// Returns the messages of a removal.
pub fn removal(
    id: u64,
    removed: ingraft_engine::Removed,
    payer: Option<&Payer>,
) -> impl Iterator<Item = v1::RemoveResponse> + Send + use<> {
    use v1::remove_response::Event;
    let head = Event::Removed(convert::removed(&removed));
    let pid = removed.pid;
    let measured = removed.grown.into_iter().flat_map(move |pairs| description(id, pid, pairs));
    let ended = removed.last.as_ref().and_then(|last| last.ended).map(convert::ended);
    let last = removed.last.map(|last| Changes::whole(Kept::last(last, payer)));
    let last = last.into_iter().flatten();
    let profile = removed.profile.map(|profile| profile::parts(*profile)).into_iter().flatten();
    let events = std::iter::once(head).chain(measured.map(Event::Measured)).chain(last.map(Event::Last));
    let trace = removed.trace.map(|rest| trace::parts(trace::rest(rest.chunks, rest.end))).into_iter().flatten();
    let events = events.chain(profile.map(Event::Profile)).chain(trace.map(Event::Trace));
    events.chain(ended.map(Event::Ended)).map(|event| v1::RemoveResponse { event: Some(event) })
}

#[cfg(test)]
mod tests {
    use ingraft_engine::{FunctionRef, MeasurementId, MetricFocus, Reading, Removed, Value};
    use ingraft_model::{Focus, HoldTime, MetricInfo, Refusal, Svma, Tid};
    use prost::Message;

    use super::*;

    fn refused(n: u64) -> RefusedFunction {
        let function = FunctionRef { module: "m".into(), function: format!("f{n}"), offset: Svma(n) };
        RefusedFunction { function, reason: Refusal::StraddlesPages }
    }

    fn enabled(pairs: u64) -> Enabled {
        let metric = Arc::new(MetricInfo {
            name: "calls".into(),
            unit: "calls".into(),
            aggregate: Default::default(),
            style: Default::default(),
            units_type: Default::default(),
            histogram: false,
            constraints: vec!["/Code".into()],
            flavors: Vec::new(),
            developer: false,
            doc: String::new(),
            text: "x".repeat(1000).into(),
        });
        let pair = |n: u64| PairInfo {
            pair: Arc::new(MetricFocus {
                metric: "calls".into(),
                focus: Focus::parse(&format!("/Code/a-module/{}{n}", "x".repeat(200))).unwrap(),
            }),
            metric: metric.clone(),
            function: Some(refused(n).function),
            edge_kinds: Vec::new(),
            points: 1,
            refused: if n == 3 { vec![refused(8), refused(9)] } else { Vec::new() },
            exact_since_ns: None,
            exposed: false,
        };
        Enabled {
            id: MeasurementId(5),
            pid: Pid(7),
            parent: Pid(1),
            title: String::new(),
            attached: true,
            threads: 1,
            modules: 2,
            functions: 3,
            points: 4,
            since_ns: 7,
            attach_time: Duration::from_millis(5),
            stopped: HoldTime { held: Duration::from_micros(6), waited: Duration::from_micros(2) },
            pairs: Arc::new((0..pairs).map(pair).collect()),
            refused: vec![refused(1)],
            caught_up: 0,
            not_unwound: 0,
            warnings: Vec::new(),
        }
    }

    #[test]
    fn many_pairs_come_in_small_messages_and_in_order() {
        let (mut pairs, mut refused, mut head) = (Vec::new(), Vec::new(), None);
        for event in events(enabled(14_000)) {
            assert!(response(event.clone()).encoded_len() < ingraft_wire::MESSAGE_BYTES);
            match event {
                Event::Progress(_) | Event::Deferred(_) => unreachable!("no progress after the end"),
                Event::Enabled(enabled) => head = Some(enabled),
                Event::Pairs(chunk) => {
                    assert_eq!(chunk.first as usize, pairs.len());
                    pairs.extend(chunk.pairs);
                }
                Event::Refused(chunk) => refused.extend(chunk.functions),
            }
        }
        let head = head.unwrap();
        assert_eq!((head.measurement, head.pid, head.stopped_ns, head.waited_ns), (5, 7, 6000, 2000));
        assert_eq!(head.pair_count as usize, pairs.len());
        assert_eq!(head.metrics.len(), 1, "each metric once");
        assert_eq!(head.refused_count, 3);
        assert_eq!(refused.iter().map(|r| r.pair).collect::<Vec<_>>(), [None, Some(3), Some(3)]);
        assert_eq!(pairs[3].refused_count, 2);
    }

    #[test]
    fn a_description_says_the_same_pairs() {
        let e = enabled(4);
        assert_eq!(description(5, e.pid, e.pairs).count(), 3);
    }

    #[test]
    fn a_removal_ends_with_the_last_values() {
        let value = Value::from(9);
        let ended = ingraft_engine::Ended { status: Some(0), signal: None, exec: false };
        let removed = Removed {
            pid: Pid(7),
            stopped: HoldTime::default(),
            text_restored: true,
            children_left: vec![Pid(8)],
            memory_left: true,
            asleep: vec![Tid(9)],
            suspended_at: None,
            corrections: (0, 0),
            grown: None,
            warnings: Vec::new(),
            awaited: Vec::new(),
            profile: None,
            trace: None,
            last: Some(Reading { time_ns: 1, values: vec![value], ended: Some(ended) }),
        };
        assert_eq!(removal(5, removed.clone(), None).count(), 3);
        assert_eq!(removal(5, Removed { last: None, ..removed.clone() }, None).count(), 1);
        let grown = removal(5, Removed { grown: Some(enabled(4).pairs), ..removed }, None);
        assert_eq!(grown.count(), 6, "an Enabled, pairs and refused functions before the values");
    }
}
