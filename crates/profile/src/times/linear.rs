//! Systems of linear equations `x = b + C·x` with a matrix C of expected numbers, none of which is negative.

use std::collections::BTreeMap;

/// Such a system, with as many unknowns as right sides.
#[derive(Clone, Debug, Default)]
pub(super) struct FeedbackSystem {
    /// The rows of `I − C`, without elements that are 0.
    rows: Vec<BTreeMap<usize, f64>>,
    right: Vec<f64>,
}

impl FeedbackSystem {
    /// A system in which C is 0.
    pub fn new(right: Vec<f64>) -> Self {
        FeedbackSystem { rows: (0..right.len()).map(|row| BTreeMap::from([(row, 1.0)])).collect(), right }
    }

    /// Adds to an element of C. An element outside of the matrix is ignored.
    pub fn add(&mut self, row: usize, column: usize, value: f64) {
        if let Some(row) = self.rows.get_mut(row).filter(|_| column < self.right.len()) {
            *row.entry(column).or_default() -= value;
        }
    }

    /// The solution by elimination; `None` unless the sum `I + C + C² + …` is finite. It is if, and only if, all pivots of `I − C` are positive
    /// in any order, so rows are never exchanged.
    pub fn solve(self) -> Option<Vec<f64>> {
        let FeedbackSystem { rows, mut right } = self;
        let mut done: Vec<(f64, BTreeMap<usize, f64>)> = Vec::with_capacity(rows.len());
        for (at, mut row) in rows.into_iter().enumerate() {
            while let Some(first) = row.first_entry().filter(|first| *first.key() < at) {
                let (column, value) = first.remove_entry();
                let (pivot, above) = done.get(column)?;
                let factor = value / pivot;
                let part = factor * right.get(column)?;
                *right.get_mut(at)? -= part;
                for (column, value) in above {
                    *row.entry(*column).or_default() -= factor * value;
                }
            }
            let pivot = row.remove(&at).filter(|pivot| *pivot > 1e-12)?;
            done.push((pivot, row));
        }
        for (at, (pivot, row)) in done.iter().enumerate().rev() {
            let known: f64 = row.iter().filter_map(|(column, value)| Some(value * right.get(*column)?)).sum();
            let value = (right.get(at)? - known) / pivot;
            *right.get_mut(at)? = value;
        }
        right.iter().all(|value| value.is_finite()).then_some(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The solution of a system with these elements of C.
    fn solved(right: &[f64], elements: &[(usize, usize, f64)]) -> Option<Vec<f64>> {
        let mut system = FeedbackSystem::new(right.to_vec());
        elements.iter().for_each(|(row, column, value)| system.add(*row, *column, *value));
        system.solve()
    }

    #[test]
    fn systems_are_solved() {
        assert_eq!(solved(&[], &[]), Some(vec![]));
        // x = 1 + x / 2
        assert_eq!(solved(&[1.0], &[(0, 0, 0.5)]), Some(vec![2.0]));
        // x = 1 + y / 2, y = x / 2 + z, z = 3
        let circle = [(0, 1, 0.5), (1, 0, 0.25), (1, 0, 0.25), (1, 2, 1.0)];
        let solution = solved(&[1.0, 0.0, 3.0], &circle).expect("a solution");
        let (x, y, z) = (solution[0], solution[1], solution[2]);
        assert!((x - (1.0 + y / 2.0)).abs() < 1e-12 && (y - (x / 2.0 + z)).abs() < 1e-12 && (z - 3.0).abs() < 1e-12);
    }

    #[test]
    fn sums_without_an_end_have_no_solution() {
        assert_eq!(solved(&[1.0], &[(0, 0, 1.0)]), None);
        assert_eq!(solved(&[1.0], &[(0, 0, 2.0)]), None);
        assert_eq!(solved(&[1.0, 1.0], &[(0, 1, 2.0), (1, 0, 1.0)]), None);
    }
}
