//! Whether the frame of a function is still open at its jumps through pointers, so that none of them can be a call of another function.
//!
//! A computed goto reads the address of a label from memory that the program may write, so no table bounds its targets. A tail call looks the
//! same. The System V ABI tells them apart: at the first instruction of a function, the word at the top of the stack is the return address.
//!
//! An open frame alone does not suffice. Hand-written code also pushes a return address and then jumps (the bytecode entries of V8 do), and
//! jumps with an open frame between pieces of one interpreter that have symbols of their own (LuaJIT). So the function must not put an address
//! of code, or a word that it pushes, on the top of the stack, and the labels must come from tables of data that name no other code. Assembly
//! that stores a return address which it has got from memory or from its caller, and has such tables too, is not told apart: then a way out is
//! missed.

use iced_x86::{Code, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use rustc_hash::FxHashSet;

use crate::functions::jump_table::trace::{ReachingDefinition, is_callee_saved, writes};
use crate::functions::jump_table::{JumpResolver, constant_address, constant_number};
use crate::text::transfer::ControlTransfer;

/// Position of the stack pointer, as far as it is known, before an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Control has not been followed to the instruction.
    Unseen,
    /// The stack pointer is lower than at the function's entry by this number of bytes, on every way.
    Known(i64),
    Unknown,
}

impl JumpResolver<'_> {
    /// Whether all of these hold, so that each of the jumps leads to one of `labels`, the sorted addresses in the function that are taken:
    ///
    /// - on every way to the jumps and to the labels, the stack pointer is lower than at the entry by the same number of bytes;
    /// - the word at the top of the stack is no return address, as far as the function writes it by the stack pointer or the frame pointer: it
    ///   is not that of a call, no address of code that the function makes, and pushed only if it is a register that the caller owns;
    /// - tables of data hold the labels, no address outside of the function is next to a label there, and no instruction of the function
    ///   makes the address of a label.
    pub fn keeps_frame(&self, start: u64, jumps: &[usize], labels: &[u64]) -> bool {
        self.labels_are_data(labels) && self.open_frame(start, jumps, labels).is_some()
    }

    /// Whether words of data hold all of these addresses, the words next to them hold none outside of the function, and no instruction of the
    /// function makes one of them.
    pub fn labels_are_data(&self, labels: &[u64]) -> bool {
        let made = |i: &Instruction| match i.code() {
            Code::Lea_r64_m => constant_address(i),
            _ => constant_number(i),
        };
        if self.code.iter().filter_map(made).any(|at| labels.binary_search(&at).is_ok()) {
            return false;
        }
        let words = &self.pointers.entries;
        let is_foreign = |place: u64| self.pointers.get(place).is_some_and(|at| !self.contains(at));
        let mut found = vec![false; labels.len()];
        for (place, at) in words {
            let Ok(label) = labels.binary_search(at) else { continue };
            found[label] = true;
            if is_foreign(place.wrapping_sub(8)) || is_foreign(place.wrapping_add(8)) {
                return false;
            }
        }
        found.iter().all(|found| *found)
    }

    /// Whether all words of data that hold one of these addresses lie in the tables at the given addresses, which hold addresses of the function.
    pub fn labels_are_in(&self, labels: &[u64], tables: &[u64]) -> bool {
        let mut places = FxHashSet::default();
        for table in tables {
            let all = (*table..).step_by(8);
            places.extend(all.take_while(|place| self.pointers.get(*place).is_some_and(|at| self.contains(at))));
        }
        let holds = |at: &u64| labels.binary_search(at).is_ok();
        self.pointers.entries.iter().filter(|(_, at)| holds(at)).all(|(place, _)| places.contains(place))
    }

    /// The depth of the frame at the jumps; `None` if the frame may be closed, or the top of the stack may be a return address.
    fn open_frame(&self, start: u64, jumps: &[usize], labels: &[u64]) -> Option<i64> {
        let mut info = InstructionInfoFactory::new();
        let after = self.successors()?;
        let index = |at: u64| self.code.binary_search_by_key(&at, |i| i.ip()).ok();
        let mut depths = vec![Depth::Unseen; self.code.len()];
        let mut work = Vec::new();
        meet(&mut depths, &mut work, index(start)?, Depth::Known(0));
        for (at, i) in self.code.iter().enumerate() {
            if i.ip() != start && self.before.is_entry(i.ip()) && labels.binary_search(&i.ip()).is_err() {
                meet(&mut depths, &mut work, at, Depth::Unknown);
            }
        }
        self.spread(&mut info, &after, &mut depths, &mut work)?;
        let frame = jumps.iter().find_map(|jump| match depths[*jump] {
            Depth::Known(depth) => Some(depth),
            _ => None,
        })?;
        for label in labels {
            meet(&mut depths, &mut work, index(*label)?, Depth::Known(frame));
        }
        self.spread(&mut info, &after, &mut depths, &mut work)?;
        let has_frame = |at: usize| depths[at] == Depth::Known(frame);
        if frame <= 0
            || !jumps.iter().all(|jump| has_frame(*jump))
            || !labels.iter().all(|l| index(*l).is_some_and(has_frame))
        {
            return None;
        }
        let pointer = self.frame_pointer(&mut info, &depths);
        let seen = depths.iter().enumerate().filter(|(_, depth)| **depth != Depth::Unseen);
        for (at, depth) in seen {
            if may_write_top(&mut info, &self.code[at], *depth, pointer, -frame) && !self.writes_no_code(at) {
                return None;
            }
        }
        Some(frame)
    }

    /// The ways on from each instruction, as sorted pairs of indices.
    fn successors(&self) -> Option<Vec<(usize, usize)>> {
        let mut after = Vec::with_capacity(self.code.len());
        for at in 0..self.code.len() {
            self.spend(1)?;
            self.before.each(self.code, at, |before, _| after.push((before, at)));
        }
        after.sort_unstable();
        Some(after)
    }

    /// Follows the stack pointer from the instructions in `work`.
    fn spread(
        &self,
        info: &mut InstructionInfoFactory,
        after: &[(usize, usize)],
        depths: &mut [Depth],
        work: &mut Vec<usize>,
    ) -> Option<()> {
        while let Some(at) = work.pop() {
            self.spend(1)?;
            let depth = match (depths[at], sinks_by(info, &self.code[at])) {
                (Depth::Known(depth), Some(by)) => depth.checked_add(by).map_or(Depth::Unknown, Depth::Known),
                _ => Depth::Unknown,
            };
            let first = after.partition_point(|way| way.0 < at);
            for (_, next) in after[first..].iter().take_while(|way| way.0 == at) {
                meet(depths, work, *next, depth);
            }
        }
        Some(())
    }

    /// Whether an instruction pushes a register that the caller owns, or stores a register that holds no address of code that the function
    /// makes.
    fn writes_no_code(&self, at: usize) -> bool {
        let i = &self.code[at];
        let trace = self.trace();
        let definitions = |register| trace.definitions(at, register).unwrap_or_default();
        match (i.mnemonic(), i.op0_kind(), i.op1_kind()) {
            (Mnemonic::Push, OpKind::Register, _) => {
                let register = i.op0_register();
                is_callee_saved(register) && definitions(register) == [ReachingDefinition::Outside]
            }
            (Mnemonic::Mov, OpKind::Memory, OpKind::Register) if i.op1_register().is_gpr() => {
                let is_code = |value| trace.constant_of(value).is_some_and(|at| self.image.text_index(at).is_some());
                let values = definitions(i.op1_register());
                !values.is_empty() && !values.into_iter().any(is_code)
            }
            _ => false,
        }
    }

    /// The distance of the frame pointer `rbp` from the stack pointer at the entry, if the function copies the stack pointer to it.
    fn frame_pointer(&self, info: &mut InstructionInfoFactory, depths: &[Depth]) -> FramePointer {
        let mut pointer = FramePointer::None;
        for (i, depth) in self.code.iter().zip(depths) {
            if !writes(info, i, Register::RBP) || matches!(i.mnemonic(), Mnemonic::Pop | Mnemonic::Leave) {
                continue;
            }
            let is_copy = matches!(i.code(), Code::Mov_r64_rm64 | Code::Mov_rm64_r64)
                && i.op0_register() == Register::RBP
                && i.op1_register() == Register::RSP;
            let of_stack = i.op0_kind() == OpKind::Register
                && (is_copy || i.op1_register() == Register::RSP || i.memory_base() == Register::RSP);
            pointer = match (pointer, *depth) {
                (FramePointer::None, Depth::Known(depth)) if is_copy => FramePointer::At(-depth),
                (FramePointer::None, _) if !of_stack => FramePointer::None,
                _ => return FramePointer::Unknown,
            };
        }
        pointer
    }
}

/// Content of `rbp` where a function writes memory by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FramePointer {
    /// No address in the frame.
    None,
    /// The stack pointer at the entry plus this number.
    At(i64),
    Unknown,
}

/// Notes one more depth of an instruction, and adds the instruction to `work` if that is new.
fn meet(depths: &mut [Depth], work: &mut Vec<usize>, at: usize, depth: Depth) {
    let both = match (depths[at], depth) {
        (Depth::Unseen, other) => other,
        (known, other) if known == other => known,
        _ => Depth::Unknown,
    };
    if both != depths[at] {
        depths[at] = both;
        work.push(at);
    }
}

/// Whether an instruction may write the eight bytes at a distance from the stack pointer at the entry, apart from writes by registers that
/// are not known to point into the frame.
fn may_write_top(
    info: &mut InstructionInfoFactory,
    i: &Instruction,
    depth: Depth,
    pointer: FramePointer,
    top: i64,
) -> bool {
    let overlaps = |start: i64, size: i64| start < top + 8 && top < start + size;
    if ControlTransfer::of(i).comes_back() && i.mnemonic() == Mnemonic::Call {
        return match depth {
            Depth::Known(depth) => overlaps(-depth - 8, 8),
            _ => true,
        };
    }
    let used = info.info(i);
    used.used_memory().iter().any(|memory| {
        if matches!(memory.access(), OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess) {
            return false;
        }
        let base = match (memory.base(), depth, pointer) {
            (Register::RSP, Depth::Known(depth), _) => -depth,
            (Register::RBP, _, FramePointer::At(at)) => at,
            (Register::RBP, _, FramePointer::None) => return false,
            (Register::RSP | Register::RBP, ..) => return true,
            _ => return false,
        };
        let size = memory.memory_size().size() as i64;
        memory.index() != Register::None
            || size == 0
            || overlaps(base.wrapping_add(memory.displacement().cast_signed()), size)
    })
}

/// The number of bytes by which an instruction lowers the stack pointer; `None` if the number is not known.
fn sinks_by(info: &mut InstructionInfoFactory, i: &Instruction) -> Option<i64> {
    if ControlTransfer::of(i).comes_back() || !writes(info, i, Register::RSP) {
        return Some(0);
    }
    let number = || i.try_immediate(1).ok().map(u64::cast_signed);
    let is_own = i.op0_kind() == OpKind::Register && i.op0_register() == Register::RSP;
    match i.mnemonic() {
        Mnemonic::Push | Mnemonic::Pushfq => Some(-i64::from(i.stack_pointer_increment())),
        Mnemonic::Pop | Mnemonic::Popfq if !is_own => Some(-i64::from(i.stack_pointer_increment())),
        Mnemonic::Sub if is_own && i.op1_kind() != OpKind::Register => number(),
        Mnemonic::Add if is_own && i.op1_kind() != OpKind::Register => number()?.checked_neg(),
        Mnemonic::Lea if is_own && i.memory_base() == Register::RSP && i.memory_index() == Register::None => {
            i.memory_displacement64().cast_signed().checked_neg()
        }
        _ => None,
    }
}
