//! Events that the kernel counts for each thread of the target. The engine reads them, without code and without a stop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ingraft_mdl::{Evaluator, Library};
use ingraft_model::{Flavor, MetricInfo, Tid};
use ingraft_process::{CountedEvents, EventError, EventReading, KernelRefusal, PerfEvent, Target};

use crate::api::{CountedTime, MetricFocus};
use crate::error::{Error, Reason};
use crate::program::modules::Modules;
use crate::readings::values::Raw;

/// The event of a pair.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    /// The metric of the pair.
    pub metric: Arc<MetricInfo>,
    event: PerfEvent,
    /// The only thread whose events count; `None` for all threads.
    thread: Option<Tid>,
}

/// An event that is being counted; all its views read the same counters.
#[derive(Clone, Debug)]
pub(super) struct EventCounting(Arc<Mutex<CountedEvents>>);

/// The event that a pair of a request asks for, if its metric is an event without code and its focus restricts no code.
pub(super) fn of_pair(
    library: &Library,
    pair: &MetricFocus,
    flavors: &[Flavor],
    modules: &Modules,
) -> Result<Option<Wish>, Error> {
    let restricted = ["Code", "SyncObject"].iter().any(|root| pair.focus.part(root).is_some());
    let Some(name) = library.event(&pair.metric).filter(|_| !restricted) else { return Ok(None) };
    let evaluated =
        Evaluator::new(library, modules, flavors).evaluate(&pair.metric, &pair.focus).map_err(Error::mdl)?;
    let instrumentation = evaluated.instrumentation;
    let event = PerfEvent::parse(name).map_err(|e| refused(e.into()))?;
    Ok(Some(Wish { metric: instrumentation.metric, event, thread: instrumentation.thread }))
}

/// The error for an event that cannot be counted.
pub(crate) fn refused(e: EventError) -> Error {
    let reason = match &e {
        EventError::Problem(_) => Reason::NoSuchEvent,
        EventError::NoThread(_) => Reason::NoSuchThread,
        EventError::NotAtPoints { .. } => Reason::EventNotAtPoints,
        EventError::Refused { refusal: KernelRefusal::Forbidden { .. }, .. } => Reason::EventForbidden,
        EventError::Refused { refusal: KernelRefusal::TooManyFiles, .. } => Reason::TooManyFiles,
        EventError::Refused { .. } => Reason::EventNotCounted,
        EventError::Process(_) => Reason::Process,
    };
    Error::new(reason, e.to_string(), e.hint())
}

impl Wish {
    /// Begins to count the event.
    pub fn begin(&self, target: &Target) -> Result<EventCounting, Error> {
        let counted = CountedEvents::begin(target, &self.event, self.thread).map_err(|e| match e {
            EventError::Process(e) => Error::process(target.pid(), e),
            other @ (EventError::Problem(_)
            | EventError::Refused { .. }
            | EventError::NotAtPoints { .. }
            | EventError::NoThread(_)) => refused(other).about(target.pid()),
        })?;
        Ok(EventCounting(Arc::new(Mutex::new(counted))))
    }

    /// The only thread whose events count; `None` for all threads.
    pub fn thread(&self) -> Option<Tid> {
        self.thread
    }
}

impl EventCounting {
    fn lock(&self) -> MutexGuard<'_, CountedEvents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The warning that the values may lack threads, if that is so.
    pub fn warning(&self) -> Option<String> {
        let counted = self.lock();
        counted.may_miss_threads().then(|| {
            format!(
                "threads began too fast while `{}` was turned on: those that began then, and what they begin, may be missing",
                counted.event()
            )
        })
    }

    /// Counts by thread, and the time for which the event was counted, if that was not all the time.
    pub fn rows(&self) -> (impl Iterator<Item = (Option<Tid>, Raw)>, Option<CountedTime>) {
        let reading = self.lock().read();
        let EventReading { enabled_ns, running_ns, .. } = reading;
        let counted = reading.shared_counters().then_some(CountedTime { enabled_ns, running_ns });
        let raw = |events: u64| Raw { value: i64::try_from(events).unwrap_or(i64::MAX), ..Raw::default() };
        (reading.threads.into_iter().map(move |(tid, events)| (tid, raw(events))), counted)
    }

    /// Looks for threads that have begun or ended.
    pub fn follow(&self, target: &Target) {
        self.lock().follow(target);
    }
}
