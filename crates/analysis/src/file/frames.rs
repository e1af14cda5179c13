//! The way from a frame on a stack to its caller, by the tables for exceptions (`.eh_frame`; DWARF 5, 6.4, and the System V ABI for x86-64,
//! 3.7), or by the table of Go's runtime. Nothing is guessed: if the tables do not describe the code, the answer is an error.

use std::sync::Arc;

use gimli::{
    BaseAddresses, CfaRule, EhFrame, EhFrameOffset, Encoding, EndianSlice, EvaluationResult, Expression, Format,
    LittleEndian, Location, Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection, Value,
};
use ingraft_model::Svma;

use crate::file::elf::Elf;
use crate::file::go::{GoFrame, GoFunctionTable, GoFunctions};
use crate::file::{relocs, unwind};

/// Register numbers of DWARF (System V ABI for x86-64, figure 3.36).
const RBX: u16 = 3;
const RBP: u16 = 6;
const RSP: u16 = 7;
const R12: u16 = 12;
const R15: u16 = 15;
const RETURN_ADDRESS: u16 = 16;
/// Largest number of steps of one expression; real expressions take a dozen.
const MAX_STEPS: u32 = 1000;

/// Reason why the caller of a frame is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnwindError {
    /// The tables do not describe the code at an address.
    #[error("no unwind table describes {at:#x}")]
    Undescribed {
        /// Address of the code in the file.
        at: u64,
    },
    /// The table entry makes no sense, or uses a feature that x86-64 does not have.
    #[error("the unwind table's entry for {at:#x} cannot be used")]
    BadEntry {
        /// Address of the code in the file.
        at: u64,
    },
    /// The caller depends on a register whose value is not known in this frame.
    #[error("it depends on register {register}, which is not known there")]
    UnknownRegister {
        /// DWARF's number of the register.
        register: u16,
    },
    /// The caller depends on memory that cannot be read.
    #[error("the stack cannot be read at {at:#x}")]
    Unreadable {
        /// Address of the memory in the process.
        at: u64,
    },
}

/// The registers of a frame; `None` for a register whose value is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Registers {
    /// The program counter.
    pub pc: u64,
    /// Values of rax, rdx, rcx, rbx, rsi, rdi, rbp, rsp, r8 … r15, in the order of DWARF's numbers.
    pub general: [Option<u64>; 16],
}

/// A frame as seen from its callee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwound {
    /// Canonical frame address: the stack pointer before the call that made the frame. The return address lies 8 bytes below.
    pub cfa: u64,
    /// Registers of the caller; `None` if the tables say that the frame has no caller.
    pub caller: Option<Registers>,
    /// Whether the frame is the return from a signal handler. The caller's program counter is then the address of an instruction that has
    /// not run yet, not a return address.
    pub signal: bool,
}

/// The unwind table of an image.
#[derive(Clone, Debug, Default)]
pub struct FrameTable {
    bytes: Box<[u8]>,
    svma: u64,
    /// Start address, end address and offset in `bytes` of each table entry, sorted.
    entries: Vec<(u64, u64, usize)>,
    /// The table of Go functions with the bytes of the file.
    go: Option<(GoFunctionTable, Arc<[u8]>)>,
}

/// Rules that lead from an address of the code to the caller's registers.
#[derive(Clone, Debug)]
pub struct FrameRules {
    cfa: CfaBase,
    /// Rule of each register that the tables mention; register 16 is the return address.
    registers: Vec<(u16, SavedRegister)>,
    signal: bool,
}

#[derive(Clone, Debug)]
enum CfaBase {
    Register { register: u16, offset: i64 },
    Expression(Box<[u8]>),
}

#[derive(Clone, Debug)]
enum SavedRegister {
    Undefined,
    Same,
    /// The value is in memory, at this distance from the canonical frame address.
    Saved(i64),
    /// The value is the canonical frame address plus this distance.
    Offset(i64),
    Register(u16),
    /// The value is in memory, at the address that the expression computes.
    SavedAt(Box<[u8]>),
    /// The value is the result of the expression.
    Computed(Box<[u8]>),
}

type EhFrameSlice<'a> = EndianSlice<'a, LittleEndian>;

impl FrameTable {
    /// Reads the table of a file: the places of the entries, without their rules.
    pub fn read(elf: &Elf) -> Self {
        let go = elf.is_go().then(|| GoFunctions::read(elf, &relocs::read(elf)).into_table(elf)).flatten();
        let Some((svma, bytes)) = unwind::eh_frame(elf) else { return FrameTable { go, ..FrameTable::default() } };
        let section = EhFrame::new(bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(svma);
        let (mut entries, mut end) = (Vec::new(), 0usize);
        unwind::each_fde(&section, &bases, |fde| {
            // `entry_len` excludes the length field (4 or 12 bytes); the 16 bytes added below make up for it
            end = end.max(fde.offset() + fde.entry_len());
            if let Some(stop) = fde.initial_address().checked_add(fde.len()).filter(|_| fde.len() > 0) {
                entries.push((fde.initial_address(), stop, fde.offset()));
            }
        });
        entries.sort_unstable();
        // without section headers the bytes continue to the end of the segment
        let kept = end.saturating_add(16).min(bytes.len());
        FrameTable { bytes: bytes.get(..kept).unwrap_or(bytes).into(), svma, entries, go }
    }

    /// The rules at the address of an instruction: of the one that runs next or, in a caller, of the call, which ends right before the
    /// return address.
    pub fn rules(&self, at: Svma) -> Result<FrameRules, UnwindError> {
        let after = self.entries.partition_point(|e| e.0 <= at.0);
        let entry = after.checked_sub(1).and_then(|i| self.entries.get(i)).filter(|e| at.0 < e.1);
        let &(_, _, offset) = entry.ok_or(UnwindError::Undescribed { at: at.0 })?;
        self.compile(offset, at.0).ok_or(UnwindError::BadEntry { at: at.0 })
    }

    /// The rules at the address of an instruction of a Go function: of the one that runs next, or of the one to which a call returns. They come
    /// from the runtime's own table. Fails in functions that switch to another stack.
    pub fn go_rules(&self, at: Svma) -> Result<FrameRules, UnwindError> {
        let undescribed = UnwindError::Undescribed { at: at.0 };
        let (table, file) = self.go.as_ref().ok_or(undescribed)?;
        let (size, returns) = match table.frame(table.bytes_in(file), at.0).ok_or(undescribed)? {
            GoFrame::Outermost => (0, SavedRegister::Undefined),
            GoFrame::Bytes(bytes) => (i64::from(bytes), SavedRegister::Saved(-8)),
        };
        // Go functions preserve no register.
        let lost = [RBX, RBP].into_iter().chain(R12..=R15).map(|register| (register, SavedRegister::Undefined));
        let registers = lost.chain([(RETURN_ADDRESS, returns)]).collect();
        Ok(FrameRules { cfa: CfaBase::Register { register: RSP, offset: size + 8 }, registers, signal: false })
    }

    fn compile(&self, offset: usize, at: u64) -> Option<FrameRules> {
        let section = EhFrame::new(&self.bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(self.svma);
        let fde = section.fde_from_offset(&bases, EhFrameOffset(offset), EhFrame::cie_from_offset).ok()?;
        let mut context = UnwindContext::new();
        let row = fde.unwind_info_for_address(&section, &bases, &mut context, at).ok()?;
        let code = |e: &UnwindExpression<usize>| Some(Box::from(e.get(&section).ok()?.0.slice()));
        let cfa = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                CfaBase::Register { register: register.0, offset: *offset }
            }
            CfaRule::Expression(e) => CfaBase::Expression(code(e)?),
        };
        let mut registers = Vec::new();
        for (register, rule) in row.registers().filter(|(register, _)| register.0 <= RETURN_ADDRESS) {
            let rule = match rule {
                RegisterRule::Undefined => SavedRegister::Undefined,
                RegisterRule::SameValue => SavedRegister::Same,
                RegisterRule::Offset(n) => SavedRegister::Saved(*n),
                RegisterRule::ValOffset(n) => SavedRegister::Offset(*n),
                RegisterRule::Register(from) => SavedRegister::Register(from.0),
                RegisterRule::Expression(e) => SavedRegister::SavedAt(code(e)?),
                RegisterRule::ValExpression(e) => SavedRegister::Computed(code(e)?),
                RegisterRule::Architectural | RegisterRule::Constant(_) => return None,
            };
            registers.push((register.0, rule));
        }
        Some(FrameRules { cfa, registers, signal: fde.is_signal_trampoline() })
    }
}

impl FrameRules {
    /// The caller of a frame. `read` reads eight bytes of the process at an address.
    pub fn apply(
        &self,
        registers: &Registers,
        read: &mut dyn FnMut(u64) -> Option<u64>,
    ) -> Result<Unwound, UnwindError> {
        let cfa = match &self.cfa {
            CfaBase::Register { register, offset } => registers.get(*register)?.wrapping_add_signed(*offset),
            CfaBase::Expression(code) => compute(code, None, registers, read)?,
        };
        let mut caller = Registers::default();
        // a register that callees must preserve is unchanged unless the tables say otherwise
        for kept in [RBX, RBP].into_iter().chain(R12..=R15) {
            caller.set(kept, registers.get(kept).ok());
        }
        caller.set(RSP, Some(cfa));
        let mut returns = None;
        for (register, rule) in &self.registers {
            let value = match rule {
                SavedRegister::Undefined => None,
                SavedRegister::Same => registers.get(*register).ok(),
                SavedRegister::Saved(offset) => Some(word(read, cfa.wrapping_add_signed(*offset))?),
                SavedRegister::Offset(offset) => Some(cfa.wrapping_add_signed(*offset)),
                SavedRegister::Register(from) => registers.get(*from).ok(),
                SavedRegister::SavedAt(code) => {
                    let at = compute(code, Some(cfa), registers, read)?;
                    Some(word(read, at)?)
                }
                SavedRegister::Computed(code) => Some(compute(code, Some(cfa), registers, read)?),
            };
            if *register == RETURN_ADDRESS {
                returns = Some(value);
            } else {
                caller.set(*register, value);
            }
        }
        let returns = returns.ok_or(UnwindError::UnknownRegister { register: RETURN_ADDRESS })?;
        // the return address of a thread's outermost frame is undefined or 0
        let caller = returns.filter(|pc| *pc != 0).map(|pc| Registers { pc, ..caller });
        Ok(Unwound { cfa, caller, signal: self.signal })
    }
}

impl Registers {
    fn get(&self, register: u16) -> Result<u64, UnwindError> {
        let value = match register {
            RETURN_ADDRESS => Some(self.pc),
            general => self.general.get(usize::from(general)).copied().flatten(),
        };
        value.ok_or(UnwindError::UnknownRegister { register })
    }

    fn set(&mut self, register: u16, value: Option<u64>) {
        if let Some(place) = self.general.get_mut(usize::from(register)) {
            *place = value;
        }
    }

    /// The stack pointer.
    pub fn sp(&self) -> Option<u64> {
        self.general[usize::from(RSP)]
    }

    /// The frame by the frame pointer, for code without a table that keeps one: the word at rbp is the caller's rbp, and the next word is the
    /// return address. Code that does not keep one may leave rbp to its caller, whose frame is found then, or use it for something else. `None`
    /// if rbp is no address on the stack, or if that part of the stack is not known.
    pub fn by_frame_pointer(&self, read: &mut dyn FnMut(u64) -> Option<u64>) -> Option<Unwound> {
        let (sp, bp) = (self.sp()?, self.general[usize::from(RBP)]?);
        if bp < sp || !bp.is_multiple_of(8) {
            return None;
        }
        let (frame, pc, cfa) = (read(bp)?, read(bp.checked_add(8)?)?, bp.checked_add(16)?);
        let mut caller = Registers { pc, general: [None; 16] };
        caller.set(RBP, Some(frame));
        caller.set(RSP, Some(cfa));
        Some(Unwound { cfa, caller: Some(caller).filter(|caller| caller.pc != 0), signal: false })
    }
}

fn word(read: &mut dyn FnMut(u64) -> Option<u64>, at: u64) -> Result<u64, UnwindError> {
    read(at).ok_or(UnwindError::Unreadable { at })
}

/// The result of an expression. The entries of procedure linkage tables and the return from signal handlers use expressions.
fn compute(
    code: &[u8],
    initial: Option<u64>,
    registers: &Registers,
    read: &mut dyn FnMut(u64) -> Option<u64>,
) -> Result<u64, UnwindError> {
    const ENCODING: Encoding = Encoding { address_size: 8, format: Format::Dwarf32, version: 4 };
    let bad = || UnwindError::BadEntry { at: registers.pc };
    let mut evaluation = Expression::<EhFrameSlice<'_>>(EndianSlice::new(code, LittleEndian)).evaluation(ENCODING);
    evaluation.set_max_iterations(MAX_STEPS);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut state = evaluation.evaluate().map_err(|_| bad())?;
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, size, .. } => {
                let all = word(read, address)?;
                let value = match size {
                    1..8 => all & ((1 << (8 * u32::from(size))) - 1),
                    _ => all,
                };
                evaluation.resume_with_memory(Value::Generic(value)).map_err(|_| bad())?
            }
            EvaluationResult::RequiresRegister { register: Register(register), .. } => {
                let value = Value::Generic(registers.get(register)?);
                evaluation.resume_with_register(value).map_err(|_| bad())?
            }
            _ => return Err(bad()),
        };
    }
    let pieces = evaluation.as_result();
    match pieces.first().map(|piece| &piece.location) {
        Some(Location::Address { address }) if pieces.len() == 1 => Ok(*address),
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registers(pc: u64, sp: u64) -> Registers {
        let mut r = Registers { pc, ..Registers::default() };
        r.set(RSP, Some(sp));
        r
    }

    #[test]
    fn a_frame_with_saved_registers() {
        let rules = FrameRules {
            cfa: CfaBase::Register { register: RSP, offset: 24 },
            registers: vec![(RBP, SavedRegister::Saved(-16)), (RETURN_ADDRESS, SavedRegister::Saved(-8))],
            signal: false,
        };
        let mut stack = |at: u64| Some(at * 2);
        let unwound = rules.apply(&registers(7, 0x1000), &mut stack).expect("its caller");
        let caller = unwound.caller.expect("a caller");
        assert_eq!((unwound.cfa, caller.pc, caller.sp()), (0x1018, 0x2020, Some(0x1018)));
        assert_eq!(caller.general[usize::from(RBP)], Some(0x2010));
        assert_eq!(caller.general[0], None);
        let unreadable = rules.apply(&registers(7, 0x1000), &mut |_| None);
        assert_eq!(unreadable, Err(UnwindError::Unreadable { at: 0x1008 }));
    }

    #[test]
    fn frames_are_found_by_the_frame_pointer() {
        let mut at = registers(7, 0x1000);
        assert!(at.by_frame_pointer(&mut |at| Some(at * 2)).is_none(), "rbp is not known");
        at.set(RBP, Some(0x1010));
        let unwound = at.by_frame_pointer(&mut |at| Some(at * 2)).expect("its caller");
        let caller = unwound.caller.expect("a caller");
        assert_eq!((unwound.cfa, caller.pc, caller.sp()), (0x1020, 0x2030, Some(0x1020)));
        assert_eq!((caller.general[usize::from(RBP)], caller.general[3]), (Some(0x2020), None));
        let outermost = at.by_frame_pointer(&mut |_| Some(0)).expect("a frame");
        assert!(outermost.caller.is_none());
        assert!(at.by_frame_pointer(&mut |at| (at < 0x1018).then_some(1)).is_none(), "the stack is not known");
        for wrong in [0xff8, 0x1011, u64::MAX - 7] {
            at.set(RBP, Some(wrong));
            assert!(at.by_frame_pointer(&mut |_| Some(1)).is_none(), "{wrong:#x}");
        }
    }

    #[test]
    fn nobody_calls_the_first_frame_of_a_thread() {
        let cfa = CfaBase::Register { register: RSP, offset: 8 };
        let first = |rule| FrameRules { cfa: cfa.clone(), registers: vec![(RETURN_ADDRESS, rule)], signal: false };
        for rules in [first(SavedRegister::Undefined), first(SavedRegister::Saved(-8))] {
            let unwound = rules.apply(&registers(7, 0x1000), &mut |_| Some(0)).expect("a frame");
            assert_eq!(unwound.caller, None);
        }
    }

    #[test]
    fn an_entry_of_a_linkage_table() {
        // DW_OP_breg7 8; DW_OP_breg16 0; DW_OP_lit15; DW_OP_and; DW_OP_lit11; DW_OP_ge; DW_OP_lit3; DW_OP_shl; DW_OP_plus
        let code = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        for (pc, cfa) in [(0x100a, 0x2008), (0x100b, 0x2010)] {
            assert_eq!(compute(&code, None, &registers(pc, 0x2000), &mut |_| None), Ok(cfa));
        }
    }

    #[test]
    fn hostile_expressions_end() {
        // DW_OP_skip -3 loops for ever; the other codes read an unknown register, read unreadable memory, or are invalid or empty
        for code in [&[0x2f, 0xfd, 0xff][..], &[0x70, 0], &[0x77, 0, 0x06], &[0x96], &[]] {
            assert!(compute(code, None, &registers(0, 0), &mut |_| None).is_err(), "{code:?}");
        }
    }
}
