//! Inlined functions: which functions of the source have code at an address, by the debugging information.

use std::collections::BTreeMap;

use gimli::constants as dw;
use ingraft_model::{Svma, SvmaRange};

use crate::data::debug_info::{DebugInfo, DwarfEntry, EntryLocation};

impl<'a> DebugInfo<'a> {
    /// For each of these addresses that has any, the names of the inlined functions whose code is there, innermost first. An inlined function
    /// without a name is left out.
    pub fn inlined_at(&self, wanted: &[Svma]) -> BTreeMap<Svma, Vec<String>> {
        let mut addresses = wanted.to_vec();
        addresses.sort_unstable();
        addresses.dedup();
        let ranges: Vec<SvmaRange> = addresses.iter().map(|at| *at..Svma(at.0.saturating_add(1))).collect();
        let mut found: BTreeMap<Svma, Vec<String>> = BTreeMap::new();
        for number in (0..self.units.len()).filter(|unit| self.may_hold(*unit, &ranges)) {
            let Some(unit) = self.unit(number) else { continue };
            let mut cursor = unit.entries();
            while let (Some(()), Ok(Some(entry))) = (self.spend(), cursor.next_dfs()) {
                if entry.tag() != dw::DW_TAG_inlined_subroutine {
                    continue;
                }
                let place = EntryLocation { unit: number, at: entry.offset() };
                for at in self.held(place, entry, &addresses) {
                    if let Some(name) = self.name(place, entry) {
                        found.entry(at).or_default().push(name.to_owned());
                    }
                }
            }
        }
        // An entry comes before those that it contains.
        found.values_mut().for_each(|names| names.reverse());
        found
    }

    /// The addresses, which are sorted, that lie in the code of an entry.
    fn held(&self, place: EntryLocation, entry: &DwarfEntry<'a>, addresses: &[Svma]) -> Vec<Svma> {
        let mut held = Vec::new();
        let Some(unit) = self.unit(place.unit) else { return held };
        let Ok(mut ranges) = unit.die_ranges(entry) else { return held };
        while let (Some(()), Ok(Some(range))) = (self.spend(), ranges.next()) {
            let first = addresses.partition_point(|at| at.0 < range.begin);
            held.extend(addresses.iter().skip(first).take_while(|at| at.0 < range.end));
        }
        held.sort_unstable();
        held.dedup();
        held
    }
}
