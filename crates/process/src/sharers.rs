//! Processes that are not threads of a target but share its memory (clone(2) with `CLONE_VM` and without `CLONE_THREAD`). They execute the
//! same text. A stop that does not hold them would change code while they execute it.

use std::collections::BTreeSet;

use ingraft_model::{Pid, Tid};

use crate::procfs;
use crate::sys;

/// Largest number of ids given out since the last search that the finder examines one by one. If there are more, it lists all processes.
const NEW_MAX: i32 = 256;

/// Finder of the processes that share a target's memory. If no process was created since the last search, a search costs one small read.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    /// Last process or thread id that the kernel had given out before the last search; `None` if no search was made or /proc/loadavg is
    /// unreadable.
    last: Option<i32>,
    /// Living thread of the target, for kcmp(2). A thread that has ended has no memory, so kcmp finds it equal to every ended thread and
    /// every kernel thread.
    thread: Option<Tid>,
    found: BTreeSet<Tid>,
}

impl Sharers {
    /// Searches, and returns the threads of all processes that share the memory of `pid`. A vfork child is one of them until it executes
    /// another program.
    pub(crate) fn look(&mut self, pid: Pid) -> Vec<Tid> {
        // Read the last id before the processes: the next search examines ids that are given out in between.
        let last = procfs::last_id();
        let candidates = match (self.last, last) {
            (Some(before), Some(now)) if before == now => Vec::new(),
            (Some(before), Some(now)) if before < now && now - before <= NEW_MAX => {
                (before + 1..=now).map(Tid).collect()
            }
            _ => procfs::processes(),
        };
        self.last = last;
        let lives = |tid: &Tid| procfs::thread_stat(*tid).is_some_and(|s| !s.is_dead());
        let main = Some(Tid(pid.0)).filter(lives);
        self.thread = main.or_else(|| procfs::threads(pid).unwrap_or_default().into_iter().find(lives));
        let thread = self.thread;
        let shares = |tid: &Tid| share(thread, *tid) && !procfs::is_thread_of(pid, *tid);
        // A process that has ended or has executed another program no longer shares the memory.
        self.found.retain(shares);
        self.found.extend(candidates.into_iter().filter(shares));
        // Processes that were found earlier may have created threads since.
        self.found.iter().flat_map(|tid| procfs::threads(Pid(tid.0)).unwrap_or_default()).collect()
    }

    /// Whether a thread shares the target's memory.
    pub(crate) fn has(&self, tid: Tid) -> bool {
        share(self.thread, tid)
    }

    /// Whether any process shares the memory.
    pub(crate) fn any(&self) -> bool {
        !self.found.is_empty()
    }
}

fn share(thread: Option<Tid>, other: Tid) -> bool {
    thread.is_some_and(|thread| sys::same_memory(Pid(thread.0), other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_and_children_with_memory_of_their_own_are_none() {
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().expect("cat");
        let own = Pid(std::process::id().cast_signed());
        std::thread::scope(|scope| {
            let (send, receive) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || receive.recv());
            let mut sharers = Sharers::default();
            assert_eq!(sharers.look(own), [], "all processes are looked through");
            assert_eq!(sharers.look(own), [], "new ones are looked at");
            assert!(sharers.last.is_some(), "the kernel tells the last id");
            drop(send);
        });
        child.kill().and_then(|()| child.wait()).expect("end the child");
    }
}
