//! Taking out what was woven, by records alone: by the engine that wove it, by one that finds it after a crash, and
//! in fork children that inherited it.

use std::time::Duration;

use ingraft_codegen::RemovalRecord;
use ingraft_model::{Avma, AvmaRange, DataArea, PatchPlan, PcMove, TextWrite};
use ingraft_process::{Applied, ApplyError, Options as ApplyOptions, Target, ThreadBase, contains};

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
    let (plan, first) = cut_off(target, points)?;
    let (mut stopped, mut threads) = (first.held, first.bases);
    let text_restored = is_restored(target, points)?;
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

/// Restores the text alone, without waiting for threads to leave the code, which stays. Whether it is the original one again.
pub fn withdraw(target: &Target, points: &[PointRecord]) -> Result<bool, Error> {
    cut_off(target, points)?;
    is_restored(target, points)
}

/// From here on nothing leads to the points. Returns what was planned and done.
fn cut_off(target: &Target, points: &[PointRecord]) -> Result<(PatchPlan, Applied), Error> {
    let mut look = 0;
    loop {
        look += 1;
        let (plan, _) = restorable(target, points)?;
        let text = PatchPlan { step_out: Vec::new(), ..plan.clone() };
        match target.apply(&text, &ApplyOptions::default()) {
            Ok(applied) => return Ok((plan, applied)),
            Err(ApplyError::Changed { .. } | ApplyError::NotMapped { .. }) if look < LOOKS => {}
            Err(e) => return Err(Error::apply(target.pid(), e)),
        }
    }
}

fn is_restored(target: &Target, points: &[PointRecord]) -> Result<bool, Error> {
    let (left, foreign) = restorable(target, points)?;
    Ok(!foreign && left.text.is_empty())
}

fn sorted(ranges: &[AvmaRange]) -> Vec<AvmaRange> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable_by_key(|r| r.start);
    ranges
}

/// The points whose text is mapped still: their file is there, as code.
fn there<'a>(target: &Target, points: &'a [PointRecord]) -> Result<Vec<&'a RemovalRecord>, Error> {
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    let is_there = |point: &&PointRecord| {
        point.removal.text.iter().all(|w| {
            let at = maps.partition_point(|m| m.range.end <= w.at);
            maps.get(at).is_some_and(|m| {
                m.range.contains(&w.at) && m.exec && (m.device, m.inode) == (point.file.device, point.file.inode)
            })
        })
    };
    Ok(points.iter().filter(is_there).map(|point| &point.removal).collect())
}

/// Whether text is as nobody ever changed it: all of it, so that it is fresh, not patched by others.
pub fn is_fresh<'a>(target: &Target, mut text: impl Iterator<Item = &'a TextWrite>) -> bool {
    text.all(|write| matches!(look(target, write), Place::Original | Place::Unmapped))
}

/// The part of a removal that is still to be done, and whether somebody else stands in its way. For the sake of fork children there may be records of
/// points that have gone before others came to the same text, or whose code has made room for others': those that are in the text count.
fn restorable(target: &Target, points: &[PointRecord]) -> Result<(PatchPlan, bool), Error> {
    let (mut present, mut absent) = (Vec::new(), Vec::new());
    let (mut woven, mut foreign): (Vec<&TextWrite>, Vec<&TextWrite>) = (Vec::new(), Vec::new());
    for point in there(target, points)? {
        let before = woven.len();
        for write in &point.text {
            match look(target, write) {
                Place::Woven => woven.push(write),
                Place::Foreign => foreign.push(write),
                Place::Original | Place::Unmapped => {}
            }
        }
        if woven.len() > before { present.push(point) } else { absent.push(point) }
    }
    woven.sort_unstable_by_key(|w| w.at);
    woven.dedup();
    let end = |w: &TextWrite| w.at.0 + u64::from(w.len);
    let is_ours = |w: &&TextWrite| {
        let next = woven.partition_point(|ours| end(ours) <= w.at.0);
        woven.get(next).is_some_and(|ours| ours.at.0 < end(w))
    };
    let is_foreign = !foreign.iter().all(is_ours);

    let mut plan = certain(RemovalRecord::combine(present));
    let mut rest = certain(RemovalRecord::combine(absent));
    let is_known = |m: &PcMove| {
        plan.moves.binary_search_by_key(&m.from, |known| known.from).is_ok() || contains(&plan.step_out, m.from)
    };
    rest.moves.retain(|m| !is_known(m));
    plan.moves.append(&mut rest.moves);
    plan.moves.sort_unstable();
    plan.step_out.append(&mut rest.step_out);
    plan.step_out.sort_unstable_by_key(|r| (r.start, r.end));
    plan.step_out.dedup();
    plan.text = woven.into_iter().copied().collect();
    Ok((plan, is_foreign))
}

/// Code that served one text and then another: where a thread in it belongs is not known, so it leaves by itself.
fn certain(mut plan: PatchPlan) -> PatchPlan {
    let doubtful: Vec<Avma> = plan.moves.windows(2).filter(|m| m[0].from == m[1].from).map(|m| m[0].from).collect();
    let steps = &plan.step_out;
    plan.moves.retain(|m| doubtful.binary_search(&m.from).is_err() && !contains(steps, m.from));
    plan
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
