//! Names to suggest instead of one that nothing has, and packages with the symbols that are missing.

use ingraft_analysis::Elf;

use crate::program::modules::{ModuleFile, Modules};
use crate::program::packages;
use crate::program::pattern::{Pattern, edit_distance, has_wildcard};

impl Modules {
    /// The existing name, in the form that is shown, that is closest to a name that does not exist.
    pub fn nearest(&self, name: &str) -> Option<String> {
        let limit = (name.len() / 3).clamp(2, 4);
        let mut best: Option<(usize, String)> = None;
        for (_, file, module) in self.loaded() {
            for function in module.image.functions() {
                let shown = function.display_name();
                let whole = function.names().first().and_then(|name| name.without_parameters()).unwrap_or(&shown);
                // A name without a namespace is compared with the last part of the full name, but the answer is the full name.
                let last = if name.contains("::") { whole } else { whole.rsplit("::").next().unwrap_or(whole) };
                // Go writes `package.function`.
                let behind_dot = last.rsplit_once('.').filter(|_| !name.contains('.')).map(|(_, last)| last);
                let distance = |part: &str| edit_distance(name, part, limit);
                if let Some(d) = [Some(last), behind_dot].into_iter().flatten().filter_map(distance).min()
                    && best.as_ref().is_none_or(|(b, _)| d < *b)
                {
                    best = Some((d, format!("{}:{whole}", file.name)));
                }
            }
        }
        best.map(|(_, name)| name)
    }

    /// The name of a mapped module that is closest to a module name as people write it.
    pub fn nearest_module(&self, name: &str) -> Option<String> {
        if has_wildcard(name) {
            return None;
        }
        let limit = (name.len() / 3).clamp(1, 4);
        let distance = |known: &String| {
            let far = edit_distance(name, known, limit);
            let is_library = known.strip_prefix("lib").is_some_and(|rest| rest == name);
            // `redis` for `redis-server`
            let is_begin = known.strip_prefix(name).is_some_and(|rest| rest.starts_with(['-', '_', '.']));
            if is_library || is_begin { Some(0) } else { far }
        };
        let names = self.mapped().flat_map(|file| &file.names).filter(|name| !name.is_empty());
        let near = names.filter_map(|known| Some((distance(known)?, known))).min_by_key(|(far, _)| *far);
        near.map(|(_, known)| known.clone())
    }

    /// Remedy for a pattern that names a function of a file without local symbols, as stripping removes the names of static functions.
    /// `None` if no analysed module that the pattern may match is stripped, or if no source of its symbols is known.
    pub fn symbols_hint(&self, pattern: &Pattern) -> Option<String> {
        let meant = |file: &ModuleFile| match pattern {
            Pattern::Names { module: None, .. } => file.is_program,
            Pattern::Names { .. } | Pattern::Offset { .. } => {
                pattern.may_match_module(file.names.iter().map(String::as_str))
            }
        };
        let (_, file, _) = self.loaded().find(|(_, file, module)| {
            let elf = module.image.elf();
            let debug = || file.debug(self.pid, elf).is_some_and(Elf::has_symbol_table);
            meant(file) && !elf.has_symbol_table() && !elf.is_go() && !debug()
        })?;
        let package = self.symbols_package(file)?;
        Some(format!("the symbols of {} are stripped: install {package}", file.name))
    }

    /// Name of the package with the symbols and the debugging information of a file that a package has installed.
    pub fn symbols_package(&self, file: &ModuleFile) -> Option<String> {
        Some(format!("{}-dbgsym", packages::owner(self.pid, &file.file.path)?))
    }
}
