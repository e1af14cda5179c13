//! The C library among the files of a target.

use super::modules::ModuleFile;

/// Names of the C library, of glibc and of musl.
const NAMES: [&str; 3] = ["libc", "ld-musl-x86_64", "libc.musl-x86_64"];

impl ModuleFile {
    /// Whether the file is the C library.
    pub fn is_c_library(&self) -> bool {
        self.names.iter().any(|name| NAMES.contains(&name.as_str()))
    }
}
