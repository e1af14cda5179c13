//! Reasons why counts are not exact: threads whose places are not known, and leaps out of signal handlers. Each may change the counts of one
//! path by 1, but only in functions in which the thread has counted.

use ingraft_model::Tid;
use rustc_hash::FxHashSet;

use crate::kinds::profile::functions::{Functions, Moment};
use crate::readings::values::Rows;
use crate::session::Locked;

use super::plan::CountsPlan;

/// Reasons why the counts of a function are not exact.
#[derive(Clone, Debug, Default)]
pub struct CountDoubts {
    /// Whether the function's code was taken out before the counts were read.
    pub taken_out: bool,
    /// Whether fork children count with the target.
    pub family: bool,
    /// Number of threads that were at unknown places when counting began or ended.
    pub unknown: u64,
    /// Leaps that may concern the function; `None` if there were none.
    pub leaps: Option<String>,
}

impl CountDoubts {
    /// The reasons in words; `None` if the counts are exact.
    pub fn words(self) -> Option<String> {
        if self.taken_out {
            return Some("its code was taken out before the profile was read".to_owned());
        }
        if self.family {
            return Some("fork children count with the target, for another measurement".to_owned());
        }
        let unknown = match self.unknown {
            0 => None,
            1 => Some("1 thread was at an unknown place, which may change the counts of one path by 1".to_owned()),
            n => Some(format!("{n} threads were at unknown places: each may change the counts of one path by 1")),
        };
        let reasons: Vec<String> = unknown.into_iter().chain(self.leaps).collect();
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }
}

/// For each function, the number of threads that may have been in one of its runs: those at unknown places, and those that the end of the
/// target has stopped. `counters` has the counters of each function.
pub fn suspects(at: &Locked<'_>, counters: &[Vec<u32>], moment: &Moment) -> Vec<u64> {
    let unknown: FxHashSet<Tid> = moment.seen.unknown.iter().copied().collect();
    if unknown.is_empty() && moment.cut_off == 0 {
        return Vec::new();
    }
    let flat: Vec<u32> = counters.iter().flatten().copied().collect();
    let lengths = counters.iter().map(Vec::len);
    match at.columns(|columns| columns.rows(&flat)) {
        Some(rows) => suspects_in(&rows, lengths, &unknown, moment.cut_off),
        None => vec![unknown.len() as u64 + moment.cut_off; counters.len()],
    }
}

/// The suspects by the values of the counters, of which `lengths` says how many each function has.
///
/// A thread without a shard of its own may be any of those that share counters. If it has a shard no more, its counters are no evidence.
fn suspects_in(rows: &Rows, lengths: impl Iterator<Item = usize>, unknown: &FxHashSet<Tid>, cut_off: u64) -> Vec<u64> {
    let most = unknown.len() as u64 + cut_off;
    let with_shard: FxHashSet<Tid> = rows.held.iter().filter_map(|(tid, _)| *tid).collect();
    let elsewhere = unknown.iter().filter(|tid| !with_shard.contains(tid)).count() as u64;
    let is_suspect = |tid: &Option<Tid>| cut_off > 0 || tid.is_some_and(|tid| unknown.contains(&tid));
    let mut first = 0;
    let of_function = |length: usize| {
        let range = first..first + length;
        first = range.end;
        let has = |row: &[(usize, i64)]| {
            let from = row.partition_point(|(index, _)| *index < range.start);
            row.get(from).is_some_and(|(index, _)| range.contains(index))
        };
        let counted = rows.held.iter().filter(|(tid, row)| is_suspect(tid) && has(row)).count() as u64;
        let without = rows.held.iter().any(|(tid, row)| tid.is_none() && has(row)) || has(&rows.ended);
        (counted + if without { elsewhere } else { 0 }).min(most)
    };
    lengths.map(of_function).collect()
}

/// Reasons why totals over all functions are not exact.
pub fn of_totals(at: &Locked<'_>, functions: &Functions<CountsPlan>, moment: &Moment) -> Vec<String> {
    let gone = functions.all.iter().filter(|f| at.pair(&f.key).is_none()).count();
    let family = at.has_family();
    let without_counts = functions.all.iter().map(|f| f.plan.runs.unknown().len()).sum();
    let mut words = total_words((gone, functions.all.len()), family, functions.unknown, moment);
    words.extend(left_out(without_counts));
    words.extend(moment.leaps.words());
    words
}

/// The words for blocks without counts ([`ingraft_profile::Runs::unknown`]); `None` if there are none.
pub fn left_out(blocks: usize) -> Option<String> {
    let why = "where control comes from a call or by an exception and no code can count it; all others are exact";
    match blocks {
        0 => None,
        1 => Some(format!("1 block has no count, {why}")),
        several => Some(format!("{several} blocks have no count, {why}")),
    }
}

fn total_words((gone, all): (usize, usize), family: bool, unknown: u64, moment: &Moment) -> Vec<String> {
    let mut doubts = Vec::new();
    if gone > 0 {
        doubts.push(format!("the code of {gone} of {all} functions was taken out"));
    }
    if family {
        doubts.push("fork children count with the target, for another measurement".to_owned());
    }
    let bound = "which may change its total by the events of one run";
    if unknown > 0 {
        doubts.push(format!("{} at unknown places when counting began, {bound}", were(unknown)));
    }
    for tid in &moment.seen.unknown {
        doubts.push(format!("thread {tid} is at an unknown place, {bound}"));
    }
    if moment.cut_off > 0 {
        doubts.push(format!("{} cut off by the end of the process, {bound}", were(moment.cut_off)));
    }
    doubts
}

fn were(threads: u64) -> String {
    if threads == 1 { "1 thread was".to_owned() } else { format!("{threads} threads were, each") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::profile::leaps::Leaps;
    use crate::weaving::positions::ProgramCounters;
    use std::time::Duration;

    #[test]
    fn exact_counts_have_no_doubts() {
        assert_eq!(CountDoubts::default().words(), None);
        let leaps = CountDoubts { leaps: Some("1 jump".to_owned()), ..CountDoubts::default() };
        assert_eq!(leaps.words().as_deref(), Some("1 jump"));
    }

    #[test]
    fn a_function_without_code_is_doubted_for_that_alone() {
        let doubts = CountDoubts { taken_out: true, family: true, unknown: 2, leaps: Some("1 jump".to_owned()) };
        assert_eq!(doubts.words().as_deref(), Some("its code was taken out before the profile was read"));
    }

    #[test]
    fn unknown_threads_come_before_leaps() {
        let words = |unknown, leaps: Option<&str>| {
            CountDoubts { unknown, leaps: leaps.map(str::to_owned), ..CountDoubts::default() }.words().expect("doubts")
        };
        assert_eq!(words(1, None), "1 thread was at an unknown place, which may change the counts of one path by 1");
        assert_eq!(
            words(2, Some("1 jump")),
            "2 threads were at unknown places: each may change the counts of one path by 1; 1 jump"
        );
    }

    /// Rows of two threads: thread 1 has counted in the first function (two counters), thread 2 in the second one (one counter).
    fn rows() -> Rows {
        Rows { held: vec![(Some(Tid(1)), vec![(1, 5)]), (Some(Tid(2)), vec![(2, 7)])], ended: Vec::new() }
    }

    fn suspected(rows: &Rows, unknown: &[i32], cut_off: u64) -> Vec<u64> {
        let unknown = unknown.iter().map(|tid| Tid(*tid)).collect();
        suspects_in(rows, [2, 1, 1].into_iter(), &unknown, cut_off)
    }

    #[test]
    fn a_thread_is_suspected_where_it_has_counted() {
        assert_eq!(suspected(&rows(), &[1], 0), [1, 0, 0]);
        assert_eq!(suspected(&rows(), &[1, 2], 0), [1, 1, 0]);
        assert_eq!(suspected(&rows(), &[], 1), [1, 1, 0], "the end may have stopped any thread");
    }

    #[test]
    fn a_thread_without_a_shard_may_be_any_that_shares_counters() {
        assert_eq!(suspected(&rows(), &[9], 0), [0, 0, 0]);
        let shared = Rows { held: vec![(None, vec![(0, 3)])], ended: vec![(3, 1)] };
        assert_eq!(suspected(&shared, &[9], 0), [1, 0, 1]);
    }

    #[test]
    fn totals_tell_each_unknown_thread() {
        let seen = ProgramCounters { unknown: vec![Tid(4)], ..ProgramCounters::default() };
        let moment = Moment { seen, cut_off: 2, leaps: Leaps::default(), held: Duration::ZERO };
        let words = total_words((1, 3), true, 1, &moment);
        assert_eq!(
            words,
            [
                "the code of 1 of 3 functions was taken out",
                "fork children count with the target, for another measurement",
                "1 thread was at unknown places when counting began, which may change its total by the events of one run",
                "thread 4 is at an unknown place, which may change its total by the events of one run",
                "2 threads were, each cut off by the end of the process, which may change its total by the events of one run",
            ]
        );
    }
}
