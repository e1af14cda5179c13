//! The file of a data area. Other processes have it as well, so its size is sealed before it is mapped here: an access beyond the end of a
//! file ends a process by SIGBUS.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{SealFlags, fcntl_add_seals, fcntl_get_seals, fstat};

use crate::error::Error;

/// Seals of a data area's file: it becomes neither smaller nor larger, and no process can add seals that take our writes away
/// (`F_SEAL_WRITE`, `F_SEAL_FUTURE_WRITE`).
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// F_SEAL_EXEC: never executable. The kernel sets it at the file's creation.
const SEAL_EXEC: SealFlags = SealFlags::from_bits_retain(0x20);

fn refused(why: &'static str) -> Error {
    Error::Own { what: "take the data area's file from the target", source: io::Error::other(why) }
}

fn seals(file: impl AsFd) -> Option<SealFlags> {
    // only shared memory has seals
    fcntl_get_seals(file).ok().map(|seals| seals.difference(SEAL_EXEC))
}

/// Refuses any file that is not a new one of memfd_create(2) that may be sealed.
pub(crate) fn expect_fresh(file: impl AsFd) -> Result<(), Error> {
    if seals(&file) != Some(SealFlags::empty()) {
        return Err(refused("it is not a file that can be sealed"));
    }
    match fstat(&file) {
        Ok(stat) if stat.st_nlink == 0 && stat.st_size == 0 => Ok(()),
        _ => Err(refused("it is not a new file")),
    }
}

/// Seals the file at its size, which must be this one.
pub(crate) fn seal(file: impl AsFd, len: u64) -> Result<(), Error> {
    // This fails if a process has sealed the file against seals.
    fcntl_add_seals(&file, SEALS).map_err(|_| refused("it cannot be sealed"))?;
    if is_sealed(&file, len) { Ok(()) } else { Err(refused("its size or its seals were changed")) }
}

/// Whether a file is sealed as those of data areas are, and has this size.
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
        // somebody was faster
        for early in [SealFlags::SEAL, SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
            let file = new();
            ftruncate(&file, 4096).expect("grow");
            fcntl_add_seals(&file, early).expect("seal");
            assert!(seal(&file, 4096).is_err(), "{early:?}");
        }
        // cut down between the two
        let file = new();
        assert!(seal(&file, 4096).is_err());
        assert!(expect_fresh(memfd_create("x", MemfdFlags::empty()).expect("memfd")).is_err());
        assert!(expect_fresh(tempfile()).is_err());
    }

    fn tempfile() -> std::fs::File {
        std::fs::File::open("/proc/self/exe").expect("a file")
    }
}
