//! Variables of a program: symbols of data, with the source file that defines each.

use ingraft_model::Svma;
use object::elf;

use crate::file::elf::{Elf, c_string, u16_at, u32_at, u64_at};
use crate::file::name::{FunctionName, SymbolBinding};
use crate::file::symbols::dynamic_table;

/// Longest name that is compared, in bytes.
const NAME_MAX: usize = 4096;

/// A variable with a symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DataSymbol {
    /// Address of the variable; for a thread-local variable, its offset from the beginning of the thread's data.
    pub at: Svma,
    /// Size in bytes; 0 if the symbol does not say.
    pub size: u64,
    /// The source file of a static variable, if a symbol names the file.
    pub file: Option<String>,
    /// Whether the symbol is local to its object file.
    pub local: bool,
    /// Whether the variable is thread-local.
    pub per_thread: bool,
}

impl DataSymbol {
    /// The variables with a name, from an image and its debug file, each once. A name that contains `::` is compared with demangled names.
    pub fn named(image: &Elf, debug: Option<&Elf>, wanted: &str) -> Vec<DataSymbol> {
        let mut found: Vec<DataSymbol> = Vec::new();
        DataSymbol::each(image, debug, &mut |name, symbol| {
            let same = name == wanted
                || wanted.contains("::")
                    && FunctionName::new(name, None, SymbolBinding::Global, false).demangled() == Some(wanted);
            if same && !found.iter().any(|known| (known.at, known.per_thread) == (symbol.at, symbol.per_thread)) {
                found.push(symbol);
            }
        });
        found
    }

    /// The variable that an image exports under a name.
    pub fn exported(image: &Elf, wanted: &str) -> Option<DataSymbol> {
        let (table, mut found) = (dynamic_table(image)?, None);
        each_in(image, table.symbols, table.strings, &mut |name, symbol| {
            if name == wanted && !symbol.local {
                found = found.take().or(Some(symbol));
            }
        });
        found
    }

    /// The names of all variables.
    pub fn names(image: &Elf, debug: Option<&Elf>) -> Vec<String> {
        let mut names = Vec::new();
        DataSymbol::each(image, debug, &mut |name, _| names.push(name.to_owned()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Visits the names of all variables of an image and its debug file; some names more than once.
    pub fn each(image: &Elf, debug: Option<&Elf>, visit: &mut dyn FnMut(&str, DataSymbol)) {
        for file in [Some(image), debug].into_iter().flatten() {
            for section in file.sections.iter().filter(|s| s.kind == elf::SHT_SYMTAB.0) {
                let strings = file.sections.get(section.link as usize).map_or(0..0, |s| s.file.clone());
                each_in(image, &file.bytes()[section.file.clone()], &file.bytes()[strings], visit);
            }
        }
        if let Some(table) = dynamic_table(image) {
            each_in(image, table.symbols, table.strings, visit);
        }
    }
}

fn each_in(image: &Elf, symbols: &[u8], strings: &[u8], visit: &mut dyn FnMut(&str, DataSymbol)) {
    let mut source: Option<&str> = None;
    for entry in symbols.chunks_exact(24).skip(1) {
        let kind = elf::SymbolType(entry[4] & 15);
        let section = u16_at(entry, 6).unwrap_or_default();
        if !matches!(kind, elf::STT_OBJECT | elf::STT_TLS | elf::STT_COMMON | elf::STT_FILE) {
            continue;
        }
        let name_at = u32_at(entry, 0).unwrap_or_default() as usize;
        let name = c_string(strings, name_at, NAME_MAX).and_then(|name| std::str::from_utf8(name).ok());
        if kind == elf::STT_FILE {
            source = name.filter(|name| !name.is_empty());
            continue;
        }
        let Some(name) = name.and_then(|name| name.split('@').next()).filter(|name| !name.is_empty()) else { continue };
        let at = Svma(u64_at(entry, 8).unwrap_or_default());
        let per_thread = kind == elf::STT_TLS;
        let is_here = per_thread || image.segments().iter().any(|s| s.svma <= at && at.0 - s.svma.0 < s.mem_size);
        if section == elf::SHN_UNDEF.0 || section == elf::SHN_ABS.0 || !is_here {
            continue;
        }
        let local = elf::SymbolBind(entry[4] >> 4) == elf::STB_LOCAL;
        let file = source.filter(|_| local).map(str::to_owned);
        let size = u64_at(entry, 16).unwrap_or_default();
        visit(name, DataSymbol { at, size, file, local, per_thread });
    }
}
