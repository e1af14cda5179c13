//! The account of a thread: what the kernel has counted since its birth: processor time, delays, page faults, switches.

use std::time::Duration;

use ingraft_model::{Pid, Tid};

use crate::procfs;
use crate::target::Target;

/// Counts of a thread since its birth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadAccount {
    /// Time on a processor.
    pub cpu: Duration,
    /// Part of `cpu` in the kernel, as far as the kernel's ticks tell it.
    pub system: Duration,
    /// Time in which the thread was ready to run and had no processor.
    pub delayed: Duration,
    /// Page faults without a read from a disk.
    pub minor_faults: u64,
    /// Page faults that waited for a disk.
    pub major_faults: u64,
    /// Time in which the thread waited for block devices; zero if the kernel does not count it (kernel.task_delayacct).
    pub block_delay: Duration,
    /// Switches to another thread because this one waited.
    pub waits: u64,
}

impl Target {
    /// Counts of a thread since its birth; `None` if it has ended.
    pub fn thread_usage(&self, tid: Tid) -> Option<ThreadAccount> {
        let times = procfs::schedule(self.pid(), tid);
        let stat = procfs::read(self.pid(), &format!("task/{tid}/stat")).ok()?;
        let mut usage = parse_stat(&stat)?;
        if let Some(times) = times {
            (usage.cpu, usage.delayed) = (times.ran, times.delayed);
        }
        usage.waits = waits(self.pid(), tid).unwrap_or(0);
        Some(usage)
    }
}

fn waits(pid: Pid, tid: Tid) -> Option<u64> {
    let status = procfs::read(pid, &format!("task/{tid}/status")).ok()?;
    let line = status.split(|&b| b == b'\n').find_map(|line| line.strip_prefix(b"voluntary_ctxt_switches:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Fields of /proc/PID/task/TID/stat (proc_pid_stat(5)); the number of each is one higher in the manual page.
fn parse_stat(text: &[u8]) -> Option<ThreadAccount> {
    // The name may contain any text, also ") ".
    let after = text.get(text.iter().rposition(|&b| b == b')')? + 2..)?;
    let after = std::str::from_utf8(after).ok()?;
    let fields: Vec<&str> = after.split_ascii_whitespace().collect();
    // fields[0] is the third field of the manual page.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    let time = |ticks: u64| procfs::TICK.saturating_mul(u32::try_from(ticks).unwrap_or(u32::MAX));
    let (user, system) = (time(number(14)?), time(number(15)?));
    Some(ThreadAccount {
        cpu: user.saturating_add(system),
        system,
        minor_faults: number(10)?,
        major_faults: number(12)?,
        block_delay: time(number(42)?),
        ..ThreadAccount::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys;

    #[test]
    fn fields_of_the_stat_file() {
        let fields: Vec<String> = (3..=52).map(|n| n.to_string()).collect();
        let usage = parse_stat(format!("7 (a) b) {}\n", fields.join(" ")).as_bytes()).expect("all fields");
        assert_eq!((usage.minor_faults, usage.major_faults), (10, 12));
        let ms = Duration::from_millis;
        assert_eq!((usage.cpu, usage.system, usage.block_delay), (ms(290), ms(150), ms(420)));
        assert_eq!(parse_stat(b"7 (a) R 1 2"), None);
        assert_eq!(parse_stat(b"7"), None);
    }

    #[test]
    fn own_counts_grow() {
        let target = Target::open_unchecked(sys::own_pid()).expect("this process");
        let tid = sys::own_tid();
        let before = target.thread_usage(tid).expect("this thread");
        std::thread::sleep(Duration::from_millis(1));
        let touched = vec![1_u8; 4 << 20];
        assert!(std::hint::black_box(&touched).iter().all(|b| *b == 1));
        let after = target.thread_usage(tid).expect("this thread");
        assert!(after.waits > before.waits && after.minor_faults > before.minor_faults, "{before:?} {after:?}");
        assert!(after.cpu >= before.cpu);
        assert_eq!(target.thread_usage(Tid(i32::MAX)), None);
    }
}
