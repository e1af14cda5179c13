//! Events of the processor that the threads of a target read by themselves, with RDPMC. This file has the attributes with which their
//! counters are opened. It also tests, on a counter of this process, whether this machine permits it.

use std::path::Path;

use memmap2::MmapOptions;

use super::name::{PerfEvent, SOFTWARE};
use super::open::{EventError, KernelRefusal};
use super::pmu::DEVICES;
use crate::sys;

/// Bits of struct perf_event_attr.
const PINNED: u64 = 1 << 2;
const EXCLUDE_USER: u64 = 1 << 4;
const EXCLUDE_KERNEL: u64 = 1 << 5;
const EXCLUDE_HYPERVISOR: u64 = 1 << 6;
/// Size in bytes of the struct's second version, which has three words of configuration.
const SIZE: u64 = 72;
/// Number of readings in the test: the kernel may take the counter away during one.
const TRIES: u32 = 100;

/// The beginning of a struct perf_event_attr as words.
pub type EventAttributes = [u64; 9];

/// Attributes of an event that never happens (PERF_COUNT_SW_DUMMY), counted in user mode only.
pub(crate) const DUMMY: EventAttributes =
    [SOFTWARE as u64 | SIZE << 32, 9, 0, 0, 0, EXCLUDE_KERNEL | EXCLUDE_HYPERVISOR, 0, 0, 0];

impl PerfEvent {
    /// Attributes with which a thread opens its own counter of the event. The function first reads a counter of this process, to prove that
    /// the machine permits it.
    pub fn for_threads(&self) -> Result<EventAttributes, EventError> {
        let impossible = |why| EventError::NotAtPoints { event: self.name().to_owned(), why };
        if self.kind == SOFTWARE {
            return Err(impossible("the kernel counts it, not the processor"));
        }
        let attributes = self.attributes();
        let tid = sys::own_tid();
        let file = sys::perf_event_open_words(&attributes, tid)
            .map_err(|e| EventError::Refused { event: self.name().to_owned(), refusal: KernelRefusal::of(self, &e) })?;
        // A counter of one kind of processor may not exist on the other kind.
        if Path::new(DEVICES).join("cpu_core").exists() {
            return Err(impossible("this machine has processors of two kinds"));
        }
        let page = MmapOptions::new().len(sys::EVENT_MAPPING).map_raw_read_only(&file);
        let page =
            page.map_err(|_| impossible("the page of its counter cannot be mapped (kernel.perf_event_mlock_kb)"))?;
        let read = (0..TRIES).find_map(|_| sys::read_own_counter(&page).transpose());
        match read {
            Some(Ok(_)) => Ok(attributes),
            Some(Err(why)) => Err(impossible(why)),
            None => Err(impossible("no counter of the processor is free for it")),
        }
    }

    fn attributes(&self) -> EventAttributes {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let flags = PINNED
            | flag(!self.user, EXCLUDE_USER)
            | flag(!self.kernel, EXCLUDE_KERNEL)
            | flag(!self.kernel, EXCLUDE_HYPERVISOR);
        let [config, config1, config2] = self.config;
        [u64::from(self.kind) | SIZE << 32, config, 0, 0, 0, flags, 0, config1, config2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str) -> PerfEvent {
        PerfEvent::parse(name).expect("an event")
    }

    #[test]
    fn attributes_are_those_of_the_kernel() {
        let words = event("instructions:u").attributes();
        assert_eq!(words, [72 << 32, 1, 0, 0, 0, 1 << 2 | 1 << 5 | 1 << 6, 0, 0, 0]);
        let words = event("r1a8:k").attributes();
        assert_eq!(words, [4 | 72 << 32, 0x1a8, 0, 0, 0, 1 << 2 | 1 << 4, 0, 0, 0]);
    }

    #[test]
    fn only_the_processors_events_are_read_by_threads() {
        let refused = event("cpu-migrations").for_threads().expect_err("the kernel's own");
        assert!(matches!(refused, EventError::NotAtPoints { .. }), "{refused}");
        match event("instructions:u").for_threads() {
            Ok(attributes) => assert_eq!(attributes[1], 1),
            Err(e) => println!("skipped: RDPMC has never run here ({e})"),
        }
        // While the counter is open, its page says that page faults cannot be read by RDPMC.
        let faults = event("page-faults:u").attributes();
        let file = sys::perf_event_open_words(&faults, sys::own_tid()).expect("software events");
        let page = MmapOptions::new().len(sys::EVENT_MAPPING).map_raw_read_only(&file).expect("its page");
        assert!(sys::read_own_counter(&page).is_err());
    }
}
