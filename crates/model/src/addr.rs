//! Addresses in the file and addresses in the process. Names follow framehop: SVMA is an address as stated in the file,
//! AVMA an actual address in a process; only a [`Bias`] turns one into the other.

use std::fmt;
use std::ops::Range;

/// An address as the file states it (what `nm` and `objdump` print).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Svma(pub u64);

/// An actual address in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Avma(pub u64);

/// Number that the loader added to every address of an image; 0 for a program linked at a fixed address.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Bias(pub u64);

/// A range of stated addresses, end excluded.
pub type SvmaRange = Range<Svma>;
/// A range of actual addresses, end excluded.
pub type AvmaRange = Range<Avma>;

/// A process id, as the engine's pid namespace sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Pid(pub i32);

/// A thread id, as the engine's pid namespace sees it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub i32);

impl Svma {
    /// The actual address in a process where the image was loaded with `bias`.
    pub fn to_avma(self, bias: Bias) -> Avma {
        Avma(self.0.wrapping_add(bias.0))
    }
}

impl Avma {
    /// The stated address in an image that was loaded with `bias`.
    pub fn to_svma(self, bias: Bias) -> Svma {
        Svma(self.0.wrapping_sub(bias.0))
    }
}

macro_rules! address {
    ($t:ident) => {
        impl $t {
            /// Returns the address plus `bytes`. The addition wraps, because hostile input must not panic.
            pub fn offset(self, bytes: i64) -> Self {
                $t(self.0.wrapping_add_signed(bytes))
            }
        }
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}
address!(Svma);
address!(Avma);

macro_rules! kernel_id {
    ($t:ident) => {
        impl fmt::Debug for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($t), "({})"), self.0)
            }
        }
        impl fmt::Display for $t {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}
kernel_id!(Pid);
kernel_id!(Tid);

/// Distance in bytes of an address from the first byte of its function. It is negative in parts of a function before that byte. It is shown
/// with its sign, in hexadecimal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Offset(pub i64);

impl Offset {
    /// Returns the distance from `first` to `at`; both are addresses in the file, or both in the process.
    pub fn between(first: u64, at: u64) -> Offset {
        Offset(at.wrapping_sub(first).cast_signed())
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { '-' } else { '+' };
        write!(f, "{sign}{:#x}", self.0.unsigned_abs())
    }
}
