//! The loader's own hook: an empty function that it calls when it begins and when it ends to map or unmap libraries, for debuggers to
//! stop at (`r_brk` in link.h). Woven code there tells when to look at the mappings, and nobody has to stop. A thread that has mapped something
//! waits there, for a bounded time, until it is woven: nothing of a library then runs uncounted, its constructors included.

use std::time::{Duration, Instant};

use ingraft_model::{PointKind, Snippet, Stmt, VariableId};
use ingraft_process::SharedArea;

use crate::weaving::exits::Exits;
use crate::weaving::plan::{NewMini, Wanted as WantedPoints};

use super::control::Control;
use super::driver::Session;

/// The hook's name in glibc and musl.
const HOOK: &str = "_dl_debug_state";
/// Time between two looks at a count that nobody announces.
const EVERY: Duration = Duration::from_millis(5);
/// Divisor of the time that looks at the mappings and weaving may take where no thread waits for it: a program that does nothing
/// but load and unload goes on.
const SHARE: u32 = 10;
/// Time between two looks whether system calls are filtered.
const FILTERS_EVERY: Duration = Duration::from_secs(1);
/// Most threads whose filters of system calls are looked at.
const FILTERS_MAX: usize = 64;

/// Kind of the code at the hook.
#[derive(Clone, Copy, Debug)]
pub(super) enum Hook {
    /// Threads tell the engine and wait for it. `seen`: up to which of their numbers it has looked. `filtered`: whether their system calls were
    /// filtered, and when that was looked at.
    Waits { seen: u32, filtered: Option<(Instant, bool)> },
    /// Calls are counted, as far as they are known here; nobody waits. For loaders that do not tell what they do.
    Counts { counter: u32, seen: i64, not_before: Instant },
}

impl Session {
    /// Weaves the hook. Without it (a static program, a debugger's breakpoint there) libraries are noticed later.
    pub(super) fn hook_loader(&self, control: &mut Control) {
        let Some(attached) = control.attached.as_mut() else { return };
        let Some(function) = control.modules.loader_function(&self.target, &self.context.images, HOOK) else { return };
        attached.env.loader = control.modules.loader_state(&self.target).filter(|_| attached.area.is_mapped());
        let (waits, limit) = (attached.env.loader.is_some(), attached.area.layout().counters());
        let (snippet, counters) = if waits {
            (Snippet { stmts: vec![Stmt::Await] }, Vec::new())
        } else {
            let Some(counter) = control.counters.take(1, limit) else { return };
            self.shared_mut().used_counters = control.counters.used();
            (Snippet::increment(VariableId(0)), vec![counter])
        };
        let id = control.next_mini;
        control.next_mini += 1;
        let mini =
            NewMini { id, pair: 0, role: None, snippet: &snippet, counters: &counters, except: &[], exits: Exits::All };
        let wanted = [WantedPoints { function, spot: PointKind::Entry, minis: vec![mini] }];
        match self.change(control, &wanted, &|_| &[]) {
            Ok((refused, _)) => {
                if refused.is_empty() {
                    let hook = match counters.first() {
                        None => Hook::Waits { seen: 0, filtered: None },
                        Some(&counter) => Hook::Counts { counter, seen: 0, not_before: Instant::now() },
                    };
                    self.shared_mut().hook = Some(hook);
                    if let Some(attached) = control.attached.as_mut().filter(|_| waits) {
                        attached.woven.hook = Some(id);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "the loader's hook is not woven"),
        }
    }

    /// Waits a little for the loader to have worked, and measures what it has loaded. For a thread of its own: while one waits in the target, it is
    /// this one that it waits for.
    pub fn follow_loader(&self, at_most: Duration) {
        let (hook, area) = {
            let shared = self.shared();
            (shared.hook, shared.area.clone())
        };
        match (hook, area) {
            (Some(Hook::Waits { seen, filtered }), Some(area)) => {
                // what was loaded while a program was started is woven
                let hook_is_new = filtered.is_none();
                let known = filtered.filter(|(then, _)| then.elapsed() < FILTERS_EVERY);
                let (then, filtered) = known.unwrap_or_else(|| (Instant::now(), self.is_filtered()));
                let seen = self.answer_loader(&area, seen, filtered, at_most, hook_is_new);
                if let Some(hook @ Hook::Waits { .. }) = self.shared_mut().hook.as_mut() {
                    *hook = Hook::Waits { seen, filtered: Some((then, filtered)) };
                }
            }
            (Some(Hook::Counts { .. }), _) => {
                let end = Instant::now() + at_most;
                while Instant::now() < end {
                    std::thread::sleep(EVERY.min(at_most));
                    if self.loader_has_worked() {
                        let begin = Instant::now();
                        self.notice_modules();
                        if let Some(Hook::Counts { not_before, .. }) = self.shared_mut().hook.as_mut() {
                            *not_before = Instant::now() + begin.elapsed() * SHARE;
                        }
                    }
                }
            }
            _ => std::thread::sleep(at_most),
        }
    }

    /// Waits for the loader and answers it. Returns up to which number of its calls that was done.
    fn answer_loader(&self, area: &SharedArea, seen: u32, filtered: bool, at_most: Duration, hook_is_new: bool) -> u32 {
        // A program's filter may forbid the calls by which its threads wait. They are counted only, and looked after as others are.
        let step = if filtered { EVERY.min(at_most) } else { at_most };
        let loads = self.listen(area, !filtered).and_then(|begun| {
            // What came while nobody listened did not wait; who comes from now on does.
            Ok((begun, area.wait_for_loads(seen, if begun { Duration::ZERO } else { step })?))
        });
        let (begun, loads) = match loads {
            Ok((begun, loads)) if begun || loads != seen => (begun, loads),
            Ok(_) => return seen,
            Err(error) => {
                tracing::debug!(%error, "the loader cannot be followed");
                std::thread::sleep(at_most);
                return seen;
            }
        };
        self.notice(&|| !begun && area.is_listening());
        // somebody waited in vain, perhaps while we looked, so that nobody waited after that
        if loads != seen && !filtered && !hook_is_new && (begun || !area.is_listening()) {
            self.note_missed();
        }
        if let Err(error) = area.answer(loads) {
            tracing::debug!(%error, "the loader was not answered");
        }
        loads
    }

    /// Begins or ends to answer, unless everything is being taken out or left behind. Whether it was begun just now.
    fn listen(&self, area: &SharedArea, wanted: bool) -> Result<bool, ingraft_process::Error> {
        let control = self.control();
        let wanted = wanted && !control.closed && control.attached.is_some();
        match (wanted, area.is_listening()) {
            (true, false) => area.listen(true).map(|()| true),
            (false, true) => area.stop_listening().map(|()| false),
            _ => Ok(false),
        }
    }

    /// Whether a filter of system calls is active in a thread, or may be: children that are measured with the target may have filters of their own
    /// at any time, as sandboxes do.
    fn is_filtered(&self) -> bool {
        if self.shared().family {
            return true;
        }
        let filtered = |tid| self.target.thread_status(tid).is_ok_and(|s| s.seccomp != 0);
        self.target.threads().is_ok_and(|t| t.into_iter().take(FILTERS_MAX).any(filtered))
    }

    /// Nobody is answered any more; who waits goes on.
    pub(super) fn stop_listening(&self, area: &SharedArea) {
        if let Err(error) = area.stop_listening() {
            tracing::debug!(%error, "threads at the loader's hook wait until their time is over");
        }
    }

    /// Whether the loader is in the middle of its work, or waits for us: nothing runs yet of what it has mapped.
    pub(super) fn loader_works(&self, control: &Control) -> bool {
        let Some(attached) = control.attached.as_ref() else { return false };
        let mut word = [0; 4];
        let works = attached.env.loader.is_some_and(|at| self.target.read(at, &mut word).is_ok() && word != [0; 4]);
        let waits = || match self.shared().hook {
            Some(Hook::Waits { seen, .. }) => {
                attached.area.is_listening()
                    && attached.area.wait_for_loads(seen, Duration::ZERO).is_ok_and(|n| n != seen)
            }
            _ => false,
        };
        works || waits()
    }

    fn loader_has_worked(&self) -> bool {
        let mut shared = self.shared_mut();
        let Some(Hook::Counts { counter, not_before, .. }) = shared.hook else { return false };
        if Instant::now() < not_before {
            return false;
        }
        let Some(calls) = shared.columns().map(|columns| columns.sum(counter)) else { return false };
        match shared.hook.as_mut() {
            Some(Hook::Counts { seen, .. }) => std::mem::replace(seen, calls) != calls,
            _ => false,
        }
    }
}
