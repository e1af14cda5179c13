//! Functions that go on on another stack: those of C libraries and of Boost by their names, and others by their code.

use std::collections::BTreeSet;

use ingraft_mdl::ProgramFacts as _;
use ingraft_model::{FunctionId, PointKind};
use ingraft_process::Target;

use crate::background::in_background;
use crate::program::images::ImageStore;
use crate::program::modules::{ModuleFile, Modules};

/// Functions that keep the present place, and continue at another one, on another stack: of C libraries and of Boost.
pub const SWITCHES: [&str; 3] = ["swapcontext", "jump_fcontext", "ontop_fcontext"];
/// The function that continues at a place that was kept, and forgets the present one.
pub const JUMPS_TO: &str = "setcontext";
/// The libraries that have functions of these names.
const LIBRARIES: [&str; 3] = ["libc", "ld-musl-x86_64", "libboost_context"];

/// The entries of functions that leave a stack, and the exits of those that come to another one. Empty if no file of the program uses such
/// functions.
pub fn stack_switches(target: &Target, images: &ImageStore, modules: &Modules) -> Vec<(FunctionId, PointKind)> {
    let files = in_background(|| target.switching_files()).unwrap_or_default();
    if files.is_empty() {
        return Vec::new();
    }
    let uses = |file: &ModuleFile| files.contains(&file.file.path);
    let has_some = |file: &ModuleFile| uses(file) || file.names.iter().any(|name| LIBRARIES.contains(&name.as_str()));
    for error in modules.load_files(target, images, &has_some) {
        tracing::debug!(%error, "switches of stacks are not noticed");
    }
    let named = |names: &[&str]| -> BTreeSet<FunctionId> {
        names.iter().flat_map(|name| modules.functions_named(name)).collect()
    };
    let mut leaving = named(&SWITCHES);
    for (module, file, m) in modules.loaded().filter(|(_, file, _)| uses(file)) {
        tracing::debug!(file = %file.name, "switches stacks");
        let numbers = m.image.stack_switches().filter_map(|f| m.number_at(f.start()));
        leaving.extend(numbers.map(|function| FunctionId { module, function }));
    }
    let entering = named(&[JUMPS_TO]).into_iter().chain(leaving.iter().copied());
    let entering: Vec<_> = entering.map(|function| (function, PointKind::Exit)).collect();
    leaving.into_iter().map(|function| (function, PointKind::Entry)).chain(entering).collect()
}
