//! Signal handlers that may end their thread: by `pthread_exit`, or at a point at which a cancelled thread ends. The unwinder then begins in
//! the handler, and passes the instruction that the signal has interrupted. In a copy it finds no table there, and the destructors of all
//! callers do not run. So functions of such programs are not copied.

use std::collections::BTreeSet;

use ingraft_model::{Avma, AvmaRange, Callee, FunctionId, ModuleId, Svma};
use ingraft_process::Target;
use rustc_hash::FxHashSet;

use super::cancellation;
use super::images::ImageStore;
use super::modules::{Module, ModuleFile, Modules};

/// Functions that end their thread.
const ENDS: [&str; 2] = ["pthread_exit", "thrd_exit"];
/// Names of C libraries and loaders, whose functions are known by their names.
const C_LIBRARIES: [&str; 5] = ["libc", "libpthread", "ld-linux-x86-64", "ld-musl-x86_64", "libc.musl-x86_64"];
/// Largest number of functions that are followed from a handler. One that calls more is taken for one that may end its thread. In a program
/// whose handlers report errors, one may call nearly all functions of the program.
const FUNCTIONS_MAX: usize = 200_000;

/// Name of the first of these handlers that may call a function that ends its thread, with that function; `None` if none does. Calls through
/// pointers are not followed. A handler about which the engine cannot tell is taken for one that may end its thread. `cancels` says whether
/// threads of the program may be cancelled.
pub fn departing(
    target: &Target,
    modules: &Modules,
    images: &ImageStore,
    handlers: BTreeSet<Avma>,
    cancels: bool,
) -> Option<String> {
    let ending = (!cancels).then(|| modules.texts_that_end_threads(target));
    let search = Search { target, modules, images, cancels, ending };
    let ends = |at: Avma| Some((at, way_to_end(search.at(at), |function| search.callees(function))?));
    let (handler, last) = handlers.into_iter().find_map(ends)?;
    let name = modules.name_at(handler).unwrap_or_else(|| format!("{:#x}", handler.0));
    let last = last.map(|function| modules.focus_name(function).unwrap_or_default());
    let last = last.map(|(module, function)| format!("{module}:{function}")).filter(|last| *last != name);
    Some(last.map_or_else(|| name.clone(), |last| format!("{name} (it leads to {last})")))
}

/// The function by which code that has led to this step ends its thread, or that cannot be followed; `Some(None)` for the code itself. `None`
/// if no function ends its thread to which the code leads.
fn way_to_end(first: ReachedCode, callees: impl Fn(FunctionId) -> ReachedCode) -> Option<Option<FunctionId>> {
    let ReachedCode::Calls(mut work) = first else { return Some(None) };
    let mut seen: FxHashSet<FunctionId> = work.iter().copied().collect();
    while let Some(function) = work.pop() {
        match callees(function) {
            ReachedCode::Calls(callees) if seen.len() < FUNCTIONS_MAX => {
                work.extend(callees.into_iter().filter(|callee| seen.insert(*callee)));
            }
            ReachedCode::Calls(_) | ReachedCode::Ends => return Some(Some(function)),
        }
    }
    None
}

/// A search for functions that end their thread.
struct Search<'a> {
    target: &'a Target,
    modules: &'a Modules,
    images: &'a ImageStore,
    /// Whether threads of the program may be cancelled.
    cancels: bool,
    /// The text whose functions may call one that ends its thread; `None` if all may, because threads may be cancelled.
    ending: Option<Vec<AvmaRange>>,
}

/// Answer about code that the search has reached.
enum ReachedCode {
    /// It ends its thread, calls a function that does, or cannot be followed.
    Ends,
    /// It is, or calls, these functions.
    Calls(Vec<FunctionId>),
}

impl Search<'_> {
    fn ends(&self, name: &str) -> bool {
        ENDS.contains(&name) || self.cancels && cancellation::is_point(name)
    }

    /// The file whose text contains an address.
    fn file_at(&self, at: Avma) -> Option<&ModuleFile> {
        self.modules.mapped().find(|file| file.text().contains(&at))
    }

    /// The function at an address, whose module is analysed if need be; none in a C library, or where none can lead to the end of a thread.
    fn at(&self, at: Avma) -> ReachedCode {
        match self.file_at(at) {
            None => return ReachedCode::Ends,
            Some(file) if file.names.iter().any(|name| C_LIBRARIES.contains(&name.as_str())) => {
                return ReachedCode::Calls(Vec::new());
            }
            Some(_) if self.ending.as_ref().is_some_and(|texts| !texts.iter().any(|text| text.contains(&at))) => {
                return ReachedCode::Calls(Vec::new());
            }
            Some(_) => {}
        }
        let holds = |file: &ModuleFile| file.is_mapped && file.text().contains(&at);
        for error in self.modules.load_files(self.target, self.images, &holds) {
            tracing::debug!(%error, "a signal handler cannot be followed");
        }
        let loaded = self.modules.loaded().find(|(_, file, _)| holds(file));
        loaded.map_or(ReachedCode::Ends, |(number, _, module)| self.within(number, module, at.to_svma(module.bias)))
    }

    /// The function in which control is that arrives at an address of a module.
    fn within(&self, number: ModuleId, module: &Module, at: Svma) -> ReachedCode {
        if module.image.is_stub(at) {
            return module.image.stub_slot(at).map_or(ReachedCode::Ends, |slot| self.through(module, slot));
        }
        let function = module.image.function_reached_at(at).and_then(|f| module.number_at(f.start()));
        function.map_or(ReachedCode::Ends, |function| ReachedCode::Calls(vec![FunctionId { module: number, function }]))
    }

    fn callees(&self, function: FunctionId) -> ReachedCode {
        let Some((_, module, f)) = self.modules.resolve(function) else { return ReachedCode::Ends };
        if f.names().iter().any(|name| self.ends(name.mangled())) {
            return ReachedCode::Ends;
        }
        let mut callees = Vec::new();
        for callee in module.image.callees(f) {
            let step = match callee {
                // Programs without libraries call weak functions that are not there at address 0.
                Callee::Direct(at) if !module.image.is_text(at) => continue,
                Callee::Direct(at) => self.within(function.module, module, at),
                Callee::Slot(slot) => self.through(module, slot),
                Callee::Computed => continue,
            };
            match step {
                ReachedCode::Ends => return ReachedCode::Ends,
                ReachedCode::Calls(its) => callees.extend(its),
            }
        }
        ReachedCode::Calls(callees)
    }

    /// The function whose address a slot holds now. If the loader has not looked it up yet, the functions of that name in the modules that
    /// were analysed.
    fn through(&self, module: &Module, slot: Svma) -> ReachedCode {
        let name = module.image.import_at(slot);
        if name.is_some_and(|name| self.ends(name)) {
            return ReachedCode::Ends;
        }
        let filled = self.target.read_u64(slot.to_avma(module.bias)).map(Avma);
        // A call through a slot that leads to no file is one through a pointer.
        let Some(at) = filled.ok().filter(|at| self.file_at(*at).is_some()) else {
            return ReachedCode::Calls(Vec::new());
        };
        let is_stub = |m: &Module| m.image.is_stub(at.to_svma(m.bias));
        if self.modules.loaded().any(|(_, file, m)| file.is_mapped && file.text().contains(&at) && is_stub(m)) {
            return ReachedCode::Calls(name.map(|name| self.modules.functions_named_exactly(name)).unwrap_or_default());
        }
        self.at(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f(function: u32) -> FunctionId {
        FunctionId { module: ModuleId(0), function }
    }

    fn calls(functions: &[u32]) -> ReachedCode {
        ReachedCode::Calls(functions.iter().map(|function| f(*function)).collect())
    }

    #[test]
    fn a_handler_ends_its_thread_if_any_callee_does() {
        // 0 calls 1 and 2; 1 calls 3 and itself; 2 and 3 call each other; 4 ends the thread
        let callees = |ending: Option<u32>| {
            move |function: FunctionId| match function.function {
                n if Some(n) == ending => ReachedCode::Ends,
                0 => calls(&[1, 2]),
                1 => calls(&[3, 1]),
                2 => calls(&[3]),
                3 => calls(&[2]),
                _ => ReachedCode::Ends,
            }
        };
        assert_eq!(way_to_end(ReachedCode::Ends, callees(None)), Some(None), "it cannot be followed");
        assert_eq!(way_to_end(calls(&[]), callees(None)), None, "code of a C library is known by its name");
        assert_eq!(way_to_end(calls(&[0]), callees(None)), None, "all callees return");
        for ending in 0..4 {
            assert_eq!(way_to_end(calls(&[0]), callees(Some(ending))), Some(Some(f(ending))));
        }
        assert_eq!(way_to_end(calls(&[2]), callees(Some(1))), None, "2 does not call 1");
        assert_eq!(way_to_end(calls(&[2, 4]), callees(None)), Some(Some(f(4))));
    }

    #[test]
    fn a_handler_that_calls_too_many_functions_may_end_its_thread() {
        let most = FUNCTIONS_MAX as u32;
        let chain = |length: u32| {
            move |function: FunctionId| match function.function + 1 < length {
                true => calls(&[function.function + 1]),
                false => calls(&[]),
            }
        };
        assert_eq!(way_to_end(calls(&[0]), chain(most - 1)), None);
        assert!(way_to_end(calls(&[0]), chain(most)).is_some());
    }
}
