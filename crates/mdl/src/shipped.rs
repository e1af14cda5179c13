//! The metric library that comes with ingraft.

use crate::library::Library;
use crate::parse::ParseOptions;

/// Name and text of each file, in the order in which they are loaded.
pub const FILES: &[(&str, &str)] = &[
    ("core.mdl", include_str!("../../../mdl/core.mdl")),
    ("libc.mdl", include_str!("../../../mdl/libc.mdl")),
    ("pthread.mdl", include_str!("../../../mdl/pthread.mdl")),
    ("openssl.mdl", include_str!("../../../mdl/openssl.mdl")),
    ("zlib.mdl", include_str!("../../../mdl/zlib.mdl")),
    ("sqlite.mdl", include_str!("../../../mdl/sqlite.mdl")),
    ("postgres.mdl", include_str!("../../../mdl/postgres.mdl")),
    ("redis.mdl", include_str!("../../../mdl/redis.mdl")),
    ("nginx.mdl", include_str!("../../../mdl/nginx.mdl")),
    ("events.mdl", include_str!("../../../mdl/events.mdl")),
    ("paradyn.mdl", include_str!("../../../mdl/paradyn.mdl")),
];

/// Returns a library with all shipped files. A test checks that no file has a finding.
pub fn library(options: ParseOptions) -> Library {
    let mut library = Library::new(options);
    for (name, text) in FILES {
        library.load(name, text);
    }
    library
}
