//! Entries of a table, and the proof of its end.

use crate::file::elf::{u32_at, u64_at};
use crate::functions::jump_table::bound::Bound;
use crate::functions::jump_table::{Entries, Resolver, Table, Targets};

/// No honest table has more entries.
const ENTRIES_MAX: usize = 65_536;

/// An entry of a table.
enum Entry {
    /// To an instruction of the function.
    Inside(u64),
    /// To the end of the function or of a part of it: a case that never occurs.
    End,
    /// To other code.
    Elsewhere(u64),
    /// To no code.
    Nowhere,
}

impl Resolver<'_> {
    /// Targets of a table; `None` if not even the first entry makes sense.
    pub(super) fn read(&self, table: &Table, bound: Option<Bound>, budget: &mut usize) -> Option<Targets> {
        let exact = bound.filter(|bound| bound.exact).map(|bound| bound.count);
        let limit = bound.map_or(4096, |bound| bound.count).min(ENTRIES_MAX).min(*budget);
        let absolute = !matches!(table.entries, Entries::Distances(_));
        let (mut places, mut proven, mut count) = (Vec::new(), false, 0);
        // Number of places in front of the first entry that leads elsewhere, which may be that of another table.
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
                // With a bound, a case may lie in the cold part.
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
        // While the tables of the image are not known, only a table that is read whole may hold such entries.
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
