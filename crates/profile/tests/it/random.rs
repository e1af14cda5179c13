//! Random graphs, reducible or not, with parallel edges, self loops, several ways in and out, and blocks without a way out.

use ingraft_model::Key;
use ingraft_profile::{ArcId, GraphBuilder, ProfileGraph, Vertex};
use proptest::prelude::*;

/// A random graph, and the numbers that guide a random execution of it.
#[derive(Clone, Debug)]
pub struct Case {
    pub blocks: usize,
    pub edges: Vec<(usize, usize)>,
    pub roots: Vec<usize>,
    pub leaves: Vec<usize>,
    pub ends: Vec<usize>,
    /// Edges of calls that may return several times.
    pub again: Vec<usize>,
    /// Choices of the execution.
    pub choices: Vec<u8>,
}

impl Case {
    pub fn graph(&self) -> ProfileGraph {
        let mut shape = GraphBuilder::new(self.blocks);
        let edges: Vec<ArcId> =
            self.edges.iter().map(|(from, to)| shape.edge(Vertex::at(*from), Vertex::at(*to))).collect();
        self.again.iter().filter_map(|edge| edges.get(*edge)).for_each(|edge| _ = shape.returns_again(*edge));
        self.roots.iter().for_each(|block| _ = shape.root(Vertex::at(*block)));
        self.leaves.iter().for_each(|block| _ = shape.leave(Vertex::at(*block)));
        self.ends.iter().for_each(|block| _ = shape.may_end(Vertex::at(*block)));
        shape.build().expect("a graph")
    }
}

/// Graphs of up to `most` blocks, without calls that may return several times.
pub fn case(most: usize) -> impl Strategy<Value = Case> {
    (1..=most).prop_flat_map(|blocks| {
        let some = |least, most| prop::collection::vec(0..blocks, least..=most);
        let edges = prop::collection::vec((0..blocks, 0..blocks), 0..=blocks * 2);
        let choices = prop::collection::vec(any::<u8>(), 0..200);
        (edges, some(1, 3), some(0, 3), some(0, 2), choices).prop_map(move |(edges, roots, leaves, ends, choices)| {
            let again = Vec::new();
            Case { blocks, edges, roots, leaves, ends, again, choices }
        })
    })
}

/// As [`case`], with calls that may return several times.
pub fn case_with_joints(most: usize) -> impl Strategy<Value = Case> {
    (case(most), prop::collection::vec(0..most, 1..3)).prop_map(|(case, again)| Case { again, ..case })
}
