//! The check that the engine may access a process, and that the process still runs the program that was opened.
//!
//! One check does not suffice: after it, a process may execute another program, also one with more privileges (setuid). So the open files
//! are bound to one address space, and the engine checks both again on stopped threads. A stopped thread cannot execute another program.

use std::fs::File;
use std::os::unix::fs::FileExt;

use ingraft_model::Tid;

use crate::error::ProcessError;
use crate::procfs;
use crate::rights::{Rights, first_auxv, read_auxv};
use crate::target::{Target, lock};
use crate::tracer::{TraceeState, Tracer};

/// Type, in the auxiliary vector, of the address of 16 random bytes that the kernel writes at exec.
const AT_RANDOM: u64 = 25;
/// Number of comparisons. A program may change its own auxiliary vector (PR_SET_MM) or its memory between two readings.
const TRIES: u32 = 3;

/// Rights that are in force until this value is dropped.
#[derive(Debug)]
pub struct RightsInForce<'a> {
    target: &'a Target,
    before: Rights,
}

impl Drop for RightsInForce<'_> {
    fn drop(&mut self) {
        *lock(&self.target.acting) = self.before;
    }
}

impl Target {
    /// Restricts the rights until the returned value is dropped. Until then, an operation that changes the process fails unless these
    /// rights include all threads of the process. Only one caller at a time may change a target.
    #[must_use = "the rights are in force as long as this lives"]
    pub fn act_for(&self, rights: Rights) -> RightsInForce<'_> {
        RightsInForce { target: self, before: std::mem::replace(&mut *lock(&self.acting), rights) }
    }

    /// The rights in force.
    pub(crate) fn acting(&self) -> Rights {
        *lock(&self.acting)
    }

    /// Checks that these rights include the process and that it still runs the program that was opened. The check does not affect the
    /// process. If it succeeds, data that was read from the process or its files since [`Target::open`] belongs to that program.
    pub fn check(&self, rights: Rights) -> Result<(), ProcessError> {
        if !self.is_alive() {
            return Err(ProcessError::Gone(self.pid()));
        }
        let (tid, _, _) = first_auxv(self.pid(), rights)?;
        self.verify_thread(tid, rights)
    }

    /// Checks that the rights in force include every held thread, and that the threads run in the address space that was opened. For
    /// stopped threads, the answer holds until they continue.
    pub(crate) fn verify(&self, tracer: &Tracer) -> Result<(), ProcessError> {
        let rights = self.acting();
        let mut first = true;
        for thread in &tracer.threads {
            let is_there = matches!(thread.state, TraceeState::Stopped(_) | TraceeState::Asleep { .. });
            // All threads of a process share one address space. For processes that share it by vfork, the kernel has compared the address
            // spaces.
            if is_there && (first || rights != Rights::All) {
                self.verify_thread(thread.tid, rights)?;
                first = false;
            }
        }
        Ok(())
    }

    /// Checks that the rights include this thread, and that it runs in the address space that was opened. A thread that has ended passes,
    /// because it does nothing any more.
    pub(crate) fn verify_thread(&self, tid: Tid, rights: Rights) -> Result<(), ProcessError> {
        let replaced =
            || if self.is_alive() { ProcessError::Replaced(self.pid()) } else { ProcessError::Gone(self.pid()) };
        let mut tries = 0;
        loop {
            tries += 1;
            let Some(now) = rights.open_auxv(self.pid(), tid)? else { return Ok(()) };
            let Some(now) = read_auxv(&now) else { return Ok(()) };
            let known = read_auxv(self.image()).ok_or_else(replaced)?;
            if known == now && self.has_memory_of(tid, &known) {
                return Ok(());
            }
            if tries == TRIES {
                return Err(replaced());
            }
        }
    }

    /// Whether a thread uses the memory that was opened: both have the same random bytes of the kernel. Equal addresses in the vector do
    /// not suffice, because they may not be random.
    fn has_memory_of(&self, tid: Tid, auxv: &[u8]) -> bool {
        let vector = procfs::parse_auxv(auxv);
        let Some(at) = vector.into_iter().find_map(|(kind, value)| (kind == AT_RANDOM).then_some(value)) else {
            return true;
        };
        let Ok(mem) = File::open(format!("/proc/{tid}/mem")) else { return false };
        let random = |mem: &File| {
            let mut bytes = [0; 16];
            match mem.read_at(&mut bytes, at) {
                Ok(n) if n == bytes.len() => Some(Some(bytes)),
                Ok(_) => None,        // No process uses this address space any more.
                Err(_) => Some(None), // The program has unmapped or hidden the bytes.
            }
        };
        matches!((random(self.mem()), random(&mem)), (Some(known), Some(now)) if known == now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn this_process_is_its_own() {
        let target = Target::open_unchecked(sys::own_pid()).expect("this process");
        assert!(target.check(Rights::All).is_ok());
    }
}
