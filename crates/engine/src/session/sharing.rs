//! Requests that differ only in the key of their object share their code: one snippet looks the key up among the listed ones, and adds to
//! the value at the key's place ([`ingraft_model::listed`]). The counter of such a pair is the place of its value, so the value is read,
//! kept and recovered like any other.
//!
//! A group consists of at least [`LEAST`] similar pairs of one request. Later pairs join it if their keys find a place; otherwise they get
//! their own code. The table and the shared code stay until the last pair is removed.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use ingraft_model::layout::COUNTERS;
use ingraft_model::listed::{FREE, ListedKeys, RETIRED};
use ingraft_model::{
    BinaryOp, Expr, FunctionRef as MdlFunction, Insertion, Instrumentation, Listing, Shape, Snippet, Stmt, Tid,
    Variable, VariableId, VariableKind,
};
use ingraft_process::SharedArea;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};

use crate::api::RefusedFunction;
use crate::weaving::cost::Meters;

use super::control::Control;
use super::pair::{Pair, PairKey, Unloaded};

/// Smallest number of similar pairs that share their code: for fewer pairs, comparisons are faster than a look-up.
const LEAST: usize = 4;
/// Largest number of counters per pair that a table takes, unless its keys collide.
pub(super) const COUNTERS_A_PAIR: u64 = 16;
/// Largest number of counters that the code of a group takes besides its table.
const HITS_MAX: u32 = 16;

/// Id of a group in its session.
pub(super) type GroupId = u64;

/// Common part of similar pairs.
#[derive(Clone, Debug)]
pub(super) struct Alike {
    text: Arc<str>,
    helpers: Arc<str>,
    thread: Option<Tid>,
    /// The insertions, with snippets that look the key up in a table whose size is not fixed yet.
    insertions: Vec<Insertion>,
    /// Hash of all other fields.
    hash: u64,
}

impl PartialEq for Alike {
    fn eq(&self, other: &Self) -> bool {
        self.hash == other.hash
            && (&self.text, &self.helpers, self.thread) == (&other.text, &other.helpers, other.thread)
            && self.insertions == other.insertions
    }
}

/// Pairs that share their code.
#[derive(Debug)]
pub(super) struct Group {
    alike: Alike,
    keys: ListedKeys,
    /// The first counter of the table, by which the journal names the shared snippets.
    pub first: u32,
    /// Counters of the runs of the shared snippets.
    pub hits: Vec<u32>,
    /// The shared snippets, with the functions at whose points they stand.
    pub minis: Vec<(MdlFunction, u64)>,
    /// Functions that could not be woven, with the reasons.
    pub unwoven: Vec<(MdlFunction, RefusedFunction)>,
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
        Pair {
            metric: instrumentation.metric,
            variables: instrumentation.variables,
            counters: vec![self.first + self.keys.listing().value(place)],
            minis: self.minis.clone(),
            probes: Vec::new(),
            unloaded: Unloaded::No,
            unwind_targets: Vec::new(),
            unlanded: Vec::new(),
            restores: false,
            unwoven: self.unwoven.clone(),
            unmeasured: self.unmeasured,
            thread: instrumentation.thread,
            object: instrumentation.object,
            index_names: None,
            meters: Meters::default(),
            numberings: Vec::new(),
            group: Some((id, place)),
            users: 0,
        }
    }
}

/// A group that is about to be woven.
#[derive(Debug)]
pub(super) struct Forming {
    alike: Alike,
    pub keys: ListedKeys,
    members: Vec<(PairKey, Instrumentation, u32)>,
}

/// A pair, or the pairs of a group, to be woven.
#[derive(Debug)]
pub(super) struct Fresh {
    /// Key of the pair; for a group, the key of its first pair.
    pub key: PairKey,
    pub instrumentation: Instrumentation,
    pub forming: Option<Forming>,
}

impl Fresh {
    /// A pair with code of its own.
    pub fn alone(key: PairKey, instrumentation: Instrumentation) -> Self {
        Fresh { key, instrumentation, forming: None }
    }
}

impl Alike {
    /// Returns the part of a pair that similar pairs have in common, and its key; `None` if its code cannot be shared.
    pub fn of(key: &PairKey, instrumentation: &Instrumentation) -> Option<(Self, u64)> {
        let object = instrumentation.object?;
        let [variable] = &*instrumentation.variables else { return None };
        let plain = (variable.kind, variable.shape) == (VariableKind::Counter, Shape::Counter);
        let nothing_else = instrumentation.event.is_none() && instrumentation.index_names.is_none();
        if !plain || !nothing_else || instrumentation.insertions.is_empty() {
            return None;
        }
        let mut known: Vec<(*const Snippet, Arc<Snippet>)> = Vec::new();
        let mut insertions = Vec::with_capacity(instrumentation.insertions.len());
        for insertion in &instrumentation.insertions {
            let plain = Arc::as_ptr(&insertion.snippet);
            let snippet = match known.iter().find(|(other, _)| *other == plain) {
                Some((_, shared)) => Arc::clone(shared),
                None => {
                    let shared = Arc::new(shared(&insertion.snippet, object)?);
                    known.push((plain, Arc::clone(&shared)));
                    shared
                }
            };
            insertions.push(Insertion { snippet, ..insertion.clone() });
        }
        let mut hasher = FxHasher::default();
        (&key.text, &key.helpers, instrumentation.thread.map(|tid| tid.0)).hash(&mut hasher);
        insertions.iter().for_each(|i| (i.function, &i.snippet).hash(&mut hasher));
        let (text, helpers) = (Arc::clone(&key.text), Arc::clone(&key.helpers));
        Some((Alike { text, helpers, thread: instrumentation.thread, insertions, hash: hasher.finish() }, object))
    }

    /// Instrumentation for all pairs of a group, whose first variable is the table.
    fn instrumentation(&self, listing: Listing, one: &Instrumentation) -> Instrumentation {
        let mut instrumentation = one.clone();
        let mut sized: Vec<(*const Snippet, Arc<Snippet>)> = Vec::new();
        instrumentation.insertions = self.insertions.clone();
        for insertion in &mut instrumentation.insertions {
            let any = Arc::as_ptr(&insertion.snippet);
            let known = sized.iter().find(|(other, _)| *other == any).map(|(_, snippet)| Arc::clone(snippet));
            insertion.snippet = known.unwrap_or_else(|| {
                let mut snippet = (*insertion.snippet).clone();
                set_listing(&mut snippet.stmts, listing);
                let snippet = Arc::new(snippet);
                sized.push((any, Arc::clone(&snippet)));
                snippet
            });
        }
        let shape = Shape::Listed(listing);
        let variables = instrumentation.variables.iter().map(|v| Variable { shape, sampled: false, ..v.clone() });
        instrumentation.variables = variables.collect();
        instrumentation
    }
}

/// Divides new pairs into those that share their code and the others. `room` is the number of free counters.
pub(super) fn form(unmet: Vec<(PairKey, Instrumentation)>, mut room: u32) -> Vec<Fresh> {
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
    (Some(Fresh { key, instrumentation, forming }), others)
}

/// A snippet that looks the key up instead of comparing it, and adds if the key is listed and all other conditions hold: the same code for
/// any listed key. `None` if the snippet has another form, or if it reads anything that does not come from the call.
fn shared(snippet: &Snippet, key: u64) -> Option<Snippet> {
    let (mut conditions, mut stmts) = (Vec::new(), snippet.stmts.as_slice());
    let amount = loop {
        match stmts {
            [Stmt::If(condition, body)] => {
                conjuncts(condition, &mut conditions);
                stmts = body;
            }
            [Stmt::Add(VariableId(0), amount)] => break amount,
            _ => return None,
        }
    };
    let mut depends = false;
    snippet.each_expr(&mut |e| depends |= !is_of_call(e));
    if depends {
        return None;
    }
    let at = conditions.iter().position(|condition| compared(condition, key).is_some())?;
    let looked_up = compared(conditions.remove(at), key)?.clone();
    if conditions.iter().any(|other| compared(other, key).is_some()) {
        return None;
    }
    let add = Stmt::AddListed(VariableId(0), Listing::of_places(16)?, looked_up, amount.clone());
    let and = |a: Expr, b: &Expr| Expr::Binary(BinaryOp::LogicalAnd, Box::new(a), Box::new(b.clone()));
    let stmts = match conditions.split_first() {
        None => vec![add],
        Some((first, others)) => vec![Stmt::If(others.iter().copied().fold((*first).clone(), and), vec![add])],
    };
    Some(Snippet { stmts })
}

/// Collects the conditions that must all hold.
fn conjuncts<'e>(condition: &'e Expr, out: &mut Vec<&'e Expr>) {
    match condition {
        Expr::Binary(BinaryOp::LogicalAnd, a, b) => {
            conjuncts(a, out);
            conjuncts(b, out);
        }
        other => out.push(other),
    }
}

/// The expression that a condition compares with the key.
fn compared(condition: &Expr, key: u64) -> Option<&Expr> {
    let is_key = |e: &Expr| *e == Expr::Const(key.cast_signed());
    match condition {
        Expr::Binary(BinaryOp::Equal, e, other) | Expr::Binary(BinaryOp::Equal, other, e) if is_key(other) => Some(e),
        _ => None,
    }
}

/// Whether an expression depends only on the call at whose point it is computed, and has no effect that is counted elsewhere.
fn is_of_call(e: &Expr) -> bool {
    matches!(
        e,
        Expr::Const(_)
            | Expr::Arg(_)
            | Expr::Return
            | Expr::Float(_)
            | Expr::Load(..)
            | Expr::ThreadPointer
            | Expr::Unary(..)
            | Expr::Binary(..)
    )
}

fn set_listing(stmts: &mut [Stmt], to: Listing) {
    for stmt in stmts {
        match stmt {
            Stmt::AddListed(_, listing, ..) => *listing = to,
            Stmt::If(_, body) => set_listing(body, to),
            _ => {}
        }
    }
}

impl Control {
    /// A new pair of an existing group; `None` if its key finds no place.
    pub(super) fn join(&mut self, key: &PairKey, instrumentation: &Instrumentation) -> Option<Pair> {
        if self.groups.is_empty() {
            return None;
        }
        let area = Arc::clone(&self.attached.as_ref()?.area);
        let (alike, object) = Alike::of(key, instrumentation)?;
        let mut similar = self.groups.iter_mut().filter(|(_, group)| group.listed > 0 && group.alike == alike);
        let (id, group, place) =
            similar.find_map(|(id, group)| group.keys.add(object).map(|place| (*id, group, place)))?;
        // a word that could not be written stays free in the target, and is not used again here
        write_word(&area, group.first + place, object).ok()?;
        group.members += 1;
        group.listed += 1;
        Some(group.pair(id, place, instrumentation.clone()))
    }

    /// Registers a group that was woven, and returns its pairs. `counters` are those of the group's variables.
    pub(super) fn gather(
        &mut self,
        forming: Forming,
        counters: &[u32],
        minis: Vec<(MdlFunction, u64)>,
        unwoven: Vec<(MdlFunction, RefusedFunction)>,
        unmeasured: bool,
    ) -> Vec<(PairKey, Pair)> {
        let Some((first, hits)) = counters.split_first() else { return Vec::new() };
        let Forming { alike, keys, members } = forming;
        let count = members.len() as u32;
        let id = self.next_group;
        self.next_group += 1;
        let hits = hits.to_vec();
        let group =
            Group { alike, keys, first: *first, hits, minis, unwoven, unmeasured, members: count, listed: count };
        let pair = |(key, instrumentation, place)| (key, group.pair(id, place, instrumentation));
        let pairs = members.into_iter().map(pair).collect();
        self.groups.insert(id, group);
        pairs
    }

    /// Removes the keys of pairs from their tables, so that look-ups of them fail from now on.
    pub(super) fn retire_keys<'k>(&mut self, going: impl Iterator<Item = &'k PairKey>) {
        for (id, place) in going.filter_map(|key| self.pairs.get(key)?.group) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            group.keys.retire(place);
            group.listed = group.listed.saturating_sub(1);
            let Some(attached) = &self.attached else { continue };
            if let Err(error) = write_word(&attached.area, group.first + place, RETIRED) {
                tracing::debug!(%error, "a key stays listed that nobody asks for");
            }
        }
    }

    /// Removes pairs again that have joined groups for a request that failed.
    pub(super) fn part(&mut self, joined: &[PairKey]) {
        self.retire_keys(joined.iter());
        for key in joined {
            let Some(group) = self.pairs.remove(key).and_then(|pair| pair.group) else { continue };
            // the group had other pairs before, so it stays
            drop(self.leave_group(group));
        }
    }

    /// Removes a pair from its group. Returns the group if that was its last pair.
    pub(super) fn leave_group(&mut self, (id, _): (GroupId, u32)) -> Option<Group> {
        let group = self.groups.get_mut(&id)?;
        group.members = group.members.saturating_sub(1);
        if group.members == 0 { self.groups.remove(&id) } else { None }
    }
}

impl Group {
    /// The counters of the table: the first one, and their number.
    pub fn table(&self) -> (u32, u32) {
        (self.first, self.keys.listing().slots())
    }
}

/// Sets a word of shard 0.
fn write_word(area: &SharedArea, counter: u32, word: u64) -> Result<(), ingraft_process::ProcessError> {
    area.write_u64(u64::from(COUNTERS) + 8 * u64::from(counter), word)
}

/// Writes the keys of a table, or clears them.
pub(super) fn write_keys(
    area: &SharedArea,
    first: u32,
    keys: &ListedKeys,
    listed: bool,
) -> Result<(), ingraft_process::ProcessError> {
    let words = (first..).zip(keys.words()).filter(|(_, word)| **word != FREE);
    words.into_iter().try_for_each(|(counter, word)| write_word(area, counter, if listed { *word } else { 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn equal(a: Expr, b: i64) -> Expr {
        Expr::Binary(BinaryOp::Equal, Box::new(a), Box::new(Expr::Const(b)))
    }

    fn and(a: Expr, b: Expr) -> Expr {
        Expr::Binary(BinaryOp::LogicalAnd, Box::new(a), Box::new(b))
    }

    fn adds(condition: Expr, amount: Expr) -> Snippet {
        Snippet { stmts: vec![Stmt::If(condition, vec![Stmt::Add(VariableId(0), amount)])] }
    }

    #[test]
    fn a_comparison_with_the_key_becomes_a_look_up() {
        let one = |key: i64| adds(equal(Expr::Arg(0), key), Expr::Const(1));
        let shared_one = shared(&one(0x1000), 0x1000).expect("it can be shared");
        assert_eq!(shared_one.to_string(), "if listed v0[$arg[0]] += 1;");
        assert_eq!(Some(shared_one), shared(&one(0x2000), 0x2000));
        // other conditions are kept, and the key may be compared with any expression of the call
        let other = equal(Expr::Arg(1), 3);
        let nested = Stmt::If(other.clone(), adds(equal(Expr::Arg(0), 8), Expr::Arg(2)).stmts);
        let both = adds(and(equal(Expr::Arg(0), 8), other), Expr::Arg(2));
        assert_eq!(shared(&both, 8), shared(&Snippet { stmts: vec![nested] }, 8));
        assert!(shared(&both, 8).is_some());
    }

    #[test]
    fn other_snippets_keep_their_own_code() {
        let increment = Stmt::Add(VariableId(0), Expr::Const(1));
        let is = || equal(Expr::Arg(0), 8);
        for snippet in [
            Snippet { stmts: vec![increment.clone()] },
            Snippet { stmts: vec![Stmt::If(is(), vec![increment.clone(), increment.clone()])] },
            Snippet { stmts: vec![Stmt::If(is(), vec![Stmt::Set(VariableId(0), Expr::Const(1))])] },
            adds(equal(Expr::Arg(0), 9), Expr::Const(1)),
            adds(and(is(), equal(Expr::Arg(1), 8)), Expr::Const(1)),
            adds(is(), Expr::Variable(VariableId(0))),
            adds(and(is(), Expr::Variable(VariableId(0))), Expr::Const(1)),
        ] {
            assert_eq!(shared(&snippet, 8), None, "{snippet}");
        }
    }
}
