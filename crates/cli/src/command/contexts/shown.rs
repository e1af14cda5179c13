//! The contexts of a process as they are shown: by call site or by function, all of them or those on the way to a value.

use std::borrow::Cow;
use std::collections::BTreeSet;

use ingraft_report::{
    CallingContext, ContextFunction, ContextKind, ContextProfile, ContextValue, LookedTime, ReturnSite, SavedProfile,
};

use super::amounts::{is_whole, title};
use crate::args::TreeArgs;

/// Largest number of contexts of a tree without `--top`.
const ROWS: usize = 200;

/// Choice of the contexts that are shown, and of their form.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ContextLayout {
    /// Whether contexts are told apart by function only.
    pub(crate) by_function: bool,
    /// Whether trees of callers are shown.
    pub(crate) bottom_up: bool,
    /// Whether the shape of the tree is shown.
    pub(crate) stats: bool,
    /// Part of the whole, in percent, below which contexts are hidden.
    pub(crate) least: f64,
    /// Largest number of contexts of a tree.
    pub(crate) top: usize,
    /// Whether recursive calls have contexts of their own.
    pub(crate) full: bool,
    /// Whether only contexts on the way to a value are shown, after the places with the largest values.
    pub(crate) is_view: bool,
    /// The value that decides; `None` for the first metric, or for the calls if there is none.
    pub(crate) value: Option<ContextValue>,
}

impl Default for ContextLayout {
    fn default() -> Self {
        ContextLayout::of_tree(&TreeArgs::default(), None)
    }
}

impl ContextLayout {
    /// The layout of the flags of a tree.
    pub(crate) fn of_tree(args: &TreeArgs, top: Option<usize>) -> Self {
        ContextLayout {
            by_function: args.by_function(),
            bottom_up: args.bottom_up,
            stats: args.stats,
            least: args.least(),
            top: top.unwrap_or(ROWS),
            full: false,
            is_view: false,
            value: None,
        }
    }
}

/// The contexts of a process as they are shown.
pub(crate) struct ShownContexts<'a> {
    pub(super) profile: &'a SavedProfile,
    pub(super) contexts: Cow<'a, ContextProfile>,
    pub(super) layout: ContextLayout,
    /// The value that decides.
    pub(super) value: ContextValue,
    /// Indexes of the metrics that have columns, the one that decides first. The number of looks has one only if it decides.
    pub(super) metrics: Vec<usize>,
    /// The time that looks have told.
    pub(super) looked: Option<LookedTime>,
    /// The functions whose values are too small, because they had no code for a while.
    partial: BTreeSet<usize>,
}

impl<'a> ShownContexts<'a> {
    /// The contexts of a profile; `None` if it has none.
    pub(crate) fn of(profile: &'a SavedProfile, layout: ContextLayout) -> Option<Self> {
        let mut contexts = Cow::Borrowed(profile.contexts.as_ref()?);
        if layout.by_function {
            contexts = Cow::Owned(by_function(&contexts));
        }
        let value = layout.value.unwrap_or(match layout.is_view {
            true => first_positive(&contexts),
            false => contexts.main_value(),
        });
        let looked = contexts.looked_time();
        let mut metrics: Vec<usize> = match layout.value {
            Some(ContextValue::Calls) => Vec::new(),
            Some(ContextValue::Metric(metric)) => vec![metric],
            None => (0..contexts.metrics.len()).filter(|metric| looked.is_none_or(|of| of.looks != *metric)).collect(),
        };
        metrics.sort_by_key(|metric| ContextValue::Metric(*metric) != value);
        if layout.is_view {
            contexts = Cow::Owned(leading(&contexts, &metrics));
        }
        let left_out: BTreeSet<_> = profile.refused.iter().map(|refused| (refused.module, refused.start)).collect();
        let of = |(_, function): &(usize, &ContextFunction)| left_out.contains(&(function.module, function.start));
        let partial = contexts.functions.iter().enumerate().filter(of).map(|(index, _)| index).collect();
        Some(ShownContexts { profile, contexts, layout, value, metrics, looked, partial })
    }

    /// Whether a function had no code for a while, so that its values are too small.
    pub(super) fn is_partial(&self, function: usize) -> bool {
        self.partial.contains(&function)
    }

    /// The name of the value that decides.
    pub(super) fn value_name(&self) -> &str {
        self.contexts.value_name(self.value)
    }

    /// The time of looks if it is the value; then its shares have errors.
    pub(super) fn looked_as(&self, of: ContextValue) -> Option<LookedTime> {
        self.looked.filter(|looked| of == ContextValue::Metric(looked.time))
    }

    /// The name of a metric.
    pub(super) fn metric_name(&self, metric: usize) -> &str {
        self.contexts.value_name(ContextValue::Metric(metric))
    }

    /// The title of a value by its name: whether it is exact, and the metric.
    pub(super) fn title(&self, name: &str) -> String {
        if is_whole(&self.contexts, name) { title(name) } else { format!("≈ {}", title(name)) }
    }

    /// The sum of a value over all contexts, and what is outside of them.
    pub(super) fn whole(&self, of: ContextValue) -> i64 {
        let inside = self.contexts.values(of).into_iter().fold(0, i64::saturating_add);
        inside.saturating_add(self.outside(of))
    }

    /// The part of a value outside of all contexts.
    pub(super) fn outside(&self, of: ContextValue) -> i64 {
        self.contexts.value_outside(of).unwrap_or(0)
    }

    /// The value below which a context is hidden, with all below it.
    pub(super) fn least(&self, whole: i64) -> i64 {
        (whole.max(0) as f64 * self.layout.least / 100.0).ceil() as i64
    }
}

/// The contexts without their call sites, told apart by function only.
pub(crate) fn by_function(contexts: &ContextProfile) -> ContextProfile {
    let mut merged = contexts.by_function();
    merged.contexts.iter_mut().for_each(|context| context.site = ReturnSite::default());
    merged
}

/// Leaves out the call sites outside of all modules: their addresses are different ones in another process of the program.
pub(crate) fn leave_addresses(profile: &mut SavedProfile) {
    let contexts = profile.contexts.iter_mut().flat_map(|contexts| &mut contexts.contexts);
    contexts.filter(|context| context.site.module.is_none()).for_each(|context| context.site = ReturnSite::default());
}

/// The first metric that contexts have, or the first one of all.
fn first_positive(contexts: &ContextProfile) -> ContextValue {
    let mut metrics = (0..contexts.metrics.len()).map(ContextValue::Metric);
    let has = |of: &ContextValue| {
        contexts.values(*of).iter().any(|value| *value > 0)
            || contexts.value_outside(*of).is_some_and(|value| value > 0)
    };
    metrics.find(has).unwrap_or(contexts.main_value())
}

/// The contexts that have a value of one of these metrics, those that wait for locks or hold them, and those above them.
fn leading(contexts: &ContextProfile, metrics: &[usize]) -> ContextProfile {
    let has = |context: &CallingContext| {
        metrics.iter().any(|metric| context.metrics.get(*metric).is_some_and(|value| *value != 0))
    };
    let mut leads: Vec<bool> = contexts.contexts.iter().map(has).collect();
    for wait in &contexts.holders {
        for context in std::iter::once(wait.waiter).chain(wait.holder.context()) {
            leads.get_mut(context).into_iter().for_each(|leads| *leads = true);
        }
    }
    for (index, context) in contexts.contexts.iter().enumerate().rev() {
        let is_needed = leads.get(index).copied().unwrap_or(false);
        if let Some(parent) = context.parent.and_then(|parent| leads.get_mut(parent)) {
            *parent |= is_needed;
        }
    }
    // The new index of each context; none of one that is left out.
    let mut places = Vec::with_capacity(leads.len());
    let mut kept: Vec<CallingContext> = Vec::new();
    for (context, leads) in contexts.contexts.iter().zip(leads) {
        let new = |index: usize| places.get(index).copied().flatten();
        let kind = match context.kind {
            ContextKind::Recursion(target) => new(target).map(ContextKind::Recursion),
            kind @ (ContextKind::Call | ContextKind::Tail | ContextKind::Signal) => Some(kind),
        };
        let context = kind.filter(|_| leads).map(|kind| {
            let parent = context.parent.and_then(new);
            CallingContext { parent, kind, metrics: context.metrics.clone(), ..*context }
        });
        places.push(context.is_some().then_some(kept.len()));
        kept.extend(context);
    }
    let (functions, metrics, outside) =
        (contexts.functions.clone(), contexts.metrics.clone(), contexts.outside.clone());
    let (timed, times) = (Vec::new(), Vec::new());
    let moved = contexts.holders.iter().filter_map(|wait| wait.moved(|index| places.get(index).copied().flatten()));
    let holders = moved.collect();
    ContextProfile { functions, contexts: kept, metrics, outside, timed, times, holders, ..*contexts }
}
