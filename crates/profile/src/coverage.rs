//! Coverage: which blocks and edges of a function have run, from probes that tell it of some of them.
//!
//! A probe tells each arrival at its block, or each passage of its edge. What a probe does not tell is derived, as far as that is certain:
//!
//! - *backwards*: before a thread arrives at a block, it has passed all dominators of the block in the graph that is cut at calls (see
//!   [`crate::Runs`]). This does not hold for a thread that was inside of a run when the probes came.
//! - *forwards*: a thread that has arrived at a block leaves it by one of its edges. This does not hold for a thread that is inside of a run
//!   at the reading, nor in a function whose ways out are not proven to be all.
//!
//! Nothing else is derived, so a block or an edge may stay unknown.

use ingraft_model::{BlockId, Cfg, Dominators, Edge, EdgeId, EdgeKind, EdgeTarget, IndexVec};

use crate::probes::ProbeAt;

/// The blocks and edges of a control-flow graph that have run. `None`: not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Whether control has arrived at each block.
    pub blocks: IndexVec<BlockId, Option<bool>>,
    /// Whether control has passed each edge.
    pub edges: IndexVec<EdgeId, Option<bool>>,
}

/// Threads that were inside of a run of the function, between two of its calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Inside {
    /// Whether a thread was, or may have been, when the probes came.
    pub begin: bool,
    /// Whether a thread was, or may have been, at the reading.
    pub end: bool,
}

/// The places of the probes that coverage needs: all blocks; with `branches`, also the edges that the blocks do not determine.
pub fn coverage_probes(cfg: &Cfg, branches: bool) -> Vec<ProbeAt> {
    let blocks = cfg.blocks.keys().map(ProbeAt::Block);
    let arrivals = Arrivals::of(cfg);
    let is_critical = |edge: &Edge| {
        let EdgeTarget::Block(to) = edge.to else { return false };
        cfg.edges_from(edge.from).len() > 1 && !arrivals.is_only(to)
    };
    let edges = cfg.edges.entries().filter(|(_, edge)| branches && is_critical(edge));
    blocks.chain(edges.map(|(edge, _)| ProbeAt::Edge(edge))).collect()
}

impl Coverage {
    /// The answers of the probes alone: for each probe whether control has come there, `None` if the probe could not be inserted.
    pub fn told(cfg: &Cfg, probes: &[ProbeAt], came: &[Option<bool>]) -> Self {
        let (blocks, edges) = (IndexVec::filled(None, cfg.blocks.len()), IndexVec::filled(None, cfg.edges.len()));
        let mut told = Coverage { blocks, edges };
        for (probe, came) in probes.iter().zip(came) {
            match probe {
                ProbeAt::Block(block) => told.blocks.set(*block, *came),
                ProbeAt::Edge(edge) => told.edges.set(*edge, *came),
            }
        }
        told
    }

    /// Adds what is derived backwards of blocks that have run: the blocks that have run before them. Takes `O(edges × log blocks)`.
    #[must_use]
    pub fn with_earlier(mut self, cfg: &Cfg, inside: Inside) -> Self {
        if inside.begin || !is_proven(cfg) {
            return self;
        }
        let (successors, roots) = cut(cfg);
        let dominators = Dominators::new(&successors, &roots);
        for (edge, passed) in cfg.edges.iter().zip(&self.edges) {
            if *passed == Some(true) {
                self.blocks.set(edge.from, Some(true));
            }
        }
        let mut open: Vec<BlockId> = self.blocks.keys().filter(|block| self.block(*block) == Some(true)).collect();
        while let Some(block) = open.pop() {
            let Some(before) = dominators.immediate(block) else { continue };
            if let Some(known) = self.blocks.get_mut(before).filter(|known| **known != Some(true)) {
                *known = Some(true);
                open.push(before);
            }
        }
        self
    }

    /// Adds all that can be derived.
    #[must_use]
    pub fn completed(self, cfg: &Cfg, inside: Inside) -> Self {
        let mut all = self.with_earlier(cfg, inside);
        if !is_proven(cfg) {
            return all;
        }
        if !inside.begin {
            all.exclude_unreached(cfg);
        }
        let arrivals = Arrivals::of(cfg);
        for (id, edge) in cfg.edges.entries() {
            if all.edges.get(id) == Some(&None) {
                all.edges.set(id, all.edge(edge, &arrivals, inside));
            }
        }
        if !inside.end && cfg.ways_out_proven.is_ok() {
            all.leave_by_the_rest(cfg);
        }
        all
    }

    fn block(&self, block: BlockId) -> Option<bool> {
        self.blocks.get(block).copied().flatten()
    }

    /// Marks the unknown blocks to which no way leads through blocks that may have run.
    fn exclude_unreached(&mut self, cfg: &Cfg) {
        let (successors, roots) = cut(cfg);
        let may_run = |block: &BlockId| self.block(*block) != Some(false);
        let mut reached = IndexVec::filled(false, self.blocks.len());
        let mut open: Vec<BlockId> = roots.into_iter().filter(may_run).collect();
        while let Some(block) = open.pop() {
            let Some(seen) = reached.get_mut(block).filter(|seen| !**seen) else { continue };
            *seen = true;
            open.extend(successors.get(block).into_iter().flatten().copied().filter(may_run));
        }
        for (known, reached) in self.blocks.iter_mut().zip(reached) {
            if known.is_none() && !reached {
                *known = Some(false);
            }
        }
    }

    /// Whether control has passed an edge, as its two blocks tell.
    fn edge(&self, edge: &Edge, arrivals: &Arrivals, inside: Inside) -> Option<bool> {
        if let EdgeTarget::Block(to) = edge.to {
            match self.block(to) {
                Some(true) if arrivals.is_only(to) => return Some(true),
                Some(false) => return Some(false),
                Some(true) | None => {}
            }
        }
        // A call that began before the probes may return.
        let began = edge.kind == EdgeKind::CallReturn || inside.begin;
        (self.block(edge.from) == Some(false) && !began).then_some(false)
    }

    /// Marks the edge by which control has left a block, if it has passed no other edge of the block.
    fn leave_by_the_rest(&mut self, cfg: &Cfg) {
        for block in self.blocks.keys() {
            // A call need not return.
            let calls = || cfg.edges_from(block).any(|(_, edge)| edge.kind == EdgeKind::CallReturn);
            if self.block(block) != Some(true) || calls() {
                continue;
            }
            let own = cfg.edges_from(block).map(|(id, _)| id);
            let mut rest = own.filter(|id| self.edges.get(*id) != Some(&Some(false)));
            if let (Some(only), None) = (rest.next(), rest.next()) {
                self.edges.set(only, Some(true));
            }
        }
    }
}

/// Number of ways in which control arrives at each block.
struct Arrivals(IndexVec<BlockId, u32>);

impl Arrivals {
    fn of(cfg: &Cfg) -> Self {
        let mut ways = IndexVec::filled(0, cfg.blocks.len());
        let ends = cfg.edges.iter().filter_map(|edge| match edge.to {
            EdgeTarget::Block(to) => Some(to),
            EdgeTarget::Outside(_) | EdgeTarget::Dynamic => None,
        });
        for to in ends.chain(cfg.roots()) {
            ways.get_mut(to).into_iter().for_each(|ways: &mut u32| *ways += 1);
        }
        Arrivals(ways)
    }

    /// Whether control arrives at a block in one way only.
    fn is_only(&self, block: BlockId) -> bool {
        self.0.get(block) == Some(&1)
    }
}

/// Whether the edges and the ways in are proven to be all.
fn is_proven(cfg: &Cfg) -> bool {
    cfg.ways_in_proven.is_ok() && cfg.unresolved.is_empty()
}

/// The graph cut at its calls: the successors of each block, and the blocks at which a run begins.
fn cut(cfg: &Cfg) -> (IndexVec<BlockId, Vec<BlockId>>, Vec<BlockId>) {
    let mut successors = IndexVec::filled(Vec::new(), cfg.blocks.len());
    let mut roots = cfg.roots();
    for edge in &cfg.edges {
        let EdgeTarget::Block(to) = edge.to else { continue };
        match edge.kind {
            EdgeKind::CallReturn => roots.push(to),
            EdgeKind::Taken | EdgeKind::FallThrough | EdgeKind::JumpTable | EdgeKind::TailJump | EdgeKind::Return => {
                successors.get_mut(edge.from).into_iter().for_each(|of: &mut Vec<BlockId>| of.push(to))
            }
        }
    }
    roots.sort_unstable();
    roots.dedup();
    (successors, roots)
}
