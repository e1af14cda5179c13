//! Whether code of a file lets an unwinder begin at an instruction other than a call: a thread that is cancelled at any instruction, or a
//! fault that throws an exception. The unwinder then needs a table for that instruction, and generated code has none.

use gimli::{BaseAddresses, EhFrame, LittleEndian, Pointer};
use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use crate::file::elf::Elf;
use crate::file::symbols;
use crate::file::unwind::{self, ThrowSite};
use crate::text::decode::{self, DecodeCursor};

/// Function that turns asynchronous cancellation on.
pub(crate) const SET_CANCELLATION_TYPE: &str = "pthread_setcanceltype";

/// Functions by which unwinders understand code of languages in which faults throw exceptions: Ada, and Go by gcc.
const THROWING_LANGUAGES: [&str; 2] = ["__gnat_personality_v0", "__gccgo_personality_v0"];

/// Reason why an unwinder may begin at an instruction that is no call. The later one is the stricter one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AsyncUnwinder {
    /// A signal handler may end its thread, so the unwinder passes the instruction that the signal has interrupted.
    Handler,
    /// A thread may be cancelled at any instruction.
    Cancellation,
    /// Instructions that fault throw exceptions (`-fnon-call-exceptions`).
    Fault,
}

/// Answer of a file about unwinders that begin at an instruction that is no call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AsyncUnwinding {
    /// The strictest reason why one may begin so in the process, as far as this file gives one.
    pub begins: Option<AsyncUnwinder>,
    /// Whether functions of the file have landing pads. Those of the C and C++ runtime and of allocators do not count: no thread that can be
    /// cancelled at any instruction may call them (POSIX, "Async-Cancel Safety").
    pub cleans_up: bool,
    /// Whether code of the file may leave a signal handler for a place that it has saved before: it calls `sigsetjmp` or `siglongjmp`, is a
    /// program of Go, or is a static program in which such functions cannot be excluded.
    pub leaves_handlers: bool,
    /// Whether code of the file may end its thread: it calls `pthread_exit` or `thrd_exit`.
    pub ends_threads: bool,
    /// Whether code of the file may cancel threads: it calls `pthread_cancel`.
    pub cancels_threads: bool,
}

/// Functions by which code leaves a signal handler for a place that it has saved before, by their names in glibc and musl. Others do not
/// keep the signal mask, so the next fault would end the program.
const SAVING: [&str; 3] = ["__sigsetjmp", "sigsetjmp", "siglongjmp"];

/// Functions that end their thread, and the function that cancels another one.
const ENDS: [&str; 2] = ["pthread_exit", "thrd_exit"];
const CANCELS: [&str; 1] = ["pthread_cancel"];

/// Functions that only the C or C++ runtime or an allocator exports.
const RUNTIME: [&str; 4] = ["malloc", "_Unwind_ForcedUnwind", "__cxa_throw", "pthread_create"];

impl Elf {
    /// Says whether unwinders may begin in the process at an instruction that is no call, and whether they find something to do here.
    pub fn unwinding(&self) -> AsyncUnwinding {
        let pads = landing_pads(self);
        let begins = if pads.of_faults || THROWING_LANGUAGES.iter().any(|name| symbols::imports(self, name)) {
            Some(AsyncUnwinder::Fault)
        } else {
            // The loader of musl is its C library, which loads nothing either.
            let contains = || self.is_static() && !symbols::exports(self, SET_CANCELLATION_TYPE) && sets_type(self);
            let sets = symbols::imports(self, SET_CANCELLATION_TYPE) || contains();
            sets.then_some(AsyncUnwinder::Cancellation)
        };
        let cleans_up = pads.any && !RUNTIME.iter().any(|name| symbols::exports(self, name));
        let contains = || !symbols::has_own_table(self) || SAVING.iter().any(|name| symbols::defines(self, name));
        let saves = SAVING.iter().any(|name| symbols::imports(self, name));
        // A linker takes such a function into a static program only if something calls it.
        let calls = |names: &[&str]| {
            let own = |name: &&str| self.is_static() && symbols::defines(self, name);
            names.iter().any(|name| symbols::imports(self, name) || own(name))
        };
        AsyncUnwinding {
            begins,
            cleans_up,
            leaves_handlers: saves || self.is_go() || self.is_static() && contains(),
            ends_threads: calls(&ENDS),
            cancels_threads: calls(&CANCELS),
        }
    }

    /// Whether the file is a whole program, which needs no loader and no library.
    fn is_static(&self) -> bool {
        self.interpreter().is_none() && self.needed().is_empty() && self.soname().is_none()
    }
}

/// Whether instructions in a range may fault in the sense of `-fnon-call-exceptions`: they access memory other than the frame, divide, or
/// compute with vector or floating-point registers. Only instructions that begin before `until` count.
pub fn may_fault(bytes: &[u8], until: usize) -> bool {
    let mut cursor = DecodeCursor::new(bytes, 0);
    std::iter::from_fn(|| cursor.next()).take_while(|i| (i.ip() as usize) < until).any(|i| faults(&i))
}

/// Whether an instruction may fault in the sense of [`may_fault`].
pub(crate) fn faults(i: &Instruction) -> bool {
    if matches!(i.mnemonic(), Mnemonic::Lea | Mnemonic::Endbr64) || decode::is_nop(i) {
        return false;
    }
    let general =
        |register: Register| register == Register::None || register.is_gpr() || register.is_segment_register();
    let memory = |kind| !matches!(kind, OpKind::Register | OpKind::NearBranch64) && !is_immediate(kind);
    let accesses = (0..i.op_count()).any(|n| memory(i.op_kind(n)));
    // Checks of the stack write to it without effect: `or qword ptr [rsp], 0`.
    let in_frame = i.memory_base() == Register::RSP
        && i.memory_index() == Register::None
        && i.memory_displacement64().cast_signed() >= 0
        && i.mnemonic() != Mnemonic::Or;
    let divides = matches!(i.mnemonic(), Mnemonic::Div | Mnemonic::Idiv);
    let others = (0..i.op_count()).any(|n| i.op_kind(n) == OpKind::Register && !general(i.op_register(n)));
    divides || others || accesses && !in_frame && !i.is_ip_rel_memory_operand()
}

fn is_immediate(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Immediate8
            | OpKind::Immediate8_2nd
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to16
            | OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    )
}

/// Landing pads of a file.
#[derive(Default)]
struct LandingPads {
    any: bool,
    /// Whether exceptions land from a range that contains no call. Compilers write such ranges only if instructions other than calls throw:
    /// without the option, each of these ranges is there for the sake of a call.
    of_faults: bool,
}

fn landing_pads(image: &Elf) -> LandingPads {
    let mut found = LandingPads::default();
    let Some((svma, bytes)) = unwind::eh_frame(image) else { return found };
    let section = EhFrame::new(bytes, LittleEndian);
    let bases = BaseAddresses::default().set_eh_frame(svma);
    let mut budget = image.bytes().len();
    // Hostile entries may all be about the same code.
    let mut code_budget = 4 * image.bytes().len() as u64;
    unwind::each_fde(&section, &bases, |fde| {
        let Some(Pointer::Direct(lsda)) = fde.lsda().filter(|_| !found.of_faults) else { return };
        unwind::throw_sites(image, (lsda, fde.initial_address()), &mut budget, |site| {
            code_budget = code_budget.saturating_sub(site.end.saturating_sub(site.start));
            found.any |= site.pad.is_some();
            found.of_faults |= site.pad.is_some() && code_budget > 0 && is_without_call(image, &site);
        });
    });
    found
}

fn is_without_call(image: &Elf, site: &ThrowSite) -> bool {
    let len = site.end.saturating_sub(site.start);
    let Some(code) = image.data_at(site.start, len).filter(|_| len > 0 && image.text_index(site.start).is_some())
    else {
        return false;
    };
    let mut cursor = DecodeCursor::new(code, site.start);
    let calls = |i: Instruction| matches!(i.flow_control(), FlowControl::Call | FlowControl::IndirectCall);
    let mut end = site.start;
    let has_call = std::iter::from_fn(|| cursor.next()).inspect(|i| end = i.next_ip()).any(calls);
    // Bytes that are no instruction prove nothing.
    !has_call && end == site.end
}

/// Whether a program that loads no library contains the function that sets the type of cancellation, by its name or by its form. A linker
/// takes the function only if something calls it.
fn sets_type(image: &Elf) -> bool {
    let regions = || image.text.iter().filter_map(|region| image.data_at(region.svma, region.end() - region.svma));
    symbols::defines(image, SET_CANCELLATION_TYPE) || regions().any(has_form)
}

/// Largest number of bytes of the function after the check of its argument.
const FORM_MAX: usize = 96;

/// Whether code contains the form of the function: `cmp edi, 1; ja`, and then one of two steps. glibc exchanges a word of the thread's
/// descriptor, in which bit 1 holds the type; musl stores the argument in a byte of the descriptor, whose old value is read before.
fn has_form(code: &[u8]) -> bool {
    const CHECK: [u8; 3] = [0x83, 0xff, 0x01];
    let checks = code.windows(CHECK.len()).enumerate().filter(|(_, bytes)| *bytes == CHECK);
    checks.map(|(at, _)| at).any(|at| {
        let after = code.get(at + CHECK.len()..).unwrap_or_default();
        let mut cursor = DecodeCursor::new(after.get(..FORM_MAX).unwrap_or(after), 0);
        let found: Vec<Instruction> = std::iter::from_fn(|| cursor.next()).collect();
        found.first().is_some_and(|i| i.mnemonic() == Mnemonic::Ja) && (is_exchange(&found) || is_store(&found))
    })
}

fn is_exchange(code: &[Instruction]) -> bool {
    let clears = |i: &Instruction| i.mnemonic() == Mnemonic::And && i.try_immediate(1).is_ok_and(|n| n as i32 == !2);
    let exchanges = |i: &Instruction| i.has_lock_prefix() && i.mnemonic() == Mnemonic::Cmpxchg;
    code.iter().any(clears) && code.iter().any(exchanges)
}

fn is_store(code: &[Instruction]) -> bool {
    let place = |i: &Instruction| (i.memory_base(), i.memory_displacement64());
    let stores = |i: &&Instruction| {
        i.mnemonic() == Mnemonic::Mov && i.op0_kind() == OpKind::Memory && i.op1_register() == Register::DIL
    };
    let reads = |i: &Instruction| i.mnemonic() == Mnemonic::Movzx && i.op1_kind() == OpKind::Memory;
    code.iter().filter(stores).any(|store| code.iter().any(|i| reads(i) && place(i) == place(store)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_that_may_fault() {
        let faulting: [&[u8]; 5] = [
            &[0x8b, 0x07],                   // mov eax, [rdi]
            &[0xf7, 0xfe],                   // idiv esi
            &[0xf3, 0x0f, 0x5e, 0xc1],       // divss xmm0, xmm1
            &[0x48, 0x83, 0x0c, 0x24, 0x00], // or qword ptr [rsp], 0
            &[0xf3, 0xa4],                   // rep movsb
        ];
        for code in faulting {
            assert!(may_fault(code, code.len()), "{code:x?}");
        }
        // push rbp; mov rbp, rsp; sub rsp, 16; mov [rsp+8], rdi; lea rax, [rdi]; mov eax, [rip]; endbr64; nop; jne; ret
        let quiet = b"\x55\x48\x89\xe5\x48\x83\xec\x10\x48\x89\x7c\x24\x08\x48\x8d\x07\x8b\x05\0\0\0\0\xf3\x0f\x1e\xfa\x0f\x1f\x00\x75\0\xc3";
        assert!(!may_fault(quiet, quiet.len()));
        assert!(!may_fault(&[0x55, 0x90, 0x90, 0x90, 0x90, 0x8b, 0x07], 5), "it begins behind the range");
    }

    #[test]
    fn the_function_is_found_by_its_form() {
        // pthread_setcanceltype of musl 1.2.3, from its check on
        let musl = b"\x83\xff\x01\x77\x15\x48\x85\xf6\x74\x06\x0f\xb6\x42\x41\x89\x06\x40\x88\x7a\x41\x31\xc0\x85\xff\x75\x08\xc3";
        // that of glibc 2.36, and pthread_setcancelstate, which differs in the bit
        let glibc = b"\x83\xff\x01\x77\x53\x64\x48\x8b\x04\x25\x10\0\0\0\x48\x8d\x88\x08\x03\0\0\x8b\x80\x08\x03\0\0\x41\x89\xc0\x89\xc2\x41\x83\xc8\x02\x83\xe2\xfd\x83\xff\x01\x41\x0f\x44\xd0\x48\x85\xf6\x74\x0d\x39\xd0\x74\x0e\xf0\x0f\xb1\x11\xc3";
        let state: Vec<u8> = glibc.iter().map(|b| if *b == 0xfd { 0xfe } else { *b }).collect();
        assert!(has_form(musl) && has_form(glibc));
        assert!(!has_form(&state) && !has_form(&[]) && !has_form(&[0x83, 0xff, 0x01]));
    }
}
