//! Symbols without a type that patterns match and that are not listed as functions. Assembly without `.type` leaves open whether a symbol
//! names a function, a place inside a function, or data.

use ingraft_analysis::{AnalysedImage, SymbolBinding, UntypedLabel};

use crate::api::UntypedSymbol;
use crate::names::some_of;
use crate::program::modules::Modules;
use crate::program::pattern::{Pattern, glob_match, has_wildcard};

/// Number of names in a warning before it counts the rest.
const NAMED: usize = 5;

/// The untyped symbols that patterns match. A glob matches symbols that other files can see and that lie in no function; a name matches
/// any.
pub fn untyped(modules: &Modules, patterns: &[Pattern]) -> Vec<UntypedSymbol> {
    let mut out = Vec::new();
    for (_, file, module) in modules.loaded() {
        let names = || file.names.iter().map(String::as_str);
        let patterns: Vec<&Pattern> = patterns.iter().filter(|p| p.may_match_module(names())).collect();
        let labels = module.image.labels().iter();
        let named = labels.filter(|label| patterns.iter().any(|pattern| names_label(pattern, &module.image, label)));
        out.extend(named.map(|label| UntypedSymbol {
            module: file.name.clone(),
            name: label.name.display().to_owned(),
            offset: label.at,
            inside: module.image.function_containing(label.at).map(|f| f.display_name().into_owned()),
        }));
    }
    out
}

fn names_label(pattern: &Pattern, image: &AnalysedImage, label: &UntypedLabel) -> bool {
    let Pattern::Names { function, .. } = pattern else { return false };
    let spellings = || [label.name.mangled(), label.name.display()].into_iter();
    if !has_wildcard(function) {
        return spellings().any(|name| name == function);
    }
    let visible = label.name.binding() != SymbolBinding::Local && image.function_containing(label.at).is_none();
    visible && spellings().any(|name| glob_match(function, name))
}

/// The warning about symbols that the globs of a request leave out; `None` if there is no such symbol.
pub fn warning(modules: &Modules, patterns: &[String]) -> Option<String> {
    // Names are not considered: a name that no function has is an error, and any other name selects that function.
    let globs: Vec<Pattern> =
        patterns.iter().filter(|text| has_wildcard(text)).map(|text| Pattern::parse(text)).collect();
    let open = untyped(modules, &globs);
    (!open.is_empty()).then(|| {
        format!("symbols without a type are left out, as nothing shows that functions begin there: {}", quoted(&open))
    })
}

/// Two lines about a pattern that matches untyped symbols but no function: the problem, and the remedy. `None` if it matches no such
/// symbol.
pub fn no_match(modules: &Modules, text: &str, pattern: &Pattern) -> Option<(String, String)> {
    let found = untyped(modules, std::slice::from_ref(pattern));
    let first = found.first()?;
    let names = quoted(&found);
    Some(match &first.inside {
        Some(function) => (
            format!(
                "no function matches `{text}`: {names} in {} has no type, and lies inside of `{function}`",
                first.module
            ),
            format!("measure `{function}`"),
        ),
        None => (
            format!(
                "no function matches `{text}`: {names} in {} has no type, and nothing shows that a function begins there",
                first.module
            ),
            "in assembly, `.type NAME, @function` and `.size`, or `.cfi_startproc`, make it a function".to_owned(),
        ),
    })
}

fn quoted(symbols: &[UntypedSymbol]) -> String {
    some_of(symbols.iter().map(|symbol| format!("`{}`", symbol.name)), NAMED)
}
