//! Kills a program at its n-th system call of certain kinds, to try every moment at which it can die.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

/// Way in which the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The program was killed right before its n-th call of these kinds.
    Killed,
    /// The program ended by itself after this many calls of these kinds.
    Ended(u64),
}

/// System calls by which a process touches another one: ptrace, and the calls that write its memory.
pub const TOUCHING: &[u64] = &[101 /* ptrace */, 18 /* pwrite64 */, 311 /* process_vm_writev */];

/// Runs a command until one of its threads is about to make the `n`-th of these calls (from 0, over all threads), and kills it there with
/// SIGKILL. Before each of these calls, `at_each` is called with the number of earlier calls while the program is held, e.g. to send a
/// signal.
pub fn kill_at(command: &mut Command, calls: &[u64], n: u64, mut at_each: impl FnMut(u64, Pid)) -> Fate {
    // A shell waits until it is traced and then becomes the program, so that no call of the program is missed.
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
    // The thread waits only for its own children, because tests that run beside this one have children, too.
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
        // The SIGSTOP and SIGTRAP of the tracing itself are not delivered to the program.
        let deliver = deliver.filter(|signal| !matches!(signal, Signal::SIGTRAP | Signal::SIGSTOP));
        match ptrace::syscall(thread, deliver) {
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => panic!("resume the program: {error}"),
        }
    };
    // The other threads of the program end now. Their ends are collected, so that none stays a zombie.
    if fate == Fate::Killed {
        loop {
            match waitpid(None, Some(flags)) {
                Ok(WaitStatus::Exited(ended, _) | WaitStatus::Signaled(ended, _, _)) if ended == pid => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => break,
            }
        }
    }
    // The end was collected above; this call only releases the handle.
    let _ = child.wait();
    fate
}
