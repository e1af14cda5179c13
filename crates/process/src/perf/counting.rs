//! The events of a process, thread by thread.
//!
//! Each thread that is there at the beginning has two counters: one that the threads inherit which it begins, so that nothing is lost of
//! them however short they live, and one of its own, so that it can be told from them. A thread that begins later gets one of its own when it
//! is found; what it did before is its process's, but no thread's.

use std::collections::{BTreeMap, BTreeSet};

use ingraft_model::Tid;

use super::name::Event;
use super::open::{Count, Counter, EventError, Scope};
use crate::target::Target;

/// Number of attempts to list the threads without one beginning meanwhile.
const ROUNDS: u32 = 16;

/// Count of an event since the counting began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventReading {
    /// Number of times that the event happened; for clocks, nanoseconds.
    pub events: u64,
    /// Share of `events` of each thread, ended ones too; the shares add up to `events`. `None` as the thread: threads that ended before
    /// they were found, and the work of other threads before they were found.
    pub threads: Vec<(Option<Tid>, u64)>,
    /// Nanoseconds in which threads ran and the event should have been counted. `running_ns` is less if the event shared a counter of the
    /// processor with others.
    pub enabled_ns: u64,
    /// Nanoseconds of `enabled_ns` in which the event was counted.
    pub running_ns: u64,
}

/// A thread that was there at the beginning.
#[derive(Debug)]
struct Root {
    tid: Tid,
    /// Counter of the thread and of the threads that it begins; `None` if only the thread itself is wanted.
    with_threads: Option<Source>,
    own: Source,
    /// Part of `with_threads` that certainly belongs to other threads.
    others: u64,
}

/// A counter, and its last reading: that stays when the counter is closed.
#[derive(Debug)]
struct Source {
    counter: Option<Counter>,
    last: Count,
    /// Reading of the counter when counting began.
    before: Count,
}

impl Source {
    fn new(counter: Counter) -> Self {
        Source { counter: Some(counter), last: Count::default(), before: Count::default() }
    }

    fn begin(&mut self) {
        self.read();
        self.before = self.last;
    }

    /// Events since the beginning.
    fn read(&mut self) -> u64 {
        if let Some(now) = self.counter.as_ref().and_then(Counter::read) {
            self.last = now;
        }
        self.last.events.saturating_sub(self.before.events)
    }

    fn times(&self) -> (u64, u64) {
        let since = |f: fn(&Count) -> u64| f(&self.last).saturating_sub(f(&self.before));
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
    event: Event,
    roots: Vec<Root>,
    /// Threads that were found later.
    later: Vec<(Tid, Source)>,
    /// The threads that were there when they were last looked for.
    known: BTreeSet<Tid>,
    /// Threads began while the counters were opened: the number of missing threads is not known.
    unsteady: bool,
    /// Only one thread is wanted.
    single: bool,
}

impl CountedEvents {
    /// Counts an event of all threads from now on, or of one.
    pub fn begin(target: &Target, event: &Event, only: Option<Tid>) -> Result<Self, EventError> {
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
                let own = Counter::open(event, tid, Scope::Alone)?.ok_or_else(missing)?;
                counted.roots.push(Root { tid, with_threads: None, own: Source::new(own), others: 0 });
                counted.known.insert(tid);
            }
            None => counted.open_all(target)?,
        }
        for root in &mut counted.roots {
            // The thread's own counter begins first: the part of others is never overrated, see `read`.
            root.own.begin();
            if let Some(both) = &mut root.with_threads {
                both.begin();
            }
        }
        Ok(counted)
    }

    /// Opens counters for all threads, such that every later thread inherits from one of them. Threads that begin while this goes on may or
    /// may not have inherited: then all begins anew.
    fn open_all(&mut self, target: &Target) -> Result<(), EventError> {
        for round in 1..=ROUNDS {
            let before: BTreeSet<Tid> = target.threads()?.into_iter().collect();
            let mut roots = Vec::with_capacity(before.len());
            for &tid in &before {
                let Some(both) = Counter::open(&self.event, tid, Scope::WithThreads)? else { continue };
                let Some(own) = Counter::open(&self.event, tid, Scope::Alone)? else { continue };
                roots.push(Root { tid, with_threads: Some(Source::new(both)), own: Source::new(own), others: 0 });
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
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// Whether threads began so fast that some may have been missed: then values may be too low, never too high.
    pub fn may_miss_threads(&self) -> bool {
        self.unsteady
    }

    /// Looks for threads that have begun or ended, so that they are told apart.
    pub fn follow(&mut self, target: &Target) {
        if self.single {
            return;
        }
        let Ok(threads) = target.threads() else { return };
        let now: BTreeSet<Tid> = threads.into_iter().collect();
        for tid in self.known.difference(&now) {
            // the counter that others inherit stays
            let roots = self.roots.iter_mut().filter(|r| r.tid == *tid).map(|r| &mut r.own);
            roots.chain(self.later.iter_mut().filter(|(t, _)| t == tid).map(|(_, s)| s)).for_each(Source::close);
        }
        for &tid in now.difference(&self.known) {
            // Without descriptors for this thread, its events are those of the process, as before it was found.
            if let Ok(Some(counter)) = Counter::open(&self.event, tid, Scope::Alone) {
                self.later.push((tid, Source::new(counter)));
            }
        }
        self.known = now;
    }

    /// Reads the count of the event since the counting began.
    pub fn read(&mut self) -> EventReading {
        let mut reading = EventReading::default();
        let mut rows: BTreeMap<Tid, u64> = BTreeMap::new();
        // Read these before the counters that include them, so that they are never more than those.
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
            // Events of the thread between the two readings are its own, not those of others.
            let own = root.own.read();
            root.others = root.others.max(all.saturating_sub(own)).min(all);
            others += root.others;
            add(&mut rows, root.tid, all - root.others);
        }
        // The part of others was underrated while their parents worked: then the parents have too much.
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

    /// Whether the event was counted only in a part of the time, because others wanted the same counters of the processor.
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
        let event = Event::parse("task-clock").expect("an event");
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
