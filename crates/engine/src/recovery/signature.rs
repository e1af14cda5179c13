//! Signature of arenas: a successor of a dead engine finds them by it.

/// First bytes of an arena, by which one that a dead engine left is told from anything else.
pub const SIGNATURE: &[u8; 16] = b"ingraft's arena\0";
