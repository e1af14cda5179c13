//! The code of the modules that contexts are in, for the source lines of call sites.

use std::collections::HashMap;
use std::rc::Rc;

use ingraft_report::{ModuleCode, SavedProfile};

use crate::command::report::modules;

/// The code of modules, by path and build-id. Each is read once.
#[derive(Default)]
pub(super) struct ModuleFiles(HashMap<(String, Vec<u8>), Rc<ModuleCode>>);

impl ModuleFiles {
    /// The code of the modules of a profile, in their order. A module whose file cannot be read, or that is not needed, has none.
    pub(super) fn code(&mut self, profile: &SavedProfile) -> Vec<Rc<ModuleCode>> {
        let code = |(number, module)| -> Rc<ModuleCode> {
            let module: &ingraft_report::ModuleInfo = module;
            if !uses(profile, number) {
                return Rc::default();
            }
            let key = (module.path.clone(), module.build_id.clone());
            let known = self.0.entry(key).or_insert_with(|| Rc::new(modules::read(module).unwrap_or_default()));
            Rc::clone(known)
        };
        profile.modules.iter().enumerate().map(code).collect()
    }
}

/// Whether a module has functions or call sites of contexts.
pub(crate) fn uses(profile: &SavedProfile, module: usize) -> bool {
    profile.contexts.as_ref().is_some_and(|contexts| {
        contexts.functions.iter().any(|function| function.module == module)
            || contexts.contexts.iter().any(|context| context.site.module == Some(module))
    })
}
