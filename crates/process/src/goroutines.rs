//! Goroutines that a signal has suspended. The runtime has pushed their program counter onto their own stack, where the search for signal
//! frames does not find it. So before text is written, their stacks are searched for addresses inside of the writes.

use std::io::IoSliceMut;

use ingraft_model::layout::goroutine;
use ingraft_model::{Avma, AvmaRange, TextWrite};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};

use crate::apply::strictly_inside;
use crate::error::{ApplyError, ProcessError};
use crate::stack::{LiveStacks, SavedPc};
use crate::sys;
use crate::target::Target;

/// Length in bytes of the part of a stack that can hold the program counter: the runtime pushes it, saves all registers below it, and
/// calls two small functions (runtime/preempt_amd64.s).
const DEPTH: u64 = 4096;
/// Length in bytes of the part of a descriptor that is read.
const DESCRIPTOR: usize = goroutine::SAVED as usize + 16;
/// Largest number of goroutines; more are a sign that memory was misread.
const GOROUTINES_MAX: u64 = 1 << 27;
/// Maximum number of ranges in one system call (UIO_MAXIOV).
const BATCH: usize = 1024;

/// Places by which the goroutines of a target are found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GoroutinePlaces {
    /// The slice of the addresses of all descriptors: address, length, capacity.
    pub all: Avma,
    /// Code in which a goroutine waits that a signal has suspended. Its saved program counter lies in this range.
    pub suspended: AvmaRange,
}

impl Target {
    /// Fails if a goroutine is suspended inside of a write. All threads are held, and `stacks` are their stacks. `saved` are the program
    /// counters in signal frames: a handler may be about to suspend the goroutine there, and know the program counter already.
    pub(crate) fn check_goroutines(
        &self,
        goroutines: Option<&GoroutinePlaces>,
        (stacks, saved): (&LiveStacks, &[SavedPc]),
        text: &[TextWrite],
    ) -> Result<(), ApplyError> {
        let Some(goroutines) = goroutines else { return Ok(()) };
        let interrupted = saved.iter().map(|saved| saved.pc).find(|pc| strictly_inside(text, *pc));
        let suspended = match interrupted {
            Some(at) => Some(at),
            None => self.suspended_inside(goroutines, stacks, text)?,
        };
        suspended.map_or(Ok(()), |at| Err(ApplyError::Suspended { at }))
    }

    /// An address inside of a write, not its first byte, at which a goroutine continues, or the address of the list of goroutines if that
    /// is just changing; `None` if no goroutine is there.
    fn suspended_inside(
        &self,
        goroutines: &GoroutinePlaces,
        stacks: &LiveStacks,
        text: &[TextWrite],
    ) -> Result<Option<Avma>, ProcessError> {
        if text.is_empty() {
            return Ok(None);
        }
        let inside = |words: &[u64]| words.iter().map(|word| Avma(*word)).find(|at| strictly_inside(text, *at));
        // A thread that has just been interrupted has the program counter near the top of its stack.
        if let Some(at) = stacks.tops((DEPTH / 8) as usize).find_map(inside) {
            return Ok(Some(at));
        }
        let (list, count) = (self.read_u64(goroutines.all)?, self.read_u64(goroutines.all.offset(8))?);
        if count == 0 {
            return Ok(None);
        }
        // A thread may be held while it adds to the list, between the writes of its address and of its length.
        let torn = Ok(Some(goroutines.all));
        let mut list_bytes = vec![0; 8 * count.min(GOROUTINES_MAX) as usize];
        if count > GOROUTINES_MAX || self.read(Avma(list), &mut list_bytes).is_err() {
            return torn;
        }
        let descriptors: Vec<u64> = words_of(&list_bytes).collect();
        for batch in descriptors.chunks(BATCH) {
            let mut bytes = vec![0; DESCRIPTOR * batch.len()];
            if self.read_all(batch, &mut bytes).is_err() {
                return torn;
            }
            for descriptor in bytes.chunks_exact(DESCRIPTOR) {
                let word = |at: u32| words_of(&descriptor[at as usize..]).next().unwrap_or_default();
                let (stack, sp) = (word(goroutine::STACK)..word(goroutine::STACK + 8), word(goroutine::SAVED));
                // The runtime clears the saved stack pointer of a goroutine once a thread executes it. Then the thread's stack tells.
                let waits = stack.contains(&sp) && goroutines.suspended.contains(&Avma(word(goroutine::SAVED + 8)));
                if !waits {
                    continue;
                }
                let mut words = vec![0; (stack.end - sp).min(DEPTH) as usize & !7];
                self.read(Avma(sp), &mut words)?;
                if let Some(at) = inside(&words_of(&words).collect::<Vec<_>>()) {
                    return Ok(Some(at));
                }
            }
        }
        Ok(None)
    }

    /// Reads pieces of equal length at these addresses.
    fn read_all(&self, at: &[u64], bytes: &mut [u8]) -> Result<(), ProcessError> {
        let remote: Vec<RemoteIoVec> =
            at.iter().map(|at| RemoteIoVec { base: *at as usize, len: DESCRIPTOR }).collect();
        let (pid, len) = (nix::unistd::Pid::from_raw(self.pid().0), bytes.len());
        sys::step();
        if process_vm_readv(pid, &mut [IoSliceMut::new(bytes)], &remote).is_ok_and(|n| n == len) {
            return Ok(());
        }
        // The kernel may permit only /proc/PID/mem.
        at.iter().zip(bytes.chunks_exact_mut(DESCRIPTOR)).try_for_each(|(at, piece)| self.read(Avma(*at), piece))
    }
}

fn words_of(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(8).map(|word| word.try_into().map(u64::from_le_bytes).unwrap_or_default())
}
