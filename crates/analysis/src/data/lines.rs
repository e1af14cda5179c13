//! Source lines: the ranges of code that a line of a source file was compiled to, by the line table of the debugging information.

use std::num::NonZero;

use gimli::{FileEntry, LineProgramHeader};
use ingraft_model::{Svma, SvmaRange};

use crate::data::debug_info::{Bytes, DebugInfo};

impl DebugInfo<'_> {
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
        let Some(program) = self.units.get(unit).and_then(|unit| unit.line_program.clone()) else { return ranges };
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
        header: &LineProgramHeader<Bytes<'_>>,
        entry: &FileEntry<Bytes<'_>>,
        wanted: &str,
    ) -> bool {
        let text = |value| {
            let string = self.dwarf.attr_string(self.units.get(unit)?, value).ok()?;
            std::str::from_utf8(string.slice()).ok().map(str::to_owned)
        };
        let Some(name) = text(entry.path_name()) else { return false };
        let directory = entry.directory(header).and_then(text).unwrap_or_default();
        let path = format!("{directory}/{name}");
        path.strip_suffix(wanted).is_some_and(|before| before.is_empty() || before.ends_with('/'))
    }
}
