//! Signal handlers that may end their thread: by `pthread_exit`, or at a point at which a cancelled thread ends. The unwinder then begins in
//! the handler, and passes the instruction that the signal has interrupted. In a copy it finds no table there, and the destructors of all
//! callers do not run. So functions of such programs are not copied.

use std::collections::BTreeSet;

use ingraft_analysis::Unwinder;
use ingraft_model::{Avma, CallSite, Callee, EdgeTarget, FunctionRef as MdlFunction, Svma};

use crate::error::Error;
use crate::program::modules::{Module, ModuleFile, Modules};
use crate::undertaking;

use super::control::Control;
use super::driver::Session;

/// Functions that end their thread.
const ENDS: [&str; 2] = ["pthread_exit", "thrd_exit"];
/// Functions in which a thread ends that was cancelled before (pthreads(7), "Cancellation points"), as far as handlers may call them.
const CANCELLATION_POINTS: [&str; 64] = [
    "accept",
    "accept4",
    "clock_nanosleep",
    "close",
    "connect",
    "creat",
    "dprintf",
    "epoll_pwait",
    "epoll_wait",
    "fclose",
    "fcntl",
    "fflush",
    "fopen",
    "fprintf",
    "fputc",
    "fputs",
    "fread",
    "fsync",
    "fwrite",
    "getc",
    "getchar",
    "getline",
    "lockf",
    "msgrcv",
    "msgsnd",
    "msync",
    "nanosleep",
    "open",
    "open64",
    "openat",
    "pause",
    "perror",
    "poll",
    "ppoll",
    "pread",
    "printf",
    "pselect",
    "pthread_cond_timedwait",
    "pthread_cond_wait",
    "pthread_join",
    "pthread_testcancel",
    "putc",
    "putchar",
    "puts",
    "pwrite",
    "read",
    "readv",
    "recv",
    "recvfrom",
    "recvmsg",
    "select",
    "sem_timedwait",
    "sem_wait",
    "send",
    "sendmsg",
    "sendto",
    "sigsuspend",
    "sigwait",
    "sleep",
    "syslog",
    "usleep",
    "waitpid",
    "write",
    "writev",
];
/// Names of C libraries and loaders, whose functions are known by their names.
const C_LIBRARIES: [&str; 5] = ["libc", "libpthread", "ld-linux-x86-64", "ld-musl-x86_64", "libc.musl-x86_64"];
/// Largest number of functions that are followed from the handlers of a program.
const FUNCTIONS_MAX: usize = 2000;

/// Result of the last look at the handlers of a program.
#[derive(Default)]
pub(super) struct Handlers {
    /// The signals that had handlers at the last look. `None` before the first one.
    seen: Option<u64>,
}

impl Session {
    /// Looks whether a signal handler may end its thread, if the program has handlers and code that ends threads so, and if handlers were
    /// set or taken away since the last look. A handler that replaces another one is not noticed. Calls through pointers are not followed.
    pub(super) fn look_at_handlers(&self, control: &mut Control) -> Result<(), Error> {
        let failed = |e| self.failed(e);
        let departures = control.modules.departures(&self.target);
        let handled = if departures.is_possible() { self.target.handled().map_err(failed)? } else { 0 };
        if control.handlers.seen == Some(handled) {
            return Ok(());
        }
        let mut found = None;
        if handled != 0 {
            undertaking::touch()?;
            let handlers = self.target.signal_handlers(handled).map_err(failed)?;
            found = handlers.into_iter().find(|at| self.may_end_thread(&control.modules, *at, departures.cancels));
        }
        let name = |at: Avma| control.modules.name_at(at).unwrap_or_else(|| format!("{:#x}", at.0));
        let named = found.map(name);
        control.modules.set_departing_handler(named);
        control.handlers.seen = Some(handled);
        Ok(())
    }

    /// Looks at the handlers as [`Session::look_at_handlers`] does, between requests. Returns whether one was found that was not known.
    pub(super) fn notice_handlers(&self, control: &mut Control) -> bool {
        let departs = |control: &Control| matches!(control.modules.unwinder(), Some((Unwinder::Handler, _)));
        let before = departs(control);
        if let Err(error) = self.look_at_handlers(control) {
            tracing::debug!(%error, "the signal handlers were not looked at");
        }
        !before && departs(control)
    }

    /// Whether code that begins at an address may call a function that ends its thread.
    fn may_end_thread(&self, modules: &Modules, handler: Avma, cancels: bool) -> bool {
        let search = Search { session: self, modules, cancels };
        let Some(first) = search.function_at(handler) else { return false };
        let (mut work, mut seen) = (vec![first], BTreeSet::from([first]));
        while let Some(function) = work.pop() {
            match search.callees(function) {
                Step::Ends => return true,
                Step::Calls(callees) => {
                    let new = callees.into_iter().filter(|callee| seen.len() < FUNCTIONS_MAX && seen.insert(*callee));
                    work.extend(new);
                }
            }
        }
        false
    }
}

/// A search for functions that end their thread.
struct Search<'a> {
    session: &'a Session,
    modules: &'a Modules,
    /// Whether threads of the program may be cancelled.
    cancels: bool,
}

/// Answer about a function that the search has reached.
enum Step {
    /// It ends its thread, or calls a function that does.
    Ends,
    /// It calls these functions.
    Calls(Vec<MdlFunction>),
}

impl Search<'_> {
    fn ends(&self, name: &str) -> bool {
        ENDS.contains(&name) || self.cancels && CANCELLATION_POINTS.contains(&name)
    }

    /// The function at an address, whose module is analysed if need be; `None` in a C library.
    fn function_at(&self, at: Avma) -> Option<MdlFunction> {
        let holds = |file: &ModuleFile| {
            file.text().contains(&at) && !file.names.iter().any(|name| C_LIBRARIES.contains(&name.as_str()))
        };
        self.modules.mapped().find(|file| holds(file))?;
        for error in self.modules.load_files(&self.session.target, &self.session.context.images, &holds) {
            tracing::debug!(%error, "a signal handler cannot be followed");
        }
        self.modules.function_at(at)
    }

    fn callees(&self, function: MdlFunction) -> Step {
        let Some((_, module, f)) = self.modules.resolve(function) else { return Step::Calls(Vec::new()) };
        if f.names().iter().any(|name| self.ends(name.mangled())) {
            return Step::Ends;
        }
        let calls = module.image.call_sites(f).unwrap_or_default();
        let jumps = module.image.cfg(f).edges.into_iter().filter_map(|edge| match edge.to {
            EdgeTarget::Outside(at) => Some(Callee::Direct(at)),
            EdgeTarget::Block(_) | EdgeTarget::Dynamic => None,
        });
        let mut callees = Vec::new();
        for callee in calls.iter().map(|call: &CallSite| call.callee).chain(jumps) {
            let slot = match callee {
                Callee::Direct(at) => match module.image.stub_slot(at) {
                    Some(slot) => slot,
                    None => {
                        let number = module.number_at(at);
                        callees.extend(number.map(|number| MdlFunction { function: number, ..function }));
                        continue;
                    }
                },
                Callee::Slot(slot) => slot,
                Callee::Computed => continue,
            };
            match module.image.import_at(slot) {
                Some(name) if self.ends(name) => return Step::Ends,
                _ => callees.extend(self.filled(module, slot)),
            }
        }
        Step::Calls(callees)
    }

    /// The function whose address the slot of a call holds now.
    fn filled(&self, module: &Module, slot: Svma) -> Option<MdlFunction> {
        let at = self.session.target.read_u64(slot.to_avma(module.bias)).ok()?;
        self.function_at(Avma(at))
    }
}
