//! The engine's access to the data area: the memory in which the target counts.

mod aside;
mod freed;

use std::collections::HashSet;
use std::fs::File;
use std::hash::BuildHasher;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ingraft_model::layout::{self, birth, goroutine, header, record, stacks};
use ingraft_model::{Avma, AvmaRange, CpuClock, DataArea, Pid, ThreadIdentity, WallClock};
use memmap2::MmapRaw;
use rustix::fs::FlockOperation;
use rustix::thread::futex;
use rustix::time::Timespec;

use crate::bases;
use crate::error::ProcessError;
use crate::fault::GuardedMapping;
use crate::pages::PopulatedPages;
use crate::perf::EventAttributes;
use crate::target::{ProcessIdentity, Target};
use crate::target_memory::DataAreaRequest;

/// Largest number of counters of a shard that are read without a question which of their pages have memory.
const FEW_COUNTERS: u32 = 52_000;

/// The data area of a target.
#[derive(Debug)]
pub struct SharedArea {
    layout: DataArea,
    access: AreaAccess,
    /// Largest of the ends of the claimed shards and the claim hints that were read; [`UNKNOWN`] before the first reading.
    claimed_to: AtomicU32,
    /// The first shard whose memory goes back to the kernel when its thread has ended.
    kept_to: AtomicU32,
}

#[derive(Debug)]
enum AreaAccess {
    /// The area is mapped in this process as well. The engine opened the file behind `lock` once more, so a lock on it ends with the
    /// engine.
    Mapped { map: GuardedMapping, lock: Option<OwnedFd> },
    /// Access through the target's memory, for a successor that may not map the file.
    Through(Arc<Target>),
}

/// One claimed shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Index of the shard.
    pub shard: u32,
    /// Identity of the thread that holds it (its id, or its fs base).
    pub owner: u64,
}

/// Fork children that have registered in the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForkChildren {
    /// Process ids of the children in their own pid namespaces.
    pub pids: Vec<Pid>,
    /// Number of all children. Of some, the ids are not known.
    pub count: u32,
}

impl SharedArea {
    /// Maps a data area into this process. `memfd` is its file; `lock` is a second descriptor, which was opened separately.
    pub(crate) fn map(layout: DataArea, memfd: &OwnedFd, lock: Option<OwnedFd>) -> Result<Self, ProcessError> {
        let own = |source| ProcessError::Own { what: "map the data area", source };
        let len = usize::try_from(layout.len()).map_err(|_| ProcessError::Outside(layout.len()))?;
        let map = memmap2::MmapOptions::new().len(len).no_reserve_swap().map_raw(memfd).map_err(own)?;
        let map = GuardedMapping::new(map).map_err(own)?;
        Ok(SharedArea::new(layout, AreaAccess::Mapped { map, lock }))
    }

    pub(crate) fn through(layout: DataArea, target: Arc<Target>) -> Self {
        SharedArea::new(layout, AreaAccess::Through(target))
    }

    fn new(layout: DataArea, access: AreaAccess) -> Self {
        // The claims from before this engine are unknown, so the first call of `all_claims` reads all of them.
        SharedArea { layout, access, claimed_to: AtomicU32::new(UNKNOWN), kept_to: AtomicU32::new(UNKNOWN) }
    }

    /// Address and size of the area in the target.
    pub fn layout(&self) -> DataArea {
        self.layout
    }

    /// Memory that the area occupies at present, in bytes. `None` if the file's status cannot be read, or if this process has no descriptor
    /// for the lock.
    pub(crate) fn allocated(&self) -> Option<u64> {
        match &self.access {
            AreaAccess::Mapped { lock: Some(file), .. } => {
                u64::try_from(rustix::fs::fstat(file).ok()?.st_blocks).ok()?.checked_mul(512)
            }
            AreaAccess::Mapped { .. } | AreaAccess::Through(_) => None,
        }
    }

    /// Whether reads and writes need no system call.
    pub fn is_mapped(&self) -> bool {
        matches!(self.access, AreaAccess::Mapped { .. })
    }

    /// Whether the kernel could not provide a page of the area in this process (a memory limit, a hardware error). Such a page reads as 0.
    pub fn is_broken(&self) -> bool {
        matches!(&self.access, AreaAccess::Mapped { map, .. } if map.is_broken())
    }

    /// Takes the lock of the area, which only one engine can hold and which ends with the engine. The engine that creates an area has it
    /// already. Returns `None` if this access has no lock; then only the header names the holder.
    pub fn try_lock(&self) -> Option<bool> {
        match &self.access {
            AreaAccess::Mapped { lock: Some(file), .. } => Some(lock_file(file)),
            AreaAccess::Mapped { .. } | AreaAccess::Through(_) => None,
        }
    }

    #[inline]
    fn check_bytes(&self, offset: u64, len: usize) -> Result<(), ProcessError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= self.layout.len() => Ok(()),
            _ => Err(ProcessError::Outside(offset)),
        }
    }

    /// Checks that `count` aligned words of `size` bytes each lie inside the area at `offset`.
    #[inline]
    fn check(&self, offset: u64, size: usize, count: usize) -> Result<(), ProcessError> {
        let len = size.checked_mul(count).ok_or(ProcessError::Outside(offset))?;
        if offset.is_multiple_of(size as u64) {
            self.check_bytes(offset, len)
        } else {
            Err(ProcessError::Outside(offset))
        }
    }

    fn at(&self, offset: u64) -> Avma {
        Avma(self.layout.base.0 + offset)
    }

    /// Reads a u64 at an offset (a multiple of 8).
    #[inline]
    pub fn read_u64(&self, offset: u64) -> Result<u64, ProcessError> {
        self.check(offset, 8, 1)?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => Ok(word64(map, offset).load(Ordering::Acquire)),
            AreaAccess::Through(target) => target.read_u64(self.at(offset)),
        }
    }

    /// Writes a u64 at an offset (a multiple of 8).
    pub fn write_u64(&self, offset: u64, value: u64) -> Result<(), ProcessError> {
        self.check(offset, 8, 1)?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => {
                word64(map, offset).store(value, Ordering::Release);
                Ok(())
            }
            AreaAccess::Through(target) => target.write(self.at(offset), &value.to_le_bytes()),
        }
    }

    /// Reads a u32 at an offset (a multiple of 4).
    pub fn read_u32(&self, offset: u64) -> Result<u32, ProcessError> {
        self.check(offset, 4, 1)?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => Ok(word32(map, offset).load(Ordering::Acquire)),
            AreaAccess::Through(target) => {
                let mut bytes = [0; 4];
                target.read(self.at(offset), &mut bytes)?;
                Ok(u32::from_le_bytes(bytes))
            }
        }
    }

    /// Writes a u32 at an offset (a multiple of 4).
    pub fn write_u32(&self, offset: u64, value: u32) -> Result<(), ProcessError> {
        self.check(offset, 4, 1)?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => {
                word32(map, offset).store(value, Ordering::Release);
                Ok(())
            }
            AreaAccess::Through(target) => target.write(self.at(offset), &value.to_le_bytes()),
        }
    }

    /// Reads consecutive u64 at an offset (a multiple of 8).
    pub fn read_words(&self, offset: u64, words: &mut [u64]) -> Result<(), ProcessError> {
        self.check(offset, 8, words.len())?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => {
                for (i, word) in words.iter_mut().enumerate() {
                    *word = word64(map, offset + 8 * i as u64).load(Ordering::Relaxed);
                }
            }
            AreaAccess::Through(target) => {
                let mut bytes = vec![0; 8 * words.len()];
                target.read(self.at(offset), &mut bytes)?;
                for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                    *word = chunk.try_into().map(u64::from_le_bytes).unwrap_or(0);
                }
            }
        }
        Ok(())
    }

    /// Reads bytes.
    pub fn read_bytes(&self, offset: u64, bytes: &mut [u8]) -> Result<(), ProcessError> {
        self.check_bytes(offset, bytes.len())?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => copy_out(map, offset, bytes),
            AreaAccess::Through(target) => target.read(self.at(offset), bytes)?,
        }
        Ok(())
    }

    /// Writes bytes.
    pub fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<(), ProcessError> {
        self.check_bytes(offset, bytes.len())?;
        match &self.access {
            AreaAccess::Mapped { map, .. } => copy_in(map, offset, bytes),
            AreaAccess::Through(target) => target.write(self.at(offset), bytes)?,
        }
        Ok(())
    }

    /// Sets whether the engine answers threads at the loader's hook from now on. An area that is not mapped here cannot answer.
    pub fn listen(&self, listening: bool) -> Result<(), ProcessError> {
        self.write_u32(header::LISTENING.into(), u32::from(listening && self.is_mapped()))
    }

    /// Whether the engine answers threads at the loader's hook, and no thread has timed out there since [`SharedArea::listen`].
    pub fn is_listening(&self) -> bool {
        self.read_u32(header::LISTENING.into()).is_ok_and(|word| word != 0)
    }

    /// Returns how many times the loader has finished mapping or unmapping. Waits at most `at_most` for that number to differ from `seen`.
    pub fn wait_for_loads(&self, seen: u32, at_most: Duration) -> Result<u32, ProcessError> {
        let at = u64::from(header::LOADS);
        self.check(at, 4, 1)?;
        if let AreaAccess::Mapped { map, .. } = &self.access {
            let timeout = Timespec { tv_sec: at_most.as_secs().cast_signed(), tv_nsec: at_most.subsec_nanos().into() };
            // The number shows whether a load has ended, whatever ended the wait.
            let _ = futex::wait(word32(map, at), futex::Flags::empty(), seen, Some(&timeout));
        } else {
            std::thread::sleep(at_most);
        }
        self.read_u32(at)
    }

    /// Releases the threads at the loader's hook that arrived up to this result of [`SharedArea::wait_for_loads`].
    pub fn answer(&self, loads: u32) -> Result<(), ProcessError> {
        let at = u64::from(header::ANSWERED);
        self.write_u32(at, loads)?;
        if let AreaAccess::Mapped { map, .. } = &self.access {
            // A thread that misses the wake-up reads the number itself when its time is over.
            let _ = futex::wake(word32(map, at), futex::Flags::empty(), i32::MAX.cast_unsigned());
        }
        Ok(())
    }

    /// Renews the wait of threads at the loader's hook: a thread that reaches its time limit waits once more.
    pub fn renew(&self) -> Result<(), ProcessError> {
        self.write_u32(header::RENEWED.into(), 1)
    }

    /// Stops answering threads at the loader's hook, and releases those that wait there.
    pub fn stop_listening(&self) -> Result<(), ProcessError> {
        self.listen(false)?;
        let loads = self.read_u32(header::LOADS.into())?;
        self.answer(loads)
    }

    /// Permits threads to wait for room in their buffers, if no thread may wait yet.
    pub fn begin_waits(&self) -> Result<(), ProcessError> {
        match self.read_u32(header::DRAINS.into())? {
            0 => self.write_u32(header::DRAINS.into(), 1),
            _ => Ok(()),
        }
    }

    /// Tells threads that wait for room that their buffers were emptied. Threads may wait from then on. `drains` is the number of times that the
    /// engine has told so before; the call increments it.
    pub fn drained(&self, drains: &mut u32) -> Result<(), ProcessError> {
        // 0 means that no thread may wait.
        *drains = drains.wrapping_add(1).max(1);
        self.wake_waiters(*drains)
    }

    /// Ends the waits for room in buffers: no thread waits until the next call of [`SharedArea::drained`] or [`SharedArea::begin_waits`].
    pub fn end_waits(&self) -> Result<(), ProcessError> {
        self.wake_waiters(0)
    }

    fn wake_waiters(&self, drains: u32) -> Result<(), ProcessError> {
        let at = u64::from(header::DRAINS);
        self.write_u32(at, drains)?;
        if let AreaAccess::Mapped { map, .. } = &self.access {
            // A thread that misses this reads the number itself when its time is over.
            let _ = futex::wake(word32(map, at), futex::Flags::empty(), i32::MAX.cast_unsigned());
        }
        Ok(())
    }

    /// Writes the whole header of a new area. The magic comes last: without it, no engine recognises the area.
    pub(crate) fn write_header(
        &self,
        target_pid: Pid,
        request: &DataAreaRequest,
        holder: &ProcessIdentity,
    ) -> Result<(), ProcessError> {
        let (kind, offset) = match request.identity {
            ThreadIdentity::Locked => (0, 0),
            ThreadIdentity::FsOffset(offset) => (1, offset),
            ThreadIdentity::FsBase => (2, 0),
        };
        let u32s = [
            (header::VERSION, layout::LAYOUT_VERSION),
            (header::IDENTITY, kind),
            (header::IDENTITY_OFFSET, offset),
            (header::SHARDS, self.layout.shards),
            (header::CLAIM_HINT, layout::FIRST_SHARD),
            (header::TARGET_PID, target_pid.0 as u32),
            (header::FAMILY, request.family.into()),
        ];
        for (at, value) in u32s {
            self.write_u32(at.into(), value)?;
        }
        if let CpuClock::Rseq { slot, signature } = request.cpu {
            // An empty critical section at the descriptor's own address: it contains no instruction.
            let descriptor = self.at(header::DESCRIPTOR.into()).0;
            let words = [0, descriptor, 0, descriptor + u64::from(header::SIGNATURE - header::DESCRIPTOR) + 4];
            for (at, word) in (u64::from(header::DESCRIPTOR)..).step_by(8).zip(words) {
                self.write_u64(at, word)?;
            }
            self.write_u32(header::SIGNATURE.into(), signature)?;
            self.write_u32(header::CPU_SLOT.into(), slot.cast_unsigned())?;
        }
        if request.family {
            self.write_u64(claim_at(birth::RULES), 1 << birth::RESERVED)?;
        }
        if let Some(goroutine) = request.goroutine {
            self.write_u64(claim_at(goroutine::SHARD), 1 << birth::RESERVED)?;
            self.write_u32(header::GOROUTINE.into(), goroutine.cast_unsigned())?;
        }
        if request.stacks {
            self.write_u64(claim_at(stacks::SHARD), 1 << birth::RESERVED)?;
        }
        self.write_u64(header::WALL_CLOCK.into(), request.wall.word())?;
        self.write_u64(header::MADE.into(), bases::now_ticks())?;
        self.write_u64(header::STRIDE.into(), self.layout.stride)?;
        self.write_u64(header::JOURNAL_OFFSET.into(), self.layout.journal_offset())?;
        self.set_holder(holder)?;
        self.write_u64(header::MAGIC.into(), u64::from_le_bytes(layout::MAGIC))
    }

    /// Engine that holds the target, according to the header.
    pub fn holder(&self) -> Result<ProcessIdentity, ProcessError> {
        let mut boot_id = [0; 16];
        self.read_bytes(header::BOOT_ID.into(), &mut boot_id)?;
        Ok(ProcessIdentity {
            pid: Pid(self.read_u32(header::HOLDER_PID.into())? as i32),
            start_time: self.read_u64(header::HOLDER_START.into())?,
            boot_id,
        })
    }

    /// Writes the holder into the header.
    pub fn set_holder(&self, holder: &ProcessIdentity) -> Result<(), ProcessError> {
        self.write_u32(header::HOLDER_PID.into(), holder.pid.0 as u32)?;
        self.write_u64(header::HOLDER_START.into(), holder.start_time)?;
        self.write_bytes(header::BOOT_ID.into(), &holder.boot_id)
    }

    /// Offset from fs of the pointer to the goroutine that a thread executes, if the area has records of goroutines.
    pub fn goroutine(&self) -> Result<Option<i32>, ProcessError> {
        let offset = self.read_u32(header::GOROUTINE.into())?.cast_signed();
        Ok(Some(offset).filter(|offset| *offset != 0 && self.layout.stride >= goroutine::STRIDE_MIN))
    }

    /// Whether records of calls on other stacks are set aside: no thread claims their shard.
    pub fn sets_stacks_aside(&self) -> Result<bool, ProcessError> {
        let has_room = self.layout.stride >= stacks::STRIDE_MIN && self.layout.shards > stacks::SHARD;
        Ok(has_room && self.read_u64(claim_at(stacks::SHARD))? >> birth::RESERVED == 1)
    }

    /// Whether fork children are measured with the target, like its threads.
    pub fn is_family(&self) -> Result<bool, ProcessError> {
        Ok(self.read_u32(header::FAMILY.into())? != 0)
    }

    /// Way in which generated code tells threads apart, according to the header.
    pub fn identity(&self) -> Result<ThreadIdentity, ProcessError> {
        Ok(match self.read_u32(header::IDENTITY.into())? {
            1 => ThreadIdentity::FsOffset(self.read_u32(header::IDENTITY_OFFSET.into())?),
            2 => ThreadIdentity::FsBase,
            _ => ThreadIdentity::Locked,
        })
    }

    /// Way in which generated code reads processor time, according to the header. The header of a dead engine's area has the same value for
    /// a system call and for no clock; this function returns a system call for both.
    pub fn cpu_clock(&self) -> Result<CpuClock, ProcessError> {
        Ok(match self.read_u32(header::CPU_SLOT.into())?.cast_signed() {
            0 => CpuClock::SystemCall,
            slot => CpuClock::Rseq { slot, signature: self.read_u32(header::SIGNATURE.into())? },
        })
    }

    /// Way in which generated code reads the time, according to the header.
    pub fn wall_clock(&self) -> Result<WallClock, ProcessError> {
        self.read_u64(header::WALL_CLOCK.into()).map(WallClock::of_word)
    }

    /// Ticks in a nanosecond of processor time, times 2^32. If the header has no value yet, sets it to `rate` and returns `rate`.
    pub fn cpu_rate(&self, rate: u64) -> Result<u64, ProcessError> {
        match self.read_u64(header::CPU_RATE.into())? {
            0 => self.write_u64(header::CPU_RATE.into(), rate).map(|()| rate),
            known => Ok(known),
        }
    }

    /// The last reading of processor time, in ticks, of the thread that owns a shard.
    pub fn cpu_last(&self, shard: u32) -> Result<u64, ProcessError> {
        self.read_u64(self.layout.stride * u64::from(shard) + u64::from(layout::CPU_LAST))
    }

    /// Stores in the header the address at which an ended thread had its pointer to a descriptor. Returns whether the header contains the
    /// address.
    fn remember_slot(&self, slot: u64) -> Result<bool, ProcessError> {
        let count = self.read_u32(header::SLOTS_COUNT.into())?.min(header::SLOTS_MAX);
        let mut known = vec![0; count as usize];
        self.read_words(header::SLOTS.into(), &mut known)?;
        if slot == 0 || known.contains(&slot) {
            return Ok(true);
        }
        if count == header::SLOTS_MAX {
            return Ok(false);
        }
        self.write_u64(u64::from(header::SLOTS) + 8 * u64::from(count), slot)?;
        self.write_u32(header::SLOTS_COUNT.into(), count + 1)?;
        Ok(true)
    }

    /// Number of calls of functions of the target that are known to have ended without a return, and number of snippets with calls that
    /// were skipped.
    pub fn calls_amiss(&self) -> Result<(u32, u32), ProcessError> {
        Ok((self.read_u32(header::CALLS_LEFT.into())?, self.read_u32(header::CALLS_MISSED.into())?))
    }

    /// Number of writes to the program's memory that failed.
    pub fn writes_failed(&self) -> Result<u32, ProcessError> {
        self.read_u32(header::WRITES_FAILED.into())
    }

    /// Number of failed reads of the program's memory.
    pub fn reads_failed(&self) -> Result<u32, ProcessError> {
        self.read_u32(header::READS_FAILED.into())
    }

    /// Number of failed readings of processor events.
    pub fn events_unread(&self) -> Result<u32, ProcessError> {
        self.read_u32(header::EVENTS_UNREAD.into())
    }

    /// Sets the attributes with which threads open their counters of an event.
    pub fn set_event(&self, number: u32, attributes: &EventAttributes) -> Result<(), ProcessError> {
        (event_at(number)..).step_by(8).zip(attributes).try_for_each(|(at, word)| self.write_u64(at, *word))
    }

    /// Clears an event: its attributes, and the words of its counter in every claimed shard.
    pub(crate) fn forget_event(&self, number: u32) -> Result<(), ProcessError> {
        self.claims()?.into_iter().try_for_each(|claim| self.forget_event_of(claim.shard, number))?;
        self.set_event(number, &EventAttributes::default())
    }

    fn forget_event_of(&self, shard: u32, number: u32) -> Result<(), ProcessError> {
        let words = self.shard_start(shard) + u64::from(layout::EVENT_WORDS + layout::EVENT_WORDS_BYTES * number);
        self.write_u64(words, 0)?;
        self.write_u64(words + 8, 0)
    }

    /// Whether fork children begin with the state of the thread that forked.
    pub fn follows_births(&self) -> Result<bool, ProcessError> {
        Ok(self.read_u32(header::FORKS.into())? != 0)
    }

    /// Records in the header that fork children begin with the state of the thread that forked.
    pub fn follow_births(&self) -> Result<(), ProcessError> {
        self.write_u32(header::FORKS.into(), 1)
    }

    /// Number of forks that found no free shard for their child.
    pub fn births_missed(&self) -> Result<u32, ProcessError> {
        self.read_u32(header::BIRTHS_MISSED.into())
    }

    /// Whether the owner of a shard began with the state of the thread that forked it.
    pub fn was_born(&self, shard: u32) -> Result<bool, ProcessError> {
        let at = self.shard_start(shard) + u64::from(self.layout.records() + birth::BORN);
        Ok(self.read_u64(at)? != 0)
    }

    /// The shards that were claimed for children whose fork has failed. They can be freed.
    pub fn unborn(&self) -> Result<Vec<u32>, ProcessError> {
        let failed = |claim: &Claim| claim.owner == 1 << birth::FAILED;
        Ok(self.all_claims()?.into_iter().filter(failed).map(|claim| claim.shard).collect())
    }

    /// The claims of threads. The shard of a child that is not born completely belongs to no thread yet.
    pub fn claims(&self) -> Result<Vec<Claim>, ProcessError> {
        let held = |claim: &Claim| claim.owner >> birth::RESERVED == 0;
        Ok(self.all_claims()?.into_iter().filter(held).collect())
    }

    /// The shards that are not free.
    ///
    /// A thread raises the hint by one, and takes the first free shard from the hint's old value on. So above the highest hint, the claimed
    /// shards follow each other without a gap, and the first free one ends the search.
    fn all_claims(&self) -> Result<Vec<Claim>, ProcessError> {
        let shards = self.layout.shards.min(layout::SHARDS_MAX);
        let hint = self.read_u32(header::CLAIM_HINT.into())?;
        let sure = self.claimed_to.load(Ordering::Relaxed).max(hint).min(shards);
        let mut owners = vec![0; sure as usize];
        self.read_words(layout::CLAIMS.into(), &mut owners)?;
        for shard in sure..shards {
            match self.read_u64(claim_at(shard))? {
                0 => break,
                owner => owners.push(owner),
            }
        }
        let claimed = (0u32..).zip(owners).skip(layout::FIRST_SHARD as usize).filter(|&(_, owner)| owner != 0);
        let claims: Vec<_> = claimed.map(|(shard, owner)| Claim { shard, owner }).collect();
        let end = claims.last().map_or(0, |claim| claim.shard + 1);
        let seen = |to| Some(if to == UNKNOWN { end } else { end.max(to) });
        let _ = self.claimed_to.fetch_update(Ordering::Relaxed, Ordering::Relaxed, seen);
        Ok(claims)
    }

    /// Lowers the hint to this shard if the hint is higher. The next thread then begins its search there.
    fn lower_hint(&self, shard: u32) -> Result<(), ProcessError> {
        let hint = u64::from(header::CLAIM_HINT);
        let before = match &self.access {
            AreaAccess::Mapped { map, .. } => word32(map, hint).fetch_min(shard, Ordering::AcqRel),
            AreaAccess::Through(_) => {
                let before = self.read_u32(hint)?;
                self.write_u32(hint, before.min(shard))?;
                before
            }
        };
        // A thread that has raised the hint to this value may not have claimed its shard yet.
        self.claimed_to.fetch_max(before, Ordering::Relaxed);
        Ok(())
    }

    /// Claims a free shard for a thread, as the thread itself would do. Returns `None` if no shard is free. The caller then has to set the
    /// gs base of the held thread; with it, the thread finds that it owns the shard.
    pub fn claim(&self, identity: u64) -> Result<Option<u32>, ProcessError> {
        for shard in layout::FIRST_SHARD..self.layout.shards.min(layout::SHARDS_MAX) {
            let claim = claim_at(shard);
            if self.read_u64(claim)? != 0 {
                continue;
            }
            let won = match &self.access {
                AreaAccess::Mapped { map, .. } => {
                    word64(map, claim).compare_exchange(0, identity, Ordering::AcqRel, Ordering::Acquire).is_ok()
                }
                // No thread claims anything while all threads are held.
                AreaAccess::Through(_) => self.write_u64(claim, identity).is_ok(),
            };
            if won {
                self.write_u64(self.shard_start(shard) + u64::from(layout::OWNER), identity)?;
                return Ok(Some(shard));
            }
        }
        Ok(None)
    }

    #[inline]
    fn shard_start(&self, shard: u32) -> u64 {
        self.layout.stride * u64::from(shard)
    }

    #[inline]
    fn counter_at(&self, shard: u32, index: u32) -> u64 {
        self.shard_start(shard) + u64::from(layout::COUNTERS) + 8 * u64::from(index)
    }

    /// One counter of one shard.
    #[inline]
    pub fn counter(&self, shard: u32, index: u32) -> Result<u64, ProcessError> {
        self.read_u64(self.counter_at(shard, index))
    }

    /// One counter of one shard; 0 if it cannot be read.
    #[inline]
    pub fn counter_or_zero(&self, shard: u32, index: u32) -> u64 {
        let offset = self.counter_at(shard, index);
        match &self.access {
            // Fast path: the engine reads thousands of counters again and again.
            AreaAccess::Mapped { map, .. } if offset <= (map.len() as u64).saturating_sub(8) => {
                word64(map, offset).load(Ordering::Acquire)
            }
            AreaAccess::Mapped { .. } | AreaAccess::Through(_) => self.read_u64(offset).unwrap_or(0),
        }
    }

    /// Adjacent counters of one shard, as words that both sides change. `None` outside of the shard, or if the area is not mapped here.
    pub(crate) fn counter_words(&self, shard: u32, first: u32, counters: u32) -> Option<&[AtomicU64]> {
        let AreaAccess::Mapped { map, .. } = &self.access else { return None };
        let end = first.checked_add(counters)?;
        if shard >= self.layout.shards || end > self.layout.counters() {
            return None;
        }
        let (offset, counters) = (self.counter_at(shard, first), counters as usize);
        self.check(offset, 8, counters).ok()?;
        Some(words64(map, offset, counters))
    }

    /// Returns which of the first `counters` of a shard have memory. If these are few, all count as touched: a question to the kernel takes
    /// longer than the reading, and the reading allocates little.
    pub fn touched(&self, shard: u32, counters: u32) -> PopulatedPages {
        match &self.access {
            AreaAccess::Mapped { lock: Some(file), .. } if counters > FEW_COUNTERS => {
                PopulatedPages::of(file, self.shard_start(shard), counters.min(self.layout.counters()))
            }
            AreaAccess::Mapped { .. } | AreaAccess::Through(_) => PopulatedPages::ALL,
        }
    }

    /// The first `counters` of a shard that are not 0, in order, each with its index.
    fn values(&self, shard: u32, counters: u32) -> Result<Vec<(u32, u64)>, ProcessError> {
        let mut found = Vec::new();
        let mut words = Vec::new();
        for run in self.touched(shard, counters).runs(counters) {
            words.resize(run.len(), 0);
            self.read_words(self.counter_at(shard, run.start), &mut words)?;
            found.extend(run.zip(words.iter().copied()).filter(|(_, value)| *value != 0));
        }
        Ok(found)
    }

    /// Sets counters to 0 in shard 0 and in every claimed shard. No code may use these counters at the time.
    pub fn zero_counters(&self, counters: Range<u32>) -> Result<(), ProcessError> {
        let shards = self.claims()?.into_iter().map(|claim| claim.shard);
        for shard in std::iter::once(0).chain(shards) {
            let touched = self.touched(shard, counters.end);
            let mut there = counters.clone().filter(|index| touched.has(*index));
            there.try_for_each(|index| self.write_u64(self.counter_at(shard, index), 0))?;
        }
        Ok(())
    }

    /// The activation records that are open in a shard: the offset of each in the area, and the name that identifies it.
    fn open_records(&self, shard: u32) -> Result<Vec<(u64, u32)>, ProcessError> {
        let start = self.shard_start(shard);
        let top = self.read_u64(start + u64::from(layout::TOP))?.min(record::ROOM.into());
        let first = start + u64::from(self.layout.records());
        let at = (1..top / u64::from(record::SIZE)).map(|i| first + i * u64::from(record::SIZE));
        at.map(|at| Ok((at, self.read_u32(at + u64::from(record::NAME))?))).collect()
    }

    /// The first word that the last open record of a shard keeps; `None` without an open record. The thread runs meanwhile.
    pub fn last_kept(&self, shard: u32) -> Option<u64> {
        let start = self.shard_start(shard);
        let top = self.read_u64(start + u64::from(layout::TOP)).ok()?;
        let size = u64::from(record::SIZE);
        if top < 2 * size || top > u64::from(record::ROOM) || top % size != 0 {
            return None;
        }
        let at = start + u64::from(self.layout.records()) + top - size;
        self.read_u64(at + u64::from(record::KEPT)).ok()
    }

    /// The names of the activation records that are open in a shard.
    pub fn open_names(&self, shard: u32) -> Result<Vec<u32>, ProcessError> {
        Ok(self.open_records(shard)?.into_iter().map(|(_, name)| name).collect())
    }

    /// Clears the open records with these names (offsets in a shard), because their counters and flags get another use. No woven code may
    /// open or close these records any more.
    pub fn forget_records(&self, shard: u32, names: &HashSet<u32, impl BuildHasher>) -> Result<(), ProcessError> {
        let mut named = self.open_records(shard)?.into_iter().filter(|(_, name)| names.contains(name));
        named.try_for_each(|(at, name)| self.forget(at, name))
    }

    /// The records of goroutines, and those that are set aside, as far as they were ever used: the offset of each in the area, and the name that
    /// identifies it.
    fn common_records(&self) -> Result<Vec<(u64, u32)>, ProcessError> {
        let of = |shard: u32, [used, most, first, size]: [u32; 4]| -> Result<Vec<(u64, u32)>, ProcessError> {
            let start = self.shard_start(shard);
            let used = self.read_u32(start + u64::from(used))?.min(most);
            let at = |n: u32| start + u64::from(first) + u64::from(n) * u64::from(size);
            (1..=used).map(at).map(|at| Ok((at, self.read_u32(at + u64::from(record::NAME))?))).collect()
        };
        if self.goroutine()?.is_some() {
            return of(goroutine::SHARD, [goroutine::USED, goroutine::RECORDS_MAX, goroutine::RECORDS, record::SIZE]);
        }
        match self.sets_stacks_aside()? {
            true => of(stacks::SHARD, [stacks::USED, stacks::RECORDS_MAX, stacks::RECORDS, stacks::RECORD]),
            false => Ok(Vec::new()),
        }
    }

    /// Clears the records of goroutines, and those that are set aside, as [`SharedArea::forget_records`] does for a shard.
    pub fn forget_common_records(&self, names: &HashSet<u32, impl BuildHasher>) -> Result<(), ProcessError> {
        let mut named = self.common_records()?.into_iter().filter(|(_, name)| *name != 0 && names.contains(name));
        named.try_for_each(|(at, name)| self.forget(at, name))
    }

    /// Clears the record at an offset if it still has this name: the thread may have dropped it meanwhile, and another call may use it.
    fn forget(&self, at: u64, name: u32) -> Result<(), ProcessError> {
        // The name is the lower half of the word, what is set back the upper one.
        let at = at + u64::from(record::NAME);
        let is_its = |word: u64| word as u32 == name;
        match &self.access {
            AreaAccess::Mapped { map, .. } => {
                let forgotten = |word| is_its(word).then_some(0);
                let _other = word64(map, at).fetch_update(Ordering::AcqRel, Ordering::Acquire, forgotten);
            }
            AreaAccess::Through(_) if is_its(self.read_u64(at)?) => self.write_u64(at, 0)?,
            AreaAccess::Through(_) => {}
        }
        Ok(())
    }

    /// Ends what calls of goroutines have begun to note. No code that keeps notes may be in the target.
    pub fn end_goroutine_notes(&self) -> Result<(), ProcessError> {
        let start = self.shard_start(goroutine::SHARD);
        if self.goroutine()?.is_none() || self.read_u32(start + u64::from(goroutine::USED))? == 0 {
            return Ok(());
        }
        let place_words = goroutine::PLACE as usize / 8;
        let mut words = vec![0; place_words * ((1 << goroutine::PLACE_BITS) + goroutine::PROBES as usize)];
        let places = start + u64::from(goroutine::PLACES);
        self.read_words(places, &mut words)?;
        for (n, place) in (0..).zip(words.chunks_exact(place_words)) {
            if place[goroutine::NOTES_KEY as usize / 8] != 0 {
                self.write_u32(places + n * u64::from(goroutine::PLACE) + u64::from(goroutine::NOTES_KEY), 0)?;
            }
        }
        Ok(())
    }

    /// Clears the open records, in all shards, whose names are not among `names`; see [`SharedArea::forget_records`].
    pub fn forget_other_records(&self, names: &HashSet<u32, impl BuildHasher>) -> Result<(), ProcessError> {
        for claim in self.claims()? {
            let open = self.open_records(claim.shard)?;
            let others = open.into_iter().map(|(_, name)| name).filter(|name| *name != 0 && !names.contains(name));
            self.forget_records(claim.shard, &others.collect::<HashSet<u32>>())?;
        }
        let parked = self.common_records()?.into_iter().map(|(_, name)| name);
        self.forget_common_records(&parked.filter(|name| !names.contains(name)).collect::<HashSet<u32>>())?;
        Ok(())
    }

    /// The fork children that have registered in the header.
    pub fn children(&self) -> Result<ForkChildren, ProcessError> {
        let count = self.read_u32(header::CHILDREN_COUNT.into())?;
        let known = count.min(header::CHILDREN_MAX);
        let pids = (0..known).map(|i| self.read_u32(u64::from(header::CHILDREN + 4 * i)).map(|p| Pid(p as i32)));
        let pids: Vec<Pid> = pids.collect::<Result<_, _>>()?;
        Ok(ForkChildren { pids: pids.into_iter().filter(|p| p.0 != 0).collect(), count })
    }

    /// Replaces the journal's copy. Fails if it has more bytes than [`DataArea::journal_bytes`]. The length is 0 until the copy is complete,
    /// so that no reader uses a half-written copy.
    pub fn write_journal(&self, bytes: &[u8]) -> Result<(), ProcessError> {
        if bytes.len() as u64 > self.layout.journal_bytes {
            return Err(ProcessError::JournalFull { needed: bytes.len() as u64, room: self.layout.journal_bytes });
        }
        self.write_u64(header::JOURNAL_LEN.into(), 0)?;
        self.write_bytes(self.layout.journal_offset(), bytes)?;
        self.write_u64(header::JOURNAL_LEN.into(), bytes.len() as u64)
    }

    /// Appends to the journal's copy.
    pub fn append_journal(&self, bytes: &[u8]) -> Result<(), ProcessError> {
        let len = self.read_u64(header::JOURNAL_LEN.into())?;
        match len.checked_add(bytes.len() as u64) {
            Some(end) if end <= self.layout.journal_bytes => {
                self.write_bytes(self.layout.journal_offset() + len, bytes)?;
                self.write_u64(header::JOURNAL_LEN.into(), end)
            }
            _ => {
                let needed = len.saturating_add(bytes.len() as u64);
                Err(ProcessError::JournalFull { needed, room: self.layout.journal_bytes })
            }
        }
    }

    /// The journal's copy.
    pub fn read_journal(&self) -> Result<Vec<u8>, ProcessError> {
        let len = self.read_u64(header::JOURNAL_LEN.into())?.min(self.layout.journal_bytes);
        let mut bytes = vec![0; len as usize];
        if !bytes.is_empty() {
            self.read_bytes(self.layout.journal_offset(), &mut bytes)?;
        }
        Ok(bytes)
    }
}

/// Offset in the header of the attributes of an event.
fn event_at(number: u32) -> u64 {
    u64::from(header::EVENTS + header::EVENT_BYTES * (number % layout::EVENTS_MAX))
}

/// Opens a memfd once more, for a lock that only this engine holds: the target's mapping keeps the first opening alive.
pub(crate) fn reopen(memfd: &OwnedFd) -> std::io::Result<OwnedFd> {
    use std::os::fd::AsRawFd;
    Ok(File::options().read(true).write(true).open(format!("/proc/self/fd/{}", memfd.as_fd().as_raw_fd()))?.into())
}

/// Takes the lock of an area's file. Returns `false` if another process has it.
pub(crate) fn lock_file(file: &OwnedFd) -> bool {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok()
}

/// Layout of the area at `range` according to the bytes of its header. Fails if the header is missing, is of another version, or
/// contradicts the area's size.
pub(crate) fn parse_header(range: &AvmaRange, bytes: &[u8]) -> Result<DataArea, &'static str> {
    let u32_at =
        |o: u32| bytes.get(o as usize..o as usize + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
    let u64_at =
        |o: u32| bytes.get(o as usize..o as usize + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes);
    if !bytes.starts_with(&layout::MAGIC) {
        return Err("it has no header");
    }
    if u32_at(header::VERSION) != layout::LAYOUT_VERSION {
        return Err("another version made it");
    }
    let (stride, shards) = (u64_at(header::STRIDE), u32_at(header::SHARDS));
    let journal_offset = u64_at(header::JOURNAL_OFFSET);
    let sound = stride.is_power_of_two()
        && stride >= 2 * u64::from(layout::OWNER)
        && (layout::FIRST_SHARD..=layout::SHARDS_MAX).contains(&shards)
        && stride.checked_mul(shards.into()) == Some(journal_offset);
    let total = range.end.0.saturating_sub(range.start.0);
    match total.checked_sub(journal_offset) {
        Some(journal_bytes) if sound => Ok(DataArea { base: range.start, stride, shards, journal_bytes }),
        _ => Err("its header contradicts its size"),
    }
}

/// Value of [`SharedArea::claimed_to`] before the first reading: larger than any hint.
const UNKNOWN: u32 = u32::MAX;

/// Offset of a shard's claim.
fn claim_at(shard: u32) -> u64 {
    u64::from(layout::CLAIMS) + 8 * u64::from(shard)
}

fn word64(map: &MmapRaw, offset: u64) -> &AtomicU64 {
    let at = map.as_mut_ptr().wrapping_add(offset as usize).cast();
    // SAFETY: every caller has checked that 8 aligned bytes at `offset` lie inside the mapping, which lives as long as `map`;
    // everybody, the target included, accesses them as whole words.
    unsafe { AtomicU64::from_ptr(at) }
}

fn words64(map: &MmapRaw, offset: u64, count: usize) -> &[AtomicU64] {
    let at = map.as_mut_ptr().wrapping_add(offset as usize).cast::<AtomicU64>();
    // SAFETY: the caller has checked that so many aligned words lie inside the mapping, which lives as long as `map`. All accesses are
    // atomic: those of the engine by their type, those of the target because each stores one byte or one aligned word.
    unsafe { std::slice::from_raw_parts(at, count) }
}

fn word32(map: &MmapRaw, offset: u64) -> &AtomicU32 {
    let at = map.as_mut_ptr().wrapping_add(offset as usize).cast();
    // SAFETY: as above, 4 bytes.
    unsafe { AtomicU32::from_ptr(at) }
}

fn copy_out(map: &MmapRaw, offset: u64, bytes: &mut [u8]) {
    let from = map.as_ptr().wrapping_add(offset as usize);
    // SAFETY: the caller has checked that the range lies inside the mapping; `bytes` is ours and does not overlap it.
    unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
}

fn copy_in(map: &MmapRaw, offset: u64, bytes: &[u8]) {
    let to = map.as_mut_ptr().wrapping_add(offset as usize);
    // SAFETY: as above.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn area(shards: u32) -> SharedArea {
        let stride = (2 * u64::from(layout::OWNER)).next_power_of_two();
        let layout = DataArea { base: Avma(0), stride, shards, journal_bytes: 0 };
        let memfd = rustix::fs::memfd_create("area", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&memfd, layout.len()).unwrap();
        SharedArea::map(layout, &memfd, None).unwrap()
    }

    /// First of the two steps in which a thread claims a shard. Other threads may run between the two.
    fn aim(area: &SharedArea) -> u32 {
        let hint = area.read_u32(header::CLAIM_HINT.into()).unwrap();
        area.write_u32(header::CLAIM_HINT.into(), hint + 1).unwrap();
        if (layout::FIRST_SHARD..area.layout.shards).contains(&hint) {
            return hint;
        }
        area.write_u32(header::CLAIM_HINT.into(), layout::FIRST_SHARD + 1).unwrap();
        layout::FIRST_SHARD
    }

    fn take(area: &SharedArea, aim: u32) -> Option<u32> {
        let all = layout::FIRST_SHARD..area.layout.shards;
        let shard = (aim..all.end).chain(all.start..aim).find(|&s| area.read_u64(claim_at(s)).unwrap() == 0)?;
        area.write_u64(claim_at(shard), 1000 + u64::from(shard)).unwrap();
        Some(shard)
    }

    proptest! {
        /// Threads raise the hint, claim a free shard, and are freed, in any order. Every reading returns all claims, whatever readings
        /// came before.
        #[test]
        fn every_claim_is_seen(steps in proptest::collection::vec((0_u8..4, any::<prop::sample::Index>()), 1..200), begin in 0_usize..40) {
            let area = area(24);
            let (mut aims, mut held) = (Vec::new(), Vec::new());
            for (i, (step, which)) in steps.iter().enumerate() {
                match step {
                    0 => aims.push(aim(&area)),
                    1 if !aims.is_empty() => held.extend(take(&area, aims.swap_remove(which.index(aims.len())))),
                    2 if !held.is_empty() => {
                        // The engine frees only shards that it has read as claimed.
                        area.claims().unwrap();
                        let shard = held.swap_remove(which.index(held.len()));
                        area.free_shard(shard, 0).unwrap();
                    }
                    _ if i >= begin => {
                        held.sort_unstable();
                        let seen: Vec<u32> = area.claims().unwrap().iter().map(|claim| claim.shard).collect();
                        prop_assert_eq!(&seen, &held);
                    }
                    _ => (),
                }
            }
        }
    }
}
