//! Source lines: the ranges of code that a line of a source file was compiled to, by the line table of the debugging information.

use std::num::NonZero;
use std::sync::Arc;

use gimli::{FileEntry, LineProgramHeader};
use ingraft_model::{Svma, SvmaRange};
use rustc_hash::FxHashMap;

use crate::data::debug_info::{DebugInfo, DwarfSlice};

/// A range of code and the source line that it was compiled from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceRange {
    /// The range of code.
    pub range: SvmaRange,
    /// Path of the source file, as the compiler was given it.
    pub file: Arc<str>,
    /// Number of the line, from 1.
    pub line: u64,
}

/// Ranges in order of address, those that overlap or touch joined.
fn joined(ranges: &[SvmaRange]) -> Vec<SvmaRange> {
    let mut sorted: Vec<SvmaRange> = ranges.iter().filter(|range| range.start < range.end).cloned().collect();
    sorted.sort_by_key(|range| range.start);
    let mut joined: Vec<SvmaRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

/// Whether one of the ranges, which [`joined`] has returned, overlaps that from `start` to `end`.
fn overlaps(ranges: &[SvmaRange], start: u64, end: u64) -> bool {
    let first = ranges.partition_point(|range| range.end.0 <= start);
    ranges.get(first).is_some_and(|range| range.start.0 < end)
}

impl<'a> DebugInfo<'a> {
    /// The source lines of the code in some ranges, sorted by address. Code without a line is left out.
    pub fn lines_in(&self, wanted: &[SvmaRange]) -> Vec<SourceRange> {
        let wanted = joined(wanted);
        let numbers = 0..self.units.len();
        let mut found: Vec<_> = numbers.flat_map(|unit| self.lines_of_unit(unit, &wanted)).collect();
        found.sort_by_key(|line| (line.range.start, line.range.end));
        found
    }

    /// Whether a unit may have code in the ranges. A unit that does not list its ranges may have code everywhere.
    pub(super) fn may_hold(&self, unit: usize, wanted: &[SvmaRange]) -> bool {
        let Some(unit) = self.outline(unit) else { return false };
        let Ok(mut ranges) = unit.unit_ranges() else { return true };
        let mut any = false;
        while let (Some(()), Ok(Some(range))) = (self.spend(), ranges.next()) {
            any = true;
            if overlaps(wanted, range.begin, range.end) {
                return true;
            }
        }
        !any
    }

    fn lines_of_unit(&self, unit: usize, wanted: &[SvmaRange]) -> Vec<SourceRange> {
        let mut found: Vec<SourceRange> = Vec::new();
        if !self.may_hold(unit, wanted) {
            return found;
        }
        let Some(program) = self.outline(unit).and_then(|unit| unit.line_program.clone()) else { return found };
        let mut rows = program.rows();
        let mut names: FxHashMap<u64, Arc<str>> = FxHashMap::default();
        // The row whose code begins before the present one: its address, file and line.
        let mut before: Option<(u64, u64, u64)> = None;
        while let (Some(()), Ok(Some((header, row)))) = (self.spend(), rows.next_row()) {
            let end = row.address();
            if let Some((start, file, line)) = before.filter(|(start, ..)| *start < end)
                && overlaps(wanted, start, end)
            {
                let name = names.entry(file).or_insert_with(|| {
                    let path = header.file(file).and_then(|entry| self.path_of(unit, header, entry));
                    path.unwrap_or_default().into()
                });
                found.push(SourceRange { range: Svma(start)..Svma(end), file: Arc::clone(name), line });
            }
            let line = row.line().map(NonZero::get);
            before = line.filter(|_| !row.end_sequence()).map(|line| (end, row.file_index(), line));
        }
        found
    }

    /// The ranges of code of a source line, sorted, those of inlined copies included. `file` is the last part of the path of the source file:
    /// its name, or more of the path. Empty if the line has no code.
    pub fn ranges_of_line(&self, file: &str, line: NonZero<u64>) -> Vec<SvmaRange> {
        let mut found: Vec<SvmaRange> =
            (0..self.units.len()).flat_map(|unit| self.ranges_in(unit, file, line)).collect();
        found.retain(|range| range.start < range.end);
        found.sort_unstable_by_key(|range| (range.start, range.end));
        found.dedup();
        found
    }

    fn ranges_in(&self, unit: usize, file: &str, line: NonZero<u64>) -> Vec<SvmaRange> {
        let mut ranges = Vec::new();
        let Some(program) = self.outline(unit).and_then(|unit| unit.line_program.clone()) else { return ranges };
        let header = program.header();
        // Versions of the format count files from 0 or from 1; none has the other number.
        let files = (0..=header.file_names().len() as u64)
            .filter(|number| header.file(*number).is_some_and(|entry| self.is_file(unit, header, entry, file)));
        let files: Vec<u64> = files.collect();
        if files.is_empty() {
            return ranges;
        }
        let mut rows = program.rows();
        // Beginning of the rows for this line that have come without another one in between.
        let mut begun: Option<u64> = None;
        while let (Some(()), Ok(Some((_, row)))) = (self.spend(), rows.next_row()) {
            let is_wanted = !row.end_sequence() && row.line() == Some(line) && files.contains(&row.file_index());
            match (begun, is_wanted) {
                (None, true) => begun = Some(row.address()),
                (Some(start), false) => {
                    ranges.push(Svma(start)..Svma(row.address()));
                    begun = None;
                }
                _ => {}
            }
        }
        ranges
    }

    /// Whether the path of a source file ends with `wanted`, in whole parts.
    fn is_file(
        &self,
        unit: usize,
        header: &LineProgramHeader<DwarfSlice<'a>>,
        entry: &FileEntry<DwarfSlice<'a>>,
        wanted: &str,
    ) -> bool {
        let Some(path) = self.path_of(unit, header, entry) else { return false };
        path.strip_suffix(wanted).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }

    /// Path of a source file: its directory, if the table names one, and its name.
    fn path_of(
        &self,
        unit: usize,
        header: &LineProgramHeader<DwarfSlice<'a>>,
        entry: &FileEntry<DwarfSlice<'a>>,
    ) -> Option<String> {
        let text = |value| {
            let string = self.outline(unit)?.attr_string(value).ok()?;
            std::str::from_utf8(string.slice()).ok().map(str::to_owned)
        };
        let name = text(entry.path_name())?;
        let directory = entry.directory(header).and_then(text).filter(|directory| !directory.is_empty());
        Some(match directory {
            Some(directory) if !name.starts_with('/') => format!("{directory}/{name}"),
            Some(_) | None => name,
        })
    }
}
