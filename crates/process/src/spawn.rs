//! Starts a program and follows it until it is loaded. The program is held before its first instruction and whenever it has mapped more
//! code. The engine changes none of its bytes for that: it follows the program's system calls.

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use ingraft_model::{Avma, Pid, Tid};

use crate::access;
use crate::error::{Denial, ProcessError};
use crate::procfs::Mapping;
use crate::sys::{self, Regs, WaitStatus};
use crate::target::{AT_BASE, AT_ENTRY, Target};
use crate::tracer::{TraceeState, Tracer, on_own_thread, pause, while_held};

/// Length of the part of the stack that is searched for a return address into the program, in bytes.
const STACK_SEARCH: usize = 64 * 1024;
const NOT_YET: i64 = -(libc::ENOSYS as i64);

/// Phase of the start in which a program is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StartStage {
    /// The program is before its first instruction. The program and its loader are mapped.
    Begun,
    /// The program has mapped more code, none of which has run.
    Mapped,
    /// All libraries that the program names are loaded, and code other than the loader's is making its first system call.
    Loaded,
}

/// Standard streams of a started program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StandardStreams {
    /// The calling process's standard streams.
    Inherited,
    /// /dev/null for all three streams.
    Null,
}

/// Starts a program. `on_stop` is called on another thread whenever the program is held. During the start, all operations on the target are
/// allowed there, and only there. After the start, the program runs on untraced.
///
/// The program is a child of the calling process, and [`Target::wait_exit`] waits for its end. No other code may wait for it (`waitpid`),
/// because such a call would take the stops of held threads from the engine.
pub fn spawn(
    command: &[OsString],
    streams: StandardStreams,
    on_stop: impl FnMut(&Arc<Target>, StartStage) + Send,
) -> Result<Arc<Target>, ProcessError> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| start_error("", io::ErrorKind::InvalidInput.into()))?;
    let pipe = || io::pipe().map_err(|source| ProcessError::Own { what: "pipe", source });
    let ((pid_reader, pid_writer), (go_reader, go_writer)) = (pipe()?, pipe()?);
    let mut child = Command::new(program);
    child.args(arguments);
    if streams == StandardStreams::Null {
        child.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    }
    announce_and_wait(&mut child, &pid_writer, &go_reader, &go_writer);

    thread::scope(|scope| {
        let tracer = scope.spawn(move || on_own_thread(|| follow(pid_reader, go_writer, on_stop)));
        // This returns once the program runs or has failed to start.
        let started = child.spawn().map_err(|source| start_error(program, source));
        drop((pid_writer, go_reader));
        let followed = tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match (started, followed?) {
            (Ok(mut killed), Err(refused @ ProcessError::Denied(Denial::Translated { .. }))) => {
                killed.wait().map_err(|source| start_error(program, source))?;
                Err(refused)
            }
            (_, Err(refused @ (ProcessError::Denied(_) | ProcessError::Ptrace { .. }))) => Err(refused),
            (Err(not_started), _) => Err(not_started),
            (Ok(_), followed) => followed,
        }
    })
}

fn start_error(program: impl Into<PathBuf>, source: io::Error) -> ProcessError {
    ProcessError::Start { program: program.into(), source }
}

/// Makes the child send its id before exec, and wait for a byte. If the engine dies, the byte never comes and the child ends.
fn announce_and_wait(child: &mut Command, pid_to: &PipeWriter, go: &PipeReader, go_writer: &PipeWriter) {
    let (pid_to, go, not_mine) = (pid_to.as_raw_fd(), go.as_raw_fd(), go_writer.as_raw_fd());
    let before_exec = move || {
        // SAFETY: the child's copy, which nobody else in the child uses.
        unsafe { rustix::io::close(not_mine) };
        // SAFETY: the parent holds it open until the child has been started.
        let to = unsafe { BorrowedFd::borrow_raw(pid_to) };
        // SAFETY: the same.
        let from = unsafe { BorrowedFd::borrow_raw(go) };
        rustix::io::write(to, &sys::own_pid().0.to_ne_bytes())?;
        match rustix::io::read(from, &mut [0u8; 1])? {
            1 => Ok(()),
            _ => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec, only system calls are made, and no memory is allocated.
    unsafe { child.pre_exec(before_exec) };
}

fn follow(
    mut pid_reader: PipeReader,
    mut go: PipeWriter,
    mut on_stop: impl FnMut(&Arc<Target>, StartStage) + Send,
) -> Result<Arc<Target>, ProcessError> {
    let own = |source| ProcessError::Own { what: "start a program", source };
    let mut pid = [0; 4];
    pid_reader.read_exact(&mut pid).map_err(own)?;
    let pid = Pid(i32::from_ne_bytes(pid));
    let main = Tid(pid.0);
    sys::precise_sleeps();
    let mut tracer = Tracer::new(pid);
    tracer.check("SEIZE", main, sys::seize(main, sys::TRACE_EXEC | sys::TRACE_SYS_GOOD))?;
    go.write_all(&[1]).map_err(own)?;
    drop(go);
    tracer.add(main, TraceeState::Running);
    loop {
        match wait(&tracer, main)? {
            // If the child has ended, `wait` fails, and `child.spawn` returns the reason.
            WaitStatus::Event(_) => break,
            WaitStatus::Signal(s) => tracer.check("CONT", main, sys::cont(main, s as usize))?,
            _ => tracer.check("CONT", main, sys::cont(main, 0))?,
        }
    }
    if let Some(denial) = access::translated(pid) {
        // It has executed no instruction yet.
        tracer.check("KILL", main, sys::kill(pid))?;
        return Err(denial.into());
    }
    let target = Arc::new(Target::open_unchecked(pid)?);
    let mut follower = StartFollower { target, tracer, main, code: Vec::new() };
    match follower.run(&mut on_stop) {
        // The program may do anything while it is followed, including end.
        Ok(()) | Err(ProcessError::Gone(_)) => Ok(follower.target),
        Err(e) => Err(e),
    }
}

fn wait(tracer: &Tracer, tid: Tid) -> Result<WaitStatus, ProcessError> {
    let mut tries = 0u32;
    loop {
        if let Some(status) = tracer.check("wait", tid, sys::try_wait(tid))? {
            return Ok(status);
        }
        pause(tries, 0);
        tries = tries.saturating_add(1);
    }
}

/// The system calls by which the GNU loader maps libraries. Then the loader sets the thread pointer by another system call. Only after that
/// does it relocate the first library and run library code.
const MAPPING: [i64; 20] = [
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_brk,
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_close,
    libc::SYS_read,
    libc::SYS_pread64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_getcwd,
];

/// Whether the GNU loader makes this system call while it maps libraries, or to read the features of the processor.
fn is_of_mapping(call: &Regs) -> bool {
    /// The function of arch_prctl(2) that sets the thread pointer.
    const ARCH_SET_FS: u64 = 0x1002;
    match call.orig_rax as i64 {
        libc::SYS_arch_prctl => call.rdi != ARCH_SET_FS,
        number => MAPPING.contains(&number),
    }
}

fn is_musl(loader: &[Mapping]) -> bool {
    loader.iter().any(|m| m.path.to_string_lossy().contains("musl"))
}

/// Whether a completed system call may have mapped code.
fn maps_code(made: &Regs) -> bool {
    match made.orig_rax as i64 {
        libc::SYS_mmap | libc::SYS_mprotect => made.rdx & libc::PROT_EXEC as u64 != 0,
        libc::SYS_mremap => true,
        _ => false,
    }
}

struct StartFollower {
    target: Arc<Target>,
    tracer: Tracer,
    main: Tid,
    /// Executable file mappings that were already reported.
    code: Vec<Range<Avma>>,
}

impl StartFollower {
    fn run(&mut self, on_stop: &mut (impl FnMut(&Arc<Target>, StartStage) + Send)) -> Result<(), ProcessError> {
        self.new_code()?;
        self.hold_and_call(0, StartStage::Begun, on_stop)?;
        let loader = self.target.aux(AT_BASE).filter(|&base| base != 0);
        let Some(loader) = self.mappings_of(loader)? else {
            return self.hold_and_call(0, StartStage::Loaded, on_stop); // A static program loads no libraries.
        };
        let mut signal = 0;
        // The GNU loader runs no library code while it maps libraries, so they are reported in one stop.
        let mut maps_only = !is_musl(&loader);
        let mut unreported = false;
        loop {
            self.tracer.check("SYSCALL", self.main, sys::cont_to_syscall(self.main, signal))?;
            signal = 0;
            match wait(&self.tracer, self.main)? {
                WaitStatus::Syscall => {}
                WaitStatus::Signal(s) => {
                    signal = s as usize;
                    continue;
                }
                // The thread executes another program, which the engine does not follow.
                WaitStatus::Event(_) => return Err(ProcessError::Replaced(self.target.pid())),
                WaitStatus::EventStop(_) => continue,
            }
            let regs = self.tracer.check("GETREGS", self.main, sys::get_regs(self.main))?;
            let entering = regs.rax as i64 == NOT_YET;
            if entering && self.is_loaded(&loader, &regs)? {
                return self.hold_and_call(0, StartStage::Loaded, on_stop);
            }
            if entering && maps_only && !is_of_mapping(&regs) {
                maps_only = false;
                if std::mem::take(&mut unreported) {
                    self.new_code()?;
                    self.postpone(regs)?;
                    self.hold_and_call(0, StartStage::Mapped, on_stop)?;
                }
                continue;
            }
            if !entering && maps_code(&regs) {
                if maps_only {
                    unreported = true;
                } else if self.new_code()? {
                    self.hold_and_call(0, StartStage::Mapped, on_stop)?;
                }
            }
        }
    }

    /// Cancels the system call that the thread is entering, and moves the thread back to its `syscall` instruction. If the call number is
    /// -1, the kernel makes no call and keeps rax, so one change of the registers is enough. If the engine dies at this point, the program
    /// makes the call again.
    fn postpone(&mut self, entering: Regs) -> Result<(), ProcessError> {
        /// Length of the `syscall` instruction.
        const LEN: u64 = 2;
        let rip = entering.rip.wrapping_sub(LEN);
        let again = Regs { orig_rax: u64::MAX, rax: entering.orig_rax, rip, ..entering };
        self.tracer.check("SETREGS", self.main, sys::set_regs(self.main, &again))?;
        self.tracer.check("SYSCALL", self.main, sys::cont_to_syscall(self.main, 0))?;
        loop {
            let signal = match wait(&self.tracer, self.main)? {
                WaitStatus::Syscall => return Ok(()),
                WaitStatus::Event(_) => return Err(ProcessError::Replaced(self.target.pid())),
                WaitStatus::Signal(signal) => signal as usize,
                WaitStatus::EventStop(_) => 0,
            };
            self.tracer.check("SYSCALL", self.main, sys::cont_to_syscall(self.main, signal))?;
        }
    }

    /// Brings the thread to a stop in which it can be borrowed and its program counter moved, and calls `on_stop`.
    fn hold_and_call(
        &mut self,
        mut signal: usize,
        why: StartStage,
        on_stop: &mut (impl FnMut(&Arc<Target>, StartStage) + Send),
    ) -> Result<(), ProcessError> {
        loop {
            self.tracer.check("INTERRUPT", self.main, sys::interrupt(self.main))?;
            self.tracer.check("CONT", self.main, sys::cont(self.main, signal))?;
            match wait(&self.tracer, self.main)? {
                WaitStatus::EventStop(s) => {
                    self.tracer.threads[0].state = TraceeState::Stopped(s);
                    break;
                }
                WaitStatus::Signal(s) => signal = s as usize,
                _ => signal = 0,
            }
        }
        self.tracer.threads[0].regs = None;
        let target = Arc::clone(&self.target);
        while_held(&mut self.tracer, || on_stop(&target, why));
        self.tracer.repair_all()?;
        // Release threads that the program has created since; they were held with it.
        for i in (1..self.tracer.threads.len()).rev() {
            self.tracer.release(i)?;
        }
        self.tracer.threads.iter_mut().for_each(|t| t.regs = None);
        Ok(())
    }

    /// Whether the program has mapped code that was not reported yet.
    fn new_code(&mut self) -> Result<bool, ProcessError> {
        let maps = self.target.maps()?;
        let code: Vec<Range<Avma>> = maps.into_iter().filter(|m| m.exec && m.is_file()).map(|m| m.range).collect();
        let new = code.iter().any(|r| !self.code.contains(r));
        self.code = code;
        Ok(new)
    }

    /// All executable mappings of the file that is mapped at an address.
    fn mappings_of(&self, at: Option<u64>) -> Result<Option<Vec<Mapping>>, ProcessError> {
        let Some(at) = at else { return Ok(None) };
        let maps = self.target.maps()?;
        let Some(file) = maps.iter().find(|m| m.range.contains(&Avma(at))).map(|m| (m.device, m.inode)) else {
            return Ok(None);
        };
        Ok(Some(maps.into_iter().filter(|m| m.exec && (m.device, m.inode) == file).collect()))
    }

    /// Whether code other than the loader's makes this system call. With musl, the loader is also the C library; there, the result is
    /// whether the program has called it.
    fn is_loaded(&self, loader: &[Mapping], regs: &Regs) -> Result<bool, ProcessError> {
        if !loader.iter().any(|m| m.range.contains(&Avma(regs.rip))) {
            return Ok(true);
        }
        if !is_musl(loader) {
            return Ok(false);
        }
        let entry = self.target.aux(AT_ENTRY).unwrap_or(0);
        let Some(program) = self.mappings_of(Some(entry))? else { return Ok(true) };
        let mut stack = vec![0; STACK_SEARCH];
        let n = self.target.read_some(Avma(regs.rsp), &mut stack).unwrap_or(0);
        let words = stack[..n].chunks_exact(8).map(|w| w.try_into().map(u64::from_le_bytes).unwrap_or(0));
        // The words from the entry point on belong to the initial stack: the kernel's auxiliary vector has the entry point.
        Ok(words.take_while(|&w| w != entry).any(|w| program.iter().any(|m| m.range.contains(&Avma(w)))))
    }
}
