//! The state directory: journals, locks and the analysis cache. Nothing is touched in a target before it proved writable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ingraft_model::Pid;

use crate::error::{Error, ErrorKind};

/// A state directory that was writable when it was opened.
#[derive(Clone, Debug)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// Opens the directory, making it (mode 0700) if it is not there, and proves that files can be written in it.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let refuse = |e: io::Error| {
            Error::new(
                ErrorKind::Failed,
                "state_dir_unwritable",
                format!("cannot write to the state directory {}: {e}", root.display()),
                "name another one with --state-dir or INGRAFT_STATE_DIR; original bytes are recorded there before anything is changed",
            )
        };
        for folder in ["journal", "cache"] {
            make_private(&root.join(folder)).map_err(refuse)?;
        }
        // A full disk shows only when something is written.
        let mut probe = tempfile::Builder::new().prefix(".probe").tempfile_in(root).map_err(refuse)?;
        probe.write_all(&[0; 4096]).and_then(|()| probe.flush()).map_err(refuse)?;
        Ok(StateDir { root: root.to_owned() })
    }

    /// Where the journal of a target lies; the start time tells pids apart that were used twice.
    pub fn journal_path(&self, pid: Pid, start_time: u64) -> PathBuf {
        self.root.join("journal").join(format!("{pid}-{start_time}.journal"))
    }

    /// The journals that are there, with the pid in their name.
    pub fn journals(&self) -> Vec<(Pid, u64, PathBuf)> {
        let Ok(entries) = fs::read_dir(self.root.join("journal")) else { return Vec::new() };
        entries
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let stem = path.file_name()?.to_str()?.strip_suffix(".journal")?;
                let (pid, start) = stem.split_once('-')?;
                Some((Pid(pid.parse().ok()?), start.parse().ok()?, path))
            })
            .collect()
    }

    /// The cached analysis under a key (a build-id), if it can be read.
    pub fn read_cache(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.cache_path(key)).ok()
    }

    /// Stores an analysis; a failure only costs time later. Written aside and renamed, so that a reader never sees half of it.
    pub fn write_cache(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.root.join("cache"))?;
        file.write_all(bytes)?;
        file.persist(self.cache_path(key)).map_err(|e| e.error)?;
        Ok(())
    }

    /// A lock that one engine at a time holds for a target. `None`: somebody else has it.
    pub fn lock_target(&self, pid: Pid) -> io::Result<Option<File>> {
        let file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.root.join("journal").join(format!("{pid}.lock")))?;
        match file.try_lock() {
            Ok(()) => Ok(Some(file)),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(e)) => Err(e),
        }
    }

    /// Takes away the lock's file; the lock itself ends with `lock`.
    pub fn forget_lock(&self, pid: Pid, lock: File) {
        // Removed while it is still held: a second engine that opened it before will find nobody at that name later, and
        // the header in the target decides then.
        let _ = fs::remove_file(self.root.join("journal").join(format!("{pid}.lock")));
        drop(lock);
    }

    fn cache_path(&self, key: &str) -> PathBuf {
        self.root.join("cache").join(format!("{key}.analysis"))
    }
}

fn make_private(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwritable_directories_are_refused() {
        let error = StateDir::open(Path::new("/proc/nowhere")).expect_err("proc is not writable");
        assert_eq!(error.reason, "state_dir_unwritable");
    }

    #[test]
    fn one_lock_per_target() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::open(dir.path()).expect("writable");
        let lock = state.lock_target(Pid(1)).expect("no error").expect("free");
        assert!(state.lock_target(Pid(1)).expect("no error").is_none());
        assert!(state.lock_target(Pid(2)).expect("no error").is_some());
        state.forget_lock(Pid(1), lock);
        assert!(state.lock_target(Pid(1)).expect("no error").is_some());
    }
}
