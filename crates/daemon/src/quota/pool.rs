//! A fixed number of bytes that the daemon divides among its clients, and the limits for each holder.
//!
//! An untrusted holder may have as many bytes as it leaves free for others. Alone, it may have half of the unreserved bytes; beside another
//! such holder with as many bytes, a third, and so on. So the number of holders need not be known, the pool is never exceeded, and a later
//! holder still finds room.

use std::collections::HashMap;

use super::QuotaHolder;

/// Trust of the daemon in a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Root, the daemon's own user, or a client with the token or a certificate. These holders may use the reserved part.
    Trusted,
    /// A user that the kernel reports, other than root and the daemon's own.
    User,
    /// A client that has not authenticated.
    Stranger,
}

/// The size of a pool and of its shares, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Size of the whole pool.
    pub all: usize,
    /// Size of the part that only trusted holders may use.
    pub reserved: usize,
    /// Size of the part that all strangers together may use.
    pub strangers: usize,
    /// Maximum for one trusted holder or one user.
    pub each: usize,
    /// Maximum for one stranger.
    pub each_stranger: usize,
}

/// A pool, with the number of bytes that each holder has.
#[derive(Debug)]
pub struct Pool {
    sizes: Sizes,
    used: usize,
    used_by_strangers: usize,
    holders: HashMap<QuotaHolder, usize>,
}

impl Pool {
    /// Returns an unused pool.
    pub fn new(sizes: Sizes) -> Pool {
        Pool { sizes, used: 0, used_by_strangers: 0, holders: HashMap::new() }
    }

    /// Returns the number of bytes that a holder has.
    pub fn of(&self, holder: QuotaHolder) -> usize {
        self.holders.get(&holder).copied().unwrap_or(0)
    }

    /// Gives bytes to a holder. If the holder's share or the pool has no room for them, returns false and changes nothing.
    pub fn take(&mut self, holder: QuotaHolder, standing: Standing, bytes: usize) -> bool {
        let Sizes { all, reserved, strangers, each, each_stranger } = self.sizes;
        let has = self.of(holder).saturating_add(bytes);
        let used = self.used.saturating_add(bytes);
        let shared = all - reserved;
        let fits = match standing {
            Standing::Trusted => has <= each && used <= all,
            Standing::User => has <= each && has <= shared.saturating_sub(used),
            Standing::Stranger => {
                let theirs = self.used_by_strangers.saturating_add(bytes);
                has <= each_stranger && has <= strangers.saturating_sub(theirs) && used <= shared
            }
        };
        if fits && bytes > 0 {
            self.used = used;
            self.used_by_strangers += if standing == Standing::Stranger { bytes } else { 0 };
            self.holders.insert(holder, has);
        }
        fits
    }

    /// Takes back bytes that a holder got with the same standing.
    pub fn give_back(&mut self, holder: QuotaHolder, standing: Standing, bytes: usize) {
        self.used -= bytes;
        self.used_by_strangers -= if standing == Standing::Stranger { bytes } else { 0 };
        let left = self.of(holder) - bytes;
        if left == 0 {
            self.holders.remove(&holder);
        } else {
            self.holders.insert(holder, left);
        }
    }

    /// Returns whether no holder has any bytes.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        (self.used, self.used_by_strangers, self.holders.len()) == (0, 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;

    const SIZES: Sizes = Sizes { all: 1000, reserved: 200, strangers: 100, each: 600, each_stranger: 30 };

    /// Takes bytes one by one until the pool refuses, and returns their number.
    fn fill(pool: &mut Pool, holder: QuotaHolder, standing: Standing) -> usize {
        (0..2000).take_while(|_| pool.take(holder, standing, 1)).count()
    }

    #[test]
    fn users_leave_as_much_as_they_have_and_the_reserve() {
        let mut pool = Pool::new(SIZES);
        assert_eq!(fill(&mut pool, QuotaHolder::User(1), Standing::User), 400);
        assert_eq!(fill(&mut pool, QuotaHolder::User(2), Standing::User), 200);
        assert_eq!(fill(&mut pool, QuotaHolder::User(3), Standing::User), 100);
        assert!(!pool.take(QuotaHolder::User(1), Standing::User, 1));
        assert_eq!(
            fill(&mut pool, QuotaHolder::User(0), Standing::Trusted),
            300,
            "the reserve, and what is left of the rest"
        );
        assert!(!pool.take(QuotaHolder::Token, Standing::Trusted, 1), "the pool is never exceeded");
        pool.give_back(QuotaHolder::User(1), Standing::User, 400);
        assert!(pool.take(QuotaHolder::Token, Standing::Trusted, 1));
    }

    #[test]
    fn strangers_have_little_even_together() {
        let mut pool = Pool::new(SIZES);
        let stranger = |uid| QuotaHolder::Stranger(Ipv4Addr::LOCALHOST.into(), Some(uid));
        let theirs: usize = (0..100).map(|uid| fill(&mut pool, stranger(uid), Standing::Stranger)).sum();
        assert!((90..=100).contains(&theirs), "{theirs}");
        assert_eq!(fill(&mut pool, stranger(0), Standing::Stranger), 0);
        assert!(fill(&mut pool, QuotaHolder::User(1), Standing::User) >= 350, "users hardly notice");
    }

    proptest! {
        /// The pool is not exceeded, whatever the order of takes and returns, and it is empty at the end.
        #[test]
        fn the_pool_is_never_exceeded(takes in proptest::collection::vec((0_u32..4, 0_usize..500, any::<bool>()), 0..100)) {
            let mut pool = Pool::new(SIZES);
            let standing = |uid| if uid == 0 { Standing::Trusted } else { Standing::User };
            let mut held = Vec::new();
            for (uid, bytes, gives_back) in takes {
                if gives_back && let Some((uid, bytes)) = held.pop() {
                    pool.give_back(QuotaHolder::User(uid), standing(uid), bytes);
                } else if pool.take(QuotaHolder::User(uid), standing(uid), bytes) {
                    held.push((uid, bytes));
                }
                let users: usize = held.iter().filter(|(uid, _)| *uid != 0).map(|(_, bytes)| bytes).sum();
                prop_assert!(users <= 800 && held.iter().map(|(_, bytes)| bytes).sum::<usize>() <= 1000);
            }
            for (uid, bytes) in held {
                pool.give_back(QuotaHolder::User(uid), standing(uid), bytes);
            }
            prop_assert!(pool.is_empty());
        }
    }
}
