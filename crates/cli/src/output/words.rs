//! Sentences for people about a measurement.

use std::collections::BTreeSet;
use std::time::{Duration, UNIX_EPOCH};

use ingraft_api::{Enabled, MetricFocus, PairInfo, Reason};
use ingraft_model::{Activations, Focus, PartName};

use super::number::{grouped_u64, millis, percent, plural};
use super::table::cut;
use super::{BAD, DIM, GOOD, HEADING};
use crate::args::Format;
use crate::exit::{Exit, Failure};
use crate::objects::refused::{Unmeasured, place};
use crate::objects::{CostObject, EndedObject, Host, LookedObject, Object, RemovedObject, TakenOutObject};

/// Number of functions that a warning for people names before it counts the rest; scripts get all names.
pub(crate) const NAMED: usize = 8;
/// Number of refused functions that a message for people names.
const REFUSED_NAMED: usize = 3;
/// Largest width of a name in such a message.
const NAME_WIDTH: usize = 60;

/// Announcement that a measurement is inserted.
pub(crate) fn attached(e: &Enabled, host: Host, attach_ms: f64) -> String {
    let place = at(e.pid.0, &host);
    let points = plural(e.points.into(), "point", "points");
    let held = held(crate::objects::millis(e.stopped.held), crate::objects::millis(e.stopped.waited));
    let mut line = format!("{HEADING}{place}{HEADING:#}: {points} in after {}, {held}", millis(attach_ms));
    if e.attached {
        let threads = plural(e.threads.into(), "thread", "threads");
        let modules = plural(e.modules.into(), "module", "modules");
        line += &format!("{DIM} ({threads}, {modules}, {} functions known){DIM:#}", grouped_u64(e.functions.into()));
    }
    if e.caught_up > 0 {
        line += &format!("; {} in progress caught up", plural(e.caught_up, "call", "calls"));
    }
    if e.not_unwound > 0 {
        let threads = plural(e.not_unwound.into(), "thread", "threads");
        line += &format!("; the calls in progress of {threads} could not be found out");
    }
    line + "\n"
}

/// Time of a hold in milliseconds, with its part in which no processor was free, if that is noticeable.
fn held(stopped_ms: f64, waited_ms: f64) -> String {
    let held = format!("held for {}", millis(stopped_ms));
    if waited_ms > 1.0 { format!("{held}, of which {} without a processor", millis(waited_ms)) } else { held }
}

fn at(pid: i32, host: &Host) -> String {
    match host {
        Some(host) => format!("process {pid} at {host}"),
        None => format!("process {pid}"),
    }
}

/// A step of an insertion, with the part that is done in percent and an estimate of the time until it is done.
pub(crate) fn step(what: &str, percent: Option<u32>, left: Option<Duration>) -> String {
    let percent = percent.map(|percent| format!(", {percent} %")).unwrap_or_default();
    // Nobody waits for a part of a second.
    let left = left.map(|left| left.as_secs_f64().ceil().max(1.0)).map(|seconds| format!(", about {seconds} s left"));
    format!("{what}{percent}{}", left.unwrap_or_default())
}

/// Warning of functions that are not measured, of those that `pairs` name. People read some names, scripts all names with the reasons.
pub(crate) fn refused(refused: &[Unmeasured<'_>], pairs: &[PairInfo], format: Format) -> String {
    let count = refused.len() as u64;
    let parts = refused.iter().any(|one| one.part().is_some());
    let [one, many] = if parts { ["place", "places"] } else { ["function", "functions"] };
    let of = asked(refused, pairs).map_or_else(
        || plural(count, one, many),
        |all| format!("{} of {}", grouped_u64(count), plural(all, one, many)),
    );
    let (are, them) = if count == 1 { ("is", "it") } else { ("are", "them") };
    let listed = if parts { String::new() } else { format!(" (`ingraft functions` lists {them})") };
    let named = if format == Format::Json { refused.len() } else { REFUSED_NAMED };
    let names = refused.iter().take(named).map(|one| match format {
        Format::Json => format!("{} ({})", one.name(), one.refused.reason),
        Format::Table if count == 1 => format!("{} ({})", cut(&one.name(), NAME_WIDTH), one.refused.reason),
        Format::Table => cut(&one.name(), NAME_WIDTH),
    });
    let names = names.collect::<Vec<_>>().join(", ");
    let rest = match refused.len().saturating_sub(named) {
        0 => String::new(),
        rest => format!(", and {}", plural(rest as u64, "other", "others")),
    };
    format!("{of} {are} not measured{listed}: {names}{rest}")
}

/// Number of functions or parts of functions that were asked for; `None` if a pair is not about one function.
fn asked(refused: &[Unmeasured<'_>], pairs: &[PairInfo]) -> Option<u64> {
    let mut all = BTreeSet::new();
    for pair in pairs {
        let part = PartName::of(&pair.pair.focus).map(|part| part.to_string());
        all.insert((place(pair.function.as_ref()?), part));
    }
    let measured = all.len();
    for one in refused {
        all.insert((place(&one.refused.function), one.part().map(|part| part.to_string())));
    }
    (measured > 0).then_some(all.len() as u64)
}

/// Warning of a host, out of several, that has no target.
pub(crate) fn at_host(failure: &Failure) -> String {
    format!("{}: {failure}", failure.host.as_deref().unwrap_or_default())
}

/// Warnings of processes, out of several, that are not measured: one line for each reason. Each of `failures` has its process.
pub(crate) fn left_out(failures: &[Failure], format: Format) -> Vec<String> {
    let named = if format == Format::Json { failures.len() } else { NAMED };
    let name = |failure: &Failure| failure.pid.map_or_else(String::new, |pid| format!("process {pid} "));
    let mut lines: Vec<String> =
        failures.iter().take(named).map(|f| format!("{}is not measured: {f}", name(f))).collect();
    if failures.len() > named {
        let rest = (failures.len() - named) as u64;
        let what = plural(rest, "more process is", "more processes are");
        lines.push(format!("{what} not measured; `ingraft ps` says why"));
    }
    lines
}

/// Warning of a signal that came before all processes were measured. `others` is the number of those that are not, if it is known.
pub(crate) fn cut_short(others: Option<usize>) -> String {
    let number = |n: usize| plural(n as u64, "process is", "processes are");
    let what = others.map_or_else(|| "further processes are".to_owned(), number);
    format!("{what} not measured: the command was interrupted before the measurement of all had begun")
}

/// Warning of a followed process that cannot be measured at this moment.
pub(crate) fn deferred_kin(pid: i32, why: &Failure) -> String {
    format!("process {pid}, which was followed, is not measured yet; it is tried again: {why}")
}

/// Warning of followed processes that are not measured: their number, and the reason of the first.
pub(crate) fn missed_kin(count: u64, why: &Failure) -> String {
    let what = plural(count, "process that was followed is", "processes that were followed are");
    format!("{what} not measured: {why}")
}

/// Warning of a pair whose names were never in a started program or its libraries.
pub(crate) fn absent(absent: &MetricFocus) -> String {
    let pair = pair(&absent.metric, &absent.focus.to_string());
    format!("{pair} was not measured: neither the program nor a library that it loaded has what it names")
}

/// Failure if the names of all pairs were never in a started program or its libraries.
pub(crate) fn all_absent(absent: &[&MetricFocus]) -> Failure {
    let names: Vec<String> = absent.iter().map(|absent| pair(&absent.metric, &absent.focus.to_string())).collect();
    let what =
        format!("nothing was measured: nothing that the program loaded has what is named by {}", names.join(", "));
    Failure::new(Exit::NotFound, what, "`ingraft functions` lists what a program has")
}

/// Warning of functions whose modules were never loaded.
pub(crate) fn awaited(text: &str) -> String {
    format!("{text} was not measured: no module with such a function was loaded")
}

/// Failure if the modules of all functions were never loaded. `exec` means that a target continued as another program.
pub(crate) fn all_awaited(awaited: &[&String], exec: bool) -> Failure {
    let names: Vec<&str> = awaited.iter().map(|text| text.as_str()).collect();
    let what = format!("nothing was measured: no module with functions that match {} was loaded", names.join(", "));
    let hint = match exec {
        true => "the process went on as another program, which `--follow exec` measures",
        false => "`ingraft functions` lists what a program has",
    };
    Failure::new(Exit::NotFound, what, hint)
}

/// A metric with its focus, if it has one.
fn pair(metric: &str, focus: &str) -> String {
    if focus.is_empty() { metric.to_owned() } else { format!("{metric} at {}", readable_focus(focus)) }
}

/// The text form of a focus with its commas and slashes as people write them, if a command reads this text as the same focus. Otherwise the
/// text form itself.
pub(crate) fn readable_focus(focus: &str) -> String {
    let commas = focus.replace("%2C", ",");
    let both = commas.replace("%2F", "/");
    let is_same = |text: &String| Focus::parse(text).is_ok_and(|read| read.to_string() == focus);
    [both, commas].into_iter().find(is_same).unwrap_or_else(|| focus.to_owned())
}

/// The text `METRIC@FOCUS` of a pair with its focus as people write it.
pub(crate) fn readable_pair(pair: &str) -> String {
    pair.split_once('@')
        .map_or_else(|| pair.to_owned(), |(metric, focus)| format!("{metric}@{}", readable_focus(focus)))
}

/// The last name of a focus, as it is outside of foci.
fn last_name(focus: &str) -> String {
    focus.rsplit('/').next().unwrap_or_default().replace("%2C", ",").replace("%2F", "/")
}

/// Warning of values that are not complete from the insertion on; `None` if there is no such value.
pub(crate) fn exact_later<'a>(pairs: impl Iterator<Item = &'a PairInfo>) -> Option<String> {
    let mut late = pairs.filter_map(|pair| Some((pair, pair.facts.exact_since_ns?)));
    let (first, since_ns) = late.next()?;
    let since = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(since_ns));
    let others = match late.count() as u64 {
        0 => String::new(),
        n => format!(" (and {} more)", plural(n, "value", "values")),
    };
    let pair = pair(&first.pair.metric, &first.pair.focus.to_string());
    Some(format!(
        "{pair}{others} is exact since {since} only: a library came, or may have, before it could be measured"
    ))
}

/// The commands for which this one waits, because they use its engine.
pub(crate) fn waits_for(others: &[i32]) -> String {
    let named: Vec<String> = others.iter().map(|pid| format!("ingraft {pid}")).collect();
    let (these, measure) = (named.join(" and "), if others.len() == 1 { "measures" } else { "measure" });
    format!("{these} still {measure} with the engine of this command, which waits for the end; Ctrl-C ends all")
}

/// Code of an ended engine that another command could not remove.
pub(crate) fn not_taken_over(pid: i32, why: &Failure) -> String {
    format!("the ended engine has left code in process {pid}: {why}; `ingraft detach -p {pid}` removes it")
}

/// Warning of fork children that still have springboards.
pub(crate) fn children_left(pid: i32, children: &[i32]) -> String {
    let children = children.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
    format!("fork children of {pid} that could not be restored: {children}; run `ingraft detach -p PID` for each")
}

/// Line about the end of a target.
pub(crate) fn ended(e: &EndedObject) -> String {
    let place = at(e.pid, &e.host);
    let how = match (e.exec, e.signal, e.status) {
        (true, _, _) => "went on as another program (exec)".to_owned(),
        (false, Some(signal), _) => format!("was killed by signal {signal}"),
        (false, None, Some(0)) => "ended".to_owned(),
        (false, None, Some(status)) => format!("ended with exit status {status}"),
        (false, None, None) => "ended".to_owned(),
    };
    format!("{place} {how}\n")
}

/// Names of the signals that a program gets for its own errors (signal(7)).
const CRASHES: [(i32, &str); 8] = [
    (3, "SIGQUIT"),
    (4, "SIGILL"),
    (5, "SIGTRAP"),
    (6, "SIGABRT"),
    (7, "SIGBUS"),
    (8, "SIGFPE"),
    (11, "SIGSEGV"),
    (31, "SIGSYS"),
];

/// Warning of a target that has crashed; `None` if it has ended otherwise, or its end is not known.
pub(crate) fn crashed(e: &EndedObject) -> Option<String> {
    let (_, name) = CRASHES.into_iter().find(|(signal, _)| Some(*signal) == e.signal)?;
    Some(format!("{} crashed ({name}) while it was measured; its values are those until then", at(e.pid, &e.host)))
}

/// Line about the removal, the stay or the cost of a measurement.
pub(crate) fn farewell(object: &Object) -> String {
    match object {
        Object::Removed(r) => removed(r),
        Object::Kept(k) => {
            let place = at(k.pid, &k.host);
            format!(
                "{place}: measurement {} stays in; `ingraft --daemon … detach -p {}` takes it out\n",
                k.measurement, k.pid
            )
        }
        Object::Cost(c) => {
            format!("{DIM}{}: cost {} of one processor{DIM:#}\n", at(c.pid, &c.host), percent(c.percent))
        }
        _ => String::new(),
    }
}

/// Lines about calls whose times are missing, one for each reason, with the functions that have most of them.
pub(crate) fn missing(of_functions: &[(String, Activations)]) -> String {
    let line = |number: fn(&Activations) -> u64, why: &str| {
        let mut functions: Vec<(u64, &str)> = of_functions
            .iter()
            .map(|(name, all)| (number(all), name.as_str()))
            .filter(|(calls, _)| *calls > 0)
            .collect();
        functions.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
        let calls = functions.iter().map(|(calls, _)| *calls).sum();
        let names: Vec<&str> = functions.iter().take(NAMED).map(|(_, name)| *name).collect();
        let names = match functions.len().saturating_sub(names.len()) {
            0 => names.join(", "),
            more => format!("{} and {}", names.join(", "), plural(more as u64, "more function", "more functions")),
        };
        match calls {
            0 => String::new(),
            1 => format!("1 call of {names} {why}; its time is not in the table\n"),
            calls => format!("{} calls of {names} {why}; their times are not in the table\n", grouped_u64(calls)),
        }
    };
    line(|a| a.left, "ended by an exception, by longjmp or with its thread")
        + &line(|a| a.unseen, "had begun before the measurement")
        + &line(|a| a.unrecorded, "could not be recorded")
        + &line(|a| a.left_by_tail_jump, "ended in a jump to a function that could not be followed")
}

/// Warning of functions whose calls are counted only, because timing them costs too much. `begun` tells whether they were timed before.
pub(crate) fn counted_only(functions: &[TakenOutObject], begun: bool) -> String {
    let mut sorted: Vec<&TakenOutObject> = functions.iter().collect();
    sorted.sort_by_key(|t| std::cmp::Reverse(t.hits_per_s));
    let name = |t: &&TakenOutObject| last_name(&t.focus);
    let names: Vec<String> = sorted.iter().take(NAMED).map(name).collect();
    let percent_of_all = percent(functions.iter().map(|t| t.percent).sum());
    let limit = functions.first().map_or(0.0, |t| t.max_overhead);
    let (costs, only) = if begun { ("costs", "from now on counted only") } else { ("would cost", "counted only") };
    let counted = match functions {
        [_] => format!("{} is {only}, which saves {percent_of_all}", names.concat()),
        several => format!(
            "{} of them are {only}, which saves {percent_of_all}; the most frequent are {}",
            several.len(),
            names.join(", ")
        ),
    };
    format!("timing all of the functions {costs} more than {limit} % of one processor (--max-overhead): {counted}")
}

/// Warning of a measurement that costs more than allowed. Counts are exact at any cost, so their pairs are reported, not taken out.
pub(crate) fn too_dear(c: &CostObject, limit: f64) -> String {
    let cost = percent(c.percent);
    format!(
        "the measurement costs {cost} of one processor, more than --max-overhead {limit}; measure fewer functions of {}",
        c.pid
    )
}

/// Warning of a pair that was taken out.
pub(crate) fn taken_out(t: &TakenOutObject) -> String {
    let TakenOutObject { metric, focus, max_overhead, .. } = t;
    let pair = pair(metric, focus);
    if t.own_gs {
        let why = "a library was loaded, or a signal handler was set, beside which woven code must not run (it uses the gs base itself, \
                   by which counters are found, or unwinders may begin at any instruction)";
        return format!("{pair} was taken out of {}: {why}; its value stays as it was", t.pid);
    }
    if t.rewritten {
        let why = "the program has changed the code of a function that ran as a copy";
        return format!("{pair} was taken out of {}: {why}; its value stays as it was, and is not exact", t.pid);
    }
    format!(
        "{pair} was taken out of {}: the measurement would cost more than {max_overhead} % of one processor (--max-overhead), of which \
         this pair would take {} ({} times a second); its value stays as it was",
        t.pid,
        percent(t.percent),
        grouped_u64(t.hits_per_s),
    )
}

/// Warning of further pairs that were taken out together with the named ones.
pub(crate) fn more_taken_out(more: usize) -> String {
    format!("and {} taken out for the same reason", plural(more as u64, "more was", "more were"))
}

/// Warning of an event that shares the processor's counters.
pub(crate) fn counted_in_part(metric: &str, share: f64, scaled: bool) -> String {
    let percent = (share * 100.0).round();
    let what = if scaled { "its value is an estimate for all of it" } else { "--scale estimates the rest" };
    format!(
        "{metric} has been counted in {percent} % of the time so far, because events share the processor's counters; {what}"
    )
}

/// Warning that the machine was suspended, which the clock of timers does not show.
pub(crate) fn slept(ns: u64) -> String {
    let seconds = ns as f64 / 1e9;
    format!(
        "the machine has slept for {seconds:.1} s: times of calls that were in progress then may be wrong; --clock vdso does without that time"
    )
}

/// Failure after the last pair was taken out, so that nothing is measured any more.
pub(crate) fn all_taken_out(t: &TakenOutObject) -> Failure {
    // All pairs together may have cost more than the last one.
    let allow = (t.percent.max(t.max_overhead) * 1.5).ceil();
    let (reason, hint) = match (t.own_gs, t.rewritten) {
        (_, true) => (Reason::Rewritten, "begin anew: functions that the program changes are left out".to_owned()),
        (true, false) => (
            Reason::OwnGs,
            "begin anew: with the library or the handler there, only what it permits is measured, such as calls"
                .to_owned(),
        ),
        (false, false) => {
            (Reason::TooDear, format!("measure what is called less often, or allow it with --max-overhead {allow}"))
        }
    };
    Failure { host: t.host.clone(), pid: Some(t.pid), ..Failure::failed(taken_out(t), hint).because(reason) }
}

/// Line about a removal.
pub(crate) fn removed(r: &RemovedObject) -> String {
    let place = at(r.pid, &r.host);
    if r.text_restored.is_none() {
        format!("{place}: its code has gone with the process\n")
    } else if r.text_restored == Some(true) {
        let held = if r.stopped_ms > 0.0 { format!(", {}", held(r.stopped_ms, r.waited_ms)) } else { String::new() };
        format!("{place}: {GOOD}removed{GOOD:#}{held}; its code is as it was\n")
    } else {
        format!("{place}: {BAD}removed, but its code differs from the original{BAD:#}\n")
    }
}

/// Line about the places in which `detach --all` has looked.
pub(crate) fn looked(looked: &LookedObject) -> String {
    let host = looked.host.as_ref().map(|host| format!(" at {host}")).unwrap_or_default();
    format!("{DIM}looked at all processes{host}, with the journals in {}{DIM:#}\n", looked.state_dir)
}

/// Warning of a change that other programs have made to the code of a process.
pub(crate) fn disturbed(pid: i32, host: &Host, what: &str) -> String {
    format!("{}: {what}", at(pid, host))
}

/// Warning of memory that could not be unmapped yet; `None` if all memory is unmapped, or if the code differs from the original.
pub(crate) fn memory_left(r: &RemovedObject) -> Option<String> {
    if !r.memory_left || r.text_restored == Some(false) {
        return None;
    }
    let why = match r.asleep.as_slice() {
        [] => "the program may still return to it".to_owned(),
        [one] => format!("thread {one} sleeps in the kernel and cannot be stopped"),
        several => {
            let tids: Vec<String> = several.iter().map(ToString::to_string).collect();
            format!("threads {} sleep in the kernel and cannot be stopped", tids.join(", "))
        }
    };
    Some(format!(
        "process {} keeps ingraft's memory, to which nothing leads any more, because {why}; a daemon removes it once that is ruled out, \
         otherwise the next `ingraft` command there or `ingraft detach -p {}` tries to",
        r.pid, r.pid
    ))
}

/// Failure if the code of a process differs from the original after the removal.
pub(crate) fn not_restored(r: &RemovedObject) -> Failure {
    let what = format!("the code of process {} differs from the original after the removal", r.pid);
    let hint = format!(
        "end what else patches it (uprobes, debuggers), then run `ingraft detach -p {}`; if that does not help, restart the process when you can",
        r.pid
    );
    Failure { host: r.host.clone(), pid: Some(r.pid), ..Failure::failed(what, hint) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_api::{NamedFunction, RefusedFunction, WhyNot};
    use ingraft_model::Svma;

    use super::*;
    use crate::fake::metric;

    #[test]
    fn missing_calls_are_told_by_reason() {
        let none = Activations::default();
        assert_eq!(missing(&[("f".to_owned(), none)]), "");
        let f = Activations { left: 1, unrecorded: 200, ..none };
        let g = Activations { unrecorded: 1000, ..none };
        assert_eq!(
            missing(&[("f".to_owned(), f), ("g".to_owned(), g), ("h".to_owned(), none)]),
            "1 call of f ended by an exception, by longjmp or with its thread; its time is not in the table\n\
             1,200 calls of g, f could not be recorded; their times are not in the table\n"
        );
    }

    #[test]
    fn foci_are_readable_as_far_as_commands_read_them_back() {
        for (focus, readable) in [
            ("/Code/m/f(int%2C char),/Process/7", "/Code/m/f(int, char),/Process/7"),
            ("/Code/m/<u8 as A%2FB>::f(u8%2C u8)", "/Code/m/<u8 as A/B>::f(u8, u8)"),
            ("/Code/m/a%2Fb%2Cc", "/Code/m/a%2Fb%2Cc"),
            ("/Code/m/a%2Fb(u8%2C u8)", "/Code/m/a%2Fb(u8, u8)"),
            ("/Code/m/f", "/Code/m/f"),
            ("file /tmp/a%2Cb", "file /tmp/a%2Cb"),
            ("", ""),
        ] {
            assert_eq!(readable_focus(focus), readable);
        }
        assert_eq!(readable_pair("calls@/Code/m/f(int%2C char)"), "calls@/Code/m/f(int, char)");
        assert_eq!(readable_pair("calls"), "calls");
        assert_eq!(last_name("/Code/m/a%2Fb(u8%2C u8)"), "a/b(u8, u8)");
    }

    #[test]
    fn functions_that_are_counted_only_are_told_together() {
        let of = |function: &str, hits_per_s: u64, percent: f64| TakenOutObject {
            host: None,
            pid: 7,
            metric: "latency".to_owned(),
            focus: format!("/Code/m/{function}"),
            time_ns: 1,
            hits_per_s,
            percent,
            max_overhead: 5.0,
            own_gs: false,
            rewritten: false,
        };
        assert_eq!(
            counted_only(&[of("f", 10, 1.0), of("g", 30, 5.0)], false),
            "timing all of the functions would cost more than 5 % of one processor (--max-overhead): \
             2 of them are counted only, which saves 6.0 %; the most frequent are g, f"
        );
        assert_eq!(
            counted_only(&[of("f", 10, 7.0)], true),
            "timing all of the functions costs more than 5 % of one processor (--max-overhead): \
             f is from now on counted only, which saves 7.0 %"
        );
    }

    #[test]
    fn steps_tell_what_is_known() {
        assert_eq!(step("analysing node", None, None), "analysing node");
        assert_eq!(step("analysing node", Some(40), None), "analysing node, 40 %");
        let left = Some(Duration::from_millis(2_100));
        assert_eq!(step("analysing node", Some(40), left), "analysing node, 40 %, about 3 s left");
    }

    #[test]
    fn refusals_begin_with_their_number() {
        let function = |name: &str, offset| {
            let (module, function) = ("m".to_owned(), name.to_owned());
            NamedFunction { module, function, offset: Svma(offset) }
        };
        let refuse = |name: &str, offset| {
            let reason = WhyNot::Told { reason: "too_short".to_owned(), text: "too short".to_owned() };
            RefusedFunction { function: function(name, offset), reason }
        };
        let functions: Vec<RefusedFunction> =
            ["a", "b", "c", "d"].into_iter().zip(1..).map(|(n, at)| refuse(n, at)).collect();
        let all: Vec<Unmeasured<'_>> = functions.iter().map(|refused| Unmeasured { refused, pair: None }).collect();
        let pair = |function| {
            let pair = MetricFocus { metric: "calls".to_owned(), focus: Focus::parse("").expect("a focus") };
            PairInfo { function, ..PairInfo::new(Arc::new(pair), metric("calls")) }
        };
        let pairs: Vec<PairInfo> = (4..=4003).map(|offset| pair(Some(function("f", offset)))).collect();
        assert_eq!(
            refused(&all, &pairs, Format::Table),
            "4 of 4,003 functions are not measured (`ingraft functions` lists them): a, b, c, and 1 other"
        );
        assert_eq!(
            refused(&all[..1], &[], Format::Table),
            "1 function is not measured (`ingraft functions` lists it): a (too short)"
        );
        assert_eq!(
            refused(&all[..2], &[pair(None)], Format::Json),
            "2 functions are not measured (`ingraft functions` lists them): a (too short), b (too short)"
        );
    }

    #[test]
    fn ends_are_told_apart() {
        let ended_as = |status, signal, exec| ended(&EndedObject { host: None, pid: 7, status, signal, exec });
        assert_eq!(ended_as(Some(0), None, false), "process 7 ended\n");
        assert_eq!(ended_as(Some(3), None, false), "process 7 ended with exit status 3\n");
        assert_eq!(ended_as(None, Some(11), false), "process 7 was killed by signal 11\n");
        assert_eq!(ended_as(None, None, false), "process 7 ended\n");
        assert_eq!(ended_as(None, None, true), "process 7 went on as another program (exec)\n");
    }
}
