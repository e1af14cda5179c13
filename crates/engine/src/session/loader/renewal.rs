//! Renewals of the wait of threads at the loader's hook of a program that the engine started. They wait until a large library is
//! analysed and woven, and go on soon after the engine has died.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use ingraft_model::layout::LOADER_WAIT_NS;
use ingraft_process::{SharedArea, Target};

/// Largest number of threads whose filters of system calls are checked.
pub const FILTERS_MAX: usize = 64;
/// Time between two renewals, a fifth of the time for which a thread waits for one, because the machine may be busy.
const EVERY: Duration = Duration::from_millis(50);
/// Longest time for which a thread waits after the last renewal: until its time limit, and once more.
const LAST: Duration = Duration::from_nanos(2 * (LOADER_WAIT_NS as u64));

/// A thread that renews the wait until this is dropped or the time is over.
pub struct Renewal {
    /// Nothing is sent; the thread ends when this is dropped.
    _until: Sender<()>,
}

impl Renewal {
    /// Starts to renew the wait, so that a thread waits for no longer than `at_most`, or [`LOADER_WAIT_NS`] if `at_most` is shorter. If a
    /// filter of system calls appears meanwhile, the thread goes on at once, because each further round makes system calls. `None` if the
    /// engine can have no further thread; then the thread waits for [`LOADER_WAIT_NS`].
    pub fn start(target: &Arc<Target>, area: &Arc<SharedArea>, at_most: Duration) -> Option<Renewal> {
        let (until, dropped) = channel();
        let (target, area, begin) = (Arc::clone(target), Arc::clone(area), Instant::now());
        let give = move || {
            while dropped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) && may_renew(begin.elapsed(), at_most) {
                let filtered = target.has_filter(FILTERS_MAX);
                let done = if filtered { area.stop_listening() } else { area.renew() };
                if let Err(error) = done {
                    return tracing::debug!(%error, "a thread at the loader's hook waits no longer than usual");
                }
                if filtered {
                    return;
                }
            }
        };
        match std::thread::Builder::new().name("renewal".to_owned()).spawn(give) {
            Ok(_) => Some(Renewal { _until: until }),
            Err(error) => {
                tracing::debug!(%error, "threads at the loader's hook wait no longer than usual");
                None
            }
        }
    }
}

/// Whether a thread that has waited for `waited` may get a renewal, so that it waits for no longer than `at_most` in all.
fn may_renew(waited: Duration, at_most: Duration) -> bool {
    waited.saturating_add(LAST) < at_most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time for which a thread waits if the engine dies right after its last renewal.
    fn longest_wait(at_most: Duration) -> Duration {
        let limit = Duration::from_nanos(LOADER_WAIT_NS.into());
        let renewals = (1..).map(|n| EVERY * n).take_while(|waited| may_renew(*waited, at_most));
        // The thread sees the renewal at its next time limit, at most `limit` later, and then waits once more.
        renewals.last().map_or(limit, |last| last + 2 * limit)
    }

    #[test]
    fn no_thread_waits_longer_than_asked() {
        let limit = Duration::from_nanos(LOADER_WAIT_NS.into());
        for ms in (0..5000).step_by(7) {
            let at_most = Duration::from_millis(ms);
            assert!(longest_wait(at_most) <= at_most.max(limit), "{at_most:?} {:?}", longest_wait(at_most));
        }
        // The renewals last about as long as asked.
        for ms in (1000..5000).step_by(100) {
            let at_most = Duration::from_millis(ms);
            assert!(longest_wait(at_most) + 2 * EVERY >= at_most, "{at_most:?} {:?}", longest_wait(at_most));
        }
        assert!(!may_renew(Duration::MAX, Duration::MAX));
    }
}
