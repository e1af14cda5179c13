//! `ingraft profile`: exact counts of the blocks and edges of functions, and of the events in them; and which of them have run. Calling
//! contexts are in [`contexts`](super::contexts).

mod explained;
mod inclusive;
mod others;
mod suspects;
mod timed;
mod times;
mod totals;
mod trips;

use std::cmp::Reverse;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ingraft_api::{CountsOptions, CoverageOptions, EnableRequest, Inclusive, Kind, TotalsReading};
use ingraft_model::{EVENT_NAMES, Offset, Svma};
use ingraft_report::{
    Covered, EarlierProfile, EdgeEnd, FunctionProfile, InclusiveTotal, ProfileKind, SavedProfile, UnsavedDetails,
};

use crate::args::{ProfileArgs, ProfileMode};
use crate::command::report::{self, records};
use crate::command::{contexts, own_module, paths};
use crate::conn::RequestTarget;
use crate::exit::{Failure, Stop};
use crate::measure::{self, CloserLook, CommandContext, MeasurementPlan, MeasurementView, Query, TargetMeasurement};
use crate::objects::totals::ProfileObject;
use crate::objects::{EventsObject, Object, RecordedFunction, hex, millis};
use crate::output::number::{UNKNOWN, grouped, plural, sum_of_known};
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, Destination, HEADING, Output};

use times::{Suspected, TimesOptions};

/// Number of rows of a table for people.
const ROWS: usize = 20;
/// Number of calls of a function from which on its profile chooses suspects.
const CALLS_ENOUGH: u64 = 50;
/// Default of `--hot`, in percent: the threshold of the paper.
const HOT: f64 = 1.0;

/// Runs the command.
pub(crate) async fn run(args: ProfileArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    check_flags(&args)?;
    if args.kind == ProfileMode::Contexts {
        return contexts::run(args, context, out).await;
    }
    let (options, path_options) = (TimesOptions::of(&args)?, args.path_options()?);
    let rows = args.contexts.top.map_or(ROWS, Into::into);
    let hot = args.contexts.tree.stats.then(|| args.hot.unwrap_or(HOT) / 100.0);
    let ProfileArgs { kind, check, query, inclusive, sites, explain, branches, weights, measure, .. } = args;
    let (functions, target) = (args.functions, args.target);
    let inclusive = inclusive.and_then(|event| EVENT_NAMES.into_iter().position(|name| *name == event));
    let query = match (query, measure.interval) {
        (true, _) => Some(Query::Totals),
        (false, Some(_)) => Some(Query::Counts),
        (false, None) => None,
    };
    let earlier = weights.as_deref().map(weights_of).transpose()?.map(Arc::new);
    let functions = own_module::unless_named(functions).into_iter().chain(explain.clone()).collect();
    let measured = match kind {
        ProfileMode::Coverage => Kind::Coverage(CoverageOptions { branches, in_place: !branches }),
        ProfileMode::Paths => Kind::Paths(path_options),
        _ => {
            let inclusive = inclusive.map(|event| Inclusive { event, calls: sites });
            Kind::Counts(CountsOptions { check, inclusive, earlier })
        }
    };
    let own = EnableRequest { functions, kind: measured, ..EnableRequest::default() };
    let request = |target: RequestTarget| measure::request(target, &measure, own.clone());
    let closer = (explain.is_some() || args.trips).then(|| CloserLook::new(measure.duration));
    let plan = MeasurementPlan::new(&measure, &target, request, out).queried(query).with_closer_looks(closer);
    let format = context.common.format;
    // A file that cannot be written is refused before the target is touched.
    let save = context.common.output.as_deref().map(Destination::prepare).transpose()?;
    let suspected = Vec::new();
    let mut view = Profiles { kind, format, save, query, explain, suspected, options, rows, hot, told: false };
    measure::run(plan, context, &mut view, out).await
}

/// Refuses flags that belong to another kind of profile.
fn check_flags(args: &ProfileArgs) -> Result<(), Failure> {
    let is = |kind: ProfileMode| args.kind == kind;
    let wrong = |is_wrong: bool, what: &str, hint: &str| match is_wrong {
        true => Err(Failure::usage(what, hint)),
        false => Ok(()),
    };
    let coverage = is(ProfileMode::Coverage);
    wrong(args.branches && !coverage, "--branches belongs to a coverage", "use `ingraft profile coverage --branches`")?;
    wrong(args.check && coverage, "a coverage has no derived counts to check", "leave out --check")?;
    wrong(args.weights.is_some() && coverage, "a coverage has no counters to place", "leave out --weights")?;
    let contexts = is(ProfileMode::Contexts);
    wrong(args.check && contexts, "contexts have no derived counts to check", "leave out --check")?;
    wrong(args.weights.is_some() && contexts, "contexts have no counters to place", "leave out --weights")?;
    let paths = is(ProfileMode::Paths);
    wrong(args.check && paths, "paths have no derived counts to check", "leave out --check")?;
    wrong(args.weights.is_some() && paths, "paths have no counters to place", "leave out --weights")?;
    wrong(
        args.truncate.is_some() && !paths,
        "--truncate belongs to paths",
        "use `ingraft profile paths --truncate N`",
    )?;
    wrong(args.by_context && !paths, "--contexts belongs to paths", "use `ingraft profile paths --contexts`")?;
    wrong(args.callees && !paths, "--callees belongs to paths", "use `ingraft profile paths --callees`")?;
    let stats = args.contexts.tree.stats;
    wrong(
        args.hot.is_some() && !(paths && stats),
        "--hot needs paths and --stats",
        "use `ingraft profile paths --stats`",
    )?;
    let of_contexts = args
        .contexts
        .given()
        .filter(|flag| !paths || !["--top", "--stats"].contains(flag))
        .or_else(|| (!args.metric.is_empty() && !paths).then_some("--metric"))
        .or_else(|| args.event.as_ref().filter(|_| !paths).map(|_| "--event"))
        .or_else(|| (!args.sum.is_empty()).then_some("--sum"));
    if let Some(flag) = of_contexts.filter(|_| !contexts) {
        return Err(Failure::usage(
            format!("{flag} belongs to contexts"),
            format!("use `ingraft profile contexts {flag}`"),
        ));
    }
    let events = is(ProfileMode::Events);
    wrong(args.query && !events, "--query belongs to events", "use `ingraft profile events --query`")?;
    let inclusive = args.inclusive.is_some();
    wrong(inclusive && !events, "--inclusive belongs to events", "use `ingraft profile events --inclusive`")?;
    let hint = "use `ingraft profile events --inclusive --sites`";
    wrong(args.sites && !inclusive, "--sites needs --inclusive", hint)?;
    let times = is(ProfileMode::Times);
    let hint = "use `ingraft profile times --explain FUNCTION`";
    wrong(args.explain.is_some() && !times, "--explain belongs to times", hint)?;
    let of_times = [
        ("--unit", args.unit.is_some()),
        ("--measured", !args.measured.is_empty()),
        ("--trips", args.trips),
        ("--counters", args.counters),
    ];
    let given = of_times.into_iter().find(|(_, is_given)| *is_given && !times);
    given.map_or(Ok(()), |(flag, _)| {
        Err(Failure::usage(format!("{flag} belongs to times"), format!("use `ingraft profile times {flag}`")))
    })
}

/// Reads the counts by which counters are placed.
fn weights_of(path: &Path) -> Result<EarlierProfile, Failure> {
    let saved = report::read(path)?;
    match saved.kind {
        ProfileKind::Counts if saved.modules.iter().all(|module| module.build_id.is_empty()) => {
            let what =
                format!("{} has counts of no file with a build-id, by which files are recognised", path.display());
            Err(Failure::usage(what, "leave out --weights, or build the program with a build-id"))
        }
        ProfileKind::Counts => Ok(saved.earlier()),
        ProfileKind::Coverage => {
            let what = format!("{} is a coverage, and has no counts", path.display());
            Err(Failure::usage(what, "use a profile of edges, blocks or events"))
        }
        ProfileKind::Contexts => {
            let what = format!("{} has calling contexts, and no counts of blocks and edges", path.display());
            Err(Failure::usage(what, "use a profile of edges, blocks or events"))
        }
    }
}

struct Profiles {
    kind: ProfileMode,
    format: crate::args::Format,
    /// The file to save the counts in.
    save: Option<Destination>,
    /// Reading of the profile while it runs.
    query: Option<Query>,
    /// Function whose variance is to be explained.
    explain: Option<String>,
    /// The functions of whose variance causes are measured, one for each process.
    suspected: Vec<Suspected>,
    /// Further choices for times.
    options: TimesOptions,
    /// Largest number of paths in a table.
    rows: usize,
    /// Part of all reads that a hot path has at least; `None` if classes of paths are not asked for.
    hot: Option<f64>,
    /// Whether the user has been told that a reading is not exact.
    told: bool,
}

impl MeasurementView for Profiles {
    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn queried(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        if let Some(totals) = &site.totals {
            return self.totals(site, totals, out);
        }
        let Some(profile) = &site.profile else { return Ok(()) };
        out.text(&heading(
            site,
            (profile.ended_ns, Duration::from_nanos(profile.held_ns)),
            profile.functions.len() as u64,
        ))?;
        self.counts((sites, site), profile, false, out)
    }

    fn closer(&mut self, sites: &[TargetMeasurement], at: usize, is_latest: bool) -> Vec<EnableRequest> {
        let Some((site, profile)) = sites.get(at).and_then(|site| Some((site, site.profile.as_ref()?))) else {
            return Vec::new();
        };
        let times = times::ProcessTimes::of(site, profile, &self.options);
        let least = if is_latest { 1 } else { CALLS_ENOUGH };
        let suspect = self.explain.as_deref().map(|name| times.suspect(name, least));
        // All measurements begin together.
        if suspect.as_ref().is_some_and(Option::is_none) && !is_latest {
            return Vec::new();
        }
        let mut requests: Vec<EnableRequest> = times.trips_request(least).into_iter().collect();
        if let Some((suspected, request)) = suspect.flatten() {
            self.suspected.push(suspected);
            requests.push(request);
        }
        requests
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        for site in sites {
            if let Some(totals) = &site.totals {
                self.totals(site, totals, out)?;
            }
            let Some(profile) = &site.profile else { continue };
            self.counts((sites, site), profile, true, out)?;
            self.tell_inexact(profile);
        }
        self.save.as_ref().map_or(Ok(()), |to| save(to, sites))
    }
}

impl Profiles {
    /// Prints the counts of a process. Causes and warnings of times come only with the last ones.
    fn counts(
        &self,
        (sites, site): (&[TargetMeasurement], &TargetMeasurement),
        profile: &SavedProfile,
        is_last: bool,
        out: &mut Output,
    ) -> Result<(), Stop> {
        if self.query == Some(Query::Counts) {
            out.object(&Object::Profile(ProfileObject {
                host: site.host(),
                pid: site.pid(),
                time_ns: profile.ended_ns,
                functions: profile.functions.len() as u64,
                stopped_ms: millis(Duration::from_nanos(profile.held_ns)),
            }))?;
        }
        if self.kind == ProfileMode::Times {
            let suspected = self.suspected.iter().find(|suspected| suspected.is_of(site));
            let measured = suspected.and_then(|suspected| {
                let beside = sites.iter().find(|other| suspected.is_of(other) && other.suspects.is_some())?;
                Some((suspected, beside.suspects.as_ref()?))
            });
            let times =
                times::ProcessTimes::of(site, profile, &self.options).confirmed(measured, trips::of(sites, site));
            return self.times(&times, is_last, out);
        }
        let names = out.json().then(|| inclusive::FunctionNames::of(profile));
        if let Some(shown) =
            contexts::ShownContexts::of(profile, contexts::ContextLayout::default()).filter(|_| out.json())
        {
            shown.objects((site.host(), site.pid()), out)?;
        }
        for counts in Counts::all(site, profile) {
            counts.objects(self.kind, out)?;
            let calls = names.as_ref().map(|names| inclusive::calls(&counts, profile, names));
            calls.into_iter().flatten().try_for_each(|call| out.object(&Object::CallSite(call)))?;
        }
        let classes = self.hot.map(|threshold| paths::PathClasses::of(profile, threshold));
        if names.is_some() {
            let records = classes.map(|classes| classes.objects(&site.host(), site.pid())).unwrap_or_default();
            return records.iter().try_for_each(|record| out.object(record));
        }
        out.text(&match self.kind {
            ProfileMode::Coverage => coverage_table(site, profile, out.width()),
            ProfileMode::Paths => {
                let classes = classes.map(|classes| classes.tables(out.width())).unwrap_or_default();
                paths::with_files(profile, self.rows, out.width()) + &classes
            }
            ProfileMode::Edges
            | ProfileMode::Blocks
            | ProfileMode::Events
            | ProfileMode::Times
            | ProfileMode::Contexts => self.tables(site, profile, out.width()),
        })
    }

    /// Prints the times of a process.
    fn times(&self, times: &times::ProcessTimes<'_>, is_last: bool, out: &mut Output) -> Result<(), Stop> {
        let explained = self.explain.as_deref().filter(|_| is_last);
        match out.json() {
            true => times.objects(explained, self.format, out)?,
            false => out.text(&times.tables(explained, self.format, out.width()))?,
        }
        if is_last {
            times.warn(explained, self.format);
        }
        Ok(())
    }

    /// Prints the event totals of a process, and warns once if they are not exact.
    fn totals(&mut self, site: &TargetMeasurement, totals: &TotalsReading, out: &mut Output) -> Result<(), Stop> {
        totals::records(site, totals).iter().try_for_each(|record| out.object(record))?;
        if !out.json() {
            out.text(&totals::table(site, totals, out.width()))?;
        }
        if let Some(why) = totals.inexact.as_deref().filter(|_| !self.told) {
            output::warn(&format!("the totals are not exact: {why}"), self.format);
            self.told = true;
        }
        Ok(())
    }

    /// Warns of functions whose counts are not exact.
    fn tell_inexact(&self, profile: &SavedProfile) {
        if let Some(what) = inclusive::warning(profile) {
            output::warn(&what, self.format);
        }
        if self.save.is_some() && !profile.inclusive.is_empty() {
            output::warn("the inclusive totals are not saved, only the counts of blocks and edges", self.format);
        }
        let why = |counts: &'_ FunctionProfile| match &counts.paths {
            Some(paths) => paths.inexact.clone(),
            None => counts.inexact.clone(),
        };
        let inexact: Vec<(&str, String)> =
            Counts::named(profile).filter_map(|(c, d)| Some((d.name.as_str(), why(c)?))).collect();
        let Some((name, why)) = inexact.first() else { return };
        let others = inexact.len() - 1;
        let more = match others {
            0 => String::new(),
            n => format!(", and those of {}", plural(n as u64, "other function", "other functions")),
        };
        let what = match self.kind {
            ProfileMode::Coverage => format!("the coverage of `{name}`{more} is not complete: {why}"),
            ProfileMode::Paths => format!("the paths of `{name}`{more} are not exact: {why}"),
            ProfileMode::Edges
            | ProfileMode::Blocks
            | ProfileMode::Events
            | ProfileMode::Times
            | ProfileMode::Contexts => {
                format!("the counts of `{name}`{more} are not exact, or not all there: {why}")
            }
        };
        output::warn(&what, self.format);
    }

    fn tables(&self, site: &TargetMeasurement, profile: &SavedProfile, width: Option<usize>) -> String {
        let mut all: Vec<Counts<'_>> = Counts::all(site, profile).collect();
        let functions = all.len();
        all.retain(|counts| counts.instructions() > 0 || !counts.is_whole());
        all.sort_by_key(|counts| Reverse(counts.instructions()));
        let whole: u64 = all.iter().map(Counts::instructions).fold(0, u64::saturating_add);
        let mut text = functions_table(&all, (whole, inclusive::title(profile)), width);
        match self.kind {
            ProfileMode::Edges => text += &edges_table(&all, width),
            ProfileMode::Blocks => text += &blocks_table(&all, whole, width),
            ProfileMode::Events => text += &inclusive::table(&all, profile, width),
            ProfileMode::Coverage | ProfileMode::Times | ProfileMode::Contexts | ProfileMode::Paths => {}
        }
        let idle = functions - all.len();
        if idle > 0 {
            let idle = plural(idle as u64, "function", "functions");
            text += &format!("{DIM}{idle} without an execution{DIM:#}\n");
        }
        text
    }
}

/// Saves the profiles of all processes, added up.
pub(crate) fn save(to: &Destination, sites: &[TargetMeasurement]) -> Result<(), Stop> {
    let mut profiles = sites.iter().filter_map(|site| Some((site, site.profile.as_ref()?)));
    let Some((site, first)) = profiles.next() else { return Ok(()) };
    let mut sum = SavedProfile { host: site.host().unwrap_or_default(), ..first.clone() };
    for (_, other) in profiles {
        let mut other = other.clone();
        [&mut sum, &mut other].into_iter().for_each(contexts::leave_addresses);
        let hint = "profile processes of one program, or each process with a file of its own";
        sum.add(&other).map_err(|e| Failure::failed(format!("the counts cannot be added up: {e}"), hint))?;
    }
    sum.leave_counts();
    Ok(to.write_whole(&sum.to_bytes())?)
}

/// A line before what was read while a profile runs: the time since the beginning, and how long the threads were held.
pub(crate) fn heading(site: &TargetMeasurement, (time_ns, held): (u64, Duration), functions: u64) -> String {
    let seconds = time_ns.saturating_sub(site.first_ns.unwrap_or(time_ns)) as f64 / 1e9;
    let (functions, held) = (plural(functions, "function", "functions"), millis(held));
    format!("{HEADING}after {seconds:.1} s{HEADING:#}  {DIM}{functions}, threads held for {held:.1} ms{DIM:#}\n")
}

/// The functions with most blocks that have not run.
fn coverage_table(site: &TargetMeasurement, profile: &SavedProfile, width: Option<usize>) -> String {
    let mut all: Vec<(Counts<'_>, Covered)> = Counts::all(site, profile)
        .map(|counts| {
            let covered = counts.counts.covered();
            (counts, covered)
        })
        .collect();
    let whole = all.iter().fold(Covered::default(), |sum, (_, covered)| sum + *covered);
    all.sort_by_key(|(_, covered)| Reverse(covered.blocks - covered.blocks_ran));
    let mut table = TextTable::new()
        .shrinking("FUNCTION")
        .left("MODULE")
        .right("BLOCKS")
        .right("RAN")
        .right("SHARE")
        .right("UNKNOWN")
        .right("BRANCHES")
        .right("TAKEN")
        .right("UNKNOWN")
        .optional(&["MODULE"]);
    for (counts, covered) in all.iter().take(ROWS) {
        let number = |of: u64| Cell::from(number(of));
        table.row(vec![
            counts.id.function.clone().into(),
            Cell::styled(counts.id.module.clone(), DIM),
            number(covered.blocks),
            number(covered.blocks_ran),
            share(covered.blocks_ran, covered.blocks).into(),
            number(covered.blocks_unknown),
            number(covered.branches),
            number(covered.branches_ran),
            number(covered.branches_unknown),
        ]);
    }
    table.render(width) + &covered_line(whole, all.len() as u64)
}

/// A line about the coverage of all functions.
pub(crate) fn covered_line(whole: Covered, functions: u64) -> String {
    let Covered { blocks, blocks_ran, blocks_unknown, branches, branches_ran, branches_unknown } = whole;
    let unknown = |of: u64| if of > 0 { format!(", {} unknown", number(of)) } else { String::new() };
    format!(
        "{} of {} blocks have run ({}{}), {} of {} branches ({}{}), in {}\n",
        number(blocks_ran),
        number(blocks),
        share(blocks_ran, blocks),
        unknown(blocks_unknown),
        number(branches_ran),
        number(branches),
        share(branches_ran, branches),
        unknown(branches_unknown),
        plural(functions, "function", "functions"),
    )
}

/// The functions with the most executed instructions.
fn functions_table(
    all: &[Counts<'_>],
    (whole, inclusive): (u64, Option<&'static str>),
    width: Option<usize>,
) -> String {
    let mut table =
        TextTable::new().shrinking("FUNCTION").left("MODULE").right("CALLS").right("INSTRUCTIONS").right("SHARE");
    if let Some(title) = inclusive {
        table = table.right(title);
    }
    table = table.right("BRANCHES").right("READS").right("WRITES").optional(&["WRITES", "READS", "BRANCHES", "MODULE"]);
    for counts in all.iter().take(ROWS) {
        let [instructions, _, branches, reads, writes] = counts.events();
        let sum = |sum| sum_of_known(sum, counts.is_whole());
        let mut cells = vec![
            counts.id.function.clone().into(),
            Cell::styled(counts.id.module.clone(), DIM),
            known(counts.counts.known_calls()).into(),
            sum(instructions).into(),
            share(instructions, whole).into(),
        ];
        cells.extend(inclusive.map(|_| known(counts.inclusive().events).into()));
        cells.extend([branches, reads, writes].map(|number| Cell::from(sum(number))));
        table.row(cells);
    }
    table.render(width)
}

/// The blocks with the most executed instructions.
fn blocks_table(all: &[Counts<'_>], whole: u64, width: Option<usize>) -> String {
    let blocks = |counts: &Counts<'_>| -> Vec<(String, Option<u64>, Option<u64>)> {
        let one = |(n, block): (usize, &ingraft_report::BlockCount)| {
            let name = format!("{}#{}", counts.id.function, counts.offset(block.start));
            let count = counts.counts.executions(n);
            (name, count, count.map(|count| count.saturating_mul(block.instructions.into())))
        };
        counts.counts.blocks.iter().enumerate().map(one).collect()
    };
    // Blocks whose counts are not known come after all others.
    let mut hottest: Vec<_> = all.iter().flat_map(blocks).filter(|(_, count, _)| *count != Some(0)).collect();
    hottest.sort_by_key(|(_, _, instructions)| Reverse(*instructions));
    let mut table = TextTable::new().shrinking("BLOCK").right("COUNT").right("INSTRUCTIONS").right("SHARE");
    for (name, count, instructions) in hottest.into_iter().take(ROWS) {
        let cells = vec![
            name.into(),
            known(count).into(),
            known(instructions).into(),
            share(instructions.unwrap_or(0), whole).into(),
        ];
        table.row(cells);
    }
    format!("\n{}", table.render(width))
}

/// The edges with the most passages.
fn edges_table(all: &[Counts<'_>], width: Option<usize>) -> String {
    let edges = |counts: &Counts<'_>| -> Vec<(String, &'static str, u64)> {
        let one = |edge: &ingraft_report::EdgeCount| {
            let (from, to) = (counts.block(edge.from)?, counts.block(block_of(edge.to)?)?);
            Some((format!("{}#{from}->{to}", counts.id.function), edge.kind.word(), edge.count?))
        };
        counts.counts.edges.iter().filter_map(one).collect()
    };
    let mut hottest: Vec<_> = all.iter().flat_map(edges).filter(|(.., count)| *count > 0).collect();
    hottest.sort_by_key(|(.., count)| Reverse(*count));
    let mut table = TextTable::new().shrinking("EDGE").left("KIND").right("COUNT");
    for (name, kind, count) in hottest.into_iter().take(ROWS) {
        table.row(vec![name.into(), kind.into(), number(count).into()]);
    }
    format!("\n{}", table.render(width))
}

/// A number, or the mark of one that is not known.
fn known(count: Option<u64>) -> String {
    count.map_or_else(|| UNKNOWN.to_owned(), number)
}

fn number(count: u64) -> String {
    grouped(i64::try_from(count).unwrap_or(i64::MAX))
}

fn share(part: u64, whole: u64) -> String {
    if whole == 0 { String::new() } else { format!("{:.1} %", 100.0 * part as f64 / whole as f64) }
}

fn block_of(end: EdgeEnd) -> Option<usize> {
    match end {
        EdgeEnd::Block(block) => Some(block),
        EdgeEnd::Outside(_) | EdgeEnd::Dynamic => None,
    }
}

/// Counts of one function.
struct Counts<'a> {
    /// Index of the function in the profile.
    index: usize,
    id: RecordedFunction,
    counts: &'a FunctionProfile,
    details: &'a UnsavedDetails,
    /// Event of the inclusive totals; empty if there are none.
    event: &'a str,
    /// Names of the values of each path.
    path_metrics: &'a [String],
}

impl<'a> Counts<'a> {
    /// All functions of a profile, each with its details.
    fn named(profile: &'a SavedProfile) -> impl DoubleEndedIterator<Item = (&'a FunctionProfile, &'a UnsavedDetails)> {
        profile.functions.iter().filter_map(|counts| Some((counts, counts.details.as_ref()?)))
    }

    fn all(site: &TargetMeasurement, profile: &'a SavedProfile) -> impl Iterator<Item = Counts<'a>> {
        let (host, pid) = (site.host(), site.pid());
        let all = profile.functions.iter().enumerate();
        let named = all.filter_map(|(index, counts)| Some((index, counts, counts.details.as_ref()?)));
        named.map(move |(index, counts, details)| Counts {
            index,
            path_metrics: &profile.path_metrics,
            id: RecordedFunction {
                host: host.clone(),
                pid,
                module: profile.modules.get(counts.module).map_or_else(String::new, |m| m.name.clone()),
                function: details.name.clone(),
                offset: hex(counts.start.0),
            },
            counts,
            details,
            event: &profile.inclusive,
        })
    }

    /// Whether a name, with its module before a colon or without, is that of the function.
    fn is_named(&self, name: &str) -> bool {
        let own = [&self.id.function, &self.counts.name];
        let (module, bare) = name.split_once(':').filter(|(_, rest)| !rest.starts_with(':')).unzip();
        let is_in = module.is_some_and(|module| self.id.module == module);
        own.iter().any(|own| *own == name || is_in && bare.is_some_and(|bare| *own == bare))
    }

    /// Offset of an address in the function.
    fn offset(&self, at: Svma) -> String {
        Offset::between(self.counts.start.0, at.0).in_name()
    }

    /// Offset of a block; `None` if it does not exist.
    fn block(&self, index: usize) -> Option<String> {
        self.counts.blocks.get(index).map(|block| self.offset(block.start))
    }

    /// Whether the counts of all blocks are known.
    fn is_whole(&self) -> bool {
        self.counts.unknown.is_empty()
    }

    /// The inclusive total of the function.
    fn inclusive(&self) -> InclusiveTotal {
        self.details.inclusive.clone().unwrap_or_default()
    }

    fn instructions(&self) -> u64 {
        let one = |block: &ingraft_report::BlockCount| block.count.saturating_mul(block.instructions.into());
        self.counts.blocks.iter().map(one).fold(0, u64::saturating_add)
    }

    /// Numbers of instructions, calls, branches, and reads and writes of memory.
    fn events(&self) -> [u64; 5] {
        let mut sums = [self.instructions(), 0, 0, 0, 0];
        for (block, events) in self.counts.blocks.iter().zip(&self.details.events) {
            let each = [0, events.calls, events.branches, events.reads, events.writes];
            for (sum, each) in sums.iter_mut().zip(each) {
                *sum = sum.saturating_add(block.count.saturating_mul(each.into()));
            }
        }
        sums
    }

    /// Prints the records of the function.
    fn objects(&self, kind: ProfileMode, out: &mut Output) -> Result<(), Stop> {
        match kind {
            ProfileMode::Edges => records::edges(self.counts, &self.id).iter().try_for_each(|edge| out.object(edge)),
            ProfileMode::Blocks => {
                records::blocks(self.counts, &self.id).iter().try_for_each(|block| out.object(block))
            }
            ProfileMode::Coverage => {
                out.object(&Object::Coverage(records::coverage(self.counts, &self.id)))?;
                records::ran_blocks(self.counts, &self.id).iter().try_for_each(|block| out.object(block))?;
                records::ran_edges(self.counts, &self.id).iter().try_for_each(|edge| out.object(edge))
            }
            ProfileMode::Paths => {
                let records = paths::records(self.counts, &self.id, self.path_metrics);
                records.iter().try_for_each(|path| out.object(path))
            }
            ProfileMode::Times | ProfileMode::Contexts => Ok(()),
            ProfileMode::Events => EVENT_NAMES.into_iter().zip(self.events()).try_for_each(|(event, own)| {
                let inclusive = if self.event == event { self.inclusive() } else { InclusiveTotal::default() };
                out.object(&Object::Events(EventsObject {
                    id: self.id.clone(),
                    event,
                    own: Some(own).filter(|_| self.is_whole()),
                    inclusive: inclusive.events,
                    inexact: self.counts.inexact.clone(),
                    inclusive_inexact: inclusive.inexact,
                }))
            }),
        }
    }
}
