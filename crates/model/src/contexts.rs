//! Calling contexts: a tree of the functions that were open when a function was called, in the counters of every shard (Ammons, Ball and
//! Larus, "Exploiting Hardware Performance Counters with Flow and Context Sensitive Profiling", section 4). Each thread has a tree of its own.
//!
//! ```text
//! 0             the context of the thread now: 0 outside of all contexts, otherwise 1 + 4 p for that in place p
//! 1             the number of calls without a place
//! 2             the number of places that are taken
//! 4 + m         the value of metric m outside of all contexts
//! 8 + 4 p       the key of place p: the return address, plus 2^47 times the number of the function; 0 if the place is free
//! 9 + 4 p       2 plus the context from which it was called
//! 10 + 4 p      the number of calls
//! 11 + 4 p      the context that becomes that of the thread: this one, or for a recursive call the first one of the function above it
//! 8 + 4 (places + 7 + p) + m   the value of metric m in place p
//! ```
//!
//! A context is found at the entry of its function by the thread's context, the return address and the function, so no code is needed at
//! calls. The places are an open-addressing hash table. Code compares the place of the hash and the next seven, and
//! a routine compares more. The seven places after the last one are always free, so that the code need not go on at the first one.
//!
//! A goroutine moves between threads, so all threads share the contexts of goroutines. Keys, parents and targets are in shard 0. Each thread has the
//! numbers of calls and the values of metrics in its own shard, at the same places. Word 0 is unused: the activation record of a call keeps its context.
//!
//! Code takes a place by one instruction (`cmpxchg`), which a signal handler that also enters contexts cannot interrupt. It stores the
//! other words next, and counts last. The second word is never 0, so a handler that comes in between does not find the context there, and
//! takes another place for it; the reader adds both. A place is never freed.

use std::collections::BTreeMap;

use crate::table::MULTIPLIER;

/// Index of the counter with the context of the thread.
pub const CURRENT: u32 = 0;
/// Index of the counter of calls without a place.
pub const FULL: u32 = 1;
/// Index of the counter with the number of places that are taken.
pub const TAKEN: u32 = 2;
/// Index of the counter with the first metric's value outside of all contexts.
pub const OUTSIDE: u32 = 4;
/// Index of the counter with the first place's key.
pub const FIRST: u32 = 8;
/// Number of counters of a place. The values of its metrics are as many.
pub const PLACE: u32 = 4;
/// Offsets of the counters of a place.
pub const KEY: u32 = 0;
/// Offset of the counter with the context from which it was called, plus [`PARENT_BIAS`].
pub const PARENT: u32 = 1;
/// Offset of the counter of calls.
pub const CALLS: u32 = 2;
/// Offset of the counter with the context that becomes that of the thread.
pub const TARGET: u32 = 3;
/// Number that is added to a parent, so that it is not 0.
pub const PARENT_BIAS: u64 = 2;
/// Number of bits of a return address in a key.
pub const ADDRESS_BITS: u32 = 47;
/// Largest number of a function; the smallest is 1.
pub const FUNCTIONS_MAX: u32 = (1 << (u64::BITS - ADDRESS_BITS)) - 1;
/// Numbers of functions from here on are of values that were counted below contexts ([`crate::Stmt::CountBelow`]), where both are in one tree.
pub const VALUES: u32 = 1 << (u64::BITS - ADDRESS_BITS - 1);
/// Number of places that are compared for a key.
pub const PROBES: u32 = 64;
/// Number of places after that of the hash that code compares before it calls the routine. As many places after the last one are always free.
pub const FURTHER: u32 = 7;
/// Largest number of metrics.
pub const METRICS_MAX: usize = PLACE as usize;
/// Distance by which the context is shifted before it is mixed with the key.
pub const CONTEXT_SHIFT: u32 = 20;

/// Size of a tree of contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContextShape {
    bits: u8,
    metrics: bool,
    full: bool,
}

impl ContextShape {
    /// Smallest and largest number of bits in the number of a place.
    pub const BITS: std::ops::RangeInclusive<u8> = 2..=17;
    /// Number of bits that has room for most programs, and whose places take one MiB in each thread.
    pub const USUAL_BITS: u8 = 15;

    /// The tree with [`ContextShape::USUAL_BITS`].
    pub const fn usual(metrics: bool, full: bool) -> Self {
        ContextShape { bits: ContextShape::USUAL_BITS, metrics, full }
    }

    /// A tree with 2^`bits` places; `None` if it cannot have so many. `metrics` tells whether contexts have values of metrics, and `full` whether each
    /// recursive call has a context of its own.
    pub fn of_bits(bits: u8, metrics: bool, full: bool) -> Option<Self> {
        ContextShape::BITS.contains(&bits).then_some(ContextShape { bits, metrics, full })
    }

    /// Number of bits in the number of a place.
    pub const fn bits(self) -> u8 {
        self.bits
    }

    /// Whether contexts have values of metrics.
    pub const fn metrics(self) -> bool {
        self.metrics
    }

    /// Whether each recursive call has a context of its own.
    pub const fn full(self) -> bool {
        self.full
    }

    /// Number of places.
    pub const fn places(self) -> u32 {
        1 << self.bits
    }

    /// Mask that covers the first counter of every place, from [`FIRST`] on, and the value of a context without the lowest bit.
    pub const fn mask(self) -> u32 {
        PLACE * (self.places() - 1)
    }

    /// Number of bits by which a product of hashing is shifted to the right.
    pub const fn shift(self) -> u32 {
        u64::BITS - PLACE.trailing_zeros() - self.bits as u32
    }

    /// Number of counters in every shard.
    pub const fn slots(self) -> u32 {
        self.values() + PLACE * self.places() * self.metrics as u32
    }

    /// Index of the counter with the first metric's value in the first place.
    pub const fn values(self) -> u32 {
        FIRST + PLACE * (self.places() + FURTHER)
    }

    /// The value of a metric that a counter holds: the context, 0 for the one outside of all, and the number of the metric. `None` for other
    /// counters.
    pub const fn value_in(self, counter: u32) -> Option<(u64, u32)> {
        if OUTSIDE <= counter && counter < OUTSIDE + METRICS_MAX as u32 {
            return Some((0, counter - OUTSIDE));
        }
        if !self.metrics || counter < self.values() || counter >= self.slots() {
            return None;
        }
        let at = counter - self.values();
        Some((1 + (at & self.mask()) as u64, at % PLACE))
    }

    /// Whether a thread writes a counter in its own shard if all threads share a tree: the number of calls of a place, or of those without one, and
    /// values of metrics.
    pub const fn is_of_thread(self, counter: u32) -> bool {
        let is_calls = FIRST <= counter && (counter - FIRST) % PLACE == CALLS;
        counter == FULL || self.value_in(counter).is_some() || is_calls && counter < FIRST + PLACE * self.places()
    }

    /// The context that a word in the counter [`CURRENT`] names; 0 outside of all contexts.
    pub const fn context(self, word: u64) -> u64 {
        if word == 0 { 0 } else { 1 + (word as u32 & self.mask()) as u64 }
    }

    /// Distance from [`FIRST`] to the counters of the first place to compare for a call from this context.
    pub const fn place(self, current: u64, key: u64) -> u32 {
        let mixed = (current << CONTEXT_SHIFT) ^ key;
        (mixed.wrapping_mul(MULTIPLIER) >> self.shift()) as u32 & self.mask()
    }
}

/// The key of a call. Of a return address that is none, as a function may find if control has come to it by a jump, the lowest bits count.
pub const fn key(function: u32, return_address: u64) -> u64 {
    (function as u64) << ADDRESS_BITS | address_of(return_address)
}

/// The number of the function in a key.
pub const fn function_of(key: u64) -> u32 {
    (key >> ADDRESS_BITS) as u32
}

/// The return address in a key.
pub const fn address_of(key: u64) -> u64 {
    key & ((1 << ADDRESS_BITS) - 1)
}

/// A context of a [`ContextTree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeContext {
    /// Index of the context from which it was called; `None` outside of all contexts.
    pub parent: Option<usize>,
    /// Number of the function.
    pub function: u32,
    /// The return address.
    pub return_address: u64,
    /// Number of calls.
    pub calls: u64,
    /// Index of the ancestor of the same function to which a recursive call leads back; `None` if this is no such call.
    pub back: Option<usize>,
    /// Values of metrics.
    pub metrics: [i64; METRICS_MAX],
}

/// A value that was counted below a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CountedValue {
    /// Index of the context; `None` outside of all contexts.
    pub context: Option<usize>,
    /// Number with which it was counted, without [`VALUES`].
    pub function: u32,
    /// The value, as far as its lowest [`ADDRESS_BITS`] bits tell it.
    pub value: i64,
    /// Number of times that it was counted.
    pub count: u64,
    /// Values of metrics at its place, see [`crate::Stmt::EnterValue`].
    pub metrics: [i64; METRICS_MAX],
}

/// The contexts of one thread, or of several together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContextTree {
    /// The contexts. A parent comes before its children.
    pub contexts: Vec<TreeContext>,
    /// Number of calls without a place.
    pub full: u64,
    /// Values of metrics outside of all contexts.
    pub outside: [i64; METRICS_MAX],
    /// Index of each context, by its parent, its key, and whether it leads back.
    known: BTreeMap<(Option<usize>, u64, bool), usize>,
}

impl ContextTree {
    /// Reads the counters of a tree. It reads those of the places only if some are taken, because reading unused memory would allocate it.
    pub fn from_slots(shape: ContextShape, at: impl Fn(u32) -> i64) -> Self {
        Self::from_places(shape, || (0..shape.places()).map(|place| PLACE * place), &at)
    }

    /// Reads the counters of a tree of which only some are not 0, in order, each with its number. A tree has far more places than most threads use.
    /// `at` returns any counter.
    pub fn from_nonzero(shape: ContextShape, nonzero: &[(u32, i64)], at: impl Fn(u32) -> i64) -> Self {
        let end = PLACE * shape.places();
        let places =
            nonzero.iter().filter_map(|(n, _)| n.checked_sub(FIRST + KEY)).filter(|n| n % PLACE == 0 && *n < end);
        Self::from_places(shape, || places, &at)
    }

    fn from_places<I: Iterator<Item = u32>>(
        shape: ContextShape,
        places: impl FnOnce() -> I,
        at: &impl Fn(u32) -> i64,
    ) -> Self {
        let word = |n: u32| at(n).cast_unsigned();
        let metrics = |first: u32| std::array::from_fn(|m| if shape.metrics { at(first + m as u32) } else { 0 });
        let mut tree = ContextTree { full: word(FULL), outside: metrics(OUTSIDE), ..ContextTree::default() };
        if word(TAKEN) == 0 {
            return tree;
        }
        let places: Vec<u32> = places().filter(|place| at(FIRST + place + KEY) != 0).collect();
        // The second word of a place that was just taken may still be 0.
        let parent = |place: u32| word(FIRST + place + PARENT).checked_sub(PARENT_BIAS);
        let mut read = Reader { shape, indexes: BTreeMap::new(), tree: &mut tree };
        for place in places {
            // The chain of callers that were not read yet, the innermost first.
            let mut chain = Vec::new();
            let mut next = Some(place);
            while let Some(at) = next.filter(|at| !read.indexes.contains_key(at) && !chain.contains(at)) {
                let Some(above) = parent(at) else { break };
                chain.push(at);
                next = read.place_of(above);
            }
            for place in chain.into_iter().rev() {
                let Some(above) = parent(place) else { continue };
                let context = |n| word(FIRST + place + n);
                read.add(place, context(KEY), above, context(CALLS), context(TARGET), metrics(shape.values() + place));
            }
        }
        tree
    }

    /// Index of the context with this parent and key; makes one if there is none.
    fn child(&mut self, parent: Option<usize>, key: u64, back: Option<usize>) -> usize {
        let next = self.contexts.len();
        let index = *self.known.entry((parent, key, back.is_some())).or_insert(next);
        if index == next {
            self.contexts.push(TreeContext {
                parent,
                function: function_of(key),
                return_address: address_of(key),
                calls: 0,
                back,
                metrics: [0; METRICS_MAX],
            });
        }
        index
    }

    /// Removes the values that were counted below contexts: of function numbers from [`VALUES`] on. Contexts get other indexes. What a signal
    /// handler has called while a value was the context of its thread is then below the context of the value.
    pub fn take_values(&mut self) -> Vec<CountedValue> {
        let mut values = Vec::new();
        let all = std::mem::take(&mut self.contexts);
        self.known.clear();
        let mut indexes: Vec<Option<usize>> = Vec::with_capacity(all.len());
        for context in all {
            let here = |index: Option<usize>| index.and_then(|index| indexes.get(index).copied().flatten());
            let (parent, back) = (here(context.parent), here(context.back));
            match context.function.checked_sub(VALUES) {
                Some(function) => {
                    let unused = u64::BITS - ADDRESS_BITS;
                    let value = (context.return_address << unused).cast_signed() >> unused;
                    let (count, metrics) = (context.calls, context.metrics);
                    values.push(CountedValue { context: parent, function, value, count, metrics });
                    indexes.push(parent);
                }
                None => {
                    let index = self.child(parent, key(context.function, context.return_address), back);
                    self.count(index, context.calls, context.metrics);
                    indexes.push(Some(index));
                }
            }
        }
        values
    }

    fn count(&mut self, index: usize, calls: u64, metrics: [i64; METRICS_MAX]) {
        if let Some(context) = self.contexts.get_mut(index) {
            context.calls = context.calls.wrapping_add(calls);
            for (sum, value) in context.metrics.iter_mut().zip(metrics) {
                *sum = sum.wrapping_add(value);
            }
        }
    }

    /// Index of the context that is that of a thread while word [`CURRENT`] of its tree has this value; adds it and its callers without calls
    /// if need be. `None` outside of all contexts, and if the words of the tree name none. `at` reads the words.
    pub fn found(&mut self, shape: ContextShape, context: u64, at: impl Fn(u32) -> i64) -> Option<usize> {
        let word = |n: u32| at(n).cast_unsigned();
        let (mut keys, mut next) = (Vec::new(), context);
        while next != 0 {
            let place = FIRST + (next as u32 & shape.mask());
            let (key, above) = (word(place + KEY), word(place + PARENT).checked_sub(PARENT_BIAS)?);
            if key == 0 || keys.len() >= shape.places() as usize {
                return None;
            }
            keys.push(key);
            next = above;
        }
        keys.into_iter().rev().fold(None, |parent, key| Some(self.child(parent, key, None)))
    }

    /// Adds the calls of another thread. Returns the index in this tree of each context of the other one.
    pub fn merge(&mut self, other: &ContextTree) -> Vec<usize> {
        let mut indexes: Vec<usize> = Vec::with_capacity(other.contexts.len());
        for context in &other.contexts {
            let here = |index: Option<usize>| index.and_then(|index| indexes.get(index)).copied();
            let key = key(context.function, context.return_address);
            let index = self.child(here(context.parent), key, here(context.back));
            self.count(index, context.calls, context.metrics);
            indexes.push(index);
        }
        self.full = self.full.wrapping_add(other.full);
        for (sum, value) in self.outside.iter_mut().zip(other.outside) {
            *sum = sum.wrapping_add(value);
        }
        indexes
    }
}

/// Reader of the places of one thread.
struct Reader<'t> {
    shape: ContextShape,
    /// Index in the tree of the context in each place.
    indexes: BTreeMap<u32, usize>,
    tree: &'t mut ContextTree,
}

impl Reader<'_> {
    /// The place of a context; `None` outside of all contexts.
    fn place_of(&self, context: u64) -> Option<u32> {
        (context != 0).then_some(context as u32 & self.shape.mask())
    }

    fn add(&mut self, place: u32, key: u64, parent: u64, calls: u64, target: u64, metrics: [i64; METRICS_MAX]) {
        let index = |reader: &Self, context: u64| reader.indexes.get(&reader.place_of(context)?).copied();
        let back = if self.place_of(target) == Some(place) { None } else { index(self, target) };
        let parent = index(self, parent);
        let found = self.tree.child(parent, key, back);
        self.tree.count(found, calls, metrics);
        self.indexes.insert(place, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: ContextShape = ContextShape { bits: 3, metrics: true, full: false };

    /// Counters of a tree, with these places: place, key, parent, calls, target, and the value of the first metric.
    fn slots(places: &[(u32, u64, u64, u64, u64, i64)]) -> Vec<i64> {
        let mut slots = vec![0; SHAPE.slots() as usize];
        slots[FULL as usize] = 3;
        slots[TAKEN as usize] = places.len() as i64;
        slots[OUTSIDE as usize] = 40;
        for (place, key, parent, calls, target, metric) in places {
            let first = (FIRST + PLACE * place) as usize;
            let words = [*key, parent + PARENT_BIAS, *calls, *target].map(u64::cast_signed);
            slots[first..first + 4].copy_from_slice(&words);
            slots[(SHAPE.values() + PLACE * place) as usize] = *metric;
        }
        slots
    }

    fn read(slots: &[i64]) -> ContextTree {
        let tree = ContextTree::from_slots(SHAPE, |n| slots[n as usize]);
        let nonzero: Vec<(u32, i64)> = (0..).zip(slots.iter().copied()).filter(|(_, value)| *value != 0).collect();
        assert_eq!(ContextTree::from_nonzero(SHAPE, &nonzero, |n| slots[n as usize]), tree);
        tree
    }

    /// Function, return address, parent, calls, whether it leads back and where, first metric.
    type Row = (u32, u64, Option<usize>, u64, Option<usize>, i64);

    fn rows(tree: &ContextTree) -> Vec<Row> {
        let row = |c: &TreeContext| (c.function, c.return_address, c.parent, c.calls, c.back, c.metrics[0]);
        tree.contexts.iter().map(row).collect()
    }

    fn of(place: u64) -> u64 {
        4 * place + 1
    }

    #[test]
    fn a_tree_is_read_from_its_root_on() {
        // main (5) calls f (2) twice, and f calls itself (7); a handler made a twin of f (1).
        let slots = slots(&[
            (1, key(2, 0x10), of(5), 4, of(1), 7),
            (2, key(2, 0x10), of(5), 9, of(2), 1),
            (5, key(1, 0x900), 0, 1, of(5), 0),
            (7, key(2, 0x24), of(2), 6, of(2), 0),
        ]);
        let tree = read(&slots);
        assert_eq!(
            rows(&tree),
            [(1, 0x900, None, 1, None, 0), (2, 0x10, Some(0), 13, None, 8), (2, 0x24, Some(1), 6, Some(1), 0)]
        );
        assert_eq!((tree.full, tree.outside[0]), (3, 40));
    }

    #[test]
    fn trees_of_threads_are_added_by_path() {
        let [a, b] = [
            slots(&[(0, key(1, 0x10), 0, 2, of(0), 1), (3, key(2, 0x20), of(0), 5, of(3), 2)]),
            slots(&[(6, key(1, 0x10), 0, 1, of(6), 1), (2, key(3, 0x20), of(6), 7, of(2), 4)]),
        ];
        let mut tree = read(&a);
        tree.merge(&read(&b));
        let expected = [(1, 0x10, None, 3, None, 2), (2, 0x20, Some(0), 5, None, 2), (3, 0x20, Some(0), 7, None, 4)];
        assert_eq!(rows(&tree), expected);
        assert_eq!((tree.full, tree.outside[0]), (6, 80));
    }

    #[test]
    fn values_below_contexts_are_taken_out() {
        let value = |function: u32, value: i64| key(VALUES + function, value.cast_unsigned());
        let slots = slots(&[
            (0, value(1, -7), 0, 3, of(0), 0),
            (5, key(1, 0x900), 0, 1, of(5), 0),
            (2, value(2, 1 << 45), of(5), 4, of(2), 0),
            (7, key(2, 0x24), of(5), 6, of(7), 0),
            (1, key(2, 0x30), of(7), 5, of(7), 0),
            (3, value(2, 9), of(7), 8, of(3), 6),
            // A handler calls f while the value above is the context of its thread.
            (4, key(3, 0x40), of(3), 7, of(4), 2),
        ]);
        let mut tree = read(&slots);
        let mut values = tree.take_values();
        values.sort_unstable_by_key(|value| value.count);
        assert_eq!(
            rows(&tree),
            [
                (1, 0x900, None, 1, None, 0),
                (2, 0x24, Some(0), 6, None, 0),
                (2, 0x30, Some(1), 5, Some(1), 0),
                (3, 0x40, Some(1), 7, None, 2)
            ]
        );
        let counted = |context, function, value, count, metric| {
            let metrics = [metric, 0, 0, 0];
            CountedValue { context, function, value, count, metrics }
        };
        let expected = [counted(None, 1, -7, 3, 0), counted(Some(0), 2, 1 << 45, 4, 0), counted(Some(1), 2, 9, 8, 6)];
        assert_eq!(values, expected);
        tree.merge(&read(&slots));
        assert_eq!(tree.contexts.len(), 8);
        assert_eq!(tree.contexts[0].calls, 2);
    }

    #[test]
    fn the_context_of_a_thread_is_found_by_its_word() {
        let slots = slots(&[
            (2, key(2, 0x10), of(5), 9, of(2), 1),
            (4, key(3, 0x30), of(6), 1, of(4), 0),
            (5, key(1, 0x900), 0, 1, of(5), 0),
            (6, key(3, 0x31), of(4), 1, of(6), 0),
        ]);
        let mut tree = ContextTree::default();
        let mut find = |context| tree.found(SHAPE, context, |n| slots[n as usize]);
        let found = [of(2), of(5), of(2), 0, of(7), of(4)].map(&mut find);
        assert_eq!(found, [Some(1), Some(0), Some(1), None, None, None], "place 7 is free, and 4 is in a circle");
        assert_eq!(rows(&tree), [(1, 0x900, None, 0, None, 0), (2, 0x10, Some(0), 0, None, 0)]);
        let mut all = read(&slots);
        all.merge(&tree);
        assert_eq!(rows(&all), rows(&read(&slots)), "known contexts");
    }

    #[test]
    fn a_place_that_was_just_taken_and_a_circle_are_no_contexts() {
        let mut slots = slots(&[(0, key(1, 0x10), 0, 2, of(0), 0), (3, key(2, 0x20), of(4), 1, of(3), 0)]);
        // Place 4 is its own caller's caller, and place 6 has a key only.
        slots[(FIRST + 16) as usize..(FIRST + 20) as usize].copy_from_slice(&[1i64 << 48, 17 + 2, 1, 17]);
        slots[(FIRST + 24) as usize] = key(4, 1).cast_signed();
        let tree = read(&slots);
        assert!(tree.contexts.iter().enumerate().all(|(n, c)| c.parent.is_none_or(|parent| parent < n)));
    }

    #[test]
    fn a_word_that_is_no_address_leaves_the_function_alone() {
        for word in [u64::MAX, 1 << ADDRESS_BITS, 0x7fff_ffff_f000] {
            assert_eq!(function_of(key(9, word)), 9);
        }
        assert_eq!(address_of(key(9, 0x7fff_ffff_f000)), 0x7fff_ffff_f000);
    }

    #[test]
    fn a_thread_without_contexts_has_values_outside() {
        let mut slots = slots(&[]);
        slots[(OUTSIDE + 2) as usize] = 7;
        assert_eq!(read(&slots), ContextTree { full: 3, outside: [40, 0, 7, 0], ..ContextTree::default() });
    }

    #[test]
    fn values_of_metrics_are_in_their_counters() {
        let outside = (0..4).map(|metric| (OUTSIDE + metric, Some((0, metric))));
        let last = SHAPE.values() + PLACE * 7;
        let inside = (0..4).map(|metric| (last + metric, Some((of(7), metric))));
        let others = [TAKEN, FIRST - 1 - 4, FIRST, SHAPE.values() - 1, SHAPE.slots()].map(|counter| (counter, None));
        for (counter, expected) in outside.chain(inside).chain(others) {
            assert_eq!(SHAPE.value_in(counter), expected, "{counter}");
        }
        assert_eq!([0, 1, of(7), u64::MAX].map(|word| SHAPE.context(word)), [0, 1, of(7), of(7)]);
        let plain = ContextShape::of_bits(3, false, false).expect("a size");
        assert_eq!(plain.value_in(plain.values() - 1), None);
    }

    #[test]
    fn every_place_is_in_the_table() {
        for bits in ContextShape::BITS {
            let shape = ContextShape::of_bits(bits, true, false).expect("a size");
            for n in 0..1000 {
                let place = shape.place(n, key(n as u32, n << 9));
                assert!(place.is_multiple_of(PLACE) && place < PLACE * shape.places());
            }
            assert!(shape.values() + shape.mask() + PLACE <= shape.slots());
        }
        assert!(ContextShape::of_bits(18, true, false).is_none());
    }
}
