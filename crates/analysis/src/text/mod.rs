//! Bytes of text as instructions, and sets of places in text. It uses `file`.

pub(crate) mod bits;
pub(crate) mod decode;
pub(crate) mod disassembly;
pub(crate) mod events;
pub(crate) mod transfer;
