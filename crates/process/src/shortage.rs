//! A limit on memory that leaves too little room for a change, in words.

use ingraft_model::machine::PAGE;
use std::fmt;
use std::path::PathBuf;

const MIB: u64 = 1 << 20;

/// Limit on the memory of a target.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MemoryLimit {
    /// A control group: the file that holds the limit.
    Group(PathBuf),
    /// RLIMIT_AS.
    AddressSpace,
    /// The commit limit of the kernel (`vm.overcommit_memory` is 2).
    Commit,
    /// The memory of the machine.
    Machine,
}

/// A limit on the memory of a target, and the room below it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryRoom {
    /// The limit.
    pub limit: MemoryLimit,
    /// Value of the limit in bytes.
    pub total: u64,
    /// Bytes that are still available, including memory that the kernel can reclaim.
    pub left: u64,
}

/// A limit leaves too little room for a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Shortage {
    /// The limit.
    pub room: MemoryRoom,
    /// Upper bound of the bytes that the change takes.
    pub needed: u64,
    /// Bytes that must stay free for the target.
    pub reserve: u64,
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemoryLimit::Group(file) => write!(f, "{}", file.display()),
            MemoryLimit::AddressSpace => f.write_str("RLIMIT_AS"),
            MemoryLimit::Commit => f.write_str("the commit limit (vm.overcommit_memory=2)"),
            MemoryLimit::Machine => f.write_str("this machine"),
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryRoom { limit, total, left } = &self.room;
        let (needed, reserve) = (SizeInMib(self.needed), SizeInMib(self.reserve));
        let (total, left) = (SizeInMib(*total), SizeInMib(*left));
        let what = if *limit == MemoryLimit::AddressSpace { "address space" } else { "memory" };
        write!(
            f,
            "up to {needed} of {what} are needed in the target, and {reserve} must stay free: {limit} ({total}) leaves {left}"
        )
    }
}

impl Shortage {
    /// Advice for the user in one line.
    pub fn hint(&self) -> String {
        let more = SizeInMib(self.needed.saturating_add(self.reserve).saturating_sub(self.room.left).max(PAGE));
        match self.room.limit {
            MemoryLimit::Machine => {
                format!("free {more} of memory, or measure fewer functions at a time")
            }
            MemoryLimit::Group(_) | MemoryLimit::AddressSpace | MemoryLimit::Commit => {
                format!("raise the limit by {more}, or measure fewer functions at a time")
            }
        }
    }
}

/// Number of bytes, formatted in MiB for the user.
struct SizeInMib(u64);

impl fmt::Display for SizeInMib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = self.0.saturating_mul(10).div_ceil(MIB);
        write!(f, "{}.{} MiB", tenths / 10, tenths % 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up() {
        assert_eq!(SizeInMib(MIB + 1).to_string(), "1.1 MiB");
    }
}
