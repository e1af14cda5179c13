//! The return of a borrowed thread: a signal frame as the kernel itself would build it. `rt_sigreturn` restores every register from it. So
//! the thread returns to where it was even if the engine has died.

use ingraft_model::Avma;

use crate::sys::Regs;

/// Bytes below the stack pointer that the running function may use.
pub(crate) const RED_ZONE: u64 = 128;
/// Offset of the saved program counter from the word that holds the return address of a signal frame.
pub(crate) const RIP: u64 = UCONTEXT + 40 + 16 * 8;
/// Offset of the saved stack pointer in a signal frame.
pub(crate) const RSP: u64 = UCONTEXT + 40 + 15 * 8;
/// Offset of the saved code segment (u16) in a signal frame.
pub(crate) const CS: u64 = UCONTEXT + 40 + 18 * 8;

/// Offset of the flags of the context (`uc_flags`). The next word is `uc_link`, which the kernel sets to 0.
pub(crate) const FLAGS: u64 = UCONTEXT;
/// Highest flags of a context: UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS.
pub(crate) const FLAGS_MAX: u64 = UC_FLAGS;
/// Offset of the address of the extended state.
pub(crate) const FP_STATE: u64 = UCONTEXT + 40 + 23 * 8;
/// Maximum number of words on the stack before a frame.
pub(crate) const MAX_IN_FRONT: usize = 64;

/// Offset of the siginfo in a signal frame: the number of the signal (i32), an error (i32), and its cause (i32, `si_code`).
pub(crate) const SIGINFO: u64 = UCONTEXT + UCONTEXT_LEN as u64;

const UCONTEXT: u64 = 8;
const UCONTEXT_LEN: usize = 304;
const SIGINFO_LEN: usize = 128;
const FRAME_LEN: usize = 8 + UCONTEXT_LEN + SIGINFO_LEN;
/// UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
const UC_FLAGS: u64 = 7;
/// Flags with no valid mode, so that rt_sigreturn leaves the alternate signal stack unchanged.
const ALTSTACK_UNTOUCHED: u64 = 0x1000;
/// Mark of the extended state of a signal frame.
pub(crate) const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// Offset in the XSAVE area of the bytes for software: magic, sizes, features.
pub(crate) const FP_SW: usize = 464;
const FP_MIN: usize = 576;

const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
/// The kernel continues the system call through restart_syscall(2), with the state that it has kept.
pub(crate) const ERESTART_RESTARTBLOCK: i64 = -516;
const SYS_RESTART: u64 = 219;
const EINTR: i64 = -4;
const SYS_IO_PGETEVENTS: i64 = 333;

/// Method of recognising the signal frames on a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FrameRecognition {
    /// Signal frames are not searched for.
    None,
    /// By their return addresses or by their form. The return addresses are the places where handlers call rt_sigreturn (sorted).
    Returning(Vec<Avma>),
    /// By their form alone, because no code of this program is known to call rt_sigreturn.
    Formed,
}

/// System calls that a stop ends with EINTR although no signal came. They have had no effect yet, so they may be repeated. close is not in
/// the list: repeated, it could close another file.
const REPEATABLE: &[i64] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
];

/// Signals by which the kernel tells a thread of a fault of its own instruction.
const FAULTS: [i32; 5] = [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV];
/// Largest number of a signal.
const SIGNALS: i32 = 64;

/// Whether a signal frame with these first two words of its siginfo may be that of a fault. A frame of another signal must prove it: the
/// kernel writes no siginfo for a handler without SA_SIGINFO, and then the words are what the stack held before. The kernel's own causes
/// are positive numbers.
pub(crate) fn may_be_fault(siginfo: [Option<u64>; 2]) -> bool {
    let [Some(first), Some(second)] = siginfo else { return true };
    let (signal, cause) = (first as i32, second as i32);
    let is_signal = (1..=SIGNALS).contains(&signal);
    !is_signal || FAULTS.contains(&signal) && cause > 0
}

/// Whether a fault is among these signals, which have a bit each, bit 0 for signal 1.
pub(crate) fn has_fault(signals: u64) -> bool {
    FAULTS.iter().any(|signal| signals & 1 << (signal - 1) != 0)
}

/// Whether the thread is in a system call that the kernel will repeat.
pub(crate) fn restarts(regs: &Regs) -> bool {
    (regs.orig_rax as i64) >= 0
        && matches!(regs.rax as i64, ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | ERESTART_RESTARTBLOCK)
}

/// If the engine's stop made a system call end with EINTR, lets the kernel repeat it. (If a signal with a handler comes first, the kernel
/// reports EINTR after all.) Returns whether the registers were changed. Only for a thread in an event stop.
pub(crate) fn repair_interrupted(regs: &mut Regs) -> bool {
    let repair = regs.rax as i64 == EINTR && REPEATABLE.contains(&(regs.orig_rax as i64));
    if repair {
        regs.rax = ERESTARTNOHAND as u64;
    }
    repair
}

/// Returns the registers as the kernel would set them for a pending repetition of a system call.
fn restarted(mut regs: Regs) -> Regs {
    if restarts(&regs) {
        regs.rip = regs.rip.wrapping_sub(2);
        regs.rax = if regs.rax as i64 == ERESTART_RESTARTBLOCK { SYS_RESTART } else { regs.orig_rax };
    }
    regs
}

/// A signal frame as bytes that are ready to be written.
#[derive(Debug)]
pub(crate) struct SignalFrame {
    /// Address of the first byte, including words before the frame. With this stack pointer, `ret` leads into rt_sigreturn.
    pub(crate) at: u64,
    pub(crate) bytes: Vec<u8>,
}

impl SignalFrame {
    /// Puts words below the frame. The thread takes them from its stack before it reaches the frame.
    pub(crate) fn put_in_front(&mut self, words: &[u64]) {
        let front = words.iter().flat_map(|word| word.to_le_bytes());
        self.bytes.splice(0..0, front);
        self.at -= 8 * words.len() as u64;
    }
}

/// Room for a frame with this extended state, its alignment and the words before it, in bytes.
pub(crate) fn frame_room(xstate: &[u8]) -> u64 {
    (FRAME_LEN + xstate.len() + 4 + 64 + 16 + 8 * MAX_IN_FRONT) as u64
}

/// Builds the frame below `top` that restores `regs`, `sigmask` and `xstate` once the thread returns to its first word, `sigreturn`. `None`
/// if `xstate` is no XSAVE area.
pub(crate) fn build(regs: &Regs, sigmask: u64, xstate: &[u8], top: u64, sigreturn: u64) -> Option<SignalFrame> {
    if xstate.len() < FP_MIN {
        return None;
    }
    let fp_at = (top - (xstate.len() + 4) as u64) & !63;
    let at = ((fp_at - FRAME_LEN as u64) & !15) - 8;
    let mut bytes = vec![0u8; (fp_at - at) as usize + xstate.len() + 4];
    let mut put = |offset: u64, value: u64| {
        let offset = offset as usize;
        bytes[offset..offset + 8].copy_from_slice(&value.to_le_bytes());
    };
    let r = restarted(*regs);
    put(0, sigreturn);
    put(UCONTEXT, UC_FLAGS);
    put(UCONTEXT + 24, ALTSTACK_UNTOUCHED); // ss_flags
    let segments = (r.cs & 0xffff) | (r.ss & 0xffff) << 48;
    let context = [
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags, segments, 0, 0, sigmask, 0, fp_at,
    ];
    for (i, value) in context.into_iter().enumerate() {
        put(UCONTEXT + 40 + 8 * i as u64, value);
    }
    put(UCONTEXT + 296, sigmask);

    let fp = (fp_at - at) as usize;
    let state = &mut bytes[fp..];
    state[..xstate.len()].copy_from_slice(xstate);
    // In the area that the kernel gave, the first software word holds the enabled features. In a frame, the description of the frame takes
    // its place.
    let features: [u8; 8] = xstate[FP_SW..FP_SW + 8].try_into().ok()?;
    let len = u32::try_from(xstate.len()).ok()?;
    state[FP_SW..FP_SW + 4].copy_from_slice(&FP_XSTATE_MAGIC1.to_le_bytes());
    state[FP_SW + 4..FP_SW + 8].copy_from_slice(&(len + 4).to_le_bytes());
    state[FP_SW + 8..FP_SW + 16].copy_from_slice(&features);
    state[FP_SW + 16..FP_SW + 20].copy_from_slice(&len.to_le_bytes());
    state[FP_SW + 20..FP_SW + 48].fill(0);
    state[xstate.len()..].copy_from_slice(&FP_XSTATE_MAGIC2.to_le_bytes());
    Some(SignalFrame { at, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn regs() -> Regs {
        // SAFETY: integers only.
        unsafe { std::mem::zeroed() }
    }

    fn word(frame: &SignalFrame, offset: u64) -> u64 {
        u64::from_le_bytes(frame.bytes[offset as usize..offset as usize + 8].try_into().unwrap())
    }

    #[test]
    fn layout_is_the_kernels() {
        let r = Regs { rip: 0x1234, rsp: 0x7ffe_0000, rax: 7, orig_rax: u64::MAX, cs: 0x33, ss: 0x2b, ..regs() };
        for len in [576, 832, 2696, 11008] {
            let frame = build(&r, 0x55, &vec![1; len], 0x7ffd_fff3, 0xabc).unwrap();
            assert_eq!(word(&frame, 0), 0xabc);
            assert_eq!(word(&frame, RIP), 0x1234);
            assert_eq!(word(&frame, RSP), 0x7ffe_0000);
            assert_eq!(word(&frame, CS), 0x33 | 0x2b << 48);
            assert_eq!(word(&frame, 8 + 296), 0x55);
            assert_eq!(frame.at % 16, 8);
            let fp = word(&frame, 8 + 40 + 23 * 8);
            assert_eq!(fp % 64, 0);
            assert!(frame.at + frame.bytes.len() as u64 <= 0x7ffd_fff3);
            assert_eq!(&frame.bytes[frame.bytes.len() - 4..], &FP_XSTATE_MAGIC2.to_le_bytes());

            let mut led = build(&r, 0x55, &vec![1; len], 0x7ffd_fff3, 0xabc).unwrap();
            led.put_in_front(&[1, 2, 3]);
            assert_eq!((led.at, led.bytes.len()), (frame.at - 24, frame.bytes.len() + 24));
            assert_eq!([0, 8, 16, 24].map(|offset| word(&led, offset)), [1, 2, 3, 0xabc]);
            led.put_in_front(&[0; MAX_IN_FRONT - 3]);
            assert!(led.bytes.len() as u64 <= frame_room(&vec![0; len]));
        }
        assert!(build(&r, 0, &[0; 512], 0x10000, 0).is_none());
    }

    #[test]
    fn frames_of_faults() {
        const SEGV_MAPERR: i32 = 1;
        const SI_KERNEL: i32 = 0x80;
        let of = |signal: i32, cause: i32| may_be_fault([Some(signal as u64), Some(u64::from(cause.cast_unsigned()))]);
        assert!(of(libc::SIGSEGV, SEGV_MAPERR) && of(libc::SIGSEGV, SI_KERNEL) && of(libc::SIGFPE, 1));
        assert!(!of(libc::SIGSEGV, libc::SI_USER) && !of(libc::SIGSEGV, libc::SI_TKILL));
        assert!(!of(libc::SIGALRM, libc::SI_USER) && !of(libc::SIGPROF, SI_KERNEL));
        assert!(of(0, 0) && of(-7, 3) && of(65, 0), "no siginfo");
        assert!(may_be_fault([None, None]), "unknown");
        assert!(has_fault(1 << 10 | 1 << 13) && !has_fault(1 << 13) && !has_fault(0));
        // The words of the siginfo follow the context.
        assert_eq!(SIGINFO as usize + SIGINFO_LEN, FRAME_LEN);
    }

    #[test]
    fn restarts_by_hand() {
        let r = |rax: i64, orig: i64| Regs { rip: 100, rax: rax as u64, orig_rax: orig as u64, ..regs() };
        for code in [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND] {
            let done = restarted(r(code, 7));
            assert_eq!((done.rip, done.rax), (98, 7));
        }
        let done = restarted(r(ERESTART_RESTARTBLOCK, 35));
        assert_eq!((done.rip, done.rax), (98, SYS_RESTART));
        let done = restarted(r(ERESTARTSYS, -1));
        assert_eq!((done.rip, done.rax as i64), (100, ERESTARTSYS));
        let mut epoll = r(EINTR, libc::SYS_epoll_wait);
        assert!(repair_interrupted(&mut epoll));
        assert_eq!(restarted(epoll).rip, 98);
        assert!(!repair_interrupted(&mut r(EINTR, libc::SYS_close)));
        assert!(!repair_interrupted(&mut r(EINTR, -1)));
        assert!(!repair_interrupted(&mut r(0, libc::SYS_read)));
    }
}
