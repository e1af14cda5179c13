//! Words for the way in which generated code tells the threads of a program apart.

use ingraft_model::ThreadIdentity;

/// The way in which generated code tells threads apart, in words.
pub fn describe(identity: ThreadIdentity) -> String {
    match identity {
        ThreadIdentity::FsOffset(offset) => format!("by thread id at fs:{offset:#x}"),
        ThreadIdentity::FsBase => "by fs base".to_owned(),
        ThreadIdentity::Locked => "not at all: locked counters".to_owned(),
    }
}
