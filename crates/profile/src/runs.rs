//! A control-flow graph cut at its calls, so that counts need no correction for frames that never return.
//!
//! A *run* is a passage through a function without a call: a call ends a run, and its return begins another one. The graph has an edge from
//! the block of each call to EXIT, and an edge from ENTRY to the block after the call:
//!
//! ```text
//!   control-flow graph             cut graph
//!   block ── CallReturn ──► next   block ── End ──► EXIT     ENTRY ── Root ──► next
//! ```
//!
//! So a call that ends by an exception, by `longjmp` or with its thread changes no derived count, and neither does a call that was in progress
//! when counting began, nor one that is in progress at a query. gcc's `-fprofile-arcs` cuts its graphs in the same way
//! (`flow_call_edges_add`). Only threads that are *inside* of a run when counting begins or ends need a correction.
//!
//! If no code can count how often control comes to a block from outside, the block is left out and has no count, and so are the blocks to which
//! control goes on from there, up to those at which all arrivals are counted. To these, control then comes from outside. Landing pads are left out,
//! blocks behind calls that never return, and short blocks behind calls.
//!
//! A block at which control arrives along edges that carry no counter gets an *arrival*: a vertex in front of it, whose edge to the block
//! carries the counter of all arrivals.
//!
//! Of several computed jumps to the same blocks, the arrivals do not tell which jump was taken, nor whether control came from outside. If all of
//! them were edges, their counts could not be derived. So these jumps, and the ways in to these blocks, lead to one vertex, a *hub*, and from there
//! edges lead to the blocks. The counts of blocks stay exact, and so do those of jumps and of targets that have one edge to the hub each:
//!
//! ```text
//!   jump ───┐          ┌── block
//!           ├── hub ───┤
//!   ENTRY ──┘          └── block
//! ```

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{BlockId, Cfg, Edge, EdgeId, EdgeKind, EdgeTarget, IndexVec, Key};

use crate::barred::{Barred, Counter, NoPlacement};
use crate::correction::Corrections;
use crate::earlier::Earlier;
use crate::graph::ProfileGraph;
use crate::map::{ArcId, Vertex};
use crate::placement::Placement;
use crate::probes::{ProbeAt, Probes};
use crate::profile::Defect;
use crate::shape::{GraphBuilder, Inexact};
use crate::union::Sets;
use crate::weights::Weights;

/// Position of a thread inside of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Position {
    /// In front of a block: the edge to it was counted, the arrival at it was not.
    Arrival(BlockId),
    /// In a block: its arrival was counted, and none of the edges that leave it.
    Block(BlockId),
}

/// Reason why runs cannot be counted exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCounted {
    /// The control-flow graph is not proven to be complete.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// The count of an edge or of the arrivals at this block can be neither counted nor derived.
    #[error("the arrivals at block {0} can be neither counted nor derived")]
    Block(BlockId),
    /// The number of activations can be neither counted nor derived.
    #[error("the activations can be neither counted nor derived")]
    Activations,
}

/// Threads inside of runs when counting began, and when it ended. A position may occur several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partial {
    /// Positions when counting began.
    pub late: Vec<Position>,
    /// Positions when counting ended.
    pub early: Vec<Position>,
}

/// Counts of the blocks and edges of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunCounts {
    /// Number of arrivals at each block; `None` for those that are left out ([`Runs::unknown`]).
    pub blocks: IndexVec<BlockId, Option<u64>>,
    /// Number of passages of each edge; for the return edge of a call, the number of returns. `None` if an edge cannot be told from others:
    /// several ways out of one block, returns of a call to an address at which control also arrives otherwise, or one of several computed jumps
    /// to the same blocks. Also between blocks that are left out.
    pub edges: IndexVec<EdgeId, Option<u64>>,
    /// For each block that ends in a call or has no way out, how often control reached its end; 0 for other blocks, and `None` for those that are
    /// left out.
    pub ends: IndexVec<BlockId, Option<u64>>,
    /// Number of arrivals from outside at the function's first block; `None` if they cannot be told from other arrivals.
    pub calls: Option<u64>,
}

/// Wishes about the counters of runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes<'e> {
    /// Counts of an earlier profile by which the counters are placed. Without one, frequencies are estimated from the structure of the graph.
    pub earlier: Option<&'e Earlier>,
    /// Whether to add a redundant counter if an edge is left for one. [`Runs::counts`] then fails if a thread was lost in the middle of a run,
    /// as far as the counter shows it.
    pub check: bool,
    /// Whether to count the arrivals at the entry rather than derive them, if a counter fits there. The entry of a run that ends in the
    /// middle is then counted.
    pub entries: bool,
    /// Number of further increments that take as long as the way of a taken branch to a count and back, if other ways lead to the target too. The
    /// place of such a count is apart from the straight way. With 0, all counts are equally cheap, as in the papers.
    pub detour: u32,
}

/// Counts that counters have told directly. Threads that were lost in the middle of runs do not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Number of arrivals at each block; `None` if it would have to be derived.
    pub blocks: IndexVec<BlockId, Option<u64>>,
    /// Number of passages of each edge; `None` if it would have to be derived.
    pub edges: IndexVec<EdgeId, Option<u64>>,
    /// Number of arrivals from outside at the function's first block; `None` if it would have to be derived.
    pub calls: Option<u64>,
}

/// A plan to count the runs of a function.
#[derive(Clone, Debug)]
pub struct Runs {
    graph: ProfileGraph,
    placement: Placement,
    counted: Vec<ProbeAt>,
    /// For each block, its arrival among the vertices.
    arrivals: IndexVec<BlockId, Option<Vertex>>,
    /// For each edge of the control-flow graph, the edge here with the same count.
    passages: IndexVec<EdgeId, Option<ArcId>>,
    ends: IndexVec<BlockId, Option<ArcId>>,
    calls: Option<ArcId>,
    /// The blocks that are left out.
    unknown: BTreeSet<BlockId>,
}

/// The cut graph in the making.
struct CutBuilder<'a> {
    cfg: &'a Cfg,
    probes: &'a Probes,
    shape: GraphBuilder,
    arrivals: IndexVec<BlockId, Option<Vertex>>,
    /// Hub of each edge that leads through one, and of each block to which ways in do.
    hubs: BTreeMap<EdgeId, Vertex>,
    entered: BTreeMap<BlockId, Vertex>,
    /// Counter of each edge that can carry one, and its weight.
    counted: BTreeMap<ArcId, ProbeAt>,
    weights: BTreeMap<ArcId, f64>,
    passages: IndexVec<EdgeId, Option<ArcId>>,
    ends: IndexVec<BlockId, Option<ArcId>>,
    /// Number of edges to each block.
    into: IndexVec<BlockId, u32>,
    /// Blocks at which control arrives from outside without a counter, each with the edges of the control-flow graph among these ways in.
    roots: BTreeMap<BlockId, Vec<EdgeId>>,
    leaves: BTreeMap<BlockId, ArcId>,
    /// The blocks that are left out.
    unknown: &'a BTreeSet<BlockId>,
}

impl Runs {
    /// Cuts a control-flow graph and places counters. With `check`, adds a redundant counter if an edge is left for one: then
    /// [`Runs::counts`] fails if a thread was lost in the middle of a run, as far as the counter shows it. Takes `O(edges × log edges)`.
    ///
    /// The counters are placed by frequencies that are estimated from the structure of the graph.
    pub fn new(cfg: &Cfg, probes: &Probes, check: bool) -> Result<Self, NotCounted> {
        Self::placed(cfg, probes, &Wishes { check, ..Wishes::default() })
    }

    /// As [`Runs::new`], but the counters are placed by the counts of an earlier profile.
    pub fn by_counts(cfg: &Cfg, probes: &Probes, check: bool, earlier: &Earlier) -> Result<Self, NotCounted> {
        Self::placed(cfg, probes, &Wishes { check, earlier: Some(earlier), ..Wishes::default() })
    }

    /// As [`Runs::new`], by these wishes. Blocks are left out only if the others cannot be counted otherwise.
    pub fn placed(cfg: &Cfg, probes: &Probes, wishes: &Wishes<'_>) -> Result<Self, NotCounted> {
        Self::without(cfg, probes, wishes, BTreeSet::new()).or_else(|refused| {
            let unknown = left_out(cfg, probes);
            if unknown.is_empty() { Err(refused) } else { Self::without(cfg, probes, wishes, unknown) }
        })
    }

    /// Places counters in a graph without some blocks.
    fn without(
        cfg: &Cfg,
        probes: &Probes,
        wishes: &Wishes<'_>,
        unknown: BTreeSet<BlockId>,
    ) -> Result<Self, NotCounted> {
        let earlier = wishes.earlier;
        let whole = GraphBuilder::of(cfg)?.build()?;
        let estimated = earlier.is_none().then(|| Weights::estimated(&whole));
        let of_edge = |edge: EdgeId| match (earlier, &estimated) {
            (Some(earlier), _) => earlier.edge(cfg, edge) as f64,
            (None, Some(weights)) => weights.edge(edge.into()),
            (None, None) => 0.0,
        };
        let of_block = |block: BlockId| match (earlier, &estimated) {
            (Some(earlier), _) => earlier.block(block) as f64,
            (None, Some(weights)) => weights.vertex(&whole, block.into()),
            (None, None) => 0.0,
        };
        let mut cut = CutBuilder::new(cfg, probes, &unknown);
        cut.ways_in();
        cut.edges(&of_edge, 1.0 + f64::from(wishes.detour));
        // A counter on an edge without weight is preferred to all others.
        cut.arrive(&|block| if wishes.entries && cfg.entry == Some(block) { 0.0 } else { of_block(block) });
        let entry = cfg.entry.and_then(|entry| cut.roots.get(&entry).filter(|edges| edges.is_empty()).map(|_| entry));
        let calls = cut.enter(entry);
        let CutBuilder { shape, arrivals, counted, weights, passages, ends, .. } = cut;
        let graph = shape.build()?;
        let mut barred = Barred::none();
        let edges = (0..graph.edges().len()).map(ArcId::at);
        edges.filter(|edge| !counted.contains_key(edge)).for_each(|edge| barred.edge(edge));
        let weights = Weights::of(&graph, |edge| weights.get(&edge).copied().unwrap_or_default());
        let mut placement = Placement::edge_profile(&graph, &weights, &barred).map_err(|refused| {
            let ends = match refused {
                NoPlacement::Edge(edge) => graph.edge(edge).map_or_else(Vec::new, |edge| vec![edge.to, edge.from]),
                NoPlacement::Block(block) => vec![block],
            };
            let is_at = |(block, arrival): &(BlockId, &Option<Vertex>), end| {
                Vertex::from(*block) == end || **arrival == Some(end)
            };
            let block = |end| arrivals.entries().find(|entry| is_at(entry, end)).map(|(block, _)| block);
            ends.into_iter().find_map(block).map_or(NotCounted::Activations, NotCounted::Block)
        })?;
        if wishes.check
            && let Some(edge) = placement.widest_check(&graph, &barred)
            && let Ok(checked) = placement.clone().with_check(&graph, &barred, edge)
        {
            placement = checked;
        }
        let of = |counter: &Counter| match counter {
            Counter::Edge(edge) => counted.get(edge).copied(),
            Counter::Block(_) => None,
        };
        let counted = placement.counters().iter().filter_map(of).collect();
        Ok(Runs { graph, placement, counted, arrivals, passages, ends, calls, unknown })
    }

    /// The blocks that are left out, and have no counts.
    pub fn unknown(&self) -> &BTreeSet<BlockId> {
        &self.unknown
    }

    /// The places of the counters, in the order of the counts that [`Runs::counts`] takes.
    pub fn counters(&self) -> &[ProbeAt] {
        &self.counted
    }

    /// Derives all counts in linear time. `counters` has the sum over all threads for each of [`Runs::counters`]. Fails if no execution has
    /// these counts, which means that a thread was lost in the middle of a run.
    pub fn counts(&self, counters: &[u64], partial: &Partial) -> Result<RunCounts, Defect> {
        let is_known = |position: &&Position| match position {
            Position::Block(block) | Position::Arrival(block) => !self.unknown.contains(block),
        };
        let all = |positions: &[Position]| {
            positions.iter().filter(is_known).map(|position| (self.vertex(*position), 1)).collect()
        };
        let corrections = Corrections { late: all(&partial.late), early: all(&partial.early) };
        let profile = self.placement.profile(&self.graph, counters, &corrections)?;
        let of = |edge: &Option<ArcId>| edge.and_then(|edge| profile.edge(edge));
        let known = |block: BlockId, count: u64| (!self.unknown.contains(&block)).then_some(count);
        Ok(RunCounts {
            // A thread between an arrival and its block is not counted.
            blocks: self.arrivals.keys().map(|block| known(block, profile.block(block.into()))).collect(),
            edges: self.passages.iter().map(of).collect(),
            ends: self.ends.entries().map(|(block, edge)| known(block, of(edge).unwrap_or_default())).collect(),
            calls: of(&self.calls),
        })
    }

    /// Whether every call of the function is counted as soon as it begins, so that a function whose counters are 0 was not called.
    pub fn tells_calls(&self, cfg: &Cfg) -> bool {
        cfg.entry.is_some_and(|entry| self.counted.contains(&ProbeAt::Block(entry)))
    }

    /// The counts that need no derivation. `counters` is that of [`Runs::counts`].
    pub fn measured(&self, cfg: &Cfg, counters: &[u64]) -> Measured {
        let (blocks, edges) = (IndexVec::filled(None, cfg.blocks.len()), IndexVec::filled(None, cfg.edges.len()));
        let mut measured = Measured { blocks, edges, calls: None };
        for (place, count) in self.counted.iter().zip(counters) {
            match place {
                ProbeAt::Edge(edge) => measured.edges.set(*edge, Some(*count)),
                ProbeAt::Block(block) => measured.blocks.set(*block, Some(*count)),
            }
        }
        let mut arrivals = IndexVec::filled(Some(0_u64), cfg.blocks.len());
        for (edge, count) in cfg.edges.iter().zip(&measured.edges) {
            if let EdgeTarget::Block(to) = edge.to
                && let Some(sum) = arrivals.get_mut(to)
            {
                *sum = sum.zip(*count).and_then(|(sum, count)| sum.checked_add(count));
            }
        }
        let of = |all: &IndexVec<BlockId, Option<u64>>, block| all.get(block).copied().flatten();
        let inner = cfg.entry.and_then(|entry| Some((of(&measured.blocks, entry)?, of(&arrivals, entry)?)));
        measured.calls = inner.and_then(|(all, inner)| all.checked_sub(inner));
        for root in cfg.roots() {
            arrivals.set(root, None);
        }
        measured.blocks.iter_mut().zip(arrivals).for_each(|(known, sum)| *known = known.or(sum));
        measured
    }

    /// The cut graph.
    pub(crate) fn graph(&self) -> &ProfileGraph {
        &self.graph
    }

    /// The counters in the cut graph.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The vertex of a position. The position in front of a block without an arrival is the block.
    pub(crate) fn vertex(&self, position: Position) -> Vertex {
        match position {
            Position::Block(block) => block.into(),
            Position::Arrival(block) => self.arrivals.get(block).copied().flatten().unwrap_or(block.into()),
        }
    }
}

impl<'a> CutBuilder<'a> {
    fn new(cfg: &'a Cfg, probes: &'a Probes, unknown: &'a BTreeSet<BlockId>) -> Self {
        let blocks = cfg.blocks.len();
        let mut uncounted: BTreeSet<BlockId> = cfg.roots().into_iter().collect();
        let mut into = IndexVec::filled(0_u32, blocks);
        for (id, edge) in cfg.edges.entries() {
            let EdgeTarget::Block(to) = edge.to else { continue };
            into.set(to, into.get(to).map_or(0, |known| known.saturating_add(1)));
            if !probes.has_edge(id) {
                uncounted.insert(to);
            }
        }
        let mut arrivals = IndexVec::filled(None, blocks);
        let mut next = blocks;
        for block in uncounted.into_iter().filter(|block| probes.has_block(*block) && !unknown.contains(block)) {
            arrivals.set(block, Some(Vertex::at(next)));
            next += 1;
        }
        let (mut hubs, mut entered) = (BTreeMap::new(), BTreeMap::new());
        for (edges, ways_in) in jumps_alike(cfg, probes) {
            let hub = Vertex::at(next);
            hubs.extend(edges.into_iter().map(|edge| (edge, hub)));
            entered.extend(ways_in.into_iter().map(|block| (block, hub)));
            next += 1;
        }
        CutBuilder {
            cfg,
            probes,
            shape: GraphBuilder::new(next),
            arrivals,
            hubs,
            entered,
            counted: BTreeMap::new(),
            weights: BTreeMap::new(),
            passages: IndexVec::filled(None, cfg.edges.len()),
            ends: IndexVec::filled(None, blocks),
            into,
            roots: BTreeMap::new(),
            leaves: BTreeMap::new(),
            unknown,
        }
    }

    /// Vertex at which edges to a block end.
    fn front(&self, block: BlockId) -> Vertex {
        self.arrivals.get(block).copied().flatten().unwrap_or(block.into())
    }

    /// Notes the ways in from outside.
    fn ways_in(&mut self) {
        for root in self.cfg.roots().into_iter().filter(|root| !self.unknown.contains(root)) {
            self.roots.entry(root).or_default();
        }
    }

    /// Adds the edges of the control-flow graph, cut at calls. `detour` is the cost of a count apart from the straight way, in increments.
    fn edges(&mut self, weight: &dyn Fn(EdgeId) -> f64, detour: f64) {
        self.jumps_through_hubs(weight);
        for (id, edge) in self.cfg.edges.entries() {
            if self.hubs.contains_key(&id) {
                continue;
            }
            let can_count = self.probes.has_edge(id);
            let passage = match (edge.kind, edge.to) {
                _ if self.unknown.contains(&edge.from) => self.way_in(id, edge.to, can_count),
                (kind, EdgeTarget::Block(to)) if self.unknown.contains(&to) => match kind {
                    EdgeKind::CallReturn => {
                        self.end(edge.from);
                        None
                    }
                    _ if can_count => Some(self.shape.leave(edge.from)),
                    _ => self.leave(edge.from),
                },
                (EdgeKind::CallReturn, to) => {
                    self.end(edge.from);
                    self.way_in(id, to, can_count)
                }
                (
                    EdgeKind::Taken
                    | EdgeKind::FallThrough
                    | EdgeKind::JumpTable
                    | EdgeKind::TailJump
                    | EdgeKind::Return,
                    EdgeTarget::Block(to),
                ) => Some(self.shape.edge(edge.from, self.front(to))),
                (
                    EdgeKind::Taken
                    | EdgeKind::FallThrough
                    | EdgeKind::JumpTable
                    | EdgeKind::TailJump
                    | EdgeKind::Return,
                    EdgeTarget::Outside(_) | EdgeTarget::Dynamic,
                ) => self.leave(edge.from),
            };
            self.passages.set(id, passage);
            let Some(arc) = passage else { continue };
            self.weights.insert(arc, weight(id) * if self.is_apart(edge) { detour } else { 1.0 });
            if can_count && matches!(edge.to, EdgeTarget::Block(_)) {
                self.counted.insert(arc, ProbeAt::Edge(id));
            }
        }
        for block in self.cfg.blocks.keys().filter(|block| !self.unknown.contains(block)) {
            if self.cfg.edges_from(block).len() == 0 {
                self.end(block);
            }
        }
    }

    /// Adds an edge that no run goes along: the return of a call, or one from a block that is left out.
    fn way_in(&mut self, id: EdgeId, to: EdgeTarget, can_count: bool) -> Option<ArcId> {
        let EdgeTarget::Block(to) = to else { return None };
        match can_count {
            _ if self.unknown.contains(&to) => None,
            true => Some(self.shape.root(self.front(to))),
            false => {
                self.roots.entry(to).or_default().push(id);
                None
            }
        }
    }

    /// Adds the edges of computed jumps to hubs, and from there to blocks. [`CutBuilder::enter`] adds the ways in.
    fn jumps_through_hubs(&mut self, weight: &dyn Fn(EdgeId) -> f64) {
        let mut into: BTreeMap<(BlockId, Vertex), Vec<EdgeId>> = BTreeMap::new();
        let mut out: BTreeMap<(Vertex, BlockId), Vec<EdgeId>> = BTreeMap::new();
        for (id, hub) in &self.hubs {
            let Some(edge) = self.cfg.edges.get(*id) else { continue };
            let EdgeTarget::Block(to) = edge.to else { continue };
            into.entry((edge.from, *hub)).or_default().push(*id);
            out.entry((*hub, to)).or_default().push(*id);
        }
        for (block, hub) in &self.entered {
            out.entry((*hub, *block)).or_default();
        }
        let into = into.into_iter().map(|((from, hub), edges)| (Vertex::from(from), hub, edges)).collect::<Vec<_>>();
        let out = out.into_iter().map(|((hub, to), edges)| (hub, self.front(to), edges)).collect::<Vec<_>>();
        let jumps = into.len();
        for (from, to, edges) in into.into_iter().chain(out) {
            let arc = self.shape.edge(from, to);
            self.weights.insert(arc, edges.iter().map(|edge| weight(*edge)).sum());
            let is_entered = |edge: &EdgeId| match self.cfg.edges.get(*edge).map(|edge| edge.to) {
                Some(EdgeTarget::Block(to)) => self.entered.contains_key(&to),
                _ => false,
            };
            // Control may also come to such a block from outside.
            if let [only] = edges.as_slice()
                && (arc.index() < jumps || !is_entered(only))
            {
                self.passages.set(*only, Some(arc));
            }
        }
    }

    /// Whether the count of an edge lies apart from the straight way: that of a taken branch to a block with other ways in.
    fn is_apart(&self, edge: &Edge) -> bool {
        let shares = |to: BlockId| self.into.get(to).is_some_and(|into| *into > 1) || self.roots.contains_key(&to);
        matches!((edge.kind, edge.to), (EdgeKind::Taken, EdgeTarget::Block(to)) if shares(to))
    }

    /// Adds the end of a run at a block.
    fn end(&mut self, block: BlockId) {
        self.ends.set(block, Some(self.shape.may_end(block)));
    }

    /// Adds the way out of a block. Several ways out of one block share an edge, whose count is that of none of them.
    fn leave(&mut self, block: BlockId) -> Option<ArcId> {
        if let Some(shared) = self.leaves.get(&block) {
            let shared = *shared;
            self.passages.iter_mut().filter(|passage| **passage == Some(shared)).for_each(|passage| *passage = None);
            return None;
        }
        let leave = self.shape.leave(block);
        self.leaves.insert(block, leave);
        Some(leave)
    }

    /// Adds the edges from arrivals to their blocks.
    fn arrive(&mut self, weight: &dyn Fn(BlockId) -> f64) {
        for (block, arrival) in self.arrivals.entries() {
            let Some(arrival) = arrival else { continue };
            let edge = self.shape.edge(*arrival, block);
            self.counted.insert(edge, ProbeAt::Block(block));
            self.weights.insert(edge, weight(block));
        }
    }

    /// Adds one edge from ENTRY for all ways into a block that carry no counter. Returns the edge to `entry`.
    fn enter(&mut self, entry: Option<BlockId>) -> Option<ArcId> {
        let mut calls = None;
        let hubs: BTreeSet<Vertex> = self.entered.values().copied().collect();
        for hub in hubs {
            self.shape.root(hub);
        }
        for (block, edges) in std::mem::take(&mut self.roots) {
            if self.entered.contains_key(&block) {
                continue;
            }
            let root = self.shape.root(self.front(block));
            if entry == Some(block) {
                calls = Some(root);
            }
            // The only way in of a block is the return of a call, or an edge from a block that is left out.
            if let ([edge], false) = (edges.as_slice(), self.cfg.roots().contains(&block)) {
                self.passages.set(*edge, Some(root));
            }
        }
        calls
    }
}

/// The blocks that are left out: those to which control comes from outside where no code can count it, and those to which it goes on from there,
/// up to blocks at which all arrivals are counted. None if computed jumps lead to them or from them, or if the first block is among them.
fn left_out(cfg: &Cfg, probes: &Probes) -> BTreeSet<BlockId> {
    let inner = |edge: &Edge| match edge.to {
        EdgeTarget::Block(to) => Some(to),
        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    };
    let returns = cfg.edges.entries().filter(|(id, edge)| edge.kind == EdgeKind::CallReturn && !probes.has_edge(*id));
    let ways_in = cfg.roots().into_iter().chain(returns.filter_map(|(_, edge)| inner(edge)));
    let mut next: Vec<BlockId> = ways_in.filter(|block| !probes.has_block(*block)).collect();
    let mut out = BTreeSet::new();
    while let Some(block) = next.pop() {
        if out.insert(block) {
            let on = cfg.edges_from(block).filter(|(_, edge)| edge.kind != EdgeKind::CallReturn);
            next.extend(on.filter_map(|(_, edge)| inner(edge)).filter(|to| !probes.has_block(*to)));
        }
    }
    let jumped_to: BTreeSet<BlockId> =
        cfg.edges.iter().filter(|edge| edge.kind == EdgeKind::JumpTable).filter_map(inner).collect();
    let jumps = |edge: &Edge| out.contains(&edge.from) && inner(edge).is_some_and(|to| jumped_to.contains(&to));
    let refused = out.iter().any(|block| jumped_to.contains(block)) || cfg.edges.iter().any(jumps);
    if refused || cfg.entry.is_some_and(|entry| out.contains(&entry)) { BTreeSet::new() } else { out }
}

/// The edges of computed jumps that carry no counter, and the blocks to which ways in lead that carry none, in groups that share blocks. Groups
/// whose counts follow from those of the jumps and of the blocks are left out: those without a circle.
fn jumps_alike(cfg: &Cfg, probes: &Probes) -> Vec<(Vec<EdgeId>, Vec<BlockId>)> {
    let blocks = cfg.blocks.len();
    let target = |edge: &Edge| match edge.to {
        EdgeTarget::Block(to) if to.index() < blocks => Some(to),
        EdgeTarget::Block(_) | EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
    };
    let uncounted = |kind| {
        let of_kind = cfg.edges.entries().filter(move |(id, edge)| edge.kind == kind && !probes.has_edge(*id));
        of_kind.filter_map(|(id, edge)| Some((id, edge.from, target(edge)?)))
    };
    let jumps: Vec<(EdgeId, BlockId, BlockId)> = uncounted(EdgeKind::JumpTable).collect();
    // The number of calls must stay known.
    let ways_in = cfg.roots().into_iter().filter(|root| Some(*root) != cfg.entry);
    let ways_in: BTreeSet<BlockId> = ways_in.chain(uncounted(EdgeKind::CallReturn).map(|(_, _, to)| to)).collect();
    // Each block twice, as one that jumps and as one that is jumped to, and the outside, from which control comes.
    let (outside, to) = (Vertex::at(2 * blocks), |block: BlockId| Vertex::at(blocks + block.index()));
    let mut sets = Sets::new(2 * blocks + 1);
    let mut circles = Vec::new();
    let jumped = jumps.iter().map(|(_, from, block)| (Vertex::at(from.index()), to(*block)));
    let entered = ways_in.iter().map(|block| (outside, to(*block)));
    for (from, to) in jumped.chain(entered) {
        if !sets.unite(from, to) {
            circles.push(from);
        }
    }
    let circles: BTreeSet<Vertex> = circles.into_iter().map(|jump| sets.find(jump)).collect();
    let mut groups: BTreeMap<Vertex, (Vec<EdgeId>, Vec<BlockId>)> = BTreeMap::new();
    for (id, _, block) in jumps {
        groups.entry(sets.find(to(block))).or_default().0.push(id);
    }
    for block in ways_in {
        // A way in without a jump to its block has a count that follows from the others.
        if let Some(group) = groups.get_mut(&sets.find(to(block))) {
            group.1.push(block);
        }
    }
    groups.retain(|group, _| circles.contains(group));
    groups.into_values().collect()
}
