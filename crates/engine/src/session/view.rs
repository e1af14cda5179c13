//! Views of pairs: the counters and figures from which the values of a measurement are read.

use ingraft_model::{Aggregate, Fold, IndexNames, KeyTable, Shape, Tid, ValueNames, ValueUnit};
use rustc_hash::FxHashMap;

use crate::api::{Details, Keys, ThreadValue};
use crate::measure::internal::Internal;
use crate::pairs::PairKey;
use crate::readings::values::{Raw, Slots};

use super::events::EventCounting;

/// One measurement's view of a pair.
#[derive(Debug, Clone)]
pub(super) struct View {
    /// Key of the pair.
    pub key: PairKey,
    /// The counters of the metric's own variable.
    pub value: Slots,
    /// The first counters of the activations that the pair follows.
    pub activations: Vec<u32>,
    /// First counter of the group whose code the pair shares; `None` if the pair has its own code.
    pub owner: Option<u32>,
    /// Unit of the value.
    pub unit: ValueUnit,
    /// Rule by which the values of threads are combined.
    pub aggregate: Aggregate,
    /// The only thread that counts; `None` for all threads.
    pub thread: Option<Tid>,
    /// The address of the object that the focus names.
    pub object: Option<u64>,
    /// Names of the indices of a vector; `None` if they are not known.
    pub index_names: Option<IndexNames>,
    /// Names of the values of each part of keys.
    pub key_names: Vec<ValueNames>,
    /// Source of the value, if the engine knows the value without code.
    pub own: Option<OwnValue>,
    /// Value of each thread when the measurement began.
    pub before: FxHashMap<Option<Tid>, Raw>,
}

/// Source of a value without code.
#[derive(Clone, Debug)]
pub(super) enum OwnValue {
    /// The engine's own figures.
    Internal(Internal),
    /// The kernel's counters.
    Events(EventCounting),
}

impl OwnValue {
    /// The kernel's counters, if they are the source.
    pub fn events(&self) -> Option<&EventCounting> {
        if let OwnValue::Events(counting) = self { Some(counting) } else { None }
    }
}

/// The way in which a value is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// The sum of a counter over all threads.
    Counter(u32),
    /// The sum of a counter or a timer over all threads, and the range of [`Views::calls`] with the calls whose values are missing.
    Number(Slots, ValueUnit, (u32, u32)),
    /// Any other value.
    No,
}

/// The views of a measurement, in the order of its values.
#[derive(Debug)]
pub(super) struct Views {
    all: Vec<View>,
    /// The way of each view, kept apart because a measurement may have thousands of views, and reading them must touch little memory.
    plain: Vec<Plain>,
    /// The activations of all numbers, one after the other.
    calls: Vec<u32>,
    counting: Vec<EventCounting>,
}

impl Views {
    /// The way in which each view's value is computed.
    pub fn plain(&self) -> &[Plain] {
        &self.plain
    }

    /// The activations of a number.
    pub fn calls(&self, (from, to): (u32, u32)) -> &[u32] {
        self.calls.get(from as usize..to as usize).unwrap_or_default()
    }

    /// The events that the engine reads.
    pub fn counting(&self) -> &[EventCounting] {
        &self.counting
    }
}

impl From<Vec<View>> for Views {
    fn from(all: Vec<View>) -> Self {
        let mut calls = Vec::new();
        let plain = all.iter().map(|view| view.plain(&mut calls)).collect();
        let counting = all.iter().filter_map(|view| view.own.as_ref()?.events().cloned()).collect();
        Views { all, plain, calls, counting }
    }
}

impl std::ops::Deref for Views {
    type Target = [View];

    fn deref(&self) -> &[View] {
        &self.all
    }
}

impl View {
    /// The first counters by which the journal names the snippets of its pair.
    pub fn owners(&self) -> impl Iterator<Item = u32> {
        std::iter::once(self.value.first).chain(self.owner)
    }

    fn plain(&self, calls: &mut Vec<u32>) -> Plain {
        let alone = self.before.is_empty() && self.thread.is_none() && self.object.is_none() && self.own.is_none();
        match self.value.shape {
            _ if !alone || self.aggregate != Aggregate::Sum => Plain::No,
            Shape::Counter if self.activations.is_empty() && self.unit != ValueUnit::Ticks => {
                Plain::Counter(self.value.first)
            }
            Shape::Counter | Shape::Timer(_) => {
                let from = calls.len() as u32;
                calls.extend(&self.activations);
                Plain::Number(self.value, self.unit, (from, calls.len() as u32))
            }
            Shape::Histogram(_)
            | Shape::Activations
            | Shape::Outermost
            | Shape::Table(_)
            | Shape::Vector(_)
            | Shape::Listed(_)
            | Shape::Buffer(_)
            | Shape::Contexts(_)
            | Shape::Records(..)
            | Shape::Event
            | Shape::Alias(_) => Plain::No,
        }
    }

    /// The values since the measurement began, combined over all threads.
    pub fn combined(&self, rows: impl Iterator<Item = (Option<Tid>, Raw)>, threads: bool) -> (i64, Details) {
        let since = |(tid, raw): (Option<Tid>, Raw)| match self.before.get(&tid) {
            Some(before) => (tid, raw.minus(before)),
            None => (tid, raw),
        };
        let wanted =
            |(tid, raw): &(Option<Tid>, Raw)| !raw.is_nothing() && self.thread.is_none_or(|only| *tid == Some(only));
        let all: Vec<_> = rows.map(since).filter(wanted).collect();
        let values = all.iter().map(|(_, raw)| raw.value);
        let value = match self.aggregate {
            Aggregate::Sum => values.fold(0, i64::wrapping_add),
            Aggregate::Min => values.min().unwrap_or(0),
            Aggregate::Max => values.max().unwrap_or(0),
            Aggregate::Avg => {
                let n = all.len().max(1) as i64;
                values.fold(0, i64::wrapping_add) / n
            }
        };
        let together = all.iter().map(|(_, raw)| raw.clone()).fold(Raw::default(), Raw::plus);
        // the number of objects is not a sum over threads
        let list = together.table.as_deref().filter(|table| table.fold == Fold::Last).map(KeyTable::total);
        let value = list.unwrap_or(value);
        let threads = if threads && list.is_none() { all } else { Vec::new() };
        let thread = |(tid, raw): (Option<Tid>, Raw)| ThreadValue {
            tid,
            pid: None,
            value: raw.value,
            distribution: raw.distribution,
            activations: raw.activations,
        };
        let details = Details {
            distribution: together.distribution,
            keys: match (together.table.as_deref(), self.value.shape) {
                (Some(table), _) => Some(table.into()),
                (None, Shape::Table(_) | Shape::Vector(_)) => Some(Keys::default()),
                (None, _) => None,
            },
            activations: together.activations,
            threads: threads.into_iter().map(thread).collect(),
            ..Details::NONE
        };
        (value, details)
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Activations, Clock};

    use crate::pairs::tests::key;

    use super::*;

    impl View {
        /// A view of a counter whose value is summed over all threads.
        pub fn of_counter(metric: &str, first: u32) -> View {
            View {
                key: key(metric),
                value: Slots { first, shape: Shape::Counter },
                activations: Vec::new(),
                owner: None,
                unit: ValueUnit::Plain,
                aggregate: Aggregate::Sum,
                thread: None,
                object: None,
                index_names: None,
                key_names: Vec::new(),
                own: None,
                before: FxHashMap::default(),
            }
        }
    }

    fn counter(metric: &str, first: u32) -> View {
        View::of_counter(metric, first)
    }

    fn rows(values: &[(i32, i64)]) -> Vec<(Option<Tid>, Raw)> {
        values.iter().map(|(tid, value)| (Some(Tid(*tid)), Raw { value: *value, ..Raw::default() })).collect()
    }

    #[test]
    fn values_of_threads_are_combined_by_the_rule_of_the_metric() {
        for (aggregate, value) in [(Aggregate::Sum, 12), (Aggregate::Min, 2), (Aggregate::Max, 7), (Aggregate::Avg, 4)]
        {
            let view = View { aggregate, ..counter("m", 0) };
            // a thread in which nothing was counted does not lower the mean
            let (combined, details) = view.combined(rows(&[(1, 7), (2, 2), (3, 0), (4, 3)]).into_iter(), true);
            assert_eq!((combined, details.threads.len()), (value, 3), "{aggregate:?}");
            assert_eq!(view.combined(rows(&[]).into_iter(), true).0, 0, "{aggregate:?}");
        }
    }

    #[test]
    fn values_count_from_the_beginning_of_the_measurement() {
        let before = rows(&[(1, 5), (2, 4)]).into_iter().collect();
        let view = View { before, ..counter("m", 0) };
        let (value, details) = view.combined(rows(&[(1, 8), (2, 4), (3, 1)]).into_iter(), true);
        let threads: Vec<_> = details.threads.iter().map(|thread| (thread.tid, thread.value)).collect();
        assert_eq!((value, threads), (4, vec![(Some(Tid(1)), 3), (Some(Tid(3)), 1)]));
        assert!(view.combined(rows(&[(1, 8)]).into_iter(), false).1.threads.is_empty(), "nobody asks for threads");
    }

    #[test]
    fn a_thread_that_is_asked_for_counts_alone() {
        let view = View { thread: Some(Tid(2)), ..counter("m", 0) };
        let (value, details) = view.combined(rows(&[(1, 8), (2, 4)]).into_iter(), true);
        assert_eq!((value, details.threads.len()), (4, 1));
    }

    #[test]
    fn missing_calls_are_summed_beside_the_values() {
        let left = |left| Raw { activations: Activations { left, ..Activations::default() }, ..Raw::default() };
        let rows = [(Some(Tid(1)), left(2)), (None, left(3))];
        let (value, details) = counter("m", 0).combined(rows.into_iter(), true);
        assert_eq!((value, details.activations.left, details.threads.len()), (0, 5, 2));
    }

    #[test]
    fn only_plain_values_are_read_without_a_view() {
        let timer = Slots { first: 9, shape: Shape::Timer(Clock::Wall) };
        let views = Views::from(vec![
            counter("a", 3),
            View { activations: vec![40, 50], ..counter("b", 4) },
            View { value: timer, unit: ValueUnit::Ticks, activations: vec![60], ..counter("c", 9) },
            View { aggregate: Aggregate::Max, ..counter("d", 5) },
            View { thread: Some(Tid(1)), ..counter("e", 6) },
            View { object: Some(0x1000), ..counter("f", 7) },
            View { before: rows(&[(1, 1)]).into_iter().collect(), ..counter("g", 8) },
            View { value: Slots { first: 10, shape: Shape::Vector(4) }, ..counter("h", 10) },
        ]);
        let [a, b, c, rest @ ..] = views.plain() else { panic!("a way of each view") };
        assert_eq!(*a, Plain::Counter(3));
        let (Plain::Number(_, ValueUnit::Plain, of_b), Plain::Number(slots, ValueUnit::Ticks, of_c)) = (*b, *c) else {
            panic!("{b:?} {c:?}")
        };
        assert_eq!((views.calls(of_b), views.calls(of_c), slots), (&[40, 50][..], &[60][..], timer));
        assert!(rest.len() == 5 && rest.iter().all(|plain| *plain == Plain::No), "{rest:?}");
        assert!(views.calls((1, 9)).is_empty(), "no such range");
    }

    #[test]
    fn the_journal_names_a_pair_by_its_group_too() {
        assert_eq!(counter("a", 3).owners().collect::<Vec<_>>(), [3]);
        assert_eq!(View { owner: Some(8), ..counter("a", 3) }.owners().collect::<Vec<_>>(), [3, 8]);
    }
}
