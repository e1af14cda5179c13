//! Callees of the calls in a program: the function that a call names, and the function whose address its slot holds now.

use std::collections::BTreeSet;

use ingraft_model::{Avma, CallSite, Callee, FunctionId, ModuleId, Svma};
use ingraft_process::Target;

use crate::program::modules::{Module, ModuleFile, Modules};

/// Whether it is certain that a function has no exit.
pub fn never_returns(modules: &Modules, function: FunctionId) -> bool {
    modules
        .resolve(function)
        .is_some_and(|(_, module, f)| module.image.exit_sites(f).is_ok_and(|exits| exits.is_empty()))
}

/// Functions that a call may call: by the address in the call, through a stub of the linker, or by the present content of the call's slot.
/// A slot that the loader has not filled yet is resolved by the name that the loader will look up, which may have several versions. A
/// callee whose address is computed at the call is not known.
pub fn callees(
    target: &Target,
    modules: &Modules,
    caller: FunctionId,
    module: &Module,
    call: &CallSite,
) -> Vec<FunctionId> {
    if let Some(named) = named(module, caller, call) {
        return named.into_iter().collect();
    }
    let Some(slot) = slot(module, call) else { return Vec::new() };
    let mut word = [0; 8];
    if target.read(slot.to_avma(module.bias), &mut word).is_err() {
        return Vec::new();
    }
    let pointer = Avma(u64::from_le_bytes(word));
    if let Some(function) = modules.function_at(pointer) {
        return vec![function];
    }
    // an unfilled slot leads back to the loader through the stub, or still has the content of the file
    let unfilled =
        module.image.is_stub(pointer.to_svma(module.bias)) || module.image.is_stub(Svma(pointer.0)) || pointer.0 == 0;
    let name = module.image.import_at(slot).filter(|_| unfilled);
    name.map_or_else(Vec::new, |name| modules.functions_named_exactly(name))
}

/// The function whose address a call instruction contains. `None` if the call contains no address, or that of a linker stub; `Some(None)`
/// if no function begins at the address.
pub fn named(module: &Module, caller: FunctionId, call: &CallSite) -> Option<Option<FunctionId>> {
    let Callee::Direct(at) = call.callee else { return None };
    let function = |number| FunctionId { module: caller.module, function: number };
    module.image.stub_slot(at).is_none().then(|| module.number_at(at).map(function))
}

/// Functions whose last step, or that of a function that they call, jumps with the stack pointer of the frame that it leads to. By the last
/// one, glibc reaches the cleanup handlers of a thread that is cancelled.
pub const JUMPS: [&str; 5] = ["longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "__longjmp_cancel"];
/// The libraries of which a program that throws exceptions has one.
const UNWINDERS: [&str; 4] = ["libstdc++", "libgcc_s", "libc++abi", "libunwind"];

/// Functions that code with exceptions names.
const EXCEPTIONS: [&str; 4] = ["__cxa_begin_catch", "__cxa_throw", "_Unwind_Resume", "_Unwind_RaiseException"];

/// Whether a thread may leave calls of functions without a return: if a library for exceptions is mapped, or the module of a function names
/// longjmp or throws.
pub fn may_unwind(modules: &Modules, functions: &[FunctionId]) -> bool {
    let has_one = |file: &ModuleFile| file.names.iter().any(|name| UNWINDERS.contains(&name.as_str()));
    let users: BTreeSet<ModuleId> = functions.iter().map(|function| function.module).collect();
    let names_one = |module: ModuleId| {
        let module = modules.module(module).map(|(_, module)| module);
        let names = || JUMPS.iter().chain(&EXCEPTIONS);
        let imports = |m: &Module| m.image.imports_any(&JUMPS) || m.image.imports_any(&EXCEPTIONS);
        module.is_some_and(|m| imports(m) || names().any(|name| !m.named(name).is_empty()))
    };
    modules.mapped().any(has_one) || users.into_iter().any(names_one)
}

/// Names of functions that may return several times from one call.
const RETURN_TWICE: [&str; 7] = ["setjmp", "_setjmp", "sigsetjmp", "__sigsetjmp", "getcontext", "vfork", "__vfork"];

/// Whether a call may return several times, by the name of its callee. Calls through pointers do not.
pub fn may_return_twice(module: &Module, caller: FunctionId, call: &CallSite) -> bool {
    let is_one = |name: &str| RETURN_TWICE.contains(&name);
    match named(module, caller, call) {
        Some(Some(function)) => {
            let function = module.function(function.function);
            function.is_some_and(|f| f.names().iter().any(|name| is_one(name.mangled())))
        }
        Some(None) | None => slot(module, call).and_then(|slot| module.image.import_at(slot)).is_some_and(is_one),
    }
}

fn slot(module: &Module, call: &CallSite) -> Option<Svma> {
    match call.callee {
        Callee::Direct(at) => module.image.stub_slot(at),
        Callee::Slot(slot) => Some(slot),
        Callee::Computed => None,
    }
}
