//! Signals that ask for the end, such as Ctrl-C: a command that has inserted something removes it before it ends.

use std::fs;
use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::exit::{Failure, Stop};

/// The signals that ask for the end. While this value exists, none of them kills the command, so a second Ctrl-C cannot interrupt the
/// removal.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// SIGHUP; `None` under nohup, which ignores the signal on purpose.
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes the signals over.
    pub(crate) fn take() -> Result<Self, Stop> {
        let open = || -> io::Result<Self> {
            let hangup = if ignores_hangup() { None } else { Some(signal(SignalKind::hangup())?) };
            Ok(Signals {
                interrupt: signal(SignalKind::interrupt())?,
                terminate: signal(SignalKind::terminate())?,
                hangup,
            })
        };
        open().map_err(|e| {
            Failure::failed(format!("cannot catch signals: {e}"), "raise the limit of open files (ulimit -n)").into()
        })
    }

    /// Returns when a signal asks for the end.
    pub(crate) async fn asked(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            () = hung_up(&mut self.hangup) => {}
        }
    }
}

async fn hung_up(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether SIGHUP (number 1, the lowest bit) was ignored when this process was started.
fn ignores_hangup() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:"));
    mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).is_some_and(|m| m & 1 != 0)
}
