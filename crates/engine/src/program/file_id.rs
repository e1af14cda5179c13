//! Identity of files by device and inode, which is the same for every mapping.

/// Identity of a file: device (major, minor) and inode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId {
    /// Device, (major, minor).
    pub device: (u32, u32),
    /// Inode.
    pub inode: u64,
}
