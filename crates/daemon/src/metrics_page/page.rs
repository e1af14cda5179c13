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

/// Length of the page in bytes for each series that it may have. Few names are so long.
const SERIES_BYTES: usize = 1 << 10;

/// Reason why series are not on the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OmissionReason {
    /// The page has as many series as it may have.
    Limit,
    /// The page is as long as it may be.
    Size,
    /// Another metric has the name, or the name with another type or unit.
    Name,
    /// The measurement has the pair twice.
    Twice,
    /// The target ended some time ago, and readers have had its last values.
    Ended,
}

impl OmissionReason {
    fn word(self) -> &'static str {
        match self {
            OmissionReason::Limit => "limit",
            OmissionReason::Size => "size",
            OmissionReason::Name => "name",
            OmissionReason::Twice => "twice",
            OmissionReason::Ended => "ended",
        }
    }
}

/// A family with its series so far.
#[derive(Debug)]
struct MeasuredFamily {
    name: FamilyName,
    /// Public name of the metric.
    metric: String,
    help: String,
    lines: SeriesLines,
}

/// The page while it is made.
#[derive(Debug)]
pub struct Page {
    limit: usize,
    families: BTreeMap<String, MeasuredFamily>,
    /// Names of the series of all families.
    taken: BTreeSet<String>,
    served: usize,
    /// Length of the families in bytes.
    bytes: usize,
    left_out: BTreeMap<(String, OmissionReason), usize>,
    targets: Vec<(TargetFigures, String)>,
    /// Whether the values of the latest target are left out.
    is_over: bool,
    /// Counts for the page's own series.
    pub health: HealthCounts,
}

impl Page {
    /// Returns an empty page for at most `limit` series of measured values.
    pub fn new(limit: usize) -> Page {
        Page {
            limit,
            families: BTreeMap::new(),
            taken: BTreeSet::new(),
            served: 0,
            bytes: 0,
            left_out: BTreeMap::new(),
            targets: Vec::new(),
            is_over: false,
            health: HealthCounts::default(),
        }
    }

    /// Adds a target, whose measurements follow. `process` is the name of the process. If `is_over`, the target ended so long ago that its
    /// values are left out.
    pub fn target(&mut self, figures: TargetFigures, process: String, is_over: bool) {
        self.targets.push((figures, process));
        self.is_over = is_over;
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
        let long = wanted.iter().any(|(.., lines)| lines.is_too_long());
        // The help of a family is on the page once.
        let first = |name: &FamilyName| !self.families.contains_key(&name.name);
        let size = |(name, help, lines): &(FamilyName, String, SeriesLines)| {
            lines.text.len() + if first(name) { help.len() } else { 0 }
        };
        let bytes: usize = wanted.iter().map(size).sum();
        let why = match () {
            () if self.is_over => Some(OmissionReason::Ended),
            () if twice => Some(OmissionReason::Twice),
            () if self.served + count > self.limit => Some(OmissionReason::Limit),
            () if long || self.bytes + bytes > self.limit.saturating_mul(SERIES_BYTES) => Some(OmissionReason::Size),
            () if !wanted.iter().all(|(name, ..)| self.has_room(name, &info.pair.metric)) => Some(OmissionReason::Name),
            () => None,
        };
        if let Some(why) = why {
            *self.left_out.entry((name.name, why)).or_default() += count;
            return;
        }
        self.served += count;
        self.bytes += bytes;
        for (name, help, lines) in wanted {
            self.add(name, &info.pair.metric, help, &lines);
        }
    }

    /// Returns whether series of this family and metric can be on the page.
    fn has_room(&self, name: &FamilyName, metric: &str) -> bool {
        match self.families.get(&name.name) {
            Some(family) => family.name == *name && family.metric == metric,
            None => name.series().iter().all(|series| !self.taken.contains(series)),
        }
    }

    fn add(&mut self, name: FamilyName, metric: &str, help: String, lines: &SeriesLines) {
        if let Some(family) = self.families.get_mut(&name.name) {
            return family.lines.append(lines);
        }
        self.taken.extend(name.series());
        let family = MeasuredFamily { name: name.clone(), metric: metric.to_owned(), help, lines: lines.clone() };
        self.families.insert(name.name, family);
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
        let reasons: BTreeSet<OmissionReason> =
            self.left_out.keys().map(|(_, why)| *why).chain([OmissionReason::Limit, OmissionReason::Name]).collect();
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
                    size (the page would have more than 1 KiB for each series of the limit), name (another metric has it), twice (the measurement has the pair twice), ended (the target ended some time ago).";
        gauge(name, help, &lines);
    }
}

/// Returns the documentation of a family.
fn help(info: &PairInfo) -> String {
    if info.metric.doc.is_empty() { format!("The metric {}.", info.metric.name) } else { info.metric.doc.clone() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_api::{Details, KeyValue, Keys, NamedFunction, Reading, TakenOut};
    use ingraft_model::{Aggregate, Focus, MetricInfo, Pid, Style, Svma, UnitsType};

    use super::*;

    fn pair(metric: &str, unit: &str, focus: &str) -> PairInfo {
        let metric = MetricInfo {
            name: metric.to_owned(),
            unit: unit.to_owned(),
            aggregate: Aggregate::Sum,
            style: Style::EventCounter,
            units_type: UnitsType::Unnormalized,
            histogram: false,
            constraints: Vec::new(),
            flavors: Vec::new(),
            developer: false,
            doc: format!("About {metric}."),
            text: "".into(),
        };
        let focus = Focus::parse(focus).expect("a focus");
        let measured = MetricFocus { metric: metric.name.clone(), focus };
        PairInfo::new(measured.into(), metric.into())
    }

    /// Returns the lines of the page about these measurements of one target, without comments and without the daemon's process.
    fn lines(limit: usize, measurements: Vec<(u64, Vec<(PairInfo, Value)>)>) -> Vec<String> {
        let mut page = Page::new(limit);
        let target = TargetFigures { pid: Pid(7), points: 3, ..TargetFigures::default() };
        page.target(target, "a \"b\"".to_owned(), false);
        for (id, pairs) in measurements {
            let (pairs, values) = pairs.into_iter().unzip();
            let reading = Reading { time_ns: 1, values, ended: None };
            page.measurement(&KeptValues { id: MeasurementId(id), pairs: Arc::new(pairs), reading });
        }
        let text = page.text();
        let ours = |line: &&str| {
            line.starts_with("ingraft_") || line.starts_with("ingraftd_series") || line.contains("inexact")
        };
        text.lines().filter(|line| !line.starts_with('#')).filter(ours).map(str::to_owned).collect()
    }

    #[test]
    fn a_pair_is_served_as_a_whole_or_left_out() {
        let keys = |n: u64| {
            let values = (0..n).map(|key| KeyValue { key, value: 1, ..KeyValue::default() }).collect();
            Value::new(5, Details { keys: Some(Keys { values, others: 0, unlisted: 0 }), ..Details::default() })
        };
        let pairs = vec![
            (pair("calls", "calls", "/Code/m/f"), Value::from(4)),
            (pair("by", "calls", "/Code/m/f"), keys(3)),
            (pair("calls", "calls", "/Code/m/g"), Value::from(5)),
            (pair("calls", "calls", "/Code/m/h"), Value::from(6)),
        ];
        let expected = r#"ingraft_calls_total{measurement="9",pid="7",process="a \"b\"",focus="/Code/m/f"} 4
ingraft_calls_total{measurement="9",pid="7",process="a \"b\"",focus="/Code/m/g"} 5
ingraftd_series 2
ingraftd_series_limit 2
ingraftd_series_left_out{reason="limit",family="ingraft_by_total"} 4
ingraftd_series_left_out{reason="limit",family="ingraft_calls_total"} 1
ingraftd_series_left_out{reason="limit"} 0
ingraftd_series_left_out{reason="name"} 0"#;
        assert_eq!(lines(2, vec![(9, pairs)]).join("\n"), expected);
    }

    #[test]
    fn a_family_has_one_metric_type_and_unit() {
        let mut function = pair("calls", "calls", "/Code/m/f");
        let name = NamedFunction { module: "m".into(), function: "f".into(), offset: Svma(1) };
        function.function = Some(name);
        let first = vec![(function.clone(), Value::from(1)), (function, Value::from(2))];
        let level = |name: &str| {
            let mut level = pair(name, "", "");
            Arc::make_mut(&mut level.metric).style = Style::SampledFunction;
            level
        };
        let mut histogram = pair("x", "", "");
        Arc::make_mut(&mut histogram.metric).histogram = true;
        let second = vec![
            (pair("calls", "ns", "/Code/m/g"), Value::from(3)),
            (pair("Calls", "calls", "/Code/m/g"), Value::from(3)),
            (level("x"), Value::from(4)),
        ];
        let third = vec![(histogram, Value::from(0))];
        let expected = r#"ingraft_calls_seconds_total{measurement="2",pid="7",process="a \"b\"",focus="/Code/m/g"} 0.000000003
ingraft_calls_total{measurement="1",pid="7",process="a \"b\"",module="m",function="f",focus="/Code/m/f"} 1
ingraft_x{measurement="2",pid="7",process="a \"b\""} 4
ingraftd_series 3
ingraftd_series_limit 100
ingraftd_series_left_out{reason="limit"} 0
ingraftd_series_left_out{reason="name",family="ingraft_calls_total"} 1
ingraftd_series_left_out{reason="name",family="ingraft_x"} 3
ingraftd_series_left_out{reason="name"} 0
ingraftd_series_left_out{reason="twice",family="ingraft_calls_total"} 1
ingraftd_series_left_out{reason="twice"} 0"#;
        assert_eq!(lines(100, vec![(1, first), (2, second), (3, third)]).join("\n"), expected);
    }

    #[test]
    fn values_that_are_not_exact_are_told() {
        let details = Details { taken_out: Some(TakenOut::free(1)), ..Details::default() };
        let pairs = vec![(pair("calls", "calls", ""), Value::new(1, details))];
        let lines = lines(10, vec![(1, pairs)]);
        let expected = r#"ingraftd_target_inexact_pairs{pid="7",process="a \"b\"",reason="taken_out"} 1"#;
        assert!(lines.iter().any(|line| line == expected), "{lines:#?}");
    }

    #[test]
    fn long_names_do_not_make_a_long_page() {
        let named = |length| pair("calls", "calls", &format!("/Code/m/{}", "f".repeat(length)));
        let pairs = vec![(named(3 * SERIES_BYTES), Value::from(1)), (named(9), Value::from(2))];
        let lines = lines(2, vec![(1, pairs)]);
        let expected = r#"ingraftd_series_left_out{reason="size",family="ingraft_calls_total"} 1"#;
        assert!(lines[0].ends_with("fffffffff\"} 2") && lines.iter().any(|line| line == expected), "{lines:#?}");
    }

    #[test]
    fn targets_that_ended_long_ago_make_room() {
        let mut page = Page::new(1);
        for (pid, is_over) in [(7, true), (8, false)] {
            let target = TargetFigures { pid: Pid(pid), ended: is_over, ..TargetFigures::default() };
            page.target(target, String::new(), is_over);
            let reading = Reading { time_ns: 1, values: vec![Value::from(5)], ended: None };
            let pairs = Arc::new(vec![pair("calls", "calls", "")]);
            page.measurement(&KeptValues { id: MeasurementId(1), pairs, reading });
        }
        let text = page.text();
        for line in [
            r#"ingraft_calls_total{measurement="1",pid="8"} 5"#,
            r#"ingraftd_series_left_out{reason="ended",family="ingraft_calls_total"} 1"#,
            r#"ingraftd_target_up{pid="7"} 0"#,
        ] {
            assert!(text.contains(&format!("\n{line}\n")), "{line}: {text}");
        }
    }

    #[test]
    fn few_families_are_told_one_by_one() {
        let pairs = (0..TOLD + 5).map(|n| (pair(&format!("m{n}"), "", ""), Value::from(1))).collect();
        let lines = lines(0, vec![(1, pairs)]);
        let told = lines.iter().filter(|line| line.contains("family=")).count();
        let rest = r#"ingraftd_series_left_out{reason="limit"} 5"#;
        assert!(told == TOLD && lines.iter().any(|line| line == rest), "{lines:#?}");
    }
}
