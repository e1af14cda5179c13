//! Blocks of memory that are not freed yet, by calling context: a table from addresses to blocks, from the records of all threads.
//!
//! An address may be freed by one thread and be given to another one at once, so records of all threads are applied in the order of their
//! times. A record has the time at which a call of a function that allocates ends, or at which one that frees begins. So between two times of an
//! address nobody else has it. Records whose time is after the beginning of a round in which buffers are drained wait for the next round, because
//! earlier ones of other threads may not have been drained yet.
//!
//! A thread may be interrupted after it has read the clock and before its record is complete. Such a record comes late. So for a while the
//! table keeps the times of blocks whose address was allocated again before they were freed ([`LiveBlocks::replaced`]), and of blocks that were
//! freed before they were allocated ([`LiveBlocks::freed`]), and a late record finds its other half there.

use ingraft_model::records::TakenRecord;
use rustc_hash::FxHashMap;

use super::code::{BEGINS, ENDS, FREED, KINDS};

/// Largest number of blocks in the table. They take some 300 MB.
const BLOCKS_MAX: usize = 7_000_000;
/// Number of rounds for which late records are waited for, at least; at most twice as many.
const LATE_ROUNDS: u32 = 100;
/// Largest number of addresses for which late records are waited for.
const LATE_MAX: usize = 1 << 20;
/// Number of ticks within which the times of two threads may be in the wrong order: the processor may read the clock before it has finished
/// earlier instructions.
const NEAR: u64 = 1 << 12;
/// Largest number of calls in progress of a thread whose records wait for their ends.
const OPEN_MAX: usize = 16;

/// A context as records name it: 0 outside of all contexts, otherwise 1 plus its index in the tree of the records.
pub type ContextNumber = u32;

/// A step in the life of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Time in ticks.
    pub time: u64,
    /// Address of the block.
    pub address: u64,
    /// Size in bytes and context of a block that was allocated; `None` of one that is freed.
    pub allocated: Option<(u64, ContextNumber)>,
}

/// Makes events of the records of threads.
#[derive(Debug, Default)]
pub struct EventReader {
    /// For each stream the calls whose beginnings were recorded and whose ends were not, the innermost last.
    open: FxHashMap<u32, Vec<OpenAllocation>>,
}

/// A call of a function that allocates, which goes on.
#[derive(Clone, Copy, Debug)]
struct OpenAllocation {
    /// Index of the function among those that allocate or free.
    function: u16,
    /// Time in ticks at which it began.
    began: u64,
    /// Address of the block that it gives back, or 0.
    old: u64,
    /// Number of bytes that it is asked for.
    size: u64,
    /// Context of the call; `None` of a call inside of another one that allocates or frees.
    context: Option<ContextNumber>,
}

/// Memory that is live in a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveSum {
    /// Number of bytes that were asked for.
    pub bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
}

/// A block that is live.
#[derive(Clone, Copy, Debug)]
struct LiveBlock {
    /// Time in ticks at which it was allocated.
    time: u64,
    /// Size in bytes.
    size: u64,
    context: ContextNumber,
}

/// Times in ticks by address, of the present rounds and of those before.
#[derive(Debug, Default)]
struct RecentTimes {
    present: FxHashMap<u64, Vec<u64>>,
    before: FxHashMap<u64, Vec<u64>>,
}

/// Blocks that are not freed yet.
#[derive(Debug)]
pub struct LiveBlocks {
    blocks: FxHashMap<u64, LiveBlock>,
    /// Largest number of blocks.
    most: usize,
    /// Live memory by context.
    sums: Vec<LiveSum>,
    /// Times at which blocks were allocated whose address was allocated again before a record told that they were freed.
    replaced: RecentTimes,
    /// Times at which blocks were freed that are not in the table.
    freed: RecentTimes,
    /// Number of rounds since the times were old.
    rounds: u32,
    /// Number of blocks that were freed, and whose allocation was not seen.
    pub unknown: u64,
    /// Number of blocks whose address was allocated again, and that no record has told to be freed.
    pub unfreed: u64,
    /// Number of blocks for which the table had no room.
    pub unkept: u64,
}

impl EventReader {
    /// Adds the events of a record of a stream. Records come in the order of their thread. `is_nested` tells whether a call in a context is inside of
    /// another call that allocates or frees: it is a part of that one.
    pub fn read(
        &mut self,
        stream: u32,
        record: &TakenRecord,
        is_nested: impl Fn(ContextNumber) -> bool,
        events: &mut Vec<MemoryEvent>,
    ) {
        let Some((&[time, address], rest)) = record.words.split_first_chunk::<2>() else { return };
        let Some(context) = rest.last().and_then(|context| ContextNumber::try_from(*context).ok()) else { return };
        let context = Some(context).filter(|context| !is_nested(*context));
        let (function, kind) = (record.number / KINDS, record.number % KINDS);
        if kind == FREED && context.is_some() {
            events.push(MemoryEvent { time, address, allocated: None });
        } else if kind == BEGINS {
            let open = self.open.entry(stream).or_default();
            if open.len() >= OPEN_MAX {
                open.remove(0);
            }
            let size = rest.first().copied().unwrap_or(0);
            open.push(OpenAllocation { function, began: time, old: address, size, context });
        } else if kind == ENDS
            && let Some(OpenAllocation { began, old, size, context: Some(context), .. }) = self.begun(stream, function)
        {
            // A call that fails leaves the block as it is. One for no bytes frees it, and allocates nothing.
            if old != 0 && (address != 0 || size == 0) {
                events.push(MemoryEvent { time: began, address: old, allocated: None });
            }
            if address != 0 {
                events.push(MemoryEvent { time, address, allocated: Some((size, context)) });
            }
        }
    }

    /// Takes the innermost call of a function, which ends. Forgets calls inside of it that have no end. `None` of a call that began before the
    /// measurement, or whose beginning was lost.
    fn begun(&mut self, stream: u32, function: u16) -> Option<OpenAllocation> {
        let open = self.open.get_mut(&stream)?;
        let at = open.iter().rposition(|of| of.function == function)?;
        let begun = open.get(at).copied();
        open.truncate(at);
        if open.is_empty() {
            self.open.remove(&stream);
        }
        begun
    }
}

impl RecentTimes {
    fn add(&mut self, address: u64, time: u64) {
        self.present.entry(address).or_default().push(time);
    }

    /// Takes the time of an address that comes first by this key, among those that are wanted.
    fn take(&mut self, address: u64, wanted: impl Fn(u64) -> bool, key: impl Fn(u64) -> u64) -> Option<u64> {
        let first = |of: &FxHashMap<u64, Vec<u64>>| {
            let times = of.get(&address)?.iter().copied();
            times.filter(|time| wanted(*time)).min_by_key(|time| key(*time))
        };
        let (present, before) = (first(&self.present), first(&self.before));
        let best = present.into_iter().chain(before).min_by_key(|time| key(*time))?;
        let map = if present == Some(best) { &mut self.present } else { &mut self.before };
        let times = map.get_mut(&address)?;
        if let Some(at) = times.iter().position(|time| *time == best) {
            times.swap_remove(at);
        }
        if times.is_empty() {
            map.remove(&address);
        }
        Some(best)
    }

    fn grow_old(&mut self) {
        self.before = std::mem::take(&mut self.present);
    }
}

impl Default for LiveBlocks {
    fn default() -> Self {
        LiveBlocks::with_room(BLOCKS_MAX)
    }
}

impl LiveBlocks {
    /// A table with room for so many blocks.
    fn with_room(most: usize) -> Self {
        LiveBlocks {
            blocks: FxHashMap::default(),
            most,
            sums: Vec::new(),
            replaced: RecentTimes::default(),
            freed: RecentTimes::default(),
            rounds: 0,
            unknown: 0,
            unfreed: 0,
            unkept: 0,
        }
    }

    /// Memory that is live in a context.
    pub fn sum(&self, context: ContextNumber) -> LiveSum {
        self.sums.get(context as usize).copied().unwrap_or_default()
    }

    /// Applies the events of a round, which are in the order of their times.
    pub fn apply(&mut self, events: &[MemoryEvent]) {
        for event in events {
            match event.allocated {
                Some((size, context)) => self.allocate(event.address, LiveBlock { time: event.time, size, context }),
                None => self.free(event.address, event.time),
            }
        }
        self.rounds += 1;
        let is_full = |times: &RecentTimes| times.present.len() >= LATE_MAX;
        if self.rounds >= LATE_ROUNDS || is_full(&self.freed) || is_full(&self.replaced) {
            self.rounds = 0;
            self.freed.grow_old();
            self.replaced.grow_old();
        }
    }

    fn allocate(&mut self, address: u64, block: LiveBlock) {
        // The first time after that of the block is that of its end.
        if self.freed.take(address, |time| time >= block.time, |time| time).is_some() {
            self.unknown -= 1;
            return;
        }
        match self.blocks.get(&address).copied() {
            None if self.blocks.len() >= self.most => {
                self.unkept += 1;
                return;
            }
            None => {}
            Some(known) if known.time > block.time => {
                self.unfreed += 1;
                return self.replaced.add(address, block.time);
            }
            Some(known) => {
                self.unfreed += 1;
                self.replaced.add(address, known.time);
                self.subtract(known);
            }
        }
        self.blocks.insert(address, block);
        let context = block.context as usize;
        if self.sums.len() <= context {
            self.sums.resize(context + 1, LiveSum::default());
        }
        if let Some(sum) = self.sums.get_mut(context) {
            sum.bytes = sum.bytes.wrapping_add(block.size);
            sum.blocks += 1;
        }
    }

    fn free(&mut self, address: u64, time: u64) {
        let live = self.blocks.get(&address).copied().filter(|live| live.time <= time);
        let is_near = live.is_none_or(|live| time - live.time < NEAR);
        // The last block before this time has ended.
        if is_near && self.replaced.take(address, |of| of <= time, |of| u64::MAX - of).is_some() {
            self.unfreed -= 1;
        } else if let Some(live) = live {
            self.blocks.remove(&address);
            self.subtract(live);
        } else {
            self.unknown += 1;
            self.freed.add(address, time);
        }
    }

    fn subtract(&mut self, block: LiveBlock) {
        if let Some(sum) = self.sums.get_mut(block.context as usize) {
            sum.bytes = sum.bytes.wrapping_sub(block.size);
            sum.blocks = sum.blocks.saturating_sub(1);
        }
    }
}

/// Events that wait until all earlier ones are there.
#[derive(Debug, Default)]
pub struct EventOrder {
    waiting: Vec<MemoryEvent>,
}

impl EventOrder {
    /// Adds events, in the order of each thread's records.
    pub fn add(&mut self, mut events: Vec<MemoryEvent>) {
        self.waiting.append(&mut events);
    }

    /// Takes the events up to a time, in the order of their times.
    pub fn take(&mut self, until: u64) -> Vec<MemoryEvent> {
        let (mut ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|event| event.time <= until);
        self.waiting = waiting;
        ready.sort_by_key(|event| event.time);
        ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allocated(time: u64, address: u64, size: u64, context: ContextNumber) -> MemoryEvent {
        MemoryEvent { time, address, allocated: Some((size, context)) }
    }

    fn freed(time: u64, address: u64) -> MemoryEvent {
        MemoryEvent { time, address, allocated: None }
    }

    /// Bytes in the contexts 1 and 2, and the numbers of blocks that were freed without an allocation and allocated again without a free.
    fn state(blocks: &LiveBlocks) -> ([u64; 2], [u64; 2]) {
        ([1, 2].map(|context| blocks.sum(context).bytes), [blocks.unknown, blocks.unfreed])
    }

    /// Times of different threads that are far apart.
    const T: u64 = 10 * NEAR;

    #[test]
    fn blocks_are_live_in_the_contexts_that_have_allocated_them() {
        let mut blocks = LiveBlocks::default();
        blocks.apply(&[allocated(T, 0x10, 5, 1), allocated(2 * T, 0x20, 7, 2), allocated(3 * T, 0x30, 9, 2)]);
        assert_eq!((state(&blocks), blocks.sum(2).blocks), (([5, 16], [0, 0]), 2));
        blocks.apply(&[freed(4 * T, 0x20), freed(5 * T, 0x99), allocated(6 * T, 0x20, 1, 1)]);
        assert_eq!(state(&blocks), ([6, 9], [1, 0]));
        assert_eq!(blocks.sum(7), LiveSum::default());
    }

    /// The result is the same whichever record comes late.
    #[test]
    fn late_records_find_their_other_halves() {
        let all = [
            freed(T, 0x10),
            allocated(2 * T, 0x10, 5, 1),
            freed(3 * T, 0x10),
            allocated(4 * T, 0x10, 6, 2),
            freed(5 * T, 0x10),
            allocated(6 * T, 0x10, 7, 1),
        ];
        for late in 0..all.len() {
            for later in 0..all.len() - late {
                let mut order = all.to_vec();
                order[late..=late + later].rotate_left(1);
                let mut blocks = LiveBlocks::default();
                order.iter().for_each(|event| blocks.apply(&[*event]));
                assert_eq!(state(&blocks), ([7, 0], [1, 0]), "{order:?}");
            }
        }
    }

    /// The clock of the second allocation was read a little before that of the free.
    #[test]
    fn times_that_are_near_may_be_in_the_wrong_order() {
        let mut blocks = LiveBlocks::default();
        blocks.apply(&[allocated(T, 0x10, 5, 1), allocated(2 * T, 0x10, 6, 2), freed(2 * T + NEAR / 2, 0x10)]);
        assert_eq!(state(&blocks), ([0, 6], [0, 0]));
    }

    #[test]
    fn a_full_table_counts_what_it_does_not_follow() {
        let mut blocks = LiveBlocks::with_room(2);
        blocks.apply(&[allocated(1, 0x10, 5, 1), allocated(2, 0x20, 5, 1), allocated(3, 0x30, 5, 1), freed(4, 0x30)]);
        assert_eq!((state(&blocks), blocks.unkept), (([10, 0], [1, 0]), 1));
        blocks.apply(&[freed(5, 0x10), allocated(6, 0x40, 5, 2)]);
        assert_eq!((state(&blocks), blocks.unkept), (([5, 5], [1, 0]), 1));
    }

    #[test]
    fn late_records_are_not_waited_for_for_ever() {
        let mut blocks = LiveBlocks::default();
        blocks.apply(&[freed(2, 0x10)]);
        for _ in 0..2 * LATE_ROUNDS {
            blocks.apply(&[]);
        }
        blocks.apply(&[allocated(1, 0x10, 5, 1)]);
        assert_eq!(state(&blocks), ([5, 0], [1, 0]));
    }

    #[test]
    fn events_wait_for_earlier_ones() {
        let mut order = EventOrder::default();
        order.add(vec![freed(30, 1), freed(50, 2)]);
        order.add(vec![allocated(20, 1, 1, 1), freed(40, 3), freed(40, 4)]);
        let times =
            |events: Vec<MemoryEvent>| events.into_iter().map(|event| (event.time, event.address)).collect::<Vec<_>>();
        assert_eq!(times(order.take(40)), [(20, 1), (30, 1), (40, 3), (40, 4)]);
        order.add(vec![freed(45, 5)]);
        assert_eq!(times(order.take(u64::MAX)), [(45, 5), (50, 2)]);
    }

    /// Events of records of one stream; calls in the context 9 are inside of others.
    fn events(records: &[(u16, &[u64])]) -> Vec<MemoryEvent> {
        let (mut reader, mut events) = (EventReader::default(), Vec::new());
        for (number, words) in records {
            let record = TakenRecord { number: *number, words: words.to_vec() };
            reader.read(3, &record, |context| context == 9, &mut events);
        }
        assert!(reader.open.values().flatten().count() <= 1, "{reader:?}");
        events
    }

    #[test]
    fn records_are_events() {
        let found = events(&[
            (BEGINS, &[1, 0, 100, 2]),
            (ENDS, &[2, 0x10, 0]),
            (FREED, &[3, 0x10, 4]),
            (FREED, &[3, 0x10, 9]),
            (KINDS + FREED, &[4, 0x20, 4]),
            (FREED, &[3]),
            (ENDS, &[5, 0x30, 2]),
        ]);
        assert_eq!(found, [allocated(2, 0x10, 100, 2), freed(3, 0x10), freed(4, 0x20)]);
    }

    #[test]
    fn a_block_that_grows_is_freed_when_the_call_begins() {
        let grows = |old, size, new| events(&[(BEGINS, &[1, old, size, 2]), (ENDS, &[5, new, 2])]);
        assert_eq!(grows(0x10, 70, 0x80), [freed(1, 0x10), allocated(5, 0x80, 70, 2)]);
        assert_eq!(grows(0x10, 70, 0), [], "it has failed");
        assert_eq!(grows(0x10, 0, 0), [freed(1, 0x10)], "a free");
        assert_eq!(grows(0, 70, 0x80), [allocated(5, 0x80, 70, 2)]);
    }

    /// A function ends by a jump to another one that allocates. The ends of both calls come in either order, in the context of the caller.
    #[test]
    fn a_call_inside_of_another_one_is_a_part_of_it() {
        let begins: [(u16, &[u64]); 2] = [(BEGINS, &[1, 0x10, 5, 2]), (KINDS + BEGINS, &[2, 0x10, 5, 9])];
        let inner: (u16, &[u64]) = (KINDS + ENDS, &[3, 0x20, 1]);
        let outer: (u16, &[u64]) = (ENDS, &[4, 0x20, 1]);
        for ends in [[inner, outer], [outer, inner]] {
            assert_eq!(events(&[begins, ends].concat()), [freed(1, 0x10), allocated(4, 0x20, 5, 2)]);
        }
        // A call without an end, which its thread has left.
        let left = events(&[(BEGINS, &[1, 0, 5, 2]), (KINDS + BEGINS, &[2, 0, 6, 3]), (KINDS + ENDS, &[3, 0x30, 3])]);
        assert_eq!(left, [allocated(3, 0x30, 6, 3)]);
    }
}
