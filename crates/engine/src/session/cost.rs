//! Costs of the measurements of a target, and removal of pairs that cost more than allowed.
//!
//! The cost of a pair is the worst case of its snippets times the number of their runs, which counters in the shards count. The thread
//! `watch` of the session reads these counters, so no client has to read values for that. If a measurement exceeds its limit, the thread
//! removes the code of its most expensive pairs until the rest is within the limit. Pairs that only count are reported and stay.

use std::sync::{Arc, MutexGuard, PoisonError};

use ingraft_model::{Clock, FunctionRef as MdlFunction, PointKind, Snippet, Tid};
use rustc_hash::FxHashMap;

use crate::api::{Costs, MeasurementId, PAIRS_TOLD, PairCost, TakenOut};
use crate::error::{Error, Reason};
use crate::measure::internal::{Internal, processors};
use crate::measure::request::Wanted;
use crate::pairs::{Pair, PairKey, is_costly};
use crate::readings::values::{Raw, Shards};
use crate::weaving::cost::Prices;

use super::accounts::{PairRate, Rates, Timers};
use super::clocks::now_ns;
use super::control::{Attached, Control};
use super::driver::Session;
use super::left::LeftCalls;
use super::shared::Shared;

/// Number of consecutive readings at which a measurement must be over its limit. So a short burst of hits removes no pair.
const WINDOWS: u32 = 2;
/// Nanoseconds of processor time per second that are one percent of a processor.
pub(super) const PERCENT: f64 = 1e7;

/// The values of a pair that was taken out.
#[derive(Debug)]
pub(super) struct Frozen {
    /// Values by thread, including ended threads.
    pub rows: Vec<(Option<Tid>, Raw)>,
    /// Time and reason of the removal.
    pub why: TakenOut,
}

/// Cost of a pair before it is inserted, by the worst case of its code.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Predicted {
    /// Nanoseconds of processor time per second.
    pub ns_per_s: f64,
    /// Calls per second of the function that is called most.
    pub hits_per_s: f64,
}

impl Session {
    /// Recomputes the accounts of all pairs after a change of the woven code.
    pub(super) fn settle_accounts(&self, control: &Control) {
        let costs = control.attached.as_ref().map(|a| a.woven.costs()).unwrap_or_default();
        let mut shared = self.shared_mut();
        let columns = shared.columns();
        let group = |pair: &Pair| control.pairs.group_of(pair);
        let account = |pair: &Pair| shared.ledger.account((pair, group(pair)), &costs, columns.as_ref());
        let accounts = control.pairs.values().filter_map(account);
        let accounts = accounts.collect();
        shared.ledger.replace(accounts);
        let count = |clock| control.pairs.values().filter(|p| p.timer() == clock).count() as i64;
        shared.timers = Timers { wall: count(Some(Clock::Wall)), cpu: count(Some(Clock::Cpu)), none: count(None) };
    }

    /// Lists the counters of all accounts, unless that is done already.
    fn write_bill(&self) {
        if self.shared().ledger.bill().is_some() {
            return;
        }
        // prices are measured before the lock is taken, so that no other thread waits for the measurement
        Prices::here();
        self.shared_mut().ledger.write_bill();
    }

    /// Closes the accounts of pairs that are removed: the sum keeps their cost so far.
    pub(super) fn close_accounts(&self, firsts: impl Iterator<Item = u32>) {
        let mut shared = self.shared_mut();
        let closed = shared.ledger.remove(firsts);
        if closed.is_empty() {
            return;
        }
        let spent = shared.columns().map_or(0.0, |columns| closed.iter().map(|a| a.spent_ns(&columns)).sum());
        shared.ledger.add_closed(spent);
    }

    /// Reads how often code runs, and takes out pairs that exceed a limit.
    pub fn hold_limits(&self) {
        self.write_bill();
        let all = {
            let shared = self.shared();
            let (Some(columns), Some(bill)) = (shared.columns(), shared.ledger.bill()) else { return };
            self.rates().look(bill, &columns)
        };
        let mut control = self.control();
        // the costs of single measurements are computed only if one can be over its limit
        if self.end.is_known() || control.measurements.values().all(|m| all <= m.limit * PERCENT) {
            self.rates().over.clear();
            return;
        }
        for id in control.measurements.keys().copied().collect::<Vec<_>>() {
            let costliest = self.excess(&control, id);
            let over = {
                let mut rates = self.rates();
                let over = rates.over.entry(id).or_default();
                *over = if costliest.is_empty() { 0 } else { *over + 1 };
                *over
            };
            if over < WINDOWS {
                continue;
            }
            if let Err(error) = self.take_out(&mut control, &costliest) {
                tracing::warn!(%error, "a measurement that costs too much stays in; it is tried again");
                continue;
            }
            self.settle_accounts(&control);
            self.rates().over.remove(&id);
        }
    }

    /// The pairs of a measurement that must be removed so that the rest is within the limit, with their costs.
    fn excess(&self, control: &Control, id: MeasurementId) -> Vec<(PairKey, TakenOut)> {
        let Some(measurement) = control.measurements.get(&id) else { return Vec::new() };
        let limit = measurement.limit * PERCENT;
        let mut costs: FxHashMap<&PairKey, PairRate> = FxHashMap::default();
        let shared = self.shared();
        let rates = self.rates();
        for view in measurement.views.iter().filter(|v| v.own.is_none()).chain(&measurement.hidden) {
            let pair = control.pairs.get(&view.key).filter(|p| p.is_costly() && p.begins_at(view.value.first));
            let account = pair.and_then(|p| p.counters.first()).and_then(|first| shared.ledger.get(*first));
            if let Some(rate) = account.and_then(|account| rates.of(account)) {
                costs.insert(&view.key, rate);
            }
        }
        // the payer of a pair is searched in all measurements, so only if it matters
        let sum_of = |costs: &FxHashMap<_, PairRate>| costs.values().map(|rate| rate.ns_per_s).sum::<f64>();
        if sum_of(&costs) <= limit {
            return Vec::new();
        }
        // a pair of several measurements stays as long as one of them may pay for it
        costs.retain(|key, _| control.payer(key) == Some(id));
        let mut sum = sum_of(&costs);
        let mut costs: Vec<(PairRate, &PairKey)> = costs.into_iter().map(|(key, rate)| (rate, key)).collect();
        costs.sort_by(|a, b| b.0.ns_per_s.total_cmp(&a.0.ns_per_s));
        let mut out = Vec::new();
        for (rate, key) in costs {
            if sum <= limit {
                break;
            }
            sum -= rate.ns_per_s;
            let why = TakenOut {
                hits_per_s: rate.hits_per_s as u64,
                cost_ns_per_s: rate.ns_per_s as u64,
                limit_ns_per_s: limit as u64,
                ..TakenOut::free(now_ns())
            };
            out.push((key.clone(), why));
        }
        out
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
        self.close_accounts(std::iter::once(value.first));
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
        shared.frozen.insert(value.first, Frozen { rows, why });
        if let Some(area) = &shared.area {
            area.forget(&pair.records());
        }
        drop(shared);
        tracing::info!(metric = key.pair.metric, focus = %key.pair.focus, cost_ns_per_s = why.cost_ns_per_s, "taken out");
    }

    /// Calls per second of the functions in which something counts already.
    pub(super) fn known_rates(&self, control: &Control) -> FxHashMap<MdlFunction, f64> {
        let mut known: FxHashMap<MdlFunction, f64> = FxHashMap::default();
        let shared = self.shared();
        if let (Some(columns), Some(attached)) = (shared.columns(), &control.attached) {
            let rates = self.rates();
            for pair in control.pairs.values() {
                let mut functions = pair.minis.iter().map(|(f, _)| *f);
                let Some(function) = functions.next().filter(|first| functions.all(|f| f == *first)) else { continue };
                let account = pair.counters.first().and_then(|first| shared.ledger.get(*first));
                let Some(account) = account else { continue };
                let rate = rates.of(account).unwrap_or_else(|| account.mean(&columns, attached.seconds()));
                let most = known.entry(function).or_default();
                *most = most.max(rate.hits_per_s);
            }
        }
        known
    }

    /// Refuses a request that is known to exceed its limit, because calls of its functions are counted already.
    pub(super) fn refuse_costly(&self, control: &Control, wanted: &[Wanted], limit: f64) -> Result<(), Error> {
        let known = self.known_rates(control);
        if known.is_empty() {
            return Ok(());
        }
        let predicted = self.predicted(control, wanted, &known);
        let total: f64 = predicted.iter().map(|p| p.ns_per_s).sum();
        let worst = predicted.iter().zip(wanted).max_by(|(a, _), (b, _)| a.ns_per_s.total_cmp(&b.ns_per_s));
        let worst = worst.map(|(p, w)| (p.ns_per_s, p.hits_per_s, w));
        let (true, Some((own, often, w))) = (total > limit * PERCENT, worst) else { return Ok(()) };
        let what = format!(
            "`{}` at {} would cost {:.0} % of one processor ({often:.0} calls a second, {:.1} ns each), more than the limit of {limit} %",
            w.pair.metric,
            w.pair.focus,
            own / PERCENT,
            own / often.max(1.0),
        );
        let hint = format!(
            "measure what is called less often, or allow it with --max-overhead {:.0}",
            (total / PERCENT * 1.5).ceil()
        );
        Err(Error::new(Reason::TooDear, what, hint).about(self.pid()))
    }

    /// The costs of pairs that are not inserted yet and do more than count, if their functions are called so often per second.
    pub(super) fn predicted(
        &self,
        control: &Control,
        wanted: &[Wanted],
        rates: &FxHashMap<MdlFunction, f64>,
    ) -> Vec<Predicted> {
        let mut each: FxHashMap<(*const Snippet, PointKind), f64> = FxHashMap::default();
        let wall = crate::measure::lower::wall_of(self.clocks.wall().ok());
        let mut of = |w: &Wanted| {
            let mut sum = Predicted::default();
            let variables = &w.instrumentation.variables;
            if control.pairs.contains_key(&PairKey::of(w)) || !is_costly(variables) {
                return sum;
            }
            for insertion in &w.instrumentation.insertions {
                let Some(rate) = rates.get(&insertion.function) else { continue };
                let ns = each.entry((Arc::as_ptr(&insertion.snippet), insertion.point)).or_insert_with(|| {
                    crate::measure::lower::worst_case(insertion, variables, wall)
                        .map_or(0.0, |cost| Prices::here().ns(cost))
                });
                sum.ns_per_s += rate * *ns;
                sum.hits_per_s = sum.hits_per_s.max(*rate);
            }
            sum
        };
        wanted.iter().map(&mut of).collect()
    }

    pub(super) fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value of a metric of the engine itself.
    pub(super) fn internal(&self, metric: Internal, shared: &Shared) -> i64 {
        let whole = |ns: f64| ns.round() as i64;
        let threads = || self.target.threads().map_or(0, |t| t.len() as i64);
        let running = !self.end.is_known() && self.target.is_alive();
        match metric {
            Internal::PauseTime => i64::try_from(self.target.time_held().as_nanos()).unwrap_or(i64::MAX),
            Internal::ObservedCost => whole(shared.ledger.spent_ns(shared.columns().as_ref())),
            Internal::PredictedCost => {
                let rates = self.rates();
                if running { whole(shared.ledger.ns_per_s(&rates)) } else { 0 }
            }
            Internal::NumberOfCpus => {
                let list = std::fs::read_to_string("/sys/devices/system/cpu/online").ok();
                let known = list.and_then(|list| processors(&list));
                known.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get() as i64))
            }
            Internal::ActiveThreads | Internal::CurrentThreads if !running => 0,
            Internal::ActiveThreads | Internal::CurrentThreads => threads(),
            Internal::ActCounters => shared.timers.none,
            Internal::ActWallTimers => shared.timers.wall,
            Internal::ActProcTimers => shared.timers.cpu,
            Internal::ActiveProcesses => i64::from(running),
            Internal::CallsLeft
            | Internal::CallsMissed
            | Internal::ReadsFailed
            | Internal::WritesFailed
            | Internal::EventsUnread => {
                let noted = shared.area.as_deref().and_then(|area| match metric {
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
        let mut pairs = Vec::with_capacity(control.pairs.len());
        for (key, pair) in control.pairs.iter() {
            let Some(account) = pair.counters.first().and_then(|first| shared.ledger.get(*first)) else { continue };
            let spent = account.spent_ns(&columns);
            let rate = rates.of(account).unwrap_or_else(|| account.mean(&columns, seconds));
            pairs.push(PairCost {
                pair: Arc::clone(&key.pair),
                hit_ns: account.hit_ns(),
                hits_per_s: rate.hits_per_s,
                cost_ns_per_s: rate.ns_per_s,
                observed_ns: spent,
            });
        }
        pairs.sort_by(|a, b| {
            b.cost_ns_per_s.total_cmp(&a.cost_ns_per_s).then_with(|| a.pair.metric.cmp(&b.pair.metric))
        });
        let observed_ns = shared.ledger.closed_ns() + pairs.iter().map(|p| p.observed_ns).sum::<f64>();
        let cpu = self.target.cpu_time().ok().map(|now| now.saturating_sub(attached.cpu_before).as_secs_f64() * 1e9);
        Costs {
            cost_ns_per_s: pairs.iter().map(|p| p.cost_ns_per_s).sum(),
            observed_ns_per_s: Some(observed_ns / seconds),
            of_target: cpu.filter(|cpu| *cpu > 0.0).map(|cpu| observed_ns / cpu),
            pair_count: pairs.len() as u32,
            pairs: {
                pairs.truncate(PAIRS_TOLD);
                pairs
            },
        }
    }
}

impl Attached {
    /// Seconds since the first insertion, at least a tenth of a second, because rates over less time mean nothing.
    fn seconds(&self) -> f64 {
        (now_ns().saturating_sub(self.since_ns) as f64 / 1e9).max(0.1)
    }
}

impl Control {
    /// The measurement that pays for a pair: of those that measure it, the one with the highest limit.
    fn payer(&self, key: &PairKey) -> Option<MeasurementId> {
        let users = self.measurements.iter().filter(|(_, m)| m.views.iter().chain(&m.hidden).any(|v| v.key == *key));
        users.max_by(|a, b| a.1.limit.total_cmp(&b.1.limit)).map(|(id, _)| *id)
    }
}
