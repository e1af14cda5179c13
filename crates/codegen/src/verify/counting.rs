//! Proof of the counting copy of a function, after that of the ordinary one. The text and the counting copy are decoded side by side.
//!
//! The counting copy passes if
//! - every gate compares the thread with the owner of its shard, and leads all others to the arrival in the ordinary copy. It uses flags that are
//!   free and a register that is free or saved below the red zone, or no flags and two registers that are saved there;
//! - each block has one copy, whose instructions have the same effect, and every edge leads to the counting copy of its target;
//! - each point of the request that has a probe is passed where the probe is, by one increment of its counter, by other code, or by a jump to
//!   the probe; nothing else is added;
//! - other code changes nothing that the function may need, and goes on behind itself or to the probe;
//! - no instruction changes the shard to which the thread has come;
//! - each instruction has one equivalent address in the text and one in the ordinary copy.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use ingraft_model::layout::OWNER;
use ingraft_model::machine::{PAGE, SPRINGBOARD};
use ingraft_model::{Avma, AvmaRange, BlockId, BodyBlock, EdgeKind, Gpr, PcMove, PointId, ThreadIdentity};
use rustc_hash::FxHashMap;

use super::body::{BodyProof, stays, target};
use super::equivalence::equal;
use super::interpreter::{Interpreter, PlanFacts};
use super::memory::decode;
use super::state::RED_ZONE;
use super::{Flaw, VerifyError, fail};
use crate::code::arena::Arena;
use crate::code::block::jmp_target;
use crate::code::body::{CountingCopy, Gate, Held};
use crate::code::environment::Environment;
use crate::patch::body::BodyCode;
use crate::snippet::inline::InlineCode;

/// First bytes of `inc qword gs:[disp32]`.
pub(super) const INCREMENT: [u8; 5] = [0x65, 0x48, 0xff, 0x04, 0x25];

/// Proves the counting copy, if there is one.
pub(super) fn prove(env: &Environment, arena: &Arena, proof: &mut BodyProof<'_>) -> Result<(), VerifyError> {
    let Some(counting) = proof.body.counting.as_ref() else { return Ok(()) };
    let at = counting.code.start.0;
    let end = counting.apart.as_ref().unwrap_or(&proof.body.removal).code.end;
    let sorted = counting.gates.windows(2).all(|pair| pair[0].block < pair[1].block);
    if !counting.open || env.identity == ThreadIdentity::Locked || !sorted {
        return fail(at, Flaw::Unmatched);
    }
    if counting.blocks.len() != proof.request.body.blocks.len() {
        return fail(at, Flaw::Unmatched);
    }
    let mut passages = FxHashMap::default();
    for point in proof.request.points {
        let Some(probe) = proof.claimed(&point.point) else { continue };
        let passage = match &point.code {
            BodyCode::Count(counter) if *counter >= env.data.counters() => return fail(at, Flaw::Unmatched),
            BodyCode::Count(counter) => ProvenPassage::Count(env.data.counter(*counter)),
            BodyCode::Inline(code) => {
                let is_branch = proof.held_at(&point.point).is_some_and(|held| matches!(held, Held::Branch(..)));
                ProvenPassage::Inline(code, is_branch)
            }
            BodyCode::Elsewhere => ProvenPassage::Leave,
        };
        if passages.insert(point.point, (passage, probe.0)).is_some() {
            return fail(at, Flaw::Unmatched);
        }
    }
    let mut into: FxHashMap<BlockId, (PointId, u32)> = FxHashMap::default();
    for edge in &proof.request.body.edges {
        let Some(to) = target(edge) else { continue };
        let point = proof.edge(edge.from, to, edge.kind)?;
        into.entry(to).or_insert((point, 0)).1 += 1;
    }
    let memory = proof.memory;
    let facts = PlanFacts::new(env, arena, memory, std::iter::empty());
    let interpreter = Interpreter::new(&facts);
    let mut checked =
        Checked { env, proof, counting, interpreter, passages, into, moves: Vec::new(), saving: Vec::new() };
    for (index, block) in checked.proof.request.body.blocks.entries() {
        checked.block(index, block)?;
    }
    for gate in &counting.gates {
        match counting.apart {
            None => checked.gate(gate, gate.at.0)?,
            // The five bytes at an older gate are a jump to the gate, or to the arrival.
            Some(_) => match jmp_target(gate.at.0, &gate.bytes) {
                Some(to) if to == gate.arrival.0 => checked.closed(gate)?,
                Some(to) => checked.gate(gate, to)?,
                None => return fail(gate.at.0, Flaw::Astray),
            },
        }
    }
    checked.moves.sort_unstable();
    checked.saving.sort_unstable_by_key(|range| range.start);
    // A counting copy that lies apart may lie below the ordinary copy.
    let inside = checked.proof.inside(|at| counting.code.contains(&at));
    if inside != counting.inside || checked.saving != counting.saving {
        return fail(at, Flaw::BadMove);
    }
    let all = checked.moves.first().is_some_and(|first| first.from == counting.code.start) && counting.code.end == end;
    if checked.moves == counting.moves && all { Ok(()) } else { fail(at, Flaw::BadMove) }
}

/// Way in which a point is passed.
#[derive(Clone, Copy)]
enum ProvenPassage<'a> {
    /// The increment of the counter at this displacement.
    Count(u32),
    /// Other code, and whether its probe holds a conditional jump.
    Inline(&'a InlineCode, bool),
    /// A jump to the probe.
    Leave,
}

struct Checked<'c, 'a> {
    env: &'c Environment,
    proof: &'c mut BodyProof<'a>,
    counting: &'a CountingCopy,
    interpreter: Interpreter<'c>,
    /// For each point, how it is passed, and its probe in the ordinary copy.
    passages: FxHashMap<PointId, (ProvenPassage<'a>, u64)>,
    /// For each block to which edges lead, the point of one of them, and their number.
    into: FxHashMap<BlockId, (PointId, u32)>,
    /// The instructions that were met, each with the equivalent address in the ordinary copy.
    moves: Vec<PcMove>,
    /// Code of gates in which a register is saved.
    saving: Vec<AvmaRange>,
}

impl Checked<'_, '_> {
    /// Takes the instruction at `at`, with its equivalents in the text and in the ordinary copy.
    fn take(&mut self, at: u64, original: u64, ordinary: u64) -> Result<Instruction, VerifyError> {
        self.moves.push(PcMove { from: Avma(at), to: Avma(ordinary) });
        self.proof.take(at, original)
    }

    /// Address of the counting copy of a block.
    fn label(&self, block: BlockId) -> Result<u64, VerifyError> {
        match self.counting.blocks.get(block) {
            Some(at) => Ok(at.0),
            None => fail(self.counting.code.start.0, Flaw::Unmatched),
        }
    }

    /// Takes the passage of a point, if something is woven there. Returns the address after it.
    fn pass(&mut self, at: u64, point: &PointId, original: u64) -> Result<u64, VerifyError> {
        let Some(&(passage, probe)) = self.passages.get(point) else { return Ok(at) };
        let i = self.take(at, original, probe)?;
        let leaves = i.code() == Code::Jmp_rel32_64 && i.near_branch_target() == probe;
        let right = match passage {
            ProvenPassage::Inline(code, is_branch) if !leaves => return self.inline(&i, code, (probe, is_branch)),
            ProvenPassage::Count(counter) => {
                let bytes = self.proof.memory.bytes(at).unwrap_or_default();
                let operand = bytes.get(INCREMENT.len()..INCREMENT.len() + 4);
                bytes.starts_with(&INCREMENT) && operand == Some(&counter.to_le_bytes())
            }
            ProvenPassage::Inline(..) | ProvenPassage::Leave => leaves,
        };
        if right { Ok(i.next_ip()) } else { fail(at, Flaw::NotEquivalent) }
    }

    /// Takes the code of a point, whose first instruction was taken. Returns the address after it.
    fn inline(
        &mut self,
        first: &Instruction,
        code: &InlineCode,
        (probe, is_branch): (u64, bool),
    ) -> Result<u64, VerifyError> {
        let (at, second, point) = (first.ip(), first.next_ip(), code.point);
        let claimed = self.counting.inside.binary_search_by_key(&Avma(second), |range| range.start).ok();
        let end = claimed.and_then(|index| self.counting.inside.get(index)).map_or(second, |range| range.end.0);
        // The counters are those of the request.
        if end.checked_sub(at).is_none_or(|len| !code.is_main(self.proof.memory.bytes(at).unwrap_or_default(), len)) {
            return fail(at, Flaw::NotEquivalent);
        }
        for (instruction, end) in self.interpreter.inline((at, end), point, probe)? {
            if instruction != at {
                self.proof.take_inside(instruction, end)?;
            }
        }
        // Code that saves the flags has them back at the probe.
        if is_branch && point.flags() {
            self.interpreter.takes_branch(probe)?;
        }
        Ok(end)
    }

    /// The point of the edge that alone leads to a block, if its passage must be at the block: a taken branch, and the block has no gate.
    fn passed_at(&self, block: BlockId) -> Option<PointId> {
        let (point, 1) = self.into.get(&block)? else { return None };
        let is_taken = matches!(point, PointId::Edge { kind: EdgeKind::Taken, .. });
        let gated = self.counting.gate(block).is_some_and(Gate::opens);
        let alone = !gated && !self.proof.calls.contains_key(&block);
        Some(*point).filter(|_| is_taken && alone)
    }

    /// Address of the instruction in the ordinary copy of a block.
    fn ordinary(&self, block: BlockId, at: u64) -> Result<u64, VerifyError> {
        match self.proof.copied.get(&(block, at)) {
            Some(ordinary) => Ok(*ordinary),
            None => fail(at, Flaw::Unmatched),
        }
    }

    fn block(&mut self, index: BlockId, block: &BodyBlock) -> Result<(), VerifyError> {
        let (start, label) = (self.proof.start(index)?, self.label(index)?);
        let is_called = self.proof.calls.contains_key(&index);
        let mut copy = label;
        if let Some(point) = self.passed_at(index) {
            copy = self.pass(copy, &point, start)?;
        }
        if !is_called {
            copy = self.pass(copy, &PointId::Block(self.proof.offset(start)), start)?;
        }
        let (mut at, mut rest) = (start, block.bytes.as_slice());
        while !rest.is_empty() {
            let original = decode(rest, at)?;
            let is_last = rest.len() == original.len();
            if sets_gs(&original) {
                return fail(at, Flaw::Forbidden);
            }
            if stays(&original) {
                let point = PointId::CallBefore(self.proof.offset(at));
                let ordinary = self.ordinary(index, at)?;
                let passed = !is_called && self.passages.contains_key(&point);
                let jump = self.take(copy, at, ordinary)?;
                let to = if passed { ordinary } else { at };
                let right = jump.code() == Code::Jmp_rel32_64 && jump.near_branch_target() == to;
                return if right && is_last { Ok(()) } else { fail(copy, Flaw::NotEquivalent) };
            }
            let Some(next) = self.instruction(index, &original, copy)? else {
                return if is_last { Ok(()) } else { fail(copy, Flaw::NotEquivalent) };
            };
            (copy, at) = (next, original.next_ip());
            rest = rest.get(original.len()..).unwrap_or_default();
        }
        self.run_on(index, at, copy)
    }

    /// Compares the end of a block that runs on.
    fn run_on(&mut self, from: BlockId, end: u64, copy: u64) -> Result<(), VerifyError> {
        let to = self.proof.block_at(end);
        let point = match to {
            Some(to) => self.proof.edge(from, to, EdgeKind::FallThrough)?,
            None => PointId::Exit(self.proof.offset(end)),
        };
        let after = self.pass(copy, &point, end)?;
        let ways = self.ways(to, end)?;
        if to.is_some() && ways.0 == after { Ok(()) } else { self.jump(after, end, ways) }
    }

    /// Addresses of a block in the counting copy and in the ordinary one. For no block, an address outside of the function, which is the same
    /// for both.
    fn ways(&self, block: Option<BlockId>, outside: u64) -> Result<(u64, u64), VerifyError> {
        match block {
            Some(block) => Ok((self.label(block)?, self.proof.label(block)?)),
            None => Ok((outside, outside)),
        }
    }

    /// Takes a jump to an address, which is equivalent to `ordinary` in the ordinary copy.
    fn jump(&mut self, at: u64, original: u64, (to, ordinary): (u64, u64)) -> Result<(), VerifyError> {
        let jump = self.take(at, original, ordinary)?;
        let right = jump.code() == Code::Jmp_rel32_64 && jump.near_branch_target() == to;
        if right { Ok(()) } else { fail(at, Flaw::NotEquivalent) }
    }

    /// Compares an instruction with its copy. Returns the end of the copy, or `None` if control never continues there.
    fn instruction(&mut self, from: BlockId, o: &Instruction, copy: u64) -> Result<Option<u64>, VerifyError> {
        let at = o.ip();
        let ordinary = self.ordinary(from, at)?;
        let branches = matches!(o.flow_control(), FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch);
        if !branches {
            let ends = matches!(o.flow_control(), FlowControl::Return | FlowControl::IndirectBranch);
            let leaves = ends && !self.proof.leading.contains(&from);
            let copy = if leaves { self.pass(copy, &PointId::Exit(self.proof.offset(at)), at)? } else { copy };
            let c = self.take(copy, at, ordinary)?;
            let plain = ends || o.flow_control() == FlowControl::Next && !o.is_privileged();
            return if plain && equal(o, &c) {
                Ok((!ends).then_some(c.next_ip()))
            } else {
                fail(copy, Flaw::NotEquivalent)
            };
        }
        let target = o.near_branch_target();
        let to = self.proof.block_at(target);
        let point = match to {
            Some(to) => self.proof.edge(from, to, EdgeKind::Taken)?,
            None => PointId::Exit(self.proof.offset(at)),
        };
        let (label, taken) = self.ways(to, target)?;
        let at_target = to.is_some_and(|to| self.passed_at(to) == Some(point));
        if o.is_jmp_short_or_near() {
            let after = if at_target { copy } else { self.pass(copy, &point, at)? };
            // After the passage, a thread has taken the jump.
            let (original, ordinary) = if after == copy { (at, ordinary) } else { (target, taken) };
            self.jump(after, original, (label, ordinary))?;
            return Ok(None);
        }
        let first = self.take(copy, at, ordinary)?;
        let opposes = first.is_jcc_short_or_near() && first.condition_code() != o.condition_code();
        if opposes && !at_target && o.is_jcc_short_or_near() {
            // The opposite branch leads over the passage and a jump.
            let mut opposite = first;
            opposite.negate_condition_code();
            let after = self.pass(first.next_ip(), &point, target)?;
            self.jump(after, target, (label, taken))?;
            let over = first.near_branch_target();
            let right = opposite.condition_code() == o.condition_code() && over == after + SPRINGBOARD;
            return if right { Ok(Some(over)) } else { fail(copy, Flaw::NotEquivalent) };
        }
        let jump = if o.is_jcc_short_or_near() {
            let same = first.is_jcc_short_or_near() && first.condition_code() == o.condition_code();
            Some(first).filter(|_| same)
        } else {
            // loop 1f; jmp 2f; 1: jmp target; 2:
            let over = self.take(first.next_ip(), o.next_ip(), ordinary + first.len() as u64)?;
            let jump = self.take(over.next_ip(), target, ordinary + (first.len() + over.len()) as u64)?;
            let same = first.code() == o.code() && (o.is_loop() || o.is_loopcc() || o.is_jcx_short());
            let leads = first.near_branch_target() == jump.ip()
                && over.is_jmp_short_or_near()
                && over.near_branch_target() == jump.next_ip();
            Some(jump).filter(|_| same && leads && jump.is_jmp_near())
        };
        let Some(jump) = jump else { return fail(copy, Flaw::NotEquivalent) };
        let leads_to = jump.near_branch_target();
        if self.passages.contains_key(&point) && !at_target {
            let after = self.pass(leads_to, &point, target)?;
            if after != label {
                self.jump(after, target, (label, taken))?;
            }
        } else if leads_to != label {
            return fail(copy, Flaw::NotEquivalent);
        }
        Ok(Some(jump.next_ip()))
    }

    /// Checks that a closed gate leads to the arrival of its block.
    fn closed(&self, gate: &Gate) -> Result<(), VerifyError> {
        let right = gate.arrival.0 == self.proof.arrival(gate.block)? && gate.at.0 % PAGE <= PAGE - SPRINGBOARD;
        if right { Ok(()) } else { fail(gate.at.0, Flaw::Unmatched) }
    }

    /// Checks the way in at a block. `at` is its first byte.
    fn gate(&mut self, gate: &Gate, mut at: u64) -> Result<(), VerifyError> {
        let block = gate.block;
        let (start, arrival) = (self.proof.start(block)?, self.proof.arrival(block)?);
        let (label, ordinary) = self.ways(Some(block), start)?;
        let Some(own) = self.proof.request.body.blocks.get(block) else { return fail(at, Flaw::Unmatched) };
        let first = self.proof.memory.bytes(at).unwrap_or_default();
        let leads = at != gate.at.0 || first.starts_with(&gate.bytes);
        if gate.arrival.0 != arrival || !leads || gate.at.0 % PAGE > PAGE - SPRINGBOARD {
            return fail(at, Flaw::Unmatched);
        }
        // Nops before the gate keep its first bytes on one page.
        let mut before = at;
        while before > self.counting.code.start.0
            && !self.proof.ends.contains_key(&(before - 1))
            && self.proof.memory.bytes(before - 1).is_some_and(|bytes| bytes.starts_with(&[0x90]))
        {
            before -= 1;
            self.take(before, start, gate.arrival.0)?;
        }
        if let ThreadIdentity::FsOffset(offset) = self.env.identity
            && moves_stack(&decode(first, at)?, RED_ZONE.wrapping_neg())
        {
            let lower = self.take(at, start, gate.arrival.0)?;
            if !own.free.flags {
                let end = self.compares_without_flags(lower.next_ip(), offset, gate.arrival.0)?;
                return self.arrivals(block, end, (start, label, ordinary));
            }
            let end = self.compares_in_saved(lower.next_ip(), offset)?;
            let leave = self.take(end, start, gate.arrival.0)?;
            if !(leave.code() == Code::Jne_rel32_64 && leave.near_branch_target() == gate.arrival.0) {
                return fail(gate.at.0, Flaw::NotEquivalent);
            }
            return self.arrivals(block, leave.next_ip(), (start, label, ordinary));
        }
        let mut take = |checked: &mut Self| {
            let i = checked.take(at, start, gate.arrival.0)?;
            at = i.next_ip();
            Ok::<_, VerifyError>(i)
        };
        let unless = |i: &Instruction, code: Code| i.code() == code && i.near_branch_target() == gate.arrival.0;
        let data = &self.env.data;
        let (alive, owner) = (u64::from(data.alive()), u64::from(data.displacement(OWNER)));
        let (load, compare, right) = match self.env.identity {
            ThreadIdentity::FsOffset(offset) => {
                let load = take(self)?;
                let right = load.code() == Code::Mov_r32_rm32 && at_address(&load, Register::FS, offset.into());
                (load, take(self)?, right)
            }
            ThreadIdentity::FsBase | ThreadIdentity::Locked => {
                let lives = take(self)?;
                let dead = take(self)?;
                let load = take(self)?;
                let right = lives.code() == Code::Cmp_rm32_imm8
                    && lives.immediate8() == 0
                    && at_address(&lives, Register::None, alive)
                    && unless(&dead, Code::Je_rel32_64)
                    && load.code() == Code::Rdfsbase_r64;
                (load, take(self)?, right)
            }
        };
        let leave = take(self)?;
        let is_wide = compare.code() == Code::Cmp_rm64_r64 && load.code() == Code::Rdfsbase_r64;
        let is_narrow = compare.code() == Code::Cmp_rm32_r32 && load.code() == Code::Mov_r32_rm32;
        let r = load.op0_register();
        let is_free = own.free.scratch.iter().any(|free| Gpr(r.full_register().number() as u8) == *free);
        let compares =
            (is_wide || is_narrow) && at_address(&compare, Register::GS, owner) && compare.op1_register() == r;
        if !(right && compares && is_free && own.free.flags && unless(&leave, Code::Jne_rel32_64)) {
            return fail(gate.at.0, Flaw::NotEquivalent);
        }
        self.arrivals(block, at, (start, label, ordinary))
    }

    /// Checks that a gate compares the thread with the owner of its shard in a register that it saves below the red zone. Returns the address
    /// behind that. No thread can be moved from there before it has the register back. `offset` is that of the word that identifies a thread.
    fn compares_in_saved(&mut self, mut at: u64, offset: u32) -> Result<u64, VerifyError> {
        let first = at;
        let mut next = || {
            let i = decode(self.proof.memory.bytes(at).unwrap_or_default(), at)?;
            self.proof.take_inside(at, i.next_ip())?;
            at = i.next_ip();
            Ok::<_, VerifyError>(i)
        };
        let (push, load, compare, pop, raise) = (next()?, next()?, next()?, next()?, next()?);
        let (r, half) = (push.op0_register(), load.op0_register());
        let right = push.code() == Code::Push_r64
            && pop.code() == Code::Pop_r64
            && pop.op0_register() == r
            && r != Register::RSP
            && load.code() == Code::Mov_r32_rm32
            && half.full_register() == r
            && at_address(&load, Register::FS, offset.into())
            && compare.code() == Code::Cmp_rm32_r32
            && compare.op1_register() == half
            && at_address(&compare, Register::GS, self.env.data.displacement(OWNER).into())
            && moves_stack(&raise, RED_ZONE);
        self.saving.push(Avma(first)..Avma(at));
        if right { Ok(at) } else { fail(first, Flaw::NotEquivalent) }
    }

    /// Checks that a gate compares the thread with the owner of its shard in registers that it saves below the red zone, without a change of flags,
    /// and leads all others to `arrival`. Returns the address behind that.
    fn compares_without_flags(&mut self, first: u64, offset: u32, arrival: u64) -> Result<u64, VerifyError> {
        let owner = self.env.data.displacement(OWNER);
        let Some(code) = without_flags(first, (offset, owner), arrival) else { return fail(first, Flaw::Astray) };
        let end = first + code.len() as u64;
        if !self.proof.memory.bytes(first).is_some_and(|bytes| bytes.starts_with(&code)) {
            return fail(first, Flaw::NotEquivalent);
        }
        let mut at = first;
        while at < end {
            let i = decode(self.proof.memory.bytes(at).unwrap_or_default(), at)?;
            self.proof.take_inside(at, i.next_ip())?;
            at = i.next_ip();
        }
        self.saving.push(Avma(first)..Avma(end));
        Ok(end)
    }

    /// Checks what lies behind the comparison of a gate: the passages of the arrival, and the way to the block.
    fn arrivals(
        &mut self,
        block: BlockId,
        mut at: u64,
        (start, label, ordinary): (u64, u64, u64),
    ) -> Result<(), VerifyError> {
        for point in self.proof.arrivals_at(block)? {
            at = self.pass(at, &point, start)?;
        }
        if at == label {
            return Ok(());
        }
        self.jump(at, start, (label, ordinary))
    }
}

/// The one form of a comparison without flags, from where the stack pointer is below the red zone. A thread is told apart by the word at `offset`
/// from the fs base, the owner by that at `owner` from the gs base.
fn without_flags(at: u64, (offset, owner): (u32, u32), arrival: u64) -> Option<Vec<u8>> {
    const RAISE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
    // push rcx; push rax; mov ecx, gs:[owner]
    let mut code = vec![0x51, 0x50, 0x65, 0x8b, 0x0c, 0x25];
    code.extend(owner.to_le_bytes());
    // not rcx; mov eax, fs:[offset]
    code.extend([0x48, 0xf7, 0xd1, 0x64, 0x8b, 0x04, 0x25]);
    code.extend(offset.to_le_bytes());
    // lea rcx, [rcx + rax + 1]; pop rax; jrcxz +14; pop rcx; lea rsp, [rsp + 128]; jmp arrival
    code.extend([0x48, 0x8d, 0x4c, 0x01, 0x01, 0x58, 0xe3, 14, 0x59]);
    code.extend(RAISE);
    let next = at + code.len() as u64 + SPRINGBOARD;
    code.push(0xe9);
    code.extend(i32::try_from(arrival.wrapping_sub(next).cast_signed()).ok()?.to_le_bytes());
    // pop rcx; lea rsp, [rsp + 128]
    code.push(0x59);
    code.extend(RAISE);
    Some(code)
}

/// Whether an instruction adds a number to the stack pointer, and does nothing else.
pub(super) fn moves_stack(i: &Instruction, by: u64) -> bool {
    i.code() == Code::Lea_r64_m
        && i.op0_register() == Register::RSP
        && i.memory_base() == Register::RSP
        && i.memory_index() == Register::None
        && i.memory_displacement64() == by
}

/// Whether the memory operand of an instruction is an absolute address, in this segment if it names one.
pub(super) fn at_address(i: &Instruction, segment: Register, address: u64) -> bool {
    let operand = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Memory);
    operand
        && i.memory_base() == Register::None
        && i.memory_index() == Register::None
        && i.segment_prefix() == segment
        && i.memory_displacement64() as u32 == address as u32
}

/// Whether an instruction writes the gs segment or its base.
fn sets_gs(i: &Instruction) -> bool {
    let loads = i.op_count() > 0 && i.op0_kind() == OpKind::Register && i.op0_register() == Register::GS;
    let pushes = i.mnemonic() == Mnemonic::Push;
    loads && !pushes || matches!(i.mnemonic(), Mnemonic::Wrgsbase | Mnemonic::Swapgs | Mnemonic::Lgs)
}
