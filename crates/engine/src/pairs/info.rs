//! Pairs in the form for clients.

use std::sync::Arc;

use ingraft_model::FunctionId;

use crate::api::{NamedFunction, PairFacts, PairInfo};
use crate::program::modules::Modules;
use crate::weaving::plan::Woven;

use super::key::PairKey;
use super::pair::Pair;

/// Describes a pair for clients. `function` is the function that the pair's focus got from a pattern. `woven` is the code in the target.
pub fn pair_info(
    modules: &Modules,
    woven: Option<&Woven>,
    (key, pair): (&PairKey, &Pair),
    function: Option<FunctionId>,
) -> PairInfo {
    let functions = pair.functions();
    // A focus that names a function gets it if the pair is woven in that one alone.
    let code = key.pair.focus.part("Code").filter(|code| code.names.len() >= 2);
    let only = if let [only] = functions.as_slice() { Some(*only) } else { None };
    let function = function.or(only.filter(|_| code.is_some()));
    let is_exposed = |woven: &Woven| functions.iter().any(|f| woven.is_exposed(modules, *f));
    PairInfo {
        facts: PairFacts { exposed: woven.is_some_and(is_exposed), ..PairFacts::default() },
        function: function.and_then(|f| function_ref(modules, f)),
        edge_kinds: function.map_or_else(Vec::new, |f| modules.edge_kinds(f, &key.pair.focus)),
        points: functions.len() as u32,
        refused: pair.refused(),
        ..PairInfo::new(Arc::clone(&key.pair), Arc::clone(&pair.metric))
    }
}

/// A function in the form for clients.
pub fn function_ref(modules: &Modules, function: FunctionId) -> Option<NamedFunction> {
    let (file, _, f) = modules.resolve(function)?;
    Some(NamedFunction { module: file.name.clone(), function: f.display_name().into_owned(), offset: f.start() })
}
