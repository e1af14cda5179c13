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
//! A block at which control arrives along edges that carry no counter gets an *arrival*: a vertex in front of it, whose edge to the block
//! carries the counter of all arrivals.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{Cfg, EdgeKind, EdgeTarget};

use crate::barred::{Barred, Counter, Refused};
use crate::correction::Corrections;
use crate::earlier::Earlier;
use crate::graph::Graph;
use crate::map::{EdgeId, Key, Vertex};
use crate::placement::Placement;
use crate::profile::Defect;
use crate::shape::{Inexact, Shape};
use crate::weights::Weights;

/// The edges and blocks of a control-flow graph at which code can count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Probes {
    /// Whether code can count the passages of each edge, in the order of [`Cfg::edges`].
    pub edges: Vec<bool>,
    /// Whether code can count all arrivals at each block, in the order of [`Cfg::blocks`].
    pub blocks: Vec<bool>,
}

/// Place of a counter in a control-flow graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Counted {
    /// Passages of an edge, by its index.
    Edge(usize),
    /// Arrivals at a block, by its index.
    Block(usize),
}

/// Position of a thread inside of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Position {
    /// In front of a block: the edge to it was counted, the arrival at it was not.
    Arrival(usize),
    /// In a block, by its index: its arrival was counted, and none of the edges that leave it.
    Block(usize),
}

/// Reason why runs cannot be counted exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotCounted {
    /// The control-flow graph is not proven to be complete.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// The count of an edge or of the arrivals at this block can be neither counted nor derived.
    #[error("the arrivals at block {0} can be neither counted nor derived")]
    Block(usize),
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
    /// Number of arrivals at each block.
    pub blocks: Vec<u64>,
    /// Number of passages of each edge; for the return edge of a call, the number of returns. `None` if an edge cannot be told from others:
    /// several ways out of one block, or returns of a call to an address at which control also arrives otherwise.
    pub edges: Vec<Option<u64>>,
    /// For each block that ends in a call or has no way out, how often control reached its end; 0 for other blocks.
    pub ends: Vec<u64>,
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
}

/// Counts that counters have told directly. Threads that were lost in the middle of runs do not change them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Number of arrivals at each block; `None` if it would have to be derived.
    pub blocks: Vec<Option<u64>>,
    /// Number of passages of each edge; `None` if it would have to be derived.
    pub edges: Vec<Option<u64>>,
    /// Number of arrivals from outside at the function's first block; `None` if it would have to be derived.
    pub calls: Option<u64>,
}

/// A plan to count the runs of a function.
#[derive(Clone, Debug)]
pub struct Runs {
    graph: Graph,
    placement: Placement,
    counted: Vec<Counted>,
    blocks: usize,
    /// For each block, its arrival among the vertices.
    arrivals: Vec<Option<usize>>,
    /// For each edge of the control-flow graph, the edge here with the same count.
    passages: Vec<Option<EdgeId>>,
    ends: Vec<Option<EdgeId>>,
    calls: Option<EdgeId>,
}

/// The cut graph in the making.
struct Cut<'a> {
    cfg: &'a Cfg,
    probes: &'a Probes,
    shape: Shape,
    arrivals: Vec<Option<usize>>,
    /// Counter of each edge that can carry one, and its weight.
    counted: BTreeMap<EdgeId, Counted>,
    weights: BTreeMap<EdgeId, f64>,
    passages: Vec<Option<EdgeId>>,
    ends: Vec<Option<EdgeId>>,
    /// Blocks at which control arrives from outside without a counter, each with the edges of the control-flow graph among these ways in.
    roots: BTreeMap<usize, Vec<usize>>,
    leaves: BTreeMap<usize, EdgeId>,
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
        Self::placed(cfg, probes, &Wishes { check, earlier: Some(earlier), entries: false })
    }

    /// As [`Runs::new`], by these wishes.
    pub fn placed(cfg: &Cfg, probes: &Probes, wishes: &Wishes<'_>) -> Result<Self, NotCounted> {
        let earlier = wishes.earlier;
        let whole = Shape::of(cfg)?.build()?;
        let estimated = earlier.is_none().then(|| Weights::estimated(&whole));
        let of_edge = |edge: usize| match (earlier, &estimated) {
            (Some(earlier), _) => earlier.edge(cfg, edge) as f64,
            (None, Some(weights)) => weights.edge(EdgeId::at(edge)),
            (None, None) => 0.0,
        };
        let of_block = |block: usize| match (earlier, &estimated) {
            (Some(earlier), _) => earlier.block(block) as f64,
            (None, Some(weights)) => weights.vertex(&whole, Vertex::at(block)),
            (None, None) => 0.0,
        };
        let mut cut = Cut::new(cfg, probes);
        cut.ways_in();
        cut.edges(&of_edge);
        // A counter on an edge without weight is preferred to all others.
        cut.arrive(&|block| if wishes.entries && cfg.entry == Some(block) { 0.0 } else { of_block(block) });
        let entry = cfg.entry.and_then(|entry| cut.roots.get(&entry).filter(|edges| edges.is_empty()).map(|_| entry));
        let calls = cut.enter(entry);
        let Cut { shape, arrivals, counted, weights, passages, ends, .. } = cut;
        let graph = shape.build()?;
        let mut barred = Barred::none();
        let edges = (0..graph.edges().len()).map(EdgeId::at);
        edges.filter(|edge| !counted.contains_key(edge)).for_each(|edge| barred.edge(edge));
        let weights = Weights::of(&graph, |edge| weights.get(&edge).copied().unwrap_or_default());
        let blocks = cfg.blocks.len();
        let mut placement = Placement::edge_profile(&graph, &weights, &barred).map_err(|refused| {
            let Refused::Edge(edge) = refused else { return NotCounted::Block(0) };
            let ends = graph.edge(edge).map(|edge| [edge.to.index(), edge.from.index()]);
            let of_arrival = |vertex| arrivals.iter().position(|arrival| *arrival == Some(vertex));
            let mut ends = ends.into_iter().flatten();
            NotCounted::Block(
                ends.find_map(|end| if end < blocks { Some(end) } else { of_arrival(end) }).unwrap_or_default(),
            )
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
        Ok(Runs { graph, placement, counted, blocks, arrivals, passages, ends, calls })
    }

    /// The places of the counters, in the order of the counts that [`Runs::counts`] takes.
    pub fn counters(&self) -> &[Counted] {
        &self.counted
    }

    /// Derives all counts in linear time. `counters` has the sum over all threads for each of [`Runs::counters`]. Fails if no execution has
    /// these counts, which means that a thread was lost in the middle of a run.
    pub fn counts(&self, counters: &[u64], partial: &Partial) -> Result<RunCounts, Defect> {
        let all = |positions: &[Position]| positions.iter().map(|position| (self.vertex(*position), 1)).collect();
        let corrections = Corrections { late: all(&partial.late), early: all(&partial.early) };
        let profile = self.placement.profile(&self.graph, counters, &corrections)?;
        let of = |edge: &Option<EdgeId>| edge.and_then(|edge| profile.edge(edge));
        Ok(RunCounts {
            // A thread between an arrival and its block is not counted.
            blocks: (0..self.blocks).map(|block| profile.block(block)).collect(),
            edges: self.passages.iter().map(of).collect(),
            ends: self.ends.iter().map(|edge| of(edge).unwrap_or_default()).collect(),
            calls: of(&self.calls),
        })
    }

    /// Whether every call of the function is counted as soon as it begins, so that a function whose counters are 0 was not called.
    pub fn tells_calls(&self, cfg: &Cfg) -> bool {
        cfg.entry.is_some_and(|entry| self.counted.contains(&Counted::Block(entry)))
    }

    /// The counts that need no derivation. `counters` is that of [`Runs::counts`].
    pub fn measured(&self, cfg: &Cfg, counters: &[u64]) -> Measured {
        let (blocks, edges) = (vec![None; cfg.blocks.len()], vec![None; cfg.edges.len()]);
        let mut measured = Measured { blocks, edges, calls: None };
        for (place, count) in self.counted.iter().zip(counters) {
            let (all, index) = match place {
                Counted::Edge(edge) => (&mut measured.edges, *edge),
                Counted::Block(block) => (&mut measured.blocks, *block),
            };
            all.get_mut(index).into_iter().for_each(|known| *known = Some(*count));
        }
        let mut arrivals = vec![Some(0_u64); cfg.blocks.len()];
        for (edge, count) in cfg.edges.iter().zip(&measured.edges) {
            if let EdgeTarget::Block(to) = edge.to
                && let Some(sum) = arrivals.get_mut(to)
            {
                *sum = sum.zip(*count).and_then(|(sum, count)| sum.checked_add(count));
            }
        }
        let of = |all: &[Option<u64>], block: usize| all.get(block).copied().flatten();
        let inner = cfg.entry.and_then(|entry| Some((of(&measured.blocks, entry)?, of(&arrivals, entry)?)));
        measured.calls = inner.and_then(|(all, inner)| all.checked_sub(inner));
        for root in cfg.roots() {
            arrivals.get_mut(root).into_iter().for_each(|sum| *sum = None);
        }
        measured.blocks.iter_mut().zip(arrivals).for_each(|(known, sum)| *known = known.or(sum));
        measured
    }

    /// The cut graph.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The counters in the cut graph.
    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The vertex of a position. The position in front of a block without an arrival is the block.
    pub(crate) fn vertex(&self, position: Position) -> usize {
        match position {
            Position::Block(block) => block,
            Position::Arrival(block) => self.arrivals.get(block).copied().flatten().unwrap_or(block),
        }
    }
}

impl<'a> Cut<'a> {
    fn new(cfg: &'a Cfg, probes: &'a Probes) -> Self {
        let blocks = cfg.blocks.len();
        let allowed = |edge: usize| probes.edges.get(edge).copied().unwrap_or_default();
        let mut uncounted: BTreeSet<usize> = cfg.roots().into_iter().collect();
        for (index, edge) in cfg.edges.iter().enumerate() {
            if let EdgeTarget::Block(to) = edge.to
                && !allowed(index)
            {
                uncounted.insert(to);
            }
        }
        let mut arrivals = vec![None; blocks];
        let mut next = blocks;
        for block in uncounted {
            if let Some(arrival) = arrivals.get_mut(block)
                && probes.blocks.get(block).copied().unwrap_or_default()
            {
                *arrival = Some(next);
                next += 1;
            }
        }
        Cut {
            cfg,
            probes,
            shape: Shape::new(next),
            arrivals,
            counted: BTreeMap::new(),
            weights: BTreeMap::new(),
            passages: vec![None; cfg.edges.len()],
            ends: vec![None; blocks],
            roots: BTreeMap::new(),
            leaves: BTreeMap::new(),
        }
    }

    /// Vertex at which edges to a block end.
    fn front(&self, block: usize) -> usize {
        self.arrivals.get(block).copied().flatten().unwrap_or(block)
    }

    /// Notes the ways in from outside.
    fn ways_in(&mut self) {
        for root in self.cfg.roots() {
            self.roots.entry(root).or_default();
        }
    }

    /// Adds the edges of the control-flow graph, cut at calls.
    fn edges(&mut self, weight: &dyn Fn(usize) -> f64) {
        for (index, edge) in self.cfg.edges.iter().enumerate() {
            let can_count = self.probes.edges.get(index).copied().unwrap_or_default();
            let passage = match (edge.kind, edge.to) {
                (EdgeKind::CallReturn, to) => {
                    self.end(edge.from);
                    match to {
                        EdgeTarget::Block(to) if can_count => Some(self.shape.root(self.front(to))),
                        EdgeTarget::Block(to) => {
                            self.roots.entry(to).or_default().push(index);
                            None
                        }
                        EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
                    }
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
            if let Some(slot) = self.passages.get_mut(index) {
                *slot = passage;
            }
            let Some(id) = passage else { continue };
            self.weights.insert(id, weight(index));
            if can_count && matches!(edge.to, EdgeTarget::Block(_)) {
                self.counted.insert(id, Counted::Edge(index));
            }
        }
        for block in 0..self.cfg.blocks.len() {
            if self.cfg.edges_from(block).is_empty() {
                self.end(block);
            }
        }
    }

    /// Adds the end of a run at a block.
    fn end(&mut self, block: usize) {
        let end = self.shape.may_end(block);
        if let Some(slot) = self.ends.get_mut(block) {
            *slot = Some(end);
        }
    }

    /// Adds the way out of a block. Several ways out of one block share an edge, whose count is that of none of them.
    fn leave(&mut self, block: usize) -> Option<EdgeId> {
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
    fn arrive(&mut self, weight: &dyn Fn(usize) -> f64) {
        for (block, arrival) in self.arrivals.iter().enumerate() {
            let Some(arrival) = arrival else { continue };
            let edge = self.shape.edge(*arrival, block);
            self.counted.insert(edge, Counted::Block(block));
            self.weights.insert(edge, weight(block));
        }
    }

    /// Adds one edge from ENTRY for all ways into a block that carry no counter. Returns the edge to `entry`.
    fn enter(&mut self, entry: Option<usize>) -> Option<EdgeId> {
        let mut calls = None;
        for (block, edges) in std::mem::take(&mut self.roots) {
            let root = self.shape.root(self.front(block));
            if entry == Some(block) {
                calls = Some(root);
            }
            // The only way in of a block is the return of a call.
            if let ([edge], false) = (edges.as_slice(), self.cfg.roots().contains(&block))
                && let Some(slot) = self.passages.get_mut(*edge)
            {
                *slot = Some(root);
            }
        }
        calls
    }
}
