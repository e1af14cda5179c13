//! Reasons why ingraft cannot work with a file as an image.

/// Reason why a file is unusable as an image. Damage in an optional table (symbols, unwind tables) is no error: the readable part of the
/// table is used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file does not begin with the magic bytes of ELF.
    #[error("not an ELF file")]
    NotElf,
    /// A header or table that everything else depends on is missing, or extends beyond the end of the file.
    #[error("damaged ELF file: {what}")]
    Damaged {
        /// The damage, in words.
        what: &'static str,
    },
    /// A 32-bit program of x86.
    #[error("a 32-bit program (i386); only 64-bit x86-64 is supported")]
    Bits32,
    /// A program with 64-bit registers and 32-bit pointers.
    #[error("an x32 program (64-bit registers, 32-bit pointers); only x86-64 is supported")]
    X32,
    /// A program for another machine.
    #[error("a program for {0}; only x86-64 is supported")]
    OtherMachine(String),
    /// Big-endian, or another version of ELF than 1.
    #[error("an unsupported kind of ELF file: {what}")]
    Unsupported {
        /// The unsupported property, in words.
        what: &'static str,
    },
    /// An object file or a core dump: nothing that is mapped and executed.
    #[error("neither an executable nor a shared object, but {what}")]
    NotLoadable {
        /// The kind of file, as the message names it.
        what: &'static str,
    },
}
