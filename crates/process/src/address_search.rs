//! Search for the address of a new mapping among the free ranges.

use std::ops::{Range, RangeInclusive};

use crate::procfs::Mapping;

/// End of user space with four-level page tables, minus the guard page.
const USER_END: u64 = 0x7fff_ffff_f000;
/// Room that stays free below the main stack, which grows downwards.
const STACK_ROOM: u64 = 256 << 20;
/// Room that stays free above the heap if another place can be found. brk(2) fails if the heap meets a mapping.
pub(crate) const HEAP_ROOM: u64 = 1 << 30;
/// Reach of a `rel32`, minus a reserve for the instruction itself and for the operands of a displaced instruction.
const REACH: u64 = (1 << 31) - (1 << 16);

/// The ranges in use, sorted, including room for the main stack to grow and `heap_room` bytes for the heap.
pub(crate) fn used_ranges(maps: &[Mapping], heap_room: u64) -> Vec<Range<u64>> {
    let mut used: Vec<Range<u64>> = maps
        .iter()
        .map(|m| {
            let (below, above) = match m.path.to_str() {
                Some("[stack]") => (STACK_ROOM, 0),
                Some("[heap]") => (0, heap_room),
                _ => (0, 0),
            };
            m.range.start.0.saturating_sub(below)..m.range.end.0.saturating_add(above)
        })
        .collect();
    used.sort_by_key(|r| r.start);
    used
}

/// Start of the free range of `len` bytes nearest to `near`. The start lies in `bases` and is a multiple of `align`, a power of two.
pub(crate) fn find(used: &[Range<u64>], len: u64, align: u64, bases: RangeInclusive<u64>, near: u64) -> Option<u64> {
    let mask = !(align - 1);
    let mut best: Option<u64> = None;
    let mut from = 0;
    let ends = used.iter().map(|r| (r.start, r.end)).chain([(USER_END, u64::MAX)]);
    for (start, end) in ends {
        let low = from.max(*bases.start()).checked_add(align - 1).map(|a| a & mask);
        // The kernel shows a page beyond the end of user space ([vsyscall]).
        let high = start.min(USER_END).checked_sub(len).map(|h| h.min(*bases.end()) & mask);
        if let (Some(low), Some(high)) = (low, high)
            && low <= high
        {
            let candidate = (near & mask).clamp(low, high);
            if best.is_none_or(|b| candidate.abs_diff(near) < b.abs_diff(near)) {
                best = Some(candidate);
            }
        }
        from = from.max(end);
    }
    best
}

/// Start addresses at which a mapping of `len` bytes reaches all of `text`, and `text` reaches it, by 32-bit displacements.
pub(crate) fn bases_near(text: &Range<u64>, len: u64) -> RangeInclusive<u64> {
    text.end.saturating_sub(REACH)..=text.start.saturating_add(REACH).saturating_sub(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_free_range() {
        let used = [0x1000..0x3000, 0x5000..0x6000, 0x9000..0xa000];
        assert_eq!(find(&used, 0x1000, 0x1000, 0..=0xffff, 0x5000), Some(0x4000));
        assert_eq!(find(&used, 0x3000, 0x1000, 0..=0xffff, 0x5000), Some(0x6000));
        assert_eq!(find(&used, 0x1000, 0x1000, 0x6800..=0x8000, 0x5000), Some(0x7000));
        assert_eq!(find(&used, 0x4000, 0x1000, 0x1000..=0x9000, 0x5000), None);
        assert_eq!(find(&[], 0x1000, 0x1000, 0x2345..=u64::MAX, 0), Some(0x3000));
        assert_eq!(find(&[], 0x1000, 0x1000, 0..=u64::MAX, u64::MAX), Some(USER_END - 0x1000));
        assert_eq!(find(&[], u64::MAX, 0x1000, 0..=u64::MAX, 0), None);
    }

    #[test]
    fn heap_and_stack_may_grow() {
        let text = "00400000-00500000 r-xp 00000000 08:01 1 /bin/a\n00600000-00700000 rw-p 00000000 00:00 0 [heap]\n\
                    7ffe00000000-7ffe00100000 rw-p 00000000 00:00 0 [stack]\n";
        let maps = crate::procfs::parse_maps(text.as_bytes());
        let used = used_ranges(&maps, HEAP_ROOM);
        assert_eq!(find(&used, 0x80_0000, 0x1000, 0x1_0000..=0x7fff_ffff, 0x40_0000), Some(0x70_0000 + HEAP_ROOM));
        assert_eq!(find(&used, 0x10_0000, 0x1000, 0x1_0000..=0x7fff_ffff, 0x40_0000), Some(0x30_0000));
        assert_eq!(find(&used_ranges(&maps, 0), 0x80_0000, 0x1000, 0x1_0000..=0x7fff_ffff, 0x40_0000), Some(0x70_0000));
        assert_eq!(used.last().map(|r| r.start), Some(0x7ffe_0000_0000 - STACK_ROOM));
    }

    /// Without randomisation the main stack ends where user space does.
    #[test]
    fn nothing_is_found_beyond_user_space() {
        let used = [0x1000..0x7fff_f000_0000, 0x7fff_f7ff_0000..USER_END, 0xffff_ffff_ff60_0000..0xffff_ffff_ff60_1000];
        assert_eq!(find(&used, 0x100_0000, 0x1000, 0..=u64::MAX, USER_END), Some(0x7fff_f7ff_0000 - 0x100_0000));
        assert_eq!(find(&used, 0x1000_0000, 0x1000, 0..=u64::MAX, USER_END), None);
    }

    #[test]
    fn overlapping_and_nested_use() {
        let used = [0x1000..0x9000, 0x2000..0x3000, 0x9000..0xb000];
        assert_eq!(find(&used, 0x1000, 0x1000, 0x1000..=0xffff, 0x2000), Some(0xb000));
    }

    #[test]
    fn everything_found_is_free_and_in_reach() {
        let mut x = 88172645463325252u64;
        let mut random = move || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x
        };
        for _ in 0..2000 {
            let mut used: Vec<Range<u64>> = (0..random() % 12)
                .map(|_| {
                    let start = (random() % 0x100) << 12;
                    start..start + ((random() % 0x20) << 12)
                })
                .collect();
            used.sort_by_key(|r| r.start);
            let (len, low, near) = ((1 + random() % 0x30) << 12, random() % 0x100000, random() % 0x100000);
            let bases = low..=low + random() % 0x80000;
            if let Some(base) = find(&used, len, 0x1000, bases.clone(), near) {
                assert!(bases.contains(&base) && base % 0x1000 == 0);
                assert!(used.iter().all(|r| r.is_empty() || r.end <= base || base + len <= r.start));
            }
        }
        let text = 0x5555_0000_0000..0x5555_0100_0000;
        let bases = bases_near(&text, 0x10000);
        assert!(text.end - bases.start() < 1 << 31 && bases.end() + 0x10000 - text.start < 1 << 31);
    }
}
