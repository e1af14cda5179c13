//! Whether the kernel shows a thread through rseq(2) that it was switched. It then clears the thread's pointer to a critical section, if
//! the thread was outside of that section. Kernel versions differ in when they do this, so this file tests it.

use std::sync::OnceLock;
use std::time::Duration;

use crate::sys;

/// Number of times that a thread sleeps in the test.
const TRIES: u32 = 3;

/// Whether a switch during a system call clears the pointer. Tested once, on a thread of this process.
pub(crate) fn are_seen() -> bool {
    static SEEN: OnceLock<bool> = OnceLock::new();
    *SEEN.get_or_init(|| {
        let tried = std::thread::Builder::new().name("rseq".to_owned()).spawn(|| {
            (0..TRIES)
                .all(|_| sys::section_is_cleared_by(|| std::thread::sleep(Duration::from_millis(1))) == Some(true))
        });
        tried.is_ok_and(|thread| thread.join().unwrap_or(false))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_that_nobody_clears_stays() {
        let stays = std::thread::spawn(|| (0..1000).any(|_| sys::section_is_cleared_by(|| ()) == Some(false)));
        let sees = are_seen();
        assert!(stays.join().is_ok_and(|stays| stays || !sees));
    }
}
