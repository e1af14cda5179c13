//! The places of a function of a running program that write tokens, and the graph in which they tell the way.
//!
//! As in [`Runs`](crate::Runs), the graph is cut at the calls of the function: a call ends a *run*, and its return begins another one. Each
//! run begins with a token. So a replay never has to know what a call did: the callee may be traced or not, call back, throw an exception, or
//! never return. Inside of a run, witnesses with blockers tell the way, so a replay reads a token only at a branch.
//!
//! If control can arrive at a block along an edge that carries no code, the block gets an *arrival*: a vertex in front of it. The edge from
//! the arrival to the block stands for code in the block, which runs at all arrivals.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{BlockId, Cfg, EdgeId, EdgeKind, EdgeTarget, Key, WayInReason};

use crate::barred::{Barred, NoPlacement};
use crate::graph::ProfileGraph;
use crate::map::{ArcId, Vertex};
use crate::probes::{ProbeAt, Probes};
use crate::shape::{GraphBuilder, Inexact};
use crate::trace::witness::Witnesses;
use crate::weights::Weights;

/// Reason why a function cannot be traced exactly.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotTraced {
    /// The control-flow graph is not proven to be complete.
    #[error(transparent)]
    Inexact(#[from] Inexact),
    /// No block begins at the function's first byte.
    #[error("no block begins at the function's first byte")]
    NoEntry,
    /// No code can tell how control arrives at this block or leaves it.
    #[error("no code can tell how control arrives at block {0} or leaves it")]
    Block(BlockId),
}

/// A function, and its places that write tokens.
#[derive(Clone, Debug)]
pub struct TracedFunction {
    places: Vec<ProbeAt>,
    cut: CutGraph,
    witnesses: Witnesses,
    /// Edge of the graph for each place.
    edges: Vec<ArcId>,
    entry: BlockId,
    blocks: usize,
}

impl TracedFunction {
    /// Chooses the places of a function. `probes.edges` also says of an edge out of the function whether code can run before it. Fails if a
    /// trace would not be exact.
    pub fn new(cfg: &Cfg, probes: &Probes) -> Result<Self, NotTraced> {
        let whole = GraphBuilder::of(cfg)?.build()?;
        let expected = Weights::estimated(&whole);
        let cut = CutGraph::new(cfg, &arrivals(cfg, probes), &|edge| probes.has_edge(edge))?;
        let weights = Weights::of(&cut.graph, |id| match cut.places.get(&id) {
            Some(ProbeAt::Edge(edge)) => expected.edge((*edge).into()),
            Some(ProbeAt::Block(block)) => expected.vertex(&whole, (*block).into()),
            None => 0.0,
        });
        let witnesses = cut.witnesses(cfg, &weights, &cut.starts)?;
        let written = cut.places.iter().filter(|(edge, _)| witnesses.writes(**edge)).map(|(_, place)| *place);
        let places: BTreeSet<ProbeAt> = written.collect();
        Self::of(cfg, places.into_iter().collect())
    }

    /// Takes given places of a function, in the order of their numbers. Fails if they do not determine the sequence of blocks.
    pub fn of(cfg: &Cfg, places: Vec<ProbeAt>) -> Result<Self, NotTraced> {
        let entry = cfg.entry.ok_or(NotTraced::NoEntry)?;
        let given: BTreeSet<ProbeAt> = places.iter().copied().collect();
        let arrivals = given.iter().filter_map(|place| match place {
            ProbeAt::Block(block) => Some(*block),
            ProbeAt::Edge(_) => None,
        });
        let cut = CutGraph::new(cfg, &arrivals.collect(), &|edge| given.contains(&ProbeAt::Edge(edge)))?;
        let edge_of: BTreeMap<ProbeAt, ArcId> = cut.places.iter().map(|(edge, place)| (*place, *edge)).collect();
        let edges: Vec<ArcId> = places.iter().filter_map(|place| edge_of.get(place).copied()).collect();
        if edges.len() != places.len() || edge_of.len() != places.len() {
            return Err(NotTraced::Block(entry));
        }
        let witnesses = cut.witnesses(cfg, &Weights::uniform(&cut.graph), &edges)?;
        Ok(TracedFunction { places, cut, witnesses, edges, entry, blocks: cfg.blocks.len() })
    }

    /// The places that write tokens. The number of a place is its index.
    pub fn places(&self) -> &[ProbeAt] {
        &self.places
    }

    pub(super) fn graph(&self) -> &ProfileGraph {
        &self.cut.graph
    }

    pub(super) fn witnesses(&self) -> &Witnesses {
        &self.witnesses
    }

    /// Vertex at which an activation begins.
    pub(super) fn entry(&self) -> Vertex {
        self.entry.into()
    }

    /// Edge of the graph that a place stands for.
    pub(super) fn edge(&self, place: u32) -> Option<ArcId> {
        self.edges.get(usize::try_from(place).ok()?).copied()
    }

    /// The block of a vertex; `None` for arrivals, ENTRY and EXIT.
    pub(super) fn block(&self, vertex: Vertex) -> Option<BlockId> {
        (vertex.index() < self.blocks).then_some(BlockId(vertex.0))
    }

    /// Whether a call in a block can return to a place.
    pub(super) fn returns(&self, call: Vertex, place: u32) -> bool {
        self.edge(place).is_some_and(|edge| self.cut.returns.contains(&(call, edge)))
    }
}

/// The graph of a function, cut at its calls.
#[derive(Clone, Debug)]
struct CutGraph {
    graph: ProfileGraph,
    /// Place of each edge that can write a token.
    places: BTreeMap<ArcId, ProbeAt>,
    /// Blocks at which runs end without leaving the function.
    ends: Vec<Vertex>,
    /// Edges of arrivals at which runs begin without another token.
    starts: Vec<ArcId>,
    /// Blocks of calls, each with the edge at which the call returns.
    returns: BTreeSet<(Vertex, ArcId)>,
}

impl CutGraph {
    /// Cuts a graph at its calls. The blocks of `arrivals` get arrivals. `counted` says of an edge whether it can write a token. Fails if a
    /// run can begin without a token.
    fn new(cfg: &Cfg, arrivals: &BTreeSet<BlockId>, counted: &dyn Fn(EdgeId) -> bool) -> Result<Self, NotTraced> {
        let blocks = cfg.blocks.len();
        let fronts: BTreeMap<BlockId, Vertex> =
            arrivals.iter().enumerate().map(|(n, block)| (*block, Vertex::at(blocks.saturating_add(n)))).collect();
        let front = |block: BlockId| fronts.get(&block).copied().unwrap_or(block.into());
        let mut shape = GraphBuilder::new(blocks.saturating_add(fronts.len()));
        let mut places = BTreeMap::new();
        let (mut returns, mut unseen_returns) = (BTreeSet::new(), Vec::new());
        let mut leaving = BTreeMap::new();
        // Blocks at which runs begin without a token before the arrival.
        let mut bare = BTreeSet::new();
        for (n, edge) in cfg.edges.entries() {
            match (edge.kind, edge.to) {
                (EdgeKind::CallReturn, EdgeTarget::Block(to)) if counted(n) => {
                    let root = shape.root(front(to));
                    places.insert(root, ProbeAt::Edge(n));
                    returns.insert((edge.from.into(), root));
                }
                (EdgeKind::CallReturn, EdgeTarget::Block(to)) => {
                    shape.root(front(to));
                    bare.insert(to);
                    unseen_returns.push((edge.from, to));
                }
                (EdgeKind::CallReturn, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) => {}
                (_, EdgeTarget::Block(to)) => {
                    let id = shape.edge(edge.from, front(to));
                    if counted(n) {
                        places.insert(id, ProbeAt::Edge(n));
                    }
                }
                // Ways out of one block differ in nothing that a trace tells, except if code can run before them.
                (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) if counted(n) => {
                    places.insert(shape.leave(edge.from), ProbeAt::Edge(n));
                }
                (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) => {
                    leaving.entry(edge.from).or_insert_with(|| shape.leave(edge.from));
                }
            }
        }
        for root in cfg.roots() {
            shape.root(if Some(root) == cfg.entry { root.into() } else { front(root) });
            bare.extend(Some(root).filter(|root| Some(*root) != cfg.entry));
        }
        let mut ends = Vec::new();
        for block in cfg.blocks.keys() {
            let calls = cfg.edges_from(block).filter(|(_, edge)| edge.kind == EdgeKind::CallReturn).count();
            if cfg.edges_from(block).len() == calls {
                shape.may_end(block);
                ends.push(block.into());
            } else if calls > 0 {
                return Err(NotTraced::Block(block));
            }
        }
        let mut starts = Vec::new();
        for (block, front) in &fronts {
            let arrival = shape.edge(*front, *block);
            places.insert(arrival, ProbeAt::Block(*block));
            starts.extend(bare.remove(block).then_some(arrival));
            let here = unseen_returns.iter().filter(|(_, to)| to == block);
            returns.extend(here.map(|(from, _)| (Vertex::from(*from), arrival)));
        }
        match bare.first() {
            Some(block) => Err(NotTraced::Block(*block)),
            None => Ok(CutGraph { graph: shape.build()?, places, ends, starts, returns }),
        }
    }

    /// Chooses witnesses, among them those of `forced`.
    fn witnesses(&self, cfg: &Cfg, weights: &Weights, forced: &[ArcId]) -> Result<Witnesses, NotTraced> {
        let mut barred = Barred::none();
        let without = self.graph.live_edges().filter(|(id, _)| !self.places.contains_key(id));
        without.for_each(|(id, _)| barred.edge(id));
        let live: Vec<ArcId> = forced
            .iter()
            .copied()
            .filter(|id| self.graph.edge(*id).is_some_and(|e| self.graph.is_live(e.from)))
            .collect();
        Witnesses::of_runs(&self.graph, weights, &barred, &self.ends, &live).map_err(|refused| {
            let vertex = match refused {
                NoPlacement::Block(block) => block,
                NoPlacement::Edge(edge) => self.graph.edge(edge).map_or(self.graph.exit(), |edge| edge.from),
            };
            // Arrivals, ENTRY and EXIT come after the blocks.
            let last = cfg.blocks.len().saturating_sub(1);
            NotTraced::Block(BlockId::at(vertex.index().min(last)))
        })
    }
}

/// The blocks at which code has to tell of arrivals: those at which control arrives from outside, and those to which an edge without a probe
/// leads. The entry is none of them.
fn arrivals(cfg: &Cfg, probes: &Probes) -> BTreeSet<BlockId> {
    let mut found: BTreeSet<BlockId> = cfg.roots().into_iter().filter(|root| lands(cfg, *root)).collect();
    for (n, edge) in cfg.edges.entries() {
        if let EdgeTarget::Block(to) = edge.to
            && !probes.has_edge(n)
        {
            found.insert(to);
        }
    }
    found.retain(|block| Some(*block) != cfg.entry && probes.has_block(*block));
    found
}

/// Whether control arrives at a block only from activations of its function: along its edges, or as an exception. A call that begins there
/// would look like an exception.
fn lands(cfg: &Cfg, block: BlockId) -> bool {
    let Some(start) = cfg.blocks.get(block).map(|block| block.range.start) else { return false };
    let jumped_to =
        cfg.edges.iter().any(|edge| edge.kind == EdgeKind::JumpTable && edge.to == EdgeTarget::Block(block));
    cfg.reasons_at(start).all(|reason| match reason {
        WayInReason::LandingPad
        | WayInReason::CallReturn
        | WayInReason::SyscallReturn
        | WayInReason::JumpTable
        | WayInReason::Resumed => true,
        WayInReason::AddressTaken => jumped_to,
        WayInReason::Entry
        | WayInReason::BehindEndbr
        | WayInReason::Named
        | WayInReason::BranchFromElsewhere
        | WayInReason::Called => false,
    })
}
