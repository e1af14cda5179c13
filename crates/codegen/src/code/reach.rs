//! The counters that generated code may still change, from some of its addresses on.
//!
//! A program that switches stacks may have suspended a context in code that was taken out. The counters of that code cannot be used again
//! before the context has gone on, or its memory is gone. All others can.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use ingraft_model::layout::COUNTERS;
use ingraft_model::{Avma, AvmaRange, DataArea, table};
use rustc_hash::FxHashSet;

/// Largest number of instructions that are followed.
const MOST: usize = 1 << 20;
/// Length in bytes of the longest instruction.
const LONGEST: usize = 15;
/// Length in bytes of the call of a routine, and of `mov ecx, imm32`, which comes right before it.
const CALL: u64 = 5;
/// Number of instructions of a routine that is called, at most.
const CALLED: usize = 64;
/// Number of counters behind an operand whose index is not known. No vector, table or list has more.
const ANY: u32 = 1 << 18;
const _: () = assert!(table::SLOTS_MAX <= ANY);
/// Number of counters of a record's activations, which code names by the first.
const NAMED: u32 = 4;

/// Counters that code may change, and the places where it is known that it may.
#[derive(Default)]
struct Touched {
    exact: Vec<Range<u32>>,
    /// First counters of operands with the number of a counter.
    indexed: Vec<u32>,
    /// First counters of operands with the number of a byte.
    bytes: Vec<u32>,
    /// Largest mask of a number that the code computes.
    mask: Option<u32>,
    /// Whether the code looks keys up.
    has_keys: bool,
}

/// Returns the counters that code may change if control is at one of the addresses `from` in it, sorted and joined. `code` has the sorted
/// ranges of all generated code, and `read` reads it, which may be less than was asked for. `None` if there is too much to follow.
///
/// An address need not be that of an instruction. What it leads to by mistake only adds counters.
pub fn counters_in_reach(
    data: &DataArea,
    code: &[AvmaRange],
    read: &dyn Fn(Avma, &mut [u8]) -> usize,
    from: &[Avma],
) -> Option<Vec<Range<u32>>> {
    let is_code = |at: u64| {
        let next = code.partition_point(|range| range.start.0 <= at);
        next.checked_sub(1).and_then(|i| code.get(i)).is_some_and(|range| at < range.end.0)
    };
    let mut open: Vec<u64> = from.iter().map(|at| at.0).collect();
    let (mut seen, mut touched) = (FxHashSet::default(), Touched::default());
    let decode = |at: u64| {
        let mut bytes = [0; LONGEST];
        let len = if is_code(at) { read(Avma(at), &mut bytes).min(LONGEST) } else { 0 };
        Decoder::with_ip(64, bytes.get(..len).unwrap_or_default(), at, DecoderOptions::NONE).decode()
    };
    // If the address is that behind the call of a routine, the routine may not have changed its counters yet.
    for at in from {
        if let Some(call) = at.0.checked_sub(CALL) {
            touched.call(data, &decode, call);
        }
    }
    while let Some(mut at) = open.pop() {
        while is_code(at) && seen.insert(at) {
            if seen.len() > MOST {
                return None;
            }
            let i = decode(at);
            if i.is_invalid() {
                break;
            }
            touched.add(data, &i);
            touched.call(data, &decode, at);
            if i.is_ip_rel_memory_operand() {
                // A routine comes back to an address that was loaded before.
                open.push(i.ip_rel_memory_address());
            }
            match i.flow_control() {
                FlowControl::UnconditionalBranch => at = i.near_branch_target(),
                FlowControl::ConditionalBranch | FlowControl::Call | FlowControl::XbeginXabortXend => {
                    open.push(i.near_branch_target());
                    at = i.next_ip();
                }
                FlowControl::Next | FlowControl::IndirectCall => at = i.next_ip(),
                FlowControl::IndirectBranch | FlowControl::Return | FlowControl::Interrupt | FlowControl::Exception => {
                    break;
                }
            }
        }
    }
    Some(touched.joined(data))
}

/// The counter at an offset in a shard.
fn counter(data: &DataArea, offset: u64) -> Option<u32> {
    let number = u32::try_from(offset).ok()?.checked_sub(COUNTERS)? / 8;
    (number < data.counters()).then_some(number)
}

impl Touched {
    fn add(&mut self, data: &DataArea, i: &Instruction) {
        self.has_keys |= i.code() == Code::Mov_r64_imm64 && i.immediate64() == table::MULTIPLIER;
        for n in 0..i.op_count() {
            match i.op_kind(n) {
                OpKind::Memory if i.mnemonic() != Mnemonic::Lea => {
                    let at = i.memory_displacement64().wrapping_sub(data.base.0);
                    let Some(first) = counter(data, at) else { continue };
                    match (i.memory_base(), i.memory_index()) {
                        (Register::None, Register::None) => self.exact.push(first..first + 1),
                        (_, Register::None) => self.bytes.push(first),
                        _ => self.indexed.push(first),
                    }
                }
                OpKind::Immediate8to32 | OpKind::Immediate8to64 | OpKind::Immediate32 | OpKind::Immediate32to64 => {
                    let number = i.immediate(n) as u32;
                    // The mask of a shard's addresses is that of no number.
                    let is_mask = number.wrapping_add(1).is_power_of_two() && u64::from(number) + 1 != data.stride;
                    if i.mnemonic() == Mnemonic::And && is_mask {
                        self.mask = self.mask.max(Some(number));
                    }
                    // The number may be the offset of a counter, with bits that say how a record sets it back.
                    if let Some(first) = counter(data, u64::from(number)) {
                        self.exact.push(first..first + NAMED);
                    }
                }
                _ => {}
            }
        }
    }

    /// Adds the counters that the call of a routine at an address may change, if there is one: the offset of the first was moved to ecx before.
    fn call(&mut self, data: &DataArea, decode: &impl Fn(u64) -> Instruction, at: u64) {
        let Some(before) = at.checked_sub(CALL) else { return };
        let (offset, call) = (decode(before), decode(at));
        let is_call = call.code() == Code::Call_rel32_64 && offset.next_ip() == at;
        if !is_call || offset.code() != Code::Mov_r32_imm32 || offset.op0_register() != Register::ECX {
            return;
        }
        let Some(first) = counter(data, u64::from(offset.immediate32())) else { return };
        self.exact.push(first..first + NAMED);
        let mut next = call.near_branch_target();
        let routine = std::iter::repeat_with(|| {
            let i = decode(next);
            next = i.next_ip();
            i
        });
        let mut routine =
            routine.take(CALLED).take_while(|i| !i.is_invalid() && i.flow_control() != FlowControl::Return);
        if routine.any(|i| i.memory_index() != Register::None) {
            self.indexed.push(first);
        }
    }

    fn joined(mut self, data: &DataArea) -> Vec<Range<u32>> {
        let most = self.mask.filter(|_| !self.has_keys).map_or(ANY, |mask| mask.saturating_add(1));
        self.exact.extend(self.indexed.iter().map(|first| *first..first.saturating_add(most)));
        let words = self.mask.map_or(ANY, |mask| mask / 8 + 1);
        self.exact.extend(self.bytes.iter().map(|first| *first..first.saturating_add(words)));
        self.exact.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u32>> = Vec::new();
        for range in self.exact {
            let range = range.start..range.end.min(data.counters());
            match joined.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        joined
    }
}
