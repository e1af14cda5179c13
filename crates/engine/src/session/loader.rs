//! The loader's own hook: an empty function that it calls when it begins and when it ends to map or unmap libraries, for debuggers to
//! stop at (`r_brk` in link.h). A count there tells when to look at the mappings, and nobody has to stop.

use ingraft_model::VariableId;

use super::*;

/// The hook's name in glibc and musl.
const HOOK: &str = "_dl_debug_state";
/// Time between two looks at the count.
const EVERY: Duration = Duration::from_millis(5);
/// What looking at the mappings and weaving may take of the time, as a divisor: a program that does nothing but load and unload goes on.
const SHARE: u32 = 10;

/// The count of the hook's calls.
pub(super) struct Hook {
    counter: u32,
    /// How many calls were known at the last look at the mappings.
    seen: i64,
    not_before: Instant,
}

impl Session {
    /// Counts the hook's calls from now on. Without it (a static program, a debugger's breakpoint there) libraries are noticed later.
    pub(super) fn hook_loader(&self, control: &mut Control) {
        let Some(limit) = control.attached.as_ref().map(|a| a.area.layout().counters()) else { return };
        let Some(function) = control.modules.loader_function(&self.target, &self.context.images, HOOK) else { return };
        let Some(counter) = control.counters.take(1, limit) else { return };
        self.shared_mut().used_counters = control.counters.used();
        let id = control.next_mini;
        control.next_mini += 1;
        let count = Snippet::increment(VariableId(0));
        let mini = NewMini { id, pair: 0, role: None, snippet: &count, counters: &[counter], except: &[] };
        let wanted = [WantedPoints { function, spot: Spot::ENTRY, minis: vec![mini] }];
        match self.change(control, &wanted, &|_| &[]) {
            Ok((refused, stop)) => {
                control.held = control.held.max(stop.held);
                if refused.is_empty() {
                    self.shared_mut().hook = Some(Hook { counter, seen: 0, not_before: Instant::now() });
                }
            }
            Err(error) => tracing::debug!(%error, "the loader's hook is not counted"),
        }
    }

    /// Waits for the end of the target; looks at the modules meanwhile whenever the loader has worked.
    pub(super) fn wait_and_follow(&self, at_most: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + at_most;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let step = if self.shared().hook.is_some() { left.min(EVERY) } else { left };
            let status = self.target.wait_exit(step);
            if status.is_some() || left.is_zero() {
                return status;
            }
            if self.loader_has_worked() {
                let begin = Instant::now();
                self.notice_modules();
                if let Some(hook) = self.shared_mut().hook.as_mut() {
                    hook.not_before = Instant::now() + begin.elapsed() * SHARE;
                }
            }
        }
    }

    fn loader_has_worked(&self) -> bool {
        let mut shared = self.shared_mut();
        let Some((counter, not_before)) = shared.hook.as_ref().map(|h| (h.counter, h.not_before)) else { return false };
        if Instant::now() < not_before {
            return false;
        }
        let Some(calls) = shared.columns().map(|columns| columns.sum(counter)) else { return false };
        shared.hook.as_mut().is_some_and(|hook| std::mem::replace(&mut hook.seen, calls) != calls)
    }
}
