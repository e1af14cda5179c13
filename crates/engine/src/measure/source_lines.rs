//! The basic blocks of a source line, by the debugging information of the modules.

use ingraft_analysis::DebugInfo;
use ingraft_mdl::Program;
use ingraft_model::{FunctionRef, SvmaRange};

use crate::error::{Error, ErrorKind};
use crate::measure::request::Missing;
use crate::program::modules::{ModuleFile, Modules};
use crate::program::pattern::SourceLine;

/// The blocks that hold code of the source line that a text names, inlined copies included, each by its function and its name in a focus.
pub fn blocks(modules: &Modules, text: &str, missing: Missing) -> Result<Vec<(FunctionRef, String)>, Error> {
    let Some(wanted) = SourceLine::parse(text) else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let mut described = false;
    for (number, file, module) in modules.loaded() {
        let elf = module.image.elf();
        let Some(ranges) = ranges(modules, file, elf, &wanted) else { continue };
        described = true;
        for range in &ranges {
            let Some((function, blocks)) = module.image.blocks_in(range) else { continue };
            let names = blocks.iter().map(|block| Modules::name_of_block(function, block));
            let Some(number) = modules.number_of(number, function) else { continue };
            found.extend(names.map(|name| (number, name)));
        }
    }
    found.sort();
    found.dedup();
    if !found.is_empty() || matches!(missing, Missing::MayCome) {
        return Ok(found);
    }
    let hint = match described {
        true => {
            "a line without code of its own, such as a declaration, a comment or code that was optimised away, has no block"
        }
        false => "no module has debugging information: compile with -g, or install the package with the symbols",
    };
    Err(Error::new(ErrorKind::NotFound, "no_such_line", format!("no code of `{text}` in any module"), hint.to_owned()))
}

/// The ranges of code of a line in a module; `None` if the module has no debugging information.
fn ranges(
    modules: &Modules,
    file: &ModuleFile,
    elf: &ingraft_analysis::Elf,
    wanted: &SourceLine,
) -> Option<Vec<SvmaRange>> {
    let own = DebugInfo::of(elf).ok();
    let info = match own {
        Some(info) => info,
        None => DebugInfo::of(file.debug(modules.pid(), elf)?).ok()?,
    };
    Some(info.ranges_of_line(&wanted.file, wanted.line))
}
