//! Cache of proofs. If the code of two points differs only in its address and its counters, the result of abstract execution is the same.
//! So if many points run the same snippets, few of them are executed.
//!
//! Execution examines the operands of an instruction, the targets of branches among the parts of the point's own code, and constants of
//! the plan. Execution asks of a counter only whether it is one, of a bucket with a bounded number only whether all buckets up to the bound
//! are counters, and of an offset that is moved to a register only whether enough counters begin there for any routine. It ignores the number
//! that names a record and the operands of a nop.
//! Other claims about a point, such as its slot, links and markers, are checked on the point's own bytes.

use std::sync::{Arc, PoisonError, RwLock};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

use ingraft_model::histogram::{HEAD, Resolution};

use super::interpreter::PlanFacts;
use super::rules::{are_counters, number_of};
use super::state::RegisterBound;

/// Maximum number of known pieces of code with the same shape. With more, the search takes as long as the execution that it saves.
const KNOWN_MAX: usize = 8;

/// Number of counters that a called routine changes at most.
const COUNTERS_CALLED: u32 = HEAD + Resolution::Fine.buckets();

/// Part of a point's code that moves as a whole: address of the first byte, and end. The parts are the jump to the slow routine; the code
/// from the first instruction that is not displaced to the tail; and the code aside of each snippet. Those of a snippet that is added to a
/// point are its code, its code aside, and one byte at the address where the chain continues.
pub(super) type MovedRange = (u64, u64);

/// Index of the part that ends with the tail.
const MAIN: usize = 1;

/// Result of an execution for one instruction.
pub(super) struct Visited {
    pub at: u64,
    /// Whether a thread at the instruction has changed nothing that is live.
    pub harmless: bool,
    /// Knowledge about a register before the instruction.
    pub bound: RegisterBound,
}

/// Code that was executed, with the results.
pub(super) struct ExecutedCode {
    parts: Box<[MovedRange]>,
    /// Runs, sorted by address.
    runs: Vec<Run>,
}

/// Instructions without a gap in a part.
struct Run {
    part: usize,
    /// Offset in bytes from the start of the part.
    offset: u64,
    bytes: Vec<u8>,
    steps: Vec<CachedInstruction>,
    /// Fields whose values may differ in equivalent code, sorted by offset.
    fields: Vec<Field>,
}

/// One instruction.
struct CachedInstruction {
    /// Offset in bytes from the start of the run.
    offset: u64,
    /// Whether a thread at the instruction has changed nothing that is live.
    harmless: bool,
}

/// Constant in an instruction. The other bytes of the instruction must be equal in equivalent code.
struct Field {
    /// Offset in bytes from the start of the run.
    at: usize,
    len: usize,
    means: Means,
}

/// Condition that a constant must meet in equivalent code.
enum Means {
    Nothing,
    /// The constant is the displacement of a counter.
    Counter,
    /// The constant is the displacement of the first of several counters, which end so many bytes behind it.
    Counters(u64),
    /// The constant is not the address of a function that may be called.
    NoCallee,
    /// The constant is no such address, and the offset of the first of so many counters.
    Offset(u32),
    /// The constant leads to the same address of the same part, or to the same address outside all parts. `behind` is the end of the
    /// instruction.
    Leads {
        behind: u64,
        part: Option<(usize, u64)>,
        to: u64,
    },
}

/// Code that was executed so far, on any processor, by shape. Only code of the same shape is compared.
#[derive(Default)]
pub(super) struct Executed(RwLock<ByShape>);

type ByShape = FxHashMap<Box<[u64]>, Vec<Arc<ExecutedCode>>>;

impl Executed {
    /// Known code that is equivalent to the code at `parts`, which has this shape.
    pub fn alike(&self, facts: &PlanFacts<'_>, shape: &[u64], parts: &[MovedRange]) -> Option<Arc<ExecutedCode>> {
        // No code can panic while it writes to the map, so a poisoned lock holds valid data.
        let executed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let all = executed.get(shape).filter(|_| is_ordered(parts))?;
        all.iter().find(|known| known.is_like(facts, parts)).map(Arc::clone)
    }

    /// Keeps the results of an execution. Keeps nothing if an instruction lies outside the parts, or if its bytes alone do not determine the
    /// result.
    pub fn keep(&self, facts: &PlanFacts<'_>, shape: &[u64], parts: &[MovedRange], mut visited: Vec<Visited>) {
        let is_full = |all: &Vec<Arc<ExecutedCode>>| all.len() >= KNOWN_MAX;
        let executed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !is_ordered(parts) || executed.get(shape).is_some_and(is_full) {
            return;
        }
        drop(executed);
        visited.sort_unstable_by_key(|visited| visited.at);
        let Some(known) = ExecutedCode::new(facts, parts, &visited) else { return };
        let mut executed = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let all = executed.entry(shape.into()).or_default();
        // Another thread may have added the same code in the meantime.
        if !is_full(all) && !all.iter().any(|known| known.is_like(facts, parts)) {
            all.push(Arc::new(known));
        }
    }
}

/// Whether the parts are sorted and disjoint. Execution depends on the direction of branches.
fn is_ordered(parts: &[MovedRange]) -> bool {
    parts.iter().all(|(from, until)| from <= until) && parts.windows(2).all(|two| two[0].1 <= two[1].0)
}

impl ExecutedCode {
    fn new(facts: &PlanFacts<'_>, parts: &[MovedRange], visited: &[Visited]) -> Option<Self> {
        let mut known = ExecutedCode { parts: parts.into(), runs: Vec::new() };
        for &Visited { at, harmless, bound } in visited {
            let bytes = facts.memory().bytes(at)?;
            let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let bytes = bytes.get(..instruction.len())?;
            let inside = |(from, until): &MovedRange| *from <= at && instruction.next_ip() <= *until;
            let (part, (from, _)) = parts.iter().enumerate().find(|(_, part)| inside(part))?;
            let goes_on = |run: &Run| run.part == part && from + run.offset + run.bytes.len() as u64 == at;
            if !known.runs.last().is_some_and(goes_on) {
                let (bytes, steps, fields) = (Vec::new(), Vec::new(), Vec::new());
                known.runs.push(Run { part, offset: at - from, bytes, steps, fields });
            }
            let constants = decoder.get_constant_offsets(&instruction);
            let displacement = (constants.displacement_offset(), constants.displacement_size());
            let immediate = (constants.immediate_offset(), constants.immediate_size());
            let offset = known.runs.last()?.bytes.len();
            let means = known.means(facts, (&instruction, bound), part, offset + instruction.len())?;
            let run = known.runs.last_mut()?;
            run.steps.push(CachedInstruction { offset: offset as u64, harmless });
            run.bytes.extend_from_slice(bytes);
            for ((at, len), means) in [displacement, immediate].into_iter().zip(means) {
                match means {
                    Some(Means::Leads { .. }) if !matches!(len, 1 | 4) => return None,
                    Some(means) if len > 0 => run.fields.push(Field { at: offset + at, len, means }),
                    _ => {}
                }
            }
        }
        Some(known)
    }

    /// Conditions for the displacement and the immediate value of an instruction in part `own`, which ends at `behind` in its run. An
    /// inner `None` requires the same value. The result is `None` if an address is used in a way that this function does not know.
    fn means(
        &self,
        facts: &PlanFacts<'_>,
        (i, bound): (&Instruction, RegisterBound),
        own: usize,
        behind: usize,
    ) -> Option<[Option<Means>; 2]> {
        let branches = i.is_jmp_short_or_near() || i.is_jcc_short_or_near() || i.is_call_near();
        if branches || i.is_ip_rel_memory_operand() {
            // An address relative to eip depends on the address of the instruction.
            if !branches && i.memory_base() != Register::RIP {
                return None;
            }
            let to = if branches { i.near_branch_target() } else { i.ip_rel_memory_address() };
            let part = self.place(to);
            // The same bytes lead to the same offset in the same part.
            if part.is_some_and(|(part, _)| part == own) {
                return Some([None, None]);
            }
            let leads = Some(Means::Leads { behind: behind as u64, part, to });
            return match i.code() {
                _ if branches => Some([None, leads]),
                Code::Lea_r64_m => Some([leads, None]),
                _ => None,
            };
        }
        Some(match i.code() {
            Code::Nop_rm32 | Code::Nop_rm16 => [Some(Means::Nothing), None],
            Code::Mov_r32_imm32 => {
                let number = i.immediate32();
                let is_offset = |counters: u32| are_counters(&facts.env().data, number, counters);
                // An offset so near to the end that not every routine may get it is compared.
                let means = match (is_offset(COUNTERS_CALLED), is_offset(1)) {
                    _ if facts.may_call(u64::from(number)) => None,
                    (true, _) => Some(Means::Offset(COUNTERS_CALLED)),
                    (false, true) => None,
                    (false, false) => Some(Means::NoCallee),
                };
                [None, means]
            }
            code => {
                let is_name = matches!(code, Code::Mov_rm32_imm32 | Code::Cmp_rm32_imm32);
                let counter = is_counter(facts, i).then_some(Means::Counter);
                let counters = || Some(Means::Counters(bucket_bytes(facts, i, bound)?));
                [counter.or_else(counters), (is_name && accesses(i)).then_some(Means::Nothing)]
            }
        })
    }

    /// Number of instructions.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.steps.len()).sum()
    }

    /// Instructions in a range of the code at `parts`, each with whether it is harmless.
    pub fn instructions(&self, parts: &[MovedRange], range: std::ops::Range<u64>) -> impl Iterator<Item = (u64, bool)> {
        let here = self.runs.iter().map(|run| (run.start(parts), run));
        let last = range.end;
        let here = here.filter(move |(start, run)| *start < last && start + run.bytes.len() as u64 > range.start);
        let steps =
            here.flat_map(|(start, run)| run.steps.iter().map(move |step| (start + step.offset, step.harmless)));
        steps.filter(move |(at, _)| range.contains(at))
    }

    /// End and number of the instructions in the run that begins at `at` in the code at `parts`; `None` if no run begins there.
    pub fn run_at(&self, parts: &[MovedRange], at: u64) -> Option<(u64, usize)> {
        let run = self.runs.iter().find(|run| run.start(parts) == at)?;
        Some((at + run.bytes.len() as u64, run.steps.len()))
    }

    /// Whether the code at `parts` is equivalent to this code.
    fn is_like(&self, facts: &PlanFacts<'_>, parts: &[MovedRange]) -> bool {
        parts.len() == self.parts.len() && self.runs.iter().all(|run| run.is_like(facts, parts) == Some(true))
    }

    /// Part that contains an address, and offset in it. The address of the tail belongs to the main part, which ends there.
    fn place(&self, at: u64) -> Option<(usize, u64)> {
        let tail = || self.parts.get(MAIN).is_some_and(|(_, tail)| *tail == at).then_some(MAIN);
        let part = self.parts.iter().position(|(from, until)| (*from..*until).contains(&at)).or_else(tail)?;
        Some((part, at - self.parts.get(part)?.0))
    }
}

impl Run {
    /// Address of the run in code at `parts`.
    fn start(&self, parts: &[MovedRange]) -> u64 {
        parts.get(self.part).map_or(u64::MAX, |(from, _)| from + self.offset)
    }

    /// Whether the code at `parts` is equivalent to this run; `None` if that code is shorter.
    fn is_like(&self, facts: &PlanFacts<'_>, parts: &[MovedRange]) -> Option<bool> {
        let start = self.start(parts);
        let own = facts.memory().bytes(start)?.get(..self.bytes.len())?;
        let mut same_from = 0;
        for field in &self.fields {
            let end = field.at + field.len;
            let right = own.get(same_from..field.at)? == self.bytes.get(same_from..field.at)?
                && field.means.is_met(facts, parts, start, number(own.get(field.at..end)?)?);
            if !right {
                return Some(false);
            }
            same_from = end;
        }
        Some(own.get(same_from..)? == self.bytes.get(same_from..)?)
    }
}

impl Means {
    /// Whether `number` meets the condition in a run at `start` of the code at `parts`.
    fn is_met(&self, facts: &PlanFacts<'_>, parts: &[MovedRange], start: u64, number: i64) -> bool {
        match self {
            Means::Nothing => true,
            Means::Counter => is_place_of_counter(facts, number.cast_unsigned()),
            Means::Counters(bytes) => {
                let first = number.cast_unsigned();
                is_place_of_counter(facts, first) && are_before_records(facts, first, *bytes)
            }
            Means::NoCallee => !facts.may_call(u64::from(number as u32)),
            Means::Offset(counters) => {
                !facts.may_call(u64::from(number as u32)) && are_counters(&facts.env().data, number as u32, *counters)
            }
            Means::Leads { behind, part, to } => {
                let moved = part.map_or(Some(*to), |(part, offset)| Some(parts.get(part)?.0 + offset));
                moved == Some((start + behind).wrapping_add_signed(number))
            }
        }
    }
}

/// Value of a little-endian signed number.
fn number(bytes: &[u8]) -> Option<i64> {
    Some(match bytes {
        [a] => i64::from(a.cast_signed()),
        [a, b, c, d] => i64::from(i32::from_le_bytes([*a, *b, *c, *d])),
        _ => i64::from_le_bytes(*bytes.first_chunk()?),
    })
}

fn accesses(i: &Instruction) -> bool {
    i.op_kinds().any(|kind| kind == OpKind::Memory)
}

/// Whether the memory operand is one counter, of a thread's shard or of shard 0.
fn is_counter(facts: &PlanFacts<'_>, i: &Instruction) -> bool {
    accesses(i)
        && matches!(i.memory_segment(), Register::GS | Register::DS)
        && i.memory_base() == Register::None
        && i.memory_index() == Register::None
        && is_place_of_counter(facts, i.memory_displacement64())
}

/// Length of the counters of which the memory operand is one, if its number is bounded and all of them are counters of the thread's shard.
fn bucket_bytes(facts: &PlanFacts<'_>, i: &Instruction, bound: RegisterBound) -> Option<u64> {
    let RegisterBound::Most(bounded, most) = bound else { return None };
    let bytes = 8 * u64::from(most) + 8;
    let first = i.memory_displacement64();
    let is_bucket = accesses(i)
        && i.memory_segment() == Register::GS
        && i.memory_base() == Register::None
        && number_of(i.memory_index()) == Some(bounded)
        && i.memory_index_scale() == 8
        && is_place_of_counter(facts, first)
        && are_before_records(facts, first, bytes);
    is_bucket.then_some(bytes)
}

/// Whether so many bytes from an address on lie before the activation records.
fn are_before_records(facts: &PlanFacts<'_>, first: u64, bytes: u64) -> bool {
    let data = &facts.env().data;
    first.checked_add(bytes).is_some_and(|end| end <= u64::from(data.displacement(data.records())))
}

fn is_place_of_counter(facts: &PlanFacts<'_>, place: u64) -> bool {
    let data = &facts.env().data;
    (u64::from(data.counter(0))..u64::from(data.displacement(data.records()))).contains(&place)
        && place % 8 == data.base.0 % 8
}

#[cfg(test)]
mod tests {
    use super::COUNTERS_CALLED;
    use crate::code::routine::Routine;

    #[test]
    fn no_called_routine_changes_more_counters() {
        let most = Routine::ALL.into_iter().filter_map(Routine::counters_called).max();
        assert_eq!(most, Some(COUNTERS_CALLED));
    }
}
