//! Numbers of samples by the whole chain of calls: a tree of callers and callees.

use ingraft_model::FunctionId;
use rustc_hash::{FxHashMap, FxHashSet};

use super::compiled::compiled;
use super::stacks::NAMES_MAX;
use super::taking::SampledStack;
use super::tally::{FramePlace, call_name, most_first};
use crate::api::{NamedFunction, SampledCall};

/// Largest number of calls of a reading. The samples of further ones count as those of their callers.
const CALLS_MAX: usize = 1 << 15;

/// A call on the stacks of samples.
#[derive(Clone, Debug)]
struct TalliedCall {
    caller: Option<usize>,
    /// Place of the call; `None` for callers that are not known.
    place: Option<FramePlace>,
    own: u64,
    kernel: u64,
    /// Samples of `own` by system call.
    waits: FxHashMap<i64, u64>,
}

/// The samples of a reading as a tree.
#[derive(Debug, Default)]
pub(super) struct CallTally {
    /// The functions of which a stack must have one; `None` if all stacks count.
    wanted: Option<FxHashSet<FunctionId>>,
    /// A caller comes before those that it has called.
    calls: Vec<TalliedCall>,
    known: FxHashMap<(Option<usize>, Option<FramePlace>), usize>,
}

impl CallTally {
    /// No samples. Stacks count that have one of these functions; if there is no list, all.
    pub fn new(wanted: Option<FxHashSet<FunctionId>>) -> Self {
        CallTally { wanted, ..CallTally::default() }
    }

    /// Adds a sample with the places of its frames, innermost first.
    pub fn add(&mut self, stack: &SampledStack, places: &[FramePlace]) {
        let is_wanted = |place: &FramePlace| match (place, &self.wanted) {
            (FramePlace::Function(function), Some(wanted)) => wanted.contains(function),
            (FramePlace::Compiled(_) | FramePlace::Elsewhere(_), Some(_)) => false,
            (_, None) => true,
        };
        if !places.iter().any(is_wanted) && self.wanted.is_some() {
            return;
        }
        let registers = [FramePlace::Elsewhere("registers not known".into())];
        let places = if places.is_empty() { &registers } else { places };
        let mut at = (!stack.whole).then(|| self.call(None, None));
        let mut before: Option<&FramePlace> = None;
        for place in places.iter().rev() {
            // Code without functions has as many frames as its generator likes.
            let goes_on = matches!(place, FramePlace::Elsewhere(_)) && before == Some(place);
            before = Some(place);
            if goes_on {
                continue;
            }
            if self.calls.len() >= CALLS_MAX && !self.known.contains_key(&(at, Some(place.clone()))) {
                break;
            }
            at = Some(self.call(at, Some(place.clone())));
        }
        let at = at.unwrap_or_else(|| self.call(None, None));
        let Some(call) = self.calls.get_mut(at) else { return };
        call.own += 1;
        call.kernel += u64::from(stack.kernel);
        if let Some(number) = stack.call {
            *call.waits.entry(number).or_default() += 1;
        }
    }

    /// Index of a call, which is new if it is not known.
    fn call(&mut self, caller: Option<usize>, place: Option<FramePlace>) -> usize {
        let calls = &mut self.calls;
        *self.known.entry((caller, place.clone())).or_insert_with(|| {
            calls.push(TalliedCall { caller, place, own: 0, kernel: 0, waits: FxHashMap::default() });
            calls.len() - 1
        })
    }

    /// The calls, a caller before those that it has called. If their names are too long in all, the samples of further calls are those of
    /// their callers.
    pub fn calls(self, function: impl Fn(FunctionId) -> Option<NamedFunction>) -> Vec<SampledCall> {
        let mut named: Vec<SampledCall> = Vec::new();
        // The new index of each call.
        let mut mapped: Vec<Option<usize>> = Vec::with_capacity(self.calls.len());
        let mut bytes = 0;
        for call in &self.calls {
            let caller = call.caller.and_then(|caller| mapped.get(caller).copied().flatten());
            if bytes > NAMES_MAX && caller.is_some() {
                mapped.push(caller);
                continue;
            }
            let (function, memory) = match &call.place {
                Some(FramePlace::Function(id)) => (function(*id), String::new()),
                Some(FramePlace::Compiled(name)) => (Some(compiled(name)), String::new()),
                Some(FramePlace::Elsewhere(memory)) => (None, memory.to_string()),
                None => (None, String::new()),
            };
            bytes += memory.len() + function.as_ref().map_or(0, |f| f.module.len() + f.function.len());
            mapped.push(Some(named.len()));
            // The number fits, because a reading has at most CALLS_MAX calls.
            let caller = caller.and_then(|caller| u32::try_from(caller).ok());
            named.push(SampledCall { caller, function, memory, ..SampledCall::default() });
        }
        let mut waits: Vec<FxHashMap<i64, u64>> = vec![FxHashMap::default(); named.len()];
        for (call, at) in self.calls.iter().zip(mapped) {
            let Some((at, named)) = at.and_then(|at| Some((at, named.get_mut(at)?))) else { continue };
            named.own += call.own;
            named.kernel += call.kernel;
            if let Some(waits) = waits.get_mut(at) {
                call.waits.iter().for_each(|(number, samples)| *waits.entry(*number).or_default() += samples);
            }
        }
        for (named, waits) in named.iter_mut().zip(waits) {
            named.waits = most_first(waits.into_iter().map(|(number, samples)| (call_name(number), samples)));
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Svma, Tid};

    use super::*;
    use crate::api::SampledMode;
    use crate::pairs::tests::function;

    fn stack(whole: bool, kernel: bool, call: Option<i64>) -> SampledStack {
        let (tid, mode) = (Tid(1), SampledMode::Program);
        SampledStack { tid, kernel, whole, call, mode, object: None, begin: 0, end: 0 }
    }

    fn at(number: u32) -> FramePlace {
        FramePlace::Function(function(0, number))
    }

    fn name(id: FunctionId) -> Option<NamedFunction> {
        let (module, offset) = ("m".to_owned(), Svma(id.function.into()));
        Some(NamedFunction { module, function: format!("f{}", id.function), offset })
    }

    /// The calls as their callers, names and samples.
    fn found(tally: CallTally) -> Vec<(Option<u32>, String, u64, u64)> {
        let name_of = |call: &SampledCall| match &call.function {
            Some(function) => function.function.clone(),
            None if call.memory.is_empty() => "?".to_owned(),
            None => call.memory.clone(),
        };
        tally.calls(name).iter().map(|call| (call.caller, name_of(call), call.own, call.kernel)).collect()
    }

    #[test]
    fn samples_are_a_tree_of_calls() {
        let mut tally = CallTally::new(None);
        tally.add(&stack(true, false, None), &[at(3), at(2), at(1)]);
        tally.add(&stack(true, true, None), &[at(3), at(2), at(1)]);
        tally.add(&stack(true, false, None), &[at(2), at(2), at(1)]);
        tally.add(&stack(false, false, None), &[at(3)]);
        tally.add(&stack(false, false, None), &[]);
        let calls = found(tally);
        let of = |caller, name: &str, own, kernel| (caller, name.to_owned(), own, kernel);
        let expected = [
            of(None, "f1", 0, 0),
            of(Some(0), "f2", 0, 0),
            of(Some(1), "f3", 2, 1),
            of(Some(1), "f2", 1, 0),
            of(None, "?", 0, 0),
            of(Some(4), "f3", 1, 0),
            of(Some(4), "registers not known", 1, 0),
        ];
        assert_eq!(calls, expected);
    }

    #[test]
    fn waits_are_those_of_the_innermost_call() {
        let mut tally = CallTally::new(None);
        tally.add(&stack(true, false, Some(202)), &[at(2), at(1)]);
        tally.add(&stack(true, false, Some(202)), &[at(2), at(1)]);
        tally.add(&stack(true, false, Some(35)), &[at(2), at(1)]);
        let calls = tally.calls(name);
        let waits: Vec<_> = calls[1].waits.iter().map(|wait| (wait.name.as_str(), wait.samples)).collect();
        assert_eq!((waits, calls[0].waits.len()), (vec![("futex", 2), ("nanosleep", 1)], 0));
    }

    #[test]
    fn frames_without_functions_are_one_call() {
        let jit = FramePlace::Elsewhere("memory without a file".into());
        let mut tally = CallTally::new(None);
        tally.add(&stack(true, false, None), &[at(2), jit.clone(), jit.clone(), at(1), at(1)]);
        let names: Vec<_> = found(tally).into_iter().map(|(_, name, ..)| name).collect();
        assert_eq!(names, ["f1", "f1", "memory without a file", "f2"], "recursive functions are not one call");
    }

    #[test]
    fn stacks_without_a_wanted_function_do_not_count() {
        let mut tally = CallTally::new(Some([function(0, 2)].into_iter().collect()));
        tally.add(&stack(true, false, None), &[at(3), at(2), at(1)]);
        tally.add(&stack(true, false, None), &[at(3), at(1)]);
        tally.add(&stack(true, false, None), &[]);
        assert_eq!(found(tally).iter().map(|(.., own, _)| own).sum::<u64>(), 1);
    }

    #[test]
    fn calls_are_bounded_and_no_sample_is_lost() {
        let mut tally = CallTally::new(None);
        let all = CALLS_MAX as u32 + 9;
        for number in 0..all {
            tally.add(&stack(true, false, None), &[at(number), at(u32::MAX)]);
        }
        tally.add(&stack(true, false, None), &[at(7)]);
        let calls = found(tally);
        assert_eq!(calls.iter().map(|(.., own, _)| own).sum::<u64>(), u64::from(all) + 1);
        assert_eq!((calls[0].2, calls.len()), (10, CALLS_MAX + 1), "those without room are in their caller");
        assert_eq!(calls.last().map(|(caller, name, own, _)| (*caller, name.as_str(), *own)), Some((None, "?", 1)));
    }

    #[test]
    fn long_names_are_bounded_and_no_sample_is_lost() {
        let mut tally = CallTally::new(None);
        for number in 0..40 {
            tally.add(&stack(true, false, Some(0)), &[at(number), at(99)]);
        }
        let calls = tally.calls(|id| {
            let long = "x".repeat(1 << 20);
            Some(NamedFunction { function: long, ..name(id)? })
        });
        assert_eq!(calls.iter().map(|call| call.own).sum::<u64>(), 40);
        assert!(calls.len() < 20 && calls[0].own > 20, "{}", calls.len());
        assert_eq!(calls[0].waits.iter().map(|wait| wait.samples).sum::<u64>(), calls[0].own);
    }
}
