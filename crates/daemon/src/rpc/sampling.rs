//! `ingraft.v1.Code.Sample`: samples of a target, until the target or the stream ends.

use std::sync::Arc;
use std::time::Duration;

use ingraft_api::SamplingRequest;
use ingraft_engine::{Caller, Sampling};
use ingraft_wire::sampling::{messages, requested};
use ingraft_wire::{ProtocolFailure, v1};
use tokio::time::Instant;
use tonic::{Response, Status};
use v1::sample_response::Event;

use crate::core::{Core, INTERVAL_MIN, payer, shutting_down, spawn};
use crate::failure::failed;
use crate::rpc::{Answers, CallProgress};
use crate::waiting::{self, AnswerPart, PartSender, WaitingMessages};

/// Time between two readings if a request names none.
const INTERVAL: Duration = Duration::from_secs(1);
/// Time between two looks whether the target has ended.
const END_LOOK: Duration = Duration::from_millis(50);

/// Begins to sample a target, and returns the stream of readings.
pub(super) fn sample(
    core: &Core,
    request: v1::SampleRequest,
    caller: Caller,
) -> Result<Response<Answers<v1::SampleResponse>>, Status> {
    let (request, interval) = requested(request).map_err(ProtocolFailure::from)?;
    let interval = if interval.is_zero() { INTERVAL } else { interval.max(INTERVAL_MIN) };
    let (send, told) = waiting::channel(8);
    let core = core.clone();
    spawn(async move {
        if let Err(failure) = run(&core, request, caller, interval, &send).await {
            // If the client is gone, no answer is needed.
            drop(send.send(Err(failure.into_status())).await);
        }
    });
    Ok(Response::new(Box::pin(told)))
}

/// Sends readings until the target, the engine or the stream ends. If the client reads too slowly, the next reading comes later, and has all
/// samples since the last one.
async fn run(
    core: &Core,
    request: SamplingRequest,
    caller: Caller,
    interval: Duration,
    send: &PartSender<v1::SampleResponse>,
) -> Result<(), ProtocolFailure> {
    let progress = CallProgress::new(send.clone(), |text| v1::SampleResponse {
        event: Some(Event::Progress(v1::Progress { text, ..Default::default() })),
    });
    let sampling = core.engine_list(move |engine| engine.sample(&request, caller, &|text| progress.say(text)));
    let sampling = Arc::new(sampling.await?.map_err(failed)?);
    let mut closing = core.closing();
    let mut due = Instant::now() + interval;
    loop {
        tokio::select! {
            biased;
            () = send.closed() => return end(core, sampling).await,
            () = closing.wait() => return Err(shutting_down()),
            () = wait(&sampling, due) => {}
        }
        let (read, payer) = (Arc::clone(&sampling), payer());
        let reading = core.engine_value(move |_| {
            let reading = read.read().map_err(failed)?;
            let over = reading.ended.is_some();
            Ok::<_, ProtocolFailure>((WaitingMessages::packed(payer.as_ref(), messages(reading))?, over))
        });
        let (reading, over) = reading.await??;
        if send.send(Ok(AnswerPart::Many(reading))).await.is_err() || over {
            return end(core, sampling).await;
        }
        due = Instant::now() + interval;
    }
}

/// Waits for the next reading, or for the end of the target.
async fn wait(sampling: &Sampling, due: Instant) {
    while Instant::now() < due && !sampling.has_ended() {
        tokio::time::sleep_until(due.min(Instant::now() + END_LOOK)).await;
    }
}

/// Ends the sampling on a blocking thread, because it waits for the thread that takes samples.
async fn end(core: &Core, sampling: Arc<Sampling>) -> Result<(), ProtocolFailure> {
    core.engine_value(move |_| drop(sampling)).await
}
