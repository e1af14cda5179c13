//! Weaving of many functions at once. Springboards are chosen one after the other, because functions share the padding between them. All
//! other work is done in parts that do not depend on each other: decoding, and writing copies into different parts of the arena.

use std::ops::Range;

use ingraft_model::Refusal;

use crate::code::arena::Arena;
use crate::code::block::EmitError;
use crate::code::environment::{CodegenError, Environment};
use crate::code::spread::{self, OneThread, Spread};
use crate::patch::body::{self, BodyRequest, BodyWeave, DecodedBlocks, Doors};
use crate::patch::text_space::TextSpace;

/// Estimated room in bytes for the copies of functions for which a part of their own is worthwhile.
const ROOM_OF_PART: u64 = 64 << 10;
/// Maximum number of parts: some room of the arena is lost between two parts.
const PARTS_MAX: u64 = 16;

/// Copies a function into the arena and leads control there. Fails with a [`Refusal`] if the function cannot be copied; then `arena` and
/// `text` are unchanged.
pub fn weave_body(
    env: &Environment,
    arena: &mut Arena,
    text: &mut TextSpace,
    request: &BodyRequest<'_>,
) -> Result<Result<BodyWeave, Refusal>, CodegenError> {
    let mut woven = weave_bodies_on(&OneThread, env, arena, text, std::slice::from_ref(request))?;
    Ok(woven.pop().unwrap_or(Err(Refusal::NoSuchFunction)))
}

/// Copies functions as [`weave_body`] does. Returns the result for each, in order. The copies of many functions are written in parts that
/// `spread` runs.
pub fn weave_bodies_on(
    spread: &dyn Spread,
    env: &Environment,
    arena: &mut Arena,
    text: &mut TextSpace,
    requests: &[BodyRequest<'_>],
) -> Result<Vec<Result<BodyWeave, Refusal>>, CodegenError> {
    env.check()?;
    arena.lacked_room = false;
    let parts = parts(requests);
    let own = |part: &Range<usize>| requests.get(part.clone()).unwrap_or_default();
    let decode =
        |part: Range<usize>| own(&part).iter().map(|request| DecodedBlocks::of(env, request)).collect::<Vec<_>>();
    let decoded = spread::map(spread, parts.clone(), decode).into_iter().flatten();
    let design = |(request, code): (&BodyRequest<'_>, Result<DecodedBlocks, Refusal>)| {
        BodyDesign::choose(env, text, request, code?)
    };
    let designs: Vec<_> = requests.iter().zip(decoded).map(design).collect();
    spread.check();
    let built = build(spread, env, arena, (requests, &designs), &parts);
    let mut woven = Vec::with_capacity(requests.len());
    for ((request, design), built) in requests.iter().zip(designs).zip(built) {
        let built = match (design, built) {
            (Err(refusal), _) => Err(refusal),
            (Ok(_), Some(Ok(weave))) => Ok(weave),
            (Ok(design), built) => {
                design.doors.release(text);
                text.release_blocks(request.blocks().map(|(start, _)| start));
                match built {
                    Some(Err(EmitError::Codegen(e))) => return Err(e),
                    Some(Err(EmitError::OutOfReach | EmitError::Unshared)) => {}
                    Some(Err(EmitError::ArenaFull) | Ok(_)) | None => arena.lacked_room = true,
                }
                Err(Refusal::NoRoomNearby)
            }
        };
        woven.push(built);
    }
    Ok(woven)
}

/// A function with the springboards into its copy. Their bytes of text and the blocks of the function are taken.
struct BodyDesign {
    code: DecodedBlocks,
    doors: Doors,
}

impl BodyDesign {
    fn choose(
        env: &Environment,
        text: &mut TextSpace,
        request: &BodyRequest<'_>,
        code: DecodedBlocks,
    ) -> Result<BodyDesign, Refusal> {
        if let Some(other) = request.blocks().find_map(|(start, end)| text.owner(start, end)) {
            return Err(Refusal::Overlap { other: other.as_ref().to_owned() });
        }
        let doors = Doors::choose(env, text, request, &code);
        if let Some(refusal) = doors.refused(request.body) {
            doors.release(text);
            return Err(refusal);
        }
        text.take_blocks(request.blocks(), request.name);
        Ok(BodyDesign { code, doors })
    }
}

/// Divides functions into parts, each of which needs about as much room.
fn parts(requests: &[BodyRequest<'_>]) -> Vec<Range<usize>> {
    let all: u64 = requests.iter().map(BodyRequest::room).sum();
    let enough = ROOM_OF_PART.max(all / PARTS_MAX);
    let (mut parts, mut start, mut room) = (Vec::new(), 0, 0);
    for (index, request) in requests.iter().enumerate() {
        room += request.room();
        if room >= enough {
            parts.push(start..index + 1);
            (start, room) = (index + 1, 0);
        }
    }
    if start < requests.len() {
        parts.push(start..requests.len());
    }
    parts
}

/// Result of writing a copy; `None` for a function without a design.
type BuiltCopy = Option<Result<BodyWeave, EmitError>>;

/// Writes the copies; returns the result for each function, in order. If a part of the arena has no room for a copy, the copy is written
/// after the parts are joined again.
fn build(
    spread: &dyn Spread,
    env: &Environment,
    arena: &mut Arena,
    (requests, designs): (&[BodyRequest<'_>], &[Result<BodyDesign, Refusal>]),
    parts: &[Range<usize>],
) -> Vec<BuiltCopy> {
    let write = |index: usize, arena: &mut Arena| {
        let (request, design) = (requests.get(index)?, designs.get(index)?.as_ref().ok()?);
        Some(body::emit(env, arena, request, &design.code, &design.doors))
    };
    let room = |part: &Range<usize>| requests.get(part.clone()).unwrap_or_default().iter().map(BodyRequest::room).sum();
    let mut arenas: Vec<Arena> = Vec::with_capacity(parts.len());
    for part in parts.iter().take(parts.len().saturating_sub(1)) {
        let Some(next) = arenas.last_mut().unwrap_or(arena).split(room(part)) else { break };
        arenas.push(next);
    }
    // The last part of the arena is for all parts of the work that are left.
    let ends = |n: usize| if n == arenas.len() { requests.len() } else { parts.get(n).map_or(0, |part| part.end) };
    let starts = |n: usize| parts.get(n).map_or(0, |part| part.start);
    let ranges: Vec<Range<usize>> = (0..=arenas.len()).map(|n| starts(n)..ends(n)).collect();
    let work: Vec<_> = ranges.into_iter().zip(std::iter::once(&mut *arena).chain(&mut arenas)).collect();
    let write_part = |(part, arena): (Range<usize>, &mut Arena)| {
        spread.check();
        part.map(|index| write(index, arena)).collect::<Vec<BuiltCopy>>()
    };
    let written = spread::map(spread, work, write_part);
    while let Some(part) = arenas.pop() {
        arenas.last_mut().unwrap_or(arena).join(part);
    }
    let again = |(index, built): (usize, BuiltCopy)| match built {
        Some(Err(EmitError::ArenaFull)) => write(index, arena),
        built => built,
    };
    written.into_iter().flatten().enumerate().map(again).collect()
}
