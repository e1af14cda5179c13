//! Lines below a tree of contexts: its size, and what it lacks.

use ingraft_report::{ContextFunction, ContextStatistics, LiveFacts, LookedTime};

use super::amounts::{is_clocked, is_executed};
use super::holders;
use super::names::ContextNames;
use super::shown::ShownContexts;
use crate::command::report::tables::shown as shown_name;
use crate::output::number::{grouped_u64, plural};
use crate::output::{DIM, WARN, abbreviated};

/// Number of functions that are named in a line.
const NAMED: usize = 5;
/// Name of the time in functions that may wait.
const WAIT: &str = "wait_ns";

/// The lines.
pub(super) fn text(shown: &ShownContexts<'_>, names: &ContextNames<'_>) -> String {
    let statistics = shown.contexts.statistics();
    let mut text = format!("{}\n", size(shown, &statistics));
    if shown.layout.stats {
        text += &format!("{}\n", shape(&statistics));
    }
    for line in lacks(shown, names) {
        text += &format!("{WARN}{line}{WARN:#}\n");
    }
    for line in facts(shown, names) {
        text += &format!("{DIM}{line}{DIM:#}\n");
    }
    text
}

/// The numbers of contexts, functions and recursions, and the height.
fn size(shown: &ShownContexts<'_>, statistics: &ContextStatistics) -> String {
    let mut with_context: Vec<usize> = shown.contexts.contexts.iter().map(|context| context.function).collect();
    with_context.sort_unstable();
    with_context.dedup();
    let all = shown.contexts.functions.len() as u64;
    let functions = match with_context.len() as u64 {
        some if some > 0 && some < all => format!("{} of {}", grouped_u64(some), plural(all, "function", "functions")),
        _ => plural(all, "function", "functions"),
    };
    if shown.contexts.contexts.is_empty() {
        return match shown.layout.is_view {
            true => format!("nothing to show: no call of {functions} has led to {}", nothing(shown.value_name())),
            false => format!("no call of {functions}"),
        };
    }
    let recursions = match statistics.back_edges {
        0 => String::new(),
        number => format!(", {}", plural(number, "recursion", "recursions")),
    };
    let contexts = plural(statistics.nodes, "context", "contexts");
    let leading = if shown.layout.is_view { " on the way to a value" } else { "" };
    format!("{contexts}{leading} of {functions}{recursions}, height {}", grouped_u64(statistics.height))
}

/// The name of what a view has searched in vain, by the name of its value.
fn nothing(value: &str) -> &'static str {
    match value {
        "lock_wait_ns" => "a wait for a lock",
        WAIT => "a wait",
        "live_bytes" | "allocated_bytes" | "live_blocks" => "an allocation",
        _ => "a value",
    }
}

/// The shape of the tree.
fn shape(statistics: &ContextStatistics) -> String {
    let ContextStatistics { degree, leaf_depth, replication, call_sites, single_sites, .. } = statistics;
    let sites = plural(*call_sites, "call site", "call sites");
    format!(
        "{degree:.1} contexts below one that calls, leaves at a depth of {leaf_depth:.1}, at most {} of one function; {sites}, {} of them in \
         one context only",
        plural(*replication, "context", "contexts"),
        grouped_u64(*single_sites),
    )
}

/// Lines about calls without a context.
fn lacks(shown: &ShownContexts<'_>, names: &ContextNames<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    if shown.looked.is_some_and(|looked| looked.count <= 0) {
        lines.push("there was no look at a thread in measured code, so times are missing".to_owned());
    }
    if shown.contexts.full > 0 {
        let what = plural(shown.contexts.full, "call has", "calls have");
        lines.push(format!(
            "{what} no context, because there was no room for more: the callees are in the contexts of the callers"
        ));
    }
    if let Some((sum, functions)) = sum(shown, names, |function| function.unrecorded) {
        let what = plural(sum, "call has", "calls have");
        lines.push(format!(
            "{what} no context, because too many calls were open in their threads, or because their threads had no memory of their own: {functions}"
        ));
    }
    lines.extend(shown.contexts.live.into_iter().flat_map(live_lacks));
    lines
}

/// Lines about what values of live memory lack.
fn live_lacks(live: LiveFacts) -> Vec<String> {
    let LiveFacts { earlier: _, lost, unseen, unfreed, unfollowed, left_out } = live;
    let mut lines = Vec::new();
    let mut add = |number: u64, (one, several): (&str, &str), rest: &str| {
        if number > 0 {
            lines.push(format!("live memory is not exact: {} {rest}", plural(number, one, several)));
        }
    };
    let functions = ("function that allocates or frees is", "functions that allocate or free are");
    add(left_out, functions, "left out; a larger --max-overhead may permit them");
    add(lost, ("record was", "records were"), "lost, because threads allocate and free faster than the engine follows");
    add(unseen, ("call", "calls"), "that allocate or free were not seen from their beginning to their end");
    add(unfreed, ("block was", "blocks were"), "allocated again although nothing was seen to free them");
    add(unfollowed, ("block was", "blocks were"), "not followed, because there were too many");
    lines
}

/// Lines about calls that did not begin or end as usual, and about functions that are left out.
fn facts(shown: &ShownContexts<'_>, names: &ContextNames<'_>) -> Vec<String> {
    let mut lines: Vec<String> = shown.looked.iter().filter(|looked| looked.count > 0).flat_map(looks).collect();
    if shown.layout.is_view && shown.value_name() == WAIT {
        lines.push(
            "WAIT is the whole time in functions that may wait, also what they take of a processor; `ingraft hot` tells these apart".to_owned(),
        );
    }
    let untold = holders::untold(&shown.contexts);
    if !untold.is_empty() {
        let named = untold.iter().take(NAMED).map(|function| names.function(*function));
        let functions = list(named.collect(), untold.len());
        lines.push(format!(
            "only mutexes and read-write locks of pthreads tell who holds them, and not the locks that these functions wait for: {functions}"
        ));
    }
    if let Some((sum, functions)) = sum(shown, names, |function| function.left) {
        let what = plural(sum, "call has", "calls have");
        let has = |is: fn(&str) -> bool| shown.contexts.metrics.iter().any(|metric| is(metric));
        let mut lacks = String::new();
        if has(is_executed) {
            lacks += "; what these have executed since their last paths began is missing";
        }
        if has(is_clocked) && shown.looked.is_none() {
            lacks += "; their own times count for the calls around them that have returned";
        }
        lines.push(format!(
            "{what} ended without a return, by an exception, by longjmp, or with the thread: {functions}{lacks}"
        ));
    }
    if let Some((sum, functions)) = sum(shown, names, |function| function.left_by_tail_jump) {
        let what = plural(sum, "call has", "calls have");
        lines.push(format!(
            "{what} ended in a jump to a function that could not be followed; what is called there is in the contexts of the callers: {functions}"
        ));
    }
    if let Some((sum, functions)) = sum(shown, names, |function| function.unseen) {
        let what = plural(sum, "call has", "calls have");
        lines.push(format!("{what} returned whose beginning was not seen: {functions}"));
    }
    if let Some(earlier) = shown.contexts.live.map(|live| live.earlier).filter(|earlier| *earlier > 0) {
        let what = plural(earlier, "block was", "blocks were");
        lines.push(format!("{what} freed whose allocation was not seen: most are from before the measurement"));
    }
    let refused = &shown.profile.refused;
    if !refused.is_empty() {
        let named = refused.iter().take(NAMED).map(|function| {
            let module = names.module(Some(function.module));
            format!("{module}:{} ({})", shown_name(&function.name, function.start), function.why)
        });
        if shown.contexts.contexts.iter().any(|context| context.calls > 0 && shown.is_partial(context.function)) {
            lines.push(
                "≥: the code of the function was taken out before the end, so later calls are missing".to_owned(),
            );
        }
        let functions = plural(refused.len() as u64, "function is", "functions are");
        lines.push(format!("{functions} left out: {}", list(named.collect(), refused.len())));
    }
    lines.iter().map(|line| abbreviated(line).chars().map(|c| if c.is_control() { '?' } else { c }).collect()).collect()
}

/// Lines about times that looks have told.
fn looks(looked: &LookedTime) -> [String; 2] {
    let looks = plural(looked.count.unsigned_abs(), "look", "looks");
    let effective = looked.effective.round() as u64;
    let late = match effective {
        most if most as f64 > 0.9 * looked.count as f64 => String::new(),
        few => format!(" (some came late, so only as exact as {})", grouped_u64(few)),
    };
    [
        format!("times are those of {looks}{late} at threads that run or wait, ± one standard error of a share"),
        "a thread is looked at from its first measured call on; calls that began earlier and have no context are outside".to_owned(),
    ]
}

/// The sum of a number over all functions, and the functions with the largest ones; `None` if it is 0.
fn sum(
    shown: &ShownContexts<'_>,
    names: &ContextNames<'_>,
    of: impl Fn(&ContextFunction) -> u64,
) -> Option<(u64, String)> {
    let numbers = shown.contexts.functions.iter().map(of).enumerate();
    let mut found: Vec<(usize, u64)> = numbers.filter(|(_, number)| *number > 0).collect();
    found.sort_by_key(|(function, number)| (std::cmp::Reverse(*number), *function));
    let sum = found.iter().fold(0, |sum: u64, (_, number)| sum.saturating_add(*number));
    let named = found.iter().take(NAMED);
    let named = named.map(|(function, number)| format!("{} ({})", names.function(*function), grouped_u64(*number)));
    (sum > 0).then(|| (sum, list(named.collect(), found.len())))
}

/// Names with commas between them, and a sign for more.
fn list(mut named: Vec<String>, all: usize) -> String {
    named.extend((all > named.len()).then(|| "…".to_owned()));
    named.join(", ")
}
