//! Indexes and addresses in files.

use super::FileError;

pub(crate) fn contradiction(what: &'static str) -> FileError {
    FileError::Contradiction { what }
}

/// An index of a file, which must be below `length`.
pub(crate) fn index(of: u64, length: usize, what: &'static str) -> Result<usize, FileError> {
    usize::try_from(of).ok().filter(|at| *at < length).ok_or_else(|| contradiction(what))
}

/// Distance from one address to another one.
pub(crate) fn distance(from: u64, to: u64) -> i64 {
    to.wrapping_sub(from).cast_signed()
}

/// Address at a distance from another one.
pub(crate) fn address(from: u64, distance: i64) -> u64 {
    from.wrapping_add_signed(distance)
}
