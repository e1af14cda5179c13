//! Points that are woven together with the copy of their function. Their code stands right at them in the ordinary copy, so no jump leads to it
//! and none back, and it is proven with the copy. It is that of any point with a plain count: the check of the shard, the way to the slow
//! routine, and the slot, through which snippets come and go later.

use ingraft_model::layout::OWNER;
use ingraft_model::{BlockId, Gpr, Offset, PointId, PointKind, ThreadIdentity};
use rustc_hash::FxHashMap;

use crate::code::arena::Arena;
use crate::code::block::{Back, CodeBuffer, EmitError, straddles};
use crate::code::body::{Held, PROBE, Probe, WAY_TO_SLOW, WovenBody};
use crate::code::environment::{CodegenError, Environment};
use crate::code::woven::{RemovalRecord, StackView, WovenMini, WovenPoint};
use crate::patch::body::{BodyCode, BodyPoint, BodyRequest};
use crate::patch::build::{Builder, RED_ZONE_WORDS};
use crate::patch::counting::{LOWER_STACK, RAISE_STACK};
use crate::patch::weave::Weave;
use crate::snippet::inline::InlinePoint;
use crate::snippet::slot::{self, Holds, Slot};

/// Registers that the check of the shard may use, best first: those that hold no argument, as for other points, and then the others.
const REGISTERS: [Gpr; 9] = [Gpr(0), Gpr(10), Gpr(11), Gpr(1), Gpr(2), Gpr(6), Gpr(7), Gpr(8), Gpr(9)];

/// Condition code of `je`.
const EQUAL: u8 = 4;

/// Data of a point that is woven together with the copy of its function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WithCopy {
    /// Number of the only snippet, by which it is removed again.
    pub id: u64,
    /// The point, with the registers that are free there.
    pub at: InlinePoint,
}

impl BodyPoint {
    /// Register for the check of the shard and displacement of the counter, if the point is woven together with the copy: it is in a block or at
    /// an edge, and has a plain count and a free register.
    pub(crate) fn with_copy(&self, env: &Environment) -> Option<(WithCopy, Gpr, u32)> {
        let ThreadIdentity::FsOffset(_) = env.identity else { return None };
        let (BodyCode::Count(counter), Some(with)) = (&self.code, self.with_copy) else { return None };
        let is_of_graph = matches!(self.point.kind(), PointKind::Block | PointKind::Edge);
        let right = is_of_graph && with.at.flags() && !with.at.is_moving() && *counter < env.data.counters();
        let r = REGISTERS.into_iter().find(|r| right && with.at.registers() >> r.0 & 1 != 0)?;
        Some((with, r, env.data.counter(*counter)))
    }
}

/// The points that are woven together with a copy, as its code needs them.
#[derive(Default)]
pub(super) struct PointsWithCopy {
    points: FxHashMap<PointId, PointCode>,
    /// Displacement of the thread's identity from the fs base, and of the owner in a shard.
    identity: (u32, u32),
}

/// The code of one of these points.
#[derive(Clone, Copy)]
struct PointCode {
    r: Gpr,
    counter: u32,
    /// First byte of the slow routine.
    slow: u64,
}

impl PointsWithCopy {
    /// The points of a request. Left out are those whose slow routine the arena lacks, and those of blocks that may run in the text.
    pub fn of(env: &Environment, arena: &Arena, request: &BodyRequest<'_>, exposed: &[BlockId]) -> Self {
        let body = request.body;
        let is_exposed = |at: Offset| {
            let block = body.block_at(body.function.offset(at.0));
            block.is_none_or(|block| exposed.binary_search(&block).is_ok())
        };
        let is_told = |point: &PointId| match *point {
            PointId::Edge { from, to, .. } => !is_exposed(from) && !is_exposed(to),
            PointId::Block(at) => !is_exposed(at),
            PointId::Entry | PointId::Exit(_) | PointId::CallBefore(_) | PointId::CallAfter(_) => false,
        };
        let code = |point: &BodyPoint| {
            let (_, r, counter) = point.with_copy(env).filter(|_| is_told(&point.point))?;
            Some((point.point, PointCode { r, counter, slow: arena.slow(r)?.range.start.0 }))
        };
        Self::new(env, request.points.iter().filter_map(code).collect())
    }

    /// The points of a copy that exists. Their counters are not known.
    pub fn known(env: &Environment, arena: &Arena, probes: &[Probe]) -> Self {
        let code = |probe: &Probe| match probe.holds {
            Held::Point(r) => Some((probe.point, PointCode { r, counter: 0, slow: arena.slow(r)?.range.start.0 })),
            Held::Nop | Held::Called | Held::Jump(_) | Held::Branch(..) => None,
        };
        Self::new(env, probes.iter().filter_map(code).collect())
    }

    fn new(env: &Environment, points: FxHashMap<PointId, PointCode>) -> Self {
        let identity = match env.identity {
            ThreadIdentity::FsOffset(offset) => offset,
            ThreadIdentity::FsBase | ThreadIdentity::Locked => return PointsWithCopy::default(),
        };
        PointsWithCopy { points, identity: (identity, env.data.displacement(OWNER)) }
    }

    /// Whether a point is one of these.
    pub fn has(&self, point: &PointId) -> bool {
        self.points.contains_key(point)
    }

    /// Takes points out.
    pub fn leave_out(&mut self, points: &[PointId]) {
        self.points.retain(|point, _| !points.contains(point));
    }

    /// Whether a point may stand at an address: a write that removes or changes it must lie on one page.
    pub fn fits(&self, point: &PointId, at: u64) -> bool {
        let Some(code) = self.points.get(point) else { return !straddles(at, PROBE as u64) };
        !straddles(at, PROBE as u64) && !straddles(Held::slot_of(code.r, at), slot::LEN)
    }

    /// Writes the code of a point, if it is one of these. A thread that has not begun it resumes at `original`. Returns what the place holds.
    pub fn emit(&self, out: &mut CodeBuffer, point: &PointId, original: u64) -> Result<Option<Held>, EmitError> {
        let Some(PointCode { r, counter, slow }) = self.points.get(point).copied() else { return Ok(None) };
        let (offset, owner) = self.identity;
        let at = Held::slot_of(r, out.here());
        out.put(&LOWER_STACK, Back::To(original));
        out.segment_absolute(0x64, 0x8b, r, false, offset, Back::StepOut);
        out.segment_absolute(0x65, 0x39, r, false, owner, Back::StepOut);
        out.jcc_short(EQUAL, at, Back::StepOut)?;
        debug_assert_eq!(out.here() + WAY_TO_SLOW, at);
        out.lea(r, at, Back::StepOut)?;
        out.jmp(slow, Back::StepOut)?;
        Slot { at, private: true, leave: at + slot::LEN, holds: Holds::Count(counter) }.emit(out, Back::StepOut)?;
        out.put(&RAISE_STACK, Back::StepOut);
        Ok(Some(Held::Point(r)))
    }
}

/// The points that are woven together with a copy, in the order of its probes.
#[expect(clippy::vec_box, reason = "points are large, and each is kept for itself")]
pub(super) fn woven(
    arena: &Arena,
    request: &BodyRequest<'_>,
    own: &PointsWithCopy,
    (body, out): (&WovenBody, &CodeBuffer),
) -> Vec<Box<WovenPoint>> {
    let of_request =
        |point: &BodyPoint| own.points.get(&point.point).and(point.with_copy).map(|with| (point.point, with));
    let mut requested: Vec<(PointId, WithCopy)> = request.points.iter().filter_map(of_request).collect();
    requested.sort_unstable_by_key(|(point, _)| *point);
    // It does not depend on the counter.
    let mut count = None;
    let point = |probe: &Probe| {
        let (slot, code) = (probe.slot()?, own.points.get(&probe.point)?);
        let with = requested.binary_search_by_key(&probe.point, |(point, _)| *point).ok()?;
        let (_, with) = requested.get(with)?;
        let slow = arena.slow(code.r)?.range.clone();
        let leave = slot.end.0;
        let plain = Slot { at: slot.start.0, private: true, leave, holds: Holds::Count(code.counter) };
        let count = *count.get_or_insert_with(|| plain.cost());
        let mini = WovenMini::in_slot(with.id, code.counter, count);
        // Nothing but the way to the slow routine lies between the check and the slot.
        let tail = probe.next().copy;
        let check = out.cost(probe.copy.0, slot.start.0 - WAY_TO_SLOW) + out.cost(leave, tail.0);
        Some(Box::new(WovenPoint {
            kind: probe.point.kind(),
            resume: Some(probe.original),
            stack: StackView::FUNCTION,
            at: probe.copy,
            function: body.function,
            first: None,
            base: probe.copy,
            slot: slot.start,
            leave: slot.end,
            tail,
            tail_end: tail,
            home: tail,
            returns_to: None,
            scratch: Some(code.r),
            rax_free: with.at.registers() & 1 != 0,
            pushed: RED_ZONE_WORDS,
            cost: check,
            minis: vec![mini],
            inner: Vec::new(),
            host: None,
            probe: Some(*probe),
            redirected: Vec::new(),
            rooms: Vec::new(),
            // The code is a part of the copy. It has no range of its own, and the address of the slot as its key.
            removal: RemovalRecord {
                text: Vec::new(),
                moves: Vec::new(),
                step_out: vec![slow],
                code: slot.start..slot.start,
            },
        }))
    };
    body.probes.iter().filter_map(point).collect()
}

/// Writes the slow routines that points need which are woven together with these copies, unless the arena has them. Afterwards
/// [`crate::weave_bodies_on`] finds them there. [`crate::verify::verify_weave`] proves the result, which has no points.
pub fn share_slow_routines(
    env: &Environment,
    arena: &mut Arena,
    requests: &[BodyRequest<'_>],
) -> Result<Weave, CodegenError> {
    env.check()?;
    let points = requests.iter().flat_map(|request| request.points);
    let needed = points.filter_map(|point| point.with_copy(env)).fold(0u16, |mask, (_, r, _)| mask | 1 << r.0);
    let mut builder = Builder::new(env, arena, false);
    for r in REGISTERS.into_iter().filter(|r| needed >> r.0 & 1 != 0) {
        match builder.slow(r) {
            // Without the routine, the points are woven later.
            Ok(_) | Err(EmitError::ArenaFull | EmitError::OutOfReach | EmitError::Unshared) => {}
            Err(EmitError::Codegen(e)) => return Err(e),
        }
    }
    Ok(Weave { plan: builder.plan, woven: Vec::new() })
}
