//! Facts of the pass about one function, kept with the function.

/// What the pass found out about one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// General purpose registers that one of its instructions overwrites wholly, bit = number.
    pub writes: u16,
    /// Whether it calls out of the image or through a pointer, where anything may be overwritten.
    pub calls_out: bool,
    /// An indirect jump to an address that is computed from unknown distances.
    pub unresolved: Option<u64>,
    /// Bytes that are no instruction.
    pub invalid: Option<u64>,
}
