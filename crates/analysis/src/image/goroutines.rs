//! Facts about the Go runtime of an image by which calls of goroutines can be followed. They are read from `runtime.mcall`, the code with
//! which every version of the runtime leaves a goroutine: it saves program counter and stack pointer in the goroutine's descriptor, and
//! stores the address of another descriptor where the thread keeps it.

use std::ops::Range;

use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use ingraft_model::{Svma, layout};

use crate::data::variables::DataSymbol;
use crate::functions::function::Function;
use crate::image::AnalysedImage;
use crate::text::decode::DecodeCursor;

/// Function with which the runtime leaves a goroutine.
const LEAVE: &str = "runtime.mcall";
/// Function in which a goroutine waits that a signal has suspended.
const SUSPENDED: &str = "runtime.asyncPreempt2";
/// List of all descriptors.
const ALL: &str = "runtime.allgs";
/// Packages whose functions may run where the stack of a goroutine has no room left.
const DEEP: [&str; 5] = ["runtime.", "runtime/", "syscall.", "internal/", "reflect."];
/// Largest number of bytes before the comparison of the stack pointer with the end of the stack.
const CHECK_MAX: u64 = 40;
/// Offset in a descriptor of the address with which functions compare the stack pointer.
const GUARD: u64 = 0x10;

/// Places in memory by which the goroutines of a program are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoroutineLayout {
    /// Offset from fs of the address of the descriptor of the goroutine that a thread executes.
    pub pointer: i32,
    /// The slice of the addresses of all descriptors: address, length, capacity.
    pub all: Svma,
    /// Code in which a goroutine waits that a signal has suspended. Its saved program counter lies in this range.
    pub suspended: Range<Svma>,
}

impl AnalysedImage {
    /// The places by which goroutines are found; `None` if the image is no Go program, or if the places are not certain.
    pub fn goroutines(&self) -> Option<&GoroutineLayout> {
        self.goroutines.get_or_init(|| find(self)).as_ref()
    }

    /// Whether there is room on the stack of a goroutine for generated code at a function that uses activation records. Functions that
    /// check the stack have some 800 bytes left, and the short leaves of other packages that such functions call have most of these.
    /// Chains of functions of the runtime may use all of the stack.
    pub(crate) fn has_stack_room(&self, function: &Function) -> bool {
        // Code whose name has no package is assembly of the runtime, or C.
        let deep = |name: &str| !name.contains('.') || DEEP.iter().any(|package| name.starts_with(package));
        !function.names().iter().any(|name| deep(name.mangled())) || self.checks_stack(function)
    }

    fn checks_stack(&self, function: &Function) -> bool {
        let len = function.size().min(CHECK_MAX);
        let Some(bytes) = self.elf().data_at(function.start().0, len) else { return false };
        let mut cursor = DecodeCursor::new(bytes, function.start().0);
        let code: Vec<Instruction> = std::iter::from_fn(|| cursor.next()).collect();
        // `cmp rsp, [r14+0x10]; jbe`, or with the end of a large frame in r12; assembly has the goroutine in rcx.
        let compares = |i: &Instruction| {
            i.code() == Code::Cmp_r64_rm64
                && matches!(i.op0_register(), Register::RSP | Register::R12)
                && i.memory_displacement64() == GUARD
                && i.memory_index() == Register::None
                && matches!(i.memory_base(), Register::R14 | Register::RCX)
        };
        code.windows(2).any(|pair| compares(&pair[0]) && pair[1].mnemonic() == Mnemonic::Jbe)
    }
}

fn find(image: &AnalysedImage) -> Option<GoroutineLayout> {
    if !image.elf().is_go() {
        return None;
    }
    let named = |wanted: &str| {
        let is = |f: &&Function| f.names().iter().any(|name| name.mangled() == wanted);
        image.functions().iter().find(is)
    };
    let (leave, suspended) = (named(LEAVE)?, named(SUSPENDED)?);
    // A suspended goroutine waits at a call that the code itself makes.
    calls(image, suspended, leave).then_some(())?;
    let pointer = pointer(image, leave)?;
    let all = DataSymbol::named(image.elf(), None, ALL);
    let [DataSymbol { at, per_thread: false, .. }] = all[..] else { return None };
    Some(GoroutineLayout { pointer, all: at, suspended: suspended.range() })
}

/// Whether a function calls another one directly.
fn calls(image: &AnalysedImage, function: &Function, callee: &Function) -> bool {
    let bytes = image.elf().data_at(function.start().0, function.size()).unwrap_or_default();
    let mut cursor = DecodeCursor::new(bytes, function.start().0);
    std::iter::from_fn(|| cursor.next())
        .any(|i| i.code() == Code::Call_rel32_64 && i.near_branch_target() == callee.start().0)
}

/// Offset from fs of the pointer to a descriptor. `None` if the function does not have the form of `mcall`: it stores program counter and
/// stack pointer at their known places in the descriptor in r14, and then stores r14 at an offset from fs.
fn pointer(image: &AnalysedImage, leave: &Function) -> Option<i32> {
    let bytes = image.elf().data_at(leave.start().0, leave.size())?;
    let mut cursor = DecodeCursor::new(bytes, leave.start().0);
    let saved = u64::from(layout::goroutine::SAVED);
    let (mut sp, mut pc, mut constant) = (false, false, None);
    while let Some(i) = cursor.next() {
        let stores = i.code() == Code::Mov_rm64_r64 && i.op0_kind() == OpKind::Memory;
        if stores && i.memory_base() == Register::R14 && i.memory_index() == Register::None {
            sp |= i.memory_displacement64() == saved;
            pc |= i.memory_displacement64() == saved + 8;
        }
        if i.code() == Code::Mov_rm64_imm32 && i.op0_kind() == OpKind::Register {
            constant = Some((i.op0_register(), i.immediate32to64()));
        }
        if stores && i.segment_prefix() == Register::FS && i.op1_register() == Register::R14 {
            let offset = offset(&i, constant)?;
            return i32::try_from(offset).ok().filter(|offset| sp && pc && *offset < 0 && offset % 8 == 0);
        }
    }
    None
}

/// Offset from fs of a memory operand: a constant, or a register that holds one.
fn offset(i: &Instruction, constant: Option<(Register, i64)>) -> Option<i64> {
    let displacement = i.memory_displacement64().cast_signed();
    match (i.memory_base(), i.memory_index(), constant) {
        (Register::None, Register::None, _) => Some(displacement),
        (base, Register::None, Some((register, value))) if base == register => value.checked_add(displacement),
        _ => None,
    }
}
