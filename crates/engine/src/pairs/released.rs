//! The counters, records and events that pairs without users leave behind.

use std::ops::Range;

use ingraft_model::Shape;
use rustc_hash::FxHashSet;

use super::groups::Group;
use super::pair::Pair;

/// The things that pairs without users leave behind.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Released {
    /// First counter of each pair's value.
    pub values: Vec<u32>,
    /// First counter of each variable.
    pub variables: Vec<u32>,
    /// Names of the activation records.
    pub records: FxHashSet<u32>,
    /// Counters of the pairs, and of groups without pairs.
    counters: Vec<Range<u32>>,
    /// Numbers of the events that the code has read, one for each pair.
    pub events: Vec<u32>,
}

impl Released {
    /// Adds a pair whose value begins at `first`. `group` is its group, if this was the last pair of the group.
    pub(super) fn add(&mut self, first: u32, pair: &Pair, group: Option<&Group>) {
        self.values.push(first);
        self.records.extend(pair.records());
        if let Some(group) = group {
            let (table, slots) = group.table();
            self.variables.push(table);
            self.counters.push(table..table + slots);
            self.counters.extend(group.hits.iter().map(|hits| *hits..hits + 1));
        }
        // the place of a value in a table of listed keys belongs to the table
        let own = usize::from(pair.group.is_some());
        let all = pair.counters.iter().copied().zip(pair.variables.iter().map(|v| v.shape));
        for (number, shape) in all.skip(own) {
            match shape {
                // the counter is that of another pair
                Shape::Alias(_) => {}
                Shape::Event => self.events.push(number),
                Shape::Counter
                | Shape::Timer(_)
                | Shape::Histogram(_)
                | Shape::Activations
                | Shape::Outermost
                | Shape::Table(_)
                | Shape::Vector(_)
                | Shape::Listed(_)
                | Shape::Buffer(_)
                | Shape::Contexts(_)
                | Shape::Records(..) => {
                    self.variables.push(number);
                    self.counters.push(number..number + shape.slots());
                }
            }
        }
    }

    /// The counters as sorted ranges, of which no two are adjacent.
    pub fn counters(&self) -> Vec<Range<u32>> {
        let mut ranges = self.counters.clone();
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|later, first| {
            let follows = later.start == first.end;
            if follows {
                first.end = later.end;
            }
            follows
        });
        ranges
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::VariableKind;
    use ingraft_model::layout::COUNTERS;

    use super::*;
    use crate::pairs::tests::{instrumentation, variable};

    fn pair(shapes: &[Shape], counters: &[u32]) -> Pair {
        let variables = shapes.iter().map(|shape| variable(VariableKind::Scratch, *shape)).collect();
        Pair::new(instrumentation(variables), counters.to_vec())
    }

    #[test]
    fn adjacent_counters_are_one_range() {
        for (firsts, ranges) in [
            (&[][..], &[][..]),
            (&[3], &[(3, 4)]),
            (&[5, 3, 4], &[(3, 6)]),
            (&[5, 3], &[(3, 4), (5, 6)]),
            (&[1, 0, 7, 6], &[(0, 2), (6, 8)]),
        ] {
            let mut released = Released::default();
            firsts.iter().for_each(|first| released.add(*first, &pair(&[Shape::Counter], &[*first]), None));
            let found: Vec<_> = released.counters().iter().map(|range| (range.start, range.end)).collect();
            assert_eq!(found, ranges, "{firsts:?}");
            assert_eq!(released.values, firsts);
        }
    }

    #[test]
    fn each_shape_leaves_its_own_things() {
        let mut released = Released::default();
        let shapes = [Shape::Counter, Shape::Event, Shape::Alias(77), Shape::Activations, Shape::Counter];
        released.add(4, &pair(&shapes, &[4, 2, 77, 5, 20]), None);
        assert_eq!(released.events, [2]);
        assert_eq!(released.variables, [4, 5, 20]);
        assert_eq!(released.counters(), [4..9, 20..21]);
        assert_eq!(released.records, FxHashSet::from_iter([COUNTERS + 8 * 5]));
    }

    #[test]
    fn the_value_of_a_pair_in_a_group_belongs_to_the_group() {
        let grouped = Pair { group: Some((0, 3)), ..pair(&[Shape::Counter], &[119]) };
        let mut released = Released::default();
        released.add(119, &grouped, None);
        assert_eq!((released.counters(), released.variables.len()), (vec![], 0));
        assert_eq!(released.values, [119], "its account is closed");
    }
}
