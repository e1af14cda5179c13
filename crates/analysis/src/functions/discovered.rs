//! The results of the image-wide pass as values.

use crate::file::symbol::Label;
use crate::functions::function::Function;
use crate::text::bits::TextBits;

/// The results of the image-wide pass.
#[derive(Debug, Default)]
pub(crate) struct Discovered {
    pub functions: Vec<Function>,
    /// Symbols without a type that name none of the functions, sorted by address and name.
    pub labels: Vec<Label>,
    pub arrivals: TextBits,
    /// Proven padding after functions: (first byte, length), sorted.
    pub padding: Vec<(u64, u32)>,
    /// (function, branch): addresses of functions and of their own branches back to their entry, sorted.
    pub back_branches: Vec<(u64, u64)>,
    pub uses_gs: bool,
}
