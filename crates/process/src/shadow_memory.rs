//! Addresses that programs with AddressSanitizer need. Its runtime maps its shadow memory at a fixed place when the program begins, and ends
//! the program if anything lies there. ("AddressSanitizer: A Fast Address Sanity Checker", USENIX ATC 2012, section 3.1; the place is that of
//! the runtimes of gcc and clang for x86-64 Linux.)

use std::collections::BTreeSet;
use std::ops::{Range, RangeInclusive};

use memchr::memmem;

use crate::address_search::{find, used_ranges};
use crate::procfs::Mapping;
use crate::target::Target;

/// The shadow memory and the gap in it, with the granule of the address space below that the runtime asks for too.
const SHADOW: Range<u64> = 0x7fff_7000..0x1000_7fff_8000;
/// Length of the longest mapping in which the signs are looked for.
const SIGNS_MAX: u64 = 64 << 20;
/// Signs of a file that uses the runtime, and of one that has it in itself: the function by which code calls the runtime, which most files export,
/// and the variable of the environment that the runtime reads.
const SIGNS: [&[u8]; 2] = [b"\0__asan_init\0", b"\0ASAN_OPTIONS\0"];

impl Target {
    /// Start of the free range of `len` bytes nearest to `near` that the program does not need for shadow memory. The start lies in `bases` and is a
    /// multiple of `align`, a power of two. The heap keeps `heap_room` bytes.
    pub(crate) fn find_free(
        &self,
        maps: &[Mapping],
        heap_room: u64,
        (len, align): (u64, u64),
        bases: RangeInclusive<u64>,
        near: u64,
    ) -> Option<u64> {
        let mut used = used_ranges(maps, heap_room);
        let found = find(&used, len, align, bases.clone(), near)?;
        if found >= SHADOW.end || found + len <= SHADOW.start || !self.has_shadow_memory(maps) {
            return Some(found);
        }
        used.push(SHADOW);
        used.sort_by_key(|range| range.start);
        find(&used, len, align, bases, near)
    }

    /// Whether a mapped file uses the runtime of AddressSanitizer, or has it in itself.
    fn has_shadow_memory(&self, maps: &[Mapping]) -> bool {
        let code: BTreeSet<_> = maps.iter().filter(|m| m.is_file() && m.exec).map(|m| (m.device, m.inode)).collect();
        let may_show = |m: &&Mapping| m.is_file() && m.read && !m.exec && !m.shared && m.len() <= SIGNS_MAX;
        maps.iter().filter(may_show).filter(|m| code.contains(&(m.device, m.inode))).any(|mapping| {
            let mut found = false;
            self.in_pieces(&mapping.range, |bytes, _| {
                found = found || SIGNS.iter().any(|sign| memmem::find(bytes, sign).is_some());
            });
            found
        })
    }
}
