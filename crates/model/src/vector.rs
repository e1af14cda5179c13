//! Values by index, for numbers that are known to lie in a range: one counter for each granule of it.
//!
//! ```text
//! 0         whether anything was added, so that nobody looks at the rest otherwise
//! 1         what was added for numbers outside of the range
//! 2 ..      a value per granule, and room up to a power of two
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::table::{Fold, Table};

/// Counter that is not 0 once something was added.
pub const USED: u32 = 0;
/// Counter of what lies outside.
pub const OUTSIDE: u32 = 1;
/// Counter of the first granule.
pub const FIRST: u32 = 2;
/// Most granules.
pub const GRANULES_MAX: u32 = 1 << 15;

/// Numbers from here on are addresses rather than amounts.
const HEXADECIMAL_FROM: i64 = 1 << 32;

/// A range of numbers, divided into granules of equal length; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranges {
    base: i64,
    length: u64,
    granule: u64,
}

impl Ranges {
    /// From a base on; `None` if there is no granule, or there are too many, or the end is no number of 64 bits.
    pub fn new(base: i64, length: i64, granule: i64) -> Option<Self> {
        base.checked_add(length)?;
        let (length, granule) = (u64::try_from(length).ok()?, u64::try_from(granule).ok()?);
        let ranges = Ranges { base, length, granule };
        let fits = granule > 0 && (1..=u64::from(GRANULES_MAX)).contains(&length.div_ceil(granule));
        fits.then_some(ranges)
    }

    /// The numbers from 0 on, each for itself.
    pub fn numbers(count: u32) -> Option<Self> {
        Self::new(0, i64::from(count), 1)
    }

    /// The first number.
    pub fn base(self) -> i64 {
        self.base
    }

    /// Number of numbers in the range.
    pub fn length(self) -> u64 {
        self.length
    }

    /// Number of numbers in a granule.
    pub fn granule(self) -> u64 {
        self.granule
    }

    /// Number of granules.
    pub fn count(self) -> u32 {
        self.length.div_ceil(self.granule) as u32
    }

    /// The granule in which a number lies.
    pub fn index(self, number: i64) -> Option<u32> {
        let offset = number.wrapping_sub(self.base).cast_unsigned();
        (number >= self.base && offset < self.length).then(|| (offset / self.granule) as u32)
    }

    /// The first number of a granule and the one behind its last.
    pub fn bounds(self, index: u32) -> (i64, i64) {
        let start = self.granule.saturating_mul(u64::from(index)).min(self.length);
        let end = start.saturating_add(self.granule).min(self.length);
        (self.base.wrapping_add_unsigned(start), self.base.wrapping_add_unsigned(end))
    }

    /// Mask for the number of a granule: the result is always the number of a granule for which the variable has a counter.
    pub fn mask(self) -> u32 {
        self.count().next_power_of_two() - 1
    }
}

/// Number of counters of a vector with so many granules.
pub const fn slots(count: u32) -> u32 {
    FIRST + count.next_power_of_two()
}

/// Reads the slots of a vector: by index those that are not 0.
pub fn from_slots(count: u32, at: impl Fn(u32) -> i64) -> Table {
    let mut table = Table { fold: Fold::Sum, values: BTreeMap::new(), others: 0 };
    if at(USED) != 0 {
        table.others = at(OUTSIDE);
        let values = (0..count).map(|index| (u64::from(index), at(FIRST + index)));
        table.values.extend(values.filter(|(_, value)| *value != 0));
    }
    table
}

/// Names of the values of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexNames {
    /// By the items of a list.
    Items(Arc<[String]>),
    /// By the numbers that they are for.
    Ranges(Ranges),
    /// By the index alone.
    Numbers,
}

impl IndexNames {
    /// Name of the value at an index; `None` if it has none but the index.
    pub fn name(&self, index: u64) -> Option<String> {
        match self {
            IndexNames::Items(items) => items.get(usize::try_from(index).ok()?).cloned(),
            IndexNames::Ranges(ranges) => {
                let (start, end) = ranges.bounds(u32::try_from(index).ok()?);
                let address = start >= HEXADECIMAL_FROM;
                Some(if address { format!("{start:#x}..{end:#x}") } else { format!("{start}..{end}") })
            }
            IndexNames::Numbers => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fall_into_granules() {
        let ranges = Ranges::new(-10, 25, 10).expect("three");
        assert_eq!((ranges.count(), ranges.mask()), (3, 3));
        let indices = [-11, -10, -1, 0, 9, 10, 14, 15, i64::MIN, i64::MAX].map(|n| ranges.index(n));
        assert_eq!(indices, [None, Some(0), Some(0), Some(1), Some(1), Some(2), Some(2), None, None, None]);
        assert_eq!([0, 1, 2].map(|i| ranges.bounds(i)), [(-10, 0), (0, 10), (10, 15)]);
        for (base, length, granule) in
            [(0, 0, 1), (0, 8, 0), (0, 8, -1), (0, -8, 1), (i64::MAX, 1, 1), (0, 1 << 16, 1), (0, i64::MAX, 1)]
        {
            assert_eq!(Ranges::new(base, length, granule), None, "{base} {length} {granule}");
        }
        let widest = Ranges::new(i64::MIN, i64::MAX, i64::MAX).expect("one");
        assert_eq!([i64::MIN, -2, -1].map(|n| widest.index(n)), [Some(0), Some(0), None]);
    }

    #[test]
    fn slots_become_values_by_index() {
        let mut counters = vec![0; slots(3) as usize];
        counters[FIRST as usize + 2] = 7;
        counters[OUTSIDE as usize] = 5;
        let read = |counters: &[i64]| from_slots(3, |n| counters[n as usize]);
        assert!(read(&counters).is_empty());
        counters[USED as usize] = 1;
        let table = read(&counters);
        assert_eq!((table.values, table.others), (BTreeMap::from([(2, 7)]), 5));
    }
}
