//! Times of random programs, bit for bit: the golden file has a digest of all results of each program. A change of the digests means that
//! sums are made in another order, or that results differ.

use std::fmt::Write as _;

use expect_test::expect_file;
use ingraft_profile::{FlowCall, FlowEdge, MeasuredFlow, ProgramTimes, TimedPart, VarianceCause, VarianceRange};

const PROGRAMS: u64 = 200;

/// Numbers by a linear congruential generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// A function with loops, some of which have several entries, executed for some steps. Some executions end in the middle of the function, as an
/// exception ends them, and some begin there.
fn function(random: &mut Random, functions: usize) -> MeasuredFlow {
    let blocks = 1 + random.below(40);
    let (wild, broken) = (random.below(5) == 0, random.below(4) == 0);
    let mut ways: Vec<Vec<usize>> = (0..blocks).map(|block| vec![block + 1]).collect();
    for (block, ways) in ways.iter_mut().enumerate() {
        match random.below(8) {
            0..3 => ways.push((block + 2 + random.below(5)).min(blocks)),
            3 => ways.push(block - random.below(8).min(block)),
            4 if wild => ways.push(random.below(blocks)),
            5 if wild => ways.extend([random.below(blocks), random.below(blocks)]),
            _ => {}
        }
    }
    let mut counts: Vec<Vec<u64>> = ways.iter().map(|ways| vec![0; ways.len()]).collect();
    let mut executions = vec![0u64; blocks];
    let (mut calls, mut at) = (u64::from(random.below(20) != 0), 0);
    let steps = if calls == 0 { 0 } else { 8 * blocks };
    for step in 0.. {
        executions[at] += u64::from(calls > 0);
        if step >= steps && (at + 1 == blocks || calls == 0) {
            break;
        }
        let way = if step < steps { random.below(ways[at].len()) } else { 0 };
        let stops = step < steps && broken && random.below(100) == 0;
        if !stops {
            counts[at][way] += 1;
            at = ways[at][way];
        }
        if at >= blocks || stops {
            let lands = stops && random.below(2) == 0;
            calls += u64::from(!lands);
            at = if lands { random.below(blocks) } else { 0 };
        }
    }
    if calls > 0 {
        counts[at][0] += 1;
    }
    let edge =
        |(from, (to, count)): (usize, (usize, u64))| FlowEdge { from, to: Some(to).filter(|to| *to < blocks), count };
    let edges = ways.iter().zip(&counts).enumerate();
    let edges = edges.flat_map(|(from, (ways, counts))| {
        ways.iter().copied().zip(counts.iter().copied()).map(move |way| (from, way))
    });
    let called = (0..random.below(4)).map(|_| {
        let block = random.below(blocks);
        let count = executions[block].div_ceil(1 + random.below(9) as u64);
        FlowCall { block, callee: random.below(functions), count }
    });
    MeasuredFlow {
        calls: called.collect(),
        costs: (0..blocks).map(|_| random.below(100) as f64 / 8.0).collect(),
        edges: edges.map(edge).collect(),
        entry: (0, calls),
        trips: (0..random.below(4)).map(|_| (random.below(blocks), random.below(50) as f64 / 4.0)).collect(),
        executions,
    }
}

/// An FNV-1a digest.
struct Digest(u64);

impl Digest {
    fn add(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn number(&mut self, value: f64) {
        self.add(value.to_bits());
    }

    fn range(&mut self, value: VarianceRange) {
        self.number(value.equal);
        self.number(value.independent);
    }
}

#[test]
fn times_of_random_programs_are_bit_for_bit_the_same() {
    let mut lines = String::from("program functions timed nodes shares mean-of-the-first digest\n");
    for seed in 0..PROGRAMS {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let functions = 1 + random.below(12);
        let flows: Vec<MeasuredFlow> = (0..functions).map(|_| function(&mut random, functions)).collect();
        let mut digest = Digest(0xcbf2_9ce4_8422_2325);
        let (mut timed, mut nodes, mut shares) = (0, 0, 0);
        let mut program = ProgramTimes::of(&flows, seed % 4 == 0);
        let all = program.times();
        for times in &all {
            let times = match times {
                Ok(times) => times,
                Err(why) => {
                    why.to_string().bytes().for_each(|byte| digest.add(u64::from(byte)));
                    continue;
                }
            };
            timed += 1;
            nodes += times.nodes.len();
            shares += times.shares.len();
            digest.number(times.mean);
            digest.range(times.variance);
            for node in &times.nodes {
                let (kind, block) = match node.origin {
                    TimedPart::Function => (0, 0),
                    TimedPart::Block(block) => (1, block),
                    TimedPart::Loop(header) => (2, header),
                };
                [kind, block as u64].into_iter().for_each(|value| digest.add(value));
                digest.number(node.frequency);
                digest.number(node.mean);
                digest.range(node.variance);
                digest.number(node.iterations.unwrap_or(-1.0));
            }
            for share in &times.shares {
                let (kind, block) = match share.cause {
                    VarianceCause::Branch(block) => (0, block),
                    VarianceCause::Exit(block) => (1, block),
                    VarianceCause::Trips(block) => (2, block),
                    VarianceCause::Callee(block) => (3, block),
                    VarianceCause::Arrival => (4, 0),
                };
                [kind, block as u64].into_iter().for_each(|value| digest.add(value));
                digest.range(share.share);
            }
        }
        let other = flows.iter().map(|flow| flow.costs.iter().map(|cost| cost * 3.0 + 0.1).collect()).collect();
        for mean in program.means_of(other) {
            digest.number(mean.unwrap_or(-1.0));
        }
        let first = all.iter().find_map(|times| times.as_ref().ok()).map_or(0.0, |times| times.mean);
        writeln!(lines, "{seed} {functions} {timed} {nodes} {shares} {first:.4} {:016x}", digest.0).expect("a string");
    }
    expect_file!["../../../../tests/golden/profile/times.txt"].assert_eq(&lines);
}
