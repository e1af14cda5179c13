//! The places of a function of a running program that write tokens, and the graph in which they tell the way.
//!
//! As in [`Runs`](crate::Runs), the graph is cut at the calls of the function: a call ends a *run*, and its return begins another one. Each
//! run begins with a token. So a replay never has to know what a call did: the callee may be traced or not, call back, throw an exception, or
//! never return. Inside of a run, witnesses with blockers tell the way, so a replay reads a token only at a branch.
//!
//! If control can arrive at a block along an edge that carries no code, the block gets an *arrival*: a vertex in front of it. The edge from
//! the arrival to the block stands for code in the block, which runs at all arrivals.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::{Cfg, EdgeKind, EdgeTarget, WayInReason};

use crate::barred::{Barred, Refused};
use crate::graph::Graph;
use crate::map::{EdgeId, Key, Vertex};
use crate::runs::Probes;
use crate::shape::{Inexact, Shape};
use crate::trace::witness::Witnesses;
use crate::weights::Weights;

/// A place of a function whose passage is written to a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// An edge of the control-flow graph, by its index.
    Edge(usize),
    /// All arrivals at a block, by its index.
    Block(usize),
}

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
    Block(usize),
}

/// A function, and its places that write tokens.
#[derive(Clone, Debug)]
pub struct TracedFunction {
    places: Vec<Place>,
    cut: Cut,
    witnesses: Witnesses,
    /// Edge of the graph for each place.
    edges: Vec<EdgeId>,
    entry: Vertex,
    blocks: usize,
}

impl TracedFunction {
    /// Chooses the places of a function. `probes.edges` also says of an edge out of the function whether code can run before it. Fails if a
    /// trace would not be exact.
    pub fn new(cfg: &Cfg, probes: &Probes) -> Result<Self, NotTraced> {
        let whole = Shape::of(cfg)?.build()?;
        let expected = Weights::estimated(&whole);
        let has_probe = |edge: usize| probes.edges.get(edge).copied().unwrap_or_default();
        let cut = Cut::new(cfg, &arrivals(cfg, probes), &has_probe)?;
        let weights = Weights::of(&cut.graph, |id| match cut.places.get(&id) {
            Some(Place::Edge(edge)) => expected.edge(EdgeId::at(*edge)),
            Some(Place::Block(block)) => expected.vertex(&whole, Vertex::at(*block)),
            None => 0.0,
        });
        let witnesses = cut.witnesses(cfg, &weights, &cut.starts)?;
        let written = cut.places.iter().filter(|(edge, _)| witnesses.writes(**edge)).map(|(_, place)| *place);
        let places: BTreeSet<Place> = written.collect();
        Self::of(cfg, places.into_iter().collect())
    }

    /// Takes given places of a function, in the order of their numbers. Fails if they do not determine the sequence of blocks.
    pub fn of(cfg: &Cfg, places: Vec<Place>) -> Result<Self, NotTraced> {
        let entry = cfg.entry.ok_or(NotTraced::NoEntry)?;
        let given: BTreeSet<Place> = places.iter().copied().collect();
        let arrivals = given.iter().filter_map(|place| match place {
            Place::Block(block) => Some(*block),
            Place::Edge(_) => None,
        });
        let cut = Cut::new(cfg, &arrivals.collect(), &|edge| given.contains(&Place::Edge(edge)))?;
        let edge_of: BTreeMap<Place, EdgeId> = cut.places.iter().map(|(edge, place)| (*place, *edge)).collect();
        let edges: Vec<EdgeId> = places.iter().filter_map(|place| edge_of.get(place).copied()).collect();
        if edges.len() != places.len() || edge_of.len() != places.len() {
            return Err(NotTraced::Block(entry));
        }
        let witnesses = cut.witnesses(cfg, &Weights::uniform(&cut.graph), &edges)?;
        Ok(TracedFunction { places, cut, witnesses, edges, entry: Vertex::at(entry), blocks: cfg.blocks.len() })
    }

    /// The places that write tokens. The number of a place is its index.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.cut.graph
    }

    pub(super) fn witnesses(&self) -> &Witnesses {
        &self.witnesses
    }

    /// Vertex at which an activation begins.
    pub(super) fn entry(&self) -> Vertex {
        self.entry
    }

    /// Edge of the graph that a place stands for.
    pub(super) fn edge(&self, place: u32) -> Option<EdgeId> {
        self.edges.get(usize::try_from(place).ok()?).copied()
    }

    /// Index of the block of a vertex; `None` for arrivals, ENTRY and EXIT.
    pub(super) fn block(&self, vertex: Vertex) -> Option<usize> {
        Some(vertex.index()).filter(|block| *block < self.blocks)
    }

    /// Whether a call in a block can return to a place.
    pub(super) fn returns(&self, call: Vertex, place: u32) -> bool {
        self.edge(place).is_some_and(|edge| self.cut.returns.contains(&(call, edge)))
    }
}

/// The graph of a function, cut at its calls.
#[derive(Clone, Debug)]
struct Cut {
    graph: Graph,
    /// Place of each edge that can write a token.
    places: BTreeMap<EdgeId, Place>,
    /// Blocks at which runs end without leaving the function.
    ends: Vec<usize>,
    /// Edges of arrivals at which runs begin without another token.
    starts: Vec<EdgeId>,
    /// Blocks of calls, each with the edge at which the call returns.
    returns: BTreeSet<(Vertex, EdgeId)>,
}

impl Cut {
    /// Cuts a graph at its calls. The blocks of `arrivals` get arrivals. `counted` says of an edge whether it can write a token. Fails if a
    /// run can begin without a token.
    fn new(cfg: &Cfg, arrivals: &BTreeSet<usize>, counted: &dyn Fn(usize) -> bool) -> Result<Self, NotTraced> {
        let blocks = cfg.blocks.len();
        let fronts: BTreeMap<usize, usize> =
            arrivals.iter().enumerate().map(|(n, block)| (*block, blocks.saturating_add(n))).collect();
        let front = |block: usize| fronts.get(&block).copied().unwrap_or(block);
        let mut shape = Shape::new(blocks.saturating_add(fronts.len()));
        let mut places = BTreeMap::new();
        let (mut returns, mut unseen_returns) = (BTreeSet::new(), Vec::new());
        let mut leaving = BTreeMap::new();
        // Blocks at which runs begin without a token before the arrival.
        let mut bare = BTreeSet::new();
        for (n, edge) in cfg.edges.iter().enumerate() {
            match (edge.kind, edge.to) {
                (EdgeKind::CallReturn, EdgeTarget::Block(to)) if counted(n) => {
                    let root = shape.root(front(to));
                    places.insert(root, Place::Edge(n));
                    returns.insert((Vertex::at(edge.from), root));
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
                        places.insert(id, Place::Edge(n));
                    }
                }
                // Ways out of one block differ in nothing that a trace tells, except if code can run before them.
                (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) if counted(n) => {
                    places.insert(shape.leave(edge.from), Place::Edge(n));
                }
                (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) => {
                    leaving.entry(edge.from).or_insert_with(|| shape.leave(edge.from));
                }
            }
        }
        for root in cfg.roots() {
            shape.root(if Some(root) == cfg.entry { root } else { front(root) });
            bare.extend(Some(root).filter(|root| Some(*root) != cfg.entry));
        }
        let mut ends = Vec::new();
        for block in 0..blocks {
            let out = cfg.edges_from(block);
            let calls = out.iter().filter(|edge| edge.kind == EdgeKind::CallReturn).count();
            if out.len() == calls {
                shape.may_end(block);
                ends.push(block);
            } else if calls > 0 {
                return Err(NotTraced::Block(block));
            }
        }
        let mut starts = Vec::new();
        for (block, front) in &fronts {
            let arrival = shape.edge(*front, *block);
            places.insert(arrival, Place::Block(*block));
            starts.extend(bare.remove(block).then_some(arrival));
            let here = unseen_returns.iter().filter(|(_, to)| to == block);
            returns.extend(here.map(|(from, _)| (Vertex::at(*from), arrival)));
        }
        match bare.first() {
            Some(block) => Err(NotTraced::Block(*block)),
            None => Ok(Cut { graph: shape.build()?, places, ends, starts, returns }),
        }
    }

    /// Chooses witnesses, among them those of `forced`.
    fn witnesses(&self, cfg: &Cfg, weights: &Weights, forced: &[EdgeId]) -> Result<Witnesses, NotTraced> {
        let mut barred = Barred::none();
        let without = self.graph.live_edges().filter(|(id, _)| !self.places.contains_key(id));
        without.for_each(|(id, _)| barred.edge(id));
        let live: Vec<EdgeId> = forced
            .iter()
            .copied()
            .filter(|id| self.graph.edge(*id).is_some_and(|e| self.graph.is_live(e.from)))
            .collect();
        Witnesses::of_runs(&self.graph, weights, &barred, &self.ends, &live).map_err(|refused| {
            let block = match refused {
                Refused::Block(block) => block,
                Refused::Edge(edge) => self.graph.edge(edge).map_or(0, |edge| edge.from.index()),
            };
            NotTraced::Block(block.min(cfg.blocks.len().saturating_sub(1)))
        })
    }
}

/// The blocks at which code has to tell of arrivals: those at which control arrives from outside, and those to which an edge without a probe
/// leads. The entry is none of them.
fn arrivals(cfg: &Cfg, probes: &Probes) -> BTreeSet<usize> {
    let mut found: BTreeSet<usize> = cfg.roots().into_iter().filter(|root| lands(cfg, *root)).collect();
    for (n, edge) in cfg.edges.iter().enumerate() {
        if let EdgeTarget::Block(to) = edge.to
            && !probes.edges.get(n).copied().unwrap_or_default()
        {
            found.insert(to);
        }
    }
    found.retain(|block| Some(*block) != cfg.entry && probes.blocks.get(*block).copied().unwrap_or_default());
    found
}

/// Whether control arrives at a block only from activations of its function: along its edges, or as an exception. A call that begins there
/// would look like an exception.
fn lands(cfg: &Cfg, block: usize) -> bool {
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
