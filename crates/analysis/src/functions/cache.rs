//! The results of the image-wide pass as bytes, so that a second analysis of the same file costs next to nothing.
//!
//! Numbers are LEB128, and sorted addresses are stored as differences. The format has a version and names the file by length and build id.
//! The caller's checksum must show that the bytes are those that were written. Nonsense gives `None`: every address must lie in the text of
//! the file, and no count is trusted beyond the bytes that are there.

use ingraft_model::Svma;

use crate::file::elf::Elf;
use crate::file::name::{FunctionName, SymbolBinding, SymbolVersion};
use crate::file::symbol::UntypedLabel;
use crate::functions::discovered::{Discovered, SideEntry};
use crate::functions::facts::CodeFacts;
use crate::functions::function::{Function, FunctionKind};
use crate::text::bits::TextBits;

/// Magic bytes with the version, which changes with the format and with every change of the pass's results.
const FORMAT: &[u8; 8] = b"ingrA\0\0\x0c";

/// The stored results.
pub(crate) struct StoredResults {
    pub found: Discovered,
    pub landing_pads: Vec<u64>,
}

pub(crate) fn store(elf: &Elf, found: &Discovered, landing_pads: &[u64]) -> Vec<u8> {
    let mut w = CacheWriter { out: FORMAT.to_vec() };
    w.number(elf.bytes().len() as u64);
    w.bytes(elf.build_id().unwrap_or_default());
    w.number(u64::from(found.uses_gs));
    w.number(found.functions.len() as u64);
    let mut last = 0;
    for f in &found.functions {
        w.ascending(f.start, &mut last);
        w.number(f.size);
        w.function(f);
    }
    w.number(found.labels.len() as u64);
    let mut last = 0;
    for label in &found.labels {
        w.ascending(label.at.0, &mut last);
        w.name(&label.name);
    }
    w.number(found.padding.len() as u64);
    let mut last = 0;
    for &(start, len) in &found.padding {
        w.ascending(start, &mut last);
        w.number(u64::from(len));
    }
    w.number(found.back_branches.len() as u64);
    for &(function, branch) in &found.back_branches {
        w.number(function);
        w.number(branch);
    }
    w.number(found.side_entries.len() as u64);
    let mut last = 0;
    for entry in &found.side_entries {
        w.ascending(entry.at, &mut last);
        w.number(u64::from(entry.why));
    }
    w.number(found.tables.len() as u64);
    let mut last = 0;
    for &table in &found.tables {
        w.ascending(table, &mut last);
    }
    w.number(landing_pads.len() as u64);
    let mut last = 0;
    for &pad in landing_pads {
        w.ascending(pad, &mut last);
    }
    w.out.extend(found.arrivals.words().flat_map(u64::to_le_bytes));
    w.out
}

pub(crate) fn load(elf: &Elf, cache: &[u8]) -> Option<StoredResults> {
    let mut r = CacheReader { rest: cache.strip_prefix(FORMAT)? };
    if r.number()? != elf.bytes().len() as u64 || r.bytes()? != elf.build_id().unwrap_or_default() {
        return None;
    }
    let uses_gs = r.number()? != 0;
    let mut last = 0;
    let functions = r.list(|r| {
        let start = r.ascending(&mut last)?;
        let size = r.number()?;
        in_text(elf, start, size)?;
        r.function(elf, start, size)
    })?;
    let mut last = 0;
    let labels = r.list(|r| {
        let at = in_text(elf, r.ascending(&mut last)?, 0)?;
        Some(UntypedLabel { at: Svma(at), name: r.name()? })
    })?;
    let mut last = 0;
    let padding = r.list(|r| {
        let start = r.ascending(&mut last)?;
        let len = u32::try_from(r.number()?).ok()?;
        in_text(elf, start, u64::from(len))?;
        Some((start, len))
    })?;
    let back_branches = r.list(|r| Some((in_text(elf, r.number()?, 1)?, in_text(elf, r.number()?, 1)?)))?;
    let mut last = 0;
    let side_entries = r.list(|r| {
        let at = in_text(elf, r.ascending(&mut last)?, 1)?;
        Some(SideEntry { at, why: u8::try_from(r.number()?).ok()? })
    })?;
    let mut last = 0;
    let tables = r.list(|r| r.ascending(&mut last))?;
    let mut last = 0;
    let landing_pads = r.list(|r| r.ascending(&mut last))?;
    let arrivals = TextBits::new(elf);
    let (words, rest) = r.rest.as_chunks();
    let sorted = functions.is_sorted_by(|a: &Function, b| a.start < b.start) && back_branches.is_sorted();
    if !rest.is_empty() || !sorted || !arrivals.load(words.iter().map(|w| u64::from_le_bytes(*w))) {
        return None;
    }
    let found = Discovered { functions, labels, arrivals, side_entries, tables, padding, back_branches, uses_gs };
    Some(StoredResults { found, landing_pads })
}

/// Returns `start` if the `size` bytes from it on lie in one region of text.
fn in_text(elf: &Elf, start: u64, size: u64) -> Option<u64> {
    let region = &elf.text[elf.text_index(start)?];
    (size <= region.end() - start).then_some(start)
}

struct CacheWriter {
    out: Vec<u8>,
}

impl CacheWriter {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.out.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.out.push(value as u8);
    }

    fn ascending(&mut self, value: u64, last: &mut u64) {
        self.number(value.wrapping_sub(*last));
        *last = value;
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.out.extend_from_slice(bytes);
    }

    fn function(&mut self, f: &Function) {
        let kind = match f.kind {
            FunctionKind::Normal => 0,
            FunctionKind::IfuncResolver => 1,
            FunctionKind::Stub => 2,
        };
        let facts = &f.facts;
        self.number(kind | u64::from(facts.calls_out) << 2 | u64::from(facts.writes) << 3);
        self.number(facts.unresolved.map_or(0, |at| at + 1));
        self.number(facts.invalid.map_or(0, |at| at + 1));
        self.number(f.parts.len() as u64);
        for part in &f.parts {
            self.number(part.start.0);
            self.number(part.end.0 - part.start.0);
        }
        self.number(f.names.len() as u64);
        f.names.iter().for_each(|name| self.name(name));
    }

    fn name(&mut self, name: &FunctionName) {
        let binding = match name.binding() {
            SymbolBinding::Global => 0,
            SymbolBinding::Weak => 1,
            SymbolBinding::Local => 2,
        };
        let flags =
            [name.hidden(), name.is_ifunc(), name.version().is_some(), name.version().is_some_and(|v| v.default)];
        self.number(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u64::from(*flag)) << 2 | binding);
        self.bytes(name.mangled().as_bytes());
        if let Some(version) = name.version() {
            self.bytes(version.name.as_bytes());
        }
    }
}

struct CacheReader<'a> {
    rest: &'a [u8],
}

impl<'a> CacheReader<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first()?;
            self.rest = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn ascending(&mut self, last: &mut u64) -> Option<u64> {
        *last = last.checked_add(self.number()?)?;
        Some(*last)
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }

    fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok().filter(|n| *n <= self.rest.len())?;
        // Elements take more memory than their bytes, so a false count must not reserve the memory in advance.
        let mut out = Vec::with_capacity(count.min(1 << 16));
        for _ in 0..count {
            out.push(element(self)?);
        }
        Some(out)
    }

    fn function(&mut self, elf: &Elf, start: u64, size: u64) -> Option<Function> {
        let bits = self.number()?;
        let kind = match bits & 3 {
            0 => FunctionKind::Normal,
            1 => FunctionKind::IfuncResolver,
            2 => FunctionKind::Stub,
            _ => return None,
        };
        let facts = CodeFacts {
            writes: u16::try_from(bits >> 3).ok()?,
            calls_out: bits & 4 != 0,
            unresolved: self.number()?.checked_sub(1),
            invalid: self.number()?.checked_sub(1),
        };
        let parts = self.list(|r| {
            let (start, size) = (r.number()?, r.number()?);
            in_text(elf, start, size)?;
            Some(Svma(start)..Svma(start + size))
        })?;
        let names = self.list(Self::name)?;
        Some(Function { start, size, names, kind, parts, facts })
    }

    fn name(&mut self) -> Option<FunctionName> {
        let bits = self.number()?;
        let binding = match bits & 3 {
            0 => SymbolBinding::Global,
            1 => SymbolBinding::Weak,
            2 => SymbolBinding::Local,
            _ => return None,
        };
        let flag = |n: u32| bits >> (2 + n) & 1 != 0;
        let mangled = self.text()?;
        let version = match flag(2) {
            true => Some(SymbolVersion { name: self.text()?.into(), default: flag(3) }),
            false => None,
        };
        Some(FunctionName::new(mangled, version, binding, flag(0)).with_ifunc(flag(1)))
    }
}
