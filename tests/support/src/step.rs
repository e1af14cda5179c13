//! Kills a program at its n-th system call of some kinds, to try every point of its life at which it can die.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// End of a program that was to be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was killed right before its n-th call of that kind.
    Killed,
    /// It ended by itself after this many calls of that kind.
    Ended(u64),
}

/// System calls by which a process touches another one: ptrace, and the calls that write its memory.
pub const TOUCHING: &[u64] = &[101 /* ptrace */, 18 /* pwrite64 */, 311 /* process_vm_writev */];

/// Runs a command until one of its threads is about to make the `n`-th (from 0, over all threads) of these calls, and kills it there
/// with SIGKILL. `at_each` is called with the count so far before each, while the program is held (to send it a signal, say).
pub fn kill_at(command: &mut Command, calls: &[u64], n: u64, mut at_each: impl FnMut(u64, Pid)) -> Fate {
    // A shell waits until it is traced and becomes the program then, so that nothing of the program is missed.
    let mut held = Command::new("/bin/sh");
    held.args(["-c", "read -r go && exec \"$0\" \"$@\""]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => held.env(name, value),
            None => held.env_remove(name),
        };
    }
    held.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = held.spawn().expect("start the program");
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
    let options = ptrace::Options::PTRACE_O_TRACECLONE
        | ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_EXITKILL;
    ptrace::seize(pid, options).expect("seize the program");
    ptrace::interrupt(pid).expect("interrupt the program");
    child.stdin.take().expect("a pipe").write_all(b"go\n").expect("let the program start");
    // Only of this thread: children of tests that run beside this one are theirs.
    let flags = WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
    let (mut count, mut inside) = (0, BTreeMap::new());
    let fate = loop {
        let status = match waitpid(None, Some(flags)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(error) => panic!("wait for the program's threads: {error}"),
        };
        let thread = status.pid().expect("a thread id");
        let mut deliver = None;
        match status {
            WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, _, _) if ended == pid => {
                break Fate::Ended(count);
            }
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => {
                inside.remove(&thread);
                continue;
            }
            WaitStatus::PtraceSyscall(_) => {
                let entered = inside.entry(thread).or_insert(false);
                *entered = !*entered;
                let number = ptrace::getregs(thread).map_or(u64::MAX, |registers| registers.orig_rax);
                if *entered && calls.contains(&number) {
                    at_each(count, pid);
                    if count == n {
                        nix::sys::signal::kill(pid, Signal::SIGKILL).expect("kill the program");
                        break Fate::Killed;
                    }
                    count += 1;
                }
            }
            WaitStatus::Stopped(_, signal) => deliver = Some(signal),
            _ => {}
        }
        // A group-stop or the first stop is no signal to pass on.
        let deliver = deliver.filter(|signal| !matches!(signal, Signal::SIGTRAP | Signal::SIGSTOP));
        match ptrace::syscall(thread, deliver) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("resume the program: {error}"),
        }
    };
    // The rest of its threads end now; their ends are collected so that none stays a zombie.
    if fate == Fate::Killed {
        loop {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, _, _)) if ended == pid => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
    }
    // Already collected above; this only releases the handle.
    let _ = child.wait();
    fate
}
