//! The page that the demo prints, and its checks.

use std::fmt::Write as _;
use std::time::Duration;

use ingraft_api::{Enabled, NamedFunction, PairFacts, Reading};
use ingraft_model::Pid;

use super::server::{FUNCTIONS, Tallies};
use crate::exit::{Exit, Stop};
use crate::measure::announcement;
use crate::objects::{CheckObject, Object, RecordedFunction, RemovedObject, ThreadCount};
use crate::output::number::{bytes, grouped, grouped_u64, millis, plural, short};
use crate::output::table::{Cell, TextTable};
use crate::output::{BAD, DIM, GOOD, HEADING, Output};

/// Width of the labels at the left, in columns.
const LABEL: usize = 10;

/// The page, as far as it is printed.
pub(super) struct DemoPage<'a> {
    out: &'a mut Output,
    checks: Vec<CheckObject>,
    functions: Vec<NamedFunction>,
    pid: i32,
}

impl<'a> DemoPage<'a> {
    pub(super) fn new(out: &'a mut Output) -> Self {
        DemoPage { out, checks: Vec::new(), functions: Vec::new(), pid: 0 }
    }

    fn line(&mut self, label: &str, text: &str) -> Result<(), Stop> {
        self.out.text(&format!("{HEADING}{label:<LABEL$}{HEADING:#}{text}\n"))
    }

    fn more(&mut self, text: &str) -> Result<(), Stop> {
        self.out.text(&format!("{:<LABEL$}{text}\n", ""))
    }

    fn check(&mut self, name: &'static str, ok: bool, text: String) {
        self.checks.push(CheckObject { pid: self.pid, check: name, ok, text });
    }

    /// Shows the server before the insertion.
    pub(super) fn server(
        &mut self,
        pid: i32,
        threads: usize,
        address: &str,
        per_second: f64,
        slowest: Duration,
    ) -> Result<(), Stop> {
        self.pid = pid;
        let threads = plural(threads as u64, "thread", "threads");
        self.line(
            "Server",
            &format!("process {pid} with {threads}, answering {} clients at {address}", super::load::CLIENTS),
        )?;
        self.line("Before", &traffic(per_second, slowest))
    }

    /// Shows that the counters are inserted.
    pub(super) fn attached(&mut self, enabled: &Enabled, attach_ms: f64, slowest: Duration) -> Result<(), Stop> {
        self.functions = enabled.pairs.iter().filter_map(|p| p.function.clone()).collect();
        self.out.object(&announcement(enabled, None, attach_ms))?;
        let held = millis(crate::objects::millis(enabled.stopped.held));
        let functions = plural(enabled.points.into(), "function", "functions");
        self.line("Attach", &format!("{functions} counted after {}, while it served", millis(attach_ms)))?;
        let note = format!("no thread was held for longer than {held}; the slowest answer took {}", millis_of(slowest));
        self.more(&format!("{DIM}{note}{DIM:#}"))?;
        self.out.text("\n")
    }

    /// Shows calls per second; a terminal shows them in place.
    pub(super) fn live(
        &mut self,
        reading: &Reading,
        before: Option<&Reading>,
        order: &[usize; FUNCTIONS.len()],
    ) -> Result<(), Stop> {
        let Some(before) = before.filter(|_| self.out.live()) else { return Ok(()) };
        let seconds = reading.time_ns.saturating_sub(before.time_ns).max(1) as f64 / 1e9;
        let mut table = TextTable::new().left("FUNCTION").right("CALLS").right("CALLS/S").left("");
        let value = |reading: &Reading, pair: usize| reading.values.get(pair).map_or(0, |v| v.value);
        let rates = order.map(|pair| (value(reading, pair) - value(before, pair)) as f64 / seconds);
        let most = rates.iter().copied().fold(1.0, f64::max);
        for (i, &pair) in order.iter().enumerate() {
            let bar = "▇".repeat((rates[i].max(0.0) / most * 24.0).round() as usize);
            table.row(vec![
                FUNCTIONS[i].into(),
                grouped(value(reading, pair)).into(),
                short(rates[i]).into(),
                Cell::styled(bar, GOOD),
            ]);
        }
        self.out.frame(&indented(&table.render(None)))
    }

    /// Shows the traffic while the counters counted.
    pub(super) fn counted(&mut self, per_second: f64, slowest: Duration) -> Result<(), Stop> {
        self.line("Counting", &traffic(per_second, slowest))?;
        self.out.text("\n")
    }

    /// Shows the counts beside the server's own tally.
    pub(super) fn compared(
        &mut self,
        totals: &[i64; FUNCTIONS.len()],
        counted: &Tallies,
        tallied: &Tallies,
    ) -> Result<(), Stop> {
        let mut table = TextTable::new().left("FUNCTION").right("INGRAFT COUNTED").right("THE SERVER COUNTED").left("");
        let mut calls = 0;
        let mut all_equal = true;
        for (i, name) in FUNCTIONS.iter().enumerate() {
            let theirs: u64 = tallied.values().map(|calls| calls[i]).sum();
            let equal = u64::try_from(totals[i]) == Ok(theirs);
            all_equal &= equal;
            calls += theirs;
            let mark = if equal { Cell::styled("equal", GOOD) } else { Cell::styled("different", BAD) };
            table.row(vec![(*name).into(), grouped(totals[i]).into(), grouped_u64(theirs).into(), mark]);
            self.count_object(i, totals[i], counted)?;
        }
        self.out.text(&indented(&table.render(None)))?;
        self.out.text("\n")?;
        self.check(
            "totals",
            all_equal && calls > 0,
            format!("{} counted, none missed, none too many", plural(calls, "call", "calls")),
        );
        let threads = plural(tallied.len() as u64, "thread", "threads");
        self.check("threads", counted == tallied, format!("the same numbers for each of {threads} by itself"));
        Ok(())
    }

    fn count_object(&mut self, function: usize, calls: i64, counted: &Tallies) -> Result<(), Stop> {
        let Some(f) = self.functions.iter().find(|f| f.function.ends_with(FUNCTIONS[function])) else { return Ok(()) };
        let mut threads: Vec<_> = counted
            .iter()
            .map(|(&tid, calls)| ThreadCount {
                tid: (tid != 0).then_some(tid),
                pid: None,
                calls: calls[function].cast_signed(),
            })
            .filter(|t| t.calls != 0)
            .collect();
        threads.sort_by_key(|t| t.tid);
        let id = RecordedFunction::new(f.clone(), Pid(self.pid), None);
        self.out.object(&Object::Count(crate::objects::CountObject {
            condition: None,
            id,
            block: None,
            header: None,
            calls,
            threads,
            facts: PairFacts::default(),
        }))
    }

    /// Shows that the counters are removed.
    pub(super) fn removed(&mut self, removed: RemovedObject) -> Result<(), Stop> {
        self.line(
            "Removed",
            &format!("while it served; no thread was held for longer than {}", millis(removed.stopped_ms)),
        )?;
        self.out.object(&Object::Removed(removed))
    }

    /// Adds the checks for traces in the server.
    pub(super) fn traces(
        &mut self,
        size: usize,
        files: usize,
        code: Option<String>,
        memory: Option<String>,
        tracer: i32,
    ) {
        let size = bytes(size as u64);
        let files = plural(files as u64, "file", "files");
        let right = format!("all {size} from {files}, byte for byte as before and as on disk");
        self.check("code", code.is_none(), code.unwrap_or(right));
        let left = memory.map(|m| format!("left behind: {m}"));
        self.check("memory", left.is_none(), left.unwrap_or_else(|| "nothing left in its address space".to_owned()));
        let text =
            if tracer == 0 { "nobody traces it (TracerPid 0)".to_owned() } else { format!("traced by {tracer}") };
        self.check("tracer", tracer == 0, text);
    }

    /// Shows the number of answered requests, or the failure of a client.
    pub(super) fn clients(&mut self, answered: u64, failure: Option<String>) -> Result<(), Stop> {
        let text = match &failure {
            None => format!("{} requests answered, none failed", grouped_u64(answered)),
            Some(failure) => format!("one failed: {failure}"),
        };
        self.check("clients", failure.is_none(), text);
        Ok(())
    }

    /// Shows the checks; an error if one of them failed.
    pub(super) fn verdict(mut self) -> Result<(), Stop> {
        self.out.text("\n")?;
        for check in std::mem::take(&mut self.checks) {
            let mark = if check.ok { format!("{GOOD}✓{GOOD:#}") } else { format!("{BAD}✗{BAD:#}") };
            self.out.text(&format!("  {mark} {:<9}{}\n", check.check, check.text))?;
            self.out.object(&Object::Check(check.clone()))?;
            self.checks.push(check);
        }
        if self.checks.iter().all(|c| c.ok) {
            self.out.text(&format!("\n{GOOD}Counted exactly, and left no trace.{GOOD:#}\n"))?;
            self.out.text(&format!("{DIM}Try it on your own: ingraft ps, then ingraft count -p PID FUNCTION{DIM:#}\n"))
        } else {
            self.out.text(&format!(
                "\n{BAD}Not everything holds.{BAD:#} This should not happen; please report this page.\n"
            ))?;
            Err(Stop::Reported(Exit::Failed))
        }
    }
}

fn traffic(per_second: f64, slowest: Duration) -> String {
    format!("{} requests/s, slowest answer {}", short(per_second), millis_of(slowest))
}

fn millis_of(d: Duration) -> String {
    millis(d.as_secs_f64() * 1e3)
}

fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        let _infallible = writeln!(out, "{:<LABEL$}{line}", "");
        out
    })
}
