//! Event totals of a profile by thread: what each thread has executed in the profiled functions, up to its present instruction.

use ingraft_model::Tid;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::api::{MeasurementId, ThreadTotals, TotalsReading};
use crate::background::each;
use crate::error::Error;
use crate::profile::plan::{Numbers, Plan};
use crate::readings::values::Rows;
use crate::weaving::positions::Seen;

use super::clocks::now_ns;
use super::control::Control;
use super::driver::Session;
use super::errors::no_measurement;
use super::profile::{Profile, Stand, counters, no_profile, stands};

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
    fn new(seen: &Seen, rows: &Rows) -> Self {
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

impl Session {
    /// Event totals of each thread in the functions of a profile, at one moment at which all threads are held.
    pub fn event_totals(&self, id: MeasurementId) -> Result<TotalsReading, Error> {
        let control = self.control();
        let measurement = control.measurements.get(&id).ok_or_else(|| no_measurement(id))?;
        let profile = control.profiles.get(&id).filter(|profile| profile.rounds.is_none());
        let profile = profile.ok_or_else(|| no_profile(id))?;
        let _acting = self.target.act_for(measurement.rights);
        let plans: Vec<&Plan> = profile.functions.iter().map(|f| &*f.plan).collect();
        // The function of each counter, and the index of the counter there.
        let of_functions = counters(&control, profile);
        let places = of_functions.iter().enumerate().flat_map(|(n, of)| (0..of.len()).map(move |index| (n, index)));
        let places: Vec<(usize, usize)> = places.collect();
        let flat: Vec<u32> = of_functions.into_iter().flatten().collect();
        let mut rows = Rows::default();
        let (leap_counters, mut leaps) = (Session::leap_counters(&control, measurement), Vec::new());
        let (seen, held, ended) = self.observe(&control, &mut |columns| {
            rows = columns.rows(&flat);
            leaps = leap_counters.iter().map(|counter| columns.sum(*counter).cast_unsigned()).collect();
        })?;
        let time_ns = now_ns();
        let threads = Threads::new(&seen, &rows);
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
        self.correct(&control, profile, &plans, (&seen, &threads), &mut sums);
        let mut inexact = doubts(&control, profile, &seen, ended);
        inexact.extend(Session::leaps_of(&control, measurement, &leaps).words());
        if threads.shared {
            inexact.push(
                "threads without counters of their own share a total, and events of one run of a thread may be in both"
                    .to_owned(),
            );
        }
        let all: Vec<ThreadTotals> = self.named(&sums, &threads, &mut inexact);
        let inexact = (!inexact.is_empty()).then(|| inexact.join("; "));
        Ok(TotalsReading { time_ns, held, functions: plans.len(), threads: all, inexact })
    }

    /// Adds what threads in the functions have executed besides what their counters tell, and takes away what they had executed before
    /// counting began.
    fn correct(
        &self,
        control: &Control,
        profile: &Profile,
        plans: &[&Plan],
        (seen, threads): (&Seen, &Threads),
        sums: &mut Sums,
    ) {
        if let Some(attached) = &control.attached {
            for (n, stands) in stands(control, &attached.woven, plans, seen, false) {
                let Some(plan) = plans.get(n) else { continue };
                for stand in &stands {
                    add(sums, threads.of_thread(stand.tid, true), 1, &executed(control, plan, stand));
                }
            }
        }
        for f in &profile.functions {
            for late in &f.late {
                let tid = late.stand.tid;
                // A thread that has ended since the stop is the same one, too.
                let is_same = |began| self.target.thread_began(tid).is_none_or(|now| now == began);
                let lives = threads.living.contains(&tid) && late.began.is_some_and(is_same);
                add(sums, threads.of_thread(tid, lives), -1, &executed(control, &f.plan, &late.stand));
            }
        }
    }

    /// The totals with the names of threads, sorted.
    fn named(&self, sums: &Sums, threads: &Threads, inexact: &mut Vec<String>) -> Vec<ThreadTotals> {
        let mut all: Vec<ThreadTotals> = Vec::with_capacity(sums.len());
        for (who, numbers) in sums {
            let (tid, ended) = match who {
                Who::One(tid) => (Some(*tid), threads.over),
                Who::Ended => (None, true),
                Who::Shared => (None, false),
            };
            if numbers.iter().any(|number| *number < 0) {
                let whose = tid.map_or_else(|| "several threads".to_owned(), |tid| format!("thread {tid}"));
                inexact.push(format!("no execution has the counts of {whose}"));
            }
            let events = numbers.map(|number| u64::try_from(number).unwrap_or_default());
            let name = tid.filter(|_| !ended).and_then(|tid| self.target.thread_name(tid)).unwrap_or_default();
            if tid.is_some() || events.iter().any(|number| *number > 0) {
                all.push(ThreadTotals { tid, name, ended, events });
            }
        }
        all.sort_unstable_by_key(|of| (of.tid.is_none(), of.ended, of.tid));
        all
    }
}

/// Events that a thread in a function has executed besides what its counters tell.
pub(super) fn executed(control: &Control, plan: &Plan, stand: &Stand) -> Numbers {
    let module = plan.resolve(&control.modules).map(|(module, _)| module);
    let part = |(block, until)| module.map_or_else(Numbers::default, |module| plan.part(module, block, until));
    let executed = [
        stand.run.map_or_else(Numbers::default, |position| plan.before(position)),
        stand.left.map_or_else(Numbers::default, |block| part((block, None))),
        part(stand.part),
    ];
    let mut sum = Numbers::default();
    for numbers in &executed {
        sum.iter_mut().zip(numbers).for_each(|(sum, number)| *sum = sum.wrapping_add(*number));
    }
    sum
}

/// Computes the increments of the functions that have run, on several processors. Those of the others are not needed.
fn learn_increments(plans: &[&Plan], places: &[(usize, usize)], rows: &Rows) {
    let values = rows.held.iter().map(|(_, values)| values).chain([&rows.ended]).flatten();
    let ran: FxHashSet<usize> = values.filter_map(|(index, _)| Some(places.get(*index)?.0)).collect();
    let ran: Vec<&Plan> = ran.into_iter().filter_map(|n| plans.get(n).copied()).collect();
    each(&ran, |plan| {
        plan.increments();
    });
}

/// Reasons why totals are not exact.
pub(super) fn doubts(control: &Control, profile: &Profile, seen: &Seen, ended: u64) -> Vec<String> {
    let mut doubts = Vec::new();
    let gone = profile.functions.iter().filter(|f| !control.pairs.contains_key(&f.key)).count();
    if gone > 0 {
        doubts.push(format!("the code of {gone} of {} functions was taken out", profile.functions.len()));
    }
    if control.family {
        doubts.push("fork children count with the target, for another measurement".to_owned());
    }
    let bound = "which may change its total by the events of one run";
    if profile.unknown > 0 {
        doubts.push(format!("{} at unknown places when counting began, {bound}", were(profile.unknown)));
    }
    for tid in &seen.unknown {
        doubts.push(format!("thread {tid} is at an unknown place, {bound}"));
    }
    if ended > 0 {
        doubts.push(format!("{} cut off by the end of the process, {bound}", were(ended)));
    }
    doubts
}

fn were(threads: u64) -> String {
    if threads == 1 { "1 thread was".to_owned() } else { format!("{threads} threads were, each") }
}
