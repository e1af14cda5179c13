//! Entries of a table, and the proof of its end.

use crate::file::elf::{u32_at, u64_at};
use crate::functions::jump_table::bound::IndexBound;
use crate::functions::jump_table::{EntryEncoding, JumpResolver, JumpTable, TableTargets};

/// Largest number of entries that are read. Compilers make no table with more.
const ENTRIES_MAX: usize = 65_536;

/// An entry of a table.
enum TableEntry {
    /// The entry leads to an instruction of the function.
    Inside(u64),
    /// The entry leads to the end of the function or of a part of it: a case that never occurs.
    End,
    /// The entry leads to the middle of an instruction of the function, so the table has ended before.
    Within,
    /// The entry leads to other code.
    Elsewhere(u64),
    /// The entry leads to no code.
    Nowhere,
}

impl JumpResolver<'_> {
    /// Returns the targets of a table. `None` if no entry leads to code, or if an entry within an exact bound does not.
    pub(super) fn read(
        &self,
        table: &JumpTable,
        bound: Option<IndexBound>,
        budget: &mut usize,
    ) -> Option<TableTargets> {
        let bound =
            bound.map(|bound| IndexBound { exact: bound.exact && !self.is_longer(table, bound.count), ..bound });
        let exact = bound.filter(|bound| bound.exact).map(|bound| bound.count);
        let limit = bound.map_or(4096, |bound| bound.count).min(ENTRIES_MAX).min(*budget);
        let absolute = !matches!(table.entries, EntryEncoding::Distances(_));
        let (mut places, mut proven, mut count) = (Vec::new(), false, 0);
        // Number of targets before the first entry that leads to other code. That entry may belong to another table.
        let mut own = None;
        while count < limit {
            // Two tables never overlap.
            if count > 0 && exact.is_none() && self.tables.binary_search(&self.place(table, count)).is_ok() {
                proven = bound.is_some();
                break;
            }
            match self.entry(table, count) {
                TableEntry::Inside(place) => places.push(place),
                TableEntry::End => {}
                // If the index has an exact bound, the entry belongs to the table: its target may be the cold part of the function.
                TableEntry::Elsewhere(place) if exact.is_some() => places.push(place),
                TableEntry::Elsewhere(_) if bound.is_none() || !absolute => break,
                TableEntry::Elsewhere(place) => {
                    own = own.or(Some(places.len()));
                    places.push(place);
                }
                TableEntry::Nowhere | TableEntry::Within => {
                    proven = bound.is_some() && exact.is_none();
                    break;
                }
            }
            count += 1;
        }
        *budget -= count;
        let complete = bound.is_some_and(|bound| bound.count == count);
        // As long as the other tables of the image are not known, such entries count only if the whole table was read.
        if let Some(len) = own.filter(|_| !complete && (!proven || self.tables.is_empty())) {
            places.truncate(len);
            proven = false;
        }
        if places.is_empty() || exact.is_some() && !complete && *budget > 0 {
            return None;
        }
        places.sort_unstable();
        places.dedup();
        Some(TableTargets {
            places,
            bounded: proven || complete,
            exact: exact.is_some(),
            absolute,
            tables: vec![table.at],
        })
    }

    /// Whether a bound of the index is larger than the table: an entry leads to the middle of an instruction, or an entry behind the start of
    /// another table leads out of the function. The compiler may know more about the index than one comparison tells.
    fn is_longer(&self, table: &JumpTable, count: usize) -> bool {
        let after = self.tables.partition_point(|at| *at <= table.at);
        let next = self.tables.get(after).copied().unwrap_or(u64::MAX);
        (0..count.min(ENTRIES_MAX)).any(|entry| match self.entry(table, entry) {
            TableEntry::Within => true,
            TableEntry::Elsewhere(_) | TableEntry::Nowhere => self.place(table, entry) >= next,
            TableEntry::Inside(_) | TableEntry::End => false,
        })
    }

    fn place(&self, table: &JumpTable, entry: usize) -> u64 {
        let size = if table.entries == EntryEncoding::Addresses { 8 } else { 4 };
        table.at.wrapping_add(entry as u64 * size)
    }

    fn entry(&self, table: &JumpTable, entry: usize) -> TableEntry {
        let place = self.place(table, entry);
        let word = || self.image.data_at(place, 4).and_then(|bytes| u32_at(bytes, 0));
        let target = match table.entries {
            EntryEncoding::Addresses => {
                self.pointers.get(place).or_else(|| self.image.data_at(place, 8).and_then(|bytes| u64_at(bytes, 0)))
            }
            EntryEncoding::ShortAddresses => word().map(u64::from),
            EntryEncoding::Distances(base) => word().map(|d| base.wrapping_add(i64::from(d as i32) as u64)),
        };
        let Some(target) = target else { return TableEntry::Nowhere };
        if self.contains(target) && self.code.binary_search_by_key(&target, |i| i.ip()).is_ok() {
            TableEntry::Inside(target)
        } else if self.contains(target) {
            TableEntry::Within
        } else if self.inside.iter().any(|range| range.end == target) {
            TableEntry::End
        } else if self.image.text_index(target).is_some() {
            TableEntry::Elsewhere(target)
        } else {
            TableEntry::Nowhere
        }
    }

    fn contains(&self, target: u64) -> bool {
        self.inside.iter().any(|range| range.contains(&target))
    }
}
