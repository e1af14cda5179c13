//! `ingraft hot`: which functions take the time, or where threads wait.

mod calls;
mod classes;
mod rows;
mod started;

use std::time::Duration;

use ingraft_api::{SampledState, SamplingReading, SamplingRequest};
use ingraft_model::Tid;
use tokio::sync::mpsc;

use self::calls::HotCalls;
use self::rows::HotRows;
use self::started::StartedProgram;
use crate::args::{HotArgs, HotSort};
use crate::conn::{Client, RequestTarget};
use crate::exit::{Failure, Stop};
use crate::measure::{self, CommandContext};
use crate::objects::hot::{HotObject, SamplesObject};
use crate::objects::{EndedObject, Object};
use crate::output::number::{grouped_u64, percent, plural, short, time};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, HEADING, Output, words};
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
/// Share of samples from which on a fact about them is printed.
const WORTH_TELLING: f64 = 0.02;

/// A target that is sampled.
struct HotSite {
    client: Client,
    /// Samples of threads that run, and of those that wait.
    running: HotRows,
    waiting: HotRows,
    calls: HotCalls,
    /// Whether no further samples of threads that run, or wait, are expected.
    over: [bool; 2],
    ended: Option<EndedObject>,
}

impl HotSite {
    fn rows(&self, state: SampledState) -> &HotRows {
        match state {
            SampledState::Running => &self.running,
            SampledState::Waiting => &self.waiting,
        }
    }

    fn is_over(&self) -> bool {
        self.over.iter().all(|over| *over)
    }
}

/// A message about the samples of threads in a state at the site of this number: a reading, the end of its stream, or a failure.
type SiteEvent = (usize, SampledState, Result<Option<SamplingReading>, Failure>);

/// Runs the command.
pub(crate) async fn run(args: HotArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let mut signals = Signals::take()?;
    let interval = interval(args.interval, args.duration);
    let (send, arriving) = mpsc::channel(16);
    let (mut sites, mut programs) = (Vec::new(), Vec::new());
    if !args.command.is_empty() {
        out.shared();
        // A daemon gives the programs that it starts no output.
        if context.engines.is_embedded() {
            out.apart_from_program()?;
        }
    }
    for client in context.engines.clients() {
        let mut targets = measure::running(&args.target);
        if !args.command.is_empty() {
            let mut progress = Progress::new("starting the program", context.common.format);
            let program = StartedProgram::start(client, args.command.clone(), &mut progress).await?;
            targets.push(RequestTarget::Pid(program.pid()));
            programs.push(program);
        }
        for target in targets {
            for state in [SampledState::Running, SampledState::Waiting] {
                let request = request(&args, state, &target);
                let progress = Progress::new("reading the program", context.common.format);
                let at = (sites.len(), state);
                tokio::spawn(forward((client.clone(), request, interval), progress, at, send.clone()));
            }
            let client = client.clone();
            let (running, waiting) = (HotRows::new(SampledState::Running), HotRows::new(SampledState::Waiting));
            sites.push(HotSite { client, running, waiting, calls: HotCalls::default(), over: [false; 2], ended: None });
        }
    }
    drop(send);
    let mut run = HotRun { args, interval, context, sites };
    let followed = run.follow(arriving, &mut signals, out).await;
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
    if !matches!(followed, Err(Stop::ReaderGone)) {
        run.print(&run.sites, out)?;
    }
    followed?;
    for ended in run.sites.iter_mut().filter_map(|site| site.ended.take()) {
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
}

impl HotRun<'_> {
    /// Takes over how a program has ended that the command has started.
    async fn leave(&mut self, program: StartedProgram) -> Result<(), Failure> {
        let pid = program.pid();
        let ends = self.sites.iter_mut().filter_map(|site| site.ended.as_mut());
        let its = ends.into_iter().find(|ended| ended.pid == pid);
        let Some(ended) = program.finish(its.is_some()).await? else { return Ok(()) };
        if let Some(its) = its {
            (its.status, its.signal) = (ended.status, ended.signal);
        }
        let status = ended.status.or(ended.signal.map(|signal| 128 + signal));
        if let Some(status) = status.and_then(|status| u8::try_from(status).ok()).filter(|_| !self.args.own_status) {
            self.context.status.set(status);
        }
        Ok(())
    }

    /// Warns of targets whose calls were to be counted and were not.
    fn warn_without_calls(&self) {
        for site in self.sites.iter().filter(|_| self.args.calls) {
            let Some(why) = site.calls.why_none() else { continue };
            let of =
                if self.sites.len() > 1 { format!(" of process {}", site.running.sum().pid) } else { String::new() };
            output::warn(&format!("calls{of} are not counted: {why}"), self.context.common.format);
        }
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
        let sorts_by = self.args.state();
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
                output::warn(&what, self.context.common.format);
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        let rows = if state == SampledState::Running { &mut site.running } else { &mut site.waiting };
        let is_first = rows.sum().span.is_zero();
        rows.add(reading);
        let sum = rows.sum();
        if is_first && !sum.note.is_empty() {
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
        if out.live() {
            let text = self.text(&self.sites, out);
            out.frame(&text)?;
        } else if self.args.interval.is_some() && !self.sites[at].over[number] {
            self.print(&self.sites[at..=at], out)?;
        }
        Ok(())
    }

    /// Prints the samples so far: records for scripts, tables for people.
    fn print(&self, sites: &[HotSite], out: &mut Output) -> Result<(), Stop> {
        let text = self.text(sites, out);
        out.text(&text)?;
        out.together(|out| {
            for site in self.with_samples(sites) {
                self.rows(site).into_iter().try_for_each(|row| out.object(&Object::Hot(row)))?;
                out.object(&Object::Samples(self.samples(site)))?;
            }
            Ok(())
        })
    }

    /// The sites with a reading.
    fn with_samples<'s>(&self, sites: &'s [HotSite]) -> impl Iterator<Item = &'s HotSite> {
        let state = self.args.state();
        sites.iter().filter(move |site| !site.rows(state).sum().span.is_zero())
    }

    fn samples(&self, site: &HotSite) -> SamplesObject {
        let waiting = site.waiting.sum();
        let samples = site.rows(self.args.state()).samples(site.client.host().as_deref());
        SamplesObject { looks: waiting.looks, waits: waiting.samples, ..samples }
    }

    /// The rows of a site.
    fn rows(&self, site: &HotSite) -> Vec<HotObject> {
        let sort = self.args.sort.unwrap_or(if self.args.off_cpu { HotSort::Total } else { HotSort::Own });
        let mut rows =
            rows::functions(&site.running, &site.waiting, self.args.state(), sort, site.client.host().as_deref());
        site.calls.annotate(&mut rows, site.running.sum().span);
        rows
    }

    /// A heading and a table for each target.
    fn text(&self, sites: &[HotSite], out: &Output) -> String {
        let tables = self.with_samples(sites).map(|site| {
            let samples = self.samples(site);
            heading(&samples) + &table(&self.rows(site), self.args.top, out.width()) + &notes(&samples)
        });
        tables.collect()
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

/// One line about the samples.
fn heading(samples: &SamplesObject) -> String {
    let host = samples.host.as_ref().map(|host| format!(" at {host}")).unwrap_or_default();
    let span = time(samples.span_ns as f64);
    let facts = match samples.state {
        "waiting" => {
            let waiting = percent(100.0 * samples.samples as f64 / samples.base.max(1) as f64);
            let looks = plural(samples.base, "look at a thread", "looks at threads");
            format!("{looks} in {span}; in {waiting} of them, the thread waits")
        }
        _ => {
            let busy = samples.cpu_ns as f64 / samples.span_ns.max(1) as f64;
            let kernel = samples.kernel.map_or_else(
                || "the kernel is not sampled".to_owned(),
                |kernel| format!("{} in the kernel", share(kernel)),
            );
            let number = plural(samples.samples, "sample", "samples");
            format!("{number} in {span}; {busy:.2} processors busy, {kernel}")
        }
    };
    format!("{HEADING}process {}{HEADING:#}{host}: {facts}\n", samples.pid)
}

fn table(rows: &[HotObject], top: usize, width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("FUNCTION")
        .shrinking("MODULE")
        .right("SELF")
        .right("±")
        .right("TOTAL")
        .right("KERNEL")
        .right("TIME")
        .right("WAIT")
        .right("CALLS/S")
        .right("MEAN")
        .left("IN")
        .kept("FUNCTION", 24)
        .optional(&["KERNEL", "±", "TIME", "IN", "MODULE"]);
    for row in rows.iter().take(top) {
        let waited = row.wall_ns.zip(row.cpu_ns).map(|(wall, cpu)| wall.saturating_sub(cpu)).or(row.wall_ns);
        let waited = waited.filter(|ns| *ns > 0);
        let call = row.waits.first().map(|wait| wait.name.clone()).unwrap_or_default();
        table.row(vec![
            row.id.function.as_str().into(),
            Cell::styled(row.id.module.as_str(), DIM),
            share(row.own).into(),
            Cell::styled(share(row.self_error), DIM),
            share(row.total).into(),
            row.kernel.map(share).unwrap_or_default().into(),
            row.cpu_ns.map(|ns| time(ns as f64)).unwrap_or_default().into(),
            waited.map(|ns| time(ns as f64)).unwrap_or_default().into(),
            row.calls_per_s.map(short).unwrap_or_default().into(),
            mean(row).into(),
            call.into(),
        ]);
    }
    let mut text = table.render(width);
    if let Some(more) = rows.len().checked_sub(top).filter(|more| *more > 0) {
        text += &format!("{DIM}and {}{DIM:#}\n", plural(more as u64, "more function", "more functions"));
    }
    text
}

/// A share from 0 to 1 in percent.
fn share(share: f64) -> String {
    if share > 0.0 { percent(100.0 * share) } else { "0 %".to_owned() }
}

/// The mean time of a call; `~` marks processor time that was derived.
fn mean(row: &HotObject) -> String {
    let Some(ns) = row.mean_ns else { return String::new() };
    let mark = if row.how.get("mean_ns") == Some(&"derived") { "~" } else { "" };
    format!("{mark}{}", time(ns))
}

/// Facts that limit what the shares tell.
fn notes(samples: &SamplesObject) -> String {
    let mut text = String::new();
    let mut line = |what: String| {
        // Names of memory come from other processes, so control characters, which could move the cursor, become `?`.
        let what: String = what.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        text += &format!("{DIM}{what}{DIM:#}\n");
    };
    if samples.base == 0 && samples.cpu_ns > 0 {
        line("threads ran, but none was sampled: they may have ended too soon".to_owned());
    } else if samples.base == 0 {
        line("no thread ran: nothing is known about any function".to_owned());
    }
    for place in samples.elsewhere.iter().filter(|place| place.share >= WORTH_TELLING) {
        line(format!("{} of the time is in no known function: {}", percent(100.0 * place.share), place.name));
    }
    let cut = samples.cut as f64 / samples.samples.max(1) as f64;
    if cut >= WORTH_TELLING {
        line(format!(
            "{} of the stacks are not known to the end: TOTAL of outer functions is too low",
            percent(100.0 * cut)
        ));
    }
    if samples.lost > 0 {
        let why = if samples.method == "perf" { "samples came too fast" } else { "the thread went on meanwhile" };
        line(format!("{} lost, because {why}", plural(samples.lost, "sample was", "samples were")));
    }
    if samples.throttled > 0 {
        line(format!(
            "the kernel has paused the samples {} times (kernel.perf_cpu_time_max_percent)",
            grouped_u64(samples.throttled)
        ));
    }
    if samples.unsampled_threads > 0 {
        line(format!("{} cannot be sampled", plural(samples.unsampled_threads, "thread", "threads")));
    }
    if samples.method == "perf" && samples.kernel.is_none() {
        line(
            "kernel.perf_event_paranoid does not permit samples in the kernel; shares are of the time in the program"
                .to_owned(),
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::{NamedFunction, NamedSamples, SampledFunction, SamplingMethod};
    use ingraft_model::{Pid, Svma};

    use super::*;

    fn function(name: &str, own: u64, total: u64, kernel: u64) -> SampledFunction {
        let function = NamedFunction { module: "shop".to_owned(), function: name.to_owned(), offset: Svma(total) };
        SampledFunction { function, own, total, kernel, waits: Vec::new() }
    }

    fn reading() -> SamplingReading {
        SamplingReading {
            pid: Pid(7),
            span: Duration::from_secs(2),
            cpu: Duration::from_millis(2200),
            period: Duration::from_millis(2),
            with_kernel: true,
            samples: 1000,
            kernel: 100,
            cut: 50,
            lost: 1,
            unsampled_threads: 2,
            functions: vec![
                function("find_price", 600, 700, 0),
                function("main", 0, 900, 0),
                function("send", 300, 300, 100),
            ],
            elsewhere: vec![NamedSamples { name: "[he\u{1b}ap]".to_owned(), samples: 100 }],
            ..SamplingReading::default()
        }
    }

    fn shown(state: SampledState, reading: SamplingReading, sort: HotSort, top: usize) -> String {
        let mut rows = HotRows::new(state);
        rows.add(reading);
        let samples = rows.samples(None);
        let (running, waiting) = match state {
            SampledState::Running => (rows, HotRows::new(SampledState::Waiting)),
            SampledState::Waiting => (HotRows::new(SampledState::Running), rows),
        };
        let found = rows::functions(&running, &waiting, state, sort, None);
        let text = heading(&samples) + &table(&found, top, None) + &notes(&samples);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_table_tells_also_what_it_does_not_tell() {
        expect![[r#"
            process 7: 1,000 samples in 2 s; 1.10 processors busy, 10 % in the kernel
            FUNCTION    MODULE  SELF      ±  TOTAL  KERNEL    TIME
            find_price  shop    60 %  1.5 %   70 %     0 %   1.4 s
            send        shop    30 %  1.4 %   30 %    33 %  600 ms
            and 1 more function
            10 % of the time is in no known function: [he?ap]
            5.0 % of the stacks are not known to the end: TOTAL of outer functions is too low
            1 sample was lost, because samples came too fast
            2 threads cannot be sampled
        "#]]
        .assert_eq(&shown(SampledState::Running, reading(), HotSort::Own, 2));
        let without_kernel = SamplingReading { with_kernel: false, kernel: 0, cut: 0, lost: 0, ..reading() };
        expect![[r#"
            process 7: 1,000 samples in 2 s; 1.10 processors busy, the kernel is not sampled
            FUNCTION    MODULE  SELF       ±  TOTAL    TIME
            main        shop     0 %  0.10 %   90 %   1.8 s
            find_price  shop    60 %   1.5 %   70 %   1.4 s
            send        shop    30 %   1.4 %   30 %  600 ms
            10 % of the time is in no known function: [he?ap]
            2 threads cannot be sampled
            kernel.perf_event_paranoid does not permit samples in the kernel; shares are of the time in the program
        "#]]
        .assert_eq(&shown(SampledState::Running, without_kernel, HotSort::Total, 9));
        let idle = SamplingReading {
            samples: 0,
            kernel: 0,
            cut: 0,
            functions: Vec::new(),
            elsewhere: Vec::new(),
            ..reading()
        };
        expect![[r#"
            process 7: 0 samples in 2 s; 1.10 processors busy, 0 % in the kernel
            threads ran, but none was sampled: they may have ended too soon
            1 sample was lost, because samples came too fast
            2 threads cannot be sampled
        "#]]
        .assert_eq(&shown(SampledState::Running, idle, HotSort::Own, 9));
    }

    #[test]
    fn a_table_of_waits_names_the_system_call() {
        let waits = vec![NamedSamples { name: "futex".to_owned(), samples: 300 }];
        let functions = vec![SampledFunction { waits, ..function("wait", 0, 300, 0) }];
        let method = SamplingMethod::Looks;
        let waiting = SamplingReading { method, looks: 2000, samples: 1500, functions, cut: 0, ..reading() };
        expect![[r#"
            process 7: 2,000 looks at threads in 2 s; in 75 % of them, the thread waits
            FUNCTION  MODULE  SELF       ±  TOTAL    WAIT  IN
            wait      shop     0 %  0.05 %   15 %  600 ms  futex
            5.0 % of the time is in no known function: [he?ap]
            1 sample was lost, because the thread went on meanwhile
            2 threads cannot be sampled
        "#]]
        .assert_eq(&shown(SampledState::Waiting, waiting, HotSort::Total, 9));
    }

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
