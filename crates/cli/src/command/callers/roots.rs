//! `ingraft callers --until-roots`: the callers of the callers, until no caller is new. The callers found become counted functions in rounds;
//! then the calls of all of them are counted in one window, so that the numbers of all edges are of the same time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, Keys, NamedFunction};
use ingraft_model::Svma;
use tokio::time::{Instant, sleep};

use super::record;
use crate::args::{CallersArgs, Measure};
use crate::command::expression::ExpressionMetric;
use crate::command::keyed::{self, KeyRow};
use crate::conn::{Client, RequestTarget};
use crate::exit::{Failure, Stop};
use crate::measure::{self, CommandContext, MeasurementView, TargetMeasurement};
use crate::objects::keyed::CallerObject;
use crate::objects::{Object, RemovedObject};
use crate::output::number::{grouped, plural};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, HEADING, Output, histogram, words};
use crate::signals::Signals;

/// Largest number of functions that are counted.
const FUNCTIONS_MAX: usize = 1000;
/// Largest number of functions of one insertion while callers are looked for.
const INSERTED_MAX: usize = 100;
/// Time between two looks for new callers.
const LOOK: Duration = Duration::from_millis(50);
/// Shortest and longest time without a new caller after which all are known: a tenth of the time of the command, between these two.
const QUIET: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Largest number of rows of a tree.
const ROWS: usize = 200;

/// A function of one process: module and offset.
type ClimbedFunction = (String, Svma);

fn key(function: &NamedFunction) -> ClimbedFunction {
    (function.module.clone(), function.offset)
}

/// Runs the command.
pub(super) async fn run(
    args: CallersArgs,
    definition: ExpressionMetric,
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    ExpressionMetric::accept(std::slice::from_ref(&definition), context.common.format)?;
    let (client, target) = one_target(&args, &context)?;
    let mut signals = Signals::take()?;
    let mut climb = Climb::new(&definition, &args.measure);
    let mut progress = Progress::new("looking for callers", context.common.format);
    let climbed = tokio::select! {
        biased;
        () = signals.asked() => Ok(false),
        climbed = climb.climb(&client, target, args.functions, &mut progress) => climbed.map(|()| true),
    };
    drop(progress);
    let removed = climb.remove(out).await;
    let whole = climbed?;
    removed?;
    if !whole {
        return Ok(());
    }
    // The signal may have come during the removal.
    let is_asked = tokio::select! {
        biased;
        () = signals.asked() => true,
        () = std::future::ready(()) => false,
    };
    drop(signals);
    if is_asked {
        return Ok(());
    }
    if climb.is_full {
        let what = format!("the climb ends at {FUNCTIONS_MAX} functions: the callers of others are not counted");
        output::warn(&what, context.common.format);
    }
    let samples = args.measure.interval.is_some();
    let functions: Vec<String> = climb.functions.iter().map(pattern).collect();
    let mut view = RootsView { metric: definition.metric.clone(), starts: climb.starts, top: args.top, samples };
    keyed::measure((&args.measure, &args.target), functions, &[definition], &mut view, context, out).await
}

/// The engine and the target, if both are single and the target runs.
fn one_target(args: &CallersArgs, context: &CommandContext<'_>) -> Result<(Client, RequestTarget), Failure> {
    let target = &args.target;
    let mut running = measure::all_running(&target.running);
    running.retain(|target| !matches!(target, RequestTarget::Each(_)));
    match (context.engines.clients(), <[RequestTarget; 1]>::try_from(running)) {
        ([client], Ok([target])) => Ok((client.clone(), target)),
        _ => {
            let what = "--until-roots climbs in one running process of one host";
            Err(Failure::usage(what, "name one process with -p or -n; its callers are found while it runs"))
        }
    }
}

/// The pattern that matches one function only.
fn pattern(function: &NamedFunction) -> String {
    format!("{}+{:#x}", function.module, function.offset.0)
}

/// The search for callers.
struct Climb<'a> {
    definition: &'a ExpressionMetric,
    flags: &'a Measure,
    /// The functions that the command names.
    starts: Vec<NamedFunction>,
    /// The functions whose callers count, in the order in which they were found.
    functions: Vec<NamedFunction>,
    known: HashSet<ClimbedFunction>,
    /// Whether callers were left out because there are too many.
    is_full: bool,
    inserted: Vec<(Client, Enabled)>,
}

impl<'a> Climb<'a> {
    fn new(definition: &'a ExpressionMetric, flags: &'a Measure) -> Self {
        let (starts, functions) = (Vec::new(), Vec::new());
        Climb { definition, flags, starts, functions, known: HashSet::new(), is_full: false, inserted: Vec::new() }
    }

    /// Counts the calls of functions and of their callers until no caller is new for a while.
    async fn climb(
        &mut self,
        client: &Client,
        target: RequestTarget,
        functions: Vec<String>,
        progress: &mut Progress,
    ) -> Result<(), Failure> {
        let enabled = self.insert(client, target, functions, progress).await?;
        let pid = enabled.pid;
        let found = enabled.pairs.iter().filter(|pair| pair.refused.is_empty());
        self.starts = found.filter_map(|pair| pair.function.clone()).collect();
        self.inserted.push((client.clone(), enabled));
        self.known = self.starts.iter().map(key).collect();
        self.functions.clone_from(&self.starts);
        let quiet = self.flags.duration.unwrap_or_default() / 10;
        let quiet = quiet.clamp(QUIET.0, QUIET.1);
        let mut last = Instant::now();
        while last.elapsed() < quiet {
            sleep(LOOK).await;
            let new = self.new_callers().await?;
            for some in new.chunks(INSERTED_MAX) {
                let patterns = some.iter().map(pattern).collect();
                // A caller that cannot be counted is told with the others, when all are inserted.
                if let Ok(enabled) = self.insert(client, RequestTarget::Pid(pid.0), patterns, progress).await {
                    self.inserted.push((client.clone(), enabled));
                }
            }
            if !new.is_empty() {
                last = Instant::now();
            }
            self.functions.extend(new);
        }
        Ok(())
    }

    async fn insert(
        &self,
        client: &Client,
        target: RequestTarget,
        functions: Vec<String>,
        progress: &mut Progress,
    ) -> Result<Enabled, Failure> {
        let own = EnableRequest {
            functions,
            function_metrics: vec![self.definition.metric.clone()],
            definitions: ExpressionMetric::sources(std::slice::from_ref(self.definition)),
            ..EnableRequest::default()
        };
        // These measurements end before the command's own begins.
        let flags = Measure { no_remove: false, ..self.flags.clone() };
        client.enable(&measure::request(target, &flags, own), progress).await.map(|(_, enabled)| enabled)
    }

    /// The callers that were not known before; they are known from now on.
    async fn new_callers(&mut self) -> Result<Vec<NamedFunction>, Failure> {
        let mut new = Vec::new();
        for (client, enabled) in &self.inserted {
            let reading = client.read(enabled.id, enabled.pairs.len()).await?;
            if reading.ended.is_some() {
                let what = format!("process {} has ended before all callers were found", enabled.pid);
                return Err(Failure::failed(what, "`ingraft callers` without --until-roots counts the direct callers"));
            }
            let keys = reading.values.iter().filter_map(|value| value.details().keys.as_ref());
            let callers = keys.flat_map(|keys| &keys.values).filter_map(|key| key.place.as_ref()?.function.as_ref());
            // The memory of the kernel's return probes is no module.
            for caller in callers.filter(|caller| !caller.module.starts_with('[')) {
                if self.known.contains(&key(caller)) {
                    continue;
                }
                if self.known.len() >= FUNCTIONS_MAX {
                    self.is_full = true;
                    return Ok(new);
                }
                self.known.insert(key(caller));
                new.push(caller.clone());
            }
        }
        Ok(new)
    }

    /// Removes the counters. All are removed, also if one of the removals fails.
    async fn remove(&mut self, out: &Output) -> Result<(), Failure> {
        let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
        let mut result = Ok(());
        for (client, enabled) in self.inserted.drain(..) {
            match client.remove(enabled.id, enabled.pairs.len()).await {
                Ok((answer, _)) => {
                    let removed = RemovedObject::new(&answer, client.host());
                    let warn =
                        |what: &String| output::warn(&words::disturbed(enabled.pid.0, &removed.host, what), format);
                    removed.warnings.iter().for_each(warn);
                }
                Err(failure) => result = result.and(Err(failure)),
            }
        }
        result
    }
}

struct RootsView {
    metric: String,
    /// The functions that the command names.
    starts: Vec<NamedFunction>,
    /// Largest number of call sites of a function in records, and of callers of a function in the tree; `None` for all.
    top: Option<usize>,
    /// Whether scripts asked for intermediate values by giving an interval.
    samples: bool,
}

impl MeasurementView for RootsView {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() { keyed::samples(sites.get(at), out) } else { Ok(()) }
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        let rows = KeyRow::all(sites, &self.metric, self.top.filter(|_| out.json()).unwrap_or(Keys::MAX));
        let graph = CallerGraph::new(sites, &rows);
        let missed = graph.not_climbed();
        if missed > 0 {
            let callers = plural(missed as u64, "function called", "functions called");
            let format = if out.json() { crate::args::Format::Json } else { crate::args::Format::Table };
            output::warn(
                &format!("{callers} others for the first time while all were counted: their own callers are not"),
                format,
            );
        }
        if out.json() {
            let levels = graph.levels(&self.starts);
            let mut rows: Vec<(usize, &KeyRow<'_>)> = rows
                .iter()
                .filter_map(|row| Some((*levels.get(&key(row.site.enabled.pairs[row.pair].function.as_ref()?))?, row)))
                .collect();
            rows.sort_by_key(|(level, _)| *level);
            return rows.into_iter().try_for_each(|(level, row)| {
                out.object(&Object::Caller(CallerObject { level: Some(level as u64 + 1), ..record(row, None) }))
            });
        }
        let text: String = self.starts.iter().map(|start| graph.tree(start, self.top, out.width())).collect();
        out.text(&text)
    }
}

/// The calls of one function from one other, or from a place in no function.
#[derive(Debug, Default)]
struct CallEdge {
    calls: i64,
    name: String,
    module: String,
    /// Offsets of the calls in the caller.
    sites: Vec<String>,
    /// The caller; `None` if it is not known.
    caller: Option<ClimbedFunction>,
}

/// The counted calls by called function.
#[derive(Debug, Default)]
struct CallerGraph {
    /// The callers of each function, those with the most calls first.
    callers: HashMap<ClimbedFunction, Vec<CallEdge>>,
    /// All calls of each counted function.
    calls: HashMap<ClimbedFunction, i64>,
}

impl CallerGraph {
    fn new(sites: &[TargetMeasurement], rows: &[KeyRow<'_>]) -> Self {
        let mut graph = CallerGraph::default();
        for site in sites {
            for (pair, value) in site.enabled.pairs.iter().zip(&site.reading.values) {
                if let Some(function) = pair.function.as_ref().filter(|_| pair.refused.is_empty()) {
                    graph.calls.insert(key(function), value.value);
                }
            }
        }
        let mut found: HashMap<ClimbedFunction, BTreeMap<(Option<ClimbedFunction>, String), CallEdge>> = HashMap::new();
        for row in rows {
            let Some(callee) = row.site.enabled.pairs[row.pair].function.as_ref() else { continue };
            let CallerObject { caller, caller_module, call_site, return_address, .. } = record(row, None);
            let place = row.key.and_then(|key| key.place.as_ref());
            let known = place.and_then(|place| place.function.as_ref()).map(key);
            let others = || if row.key.is_none() { Some("others".to_owned()) } else { None };
            let name = caller.or(return_address).or_else(others).unwrap_or_default();
            let inner = place.and_then(|place| place.inlined.first());
            let site = call_site.map(|site| inner.map_or_else(|| site.clone(), |inner| format!("{site} in {inner}")));
            let edge = found.entry(key(callee)).or_default().entry((known.clone(), name.clone())).or_default();
            edge.calls = edge.calls.wrapping_add(row.value);
            edge.sites.extend(site);
            (edge.name, edge.module, edge.caller) = (name, caller_module.unwrap_or_default(), known);
        }
        for (callee, edges) in found {
            let mut edges: Vec<CallEdge> = edges.into_values().collect();
            edges.sort_by(|a, b| b.calls.cmp(&a.calls).then_with(|| a.name.cmp(&b.name)));
            graph.callers.insert(callee, edges);
        }
        graph
    }

    /// Number of callers that are not counted themselves, although they are known functions.
    fn not_climbed(&self) -> usize {
        let callers: HashSet<&ClimbedFunction> =
            self.callers.values().flatten().filter_map(|edge| edge.caller.as_ref()).collect();
        callers.into_iter().filter(|caller| !self.calls.contains_key(*caller) && !caller.0.starts_with('[')).count()
    }

    /// The distance of each function from the nearest of `starts`, in calls.
    fn levels(&self, starts: &[NamedFunction]) -> HashMap<ClimbedFunction, usize> {
        let mut levels: HashMap<ClimbedFunction, usize> = starts.iter().map(|start| (key(start), 0)).collect();
        let mut open: VecDeque<ClimbedFunction> = starts.iter().map(key).collect();
        while let Some(callee) = open.pop_front() {
            let level = levels.get(&callee).copied().unwrap_or(0);
            for caller in self.callers.get(&callee).into_iter().flatten().filter_map(|edge| edge.caller.as_ref()) {
                if !levels.contains_key(caller) {
                    levels.insert(caller.clone(), level + 1);
                    open.push_back(caller.clone());
                }
            }
        }
        levels
    }

    /// The callers of a function as a tree. The callers of a function are shown once.
    fn tree(&self, start: &NamedFunction, top: Option<usize>, width: Option<usize>) -> String {
        let calls = self.calls.get(&key(start)).copied().unwrap_or(0);
        let calls = plural(u64::try_from(calls).unwrap_or(0), "call", "calls");
        let mut table = TextTable::new().right("CALLS").right("SHARE").shrinking("CALLER").left("AT").left("MODULE");
        table = table.optional(&["MODULE", "AT"]);
        let (mut shown, mut rows) = (HashSet::from([key(start)]), 0);
        // The edges that are to be shown, the next one last, each with the functions that it leads to.
        let mut open: Vec<(Vec<ClimbedFunction>, &CallEdge)> = self.above(vec![key(start)], top);
        while let Some((path, edge)) = open.pop() {
            rows += 1;
            if rows > ROWS {
                continue;
            }
            let callers = edge.caller.as_ref().and_then(|caller| self.callers.get(caller));
            let mark = match &edge.caller {
                Some(caller) if path.contains(caller) => "recursive",
                Some(caller) if callers.is_some() && shown.contains(caller) => "callers as above",
                Some(caller) if callers.is_none() && self.calls.contains_key(caller) => "not called meanwhile",
                Some(_) if callers.is_none() => "not counted",
                _ => "",
            };
            let mark = if mark.is_empty() { String::new() } else { format!("  ({mark})") };
            let of = path.last().and_then(|callee| self.calls.get(callee)).copied().unwrap_or(0);
            let share = match (u64::try_from(edge.calls), u64::try_from(of)) {
                (Ok(calls), Ok(of)) if of >= calls && of > 0 => histogram::share(calls, of),
                _ => String::new(),
            };
            let name = format!("{}{}{mark}", "  ".repeat(path.len() - 1), edge.name);
            let sites = edge.sites.join(", ");
            table.row(vec![
                grouped(edge.calls).into(),
                share.into(),
                name.into(),
                sites.into(),
                Cell::styled(edge.module.as_str(), DIM),
            ]);
            if let Some(caller) = edge.caller.as_ref().filter(|caller| shown.insert((*caller).clone())) {
                let path = path.into_iter().chain([caller.clone()]).collect();
                open.extend(self.above(path, top));
            }
        }
        let mut text = format!("{HEADING}{}{HEADING:#}: {calls}\n{}", start.function, table.render(width));
        if let Some(more) = rows.checked_sub(ROWS).filter(|more| *more > 0) {
            text += &format!("{DIM}and {}{DIM:#}\n", plural(more as u64, "more row", "more rows"));
        }
        text + &format!("{DIM}a row has all calls of the function one level out, whatever these were made for{DIM:#}\n")
    }

    /// The edges to the last function of a path, the one with the most calls last, at most so many.
    fn above(&self, path: Vec<ClimbedFunction>, top: Option<usize>) -> Vec<(Vec<ClimbedFunction>, &CallEdge)> {
        let edges = path.last().and_then(|callee| self.callers.get(callee)).map(Vec::as_slice).unwrap_or_default();
        let mut edges: Vec<&CallEdge> = edges.iter().collect();
        edges.sort_by_key(|edge| Reverse(edge.calls));
        edges.truncate(top.unwrap_or(usize::MAX));
        edges.into_iter().rev().map(|edge| (path.clone(), edge)).collect()
    }
}
