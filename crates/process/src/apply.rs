//! Application of a patch plan, as a whole or not at all. The engine prepares everything while the target runs. Then it holds all threads,
//! examines them, moves program counters and writes the text.

use std::collections::HashSet;
use std::thread;
use std::time::{Duration, Instant};

use ingraft_model::layout::header;
use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, TextWrite, Tid, WallClock};

use crate::bases;
use crate::bound::HoldTries;
use crate::error::{ApplyError, ProcessError};
use crate::frame::{self, FrameRecognition};
use crate::gadgets::{LONGEST_BYTES, SYSCALL};
use crate::goroutines::GoroutinePlaces;
use crate::procfs::Mapping;
use crate::stack::{LiveStacks, SavedPc, StackTop, contains};
use crate::suspended::{CodePointers, SuspendedPc, ThreadStack};
use crate::sys::{self, Regs};
use crate::target::{Target, lock};
use crate::tracer::{TraceeState, Tracer};
use crate::visit::{HeldThreads, Visitor, held_threads};

/// Number of zeros in a row that no generated code has, and no code of a program that it copies.
const EMPTY: usize = 64;
/// Longest time for which the first attempt holds the target so that threads leave code that changes. Each further attempt adds the same
/// time, because on a loaded machine a thread that continues has to wait for a processor.
const NUDGE_TIME: Duration = Duration::from_micros(500);
const NUDGE_TIME_MAX: Duration = Duration::from_millis(4);
/// Time between the first two attempts. Each further pause is longer by this much, up to [`REST_MAX`]. The target runs during the pauses.
const REST: Duration = Duration::from_millis(2);
const REST_MAX: Duration = Duration::from_millis(40);

/// Treatment of threads whose handlers of faults do not return in time. Such a handler may have read the saved program counter before the
/// stop, and change it afterwards: most often it skips the instruction that has faulted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FaultFrames {
    /// The attempt fails. For insertions.
    #[default]
    Delay,
    /// The saved program counter stays where it is, unless the bytes there change. The code there must stay too, so [`Applied::quiet`] is
    /// `false` if the code is in [`ApplyOptions::check_quiet`]. For removals.
    Leave,
}

/// Treatment of saved program counters of instructions that have faulted, in one look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FaultHandlerRule {
    /// No handler can be in progress.
    None,
    /// A handler must return first if the plan moves the program counter, or changes the instruction there.
    AwaitForWrites,
    /// A handler must return first if the plan moves the program counter.
    AwaitForMoves,
    /// The program counter stays where it is.
    Leave,
}

/// Options of applying a plan.
#[derive(Clone, Debug)]
pub struct ApplyOptions {
    /// Time for which attempts are repeated while threads are inside of code that changes, or do not stop. Each attempt holds the target
    /// for some milliseconds only.
    pub patience: Duration,
    /// Time for which attempts are repeated while a thread inside of code that changes sleeps uninterruptibly. Such a sleep can last for
    /// days.
    pub sleepers: Duration,
    /// Ranges for which [`Applied::quiet`] says whether a thread is in them or may return to them. Sorted.
    pub check_quiet: Vec<AvmaRange>,
    /// Area whose calls of the target's functions (`model::layout`) must have returned for [`Applied::quiet`].
    pub calls: Option<DataArea>,
    /// Area whose readings of the clock (`DataArea::readings_open`) threads must finish first, as if they were in `PatchPlan::step_out`.
    pub readings: Option<DataArea>,
    /// Area whose gs bases and temporary thread pointer are reset to 0 if the result is quiet.
    pub reset_gs: Option<DataArea>,
    /// Treatment of threads in handlers of faults.
    pub faults: FaultFrames,
    /// Goroutines of the target. None may be suspended inside of a write.
    pub goroutines: Option<GoroutinePlaces>,
    /// Words that point into the text around the plan's writes, or into `check_quiet`. If one is the program counter of a suspended context
    /// in a signal frame, it is moved as `PatchPlan::moves` says. No other context may be suspended inside of a write. Any other word that
    /// points into `check_quiet` and may be used makes the result not quiet.
    pub suspended: Option<CodePointers>,
    /// Area whose descriptor's address is cleared from the rseq areas of threads, and from the places where ended threads had it, if the
    /// result is quiet.
    pub clear_slots: Option<DataArea>,
}

impl Default for ApplyOptions {
    fn default() -> Self {
        ApplyOptions {
            patience: Duration::from_secs(15),
            sleepers: Duration::from_secs(15),
            check_quiet: Vec::new(),
            calls: None,
            readings: None,
            reset_gs: None,
            faults: FaultFrames::default(),
            goroutines: None,
            suspended: None,
            clear_slots: None,
        }
    }
}

/// Outcome of a plan that was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Number of times that the target was held.
    pub attempts: u32,
    /// Number of threads.
    pub threads: usize,
    /// Number of program counters that were moved, those in signal frames included.
    pub moved: usize,
    /// Whether no thread is in `check_quiet`, no saved program counter on any stack and no suspended context points there, and no open call
    /// returns there. `true` if the options request none of these checks.
    pub quiet: bool,
    /// Whether a suspended context, or what may be one, is all that keeps the result from being quiet ([`ApplyOptions::suspended`]).
    pub waiting: bool,
    /// The addresses in `check_quiet` from which suspended contexts may go on, as they were in the stop; `None` if there may be others.
    pub suspended_at: Option<Vec<Avma>>,
    /// Threads that sleep uninterruptibly and may have a gs base that [`ApplyOptions::reset_gs`] had to reset. If there is one, `quiet` is
    /// `false`.
    pub asleep: Vec<Tid>,
    /// Registers of the threads at their release.
    pub bases: Vec<ThreadBase>,
}

/// The registers that identify a thread to generated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ThreadBase {
    /// The thread.
    pub tid: Tid,
    /// Thread pointer of the thread.
    pub fs_base: u64,
    /// Base of gs at the release.
    pub gs_base: u64,
}

/// Adjacent pages that contain writes of the plan.
#[derive(Debug)]
struct WriteRun {
    start: Avma,
    /// Contents of the pages before the writes (`old`) and after them (`new`).
    old: Vec<u8>,
    new: Vec<u8>,
    writes: std::ops::Range<usize>,
}

/// Effect of the plan on a program counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PcFate {
    Stays,
    /// The program counter moves to `to`. If it lies in a write, it moves before the text is written (`first`). So both places are sound if
    /// the engine dies between the two steps.
    Moves {
        to: Avma,
        first: bool,
    },
    /// The program counter is at an address where no thread may be.
    Inside,
}

impl PcFate {
    /// Effect of the plan on the saved program counter of an instruction that has faulted. `touched` means that bytes there change.
    ///
    /// The handler may put the address of the next instruction into the frame, from what it has read before the stop. So what matters is
    /// whether that address is strictly inside of a write. It can be only if the instruction itself begins in the write: a write that
    /// begins in the middle of an instruction changes a displacement, and ends with it. An instruction that stays in front of a springboard
    /// is followed by the springboard's first byte, where a thread may arrive. Instructions of which the write leaves a part need no
    /// wait, but have one, as their length is not known here.
    ///
    /// After a removal, every instruction of the text is where it was. But a program counter that moves out of generated code would be
    /// written back by the handler, after the memory was unmapped.
    fn of_fault(self, handlers: FaultHandlerRule, touched: bool) -> PcFate {
        match (self, handlers) {
            (PcFate::Moves { .. }, FaultHandlerRule::AwaitForWrites | FaultHandlerRule::AwaitForMoves) => {
                PcFate::Inside
            }
            (PcFate::Stays, FaultHandlerRule::AwaitForWrites) if touched => PcFate::Inside,
            (PcFate::Moves { first: false, .. }, FaultHandlerRule::Leave) => PcFate::Stays,
            (fate, _) => fate,
        }
    }
}

/// A program counter to be moved.
#[derive(Clone, Copy, Debug)]
struct MovedPc {
    thread: usize,
    /// Address of the saved program counter; `None` if it is in the thread's registers.
    slot: Option<Avma>,
    from: Avma,
    to: Avma,
    first: bool,
}

impl Target {
    /// Applies a plan as [`PatchPlan`] describes. If it returns an error, the target is unchanged.
    pub fn apply(&self, plan: &PatchPlan, options: &ApplyOptions) -> Result<Applied, ApplyError> {
        self.apply_and_visit(plan, options, None)
    }

    /// Applies a plan, and passes the held threads to a visitor in the same stop.
    pub fn apply_and_visit(
        &self,
        plan: &PatchPlan,
        options: &ApplyOptions,
        mut visitor: Option<&mut dyn Visitor>,
    ) -> Result<Applied, ApplyError> {
        check_plan(plan)?;
        let frames =
            if plan.text.is_empty() && visitor.is_none() { FrameRecognition::None } else { self.gadgets()?.frames() };
        let mut runs = make_runs(&plan.text);
        let mut attempt = 1;
        let (begin, mut holds) = (Instant::now(), HoldTries::begin());
        loop {
            let outcome = self.trace(|tracer| {
                tracer.be_patient(attempt);
                let outcome = self.attempt(tracer, attempt, plan, options, &frames, &mut runs, &mut visitor);
                let repaired = tracer.repair_all().or_else(|e| if e.is_gone() { Ok(()) } else { Err(e) });
                outcome.and_then(|applied| repaired.map(|()| applied).map_err(ApplyError::from))
            })?;
            match outcome {
                Ok(applied) => return Ok(Applied { attempts: attempt, ..applied }),
                Err(e) if e.may_pass() && begin.elapsed() < self.patience_with(&e, options) => {
                    thread::sleep((REST * attempt).min(REST_MAX));
                    attempt += 1;
                }
                Err(e) if e.is_too_long() && holds.again() => attempt += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Time for which attempts are repeated after this error.
    fn patience_with(&self, e: &ApplyError, options: &ApplyOptions) -> Duration {
        match e.sleeper().is_some_and(|tid| self.is_asleep(tid)) {
            true => options.patience.min(options.sleepers),
            false => options.patience,
        }
    }

    /// Whether no thread is in any of the sorted ranges, and no saved program counter on any stack points there.
    pub fn quiet(&self, ranges: &[AvmaRange]) -> Result<bool, ApplyError> {
        let options = ApplyOptions { check_quiet: ranges.to_vec(), ..ApplyOptions::default() };
        Ok(self.apply(&PatchPlan::default(), &options)?.quiet)
    }

    #[expect(clippy::too_many_arguments, reason = "what one call of `apply_and_visit` knows")]
    fn attempt(
        &self,
        tracer: &mut Tracer,
        attempt: u32,
        plan: &PatchPlan,
        options: &ApplyOptions,
        frames: &FrameRecognition,
        runs: &mut [WriteRun],
        visitor: &mut Option<&mut dyn Visitor>,
    ) -> Result<Applied, ApplyError> {
        // If the caller's rights do not include the process, write nothing. Writes go to the memory that was opened.
        self.check(self.acting())?;
        tracer.seize_all()?;
        let mut maps = self.maps()?;
        check_mappings(&maps, &plan.text)?;
        let mut unwritten = Vec::new();
        for code in &plan.code {
            match self.write(code.at, &code.bytes) {
                Err(ProcessError::Memory { .. }) => unwritten.push(code), // POKEDATA can still write it, through a held thread.
                other => other?,
            }
        }
        self.make_private(&plan.text)?;

        tracer.stop_all()?;
        self.verify(tracer)?;
        for code in unwritten {
            self.write_text(tracer, code.at, &code.bytes)?;
        }
        self.read_and_compare(plan, runs)?;
        let deadline = Instant::now() + (NUDGE_TIME * attempt).min(NUDGE_TIME_MAX);
        let mut handlers = self.handlers(plan, options);
        let (mut moves, quiet, stacks, saved, unknown) = loop {
            let picky = visitor.as_deref().filter(|_| Instant::now() <= deadline);
            match self.look(tracer, plan, options, handlers, frames, picky, &mut maps)? {
                Examination::Ready { moves, quiet, stacks, saved, reading } => {
                    self.check_goroutines(options.goroutines.as_ref(), (&stacks, &saved), &plan.text)?;
                    let knows = |s: &SavedPc| visitor.as_deref().is_none_or(|v| v.knows(s.pc));
                    let unknown = saved.iter().filter(|s| !knows(s)).map(|s| s.thread).chain(reading);
                    let unknown = unknown.collect::<HashSet<usize>>();
                    break (moves, quiet, stacks, saved, unknown);
                }
                Examination::Faulted(threads) => {
                    if let Some((tid, at)) = self.finish_handlers(tracer, &threads, deadline)? {
                        if options.faults == FaultFrames::Delay {
                            return Err(ApplyError::Faulted { tid, at });
                        }
                        handlers = FaultHandlerRule::Leave;
                    }
                }
                Examination::Inside(thread, at) => {
                    let tid = tracer.threads[thread].tid;
                    if !matches!(tracer.threads[thread].state, TraceeState::Stopped(libc::SIGTRAP))
                        || picky.is_none() && Instant::now() > deadline
                    {
                        return Err(ApplyError::Busy { tid, at });
                    }
                    tracer.nudge(thread)?;
                    self.hold_others(tracer)?;
                }
            }
        };

        let suspended_at = self.look_at_contexts(tracer, (plan, options), &maps, &stacks, &mut moves)?;
        let free = suspended_at.as_ref().is_some_and(Vec::is_empty);
        tracer.check_bound(moves.len(), runs.len())?;
        let known = |v: &dyn Visitor| held_threads(tracer, &|thread, pc| v.knows(pc) && !unknown.contains(&thread));
        let threads_before = visitor.as_deref().map(known);
        let original: Vec<Option<Regs>> = tracer.threads.iter().map(|t| t.regs).collect();
        self.move_pcs(tracer, moves.iter().filter(|m| m.first))?;
        if let Err(e) = self.write_runs(tracer, runs) {
            self.take_back(tracer, runs, &moves, &original);
            return Err(e.into());
        }
        // From here on the plan is applied. The remaining steps help threads that may have been killed by now, so a missing step does no
        // harm.
        self.move_pcs(tracer, moves.iter().filter(|m| !m.first))?;
        let asleep = options.reset_gs.map_or_else(Vec::new, |area| self.unreachable_bases(tracer, &area));
        let quiet = quiet && asleep.is_empty();
        let (quiet, waiting) = (quiet && free, quiet && !free);
        // Code in which a thread still is needs the thread's shard.
        if let Some(area) = options.reset_gs.as_ref().filter(|_| quiet) {
            bases::reset(tracer, area)?;
        }
        if let Some(area) = options.clear_slots.as_ref().filter(|_| quiet) {
            self.clear_slots(tracer, area)?;
        }
        if let (Some(visitor), Some(threads)) = (visitor, threads_before) {
            visitor.visit(&mut HeldThreads { target: self, tracer, stacks: &stacks, saved: &saved, threads: &threads });
        }
        let threads = tracer.threads.iter().filter(|t| t.state != TraceeState::Gone).count();
        let (moved, bases) = (moves.len(), bases_of(tracer));
        Ok(Applied { attempts: 0, threads, moved, quiet, waiting, suspended_at, asleep, bases })
    }

    /// Treatment of program counters saved by faults, at the beginning of an attempt.
    fn handlers(&self, plan: &PatchPlan, options: &ApplyOptions) -> FaultHandlerRule {
        let changes = !plan.text.is_empty() || !plan.moves.is_empty();
        match options.faults {
            _ if !changes || self.status().is_ok_and(|status| !status.handles_faults()) => FaultHandlerRule::None,
            FaultFrames::Delay => FaultHandlerRule::AwaitForWrites,
            FaultFrames::Leave => FaultHandlerRule::AwaitForMoves,
        }
    }

    /// Lets each of these threads run until it has returned from a handler of a fault, while all others are held: threads that fault all
    /// the time would never be out of their handlers all at once. Returns the first thread that cannot return before the deadline.
    fn finish_handlers(
        &self,
        tracer: &mut Tracer,
        threads: &[(usize, Avma)],
        deadline: Instant,
    ) -> Result<Option<(Tid, Avma)>, ApplyError> {
        for &(thread, at) in threads {
            if tracer.threads[thread].state != TraceeState::Stopped(libc::SIGTRAP) || Instant::now() > deadline {
                return Ok(Some((tracer.threads[thread].tid, at)));
            }
            tracer.finish_handler(thread, deadline)?;
        }
        self.hold_others(tracer)?;
        Ok(None)
    }

    /// Holds all threads again after one has run.
    fn hold_others(&self, tracer: &mut Tracer) -> Result<(), ProcessError> {
        tracer.seize_all()?; // The thread may have started others.
        tracer.stop_all()?;
        self.verify(tracer) // The thread may have executed another program.
    }

    /// Writes one byte of each page back unchanged, so that the kernel copies the page before the stop.
    fn make_private(&self, text: &[TextWrite]) -> Result<(), ProcessError> {
        let mut known = lock(&self.private_pages);
        let mut byte = [0];
        for write in text {
            let page = write.at.0 & !(PAGE - 1);
            if !known.contains(&page) {
                self.read(write.at, &mut byte)?;
                match self.write(write.at, &byte) {
                    Err(ProcessError::Memory { .. }) => return Ok(()), // POKEDATA copies the pages later.
                    other => other?,
                }
                known.insert(page);
            }
        }
        Ok(())
    }

    fn read_and_compare(&self, plan: &PatchPlan, runs: &mut [WriteRun]) -> Result<(), ApplyError> {
        for run in runs {
            self.read(run.start, &mut run.old)?;
            run.new.copy_from_slice(&run.old);
            for write in &plan.text[run.writes.clone()] {
                let at = (write.at.0 - run.start.0) as usize;
                let bytes = at..at + usize::from(write.len);
                if run.old[bytes.clone()] != *write.old_bytes() {
                    return Err(ApplyError::Changed {
                        at: write.at,
                        expected: write.old_bytes().to_vec(),
                        found: run.old[bytes].to_vec(),
                    });
                }
                run.new[bytes].copy_from_slice(write.new_bytes());
            }
        }
        Ok(())
    }

    /// Examines the position of every thread. A `visitor` must know each position.
    #[expect(clippy::too_many_arguments, reason = "what one call of `attempt` knows")]
    fn look(
        &self,
        tracer: &mut Tracer,
        plan: &PatchPlan,
        options: &ApplyOptions,
        handlers: FaultHandlerRule,
        frames: &FrameRecognition,
        visitor: Option<&dyn Visitor>,
        maps: &mut Vec<Mapping>,
    ) -> Result<Examination, ApplyError> {
        let mut moves = Vec::new();
        let mut quiet = true;
        let mut reading = Vec::new();
        let mut faulted = Vec::new();
        let asks_vdso = options.calls.or(options.readings).filter(|area| self.asks_vdso(area));
        let mut tops: Vec<StackTop> = Vec::with_capacity(tracer.threads.len());
        for i in 0..tracer.threads.len() {
            tracer.check_bound(0, 0)?;
            let tid = tracer.threads[i].tid;
            let (pc, sp, restarts) = match tracer.threads[i].state {
                TraceeState::Asleep { pc, sp } => {
                    // The gs base is unknown, so the thread may be reading the clock.
                    quiet &= asks_vdso.is_none();
                    (pc, sp.0, true)
                }
                TraceeState::Stopped(_) => match tracer.regs(i)? {
                    Some(regs) => {
                        quiet &= !options.calls.is_some_and(|area| area.is_calling(regs.gs_base));
                        if asks_vdso.is_some_and(|area| self.is_reading(&area, regs.gs_base)) {
                            if options.readings.is_some() || visitor.is_some() {
                                return Ok(Examination::Inside(i, Avma(regs.rip)));
                            }
                            quiet = false;
                            reading.push(i);
                        }
                        (Avma(regs.rip), regs.rsp, frame::restarts(&regs) || ended_early(&regs))
                    }
                    None => continue,
                },
                TraceeState::Gone | TraceeState::Running => continue,
            };
            // The stack of the main thread is a mapping of its own. If the thread is elsewhere, its block is not the end of its stack.
            let is_main = tid.0 == self.pid().0;
            let block = tracer.threads[i].regs.filter(|_| !is_main).map_or(0, |regs| regs.fs_base);
            tops.push(StackTop { thread: i, sp, block });
            quiet &= !contains(&options.check_quiet, pc);
            let asleep = matches!(tracer.threads[i].state, TraceeState::Asleep { .. });
            if matches!(tracer.threads[i].state, TraceeState::Stopped(libc::SIGTRAP))
                && visitor.is_some_and(|v| !v.knows(pc))
            {
                return Ok(Examination::Inside(i, pc));
            }
            let fate = self.fate(plan, pc, restarts);
            // The kernel has yet to make the frame of a fault that is pending, with the program counter that the thread has then.
            let by_fault = fate.of_fault(handlers, touched(&plan.text, pc));
            if (fate, by_fault) == (PcFate::Stays, PcFate::Inside) && self.has_pending_fault(tid) {
                faulted.push((i, pc));
            }
            match fate {
                PcFate::Stays => {}
                PcFate::Moves { first: false, .. } if asleep => quiet &= options.check_quiet.is_empty(),
                PcFate::Moves { to, first } if !asleep => {
                    moves.push(MovedPc { thread: i, slot: None, from: pc, to, first })
                }
                PcFate::Moves { .. } | PcFate::Inside if asleep => {
                    return Err(
                        ProcessError::Unstoppable { tid, pc: Some(pc), waited: crate::tracer::STOP_WAIT }.into()
                    );
                }
                PcFate::Moves { .. } | PcFate::Inside => return Ok(Examination::Inside(i, pc)),
            }
        }
        // The mappings are sorted by address. Each thread's stack may be a mapping of its own.
        let is_mapped = |sp: u64| {
            let i = maps.partition_point(|m| m.range.end.0 <= sp);
            maps.get(i).is_some_and(|m| m.range.contains(&Avma(sp)))
        };
        if tops.iter().any(|top| !is_mapped(top.sp)) {
            *maps = self.maps()?;
        }
        let mut positions = Positions { moves, quiet, faulted };
        let stacks = self.look_at_stacks(plan, options, handlers, frames, (maps, &tops), &mut positions);
        let (stacks, saved) = match stacks {
            Ok(read) => read,
            Err((thread, at)) => return Ok(Examination::Inside(thread, at)),
        };
        let Positions { moves, quiet, mut faulted } = positions;
        if !faulted.is_empty() {
            faulted.sort_unstable();
            faulted.dedup_by_key(|(thread, _)| *thread);
            return Ok(Examination::Faulted(faulted));
        }
        Ok(Examination::Ready { moves, quiet, stacks, saved, reading })
    }

    /// Examines the stacks of threads, given by their tops, and the program counters that are saved in signal frames there.
    /// Fails with the first of them at which no thread may be, and its thread.
    fn look_at_stacks(
        &self,
        plan: &PatchPlan,
        options: &ApplyOptions,
        handlers: FaultHandlerRule,
        frames: &FrameRecognition,
        (maps, tops): (&[Mapping], &[StackTop]),
        found: &mut Positions,
    ) -> Result<(LiveStacks, Vec<SavedPc>), (usize, Avma)> {
        if *frames == FrameRecognition::None && options.check_quiet.is_empty() {
            return Ok((LiveStacks::default(), Vec::new()));
        }
        let mut stacks = LiveStacks::read(self, maps, tops);
        let saved_pcs = stacks.saved_pcs(self, maps, frames);
        for saved in &saved_pcs {
            let fate = self.fate(plan, saved.pc, false);
            let by_fault = match saved.may_be_fault {
                true => fate.of_fault(handlers, touched(&plan.text, saved.pc)),
                false => fate,
            };
            match by_fault {
                PcFate::Inside if fate != PcFate::Inside => found.faulted.push((saved.thread, saved.pc)),
                PcFate::Stays => {}
                PcFate::Moves { to, first } => {
                    found.moves.push(MovedPc {
                        thread: saved.thread,
                        slot: Some(saved.slot),
                        from: saved.pc,
                        to,
                        first,
                    });
                }
                PcFate::Inside => return Err((saved.thread, saved.pc)),
            }
            if *frames == FrameRecognition::Formed
                && let Some(at) = self.returns_into(plan, &stacks, saved)
            {
                return Err((saved.thread, at));
            }
        }
        found.quiet &= !stacks.is_cut() && !stacks.point_into(&options.check_quiet);
        found.quiet &= !options.calls.is_some_and(|area| self.has_open_calls(&area));
        Ok((stacks, saved_pcs))
    }

    /// The stacks on which their threads are: the main one, or one with the thread's control block at its end. Also those of ended threads
    /// that have one of these words, or to which the context of such a word belongs.
    fn thread_stacks(
        &self,
        tracer: &mut Tracer,
        maps: &[Mapping],
        words: &[Avma],
    ) -> Result<Vec<ThreadStack>, ProcessError> {
        let mapping_at = |at: u64| {
            let mapping = maps.get(maps.partition_point(|m| m.range.end.0 <= at));
            mapping.filter(|m| m.range.contains(&Avma(at)))
        };
        let mut thread_stacks = Vec::new();
        for i in 0..tracer.threads.len() {
            let Some(regs) = tracer.regs(i)? else { continue };
            let Some(mapping) = mapping_at(regs.rsp) else { continue };
            let mut stack = mapping.range.clone();
            if mapping.path.as_os_str() != "[stack]" {
                stack.end = Avma(regs.fs_base);
            }
            if mapping.range.contains(&stack.end) || stack.end == mapping.range.end {
                thread_stacks.push(ThreadStack { stack, free: regs.rsp.saturating_sub(frame::RED_ZONE) });
            }
        }
        let places = words.iter().flat_map(|slot| [Some(slot.0), self.read_u64(slot.offset(-8)).ok()]);
        thread_stacks.extend(self.stacks_of_ended(places.flatten().map(Avma)));
        Ok(thread_stacks)
    }

    /// Looks for suspended contexts. Fails if there may be some that must be known and cannot be looked for. Otherwise as
    /// [`Target::look_at_words`], or `None` if there may be others.
    fn look_at_contexts(
        &self,
        tracer: &mut Tracer,
        (plan, options): (&PatchPlan, &ApplyOptions),
        maps: &[Mapping],
        stacks: &LiveStacks,
        moves: &mut Vec<MovedPc>,
    ) -> Result<Option<Vec<Avma>>, ApplyError> {
        let Some(words) = options.suspended.as_ref().filter(|_| !tracer.threads.is_empty()) else {
            return Ok(Some(Vec::new()));
        };
        let found = words.now(self);
        let places: Vec<Avma> = found.at.iter().chain(&found.frames).copied().collect();
        let thread_stacks = self.thread_stacks(tracer, maps, &places)?;
        let elsewhere: Vec<Avma> = found.frames.iter().copied().filter(|slot| !stacks.has(*slot)).collect();
        if self.preempts(&elsewhere, &thread_stacks) {
            return Err(ApplyError::Preempts);
        }
        let suspended_at = self.look_at_words(&found.at, plan, options, stacks, &thread_stacks, moves)?;
        Ok(found.all.then_some(suspended_at))
    }

    /// Looks at words that point into the text around the writes or into the ranges that shall be quiet. Adds the moves of those in signal
    /// frames. Fails if another context would continue within a write. Returns the addresses in the ranges to which the others lead.
    fn look_at_words(
        &self,
        words: &[Avma],
        plan: &PatchPlan,
        options: &ApplyOptions,
        stacks: &LiveStacks,
        thread_stacks: &[ThreadStack],
        moves: &mut Vec<MovedPc>,
    ) -> Result<Vec<Avma>, ApplyError> {
        let mut suspended_at = Vec::new();
        // The stacks of threads were read already.
        for slot in words.iter().copied().filter(|slot| !stacks.has(*slot)) {
            let Ok(pc) = self.read_u64(slot).map(Avma) else { continue };
            let (fate, in_code) = (self.fate(plan, pc, false), contains(&options.check_quiet, pc));
            let is_none = in_code && self.is_empty(pc, &options.check_quiet);
            if fate == PcFate::Stays && (!in_code || is_none) || self.is_remains(slot, thread_stacks) {
                continue;
            }
            match (fate, self.waiting(slot)) {
                (PcFate::Moves { to, first }, Some(SuspendedPc::Frame)) => {
                    moves.push(MovedPc { thread: 0, slot: Some(slot), from: pc, to, first });
                }
                _ if in_code => suspended_at.push(pc),
                (_, Some(_)) => return Err(ApplyError::Suspended { at: pc }),
                (_, None) => {}
            }
        }
        Ok(suspended_at)
    }

    /// Whether an address in one of these ranges is that of memory that has no code. A word that leads there, such as a part of a text, is no
    /// program counter: generated code has no zeros of this length.
    fn is_empty(&self, at: Avma, ranges: &[AvmaRange]) -> bool {
        let mut bytes = [0; EMPTY];
        let ends_in_range = ranges.iter().any(|range| range.contains(&at) && at.0 + EMPTY as u64 <= range.end.0);
        ends_in_range && self.read(at, &mut bytes).is_ok() && bytes.iter().all(|byte| *byte == 0)
    }

    /// If a dead engine has left a borrowed thread behind, the thread takes addresses of pieces of code from its stack until it reaches the
    /// signal frame (`gadgets.rs`). Returns the first of these pieces whose bytes the plan changes; `None` if there is none.
    fn returns_into(&self, plan: &PatchPlan, stacks: &LiveStacks, saved: &SavedPc) -> Option<Avma> {
        let frame = saved.slot.0 - frame::RIP;
        let first = stacks.word(saved.thread, frame)?;
        let mut bytes = [0; SYSCALL.len()];
        if self.read(Avma(first), &mut bytes).is_err() || bytes != SYSCALL {
            return None;
        }
        let words = (0..=frame::MAX_IN_FRONT as u64).map_while(|i| stacks.word(saved.thread, frame - 8 * i));
        words.map(Avma).find(|at| {
            let end = at.0.saturating_add(LONGEST_BYTES as u64);
            let next = write_before(&plan.text, Avma(end - 1));
            next.is_some_and(|w| w.at.0 + u64::from(w.len) > at.0)
        })
    }

    /// Whether a call of a function of the target has yet to return to an arena, on any stack. The count excludes calls of a fork child;
    /// there only the gs base of the child's thread shows a call.
    fn has_open_calls(&self, area: &DataArea) -> bool {
        let word = |at: u32| {
            let mut word = [0; 4];
            self.read(Avma(at.into()), &mut word).map(|()| u32::from_le_bytes(word)).unwrap_or(1)
        };
        word(area.alive()) != 0 && word(area.displacement(header::CALLS_OPEN)) != 0
    }

    /// Whether generated code reads the time by the vDSO. During such a reading a return address into an arena is on the stack.
    fn asks_vdso(&self, area: &DataArea) -> bool {
        let word = self.read_u64(Avma(area.displacement(header::WALL_CLOCK).into()));
        word.map_or(true, |word| matches!(WallClock::of_word(word), WallClock::Vdso(_)))
    }

    /// Whether a fault of the thread's present instruction has yet to reach its handler.
    fn has_pending_fault(&self, tid: Tid) -> bool {
        // A thread that has ended handles nothing.
        self.thread_status(tid).is_ok_and(|status| status.has_fault)
    }

    /// Whether the thread with this gs base is reading the clock, or is in a signal handler that interrupted a reading.
    fn is_reading(&self, area: &DataArea, gs_base: u64) -> bool {
        // While the thread is in a function that generated code has called, its gs base has more bits than the offset of its shard.
        let shard = gs_base & !area.stride.wrapping_sub(1);
        let is_ours = shard != 0 && shard / area.stride < u64::from(area.shards);
        let word = || self.read_u64(Avma(u64::from(area.displacement(area.readings_open())) + shard));
        is_ours && word().map_or(true, |open| open != 0)
    }

    /// Effect of the plan on a program counter. With `restarts`, the kernel may move it back by two bytes, to a `syscall` instruction.
    fn fate(&self, plan: &PatchPlan, pc: Avma, restarts: bool) -> PcFate {
        let moved = |from| plan.moves.binary_search_by_key(&from, |m| m.from).ok().map(|i| plan.moves[i].to);
        let is_syscall =
            |at| self.byte(plan, at) == Some(SYSCALL[0]) && self.byte(plan, at.offset(1)) == Some(SYSCALL[1]);
        let call = pc.offset(-2);
        let back = restarts && (touched(&plan.text, call) || touched(&plan.text, pc.offset(-1)));
        let to = moved(pc).filter(|to| !restarts || is_syscall(to.offset(-2)));
        // The system call may be the last instruction that a springboard displaces. Then the thread waits in its copy from now on.
        let to = to.or_else(|| moved(call).filter(|to| back && is_syscall(*to)).map(|to| to.offset(2)));
        match to {
            Some(to) => PcFate::Moves { to, first: back || touched(&plan.text, pc) },
            None if back || moved(pc).is_some() || strictly_inside(&plan.text, pc) => PcFate::Inside,
            None if contains(&plan.step_out, pc) => PcFate::Inside,
            None => PcFate::Stays,
        }
    }

    /// Byte at an address after the plan is applied; `None` if it cannot be read.
    fn byte(&self, plan: &PatchPlan, at: Avma) -> Option<u8> {
        if let Some(w) = write_before(&plan.text, at).filter(|w| at.0 < w.at.0 + u64::from(w.len)) {
            return w.new_bytes().get((at.0 - w.at.0) as usize).copied();
        }
        let mut byte = [0];
        self.read(at, &mut byte).ok()?;
        Some(byte[0])
    }

    fn move_pcs<'m>(&self, tracer: &mut Tracer, moves: impl Iterator<Item = &'m MovedPc>) -> Result<(), ProcessError> {
        for m in moves {
            match (m.slot, tracer.regs(m.thread)?) {
                (Some(slot), _) => self.write(slot, &m.to.0.to_le_bytes())?,
                (None, Some(regs)) => tracer.set_regs(m.thread, &Regs { rip: m.to.0, ..regs })?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    fn write_runs(&self, tracer: &Tracer, runs: &[WriteRun]) -> Result<(), ProcessError> {
        for run in runs {
            // The kernel writes page by page. If the engine is killed, each page is written completely or not at all.
            self.write_text(tracer, run.start, &run.new)?;
        }
        Ok(())
    }

    /// Restores the text and the program counters that were moved before it was written. Errors are left out: an earlier one is returned.
    fn take_back(&self, tracer: &mut Tracer, runs: &[WriteRun], moves: &[MovedPc], original: &[Option<Regs>]) {
        for run in runs.iter().filter(|r| r.old != r.new) {
            let _ = self.write_text(tracer, run.start, &run.old);
        }
        for m in moves.iter().filter(|m| m.first) {
            let _ = match (m.slot, original[m.thread]) {
                (Some(slot), _) => self.write(slot, &m.from.0.to_le_bytes()),
                (None, Some(regs)) => tracer.set_regs(m.thread, &regs),
                (None, None) => Ok(()),
            };
        }
    }

    /// Writes through /proc/PID/mem. If the kernel forbids that, writes word by word with POKEDATA.
    fn write_text(&self, tracer: &Tracer, at: Avma, bytes: &[u8]) -> Result<(), ProcessError> {
        let refused = match self.write(at, bytes) {
            Err(e @ ProcessError::Memory { .. }) => e,
            other => return other,
        };
        let Some(held) = tracer.threads.iter().find(|t| matches!(t.state, TraceeState::Stopped(_))) else {
            return Err(refused);
        };
        let mut from = at.0 & !7;
        let end = at.0 + bytes.len() as u64;
        while from < end {
            let mut word = self.read_u64(Avma(from))?.to_le_bytes();
            for (i, byte) in word.iter_mut().enumerate() {
                let address = from + i as u64;
                if (at.0..end).contains(&address) {
                    *byte = bytes[(address - at.0) as usize];
                }
            }
            tracer.check("POKEDATA", held.tid, sys::poke(held.tid, from, u64::from_le_bytes(word)))?;
            from += 8;
        }
        Ok(())
    }
}

/// Findings of a look.
struct Positions {
    /// The program counters to move.
    moves: Vec<MovedPc>,
    /// Whether all is quiet.
    quiet: bool,
    /// Threads in handlers of faults, and the addresses of the instructions.
    faulted: Vec<(usize, Avma)>,
}

enum Examination {
    /// The program counters to move, whether all is quiet, the stacks and the saved program counters on them, and the threads that are
    /// reading the clock.
    Ready { moves: Vec<MovedPc>, quiet: bool, stacks: LiveStacks, saved: Vec<SavedPc>, reading: Vec<usize> },
    /// The thread with this index is at this address, where no thread may be.
    Inside(usize, Avma),
    /// The threads with these indices handle faults of the instructions at these addresses, which the plan would displace or move.
    Faulted(Vec<(usize, Avma)>),
}

/// The registers of all threads that identify them to generated code.
fn bases_of(tracer: &Tracer) -> Vec<ThreadBase> {
    let base = |regs: Regs, tid| ThreadBase { tid, fs_base: regs.fs_base, gs_base: regs.gs_base };
    tracer.threads.iter().filter_map(|t| Some(base(t.regs?, t.tid))).collect()
}

/// Whether the engine's stop ended a system call that the kernel will repeat.
fn ended_early(regs: &Regs) -> bool {
    frame::repair_interrupted(&mut { *regs })
}

fn write_before(text: &[TextWrite], at: Avma) -> Option<&TextWrite> {
    text.partition_point(|w| w.at <= at).checked_sub(1).map(|i| &text[i])
}

/// Whether an address is inside of a write, but not at its first byte.
pub(crate) fn strictly_inside(text: &[TextWrite], at: Avma) -> bool {
    write_before(text, at).is_some_and(|w| at > w.at && at.0 < w.at.0 + u64::from(w.len))
}

fn touched(text: &[TextWrite], at: Avma) -> bool {
    write_before(text, at).is_some_and(|w| at.0 < w.at.0 + u64::from(w.len))
}

fn check_plan(plan: &PatchPlan) -> Result<(), ApplyError> {
    let bad = |at, why| Err(ApplyError::BadPlan { at, why });
    let mut end = 0;
    for w in &plan.text {
        let Some(stop) = w.at.0.checked_add(w.len.into()) else { return bad(w.at, "a write beyond the address space") };
        if !(1..=8).contains(&w.len) {
            return bad(w.at, "a write of no or of more than 8 bytes");
        }
        if w.at.0 / PAGE != (stop - 1) / PAGE {
            return bad(w.at, "a write across two pages");
        }
        if w.at.0 < end {
            return bad(w.at, "writes that overlap or are not sorted");
        }
        end = stop;
    }
    for pair in plan.moves.windows(2) {
        if pair[0].from >= pair[1].from {
            return bad(pair[1].from, "moves that are not sorted or not unique");
        }
    }
    // Both are sorted, and most moves begin in generated code.
    let mut text = plan.text.iter().peekable();
    for m in &plan.moves {
        while text.next_if(|w| w.at.0 + u64::from(w.len) <= m.from.0).is_some() {}
        let from_inside = text.peek().is_some_and(|w| w.at < m.from);
        if from_inside && strictly_inside(&plan.text, m.to) {
            return bad(m.from, "a move from inside a write to inside a write");
        }
    }
    Ok(())
}

fn check_mappings(maps: &[Mapping], text: &[TextWrite]) -> Result<(), ApplyError> {
    let mut i = 0;
    for w in text {
        while maps.get(i).is_some_and(|m| m.range.end <= w.at) {
            i += 1;
        }
        match maps.get(i) {
            Some(m) if m.range.contains(&w.at) && m.shared => return Err(ApplyError::SharedText { at: w.at }),
            Some(m) if m.range.contains(&w.at) => {}
            _ => return Err(ApplyError::NotMapped { at: w.at }),
        }
    }
    Ok(())
}

fn make_runs(text: &[TextWrite]) -> Vec<WriteRun> {
    let mut runs: Vec<WriteRun> = Vec::new();
    for (i, w) in text.iter().enumerate() {
        let page = w.at.0 & !(PAGE - 1);
        match runs.last_mut() {
            Some(run) if page <= run.start.0 + run.old.len() as u64 => {
                run.old.resize((page + PAGE - run.start.0) as usize, 0);
                run.writes.end = i + 1;
            }
            _ => runs.push(WriteRun {
                start: Avma(page),
                old: vec![0; PAGE as usize],
                new: Vec::new(),
                writes: i..i + 1,
            }),
        }
    }
    for run in &mut runs {
        run.new.resize(run.old.len(), 0);
    }
    runs
}
