//! The samples for people: a heading, a table of functions, a table of processes, and what the shares do not tell.

use super::rows::HotRows;
use crate::objects::hot::{HotObject, SamplesObject};
use crate::output::number::{grouped_u64, percent, plural, short, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING};

/// Share of samples from which on a fact about them is printed.
const WORTH_TELLING: f64 = 0.02;
/// Largest number of processes of which each has a row.
const PROCESSES: usize = 5;

/// The processes and threads that a heading names.
pub(super) enum HeadingTarget {
    /// A process, and its host if there are several.
    One { pid: i32, host: Option<String> },
    /// Numbers of processes, of their threads with samples, and of hosts.
    Several { processes: usize, threads: usize, hosts: usize },
}

/// A process out of several, and its part in the samples.
pub(super) struct ProcessShare {
    pub(super) host: Option<String>,
    pub(super) pid: i32,
    /// Share of the samples of all processes, from 0 to 1.
    pub(super) share: f64,
    /// Arguments of the process, or the text that it has written over them; empty if they are not known.
    pub(super) title: String,
}

/// One line about the samples.
pub(super) fn heading(target: &HeadingTarget, rows: &HotRows, samples: &SamplesObject) -> String {
    let (name, place) = match target {
        HeadingTarget::One { pid, host } => {
            (format!("process {pid}"), host.as_ref().map(|host| format!(" at {host}")).unwrap_or_default())
        }
        HeadingTarget::Several { processes, threads, hosts } => {
            let place = if *hosts > 1 { format!(" at {hosts} hosts") } else { String::new() };
            let threads = plural(*threads as u64, "thread", "threads");
            (format!("{processes} processes"), format!("{place} with {threads}"))
        }
    };
    let span = time(samples.span_ns as f64);
    let facts = match samples.state {
        "waiting" => {
            let waiting = percent(100.0 * rows.sample_share());
            let looks = plural(samples.base, "look at a thread", "looks at threads");
            format!("{looks} in {span}; in {waiting} of them, the thread waits")
        }
        _ => {
            let busy = rows.processors();
            let kernel = samples.kernel.map_or_else(
                || "the kernel is not sampled".to_owned(),
                |kernel| format!("{} in the kernel", share(kernel)),
            );
            let number = plural(samples.samples, "sample", "samples");
            format!("{number} in {span}; {busy:.2} processors busy, {kernel}")
        }
    };
    format!("{HEADING}{name}{HEADING:#}{place}: {facts}\n")
}

/// The processes with the largest shares of the samples, if there are several.
pub(super) fn processes(all: &[ProcessShare], width: Option<usize>) -> String {
    if all.len() < 2 {
        return String::new();
    }
    let titles = ["HOST", "TITLE"];
    let mut table = TextTable::new().shrinking("HOST").right("PID").right("SHARE").shrinking("TITLE").optional(&titles);
    for process in all.iter().take(PROCESSES) {
        table.row(vec![
            process.host.clone().unwrap_or_default().into(),
            process.pid.to_string().into(),
            share(process.share).into(),
            Cell::styled(process.title.as_str(), DIM),
        ]);
    }
    let mut text = table.render(width);
    if let Some(others) = all.get(PROCESSES..).filter(|others| !others.is_empty()) {
        let rest = share(others.iter().map(|process| process.share).sum());
        let number = plural(others.len() as u64, "more process", "more processes");
        text += &format!("{DIM}and {number} with {rest} of the samples{DIM:#}\n");
    }
    text
}

pub(super) fn table(rows: &[HotObject], top: usize, width: Option<usize>) -> String {
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
            row.function.as_str().into(),
            Cell::styled(row.module.as_str(), DIM),
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
pub(super) fn notes(samples: &SamplesObject) -> String {
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
    use std::time::Duration;

    use expect_test::expect;
    use ingraft_api::{NamedFunction, NamedSamples, SampledFunction, SampledState, SamplingMethod, SamplingReading};
    use ingraft_model::{Pid, Svma};

    use super::*;
    use crate::args::HotSort;
    use crate::command::hot::rows;

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
        let head = heading(&HeadingTarget::One { pid: 7, host: None }, &rows, &samples);
        let (running, waiting) = match state {
            SampledState::Running => (rows, HotRows::new(SampledState::Waiting)),
            SampledState::Waiting => (HotRows::new(SampledState::Running), rows),
        };
        let found = rows::functions(&running, &waiting, state, sort, None);
        let text = head + &table(&found, top, None) + &notes(&samples);
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
    fn several_processes_have_one_table_and_their_shares() {
        let rows = |pid, samples| {
            let mut rows = HotRows::new(SampledState::Running);
            rows.add(SamplingReading { pid: Pid(pid), samples, ..reading() });
            rows
        };
        let both = HotRows::together(SampledState::Running, &[&rows(7, 1000), &rows(8, 1400)]);
        let target = HeadingTarget::Several { processes: 2, threads: 9, hosts: 2 };
        let found =
            rows::functions(&both, &HotRows::new(SampledState::Waiting), SampledState::Running, HotSort::Own, None);
        let process = |pid, share, title: &str| ProcessShare { host: None, pid, share, title: title.to_owned() };
        let mut all = vec![process(8, 0.58, "shop: load"), process(7, 0.42, "")];
        let text = heading(&target, &both, &both.samples(None)) + &table(&found, 1, None) + &processes(&all, None);
        expect![[r#"
            2 processes at 2 hosts with 9 threads: 2,400 samples in 2 s; 2.20 processors busy, 8.3 % in the kernel
            FUNCTION    MODULE  SELF      ±  TOTAL  KERNEL   TIME
            find_price  shop    50 %  1.0 %   58 %     0 %  2.8 s
            and 2 more functions
            PID  SHARE  TITLE
              8   58 %  shop: load
              7   42 %
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&text).to_string());
        all.extend((10..15).map(|pid| process(pid, 0.01, "")));
        let text = anstream::adapter::strip_str(&processes(&all, None)).to_string();
        assert!(text.ends_with("and 2 more processes with 2.0 % of the samples\n"), "{text}");
        assert_eq!(processes(&all[..1], None), "", "of one process, the heading tells all");
    }
}
