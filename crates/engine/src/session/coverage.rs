//! Coverage: the rounds in which probes that have told that their places have run are taken out, and what all probes have told.
//!
//! A round reads the counters of the probes in shared memory, without a stop. All probes that have counted, and those whose answers follow
//! from these, are removed in one stop. Rounds are rarer while nothing new runs, and after a stop that took long, so that threads are held
//! for less than 1 % of the time.

use std::time::{Duration, Instant};

use ingraft_model::{FunctionRef as MdlFunction, Refusal};
use ingraft_profile::{Counted, Coverage, Inside};
use rustc_hash::FxHashSet;

use crate::api::MeasurementId;
use crate::background::each;
use crate::error::Error;
use crate::profile::plan::Plan;
use crate::readings::values::Columns;

use super::control::Control;
use super::driver::Session;
use super::pair::{Pair, Unloaded};
use super::profile::Profiled;

/// Shortest and longest pause between two rounds.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_millis(3200);
/// Number of times that the pause after a stop is longer than the stop.
const HOLD_SHARE: u32 = 100;
/// Number of times that the pause after a round is longer than the work of the engine in it.
const WORK_SHARE: u32 = 4;

/// The rounds of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rounds {
    /// Time of the next round; `None` before the first look.
    next: Option<Instant>,
    pause: Duration,
}

impl Default for Rounds {
    fn default() -> Self {
        Rounds { next: None, pause: SHORTEST }
    }
}

impl Rounds {
    /// Whether a round is due. The first look only begins the first pause.
    fn is_due(&mut self) -> bool {
        let now = Instant::now();
        *self.next.get_or_insert(now + self.pause) <= now
    }

    /// Plans the next round, after one that took `work`, held threads for `held`, and has or has not removed probes.
    fn after(&mut self, news: bool, work: Duration, held: Duration) {
        self.pause = if news { SHORTEST } else { (self.pause * 2).min(LONGEST) };
        let pause = self.pause.max(held * HOLD_SHARE).max(work * WORK_SHARE);
        self.next = Some(Instant::now() + pause);
    }
}

/// The answers of a function's probes, if the values of their counters are these: for each probe whether control has come there; `None` if
/// the probe could not be inserted, or if control may have come there after the library came back without the probe.
fn came(pair: &Pair, values: &[u64]) -> Vec<Option<bool>> {
    let values = values.iter().copied().chain(std::iter::repeat(0));
    let came = |value| (value > 0 || pair.unloaded != Unloaded::Back).then_some(value > 0);
    pair.probes.iter().zip(values).map(|(probe, value)| probe.as_ref().ok().and_then(|_| came(value))).collect()
}

/// A function with a probe that has counted and is still woven: its pair, and what its probes tell.
fn news<'c>(
    control: &'c Control,
    columns: &Columns<'_>,
    function: &'c Profiled,
) -> Option<(&'c Profiled, &'c Pair, Vec<Option<bool>>)> {
    let pair = control.pairs.get(&function.key).filter(|pair| !pair.minis.is_empty())?;
    let values: Vec<u64> = pair.counters.iter().map(|counter| columns.sum(*counter).cast_unsigned()).collect();
    let came = came(pair, &values);
    let left: FxHashSet<u64> = pair.minis.iter().map(|(_, id)| *id).collect();
    let is_new = |(came, probe): (&Option<bool>, &Result<u64, Refusal>)| {
        *came == Some(true) && probe.as_ref().is_ok_and(|id| left.contains(id))
    };
    came.iter().zip(&pair.probes).any(is_new).then_some((function, pair, came))
}

/// Indexes of the probes whose answers are known to be yes.
fn settled(plan: &Plan, coverage: &Coverage) -> impl Iterator<Item = usize> {
    let ran = |place: &Counted| match place {
        Counted::Block(block) => coverage.blocks.get(*block) == Some(&Some(true)),
        Counted::Edge(edge) => coverage.edges.get(*edge) == Some(&Some(true)),
    };
    plan.places().iter().enumerate().filter(move |(_, place)| ran(place)).map(|(n, _)| n)
}

/// Coverage of a function's blocks and edges, and the reason why something is not known; `None` if everything is.
pub(super) fn covered(pair: Option<&Pair>, plan: &Plan, values: &[u64], inside: Inside) -> (Coverage, Option<String>) {
    let came = pair.map_or_else(|| vec![None; plan.places().len()], |pair| came(pair, values));
    let coverage = Coverage::told(&plan.cfg, plan.places(), &came).completed(&plan.cfg, inside);
    let blocks = coverage.blocks.iter().filter(|known| known.is_none()).count();
    let why = (blocks > 0).then(|| {
        let refused =
            |refusal: &Refusal| format!("{blocks} of {} blocks are not known: {refusal}", plan.cfg.blocks.len());
        let first = pair.and_then(|pair| pair.probes.iter().find_map(|probe| probe.as_ref().err()));
        let gone = match pair.map(|pair| pair.unloaded) {
            Some(Unloaded::Back) => "its library was unloaded and loaded again",
            Some(Unloaded::No | Unloaded::Gone) | None => "its probes were taken out before the coverage was read",
        };
        first.map_or_else(|| gone.to_owned(), refused)
    });
    (coverage, why)
}

impl Session {
    /// Takes out the probes of coverages that have told all that they can, if a round is due.
    pub fn retire_covered(&self) {
        // While a request is served, the watch has other things to look at.
        let Ok(mut control) = self.control.try_lock() else { return };
        if self.end.is_known() || control.attached.is_none() {
            return;
        }
        let ids: Vec<MeasurementId> = control.profiles.keys().copied().collect();
        for id in ids {
            let Some(rounds) = control.profiles.get_mut(&id).and_then(|profile| profile.rounds.as_mut()) else {
                continue;
            };
            if !rounds.is_due() {
                continue;
            }
            let begin = Instant::now();
            self.target.take_longest_hold(); // discards the holds of earlier operations
            let news = self.retire_probes(&mut control, id).unwrap_or_else(|error| {
                tracing::debug!(%error, "probes that have told all stay in; it is tried again");
                false
            });
            let held = self.target.take_longest_hold().held;
            if let Some(rounds) = control.profiles.get_mut(&id).and_then(|profile| profile.rounds.as_mut()) {
                rounds.after(news, begin.elapsed(), held);
            }
        }
    }

    /// Takes out the probes of a coverage that have told all that they can. Returns whether there were any.
    fn retire_probes(&self, control: &mut Control, id: MeasurementId) -> Result<bool, Error> {
        let (Some(measurement), Some(profile)) = (control.measurements.get(&id), control.profiles.get(&id)) else {
            return Ok(false);
        };
        if measurement.revoked {
            return Ok(false);
        }
        let _acting = self.target.act_for(measurement.rights);
        let told = {
            let shared = self.shared();
            let Some(columns) = shared.columns() else { return Ok(false) };
            let told: Vec<_> = profile.functions.iter().filter_map(|f| news(control, &columns, f)).collect();
            each(&told, |(f, pair, came)| {
                let inside = Inside { begin: f.began_inside(), end: true };
                let coverage = Coverage::told(&f.plan.cfg, f.plan.places(), came).with_earlier(&f.plan.cfg, inside);
                let ids = settled(&f.plan, &coverage).filter_map(|n| pair.probes.get(n)?.as_ref().ok().copied());
                (f.key.clone(), ids.collect::<FxHashSet<u64>>())
            })
        };
        if told.is_empty() {
            return Ok(false);
        }
        let mut gone: Vec<(MdlFunction, u64)> = Vec::new();
        for (key, ids) in &told {
            let pair = control.pairs.get(key);
            gone.extend(pair.into_iter().flat_map(|pair| &pair.minis).filter(|(_, id)| ids.contains(id)));
        }
        self.withdraw(control, &gone)?;
        for (key, ids) in &told {
            if let Some(pair) = control.pairs.get_mut(key) {
                pair.minis.retain(|(_, id)| !ids.contains(id));
            }
        }
        self.settle_accounts(control);
        tracing::debug!(functions = told.len(), probes = gone.len(), "probes that have told all were taken out");
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_become_rare_while_nothing_new_runs() {
        let mut rounds = Rounds::default();
        assert!(!rounds.is_due());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            rounds.after(false, Duration::ZERO, Duration::ZERO);
            pauses.push(rounds.pause.as_millis());
        }
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 3200, 3200]);
        rounds.after(true, Duration::ZERO, Duration::from_millis(20));
        assert_eq!(rounds.pause, SHORTEST);
        assert!(
            rounds.next.is_some_and(|next| next > Instant::now() + Duration::from_millis(1900)),
            "after a long stop"
        );
    }
}
