//! The calling contexts of a process: the tree of callers and callees, with the number of calls in each context and the values of metrics (Ammons,
//! Ball and Larus, "Exploiting Hardware Performance Counters with Flow and Context Sensitive Profiling", section 4).

mod callers;
mod diff;
mod holders;
mod latencies;
mod looks;
mod merge;
mod statistics;
#[cfg(test)]
pub(crate) mod tests;
mod totals;

use ingraft_model::Svma;
use rustc_hash::FxHashMap;

pub use callers::CallerNode;
pub use diff::{ChangedValue, ContextChange, ContextValues, context_diff};
pub use holders::{LockHolder, LockWait};
pub use latencies::{CallTimes, ContextLatency, UntimedCalls};
pub use looks::LookedTime;
pub use statistics::ContextStatistics;
pub use totals::FunctionTotal;
pub(crate) use totals::TreeStep;

/// Calls by calling context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextProfile {
    /// The functions whose calls are told apart by context, those without a call too.
    pub functions: Vec<ContextFunction>,
    /// The contexts. A parent comes before its children.
    pub contexts: Vec<CallingContext>,
    /// Names of the metrics, such as `wall_ns`. The unit is the end of the name: `ns` or `bytes`.
    pub metrics: Vec<String>,
    /// Values of the metrics outside of all contexts, in the order of `metrics`.
    pub outside: Vec<i64>,
    /// Number of calls for whose contexts there was no room. They are in no context; their callees are in the contexts of their callers.
    pub full: u64,
    /// Sum of the squares of the times that looks at contexts stand for, in square microseconds; 0 without looks.
    pub look_squares: u64,
    /// Numbers of what live memory lacks; `None` without such a metric.
    pub live: Option<LiveFacts>,
    /// Functions whose calls have times in each context.
    pub timed: Vec<UntimedCalls>,
    /// Times of their calls, one element for each function and context.
    pub times: Vec<CallTimes>,
    /// Waits for locks as looks have seen them, those with the most time first; empty without the metric `lock_wait_ns`.
    pub holders: Vec<LockWait>,
}

/// Numbers that tell whether live memory is told in full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveFacts {
    /// Number of blocks that were freed and whose allocation was not seen, because it was before the measurement.
    pub earlier: u64,
    /// Number of allocations and frees that were lost, because a buffer was full.
    pub lost: u64,
    /// Number of calls of functions that allocate or free whose beginning or end was not seen.
    pub unseen: u64,
    /// Number of blocks whose address was allocated again although nothing was seen to free them.
    pub unfreed: u64,
    /// Number of blocks that were not followed, because there were too many.
    pub unfollowed: u64,
    /// Number of functions that allocate or free and that are left out.
    pub left_out: u64,
}

impl LiveFacts {
    /// Whether the values are exact.
    pub fn is_exact(&self) -> bool {
        let LiveFacts { earlier: _, lost, unseen, unfreed, unfollowed, left_out } = *self;
        [lost, unseen, unfreed, unfollowed, left_out].iter().all(|number| *number == 0)
    }

    /// The sums.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        LiveFacts {
            earlier: self.earlier.saturating_add(other.earlier),
            lost: self.lost.saturating_add(other.lost),
            unseen: self.unseen.saturating_add(other.unseen),
            unfreed: self.unfreed.saturating_add(other.unfreed),
            unfollowed: self.unfollowed.saturating_add(other.unfollowed),
            left_out: self.left_out.max(other.left_out),
        }
    }
}

/// A function whose calls are told apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextFunction {
    /// Index of its module in the profile.
    pub module: usize,
    /// Name as the symbol table has it.
    pub name: String,
    /// Address of the first byte, as in the file.
    pub start: Svma,
    /// Length in bytes.
    pub size: u64,
    /// Number of calls that have ended without an exit: by an exception, by longjmp, or with their threads.
    pub left: u64,
    /// Number of exits of calls whose beginning was not seen.
    pub unseen: u64,
    /// Number of calls without a context, because their thread had too many open calls, or no memory of its own.
    pub unrecorded: u64,
    /// Number of calls that have ended in a jump to a function that could not be followed. What is called there is in the contexts of the callers.
    pub left_by_tail_jump: u64,
}

/// A function in a calling context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallingContext {
    /// Index of the context of the call that was open when it was called; `None` if there was none.
    pub parent: Option<usize>,
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// The return address of the call.
    pub site: ReturnSite,
    /// The way in which control came here.
    pub kind: ContextKind,
    /// Number of calls in this context that began during the measurement.
    pub calls: u64,
    /// Values of the metrics in this context alone, in the order of [`ContextProfile::metrics`]. With a recursion, those of the calls are in the
    /// context that it leads back to.
    pub metrics: Vec<i64>,
}

/// A return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReturnSite {
    /// Index of the module in the profile; `None` outside of all modules.
    pub module: Option<usize>,
    /// The address, as in the module's file; outside of all modules, as in the process.
    pub at: Svma,
}

/// The way in which control comes to a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContextKind {
    /// By a call.
    #[default]
    Call,
    /// By a tail jump of the parent.
    Tail,
    /// By a signal that has interrupted the parent.
    Signal,
    /// By a recursive call. What is called from there is in the context with this index, an ancestor of the same function. This context has no
    /// children.
    Recursion(usize),
}

/// The value of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextValue {
    /// The calls.
    Calls,
    /// The metric with this index in [`ContextProfile::metrics`].
    Metric(usize),
}

/// Name of the calls among the values of contexts.
const CALLS: &str = "calls";

/// Unit of a value of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContextUnit {
    /// A number of calls or events.
    #[default]
    Count,
    /// Nanoseconds.
    Nanoseconds,
    /// Bytes.
    Bytes,
}

impl ContextUnit {
    /// The unit of the value with this name, which is its end.
    pub fn of(name: &str) -> Self {
        match name.rsplit('_').next() {
            Some("ns") => ContextUnit::Nanoseconds,
            Some("bytes") => ContextUnit::Bytes,
            _ => ContextUnit::Count,
        }
    }

    /// Symbol of the unit; empty for numbers.
    pub fn symbol(self) -> &'static str {
        match self {
            ContextUnit::Count => "",
            ContextUnit::Nanoseconds => "ns",
            ContextUnit::Bytes => "bytes",
        }
    }
}

impl CallingContext {
    /// Index of the context to which a recursive call leads back; `None` if this is no such call.
    pub fn back_to(&self) -> Option<usize> {
        match self.kind {
            ContextKind::Recursion(target) => Some(target),
            ContextKind::Call | ContextKind::Tail | ContextKind::Signal => None,
        }
    }
}

impl ContextProfile {
    /// The value that is of most interest: the first metric, or the calls if there is no metric.
    pub fn main_value(&self) -> ContextValue {
        if self.metrics.is_empty() { ContextValue::Calls } else { ContextValue::Metric(0) }
    }

    /// The value with this name: `calls` or a metric. `None` if the profile does not have it.
    pub fn value_named(&self, name: &str) -> Option<ContextValue> {
        let metric = self.metrics.iter().position(|metric| metric == name).map(ContextValue::Metric);
        metric.or_else(|| (name == CALLS).then_some(ContextValue::Calls))
    }

    /// Name of a value: `calls`, or that of the metric.
    pub fn value_name(&self, of: ContextValue) -> &str {
        match of {
            ContextValue::Calls => CALLS,
            ContextValue::Metric(metric) => self.metrics.get(metric).map_or("", String::as_str),
        }
    }

    /// The value outside of all contexts; `None` for the calls.
    pub fn value_outside(&self, of: ContextValue) -> Option<i64> {
        match of {
            ContextValue::Calls => None,
            ContextValue::Metric(metric) => self.outside.get(metric).copied(),
        }
    }

    /// The values of the contexts alone, in their order.
    pub fn values(&self, of: ContextValue) -> Vec<i64> {
        let value = |context: &CallingContext| match of {
            ContextValue::Calls => i64::try_from(context.calls).unwrap_or(i64::MAX),
            ContextValue::Metric(metric) => context.metrics.get(metric).copied().unwrap_or(0),
        };
        self.contexts.iter().map(value).collect()
    }

    /// The values of the contexts with all contexts below them, in their order.
    pub fn inclusive(&self, of: ContextValue) -> Vec<i64> {
        let mut values = self.values(of);
        for (index, context) in self.contexts.iter().enumerate().rev() {
            let below = values.get(index).copied().unwrap_or(0);
            if let Some(value) = context.parent.and_then(|parent| values.get_mut(parent)) {
                *value = value.saturating_add(below);
            }
        }
        values
    }

    /// The number of contexts from a root to each context, in the order of the contexts; 1 for a root.
    pub fn depths(&self) -> Vec<usize> {
        let mut depths = Vec::with_capacity(self.contexts.len());
        for context in &self.contexts {
            let above = context.parent.and_then(|parent| depths.get(parent)).copied().unwrap_or(0);
            depths.push(above + 1);
        }
        depths
    }

    /// The contexts below each context.
    pub fn children(&self) -> ContextChildren {
        let contexts = self.contexts.iter().enumerate();
        let mut of: Vec<_> = contexts.map(|(index, context)| (context.parent, index)).collect();
        of.sort_unstable();
        ContextChildren(of)
    }

    /// The same tree without call sites: contexts of one function are one context if they have one parent and came about in the same way. The
    /// call site of a context is that of the first of its contexts.
    pub fn by_function(&self) -> ContextProfile {
        let mut contexts: Vec<CallingContext> = Vec::new();
        let mut known = FxHashMap::default();
        // The new index of each context.
        let mut mapped: Vec<usize> = Vec::with_capacity(self.contexts.len());
        for context in &self.contexts {
            let new = |index: usize| mapped.get(index).copied().unwrap_or(usize::MAX);
            let parent = context.parent.map(new);
            let kind = match context.kind {
                ContextKind::Recursion(target) => ContextKind::Recursion(new(target)),
                kind @ (ContextKind::Call | ContextKind::Tail | ContextKind::Signal) => kind,
            };
            let number = *known.entry((parent, context.function, kind)).or_insert_with(|| {
                let (calls, metrics) = (0, vec![0; self.metrics.len()]);
                contexts.push(CallingContext { parent, kind, calls, metrics, ..*context });
                contexts.len() - 1
            });
            mapped.push(number);
            let Some(sum) = contexts.get_mut(number) else { continue };
            sum.calls = sum.calls.saturating_add(context.calls);
            for (sum, value) in sum.metrics.iter_mut().zip(&context.metrics) {
                *sum = sum.saturating_add(*value);
            }
        }
        let (functions, metrics, outside) = (self.functions.clone(), self.metrics.clone(), self.outside.clone());
        let times = self.times.iter().map(|of| {
            let context = of.context.and_then(|context| mapped.get(context).copied());
            CallTimes { context, ..of.clone() }
        });
        let (timed, times) = (self.timed.clone(), latencies::together(times));
        let waits = self.holders.iter().filter_map(|wait| wait.moved(|index| mapped.get(index).copied()));
        let holders = holders::together(waits);
        ContextProfile { functions, contexts, metrics, outside, timed, times, holders, ..*self }
    }

    /// The contexts that most of the value comes from, by their indexes: the root with the largest inclusive value, and below each context the
    /// one with the largest inclusive value, as long as it has at least half of the value of its parent. Empty if no root has a positive value.
    pub fn hot_path(&self, of: ContextValue) -> Vec<usize> {
        let (values, children) = (self.inclusive(of), self.children());
        let value = |index: usize| values.get(index).copied().unwrap_or(0);
        let (mut path, mut parent, mut least) = (Vec::new(), None, 1);
        loop {
            // The first one of several with the same value.
            let hottest = children.of(parent).min_by_key(|child| std::cmp::Reverse(value(*child)));
            let Some(hottest) = hottest.filter(|child| value(*child) >= least) else { return path };
            path.push(hottest);
            parent = Some(hottest);
            least = (value(hottest) / 2 + value(hottest) % 2).max(1);
        }
    }
}

/// The contexts below each context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextChildren(Vec<(Option<usize>, usize)>);

impl ContextChildren {
    /// The children of a context, or the roots of the tree, by their indexes.
    pub fn of(&self, parent: Option<usize>) -> impl Iterator<Item = usize> + Clone {
        let first = self.0.partition_point(|(of, _)| *of < parent);
        let of_parent = self.0.iter().skip(first).take_while(move |(of, _)| *of == parent);
        of_parent.map(|(_, child)| *child)
    }
}
