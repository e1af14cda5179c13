//! Entries of a table, and the proof of its end.

use crate::file::elf::{u32_at, u64_at};
use crate::functions::jump_table::bound::Bound;
use crate::functions::jump_table::{Entries, Resolver, Table, Targets};

/// Largest number of entries that are read. Compilers make no table with more.
const ENTRIES_MAX: usize = 65_536;

/// An entry of a table.
enum Entry {
    /// The entry leads to an instruction of the function.
    Inside(u64),
    /// The entry leads to the end of the function or of a part of it: a case that never occurs.
    End,
    /// The entry leads to other code.
    Elsewhere(u64),
    /// The entry leads to no code.
    Nowhere,
}

impl Resolver<'_> {
    /// Returns the targets of a table. `None` if no entry leads to code, or if an entry within an exact bound does not.
    pub(super) fn read(&self, table: &Table, bound: Option<Bound>, budget: &mut usize) -> Option<Targets> {
        let exact = bound.filter(|bound| bound.exact).map(|bound| bound.count);
        let limit = bound.map_or(4096, |bound| bound.count).min(ENTRIES_MAX).min(*budget);
        let absolute = !matches!(table.entries, Entries::Distances(_));
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
                Entry::Inside(place) => places.push(place),
                Entry::End => {}
                // If the index has an exact bound, the entry belongs to the table: its target may be the cold part of the function.
                Entry::Elsewhere(place) if exact.is_some() => places.push(place),
                Entry::Elsewhere(_) if bound.is_none() || !absolute => break,
                Entry::Elsewhere(place) => {
                    own = own.or(Some(places.len()));
                    places.push(place);
                }
                Entry::Nowhere => {
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
        Some(Targets { places, bounded: proven || complete, exact: exact.is_some(), absolute, tables: vec![table.at] })
    }

    fn place(&self, table: &Table, entry: usize) -> u64 {
        let size = if table.entries == Entries::Addresses { 8 } else { 4 };
        table.at.wrapping_add(entry as u64 * size)
    }

    fn entry(&self, table: &Table, entry: usize) -> Entry {
        let place = self.place(table, entry);
        let word = || self.image.data_at(place, 4).and_then(|bytes| u32_at(bytes, 0));
        let target = match table.entries {
            Entries::Addresses => {
                self.pointers.get(place).or_else(|| self.image.data_at(place, 8).and_then(|bytes| u64_at(bytes, 0)))
            }
            Entries::ShortAddresses => word().map(u64::from),
            Entries::Distances(base) => word().map(|d| base.wrapping_add(i64::from(d as i32) as u64)),
        };
        let Some(target) = target else { return Entry::Nowhere };
        if self.contains(target) && self.code.binary_search_by_key(&target, |i| i.ip()).is_ok() {
            Entry::Inside(target)
        } else if self.inside.iter().any(|range| range.end == target) {
            Entry::End
        } else if self.image.text_index(target).is_some() {
            Entry::Elsewhere(target)
        } else {
            Entry::Nowhere
        }
    }

    fn contains(&self, target: u64) -> bool {
        self.inside.iter().any(|range| range.contains(&target))
    }
}
