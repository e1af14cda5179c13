//! The files of /proc as values. They are parsed by hand and as bytes: file names need not be UTF-8, and command names may contain
//! parentheses and blanks. No text that a target puts there makes the parsing fail.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ingraft_model::machine::PAGE;
use ingraft_model::{Avma, AvmaRange, Pid, Tid};

use crate::error::ProcessError;
use crate::frame;

/// One line of /proc/PID/maps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mapping {
    /// Address range.
    pub range: AvmaRange,
    /// Whether the mapping is readable.
    pub read: bool,
    /// Whether the mapping is writable.
    pub write: bool,
    /// Whether the mapping is executable.
    pub exec: bool,
    /// Whether writes reach other processes (`MAP_SHARED`).
    pub shared: bool,
    /// Offset in the file.
    pub offset: u64,
    /// Device of the file (major, minor); (0, 0) without a file.
    pub device: (u32, u32),
    /// Inode of the file; 0 without a file.
    pub inode: u64,
    /// Path or pseudo path (`[stack]`) as the kernel writes it, with its octal escapes undone; empty for anonymous memory.
    pub path: PathBuf,
}

impl Mapping {
    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.range.end.0.saturating_sub(self.range.start.0)
    }

    /// Whether the mapping has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the mapping is one of a file.
    pub fn is_file(&self) -> bool {
        self.inode != 0
    }

    /// The path without the kernel's mark of a deleted file.
    pub fn file_path(&self) -> PathBuf {
        let bytes = self.path.as_os_str().as_encoded_bytes();
        let cut = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
        PathBuf::from(OsString::from_vec(cut.to_vec()))
    }

    /// Whether the kernel marks the file as deleted.
    pub fn is_deleted(&self) -> bool {
        self.path.as_os_str().as_encoded_bytes().ends_with(b" (deleted)")
    }
}

fn number(bytes: &[u8], radix: u32) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(bytes).ok()?, radix).ok()
}

/// Returns the first field, and the rest of the line after the blanks that follow the field.
fn field(line: &[u8]) -> (&[u8], &[u8]) {
    let end = line.iter().position(|&b| b == b' ').unwrap_or(line.len());
    let rest = &line[end..];
    let skip = rest.iter().position(|&b| b != b' ').unwrap_or(rest.len());
    (&line[..end], &rest[skip..])
}

fn split_at_byte(bytes: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let i = bytes.iter().position(|&b| b == at)?;
    Some((&bytes[..i], &bytes[i + 1..]))
}

/// Replaces the escape `\012`, which the kernel writes for a newline in a path.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut i = 0;
    while i < path.len() {
        if path[i..].starts_with(b"\\012") {
            out.push(b'\n');
            i += 4;
        } else {
            out.push(path[i]);
            i += 1;
        }
    }
    out
}

fn parse_mapping(line: &[u8]) -> Option<Mapping> {
    let (range, rest) = field(line);
    let (start, end) = split_at_byte(range, b'-')?;
    let (perms, rest) = field(rest);
    let (offset, rest) = field(rest);
    let (device, rest) = field(rest);
    let (major, minor) = split_at_byte(device, b':')?;
    let (inode, path) = field(rest);
    let [r, w, x, s, ..] = perms else { return None };
    Some(Mapping {
        range: Avma(number(start, 16)?)..Avma(number(end, 16)?),
        read: *r == b'r',
        write: *w == b'w',
        exec: *x == b'x',
        shared: *s == b's',
        offset: number(offset, 16)?,
        device: (number(major, 16)?.try_into().ok()?, number(minor, 16)?.try_into().ok()?),
        inode: number(inode, 10)?,
        path: PathBuf::from(OsString::from_vec(unescape(path))),
    })
}

/// Parses a maps file. Skips lines that cannot be parsed.
pub(crate) fn parse_maps(text: &[u8]) -> Vec<Mapping> {
    text.split(|&b| b == b'\n').filter(|l| !l.is_empty()).filter_map(parse_mapping).collect()
}

/// Fields of /proc/PID/stat that the engine needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ProcStat {
    pub(crate) state: u8,
    pub(crate) parent: Pid,
    pub(crate) flags: u64,
    /// Time of all threads in user mode and in the kernel, in [`TICK`]s.
    pub(crate) cpu_ticks: u64,
    pub(crate) start_time: u64,
}

/// The unit in which the kernel reports processor time. On this architecture it is a hundredth of a second, independent of the kernel's own
/// clock (USER_HZ).
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// The kernel's flag for its own threads.
const PF_KTHREAD: u64 = 0x0020_0000;
/// The kernel's flag for a thread that is ending.
const PF_EXITING: u64 = 0x4;
/// Bit of SIGKILL in a set of signals.
const KILLED: u64 = 1 << (libc::SIGKILL - 1);
/// Bits of the signals of faults that programs handle and go on after.
const FAULTS: u64 = 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);

impl ProcStat {
    pub(crate) fn is_kernel(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    pub(crate) fn is_exiting(&self) -> bool {
        self.flags & PF_EXITING != 0
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        // The name may contain any text, also ") ".
        let after = text.get(text.iter().rposition(|&b| b == b')')? + 2..)?;
        let fields: Vec<&[u8]> = after.split(|&b| b == b' ' || b == b'\n').collect();
        // fields[0] is the third field of proc(5)
        Some(ProcStat {
            state: *fields.first()?.first()?,
            parent: Pid(number(fields.get(1)?, 10)?.try_into().ok()?),
            flags: number(fields.get(6)?, 10)?,
            cpu_ticks: number(fields.get(11)?, 10)?.saturating_add(number(fields.get(12)?, 10)?),
            start_time: number(fields.get(19)?, 10)?,
        })
    }
}

/// Fields of /proc/PID/status or /proc/PID/task/TID/status that the engine needs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ProcStatus {
    /// State: `R` runs, `S` sleeps, `D` sleeps uninterruptibly, `T` stopped, `t` traced, `Z` ended.
    pub state: char,
    /// Real user id.
    pub uid: u32,
    /// Effective user id.
    pub euid: u32,
    /// Id of the process, or of the process to which the thread belongs.
    pub group: i32,
    /// Thread id of the tracer; 0 without one.
    pub tracer: i32,
    /// Mode of the system call filter; 0 without one.
    pub seccomp: u32,
    /// The thread's own id in its innermost pid namespace.
    pub own_id: i32,
    /// Whether a SIGKILL is pending for the thread or its process.
    pub is_killed: bool,
    /// Signals for which a handler is set, one bit each; signal 1 is bit 0.
    pub caught: u64,
    /// Whether a fault of the thread's own instruction has yet to reach its handler, or a signal of that number that was sent to the thread.
    pub has_fault: bool,
    /// Locked memory in KiB.
    pub locked_kib: u64,
    /// Whether the thread runs with a shadow stack.
    pub shadow_stack: bool,
}

impl ProcStatus {
    /// Whether the process has a handler for any signal of a fault.
    pub(crate) fn handles_faults(&self) -> bool {
        frame::has_fault(self.caught)
    }

    /// Whether the process has a handler for SIGSEGV or SIGBUS.
    pub fn catches_faults(&self) -> bool {
        self.caught & FAULTS != 0
    }

    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut s = ProcStatus::default();
        for line in text.split(|&b| b == b'\n') {
            let Some((key, value)) = split_at_byte(line, b':') else { continue };
            let value = String::from_utf8_lossy(value);
            let mut words = value.split_ascii_whitespace();
            match key {
                b"State" => s.state = words.next().and_then(|w| w.chars().next()).unwrap_or('?'),
                b"Uid" => {
                    s.uid = words.next().and_then(|w| w.parse().ok()).unwrap_or(u32::MAX);
                    s.euid = words.next().and_then(|w| w.parse().ok()).unwrap_or(u32::MAX);
                }
                b"Tgid" => s.group = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                b"TracerPid" => s.tracer = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                b"Seccomp" => s.seccomp = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                b"NSpid" => s.own_id = words.next_back().and_then(|w| w.parse().ok()).unwrap_or(0),
                b"SigPnd" | b"ShdPnd" => {
                    let waiting = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or(0);
                    s.is_killed |= waiting & KILLED != 0;
                    s.has_fault |= key == b"SigPnd" && frame::has_fault(waiting);
                }
                b"SigCgt" => {
                    s.caught = words.next().and_then(|w| u64::from_str_radix(w, 16).ok()).unwrap_or(0);
                }
                b"VmLck" => s.locked_kib = words.next().and_then(|w| w.parse().ok()).unwrap_or(0),
                b"x86_Thread_features" => s.shadow_stack = words.any(|w| w == "shstk"),
                _ => {}
            }
        }
        s
    }
}

/// The credentials of a thread, from /proc/TID/status.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Credentials {
    /// Real, effective, saved and file system user id.
    pub(crate) uids: [u32; 4],
    /// Real, effective, saved and file system group id.
    pub(crate) gids: [u32; 4],
    /// Permitted capabilities; `None` if the file does not contain them.
    pub(crate) permitted: Option<u64>,
}

impl Credentials {
    pub(crate) fn parse(text: &[u8]) -> Self {
        let mut c = Credentials { uids: [u32::MAX; 4], gids: [u32::MAX; 4], permitted: None };
        for line in text.split(|&b| b == b'\n') {
            let Some((key, value)) = split_at_byte(line, b':') else { continue };
            let value = String::from_utf8_lossy(value);
            let ids = match key {
                b"Uid" => &mut c.uids,
                b"Gid" => &mut c.gids,
                b"CapPrm" => {
                    c.permitted = u64::from_str_radix(value.trim(), 16).ok();
                    continue;
                }
                _ => continue,
            };
            let words = value.split_ascii_whitespace().map(|w| w.parse().unwrap_or(u32::MAX));
            ids.iter_mut().zip(words).for_each(|(id, word)| *id = word);
        }
        c
    }
}

/// Whether a thread sleeps in the kernel, and where, from /proc/PID/task/TID/syscall.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KernelSleep {
    /// The thread is on a processor, or ready for one.
    Running,
    /// The thread sleeps: its system call (-1 for none) with the arguments, and its stack pointer and program counter in user space.
    Asleep { nr: i64, args: [u64; 6], sp: u64, pc: u64 },
}

/// Whether a system call may start another program: execve and execveat, by their numbers in all three tables. A 64-bit program may use the
/// 32-bit table as well, so the result is also true for a few other calls.
pub(crate) fn may_exec(nr: i64) -> bool {
    const X32: i64 = 0x4000_0000;
    [libc::SYS_execve, libc::SYS_execveat, 11, 358, X32 + 520, X32 + 545].contains(&nr)
}

impl KernelSleep {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.starts_with("running") {
            return Some(KernelSleep::Running);
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let hex = |w: &str| u64::from_str_radix(w.trim_start_matches("0x"), 16).ok();
        let nr = words.first()?.parse().ok()?;
        let [.., sp, pc] = words.as_slice() else { return None };
        // Without a system call, the line has no arguments.
        let mut args = [0; 6];
        if let Some(given) = words.get(1..7).filter(|_| words.len() >= 9) {
            for (to, word) in args.iter_mut().zip(given) {
                *to = hex(word)?;
            }
        }
        Some(KernelSleep::Asleep { nr, args, sp: hex(sp)?, pc: hex(pc)? })
    }
}

/// The auxiliary vector as (type, value) pairs.
pub(crate) fn parse_auxv(bytes: &[u8]) -> Vec<(u64, u64)> {
    let word = |b: &[u8]| b.try_into().map(u64::from_le_bytes).unwrap_or(0);
    bytes.chunks_exact(16).map(|c| (word(&c[..8]), word(&c[8..]))).take_while(|&(t, _)| t != 0).collect()
}

/// Reads a file of /proc/PID.
pub(crate) fn read(pid: Pid, name: &str) -> Result<Vec<u8>, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/{name}"));
    fs::read(&path).map_err(|source| file_error(pid, path, source))
}

/// Converts an error of a file under /proc/PID: if the process's folder is missing, the process has ended.
pub(crate) fn file_error(pid: Pid, path: PathBuf, source: io::Error) -> ProcessError {
    match source.raw_os_error() {
        Some(libc::ENOENT | libc::ESRCH) if !Path::new(&format!("/proc/{pid}")).exists() => ProcessError::Gone(pid),
        Some(libc::ESRCH) => ProcessError::Gone(pid),
        _ => ProcessError::File { path, source },
    }
}

pub(crate) fn stat(pid: Pid) -> Result<ProcStat, ProcessError> {
    ProcStat::parse(&read(pid, "stat")?)
        .ok_or_else(|| ProcessError::Malformed { path: format!("/proc/{pid}/stat").into() })
}

pub(crate) fn status(pid: Pid) -> Result<ProcStatus, ProcessError> {
    Ok(ProcStatus::parse(&read(pid, "status")?))
}

pub(crate) fn thread_stat(tid: Tid) -> Option<ProcStat> {
    ProcStat::parse(&fs::read(format!("/proc/{tid}/task/{tid}/stat")).ok()?)
}

/// As [`thread_stat`], for a thread of this process only.
pub(crate) fn thread_stat_of(pid: Pid, tid: Tid) -> Option<ProcStat> {
    ProcStat::parse(&fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok()?)
}

/// Child processes of a thread.
pub(crate) fn children(tid: Tid) -> Vec<Tid> {
    let text = fs::read_to_string(format!("/proc/{tid}/task/{tid}/children")).unwrap_or_default();
    text.split_ascii_whitespace().filter_map(|w| w.parse().ok().map(Tid)).collect()
}

/// The last id that the kernel has given to a process or thread of the engine's pid namespace (proc_loadavg(5)).
pub(crate) fn last_id() -> Option<i32> {
    fs::read_to_string("/proc/loadavg").ok()?.split_ascii_whitespace().nth(4)?.parse().ok()
}

/// Number of threads of the whole machine that run or are ready to run at this moment (proc_loadavg(5)).
pub fn ready_threads() -> Option<usize> {
    parse_ready(&fs::read_to_string("/proc/loadavg").ok()?)
}

fn parse_ready(loadavg: &str) -> Option<usize> {
    loadavg.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// All processes of the engine's pid namespace, by their main threads.
pub(crate) fn processes() -> Vec<Tid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok().map(Tid)).collect()
}

pub(crate) fn is_thread_of(pid: Pid, tid: Tid) -> bool {
    Path::new(&format!("/proc/{pid}/task/{tid}")).exists()
}

pub(crate) fn thread_status(pid: Pid, tid: Tid) -> Result<ProcStatus, ProcessError> {
    Ok(ProcStatus::parse(&read(pid, &format!("task/{tid}/status"))?))
}

pub(crate) fn in_kernel(tid: Tid) -> Option<KernelSleep> {
    in_kernel_of(Pid(tid.0), tid)
}

/// As [`in_kernel`], for a thread of this process only.
pub(crate) fn in_kernel_of(pid: Pid, tid: Tid) -> Option<KernelSleep> {
    KernelSleep::parse(&fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?)
}

pub(crate) fn maps(pid: Pid) -> Result<Vec<Mapping>, ProcessError> {
    Ok(parse_maps(&read(pid, "maps")?))
}

/// The threads of a process.
pub(crate) fn threads(pid: Pid) -> Result<Vec<Tid>, ProcessError> {
    let path = PathBuf::from(format!("/proc/{pid}/task"));
    let entries = fs::read_dir(&path).map_err(|source| file_error(pid, path, source))?;
    Ok(entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok().map(Tid)).collect())
}

/// The name of a process's main thread.
pub(crate) fn comm(pid: Pid) -> Option<String> {
    let text = read(pid, "comm").ok()?;
    Some(String::from_utf8_lossy(text.strip_suffix(b"\n").unwrap_or(&text)).into_owned())
}

/// The arguments of a process, as far as they are in the first 4096 bytes of its command line. A process may have gigabytes of them.
pub(crate) fn cmdline(pid: Pid) -> Vec<String> {
    const MOST: u64 = 4096;
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(format!("/proc/{pid}/cmdline")) {
        // Keep text that was read before an error: the process may be ending.
        let _ = file.take(MOST).read_to_end(&mut text);
    }
    let text = text.strip_suffix(b"\0").unwrap_or(&text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|&b| b == 0).map(|a| String::from_utf8_lossy(a).into_owned()).collect()
}

/// The program file of a process, with its path in the process's own mount namespace.
pub(crate) fn exe(pid: Pid) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/exe")).ok()
}

/// Bits of an entry of /proc/PID/pagemap for a page in memory or in swap (Documentation/admin-guide/mm/pagemap.rst).
const TOUCHED: u64 = 0b11 << 62;
/// Bit of an entry of /proc/PID/pagemap for a page of a file or of shared memory.
const FILE_PAGE: u64 = 1 << 61;

/// Returns for each page of a range whether it is in memory or in swap; `None` if the kernel does not say.
pub(crate) fn touched_pages(pid: Pid, range: &AvmaRange) -> Option<Vec<bool>> {
    pages(pid, range, |entry| entry & TOUCHED != 0)
}

/// Returns for each page of a range whether the process has a copy of its own, as of a page of a file that was written to; `None` if the
/// kernel does not say.
pub(crate) fn own_pages(pid: Pid, range: &AvmaRange) -> Option<Vec<bool>> {
    pages(pid, range, |entry| entry & TOUCHED != 0 && entry & FILE_PAGE == 0)
}

/// Whether the entry of /proc/PID/pagemap of each page of a range has a property.
fn pages(pid: Pid, range: &AvmaRange, has: impl Fn(u64) -> bool) -> Option<Vec<bool>> {
    use std::os::unix::fs::FileExt;
    const ENTRY: u64 = 8;
    let count = usize::try_from(range.end.0.checked_sub(range.start.0)? / PAGE).ok()?;
    let mut entries = vec![0; count.checked_mul(ENTRY as usize)?];
    let pagemap = fs::File::open(format!("/proc/{pid}/pagemap")).ok()?;
    pagemap.read_exact_at(&mut entries, range.start.0 / PAGE * ENTRY).ok()?;
    Some(entries.as_chunks().0.iter().map(|entry| has(u64::from_le_bytes(*entry))).collect())
}

/// Id of this boot: 16 bytes, or zeros if the kernel gives none.
pub fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter_map(|b| char::from(b).to_digit(16)).map(|d| d as u8).collect();
    let mut id = [0; 16];
    for (byte, pair) in id.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    id
}

/// Status, as wait(2) returns it, of a process that began at this time, has ended and has not been waited for. `None` if it has not ended,
/// if it is gone, or if the kernel does not show the status.
pub(crate) fn exit_status(pid: Pid, start_time: u64) -> Option<i32> {
    let text = read(pid, "stat").ok()?;
    ProcStat::parse(&text).filter(|stat| stat.is_dead() && stat.start_time == start_time)?;
    // The status is the last field. The kernel shows 0 there to a caller that may not trace the process, but this caller has measured it.
    let last = text.split(u8::is_ascii_whitespace).rfind(|field| !field.is_empty())?;
    std::str::from_utf8(last).ok()?.parse().ok()
}

/// Whether a process has memory. It has none while it ends, nor after that.
pub(crate) fn has_memory(pid: Pid) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    text.split_ascii_whitespace().next().is_some_and(|pages| pages != "0")
}

/// Processor time of a thread in nanoseconds, when the kernel last charged it. For a running thread that is the last tick.
pub(crate) fn cpu_ns(pid: Pid, tid: Tid) -> Option<u64> {
    u64::try_from(schedule(pid, tid)?.ran.as_nanos()).ok()
}

/// Times of a thread, as the kernel's scheduler counts them (schedstat).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SchedulerTimes {
    /// Time for which the thread ran.
    pub(crate) ran: Duration,
    /// Time for which the thread was ready to run and had no processor. The kernel adds each such time when it ends.
    pub(crate) delayed: Duration,
}

/// Times of a thread in the scheduler. `None` if the thread has ended, or if the kernel does not show them.
pub(crate) fn schedule(pid: Pid, tid: Tid) -> Option<SchedulerTimes> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
    let mut times = text.split_ascii_whitespace().map(|ns| ns.parse().ok().map(Duration::from_nanos));
    Some(SchedulerTimes { ran: times.next()??, delayed: times.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_threads_are_the_first_number_of_the_fourth_field() {
        assert_eq!(parse_ready("1.92 3.19 27.25 4/118 15742\n"), Some(4));
        assert_eq!(parse_ready("1.92 3.19 27.25 4"), None);
        assert_eq!(parse_ready(""), None);
    }

    #[test]
    fn maps_lines() {
        let text = b"00400000-00452000 r-xp 00001000 fe:01 173521  /usr/bin/a b (deleted)\n\
            7ffc0000-7ffc1000 rw-s 00000000 00:01 9 /memfd:x\\012y\n7f0000000000-7f0000001000 ---p 00000000 00:00 0 \nnonsense\n";
        let maps = parse_maps(text);
        assert_eq!(maps.len(), 3);
        assert_eq!(maps[0].range, Avma(0x400000)..Avma(0x452000));
        assert!(maps[0].exec && !maps[0].write && !maps[0].shared && maps[0].is_deleted());
        assert_eq!(maps[0].device, (0xfe, 1));
        assert_eq!(maps[0].file_path(), PathBuf::from("/usr/bin/a b"));
        assert!(maps[1].shared);
        assert_eq!(maps[1].path, PathBuf::from("/memfd:x\ny"));
        assert!(!maps[2].is_file() && !maps[2].read);
    }

    #[test]
    fn stat_with_a_nasty_name() {
        let text = b"12 (a) R (b) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 98765 1 2\n";
        assert_eq!(
            ProcStat::parse(text),
            Some(ProcStat { state: b'S', parent: Pid(1), flags: 4194560, cpu_ticks: 11, start_time: 98765 })
        );
        assert_eq!(ProcStat::parse(b"12 (x"), None);
        assert_eq!(ProcStat::parse(b")"), None);
    }

    #[test]
    fn status_fields() {
        let s = ProcStatus::parse(b"Name:\tx\nState:\tS (sleeping)\nTgid:\t3\nUid:\t5\t6\t7\t8\nTracerPid:\t9\nNSpid:\t100\t7\nSeccomp:\t2\nSigPnd:\t0000000000000400\nShdPnd:\t0000000000000100\nSigCgt:\t0000000180000001\nx86_Thread_features:\tshstk wrss \nVmLck:\t  4 kB\n");
        assert_eq!(
            s,
            ProcStatus {
                state: 'S',
                uid: 5,
                euid: 6,
                group: 3,
                tracer: 9,
                seccomp: 2,
                own_id: 7,
                is_killed: true,
                caught: 1 | 0b11 << 31,
                has_fault: true,
                locked_kib: 4,
                shadow_stack: true
            }
        );
    }

    #[test]
    fn credentials() {
        let c = Credentials::parse(b"Uid:\t5\t6\t7\t8\nGid:\t1\t1\t1\t1\nCapPrm:\t00000000000000ff\n");
        assert_eq!(c, Credentials { uids: [5, 6, 7, 8], gids: [1; 4], permitted: Some(255) });
        assert_eq!(Credentials::parse(b"Uid:\t0\n").uids, [0, u32::MAX, u32::MAX, u32::MAX]);
        assert_eq!(Credentials::parse(b"").permitted, None);
    }

    #[test]
    fn syscall_file() {
        assert_eq!(KernelSleep::parse("running\n"), Some(KernelSleep::Running));
        assert_eq!(
            KernelSleep::parse("0 0x1 0x2 0x3 0x4 0x5 0x6 0x7ffe 0x7f00\n"),
            Some(KernelSleep::Asleep { nr: 0, args: [1, 2, 3, 4, 5, 6], sp: 0x7ffe, pc: 0x7f00 })
        );
        assert_eq!(
            KernelSleep::parse("-1 0x7ffe 0x7f00\n"),
            Some(KernelSleep::Asleep { nr: -1, args: [0; 6], sp: 0x7ffe, pc: 0x7f00 })
        );
        assert_eq!(KernelSleep::parse(""), None);
    }
}
