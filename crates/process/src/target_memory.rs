//! Memory of the engine in the target: the data area and the code arenas. Remote system calls of the target map and unmap them.

use std::fs;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use ingraft_model::layout;
use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, CpuClock, DataArea, Pid, ThreadIdentity, WallClock};
use rustix::process::{PidfdGetfdFlags, pidfd_getfd};

use crate::address_search;
use crate::area::{SharedArea, lock_file, parse_header, reopen};
use crate::error::ProcessError;
use crate::limits::MemoryNeed;
use crate::procfs::Mapping;
use crate::remote::Remote;
use crate::seal;
use crate::survey::ATTEMPTS;
use crate::target::{ProcessIdentity, Target};

/// Name of the data area's file, as /proc/PID/maps shows it.
const NAME: &str = "ingraft";
/// The name by which /proc/PID/maps shows a data area.
pub const MAPS_NAME: &str = "/memfd:ingraft (deleted)";
/// The name by which /proc/PID/maps shows a counter's page.
const EVENT_NAME: &str = "anon_inode:[perf_event]";
/// Bound for a gs base plus a 32-bit displacement.
const TWO_GIB: u64 = 1 << 31;
/// Lowest address to use, unless the kernel's limit is higher.
const LOWEST: u64 = 0x10000;
/// Code goes below this address only where no other place is free. Most numbers that programs keep are smaller, and each word of a stack that
/// is the address of code which changes counts as a place to which something may return.
const SMALL: u64 = 0x40_0000;
/// Smallest number of shards with which an area is created if the memory of the target is limited.
const SHARDS_MIN: u32 = 64;
/// Smallest number of shards with which an area is created if no free range is longer.
const SHARDS_LEAST: u32 = 8;

/// Smallest number of shards if no free range is longer, for a program with this many threads: one for each, half as many for later threads,
/// and the first two. A heap of a JVM may leave no room for more, because it lies from 2 GiB or 3 GiB to 4 GiB, and a shard for 50,000
/// histograms takes 64 MiB.
fn fewest_shards(threads: usize) -> u32 {
    let shards = threads + threads / 2 + layout::FIRST_SHARD as usize;
    u32::try_from(shards).unwrap_or(u32::MAX).clamp(SHARDS_LEAST, SHARDS_MIN)
}

const PROT_RW: u64 = (libc::PROT_READ | libc::PROT_WRITE) as u64;
const PROT_RX: u64 = (libc::PROT_READ | libc::PROT_EXEC) as u64;
const MAP_AREA: u64 = (libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE) as u64;
const MAP_OWN_SHARD: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED) as u64;
const MAP_ARENA: u64 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
const NO_FILE: u64 = u64::MAX;

/// Properties of a new data area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataAreaRequest {
    /// Number of shards, including 0 and 1. If the target's address space is limited, fewer are created, but at least 64. If
    /// no free range is long enough, one and a half times as many as threads suffice.
    pub shards: u32,
    /// Bytes from one shard to the next, a power of two.
    pub stride: u64,
    /// Least number of bytes from one shard to the next, a power of two, if the target's address space has no room for more.
    pub least_stride: u64,
    /// Bytes of address space for the journal's copy.
    pub journal_bytes: u64,
    /// Method by which generated code tells threads apart, for the header.
    pub identity: ThreadIdentity,
    /// Method by which generated code reads processor time, for which the area is prepared.
    pub cpu: CpuClock,
    /// Method by which generated code reads the time, for the header.
    pub wall: WallClock,
    /// Whether fork children are measured with the target. This excludes [`ThreadIdentity::FsBase`], because a child inherits the fs base.
    pub family: bool,
    /// Offset from fs of the pointer to the goroutine that a thread executes, if calls of goroutines may be followed. Not together with
    /// `family`.
    pub goroutine: Option<i32>,
    /// Whether records of calls on other stacks are set aside. Not together with `goroutine` or `family`.
    pub stacks: bool,
}

impl Default for DataAreaRequest {
    fn default() -> Self {
        DataAreaRequest {
            shards: 4096,
            stride: layout::DEFAULT_STRIDE,
            least_stride: layout::DEFAULT_STRIDE,
            journal_bytes: layout::DEFAULT_JOURNAL,
            identity: ThreadIdentity::Locked,
            cpu: CpuClock::None,
            wall: WallClock::Tsc,
            family: false,
            goroutine: None,
            stacks: false,
        }
    }
}

impl DataAreaRequest {
    /// A request with this distance between shards. A larger distance gives fewer shards.
    pub fn of_stride(stride: u64) -> Self {
        let shards = u32::try_from(layout::SHARDS_SPACE / stride.max(1)).unwrap_or(u32::MAX);
        let usual = DataAreaRequest::default();
        DataAreaRequest { stride, least_stride: stride, shards: usual.shards.min(shards), ..usual }
    }

    /// A request for half of the address space: with a smaller distance between shards if that may be, or else with fewer shards. `None` if there
    /// would be less than `fewest` of them.
    fn smaller(self, fewest: u32) -> Option<Self> {
        if self.stride > self.least_stride {
            return Some(DataAreaRequest { stride: (self.stride / 2).max(self.least_stride), ..self });
        }
        (self.shards > fewest).then(|| DataAreaRequest { shards: (self.shards / 2).max(fewest), ..self })
    }
}

impl Target {
    /// Creates the data area in the target and maps it into this process. If it fails, nothing remains in the target.
    pub fn create_area(&self, request: &DataAreaRequest) -> Result<SharedArea, ProcessError> {
        let mut attempt = 1;
        loop {
            match self.create_area_once(request) {
                Err(ProcessError::Unstoppable { .. }) if attempt < ATTEMPTS => attempt += 1, // A thread got no processor.
                other => return other,
            }
        }
    }

    fn create_area_once(&self, request: &DataAreaRequest) -> Result<SharedArea, ProcessError> {
        let holder = ProcessIdentity::ours()?;
        let fewest = fewest_shards(self.threads()?.len());
        let request = &self.fit_area(request, SHARDS_MIN)?;
        let mut size = *request;
        size.shards = size.shards.clamp(SHARDS_MIN, layout::SHARDS_MAX);
        let locked = self.status()?.locked_kib != 0;
        let own_id = Pid(self.status()?.own_id);
        self.remote(|remote| {
            if !self.stray_files()?.is_empty() {
                // A `close` that a killed engine began may still be running in the target. Once all threads are held, it has ended, and
                // no thread reuses the number of a descriptor.
                remote.hold_all()?;
                for fd in self.stray_files()? {
                    remote.close(fd)?;
                }
            }
            loop {
                let made = self.try_area(remote, &size, locked).and_then(|area| {
                    let finish = |area: &SharedArea| {
                        area.write_header(own_id, request, &holder)?;
                        self.write(Avma(area.layout().alive().into()), &1u32.to_le_bytes())
                    };
                    match finish(&area) {
                        Ok(()) => Ok(area),
                        Err(e) => {
                            let _ = remote.munmap(&area.layout().range()); // Return the first error, not this one.
                            Err(e)
                        }
                    }
                });
                let fewest = match &made {
                    // The engine may have less address space than the target.
                    Err(ProcessError::Call { source, .. } | ProcessError::Own { source, .. })
                        if matches!(source.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN)) =>
                    {
                        SHARDS_MIN
                    }
                    Err(ProcessError::NoRoom { .. }) => fewest,
                    _ => return made,
                };
                match size.smaller(fewest) {
                    Some(smaller) => size = smaller,
                    None => return made,
                }
            }
        })
    }

    fn try_area(
        &self,
        remote: &mut Remote<'_>,
        request: &DataAreaRequest,
        locked: bool,
    ) -> Result<SharedArea, ProcessError> {
        let DataAreaRequest { stride, shards, .. } = *request;
        let journal_bytes = request.journal_bytes.next_multiple_of(PAGE);
        let len = stride * u64::from(shards) + journal_bytes;
        // Place the area as high as possible: a program at a fixed address has its heap below the area, and the heap grows upwards.
        let bases = lowest_address()..=TWO_GIB - 2 * stride - PAGE;
        let maps = self.maps()?;
        self.refuse_with_many_mappings(&maps)?;
        let base = self
            .find_free(&maps, 0, (len, stride.max(PAGE)), bases, TWO_GIB)
            .ok_or(ProcessError::NoRoom { len, place: "that begins below 2 GiB" })?;
        let layout = DataArea { base: Avma(base), stride, shards, journal_bytes };

        let name = remote.scratch_name()?;
        // Before Linux 6.3, memfd_create rejects MFD_NOEXEC_SEAL. Later kernels may require it (sysctl vm.memfd_noexec).
        let plain = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let create = |remote: &mut Remote<'_>, flags| {
            remote.syscall("memfd_create", libc::SYS_memfd_create, [name.0, flags, 0, 0, 0, 0])
        };
        let fd = match create(remote, plain | u64::from(libc::MFD_NOEXEC_SEAL)) {
            Err(ProcessError::Call { source, .. }) if source.raw_os_error() == Some(libc::EINVAL) => {
                create(remote, plain)?
            }
            other => other?,
        };
        let mapped = self.map_area(remote, &layout, fd, (locked, request.family));
        let closed = remote.close(fd);
        match (mapped, closed) {
            (Ok(area), Ok(())) => Ok(area),
            (Ok(_), Err(e)) => {
                let _ = remote.munmap(&layout.range()); // Return the first error, not this one.
                Err(e)
            }
            (Err(e), _) => Err(e),
        }
    }

    fn map_area(
        &self,
        remote: &mut Remote<'_>,
        layout: &DataArea,
        fd: u64,
        (locked, family): (bool, bool),
    ) -> Result<SharedArea, ProcessError> {
        let own = |what| move |e: rustix::io::Errno| ProcessError::Own { what, source: e.into() };
        let number = i32::try_from(fd).unwrap_or(-1);
        let memfd: OwnedFd =
            pidfd_getfd(self.pidfd(), number, PidfdGetfdFlags::empty()).map_err(own("pidfd_getfd of the data area"))?;
        // Another thread of the target may have put any file at this number, so check that the descriptor is the new memfd.
        seal::expect_fresh(&memfd)?;
        // Lock the file before /proc/PID/maps shows it. Otherwise another engine could take the unfinished area for a dead engine's.
        let lock = reopen(&memfd).ok().filter(lock_file);
        // The engine grows the file, not the target: the target's RLIMIT_FSIZE would kill it.
        rustix::fs::ftruncate(&memfd, layout.len()).map_err(own("grow the data area"))?;
        // Without the seal, any process that shares the file could truncate it, and the engine would get SIGBUS after the new end.
        seal::seal(&memfd, layout.len())?;
        let (base, len, stride) = (layout.base.0, layout.len(), layout.stride);
        // Under mlockall(2) the kernel populates a writable mapping at once. So map it without access, unlock it, and then make it
        // writable.
        let first = if locked { libc::PROT_NONE as u64 } else { PROT_RW };
        let at = remote.syscall("mmap of the data area", libc::SYS_mmap, [base, len, first, MAP_AREA, fd, 0])?;
        let rest = |remote: &mut Remote<'_>| {
            if at != base {
                return Err(ProcessError::NoRoom { len, place: "that begins below 2 GiB" }); // a kernel without NOREPLACE
            }
            let own_shard = base + stride * u64::from(layout::CHILD_SHARD);
            let args = [own_shard, stride, first, MAP_OWN_SHARD, NO_FILE, 0];
            remote.syscall("mmap of shard 1", libc::SYS_mmap, args)?;
            if locked {
                remote.syscall("munlock", libc::SYS_munlock, [base, len, 0, 0, 0, 0])?;
                remote.syscall("mprotect", libc::SYS_mprotect, [base, len, PROT_RW, 0, 0, 0])?;
            }
            let advice = |a: i32| a as u64;
            if !family {
                let args = [own_shard, stride, advice(libc::MADV_WIPEONFORK), 0, 0, 0];
                remote.syscall("madvise", libc::SYS_madvise, args)?;
            }
            remote.syscall("madvise", libc::SYS_madvise, [base, len, advice(libc::MADV_DONTDUMP), 0, 0, 0])?;
            SharedArea::map(*layout, &memfd, lock)
        };
        rest(remote).inspect_err(|_| {
            let _ = remote.munmap(&(Avma(at)..Avma(at + len))); // Return the first error, not this one.
        })
    }

    /// Returns the ranges of the data areas in the target, of any engine. A range reaches from the first to the last mapping of its area.
    pub fn find_areas(&self) -> Result<Vec<AvmaRange>, ProcessError> {
        Ok(areas_in(&self.maps()?))
    }

    /// Opens a data area that an earlier engine created. It is mapped into this process if that is permitted, and otherwise accessed
    /// through the target's memory.
    pub fn adopt_area(self: &Arc<Self>, range: &AvmaRange) -> Result<SharedArea, ProcessError> {
        let no_area = |why| ProcessError::NoArea { range: range.clone(), why };
        let mut head = vec![0; layout::header::CHILDREN as usize];
        self.read(range.start, &mut head)?;
        let layout = parse_header(range, &head).map_err(no_area)?;
        let first =
            self.maps()?.into_iter().find(|m| m.range.start == range.start).ok_or(no_area("it is not mapped"))?;
        let link = format!("/proc/{}/map_files/{:x}-{:x}", self.pid(), first.range.start.0, first.range.end.0);
        match fs::File::options().read(true).write(true).open(link) {
            // Any file can have this name, and the mapping may have been replaced since. Do not map a file that another process can
            // truncate, or that no engine has made.
            Ok(file) if seal::is_sealed(&file, layout.len()) => {
                let file = file.into();
                SharedArea::map(layout, &file, reopen(&file).ok())
            }
            _ => Ok(SharedArea::through(layout, Arc::clone(self))),
        }
    }

    /// Finds free pages for an arena of code such that a 32-bit displacement leads from each of its bytes to all of `near`, and back.
    pub fn find_arena(&self, near: &AvmaRange, bytes: u64) -> Result<AvmaRange, ProcessError> {
        let len = bytes.next_multiple_of(PAGE);
        self.refuse_without_room(MemoryNeed { charged: 0, address_space: len })?;
        let text = near.start.0..near.end.0;
        let maps = self.maps()?;
        self.refuse_with_many_mappings(&maps)?;
        let bases = address_search::bases_near(&text, len);
        let low = (*bases.start()).max(lowest_address());
        let find = |low, heap_room| {
            self.find_free(&maps, heap_room, (len, PAGE), low..=*bases.end(), text.start.saturating_sub(len))
        };
        let base = find(low.max(SMALL), address_search::HEAP_ROOM)
            .or_else(|| find(low, address_search::HEAP_ROOM))
            .or_else(|| find(low, 0))
            .ok_or(ProcessError::NoRoom { len, place: "within 2 GiB of the module" })?;
        Ok(Avma(base)..Avma(base + len))
    }

    /// Finds free pages for an arena and maps the arena there.
    pub fn map_arena(&self, near: &AvmaRange, bytes: u64) -> Result<AvmaRange, ProcessError> {
        loop {
            let arena = self.find_arena(near, bytes)?;
            if self.map_arena_at(&arena)? {
                return Ok(arena);
            }
        }
    }

    /// Maps an arena for code, readable and executable, at an address that [`Target::find_arena`] found. If the caller records the address
    /// in the journal, it does so before this call. Returns `false` if the target has since mapped something else there.
    pub fn map_arena_at(&self, arena: &AvmaRange) -> Result<bool, ProcessError> {
        let (base, len) = (arena.start.0, arena.end.0 - arena.start.0);
        self.remote(|remote| {
            let args = [base, len, PROT_RX, MAP_ARENA, NO_FILE, 0];
            match remote.syscall("mmap of an arena", libc::SYS_mmap, args) {
                Ok(at) if at == base => Ok(true),
                Ok(at) => remote.munmap(&(Avma(at)..Avma(at + len))).map(|()| false), // a kernel without NOREPLACE
                Err(ProcessError::Call { source, .. }) if source.raw_os_error() == Some(libc::EEXIST) => Ok(false),
                Err(e) => Err(e),
            }
        })
    }

    /// Unmaps memory of the engine. The caller must know that no thread uses it any more.
    pub fn unmap(&self, ranges: &[AvmaRange]) -> Result<(), ProcessError> {
        if ranges.is_empty() {
            return Ok(());
        }
        let _unbounded = self.bound_holds(None); // A removal also follows an insertion that fails.
        self.remote(|remote| ranges.iter().try_for_each(|r| remote.munmap(r)))
    }

    /// Closes the counters of a processor event in all threads, by mapping an empty page over each counter's page. The caller must know
    /// that no thread is in code that reads them.
    pub fn close_events(&self, area: &SharedArea, number: u32) -> Result<(), ProcessError> {
        let layout = area.layout();
        let first = u64::from(layout::EVENT_PAGES) + PAGE * u64::from(number);
        let is_page = |m: &Mapping| {
            let offset = m.range.start.0.wrapping_sub(layout.base.0);
            m.path.as_os_str() == EVENT_NAME
                && layout.range().contains(&m.range.start)
                && offset % layout.stride == first
        };
        let pages: Vec<u64> = self.maps()?.iter().filter(|m| is_page(m)).map(|m| m.range.start.0).collect();
        if !pages.is_empty() {
            let _unbounded = self.bound_holds(None);
            // An empty page keeps other mappings out, and a thread that reads it finds no counter.
            let page = |at: u64| [at, PAGE, libc::PROT_READ as u64, MAP_OWN_SHARD, NO_FILE, 0];
            self.remote(|remote| {
                pages.iter().try_for_each(|at| {
                    remote.syscall("mmap over a counter's page", libc::SYS_mmap, page(*at)).map(drop)
                })
            })?;
        }
        area.forget_event(number)
    }

    /// Returns the descriptors of data areas that a killed engine left open in the target.
    fn stray_files(&self) -> Result<Vec<u64>, ProcessError> {
        let path = PathBuf::from(format!("/proc/{}/fd", self.pid()));
        let entries = fs::read_dir(&path).map_err(|e| crate::procfs::file_error(self.pid(), path, e))?;
        let ours = |entry: &fs::DirEntry| fs::read_link(entry.path()).is_ok_and(|l| l.as_os_str() == MAPS_NAME);
        Ok(entries.flatten().filter(ours).filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
    }
}

impl Remote<'_> {
    fn close(&mut self, fd: u64) -> Result<(), ProcessError> {
        self.syscall("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0]).map(drop)
    }

    fn munmap(&mut self, range: &Range<Avma>) -> Result<(), ProcessError> {
        let len = range.end.0.saturating_sub(range.start.0);
        self.syscall("munmap", libc::SYS_munmap, [range.start.0, len, 0, 0, 0, 0]).map(drop)
    }

    fn scratch_name(&mut self) -> Result<Avma, ProcessError> {
        let mut name = NAME.as_bytes().to_vec();
        name.push(0);
        self.scratch(&name)
    }
}

fn lowest_address() -> u64 {
    let set = fs::read_to_string("/proc/sys/vm/mmap_min_addr").ok().and_then(|s| s.trim().parse().ok()).unwrap_or(0);
    LOWEST.max(set)
}

fn areas_in(maps: &[Mapping]) -> Vec<AvmaRange> {
    let mut areas: Vec<(u64, AvmaRange)> = Vec::new();
    for m in maps {
        let ours = m.shared && m.path.as_os_str() == MAPS_NAME;
        match areas.last_mut() {
            // The mapping of the same file continues after the private shard.
            Some((inode, range)) if ours && *inode == m.inode && m.offset == m.range.start.0 - range.start.0 => {
                range.end = m.range.end
            }
            // An engine that is itself a target also maps the areas of its own targets, where the kernel finds room: above 2 GiB.
            _ if ours && m.offset == 0 && m.range.start.0 < TWO_GIB => areas.push((m.inode, m.range.clone())),
            _ => {}
        }
    }
    areas.into_iter().map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_room_the_distance_between_shards_shrinks_before_their_number() {
        let request = DataAreaRequest { least_stride: 2 << 20, shards: 256, ..DataAreaRequest::of_stride(8 << 20) };
        let next = |request: &DataAreaRequest| request.smaller(60);
        let sizes: Vec<_> = std::iter::successors(Some(request), next).map(|r| (r.stride >> 20, r.shards)).collect();
        assert_eq!(sizes, [(8, 256), (4, 256), (2, 256), (2, 128), (2, 64), (2, 60)]);
    }

    #[test]
    fn programs_with_few_threads_need_few_shards() {
        assert_eq!(fewest_shards(0), SHARDS_LEAST);
        assert_eq!(fewest_shards(19), 30);
        assert_eq!(fewest_shards(41), 63);
        assert_eq!(fewest_shards(1000), SHARDS_MIN);
        assert_eq!(fewest_shards(usize::MAX / 2), SHARDS_MIN);
    }
}
