//! Coordinates of blocks and edges, in pixels. The ordinate grows downwards.
//!
//! Edges consist of vertical and horizontal pieces. Horizontal pieces lie between two ranks, each on a track that it shares only with pieces
//! at other abscissas.

use std::collections::BTreeMap;

use super::order::{Ordered, RankOccupant};
use super::ranks::Ranks;
use super::{DrawnBlock, DrawnGraph};

/// Width in pixels of a character.
pub(super) const CHARACTER: f64 = 6.63;
/// Height in pixels of a line of text.
pub(super) const LINE: f64 = 14.0;
/// Distance in pixels from text to the border of its block.
pub(super) const PADDING: f64 = 9.0;
/// Smallest width in pixels of a block.
const WIDTH_MIN: f64 = 70.0;
/// Distance in pixels between two blocks side by side.
const GAP: f64 = 30.0;
/// Distance in pixels between an edge and what is beside it.
const LANE: f64 = 14.0;
/// Distance in pixels between two tracks.
const TRACK: f64 = 9.0;
/// Distance in pixels from a rank to the first track below it.
const CHANNEL_TOP: f64 = 14.0;
/// Distance in pixels from the last track to the rank below it; arrows have room there.
const CHANNEL_BOTTOM: f64 = 18.0;
/// Distance in pixels between two edges at the same side of a block.
const PORT: f64 = 13.0;
/// Distance in pixels from a corner of a block to the first edge.
const CORNER: f64 = 12.0;
/// Number of passes over all ranks that move places towards their neighbours.
const PASSES: usize = 24;

/// A rectangle: left, top, width and height.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rectangle {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A graph with coordinates.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct GraphLayout {
    pub(super) width: f64,
    pub(super) height: f64,
    /// The rectangle of each block.
    pub(super) blocks: Vec<Rectangle>,
    /// The corners of each edge, from its block to the other one.
    pub(super) edges: Vec<Vec<(f64, f64)>>,
}

/// Width and height of a block.
fn size(block: &DrawnBlock) -> (f64, f64) {
    let lines = block.text();
    let columns = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = (columns as f64 * CHARACTER + 2.0 * PADDING).max(WIDTH_MIN);
    (width, lines.len() as f64 * LINE + PADDING)
}

/// Assigns coordinates.
pub(super) fn layout(graph: &DrawnGraph, ranks: &Ranks, ordered: &Ordered) -> GraphLayout {
    let sizes: Vec<(f64, f64)> = graph.blocks.iter().map(size).collect();
    let width = |place: usize| match ordered.places[place].item {
        RankOccupant::Block(block) => sizes[block].0,
        RankOccupant::Passing(_) => 0.0,
    };
    let widths: Vec<f64> = (0..ordered.places.len()).map(width).collect();
    let centres = centres(graph, ordered, &widths);
    let ports = Ports::new(graph, ordered, &centres, &widths);
    let routes: Vec<Route> =
        (0..graph.edges.len()).map(|edge| route(graph, ranks, ordered, &centres, &ports, edge)).collect();
    let (tracks, used) = tracks(graph, &routes, ranks.count);
    let mut heights = vec![0.0_f64; ranks.count];
    for (block, rank) in ranks.of.iter().enumerate() {
        heights[*rank] = heights[*rank].max(sizes[block].1);
    }
    // The channel above a rank has the same number as the rank.
    let (mut tops, mut channels, mut y) = (Vec::new(), Vec::new(), 0.0);
    for channel in 0..=ranks.count {
        channels.push(y + CHANNEL_TOP);
        let used = used.get(channel).copied().unwrap_or(0) as f64;
        let outermost = channel == 0 || channel == ranks.count;
        y += if outermost && used == 0.0 { 0.0 } else { CHANNEL_TOP + used * TRACK + CHANNEL_BOTTOM };
        tops.push(y);
        y += heights.get(channel).copied().unwrap_or(0.0);
    }
    let rectangle = |block: usize| {
        let (width, height) = sizes[block];
        Rectangle { x: centres[block] - width / 2.0, y: tops[ranks.of[block]], width, height }
    };
    let blocks: Vec<Rectangle> = (0..graph.blocks.len()).map(rectangle).collect();
    let mut edges = Vec::with_capacity(routes.len());
    for (number, (edge, route)) in graph.edges.iter().zip(&routes).enumerate() {
        let (from, to) = (blocks[edge.from], blocks[edge.to]);
        let mut line = vec![(ports.out[number], from.y + from.height)];
        for (step, track) in route.iter().zip(&tracks[number]) {
            let y = channels[step.channel] + *track as f64 * TRACK;
            if (step.from - step.to).abs() > 0.01 {
                line.extend([(step.from, y), (step.to, y)]);
            }
        }
        line.push((ports.into[number], to.y));
        edges.push(line);
    }
    shift(GraphLayout { width: 0.0, height: y, blocks, edges })
}

/// Moves everything to the right of 0, and sets the width.
fn shift(mut layout: GraphLayout) -> GraphLayout {
    let points = || layout.edges.iter().flatten().map(|(x, _)| *x);
    let left = layout.blocks.iter().map(|b| b.x).chain(points()).fold(f64::INFINITY, f64::min);
    let right = layout.blocks.iter().map(|b| b.x + b.width).chain(points()).fold(f64::NEG_INFINITY, f64::max);
    if left.is_finite() && right.is_finite() {
        layout.width = right - left;
        layout.blocks.iter_mut().for_each(|block| block.x -= left);
        layout.edges.iter_mut().flatten().for_each(|point| point.0 -= left);
    }
    layout
}

/// Abscissas of the centres of all places.
fn centres(graph: &DrawnGraph, ordered: &Ordered, widths: &[f64]) -> Vec<f64> {
    let gap = |a: usize, b: usize| {
        let both = matches!(
            (ordered.places[a].item, ordered.places[b].item),
            (RankOccupant::Block(_), RankOccupant::Block(_))
        );
        f64::midpoint(widths[a], widths[b]) + if both { GAP } else { LANE }
    };
    let mut x = vec![0.0; ordered.places.len()];
    for rank in &ordered.ranks {
        let mut at = 0.0;
        for (position, place) in rank.iter().enumerate() {
            at += position.checked_sub(1).map_or(0.0, |before| gap(rank[before], *place));
            x[*place] = at;
        }
    }
    // The first and the last place of an edge that leads up belong beside its blocks.
    let mut beside: Vec<Vec<usize>> = vec![Vec::new(); ordered.places.len()];
    for (edge, passed) in graph.edges.iter().zip(&ordered.passing) {
        for (block, place) in [(edge.from, passed.first()), (edge.to, passed.last())] {
            if let Some(place) = place.filter(|place| ordered.places[**place].rank == ordered.places[block].rank) {
                beside[*place].push(block);
            }
        }
    }
    for pass in 0..PASSES {
        let count = ordered.ranks.len();
        for step in 0..count {
            let rank = &ordered.ranks[if pass % 2 == 0 { step } else { count - 1 - step }];
            // The last passes look both ways.
            let both = pass + 4 >= PASSES;
            let wanted =
                rank.iter().map(|place| wish(ordered, &x, &beside[*place], widths, *place, pass % 2 == 0, both));
            let wanted: Vec<(f64, f64)> = wanted.collect();
            let gaps: Vec<f64> = rank.windows(2).map(|pair| gap(pair[0], pair[1])).collect();
            for (place, found) in rank.iter().zip(apart(&wanted, &gaps)) {
                x[*place] = found;
            }
        }
    }
    straighten(ordered, &mut x, &gap);
    x
}

/// Gives places that an edge passes one after the other the same abscissa, as far as what is beside them leaves room.
fn straighten(ordered: &Ordered, x: &mut [f64], gap: &impl Fn(usize, usize) -> f64) {
    let mut positions = vec![0; ordered.places.len()];
    for rank in &ordered.ranks {
        rank.iter().enumerate().for_each(|(position, place)| positions[*place] = position);
    }
    // The abscissas that a place can have without a change of what is beside it.
    let room = |x: &[f64], place: usize| {
        let (rank, position) = (&ordered.ranks[ordered.places[place].rank], positions[place]);
        let left = position.checked_sub(1).and_then(|before| rank.get(before));
        let right = rank.get(position + 1);
        let least = left.map_or(f64::NEG_INFINITY, |left| x[*left] + gap(*left, place));
        let most = right.map_or(f64::INFINITY, |right| x[*right] - gap(place, *right));
        (least, most.max(least))
    };
    for passed in &ordered.passing {
        let mut rest = passed.as_slice();
        while let Some(first) = rest.first() {
            let (mut least, mut most) = room(x, *first);
            let mut run = 1;
            while let Some(next) = rest.get(run) {
                let (low, high) = room(x, *next);
                if low.max(least) > high.min(most) {
                    break;
                }
                (least, most) = (low.max(least), high.min(most));
                run += 1;
            }
            let (same, others) = rest.split_at(run);
            let mean = same.iter().map(|place| x[*place]).sum::<f64>() / run as f64;
            same.iter().for_each(|place| x[*place] = mean.clamp(least, most));
            rest = others;
        }
    }
}

/// The abscissa where a place would be best, and the weight of the wish.
fn wish(
    ordered: &Ordered,
    x: &[f64],
    beside: &[usize],
    widths: &[f64],
    place: usize,
    down: bool,
    both: bool,
) -> (f64, f64) {
    let one = &ordered.places[place];
    let is_passing = |place: usize| matches!(ordered.places[place].item, RankOccupant::Passing(_));
    let (mut sum, mut weight) = (0.0, 0.0);
    let above = one.above.iter().filter(|_| down || both);
    let below = one.below.iter().filter(|_| !down || both);
    for &near in above.chain(below) {
        // Long edges are straight before anything else is.
        let own = match (is_passing(place), is_passing(near)) {
            (true, true) => 8.0,
            (true, false) | (false, true) => 2.0,
            (false, false) => 1.0,
        };
        sum += own * x[near];
        weight += own;
    }
    for &block in beside {
        let side = if x[place] < x[block] { -1.0 } else { 1.0 };
        sum += x[block] + side * (widths[block] / 2.0 + LANE);
        weight += 1.0;
    }
    if weight == 0.0 { (x[place], 0.1) } else { (sum / weight, weight) }
}

/// Places in order, at least as far apart as `gaps` say, with the least sum of squares of the distances from the wished abscissas. The
/// method is the pooling of neighbours that violate the order.
fn apart(wanted: &[(f64, f64)], gaps: &[f64]) -> Vec<f64> {
    let mut offsets = Vec::with_capacity(wanted.len());
    let mut offset = 0.0;
    for number in 0..wanted.len() {
        offset += number.checked_sub(1).and_then(|before| gaps.get(before)).copied().unwrap_or(0.0);
        offsets.push(offset);
    }
    // Groups of neighbours that touch: mean of their wishes, weight, number of members.
    let mut groups: Vec<(f64, f64, usize)> = Vec::new();
    for ((wish, weight), offset) in wanted.iter().zip(&offsets) {
        let mut group = (wish - offset, weight.max(1e-6), 1);
        while let Some(last) = groups.last().filter(|last| last.0 > group.0) {
            let weight = last.1 + group.1;
            group = ((last.0 * last.1 + group.0 * group.1) / weight, weight, last.2 + group.2);
            groups.pop();
        }
        groups.push(group);
    }
    let levels = groups.into_iter().flat_map(|(level, _, members)| std::iter::repeat_n(level, members));
    levels.zip(&offsets).map(|(level, offset)| level + offset).collect()
}

/// Abscissas at which edges leave and enter blocks.
struct Ports {
    out: Vec<f64>,
    into: Vec<f64>,
}

impl Ports {
    fn new(graph: &DrawnGraph, ordered: &Ordered, centres: &[f64], widths: &[f64]) -> Ports {
        let (mut leaving, mut entering) = (vec![Vec::new(); graph.blocks.len()], vec![Vec::new(); graph.blocks.len()]);
        for (number, edge) in graph.edges.iter().enumerate() {
            leaving[edge.from].push(number);
            entering[edge.to].push(number);
        }
        let passed = |edge: usize| ordered.passing.get(edge).map(Vec::as_slice).unwrap_or_default();
        let mut ports = Ports { out: vec![0.0; graph.edges.len()], into: vec![0.0; graph.edges.len()] };
        for (block, edges) in leaving.iter().enumerate() {
            let next = |edge: usize| centres[passed(edge).first().copied().unwrap_or(graph.edges[edge].to)];
            spread(edges, centres[block], widths[block], next, &mut ports.out);
        }
        for (block, edges) in entering.iter().enumerate() {
            let out = &ports.out;
            let before = |edge: usize| passed(edge).last().map_or(out[edge], |place| centres[*place]);
            // Edges that share their places enter as one.
            let mut first_of: BTreeMap<usize, usize> = BTreeMap::new();
            let first = |edge: &usize| match passed(*edge).last() {
                Some(place) => *first_of.entry(*place).or_insert(*edge),
                None => *edge,
            };
            let firsts: Vec<usize> = edges.iter().map(first).collect();
            let own: Vec<usize> = edges.iter().zip(&firsts).filter(|(a, b)| a == b).map(|(edge, _)| *edge).collect();
            let mut into = std::mem::take(&mut ports.into);
            spread(&own, centres[block], widths[block], before, &mut into);
            edges.iter().zip(&firsts).for_each(|(edge, first)| into[*edge] = into[*first]);
            ports.into = into;
        }
        ports
    }
}

/// Spreads edges over one side of a block, each as near as possible to where it comes from or leads to.
fn spread(edges: &[usize], centre: f64, width: f64, wish: impl Fn(usize) -> f64, ports: &mut [f64]) {
    let mut wishes: Vec<(f64, usize)> = edges.iter().map(|edge| (wish(*edge), *edge)).collect();
    wishes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let room = (width - 2.0 * CORNER).max(0.0);
    let gap = PORT.min(room / wishes.len().max(1) as f64);
    let (left, right) = (centre - room / 2.0, centre + room / 2.0);
    let last = wishes.len().saturating_sub(1);
    let bounded = wishes.iter().enumerate().map(|(number, (wish, _))| {
        let (least, most) = (left + number as f64 * gap, right - (last - number) as f64 * gap);
        (wish.clamp(least, most.max(least)), 1.0)
    });
    let bounded: Vec<(f64, f64)> = bounded.collect();
    for ((_, edge), x) in wishes.iter().zip(apart(&bounded, &vec![gap; last])) {
        ports[*edge] = x;
    }
}

/// A step of an edge in a channel, from one abscissa to another one.
#[derive(Clone, Copy, Debug)]
struct EdgeStep {
    channel: usize,
    from: f64,
    to: f64,
}

/// The steps of an edge.
type Route = Vec<EdgeStep>;

fn route(graph: &DrawnGraph, ranks: &Ranks, ordered: &Ordered, centres: &[f64], ports: &Ports, number: usize) -> Route {
    let edge = graph.edges[number];
    let up = ranks.up[number];
    let passed = ordered.passing.get(number).map(Vec::as_slice).unwrap_or_default();
    let xs = passed.iter().map(|place| centres[*place]);
    let stops: Vec<f64> = [ports.out[number]].into_iter().chain(xs).chain([ports.into[number]]).collect();
    let first = ranks.of[edge.from] + 1;
    let steps = stops.windows(2).enumerate().map(|(step, pair)| {
        // An edge that leads up turns below its block, and passes one rank fewer upwards at each further step.
        let channel = if up { first.saturating_sub(step) } else { first + step };
        EdgeStep { channel, from: pair[0], to: pair[1] }
    });
    steps.collect()
}

/// Steps of edges to one block that end at one abscissa. They share a track, because from there on the edges are one line.
#[derive(Clone, Debug)]
struct Bundle {
    left: f64,
    right: f64,
    /// Key of the order in which bundles get tracks: in this order, pieces in the same direction do not cross.
    rank: f64,
    /// Edges, each with the number of its step.
    steps: Vec<(usize, usize)>,
}

/// The track of each step of each edge, and the number of tracks of each channel.
fn tracks(graph: &DrawnGraph, routes: &[Route], ranks: usize) -> (Vec<Vec<usize>>, Vec<usize>) {
    let mut found: Vec<Vec<usize>> = routes.iter().map(|route| vec![0; route.len()]).collect();
    let mut by_channel: Vec<BTreeMap<(usize, u64), Bundle>> = vec![BTreeMap::new(); ranks + 1];
    for (edge, route) in routes.iter().enumerate() {
        for (number, step) in route.iter().enumerate().filter(|(_, step)| (step.from - step.to).abs() > 0.01) {
            let Some(channel) = by_channel.get_mut(step.channel) else { continue };
            let (left, right) = (step.from.min(step.to) - TRACK / 2.0, step.from.max(step.to) + TRACK / 2.0);
            let rank = if step.to > step.from { -step.from } else { step.from };
            let new = || Bundle { left, right, rank, steps: Vec::new() };
            let bundle = channel.entry((graph.edges[edge].to, step.to.to_bits())).or_insert_with(new);
            (bundle.left, bundle.right) = (bundle.left.min(left), bundle.right.max(right));
            bundle.rank = bundle.rank.min(rank);
            bundle.steps.push((edge, number));
        }
    }
    let mut used = Vec::with_capacity(by_channel.len());
    for bundles in by_channel {
        let mut bundles: Vec<Bundle> = bundles.into_values().collect();
        bundles.sort_by(|a, b| a.rank.total_cmp(&b.rank));
        let mut taken: Vec<Vec<(f64, f64)>> = Vec::new();
        for bundle in bundles {
            let free =
                |track: &Vec<(f64, f64)>| track.iter().all(|(start, end)| bundle.right < *start || *end < bundle.left);
            let track = taken.iter().position(free).unwrap_or(taken.len());
            if track == taken.len() {
                taken.push(Vec::new());
            }
            taken[track].push((bundle.left, bundle.right));
            bundle.steps.iter().for_each(|(edge, number)| found[*edge][*number] = track);
        }
        used.push(taken.len());
    }
    (found, used)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::picture::order::order;
    use crate::picture::ranks::ranks;
    use crate::picture::tests::graph;

    fn placed(graph: &DrawnGraph) -> GraphLayout {
        let ranks = ranks(graph);
        let ordered = order(graph, &ranks).expect("a small graph");
        layout(graph, &ranks, &ordered)
    }

    #[test]
    fn a_chain_is_straight() {
        let layout = placed(&graph(3, &[(0, 1), (1, 2)]));
        assert!(layout.edges.iter().all(|edge| edge.len() == 2 && (edge[0].0 - edge[1].0).abs() < 0.1), "{layout:?}");
    }

    #[test]
    fn places_keep_their_distance() {
        let wanted = [(5.0, 1.0), (0.0, 1.0), (100.0, 1.0), (99.0, 3.0)];
        let found = apart(&wanted, &[10.0, 10.0, 10.0]);
        assert_eq!(found, [-2.5, 7.5, 91.75, 101.75]);
        assert_eq!(apart(&[], &[]), Vec::<f64>::new());
    }

    proptest! {
        #[test]
        fn blocks_never_touch_and_edges_keep_out_of_them(
            edges in prop::collection::vec((0..10_usize, 0..10_usize), 0..30),
        ) {
            let graph = graph(10, &edges);
            let layout = placed(&graph);
            for (n, a) in layout.blocks.iter().enumerate() {
                prop_assert!(a.x >= -0.01 && a.x + a.width <= layout.width + 0.01 && a.y + a.height <= layout.height + 0.01);
                for b in &layout.blocks[n + 1..] {
                    let apart = a.x + a.width < b.x || b.x + b.width < a.x || a.y + a.height < b.y || b.y + b.height < a.y;
                    prop_assert!(apart, "{:?} {:?}", a, b);
                }
                for line in layout.edges.iter().flat_map(|edge| edge.windows(2)) {
                    let inside = |low: f64, high: f64, from: f64, to: f64| low + 0.1 < from.max(to) && from.min(to) < high - 0.1;
                    let crosses = inside(a.x, a.x + a.width, line[0].0, line[1].0)
                        && inside(a.y, a.y + a.height, line[0].1, line[1].1);
                    prop_assert!(!crosses, "{:?} {:?}", a, line);
                }
            }
        }
    }
}
