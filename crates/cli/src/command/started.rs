//! A program that a command starts to sample it. The engine starts it with a measurement that needs no code, and tells its end.

use std::ffi::OsString;
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, MetricFocus, Reason, Terms};
use ingraft_model::Focus;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::conn::{Client, InsertionRequest, RequestTarget, StreamEvent};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::CommandContext;
use crate::objects::EndedObject;
use crate::output::Output;
use crate::output::progress::Progress;

/// Metric of the measurement, which the engine knows without code.
const METRIC: &str = "active_processes";
/// Time between two values of it, which nobody reads.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the exit status of a program that has ended.
const STATUS: Duration = Duration::from_secs(2);

/// Keeps what a command prints apart from what a program prints that it starts.
pub(super) fn share_output(context: &CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    out.shared();
    // A daemon gives the programs that it starts no output.
    if context.engines.is_embedded() { out.apart_from_program() } else { Ok(()) }
}

/// A program that the command has started.
pub(super) struct StartedProgram {
    client: Client,
    enabled: Enabled,
    events: mpsc::Receiver<(usize, Result<StreamEvent, Failure>)>,
    stream: JoinHandle<()>,
}

impl StartedProgram {
    /// Starts a program.
    pub(super) async fn start(
        client: &Client,
        command: Vec<OsString>,
        progress: &mut Progress,
    ) -> Result<StartedProgram, Failure> {
        let pair = MetricFocus { metric: METRIC.to_owned(), focus: Focus::default() };
        let measure = EnableRequest { pairs: vec![pair.into()], ..EnableRequest::default() };
        let request = InsertionRequest { target: RequestTarget::Command(command), measure, terms: Terms::default() };
        let (client, enabled) = client.enable(&request, progress).await?;
        let (send, events) = mpsc::channel(4);
        let stream = client.clone().stream(enabled.id, enabled.pairs.len(), INTERVAL, 0, send);
        Ok(StartedProgram { client, enabled, events, stream: tokio::spawn(stream) })
    }

    /// The reason why a command stops: if it is that a program is not there, the program has ended.
    pub(super) fn stop(programs: &[StartedProgram], stop: Stop) -> Stop {
        let ended = |failure: &Failure| {
            let is_missing = Reason::of(&failure.reason) == Some(Reason::NoSuchProcess);
            is_missing && programs.iter().any(|program| failure.pid == Some(program.pid()))
        };
        match stop {
            Stop::Failure(failure) if ended(&failure) => {
                let what = "the program ended before anything was seen of it";
                let failure = Failure { exit: Exit::Gone, what: what.to_owned(), ..failure };
                let hint = "start it with more work, or count its calls with `ingraft count -- COMMAND`".to_owned();
                Failure { hint, ..failure }.because(Reason::TargetEnded).into()
            }
            stop => stop,
        }
    }

    /// Process id of the program.
    pub(super) fn pid(&self) -> i32 {
        self.enabled.pid.0
    }

    /// Ends the measurement. `its` is the end of the program, if samples have met it: it gets the exit status, which samples do not tell.
    /// Returns the exit status of a command that passes on that of the program; `None` if the program runs on or its status is not known.
    pub(super) async fn finish(mut self, its: Option<&mut EndedObject>) -> Result<Option<u8>, Failure> {
        let told = async {
            while let Some((_, Ok(event))) = self.events.recv().await {
                if let StreamEvent::Ended(ended) = event {
                    return Some(ended);
                }
            }
            None
        };
        let ended = if its.is_some() { timeout(STATUS, told).await.unwrap_or_default() } else { None };
        self.stream.abort();
        self.client.remove(self.enabled.id, self.enabled.pairs.len()).await?;
        let (Some(its), Some(ended)) = (its, ended) else { return Ok(None) };
        (its.status, its.signal) = (ended.status, ended.signal);
        let status = ended.status.or(ended.signal.map(|signal| 128 + signal));
        Ok(status.and_then(|status| u8::try_from(status).ok()))
    }
}
