//! The function table of Go programs (`.gopclntab`), which survives stripping: the runtime needs it. The layout is that of
//! Go 1.18 and later (debug/gosym/pclntab.go).

use crate::elf::{Elf, c_string, u32_at, u64_at};
use crate::name::{Binding, Name};
use crate::symbols::Symbol;

/// Longest name that is read.
const NAME_MAX: usize = 4096;

/// The functions of the table, each up to the start of the next one. Empty for other programs and other layouts.
pub(crate) fn functions(image: &Elf) -> Vec<Symbol> {
    read(image).unwrap_or_default()
}

fn read(image: &Elf) -> Option<Vec<Symbol>> {
    let section = image.section(".gopclntab").or_else(|| image.section(".data.rel.ro.gopclntab"))?;
    let table = &image.bytes()[section.file.clone()];
    let known = matches!(u32_at(table, 0)?, 0xffff_fff0 | 0xffff_fff1);
    if !known || table.get(6..8) != Some(&[1, 8]) {
        return None;
    }
    let word = |n: usize| u64_at(table, 8 + 8 * n).and_then(|w| usize::try_from(w).ok());
    let (count, text, names, functions) = (word(0)?, word(2)? as u64, word(3)?, word(7)?);
    // The header's address is filled in by the loader in position-independent programs, and left out by newer linkers.
    let text = if text == 0 { image.section(".text")?.svma } else { text };
    let names = table.get(names..)?;
    let functions = table.get(functions..)?;
    // Honest names are shorter than the table together; hostile ones share bytes.
    let mut budget = 4 * table.len();
    let mut out = Vec::new();
    for n in 0..count {
        let (Some(start), Some(at), Some(next)) =
            (u32_at(functions, 8 * n), u32_at(functions, 8 * n + 4), u32_at(functions, 8 * n + 8))
        else {
            break;
        };
        let name_at = u32_at(functions, (at as usize).saturating_add(4)).unwrap_or_default();
        let Some(name) = c_string(names, name_at as usize, NAME_MAX.min(budget)) else { continue };
        budget -= name.len();
        let svma = text.wrapping_add(u64::from(start));
        let size = next.saturating_sub(start);
        if matches!(name, b"" | b"go:buildid" | b"go.buildid") || image.text_index(svma).is_none() {
            continue;
        }
        let name = Name::new(&String::from_utf8_lossy(name), None, Binding::Local, false);
        out.push(Symbol { svma, size: padded_end(image, svma, u64::from(size)), ifunc: false, name });
    }
    Some(out)
}

/// The size without the `int3` that Go fills up with.
fn padded_end(image: &Elf, svma: u64, size: u64) -> u64 {
    let bytes = image.data_at(svma, size).unwrap_or_default();
    size - bytes.iter().rev().take(64).take_while(|b| **b == 0xcc).count() as u64
}
