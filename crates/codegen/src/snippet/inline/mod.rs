//! Code of a point in the counting copy of its function, where only threads run that own a shard. It stands right at the point, between the
//! copied instructions.
//!
//! The code first looks whether everything is as usual, and then does it: the stack of activation records has room and no stale record, the
//! record of the call is the last one, the key is at its place. If anything is not, the thread has changed nothing yet, and goes to the probe in
//! the ordinary copy, where the whole code of the point runs. So nothing rare is here: no search, no routine, no system call.
//!
//! The code uses registers that are free at the point. If these are too few, it saves others on the stack, and the flags too if they are not free.

mod outermost;
mod steps;
mod writer;

use std::borrow::Cow;

use ingraft_model::{FreeRegisters, Gpr, PointKind, Site, Snippet};

use crate::code::environment::Environment;
use crate::snippet::encoding::{Encoder, OperandWidth};

use steps::{InlineStep, hand_on, lower};
use writer::InlineWriter;

/// Largest number of steps of the code of a point. A point with more has it in the ordinary copy alone.
const STEPS_MAX: usize = 48;
/// Registers that may be free, in the order in which they are taken: those with short instructions first.
const SCRATCH: [Gpr; 9] = [Gpr(0), Gpr(1), Gpr(2), Gpr(6), Gpr(7), Gpr(8), Gpr(9), Gpr(10), Gpr(11)];
/// Number of bytes of a jump.
const JUMP_LEN: usize = 5;

/// A point as the code in a counting copy needs it: its kind, and the registers and flags that are free there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlinePoint {
    kind: PointKind,
    /// Mask of the free registers.
    registers: u16,
    flags: bool,
    /// Whether calls move between threads.
    moving: bool,
}

impl InlinePoint {
    /// The point at a site in the copy of its function.
    pub fn of(site: &Site) -> InlinePoint {
        let none = FreeRegisters::default();
        let free = site.free().unwrap_or(&none);
        let registers = free.scratch.iter().filter(|r| r.0 < 16 && r.0 != 4).fold(0, |mask, r| mask | 1 << r.0);
        InlinePoint { kind: site.point_kind(), registers, flags: free.flags, moving: site.moving }
    }

    /// Mask of the free registers.
    pub(crate) fn registers(self) -> u16 {
        self.registers
    }

    /// Whether the arithmetic flags are free.
    pub fn flags(self) -> bool {
        self.flags
    }

    /// Whether calls move between threads.
    pub(crate) fn is_moving(self) -> bool {
        self.moving
    }

    /// Whether the words below the stack pointer may be in use.
    pub(crate) fn has_red_zone(self) -> bool {
        matches!(self.kind, PointKind::Block | PointKind::Edge)
    }
}

/// A snippet with the first counter of each of its variables.
pub type BoundSnippet<'a> = (&'a Snippet, &'a [u32]);

/// Code of a point in the counting copy of its function, independent of its address. It has two parts: one that stands at the point, and one
/// that is rarely run and lies aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlineCode {
    /// The point for which it was made.
    pub(crate) point: InlinePoint,
    /// The code at the point, from its first instruction to its end, where the function goes on.
    pub(crate) main: Vec<u8>,
    /// Number of bytes of the first instruction.
    pub(crate) first: usize,
    /// The code aside. If it may go to the probe, it ends with the jump there.
    pub(crate) aside: Vec<u8>,
    pub(crate) jumps: Vec<InlineJump>,
}

/// A part of the code of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InlinePart {
    Main,
    Aside,
}

/// A branch whose displacement is written once the addresses of both parts are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InlineJump {
    /// Part that holds the displacement, and its offset there.
    pub field: (InlinePart, u32),
    /// Where it leads: a part, and an offset there. `None` for the probe in the ordinary copy.
    pub to: Option<(InlinePart, u32)>,
}

impl InlineCode {
    /// The code of snippets that run one after the other at a point. `None` if one of them does something that cannot be done here.
    pub fn of<'s>(
        env: &Environment,
        point: InlinePoint,
        snippets: impl Iterator<Item = BoundSnippet<'s>>,
    ) -> Option<InlineCode> {
        if point.moving || matches!(point.kind, PointKind::CallBefore | PointKind::CallAfter) {
            return None;
        }
        let mut steps = Vec::new();
        for (snippet, counters) in snippets {
            lower(&snippet.stmts, counters, &mut steps)?;
        }
        hand_on(&mut steps);
        // A thread that is held between the count and the flags would be at no known place of the graph, and loops would often be held there.
        if !point.flags && steps.iter().all(|step| matches!(step, InlineStep::Add(..))) {
            return None;
        }
        let has_frame = matches!(point.kind, PointKind::Entry | PointKind::Exit);
        if steps.is_empty() || steps.len() > STEPS_MAX || !has_frame && steps.iter().any(InlineStep::is_of_records) {
            return None;
        }
        InlineWriter::new(env, point, &steps)?.write(&steps)
    }

    /// The jump to the probe; `None` if the code never goes there.
    fn way_out(&self) -> Option<&InlineJump> {
        self.jumps.iter().find(|jump| jump.to.is_none())
    }

    /// The code with such flags on the way to the probe that a conditional jump there is taken. `None` if no register is free for that, or if there
    /// are no such flags. Code that saves the flags goes there with those by which the thread has taken the jump.
    pub(crate) fn at_branch(&self, condition: u8) -> Option<Cow<'_, InlineCode>> {
        let Some(way_out) = self.way_out().filter(|_| self.point.flags) else { return Some(Cow::Borrowed(self)) };
        let r = SCRATCH.into_iter().find(|r| self.point.registers >> r.0 & 1 != 0)?;
        let (value, with) = compared(condition)?;
        let mut code = self.clone();
        code.jumps.retain(|jump| jump != way_out);
        code.aside.truncate(self.aside.len().checked_sub(JUMP_LEN)?);
        let mut aside = Encoder { bytes: code.aside, ..Encoder::default() };
        aside.load_number(r, value);
        aside.compare_register(OperandWidth::Whole, r, with);
        let field = aside.jump();
        code.aside = aside.bytes;
        code.jumps.push(InlineJump { field: (InlinePart::Aside, field), to: None });
        Some(Cow::Owned(code))
    }

    /// Whether the first `len` of these bytes are the code at the point, whatever the displacements of its branches.
    pub(crate) fn is_main(&self, bytes: &[u8], len: u64) -> bool {
        let Some(bytes) = bytes.get(..self.main.len()).filter(|_| len == self.main.len() as u64) else { return false };
        let (mut own, mut bytes) = (self.main.clone(), bytes.to_vec());
        for InlineJump { field: (part, offset), .. } in &self.jumps {
            let field = *offset as usize..*offset as usize + 4;
            let fields = [&mut own, &mut bytes].into_iter().filter(|_| *part == InlinePart::Main);
            fields.filter_map(|code| code.get_mut(field.clone())).for_each(|field| field.fill(0));
        }
        own == bytes
    }

    /// Number of bytes of both parts.
    pub(crate) fn room(&self) -> u64 {
        (self.main.len() + self.aside.len()) as u64
    }
}

/// Two numbers whose comparison sets the flags so that a condition holds, by its number in instructions. `None` for an overflow.
fn compared(condition: u8) -> Option<(i64, i32)> {
    match condition & 0xf {
        // below, not equal, negative, less
        0x2 | 0x5 | 0x8 | 0xc => Some((0, 1)),
        // above, odd, greater
        0x7 | 0xb | 0xf => Some((1, 0)),
        0x0 => None,
        _ => Some((0, 0)),
    }
}
