//! Critical sections of the kernel's restartable sequences (rseq(2)). A descriptor names the instructions and the handler of an abort; the
//! kernel demands a signature in the four bytes before the handler (linux/rseq.h, struct rseq_cs). Descriptors lie anywhere in data, or are
//! made at run time.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::file::elf::{Elf, u32_at, u64_at};
use crate::file::relocs::CodePointerWords;

/// Signature with which glibc and librseq register the areas of threads on x86-64 (sys/rseq.h).
const SIGNATURE: [u8; 4] = [0x53, 0x30, 0x05, 0x53];
/// Beginnings of the instructions that hold a signature as their displacement, so that disassemblers understand it: `ud1 edi, [rip]` of
/// glibc and librseq, and `nop [rip]` of older code. Compilers use neither.
const FORMS: [[u8; 3]; 2] = [[0x0f, 0xb9, 0x3d], [0x0f, 0x1f, 0x05]];
/// Length of such an instruction in bytes.
const FORM: u64 = 7;
/// Largest number of signatures, and of listed descriptors, in one file. Only hostile files have more; all their text is taken for critical.
const HANDLERS_MAX: usize = 1 << 14;
/// Largest number of bytes of instructions in a descriptor that no section lists.
const LENGTH_MAX: u64 = 1 << 16;
/// Bits that the flags of a descriptor may have.
const FLAGS: u32 = 7;

/// A critical section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RestartableSequence {
    /// Instructions of the section.
    pub code: Range<u64>,
    /// First byte of the handler of an abort.
    pub handler: u64,
}

/// The critical sections of a file.
#[derive(Debug, Default)]
pub(crate) struct RestartableSequences {
    /// Sections with a descriptor in the file.
    pub described: Vec<RestartableSequence>,
    /// Handlers after a whole signature without a descriptor, which the program makes at run time.
    pub undescribed: Vec<u64>,
    /// Whether the file has too many of them, so that others are not known.
    pub too_many: bool,
}

/// Finds the critical sections: by the section that librseq and others use, and by the signatures in text.
pub(crate) fn find(image: &Elf, pointers: &CodePointerWords) -> RestartableSequences {
    let Some((mut described, (handlers, whole))) = listed(image, pointers).zip(signed(image)) else {
        return RestartableSequences { too_many: true, ..RestartableSequences::default() };
    };
    if !handlers.is_empty() {
        let to_handler = pointers.entries.iter().filter(|(_, target)| handlers.contains(target));
        described.extend(to_handler.filter_map(|(place, handler)| described_at(image, pointers, *place, *handler)));
    }
    described.sort_unstable_by_key(|sequence| (sequence.code.start, sequence.code.end, sequence.handler));
    described.dedup();
    let known: BTreeSet<u64> = described.iter().map(|sequence| sequence.handler).collect();
    RestartableSequences { described, undescribed: whole.difference(&known).copied().collect(), too_many: false }
}

/// The descriptors in the section `__rseq_cs`; `None` if there are too many.
fn listed(image: &Elf, pointers: &CodePointerWords) -> Option<Vec<RestartableSequence>> {
    let Some(section) = image.section("__rseq_cs") else { return Some(Vec::new()) };
    let bytes = image.bytes().get(section.file.clone()).unwrap_or_default();
    if bytes.len() / 32 > HANDLERS_MAX {
        return None;
    }
    let sequence = |(i, entry): (usize, &[u8])| {
        let place = section.svma.wrapping_add(32 * i as u64);
        // If relocations fill the words in, the file may hold zeros.
        let word =
            |at: u64| pointers.get(place.wrapping_add(at)).or_else(|| u64_at(entry, at as usize)).unwrap_or_default();
        let start = word(8);
        let end = start.checked_add(u64_at(entry, 16).unwrap_or_default())?;
        Some(RestartableSequence { code: start..end, handler: word(24) })
    };
    Some(bytes.chunks_exact(32).enumerate().filter_map(sequence).collect())
}

/// The addresses after what may be a signature, and those after an instruction with the usual signature; `None` if there are too many.
fn signed(image: &Elf) -> Option<(BTreeSet<u64>, BTreeSet<u64>)> {
    let (mut handlers, mut whole) = (BTreeSet::new(), BTreeSet::new());
    for region in &image.text {
        let bytes = image.data_at(region.svma, region.end() - region.svma).unwrap_or_default();
        let mut at = 2;
        // Of any three bytes in a row in these patterns, the last one is one of seven.
        while let Some(byte) = bytes.get(at) {
            if handlers.len() >= HANDLERS_MAX {
                return None;
            }
            if matches!(byte, 0x05 | 0x0f | 0x1f | 0x30 | 0x3d | 0x53 | 0xb9) {
                for from in at - 2..=at {
                    let here = bytes.get(from..).unwrap_or_default();
                    let address = region.svma.wrapping_add(from as u64);
                    if here.starts_with(&SIGNATURE) {
                        handlers.insert(address.wrapping_add(SIGNATURE.len() as u64));
                    }
                    if FORMS.iter().any(|form| here.starts_with(form)) {
                        let handler = address.wrapping_add(FORM);
                        handlers.insert(handler);
                        if here.get(FORMS[0].len()..).is_some_and(|rest| rest.starts_with(&SIGNATURE)) {
                            whole.insert(handler);
                        }
                    }
                }
            }
            at += 3;
        }
    }
    Some((handlers, whole))
}

/// The descriptor whose last word lies at `place`, if it has the form of one.
fn described_at(image: &Elf, pointers: &CodePointerWords, place: u64, handler: u64) -> Option<RestartableSequence> {
    let descriptor = place.checked_sub(24)?;
    let head = image.data_at(descriptor, 24)?;
    let start = pointers.get(descriptor.checked_add(8)?)?;
    let length = u64_at(head, 16).filter(|length| (1..=LENGTH_MAX).contains(length))?;
    let code = start..start.checked_add(length)?;
    let in_text = image.text_index(code.start) == image.text_index(code.end - 1);
    let has_form = u32_at(head, 0) == Some(0) && u32_at(head, 4).is_some_and(|flags| flags & !FLAGS == 0);
    (has_form && in_text && !code.contains(&handler)).then_some(RestartableSequence { code, handler })
}

impl RestartableSequence {
    /// The instructions, and the signature and first byte of the handler.
    pub fn ranges(&self) -> [Range<u64>; 2] {
        [self.code.clone(), at_handler(self.handler)]
    }
}

/// The signature before a handler, and the handler's first byte.
pub(crate) fn at_handler(handler: u64) -> Range<u64> {
    handler.wrapping_sub(SIGNATURE.len() as u64)..handler.wrapping_add(1)
}

/// Sorts ranges, and joins those that overlap, so that [`overlaps`] can search them. Ranges without bytes count for nothing.
pub(crate) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, known| {
        let overlaps = next.start < known.end;
        if overlaps {
            known.end = known.end.max(next.end);
        }
        overlaps
    });
    ranges
}

/// Whether one of some ranges that [`joined`] has returned overlaps another range.
pub(crate) fn overlaps(ranges: &[Range<u64>], other: &Range<u64>) -> bool {
    let before = ranges.partition_point(|range| range.start < other.end);
    ranges[..before].last().is_some_and(|range| other.start < range.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_ranges_are_found() {
        let ranges = joined(vec![40..44, 10..20, 12..14, 18..25, 30..30, 25..26, 43..50]);
        assert_eq!(ranges, [10..25, 25..26, 40..50]);
        for (other, found) in
            [(0..10, false), (0..11, true), (13..14, true), (26..40, false), (49..60, true), (50..60, false)]
        {
            assert_eq!(overlaps(&ranges, &other), found, "{other:?}");
        }
        assert!(!overlaps(&[], &(0..u64::MAX)));
    }
}
