//! A temporary thread pointer for a program in which no libc has set one yet, because it was stopped at its first instruction or a little
//! later. Until the libc sets its own, generated code finds the thread's id through the temporary pointer. It uses the same instructions
//! for both.

use ingraft_model::layout::BOOTSTRAP_POINTER;
use ingraft_model::{Avma, DataArea, ThreadIdentity};

use crate::bound::HoldTries;
use crate::error::ProcessError;
use crate::survey::ATTEMPTS;
use crate::sys::Regs;
use crate::target::Target;
use crate::tracer::{STOP_WAIT, TraceeState, Tracer};

impl Target {
    /// Sets the thread pointer of the only thread to the area's, if the thread has none yet. Returns `false` if there are several threads
    /// and one of them has none.
    pub fn set_bootstrap_pointer(&self, area: &DataArea, identity: ThreadIdentity) -> Result<bool, ProcessError> {
        if let ThreadIdentity::FsOffset(offset) = identity {
            let id = self.status()?.own_id.to_le_bytes();
            let end = u64::from(offset) + id.len() as u64;
            if end > area.stride - u64::from(BOOTSTRAP_POINTER) {
                return Err(ProcessError::Outside(end));
            }
            self.write(Avma(area.bootstrap_pointer().0 + u64::from(offset)), &id)?;
        }
        let (mut attempt, mut tries) = (1, HoldTries::begin());
        loop {
            let lent = self.trace(|tracer| {
                tracer.be_patient(attempt);
                let lent = self.set_bootstrap_pointer_with(tracer, area);
                tracer.repair_all().and(lent)
            })?;
            match lent {
                Err(e) if e.is_too_long() && tries.again() => {}
                Err(ProcessError::Unstoppable { .. }) if attempt < ATTEMPTS => attempt += 1, // No processor was free for the thread.
                other => return other,
            }
        }
    }

    fn set_bootstrap_pointer_with(&self, tracer: &mut Tracer, area: &DataArea) -> Result<bool, ProcessError> {
        tracer.seize_all()?;
        tracer.stop_all()?;
        self.verify(tracer)?;
        let mut without = Vec::new();
        for i in 0..tracer.threads.len() {
            match tracer.regs(i)? {
                Some(regs) if regs.fs_base == 0 => without.push((i, regs)),
                Some(_) => {}
                None if tracer.threads[i].state == TraceeState::Gone => {}
                None => {
                    return Err(ProcessError::Unstoppable { tid: tracer.threads[i].tid, pc: None, waited: STOP_WAIT });
                }
            }
        }
        let alone = tracer.threads.iter().filter(|t| t.state != TraceeState::Gone).count() == 1;
        match without[..] {
            [] => Ok(true),
            [(i, regs)] if alone => {
                tracer.set_regs(i, &Regs { fs_base: area.bootstrap_pointer().0, ..regs })?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }
}
