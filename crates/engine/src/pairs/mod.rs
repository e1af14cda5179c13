//! Metric-focus pairs whose code is woven: the facts of a pair, the pairs that share their code, the counters, and the users of each pair.

mod admitted;
mod alike;
pub mod counters;
mod free_counters;
mod groups;
mod info;
mod key;
mod numbering;
mod pair;
mod pieces;
mod points;
mod released;
mod tails;
#[cfg(test)]
pub mod tests;

use ingraft_model::listed::RETIRED;
use ingraft_model::{FunctionId, Instrumentation, ModuleId};
use rustc_hash::{FxHashMap, FxHashSet};

pub use self::admitted::{AdmittedPairs, BoundPair};
pub use self::groups::{COUNTERS_A_PAIR, Forming, Fresh, Group, WovenGroup, WriteWord, write_keys, write_word};
pub use self::info::{function_ref, pair_info};
pub use self::key::PairKey;
pub use self::pair::{Landing, Pair, is_costly};
pub use self::pieces::{Minis, RefusedPieces, apart, joined, pieces_of};
pub use self::points::{CommonSnippets, PointDraft, SnippetIds};
pub use self::released::Released;
pub use self::tails::{TailBarriers, TailCalls, await_results};

use self::groups::Groups;

/// The pairs of a target.
#[derive(Debug, Default)]
pub struct Pairs {
    all: FxHashMap<PairKey, Pair>,
    /// Pairs that share their code.
    groups: Groups,
    /// Pairs whose code was taken out because it cost too much, while measurements still read their values.
    retired: Vec<Pair>,
}

impl Pairs {
    /// The pair with a key, if its code is woven.
    pub fn get(&self, key: &PairKey) -> Option<&Pair> {
        self.all.get(key)
    }

    /// The pair with a key, to be changed.
    pub fn get_mut(&mut self, key: &PairKey) -> Option<&mut Pair> {
        self.all.get_mut(key)
    }

    /// Whether there is a pair with this key whose code is woven.
    pub fn contains_key(&self, key: &PairKey) -> bool {
        self.all.contains_key(key)
    }

    /// All pairs whose code is woven, with their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&PairKey, &Pair)> {
        self.all.iter()
    }

    /// The keys of all pairs whose code is woven.
    pub fn keys(&self) -> impl Iterator<Item = &PairKey> {
        self.all.keys()
    }

    /// All pairs whose code is woven.
    pub fn values(&self) -> impl Iterator<Item = &Pair> {
        self.all.values()
    }

    /// Whether no pair has code.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Makes room for more pairs.
    pub fn reserve(&mut self, additional: usize) {
        self.all.reserve(additional);
    }

    /// Adds a pair that was woven.
    pub fn insert(&mut self, key: PairKey, pair: Pair) {
        self.all.insert(key, pair);
    }

    /// Removes a pair that has no code.
    pub fn remove(&mut self, key: &PairKey) -> Option<Pair> {
        self.all.remove(key)
    }

    /// Forgets all pairs.
    pub fn clear(&mut self) {
        *self = Pairs::default();
    }

    /// The group whose code a pair shares; `None` if the pair has its own code.
    pub fn group_of(&self, pair: &Pair) -> Option<&Group> {
        self.groups.of(pair)
    }

    /// Adds a user to each pair.
    pub fn add_users(&mut self, keys: &[(PairKey, Option<FunctionId>)]) {
        for (key, _) in keys {
            if let Some(pair) = self.all.get_mut(key) {
                pair.users += 1;
            }
        }
    }

    /// Removes one user of each of these pairs, given by its key and the first counter of its value. Returns the things that pairs leave behind
    /// whose last user this was.
    pub fn drop_users<'k>(&mut self, users: impl Iterator<Item = (&'k PairKey, u32)>) -> Released {
        let mut released = Released::default();
        for (key, first) in users {
            let Some(pair) = self.drop_user(key, first) else { continue };
            let group = pair.group.and_then(|group| self.groups.leave(group));
            released.add(first, &pair, group.as_ref());
        }
        released
    }

    /// Removes one user of a pair. Returns the pair if that was the last user.
    fn drop_user(&mut self, key: &PairKey, first: u32) -> Option<Pair> {
        let is_last = |pair: &mut Pair| {
            pair.users = pair.users.saturating_sub(1);
            pair.users == 0
        };
        if let Some(pair) = self.all.get_mut(key).filter(|pair| pair.begins_at(first)) {
            return if is_last(pair) { self.all.remove(key) } else { None };
        }
        let at = self.retired.iter().position(|pair| pair.begins_at(first))?;
        if is_last(self.retired.get_mut(at)?) { Some(self.retired.swap_remove(at)) } else { None }
    }

    /// The pairs that have no other users than these, each given by its key and the first counter of its value.
    pub fn used_only_by<'k>(&self, users: impl Iterator<Item = (&'k PairKey, u32)>) -> FxHashSet<&'k PairKey> {
        let mut uses: FxHashMap<&PairKey, u32> = FxHashMap::default();
        for (key, _) in users.filter(|(key, first)| self.all.get(key).is_some_and(|pair| pair.begins_at(*first))) {
            *uses.entry(key).or_default() += 1;
        }
        let is_all = |(key, uses): &(&PairKey, u32)| self.all.get(*key).is_some_and(|pair| pair.users == *uses);
        uses.into_iter().filter(is_all).map(|(key, _)| key).collect()
    }

    /// The snippets of pairs that are removed. Snippets where exceptions and longjmp land, and those of groups, stay while other pairs need
    /// them.
    pub fn minis_of(&self, going: &FxHashSet<&PairKey>) -> Vec<(FunctionId, u64)> {
        let (going, staying): (Vec<_>, Vec<_>) = self.all.iter().partition(|(key, _)| going.contains(key));
        let unwind_targets = |pairs: &[(_, &Pair)]| -> FxHashSet<_> {
            pairs.iter().flat_map(|(_, p)| &p.unwind_targets).copied().collect()
        };
        let shared = unwind_targets(&staying);
        let own =
            unwind_targets(&going).into_iter().filter(|target| !shared.contains(target)).map(|(f, _, id)| (f, id));
        let grouped = |(_, pair): &&(_, &Pair)| pair.group.is_some();
        let mut taken: FxHashSet<u64> =
            staying.iter().filter(grouped).flat_map(|(_, p)| p.minis.iter().map(|(_, id)| *id)).collect();
        let mut once = |pair: &Pair, id: u64| pair.group.is_none() || taken.insert(id);
        let all = going.iter().flat_map(|(_, p)| p.minis.iter().map(move |mini| (*p, *mini)));
        all.filter_map(|(pair, mini)| once(pair, mini.1).then_some(mini)).chain(own).collect()
    }

    /// The pairs that have code in one of these functions.
    pub fn with_code_in(&self, functions: &FxHashSet<FunctionId>) -> Vec<PairKey> {
        let has_code = |pair: &Pair| pair.minis.iter().any(|(function, _)| functions.contains(function));
        self.all.iter().filter(|(_, pair)| has_code(pair)).map(|(key, _)| key.clone()).collect()
    }

    /// Id of the snippet with this purpose that pairs share in a function.
    pub fn landing(&self, function: FunctionId, landing: Landing) -> Option<u64> {
        self.all.values().find_map(|pair| pair.landing(function, landing))
    }

    /// Functions in which nothing could be woven where control arrives otherwise than by a call.
    pub fn unlanded(&self) -> FxHashSet<FunctionId> {
        self.all.values().flat_map(|pair| &pair.unlanded).copied().collect()
    }

    /// Adds a pair to a group whose code it can share. Returns whether there is one.
    fn join(&mut self, key: &PairKey, instrumentation: &Instrumentation, write: WriteWord<'_>) -> bool {
        let joined = self.groups.join(key, instrumentation, write);
        joined.map(|pair| self.all.insert(key.clone(), pair)).is_some()
    }

    /// Adds the pairs of a group that was woven. `counters` are those of the group's variables.
    pub fn gather(&mut self, forming: Forming, counters: &[u32], woven: WovenGroup) {
        self.all.extend(self.groups.gather(forming, counters, woven));
    }

    /// Removes the keys of pairs from the tables of their groups, so that look-ups of them fail from now on.
    pub fn retire_keys<'k>(&mut self, going: impl Iterator<Item = &'k PairKey>, write: WriteWord<'_>) {
        for counter in going.filter_map(|key| self.groups.retire(self.all.get(key)?.group?)) {
            // if the word cannot be written, a key stays listed that nobody asks for
            write(counter, RETIRED);
        }
    }

    /// Removes pairs again that have joined groups for a request that failed.
    pub fn part(&mut self, joined: &[PairKey], write: WriteWord<'_>) {
        self.retire_keys(joined.iter(), write);
        for key in joined {
            // the group had other pairs before, so it stays
            self.all.remove(key).and_then(|pair| self.groups.leave(pair.group?));
        }
    }

    /// Retires a pair whose code was taken out while measurements read its value. `None` if there is no such pair, or if it has no value.
    pub fn retire(&mut self, key: &PairKey) -> Option<&Pair> {
        let mut pair = self.all.remove(key).filter(|pair| pair.value().is_some())?;
        pair.minis.clear();
        pair.unwind_targets.clear();
        self.retired.push(pair);
        self.retired.last()
    }

    /// Forgets the functions of modules whose text is gone. The counts of pairs there stay.
    pub fn forget_modules(&mut self, gone: &[ModuleId]) {
        self.all.values_mut().for_each(|pair| pair.forget_modules(gone));
        self.groups.forget_modules(gone);
    }
}
