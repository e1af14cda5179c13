//! Requests that are about whole functions.

use ingraft_codegen::TextSpace;
use ingraft_model::{FunctionId, ModuleId};
use rustc_hash::FxHashMap;

use crate::error::{Error, Reason};
use crate::measure::request::{refuse_many, resolve_patterns};
use crate::program::modules::Modules;
use crate::program::pattern::{Pattern, SourceLine};
use crate::session::KindRequest;
use crate::weaving::trial::text_of;

/// The whole functions that a request names. `family` tells whether fork children of the target may be measured with it.
pub fn functions(asked: &KindRequest<'_>, family: bool) -> Result<Vec<FunctionId>, Error> {
    let request = asked.request;
    refuse_parts(&request.functions)?;
    if request.keep || request.family && !family {
        let what = "a profile or trace ends with its command, and only coverage and contexts have fork children";
        return Err(Error::new(Reason::ProfileKept, what, "leave out --no-remove and --follow fork"));
    }
    let functions = resolve_patterns(asked.modules, &request.functions, asked.missing)?;
    refuse_many(functions.len(), request)?;
    Ok(functions)
}

/// Fails if a name is that of a part of a function.
fn refuse_parts(names: &[String]) -> Result<(), Error> {
    let is_part = |text: &&String| SourceLine::parse(text).is_some() || Pattern::split_parts(text).1.is_some();
    let Some(part) = names.iter().find(is_part) else { return Ok(()) };
    let what = format!("`{part}` is a part of a function, and profiles and traces are of whole functions");
    Err(Error::new(Reason::PartInProfile, what, "name the function"))
}

/// The text of each function's module, with nothing woven into it.
pub fn texts(modules: &Modules, functions: &[FunctionId]) -> FxHashMap<ModuleId, TextSpace> {
    let mut texts = FxHashMap::default();
    for function in functions {
        texts.entry(function.module).or_insert_with(|| text_of(modules, function.module));
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_functions_are_refused() {
        let refused = |name: &str| refuse_parts(&["whole".to_owned(), name.to_owned()]).err();
        assert!(refused("libc.so.6:mal*").is_none());
        for part in ["main.c:12", "main#0x1a"] {
            let error = refused(part).expect("refused");
            assert_eq!(error.reason, Reason::PartInProfile);
            assert!(error.what.contains(part), "{}", error.what);
        }
    }
}
