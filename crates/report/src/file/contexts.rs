//! Conversions of trees of calling contexts from and to their messages.

use ingraft_model::{Bucket, Distribution, Svma};

use super::FileError;
use super::checked::{address, contradiction, distance, index};
use crate::contexts::{
    CallTimes, CallingContext, ContextFunction, ContextKind, ContextProfile, LiveFacts, LockHolder, LockWait,
    ReturnSite, UntimedCalls,
};
use crate::message::{ContextRows, ContextTimes, ContextTree, LiveMemory, TimedFunction, TrackedFunction, WaitForLock};

/// Largest number of contexts in one message, so that messages are small beside the parts in which a daemon sends a profile.
const ROWS: usize = 4096;

/// Number of each kind of contexts in files.
const CALL: u32 = 0;
const TAIL: u32 = 1;
const SIGNAL: u32 = 2;
const RECURSION: u32 = 3;

/// Numbers of holders of locks that are in no context.
const OUTSIDE: u32 = 1;
const NOBODY: u32 = 2;

/// Message about times without a function.
const NO_FUNCTION: &str = "times are of no function";

impl From<&ContextProfile> for ContextTree {
    fn from(tree: &ContextProfile) -> Self {
        let firsts = (0..tree.contexts.len()).step_by(ROWS);
        ContextTree {
            functions: tree.functions.iter().map(TrackedFunction::from).collect(),
            rows: tree.contexts.chunks(ROWS).zip(firsts).map(|(contexts, first)| rows(tree, contexts, first)).collect(),
            metrics: tree.metrics.clone(),
            outside: tree.outside.clone(),
            full: tree.full,
            look_squares: tree.look_squares,
            live: tree.live.map(LiveMemory::from),
            timed: tree.timed.iter().map(TimedFunction::from).collect(),
            times: tree.times.iter().map(ContextTimes::from).collect(),
            waits: tree.holders.iter().map(WaitForLock::from).collect(),
        }
    }
}

impl From<&LockWait> for WaitForLock {
    fn from(LockWait { lock, name, waiter, holder, ns, looks }: &LockWait) -> Self {
        WaitForLock {
            lock: *lock,
            name: name.clone(),
            waiter: *waiter as u64,
            holder: holder.context().map_or(0, |context| context as u64 + 1),
            other: match holder {
                LockHolder::Context(_) | LockHolder::Untold => 0,
                LockHolder::Outside => OUTSIDE,
                LockHolder::Nobody => NOBODY,
            },
            ns: *ns,
            looks: *looks,
        }
    }
}

impl From<&UntimedCalls> for TimedFunction {
    fn from(&UntimedCalls { function, left_by_tail_jump, earlier }: &UntimedCalls) -> Self {
        TimedFunction { function: function as u64, left_by_tail_jump, earlier }
    }
}

impl From<&CallTimes> for ContextTimes {
    fn from(CallTimes { context, function, times }: &CallTimes) -> Self {
        let buckets = || times.buckets.iter();
        ContextTimes {
            context: context.map_or(0, |context| context as u64 + 1),
            function: *function as u64,
            sum: times.sum,
            min: times.min,
            max: times.max,
            own: times.own,
            bucket_first: buckets().map(|bucket| bucket.first).collect(),
            bucket_end: buckets().map(|bucket| bucket.end).collect(),
            bucket_count: buckets().map(|bucket| bucket.count).collect(),
        }
    }
}

impl From<LiveFacts> for LiveMemory {
    fn from(facts: LiveFacts) -> Self {
        let LiveFacts { earlier, lost, unseen, unfreed, unfollowed, left_out } = facts;
        LiveMemory { earlier, lost, unseen, unfreed, unfollowed, left_out }
    }
}

impl From<LiveMemory> for LiveFacts {
    fn from(message: LiveMemory) -> Self {
        let LiveMemory { earlier, lost, unseen, unfreed, unfollowed, left_out } = message;
        LiveFacts { earlier, lost, unseen, unfreed, unfollowed, left_out }
    }
}

impl From<&ContextFunction> for TrackedFunction {
    fn from(function: &ContextFunction) -> Self {
        let ContextFunction { module, name, start, size, left, unseen, unrecorded, left_by_tail_jump } = function;
        TrackedFunction {
            module: *module as u64,
            symbol: name.clone(),
            start: start.0,
            size: *size,
            left: *left,
            unseen: *unseen,
            unrecorded: *unrecorded,
            left_by_tail_jump: *left_by_tail_jump,
        }
    }
}

/// The message of consecutive contexts of a tree. `first` is the index of the first one.
fn rows(tree: &ContextProfile, contexts: &[CallingContext], first: usize) -> ContextRows {
    let mut rows = ContextRows::default();
    for (number, context) in (first..).zip(contexts) {
        rows.parent.push(context.parent.map_or(0, |parent| number.saturating_sub(parent) as u64));
        rows.function.push(context.function as u64);
        rows.kind.push(match context.kind {
            ContextKind::Call => CALL,
            ContextKind::Tail => TAIL,
            ContextKind::Signal => SIGNAL,
            ContextKind::Recursion(target) => {
                rows.target.push(number.saturating_sub(target) as u64);
                RECURSION
            }
        });
        rows.site_module.push(context.site.module.map_or(0, |module| module as u64 + 1));
        rows.site.push(distance(start_of_parent(&tree.contexts, &tree.functions, context.parent), context.site.at.0));
        rows.calls.push(context.calls);
        // A context may lack a value.
        rows.metrics.extend((0..tree.metrics.len()).map(|metric| context.metrics.get(metric).copied().unwrap_or(0)));
    }
    rows
}

/// First byte of the function of a context's parent; 0 without a parent.
fn start_of_parent(contexts: &[CallingContext], functions: &[ContextFunction], parent: Option<usize>) -> u64 {
    let parent = parent.and_then(|parent| contexts.get(parent));
    parent.and_then(|parent| functions.get(parent.function)).map_or(0, |function| function.start.0)
}

/// Converts a tree of contexts from its message, in a profile with this number of modules.
pub(crate) fn tree(message: ContextTree, modules: usize) -> Result<ContextProfile, FileError> {
    let ContextTree { functions, rows, metrics, outside, full, look_squares, live, timed, times, waits } = message;
    let live = live.map(LiveFacts::from);
    if outside.len() != metrics.len() {
        return Err(contradiction("the values outside of all contexts are not those of the metrics"));
    }
    let functions = functions.into_iter().map(|message| function(message, modules));
    let functions: Vec<_> = functions.collect::<Result<_, _>>()?;
    let mut contexts = Vec::new();
    for rows in rows {
        add_rows(&mut contexts, rows, &functions, metrics.len(), modules)?;
    }
    check_recursion(&contexts)?;
    let timed = timed.into_iter().map(|message| timed_calls(message, functions.len())).collect::<Result<_, _>>()?;
    let times = times.into_iter().map(|message| call_times(message, functions.len(), contexts.len()));
    let times = times.collect::<Result<_, _>>()?;
    let holders = waits.into_iter().map(|message| lock_wait(message, contexts.len())).collect::<Result<_, _>>()?;
    Ok(ContextProfile { functions, contexts, metrics, outside, full, look_squares, live, timed, times, holders })
}

/// Converts a wait for a lock from its message, in a tree with this number of contexts.
fn lock_wait(message: WaitForLock, contexts: usize) -> Result<LockWait, FileError> {
    let WaitForLock { lock, name, waiter, holder, other, ns, looks } = message;
    let here = |context: u64| index(context, contexts, "a wait for a lock is in no context");
    let holder = match holder.checked_sub(1) {
        Some(context) => LockHolder::Context(here(context)?),
        None => match other {
            OUTSIDE => LockHolder::Outside,
            NOBODY => LockHolder::Nobody,
            _ => LockHolder::Untold,
        },
    };
    Ok(LockWait { lock, name, waiter: here(waiter)?, holder, ns, looks })
}

/// Converts a function whose calls have times from its message, in a tree with this number of functions.
fn timed_calls(message: TimedFunction, functions: usize) -> Result<UntimedCalls, FileError> {
    let TimedFunction { function, left_by_tail_jump, earlier } = message;
    Ok(UntimedCalls { function: index(function, functions, NO_FUNCTION)?, left_by_tail_jump, earlier })
}

/// Converts times from their message, in a tree with these numbers of functions and contexts.
fn call_times(message: ContextTimes, functions: usize, contexts: usize) -> Result<CallTimes, FileError> {
    let ContextTimes { context, function, sum, min, max, own, bucket_first, bucket_end, bucket_count } = message;
    let context = context.checked_sub(1);
    let context = context.map(|context| index(context, contexts, "times are in no context")).transpose()?;
    let length = bucket_first.len();
    if bucket_end.len() != length || bucket_count.len() != length {
        return Err(contradiction("the lists of buckets have different lengths"));
    }
    let bounds = bucket_first.into_iter().zip(bucket_end);
    let buckets = bounds.zip(bucket_count).map(|((first, end), count)| Bucket { first, end, count });
    let buckets: Vec<Bucket> = buckets.collect();
    if buckets.iter().any(|bucket| bucket.first >= bucket.end || bucket.count == 0) {
        return Err(contradiction("a bucket of times is empty"));
    }
    if !buckets.is_sorted_by(|a, b| (a.first, a.end) < (b.first, b.end)) {
        return Err(contradiction("the buckets of times are not in order"));
    }
    let count = buckets.iter().fold(0, |sum: u64, bucket| sum.saturating_add(bucket.count));
    let times = Distribution { count, sum, min, max, own, squares: None, buckets };
    Ok(CallTimes { context, function: index(function, functions, NO_FUNCTION)?, times })
}

fn function(message: TrackedFunction, modules: usize) -> Result<ContextFunction, FileError> {
    let TrackedFunction { module, symbol, start, size, left, unseen, unrecorded, left_by_tail_jump } = message;
    let module = index(module, modules, "a function with contexts is in no module")?;
    let start = Svma(start);
    Ok(ContextFunction { module, name: symbol, start, size, left, unseen, unrecorded, left_by_tail_jump })
}

/// Adds the contexts of a message to those of the messages before it.
fn add_rows(
    contexts: &mut Vec<CallingContext>,
    rows: ContextRows,
    functions: &[ContextFunction],
    metrics: usize,
    modules: usize,
) -> Result<(), FileError> {
    let length = rows.parent.len();
    let lists = [rows.function.len(), rows.kind.len(), rows.site_module.len(), rows.site.len(), rows.calls.len()];
    let recursions = rows.kind.iter().filter(|kind| **kind == RECURSION).count();
    let values = length.checked_mul(metrics) == Some(rows.metrics.len());
    if lists.iter().any(|other| *other != length) || rows.target.len() != recursions || !values {
        return Err(contradiction("the lists of contexts have different lengths"));
    }
    let mut targets = rows.target.iter();
    let mut values = rows.metrics.into_iter();
    let sites = rows.site_module.iter().zip(&rows.site);
    let ways = rows.parent.iter().zip(&rows.function).zip(&rows.kind);
    for (((parent, function), kind), ((site_module, site), calls)) in ways.zip(sites.zip(&rows.calls)) {
        let number = contexts.len();
        let parent = match *parent {
            0 => None,
            distance => Some(before(number, distance, "the parent of a context is not before it")?),
        };
        let kind = match *kind {
            CALL => ContextKind::Call,
            TAIL => ContextKind::Tail,
            SIGNAL => ContextKind::Signal,
            RECURSION => {
                let distance = targets.next().copied().unwrap_or(0);
                ContextKind::Recursion(before(number, distance, "a recursive call leads to no ancestor")?)
            }
            _ => return Err(contradiction("a context has an unknown kind")),
        };
        let site_module = match site_module.checked_sub(1) {
            None => None,
            Some(module) => Some(index(module, modules, "a call site is in no module")?),
        };
        let at = Svma(address(start_of_parent(contexts, functions, parent), *site));
        contexts.push(CallingContext {
            parent,
            function: index(*function, functions.len(), "a context is of no function")?,
            site: ReturnSite { module: site_module, at },
            kind,
            calls: *calls,
            metrics: values.by_ref().take(metrics).collect(),
        });
    }
    Ok(())
}

/// Index at a distance before another one.
fn before(index: usize, distance: u64, what: &'static str) -> Result<usize, FileError> {
    let distance = usize::try_from(distance).ok().filter(|distance| *distance > 0);
    distance.and_then(|distance| index.checked_sub(distance)).ok_or_else(|| contradiction(what))
}

/// Fails unless each recursive call leads to an ancestor of the same function, and has no children. Parents come before their children.
fn check_recursion(contexts: &[CallingContext]) -> Result<(), FileError> {
    // Numbers in the order of a walk of the tree: the contexts below one have the numbers that follow its own. A search of the ancestors of
    // each context would take too long in a file that is made for that.
    let mut sizes = vec![1_usize; contexts.len()];
    for (index, context) in contexts.iter().enumerate().rev() {
        let size = sizes.get(index).copied().unwrap_or(0);
        if let Some(sum) = context.parent.and_then(|parent| sizes.get_mut(parent)) {
            *sum += size;
        }
    }
    // For each context, its number, and the number of the next child.
    let mut numbers: Vec<(usize, usize)> = Vec::with_capacity(contexts.len());
    let mut next_root = 0;
    for (context, size) in contexts.iter().zip(&sizes) {
        let next = match context.parent.and_then(|parent| numbers.get_mut(parent)) {
            Some((_, next)) => next,
            None => &mut next_root,
        };
        let number = *next;
        *next += size;
        numbers.push((number, number + 1));
    }
    for (context, (number, _)) in contexts.iter().zip(&numbers) {
        let parent = context.parent.and_then(|parent| contexts.get(parent));
        if parent.is_some_and(|parent| matches!(parent.kind, ContextKind::Recursion(_))) {
            return Err(contradiction("a recursive call has children"));
        }
        let ContextKind::Recursion(target) = context.kind else { continue };
        let of_same_function = contexts.get(target).is_some_and(|target| target.function == context.function);
        let below = numbers.get(target).zip(sizes.get(target));
        let is_below = below.is_some_and(|((first, _), size)| (*first..first + size).contains(number));
        if !of_same_function || !is_below {
            return Err(contradiction("a recursive call leads to no ancestor of its function"));
        }
    }
    Ok(())
}
