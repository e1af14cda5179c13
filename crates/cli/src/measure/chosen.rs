//! Several targets in one request: the processes that a name or a control group stands for, their insertion one after the other, and the
//! processes that come later.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use ingraft_api::Reason;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{EngineMeasurement, MeasurementRun, StreamArrival, given_up};
use crate::args::FollowMode;
use crate::conn::{Client, InsertionRequest, ProcessSelector, RequestTarget};
use crate::exit::{Exit, Failure, Stop};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};
use crate::signals::Signals;

/// Time between two looks for new processes of a name or a control group; each look reads the names of all processes.
const LOOK: Duration = Duration::from_millis(250);
/// Largest number of insertions at the same time. The first insertion runs alone, because the others use its analysis.
const AT_ONCE: usize = 3;

/// The processes of a name or a control group that have been seen.
#[derive(Default)]
pub(super) struct ChosenProcesses {
    /// Hosts and ids of these processes, so that each process is tried once.
    seen: HashSet<(Option<String>, i32)>,
    /// Time of the next look; `None` if the next look is due.
    next: Option<Instant>,
}

impl MeasurementRun<'_> {
    /// The requests that one request stands for at one host: itself, or one for each process that its name or control group has now.
    async fn expand(&mut self, client: &Client, request: &InsertionRequest) -> Result<Vec<InsertionRequest>, Failure> {
        let RequestTarget::Each(choice) = &request.target else { return Ok(vec![request.clone()]) };
        let mut progress = Progress::new("looking at processes", self.format());
        let found = client.choose(choice, &mut progress).await?;
        self.chosen.seen.extend(found.iter().map(|process| (client.host(), process.pid.0)));
        let measured: Vec<i32> = found.iter().filter(|p| !p.with_parent).map(|p| p.pid.0).collect();
        if measured.is_empty() {
            return Err(Failure { host: client.host(), ..choice.nobody() });
        }
        Ok(measured
            .into_iter()
            .map(|pid| InsertionRequest { target: RequestTarget::Pid(pid), ..request.clone() })
            .collect())
    }

    /// Inserts all requests. On an error, `sites` has the measurements that were inserted before it. A process of a name or control group
    /// that is gone or cannot be measured is reported and left out. Returns whether the measurement goes on: a signal ends it, with those
    /// that were inserted before.
    pub(super) async fn insert(
        &mut self,
        events: &mpsc::Sender<StreamArrival>,
        signals: &mut Signals,
        out: &mut Output,
    ) -> Result<bool, Stop> {
        let clients = self.context.engines.clients();
        let mut missing = Vec::new();
        let mut left_out: Vec<Failure> = Vec::new();
        for (number, client) in clients.iter().enumerate() {
            let is_last = number + 1 == clients.len();
            let mut requests = Vec::new();
            for request in self.plan.requests.clone() {
                let expanded = tokio::select! {
                    expanded = self.expand(client, &request) => expanded,
                    () = signals.asked() => return self.interrupted(None, &left_out),
                };
                match expanded {
                    Ok(expanded) => requests.extend(expanded),
                    Err(failure) if clients.len() > 1 && failure.exit == Exit::NotFound => missing.push(failure),
                    Err(failure) => return Err(failure.into()),
                }
            }
            let several = requests.len() > 1;
            let mut inserting = Inserting::new(client, requests, self.format());
            loop {
                let (request, enabled) = tokio::select! {
                    // Once the last answer has arrived, a signal ends the measurement instead of cancelling the insertion.
                    biased;
                    next = inserting.next() => match next {
                        Some(next) => next,
                        None => break,
                    },
                    // If a call is cancelled, the engine removes what the call inserts.
                    () = signals.asked() => {
                        let left = inserting.left();
                        let finished = inserting.finished();
                        let others = left.saturating_sub(finished.len());
                        self.add_all(finished, events, out)?;
                        return self.interrupted(is_last.then_some(others), &left_out);
                    }
                };
                match enabled {
                    Ok(made) => {
                        self.add(made, events, out)?;
                        if let Some(site) = self.sites.last_mut() {
                            site.is_started = request.target.is_started();
                        }
                    }
                    Err(failure) if several && self.goes_without(&failure) => {
                        left_out.push(Failure { pid: failure.pid.or(request.pid()), ..failure });
                    }
                    // If there are several hosts, a target need not exist on each of them.
                    Err(failure) if clients.len() > 1 && failure.exit == Exit::NotFound => missing.push(failure),
                    Err(failure) => {
                        self.add_all(inserting.finished(), events, out)?;
                        return Err(failure.into());
                    }
                }
            }
        }
        if self.sites.is_empty() {
            let first = left_out.into_iter().chain(missing).next();
            return Err(first.map_or(Stop::Reported(Exit::NotFound), Stop::Failure));
        }
        for failure in missing {
            output::warn(&words::at_host(&failure), self.format());
        }
        words::left_out(&left_out, self.format()).iter().for_each(|text| output::warn(text, self.format()));
        Ok(true)
    }

    /// Takes note of a signal that ends the insertion. `others` is the number of processes that are not measured, if it is known. Fails if nothing
    /// is measured.
    fn interrupted(&self, others: Option<usize>, left_out: &[Failure]) -> Result<bool, Stop> {
        if self.sites.is_empty() {
            return Err(given_up().into());
        }
        words::left_out(left_out, self.format()).iter().for_each(|text| output::warn(text, self.format()));
        if others != Some(0) {
            output::warn(&words::cut_short(others), self.format());
        }
        Ok(false)
    }

    /// Adds the measurements that were inserted meanwhile, so that the end of the command removes them.
    fn add_all(
        &mut self,
        inserted: Vec<EngineMeasurement>,
        events: &mpsc::Sender<StreamArrival>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        inserted.into_iter().try_for_each(|made| self.add(made, events, out))
    }

    /// Whether the command measures the other targets if one fails in this way. A process that was named by itself may be missing if it is
    /// gone; a process of a name or a control group may fail in any way but wrong usage.
    fn goes_without(&self, failure: &Failure) -> bool {
        let gone = failure.exit == Exit::Gone
            || matches!(Reason::of(&failure.reason), Some(Reason::NoSuchProcess | Reason::Zombie));
        gone || self.plan.chooses() && failure.exit != Exit::Usage
    }

    /// Measures processes of the request's name or control group that have come since the last look and are not measured with a parent.
    pub(super) async fn look_for_newcomers(&mut self) -> Result<(), Stop> {
        if !self.plan.follows(FollowMode::Fork) || self.chosen.next.is_some_and(|at| Instant::now() < at) {
            return Ok(());
        }
        let choices: Vec<ProcessSelector> = self.plan.choices().cloned().collect();
        if choices.is_empty() {
            return Ok(());
        }
        self.chosen.next = Some(Instant::now() + LOOK);
        let clients = self.context.engines.clients();
        for (client, choice) in clients.iter().flat_map(|client| choices.iter().map(move |choice| (client, choice))) {
            let mut progress = Progress::new("looking at processes", self.format());
            let found = match client.choose(choice, &mut progress).await {
                Ok(found) => found,
                // A control group may vanish with its last process, and appear again later.
                Err(failure) if failure.exit == Exit::NotFound => Vec::new(),
                Err(failure) => return Err(failure.into()),
            };
            let host = client.host();
            self.chosen.seen.retain(|(at, pid)| *at != host || found.iter().any(|p| p.pid.0 == *pid));
            let with_parent = self.with_parents(client, choice).await;
            for process in found.into_iter().filter(|p| !p.with_parent && !with_parent.contains(&p.pid.0)) {
                let is_new = self.chosen.seen.insert((host.clone(), process.pid.0));
                if is_new && !self.living(&host).any(|site| site.enabled.pid == process.pid) {
                    self.kin.begin(client, process.pid.0);
                }
            }
        }
        Ok(())
    }

    /// The processes of a name or a control group that joined engines at the same host measure with their parents.
    async fn with_parents(&self, own: &Client, choice: &ProcessSelector) -> HashSet<i32> {
        let mut with_parents = HashSet::new();
        for client in self.clients().iter().filter(|client| client.host() == own.host() && !client.is(own)) {
            let mut progress = Progress::new("looking at processes", self.format());
            // Without this answer, such processes are tried, and the engine refuses them.
            let found = client.choose(choice, &mut progress).await.unwrap_or_default();
            with_parents.extend(found.iter().filter(|process| process.with_parent).map(|process| process.pid.0));
        }
        with_parents
    }

    /// Whether the command waits for new processes of a name or a control group after all others have ended.
    pub(super) fn awaits_newcomers(&self) -> bool {
        self.plan.chooses() && self.plan.follows(FollowMode::Fork) && !self.plan.measure.until_exit
    }
}

/// Insertions at one host, some of them at the same time. The answers are returned in the order of the requests.
struct Inserting<'a> {
    client: &'a Client,
    requests: Vec<InsertionRequest>,
    format: crate::args::Format,
    /// Index of the request that is begun next.
    begun: usize,
    /// Index of the request whose answer is returned next.
    told: usize,
    open: JoinSet<(usize, Result<EngineMeasurement, Failure>)>,
    answers: BTreeMap<usize, Result<EngineMeasurement, Failure>>,
}

impl<'a> Inserting<'a> {
    fn new(client: &'a Client, requests: Vec<InsertionRequest>, format: crate::args::Format) -> Self {
        let (open, answers) = (JoinSet::new(), BTreeMap::new());
        Inserting { client, requests, format, begun: 0, told: 0, open, answers }
    }

    /// Number of requests whose answers were not returned yet.
    fn left(&self) -> usize {
        self.requests.len().saturating_sub(self.told)
    }

    /// Insertions that are complete but that [`Inserting::next`] has not returned yet. The calls that still run are cancelled, and the
    /// engine removes what they insert.
    fn finished(mut self) -> Vec<EngineMeasurement> {
        while let Some(done) = self.open.try_join_next() {
            match done {
                Ok((number, answer)) => drop(self.answers.insert(number, answer)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        self.answers.into_values().filter_map(Result::ok).collect()
    }

    /// The next request with its answer; `None` after the last one. Dropping this value cancels the calls without an answer.
    async fn next(&mut self) -> Option<(InsertionRequest, Result<EngineMeasurement, Failure>)> {
        loop {
            if let Some(answer) = self.answers.remove(&self.told) {
                let request = self.requests.get(self.told)?.clone();
                self.told += 1;
                return Some((request, answer));
            }
            let room = if self.told == 0 { 1 } else { AT_ONCE };
            while self.open.len() < room
                && let Some(request) = self.requests.get(self.begun).cloned()
            {
                let (number, client, format) = (self.begun, self.client.clone(), self.format);
                self.begun += 1;
                self.open.spawn(async move {
                    let mut progress = Progress::new("reading the program", format);
                    (number, client.enable(&request, &mut progress).await)
                });
            }
            match self.open.join_next().await? {
                Ok((number, answer)) => drop(self.answers.insert(number, answer)),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
    }
}
