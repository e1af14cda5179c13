//! Numbers of samples by the stack below a function.

use ingraft_model::{Avma, FunctionId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::tally::FramePlace;
use crate::api::{ModulePlace, NamedFunction, StackSamples};

/// Largest number of stacks of a reading. The samples of further ones count as those of a stack of which nothing is known.
const STACKS_MAX: usize = 4096;
/// Largest number of frames of all stacks of a reading.
const FRAMES_MAX: usize = 1 << 18;
/// Number of bytes of the names in the stacks of a reading after which no further stack is told; the same for the names in sites.
pub(super) const NAMES_MAX: usize = 16 << 20;

/// The samples of a reading in which one of some functions is on the stack.
#[derive(Debug, Default)]
pub(super) struct StackTally {
    wanted: FxHashSet<FunctionId>,
    /// Samples by function, addresses of the calls below it, and whether these are all.
    stacks: FxHashMap<(FunctionId, Box<[Avma]>, bool), u64>,
    /// Number of the addresses in `stacks`.
    frames: usize,
    /// Functions that the present sample has counted for already.
    seen: Vec<FunctionId>,
}

impl StackTally {
    /// No samples, and the functions whose stacks count.
    pub fn new(wanted: FxHashSet<FunctionId>) -> Self {
        StackTally { wanted, ..StackTally::default() }
    }

    /// Adds a sample: the places and addresses of its frames, innermost first, and whether these are all.
    pub fn add(&mut self, places: &[FramePlace], addresses: &[Avma], whole: bool) {
        if self.wanted.is_empty() {
            return;
        }
        self.seen.clear();
        for (number, place) in places.iter().enumerate() {
            let FramePlace::Function(function) = place else { continue };
            if !self.wanted.contains(function) || self.seen.contains(function) {
                continue;
            }
            self.seen.push(*function);
            let below = addresses.get(number + 1..).unwrap_or_default();
            let key = (*function, Box::from(below), whole);
            let has_room = self.stacks.len() < STACKS_MAX && self.frames.saturating_add(below.len()) <= FRAMES_MAX;
            if has_room || self.stacks.contains_key(&key) {
                *self.stacks.entry(key).or_insert_with(|| {
                    self.frames += below.len();
                    0
                }) += 1;
            } else {
                *self.stacks.entry((*function, Box::default(), false)).or_default() += 1;
            }
        }
    }

    /// The addresses of all frames, each once.
    pub fn addresses(&self) -> impl Iterator<Item = Avma> {
        let all: FxHashSet<Avma> = self.stacks.keys().flat_map(|(_, below, _)| below.iter().copied()).collect();
        all.into_iter()
    }

    /// The stacks, those with the most samples first. A function without a name is left out.
    pub fn stacks(
        self,
        function: impl Fn(FunctionId) -> Option<NamedFunction>,
        call: impl Fn(Avma) -> ModulePlace,
    ) -> Vec<StackSamples> {
        let mut all: Vec<_> = self.stacks.into_iter().collect();
        all.sort_by(|(a, of_a), (b, of_b)| of_b.cmp(of_a).then_with(|| a.cmp(b)));
        // Names are as long as the program's symbols.
        let mut bytes = 0;
        let stack = |((id, below, whole), samples): ((FunctionId, Box<[Avma]>, bool), u64)| {
            if bytes > NAMES_MAX {
                return None;
            }
            let frames: Vec<ModulePlace> = below.iter().map(|at| call(*at)).collect();
            let length =
                |place: &ModulePlace| place.module.len() + place.function.as_ref().map_or(0, |f| f.function.len());
            bytes += frames.iter().map(length).sum::<usize>();
            Some(StackSamples { function: function(id)?, frames, whole, samples })
        };
        all.into_iter().filter_map(stack).collect()
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Svma;

    use super::*;
    use crate::pairs::tests::function;

    fn found(tally: StackTally) -> Vec<(u64, Vec<u64>, bool, u64)> {
        let name = |id: FunctionId| {
            let offset = Svma(if id == function(0, 1) { 1 } else { 2 });
            Some(NamedFunction { module: "m".to_owned(), function: "f".to_owned(), offset })
        };
        let stacks = tally.stacks(name, |at| ModulePlace { at: Svma(at.0), ..ModulePlace::default() });
        let frames = |stack: &StackSamples| stack.frames.iter().map(|frame| frame.at.0).collect();
        stacks.iter().map(|stack| (stack.function.offset.0, frames(stack), stack.whole, stack.samples)).collect()
    }

    #[test]
    fn the_innermost_call_of_a_function_counts() {
        let (f, g) = (FramePlace::Function(function(0, 1)), FramePlace::Function(function(0, 2)));
        let nowhere = FramePlace::Elsewhere("[heap]".into());
        let mut tally = StackTally::new([function(0, 1)].into_iter().collect());
        // g calls f, which calls itself and then code without a name.
        tally.add(&[nowhere, f.clone(), f.clone(), g.clone()], &[9, 10, 11, 20].map(Avma), true);
        tally.add(&[f.clone(), f.clone(), g.clone()], &[12, 11, 20].map(Avma), true);
        tally.add(&[f.clone(), g.clone()], &[12, 20].map(Avma), false);
        tally.add(&[g], &[20].map(Avma), true);
        tally.add(&[], &[], false);
        assert_eq!(found(tally), [(1, vec![11, 20], true, 2), (1, vec![20], false, 1)]);
    }

    #[test]
    fn stacks_are_bounded() {
        let f = FramePlace::Function(function(0, 1));
        let mut tally = StackTally::new([function(0, 1)].into_iter().collect());
        let all = STACKS_MAX as u64 + 5;
        for at in 0..all {
            tally.add(&[f.clone(), f.clone()], &[Avma(0), Avma(at)], true);
        }
        let found = found(tally);
        assert_eq!(found.iter().map(|(.., samples)| samples).sum::<u64>(), all);
        assert_eq!(found[0], (1, Vec::new(), false, 5), "no sample is lost");
        assert!(StackTally::default().addresses().next().is_none());
    }
}
