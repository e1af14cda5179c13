//! Code that is another point's but for where it lies and which counters it takes: what abstract execution found there holds here as well, so
//! that of many points that do the same few are executed.
//!
//! Execution looks at an instruction's operands, at where control goes among the parts of the point's own code, and at constants of the plan.
//! Of a counter it asks only whether it is one; of the number by which a record is named, nothing; of a nop, nothing. What else is said of
//! a point, its slot and links and marks, is checked on its own bytes.

use std::sync::{Arc, PoisonError, RwLock};

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use rustc_hash::FxHashMap;

use super::interpreter::Facts;

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
    /// In the order of their addresses.
    runs: Vec<Run>,
}

/// Instructions without a gap in a part.
struct Run {
    part: usize,
    /// Bytes from the part's beginning.
    offset: u64,
    bytes: Vec<u8>,
    steps: Vec<Step>,
    /// What in the bytes may be different elsewhere, in order.
    fields: Vec<Field>,
}

/// An instruction.
struct Step {
    /// Bytes from the run's beginning.
    offset: u64,
    /// Whether a thread that stands on it has changed nothing that is live.
    harmless: bool,
}

/// A constant of an instruction: what else is in an instruction decides what it is.
struct Field {
    /// Bytes from the run's beginning.
    at: usize,
    len: usize,
    means: Means,
}

/// What execution asks of a constant.
enum Means {
    Nothing,
    /// That it is a counter's place.
    Counter,
    /// That it is not the address of a function that may be called.
    NoCallee,
    /// Where it leads, counted from behind its instruction: into a part, or elsewhere.
    Leads {
        behind: u64,
        part: Option<(usize, u64)>,
        to: u64,
    },
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

    /// Notes what was executed: where instructions begin, and whether each is harmless. Nothing if one is outside of the parts, or cannot be told from others
    /// by its bytes.
    pub fn keep(&self, facts: &Facts<'_>, shape: &[u64], parts: &[Part], mut visited: Vec<(u64, bool)>) {
        let is_full = |all: &Vec<Arc<Known>>| all.len() >= KNOWN_MAX;
        let executed = self.0.read().unwrap_or_else(PoisonError::into_inner);
        if !is_ordered(parts) || executed.get(shape).is_some_and(is_full) {
            return;
        }
        drop(executed);
        visited.sort_unstable();
        let Some(known) = Known::new(facts, parts, &visited) else { return };
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

impl Known {
    fn new(facts: &Facts<'_>, parts: &[Part], visited: &[(u64, bool)]) -> Option<Self> {
        let mut known = Known { parts: parts.into(), runs: Vec::new() };
        for &(at, harmless) in visited {
            let bytes = facts.memory().bytes(at)?;
            let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
            let instruction = decoder.decode();
            let bytes = bytes.get(..instruction.len())?;
            let inside = |(from, until): &Part| *from <= at && instruction.next_ip() <= *until;
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
            let means = known.means(facts, &instruction, part, offset + instruction.len())?;
            let run = known.runs.last_mut()?;
            run.steps.push(Step { offset: offset as u64, harmless });
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

    /// What execution asks of the displacement and the immediate value of an instruction in a part, which ends `behind` in its run; nothing if they
    /// have to be what they are. None if what it leads to is used in a way of which nothing is known here.
    fn means(&self, facts: &Facts<'_>, i: &Instruction, own: usize, behind: usize) -> Option<[Option<Means>; 2]> {
        let branches = i.is_jmp_short_or_near() || i.is_jcc_short_or_near();
        if branches || i.is_ip_rel_memory_operand() {
            // the address of one relative to eip depends on where it lies
            if !branches && i.memory_base() != Register::RIP {
                return None;
            }
            let to = if branches { i.near_branch_target() } else { i.ip_rel_memory_address() };
            let part = self.place(to);
            // the same bytes lead to the same place of the part
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
                let is_name = !facts.may_call(u64::from(i.immediate32()));
                [None, is_name.then_some(Means::NoCallee)]
            }
            code => {
                let is_name = matches!(code, Code::Mov_rm32_imm32 | Code::Cmp_rm32_imm32);
                [is_counter(facts, i).then_some(Means::Counter), (is_name && accesses(i)).then_some(Means::Nothing)]
            }
        })
    }

    /// How many instructions it has.
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.steps.len()).sum()
    }

    /// Its instructions in a range of the code at `parts`, and whether each is harmless.
    pub fn instructions(&self, parts: &[Part], range: std::ops::Range<u64>) -> impl Iterator<Item = (u64, bool)> {
        let here = self.runs.iter().map(|run| (run.start(parts), run));
        let last = range.end;
        let here = here.filter(move |(start, run)| *start < last && start + run.bytes.len() as u64 > range.start);
        let steps =
            here.flat_map(|(start, run)| run.steps.iter().map(move |step| (start + step.offset, step.harmless)));
        steps.filter(move |(at, _)| range.contains(at))
    }

    /// If instructions begin at an address of code at `parts` that lie there without a gap: their end and number.
    pub fn run_at(&self, parts: &[Part], at: u64) -> Option<(u64, usize)> {
        let run = self.runs.iter().find(|run| run.start(parts) == at)?;
        Some((at + run.bytes.len() as u64, run.steps.len()))
    }

    /// Whether execution cannot tell the code at `parts` from it.
    fn is_like(&self, facts: &Facts<'_>, parts: &[Part]) -> bool {
        parts.len() == self.parts.len() && self.runs.iter().all(|run| run.is_like(facts, parts) == Some(true))
    }

    /// The part in which an address is, and how far; the tail belongs to the code that leads to it.
    fn place(&self, at: u64) -> Option<(usize, u64)> {
        let tail = self.parts.get(MAIN).is_some_and(|(_, tail)| *tail == at).then_some(MAIN);
        let part = tail.or_else(|| self.parts.iter().position(|(from, until)| (*from..*until).contains(&at)))?;
        Some((part, at - self.parts.get(part)?.0))
    }
}

impl Run {
    /// Where it begins in code at `parts`.
    fn start(&self, parts: &[Part]) -> u64 {
        parts.get(self.part).map_or(u64::MAX, |(from, _)| from + self.offset)
    }

    /// Whether execution cannot tell the code at `parts` from it; none if there is not as much.
    fn is_like(&self, facts: &Facts<'_>, parts: &[Part]) -> Option<bool> {
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
    /// Whether it may be that number in a run at `start` of code at `parts`.
    fn is_met(&self, facts: &Facts<'_>, parts: &[Part], start: u64, number: i64) -> bool {
        match self {
            Means::Nothing => true,
            Means::Counter => is_place_of_counter(facts, number.cast_unsigned()),
            Means::NoCallee => !facts.may_call(u64::from(number as u32)),
            Means::Leads { behind, part, to } => {
                let moved = part.map_or(Some(*to), |(part, offset)| Some(parts.get(part)?.0 + offset));
                moved == Some((start + behind).wrapping_add_signed(number))
            }
        }
    }
}

/// A little-endian number, as instructions read it.
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

/// Whether its operand in memory is one counter, of a thread's shard or of shard 0.
fn is_counter(facts: &Facts<'_>, i: &Instruction) -> bool {
    accesses(i)
        && matches!(i.memory_segment(), Register::GS | Register::DS)
        && i.memory_base() == Register::None
        && i.memory_index() == Register::None
        && is_place_of_counter(facts, i.memory_displacement64())
}

fn is_place_of_counter(facts: &Facts<'_>, place: u64) -> bool {
    let data = &facts.env().data;
    (u64::from(data.counter(0))..u64::from(data.displacement(data.records()))).contains(&place)
        && place % 8 == data.base.0 % 8
}
