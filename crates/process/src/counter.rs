//! Whether the program has turned the time stamp counter off in a thread (PR_SET_TSC, strict seccomp): RDTSC raises SIGSEGV there.
//!
//! The setting belongs to a thread, and new threads and programs inherit it. The kernel tells it only to the thread itself, so borrowed
//! threads ask for it.

use ingraft_model::Avma;

use crate::error::ProcessError;
use crate::procfs;
use crate::target::Target;

/// Value of PR_GET_TSC with which RDTSC raises SIGSEGV (PR_TSC_SIGSEGV).
const OFF: i32 = 2;
/// Mode of seccomp that allows four system calls only. It turns the counter off too.
const STRICT: u32 = 1;

impl Target {
    /// Whether the time stamp counter is off in a thread. Asks `most` threads at most, the main thread first, and passes over threads that
    /// cannot be borrowed now. Each thread is held for a moment.
    pub fn counter_is_off(&self, most: usize) -> Result<bool, ProcessError> {
        let threads = self.threads()?;
        if threads.iter().any(|tid| procfs::thread_status(self.pid(), *tid).is_ok_and(|s| s.seccomp == STRICT)) {
            return Ok(true);
        }
        let mut asked = 0;
        for tid in threads {
            let answer = self.remote_of(Some(tid), |remote| {
                let at = remote.scratch(&0u64.to_le_bytes())?;
                remote.syscall("prctl", libc::SYS_prctl, [libc::PR_GET_TSC as u64, at.0, 0, 0, 0, 0])?;
                self.read_i32(at)
            });
            match answer {
                Ok(OFF) => return Ok(true),
                Ok(_) => asked += 1,
                // The kernel does not know the question, or the thread cannot be borrowed now.
                Err(
                    ProcessError::Call { .. }
                    | ProcessError::NoCarrier(_)
                    | ProcessError::Unstoppable { .. }
                    | ProcessError::UserDispatch,
                ) => {}
                Err(e) => return Err(e),
            }
            if asked == most {
                break;
            }
        }
        Ok(false)
    }

    fn read_i32(&self, at: Avma) -> Result<i32, ProcessError> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Ok(i32::from_le_bytes(bytes))
    }
}
