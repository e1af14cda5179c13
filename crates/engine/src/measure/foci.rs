//! Foci with patterns: `/Code/MODULE/FUNCTION` with `*` or `?` stands for one focus for each matching module or function.

use std::sync::Arc;

use ingraft_mdl::ProgramFacts;
use ingraft_model::{Focus, FunctionId, ResourcePath};

use crate::api::MetricFocus;
use crate::error::Error;
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::modules::Modules;
use crate::program::pattern::{glob_match, has_wildcard};

/// A pair. If the pair came from a pattern of functions, also the function that its focus names.
pub type Expanded = (Arc<MetricFocus>, Option<FunctionId>);

/// The pairs that a pair stands for: itself, unless its focus has a pattern. A text that is the name of a module or function is no pattern.
pub fn expand(modules: &Modules, pair: Arc<MetricFocus>, missing: Missing) -> Result<Vec<Expanded>, Error> {
    let names = pair.focus.part("Code").map(|part| part.names.as_slice()).unwrap_or_default();
    let of = |names: Vec<String>, function| {
        let focus = narrowed(&pair.focus, names)?;
        Some((Arc::new(MetricFocus { metric: pair.metric.clone(), focus }), function))
    };
    match names {
        [module] if has_wildcard(module) && modules.modules_named(module).is_empty() => {
            let matches = |name: &String| glob_match(module, name);
            let files = modules.loaded().filter(|(_, file, _)| file.names.iter().any(matches));
            let found: Vec<_> = files.filter_map(|(_, file, _)| of(vec![file.name.clone()], None)).collect();
            Ok(if found.is_empty() { vec![(pair, None)] } else { found })
        }
        [module, function] if has_pattern(modules, module, function) => {
            let pattern = [format!("{module}:{function}")];
            let found = resolve_patterns(modules, &pattern, missing)?;
            let named = found.into_iter().filter_map(|f| {
                let (module, function) = modules.focus_name(f)?;
                of(vec![module, function], Some(f))
            });
            Ok(named.collect())
        }
        _ => Ok(vec![(pair, None)]),
    }
}

/// Whether a module and a function have wildcards and are no names themselves, as `operator*` is one.
pub fn has_pattern(modules: &Modules, module: &str, function: &str) -> bool {
    (has_wildcard(module) || has_wildcard(function)) && modules.function(module, function).is_empty()
}

/// A focus with another resource below `/Code`.
fn narrowed(focus: &Focus, code: Vec<String>) -> Option<Focus> {
    let others = focus.parts().iter().filter(|part| part.root != "Code").cloned();
    Focus::new(others.chain([ResourcePath::new("Code", code)])).ok()
}
