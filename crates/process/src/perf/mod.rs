//! Events that the kernel and the processor count for each thread: perf_event_open(2), from outside. Nothing is put into a target, and none
//! of its threads is held. Readings by the threads themselves, at points, are only prepared here.

mod counting;
mod inside;
mod list;
mod name;
mod open;
mod pmu;

pub use counting::{CountedEvents, EventReading};
pub(crate) use inside::DUMMY;
pub use inside::EventAttributes;
pub use list::{ListedEvent, event_list};
pub use name::{Event, EventProblem};
pub use open::{EventError, KernelRefusal, paranoid};
