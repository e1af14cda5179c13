//! Symbols of functions from `.symtab`, the dynamic symbol table, and a separate debug file.

use ingraft_model::Svma;
use object::elf;
use rustc_hash::FxHashMap;

use crate::file::elf::{Elf, c_string, u16_at, u32_at, u64_at};
use crate::file::go::GoFunctions;
use crate::file::name::{FunctionName, SymbolBinding, SymbolVersion};
use crate::file::symbol::{CodeSymbol, CodeSymbols, UntypedLabel};

/// Longest name that is read, in bytes.
const NAME_MAX: usize = 64 << 10;

pub(crate) struct SymbolTable<'a> {
    pub symbols: &'a [u8],
    pub strings: &'a [u8],
    versions: Option<VersionTables<'a>>,
}

struct VersionTables<'a> {
    indices: &'a [u8],
    names: FxHashMap<u16, &'a [u8]>,
}

/// Reads all tables of an image and of its debug file. Symbols outside of text are omitted.
pub(crate) fn read(image: &Elf, debug: Option<&Elf>, go: &GoFunctions) -> CodeSymbols {
    let mut out = CodeSymbols::default();
    // Honest names may share bytes of a string table; hostile names share all of it, so a budget bounds the bytes that are read.
    let mut budget = (4 * (image.bytes().len() + debug.map_or(0, |d| d.bytes().len()))).max(1 << 20);
    if let Some(table) = dynamic_table(image) {
        read_table(image, &table, &mut budget, &mut out);
    }
    let dynamic = out.functions.len();
    for file in [Some(image), debug].into_iter().flatten() {
        for section in file.sections.iter().filter(|s| s.kind == elf::SHT_SYMTAB.0) {
            let strings = file.sections.get(section.link as usize).map_or(0..0, |s| s.file.clone());
            let table = SymbolTable {
                symbols: &file.bytes()[section.file.clone()],
                strings: &file.bytes()[strings],
                versions: None,
            };
            read_table(image, &table, &mut budget, &mut out);
        }
    }
    // If the file has a symbol table, it has the same functions as Go's table. A stripped program has only a few dynamic symbols, for C
    // code.
    if out.functions.len() == dynamic {
        out.functions.extend(go.functions(image));
    }
    out
}

fn read_table(image: &Elf, table: &SymbolTable<'_>, budget: &mut usize, out: &mut CodeSymbols) {
    for (index, entry) in table.symbols.chunks_exact(24).enumerate().skip(1) {
        let (info, other) = (entry[4], entry[5]);
        let section = u16_at(entry, 6).unwrap_or_default();
        let kind = elf::SymbolType(info & 15);
        if !matches!(kind, elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE) {
            continue;
        }
        let name_at = u32_at(entry, 0).unwrap_or_default() as usize;
        if section == elf::SHN_UNDEF.0 {
            // In .symtab, the version of an undefined symbol follows the name.
            let name = c_string(table.strings, name_at, 64).unwrap_or_default();
            out.imports_arch_prctl |= name == b"arch_prctl" || name.starts_with(b"arch_prctl@");
            continue;
        }
        let svma = u64_at(entry, 8).unwrap_or_default();
        if section == elf::SHN_ABS.0 || image.text_index(svma).is_none() {
            continue;
        }
        if kind == elf::STT_NOTYPE {
            out.labelled.push(svma);
        }
        let Some(name) = c_string(table.strings, name_at, NAME_MAX.min(*budget)) else {
            *budget = budget.saturating_sub(NAME_MAX.min(table.strings.len()));
            continue;
        };
        *budget = budget.saturating_sub(name.len());
        if name.is_empty() {
            continue;
        }
        let binding = match elf::SymbolBind(info >> 4) {
            elf::STB_LOCAL => SymbolBinding::Local,
            elf::STB_WEAK => SymbolBinding::Weak,
            _ => SymbolBinding::Global,
        };
        let hidden = !matches!(other & 3, 0 | 3);
        let version = table.versions.as_ref().and_then(|v| v.of(index));
        let name = FunctionName::new(&String::from_utf8_lossy(name), version, binding, hidden);
        if kind == elf::STT_NOTYPE {
            out.labels.push(UntypedLabel { at: Svma(svma), name });
            continue;
        }
        let size = u64_at(entry, 16).unwrap_or_default();
        out.functions.push(CodeSymbol { svma, size, ifunc: kind == elf::STT_GNU_IFUNC, name });
    }
}

/// Whether the loader looks a symbol of this name up for the file.
pub(crate) fn imports(image: &Elf, name: &str) -> bool {
    dynamic_table(image).is_some_and(|table| table.has(name, |section| section == elf::SHN_UNDEF.0))
}

/// Whether other files find a symbol of this name in the file.
pub(crate) fn exports(image: &Elf, name: &str) -> bool {
    dynamic_table(image).is_some_and(|table| table.has(name, |section| section != elf::SHN_UNDEF.0))
}

/// Whether one of the file's own symbol tables has a function of this name.
pub(crate) fn defines(image: &Elf, name: &str) -> bool {
    image.sections.iter().filter(|s| s.kind == elf::SHT_SYMTAB.0).any(|section| {
        let strings = image.sections.get(section.link as usize).map_or(0..0, |s| s.file.clone());
        let (symbols, strings) = (&image.bytes()[section.file.clone()], &image.bytes()[strings]);
        SymbolTable { symbols, strings, versions: None }.has(name, |section| section != elf::SHN_UNDEF.0)
    })
}

/// Whether the file has a symbol table of its own, which `strip` takes away.
pub(crate) fn has_own_table(image: &Elf) -> bool {
    image.sections.iter().any(|s| s.kind == elf::SHT_SYMTAB.0)
}

impl SymbolTable<'_> {
    /// Whether a symbol has this name, and a section of which `is_meant` holds.
    fn has(&self, name: &str, is_meant: impl Fn(u16) -> bool) -> bool {
        self.symbols.chunks_exact(24).any(|entry| {
            let its = || {
                let at = u32_at(entry, 0).unwrap_or_default() as usize;
                let its = self.strings.get(at..at.checked_add(name.len() + 1)?)?;
                its.strip_suffix(&[0])
            };
            u16_at(entry, 6).is_some_and(&is_meant) && its() == Some(name.as_bytes())
        })
    }
}

pub(crate) fn dynamic_table(image: &Elf) -> Option<SymbolTable<'_>> {
    let d = &image.dynamic;
    let at = d.symtab?;
    let count = dynamic_count(image)?;
    let symbols = image.data_from(at)?;
    let symbols = &symbols[..symbols.len().min(count.checked_mul(24)?)];
    let versions = d.versym.and_then(|versym| {
        let indices = image.data_from(versym)?;
        let indices = &indices[..indices.len().min(count * 2)];
        Some(VersionTables { indices, names: version_names(image, d.verdef?) })
    });
    Some(SymbolTable { symbols, strings: image.dynamic_strings(), versions })
}

/// The address of a variable that an image defines for others.
pub(crate) fn variable(image: &Elf, name: &str) -> Option<u64> {
    let table = dynamic_table(image)?;
    let defines = |entry: &&[u8]| {
        elf::SymbolType(entry[4] & 15) == elf::STT_OBJECT
            && u16_at(entry, 6).is_some_and(|section| section != elf::SHN_UNDEF.0)
            && u32_at(entry, 0).and_then(|at| c_string(table.strings, at as usize, name.len() + 1))
                == Some(name.as_bytes())
    };
    table.symbols.chunks_exact(24).find(defines).and_then(|entry| u64_at(entry, 8))
}

/// Number of dynamic symbols. The dynamic section does not state it, but the hash tables do.
fn dynamic_count(image: &Elf) -> Option<usize> {
    if let Some(section) = image.sections.iter().find(|s| s.kind == elf::SHT_DYNSYM.0) {
        return Some(section.file.len() / 24);
    }
    let d = &image.dynamic;
    if let Some(count) = d.hash.and_then(|at| u32_at(image.data_at(at, 8)?, 4)) {
        return Some(count as usize);
    }
    let table = image.data_from(d.gnu_hash?)?;
    let (buckets, base, bloom) = (u32_at(table, 0)? as usize, u32_at(table, 4)? as usize, u32_at(table, 8)? as usize);
    let buckets_at = bloom.checked_mul(8)?.checked_add(16)?;
    let chains_at = buckets_at.checked_add(buckets.checked_mul(4)?)?;
    let last = table.get(buckets_at..chains_at)?.chunks_exact(4).filter_map(|b| u32_at(b, 0)).max()? as usize;
    if last < base {
        return Some(base);
    }
    let chain = table.get(chains_at.checked_add((last - base).checked_mul(4)?)?..)?;
    let more = chain.chunks_exact(4).position(|word| word[0] & 1 != 0)?;
    Some(last + more + 1)
}

fn version_names(image: &Elf, at: u64) -> FxHashMap<u16, &[u8]> {
    let mut names = FxHashMap::default();
    let (Some(table), strings) = (image.data_from(at), image.dynamic_strings()) else { return names };
    let mut at = 0usize;
    // Indices of versions are 16 bits wide, so a chain of more definitions is damaged.
    for _ in 0..=u16::MAX {
        let (Some(flags), Some(index), Some(aux), Some(next)) =
            (u16_at(table, at + 2), u16_at(table, at + 4), u32_at(table, at + 12), u32_at(table, at + 16))
        else {
            break;
        };
        let base = flags & 1 != 0;
        let name = u32_at(table, at.saturating_add(aux as usize)).and_then(|n| c_string(strings, n as usize, 256));
        if let (false, Some(name)) = (base, name) {
            names.insert(index, name);
        }
        if next == 0 {
            break;
        }
        at = at.saturating_add(next as usize);
    }
    names
}

impl VersionTables<'_> {
    fn of(&self, index: usize) -> Option<SymbolVersion> {
        let word = u16_at(self.indices, index * 2)?;
        let name = self.names.get(&(word & 0x7fff))?;
        Some(SymbolVersion { name: String::from_utf8_lossy(name).into(), default: word & 0x8000 == 0 })
    }
}
