//! Woven functions as values: the copy of a whole function in an arena, and the places in it where points can be woven.

use std::borrow::Cow;

use ingraft_model::machine::ENDBR_LEN;
use ingraft_model::{
    Avma, AvmaRange, BlockId, FreeRegisters, Gpr, IndexVec, Key, Offset, PatchPlan, PcMove, PointId, PointKind,
    Refusal, Site, SiteKind, TextWrite,
};

use crate::code::block::{jmp_bytes, text_write};
use crate::code::woven::{RemovalRecord, StackView, WovenPoint};

/// Length in bytes of the jump that leads from a probe to the code of a point.
pub(crate) const PROBE: usize = 5;

/// Instruction at a probe that carries no point: `nop dword [rax+rax+0]`.
pub(crate) const PROBE_NOP: [u8; PROBE] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Length in bytes of `lea rsp, [rsp - 128]`, with which the code of a point in a copy begins: below lies what the function keeps there.
const LOWER: u64 = 5;
/// Length in bytes of `lea rsp, [rsp + 128]`, with which this code ends.
const RAISE: u64 = 8;
/// Length in bytes of a slot.
const SLOT: u64 = 9;

/// Length in bytes of `lea r, [slot]` and of the jump to the slow routine, which lie right before the slot. A short branch leads over them after
/// the comparison of the thread with the owner of its shard.
pub(crate) const WAY_TO_SLOW: u64 = 12;

/// Five bytes in the copy of a function that a point may overwrite with a jump to its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Point that the probe stands for.
    pub point: PointId,
    /// Resume address in the text of a thread that is about to execute the probe; at [`Held::Called`], the first byte of the callee.
    pub original: Avma,
    /// First byte of the probe.
    pub copy: Avma,
    /// Bytes of the probe without a point.
    pub bytes: [u8; PROBE],
    /// Instruction at the probe.
    pub holds: Held,
}

/// Instruction at a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Held {
    /// A nop of five bytes.
    Nop,
    /// A nop of five bytes to which a call in the text leads: the return address is pushed, and the callee has not begun.
    Called,
    /// A jump of five bytes.
    Jump(Way),
    /// A conditional jump of six bytes. The second field is the way of a thread that does not take it.
    Branch(Way, Way),
    /// The code of a point that was woven together with the copy: the check of the shard in this register, and the slot. At a branch, it is on
    /// the way of a thread that has taken it.
    Point(Gpr),
}

impl Held {
    /// Address of the slot in the code of a point that begins at `at` and was woven together with the copy.
    pub(crate) const fn slot_of(r: Gpr, at: u64) -> u64 {
        let compare = if r.0 < 8 { 8 } else { 9 };
        at + LOWER + 2 * compare + 2 + WAY_TO_SLOW
    }
}

/// Address at which control continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Way {
    /// Address in the copy.
    pub copy: Avma,
    /// Equivalent address in the text.
    pub original: Avma,
}

impl Probe {
    /// Addresses that are equivalent while the copy stays: those in the text, each with the one in the copy.
    pub(crate) fn ways(&self) -> impl Iterator<Item = Way> {
        let own = Way { copy: self.copy, original: self.original };
        let (first, second) = match self.holds {
            Held::Nop | Held::Called | Held::Point(_) => (Some(self.next()), None),
            Held::Jump(way) => (Some(way), None),
            Held::Branch(taken, next) => (Some(taken), Some(next)),
        };
        std::iter::once(own).chain(first).chain(second)
    }

    /// Address in the copy that is equivalent to `to`, an address in the text at which a thread resumes that leaves the code of a point.
    pub(crate) fn in_copy(&self, to: Avma) -> Avma {
        self.ways().find(|way| way.original == to).map_or(to, |way| way.copy)
    }

    /// Where control continues that passes the probe without a jump.
    pub fn next(&self) -> Way {
        match self.holds {
            Held::Nop | Held::Called => Way { copy: self.copy.offset(PROBE as i64), original: self.original },
            Held::Point(r) => Way { copy: Avma(Held::slot_of(r, self.copy.0) + SLOT + RAISE), original: self.original },
            Held::Jump(to) => to,
            Held::Branch(_, next) => next,
        }
    }

    /// The slot of the point that was woven together with the copy; `None` if there is none.
    pub fn slot(&self) -> Option<AvmaRange> {
        match self.holds {
            Held::Point(r) => {
                let at = Held::slot_of(r, self.copy.0);
                Some(Avma(at)..Avma(at + SLOT))
            }
            Held::Nop | Held::Called | Held::Jump(_) | Held::Branch(..) => None,
        }
    }

    /// Whether a thread at an address is in the code of the point that was woven together with the copy, and not at its first instruction.
    pub fn is_within(&self, at: Avma) -> bool {
        self.slot().is_some() && self.copy < at && at < self.next().copy
    }

    /// Address in the text of the point, in a function that begins at `function`: at an entry, that of the block to which callers come.
    pub fn at(&self, function: Avma) -> Avma {
        self.point.offset().map_or(self.original, |at| function.offset(at.0))
    }

    /// Address at which a thread has arrived at the point and has passed the probe, if it must run the snippets nevertheless: it is about to
    /// leave the function, or to make the call.
    pub fn passed(&self) -> Option<Avma> {
        match (self.point.kind(), self.holds) {
            (PointKind::Exit, Held::Nop) | (PointKind::CallBefore, _) => Some(self.next().copy),
            (PointKind::Exit, Held::Called | Held::Jump(_) | Held::Branch(..) | Held::Point(_))
            | (PointKind::Entry | PointKind::CallAfter | PointKind::Block | PointKind::Edge, _) => None,
        }
    }

    /// Whether a point in the text can move to the probe. Where the return address is pushed, a thread that has run the snippets of a point
    /// before the call has no equivalent address.
    pub fn can_take_over(&self, old: &WovenPoint) -> bool {
        self.holds != Held::Called || old.stack == StackView::CALLED
    }

    /// The site of a point at the probe. Where the return address is pushed, a register that is free at the beginning of the block may hold an
    /// argument of the call, so no register counts as free.
    pub fn site<'s>(&self, site: &'s Site) -> Cow<'s, Site> {
        if self.holds != Held::Called {
            return Cow::Borrowed(site);
        }
        let kind = match &site.kind {
            SiteKind::Block { .. } => SiteKind::Block { free: FreeRegisters::default() },
            SiteKind::Edge { .. } => SiteKind::Edge { free: FreeRegisters::default() },
            SiteKind::Entry { .. } | SiteKind::Exit { .. } | SiteKind::CallBefore | SiteKind::CallAfter { .. } => {
                return Cow::Borrowed(site);
            }
        };
        Cow::Owned(Site { kind, ..site.clone() })
    }

    /// Write that leads from the probe to the code of a point at `base`; `None` if the jump does not reach.
    pub(crate) fn leading(&self, base: Avma) -> Option<TextWrite> {
        Some(text_write(self.copy.0, &self.bytes, &jmp_bytes(self.copy.0, base.0)?))
    }
}

/// A way into the counting copy of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// Block to whose springboard it belongs.
    pub block: BlockId,
    /// Five bytes to which the springboard leads. They are the beginning of the gate, or a jump to the gate of a counting copy that was made
    /// later.
    pub at: Avma,
    /// Address in the ordinary copy at which threads continue that own no shard.
    pub arrival: Avma,
    /// The five bytes while the gate is open. They become a jump to the arrival when the counting copy is given up.
    pub bytes: [u8; PROBE],
}

impl Gate {
    /// The five bytes of a closed gate: the jump to the arrival. `None` if it does not reach.
    pub(crate) fn closed(&self) -> Option<[u8; PROBE]> {
        jmp_bytes(self.at.0, self.arrival.0)
    }

    /// Whether threads get in here while the counting copy is open.
    pub(crate) fn opens(&self) -> bool {
        self.closed() != Some(self.bytes)
    }

    /// Write that closes the gate; `None` if it is closed.
    fn closing(&self) -> Option<TextWrite> {
        // The arrival lies in the same arena, so the jump reaches.
        let closed = self.closed()?;
        self.opens().then(|| text_write(self.at.0, &self.bytes, &closed))
    }
}

/// A second copy of a function, in which each count is one instruction, and in which other simple code of points stands right at them: only
/// threads that own a shard run it. It does what the points of the function did when it was made, so it must be given up before any of them
/// changes or another one is woven. Then another one may take its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountingCopy {
    /// Range of the code.
    pub code: AvmaRange,
    /// Record that removes it together with the ordinary copy, if it lies apart from that one, because it was made later.
    pub apart: Option<RemovalRecord>,
    /// Addresses of the copies of the blocks.
    pub blocks: IndexVec<BlockId, Avma>,
    /// The ways in, sorted by block.
    pub gates: Vec<Gate>,
    /// Each instruction outside of `inside`, with the address in the ordinary copy at which the same was executed and counted; sorted.
    pub moves: Vec<PcMove>,
    /// Code of points in which a thread has done a part of what the point does, and [`CountingCopy::saving`]; sorted. Threads leave it by
    /// single-stepping.
    pub inside: Vec<AvmaRange>,
    /// Code of gates in which a register is saved on the stack; sorted. A thread there is about to arrive, and has done nothing of a point.
    pub saving: Vec<AvmaRange>,
    /// Whether the gates let threads in. It was given up otherwise.
    pub open: bool,
}

impl CountingCopy {
    /// The gate of a block; `None` if it has none.
    pub fn gate(&self, block: BlockId) -> Option<&Gate> {
        self.gates.binary_search_by_key(&block, |gate| gate.block).ok().and_then(|index| self.gates.get(index))
    }
}

/// Whether an address is in one of the ranges, which are sorted.
fn lies_in(ranges: &[AvmaRange], at: Avma) -> bool {
    let after = ranges.partition_point(|range| range.start <= at);
    after.checked_sub(1).and_then(|index| ranges.get(index)).is_some_and(|range| range.contains(&at))
}

/// The copy of a whole function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WovenBody {
    /// First byte of the function.
    pub function: Avma,
    /// The copies of the blocks: for each, the original address of its first byte and the address in the copy.
    pub blocks: IndexVec<BlockId, Way>,
    /// Block to which callers come; `None` if control arrives there in other ways too.
    pub entry: Option<BlockId>,
    /// The places where points can be woven, sorted by point.
    pub probes: Vec<Probe>,
    /// Blocks that may run in the text, sorted: no springboard fits where control arrives at them from outside. Points at these blocks, and at
    /// edges that leave them or lead to them, would miss such runs.
    pub exposed: Vec<BlockId>,
    /// Blocks that run in the text up to the call at their end, sorted: no springboard fits at them. The call leads to their probes, which lie
    /// at the end of the copy and hold [`Held::Called`].
    pub called: Vec<AvmaRange>,
    /// Reason why no springboard fits at such a block; `None` if there is none.
    pub why_exposed: Option<Refusal>,
    /// The counting copy.
    pub counting: Option<CountingCopy>,
    /// Record that removes the copy, together with all points in it.
    pub removal: RemovalRecord,
}

impl WovenBody {
    /// Whether a thread at an address in the counting copy has done a part of what a point does.
    pub fn is_within_code(&self, at: Avma) -> bool {
        let Some(counting) = &self.counting else { return false };
        lies_in(&counting.inside, at) && !lies_in(&counting.saving, at)
    }

    /// Address in the ordinary copy that is equivalent to an address in the counting copy; other addresses are returned as they are.
    pub fn in_ordinary(&self, at: Avma) -> Avma {
        let Some(counting) = self.counting.as_ref().filter(|counting| counting.code.contains(&at)) else { return at };
        let after = counting.moves.partition_point(|m| m.from <= at);
        after.checked_sub(1).and_then(|index| counting.moves.get(index)).map_or(at, |m| m.to)
    }

    /// Whether a thread at an address in the ordinary copy is in the code of a point that was woven together with the copy, and not at its first
    /// instruction.
    pub fn is_within_point(&self, at: Avma) -> bool {
        self.probes.iter().any(|probe| probe.is_within(at))
    }

    /// Whether threads may run the counting copy.
    pub fn is_counting(&self) -> bool {
        self.counting.as_ref().is_some_and(|counting| counting.open)
    }

    /// Gives up the counting copy. Returns the plan that leads all threads to the ordinary one, and the record of a counting copy that lay apart
    /// and is gone with that; `None` if no thread can be in the counting copy.
    pub fn give_up_counting(&mut self) -> Option<(PatchPlan, Option<RemovalRecord>)> {
        let counting = self.counting.as_mut().filter(|counting| counting.open)?;
        counting.open = false;
        let text = counting.gates.iter().filter_map(Gate::closing).collect();
        let (moves, step_out) = (counting.moves.clone(), counting.inside.clone());
        let mut plan = PatchPlan { text, moves, step_out, ..PatchPlan::default() };
        let apart = counting.apart.take();
        if let Some(apart) = &apart {
            plan.retired.push(apart.code.clone());
            (counting.code, counting.moves) = (Avma(0)..Avma(0), Vec::new());
            (counting.inside, counting.saving) = (Vec::new(), Vec::new());
        }
        Some((plan, apart))
    }

    /// Records that remove the copy: its own, and that of a counting copy that lies apart.
    pub fn records(&self) -> impl Iterator<Item = &RemovalRecord> + Clone {
        let apart = self.counting.as_ref().and_then(|counting| counting.apart.as_ref());
        std::iter::once(&self.removal).chain(apart)
    }

    /// First byte of the springboard at the function's entry, which lies behind an `endbr64`; `None` if there is none.
    pub fn entry_springboard(&self) -> Option<Avma> {
        let at_entry = |at: &Avma| *at == self.function || *at == self.function.offset(ENDBR_LEN.cast_signed());
        self.removal.text.iter().map(|write| write.at).find(|at| at_entry(at) && self.called_at(*at).is_none())
    }

    /// The block around an address in the text, if it runs there up to its call.
    pub fn called_at(&self, at: Avma) -> Option<&AvmaRange> {
        let after = self.called.partition_point(|range| range.start <= at);
        self.called.get(after.checked_sub(1)?).filter(|range| range.contains(&at))
    }

    /// Positions in the text that are equivalent to addresses of the copy, for threads there. Each comes with the kind of point that the
    /// thread has passed, if the address alone does not show that: in the copy, a thread at the function's first instruction is past the
    /// entry.
    pub fn places(&self) -> impl Iterator<Item = (PcMove, Option<PointKind>)> {
        let behind = self.function.offset(ENDBR_LEN.cast_signed());
        let entry = self.probes.iter().find(|probe| probe.point == PointId::Entry).map(|probe| probe.copy);
        // A thread there has left the function by a call.
        let called = self.probes.iter().filter(|probe| probe.holds == Held::Called).map(|probe| probe.copy).min();
        let own = self.records().flat_map(|record| record.moves.iter().filter(|m| record.code.contains(&m.from)));
        own.map(move |m| {
            let at = self.in_ordinary(m.from);
            let inside = Some(at) != entry && called.is_none_or(|called| at < called);
            let is_in = m.to >= self.function && m.to <= behind && inside;
            (*m, is_in.then_some(PointKind::Entry))
        })
    }

    /// The probe of a point. Fails if the copy has none, or if not every arrival there would be noticed.
    pub fn probe(&self, point: PointId) -> Result<&Probe, Refusal> {
        let address = |offset: Offset| self.function.offset(offset.0);
        // Callers come to this block, or their arrivals cannot be told from others.
        let entry = || self.entry.and_then(|entry| self.blocks.get(entry)).map_or(self.function, |way| way.original);
        let at = point.offset().map_or_else(entry, address);
        let from = match point {
            PointId::Edge { from, .. } => Some(address(from)),
            PointId::Entry | PointId::Exit(_) | PointId::CallBefore(_) | PointId::CallAfter(_) | PointId::Block(_) => {
                None
            }
        };
        if self.is_exposed(at) || from.is_some_and(|from| self.is_exposed(from)) {
            return Err(self.why_exposed.clone().unwrap_or(Refusal::NoSuchPoint));
        }
        let found = self.probes.binary_search_by_key(&point, |probe| probe.point).ok();
        let offset = Offset::between(self.function.0, at.0);
        let missing = match point.kind() {
            // A call begins there, or soon after.
            PointKind::Entry | PointKind::CallAfter if self.called_at(at).is_some() => {
                Refusal::TooShort { available: 0, next: "a call that stays in the text" }
            }
            PointKind::Entry | PointKind::CallAfter | PointKind::Edge => Refusal::SharedArrival { offset },
            PointKind::Exit | PointKind::CallBefore | PointKind::Block => Refusal::NoSuchPoint,
        };
        found.and_then(|index| self.probes.get(index)).ok_or(missing)
    }

    /// Whether an address lies in a block that may run in the text.
    fn is_exposed(&self, at: Avma) -> bool {
        let after = self.blocks.as_slice().partition_point(|way| way.original <= at);
        after.checked_sub(1).is_some_and(|block| self.exposed.binary_search(&BlockId::at(block)).is_ok())
    }
}
