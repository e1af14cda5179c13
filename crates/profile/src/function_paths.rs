//! The paths of a function of a running program, and the code that tells which of them control takes.
//!
//! A path goes through whole activations: a call is an edge as any other. A variable of each activation holds the sum of the values of the edges
//! so far. A path begins at the entry, at a landing pad, behind a back edge, or behind a call that has returned once more. It ends at an exit,
//! at a back edge, or in front of a call that may return several times.
//!
//! Code that ends an activation is the same at all exits: there the sum is the number of the path. So no value may be left at an exit, and the
//! values of leave edges move to other edges.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{BlockId, Cfg, Edge, EdgeId, EdgeKind, EdgeTarget, IndexVec, Key, WayInReason};

use crate::barred::{Barred, NoPlacement};
use crate::events::Uncountable;
use crate::graph::{ProfileEdge, ProfileEdgeKind, ProfileGraph};
use crate::map::{ArcId, Vertex};
use crate::paths::PathNumbers;
use crate::probes::{ProbeAt, Probes};
use crate::runs::NotCounted;
use crate::shape::{GraphBuilder, Inexact};
use crate::weights::Weights;

/// A part of the code at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathStep {
    /// Control has arrived from outside, and all calls that were made from here have ended: the sum becomes a number.
    Begin(i64),
    /// A number is added to the sum.
    Add(i64),
    /// A path ends, whose number is the sum plus this number. The next step at which the activation goes on begins another path.
    End(i64),
    /// A path ends, whose number is the sum plus the first number. The sum becomes the second one.
    Turn(i64, i64),
}

/// The beginning of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathBegin {
    /// A call of the function.
    Entry,
    /// A block at which control arrives otherwise from outside, as a landing pad.
    Elsewhere,
    /// A back edge, or an edge at which paths were cut.
    Loop,
    /// The return of a call that may return several times.
    Return,
}

/// The end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathEnd {
    /// A return, or a jump to another function.
    Exit,
    /// A back edge, or an edge at which paths were cut.
    Loop,
    /// A call that may return several times.
    Call,
    /// Control never comes to an end of the path that code can tell: a call does not return, or a loop has no end.
    Never,
}

/// One path of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPath {
    /// Beginning of the path.
    pub begins: PathBegin,
    /// The blocks, in the order of their execution. The block that a back edge leads to is not among them.
    pub blocks: Vec<BlockId>,
    /// The edges that it passes, the last one included. Of several ways out of one block, none.
    pub edges: Vec<EdgeId>,
    /// End of the path.
    pub ends: PathEnd,
    /// The block at which the next path begins, if it ends at a back edge or at an edge at which paths were cut.
    pub next: Option<BlockId>,
}

/// The paths of a function, with the code that counts them.
#[derive(Clone, Debug)]
pub struct FunctionPaths {
    graph: ProfileGraph,
    numbers: PathNumbers,
    origins: Vec<ArcOrigin>,
    entry: i64,
    code: BTreeMap<ProbeAt, Vec<PathStep>>,
    is_cut: bool,
}

/// Meaning of an edge of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArcOrigin {
    /// An edge between blocks.
    Edge(EdgeId),
    /// The ways out of a block; with an edge if there is one.
    Leave(Option<EdgeId>),
    /// The end of a path in front of the call that ends a block.
    Call(BlockId),
    /// The return of such a call.
    Return(EdgeId),
    /// The way in to a block.
    Root(BlockId),
}

/// Places for code at the passages of edges.
struct PathPlaces<'a> {
    cfg: &'a Cfg,
    probes: &'a Probes,
    /// Number of ways to each block: of edges, and from outside.
    into: IndexVec<BlockId, u32>,
    out: IndexVec<BlockId, u32>,
}

/// Order of the code at one block: what belongs to an edge to it comes first, what belongs to an edge that leaves it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Arrival,
    Within,
    Departure,
}

impl PathPlaces<'_> {
    fn new<'a>(cfg: &'a Cfg, probes: &'a Probes) -> PathPlaces<'a> {
        let (mut into, mut out) =
            (IndexVec::filled(0_u32, cfg.blocks.len()), IndexVec::filled(0_u32, cfg.blocks.len()));
        let more = |of: &mut IndexVec<BlockId, u32>, block: BlockId| {
            if let Some(number) = of.get_mut(block) {
                *number += 1;
            }
        };
        for edge in &cfg.edges {
            more(&mut out, edge.from);
            if let EdgeTarget::Block(to) = edge.to {
                more(&mut into, to);
            }
        }
        ways_in(cfg).into_iter().for_each(|root| more(&mut into, root));
        PathPlaces { cfg, probes, into, out }
    }

    /// The place of code for the only way to a block.
    fn arrival(&self, block: BlockId) -> Option<(ProbeAt, Rank)> {
        let is_only = self.into.get(block) == Some(&1) && self.probes.has_block(block);
        is_only.then_some((ProbeAt::Block(block), Rank::Arrival))
    }

    /// The place of code for an edge between blocks.
    fn edge(&self, id: EdgeId) -> Option<(ProbeAt, Rank)> {
        let edge = self.cfg.edges.get(id)?;
        let EdgeTarget::Block(to) = edge.to else { return None };
        if self.probes.has_edge(id) {
            return Some((ProbeAt::Edge(id), Rank::Arrival));
        }
        // A call may not return, so code in front of it is not code at its return.
        let leaves_alone = self.out.get(edge.from) == Some(&1)
            && edge.kind != EdgeKind::CallReturn
            && self.probes.has_block(edge.from);
        self.arrival(to).or_else(|| leaves_alone.then_some((ProbeAt::Block(edge.from), Rank::Departure)))
    }
}

impl FunctionPaths {
    /// Numbers the paths of a function, and places the code that counts them. `twice` has the blocks that end in a call which may return several
    /// times. At most `limit` paths lead from a block to their ends, if shorter paths can be told; see [`PathNumbers::cut`]. Fails if the paths
    /// cannot be told by code at places of `probes`.
    pub fn new(cfg: &Cfg, probes: &Probes, twice: &BTreeSet<BlockId>, limit: i64) -> Result<Self, NotCounted> {
        GraphBuilder::of(cfg)?;
        let entry = cfg.entry.ok_or(Inexact::NoWayIn)?;
        let places = PathPlaces::new(cfg, probes);
        let (graph, origins) = whole(cfg, twice)?;
        let origin = |arc: ArcId| origins.get(arc.index()).copied();
        let place = |arc: ArcId| match origin(arc)? {
            ArcOrigin::Edge(edge) | ArcOrigin::Return(edge) => places.edge(edge),
            ArcOrigin::Call(block) => probes.has_block(block).then_some((ProbeAt::Block(block), Rank::Within)),
            ArcOrigin::Root(block) => places.arrival(block),
            ArcOrigin::Leave(_) => None,
        };
        let is_entry = |arc| origin(arc) == Some(ArcOrigin::Root(entry));
        let is_inner = |arc| matches!(origin(arc), Some(ArcOrigin::Edge(_)));
        let may_end = |arc| is_inner(arc) && place(arc).is_some();
        let refused = |arc: ArcId| {
            let ends = graph.edge(arc).map_or([graph.entry(); 2], |edge| [edge.to, edge.from]);
            let block = ends.into_iter().find(|end| graph.is_live_block(*end));
            NotCounted::Block(block.map_or(entry, |vertex| BlockId(vertex.0)))
        };
        let numbers = PathNumbers::cut(&graph, limit, &may_end).map_err(|_| NotCounted::Block(entry))?;
        let plain = PathNumbers::cut(&graph, i64::MAX, &|_| false);
        let is_cut = !plain.is_ok_and(|plain| plain.paths() == numbers.paths());
        let ending = ending(&graph, &numbers);
        let is_idle = |arc: ArcId, edge: &ProfileEdge| !is_entry(arc) && !edge.silent && !ending.contains(&edge.to);
        let mut barred = Barred::none();
        // Silent edges carry no code anyway, nor do those from which no path comes to an end.
        for (arc, edge) in graph.live_edges().filter(|(arc, _)| !is_entry(*arc) && place(*arc).is_none()) {
            if !edge.silent && !is_idle(arc, edge) {
                barred.edge(arc);
            }
        }
        let increments =
            numbers.increments(&graph, &Weights::estimated(&graph), &barred).map_err(|error| match error {
                Uncountable::Refused(NoPlacement::Edge(arc)) => refused(arc),
                Uncountable::Refused(NoPlacement::Block(_)) | Uncountable::Overflow(_) => NotCounted::Block(entry),
            })?;
        let mut first = 0;
        let mut steps: BTreeMap<ProbeAt, Vec<(Rank, PathStep)>> = BTreeMap::new();
        let mut put = |arc: ArcId, step: PathStep| -> Result<(), NotCounted> {
            let (at, rank) = place(arc).ok_or_else(|| refused(arc))?;
            steps.entry(at).or_default().push((rank, step));
            Ok(())
        };
        let added: BTreeMap<ArcId, i64> = increments.add.iter().copied().collect();
        for (arc, edge) in graph.live_edges() {
            let value = added.get(&arc).copied().unwrap_or(0);
            match origin(arc) {
                _ if is_idle(arc, edge) => {}
                Some(ArcOrigin::Root(block)) if block == entry => first = value,
                Some(ArcOrigin::Root(_) | ArcOrigin::Return(_)) => put(arc, PathStep::Begin(value))?,
                Some(ArcOrigin::Call(_)) => put(arc, PathStep::End(value))?,
                Some(ArcOrigin::Edge(_)) if !numbers.is_back_edge(arc) && value != 0 => put(arc, PathStep::Add(value))?,
                Some(ArcOrigin::Leave(_)) if value != 0 => return Err(refused(arc)),
                Some(ArcOrigin::Edge(_) | ArcOrigin::Leave(_)) => {}
                // An endless loop, or a call that never returns.
                None => debug_assert!(matches!(edge.kind, ProfileEdgeKind::End | ProfileEdgeKind::Closing)),
            }
        }
        for back in &increments.back {
            put(back.edge, PathStep::Turn(back.ends, back.begins))?;
        }
        let in_order = |(at, mut steps): (ProbeAt, Vec<(Rank, PathStep)>)| {
            steps.sort_by_key(|(rank, _)| *rank);
            (at, steps.into_iter().map(|(_, step)| step).collect())
        };
        let code = steps.into_iter().map(in_order).collect();
        Ok(FunctionPaths { graph, numbers, origins, entry: first, code, is_cut })
    }

    /// Number of paths. They are numbered from 0.
    pub fn paths(&self) -> i64 {
        self.numbers.paths()
    }

    /// Whether paths end at edges that are no back edges, because there would be too many otherwise.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The sum at the entry.
    pub fn entry(&self) -> i64 {
        self.entry
    }

    /// The code at places, besides that at the entry and at the exits. At an exit, the sum is the number of the path that ends there.
    pub fn code(&self) -> &BTreeMap<ProbeAt, Vec<PathStep>> {
        &self.code
    }

    /// The path with a number; `None` if there is no such path.
    pub fn path(&self, number: i64) -> Option<FunctionPath> {
        let path = self.numbers.path(&self.graph, number)?;
        let origin = |arc: ArcId| self.origins.get(arc.index()).copied();
        let block = |vertex: Vertex| self.graph.is_live_block(vertex).then_some(BlockId(vertex.0));
        let begins = match path.edges.first().map(|arc| origin(*arc)) {
            _ if path.start != self.graph.entry() => PathBegin::Loop,
            Some(Some(ArcOrigin::Root(root))) if self.is_entry(root) => PathBegin::Entry,
            Some(Some(ArcOrigin::Return(_))) => PathBegin::Return,
            _ => PathBegin::Elsewhere,
        };
        let last = path.edges.last().copied()?;
        let ends = match origin(last) {
            _ if self.numbers.is_back_edge(last) => PathEnd::Loop,
            Some(ArcOrigin::Call(_)) => PathEnd::Call,
            Some(ArcOrigin::Leave(_)) => PathEnd::Exit,
            _ => PathEnd::Never,
        };
        let next = self.graph.edge(last).filter(|_| ends == PathEnd::Loop).and_then(|edge| block(edge.to));
        let passed = path.edges.iter().take_while(|arc| **arc != last);
        let entered = passed.filter_map(|arc| self.graph.edge(*arc)).filter_map(|edge| block(edge.to));
        let blocks = block(path.start).into_iter().chain(entered).collect();
        let edge = |arc: &ArcId| match origin(*arc)? {
            ArcOrigin::Edge(edge) | ArcOrigin::Return(edge) => Some(edge),
            ArcOrigin::Leave(edge) => edge,
            ArcOrigin::Call(_) | ArcOrigin::Root(_) => None,
        };
        Some(FunctionPath { begins, blocks, edges: path.edges.iter().filter_map(edge).collect(), ends, next })
    }

    fn is_entry(&self, block: BlockId) -> bool {
        let first = self.origins.iter().find(|origin| matches!(origin, ArcOrigin::Root(_)));
        first == Some(&ArcOrigin::Root(block))
    }
}

/// The vertices from which a path may come to an end that code tells. From others control leads to a call that never returns, as at the end of a
/// landing pad, or to a fault, so no code needs the sum of a path there.
fn ending(graph: &ProfileGraph, numbers: &PathNumbers) -> BTreeSet<Vertex> {
    let mut into: BTreeMap<Vertex, Vec<Vertex>> = BTreeMap::new();
    let mut next: Vec<Vertex> = vec![graph.exit()];
    let is_inside = |edge: &ProfileEdge| !matches!(edge.kind, ProfileEdgeKind::End | ProfileEdgeKind::Closing);
    for (arc, edge) in graph.live_edges().filter(|(_, edge)| is_inside(edge)) {
        if numbers.is_back_edge(arc) {
            next.push(edge.from);
        } else {
            into.entry(edge.to).or_default().push(edge.from);
        }
    }
    let mut ending = BTreeSet::new();
    while let Some(vertex) = next.pop() {
        if ending.insert(vertex) {
            next.extend(into.get(&vertex).into_iter().flatten());
        }
    }
    ending
}

/// The blocks at which control arrives from outside, the entry first. The address after a call is no way in if no edge of the call leads there:
/// such a call certainly never returns.
fn ways_in(cfg: &Cfg) -> Vec<BlockId> {
    let is_return = |reason| matches!(reason, WayInReason::CallReturn | WayInReason::SyscallReturn);
    let returns = |root: &BlockId| {
        let start = cfg.blocks.get(*root).map(|block| block.range.start);
        start.is_some_and(|start| cfg.reasons_at(start).all(is_return))
    };
    cfg.roots().into_iter().filter(|root| Some(*root) == cfg.entry || !returns(root)).collect()
}

/// The graph of a whole function, without the possibility that a call does not return; and the meaning of each edge but those that [`GraphBuilder`]
/// has added.
fn whole(cfg: &Cfg, twice: &BTreeSet<BlockId>) -> Result<(ProfileGraph, Vec<ArcOrigin>), Inexact> {
    let mut shape = GraphBuilder::new(cfg.blocks.len());
    let mut origins = Vec::with_capacity(cfg.edges.len());
    let mut leaving: BTreeMap<BlockId, usize> = BTreeMap::new();
    let mut ended = BTreeSet::new();
    // The entry is the first root.
    for root in ways_in(cfg) {
        shape.root(root);
        origins.push(ArcOrigin::Root(root));
    }
    for (id, Edge { from, to, kind }) in cfg.edges.entries() {
        match to {
            EdgeTarget::Block(to) if *kind == EdgeKind::CallReturn && twice.contains(from) => {
                if ended.insert(*from) {
                    shape.leave(*from);
                    origins.push(ArcOrigin::Call(*from));
                }
                shape.root(*to);
                origins.push(ArcOrigin::Return(id));
            }
            EdgeTarget::Block(to) => {
                shape.edge(*from, *to);
                origins.push(ArcOrigin::Edge(id));
            }
            EdgeTarget::Outside(_) | EdgeTarget::Dynamic => match leaving.get(from) {
                Some(known) => {
                    if let Some(known) = origins.get_mut(*known) {
                        *known = ArcOrigin::Leave(None);
                    }
                }
                None => {
                    leaving.insert(*from, origins.len());
                    shape.leave(*from);
                    origins.push(ArcOrigin::Leave(Some(id)));
                }
            },
        }
    }
    Ok((shape.build()?, origins))
}
