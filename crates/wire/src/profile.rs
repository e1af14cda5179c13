//! Profiles as messages: parts for an answer, and a profile from such parts.

use ingraft_model::{BlockEvents, EdgeKind, Svma};
use ingraft_report::{
    BlockCount, CallCount, Callee, EdgeCount, EdgeEnd, FunctionProfile, ModuleInfo, ProfileKind, Refused, SavedProfile,
};

use crate::convert::FieldError;
use crate::parts::Parts;
use crate::v1;

/// Details of a function that saved profiles do not have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// Preferred name, demangled.
    pub name: String,
    /// Events of one execution of each block, in the order of the blocks.
    pub events: Vec<BlockEvents>,
    /// Events of the function with those of all that it calls; `None` if the profile has no inclusive totals.
    pub inclusive: Option<Inclusive>,
    /// The same of calls that the function makes, by the block that each ends.
    pub calls: Vec<(usize, Inclusive)>,
}

/// An inclusive total.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inclusive {
    /// Number of events; `None` if it is not known.
    pub events: Option<u64>,
    /// Reason why the number is not exact, or not known; `None` if it is exact.
    pub inexact: Option<String>,
}

/// A profile at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Counts of the functions.
    pub saved: SavedProfile,
    /// Details of each function, in the same order.
    pub details: Vec<Details>,
    /// Longest time for which a thread was held for the reading, in nanoseconds.
    pub held_ns: u64,
    /// Event of the inclusive totals; empty if there are none.
    pub inclusive: String,
}

/// Splits a profile into parts that each fit into a message.
pub fn parts(profile: Profile) -> impl Iterator<Item = v1::ProfilePart> + Send {
    let Profile { saved, details, held_ns, inclusive } = profile;
    let head = v1::ProfileHead {
        pid: i32::try_from(saved.pid).unwrap_or_default(),
        program: saved.program,
        began_ns: saved.began_ns,
        ended_ns: saved.ended_ns,
        late_starts: saved.corrected.0,
        early_ends: saved.corrected.1,
        held_ns,
        coverage: saved.kind == ProfileKind::Coverage,
        inclusive,
    };
    let modules = saved.modules.into_iter().map(module).collect();
    let first = v1::ProfilePart { head: Some(head), modules, ..v1::ProfilePart::default() };
    let functions = saved.functions.into_iter().zip(details).map(|(counts, details)| function(counts, details));
    let functions = Parts::new(functions).map(|functions| v1::ProfilePart { functions, ..v1::ProfilePart::default() });
    let refused = saved.refused.into_iter().map(|refused| v1::FunctionNotCounted {
        module: index(refused.module),
        name: refused.name,
        start: refused.start.0,
        why: refused.why,
    });
    let refused = Parts::new(refused).map(|refused| v1::ProfilePart { refused, ..v1::ProfilePart::default() });
    std::iter::once(first).chain(functions).chain(refused)
}

impl Profile {
    /// Adds a part to the parts before it. Fails if a field has no valid value.
    pub fn add(&mut self, part: v1::ProfilePart) -> Result<(), FieldError> {
        if let Some(head) = part.head {
            self.saved.pid = u32::try_from(head.pid).map_err(|_| FieldError::new("head.pid", "is negative"))?;
            self.saved.program = head.program;
            (self.saved.began_ns, self.saved.ended_ns) = (head.began_ns, head.ended_ns);
            self.saved.corrected = (head.late_starts, head.early_ends);
            self.held_ns = head.held_ns;
            self.inclusive = head.inclusive;
            self.saved.kind = if head.coverage { ProfileKind::Coverage } else { ProfileKind::Counts };
        }
        self.saved.modules.extend(part.modules.into_iter().map(|m| ModuleInfo {
            name: m.name,
            path: m.path,
            build_id: m.build_id,
            bias: m.bias,
            mapped: (m.lowest, m.end),
        }));
        for function in part.functions {
            let (counts, details) = counts(function)?;
            self.saved.functions.push(counts);
            self.details.push(details);
        }
        self.saved.refused.extend(part.refused.into_iter().map(|refused| Refused {
            module: number(refused.module),
            name: refused.name,
            start: Svma(refused.start),
            why: refused.why,
        }));
        Ok(())
    }
}

/// The counts of a saved profile by which new counters are placed. Files without a build-id are left out.
pub fn earlier(saved: &SavedProfile) -> Vec<v1::EarlierCounts> {
    let known = saved.modules.iter().enumerate().filter(|(_, module)| !module.build_id.is_empty());
    known
        .map(|(index, module)| v1::EarlierCounts {
            build_id: module.build_id.clone(),
            functions: saved
                .functions
                .iter()
                .filter(|f| f.module == index)
                .map(|f| v1::EarlierFunction {
                    start: f.start.0,
                    blocks: f.blocks.iter().map(|block| block.count).collect(),
                    edges: f.edges.iter().map(|edge| edge.count.map_or(0, |count| count.saturating_add(1))).collect(),
                })
                .collect(),
        })
        .collect()
}

fn index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

fn number(index: u32) -> usize {
    usize::try_from(index).unwrap_or(usize::MAX)
}

fn module(module: ModuleInfo) -> v1::ProfileModule {
    let ModuleInfo { name, path, build_id, bias, mapped: (lowest, end) } = module;
    v1::ProfileModule { name, path, build_id, bias, lowest, end }
}

fn function(counts: FunctionProfile, details: Details) -> v1::FunctionCounts {
    let Details { name, events, inclusive, calls } = details;
    let of_call = |call: &CallCount| {
        let total = calls.iter().find(|(block, _)| *block == call.block);
        total.map(|(_, total)| v1::InclusiveEvents::from(total.clone()))
    };
    let events = events.into_iter().chain(std::iter::repeat(BlockEvents::default()));
    v1::FunctionCounts {
        module: index(counts.module),
        symbol: counts.name,
        name,
        start: counts.start.0,
        size: counts.size,
        calls: counts.calls,
        blocks: counts
            .blocks
            .iter()
            .zip(events)
            .map(|(block, events)| v1::BlockCounts {
                start: block.start.0,
                size: block.size,
                instructions: block.instructions,
                last: block.last.0,
                count: block.count,
                calls: events.calls,
                branches: events.branches,
                reads: events.reads,
                writes: events.writes,
            })
            .collect(),
        edges: counts
            .edges
            .iter()
            .map(|edge| v1::EdgeCounts {
                from: index(edge.from),
                kind: v1::EdgeKind::from(edge.kind).into(),
                count: edge.count,
                to: match edge.to {
                    EdgeEnd::Block(block) => Some(v1::edge_counts::To::Block(index(block))),
                    EdgeEnd::Outside(at) => Some(v1::edge_counts::To::Outside(at.0)),
                    EdgeEnd::Dynamic => None,
                },
            })
            .collect(),
        call_sites: counts
            .call_sites
            .into_iter()
            .map(|site| v1::CallCounts { inclusive: of_call(&site), ..call(site) })
            .collect(),
        inexact: counts.inexact,
        unknown: counts.unknown.into_iter().map(index).collect(),
        inclusive: inclusive.map(Into::into),
    }
}

impl From<Inclusive> for v1::InclusiveEvents {
    fn from(Inclusive { events, inexact }: Inclusive) -> Self {
        v1::InclusiveEvents { events, inexact }
    }
}

impl From<v1::InclusiveEvents> for Inclusive {
    fn from(v1::InclusiveEvents { events, inexact }: v1::InclusiveEvents) -> Self {
        Inclusive { events, inexact }
    }
}

fn call(call: CallCount) -> v1::CallCounts {
    use v1::call_counts::Callee as Wire;
    let callee = match call.callee {
        Callee::Own(at) => Some(Wire::Own(at.0)),
        Callee::Other { module, at } => Some(Wire::Other(v1::CalleeElsewhere { module: index(module), at: at.0 })),
        Callee::Named(name) => Some(Wire::Named(name)),
        Callee::Indirect => None,
        Callee::System => Some(Wire::System(true)),
    };
    v1::CallCounts { block: index(call.block), callee, count: call.count, inclusive: None }
}

fn counts(function: v1::FunctionCounts) -> Result<(FunctionProfile, Details), FieldError> {
    let block = |block: &v1::BlockCounts| BlockCount {
        start: Svma(block.start),
        size: block.size,
        instructions: block.instructions,
        last: Svma(block.last),
        count: block.count,
    };
    let events = |block: &v1::BlockCounts| BlockEvents {
        last: Svma(block.last),
        instructions: block.instructions,
        calls: block.calls,
        branches: block.branches,
        reads: block.reads,
        writes: block.writes,
    };
    let edge = |edge: &v1::EdgeCounts| {
        let to = match edge.to {
            Some(v1::edge_counts::To::Block(block)) => EdgeEnd::Block(number(block)),
            Some(v1::edge_counts::To::Outside(at)) => EdgeEnd::Outside(Svma(at)),
            None => EdgeEnd::Dynamic,
        };
        Ok(EdgeCount { from: number(edge.from), to, kind: kind(edge.kind)?, count: edge.count })
    };
    let callee = |callee: Option<v1::call_counts::Callee>| match callee {
        Some(v1::call_counts::Callee::Own(at)) => Callee::Own(Svma(at)),
        Some(v1::call_counts::Callee::Named(name)) => Callee::Named(name),
        Some(v1::call_counts::Callee::Other(other)) => {
            Callee::Other { module: number(other.module), at: Svma(other.at) }
        }
        Some(v1::call_counts::Callee::System(_)) => Callee::System,
        None => Callee::Indirect,
    };
    let of_call = |call: &v1::CallCounts| Some((number(call.block), call.inclusive.clone()?.into()));
    let details = Details {
        name: function.name,
        events: function.blocks.iter().map(events).collect(),
        inclusive: function.inclusive.map(Into::into),
        calls: function.call_sites.iter().filter_map(of_call).collect(),
    };
    let call_sites = function.call_sites.into_iter().map(|call| CallCount {
        block: number(call.block),
        callee: callee(call.callee),
        count: call.count,
    });
    let counts = FunctionProfile {
        module: number(function.module),
        name: function.symbol,
        start: Svma(function.start),
        size: function.size,
        calls: function.calls,
        blocks: function.blocks.iter().map(block).collect(),
        unknown: unknown(&function.unknown, function.blocks.len())?,
        edges: function.edges.iter().map(edge).collect::<Result<_, FieldError>>()?,
        call_sites: call_sites.collect(),
        inexact: function.inexact,
    };
    Ok((counts, details))
}

/// Indexes of blocks, which must be sorted and below the number of blocks.
fn unknown(indexes: &[u32], blocks: usize) -> Result<Vec<usize>, FieldError> {
    let indexes: Vec<usize> = indexes.iter().map(|index| number(*index)).collect();
    let valid = indexes.is_sorted() && indexes.last().is_none_or(|last| *last < blocks);
    if valid {
        Ok(indexes)
    } else {
        Err(FieldError::new("unknown", "has an index that is out of order or of no block"))
    }
}

fn kind(kind: i32) -> Result<EdgeKind, FieldError> {
    match v1::EdgeKind::try_from(kind) {
        Ok(v1::EdgeKind::Taken) => Ok(EdgeKind::Taken),
        Ok(v1::EdgeKind::FallThrough) => Ok(EdgeKind::FallThrough),
        Ok(v1::EdgeKind::CallReturn) => Ok(EdgeKind::CallReturn),
        Ok(v1::EdgeKind::JumpTable) => Ok(EdgeKind::JumpTable),
        Ok(v1::EdgeKind::TailJump) => Ok(EdgeKind::TailJump),
        Ok(v1::EdgeKind::Return) => Ok(EdgeKind::Return),
        Ok(v1::EdgeKind::Unspecified) | Err(_) => Err(FieldError::new("kind", "is no kind of edge")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let block =
            |n: u64| BlockCount { start: Svma(16 * n), size: 16, instructions: 4, last: Svma(16 * n + 12), count: n };
        let edge = |from, to, kind, count| EdgeCount { from, to, kind, count };
        let call = |block, callee| CallCount { block, callee, count: 7 };
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
                call(1, Callee::Own(Svma(1))),
                call(2, Callee::Other { module: 2, at: Svma(3) }),
                call(3, Callee::Named("free".to_owned())),
                call(4, Callee::Indirect),
                call(5, Callee::System),
            ],
            unknown: if n == 5 { vec![0, 3] } else { Vec::new() },
            inexact: (n == 3).then(|| "why".to_owned()),
        };
        let events = |n: u64| BlockEvents {
            last: Svma(16 * n + 12),
            instructions: 4,
            calls: 1,
            branches: 2,
            reads: 3,
            writes: 4,
        };
        let functions: Vec<_> = (0..3000).map(function).collect();
        let total = Inclusive { events: Some(8), inexact: None };
        let unknown = Inclusive { events: None, inexact: Some("why".to_owned()) };
        let details = Details {
            name: "f()".to_owned(),
            events: (0..40).map(events).collect(),
            inclusive: Some(unknown.clone()),
            calls: vec![(2, total), (4, unknown)],
        };
        let module =
            ModuleInfo { name: "m".to_owned(), path: "/m".to_owned(), build_id: vec![1, 2], bias: 3, mapped: (4, 5) };
        Profile {
            details: vec![details; functions.len()],
            held_ns: 6,
            inclusive: "calls".to_owned(),
            saved: SavedProfile {
                kind: ProfileKind::Coverage,
                host: String::new(),
                pid: 7,
                program: "/p".to_owned(),
                began_ns: 8,
                ended_ns: 9,
                modules: vec![module],
                functions,
                refused: vec![Refused { module: 0, name: "g".to_owned(), start: Svma(1), why: "because".to_owned() }],
                corrected: (10, 11),
            },
        }
    }

    #[test]
    fn a_profile_is_the_sum_of_its_parts() {
        let (whole, mut sum) = (profile(), Profile::default());
        let parts: Vec<_> = parts(whole.clone()).collect();
        assert!(parts.len() > 4, "the functions need several messages");
        for part in parts {
            assert!(prost::Message::encoded_len(&part) < crate::MESSAGE_BYTES);
            sum.add(part).expect("a valid part");
        }
        assert_eq!(sum, whole);
    }

    #[test]
    fn an_unknown_kind_of_edge_is_named() {
        let edges = vec![v1::EdgeCounts { kind: 77, ..v1::EdgeCounts::default() }];
        let functions = vec![v1::FunctionCounts { edges, ..v1::FunctionCounts::default() }];
        let part = v1::ProfilePart { functions, ..v1::ProfilePart::default() };
        assert!(Profile::default().add(part).is_err());
    }
}
