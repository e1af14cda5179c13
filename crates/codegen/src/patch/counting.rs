//! The counting copy of a function: a second copy in which each count is one instruction, without the check whose shard it is.
//!
//! A gate lies at every way in from which a count can be reached. It lets only those threads in that own a shard; all others run the ordinary
//! copy, whose probes lead to the code of the points. Calls and system calls are not in the copy, so the owner is checked again when they
//! return. Where a point does something else than to count, or where the flags are live, the counting copy leads to the probe of the
//! ordinary one.

use ingraft_model::{Avma, EdgeKind, Gpr, PcMove, PointKind, ThreadIdentity};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::block::{Back, EmitError, straddles};
use crate::code::body::{CountingCopy, Gate, PROBE, Probe, Spot};
use crate::code::environment::Environment;
use crate::patch::body::{BodyPoint, Copy, Fixup, Part, target};
use crate::patch::relocate::{self, Displaced};
use crate::snippet::slow::COUNT;

/// Condition code of `jne`, and of `je`.
const NOT_EQUAL: u8 = 5;
const EQUAL: u8 = 4;

/// Passage of a position.
#[derive(Clone, Copy)]
enum Passage {
    /// Incremented counter, by its address in shard 0.
    Count(u32),
    /// First byte of the probe in the ordinary copy to which control leaves.
    Leave(u64),
}

/// Code at the end of the copy that a taken branch runs through.
struct Stub {
    /// Displacement that leads to the stub.
    field: u64,
    /// Passage of the edge.
    spot: Spot,
    /// Target of the branch in the text.
    target: u64,
}

/// The counting copy under construction, at the end of the ordinary one.
struct Counting<'c, 'a> {
    env: &'c Environment,
    copy: &'c mut Copy<'a>,
    passages: FxHashMap<Spot, (Passage, u64)>,
    /// Blocks with a springboard from which a count can be reached.
    entered: FxHashSet<usize>,
    labels: Vec<u64>,
    fixups: Vec<Fixup>,
    stubs: Vec<Stub>,
    gates: Vec<Gate>,
    moves: Vec<PcMove>,
}

/// Adds the counting copy of a function; `None` if no points of it are plain counts, or if no way in can have a gate.
pub(super) fn emit(
    env: &Environment,
    copy: &mut Copy<'_>,
    probes: &[Probe],
    springboards: &FxHashSet<usize>,
) -> Result<Option<CountingCopy>, EmitError> {
    let points: FxHashMap<Spot, Option<u32>> =
        copy.request.points.iter().map(|p: &BodyPoint| (p.spot, p.counter)).collect();
    let passage = |probe: &Probe| match points.get(&probe.spot)? {
        Some(counter) => Some((probe.spot, (Passage::Count(env.data.counter(*counter)), probe.copy.0))),
        None => Some((probe.spot, (Passage::Leave(probe.copy.0), probe.copy.0))),
    };
    let passages: FxHashMap<Spot, (Passage, u64)> = probes.iter().filter_map(passage).collect();
    if env.identity == ThreadIdentity::Locked
        || !passages.values().any(|(passage, _)| matches!(passage, Passage::Count(_)))
    {
        return Ok(None);
    }
    let count = copy.labels.len();
    let mut counting = Counting {
        env,
        copy,
        passages,
        entered: FxHashSet::default(),
        labels: vec![0; count],
        fixups: Vec::new(),
        stubs: Vec::new(),
        gates: Vec::new(),
        moves: Vec::new(),
    };
    counting.entered = counting.useful(springboards);
    if counting.entered.is_empty() || counting.sets_gs() {
        return Ok(None);
    }
    counting.write().map(Some)
}

impl Counting<'_, '_> {
    fn here(&self) -> u64 {
        self.copy.out.here()
    }

    fn counts(&self, spot: &Spot) -> bool {
        matches!(self.passages.get(spot), Some((Passage::Count(_), _)))
    }

    /// The blocks with a springboard that can have a gate, and from which a count is reached before control leaves the copy.
    fn useful(&self, springboards: &FxHashSet<usize>) -> FxHashSet<usize> {
        let body = self.copy.request.body;
        let own = |block: usize| {
            let at = Avma(self.copy.start(block));
            let arrives = self.copy.arrivals_of(block).iter().flatten().any(|spot| self.counts(spot));
            arrives || self.counts(&Spot::new(PointKind::Block, at)) && !self.copy.is_called(block)
        };
        let mut before: FxHashMap<usize, Vec<usize>> = FxHashMap::default();
        let mut found: FxHashSet<usize> = (0..body.blocks.len()).filter(|block| own(*block)).collect();
        for edge in &body.edges {
            let stays = matches!(edge.kind, EdgeKind::Taken | EdgeKind::FallThrough);
            let Some(to) = target(edge).filter(|_| stays) else { continue };
            before.entry(to).or_default().push(edge.from);
            if self.counts(&self.copy.edge(edge.from, to, edge.kind)) {
                found.insert(edge.from);
            }
        }
        let mut left: Vec<usize> = found.iter().copied().collect();
        while let Some(block) = left.pop() {
            left.extend(before.get(&block).into_iter().flatten().filter(|from| found.insert(**from)));
        }
        let leaves = |block: usize| {
            let passages = self.copy.arrivals_of(block);
            let mut passages = passages.iter().flatten().filter_map(|spot| self.passages.get(spot));
            passages.any(|(passage, _)| matches!(passage, Passage::Leave(_)))
        };
        found.retain(|block| springboards.contains(block) && !self.copy.is_called(*block) && !leaves(*block));
        found.retain(|block| self.register(*block).is_some());
        found
    }

    /// A register that the gate of a block may use; `None` if none is free, or if the flags are not.
    fn register(&self, block: usize) -> Option<Gpr> {
        let free = &self.copy.request.body.blocks.get(block)?.free;
        let spare = [Gpr(10), Gpr(11)].into_iter().find(|r| free.scratch.contains(r));
        spare.or_else(|| free.scratch.first().copied()).filter(|_| free.flags)
    }

    /// Whether an instruction of the function sets the gs segment, so that the copy would not stay with one shard.
    fn sets_gs(&self) -> bool {
        let copied = self.copy.code.blocks.iter().flatten();
        copied.into_iter().any(|part| matches!(part, Part::Copied(d) if relocate::sets_gs(d.bytes())))
    }

    /// Notes that the instruction that follows is equivalent to one of the ordinary copy.
    fn note(&mut self, ordinary: u64) {
        self.moves.push(PcMove { from: Avma(self.here()), to: Avma(ordinary) });
    }

    /// Adds the passage of a position, if there is a point. `back` is the equivalent address in the text.
    fn pass(&mut self, spot: &Spot, back: u64) -> Result<(), EmitError> {
        let Some(&(passage, probe)) = self.passages.get(spot) else { return Ok(()) };
        self.note(probe);
        match passage {
            Passage::Count(counter) => self.copy.out.put_absolute(&COUNT, counter, Back::To(back)),
            Passage::Leave(to) => self.copy.out.jmp(to, Back::To(back))?,
        }
        Ok(())
    }

    /// Adds a jump to the counting copy of a block.
    fn jump(&mut self, to: usize, back: u64) -> Result<(), EmitError> {
        self.note(self.copy.labels.get(to).copied().unwrap_or_default());
        let here = self.here();
        self.copy.out.jmp(here, Back::To(back))?;
        self.fixups.push(Fixup { field: here + 1, block: to });
        Ok(())
    }

    fn write(mut self) -> Result<CountingCopy, EmitError> {
        let start = self.here();
        let code = self.copy.code;
        let mut falls = false;
        for (index, parts) in code.blocks.iter().enumerate() {
            if !falls && self.entered.contains(&index) {
                self.gate(index)?;
            }
            let label = self.here();
            if let Some(known) = self.labels.get_mut(index) {
                *known = label;
            }
            falls = self.block(index, parts)? && self.run_on(index, code.blocks.len())?;
        }
        let mut left: Vec<usize> = self.entered.iter().copied().collect();
        left.retain(|block| self.gates.iter().all(|gate| gate.block != *block));
        left.sort_unstable();
        for block in left {
            self.gate(block)?;
            self.jump(block, self.copy.start(block))?;
        }
        for stub in std::mem::take(&mut self.stubs) {
            self.stub(&stub)?;
        }
        for Fixup { field, block } in std::mem::take(&mut self.fixups) {
            let to = self.labels.get(block).copied().ok_or(EmitError::OutOfReach)?;
            self.copy.out.patch_relative(field, to)?;
        }
        for gate in &mut self.gates {
            let at = gate.at.0;
            gate.bytes = *self.copy.out.between(at, at + PROBE as u64).first_chunk().ok_or(EmitError::OutOfReach)?;
        }
        self.gates.sort_unstable_by_key(|gate| gate.block);
        self.moves.sort_unstable();
        Ok(CountingCopy {
            code: Avma(start)..Avma(self.here()),
            blocks: self.labels.iter().map(|label| Avma(*label)).collect(),
            gates: self.gates,
            moves: self.moves,
            open: true,
        })
    }

    /// Adds the way in at a block: the check whether the thread owns its shard, and the passages of the arrival.
    fn gate(&mut self, block: usize) -> Result<(), EmitError> {
        let start = self.copy.start(block);
        let (Some(r), Some(ordinary)) = (self.register(block), self.copy.arrivals.get(block).copied()) else {
            return Err(EmitError::OutOfReach);
        };
        let back = Back::To(start);
        // The first bytes become a jump when the copy is given up.
        while straddles(self.here(), PROBE as u64) {
            self.note(ordinary);
            self.copy.out.put(&[0x90], back);
        }
        self.gates.push(Gate { block, at: Avma(self.here()), arrival: Avma(ordinary), bytes: [0; PROBE] });
        let owner = self.env.data.displacement(ingraft_model::layout::OWNER);
        self.note(ordinary);
        let wide = match self.env.identity {
            ThreadIdentity::FsOffset(offset) => {
                self.copy.out.segment_absolute(0x64, 0x8b, r, false, offset, back);
                false
            }
            ThreadIdentity::FsBase | ThreadIdentity::Locked => {
                self.copy.out.cmp_zero(self.env.data.alive(), back);
                self.note(ordinary);
                self.copy.out.put_relative(&[0x0f, 0x80 | EQUAL], ordinary, back)?;
                self.note(ordinary);
                // rdfsbase r
                self.copy.out.put(&[0xf3, 0x48 | r.0 >> 3, 0x0f, 0xae, 0xc0 | (r.0 & 7)], back);
                true
            }
        };
        self.note(ordinary);
        self.copy.out.segment_absolute(0x65, 0x39, r, wide, owner, back);
        self.note(ordinary);
        self.copy.out.put_relative(&[0x0f, 0x80 | NOT_EQUAL], ordinary, back)?;
        for spot in self.copy.arrivals_of(block).iter().flatten() {
            self.pass(spot, start)?;
        }
        Ok(())
    }

    /// Copies a block. Returns whether control runs on behind it.
    fn block(&mut self, index: usize, parts: &[Part]) -> Result<bool, EmitError> {
        let start = self.copy.start(index);
        let called = self.copy.is_called(index);
        if !called {
            self.pass(&Spot::new(PointKind::Block, Avma(start)), start)?;
        }
        for (n, part) in parts.iter().enumerate() {
            let known = self.copy.parts.get(index).and_then(|parts| parts.get(n)).copied();
            let ordinary = known.ok_or(EmitError::OutOfReach)?;
            match part {
                Part::Kept { at, is_call } => {
                    let spot = Spot::new(PointKind::CallBefore, Avma(*at));
                    let passed = *is_call && !called && self.passages.contains_key(&spot);
                    // The probe of a call is the jump itself.
                    let to = if passed { ordinary } else { *at };
                    self.note(ordinary);
                    self.copy.out.jmp(to, Back::To(*at))?;
                    return Ok(false);
                }
                Part::Copied(d) => {
                    if self.instruction(index, d, ordinary)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Copies an instruction whose ordinary copy lies at `ordinary`. Returns whether control never continues after it.
    fn instruction(&mut self, from: usize, d: &Displaced, ordinary: u64) -> Result<bool, EmitError> {
        let Some(target) = d.branch_target() else {
            if d.ends && self.copy.leaves(from) {
                self.pass(&Spot::new(PointKind::Exit, Avma(d.at)), d.at)?;
            }
            let begin = self.here();
            relocate::emit(d, |target| target, &mut self.copy.out)?;
            self.like(begin, ordinary);
            return Ok(d.ends);
        };
        let inner = self.copy.block_at(target);
        let spot = match inner {
            Some(to) => self.copy.edge(from, to, EdgeKind::Taken),
            None => Spot::new(PointKind::Exit, Avma(d.at)),
        };
        let is_point = self.passages.contains_key(&spot);
        let is_plain_jump = d.ends && d.condition().is_none();
        if is_point && is_plain_jump {
            // After the passage, a thread has taken the jump.
            self.pass(&spot, d.at)?;
            return self.leads(inner, target).map(|()| true);
        }
        if let (true, Some((condition, _)), Some(to)) = (is_point, d.condition(), inner)
            && target <= d.at
        {
            return self.back_branch((to, target), &spot, (condition, d.at), ordinary).map(|()| false);
        }
        let begin = self.here();
        let through = is_point && !is_plain_jump;
        // The displacement is written later.
        let is_later = inner.is_some() || through;
        relocate::emit(d, |target| if is_later { begin } else { target }, &mut self.copy.out)?;
        self.like(begin, ordinary);
        let field = self.here() - 4;
        match inner {
            _ if through => self.stubs.push(Stub { field, spot, target }),
            Some(block) => self.fixups.push(Fixup { field, block }),
            None => {}
        }
        Ok(d.ends)
    }

    /// Adds a conditional branch that probably stays in a loop: the opposite branch leads over the passage and a jump.
    fn back_branch(
        &mut self,
        (to, target): (usize, u64),
        spot: &Spot,
        (condition, at): (u8, u64),
        ordinary: u64,
    ) -> Result<(), EmitError> {
        self.note(ordinary);
        let here = self.here();
        self.copy.out.put_relative(&[0x0f, 0x80 | condition ^ 1], here, Back::To(at))?;
        let field = self.here() - 4;
        self.pass(spot, target)?;
        self.jump(to, target)?;
        let over = self.here();
        Ok(self.copy.out.patch_relative(field, over)?)
    }

    /// Notes for the instructions from `begin` on that they are equivalent to those from `ordinary` on, which are as long.
    fn like(&mut self, begin: u64, ordinary: u64) {
        let (own, _) = self.copy.out.exits(begin, self.copy.out.here());
        let moves = own.iter().map(|m| PcMove { from: m.from, to: Avma(ordinary + (m.from.0 - begin)) });
        self.moves.extend(moves);
    }

    /// Leads control from the end of a block that runs on to the next one. Returns whether the copy runs on into what follows it.
    fn run_on(&mut self, from: usize, count: usize) -> Result<bool, EmitError> {
        let body = self.copy.request.body;
        let end = body.blocks.get(from).map_or(0, |b| b.block.range.end.to_avma(self.copy.request.bias).0);
        let Some(to) = self.copy.block_at(end) else {
            self.pass(&Spot::new(PointKind::Exit, Avma(end)), end)?;
            self.note(end);
            self.copy.out.jmp(end, Back::To(end))?;
            return Ok(false);
        };
        self.pass(&self.copy.edge(from, to, EdgeKind::FallThrough), end)?;
        if to == from + 1 && to < count {
            return Ok(true);
        }
        self.jump(to, end)?;
        Ok(false)
    }

    /// Adds the code that a taken branch runs through.
    fn stub(&mut self, stub: &Stub) -> Result<(), EmitError> {
        let here = self.here();
        self.copy.out.patch_relative(stub.field, here)?;
        self.pass(&stub.spot, stub.target)?;
        self.leads(self.copy.block_at(stub.target), stub.target)
    }

    /// Adds a jump to an original address: to the counting copy of the block there, or out of the function.
    fn leads(&mut self, inner: Option<usize>, target: u64) -> Result<(), EmitError> {
        match inner {
            Some(block) => self.jump(block, target),
            None => {
                self.note(target);
                Ok(self.copy.out.jmp(target, Back::To(target))?)
            }
        }
    }
}
