//! Code that is another point's but for where it lies and which counters it takes: what abstract execution found there holds here as well, so
//! that of many points that do the same few are executed.
//!
//! Execution looks at an instruction's operands, at where control goes among the parts of the point's own code, and at constants of the plan.
//! Of a counter it asks only whether it is one; of the number by which a record is named, nothing; of a nop, nothing. What else is said of
//! a point, its slot and links and marks, is checked on its own bytes.

use std::sync::{Arc, PoisonError, RwLock};

use iced_x86::{Code, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

use super::memory::decode;
use super::walk::Facts;

/// Most pieces of code of one shape that are known: among more, looking for one costs what it saves.
const KNOWN_MAX: usize = 8;

/// A part of a point's code that moves as a whole: from its first byte to behind its last one. The way into the slow routine; from the first
/// instruction that is no displaced one to the tail; what lies aside of each snippet.
pub(super) type Part = (u64, u64);

/// Which of a point's parts is the one that ends with the tail.
const MAIN: usize = 1;

/// Code that was executed.
pub(super) struct Known {
    parts: Box<[Part]>,
    runs: Vec<Run>,
}

/// Instructions without a gap in a part.
struct Run {
    part: usize,
    /// Bytes from the part's beginning.
    offset: u64,
    bytes: Vec<u8>,
    steps: Vec<Step>,
}

/// An instruction, as it is in the known code.
struct Step {
    instruction: Instruction,
    /// Whether the same bytes mean the same: it leads nowhere out of its part.
    rigid: bool,
    /// Whether a thread that stands on it has changed nothing that is live.
    harmless: bool,
}

/// All that was executed so far, on any processor, by shape: what must be the same before instructions are compared.
#[derive(Default)]
pub(super) struct Executed(RwLock<ByShape>);

type ByShape = FxHashMap<Box<[u64]>, Vec<Arc<Known>>>;

impl Executed {
    /// What the code at `parts`, of that shape, is like.
    pub fn alike(&self, facts: &Facts<'_>, shape: &[u64], parts: &[Part]) -> Option<Arc<Known>> {
        // nothing can panic while it is written
        let executed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let all = executed.get(shape).filter(|_| is_ordered(parts))?;
        all.iter().find(|known| known.is_like(facts, parts)).map(Arc::clone)
    }

    /// Notes what was executed: where instructions begin, and whether each is harmless. Nothing if one is outside of the parts.
    pub fn keep(&self, facts: &Facts<'_>, shape: &[u64], parts: &[Part], mut visited: Vec<(u64, bool)>) {
        let memory = facts.memory();
        let is_full = |all: &Vec<Arc<Known>>| all.len() >= KNOWN_MAX;
        let executed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !is_ordered(parts) || executed.get(shape).is_some_and(is_full) {
            return;
        }
        drop(executed);
        visited.sort_unstable();
        let mut known = Known { parts: parts.into(), runs: Vec::new() };
        for (at, harmless) in visited {
            let Ok(instruction) = memory.decode(at) else { return };
            let end = instruction.next_ip();
            let inside = |(from, until): &Part| *from <= at && end <= *until;
            let Some((part, (from, _))) = parts.iter().enumerate().find(|(_, part)| inside(part)) else { return };
            let Some(bytes) = memory.bytes(at).and_then(|bytes| bytes.get(..instruction.len())) else { return };
            let leads = |to: u64| known.place(to).is_some_and(|(to, _)| to == part);
            let rigid = match Leads::of(&instruction) {
                Leads::Nowhere => true,
                Leads::To(to) => leads(to),
            };
            let step = Step { instruction, rigid, harmless };
            match known.runs.last_mut() {
                Some(run) if run.part == part && from + run.offset + run.bytes.len() as u64 == at => {
                    run.bytes.extend_from_slice(bytes);
                    run.steps.push(step);
                }
                _ => known.runs.push(Run { part, offset: at - from, bytes: bytes.to_vec(), steps: vec![step] }),
            }
        }
        let mut executed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let all = executed.entry(shape.into()).or_default();
        // another processor may have been faster
        if !is_full(all) && !all.iter().any(|known| known.is_like(facts, parts)) {
            all.push(Arc::new(known));
        }
    }
}

/// Execution asks whether control goes forwards: the parts lie one behind the other.
fn is_ordered(parts: &[Part]) -> bool {
    parts.iter().all(|(from, until)| from <= until) && parts.windows(2).all(|two| two[0].1 <= two[1].0)
}

/// An address that an instruction has by its own place.
enum Leads {
    Nowhere,
    To(u64),
}

impl Leads {
    fn of(i: &Instruction) -> Self {
        if i.is_jmp_short_or_near() || i.is_jcc_short_or_near() {
            Leads::To(i.near_branch_target())
        } else if i.is_ip_rel_memory_operand() {
            Leads::To(i.ip_rel_memory_address())
        } else {
            Leads::Nowhere
        }
    }
}

impl Known {
    /// How many instructions it has.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.steps.len()).sum()
    }

    /// Its instructions in code at `parts`, and whether each is harmless.
    pub fn instructions(&self, parts: &[Part]) -> impl Iterator<Item = (u64, bool)> {
        self.runs.iter().flat_map(|run| {
            let start = run.start(parts);
            let first = run.steps.first().map_or(0, |step| step.instruction.ip());
            run.steps.iter().map(move |step| (start + (step.instruction.ip() - first), step.harmless))
        })
    }

    /// If instructions begin at an address of code at `parts` that lie there without a gap: their end and number.
    pub fn run_at(&self, parts: &[Part], at: u64) -> Option<(u64, usize)> {
        let run = self.runs.iter().find(|run| run.start(parts) == at)?;
        Some((at + run.bytes.len() as u64, run.steps.len()))
    }

    /// Whether execution cannot tell the code at `parts` from it.
    fn is_like(&self, facts: &Facts<'_>, parts: &[Part]) -> bool {
        parts.len() == self.parts.len() && self.runs.iter().all(|run| self.is_run(facts, run, parts))
    }

    fn is_run(&self, facts: &Facts<'_>, run: &Run, parts: &[Part]) -> bool {
        let mut at = run.start(parts);
        let Some(mut own) = facts.memory().bytes(at) else { return false };
        let mut known = run.bytes.as_slice();
        for step in &run.steps {
            let len = step.instruction.len();
            let (Some((one, rest)), Some((other, others))) = (own.split_at_checked(len), known.split_at_checked(len))
            else {
                return false;
            };
            let same = step.rigid && one == other
                || decode(own, at).is_ok_and(|own| self.same(facts, &step.instruction, &own, parts));
            if !same {
                return false;
            }
            (own, known, at) = (rest, others, at + len as u64);
        }
        true
    }

    /// The part in which an address is, and how far; the tail belongs to the code that leads to it.
    fn place(&self, at: u64) -> Option<(usize, u64)> {
        let tail = self.parts.get(MAIN).is_some_and(|(_, tail)| *tail == at).then_some(MAIN);
        let part = tail.or_else(|| self.parts.iter().position(|(from, until)| (*from..*until).contains(&at)))?;
        Some((part, at - self.parts.get(part)?.0))
    }

    /// Where an address of this code is in the code at `parts`; elsewhere it stays what it is.
    fn moved(&self, at: u64, parts: &[Part]) -> u64 {
        self.place(at).and_then(|(part, offset)| Some(parts.get(part)?.0 + offset)).unwrap_or(at)
    }

    /// Whether execution cannot tell the instructions apart.
    fn same(&self, facts: &Facts<'_>, known: &Instruction, own: &Instruction, parts: &[Part]) -> bool {
        if known.code() != own.code() || known.len() != own.len() {
            return false;
        }
        match (Leads::of(known), Leads::of(own)) {
            (Leads::To(known_to), Leads::To(to)) => {
                let form = !own.is_ip_rel_memory_operand()
                    || own.code() == Code::Lea_r64_m && own.op0_register() == known.op0_register();
                return form && self.moved(known_to, parts) == to;
            }
            (Leads::Nowhere, Leads::Nowhere) => {}
            _ => return false,
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

impl Run {
    /// Where it begins in code at `parts`.
    fn start(&self, parts: &[Part]) -> u64 {
        parts.get(self.part).map_or(u64::MAX, |(from, _)| from + self.offset)
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
        && (u64::from(data.counter(0))..u64::from(data.displacement(data.records()))).contains(&place)
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
