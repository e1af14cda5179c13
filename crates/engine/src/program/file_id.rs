//! Files by device and inode: the same wherever they are mapped.

/// A file, wherever it is mapped: device (major, minor) and inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device, (major, minor).
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}
