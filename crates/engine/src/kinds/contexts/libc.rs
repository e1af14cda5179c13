//! Functions of the C library that allocate memory, free it, wait, or wait for locks.

use crate::api::ContextMetric;
use crate::kinds::waits::WAITS;

use super::code::{LibraryRole, MemoryRole, Size};

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

/// Functions that wait for a lock.
const LOCK: &[&str] = &[
    "pthread_mutex_clocklock",
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_clockrdlock",
    "pthread_rwlock_clockwrlock",
    "pthread_rwlock_rdlock",
    "pthread_rwlock_timedrdlock",
    "pthread_rwlock_timedwrlock",
    "pthread_rwlock_wrlock",
    "pthread_spin_lock",
];

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
        ContextMetric::WaitTime => of(&["libc"], &mut WAITS.iter().copied()),
        ContextMetric::LockTime => of(&["libc"], &mut LOCK.iter().copied()),
        ContextMetric::WallTime
        | ContextMetric::CpuTime
        | ContextMetric::Looks
        | ContextMetric::Instructions
        | ContextMetric::Reads
        | ContextMetric::Writes => Vec::new(),
    };
    metrics.iter().flat_map(each).collect()
}

/// The role of a function with these names, one of which a pattern has matched.
pub fn role<'a>(names: impl Iterator<Item = &'a str>) -> LibraryRole {
    let mut role = LibraryRole::default();
    for name in names {
        // The name may have a version: pthread_cond_wait@@GLIBC_2.3.2.
        let name = name.split('@').next().unwrap_or(name);
        role.waits |= WAITS.contains(&name);
        role.locks |= LOCK.contains(&name);
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
        let of = |names: &[&str]| role(names.iter().copied());
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
        assert!(lock.locks && lock.waits);
        assert_eq!(of(&["main"]), LibraryRole::default());
    }
}
