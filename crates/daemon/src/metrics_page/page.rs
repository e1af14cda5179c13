//! The page: the families of measured values within the limit of series, and what the limit has left out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use ingraft_api::{MeasurementId, MetricFocus, PairInfo, Value};
use ingraft_engine::{KeptValues, TargetFigures};

use super::health::HealthCounts;
use super::names::{FamilyName, FamilyType};
use super::text::{SeriesLines, head};
use super::values;

/// Largest number of families whose left-out series are told one by one.
const TOLD: usize = 100;

/// Reason why series are not on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOut {
    /// The page has as many series as it may have.
    Limit,
    /// Another metric has the name, or the name with another type or unit.
    Name,
    /// The measurement has the pair twice.
    Twice,
}

impl LeftOut {
    fn word(self) -> &'static str {
        match self {
            LeftOut::Limit => "limit",
            LeftOut::Name => "name",
            LeftOut::Twice => "twice",
        }
    }
}

/// A family with its series so far.
#[derive(Debug)]
struct MeasuredFamily {
    name: FamilyName,
    /// Public name of the metric; `None` for the sums of other keys.
    metric: String,
    help: String,
    lines: SeriesLines,
}

/// The page while it is made.
#[derive(Debug)]
pub struct Page {
    limit: usize,
    families: BTreeMap<String, MeasuredFamily>,
    /// Names of series, each with the name of the family that has it.
    taken: BTreeMap<String, String>,
    served: usize,
    left_out: BTreeMap<(String, LeftOut), usize>,
    targets: Vec<(TargetFigures, String)>,
    /// Counts for the page's own series.
    pub health: HealthCounts,
}

impl Page {
    /// Returns an empty page for at most `limit` series of measured values.
    pub fn new(limit: usize) -> Page {
        Page {
            limit,
            families: BTreeMap::new(),
            taken: BTreeMap::new(),
            served: 0,
            left_out: BTreeMap::new(),
            targets: Vec::new(),
            health: HealthCounts::default(),
        }
    }

    /// Adds a target, whose measurements follow. `process` is the name of the process.
    pub fn target(&mut self, figures: TargetFigures, process: String) {
        self.targets.push((figures, process));
    }

    /// Adds the values of a measurement of the latest target. A pair that does not fit is left out as a whole.
    pub fn measurement(&mut self, KeptValues { id, pairs, reading }: &KeptValues) {
        let Some((target, process)) = self.targets.last() else { return };
        let (pid, process) = (target.pid, process.clone());
        let mut pairs_seen: HashSet<&MetricFocus> = HashSet::new();
        for (info, value) in pairs.iter().zip(&reading.values) {
            self.health.pair(pid, &process, info, value);
            let twice = !pairs_seen.insert(info.pair.as_ref());
            self.pair(*id, (pid.0, &process), info, value, twice);
        }
        self.health.unread += pairs.len().saturating_sub(reading.values.len());
    }

    fn pair(&mut self, id: MeasurementId, (pid, process): (i32, &str), info: &PairInfo, value: &Value, twice: bool) {
        let name = FamilyName::of(&info.metric);
        let (measurement, pid, focus) = (id.0.to_string(), pid.to_string(), info.pair.focus.to_string());
        let function = info.function.as_ref();
        let labels = [
            ("measurement", measurement.as_str()),
            ("pid", &pid),
            ("process", process),
            ("module", function.map_or("", |f| &f.module)),
            ("function", function.map_or("", |f| &f.function)),
            ("focus", &focus),
        ];
        let series = values::series(&name, &labels, value);
        let count = series.count();
        let mut wanted = vec![(name.clone(), help(info), series.own)];
        if let Some(others) = series.others {
            let help = format!("Sum of the keys of {} that have no series of their own.", name.name);
            wanted.push((name.others(), help, others));
        }
        let why = match () {
            () if twice => Some(LeftOut::Twice),
            () if self.served + count > self.limit => Some(LeftOut::Limit),
            () if !wanted.iter().all(|(name, ..)| self.has_room(name, &info.pair.metric)) => Some(LeftOut::Name),
            () => None,
        };
        if let Some(why) = why {
            *self.left_out.entry((name.name, why)).or_default() += count;
            return;
        }
        self.served += count;
        for (name, help, lines) in wanted {
            self.add(name, &info.pair.metric, help, &lines);
        }
    }

    /// Returns whether series of this family and metric can be on the page.
    fn has_room(&self, name: &FamilyName, metric: &str) -> bool {
        match self.families.get(&name.name) {
            Some(family) => family.name == *name && family.metric == metric,
            None => name.series().iter().all(|series| !self.taken.contains_key(series)),
        }
    }

    fn add(&mut self, name: FamilyName, metric: &str, help: String, lines: &SeriesLines) {
        self.taken.extend(name.series().into_iter().map(|series| (series, name.name.clone())));
        let new =
            || MeasuredFamily { metric: metric.to_owned(), help, lines: SeriesLines::default(), name: name.clone() };
        self.families.entry(name.name.clone()).or_insert_with(new).lines.append(lines);
    }

    /// Returns the text of the page.
    pub fn text(mut self) -> String {
        let mut out = String::new();
        for MeasuredFamily { name, help, lines, .. } in std::mem::take(&mut self.families).into_values() {
            head(&name.name, name.kind, &help, &mut out);
            out += &lines.text;
        }
        self.health.targets(&self.targets, &mut out);
        self.limits(&mut out);
        self.health.daemon(&mut out);
        out
    }

    /// Writes what the limit of series does.
    fn limits(&self, out: &mut String) {
        let mut gauge = |name: &str, help: &str, lines: &SeriesLines| {
            head(name, FamilyType::Gauge, help, out);
            *out += &lines.text;
        };
        for (name, help, value) in [
            ("ingraftd_series", "Series of measured values on this page.", self.served),
            ("ingraftd_series_limit", "Most series of measured values that this page may have.", self.limit),
        ] {
            let mut lines = SeriesLines::default();
            lines.add(name, &[], &value.to_string());
            gauge(name, help, &lines);
        }
        let name = "ingraftd_series_left_out";
        let mut lines = SeriesLines::default();
        let reasons: BTreeSet<LeftOut> =
            self.left_out.keys().map(|(_, why)| *why).chain([LeftOut::Limit, LeftOut::Name]).collect();
        for why in reasons {
            let of_reason = || self.left_out.iter().filter(move |((_, reason), _)| *reason == why);
            let all: usize = of_reason().map(|(_, count)| count).sum();
            let mut told = 0;
            for ((family, _), count) in of_reason().take(TOLD) {
                told += count;
                lines.add(name, &[("reason", why.word()), ("family", family)], &count.to_string());
            }
            // The series without a family has what the others do not tell, so that their sum is that of all families.
            lines.add(name, &[("reason", why.word())], &(all - told).to_string());
        }
        let help = "Series of measured values that are not on this page, by family and reason: limit (--metrics-max-series), \
                    name (another metric has it), twice (the measurement has the pair twice).";
        gauge(name, help, &lines);
    }
}

/// Returns the documentation of a family.
fn help(info: &PairInfo) -> String {
    if info.metric.doc.is_empty() { format!("The metric {}.", info.metric.name) } else { info.metric.doc.clone() }
}
