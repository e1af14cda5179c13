//! A measurement from insertion to removal: the common part of `count`, `latency`, `profile` and `watch`.
//!
//! Invariant "nothing stays in": a command may end by time, a signal, the end of the target, an error, or a closed pipe. In every case it
//! removes each measurement that it inserted before it ends, unless the user asked for the measurement to stay.

mod announced;
mod chosen;
mod closer;
mod flags;
mod kin;
mod lately;
mod pull;
mod rates;
mod together;

pub(crate) use announced::announcement;
pub(crate) use closer::CloserLook;
pub(crate) use flags::{all_running, choice, request, running, sources};
pub(crate) use lately::Lately;
pub(crate) use together::{CombinedValue, Together, last as together, whole};

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{
    EnableRequest, Enabled, Ended, MeasuredSuspects, MeasurementId, MetricFocus, PairFacts, PairInfo, PrintedCalls,
    Reading, Reason, TotalsReading, Value,
};
use ingraft_model::{Pid, Svma};
use ingraft_report::{NewestCause, SavedProfile};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, sleep_until};

use crate::args::{self, Common, Format};
use crate::conn::{Client, Engines, HistorySpan, InsertionRequest, ProcessSelector, RequestTarget, StreamEvent};
use crate::exit::{Failure, Stop};
use crate::objects::refused::{FunctionAt, place, unmeasured};
use crate::objects::{self, CostObject, Object};
use crate::output::progress::Progress;
use crate::output::{self, Destination, Output, words};
use crate::signals::Signals;
use chosen::ChosenProcesses;
use flags::targets;
use kin::Kin;
use pull::Puller;
pub(crate) use pull::TracePart;

/// Default time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);
/// Nanoseconds by which the machine's time asleep must have grown before another warning.
const SLEEP_NS: u64 = 50_000_000;
/// Time between two checks whether the reader of the output is gone.
const LOOK: Duration = Duration::from_millis(200);

/// The plan of a command: the requests, the time between readings, and the flags.
pub(crate) struct MeasurementPlan {
    /// Requests, one for each target that the flags name.
    requests: Vec<InsertionRequest>,
    /// The flags.
    measure: args::Measure,
    /// Time between two readings.
    interval: Duration,
    /// Length of a phase of the histories; `None` if there are no phases.
    phases: Option<Duration>,
    /// Whether values of events that were counted for a part of the time are scaled up to all of it.
    scaled: bool,
    /// File of the trace, and the part that is kept; `None` if the measurement is no trace, or if the trace has begun.
    trace: Option<(Destination, TracePart)>,
    /// Reading of a profile while it runs; `None` if it is read at the end only.
    query: Option<Query>,
    /// Times at which the view may ask for a closer look; `None` if it never does.
    closer: Option<CloserLook>,
    /// Whether the command passes on the exit status of the program that it starts.
    passes_status: bool,
}

/// Reading of a profile at each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Query {
    /// All counts.
    Counts,
    /// The event totals of each thread.
    Totals,
    /// The calls that were printed.
    Printed,
}

impl MeasurementPlan {
    /// Creates a plan with a request for each target that the flags name. A command that the plan starts writes to the same screen.
    pub(crate) fn new(
        measure: &args::Measure,
        target: &args::TargetArgs,
        request: impl Fn(RequestTarget) -> InsertionRequest,
        out: &mut Output,
    ) -> Self {
        let targets = targets(target);
        if targets.iter().any(|t| matches!(t, RequestTarget::Command(_))) {
            out.shared();
        }
        MeasurementPlan {
            requests: targets.into_iter().map(request).collect(),
            interval: measure.interval.unwrap_or(INTERVAL),
            measure: measure.clone(),
            phases: None,
            scaled: false,
            trace: None,
            query: None,
            closer: None,
            passes_status: !target.own_status,
        }
    }

    /// Returns the plan with queries of a profile at each interval.
    pub(crate) fn queried(self, query: Option<Query>) -> Self {
        MeasurementPlan { query, ..self }
    }

    /// Returns the plan with closer looks at targets, for which the view asks.
    pub(crate) fn with_closer_looks(self, closer: Option<CloserLook>) -> Self {
        MeasurementPlan { closer, ..self }
    }

    /// Returns the plan with another time between two readings.
    pub(crate) fn each(self, interval: Duration) -> Self {
        MeasurementPlan { interval, ..self }
    }

    /// Returns the plan with histories in phases of this length.
    pub(crate) fn in_phases(self, phases: Option<Duration>) -> Self {
        MeasurementPlan { phases, ..self }
    }

    /// Returns the plan with a trace that is written to this file.
    pub(crate) fn traced_to(self, file: Destination, kept: TracePart) -> Self {
        MeasurementPlan { trace: Some((file, kept)), ..self }
    }

    /// Returns the plan with or without scaling of events that were counted for a part of the time.
    pub(crate) fn scaled(self, scaled: bool) -> Self {
        MeasurementPlan { scaled, ..self }
    }
}

impl MeasurementPlan {
    /// The names and control groups all of whose processes are measured.
    fn choices(&self) -> impl Iterator<Item = &ProcessSelector> {
        self.requests.iter().filter_map(|request| match &request.target {
            RequestTarget::Each(choice) => Some(choice),
            RequestTarget::Pid(_) | RequestTarget::Name(_) | RequestTarget::Command(_) => None,
        })
    }

    fn chooses(&self) -> bool {
        self.choices().next().is_some()
    }

    fn keeps_history(&self) -> bool {
        self.requests.iter().any(|request| request.terms.history)
    }
}

/// A measurement in one target.
pub(crate) struct TargetMeasurement {
    client: Client,
    pub(crate) enabled: Enabled,
    /// The latest values.
    pub(crate) reading: Reading,
    /// Number of readings that were lost before the latest one.
    pub(crate) dropped: u64,
    /// The values of the previous reading, for rates; `None` before the second reading.
    pub(crate) before: Option<Reading>,
    /// Unix time of the first reading, in nanoseconds.
    pub(crate) first_ns: Option<u64>,
    pub(crate) ended: bool,
    /// Whether the target continued as another program (exec).
    exec: bool,
    /// Exit status of the target, 128 + N after signal N; `None` if the target runs, or if the kernel does not tell.
    status: Option<u8>,
    /// Signal that killed the target, as far as the kernel tells.
    signal: Option<i32>,
    /// Whether the command started the target.
    is_started: bool,
    /// Failure after which no reading follows.
    lost: Option<Failure>,
    /// Unix time, in nanoseconds, since which a process that was not asked for by name is measured; earlier calls are not counted.
    pub(crate) late_ns: Option<u64>,
    /// Patterns and foci in modules that were never loaded.
    awaited: Vec<String>,
    /// Object that announces the removal, if the measurement is removed already.
    farewell: Option<Object>,
    /// Pairs of whose removal the user has been told; the reason was their cost or the gs base.
    told_out: BTreeSet<usize>,
    /// Whether values of events that were counted for a part of the time are scaled up to all of it.
    pub(crate) scaled: bool,
    /// Pairs for which the user has been warned that they are counted for a part of the time only.
    told_share: BTreeSet<usize>,
    /// The machine's time asleep that the latest warning stated, in nanoseconds.
    told_slept_ns: u64,
    /// Functions of libraries loaded later for which the user has been warned that they are not measured.
    told_refused: BTreeSet<(String, Svma)>,
    /// Histories of the values, fetched at the end of the measurement; empty unless they were asked for.
    pub(crate) chapters: Vec<HistorySpan>,
    /// Latest counts of a profile, the last of them fetched at the removal; `None` if the measurement is no profile.
    pub(crate) profile: Option<SavedProfile>,
    /// The task that writes the file of a trace; `None` if the measurement is no trace, or if the file is whole.
    trace: Option<Puller>,
    /// Failure to write the file of a trace.
    unwritten: Option<Failure>,
    /// Latest event totals of a profile; `None` if they were not asked for.
    pub(crate) totals: Option<TotalsReading>,
    /// The calls that were printed since they were presented; `None` if none are printed.
    pub(crate) printed: Option<PrintedCalls>,
    /// Values that were measured of suspected parts, fetched at the removal; `None` if nothing was suspected.
    pub(crate) suspects: Option<MeasuredSuspects>,
    /// Whether the measurement was inserted beside another one of the same process.
    is_beside: bool,
}

/// Presentation of a measurement by a command.
pub(crate) trait MeasurementView {
    /// Learns that all code is inserted, and the program, if the command starts one, runs. Called again when further targets have come.
    fn begun(&mut self, _sites: &[TargetMeasurement]) {}
    /// Presents a new reading of `sites[at]`.
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop>;
    /// Presents what was read of the profile of `sites[at]` while it runs.
    fn queried(&mut self, _sites: &[TargetMeasurement], _at: usize, _out: &mut Output) -> Result<(), Stop> {
        Ok(())
    }
    /// Asks for further measurements of `sites[at]`, whose profile was read. None if the profile does not tell enough yet; it is not read again if
    /// `is_latest` is set.
    fn closer(&mut self, _sites: &[TargetMeasurement], _at: usize, _is_latest: bool) -> Vec<EnableRequest> {
        Vec::new()
    }
    /// Presents the last values.
    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop>;
}

/// The engines, the common flags and the start time of a command.
pub(crate) struct CommandContext<'a> {
    pub(crate) engines: &'a Engines,
    pub(crate) common: &'a Common,
    /// Start time of the command.
    pub(crate) started: std::time::Instant,
    /// Exit status of a command that does not fail. A measurement sets it to that of the program that it started.
    pub(crate) status: &'a Cell<u8>,
}

/// Runs a measurement and presents it.
pub(crate) async fn run(
    plan: MeasurementPlan,
    context: CommandContext<'_>,
    view: &mut dyn MeasurementView,
    out: &mut Output,
) -> Result<(), Stop> {
    let mut signals = Signals::take()?;
    // A daemon gives the programs that it starts no output.
    if context.engines.is_embedded() && plan.requests.iter().any(|request| request.target.is_started()) {
        out.apart_from_program()?;
    }
    let mut session = MeasurementRun {
        plan,
        context,
        sites: Vec::new(),
        streams: Vec::new(),
        kin: Kin::default(),
        chosen: ChosenProcesses::default(),
    };
    let (events, mut arriving) = mpsc::channel(64);
    let result = match session.insert(&events, &mut signals, out).await {
        Ok(true) => session.follow(events, &mut arriving, &mut signals, view, out).await,
        Ok(false) => {
            view.begun(&session.sites);
            Ok(())
        }
        Err(stop) => Err(stop),
    };
    session.finish(result, view, out).await
}

type StreamArrival = (usize, Result<StreamEvent, Failure>);
/// A measurement that was inserted, and the engine that has made it.
type EngineMeasurement = (Client, Enabled);

struct MeasurementRun<'a> {
    plan: MeasurementPlan,
    context: CommandContext<'a>,
    sites: Vec<TargetMeasurement>,
    streams: Vec<JoinHandle<()>>,
    kin: Kin,
    chosen: ChosenProcesses,
}

impl MeasurementRun<'_> {
    fn format(&self) -> Format {
        self.context.common.format
    }

    /// Adds a measurement that was inserted.
    fn add(
        &mut self,
        (client, enabled): EngineMeasurement,
        events: &mpsc::Sender<StreamArrival>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let (id, pairs) = (enabled.id, enabled.pairs.len());
        let stream = client.clone().stream(id, pairs, self.plan.interval, self.sites.len(), events.clone());
        self.streams.push(tokio::spawn(stream));
        let trace = self.plan.trace.take();
        let trace = trace.map(|to| Puller::start((client.clone(), id), to, (self.sites.len(), events.clone())));
        self.sites.push(TargetMeasurement {
            scaled: self.plan.scaled,
            trace,
            ..TargetMeasurement::new(client.clone(), enabled)
        });
        self.announce(out)
    }

    /// Announces that the latest measurement is inserted.
    fn announce(&self, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = self.sites.last() else { return Ok(()) };
        let e = &site.enabled;
        let attach_ms = self.context.started.elapsed().as_secs_f64() * 1e3;
        out.object(&site.announcement(attach_ms))?;
        out.text(&words::attached(e, site.host(), attach_ms))?;
        let refused = unmeasured(&e.pairs, &e.refused);
        for one in &refused {
            out.object(&Object::Refused(objects::RefusedObject::new(one, e.pid, site.host())))?;
        }
        if !refused.is_empty() {
            output::warn(&words::refused(&refused, &e.pairs, self.format()), self.format());
        }
        for warning in &e.warnings {
            output::warn(warning, self.format());
        }
        Ok(())
    }

    /// Presents readings as they arrive, until the command must end.
    async fn follow(
        &mut self,
        events: mpsc::Sender<StreamArrival>,
        arriving: &mut mpsc::Receiver<StreamArrival>,
        signals: &mut Signals,
        view: &mut dyn MeasurementView,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let deadline = self.plan.measure.duration.map(|d| Instant::now() + d);
        let mut look = tokio::time::interval(LOOK);
        let mut closer = self.plan.closer.take().map(|closer| (closer.begun(Instant::now()), events.clone()));
        // Without this sender, the channel closes with the last stream, and that ends the command.
        let events = self.plan.follows_anything().then_some(events);
        let mut kin = tokio::time::interval(kin::LOOK);
        kin.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let format = self.format();
        let mut query = tokio::time::interval_at(Instant::now() + self.plan.interval, self.plan.interval);
        query.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut phase_ends = self.plan.phases.map(|length| Instant::now() + length);
        view.begun(&self.sites);
        while self.sites.iter().any(TargetMeasurement::goes_on) || self.kin.comes() || self.awaits_newcomers() {
            tokio::select! {
                biased;
                () = signals.asked() => return Ok(()),
                () = until(deadline) => return Ok(()),
                _ = look.tick() => if out.reader_gone() {
                    return Err(Stop::ReaderGone);
                },
                _ = kin.tick(), if events.is_some() => if let Some(events) = &events {
                    self.look_for_newcomers().await?;
                    self.look_for_kin(events, out).await?;
                    view.begun(&self.sites);
                },
                () = until(closer.as_ref().map(|(closer, _)| closer.next())) => {
                    closer = self.look_closer(closer, view, out).await?;
                }
                () = until(phase_ends) => {
                    phase_ends = phase_ends.zip(self.plan.phases).map(|(end, length)| end + length);
                    for site in self.sites.iter().filter(|site| site.goes_on()) {
                        site.client.start_phase(site.enabled.id).await?;
                    }
                }
                _ = query.tick(), if self.plan.query.is_some() => self.query(view, out).await?,
                arrival = arriving.recv() => {
                    let Some((at, event)) = arrival else { break };
                    let Some(site) = self.sites.get_mut(at) else { continue };
                    match event {
                        Ok(StreamEvent::Reading(reading, dropped)) => {
                            site.take(reading, dropped);
                            if site.has_held() {
                                return Ok(());
                            }
                            view.reading(&self.sites, at, out)?;
                            self.tell_taken_out(at, out)?;
                            self.tell_shares(at);
                        }
                        Ok(StreamEvent::Grown(grown)) => site.grow(grown, format),
                        Ok(StreamEvent::Held) => return Ok(()),
                        Ok(StreamEvent::Ended(ended)) => {
                            site.end(ended, format, out)?;
                            self.depart(at, ended.exec, out).await?;
                        }
                        Err(failure) => site.lost = Some(failure),
                    }
                }
            }
        }
        // The failure of the first lost site decides how the command ends.
        self.sites.iter_mut().find_map(|s| s.lost.take()).map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Reads the profiles and presents them.
    async fn query(&mut self, view: &mut dyn MeasurementView, out: &mut Output) -> Result<(), Stop> {
        for at in 0..self.sites.len() {
            let Some(site) = self.sites.get_mut(at).filter(|site| site.goes_on()) else { continue };
            match self.plan.query {
                Some(Query::Counts) => site.profile = Some(site.client.profile(site.enabled.id).await?),
                Some(Query::Totals) => site.totals = Some(site.client.event_totals(site.enabled.id).await?),
                Some(Query::Printed) => site.take_printed().await?,
                None => continue,
            }
            view.queried(&self.sites, at, out)?;
        }
        Ok(())
    }

    /// Reports the pairs that were taken out since the last reading; fails if nothing is left to measure.
    fn tell_taken_out(&mut self, at: usize, out: &mut Output) -> Result<(), Stop> {
        let mut new = self.sites.get_mut(at).map(TargetMeasurement::taken_out).unwrap_or_default();
        let metrics = self.plan.requests.first().and_then(|request| request.measure.function_metrics.get(1..));
        let wanted = metrics.unwrap_or_default();
        let nothing_left = self.sites.iter().all(|site| site.is_all_out(wanted));
        if !wanted.is_empty() && !nothing_left {
            self.tell_counted_only(at, &mut new, out)?;
        }
        let mut last = None;
        // People see only the first pairs by name; scripts get an object for each pair.
        let named = if out.json() { usize::MAX } else { words::NAMED };
        let more = new.len().saturating_sub(named);
        for (number, object) in new.into_iter().enumerate() {
            if nothing_left {
                last = Some(words::all_taken_out(&object));
            } else if number < named {
                output::warn(&words::taken_out(&object), self.format());
            }
            out.object(&Object::TakenOut(object))?;
        }
        if more > 0 && !nothing_left {
            output::warn(&words::more_taken_out(more), self.format());
        }
        last.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Reports the functions that are counted only because timing them costs too much, and takes them from the list.
    fn tell_counted_only(
        &self,
        at: usize,
        new: &mut Vec<objects::TakenOutObject>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let Some(since) = self.sites.get(at).map(|site| site.enabled.since_ns) else { return Ok(()) };
        let is_of_cost = |t: &objects::TakenOutObject| !t.own_gs && !t.rewritten;
        let dear: Vec<_> = new.extract_if(.., |t| is_of_cost(t)).collect();
        for begun in [false, true] {
            let these: Vec<_> = dear.iter().filter(|t| (t.time_ns > since) == begun).cloned().collect();
            if !these.is_empty() {
                output::warn(&words::counted_only(&these, begun), self.format());
            }
        }
        dear.into_iter().try_for_each(|object| out.object(&Object::TakenOut(object)))
    }

    /// Warns once for each event that is counted for a part of the time only, and for each sleep of the machine, after which times may be
    /// wrong.
    fn tell_shares(&mut self, at: usize) {
        let format = self.format();
        let Some(site) = self.sites.get_mut(at) else { return };
        for (pair, value) in site.reading.values.iter().enumerate() {
            let (Some(share), Some(info)) = (value.counted_share(), site.enabled.pairs.get(pair)) else { continue };
            if site.told_share.insert(pair) {
                output::warn(&words::counted_in_part(&info.pair.metric, share, site.scaled), format);
            }
        }
        let slept_ns = site.reading.values.iter().map(|value| value.details().slept_ns).max().unwrap_or(0);
        // The time asleep is the difference of two clocks that are not read at the same moment, hence the tolerance.
        if slept_ns > site.told_slept_ns.saturating_add(SLEEP_NS) {
            site.told_slept_ns = slept_ns;
            output::warn(&words::slept(slept_ns), format);
        }
    }

    /// Reports the pairs for which a started command never had a function or module; fails if these are all pairs.
    fn tell_absent(&self) -> Result<(), Stop> {
        let started = |request: &&InsertionRequest| matches!(request.target, RequestTarget::Command(_));
        let asked = self.plan.requests.iter().filter(started).flat_map(|request| &request.measure.pairs);
        let pairs = || self.sites.iter().flat_map(|site| site.enabled.pairs.iter().map(|pair| pair.pair.as_ref()));
        // A focus with a pattern stands for the foci of the matching functions.
        let is_pattern = |asked: &MetricFocus| asked.focus.to_string().contains(['*', '?']);
        let measures = |pair: &MetricFocus, asked: &MetricFocus| {
            pair.metric == asked.metric && (pair.focus == asked.focus || is_pattern(asked))
        };
        let absent: Vec<&MetricFocus> =
            asked.map(AsRef::as_ref).filter(|asked| !pairs().any(|pair| measures(pair, asked))).collect();
        if absent.is_empty() {
            return Ok(());
        }
        if pairs().next().is_none() {
            return Err(words::all_absent(&absent).into());
        }
        absent.iter().for_each(|absent| output::warn(&words::absent(absent), self.format()));
        Ok(())
    }

    /// Reports the functions whose modules were never loaded; fails if nothing else was asked for.
    fn tell_awaited(&self) -> Result<(), Stop> {
        // `tell_absent` has reported the pairs in started programs.
        let started = self.plan.requests.iter().any(|request| request.target.is_started());
        let names = |request: &InsertionRequest, text: &str| {
            request.measure.pairs.iter().any(|pair| pair.focus.to_string().contains(text))
        };
        let told = |text: &str| started && self.plan.requests.iter().any(|request| names(request, text));
        let mut awaited: Vec<&String> = self.sites.iter().flat_map(|site| &site.awaited).collect();
        awaited.retain(|text| !told(text));
        awaited.sort_unstable();
        awaited.dedup();
        if awaited.is_empty() {
            return Ok(());
        }
        if self.sites.iter().all(|site| site.enabled.pairs.is_empty()) {
            let exec = self.sites.iter().any(|site| site.exec);
            return Err(words::all_awaited(&awaited, exec).into());
        }
        awaited.iter().for_each(|text| output::warn(&words::awaited(text), self.format()));
        Ok(())
    }

    /// The exit status of the program that the command started; 0 if the program still runs. If several hosts started it, the first status
    /// that is not 0 counts.
    fn program_status(&self) -> u8 {
        let latest = |started: &TargetMeasurement| {
            let is_same = |site: &&TargetMeasurement| site.pid() == started.pid() && site.host() == started.host();
            // After an exec that is followed, the process is measured again.
            self.sites.iter().rfind(is_same).and_then(|site| site.status)
        };
        let statuses = self.sites.iter().filter(|site| site.is_started).filter_map(latest);
        statuses.into_iter().find(|status| *status != 0).unwrap_or(0)
    }

    /// Removes everything and presents the last values. `so_far` is the result of the measurement. A closed output does not prevent the
    /// removal.
    async fn finish(
        mut self,
        so_far: Result<(), Stop>,
        view: &mut dyn MeasurementView,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let counted = so_far.is_ok() || self.sites.iter().any(|s| s.first_ns.is_some());
        let mut result = so_far;
        let mut farewells = Vec::new();
        let format = self.format();
        self.tell_missed();
        // The command reads the costs once for all sites, because an engine reads the costs of all its targets anyway. Where nothing is
        // measured, the removal comes at once: the engine may be analysing a library for which the program waits.
        let is_inserted = self.plan.measure.no_remove || self.sites.iter().any(|s| !s.enabled.pairs.is_empty());
        let mut inserted = Vec::new();
        for client in self.clients().iter().filter(|_| counted && is_inserted) {
            let mut progress = Progress::new("reading the cost", Format::Json);
            let found = client.inserted(&mut progress).await.unwrap_or_default();
            inserted.extend(found.into_iter().map(|one| objects::InsertedObject::new(one, client.host())));
        }
        if self.plan.measure.no_remove {
            // Without a removal, nothing else reports changes to the code.
            let is_ours = |i: &&objects::InsertedObject| {
                self.sites.iter().any(|s| (s.pid(), s.host()) == (i.pid, i.host.clone()))
            };
            for i in inserted.iter().filter(is_ours) {
                i.warnings.iter().for_each(|what| output::warn(&words::disturbed(i.pid, &i.host, what), format));
            }
        }
        // Measurements that were inserted beside another one go first.
        let order: Vec<bool> = self.sites.iter().map(|site| site.is_beside).collect();
        for at in [true, false].iter().flat_map(|beside| (0..order.len()).filter(|at| order.get(*at) == Some(beside))) {
            match self.leave(at, counted, &inserted, &mut farewells, out).await {
                // The failure that ended the measurement, such as a full disk, is reported once.
                Err(Stop::Failure(failure)) if matches!(&result, Err(Stop::Failure(first)) if *first == failure) => {}
                // Each failure is reported: the failure of one target must not hide that of another.
                Err(Stop::Failure(failure)) if result.is_err() => output::report(&failure, format),
                Err(stop) if result.is_ok() => result = Err(stop),
                Ok(()) | Err(_) => {}
            }
        }
        if let Some(late) = words::exact_later(self.sites.iter().flat_map(|site| site.enabled.pairs.iter())) {
            output::warn(&late, format);
        }
        if result.is_ok() {
            result = self.tell_absent();
        }
        if result.is_ok() {
            result = self.tell_awaited();
        }
        for stream in &self.streams {
            stream.abort();
        }
        if self.plan.passes_status {
            self.context.status.set(self.program_status());
        }
        if matches!(result, Err(Stop::ReaderGone)) {
            return result;
        }
        // Last values that cannot be presented do not keep the removal from being told.
        let presented = if counted { view.last(&self.sites, out) } else { Ok(()) };
        let told = farewells.iter().try_for_each(|(ended, farewell)| {
            // The end of the target has been reported, so people need not read that nothing is left in it.
            let text = if *ended { String::new() } else { words::farewell(farewell) };
            out.text(&text)?;
            out.object(farewell)
        });
        result.and(presented).and(told)
    }
}

impl MeasurementRun<'_> {
    /// Removes the measurement of a site. Adds what is told of its end to `farewells`, each with whether the target has ended.
    async fn leave(
        &mut self,
        at: usize,
        counted: bool,
        inserted: &[objects::InsertedObject],
        farewells: &mut Vec<(bool, Object)>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        let format = self.format();
        let Some(site) = self.sites.get_mut(at) else { return Ok(()) };
        if let Some(farewell) = site.farewell.take() {
            farewells.push((true, farewell));
            return Ok(());
        }
        if counted && let Some(cost) = site.cost(inserted).filter(|_| !site.is_beside) {
            let limit = self.plan.measure.max_overhead.unwrap_or(ingraft_daemon::MAX_OVERHEAD);
            if cost.percent > limit && site.told_out.is_empty() {
                output::warn(&words::too_dear(&cost, limit), format);
            }
            farewells.push((site.ended, Object::Cost(cost)));
        }
        if counted {
            site.fetch_last(&self.plan, format).await;
        }
        let left = match site.leave(&self.plan.measure, format, out).await {
            Err(Stop::Failure(failure)) if failure.is_engine_ended() => {
                farewells.extend(site.take_over(self.context.engines.clients(), format).await);
                Err(failure.into())
            }
            Err(stop) => Err(stop),
            Ok(farewell) => {
                let differs = match &farewell {
                    Object::Removed(removed) if removed.text_restored == Some(false) => {
                        Err(words::not_restored(removed).into())
                    }
                    _ => Ok(()),
                };
                // A closer look is a part of the measurement, whose end alone is told.
                if !site.is_beside {
                    farewells.push((site.ended, farewell));
                }
                differs
            }
        };
        left.and_then(|()| site.unwritten.take().map_or(Ok(()), |failure| Err(failure.into())))
    }

    /// The engines that the command measures with: its own, and those of other commands that it has joined.
    fn clients(&self) -> Vec<Client> {
        let mut clients = self.context.engines.clients().to_vec();
        for site in &self.sites {
            if !clients.iter().any(|client| client.is(&site.client)) {
                clients.push(site.client.clone());
            }
        }
        clients
    }
}

fn given_up() -> Failure {
    Failure::failed("the measurement was given up before it was in", "nothing is inserted")
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

impl TargetMeasurement {
    /// The facts about a pair that are told with its value.
    pub(crate) fn facts(&self, pair: usize) -> PairFacts {
        let known = self.enabled.pairs.get(pair).map(|pair| pair.facts).unwrap_or_default();
        PairFacts { exact_since_ns: known.exact_since_ns.or(self.late_ns), ..known }
    }

    /// A measurement that an earlier command left in, with its values.
    pub(crate) fn left_in(
        client: Client,
        (pid, id): (Pid, MeasurementId),
        pairs: Arc<Vec<PairInfo>>,
        reading: Reading,
    ) -> Self {
        let enabled = Enabled { id, pid, pairs, ..Enabled::default() };
        let first_ns = Some(reading.time_ns);
        TargetMeasurement { reading, first_ns, ..TargetMeasurement::new(client, enabled) }
    }

    fn new(client: Client, enabled: Enabled) -> Self {
        let values = vec![Default::default(); enabled.pairs.len()];
        let reading = Reading { time_ns: 0, values, ended: None };
        TargetMeasurement {
            client,
            enabled,
            reading,
            dropped: 0,
            before: None,
            first_ns: None,
            ended: false,
            exec: false,
            status: None,
            signal: None,
            is_started: false,
            lost: None,
            late_ns: None,
            awaited: Vec::new(),
            farewell: None,
            told_out: BTreeSet::new(),
            scaled: false,
            told_share: BTreeSet::new(),
            told_slept_ns: 0,
            told_refused: BTreeSet::new(),
            chapters: Vec::new(),
            profile: None,
            trace: None,
            unwritten: None,
            totals: None,
            printed: None,
            suspects: None,
            is_beside: false,
        }
    }

    /// The engine that has made the measurement.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The daemon's address, if there are several.
    pub(crate) fn host(&self) -> Option<String> {
        self.client.host()
    }

    /// Id of the target.
    pub(crate) fn pid(&self) -> i32 {
        self.enabled.pid.0
    }

    /// The parent's id and the title of the target, formatted for people.
    pub(crate) fn kinship(&self) -> (String, String) {
        let parent = Some(self.enabled.parent.0).filter(|parent| *parent != 0);
        (parent.map(|parent| parent.to_string()).unwrap_or_default(), self.enabled.title.clone())
    }

    /// Returns the pairs that were taken out since the last call.
    fn taken_out(&mut self) -> Vec<objects::TakenOutObject> {
        let mut new = Vec::new();
        for (pair, value) in self.reading.values.iter().enumerate() {
            let (Some(why), Some(info)) = (value.details().taken_out, self.enabled.pairs.get(pair)) else { continue };
            if self.told_out.insert(pair) {
                new.push(objects::TakenOutObject {
                    host: self.client.host(),
                    pid: self.pid(),
                    metric: info.pair.metric.clone(),
                    focus: info.pair.focus.to_string(),
                    time_ns: why.time_ns,
                    hits_per_s: why.hits_per_s,
                    percent: why.cost_ns_per_s as f64 / 1e7,
                    max_overhead: why.limit_ns_per_s as f64 / 1e7,
                    own_gs: why.own_gs,
                    rewritten: why.rewritten,
                });
            }
        }
        new
    }

    /// Whether every pair of these metrics was taken out; without metrics, every pair.
    fn is_all_out(&self, metrics: &[String]) -> bool {
        let pairs = self.enabled.pairs.iter().zip(&self.reading.values);
        let mut values = pairs.filter(|(pair, _)| metrics.is_empty() || metrics.contains(&pair.pair.metric));
        let out = |(_, value): (&PairInfo, &Value)| value.details().taken_out.is_some();
        values.next().is_some_and(out) && values.all(out)
    }

    /// Whether more values may come.
    fn goes_on(&self) -> bool {
        !self.ended && self.lost.is_none()
    }

    /// Takes over the pairs of a measurement that has grown because matching libraries were loaded; the new pairs follow the earlier ones.
    /// Warns of functions that are newly refused.
    fn grow(&mut self, pairs: Arc<Vec<PairInfo>>, format: Format) {
        self.reading.values.resize(pairs.len(), Default::default());
        let name = |(module, offset): FunctionAt<'_>| (module.to_owned(), offset);
        let earlier = unmeasured(&self.enabled.pairs, &self.enabled.refused);
        self.told_refused.extend(earlier.iter().map(|one| name(place(&one.refused.function))));
        let mut new = unmeasured(&pairs, &[]);
        new.retain(|one| !self.told_refused.contains(&name(place(&one.refused.function))));
        if !new.is_empty() {
            output::warn(&words::refused(&new, &pairs, format), format);
        }
        self.enabled.pairs = pairs;
    }

    fn take(&mut self, mut reading: Reading, dropped: u64) {
        if reading.values.len() != self.enabled.pairs.len() {
            return;
        }
        self.dropped = dropped;
        if self.scaled {
            reading.values.iter_mut().for_each(Value::scale);
        }
        let previous = std::mem::replace(&mut self.reading, reading);
        self.before = self.first_ns.is_some().then_some(previous);
        self.first_ns.get_or_insert(self.reading.time_ns);
    }

    fn end(&mut self, ended: Ended, format: Format, out: &mut Output) -> Result<(), Stop> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(());
        }
        let Ended { status, signal, exec } = ended;
        self.exec = exec;
        self.signal = signal;
        let number = status.or(signal.map(|signal| 128 + signal));
        self.status = number.and_then(|number| u8::try_from(number).ok());
        if self.is_beside {
            return Ok(());
        }
        let ended = objects::EndedObject { host: self.host(), pid: self.pid(), status, signal, exec };
        out.text(&words::ended(&ended))?;
        let crashed = words::crashed(&ended);
        out.object(&Object::Ended(ended))?;
        if let Some(crashed) = crashed {
            output::warn(&crashed, format);
        }
        Ok(())
    }

    /// Whether a thread had no room to tell that the condition of a trace has held.
    fn has_held(&self) -> bool {
        self.trace.as_ref().is_some_and(Puller::awaits_condition) && self.reading.values.iter().any(|v| v.value != 0)
    }

    /// Reason why the newest part of a trace is written, as far as the file does not tell it.
    fn cause(&self) -> NewestCause {
        match self.has_held() {
            true => NewestCause::Condition,
            false if self.signal.is_some() => NewestCause::Signal,
            false => NewestCause::End,
        }
    }

    /// Takes the calls that were printed since the last time.
    async fn take_printed(&mut self) -> Result<(), Failure> {
        let known = self.printed.take().map(|before| before.sites);
        let printed = self.client.read_calls(self.enabled.id, known.is_none()).await?;
        self.printed = Some(PrintedCalls { sites: known.unwrap_or(printed.sites), ..printed });
        Ok(())
    }

    fn announcement(&self, attach_ms: f64) -> Object {
        announcement(&self.enabled, self.host(), attach_ms)
    }

    /// Cost of the measurement for its target; `None` if the cost is not known or no longer known.
    fn cost(&self, inserted: &[objects::InsertedObject]) -> Option<CostObject> {
        let (pid, host) = (self.pid(), self.host());
        if self.ended || self.lost.is_some() {
            return None;
        }
        let is_own = |i: &&objects::InsertedObject| {
            i.pid == pid && i.host == host && i.measurements.contains(&self.enabled.id.0)
        };
        let inserted = inserted.iter().find(is_own)?;
        let ns_per_s = inserted.observed_ns_per_s.or(inserted.cost_ns_per_s)?;
        Some(CostObject { host: self.host(), pid, ns_per_s, percent: ns_per_s / 1e7 })
    }

    /// Fetches what is lost with the measurement and belongs to the output: histories and event totals.
    async fn fetch_last(&mut self, plan: &MeasurementPlan, format: Format) {
        if plan.keeps_history() {
            self.fetch_history(format).await;
        }
        if plan.query == Some(Query::Totals) {
            match self.client.event_totals(self.enabled.id).await {
                Ok(totals) => self.totals = Some(totals),
                Err(failure) => output::warn(&failure.to_string(), format),
            }
        }
    }

    /// Fetches the histories of the values, which the engine keeps only until the removal.
    async fn fetch_history(&mut self, format: Format) {
        match self.client.chapters(self.enabled.id, &self.enabled.pairs).await {
            Ok(chapters) => self.chapters = chapters,
            Err(failure) => output::warn(&failure.to_string(), format),
        }
    }

    /// Removes what the engine of another command has left in the target, once that engine has ended. Returns whether the target has ended,
    /// and what is told of the removal.
    async fn take_over(&self, own: &[Client], format: Format) -> Option<(bool, Object)> {
        let (own, pid) = (own.first()?, self.pid());
        let mut progress = Progress::new("removing what the ended engine has left", format);
        match own.take_over(pid, &mut progress).await {
            Ok(removed) => Some((self.ended, Object::Removed(objects::RemovedObject::new(&removed?, own.host())))),
            // The target has ended too.
            Err(failure) if failure.reason == Reason::NoSuchProcess => None,
            Err(failure) => {
                drop(progress);
                output::warn(&words::not_taken_over(pid, &failure), format);
                None
            }
        }
    }

    /// Removes the measurement, or leaves it in if that was asked for. Afterwards `reading` has the last values.
    async fn leave(&mut self, measure: &args::Measure, format: Format, out: &mut Output) -> Result<Object, Stop> {
        let (id, pairs, pid, host) = (self.enabled.id, self.enabled.pairs.len(), self.pid(), self.host());
        if measure.no_remove && !self.ended {
            self.grow(self.client.measured(id).await?, format);
            let reading = self.client.read(id, self.enabled.pairs.len()).await?;
            self.take(reading, 0);
            return Ok(Object::Kept(objects::KeptObject { host, pid, measurement: id.0 }));
        }
        if let Some(puller) = &self.trace {
            puller.end();
        }
        // All calls were presented, and only the answer to the removal has the final numbers.
        self.printed = None;
        let (answer, trace) = match self.client.remove(id, pairs).await {
            Ok(removed) => removed,
            Err(failure) => {
                // The code stays in, and goes on counting. These are its values up to now.
                if let Ok(reading) = self.client.read(id, pairs).await {
                    self.take(reading, 0);
                }
                return Err(failure.into());
            }
        };
        let mut removed = objects::RemovedObject::new(&answer, host);
        if let Some(grown) = answer.grown {
            self.grow(grown, format);
        }
        let ended = answer.last.as_ref().and_then(|last| last.ended);
        if let Some(reading) = answer.last {
            self.take(reading, 0);
        }
        self.printed = answer.printed;
        self.suspects = answer.shares;
        self.profile = answer.profile.map(|profile| *profile);
        if let Some(ended) = ended {
            self.end(ended, format, out)?;
        }
        let cause = self.cause();
        if let Some(puller) = self.trace.take() {
            self.unwritten = puller.finish(&trace, cause).await.err();
        }
        self.awaited.clone_from(&removed.awaited);
        if self.ended && removed.text_restored == Some(true) {
            // The process is gone, and its text with it.
            removed.text_restored = None;
        }
        if !removed.children_left.is_empty() {
            output::warn(&words::children_left(pid, &removed.children_left), format);
        }
        removed.warnings.iter().for_each(|what| output::warn(&words::disturbed(pid, &removed.host, what), format));
        if let Some(left) = words::memory_left(&removed) {
            output::warn(&left, format);
        }
        Ok(Object::Removed(removed))
    }
}

#[cfg(test)]
mod tests;
