//! Functions and source lines at addresses of code: for `ingraft where`, and for keys that are such addresses.

use std::collections::BTreeMap;

use ingraft_analysis::{DebugInfo, SourceRange};
use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, Offset, Svma, SvmaRange};
use ingraft_process::Target;
use rustc_hash::FxHashMap;

use crate::api::{ModulePlace, NamedFunction};
use crate::program::debug_files;
use crate::program::images::ImageStore;
use crate::program::modules::{Module, ModuleFile, Modules};

/// Largest number of addresses that are remembered. A program with more keys has their names looked up again.
const REMEMBERED_MAX: usize = 1 << 16;
/// Memory in which the kernel puts the code to which functions with a return probe return.
const UPROBES: &str = "[uprobes]";

/// Places of addresses that are keys, as far as they were looked up.
#[derive(Debug, Default)]
pub struct CodePlaces(FxHashMap<u64, Option<Box<NamedPlace>>>);

/// A place in code, and its name: `function+0x1a`, with the module before it if that is not the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPlace {
    /// The name.
    pub name: String,
    /// The place.
    pub place: ModulePlace,
}

impl CodePlaces {
    /// The addresses of `keys` about which nothing is known yet. Forgets all places if there are too many.
    pub fn unknown(&mut self, keys: impl Iterator<Item = u64>) -> Vec<Avma> {
        if self.0.len() > REMEMBERED_MAX {
            self.forget();
        }
        let mut unknown: Vec<Avma> = keys.filter(|key| !self.0.contains_key(key)).map(Avma).collect();
        unknown.sort_unstable();
        unknown.dedup();
        unknown
    }

    /// Looks addresses up in the modules of a target.
    pub fn learn(&mut self, target: &Target, modules: &Modules, images: &ImageStore, unknown: &[Avma]) {
        let places = places(target, modules, images, unknown);
        self.0.extend(unknown.iter().map(|at| at.0).zip(places.into_iter().map(|place| place.map(Box::new))));
    }

    /// Forgets all places, because other code may be at their addresses now.
    pub fn forget(&mut self) {
        self.0.clear();
    }

    /// The place of an address; `None` if it is no address of code.
    pub fn get(&self, key: u64) -> Option<&NamedPlace> {
        self.0.get(&key)?.as_deref()
    }
}

/// The name of a place in a module.
fn name(place: &ModulePlace, is_program: bool) -> String {
    let is_clear = is_program && place.function.is_some();
    let module = if is_clear { String::new() } else { format!("{}:", place.module) };
    let (base, from) = place.function.as_ref().map_or(("", Svma(0)), |f| (f.function.as_str(), f.offset));
    match Offset::between(from.0, place.at.0) {
        Offset(0) if !base.is_empty() => format!("{module}{base}"),
        offset => format!("{module}{base}{offset}"),
    }
}

/// The places of addresses that are keys: the call that returns to the address, or the place itself. `None` for addresses that are not in
/// the code of a module.
fn places(target: &Target, modules: &Modules, images: &ImageStore, wanted: &[Avma]) -> Vec<Option<NamedPlace>> {
    let mut found = places_by(target, modules, images, wanted, key_place);
    // Keys below the first page are numbers.
    if !wanted.iter().zip(&found).any(|(at, place)| place.is_none() && at.0 >= PAGE) {
        return found;
    }
    let maps = target.maps().unwrap_or_default();
    let probes: Vec<_> = maps.iter().filter(|mapping| mapping.path.as_os_str() == UPROBES).collect();
    for (at, place) in wanted.iter().zip(&mut found).filter(|(_, place)| place.is_none()) {
        if probes.iter().any(|mapping| mapping.range.contains(at)) {
            *place = Some(return_probe(*at));
        }
    }
    found
}

/// The place of a return address that the kernel has put in the place of the program's, because another tool probes the returns of the
/// function. The program's return address is in the kernel.
fn return_probe(at: Avma) -> NamedPlace {
    let (name, module, at) = ("return probe".to_owned(), UPROBES.to_owned(), Svma(at.0));
    let function = Some(NamedFunction { module: module.clone(), function: name.clone(), offset: at });
    NamedPlace { name, place: ModulePlace { module, at, function, ..ModulePlace::default() } }
}

/// The places of the frames of stacks: for a caller, of which the address of the last byte of the call is given, the call; else the address.
/// `None` for addresses that are not in the code of a module.
pub fn frame_places(
    target: &Target,
    modules: &Modules,
    images: &ImageStore,
    wanted: &[Avma],
) -> Vec<Option<ModulePlace>> {
    let found = places_by(target, modules, images, wanted, |file, module, svma| {
        let image = &module.image;
        let after = Svma(svma.0.saturating_add(1));
        let call = image.function_around_address(svma).and_then(|function| image.call_before(function, after));
        place_at(file, module, call.unwrap_or(svma))
    });
    found.into_iter().map(|named| named.map(|named| named.place)).collect()
}

/// The places of addresses by a rule. `None` for addresses that are not in the code of a module.
fn places_by(
    target: &Target,
    modules: &Modules,
    images: &ImageStore,
    wanted: &[Avma],
    rule: impl Fn(&ModuleFile, &Module, Svma) -> ModulePlace,
) -> Vec<Option<NamedPlace>> {
    let mut found: Vec<Option<NamedPlace>> = wanted.iter().map(|_| None).collect();
    let holds = |file: &ModuleFile| wanted.iter().any(|at| has_code(file, *at));
    modules.load_files(target, images, &holds);
    for (_, file, module) in modules.loaded().filter(|(_, file, _)| holds(file)) {
        let mut lines: BTreeMap<Svma, Vec<usize>> = BTreeMap::new();
        for (number, at) in wanted.iter().enumerate().filter(|(_, at)| has_code(file, **at)) {
            let svma = at.to_svma(module.bias);
            if !module.image.is_text(svma) && !module.image.is_text(Svma(svma.0.wrapping_sub(1))) {
                continue;
            }
            let place = rule(file, module, svma);
            lines.entry(place.at).or_default().push(number);
            found[number] = Some(NamedPlace { name: name(&place, file.is_program), place });
        }
        let addresses: Vec<Svma> = lines.keys().copied().collect();
        let (sources, inlined) = source_at(target, file, module, &addresses);
        for line in sources {
            for number in lines.range(line.range.clone()).flat_map(|(_, numbers)| numbers) {
                if let Some(NamedPlace { place, .. }) = &mut found[*number] {
                    place.source = Some((line.file.clone(), line.line));
                }
            }
        }
        for (at, names) in inlined {
            for number in lines.get(&at).into_iter().flatten() {
                if let Some(NamedPlace { place, .. }) = &mut found[*number] {
                    place.inlined.clone_from(&names);
                }
            }
        }
    }
    found
}

/// Whether an address lies in the mappings of a file.
pub fn holds(file: &ModuleFile, at: Avma) -> bool {
    file.is_mapped && file.file.mappings.iter().chain(&file.file.moved).any(|m| m.range.contains(&at))
}

/// Whether an address lies in the executable mappings of a file.
fn has_code(file: &ModuleFile, at: Avma) -> bool {
    let mappings = file.file.mappings.iter().chain(&file.file.moved).filter(|m| m.exec);
    file.is_mapped && mappings.into_iter().any(|m| m.range.contains(&at) || m.range.end == at)
}

/// The place that a key means, without its source line. A call comes before a function that begins right behind it: a call that never
/// returns may be the last instruction of its function.
fn key_place(file: &ModuleFile, module: &Module, svma: Svma) -> ModulePlace {
    let image = &module.image;
    let before = Svma(svma.0.saturating_sub(1));
    let call = image.function_around_address(before).and_then(|function| image.call_before(function, svma));
    place_at(file, module, call.unwrap_or(svma))
}

/// The place of an address in a module, without its source line.
pub fn place_at(file: &ModuleFile, module: &Module, svma: Svma) -> ModulePlace {
    let function = module.image.function_around_address(svma);
    let block = function.and_then(|f| {
        let blocks = module.image.blocks(f);
        let block = blocks.iter().find(|block| block.range.contains(&svma))?;
        Some(Offset::between(f.start().0, block.range.start.0))
    });
    let function = function.map(|f| NamedFunction {
        module: file.name.clone(),
        function: f.display_name().into_owned(),
        offset: f.start(),
    });
    ModulePlace { module: file.name.clone(), at: svma, function, block, source: None, inlined: Vec::new() }
}

/// The source lines of code in a module, by its own debugging information or by that of its separate file.
pub fn source_lines(target: &Target, file: &ModuleFile, module: &Module, wanted: &[SvmaRange]) -> Vec<SourceRange> {
    ask(target, file, module, &|info| info.lines_in(wanted)).unwrap_or_default()
}

/// The source lines of code at some addresses, and for each address the names of the inlined functions there, innermost first.
pub fn source_at(
    target: &Target,
    file: &ModuleFile,
    module: &Module,
    wanted: &[Svma],
) -> (Vec<SourceRange>, BTreeMap<Svma, Vec<String>>) {
    let ranges: Vec<SvmaRange> = wanted.iter().map(|at| *at..Svma(at.0.saturating_add(1))).collect();
    ask(target, file, module, &|info| (info.lines_in(&ranges), info.inlined_at(wanted))).unwrap_or_default()
}

/// Asks the debugging information of a module, or if the module has none, that of its separate file.
fn ask<T>(target: &Target, file: &ModuleFile, module: &Module, question: &dyn Fn(&DebugInfo<'_>) -> T) -> Option<T> {
    debug_files::ask(target.pid(), file, module.image.elf(), |info| Ok(question(info))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_called_by_its_function_and_module() {
        let function =
            |offset| NamedFunction { module: "m".to_owned(), function: "f".to_owned(), offset: Svma(offset) };
        let place =
            |at, function| ModulePlace { module: "m".to_owned(), at: Svma(at), function, ..ModulePlace::default() };
        assert_eq!(name(&place(0x10, Some(function(0x10))), true), "f");
        assert_eq!(name(&place(0x1a, Some(function(0x10))), true), "f+0xa");
        assert_eq!(name(&place(0x1a, Some(function(0x10))), false), "m:f+0xa");
        assert_eq!(name(&place(0x1a, None), true), "m:+0x1a");
    }

    #[test]
    fn an_address_is_looked_up_once() {
        let mut known = CodePlaces::default();
        known.0.insert(7, None);
        assert_eq!(known.unknown([7, 9, 8, 9].into_iter()), [Avma(8), Avma(9)]);
        assert_eq!(known.get(7), None);
    }
}
