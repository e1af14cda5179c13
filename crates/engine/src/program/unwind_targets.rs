//! Unwind targets: the points at which a thread continues after an exception or a longjmp. All deeper calls have ended there. So flags are
//! cleared and timers stopped at once, not only at a later entry, and traces know which activations have ended.

use std::collections::BTreeSet;

use ingraft_mdl::ProgramFacts as _;
use ingraft_model::token::Token;
use ingraft_model::{CallSite, Callee, FunctionId, PointKind};
use ingraft_process::Target;

use crate::program::callees::JUMPS;
use crate::program::images::ImageStore;
use crate::program::modules::{ModuleFile, Modules};
use crate::program::stack_switches::{JUMPS_TO, SWITCHES};

/// The first function that a handler calls, and the last one that a cleanup calls, each from the frame that the exception has reached.
const CATCHES: [&str; 2] = ["__cxa_begin_catch", "_Unwind_Resume"];
/// The library in which all jumps of this form are unwind targets, whatever the names of their functions; the library exports few of them.
const LIBC: &str = "libc";
/// Functions with which an exception, or the cancellation of a thread, begins to leave calls.
const RAISES: [&str; 3] = ["_Unwind_RaiseException", "_Unwind_Resume_or_Rethrow", "_Unwind_ForcedUnwind"];
/// The libraries that have such functions.
const LIBRARIES: [&str; 6] = ["libstdc++", "libgcc_s", "libc++abi", "libunwind", "libc", "ld-musl-x86_64"];

/// The points at which a thread leaves calls without a return, each with the token that tells it, as far as their libraries are mapped.
pub fn marks(target: &Target, images: &ImageStore, modules: &Modules) -> Vec<(FunctionId, PointKind, Token)> {
    let targets = unwind_targets(target, images, modules);
    let named = |names: &[&str]| -> BTreeSet<FunctionId> {
        names.iter().flat_map(|name| modules.functions_named(name)).collect()
    };
    let at_entries = |names: &[&str], token| named(names).into_iter().map(move |f| (f, PointKind::Entry, token));
    let continuing = named(&["_Unwind_Resume"]);
    let mut marks: Vec<_> = at_entries(&RAISES, Token::Leaving).collect();
    marks.extend(at_entries(&JUMPS, Token::Leaving));
    marks.extend(at_entries(&SWITCHES, Token::Switched));
    marks.extend(at_entries(&[JUMPS_TO], Token::Switched));
    marks.extend(targets.into_iter().map(|(function, kind)| {
        let goes_on = kind == PointKind::Entry && continuing.contains(&function);
        (function, kind, if goes_on { Token::Continuing } else { Token::Unwound })
    }));
    marks
}

/// The points that a thread passes right after an exception or a longjmp has cut its stack, as far as their libraries are mapped.
pub fn unwind_targets(target: &Target, images: &ImageStore, modules: &Modules) -> Vec<(FunctionId, PointKind)> {
    let has_some = |file: &ModuleFile| file.names.iter().any(|name| LIBRARIES.contains(&name.as_str()));
    // if a library cannot be analysed, states are restored only at later entries
    for error in modules.load_files(target, images, &has_some) {
        tracing::debug!(%error, "exceptions and longjmp are noticed late");
    }
    let caught = CATCHES.iter().flat_map(|name| modules.functions_named(name)).map(|f| (f, PointKind::Entry));
    let jumps = JUMPS.iter().flat_map(|name| modules.functions_named(name));
    let jumps: BTreeSet<FunctionId> = jumps.flat_map(|f| longjmps(modules, f)).chain(unnamed(modules)).collect();
    caught.chain(jumps.into_iter().map(|f| (f, PointKind::Exit))).collect()
}

/// The functions of the C library that make such a jump, including those without names.
fn unnamed(modules: &Modules) -> impl Iterator<Item = FunctionId> + '_ {
    let libc = modules.loaded().filter(|(_, file, _)| file.names.iter().any(|name| name == LIBC));
    libc.flat_map(|(module, _, m)| {
        let numbers = m.image.longjmps().filter_map(|f| m.number_at(f.start()));
        numbers.map(move |function| FunctionId { module, function })
    })
}

/// A function and its callees, as far as they make such a jump.
fn longjmps(modules: &Modules, function: FunctionId) -> Vec<FunctionId> {
    let Some((_, module, f)) = modules.resolve(function) else { return Vec::new() };
    let calls = module.image.call_sites(f).unwrap_or_default();
    let callee = |call: &CallSite| match call.callee {
        Callee::Direct(at) => module.number_at(at),
        Callee::Slot(_) | Callee::Computed => None,
    };
    let callees = calls.iter().filter_map(callee).map(|number| FunctionId { function: number, ..function });
    let longjmps = |f: &FunctionId| modules.resolve(*f).is_some_and(|(_, m, f)| m.image.is_longjmp(f));
    std::iter::once(function).chain(callees).filter(longjmps).collect()
}
