//! Rates of hits: how often the snippets of pairs run per second, by the latest two looks at their counters.

use std::time::Instant;

use super::accounts::{Account, MeteredCost};
use super::caches::Displacement;
use crate::weaving::cost::Prices;

/// Rate of a pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PairRate {
    /// Runs per second of the snippet that runs most often.
    pub hits_per_s: f64,
    /// Cost in nanoseconds of processor time per second.
    pub ns_per_s: f64,
}

/// Rates of hits by the latest two looks at the counters.
#[derive(Debug, Default)]
pub struct Rates {
    at: Option<Instant>,
    /// Number of the latest look, from 1.
    round: u32,
    /// Hits by counter.
    hits: Vec<Hits>,
    /// Time so far in which hits have waited for code that was not in the caches, in nanoseconds.
    waited_ns: f64,
}

/// Hits of a snippet.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    /// Number of the look at which the hits were read.
    round: u32,
    total: i64,
    /// Hits per second; `None` before the second look.
    per_s: Option<f64>,
    /// Time in nanoseconds that a hit waits for code that is not in the caches, by the rates of all code.
    wait_ns: f64,
}

impl Rates {
    /// Reads the counters of a bill. `sum` returns the present sum of a counter. Returns their total cost in nanoseconds of processor time per
    /// second.
    pub fn look(&mut self, bill: &[MeteredCost], now: Instant, sum: &dyn Fn(u32) -> i64) -> f64 {
        let before = self.at.replace(now);
        let seconds = before.map_or(0.0, |before| now.saturating_duration_since(before).as_secs_f64()).max(1e-6);
        self.round = self.round.saturating_add(1);
        let places = bill.last().map_or(0, |last| last.counter as usize + 1);
        self.hits.resize(places, Hits::default());
        for item in bill {
            let Some(hits) = self.hits.get_mut(item.counter as usize) else { continue };
            let (before, total) = (*hits, sum(item.counter));
            let known = before.round != 0 && before.round + 1 == self.round;
            let per_s = known.then(|| total.wrapping_sub(before.total).max(0) as f64 / seconds);
            *hits = Hits { round: self.round, total, per_s, wait_ns: 0.0 };
        }
        let rate = |item: &MeteredCost| self.hits.get(item.counter as usize).and_then(|hits| hits.per_s).unwrap_or(0.0);
        let displacement = Displacement::by(bill.iter().map(|item| (item.lines, rate(item))));
        let (mut cost, mut waits) = (0.0, 0.0);
        for item in bill {
            let Some(hits) = self.hits.get_mut(item.counter as usize) else { continue };
            let per_s = hits.per_s.unwrap_or(0.0);
            hits.wait_ns = displacement.cycles(item.lines, per_s) * Prices::here().cycle_ns;
            waits += per_s * hits.wait_ns;
            cost += per_s * item.hit_ns;
        }
        self.waited_ns += waits * seconds;
        cost + waits
    }

    /// Time so far in which hits have waited for code that was not in the caches, in nanoseconds.
    pub fn waited_ns(&self) -> f64 {
        self.waited_ns
    }

    /// Rate of a pair between the latest two looks; `None` before the second one.
    pub fn of(&self, account: &Account) -> Option<PairRate> {
        let mut rate = PairRate::default();
        for MeteredCost { counter, hit_ns, .. } in account.items() {
            let hits = self.hits.get(counter as usize).filter(|hits| hits.round == self.round)?;
            let per_s = hits.per_s?;
            rate.hits_per_s = rate.hits_per_s.max(per_s);
            rate.ns_per_s += per_s * (hit_ns + hits.wait_ns);
        }
        Some(rate)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ingraft_codegen::Cost;

    use super::*;

    fn item(counter: u32, hit_ns: f64) -> MeteredCost {
        MeteredCost { counter, hit_ns, lines: 2.0 }
    }

    #[test]
    fn rates_come_from_two_looks_in_a_row() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let bill = [item(2, 10.0), item(5, 1.0)];
        let both = |a: i64, b: i64| move |counter| if counter == 2 { a } else { b };
        assert_eq!(rates.look(&bill, at(0), &both(1000, 7)), 0.0, "nothing to compare with");
        assert_eq!(rates.look(&bill, at(2), &both(1100, 27)), 50.0 * 10.0 + 10.0);
        assert_eq!(rates.look(&bill, at(4), &both(1100, 27)), 0.0);
        assert_eq!(rates.look(&bill, at(5), &both(900, 28)), 1.0, "a counter that was cleared has no negative rate");
        assert_eq!(rates.look(&bill, at(5), &both(900, 28)), 0.0, "no time has passed");
    }

    #[test]
    fn code_that_displaces_itself_costs_more() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        let bill: Vec<MeteredCost> = (0..3_000).map(|counter| item(counter, 1.0)).collect();
        rates.look(&bill, begin, &|_| 0);
        assert_eq!(rates.waited_ns(), 0.0);
        let cost = rates.look(&bill, begin + Duration::from_secs(2), &|_| 5_000);
        let hits = 3_000.0 * 2_500.0;
        let wait = cost / hits - 1.0;
        assert!((5.0..30.0).contains(&(wait / Prices::here().cycle_ns)), "{wait} ns for each hit");
        assert!((rates.waited_ns() / (2.0 * hits * wait) - 1.0).abs() < 1e-9);
        // Few functions that run as often wait for nothing.
        let few = rates.look(&bill[..50], begin + Duration::from_secs(3), &|_| 155_000);
        assert!((few / (50.0 * 150_000.0) - 1.0).abs() < 1e-9, "{few}");
    }

    #[test]
    fn a_counter_that_was_away_for_a_look_has_no_rate() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let hits = |total: i64| move |_| total;
        rates.look(&[item(0, 1.0), item(3, 1.0)], at(0), &hits(0));
        rates.look(&[item(0, 1.0)], at(1), &hits(10));
        // counter 3 may belong to another pair now
        assert_eq!(rates.look(&[item(0, 1.0), item(3, 1.0)], at(2), &hits(30)), 20.0);
        assert_eq!(rates.look(&[item(0, 1.0), item(3, 1.0)], at(3), &hits(40)), 20.0);
        assert_eq!(rates.look(&[], at(4), &hits(50)), 0.0);
    }

    #[test]
    fn a_pair_runs_as_often_as_its_most_frequent_snippet() {
        let (mut rates, begin) = (Rates::default(), Instant::now());
        let cost = |slots| Cost { slots, ..Cost::default() };
        let account = Account::of_costs(0, &[(0, cost(8)), (1, cost(80))]);
        let bill: Vec<MeteredCost> = account.items().collect();
        assert_eq!(rates.of(&account), None);
        rates.look(&bill, begin, &|_| 0);
        assert_eq!(rates.of(&account), None);
        let sum = rates.look(&bill, begin + Duration::from_secs(1), &|counter| [40, 50][counter as usize]);
        let rate = rates.of(&account).expect("two looks");
        assert_eq!((rate.hits_per_s, rate.ns_per_s), (50.0, sum));
        assert_eq!(sum, 40.0 * bill[0].hit_ns + 50.0 * bill[1].hit_ns);
        rates.look(&bill[..1], begin + Duration::from_secs(2), &|_| 40);
        assert_eq!(rates.of(&account), None, "one of its counters was not read");
        assert_eq!(rates.of(&Account::of_costs(0, &[])), Some(PairRate::default()), "code without meters");
    }
}
