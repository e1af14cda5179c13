//! Systems of linear equations.

/// Solves `A x = b` by elimination with a row exchange for the largest pivot; `None` if `A` is singular, or nearly so. `rows` has the rows of
/// `A`, each followed by its element of `b`.
pub(super) fn solve(mut rows: Vec<Vec<f64>>) -> Option<Vec<f64>> {
    let count = rows.len();
    let at = |rows: &[Vec<f64>], row: usize, column: usize| rows.get(row).and_then(|row| row.get(column)).copied();
    for column in 0..count {
        let size = |row: &usize| at(&rows, *row, column).map_or(0.0, f64::abs);
        let best = (column..count).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        if size(&best) < 1e-12 {
            return None;
        }
        rows.swap(column, best);
        let (done, below) = rows.split_at_mut(column + 1);
        let pivot = done.last()?;
        let head = *pivot.get(column)?;
        for row in below {
            let factor = row.get(column)? / head;
            if factor != 0.0 {
                row.iter_mut().zip(pivot).skip(column).for_each(|(value, pivot)| *value -= factor * pivot);
            }
        }
    }
    let mut solution = vec![0.0; count];
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).filter_map(|n| Some(at(&rows, row, n)? * solution.get(n)?)).sum();
        let value = (at(&rows, row, count)? - known) / at(&rows, row, row)?;
        *solution.get_mut(row)? = value;
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_solved() {
        assert_eq!(solve(vec![]), Some(vec![]));
        // 2 y = 4, x + y = 3
        assert_eq!(solve(vec![vec![0.0, 2.0, 4.0], vec![1.0, 1.0, 3.0]]), Some(vec![1.0, 2.0]));
    }

    #[test]
    fn singular_systems_have_no_solution() {
        assert_eq!(solve(vec![vec![1.0, 1.0, 1.0], vec![2.0, 2.0, 2.0]]), None);
        assert_eq!(solve(vec![vec![0.0, 0.0]]), None);
    }
}
