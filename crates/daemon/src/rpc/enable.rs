//! Insertions: progress while they run, then what they did, in parts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ingraft_engine::{Caller, Enabled, Engine, Error, PairInfo, RefusedFunction};
use ingraft_model::Pid;
use ingraft_wire::failure::may_pass;
use ingraft_wire::{Failure, Parts, v1};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};

use crate::audit::Asked;
use crate::auth::Client;
use crate::core::{Core, spawn};
use crate::keeper;
use crate::quota::Begun;
use crate::recorder;
use crate::rpc::convert::{self, count, nanoseconds};
use crate::rpc::{Answers, Progress};

use v1::enable_response::Event;

/// What becomes of a measurement once it is in.
#[derive(Clone, Copy, Debug)]
pub struct Afterwards {
    /// It stays when its client goes away.
    pub keep: bool,
    /// What its values do is recorded.
    pub history: bool,
}

/// Times between two tries of an insertion that was deferred: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// Longest that a client may have an insertion tried again.
const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// How long an insertion may be tried again.
fn wait(measure: Option<&v1::Measure>) -> Duration {
    Duration::from_nanos(measure.map_or(0, |m| m.wait_ns)).min(WAIT_MAX)
}

impl Afterwards {
    /// What a request asks for.
    pub fn of(measure: Option<&v1::Measure>) -> Self {
        Afterwards { keep: measure.is_some_and(|m| m.keep), history: measure.is_some_and(|m| m.history) }
    }
}

/// On whose behalf something is inserted, and what the log says of it. Both are there if somebody else than the program asks.
#[derive(Clone, Debug)]
pub struct Order {
    /// What becomes of the measurement.
    pub afterwards: Afterwards,
    /// How long it may be tried again.
    pub wait: Duration,
    /// Who asks.
    pub client: Option<Client>,
    /// What for.
    pub asked: Option<Asked>,
    /// At least so many pairs will be measured.
    pub pairs: usize,
}

impl Order {
    /// What a request asks for.
    pub fn of(client: Option<Client>, target: &str, measure: Option<&v1::Measure>) -> Order {
        Order {
            afterwards: Afterwards::of(measure),
            wait: wait(measure),
            asked: Asked::of(client.as_ref(), target, measure),
            client,
            pairs: measure.map_or(0, |m| m.pairs.len() + m.functions.len()),
        }
    }

    /// Refuses it, which the log says.
    pub fn refuse(&self, failure: impl Into<Failure>) -> Status {
        let failure = failure.into();
        if let Some(asked) = &self.asked {
            asked.refused(&failure);
        }
        failure.into_status()
    }

    /// Counts the measurement for who asks. Called on a blocking thread.
    fn begin(&self, core: &Core, engine: &Engine) -> Result<Option<Begun>, Failure> {
        let Some(Client { holder, table, .. }) = &self.client else { return Ok(None) };
        let alive = |id| engine.pairs(id, Caller::Engine).ok().map(|(_, pairs)| pairs.len());
        let begun = table.begin(*holder, self.pairs, alive)?;
        if self.afterwards.history {
            let have = core.recorder().histories(&table.measurements(*holder));
            table.refuse_histories(*holder, have, 2 * self.pairs)?;
        }
        Ok(Some(begun))
    }
}

/// Runs an insertion, again and again while what keeps it from being made may pass. It is leased as soon as it is done, and removed at
/// once when the client has gone meanwhile.
pub fn insert(
    core: &Core,
    order: Order,
    call: impl Fn(&Engine, &Progress<v1::EnableResponse>) -> Result<Enabled, Error> + Clone + Send + 'static,
) -> Response<Answers<v1::EnableResponse>> {
    let (send, receive) = mpsc::channel(8);
    let core = core.clone();
    spawn(async move {
        let deadline = Instant::now() + order.wait;
        let mut pause = RETRY.0;
        for tries in 1.. {
            match insert_once(&core, &order, call.clone(), &send).await {
                Ok((enabled, now_ns)) => {
                    return announce(&core, &order, enabled, now_ns, &send).await;
                }
                Err(failure) if may_pass(&failure.reason) && Instant::now() + pause < deadline => {
                    let deferred = v1::Deferred { reason: failure.reason, what: failure.what, tries };
                    drop(send.try_send(Ok(response(Event::Deferred(deferred)))));
                }
                // When the client has gone, nobody needs to know.
                Err(failure) => return drop(send.send(Err(order.refuse(failure))).await),
            }
            tokio::select! {
                () = send.closed() => return,
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            }
        }
    });
    Response::new(Box::pin(ReceiverStream::new(receive)))
}

type Messages = mpsc::Sender<Result<v1::EnableResponse, Status>>;

/// One try; when the measurement is in, its lease and the time.
async fn insert_once(
    core: &Core,
    order: &Order,
    call: impl Fn(&Engine, &Progress<v1::EnableResponse>) -> Result<Enabled, Error> + Send + 'static,
    send: &Messages,
) -> Result<(Enabled, u64), Failure> {
    let progress = Progress::new(send.clone(), |text| response(Event::Progress(v1::Progress { text })));
    let (shared, order) = (core.clone(), order.clone());
    let inserted = core.engine_value(move |engine| {
        let begun = order.begin(&shared, engine)?;
        let enabled = call(engine, &progress).map_err(convert::failure)?;
        if let Some(begun) = begun
            && let Err(failure) = begun.inserted(enabled.id, enabled.pairs.len())
        {
            // How many functions match is known only now. Nothing stays of what is too much.
            engine.remove(enabled.id, Caller::Engine).map_err(convert::failure)?;
            return Err(failure);
        }
        shared.keeper().inserted(enabled.id, order.afterwards.keep);
        if let Some(asked) = &order.asked {
            shared.audit().inserted(engine, asked, &enabled);
        }
        Ok((enabled, ingraft_engine::now_ns()))
    });
    inserted.await?
}

/// Begins to record what is in, and says what it is.
async fn announce(core: &Core, order: &Order, enabled: Enabled, now_ns: u64, send: &Messages) {
    let (id, afterwards) = (enabled.id, order.afterwards);
    if afterwards.history {
        let pairs = enabled.pairs.len();
        let permitted = recorder::permit(pairs).and_then(|()| match &order.client {
            Some(Client { holder, table, .. }) => {
                let have = core.recorder().histories(&table.measurements(*holder));
                table.refuse_histories(*holder, have, 2 * pairs)
            }
            None => Ok(()),
        });
        if let Err(failure) = permitted {
            keeper::remove(core, id).await;
            return drop(send.send(Err(order.refuse(failure))).await);
        }
        recorder::begin(core, id, &enabled.pairs, now_ns);
    }
    for event in events(enabled) {
        if send.send(Ok(response(event))).await.is_err() {
            if !afterwards.keep {
                keeper::remove(core, id).await;
            }
            return;
        }
    }
}

fn response(event: Event) -> v1::EnableResponse {
    v1::EnableResponse { event: Some(event) }
}

/// The messages of an insertion: one Enabled, then the pairs and the refused functions.
fn events(enabled: Enabled) -> Vec<Event> {
    let head = v1::Enabled {
        measurement: enabled.id.0,
        pid: enabled.pid.0,
        attached: enabled.attached,
        threads: enabled.threads,
        modules: enabled.modules,
        functions: enabled.functions,
        points: enabled.points,
        attach_ns: nanoseconds(enabled.attach_time),
        stopped_ns: nanoseconds(enabled.stopped),
        pair_count: count(enabled.pairs.len()),
        refused_count: refused_count(&enabled.pairs, &enabled.refused),
        metrics: metrics(&enabled.pairs),
        warnings: enabled.warnings,
        caught_up: enabled.caught_up.calls,
        not_unwound: enabled.caught_up.not_unwound,
        since_ns: enabled.since_ns,
    };
    let mut events = vec![Event::Enabled(head)];
    events.extend(pair_chunks(&enabled.pairs).map(Event::Pairs));
    events.extend(refused_chunks(&enabled.pairs, &enabled.refused).map(Event::Refused));
    events
}

/// The messages of a description: the same as far as it is still known.
pub fn description(id: u64, pid: Pid, pairs: &[PairInfo]) -> Vec<v1::DescribeResponse> {
    use v1::describe_response::Event;
    let head = v1::Enabled {
        measurement: id,
        pid: pid.0,
        points: pairs.iter().fold(0, |sum, pair| sum.saturating_add(pair.points)),
        pair_count: count(pairs.len()),
        refused_count: refused_count(pairs, &[]),
        metrics: metrics(pairs),
        ..v1::Enabled::default()
    };
    let mut events = vec![Event::Enabled(head)];
    events.extend(pair_chunks(pairs).map(Event::Pairs));
    events.extend(refused_chunks(pairs, &[]).map(Event::Refused));
    events.into_iter().map(|event| v1::DescribeResponse { event: Some(event) }).collect()
}

fn pair_chunks(pairs: &[PairInfo]) -> impl Iterator<Item = v1::PairChunk> {
    Parts::new(pairs.iter().map(convert::pair)).scan(0, |first, pairs| {
        let chunk = v1::PairChunk { first: *first, pairs };
        *first += count(chunk.pairs.len());
        Some(chunk)
    })
}

fn refused_chunks<'a>(
    pairs: &'a [PairInfo],
    others: &'a [RefusedFunction],
) -> impl Iterator<Item = v1::RefusedChunk> + use<'a> {
    let of_pairs = pairs.iter().enumerate().flat_map(|(i, pair)| pair.refused.iter().map(move |r| (r, Some(i))));
    let all = others.iter().map(|r| (r, None)).chain(of_pairs);
    Parts::new(all.map(|(refused, pair)| convert::refused(refused, pair)))
        .map(|functions| v1::RefusedChunk { functions })
}

fn refused_count(pairs: &[PairInfo], others: &[RefusedFunction]) -> u32 {
    count(pairs.iter().map(|pair| pair.refused.len()).sum::<usize>() + others.len())
}

/// The metrics of the pairs, each once, by name.
fn metrics(pairs: &[PairInfo]) -> Vec<v1::Metric> {
    let by_name: BTreeMap<_, _> = pairs.iter().map(|pair| (&pair.metric.name, &pair.metric)).collect();
    by_name.into_values().map(|metric| v1::Metric::from(metric.as_ref())).collect()
}

/// The messages of a removal.
pub fn removal(id: u64, removed: &ingraft_engine::Removed) -> Vec<v1::RemoveResponse> {
    use v1::remove_response::Event;
    let mut events = vec![Event::Removed(convert::removed(removed))];
    if let Some(pairs) = &removed.grown {
        events.extend(description(id, removed.pid, pairs).into_iter().map(Event::Measured));
    }
    if let Some(last) = &removed.last {
        events.extend(ingraft_wire::sample::split(crate::backlog::whole(last)).into_iter().map(Event::Last));
        events.extend(last.ended.map(convert::ended).map(Event::Ended));
    }
    events.into_iter().map(|event| v1::RemoveResponse { event: Some(event) }).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_engine::{FunctionRef, MeasurementId, MetricFocus, Reading, Removed, Value};
    use ingraft_model::{Focus, MetricInfo, Refusal, Svma, Tid};
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
            constraints: vec!["/Code".into()],
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
            points: 1,
            refused: if n == 3 { vec![refused(8), refused(9)] } else { Vec::new() },
            exact_since_ns: None,
        };
        Enabled {
            id: MeasurementId(5),
            pid: Pid(7),
            attached: true,
            threads: 1,
            modules: 2,
            functions: 3,
            points: 4,
            since_ns: 7,
            attach_time: Duration::from_millis(5),
            stopped: Duration::from_micros(6),
            pairs: Arc::new((0..pairs).map(pair).collect()),
            refused: vec![refused(1)],
            caught_up: Default::default(),
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
        assert_eq!((head.measurement, head.pid, head.stopped_ns), (5, 7, 6000));
        assert_eq!(head.pair_count as usize, pairs.len());
        assert_eq!(head.metrics.len(), 1, "each metric once");
        assert_eq!(head.refused_count, 3);
        assert_eq!(refused.iter().map(|r| r.pair).collect::<Vec<_>>(), [None, Some(3), Some(3)]);
        assert_eq!(pairs[3].refused_count, 2);
    }

    #[test]
    fn a_description_says_the_same_pairs() {
        let e = enabled(4);
        let messages = description(5, e.pid, &e.pairs);
        assert_eq!(messages.len(), 3);
    }

    #[test]
    fn a_removal_ends_with_the_last_values() {
        let value = Value::from(9);
        let ended = ingraft_engine::Ended { status: Some(0), signal: None, exec: false };
        let removed = Removed {
            pid: Pid(7),
            stopped: Duration::ZERO,
            text_restored: true,
            children_left: vec![Pid(8)],
            memory_left: true,
            asleep: vec![Tid(9)],
            corrections: (0, 0),
            grown: None,
            warnings: Vec::new(),
            last: Some(Reading { time_ns: 1, values: vec![value], ended: Some(ended) }),
        };
        let messages = removal(5, &removed);
        assert_eq!(messages.len(), 3);
        let without = removal(5, &Removed { last: None, ..removed.clone() });
        assert_eq!(without.len(), 1);
        let grown = removal(5, &Removed { grown: Some(enabled(4).pairs), ..removed });
        assert_eq!(grown.len(), 6, "an Enabled, pairs and refused functions before the values");
    }
}
