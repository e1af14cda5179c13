//! System calls that no library wraps completely: ptrace with every signal, waits with every status. nix refuses the statuses of real-time
//! signals (and consumes them), so this file has its own wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ingraft_model::machine::PAGE;
use ingraft_model::{Pid, Tid};

use crate::dispatch::UserDispatch;

/// All general registers of a thread.
pub(crate) type Regs = libc::user_regs_struct;

/// Type of a request in the declaration of the C library.
#[cfg(target_env = "musl")]
type PtraceRequest = libc::c_int;
#[cfg(not(target_env = "musl"))]
type PtraceRequest = libc::c_uint;

const PTRACE_SEIZE: PtraceRequest = 0x4206;
const PTRACE_INTERRUPT: PtraceRequest = 0x4207;
const PTRACE_GETSIGMASK: PtraceRequest = 0x420a;
const PTRACE_SETSIGMASK: PtraceRequest = 0x420b;
const PTRACE_GET_RSEQ_CONFIGURATION: PtraceRequest = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: PtraceRequest = 0x4211;
const NT_X86_XSTATE: usize = 0x202;
const PTRACE_EVENT_STOP: i32 = 128;
/// PTRACE_O_TRACESYSGOOD: stops at system calls are told from breakpoints.
pub(crate) const TRACE_SYS_GOOD: usize = 1;
/// PTRACE_O_TRACEEXEC: the thread stops when it executes another program.
pub(crate) const TRACE_EXEC: usize = 1 << 4;
/// PTRACE_O_SUSPEND_SECCOMP: system calls are not filtered while the thread is traced.
pub(crate) const SUSPEND_SECCOMP: usize = 1 << 21;
/// Size of the kernel's signal mask.
const SIGSET_BYTES: usize = 8;
/// Length of a buffer for the extended state, in bytes. It is larger than any x86 processor with AMX needs.
const XSTATE_MAX: usize = 32 * 1024;

static STEPS: AtomicU64 = AtomicU64::new(0);
static ABORT_AT: AtomicU64 = AtomicU64::new(u64::MAX);

/// For tests: this process kills itself (SIGKILL) right before its `n`-th step that affects another process; 1 is the first.
#[doc(hidden)]
pub fn abort_after(n: u64) {
    ABORT_AT.store(n, Ordering::SeqCst);
}

/// For tests: number of steps so far that have affected another process.
#[doc(hidden)]
pub fn steps() -> u64 {
    STEPS.load(Ordering::SeqCst)
}

type StepHook = Box<dyn Fn(u64) + Send + Sync>;
static BEFORE: OnceLock<StepHook> = OnceLock::new();

/// For tests: sets a function that is called right before every step that affects another process, with the step's number from 1. Only the
/// first call has an effect.
#[doc(hidden)]
pub fn before_steps(hook: impl Fn(u64) + Send + Sync + 'static) {
    let _ = BEFORE.set(Box::new(hook));
}

/// Every step that affects another process calls this function first.
pub(crate) fn step() {
    let n = STEPS.fetch_add(1, Ordering::SeqCst) + 1;
    if let Some(hook) = BEFORE.get() {
        hook(n);
    }
    if n == ABORT_AT.load(Ordering::SeqCst) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// # Safety
/// `addr` and `data` are what `request` asks for: integers, or pointers to live memory of the right size.
unsafe fn ptrace(request: PtraceRequest, tid: Tid, addr: usize, data: usize) -> io::Result<()> {
    step();
    // SAFETY: as the caller promises.
    let r = unsafe { libc::ptrace(request, tid.0, addr, data) };
    if r == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

macro_rules! plain_request {
    ($(#[$doc:meta])* $name:ident, $request:expr) => {
        $(#[$doc])*
        pub(crate) fn $name(tid: Tid, data: usize) -> io::Result<()> {
            // SAFETY: the request takes integers only.
            unsafe { ptrace($request, tid, 0, data) }
        }
    };
}
plain_request!(
    /// Becomes the tracer of a thread; stops no thread. `data` are the options.
    seize, PTRACE_SEIZE);
plain_request!(
    /// Lets a stopped thread continue, with signal `data` or none (0).
    cont, libc::PTRACE_CONT);
plain_request!(
    /// Lets a stopped thread continue until it enters or leaves a system call.
    cont_to_syscall, libc::PTRACE_SYSCALL);
plain_request!(
    /// Stops tracing a stopped thread and lets it continue, with signal `data` or none (0).
    detach, libc::PTRACE_DETACH);

/// Asks a seized thread to stop.
pub(crate) fn interrupt(tid: Tid) -> io::Result<()> {
    // SAFETY: the request takes nothing.
    unsafe { ptrace(PTRACE_INTERRUPT, tid, 0, 0) }
}

/// The registers of a stopped thread.
pub(crate) fn get_regs(tid: Tid) -> io::Result<Regs> {
    // SAFETY: the struct holds integers only: all zero is a value.
    let mut regs: Regs = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one user_regs_struct.
    unsafe { ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut regs as usize) }?;
    Ok(regs)
}

/// Sets the registers of a stopped thread.
pub(crate) fn set_regs(tid: Tid, regs: &Regs) -> io::Result<()> {
    // SAFETY: the kernel reads one user_regs_struct.
    unsafe { ptrace(libc::PTRACE_SETREGS, tid, 0, regs as *const Regs as usize) }
}

/// The extended state (x87, SSE, AVX …) of a stopped thread, in the processor's standard format.
pub(crate) fn get_xstate(tid: Tid) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0u8; XSTATE_MAX];
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: the kernel writes at most `iov_len` bytes to the buffer, and the length to the iovec.
    unsafe { ptrace(libc::PTRACE_GETREGSET, tid, NT_X86_XSTATE, &raw mut iov as usize) }?;
    buffer.truncate(iov.iov_len);
    Ok(buffer)
}

/// Sets the extended state of a stopped thread.
pub(crate) fn set_xstate(tid: Tid, state: &[u8]) -> io::Result<()> {
    let mut iov = libc::iovec { iov_base: state.as_ptr().cast_mut().cast(), iov_len: state.len() };
    // SAFETY: the kernel reads at most `iov_len` bytes from the slice.
    unsafe { ptrace(libc::PTRACE_SETREGSET, tid, NT_X86_XSTATE, &raw mut iov as usize) }
}

/// The signals that a stopped thread blocks. In sigsuspend and similar calls it is the mask after the call.
pub(crate) fn get_sigmask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes 8 bytes.
    unsafe { ptrace(PTRACE_GETSIGMASK, tid, SIGSET_BYTES, &raw mut mask as usize) }?;
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks.
pub(crate) fn set_sigmask(tid: Tid, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads 8 bytes.
    unsafe { ptrace(PTRACE_SETSIGMASK, tid, SIGSET_BYTES, &raw const mask as usize) }
}

/// Writes one word of a stopped thread's memory, whatever its protection.
pub(crate) fn poke(tid: Tid, at: u64, word: u64) -> io::Result<()> {
    // SAFETY: the request takes integers only.
    unsafe { ptrace(libc::PTRACE_POKEDATA, tid, at as usize, word as usize) }
}

/// Address of the thread's rseq area, or 0, and the signature of its registration.
pub(crate) fn rseq_area(tid: Tid) -> io::Result<(u64, u32)> {
    let mut config = [0u64; 3]; // address; size and signature; flags and padding
    // SAFETY: the kernel writes at most the 24 bytes that are asked for.
    unsafe { ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tid, size_of_val(&config), config.as_mut_ptr() as usize) }?;
    Ok((config[0], (config[1] >> 32) as u32))
}

/// Configuration of Syscall User Dispatch in a stopped thread; `None` if it is off. Fails before Linux 6.4.
pub(crate) fn user_dispatch(tid: Tid) -> io::Result<Option<UserDispatch>> {
    let mut config = [0u64; 4]; // struct ptrace_sud_config: mode, selector, offset, length
    let (size, to) = (size_of_val(&config), config.as_mut_ptr() as usize);
    // SAFETY: the kernel writes at most the 32 bytes that are asked for.
    unsafe { ptrace(PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG, tid, size, to) }?;
    let [mode, selector, offset, len] = config;
    Ok((mode != 0).then_some(UserDispatch { selector, offset, len }))
}

/// Ends a process that this one has started.
pub(crate) fn kill(pid: Pid) -> io::Result<()> {
    let pid = rustix::process::Pid::from_raw(pid.0).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(rustix::process::kill_process(pid, rustix::process::Signal::KILL)?)
}

/// Address of a symbol in this program, or null.
fn symbol(name: &std::ffi::CStr) -> *mut libc::c_void {
    // SAFETY: the name ends with a 0, and is only read.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Signature that glibc registers with on x86-64 (sys/rseq.h).
const RSEQ_SIGNATURE: u64 = 0x5305_3053;

/// struct rseq in its first version: processor numbers, pointer to the section, flags, padding.
#[repr(C, align(32))]
struct RseqArea([AtomicU64; 4]);

impl RseqArea {
    const SECTION: usize = 1;
    const UNREGISTER: i32 = 1;

    /// Registers the area for the calling thread, or unregisters it. Fails if the thread has another one.
    fn register(&self, flags: i32) -> bool {
        // SAFETY: the kernel writes to the area as long as it is registered; `OwnRseqArea` ends that before it goes.
        unsafe { libc::syscall(libc::SYS_rseq, &raw const *self, size_of::<Self>(), flags, RSEQ_SIGNATURE as u32) == 0 }
    }
}

/// An rseq area that this process has registered for the calling thread.
struct OwnRseqArea(Box<RseqArea>);

impl OwnRseqArea {
    fn register() -> Option<Self> {
        let area = Box::new(RseqArea([const { AtomicU64::new(0) }; 4]));
        area.register(0).then_some(OwnRseqArea(area))
    }
}

impl Drop for OwnRseqArea {
    fn drop(&mut self) {
        if !self.0.register(RseqArea::UNREGISTER) {
            // The kernel continues to write to the area, so never free it.
            Box::leak(std::mem::replace(&mut self.0, Box::new(RseqArea([const { AtomicU64::new(0) }; 4]))));
        }
    }
}

/// Address of the pointer to the section, in the area that glibc has registered for the calling thread. `None` if glibc has registered
/// none, or if this program has another C library.
fn glibc_rseq_section() -> Option<*mut u64> {
    // SAFETY: null or the address of glibc's constant, which has this type (sys/rseq.h).
    let offset = unsafe { symbol(c"__rseq_offset").cast::<isize>().as_ref() }?;
    // SAFETY: the same; 0 if glibc has registered no areas.
    let size = unsafe { symbol(c"__rseq_size").cast::<u32>().as_ref() }?;
    if *size == 0 {
        return None;
    }
    let thread_pointer: *mut u8;
    // SAFETY: on x86-64 the first word at the thread pointer is the thread pointer itself (System V ABI, thread-local storage).
    unsafe { std::arch::asm!("mov {}, fs:0", out(reg) thread_pointer, options(nostack, preserves_flags, readonly)) };
    Some(thread_pointer.wrapping_offset(*offset + 8 * RseqArea::SECTION as isize).cast())
}

/// Points the calling thread's rseq area to a section that no thread executes, calls `something`, and returns whether the kernel has
/// cleared the pointer. `None` if the thread has no area.
pub(crate) fn section_is_cleared_by(something: impl FnOnce()) -> Option<bool> {
    /// struct rseq_cs (version and flags, start, length, abort address), and the signature before the abort address.
    #[repr(C, align(32))]
    struct RseqSection([AtomicU64; 5]);
    static SECTION: RseqSection = RseqSection([const { AtomicU64::new(0) }; 5]);
    let at = |word: usize| (&raw const SECTION.0[word]) as u64;
    SECTION.0[1].store(at(0), Ordering::SeqCst);
    SECTION.0[3].store(at(4) + 4, Ordering::SeqCst);
    SECTION.0[4].store(RSEQ_SIGNATURE, Ordering::SeqCst);
    let own;
    let slot = match glibc_rseq_section() {
        // SAFETY: glibc's area lives as long as this thread, the pointer in it is aligned, and only this thread and the kernel access it.
        Some(slot) => unsafe { AtomicU64::from_ptr(slot) },
        None => {
            own = OwnRseqArea::register()?;
            &own.0.0[RseqArea::SECTION]
        }
    };
    slot.store(at(0), Ordering::SeqCst);
    something();
    let cleared = slot.load(Ordering::SeqCst) == 0;
    slot.store(0, Ordering::SeqCst);
    Some(cleared)
}

/// Stop of a thread that a wait reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WaitStatus {
    /// The thread stopped because the engine asked for it (signal 5), or by a group-stop (the stopping signal).
    EventStop(i32),
    /// The thread stopped at another ptrace event, such as exec.
    Event(i32),
    /// The thread stopped at the entry or exit of a system call.
    Syscall,
    /// The thread stopped before the delivery of a signal.
    Signal(i32),
}

impl WaitStatus {
    /// Decodes the status of a stopped thread from waitid(2): the signal in the lowest eight bits, the event above it.
    pub(crate) fn decode(status: i32) -> Self {
        let (signal, event) = (status & 0xff, status >> 8);
        match event {
            PTRACE_EVENT_STOP => WaitStatus::EventStop(signal),
            0 if signal == libc::SIGTRAP | 0x80 => WaitStatus::Syscall,
            0 => WaitStatus::Signal(signal),
            other => WaitStatus::Event(other),
        }
    }
}

/// Checks once whether a traced thread has stopped. Fails with ECHILD if it has ended. This does not reap the thread: its parent does,
/// which may be this process.
pub(crate) fn try_wait(tid: Tid) -> io::Result<Option<WaitStatus>> {
    // SAFETY: the struct holds integers only: all zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: the kernel writes one siginfo_t.
    if unsafe { libc::waitid(libc::P_PID, tid.0 as libc::id_t, &raw mut info, options) } == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: waitid fills in the fields of SIGCHLD, or leaves zeros.
    if unsafe { info.si_pid() } == 0 {
        return Ok(None);
    }
    // SAFETY: the same.
    Ok(Some(WaitStatus::decode(unsafe { info.si_status() })))
}

/// Reaps a thread that any thread of this process traces, if it has ended.
pub(crate) fn take_end(tid: Tid) {
    let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
    // SAFETY: without a siginfo_t the kernel writes nothing.
    let _ = unsafe { libc::waitid(libc::P_PID, tid.0 as libc::id_t, std::ptr::null_mut(), options) };
}

/// Gives the calling thread a real-time priority, if that is permitted. Otherwise asks the scheduler for short time slices, which puts the
/// thread before ordinary threads whose turn comes at the same time (sched_setattr(2), Linux 6.12). The priority ends with the thread. Returns whether the thread has a real-time priority.
pub(crate) fn raise_priority() -> bool {
    let (policy, priority) = (libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1i32);
    // musl's function always fails, so make the system call. The kernel's struct sched_param is one integer.
    // SAFETY: the kernel reads one integer.
    if unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) } == 0 {
        return true;
    }
    // SAFETY: all fields are integers.
    let mut attr: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attr);
    // SAFETY: the kernel writes `size` bytes at most.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size, 0) } == 0 {
        attr.sched_runtime = SHORT_SLICE;
        // SAFETY: the kernel reads one sched_attr. Older ones ignore the field.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) };
    }
    false
}

/// Lets the calling thread run soon after its sleeps end, as far as that is permitted. Such a thread must sleep nearly all the time.
pub fn run_promptly() {
    precise_sleeps();
    raise_priority();
}

/// Shortest time slice that the kernel grants, in nanoseconds.
const SHORT_SLICE: u64 = 100_000;

/// Lets sleeps of the calling thread end on time.
pub(crate) fn precise_sleeps() {
    // SAFETY: the request takes integers only.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1usize, 0usize, 0usize, 0usize) };
}

/// The time stamp counter.
pub(crate) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets all programs use it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Waits until all earlier loads are complete, and lets no later load begin before that (Intel SDM vol. 2, LFENCE).
pub(crate) fn loads_end() {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { std::arch::x86_64::_mm_lfence() }
}

/// Whether the time stamp counter runs at a constant rate in all states of the processor (Intel SDM vol. 3B, 19.17.1).
pub(crate) fn has_invariant_ticks() -> bool {
    const POWER: u32 = 0x8000_0007;
    let leaf = std::arch::x86_64::__cpuid;
    leaf(0x8000_0000).eax >= POWER && leaf(POWER).edx & 1 << 8 != 0
}

/// Gives the calling thread a user's rights to files, and no other rights of that user: it can open the files that this user may open. For
/// a thread that ends afterwards.
pub(crate) fn take_file_rights(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    /// Id that changes nothing: with it, the call returns the thread's present id.
    const ASK: u32 = u32::MAX;
    // SAFETY: the kernel reads as many ids as there are. Unlike the C library's function, the system call changes this thread alone.
    if unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // These two calls return the previous id, and report no errors.
    for (call, id) in [(libc::SYS_setfsgid, gid), (libc::SYS_setfsuid, uid)] {
        // SAFETY: the call takes an integer, and changes this thread alone.
        unsafe { libc::syscall(call, id) };
        // SAFETY: as above.
        let now = unsafe { libc::syscall(call, ASK) };
        if u32::try_from(now) != Ok(id) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
    }
    Ok(())
}

/// Whether a process has this thread. The result is also true for a thread that has ended and was not waited for, as a main thread is while
/// other threads live.
pub fn thread_exists(pid: Pid, tid: Tid) -> bool {
    // SAFETY: signal 0 only asks whether the thread exists.
    let r = unsafe { libc::syscall(libc::SYS_tgkill, pid.0, tid.0, 0) };
    // A thread that may not be signalled exists.
    r == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// Waits until a thread of this process has left the kernel's lists, so that the kernel has released every thread that it traced.
pub(crate) fn wait_thread_gone(tid: Tid) {
    let own = Pid(rustix::process::getpid().as_raw_nonzero().get());
    for _ in 0..100_000 {
        if !thread_exists(own, tid) {
            return;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
}

/// The capability sets of a thread, version 3 of linux/capability.h: two words each.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Capabilities([[u32; 3]; 2]);

/// Index of the effective set in each half of [`Capabilities`].
const EFFECTIVE: usize = 0;

fn capabilities(call: libc::c_long, sets: &mut Capabilities) -> io::Result<()> {
    /// _LINUX_CAPABILITY_VERSION_3, and the calling thread.
    const HEADER: [u32; 2] = [0x2008_0522, 0];
    let mut header = HEADER;
    // SAFETY: the kernel reads the header, and may write its own version there; it reads or writes two times three words at `sets`.
    let r = unsafe { libc::syscall(call, header.as_mut_ptr(), sets.0.as_mut_ptr()) };
    if r == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sets the effective user and group of the calling thread alone; the C library's functions would change all threads.
fn set_effective(uid: u32, gid: u32) -> io::Result<()> {
    const KEEP: u32 = u32::MAX;
    // SAFETY: the request takes integers only.
    let group = || unsafe { libc::syscall(libc::SYS_setresgid, KEEP, gid, KEEP) };
    // SAFETY: the same.
    let user = || unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) };
    if group() == -1 || user() == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Runs `work` with the effective ids of a user and without effective capabilities, so that the kernel decides as for that user. Fails
/// without a call of `work` if this process may not take that identity.
pub(crate) fn as_user<R>(uid: u32, gid: u32, work: impl FnOnce() -> R) -> io::Result<R> {
    /// Restores the thread's ids and capabilities, also when `work` panics. The kernel permits it, because the real and saved ids and the
    /// permitted set never change.
    struct RestoredRights(u32, u32, Capabilities, bool);
    impl Drop for RestoredRights {
        fn drop(&mut self) {
            let RestoredRights(uid, gid, sets, dumpable) = self;
            let raised = capabilities(libc::SYS_capset, sets);
            let back = set_effective(*uid, *gid).and_then(|()| capabilities(libc::SYS_capset, sets));
            debug_assert!(raised.is_ok() && back.is_ok());
            if *dumpable {
                // A change of the effective ids makes the whole process undumpable (prctl(2), PR_SET_DUMPABLE).
                // SAFETY: the request takes integers only.
                unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1usize, 0usize, 0usize, 0usize) };
            }
        }
    }
    static DUMPABLE: OnceLock<bool> = OnceLock::new();
    // Ask once, because the answer changes while another thread has a user's ids.
    // SAFETY: the request takes integers only.
    let dumpable =
        *DUMPABLE.get_or_init(|| unsafe { libc::prctl(libc::PR_GET_DUMPABLE, 0usize, 0usize, 0usize, 0usize) == 1 });
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let mut sets = Capabilities::default();
    capabilities(libc::SYS_capget, &mut sets)?;
    let mut none = sets;
    none.0.iter_mut().for_each(|half| half[EFFECTIVE] = 0);
    let _back = RestoredRights(own.0, own.1, sets, dumpable && own != (uid, gid));
    if own != (uid, gid) {
        set_effective(uid, gid)?;
    }
    capabilities(libc::SYS_capset, &mut none)?;
    Ok(work())
}

/// Whether two processes share their memory (a vfork child does before exec).
pub(crate) fn same_memory(pid: Pid, other: Tid) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the request takes integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, pid.0, other.0, KCMP_VM, 0, 0) == 0 }
}

/// Opens a counter for the events of one thread on every processor. The descriptor is closed when this process executes another program.
pub(crate) fn perf_event_open(event: &perf_event::Builder<'_>, tid: Tid) -> io::Result<File> {
    let at: *const _ = event.attrs();
    // SAFETY: the crate sets the field `size` to the size of the type.
    unsafe { open_counter(at.cast(), tid) }
}

/// Opens a counter for the events of one thread on every processor, from the words of a struct perf_event_attr in its second version.
pub(crate) fn perf_event_open_words(attributes: &[u64; 9], tid: Tid) -> io::Result<File> {
    let size = (size_of_val(attributes) as u64) << 32;
    let mut words = *attributes;
    words[0] = words[0] & u64::from(u32::MAX) | size;
    // SAFETY: the field `size`, the upper half of the first word, is the number of bytes that there are.
    unsafe { open_counter(words.as_ptr().cast(), tid) }
}

/// # Safety
///
/// At `at` lies a struct perf_event_attr of as many bytes as its field `size` says.
unsafe fn open_counter(at: *const libc::c_void, tid: Tid) -> io::Result<File> {
    /// PERF_FLAG_FD_CLOEXEC.
    const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;
    let (any_processor, no_group): (libc::c_int, libc::c_int) = (-1, -1);
    // SAFETY: the kernel reads the struct, and nothing else.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, at, tid.0, any_processor, no_group, CLOSE_ON_EXEC) };
    let fd = RawFd::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made the descriptor, and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Length in bytes of a counter's mapping (struct perf_event_mmap_page): one page.
pub(crate) const EVENT_MAPPING: usize = PAGE as usize;

/// Reads a word of a counter's page.
fn page_word(page: &memmap2::MmapRaw, at: usize) -> Option<u32> {
    let inside = at.is_multiple_of(4) && at + 4 <= page.len();
    // SAFETY: an aligned word of a page that is mapped as long as `page` lives; only the kernel writes to it.
    inside.then(|| unsafe { page.as_ptr().wrapping_add(at).cast::<u32>().read_volatile() })
}

/// Factors by which the kernel converts the time stamp counter to nanoseconds, `(ticks * mult) >> shift` (time_mult, time_shift of
/// perf_event_open(2)); `None` if the page has none.
pub(crate) fn tick_scale(page: &memmap2::MmapRaw) -> Option<(u32, u16)> {
    const LOCK: usize = 8;
    const CAPABILITIES: usize = 40;
    const HAS_TIME: u32 = 8;
    const WIDTH_AND_SHIFT: usize = 48;
    const MULT: usize = 52;
    let lock = page_word(page, LOCK)?;
    let (capabilities, shift) = (page_word(page, CAPABILITIES)?, page_word(page, WIDTH_AND_SHIFT)? >> 16);
    let mult = page_word(page, MULT)?;
    let whole = page_word(page, LOCK)? == lock && lock & 1 == 0;
    (whole && capabilities & HAS_TIME != 0 && mult != 0).then_some((mult, shift as u16))
}

/// Reads a counter of the calling thread with RDPMC, by the protocol of its page (linux/perf_event.h). `None` if the kernel changed the
/// page during the reading, or if no counter of the processor counts the event at present.
pub(crate) fn read_own_counter(page: &memmap2::MmapRaw) -> Result<Option<u64>, &'static str> {
    const LOCK: usize = 8;
    const INDEX: usize = 12;
    const OFFSET: usize = 16;
    const CAPABILITIES: usize = 40;
    const WIDTH: usize = 48;
    const MAY_READ: u32 = 4;
    if page.len() < EVENT_MAPPING {
        return Err("its page is too short");
    }
    let word = |at: usize| page_word(page, at).unwrap_or(0);
    // SAFETY: an aligned word of a page that is mapped as long as `page` lives; only the kernel writes to it.
    let offset = || unsafe { page.as_ptr().wrapping_add(OFFSET).cast::<u64>().read_volatile() };
    let lock = word(LOCK);
    if word(CAPABILITIES) & MAY_READ == 0 {
        return Err("the kernel lets no program read counters (/sys/bus/event_source/devices/cpu/rdpmc)");
    }
    let (index, base, width) = (word(INDEX), offset(), word(WIDTH) & 0xffff);
    let Some(index) = index.checked_sub(1) else { return Ok(None) };
    let (low, high): (u32, u32);
    // SAFETY: the page, which is mapped, says that the processor permits it; it changes nothing but the two registers.
    unsafe { std::arch::asm!("rdpmc", in("ecx") index, out("eax") low, out("edx") high, options(nomem, nostack)) };
    let counted = u64::from(high) << 32 | u64::from(low);
    let unused = 64u32.saturating_sub(width).min(63);
    let counted = (counted << unused).cast_signed() >> unused;
    Ok((word(LOCK) == lock).then(|| base.wrapping_add_signed(counted)))
}

/// Whether a process certainly has memory of its own, not shared with this other process (a vfork child shares it before exec).
pub(crate) fn has_own_memory(pid: Pid, other: Pid) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: the request takes integers only.
    unsafe { libc::syscall(libc::SYS_kcmp, pid.0, other.0, KCMP_VM, 0, 0) > 0 }
}

/// Status, as wait(2) returns it, of the ended process of a pidfd whose parent has waited for it: PIDFD_GET_INFO (linux/pidfd.h). `None` if
/// the kernel is older than 6.15, or if no process has waited for it.
pub(crate) fn exit_status(pidfd: BorrowedFd<'_>) -> Option<i32> {
    /// _IOWR(0xff, 11, struct pidfd_info) with the first size of that structure, 64 bytes.
    const GET_INFO: libc::Ioctl = 0xc040_ff0b_u32 as libc::Ioctl;
    const INFO_EXIT: u64 = 1 << 3;
    /// Index of the word whose upper half is the status. Before it are the mask, an id, and eleven ids of 32 bits.
    const STATUS: usize = 7;
    let mut info = [0u64; 8];
    info[0] = INFO_EXIT;
    // SAFETY: the request reads and writes 64 bytes, which `info` has, and the descriptor is open as long as it is borrowed.
    let r = unsafe { libc::ioctl(pidfd.as_raw_fd(), GET_INFO, info.as_mut_ptr()) };
    (r == 0 && info[0] & INFO_EXIT != 0).then(|| ((info[STATUS] >> 32) as u32).cast_signed())
}

/// The calling thread.
pub(crate) fn own_tid() -> Tid {
    Tid(rustix::thread::gettid().as_raw_nonzero().get())
}

/// This process.
pub(crate) fn own_pid() -> Pid {
    Pid(rustix::process::getpid().as_raw_nonzero().get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_of_every_signal() {
        for signal in 1..=64 {
            assert_eq!(WaitStatus::decode(signal), WaitStatus::Signal(signal));
            assert_eq!(WaitStatus::decode(128 << 8 | signal), WaitStatus::EventStop(signal));
        }
        assert_eq!(WaitStatus::decode(0x85), WaitStatus::Syscall);
        assert_eq!(WaitStatus::decode(4 << 8 | 5), WaitStatus::Event(4));
    }
}
