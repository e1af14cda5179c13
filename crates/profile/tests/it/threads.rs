//! Traces of a thread over several functions: random programs that call each other, with signal handlers, exceptions and gaps.

use ingraft_model::token::Token;
use ingraft_model::{
    Block, BlockId, Cfg, Edge, EdgeId, EdgeKind as Kind, EdgeTarget, IndexVec, Key, Svma, WayIn, WayInReason,
};
use ingraft_profile::{NotTraced, ProbeAt, Probes, ThreadReplay, TraceStep, TracedFunction, Unknown};
use proptest::prelude::*;

fn start(n: usize) -> Svma {
    Svma(0x1000 + 16 * n as u64)
}

fn edge(from: usize, to: usize, kind: Kind) -> Edge {
    Edge { from: BlockId::at(from), to: EdgeTarget::Block(BlockId::at(to)), kind }
}

fn leave(from: usize) -> Edge {
    Edge { from: BlockId::at(from), to: EdgeTarget::Dynamic, kind: Kind::Return }
}

fn cfg(blocks: usize, mut edges: Vec<Edge>, pads: &[usize]) -> Cfg {
    edges.sort_unstable();
    edges.dedup();
    let pads = pads.iter().map(|pad| WayIn { at: start(*pad), reason: WayInReason::LandingPad });
    let mut ways_in: Vec<WayIn> = pads.chain([WayIn { at: start(0), reason: WayInReason::Entry }]).collect();
    ways_in.sort_unstable();
    ways_in.dedup();
    Cfg {
        blocks: (0..blocks).map(|n| Block { range: start(n)..start(n + 1), instructions: 1 }).collect(),
        edges: edges.into(),
        entry: Some(BlockId(0)),
        ways_in,
        unresolved: Vec::new(),
        ways_in_proven: Ok(()),
        ways_out_proven: Ok(()),
    }
}

/// A function: blocks that return, call, branch or jump, and perhaps a landing pad.
fn random_cfg() -> impl Strategy<Value = Cfg> {
    (2usize..9).prop_flat_map(|blocks| {
        let outs = prop::collection::vec((0u8..6, 0..blocks, 0..blocks), blocks);
        (outs, prop::option::of(1..blocks)).prop_map(move |(outs, pad)| {
            let mut edges = Vec::new();
            for (from, (kind, a, b)) in outs.into_iter().enumerate() {
                match kind {
                    0 => edges.push(leave(from)),
                    1 | 2 if from + 1 < blocks => edges.push(edge(from, from + 1, Kind::CallReturn)),
                    3 | 4 => edges.extend([edge(from, a, Kind::Taken), edge(from, b, Kind::FallThrough)]),
                    5 if from == 0 => {}
                    _ => edges.push(edge(from, a, Kind::Taken)),
                }
            }
            cfg(blocks, edges, &pad.into_iter().collect::<Vec<_>>())
        })
    })
}

/// A function with edges that cannot write tokens.
fn function() -> impl Strategy<Value = (Cfg, Probes)> {
    random_cfg().prop_flat_map(|cfg| {
        let able = prop::collection::vec(prop::bool::weighted(0.9), cfg.edges.len());
        able.prop_map(move |edges| {
            (cfg.clone(), Probes { edges: edges.into(), blocks: IndexVec::filled(true, cfg.blocks.len()) })
        })
    })
}

/// Code can run everywhere.
fn all(cfg: &Cfg) -> Probes {
    Probes { edges: IndexVec::filled(true, cfg.edges.len()), blocks: IndexVec::filled(true, cfg.blocks.len()) }
}

struct Frame {
    /// Index in [`Machine::activations`].
    id: usize,
    function: usize,
    at: BlockId,
    /// Edge of the call that is in progress.
    calling: Option<EdgeId>,
    /// Whether a signal handler lies above the frame.
    interrupted: bool,
    sp: u64,
}

/// Tokens that tell of an exception that a function catches which is not traced.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Catch {
    /// The beginning, and the stack pointer at the end.
    Told,
    /// The beginning.
    Untold,
}

/// Executes functions and writes their trace.
struct Machine<'a> {
    cfgs: &'a [Cfg],
    traced: &'a [TracedFunction],
    frames: Vec<Frame>,
    tokens: Vec<Token>,
    /// Steps in the order of the execution.
    steps: Vec<TraceStep>,
    /// Number of steps when the last token was written.
    told: usize,
    /// For each activation, in the order of their beginnings, its function and blocks.
    activations: Vec<(usize, Vec<BlockId>)>,
    /// Tokens of exceptions that end in functions that are not traced; `None` if there are none.
    catches: Option<Catch>,
}

impl Machine<'_> {
    fn place(&mut self, function: usize, place: ProbeAt) {
        if let Some(n) = self.traced[function].places().iter().position(|p| *p == place) {
            self.tokens.push(Token::Passage(n as u32));
            self.told = self.steps.len();
        }
    }

    fn arrive(&mut self, block: BlockId) {
        let depth = self.frames.len() as u32 - 1;
        let frame = self.frames.last_mut().expect("a frame");
        frame.at = block;
        let (function, id, sp) = (frame.function, frame.id, frame.sp - 16);
        self.activations[id].1.push(block);
        self.steps.push(TraceStep::Block { function: function as u32, block, depth });
        let cfg = &self.cfgs[function];
        if self.traced[function].places().contains(&ProbeAt::Block(block)) {
            if block != BlockId(0) && cfg.roots().contains(&block) {
                self.tokens.extend([Token::stack(sp), Token::Resume(function as u32)]);
            }
            self.place(function, ProbeAt::Block(block));
        }
    }

    fn enter(&mut self, function: usize) {
        let sp = self.frames.last().map_or(0x7fff_0000_0008, |frame| frame.sp - 0x40);
        self.steps.push(TraceStep::Enter { function: function as u32, depth: self.frames.len() as u32 });
        self.frames.push(Frame {
            id: self.activations.len(),
            function,
            at: BlockId(0),
            calling: None,
            interrupted: false,
            sp,
        });
        self.activations.push((function, Vec::new()));
        if self.catches.is_some() || self.cfgs[function].roots().len() > 1 {
            self.tokens.push(Token::stack(sp));
        }
        self.tokens.push(Token::Enter(function as u32));
        self.told = self.steps.len();
        self.arrive(BlockId(0));
    }

    fn leave(&mut self) {
        let depth = self.frames.len() as u32 - 1;
        let left = self.frames.pop().expect("a frame");
        self.steps.push(TraceStep::Leave { function: left.function as u32, depth });
    }

    /// Returns control to the innermost frame.
    fn resume(&mut self) {
        let Some(frame) = self.frames.last_mut() else { return };
        if std::mem::take(&mut frame.interrupted) {
            return;
        }
        let (function, edge) = (frame.function, frame.calling.take().expect("a call"));
        let Some(&Edge { to: EdgeTarget::Block(to), .. }) = self.cfgs[function].edges.get(edge) else { return };
        self.place(function, ProbeAt::Edge(edge));
        self.arrive(to);
    }

    /// Throws to the innermost landing pad above the last interruption.
    fn throw(&mut self) {
        let lowest = self.frames.iter().rposition(|frame| frame.interrupted).map_or(0, |n| n + 1);
        let pad = |frame: &Frame| self.cfgs[frame.function].roots().into_iter().find(|root| *root != BlockId(0));
        let lands = |n: &usize| self.frames[*n].calling.is_some() && pad(&self.frames[*n]).is_some();
        let Some(to) = (lowest..self.frames.len()).rev().find(lands) else { return };
        while self.frames.len() > to + 1 {
            self.leave();
        }
        let frame = self.frames.last_mut().expect("a frame");
        frame.calling = None;
        let pad = pad(frame).expect("a landing pad");
        self.arrive(pad);
    }

    /// Throws to a function that is not traced, which some activation above the last interruption has called.
    fn catch(&mut self, choice: usize) {
        let Some(catch) = self.catches else { return self.throw() };
        let lowest = self.frames.iter().rposition(|frame| frame.interrupted).map_or(0, |n| n + 1);
        let calling: Vec<usize> = (lowest..self.frames.len()).filter(|n| self.frames[*n].calling.is_some()).collect();
        if calling.is_empty() {
            return;
        }
        let to = calling[choice % calling.len()];
        self.tokens.push(Token::Leaving);
        while self.frames.len() > to + 1 {
            self.leave();
        }
        if catch == Catch::Told {
            self.tokens.extend([Token::stack(self.frames[to].sp - 0x40), Token::Unwound]);
            self.told = self.steps.len();
        }
    }

    fn step(&mut self, choice: u8) {
        let (choice, functions) = (usize::from(choice), self.cfgs.len());
        let Some(frame) = self.frames.last_mut() else { return self.enter(choice % functions) };
        let out: Vec<(EdgeId, &Edge)> = self.cfgs[frame.function].edges_from(frame.at).collect();
        // The callee of a call that is in progress is not traced: it calls back, throws or returns.
        if frame.calling.is_some() {
            match choice % 8 {
                0 | 4 if self.frames.len() < 12 => self.enter(choice / 8 % functions),
                1 => self.throw(),
                5 => self.catch(choice / 8),
                _ => self.resume(),
            }
            return;
        }
        let Some(&(n, edge)) = out.get(choice % out.len().max(1)) else {
            // A loop without a way out, or a call that never returns.
            frame.calling = None;
            return;
        };
        match (edge.kind, edge.to) {
            (Kind::CallReturn, _) => {
                frame.calling = Some(n);
                if choice / 4 % 2 == 0 && self.frames.len() < 12 {
                    self.enter(choice % functions);
                }
            }
            (_, EdgeTarget::Block(to)) => {
                let function = frame.function;
                self.place(function, ProbeAt::Edge(n));
                self.arrive(to);
            }
            (_, EdgeTarget::Outside(_) | EdgeTarget::Dynamic) => {
                let function = frame.function;
                self.place(function, ProbeAt::Edge(n));
                self.leave();
                self.resume();
            }
        }
    }

    fn interrupt(&mut self, function: usize) {
        if let Some(frame) = self.frames.last_mut() {
            frame.interrupted = true;
            self.enter(function);
        }
    }
}

fn replay(traced: &[TracedFunction], tokens: &[Token]) -> (Vec<TraceStep>, Unknown) {
    let (mut replay, mut steps) = (ThreadReplay::new(traced), Vec::new());
    tokens.iter().for_each(|token| replay.next(*token, &mut |step| steps.push(step)));
    (steps, replay.unknown())
}

/// The activations of steps, in the order of their beginnings.
fn activations(steps: &[TraceStep]) -> Vec<(usize, Vec<BlockId>)> {
    let (mut found, mut open): (Vec<(usize, Vec<BlockId>)>, Vec<usize>) = (Vec::new(), Vec::new());
    for step in steps {
        match step {
            TraceStep::Enter { function, depth } => {
                assert_eq!(*depth as usize, open.len());
                open.push(found.len());
                found.push((*function as usize, Vec::new()));
            }
            TraceStep::Block { function, block, depth } => {
                assert_eq!(*depth as usize + 1, open.len());
                let activation = &mut found[*open.last().expect("an activation")];
                assert_eq!(activation.0, *function as usize);
                activation.1.push(*block);
            }
            TraceStep::Leave { depth, .. } => {
                assert_eq!(*depth as usize + 1, open.len());
                open.pop();
            }
            TraceStep::Condition => {}
            TraceStep::Gap => panic!("no token was lost"),
        }
    }
    found
}

/// Number of blocks that a replay tells and that the execution does not have, if the replay tells a part of the blocks in the same order.
fn is_part(told: &[TraceStep], real: &[TraceStep]) -> u64 {
    let blocks = |steps: &[TraceStep]| -> Vec<(u32, BlockId)> {
        let one = |step: &TraceStep| match step {
            TraceStep::Block { function, block, .. } => Some((*function, *block)),
            TraceStep::Enter { .. } | TraceStep::Leave { .. } | TraceStep::Condition | TraceStep::Gap => None,
        };
        steps.iter().filter_map(one).collect()
    };
    let real = blocks(real);
    let mut rest = real.iter();
    blocks(told).iter().filter(|block| !rest.any(|real| real == *block)).count() as u64
}

/// Traced functions with their graphs; those that cannot be traced are left out.
fn traced(functions: Vec<(Cfg, Probes)>) -> (Vec<Cfg>, Vec<TracedFunction>) {
    let one = |(cfg, probes): (Cfg, Probes)| TracedFunction::new(&cfg, &probes).ok().map(|traced| (cfg, traced));
    functions.into_iter().filter_map(one).unzip()
}

fn machine<'a>(cfgs: &'a [Cfg], traced: &'a [TracedFunction]) -> Machine<'a> {
    Machine {
        cfgs,
        traced,
        frames: Vec::new(),
        tokens: Vec::new(),
        steps: Vec::new(),
        told: 0,
        activations: Vec::new(),
        catches: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_thread_is_regenerated(functions in prop::collection::vec(function(), 1..5),
                               choices in prop::collection::vec(any::<u8>(), 1..200)) {
        let (cfgs, traced) = traced(functions);
        prop_assume!(!cfgs.is_empty());
        let mut machine = machine(&cfgs, &traced);
        choices.iter().for_each(|choice| machine.step(*choice));
        let (steps, unknown) = replay(&traced, &machine.tokens);
        // The replay is ahead by the blocks that control was bound to reach.
        prop_assert_eq!(Unknown { ahead: 0, ..unknown }, Unknown::default());
        let certain = steps.len().min(machine.steps.len());
        prop_assert_eq!(&steps[..certain], &machine.steps[..certain]);
        let blocks = |steps: &[TraceStep]| steps.iter().filter(|step| matches!(step, TraceStep::Block { .. })).count() as u64;
        prop_assert!(blocks(&machine.steps) + unknown.ahead >= blocks(&steps));
        // Only steps after the last token may be missing.
        prop_assert!(steps.len() >= machine.told);
    }

    #[test]
    fn exceptions_that_end_elsewhere_are_regenerated(functions in prop::collection::vec(function(), 1..5),
                                                     choices in prop::collection::vec(any::<u8>(), 1..200)) {
        let (cfgs, traced) = traced(functions);
        prop_assume!(!cfgs.is_empty());
        let mut machine = machine(&cfgs, &traced);
        machine.catches = Some(Catch::Told);
        choices.iter().for_each(|choice| machine.step(*choice));
        let (steps, unknown) = replay(&traced, &machine.tokens);
        prop_assert_eq!(Unknown { ahead: 0, ..unknown }, Unknown::default());
        let certain = steps.len().min(machine.steps.len());
        prop_assert_eq!(&steps[..certain], &machine.steps[..certain]);
        prop_assert!(steps.len() >= machine.told);
    }

    #[test]
    fn exceptions_of_which_nothing_tells_the_end_are_told(functions in prop::collection::vec(function(), 1..5),
                                                          choices in prop::collection::vec(any::<u8>(), 1..200)) {
        let (cfgs, traced) = traced(functions);
        prop_assume!(!cfgs.is_empty());
        let mut machine = machine(&cfgs, &traced);
        machine.catches = Some(Catch::Untold);
        choices.iter().for_each(|choice| machine.step(*choice));
        let (steps, unknown) = replay(&traced, &machine.tokens);
        prop_assert_eq!(unknown.defects, 0);
        prop_assert!(is_part(&steps, &machine.steps) <= unknown.ahead);
    }

    #[test]
    fn signal_handlers_are_regenerated(functions in prop::collection::vec(function(), 1..5),
                                       choices in prop::collection::vec((any::<u8>(), 0u8..8), 1..200)) {
        let (cfgs, traced) = traced(functions);
        prop_assume!(!cfgs.is_empty());
        let mut machine = machine(&cfgs, &traced);
        for (choice, signal) in choices {
            if signal == 0 && machine.frames.len() < 12 {
                machine.interrupt(usize::from(choice) % cfgs.len());
            } else {
                machine.step(choice);
            }
        }
        let (steps, unknown) = replay(&traced, &machine.tokens);
        prop_assert_eq!(Unknown { ahead: 0, ..unknown }, Unknown::default());
        let found = activations(&steps);
        prop_assert_eq!(found.len(), machine.activations.len());
        let mut ahead = 0;
        for ((function, blocks), (real, passed)) in found.iter().zip(&machine.activations) {
            prop_assert_eq!(function, real);
            let common = blocks.len().min(passed.len());
            prop_assert_eq!(&blocks[..common], &passed[..common]);
            ahead += (blocks.len() - common) as u64;
        }
        prop_assert!(ahead <= unknown.ahead);
    }

    #[test]
    fn a_late_beginning_is_told(functions in prop::collection::vec(function(), 1..5), skipped in 0usize..100,
                                choices in prop::collection::vec(any::<u8>(), 1..200)) {
        let (cfgs, traced) = traced(functions);
        prop_assume!(!cfgs.is_empty());
        let mut machine = machine(&cfgs, &traced);
        // Steps that are in the trace only from some moment on.
        for (n, choice) in choices.iter().enumerate() {
            if n == skipped {
                machine.tokens.clear();
                machine.steps.clear();
            }
            machine.step(*choice);
        }
        let (steps, unknown) = replay(&traced, &machine.tokens);
        prop_assert_eq!(unknown.defects, 0);
        prop_assert!(is_part(&steps, &machine.steps) <= unknown.ahead);
    }

    #[test]
    fn any_tokens_are_taken(functions in prop::collection::vec(function(), 1..5), bytes in any::<Vec<u8>>()) {
        let (_, traced) = traced(functions);
        let (mut tokens, mut rest) = (Vec::new(), bytes.as_slice());
        while let [_, next @ ..] = rest {
            match Token::read(rest) {
                Ok(Some((token, length))) => {
                    tokens.push(token);
                    rest = &rest[length..];
                }
                Ok(None) | Err(_) => rest = next,
            }
        }
        replay(&traced, &tokens);
    }

    #[test]
    fn places_alone_make_the_same_function((cfg, probes) in function()) {
        if let Ok(traced) = TracedFunction::new(&cfg, &probes) {
            for place in traced.places() {
                let able = match place {
                    ProbeAt::Edge(edge) => probes.edges.get(*edge),
                    ProbeAt::Block(block) => probes.blocks.get(*block),
                };
                prop_assert_eq!(able, Some(&true), "{:?}", place);
            }
            let places = traced.places().to_vec();
            prop_assert!(TracedFunction::of(&cfg, places.clone()).is_ok());
            for n in 0..places.len() {
                let mut fewer = places.clone();
                fewer.remove(n);
                if let Ok(fewer) = TracedFunction::of(&cfg, fewer) {
                    prop_assert!(fewer.places().len() + 1 == places.len());
                }
            }
        }
    }
}

#[test]
fn most_random_functions_can_be_traced() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut traced = 0;
    for _ in 0..500 {
        let tree = function().new_tree(&mut runner).expect("a function");
        let (cfg, probes) = proptest::strategy::ValueTree::current(&tree);
        traced += usize::from(TracedFunction::new(&cfg, &probes).is_ok());
    }
    assert!(traced > 250, "{traced}");
}

#[test]
fn straight_code_writes_nothing_and_a_loop_one_byte() {
    // 0 -> 1 -> 1 or 2, and 2 returns.
    let cfg = cfg(
        3,
        vec![edge(0, 1, Kind::FallThrough), edge(1, 1, Kind::Taken), edge(1, 2, Kind::FallThrough), leave(2)],
        &[],
    );
    let probes = all(&cfg);
    let traced = [TracedFunction::new(&cfg, &probes).expect("a function")];
    assert_eq!(traced[0].places(), [ProbeAt::Edge(EdgeId(1)), ProbeAt::Edge(EdgeId(2))]);
    let tokens = [Token::Enter(0), Token::Passage(0), Token::Passage(0), Token::Passage(1)];
    let (steps, unknown) = replay(&traced, &tokens);
    let blocks = activations(&steps).remove(0).1;
    assert_eq!((blocks, unknown.skipped), ([0, 1, 1, 1, 2].map(BlockId).to_vec(), 0));
}

#[test]
fn gaps_and_foreign_tokens_are_told() {
    let cfg = cfg(3, vec![edge(0, 1, Kind::Taken), edge(0, 2, Kind::FallThrough), leave(1), leave(2)], &[]);
    let probes = all(&cfg);
    let traced = [TracedFunction::new(&cfg, &probes).expect("a function")];
    let tokens = [Token::Enter(0), Token::Gap, Token::Passage(0), Token::Enter(0), Token::Passage(9), Token::Enter(7)];
    let (steps, unknown) = replay(&traced, &tokens);
    assert_eq!(unknown, Unknown { skipped: 1, gaps: 1, defects: 2, ..Unknown::default() });
    let enter = [
        TraceStep::Enter { function: 0, depth: 0 },
        TraceStep::Block { function: 0, block: BlockId(0), depth: 0 },
        TraceStep::Gap,
    ];
    assert_eq!(steps, [enter.as_slice(), &enter, &[TraceStep::Gap]].concat());
}

#[test]
fn a_call_that_begins_in_the_middle_is_refused() {
    let mut cfg = cfg(2, vec![edge(0, 1, Kind::FallThrough), leave(1)], &[]);
    let probes = all(&cfg);
    cfg.ways_in.push(WayIn { at: start(1), reason: WayInReason::Called });
    assert_eq!(TracedFunction::new(&cfg, &probes).err(), Some(NotTraced::Block(BlockId(1))));
}

/// An exception whose end nothing tells leaves the inner one of two activations. Another activation begins deeper, and an exception lands in it.
#[test]
fn a_landing_in_a_later_activation_does_not_end_an_earlier_exception() {
    let mut cfg = cfg(3, vec![edge(0, 1, Kind::CallReturn), leave(1), leave(2)], &[2]);
    cfg.ways_in.sort_unstable();
    let probes = all(&cfg);
    let traced = [TracedFunction::new(&cfg, &probes).expect("a function")];
    assert_eq!(traced[0].places(), [ProbeAt::Edge(EdgeId(0)), ProbeAt::Block(BlockId(2))]);
    let enter = |sp| [Token::stack(sp), Token::Enter(0)];
    let lands = [Token::stack(0x7f00), Token::Resume(0), Token::Passage(1)];
    let before = [&enter(0x8fc8)[..], &enter(0x8f88), &[Token::Leaving], &enter(0x7f88), &lands].concat();
    let (steps, unknown) = replay(&traced, &before);
    assert_eq!((unknown, activations(&steps).len()), (Unknown::default(), 3));
    // The outer activation goes on, but the inner one could go on in the same way.
    let (steps, unknown) = replay(&traced, &[before.as_slice(), &[Token::Passage(0)]].concat());
    assert_eq!(unknown, Unknown { lost: 1, skipped: 1, ..Unknown::default() });
    assert_eq!(steps.last(), Some(&TraceStep::Gap));
}
