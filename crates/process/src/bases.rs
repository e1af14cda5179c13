//! The gs bases that generated code has given to threads: how they are reset, threads that make this wait, and bases that an earlier engine
//! has left behind.

use std::time::{Duration, Instant};

use ingraft_model::layout::{CALLING, CLAIMS, DEFAULT_STRIDE, FIRST_SHARD, SHARDS_MAX, SHARDS_SPACE, header};
use ingraft_model::{Avma, DataArea, Pid, Tid};
use rustix::time::{ClockId, clock_gettime};

use crate::error::ProcessError;
use crate::procfs::{self, Mapping};
use crate::sys::{self, Regs};
use crate::target::Target;
use crate::tracer::{TraceeState, Tracer};

/// Value of [`header::IDENTITY`]: all threads count in shard 0, and the engine has set no gs base.
const LOCKED: u32 = 0;
/// Value of [`header::IDENTITY`]: claims hold the ids of threads.
const BY_ID: u32 = 1;
/// Time between two checks of a thread that sleeps.
const LOOK: Duration = Duration::from_millis(5);

/// Resets the gs bases of this area and its temporary thread pointer to 0. No thread may be in code of the arenas or return there.
pub(crate) fn reset(tracer: &mut Tracer, area: &DataArea) -> Result<(), ProcessError> {
    for i in 0..tracer.threads.len() {
        let Some(regs) = tracer.regs(i)? else { continue };
        let mut own = regs;
        if area.is_base(regs.gs_base) && !area.is_calling(regs.gs_base) {
            own.gs_base = 0;
        }
        if regs.fs_base == area.bootstrap_pointer().0 {
            own.fs_base = 0;
        }
        if (own.gs_base, own.fs_base) != (regs.gs_base, regs.fs_base) {
            tracer.set_regs(i, &own)?;
        }
    }
    Ok(())
}

/// Present time in clock ticks since boot, for [`header::MADE`].
pub(crate) fn now_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let since = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
    u64::try_from(since.as_nanos() / procfs::TICK.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a gs base was left behind by an engine that unmapped its area while a thread slept. Such a base looks like that of a shard, and
/// no writable memory is there. If a program sets the gs base itself, it leads to the program's memory, or is a value other than a pointer;
/// neither is likely to look like a shard's.
pub(crate) fn is_residue(gs_base: u64, maps: &[Mapping]) -> bool {
    let offset = gs_base % DEFAULT_STRIDE;
    let shard = gs_base / DEFAULT_STRIDE;
    let is_shard = offset == 0 || offset == u64::from(CALLING);
    is_shard
        && (u64::from(FIRST_SHARD)..SHARDS_SPACE / DEFAULT_STRIDE).contains(&shard)
        && !maps.iter().any(|m| m.write && m.range.contains(&Avma(gs_base)))
}

impl Target {
    /// The threads that did not stop and may have a gs base of this area.
    pub(crate) fn unreachable_bases(&self, tracer: &Tracer, area: &DataArea) -> Vec<Tid> {
        let asleep: Vec<Tid> =
            tracer.threads.iter().filter(|t| matches!(t.state, TraceeState::Asleep { .. })).map(|t| t.tid).collect();
        if asleep.is_empty() {
            return asleep;
        }
        let facts = AreaFacts::read(self, area);
        asleep.into_iter().filter(|tid| facts.as_ref().is_none_or(|facts| facts.may_have_base(self, *tid))).collect()
    }

    /// Whether another process uses this process's memory. A child of vfork(2) does so until it executes another program. If that child
    /// unmaps or writes memory, it changes this process's memory.
    pub fn shares_memory_with(&self, other: Pid) -> bool {
        sys::same_memory(self.pid(), Tid(other.0))
    }

    /// Whether a thread sleeps uninterruptibly in the kernel: only the event that it waits for wakes it.
    pub fn is_asleep(&self, tid: Tid) -> bool {
        procfs::thread_stat(tid).is_some_and(|s| s.state == b'D')
    }

    /// Waits until none of these threads sleeps uninterruptibly, but at most for this time. Returns `false` if the time is over or the
    /// process ends. No thread is stopped for this.
    pub fn wait_awake(&self, threads: &[Tid], at_most: Duration) -> bool {
        let begin = Instant::now();
        while threads.iter().any(|tid| self.is_asleep(*tid)) {
            if begin.elapsed() >= at_most || self.ends_within(LOOK) {
                return false;
            }
        }
        true
    }

    /// Resets to 0 the gs bases that an earlier engine has left in threads and that point to no memory. The caller has checked that the
    /// program does not use the gs base itself, and that no code is woven.
    pub fn reset_residue(&self) -> Result<(), ProcessError> {
        let _unbounded = self.bound_holds(None); // This is the rest of a removal.
        self.trace(|tracer| {
            tracer.seize_all()?;
            tracer.stop_all()?;
            let maps = self.maps()?;
            for i in 0..tracer.threads.len() {
                if let Some(regs) = tracer.regs(i)?.filter(|regs| is_residue(regs.gs_base, &maps)) {
                    tracer.set_regs(i, &Regs { gs_base: 0, ..regs })?;
                }
            }
            tracer.repair_all()
        })?
    }
}

/// Facts that decide whether a thread can have a gs base of an area.
struct AreaFacts {
    identity: u32,
    /// Time at which the area was created, in clock ticks since boot; 0 if it is unknown.
    made: u64,
    claims: Vec<u64>,
    /// Whether the process has inherited the area by fork. Its thread then has a gs base that is claimed for a thread of its parent.
    inherited: bool,
}

impl AreaFacts {
    /// Reads the facts of an area. Returns `None` if the area cannot be read; any thread may then have one of its gs bases.
    fn read(target: &Target, area: &DataArea) -> Option<Self> {
        let at = |offset: u32| Avma(area.base.0 + u64::from(offset));
        let word = |offset| {
            let mut bytes = [0; 4];
            target.read(at(offset), &mut bytes).ok().map(|()| u32::from_le_bytes(bytes))
        };
        let mut claims = vec![0; 8 * area.shards.min(SHARDS_MAX) as usize];
        target.read(at(CLAIMS), &mut claims).ok()?;
        let own_id = target.status().ok()?.own_id;
        Some(AreaFacts {
            identity: word(header::IDENTITY)?,
            made: target.read_u64(at(header::MADE)).ok()?,
            claims: claims.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?))).collect(),
            inherited: word(header::TARGET_PID)? != own_id as u32,
        })
    }

    fn may_have_base(&self, target: &Target, tid: Tid) -> bool {
        match self.identity {
            LOCKED => return false,
            // A vfork child has the gs base of the thread that created it.
            BY_ID if !self.inherited && procfs::is_thread_of(target.pid(), tid) => {}
            _ => return true,
        }
        let Ok(status) = procfs::thread_status(target.pid(), tid) else { return true };
        // A thread begins with the gs base of the thread that created it.
        let is_older = procfs::thread_stat(tid).is_some_and(|s| s.start_time < self.made);
        !is_older || u64::try_from(status.own_id).map_or(true, |id| id == 0 || self.claims.contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(range: std::ops::Range<u64>, write: bool) -> Mapping {
        let permissions = if write { "rw-p" } else { "r--p" };
        let line = format!("{:x}-{:x} {permissions} 00000000 00:00 0", range.start, range.end);
        procfs::parse_maps(line.as_bytes()).remove(0)
    }

    #[test]
    fn residue_is_told_from_pointers() {
        let maps = [mapping(0x40_0000..0x50_0000, false), mapping(0x60_0000..0x70_0000, true)];
        for gs in [2 << 20, 5 << 20, (8191 << 20) + 0x38, 4 << 20, SHARDS_SPACE - (32 << 20)] {
            assert!(is_residue(gs, &maps), "{gs:#x}");
        }
        // No base, shard 1, shards beyond the last one, no offset of a shard, memory of the program.
        for gs in [0, 1 << 20, SHARDS_SPACE, (5 << 20) + 8, 0x7fff_1234_5678, 6 << 20, (6 << 20) + 0x38] {
            assert!(!is_residue(gs, &maps), "{gs:#x}");
        }
    }
}
