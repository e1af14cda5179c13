//! The counters of a target: which of them are free, and the numbers of the processor events that code reads.

use std::ops::Range;
use std::sync::Arc;

use ingraft_model::layout::{DEFAULT_STRIDE, EVENTS_MAX};
use ingraft_model::{DataArea, Instrumentation, Shape, Variable};
use ingraft_process::EventAttributes;

use crate::error::{Error, Reason};
use crate::measure::event_places::EventPlaces;
use crate::measure::sizes;

use super::free_counters::CounterAllocator;

/// Number of counters in a cache line.
const LINE: u32 = 8;

/// The counters of a target.
#[derive(Debug)]
pub struct CounterPool {
    free: CounterAllocator,
    events: EventPlaces,
    /// Distance between shards that the first request needs; used before the data area exists.
    stride: u64,
}

impl Default for CounterPool {
    fn default() -> Self {
        CounterPool::starting_at(0)
    }
}

impl CounterPool {
    /// Begins after the counters that a taken-over target already uses.
    pub fn starting_at(next: u32) -> Self {
        CounterPool {
            free: CounterAllocator::starting_at(next),
            events: EventPlaces::default(),
            stride: DEFAULT_STRIDE,
        }
    }

    /// One more than the highest counter ever used.
    pub fn used(&self) -> u32 {
        self.free.used()
    }

    /// Distance between the shards of a data area that is about to be created.
    pub fn stride(&self) -> u64 {
        self.stride
    }

    /// Sets the distance between the shards of a data area that is about to be created.
    pub fn set_stride(&mut self, stride: u64) {
        self.stride = stride;
    }

    /// Number of counters that a shard of the target has, or will have if there is no data area yet.
    pub fn limit(&self, area: Option<DataArea>) -> u32 {
        area.map_or_else(|| sizes::counters_in(self.stride), |area| area.counters())
    }

    /// The first of `count` consecutive free counters, all below `limit`.
    pub fn take(&mut self, count: u32, limit: u32) -> Option<u32> {
        self.free.take(count, limit)
    }

    /// Frees counters, which must have been cleared.
    pub fn give_back(&mut self, first: u32, count: u32) {
        self.free.give_back(first, count);
    }

    /// Counters for all variables. Small variables come first, so that those which one call changes share cache lines with the beginning of a
    /// large one. Fails, and takes none, if they do not fit.
    pub fn take_for(&mut self, variables: &[Variable], limit: u32) -> Result<Vec<u32>, Error> {
        let mut firsts = vec![0; variables.len()];
        let all = || variables.iter().map(|variable| variable.shape.slots()).zip(0..);
        let (large, small): (Vec<_>, Vec<_>) = all().partition(|(slots, _)| *slots > LINE);
        let mut taken: Vec<(u32, u32)> = Vec::with_capacity(variables.len());
        for (slots, index) in small.into_iter().chain(large) {
            let Some(first) = self.free.take(slots, limit) else {
                taken.into_iter().for_each(|(first, slots)| self.free.give_back(first, slots));
                return Err(too_many(limit));
            };
            taken.push((first, slots));
            firsts[index] = first;
        }
        Ok(firsts)
    }

    /// Numbers by which the code of a new pair names its variables: a counter of its own, the number of the processor event, or the counter of
    /// another pair. `attributes` returns the attributes of an event that no code reads yet. Fails, and takes nothing, if something does not
    /// fit.
    pub fn bind(
        &mut self,
        instrumentation: &Instrumentation,
        limit: u32,
        attributes: impl FnOnce(&str) -> Result<EventAttributes, Error>,
    ) -> Result<Vec<u32>, Error> {
        let event = instrumentation.event.as_ref().map(|name| self.take_event(name, attributes)).transpose()?;
        let mut numbers = self.take_for(&instrumentation.variables, limit).inspect_err(|_| {
            event.into_iter().for_each(|event| self.drop_event(event));
        })?;
        for (variable, number) in instrumentation.variables.iter().zip(&mut numbers) {
            match variable.shape {
                Shape::Event => *number = event.unwrap_or_default(),
                Shape::Alias(counter) => *number = counter,
                _ => {}
            }
        }
        Ok(numbers)
    }

    fn take_event(
        &mut self,
        name: &Arc<str>,
        attributes: impl FnOnce(&str) -> Result<EventAttributes, Error>,
    ) -> Result<u32, Error> {
        self.events.take(name, || attributes(name))?.ok_or_else(|| {
            let what = format!("threads read {EVENTS_MAX} events of the processor themselves already");
            Error::new(Reason::TooManyEvents, what, "end another measurement")
        })
    }

    /// Undoes [`CounterPool::bind`] of a pair whose code was never inserted.
    pub fn unbind(&mut self, variables: &[Variable], numbers: &[u32]) {
        for (number, variable) in numbers.iter().zip(variables) {
            self.free.give_back(*number, variable.shape.slots());
            if variable.shape == Shape::Event {
                self.drop_event(*number);
            }
        }
    }

    /// Removes one user of an event that no thread has opened.
    fn drop_event(&mut self, number: u32) {
        if self.events.leave(number) {
            self.events.free(number);
        }
    }

    /// Removes one user of an event. Returns whether it was the last; then threads must close it before [`CounterPool::free_event`].
    pub fn leave_event(&mut self, number: u32) -> bool {
        self.events.leave(number)
    }

    /// Frees the number of an event without users that no thread has open.
    pub fn free_event(&mut self, number: u32) {
        self.events.free(number);
    }

    /// Attributes with which threads open their counters of events, each with the number of its event.
    pub fn events(&self) -> impl Iterator<Item = (u32, &EventAttributes)> {
        self.events.attributes()
    }

    /// Forgets the events, because nothing is in the target any more.
    pub fn forget_events(&mut self) {
        self.events = EventPlaces::default();
    }

    /// Frees all counters except those in the sorted ranges `reached`. Returns the free ones among those that were used before, which must be
    /// cleared.
    pub fn reuse_all_but(&mut self, reached: &[Range<u32>]) -> impl Iterator<Item = Range<u32>> {
        self.free = CounterAllocator::without(self.free.used(), reached);
        self.free.free()
    }
}

/// The error for a request that needs more counters than a shard has.
pub fn too_many(limit: u32) -> Error {
    let what = format!("more than {limit} counters would be needed in one process");
    let hint = "measure fewer functions at a time, or end the other measurements of the process first: the first one sets the room";
    Error::new(Reason::TooManyCounters, what, hint)
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Resolution, VariableKind};

    use super::*;
    use crate::pairs::tests::{instrumentation, variable};

    fn attributes(_: &str) -> Result<EventAttributes, Error> {
        Ok([7; 9])
    }

    fn of(shapes: &[Shape]) -> Instrumentation {
        instrumentation(shapes.iter().map(|shape| variable(VariableKind::Scratch, *shape)).collect())
    }

    #[test]
    fn variables_get_adjacent_counters_or_none() {
        let mut counters = CounterPool::default();
        let variables = of(&[Shape::Counter, Shape::Activations, Shape::Counter]).variables;
        assert_eq!(counters.take_for(&variables, 6).expect("6 fit"), [0, 1, 5]);
        let free = |counters: &mut CounterPool| counters.take(1, 8);
        // 2 are left: the first variable fits, the second does not, and the first one's counter is free again
        assert_eq!(counters.take_for(&variables, 8).map_err(|e| e.reason), Err(Reason::TooManyCounters));
        assert_eq!([free(&mut counters), free(&mut counters), free(&mut counters)], [Some(6), Some(7), None]);
        assert_eq!(counters.take_for(&[], 0).expect("nothing needs nothing"), Vec::<u32>::new());
    }

    #[test]
    fn large_variables_follow_the_small_ones() {
        let mut counters = CounterPool::default();
        let histogram = Shape::Histogram(Resolution::Coarse);
        let variables = of(&[histogram, Shape::Activations, histogram, Shape::Counter]).variables;
        let second = 5 + histogram.slots();
        assert_eq!(counters.take_for(&variables, 1 << 20).expect("room"), [5, 0, second, 4]);
    }

    #[test]
    fn an_event_and_an_alias_take_no_counters() {
        let mut counters = CounterPool::default();
        let mut reads = of(&[Shape::Counter, Shape::Event, Shape::Alias(77), Shape::Counter]);
        reads.event = Some("cycles".into());
        let mut other = of(&[Shape::Event]);
        other.event = Some("instructions".into());
        assert_eq!(counters.bind(&reads, 100, attributes).expect("room"), [0, 0, 77, 1]);
        assert_eq!(counters.bind(&other, 100, attributes).expect("room"), [1]);
        assert_eq!(counters.bind(&reads, 100, attributes).expect("room"), [2, 0, 77, 3], "the event is known");
        assert_eq!(counters.used(), 4);
        counters.unbind(&reads.variables, &[2, 0, 77, 3]);
        assert_eq!(counters.events().count(), 2, "another pair reads the event");
        counters.unbind(&reads.variables, &[0, 0, 77, 1]);
        assert_eq!(counters.events().map(|(number, _)| number).collect::<Vec<_>>(), [1]);
        assert_eq!(counters.bind(&of(&[Shape::Counter]), 100, attributes).expect("room"), [0]);
    }

    #[test]
    fn a_pair_that_does_not_fit_takes_no_event() {
        let mut counters = CounterPool::default();
        let mut reads = of(&[Shape::Counter, Shape::Event]);
        reads.event = Some("cycles".into());
        assert_eq!(counters.bind(&reads, 0, attributes).map_err(|e| e.reason), Err(Reason::TooManyCounters));
        assert_eq!(counters.events().count(), 0);
        let refused = |_: &str| Err(Error::new(Reason::NoSuchEvent, "", ""));
        assert_eq!(counters.bind(&reads, 9, refused).map_err(|e| e.reason), Err(Reason::NoSuchEvent));
        assert_eq!((counters.events().count(), counters.used()), (0, 0));
        for n in 0..EVENTS_MAX {
            reads.event = Some(format!("event {n}").into());
            counters.bind(&reads, 100, attributes).expect("room");
        }
        reads.event = Some("one too many".into());
        assert_eq!(counters.bind(&reads, 100, attributes).map_err(|e| e.reason), Err(Reason::TooManyEvents));
        assert_eq!(counters.used(), EVENTS_MAX);
    }

    #[test]
    fn an_event_is_freed_after_its_last_user() {
        let mut counters = CounterPool::default();
        let mut reads = of(&[Shape::Event]);
        reads.event = Some("cycles".into());
        counters.bind(&reads, 9, attributes).expect("room");
        counters.bind(&reads, 9, attributes).expect("room");
        assert_eq!([counters.leave_event(0), counters.leave_event(0)], [false, true]);
        assert_eq!(counters.events().count(), 1, "threads have it open");
        counters.free_event(0);
        assert_eq!(counters.events().count(), 0);
    }

    #[test]
    fn counters_that_no_thread_reaches_are_reused() {
        for (used, reached, free) in [
            (10, &[][..], &[(0, 10)][..]),
            (10, &[(0, 10)], &[]),
            (10, &[(2, 4), (6, 7)], &[(0, 2), (4, 6), (7, 10)]),
            (3, &[(5, 8)], &[(0, 5)]),
            (0, &[], &[]),
        ] {
            let mut counters = CounterPool::starting_at(used);
            let reached: Vec<Range<u32>> = reached.iter().map(|(start, end)| *start..*end).collect();
            let reused = counters.reuse_all_but(&reached).map(|range| (range.start, range.end));
            assert_eq!(reused.collect::<Vec<_>>(), free, "{used} {reached:?}");
            let end = reached.last().map_or(used, |range| range.end.max(used));
            assert_eq!(counters.used(), end);
        }
    }
}
