//! The signal handlers of a program. The kernel tells only the program itself which they are, so a borrowed thread asks.

use std::collections::BTreeSet;

use ingraft_model::Avma;

use crate::error::ProcessError;
use crate::remote::Remote;
use crate::target::Target;

/// Signals that C libraries handle for themselves (glibc and musl: 32 and 33).
const OF_LIBC: u64 = 0b11 << 31;
/// The kernel's `struct sigaction` in words: the handler, flags, the way back from the handler, and the mask.
const WORDS: usize = 4;
/// Size of the mask in bytes.
const MASK: u64 = 8;
/// Number of signals for which a thread asks before it is released.
const AT_ONCE: usize = 8;
/// Number of signals.
const SIGNALS: u64 = 64;

impl Target {
    /// The signals for which the program has handlers of its own, as a mask. Those that glibc handles for itself do not count.
    pub fn handled(&self) -> Result<u64, ProcessError> {
        Ok(self.status()?.caught & !OF_LIBC)
    }

    /// Addresses of the program's handlers of these signals, each once. Borrowed threads ask for some at a time, and are held meanwhile.
    /// Signals of which the kernel does not tell, because a filter forbids the question, have none.
    pub fn signal_handlers(&self, signals: u64) -> Result<BTreeSet<Avma>, ProcessError> {
        let asked: Vec<u64> = (1..=SIGNALS).filter(|signal| signals >> (signal - 1) & 1 != 0).collect();
        let mut found = BTreeSet::new();
        for some in asked.chunks(AT_ONCE) {
            found.extend(self.remote(|remote| {
                let at = remote.scratch(&[0; WORDS * 8])?;
                some.iter().filter_map(|signal| handler(remote, *signal, at).transpose()).collect::<Result<Vec<_>, _>>()
            })?);
        }
        Ok(found)
    }
}

/// The handler of a signal; `None` if the signal is ignored, has its default effect, or if the kernel does not tell.
fn handler(remote: &mut Remote<'_>, signal: u64, at: Avma) -> Result<Option<Avma>, ProcessError> {
    match remote.syscall("rt_sigaction", libc::SYS_rt_sigaction, [signal, 0, at.0, MASK, 0, 0]) {
        Ok(_) => {
            let handler = remote.target().read_u64(at)?;
            Ok((handler > libc::SIG_IGN as u64).then_some(Avma(handler)))
        }
        Err(ProcessError::Call { .. }) => Ok(None),
        Err(e) => Err(e),
    }
}
