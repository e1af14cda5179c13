//! Errors of operations on other processes. Their texts say what the user can do.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use ingraft_model::{Avma, AvmaRange, Pid, Tid};

use crate::shortage::Shortage;

/// Reason why a process may not be attached to. `Display` gives the reason; [`Denial::hint`] says how attaching would be permitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// There is no such process.
    #[error("no process {0}")]
    NoSuchProcess(Pid),
    /// The process has ended, and its parent has not waited for it yet.
    #[error("process {0} has already ended (a zombie)")]
    Zombie(Pid),
    /// A thread of the kernel, without a program.
    #[error("{0} is a kernel thread")]
    KernelThread(Pid),
    /// The process is the engine's own.
    #[error("process {0} is ingraft itself")]
    Ourselves(Pid),
    /// The process belongs to another user, and the caller may not trace other users' processes.
    #[error("process {pid} belongs to user {uid}")]
    OtherUser {
        /// The process.
        pid: Pid,
        /// Real user id of its owner.
        uid: u32,
    },
    /// The process belongs to the caller, but has more rights than its user: its program is setuid, or has capabilities.
    #[error("process {pid} has more rights than its user (its program is setuid, or has capabilities)")]
    Privileged {
        /// The process.
        pid: Pid,
    },
    /// The Yama security module restricts tracing.
    #[error("process {pid} may not be traced: kernel.yama.ptrace_scope is {scope}")]
    Yama {
        /// The process.
        pid: Pid,
        /// The setting, 1 to 3.
        scope: u32,
    },
    /// The process is not dumpable: it changed its user or has more privileges than its user has.
    #[error("process {0} is protected (not dumpable: it changed its user, or its program file cannot be read)")]
    NotDumpable(Pid),
    /// The caller is a user who could not trace the process: it belongs to another user, or has more privileges than its user.
    #[error("process {pid} is not yours (you are user {uid}) or is protected")]
    NotYours {
        /// The process.
        pid: Pid,
        /// The caller.
        uid: u32,
    },
    /// The process is in a user namespace in which the engine has no rights.
    #[error("process {0} lives in another user namespace")]
    UserNamespace(Pid),
    /// The kernel refused for another reason (capabilities of the target, Landlock, another security module).
    #[error("the kernel does not let us trace process {0}")]
    Forbidden(Pid),
    /// Another process traces the process already.
    #[error("process {pid} is already traced by {tracer} (process {tracer_pid})")]
    Traced {
        /// The process.
        pid: Pid,
        /// Name of the tracer.
        tracer: String,
        /// Process of the tracer.
        tracer_pid: Pid,
    },
    /// The process does not run x86-64 code.
    #[error("process {pid} is a {kind} program")]
    NotX86_64 {
        /// The process.
        pid: Pid,
        /// Kind of program: "32-bit", "x32", or the machine that its file names.
        kind: &'static str,
    },
    /// Another program runs the process's code by translating it (valgrind, DynamoRIO, Pin, qemu-user).
    #[error(
        "process {pid} runs under {host}, which translates its code: the processor does not execute the code itself"
    )]
    Translated {
        /// The process.
        pid: Pid,
        /// Name of the translating program.
        host: &'static str,
    },
}

impl Denial {
    /// Advice on how attaching would be permitted, for the user, in one line.
    pub fn hint(&self) -> String {
        match self {
            Denial::NoSuchProcess(_) => "look for it with `ingraft ps`".into(),
            Denial::Zombie(_) => "nothing is left to measure; its parent should wait for it".into(),
            Denial::KernelThread(_) => "only programs can be measured; use perf or ftrace for the kernel".into(),
            Denial::Ourselves(_) => "choose another process".into(),
            Denial::OtherUser { uid, .. } => format!("run as user {uid} or as root"),
            Denial::Privileged { .. } => "run as root (CAP_SYS_PTRACE)".into(),
            Denial::Yama { scope: 1, .. } => {
                "run as root, or `sysctl kernel.yama.ptrace_scope=0`, or start the program with `ingraft … -- COMMAND`"
                    .into()
            }
            Denial::Yama { scope: 2, .. } => "run as root (CAP_SYS_PTRACE)".into(),
            Denial::Yama { .. } => "nobody may trace until the next boot: this setting cannot be taken back".into(),
            Denial::NotDumpable(_) => "run as root (CAP_SYS_PTRACE)".into(),
            Denial::NotYours { .. } => "ask its owner or root".into(),
            Denial::UserNamespace(_) => "run as root outside of the container, or inside of it".into(),
            Denial::Forbidden(_) => {
                "run as root (CAP_SYS_PTRACE); a security module (Landlock, SELinux) may forbid it as well".into()
            }
            Denial::Traced { tracer, tracer_pid, .. } => {
                format!("end {tracer} (process {tracer_pid}) or let it detach")
            }
            Denial::Translated { host, .. } => format!("start the program without {host}"),
            Denial::NotX86_64 { .. } => "only 64-bit x86 programs can be measured".into(),
        }
    }
}

/// An operation on another process failed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The engine may not attach to the process, or cannot.
    #[error("{0}")]
    Denied(#[from] Denial),
    /// The process has ended.
    #[error("process {0} has ended")]
    Gone(Pid),
    /// The process runs another program now (exec).
    #[error("process {0} has started another program")]
    Replaced(Pid),
    /// A thread did not stop in time.
    #[error("thread {tid} did not stop within {} ms", waited.as_millis())]
    Unstoppable {
        /// The thread.
        tid: Tid,
        /// Program counter of the thread; `None` if the kernel does not give it.
        pc: Option<Avma>,
        /// Time for which the engine waited.
        waited: Duration,
    },
    /// A step of an insertion would have held the target's threads for longer than the bound, in each of its tries.
    #[error(
        "one step would hold the threads of the target for {:.3} ms (besides {:.3} ms without a processor), longer than {:.3} ms",
        ms(*length), ms(*waited), ms(*bound)
    )]
    HoldTooLong {
        /// Length of the hold, as far as it is known, without the waits for a processor.
        length: Duration,
        /// Time of the hold in which no processor was free for it.
        waited: Duration,
        /// The bound.
        bound: Duration,
    },
    /// A ptrace request failed.
    #[error("ptrace {request} of thread {tid}: {source}")]
    Ptrace {
        /// Name of the request.
        request: &'static str,
        /// The thread.
        tid: Tid,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A file of /proc has contents that the engine cannot parse.
    #[error("{} is malformed", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
    },
    /// Memory of the target could not be read or written.
    #[error("cannot {what} {len} bytes at {at}: {source}")]
    Memory {
        /// "read" or "write".
        what: &'static str,
        /// Address of the first byte.
        at: Avma,
        /// Number of bytes.
        len: usize,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A system call that the engine made in the target failed.
    #[error("{call} in the target: {source}")]
    Call {
        /// Name of the system call.
        call: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// No thread of the target can make a system call for the engine.
    #[error("no thread can carry a system call: {0}")]
    NoCarrier(String),
    /// The target has no code by which a borrowed thread could return by itself.
    #[error("no code for {0} found in the target")]
    NoGadget(&'static str),
    /// The target's system calls are filtered, and the engine may not suspend the filter.
    #[error("system calls of the target are filtered (seccomp), and the filter cannot be suspended")]
    Seccomp,
    /// System calls of the target's threads raise SIGSYS (Syscall User Dispatch), and so would those of a borrowed thread.
    #[error(
        "the target turns its system calls into signals (syscall user dispatch), and no thread can make one for us"
    )]
    UserDispatch,
    /// The target runs with a shadow stack.
    #[error("the target runs with a shadow stack (CET), by which a borrowed thread cannot return")]
    ShadowStack,
    /// No address range is free in the region where one is needed.
    #[error("no free address range of {len} bytes {place}")]
    NoRoom {
        /// Length of the range in bytes.
        len: u64,
        /// Description of the region in which the range must lie.
        place: &'static str,
    },
    /// A limit on the target's memory leaves too little room.
    #[error("{0}")]
    Shortage(Box<Shortage>),
    /// The target has about as many mappings as the kernel allows it.
    #[error("the target has {have} mappings, and the kernel allows {most} (vm.max_map_count)")]
    Mappings {
        /// Number of mappings that the target has.
        have: usize,
        /// Number of mappings that the kernel allows it.
        most: usize,
    },
    /// The target has no data area at the expected place, or this version cannot read it.
    #[error("no usable data area at {:#x}: {why}", range.start.0)]
    NoArea {
        /// Range in which the area was expected.
        range: AvmaRange,
        /// Reason why it is not usable.
        why: &'static str,
    },
    /// An offset lies outside of the data area.
    #[error("offset {0:#x} is outside of the data area")]
    Outside(u64),
    /// The record of what is changed in the target is too large for its copy there.
    #[error("the record of what would be changed takes {needed} bytes in the process, which has room for {room} bytes")]
    JournalFull {
        /// Size of the record in bytes.
        needed: u64,
        /// Room for it in bytes.
        room: u64,
    },
    /// A system call of the engine itself failed.
    #[error("{what}: {source}")]
    Own {
        /// Description of the call.
        what: &'static str,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("cannot start {}: {source}", program.display())]
    Start {
        /// Path of the program.
        program: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

impl ProcessError {
    /// Whether a hold was given up because it would have been longer than the bound.
    pub(crate) fn is_too_long(&self) -> bool {
        matches!(self, ProcessError::HoldTooLong { .. })
    }

    /// Whether the process has ended, or runs another program.
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            ProcessError::Gone(_)
                | ProcessError::Replaced(_)
                | ProcessError::Denied(Denial::NoSuchProcess(_) | Denial::Zombie(_))
        )
    }

    /// Whether the target may not map more memory because of its limit on locked memory: `mlockall` with MCL_FUTURE, and RLIMIT_MEMLOCK.
    pub fn is_locked_out(&self) -> bool {
        matches!(self, ProcessError::Call { call, source } if call.starts_with("mmap") && source.raw_os_error() == Some(libc::EAGAIN))
    }

    /// Whether the target can open no more files, by its own limit or the machine's. The engine needs one more for a moment.
    pub fn is_out_of_files(&self) -> bool {
        matches!(self, ProcessError::Call { source, .. } if matches!(source.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)))
    }

    /// Advice for the user in one line; empty if there is none.
    pub fn hint(&self) -> String {
        match self {
            ProcessError::Denied(d) => d.hint(),
            ProcessError::Mappings { .. } => "raise vm.max_map_count (sysctl)".into(),
            ProcessError::Call { .. } if self.is_out_of_files() => {
                "raise the target's limit of open files (prlimit --nofile)".into()
            }
            ProcessError::Gone(_) => "start again on a process that runs".into(),
            ProcessError::Replaced(_) => "begin again to measure the program that it runs now".into(),
            ProcessError::Unstoppable { .. } => {
                "it sleeps uninterruptibly (disk, network file system, vfork), or no processor is free for it; try again later"
                    .into()
            }
            ProcessError::HoldTooLong { .. } => {
                "permit longer holds (`--max-hold`), try for longer (`--wait`), or measure it when fewer threads run"
                    .into()
            }
            ProcessError::Seccomp => "run as root (CAP_SYS_ADMIN), which may suspend the filter".into(),
            ProcessError::UserDispatch => {
                "such a program (Wine, FEX) can be measured if a thread of it has no dispatch".into()
            }
            ProcessError::NoGadget(_) => {
                "a program that installs a signal handler, or loads its C library, has such code".into()
            }
            ProcessError::NoRoom { .. } | ProcessError::JournalFull { .. } => {
                "measure fewer functions at a time, which takes less room".into()
            }
            ProcessError::ShadowStack => "start it with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off".into(),
            ProcessError::Shortage(shortage) => shortage.hint(),
            ProcessError::Call { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => {
                "the target's memory limit is reached (RLIMIT_AS, cgroup); raise it".into()
            }
            ProcessError::Call { source, .. } if self.is_locked_out() => {
                format!(
                    "the target locks what it maps (mlockall), and may lock no more ({source}); raise RLIMIT_MEMLOCK"
                )
            }
            _ => String::new(),
        }
    }
}

/// A plan was not applied; the target is as it was before.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The plan contradicts itself (overlap, order, a page boundary crossed). This is a defect of the code that made it.
    #[error("the plan is invalid at {at}: {why}")]
    BadPlan {
        /// Address of the write or the move.
        at: Avma,
        /// Description of the reason.
        why: &'static str,
    },
    /// The text differs from the plan's expectation: another program changed it, or it was analysed from another file.
    #[error("the code at {at} is {found:02x?}, not {expected:02x?} as expected")]
    Changed {
        /// Address of the write.
        at: Avma,
        /// Bytes that the plan expects.
        expected: Vec<u8>,
        /// Bytes in the target's memory.
        found: Vec<u8>,
    },
    /// The text is mapped shared: a change would reach every process that maps it.
    #[error("the code at {at} is mapped shared: changing it would change it for others")]
    SharedText {
        /// Address of the write.
        at: Avma,
    },
    /// The text is not mapped.
    #[error("there is no code at {at}")]
    NotMapped {
        /// Address of the write.
        at: Avma,
    },
    /// A thread is inside of code that changes, and did not leave it.
    #[error("thread {tid} stands at {at}, inside of what changes")]
    Busy {
        /// The thread.
        tid: Tid,
        /// Program counter of the thread, or one saved in a signal frame.
        at: Avma,
    },
    /// A thread is in the handler of a fault of an instruction that would be displaced, and the handler may skip that instruction.
    #[error("thread {tid} handles a fault of the instruction at {at}, which would be displaced")]
    Faulted {
        /// The thread.
        tid: Tid,
        /// Address of the instruction.
        at: Avma,
    },
    /// A goroutine or another context of the program is suspended inside of code that changes, and did not continue.
    #[error("a context is suspended at {at}, inside of what changes")]
    Suspended {
        /// Address at which the context continues.
        at: Avma,
    },
    /// The program suspends contexts in signal handlers, and has more memory or address space than can be searched for them while it is held.
    #[error(
        "the program suspends contexts in signal handlers, and has too much memory to look for them while it is held (more than 64 MiB, or memory scattered over more than 4 GiB)"
    )]
    Preempts,
    /// Any other error.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl ApplyError {
    /// Whether another attempt a moment later may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        let stopped = matches!(self, ApplyError::Process(ProcessError::Unstoppable { .. }));
        stopped || matches!(self, ApplyError::Busy { .. } | ApplyError::Faulted { .. } | ApplyError::Suspended { .. })
    }

    /// Whether a hold was given up because it would have been longer than the bound.
    pub(crate) fn is_too_long(&self) -> bool {
        matches!(self, ApplyError::Process(e) if e.is_too_long())
    }

    /// The thread that did not stop, if that is the reason; otherwise `None`.
    pub fn sleeper(&self) -> Option<Tid> {
        match self {
            ApplyError::Process(ProcessError::Unstoppable { tid, .. }) => Some(*tid),
            ApplyError::BadPlan { .. }
            | ApplyError::Changed { .. }
            | ApplyError::SharedText { .. }
            | ApplyError::NotMapped { .. }
            | ApplyError::Busy { .. }
            | ApplyError::Faulted { .. }
            | ApplyError::Suspended { .. }
            | ApplyError::Preempts
            | ApplyError::Process(_) => None,
        }
    }
}
