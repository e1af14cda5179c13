//! Syscall User Dispatch: the kernel turns system calls of a thread into SIGSYS, except those of one address range
//! (Documentation/admin-guide/syscall-user-dispatch.rst). Wine and other emulators use it.
//!
//! The kernel decides before tracers see the call, so a system call of a borrowed thread would run the program's SIGSYS handler.

use ingraft_model::{Avma, Tid};

use crate::gadgets::SystemCallGadget;
use crate::sys;

/// Value of the selector byte with which all system calls pass (SYSCALL_DISPATCH_FILTER_ALLOW).
const ALLOW: u8 = 0;

/// Configuration of a thread that has Syscall User Dispatch on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UserDispatch {
    /// Address of the selector byte in the thread's memory; 0 if it has none.
    pub(crate) selector: u64,
    /// First address of the range from which system calls pass.
    pub(crate) offset: u64,
    /// Length of this range in bytes.
    pub(crate) len: u64,
}

/// Whether a thread's system calls reach the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DispatchState {
    /// All calls of a borrowed thread pass.
    Free,
    /// The calls would raise SIGSYS.
    Trapped,
    /// The kernel does not tell (before Linux 6.4).
    Unknown,
}

impl UserDispatch {
    /// Whether system calls pass that are made right before these addresses. `selector` is the present value of the selector byte. `None`
    /// means that the thread has no selector, or that it cannot be read.
    fn passes(&self, after_calls: &[u64], selector: Option<u8>) -> bool {
        selector == Some(ALLOW) || after_calls.iter().all(|after| after.wrapping_sub(self.offset) < self.len)
    }
}

/// Returns whether the system calls of a stopped thread on the way of a borrowed thread reach the kernel.
///
/// The selector belongs to the thread: its own code sets it to ALLOW while its handler makes system calls. So if it is ALLOW now, it stays so
/// until the thread is back, even if the engine dies. Nothing is turned off, because a dead engine could not turn it on again.
///
/// `read` returns a byte of the thread's memory, if it can be read.
pub(crate) fn passage(read: impl Fn(Avma) -> Option<u8>, tid: Tid, way: &SystemCallGadget) -> DispatchState {
    match sys::user_dispatch(tid) {
        Ok(None) => DispatchState::Free,
        Ok(Some(dispatch)) => {
            let selector = Some(dispatch.selector).filter(|at| *at != 0).and_then(|at| read(Avma(at)));
            match dispatch.passes(&way.after_calls, selector) {
                true => DispatchState::Free,
                false => DispatchState::Trapped,
            }
        }
        Err(_) => DispatchState::Unknown,
    }
}

/// Whether Syscall User Dispatch is on in a stopped thread; `false` if the kernel does not tell.
pub(crate) fn is_on(tid: Tid) -> bool {
    sys::user_dispatch(tid).is_ok_and(|dispatch| dispatch.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_pass_from_the_range_or_by_the_selector() {
        let dispatch = UserDispatch { selector: 0x9000, offset: 0x1000, len: 0x100 };
        assert!(dispatch.passes(&[0x1000, 0x10ff], Some(1)));
        assert!(!dispatch.passes(&[0x1000, 0x1100], Some(1)));
        assert!(!dispatch.passes(&[0xfff], Some(1)));
        assert!(dispatch.passes(&[0xfff], Some(ALLOW)));
        assert!(!dispatch.passes(&[0xfff], None));
        assert!(!dispatch.passes(&[0xfff], Some(7)), "the kernel kills for other values");
        // PR_SYS_DISPATCH_INCLUSIVE_ON: the kernel stores the range outside of which calls are dispatched.
        let inclusive = UserDispatch { selector: 0, offset: 0x1100, len: 0x100u64.wrapping_neg() };
        assert!(inclusive.passes(&[0x1100, 0xfff], None));
        assert!(!inclusive.passes(&[0x1080], None));
        let nowhere = UserDispatch { selector: 0, offset: 0, len: 0 };
        assert!(!nowhere.passes(&[0], None));
    }
}
