//! Profiles as messages: parts for an answer, a profile from such parts, and the counts of an earlier profile.

use std::mem::take;

use ingraft_model::Svma;
use ingraft_report::message::UNKNOWN_PASSAGES as UNKNOWN;
use ingraft_report::{Earlier, EarlierProfile, SavedProfile};

use crate::field::FieldError;
use crate::parts::MessageParts;
use crate::v1;

/// Splits a profile into parts that each fit into a message.
pub fn parts(mut profile: SavedProfile) -> impl Iterator<Item = v1::Profile> + Send {
    let functions = take(&mut profile.functions).into_iter().map(|function| v1::FunctionCounts::from(&function));
    let functions = MessageParts::new(functions).map(|functions| v1::Profile { functions, ..v1::Profile::default() });
    let refused = take(&mut profile.refused).into_iter().map(|refused| v1::FunctionNotCounted::from(&refused));
    let refused = MessageParts::new(refused).map(|refused| v1::Profile { refused, ..v1::Profile::default() });
    let mut first = v1::Profile::from(&profile);
    let contexts = first.contexts.as_mut();
    let lists = contexts
        .map(|tree| (take(&mut tree.functions), take(&mut tree.rows), take(&mut tree.times), take(&mut tree.waits)));
    let (tracked, rows, times, waits) = lists.unwrap_or_default();
    let of_tree = |tree| v1::Profile { contexts: Some(tree), ..v1::Profile::default() };
    let tracked = MessageParts::new(tracked);
    let tracked = tracked.map(move |functions| of_tree(v1::ContextTree { functions, ..v1::ContextTree::default() }));
    let rows = MessageParts::new(rows);
    let rows = rows.map(move |rows| of_tree(v1::ContextTree { rows, ..v1::ContextTree::default() }));
    let times = MessageParts::new(times);
    let times = times.map(move |times| of_tree(v1::ContextTree { times, ..v1::ContextTree::default() }));
    let waits = MessageParts::new(waits);
    let waits = waits.map(move |waits| of_tree(v1::ContextTree { waits, ..v1::ContextTree::default() }));
    let lists = functions.chain(refused).chain(tracked).chain(rows);
    std::iter::once(first).chain(lists).chain(times).chain(waits)
}

/// The profile that has these parts. Fails if they contradict each other.
pub fn whole(parts: Vec<v1::Profile>) -> Result<SavedProfile, FieldError> {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_default();
    for part in parts {
        whole.functions.extend(part.functions);
        whole.refused.extend(part.refused);
        if let Some(part) = part.contexts {
            let tree = whole.contexts.get_or_insert_default();
            tree.functions.extend(part.functions);
            tree.rows.extend(part.rows);
            tree.times.extend(part.times);
            tree.waits.extend(part.waits);
        }
    }
    SavedProfile::try_from(whole).map_err(|e| FieldError::new("profile", e))
}

/// Converts the counts of an earlier profile to a message, which has only what [`earlier`] needs.
pub fn earlier_to_wire(earlier: &EarlierProfile) -> v1::Profile {
    let mut profile = v1::Profile::default();
    for (build_id, function, counts) in earlier.iter() {
        if profile.modules.last().is_none_or(|module| module.build_id != build_id) {
            profile.modules.push(v1::ProfileModule { build_id: build_id.to_vec(), ..v1::ProfileModule::default() });
        }
        profile.functions.push(v1::FunctionCounts {
            module: profile.modules.len() as u64 - 1,
            start: function.0,
            block_count: counts.blocks.as_slice().to_vec(),
            edge_shape: counts.edges.iter().map(|count| if count.is_some() { 0 } else { UNKNOWN }).collect(),
            edge_count: counts.edges.iter().map(|count| count.unwrap_or(0)).collect(),
            ..v1::FunctionCounts::default()
        });
    }
    profile
}

/// Converts the counts of an earlier profile from their message.
pub fn earlier(profile: v1::Profile) -> Result<EarlierProfile, FieldError> {
    let mut earlier = EarlierProfile::default();
    for (i, function) in profile.functions.into_iter().enumerate() {
        let module = usize::try_from(function.module).ok().and_then(|index| profile.modules.get(index));
        let module =
            module.ok_or_else(|| FieldError::new(format!("functions[{i}].module"), "is the index of no module"))?;
        let edges = function.edge_shape.iter().zip(function.edge_count);
        let edges = edges.map(|(shape, count)| (*shape < UNKNOWN).then_some(count)).collect();
        earlier.add(&module.build_id, Svma(function.start), Earlier { blocks: function.block_count.into(), edges });
    }
    Ok(earlier)
}

#[cfg(test)]
mod tests {
    use ingraft_model::{BlockEvents, Bucket, Distribution, EdgeKind};
    use ingraft_report::{
        BlockCount, CallCount, CallTarget, CallTimes, CallingContext, ContextFunction, ContextKind, ContextProfile,
        EdgeCount, EdgeEnd, FunctionProfile, InclusiveTotal, LockHolder, LockWait, ModuleInfo, ProfileKind, ReturnSite,
        UnprofiledFunction, UnsavedDetails, UntimedCalls,
    };
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    fn profile() -> SavedProfile {
        let block =
            |n: u64| BlockCount { start: Svma(16 * n), size: 16, instructions: 4, last: Svma(16 * n + 12), count: n };
        let edge = |from, to, kind, count| EdgeCount { from, to, kind, count };
        let call = |block, callee| CallCount { block, callee, count: 7 };
        let events = |n: u64| BlockEvents {
            last: Svma(16 * n + 12),
            instructions: 4,
            calls: 1,
            branches: 2,
            reads: 3,
            writes: 4,
        };
        let total = InclusiveTotal { events: Some(8), inexact: None };
        let unknown = InclusiveTotal { events: None, inexact: Some("why".to_owned()) };
        let details = UnsavedDetails {
            name: "f()".to_owned(),
            events: (0..40).map(events).collect(),
            inclusive: Some(unknown.clone()),
            calls: vec![(2, total), (4, unknown)],
        };
        let function = |n: u64| FunctionProfile {
            module: 0,
            name: format!("_Z{n}"),
            start: Svma(n),
            size: 32,
            calls: n,
            blocks: (0..40).map(block).collect(),
            edges: vec![
                edge(0, EdgeEnd::Block(1), EdgeKind::Taken, Some(5)),
                edge(1, EdgeEnd::Outside(Svma(9)), EdgeKind::TailJump, None),
                edge(1, EdgeEnd::Dynamic, EdgeKind::Return, Some(0)),
            ],
            call_sites: vec![
                call(1, CallTarget::Own(Svma(1))),
                call(2, CallTarget::Other { module: 0, at: Svma(3) }),
                call(3, CallTarget::Named("free".to_owned())),
                call(4, CallTarget::Indirect),
                call(5, CallTarget::System),
            ],
            unknown: if n == 5 { vec![0, 3] } else { Vec::new() },
            inexact: (n == 3).then(|| "why".to_owned()),
            details: Some(details.clone()),
            paths: None,
        };
        let module =
            ModuleInfo { name: "m".to_owned(), path: "/m".to_owned(), build_id: vec![1, 2], bias: 3, mapped: (4, 5) };
        let refused =
            |n| UnprofiledFunction { module: 0, name: "g".to_owned(), start: Svma(n), why: "because".to_owned() };
        SavedProfile {
            kind: ProfileKind::Coverage,
            host: String::new(),
            pid: 7,
            program: "/p".to_owned(),
            began_ns: 8,
            ended_ns: 9,
            modules: vec![module],
            functions: (0..6000).map(function).collect(),
            refused: (0..100_000).map(refused).collect(),
            corrected: (10, 11),
            held_ns: 6,
            inclusive: "calls".to_owned(),
            contexts: None,
            path_metrics: vec!["wall_ns".to_owned()],
        }
    }

    /// A profile of 200,000 contexts of 20,000 functions. Every tenth one leads back to the first one.
    fn contexts() -> SavedProfile {
        let function = |n: u64| ContextFunction {
            name: format!("_ZN4shop{n}sellEv, a name of some length, as instances of templates have"),
            start: Svma(16 * n),
            size: 16,
            left: n,
            ..ContextFunction::default()
        };
        let context = |n: usize| CallingContext {
            parent: (n > 0).then(|| (n / 3).saturating_sub(usize::from((n / 3) % 10 == 9))),
            function: if n % 10 == 9 { 0 } else { n % 20_000 },
            site: ReturnSite { module: (!n.is_multiple_of(7)).then_some(0), at: Svma(u64::MAX / (n as u64 + 1)) },
            kind: if n % 10 == 9 { ContextKind::Recursion(0) } else { ContextKind::Call },
            calls: n as u64,
            metrics: vec![n as i64, -(n as i64)],
        };
        let times = |n: usize| {
            let bucket = |at: u64| Bucket { first: 64 * at, end: 64 * at + 64, count: 1 + at };
            let buckets: Vec<Bucket> = (0..200).map(bucket).collect();
            let count = buckets.iter().map(|bucket| bucket.count).sum();
            let (min, max, own) = (3, 12_700, (n % 2 == 1).then_some(5));
            let times = Distribution { count, sum: n as u64, min, max, own, squares: None, buckets };
            CallTimes { context: n.checked_sub(1), function: 3, times }
        };
        let wait = |n: usize| {
            let others = [LockHolder::Untold, LockHolder::Outside, LockHolder::Nobody];
            let holder = others.get(n % 4).copied().unwrap_or(LockHolder::Context(n));
            let (lock, name, ns, looks) = (16 * n as u64, "pool+0x8".repeat(n % 20), 7, 1);
            LockWait { lock, name, waiter: n, holder, ns, looks }
        };
        let tree = ContextProfile {
            functions: (0..20_000).map(function).collect(),
            contexts: (0..200_000).map(context).collect(),
            metrics: vec!["wall_ns".to_owned(), "bytes".to_owned()],
            outside: vec![1, -2],
            full: 3,
            look_squares: 4,
            live: None,
            timed: vec![UntimedCalls { function: 3, left_by_tail_jump: 4, earlier: 5 }],
            times: (0..1000).map(times).collect(),
            holders: (0..20_000).map(wait).collect(),
        };
        let saved = profile();
        let (functions, refused) = (Vec::new(), saved.refused.into_iter().take(2).collect());
        SavedProfile { kind: ProfileKind::Contexts, functions, refused, contexts: Some(tree), ..profile() }
    }

    #[test]
    fn a_profile_is_the_sum_of_its_parts() {
        check_parts(profile());
        check_parts(contexts());
        let empty = SavedProfile { contexts: Some(ContextProfile::default()), ..SavedProfile::default() };
        let empty = SavedProfile { kind: ProfileKind::Contexts, ..empty };
        assert_eq!(whole(parts(empty.clone()).collect()), Ok(empty));
    }

    fn check_parts(profile: SavedProfile) {
        let parts: Vec<_> = parts(profile.clone()).collect();
        assert!(parts.len() > 4, "the functions, or the contexts, need several messages");
        assert!(parts.iter().all(|part| prost::Message::encoded_len(part) < crate::MESSAGE_BYTES));
        let encoded: Vec<u8> = parts.iter().flat_map(prost::Message::encode_to_vec).collect();
        let joined: v1::Profile = prost::Message::decode(encoded.as_slice()).expect("a message");
        assert_eq!(SavedProfile::try_from(joined), Ok(profile.clone()));
        assert_eq!(whole(parts), Ok(profile));
    }

    #[test]
    fn an_unknown_kind_of_edge_is_named() {
        let function = v1::FunctionCounts {
            block_distance: vec![0],
            block_size: vec![1],
            block_instructions: vec![1],
            block_last: vec![0],
            block_count: vec![0],
            edge_from: vec![0],
            edge_shape: vec![7],
            edge_to: vec![0],
            edge_count: vec![0],
            ..Default::default()
        };
        let part = v1::Profile { functions: vec![function], modules: vec![Default::default()], ..Default::default() };
        let error = whole(vec![part]).expect_err("an error").to_string();
        assert!(error.starts_with("profile") && error.contains("unknown kind"), "{error}");
    }

    fn counts() -> impl Strategy<Value = Earlier> {
        (vec(any::<u64>(), 0..4), vec(option::of(any::<u64>()), 0..4))
            .prop_map(|(blocks, edges)| Earlier { blocks: blocks.into(), edges: edges.into() })
    }

    proptest! {
        #[test]
        fn earlier_counts_are_converted_both_ways(all in vec((vec(0..3_u8, 1..3), 0..9_u64, counts()), 0..9)) {
            let mut profile = EarlierProfile::default();
            all.into_iter().for_each(|(build_id, start, counts)| profile.add(&build_id, Svma(start), counts));
            prop_assert_eq!(earlier(earlier_to_wire(&profile)), Ok(profile));
        }
    }
}
