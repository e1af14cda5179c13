//! Pieces of the target's own code by which a borrowed thread makes a system call and returns to where it was (`remote.rs`).
//!
//! The return ends in rt_sigreturn(2), which restores every register from a signal frame. A C library has code for this call, because
//! signal handlers return there. A program that is linked statically and installs no handler has none. In such a program the thread takes
//! the number of the call from its own stack (`pop rax; ret`), and returns to any `syscall` instruction. Each piece is decoded from the
//! byte at which the thread arrives, even if that is in the middle of a compiled instruction.

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use ingraft_model::Avma;
use memchr::memmem;

use crate::frame::{FrameRecognition, MAX_IN_FRONT};

/// `syscall`
pub(crate) const SYSCALL: &[u8] = &[0x0f, 0x05];
/// `mov rax, 15; syscall` and `mov eax, 15; syscall`: rt_sigreturn in the restorers of C libraries.
const SIGRETURN: [&[u8]; 2] = [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];
/// First bytes of instructions that set rax from the stack or to a constant: `pop rax`, `mov eax, imm32`, `mov rax, imm32`,
/// `mov rax, [rsp…]`, `mov eax, [rsp…]`.
const LOADS: [&[u8]; 5] = [&[0x58], &[0xb8], &[0x48, 0xc7, 0xc0], &[0x48, 0x8b], &[0x8b]];
/// Maximum number of instructions of a piece, up to its `ret`.
const LONGEST: usize = 8;
/// Maximum number of bytes of these instructions.
pub(crate) const LONGEST_BYTES: usize = 64;
/// Maximum number of words that one piece may take from the stack.
const MOST_WORDS: u64 = 24;

/// The code by which a borrowed thread makes a system call, and the words on its stack that lead it back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SystemCallGadget {
    /// Address of a `syscall` after which the thread returns to the addresses on its stack.
    pub(crate) syscall: u64,
    /// Words from the stack pointer up to the signal frame.
    pub(crate) before: Vec<u64>,
    /// First word of the signal frame: the return address that leads into rt_sigreturn.
    pub(crate) last: u64,
    /// Addresses right after the `syscall` instructions on this way, which the kernel sees as the places of the calls.
    pub(crate) after_calls: [u64; 2],
}

impl SystemCallGadget {
    /// The way by a piece at `call` and by code of `len` bytes at `last`. The latter ends with a `syscall`.
    fn new(call: Avma, before: Vec<u64>, last: Avma, len: usize) -> SystemCallGadget {
        let after_calls = [call.offset(SYSCALL.len() as i64).0, last.offset(len as i64).0];
        SystemCallGadget { syscall: call.0, before, last: last.0, after_calls }
    }
}

/// Pieces of the target's own code that the engine uses.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct Gadgets {
    /// All code that calls rt_sigreturn, sorted by address. Signal handlers return there.
    sigreturn: Vec<Avma>,
    /// Code and stack words for the return; if the target lacks a piece of code, the name of that piece.
    pub(crate) way: Result<SystemCallGadget, &'static str>,
    /// Bytes of the code that the return uses, with their addresses.
    pub(crate) pieces: Vec<(Avma, Vec<u8>)>,
}

/// Code that ends with a `ret` and changes only registers. It reads only registers and the stack.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Gadget {
    at: Avma,
    bytes: Vec<u8>,
    /// Number of words that the piece takes from the stack before its return address.
    words: u64,
    rax: GadgetRax,
}

/// Value in rax at the end of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GadgetRax {
    Kept,
    Constant(u64),
    /// The word with this number among those that the piece finds on the stack.
    Word(u64),
    Unknown,
}

impl Gadgets {
    /// The way back of a borrowed thread. The error names the code that the target does not have.
    pub(crate) fn way_back(&self) -> Result<&SystemCallGadget, &'static str> {
        self.way.as_ref().map_err(|missing| *missing)
    }

    /// Method of recognising the signal frames of the target.
    pub(crate) fn frames(&self) -> FrameRecognition {
        match self.sigreturn.is_empty() {
            true => FrameRecognition::Formed,
            false => FrameRecognition::Returning(self.sigreturn.clone()),
        }
    }
}

/// A search for the code, through all code of a target.
#[derive(Default, Debug)]
pub(crate) struct GadgetSearch {
    sigreturn: Vec<(Avma, usize)>,
    /// The piece that begins with a `syscall` and takes the fewest words from the stack, of those found so far.
    call: Option<Gadget>,
    /// Address of any `syscall` instruction.
    any_call: Option<Avma>,
    /// Piece that sets rax to the number of rt_sigreturn, by a constant or from the stack.
    number: Option<Gadget>,
}

impl GadgetSearch {
    pub(crate) fn look_for_calls(&mut self, start: Avma, code: &[u8]) {
        for i in memmem::find_iter(code, SYSCALL) {
            let (at, end) = (start.offset(i as i64), i + SYSCALL.len());
            self.any_call.get_or_insert(at);
            if self.call.as_ref().is_none_or(|known| known.words > 0)
                && let Some(piece) = Gadget::after(at, &code[i..], SYSCALL.len())
                && self.call.as_ref().is_none_or(|known| piece.words < known.words)
            {
                self.call = Some(piece);
            }
            for pattern in SIGRETURN {
                if code[..end].ends_with(pattern) {
                    self.sigreturn.push((start.offset((end - pattern.len()) as i64), pattern.len()));
                }
            }
        }
    }

    pub(crate) fn lacks_number(&self) -> bool {
        self.sigreturn.is_empty() && self.call.is_some()
    }

    pub(crate) fn look_for_number(&mut self, start: Avma, code: &[u8]) {
        if self.number.is_some() {
            return;
        }
        let may_load = |i: &usize| LOADS.iter().any(|load| code[*i..].starts_with(load));
        let mut pieces = (0..code.len()).filter(may_load).filter_map(|i| {
            Gadget::after(start.offset(i as i64), &code[i..], 0).filter(|piece| match piece.rax {
                GadgetRax::Constant(value) => value == libc::SYS_rt_sigreturn as u64,
                GadgetRax::Word(word) => word < piece.words,
                GadgetRax::Kept | GadgetRax::Unknown => false,
            })
        });
        self.number = pieces.next();
    }

    pub(crate) fn result(mut self) -> Gadgets {
        self.sigreturn.sort_unstable();
        self.sigreturn.dedup_by_key(|(at, _)| *at);
        let mut pieces = Vec::new();
        let way = match (self.call, self.sigreturn.first(), self.any_call, self.number) {
            (None, ..) => Err("`syscall; ret`"),
            (Some(call), Some(&(at, len)), ..) => {
                let bytes = SIGRETURN.iter().find(|pattern| pattern.len() == len);
                pieces.extend(bytes.map(|bytes| (at, bytes.to_vec())));
                let before = vec![0; call.words as usize];
                let way = SystemCallGadget::new(call.at, before, at, len);
                pieces.push((call.at, call.bytes));
                Ok(way)
            }
            (Some(call), None, Some(last), Some(number)) => {
                // The stack after the call: the words that its piece takes, the address of the other piece, the words that this other piece
                // takes. The last word is the address of a `syscall`.
                let mut before = vec![0; call.words as usize];
                before.push(number.at.0);
                let first = before.len();
                before.resize(first + number.words as usize, 0);
                if let GadgetRax::Word(word) = number.rax {
                    before[first + word as usize] = libc::SYS_rt_sigreturn as u64;
                }
                let way = SystemCallGadget::new(call.at, before, last, SYSCALL.len());
                pieces.extend([(last, SYSCALL.to_vec()), (call.at, call.bytes), (number.at, number.bytes)]);
                Ok(way)
            }
            (Some(_), None, ..) => Err("rt_sigreturn, nor for its number (`pop rax; ret`),"),
        };
        let way = way.and_then(|way| match way.before.len() <= MAX_IN_FRONT {
            true => Ok(way),
            false => Err("a way back of few words"),
        });
        Gadgets { sigreturn: self.sigreturn.into_iter().map(|(at, _)| at).collect(), way, pieces }
    }
}

impl Gadget {
    /// The piece at the beginning of `code`, of which `skipped` bytes need not be decoded. `None` if the code may do more than a piece may.
    fn after(at: Avma, code: &[u8], skipped: usize) -> Option<Gadget> {
        let code = &code[..code.len().min(LONGEST_BYTES)];
        let rest = code.get(skipped..)?;
        let mut decoder = Decoder::with_ip(64, rest, at.0 + skipped as u64, DecoderOptions::NONE);
        let (mut sp, mut rax) = (0, GadgetRax::Kept);
        for _ in 0..LONGEST {
            let instruction = decoder.decode();
            if instruction.code() == Code::Retnq {
                let len = skipped + decoder.position();
                let whole = sp % 8 == 0 && sp / 8 <= MOST_WORDS;
                return whole.then(|| Gadget { at, bytes: code[..len].to_vec(), words: sp / 8, rax });
            }
            step(&instruction, &mut sp, &mut rax)?;
        }
        None
    }
}

/// Applies the effect of an instruction to rax and to the stack pointer, as a distance in bytes from its value at the beginning of the
/// piece. Returns `None` if the instruction may have another effect. An accepted instruction reads registers and the stack, and writes
/// registers.
fn step(instruction: &Instruction, sp: &mut u64, rax: &mut GadgetRax) -> Option<()> {
    let is_register = |i: u32| instruction.op_kind(i) == OpKind::Register;
    let first = if instruction.op_count() > 0 && is_register(0) { instruction.op0_register() } else { Register::None };
    let whole = first.full_register();
    let constant = || (instruction.op_count() == 2).then(|| instruction.try_immediate(1).ok()).flatten();
    // Number of the stack word that a load into rax or eax reads.
    let word = |sp: u64| {
        let plain = instruction.op_count() == 2
            && instruction.op1_kind() == OpKind::Memory
            && instruction.memory_base() == Register::RSP
            && instruction.memory_index() == Register::None
            && !instruction.has_segment_prefix();
        let offset = sp.checked_add(instruction.memory_displacement64()).filter(|at| *at / 8 < MOST_WORDS);
        offset.filter(|at| plain && at.is_multiple_of(8)).map(|at| at / 8)
    };
    match instruction.mnemonic() {
        Mnemonic::Nop | Mnemonic::Endbr64 => Some(()),
        Mnemonic::Pop if first.is_gpr64() && first != Register::RSP => {
            if first == Register::RAX {
                *rax = GadgetRax::Word(*sp / 8);
            }
            *sp = sp.checked_add(8)?;
            sp.is_multiple_of(8).then_some(())
        }
        Mnemonic::Add if first == Register::RSP => {
            let more = constant().filter(|more| *more <= 8 * MOST_WORDS)?;
            *sp = sp.checked_add(more)?;
            Some(())
        }
        Mnemonic::Lea if first == Register::RSP => {
            *sp = 8 * word(*sp)?;
            Some(())
        }
        Mnemonic::Mov if whole == Register::RAX && (first.is_gpr64() || first.is_gpr32()) => {
            *rax = match instruction.op1_kind() {
                OpKind::Register if instruction.op1_register().is_gpr() => GadgetRax::Unknown,
                OpKind::Memory => GadgetRax::Word(word(*sp)?),
                _ => GadgetRax::Constant(constant()?),
            };
            Some(())
        }
        Mnemonic::Mov if first.is_gpr64() && first != Register::RSP && instruction.op1_kind() == OpKind::Memory => {
            word(*sp).map(|_| ())
        }
        Mnemonic::Mov | Mnemonic::Xor | Mnemonic::Test | Mnemonic::Cmp | Mnemonic::Movsxd
            if first.is_gpr() && (1..instruction.op_count()).all(|i| instruction.op_kind(i) != OpKind::Memory) =>
        {
            let others = (1..instruction.op_count()).filter(|i| is_register(*i));
            let only_general = others.into_iter().all(|i| instruction.op_register(i).is_gpr());
            let writes = !matches!(instruction.mnemonic(), Mnemonic::Test | Mnemonic::Cmp);
            if writes && whole == Register::RAX {
                *rax = GadgetRax::Unknown;
            }
            (only_general && !(writes && whole == Register::RSP)).then_some(())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(parts: &[(u64, &[u8])]) -> Gadgets {
        let mut search = GadgetSearch::default();
        parts.iter().for_each(|(at, code)| search.look_for_calls(Avma(*at), code));
        if search.lacks_number() {
            parts.iter().for_each(|(at, code)| search.look_for_number(Avma(*at), code));
        }
        search.result()
    }

    #[test]
    fn the_code_of_a_libc_is_found_at_the_edges() {
        let mut code = vec![0x0f, 0x05, 0xc3, 0x90];
        code.extend_from_slice(SIGRETURN[0]);
        code.extend_from_slice(SIGRETURN[1]);
        let found = search(&[(0x1000, &code), (0x2000, &[0x05, 0x0f]), (0x3000, &[])]);
        assert_eq!(found.way, Ok(SystemCallGadget::new(Avma(0x1000), Vec::new(), Avma(0x1004), SIGRETURN[0].len())));
        assert_eq!(found.sigreturn, [Avma(0x1004), Avma(0x100d)]);
        assert_eq!(found.pieces, [(Avma(0x1004), SIGRETURN[0].to_vec()), (Avma(0x1000), code[..3].to_vec())]);
    }

    #[test]
    fn without_a_restorer_the_number_comes_from_the_stack() {
        let found = search(&[(0x1000, &[0x58, 0xc3]), (0x2000, &[0x0f, 0x05, 0xc3])]);
        assert_eq!(found.way, Ok(SystemCallGadget::new(Avma(0x2000), vec![0x1000, 15], Avma(0x2000), SYSCALL.len())));
        assert!(found.sigreturn.is_empty());
        // After the call: add rsp, 8; pop rbx. Before the number: mov rax, [rsp + 8]; add rsp, 0x18.
        let call: &[u8] = &[0x0f, 0x05, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0xc3];
        let number: &[u8] = &[0x48, 0x8b, 0x44, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x18, 0xc3];
        let found = search(&[(0x1000, call), (0x2000, number)]);
        let before = vec![0, 0, 0x2000, 0, 15, 0];
        assert_eq!(found.way, Ok(SystemCallGadget::new(Avma(0x1000), before, Avma(0x1000), SYSCALL.len())));
        // mov eax, 15; pop rbp
        let found = search(&[(0x1000, &[0x0f, 0x05, 0xc3]), (0x2000, &[0xb8, 15, 0, 0, 0, 0x5d, 0xc3])]);
        assert_eq!(found.way, Ok(SystemCallGadget::new(Avma(0x1000), vec![0x2000, 0], Avma(0x1000), SYSCALL.len())));
    }

    #[test]
    fn what_may_do_more_is_no_piece() {
        let rejected: [&[u8]; 12] = [
            &[0x58],                                     // the end of the mapping
            &[0x58, 0xff, 0xe0],                         // jmp rax
            &[0x58, 0x5c, 0xc3],                         // pop rsp
            &[0x58, 0xc2, 8, 0],                         // ret 8
            &[0x58, 0x89, 0x03, 0xc3],                   // mov [rbx], eax
            &[0x58, 0x8b, 0x03, 0xc3],                   // mov eax, [rbx]
            &[0x58, 0x31, 0xc0, 0xc3],                   // xor eax, eax
            &[0x58, 0x8e, 0xd8, 0xc3],                   // mov ds, eax
            &[0x66, 0x58, 0xc3],                         // pop ax
            &[0x8b, 0x44, 0x24, 0x08, 0xc3],             // A word above those that the piece takes.
            &[0x48, 0x8b, 0x44, 0x24, 0xf8, 0x5b, 0xc3], // below the stack pointer
            &[0x64, 0x48, 0x8b, 0x04, 0x24, 0x5b, 0xc3], // A word in another segment.
        ];
        for code in rejected {
            let found = search(&[(0x1000, &[0x0f, 0x05, 0xc3]), (0x2000, code)]);
            // Without its prefix, the rest of the code is a piece.
            let from_inside = matches!(code[0], 0x66 | 0x64);
            assert_eq!(found.way.is_ok(), from_inside, "{code:02x?}");
        }
        assert_eq!(search(&[(0x1000, &[0x0f, 0x05, 0xf4])]).way, Err("`syscall; ret`"));
        assert!(search(&[]).way.is_err());
    }
}
