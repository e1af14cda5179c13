//! Waits for locks, with the holders of the locks.

use rustc_hash::FxHashMap;

use super::ContextProfile;

/// Looks that have seen threads in one context wait for a lock, while its holder was in one context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockWait {
    /// Address of the lock in the process.
    pub lock: u64,
    /// Name of the variable that the lock is or is in, with the distance from its beginning; empty if it is not known.
    pub name: String,
    /// Index of the context that waits: that of the function that waits for the lock.
    pub waiter: usize,
    /// Holder of the lock.
    pub holder: LockHolder,
    /// Time that the looks stand for, in nanoseconds.
    pub ns: u64,
    /// Number of looks.
    pub looks: u64,
}

/// Holder of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockHolder {
    /// A thread in the context with this index.
    Context(usize),
    /// A thread outside of all contexts.
    Outside,
    /// Nobody: the lock was given back, and the threads that wait for it have not run yet.
    Nobody,
    /// The lock does not tell it: readers hold it, or it is a lock of another kind.
    #[default]
    Untold,
}

impl LockHolder {
    /// Index of the context of the holder; `None` if it is in none.
    pub fn context(self) -> Option<usize> {
        match self {
            LockHolder::Context(context) => Some(context),
            LockHolder::Outside | LockHolder::Nobody | LockHolder::Untold => None,
        }
    }

    /// The holder with a context that has this index in another tree; `None` if it is not there.
    #[must_use]
    pub fn moved(self, new: impl Fn(usize) -> Option<usize>) -> Option<LockHolder> {
        match self {
            LockHolder::Context(context) => new(context).map(LockHolder::Context),
            holder @ (LockHolder::Outside | LockHolder::Nobody | LockHolder::Untold) => Some(holder),
        }
    }
}

impl LockWait {
    /// The wait with contexts that have these indexes in another tree; `None` if one of them is not there.
    #[must_use]
    pub fn moved(&self, new: impl Fn(usize) -> Option<usize>) -> Option<LockWait> {
        Some(LockWait { waiter: new(self.waiter)?, holder: self.holder.moved(&new)?, ..self.clone() })
    }
}

impl ContextProfile {
    /// Adds the waits of another profile, whose contexts have these indexes here. Locks are the same if their addresses and names are.
    pub(super) fn add_holders(&mut self, other: &ContextProfile, contexts: &[usize]) {
        let moved = other.holders.iter().filter_map(|wait| wait.moved(|index| contexts.get(index).copied()));
        self.holders = together(std::mem::take(&mut self.holders).into_iter().chain(moved));
    }
}

/// One element for each lock, its holder and the context that waits; those with the most time first.
pub(super) fn together(all: impl Iterator<Item = LockWait>) -> Vec<LockWait> {
    let mut sums: Vec<LockWait> = Vec::new();
    let mut known: FxHashMap<(u64, String, usize, LockHolder), usize> = FxHashMap::default();
    for wait in all {
        let at = *known.entry((wait.lock, wait.name.clone(), wait.waiter, wait.holder)).or_insert(sums.len());
        match sums.get_mut(at) {
            Some(sum) => {
                sum.ns = sum.ns.saturating_add(wait.ns);
                sum.looks = sum.looks.saturating_add(wait.looks);
            }
            None => sums.push(wait),
        }
    }
    sums.sort_by_key(|wait| std::cmp::Reverse(wait.ns));
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_the_same_lock_and_contexts_are_added() {
        let wait = |lock, waiter, holder, ns| LockWait { lock, name: "pool".to_owned(), waiter, holder, ns, looks: 1 };
        let holder = LockHolder::Context(1);
        let mut one = ContextProfile { holders: vec![wait(8, 0, holder, 5)], ..ContextProfile::default() };
        let waits = vec![wait(8, 1, LockHolder::Context(0), 3), wait(8, 1, LockHolder::Outside, 9)];
        let other = ContextProfile { holders: waits, ..ContextProfile::default() };
        // The contexts of the other profile are in the opposite order.
        one.add_holders(&other, &[1, 0]);
        let both = LockWait { looks: 2, ..wait(8, 0, holder, 8) };
        assert_eq!(one.holders, [wait(8, 0, LockHolder::Outside, 9), both]);
        one.add_holders(&other, &[]);
        assert_eq!(one.holders.len(), 2, "contexts that are not there");
    }
}
