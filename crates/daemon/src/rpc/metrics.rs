//! `ingraft.v1.Metrics`.

use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{ErrorClass, LowerRequest, Reason};
use ingraft_engine::{AtEnd, Caller, MeasurementId};
use ingraft_wire::metric::sources;
use ingraft_wire::{FieldError, MessageParts, PART_BYTES, ProtocolFailure, failure, v1};
use tokio::sync::Notify;
use tokio::time::MissedTickBehavior;
use tonic::{Request, Response, Status};

use crate::auth;
use crate::backlog::{Backlog, Changes, Delta, KeptReading};
use crate::core::{BACKLOG, Core, INTERVAL_MIN, payer, shutting_down, spawn};
use crate::failure::{diagnostic, failed};
use crate::keeper::OpenStream;
use crate::recorder;
use crate::rpc::{Answers, answers, list};
use crate::waiting::{self, AnswerPart, PartSender, WaitingMessages};

/// Time between two samples if a request names none.
const INTERVAL_DEFAULT: Duration = Duration::from_secs(1);

/// Maximum length of a phase's name in bytes.
const PHASE_NAME_MAX: usize = 256;

/// The service that lists metrics and reads values.
pub struct MetricsService(pub Core);

#[tonic::async_trait]
impl v1::metrics_server::Metrics for MetricsService {
    type ListStream = Answers<v1::ListMetricsResponse>;

    async fn list(&self, request: Request<v1::ListMetricsRequest>) -> Result<Response<Self::ListStream>, Status> {
        let v1::ListMetricsRequest { definitions, events } = request.into_inner();
        let definitions = sources(definitions);
        let payer = payer();
        let found = self.0.engine_list(move |engine| {
            let metrics = engine.metrics(&definitions).map_err(failed)?;
            let events = if events { engine.events() } else { Vec::new() };
            let metrics = MessageParts::new(metrics.into_iter().map(v1::Metric::from));
            let metrics = metrics.map(|metrics| v1::ListMetricsResponse { metrics, ..Default::default() });
            let events = MessageParts::new(events.into_iter().map(v1::Event::from));
            let events = events.map(|events| v1::ListMetricsResponse { events, ..Default::default() });
            WaitingMessages::packed(payer.as_ref(), metrics.chain(events))
        });
        Ok(list(found.await??))
    }

    type CheckStream = Answers<v1::CheckResponse>;

    async fn check(&self, request: Request<v1::CheckRequest>) -> Result<Response<Self::CheckStream>, Status> {
        let definitions = sources(request.into_inner().definitions);
        let payer = payer();
        let found = self.0.engine_list(move |engine| {
            let found = engine.check(&definitions).into_iter().map(|found| diagnostic(&found));
            WaitingMessages::packed(
                payer.as_ref(),
                MessageParts::new(found).map(|diagnostics| v1::CheckResponse { diagnostics }),
            )
        });
        Ok(list(found.await??))
    }

    async fn define(&self, request: Request<v1::DefineRequest>) -> Result<Response<v1::DefineResponse>, Status> {
        auth::own_user_only(auth::caller(&request)?, || {
            // Definitions are valid for all clients, so another user could change the meaning of a metric for its owner.
            ProtocolFailure::new(
                Reason::DefineOtherUser,
                "the daemon keeps definitions of its own user only",
                "send the definitions with the requests that need them (-I FILE)",
            )
        })?;
        let client = auth::client(&request);
        let definitions = sources(request.into_inner().definitions);
        let core = self.0.clone();
        let found = self.0.engine_value(move |engine| {
            let mut defined = core.defined();
            let bytes = definitions.iter().map(|(name, text)| name.len() + text.len()).sum();
            if let Some(client) = client {
                client.table.refuse_definitions(*defined, bytes)?;
            }
            let found = engine.define(&definitions).map_err(failed)?;
            *defined += bytes;
            Ok::<_, ProtocolFailure>(found)
        });
        let found = found.await??;
        let (diagnostics, omitted) = failure::fitting(found.iter().map(diagnostic).collect(), PART_BYTES);
        Ok(Response::new(v1::DefineResponse { diagnostics, omitted }))
    }

    type LowerStream = Answers<v1::LowerResponse>;

    async fn lower(&self, request: Request<v1::LowerRequest>) -> Result<Response<Self::LowerStream>, Status> {
        let caller = auth::caller(&request)?;
        let request = LowerRequest::try_from(request.into_inner()).map_err(ProtocolFailure::from)?;
        let payer = payer();
        let lowered = self.0.engine_list(move |engine| {
            let lowered = engine.lower(&request, caller).map_err(failed)?.into_iter().map(v1::LoweredMetric::from);
            WaitingMessages::packed(
                payer.as_ref(),
                MessageParts::new(lowered).map(|metrics| v1::LowerResponse { metrics }),
            )
        });
        Ok(list(lowered.await??))
    }

    type StreamStream = Answers<v1::StreamResponse>;

    async fn stream(&self, request: Request<v1::StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        let caller = auth::caller(&request)?;
        let v1::StreamRequest { measurement, interval_ns, threads } = request.into_inner();
        let interval = match interval_ns {
            0 => INTERVAL_DEFAULT,
            ns => Duration::from_nanos(ns).max(INTERVAL_MIN),
        };
        let reader = PeriodicReader { core: self.0.clone(), id: MeasurementId(measurement), threads, caller };
        // Read once before the answer, so that a measurement that does not exist is an error of the call.
        let first = reader.read(0).await?;
        let ended = reader.end().await?;
        let open = self.0.keeper().open(reader.id);
        let (send, told) = waiting::channel(1);
        spawn(stream(reader, first, interval, (open, ended), send));
        Ok(Response::new(Box::pin(told)))
    }

    type ReadStream = Answers<v1::ReadResponse>;

    async fn read(&self, request: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        use v1::read_response::Event;
        let caller = auth::caller(&request)?;
        let v1::ReadRequest { measurement, threads } = request.into_inner();
        let reader = PeriodicReader { core: self.0.clone(), id: MeasurementId(measurement), threads, caller };
        let reading = reader.read(0).await?;
        self.0.keeper().read(reader.id);
        let ended = reading.reading().ended.map(v1::Ended::from).map(Event::Ended);
        let events = Changes::whole(reading).map(Event::Sample).chain(ended);
        // The bytes of the reading count until its last part is sent.
        Ok(list(WaitingMessages::lazy(events.map(|event| v1::ReadResponse { event: Some(event) }))))
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
        let chunks = MessageParts::new((0..).zip(histories).map(v1::PairHistory::from));
        let chunks = chunks.map(|histories| Event::Histories(v1::HistoryChunk { histories }));
        let events = std::iter::once(Event::Phases(v1::Phases { phases })).chain(chunks);
        answers(events.map(|event| v1::HistoryResponse { event: Some(event) }))
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
            return Err(ProtocolFailure::from(FieldError::new("name", why)).into());
        }
        let recording = recorder::look(&self.0, MeasurementId(measurement), caller).await?;
        if let Some(auth::AuthenticatedClient { holder, table, .. }) = client {
            let have = self.0.recorder().histories(&table.measurements(holder));
            let needs = recorder::open(&recording).phase_needs();
            let refused = table.refuse_histories(holder, have, needs);
            // Delete the oldest phase to make room for the new one.
            if refused.is_err() && !recorder::open(&recording).forget_oldest() {
                refused?;
            }
        }
        let phase = recorder::open(&recording).start_phase(name);
        Ok(Response::new(v1::StartPhaseResponse { phase: Some(phase.into()) }))
    }
}

/// Repeated reader of one measurement.
struct PeriodicReader {
    core: Core,
    id: MeasurementId,
    threads: bool,
    caller: Caller,
}

impl PeriodicReader {
    /// Reads the values. `expected` bytes are counted before the read.
    async fn read(&self, expected: usize) -> Result<KeptReading, ProtocolFailure> {
        let PeriodicReader { id, threads, caller, .. } = *self;
        let payer = payer();
        let reading = self.core.engine_value(move |engine| {
            let held = payer.map(|payer| payer.hold(expected)).transpose()?;
            KeptReading::new(engine.read(id, threads, caller).map_err(failed)?, held)
        });
        reading.await?
    }

    /// Requests from the engine a notice of the target's end, and returns it.
    async fn end(&self) -> Result<EndNotice, ProtocolFailure> {
        let PeriodicReader { id, caller, .. } = *self;
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

/// Notice of the end of a target. The engine gives it only while this value exists.
struct EndNotice {
    notify: Arc<Notify>,
    _tell: Arc<AtEnd>,
}

/// End of a stream, after everything that waits was sent.
enum StreamEnd {
    Target(v1::Ended),
    Failure(ProtocolFailure),
}

/// Sends samples to one stream until the target, the engine or the stream ends.
async fn stream(
    reader: PeriodicReader,
    first: KeptReading,
    interval: Duration,
    (mut open, ended): (OpenStream, EndNotice),
    send: PartSender<v1::StreamResponse>,
) {
    use v1::stream_response::Event;
    let response = |event| v1::StreamResponse { event: Some(event) };
    let mut backlog = Backlog::new(BACKLOG);
    let mut delta = Delta::default();
    let mut expected = first.bytes();
    let mut end = first.reading().ended.map(v1::Ended::from).map(StreamEnd::Target);
    backlog.push(first);
    let mut closing = reader.core.closing();
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    // After a late reading, the next one comes a whole interval later and not at once.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);

    loop {
        let waiting = !backlog.is_empty();
        if let (Some(end), false) = (&end, waiting) {
            let last = match end {
                StreamEnd::Target(ended) => {
                    open.target_ended();
                    Ok(AnswerPart::Message(response(Event::Ended(*ended))))
                }
                StreamEnd::Failure(failure) => Err(failure.clone().into_status()),
            };
            // If the client is gone, no answer is needed.
            drop(send.send(last).await);
            return;
        }
        tokio::select! {
            biased;
            () = send.closed() => return,
            permit = send.reserve(), if waiting => {
                let Ok(permit) = permit else { return };
                if let Some(taken) = backlog.take() {
                    let samples = delta.changes(taken).map(move |sample| response(Event::Sample(sample)));
                    permit.send(Ok(AnswerPart::Many(WaitingMessages::lazy(samples))));
                }
            }
            () = closing.wait(), if end.is_none() => end = Some(StreamEnd::Failure(shutting_down())),
            () = due(&mut ticks, &ended), if end.is_none() => match reader.read(expected).await {
                Ok(reading) => {
                    expected = reading.bytes();
                    end = reading.reading().ended.map(v1::Ended::from).map(StreamEnd::Target);
                    backlog.push(reading);
                }
                // A slow client first loses older readings. When none is left, its stream ends.
                Err(failure) if failure.class == ErrorClass::Exhausted && backlog.drop_oldest() => ticks.reset_immediately(),
                Err(failure) => end = Some(StreamEnd::Failure(failure)),
            },
        }
    }
}

/// Returns when the next reading is due: at the next tick, or when the target has ended.
async fn due(ticks: &mut tokio::time::Interval, ended: &EndNotice) {
    tokio::select! {
        _ = ticks.tick() => (),
        () = ended.notify.notified() => (),
    }
}
