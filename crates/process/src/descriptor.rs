//! Descriptors that a process was started with.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::OFlags;

/// The file of a descriptor that this process was started with. Programs that the process starts do not inherit the descriptor any more.
///
/// Must be called before the process opens descriptors itself, as one of them could have the number. Fails if the descriptor is not open,
/// or not for writing.
pub fn inherited(descriptor: i32) -> io::Result<File> {
    let is_number = u32::try_from(descriptor).is_ok();
    if !is_number {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is none that the type excludes (-1). If no descriptor has it, the system calls below say so and do nothing.
    let theirs = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if rustix::fs::fcntl_getfl(theirs)? & OFlags::RWMODE == OFlags::RDONLY {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is open for reading only"));
    }
    let own = rustix::io::fcntl_dupfd_cloexec(theirs, 0)?;
    rustix::io::fcntl_setfd(theirs, rustix::io::FdFlags::CLOEXEC)?;
    Ok(File::from(own))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, AsRawFd};

    use super::*;

    #[test]
    fn an_open_descriptor_is_taken_from_programs() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::fcntl_setfd(&writer, rustix::io::FdFlags::empty()).expect("a flag");
        let mut file = inherited(writer.as_raw_fd()).expect("a descriptor");
        let flags = rustix::io::fcntl_getfd(writer.as_fd()).expect("flags");
        assert_eq!(flags, rustix::io::FdFlags::CLOEXEC);
        drop(writer);
        file.write_all(b"x").expect("write");
        drop(file);
        let mut text = String::new();
        reader.read_to_string(&mut text).expect("read");
        assert_eq!(text, "x");
    }

    #[test]
    fn others_are_refused() {
        let (reader, _writer) = io::pipe().expect("a pipe");
        assert_eq!(inherited(reader.as_raw_fd()).map_err(|e| e.kind()).err(), Some(io::ErrorKind::PermissionDenied));
        for number in [-1, i32::MAX] {
            assert_eq!(inherited(number).err().and_then(|e| e.raw_os_error()), Some(libc::EBADF));
        }
    }
}
