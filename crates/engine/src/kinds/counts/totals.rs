//! Event totals by thread: what each thread has executed in the counted functions, up to its present instruction.

use ingraft_model::Tid;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{ThreadTotals, TotalsReading};
use crate::background::each;
use crate::error::Error;
use crate::kinds::profile::functions::Functions;
use crate::readings::values::Rows;
use crate::session::{Locked, now_ns};
use crate::weaving::positions::ProgramCounters;

use super::CountsKind;
use super::doubts;
use super::plan::{CountsPlan, Numbers};

/// A thread or several threads that have one total.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    /// A thread with a shard of its own, or one that has not counted.
    One(Tid),
    /// Threads that have ended.
    Ended,
    /// Threads that share counters.
    Shared,
}

/// The threads of a reading.
#[derive(Debug)]
struct Threads {
    living: FxHashSet<Tid>,
    /// Whether the target has ended, or was not held.
    over: bool,
    /// Threads with a shard.
    with_shard: FxHashSet<Tid>,
    /// Whether some threads share counters.
    shared: bool,
}

impl Threads {
    fn new(seen: &ProgramCounters, rows: &Rows) -> Self {
        Threads {
            living: seen.threads.iter().copied().collect(),
            over: seen.threads.is_empty(),
            with_shard: rows.held.iter().filter_map(|(tid, _)| *tid).collect(),
            shared: rows.held.iter().any(|(tid, values)| tid.is_none() && !values.is_empty()),
        }
    }

    /// Owner of the counters of a shard.
    fn of_shard(&self, tid: Option<Tid>) -> Who {
        match tid {
            Some(tid) if self.over || self.living.contains(&tid) => Who::One(tid),
            Some(_) => Who::Ended,
            None => Who::Shared,
        }
    }

    /// Owner of the counters of a thread that was or is in a function. Without a shard, it may be among those that share counters.
    fn of_thread(&self, tid: Tid, lives: bool) -> Who {
        let has_shard = self.with_shard.contains(&tid);
        match lives || self.over && has_shard {
            true if self.shared && !has_shard => Who::Shared,
            true => Who::One(tid),
            false => Who::Ended,
        }
    }
}

/// Numbers of events by thread. Sums wrap around at 64 bits, so that their order does not matter.
type Sums = FxHashMap<Who, Numbers>;

/// Adds numbers of events, each multiplied by `times`.
fn add(sums: &mut Sums, who: Who, times: i64, numbers: &Numbers) {
    let own = sums.entry(who).or_default();
    for (sum, number) in own.iter_mut().zip(numbers) {
        *sum = sum.wrapping_add(number.wrapping_mul(times));
    }
}

/// Event totals of each thread in the counted functions, at one moment at which all threads are held.
pub fn totals(counts: &CountsKind, at: &Locked<'_>) -> Result<TotalsReading, Error> {
    let functions = &counts.functions;
    let plans: Vec<&CountsPlan> = functions.all.iter().map(|f| &*f.plan).collect();
    // The function of each counter, and the index of the counter there.
    let of_functions = functions.counters(at);
    let places = of_functions.iter().enumerate().flat_map(|(n, of)| (0..of.len()).map(move |index| (n, index)));
    let places: Vec<(usize, usize)> = places.collect();
    let flat: Vec<u32> = of_functions.into_iter().flatten().collect();
    let mut rows = Rows::default();
    let moment = functions.observe(at, &mut |columns| rows = columns.rows(&flat))?;
    let time_ns = now_ns();
    let threads = Threads::new(&moment.seen, &rows);
    learn_increments(&plans, &places, &rows);
    let mut sums: Sums = threads.living.iter().map(|tid| (Who::One(*tid), Numbers::default())).collect();
    for (who, values) in rows
        .held
        .iter()
        .map(|(tid, values)| (threads.of_shard(*tid), values))
        .chain([(Who::Ended, &rows.ended)])
        .filter(|(who, values)| !values.is_empty() || matches!(who, Who::One(_)))
    {
        sums.entry(who).or_default();
        for (index, value) in values {
            let Some((function, counter)) = places.get(*index) else { continue };
            if let Some(numbers) = plans.get(*function).and_then(|plan| plan.increments().get(*counter)) {
                add(&mut sums, who, *value, numbers);
            }
        }
    }
    correct(at, functions, (&moment.seen, &threads), &mut sums);
    let mut inexact = doubts::of_totals(at, functions, &moment);
    if threads.shared {
        inexact.push(
            "threads without counters of their own share a total, and events of one run of a thread may be in both"
                .to_owned(),
        );
    }
    let name = |tid| at.target().thread_name(tid).unwrap_or_default();
    let threads = named(&sums, threads.over, &name, &mut inexact);
    let inexact = (!inexact.is_empty()).then(|| inexact.join("; "));
    Ok(TotalsReading { time_ns, held: moment.held, functions: plans.len(), threads, inexact })
}

/// Adds what threads in the functions have executed besides what their counters tell, and takes away what they had executed before counting
/// began.
fn correct(
    at: &Locked<'_>,
    functions: &Functions<CountsPlan>,
    (seen, threads): (&ProgramCounters, &Threads),
    sums: &mut Sums,
) {
    for (n, stands) in functions.stands(at, seen) {
        let Some(f) = functions.all.get(n) else { continue };
        for stand in &stands {
            add(sums, threads.of_thread(stand.tid, true), 1, &f.plan.executed(at.modules(), stand));
        }
    }
    for f in &functions.all {
        for late in &f.late {
            let tid = late.stand.tid;
            // A thread that has ended since the stop is the same one, too.
            let is_same = |began| at.target().thread_began(tid).is_none_or(|now| now == began);
            let lives = threads.living.contains(&tid) && late.began.is_some_and(is_same);
            add(sums, threads.of_thread(tid, lives), -1, &f.plan.executed(at.modules(), &late.stand));
        }
    }
}

/// The totals with the names of threads, sorted. `over` tells whether the target has ended, or was not held.
fn named(sums: &Sums, over: bool, name: &dyn Fn(Tid) -> String, inexact: &mut Vec<String>) -> Vec<ThreadTotals> {
    let mut all: Vec<ThreadTotals> = Vec::with_capacity(sums.len());
    for (who, numbers) in sums {
        let (tid, ended) = match who {
            Who::One(tid) => (Some(*tid), over),
            Who::Ended => (None, true),
            Who::Shared => (None, false),
        };
        if numbers.iter().any(|number| *number < 0) {
            let whose = tid.map_or_else(|| "several threads".to_owned(), |tid| format!("thread {tid}"));
            inexact.push(format!("no execution has the counts of {whose}"));
        }
        let events = numbers.map(|number| u64::try_from(number).unwrap_or_default());
        let name = tid.filter(|_| !ended).map(name).unwrap_or_default();
        if tid.is_some() || events.iter().any(|number| *number > 0) {
            all.push(ThreadTotals { tid, name, ended, events });
        }
    }
    all.sort_unstable_by_key(|of| (of.tid.is_none(), of.ended, of.tid));
    all
}

/// Computes the increments of the functions that have run, on several processors. Those of the others are not needed.
fn learn_increments(plans: &[&CountsPlan], places: &[(usize, usize)], rows: &Rows) {
    let values = rows.held.iter().map(|(_, values)| values).chain([&rows.ended]).flatten();
    let ran: FxHashSet<usize> = values.filter_map(|(index, _)| Some(places.get(*index)?.0)).collect();
    let ran: Vec<&CountsPlan> = ran.into_iter().filter_map(|n| plans.get(n).copied()).collect();
    each(&ran, |plan| {
        plan.increments();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(tids: &[i32]) -> ProgramCounters {
        ProgramCounters { threads: tids.iter().map(|tid| Tid(*tid)).collect(), ..ProgramCounters::default() }
    }

    #[test]
    fn shards_belong_to_living_threads_or_to_ended_ones() {
        let rows = Rows { held: vec![(Some(Tid(1)), Vec::new()), (None, Vec::new())], ended: Vec::new() };
        let threads = Threads::new(&seen(&[1, 2]), &rows);
        assert!(!threads.shared, "nothing was counted without a shard");
        assert_eq!(threads.of_shard(Some(Tid(1))), Who::One(Tid(1)));
        assert_eq!(threads.of_shard(Some(Tid(7))), Who::Ended);
        assert_eq!(threads.of_shard(None), Who::Shared);
        assert_eq!(threads.of_thread(Tid(2), true), Who::One(Tid(2)));
        assert_eq!(threads.of_thread(Tid(2), false), Who::Ended);
    }

    #[test]
    fn a_thread_without_a_shard_is_among_those_that_share_counters() {
        let rows = Rows { held: vec![(Some(Tid(1)), Vec::new()), (None, vec![(0, 4)])], ended: Vec::new() };
        let threads = Threads::new(&seen(&[1, 2]), &rows);
        assert_eq!(threads.of_thread(Tid(2), true), Who::Shared);
        assert_eq!(threads.of_thread(Tid(1), true), Who::One(Tid(1)));
    }

    #[test]
    fn the_threads_of_an_ended_target_keep_their_totals() {
        let rows = Rows { held: vec![(Some(Tid(1)), vec![(0, 4)])], ended: Vec::new() };
        let threads = Threads::new(&seen(&[]), &rows);
        assert!(threads.over);
        assert_eq!(threads.of_shard(Some(Tid(1))), Who::One(Tid(1)));
        assert_eq!(threads.of_thread(Tid(1), false), Who::One(Tid(1)));
        assert_eq!(threads.of_thread(Tid(2), false), Who::Ended);
    }

    #[test]
    fn impossible_totals_are_told_and_empty_ones_left_out() {
        let mut sums = Sums::default();
        add(&mut sums, Who::One(Tid(5)), -1, &[2, 0, 0, 0, 0]);
        add(&mut sums, Who::One(Tid(3)), 2, &[2, 1, 0, 0, 0]);
        add(&mut sums, Who::Ended, 1, &Numbers::default());
        let mut inexact = Vec::new();
        let all = named(&sums, false, &|tid| format!("t{tid}"), &mut inexact);
        let told: Vec<_> = all.iter().map(|of| (of.tid, of.name.as_str(), of.events)).collect();
        assert_eq!(told, [(Some(Tid(3)), "t3", [4, 2, 0, 0, 0]), (Some(Tid(5)), "t5", [0; 5])]);
        assert_eq!(inexact, ["no execution has the counts of thread 5"]);
    }
}
