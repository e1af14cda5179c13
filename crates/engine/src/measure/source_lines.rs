//! The basic blocks of a source line, by the debugging information of the modules.

use std::sync::PoisonError;

use ingraft_analysis::TypeError;
use ingraft_mdl::ProgramFacts;
use ingraft_model::{FunctionId, PartName};

use crate::error::{Error, Reason};
use crate::measure::request::Missing;
use crate::program::debug_files;
use crate::program::modules::{LineRanges, Module, ModuleFile, Modules};
use crate::program::pattern::SourceLine;

/// The blocks that hold code of the source line that a text names, inlined copies included, each by its function and its name.
pub fn blocks(modules: &Modules, text: &str, missing: Missing) -> Result<Vec<(FunctionId, PartName)>, Error> {
    let Some(wanted) = SourceLine::parse(text) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let (mut described, mut compressed, mut of_program) = (false, None, None);
    for (number, file, module) in modules.loaded() {
        let ranges = match ranges(modules, file, module, &wanted) {
            Ok(ranges) => ranges,
            Err(why) => {
                let is_compressed = why == TypeError::Compressed;
                compressed = compressed.or(is_compressed.then_some(&file.name));
                of_program = of_program.or((file.is_program && !is_compressed).then_some(file));
                continue;
            }
        };
        described = true;
        for range in ranges.iter() {
            let Some((function, blocks)) = module.image.blocks_in(range) else { continue };
            let names = blocks.iter().map(|block| Modules::name_of(function, block));
            let Some(number) = modules.number_of(number, function) else { continue };
            found.extend(names.map(|name| (number, name)));
        }
    }
    found.sort();
    found.dedup();
    if !found.is_empty() || matches!(missing, Missing::MayCome) {
        return Ok(found);
    }
    // The line is most likely one of the program itself, so its own module comes first.
    let hint = match (of_program, compressed, described) {
        (Some(program), ..) => match modules.symbols_package(program) {
            Some(package) => format!("{} has no debugging information: install {package}", program.name),
            None => format!("{} has no debugging information: compile it with -g", program.name),
        },
        (None, Some(module), _) => format!("the debugging information of {module} cannot be decompressed"),
        (None, None, true) => {
            "lines of declarations, of comments and of code that was optimised away have no block".to_owned()
        }
        (None, None, false) => {
            "no module has debugging information: compile with -g, or install the package with the symbols".to_owned()
        }
    };
    Err(Error::new(Reason::NoSuchLine, format!("no code of `{text}` in any module"), hint))
}

/// The ranges of code of a line in a module, by its own debugging information or by that of its separate file.
fn ranges(modules: &Modules, file: &ModuleFile, module: &Module, wanted: &SourceLine) -> LineRanges {
    let mut known = module.lines.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = known.get(wanted) {
        return known.clone();
    }
    let found = debug_files::ask(modules.pid(), file, module.image.elf(), |info| {
        Ok(info.ranges_of_line(&wanted.file, wanted.line).into())
    });
    known.insert(wanted.clone(), found.clone());
    found
}
