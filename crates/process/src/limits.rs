//! Limits on the memory of a target, and the room that they leave. If a charge exceeds the limit of a control group, the kernel kills a
//! process of that group, and that is the target. So the engine checks the limits before it maps or writes anything.
//!
//! The kernel charges pages that the engine writes through /proc/PID/mem to the target's control group, whatever the engine's own group is.
//! It also charges pages of the data area to it that a thread of the target touches first.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use ingraft_model::layout::{self, record};
use ingraft_model::machine::PAGE;
use ingraft_model::{AvmaRange, PatchPlan, Pid};

use crate::area::SharedArea;
use crate::error::ProcessError;
use crate::procfs::{self, Mapping};
use crate::shortage::{MemoryLimit, MemoryRoom, Shortage};
use crate::target::{Target, lock};
use crate::target_memory::DataAreaRequest;

const HUGE_PAGE: u64 = 2 << 20;
const KIB: u64 = 1 << 10;
/// Bytes that one page of page table entries maps.
const TABLE_SPAN: u64 = HUGE_PAGE;
/// Memory that stays free for the target's own allocations, in addition to a quarter of the memory that a change takes.
const RESERVE: u64 = 256 * KIB;
/// Number of mappings that must be free before a change. The data area takes three and each arena one; the rest is left to the target.
const SPARE_MAPPINGS: usize = 64;
/// Memory for the remote system calls of an attach: signal frames, stacks, mapping structures of the kernel, upper page tables.
const ATTACH: u64 = 32 * PAGE;
/// Smallest limit that means "no limit" in version 1 of control groups.
const UNLIMITED: u64 = 1 << 60;

/// Upper bound of the memory that a change takes in a target, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryNeed {
    /// Memory that is charged to the target: private copies of text pages, code, counters of threads, page tables.
    pub charged: u64,
    /// Address space.
    pub address_space: u64,
}

impl MemoryNeed {
    /// Sum of two needs.
    #[must_use]
    pub fn and(self, other: MemoryNeed) -> MemoryNeed {
        MemoryNeed {
            charged: self.charged.saturating_add(other.charged),
            address_space: self.address_space.saturating_add(other.address_space),
        }
    }

    /// Memory for pages of text and code that a change writes for the first time.
    pub fn of_pages(pages: u64) -> MemoryNeed {
        MemoryNeed { charged: pages.saturating_mul(PAGE), address_space: 0 }
    }

    /// Memory for a new data area, independent of the measurements.
    pub fn of_attach() -> MemoryNeed {
        MemoryNeed { charged: ATTACH, address_space: 0 }
    }

    /// Memory that this many threads need to count in this many counters, with the header and this many bytes of the journal's copy.
    pub fn of_threads(threads: usize, counters: u32, journal: u64) -> MemoryNeed {
        let words = u64::from(layout::COUNTERS - layout::OWNER) + 8 * u64::from(counters);
        // Seven more pages: the events' words, the page below the owner, two pages of records, the page tables of the beginning and of the end, and
        // one because the words begin within a page.
        let tables = words / TABLE_SPAN * PAGE;
        let shard = words.next_multiple_of(PAGE) + tables + 7 * PAGE;
        let header = u64::from(layout::OWNER) + u64::from(record::SIZE);
        let all = shard.saturating_mul(threads as u64 + u64::from(layout::FIRST_SHARD));
        MemoryNeed { charged: all.saturating_add(header + journal), address_space: 0 }
    }
}

impl Target {
    /// Upper bound of the memory that a plan takes: text pages that are not private yet, pages of code, and their page tables. `arenas` are
    /// the arenas that contain the code.
    pub fn memory_need(&self, plan: &PatchPlan, arenas: &[AvmaRange]) -> MemoryNeed {
        let private = lock(&self.private_pages);
        let page = |at: u64| at & !(PAGE - 1);
        let text: HashSet<u64> = plan.text.iter().map(|w| page(w.at.0)).filter(|p| !private.contains(p)).collect();
        let mut code: HashSet<u64> = HashSet::new();
        for part in &plan.code {
            let end = part.at.0.saturating_add(part.bytes.len() as u64);
            code.extend((page(part.at.0)..end).step_by(PAGE as usize));
        }
        // The kernel may use a huge page wherever a whole one fits into the arena.
        let huge = |at: u64| {
            let start = at & !(HUGE_PAGE - 1);
            arenas.iter().any(|a| a.start.0 <= start && start + HUGE_PAGE <= a.end.0).then_some(start)
        };
        let huge_pages: HashSet<u64> = code.iter().filter_map(|at| huge(*at)).collect();
        let small = code.iter().filter(|at| huge(**at).is_none()).count() as u64;
        let tables: HashSet<u64> = code.iter().map(|at| at / TABLE_SPAN).collect();
        let bytes = (text.len() as u64 + small + tables.len() as u64) * PAGE + huge_pages.len() as u64 * HUGE_PAGE;
        MemoryNeed { charged: bytes, address_space: 0 }
    }

    /// Checks that every limit on the target's memory leaves room for this need and for the target's own allocations during the change.
    /// Otherwise returns an error with the figures. A limit that cannot be read counts as no limit.
    pub fn refuse_without_room(&self, need: MemoryNeed) -> Result<(), ProcessError> {
        let too_little =
            |room: &MemoryRoom, needed: u64, reserve: u64| needed > 0 && room.left < needed.saturating_add(reserve);
        let refuse = |room, needed, reserve| Err(ProcessError::Shortage(Box::new(Shortage { room, needed, reserve })));
        if let Some(room) = self.address_room() {
            // The target keeps at least half of the room.
            let reserve = need.address_space;
            if too_little(&room, need.address_space, reserve) {
                return refuse(room, need.address_space, reserve);
            }
        }
        let reserve = RESERVE + need.charged / 4;
        let enough = need.charged.saturating_add(reserve);
        let rooms = [commit_room(), machine_room()].into_iter().flatten().chain(group_rooms(self.pid(), enough));
        match rooms.min_by_key(|room| room.left).filter(|room| too_little(room, need.charged, reserve)) {
            Some(room) => refuse(room, need.charged, reserve),
            None => Ok(()),
        }
    }

    /// Refuses a change if the target might then be unable to create mappings of its own. `maps` are its present mappings.
    pub(crate) fn refuse_with_many_mappings(&self, maps: &[Mapping]) -> Result<(), ProcessError> {
        let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok().and_then(|text| text.trim().parse().ok());
        match most {
            Some(most) if maps.len() + SPARE_MAPPINGS > most => Err(ProcessError::Mappings { have: maps.len(), most }),
            _ => Ok(()),
        }
    }

    /// The request with as many shards and as much room for the journal's copy as leave half of the target's free address space free. If there is a
    /// limit, the distance between shards is the least one. Fails if this is not possible even with `fewest` shards.
    pub(crate) fn fit_area(&self, request: &DataAreaRequest, fewest: u32) -> Result<DataAreaRequest, ProcessError> {
        let Some(room) = self.address_room() else { return Ok(*request) };
        let (journal_bytes, stride) = (request.journal_bytes.min(room.left / 8), request.least_stride);
        let shards = (room.left / 2).saturating_sub(journal_bytes) / stride;
        let shards = u32::try_from(shards).unwrap_or(u32::MAX).min(request.shards);
        if shards >= fewest {
            return Ok(DataAreaRequest { shards, stride, journal_bytes, ..*request });
        }
        let needed = stride * u64::from(fewest) + journal_bytes;
        Err(ProcessError::Shortage(Box::new(Shortage { room, needed, reserve: needed })))
    }

    /// The room below RLIMIT_AS; `None` if there is no such limit.
    fn address_room(&self) -> Option<MemoryRoom> {
        let text = procfs::read(self.pid(), "limits").ok()?;
        let total = soft_limit(&String::from_utf8_lossy(&text), "Max address space")?;
        let statm = procfs::read(self.pid(), "statm").ok()?;
        let used: u64 = String::from_utf8_lossy(&statm).split(' ').next()?.parse().ok()?;
        let left = total.saturating_sub(used.saturating_mul(PAGE));
        Some(MemoryRoom { limit: MemoryLimit::AddressSpace, total, left })
    }
}

impl SharedArea {
    /// Upper bound of the memory that the area will take with this many threads and counters, minus the memory that it has already.
    pub fn memory_need(&self, threads: usize, counters: u32, journal: u64) -> MemoryNeed {
        let threads = threads.min(self.layout().shards as usize);
        let whole = MemoryNeed::of_threads(threads, counters, journal);
        let has = self.allocated().unwrap_or(0);
        MemoryNeed { charged: whole.charged.saturating_sub(has), ..whole }
    }
}

/// The soft limit of a line of /proc/PID/limits; `None` if it is unlimited.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// A value of /proc/meminfo in bytes.
pub(crate) fn meminfo(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(KIB)
}

/// The room below the commit limit, if the kernel does not overcommit. Pages of the data area count against this limit.
fn commit_room() -> Option<MemoryRoom> {
    let mode = fs::read_to_string("/proc/sys/vm/overcommit_memory").ok()?;
    if mode.trim() != "2" {
        return None;
    }
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let (total, used) = (meminfo(&text, "CommitLimit")?, meminfo(&text, "Committed_AS")?);
    Some(MemoryRoom { limit: MemoryLimit::Commit, total, left: total.saturating_sub(used) })
}

/// The room in the memory of the machine.
fn machine_room() -> Option<MemoryRoom> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let left = meminfo(&text, "MemAvailable")?.saturating_add(meminfo(&text, "SwapFree").unwrap_or(0));
    Some(MemoryRoom { limit: MemoryLimit::Machine, total: meminfo(&text, "MemTotal")?, left })
}

/// Names of the files in one version of control groups.
struct LimitFiles {
    /// Name of each limit, with the name of the usage that counts against it.
    limits: &'static [(&'static str, &'static str)],
    /// Prefix of those names in `memory.stat` whose values include the groups below.
    prefix: &'static str,
    dirty: &'static str,
    writeback: &'static str,
}

const V1: LimitFiles = LimitFiles {
    limits: &[
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"),
    ],
    prefix: "total_",
    dirty: "dirty",
    writeback: "writeback",
};

const V2: LimitFiles = LimitFiles {
    // Above `memory.high` the kernel does not kill, but it delays threads.
    limits: &[("memory.max", "memory.current"), ("memory.high", "memory.current")],
    prefix: "",
    dirty: "file_dirty",
    writeback: "file_writeback",
};

/// The room that the control groups of a process leave, from its own group up to the highest visible one. Reclaimable memory is read only
/// if less than `enough` is left without it.
fn group_rooms(pid: Pid, enough: u64) -> Vec<MemoryRoom> {
    let Ok(groups) = procfs::read(pid, "cgroup") else { return Vec::new() };
    let Ok(mounts) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let (groups, mounts) = (String::from_utf8_lossy(&groups), String::from_utf8_lossy(&mounts));
    let mut rooms = Vec::new();
    for (files, mount, folder) in group_folders(&groups, &mounts) {
        let mut folder = folder.as_path();
        loop {
            rooms.extend(files.limits.iter().filter_map(|names| room_of(folder, files, *names, enough)));
            match folder.parent() {
                Some(parent) if folder != mount && folder.starts_with(&mount) => folder = parent,
                _ => break,
            }
        }
    }
    rooms
}

/// The room below one limit of a control group; `None` if the group has no such limit.
fn room_of(folder: &Path, files: &LimitFiles, (limit, usage): (&str, &str), enough: u64) -> Option<MemoryRoom> {
    let file = folder.join(limit);
    let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let total = number(&file).filter(|total| *total < UNLIMITED)?;
    let mut left = total.saturating_sub(number(&folder.join(usage))?);
    if left < enough {
        let stat = fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        left = left.saturating_add(reclaimable(&stat, files));
    }
    Some(MemoryRoom { limit: MemoryLimit::Group(file), total, left })
}

/// Bytes of the page cache that the kernel reclaims before it kills. These are inactive pages, and half of the active ones, since the pages
/// of running programs are among them. Dirty pages do not count, nor memory that would have to be swapped out.
fn reclaimable(stat: &str, files: &LimitFiles) -> u64 {
    let value = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(files.prefix)?.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)
    };
    let cached = value("inactive_file").saturating_add(value("active_file") / 2);
    cached.saturating_sub(value(files.dirty)).saturating_sub(value(files.writeback))
}

/// The folders of the control groups that may limit a process's memory, with the mounts that contain them. `groups` is the text of
/// /proc/PID/cgroup, `mounts` that of /proc/self/mountinfo.
fn group_folders(groups: &str, mounts: &str) -> Vec<(&'static LimitFiles, PathBuf, PathBuf)> {
    let mounts: Vec<CgroupMount> = mounts.lines().filter_map(CgroupMount::parse).collect();
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let files = match controllers {
            "" => &V2,
            _ if controllers.split(',').any(|c| c == "memory") => &V1,
            _ => continue,
        };
        let folder =
            mounts.iter().filter(|m| m.is_for(files)).find_map(|m| Some((m.point.clone(), m.folder_of(path)?)));
        folders.extend(folder.map(|(mount, folder)| (files, mount, folder)));
    }
    folders
}

/// A mount of control groups.
struct CgroupMount {
    version_1: bool,
    memory: bool,
    root: String,
    point: PathBuf,
}

impl CgroupMount {
    /// Parses a line of /proc/PID/mountinfo.
    fn parse(line: &str) -> Option<CgroupMount> {
        let (fields, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let version_1 = match after.next()? {
            "cgroup" => true,
            "cgroup2" => false,
            _ => return None,
        };
        let memory = after.nth(1)?.split(',').any(|option| option == "memory");
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
        Some(CgroupMount { version_1, memory, root, point: point.into() })
    }

    fn is_for(&self, files: &LimitFiles) -> bool {
        if std::ptr::eq(files, &V1) { self.version_1 && self.memory } else { !self.version_1 }
    }

    /// The folder of a group. `None` if it is outside of the mounted hierarchy or of the engine's own cgroup namespace.
    fn folder_of(&self, path: &str) -> Option<PathBuf> {
        let below = Path::new(path).strip_prefix(&self.root).ok()?;
        let plain = below.components().all(|c| matches!(c, std::path::Component::Normal(_)));
        let folder = plain.then(|| self.point.join(below))?;
        folder.is_dir().then_some(folder)
    }
}

/// Undoes the octal escapes of /proc/PID/mountinfo.
pub(crate) fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                out.push(char::from(byte));
                out.push_str(&part[3..]);
            }
            None => {
                out.push('\\');
                out.push_str(part);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_by_their_mounts() {
        let directory = tempfile::TempDir::new().unwrap();
        let at = |path: &str| directory.path().join(path);
        fs::create_dir_all(at("v1/a b/c")).unwrap();
        fs::create_dir_all(at("v2/inner")).unwrap();
        let root = directory.path().display();
        let mounts = format!(
            "30 25 0:26 / {root}/v1 rw,nosuid - cgroup cgroup rw,memory\n\
             31 25 0:27 / {root}/cpu rw,nosuid - cgroup cgroup rw,cpu\n\
             32 25 0:28 /pod {root}/v2 rw shared:3 - cgroup2 cgroup2 rw\n"
        );
        let found = |groups: &str| {
            let folders = group_folders(groups, &mounts);
            folders.into_iter().map(|(_, mount, folder)| (mount, folder)).collect::<Vec<_>>()
        };
        assert_eq!(found("4:cpu,memory:/a b/c\n3:cpu:/\n"), [(at("v1"), at("v1/a b/c"))]);
        assert_eq!(found("0::/pod/inner\n"), [(at("v2"), at("v2/inner"))]);
        // In another namespace, outside of the mount, removed.
        assert_eq!(found("4:memory:/../x\n0::/elsewhere\n"), []);
        assert_eq!(found("4:memory:/gone\nnonsense\n\n"), []);
    }

    #[test]
    fn what_a_group_leaves() {
        let directory = tempfile::TempDir::new().unwrap();
        let put = |file: &str, text: &str| fs::write(directory.path().join(file), text).unwrap();
        let room =
            |files, names, enough| room_of(directory.path(), files, names, enough).map(|room| (room.total, room.left));
        put("memory.max", "1000000\n");
        put("memory.current", "900000\n");
        put("memory.high", "max\n");
        put("memory.stat", "anon 5\ninactive_file 50000\nactive_file 20000\nfile_dirty 3000\nfile_writeback 1000\n");
        assert_eq!(room(&V2, V2.limits[0], 100_000), Some((1_000_000, 100_000)));
        assert_eq!(room(&V2, V2.limits[0], 100_001), Some((1_000_000, 156_000)));
        assert_eq!(room(&V2, V2.limits[1], 1), None);
        put("memory.limit_in_bytes", "9223372036854771712\n");
        put("memory.usage_in_bytes", "1\n");
        assert_eq!(room(&V1, V1.limits[0], 1), None);
        put("memory.limit_in_bytes", "4096\n");
        put("memory.stat", "inactive_file 7\ntotal_inactive_file 100\n");
        assert_eq!(room(&V1, V1.limits[0], 9000), Some((4096, 4195)));
    }

    #[test]
    fn limits_are_read() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
            Max cpu time              unlimited            unlimited            seconds   \n\
            Max address space         12345                unlimited            bytes     \n";
        assert_eq!(soft_limit(text, "Max address space"), Some(12345));
        assert_eq!(soft_limit(text, "Max cpu time"), None);
        assert_eq!(meminfo("MemTotal:       24683 kB\nX: 1\n", "MemTotal"), Some(24683 << 10));
        assert_eq!(unescape("/a\\040b\\1"), "/a b\\1");
    }
}
