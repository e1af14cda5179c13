//! Times of calls by calling context.

use ingraft_model::Distribution;
use rustc_hash::FxHashMap;

use super::ContextProfile;

/// Times of the calls of a function in a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// Index of the context; `None` if it is not known.
    pub context: Option<usize>,
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// Times in nanoseconds of the calls that have ended. The smallest and the largest one are exact only if they are alone in their buckets.
    pub times: Distribution,
}

/// A function whose calls have times in each context, and the numbers of those that have none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UntimedCalls {
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// Number of calls that have ended in a jump to another function that could not be followed. They have no times.
    pub left_by_tail_jump: u64,
    /// Number of calls that have ended and had begun before the measurement. They have no times.
    pub earlier: u64,
}

/// Calls of a function in a context, with their times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextLatency<'a> {
    /// Index of the context; `None` if it is not known.
    pub context: Option<usize>,
    /// Index of the function in [`ContextProfile::functions`].
    pub function: usize,
    /// Number of calls, those of recursive calls that lead back to the context included.
    pub calls: u64,
    /// The times; `None` if no call has ended.
    pub times: Option<&'a Distribution>,
}

impl ContextProfile {
    /// The calls of the functions whose calls have times, by context: those with times first, in the order of [`ContextProfile::times`].
    pub fn latencies(&self) -> Vec<ContextLatency<'_>> {
        let mut calls: FxHashMap<usize, u64> = FxHashMap::default();
        for (index, context) in self.contexts.iter().enumerate() {
            if self.timed.iter().any(|timed| timed.function == context.function) {
                let sum = calls.entry(context.back_to().unwrap_or(index)).or_default();
                *sum = sum.saturating_add(context.calls);
            }
        }
        let mut all: Vec<ContextLatency<'_>> = Vec::new();
        for CallTimes { context, function, times } in &self.times {
            // The calls without a known context are at least those that have times.
            let calls = context.map_or(times.count, |context| calls.remove(&context).unwrap_or(0));
            all.push(ContextLatency { context: *context, function: *function, calls, times: Some(times) });
        }
        let mut others: Vec<(usize, u64)> = calls.into_iter().filter(|(_, calls)| *calls > 0).collect();
        others.sort_unstable();
        all.extend(others.into_iter().filter_map(|(context, calls)| {
            let function = self.contexts.get(context)?.function;
            Some(ContextLatency { context: Some(context), function, calls, times: None })
        }));
        all
    }

    /// Adds the times of another profile, whose functions and contexts have these indexes here.
    pub(super) fn add_times(&mut self, other: &ContextProfile, functions: &[usize], contexts: &[usize]) {
        let function = |index: usize| functions.get(index).copied().unwrap_or(usize::MAX);
        for of in &other.timed {
            let of = UntimedCalls { function: function(of.function), ..*of };
            match self.timed.iter_mut().find(|own| own.function == of.function) {
                Some(own) => {
                    own.left_by_tail_jump = own.left_by_tail_jump.saturating_add(of.left_by_tail_jump);
                    own.earlier = own.earlier.saturating_add(of.earlier);
                }
                None => self.timed.push(of),
            }
        }
        let context = |index: usize| contexts.get(index).copied();
        let moved = other.times.iter().map(|of| {
            let (context, function) = (of.context.and_then(context), function(of.function));
            CallTimes { context, function, times: of.times.clone() }
        });
        self.times = together(std::mem::take(&mut self.times).into_iter().chain(moved));
    }
}

/// One element for each function and context, in the order of the first ones.
pub(super) fn together(all: impl Iterator<Item = CallTimes>) -> Vec<CallTimes> {
    let mut sums: Vec<CallTimes> = Vec::new();
    let mut known: FxHashMap<(Option<usize>, usize), usize> = FxHashMap::default();
    for of in all {
        let at = *known.entry((of.context, of.function)).or_insert(sums.len());
        match sums.get_mut(at) {
            Some(sum) => sum.times.merge(&of.times),
            None => sums.push(of),
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Bucket, Svma};

    use super::*;
    use crate::contexts::{CallingContext, ContextFunction, ContextKind, ReturnSite};

    /// `main` calls `load` from two places. `first` is the module of both.
    fn profile(first: usize) -> ContextProfile {
        let function = |name: &str, start| ContextFunction {
            module: first,
            name: name.to_owned(),
            start: Svma(start),
            ..ContextFunction::default()
        };
        let context = |parent, function, site, calls| {
            let site = ReturnSite { module: None, at: Svma(site) };
            CallingContext { parent, function, site, kind: ContextKind::Call, calls, metrics: Vec::new() }
        };
        let times = |context, time| {
            let buckets = vec![Bucket { first: time, end: time + 1, count: 1 }];
            let times =
                Distribution { count: 1, sum: time, min: time, max: time, own: Some(1), squares: None, buckets };
            CallTimes { context, function: 1, times }
        };
        ContextProfile {
            functions: vec![function("main", 0x10), function("load", 0x20)],
            contexts: vec![context(None, 0, 1, 1), context(Some(0), 1, 2, 3), context(Some(0), 1, 3, 4)],
            timed: vec![UntimedCalls { function: 1, left_by_tail_jump: 2, earlier: 1 }],
            times: vec![times(Some(1), 5), times(Some(2), 7), times(None, 9)],
            ..ContextProfile::default()
        }
    }

    fn rows(profile: &ContextProfile) -> Vec<(Option<usize>, u64, Option<u64>)> {
        profile.latencies().iter().map(|of| (of.context, of.calls, of.times.map(|times| times.sum))).collect()
    }

    #[test]
    fn times_of_places_of_a_caller_and_of_profiles_add_up() {
        assert_eq!(rows(&profile(0)), [(Some(1), 3, Some(5)), (Some(2), 4, Some(7)), (None, 1, Some(9))]);
        let by_function = profile(0).by_function();
        assert_eq!(rows(&by_function), [(Some(1), 7, Some(12)), (None, 1, Some(9))]);
        let mut sum = profile(0);
        sum.times.remove(0);
        sum.add(&profile(0), |module| module).expect("a sum");
        assert_eq!(rows(&sum), [(Some(2), 8, Some(14)), (None, 2, Some(18)), (Some(1), 6, Some(5))]);
        assert_eq!(sum.timed, [UntimedCalls { function: 1, left_by_tail_jump: 4, earlier: 2 }]);
        let mut apart = profile(0);
        apart.add(&profile(0), |module| module + 1).expect("a sum");
        assert_eq!((apart.functions.len(), apart.times.len(), apart.timed.len()), (4, 6, 2));
    }
}
