//! Places of counters, and profiles from their counts.

mod block_counters;
mod block_profile;
mod edge_profile;

pub use block_profile::never_alternates;

use block_counters::BlockCounters;
use block_profile::BlockProfile;
use edge_profile::EdgeProfile;

use ingraft_model::Key;

use crate::barred::{Barred, Counter, NoPlacement};
use crate::correction::Corrections;
use crate::graph::ProfileGraph;
use crate::map::{ArcId, PerEdge, Vertex};
use crate::profile::{Defect, Profile, narrow};
use crate::tree::Rooted;
use crate::weights::Weights;

/// A set of counters from which a profile can be derived.
///
/// The problems have the names of "Optimally profiling and tracing programs" (1994), section 3: `Eprof` and `Vprof` are the edge profile and
/// the vertex profile, `Ecnt` and `Vcnt` counters on edges and in vertices.
#[derive(Clone, Debug)]
pub struct Placement {
    counters: Vec<Counter>,
    scheme: Scheme,
    /// Edge of the redundant counter. Its counter is the last one.
    check: Option<ArcId>,
}

#[derive(Clone, Debug)]
enum Scheme {
    Edges(EdgeProfile),
    Blocks(BlockProfile),
    Counted(BlockCounters),
    EveryBlock,
}

impl Placement {
    /// `Eprof(Ecnt)`: counters on the chords of a maximum spanning tree (section 3.2). Of all sets of edge counters that determine every
    /// edge, it has the least cost for the weights. If barred and silent edges form a cycle, an edge of the cycle is refused. Takes
    /// `O(edges × log edges)`.
    pub fn edge_profile(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let scheme = EdgeProfile::new(graph, weights, barred)?;
        let counters = scheme.chords().iter().map(|edge| Counter::Edge(*edge)).collect();
        Ok(Placement { counters, scheme: Scheme::Edges(scheme), check: None })
    }

    /// `Vprof(Ecnt)`: edge counters that determine every block, but not every edge (section 3.3). They never cost more than
    /// [`Placement::edge_profile`], and none of them can be removed. If [`never_alternates`] holds for the graph, they are the cheapest
    /// possible. Refuses as [`Placement::edge_profile`] does.
    pub fn block_profile(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let scheme = BlockProfile::new(graph, weights, barred)?;
        let counters = scheme.counters().iter().map(|edge| Counter::Edge(*edge)).collect();
        Ok(Placement { counters, scheme: Scheme::Blocks(scheme), check: None })
    }

    /// `Vprof(Vcnt)`: block counters that determine every block, by Knuth and Stevenson, "Optimal measurement points for program frequency
    /// counts" (1973), with the least cost for the weights. The edges stay unknown. If the count of a barred block cannot be derived, it is
    /// refused.
    pub fn block_counters(graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Result<Self, NoPlacement> {
        let scheme = BlockCounters::new(graph, weights, barred)?;
        let counters = scheme.counters().iter().map(|block| Counter::Block(*block)).collect();
        Ok(Placement { counters, scheme: Scheme::Counted(scheme), check: None })
    }

    /// The redundant mode (section 6.1): a counter in every live block. Nothing is derived, and the edges stay unknown. A
    /// barred block is refused.
    pub fn every_block(graph: &ProfileGraph, barred: &Barred) -> Result<Self, NoPlacement> {
        let live = (0..graph.blocks()).map(Vertex::at).filter(|block| graph.is_live(*block));
        let one =
            |block| if barred.allows_block(block) { Ok(Counter::Block(block)) } else { Err(NoPlacement::Block(block)) };
        Ok(Placement { counters: live.map(one).collect::<Result<_, _>>()?, scheme: Scheme::EveryBlock, check: None })
    }

    /// Adds a redundant counter on an edge whose count the others determine, as the last counter. [`Placement::profile`] compares the two.
    /// Derived counts satisfy Kirchhoff's law for any counts of the chords, so the law does not show that a count was lost. The edge is
    /// refused if it cannot carry a counter, if it has one, or if its count is not determined.
    pub fn with_check(mut self, graph: &ProfileGraph, barred: &Barred, edge: ArcId) -> Result<Self, NoPlacement> {
        if self.check.is_some() || !self.can_check(graph, barred, edge) {
            return Err(NoPlacement::Edge(edge));
        }
        self.check = Some(edge);
        self.counters.push(Counter::Edge(edge));
        Ok(self)
    }

    /// The edge of least weight that [`Placement::with_check`] accepts; `None` if no edge is accepted.
    pub fn cheapest_check(&self, graph: &ProfileGraph, weights: &Weights, barred: &Barred) -> Option<ArcId> {
        let fit = graph.live_edges().map(|(id, _)| id).filter(|id| self.can_check(graph, barred, *id));
        fit.min_by(|a, b| weights.edge(*a).total_cmp(&weights.edge(*b)))
    }

    /// The edge that [`Placement::with_check`] accepts and that shows the loss of a thread at the most vertices; `None` if no edge is
    /// accepted, or if the counters are not those of [`Placement::edge_profile`].
    pub fn widest_check(&self, graph: &ProfileGraph, barred: &Barred) -> Option<ArcId> {
        let Scheme::Edges(scheme) = &self.scheme else { return None };
        let spans = scheme.spans(graph);
        let fit = graph.live_edges().map(|(id, _)| id).filter(|id| self.can_check(graph, barred, *id));
        fit.max_by_key(|id| spans.get(*id))
    }

    /// The counters, in the order of the counts that [`Placement::profile`] takes.
    pub fn counters(&self) -> &[Counter] {
        &self.counters
    }

    /// Derives the profile in linear time. `counts` has one number for each of [`Placement::counters`], in that order. All counters are
    /// 0 when the counting begins, and `counts` is read in one stop. The graph is the one of the placement.
    ///
    /// Fails if no execution with these corrections has these counts.
    pub fn profile(&self, graph: &ProfileGraph, counts: &[u64], corrections: &Corrections) -> Result<Profile, Defect> {
        if counts.len() != self.counters.len() {
            return Err(Defect::Counters { expected: self.counters.len(), given: counts.len() });
        }
        let excess = corrections.excess(graph)?;
        let profile = match &self.scheme {
            Scheme::Edges(scheme) => scheme.profile(graph, counts, excess)?,
            Scheme::Blocks(scheme) => scheme.profile(graph, counts, excess)?,
            Scheme::Counted(scheme) => scheme.profile(graph, counts, excess)?,
            Scheme::EveryBlock => {
                let mut blocks = graph.per_vertex();
                for (counter, count) in self.counters.iter().zip(counts) {
                    if let Counter::Block(block) = counter {
                        blocks.set(*block, *count);
                    }
                }
                Profile { edges: graph.per_edge(), blocks }
            }
        };
        if let (Some(edge), Some(&measured)) = (self.check, counts.last()) {
            let derived = profile.edge(edge).unwrap_or_default();
            if derived != measured {
                return Err(Defect::Check { edge, measured, derived });
            }
        }
        Ok(profile)
    }

    /// The tree whose chords carry the counters; `None` if the counters are not those of [`Placement::edge_profile`].
    pub(crate) fn rooted(&self) -> Option<&Rooted> {
        match &self.scheme {
            Scheme::Edges(scheme) => Some(scheme.rooted()),
            Scheme::Blocks(_) | Scheme::Counted(_) | Scheme::EveryBlock => None,
        }
    }

    /// Number of counters without the redundant one, which is the last.
    pub(crate) fn needed(&self) -> usize {
        self.counters.len().saturating_sub(usize::from(self.check.is_some()))
    }

    fn can_check(&self, graph: &ProfileGraph, barred: &Barred, id: ArcId) -> bool {
        let allowed = graph.edge(id).is_some_and(|edge| graph.is_live(edge.from) && barred.allows_edge(id, edge));
        let derived = match &self.scheme {
            Scheme::Edges(scheme) => scheme.derives(id),
            Scheme::Blocks(scheme) => scheme.derives(id),
            Scheme::Counted(_) | Scheme::EveryBlock => false,
        };
        allowed && derived
    }
}

/// The counts of edges as 64 bits, without those for which `known` fails, and the sums at the blocks.
fn finish(graph: &ProfileGraph, counts: &PerEdge<i128>, known: impl Fn(ArcId) -> bool) -> Result<Profile, Defect> {
    let mut profile = Profile { edges: graph.per_edge(), blocks: graph.per_vertex() };
    let mut arrivals = graph.per_vertex::<i128>();
    for (index, edge) in graph.edges().iter().enumerate() {
        let id = ArcId::at(index);
        let count = counts.get(id);
        arrivals.update(edge.to, |sum| sum.wrapping_add(count));
        if known(id) {
            profile.edges.set(id, Some(narrow(count, Counter::Edge(id))?));
        }
    }
    for (vertex, sum) in arrivals.iter().take(graph.blocks()) {
        profile.blocks.set(vertex, narrow(sum, Counter::Block(vertex))?);
    }
    Ok(profile)
}
