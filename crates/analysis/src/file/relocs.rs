//! Absolute addresses that the file is known to hold: the targets of relative relocations. An image that is linked at a fixed address has
//! no such relocations; there, every aligned word of data that could be a code address counts.

use std::collections::BTreeSet;

use object::elf;

use crate::file::elf::{Elf, ImageKind, u32_at, u64_at};

/// Words of data that hold code addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodePointerWords {
    /// Pairs of (address of the word, address of code), sorted by the word's address.
    pub entries: Vec<(u64, u64)>,
}

impl CodePointerWords {
    /// The address of code that the word at `place` holds.
    pub fn get(&self, place: u64) -> Option<u64> {
        let at = self.entries.binary_search_by_key(&place, |e| e.0).ok()?;
        Some(self.entries[at].1)
    }
}

/// Collects the words that point into text.
pub(crate) fn read(image: &Elf) -> CodePointerWords {
    let mut entries = Vec::new();
    let low = image.text.first().map_or(0, |r| r.svma);
    let span = image.text.last().map_or(0, |r| r.end() - low);
    let mut add = |place: u64, target: u64| {
        // Nearly every word of data fails the first comparison.
        if target.wrapping_sub(low) < span && image.text_index(target).is_some() {
            entries.push((place, target));
        }
    };
    let d = &image.dynamic;
    for (at, size) in [d.rela, d.plt_rela].into_iter().flatten() {
        for entry in image.data_at(at, size).unwrap_or_default().chunks_exact(24) {
            let word = |at| u64_at(entry, at).unwrap_or_default();
            let (place, info, addend) = (word(0), word(8), word(16));
            let target = match elf::RelocationType(info as u32) {
                elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE => addend,
                elf::R_X86_64_64 => symbol_value(image, info >> 32).map_or(0, |v| v.wrapping_add(addend)),
                _ => 0,
            };
            if target != 0 {
                add(place, target);
            }
        }
    }
    if let Some((at, size)) = d.relr {
        for place in relr_places(image.data_at(at, size).unwrap_or_default()) {
            if let Some(target) = image.data_at(place, 8).and_then(|b| u64_at(b, 0)) {
                add(place, target);
            }
        }
    }
    if image.kind() == ImageKind::Executable {
        for segment in image.segments() {
            // The decoder scans code itself. Read-only data in an executable segment belongs to no text region, so it is scanned here.
            let Some(bytes) = image.data_at(segment.svma.0, segment.file_size) else { continue };
            let skip = (segment.svma.0.wrapping_neg() & 7) as usize;
            let mut place = segment.svma.0 + skip as u64;
            let mut text = 0..0;
            for word in bytes.get(skip..).unwrap_or_default().chunks_exact(8) {
                if segment.flags.execute && !text.contains(&place) {
                    text = image.text_index(place).map_or(0..0, |i| image.text[i].svma..image.text[i].end());
                }
                if !text.contains(&place) {
                    add(place, u64_at(word, 0).unwrap_or_default());
                }
                place += 8;
            }
        }
    }
    entries.sort_unstable();
    entries.dedup_by_key(|e| e.0);
    CodePointerWords { entries }
}

/// The slots that the loader fills with the address of a symbol, each with the offset of the symbol's name in the dynamic strings. Sorted.
pub(crate) fn imports(image: &Elf) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for (at, size) in [image.dynamic.rela, image.dynamic.plt_rela].into_iter().flatten() {
        for entry in image.data_at(at, size).unwrap_or_default().chunks_exact(24) {
            let word = |at| u64_at(entry, at).unwrap_or_default();
            let kind = elf::RelocationType(word(8) as u32);
            if matches!(kind, elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT)
                && let Some(name) = symbol_name(image, word(8) >> 32)
            {
                found.push((word(0), u64::from(name)));
            }
        }
    }
    found.sort_unstable();
    found.dedup_by_key(|import| import.0);
    found
}

/// The names of the symbols that the file calls through a slot of the loader (`R_X86_64_JUMP_SLOT`): those of functions, whatever their type is.
pub(crate) fn called_names(image: &Elf) -> BTreeSet<&str> {
    let entries = image.dynamic.plt_rela.and_then(|(at, size)| image.data_at(at, size)).unwrap_or_default();
    let name = |entry: &[u8]| {
        let info = u64_at(entry, 8)?;
        let is_call = elf::RelocationType(info as u32) == elf::R_X86_64_JUMP_SLOT;
        let name = symbol_name(image, info >> 32).filter(|_| is_call)?;
        image.dynamic_name(u64::from(name))
    };
    entries.chunks_exact(24).filter_map(name).collect()
}

/// The first slot in which the loader puts the result of a resolver (IFUNC); the loader calls the resolver before the program begins.
pub(crate) fn chosen_by(image: &Elf, resolver: u64) -> Option<u64> {
    let tables = [image.dynamic.rela, image.dynamic.plt_rela].into_iter().flatten();
    let mut entries = tables.flat_map(|(at, size)| image.data_at(at, size).unwrap_or_default().chunks_exact(24));
    entries.find_map(|entry| {
        let word = |at| u64_at(entry, at).unwrap_or_default();
        let chooses = elf::RelocationType(word(8) as u32) == elf::R_X86_64_IRELATIVE && word(16) == resolver;
        chooses.then(|| word(0))
    })
}

/// The first word in which the loader puts the thread-pointer offset of thread-local data, and the offset in that data of the byte that the
/// word is about. Only words without a symbol count: those with one may be about the data of another module.
pub(crate) fn own_data_note(image: &Elf) -> Option<(u64, u64)> {
    let (at, size) = image.dynamic.rela.filter(|_| image.has_own_data())?;
    image.data_at(at, size).unwrap_or_default().chunks_exact(24).find_map(|entry| {
        let word = |at| u64_at(entry, at).unwrap_or_default();
        (word(8) == u64::from(elf::R_X86_64_TPOFF64.0)).then(|| (word(0), word(16)))
    })
}

fn symbol_name(image: &Elf, index: u64) -> Option<u32> {
    let at = image.dynamic.symtab?.checked_add(index.checked_mul(24)?)?;
    image.data_at(at, 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn symbol_value(image: &Elf, index: u64) -> Option<u64> {
    let at = image.dynamic.symtab?.checked_add(index.checked_mul(24)?)?.checked_add(8)?;
    u64_at(image.data_at(at, 8)?, 0)
}

/// The places that a `DT_RELR` table encodes: each address is followed by bitmaps for the next 63 words.
fn relr_places(table: &[u8]) -> impl Iterator<Item = u64> {
    let mut next = 0u64;
    table.chunks_exact(8).flat_map(move |word| {
        let word = u64_at(word, 0).unwrap_or_default();
        let (base, bits) = if word & 1 == 0 { (word, 1) } else { (next, word >> 1) };
        next = if word & 1 == 0 { word.wrapping_add(8) } else { next.wrapping_add(63 * 8) };
        (0..63).filter(move |i| bits >> i & 1 != 0).map(move |i| base.wrapping_add(8 * i))
    })
}

/// The places in code that a table of exceptions in the form of the kernel's names (`__ex_table`): instructions that may fault, and where
/// control then goes on. Each word is the distance of the place from the word itself; other words lead to no code, or to a place too many.
pub(crate) fn exception_table(image: &Elf) -> Vec<u64> {
    let Some(section) = image.section("__ex_table") else { return Vec::new() };
    let words = image.bytes()[section.file.clone()].chunks_exact(4);
    let place = |(n, word): (usize, &[u8])| {
        let distance = u32_at(word, 0).unwrap_or_default().cast_signed();
        section.svma.wrapping_add(4 * n as u64).wrapping_add_signed(distance.into())
    };
    words.enumerate().map(place).filter(|at| image.text_index(*at).is_some()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relr_is_unpacked() {
        let table: Vec<u8> = [0x1000u64, 0b1011, 0x2000].iter().flat_map(|w| w.to_le_bytes()).collect();
        assert_eq!(relr_places(&table).collect::<Vec<_>>(), [0x1000, 0x1008, 0x1018, 0x2000]);
    }
}
