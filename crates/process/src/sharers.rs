//! Processes that are no threads of a target and run in its memory all the same (clone(2) with `CLONE_VM` and without `CLONE_THREAD`). They
//! execute the same text, so that a stop that leaves them running changes code under their feet.

use std::collections::BTreeSet;

use ingraft_model::{Pid, Tid};

use crate::procfs;
use crate::sys;

/// Number of new ids above which the finder lists all processes.
const NEW_MAX: i32 = 256;

/// Finder of these processes, for repeated use, at little cost when no process was made in between.
#[derive(Debug, Default)]
pub(crate) struct Sharers {
    /// The last id that the kernel had given away when the processes were looked through.
    last: Option<i32>,
    /// A living thread of the target: one that has ended has no memory, like all others that have ended, and the kernel's threads.
    thread: Option<Tid>,
    found: BTreeSet<Tid>,
}

impl Sharers {
    /// The tasks of all processes that share the memory of `pid`, those included that still wait for their own program (vfork).
    pub(crate) fn look(&mut self, pid: Pid) -> Vec<Tid> {
        // Read this before the list: an id that is given away meanwhile is examined next time.
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
        // A process that has ended, or runs a program of its own by now, shares the memory no longer.
        self.found.retain(shares);
        self.found.extend(candidates.into_iter().filter(shares));
        // These processes may have more threads by now.
        self.found.iter().flat_map(|tid| procfs::threads(Pid(tid.0)).unwrap_or_default()).collect()
    }

    /// Whether a thread runs in the target's memory.
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
