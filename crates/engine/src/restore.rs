//! Taking out what was woven, by records alone: by the engine that wove it, by one that finds it after a crash, and
//! in fork children that inherited it.

use std::time::Duration;

use ingraft_codegen::RemovalRecord;
use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, TextWrite};
use ingraft_process::{ApplyError, Options as ApplyOptions, Target, ThreadBase};

use crate::error::Error;
use crate::journal::PointRecord;

/// What a removal found and did.
#[derive(Debug)]
pub struct Restored {
    /// The longest time any thread was held in one piece.
    pub stopped: Duration,
    /// Every overwritten byte is the original one again (or its mapping is gone).
    pub text_restored: bool,
    /// Arenas and data area were unmapped.
    pub unmapped: bool,
    /// The threads, as seen in the stop.
    pub threads: Vec<ThreadBase>,
}

/// How one overwritten place looks now.
enum Place {
    Woven,
    Original,
    Unmapped,
    /// Somebody else has patched over it.
    Foreign,
}

/// How often is looked whether every thread has left the arenas before they are unmapped.
const TRIES: u32 = 50;
/// Time between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the restoration is tried anew when modules are unloaded between the look and the stop.
const LOOKS: u32 = 20;

/// Restores the text of a target, moves its threads out of the arenas, and unmaps everything that is ours. What a kill left half done
/// is restored as well: places that are original already are left alone, and so are those whose text was unloaded.
///
/// First nothing leads into the arenas any more; threads that are in the middle of a snippet then go home by themselves, however busy they are.
pub fn restore(
    target: &Target,
    points: &[PointRecord],
    arenas: &[AvmaRange],
    area: Option<DataArea>,
) -> Result<Restored, Error> {
    let failed = |e| Error::process(target.pid(), e);
    let mut look = 0;
    let (plan, first) = loop {
        look += 1;
        let (plan, _) = restorable(target, &there(target, points)?);
        let text = PatchPlan { step_out: Vec::new(), ..plan.clone() };
        match target.apply(&text, &ApplyOptions::default()) {
            Ok(applied) => break (plan, applied),
            Err(ApplyError::Changed { .. } | ApplyError::NotMapped { .. }) if look < LOOKS => {}
            Err(e) => return Err(Error::apply(target.pid(), e)),
        }
    };
    let (mut stopped, mut threads) = (first.held, first.bases);
    let (left, foreign) = restorable(target, &there(target, points)?);
    let text_restored = !foreign && left.text.is_empty();
    let mut unmapped = false;
    if text_restored {
        // A thread whose saved context leads into the arenas (in a handler, say), or that is in a function which our code has called, leaves
        // when it returns, and then has its shard again.
        let rest = PatchPlan { moves: plan.moves, step_out: plan.step_out, ..PatchPlan::default() };
        let options = ApplyOptions {
            reset_gs: area,
            clear_slots: area,
            calls: area,
            readings: area,
            check_quiet: sorted(arenas),
            ..ApplyOptions::default()
        };
        for _ in 0..TRIES {
            let applied = match target.apply(&rest, &options) {
                Ok(applied) => applied,
                // it stays until somebody tries again
                Err(ApplyError::Busy { .. }) => break,
                Err(e) => return Err(Error::apply(target.pid(), e)),
            };
            stopped = stopped.max(applied.held);
            threads = applied.bases;
            if applied.quiet {
                let mut ours = arenas.to_vec();
                ours.extend(area.map(|a| a.range()));
                target.unmap(&ours).map_err(failed)?;
                unmapped = true;
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(Restored { stopped, text_restored, unmapped, threads })
}

fn sorted(ranges: &[AvmaRange]) -> Vec<AvmaRange> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|r| r.start);
    ranges
}

/// The removal of all points whose text is mapped still: their file is there, as code.
fn there(target: &Target, points: &[PointRecord]) -> Result<PatchPlan, Error> {
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    let is_there = |point: &&PointRecord| {
        point.removal.text.iter().all(|w| {
            let at = maps.partition_point(|m| m.range.end <= w.at);
            maps.get(at).is_some_and(|m| {
                m.range.contains(&w.at) && m.exec && (m.device, m.inode) == (point.file.device, point.file.inode)
            })
        })
    };
    let mut whole = RemovalRecord::combine(points.iter().filter(is_there).map(|p| &p.removal));
    // Code that served one text and then another: where a thread in it belongs is not known, so it leaves by itself.
    let doubtful: Vec<Avma> = whole.moves.windows(2).filter(|m| m[0].from == m[1].from).map(|m| m[0].from).collect();
    whole.moves.retain(|m| doubtful.binary_search(&m.from).is_err());
    Ok(whole)
}

/// Whether text is as nobody ever changed it: all of it, so that it is fresh, not patched by others.
pub fn is_fresh<'a>(target: &Target, mut text: impl Iterator<Item = &'a TextWrite>) -> bool {
    text.all(|write| matches!(look(target, write), Place::Original | Place::Unmapped))
}

/// The part of a removal that is still to be done, and whether somebody else stands in its way.
fn restorable(target: &Target, whole: &PatchPlan) -> (PatchPlan, bool) {
    let mut plan = whole.clone();
    let mut foreign = false;
    plan.text.retain(|write| match look(target, write) {
        Place::Woven => true,
        Place::Original | Place::Unmapped => false,
        Place::Foreign => {
            foreign = true;
            false
        }
    });
    (plan, foreign)
}

fn look(target: &Target, write: &TextWrite) -> Place {
    let mut now = [0; 8];
    let now = &mut now[..usize::from(write.len.min(8))];
    if target.read(write.at, now).is_err() {
        return Place::Unmapped;
    }
    if now == write.old_bytes() {
        Place::Woven
    } else if now == write.new_bytes() {
        Place::Original
    } else {
        Place::Foreign
    }
}
