//! Sums of trees of contexts. Contexts are the same if their paths are: the functions, call sites and kinds of all contexts from a root on.

use ingraft_model::Svma;
use rustc_hash::FxHashMap;

use super::{CallingContext, ContextFunction, ContextKind, ContextProfile, ReturnSite};
use crate::merge::MergeError;

impl ContextProfile {
    /// Adds the calls and metrics of another tree. `module` maps an index of a module in the other tree to one in this tree. Returns the index in
    /// this tree of each context of the other one. Fails, and leaves an incomplete sum, if the trees have different metrics or a sum is too large.
    pub(crate) fn add(
        &mut self,
        other: &ContextProfile,
        module: impl Fn(usize) -> usize,
    ) -> Result<Vec<usize>, MergeError> {
        let (functions, contexts) = self.join(other, module)?;
        for (function, number) in other.functions.iter().zip(&functions) {
            let Some(sum) = self.functions.get_mut(*number) else { continue };
            let too_large = || MergeError::TooLarge { function: function.name.clone() };
            sum.left = sum.left.checked_add(function.left).ok_or_else(too_large)?;
            sum.unseen = sum.unseen.checked_add(function.unseen).ok_or_else(too_large)?;
            sum.unrecorded = sum.unrecorded.checked_add(function.unrecorded).ok_or_else(too_large)?;
            let jumped = sum.left_by_tail_jump.checked_add(function.left_by_tail_jump);
            sum.left_by_tail_jump = jumped.ok_or_else(too_large)?;
        }
        for (context, number) in other.contexts.iter().zip(&contexts) {
            let Some(sum) = self.contexts.get_mut(*number) else { continue };
            let name = || other.functions.get(context.function).map(|function| function.name.clone());
            let too_large = || MergeError::TooLarge { function: name().unwrap_or_default() };
            sum.calls = sum.calls.checked_add(context.calls).ok_or_else(too_large)?;
            for (sum, value) in sum.metrics.iter_mut().zip(&context.metrics) {
                *sum = sum.checked_add(*value).ok_or_else(too_large)?;
            }
        }
        for ((sum, value), name) in self.outside.iter_mut().zip(&other.outside).zip(&self.metrics) {
            let outside = || MergeError::TooLarge { function: format!("{name} outside of all contexts") };
            *sum = sum.checked_add(*value).ok_or_else(outside)?;
        }
        self.full = self.full.saturating_add(other.full);
        self.look_squares = self.look_squares.saturating_add(other.look_squares);
        self.live = match (self.live, other.live) {
            (Some(one), Some(other)) => Some(one.plus(other)),
            (one, other) => one.or(other),
        };
        self.add_times(other, &functions, &contexts);
        self.add_holders(other, &contexts);
        Ok(contexts)
    }

    /// Adds the functions and contexts of another tree that this one lacks, without any values. Returns the index in this tree of each function
    /// and of each context of the other tree. Fails if the trees have different metrics.
    pub(super) fn join(
        &mut self,
        other: &ContextProfile,
        module: impl Fn(usize) -> usize,
    ) -> Result<(Vec<usize>, Vec<usize>), MergeError> {
        if self.metrics != other.metrics {
            let (one, other) = (self.metrics.join(", "), other.metrics.join(", "));
            return Err(MergeError::OtherMetrics { one, other });
        }
        let keys = self.functions.iter().enumerate().map(|(number, f)| ((f.module, f.start), number));
        let mut known: FxHashMap<(usize, Svma), usize> = keys.collect();
        let mut functions = Vec::with_capacity(other.functions.len());
        for function in &other.functions {
            let module = module(function.module);
            let number = *known.entry((module, function.start)).or_insert_with(|| {
                let name = function.name.clone();
                let (left, unseen, unrecorded, left_by_tail_jump) = (0, 0, 0, 0);
                let new = ContextFunction { module, name, left, unseen, unrecorded, left_by_tail_jump, ..*function };
                self.functions.push(new);
                self.functions.len() - 1
            });
            functions.push(number);
        }
        let key = |context: &CallingContext| (context.parent, context.function, context.site, context.kind);
        let mut known: FxHashMap<_, usize> =
            self.contexts.iter().enumerate().map(|(number, context)| (key(context), number)).collect();
        let mut contexts: Vec<usize> = Vec::with_capacity(other.contexts.len());
        for context in &other.contexts {
            let new = |index: usize| contexts.get(index).copied().unwrap_or(usize::MAX);
            let kind = match context.kind {
                ContextKind::Recursion(target) => ContextKind::Recursion(new(target)),
                kind @ (ContextKind::Call | ContextKind::Tail | ContextKind::Signal) => kind,
            };
            let joined = CallingContext {
                parent: context.parent.map(new),
                function: functions.get(context.function).copied().unwrap_or(usize::MAX),
                site: ReturnSite { module: context.site.module.map(&module), at: context.site.at },
                kind,
                calls: 0,
                metrics: vec![0; self.metrics.len()],
            };
            let number = *known.entry(key(&joined)).or_insert_with(|| {
                self.contexts.push(joined);
                self.contexts.len() - 1
            });
            contexts.push(number);
        }
        Ok((functions, contexts))
    }
}
