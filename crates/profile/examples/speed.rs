//! Prints how long placement and propagation take, for many small functions and for functions of growing size:
//! `cargo run --release -p ingraft-profile --example speed`, with the argument `times` for the times of functions alone.

use std::hint::black_box;
use std::time::{Duration, Instant};

use ingraft_model::Key;
use ingraft_profile::{
    Barred, Corrections, EventPlan, Events, FlowEdge, GraphBuilder, MeasuredFlow, Placement, ProgramTimes, Vertex,
    Weights,
};

/// The measured steps.
const STEPS: [&str; 6] = ["graph", "weights", "edges", "blocks", "events", "derive"];

/// Number of measurements of times; the median counts.
const ROUNDS: usize = 5;

fn main() {
    if std::env::args().nth(1).as_deref() != Some("times") {
        println!("Nanoseconds for each block, by step:");
        let steps = STEPS.map(|step| format!("{step:>8}")).concat();
        println!("{:>10}{:>9}{steps}  edge profiles", "functions", "blocks");
        for (functions, blocks) in [(200_000, 4), (100_000, 8), (50_000, 16), (10_000, 100)] {
            report(functions, blocks);
        }
        for blocks in [1_000, 10_000, 100_000, 1_000_000] {
            report(1_000_000 / blocks, blocks);
        }
        println!();
    }
    println!("Mean and variance of times, functions a second of processor time:");
    for (functions, blocks) in [(200_000, 4), (100_000, 8), (50_000, 16), (10_000, 100), (1_000, 1_000)] {
        let flows: Vec<MeasuredFlow> = (0..functions).map(|seed| flow(blocks, seed as u64)).collect();
        let mut solved = 0;
        let mut round = || {
            let start = processor_seconds();
            let times = black_box(ProgramTimes::of(&flows, false).times());
            solved = times.iter().filter(|times| times.is_ok()).count();
            functions as f64 / (processor_seconds() - start)
        };
        let mut rates = [(); ROUNDS].map(|()| round());
        rates.sort_by(f64::total_cmp);
        let rate = rates[ROUNDS / 2];
        println!("{functions:>10}{blocks:>9}  {rate:.0} functions/s ({solved} without a refusal)");
    }
}

/// Processor time of this thread, which does not count what other programs take.
fn processor_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("the scheduler's statistics");
    text.split(' ').next().and_then(|ns| ns.parse::<f64>().ok()).expect("nanoseconds") / 1e9
}

/// A function of nested branches and loops, with the counts of some runs.
fn flow(blocks: usize, seed: u64) -> MeasuredFlow {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut edges: Vec<Vec<FlowEdge>> = Vec::new();
    for from in 0..blocks {
        let next = Some(from + 1).filter(|next| *next < blocks);
        let mut ways = vec![FlowEdge { from, to: next, count: 0 }];
        match random(8) {
            0..=3 if next.is_some() => {
                ways.push(FlowEdge { from, to: Some((from + 2 + random(5)).min(blocks - 1)), count: 0 });
            }
            4 => {
                // A loop that control enters at its first block only.
                let first = from - random(8).min(from);
                let enters = |edge: &FlowEdge| edge.from < first && edge.to.is_some_and(|to| to > first && to <= from);
                if !edges.iter().skip(first.saturating_sub(8)).flatten().any(enters) {
                    ways.push(FlowEdge { from, to: Some(first), count: 0 });
                }
            }
            _ => {}
        }
        edges.push(ways);
    }
    let mut executions = vec![0; blocks];
    let (mut at, mut calls) = (Some(0), 1);
    let mut steps = 0;
    while let Some(block) = at {
        executions[block] += 1;
        steps += 1;
        let ways = edges[block].len();
        // After some steps all loops end.
        let way = if steps < 4 * blocks { random(ways) } else { 0 };
        edges[block][way].count += 1;
        at = edges[block][way].to;
        if at.is_none() && steps < 4 * blocks {
            calls += 1;
            at = Some(0);
        }
    }
    let costs = vec![4.0; blocks];
    MeasuredFlow { costs, executions, edges: edges.concat(), entry: (0, calls), ..MeasuredFlow::default() }
}

/// Measures all steps for a number of functions of equal size.
fn report(functions: usize, blocks: usize) {
    let shapes: Vec<GraphBuilder> = (0..functions).map(|seed| shape(blocks, seed as u64)).collect();
    let mut times = [Duration::ZERO; STEPS.len()];
    for shape in shapes {
        let mut start = Instant::now();
        let mut lap = |step: usize| {
            let now = Instant::now();
            times[step] += now - start;
            start = now;
        };
        let graph = shape.build().expect("a graph");
        lap(0);
        let weights = Weights::estimated(&graph);
        lap(1);
        let placement = Placement::edge_profile(&graph, &weights, &Barred::none()).expect("a placement");
        lap(2);
        black_box(Placement::block_profile(&graph, &weights, &Barred::none()).expect("a placement"));
        lap(3);
        black_box(EventPlan::new(&graph, &weights, &Barred::none(), &Events::new(&graph)).expect("a plan"));
        lap(4);
        let counts = vec![0; placement.counters().len()];
        lap(5);
        black_box(placement.profile(&graph, &counts, &Corrections::none()).expect("a profile"));
        lap(5);
    }
    let blocks_in_all = (functions * blocks) as f64;
    let per_block = times.map(|time| format!("{:>8.0}", time.as_nanos() as f64 / blocks_in_all)).concat();
    let needed = times[0] + times[1] + times[2] + times[5];
    let rate = functions as f64 / needed.as_secs_f64();
    println!("{functions:>10}{blocks:>9}{per_block}  {rate:.0} functions/s");
}

/// A function of nested branches and loops, with some exits of loops, as compilers make them.
fn shape(blocks: usize, seed: u64) -> GraphBuilder {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let mut shape = GraphBuilder::new(blocks);
    shape.root(Vertex(0));
    for block in 0..blocks {
        let (at, next) = (Vertex::at(block), block + 1);
        if next == blocks {
            shape.leave(at);
            continue;
        }
        shape.edge(at, Vertex::at(next));
        match random(8) {
            // A branch forwards.
            0..=3 => _ = shape.edge(at, Vertex::at((next + random(6)).min(blocks - 1))),
            // A loop.
            4 => _ = shape.edge(at, Vertex::at(block - random(8).min(block))),
            5 if random(4) == 0 => _ = shape.leave(at),
            _ => {}
        }
    }
    shape
}
