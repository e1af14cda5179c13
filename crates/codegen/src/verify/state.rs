//! What is known at one instruction of generated code: which registers still hold what they held at the point, and what lies on the code's own
//! part of the stack.

use iced_x86::Instruction;

use super::rules::number_of;
use super::{Flaw, VerifyError, fail};

/// A word on the stack: the original value of a register by number, or these.
pub(super) const FLAGS: u8 = 16;
pub(super) const OTHER: u8 = 17;
/// The flags as [`Image::Whole`].
pub(super) const IMAGE: u8 = 18;
/// The address of a function that may be called.
pub(super) const CALLEE: u8 = 19;

/// Stands for the address in rax with which a shared routine is entered: no address of an instruction.
const WAY_BACK: u64 = u64::MAX;

/// Most words that generated code may push: a snippet's levels and what is saved around it.
const STACK_MAX: usize = 80;

/// The words that generated code has pushed; no heap, because there is one per instruction.
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

/// How far the flags of the point are in ax, or from there on their way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Image {
    None,
    /// All but the overflow flag: behind lahf.
    Low,
    /// With the overflow flag: behind seto.
    Whole,
    /// The overflow flag is set right: what sahf takes completes it.
    Overflow,
}

/// Whether this is the target itself, not a fork child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Unknown,
    /// The flags say so, right behind the comparison: zero in a child.
    Compared,
    Yes,
}

/// What is known of a register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bound {
    /// Nothing.
    None,
    /// It is the top of this thread's activation records.
    Top(u8),
    /// It is at most this.
    Most(u8, u32),
    /// It is the address of a function that may be called.
    Callee(u8),
    /// It is the address of the word by which the loader says what it does.
    Loader(u8),
}

impl Bound {
    fn register(self) -> Option<u8> {
        match self {
            Bound::None => None,
            Bound::Top(r) | Bound::Most(r, _) | Bound::Callee(r) | Bound::Loader(r) => Some(r),
        }
    }
}

/// What is known at one instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Registers that hold what they held at the point, one bit each.
    pub kept: u16,
    pub flags_kept: bool,
    /// A register that holds this address.
    pub pointer: Option<(u8, u64)>,
    /// A register of which this is known.
    pub bound: Bound,
    pub image: Image,
    pub parent: Parent,
    pub stack: Stack,
}

impl State {
    /// Nothing has happened yet.
    pub fn entry() -> Self {
        State {
            kept: u16::MAX,
            flags_kept: true,
            pointer: None,
            bound: Bound::None,
            image: Image::None,
            parent: Parent::Unknown,
            stack: Stack::default(),
        }
    }

    pub fn lose(&mut self, r: u8) {
        self.kept &= !(1 << r);
        if self.pointer.is_some_and(|(p, _)| p == r) {
            self.pointer = None;
        }
        if self.bound.register() == Some(r) {
            self.bound = Bound::None;
        }
        if r == 0 {
            self.image = Image::None;
        }
    }

    /// A move between registers in a shared routine: the way back, which comes in rax, may wait in another one.
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

    pub fn meet(&mut self, other: &State) {
        self.kept &= other.kept;
        self.flags_kept &= other.flags_kept;
        if self.pointer != other.pointer {
            self.pointer = None;
        }
        if self.bound != other.bound {
            self.bound = Bound::None;
        }
        if self.image != other.image {
            self.image = Image::None;
        }
        if self.parent != other.parent {
            self.parent = Parent::Unknown;
        }
    }
}
