//! Costs of classes of events, fitted to measured times: non-negative least squares with few unknowns.

/// Largest number of classes of events. The fit tries all sets of classes.
pub const CLASSES_MAX: usize = 8;

/// A pivot of the normal equations below this, with columns of length 1, means that classes cannot be told apart.
const PIVOT_MIN: f64 = 1e-9;

/// Numbers of events of a function, and its measured time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CostRow {
    /// Number of events of each class in the time. Classes from the [`CLASSES_MAX`]th on are ignored.
    pub events: Vec<f64>,
    /// The measured time, in any unit.
    pub time: f64,
    /// Weight of the row, such as the sum of all measured times.
    pub weight: f64,
}

/// Fitted costs.
#[derive(Clone, Debug, PartialEq)]
pub struct CostFit {
    /// Cost of one event of each class, in the unit of the times. 0 for a class that the fit does not use. None is negative.
    pub costs: Vec<f64>,
    /// Root of the weighted mean square of the relative errors of the rows: 0.1 means that times are off by a tenth.
    pub error: f64,
    /// Number of rows that were fitted.
    pub rows: usize,
}

impl CostFit {
    /// Finds the costs with the least weighted sum of squared relative errors. Of `n` rows of equal weight, at most `n / 2` classes get a cost, or
    /// one, or two of three rows and more; if weights differ, `n` is `(sum of weights)^2 / (sum of their squares)`. Rows without a time, a weight or an event are left
    /// out; `None` if no row is left.
    pub fn of(rows: &[CostRow]) -> Option<CostFit> {
        let classes = rows.iter().map(|row| row.events.len()).max()?.min(CLASSES_MAX);
        let fits = |row: &&CostRow| {
            let sum: f64 = row.events.iter().take(classes).sum();
            [row.time, row.weight, sum].into_iter().all(|number| number > 0.0 && number.is_finite())
        };
        let all: Vec<&CostRow> = rows.iter().filter(fits).collect();
        let whole: f64 = all.iter().map(|row| row.weight).sum();
        // Relative to the time of each row, and multiplied by the root of its weight. The last element is what is to be reached.
        let relative = |row: &&CostRow| -> Vec<f64> {
            let weight = (row.weight / whole).sqrt();
            let events = (0..classes).map(|class| row.events.get(class).copied().unwrap_or_default());
            events.map(|events| weight * events / row.time).chain([weight]).collect()
        };
        let rows: Vec<Vec<f64>> = all.iter().map(relative).collect();
        let concentration: f64 = all.iter().map(|row| (row.weight / whole).powi(2)).sum();
        // A cost of an instruction alone would deny what a call costs.
        let least = if rows.len() > 2 { 2 } else { 1 };
        let most = ((0.5 / concentration + 1e-9) as u32).max(least);
        let mut sets: Vec<u32> = (1..1u32 << classes).filter(|set| set.count_ones() <= most).collect();
        // Of equal fits, the one with fewer classes is the first.
        sets.sort_by_key(|set| set.count_ones());
        let mut best: Option<(Vec<f64>, f64)> = None;
        for set in sets {
            let members: Vec<usize> = (0..classes).filter(|class| (set >> class) & 1 != 0).collect();
            let Some(costs) = least_squares(&rows, &members, classes) else { continue };
            let off = squares(&rows, &costs);
            if best.as_ref().is_none_or(|(_, least)| off < least * (1.0 - 1e-9)) {
                best = Some((costs, off));
            }
        }
        let (costs, off) = best?;
        Some(CostFit { costs, error: off.sqrt(), rows: rows.len() })
    }
}

/// Sum of the squared errors. Each row has its events and then what is to be reached.
fn squares(rows: &[Vec<f64>], costs: &[f64]) -> f64 {
    let error = |row: &Vec<f64>| {
        let sum: f64 = row.iter().zip(costs).map(|(events, cost)| events * cost).sum();
        sum - row.last().copied().unwrap_or_default()
    };
    rows.iter().map(|row| error(row).powi(2)).sum()
}

/// The costs of the least squares with these classes alone; `None` if they cannot be told apart or if one is not positive. Each row has its
/// events and then what is to be reached.
fn least_squares(rows: &[Vec<f64>], members: &[usize], classes: usize) -> Option<Vec<f64>> {
    let column = |class: usize| rows.iter().map(move |row| row.get(class).copied().unwrap_or_default());
    let lengths: Vec<f64> = members.iter().map(|class| column(*class).map(|x| x * x).sum::<f64>().sqrt()).collect();
    if lengths.iter().any(|length| !length.is_normal()) {
        return None;
    }
    // The normal equations with columns of length 1, each with its right side as the last element.
    let line = |(class, length): (&usize, &f64)| -> Vec<f64> {
        let dot = |other: usize, scale: f64| column(*class).zip(column(other)).map(|(a, b)| a * b).sum::<f64>() / scale;
        let products = members.iter().zip(&lengths).map(|(other, scale)| dot(*other, scale * length));
        products.chain([dot(classes, *length)]).collect()
    };
    let mut system: Vec<Vec<f64>> = members.iter().zip(&lengths).map(line).collect();
    for at in 0..system.len() {
        let above = system.get(at)?.clone();
        let pivot = above.get(at).copied().filter(|pivot| *pivot > PIVOT_MIN)?;
        for (_, line) in system.iter_mut().enumerate().filter(|(other, _)| *other != at) {
            let factor = line.get(at)? / pivot;
            line.iter_mut().zip(&above).for_each(|(value, above)| *value -= factor * above);
        }
    }
    let mut costs = vec![0.0; classes];
    for (at, (class, length)) in members.iter().zip(&lengths).enumerate() {
        let line = system.get(at)?;
        let cost = line.last()? / line.get(at)? / length;
        *costs.get_mut(*class)? = Some(cost).filter(|cost| *cost > 0.0 && cost.is_finite())?;
    }
    Some(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fitted(rows: &[(&[f64], f64)]) -> Option<CostFit> {
        let rows: Vec<CostRow> =
            rows.iter().map(|(events, time)| CostRow { events: events.to_vec(), time: *time, weight: 2.0 }).collect();
        CostFit::of(&rows)
    }

    #[test]
    fn costs_that_explain_all_times_are_found() {
        let rows: [(&[f64], f64); 6] = [
            (&[10.0, 2.0, 0.0], 9.0),
            (&[5.0, 5.0, 0.0], 12.5),
            (&[100.0, 0.0, 1.0], 80.0),
            (&[20.0, 1.0, 2.0], 72.0),
            (&[1.0, 1.0, 1.0], 32.5),
            (&[8.0, 0.0, 0.0], 4.0),
        ];
        let fit = fitted(&rows).expect("a fit");
        assert!(fit.costs.iter().zip([0.5, 2.0, 30.0]).all(|(cost, truth)| (cost - truth).abs() < 1e-6), "{fit:?}");
        assert!(fit.error < 1e-6 && fit.rows == 6, "{fit:?}");
    }

    /// Functions that take hardly any time in all do not matter, and do not make more classes possible.
    #[test]
    fn rows_count_by_their_weights() {
        let row = |events: [f64; 2], time, weight| CostRow { events: events.to_vec(), time, weight };
        let light = (1..9).map(|n| row([f64::from(n), 9.0 - f64::from(n)], 50.0 / f64::from(n), 1e-9));
        let heavy = [row([100.0, 3.0], 50.0, 1.0), row([200.0, 1.0], 100.0, 1.0)];
        let fit = CostFit::of(&heavy.into_iter().chain(light).collect::<Vec<_>>()).expect("a fit");
        assert!((fit.costs[0] - 0.5).abs() < 1e-3 && fit.costs[1] < 1e-2 && fit.error < 1e-3, "{fit:?}");
    }

    #[test]
    fn no_cost_is_negative() {
        // The second class seems to save time.
        let fit = fitted(&[(&[10.0, 0.0], 10.0), (&[10.0, 5.0], 8.0), (&[20.0, 0.0], 20.0), (&[10.0, 9.0], 7.0)]);
        let fit = fit.expect("a fit");
        assert!(fit.costs[0] > 0.0 && fit.costs[1] == 0.0 && fit.error > 0.0, "{fit:?}");
    }

    #[test]
    fn few_functions_get_few_classes() {
        let fit = fitted(&[(&[10.0, 3.0], 10.0), (&[10.0, 5.0], 14.0), (&[0.0, 0.0], 1.0)]).expect("a fit");
        assert_eq!((fit.costs.iter().filter(|cost| **cost > 0.0).count(), fit.rows), (1, 2));
        assert_eq!(fitted(&[]), None);
        assert_eq!(fitted(&[(&[0.0], 1.0), (&[1.0], 0.0), (&[f64::NAN], 1.0), (&[f64::INFINITY], 1.0)]), None);
        // Classes that cannot be told apart.
        let fit = fitted(&[(&[1.0, 2.0], 2.0), (&[2.0, 4.0], 4.0), (&[4.0, 8.0], 8.0), (&[3.0, 6.0], 6.0)]);
        assert_eq!(fit.expect("a fit").costs, [2.0, 0.0]);
    }
}
