//! Conversions of profiles from and to their messages.

use ingraft_model::{BlockEvents, EdgeKind, Svma};

use super::checked::{address, contradiction, distance, index};
use super::{FileError, contexts, paths};
use crate::message::{
    CallCounts, CalleeElsewhere, ContextTree, FunctionCounts, FunctionDetails, FunctionNotCounted, InclusiveCall,
    InclusiveEvents, PathCounts, Profile, ProfileModule, UNKNOWN_PASSAGES, call_counts,
};
use crate::saved::{
    BlockCount, CallCount, CallTarget, EdgeCount, EdgeEnd, FunctionProfile, InclusiveTotal, ModuleInfo, ProfileKind,
    SavedProfile, UnprofiledFunction, UnsavedDetails,
};

/// Factor of the kind of the destination in the shape of an edge.
const END: u32 = 8;

/// Number of a kind of edges in files.
pub(crate) fn number(kind: EdgeKind) -> u32 {
    match kind {
        EdgeKind::Taken => 0,
        EdgeKind::FallThrough => 1,
        EdgeKind::CallReturn => 2,
        EdgeKind::JumpTable => 3,
        EdgeKind::TailJump => 4,
        EdgeKind::Return => 5,
    }
}

/// Kind of edges that a number in a file means.
pub(crate) fn kind(number: u32) -> Result<EdgeKind, FileError> {
    Ok(match number {
        0 => EdgeKind::Taken,
        1 => EdgeKind::FallThrough,
        2 => EdgeKind::CallReturn,
        3 => EdgeKind::JumpTable,
        4 => EdgeKind::TailJump,
        5 => EdgeKind::Return,
        _ => return Err(contradiction("an edge has an unknown kind")),
    })
}

impl From<&SavedProfile> for Profile {
    fn from(profile: &SavedProfile) -> Self {
        Profile {
            host: profile.host.clone(),
            pid: profile.pid,
            program: profile.program.clone(),
            began_ns: profile.began_ns,
            ended_ns: profile.ended_ns,
            modules: profile.modules.iter().map(ProfileModule::from).collect(),
            functions: profile.functions.iter().map(FunctionCounts::from).collect(),
            refused: profile.refused.iter().map(FunctionNotCounted::from).collect(),
            late_starts: profile.corrected.0,
            early_ends: profile.corrected.1,
            coverage: profile.kind == ProfileKind::Coverage,
            held_ns: profile.held_ns,
            inclusive: profile.inclusive.clone(),
            contexts: match (profile.kind, &profile.contexts) {
                (_, Some(contexts)) => Some(ContextTree::from(contexts)),
                (ProfileKind::Contexts, None) => Some(ContextTree::default()),
                (ProfileKind::Counts | ProfileKind::Coverage, None) => None,
            },
            paths_by_context: profile.kind == ProfileKind::Counts && profile.contexts.is_some(),
            path_metrics: profile.path_metrics.clone(),
        }
    }
}

impl TryFrom<Profile> for SavedProfile {
    type Error = FileError;

    fn try_from(message: Profile) -> Result<Self, FileError> {
        let (modules, values) = (message.modules.len(), message.path_metrics.len());
        let functions: Result<Vec<FunctionProfile>, FileError> =
            message.functions.into_iter().map(|message| function(message, (modules, values))).collect();
        let refused = message.refused.into_iter().map(|message| refused(message, modules));
        let contexts = message.contexts.map(|message| contexts::tree(message, modules)).transpose()?;
        let kind = match (message.coverage, &contexts) {
            (false, None) => ProfileKind::Counts,
            (true, None) => ProfileKind::Coverage,
            (false, Some(_)) if message.paths_by_context => ProfileKind::Counts,
            (false, Some(_)) => ProfileKind::Contexts,
            (true, Some(_)) => return Err(contradiction("a coverage has calling contexts")),
        };
        let (functions, known) = (functions?, contexts.as_ref().map_or(0, |contexts| contexts.contexts.len()));
        let by_context =
            functions.iter().filter_map(|function| function.paths.as_ref()).flat_map(|paths| &paths.by_context);
        if by_context.filter_map(|of| of.context).any(|context| context >= known) {
            return Err(contradiction("a path has a calling context that does not exist"));
        }
        Ok(SavedProfile {
            host: message.host,
            pid: message.pid,
            program: message.program,
            began_ns: message.began_ns,
            ended_ns: message.ended_ns,
            functions,
            refused: refused.collect::<Result<_, _>>()?,
            modules: message.modules.into_iter().map(ModuleInfo::from).collect(),
            corrected: (message.late_starts, message.early_ends),
            kind,
            held_ns: message.held_ns,
            inclusive: message.inclusive,
            contexts,
            path_metrics: message.path_metrics,
        })
    }
}

impl From<&ModuleInfo> for ProfileModule {
    fn from(module: &ModuleInfo) -> Self {
        ProfileModule {
            name: module.name.clone(),
            path: module.path.clone(),
            build_id: module.build_id.clone(),
            bias: module.bias,
            lowest: module.mapped.0,
            end: module.mapped.1,
        }
    }
}

impl From<ProfileModule> for ModuleInfo {
    fn from(module: ProfileModule) -> Self {
        let ProfileModule { name, path, build_id, bias, lowest, end } = module;
        ModuleInfo { name, path, build_id, bias, mapped: (lowest, end) }
    }
}

impl From<&FunctionProfile> for FunctionCounts {
    fn from(function: &FunctionProfile) -> Self {
        let starts = std::iter::once(function.start.0).chain(function.blocks.iter().map(|block| block.start.0));
        let to = |edge: &EdgeCount| match edge.to {
            EdgeEnd::Block(block) => (0, block as i64),
            EdgeEnd::Outside(at) => (1, distance(function.start.0, at.0)),
            EdgeEnd::Dynamic => (2, 0),
        };
        let unknown = |edge: &EdgeCount| if edge.count.is_none() { UNKNOWN_PASSAGES } else { 0 };
        let shape = |edge: &EdgeCount| number(edge.kind) + END * to(edge).0 + unknown(edge);
        FunctionCounts {
            module: function.module as u64,
            symbol: function.name.clone(),
            start: function.start.0,
            size: function.size,
            calls: function.calls,
            inexact: function.inexact.clone(),
            block_distance: function.blocks.iter().zip(starts).map(|(b, from)| distance(from, b.start.0)).collect(),
            block_size: function.blocks.iter().map(|block| block.size).collect(),
            block_instructions: function.blocks.iter().map(|block| block.instructions).collect(),
            block_last: function.blocks.iter().map(|block| distance(block.start.0, block.last.0)).collect(),
            block_count: function.blocks.iter().map(|block| block.count).collect(),
            edge_from: function.edges.iter().map(|edge| edge.from as u64).collect(),
            edge_shape: function.edges.iter().map(shape).collect(),
            edge_to: function.edges.iter().map(|edge| to(edge).1).collect(),
            edge_count: function.edges.iter().map(|edge| edge.count.unwrap_or(0)).collect(),
            call_sites: function.call_sites.iter().map(CallCounts::from).collect(),
            unknown: function.unknown.iter().map(|block| *block as u64).collect(),
            details: function.details.as_ref().map(FunctionDetails::from),
            paths: function.paths.as_ref().map(PathCounts::from),
        }
    }
}

/// Converts a function from its message, in a profile with this number of modules, and of values of each path.
fn function(message: FunctionCounts, (modules, values): (usize, usize)) -> Result<FunctionProfile, FileError> {
    let blocks = blocks(&message)?;
    let edges = edges(&message, blocks.len())?;
    let details = message.details.map(|message| details(message, &blocks)).transpose()?;
    let paths = message.paths.map(|message| paths::paths(message, (blocks.len(), values))).transpose()?;
    let call_sites = message.call_sites.into_iter().map(|message| call(message, modules, blocks.len()));
    let call_sites: Vec<_> = call_sites.collect::<Result<_, _>>()?;
    if !message.edge_from.is_sorted() || !call_sites.is_sorted_by_key(|call| call.block) {
        return Err(contradiction("the edges or calls of a function are not sorted"));
    }
    let unknown = message.unknown.iter().map(|block| index(*block, blocks.len(), "an unknown block does not exist"));
    let unknown: Vec<usize> = unknown.collect::<Result<_, _>>()?;
    if !unknown.is_sorted() {
        return Err(contradiction("the unknown blocks of a function are not sorted"));
    }
    Ok(FunctionProfile {
        module: index(message.module, modules, "a function is in no module")?,
        name: message.symbol,
        start: Svma(message.start),
        size: message.size,
        calls: message.calls,
        inexact: message.inexact,
        edges,
        blocks,
        unknown,
        call_sites,
        details,
        paths,
    })
}

fn blocks(message: &FunctionCounts) -> Result<Vec<BlockCount>, FileError> {
    let length = message.block_distance.len();
    let others = [message.block_size.len(), message.block_instructions.len(), message.block_last.len()];
    if others.iter().any(|other| *other != length) || message.block_count.len() != length {
        return Err(contradiction("the lists of blocks have different lengths"));
    }
    let starts = message.block_distance.iter().scan(message.start, |before, from| {
        *before = address(*before, *from);
        Some(*before)
    });
    let code = message.block_size.iter().zip(&message.block_instructions);
    let facts = code.zip(message.block_last.iter().zip(&message.block_count));
    let blocks = starts.zip(facts).map(|(start, ((size, instructions), (last, count)))| BlockCount {
        start: Svma(start),
        size: *size,
        instructions: *instructions,
        last: Svma(address(start, *last)),
        count: *count,
    });
    Ok(blocks.collect())
}

fn edges(message: &FunctionCounts, blocks: usize) -> Result<Vec<EdgeCount>, FileError> {
    let length = message.edge_from.len();
    if [message.edge_shape.len(), message.edge_to.len(), message.edge_count.len()].iter().any(|other| *other != length)
    {
        return Err(contradiction("the lists of edges have different lengths"));
    }
    let ends = message.edge_from.iter().zip(&message.edge_to);
    let edges = ends.zip(message.edge_shape.iter().zip(&message.edge_count)).map(|((from, to), (shape, count))| {
        let (unknown, shape) = (shape / UNKNOWN_PASSAGES, shape % UNKNOWN_PASSAGES);
        let to = match shape / END {
            0 => EdgeEnd::Block(index(to.cast_unsigned(), blocks, "an edge leads to no block")?),
            1 => EdgeEnd::Outside(Svma(address(message.start, *to))),
            2 => EdgeEnd::Dynamic,
            _ => return Err(contradiction("an edge has an unknown destination")),
        };
        Ok(EdgeCount {
            from: index(*from, blocks, "an edge leaves no block")?,
            to,
            kind: kind(shape % END)?,
            count: match unknown {
                0 => Some(*count),
                1 => None,
                _ => return Err(contradiction("an edge has an unknown form")),
            },
        })
    });
    edges.collect()
}

impl From<&CallCount> for CallCounts {
    fn from(call: &CallCount) -> Self {
        use call_counts::Callee as Message;
        let callee = match &call.callee {
            CallTarget::Own(at) => Some(Message::Own(at.0)),
            CallTarget::Other { module, at } => {
                Some(Message::Other(CalleeElsewhere { module: *module as u64, at: at.0 }))
            }
            CallTarget::Named(name) => Some(Message::Named(name.clone())),
            CallTarget::Indirect => None,
            CallTarget::System => Some(Message::System(true)),
        };
        CallCounts { block: call.block as u64, count: call.count, callee }
    }
}

fn call(message: CallCounts, modules: usize, blocks: usize) -> Result<CallCount, FileError> {
    use call_counts::Callee as Message;
    let callee = match message.callee {
        Some(Message::Own(at)) => CallTarget::Own(Svma(at)),
        Some(Message::Other(CalleeElsewhere { module, at })) => {
            CallTarget::Other { module: index(module, modules, "a called function is in no module")?, at: Svma(at) }
        }
        Some(Message::Named(name)) => CallTarget::Named(name),
        Some(Message::System(_)) => CallTarget::System,
        // A later version may know more kinds of callees.
        None => CallTarget::Indirect,
    };
    Ok(CallCount { block: index(message.block, blocks, "a call ends no block")?, callee, count: message.count })
}

impl From<&UnsavedDetails> for FunctionDetails {
    fn from(details: &UnsavedDetails) -> Self {
        let list = |of: fn(&BlockEvents) -> u32| details.events.iter().map(of).collect();
        let call = |(block, total): &(usize, InclusiveTotal)| InclusiveCall {
            block: *block as u64,
            total: Some(total.into()),
        };
        FunctionDetails {
            name: details.name.clone(),
            block_calls: list(|events| events.calls),
            block_branches: list(|events| events.branches),
            block_reads: list(|events| events.reads),
            block_writes: list(|events| events.writes),
            inclusive: details.inclusive.as_ref().map(InclusiveEvents::from),
            calls: details.calls.iter().map(call).collect(),
        }
    }
}

fn details(message: FunctionDetails, blocks: &[BlockCount]) -> Result<UnsavedDetails, FileError> {
    let FunctionDetails { name, block_calls, block_branches, block_reads, block_writes, inclusive, calls } = message;
    if [&block_calls, &block_branches, &block_reads, &block_writes].iter().any(|list| list.len() != blocks.len()) {
        return Err(contradiction("the lists of events have different lengths"));
    }
    let (sent, memory) = (block_calls.iter().zip(&block_branches), block_reads.iter().zip(&block_writes));
    let events = blocks.iter().zip(sent.zip(memory)).map(|(block, ((calls, branches), (reads, writes)))| BlockEvents {
        last: block.last,
        instructions: block.instructions,
        calls: *calls,
        branches: *branches,
        reads: *reads,
        writes: *writes,
    });
    let call = |InclusiveCall { block, total }: InclusiveCall| {
        Ok((index(block, blocks.len(), "an inclusive total is of no call")?, total.unwrap_or_default().into()))
    };
    let calls = calls.into_iter().map(call).collect::<Result<_, FileError>>()?;
    Ok(UnsavedDetails { name, events: events.collect(), inclusive: inclusive.map(InclusiveTotal::from), calls })
}

impl From<&InclusiveTotal> for InclusiveEvents {
    fn from(InclusiveTotal { events, inexact }: &InclusiveTotal) -> Self {
        InclusiveEvents { events: *events, inexact: inexact.clone() }
    }
}

impl From<InclusiveEvents> for InclusiveTotal {
    fn from(InclusiveEvents { events, inexact }: InclusiveEvents) -> Self {
        InclusiveTotal { events, inexact }
    }
}

impl From<&UnprofiledFunction> for FunctionNotCounted {
    fn from(refused: &UnprofiledFunction) -> Self {
        FunctionNotCounted {
            module: refused.module as u64,
            name: refused.name.clone(),
            start: refused.start.0,
            why: refused.why.clone(),
        }
    }
}

/// Converts a function without a profile from its message, in a profile with this number of modules.
pub(crate) fn refused(message: FunctionNotCounted, modules: usize) -> Result<UnprofiledFunction, FileError> {
    Ok(UnprofiledFunction {
        module: index(message.module, modules, "a refused function is in no module")?,
        name: message.name,
        start: Svma(message.start),
        why: message.why,
    })
}
