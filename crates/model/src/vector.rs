//! Values by index, for numbers in a known range: one counter for each granule of the range.
//!
//! ```text
//! 0         the number of additions, which tells how often code has run. In shard 0, where threads would have to take turns, it is 1 once a
//!           number was added. Readers skip the rest while it is 0
//! 1         the sum of additions for numbers outside of the range
//! 2 ..      a value for each granule, and room up to a power of two
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::table::{Fold, KeyTable, TableKey};

/// Index of the counter of additions.
pub const USED: u32 = 0;
/// Index of the counter for numbers outside of the range.
pub const OUTSIDE: u32 = 1;
/// Index of the counter for the first granule.
pub const FIRST: u32 = 2;
/// Maximum number of granules.
pub const GRANULES_MAX: u32 = 1 << 15;

/// Smallest number that is shown in hexadecimal, since it is probably an address.
const HEXADECIMAL_FROM: i64 = 1 << 32;

/// A range of numbers, divided into granules of equal length; the last one may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ranges {
    base: i64,
    length: u64,
    granule: u64,
}

impl Ranges {
    /// The range of `length` numbers from `base` on. `None` if it has no granules or more than `GRANULES_MAX`, or if its end does not fit
    /// into 64 bits.
    pub fn new(base: i64, length: i64, granule: i64) -> Option<Self> {
        base.checked_add(length)?;
        let (length, granule) = (u64::try_from(length).ok()?, u64::try_from(granule).ok()?);
        let ranges = Ranges { base, length, granule };
        let fits = granule > 0 && (1..=u64::from(GRANULES_MAX)).contains(&length.div_ceil(granule));
        fits.then_some(ranges)
    }

    /// The range of the numbers from 0 to `count` - 1, with a granule for each.
    pub fn numbers(count: u32) -> Option<Self> {
        Self::new(0, i64::from(count), 1)
    }

    /// The first number of the range.
    pub fn base(self) -> i64 {
        self.base
    }

    /// Number of integers in the range.
    pub fn length(self) -> u64 {
        self.length
    }

    /// Number of integers in a granule.
    pub fn granule(self) -> u64 {
        self.granule
    }

    /// Number of granules.
    pub fn count(self) -> u32 {
        self.length.div_ceil(self.granule) as u32
    }

    /// Index of the granule that contains a number; `None` outside of the range.
    pub fn index(self, number: i64) -> Option<u32> {
        let offset = number.wrapping_sub(self.base).cast_unsigned();
        (number >= self.base && offset < self.length).then(|| (offset / self.granule) as u32)
    }

    /// The first number of a granule, and the last one plus 1.
    pub fn bounds(self, index: u32) -> (i64, i64) {
        let start = self.granule.saturating_mul(u64::from(index)).min(self.length);
        let end = start.saturating_add(self.granule).min(self.length);
        (self.base.wrapping_add_unsigned(start), self.base.wrapping_add_unsigned(end))
    }

    /// Mask that code applies to the index of a granule. The variable has a counter for every masked index.
    pub fn mask(self) -> u32 {
        self.count().next_power_of_two() - 1
    }
}

/// Number of counters of a vector with this number of granules.
pub const fn slots(count: u32) -> u32 {
    FIRST + count.next_power_of_two()
}

/// Reads the slots of a vector. The keys of the result are the indices of values that are not 0.
pub fn from_slots(count: u32, at: impl Fn(u32) -> i64) -> KeyTable {
    let mut table = KeyTable { fold: Fold::Sum, values: BTreeMap::new(), others: 0 };
    if at(USED) != 0 {
        table.others = at(OUTSIDE);
        let values = (0..count).map(|index| (TableKey::Number(u64::from(index)), at(FIRST + index)));
        table.values.extend(values.filter(|(_, value)| *value != 0));
    }
    table
}

/// Names of the values of a vector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IndexNames {
    /// The items of a list name the values.
    Items(Arc<[String]>),
    /// The range of numbers of each granule names its value.
    Ranges(Ranges),
    /// The values have no names, only indices.
    Numbers,
}

impl IndexNames {
    /// Name of the value at an index; `None` if it has no name.
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
        assert_eq!((table.values, table.others), (BTreeMap::from([(TableKey::Number(2), 7)]), 5));
    }
}
