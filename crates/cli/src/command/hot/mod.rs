//! `ingraft hot`: which functions take the time, or where threads wait.

mod calls;
mod classes;
mod graph;
mod rows;
mod sites;
mod text;

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use ingraft_api::{SampledState, SamplingReading, SamplingRequest};
use ingraft_model::Tid;
use ingraft_report::Exporter;
use tokio::sync::mpsc;

use self::graph::StackGraph;
use self::rows::HotRows;
use self::sites::{HotSite, ReadingRounds};
pub(super) use self::sites::{NamedTarget, targets};
use self::text::HeadingTarget;
use super::started::{self, StartedProgram};
use crate::args::{Format, HotArgs, HotSort};
use crate::conn::{Client, RequestTarget};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::CommandContext;
use crate::objects::hot::{HotObject, SamplesObject};
use crate::objects::{EndedObject, Object};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};
use crate::signals::Signals;

/// Samples of a thread in a second of its processor time, or of looks at waiting threads in a second, at most. The number divides no second
/// evenly, so that samples do not fall into step with timers of the program.
const FREQUENCY: f64 = 499.0;
/// Upper estimate of the time that a sample takes from a thread, in seconds.
const SAMPLE_COST: f64 = 20e-6;
/// Budget in percent if the command names none.
const BUDGET: f64 = 5.0;
/// Time between two looks whether the reader of the output is gone.
const LOOK: Duration = Duration::from_millis(200);
/// A message about the samples of threads in a state at the site of this number: a reading, the end of its stream, or a failure.
type SiteEvent = (usize, SampledState, Result<Option<SamplingReading>, Failure>);

/// Runs the command.
pub(crate) async fn run(args: HotArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let mut signals = Signals::take()?;
    let interval = interval(args.interval, args.duration);
    let (send, arriving) = mpsc::channel(16);
    let (mut sites, mut programs) = (Vec::new(), Vec::new());
    if !args.target.command.is_empty() {
        started::share_output(&context, out)?;
    }
    let mut missing = Vec::new();
    for client in context.engines.clients() {
        let mut targets = match targets(client, &args.target.running, context.common.format).await {
            Ok(targets) => targets,
            // If there are several hosts, a target need not exist on each of them.
            Err(failure) if context.engines.clients().len() > 1 && failure.exit == Exit::NotFound => {
                missing.push(failure);
                continue;
            }
            Err(failure) => return Err(failure.into()),
        };
        if !args.target.command.is_empty() {
            let mut progress = Progress::new("starting the program", context.common.format);
            let program = StartedProgram::start(client, args.target.command.clone(), &mut progress).await?;
            targets.push(NamedTarget { target: RequestTarget::Pid(program.pid()), title: String::new() });
            programs.push(program);
        }
        for NamedTarget { target, title } in targets {
            for state in [SampledState::Running, SampledState::Waiting] {
                let request = request(&args, state, &target);
                // Of several targets, one tells what goes on.
                let format = if sites.is_empty() { context.common.format } else { Format::Json };
                let progress = Progress::new("reading the program", format);
                let at = (sites.len(), state);
                tokio::spawn(forward((client.clone(), request, interval), progress, at, send.clone()));
            }
            sites.push(HotSite::new(client.clone(), &target, title));
        }
    }
    sites::warn_of_missing(missing, &sites, context.common.format)?;
    drop(send);
    let rounds = ReadingRounds::default();
    let (graph, notes) = (StackGraph::default(), HashSet::new());
    let mut run = HotRun { args, interval, context, sites, rounds, graph, has_told: false, notes };
    let followed = run.follow(arriving, &mut signals, out).await;
    let followed = followed.and(run.tell_failures(true).map_err(Stop::from));
    let followed = followed.map_err(|stop| StartedProgram::stop(&programs, stop));
    // The code is removed also if the readings have failed.
    let mut removed = Ok(());
    for site in &mut run.sites {
        removed = removed.and(site.calls.remove(out).await);
    }
    for program in programs {
        run.leave(program).await?;
    }
    if followed.is_ok() {
        run.warn_without_calls();
    }
    // The samples so far are printed also if the readings have failed.
    match &run.args.export {
        _ if matches!(followed, Err(Stop::ReaderGone)) => {}
        Some(exporter) => run.export(exporter, out)?,
        None => {
            out.text(&run.text(out))?;
            out.together(|out| {
                run.sites.iter().try_for_each(|site| run.records(site, out))?;
                run.summed_records(out)
            })?;
        }
    }
    followed?;
    // A file for another tool has nothing else in it.
    let is_told = run.args.export.is_none();
    for ended in run.sites.iter_mut().filter_map(|site| site.ended.take()).filter(|_| is_told) {
        out.text(&words::ended(&ended))?;
        out.object(&Object::Ended(ended))?;
    }
    removed
}

/// The command while it runs.
struct HotRun<'c> {
    args: HotArgs,
    interval: Duration,
    context: CommandContext<'c>,
    sites: Vec<HotSite>,
    rounds: ReadingRounds,
    /// The calls on the stacks of all targets, for `--as`.
    graph: StackGraph,
    /// Whether the targets that cannot be sampled were told.
    has_told: bool,
    /// Notes about samples that were told.
    notes: HashSet<String>,
}

impl HotRun<'_> {
    /// Takes over how a program has ended that the command has started.
    async fn leave(&mut self, program: StartedProgram) -> Result<(), Failure> {
        let pid = program.pid();
        let ends = self.sites.iter_mut().filter_map(|site| site.ended.as_mut());
        let its = ends.into_iter().find(|ended| ended.pid == pid);
        let status = program.finish(its).await?;
        if let Some(status) = status.filter(|_| !self.args.target.own_status) {
            self.context.status.set(status);
        }
        Ok(())
    }

    /// Warns of targets whose calls were to be counted and were not, once for each reason.
    fn warn_without_calls(&self) {
        let mut all: BTreeMap<String, Vec<i32>> = BTreeMap::new();
        for site in self.sites.iter().filter(|site| self.args.calls && site.failure.is_none()) {
            if let Some(why) = site.calls.why_none() {
                all.entry(why).or_default().push(site.running.sum().pid.0);
            }
        }
        for (why, pids) in all {
            let of = match pids.as_slice() {
                _ if self.sites.len() == 1 => String::new(),
                [pid] => format!(" of process {pid}"),
                pids => format!(" of {} processes", pids.len()),
            };
            output::warn(&format!("calls{of} are not counted: {why}"), self.context.common.format);
        }
    }

    /// Whether the rows are those of several targets together.
    fn is_several(&self) -> bool {
        self.sites.iter().filter(|site| site.failure.is_none() || site.has_samples(self.args.state())).count() > 1
    }

    /// Warns once of targets that cannot be sampled, as soon as each has answered, or at the end. Fails if no target can be sampled.
    fn tell_failures(&mut self, is_end: bool) -> Result<(), Failure> {
        let state = self.args.state();
        let answered = |site: &HotSite| site.failure.is_some() || site.has_samples(state) || site.is_over();
        if self.has_told || self.sites.len() < 2 || !(is_end || self.sites.iter().all(answered)) {
            return Ok(());
        }
        self.has_told = true;
        let failures: Vec<Failure> = self.sites.iter().filter_map(HotSite::named_failure).collect();
        if failures.len() == self.sites.len()
            && let Some(first) = failures.into_iter().next()
        {
            return Err(first);
        }
        sites::warn(&self.sites, self.context.common.format);
        Ok(())
    }

    /// Takes readings until the command must end.
    async fn follow(
        &mut self,
        mut arriving: mpsc::Receiver<SiteEvent>,
        signals: &mut Signals,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let mut look = tokio::time::interval(LOOK);
        while self.sites.iter().any(|site| !site.is_over()) {
            tokio::select! {
                biased;
                () = signals.asked() => return Ok(()),
                _ = look.tick() => if out.reader_gone() {
                    return Err(Stop::ReaderGone);
                },
                arrival = arriving.recv() => {
                    let Some((at, state, event)) = arrival else { return Ok(()) };
                    tokio::select! {
                        biased;
                        () = signals.asked() => return Ok(()),
                        taken = self.take(at, state, event, out) => taken?,
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes a reading of a site, or the end of its readings.
    async fn take(
        &mut self,
        at: usize,
        state: SampledState,
        event: Result<Option<SamplingReading>, Failure>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let (sorts_by, several) = (self.args.state(), self.sites.len() > 1);
        let Some(site) = self.sites.get_mut(at) else { return Ok(()) };
        let number = usize::from(state == SampledState::Waiting);
        let reading = match event {
            Ok(Some(reading)) => reading,
            Ok(None) => {
                site.over[number] = true;
                return Ok(());
            }
            // The numbers that the command sorts by are needed, the others are left out.
            Err(failure) if state != sorts_by => {
                site.over[number] = true;
                let times = if state == SampledState::Waiting { "waiting" } else { "processor" };
                let what = format!("{times} times are not known: {}", failure.what);
                match several {
                    true => site.unknown = Some(what),
                    false => output::warn(&what, self.context.common.format),
                }
                return Ok(());
            }
            // The other targets are sampled on.
            Err(failure) if several && failure.exit != Exit::Usage => {
                site.over = [true; 2];
                if self.has_told {
                    let pid = site.running.sum().pid;
                    let what = format!("process {pid} is not sampled any more: {}", failure.what);
                    output::warn(&what, self.context.common.format);
                }
                site.failure = Some(failure);
                return Ok(self.tell_failures(false)?);
            }
            Err(failure) => return Err(failure.into()),
        };
        let rows = if state == SampledState::Running { &mut site.running } else { &mut site.waiting };
        let is_first = rows.sum().span.is_zero();
        if state == sorts_by {
            self.graph.add(&reading);
        }
        rows.add(reading);
        let sum = rows.sum();
        if is_first && !sum.note.is_empty() && self.notes.insert(sum.note.clone()) {
            output::warn(&sum.note, self.context.common.format);
        }
        if let Some(ended) = sum.ended {
            let (host, pid) = (site.client.host(), sum.pid.0);
            site.ended = Some(EndedObject { host, pid, status: ended.status, signal: ended.signal, exec: ended.exec });
        }
        let spent = sum.span + self.interval / 20;
        site.over[number] |= sum.ended.is_some() || self.args.duration.is_some_and(|whole| spent >= whole);
        if state != sorts_by {
            return Ok(());
        }
        if self.args.calls && !site.over[number] {
            let budget = self.args.max_overhead.unwrap_or(BUDGET);
            site.calls.adapt(&site.client, &site.running, budget, self.context.started, out).await?;
        }
        self.tell_failures(false)?;
        if self.args.export.is_some() {
            return Ok(());
        }
        self.show(at, out)
    }

    /// Prints the samples so far, if it is time to do so: records of the target of this number, and all targets together once each has sent
    /// a reading.
    fn show(&mut self, at: usize, out: &mut Output) -> Result<(), Stop> {
        let number = usize::from(self.args.state() == SampledState::Waiting);
        let over: Vec<bool> = self.sites.iter().map(|site| site.over[number]).collect();
        let is_due = self.rounds.reading(at, &over);
        if out.live() {
            return if is_due { out.frame(&self.text(out)) } else { Ok(()) };
        }
        // The last values come at the end of the command.
        if self.args.interval.is_none() || over.iter().all(|over| *over) {
            return Ok(());
        }
        if let Some(site) = self.sites.get(at).filter(|site| !site.over[number]) {
            out.together(|out| self.records(site, out))?;
        }
        if is_due {
            out.text(&self.text(out))?;
            out.together(|out| self.summed_records(out))?;
        }
        Ok(())
    }

    /// Writes the records of a site, if it has a reading.
    fn records(&self, site: &HotSite, out: &mut Output) -> Result<(), Stop> {
        if !site.has_samples(self.args.state()) || !out.json() {
            return Ok(());
        }
        let host = site.client.host();
        let rows = self.rows(std::slice::from_ref(&site), (&site.running, &site.waiting), host.as_deref());
        rows.into_iter().try_for_each(|row| out.object(&Object::Hot(row)))?;
        out.object(&Object::Samples(self.samples((&site.running, &site.waiting), host.as_deref())))
    }

    /// Writes the records of all targets together, if there are several.
    fn summed_records(&self, out: &mut Output) -> Result<(), Stop> {
        if !self.is_several() || !out.json() {
            return Ok(());
        }
        let sites = self.with_samples();
        let (running, waiting) = sites::together(&sites);
        let rows = self.rows(&sites, (&running, &waiting), None);
        rows.into_iter().try_for_each(|row| out.object(&Object::Hot(row)))?;
        let threads = sites::threads(&sites, self.args.state());
        let samples = SamplesObject { threads, ..self.samples((&running, &waiting), None) };
        out.object(&Object::Samples(samples))
    }

    /// Writes the calls on the stacks of all targets in the format of another tool.
    fn export(&self, exporter: &Exporter, out: &mut Output) -> Result<(), Stop> {
        let sites = self.with_samples();
        let title = match sites.as_slice() {
            [site] => format!("process {}", site.rows(self.args.state()).sum().pid.0),
            sites => format!("{} processes", sites.len()),
        };
        let bytes = self.graph.export(exporter, self.args.state(), &title);
        if self.graph.is_empty() {
            output::warn("the result is empty: there was no sample", self.context.common.format);
        }
        out.bytes(&bytes)
    }

    /// The sites with a reading.
    fn with_samples(&self) -> Vec<&HotSite> {
        self.sites.iter().filter(|site| site.has_samples(self.args.state())).collect()
    }

    /// The record of all samples.
    fn samples(&self, (running, waiting): (&HotRows, &HotRows), host: Option<&str>) -> SamplesObject {
        let main = if self.args.state() == SampledState::Running { running } else { waiting };
        let sum = waiting.sum();
        SamplesObject { looks: sum.looks, waits: sum.samples, ..main.samples(host) }
    }

    /// The rows of sites with these samples.
    fn rows(&self, sites: &[&HotSite], (running, waiting): (&HotRows, &HotRows), host: Option<&str>) -> Vec<HotObject> {
        let sort = self.args.sort.unwrap_or(if self.args.off_cpu { HotSort::Total } else { HotSort::Own });
        let mut rows = rows::functions(running, waiting, self.args.state(), sort, host);
        calls::annotate(sites.iter().map(|site| (&site.calls, &site.running)), &mut rows);
        rows
    }

    /// A heading and a table: of the target, or of several together.
    fn text(&self, out: &Output) -> String {
        let (sites, state) = (self.with_samples(), self.args.state());
        if sites.is_empty() {
            return String::new();
        }
        if !self.is_several() {
            let table = |site: &&HotSite| {
                let (host, pid) = (site.client.host(), site.rows(state).sum().pid.0);
                let heading = HeadingTarget::One { pid, host };
                self.table(std::slice::from_ref(site), &heading, (&site.running, &site.waiting), out)
            };
            return sites.iter().map(table).collect();
        }
        let (running, waiting) = sites::together(&sites);
        self.table(&sites, &sites::heading(&sites), (&running, &waiting), out)
    }

    /// A heading, a table of functions, and what they do not tell, of sites with these samples.
    fn table(
        &self,
        sites: &[&HotSite],
        heading: &HeadingTarget,
        (running, waiting): (&HotRows, &HotRows),
        out: &Output,
    ) -> String {
        let (state, top, width) = (self.args.state(), self.args.top, out.width());
        let samples = self.samples((running, waiting), None);
        let main = if state == SampledState::Running { running } else { waiting };
        text::heading(heading, main, &samples)
            + &text::table(&self.rows(sites, (running, waiting), None), top, width)
            + &text::processes(&sites::shares(sites, state), width)
            + &text::notes(&samples)
    }
}

/// Time between two readings: a whole number of them fills the time of the command.
fn interval(interval: Option<Duration>, whole: Option<Duration>) -> Duration {
    let wanted = interval.unwrap_or(Duration::from_secs(1));
    let Some(whole) = whole else { return wanted };
    let readings = (whole.as_secs_f64() / wanted.as_secs_f64()).ceil().clamp(1.0, 1e9) as u32;
    whole / readings
}

/// Time between two samples of a thread, such that they cost at most this share of its time in percent, or that of the default.
pub(super) fn period(max_overhead: Option<f64>) -> Duration {
    let max_overhead = max_overhead.unwrap_or(BUDGET);
    let frequency = (max_overhead / 100.0 / SAMPLE_COST).clamp(0.1, FREQUENCY);
    Duration::from_secs_f64(1.0 / frequency)
}

fn request(args: &HotArgs, state: SampledState, target: &RequestTarget) -> SamplingRequest {
    SamplingRequest {
        target: target.spec(),
        patterns: args.functions.clone(),
        threads: args.threads.iter().copied().map(Tid).collect(),
        state,
        period: period(args.max_overhead),
        stacks: false,
        sites: false,
        calls: args.export.is_some() && state == args.state(),
    }
}

/// Sends the readings of a target to the command, until the target, the stream or the command ends.
async fn forward(
    (client, request, interval): (Client, SamplingRequest, Duration),
    mut progress: Progress,
    (at, state): (usize, SampledState),
    send: mpsc::Sender<SiteEvent>,
) {
    let mut stream = match client.sample(request, interval, &mut progress).await {
        Ok(stream) => stream,
        Err(failure) => return drop(send.send((at, state, Err(failure))).await),
    };
    // Readings follow each other, so only the first one is waited for.
    let mut progress = Some(progress);
    loop {
        let event = stream.next(progress.as_mut()).await;
        progress = None;
        let goes_on = matches!(event, Ok(Some(_)));
        if send.send((at, state, event)).await.is_err() || !goes_on {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_fill_the_time_of_the_command() {
        let s = Duration::from_secs;
        assert_eq!(interval(None, None), s(1));
        assert_eq!(interval(None, Some(s(10))), s(1));
        assert_eq!(interval(None, Some(Duration::from_millis(1500))), Duration::from_millis(750));
        assert_eq!(interval(Some(s(3)), Some(s(2))), s(2));
    }

    #[test]
    fn samples_keep_to_the_budget() {
        assert_eq!(period(Some(5.0)), Duration::from_secs_f64(1.0 / FREQUENCY));
        assert_eq!(period(Some(0.1)), Duration::from_millis(20));
        assert_eq!(period(Some(1e-9)), Duration::from_secs(10));
        assert!(period(Some(10_000.0)) > Duration::from_millis(2));
    }
}
