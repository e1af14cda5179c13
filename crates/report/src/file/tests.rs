use ingraft_model::{BlockEvents, EdgeKind, Svma};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use ingraft_profile::{PathBegin, PathEnd};

use super::*;
use crate::contexts;
use crate::contexts::{CallingContext, ContextKind, ContextProfile};
use crate::message::{ContextRows, PathCounts};
use crate::saved::*;

fn module() -> impl Strategy<Value = ModuleInfo> {
    (".{0,8}", ".{0,8}", vec(any::<u8>(), 0..20), any::<u64>(), any::<(u64, u64)>())
        .prop_map(|(name, path, build_id, bias, mapped)| ModuleInfo { name, path, build_id, bias, mapped })
}

fn blocks() -> impl Strategy<Value = Vec<BlockCount>> {
    let block = any::<(u64, u32, u32, u64, u64)>().prop_map(|(start, size, instructions, last, count)| BlockCount {
        start: Svma(start),
        size,
        instructions,
        last: Svma(last),
        count,
    });
    vec(block, 1..6)
}

fn edge() -> impl Strategy<Value = (Index, u8, u64, EdgeKind, Option<u64>)> {
    use EdgeKind::*;
    let kind = select(vec![Taken, FallThrough, CallReturn, JumpTable, TailJump, Return]);
    (any::<Index>(), 0..3_u8, any::<u64>(), kind, option::of(any::<u64>()))
}

fn total() -> impl Strategy<Value = InclusiveTotal> {
    (option::of(any::<u64>()), option::of(".{0,8}")).prop_map(|(events, inexact)| InclusiveTotal { events, inexact })
}

/// Details of a function with these blocks.
fn details(blocks: &[BlockCount]) -> impl Strategy<Value = UnsavedDetails> + use<> {
    let events = |block: &BlockCount| {
        let (last, instructions) = (block.last, block.instructions);
        any::<[u32; 4]>().prop_map(move |[calls, branches, reads, writes]| BlockEvents {
            last,
            instructions,
            calls,
            branches,
            reads,
            writes,
        })
    };
    let events: Vec<_> = blocks.iter().map(events).collect();
    (".{0,8}", events, option::of(total()), vec((0..blocks.len(), total()), 0..3))
        .prop_map(|(name, events, inclusive, calls)| UnsavedDetails { name, events, inclusive, calls })
}

/// Counts of the paths of a function with so many blocks.
fn paths(blocks: usize) -> impl Strategy<Value = PathProfile> {
    let begins = [PathBegin::Entry, PathBegin::Elsewhere, PathBegin::Loop, PathBegin::Return];
    let ends = [PathEnd::Exit, PathEnd::Loop, PathEnd::Call, PathEnd::Never];
    let path = (
        any::<Index>(),
        select(begins.to_vec()),
        vec(0..blocks, 1..5),
        select(ends.to_vec()),
        (option::of(0..blocks), any::<u64>()),
    );
    let numbers = (any::<(u64, u64, u64, u64, bool)>(), option::of(".{0,8}"));
    (1_u64.., numbers, vec(path, 0..4)).prop_map(
        |(possible, ((late, unlisted, open, left, is_cut), inexact), paths)| {
            let path = |(number, begins, blocks, ends, (next, count)): (Index, _, _, _, _)| PathCount {
                number: number.index(usize::try_from(possible).expect("64 bits")) as u64,
                begins,
                blocks,
                ends,
                next,
                count,
                values: Vec::new(),
            };
            let paths = paths.into_iter().map(path).collect();
            PathProfile { possible, is_cut, paths, late, unlisted, open, left, inexact, by_context: Vec::new() }
        },
    )
}

fn function(modules: usize) -> impl Strategy<Value = FunctionProfile> {
    let calls = vec((any::<Index>(), 0..5_u8, any::<u64>(), any::<u64>(), ".{0,6}"), 0..4);
    let facts = (0..modules, ".{0,8}", any::<(u64, u64, u64)>(), option::of(".{0,8}"));
    let blocks =
        blocks().prop_flat_map(|blocks| (option::of(details(&blocks)), option::of(paths(blocks.len())), Just(blocks)));
    (facts, blocks, vec(edge(), 0..6), calls).prop_map(move |(facts, (details, paths, blocks), edges, calls)| {
        let (module, name, (start, size, count), inexact) = facts;
        let edges = edges.into_iter().map(|(from, end, at, kind, count)| EdgeCount {
            from: from.index(blocks.len()),
            to: match end {
                0 => EdgeEnd::Block((at % blocks.len() as u64) as usize),
                1 => EdgeEnd::Outside(Svma(at)),
                _ => EdgeEnd::Dynamic,
            },
            kind,
            count,
        });
        let calls = calls.into_iter().map(|(block, callee, at, count, name)| CallCount {
            block: block.index(blocks.len()),
            callee: match callee {
                0 => CallTarget::Own(Svma(at)),
                1 => CallTarget::Other { module: (at % modules as u64) as usize, at: Svma(at) },
                2 => CallTarget::Named(name),
                3 => CallTarget::Indirect,
                _ => CallTarget::System,
            },
            count,
        });
        let (mut edges, mut call_sites): (Vec<_>, Vec<_>) = (edges.collect(), calls.collect());
        edges.sort_by_key(|edge| edge.from);
        call_sites.sort_by_key(|call| call.block);
        let unknown = (0..blocks.len()).filter(|block| (count >> (block % 64)) & 1 == 1).collect();
        let start = Svma(start);
        FunctionProfile {
            module,
            name,
            start,
            size,
            calls: count,
            blocks,
            unknown,
            edges,
            call_sites,
            inexact,
            details,
            paths,
        }
    })
}

/// Up to three names.
fn path_metrics(number: u32) -> Vec<String> {
    ["wall_ns", "page-faults", "total_wall_ns"].into_iter().take(number as usize % 4).map(str::to_owned).collect()
}

fn profile() -> impl Strategy<Value = SavedProfile> {
    vec(module(), 1..4).prop_flat_map(|modules| {
        let refused = (0..modules.len(), ".{0,8}", any::<u64>(), ".{0,8}");
        let refused =
            refused.prop_map(|(module, name, start, why)| UnprofiledFunction { module, name, start: Svma(start), why });
        let facts = (".{0,8}", any::<u32>(), ".{0,8}", any::<(u64, u64, u64)>(), any::<(u64, u64)>(), ".{0,8}");
        let contexts = option::of(contexts::tests::tree(modules.len()));
        let parts = (facts, vec(function(modules.len()), 0..4), vec(refused, 0..3), contexts);
        parts.prop_map(move |(facts, functions, refused, contexts)| {
            let (host, pid, program, (began_ns, ended_ns, held_ns), corrected, inclusive) = facts;
            let modules = modules.clone();
            let kind = match (&contexts, pid % 2) {
                (None, 1) => ProfileKind::Coverage,
                (Some(_), 1) => ProfileKind::Contexts,
                _ => ProfileKind::Counts,
            };
            let known = contexts.as_ref().filter(|_| kind == ProfileKind::Counts).map(|tree| tree.contexts.len());
            let mut functions = functions;
            let path_metrics = path_metrics(pid);
            for paths in functions.iter_mut().filter_map(|function| function.paths.as_mut()) {
                let values = |path: &PathCount| path_metrics.iter().map(|_| path.count.cast_signed()).collect();
                paths.paths.iter_mut().for_each(|path| path.values = values(path));
                let all = paths.paths.iter().enumerate().zip(known.into_iter().cycle());
                let runs = all.map(|((path, of), known)| {
                    let context = (of.count as usize).checked_rem(known).filter(|_| of.count % 3 != 0);
                    PathInContext { context, path, count: of.count, values: of.values.clone() }
                });
                paths.by_context = runs.collect();
            }
            let saved = SavedProfile { contexts, path_metrics, ..SavedProfile::default() };
            let saved = SavedProfile { kind, host, pid, program, modules, functions, refused, ..saved };
            SavedProfile { began_ns, ended_ns, corrected, held_ns, inclusive, ..saved }
        })
    })
}

proptest! {
    #[test]
    fn a_profile_is_read_as_it_was_written(profile in profile()) {
        prop_assert_eq!(SavedProfile::from_bytes(&profile.to_bytes()), Ok(profile));
    }

    #[test]
    fn truncated_files_are_refused(profile in profile(), length in any::<Index>()) {
        let bytes = profile.to_bytes();
        prop_assert!(SavedProfile::from_bytes(&bytes[..length.index(bytes.len())]).is_err());
    }

    #[test]
    fn changed_files_are_refused(profile in profile(), at in any::<Index>(), change in 1..=255_u8) {
        let mut bytes = profile.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(SavedProfile::from_bytes(&bytes).is_err());
    }

    #[test]
    fn hostile_bodies_are_read_or_refused(profile in profile(), changes in vec((any::<Index>(), any::<u8>()), 1..6)) {
        let mut bytes = profile.to_bytes();
        for (at, byte) in changes {
            let at = HEADER + at.index(bytes.len() - HEADER);
            bytes[at] = byte;
        }
        let checksum = crc32fast::hash(&bytes[HEADER..]);
        bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
        if let Ok(read) = SavedProfile::from_bytes(&bytes) {
            for function in &read.functions {
                prop_assert!(function.module < read.modules.len());
                prop_assert!(function.edges.iter().all(|edge| edge.from < function.blocks.len()));
                prop_assert!(function.call_sites.iter().all(|call| call.block < function.blocks.len()));
            }
            if let Some(tree) = &read.contexts {
                check_indexes(tree, read.modules.len());
            }
        }
    }
}

/// Panics if an index of a tree of contexts is not valid in a profile with this number of modules.
fn check_indexes(tree: &ContextProfile, modules: usize) {
    assert!(tree.functions.iter().all(|function| function.module < modules));
    assert_eq!(tree.outside.len(), tree.metrics.len());
    for (index, context) in tree.contexts.iter().enumerate() {
        assert!(context.function < tree.functions.len() && context.parent.is_none_or(|parent| parent < index));
        assert!(context.site.module.is_none_or(|module| module < modules));
        assert_eq!(context.metrics.len(), tree.metrics.len());
        if let ContextKind::Recursion(target) = context.kind {
            assert_eq!(tree.contexts[target].function, context.function);
            assert!(contexts::tests::is_ancestor(tree, target, index));
        }
    }
}

/// The small tree with the rows of its contexts changed.
fn changed(change: impl Fn(&mut ContextRows)) -> Result<SavedProfile, FileError> {
    let modules = vec![ModuleInfo::default()];
    let (kind, contexts) = (ProfileKind::Contexts, Some(contexts::tests::small()));
    let mut message = Profile::from(&SavedProfile { kind, modules, contexts, ..SavedProfile::default() });
    message.contexts.iter_mut().flat_map(|tree| &mut tree.rows).for_each(change);
    message.try_into()
}

#[test]
fn contexts_that_contradict_each_other_are_refused() {
    let why = |change: fn(&mut ContextRows)| match changed(change) {
        Err(FileError::Contradiction { what }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(|rows| rows.parent[1] = 2), "the parent of a context is not before it");
    assert_eq!(why(|rows| rows.function[1] = 4), "a context is of no function");
    assert_eq!(why(|rows| rows.site_module[1] = 2), "a call site is in no module");
    assert_eq!(why(|rows| rows.kind[1] = 4), "a context has an unknown kind");
    assert_eq!(why(|rows| rows.target[0] = 0), "a recursive call leads to no ancestor");
    assert_eq!(why(|rows| rows.target[0] = 1), "a recursive call leads to no ancestor of its function");
    assert_eq!(why(|rows| rows.function[3] = 0), "a recursive call leads to no ancestor of its function");
    assert_eq!(why(|rows| rows.parent[4] = 1), "a recursive call has children");
    let length = "the lists of contexts have different lengths";
    assert_eq!(why(|rows| rows.metrics.truncate(1)), length);
    assert_eq!(why(|rows| rows.calls.push(1)), length);
    assert_eq!(why(|rows| rows.kind[3] = 0), length);
    assert!(changed(|_| ()).is_ok());
}

#[test]
fn a_large_tree_is_written_in_several_messages() {
    let mut tree = contexts::tests::small();
    let chain = (6..10_000).map(|n| CallingContext { parent: Some(n - 1), ..tree.contexts[2].clone() });
    let chain: Vec<_> = chain.collect();
    tree.contexts.extend(chain);
    let modules = vec![ModuleInfo::default()];
    let saved = SavedProfile { kind: ProfileKind::Contexts, modules, contexts: Some(tree), ..SavedProfile::default() };
    let bytes = saved.to_bytes();
    assert_eq!(bytes[8], 3, "the version");
    assert!(bytes.len() < 12 * 10_000, "{} bytes for 10,000 contexts", bytes.len());
    assert_eq!(SavedProfile::from_bytes(&bytes), Ok(saved));
}

#[test]
fn errors_name_the_reason() {
    let bytes = SavedProfile::default().to_bytes();
    assert_eq!(SavedProfile::from_bytes(b"\x7fELF"), Err(FileError::NotAProfile));
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(SavedProfile::from_bytes(&longer), Err(FileError::Length { stated: 0, found: 1 }));
    let mut later = bytes.clone();
    later[8] = 4;
    assert_eq!(SavedProfile::from_bytes(&later), Err(FileError::Version { found: 4 }));
}

#[test]
fn fields_of_a_later_version_are_skipped() {
    let mut bytes = SavedProfile { pid: 7, ..SavedProfile::default() }.to_bytes();
    // Field 1000 with the value 1.
    bytes.extend([0xc0, 0x3e, 1]);
    let body = bytes[HEADER..].to_vec();
    bytes[12..16].copy_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes[16..24].copy_from_slice(&(body.len() as u64).to_le_bytes());
    assert_eq!(SavedProfile::from_bytes(&bytes).map(|profile| profile.pid), Ok(7));
}

/// A function with two blocks and two paths, with the message of its paths changed.
fn with_paths(change: impl Fn(&mut PathCounts)) -> Result<SavedProfile, FileError> {
    let path = |number, blocks| PathCount {
        number,
        begins: PathBegin::Entry,
        blocks,
        ends: PathEnd::Exit,
        next: None,
        count: 7,
        values: vec![40, -2],
    };
    let paths =
        PathProfile { possible: 2, paths: vec![path(0, vec![0, 1]), path(1, vec![1])], ..PathProfile::default() };
    let block = BlockCount { start: Svma(0), size: 1, instructions: 1, last: Svma(0), count: 7 };
    let function = FunctionProfile {
        module: 0,
        name: "f".to_owned(),
        start: Svma(0),
        size: 2,
        calls: 14,
        blocks: vec![block; 2],
        unknown: Vec::new(),
        edges: Vec::new(),
        call_sites: Vec::new(),
        inexact: None,
        details: None,
        paths: Some(paths),
    };
    let modules = vec![ModuleInfo::default()];
    let functions = vec![function];
    let mut message =
        Profile::from(&SavedProfile { modules, functions, path_metrics: path_metrics(2), ..SavedProfile::default() });
    message.functions.iter_mut().filter_map(|function| function.paths.as_mut()).for_each(change);
    message.try_into()
}

#[test]
fn paths_that_contradict_each_other_are_refused() {
    let why = |change: fn(&mut PathCounts)| match with_paths(change) {
        Err(FileError::Contradiction { what }) => what,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(|paths| paths.count.push(1)), "the lists of paths have different lengths");
    assert_eq!(why(|paths| paths.length[1] = 2), "a path has no blocks, or fewer than it says");
    assert_eq!(why(|paths| paths.length[1] = 0), "a path has no blocks, or fewer than it says");
    assert_eq!(why(|paths| paths.length[0] = 1), "there are more blocks than paths have");
    assert_eq!(why(|paths| paths.block[1] = 2), "a path has a block that does not exist");
    assert_eq!(why(|paths| paths.block[1] = -1), "a path has a block that does not exist");
    assert_eq!(why(|paths| paths.number[0] = 2), "a path has a number that the function does not have");
    assert_eq!(why(|paths| paths.next[0] = 3), "a path goes on at a block that does not exist");
    assert_eq!(why(|paths| paths.context.push(0)), "the lists of the contexts of paths have different lengths");
    let in_context = |context: u64, path: u64| {
        move |paths: &mut PathCounts| {
            (paths.context, paths.context_path, paths.context_count) = (vec![context], vec![path], vec![7]);
            paths.context_value = vec![40, -2];
        }
    };
    let refused = |change: &dyn Fn(&mut PathCounts)| with_paths(change).expect_err("a contradiction").to_string();
    assert!(refused(&in_context(0, 2)).contains("a calling context has a path that has not run"));
    assert!(refused(&in_context(1, 1)).contains("a path has a calling context that does not exist"));
    assert!(with_paths(in_context(0, 1)).is_ok());
    assert_eq!(why(|paths| paths.begins[0] = 4), "a path has an unknown beginning or end");
    let values = "paths have more or fewer values than the profile has metrics of paths";
    assert_eq!([why(|paths| paths.value.push(1)), why(|paths| paths.value.clear())], [values; 2]);
    let of_contexts = |paths: &mut PathCounts| {
        in_context(0, 1)(paths);
        paths.context_value.push(1);
    };
    let values = "paths by context have more or fewer values than the profile has metrics of paths";
    assert!(refused(&of_contexts).contains(values));
    assert!(with_paths(|_| ()).is_ok());
}

#[test]
fn counts_of_the_same_paths_are_added_up() {
    let mut sum = with_paths(|_| ()).expect("a profile");
    let other = with_paths(|paths| paths.block[2] = 0).expect("a profile");
    sum.add(&other).expect("a sum");
    let paths = sum.functions[0].paths.as_ref().expect("paths");
    let shown: Vec<_> = paths.paths.iter().map(|path| (path.blocks.as_slice(), path.count, &path.values)).collect();
    let [twice, once] = [vec![80, -4], vec![40, -2]];
    assert_eq!(shown, [(&[0, 1][..], 14, &twice), (&[1][..], 7, &once), (&[0][..], 7, &once)]);
    let others = SavedProfile { path_metrics: vec!["cpu_ns".to_owned()], ..other.clone() };
    let refused = sum.clone().add(&others).expect_err("other metrics");
    assert_eq!(refused.to_string(), "the profiles have different metrics: wall_ns, page-faults, and cpu_ns");
    let mut without = other;
    without.functions[0].paths = None;
    let refused = sum.add(&without).expect_err("a profile without paths");
    assert_eq!(refused.to_string(), "one of the profiles has paths of the function f, and the other one has none");
}
