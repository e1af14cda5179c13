//! Remains of dead engines in targets, and fork children that inherited code.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ingraft_model::{AvmaRange, DataArea, HoldTime, Pid};
use ingraft_process::{Mapping, SharedArea, Target};

use crate::api::{Inserted, Removed};
use crate::background::each;
use crate::error::{Error, ErrorClass, Reason};
use crate::program::identity::describe;
use crate::recovery::ground::Left;
use crate::recovery::journal::{self, Contents, PointRecord};
use crate::recovery::restore::{RemovalOutcome, disturbed, restore, withdraw};
use crate::recovery::signature::SIGNATURE;
use crate::recovery::waiting::Scheduler;
use crate::state_dir::StateDir;

/// A data area of an engine in a target, whichever engine made it.
pub struct FoundArea {
    /// The area, mapped into this engine.
    pub area: SharedArea,
    /// Contents of the journal, from the copy in the area or else from the file.
    pub journal: Option<Contents>,
}

/// Opens the data area at `range`.
pub fn open_area(state: &StateDir, target: &Arc<Target>, range: &AvmaRange) -> Result<FoundArea, Error> {
    let area = target.adopt_area(range).map_err(|e| Error::process(target.pid(), e))?;
    let copy = area.read_journal().ok().and_then(|bytes| journal::decode(&bytes));
    let identity = target.identity();
    let from_file = || {
        let contents = journal::decode(&fs::read(state.journal_path(identity.pid, identity.start_time)).ok()?)?;
        (contents.head.boot_id == identity.boot_id).then_some(contents)
    };
    let journal = copy.or_else(from_file);
    Ok(FoundArea { area, journal })
}

/// Restores a target that a dead engine left.
pub fn restore_area(state: &StateDir, target: &Arc<Target>, range: &AvmaRange) -> Result<Removed, Error> {
    let found = match target.adopt_area(range) {
        // The engine died before it wrote the header, so nothing leads into the area.
        Err(ingraft_process::ProcessError::NoArea { .. }) if is_unmade(target, range) => {
            target.unmap(std::slice::from_ref(range)).map_err(|e| Error::process(target.pid(), e))?;
            return Ok(untouched(target.pid()));
        }
        _ => open_area(state, target, range)?,
    };
    let layout = found.area.layout();
    let file = area_file(target, layout);
    // an empty journal does not show another version
    if found.journal.is_none() && found.area.read_journal().is_ok_and(|copy| !copy.is_empty()) {
        return Err(other_version(target.pid()));
    }
    // A fork child has its parent's area. It must not restore the parent and the other children, which may still be measured.
    let own_id = target.status().map_err(|e| Error::process(target.pid(), e))?.own_id;
    let made_for = found.area.read_u32(u64::from(ingraft_model::layout::header::TARGET_PID));
    let inherited = made_for.is_ok_and(|pid| pid != own_id as u32);
    let (points, arenas) = found.journal.map_or_else(Default::default, |j| (j.points, j.arenas));
    let restored = restore(target, &points, &mapped(target, &arenas)?, Some(layout))?;
    let children_left = if inherited { Vec::new() } else { restore_children(target, &points, &arenas, layout, file) };
    if restored.unmapped {
        let identity = target.identity();
        // The journal may be in another engine's directory, or be removed already.
        let _ = fs::remove_file(state.journal_path(identity.pid, identity.start_time));
    }
    Ok(removed(target, restored, children_left))
}

/// Whether the maker of an area died before it wrote the header, whose first word comes last.
fn is_unmade(target: &Target, range: &AvmaRange) -> bool {
    target.read_u64(range.start).is_ok_and(|magic| magic == 0)
}

/// The error for an area of another version: springboards may lead to it, but without its records they cannot be removed.
fn other_version(pid: Pid) -> Error {
    let what =
        format!("another version of ingraft has inserted something in process {pid}, which this one cannot read");
    let hint = format!("run `ingraft detach -p {pid}` of that version");
    Error::new(Reason::OtherVersion, what, hint).about(pid)
}

/// The answer of a removal that found nothing to do.
pub fn untouched(pid: Pid) -> Removed {
    Removed {
        pid,
        stopped: HoldTime::default(),
        text_restored: true,
        children_left: Vec::new(),
        memory_left: false,
        asleep: Vec::new(),
        suspended_at: None,
        corrections: (0, 0),
        grown: None,
        last: None,
        profile: None,
        trace: None,
        printed: None,
        shares: None,
        warnings: Vec::new(),
        awaited: Vec::new(),
    }
}

fn removed(target: &Target, restored: RemovalOutcome, children_left: Vec<Pid>) -> Removed {
    let mut warnings = Left::warnings(&restored.left, target, &|_| None);
    warnings.extend(restored.kept.as_ref().map(Scheduler::warning));
    let RemovalOutcome { text_restored, unmapped, asleep, suspended_at, .. } = restored;
    Removed {
        stopped: target.take_longest_hold(),
        text_restored,
        children_left,
        warnings,
        memory_left: !unmapped,
        asleep,
        suspended_at,
        ..untouched(target.pid())
    }
}

/// The recorded arenas that exist and belong to the engine: a kill may have come before an arena was mapped, or after it was unmapped. An
/// arena that was mapped but not signed yet is still empty; only an engine maps executable zeros at a recorded address.
pub fn mapped(target: &Target, arenas: &[AvmaRange]) -> Result<Vec<AvmaRange>, Error> {
    let maps = target.maps().map_err(|e| Error::process(target.pid(), e))?;
    let there = |range: &AvmaRange| {
        let covers = |m: &Mapping| {
            m.exec && !m.write && !m.is_file() && m.range.start <= range.start && range.end <= m.range.end
        };
        let mut bytes = vec![0; usize::try_from(range.end.0.saturating_sub(range.start.0)).unwrap_or(0)];
        maps.iter().any(covers)
            && target.read(range.start, &mut bytes).is_ok()
            && (bytes.starts_with(SIGNATURE) || bytes.iter().all(|b| *b == 0))
    };
    Ok(arenas.iter().filter(|a| there(a)).cloned().collect())
}

/// Inode of the file behind a target's data area, which identifies the target's fork children, as many targets use the same addresses.
pub fn area_file(target: &Target, area: DataArea) -> Option<u64> {
    let maps = target.maps().ok()?;
    maps.iter().find(|m| m.shared && m.range.start == area.base).map(|m| m.inode)
}

/// Restores the fork children that inherited the code: every other process that maps the same data area (`file`). Returns those that could
/// not be restored.
pub fn restore_children(
    parent: &Target,
    records: &[PointRecord],
    arenas: &[AvmaRange],
    area: DataArea,
    file: Option<u64>,
) -> Vec<Pid> {
    in_children(parent, area, file, &|child| {
        let arenas = mapped(child, arenas)?;
        let restored = restore(child, records, &arenas, Some(area))?;
        // breakpoints of other programs may stay
        Ok(restored.text_restored || restored.unmapped)
    })
}

/// Removes points from the fork children that have them; the rest of their code stays. Returns the children that could not be restored.
pub fn withdraw_from_children(parent: &Target, points: &[PointRecord], area: DataArea) -> Vec<Pid> {
    in_children(parent, area, area_file(parent, area), &|child| withdraw(child, points))
}

/// Calls `work` for every fork child; returns the children for which it failed.
fn in_children(
    parent: &Target,
    area: DataArea,
    file: Option<u64>,
    work: &dyn Fn(&Target) -> Result<bool, Error>,
) -> Vec<Pid> {
    let Some(file) = file else { return Vec::new() };
    let mut left = Vec::new();
    let mut done = vec![parent.pid()];
    // A child may fork during the work on its siblings, so the search is repeated until it finds no new child.
    loop {
        let is_new = |pid: &Pid| !done.contains(pid) && !parent.shares_memory_with(*pid);
        let new: Vec<Pid> = heirs(area, file).into_iter().filter(is_new).collect();
        if new.is_empty() {
            return left;
        }
        for pid in new {
            done.push(pid);
            let child = Target::open(pid).map_err(|e| Error::process(pid, e));
            // The opened process may have started another program, or be another process with the same id.
            if child.is_ok() && !is_heir(pid, area, file) {
                continue;
            }
            match child.and_then(|child| work(&child)) {
                Ok(true) => {}
                Err(e)
                    if e.reason.class() == ErrorClass::Gone
                        || e.reason == Reason::NoSuchProcess
                        || e.reason == Reason::Zombie => {}
                _ => left.push(pid),
            }
        }
    }
}

/// Whether another process has inherited a target's code.
pub fn has_heirs(target: &Target, area: DataArea) -> bool {
    let is_other = |pid: Pid| pid != target.pid() && !target.shares_memory_with(pid);
    area_file(target, area).is_none_or(|file| heirs(area, file).into_iter().any(is_other))
}

/// Processes that map this data area at its address. (The engine maps it at another address.)
fn heirs(area: DataArea, file: u64) -> Vec<Pid> {
    let all = all_pids();
    let are = each(&all, |pid| is_heir(*pid, area, file));
    let mut found: Vec<Pid> = all.into_iter().zip(are).filter(|(_, is)| *is).map(|(pid, _)| pid).collect();
    found.sort();
    found
}

/// Whether a process, given by its own id or that of a thread, maps this data area at its address.
pub fn is_heir(pid: Pid, area: DataArea, file: u64) -> bool {
    let (start, inode) = (format!("{:x}-", area.base.0), file.to_string());
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| {
        maps.lines().any(|line| line.starts_with(&start) && line.split_ascii_whitespace().nth(4) == Some(&inode))
    })
}

fn all_pids() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok().map(Pid)).collect()
}

/// Processes that have a data area of any engine.
pub fn instrumented() -> Vec<Pid> {
    let maps_one = |pid: &Pid| {
        fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(ingraft_process::MAPS_NAME))
    };
    let ours = Pid(std::process::id() as i32);
    let mut found: Vec<Pid> = all_pids().into_iter().filter(|pid| *pid != ours).filter(maps_one).collect();
    found.sort();
    found
}

/// Code that another engine, alive or dead, has inserted in a process.
pub fn inserted_by_others(state: &StateDir, target: &Arc<Target>) -> Result<Option<Inserted>, Error> {
    let pid = target.pid();
    let failed = |e| Error::process(pid, e);
    let Some(range) = target.find_areas().map_err(failed)?.into_iter().next() else { return Ok(None) };
    let found = open_area(state, target, &range)?;
    let holder = found.area.holder().map_err(failed)?;
    let own_pid = target.status().map_err(failed)?.own_id;
    let made_for = found.journal.as_ref().map_or(own_pid, |j| j.head.pid.0);
    let name = found.journal.as_ref().map_or_else(|| format!("process {}", holder.pid), |j| j.head.holder.clone());
    let state = if made_for != pid.0 {
        " (inherited by fork)"
    } else if holder.is_alive() {
        ""
    } else {
        " (dead)"
    };
    let (points, code_bytes, since_ns, kept) = found.journal.as_ref().map_or((0, 0, 0, 0), |j| {
        let code = j.points.iter().map(|p| p.removal.code.end.0.saturating_sub(p.removal.code.start.0)).sum();
        (j.points.len() as u32, code, j.head.since_ns, j.kept.len() as u32)
    });
    let points_there = found.journal.as_ref().map_or(&[] as &[_], |j| &j.points);
    let left = disturbed(target, points_there).unwrap_or_default();
    Ok(Some(Inserted {
        pid,
        holder: format!("{name}{state}"),
        ours: false,
        points,
        code_bytes,
        since_ns,
        identity: found.area.identity().map_or_else(|_| "unknown".to_owned(), describe),
        costs: None,
        measurements: Vec::new(),
        kept_measurements: Vec::new(),
        kept,
        warnings: Left::warnings(&left, target, &|_| None),
    }))
}

/// Longest wait for a killed holder to end.
const ENDING: Duration = Duration::from_secs(5);
/// Time between two looks at a holder that ends.
const ENDING_LOOK: Duration = Duration::from_millis(5);

/// Fails if a living engine holds the target.
pub fn refuse_held(target: &Arc<Target>, range: &AvmaRange) -> Result<(), Error> {
    holder_of(target, range)?.map_or(Ok(()), |(refused, _)| Err(refused))
}

/// Waits for the end of a holder that was killed and has not ended yet. Fails if a living engine holds the target.
fn await_holder(target: &Arc<Target>, range: &AvmaRange, deadline: Instant) -> Result<(), Error> {
    while let Some((refused, ending)) = holder_of(target, range)? {
        if !ending || Instant::now() >= deadline {
            return Err(refused);
        }
        std::thread::sleep(ENDING_LOOK);
    }
    Ok(())
}

/// Whether an area is not there any more: its engine has ended meanwhile, and has taken it out.
fn is_gone(target: &Target, range: &AvmaRange) -> bool {
    target.find_areas().is_ok_and(|areas| !areas.contains(range))
}

/// The error for a target that an engine holds, and whether that engine is about to end; `None` if no engine holds the target.
fn holder_of(target: &Arc<Target>, range: &AvmaRange) -> Result<Option<(Error, bool)>, Error> {
    match holder_in(target, range) {
        Err(_) if is_gone(target, range) => Ok(None),
        found => found,
    }
}

/// The same, while the area is there.
fn holder_in(target: &Arc<Target>, range: &AvmaRange) -> Result<Option<(Error, bool)>, Error> {
    let failed = |e| Error::process(target.pid(), e);
    let area = match target.adopt_area(range) {
        Ok(area) => area,
        // The engine died before it wrote the header, so nothing leads into the area.
        Err(ingraft_process::ProcessError::NoArea { .. }) if is_unmade(target, range) => return Ok(None),
        Err(ingraft_process::ProcessError::NoArea { .. }) => return Err(other_version(target.pid())),
        Err(e) => return Err(failed(e)),
    };
    let holder = area.holder().map_err(failed)?;
    let own_id = target.status().map_err(failed)?.own_id;
    // A fork child has its parent's area, but the holder does not hold the child unless it is measured with the parent.
    let inherited =
        area.read_u32(u64::from(ingraft_model::layout::header::TARGET_PID)).map_err(failed)? != own_id as u32;
    let strange = inherited && !area.is_family().map_err(failed)?;
    if strange || (!holder.is_alive() && area.try_lock() != Some(false)) {
        return Ok(None);
    }
    let journal = area.read_journal().ok().and_then(|bytes| journal::decode(&bytes));
    let name = journal.map_or_else(|| format!("process {}", holder.pid), |j| j.head.holder);
    Ok(Some((held(target.pid(), &name, Some(holder.pid)), holder.is_ending())))
}

/// Restores a target that a dead engine left.
pub fn take_over(state: &StateDir, target: &Arc<Target>) -> Result<Removed, Error> {
    let areas = target.find_areas().map_err(|e| Error::process(target.pid(), e))?;
    let deadline = Instant::now() + ENDING;
    areas.iter().try_for_each(|range| await_holder(target, range, deadline))?;
    let lock = loop {
        // a process that is ending releases its locks one by one
        match state.lock_target(target.pid()) {
            Ok(Some(lock)) => break Some(lock),
            Ok(None) if Instant::now() >= deadline => {
                return Err(held(target.pid(), "another ingraft", state.lock_holder(target.pid())));
            }
            Ok(None) => std::thread::sleep(ENDING_LOOK),
            // In a directory without room for the lock, no other engine holds it.
            Err(_) => break None,
        }
    };
    let mut last = None;
    for range in areas {
        last = Some(match restore_area(state, target, &range) {
            Err(_) if is_gone(target, &range) => untouched(target.pid()),
            restored => restored?,
        });
    }
    if let Some(lock) = lock {
        state.forget_lock(target.pid(), lock);
    }
    Ok(last.unwrap_or_else(|| untouched(target.pid())))
}

/// The error for a target in which another engine measures; `holder` is the process of that engine, if it is known.
pub fn held(pid: Pid, by: &str, holder: Option<Pid>) -> Error {
    let error = Error::new(
        Reason::Held,
        format!("process {pid} is held by {by}"),
        "end that measurement, or go through its daemon with --daemon",
    );
    Error { holder, ..error.about(pid) }
}
