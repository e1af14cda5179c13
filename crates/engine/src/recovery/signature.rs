//! Signature of arenas, by which a successor of a dead engine finds them.

use ingraft_process::{Mapping, Target};

/// First bytes of an arena, which tell an arena of a dead engine from other memory.
pub const SIGNATURE: &[u8; 16] = b"ingraft's arena\0";

/// Whether mapped memory is executable and begins with the signature of an arena.
pub fn is_arena(target: &Target, mapping: &Mapping) -> bool {
    let mut bytes = [0; SIGNATURE.len()];
    let is_code = mapping.exec && !mapping.is_file();
    is_code && target.read(mapping.range.start, &mut bytes).is_ok() && bytes == *SIGNATURE
}
