//! Removal of woven code by its records alone: by the engine that wove it, by an engine that finds it after a crash, and in fork children
//! that inherited it.

use std::time::Duration;

use ingraft_codegen::RemovalRecord;
use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, PcMove, TextWrite, Tid};
use ingraft_process::{Applied, ApplyError, ApplyOptions, FaultFrames, Target, ThreadBase, contains};

use crate::error::Error;
use crate::recovery::ground::{BytesState, Ground, Left, OverwrittenPlace, Why, classify, copy_of};
use crate::recovery::journal::PointRecord;
use crate::recovery::waiting::{self, Purpose, Scheduler};

/// Outcome of a removal.
#[derive(Debug)]
pub struct RemovalOutcome {
    /// Whether every overwritten byte is the original one again, or its mapping is gone.
    pub text_restored: bool,
    /// Whether arenas and data area were unmapped.
    pub unmapped: bool,
    /// The threads, as seen in the stop.
    pub threads: Vec<ThreadBase>,
    /// Places that still differ from the original text, and places that other programs had broken and that were repaired.
    pub left: Vec<Left>,
    /// Threads that sleep in the kernel and so keep the memory from being unmapped.
    pub asleep: Vec<Tid>,
    /// Scheduler of the program, if the memory stays because one of its contexts may be suspended there.
    pub kept: Option<Scheduler>,
    /// Addresses in the arenas from which contexts may go on that the program has suspended, if that is all that keeps the memory; `None` if it
    /// is not, or if they are not known.
    pub suspended_at: Option<Vec<Avma>>,
}

/// Writes that a removal still has to make, and places that it cannot restore.
struct Rest<'p> {
    text: Vec<TextWrite>,
    left: Vec<Left>,
    /// Records whose bytes are in the text.
    present: Vec<&'p RemovalRecord>,
    /// Records of which no byte is in the text.
    absent: Vec<&'p RemovalRecord>,
}

impl Rest<'_> {
    /// Whether any place may still lead to the engine's code.
    fn leads(&self) -> bool {
        !self.text.is_empty() || self.left.iter().any(|left| left.state.may_lead())
    }

    /// The plan that makes the writes and moves threads out of the code.
    fn plan(&self) -> PatchPlan {
        let mut plan = certain(RemovalRecord::combine(self.present.iter().copied()));
        let mut rest = certain(RemovalRecord::combine(self.absent.iter().copied()));
        let is_known = |m: &PcMove| {
            plan.moves.binary_search_by_key(&m.from, |known| known.from).is_ok() || contains(&plan.step_out, m.from)
        };
        rest.moves.retain(|m| !is_known(m));
        plan.moves.append(&mut rest.moves);
        plan.moves.sort();
        plan.step_out.append(&mut rest.step_out);
        plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
        plan.step_out.dedup();
        plan.text.clone_from(&self.text);
        plan
    }
}

/// Longest wait for threads that sleep uninterruptibly, to reset their gs bases: most sleep for milliseconds, some for days.
const SLEEPERS: Duration = Duration::from_millis(500);

/// Largest number of looks at words that lead into the arenas.
const LOOKS_AT_WORDS: u32 = 20;
/// Largest number of looks whether every thread has left the arenas before they are unmapped.
const TRIES: u32 = 50;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Largest number of tries of the restoration if modules are unloaded between the look and the stop.
const LOOKS: u32 = 20;

/// Restores the text of a target, moves its threads out of the arenas, and unmaps all memory of the engine. Also completes a restoration
/// that a kill interrupted: places that are original already are not written, nor are places whose text was unloaded.
///
/// First the jumps into the arenas are removed. Threads in the middle of a snippet then leave by themselves, however busy they are.
pub fn restore(
    target: &Target,
    points: &[PointRecord],
    arenas: &[AvmaRange],
    area: Option<DataArea>,
) -> Result<RemovalOutcome, Error> {
    let CutOff { found, plan, applied: first } = cut_off(target, points, area)?;
    let mut rest = restorable(target, points)?;
    if !rest.leads() {
        rest.left.extend(copy_of(target, points, arenas).map(|at| Left { at, state: Why::Copied }));
    }
    let mut end = RemovalEnd { threads: first.bases, ..RemovalEnd::default() };
    // Memory is unmapped only after every jump to it is known to be gone.
    if !rest.leads() {
        // A thread may have a saved context in the arenas (in a signal handler, say), or be in a function that a snippet has called. It
        // leaves when it returns, and needs its shard until then.
        let leave = PatchPlan { moves: plan.moves, step_out: plan.step_out, ..PatchPlan::default() };
        end.unmap(target, &leave, arenas, area)?;
    }
    let text_restored = rest.text.is_empty() && rest.left.is_empty();
    let mut left = rest.left;
    left.extend(found.into_iter().filter(|left| left.state == Why::Broken));
    Left::sort(&mut left);
    let RemovalEnd { unmapped, threads, asleep, kept, suspended_at } = end;
    Ok(RemovalOutcome { text_restored, unmapped, threads, left, asleep, kept, suspended_at })
}

/// State of the last part of a removal, in which memory is unmapped. The fields are those of [`RemovalOutcome`].
#[derive(Default)]
struct RemovalEnd {
    unmapped: bool,
    threads: Vec<ThreadBase>,
    asleep: Vec<Tid>,
    kept: Option<Scheduler>,
    suspended_at: Option<Vec<Avma>>,
}

impl RemovalEnd {
    /// Moves threads and suspended contexts out of the arenas, and unmaps all once none is there.
    fn unmap(
        &mut self,
        target: &Target,
        leave: &PatchPlan,
        arenas: &[AvmaRange],
        area: Option<DataArea>,
    ) -> Result<(), Error> {
        let scheduler = Scheduler::of(target);
        let mut options = ApplyOptions {
            calls: area,
            readings: area,
            check_quiet: sorted(arenas),
            faults: FaultFrames::Leave,
            sleepers: SLEEPERS,
            ..ApplyOptions::default()
        };
        let mut looks = 0;
        for _ in 0..TRIES {
            let is_searched = options.suspended.is_some();
            // A context that is suspended in the arenas still needs its thread's shard.
            let bases = area.filter(|_| scheduler.is_none() || is_searched);
            (options.reset_gs, options.clear_slots) = (bases, bases);
            let applied = match let_leave(target, leave, &options)? {
                Ok(applied) => applied,
                Err(sleeper) => {
                    self.asleep.extend(sleeper);
                    return Ok(());
                }
            };
            (self.threads, self.asleep) = (applied.bases, applied.asleep);
            options.suspended = None;
            if applied.quiet && (scheduler.is_none() || is_searched) {
                let ours: Vec<AvmaRange> = arenas.iter().cloned().chain(area.map(|a| a.range())).collect();
                target.unmap(&ours).map_err(|e| Error::process(target.pid(), e))?;
                self.unmapped = true;
                return Ok(());
            }
            if applied.quiet || applied.waiting {
                // No thread is in the arenas, so every program counter that points there is in memory.
                if applied.waiting {
                    looks += 1;
                    if looks == LOOKS_AT_WORDS {
                        self.suspended_at = applied.suspended_at;
                        break;
                    }
                    std::thread::sleep(PAUSE);
                }
                options.suspended = Some(waiting::in_settled(target, &options.check_quiet, area));
            } else if self.asleep.is_empty() {
                std::thread::sleep(PAUSE);
            } else if !target.wait_awake(&self.asleep, SLEEPERS) {
                return Ok(());
            }
        }
        self.kept = scheduler;
        Ok(())
    }
}

/// Moves threads out of the arenas. If that cannot be done now, the memory stays until the next try; then the result has the thread that
/// sleeps in the kernel, if one is the reason.
fn let_leave(
    target: &Target,
    leave: &PatchPlan,
    options: &ApplyOptions,
) -> Result<Result<Applied, Option<Tid>>, Error> {
    match target.apply(leave, options) {
        Ok(applied) => Ok(Ok(applied)),
        Err(ApplyError::Busy { .. }) => Ok(Err(None)),
        Err(e) => match e.sleeper().filter(|tid| target.is_asleep(*tid)) {
            Some(tid) => Ok(Err(Some(tid))),
            None => Err(Error::apply(target.pid(), e)),
        },
    }
}

/// Restores the text without waiting for threads to leave the code, which stays. Returns whether the text is the original one again.
///
/// A point without text of its own lies in code that may stay, such as the copy of a function. Its threads go on there by themselves: the
/// place in the text to which its record leads may be under a springboard that stays.
pub fn withdraw(target: &Target, points: &[PointRecord]) -> Result<bool, Error> {
    let points: Vec<PointRecord> = points.iter().filter(|point| !point.removal.text.is_empty()).cloned().collect();
    cut_off(target, &points, None)?;
    Ok(!restorable(target, &points)?.leads())
}

/// Places of these points at which other programs have changed the text.
pub fn disturbed(target: &Target, points: &[PointRecord]) -> Result<Vec<Left>, Error> {
    let ground = Ground::of(target)?;
    let mut found = Vec::new();
    for point in points {
        for (write, place) in point.removal.text.iter().zip(ground.look(target, point)) {
            found.extend(place.left(write.at));
        }
    }
    Left::sort(&mut found);
    Ok(found)
}

/// The removal of all jumps to points.
struct CutOff {
    /// Places that could not be restored, or were repaired.
    found: Vec<Left>,
    /// The plan of the removal. Its ranges to single-step were left out: threads leave them by themselves.
    plan: PatchPlan,
    applied: Applied,
}

/// Removes all jumps to the points.
fn cut_off(target: &Target, points: &[PointRecord], area: Option<DataArea>) -> Result<CutOff, Error> {
    let mut look = 0;
    loop {
        look += 1;
        let rest = restorable(target, points)?;
        let mut plan = rest.plan();
        let step_out = std::mem::take(&mut plan.step_out);
        let suspended = waiting::near(target, Purpose::Removal, &plan.text, &[], area);
        let options = ApplyOptions { suspended, faults: FaultFrames::Leave, ..ApplyOptions::default() };
        match target.apply(&plan, &options) {
            Ok(applied) => return Ok(CutOff { found: rest.left, plan: PatchPlan { step_out, ..plan }, applied }),
            Err(ApplyError::Changed { .. } | ApplyError::NotMapped { .. }) if look < LOOKS => {}
            Err(e) => return Err(Error::apply(target.pid(), e)),
        }
    }
}

fn sorted(ranges: &[AvmaRange]) -> Vec<AvmaRange> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|r| r.start);
    ranges
}

/// Whether no byte of the text is woven or changed by others, so that the text is freshly mapped. Text that cannot be read tells nothing,
/// because the process may be ending.
pub fn is_fresh<'a>(target: &Target, text: impl Iterator<Item = &'a TextWrite>) -> bool {
    let mut states = text.filter_map(|write| read(target, write).map(|now| classify(write, &now))).peekable();
    states.peek().is_some() && states.all(|state| matches!(state, BytesState::Original | BytesState::Breakpoint))
}

/// Whether any of these writes is in the text. A write shorter than a displacement does not count, as its bytes may be there by chance.
pub fn is_woven<'a>(target: &Target, mut text: impl Iterator<Item = &'a TextWrite>) -> bool {
    text.any(|write| write.len >= 4 && read(target, write).is_some_and(|now| now == write.old_bytes()))
}

fn read(target: &Target, write: &TextWrite) -> Option<Vec<u8>> {
    let mut now = vec![0; write.old_bytes().len()];
    target.read(write.at, &mut now).ok().map(|()| now)
}

/// The part of a removal that is still to be done, and the places that prevent it. For the sake of fork children, records are kept of
/// points that are gone: other points may have come to the same text, or other code to their place. Only records whose bytes are in the
/// text count.
fn restorable<'p>(target: &Target, points: &'p [PointRecord]) -> Result<Rest<'p>, Error> {
    let ground = Ground::of(target)?;
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    let mut woven: Vec<TextWrite> = Vec::new();
    let mut left: Vec<(Left, &TextWrite)> = Vec::new();
    // another record may have the same bytes
    let mut mixed: Vec<(Vec<TextWrite>, &TextWrite, &RemovalRecord)> = Vec::new();
    for point in points {
        let (before, mixed_before) = (woven.len(), mixed.len());
        let places = ground.look(target, point);
        for (write, place) in point.removal.text.iter().zip(places) {
            left.extend(place.left(write.at).map(|left| (left, write)));
            match place {
                OverwrittenPlace::Text(BytesState::Woven) => woven.push(*write),
                OverwrittenPlace::Text(BytesState::Mixed { ours, .. }) => mixed.push((ours, write, &point.removal)),
                OverwrittenPlace::Text(_) | OverwrittenPlace::Gone | OverwrittenPlace::Unreadable => {}
            }
        }
        let is_present = woven.len() > before;
        // the point is present if a part of it is
        if is_present {
            present.push(&point.removal);
        } else if mixed.len() == mixed_before {
            absent.push(&point.removal);
        }
    }
    woven.sort_unstable_by_key(|w| w.at);
    woven.dedup();
    let whole = woven.clone();
    let end = |w: &TextWrite| w.at.0 + u64::from(w.len);
    let is_anothers = |w: &TextWrite| {
        let next = whole.partition_point(|ours| end(ours) <= w.at.0);
        whole.get(next).is_some_and(|ours| ours.at.0 < end(w))
    };
    left.retain(|(_, w)| !is_anothers(w));
    for (ours, write, record) in mixed {
        let is_here = !is_anothers(write);
        if is_here {
            woven.extend(ours);
        }
        if present.iter().any(|known| std::ptr::eq(*known, record)) {
            continue;
        }
        if is_here { present.push(record) } else { absent.push(record) }
    }
    woven.sort_unstable_by_key(|w| w.at);
    woven.dedup();
    let mut left: Vec<Left> = left.into_iter().map(|(left, _)| left).collect();
    Left::sort(&mut left);
    Ok(Rest { text: woven, left, present, absent })
}

/// Removes the moves of addresses that have several destinations, because the code there belonged to several places in the text one after
/// the other. Also removes those in ranges to single-step. A thread at such an address leaves the code by itself.
fn certain(mut plan: PatchPlan) -> PatchPlan {
    let doubtful: Vec<Avma> = plan.moves.windows(2).filter(|m| m[0].from == m[1].from).map(|m| m[0].from).collect();
    // Both are sorted.
    let mut steps = plan.step_out.iter().peekable();
    plan.moves.retain(|m| {
        while steps.next_if(|step| step.end <= m.from).is_some() {}
        let is_stepped = steps.peek().is_some_and(|step| step.contains(&m.from));
        doubtful.binary_search(&m.from).is_err() && !is_stepped
    });
    plan
}
