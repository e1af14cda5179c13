//! Positions of threads in functions whose blocks and edges are counted, by their program counters.
//!
//! A thread in the code of a point has or has not executed the increment there, so a position says which edges were counted.

use ingraft_codegen::{Held as Instruction, Probe, WovenBody, WovenPoint};
use ingraft_model::machine::{JUMP, SHORT_JUMP};
use ingraft_model::{Avma, AvmaRange, EdgeKind, FunctionId, PointId, PointKind, TextWrite, Tid};
use ingraft_process::{HeldThreads, Visitor};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::weaving::plan::Woven;
use crate::weaving::wanted::WantedPoints;

/// Largest number of jumps from a springboard to the code of a point: the springboard and its island.
const HOPS: usize = 3;

/// Position of a thread. Blocks are named by their original first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphPosition {
    /// At this address, which is at no springboard, and in no code of a function with counters.
    Text(Avma),
    /// The edge to this block was counted, the arrival at it was not.
    Arrival(Avma),
    /// In this block: its arrival was counted, and no edge that leaves it.
    Block(Avma),
    /// Control has left the first block for the second one, whose edge was not counted.
    Left(Avma, Avma),
    /// At this block behind a call, at an edge that was not counted yet. The run has not begun.
    Before(Avma),
    /// It is not known which counters were incremented.
    Unknown,
}

/// Position of a thread, and what it has executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPosition {
    /// Position, which tells what was counted.
    pub place: GraphPosition,
    /// The next instruction of the function, by its original address; `None` if all of the block was executed, and a call has not begun.
    pub next: Option<Avma>,
}

/// Generated code of one kind.
#[derive(Clone, Copy, Debug)]
enum GeneratedCode<'w> {
    Body(&'w WovenBody),
    Point(&'w WovenPoint),
}

/// The generated code of a target, by address.
#[derive(Debug)]
pub struct CodeMap<'w> {
    code: Vec<(AvmaRange, GeneratedCode<'w>)>,
    /// Blocks that run in the text up to a call, each with the position of a thread that has not executed the call; sorted.
    called: Vec<(AvmaRange, GraphPosition)>,
    /// Springboards and islands, by their first bytes.
    jumps: FxHashMap<Avma, &'w TextWrite>,
    arenas: Vec<AvmaRange>,
    /// Code in which threads wait for the engine, in functions without other code.
    waiting: Vec<AvmaRange>,
}

impl<'w> CodeMap<'w> {
    /// Lists the code of points and of copies.
    pub fn new(woven: &'w Woven) -> Self {
        let (mut code, mut called, mut jumps) = (Vec::new(), Vec::new(), FxHashMap::default());
        for body in woven.copied() {
            called.extend(body.called.iter().map(|range| (range.clone(), before_call(body, range.start))));
            code.extend(body.records().map(|record| (record.code.clone(), GeneratedCode::Body(body))));
            jumps.extend(body.removal.text.iter().map(|write| (write.at, write)));
        }
        for (_, point) in woven.points() {
            // The code of other points is a part of the copy of their function.
            if !point.is_with_copy() {
                code.push((point.removal.code.clone(), GeneratedCode::Point(point)));
            }
            jumps.extend(point.removal.text.iter().map(|write| (write.at, write)));
        }
        code.sort_unstable_by_key(|(range, _)| range.start);
        called.sort_unstable_by_key(|(range, _)| range.start);
        CodeMap { code, called, jumps, arenas: woven.arenas(), waiting: woven.waiting_routines() }
    }

    /// Position of a thread at an address.
    pub fn find(&self, pc: Avma) -> GraphPosition {
        self.spot(pc).place
    }

    /// Position of a thread at an address, and what it has executed.
    pub fn spot(&self, pc: Avma) -> ThreadPosition {
        let mut at = pc;
        for _ in 0..HOPS {
            let Some(target) = self.jumps.get(&at).and_then(|write| jump_target(write)) else { break };
            at = target;
        }
        match self.code_at(at) {
            // The code of a point has done a part of what it does.
            Some(GeneratedCode::Body(body)) if body.is_within_code(at) => {
                ThreadPosition { place: GraphPosition::Unknown, next: None }
            }
            Some(GeneratedCode::Body(body)) => {
                let at = body.in_ordinary(at);
                ThreadPosition { place: in_body(body, at), next: next_in_body(body, at) }
            }
            Some(GeneratedCode::Point(point)) => {
                ThreadPosition { place: in_point(point, at), next: next_in_point(point) }
            }
            None if at == pc && !self.arenas.iter().any(|arena| arena.contains(&pc)) => {
                ThreadPosition { place: self.before_call_at(pc).unwrap_or(GraphPosition::Text(pc)), next: Some(pc) }
            }
            None if self.waiting.iter().any(|routine| routine.contains(&pc)) => {
                ThreadPosition { place: GraphPosition::Text(pc), next: None }
            }
            None => ThreadPosition { place: GraphPosition::Unknown, next: None },
        }
    }

    /// Whether a springboard or an island begins at an address.
    pub fn leads(&self, at: Avma) -> bool {
        self.jumps.contains_key(&at)
    }

    /// Whether an address is in the text, or in the copy of a function and not in the code of a point.
    fn is_outside_points(&self, pc: Avma) -> bool {
        match self.code_at(pc) {
            Some(GeneratedCode::Body(body)) => !body.is_within_code(pc) && !body.is_within_point(pc),
            Some(GeneratedCode::Point(_)) => false,
            None => !self.arenas.iter().any(|arena| arena.contains(&pc)),
        }
    }

    /// Position of a thread in the text of a block that runs there up to its call.
    fn before_call_at(&self, at: Avma) -> Option<GraphPosition> {
        let after = self.called.partition_point(|(range, _)| range.start <= at);
        let (range, place) = self.called.get(after.checked_sub(1)?)?;
        range.contains(&at).then_some(*place)
    }

    fn code_at(&self, at: Avma) -> Option<GeneratedCode<'w>> {
        let after = self.code.partition_point(|(range, _)| range.start <= at);
        let (range, code) = self.code.get(after.checked_sub(1)?)?;
        range.contains(&at).then_some(*code)
    }
}

/// Target of a jump that the engine has written to the text; `None` for other writes, such as the displacement of a call.
fn jump_target(removal: &TextWrite) -> Option<Avma> {
    match removal.old_bytes() {
        [JUMP, a, b, c, d, ..] => Some(removal.at.offset(5 + i64::from(i32::from_le_bytes([*a, *b, *c, *d])))),
        [SHORT_JUMP, a, ..] => Some(removal.at.offset(2 + i64::from(a.cast_signed()))),
        _ => None,
    }
}

/// Position of a thread at an instruction of a copy.
fn in_body(body: &WovenBody, at: Avma) -> GraphPosition {
    let nearest = |of: &dyn Fn(PointKind) -> bool| {
        let before = body.probes.iter().filter(|probe| probe.copy <= at && of(probe.point.kind()));
        before.max_by_key(|probe| probe.copy)
    };
    let is_counted = |kind| matches!(kind, PointKind::Block | PointKind::Edge);
    let called = body.blocks.iter().filter(|way| way.copy <= at && body.called_at(way.original).is_some());
    let called = called.max_by_key(|way| way.copy);
    let last = nearest(&|_| true);
    if let Some(way) = called.filter(|way| last.is_none_or(|last| last.copy < way.copy)) {
        return before_call(body, way.original);
    }
    let Some(last) = last else { return GraphPosition::Unknown };
    // A return or a call belongs to the block before it.
    let of_block = match last.point.kind() {
        PointKind::Exit | PointKind::CallBefore => nearest(&is_counted),
        PointKind::Entry | PointKind::CallAfter | PointKind::Block | PointKind::Edge => Some(last),
    };
    match of_block {
        // The count of a point that was woven together with the copy is its slot.
        Some(probe) if at <= probe.slot().map_or(probe.copy, |slot| slot.start) => before(probe, body.function),
        Some(probe) => after(probe, body.function),
        None => GraphPosition::Unknown,
    }
}

/// The next instruction of a thread at an instruction of a copy. Each instruction of a copy has a resume address.
fn next_in_body(body: &WovenBody, at: Avma) -> Option<Avma> {
    let before = body.removal.moves.iter().filter(|to| to.from <= at).max_by_key(|to| to.from)?;
    // Where a call leads to the copy, a thread in it resumes at the callee.
    let is_called =
        |probe: &Probe| probe.holds == Instruction::Called && probe.original == before.to && probe.copy <= before.from;
    (!body.probes.iter().any(is_called)).then_some(before.to)
}

/// The next instruction of a thread in the code of a point: nothing of the block was executed, or all of it and the call.
fn next_in_point(point: &WovenPoint) -> Option<Avma> {
    match &point.probe {
        Some(probe) => (probe.holds != Instruction::Called).then_some(probe.at(point.function)),
        None => point.resume,
    }
}

/// Position of a thread that is about to execute the call at the end of a block, which leads to the block's probes.
fn before_call(body: &WovenBody, block: Avma) -> GraphPosition {
    let is_own = |probe: &Probe| matches!(probe.point, PointId::Block(_) | PointId::Edge { .. });
    let is_called = |probe: &Probe| probe.holds == Instruction::Called && probe.at(body.function) == block;
    let its = body.probes.iter().filter(|probe| is_own(probe) && is_called(probe));
    its.min_by_key(|probe| probe.copy).map_or(GraphPosition::Unknown, |probe| before(probe, body.function))
}

/// Position of a thread at a probe in the copy of a function that begins at `function`.
fn before(probe: &Probe, function: Avma) -> GraphPosition {
    let at = probe.at(function);
    match (probe.point, probe.holds) {
        (PointId::CallAfter(_) | PointId::Edge { kind: EdgeKind::CallReturn, .. }, _) => GraphPosition::Before(at),
        (PointId::Entry | PointId::Block(_), _) => GraphPosition::Arrival(at),
        (PointId::Edge { from, .. }, Instruction::Jump(_) | Instruction::Branch(..)) => {
            GraphPosition::Block(function.offset(from.0))
        }
        (PointId::Edge { from, .. }, Instruction::Nop | Instruction::Called | Instruction::Point(_)) => {
            GraphPosition::Left(function.offset(from.0), at)
        }
        (PointId::Exit(_) | PointId::CallBefore(_), _) => GraphPosition::Unknown,
    }
}

/// Position of a thread that a probe has led to its point, and whose passage was not counted.
fn at_point(probe: &Probe, function: Avma) -> GraphPosition {
    match before(probe, function) {
        GraphPosition::Block(from) => GraphPosition::Left(from, probe.at(function)),
        place @ (GraphPosition::Text(_)
        | GraphPosition::Arrival(_)
        | GraphPosition::Left(..)
        | GraphPosition::Before(_)
        | GraphPosition::Unknown) => place,
    }
}

/// Position of a thread behind a probe and before the next one.
fn after(probe: &Probe, function: Avma) -> GraphPosition {
    let at = probe.at(function);
    match (probe.point, probe.holds) {
        (PointId::CallAfter(_), _) => GraphPosition::Before(at),
        (PointId::Entry, _) => GraphPosition::Arrival(at),
        (PointId::Block(_), _) => GraphPosition::Block(at),
        (PointId::Edge { from, .. }, Instruction::Jump(_) | Instruction::Branch(..)) => {
            GraphPosition::Block(function.offset(from.0))
        }
        (PointId::Edge { .. }, Instruction::Nop | Instruction::Called | Instruction::Point(_)) => {
            GraphPosition::Arrival(at)
        }
        (PointId::Exit(_) | PointId::CallBefore(_), _) => GraphPosition::Unknown,
    }
}

/// Position of a thread in the code of a point.
fn in_point(point: &WovenPoint, at: Avma) -> GraphPosition {
    // The increment is the slot itself, or code between the slot and `leave`.
    let is_passed = (point.leave..point.tail_end).contains(&at);
    if at > point.slot && !is_passed {
        return GraphPosition::Unknown;
    }
    match (&point.probe, point.kind) {
        (Some(probe), PointKind::Edge) if is_passed => GraphPosition::Arrival(probe.at(point.function)),
        (Some(probe), PointKind::Block) if is_passed => GraphPosition::Block(probe.at(point.function)),
        (Some(probe), PointKind::Entry | PointKind::CallAfter) if is_passed => after(probe, point.function),
        (Some(probe), PointKind::Edge | PointKind::Block | PointKind::Entry | PointKind::CallAfter) => {
            at_point(probe, point.function)
        }
        (None, PointKind::Block) => {
            let Some(start) = point.resume else { return GraphPosition::Unknown };
            if is_passed { GraphPosition::Block(start) } else { GraphPosition::Arrival(start) }
        }
        (None, PointKind::Edge | PointKind::Entry | PointKind::CallAfter)
        | (_, PointKind::Exit | PointKind::CallBefore) => GraphPosition::Unknown,
    }
}

/// Program counters of all threads in one stop.
#[derive(Debug, Default)]
pub struct ProgramCounters {
    /// Program counters at known positions, those in signal frames included, each with its thread.
    pub counters: Vec<(Tid, Avma)>,
    /// Threads of the others: it is not known what was counted.
    pub unknown: Vec<Tid>,
    /// All threads that were held.
    pub threads: Vec<Tid>,
    /// Stack pointers of the threads, as far as they are known.
    pub stack_pointers: FxHashMap<Tid, Avma>,
}

/// Notes where all threads are in the stop in which code comes into some of its functions. Without functions it notes nothing.
#[derive(Debug, Default)]
pub struct Observer {
    /// The functions.
    pub functions: FxHashSet<FunctionId>,
    /// The threads; `None` before that stop.
    pub seen: Option<ProgramCounters>,
}

impl Observer {
    /// Whether a change weaves code into one of the functions.
    pub fn concerns(&self, wanted: &[WantedPoints<'_>]) -> bool {
        wanted.iter().any(|w| self.functions.contains(&w.function))
    }
}

/// Notes the positions of all threads in a stop.
pub struct PositionVisitor<'o> {
    map: CodeMap<'o>,
    /// Whether counters are being added, so that positions in the code of points are not known.
    inserting: bool,
    /// A visitor of the same stop.
    other: Option<&'o mut dyn Visitor>,
    /// Called in the stop.
    read: Option<&'o mut (dyn FnMut() + Send)>,
    seen: ProgramCounters,
}

impl<'o> PositionVisitor<'o> {
    /// A visitor of an insertion, together with another visitor.
    pub fn of_insertion(map: CodeMap<'o>, other: Option<&'o mut dyn Visitor>) -> Self {
        PositionVisitor { map, inserting: true, other, read: None, seen: ProgramCounters::default() }
    }

    /// A visitor of a query, which calls `read` while all threads are held.
    pub fn of_query(map: CodeMap<'o>, read: &'o mut (dyn FnMut() + Send)) -> Self {
        PositionVisitor { map, inserting: false, other: None, read: Some(read), seen: ProgramCounters::default() }
    }

    /// The threads that were seen.
    pub fn seen(self) -> ProgramCounters {
        self.seen
    }

    fn is_known(&self, pc: Avma) -> bool {
        if self.inserting { self.map.is_outside_points(pc) } else { self.map.find(pc) != GraphPosition::Unknown }
    }
}

impl Visitor for PositionVisitor<'_> {
    fn knows(&self, pc: Avma) -> bool {
        self.is_known(pc) && self.other.as_deref().is_none_or(|other| other.knows(pc))
    }

    fn visit(&mut self, held: &mut HeldThreads<'_>) {
        if let Some(read) = &mut self.read {
            read();
        }
        let (counters, unknown): (Vec<_>, Vec<_>) = held.program_counters().partition(|(_, pc)| self.is_known(*pc));
        let threads = held.threads().iter().map(|thread| thread.tid).collect();
        let unknown = unknown.into_iter().map(|(tid, _)| tid).collect();
        self.seen = ProgramCounters { counters, unknown, threads, stack_pointers: held.stack_pointers().collect() };
        if let Some(other) = &mut self.other {
            other.visit(held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ingraft_codegen::{RemovalRecord, Way};
    use ingraft_model::{Gpr, IndexVec, Offset};

    const CALL: EdgeKind = EdgeKind::CallReturn;

    /// A copy at 0x100 of a function at 0x10 with probes that are five bytes long: the entry, the first block, a call at 0x18 that returns to a
    /// block at 0x20, and that block, whose return is at 0x28.
    fn body() -> WovenBody {
        let edge = PointId::Edge { from: Offset(0), to: Offset(0x10), kind: CALL };
        let points = [
            (0x100, 0x10, PointId::Entry),
            (0x105, 0x10, PointId::Block(Offset(0))),
            (0x112, 0x18, PointId::CallBefore(Offset(8))),
            (0x120, 0x20, PointId::CallAfter(Offset(0x10))),
            (0x125, 0x20, edge),
            (0x12a, 0x20, PointId::Block(Offset(0x10))),
            (0x137, 0x28, PointId::Exit(Offset(0x18))),
        ];
        let probe = |(copy, original, point): (u64, u64, PointId)| {
            let home = Way { copy: Avma(0x18), original: Avma(0x18) };
            let calls = point.kind() == PointKind::CallBefore;
            let holds = if calls { Instruction::Jump(home) } else { Instruction::Nop };
            Probe { point, original: Avma(original), copy: Avma(copy), bytes: [0; 5], holds }
        };
        let mut probes: Vec<Probe> = points.into_iter().map(probe).collect();
        probes.sort_unstable_by_key(|probe| probe.point);
        WovenBody {
            function: Avma(0x10),
            blocks: IndexVec::default(),
            entry: None,
            probes,
            exposed: Vec::new(),
            called: Vec::new(),
            why_exposed: None,
            counting: None,
            removal: RemovalRecord { code: Avma(0x100)..Avma(0x140), ..RemovalRecord::default() },
        }
    }

    /// The same function, whose second block is a call that leads to the copy at 0x130. The edge from the first call is the only one to the
    /// block if `only`.
    fn called_body(only: bool) -> WovenBody {
        let mut body = body();
        body.probes.retain(|probe| probe.at(Avma(0x10)) < Avma(0x20));
        let second = Offset(0x10);
        let edge = only.then_some(PointId::Edge { from: Offset(0), to: second, kind: CALL });
        let points = edge.into_iter().chain([PointId::Block(second), PointId::CallBefore(second)]);
        body.probes.extend((0x130..).step_by(5).zip(points).map(|(copy, point)| Probe {
            point,
            original: Avma(0x999),
            copy: Avma(copy),
            bytes: [0; 5],
            holds: Instruction::Called,
        }));
        body.probes.sort_unstable_by_key(|probe| probe.point);
        let way = |copy, original| Way { copy: Avma(copy), original: Avma(original) };
        body.blocks = vec![way(0x105, 0x10), way(0x120, 0x20)].into();
        body.called = vec![Avma(0x20)..Avma(0x25)];
        body.removal.code = Avma(0x100)..Avma(0x144);
        body
    }

    #[test]
    fn positions_before_a_call_that_leads_to_the_copy() {
        let (first, second) = (GraphPosition::Block(Avma(0x10)), GraphPosition::Block(Avma(0x20)));
        let arrival = GraphPosition::Arrival(Avma(0x20));
        for (only, places) in [
            (
                false,
                [
                    (0x11f, first),
                    (0x120, arrival),
                    (0x12a, arrival),
                    (0x130, arrival),
                    (0x135, second),
                    (0x13a, second),
                ],
            ),
            (
                true,
                [
                    (0x11f, first),
                    (0x120, GraphPosition::Before(Avma(0x20))),
                    (0x130, GraphPosition::Before(Avma(0x20))),
                    (0x135, arrival),
                    (0x13a, second),
                    (0x13f, second),
                ],
            ),
        ] {
            let body = called_body(only);
            for (at, place) in places {
                assert_eq!(in_body(&body, Avma(at)), place, "at {at:#x}");
            }
            assert_eq!(before_call(&body, Avma(0x20)), if only { GraphPosition::Before(Avma(0x20)) } else { arrival });
        }
    }

    #[test]
    fn positions_in_a_point_that_was_woven_together_with_the_copy() {
        let mut body = body();
        body.probes.retain(|probe| probe.point == PointId::Block(Offset(0)));
        body.probes[0].holds = Instruction::Point(Gpr(0));
        let slot = body.probes[0].slot().expect("the slot of a point");
        let (first, next) = (body.probes[0].copy.0, body.probes[0].next().copy.0);
        for at in first..=slot.start.0 {
            assert_eq!(in_body(&body, Avma(at)), GraphPosition::Arrival(Avma(0x10)), "at {at:#x}");
            assert_eq!(body.is_within_point(Avma(at)), at != first, "at {at:#x}");
        }
        for at in [slot.end.0, next] {
            assert_eq!(in_body(&body, Avma(at)), GraphPosition::Block(Avma(0x10)), "at {at:#x}");
            assert_eq!(body.is_within_point(Avma(at)), at != next, "at {at:#x}");
        }
    }

    #[test]
    fn positions_in_a_copy() {
        let body = body();
        let (first, second) = (GraphPosition::Block(Avma(0x10)), GraphPosition::Block(Avma(0x20)));
        for (at, place) in [
            (0x100, GraphPosition::Arrival(Avma(0x10))),
            (0x105, GraphPosition::Arrival(Avma(0x10))),
            (0x10a, first),
            (0x112, first),
            (0x120, GraphPosition::Before(Avma(0x20))),
            (0x125, GraphPosition::Before(Avma(0x20))),
            (0x12a, GraphPosition::Arrival(Avma(0x20))),
            (0x12f, second),
            (0x137, second),
            (0x13c, second),
        ] {
            assert_eq!(in_body(&body, Avma(at)), place, "at {at:#x}");
        }
    }
}
