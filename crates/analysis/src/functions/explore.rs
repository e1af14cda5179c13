//! Follows control flow from a start when no table states where the code ends.

use iced_x86::{Code, FlowControl, Instruction, Mnemonic, OpKind, Register};
use rustc_hash::FxHashSet;

use crate::file::elf::Elf;
use crate::file::relocs::CodePointerWords;
use crate::functions::jump_table::{JumpResolver, Predecessors, ResolvedJump, TableMemo, constant_address};
use crate::text::decode::{self, DecodeCursor};
use crate::text::transfer::ControlTransfer;

/// First bytes of functions that nothing else tells from data: `push rbp; mov rbp, rsp`, and Go's comparison of the stack pointer with the
/// end of the stack.
const PROLOGUES: [[u8; 4]; 2] = [[0x55, 0x48, 0x89, 0xe5], [0x49, 0x3b, 0x66, 0x10]];

/// Whether the bytes at an address are those with which functions begin.
pub(crate) fn looks_like_function(image: &Elf, at: u64) -> bool {
    image.begins_with_endbr(at) || image.data_at(at, 4).is_some_and(|head| PROLOGUES.iter().any(|p| p == head))
}

/// The code that control can reach from a start.
#[derive(Debug)]
pub(crate) struct Reached {
    /// End of the reached instructions that follow the start with nothing but padding between them.
    pub end: u64,
    /// Targets of direct calls, and of jumps beyond the end that lead to other functions.
    pub leads_to: Vec<u64>,
    /// Number of instructions that were decoded.
    pub decoded: usize,
    /// An address that control reaches, and at which the decoder finds no instruction that it knows.
    pub invalid: Option<u64>,
    /// Whether a reached instruction uses the gs base.
    pub uses_gs: bool,
}

/// Follows all direct branches and jump tables from `start` that stay below `limit`.
pub(crate) fn reach(image: &Elf, pointers: &CodePointerWords, start: u64, limit: u64) -> Reached {
    let bytes = limit.checked_sub(start).and_then(|len| image.data_at(start, len)).unwrap_or_default();
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut code: Vec<Instruction> = Vec::new();
    let mut work = vec![start];
    let mut out = Reached { end: start, leads_to: Vec::new(), decoded: 0, invalid: None, uses_gs: false };
    let mut jumps: Vec<u64> = Vec::new();
    let mut tails: Vec<u64> = Vec::new();
    // Bounds the rounds in which jump tables lead to further jump tables; only hostile code needs more.
    let mut rounds = 16;
    // Whether control may reach further code of the function, to which unknown jumps lead.
    let mut open = false;
    let whole = start..limit;
    loop {
        while let Some(mut at) = work.pop() {
            while (start..limit).contains(&at) && seen.insert(at) {
                let Some(i) = bytes.get((at - start) as usize..).and_then(|b| decode::one(b, at)) else {
                    out.invalid = out.invalid.or(Some(at));
                    break;
                };
                // Zeros decode as `add [rax], al`; two such instructions in a row are not code.
                if i.code() == Code::Add_rm8_r8 && bytes[(at - start) as usize..].starts_with(&[0, 0, 0, 0]) {
                    break;
                }
                out.uses_gs |= uses_gs(&i);
                at = i.next_ip();
                match ControlTransfer::of(&i) {
                    ControlTransfer::Branch(to) | ControlTransfer::Transaction(to) => work.push(to),
                    ControlTransfer::Jump(to) => {
                        work.push(to);
                        tails.push(to);
                        at = limit;
                    }
                    ControlTransfer::Call(to) => out.leads_to.push(to),
                    ControlTransfer::Indirect => {
                        jumps.push(i.ip());
                        at = limit;
                    }
                    ControlTransfer::Return | ControlTransfer::Stop => at = limit,
                    ControlTransfer::Next | ControlTransfer::IndirectCall | ControlTransfer::System => {}
                }
                code.push(i);
            }
        }
        if jumps.is_empty() || rounds == 0 {
            break;
        }
        rounds -= 1;
        code.sort_unstable_by_key(|i| i.ip());
        let mut budget = 16 * code.len() + 256;
        let before = Predecessors::new(&code, vec![start], Vec::new());
        let memory = TableMemo::new(code.len());
        let inside = std::slice::from_ref(&whole);
        let resolver =
            JumpResolver { image, pointers, code: &code, inside, before: &before, tables: &[], memory: &memory };
        for jump in jumps.drain(..) {
            let Ok(index) = code.binary_search_by_key(&jump, |i| i.ip()) else { continue };
            match resolver.resolve(index, &mut budget) {
                ResolvedJump::Table(targets) => work.extend(targets.places),
                ResolvedJump::Pointer | ResolvedJump::Distances(_) => open |= !code[index].is_ip_rel_memory_operand(),
            }
        }
    }
    open |= !jumps.is_empty();
    code.sort_unstable_by_key(|i| i.ip());
    for i in &code {
        let hole = i.ip().saturating_sub(out.end);
        let filler = bytes.get((out.end - start) as usize..(i.ip().max(out.end) - start) as usize).unwrap_or_default();
        if hole > 0 && decode::padding(filler, false) < filler.len() {
            break;
        }
        out.end = out.end.max(i.next_ip());
    }
    out.decoded = code.len();
    // Code behind an unknown jump may belong to this function, in the middle of whose frame no other one begins.
    let may_begin = |at: &u64| !open || looks_like_function(image, *at);
    out.leads_to.extend(tails.into_iter().filter(|at| !(start..out.end).contains(at) && may_begin(at)));
    out.leads_to.sort_unstable();
    out.leads_to.dedup();
    out
}

/// The function that the code at a program's entry point passes to the libc in rdi.
pub(crate) fn main_function(image: &Elf) -> Option<u64> {
    let entry = image.entry().0;
    image.text_index(entry)?;
    let mut cursor = DecodeCursor::new(image.data_from(entry)?, entry);
    let mut main = None;
    for _ in 0..32 {
        let i = cursor.next()?;
        if matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall) {
            return main.filter(|at| image.text_index(*at).is_some());
        }
        if i.op0_kind() == OpKind::Register && i.op0_register().full_register() == Register::RDI {
            main = match i.code() {
                Code::Lea_r64_m => constant_address(&i),
                Code::Mov_r32_imm32 | Code::Mov_rm64_imm32 => Some(u64::from(i.immediate32())),
                _ => None,
            };
        }
    }
    None
}

/// Whether an instruction addresses memory through the gs base or loads the segment register.
pub(crate) fn uses_gs(i: &Instruction) -> bool {
    let loads = i.op0_kind() == OpKind::Register && i.op0_register() == Register::GS && i.mnemonic() != Mnemonic::Push;
    let loads = loads || i.mnemonic() == Mnemonic::Lgs;
    loads || i.segment_prefix() == Register::GS && !matches!(i.mnemonic(), Mnemonic::Nop | Mnemonic::Lea)
}
