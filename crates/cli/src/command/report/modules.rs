//! The files of the modules of a profile.

use std::path::{Path, PathBuf};

use ingraft_report::{ModuleCode, ModuleInfo, SavedProfile};

use crate::args::Format;
use crate::command::contexts;
use crate::exit::Failure;
use crate::output;

/// Directory of separate debug files, by build-id.
const DEBUG: &str = "/usr/lib/debug/.build-id";

/// The code of the modules that have profiled functions. A warning names each module whose file cannot be used. `binaries` are files to
/// use instead of those that the profile names; fails if one of them belongs to no module.
pub(crate) fn code(profile: &SavedProfile, binaries: &[PathBuf], format: Format) -> Result<Vec<ModuleCode>, Failure> {
    let mut given: Vec<Option<ModuleCode>> = profile.modules.iter().map(|_| None).collect();
    for path in binaries {
        let name = path.display();
        let bytes =
            std::fs::read(path).map_err(|e| Failure::usage(format!("cannot read {name}: {e}"), "check the path"))?;
        let code = ModuleCode::parse(&bytes, None);
        let same = |module: &ModuleInfo| !module.build_id.is_empty() && module.build_id == code.build_id();
        let Some(place) = profile.modules.iter().position(same).and_then(|module| given.get_mut(module)) else {
            let hint = "`file` prints the build-id of a file; --as json names the modules of the profile";
            return Err(Failure::usage(format!("{name} has the build-id of no module of the profile"), hint));
        };
        *place = Some(code);
    }
    let code = profile.modules.iter().enumerate().zip(given).map(|((number, module), given)| {
        let has_functions =
            profile.functions.iter().any(|function| function.module == number) || contexts::uses(profile, number);
        given.unwrap_or_else(|| if has_functions { of_file(module, format) } else { ModuleCode::default() })
    });
    Ok(code.collect())
}

/// The code of the file that a profile names. Warns and knows nothing if it is not that file.
pub(crate) fn of_file(module: &ModuleInfo, format: Format) -> ModuleCode {
    read(module).unwrap_or_else(|problem| {
        output::warn(&format!("no instructions and source lines from {}: {problem}", module.path), format);
        ModuleCode::default()
    })
}

/// The code of the file that a profile names. Fails with the reason if it is not that file.
pub(crate) fn read(module: &ModuleInfo) -> Result<ModuleCode, String> {
    let bytes = std::fs::read(&module.path).map_err(|error| error.to_string())?;
    let debug = debug_file(&module.build_id).and_then(|path| std::fs::read(path).ok());
    let code = ModuleCode::parse(&bytes, debug.as_deref());
    if code.build_id() == module.build_id {
        Ok(code)
    } else {
        Err("it has another build-id than the profile".to_owned())
    }
}

/// Path of the separate debug file of a build-id.
fn debug_file(build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first()?;
    let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(Path::new(DEBUG).join(format!("{first:02x}/{rest}.debug")))
}
