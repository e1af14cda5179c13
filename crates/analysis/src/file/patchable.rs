//! Places in text that the program itself may write while it runs: static keys, sleds of XRay, entries that were compiled to be patched.
//! Sections list them. A copy of such code would go on with what the place held before.

use std::ops::Range;

use crate::file::elf::{Elf, u32_at, u64_at};
use crate::file::relocs::CodePointerWords;

/// Sections that list such places, each with the number of bytes that may be written at a place.
const SECTIONS: [(&str, u64); 5] = [
    ("__jump_table", 5),
    ("__mcount_loc", 5),
    ("__patchable_function_entries", 5),
    (".mcount_loc", 5),
    ("xray_instr_map", 11),
];
/// `nop`, of which `-fpatchable-function-entry` makes as many as it is told.
const NOP: u8 = 0x90;
/// Largest number of them that count.
const NOPS: usize = 256;
/// Length of the longest place in bytes.
pub(crate) const LONGEST: u64 = NOPS as u64;

/// Collects the places, sorted. The sections have no common format, so every word that may be the address of code counts: absolute
/// addresses of 64 bits, and distances from the word itself of 32 and 64 bits.
pub(crate) fn places(image: &Elf, pointers: &CodePointerWords) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    for (name, len) in SECTIONS {
        let Some(section) = image.section(name) else { continue };
        let bytes = image.bytes().get(section.file.clone()).unwrap_or_default();
        for offset in (0..bytes.len()).step_by(4) {
            let at = section.svma.wrapping_add(offset as u64);
            let word = u64_at(bytes, offset);
            let near = u32_at(bytes, offset).map(|word| i64::from(word.cast_signed()));
            let candidates = [
                pointers.get(at),
                word,
                word.map(|word| at.wrapping_add(word)),
                near.map(|distance| at.wrapping_add_signed(distance)),
            ];
            let in_text = candidates.into_iter().flatten().filter(|at| image.text_index(*at).is_some());
            found.extend(in_text.map(|place| place..place.saturating_add(len.max(nops(image, place)))));
        }
    }
    found.sort_unstable_by_key(|place| (place.start, place.end));
    found.dedup();
    found
}

/// Number of one-byte nops at an address.
fn nops(image: &Elf, at: u64) -> u64 {
    let nops = |len: usize| image.data_at(at, len as u64).map(|bytes| bytes.iter().take_while(|b| **b == NOP).count());
    // The end of the text may be nearer than that.
    (0..).map(|halvings| NOPS >> halvings).take_while(|len| *len > 0).find_map(nops).unwrap_or(0) as u64
}
