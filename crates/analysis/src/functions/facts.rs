//! Facts about one function from the image-wide pass, kept with the function.

/// Facts about one function from the image-wide pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CodeFacts {
    /// General purpose registers that an instruction of the function overwrites wholly; bit n stands for register n.
    pub writes: u16,
    /// Whether the function certainly calls out of the image or through a pointer: such a callee may overwrite any register, and compilers know that. What
    /// a function does not overwrite, its callers may keep in registers over a call, although the convention does not say so (`-fipa-ra` of gcc).
    pub calls_out: bool,
    /// Address of an indirect jump whose target is computed from unknown distances.
    pub unresolved: Option<u64>,
    /// Address of bytes that are no instruction.
    pub invalid: Option<u64>,
}
