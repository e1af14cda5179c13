//! Reachability: vertices that ENTRY leads to, and blocks that control cannot leave.

use ingraft_model::Key;

use crate::adjacency::Adjacency;
use crate::graph::ProfileEdge;
use crate::map::{PerVertex, Vertex};

/// The vertices that ENTRY leads to. EXIT counts as one of them.
pub(crate) fn live(vertices: usize, edges: &[ProfileEdge], entry: Vertex) -> PerVertex<bool> {
    let out = Adjacency::new(vertices, edges, |_| true, |edge| edge.from);
    let mut live = PerVertex::new(vertices);
    live.set(entry, true);
    live.set(Vertex(entry.0.saturating_add(1)), true);
    let mut open = vec![entry];
    while let Some(vertex) = open.pop() {
        for edge in out.of(vertex).iter().filter_map(|id| edges.get(id.index())) {
            if !live.get(edge.to) {
                live.set(edge.to, true);
                open.push(edge.to);
            }
        }
    }
    live
}

/// One block of each set of blocks that control can enter but not leave, in ascending order.
///
/// A depth-first search of the reversed graph finishes a vertex of such a set later than everything that leads into the set. So, of the
/// vertices that do not lead to EXIT yet, the one that finished last lies in such a set (as in Kosaraju's algorithm).
pub(crate) fn endless(vertices: usize, edges: &[ProfileEdge], live: &PerVertex<bool>, exit: Vertex) -> Vec<Vertex> {
    let into = Adjacency::new(vertices, edges, |edge| live.get(edge.from), |edge| edge.to);
    let mut leads = PerVertex::new(vertices);
    mark(edges, &into, exit, &mut leads);
    if live.iter().all(|(vertex, live)| !live || leads.get(vertex)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for vertex in finished(edges, &into, live).into_iter().rev() {
        if !leads.get(vertex) {
            found.push(vertex);
            mark(edges, &into, vertex, &mut leads);
        }
    }
    found.sort_unstable();
    found
}

/// Marks a vertex and the vertices that lead to it.
fn mark(edges: &[ProfileEdge], into: &Adjacency, to: Vertex, leads: &mut PerVertex<bool>) {
    leads.set(to, true);
    let mut open = vec![to];
    while let Some(vertex) = open.pop() {
        for edge in into.of(vertex).iter().filter_map(|id| edges.get(id.index())) {
            if !leads.get(edge.from) {
                leads.set(edge.from, true);
                open.push(edge.from);
            }
        }
    }
}

/// The live vertices in the order in which a depth-first search of the reversed graph finishes them.
fn finished(edges: &[ProfileEdge], into: &Adjacency, live: &PerVertex<bool>) -> Vec<Vertex> {
    let mut seen: PerVertex<bool> = PerVertex::new(live.len());
    let mut order = Vec::new();
    for (start, _) in live.iter().filter(|(_, live)| *live) {
        let mut open = Vec::new();
        if !seen.get(start) {
            seen.set(start, true);
            open.push((start, into.of(start)));
        }
        while let Some((vertex, rest)) = open.last_mut() {
            let Some((id, others)) = rest.split_first() else {
                order.push(*vertex);
                open.pop();
                continue;
            };
            *rest = others;
            let Some(edge) = edges.get(id.index()) else { continue };
            if !seen.get(edge.from) {
                seen.set(edge.from, true);
                open.push((edge.from, into.of(edge.from)));
            }
        }
    }
    order
}
