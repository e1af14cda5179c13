//! Events that the kernel and the processor count for each thread, opened from outside by perf_event_open(2). They need no memory in a
//! target, and no thread is held. For readings by the threads themselves, at points, this folder has only the preparation.

mod counting;
mod inside;
mod list;
mod name;
mod open;
mod pmu;
mod sampling;

pub use counting::{CountedEvents, EventReading};
pub(crate) use inside::DUMMY;
pub use inside::EventAttributes;
pub use list::{ListedEvent, event_list};
pub use name::{EventProblem, PerfEvent};
pub use open::{EventError, KernelRefusal, paranoid};
pub use sampling::{SampledRegisters, ThreadSample, ThreadSampler};
