//! Signature of arenas, by which a successor of a dead engine finds them.

/// First bytes of an arena, which tell an arena of a dead engine from other memory.
pub const SIGNATURE: &[u8; 16] = b"ingraft's arena\0";
