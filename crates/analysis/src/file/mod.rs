//! Tables of an ELF file: segments and sections, symbols, relocations, unwind tables and Go's function table.

pub(crate) mod elf;
pub(crate) mod error;
pub(crate) mod frames;
pub(crate) mod go;
pub(crate) mod linkage;
pub(crate) mod name;
pub(crate) mod patchable;
pub(crate) mod probes;
pub(crate) mod relocs;
pub(crate) mod restartable;
pub(crate) mod symbol;
pub(crate) mod symbols;
pub(crate) mod unwind;
