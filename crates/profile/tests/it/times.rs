//! Times of functions: the paper's example, sums of random executions, and random programs whose calls were timed one by one.

use ingraft_profile::{
    ComparedCounters, CounterCost, FlowCall, FlowEdge, MeasuredFlow, NoTimes, NodeTime, PredictedTimes, ProgramTimes,
    TimedPart, VarianceCause,
};
use proptest::prelude::*;

/// The example of figures 1 to 3: `IF (M.GE.0)`, `IF (N.LT.0)`, `IF (N.GE.0)`, `CALL FOO` and `CONTINUE` are blocks 0 to 4. `first` has the
/// passages of the branches T and F of block 0; the loop is left once, by block 1.
fn example(first: [u64; 2], trips: &[(usize, f64)]) -> MeasuredFlow {
    let [truth, lie] = first;
    let edge = |from, to, count| FlowEdge { from, to, count };
    MeasuredFlow {
        costs: vec![1.0, 1.0, 1.0, 100.0, 0.0],
        executions: vec![10, truth, lie, 9, 1],
        edges: vec![
            edge(0, Some(1), truth),
            edge(0, Some(2), lie),
            edge(1, Some(4), 1),
            edge(1, Some(3), truth - 1),
            edge(2, Some(4), 0),
            edge(2, Some(3), lie),
            edge(3, Some(0), 9),
            edge(4, None, 1),
        ],
        entry: (0, 1),
        calls: Vec::new(),
        trips: trips.to_vec(),
    }
}

fn program_times(functions: &[MeasuredFlow], unused: bool) -> Vec<Result<PredictedTimes, NoTimes>> {
    ProgramTimes::of(functions, unused).times()
}

fn times_of(function: MeasuredFlow, unused: bool) -> PredictedTimes {
    program_times(&[function], unused).remove(0).expect("times")
}

fn node(times: &PredictedTimes, origin: TimedPart) -> NodeTime {
    *times.nodes.iter().find(|node| node.origin == origin).unwrap_or_else(|| panic!("no {origin:?} in {times:#?}"))
}

#[track_caller]
fn assert_near(value: f64, expected: f64) {
    assert!((value - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{value} is not {expected}");
}

/// Figure 3: frequency, TIME, VAR.
#[test]
fn the_example_of_the_paper() {
    let times = times_of(example([10, 0], &[]), true);
    let expected = [
        (TimedPart::Function, 1.0, 920.0, 90_000.0),
        (TimedPart::Loop(0), 1.0, 920.0, 90_000.0),
        (TimedPart::Block(0), 10.0, 92.0, 900.0),
        (TimedPart::Block(1), 10.0, 91.0, 900.0),
        (TimedPart::Block(2), 0.0, 1.0, 0.0),
        (TimedPart::Block(3), 9.0, 100.0, 0.0),
        (TimedPart::Block(4), 1.0, 0.0, 0.0),
    ];
    for (origin, frequency, mean, variance) in expected {
        let node = node(&times, origin);
        assert_near(node.frequency, frequency);
        assert_near(node.mean, mean);
        assert_near(node.variance.equal, variance);
    }
    assert_eq!(node(&times, TimedPart::Loop(0)).iterations, Some(10.0));
    assert_near(times.variance.equal.sqrt(), 300.0);
    // The paper's other assumption would be that iterations do not depend on each other.
    assert_near(times.variance.independent, 9_000.0);
    assert_near((times.variance.independent.sqrt() * 1000.0).round(), 94_868.0);
    assert_eq!(times.shares.len(), 1);
    assert_eq!(times.shares[0].cause, VarianceCause::Exit(1));
    assert_near(times.shares[0].share.equal, 1.0);
}

#[test]
fn the_example_by_both_branches() {
    for unused in [false, true] {
        let times = times_of(example([5, 5], &[]), unused);
        assert_near(times.mean, 920.0);
        assert_near(times.variance.equal, 90_000.0);
    }
}

#[test]
fn the_example_with_a_variance_of_iterations() {
    let times = times_of(example([10, 0], &[(0, 90.0)]), false);
    assert_near(times.variance.equal, 932_760.0);
    assert_near((times.variance.equal.sqrt() * 1000.0).round(), 965_795.0);
    let sum: f64 = times.shares.iter().map(|share| share.share.equal).sum();
    assert_near(sum, 1.0);
    let trips = times.shares.iter().find(|share| share.cause == VarianceCause::Trips(0)).expect("trips");
    assert_near(trips.share.equal, 90.0 * 92.0 * 92.0 / 932_760.0);
}

/// A node that follows `continue` does not run in each iteration.
#[test]
fn a_node_after_continue_runs_in_some_iterations() {
    let edge = |from, to, count| FlowEdge { from, to, count };
    // 0: if … continue (1); 2: the rest; exit test
    let function = MeasuredFlow {
        costs: vec![1.0, 1.0, 10.0, 0.0],
        executions: vec![100, 80, 20, 10],
        edges: vec![
            edge(0, Some(1), 80),
            edge(0, Some(2), 20),
            edge(1, Some(0), 80),
            edge(2, Some(0), 10),
            edge(2, Some(3), 10),
            edge(3, None, 10),
        ],
        entry: (0, 10),
        ..MeasuredFlow::default()
    };
    let times = times_of(function, false);
    assert_near(node(&times, TimedPart::Block(2)).frequency, 2.0);
    assert_near(times.mean, (100.0 + 80.0 + 200.0) / 10.0);
}

/// A function that calls itself with probability 1/2 makes two calls on average; the variance is that of a geometric distribution.
#[test]
fn recursion_is_solved() {
    let function = |calls: u64, inner: u64| MeasuredFlow {
        costs: vec![1.0, 0.0, 0.0],
        executions: vec![calls, inner, calls],
        edges: vec![
            FlowEdge { from: 0, to: Some(1), count: inner },
            FlowEdge { from: 0, to: Some(2), count: calls - inner },
            FlowEdge { from: 1, to: Some(2), count: inner },
            FlowEdge { from: 2, to: None, count: calls },
        ],
        entry: (0, calls),
        calls: vec![FlowCall { block: 1, callee: 0, count: inner }],
        trips: Vec::new(),
    };
    let times = times_of(function(1000, 500), false);
    assert_near(times.mean, 2.0);
    assert_near(times.variance.independent, 2.0);
    // Two that call each other in turn are the same.
    let turned =
        |callee| MeasuredFlow { calls: vec![FlowCall { block: 1, callee, count: 500 }], ..function(1000, 500) };
    for times in program_times(&[turned(1), turned(0)], false) {
        let times = times.expect("times");
        assert_near(times.mean, 2.0);
        assert_near(times.variance.independent, 2.0);
    }
    // Each call makes another one.
    let endless = program_times(&[function(1000, 1000)], false).remove(0);
    assert_eq!(endless, Err(NoTimes::Recursion(vec![0])));
    assert_eq!(program_times(&[function(0, 0)], false).remove(0), Err(NoTimes::NotCalled));
}

/// A walk over trees of which one node of five has four children: its variance is finite only if the children do not depend on each other.
#[test]
fn a_variance_without_bound_is_told() {
    let edge = |from, to, count| FlowEdge { from, to, count };
    let walk = MeasuredFlow {
        costs: vec![1.0, 0.0, 0.0],
        executions: vec![1000, 800, 1000],
        edges: vec![
            edge(0, Some(1), 200),
            edge(0, Some(2), 800),
            edge(1, Some(1), 600),
            edge(1, Some(2), 200),
            edge(2, None, 1000),
        ],
        entry: (0, 1000),
        calls: vec![FlowCall { block: 1, callee: 0, count: 800 }],
        trips: Vec::new(),
    };
    let caller = MeasuredFlow {
        costs: vec![1.0],
        executions: vec![200],
        edges: vec![edge(0, None, 200)],
        entry: (0, 200),
        calls: vec![FlowCall { block: 0, callee: 0, count: 200 }],
        trips: Vec::new(),
    };
    for times in program_times(&[walk, caller], false) {
        let times = times.expect("times");
        assert!(times.variance.equal.is_infinite() && times.variance.independent.is_finite(), "{times:#?}");
        assert!(times.shares.iter().all(|share| share.share.equal == 0.0), "{times:#?}");
        let sum: f64 = times.shares.iter().map(|share| share.share.independent).sum();
        assert_near(sum, 1.0);
    }
}

/// Thousands of functions that were not called, or that call each other, take no time worth mentioning.
#[test]
fn large_programs_are_solved() {
    const COUNT: usize = 20_000;
    let chain = |function: usize| MeasuredFlow {
        costs: vec![1.0, 0.0, 0.0],
        executions: vec![100, 50, 100],
        edges: vec![
            FlowEdge { from: 0, to: Some(1), count: 50 },
            FlowEdge { from: 0, to: Some(2), count: 50 },
            FlowEdge { from: 1, to: Some(2), count: 50 },
            FlowEdge { from: 2, to: None, count: 100 },
        ],
        entry: (0, [100, 0][function % 2]),
        calls: vec![FlowCall { block: 1, callee: (function + 2) % COUNT, count: 50 }],
        trips: Vec::new(),
    };
    let functions: Vec<MeasuredFlow> = (0..COUNT).map(chain).collect();
    for (function, times) in program_times(&functions, false).into_iter().enumerate() {
        match times {
            Ok(times) => assert_near(times.mean, 2.0),
            Err(why) => assert_eq!((why, function % 2), (NoTimes::NotCalled, 1)),
        }
    }
}

/// Executions of random graphs, with loops of several entries too: the mean is the sum of the costs, divided by the calls.
fn executed() -> impl Strategy<Value = MeasuredFlow> {
    let edges = prop::collection::vec((0usize..9, 0usize..11), 8..24);
    (edges, prop::collection::vec(any::<u8>(), 40..400), prop::collection::vec(0u8..100, 9)).prop_map(
        |(edges, choices, costs)| {
            let mut all: Vec<FlowEdge> = Vec::new();
            for (from, to) in edges.into_iter().chain((0..9).map(|from| (from, 10))) {
                let to = Some(to).filter(|to| *to < 9);
                if !all.iter().any(|edge| edge.from == from && edge.to == to) {
                    all.push(FlowEdge { from, to, count: 0 });
                }
            }
            let mut function = MeasuredFlow {
                costs: costs.into_iter().map(f64::from).collect(),
                executions: vec![0; 9],
                entry: (0, 1),
                ..MeasuredFlow::default()
            };
            let mut at = 0;
            function.executions[0] = 1;
            for choice in choices {
                let mut ways: Vec<&mut FlowEdge> = all.iter_mut().filter(|edge| edge.from == at).collect();
                let count = ways.len();
                let way = &mut ways[usize::from(choice) % count];
                way.count += 1;
                at = way.to.unwrap_or_else(|| {
                    function.entry.1 += 1;
                    0
                });
                function.executions[at] += 1;
            }
            function.edges = all;
            function
        },
    )
}

proptest! {
    /// The counts of the paper's conditions determine all others, so they are never fewer or cheaper than those of a spanning tree.
    #[test]
    fn no_counters_are_cheaper_than_those_of_a_tree(function in executed()) {
        match function.compared_counters() {
            Ok(ComparedCounters { conditions, control, tree, .. }) => {
                prop_assert!(tree.counters <= control.counters && control.counters <= conditions.counters);
                let off = 1e-6 * control.increments.max(1.0);
                prop_assert!(tree.increments <= control.increments + off, "{tree:?} {control:?}");
                prop_assert!(control.increments <= conditions.increments + off);
            }
            Err(why) => prop_assert_eq!(why, NoTimes::Irreducible),
        }
    }

    #[test]
    fn means_are_events_by_calls(function in executed(), unused: bool) {
        let events: f64 = function.costs.iter().zip(&function.executions).map(|(cost, count)| cost * *count as f64).sum();
        let expected = events / function.entry.1 as f64;
        match program_times(&[function], unused).remove(0) {
            Ok(times) => {
                prop_assert!((times.mean - expected).abs() <= 1e-6 * expected.max(1.0), "{} is not {expected}", times.mean);
                prop_assert!(times.variance.equal >= 0.0 && times.variance.independent >= 0.0);
                let sum: f64 = times.shares.iter().map(|share| share.share.independent).sum();
                prop_assert!(times.variance.independent < 1e-6 || (sum - 1.0).abs() < 1e-6, "{sum}");
            }
            Err(why) => prop_assert_eq!(why, NoTimes::Irreducible),
        }
    }
}

/// A structured program.
#[derive(Clone, Debug)]
enum Part {
    Work(f64),
    /// Goes the first way with a probability.
    Either(f64, Box<[Part; 2]>),
    /// Runs once, and again as often as told by a fixed number or by a probability.
    Repeat(Result<u64, f64>, Box<Part>),
    Both(Box<[Part; 2]>),
}

/// A part as blocks.
struct Lowered {
    costs: Vec<f64>,
    edges: Vec<FlowEdge>,
    executions: Vec<u64>,
    /// Squares of the number of iterations, by header, with the number of entries.
    trips: Vec<(usize, f64, f64, f64)>,
}

impl Lowered {
    fn block(&mut self, cost: f64) -> usize {
        self.costs.push(cost);
        self.executions.push(0);
        self.costs.len() - 1
    }

    fn edge(&mut self, from: usize, to: Option<usize>) {
        self.edges.push(FlowEdge { from, to, count: 0 });
    }

    /// Adds the blocks of a part. Returns the first and the last one.
    fn add(&mut self, part: &Part) -> Laid {
        match part {
            Part::Work(cost) => {
                let block = self.block(*cost);
                Laid { first: block, last: block, way: Way::Work }
            }
            Part::Either(p, parts) => {
                let branch = self.block(1.0);
                let ways = [self.add(&parts[0]), self.add(&parts[1])];
                let join = self.block(0.0);
                for way in &ways {
                    self.edge(branch, Some(way.first));
                    self.edge(way.last, Some(join));
                }
                Laid { first: branch, last: join, way: Way::Either(*p, Box::new(ways)) }
            }
            Part::Repeat(times, part) => {
                let header = self.block(0.0);
                let body = self.add(part);
                let latch = self.block(2.0);
                let after = self.block(0.0);
                self.edge(header, Some(body.first));
                self.edge(body.last, Some(latch));
                self.edge(latch, Some(header));
                self.edge(latch, Some(after));
                self.trips.push((header, 0.0, 0.0, 0.0));
                Laid { first: header, last: after, way: Way::Repeat(*times, latch, Box::new(body)) }
            }
            Part::Both(parts) => {
                let both = [self.add(&parts[0]), self.add(&parts[1])];
                self.edge(both[0].last, Some(both[1].first));
                Laid { first: both[0].first, last: both[1].last, way: Way::Both(Box::new(both)) }
            }
        }
    }

    fn run(&mut self, block: usize) -> f64 {
        self.executions[block] += 1;
        self.costs[block]
    }

    fn pass(&mut self, from: usize, to: usize) {
        let edge = self.edges.iter_mut().find(|edge| edge.from == from && edge.to == Some(to)).expect("an edge");
        edge.count += 1;
    }

    /// Executes a part. Returns its time.
    fn execute(&mut self, laid: &Laid, random: &mut Random) -> f64 {
        match &laid.way {
            Way::Work => self.run(laid.first),
            Way::Either(p, ways) => {
                let way = &ways[usize::from(random.next() >= *p)];
                let mut time = self.run(laid.first);
                self.pass(laid.first, way.first);
                time += self.execute(way, random);
                self.pass(way.last, laid.last);
                time + self.run(laid.last)
            }
            Way::Repeat(times, latch, body) => {
                let (mut time, mut count) = (0.0, 0u64);
                loop {
                    time += self.run(laid.first);
                    self.pass(laid.first, body.first);
                    time += self.execute(body, random);
                    self.pass(body.last, *latch);
                    time += self.run(*latch);
                    count += 1;
                    let again = match times {
                        Ok(fixed) => count <= *fixed,
                        Err(p) => random.next() < *p,
                    };
                    if !again {
                        break;
                    }
                    self.pass(*latch, laid.first);
                }
                self.pass(*latch, laid.last);
                let trips = self.trips.iter_mut().find(|trips| trips.0 == laid.first).expect("a loop");
                let count = count as f64;
                (trips.1, trips.2, trips.3) = (trips.1 + 1.0, trips.2 + count, trips.3 + count * count);
                time + self.run(laid.last)
            }
            Way::Both(both) => {
                let time = self.execute(&both[0], random);
                self.pass(both[0].last, both[1].first);
                time + self.execute(&both[1], random)
            }
        }
    }
}

struct Laid {
    first: usize,
    last: usize,
    way: Way,
}

enum Way {
    Work,
    Either(f64, Box<[Laid; 2]>),
    Repeat(Result<u64, f64>, usize, Box<Laid>),
    Both(Box<[Laid; 2]>),
}

/// Numbers between 0 and 1 (xorshift64*).
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn part(&mut self, depth: u32) -> Part {
        let kind = self.next();
        if depth == 0 || kind < 0.15 {
            return Part::Work((self.next() * 100.0).floor());
        }
        let mut inner = || self.part(depth - 1);
        match kind {
            one if one < 0.5 => {
                let parts = Box::new([inner(), inner()]);
                Part::Either(0.05 + 0.9 * self.next(), parts)
            }
            two if two < 0.75 => {
                let body = Box::new(inner());
                let times = if self.next() < 0.5 { Ok((self.next() * 5.0) as u64) } else { Err(0.7 * self.next()) };
                Part::Repeat(times, body)
            }
            _ => Part::Both(Box::new([inner(), inner()])),
        }
    }
}

/// Programs whose branches and iterations do not depend on each other: the variance of single calls is the predicted one.
#[test]
fn single_calls_of_random_programs_vary_as_predicted() {
    const CALLS: usize = 100_000;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for _ in 0..20 {
        let part = random.part(4);
        let mut lowered = Lowered { costs: vec![], edges: vec![], executions: vec![], trips: vec![] };
        let laid = lowered.add(&part);
        let last = laid.last;
        let times: Vec<f64> = (0..CALLS).map(|_| lowered.execute(&laid, &mut random)).collect();
        lowered.edges.push(FlowEdge { from: last, to: None, count: CALLS as u64 });
        let variance = |(header, count, sum, squares): &(usize, f64, f64, f64)| {
            (*header, if *count > 0.0 { squares / count - (sum / count).powi(2) } else { 0.0 })
        };
        let function = MeasuredFlow {
            trips: lowered.trips.iter().map(variance).collect(),
            costs: lowered.costs,
            executions: lowered.executions,
            edges: lowered.edges,
            entry: (laid.first, CALLS as u64),
            calls: Vec::new(),
        };
        let predicted = times_of(function, false);
        let calls = CALLS as f64;
        let mean = times.iter().sum::<f64>() / calls;
        let moment = |power| times.iter().map(|time| (time - mean).powi(power)).sum::<f64>() / calls;
        let (measured, fourth) = (moment(2), moment(4));
        let error = ((fourth - measured * measured).max(0.0) / calls).sqrt();
        assert!((predicted.mean - mean).abs() <= 1e-6 * mean, "{} is not {mean}: {part:?}", predicted.mean);
        let off = (predicted.variance.independent - measured).abs();
        assert!(off <= 3.0 * error + 1e-6, "{} is not {measured} ± {error}: {part:?}", predicted.variance.independent);
    }
}

/// The paper's example: START, the header, and three branches of two ways each, of which the counts of four determine all others.
#[test]
fn counters_of_the_example() {
    let compared = example([7, 3], &[]).compared_counters().expect("counters");
    let cost = |counters, increments| CounterCost { counters, increments };
    assert_eq!(compared.blocks, cost(5, 10.0 + 7.0 + 3.0 + 9.0 + 1.0));
    // START, the header, and the ways of three branches: 1 + 10 + 10 + 7 + 3.
    assert_eq!(compared.conditions, cost(8, 31.0));
    // Left are START, an exit, and the rarer ways of both other branches: 3 + 1 + 1 + 0.
    assert_eq!(compared.control.counters, 4);
    assert_eq!(compared.tree.counters, 4);
    assert!((compared.control.increments - compared.tree.increments).abs() < 1e-9, "{compared:?}");
}
