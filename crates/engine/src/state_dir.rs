//! The state directory: journals, locks and the analysis cache. No target is changed before the directory has proved writable.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use ingraft_model::Pid;

use crate::error::{Error, Reason};

/// A state directory. It was writable when it was opened, unless it is used for removals only.
#[derive(Clone, Debug)]
pub struct StateDir {
    root: PathBuf,
}

impl StateDir {
    /// Opens the directory, creates it (mode 0700) if it does not exist, and tests that files can be written in it.
    pub fn open(root: &Path) -> Result<Self, Error> {
        let refuse = |e: io::Error| unwritable(root, &e);
        for folder in ["journal", "cache", ENGINES] {
            make_private(&root.join(folder)).map_err(refuse)?;
        }
        // A full disk shows only when bytes are written.
        let mut probe = tempfile::Builder::new().prefix(".probe").tempfile_in(root).map_err(refuse)?;
        probe.write_all(&[0; 4096]).and_then(|()| probe.flush()).map_err(refuse)?;
        Ok(StateDir { root: root.to_owned() })
    }

    /// The directory for an engine that only removes code. It may be full, read-only or absent: a removal needs no new file, because the
    /// target has a copy of its journal.
    pub fn for_removal(root: &Path) -> Self {
        StateDir { root: root.to_owned() }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Path of the journal of a target. The start time distinguishes processes that had the same pid.
    pub fn journal_path(&self, pid: Pid, start_time: u64) -> PathBuf {
        self.root.join("journal").join(format!("{pid}-{start_time}.journal"))
    }

    /// The existing journals, each with the pid and the start time in its name.
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

    /// Removes the files of processes that have ended and whose locks no engine holds. `lives` tells whether a process of this id, and of
    /// this start time if that is known, still runs. If engines of several pid namespaces share the directory, nothing is removed, because
    /// each would take the processes of the others for ended.
    pub fn sweep(&self, lives: &dyn Fn(Pid, Option<u64>) -> bool) {
        if !self.is_of_one_namespace() {
            return;
        }
        let journals = self.journals();
        let gone = journals.iter().filter(|(pid, start, _)| !lives(*pid, Some(*start)));
        for (pid, _, path) in gone {
            // an engine that still serves the values of an ended process holds its lock
            if let Ok(Some(lock)) = self.lock_target(*pid) {
                let _ = fs::remove_file(path);
                self.forget_lock(*pid, lock);
            }
        }
        for pid in self.locks().into_iter().filter(|pid| !lives(*pid, None)) {
            if let Ok(Some(lock)) = self.lock_target(pid) {
                self.forget_lock(pid, lock);
            }
        }
        for engine in self.named(ENGINES, ".sock").into_iter().filter(|pid| !lives(*pid, None)) {
            let _ = fs::remove_file(socket_path(&self.root, engine));
        }
    }

    /// Whether all engines that have used the directory were in this engine's pid namespace.
    fn is_of_one_namespace(&self) -> bool {
        const SEVERAL: &str = "several";
        let path = self.root.join("pid-namespace");
        let Ok(own) = fs::read_link("/proc/self/ns/pid") else { return false };
        let own = own.to_string_lossy();
        match fs::read_to_string(&path) {
            Ok(known) if known == own => true,
            Ok(_) => {
                // the mark stays for ever, because journals of other namespaces may be there
                let _ = fs::write(&path, SEVERAL);
                false
            }
            Err(_) => fs::write(&path, own.as_bytes()).is_ok(),
        }
    }

    /// The processes that have a lock file.
    fn locks(&self) -> Vec<Pid> {
        self.named("journal", ".lock")
    }

    /// The processes that have a file with this ending in a folder.
    fn named(&self, folder: &str, ending: &str) -> Vec<Pid> {
        let Ok(entries) = fs::read_dir(self.root.join(folder)) else { return Vec::new() };
        let pid = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_suffix(ending)?.parse().ok().map(Pid);
        entries.flatten().filter_map(pid).collect()
    }

    /// The cached analysis with this key, if it can be read.
    pub fn read_cache(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.cache_path(key)).ok()
    }

    /// Stores an analysis; a failure only costs time later. The file is written aside and renamed, so that a reader never sees a part of
    /// it.
    pub fn write_cache(&self, key: &str, bytes: &[u8]) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(self.root.join("cache"))?;
        file.write_all(bytes)?;
        file.persist(self.cache_path(key)).map_err(|e| e.error)?;
        Ok(())
    }

    /// The lock of a target, which one engine at a time can hold; `None` if another engine holds it. The file has the id of the process
    /// that holds the lock.
    pub fn lock_target(&self, pid: Pid) -> io::Result<Option<File>> {
        let mut file = File::options().create(true).truncate(false).write(true).open(self.lock_path(pid))?;
        match file.try_lock() {
            Ok(()) => {
                // On a full disk the id is missing, and other commands cannot join this engine.
                let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
                Ok(Some(file))
            }
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(e)) => Err(e),
        }
    }

    /// The process whose engine holds the lock of a target; `None` if it is not known, for example in the moment in which it takes the lock.
    pub fn lock_holder(&self, pid: Pid) -> Option<Pid> {
        fs::read_to_string(self.lock_path(pid)).ok()?.parse().ok().map(Pid)
    }

    fn lock_path(&self, pid: Pid) -> PathBuf {
        self.root.join("journal").join(format!("{pid}.lock"))
    }

    /// Removes the file of a lock, then releases the lock.
    pub fn forget_lock(&self, pid: Pid, lock: File) {
        // The file is removed while the lock is held. A second engine that has opened the file before gets a lock that no later engine
        // sees; the header in the target then decides which engine holds the target.
        let _ = fs::remove_file(self.lock_path(pid));
        drop(lock);
    }

    /// The first id for measurements of a new engine; `now_us` is the Unix time in microseconds. Ids grow slower than that clock, so the
    /// ids of a successor are above those of its predecessors, also in another state directory. As the clock may be set back, the state
    /// directory has a mark that no id has passed.
    ///
    /// All ids stay below 2^53, up to which readers of JSON that know only doubles are exact. The clock reaches that value in the year
    /// 2255.
    pub fn first_id(&self, now_us: u64) -> u64 {
        now_us.min(ID_MAX).max(self.id_mark())
    }

    /// Raises the mark before an id at the mark is used.
    pub fn use_id(&self, id: u64) -> Result<(), Error> {
        if id.is_multiple_of(ID_BLOCK) || id >= self.id_mark() {
            let raise = || {
                let mut file = tempfile::NamedTempFile::new_in(&self.root)?;
                writeln!(file, "{}", id.saturating_add(ID_BLOCK))?;
                file.persist(self.root.join(ID_MARK)).map_err(|e| e.error)
            };
            raise().map_err(|e| unwritable(&self.root, &e))?;
        }
        Ok(())
    }

    /// The mark: no id at or above it was used. A mark that no clock can have led to is ignored.
    fn id_mark(&self) -> u64 {
        let text = fs::read_to_string(self.root.join(ID_MARK)).unwrap_or_default();
        text.trim().parse().ok().filter(|mark| *mark <= ID_MAX).unwrap_or(0)
    }

    fn cache_path(&self, key: &str) -> PathBuf {
        self.root.join("cache").join(format!("{key}.analysis"))
    }
}

/// Path of the socket at which the engine of a process serves other commands of its user, in the folder of such sockets in a state directory.
pub fn socket_path(state_dir: &Path, engine: Pid) -> PathBuf {
    state_dir.join(ENGINES).join(format!("{engine}.sock"))
}

/// Folder of the sockets of engines.
const ENGINES: &str = "engines";
/// Name of the file with the mark of ids.
const ID_MARK: &str = "next-id";
/// Step by which the mark is raised.
const ID_BLOCK: u64 = 1 << 20;
/// Largest first id of an engine, whatever the clock says. It leaves as many ids below 2^53.
const ID_MAX: u64 = 1 << 52;

fn unwritable(root: &Path, e: &io::Error) -> Error {
    Error::new(
        Reason::StateDirUnwritable,
        format!("cannot write to the state directory {}: {e}", root.display()),
        "name another one with --state-dir or INGRAFT_STATE_DIR; original bytes are recorded there before anything is changed",
    )
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
        assert_eq!(error.reason, Reason::StateDirUnwritable);
    }

    #[test]
    fn ids_are_never_used_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::open(dir.path()).expect("writable");
        let now = 1_800_000_000_000_000;
        let first = state.first_id(now);
        assert_eq!(first, now);
        (first..first + 3).for_each(|id| state.use_id(id).expect("writable"));
        assert!(state.first_id(now + 1) > first + 2, "at once after it");
        assert!(state.first_id(0) > first + 2, "the clock was set back");
        fs::write(dir.path().join(ID_MARK), "99999999999999999999").expect("writable");
        assert_eq!(state.first_id(now), now, "a mark that is none");
        assert!(state.first_id(u64::MAX) + ID_BLOCK < 1 << 53);
    }

    #[test]
    fn files_of_ended_processes_are_swept() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::open(dir.path()).expect("writable");
        for (pid, start) in [(1, 10), (2, 20), (2, 21), (3, 30)] {
            fs::write(state.journal_path(Pid(pid), start), "").expect("writable");
        }
        // an engine holds the lock of process 3; the locks of the other processes were left behind
        let held = state.lock_target(Pid(3)).expect("no error").expect("free");
        for pid in [1, 2, 4] {
            drop(state.lock_target(Pid(pid)).expect("no error").expect("free"));
        }
        for engine in [2, 5] {
            fs::write(socket_path(dir.path(), Pid(engine)), "").expect("writable");
        }
        state.sweep(&|pid, start| pid == Pid(2) && start.is_none_or(|start| start == 21));
        let mut left: Vec<_> = state.journals().into_iter().map(|(pid, start, _)| (pid.0, start)).collect();
        left.sort_unstable();
        assert_eq!(left, [(2, 21), (3, 30)]);
        assert!(!state.locks().iter().any(|pid| [1, 4].contains(&pid.0)), "{:?}", state.locks());
        let has_socket = |engine| socket_path(dir.path(), Pid(engine)).exists();
        assert!(has_socket(2) && !has_socket(5));
        drop(held);
    }

    #[test]
    fn one_lock_per_target() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let state = StateDir::open(dir.path()).expect("writable");
        let lock = state.lock_target(Pid(1)).expect("no error").expect("free");
        assert!(state.lock_target(Pid(1)).expect("no error").is_none());
        assert_eq!(state.lock_holder(Pid(1)), Some(Pid(std::process::id() as i32)));
        assert!(state.lock_target(Pid(2)).expect("no error").is_some());
        state.forget_lock(Pid(1), lock);
        assert!(state.lock_target(Pid(1)).expect("no error").is_some());
    }
}
