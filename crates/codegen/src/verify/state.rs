//! State at one instruction of generated code: which registers still hold their values at the point, and which words the code has pushed.

use iced_x86::Instruction;

use super::rules::number_of;
use super::{Flaw, VerifyError, fail};

/// Kind of a word that generated code has pushed: the original flags. A number below 16 is the kind of the original value of that register,
/// and `OTHER` the kind of any other word.
pub(super) const FLAGS: u8 = 16;
pub(super) const OTHER: u8 = 17;
/// Kind of a pushed word: the original flags, in the form of [`FlagsTransfer::Whole`].
pub(super) const IMAGE: u8 = 18;
/// Kind of a pushed word: the address of a function that the code may call ([`RegisterBound::Callee`]).
pub(super) const CALLEE: u8 = 19;

/// Placeholder for the resume address with which a shared routine is entered in rax. The placeholder is not the address of an instruction.
const WAY_BACK: u64 = u64::MAX;

/// Length in bytes of the red zone: below the stack pointer, the convention of System V leaves so many bytes to the function that runs.
pub(super) const RED_ZONE: u64 = 128;
/// Length of the red zone in words.
pub(super) const RED_ZONE_WORDS: u8 = 16;

/// Maximum number of words that generated code may push: the red zone, the nesting of a snippet, and saved registers.
const STACK_MAX: usize = 96;

/// Words that generated code has pushed. The array is fixed because each instruction has a stack, and heap allocations would cost too
/// much.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    words: [u8; STACK_MAX],
    len: u8,
}

impl Default for Stack {
    fn default() -> Self {
        Stack { words: [OTHER; STACK_MAX], len: 0 }
    }
}

impl PartialEq for Stack {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for Stack {}

impl Stack {
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    pub fn words(&self) -> &[u8] {
        self.words.get(..self.len()).unwrap_or_default()
    }

    pub fn push(&mut self, at: u64, word: u8) -> Result<(), VerifyError> {
        let Some(place) = self.words.get_mut(usize::from(self.len)) else { return fail(at, Flaw::Stack) };
        *place = word;
        self.len += 1;
        Ok(())
    }

    pub fn pop(&mut self) -> Option<u8> {
        self.len = self.len.checked_sub(1)?;
        self.words.get(self.len()).copied()
    }
}

/// Progress of saving the original flags to ax, or of restoring them from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlagsTransfer {
    None,
    /// All arithmetic flags but the overflow flag are in ah (after lahf).
    Low,
    /// The overflow flag is in al as well (after seto).
    Whole,
    /// The overflow flag is restored; sahf will restore the others.
    Overflow,
}

/// Knowledge whether the code runs in the target itself or in a fork child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Unknown,
    /// The code has compared the word that is 0 in a fork child, so the zero flag is set in a child.
    Compared,
    Yes,
}

/// Knowledge about the value of one register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RegisterBound {
    /// Nothing is known about any register.
    None,
    /// The register holds the top of this thread's activation records.
    Top(u8),
    /// The register holds at most this number.
    Most(u8, u32),
    /// The register holds this number.
    Exactly(u8, u32),
    /// The register holds the address of a function that the code may call.
    Callee(u8),
    /// The register holds the address of the loader's state word.
    Loader(u8),
}

impl RegisterBound {
    fn register(self) -> Option<u8> {
        match self {
            RegisterBound::None => None,
            RegisterBound::Top(r)
            | RegisterBound::Most(r, _)
            | RegisterBound::Exactly(r, _)
            | RegisterBound::Callee(r)
            | RegisterBound::Loader(r) => Some(r),
        }
    }
}

/// State at one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AbstractState {
    /// Registers that hold their original values, one bit each.
    pub kept: u16,
    pub flags_kept: bool,
    /// Register that holds an address of the arena, and that address; `None` if no register does.
    pub pointer: Option<(u8, u64)>,
    /// Bound or meaning of the value of one register, as far as it is known.
    pub bound: RegisterBound,
    /// The same for another register, about which it was known earlier.
    pub earlier: RegisterBound,
    /// Register and number, more than 0, that the last instruction has compared; branches come in between at most.
    pub compared: Option<(u8, u32)>,
    pub image: FlagsTransfer,
    pub parent: Parent,
    pub stack: Stack,
}

impl AbstractState {
    /// Returns the state at the point, before any generated instruction.
    pub fn entry() -> Self {
        AbstractState {
            kept: u16::MAX,
            flags_kept: true,
            pointer: None,
            bound: RegisterBound::None,
            earlier: RegisterBound::None,
            compared: None,
            image: FlagsTransfer::None,
            parent: Parent::Unknown,
            stack: Stack::default(),
        }
    }

    pub fn lose(&mut self, r: u8) {
        self.kept &= !(1 << r);
        if self.pointer.is_some_and(|(p, _)| p == r) {
            self.pointer = None;
        }
        for known in [&mut self.bound, &mut self.earlier] {
            if known.register() == Some(r) {
                *known = RegisterBound::None;
            }
        }
        if r == 0 {
            self.image = FlagsTransfer::None;
        }
    }

    /// Notes what is known about a register. What was known about another one stays known.
    pub fn know(&mut self, bound: RegisterBound) {
        if self.bound.register() != bound.register() {
            self.earlier = self.bound;
        }
        self.bound = bound;
    }

    /// Applies a move between registers in a shared routine. The resume address, which arrives in rax, may be kept in another register.
    pub fn moves(&mut self, i: &Instruction) {
        let (Some(to), Some(from)) = (number_of(i.op0_register()), number_of(i.op1_register())) else { return };
        let (waits, kept) = (self.pointer == Some((from, WAY_BACK)), self.kept & 1 != 0);
        self.lose(to);
        if from == 0 && kept {
            self.pointer = Some((to, WAY_BACK));
        }
        if to == 0 && waits {
            self.kept |= 1;
        }
    }

    pub fn meet(&mut self, other: &AbstractState) {
        self.kept &= other.kept;
        self.flags_kept &= other.flags_kept;
        if self.pointer != other.pointer {
            self.pointer = None;
        }
        if self.bound != other.bound {
            self.bound = RegisterBound::None;
        }
        if self.earlier != other.earlier {
            self.earlier = RegisterBound::None;
        }
        if self.compared != other.compared {
            self.compared = None;
        }
        if self.image != other.image {
            self.image = FlagsTransfer::None;
        }
        if self.parent != other.parent {
            self.parent = Parent::Unknown;
        }
    }
}
