//! Clocks of a session.

use std::time::{SystemTime, UNIX_EPOCH};

/// Unix time in nanoseconds.
pub fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
