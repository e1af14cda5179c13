//! Sizes of histograms and of tables of sums. A fine histogram takes 10 KB in every thread that records a value in it, and a large table up
//! to 2 MB of address space, so both are smaller if there are many. The distance between shards follows from the number of all counters.

use std::sync::Arc;

use ingraft_model::layout::{DEFAULT_STRIDE, STRIDE_MAX};
use ingraft_model::{Avma, DataArea, Fold, Instrumentation, Places, Resolution, Shape, Snippet, TableShape, Variable};
use rustc_hash::FxHashMap;

/// Largest number of histograms in one process with the fine resolution.
const FINE: usize = 64;
/// Largest number of histograms in one process with the fine or medium resolution.
const MEDIUM: usize = 1000;
/// Largest number of tables of sums in one process that have many places.
const LARGE: usize = 16;
/// Largest number of counters that are reserved for later requests.
const SPARE: u64 = 100_000;
/// Smallest number of bytes of code for which an edge profile has a counter, with room for as many counters that cannot be used again.
const BYTES_A_COUNTER: u64 = 4;
/// Distance in bytes between shards if the target's address space has room for it, so that measurements which begin later have room beside this one:
/// three trees of contexts with metrics, and as many counters as most others take.
pub const STRIDE_FOR_LATER: u64 = 8 << 20;
/// Largest distance in bytes between shards that is chosen if the memory may stay for later measurements. There is address space for
/// thousands of threads then.
const STRIDE_TO_STAY: u64 = 16 << 20;
/// Number of counters that are reserved for a profile of modules that are not loaded yet. It suffices for all functions of libcrypto, three
/// times.
pub const AWAITED: u64 = 500_000;

/// Sizes of the histograms and of the tables of sums of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VariableSizes {
    /// Resolution of the histograms.
    pub resolution: Resolution,
    /// Number of places of a table.
    pub places: Places,
}

impl VariableSizes {
    /// The sizes of new variables, if there are this many histograms and tables with them.
    pub fn usual(histograms: usize, tables: usize) -> Self {
        let resolution = if histograms <= FINE {
            Resolution::Fine
        } else if histograms <= MEDIUM {
            Resolution::Medium
        } else {
            Resolution::Coarse
        };
        VariableSizes { resolution, places: if tables <= LARGE { Places::MANY } else { Places::FEW } }
    }

    /// These sizes, and then smaller ones.
    pub fn and_smaller(self) -> impl Iterator<Item = VariableSizes> {
        let finest_first = [Resolution::Fine, Resolution::Medium, Resolution::Coarse];
        let smaller = finest_first.into_iter().filter(move |resolution| *resolution <= self.resolution);
        std::iter::once(self).chain(smaller.map(|resolution| VariableSizes { resolution, places: Places::FEW }))
    }

    /// A shape with these sizes.
    pub fn of(self, shape: Shape) -> Shape {
        match shape {
            Shape::Histogram(_) => Shape::Histogram(self.resolution),
            Shape::Table(table) if table.fold == Fold::Sum => Shape::Table(TableShape { places: self.places, ..table }),
            other => other,
        }
    }

    /// The sizes of the variables of a pair; those of `self` for kinds of variables that the pair does not have.
    pub fn kept(self, variables: &[Variable]) -> Self {
        let places = variables.iter().find_map(|v| sums(v.shape).map(|table| table.places));
        VariableSizes {
            resolution: of_variables(variables).unwrap_or(self.resolution),
            places: places.unwrap_or(self.places),
        }
    }

    /// Number of counters that variables take with these sizes.
    pub fn slots(self, variables: &[Variable]) -> u64 {
        variables.iter().map(|v| u64::from(self.of(v.shape).slots())).sum()
    }
}

/// The table of sums that a shape is.
pub fn sums(shape: Shape) -> Option<TableShape> {
    if let Shape::Table(table) = shape { Some(table).filter(|table| table.fold == Fold::Sum) } else { None }
}

/// The resolution of a pair's histograms; `None` if the pair has no histogram.
pub fn of_variables(variables: &[Variable]) -> Option<Resolution> {
    variables.iter().find_map(|v| if let Shape::Histogram(resolution) = v.shape { Some(resolution) } else { None })
}

/// The warning about histograms that are not fine.
pub fn warning(resolution: Resolution) -> Option<String> {
    let parts = resolution.per_octave();
    let many = match resolution {
        Resolution::Fine => return None,
        Resolution::Medium => FINE,
        Resolution::Coarse => MEDIUM,
    };
    Some(format!(
        "percentiles are known to 1/{parts} of themselves, because there are more than {many} histograms; counts, sums, the smallest and the \
         largest value are exact"
    ))
}

/// The distance in bytes between shards that have room for this many counters, and for some more.
pub fn stride_for(counters: u64) -> u64 {
    let counters = counters.saturating_add(SPARE.min(counters));
    let mut stride = DEFAULT_STRIDE;
    while stride < STRIDE_MAX && u64::from(counters_in(stride)) < counters {
        stride *= 2;
    }
    stride
}

/// The distance in bytes between shards of a program whose memory may stay for later measurements, by the size of its code in bytes. There
/// is room for an edge profile of all its functions beside the counters that suspended contexts may still change.
pub fn stride_to_stay(text: u64) -> u64 {
    stride_for(text / BYTES_A_COUNTER).min(STRIDE_TO_STAY)
}

/// Number of counters in a shard at such a distance.
pub fn counters_in(stride: u64) -> u32 {
    DataArea { base: Avma(0), stride, shards: 0, journal_bytes: 0 }.counters()
}

/// The original value and its replacement, by the address of the original. Keeping the original ensures that its address is not reused.
type Replaced<T> = FxHashMap<usize, (Arc<T>, Arc<T>)>;

/// Changes the sizes of the variables of instrumentations. Parts that instrumentations share stay shared.
pub struct Resizing {
    to: VariableSizes,
    variables: Replaced<[Variable]>,
    snippets: Replaced<Snippet>,
}

impl Resizing {
    /// Creates a change to these sizes.
    pub fn to(sizes: VariableSizes) -> Self {
        Resizing { to: sizes, variables: FxHashMap::default(), snippets: FxHashMap::default() }
    }

    /// Changes one instrumentation; an instrumentation whose variables have these sizes stays as it is.
    pub fn apply(&mut self, instrumentation: &mut Instrumentation) {
        if instrumentation.variables.iter().all(|v| self.to.of(v.shape) == v.shape) {
            return;
        }
        let before = Arc::clone(&instrumentation.variables);
        let resized = || before.iter().map(|v| Variable { shape: self.to.of(v.shape), ..v.clone() }).collect();
        let key = Arc::as_ptr(&before).cast::<u8>() as usize;
        let known = self.variables.entry(key).or_insert_with(|| (Arc::clone(&before), resized()));
        instrumentation.variables = Arc::clone(&known.1);
        for insertion in &mut instrumentation.insertions {
            let before = Arc::clone(&insertion.snippet);
            let resized = || Arc::new(before.with_sizes(self.to.resolution, self.to.places));
            let known = self.snippets.entry(Arc::as_ptr(&before) as usize);
            insertion.snippet = Arc::clone(&known.or_insert_with(|| (Arc::clone(&before), resized())).1);
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::ContextShape;

    use super::*;

    #[test]
    fn shards_have_room_for_what_is_asked_and_more() {
        assert_eq!(stride_for(0), DEFAULT_STRIDE);
        assert_eq!(stride_for(u64::from(counters_in(DEFAULT_STRIDE)) / 2), DEFAULT_STRIDE);
        let many = 13_760 * u64::from(Shape::Histogram(Resolution::Coarse).slots() + 4);
        let stride = stride_for(many);
        assert!(u64::from(counters_in(stride)) >= many + SPARE, "{stride}");
        assert_eq!(stride, 32 << 20);
        assert_eq!(stride_for(u64::MAX), STRIDE_MAX);
        assert_eq!(stride_to_stay(0), DEFAULT_STRIDE);
        assert!(u64::from(counters_in(stride_to_stay(4 << 20))) > 1 << 20);
        assert_eq!(stride_to_stay(u64::MAX), STRIDE_TO_STAY);
    }

    #[test]
    fn later_measurements_have_room() {
        let tree = ContextShape::usual(true, false).slots();
        assert!(counters_in(STRIDE_FOR_LATER) > 3 * tree + counters_in(DEFAULT_STRIDE));
    }

    #[test]
    fn more_histograms_are_coarser() {
        let of = |histograms| VariableSizes::usual(histograms, 1).resolution;
        let all: Vec<_> = [1, FINE, FINE + 1, MEDIUM, MEDIUM + 1, 1 << 20].map(of).into();
        assert!(all.is_sorted_by(|a, b| a >= b), "{all:?}");
        assert_eq!((all[1], all[2], all[4]), (Resolution::Fine, Resolution::Medium, Resolution::Coarse));
        assert_eq!(warning(Resolution::Fine), None);
    }

    #[test]
    fn more_tables_are_smaller() {
        let of = |tables| VariableSizes::usual(1, tables).places;
        assert_eq!([0, LARGE, LARGE + 1, 1 << 20].map(of), [Places::MANY, Places::MANY, Places::FEW, Places::FEW]);
        let usual = VariableSizes::usual(FINE + 1, 2);
        let all: Vec<VariableSizes> = usual.and_smaller().collect();
        let few = |resolution| VariableSizes { resolution, places: Places::FEW };
        assert_eq!(all, [usual, few(Resolution::Medium), few(Resolution::Coarse)]);
        let slots = |sizes: &VariableSizes| {
            let shapes = [Shape::Histogram(Resolution::Fine), Shape::Table(TableShape::SUMS), Shape::Counter];
            shapes.map(|shape| sizes.of(shape).slots()).iter().sum::<u32>()
        };
        assert!(all.iter().map(slots).is_sorted_by(|a, b| a > b));
        assert_eq!(usual.of(Shape::Table(TableShape::OBJECTS)), Shape::Table(TableShape::OBJECTS));
    }
}
