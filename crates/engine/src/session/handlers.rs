//! Signal handlers that may end their thread: by `pthread_exit`, or at a point at which a cancelled thread ends. The unwinder then begins in
//! the handler, and passes the instruction that the signal has interrupted. In a copy it finds no table there, and the destructors of all
//! callers do not run. So functions of such programs are not copied.

use ingraft_analysis::Unwinder;
use ingraft_model::{Avma, AvmaRange, Callee, FunctionRef as MdlFunction, ModuleRef, Svma};
use rustc_hash::FxHashSet;

use crate::error::Error;
use crate::program::cancellation;
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::undertaking;

use super::control::Control;
use super::driver::Session;

/// Functions that end their thread.
const ENDS: [&str; 2] = ["pthread_exit", "thrd_exit"];
/// Names of C libraries and loaders, whose functions are known by their names.
const C_LIBRARIES: [&str; 5] = ["libc", "libpthread", "ld-linux-x86-64", "ld-musl-x86_64", "libc.musl-x86_64"];
/// Largest number of functions that are followed from a handler. One that calls more is taken for one that may end its thread. In a program
/// whose handlers report errors, one may call nearly all functions of the program.
const FUNCTIONS_MAX: usize = 200_000;

/// Result of the last look at the handlers of a program.
#[derive(Default)]
pub(super) struct Handlers {
    /// The signals that had handlers at the last look, and whether threads could be cancelled. `None` before the first one.
    seen: Option<(u64, bool)>,
}

impl Session {
    /// Looks whether a signal handler may end its thread, if the program has handlers and code that ends threads so, and if handlers were
    /// set or taken away since the last look. A handler that replaces another one is not noticed. Calls through pointers are not followed.
    /// A handler about which the engine cannot tell is taken for one that may end its thread.
    pub(super) fn look_at_handlers(&self, control: &mut Control) -> Result<(), Error> {
        let failed = |e| self.failed(e);
        let departures = control.modules.departures(&self.target);
        let handled = if departures.is_possible() { self.target.handled().map_err(failed)? } else { 0 };
        if control.handlers.seen == Some((handled, departures.cancels)) {
            return Ok(());
        }
        let mut found = None;
        if handled != 0 {
            undertaking::touch()?;
            let handlers = self.target.signal_handlers(handled).map_err(failed)?;
            let search = Search::of(self, &control.modules, departures.cancels);
            found = handlers.into_iter().find_map(|at| search.departing(at));
        }
        control.modules.set_departing_handler(found);
        control.handlers.seen = Some((handled, departures.cancels));
        Ok(())
    }

    /// Looks at the handlers as [`Session::look_at_handlers`] does, between requests. Returns whether functions are copied while one may end
    /// its thread. A request may have noticed the handler first, so it does not matter whether it was known.
    pub(super) fn notice_handlers(&self, control: &mut Control) -> bool {
        if let Err(error) = self.look_at_handlers(control) {
            tracing::debug!(%error, "the signal handlers were not looked at");
        }
        let departs = matches!(control.modules.unwinder(), Some((Unwinder::Handler, _)));
        departs && control.attached.as_ref().is_some_and(|attached| attached.woven.copied().next().is_some())
    }
}

/// A search for functions that end their thread.
struct Search<'a> {
    session: &'a Session,
    modules: &'a Modules,
    /// Whether threads of the program may be cancelled.
    cancels: bool,
    /// The text whose functions may call one that ends its thread; `None` if all may, because threads may be cancelled.
    ending: Option<Vec<AvmaRange>>,
}

/// Answer about code that the search has reached.
enum Step {
    /// It ends its thread, calls a function that does, or cannot be followed.
    Ends,
    /// It is, or calls, these functions.
    Calls(Vec<MdlFunction>),
}

impl<'a> Search<'a> {
    fn of(session: &'a Session, modules: &'a Modules, cancels: bool) -> Self {
        let ending = (!cancels).then(|| modules.texts_that_end_threads(&session.target));
        Search { session, modules, cancels, ending }
    }

    /// Name of the handler at an address, with the function that may end the thread; `None` if no function does to which the handler leads.
    fn departing(&self, handler: Avma) -> Option<String> {
        let name = || self.modules.name_at(handler).unwrap_or_else(|| format!("{:#x}", handler.0));
        let Step::Calls(mut work) = self.at(handler) else { return Some(name()) };
        let mut seen: FxHashSet<MdlFunction> = work.iter().copied().collect();
        while let Some(function) = work.pop() {
            match self.callees(function) {
                Step::Calls(callees) if seen.len() < FUNCTIONS_MAX => {
                    work.extend(callees.into_iter().filter(|callee| seen.insert(*callee)));
                }
                Step::Calls(_) | Step::Ends => {
                    let (module, function) = self.modules.focus_name(function).unwrap_or_default();
                    let (name, last) = (name(), format!("{module}:{function}"));
                    return Some(if name == last { name } else { format!("{name} (it leads to {last})") });
                }
            }
        }
        None
    }

    fn ends(&self, name: &str) -> bool {
        ENDS.contains(&name) || self.cancels && cancellation::is_point(name)
    }

    /// The file whose text contains an address.
    fn file_at(&self, at: Avma) -> Option<&ModuleFile> {
        self.modules.mapped().find(|file| file.text().contains(&at))
    }

    /// The function at an address, whose module is analysed if need be; none in a C library, or where none can lead to the end of a thread.
    fn at(&self, at: Avma) -> Step {
        match self.file_at(at) {
            None => return Step::Ends,
            Some(file) if file.names.iter().any(|name| C_LIBRARIES.contains(&name.as_str())) => {
                return Step::Calls(Vec::new());
            }
            Some(_) if self.ending.as_ref().is_some_and(|texts| !texts.iter().any(|text| text.contains(&at))) => {
                return Step::Calls(Vec::new());
            }
            Some(_) => {}
        }
        let holds = |file: &ModuleFile| file.is_mapped && file.text().contains(&at);
        for error in self.modules.load_files(&self.session.target, &self.session.context.images, &holds) {
            tracing::debug!(%error, "a signal handler cannot be followed");
        }
        let loaded = self.modules.loaded().find(|(_, file, _)| holds(file));
        loaded.map_or(Step::Ends, |(number, _, module)| self.within(number, module, at.to_svma(module.bias)))
    }

    /// The function in which control is that arrives at an address of a module.
    fn within(&self, number: ModuleRef, module: &Module, at: Svma) -> Step {
        if module.image.is_stub(at) {
            return module.image.stub_slot(at).map_or(Step::Ends, |slot| self.through(module, slot));
        }
        let function = module.image.function_reached_at(at).and_then(|f| module.number_at(f.start()));
        function.map_or(Step::Ends, |function| Step::Calls(vec![MdlFunction { module: number, function }]))
    }

    fn callees(&self, function: MdlFunction) -> Step {
        let Some((_, module, f)) = self.modules.resolve(function) else { return Step::Ends };
        if f.names().iter().any(|name| self.ends(name.mangled())) {
            return Step::Ends;
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
                Step::Ends => return Step::Ends,
                Step::Calls(its) => callees.extend(its),
            }
        }
        Step::Calls(callees)
    }

    /// The function whose address a slot holds now. If the loader has not looked it up yet, the functions of that name in the modules that
    /// were analysed.
    fn through(&self, module: &Module, slot: Svma) -> Step {
        let name = module.image.import_at(slot);
        if name.is_some_and(|name| self.ends(name)) {
            return Step::Ends;
        }
        let filled = self.session.target.read_u64(slot.to_avma(module.bias)).map(Avma);
        // A call through a slot that leads to no file is one through a pointer.
        let Some(at) = filled.ok().filter(|at| self.file_at(*at).is_some()) else { return Step::Calls(Vec::new()) };
        let is_stub = |m: &Module| m.image.is_stub(at.to_svma(m.bias));
        if self.modules.loaded().any(|(_, file, m)| file.is_mapped && file.text().contains(&at) && is_stub(m)) {
            return Step::Calls(name.map(|name| self.modules.functions_named_exactly(name)).unwrap_or_default());
        }
        self.at(at)
    }
}
