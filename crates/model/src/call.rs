//! Calls of the program's functions from snippets, and the processor state that generated code saves around them.

use std::fmt;

use crate::addr::Avma;
use crate::snippet::Expr;

/// A call of a function of the target by the System V convention for integers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ProgramCall {
    /// The called function.
    pub callee: Called,
    /// Arguments, at most [`ProgramCall::ARGS_MAX`].
    pub args: Vec<Expr>,
}

impl ProgramCall {
    /// Most arguments of a call: as many as the System V convention passes in registers.
    pub const ARGS_MAX: usize = 6;
}

/// The function that a [`ProgramCall`] calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Called {
    /// Name as the definition gives it, `NAME` or `MODULE:NAME`. The engine has not looked it up in a process yet.
    Named(String),
    /// Address of the function's first byte in the process.
    At(Avma),
}

/// State components that a called function may change, besides general registers and flags, and the size that XSAVE needs to save them
/// (Intel SDM, vol. 1, chapter 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorState {
    /// State components to save, one bit each, numbered as in XCR0.
    pub components: u64,
    /// Size of the XSAVE area of these components in bytes, in the standard format, header included.
    pub bytes: u32,
}

impl VectorState {
    /// State components that may be saved: x87, SSE, AVX, MPX, AVX-512 and the extended general registers (APX). Protection keys are left
    /// out, because they belong to the thread. The tiles of AMX are left out, because no caller keeps them over a call.
    pub const COMPONENTS: u64 = 0xff | 1 << 19;
    /// Size in bytes of the smallest XSAVE area: x87, SSE and the header, which every processor with XSAVE has.
    pub const LEAST: u32 = 576;
    /// Size in bytes of the largest XSAVE area that generated code puts on a stack.
    pub const MOST: u32 = 4096;

    /// Whether the components include x87 and SSE and no unknown one, and the size lies between `Self::LEAST` and `Self::MOST`.
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

impl fmt::Display for ProgramCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "call {}(", self.callee)?;
        for (n, arg) in self.args.iter().enumerate() {
            write!(f, "{}{arg}", if n > 0 { ", " } else { "" })?;
        }
        f.write_str(")")
    }
}
