//! Entries of a table, and the proof of its end.

use crate::file::elf::{u32_at, u64_at};
use crate::functions::jump_table::bound::{BoundSource, IndexBound};
use crate::functions::jump_table::{ENTRIES_MAX, EntryEncoding, JumpResolver, JumpTable, TableTargets};

/// An entry of a table.
enum TableEntry {
    /// The entry leads to an instruction of the function.
    Inside(u64),
    /// The entry leads to the end of the function or of a part of it: a case that never occurs.
    End(u64),
    /// The entry leads to the middle of an instruction of the function.
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
        // A guess may assume that the content shows the end of a table. A proof may not, unless no operation bounds the index.
        let is_exact = |bound: &IndexBound| match bound.source {
            BoundSource::Comparison => true,
            BoundSource::Arithmetic => !self.before.is_guess(),
            BoundSource::Width => false,
        };
        let exact = bound.filter(is_exact).map(|bound| bound.count);
        let limit = bound.map_or(4096, |bound| bound.count).min(ENTRIES_MAX).min(*budget);
        let absolute = !matches!(table.entries, EntryEncoding::Distances(_));
        let (mut places, mut proven, mut count) = (Vec::new(), false, 0);
        // Number of targets before the first entry that leads to other code. That entry may belong to another table.
        let mut own = None;
        let mut end = None;
        while count < limit {
            // Two tables of compilers never overlap.
            if count > 0 && exact.is_none() && self.tables.binary_search(&self.place(table, count)).is_ok() {
                proven = bound.is_some();
                break;
            }
            match self.entry(table, count) {
                TableEntry::Inside(place) => places.push(place),
                TableEntry::End(place) => end = Some(place),
                // If the index has an exact bound, the entry belongs to the table: its target may be the cold part of the function.
                TableEntry::Elsewhere(place) if exact.is_some() => places.push(place),
                TableEntry::Elsewhere(_) if bound.is_none() || !absolute => break,
                TableEntry::Elsewhere(place) => {
                    own = own.or(Some(places.len()));
                    places.push(place);
                }
                // The program may know more about the index than the bound tells, or it may jump there.
                TableEntry::Within => break,
                TableEntry::Nowhere => {
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
        // Another function may begin at the end of this one: then the table holds functions, this one among them.
        if let (Some(end), Some(head)) = (end.filter(|_| absolute), self.inside.first())
            && !places.is_empty()
            && places.iter().all(|place| *place == head.start)
        {
            places.push(end);
        }
        // The program may have replaced entries by the time at which it jumps.
        let is_constant = !self.image.is_variable(table.at);
        if places.is_empty() || exact.is_some() && !complete && *budget > 0 {
            return None;
        }
        places.sort_unstable();
        places.dedup();
        Some(TableTargets {
            places,
            bounded: (proven || complete) && is_constant,
            exact: exact.is_some(),
            absolute,
            tables: vec![table.at],
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
        } else if self.contains(target) && !self.before.is_guess() {
            TableEntry::Within
        } else if self.inside.iter().any(|range| range.end == target) {
            TableEntry::End(target)
        } else if self.image.text_index(target).is_some() {
            TableEntry::Elsewhere(target)
        } else {
            TableEntry::Nowhere
        }
    }

    pub(super) fn contains(&self, target: u64) -> bool {
        self.inside.iter().any(|range| range.contains(&target))
    }
}
