//! `ingraft.v1.Metrics`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ingraft_engine::{AtEnd, Caller, MeasurementId, Reading};
use ingraft_wire::{Failure, FailureKind, FieldError, PART_BYTES, Parts, failure, sample, v1};
use tokio::sync::{Notify, mpsc};
use tokio::time::MissedTickBehavior;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::auth;
use crate::backlog::{Backlog, Delta, whole};
use crate::core::{BACKLOG, Core, INTERVAL_MIN, shutting_down, spawn};
use crate::keeper::OpenStream;
use crate::recorder;
use crate::rpc::{Answers, answers, convert};

/// Time between two samples when a request names none.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Longest name of a phase, in bytes.
const PHASE_NAME_MAX: usize = 256;

/// Knows metrics and reads values.
pub struct Service(pub Core);

#[tonic::async_trait]
impl v1::metrics_server::Metrics for Service {
    type ListStream = Answers<v1::ListMetricsResponse>;

    async fn list(&self, request: Request<v1::ListMetricsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let v1::ListMetricsRequest { definitions, events } = request.into_inner();
        let definitions = convert::sources(definitions);
        let metrics = self.0.engine_call(move |engine| engine.metrics(&definitions)).await?;
        let metrics: Vec<_> = metrics.iter().map(v1::Metric::from).collect();
        let events = if events { self.0.engine_value(|engine| engine.events()).await? } else { Vec::new() };
        let metrics = Parts::new(metrics).map(|metrics| v1::ListMetricsResponse { metrics, ..Default::default() });
        let events = Parts::new(events.into_iter().map(convert::event));
        answers(metrics.chain(events.map(|events| v1::ListMetricsResponse { events, ..Default::default() })))
    }

    type CheckStream = Answers<v1::CheckResponse>;

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<Self::CheckStream>, Status> {
        let definitions = convert::sources(request.into_inner().definitions);
        let found = self.0.engine_value(move |engine| engine.check(&definitions)).await?;
        let found: Vec<_> = found.iter().map(convert::diagnostic).collect();
        answers(Parts::new(found).map(|diagnostics| v1::CheckResponse { diagnostics }))
    }

    async fn define(&self, request: Request<v1::DefineRequest>) -> Result<Response<v1::DefineResponse>, Status> {
        auth::own_user_only(auth::caller(&request)?, || {
            // Definitions count for everybody: another user could change what a name means to its owner.
            Failure::new(
                FailureKind::Denied,
                "define_other_user",
                "the daemon keeps definitions of its own user only",
                "send the definitions with the requests that need them (-I FILE)",
            )
        })?;
        let client = auth::client(&request);
        let definitions = convert::sources(request.into_inner().definitions);
        let core = self.0.clone();
        let found = self.0.engine_value(move |engine| {
            let mut defined = core.defined();
            let bytes = definitions.iter().map(|(name, text)| name.len() + text.len()).sum();
            if let Some(client) = client {
                client.table.refuse_definitions(*defined, bytes)?;
            }
            let found = engine.define(&definitions).map_err(convert::failure)?;
            *defined += bytes;
            Ok::<_, Failure>(found)
        });
        let found = found.await??;
        let (diagnostics, omitted) = failure::fitting(found.iter().map(convert::diagnostic).collect(), PART_BYTES);
        Ok(Response::new(v1::DefineResponse { diagnostics, omitted }))
    }

    type LowerStream = Answers<v1::LowerResponse>;

    async fn lower(&self, request: Request<v1::LowerRequest>) -> Result<Response<Self::LowerStream>, Status> {
        let caller = auth::caller(&request)?;
        let request = convert::lower(request.into_inner()).map_err(Failure::from)?;
        let lowered = self.0.engine_call(move |engine| engine.lower(&request, caller)).await?;
        answers(Parts::new(lowered.into_iter().map(convert::lowered)).map(|metrics| v1::LowerResponse { metrics }))
    }

    type StreamStream = Answers<v1::StreamResponse>;

    async fn stream(&self, request: Request<v1::StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::StreamRequest { measurement, interval_ns, threads } = request.into_inner();
        let interval = match interval_ns {
            0 => INTERVAL_DEFAULT,
            ns => Duration::from_nanos(ns).max(INTERVAL_MIN),
        };
        let reader = Reader { core: self.0.clone(), id: MeasurementId(measurement), threads, caller };
        // Read before answering: a measurement that does not exist is an error of the call.
        let first = reader.read().await?;
        let ended = reader.end().await?;
        let open = self.0.keeper().open(reader.id);
        let (send, receive) = mpsc::channel(1);
        spawn(stream(reader, first, interval, (open, ended), send));
        Ok(Response::new(Box::pin(ReceiverStream::new(receive))))
    }

    type ReadStream = Answers<v1::ReadResponse>;

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        use v1::read_response::Event;
        let caller = auth::caller(&request)?;
        let v1::ReadRequest { measurement, threads } = request.into_inner();
        let reader = Reader { core: self.0.clone(), id: MeasurementId(measurement), threads, caller };
        let reading = reader.read().await?;
        self.0.keeper().read(reader.id);
        let mut events: Vec<_> = sample::split(whole(&reading)).into_iter().map(Event::Sample).collect();
        events.extend(reading.ended.map(convert::ended).map(Event::Ended));
        answers(events.into_iter().map(|event| v1::ReadResponse { event: Some(event) }))
    }

    type HistoryStream = Answers<v1::HistoryResponse>;

    async fn history(&self, request: Request<v1::HistoryRequest>) -> Result<Response<Self::HistoryStream>, Status> {
        use v1::history_response::Event;
        let caller = auth::caller(&request)?;
        let v1::HistoryRequest { measurement, phase } = request.into_inner();
        let recording = recorder::look(&self.0, MeasurementId(measurement), caller).await?;
        let recording = recorder::open(&recording);
        let number = phase.unwrap_or_default();
        let histories = recording.histories(phase).ok_or_else(|| recorder::no_phase(number))?;
        let phases = recording.phases().into_iter().map(v1::Phase::from).collect();
        let mut events = vec![Event::Phases(v1::Phases { phases })];
        let chunks = Parts::new((0..).zip(histories).map(v1::PairHistory::from));
        events.extend(chunks.map(|histories| Event::Histories(v1::HistoryChunk { histories })));
        answers(events.into_iter().map(|event| v1::HistoryResponse { event: Some(event) }))
    }

    async fn start_phase(
        &self,
        request: Request<v1::StartPhaseRequest>,
    ) -> Result<Response<v1::StartPhaseResponse>, Status> {
        let caller = auth::caller(&request)?;
        let client = auth::client(&request);
        let v1::StartPhaseRequest { measurement, name } = request.into_inner();
        if name.len() > PHASE_NAME_MAX {
            let why = format!("is longer than {PHASE_NAME_MAX} bytes");
            return Err(Failure::from(FieldError::new("name", why)).into());
        }
        let recording = recorder::look(&self.0, MeasurementId(measurement), caller).await?;
        if let Some(auth::Client { holder, table, .. }) = client {
            let have = self.0.recorder().histories(&table.measurements(holder));
            let needs = recorder::open(&recording).phase_needs();
            let refused = table.refuse_histories(holder, have, needs);
            // the oldest phase makes room for the new one
            if refused.is_err() && !recorder::open(&recording).forget_oldest() {
                refused?;
            }
        }
        let phase = recorder::open(&recording).start_phase(name);
        Ok(Response::new(v1::StartPhaseResponse { phase: Some(phase.into()) }))
    }
}

/// Reads one measurement again and again.
struct Reader {
    core: Core,
    id: MeasurementId,
    threads: bool,
    caller: Caller,
}

impl Reader {
    async fn read(&self) -> Result<Reading, Failure> {
        let Reader { id, threads, caller, .. } = *self;
        self.core.engine_call(move |engine| engine.read(id, threads, caller)).await
    }

    /// What tells that the target has ended.
    async fn end(&self) -> Result<EndNotice, Failure> {
        let Reader { id, caller, .. } = *self;
        let notify = Arc::new(Notify::new());
        let tell: Arc<AtEnd> = {
            let notify = Arc::clone(&notify);
            Arc::new(move || notify.notify_one())
        };
        let kept = Arc::clone(&tell);
        self.core.engine_call(move |engine| engine.at_end(id, caller, &tell)).await?;
        Ok(EndNotice { notify, _tell: kept })
    }
}

/// Tells of the end of a target, as long as it is kept.
struct EndNotice {
    notify: Arc<Notify>,
    _tell: Arc<AtEnd>,
}

/// How a stream will end once everything that waits was sent.
enum End {
    Target(v1::Ended),
    Failure(Failure),
}

/// Feeds one stream until the target or the engine ends or the client goes away.
async fn stream(
    reader: Reader,
    first: Reading,
    interval: Duration,
    (mut open, ended): (OpenStream, EndNotice),
    send: mpsc::Sender<Result<v1::StreamResponse, Status>>,
) {
    use v1::stream_response::Event;
    let response = |event| v1::StreamResponse { event: Some(event) };
    let mut backlog = Backlog::new(BACKLOG);
    let mut delta = Delta::default();
    let mut parts: VecDeque<v1::Sample> = VecDeque::new();
    let mut end = first.ended.map(convert::ended).map(End::Target);
    backlog.push(first);
    let mut closing = reader.core.closing();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    // A reading that comes late must not be followed by a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

    loop {
        let waiting = !parts.is_empty() || !backlog.is_empty();
        if let (Some(end), false) = (&end, waiting) {
            let last = match end {
                End::Target(ended) => {
                    open.target_ended();
                    Ok(response(Event::Ended(*ended)))
                }
                End::Failure(failure) => Err(failure.clone().into_status()),
            };
            // When the client has gone, nobody needs to know.
            drop(send.send(last).await);
            return;
        }
        tokio::select! {
            biased;
            () = send.closed() => return,
            permit = send.reserve(), if waiting => {
                let Ok(permit) = permit else { return };
                if parts.is_empty() {
                    parts.extend(backlog.take().map(|taken| sample::split(delta.sample(taken))).into_iter().flatten());
                }
                if let Some(part) = parts.pop_front() {
                    permit.send(Ok(response(Event::Sample(part))));
                }
            }
            () = closing.wait(), if end.is_none() => end = Some(End::Failure(shutting_down())),
            () = due(&mut ticks, &ended), if end.is_none() => match reader.read().await {
                Ok(reading) => {
                    end = reading.ended.map(convert::ended).map(End::Target);
                    backlog.push(reading);
                }
                Err(failure) => end = Some(End::Failure(failure)),
            },
        }
    }
}

/// Returns when it is time for a reading: at the next tick, or when the target has ended.
async fn due(ticks: &mut tokio::time::Interval, ended: &EndNotice) {
    tokio::select! {
        _ = ticks.tick() => (),
        () = ended.notify.notified() => (),
    }
}
