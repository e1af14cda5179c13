//! Functions of the C library that allocate memory, free it, wait, or wait for locks; functions of other libraries that wait for locks; and those of Go's
//! runtime in which goroutines wait.

use crate::api::ContextMetric;
use crate::kinds::waits::WAITS;

use super::code::{LibraryRole, LockKind, MemoryRole, Size};

/// Functions that allocate, with the number of bytes that they are asked for.
const ALLOCATE: &[(&str, Size)] = &[
    ("malloc", Size::Argument(0)),
    ("calloc", Size::Product(0, 1)),
    ("realloc", Size::Argument(1)),
    ("reallocarray", Size::Product(1, 2)),
    ("memalign", Size::Argument(1)),
    ("aligned_alloc", Size::Argument(1)),
    ("posix_memalign", Size::Argument(2)),
    ("valloc", Size::Argument(0)),
    ("pvalloc", Size::Argument(0)),
    ("mallocx", Size::Argument(0)),
    ("rallocx", Size::Argument(1)),
    ("_Znwm", Size::Argument(0)),
    ("_ZnwmRKSt9nothrow_t", Size::Argument(0)),
    ("_ZnwmSt11align_val_t", Size::Argument(0)),
    ("_ZnwmSt11align_val_tRKSt9nothrow_t", Size::Argument(0)),
    ("_Znam", Size::Argument(0)),
    ("_ZnamRKSt9nothrow_t", Size::Argument(0)),
    ("_ZnamSt11align_val_t", Size::Argument(0)),
    ("_ZnamSt11align_val_tRKSt9nothrow_t", Size::Argument(0)),
];

/// Functions among these that give a block back and return another one, which may be the same.
const RESIZE: &[&str] = &["realloc", "reallocarray", "rallocx"];

/// The function among these that stores the address at its first argument, and returns 0 if it has allocated.
const STORE: &str = "posix_memalign";

/// Functions that free the block at their first argument.
const FREE: &[&str] = &[
    "free",
    "cfree",
    "free_sized",
    "free_aligned_sized",
    "dallocx",
    "sdallocx",
    "_ZdlPv",
    "_ZdlPvm",
    "_ZdlPvRKSt9nothrow_t",
    "_ZdlPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t",
    "_ZdlPvSt11align_val_tRKSt9nothrow_t",
    "_ZdaPv",
    "_ZdaPvm",
    "_ZdaPvRKSt9nothrow_t",
    "_ZdaPvSt11align_val_t",
    "_ZdaPvmSt11align_val_t",
    "_ZdaPvSt11align_val_tRKSt9nothrow_t",
];

/// Libraries that may have these functions.
const ALLOCATORS: &[&str] = &["libc", "libjemalloc", "libtcmalloc", "libtcmalloc_minimal", "libmimalloc"];

/// Functions that wait for the lock at their first argument.
const LOCK: &[(&str, LockKind)] = &[
    ("pthread_mutex_clocklock", LockKind::Mutex),
    ("pthread_mutex_lock", LockKind::Mutex),
    ("pthread_mutex_timedlock", LockKind::Mutex),
    ("pthread_rwlock_clockrdlock", LockKind::ReadWrite),
    ("pthread_rwlock_clockwrlock", LockKind::ReadWrite),
    ("pthread_rwlock_rdlock", LockKind::ReadWrite),
    ("pthread_rwlock_timedrdlock", LockKind::ReadWrite),
    ("pthread_rwlock_timedwrlock", LockKind::ReadWrite),
    ("pthread_rwlock_wrlock", LockKind::ReadWrite),
    ("pthread_spin_lock", LockKind::Other),
];

/// Functions of other libraries that wait for the lock at their first argument, each by its type and its name. They are only called if somebody holds
/// the lock. Programs contain them: those of the standard library of Rust and of the crate `parking_lot`, and those of Abseil.
const CONTENDED: &[(&str, &str)] = &[
    ("futex::Mutex", "lock_contended"),
    ("futex::RwLock", "read_contended"),
    ("futex::RwLock", "write_contended"),
    ("RawMutex", "lock_slow"),
    ("RawRwLock", "lock_exclusive_slow"),
    ("RawRwLock", "lock_shared_slow"),
    ("RawRwLock", "lock_upgradable_slow"),
    ("RawRwLock", "upgrade_slow"),
    ("Mutex", "LockSlow"),
];

/// Functions in which goroutines wait: for locks, channels, timers and connections in the first one, for files and children in the others.
const GO_WAITS: &[&str] = &[
    "runtime.gopark",
    "runtime.notetsleepg",
    "syscall.Flock",
    "syscall.Fsync",
    "syscall.Fdatasync",
    "syscall.Ftruncate",
    "syscall.Pread",
    "syscall.Pwrite",
    "syscall.fstatat",
    "syscall.getdents",
    "syscall.openat",
    "syscall.pread",
    "syscall.pwrite",
    "syscall.read",
    "syscall.readlen",
    "syscall.renameat",
    "syscall.sendfile",
    "syscall.unlinkat",
    "syscall.wait4",
    "syscall.write",
    "syscall.writev",
];

/// Functions in which goroutines wait for locks: those of mutexes, and of files that several goroutines use.
const GO_LOCKS: &[&str] = &[
    "internal/poll.runtime_Semacquire",
    "internal/sync.runtime_SemacquireMutex",
    "sync.runtime_SemacquireMutex",
    "sync.runtime_SemacquireRWMutex",
    "sync.runtime_SemacquireRWMutexR",
];

/// Whether a function that [`CONTENDED`] has is called so. The name may have parameters, and its type may be in angle brackets.
fn is_contended(demangled: &str) -> bool {
    let name = demangled.split('(').next().unwrap_or(demangled);
    let is_it = |(of, method): &(&str, &str)| {
        let of_type = name.strip_suffix(method).and_then(|name| name.strip_suffix("::"));
        of_type.is_some_and(|name| name.trim_end_matches('>').ends_with(of))
    };
    CONTENDED.iter().any(is_it)
}

/// Patterns of the functions that a metric needs.
pub fn patterns(metrics: &[ContextMetric]) -> Vec<String> {
    let of = |modules: &[&str], names: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        names.flat_map(|name| modules.iter().map(move |module| format!("{module}:{name}"))).collect()
    };
    let each = |metric: &ContextMetric| match metric {
        ContextMetric::AllocatedBytes => of(ALLOCATORS, &mut ALLOCATE.iter().map(|(name, _)| *name)),
        ContextMetric::LiveBytes | ContextMetric::LiveBlocks => {
            of(ALLOCATORS, &mut ALLOCATE.iter().map(|(name, _)| *name).chain(FREE.iter().copied()))
        }
        ContextMetric::WaitTime => {
            [of(&["libc"], &mut WAITS.iter().copied()), of(&[""], &mut GO_WAITS.iter().copied())].concat()
        }
        ContextMetric::LockTime => {
            let contended = CONTENDED.iter().map(|(of, method)| format!(":*{of}*::{method}*"));
            let of_go = of(&[""], &mut GO_LOCKS.iter().copied());
            of(&["libc"], &mut LOCK.iter().map(|(name, _)| *name)).into_iter().chain(contended).chain(of_go).collect()
        }
        ContextMetric::WallTime
        | ContextMetric::CpuTime
        | ContextMetric::Looks
        | ContextMetric::Instructions
        | ContextMetric::Reads
        | ContextMetric::Writes => Vec::new(),
    };
    metrics.iter().flat_map(each).collect()
}

/// The role of a function with these names, each with its demangled form, one of which a pattern has matched.
pub fn role<'a>(names: impl Iterator<Item = (&'a str, &'a str)>) -> LibraryRole {
    let mut role = LibraryRole::default();
    for (name, demangled) in names {
        let is_lock = is_contended(demangled) || GO_LOCKS.contains(&name);
        role.lock = role.lock.or_else(|| is_lock.then_some(LockKind::Other));
        // The name may have a version: pthread_cond_wait@@GLIBC_2.3.2.
        let name = name.split('@').next().unwrap_or(name);
        role.waits |= WAITS.contains(&name) || GO_WAITS.contains(&name);
        role.lock = role.lock.or_else(|| LOCK.iter().find(|(known, _)| *known == name).map(|(_, kind)| *kind));
        let size = ALLOCATE.iter().find(|(known, _)| *known == name).map(|(_, size)| *size);
        role.allocates = role.allocates.or(size);
        role.memory = role.memory.or_else(|| memory(name, size));
    }
    role
}

/// The effect on memory of a function with this name, which is asked for so much if it allocates.
fn memory(name: &str, size: Option<Size>) -> Option<MemoryRole> {
    match size {
        Some(size) if RESIZE.contains(&name) => Some(MemoryRole::Resizes(size)),
        Some(size) if name == STORE => Some(MemoryRole::Stores(size)),
        Some(size) => Some(MemoryRole::Allocates(size)),
        None => FREE.contains(&name).then_some(MemoryRole::Frees),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_metric_has_its_functions() {
        assert_eq!(patterns(&[ContextMetric::WallTime]), [""; 0]);
        assert!(patterns(&[ContextMetric::AllocatedBytes]).contains(&"libjemalloc:calloc".to_owned()));
        let of = |names: &[&str]| role(names.iter().map(|name| (*name, *name)));
        assert_eq!(of(&["__libc_calloc", "calloc"]).allocates, Some(Size::Product(0, 1)));
        let memory = |name: &str| of(&[name]).memory;
        assert_eq!(memory("realloc"), Some(MemoryRole::Resizes(Size::Argument(1))));
        assert_eq!(memory("posix_memalign"), Some(MemoryRole::Stores(Size::Argument(2))));
        assert_eq!(memory("calloc"), Some(MemoryRole::Allocates(Size::Product(0, 1))));
        assert_eq!((memory("free"), memory("main")), (Some(MemoryRole::Frees), None));
        assert!(patterns(&[ContextMetric::LiveBytes]).contains(&"libc:free".to_owned()));
        assert!(!patterns(&[ContextMetric::AllocatedBytes]).contains(&"libc:free".to_owned()));
        assert!(of(&["pthread_cond_wait@@GLIBC_2.3.2"]).waits);
        let lock = of(&["__pthread_mutex_lock", "pthread_mutex_lock"]);
        assert!(lock.lock == Some(LockKind::Mutex) && lock.waits);
        assert_eq!(of(&["main"]), LibraryRole::default());
        assert!(patterns(&[ContextMetric::WaitTime]).contains(&":runtime.gopark".to_owned()));
        assert!(of(&["runtime.gopark"]).waits && of(&["sync.runtime_SemacquireMutex"]).lock == Some(LockKind::Other));
    }

    #[test]
    fn locks_of_other_libraries_are_those_that_somebody_holds() {
        for name in [
            "<std::sys::sync::mutex::futex::Mutex>::lock_contended",
            "std::sys::sync::rwlock::futex::RwLock::write_contended",
            "parking_lot::raw_mutex::RawMutex::lock_slow",
            "absl::lts_20230802::Mutex::LockSlow(absl::lts_20230802::MuHowS const*, absl::lts_20230802::Condition const*, int)",
        ] {
            let role = role([("_mangled", name)].into_iter());
            assert_eq!((role.lock, role.waits), (Some(LockKind::Other), false), "{name}");
        }
        for name in ["lock_contended", "shop::Mutex::lock", "Mutex::LockSlowly()", "f(RawMutex::lock_slow)"] {
            assert_eq!(role([("_mangled", name)].into_iter()), LibraryRole::default(), "{name}");
        }
    }
}
