//! Causes that samples of threads speak for: a pure function of the system call, its object, and the names on the stack.

use ingraft_api::{NamedFunction, SampledMode, SampledSite, WaitedKind, WaitedThing};

use super::hypothesis::Hypothesis;

/// FUTEX_LOCK_PI and FUTEX_LOCK_PI2 (futex(2)): only locks use them.
const LOCKS_PI: [u32; 2] = [6, 13];
/// FUTEX_WAIT.
const WAIT: u32 = 0;
/// Mask of the operation in the second argument of futex(2), without FUTEX_PRIVATE_FLAG and FUTEX_CLOCK_REALTIME.
const OPERATION: u32 = 0x7f;
/// Value of a lock with waiters in the GNU C library, and in the runtimes of Rust and Go.
const CONTENDED: u32 = 2;

/// Cause that a sample speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Cause {
    /// The thread waits for its clients or for work: it has nothing to do.
    Idle,
    /// The thread waits until another one wakes it. A worker without work waits in the same way.
    Worker,
    /// The thread waits for input from a pipe: for a command or for work, or for the answer of another program.
    Input,
    /// A hypothesis.
    Of(Hypothesis),
    /// None of the hypotheses.
    Other,
}

/// Words in names of functions that lock, and of those that wait for another thread.
const LOCKING: &[&str] = &[
    "mutex_lock",
    "mutex_timedlock",
    "mutex_clocklock",
    "mutex_cond_lock",
    "rwlock_rdlock",
    "rwlock_wrlock",
    "rwlock_timed",
    "rwlock_clock",
    "lll_lock_wait",
    "lll_lock_slow",
    "lock_contended",
    "lock_slow",
    "RawMutex",
    "RawRwLock",
    "sync.(*Mutex)",
    "sync.(*RWMutex)",
    "internal/sync.(*Mutex)",
    "runtime.lock",
    "Mutex::Lock",
];
const WAITING: &[&str] = &[
    "cond_wait",
    "cond_timedwait",
    "cond_clockwait",
    "cnd_wait",
    "cnd_timedwait",
    "sem_wait",
    "sem_timedwait",
    "sem_clockwait",
    "condition_variable",
    "Condvar",
    "condvar",
    "park",
    "notesleep",
    "notetsleep",
    "futexsleep",
    "g_cond",
];
const JOINING: &[&str] = &["pthread_join", "thread_join", "timedjoin", "clockjoin", "thrd_join", "barrier_wait"];
/// Beginnings of names of functions of the Go runtime in which its threads wait, and names of those that wait there for a lock of the runtime.
const GO_WAITING: &[&str] = &["runtime.futex", "runtime.usleep", "runtime.epollwait"];
const GO_LOCKING: &[&str] = &["runtime.lock2", "runtime.lockWithRank"];
const SLEEPING: &[&str] = &["nanosleep", "usleep"];

/// Functions whose time on a processor goes to tries that fail: they return at once, and the caller tries again.
const TRYING: &[&str] = &[
    "sched_yield",
    "__sched_yield",
    "pthread_yield",
    "thrd_yield",
    "pthread_mutex_trylock",
    "__pthread_mutex_trylock",
    "pthread_rwlock_tryrdlock",
    "pthread_rwlock_trywrlock",
    "pthread_spin_lock",
    "pthread_spin_trylock",
    "sem_trywait",
];
/// Functions that change the address space.
const MAPPING: &[&str] = &[
    "mmap",
    "mmap64",
    "__mmap",
    "munmap",
    "__munmap",
    "mremap",
    "__mremap",
    "mprotect",
    "__mprotect",
    "madvise",
    "__madvise",
    "brk",
    "__brk",
    "sbrk",
    "__sbrk",
    "msync",
];

/// Names of modules whose functions only carry out what their callers ask for.
const RUNTIMES: &[&str] = &[
    "libc.",
    "libc-",
    "libpthread",
    "ld-linux",
    "ld-musl",
    "ld-2",
    "librt",
    "libstdc++",
    "libgcc_s",
    "libc++",
    "[vdso]",
];
/// Beginnings of names of functions that do so in programs that are linked statically.
const WRAPPERS: &[&str] =
    &["__", "pthread_", "runtime.", "runtime/", "syscall.", "internal/", "std::", "core::", "tokio::"];

/// The cause that a sample speaks for.
pub(super) fn cause(site: &SampledSite) -> Cause {
    match site.mode {
        SampledMode::Program | SampledMode::SystemCall => match innermost(site) {
            Some(name) if TRYING.contains(&name) => Cause::Of(Hypothesis::Retries),
            Some(name) if site.mode == SampledMode::SystemCall && MAPPING.contains(&name) => {
                Cause::Of(Hypothesis::Memory)
            }
            _ => Cause::Of(Hypothesis::Processor),
        },
        SampledMode::Fault => Cause::Of(Hypothesis::Memory),
        SampledMode::Stopped => Cause::Of(Hypothesis::Stopped),
        SampledMode::Waiting | SampledMode::Uninterruptible => waiting(site),
    }
}

/// Whether a thread waits for a lock.
pub(in crate::command) fn is_lock_wait(site: &SampledSite) -> bool {
    cause(site) == Cause::Of(Hypothesis::Locks)
}

/// Name of the innermost function, if it is known.
fn innermost(site: &SampledSite) -> Option<&str> {
    let first = site.functions.first().filter(|_| site.innermost)?;
    // A symbol may have a version: `name@@GLIBC_2.34`.
    Some(first.function.split('@').next().unwrap_or(&first.function))
}

/// The cause that a wait speaks for.
fn waiting(site: &SampledSite) -> Cause {
    let object = site.object.as_ref();
    match site.call.as_str() {
        "futex" => futex(site),
        "accept" | "accept4" | "epoll_wait" | "epoll_pwait" | "epoll_pwait2" | "select" | "pselect6" | "pause"
        | "rt_sigsuspend" | "rt_sigtimedwait" => Cause::Idle,
        // The object of a poll is known if it is the only one.
        "poll" | "ppoll" => object.map_or(Cause::Idle, |object| reading(site, Some(object))),
        "read" | "readv" | "pread64" | "preadv" | "recvfrom" | "recvmsg" | "recvmmsg" => reading(site, object),
        "write" | "writev" | "pwrite64" | "pwritev" | "sendto" | "sendmsg" | "sendmmsg" | "sendfile" | "splice"
        | "ioctl" => transfer(site, object),
        "connect" | "io_uring_enter" | "io_getevents" => Cause::Of(Hypothesis::InputOutput),
        "fsync" | "fdatasync" | "sync" | "msync" | "open" | "openat" | "close" | "unlink" | "rename" => {
            Cause::Of(Hypothesis::Disk)
        }
        "nanosleep" | "clock_nanosleep" if is_go_thread(site) => Cause::Idle,
        "nanosleep" | "clock_nanosleep" => Cause::Of(Hypothesis::Sleeps),
        "flock" | "fcntl" => Cause::Of(Hypothesis::Locks),
        "wait4" | "waitid" | "vfork" => Cause::Of(Hypothesis::Threads),
        "semop" | "semtimedop" | "msgrcv" | "msgsnd" | "mq_timedreceive" | "mq_timedsend" => Cause::Worker,
        "mmap" | "munmap" | "mprotect" | "madvise" | "brk" => Cause::Of(Hypothesis::Memory),
        "sched_yield" => Cause::Of(Hypothesis::Retries),
        // A thread that waits outside of system calls, and that no signal wakes, waits for a page.
        "no system call" if site.mode == SampledMode::Uninterruptible => Cause::Of(Hypothesis::Memory),
        // The kernel goes on in this way with a sleep or a wait that a signal has interrupted.
        "restart_syscall" => match () {
            () if names(site, SLEEPING) => Cause::Of(Hypothesis::Sleeps),
            () if names(site, &["poll", "epoll"]) => Cause::Idle,
            () => futex(site),
        },
        _ => Cause::Other,
    }
}

/// A read: of a client, of another server, of a pipe, of a disk.
fn reading(site: &SampledSite, object: Option<&WaitedThing>) -> Cause {
    match object.map(|object| (object.kind, object.accepted)) {
        Some((WaitedKind::Socket, true)) | Some((WaitedKind::Device, _)) => Cause::Idle,
        Some((WaitedKind::Anonymous, _)) => Cause::Worker,
        Some((WaitedKind::Pipe, _)) if site.mode == SampledMode::Waiting => Cause::Input,
        _ => transfer(site, object),
    }
}

fn transfer(site: &SampledSite, object: Option<&WaitedThing>) -> Cause {
    // No signal ends a wait for a disk; waits for a named pipe or for a file of FUSE can be ended.
    let is_disk = site.mode == SampledMode::Uninterruptible
        && object.is_none_or(|object| matches!(object.kind, WaitedKind::File | WaitedKind::Device));
    Cause::Of(if is_disk { Hypothesis::Disk } else { Hypothesis::InputOutput })
}

/// A wait for a futex, by the innermost function whose name tells it, else by what the futex held.
fn futex(site: &SampledSite) -> Cause {
    if is_go_thread(site) {
        return if names(site, GO_LOCKING) { Cause::Of(Hypothesis::Locks) } else { Cause::Idle };
    }
    for function in &site.functions {
        let is_any = |words: &[&str]| words.iter().any(|word| function.function.contains(word));
        if is_any(LOCKING) {
            return Cause::Of(Hypothesis::Locks);
        }
        if is_any(JOINING) {
            return Cause::Of(Hypothesis::Threads);
        }
        if is_any(WAITING) {
            return Cause::Worker;
        }
    }
    if is_lock_by_value(site) { Cause::Of(Hypothesis::Locks) } else { Cause::Worker }
}

/// Whether the wait is one of a thread of the Go runtime. Goroutines wait without a thread, so such a thread has nothing to do.
fn is_go_thread(site: &SampledSite) -> bool {
    site.functions.first().is_some_and(is_go_wait)
}

/// Whether a thread of the Go runtime waits in the function.
pub(super) fn is_go_wait(function: &NamedFunction) -> bool {
    GO_WAITING.iter().any(|name| function.function.starts_with(name))
}

/// Whether the futex looks like a lock: by the operation, or by the value that locks have.
fn is_lock_by_value(site: &SampledSite) -> bool {
    site.object.as_ref().is_some_and(|object| {
        let operation = object.operation & OPERATION;
        object.kind == WaitedKind::Futex
            && (LOCKS_PI.contains(&operation) || operation == WAIT && object.expected == CONTENDED)
    })
}

/// Whether a lock is inferred from the value of the futex alone, because no name on the stack tells it.
pub(super) fn is_inferred(site: &SampledSite) -> bool {
    site.call == "futex" && !names(site, LOCKING) && !names(site, WAITING) && !names(site, JOINING)
}

/// Whether the lock is one of pthreads, so that a focus names it.
pub(in crate::command) fn is_mutex(site: &SampledSite) -> bool {
    names(site, &["pthread_mutex", "lll_lock_wait"])
}

fn names(site: &SampledSite, words: &[&str]) -> bool {
    site.functions.iter().any(|function| words.iter().any(|word| function.function.contains(word)))
}

/// The function that a wait or a page fault is charged to: the innermost one that is not of the C library or of another runtime, else the
/// innermost one.
pub(in crate::command) fn charged(site: &SampledSite) -> Option<&NamedFunction> {
    let is_own = |function: &&NamedFunction| {
        let is_runtime = RUNTIMES.iter().any(|module| function.module.starts_with(module));
        let is_wrapper = WRAPPERS.iter().any(|name| function.function.starts_with(name));
        let is_call = function.function == site.call || function.function == "usleep" || function.function == "sleep";
        !is_runtime && !is_wrapper && !is_call
    };
    site.functions.iter().find(is_own).or_else(|| site.functions.first())
}

/// The function that runs.
pub(super) fn running(site: &SampledSite) -> Option<&NamedFunction> {
    site.functions.first().filter(|_| site.innermost)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{on, wait};
    use super::*;

    fn of(call: &str, functions: &[&str]) -> Cause {
        cause(&wait(1, call, functions, 1))
    }

    use Hypothesis::{Disk, InputOutput, Locks, Memory, Processor, Retries, Sleeps, Threads};

    #[test]
    fn waits_for_futexes_are_told_by_the_innermost_name() {
        let start = "libc.so.6:start_thread";
        let lock = ["libc.so.6:__lll_lock_wait", "libc.so.6:pthread_mutex_lock", "shop:take", start];
        assert_eq!(of("futex", &lock), Cause::Of(Locks));
        assert_eq!(of("futex", &["libc.so.6:x", "libc.so.6:pthread_cond_wait", "shop:worker"]), Cause::Worker);
        let again = ["libc.so.6:__lll_lock_wait", "libc.so.6:__pthread_mutex_cond_lock", "libc.so.6:pthread_cond_wait"];
        assert_eq!(of("futex", &again), Cause::Of(Locks), "a condition takes its mutex again");
        assert_eq!(of("futex", &["libc.so.6:__pthread_clockjoin_ex", "shop:main"]), Cause::Of(Threads));
        assert_eq!(of("futex", &["shop:f"]), Cause::Worker);
        let thread = ["shop:runtime.futex.abi0", "shop:runtime.notesleep", "shop:runtime.stopm"];
        assert_eq!((of("futex", &thread), of("nanosleep", &["shop:runtime.usleep.abi0"])), (Cause::Idle, Cause::Idle));
        assert_eq!(of("futex", &["shop:runtime.futex.abi0", "shop:runtime.lock2"]), Cause::Of(Locks));
        let object = |operation, expected| {
            let object = WaitedThing { kind: WaitedKind::Futex, operation, expected, ..WaitedThing::default() };
            SampledSite { object: Some(object), ..wait(1, "futex", &["shop:f"], 1) }
        };
        assert_eq!(cause(&object(128, 2)), Cause::Of(Locks), "the value of a lock with waiters");
        assert_eq!(cause(&object(128 | 13, 0)), Cause::Of(Locks));
        assert_eq!((cause(&object(128, 0)), cause(&object(128 | 9, 2))), (Cause::Worker, Cause::Worker));
        assert!(is_inferred(&object(128, 2)) && !is_inferred(&wait(1, "futex", &lock, 1)));
    }

    #[test]
    fn reads_are_told_by_their_objects_and_by_whether_signals_end_them() {
        let read = |kind| on(kind, wait(1, "read", &["shop:f"], 1));
        assert_eq!(cause(&read(WaitedKind::Socket)), Cause::Of(InputOutput));
        assert_eq!(cause(&read(WaitedKind::Pipe)), Cause::Input);
        let write = SampledSite { call: "write".to_owned(), ..read(WaitedKind::Pipe) };
        assert_eq!(cause(&write), Cause::Of(InputOutput), "a reader that is slow");
        assert_eq!(cause(&read(WaitedKind::File)), Cause::Of(InputOutput), "a named pipe");
        assert_eq!(
            (cause(&read(WaitedKind::Device)), cause(&read(WaitedKind::Anonymous))),
            (Cause::Idle, Cause::Worker)
        );
        let hard = |kind| SampledSite { mode: SampledMode::Uninterruptible, ..read(kind) };
        assert_eq!(cause(&hard(WaitedKind::File)), Cause::Of(Disk));
        assert_eq!(cause(&hard(WaitedKind::Socket)), Cause::Of(InputOutput));
        let mut client = read(WaitedKind::Socket);
        client.object.as_mut().expect("an object").accepted = true;
        assert_eq!(cause(&client), Cause::Idle, "a client");
        client.call = "sendto".to_owned();
        assert_eq!(cause(&client), Cause::Of(InputOutput), "a client that does not read");
        client.call = "poll".to_owned();
        assert_eq!((cause(&client), of("poll", &[])), (Cause::Idle, Cause::Idle));
        let upstream = SampledSite { call: "poll".to_owned(), ..read(WaitedKind::Socket) };
        assert_eq!(cause(&upstream), Cause::Of(InputOutput));
    }

    #[test]
    fn other_calls() {
        assert_eq!((of("epoll_wait", &[]), of("accept4", &[])), (Cause::Idle, Cause::Idle));
        assert_eq!((of("fdatasync", &[]), of("clock_nanosleep", &[])), (Cause::Of(Disk), Cause::Of(Sleeps)));
        assert_eq!((of("wait4", &[]), of("exit_group", &[])), (Cause::Of(Threads), Cause::Other));
        assert_eq!(of("restart_syscall", &["libc.so.6:clock_nanosleep"]), Cause::Of(Sleeps));
        assert_eq!(of("no system call", &[]), Cause::Other);
        let page = SampledSite { mode: SampledMode::Uninterruptible, ..wait(1, "no system call", &[], 1) };
        assert_eq!(cause(&page), Cause::Of(Memory));
    }

    #[test]
    fn threads_that_run_are_told_by_the_innermost_function() {
        let run = |mode, name| SampledSite { mode, call: String::new(), ..wait(1, "", &[name, "shop:main"], 1) };
        assert_eq!(cause(&run(SampledMode::Program, "shop:f")), Cause::Of(Processor));
        assert_eq!(cause(&run(SampledMode::SystemCall, "libc.so.6:__sched_yield@@GLIBC_2.2.5")), Cause::Of(Retries));
        assert_eq!(cause(&run(SampledMode::SystemCall, "libc.so.6:munmap")), Cause::Of(Memory));
        assert_eq!(cause(&run(SampledMode::Program, "libc.so.6:munmap")), Cause::Of(Processor));
        assert_eq!(cause(&run(SampledMode::Fault, "shop:f")), Cause::Of(Memory));
        let unknown = SampledSite { innermost: false, ..run(SampledMode::SystemCall, "libc.so.6:munmap") };
        assert_eq!((cause(&unknown), running(&unknown)), (Cause::Of(Processor), None));
    }

    #[test]
    fn the_caller_of_the_library_is_charged() {
        let name = |functions: &[&str]| charged(&wait(1, "read", functions, 1)).map(|f| f.function.clone());
        assert_eq!(name(&["libc.so.6:read", "shop:load", "shop:main"]).as_deref(), Some("load"));
        assert_eq!(name(&["static:read", "static:__libc_x", "static:load"]).as_deref(), Some("load"));
        assert_eq!(name(&["libc.so.6:read"]).as_deref(), Some("read"));
        assert_eq!(name(&[]), None);
    }
}
