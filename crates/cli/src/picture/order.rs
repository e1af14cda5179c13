//! The order of blocks and edges within their ranks.
//!
//! An edge that passes ranks has a place in each of them. An edge that leads up also has one beside its first and one beside its last
//! block: it leaves the first block downwards, turns, and arrives at the last block from above, like every other edge. Many long edges of one
//! kind that lead to one block share their places.

use std::collections::BTreeMap;

use super::ranks::Ranks;
use super::{DrawnEdgeKind, DrawnGraph, PLACES_MAX, TooLarge};

/// Number of long edges of one kind to one block from which on they share their places.
const BUNDLE: usize = 4;

/// Number of sweeps over all ranks.
const SWEEPS: usize = 16;
/// Number of places above which fewer sweeps have to do.
const MANY: usize = 20_000;

/// Occupant of a place in a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RankOccupant {
    /// A block, by its index.
    Block(usize),
    /// An edge that passes, by its index.
    Passing(usize),
}

/// A place in a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RankPlace {
    /// Occupant of the place.
    pub(super) item: RankOccupant,
    /// Rank of the place.
    pub(super) rank: usize,
    /// Places of the rank above to which a line leads.
    pub(super) above: Vec<usize>,
    /// Places of the rank below to which a line leads.
    pub(super) below: Vec<usize>,
}

/// Ranks in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordered {
    /// All places. Those of blocks come first, in the order of the blocks.
    pub(super) places: Vec<RankPlace>,
    /// The places of each rank, from left to right.
    pub(super) ranks: Vec<Vec<usize>>,
    /// For each edge, the places that it passes, in the order of its direction.
    pub(super) passing: Vec<Vec<usize>>,
}

/// Orders a graph.
pub(super) fn order(graph: &DrawnGraph, ranks: &Ranks) -> Result<Ordered, TooLarge> {
    let mut ordered = places(graph, ranks)?;
    // Depth-first order from the roots is a good beginning: what belongs together is side by side.
    begin(&mut ordered, graph);
    let sweeps = if ordered.places.len() > MANY { 4 } else { SWEEPS };
    let mut best = (crossings(&ordered), ordered.ranks.clone());
    for sweep in 0..sweeps {
        let down = sweep % 2 == 0;
        let count = ordered.ranks.len();
        for step in 1..count {
            let rank = if down { step } else { count - 1 - step };
            sort(&mut ordered, rank, down);
        }
        let now = crossings(&ordered);
        if now < best.0 {
            best = (now, ordered.ranks.clone());
        }
    }
    ordered.ranks = best.1;
    // An edge from a block to itself has no neighbours in other ranks that would keep it near its block.
    for (edge, passed) in graph.edges.iter().zip(&ordered.passing).filter(|(edge, _)| edge.from == edge.to) {
        let Some(rank) = ordered.ranks.get_mut(ranks.of[edge.from]) else { continue };
        rank.retain(|place| !passed.contains(place));
        let after = rank.iter().position(|place| *place == edge.from).map_or(rank.len(), |at| at + 1);
        rank.splice(after..after, passed.iter().copied());
    }
    Ok(ordered)
}

fn places(graph: &DrawnGraph, ranks: &Ranks) -> Result<Ordered, TooLarge> {
    let too_large = TooLarge { blocks: graph.blocks.len() };
    let mut ordered = Ordered { ranks: vec![Vec::new(); ranks.count], ..Ordered::default() };
    for (block, rank) in ranks.of.iter().enumerate() {
        ordered.add(RankOccupant::Block(block), *rank);
    }
    let mut long: BTreeMap<(usize, DrawnEdgeKind), usize> = BTreeMap::new();
    for (edge, up) in graph.edges.iter().zip(&ranks.up) {
        if !up && ranks.of[edge.from] + 1 < ranks.of[edge.to] {
            *long.entry((edge.to, edge.kind)).or_default() += 1;
        }
    }
    let mut shared: BTreeMap<(usize, DrawnEdgeKind, usize), usize> = BTreeMap::new();
    for (number, (edge, up)) in graph.edges.iter().zip(&ranks.up).enumerate() {
        let is_shared = !up && long.get(&(edge.to, edge.kind)).is_some_and(|count| *count >= BUNDLE);
        let (first, last) = (ranks.of[edge.from], ranks.of[edge.to]);
        let through = if *up { last..first + 1 } else { first + 1..last };
        if ordered.places.len() + through.len() > PLACES_MAX {
            return Err(too_large);
        }
        let place = |rank| match is_shared {
            true => *shared
                .entry((edge.to, edge.kind, rank))
                .or_insert_with(|| ordered.add(RankOccupant::Passing(number), rank)),
            false => ordered.add(RankOccupant::Passing(number), rank),
        };
        let mut passed: Vec<usize> = through.map(place).collect();
        if *up {
            for pair in passed.windows(2) {
                ordered.join(pair[0], pair[1]);
            }
            passed.reverse();
        } else {
            let all: Vec<usize> = [edge.from].into_iter().chain(passed.iter().copied()).chain([edge.to]).collect();
            for pair in all.windows(2) {
                ordered.join(pair[0], pair[1]);
            }
        }
        ordered.passing.push(passed);
    }
    Ok(ordered)
}

impl Ordered {
    fn add(&mut self, item: RankOccupant, rank: usize) -> usize {
        let number = self.places.len();
        self.places.push(RankPlace { item, rank, above: Vec::new(), below: Vec::new() });
        if let Some(places) = self.ranks.get_mut(rank) {
            places.push(number);
        }
        number
    }

    fn join(&mut self, above: usize, below: usize) {
        // Edges that share places are one line.
        if self.places[below].above.last() == Some(&above) || self.places[above].below.contains(&below) {
            return;
        }
        self.places[above].below.push(below);
        self.places[below].above.push(above);
    }

    /// The position of each place in its rank.
    fn positions(&self) -> Vec<usize> {
        let mut positions = vec![0; self.places.len()];
        for rank in &self.ranks {
            rank.iter().enumerate().for_each(|(position, place)| positions[*place] = position);
        }
        positions
    }
}

/// Orders the places as a depth-first search from the roots finds them. The place of an edge that leads up is beside its block.
fn begin(ordered: &mut Ordered, graph: &DrawnGraph) {
    let mut beside: Vec<Vec<usize>> = vec![Vec::new(); graph.blocks.len()];
    for (edge, passed) in graph.edges.iter().zip(&ordered.passing) {
        if let Some(first) =
            passed.first().filter(|first| ordered.places[**first].rank == ordered.places[edge.from].rank)
        {
            beside[edge.from].push(*first);
        }
    }
    let mut found = vec![usize::MAX; ordered.places.len()];
    let mut next = 0;
    for start in graph.roots.iter().copied().chain(0..ordered.places.len()) {
        let mut open = vec![start];
        while let Some(place) = open.pop() {
            if found[place] != usize::MAX {
                continue;
            }
            found[place] = next;
            next += 1;
            open.extend(ordered.places[place].below.iter().rev());
            if let RankOccupant::Block(block) = ordered.places[place].item {
                open.extend(beside[block].iter().copied());
            } else {
                open.extend(ordered.places[place].above.iter().rev());
            }
        }
    }
    for rank in &mut ordered.ranks {
        rank.sort_by_key(|place| found[*place]);
    }
}

/// Sorts a rank by the mean position of the neighbours in the rank above or below. A place without neighbours keeps its position.
fn sort(ordered: &mut Ordered, rank: usize, down: bool) {
    let neighbour = if down { rank.checked_sub(1) } else { Some(rank + 1) };
    let Some(neighbours) = neighbour.and_then(|rank| ordered.ranks.get(rank)) else { return };
    let positions: std::collections::HashMap<usize, usize> =
        neighbours.iter().enumerate().map(|(position, place)| (*place, position)).collect();
    let Some(places) = ordered.ranks.get(rank) else { return };
    let centre = |place: usize| {
        let one = &ordered.places[place];
        let near = if down { &one.above } else { &one.below };
        let sum: usize = near.iter().filter_map(|near| positions.get(near)).sum();
        (!near.is_empty()).then(|| sum as f64 / near.len() as f64)
    };
    let mut fixed: Vec<Option<usize>> = vec![None; places.len()];
    let mut moving: Vec<(f64, usize)> = Vec::new();
    for (position, place) in places.iter().enumerate() {
        match centre(*place) {
            Some(centre) => moving.push((centre, *place)),
            None => fixed[position] = Some(*place),
        }
    }
    moving.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut moving = moving.into_iter().map(|(_, place)| place);
    let sorted: Vec<usize> = fixed.into_iter().filter_map(|fixed| fixed.or_else(|| moving.next())).collect();
    ordered.ranks[rank] = sorted;
}

/// Number of crossings of lines between neighbouring ranks.
fn crossings(ordered: &Ordered) -> u64 {
    let positions = ordered.positions();
    let mut all = 0;
    for rank in &ordered.ranks {
        let mut lines: Vec<(usize, usize)> = Vec::new();
        for &place in rank {
            lines.extend(ordered.places[place].below.iter().map(|below| (positions[place], positions[*below])));
        }
        lines.sort_unstable();
        let ends: Vec<usize> = lines.into_iter().map(|(_, end)| end).collect();
        all += inversions(ends).1;
    }
    all
}

/// The numbers sorted, and the number of pairs in which the larger number comes first.
fn inversions(numbers: Vec<usize>) -> (Vec<usize>, u64) {
    if numbers.len() < 2 {
        return (numbers, 0);
    }
    let right = numbers[numbers.len() / 2..].to_vec();
    let (left, a) = inversions(numbers[..numbers.len() / 2].to_vec());
    let (right, b) = inversions(right);
    let (mut merged, mut count, mut at) = (Vec::with_capacity(numbers.len()), a + b, 0);
    for &number in &right {
        while at < left.len() && left[at] <= number {
            merged.push(left[at]);
            at += 1;
        }
        count += (left.len() - at) as u64;
        merged.push(number);
    }
    merged.extend(&left[at..]);
    (merged, count)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::picture::ranks::ranks;
    use crate::picture::tests::graph;

    #[test]
    fn edges_pass_every_rank_between_their_blocks() {
        let graph = graph(4, &[(0, 1), (1, 2), (2, 3), (0, 3), (2, 1), (3, 3)]);
        let ordered = order(&graph, &ranks(&graph)).expect("a small graph");
        let ranks: Vec<Vec<usize>> =
            ordered.passing.iter().map(|passed| passed.iter().map(|p| ordered.places[*p].rank).collect()).collect();
        assert_eq!(ranks, [vec![], vec![], vec![], vec![1, 2], vec![2, 1], vec![3]]);
        assert_eq!(crossings(&ordered), 0);
    }

    #[test]
    fn many_edges_to_one_block_share_places() {
        let mut edges: Vec<(usize, usize)> = (0..9).map(|n| (n, n + 1)).collect();
        edges.extend((0..5).map(|n| (n, 9)));
        let graph = graph(10, &edges);
        let ordered = order(&graph, &ranks(&graph)).expect("a small graph");
        assert_eq!(ordered.places.len(), 10 + 8);
        assert_eq!(ordered.passing[9][1..], ordered.passing[10][..]);
    }

    #[test]
    fn a_graph_with_too_many_places_is_refused() {
        let mut edges: Vec<(usize, usize)> = (0..1000).map(|n| (n, n + 1)).collect();
        edges.extend((0..1000).map(|n| (1000, n)));
        let graph = graph(1001, &edges);
        assert_eq!(order(&graph, &ranks(&graph)).map(drop), Err(TooLarge { blocks: 1001 }));
    }

    proptest! {
        #[test]
        fn every_place_is_in_its_rank_once(edges in prop::collection::vec((0..12_usize, 0..12_usize), 0..40)) {
            let graph = graph(12, &edges);
            let ordered = order(&graph, &ranks(&graph)).expect("a small graph");
            let mut seen = vec![0; ordered.places.len()];
            for (number, rank) in ordered.ranks.iter().enumerate() {
                for place in rank {
                    seen[*place] += 1;
                    prop_assert_eq!(ordered.places[*place].rank, number);
                }
            }
            prop_assert!(seen.iter().all(|n| *n == 1));
        }

        #[test]
        fn crossings_are_pairs_in_the_wrong_order(numbers in prop::collection::vec(0..20_usize, 0..30)) {
            let pairs = (0..numbers.len()).flat_map(|a| (a + 1..numbers.len()).map(move |b| (a, b)));
            let wrong = pairs.filter(|(a, b)| numbers[*a] > numbers[*b]).count() as u64;
            prop_assert_eq!(inversions(numbers).1, wrong);
        }
    }
}
