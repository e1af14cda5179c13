//! The counting copy of a function: a second copy in which each count is one instruction, without the check whose shard it is. Other code of
//! points stands there too, if it is simple (`snippet/inline/`).
//!
//! A gate lies at every way in from which a count can be reached. It lets only those threads in that own a shard; all others run the ordinary
//! copy, whose probes lead to the code of the points. Calls and system calls are not in the copy, so the owner is checked again when they
//! return. Where a point does more than that, the counting copy leads to the probe of the ordinary one. Where no register is free, a gate saves
//! one below the red zone: small functions leave most registers to their callers. Where the flags are live, it compares without them: behind a
//! first instruction that stays in the text, which often is the test that decides whether the function has anything to do.
//!
//! The count of a taken branch lies at its target if no other way leads there. If others do, it lies right before the target where the code
//! before it does not run on, or else at the end of the copy, from where a jump leads back.

use std::borrow::Cow;

use ingraft_model::layout::OWNER;
use ingraft_model::{Avma, AvmaRange, BlockId, EdgeKind, Gpr, IndexVec, Key, PcMove, PointId, ThreadIdentity};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::code::block::{Back, EmitError, straddles};
use crate::code::body::{CountingCopy, Gate, Held, PROBE, Probe};
use crate::code::environment::{CodegenError, Environment};
use crate::patch::body::{BlockInstruction, BodyCode, BodyPoint, CodeBlock, Copy, Fixup, target};
use crate::patch::rehost::united;
use crate::patch::relocate::{self, Displaced};
use crate::snippet::inline::{InlineCode, InlinePart};
use crate::snippet::slow::COUNT;

/// Condition code of `jne`, and of `je`.
const NOT_EQUAL: u8 = 5;
const EQUAL: u8 = 4;

/// Length in bytes of a conditional jump with a displacement of one byte.
const SHORT_BRANCH: u64 = 2;

/// Largest distance of a branch with such a displacement, forwards.
const SHORT_REACH: u64 = 127;

/// `lea rsp, [rsp - 128]`, as long as the jump that closes a gate.
pub(super) const LOWER_STACK: [u8; PROBE] = [0x48, 0x8d, 0x64, 0x24, 0x80];

/// `lea rsp, [rsp + 128]`.
pub(super) const RAISE_STACK: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];

/// Register in which a gate compares.
#[derive(Clone, Copy)]
enum GateRegister {
    /// One that is free.
    Free(Gpr),
    /// One that the gate saves on the stack. Threads are told apart by the word with this offset from the fs base.
    Saved(u32),
    /// None, because the flags are live: the gate saves rax and rcx, and compares by their sum.
    WithoutFlags(u32),
}

/// Passage of a point.
#[derive(Clone)]
enum Passage<'a> {
    /// Incremented counter, by its address in shard 0.
    Count(u32),
    /// Code of the point.
    Inline(Cow<'a, InlineCode>),
    /// First byte of the probe in the ordinary copy to which control leaves.
    Leave(u64),
}

/// Code at the end of the copy that a taken branch runs through.
struct Stub {
    /// Displacement that leads to the stub.
    field: u64,
    /// Point at the edge.
    point: PointId,
    /// Target of the branch in the text.
    target: u64,
}

/// Code of a point whose part aside comes at the end of the copy.
struct PlacedCode<'a> {
    code: Cow<'a, InlineCode>,
    /// First byte of the part at the point.
    main: u64,
    /// First byte of the probe in the ordinary copy.
    probe: u64,
}

/// The counting copy under construction, at the end of the ordinary one.
struct CountingCopyBuilder<'c, 'a> {
    env: &'c Environment,
    copy: &'c mut Copy<'a>,
    passages: FxHashMap<PointId, (Passage<'a>, u64)>,
    /// Blocks with a springboard from which a count can be reached.
    entered: FxHashSet<BlockId>,
    /// Blocks to which one edge alone leads, a taken branch with a point: the passage of the point is at the block.
    passed_at: FxHashMap<BlockId, PointId>,
    /// Address of each block's copy, as far as blocks are copied.
    labels: IndexVec<BlockId, u64>,
    fixups: Vec<Fixup>,
    stubs: Vec<Stub>,
    placed: Vec<PlacedCode<'a>>,
    gates: Vec<Gate>,
    moves: Vec<PcMove>,
    /// Code of points in which threads have changed something, and code of gates that have saved a register.
    inside: Vec<AvmaRange>,
    /// Of these, the code of gates.
    saving: Vec<AvmaRange>,
}

/// Adds the counting copy of a function; `None` if no points of it have code there, or if no way in can have a gate.
pub(super) fn emit<'a>(
    env: &Environment,
    copy: &mut Copy<'a>,
    probes: &[Probe],
    springboards: &FxHashSet<BlockId>,
) -> Result<Option<CountingCopy>, EmitError> {
    let request = copy.request;
    let points: FxHashMap<PointId, &BodyCode> = request.points.iter().map(|p: &BodyPoint| (p.point, &p.code)).collect();
    let passage = |probe: &Probe| {
        let passage = match points.get(&probe.point)? {
            BodyCode::Count(counter) => Passage::Count(env.data.counter(*counter)),
            BodyCode::Inline(code) => match (probe.holds, probe.bytes) {
                (Held::Branch(..), [_, opcode, ..]) => {
                    code.at_branch(opcode & 0xf).map_or(Passage::Leave(probe.copy.0), Passage::Inline)
                }
                _ => Passage::Inline(Cow::Borrowed(code)),
            },
            BodyCode::Elsewhere => Passage::Leave(probe.copy.0),
        };
        Some((probe.point, (passage, probe.copy.0)))
    };
    let passages: FxHashMap<PointId, (Passage<'_>, u64)> = probes.iter().filter_map(passage).collect();
    if env.identity == ThreadIdentity::Locked
        || passages.values().all(|(passage, _)| matches!(passage, Passage::Leave(_)))
    {
        return Ok(None);
    }
    let mut counting = CountingCopyBuilder {
        env,
        copy,
        passages,
        entered: FxHashSet::default(),
        passed_at: FxHashMap::default(),
        labels: IndexVec::default(),
        fixups: Vec::new(),
        stubs: Vec::new(),
        placed: Vec::new(),
        gates: Vec::new(),
        moves: Vec::new(),
        inside: Vec::new(),
        saving: Vec::new(),
    };
    counting.entered = counting.useful(springboards)?;
    if counting.entered.is_empty() || counting.sets_gs() {
        return Ok(None);
    }
    counting.passed_at = counting.passed_at()?;
    counting.write().map(Some)
}

impl<'a> CountingCopyBuilder<'_, 'a> {
    fn here(&self) -> u64 {
        self.copy.out.here()
    }

    /// Whether a point is passed without a way out of the copy.
    fn counts(&self, point: &PointId) -> bool {
        matches!(self.passages.get(point), Some((Passage::Count(_) | Passage::Inline(_), _)))
    }

    /// Whether a block ends in an exit that is passed in the copy.
    fn counts_exit(&self, id: BlockId, block: &CodeBlock) -> bool {
        let exit = match block.parts.last() {
            Some(BlockInstruction::Copied(d)) if d.ends || d.branch_target().is_some() => d.at,
            Some(BlockInstruction::Copied(_)) => block.end,
            Some(BlockInstruction::Kept { .. }) | None => return false,
        };
        !self.copy.is_called(id) && self.counts(&PointId::Exit(self.copy.offset(exit)))
    }

    /// The blocks with a springboard that can have a gate, and from which a count is reached before control leaves the copy.
    fn useful(&self, springboards: &FxHashSet<BlockId>) -> Result<FxHashSet<BlockId>, CodegenError> {
        let body = self.copy.request.body;
        let mut before: FxHashMap<BlockId, Vec<BlockId>> = FxHashMap::default();
        let mut found: FxHashSet<BlockId> = FxHashSet::default();
        for (id, block) in self.copy.code.blocks.entries() {
            let arrives = self.copy.arrivals_of(id)?.iter().flatten().any(|point| self.counts(point));
            let own = PointId::Block(self.copy.offset(block.start));
            if arrives || self.counts(&own) && !self.copy.is_called(id) || self.counts_exit(id, block) {
                found.insert(id);
            }
        }
        for edge in &body.edges {
            let stays = matches!(edge.kind, EdgeKind::Taken | EdgeKind::FallThrough);
            let Some(to) = target(edge).filter(|_| stays) else { continue };
            before.entry(to).or_default().push(edge.from);
            if self.counts(&self.copy.edge(edge.from, to, edge.kind)?) {
                found.insert(edge.from);
            }
        }
        let mut left: Vec<BlockId> = found.iter().copied().collect();
        while let Some(block) = left.pop() {
            left.extend(before.get(&block).into_iter().flatten().filter(|from| found.insert(**from)));
        }
        found.retain(|block| springboards.contains(block) && !self.copy.is_called(*block));
        found.retain(|block| self.register(*block).is_some());
        let leaves = |point: &PointId| matches!(self.passages.get(point), Some((Passage::Leave(_), _)));
        let mut useful = FxHashSet::default();
        for block in found {
            if !self.copy.arrivals_of(block)?.iter().flatten().any(leaves) {
                useful.insert(block);
            }
        }
        Ok(useful)
    }

    /// For each block without a gate to which a taken branch alone leads, the point of this branch.
    fn passed_at(&self) -> Result<FxHashMap<BlockId, PointId>, CodegenError> {
        let mut only: FxHashMap<BlockId, Option<PointId>> = FxHashMap::default();
        for edge in &self.copy.request.body.edges {
            let Some(to) = target(edge) else { continue };
            let point = self.copy.edge(edge.from, to, edge.kind)?;
            let passes = edge.kind == EdgeKind::Taken && self.passages.contains_key(&point);
            let own = passes && !self.entered.contains(&to) && !self.copy.is_called(to);
            only.entry(to).and_modify(|only| *only = None).or_insert(own.then_some(point));
        }
        Ok(only.into_iter().filter_map(|(to, point)| Some((to, point?))).collect())
    }

    /// The register that the gate of a block uses; `None` if the gate needs more code than one that saves registers.
    fn register(&self, block: BlockId) -> Option<GateRegister> {
        let free = &self.copy.request.body.blocks.get(block)?.free;
        let spare = [Gpr(10), Gpr(11)].into_iter().find(|r| free.scratch.contains(r));
        let free_one = spare.or_else(|| free.scratch.first().copied()).map(GateRegister::Free);
        let saved = match self.env.identity {
            ThreadIdentity::FsOffset(offset) if !free.flags => return Some(GateRegister::WithoutFlags(offset)),
            ThreadIdentity::FsOffset(offset) => Some(GateRegister::Saved(offset)),
            ThreadIdentity::FsBase | ThreadIdentity::Locked => None,
        };
        free_one.or(saved).filter(|_| free.flags)
    }

    /// Whether an instruction of the function sets the gs segment, so that the copy would not stay with one shard.
    fn sets_gs(&self) -> bool {
        let mut copied = self.copy.code.blocks.iter().flat_map(|block| &block.parts);
        copied.any(|part| matches!(part, BlockInstruction::Copied(d) if relocate::sets_gs(d.bytes())))
    }

    /// Notes that the instruction that follows is equivalent to one of the ordinary copy.
    fn note(&mut self, ordinary: u64) {
        self.moves.push(PcMove { from: Avma(self.here()), to: Avma(ordinary) });
    }

    /// Adds the passage of a point, if something is woven there. `back` is the equivalent address in the text.
    fn pass(&mut self, point: &PointId, back: u64) -> Result<(), EmitError> {
        let Some((passage, probe)) = self.passages.get(point) else { return Ok(()) };
        let (passage, probe) = (passage.clone(), *probe);
        self.note(probe);
        match passage {
            Passage::Count(counter) => self.copy.out.put_absolute(&COUNT, counter, Back::To(back)),
            Passage::Inline(code) => self.inline(code, probe, back),
            Passage::Leave(to) => self.copy.out.jmp(to, Back::To(back))?,
        }
        Ok(())
    }

    /// Adds the code of a point. A thread within it has changed something, so it goes on to the end of the code before it is moved.
    fn inline(&mut self, code: Cow<'a, InlineCode>, probe: u64, back: u64) {
        let main = self.here();
        let (first, rest) = code.main.split_at(code.first.min(code.main.len()));
        self.copy.out.put(first, Back::To(back));
        self.copy.out.put_unit(rest);
        self.inside.push(Avma(main + first.len() as u64)..Avma(self.here()));
        self.placed.push(PlacedCode { code, main, probe });
    }

    /// Adds the part of a code that lies aside, and leads all of its branches.
    fn aside(&mut self, PlacedCode { code, main, probe }: &PlacedCode<'_>) -> Result<(), EmitError> {
        let aside = self.here();
        self.copy.out.put_unit(&code.aside);
        self.inside.push(Avma(aside)..Avma(self.here()));
        let at = |(part, offset): (InlinePart, u32)| match part {
            InlinePart::Main => main + u64::from(offset),
            InlinePart::Aside => aside + u64::from(offset),
        };
        for jump in &code.jumps {
            self.copy.out.patch_relative(at(jump.field), jump.to.map_or(*probe, at))?;
        }
        Ok(())
    }

    /// Adds a jump to the counting copy of a block.
    fn jump(&mut self, to: BlockId, back: u64) -> Result<(), EmitError> {
        self.note(self.copy.label(to)?);
        let here = self.here();
        self.copy.out.jmp(here, Back::To(back))?;
        self.fixups.push(Fixup { field: here + 1, block: to });
        Ok(())
    }

    fn write(mut self) -> Result<CountingCopy, EmitError> {
        let start = self.here();
        let code = self.copy.code;
        let mut falls = false;
        for (index, block) in code.blocks.entries() {
            if !falls {
                if self.entered.contains(&index) {
                    self.gate(index)?;
                } else if let Some(stub) = self.stub_before(block.start) {
                    self.passage_of(&stub)?;
                }
            }
            self.labels.push(self.copy.out.here());
            falls = self.block(index, block)? && self.run_on(index, block.end)?;
        }
        let mut left: Vec<BlockId> = self.entered.iter().copied().collect();
        left.retain(|block| self.gates.iter().all(|gate| gate.block != *block));
        left.sort_unstable();
        for block in left {
            self.gate(block)?;
            self.jump(block, self.copy.start(block)?)?;
        }
        for stub in std::mem::take(&mut self.stubs) {
            self.stub(&stub)?;
        }
        for code in std::mem::take(&mut self.placed) {
            self.aside(&code)?;
        }
        for Fixup { field, block } in std::mem::take(&mut self.fixups) {
            let to = self.labels.get(block).copied().ok_or(CodegenError::NoSuchBlock(block))?;
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
            apart: None,
            blocks: self.labels.iter().map(|label| Avma(*label)).collect(),
            gates: self.gates,
            moves: self.moves,
            inside: united(self.inside),
            saving: united(self.saving),
            open: true,
        })
    }

    /// Adds the way in at a block: the check whether the thread owns its shard, and the passages of the arrival.
    fn gate(&mut self, block: BlockId) -> Result<(), EmitError> {
        let (start, ordinary) = (self.copy.start(block)?, self.copy.arrival(block)?);
        let Some(register) = self.register(block) else { return Err(EmitError::OutOfReach) };
        let back = Back::To(start);
        // The first bytes become a jump when the copy is given up.
        while straddles(self.here(), PROBE as u64) {
            self.note(ordinary);
            self.copy.out.put(&[0x90], back);
        }
        self.gates.push(Gate { block, at: Avma(self.here()), arrival: Avma(ordinary), bytes: [0; PROBE] });
        self.note(ordinary);
        match register {
            GateRegister::Free(r) => self.compare_owner(r, ordinary, back)?,
            GateRegister::Saved(offset) => self.compare_owner_in_saved(offset, back),
            GateRegister::WithoutFlags(offset) => self.compare_owner_without_flags(offset, (ordinary, back))?,
        }
        if !matches!(register, GateRegister::WithoutFlags(_)) {
            self.note(ordinary);
            self.copy.out.put_relative(&[0x0f, 0x80 | NOT_EQUAL], ordinary, back)?;
        }
        for point in self.copy.arrivals_of(block)?.iter().flatten() {
            self.pass(point, start)?;
        }
        Ok(())
    }

    /// Compares the thread with the owner of its shard, in a free register.
    fn compare_owner(&mut self, r: Gpr, ordinary: u64, back: Back) -> Result<(), EmitError> {
        let owner = self.env.data.displacement(OWNER);
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
        Ok(())
    }

    /// The same in a register that is saved below the red zone. A thread within it goes on to the end before it is moved.
    fn compare_owner_in_saved(&mut self, offset: u32, back: Back) {
        let (r, owner) = (Gpr(0), self.env.data.displacement(OWNER));
        self.copy.out.put(&LOWER_STACK, back);
        let first = self.here();
        self.copy.out.push_pop(0x50, r, Back::StepOut);
        self.copy.out.segment_absolute(0x64, 0x8b, r, false, offset, Back::StepOut);
        self.copy.out.segment_absolute(0x65, 0x39, r, false, owner, Back::StepOut);
        self.copy.out.push_pop(0x58, r, Back::StepOut);
        self.copy.out.put(&RAISE_STACK, Back::StepOut);
        let saving = Avma(first)..Avma(self.here());
        self.inside.push(saving.clone());
        self.saving.push(saving);
    }

    /// Compares the thread with the owner of its shard by the sum of one number and the complement of the other, which needs no flags, and leads other
    /// threads to the ordinary copy. A thread within it goes on to the end before it is moved.
    fn compare_owner_without_flags(&mut self, offset: u32, (ordinary, back): (u64, Back)) -> Result<(), EmitError> {
        let (rax, rcx, owner) = (Gpr(0), Gpr(1), self.env.data.displacement(OWNER));
        let out = &mut self.copy.out;
        out.put(&LOWER_STACK, back);
        let first = out.here();
        out.push_pop(0x50, rcx, Back::StepOut);
        out.push_pop(0x50, rax, Back::StepOut);
        out.segment_absolute(0x65, 0x8b, rcx, false, owner, Back::StepOut);
        // not rcx
        out.put(&[0x48, 0xf7, 0xd1], Back::StepOut);
        out.segment_absolute(0x64, 0x8b, rax, false, offset, Back::StepOut);
        // lea rcx, [rcx + rax + 1]
        out.put(&[0x48, 0x8d, 0x4c, 0x01, 0x01], Back::StepOut);
        out.push_pop(0x58, rax, Back::StepOut);
        // jrcxz, over the way to the ordinary copy
        out.put(&[0xe3, (1 + RAISE_STACK.len() + PROBE) as u8], Back::StepOut);
        out.push_pop(0x58, rcx, Back::StepOut);
        out.put(&RAISE_STACK, Back::StepOut);
        out.jmp(ordinary, Back::StepOut)?;
        out.push_pop(0x58, rcx, Back::StepOut);
        out.put(&RAISE_STACK, Back::StepOut);
        let saving = Avma(first)..Avma(self.here());
        self.inside.push(saving.clone());
        self.saving.push(saving);
        Ok(())
    }

    /// Copies a block. Returns whether control runs on behind it.
    fn block(&mut self, index: BlockId, block: &CodeBlock) -> Result<bool, EmitError> {
        let called = self.copy.is_called(index);
        if let Some(point) = self.passed_at.get(&index).copied() {
            self.pass(&point, block.start)?;
        }
        if !called {
            self.pass(&PointId::Block(self.copy.offset(block.start)), block.start)?;
        }
        for (n, part) in block.parts.iter().enumerate() {
            let known = self.copy.parts.get(index).and_then(|parts| parts.get(n)).copied();
            let ordinary = known.ok_or(EmitError::OutOfReach)?;
            match part {
                BlockInstruction::Kept { at, is_call } => {
                    let point = PointId::CallBefore(self.copy.offset(*at));
                    let passed = *is_call && !called && self.passages.contains_key(&point);
                    // The probe of a call is the jump itself.
                    let to = if passed { ordinary } else { *at };
                    self.note(ordinary);
                    self.copy.out.jmp(to, Back::To(*at))?;
                    return Ok(false);
                }
                BlockInstruction::Copied(d) => {
                    if self.instruction(index, d, ordinary)? {
                        return Ok(false);
                    }
                }
            }
        }
        Ok(true)
    }

    /// Copies an instruction whose ordinary copy lies at `ordinary`. Returns whether control never continues after it.
    fn instruction(&mut self, from: BlockId, d: &Displaced, ordinary: u64) -> Result<bool, EmitError> {
        let Some(target) = d.branch_target() else {
            if d.ends && self.copy.leaves(from) {
                self.pass(&PointId::Exit(self.copy.offset(d.at)), d.at)?;
            }
            let begin = self.here();
            relocate::emit(d, |target| target, &mut self.copy.out)?;
            self.like(begin, ordinary);
            return Ok(d.ends);
        };
        let inner = self.copy.block_at(target);
        let point = match inner {
            Some(to) => self.copy.edge(from, to, EdgeKind::Taken)?,
            None => PointId::Exit(self.copy.offset(d.at)),
        };
        let at_target = inner.is_some_and(|to| self.passed_at.get(&to) == Some(&point));
        let is_point = !at_target && self.passages.contains_key(&point);
        let is_plain_jump = d.ends && d.condition().is_none();
        if is_point && is_plain_jump {
            // After the passage, a thread has taken the jump.
            self.pass(&point, d.at)?;
            return self.leads(inner, target).map(|()| true);
        }
        if let (true, Some((condition, _)), Some(to)) = (is_point, d.condition(), inner)
            && target <= d.at
            && self.length(&point) + PROBE as u64 <= SHORT_REACH
        {
            return self.back_branch((to, target), &point, (condition, d.at), ordinary).map(|()| false);
        }
        if let (Some((condition, _)), false, Some(label)) =
            (d.condition(), is_point, inner.and_then(|to| self.labels.get(to)))
            && self.copy.out.jcc_short(condition, *label, Back::To(d.at)).is_ok()
        {
            let begin = self.here() - SHORT_BRANCH;
            self.moves.push(PcMove { from: Avma(begin), to: Avma(ordinary) });
            return Ok(d.ends);
        }
        let begin = self.here();
        let through = is_point && !is_plain_jump;
        // The displacement is written later.
        let is_later = inner.is_some() || through;
        relocate::emit(d, |target| if is_later { begin } else { target }, &mut self.copy.out)?;
        self.like(begin, ordinary);
        let field = self.here() - 4;
        match inner {
            _ if through => self.stubs.push(Stub { field, point, target }),
            Some(block) => self.fixups.push(Fixup { field, block }),
            None => {}
        }
        Ok(d.ends)
    }

    /// Adds a conditional branch that probably stays in a loop: the opposite branch leads over the passage and a jump.
    fn back_branch(
        &mut self,
        (to, target): (BlockId, u64),
        point: &PointId,
        (condition, at): (u8, u64),
        ordinary: u64,
    ) -> Result<(), EmitError> {
        self.note(ordinary);
        let length = self.length(point) + PROBE as u64;
        let over = self.here() + SHORT_BRANCH + length;
        self.copy.out.jcc_short(condition ^ 1, over, Back::To(at))?;
        self.pass(point, target)?;
        self.jump(to, target)
    }

    /// Length in bytes of the passage of a point.
    fn length(&self, point: &PointId) -> u64 {
        match self.passages.get(point) {
            Some((Passage::Count(_), _)) => COUNT.len() as u64 + 4,
            Some((Passage::Inline(code), _)) => code.main.len() as u64,
            Some((Passage::Leave(_), _)) => PROBE as u64,
            None => 0,
        }
    }

    /// Takes a stub that leads to a block, which comes next.
    fn stub_before(&mut self, start: u64) -> Option<Stub> {
        let index = self.stubs.iter().rposition(|stub| stub.target == start)?;
        Some(self.stubs.remove(index))
    }

    /// Notes for the instructions from `begin` on that they are equivalent to those from `ordinary` on, which are as long.
    fn like(&mut self, begin: u64, ordinary: u64) {
        let (own, _) = self.copy.out.exits(begin, self.copy.out.here());
        let moves = own.iter().map(|m| PcMove { from: m.from, to: Avma(ordinary + (m.from.0 - begin)) });
        self.moves.extend(moves);
    }

    /// Leads control from the end of a block to the block there. Returns whether the copy runs on into what follows it.
    fn run_on(&mut self, from: BlockId, end: u64) -> Result<bool, EmitError> {
        let Some(to) = self.copy.block_at(end) else {
            self.pass(&PointId::Exit(self.copy.offset(end)), end)?;
            self.note(end);
            self.copy.out.jmp(end, Back::To(end))?;
            return Ok(false);
        };
        self.pass(&self.copy.edge(from, to, EdgeKind::FallThrough)?, end)?;
        if to.index() == from.index() + 1 {
            return Ok(true);
        }
        self.jump(to, end)?;
        Ok(false)
    }

    /// Adds the passage that a taken branch runs through.
    fn passage_of(&mut self, stub: &Stub) -> Result<(), EmitError> {
        let here = self.here();
        self.copy.out.patch_relative(stub.field, here)?;
        self.pass(&stub.point, stub.target)
    }

    /// Adds the passage that a taken branch runs through, and a jump to its target.
    fn stub(&mut self, stub: &Stub) -> Result<(), EmitError> {
        self.passage_of(stub)?;
        self.leads(self.copy.block_at(stub.target), stub.target)
    }

    /// Adds a jump to an original address: to the counting copy of the block there, or out of the function.
    fn leads(&mut self, inner: Option<BlockId>, target: u64) -> Result<(), EmitError> {
        match inner {
            Some(block) => self.jump(block, target),
            None => {
                self.note(target);
                Ok(self.copy.out.jmp(target, Back::To(target))?)
            }
        }
    }
}
