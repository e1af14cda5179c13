//! Loops of a graph and their nesting, by Havlak's algorithm: "Nesting of Reducible and Irreducible Loops" (1997). It needs nearly linear time
//! for the graphs of compilers.

use crate::cfg::Cfg;
use crate::dominators::DepthFirst;
use crate::index::{BlockId, IndexVec, Key};
use crate::lists::{Lists, Successors};

const NONE: usize = usize::MAX;

/// A loop: a set of nodes each of which leads to each other, together with the loops inside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop<N> {
    /// The node at which control enters the loop. If it has several entries, the one that a depth-first search finds first.
    pub header: N,
    /// The nodes at which control enters from outside of the loop, sorted. A loop with more than one is irreducible; its header does not
    /// dominate it.
    pub entries: Vec<N>,
    /// All nodes of the loop, with the header and those of inner loops, sorted.
    pub body: Vec<N>,
    /// The nodes inside that lead back to the header, sorted.
    pub latches: Vec<N>,
    /// Index of the loop around this one; `None` for an outermost loop.
    pub parent: Option<usize>,
    /// Number of loops around this one.
    pub depth: usize,
}

/// The loops of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loops<N> {
    loops: Vec<Loop<N>>,
    /// Index of the innermost loop of each node; `None` outside of loops.
    innermost: IndexVec<N, Option<usize>>,
}

impl<N> Default for Loops<N> {
    fn default() -> Self {
        Loops { loops: Vec::new(), innermost: IndexVec::default() }
    }
}

impl Loops<BlockId> {
    /// The loops of a control-flow graph. All ways in count as entries, so a loop that can be entered from outside of the function elsewhere
    /// than at its header is irreducible.
    pub fn of(cfg: &Cfg) -> Self {
        Self::new(&cfg.successors(), &cfg.roots())
    }
}

impl<N: Key + Ord> Loops<N> {
    /// The loops of a graph, given its entries. The bodies take memory in proportion to nodes times depth.
    pub fn new(graph: &impl Successors<N>, entries: &[N]) -> Self {
        let (mut search, mut loops) = (LoopSearch::default(), Loops::default());
        search.headers(graph, entries, &mut loops);
        loops.fill(graph, entries, search.tree.order);
        loops
    }

    /// The headers, parents and depths of the loops of a graph: [`Loop::entries`], [`Loop::body`] and [`Loop::latches`] are empty. Takes nearly
    /// linear time and linear memory, however deep the loops are nested.
    pub fn headers(graph: &impl Successors<N>, entries: &[N]) -> Self {
        let mut loops = Loops::default();
        LoopSearch::default().headers(graph, entries, &mut loops);
        loops
    }

    /// All loops, each one after those around it.
    pub fn all(&self) -> &[Loop<N>] {
        &self.loops
    }

    /// Index of the innermost loop that a node belongs to.
    pub fn innermost(&self, node: N) -> Option<usize> {
        self.innermost.get(node).copied().flatten()
    }

    /// The loops that a node belongs to, by index, the innermost first.
    pub fn around(&self, node: N) -> impl Iterator<Item = usize> {
        std::iter::successors(self.innermost(node), |at| self.loops[*at].parent)
    }

    /// Bodies, latches and entries.
    fn fill(&mut self, graph: &impl Successors<N>, entries: &[N], mut reached: Vec<N>) {
        reached.sort_unstable();
        for node in reached {
            let around: Vec<usize> = self.around(node).collect();
            around.iter().for_each(|at| self.loops[*at].body.push(node));
            for &next in graph.successors(node) {
                for at in self.around(next).collect::<Vec<_>>() {
                    let within = around.contains(&at);
                    let inner = &mut self.loops[at];
                    if !within {
                        inner.entries.push(next);
                    } else if inner.header == next {
                        inner.latches.push(node);
                    }
                }
            }
        }
        for &entry in entries {
            for at in self.around(entry).collect::<Vec<_>>() {
                self.loops[at].entries.push(entry);
            }
        }
        for one in &mut self.loops {
            one.entries.sort_unstable();
            one.entries.dedup();
            one.latches.sort_unstable();
            one.latches.dedup();
        }
    }
}

/// The search for the loops of one graph after the other, whose memory is used again. Within it, nodes are named by their place in depth-first
/// order.
#[derive(Clone, Debug)]
pub struct LoopSearch<N> {
    tree: DepthFirst<N>,
    /// For each node, its place; [`NONE`] if no entry leads there.
    place: IndexVec<N, usize>,
    /// For each place, the last one in its subtree.
    last: Vec<usize>,
    /// For each place, the places that lead there.
    before: Lists<u32>,
    is_header: Vec<bool>,
    /// The header of the innermost loop around a place; [`NONE`] outside of loops. For a header, that of the next loop.
    around: Vec<usize>,
    /// The header of the outermost loop found so far that holds a place, or another place in it.
    stands_for: Vec<usize>,
    /// For the header of an irreducible loop, the places from which ways into the loop lead that do not lead to the header.
    more: Vec<Vec<usize>>,
    seen: Vec<usize>,
    body: Vec<usize>,
    loop_of: Vec<Option<usize>>,
}

impl<N> Default for LoopSearch<N> {
    fn default() -> Self {
        LoopSearch {
            tree: DepthFirst::default(),
            place: IndexVec::default(),
            last: Vec::new(),
            before: Lists::default(),
            is_header: Vec::new(),
            around: Vec::new(),
            stands_for: Vec::new(),
            more: Vec::new(),
            seen: Vec::new(),
            body: Vec::new(),
            loop_of: Vec::new(),
        }
    }
}

impl<N: Key> LoopSearch<N> {
    /// Finds what [`Loops::headers`] finds, and replaces the loops by it.
    pub fn headers(&mut self, graph: &impl Successors<N>, entries: &[N], loops: &mut Loops<N>) {
        loops.loops.clear();
        loops.innermost.refill(None, graph.nodes());
        self.tree.search(graph, entries);
        self.fill_tree(graph);
        if !(0..self.tree.order.len())
            .any(|at| self.before.get(at).iter().any(|from| self.is_below(*from as usize, at)))
        {
            return;
        }
        self.find_headers();
        // Outer loops come first, because a header comes before what it leads to.
        self.loop_of.clear();
        for (at, &node) in self.tree.order.iter().enumerate() {
            let parent = self.loop_of.get(self.around[at]).copied().flatten();
            let mut innermost = parent;
            if self.is_header[at] {
                innermost = Some(loops.loops.len());
                let depth = parent.map_or(0, |parent| loops.loops[parent].depth + 1);
                let (entries, body, latches) = (Vec::new(), Vec::new(), Vec::new());
                loops.loops.push(Loop { header: node, entries, body, latches, parent, depth });
            }
            self.loop_of.push(innermost);
            loops.innermost.set(node, innermost);
        }
    }

    fn fill_tree(&mut self, graph: &impl Successors<N>) {
        let LoopSearch { tree: DepthFirst { order, parent, .. }, place, last, before, .. } = self;
        place.refill(NONE, graph.nodes());
        order.iter().enumerate().for_each(|(at, node)| place.set(*node, at));
        last.clear();
        last.extend(0..order.len());
        for (at, &above) in parent.iter().enumerate().skip(1).rev().filter(|(_, above)| **above != 0) {
            last[above - 1] = last[above - 1].max(last[at - 1]);
        }
        let place = &*place;
        let leads = (0u32..).zip(&*order).flat_map(|(at, node)| {
            let next = graph.successors(*node).iter().filter_map(|next| place.get(*next));
            next.map(move |next| (*next, at))
        });
        before.fill(order.len(), leads);
    }

    /// Whether a place lies in the subtree of another one.
    fn is_below(&self, at: usize, of: usize) -> bool {
        of <= at && at <= self.last[of]
    }

    /// Inner loops are found first, and count as one node from then on, that of their header.
    fn find_headers(&mut self) {
        let count = self.tree.order.len();
        refill(&mut self.is_header, false, count);
        refill(&mut self.around, NONE, count);
        refill(&mut self.seen, NONE, count);
        self.stands_for.clear();
        self.stands_for.extend(0..count);
        refill(&mut self.more, Vec::new(), count);
        for header in (0..count).rev() {
            self.body.clear();
            for index in self.before.range(header) {
                let from = self.before.values()[index] as usize;
                if self.is_below(from, header) {
                    self.is_header[header] = true;
                    self.add(header, from);
                }
            }
            let mut next = 0;
            while let Some(&node) = self.body.get(next) {
                next += 1;
                for index in self.before.range(node) {
                    let from = self.before.values()[index] as usize;
                    // Edges back to an inner header have been looked at.
                    if !self.is_below(from, node) {
                        self.follow(header, from);
                    }
                }
                for index in 0..self.more[node].len() {
                    self.follow(header, self.more[node][index]);
                }
            }
            for &node in &self.body {
                self.around[node] = header;
                self.stands_for[node] = header;
            }
        }
    }

    /// Adds what leads into a loop to its body, or notes that it is a way in.
    fn follow(&mut self, header: usize, from: usize) {
        let from = find(&mut self.stands_for, from);
        match self.is_below(from, header) {
            true => self.add(header, from),
            false => self.more[header].push(from),
        }
    }

    /// Adds a place to the body of a loop.
    fn add(&mut self, header: usize, place: usize) {
        let node = find(&mut self.stands_for, place);
        if node != header && self.seen[node] != header {
            self.seen[node] = header;
            self.body.push(node);
        }
    }
}

fn refill<T: Clone>(all: &mut Vec<T>, value: T, count: usize) {
    all.clear();
    all.resize(count, value);
}

/// The header of the outermost loop found so far that holds a place.
fn find(stands_for: &mut [usize], mut at: usize) -> usize {
    while stands_for[at] != at {
        stands_for[at] = stands_for[stands_for[at]];
        at = stands_for[at];
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dominators::Dominators;
    use crate::index::BlockId as Node;
    use proptest::prelude::*;

    const NODES: u32 = 9;

    type Graph = IndexVec<Node, Vec<Node>>;

    fn next(graph: &Graph, node: Node) -> &[Node] {
        graph.get(node).expect("a node")
    }

    fn reached(graph: &Graph, from: &[Node], within: impl Fn(Node) -> bool) -> Vec<Node> {
        let mut seen = Vec::new();
        let mut open = from.to_vec();
        while let Some(node) = open.pop() {
            if within(node) && !seen.contains(&node) {
                seen.push(node);
                open.extend(next(graph, node));
            }
        }
        seen
    }

    /// The natural loop of a header: what leads to the sources of its back edges without it.
    fn natural(graph: &Graph, dominators: &Dominators<Node>, header: Node) -> Vec<Node> {
        let latch = |node: &Node| next(graph, *node).contains(&header) && dominators.dominates(header, *node);
        let latches: Vec<Node> = graph.keys().filter(latch).collect();
        if latches.is_empty() {
            return Vec::new();
        }
        let leads = |node: Node| {
            let seen = reached(graph, &[node], |other| other != header);
            node == header || dominators.reaches(node) && latches.iter().any(|latch| seen.contains(latch))
        };
        graph.keys().filter(|node| leads(*node)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]

        #[test]
        fn loops_are_what_they_say(
            graph in prop::collection::vec(prop::collection::vec((0..NODES).prop_map(Node), 0..3), NODES as usize),
            entries in prop::collection::vec((0..NODES).prop_map(Node), 1..3),
        ) {
            let graph = Graph::from(graph);
            let loops = Loops::new(&graph, &entries);
            let dominators = Dominators::new(&graph, &entries);
            let all = reached(&graph, &entries, |_| true);
            let outline = |loops: &Loops<Node>| {
                let one = |one: &Loop<Node>| (one.header, one.parent, one.depth);
                (loops.innermost.clone(), loops.all().iter().map(one).collect::<Vec<_>>())
            };
            prop_assert_eq!(outline(&Loops::headers(&graph, &entries)), outline(&loops));
            for (index, one) in loops.all().iter().enumerate() {
                let inside = |node: Node| one.body.contains(&node);
                // Each node leads to each other inside.
                for &node in &one.body {
                    let seen = reached(&graph, &[node], inside);
                    prop_assert!(one.body.iter().all(|other| seen.contains(other)), "{one:?}");
                    prop_assert!(loops.around(node).any(|at| at == index) && all.contains(&node));
                }
                prop_assert!(!one.latches.is_empty() && inside(one.header));
                let latches: Vec<Node> =
                    one.body.iter().copied().filter(|node| next(&graph, *node).contains(&one.header)).collect();
                prop_assert_eq!(&one.latches, &latches);
                // Control enters where something outside leads, and where the graph is entered.
                let enters = |node: &Node| {
                    let led = all.iter().any(|from| !inside(*from) && next(&graph, *from).contains(node));
                    led || entries.contains(node)
                };
                let entered: Vec<Node> = one.body.iter().copied().filter(enters).collect();
                prop_assert_eq!(&one.entries, &entered);
                prop_assert!(entered.contains(&one.header));
                let dominated = one.body.iter().all(|node| dominators.dominates(one.header, *node));
                prop_assert_eq!(one.entries.len() == 1, dominated);
                if dominated {
                    prop_assert_eq!(&one.body, &natural(&graph, &dominators, one.header));
                }
                let depth = std::iter::successors(one.parent, |at| loops.all()[*at].parent).count();
                prop_assert_eq!(one.depth, depth);
                if let Some(parent) = one.parent {
                    let parent = &loops.all()[parent];
                    prop_assert!(one.body.iter().all(|node| parent.body.contains(node)) && parent.body != one.body);
                }
            }
            // Loops are apart, or one lies in the other.
            for (a, b) in loops.all().iter().enumerate().flat_map(|(n, a)| loops.all()[n + 1..].iter().map(move |b| (a, b))) {
                let common = a.body.iter().filter(|node| b.body.contains(node)).count();
                prop_assert!(common == 0 || common == a.body.len() || common == b.body.len());
                prop_assert!(a.header != b.header);
            }
            // Every natural loop of a header that dominates its back edges is found, and every cycle is in some loop.
            for node in graph.keys().filter(|node| all.contains(node)) {
                let loop_of_header = loops.all().iter().any(|one| one.header == node);
                prop_assert!(natural(&graph, &dominators, node).is_empty() || loop_of_header);
                let seen = reached(&graph, next(&graph, node), |_| true);
                prop_assert_eq!(seen.contains(&node), loops.innermost(node).is_some());
            }
        }
    }

    fn graph(successors: &[&[u32]]) -> Graph {
        successors.iter().map(|next| next.iter().copied().map(Node).collect()).collect()
    }

    #[test]
    fn nested_loops_have_depths() {
        // 0 -> 1 <-> (2 <-> 3), 1 -> 4
        let graph = graph(&[&[1], &[2, 4], &[3], &[2, 1], &[]]);
        let loops = Loops::new(&graph, &[Node(0)]);
        let [outer, inner] = loops.all() else { panic!("{loops:?}") };
        let body = [1, 2, 3].map(Node);
        assert_eq!((outer.header, &outer.body[..], outer.depth), (Node(1), &body[..], 0));
        let around = (inner.depth, inner.parent);
        assert_eq!((inner.header, &inner.body[..], around), (Node(2), &body[1..], (1, Some(0))));
        assert_eq!(loops.around(Node(3)).collect::<Vec<_>>(), [1, 0]);
        assert_eq!(loops.innermost(Node(4)), None);
    }

    #[test]
    fn a_loop_with_two_entries_is_irreducible() {
        let loops = Loops::new(&graph(&[&[1, 2], &[2], &[1]]), &[Node(0)]);
        let [one] = loops.all() else { panic!("{loops:?}") };
        assert_eq!(one.entries, [Node(1), Node(2)]);
    }

    #[test]
    fn a_long_chain_of_loops_needs_no_recursion() {
        let graph: Graph = (0..100_000).map(|n| vec![Node((n + 1).min(99_999)), Node(n)]).collect();
        assert_eq!(Loops::new(&graph, &[Node(0)]).all().len(), 100_000);
    }
}
