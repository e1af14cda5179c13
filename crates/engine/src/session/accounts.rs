//! Accounts of pairs: the frequency of a pair's snippets, and the cost of a hit.

use std::time::Instant;

use ingraft_codegen::Cost;
use ingraft_model::{Shape, Variable};
use rustc_hash::FxHashMap;

use crate::api::MeasurementId;
use crate::pairs::{Group, Pair};
use crate::readings::values::Columns;
use crate::weaving::cost::Prices;

/// Account of a pair: hits and costs of its snippets.
#[derive(Clone, Debug)]
pub(super) struct Account {
    /// The first counter of the pair's value.
    first: u32,
    meters: Vec<MeterAccount>,
}

/// Costs of the hits that one counter counts.
#[derive(Clone, Copy, Debug)]
struct MeterAccount {
    counter: u32,
    /// Sum of the worst cases over all points of the snippet, and the number of these points.
    cost: Cost,
    points: u32,
    /// Number of pairs that share the code.
    members: u32,
    /// Cost in nanoseconds of the hits before the latest change of the points, and their number.
    before_ns: f64,
    before: i64,
}

impl MeterAccount {
    /// Worst case of a hit in nanoseconds: the mean over the points, divided by the number of pairs that share the code.
    fn hit_ns(&self) -> f64 {
        Prices::here().ns(self.cost) / f64::from(self.points.max(1)) / f64::from(self.members.max(1))
    }

    /// Worst case of all hits so far, in nanoseconds.
    fn spent_ns(&self, columns: &Columns<'_>) -> f64 {
        let hits = columns.sum(self.counter).wrapping_sub(self.before).max(0);
        self.before_ns + hits as f64 * self.hit_ns()
    }

    /// The account after a change of its points. Without points the cost stays as it is, because there are no further hits.
    fn with(self, new: Option<&(Cost, u32)>, members: u32, columns: Option<&Columns<'_>>) -> Self {
        let before = (self.cost, self.points, self.members);
        match (new, columns) {
            (Some((cost, points)), Some(columns)) if (*cost, *points, members) != before => MeterAccount {
                cost: *cost,
                points: *points,
                members,
                before_ns: self.spent_ns(columns),
                before: columns.sum(self.counter),
                ..self
            },
            _ => self,
        }
    }
}

/// A counter, and the cost of a hit that it counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    counter: u32,
    hit_ns: f64,
}

impl Account {
    /// Worst case of a hit in nanoseconds, summed over the snippets.
    pub fn hit_ns(&self) -> f64 {
        self.meters.iter().map(MeterAccount::hit_ns).sum()
    }

    /// Mean rate of the pair's code over the latest `seconds`.
    pub fn mean(&self, columns: &Columns<'_>, seconds: f64) -> PairRate {
        let most = self.meters.iter().map(|m| columns.sum(m.counter).max(0) as f64 / seconds);
        PairRate { hits_per_s: most.fold(0.0, f64::max), ns_per_s: self.spent_ns(columns) / seconds }
    }

    /// Worst case of all hits so far, in nanoseconds.
    pub fn spent_ns(&self, columns: &Columns<'_>) -> f64 {
        self.meters.iter().map(|m| m.spent_ns(columns)).sum()
    }
}

/// Rates of hits by the latest two looks at the counters.
#[derive(Debug, Default)]
pub(super) struct Rates {
    at: Option<Instant>,
    /// Number of the latest look, from 1.
    round: u32,
    /// Hits by counter.
    hits: Vec<Hits>,
    /// Number of looks in a row at which a measurement was over its limit.
    pub over: FxHashMap<MeasurementId, u32>,
}

/// Hits of a snippet.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    /// Number of the look at which the hits were read.
    round: u32,
    total: i64,
    /// Hits per second; `None` before the second look.
    per_s: Option<f64>,
}

impl Rates {
    /// Reads the counters of a bill. Returns their total cost in nanoseconds of processor time per second.
    pub fn look(&mut self, bill: &[Item], columns: &Columns<'_>) -> f64 {
        let now = Instant::now();
        let before = self.at.replace(now);
        let seconds = before.map_or(0.0, |before| now.saturating_duration_since(before).as_secs_f64()).max(1e-6);
        self.round = self.round.saturating_add(1);
        let places = bill.last().map_or(0, |last| last.counter as usize + 1);
        self.hits.resize(places, Hits::default());
        let mut sum = 0.0;
        for item in bill {
            let Some(hits) = self.hits.get_mut(item.counter as usize) else { continue };
            let (before, total) = (*hits, columns.sum(item.counter));
            let known = before.round != 0 && before.round + 1 == self.round;
            let per_s = known.then(|| total.wrapping_sub(before.total).max(0) as f64 / seconds);
            *hits = Hits { round: self.round, total, per_s };
            sum += per_s.unwrap_or(0.0) * item.hit_ns;
        }
        sum
    }

    /// Rate of a pair between the latest two looks; `None` before the second one.
    pub fn of(&self, account: &Account) -> Option<PairRate> {
        let mut rate = PairRate::default();
        for meter in &account.meters {
            let hits = self.hits.get(meter.counter as usize).filter(|hits| hits.round == self.round)?;
            let per_s = hits.per_s?;
            rate.hits_per_s = rate.hits_per_s.max(per_s);
            rate.ns_per_s += per_s * meter.hit_ns();
        }
        Some(rate)
    }
}

/// Rate of a pair.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PairRate {
    /// Runs per second of the snippet that runs most often.
    pub hits_per_s: f64,
    /// Cost in nanoseconds of processor time per second.
    pub ns_per_s: f64,
}

/// The accounts of all pairs of a target.
#[derive(Default)]
pub(super) struct Ledger {
    /// Accounts by the first counter of the value of their pairs.
    accounts: FxHashMap<u32, Account>,
    /// The meters of all accounts in the order of their counters, computed at the first request. The thread `watch` of the session reads
    /// them all the time.
    bill: Option<Vec<Item>>,
    /// Cost so far of the pairs whose accounts are closed, in nanoseconds of processor time.
    closed_ns: f64,
}

impl Ledger {
    /// The account of the pair whose value begins at a counter.
    pub fn get(&self, first: u32) -> Option<&Account> {
        self.accounts.get(&first)
    }

    /// The account of a pair after a change, including its share in the code of its group. `costs` has, by counter, the sum of the worst
    /// cases over all points of a snippet, and their number.
    pub fn account(
        &self,
        (pair, group): (&Pair, Option<&Group>),
        costs: &FxHashMap<u32, (Cost, u32)>,
        columns: Option<&Columns<'_>>,
    ) -> Option<Account> {
        let first = *pair.counters.first()?;
        let known = self.accounts.get(&first);
        let meter = |(counter, members): (u32, u32)| {
            let new = costs.get(&counter);
            let old = known.and_then(|a| a.meters.iter().find(|m| m.counter == counter));
            match (old, new) {
                (Some(old), new) => Some(old.with(new, members, columns)),
                (None, Some((cost, points))) => {
                    let (cost, points) = (*cost, *points);
                    // the hits of shared code before the pair joined belong to the other pairs
                    let before = columns.filter(|_| group.is_some()).map_or(0, |columns| columns.sum(counter));
                    Some(MeterAccount { counter, cost, points, members, before_ns: 0.0, before })
                }
                (None, None) => None,
            }
        };
        let own = own_counters(&pair.counters, &pair.variables).map(|counter| (counter, 1));
        let shared = group.into_iter().flat_map(|group| group.hits.iter().map(|hits| (*hits, group.members())));
        Some(Account { first, meters: own.chain(shared).filter_map(meter).collect() })
    }

    /// Replaces all accounts.
    pub fn replace(&mut self, accounts: Vec<Account>) {
        self.accounts = accounts.into_iter().map(|account| (account.first, account)).collect();
        self.bill = None;
    }

    /// Removes and returns the accounts of pairs that are removed.
    pub fn remove(&mut self, firsts: impl Iterator<Item = u32>) -> Vec<Account> {
        let removed: Vec<Account> = firsts.filter_map(|first| self.accounts.remove(&first)).collect();
        if !removed.is_empty() {
            self.bill = None;
        }
        removed
    }

    /// Adds the cost of removed accounts, in nanoseconds of processor time.
    pub fn add_closed(&mut self, ns: f64) {
        self.closed_ns += ns;
    }

    /// Cost so far of the pairs of removed accounts, in nanoseconds of processor time.
    pub fn closed_ns(&self) -> f64 {
        self.closed_ns
    }

    /// Cost so far of all pairs, in nanoseconds of processor time.
    pub fn spent_ns(&self, columns: Option<&Columns<'_>>) -> f64 {
        let open: f64 = columns.map_or(0.0, |columns| self.accounts.values().map(|a| a.spent_ns(columns)).sum());
        self.closed_ns + open
    }

    /// Cost of all pairs between the latest two looks, in nanoseconds of processor time per second.
    pub fn ns_per_s(&self, rates: &Rates) -> f64 {
        self.accounts.values().filter_map(|account| rates.of(account)).map(|rate| rate.ns_per_s).sum()
    }

    /// The meters of all accounts in the order of their counters, if they were listed.
    pub fn bill(&self) -> Option<&[Item]> {
        self.bill.as_deref()
    }

    /// Lists the meters of all accounts.
    pub fn write_bill(&mut self) {
        let meters = self.accounts.values().flat_map(|account| &account.meters);
        let mut bill: Vec<_> = meters.map(|m| Item { counter: m.counter, hit_ns: m.hit_ns() }).collect();
        bill.sort_unstable_by_key(|item| item.counter);
        // the pairs of a group share one counter
        bill.dedup_by(|later, first| {
            let same = later.counter == first.counter;
            if same {
                first.hit_ns += later.hit_ns;
            }
            same
        });
        self.bill = Some(bill);
    }
}

/// Number of pairs by the clock of their timer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timers {
    /// Pairs with a timer of the wall clock.
    pub wall: i64,
    /// Pairs with a timer of processor time.
    pub cpu: i64,
    /// Pairs without a timer.
    pub none: i64,
}

/// The counters of a pair's variables. The number of an event is no counter, and an alias stands for another pair's counter.
fn own_counters(counters: &[u32], variables: &[Variable]) -> impl Iterator<Item = u32> {
    let is_own = |variable: &Variable| !matches!(variable.shape, Shape::Event | Shape::Alias(_));
    counters.iter().zip(variables).filter(move |(_, variable)| is_own(variable)).map(|(counter, _)| *counter)
}

#[cfg(test)]
mod tests {

    use super::*;
    use ingraft_model::{ValueUnit, VariableKind};

    #[test]
    fn the_number_of_an_event_is_no_counter() {
        let variable = |shape| Variable {
            name: String::new(),
            kind: VariableKind::Scratch,
            shape,
            unit: ValueUnit::Plain,
            sampled: false,
        };
        let variables = [Shape::Counter, Shape::Event, Shape::Activations].map(variable);
        assert_eq!(own_counters(&[4, 0, 5], &variables).collect::<Vec<_>>(), [4, 5]);
    }
}
