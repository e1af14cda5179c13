//! Engines of other commands of the same user. A command whose target such an engine holds joins that engine, which serves it like a daemon.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{Enabled, Reason, Removed, Terms};
use ingraft_model::Pid;
use ingraft_wire::v1;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use v1::daemon_client::DaemonClient;

use super::endpoint::{Neighbour, RequestHeaders};
use super::{Client, EngineChannel, InsertionRequest, OutsideEngine, RequestTarget, Streams};
use crate::exit::{Exit, Failure};
use crate::output::progress::Progress;

/// Longest time that the end of an engine takes. Until then its targets are held, and nobody can join it.
const ENDING: Duration = Duration::from_secs(40);
/// Time between two tries to measure a target whose engine is about to end.
const PAUSE: Duration = Duration::from_millis(20);
/// Time for the process that takes the lock of a target to write its id there, and to listen to others; or to end, if it does not listen any more.
const NAMING: Duration = Duration::from_millis(500);
/// Longest time for a joined engine to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Reasons of calls that fail because the engine ends or has ended. A call whose connection breaks has no explanation.
const ENDS: [Reason; 5] =
    [Reason::Unavailable, Reason::Unexplained, Reason::ShuttingDown, Reason::Ending, Reason::GivenUp];

/// The engines of other commands that a command can join.
pub(super) struct Neighbours {
    state_dir: PathBuf,
    joined: tokio::sync::Mutex<BTreeMap<i32, Client>>,
}

/// Result of the search for the engine that holds a target.
enum HolderSearch {
    Joined(Client),
    /// The engine is about to end.
    Ends,
    /// The engine cannot be joined: it is that of a daemon, or it has another state directory.
    Closed,
}

impl Neighbours {
    pub(super) fn new(state_dir: PathBuf) -> Self {
        Neighbours { state_dir, joined: tokio::sync::Mutex::default() }
    }

    /// Joins the engine of a process.
    async fn join(&self, engine: i32) -> Result<HolderSearch, Failure> {
        let mut joined = self.joined.lock().await;
        if let Some(client) = joined.get(&engine) {
            return Ok(HolderSearch::Joined(client.clone()));
        }
        let Some(neighbour) = Neighbour::find(&self.state_dir, engine) else { return Ok(HolderSearch::Closed) };
        let Some(channel) = neighbour.connect().await else { return Ok(HolderSearch::Ends) };
        let service: EngineChannel = InterceptedService::new(channel, RequestHeaders::default());
        let mut daemon = DaemonClient::new(service.clone());
        match tokio::time::timeout(ANSWER, daemon.version(v1::VersionRequest::default())).await {
            Err(_) => return Err(silent(engine)),
            Ok(Err(_)) => return Ok(HolderSearch::Ends),
            Ok(Ok(_)) => {}
        }
        let streams = Arc::new(Streams::new(OutsideEngine::Neighbour(neighbour)));
        let client = Client { service, host: None, streams: Some(streams), joined: Some(engine), neighbours: None };
        joined.insert(engine, client.clone());
        Ok(HolderSearch::Joined(client))
    }

    async fn forget(&self, engine: i32) {
        self.joined.lock().await.remove(&engine);
    }
}

/// The failure of a command whose target is held by an engine that does not answer.
fn silent(engine: i32) -> Failure {
    let hint = format!("if it was stopped, let it go on: kill -CONT {engine}");
    let what = format!("the process is measured by ingraft {engine}, which does not answer");
    Failure::new(Exit::Denied, what, hint).because(Reason::Held)
}

impl Client {
    /// Inserts a measurement into a process, or starts a command with it. If the engine of another command of this user holds the process,
    /// that engine makes the measurement. Returns the client of the engine that made it.
    pub(crate) async fn enable(
        &self,
        request: &InsertionRequest,
        progress: &mut Progress,
    ) -> Result<(Client, Enabled), Failure> {
        let neighbours = self.neighbours.as_ref().filter(|_| !request.target.is_started());
        let Some(neighbours) = neighbours else {
            return Ok((self.clone(), self.enable_here(request, progress).await?));
        };
        // A target that is held is not waited for if the command can join the holder.
        let terms = Terms { wait: Duration::ZERO, ..request.terms };
        let at_once = InsertionRequest { terms, ..request.clone() };
        let begun = Instant::now();
        // The time since which nobody is known who could be joined. Holders may change many times before that.
        let mut alone: Option<Instant> = None;
        let failure = loop {
            let failure = match self.enable_here(&at_once, progress).await {
                Ok(enabled) => return Ok((self.clone(), enabled)),
                Err(failure) => failure,
            };
            let nobody = *alone.get_or_insert_with(Instant::now);
            let (since, patience) = match (Reason::of(&failure.reason), failure.pid, failure.holder) {
                // An engine traces a target for a moment while it changes the code.
                (Some(Reason::Held | Reason::AlreadyTraced), Some(pid), Some(engine)) => {
                    match neighbours.join(engine).await? {
                        HolderSearch::Joined(client) => {
                            progress.say(&format!("joining ingraft {engine}, which measures process {pid}"));
                            let request = InsertionRequest { target: RequestTarget::Pid(pid), ..request.clone() };
                            match client.enable_here(&request, progress).await {
                                Err(failure) if failure.is_engine_ended() => neighbours.forget(engine).await,
                                Err(failure) => return Err(failure),
                                Ok(enabled) => return Ok((client, enabled)),
                            }
                            (begun, ENDING)
                        }
                        HolderSearch::Ends => (begun, ENDING),
                        HolderSearch::Closed => (nobody, NAMING),
                    }
                }
                (Some(Reason::Held), Some(_), None) => (nobody, NAMING),
                _ => break failure,
            };
            if since.elapsed() >= patience {
                break failure;
            }
            alone = alone.filter(|_| patience == NAMING);
            tokio::time::sleep(PAUSE).await;
        };
        if request.terms.wait.is_zero() || !failure.may_pass() {
            return Err(failure);
        }
        Ok((self.clone(), self.enable_here(request, progress).await?))
    }

    /// Whether both are clients of the same engine.
    pub(crate) fn is(&self, other: &Client) -> bool {
        (&self.host, self.joined) == (&other.host, other.joined)
    }

    /// The failure of a call to a joined engine, if the engine has ended. The call itself failed for this reason.
    pub(super) fn engine_ended(&self, reason: &str) -> Option<Failure> {
        let engine = self.joined.filter(|_| Reason::of(reason).is_some_and(|reason| ENDS.contains(&reason)))?;
        let what = format!("ingraft {engine} has ended, whose engine made this measurement too");
        let failure = Failure::failed(what, "the values are those of the last reading before that; measure again");
        Some(failure.because(Reason::EngineEnded))
    }

    /// Removes what an engine that this command had joined has left in a process, once that engine has ended. Measurements that a daemon
    /// was asked to keep stay.
    pub(crate) async fn take_over(&self, pid: i32, progress: &mut Progress) -> Result<Option<Removed>, Failure> {
        let begun = Instant::now();
        loop {
            let left = self.inserted(progress).await?.into_iter().find(|inserted| inserted.pid == Pid(pid));
            if left.is_none_or(|left| left.kept > 0) {
                return Ok(None);
            }
            match self.detach(&RequestTarget::Pid(pid), progress).await {
                Err(failure) if failure.reason == Reason::Held && begun.elapsed() < ENDING => {
                    tokio::time::sleep(PAUSE).await
                }
                done => return done,
            }
        }
    }
}

impl Failure {
    /// Whether the command failed because the engine has ended that it had joined.
    pub(crate) fn is_engine_ended(&self) -> bool {
        self.reason == Reason::EngineEnded
    }
}
