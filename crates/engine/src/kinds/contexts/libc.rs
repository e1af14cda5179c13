//! Functions of the C library that allocate memory, wait, or wait for locks.

use crate::api::ContextMetric;
use crate::kinds::waits::WAITS;

use super::code::{LibraryRole, Size};

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
        ContextMetric::WaitTime => of(&["libc"], &mut WAITS.iter().copied()),
        ContextMetric::LockTime => of(&["libc"], &mut LOCK.iter().copied()),
        ContextMetric::WallTime | ContextMetric::CpuTime | ContextMetric::Looks => Vec::new(),
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
    }
    role
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
        assert!(of(&["pthread_cond_wait@@GLIBC_2.3.2"]).waits);
        let lock = of(&["__pthread_mutex_lock", "pthread_mutex_lock"]);
        assert!(lock.locks && lock.waits);
        assert_eq!(of(&["main"]), LibraryRole::default());
    }
}
