//! `ingraft diagnose`: the search for what the time of a process goes to, and where, as Paradyn's Performance Consultant makes it.
//!
//! Looks at waiting threads and samples of running ones come first, because they put nothing into the process. `evidence` divides them among
//! the hypotheses, `decisions` decides which of them hold and where, and `trials` tests the places found by code that is inserted for a
//! moment. Of several processes, all are looked at, `groups` says which have what problem, and trials are made in the process in which each
//! problem is largest.

mod causes;
mod decisions;
mod evidence;
mod finding;
mod groups;
mod hypothesis;
mod pasted;
#[cfg(test)]
mod tests;
mod text;
mod trials;

use std::collections::HashSet;
use std::time::Duration;

use ingraft_api::{Enabled, NamedFunction, Reading, SampledState, SamplingReading, SamplingRequest};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

pub(in crate::command) use self::causes::{charged, is_lock_wait, is_mutex};
use self::decisions::Division;
use self::evidence::Observation;
use self::finding::Finding;
use self::groups::ProcessProblems;
use self::pasted::Pasted;
use self::trials::TrialResult;
use super::hot;
use super::started::{self, StartedProgram};
use crate::args::{DiagnoseArgs, Format, TargetArgs};
use crate::conn::{Client, InsertionRequest, RequestTarget};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::{CommandContext, announcement};
use crate::objects::findings::FindingObject;
use crate::objects::{EndedObject, Object, RemovedObject};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};
use crate::signals::Signals;

/// Budget in percent if the command names none.
const BUDGET: f64 = 5.0;
/// Part of the time of the search in which nothing is inserted, by how much that is longer if looks are few, and the shortest such time.
const LOOKING: f64 = 0.45;
const LONGER: f64 = 1.4;
const LOOKING_MIN: Duration = Duration::from_secs(1);
/// Number of looks at a thread, and of samples of running threads, that the search waits for if it has time.
const ROUNDS_MIN: u64 = 100;
const SAMPLES_MIN: u64 = 50;
/// Time between two readings of samples.
const INTERVAL: Duration = Duration::from_millis(250);
/// Longest time of a trial of failed calls, and of one of times.
const FAILURES: Duration = Duration::from_secs(1);
const TIMES: Duration = Duration::from_millis(2500);
/// Time that a trial must have. The end of a search has this time for removals, too.
const TRIAL_MIN: Duration = Duration::from_millis(500);
/// Time between two looks whether the reader of the output is gone.
const LOOK: Duration = Duration::from_millis(200);

/// Results of a search in one target.
#[derive(Default)]
struct Searched {
    host: Option<String>,
    pid: i32,
    findings: Vec<Finding>,
    /// Records about insertions.
    records: Vec<Object>,
    warnings: Vec<String>,
    ended: Option<EndedObject>,
    failure: Option<Failure>,
    /// Mean numbers of active threads, and of those that are ready to run and have no processor.
    threads: (f64, f64),
    /// Whether trials were to be made.
    is_tested: bool,
}

/// A target that was looked at.
struct LookedAt {
    client: Client,
    searched: Searched,
    /// The observation, its division, and the commands that show findings; `None` if too little was seen.
    seen: Option<(Observation, Division, Pasted)>,
}

/// Terms that all searches of a command have in common.
#[derive(Clone)]
struct SearchPlan {
    /// Time at which the search is to end.
    deadline: Instant,
    looking: Duration,
    budget: f64,
    started: std::time::Instant,
    /// Format of the messages about the progress.
    format: Format,
    /// Whether the search is to end now.
    stop: watch::Receiver<bool>,
}

/// Runs the command.
pub(crate) async fn run(args: DiagnoseArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let mut signals = Signals::take()?;
    let (stop, stopped) = watch::channel(false);
    let plan = SearchPlan {
        deadline: Instant::from_std(context.started) + args.duration,
        looking: args.duration.mul_f64(LOOKING).max(LOOKING_MIN.min(args.duration)),
        budget: args.max_overhead.unwrap_or(BUDGET),
        started: context.started,
        format: context.common.format,
        stop: stopped,
    };
    let mut running = RunningSearches { stop, look: tokio::time::interval(LOOK), reader_gone: false };
    if !args.target.command.is_empty() {
        started::share_output(&context, out)?;
    }
    let mut programs = Vec::new();
    let searched = search((&args.target, &context), &plan, (&mut running, &mut programs), &mut signals, out).await;
    let (several, mut all, failed) = match searched {
        Ok((several, mut all)) => {
            let failed = all.iter_mut().find_map(|searched| searched.failure.take());
            (several, all, failed.map(Stop::from))
        }
        Err(stop) => (false, Vec::new(), Some(stop)),
    };
    let mut failed = failed.map(|stop| StartedProgram::stop(&programs, stop));
    for program in programs {
        let ends = all.iter_mut().filter_map(|searched| searched.ended.as_mut());
        let its = ends.into_iter().find(|ended| ended.pid == program.pid());
        match program.finish(its).await {
            Ok(status) => status.filter(|_| !args.target.own_status).into_iter().for_each(|s| context.status.set(s)),
            // The first failure is told.
            Err(failure) => failed = failed.or(Some(failure.into())),
        }
    }
    print(&all, several, context.common.format, out)?;
    failed.map_or(Ok(()), Err)
}

/// Searches all targets. Returns the results, and whether several targets were looked at. `programs` gets the programs that were started.
async fn search(
    (target, context): (&TargetArgs, &CommandContext<'_>),
    plan: &SearchPlan,
    (running, programs): (&mut RunningSearches, &mut Vec<StartedProgram>),
    signals: &mut Signals,
    out: &Output,
) -> Result<(bool, Vec<Searched>), Stop> {
    let (mut targets, mut missing) = (Vec::new(), Vec::new());
    for (at, client) in context.engines.clients().iter().enumerate() {
        match hot::targets(client, &target.running, context.common.format).await {
            Ok(found) => targets.extend(found.into_iter().map(|found| (at, client.clone(), found.target))),
            // If there are several hosts, a target need not exist on each of them.
            Err(failure) if context.engines.clients().len() > 1 && failure.exit == Exit::NotFound => {
                missing.push(failure);
            }
            Err(failure) => return Err(failure.into()),
        }
        if !target.command.is_empty() {
            let mut progress = Progress::new("starting the program", plan.format);
            let program = StartedProgram::start(client, target.command.clone(), &mut progress).await?;
            targets.push((at, client.clone(), RequestTarget::Pid(program.pid())));
            programs.push(program);
        }
    }
    missing.iter().for_each(|failure| output::warn(&words::at_host(failure), context.common.format));
    let looks = targets.into_iter().enumerate().map(|(number, (at, client, target))| {
        let common = context.common.clone();
        // Of several searches, one tells what goes on.
        let format = if number == 0 { plan.format } else { Format::Json };
        let plan = SearchPlan { format, ..plan.clone() };
        tokio::spawn(async move { look(client, target, &plan, &(common, at)).await })
    });
    let looked = running.finish(looks.collect(), signals, out).await?;
    let several = looked.len() > 1;
    let (looked, failed): (Vec<LookedAt>, Vec<LookedAt>) =
        looked.into_iter().partition(|looked| !several || looked.searched.failure.is_none());
    let failed: Vec<Failure> = failed.into_iter().filter_map(LookedAt::named_failure).collect();
    if looked.is_empty()
        && let Some(first) = failed.iter().chain(&missing).next()
    {
        return Err(first.clone().into());
    }
    words::left_out(&failed, plan.format).iter().for_each(|text| output::warn(text, plan.format));
    let chosen = groups::chosen(&looked.iter().map(LookedAt::problems).collect::<Vec<_>>());
    let tests = looked.into_iter().enumerate().map(|(number, looked)| {
        let plan = plan.clone();
        let is_chosen = !several || chosen.contains(&number);
        tokio::spawn(async move { test(looked, &plan, is_chosen).await })
    });
    let all = running.finish(tests.collect(), signals, out).await?;
    if running.reader_gone {
        return Err(Stop::ReaderGone);
    }
    Ok((several, all))
}

/// The searches of a command while they go on.
struct RunningSearches {
    /// Tells all searches to end.
    stop: watch::Sender<bool>,
    look: tokio::time::Interval,
    reader_gone: bool,
}

impl RunningSearches {
    /// Waits until these parts of searches have ended. A signal ends them early.
    async fn finish<T>(
        &mut self,
        parts: Vec<JoinHandle<T>>,
        signals: &mut Signals,
        out: &Output,
    ) -> Result<Vec<T>, Failure> {
        let mut all = Vec::new();
        for mut part in parts {
            let done = loop {
                tokio::select! {
                    biased;
                    () = signals.asked() => {
                        self.stop.send_replace(true);
                    }
                    _ = self.look.tick() => if out.reader_gone() {
                        self.reader_gone = true;
                        self.stop.send_replace(true);
                    },
                    done = &mut part => break done,
                }
            };
            let failed = |e| Failure::failed(format!("the search ended: {e}"), "report this as a defect");
            all.push(done.map_err(failed)?);
        }
        Ok(all)
    }
}

fn print(all: &[Searched], several: bool, format: Format, out: &mut Output) -> Result<(), Stop> {
    let mut told = HashSet::new();
    for searched in all {
        for warning in &searched.warnings {
            if told.insert(warning) {
                output::warn(warning, format);
            }
        }
    }
    if several {
        let problems: Vec<ProcessProblems> = all.iter().map(Searched::problems).collect();
        out.text(&groups::text(&problems))?;
        groups::records(&problems).into_iter().try_for_each(|group| out.object(&Object::FindingGroup(group)))?;
    }
    for searched in all {
        if searched.is_tested {
            out.text(&text::tree(searched.pid, searched.host.as_deref(), &searched.findings))?;
        }
        searched.records.iter().try_for_each(|record| out.object(record))?;
        for finding in &searched.findings {
            out.object(&Object::Finding(record(searched, finding)))?;
        }
        if let Some(ended) = &searched.ended {
            out.text(&words::ended(ended))?;
            out.object(&Object::Ended(ended.clone()))?;
        }
    }
    Ok(())
}

impl Searched {
    /// The problems of the process.
    fn problems(&self) -> ProcessProblems {
        let Searched { host, pid, threads, is_tested, .. } = self;
        ProcessProblems::of((host.clone(), *pid), &self.findings, *threads, *is_tested)
    }
}

impl LookedAt {
    /// The problems of the process, as far as looks tell them.
    fn problems(&self) -> ProcessProblems {
        let findings = match &self.seen {
            Some((observation, division, pasted)) => decisions::findings(observation, division, pasted),
            None => Vec::new(),
        };
        let Searched { host, pid, threads, is_tested, .. } = &self.searched;
        ProcessProblems::of((host.clone(), *pid), &findings, *threads, *is_tested)
    }

    /// The failure, with the process that it is about.
    fn named_failure(self) -> Option<Failure> {
        let pid = Some(self.searched.pid).filter(|pid| *pid != 0);
        self.searched.failure.map(|failure| Failure { pid: failure.pid.or(pid), ..failure })
    }
}

fn record(searched: &Searched, finding: &Finding) -> FindingObject {
    FindingObject {
        host: searched.host.clone(),
        pid: searched.pid,
        id: finding.id,
        parent: finding.parent,
        hypothesis: finding.hypothesis.name(),
        place: finding.place.clone(),
        share: finding.share,
        share_error: finding.share_error,
        holds: finding.holds,
        evidence: finding.evidence.clone(),
        command: finding.command.clone(),
        refuted_by: finding.refuted_by.clone(),
    }
}

/// Looks at one target, which puts nothing into it.
async fn look(
    client: Client,
    target: RequestTarget,
    plan: &SearchPlan,
    (common, at): &(crate::args::Common, usize),
) -> LookedAt {
    let mut searched = Searched { host: client.host(), ..Searched::default() };
    if let RequestTarget::Pid(pid) = target {
        searched.pid = pid;
    }
    let observation = match observe(&client, &target, plan, &mut searched).await {
        Ok(observation) => observation,
        Err(failure) => {
            searched.failure = Some(failure);
            return LookedAt { client, searched, seen: None };
        }
    };
    if !observation.has_both() || observation.totals().looks == 0 {
        searched.warnings.push("the search ended before it had seen anything".to_owned());
        return LookedAt { client, searched, seen: None };
    }
    searched.pid = observation.pid.0;
    let pasted = Pasted::new(searched.pid, common, *at);
    let division = Division::of(&observation);
    searched.threads = (division.activity(), division.delayed());
    LookedAt { client, searched, seen: Some((observation, division, pasted)) }
}

/// Tests what looks at a target have found, by code that is inserted for a moment if `is_chosen`.
async fn test(looked: LookedAt, plan: &SearchPlan, is_chosen: bool) -> Searched {
    let LookedAt { client, mut searched, seen } = looked;
    searched.is_tested = is_chosen;
    let Some((observation, mut division, pasted)) = seen else { return searched };
    if !is_chosen {
        searched.findings = decisions::findings(&observation, &division, &pasted);
        return searched;
    }
    let may_insert = |searched: &Searched| searched.ended.is_none() && searched.failure.is_none() && !plan.is_over();
    let mut retried = Vec::new();
    let suspects = division.suspects();
    if !suspects.is_empty() && may_insert(&searched) {
        let request = trials::failures_request(searched.pid, &suspects, plan.budget);
        if let Ok((enabled, reading)) = trial(&client, &[request], FAILURES, plan, &mut searched).await {
            retried = trials::retried(&enabled, &reading);
            let functions: Vec<NamedFunction> = retried.iter().map(|(function, ..)| function.clone()).collect();
            division.retried(&functions);
        }
    }
    let mut findings = decisions::findings(&observation, &division, &pasted);
    decisions::tell_retries(&mut findings, &retried, &pasted);
    let functions = trials::chosen(&findings);
    let mutexes = findings.iter().any(|finding| finding.holds && finding.mutex.is_some());
    if (!functions.is_empty() || mutexes) && searched.ended.is_none() {
        let result = if may_insert(&searched) {
            let request = |with| trials::times_request(searched.pid, &functions, with, plan.budget);
            // Without clocks that fit, calls are counted; a program without the functions of pthreads has no metrics of mutexes.
            let requests = [request((mutexes, true)), request((false, true)), request((false, false))];
            match trial(&client, &requests, TIMES, plan, &mut searched).await {
                Ok((enabled, reading)) => TrialResult::of(&enabled, &reading),
                Err(why) => TrialResult::failed(why),
            }
        } else {
            TrialResult::failed("the search had no time left for a trial".to_owned())
        };
        result.annotate(&mut findings, &pasted, division.activity());
    }
    searched.findings = findings;
    searched
}

impl SearchPlan {
    /// Whether an observation that began at `begun` need not be longer. The first readings may come late, because the engine analyses libraries
    /// for them; until both have come, nothing is known.
    fn is_enough(&self, observation: &Observation, begun: Instant) -> bool {
        if observation.span < self.looking || !observation.has_both() {
            return false;
        }
        let totals = observation.totals();
        let wanted = totals.rounds >= ROUNDS_MIN && (totals.is_quiet() || observation.run_samples() >= SAMPLES_MIN);
        // A part of the time of the trials is taken for it, but not all.
        wanted || begun.elapsed() >= self.looking.mul_f64(LONGER) || self.is_over()
    }

    /// Whether no time is left for a trial.
    fn is_over(&self) -> bool {
        *self.stop.borrow() || Instant::now() + 2 * TRIAL_MIN > self.deadline
    }
}

/// Returns when the search is to end early.
async fn stopped(plan: &SearchPlan) {
    let mut stop = plan.stop.clone();
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The command has ended without asking for the end, so nobody waits for the answer.
        std::future::pending::<()>().await;
    }
}

/// A reading of samples, with the state that they are of; `None` at the end of their stream.
type SampleEvent = (SampledState, Result<Option<SamplingReading>, Failure>);

/// Looks at waiting threads and samples running ones.
async fn observe(
    client: &Client,
    target: &RequestTarget,
    plan: &SearchPlan,
    searched: &mut Searched,
) -> Result<Observation, Failure> {
    let (send, mut arriving) = mpsc::channel(16);
    for state in [SampledState::Waiting, SampledState::Running] {
        let request = SamplingRequest {
            target: target.spec(),
            state,
            period: hot::period(Some(plan.budget)),
            sites: true,
            ..SamplingRequest::default()
        };
        tokio::spawn(forward(client.clone(), request, plan.format, send.clone()));
    }
    drop(send);
    let mut observation = Observation::default();
    let mut open = 2;
    let begun = Instant::now();
    loop {
        let (state, event) = tokio::select! {
            biased;
            () = stopped(plan) => return Ok(observation),
            arrival = arriving.recv() => match arrival {
                Some(arrival) => arrival,
                None => return Ok(observation),
            },
        };
        let Some(reading) = event? else {
            open -= 1;
            if open == 0 {
                return Ok(observation);
            }
            continue;
        };
        if let Some(ended) = reading.ended {
            let (host, pid) = (client.host(), reading.pid.0);
            searched.ended =
                Some(EndedObject { host, pid, status: ended.status, signal: ended.signal, exec: ended.exec });
        }
        if state == SampledState::Waiting && reading.usage.is_empty() && reading.ended.is_none() {
            // A daemon that does not know this field of the request leaves sites and usage out, and every process would look idle.
            let what = "the daemon does not tell where threads wait and what they use";
            let failure = Failure::failed(what, "install the same version of ingraftd as of ingraft");
            return Err(Failure { host: client.host(), ..failure });
        }
        if !reading.note.is_empty() && !searched.warnings.contains(&reading.note) {
            searched.warnings.push(reading.note.clone());
        }
        match state {
            SampledState::Waiting => observation.add_waiting(reading),
            SampledState::Running => observation.add_running(reading),
        }
        if searched.ended.is_some() || plan.is_enough(&observation, begun) {
            return Ok(observation);
        }
    }
}

/// Sends the readings of a sampling, until the target, the stream or the search ends.
async fn forward(client: Client, request: SamplingRequest, format: Format, send: mpsc::Sender<SampleEvent>) {
    let state = request.state;
    let mut progress = Progress::new("reading the program", format);
    let mut stream = match client.sample(request, INTERVAL, &mut progress).await {
        Ok(stream) => stream,
        Err(failure) => return drop(send.send((state, Err(failure))).await),
    };
    // Readings follow each other, so only the first one is waited for.
    let mut progress = Some(progress);
    loop {
        let event = tokio::select! {
            event = stream.next(progress.as_mut()) => event,
            () = send.closed() => return,
        };
        progress = None;
        let goes_on = matches!(event, Ok(Some(_)));
        if send.send((state, event)).await.is_err() || !goes_on {
            return;
        }
    }
}

/// Inserts code for a time at most as long as `most`, and returns the values of it. The requests are tried in their order, until one is
/// accepted. Fails with the reason.
async fn trial(
    client: &Client,
    requests: &[InsertionRequest],
    most: Duration,
    plan: &SearchPlan,
    searched: &mut Searched,
) -> Result<(Enabled, Reading), String> {
    let mut why = "no request".to_owned();
    for request in requests {
        let mut progress = Progress::new("testing what was found", plan.format);
        let enabled = client.enable(request, &mut progress).await;
        drop(progress);
        let (client, enabled) = match enabled {
            Ok(enabled) => enabled,
            Err(failure) => {
                why = failure.what;
                continue;
            }
        };
        let attach_ms = plan.started.elapsed().as_secs_f64() * 1e3;
        searched.records.push(announcement(&enabled, client.host(), attach_ms));
        let until = (Instant::now() + most).min(plan.deadline - TRIAL_MIN).max(Instant::now() + TRIAL_MIN);
        tokio::select! {
            () = tokio::time::sleep_until(until) => {}
            () = stopped(plan) => {}
        }
        let read = client.read(enabled.id, enabled.pairs.len()).await;
        // The code is removed also if it could not be read.
        let removed = client.remove(enabled.id, enabled.pairs.len()).await;
        match removed {
            Ok((answer, _)) => {
                let removed = RemovedObject::new(&answer, client.host());
                let disturbed = removed.warnings.iter();
                let pid = enabled.pid.0;
                searched.warnings.extend(disturbed.map(|what| words::disturbed(pid, &removed.host, what)));
                if let Some(ended) = answer.last.as_ref().and_then(|last| last.ended) {
                    let (status, signal, exec) = (ended.status, ended.signal, ended.exec);
                    searched.ended = Some(EndedObject { host: client.host(), pid, status, signal, exec });
                }
                searched.records.push(Object::Removed(removed));
                let reading = read.map_err(|failure| failure.what).or_else(|why| answer.last.ok_or(why))?;
                return Ok((enabled, reading));
            }
            Err(failure) => {
                let what = failure.what.clone();
                searched.failure.get_or_insert(failure);
                return Err(what);
            }
        }
    }
    Err(why)
}
