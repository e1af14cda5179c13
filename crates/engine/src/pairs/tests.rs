//! Pairs for tests, and the tests of all pairs together.

use std::sync::Arc;

use ingraft_model::{
    Aggregate, Expr, FunctionId, Insertion, Instrumentation, MetricInfo, ModuleId, Order, Parts, Placing, PointKind,
    Role, Shape, Snippet, Stmt, Style, Svma, UnitsType, ValueUnit, Variable, VariableId, VariableKind,
};
use rustc_hash::FxHashSet;

use crate::api::{MetricFocus, NamedFunction, RefusedFunction};

use super::pair::Landing;
use super::pair::Unloaded;
use super::*;

/// A metric without a definition.
pub fn metric(name: &str) -> Arc<MetricInfo> {
    Arc::new(MetricInfo {
        name: name.to_owned(),
        unit: String::new(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        histogram: false,
        constraints: Vec::new(),
        flavors: Vec::new(),
        developer: false,
        doc: String::new(),
        text: name.into(),
    })
}

/// A variable that readings contain.
pub fn variable(kind: VariableKind, shape: Shape) -> Variable {
    Variable { name: String::new(), kind, shape, unit: ValueUnit::Plain, sampled: true }
}

/// An instrumentation without code.
pub fn instrumentation(variables: Vec<Variable>) -> Instrumentation {
    Instrumentation {
        metric: metric("m"),
        variables: variables.into(),
        insertions: Vec::new(),
        event: None,
        thread: None,
        object: None,
        index_names: None,
        key_names: Vec::new(),
        apart: false,
        placing: Placing::Anywhere,
        records: [].into(),
    }
}

/// A function by its number in a module.
pub fn function(module: u32, function: u32) -> FunctionId {
    FunctionId { module: ModuleId(module), function }
}

/// Code for all points of a kind of a function.
pub fn insertion(function: FunctionId, point: PointKind, stmts: Vec<Stmt>) -> Insertion {
    let (parts, except) = (Parts::All, Arc::default());
    let snippet = Arc::new(Snippet { stmts });
    Insertion { function, point, parts, order: Order::Append, role: Role::Metric, snippet, group: 0, except }
}

/// The key of a metric for the whole program.
pub fn key(metric: &str) -> PairKey {
    let pair = MetricFocus { metric: metric.to_owned(), focus: ingraft_model::Focus::default() };
    PairKey::new(metric.into(), Arc::new(pair))
}

/// A pair with one counter, and with snippets of these ids in a function.
pub fn counting(first: u32, in_function: FunctionId, minis: &[u64]) -> Pair {
    let one = instrumentation(vec![variable(VariableKind::Counter, Shape::Counter)]);
    Pair { minis: minis.iter().map(|id| (in_function, *id)).collect(), ..Pair::new(one, vec![first]) }
}

fn refused(id: FunctionId) -> (FunctionId, RefusedFunction) {
    let function = NamedFunction { module: "m".to_owned(), function: format!("f{}", id.function), offset: Svma(0) };
    (id, RefusedFunction { function, reason: ingraft_model::Refusal::NoSuchPoint.into() })
}

/// Pairs `a`, `b`, … whose values begin at counters 0, 1, …, each with as many users as this says.
fn used(users: &[u32]) -> Pairs {
    let mut pairs = Pairs::default();
    for (n, users) in (0..).zip(users) {
        let pair = Pair { users: *users, ..counting(n, function(0, n), &[u64::from(n)]) };
        pairs.insert(key(&name(n)), pair);
    }
    pairs
}

fn name(n: u32) -> String {
    char::from_u32(u32::from(b'a') + n).expect("a letter").to_string()
}

fn names<'k>(keys: impl IntoIterator<Item = &'k PairKey>) -> Vec<String> {
    let mut names: Vec<String> = keys.into_iter().map(|key| key.pair.metric.clone()).collect();
    names.sort();
    names
}

#[test]
fn the_last_user_removes_a_pair() {
    let mut pairs = used(&[0, 0]);
    let both = [(key("a"), None), (key("b"), None), (key("gone"), None)];
    pairs.add_users(&both);
    pairs.add_users(&both[..1]);
    assert!(pairs.drop_user(&key("a"), 0).is_none(), "another user is left");
    assert!(pairs.drop_user(&key("a"), 1).is_none(), "the value of another pair");
    assert!(pairs.drop_user(&key("gone"), 0).is_none());
    assert!(pairs.drop_user(&key("a"), 0).is_some_and(|pair| pair.begins_at(0)));
    assert!(pairs.drop_user(&key("a"), 0).is_none(), "it is gone");
    assert_eq!(names(pairs.iter().map(|(key, _)| key)), ["b"]);
}

#[test]
fn a_retired_pair_is_read_beside_a_new_one_with_its_key() {
    let mut pairs = used(&[2]);
    assert!(pairs.retire(&key("a")).is_some_and(|pair| pair.minis.is_empty() && pair.users == 2));
    assert!(pairs.is_empty(), "it has no code");
    assert!(pairs.retire(&key("a")).is_none());
    pairs.insert(key("a"), Pair { users: 1, ..counting(7, function(0, 0), &[5]) });
    assert!(pairs.drop_user(&key("a"), 0).is_none(), "another measurement reads the retired pair");
    assert!(pairs.drop_user(&key("a"), 0).is_some_and(|pair| pair.begins_at(0)));
    assert!(pairs.drop_user(&key("a"), 0).is_none());
    assert!(pairs.drop_user(&key("a"), 7).is_some_and(|pair| pair.begins_at(7)));
}

#[test]
fn a_pair_without_a_value_is_not_read_any_more() {
    let mut pairs = Pairs::default();
    pairs.insert(key("a"), Pair { users: 1, ..Pair::new(instrumentation(Vec::new()), Vec::new()) });
    assert!(pairs.retire(&key("a")).is_none());
    assert!(pairs.is_empty() && pairs.retired.is_empty());
}

#[test]
fn a_pair_goes_with_all_of_its_users() {
    for (users, asked, going) in [
        (vec![1, 1], vec![("a", 0)], vec!["a"]),
        (vec![2, 1], vec![("a", 0), ("b", 1)], vec!["b"]),
        (vec![2, 1], vec![("a", 0), ("a", 0)], vec!["a"]),
        (vec![1, 1], vec![("a", 1)], vec![]),
        (vec![1, 1], vec![("c", 2)], vec![]),
        (vec![1], vec![], vec![]),
    ] {
        let pairs = used(&users);
        let keys: Vec<(PairKey, u32)> = asked.iter().map(|(name, first)| (key(name), *first)).collect();
        let found = pairs.used_only_by(keys.iter().map(|(key, first)| (key, *first)));
        assert_eq!(names(found), going, "{users:?} {asked:?}");
    }
}

#[test]
fn snippets_that_others_need_stay() {
    let f = function(0, 9);
    let target = |id| (f, Landing::At(PointKind::Exit), id);
    let pairs = || {
        let mut pairs = used(&[1, 1, 1]);
        for (name, targets) in [("a", vec![target(20), target(21)]), ("b", vec![target(21)]), ("c", vec![target(22)])] {
            pairs.get_mut(&key(name)).expect("a pair").unwind_targets = targets;
        }
        pairs
    };
    let taken = |going: &[&str]| {
        let keys: Vec<PairKey> = going.iter().map(|name| key(name)).collect();
        let mut ids: Vec<u64> = pairs().minis_of(&keys.iter().collect()).into_iter().map(|(_, id)| id).collect();
        ids.sort_unstable();
        ids
    };
    assert_eq!(taken(&[]), Vec::<u64>::new());
    assert_eq!(taken(&["a"]), [0, 20], "b needs 21");
    assert_eq!(taken(&["b"]), [1], "a needs 21");
    assert_eq!(taken(&["a", "b"]), [0, 1, 20, 21]);
    assert_eq!(taken(&["a", "b", "c", "d"]), [0, 1, 2, 20, 21, 22]);
}

#[test]
fn landings_are_those_of_any_pair() {
    let mut pairs = used(&[1, 1]);
    let (there, elsewhere) = (function(1, 1), function(1, 2));
    pairs.get_mut(&key("b")).expect("a pair").unwind_targets = vec![(there, Landing::At(PointKind::Entry), 8)];
    pairs.get_mut(&key("a")).expect("a pair").unlanded = vec![elsewhere];
    assert_eq!(pairs.landing(there, Landing::At(PointKind::Entry)), Some(8));
    assert_eq!(pairs.landing(there, Landing::At(PointKind::Exit)), None);
    assert_eq!(pairs.landing(elsewhere, Landing::At(PointKind::Entry)), None);
    assert_eq!(pairs.unlanded(), FxHashSet::from_iter([elsewhere]));
}

#[test]
fn functions_of_modules_that_are_gone_are_forgotten() {
    let (stays, goes) = (function(1, 0), function(2, 0));
    let mut pairs = used(&[1, 1]);
    let pair = pairs.get_mut(&key("a")).expect("a pair");
    pair.minis = vec![(stays, 1), (goes, 2), (goes, 3)];
    pair.unwind_targets = vec![(goes, Landing::At(PointKind::Exit), 4), (stays, Landing::At(PointKind::Exit), 5)];
    pair.unlanded = vec![goes];
    pair.unwoven = vec![refused(goes), refused(stays)];
    pair.probes = vec![Ok(2)];
    pairs.get_mut(&key("b")).expect("a pair").probes = vec![Ok(1)];
    pairs.forget_modules(&[ModuleId(2)]);
    let pair = pairs.get(&key("a")).expect("a pair");
    assert_eq!(pair.minis, [(stays, 1)]);
    assert_eq!(pair.unwind_targets, [(stays, Landing::At(PointKind::Exit), 5)]);
    assert!(pair.unlanded.is_empty());
    assert_eq!(pair.refused().len(), 1);
    assert_eq!(pair.known_functions(), FxHashSet::from_iter([stays]), "what comes again is woven again");
    assert_eq!(pair.unloaded, Unloaded::Gone);
    assert_eq!(pairs.get(&key("b")).expect("a pair").unloaded, Unloaded::No, "its library stays");
}

/// Instrumentation that counts the calls with an object as their first argument.
fn of_object(object: u64) -> Instrumentation {
    let is_it = Expr::Binary(
        ingraft_model::BinaryOp::Equal,
        Box::new(Expr::Arg(0)),
        Box::new(Expr::Const(object.cast_signed())),
    );
    let counts = Stmt::If(is_it, vec![Stmt::Add(VariableId(0), Expr::Const(1))]);
    let mut one = instrumentation(vec![variable(VariableKind::Counter, Shape::Counter)]);
    one.object = Some(object);
    one.insertions = vec![insertion(function(0, 0), PointKind::Entry, vec![counts])];
    one
}

pub(super) fn objects(objects: &[u64]) -> Vec<(PairKey, Instrumentation)> {
    let of = |object: &u64| (PairKey::new("m".into(), key(&format!("{object:x}")).pair), of_object(*object));
    objects.iter().map(of).collect()
}

/// The number of pairs in each group that is formed, and the number of pairs with code of their own.
fn formed(unmet: Vec<(PairKey, Instrumentation)>, room: u32) -> (Vec<usize>, usize) {
    let fresh = groups::form(unmet, room);
    let groups = fresh.iter().filter_map(|fresh| Some(fresh.forming.as_ref()?.len()));
    (groups.collect(), fresh.iter().filter(|fresh| fresh.forming.is_none()).count())
}

#[test]
fn four_similar_pairs_share_their_code() {
    let all = u32::MAX;
    assert_eq!(formed(objects(&[8, 16, 24]), all), (vec![], 3));
    assert_eq!(formed(objects(&[8, 16, 24, 32]), all), (vec![4], 0));
    assert_eq!(formed(objects(&[8, 16, 24, 32, 0]), all), (vec![4], 1), "the key 0 cannot be listed");
    assert_eq!(formed(objects(&[8, 16, 24, 32, 8]), all), (vec![4], 1), "the object is listed already");
    assert_eq!(formed(objects(&[8, 16, 24, 8]), all), (vec![], 4), "three objects are too few");
    // a table of 16 places takes 32 counters, and its code up to 16 more
    assert_eq!(formed(objects(&[8, 16, 24, 32]), 48), (vec![4], 0));
    assert_eq!(formed(objects(&[8, 16, 24, 32]), 47), (vec![], 4));
    // pairs of another thread, or with another value, are not similar
    let mut mixed = objects(&[8, 16, 24, 32, 40, 48, 56, 64]);
    mixed[4..].iter_mut().for_each(|(_, one)| one.thread = Some(ingraft_model::Tid(7)));
    assert_eq!(formed(mixed.clone(), all), (vec![4, 4], 0));
    assert_eq!(formed(mixed, 95), (vec![4], 4), "room for one table");
    let mut listed = objects(&[8, 16, 24, 32]);
    listed[0].1.variables = [variable(VariableKind::Counter, Shape::Activations)].into();
    assert_eq!(formed(listed, all), (vec![], 4));
}

/// Pairs of a group with a table at counter 100, and the words that were written.
pub(super) fn group_of(keys: &[u64]) -> Pairs {
    let mut pairs = Pairs::default();
    let [fresh] = <[Fresh; 1]>::try_from(groups::form(objects(keys), u32::MAX)).expect("one group");
    let woven = WovenGroup { minis: vec![(function(0, 0), 5)], ..WovenGroup::default() };
    pairs.gather(fresh.forming.expect("a group"), &[100, 140], woven);
    pairs
}

#[test]
fn pairs_join_a_group_and_leave_it() {
    let mut pairs = group_of(&[8, 16, 24, 32]);
    assert_eq!(pairs.values().count(), 4);
    let (key_40, of_40) = objects(&[40]).remove(0);
    let (key_8, of_8) = objects(&[8]).remove(0);
    let mut words = Vec::new();
    assert!(!pairs.join(&key_8, &of_8, &mut |_, _| true), "its key is listed already");
    assert!(!pairs.join(&key_40, &of_40, &mut |_, _| false), "the word cannot be written");
    let (key_48, of_48) = objects(&[48]).remove(0);
    assert!(pairs.join(&key_48, &of_48, &mut |counter, word| {
        words.push((counter, word));
        true
    }));
    let [(counter, 48)] = words.as_slice() else { panic!("{words:?}") };
    let pair = pairs.get(&key_48).expect("a pair");
    let group = pairs.group_of(pair).expect("a group");
    assert_eq!((group.members(), group.first, group.table(), &*group.hits), (5, 100, (100, 32), &[140][..]));
    assert_eq!(pair.counters, [counter + 16], "the value of a place comes 16 counters after its key");
    // the shared snippet stays until its last pair goes
    let all: Vec<PairKey> = pairs.iter().map(|(key, _)| key.clone()).collect();
    assert!(pairs.minis_of(&all[1..].iter().collect()).is_empty());
    assert_eq!(pairs.minis_of(&all.iter().collect()), [(function(0, 0), 5)], "once, not five times");
    // a pair that parts again retires its key
    let mut retired = Vec::new();
    pairs.part(std::slice::from_ref(&key_48), &mut |at, word| {
        retired.push((at, word));
        true
    });
    assert_eq!(retired, [(*counter, RETIRED)]);
    assert_eq!((pairs.values().count(), pairs.get(&key_48).is_none()), (4, true));
    assert!(pairs.join(&key_48, &of_48, &mut |at, _| at != *counter), "a retired place is not used again");
}

#[test]
fn a_group_without_listed_keys_takes_no_pair() {
    let mut pairs = group_of(&[8, 16, 24, 32]);
    let keys: Vec<PairKey> = pairs.iter().map(|(key, _)| key.clone()).collect();
    let mut retired = FxHashSet::default();
    pairs.retire_keys(keys.iter(), &mut |counter, word| word == RETIRED && retired.insert(counter));
    assert_eq!(retired.len(), 4);
    let (key_40, of_40) = objects(&[40]).remove(0);
    assert!(!pairs.join(&key_40, &of_40, &mut |_, _| true), "its code is about to go");
    // the table stays as long as a value is read
    let users: Vec<(PairKey, Option<FunctionId>)> = keys.iter().map(|key| (key.clone(), None)).collect();
    pairs.add_users(&users);
    let firsts: Vec<u32> = keys.iter().map(|key| pairs.get(key).expect("a pair").counters[0]).collect();
    let drop = |pairs: &mut Pairs, range: std::ops::Range<usize>| {
        pairs.drop_users(range.map(|n| (&keys[n], firsts[n]))).counters()
    };
    assert!(drop(&mut pairs, 0..3).is_empty());
    assert!(pairs.retire(&keys[3]).is_some());
    assert_eq!(drop(&mut pairs, 3..4), [100..132, 140..141], "the table, and the counter of its hits");
    assert!(pairs.is_empty());
    pairs.retire_keys(keys.iter(), &mut |_, _| panic!("they are gone"));
}

#[test]
fn instrumentations_with_one_code_share_it_when_their_sizes_change() {
    use ingraft_model::{KeyField, TableShape};

    use crate::measure::sizes::{Resizing, VariableSizes};

    let v = VariableId(0);
    let snippet = Arc::new(Snippet {
        stmts: vec![Stmt::AddAt(v, TableShape::SUMS, vec![KeyField::Number(Expr::Arg(0))], Expr::Const(1))],
    });
    let variable = variable(VariableKind::Counter, Shape::Table(TableShape::SUMS));
    let mut one = instrumentation(vec![variable]);
    one.insertions = vec![insertion(function(0, 0), PointKind::Entry, snippet.stmts.clone())];
    one.insertions[0].snippet = Arc::clone(&snippet);
    let mut other = one.clone();
    let sizes = VariableSizes::usual(1, 1);
    let mut resizing = Resizing::to(sizes);
    [&mut one, &mut other].into_iter().for_each(|i| resizing.apply(i));
    assert_eq!(sizes.kept(&one.variables), sizes);
    assert!(Arc::ptr_eq(&one.insertions[0].snippet, &other.insertions[0].snippet));
    assert_eq!(*one.insertions[0].snippet, snippet.with_sizes(sizes.resolution, sizes.places));
    let again = Arc::clone(&one.insertions[0].snippet);
    resizing.apply(&mut one);
    assert!(Arc::ptr_eq(&one.insertions[0].snippet, &again));
}
