//! The view of a process from outside: its code, its mappings, and its growth.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use nix::sys::ptrace;
use nix::unistd::Pid;

/// One line of /proc/PID/maps.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Address of the first byte.
    pub start: u64,
    /// Address after the last byte.
    pub end: u64,
    /// Permissions, e.g. `r-xp`.
    pub permissions: String,
    /// Offset in the file.
    pub offset: u64,
    /// Path of the file, `[name]` of the kernel, or empty.
    pub name: String,
}

/// The mappings of a process.
pub fn maps(pid: i32) -> Vec<Mapping> {
    let text =
        std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_else(|error| panic!("maps of {pid}: {error}"));
    let parse = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let permissions = words.next()?.to_owned();
        let offset = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(2).unwrap_or_default().trim().to_owned();
        let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
        Some(Mapping { start, end, permissions, offset, name })
    };
    text.lines().map(|line| parse(line).unwrap_or_else(|| panic!("a line of maps: {line}"))).collect()
}

/// The bytes of all executable mappings of files, by address. Anonymous mappings between two mappings of one file are included, because a
/// program may move a part of its text there.
#[derive(Clone, PartialEq, Eq)]
pub struct Text {
    ranges: BTreeMap<(u64, String), Vec<u8>>,
}

impl Text {
    /// Reads the code of a process.
    pub fn of(pid: i32) -> Text {
        let memory = File::open(format!("/proc/{pid}/mem")).unwrap_or_else(|error| panic!("memory of {pid}: {error}"));
        let mut maps = maps(pid);
        let moved = |m: &[Mapping]| {
            m[1].name.is_empty() && m[0].end == m[1].start && m[1].end == m[2].start && m[0].name == m[2].name
        };
        let names: Vec<_> =
            maps.windows(3).enumerate().filter(|(_, m)| moved(m)).map(|(n, m)| (n + 1, m[0].name.clone())).collect();
        names.into_iter().for_each(|(index, name)| maps[index].name = name);
        let executable = maps.into_iter().filter(|m| m.permissions.contains('x') && m.name.starts_with('/'));
        let read = |mapping: Mapping| {
            let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start).expect("a size")];
            memory
                .read_exact_at(&mut bytes, mapping.start)
                .unwrap_or_else(|error| panic!("{pid}: {:x} of {}: {error}", mapping.start, mapping.name));
            ((mapping.start, mapping.name), bytes)
        };
        Text { ranges: executable.map(read).collect() }
    }

    /// Differences between two texts: for each different mapping the file name, the address, and the number of bytes.
    pub fn differences(&self, other: &Text) -> Vec<String> {
        let mut found = Vec::new();
        for (key, bytes) in &self.ranges {
            match other.ranges.get(key) {
                Some(others) if bytes == others => {}
                Some(others) if bytes.len() == others.len() => {
                    let differing: Vec<usize> = (0..bytes.len()).filter(|&i| bytes[i] != others[i]).collect();
                    found.push(format!(
                        "{}: {} bytes, the first at {:x}",
                        key.1,
                        differing.len(),
                        key.0 + differing[0] as u64
                    ));
                }
                _ => found.push(format!("{} at {:x} is not mapped alike", key.1, key.0)),
            }
        }
        found.extend(
            other.ranges.keys().filter(|key| !self.ranges.contains_key(*key)).map(|key| format!("{} is new", key.1)),
        );
        found
    }

    /// Differences from the files on disk: for each different mapping the file name, the first different address, and the number of
    /// bytes. Mappings of deleted files are left out, and so are files that the process has replaced.
    pub fn differences_from_files(pid: i32) -> Vec<String> {
        let mapped = maps(pid).into_iter().filter(|m| m.permissions.contains('x') && m.name.starts_with('/'));
        let from_file = |mapping: Mapping| {
            let mut bytes = vec![0; usize::try_from(mapping.end - mapping.start).expect("a size")];
            // The last page of a mapping ends behind the file.
            let file = File::open(format!("/proc/{pid}/root{}", mapping.name)).ok()?;
            let mut at = 0;
            while let Ok(read @ 1..) = file.read_at(&mut bytes[at..], mapping.offset + at as u64) {
                at += read;
            }
            Some(((mapping.start, mapping.name), bytes))
        };
        let files = Text { ranges: mapped.filter_map(from_file).collect() };
        let mut now = Text::of(pid);
        now.ranges.retain(|key, _| files.ranges.contains_key(key));
        files.differences(&now)
    }

    /// Panics unless the process has this code now, byte for byte.
    #[track_caller]
    pub fn assert_in(&self, pid: i32) {
        let differences = self.differences(&Text::of(pid));
        assert!(differences.is_empty(), "the code of {pid} differs: {differences:#?}");
    }

    /// Panics if the process still has exactly this code.
    #[track_caller]
    pub fn assert_not_in(&self, pid: i32) {
        assert!(!self.differences(&Text::of(pid)).is_empty(), "the code of {pid} was expected to be woven");
    }
}

/// Number of arenas: executable mappings that belong to no file and are not the kernel's.
pub fn arenas(pid: i32) -> usize {
    maps(pid).iter().filter(|mapping| is_arena(mapping)).count()
}

/// Size of all arenas in bytes.
pub fn arena_bytes(pid: i32) -> u64 {
    maps(pid).iter().filter(|mapping| is_arena(mapping)).map(|mapping| mapping.end - mapping.start).sum()
}

/// Whether memory of a process holds a word that looks like a program counter in an arena, saved in a signal frame: flags and the code
/// segment follow it (struct sigcontext).
pub fn keeps_context_in_arena(pid: i32) -> bool {
    const FLAG_THAT_IS_SET: u64 = 1 << 1;
    const CODE_SEGMENT: u64 = 0x33;
    let all = maps(pid);
    let in_arena = |at: u64| all.iter().any(|m| is_arena(m) && (m.start..m.end).contains(&at));
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory of a target of ours");
    all.iter().filter(|mapping| mapping.permissions.starts_with("rw-p")).any(|mapping| {
        (mapping.start..mapping.end).step_by(1 << 20).any(|at| {
            let mut bytes = vec![0; (mapping.end - at).min(1 << 20) as usize];
            if memory.read_exact_at(&mut bytes, at).is_err() {
                return false;
            }
            let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect();
            words.windows(3).any(|w| w[1] & FLAG_THAT_IS_SET != 0 && w[2] & 0xffff == CODE_SEGMENT && in_arena(w[0]))
        })
    })
}

/// Number of arenas, recognised by the bytes with which they begin: correct also for programs that make executable mappings of their own.
pub fn signed_arenas(pid: i32) -> usize {
    const SIGNATURE: &[u8] = b"ingraft's arena\0";
    let memory = File::open(format!("/proc/{pid}/mem")).expect("the memory of a target of ours");
    let is_signed = |mapping: &&Mapping| {
        let mut bytes = [0; SIGNATURE.len()];
        is_arena(mapping) && memory.read_exact_at(&mut bytes, mapping.start).is_ok() && bytes == SIGNATURE
    };
    maps(pid).iter().filter(is_signed).count()
}

fn is_arena(mapping: &Mapping) -> bool {
    // The kernel makes executable mappings, too: the vDSO, and the page in which it executes instructions that uprobes have replaced.
    let is_the_kernels = mapping.name.starts_with("[v") || mapping.name == "[uprobes]";
    mapping.permissions.contains('x') && !mapping.name.starts_with('/') && !is_the_kernels
}

/// Mappings that are writable and executable at once.
pub fn writable_code(pid: i32) -> Vec<Mapping> {
    maps(pid).into_iter().filter(|mapping| mapping.permissions.contains("wx")).collect()
}

/// A value of /proc/PID/status.
pub fn status(pid: i32, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))
        .unwrap_or_else(|error| panic!("status of {pid}: {error}"));
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {key} in the status of {pid}")).trim().to_owned()
}

/// Process id of the tracer of any thread of this process; 0 if none is traced.
pub fn tracer(pid: i32) -> i32 {
    let parse = |tid: i32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("TracerPid:")?.trim().parse().ok()).unwrap_or(0)
    };
    threads(pid).into_iter().map(parse).find(|&tracer| tracer != 0).unwrap_or(0)
}

/// The thread ids of a process.
pub fn threads(pid: i32) -> Vec<i32> {
    let entries =
        std::fs::read_dir(format!("/proc/{pid}/task")).unwrap_or_else(|error| panic!("threads of {pid}: {error}"));
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// The children of a process.
pub fn children(pid: i32) -> Vec<i32> {
    let of_thread = |tid: i32| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).unwrap_or_default();
    let text: String = threads(pid).into_iter().map(of_thread).collect();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}

/// The state letter of a process.
pub fn state(pid: i32) -> char {
    status(pid, "State").chars().next().unwrap_or('?')
}

/// Whether the first thread of a process waits in this system call and uses no processor.
pub fn waits_in(pid: i32, call: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/syscall")).is_ok_and(|now| now.starts_with(&format!("{call} ")))
}

/// Measures of a process that must not grow from round to round.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of mappings. Adjacent mappings that differ only in the advice given on them count as one: Go's collector changes the advice
    /// for
    /// its heap all the time, and the kernel splits the mapping there. Each arena counts.
    pub maps: usize,
    /// Number of open files.
    pub files: usize,
    /// Resident memory in KiB.
    pub resident: u64,
}

impl Size {
    /// Measures a process now.
    pub fn of(pid: i32) -> Size {
        let resident = status(pid, "VmRSS").trim_end_matches(" kB").trim().parse().expect("VmRSS is a number");
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let maps = maps(pid);
        let of_one = |pair: &&[Mapping]| {
            let alike = pair[0].end == pair[1].start && pair[0].permissions == pair[1].permissions;
            alike && pair.iter().all(|mapping| mapping.name.is_empty() && !is_arena(mapping))
        };
        Size { maps: maps.len() - maps.windows(2).filter(of_one).count(), files, resident }
    }
}

/// A process that the current thread traces, as a debugger does, until this value is dropped.
pub struct Traced(Pid);

impl Traced {
    /// Traces a process, which continues to run.
    pub fn new(pid: i32) -> Traced {
        let pid = Pid::from_raw(pid);
        ptrace::seize(pid, ptrace::Options::empty()).expect("trace the target");
        Traced(pid)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // A target that has ended is not traced any more.
        if ptrace::interrupt(self.0).is_ok() && nix::sys::wait::waitpid(self.0, None).is_ok() {
            let _ = ptrace::detach(self.0, None);
        }
    }
}

/// Panics unless a process is as if nobody had ever measured it: not traced, without arenas, and with its earlier code.
#[track_caller]
pub fn assert_clean(pid: i32, before: &Text) {
    assert_eq!(tracer(pid), 0, "{pid} is still traced");
    before.assert_in(pid);
    assert_eq!(
        arenas(pid),
        0,
        "{pid} still has arenas: {:#?}",
        maps(pid).iter().filter(|mapping| mapping.name.is_empty()).collect::<Vec<_>>()
    );
}

/// Longest processor time in nanoseconds that interrupts may take within a time slice before the kernel's account corrects it.
const SLICE_NS: u64 = 4_000_000;

/// Tolerance between a thread's processor time and the kernel's account of it, in nanoseconds. Within a slice of time the thread's time
/// includes the time of interrupts and of the host, which the kernel charges to nobody. The time that the host has taken since the first
/// target program started is known.
pub fn slice_slack_ns() -> u64 {
    SLICE_NS + stolen_ns()
}

/// Time that the host has taken since the first target program started, in nanoseconds; it also covers the time between two readings of one
/// moment.
pub fn stolen_ns() -> u64 {
    let taken = taken_by_the_host_ns();
    taken - *AT_THE_START.get_or_init(|| taken)
}

static AT_THE_START: OnceLock<u64> = OnceLock::new();

/// Records the time that the host has taken so far. Every start of a target program calls this function.
pub(crate) fn watch_the_host() {
    AT_THE_START.get_or_init(taken_by_the_host_ns);
}

/// Time that the host has taken from all processors since the machine started, in nanoseconds, to a hundredth of a second; 0 on a machine
/// that has no host.
fn taken_by_the_host_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    // `cpu user nice system idle iowait irq softirq steal ...`, in hundredths of a second
    let steal = text.lines().next().and_then(|line| line.split_ascii_whitespace().nth(8));
    steal.and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0) * 10_000_000
}

/// Processor time a process has used, in seconds; 0 when it is gone.
pub fn processor_seconds(pid: i32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Fields 14 and 15 are counted from the end of the name, because a name may contain any character.
    let fields = text.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    let ticks: u64 = fields.filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}
