//! A program that `ingraft hot` starts. The engine starts it with a measurement that needs no code, and tells its end.

use std::ffi::OsString;
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, Ended, MetricFocus, Terms};
use ingraft_model::Focus;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::conn::{Client, InsertionRequest, RequestTarget, StreamEvent};
use crate::exit::Failure;
use crate::output::progress::Progress;

/// Metric of the measurement, which the engine knows without code.
const METRIC: &str = "active_processes";
/// Time between two values of it, which nobody reads.
const INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for the exit status of a program that has ended.
const STATUS: Duration = Duration::from_secs(2);

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

    /// Process id of the program.
    pub(super) fn pid(&self) -> i32 {
        self.enabled.pid.0
    }

    /// Ends the measurement. Returns how the program has ended, if `is_over` says that it has.
    pub(super) async fn finish(mut self, is_over: bool) -> Result<Option<Ended>, Failure> {
        let told = async {
            while let Some((_, Ok(event))) = self.events.recv().await {
                if let StreamEvent::Ended(ended) = event {
                    return Some(ended);
                }
            }
            None
        };
        let ended = if is_over { timeout(STATUS, told).await.unwrap_or_default() } else { None };
        self.stream.abort();
        self.client.remove(self.enabled.id, self.enabled.pairs.len()).await?;
        Ok(ended)
    }
}
