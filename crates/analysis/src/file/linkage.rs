//! Names by which a file is linked with others while the program runs: which file may call functions of which others without a pointer.

use std::hash::Hasher as _;

use object::elf;
use rustc_hash::FxHasher;

use crate::file::elf::{Elf, u16_at, u32_at};
use crate::file::symbols::{self, SymbolTable};

/// Largest number of bytes of a name that are read. Names that begin with the same bytes are taken for the same name.
const NAME_MAX: usize = 256;

/// Names of the dynamic symbols of a file, as hashes: two names may have one hash, so an answer may be yes where it should be no.
#[derive(Clone, Debug, Default)]
pub struct Linkage {
    /// Names that the loader looks up for the file, sorted.
    imports: Vec<u64>,
    /// Names that other files find in the file, sorted.
    exports: Vec<u64>,
}

impl Linkage {
    /// Whether the loader may find a symbol for this file in the other one.
    pub fn may_use(&self, other: &Linkage) -> bool {
        self.imports.iter().any(|name| other.exports.binary_search(name).is_ok())
    }
}

impl Elf {
    /// The names by which the file is linked with others.
    pub fn linkage(&self) -> Linkage {
        let mut linkage = Linkage::default();
        let Some(table) = symbols::dynamic_table(self) else { return linkage };
        for (section, name) in table.symbols.chunks_exact(24).skip(1).filter_map(|entry| named(&table, entry)) {
            let names = if section == elf::SHN_UNDEF.0 { &mut linkage.imports } else { &mut linkage.exports };
            names.push(hash(name));
        }
        linkage.imports.sort_unstable();
        linkage.exports.sort_unstable();
        linkage
    }
}

/// The section and the name of a symbol.
fn named<'t>(table: &SymbolTable<'t>, entry: &[u8]) -> Option<(u16, &'t [u8])> {
    let name = table.strings.get(u32_at(entry, 0)? as usize..)?;
    let name = name.get(..NAME_MAX).unwrap_or(name);
    Some((u16_at(entry, 6)?, name.split(|byte| *byte == 0).next().unwrap_or_default()))
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linkage(imports: &[&str], exports: &[&str]) -> Linkage {
        let sorted = |names: &[&str]| {
            let mut hashes: Vec<u64> = names.iter().map(|name| hash(name.as_bytes())).collect();
            hashes.sort_unstable();
            hashes
        };
        Linkage { imports: sorted(imports), exports: sorted(exports) }
    }

    #[test]
    fn a_file_uses_those_that_export_what_it_imports() {
        let (program, library) = (linkage(&["open", "read"], &["main"]), linkage(&["main"], &["close", "read"]));
        assert!(program.may_use(&library) && library.may_use(&program));
        assert!(!program.may_use(&linkage(&[], &["write"])));
        assert!(!linkage(&[], &["read"]).may_use(&library));
    }
}
