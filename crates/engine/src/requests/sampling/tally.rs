//! Numbers of samples by function, thread and place.

use std::collections::BTreeMap;
use std::sync::Arc;

use ingraft_model::{FunctionId, Tid};
use rustc_hash::FxHashMap;

use super::taking::SampledStack;
use crate::api::{NamedSamples, SampledMode, SampledThread, WaitedThing};

/// Place of a frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum FramePlace {
    /// In a function.
    Function(FunctionId),
    /// In a function with this name that a just-in-time compiler has made.
    Compiled(Arc<str>),
    /// In memory with this name, in no known function.
    Elsewhere(Arc<str>),
}

/// Samples of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionTally {
    pub own: u64,
    pub total: u64,
    pub kernel: u64,
    /// Samples of `total` by system call.
    pub waits: FxHashMap<i64, u64>,
}

/// Largest number of functions of a site.
const SITE_FUNCTIONS_MAX: usize = 16;
/// Largest number of sites of a reading; samples of further ones are in no site.
const SITES_MAX: usize = 1 << 14;

/// Facts in which the samples of a site agree.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SiteKey {
    pub tid: Tid,
    pub mode: SampledMode,
    pub call: Option<i64>,
    pub object: Option<WaitedThing>,
    /// Functions of the stack, innermost first.
    pub functions: Vec<FunctionId>,
    /// Whether the first of the functions is the innermost frame.
    pub innermost: bool,
}

/// The samples of a reading.
#[derive(Debug, Default)]
pub(super) struct SampleTally {
    pub samples: u64,
    pub kernel: u64,
    pub cut: u64,
    /// Samples by place, without those elsewhere.
    pub functions: FxHashMap<FramePlace, FunctionTally>,
    pub sites: FxHashMap<SiteKey, u64>,
    elsewhere: BTreeMap<Arc<str>, u64>,
    threads: BTreeMap<Tid, (u64, u64)>,
    /// Functions that the present sample has counted for already.
    seen: Vec<FramePlace>,
}

impl SampleTally {
    /// Adds a sample with the places of its frames, innermost first.
    pub fn add(&mut self, stack: &SampledStack, places: impl Iterator<Item = FramePlace>) {
        let kernel = u64::from(stack.kernel);
        self.samples += 1;
        self.kernel += kernel;
        self.cut += u64::from(!stack.whole);
        let thread = self.threads.entry(stack.tid).or_default();
        *thread = (thread.0 + 1, thread.1 + kernel);
        self.seen.clear();
        let mut is_first = true;
        for place in places {
            match place {
                FramePlace::Function(_) | FramePlace::Compiled(_) => {
                    let tally = self.functions.entry(place.clone()).or_default();
                    if is_first {
                        tally.own += 1;
                        tally.kernel += kernel;
                    }
                    if !self.seen.contains(&place) {
                        self.seen.push(place);
                        tally.total += 1;
                        if let Some(call) = stack.call {
                            *tally.waits.entry(call).or_default() += 1;
                        }
                    }
                }
                FramePlace::Elsewhere(name) if is_first => *self.elsewhere.entry(name).or_default() += 1,
                FramePlace::Elsewhere(_) => {}
            }
            is_first = false;
        }
        if is_first {
            *self.elsewhere.entry("registers not known".into()).or_default() += 1;
        }
    }

    /// Adds the sample that was added last to its site. The functions of the key are filled in.
    pub fn add_to_site(&mut self, mut key: SiteKey, places: impl Iterator<Item = FramePlace>) {
        let mut places = places.peekable();
        key.innermost = matches!(places.peek(), Some(FramePlace::Function(_)));
        let functions = places.filter_map(|place| match place {
            FramePlace::Function(function) => Some(function),
            FramePlace::Compiled(_) | FramePlace::Elsewhere(_) => None,
        });
        key.functions.extend(functions.take(SITE_FUNCTIONS_MAX));
        if let Some(samples) = self.sites.get_mut(&key) {
            *samples += 1;
        } else if self.sites.len() < SITES_MAX {
            self.sites.insert(key, 1);
        }
    }

    /// The threads with samples, those with the most first.
    pub fn threads(&self, name: &dyn Fn(Tid) -> String) -> Vec<SampledThread> {
        let mut threads: Vec<_> = self.threads.iter().map(|(tid, of)| (*tid, *of)).collect();
        threads.sort_by_key(|(tid, (samples, _))| (std::cmp::Reverse(*samples), *tid));
        threads
            .into_iter()
            .map(|(tid, (samples, kernel))| SampledThread { tid, name: name(tid), samples, kernel })
            .collect()
    }

    /// The places without functions, those with the most samples first.
    pub fn elsewhere(&self) -> Vec<NamedSamples> {
        most_first(self.elsewhere.iter().map(|(name, samples)| (name.to_string(), *samples)))
    }
}

/// Names with their samples, those with the most first.
pub(super) fn most_first(all: impl Iterator<Item = (String, u64)>) -> Vec<NamedSamples> {
    let mut all: Vec<_> = all.map(|(name, samples)| NamedSamples { name, samples }).collect();
    all.sort_by(|a, b| b.samples.cmp(&a.samples).then_with(|| a.name.cmp(&b.name)));
    all
}

/// Name of a system call by its number; -1 stands for a wait outside of system calls, such as for a page of memory.
pub(super) fn call_name(number: i64) -> String {
    match ingraft_process::call_name(number) {
        Some(name) => name.to_owned(),
        None if number < 0 => "no system call".to_owned(),
        None => format!("system call {number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pairs::tests::function;

    fn stack(tid: i32, kernel: bool, call: Option<i64>) -> SampledStack {
        SampledStack {
            tid: Tid(tid),
            kernel,
            whole: tid != 3,
            call,
            mode: SampledMode::Program,
            object: None,
            begin: 0,
            end: 0,
        }
    }

    #[test]
    fn a_function_counts_once_in_a_sample() {
        let (f, g) = (function(0, 1), function(0, 2));
        let (in_f, in_g) = (FramePlace::Function(f), FramePlace::Function(g));
        let nowhere = FramePlace::Elsewhere("[heap]".into());
        let mut tally = SampleTally::default();
        tally.add(&stack(1, true, None), [&in_f, &in_g, &in_f, &in_g].into_iter().cloned());
        tally.add(&stack(1, false, None), [&in_g].into_iter().cloned());
        tally.add(&stack(2, false, None), [&nowhere, &nowhere, &in_g].into_iter().cloned());
        tally.add(&stack(3, false, None), std::iter::empty());
        let counts =
            |id| tally.functions.get(&FramePlace::Function(id)).map(|t: &FunctionTally| (t.own, t.total, t.kernel));
        assert_eq!((counts(f), counts(g)), (Some((1, 1, 1)), Some((1, 3, 0))));
        assert_eq!((tally.samples, tally.kernel, tally.cut), (4, 1, 1));
        let elsewhere: Vec<_> = tally.elsewhere().into_iter().map(|e| (e.name, e.samples)).collect();
        assert_eq!(elsewhere, [("[heap]".to_owned(), 1), ("registers not known".to_owned(), 1)]);
        let threads: Vec<_> = tally.threads(&|_| String::new()).into_iter().map(|t| (t.tid.0, t.samples)).collect();
        assert_eq!(threads, [(1, 2), (2, 1), (3, 1)]);
        // The sum of all samples in functions and elsewhere is that of the samples.
        let own: u64 = tally.functions.values().map(|t| t.own).sum();
        assert_eq!(own + 2, tally.samples);
    }

    #[test]
    fn samples_that_agree_have_one_site() {
        let (f, g) = (function(0, 1), function(0, 2));
        let mut tally = SampleTally::default();
        let key = |tid| SiteKey {
            tid: Tid(tid),
            mode: SampledMode::Waiting,
            call: Some(0),
            object: None,
            functions: Vec::new(),
            innermost: true,
        };
        for tid in [1, 2, 1] {
            let nowhere = FramePlace::Elsewhere("[heap]".into());
            tally.add_to_site(key(tid), [FramePlace::Function(f), nowhere, FramePlace::Function(g)].into_iter());
        }
        tally.add_to_site(key(1), std::iter::repeat_n(FramePlace::Function(g), 100));
        let of =
            |tid, functions: &[FunctionId]| tally.sites.get(&SiteKey { functions: functions.to_vec(), ..key(tid) });
        assert_eq!((of(1, &[f, g]), of(2, &[f, g])), (Some(&2), Some(&1)));
        assert_eq!((of(1, &[g; SITE_FUNCTIONS_MAX]), tally.sites.len()), (Some(&1), 3));
    }

    #[test]
    fn waits_are_counted_by_system_call() {
        let f = function(0, 1);
        let mut tally = SampleTally::default();
        for call in [Some(202), Some(202), Some(0)] {
            tally.add(&stack(1, false, call), [FramePlace::Function(f), FramePlace::Function(f)].into_iter());
        }
        let waits = &tally.functions[&FramePlace::Function(f)].waits;
        assert_eq!((waits.get(&202), waits.get(&0), waits.len()), (Some(&2), Some(&1), 2));
    }
}
