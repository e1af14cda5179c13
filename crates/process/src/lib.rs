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
mod address_search;
mod apply;
mod area;
mod bases;
mod bootstrap_pointer;
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
mod gadget_search;
mod gadgets;
mod goroutines;
mod handlers;
mod holds;
mod hosts;
mod limits;
mod module;
mod pages;
mod perf;
mod procfs;
mod remote;
mod rights;
mod rights_in_force;
mod seal;
mod shadow_memory;
mod sharers;
mod shortage;
mod slots;
mod spawn;
mod stack;
mod stack_switch_signs;
mod survey;
mod suspended;
mod switches;
mod sys;
mod target;
mod target_memory;
mod thread_looks;
mod thread_usage;
mod thread_waits;
mod traced;
mod traced_threads;
mod tracer;
mod vectors;
mod visit;

pub use access::{ProcessInfo, attachable, children, describe, find_by_name, has_memory, parent_and_title, processes};
pub use apply::{Applied, ApplyOptions, FaultFrames, ThreadBase};
pub use area::{Claim, ForkChildren, SharedArea};
pub use buffer::ThreadBuffer;
pub use cgroup::{NoGroup, in_control_group};
pub use clock::{ClockChoice, ClockProblem, TickClock, UnknownClock, own_processor_time};
pub use descriptor::inherited;
pub use error::{ApplyError, Denial, ProcessError};
pub use fibres::Preemption;
pub use files::{read_named, read_named_text};
pub use goroutines::GoroutinePlaces;
pub use limits::MemoryNeed;
pub use module::{FileSource, MappedFile, loads};
pub use pages::PopulatedPages;
pub use perf::{
    CountedEvents, EventAttributes, EventError, EventProblem, EventReading, KernelRefusal, ListedEvent, PerfEvent,
    SampledRegisters, ThreadSample, ThreadSampler, event_list, paranoid,
};
pub use procfs::{Mapping, ProcStatus, boot_id, ready_threads};
pub use remote::Remote;
pub use rights::{Rights, permitted};
pub use rights_in_force::RightsInForce;
pub use shortage::{MemoryLimit, MemoryRoom, Shortage};
pub use spawn::{StandardStreams, StartStage, spawn};
pub use stack::contains;
pub use survey::{ID_OFFSETS, Survey, ThreadFacts};
pub use suspended::CodePointers;
pub use sys::{abort_after, before_steps, run_promptly, steps, thread_exists};
pub use target::{AT_BASE, AT_ENTRY, ExitStatus, ProcessIdentity, Target};
pub use target_memory::{DataAreaRequest, MAPS_NAME};
pub use thread_looks::{LookCounts, ThreadLooks, ThreadState, call_name};
pub use thread_usage::ThreadAccount;
pub use thread_waits::{SocketPeer, WaitDetails, WaitedObject, socket_inode, socket_peers};
pub use traced::HoldBound;
pub use vectors::vector_state;
pub use visit::{HeldRegisters, HeldThread, HeldThreads, Visitor};
