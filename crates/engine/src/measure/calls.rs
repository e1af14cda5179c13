//! Calls and stores of definitions: finds the functions that they call and the variables that they set, and refuses those where that could
//! go wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ingraft_analysis::FunctionKind;
use ingraft_model::{Avma, Called, Instrumentation, IntegerWidth, Snippet, Svma};
use ingraft_process::{Mapping, Target};

use crate::error::{Error, Reason};
use crate::measure::request::{Missing, WantedPair, resolve_patterns};
use crate::program::callees::never_returns;
use crate::program::images::ImageStore;
use crate::program::modules::{Module, Modules};
use crate::program::pattern::{Pattern, has_wildcard};

/// Names of the C library, which no program unloads.
const C_LIBRARY: [&str; 2] = ["libc", "musl"];

/// The functions that code calls by their names.
fn named(instrumentation: &Instrumentation) -> impl Iterator<Item = &String> {
    let calls = instrumentation.insertions.iter().flat_map(|i| i.snippet.calls());
    calls.filter_map(|call| match &call.callee {
        Called::Named(name) => Some(name),
        Called::At(_) => None,
    })
}

/// The integers of the program that code sets.
fn stores(instrumentation: &Instrumentation) -> impl Iterator<Item = (Avma, IntegerWidth)> {
    instrumentation.insertions.iter().flat_map(|i| i.snippet.stores())
}

/// Fails unless the program itself may write the integers that code sets.
fn are_writable(target: &Target, stores: &BTreeSet<(Avma, IntegerWidth)>) -> Result<(), Error> {
    if stores.is_empty() {
        return Ok(());
    }
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    for (at, width) in stores {
        let end = at.0.saturating_add(width.bytes().into());
        let inside = |m: &&Mapping| m.range.contains(at);
        if maps.iter().find(inside).is_none_or(|m| !m.write || m.range.end.0 < end) {
            let what = format!("the variable at {:#x} cannot be set: the program itself may not write there", at.0);
            let hint = "it is a constant, or became one when the program was loaded";
            return Err(Error::new(Reason::CannotSet, what, hint).about(target.pid()));
        }
    }
    Ok(())
}

/// Whether any snippet of an instrumentation calls functions of the program.
pub fn has_calls(instrumentation: &Instrumentation) -> bool {
    instrumentation.insertions.iter().any(|i| !i.snippet.calls().is_empty())
}

/// Replaces the names of functions by their addresses in all snippets. Fails if a function cannot be called, or if calls or stores are not
/// `allowed`.
pub fn place(
    (target, store, modules): (&Target, &ImageStore, &Modules),
    wanted: &mut [WantedPair],
    allowed: bool,
    progress: &dyn Fn(&str),
) -> Result<(), Error> {
    let names: BTreeSet<String> = wanted.iter().flat_map(|w| named(&w.instrumentation)).cloned().collect();
    let stores: BTreeSet<(Avma, IntegerWidth)> = wanted.iter().flat_map(|w| stores(&w.instrumentation)).collect();
    let denied = |what, hint| Err(Error::new(Reason::CallsNotAllowed, what, hint));
    if let (Some(first), false) = (names.first(), allowed) {
        let hint = "--allow-calls (Measure.allow_calls) permits it: it will run at places that its author did not plan";
        return denied(format!("a definition calls `{first}`, a function of the program"), hint);
    }
    let writes = wanted.iter().flat_map(|w| &w.instrumentation.insertions).any(|i| i.snippet.writes());
    if (writes || !stores.is_empty()) && !allowed {
        let hint =
            "--allow-calls (Measure.allow_calls) permits it: the program will do what it does with the new value";
        return denied("a definition sets a variable of the program".to_owned(), hint);
    }
    are_writable(target, &stores)?;
    if names.is_empty() {
        return Ok(());
    }
    let patterns: Vec<Pattern> = names.iter().map(|name| Pattern::parse(name)).collect();
    modules.load(target, store, &patterns, progress);
    let found = names.into_iter().map(|name| find(target, modules, &name).map(|at| (name, at)));
    let found: BTreeMap<String, Avma> = found.collect::<Result<_, _>>()?;
    for insertion in wanted.iter_mut().flat_map(|w| &mut w.instrumentation.insertions) {
        if !insertion.snippet.calls().is_empty() {
            insertion.snippet = placed(&insertion.snippet, &found)?;
        }
    }
    Ok(())
}

fn placed(snippet: &Snippet, found: &BTreeMap<String, Avma>) -> Result<Arc<Snippet>, Error> {
    let mut snippet = snippet.clone();
    snippet.place_callees(&mut |called| match called {
        Called::Named(name) => match found.get(name) {
            Some(at) => Ok(Called::At(*at)),
            None => Err(refusal(name, "it was not looked for")),
        },
        Called::At(at) => Ok(Called::At(*at)),
    })?;
    Ok(Arc::new(snippet))
}

fn refusal(name: &str, why: &str) -> Error {
    let what = format!("`{name}` cannot be called: {why}");
    Error::new(Reason::CannotCall, what, "call another function, or measure without the call")
}

/// The function that a resolver of a module has chosen, read from a slot of the same module.
fn chosen(target: &Target, modules: &Modules, module: &Module, resolver: Svma) -> Option<Avma> {
    let slot = module.image.chosen_by(resolver)?;
    let mut word = [0; 8];
    target.read(slot.to_avma(module.bias), &mut word).ok()?;
    let at = Avma(u64::from_le_bytes(word));
    // accepts only another function of the same module: a slot that is not filled yet holds the resolver itself
    let function = modules.function_at(at)?;
    let (_, of, known) = modules.resolve(function)?;
    let same = std::ptr::eq(of, module) && known.start() != resolver;
    (same && !never_returns(modules, function)).then_some(at)
}

/// Address of the one function with that name.
fn find(target: &Target, modules: &Modules, name: &str) -> Result<Avma, Error> {
    match Pattern::parse(name) {
        Pattern::Names { function, .. } if !has_wildcard(&function) => {}
        Pattern::Names { .. } | Pattern::Offset { .. } => {
            return Err(refusal(name, "it must be named as `NAME` or `MODULE:NAME`"));
        }
    }
    let found = resolve_patterns(modules, &[name.to_owned()], Missing::Fails)?;
    let [function] = found.as_slice() else {
        return Err(refusal(name, &format!("{} functions have that name", found.len())));
    };
    let Some((file, module, known)) = modules.resolve(*function) else {
        return Err(refusal(name, "its module is gone"));
    };
    let stays = file.is_program || file.names.iter().any(|n| C_LIBRARY.contains(&n.as_str()));
    // if there are debug symbols, a resolver also has a name of its own
    let is_resolver = known.kind() == FunctionKind::IfuncResolver || known.names().iter().any(|name| name.is_ifunc());
    let why = match known.kind() {
        FunctionKind::IfuncResolver | FunctionKind::Normal if is_resolver && stays => {
            let chosen = chosen(target, modules, module, known.start());
            return chosen.ok_or_else(|| {
                refusal(name, "which code it means was chosen when the program started, and nothing tells which")
            });
        }
        FunctionKind::IfuncResolver | FunctionKind::Stub => "it is a stub of the linker",
        FunctionKind::Normal if !stays => "a library other than the C library could be unloaded while code calls it",
        FunctionKind::Normal if module.image.elf().is_go() => "the stacks of Go have no room for it",
        FunctionKind::Normal if never_returns(modules, *function) => "it never returns",
        FunctionKind::Normal => return Ok(known.start().to_avma(module.bias)),
    };
    Err(refusal(name, why))
}
