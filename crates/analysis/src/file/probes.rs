//! Places of static probes (USDT): nops in code on which tools such as SystemTap, perf and bpftrace set uprobes. The notes of the section
//! `.note.stapsdt` name them (sys/sdt.h; "User Space Probe Implementation" in the wiki of SystemTap).

use crate::file::elf::{Elf, u32_at, u64_at};

/// Section of the notes.
const NOTES: &str = ".note.stapsdt";
/// Section whose address each note holds too: programs may move an image after it was linked, without the notes.
const BASE: &str = ".stapsdt.base";
/// Name and type of such a note.
const NAME: &[u8] = b"stapsdt\0";
const TYPE: u32 = 3;
/// Length of the header of a note in bytes, and the alignment of its parts.
const HEADER: usize = 12;
const ALIGNMENT: usize = 4;

/// Collects the addresses of the probes, sorted.
pub(crate) fn places(image: &Elf) -> Vec<u64> {
    let Some(section) = image.section(NOTES) else { return Vec::new() };
    let base = image.section(BASE).map(|section| section.svma);
    let mut rest = image.bytes().get(section.file.clone()).unwrap_or_default();
    let mut found = Vec::new();
    while let Some((place, len)) = note(rest, base) {
        found.extend(place.filter(|at| image.text_index(*at).is_some()));
        rest = rest.get(len..).unwrap_or_default();
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// The address that the first note names, if it is one of a probe, and the length of the note; `None` if there is no whole note.
fn note(bytes: &[u8], base: Option<u64>) -> Option<(Option<u64>, usize)> {
    let size = |at| u32_at(bytes, at).and_then(|size| usize::try_from(size).ok());
    let (name_size, size, kind) = (size(0)?, size(4)?, u32_at(bytes, 8)?);
    let from = HEADER.checked_add(name_size.checked_next_multiple_of(ALIGNMENT)?)?;
    let until = from.checked_add(size.checked_next_multiple_of(ALIGNMENT)?)?;
    let (name, content) = (bytes.get(HEADER..HEADER.checked_add(name_size)?)?, bytes.get(from..)?);
    let place = |(at, linked): (u64, u64)| match base {
        Some(base) if linked != 0 => at.wrapping_add(base.wrapping_sub(linked)),
        _ => at,
    };
    let named = name == NAME && kind == TYPE && size >= 16;
    let place = u64_at(content, 0).zip(u64_at(content, 8)).filter(|_| named).map(place);
    Some((place, until))
}
