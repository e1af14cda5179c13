use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::merge::MergeError;
use crate::saved::{ModuleInfo, ProfileKind, SavedProfile};

fn context(parent: Option<usize>, function: usize, site: u64, calls: u64, value: i64) -> CallingContext {
    let site = ReturnSite { module: Some(0), at: Svma(site) };
    CallingContext { parent, function, site, kind: ContextKind::Call, calls, metrics: vec![value] }
}

/// Functions with these names, all in the first module.
fn functions(names: &[&str]) -> Vec<ContextFunction> {
    let function = |(n, name): (usize, &&str)| {
        let start = Svma(0x1000 * (n as u64 + 1));
        ContextFunction { name: (*name).to_owned(), start, size: 0x100, ..ContextFunction::default() }
    };
    names.iter().enumerate().map(function).collect()
}

/// `main` calls `parse` from two places. `parse` calls `read` and itself.
pub(crate) fn small() -> ContextProfile {
    let recursion = CallingContext { kind: ContextKind::Recursion(1), ..context(Some(1), 1, 0x2020, 6, 0) };
    let contexts = vec![
        context(None, 0, 0, 1, 10),
        context(Some(0), 1, 0x1010, 2, 30),
        context(Some(1), 2, 0x2010, 8, 400),
        recursion,
        context(Some(0), 1, 0x1020, 3, 5),
        context(Some(4), 2, 0x2010, 3, 100),
    ];
    let functions = functions(&["main", "parse", "read", "idle"]);
    let metrics = vec!["wall_ns".to_owned()];
    ContextProfile {
        functions,
        contexts,
        metrics,
        outside: vec![7],
        full: 9,
        look_squares: 5,
        ..ContextProfile::default()
    }
}

/// Whether an ancestor of a context is another one.
pub(crate) fn is_ancestor(profile: &ContextProfile, ancestor: usize, of: usize) -> bool {
    let above = |at: &usize| profile.contexts[*at].parent;
    std::iter::successors(above(&of), above).any(|at| at == ancestor)
}

/// Trees with functions in this number of modules. No two contexts have the same parent, function, call site and kind. In half of the trees
/// each recursive call has a context of its own.
pub(crate) fn tree(modules: usize) -> impl Strategy<Value = ContextProfile> {
    let context = (any::<Index>(), 0..5_usize, 0..4_u64, 0..3_u8, 0..100_u64, vec(-9..1000_i64, 2));
    let function = (0..modules, ".{0,8}", any::<[u64; 4]>());
    (vec(context, 0..60), vec(function, 5), 0..3_usize, any::<(i64, i64, u64)>()).prop_map(
        move |(drawn, functions, metrics, (one, two, full))| {
            let each_has_its_own = full % 2 == 0;
            let mut contexts: Vec<CallingContext> = Vec::new();
            for (parent, function, site, kind, calls, mut values) in drawn {
                // A quarter of the contexts, and the first one, are roots.
                let parent = parent.index(4 * contexts.len().max(1));
                let parent = contexts.get(parent).map(|context| match context.kind {
                    ContextKind::Recursion(target) => target,
                    _ => parent,
                });
                let above = std::iter::successors(parent, |at| contexts[*at].parent);
                let target = above.into_iter().find(|at| contexts[*at].function == function);
                let kind = match (target, kind) {
                    (Some(target), _) if !each_has_its_own => ContextKind::Recursion(target),
                    (_, 0) => ContextKind::Tail,
                    (_, 1) if parent.is_some() => ContextKind::Signal,
                    (_, _) => ContextKind::Call,
                };
                let site = ReturnSite { module: (site > 0).then(|| site as usize % modules), at: Svma(site) };
                values.truncate(metrics);
                let key = |c: &CallingContext| (c.parent, c.function, c.site, c.kind);
                let context = CallingContext { parent, function, site, kind, calls, metrics: values };
                if contexts.iter().all(|other| key(other) != key(&context)) {
                    contexts.push(context);
                }
            }
            let function = |(module, name, [size, left, unseen, unrecorded]): (usize, String, [u64; 4])| {
                let (start, left_by_tail_jump) = (Svma(size ^ left), left / 3);
                ContextFunction { module, name, start, size, left, unseen, unrecorded, left_by_tail_jump }
            };
            let functions = functions.into_iter().map(function).collect();
            let (names, mut outside) = (["wall_ns", "bytes"], vec![one, two]);
            outside.truncate(metrics);
            let metrics = names[..metrics].iter().map(|name| (*name).to_owned()).collect();
            let look_squares = full / 2;
            ContextProfile { functions, contexts, metrics, outside, full, look_squares, ..ContextProfile::default() }
        },
    )
}

#[test]
fn statistics_are_those_of_the_paper() {
    let statistics = small().statistics();
    let expected = ContextStatistics {
        nodes: 5,
        back_edges: 1,
        height: 3,
        // `main` has two children, and both contexts of `parse` have one.
        degree: 4.0 / 3.0,
        leaf_depth: 3.0,
        replication: 2,
        call_sites: 4,
        single_sites: 3,
    };
    assert_eq!(statistics, expected);
    assert_eq!(ContextProfile::default().statistics(), ContextStatistics::default());
}

#[test]
fn contexts_that_differ_in_their_call_sites_become_one() {
    let merged = small().by_function();
    let recursion = CallingContext { kind: ContextKind::Recursion(1), ..context(Some(1), 1, 0x2020, 6, 0) };
    let expected = vec![
        context(None, 0, 0, 1, 10),
        context(Some(0), 1, 0x1010, 5, 35),
        context(Some(1), 2, 0x2010, 11, 500),
        recursion,
    ];
    assert_eq!(merged, ContextProfile { contexts: expected, ..small() });
}

#[test]
fn callers_have_shares_of_the_value() {
    let found = small().callers(ContextValue::Metric(0), 1, 2);
    let caller = |function, site, value, calls| {
        let site = Some(ReturnSite { module: Some(0), at: Svma(site) });
        CallerNode { function, site, value, calls, callers: Vec::new() }
    };
    let read = CallerNode { function: 2, site: None, value: 500, calls: 11, callers: vec![caller(1, 0x2010, 500, 11)] };
    let from = vec![caller(0, 0x1010, 30, 2), caller(0, 0x1020, 5, 3)];
    let parse = CallerNode { function: 1, site: None, value: 35, calls: 11, callers: from };
    assert_eq!(found, [read, parse]);
}

#[test]
fn the_hot_path_ends_where_no_child_has_half_of_the_value() {
    assert_eq!(small().hot_path(ContextValue::Metric(0)), [0, 1, 2]);
    // 23 calls, of which 16 are in the first context of `parse` and 8 in `read`.
    assert_eq!(small().hot_path(ContextValue::Calls), [0, 1, 2]);
    assert_eq!(ContextProfile::default().hot_path(ContextValue::Calls), [0; 0]);
}

/// A profile with a tree, and with modules of these names.
pub(crate) fn saved(contexts: ContextProfile, modules: &[&str]) -> SavedProfile {
    let module = |name: &&str| {
        let name = (*name).to_owned();
        ModuleInfo { build_id: name.as_bytes().to_vec(), path: format!("/opt/{name}"), name, ..ModuleInfo::default() }
    };
    let modules = modules.iter().map(module).collect();
    SavedProfile { kind: ProfileKind::Contexts, modules, contexts: Some(contexts), ..SavedProfile::default() }
}

#[test]
fn contexts_are_summed_and_compared_by_their_paths() {
    let mut other = small();
    other.functions.iter_mut().for_each(|function| (function.module, function.left) = (1, 2));
    other.contexts.iter_mut().for_each(|context| context.site.module = Some(1));
    // Without the first context of `parse`, and with a new one of `idle`. Functions have another order.
    other.contexts.drain(1..4);
    (other.contexts[1].parent, other.contexts[2].parent) = (Some(0), Some(1));
    other.contexts.push(context(Some(2), 3, 0x3010, 1, 1));
    other.contexts[3].site.module = None;
    other.functions.swap(0, 3);
    (other.contexts[0].function, other.contexts[3].function) = (3, 0);
    let (one, other) = (saved(small(), &["shop"]), saved(other, &["lib", "shop"]));
    let mut sum = one.clone();
    sum.add(&other).expect("a sum");
    let tree = sum.contexts.as_ref().expect("contexts");
    let calls: Vec<_> = tree.contexts.iter().map(|context| context.calls).collect();
    assert_eq!(calls, [2, 2, 8, 6, 6, 6, 1]);
    assert_eq!(tree.values(ContextValue::Metric(0)), [20, 30, 400, 0, 10, 200, 1]);
    let last = CallingContext { parent: Some(5), ..context(Some(5), 3, 0x3010, 1, 1) };
    assert_eq!(tree.contexts[6], CallingContext { site: ReturnSite { module: None, at: Svma(0x3010) }, ..last });
    assert_eq!((&tree.outside[..], tree.full, tree.functions.len()), (&[14][..], 18, 4));
    assert!(tree.functions.iter().all(|function| function.left == 2 && function.module == 0));

    let changes = context_diff(&one, &other).expect("differences");
    assert_eq!(changes.len(), 7);
    let read = changes.iter().find(|change| change.calls.own == ChangedValue { old: 8, new: 0 }).expect("a context");
    assert_eq!((&*read.name, &*read.module, read.site), ("read", "shop", Svma(0x2010)));
    assert_eq!(read.metrics[0].inclusive.difference(), -400);
    let chain: Vec<_> = std::iter::successors(Some(read), |change| change.parent.map(|parent| &changes[parent]))
        .map(|change| (&*change.name, change.calls.inclusive))
        .collect();
    let inclusive = |old, new| ChangedValue { old, new };
    assert_eq!(chain, [("read", inclusive(8, 0)), ("parse", inclusive(16, 0)), ("main", inclusive(23, 8))]);
    let same = context_diff(&one, &one).expect("differences");
    assert!(same.len() == 6 && !same.iter().any(ContextChange::differs));
}

#[test]
fn profiles_of_other_kinds_and_metrics_are_refused() {
    let mut one = saved(small(), &["shop"]);
    let counts = SavedProfile { kind: ProfileKind::Counts, contexts: None, ..one.clone() };
    assert_eq!(one.clone().add(&counts), Err(MergeError::OtherContexts));
    assert_eq!(counts.clone().add(&one), Err(MergeError::OtherContexts));
    assert_eq!(context_diff(&one, &counts), Err(MergeError::OtherContexts));
    let other = saved(ContextProfile { metrics: Vec::new(), outside: Vec::new(), ..small() }, &["shop"]);
    let error = one.clone().add(&other).expect_err("an error").to_string();
    assert_eq!(error, "the profiles have different metrics: wall_ns, and none");
    assert!(matches!(context_diff(&one, &other), Err(MergeError::OtherMetrics { .. })));
    one.contexts.iter_mut().for_each(|tree| tree.contexts[0].calls = u64::MAX);
    assert_eq!(one.clone().add(&one), Err(MergeError::TooLarge { function: "main".to_owned() }));
}

/// All nodes of trees of callers: functions and call sites from the root on, with the value and the calls.
fn flat(nodes: &[CallerNode], above: &[(usize, Option<ReturnSite>)], to: &mut BTreeMap<Vec<Step>, (i64, u64)>) {
    for node in nodes {
        let path = [above, &[(node.function, node.site)]].concat();
        flat(&node.callers, &path, to);
        assert_eq!(to.insert(path, (node.value, node.calls)), None, "each caller has one node");
    }
}

type Step = (usize, Option<ReturnSite>);

proptest! {
    #[test]
    fn merged_contexts_have_the_same_sums(profile in tree(3)) {
        let merged = profile.by_function();
        for of in [ContextValue::Calls, ContextValue::Metric(0)] {
            let sums = |profile: &ContextProfile| {
                let mut sums = BTreeMap::<usize, i64>::new();
                for (context, value) in profile.contexts.iter().zip(profile.values(of)) {
                    *sums.entry(context.function).or_default() += value;
                }
                let inclusive = profile.contexts.iter().zip(profile.inclusive(of));
                let roots: i64 = inclusive.filter(|(context, _)| context.parent.is_none()).map(|(_, value)| value).sum();
                (sums, roots)
            };
            prop_assert_eq!(sums(&merged), sums(&profile));
        }
        for (index, context) in merged.contexts.iter().enumerate() {
            prop_assert!(context.parent.is_none_or(|parent| parent < index));
            if let ContextKind::Recursion(target) = context.kind {
                prop_assert!(is_ancestor(&merged, target, index));
                prop_assert_eq!(merged.contexts[target].function, context.function);
            }
        }
        prop_assert_eq!(merged.by_function(), merged);
    }

    #[test]
    fn totals_count_each_context_once_in_each_function_of_its_stack(profile in tree(2)) {
        let of = ContextValue::Metric(0);
        let mut expected = vec![FunctionTotal::default(); profile.functions.len()];
        for (index, (context, value)) in profile.contexts.iter().zip(profile.values(of)).enumerate() {
            expected[context.function].calls += context.calls;
            expected[context.function].own += value;
            let stack = std::iter::successors(Some(index), |at| profile.contexts[*at].parent);
            let functions: BTreeSet<usize> = stack.map(|at| profile.contexts[at].function).collect();
            functions.into_iter().for_each(|function| expected[function].inclusive += value);
        }
        prop_assert_eq!(profile.function_totals(of), expected);
    }

    #[test]
    fn callers_are_the_ancestors_of_the_contexts(profile in tree(2), depth in 0..4_usize) {
        let of = ContextValue::Metric(0);
        let mut expected = BTreeMap::<Vec<Step>, (i64, u64)>::new();
        for (context, value) in profile.contexts.iter().zip(profile.values(of)) {
            let mut path = vec![(context.function, None)];
            let mut at = context;
            for _ in 0..=depth {
                let sums = expected.entry(path.clone()).or_default();
                *sums = (sums.0 + value, sums.1 + context.calls);
                let Some(parent) = at.parent else { break };
                path.push((profile.contexts[parent].function, Some(at.site)));
                at = &profile.contexts[parent];
            }
        }
        let mut found = BTreeMap::new();
        flat(&profile.callers(of, depth, usize::MAX), &[], &mut found);
        prop_assert_eq!(found, expected);
        let few = profile.callers(of, depth, 2);
        prop_assert!(few.len() <= 2 && few.iter().all(|node| node.callers.len() <= 2));
        prop_assert!(few.is_sorted_by_key(|node| std::cmp::Reverse(node.value)));
    }

    #[test]
    fn a_sum_has_the_values_of_both_trees(one in tree(2), other in tree(2)) {
        // The functions of trees have random addresses and numbers, and one metric more or less.
        let metrics = one.metrics.clone();
        let function =
            |f: &ContextFunction| ContextFunction { left: 1, unseen: 2, unrecorded: 3, left_by_tail_jump: 4, ..f.clone() };
        let functions: Vec<_> = one.functions.iter().map(function).collect();
        let one = ContextProfile { functions: functions.clone(), outside: vec![1; metrics.len()], ..one };
        let mut other = ContextProfile { functions, outside: vec![0; metrics.len()], metrics, ..other };
        other.contexts.iter_mut().for_each(|context| context.metrics.resize(one.metrics.len(), 1));
        let (one, other) = (saved(one, &["a", "b"]), saved(other, &["a", "b"]));
        let mut sum = one.clone();
        sum.add(&other).expect("a sum");
        let values = |saved: &SavedProfile| {
            let tree = saved.contexts.as_ref().expect("contexts");
            [ContextValue::Calls, ContextValue::Metric(0)].map(|of| tree.values(of).iter().sum::<i64>())
        };
        let ([a, b], [c, d]) = (values(&one), values(&other));
        prop_assert_eq!(values(&sum), [a + c, b + d]);
        let mut twice = sum.clone();
        twice.add(&sum).expect("a sum");
        let contexts = |saved: &SavedProfile| saved.contexts.as_ref().expect("contexts").contexts.len();
        prop_assert_eq!(contexts(&twice), contexts(&sum));
        let changes = context_diff(&one, &sum).expect("differences");
        prop_assert_eq!(changes.len(), contexts(&sum));
        let difference = changes.iter().map(|change| change.calls.own.difference()).sum::<i128>();
        prop_assert_eq!(difference, i128::from(c));
        prop_assert!(changes.iter().enumerate().all(|(index, change)| change.parent.is_none_or(|p| p < index)));
    }

    #[test]
    fn statistics_fit_the_tree(profile in tree(2)) {
        let statistics = profile.statistics();
        prop_assert_eq!(statistics.nodes + statistics.back_edges, profile.contexts.len() as u64);
        prop_assert!(statistics.leaf_depth <= statistics.height as f64);
        prop_assert!(statistics.single_sites <= statistics.call_sites);
        let children = profile.children();
        let reached: usize = std::iter::once(None).chain((0..profile.contexts.len()).map(Some)).map(|of| children.of(of).count()).sum();
        prop_assert_eq!(reached, profile.contexts.len());
    }
}
