//! The file of a data area. The target has it too, so its size is sealed before the engine maps it: an access beyond the end of a file
//! raises SIGBUS, which ends a process.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};

use crate::error::ProcessError;

/// Seals of a data area's file. They keep its size, and no process can add seals that forbid writes (`F_SEAL_WRITE`,
/// `F_SEAL_FUTURE_WRITE`).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// F_SEAL_EXEC: the file never becomes executable. The kernel sets this seal when it creates the file.
const SEAL_EXEC: SealFlags = SealFlags::from_bits_retain(0x20);

fn refused(why: &'static str) -> ProcessError {
    ProcessError::Own { what: "take the data area's file from the target", source: io::Error::other(why) }
}

fn seals(file: impl AsFd) -> Option<SealFlags> {
    // Only files in shared memory have seals.
    fcntl_get_seals(file).ok().map(|seals| seals.difference(SEAL_EXEC))
}

/// Refuses a file unless memfd_create(2) has just created it and it may be sealed.
pub(crate) fn expect_fresh(file: impl AsFd) -> Result<(), ProcessError> {
    if seals(&file) != Some(SealFlags::empty()) {
        return Err(refused("it is not a file that can be sealed"));
    }
    match fstat(&file) {
        Ok(stat) if stat.st_nlink == 0 && stat.st_size == 0 => Ok(()),
        _ => Err(refused("it is not a new file")),
    }
}

/// Seals the file at its present size, which must be `len`.
pub(crate) fn seal(file: impl AsFd, len: u64) -> Result<(), ProcessError> {
    // This fails if a process has forbidden further seals.
    fcntl_add_seals(&file, SEALS).map_err(|_| refused("it cannot be sealed"))?;
    if is_sealed(&file, len) { Ok(()) } else { Err(refused("its size or its seals were changed")) }
}

/// Whether a file has exactly the seals of a data area's file, and this size.
pub(crate) fn is_sealed(file: impl AsFd, len: u64) -> bool {
    let size = || fstat(&file).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
    seals(&file) == Some(SEALS) && size() == Some(len)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;

    #[test]
    fn only_our_files_pass() {
        let new = || memfd_create("area", MemfdFlags::ALLOW_SEALING).expect("memfd");
        let file = new();
        assert!(expect_fresh(&file).is_ok() && !is_sealed(&file, 4096));
        ftruncate(&file, 4096).expect("grow");
        assert!(expect_fresh(&file).is_err(), "not new");
        assert!(seal(&file, 4096).is_ok() && is_sealed(&file, 4096) && !is_sealed(&file, 8192));
        assert!(ftruncate(&file, 0).is_err());
        assert!(fcntl_add_seals(&file, SealFlags::FUTURE_WRITE).is_err());
        // Another process has added a seal first.
        for early in [SealFlags::SEAL, SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            let file = new();
            ftruncate(&file, 4096).expect("grow");
            fcntl_add_seals(&file, early).expect("seal");
            assert!(seal(&file, 4096).is_err(), "{early:?}");
        }
        // The file was truncated before the seal.
        let file = new();
        assert!(seal(&file, 4096).is_err());
        assert!(expect_fresh(memfd_create("x", MemfdFlags::empty()).expect("memfd")).is_err());
        assert!(expect_fresh(tempfile()).is_err());
    }

    fn tempfile() -> std::fs::File {
        std::fs::File::open("/proc/self/exe").expect("a file")
    }
}
