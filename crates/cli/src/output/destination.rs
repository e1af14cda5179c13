//! The file of `-o`. A file that exists keeps what it holds until there is something to write in its place, so a command that is refused
//! loses nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tempfile::{Builder, NamedTempFile};

use super::unwritten;
use crate::exit::Failure;

/// The file of `-o`; copies write to the same file.
#[derive(Clone, Debug)]
pub(crate) struct Destination {
    path: PathBuf,
    state: Arc<Mutex<DestinationState>>,
}

#[derive(Debug)]
enum DestinationState {
    /// A new file in the same directory. It takes the place of the old one with the first bytes.
    Beside(NamedTempFile),
    /// A device, a pipe, or a file that cannot be replaced as it is. It is opened for the first bytes.
    InPlace,
    Open(File),
}

impl Destination {
    /// Checks that the file can be written, and prepares that. Changes nothing that exists.
    pub(crate) fn prepare(path: &Path) -> Result<Self, Failure> {
        let state = prepare(path).map_err(|e| unwritten(path, &e))?;
        Ok(Destination { path: path.to_owned(), state: Arc::new(Mutex::new(state)) })
    }

    /// Writes more at the end.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.write_all(bytes).map_err(|e| unwritten(&self.path, &e))
    }

    /// Writes the whole contents. If that fails, a file that existed is as it was.
    pub(crate) fn write_whole(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut state = self.state();
        let written = match &mut *state {
            DestinationState::Beside(new) => new.write_all(bytes).and_then(|()| new.flush()),
            DestinationState::InPlace | DestinationState::Open(_) => Ok(()),
        };
        let is_beside = matches!(*state, DestinationState::Beside(_));
        let placed = written.and_then(|()| self.open(&mut state)?.write_all(if is_beside { &[] } else { bytes }));
        placed.map_err(|e| unwritten(&self.path, &e))
    }

    fn state(&self) -> MutexGuard<'_, DestinationState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open file. A new file takes the place of the old one.
    fn open<'s>(&self, state: &'s mut DestinationState) -> io::Result<&'s mut File> {
        *state = match std::mem::replace(state, DestinationState::InPlace) {
            DestinationState::Beside(new) => {
                DestinationState::Open(new.persist(resolved(&self.path)?).map_err(|e| e.error)?)
            }
            DestinationState::InPlace => DestinationState::Open(File::create(&self.path)?),
            open @ DestinationState::Open(_) => open,
        };
        match state {
            DestinationState::Open(file) => Ok(file),
            DestinationState::Beside(_) | DestinationState::InPlace => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        self.open(&mut state)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut *self.state() {
            DestinationState::Open(file) => file.flush(),
            DestinationState::Beside(_) | DestinationState::InPlace => Ok(()),
        }
    }
}

fn prepare(path: &Path) -> io::Result<DestinationState> {
    let old = match fs::metadata(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        other => Some(other?),
    };
    if let Some(old) = &old {
        if old.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        if !old.is_file() {
            return Ok(DestinationState::InPlace);
        }
        OpenOptions::new().write(true).open(path)?;
    }
    let real = resolved(path)?;
    let directory = real.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mode = old.as_ref().map_or(0o666, |old| old.mode() & 0o7777);
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    let new = Builder::new().prefix(".ingraft-").permissions(permissions).tempfile_in(directory);
    let (new, old) = match (new, old) {
        (new, None) => return Ok(DestinationState::Beside(new?)),
        // The file can be written, though not replaced.
        (Err(_), Some(_)) => return Ok(DestinationState::InPlace),
        (Ok(new), Some(old)) => (new, old),
    };
    let made = new.as_file().metadata()?;
    let is_owned = (made.uid(), made.gid()) == (old.uid(), old.gid())
        || fchown(new.as_file(), Some(old.uid()), Some(old.gid())).is_ok();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    let is_same = old.nlink() == 1 && is_owned && new.as_file().set_permissions(permissions).is_ok();
    Ok(if is_same { DestinationState::Beside(new) } else { DestinationState::InPlace })
}

/// The path behind symbolic links. The last one may lead to a file that does not exist.
fn resolved(path: &Path) -> io::Result<PathBuf> {
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().map_or_else(|| to.clone(), |parent| parent.join(&to)),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("a directory");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_keeps_its_contents_until_something_is_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("old");
        fs::write(&path, "old").expect("write");
        drop(Destination::prepare(&path).expect("a file that can be written"));
        assert_eq!(fs::read_to_string(&path).expect("read"), "old");
        assert_eq!(names(directory.path()), ["old"]);
        let mut to = Destination::prepare(&path).expect("a file that can be written");
        to.write_all(b"new").expect("write");
        assert_eq!(fs::read_to_string(&path).expect("read"), "new");
        to.clone().write_all(b"er").expect("write");
        assert_eq!(fs::read_to_string(&path).expect("read"), "newer");
        assert_eq!(names(directory.path()), ["old"]);
    }

    #[test]
    fn the_place_the_mode_and_links_stay() {
        let directory = tempfile::tempdir().expect("a directory");
        let [real, link, dangling] = ["real", "link", "dangling"].map(|name| directory.path().join(name));
        fs::write(&real, "old").expect("write");
        fs::set_permissions(&real, fs::Permissions::from_mode(0o640)).expect("mode");
        symlink("real", &link).expect("link");
        symlink("later", &dangling).expect("link");
        Destination::prepare(&link).expect("a link").write_whole(b"new").expect("write");
        assert!(fs::symlink_metadata(&link).expect("link").is_symlink());
        assert_eq!(fs::read_to_string(&real).expect("read"), "new");
        assert_eq!(fs::metadata(&real).expect("metadata").mode() & 0o7777, 0o640);
        Destination::prepare(&dangling).expect("a link").write_whole(b"made").expect("write");
        assert_eq!(fs::read_to_string(directory.path().join("later")).expect("read"), "made");
        let twin = directory.path().join("twin");
        fs::hard_link(&real, &twin).expect("link");
        Destination::prepare(&real).expect("a file").write_whole(b"both").expect("write");
        assert_eq!(fs::read_to_string(&twin).expect("read"), "both");
    }

    #[test]
    fn files_that_cannot_be_written_are_told_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        assert!(Destination::prepare(directory.path()).is_err());
        assert!(Destination::prepare(&directory.path().join("none/file")).is_err());
        let full = Destination::prepare(Path::new("/dev/full")).expect("a device");
        assert!(full.write_whole(b"x").is_err());
    }
}
