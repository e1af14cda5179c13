//! Properties that all threads share: a method to tell them apart, and whether the gs base is free.

use ingraft_model::{Avma, CpuClock, DataArea, Pid, ThreadIdentity, Tid};

use crate::bases;
use crate::bound::HoldTries;
use crate::dispatch;
use crate::error::ProcessError;
use crate::procfs;
use crate::switches;
use crate::sys;
use crate::target::{AT_HWCAP2, HWCAP2_FSGSBASE, Target};
use crate::tracer::{TraceeState, Tracer};

/// Code segment of 64-bit programs.
const CS_64: u64 = 0x33;

const NO_POINTER: &str = "a thread has no thread pointer";

/// Number of attempts at an operation that holds all threads, if a running thread does not stop.
pub(crate) const ATTEMPTS: u32 = 10;

/// Offsets from the fs base at which C libraries keep a thread's id: glibc, musl.
pub const ID_OFFSETS: [u32; 2] = [0x2d0, 0x30];

/// Observed properties of one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadFacts {
    /// The thread.
    pub tid: Tid,
    /// Id of the thread in its innermost pid namespace.
    pub own_id: i32,
    /// The thread pointer.
    pub fs_base: u64,
    /// Base of gs; 0 if unused.
    pub gs_base: u64,
    /// Whether the thread runs 64-bit code.
    pub is_64_bit: bool,
    /// For each of `ID_OFFSETS`, whether the thread's id was found there.
    id_found: [bool; ID_OFFSETS.len()],
    /// Address of the thread's rseq area (rseq(2)) and the signature; `None` if it has none.
    rseq: Option<(u64, u32)>,
}

/// Observed properties of all threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Survey {
    /// Method by which generated code can tell threads apart. It was checked for every thread in `threads`.
    pub identity: ThreadIdentity,
    /// Reason why `identity` is [`ThreadIdentity::Locked`]; `None` if it is another one.
    pub why_locked: Option<&'static str>,
    /// Whether no libc has begun in the only thread: it has no thread pointer, and there is no other obstacle to telling threads apart.
    pub is_fresh: bool,
    /// Method by which generated code can read the processor time of a thread. It was checked for every thread in `threads`.
    pub cpu: CpuClock,
    /// The threads.
    pub threads: Vec<ThreadFacts>,
    /// Threads that did not stop, so their registers were not read.
    pub unseen: Vec<Tid>,
    /// Whether system calls of generated code may not reach the kernel: a system call filter (seccomp) or Syscall User Dispatch is active
    /// in some thread.
    pub filtered: bool,
    /// Whether an earlier engine has left gs bases that point to no memory ([`Target::reset_residue`]). They do not count as the program's
    /// own.
    pub residue: bool,
}

impl Target {
    /// Examines every thread. Sleeping threads are held for a moment each, running threads all together. `ours` is a data area whose gs
    /// bases do not count as the program's own.
    pub fn survey(&self, ours: Option<DataArea>) -> Result<Survey, ProcessError> {
        let has_fsgsbase = self.aux(AT_HWCAP2).is_some_and(|v| v & HWCAP2_FSGSBASE != 0);
        let (mut attempt, mut tries) = (1, HoldTries::begin());
        let mut survey = loop {
            let survey = self.trace(|tracer| {
                tracer.be_patient(attempt);
                self.visit_all(tracer)
            })?;
            match survey {
                Err(e) if e.is_too_long() && tries.again() => {}
                Err(ProcessError::Unstoppable { .. }) if attempt < ATTEMPTS => attempt += 1, // No processor was free for the thread.
                // The target's only thread was being woken, which looks like an uninterruptible sleep. By now it has stopped and continued.
                Ok(Survey { threads, unseen, .. })
                    if threads.is_empty() && !unseen.is_empty() && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                other => break other?,
            }
        };
        let is_left = |gs: u64| gs != 0 && ours.is_none_or(|area| !area.is_base(gs));
        // Usually no thread has a gs base other than those of the area, so read the mappings only if one has.
        let maps = match survey.threads.iter().any(|t| is_left(t.gs_base)) {
            true => self.maps()?,
            false => Vec::new(),
        };
        let is_residue = |gs| is_left(gs) && bases::is_residue(gs, &maps);
        survey.residue = survey.threads.iter().any(|t| is_residue(t.gs_base));
        (survey.identity, survey.why_locked) = identify(&survey.threads, has_fsgsbase, ours, is_residue);
        survey.is_fresh =
            survey.why_locked == Some(NO_POINTER) && survey.threads.len() == 1 && survey.unseen.is_empty();
        survey.cpu = cpu_clock(&survey);
        Ok(survey)
    }

    fn visit_all(&self, tracer: &mut Tracer) -> Result<Survey, ProcessError> {
        let mut survey = Survey {
            identity: ThreadIdentity::Locked,
            why_locked: None,
            is_fresh: false,
            cpu: CpuClock::None,
            threads: Vec::new(),
            unseen: Vec::new(),
            filtered: false,
            residue: false,
        };
        let mut running = Vec::new();
        // Set once a sleeping thread did not stop soon. The other sleeping threads would then also have to wait for a processor.
        let mut crowded = false;
        for tid in self.threads()? {
            let Ok(status) = procfs::thread_status(self.pid(), tid) else { continue };
            survey.filtered |= status.seccomp != 0;
            if crowded || tracer.index_of(tid).is_some() || status.state != 'S' {
                running.push((tid, status.own_id));
                continue;
            }
            let Some(i) = tracer.seize(tid, false)? else { continue };
            match tracer.stop_soon(i) {
                Err(ProcessError::Unstoppable { .. }) => {
                    crowded = true;
                    running.push((tid, status.own_id));
                    continue;
                }
                stopped => stopped?,
            };
            if matches!(tracer.threads[i].state, TraceeState::Stopped(_)) {
                self.verify_thread(tid, self.acting())?;
            }
            self.note(tracer, i, status.own_id, &mut survey)?;
            tracer.release(i)?;
        }
        // Stop the rest together: stopped one by one, each thread would have to wait for a processor.
        for &(tid, _) in &running {
            tracer.seize(tid, false)?;
        }
        tracer.stop_traced()?;
        self.verify(tracer)?;
        for (tid, own_id) in running {
            tracer.check_bound(0, 0)?;
            if let Some(i) = tracer.index_of(tid) {
                self.note(tracer, i, own_id, &mut survey)?;
            }
        }
        for i in tracer.stop_sharers()? {
            let own_id =
                procfs::thread_status(Pid(tracer.threads[i].tid.0), tracer.threads[i].tid).map_or(0, |s| s.own_id);
            self.note(tracer, i, own_id, &mut survey)?;
        }
        tracer.repair_all()?;
        if survey.threads.is_empty() && !self.is_alive() {
            return Err(ProcessError::Gone(self.pid()));
        }
        Ok(survey)
    }

    fn note(&self, tracer: &mut Tracer, i: usize, own_id: i32, survey: &mut Survey) -> Result<(), ProcessError> {
        let (tid, state) = (tracer.threads[i].tid, tracer.threads[i].state);
        if let Some(regs) = tracer.regs(i)? {
            survey.filtered |= dispatch::is_on(tid);
            survey.threads.push(ThreadFacts {
                tid,
                own_id,
                fs_base: regs.fs_base,
                gs_base: regs.gs_base,
                is_64_bit: regs.cs & 0xffff == CS_64,
                // Read this while the thread is held, because it may end after its release.
                id_found: ID_OFFSETS.map(|o| self.holds_id(regs.fs_base, o, own_id)),
                rseq: sys::rseq_area(tid).ok().filter(|(area, _)| *area != 0),
            });
        } else if matches!(state, TraceeState::Asleep { .. }) {
            survey.unseen.push(tid);
        }
        Ok(())
    }

    fn holds_id(&self, fs_base: u64, offset: u32, own_id: i32) -> bool {
        let mut id = [0; 4];
        let at = Avma(fs_base.wrapping_add(u64::from(offset)));
        fs_base != 0 && own_id != 0 && self.read(at, &mut id).is_ok() && i32::from_le_bytes(id) == own_id
    }
}

fn identify(
    threads: &[ThreadFacts],
    has_fsgsbase: bool,
    ours: Option<DataArea>,
    is_residue: impl Fn(u64) -> bool,
) -> (ThreadIdentity, Option<&'static str>) {
    let locked = |why| (ThreadIdentity::Locked, Some(why));
    let our_base = |gs: u64| ours.is_some_and(|a| a.is_base(gs)) || is_residue(gs);
    if !has_fsgsbase {
        return locked("the processor or the kernel does not offer WRGSBASE");
    }
    if threads.iter().any(|t| t.gs_base != 0 && !our_base(t.gs_base)) {
        return locked("the program uses the gs base itself");
    }
    if threads.is_empty() || threads.iter().any(|t| t.fs_base == 0) {
        return locked(NO_POINTER);
    }
    for (i, offset) in ID_OFFSETS.into_iter().enumerate() {
        if threads.iter().all(|t| t.id_found[i]) {
            return (ThreadIdentity::FsOffset(offset), None);
        }
    }
    let mut bases: Vec<u64> = threads.iter().map(|t| t.fs_base).collect();
    bases.sort_unstable();
    bases.dedup();
    if bases.len() == threads.len() {
        return (ThreadIdentity::FsBase, None);
    }
    locked("two threads share a thread pointer")
}

/// Offset, in an rseq area, of the pointer to the critical section (linux/rseq.h, struct rseq).
const RSEQ_CS: u64 = 8;

impl Survey {
    /// Sets the method by which the libc of a fresh program will tell threads apart. `rseq` has the future offset of the pointer in a
    /// thread's rseq area, and the signature.
    pub fn expect(&mut self, identity: ThreadIdentity, rseq: Option<(i32, u32)>) {
        (self.identity, self.why_locked) = (identity, None);
        self.cpu = match rseq {
            _ if self.filtered => CpuClock::None,
            // If the libc does not register the area after all, generated code sees that by the area's contents.
            Some((slot, signature)) if slot != 0 && switches::are_seen() => CpuClock::Rseq { slot, signature },
            _ => CpuClock::SystemCall,
        };
    }
}

/// Clock of processor time that works for every thread in `threads`. If system calls are filtered there is none, because the filter may
/// kill the program for a call that it does not know.
fn cpu_clock(survey: &Survey) -> CpuClock {
    if survey.filtered || survey.identity == ThreadIdentity::Locked {
        return CpuClock::None;
    }
    let slot = |t: &ThreadFacts| {
        let (area, signature) = t.rseq?;
        let offset = area.wrapping_add(RSEQ_CS).wrapping_sub(t.fs_base).cast_signed();
        Some((i32::try_from(offset).ok().filter(|o| *o != 0)?, signature))
    };
    let first = survey.threads.first().and_then(slot).filter(|_| survey.unseen.is_empty());
    match first.filter(|first| survey.threads.iter().all(|t| slot(t) == Some(*first))) {
        Some((slot, signature)) if switches::are_seen() => CpuClock::Rseq { slot, signature },
        _ => CpuClock::SystemCall,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(fs_base: u64, gs_base: u64, id_found: [bool; 2]) -> ThreadFacts {
        ThreadFacts { tid: Tid(1), own_id: 1, fs_base, gs_base, is_64_bit: true, id_found, rseq: None }
    }

    #[test]
    fn identities() {
        let area = DataArea { base: Avma(0x7000_0000), stride: 1 << 20, shards: 64, journal_bytes: 0 };
        let none = |_| false;
        let glibc = [thread(1, 0, [true, false]), thread(2, 5 << 20, [true, false])];
        assert_eq!(identify(&glibc, true, Some(area), none), (ThreadIdentity::FsOffset(0x2d0), None));
        assert_eq!(identify(&glibc, true, None, none).0, ThreadIdentity::Locked);
        assert_eq!(identify(&glibc, false, Some(area), none).0, ThreadIdentity::Locked);
        assert_eq!(identify(&glibc, true, None, |gs| gs == 5 << 20), (ThreadIdentity::FsOffset(0x2d0), None));
        let musl = [thread(1, 0, [true, true]), thread(2, 0, [false, true])];
        assert_eq!(identify(&musl, true, None, none), (ThreadIdentity::FsOffset(0x30), None));
        let go = [thread(1, 0, [false, false]), thread(2, 0, [true, false])];
        assert_eq!(identify(&go, true, None, none), (ThreadIdentity::FsBase, None));
        let twins = [thread(1, 0, [false, false]), thread(1, 0, [true, false])];
        assert_eq!(identify(&twins, true, None, none).0, ThreadIdentity::Locked);
        assert_eq!(identify(&[thread(0, 0, [false, false])], true, None, none).0, ThreadIdentity::Locked);
        assert_eq!(identify(&[], true, None, none).0, ThreadIdentity::Locked);
    }

    #[test]
    fn clocks_of_processor_time() {
        let survey = |areas: &[Option<(u64, u32)>], filtered, unseen| Survey {
            identity: ThreadIdentity::FsOffset(0x2d0),
            why_locked: None,
            is_fresh: false,
            cpu: CpuClock::None,
            threads: areas
                .iter()
                .zip(1u64..)
                .map(|(rseq, n)| ThreadFacts { rseq: *rseq, ..thread(n << 20, 0, [true, false]) })
                .collect(),
            unseen,
            filtered,
            residue: false,
        };
        let seen =
            if switches::are_seen() { CpuClock::Rseq { slot: 0x928, signature: 7 } } else { CpuClock::SystemCall };
        let (one, two) = (Some(((1 << 20) + 0x920, 7)), Some(((2 << 20) + 0x920, 7)));
        assert_eq!(cpu_clock(&survey(&[one, two], false, vec![])), seen);
        assert_eq!(cpu_clock(&survey(&[one, two], true, vec![])), CpuClock::None, "a filter");
        let others = [None, Some(((2 << 20) + 0x940, 7)), Some(((2 << 20) + 0x920, 8)), Some((u64::MAX, 7))];
        for other in others {
            assert_eq!(cpu_clock(&survey(&[one, other], false, vec![])), CpuClock::SystemCall);
        }
        assert_eq!(cpu_clock(&survey(&[one, two], false, vec![Tid(9)])), CpuClock::SystemCall);
        assert_eq!(cpu_clock(&survey(&[], false, vec![])), CpuClock::SystemCall);
    }
}
