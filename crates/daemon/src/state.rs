//! Lock that allows one daemon for each state directory. A successor takes over what it finds there, so it must not find the files of a
//! living daemon.

use std::fs::{File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The lock of a state directory. The kernel releases it when the daemon ends, however it ends. The command line takes over nothing, so it
/// works in the same directory without the lock.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

/// Reason why a state directory cannot be locked.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another daemon has locked the directory.
    #[error(
        "the state directory {path} is in use by another ingraftd{by}\nend it, or name another directory with --state-dir"
    )]
    InUse {
        /// Path of the directory.
        path: PathBuf,
        /// ` (process PID)` if the other daemon has written its id; otherwise empty.
        by: String,
    },
    /// The kernel refuses an operation.
    #[error("cannot lock the state directory {path}: {source}")]
    Io {
        /// Path of the directory.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl StateLock {
    /// Locks an existing directory.
    pub fn take(directory: &Path) -> Result<StateLock, StateError> {
        let failed = |source| StateError::Io { path: directory.to_owned(), source };
        let mut options = File::options();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_CLOEXEC);
        let mut file = options.open(directory.join("ingraftd.lock")).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut text = String::new();
                // The holder of the lock may not have written its id yet.
                let _ = Read::by_ref(&mut file).take(32).read_to_string(&mut text);
                let pid: Option<u32> = text.trim().parse().ok();
                let by = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
                return Err(StateError::InUse { path: directory.to_owned(), by });
            }
            Err(TryLockError::Error(e)) => return Err(failed(e)),
        }
        file.set_len(0).and_then(|()| file.rewind()).map_err(failed)?;
        writeln!(file, "{}", std::process::id()).map_err(failed)?;
        Ok(StateLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_the_other_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateLock::take(directory.path()).unwrap();
        let second = StateLock::take(directory.path()).unwrap_err().to_string();
        assert!(second.contains(&format!("(process {})", std::process::id())), "{second}");
        drop(first);
        assert!(StateLock::take(directory.path()).is_ok());
    }
}
