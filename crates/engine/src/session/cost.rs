//! The costs of a session: accounts after each change, limits that are held, and pairs that are taken out.

use std::sync::Arc;
use std::time::Instant;

use ingraft_model::{FunctionId, Insertion, Variable};
use rustc_hash::FxHashMap;

use crate::api::{Costs, MeasurementId, PairCost, TakenOut};
use crate::error::Error;
use crate::measure::internal::{Internal, processors};
use crate::measure::lower::{WorstCases, wall_of};
use crate::measure::request::WantedPair;
use crate::pairs::{Pair, PairKey};
use crate::weaving::cost::Prices;

use super::clocks::now_ns;
use super::control::{Attached, Control};
use super::costs::limits::{excess, most_called, payer, predict, refusal, summary};
use super::costs::{PERCENT, PairRate};
use super::driver::Session;
use super::frozen::Frozen;
use super::left::LeftCalls;
use super::measurement::Measurement;
use super::shared::Shared;

impl Session {
    /// Recomputes the accounts of all pairs after a change of the woven code.
    pub(super) fn settle_accounts(&self, control: &Control) {
        let costs = control.attached.as_ref().map(|a| a.woven.costs()).unwrap_or_default();
        self.shared_mut().settle_accounts(&control.pairs, &costs);
    }

    /// Lists the counters of all accounts, unless that is done already.
    fn write_bill(&self) {
        if self.shared().ledger().bill().is_some() {
            return;
        }
        // prices are measured before the lock is taken, so that no other thread waits for the measurement
        Prices::here();
        self.shared_mut().write_bill();
    }

    /// Reads how often code runs, and takes out pairs that exceed a limit.
    pub fn hold_limits(&self) {
        self.write_bill();
        let all = {
            let shared = self.shared();
            let (Some(columns), Some(bill)) = (shared.columns(), shared.ledger().bill()) else { return };
            self.rates().look(bill, Instant::now(), &|counter| columns.sum(counter))
        };
        let mut control = self.control();
        // the costs of single measurements are computed only if one can be over its limit
        if self.end.is_known() || control.measurements.values().all(|m| all <= m.limit * PERCENT) {
            control.excesses.clear();
            return;
        }
        for id in control.measurements.keys().copied().collect::<Vec<_>>() {
            let costliest = self.excess(&control, id);
            if !control.excesses.note(id, !costliest.is_empty()) {
                continue;
            }
            if let Err(error) = self.take_out(&mut control, &costliest) {
                tracing::warn!(%error, "a measurement that costs too much stays in; it is tried again");
                continue;
            }
            self.settle_accounts(&control);
            control.excesses.forget(id);
        }
    }

    /// The pairs of a measurement that must be removed so that the rest is within the limit, with their costs.
    fn excess(&self, control: &Control, id: MeasurementId) -> Vec<(PairKey, TakenOut)> {
        let Some(measurement) = control.measurements.get(&id) else { return Vec::new() };
        let shared = self.shared();
        let rates = self.rates();
        let mut costs: FxHashMap<&PairKey, PairRate> = FxHashMap::default();
        for view in measurement.views.iter().filter(|v| v.own.is_none()).chain(&measurement.hidden) {
            let first = view.value.first;
            let pair = control.pairs.get(&view.key).filter(|pair| pair.is_costly() && pair.begins_at(first));
            let rate = pair.and_then(|_| rates.of(shared.ledger().get(first)?));
            costs.extend(rate.map(|rate| (&view.key, rate)));
        }
        let pays = |key: &&PairKey| {
            let measures = |m: &Measurement| m.views.iter().chain(&m.hidden).any(|view| view.key == **key);
            let users = control.measurements.iter().filter(|(_, m)| measures(m));
            payer(users.map(|(id, m)| (*id, m.limit))) == Some(id)
        };
        let helps = |key: &&PairKey| key.helps();
        let going = excess(costs.into_iter().collect(), measurement.limit, helps, pays, now_ns());
        going.into_iter().map(|(key, why)| (key.clone(), why)).collect()
    }

    /// Takes the code of pairs out and freezes their values.
    fn take_out(&self, control: &mut Control, pairs: &[(PairKey, TakenOut)]) -> Result<(), Error> {
        let minis = control.pairs.minis_of(&pairs.iter().map(|(key, _)| key).collect());
        let mut left = LeftCalls::of(self, control, pairs.iter().map(|(key, _)| key));
        self.withdraw_fitting(control, &minis, &|plan| plan, Some(&mut left))?;
        for (key, why) in pairs {
            self.freeze(control, key, *why, Some(&left));
        }
        Ok(())
    }

    /// Freezes the values of a pair whose code was taken out. `left` has the numbers of calls that had been left
    /// when its code was taken out; `None` if no other code has run since.
    pub(super) fn freeze(&self, control: &mut Control, key: &PairKey, why: TakenOut, left: Option<&LeftCalls<'_>>) {
        control.retire_keys(std::iter::once(key));
        let Some(pair) = control.pairs.retire(key) else { return };
        let Some((value, activations, unit)) = pair.value() else { return };
        self.shared_mut().close_accounts(&[value.first]);
        let (now, cpu) = (|| self.clocks.now(), |tid| self.clocks.cpu_ticks(&self.target, tid));
        let ruler = self.clocks.ruler(unit, &now, &cpu);
        let mut shared = self.shared_mut();
        let rows = shared.columns().map(|columns| {
            let since = left.map(|left| left.since(pair, &columns)).unwrap_or_default();
            let mut rows = columns.threads(value, &activations, ruler);
            for (tid, raw) in &mut rows {
                raw.activations.left -= since.get(tid).copied().unwrap_or(0).min(raw.activations.left);
            }
            rows
        });
        let rows = rows.unwrap_or_default();
        shared.freeze(value.first, Frozen { rows, why });
        drop(shared);
        tracing::info!(metric = key.pair.metric, focus = %key.pair.focus, cost_ns_per_s = why.cost_ns_per_s, "taken out");
    }

    /// Calls per second of the functions in which something counts already.
    pub(super) fn known_rates(&self, control: &Control) -> FxHashMap<FunctionId, f64> {
        let shared = self.shared();
        let (Some(columns), Some(attached)) = (shared.columns(), &control.attached) else { return Default::default() };
        let rates = self.rates();
        let rate = |pair: &Pair| {
            let account = shared.ledger().get(*pair.counters.first()?)?;
            let sum = |counter| columns.sum(counter);
            let rate = rates.of(account).unwrap_or_else(|| account.mean(&sum, attached.seconds()));
            Some((pair.only_function(), rate.hits_per_s))
        };
        most_called(control.pairs.values().filter_map(rate))
    }

    /// Refuses a request that is known to exceed its limit, because calls of its functions are counted already.
    pub(super) fn refuse_costly(&self, control: &Control, wanted: &[WantedPair], limit: f64) -> Result<(), Error> {
        let known = self.known_rates(control);
        if known.is_empty() {
            return Ok(());
        }
        let predicted = self.predicted(control, wanted, &known);
        let refusal = refusal(&predicted, wanted.iter().map(|w| &*w.pair), limit);
        refusal.map_or(Ok(()), |e| Err(e.about(self.pid())))
    }

    /// The costs of pairs that are not inserted yet and do more than count, if their functions are called so often per second.
    pub(super) fn predicted(
        &self,
        control: &Control,
        wanted: &[WantedPair],
        rates: &FxHashMap<FunctionId, f64>,
    ) -> Vec<PairRate> {
        let worst_cases = WorstCases::new(wall_of(self.clocks.wall().ok()));
        let is_go = |function| control.modules.resolve(function).is_some_and(|(_, m, _)| m.image.elf().is_go());
        let price = |insertion: &Insertion, variables: &[Variable]| {
            worst_cases.of(insertion, variables, is_go(insertion.function)).unwrap_or_default()
        };
        let is_new = |w: &&WantedPair| !control.pairs.contains_key(&PairKey::of(w));
        predict(wanted.iter().map(|w| Some(w).filter(is_new).map(|w| &w.instrumentation)), rates, &price)
    }

    /// The value of a metric of the engine itself.
    pub(super) fn internal(&self, metric: Internal, shared: &Shared) -> i64 {
        let whole = |ns: f64| ns.round() as i64;
        let threads = || self.target.threads().map_or(0, |t| t.len() as i64);
        let running = !self.end.is_known() && self.target.is_alive();
        match metric {
            Internal::PauseTime => i64::try_from(self.target.time_held().as_nanos()).unwrap_or(i64::MAX),
            Internal::ObservedCost => {
                let columns = shared.columns();
                let open = columns.map_or(0.0, |columns| shared.ledger().open_ns(&|counter| columns.sum(counter)));
                whole(shared.ledger().closed_ns() + open + self.rates().waited_ns())
            }
            Internal::PredictedCost => {
                let rates = self.rates();
                if running { whole(shared.ledger().ns_per_s(&rates)) } else { 0 }
            }
            Internal::NumberOfCpus => {
                let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
                let known = list.and_then(|list| processors(&list));
                known.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as i64))
            }
            Internal::ActiveThreads | Internal::CurrentThreads if !running => 0,
            Internal::ActiveThreads | Internal::CurrentThreads => threads(),
            Internal::ActCounters => shared.timers().none,
            Internal::ActWallTimers => shared.timers().wall,
            Internal::ActProcTimers => shared.timers().cpu,
            Internal::ActiveProcesses => i64::from(running),
            Internal::CallsLeft
            | Internal::CallsMissed
            | Internal::ReadsFailed
            | Internal::WritesFailed
            | Internal::EventsUnread => {
                let noted = shared.area().and_then(|area| match metric {
                    Internal::CallsLeft => area.calls_amiss().ok().map(|(left, _)| left),
                    Internal::CallsMissed => area.calls_amiss().ok().map(|(_, missed)| missed),
                    Internal::EventsUnread => area.events_unread().ok(),
                    Internal::WritesFailed => area.writes_failed().ok(),
                    _ => area.reads_failed().ok(),
                });
                noted.map_or(0, i64::from)
            }
        }
    }

    /// Costs of all woven pairs.
    pub(super) fn costs(&self, control: &Control, attached: &Attached) -> Costs {
        let shared = self.shared();
        let rates = self.rates();
        let seconds = attached.seconds();
        let Some(columns) = shared.columns() else { return Costs::default() };
        let sum = |counter| columns.sum(counter);
        let cost = |(key, pair): (&PairKey, &Pair)| {
            let account = shared.ledger().get(*pair.counters.first()?)?;
            let rate = rates.of(account).unwrap_or_else(|| account.mean(&sum, seconds));
            Some(PairCost {
                pair: Arc::clone(&key.pair),
                hit_ns: account.hit_ns(),
                hits_per_s: rate.hits_per_s,
                cost_ns_per_s: rate.ns_per_s,
                observed_ns: account.spent_ns(&sum),
            })
        };
        let pairs = control.pairs.iter().filter_map(cost).collect();
        let cpu = self.target.cpu_time().ok().map(|now| now.saturating_sub(attached.cpu_before).as_secs_f64() * 1e9);
        let closed = shared.ledger().closed_ns() + rates.waited_ns();
        summary(pairs, closed, seconds, cpu)
    }
}

impl Attached {
    /// Seconds since the first insertion, at least a tenth of a second, because rates over less time mean nothing.
    fn seconds(&self) -> f64 {
        (now_ns().saturating_sub(self.since_ns) as f64 / 1e9).max(0.1)
    }
}
