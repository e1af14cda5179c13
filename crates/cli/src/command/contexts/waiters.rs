//! Threads that waited for a lock for as long as a measurement took. The call has neither begun nor ended meanwhile, so it is in no context: without
//! a word, a deadlock would look like nothing at all.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_api::{SampledMode, SampledSite, SampledState, SamplingReading, SamplingRequest};
use ingraft_model::Tid;
use tokio::task::JoinHandle;

use crate::args::Format;
use crate::command::diagnose::{charged, is_lock_wait, is_mutex};
use crate::conn::RequestTarget;
use crate::measure::TargetMeasurement;
use crate::output::number::plural;
use crate::output::progress::Progress;
use crate::output::{self, abbreviated};

/// Time between two readings of the looks, and between two looks.
const INTERVAL: Duration = Duration::from_millis(200);
const PERIOD: Duration = Duration::from_millis(20);
/// Number of looks from which on a thread counts.
const LOOKS_MIN: u64 = 3;
/// Number of threads that a warning names.
const NAMED_MAX: usize = 8;

/// A thread, as all looks have found it.
#[derive(Debug, Default)]
struct StillThread {
    name: String,
    looks: u64,
    /// Time on a processor, and number of waits that have begun.
    cpu: Duration,
    waits: u64,
    /// The wait that was seen last.
    wait: Option<SampledSite>,
    /// Whether it had others.
    has_several: bool,
}

/// Processor time and number of waits of a thread that did nothing: what ingraft itself wakes it for, when it inserts and removes code.
const CPU_MAX: Duration = Duration::from_millis(1);
const WAITS_MAX: u64 = 8;

impl StillThread {
    /// Whether the thread did anything.
    fn has_run(&self) -> bool {
        self.cpu >= CPU_MAX || self.waits > WAITS_MAX
    }
}

/// The threads of a process.
#[derive(Debug, Default)]
struct StillThreads(BTreeMap<Tid, StillThread>);

impl StillThreads {
    fn add(&mut self, reading: &SamplingReading) {
        let mut present = BTreeMap::new();
        for usage in &reading.usage {
            let mut thread = self.0.remove(&usage.tid).unwrap_or_default();
            thread.name.clone_from(&usage.name);
            thread.looks += usage.looks;
            thread.cpu += usage.cpu;
            thread.waits += usage.waits;
            present.insert(usage.tid, thread);
        }
        // Threads that have ended wait no more.
        self.0 = present;
        // A thread that the engine holds for a moment waits on.
        for site in reading.sites.iter().filter(|site| site.mode != SampledMode::Stopped) {
            let Some(thread) = self.0.get_mut(&site.tid) else { continue };
            let site = SampledSite { samples: 0, ..site.clone() };
            thread.has_several |= thread.wait.as_ref().is_some_and(|wait| *wait != site);
            thread.wait = Some(site);
        }
    }

    /// The threads that waited for one lock all the time.
    fn waiting(&self) -> Vec<(Tid, &StillThread, &SampledSite)> {
        let waits = self.0.iter().filter_map(|(tid, thread)| Some((*tid, thread, thread.wait.as_ref()?)));
        let still =
            waits.filter(|(_, thread, _)| thread.looks >= LOOKS_MIN && !thread.has_run() && !thread.has_several);
        still.filter(|(.., wait)| is_lock_wait(wait)).collect()
    }

    /// The warning about threads that waited for a lock all the time; `None` if there are none.
    fn warning(&self, pid: i32) -> Option<String> {
        let all = self.waiting();
        if all.is_empty() {
            return None;
        }
        let count = plural(all.len() as u64, "thread", "threads");
        let mut text =
            format!("{count} of process {pid} waited for a lock all the time, so these calls are in no context: ");
        let named: Vec<String> =
            all.iter().take(NAMED_MAX).map(|(tid, thread, wait)| one(*tid, thread, wait)).collect();
        text += &named.join("; ");
        if let Some(more) = all.len().checked_sub(NAMED_MAX).filter(|more| *more > 0) {
            text += &format!("; and {more} more");
        }
        let holder =
            |(tid, _, wait): &(Tid, &StillThread, &SampledSite)| Some((u32::try_from(tid.0).ok()?, owner(wait)?));
        let holders: BTreeMap<u32, u32> = all.iter().filter_map(holder).collect();
        let circle = circle(&holders);
        if !circle.is_empty() {
            let names: Vec<String> = circle.iter().map(u32::to_string).collect();
            text += &format!("; a deadlock: each of the threads {} waits for the next one", names.join(", "));
        }
        Some(text)
    }
}

/// A thread with its wait.
fn one(tid: Tid, thread: &StillThread, wait: &SampledSite) -> String {
    let name = if thread.name.is_empty() { String::new() } else { format!(" {}", thread.name) };
    let function = charged(wait).map_or_else(String::new, |f| format!(" in {}", abbreviated(&f.function)));
    let innermost = wait.functions.first().map(|f| f.function.clone()).filter(|_| wait.innermost);
    let call = innermost.unwrap_or_else(|| wait.call.clone());
    let holder = owner(wait).map_or_else(String::new, |owner| format!(", held by thread {owner}"));
    let text = format!("thread {}{name}{function} ({call}{holder})", tid.0);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The thread that holds the lock of a wait. Only mutexes of pthreads tell; in the memory of other locks, a number may be a thread's id by chance.
fn owner(wait: &SampledSite) -> Option<u32> {
    wait.object.as_ref().map(|object| object.owner).filter(|owner| *owner > 0 && is_mutex(wait))
}

/// Threads each of which waits for a lock that the next one holds, and the last for one of the first; empty if there are none.
fn circle(holders: &BTreeMap<u32, u32>) -> Vec<u32> {
    for first in holders.keys() {
        let (mut seen, mut at) = (vec![*first], *first);
        while let Some(next) = holders.get(&at) {
            if next == first {
                return seen;
            }
            if seen.contains(next) {
                break;
            }
            seen.push(*next);
            at = *next;
        }
    }
    Vec::new()
}

/// Looks at the waiting threads of a process.
struct WaiterLooks {
    pid: i32,
    host: Option<String>,
    threads: Arc<Mutex<StillThreads>>,
    task: JoinHandle<()>,
}

impl Drop for WaiterLooks {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Looks at the waiting threads of all processes of a command.
#[derive(Default)]
pub(super) struct Waiters(Vec<WaiterLooks>);

impl Waiters {
    /// Begins to look at the processes that are not looked at yet.
    pub(super) fn follow(&mut self, sites: &[TargetMeasurement]) {
        for site in sites {
            let (pid, host) = (site.pid(), site.host());
            if site.ended || self.0.iter().any(|known| (known.pid, &known.host) == (pid, &host)) {
                continue;
            }
            let (client, threads) = (site.client().clone(), Arc::<Mutex<StillThreads>>::default());
            let request = SamplingRequest {
                target: RequestTarget::Pid(pid).spec(),
                state: SampledState::Waiting,
                period: PERIOD,
                sites: true,
                ..SamplingRequest::default()
            };
            let sums = Arc::clone(&threads);
            let task = tokio::spawn(async move {
                let mut progress = Progress::new("reading the program", Format::Json);
                // Without these looks, the warning is missing and nothing else.
                let Ok(mut stream) = client.sample(request, INTERVAL, &mut progress).await else { return };
                drop(progress);
                while let Ok(Some(reading)) = stream.next(None).await {
                    lock(&sums).add(&reading);
                }
            });
            self.0.push(WaiterLooks { pid, host, threads, task });
        }
    }

    /// Warns of threads that have waited all the time.
    pub(super) fn warn(&self, format: Format) {
        let warnings = self.0.iter().filter_map(|looks| lock(&looks.threads).warning(looks.pid));
        warnings.for_each(|text| output::warn(&text, format));
    }
}

fn lock(threads: &Mutex<StillThreads>) -> MutexGuard<'_, StillThreads> {
    threads.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use ingraft_api::{NamedFunction, ThreadUsage, WaitedKind, WaitedThing};

    use super::*;

    fn usage(tid: i32, name: &str, cpu: u64) -> ThreadUsage {
        ThreadUsage {
            tid: Tid(tid),
            name: name.to_owned(),
            looks: 10,
            running: 0,
            missed: 0,
            cpu: Duration::from_micros(cpu),
            system: Duration::ZERO,
            delayed: Duration::ZERO,
            minor_faults: 0,
            major_faults: 0,
            block_delay: Duration::ZERO,
            waits: 0,
        }
    }

    fn wait(tid: i32, call: &str, functions: &[&str], owner: u32) -> SampledSite {
        let named = |name: &&str| NamedFunction {
            module: if name.starts_with("pthread") { "libc.so.6" } else { "m" }.to_owned(),
            function: (*name).to_owned(),
            ..NamedFunction::default()
        };
        let object = WaitedThing { kind: WaitedKind::Futex, owner, ..WaitedThing::default() };
        SampledSite {
            tid: Tid(tid),
            mode: SampledMode::Waiting,
            call: call.to_owned(),
            object: Some(object),
            functions: functions.iter().map(named).collect(),
            innermost: true,
            samples: 10,
        }
    }

    #[test]
    fn threads_that_wait_all_the_time_are_named() {
        let mut threads = StillThreads::default();
        let lock = &["pthread_mutex_lock", "transfer", "main"];
        let reading = |cpu, other: &str| SamplingReading {
            usage: vec![usage(1, "a", 0), usage(2, "b", 0), usage(3, "c", cpu), usage(4, "d", 0), usage(5, "e", 0)],
            sites: vec![
                wait(1, "futex", lock, 2),
                wait(2, "futex", lock, 1),
                wait(3, "futex", lock, 1),
                wait(4, "futex", &["pthread_mutex_lock", other], 0),
                wait(5, "epoll_wait", &["epoll_wait", "serve"], 0),
                SampledSite { mode: SampledMode::Stopped, ..wait(1, "no system call", &[], 0) },
            ],
            ..SamplingReading::default()
        };
        threads.add(&reading(0, "f"));
        threads.add(&reading(2000, "g"));
        expect!["2 threads of process 7 waited for a lock all the time, so these calls are in no context: thread 1 a in transfer (pthread_mutex_lock, held by thread 2); thread 2 b in transfer (pthread_mutex_lock, held by thread 1); a deadlock: each of the threads 1, 2 waits for the next one"]
            .assert_eq(&threads.warning(7).expect("a warning"));
        // They have ended.
        threads.add(&SamplingReading::default());
        assert_eq!(threads.warning(7), None);
    }

    #[test]
    fn only_mutexes_tell_their_holders() {
        let held = |function| owner(&wait(1, "futex", &[function, "f"], 2));
        assert_eq!((held("pthread_mutex_lock"), held("std::sys::sync::Mutex::lock_contended")), (Some(2), None));
    }

    #[test]
    fn threads_that_wait_in_a_circle_are_found() {
        let found = |pairs: &[(u32, u32)]| circle(&pairs.iter().copied().collect());
        assert_eq!(found(&[(1, 2), (2, 3), (3, 2)]), [2, 3]);
        assert_eq!(found(&[(4, 5), (5, 6), (6, 4)]), [4, 5, 6]);
        assert!(found(&[(1, 2), (2, 3)]).is_empty() && found(&[]).is_empty());
        assert_eq!(found(&[(9, 9)]), [9], "a thread that waits for itself");
    }
}
