//! Words for the way in which the threads of a program are told apart.

use ingraft_model::ThreadIdentity;

/// The way in which threads are told apart, in words.
pub fn describe(identity: ThreadIdentity) -> String {
    match identity {
        ThreadIdentity::FsOffset(offset) => format!("by thread id at fs:{offset:#x}"),
        ThreadIdentity::FsBase => "by fs base".to_owned(),
        ThreadIdentity::Locked => "not at all: locked counters".to_owned(),
    }
}
