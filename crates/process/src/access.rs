//! The processes of the machine: whether each may be attached to, and if not, why.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::MetadataExt;

use ingraft_model::{Pid, Tid};

use crate::error::Denial;
use crate::hosts;
use crate::procfs;
use crate::sys;
use crate::traced_threads;

/// A process as `ps` shows it.
#[derive(Clone, Debug)]
pub struct ProcessInfo {
    /// Process id.
    pub pid: Pid,
    /// Name of its main thread (comm).
    pub name: String,
    /// Process id of the parent; 0 if the parent is outside of the engine's pid namespace.
    pub parent: Pid,
    /// Command line; empty for kernel threads.
    pub command: Vec<String>,
    /// Real user id.
    pub uid: u32,
    /// Whether the process may be attached to; if not, the reason.
    pub attachable: Result<(), Denial>,
}

/// Length of the longest reported title in bytes. Some programs have generated arguments of many KiB.
const TITLE_MAX: usize = 256;

impl ProcessInfo {
    /// The title of the process: its arguments, joined by blanks, or the text that the program has written over them (`postgres: b [local]
    /// idle`). It is cut to 256 bytes. It is empty for a process without arguments.
    pub fn title(&self) -> String {
        title_of(&self.command)
    }
}

fn title_of(command: &[String]) -> String {
    let mut title = command.join(" ").trim_end().to_owned();
    title.truncate(title.floor_char_boundary(TITLE_MAX));
    title
}

/// The parent and the title of a process; parent 0 and an empty title if it is gone.
pub fn parent_and_title(pid: Pid) -> (Pid, String) {
    (procfs::stat(pid).map_or(Pid(0), |stat| stat.parent), title_of(&procfs::cmdline(pid)))
}

/// All processes except kernel threads, in order of their ids.
pub fn processes() -> Vec<ProcessInfo> {
    let mut list: Vec<ProcessInfo> = pids().into_iter().filter_map(describe).collect();
    list.sort_by_key(|p| p.pid);
    list
}

/// One process; `None` for a kernel thread and for a process that is gone.
pub fn describe(pid: Pid) -> Option<ProcessInfo> {
    let stat = procfs::stat(pid).ok().filter(|stat| !stat.is_kernel())?;
    let status = procfs::status(pid).ok()?;
    let (name, command) = (procfs::comm(pid)?, procfs::cmdline(pid));
    Some(ProcessInfo { pid, name, parent: stat.parent, command, uid: status.uid, attachable: attachable(pid) })
}

/// The living children of a process that have memory of their own, in order of their ids. A vfork child uses its parent's memory until it
/// executes a program. `None` if the kernel does not list children (it was built without CONFIG_PROC_CHILDREN).
pub fn children(parent: Pid) -> Option<Vec<Pid>> {
    let own = sys::own_tid();
    if !std::path::Path::new(&format!("/proc/self/task/{own}/children")).exists() {
        return None;
    }
    let threads = procfs::threads(parent).unwrap_or_default();
    let mut found: Vec<Pid> = threads.into_iter().flat_map(procfs::children).map(|tid| Pid(tid.0)).collect();
    found.retain(|child| sys::has_own_memory(*child, parent));
    found.sort();
    Some(found)
}

/// Whether a process has memory. It has none while it ends, nor after that.
pub fn has_memory(pid: Pid) -> bool {
    procfs::has_memory(pid)
}

/// The processes with this name: the name of the main thread, the base name of the first argument, or the base name of the program file.
pub fn find_by_name(name: &str) -> Vec<Pid> {
    let base = |path: &str| path.rsplit('/').next().is_some_and(|b| b == name);
    let mut found: Vec<Pid> = pids()
        .into_iter()
        .filter(|&pid| {
            pid != sys::own_pid()
                && (procfs::comm(pid).is_some_and(|c| c == name)
                    || procfs::cmdline(pid).first().is_some_and(|a| base(a))
                    || procfs::exe(pid).is_some_and(|e| base(e.to_string_lossy().trim_end_matches(" (deleted)"))))
        })
        .collect();
    found.sort();
    found
}

fn pids() -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok().map(Pid)).collect()
}

/// Whether a process may be attached to. The check is cheap and does not affect the process.
///
/// A process that an engine of ingraft holds may be attached to: the attach waits until the process is released.
pub fn attachable(pid: Pid) -> Result<(), Denial> {
    denial(pid, true).map_or(Ok(()), Err)
}

/// Reason why a process may not be attached to; `None` if there is none.
pub(crate) fn explain(pid: Pid) -> Option<Denial> {
    denial(pid, false)
}

/// Reason why a process may not be attached to. With `waits`, an engine that holds the process for a moment is no reason.
fn denial(pid: Pid, waits: bool) -> Option<Denial> {
    let Ok(stat) = procfs::stat(pid) else { return Some(Denial::NoSuchProcess(pid)) };
    if pid == sys::own_pid() {
        return Some(Denial::Ourselves(pid));
    }
    if stat.is_kernel() {
        return Some(Denial::KernelThread(pid));
    }
    if stat.is_dead() {
        return Some(Denial::Zombie(pid));
    }
    let status = procfs::status(pid).ok()?;
    if status.tracer != 0 && !(waits && traced_threads::is_tracer_of_ingraft(Tid(status.tracer))) {
        // The kernel gives the id of the tracing thread; find its process.
        let tracer_pid = procfs::status(Pid(status.tracer)).map_or(Pid(status.tracer), |s| Pid(s.group));
        let tracer = procfs::comm(tracer_pid).unwrap_or_else(|| "another program".into());
        return Some(Denial::Traced { pid, tracer, tracer_pid });
    }
    // To open this file, the kernel makes the same checks as for an attach.
    match OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem")) {
        Ok(_) => {}
        // The memory of the process is gone, and the process is about to end.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ESRCH | libc::ENOENT)) => {
            return Some(Denial::NoSuchProcess(pid));
        }
        Err(_) => return Some(why_forbidden(pid, &status)),
    }
    foreign_code(pid).map(|kind| Denial::NotX86_64 { pid, kind }).or_else(|| translated(pid))
}

/// The reason why a process whose code another program translates is refused; `None` if the processor executes the code.
pub(crate) fn translated(pid: Pid) -> Option<Denial> {
    let maps = procfs::maps(pid).unwrap_or_default();
    hosts::host_of(procfs::exe(pid).as_deref(), &maps).map(|host| Denial::Translated { pid, host })
}

fn why_forbidden(pid: Pid, status: &procfs::ProcStatus) -> Denial {
    if procfs::stat(pid).is_err() {
        return Denial::NoSuchProcess(pid);
    }
    let us = procfs::status(sys::own_pid()).unwrap_or_default();
    let namespace = |p: Pid| fs::read_link(format!("/proc/{p}/ns/user")).ok();
    if status.uid != us.euid && us.euid != 0 {
        return Denial::OtherUser { pid, uid: status.uid };
    }
    if status.euid != us.euid && us.euid != 0 {
        return Denial::Privileged { pid };
    }
    if let (Some(ours), theirs) = (namespace(sys::own_pid()), namespace(pid))
        && theirs.is_none_or(|t| t != ours)
        && us.euid == 0
    {
        return Denial::UserNamespace(pid);
    }
    // If a process is not dumpable, its files under /proc/PID belong to root.
    if fs::metadata(format!("/proc/{pid}/mem")).is_ok_and(|m| m.uid() != status.euid) {
        return Denial::NotDumpable(pid);
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").ok().and_then(|s| s.trim().parse().ok());
    match scope {
        Some(scope) if scope > 0 => Denial::Yama { pid, scope },
        _ => Denial::Forbidden(pid),
    }
}

/// Kind of the program by its file's header, if it is not 64-bit x86 code.
fn foreign_code(pid: Pid) -> Option<&'static str> {
    const ELFCLASS64: u8 = 2;
    const EM_386: u16 = 3;
    const EM_X86_64: u16 = 62;
    let mut header = [0u8; 20];
    File::open(format!("/proc/{pid}/exe")).ok()?.read_exact(&mut header).ok()?;
    if !header.starts_with(b"\x7fELF") {
        return Some("foreign");
    }
    match (header[4], u16::from_le_bytes([header[18], header[19]])) {
        (ELFCLASS64, EM_X86_64) => None,
        (_, EM_X86_64) => Some("x32"),
        (_, EM_386) => Some("32-bit"),
        _ => Some("foreign"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_be_attached_to() {
        assert_eq!(attachable(Pid(i32::MAX)), Err(Denial::NoSuchProcess(Pid(i32::MAX))));
        assert_eq!(attachable(sys::own_pid()), Err(Denial::Ourselves(sys::own_pid())));
        if procfs::stat(Pid(2)).is_ok_and(|s| s.is_kernel()) {
            assert_eq!(attachable(Pid(2)), Err(Denial::KernelThread(Pid(2))));
        }
        assert!(processes().iter().any(|p| p.pid == sys::own_pid()));
    }
}
