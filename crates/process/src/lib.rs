//! All operations on another process: finding and reading it, holding its threads, making system calls in one of them, and applying patch
//! plans as a whole or not at all.
//!
//! The safety of the target comes first: if the engine dies at any moment, the target continues correctly. One engine thread holds the
//! threads for each operation, and when it ends, the kernel releases them all. A borrowed thread returns by itself. Text is written only
//! where no thread is. No thread is held between two calls, and no call waits without a limit.
//!
//! All calls block, so they are made from ordinary threads and not from an async runtime.

#![warn(clippy::too_many_lines)]

mod access;
mod acting;
mod apply;
mod area;
mod bases;
mod bound;
mod buffer;
mod cgroup;
mod clock;
mod counter;
mod descriptor;
mod dispatch;
mod error;
mod fault;
mod fibres;
mod files;
mod frame;
mod gadgets;
mod gap;
mod goroutines;
mod handlers;
mod holds;
mod hosts;
mod lend;
mod limits;
mod module;
mod own_code;
mod pages;
mod perf;
mod procfs;
mod remote;
mod rights;
mod room;
mod seal;
mod sharers;
mod shortage;
mod signs;
mod slots;
mod spawn;
mod stack;
mod survey;
mod suspended;
mod switches;
mod sys;
mod target;
mod traced;
mod tracer;
mod vectors;
mod visit;
mod wards;

pub use access::{ProcessInfo, attachable, children, describe, find_by_name, has_memory, parent_and_title, processes};
pub use acting::Acting;
pub use apply::{Applied, FaultFrames, Options, ThreadBase};
pub use area::{Children, Claim, SharedArea};
pub use buffer::ThreadBuffer;
pub use cgroup::{NoGroup, in_control_group};
pub use clock::{ClockChoice, ClockProblem, TickClock, UnknownClock};
pub use descriptor::inherited;
pub use error::{ApplyError, Denial, Error};
pub use fibres::Preemption;
pub use files::read_named;
pub use goroutines::Goroutines;
pub use limits::MemoryNeed;
pub use module::{FileSource, MappedFile, loads};
pub use pages::Touched;
pub use perf::{
    CountedEvents, Event, EventAttributes, EventError, EventProblem, EventReading, KernelRefusal, ListedEvent,
    event_list, paranoid,
};
pub use procfs::{Mapping, Status, boot_id};
pub use remote::Remote;
pub use rights::{Rights, permitted};
pub use room::{DataAreaRequest, MAPS_NAME};
pub use shortage::{MemoryLimit, MemoryRoom, Shortage};
pub use spawn::{Start, Streams, spawn};
pub use stack::contains;
pub use survey::{ID_OFFSETS, Survey, ThreadFacts};
pub use suspended::Words;
pub use sys::{abort_after, before_steps, steps, thread_exists};
pub use target::{AT_BASE, AT_ENTRY, AT_HWCAP2, AT_SYSINFO_EHDR, ExitStatus, HWCAP2_FSGSBASE, Identity, Target};
pub use traced::Bounded;
pub use vectors::vector_state;
pub use visit::{Held, HeldRegisters, HeldThread, Visitor};
