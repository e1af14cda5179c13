//! Classes of functions: those that hold most of the recent samples are counted, and those of them whose calls are rare enough are timed. A
//! decision each second says what rises and what falls. It touches nothing.

use std::cmp::Reverse;

/// Part of the recent samples whose functions are counted.
const PART: f64 = 0.95;
/// Number of recent samples before any function is counted, and of one function before it is.
const SAMPLES_MIN: f64 = 50.0;
const OWN_MIN: f64 = 3.0;
/// A counted function stays hot as long as it has this part of the samples that the last of the hot functions has.
const STAYS: f64 = 0.5;
/// Number of decisions in a row after which counters that are not hot are removed.
pub(super) const COLD: u32 = 5;
/// Largest number of functions of one insertion, and of all at a time.
const FUNCTIONS_MAX: usize = 64;
const ALL_MAX: usize = 256;
/// Time in seconds by which a clock makes a call longer.
const CLOCK_COST: f64 = 20e-9;

/// A function before a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct ClassedFunction {
    /// Recent samples in the function itself; older ones count less.
    pub(super) samples: f64,
    /// Whether it has a counter, and whether it has a clock.
    pub(super) is_counted: bool,
    pub(super) is_timed: bool,
    /// Calls in a second; `None` if it has no counter, or if that was inserted just now.
    pub(super) rate: Option<f64>,
    /// Whether it can have no counter, or no clock.
    pub(super) never_counted: bool,
    pub(super) never_timed: bool,
}

/// A decision: numbers of functions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClassChanges {
    /// Functions that get a counter.
    pub(super) count: Vec<usize>,
    /// Counted functions that get a clock.
    pub(super) time: Vec<usize>,
    /// Functions that are hot: their counters stay.
    pub(super) hot: Vec<usize>,
    /// Functions whose clocks stay: they are hot, and the clocks fit the budget.
    pub(super) timed: Vec<usize>,
}

/// Part of a processor that the clock of a function with so many calls in a second takes.
pub(super) fn cost(rate: f64) -> f64 {
    rate * CLOCK_COST
}

/// Decides about functions. `budget` is the part of a processor that all clocks may take.
pub(super) fn decide(functions: &[ClassedFunction], budget: f64) -> ClassChanges {
    let mut order: Vec<usize> = (0..functions.len()).filter(|i| functions[*i].samples > 0.0).collect();
    order.sort_by(|a, b| functions[*b].samples.total_cmp(&functions[*a].samples).then(a.cmp(b)));
    let all: f64 = order.iter().map(|i| functions[*i].samples).sum();
    let mut changes = ClassChanges::default();
    if all < SAMPLES_MIN {
        // Too little is known to change anything.
        let those = |is_it: fn(&ClassedFunction) -> bool| (0..functions.len()).filter(move |i| is_it(&functions[*i]));
        changes.hot = those(|f| f.is_counted).collect();
        changes.timed = those(|f| f.is_timed).collect();
        return changes;
    }
    let (mut before, mut least) = (0.0, f64::INFINITY);
    for i in order {
        let ClassedFunction { samples, is_counted, .. } = functions[i];
        let is_hot = before < PART * all && samples >= OWN_MIN;
        if is_hot {
            least = samples;
        }
        if is_hot || is_counted && samples >= STAYS * least {
            changes.hot.push(i);
        }
        before += samples;
    }
    let counted = functions.iter().filter(|function| function.is_counted).count();
    let new = changes.hot.iter().copied().filter(|i| !functions[*i].is_counted && !functions[*i].never_counted);
    changes.count = new.take(FUNCTIONS_MAX.min(ALL_MAX.saturating_sub(counted))).collect();
    // Clocks that are in come first, so that functions at the limit do not change places; then those that cost least.
    let mut timed: Vec<(usize, f64)> = changes
        .hot
        .iter()
        .filter(|i| functions[**i].is_counted && !functions[**i].never_timed)
        .filter_map(|i| Some((*i, cost(functions[*i].rate?))))
        .collect();
    timed.sort_by(|(a, of_a), (b, of_b)| {
        let is_in = |i: &usize| Reverse(functions[*i].is_timed);
        is_in(a).cmp(&is_in(b)).then(of_a.total_cmp(of_b)).then(a.cmp(b))
    });
    let mut spent = 0.0;
    for (i, cost) in timed {
        if spent + cost > budget {
            continue;
        }
        spent += cost;
        if functions[i].is_timed {
            changes.timed.push(i);
        } else if changes.time.len() < FUNCTIONS_MAX {
            changes.time.push(i);
        }
    }
    changes
}

/// Tells why no function was ever counted, and what helps. `most` is the largest number of recent samples at a decision; `None` if there was no
/// decision.
pub(super) fn why_none(most: Option<f64>) -> String {
    match most {
        None => {
            "no reading came before the last one; measure for longer (--for), or with a shorter --interval".to_owned()
        }
        Some(most) if most < SAMPLES_MIN => format!(
            "that begins with {SAMPLES_MIN:.0} recent samples of running threads, and there were at most {most:.0}; \
             measure for longer (--for), or under more load"
        ),
        Some(_) => {
            format!(
                "no function had {OWN_MIN:.0} recent samples of its own; measure for longer (--for), or under more load"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampled(samples: f64) -> ClassedFunction {
        ClassedFunction { samples, ..ClassedFunction::default() }
    }

    fn counted(samples: f64, rate: f64) -> ClassedFunction {
        ClassedFunction { is_counted: true, rate: Some(rate), ..sampled(samples) }
    }

    fn timed(samples: f64, rate: f64) -> ClassedFunction {
        ClassedFunction { is_timed: true, ..counted(samples, rate) }
    }

    #[test]
    fn a_command_without_counters_tells_why() {
        assert!(why_none(None).starts_with("no reading came before the last one"));
        let few = why_none(Some(12.3));
        assert!(
            few.starts_with("that begins with 50 recent samples of running threads, and there were at most 12;"),
            "{few}"
        );
        assert!(why_none(Some(80.0)).starts_with("no function had 3 recent samples of its own"));
    }

    #[test]
    fn functions_that_hold_most_samples_get_counters() {
        let found = decide(&[sampled(100.0), sampled(700.0), sampled(190.0), sampled(10.0)], 0.05);
        assert_eq!((found.count, found.time), (vec![1, 2, 0], vec![]));
        assert!(decide(&[sampled(10.0), sampled(20.0)], 0.05).count.is_empty(), "too few samples");
        assert_eq!(decide(&[sampled(60.0), sampled(2.0), sampled(2.0)], 0.05).count, [0], "too few of the others");
        let never = ClassedFunction { never_counted: true, ..sampled(500.0) };
        assert_eq!(decide(&[never, sampled(500.0)], 0.05).count, [1]);
        assert_eq!(decide(&[], 0.05), ClassChanges::default());
    }

    #[test]
    fn counted_functions_rise_to_clocks_that_fit() {
        // A million calls in a second take two hundredths of a processor.
        let found = decide(&[counted(500.0, 1e6), counted(300.0, 1e6), counted(200.0, 1e6)], 0.05);
        assert_eq!((found.time, found.timed, found.hot), (vec![0, 1], vec![], vec![0, 1, 2]));
        let found = decide(&[counted(500.0, 1e9), counted(300.0, 10.0)], 0.05);
        assert_eq!(found.time, [1], "the other one is called too often");
        let unknown = ClassedFunction { rate: None, ..counted(500.0, 0.0) };
        assert!(decide(&[unknown], 0.05).time.is_empty(), "its calls are not known yet");
        let never = ClassedFunction { never_timed: true, ..counted(500.0, 1.0) };
        assert!(decide(&[never], 0.05).time.is_empty());
    }

    #[test]
    fn clocks_fall_when_their_functions_are_called_too_often() {
        let found = decide(&[timed(500.0, 1e9), timed(300.0, 1e6), counted(200.0, 1e5)], 0.05);
        assert_eq!((found.timed, found.time, found.hot.len()), (vec![1], vec![2], 3));
        // The clock that is in keeps its place before one that costs less.
        let found = decide(&[timed(500.0, 2e6), counted(300.0, 1e6)], 0.05);
        assert_eq!((found.timed, found.time), (vec![0], vec![]));
    }

    #[test]
    fn counters_fall_with_their_samples() {
        let found = decide(&[sampled(900.0), counted(60.0, 1.0), counted(40.0, 1.0), counted(1.0, 1.0)], 0.05);
        assert_eq!((found.hot, found.count), (vec![0, 1, 2], vec![0]), "one that is just below the limit stays");
        let found = decide(&[counted(10.0, 1.0), timed(5.0, 1.0)], 0.05);
        assert_eq!((found.hot, found.timed), (vec![0, 1], vec![1]), "without samples nothing falls");
    }

    #[test]
    fn insertions_are_bounded() {
        assert_eq!(decide(&vec![sampled(1000.0); 1000], 0.05).count.len(), FUNCTIONS_MAX);
        let mut many = vec![counted(1000.0, 1.0); ALL_MAX];
        many.extend([sampled(5000.0)]);
        assert!(decide(&many, 1.0).count.is_empty());
    }
}
