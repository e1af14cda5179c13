//! Where a thread goes on after an exception. Everything deeper in the stack has ended there: flags go down and timers stop at once, not only
//! at a later entry.

use super::*;
use crate::modules::ModuleFile;

/// The first thing that a handler calls, and the last thing that a cleanup calls, each from the frame that the exception has reached.
const LANDINGS: [&str; 2] = ["__cxa_begin_catch", "_Unwind_Resume"];
/// The libraries that have them.
const LIBRARIES: [&str; 4] = ["libstdc++", "libgcc_s", "libc++abi", "libunwind"];

impl Session {
    /// The functions at whose entries an exception has just cut the stack; none if nothing has to be put back then.
    pub(super) fn landings(
        &self,
        modules: &Modules,
        bound: &[(PairKey, Instrumentation, Vec<u32>)],
    ) -> Vec<MdlFunction> {
        if !bound.iter().any(|(_, i, _)| restores(i)) {
            return Vec::new();
        }
        let throws = |file: &ModuleFile| file.names.iter().any(|name| LIBRARIES.contains(&name.as_str()));
        // a library that cannot be looked into leaves what it would have put back to later entries
        for error in modules.load_files(&self.target, &self.context.images, &throws) {
            tracing::debug!(%error, "exceptions are noticed late");
        }
        LANDINGS.iter().flat_map(|name| ingraft_mdl::Program::functions_named(modules, name)).collect()
    }
}

/// Whether the end of a call puts anything back.
pub(super) fn restores(instrumentation: &Instrumentation) -> bool {
    fn any(stmts: &[Stmt]) -> bool {
        stmts.iter().any(|stmt| match stmt {
            Stmt::Open(record, body) => record.restore.is_some() || any(body),
            Stmt::If(_, body) => any(body),
            _ => false,
        })
    }
    instrumentation.insertions.iter().any(|i| any(&i.snippet.stmts))
}
