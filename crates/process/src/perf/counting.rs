//! The events of a process, thread by thread.
//!
//! Each thread that exists at the beginning has two counters. The first is inherited by the threads that it creates, so that their events
//! are counted however short they live. The second counts the thread alone, to tell it from those. A later thread gets a counter of its own
//! when the engine finds it. Earlier events of that thread count for its process, but for no thread.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::Tid;

use super::name::PerfEvent;
use super::open::{CounterScope, EventError, PerfCounter, PerfReading};
use crate::target::Target;

/// Number of attempts to open all counters while no thread is created.
const ROUNDS: u32 = 16;

/// Count of an event since the counting began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventReading {
    /// Number of times that the event happened; for clocks, nanoseconds.
    pub events: u64,
    /// Events of each thread, including ended ones; the numbers add up to `events`. The thread `None` stands for threads that ended before
    /// they were found, and for the events of other threads before they were found.
    pub threads: Vec<(Option<Tid>, u64)>,
    /// Nanoseconds in which threads ran and the event should have been counted. `running_ns` is less if the event shared a counter of the
    /// processor with other events.
    pub enabled_ns: u64,
    /// Nanoseconds of `enabled_ns` in which the event was counted.
    pub running_ns: u64,
}

/// A thread that existed at the beginning.
#[derive(Debug)]
struct RootThread {
    tid: Tid,
    /// Counter of the thread and of the threads that it creates; `None` if only the thread itself is measured.
    with_threads: Option<CounterWithReading>,
    own: CounterWithReading,
    /// Largest part of `with_threads` so far that certainly belongs to other threads.
    others: u64,
}

/// A counter and its last reading, which remains when the counter is closed.
#[derive(Debug)]
struct CounterWithReading {
    counter: Option<PerfCounter>,
    last: PerfReading,
    /// Reading of the counter when counting began.
    before: PerfReading,
}

impl CounterWithReading {
    fn new(counter: PerfCounter) -> Self {
        CounterWithReading { counter: Some(counter), last: PerfReading::default(), before: PerfReading::default() }
    }

    fn begin(&mut self) {
        self.read();
        self.before = self.last;
    }

    /// Returns the number of events since the beginning.
    fn read(&mut self) -> u64 {
        if let Some(now) = self.counter.as_ref().and_then(PerfCounter::read) {
            self.last = now;
        }
        self.last.events.saturating_sub(self.before.events)
    }

    fn times(&self) -> (u64, u64) {
        let since = |f: fn(&PerfReading) -> u64| f(&self.last).saturating_sub(f(&self.before));
        (since(|c| c.enabled_ns), since(|c| c.running_ns))
    }

    fn close(&mut self) {
        self.read();
        self.counter = None;
    }
}

/// An event that is counted in a process or in one of its threads.
#[derive(Debug)]
pub struct CountedEvents {
    event: PerfEvent,
    roots: Vec<RootThread>,
    /// Threads that were found after the beginning.
    later: Vec<(Tid, CounterWithReading)>,
    /// Threads of the last listing.
    known: BTreeSet<Tid>,
    /// Whether threads were created while the counters were opened, so that some may be missing.
    unsteady: bool,
    /// Whether only one thread is measured.
    single: bool,
}

impl CountedEvents {
    /// Starts to count an event, in all threads or in one.
    pub fn begin(target: &Target, event: &PerfEvent, only: Option<Tid>) -> Result<Self, EventError> {
        let mut counted = CountedEvents {
            event: event.clone(),
            roots: Vec::new(),
            later: Vec::new(),
            known: BTreeSet::new(),
            unsteady: false,
            single: only.is_some(),
        };
        match only {
            Some(tid) => {
                let missing = || EventError::NoThread(tid);
                target.threads()?.contains(&tid).then_some(()).ok_or_else(missing)?;
                let own = PerfCounter::open(event, tid, CounterScope::Alone)?.ok_or_else(missing)?;
                counted.roots.push(RootThread {
                    tid,
                    with_threads: None,
                    own: CounterWithReading::new(own),
                    others: 0,
                });
                counted.known.insert(tid);
            }
            None => counted.open_all(target)?,
        }
        for root in &mut counted.roots {
            // Start the thread's own counter first, so that the part of other threads is never too high, see `read`.
            root.own.begin();
            if let Some(both) = &mut root.with_threads {
                both.begin();
            }
        }
        Ok(counted)
    }

    /// Opens counters for all threads, such that every later thread inherits one of them. Threads that are created during this may have
    /// inherited a counter or not, so the function then starts anew.
    fn open_all(&mut self, target: &Target) -> Result<(), EventError> {
        for round in 1..=ROUNDS {
            let before: BTreeSet<Tid> = target.threads()?.into_iter().collect();
            let mut roots = Vec::with_capacity(before.len());
            for &tid in &before {
                let Some(both) = PerfCounter::open(&self.event, tid, CounterScope::WithThreads)? else { continue };
                let Some(own) = PerfCounter::open(&self.event, tid, CounterScope::Alone)? else { continue };
                roots.push(RootThread {
                    tid,
                    with_threads: Some(CounterWithReading::new(both)),
                    own: CounterWithReading::new(own),
                    others: 0,
                });
            }
            let steady = target.threads()?.iter().all(|tid| before.contains(tid));
            if steady || round == ROUNDS {
                self.unsteady = !steady;
                self.roots = roots;
                self.known = before;
                break;
            }
        }
        Ok(())
    }

    /// The event.
    pub fn event(&self) -> &PerfEvent {
        &self.event
    }

    /// Whether threads were created so fast that some may be missing. Values may then be too low, but never too high.
    pub fn may_miss_threads(&self) -> bool {
        self.unsteady
    }

    /// Looks for threads that were created or have ended, to count them separately.
    pub fn follow(&mut self, target: &Target) {
        if self.single {
            return;
        }
        let Ok(threads) = target.threads() else { return };
        let now: BTreeSet<Tid> = threads.into_iter().collect();
        for tid in self.known.difference(&now) {
            // The inherited counter stays open, because other threads use it.
            let roots = self.roots.iter_mut().filter(|r| r.tid == *tid).map(|r| &mut r.own);
            roots
                .chain(self.later.iter_mut().filter(|(t, _)| t == tid).map(|(_, s)| s))
                .for_each(CounterWithReading::close);
        }
        for &tid in now.difference(&self.known) {
            // If no counter can be opened for this thread, its events count for the process alone, as before it was found.
            if let Ok(Some(counter)) = PerfCounter::open(&self.event, tid, CounterScope::Alone) {
                self.later.push((tid, CounterWithReading::new(counter)));
            }
        }
        self.known = now;
    }

    /// Reads the count of the event since the counting began.
    pub fn read(&mut self) -> EventReading {
        let mut reading = EventReading::default();
        let mut rows: BTreeMap<Tid, u64> = BTreeMap::new();
        // Read these counters before the inherited ones, which include them, so that their sum is never larger.
        let later: u64 = self.later.iter_mut().map(|(tid, source)| add(&mut rows, *tid, source.read())).sum();
        let mut others = 0;
        for root in &mut self.roots {
            let own_before = root.own.read();
            let Some(both) = &mut root.with_threads else {
                reading.add(own_before, root.own.times());
                add(&mut rows, root.tid, own_before);
                continue;
            };
            let all = both.read();
            reading.add(all, both.times());
            // Events of the thread between these two readings count as its own and not as those of other threads.
            let own = root.own.read();
            root.others = root.others.max(all.saturating_sub(own)).min(all);
            others += root.others;
            add(&mut rows, root.tid, all - root.others);
        }
        // If the part of other threads was estimated too low while their parents ran, the parents' numbers are too high.
        let mut excess = later.saturating_sub(others);
        for root in &self.roots {
            let Some(row) = rows.get_mut(&root.tid).filter(|_| excess > 0) else { continue };
            let less = excess.min(*row);
            *row -= less;
            excess -= less;
        }
        reading.threads = rows.into_iter().filter(|(_, n)| *n > 0).map(|(tid, n)| (Some(tid), n)).collect();
        let told: u64 = reading.threads.iter().map(|(_, n)| n).sum();
        if let Some(rest) = reading.events.checked_sub(told).filter(|rest| *rest > 0) {
            reading.threads.push((None, rest));
        }
        reading
    }
}

fn add(rows: &mut BTreeMap<Tid, u64>, tid: Tid, events: u64) -> u64 {
    *rows.entry(tid).or_default() += events;
    events
}

impl EventReading {
    fn add(&mut self, events: u64, (enabled_ns, running_ns): (u64, u64)) {
        self.events = self.events.saturating_add(events);
        self.enabled_ns = self.enabled_ns.saturating_add(enabled_ns);
        self.running_ns = self.running_ns.saturating_add(running_ns);
    }

    /// Whether the event was counted for only a part of the time, because it shared counters of the processor with other events.
    pub fn shared_counters(&self) -> bool {
        self.running_ns < self.enabled_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_events_of_a_thread_are_counted() {
        let target = Target::open_unchecked(sys::own_pid()).expect("this process");
        let event = PerfEvent::parse("task-clock").expect("an event");
        let mut counted = CountedEvents::begin(&target, &event, Some(sys::own_tid())).expect("software events");
        let begun = std::time::Instant::now();
        while begun.elapsed() < std::time::Duration::from_millis(2) {}
        let reading = counted.read();
        assert!(reading.events > 0 && !reading.shared_counters(), "{reading:?}");
        assert_eq!(reading.threads, [(Some(sys::own_tid()), reading.events)]);
        let nobody = CountedEvents::begin(&target, &event, Some(Tid(1 << 30)));
        assert!(matches!(nobody, Err(EventError::NoThread(_))));
    }

    use crate::sys;
}
