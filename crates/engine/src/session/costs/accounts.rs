//! Accounts of pairs: the counters of the hits of a pair's snippets, and the cost of a hit.

use ingraft_codegen::Cost;
use ingraft_model::{Clock, Shape, Variable};
use rustc_hash::FxHashMap;

use crate::pairs::{Group, Pair};
use crate::weaving::cost::Prices;

use super::caches;
use super::rates::{PairRate, Rates};

/// The present sum of a counter over all threads.
pub type CounterSum<'a> = &'a dyn Fn(u32) -> i64;

/// Account of a pair: hits and costs of its snippets.
#[derive(Clone, Debug)]
pub struct Account {
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
    fn item(&self) -> MeteredCost {
        MeteredCost { counter: self.counter, hit_ns: self.hit_ns(), lines: self.lines() }
    }

    /// Worst case of a hit in nanoseconds: the mean over the points, divided by the number of pairs that share the code.
    fn hit_ns(&self) -> f64 {
        Prices::here().ns(self.cost) / f64::from(self.points.max(1)) / f64::from(self.members.max(1))
    }

    /// Number of lines of a cache that a hit uses, divided like its worst case.
    fn lines(&self) -> f64 {
        let slots = f64::from(self.cost.slots) / f64::from(self.points.max(1));
        caches::lines(slots) / f64::from(self.members.max(1))
    }

    /// Worst case of all hits so far, in nanoseconds.
    fn spent_ns(&self, sum: CounterSum<'_>) -> f64 {
        let hits = sum(self.counter).wrapping_sub(self.before).max(0);
        self.before_ns + hits as f64 * self.hit_ns()
    }

    /// The account after a change of its points. Without points the cost stays as it is, because there are no further hits.
    fn with(self, new: Option<&(Cost, u32)>, members: u32, sum: Option<CounterSum<'_>>) -> Self {
        let before = (self.cost, self.points, self.members);
        match (new, sum) {
            (Some((cost, points)), Some(sum)) if (*cost, *points, members) != before => MeterAccount {
                cost: *cost,
                points: *points,
                members,
                before_ns: self.spent_ns(sum),
                before: sum(self.counter),
                ..self
            },
            _ => self,
        }
    }
}

/// A counter, and the cost of a hit that it counts.
#[derive(Clone, Copy, Debug)]
pub struct MeteredCost {
    /// The counter.
    pub counter: u32,
    /// Worst case of a hit in nanoseconds, if its code is in the caches.
    pub hit_ns: f64,
    /// Number of lines of a cache that a hit uses.
    pub lines: f64,
}

impl Account {
    /// The counters of the pair's snippets.
    pub fn items(&self) -> impl Iterator<Item = MeteredCost> {
        self.meters.iter().map(MeterAccount::item)
    }

    /// Worst case of a hit in nanoseconds, summed over the snippets.
    pub fn hit_ns(&self) -> f64 {
        self.meters.iter().map(MeterAccount::hit_ns).sum()
    }

    /// Mean rate of the pair's code over the latest `seconds`.
    pub fn mean(&self, sum: CounterSum<'_>, seconds: f64) -> PairRate {
        let most = self.meters.iter().map(|m| sum(m.counter).max(0) as f64 / seconds);
        PairRate { hits_per_s: most.fold(0.0, f64::max), ns_per_s: self.spent_ns(sum) / seconds }
    }

    /// Worst case of all hits so far, in nanoseconds.
    pub fn spent_ns(&self, sum: CounterSum<'_>) -> f64 {
        self.meters.iter().map(|m| m.spent_ns(sum)).sum()
    }
}

/// The accounts of all pairs of a target.
#[derive(Default)]
pub struct Ledger {
    /// Accounts by the first counter of the value of their pairs.
    accounts: FxHashMap<u32, Account>,
    /// The meters of all accounts in the order of their counters, computed at the first request. The thread `watch` of the session reads
    /// them all the time.
    bill: Option<Vec<MeteredCost>>,
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
        sum: Option<CounterSum<'_>>,
    ) -> Option<Account> {
        let first = *pair.counters.first()?;
        let known = self.accounts.get(&first);
        let meter = |(counter, members): (u32, u32)| {
            let new = costs.get(&counter);
            let old = known.and_then(|a| a.meters.iter().find(|m| m.counter == counter));
            match (old, new) {
                (Some(old), new) => Some(old.with(new, members, sum)),
                (None, Some((cost, points))) => {
                    let (cost, points) = (*cost, *points);
                    // the hits of shared code before the pair joined belong to the other pairs
                    let before = sum.filter(|_| group.is_some()).map_or(0, |sum| sum(counter));
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

    /// Cost so far of these pairs, in nanoseconds of processor time.
    pub fn spent_by(&self, firsts: &[u32], sum: CounterSum<'_>) -> f64 {
        firsts.iter().filter_map(|first| self.accounts.get(first)).map(|account| account.spent_ns(sum)).sum()
    }

    /// Closes the accounts of pairs that are removed: the total keeps their cost so far, which is `spent_ns`.
    pub fn close(&mut self, firsts: &[u32], spent_ns: f64) {
        self.closed_ns += spent_ns;
        let closed = firsts.iter().filter(|first| self.accounts.remove(first).is_some()).count();
        if closed > 0 {
            self.bill = None;
        }
    }

    /// Cost so far of the pairs of removed accounts, in nanoseconds of processor time.
    pub fn closed_ns(&self) -> f64 {
        self.closed_ns
    }

    /// Cost so far of the pairs whose accounts are open, in nanoseconds of processor time.
    pub fn open_ns(&self, sum: CounterSum<'_>) -> f64 {
        self.accounts.values().map(|account| account.spent_ns(sum)).sum()
    }

    /// Cost of all pairs between the latest two looks, in nanoseconds of processor time per second.
    pub fn ns_per_s(&self, rates: &Rates) -> f64 {
        self.accounts.values().filter_map(|account| rates.of(account)).map(|rate| rate.ns_per_s).sum()
    }

    /// The meters of all accounts in the order of their counters, if they were listed.
    pub fn bill(&self) -> Option<&[MeteredCost]> {
        self.bill.as_deref()
    }

    /// Lists the meters of all accounts.
    pub fn write_bill(&mut self) {
        let meters = self.accounts.values().flat_map(|account| &account.meters);
        let mut bill: Vec<_> = meters.map(MeterAccount::item).collect();
        bill.sort_unstable_by_key(|item| item.counter);
        // the pairs of a group share one counter
        bill.dedup_by(|later, first| {
            let same = later.counter == first.counter;
            if same {
                first.hit_ns += later.hit_ns;
                first.lines += later.lines;
            }
            same
        });
        self.bill = Some(bill);
    }
}

/// Number of pairs by the clock of their timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timers {
    /// Pairs with a timer of the wall clock.
    pub wall: i64,
    /// Pairs with a timer of processor time.
    pub cpu: i64,
    /// Pairs without a timer.
    pub none: i64,
}

impl Timers {
    /// Counts the pairs.
    pub fn of<'p>(pairs: impl Iterator<Item = &'p Pair>) -> Self {
        let mut timers = Timers::default();
        for pair in pairs {
            match pair.timer() {
                Some(Clock::Wall) => timers.wall += 1,
                Some(Clock::Cpu) => timers.cpu += 1,
                None => timers.none += 1,
            }
        }
        timers
    }
}

/// The counters of a pair's variables. The number of an event is no counter, and an alias stands for another pair's counter.
fn own_counters(counters: &[u32], variables: &[Variable]) -> impl Iterator<Item = u32> {
    let is_own = |variable: &Variable| !matches!(variable.shape, Shape::Event | Shape::Alias(_));
    counters.iter().zip(variables).filter(move |(_, variable)| is_own(variable)).map(|(counter, _)| *counter)
}

#[cfg(test)]
mod tests {
    use ingraft_model::VariableKind;

    use crate::pairs::tests::{counting, function, instrumentation, variable};

    use super::*;

    impl Account {
        /// An account whose snippets cost so much at one point each.
        pub fn of_costs(first: u32, costs: &[(u32, Cost)]) -> Self {
            let meter = |(counter, cost): &(u32, Cost)| MeterAccount {
                counter: *counter,
                cost: *cost,
                points: 1,
                members: 1,
                before_ns: 0.0,
                before: 0,
            };
            Account { first, meters: costs.iter().map(meter).collect() }
        }
    }

    fn slots(slots: u32) -> Cost {
        Cost { slots, ..Cost::default() }
    }

    /// Worst case in nanoseconds of code with this cost.
    fn ns(cost: u32) -> f64 {
        Prices::here().ns(slots(cost))
    }

    fn is(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-6 * b.abs().max(1.0)
    }

    #[test]
    fn the_number_of_an_event_is_no_counter() {
        let variables = [Shape::Counter, Shape::Event, Shape::Activations, Shape::Alias(9)];
        let variables = variables.map(|shape| variable(VariableKind::Scratch, shape));
        assert_eq!(own_counters(&[4, 0, 5, 9], &variables).collect::<Vec<_>>(), [4, 5]);
    }

    #[test]
    fn a_pair_pays_for_its_hits_at_the_price_of_their_time() {
        let mut ledger = Ledger::default();
        let pair = counting(3, function(0, 0), &[1]);
        let costs = |cost: u32, points: u32| FxHashMap::from_iter([(3, (slots(cost), points))]);
        let hits = |hits: i64| move |_| hits;
        let account = ledger.account((&pair, None), &costs(80, 2), None).expect("an account");
        assert!(is(account.hit_ns(), ns(80) / 2.0), "the mean over two points");
        ledger.replace(vec![account]);
        assert!(is(ledger.open_ns(&hits(10)), 10.0 * ns(80) / 2.0));
        // a library brings a third point: the first 10 hits keep their price
        let account = ledger.account((&pair, None), &costs(240, 3), Some(&hits(10))).expect("an account");
        ledger.replace(vec![account]);
        assert!(is(ledger.open_ns(&hits(16)), 10.0 * ns(80) / 2.0 + 6.0 * ns(240) / 3.0));
        // the code was taken out: nothing changes
        let account = ledger.account((&pair, None), &FxHashMap::default(), Some(&hits(16))).expect("an account");
        ledger.replace(vec![account]);
        assert!(is(ledger.open_ns(&hits(16)), 10.0 * ns(80) / 2.0 + 6.0 * ns(240) / 3.0));
        // a closed account keeps its cost without its counter
        let spent = ledger.spent_by(&[3, 4], &hits(16));
        assert!(is(ledger.open_ns(&hits(16)), spent));
        ledger.close(&[3, 4], spent);
        assert!(is(ledger.open_ns(&hits(16)), 0.0) && is(ledger.closed_ns(), spent) && ledger.get(3).is_none());
        assert!(is(ledger.spent_by(&[3], &hits(100)), 0.0), "it is closed");
    }

    #[test]
    fn a_pair_without_counters_has_no_account() {
        let ledger = Ledger::default();
        let pair = Pair::new(instrumentation(Vec::new()), Vec::new());
        assert!(ledger.account((&pair, None), &FxHashMap::default(), None).is_none());
        let unwoven = ledger.account((&counting(0, function(0, 0), &[]), None), &FxHashMap::default(), None);
        assert!(unwoven.is_some_and(|account| account.items().next().is_none()), "nothing of it is woven");
    }

    #[test]
    fn a_bill_lists_each_counter_once() {
        let mut ledger = Ledger::default();
        assert!(ledger.bill().is_none());
        let shared = [Account::of_costs(1, &[(9, slots(40)), (2, slots(8))]), Account::of_costs(5, &[(9, slots(40))])];
        ledger.replace(shared.to_vec());
        ledger.write_bill();
        let bill = ledger.bill().expect("a bill").to_vec();
        assert_eq!(bill.iter().map(|item| item.counter).collect::<Vec<_>>(), [2, 9]);
        assert!(is(bill[1].hit_ns, 2.0 * ns(40)), "two pairs of a group share it");
        ledger.close(&[7], 0.0);
        assert!(ledger.bill().is_some(), "there is no such account");
        ledger.close(&[5], 0.0);
        assert!(ledger.bill().is_none(), "it is written anew");
    }

    #[test]
    fn the_mean_rate_is_that_of_the_most_frequent_snippet() {
        let account = Account::of_costs(1, &[(1, slots(8)), (2, slots(16))]);
        let hits = |counter| i64::from(counter) * 100;
        let mean = account.mean(&hits, 4.0);
        assert!(is(mean.hits_per_s, 50.0) && is(mean.ns_per_s, (100.0 * ns(8) + 200.0 * ns(16)) / 4.0));
        let cleared = account.mean(&|_| -5, 4.0);
        assert!(is(cleared.hits_per_s, 0.0) && is(cleared.ns_per_s, 0.0), "no negative rates");
    }

    #[test]
    fn timers_are_counted_by_their_clock() {
        let of = |shape| Pair::new(instrumentation(vec![variable(VariableKind::Counter, shape)]), vec![0]);
        let shapes = [Shape::Timer(Clock::Wall), Shape::Timer(Clock::Cpu), Shape::Timer(Clock::Wall), Shape::Counter];
        let mut pairs: Vec<Pair> = shapes.map(of).into();
        pairs.push(Pair::new(instrumentation(Vec::new()), Vec::new()));
        assert_eq!(Timers::of(pairs.iter()), Timers { wall: 2, cpu: 1, none: 2 });
    }
}
