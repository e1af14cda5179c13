//! Arenas for generated code: one within reach of a module, with enough room.

use ingraft_codegen::Arena;
use ingraft_model::AvmaRange;
use ingraft_model::patch::ArenaCode;
use ingraft_process::Target;

use crate::error::Error;
use crate::recovery::signature::SIGNATURE;

/// Largest size of an arena in bytes.
pub(super) const ARENA_MAX: u64 = 1 << 28;

/// Smallest size of an arena in bytes, if that much address space is free.
const ARENA_LEAST: u64 = 1 << 20;

/// Size of an arena as a multiple of the code in it. Later snippets of a point must lie in the point's arena: code that only counts may be followed
/// by code that is several times as long. Address space costs nothing.
const RESERVE: u64 = 8;

/// Largest distance in bytes between code and the text that it serves: a little less than a 32-bit displacement reaches.
const REACH: u64 = (1 << 31) - (1 << 20);

/// Length in bytes of the signature at the start of an arena, which holds no code there.
pub(super) const SIGNATURE_ROOM: u64 = SIGNATURE.len() as u64;

/// Arenas that a change maps.
pub(super) struct NewArenas<'a> {
    /// Called with the range of each arena before the arena is mapped.
    pub record: &'a mut dyn FnMut(&AvmaRange) -> Result<(), Error>,
    /// Signatures to write into the mapped arenas.
    pub signatures: Vec<ArenaCode>,
    /// Addresses of these arenas without their signatures.
    pub ranges: Vec<AvmaRange>,
}

/// Index of an arena that is within reach of a module and has this much room; maps a new one if there is none. The code of another module does not
/// take what an arena has reserved, unless there is no place for a new one.
pub(super) fn arena_for(
    arenas: &mut Vec<Arena>,
    target: &Target,
    text: &AvmaRange,
    bytes: u64,
    mapped: &mut NewArenas<'_>,
) -> Result<usize, Error> {
    let reaches = |range: &AvmaRange| {
        text.end.0.saturating_sub(range.start.0) < REACH && range.end.0.saturating_sub(text.start.0) < REACH
    };
    let with_room = |arenas: &[Arena], reserve: u64| {
        let has_room = |arena: &Arena| {
            let (range, end) = (arena.range(), arena.touched().end);
            let used = end.0.saturating_sub(range.start.0).saturating_add(bytes);
            used.saturating_mul(reserve) <= range.end.0 - range.start.0
        };
        arenas.iter().position(|arena| reaches(&arena.range()) && has_room(arena))
    };
    if let Some(i) = with_room(arenas, RESERVE) {
        return Ok(i);
    }
    let failed = |e| Error::process(target.pid(), e);
    let generous = bytes.saturating_mul(RESERVE).max(ARENA_LEAST).min(ARENA_MAX.max(bytes));
    loop {
        let roomy = target.find_arena(text, generous + SIGNATURE_ROOM);
        let range = match roomy.or_else(|_| target.find_arena(text, bytes + SIGNATURE_ROOM)) {
            Ok(range) => range,
            Err(error) => return with_room(arenas, 1).ok_or_else(|| failed(error)),
        };
        // The arena is recorded before it is mapped. If the engine dies in between, its successor knows where to look for the arena.
        (mapped.record)(&range)?;
        if target.map_arena_at(&range).map_err(failed)? {
            mapped.signatures.push(ArenaCode { at: range.start, bytes: SIGNATURE.to_vec() });
            let free = range.start.offset(SIGNATURE_ROOM as i64)..range.end;
            mapped.ranges.push(free.clone());
            arenas.push(Arena::new(free));
            return Ok(arenas.len() - 1);
        }
    }
}
