//! Debugging information (DWARF), as far as generated code needs it to read the program's data: entries of variables and functions, found
//! by their addresses.
//!
//! Hostile input: every walk spends from one budget that is proportional to the size of the file.

use std::cell::Cell;

use gimli::constants as dw;
use gimli::{
    AbbreviationsCacheStrategy, AttributeValue, DebuggingInformationEntry, EndianSlice, LittleEndian, Operation,
    SectionId, UnitOffset,
};
use ingraft_model::Svma;
use object::elf;
use object::read::{CompressedData, CompressionFormat};

use crate::data::error::TypeError;
use crate::file::elf::Elf;

pub(crate) type DwarfSlice<'a> = EndianSlice<'a, LittleEndian>;
pub(crate) type DwarfEntry<'a> = DebuggingInformationEntry<DwarfSlice<'a>>;
pub(crate) type DwarfValue<'a> = AttributeValue<DwarfSlice<'a>>;
type DwarfUnit<'a> = gimli::Unit<DwarfSlice<'a>>;

/// Budget of entries to read for each byte of debugging information; honest input reads each entry a few times.
const READS_PER_BYTE: usize = 8;

/// Location of an entry: the unit, and the offset in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    pub(super) unit: usize,
    pub(super) at: UnitOffset,
}

/// The debugging information of a file as bytes: those of the file, or decompressed ones.
#[derive(Debug)]
pub struct DebugSections<'a> {
    elf: &'a Elf,
    /// Decompressed sections, by name.
    decompressed: Vec<(&'a str, Vec<u8>)>,
}

/// Largest number of bytes to which the sections of one file are decompressed.
const DECOMPRESSED_MAX: u64 = 2 << 30;

impl<'a> DebugSections<'a> {
    /// Decompresses the debugging information of an image or a separate debug file, as far as it is compressed.
    pub fn of(elf: &'a Elf) -> Result<Self, TypeError> {
        let mut decompressed = Vec::new();
        let mut room = DECOMPRESSED_MAX;
        for section in elf.sections.iter().filter(|s| s.compressed && s.name.starts_with(".debug_")) {
            let bytes = elf.bytes().get(section.file.clone()).unwrap_or_default();
            let bytes = decompress(bytes, room).ok_or(TypeError::Compressed)?;
            room = room.saturating_sub(bytes.len() as u64);
            decompressed.push((section.name.as_str(), bytes));
        }
        Ok(DebugSections { elf, decompressed })
    }

    fn bytes(&self, name: &str) -> &[u8] {
        match self.decompressed.iter().find(|(of, _)| *of == name) {
            Some((_, bytes)) => bytes,
            None => self.elf.section(name).and_then(|s| self.elf.bytes().get(s.file.clone())).unwrap_or_default(),
        }
    }
}

/// Decompresses a section that begins with the header of a compressed section (gABI, `Elf64_Chdr`), to at most `room` bytes.
fn decompress(section: &[u8], room: u64) -> Option<Vec<u8>> {
    let (header, data) = section.split_at_checked(24)?;
    let kind = u32::from_le_bytes(header.get(..4)?.try_into().ok()?);
    let uncompressed_size = u64::from_le_bytes(header.get(8..16)?.try_into().ok()?);
    let format = match kind {
        kind if kind == elf::ELFCOMPRESS_ZLIB.0 => CompressionFormat::Zlib,
        kind if kind == elf::ELFCOMPRESS_ZSTD.0 => CompressionFormat::Zstandard,
        _ => return None,
    };
    // The file may lie about the size, which is memory to reserve.
    if uncompressed_size > room.min((data.len() as u64).saturating_mul(EXPANSION_MAX)) {
        return None;
    }
    CompressedData { format, data, uncompressed_size }.decompress().ok().map(|bytes| bytes.into_owned())
}

/// Largest ratio of the sizes of a section after and before decompression that is believed.
const EXPANSION_MAX: u64 = 2000;

/// The descriptions of types in a file's debugging information.
#[derive(Debug)]
pub struct DebugInfo<'a> {
    pub(super) dwarf: gimli::Dwarf<DwarfSlice<'a>>,
    pub(super) units: Vec<DwarfUnit<'a>>,
    budget: Cell<usize>,
}

impl<'a> DebugInfo<'a> {
    /// The debugging information in these sections.
    pub fn of(sections: &'a DebugSections<'_>) -> Result<Self, TypeError> {
        let info = sections.bytes(".debug_info");
        if info.is_empty() {
            return Err(TypeError::NoDebugInfo);
        }
        let budget = READS_PER_BYTE * info.len();
        let section = |id: SectionId| Ok::<_, TypeError>(EndianSlice::new(sections.bytes(id.name()), LittleEndian));
        let mut dwarf = gimli::Dwarf::load(section)?;
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::All);
        let mut headers = dwarf.units();
        let mut units = Vec::new();
        while let Ok(Some(header)) = headers.next() {
            // a unit that cannot be parsed is skipped, so that the other units stay usable
            units.extend(dwarf.unit(header).ok());
        }
        Ok(DebugInfo { dwarf, units, budget: Cell::new(budget) })
    }

    pub(super) fn spend(&self) -> Option<()> {
        self.budget.set(self.budget.get().checked_sub(1)?);
        Some(())
    }

    pub(crate) fn entry(&self, place: EntryLocation) -> Option<DwarfEntry<'a>> {
        self.spend()?;
        self.units.get(place.unit)?.entry(place.at).ok()
    }

    /// The entry that an attribute refers to.
    pub(crate) fn follow(&self, from: EntryLocation, value: Option<DwarfValue<'a>>) -> Option<EntryLocation> {
        match value? {
            AttributeValue::UnitRef(at) => Some(EntryLocation { at, ..from }),
            AttributeValue::DebugInfoRef(offset) => {
                let start = |unit: &DwarfUnit<'a>| unit.header.debug_info_offset().map_or(0, |o| o.0);
                let unit = self.units.partition_point(|unit| start(unit) <= offset.0).checked_sub(1)?;
                let at = offset.to_unit_offset(&self.units.get(unit)?.header)?;
                Some(EntryLocation { unit, at })
            }
            _ => None,
        }
    }

    /// The name of an entry, or of the entry that it completes (specification) or stands for (abstract origin).
    pub(crate) fn name(&self, place: EntryLocation, entry: &DwarfEntry<'a>) -> Option<&'a str> {
        let value = self.attribute(place, entry, dw::DW_AT_name)?.1;
        let name = self.dwarf.attr_string(self.units.get(place.unit)?, value).ok()?;
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
        let Some(unit) = self.units.get(of.unit) else { return found };
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
        for (number, unit) in self.units.iter().enumerate().filter(|(number, _)| searched(*number)) {
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
        let unit = self.units.get(place.unit)?;
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
            let unit = self.units.get(place.unit)?;
            let mut operations = location.operations(unit.encoding());
            let address = match operations.next().ok()?? {
                Operation::Address { address } if !per_thread => address,
                Operation::AddressIndex { index } if !per_thread => self.dwarf.address(unit, index).ok()?,
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
            let unit = self.units.get(place.unit)?;
            if let Some(low) = entry.attr_value(dw::DW_AT_low_pc) {
                return (self.dwarf.attr_address(unit, low).ok()?? == at.0).then_some(place);
            }
            entry.attr(dw::DW_AT_ranges)?;
            let mut ranges = self.dwarf.die_ranges(unit, entry).ok()?;
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
