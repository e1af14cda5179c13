//! Debugging information (DWARF), as far as generated code needs it to read the program's data: entries of variables and functions, found
//! by their addresses.
//!
//! Hostile input: every walk spends from one budget that is proportional to the size of the file.

use std::cell::{Cell, OnceCell};

use gimli::constants as dw;
use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebugInfoOffset, DebuggingInformationEntry, EndianSlice, LittleEndian,
    Operation, Section, UnitOffset, UnitRef,
};
use ingraft_model::Svma;

use crate::data::debug_files::{DebugSections, SplitUnit, split_name};
use crate::data::error::TypeError;

pub(crate) type DwarfSlice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type DwarfEntry<'a> = DebuggingInformationEntry<DwarfSlice<'a>>;
pub(crate) type DwarfValue<'a> = AttributeValue<DwarfSlice<'a>>;
pub(crate) type DwarfUnit<'a> = gimli::Unit<DwarfSlice<'a>>;

/// Budget of entries to read for each byte of debugging information; honest input reads each entry a few times.
const READS_PER_BYTE: usize = 8;

/// Location of an entry: the unit, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    pub(super) unit: usize,
    pub(super) at: UnitOffset,
}

/// The descriptions of types in a file's debugging information.
#[derive(Debug)]
pub struct DebugInfo<'a> {
    sections: &'a DebugSections<'a>,
    dwarf: gimli::Dwarf<DwarfSlice<'a>>,
    /// The units of the file, and behind them those that it shares with other files.
    pub(super) units: Vec<DescribedUnit<'a>>,
    /// Number of units of the file.
    own: usize,
    budget: Cell<usize>,
}

/// A unit as the file describes it, and as another file does.
#[derive(Debug)]
pub(super) struct DescribedUnit<'a> {
    outline: DwarfUnit<'a>,
    split: OnceCell<Option<Box<SplitUnit<'a>>>>,
}

impl<'a> DebugInfo<'a> {
    /// The debugging information in these sections.
    pub fn of(sections: &'a DebugSections<'a>) -> Result<Self, TypeError> {
        let mut dwarf = sections.dwarf()?;
        let bytes = dwarf.debug_info.reader().len();
        if bytes == 0 {
            return Err(TypeError::NoDebugInfo);
        }
        let shared_bytes = dwarf.sup().map_or(0, |shared| shared.debug_info.reader().len());
        let budget = READS_PER_BYTE * bytes.saturating_add(shared_bytes);
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        let mut units = units_of(&dwarf);
        let own = units.len();
        units.extend(dwarf.sup().map(units_of).unwrap_or_default());
        Ok(DebugInfo { sections, dwarf, units, own, budget: Cell::new(budget) })
    }

    pub(super) fn spend(&self) -> Option<()> {
        self.budget.set(self.budget.get().checked_sub(1)?);
        Some(())
    }

    /// A unit as the file describes it: its code and its lines, but no entries if another file has them.
    pub(super) fn outline(&self, number: usize) -> Option<UnitRef<'_, DwarfSlice<'a>>> {
        let unit = self.units.get(number)?;
        let dwarf = if number < self.own { &self.dwarf } else { self.dwarf.sup()? };
        Some(unit.outline.unit_ref(dwarf))
    }

    /// A unit with its entries, from the file that has them. If this file is not found, it has none.
    pub(super) fn unit(&self, number: usize) -> Option<UnitRef<'_, DwarfSlice<'a>>> {
        match self.split(number) {
            Some(split) => Some(split.unit.unit_ref(&split.dwarf)),
            None => self.outline(number),
        }
    }

    fn split(&self, number: usize) -> Option<&SplitUnit<'a>> {
        let unit = self.units.get(number)?;
        let read = || {
            let (split, bytes) = self.sections.split(number, &self.dwarf, &unit.outline)?;
            self.budget.set(self.budget.get().saturating_add(READS_PER_BYTE * bytes));
            Some(Box::new(split))
        };
        unit.split.get_or_init(read).as_deref()
    }

    /// The name of a file that is not found and describes the code at an address, or would.
    pub(super) fn missing_file(&self, at: Svma) -> Option<String> {
        let wanted = [at..Svma(at.0.saturating_add(1))];
        let is_missing = |number: &usize| {
            let unit = self.units.get(*number).filter(|unit| unit.outline.dwo_id.is_some());
            unit.is_some() && self.may_hold(*number, &wanted) && self.split(*number).is_none()
        };
        let number = (0..self.own).find(is_missing)?;
        split_name(&self.dwarf, &self.units.get(number)?.outline).map(|(_, name)| name)
    }

    pub(crate) fn entry(&self, place: EntryLocation) -> Option<DwarfEntry<'a>> {
        self.spend()?;
        self.unit(place.unit)?.entry(place.at).ok()
    }

    /// The entry that an attribute refers to.
    pub(crate) fn follow(&self, from: EntryLocation, value: Option<DwarfValue<'a>>) -> Option<EntryLocation> {
        match value? {
            AttributeValue::UnitRef(at) => Some(EntryLocation { at, ..from }),
            AttributeValue::DebugInfoRef(offset) => match self.split(from.unit) {
                Some(split) => Some(EntryLocation { at: offset.to_unit_offset(&split.unit.header)?, ..from }),
                None => self.entry_at(offset, from.unit >= self.own),
            },
            AttributeValue::DebugInfoRefSup(offset) => self.entry_at(offset, true),
            _ => None,
        }
    }

    /// The entry at an offset in the file or, with `shared`, in what it shares with other files.
    fn entry_at(&self, offset: DebugInfoOffset, shared: bool) -> Option<EntryLocation> {
        let (own, others) = self.units.split_at_checked(self.own)?;
        let (first, units) = if shared { (self.own, others) } else { (0, own) };
        let start = |unit: &DescribedUnit<'a>| unit.outline.header.debug_info_offset().map_or(0, |o| o.0);
        let number = units.partition_point(|unit| start(unit) <= offset.0).checked_sub(1)?;
        let at = offset.to_unit_offset(&units.get(number)?.outline.header)?;
        Some(EntryLocation { unit: first + number, at })
    }

    /// The name of an entry, or of the entry that it completes (specification) or stands for (abstract origin).
    pub(crate) fn name(&self, place: EntryLocation, entry: &DwarfEntry<'a>) -> Option<&'a str> {
        let (place, value) = self.attribute(place, entry, dw::DW_AT_name)?;
        let name = self.unit(place.unit)?.attr_string(value).ok()?;
        std::str::from_utf8(name.slice()).ok()
    }

    /// An attribute of an entry, or of the entry that it completes or stands for, with the location of the entry that has the attribute.
    pub(crate) fn attribute(
        &self,
        place: EntryLocation,
        entry: &DwarfEntry<'a>,
        name: dw::DwAt,
    ) -> Option<(EntryLocation, DwarfValue<'a>)> {
        let (mut place, mut entry) = (place, entry.clone());
        // a concrete function stands for an abstract one, which completes a declaration
        for _ in 0..4 {
            if let Some(value) = entry.attr_value(name) {
                return Some((place, value));
            }
            let origin = entry.attr_value(dw::DW_AT_abstract_origin).or(entry.attr_value(dw::DW_AT_specification));
            place = self.follow(place, origin)?;
            entry = self.entry(place)?;
        }
        None
    }

    /// The type of an entry.
    pub(crate) fn type_of(&self, place: EntryLocation, entry: &DwarfEntry<'a>) -> Option<EntryLocation> {
        let (place, value) = self.attribute(place, entry, dw::DW_AT_type)?;
        self.follow(place, Some(value))
    }

    /// The direct children of an entry.
    pub(crate) fn children(&self, of: EntryLocation) -> Vec<(EntryLocation, DwarfEntry<'a>)> {
        let mut found = Vec::new();
        let Some(unit) = self.unit(of.unit) else { return found };
        let Ok(mut cursor) = unit.entries_at_offset(of.at) else { return found };
        let Ok(Some(first)) = cursor.next_dfs() else { return found };
        let depth = first.depth();
        while let (Some(()), Ok(Some(entry))) = (self.spend(), cursor.next_dfs()) {
            match entry.depth() - depth {
                ..=0 => break,
                1 => found.push((EntryLocation { unit: of.unit, at: entry.offset() }, entry.clone())),
                _ => {}
            }
        }
        found
    }

    /// The first entry of any unit for which `fits` returns a value; returns that value.
    pub(crate) fn find<T>(&self, fits: impl FnMut(EntryLocation, &DwarfEntry<'a>) -> Option<T>) -> Option<T> {
        self.find_in(|_| true, fits)
    }

    /// The first entry for which `fits` returns a value, in the units that `searched` admits.
    fn find_in<T>(
        &self,
        searched: impl Fn(usize) -> bool,
        mut fits: impl FnMut(EntryLocation, &DwarfEntry<'a>) -> Option<T>,
    ) -> Option<T> {
        for number in (0..self.units.len()).filter(|number| searched(*number)) {
            let Some(unit) = self.unit(number) else { continue };
            let mut cursor = unit.entries();
            while let Ok(Some(entry)) = cursor.next_dfs() {
                self.spend()?;
                let place = EntryLocation { unit: number, at: entry.offset() };
                if let Some(found) = fits(place, entry) {
                    return Some(found);
                }
            }
        }
        None
    }

    /// The language of an entry's unit.
    pub(crate) fn language(&self, place: EntryLocation) -> Option<dw::DwLang> {
        let unit = self.unit(place.unit)?;
        match unit.entry(unit.header.root_offset()).ok()?.attr_value(dw::DW_AT_language)? {
            AttributeValue::Language(language) => Some(language),
            _ => None,
        }
    }

    /// The variable that lies at an address or, with `per_thread`, at that offset in the thread-local data.
    pub(crate) fn variable_at(&self, at: Svma, per_thread: bool) -> Option<EntryLocation> {
        self.find(|place, entry| {
            if entry.tag() != dw::DW_TAG_variable {
                return None;
            }
            let AttributeValue::Exprloc(location) = entry.attr_value(dw::DW_AT_location)? else { return None };
            let unit = self.unit(place.unit)?;
            let mut operations = location.operations(unit.encoding());
            let address = match operations.next().ok()?? {
                Operation::Address { address } if !per_thread => address,
                Operation::AddressIndex { index } if !per_thread => unit.address(index).ok()?,
                Operation::UnsignedConstant { value } if per_thread => value,
                _ => return None,
            };
            if per_thread && operations.next().ok()? != Some(Operation::TLS) {
                return None;
            }
            // a location that computes on with the address, as that of a variable in pieces does, is not the address of the variable
            (address == at.0 && operations.next().ok()?.is_none()).then_some(place)
        })
    }

    /// The function that begins at an address.
    pub(crate) fn function_at(&self, at: Svma) -> Option<EntryLocation> {
        let wanted = [at..Svma(at.0.saturating_add(1))];
        let searched = |unit| self.may_hold(unit, &wanted);
        self.find_in(searched, |place, entry| {
            if entry.tag() != dw::DW_TAG_subprogram {
                return None;
            }
            let unit = self.unit(place.unit)?;
            if let Some(low) = entry.attr_value(dw::DW_AT_low_pc) {
                return (unit.attr_address(low).ok()?? == at.0).then_some(place);
            }
            entry.attr(dw::DW_AT_ranges)?;
            let mut ranges = unit.die_ranges(entry).ok()?;
            while let Ok(Some(range)) = ranges.next() {
                self.spend()?;
                if range.begin == at.0 {
                    return Some(place);
                }
            }
            None
        })
    }
}

/// The units of a file. One that cannot be parsed is left out, so that the others stay usable.
fn units_of<'a>(dwarf: &gimli::Dwarf<DwarfSlice<'a>>) -> Vec<DescribedUnit<'a>> {
    let (mut headers, mut units) = (dwarf.units(), Vec::new());
    while let Ok(Some(header)) = headers.next() {
        units.extend(dwarf.unit(header).ok().map(|outline| DescribedUnit { outline, split: OnceCell::new() }));
    }
    units
}
