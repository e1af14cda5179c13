//! Histories of values, and the phases of a measurement.

use ingraft_api::Phase;
use ingraft_model::history::INTERVAL_NS;
use ingraft_model::{Bin, Course, History};

use crate::field::FieldError;
use crate::v1;

messages! {
    Phase => Phase { number, name, start_ns, end_ns }
}

impl From<(u32, &History)> for v1::PairHistory {
    fn from((pair, history): (u32, &History)) -> Self {
        let bin = |&Bin { intervals, sum, min, max }: &Bin| v1::Bin { intervals, sum, min, max };
        v1::PairHistory {
            pair,
            start_ns: history.start_ns(),
            width_ns: history.width_ns(),
            interval_ns: INTERVAL_NS,
            bins: history.bins().iter().map(bin).collect(),
        }
    }
}

/// Reads the history of a pair.
pub fn history(history: v1::PairHistory, course: Course) -> Result<History, FieldError> {
    let bin = |v1::Bin { intervals, sum, min, max }: v1::Bin| Bin { intervals, sum, min, max };
    let bins = history.bins.into_iter().map(bin).collect();
    if history.interval_ns != INTERVAL_NS {
        return Err(FieldError::new("histories.interval_ns", "is another version's"));
    }
    History::from_parts(course, history.start_ns, history.width_ns, bins)
        .ok_or_else(|| FieldError::new("histories.width_ns", "is no history's"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::comes_back;
    use crate::field::round_trips;

    #[test]
    fn histories_come_back() {
        round_trips::<Phase, v1::Phase>();
        comes_back(|values: Vec<i64>| {
            let mut recorded = History::new(Course::Total, 5, 5, 0);
            (1..).zip(&values).for_each(|(n, value)| recorded.record(5 + n * INTERVAL_NS, *value));
            let back = history(v1::PairHistory::from((0, &recorded)), Course::Total).map_err(|e| e.to_string())?;
            if back.bins() == recorded.bins() { Ok(values) } else { Err(format!("{back:?}")) }
        });
    }
}
