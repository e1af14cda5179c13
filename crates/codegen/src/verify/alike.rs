//! Code that is another point's but for where it lies and which counters it takes: what abstract execution found there holds here as well, so
//! that of many points that do the same few are executed.
//!
//! Execution looks at an instruction's operands, at where control goes among the parts of the point's own code, and at constants of the plan.
//! Of a counter it asks only whether it is one; of the number by which a record is named, nothing; of a nop, nothing. What else is said of
//! a point, its slot and links and marks, is checked on its own bytes.

use iced_x86::{Code, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

use super::memory::Memory;
use super::walk::Facts;

/// Most pieces of code of one shape that are known: among more, looking for one costs what it saves.
const KNOWN_MAX: usize = 8;

/// A part of a point's code that moves as a whole: from its first byte to behind its last one. The way into the slow routine; from the first
/// instruction that is no displaced one to the tail; what lies aside of each snippet.
pub(super) type Part = (u64, u64);

/// Which of a point's parts is the one that ends with the tail.
const MAIN: usize = 1;

/// Instructions without a gap in a part.
struct Run {
    part: usize,
    /// Bytes from the part's beginning.
    offset: u64,
    /// Number of the first.
    first: usize,
    count: usize,
}

/// Code that was executed.
struct Known {
    parts: Box<[Part]>,
    runs: Vec<Run>,
    /// Per instruction whether a thread that stands on it has changed nothing that is live.
    harmless: Vec<bool>,
}

/// All that was executed so far, by shape: what must be the same before instructions are compared.
#[derive(Default)]
pub(super) struct Executed(FxHashMap<Box<[u64]>, Vec<Known>>);

impl Executed {
    /// The code of a point of that shape whose instructions are like those at `parts`: their numbers, and whether each is harmless.
    pub fn alike(&self, facts: &Facts<'_>, shape: &[u64], parts: &[Part]) -> Option<Vec<(usize, bool)>> {
        self.0.get(shape)?.iter().find_map(|known| known.numbers(facts, parts))
    }

    /// Notes what was executed: instructions by number, in order. Nothing if one is outside of the parts.
    pub fn keep(&mut self, memory: &Memory<'_>, shape: &[u64], parts: &[Part], visited: &[(usize, bool)]) {
        if !is_ordered(parts) || self.0.get(shape).is_some_and(|all| all.len() >= KNOWN_MAX) {
            return;
        }
        let mut runs: Vec<Run> = Vec::new();
        for (number, _) in visited {
            let Some(instruction) = memory.get(*number) else { return };
            let (at, end) = (instruction.ip(), instruction.next_ip());
            let Some(part) = parts.iter().position(|(from, until)| *from <= at && end <= *until) else { return };
            match runs.last_mut() {
                Some(run) if run.part == part && run.first + run.count == *number => run.count += 1,
                _ => runs.push(Run { part, offset: at - parts[part].0, first: *number, count: 1 }),
            }
        }
        let harmless = visited.iter().map(|(_, harmless)| *harmless).collect();
        let known = Known { parts: parts.into(), runs, harmless };
        self.0.entry(shape.into()).or_default().push(known);
    }
}

/// Execution asks whether control goes forwards: the parts lie one behind the other.
fn is_ordered(parts: &[Part]) -> bool {
    parts.iter().all(|(from, until)| from <= until) && parts.windows(2).all(|two| two[0].1 <= two[1].0)
}

impl Known {
    fn numbers(&self, facts: &Facts<'_>, parts: &[Part]) -> Option<Vec<(usize, bool)>> {
        if parts.len() != self.parts.len() || !is_ordered(parts) {
            return None;
        }
        let memory = facts.memory();
        let mut harmless = self.harmless.iter();
        let mut numbers = Vec::with_capacity(self.harmless.len());
        for run in &self.runs {
            let mut at = parts.get(run.part)?.0 + run.offset;
            let first = memory.number(at).ok()?;
            let ours = memory.from(first).get(..run.count)?;
            let theirs = memory.from(run.first).get(..run.count)?;
            for (number, (own, known)) in (first..).zip(ours.iter().zip(theirs)) {
                if own.ip() != at || !self.same(facts, known, own, parts) {
                    return None;
                }
                at = own.next_ip();
                numbers.push((number, *harmless.next()?));
            }
        }
        Some(numbers)
    }

    /// Where an address of the known code is in the other one; elsewhere it stays what it is.
    fn moved(&self, at: u64, parts: &[Part]) -> u64 {
        let tail = self.parts.get(MAIN).is_some_and(|(_, tail)| *tail == at).then_some(MAIN);
        let within = || self.parts.iter().position(|(from, until)| (*from..*until).contains(&at));
        match tail.or_else(within) {
            Some(part) => parts[part].0 + (at - self.parts[part].0),
            None => at,
        }
    }

    /// Whether execution cannot tell the instructions apart.
    fn same(&self, facts: &Facts<'_>, known: &Instruction, own: &Instruction, parts: &[Part]) -> bool {
        if known.code() != own.code() || known.len() != own.len() || own.is_invalid() {
            return false;
        }
        if own.is_jmp_short_or_near() || own.is_jcc_short_or_near() {
            return self.moved(known.near_branch_target(), parts) == own.near_branch_target();
        }
        if own.is_ip_rel_memory_operand() || known.is_ip_rel_memory_operand() {
            let leads = self.moved(known.ip_rel_memory_address(), parts) == own.ip_rel_memory_address();
            let both = own.is_ip_rel_memory_operand() && known.is_ip_rel_memory_operand();
            return both && leads && own.code() == Code::Lea_r64_m && own.op0_register() == known.op0_register();
        }
        if matches!(own.code(), Code::Nop_rm32 | Code::Nop_rm16) || own == known {
            return true;
        }
        let mut expected = *known;
        if is_counter(facts, known) && is_counter(facts, own) {
            expected.set_memory_displacement64(own.memory_displacement64());
        }
        if is_name(facts, known) && is_name(facts, own) {
            expected.set_immediate32(own.immediate32());
        }
        expected == *own
    }
}

/// Whether its operand in memory is one counter, of a thread's shard or of shard 0.
fn is_counter(facts: &Facts<'_>, i: &Instruction) -> bool {
    let data = &facts.env().data;
    let place = i.memory_displacement64();
    i.op_kinds().any(|kind| kind == OpKind::Memory)
        && matches!(i.memory_segment(), Register::GS | Register::DS)
        && i.memory_base() == Register::None
        && i.memory_index() == Register::None
        && place >= u64::from(data.counter(0))
        && place + 8 <= u64::from(data.displacement(data.records()))
        && place % 8 == data.base.0 % 8
}

/// Whether it compares, stores or loads a number that is no address which execution would know.
fn is_name(facts: &Facts<'_>, i: &Instruction) -> bool {
    match i.code() {
        Code::Mov_rm32_imm32 | Code::Cmp_rm32_imm32 => i.op0_kind() == OpKind::Memory,
        Code::Mov_r32_imm32 => !facts.may_call(u64::from(i.immediate32())),
        _ => false,
    }
}
