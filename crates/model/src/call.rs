//! Calls of functions of the program from snippets, and what of the processor's state has to be kept around them.

use std::fmt;

use crate::addr::Avma;
use crate::snippet::Expr;

/// A call of a function of the target by the System V convention for integers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// The called function.
    pub callee: Called,
    /// Arguments, at most [`Call::ARGS_MAX`].
    pub args: Vec<Expr>,
}

impl Call {
    /// Most arguments: those that go in registers.
    pub const ARGS_MAX: usize = 6;
}

/// The function that a [`Call`] calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Called {
    /// As the definition names it, `NAME` or `MODULE:NAME`: not found in a process yet.
    Named(String),
    /// Address of the function's first byte in the process.
    At(Avma),
}

/// The parts of the processor's state that a called function may change and that are neither general registers nor flags: how XSAVE keeps
/// them (Intel SDM, vol. 1, chapter 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorState {
    /// The components, a bit each as in XCR0.
    pub components: u64,
    /// Bytes that they take in the standard format, header included.
    pub bytes: u32,
}

impl VectorState {
    /// The components that are kept: x87, SSE, AVX, MPX, AVX-512 and the extended general registers (APX). Not kept are the protection keys, which belong
    /// to the thread, and the tiles of AMX, which no caller keeps over a call.
    pub const COMPONENTS: u64 = 0xff | 1 << 19;
    /// Bytes of what every processor with XSAVE has: x87 and SSE, and the header.
    pub const LEAST: u32 = 576;
    /// Most bytes that are taken from a stack for it.
    pub const MOST: u32 = 4096;

    /// Whether it is one that can be kept.
    pub fn is_sound(&self) -> bool {
        let known = self.components & !Self::COMPONENTS == 0 && self.components & 3 == 3;
        known && (Self::LEAST..=Self::MOST).contains(&self.bytes)
    }
}

impl fmt::Display for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Called::Named(name) => write!(f, "\"{name}\""),
            Called::At(at) => write!(f, "{at}"),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}(", self.callee)?;
        for (n, arg) in self.args.iter().enumerate() {
            write!(f, "{}{arg}", if n > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}
