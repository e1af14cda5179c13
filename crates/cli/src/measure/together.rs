//! Combined values: the values of one metric and focus in several targets, combined by the metric's aggregate operator.
//!
//! A combined value is shown when every target has sent a reading since the last combined value. A late target does not delay the others:
//! when another target has sent a second reading, the value is shown with the number of targets that are up to date. The last known value
//! of the late target is included, so that a sum never goes back.
//!
//! Values by key are combined by name, as addresses mean something else in each process, and by number if the number can be no address. The
//! values of all other keys are added to `others`.

use std::collections::BTreeMap;

use ingraft_api::{CountedTime, Details, KeyValue, Keys, NamedPart, PairInfo, Value};
use ingraft_model::{Activations, Aggregate, KeyPart};

use super::{Lately, TargetMeasurement};

/// One metric and focus over several targets.
#[derive(Clone, Debug)]
pub(crate) struct CombinedValue<'a> {
    /// The pair, which is the same in all targets.
    pub(crate) info: &'a PairInfo,
    /// Unix time, in nanoseconds, of the newest reading that is combined.
    pub(crate) time_ns: u64,
    /// Value combined by the metric's aggregate operator, without threads. A histogram has the values of all targets.
    pub(crate) value: Value,
    /// Combined change per second; `None` before all targets have two readings, and for levels.
    pub(crate) rate: Option<f64>,
    /// The values of a histogram from the latest intervals of all targets; `None` before all of them have two readings, and for other
    /// metrics.
    pub(crate) lately: Option<Lately>,
    /// Number of targets that measure the pair.
    pub(crate) targets: usize,
    /// Number of targets that have sent their value since the last combined value.
    pub(crate) heard: usize,
}

/// The targets that have sent a reading since the last combined value.
#[derive(Debug, Default)]
pub(crate) struct Together {
    heard: Vec<bool>,
}

impl Together {
    /// Records a reading of `sites[at]`. Returns the combined values if it is time to show them, otherwise nothing.
    pub(crate) fn reading<'a>(&mut self, sites: &'a [TargetMeasurement], at: usize) -> Vec<CombinedValue<'a>> {
        if sites.len() < 2 {
            return Vec::new();
        }
        self.heard.resize(sites.len(), false);
        let Some(heard) = self.heard.get(at).copied() else { return Vec::new() };
        // The target has sent a second reading, so the other targets are late. The combined values are shown without new readings of
        // these, and
        // this reading is the first of the next round.
        let shown = if heard { self.take(sites) } else { Vec::new() };
        if let Some(heard) = self.heard.get_mut(at) {
            *heard = true;
        }
        if sites.iter().zip(&self.heard).all(|(site, heard)| *heard || !site.goes_on()) {
            return self.take(sites);
        }
        shown
    }

    fn take<'a>(&mut self, sites: &'a [TargetMeasurement]) -> Vec<CombinedValue<'a>> {
        let shown = curves(sites, |at| self.heard.get(at).copied().unwrap_or(false), &TargetMeasurement::rate);
        self.heard.fill(false);
        shown
    }
}

/// Returns the final combined values; every target counts as up to date.
pub(crate) fn last(sites: &[TargetMeasurement]) -> Vec<CombinedValue<'_>> {
    curves(sites, |_| true, &TargetMeasurement::rate)
}

/// The final combined values, with their rates since the first readings. Rates that are added up are of the time of all targets together: one that
/// came late or has ended early did nothing in the rest of it.
pub(crate) fn whole(sites: &[TargetMeasurement]) -> Vec<CombinedValue<'_>> {
    let known = || sites.iter().filter_map(|site| Some((site.first_ns?, site.reading.time_ns)));
    let (first, last) = (known().map(|(first, _)| first).min(), known().map(|(_, last)| last).max());
    let span = last.zip(first).and_then(|(last, first)| last.checked_sub(first)).filter(|span| *span > 0);
    let rate = |site: &TargetMeasurement, pair: usize| {
        let own = site.mean_rate(pair)? * site.rate_unit(pair);
        match site.enabled.pairs.get(pair)?.metric.aggregate {
            Aggregate::Sum | Aggregate::Avg => {
                let its = site.reading.time_ns.checked_sub(site.first_ns?)?;
                Some(own * its as f64 / span? as f64)
            }
            Aggregate::Min | Aggregate::Max => Some(own),
        }
    };
    curves(sites, |_| true, &rate)
}

/// The rate of a pair's value in a target.
type Rate<'r> = &'r dyn Fn(&TargetMeasurement, usize) -> Option<f64>;

/// Combines the pairs that more than one target measures, in the order of their first target. A target that has ended counts as up to date.
fn curves<'a>(sites: &'a [TargetMeasurement], heard: impl Fn(usize) -> bool, rate: Rate<'_>) -> Vec<CombinedValue<'a>> {
    let mut curves: Vec<Vec<(usize, usize)>> = Vec::new();
    let mut known = std::collections::HashMap::new();
    for (at, site) in sites.iter().enumerate() {
        for (pair, info) in site.enabled.pairs.iter().enumerate() {
            let curve = *known.entry(&info.pair).or_insert_with(|| {
                curves.push(Vec::new());
                curves.len() - 1
            });
            curves[curve].push((at, pair));
        }
    }
    curves.retain(|members| members.len() > 1);
    let heard = |at: usize| heard(at) || !sites[at].goes_on();
    curves.iter().filter_map(|members| combine(sites, members, &heard, rate)).collect()
}

fn combine<'a>(
    sites: &'a [TargetMeasurement],
    members: &[(usize, usize)],
    heard: &impl Fn(usize) -> bool,
    rate: Rate<'_>,
) -> Option<CombinedValue<'a>> {
    let &(first, pair) = members.first()?;
    let info = sites[first].enabled.pairs.get(pair)?;
    let values: Vec<&Value> = members.iter().filter_map(|&(at, pair)| sites[at].reading.values.get(pair)).collect();
    let rates: Option<Vec<f64>> = members.iter().map(|&(at, pair)| rate(&sites[at], pair)).collect();
    let numbers = || values.iter().map(|v| v.value);
    let mean = |sum: f64| sum / members.len() as f64;
    let mut distributions = values.iter().filter_map(|v| v.details().distribution.as_deref());
    let distribution = distributions.next().map(|first| {
        let mut all = first.clone();
        distributions.for_each(|d| all.merge(d));
        Box::new(all)
    });
    let value = match info.metric.aggregate {
        // The numbers of values of histograms are added, whatever the operator is.
        _ if distribution.is_some() => numbers().fold(0, i64::saturating_add),
        Aggregate::Sum => numbers().fold(0, i64::saturating_add),
        Aggregate::Min => numbers().min()?,
        Aggregate::Max => numbers().max()?,
        Aggregate::Avg => mean(numbers().map(|v| v as f64).sum()).round() as i64,
    };
    let rate = rates.filter(|_| !info.metric.is_level()).and_then(|rates| match info.metric.aggregate {
        Aggregate::Sum => Some(rates.iter().sum()),
        Aggregate::Min => rates.iter().copied().reduce(f64::min),
        Aggregate::Max => rates.iter().copied().reduce(f64::max),
        Aggregate::Avg => Some(mean(rates.iter().sum())),
    });
    let lately: Option<Vec<Lately>> = members.iter().map(|&(at, pair)| sites[at].lately(pair)).collect();
    let lately = lately.and_then(|all| all.into_iter().reduce(|sum, one| sum.merge(&one)));
    let keys = combine_keys(values.iter().filter_map(|v| v.details().keys.as_ref()));
    let activations = values.iter().fold(Activations::default(), |sum, v| sum.plus(v.details().activations));
    let taken_out = values.iter().filter_map(|v| v.details().taken_out).min_by_key(|why| why.time_ns);
    let counted = values.iter().filter_map(|v| v.details().counted).reduce(|a, b| CountedTime {
        enabled_ns: a.enabled_ns.saturating_add(b.enabled_ns),
        running_ns: a.running_ns.saturating_add(b.running_ns),
    });
    let details = Details { distribution, keys, activations, taken_out, counted, ..Details::NONE };
    Some(CombinedValue {
        info,
        time_ns: members.iter().map(|&(at, _)| sites[at].reading.time_ns).max()?,
        value: Value::new(value, details),
        rate,
        lately,
        targets: members.len(),
        heard: members.iter().filter(|(at, _)| heard(*at)).count(),
    })
}

/// Lowest address that a program can map; lower keys are numbers.
const LOWEST_ADDRESS: u64 = 1 << 16;

/// Identity of a key, or of a part of one, that is the same in every process.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum KeyIdentity<'a> {
    Name(&'a str),
    Number(u64),
    /// A text.
    Text(&'a KeyPart),
    /// Several parts.
    Parts(Vec<KeyIdentity<'a>>),
}

impl<'a> KeyIdentity<'a> {
    fn of(key: &'a KeyValue) -> Option<Self> {
        if key.parts.is_empty() {
            return Self::of_number(key.key, key.name.as_deref());
        }
        let part = |part: &'a NamedPart| match &part.part {
            KeyPart::Number(number) => Self::of_number(*number, part.name.as_deref()),
            text => Some(KeyIdentity::Text(text)),
        };
        key.parts.iter().map(part).collect::<Option<_>>().map(KeyIdentity::Parts)
    }

    fn of_number(number: u64, name: Option<&'a str>) -> Option<Self> {
        let is_number = number < LOWEST_ADDRESS || number.cast_signed() < 0;
        name.map(KeyIdentity::Name).or(is_number.then_some(KeyIdentity::Number(number)))
    }

    /// The key; a number with a name is 0.
    fn into_key(self) -> KeyValue {
        let part = |identity| match identity {
            KeyIdentity::Text(part) => NamedPart { part: part.clone(), name: None, enumerator: None, place: None },
            other => {
                let KeyValue { key, name, .. } = other.into_key();
                NamedPart { part: KeyPart::Number(key), name, enumerator: None, place: None }
            }
        };
        match self {
            KeyIdentity::Name(name) => KeyValue { name: Some(name.to_owned()), ..KeyValue::default() },
            KeyIdentity::Number(key) => KeyValue { key, ..KeyValue::default() },
            KeyIdentity::Parts(parts) => {
                KeyValue { parts: parts.into_iter().map(part).collect(), ..KeyValue::default() }
            }
            text @ KeyIdentity::Text(_) => KeyValue { parts: vec![part(text)], ..KeyValue::default() },
        }
    }
}

/// Adds up values by key over several processes. A key with a name has no number in the result.
fn combine_keys<'a>(all: impl Iterator<Item = &'a Keys>) -> Option<Keys> {
    let mut sums: BTreeMap<KeyIdentity<'_>, (i64, &KeyValue)> = BTreeMap::new();
    let mut together: Option<Keys> = None;
    for keys in all {
        let together = together.get_or_insert_default();
        together.others = together.others.saturating_add(keys.others);
        together.unlisted = together.unlisted.saturating_add(keys.unlisted);
        for key in &keys.values {
            let sum = match KeyIdentity::of(key) {
                Some(identity) => &mut sums.entry(identity).or_insert((0, key)).0,
                None => &mut together.others,
            };
            *sum = sum.saturating_add(key.value);
        }
    }
    let mut together = together?;
    // The enumerators are those of the first process that has the key.
    let key = |(identity, (value, first)): (KeyIdentity<'_>, (i64, &KeyValue))| {
        let mut key = KeyValue { value, enumerator: first.enumerator.clone(), ..identity.into_key() };
        key.parts.iter_mut().zip(&first.parts).for_each(|(part, first)| part.enumerator.clone_from(&first.enumerator));
        key
    };
    together.values = sums.into_iter().map(key).collect();
    together.values.sort_by_key(|key| std::cmp::Reverse(key.value));
    Some(together)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_api::{Enabled, MetricFocus, Reading};
    use ingraft_model::{Focus, MetricInfo, Pid};

    use super::*;
    use crate::conn::Engines;
    use crate::fake::{Script, serve};

    fn info(metric: &str, focus: &str, aggregate: Aggregate) -> PairInfo {
        let pair = MetricFocus { metric: metric.to_owned(), focus: Focus::parse(focus).expect("a focus") };
        let metric = MetricInfo { aggregate, ..crate::fake::metric(metric).as_ref().clone() };
        PairInfo::new(Arc::new(pair), Arc::new(metric))
    }

    /// The targets that measure these pairs.
    async fn sites(pairs: &[Vec<PairInfo>]) -> Vec<TargetMeasurement> {
        let engines = Engines::of_test(serve(Script::default()).await);
        let client = engines.clients().first().unwrap();
        let site = |(pid, pairs): (i32, &Vec<PairInfo>)| {
            let enabled = Enabled { pid: Pid(pid), pairs: Arc::new(pairs.clone()), ..Enabled::default() };
            TargetMeasurement::new(client.clone(), enabled)
        };
        (1..).zip(pairs).map(site).collect()
    }

    fn read(site: &mut TargetMeasurement, time_ns: u64, values: &[i64]) {
        let values = values.iter().copied().map(Value::from).collect();
        site.take(Reading { time_ns, values, ended: None }, 0);
    }

    fn told(combined: &[CombinedValue<'_>]) -> Vec<(String, i64, Option<f64>, usize, usize)> {
        combined.iter().map(|c| (c.info.pair.metric.clone(), c.value.value, c.rate, c.heard, c.targets)).collect()
    }

    #[tokio::test]
    async fn a_value_is_shown_once_all_have_sent_theirs() {
        let own = |n: i32| info("calls", &format!("/Process/{n}"), Aggregate::Sum);
        let calls = || info("calls", "/Code/server/call", Aggregate::Sum);
        let mut sites = sites(&[vec![own(1), calls()], vec![calls(), own(2)]]).await;
        let mut together = Together::default();
        read(&mut sites[0], 1_000_000_000, &[9, 10]);
        assert!(together.reading(&sites, 0).is_empty());
        read(&mut sites[1], 1_100_000_000, &[20, 9]);
        assert_eq!(told(&together.reading(&sites, 1)), [("calls".to_owned(), 30, None, 2, 2)]);
        read(&mut sites[1], 2_100_000_000, &[25, 9]);
        assert!(together.reading(&sites, 1).is_empty());
        read(&mut sites[0], 2_000_000_000, &[9, 13]);
        assert_eq!(told(&together.reading(&sites, 0)), [("calls".to_owned(), 38, Some(8.0), 2, 2)]);
    }

    #[tokio::test]
    async fn rates_that_are_added_up_are_of_one_time() {
        let all = || vec![info("calls", "", Aggregate::Sum), info("longest", "", Aggregate::Max)];
        let mut sites = sites(&[all(), all()]).await;
        for (at, time, values) in [(0, 0, [0, 0]), (0, 8, [800, 80]), (1, 5, [0, 0]), (1, 8, [300, 60])] {
            read(&mut sites[at], 1_000_000_000 * (time + 1), &values);
        }
        let rates: Vec<_> = whole(&sites).iter().map(|combined| combined.rate).collect();
        // The second target was there for three seconds of eight.
        assert_eq!(rates, [Some(1100.0 / 8.0), Some(20.0)]);
    }

    #[tokio::test]
    async fn a_late_target_holds_nobody_up() {
        let calls = || vec![info("calls", "", Aggregate::Sum)];
        let mut sites = sites(&[calls(), calls(), calls()]).await;
        let mut together = Together::default();
        for (at, value) in [(0, 1), (1, 2)] {
            read(&mut sites[at], 1_000_000_000, &[value]);
            assert!(together.reading(&sites, at).is_empty());
        }
        read(&mut sites[0], 2_000_000_000, &[5]);
        assert_eq!(told(&together.reading(&sites, 0)), [("calls".to_owned(), 7, None, 2, 3)]);
        // The combined values do not wait for a target that has ended.
        sites[2].ended = true;
        read(&mut sites[1], 2_000_000_000, &[6]);
        assert_eq!(told(&together.reading(&sites, 1)), [("calls".to_owned(), 11, None, 3, 3)]);
    }

    #[tokio::test]
    async fn the_operator_is_the_metrics() {
        for (aggregate, value) in [(Aggregate::Sum, 13), (Aggregate::Min, 3), (Aggregate::Max, 10), (Aggregate::Avg, 7)]
        {
            let pairs = vec![info("level", "", aggregate)];
            let mut sites = sites(&[pairs.clone(), pairs]).await;
            read(&mut sites[0], 1, &[10]);
            read(&mut sites[1], 1, &[3]);
            assert_eq!(told(&last(&sites)), [("level".to_owned(), value, None, 2, 2)]);
        }
    }

    #[test]
    fn keys_are_put_together_by_what_they_mean_everywhere() {
        let key = |key, name: &str, value| KeyValue {
            key,
            name: (!name.is_empty()).then(|| name.to_owned()),
            value,
            ..KeyValue::default()
        };
        let first = Keys {
            values: vec![key(0x5000_0000, "lock", 9), key(0x6000_0000, "", 4), key(7, "", 2), key(u64::MAX, "", 1)],
            others: 10,
            unlisted: 0,
        };
        let second = Keys {
            values: vec![key(0x6000_0000, "lock", 5), key(0x7000_0000, "other", 3), key(7, "", 20)],
            others: 0,
            unlisted: 1,
        };
        let together = combine_keys([&first, &second].into_iter()).expect("keys");
        let values = vec![key(7, "", 22), key(0, "lock", 14), key(0, "other", 3), key(u64::MAX, "", 1)];
        assert_eq!(together, Keys { values, others: 14, unlisted: 1 });
        assert_eq!(combine_keys(std::iter::empty()), None);
    }
}
