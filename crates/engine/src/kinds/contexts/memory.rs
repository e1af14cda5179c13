//! Records of memory: what threads allocate and free, until the measurement ends.

use std::sync::PoisonError;

use ingraft_model::{ContextShape, ContextTree};
use ingraft_process::TickClock;
use ingraft_report::LiveFacts;

use crate::api::{ContextMetric, ContextsOptions};
use crate::session::{Drained, Locked, NewBuffers, RecordContexts, Records, values_in};

use super::ContextsKind;
use super::code::CAPACITY;
use super::live::{ContextNumber, EventOrder, EventReader, LiveBlocks, LiveSum, MemoryEvent};

/// Number of bytes of records that are so many that there may be more in the buffers.
const MANY: usize = 1 << 20;
/// Largest number of times that buffers are drained in a row. If there are still many records then, they wait for the next round.
const ROUNDS_MAX: u32 = 100;

/// Memory that is not freed yet, from the records of a measurement.
#[derive(Debug, Default)]
pub struct LiveMemory {
    reader: EventReader,
    order: EventOrder,
    blocks: LiveBlocks,
    /// The contexts that the records name, when the measurement has ended.
    tree: ContextTree,
    /// Whether each of these contexts is inside of a call of a function that allocates or frees.
    nested: Vec<bool>,
    /// Number of records that were taken.
    taken: u64,
    /// Number of records that were lost.
    lost: u64,
    /// Number of buffers that the program has overwritten.
    broken: u64,
    /// Time in ticks up to which all records are applied.
    until: u64,
}

impl Records for ContextsKind {
    fn complete(bytes: &[u8]) -> Result<usize, usize> {
        Ok(bytes.len())
    }
}

/// Begins to take records from the buffers of threads. `tree` is the tree of contexts that they name.
pub fn begin(at: &Locked<'_>, first: u32, (tree, shape): (u32, ContextShape)) {
    at.begin_buffers::<ContextsKind>(NewBuffers {
        first,
        capacity: CAPACITY,
        times: false,
        waits: false,
        values: true,
        grouped: false,
        burst: None,
        contexts: Some(RecordContexts { first: tree, shape }),
    });
}

impl ContextsKind {
    /// Takes the records that threads have made, and follows the blocks that they are about.
    pub fn follow(&self, at: &Locked<'_>) {
        let Some(live) = &self.live else { return };
        if at.record_tree(|_| ()).is_none() {
            return;
        }
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        // Records that are made from now on may be drained before earlier ones of other threads.
        let now = at.wall_clock().map_or(u64::MAX, TickClock::now);
        for round in 0..ROUNDS_MAX {
            let drained = at.drain::<ContextsKind>();
            if round == 0 || !drained.is_empty() {
                at.record_tree(|tree| self.note(&mut live, tree));
            }
            let bytes: usize = drained.iter().map(|drained| drained.bytes.len()).sum();
            live.add(drained);
            if bytes < MANY {
                live.until = now;
                break;
            }
        }
        let until = live.until;
        live.apply(until);
        live.lost = at.record_counts().lost;
    }

    /// Takes the last records, after the code was taken out.
    pub fn follow_last(&self, at: &Locked<'_>) {
        let Some(live) = &self.live else { return };
        let Some(last) = at.end_buffers::<ContextsKind>() else { return };
        let mut live = live.lock().unwrap_or_else(PoisonError::into_inner);
        self.note(&mut live, &last.tree);
        live.add(last.drained);
        live.apply(u64::MAX);
        // A handler that was left while it interrupted a record keeps the later ones of its thread from being taken.
        let told = last.counts.lost.saturating_add(last.counts.skipped).saturating_add(live.taken);
        live.lost = last.counts.lost.saturating_add(last.counts.made.saturating_sub(told));
        live.tree = last.tree;
    }

    /// Notes new contexts.
    fn note(&self, live: &mut LiveMemory, tree: &ContextTree) {
        for context in tree.contexts.iter().skip(live.nested.len()) {
            let parent = context.parent.and_then(|parent| Some((parent, tree.contexts.get(parent)?)));
            let is_nested = parent.is_some_and(|(at, parent)| {
                self.memory.contains(&parent.function) || live.nested.get(at).copied().unwrap_or(false)
            });
            live.nested.push(is_nested);
        }
    }

    /// Contexts with the metrics of live memory in each; `None` without such a metric.
    pub fn live_tree(&self, at: &Locked<'_>) -> Option<ContextTree> {
        let live = self.live.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        // The buffers have ended if the code was taken out.
        let mut tree = at.record_tree(ContextTree::clone).unwrap_or_else(|| live.tree.clone());
        let metrics: Vec<ContextMetric> = ContextsOptions::values(&self.options.metrics).collect();
        let values = |number: usize| {
            let sum = live.blocks.sum(ContextNumber::try_from(number).unwrap_or(ContextNumber::MAX));
            let of = |metric: usize| metrics.get(metric).map_or(0, |metric| sum.value(*metric));
            std::array::from_fn(of)
        };
        for (n, context) in (1..).zip(&mut tree.contexts) {
            context.metrics = values(n);
        }
        tree.outside = values(0);
        Some(tree)
    }

    /// Numbers of what live memory lacks. `unseen` is a number of calls without records, and `left_out` one of functions.
    pub fn live_facts(&self, unseen: u64, left_out: u64) -> Option<LiveFacts> {
        let live = self.live.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(LiveFacts {
            earlier: live.blocks.unknown,
            lost: live.lost.saturating_add(live.broken),
            unseen,
            unfreed: live.blocks.unfreed,
            unfollowed: live.blocks.unkept,
            left_out,
        })
    }
}

impl LiveMemory {
    fn add(&mut self, drained: Vec<Drained>) {
        let mut events: Vec<MemoryEvent> = Vec::new();
        let LiveMemory { reader, nested, .. } = self;
        let is_nested = |context: ContextNumber| {
            let index = (context as usize).checked_sub(1);
            index.and_then(|index| nested.get(index)).copied().unwrap_or(false)
        };
        for Drained { stream, bytes, gap, .. } in drained {
            self.broken += u64::from(gap);
            for record in values_in(&bytes) {
                self.taken += 1;
                reader.read(stream, &record, is_nested, &mut events);
            }
        }
        self.order.add(events);
    }

    fn apply(&mut self, until: u64) {
        let events = self.order.take(until);
        self.blocks.apply(&events);
    }
}

impl LiveSum {
    /// The value of a metric.
    fn value(self, metric: ContextMetric) -> i64 {
        let value = match metric {
            ContextMetric::LiveBytes => self.bytes,
            ContextMetric::LiveBlocks => self.blocks,
            ContextMetric::WallTime
            | ContextMetric::CpuTime
            | ContextMetric::AllocatedBytes
            | ContextMetric::WaitTime
            | ContextMetric::LockTime
            | ContextMetric::Looks
            | ContextMetric::Instructions
            | ContextMetric::Reads
            | ContextMetric::Writes => 0,
        };
        i64::try_from(value).unwrap_or(i64::MAX)
    }
}
