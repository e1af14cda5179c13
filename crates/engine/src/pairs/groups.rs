//! Requests that differ only in the key of their object share their code: one snippet looks the key up among the listed ones, and adds to
//! the value at the key's place ([`ingraft_model::listed`]). The counter of such a pair is the place of its value, so the value is read,
//! kept and recovered like any other.
//!
//! A group consists of at least [`LEAST`] similar pairs of one request. Later pairs join it if their keys find a place; otherwise they get
//! their own code. The table and the shared code stay until the last pair is removed.

use std::collections::BTreeMap;

use ingraft_model::layout::COUNTERS;
use ingraft_model::listed::{FREE, ListedKeys, RETIRED};
use ingraft_model::{FunctionId, Instrumentation, ModuleId};
use ingraft_process::SharedArea;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::RefusedFunction;
use crate::weaving::cost::Meters;

use super::alike::Alike;
use super::key::PairKey;
use super::pair::{GroupId, Pair};

/// Smallest number of similar pairs that share their code: for fewer pairs, comparisons are faster than a look-up.
const LEAST: usize = 4;
/// Largest number of counters per pair that a table takes, unless its keys collide.
pub const COUNTERS_A_PAIR: u64 = 16;
/// Largest number of counters that the code of a group takes besides its table.
const HITS_MAX: u32 = 16;

/// Pairs that share their code.
#[derive(Debug)]
pub struct Group {
    alike: Alike,
    keys: ListedKeys,
    /// The first counter of the table, by which the journal names the shared snippets.
    pub first: u32,
    /// Counters of the runs of the shared snippets.
    pub hits: Vec<u32>,
    /// The shared snippets, with the functions at whose points they stand.
    pub minis: Vec<(FunctionId, u64)>,
    /// Functions that could not be woven, with the reasons.
    pub unwoven: Vec<(FunctionId, RefusedFunction)>,
    /// Whether the shared code is woven at no point.
    unmeasured: bool,
    /// Number of pairs, including those whose code was taken out but whose values are still read; the table stays as long as there are any.
    members: u32,
    /// Number of pairs whose keys are listed. When it reaches 0, the shared code is removed, and no pair joins the group any more.
    listed: u32,
}

impl Group {
    /// Number of pairs among which the cost of the code is divided.
    pub fn members(&self) -> u32 {
        self.listed.max(1)
    }

    /// The pair whose key is at `place`.
    fn pair(&self, id: GroupId, place: u32, instrumentation: Instrumentation) -> Pair {
        let counters = vec![self.first + self.keys.listing().value(place)];
        Pair {
            minis: self.minis.clone(),
            unwoven: self.unwoven.clone(),
            unmeasured: self.unmeasured,
            thread: instrumentation.thread,
            object: instrumentation.object,
            group: Some((id, place)),
            ..Pair::holding(instrumentation.metric, instrumentation.variables, counters)
        }
    }

    /// The counters of the table: the first one, and their number.
    pub fn table(&self) -> (u32, u32) {
        (self.first, self.keys.listing().slots())
    }
}

/// A group that is about to be woven.
#[derive(Debug)]
pub struct Forming {
    alike: Alike,
    /// The table of the pairs' keys.
    pub keys: ListedKeys,
    members: Vec<(PairKey, Instrumentation, u32)>,
}

impl Forming {
    /// Number of pairs of the group.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}

/// A pair, or the pairs of a group, to be woven.
#[derive(Debug)]
pub struct Fresh {
    /// Key of the pair; for a group, the key of its first pair.
    pub key: PairKey,
    /// Code and variables of the pair, or those that all pairs of the group share.
    pub instrumentation: Instrumentation,
    /// Counters of the hits of the snippets.
    pub meters: Meters,
    /// The group; `None` for a pair with code of its own.
    pub forming: Option<Forming>,
}

impl Fresh {
    /// A pair with code of its own.
    pub fn alone(key: PairKey, instrumentation: Instrumentation) -> Self {
        Fresh { key, instrumentation, meters: Meters::default(), forming: None }
    }
}

/// Divides new pairs into those that share their code and the others. `room` is the number of free counters.
pub fn form(unmet: Vec<(PairKey, Instrumentation)>, mut room: u32) -> Vec<Fresh> {
    let mut alone = Vec::with_capacity(unmet.len());
    let mut similar: Vec<(Alike, Members)> = Vec::new();
    let mut places: FxHashMap<u64, Vec<usize>> = FxHashMap::default();
    for (key, instrumentation) in unmet {
        let Some((alike, object)) = Alike::of(&key, &instrumentation) else {
            alone.push(Fresh::alone(key, instrumentation));
            continue;
        };
        let same_hash = places.entry(alike.hash).or_default();
        let member = (key, instrumentation, object);
        match same_hash.iter().copied().find(|at| similar.get(*at).is_some_and(|(known, _)| *known == alike)) {
            Some(at) => similar[at].1.push(member),
            None => {
                same_hash.push(similar.len());
                similar.push((alike, vec![member]));
            }
        }
    }
    for (alike, members) in similar {
        let (group, others) = grouped(alike, members, &mut room);
        alone.extend(group);
        alone.extend(others.into_iter().map(|(key, instrumentation, _)| Fresh::alone(key, instrumentation)));
    }
    alone
}

/// Pairs, each with the address of its object.
type Members = Vec<(PairKey, Instrumentation, u64)>;

/// Makes a group of similar pairs. Also returns the pairs that keep code of their own: those whose key cannot be listed, and those whose
/// object another pair of the group already has. The group is `None`, and all pairs are returned, if too few pairs are left or the table
/// has no room.
fn grouped(alike: Alike, members: Members, room: &mut u32) -> (Option<Fresh>, Members) {
    let mut seen = FxHashSet::default();
    let (members, mut others): (Members, Members) =
        members.into_iter().partition(|(.., object)| !matches!(*object, FREE | RETIRED) && seen.insert(*object));
    let keys: Vec<u64> = members.iter().map(|(.., object)| *object).collect();
    let table = (members.len() >= LEAST).then(|| ListedKeys::of(&keys)).flatten();
    let fitting = table.and_then(|(keys, places)| {
        let left = room.checked_sub(keys.listing().slots() + HITS_MAX)?;
        Some((keys, places, left))
    });
    let (Some((keys, places, left)), Some((key, one, _))) = (fitting, members.first()) else {
        others.extend(members);
        return (None, others);
    };
    *room = left;
    let (key, instrumentation) = (key.clone(), alike.instrumentation(keys.listing(), one));
    let members = members.into_iter().zip(places).map(|((key, instrumentation, _), at)| (key, instrumentation, at));
    let forming = Some(Forming { alike, keys, members: members.collect() });
    (Some(Fresh { key, instrumentation, meters: Meters::default(), forming }), others)
}

/// The code that was woven for a group.
#[derive(Debug, Default)]
pub struct WovenGroup {
    /// The snippets, each with the function at whose points it stands.
    pub minis: Vec<(FunctionId, u64)>,
    /// Functions that could not be woven, with the reasons.
    pub unwoven: Vec<(FunctionId, RefusedFunction)>,
    /// Whether the code is woven at no point.
    pub unmeasured: bool,
}

/// The groups of a target.
#[derive(Debug, Default)]
pub struct Groups {
    all: BTreeMap<GroupId, Group>,
    next: GroupId,
}

impl Groups {
    /// The group of a pair; `None` if the pair has its own code.
    pub fn of(&self, pair: &Pair) -> Option<&Group> {
        self.all.get(&pair.group?.0)
    }

    /// A new pair of an existing group; `None` if no group fits, or if the pair's key finds no place.
    pub fn join(&mut self, key: &PairKey, instrumentation: &Instrumentation, write: WriteWord<'_>) -> Option<Pair> {
        if self.all.is_empty() {
            return None;
        }
        let (alike, object) = Alike::of(key, instrumentation)?;
        let mut similar = self.all.iter_mut().filter(|(_, group)| group.listed > 0 && group.alike == alike);
        let (id, group, place) =
            similar.find_map(|(id, group)| group.keys.add(object).map(|place| (*id, group, place)))?;
        // a word that could not be written stays free in the target, and is not used again here
        if !write(group.first + place, object) {
            return None;
        }
        group.members += 1;
        group.listed += 1;
        Some(group.pair(id, place, instrumentation.clone()))
    }

    /// Registers a group that was woven, and returns its pairs. `counters` are those of the group's variables.
    pub fn gather(&mut self, forming: Forming, counters: &[u32], woven: WovenGroup) -> Vec<(PairKey, Pair)> {
        let Some((first, hits)) = counters.split_first() else { return Vec::new() };
        let Forming { alike, keys, members } = forming;
        let WovenGroup { minis, unwoven, unmeasured } = woven;
        let (count, hits) = (members.len() as u32, hits.to_vec());
        let id = self.next;
        self.next += 1;
        let group =
            Group { alike, keys, first: *first, hits, minis, unwoven, unmeasured, members: count, listed: count };
        let pair = |(key, instrumentation, place)| (key, group.pair(id, place, instrumentation));
        let pairs = members.into_iter().map(pair).collect();
        self.all.insert(id, group);
        pairs
    }

    /// Retires the key at a place of a group's table. Returns the counter of shard 0 that the word [`RETIRED`] belongs into.
    pub fn retire(&mut self, (id, place): (GroupId, u32)) -> Option<u32> {
        let group = self.all.get_mut(&id)?;
        group.keys.retire(place);
        group.listed = group.listed.saturating_sub(1);
        Some(group.first + place)
    }

    /// Removes a pair from its group. Returns the group if that was its last pair.
    pub fn leave(&mut self, (id, _): (GroupId, u32)) -> Option<Group> {
        let group = self.all.get_mut(&id)?;
        group.members = group.members.saturating_sub(1);
        if group.members == 0 { self.all.remove(&id) } else { None }
    }

    /// Forgets the functions of modules whose text is gone.
    pub fn forget_modules(&mut self, gone: &[ModuleId]) {
        for group in self.all.values_mut() {
            group.minis.retain(|(f, _)| !gone.contains(&f.module));
            group.unwoven.retain(|(f, _)| !gone.contains(&f.module));
        }
    }
}

/// Writes a word into the counter of shard 0 that has this number. Returns whether that was possible.
pub type WriteWord<'w> = &'w mut dyn FnMut(u32, u64) -> bool;

/// Sets a word of shard 0.
pub fn write_word(area: &SharedArea, counter: u32, word: u64) -> Result<(), ingraft_process::ProcessError> {
    area.write_u64(u64::from(COUNTERS) + 8 * u64::from(counter), word)
}

/// Writes the keys of a table, or clears them.
pub fn write_keys(
    area: &SharedArea,
    first: u32,
    keys: &ListedKeys,
    listed: bool,
) -> Result<(), ingraft_process::ProcessError> {
    let words = (first..).zip(keys.words()).filter(|(_, word)| **word != FREE);
    words.into_iter().try_for_each(|(counter, word)| write_word(area, counter, if listed { *word } else { 0 }))
}
