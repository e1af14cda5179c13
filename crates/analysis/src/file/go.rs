//! The function table of Go programs (`.gopclntab`), which survives stripping: the runtime needs it. The layouts are those of Go 1.18 and
//! of Go 1.20 and later (debug/gosym/pclntab.go, runtime/symtab.go, `_func` in runtime/runtime2.go).
//!
//! Besides the names, the table says where a goroutine can continue although no branch and no call leads there:
//!
//! - A stack's outermost frame (`TOPFRAME`) begins with a one-byte `nop`. The runtime pushes the address after that `nop` as the return
//!   address of every goroutine's first function (runtime/proc.go, `newproc1`).
//! - After a recovered panic the goroutine continues at the function's call of `deferreturn` (runtime/panic.go, `recovery`).
//! - A signal may suspend a goroutine at nearly every instruction since Go 1.14 (runtime/preempt.go, `isAsyncSafePoint`). Its program
//!   counter then lies on its own stack, in the heap, where a stop of the process does not see it.
//!
//! The table has the size of the frame at each instruction too (`pcsp`), by which the runtime itself unwinds stacks (runtime/traceback.go). It is
//! exact in prologues and leaf functions, where the frame pointer is not.

use std::ops::Range;
use std::sync::Arc;

use crate::file::elf::{Elf, c_string, u32_at, u64_at};
use crate::file::name::{FunctionName, SymbolBinding};
use crate::file::relocs::CodePointerWords;
use crate::file::symbol::CodeSymbol;

/// Longest name that is read.
const NAME_MAX: usize = 4096;
/// Offset of `text` in the runtime's `moduledata`: after a pointer, six slices, and three words. Go 1.18 to 1.27 agree.
const MODULE_TEXT: u64 = 8 + 6 * 24 + 3 * 8;
/// Offset of `textStart` in the header of the table.
const HEADER_TEXT: u64 = 24;
/// Bits of a function's flags (internal/abi/symtab.go).
const TOP_FRAME: u8 = 1;
/// The function sets the stack pointer in a way that no table tells, such as to another stack.
const STACK_WRITTEN: u8 = 2;
const ASSEMBLY: u8 = 4;
/// Numbers of the tables of a function (internal/abi/symtab.go).
const PCDATA_UNSAFE_POINT: usize = 0;
const FUNCDATA_LOCALS_POINTER_MAPS: usize = 1;
/// The value of an instruction at which the runtime never suspends a goroutine. All other values let it: at the instruction, or at an
/// earlier one.
const UNSAFE: i32 = -2;
/// First byte of an outermost function, which the runtime enters by a return address that no call made: the address after this `nop`.
const NOP: u8 = 0x90;
/// Largest number of byte sequences that are tried as the header of a table; only a hostile file has more.
const CANDIDATES_MAX: usize = 16;
/// Largest number of table entries in the range of one function; only a hostile file has more.
const ENTRIES_MAX: usize = 64;
/// Largest number of changes of a value in one function; only a hostile file has more.
const STEPS_MAX: usize = 1 << 16;

/// Facts about the Go functions of an image, from the runtime's own table.
#[derive(Clone, Debug)]
pub(crate) enum GoFunctions {
    /// The Go tool chain did not make the image.
    Absent,
    /// The Go tool chain made the image, but the table was not found, or has an unknown layout.
    Unknown,
    /// The image has this table.
    Table(GoFunctionTable),
}

/// Places of the parts of a table in the file.
#[derive(Clone, Debug)]
pub(crate) struct GoFunctionTable {
    /// Range in the file, from the header on.
    bytes: Range<usize>,
    /// The base address to which the table's function offsets are added.
    text: u64,
    count: usize,
    /// Offsets of the parts in the table, in bytes.
    names: usize,
    values: usize,
    functions: usize,
    layout: GoFunctionLayout,
}

/// Offsets in the description of a function (`_func`).
#[derive(Clone, Copy, Debug)]
struct GoFunctionLayout {
    flags: usize,
    funcdata_count: usize,
    /// Offset of the array of the function's table numbers.
    tables: usize,
}

/// A function of the table.
#[derive(Clone, Copy, Debug)]
struct GoFunction {
    start: u64,
    end: u64,
    /// Offset of the function's description in the table.
    at: usize,
}

/// The addresses of a function at which a goroutine may be suspended. Only those that begin an instruction count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Suspensions {
    /// Any address: no table says that there are none.
    Anywhere,
    /// Addresses in these ranges, sorted.
    In(Vec<Range<u64>>),
}

impl Suspensions {
    /// The empty set: no goroutine is ever suspended.
    pub const NOWHERE: Suspensions = Suspensions::In(Vec::new());

    /// Whether a goroutine may be suspended at the instruction at an address.
    pub fn at(&self, at: u64) -> bool {
        match self {
            Suspensions::Anywhere => true,
            Suspensions::In(ranges) => {
                let after = ranges.partition_point(|range| range.start <= at);
                ranges[..after].last().is_some_and(|range| at < range.end)
            }
        }
    }
}

impl GoFunctions {
    /// Finds the table of an image.
    pub fn read(image: &Elf, pointers: &CodePointerWords) -> GoFunctions {
        if !image.is_go() {
            return GoFunctions::Absent;
        }
        let places = match [".gopclntab", ".data.rel.ro.gopclntab"].iter().find_map(|name| image.section(name)) {
            Some(section) => vec![(section.svma, section.file.clone())],
            None => search(image),
        };
        places
            .into_iter()
            .find_map(|(svma, bytes)| GoFunctionTable::read(image, pointers, svma, bytes))
            .map_or(GoFunctions::Unknown, GoFunctions::Table)
    }

    /// The functions of the table, each up to the start of the next one. Empty if the image is no Go program or the table's layout is
    /// unknown.
    pub fn functions(&self, image: &Elf) -> Vec<CodeSymbol> {
        self.table().map(|table| table.symbols(image)).unwrap_or_default()
    }

    /// Addresses at which a goroutine continues after a recovered panic: the calls of `deferreturn`, sorted.
    pub fn recoveries(&self, image: &Elf) -> Vec<u64> {
        let Some(table) = self.table() else { return Vec::new() };
        let bytes = table.bytes_of(image);
        let recovery = |e: GoFunction| {
            let at = e.start + u64::from(u32_at(bytes, e.at + 12).filter(|offset| *offset != 0)?);
            (at < e.end).then_some(at)
        };
        let mut found: Vec<u64> = (0..table.count).filter_map(|n| recovery(table.entry(bytes, n)?)).collect();
        found.sort_unstable();
        found
    }

    /// Address after the `nop` of each function that is the outermost of a stack.
    pub fn top_frames(&self, image: &Elf) -> Vec<u64> {
        let Some(table) = self.table() else { return Vec::new() };
        let bytes = table.bytes_of(image);
        let entries = (0..table.count).filter_map(|n| table.entry(bytes, n));
        entries.filter(|e| table.is_top_frame(image, bytes, e)).map(|e| e.start + 1).collect()
    }

    /// Whether the function that begins at an address is the outermost of a stack and begins with a `nop`.
    pub fn is_top_frame(&self, image: &Elf, start: u64) -> bool {
        let Some(table) = self.table() else { return false };
        let bytes = table.bytes_of(image);
        let entry = table.first_from(bytes, start).and_then(|n| table.entry(bytes, n));
        entry.is_some_and(|entry| entry.start == start && table.is_top_frame(image, bytes, &entry))
    }

    /// The addresses in a range at which a goroutine may be suspended.
    pub fn suspensions(&self, image: &Elf, range: &Range<u64>) -> Suspensions {
        match self {
            GoFunctions::Absent => Suspensions::NOWHERE,
            GoFunctions::Unknown => Suspensions::Anywhere,
            GoFunctions::Table(table) => table.suspensions(image, range).unwrap_or(Suspensions::Anywhere),
        }
    }

    /// The table and its bytes.
    pub fn into_table(self, image: &Elf) -> Option<(GoFunctionTable, Arc<[u8]>)> {
        match self {
            GoFunctions::Table(table) => Some((table, Arc::clone(image.bytes()))),
            GoFunctions::Absent | GoFunctions::Unknown => None,
        }
    }

    fn table(&self) -> Option<&GoFunctionTable> {
        match self {
            GoFunctions::Table(table) => Some(table),
            GoFunctions::Absent | GoFunctions::Unknown => None,
        }
    }
}

/// Finds bytes that look like a table's header, with the address of each. External linkers put the table into a section of another name.
fn search(image: &Elf) -> Vec<(u64, Range<usize>)> {
    let mut found = Vec::new();
    for segment in image.segments().iter().filter(|s| !s.flags.execute) {
        let Some(bytes) = image.data_at(segment.svma.0, segment.file_size) else { continue };
        let skip = ((segment.svma.0.wrapping_neg() & 7) as usize).min(bytes.len());
        let begin = segment.file_offset as usize;
        for (n, word) in bytes[skip..].chunks_exact(8).enumerate() {
            let offset = skip + 8 * n;
            if word[1..] == [0xff, 0xff, 0xff, 0, 0, 1, 8]
                && GoFunctionLayout::of(word).is_some()
                && found.len() < CANDIDATES_MAX
            {
                found.push((segment.svma.0 + offset as u64, begin + offset..begin + bytes.len()));
            }
        }
    }
    found
}

impl GoFunctionLayout {
    /// The layout that the magic number of the header stands for.
    fn of(header: &[u8]) -> Option<GoFunctionLayout> {
        match u32_at(header, 0)? {
            0xffff_fff0 => Some(GoFunctionLayout { flags: 37, funcdata_count: 39, tables: 40 }),
            0xffff_fff1 => Some(GoFunctionLayout { flags: 41, funcdata_count: 43, tables: 44 }),
            _ => None,
        }
    }
}

impl GoFunctionTable {
    /// Reads the header. A table is accepted only if the outermost function of goroutines' stacks lies where the table says. Newer linkers
    /// omit the base address of functions, and the other sources of that address may be wrong.
    fn read(image: &Elf, pointers: &CodePointerWords, svma: u64, bytes: Range<usize>) -> Option<GoFunctionTable> {
        let header = image.bytes().get(bytes.clone())?;
        let layout = GoFunctionLayout::of(header)?;
        if header.get(6..8) != Some(&[1, 8]) {
            return None;
        }
        let word = |n: usize| u64_at(header, 8 + 8 * n).and_then(|w| usize::try_from(w).ok());
        let (count, names, values, functions) = (word(0)?, word(3)?, word(6)?, word(7)?);
        // In an honest table a function takes more than the eight bytes that are asked for here.
        if count > header.len() / 8 || [names, values, functions].iter().any(|at| *at > header.len()) {
            return None;
        }
        let held = |at: u64| pointers.get(at).or_else(|| u64_at(image.data_at(at, 8)?, 0));
        let module = image.section(".go.module").and_then(|module| held(module.svma.checked_add(MODULE_TEXT)?));
        let texts =
            [svma.checked_add(HEADER_TEXT).and_then(held), module, image.section(".text").map(|text| text.svma)];
        let mut texts = texts.into_iter().flatten().filter(|text| *text != 0);
        texts.find_map(|text| {
            let table = GoFunctionTable { bytes: bytes.clone(), text, count, names, values, functions, layout };
            let right = |n| {
                let entry = table.entry(header, n)?;
                let calls = image.data_at(entry.start, 2) == Some(&[NOP, 0xe8]);
                (calls && table.is_top_frame(image, header, &entry)).then_some(())
            };
            (0..count).find_map(right).map(|()| table)
        })
    }

    fn bytes_of<'a>(&self, image: &'a Elf) -> &'a [u8] {
        self.bytes_in(image.bytes())
    }

    /// The bytes of the table in those of the file.
    pub fn bytes_in<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.bytes.clone()).unwrap_or_default()
    }

    fn entry(&self, bytes: &[u8], n: usize) -> Option<GoFunction> {
        let functions = bytes.get(self.functions..)?;
        let number = |at: usize| u32_at(functions, 8 * n + at);
        let (start, at, end) = (number(0)?, number(4)?, number(8)?);
        let address = |offset: u32| self.text.checked_add(u64::from(offset));
        Some(GoFunction { start: address(start)?, end: address(end)?, at: self.functions.checked_add(at as usize)? })
    }

    fn is_top_frame(&self, image: &Elf, bytes: &[u8], entry: &GoFunction) -> bool {
        let flags = bytes.get(entry.at + self.layout.flags);
        flags.is_some_and(|flags| flags & TOP_FRAME != 0) && image.data_at(entry.start, 1) == Some(&[NOP])
    }

    fn symbols(&self, image: &Elf) -> Vec<CodeSymbol> {
        let table = self.bytes_of(image);
        let names = table.get(self.names..).unwrap_or_default();
        // In an honest table all names together are shorter than the table; in a hostile one, names share bytes.
        let mut budget = 4 * table.len();
        let mut out = Vec::new();
        for entry in (0..self.count).map_while(|n| self.entry(table, n)) {
            let name_at = u32_at(table, entry.at + 4).unwrap_or_default();
            let Some(name) = c_string(names, name_at as usize, NAME_MAX.min(budget)) else { continue };
            budget -= name.len();
            if matches!(name, b"" | b"go:buildid" | b"go.buildid") || image.text_index(entry.start).is_none() {
                continue;
            }
            let name = FunctionName::new(&String::from_utf8_lossy(name), None, SymbolBinding::Local, false);
            let size = entry.end.saturating_sub(entry.start);
            out.push(CodeSymbol { svma: entry.start, size: padded_end(image, entry.start, size), ifunc: false, name });
        }
        out
    }

    /// Index of the first function that ends after an address.
    fn first_from(&self, table: &[u8], at: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.entry(table, middle)?.end <= at {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Some(low)
    }

    /// The suspension ranges of the functions in `range`; `None` if the table is damaged.
    fn suspensions(&self, image: &Elf, range: &Range<u64>) -> Option<Suspensions> {
        let table = self.bytes_of(image);
        let first = self.first_from(table, range.start)?;
        let mut ranges = Vec::new();
        for n in first..self.count {
            let entry = self.entry(table, n)?;
            if entry.start >= range.end {
                break;
            }
            if n - first == ENTRIES_MAX {
                return None;
            }
            self.suspended(table, entry, range.end, &mut ranges)?;
        }
        // Ranges that are not sorted show that the table is not sorted.
        ranges.is_sorted_by(|a, b| a.end <= b.start).then_some(Suspensions::In(ranges))
    }

    /// Adds the suspension ranges of one function that begin before `until`.
    fn suspended(&self, table: &[u8], entry: GoFunction, until: u64, ranges: &mut Vec<Range<u64>>) -> Option<()> {
        let flags = *table.get(entry.at + self.layout.flags)?;
        let pcdata_count = u32_at(table, entry.at + 28)? as usize;
        let funcdata_count = usize::from(*table.get(entry.at + self.layout.funcdata_count)?);
        let number =
            |n: usize| u32_at(table, entry.at.checked_add(self.layout.tables)?.checked_add(n.checked_mul(4)?)?);
        let has_map = funcdata_count > FUNCDATA_LOCALS_POINTER_MAPS
            && number(pcdata_count.checked_add(FUNCDATA_LOCALS_POINTER_MAPS)?)? != u32::MAX;
        if flags & ASSEMBLY != 0 || !has_map {
            return Some(());
        }
        let values = match pcdata_count > PCDATA_UNSAFE_POINT {
            true => number(PCDATA_UNSAFE_POINT)? as usize,
            false => 0,
        };
        if values == 0 {
            ranges.push(entry.start..entry.end);
            return Some(());
        }
        let until = entry.end.min(until);
        let end = self.each_value(table, values, entry.start..until, |range, value| {
            if value != UNSAFE {
                ranges.push(range.start..range.end.min(entry.end));
            }
        })?;
        // addresses that the table does not mention have no value, so a goroutine may be suspended there
        if end < until {
            ranges.push(end..entry.end);
        }
        Some(())
    }

    /// Calls `each` with the values of a table of a function and their ranges, from the start of the function up to an address. Returns the end of
    /// the last range; `None` if the table is damaged.
    fn each_value(
        &self,
        table: &[u8],
        values: usize,
        range: Range<u64>,
        mut each: impl FnMut(Range<u64>, i32),
    ) -> Option<u64> {
        let mut values = table.get(self.values.checked_add(values)?..)?;
        let (mut at, mut value) = (range.start, -1i32);
        let mut steps = 0..STEPS_MAX;
        // runtime/symtab.go, `step`: pairs of a difference of values and a difference of addresses, until a difference of values is 0
        while at < range.end {
            steps.next()?;
            let difference = number_from(&mut values)?;
            if difference == 0 && at > range.start {
                break;
            }
            value = value.wrapping_add((difference >> 1).cast_signed() ^ -(difference & 1).cast_signed());
            let length = u64::from(number_from(&mut values)?);
            let next = at.checked_add(length).filter(|next| *next > at)?;
            each(at..next, value);
            at = next;
        }
        Some(at)
    }

    /// The frame of the function at an address.
    pub fn frame(&self, table: &[u8], at: u64) -> Option<GoFrame> {
        let entry =
            self.entry(table, self.first_from(table, at)?).filter(|entry| (entry.start..entry.end).contains(&at))?;
        let flags = *table.get(entry.at + self.layout.flags)?;
        if flags & TOP_FRAME != 0 {
            return Some(GoFrame::Outermost);
        }
        let sizes = u32_at(table, entry.at + 16).filter(|sizes| *sizes != 0 && flags & STACK_WRITTEN == 0)?;
        let mut size = None;
        self.each_value(table, sizes as usize, entry.start..at.saturating_add(1), |range, value| {
            if range.contains(&at) {
                size = Some(value);
            }
        })?;
        size.filter(|size| *size >= 0).map(GoFrame::Bytes)
    }
}

/// A frame of a Go function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GoFrame {
    /// The function is the outermost of a stack.
    Outermost,
    /// Distance from the stack pointer to the return address.
    Bytes(i32),
}

/// Reads a number with seven bits per byte, the lowest bits first.
fn number_from(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0u32;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Size of a function without the `int3` padding that Go adds; `size` extends to the next function.
fn padded_end(image: &Elf, svma: u64, size: u64) -> u64 {
    let bytes = image.data_at(svma, size).unwrap_or_default();
    size - bytes.iter().rev().take(64).take_while(|b| **b == 0xcc).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_seven_bits_per_byte() {
        let mut bytes = &[5, 0x80, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x80][..];
        assert_eq!([(); 3].map(|()| number_from(&mut bytes)), [Some(5), Some(128), Some(u32::MAX)]);
        assert_eq!(number_from(&mut bytes), None);
        assert_eq!(number_from(&mut &[0x80; 9][..]), None);
    }

    #[test]
    fn frames_of_a_function() {
        let layout = GoFunctionLayout { flags: 41, funcdata_count: 43, tables: 44 };
        // a frame of no bytes for four bytes, of 16 for ten, of no bytes again for two
        let values = vec![0, 2, 4, 32, 10, 31, 2, 0];
        let functions = values.len();
        let table = GoFunctionTable { bytes: 0..0, text: 0x1000, count: 1, names: 0, values: 0, functions, layout };
        let mut bytes = values;
        for word in [0u32, 12, 0x14] {
            bytes.extend(word.to_le_bytes());
        }
        let at = bytes.len();
        bytes.resize(at + 44, 0);
        bytes[at + 16] = 1;
        let frames = |bytes: &[u8], at: &[u64]| at.iter().map(|at| table.frame(bytes, *at)).collect::<Vec<_>>();
        let size = |bytes: i32| Some(GoFrame::Bytes(bytes));
        let places = [0xfff, 0x1000, 0x1003, 0x1004, 0x100d, 0x100e, 0x100f, 0x1010, 0x1014];
        let expected = [None, size(0), size(0), size(16), size(16), size(0), size(0), None, None];
        assert_eq!(frames(&bytes, &places), expected);
        let flagged = |flag: u8| {
            let mut changed = bytes.clone();
            changed[at + 41] = flag;
            table.frame(&changed, 0x1004)
        };
        assert_eq!((flagged(TOP_FRAME), flagged(STACK_WRITTEN)), (Some(GoFrame::Outermost), None));
        assert_eq!(frames(&bytes[..at + 30], &[0x1004]), [None]);
    }

    #[test]
    fn suspensions_of_a_function() {
        let layout = GoFunctionLayout { flags: 41, funcdata_count: 43, tables: 44 };
        let table = GoFunctionTable { bytes: 0..0, text: 0x1000, count: 1, names: 0, values: 0, functions: 0, layout };
        // unsafe for six bytes, safe for ten, then the end of the values
        let mut bytes = vec![0, 1, 6, 2, 10, 0];
        let values = bytes.len();
        bytes.resize(values + 44, 0);
        bytes[values + 28] = 1;
        bytes[values + 43] = 2;
        for word in [1u32, u32::MAX, 0] {
            bytes.extend(word.to_le_bytes());
        }
        let entry = GoFunction { start: 0x1000, end: 0x1010, at: values };
        let read = |bytes: &[u8]| {
            let mut ranges = Vec::new();
            table.suspended(bytes, entry, u64::MAX, &mut ranges).map(|()| ranges)
        };
        assert_eq!(read(&bytes), Some(Vec::from([Range { start: 0x1006, end: 0x1010 }])));
        let suspensions = Suspensions::In(read(&bytes).unwrap());
        assert!(!suspensions.at(0x1005) && suspensions.at(0x1006) && !suspensions.at(0x1010));
        // an assembly function, and a function without a map of its variables
        let with = |at: usize, value: u8| {
            let mut changed = bytes.clone();
            changed[at] = value;
            read(&changed)
        };
        assert_eq!(with(values + 41, ASSEMBLY), Some(Vec::new()));
        assert_eq!(with(values + 43, 1), Some(Vec::new()));
        // values that do not advance, and values beyond the table
        assert_eq!(with(2, 0), None);
        assert_eq!(with(values + 46, 0xff), None);
        assert_eq!(read(&bytes[..values + 40]), None);
    }
}
