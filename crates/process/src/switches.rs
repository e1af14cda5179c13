//! Whether the kernel tells a thread through rseq(2) that it was switched: it clears the pointer to the critical section of a thread that
//! stood outside of it. How often it looks has changed over its versions, so it is tried.

use std::sync::OnceLock;
use std::time::Duration;

use crate::sys;

/// Number of times that a thread sleeps for the trial.
const TRIES: u32 = 3;

/// Whether a switch during a system call clears the pointer. Tried once, on a thread of ours.
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
