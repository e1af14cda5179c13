//! The results of the pass over an image as values.

use crate::file::symbol::Label;
use crate::functions::function::Function;
use crate::text::bits::TextBits;

/// What the expensive pass over an image yields.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub functions: Vec<Function>,
    /// Symbols without a type that name none of the functions, sorted by address and name.
    pub labels: Vec<Label>,
    pub arrivals: TextBits,
    /// Proven padding behind functions: (first byte, length), sorted.
    pub padding: Vec<(u64, u32)>,
    /// (function, branch): own branches back to the entry, sorted.
    pub back_branches: Vec<(u64, u64)>,
    pub uses_gs: bool,
}
