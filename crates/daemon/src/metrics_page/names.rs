//! Names of the families of measured values, by the conventions of Prometheus: `ingraft_`, the metric's name in snake case, the base unit,
//! and `_total` for counters. A name depends on the metric alone, so it stays as long as a measurement does.

use ingraft_model::{Aggregate, MetricInfo};

/// Type of a family, as its `# TYPE` line says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FamilyType {
    /// A number that only grows.
    Counter,
    /// A number that may also fall.
    Gauge,
    /// Cumulative buckets with their sum and count.
    Histogram,
}

impl FamilyType {
    /// The word of the text format.
    pub fn word(self) -> &'static str {
        match self {
            FamilyType::Counter => "counter",
            FamilyType::Gauge => "gauge",
            FamilyType::Histogram => "histogram",
        }
    }
}

/// Name, type and unit of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FamilyName {
    /// Name of the family.
    pub name: String,
    /// Type of the family.
    pub kind: FamilyType,
    /// Number of decimal digits by which a value is shifted to the right to get the base unit: 9 for nanoseconds.
    pub digits: u32,
}

/// A unit of metrics: its words, the base unit, and the number of decimal digits between the two.
const UNITS: &[(&[&str], &str, u32)] = &[
    (&["nanoseconds", "ns"], "seconds", 9),
    (&["microseconds", "us"], "seconds", 6),
    (&["milliseconds", "ms"], "seconds", 3),
    (&["seconds", "s"], "seconds", 0),
    (&["ns/s"], "ratio", 9),
    (&["bytes", "B"], "bytes", 0),
];

/// Endings that have a meaning in one of the formats of Prometheus. No other name may end so.
const RESERVED: &[&str] = &["total", "bucket", "sum", "count", "created", "info"];

impl FamilyName {
    /// Returns the family of the values of a metric.
    pub fn of(metric: &MetricInfo) -> FamilyName {
        let kind = match metric.aggregate {
            _ if metric.histogram => FamilyType::Histogram,
            // The mean and the minimum over the threads may fall although each thread only counts up.
            Aggregate::Sum | Aggregate::Max if !metric.is_level() => FamilyType::Counter,
            Aggregate::Sum | Aggregate::Max | Aggregate::Min | Aggregate::Avg => FamilyType::Gauge,
        };
        let unit = if metric.is_time() { "nanoseconds" } else { metric.unit.as_str() };
        let known = UNITS.iter().find(|(words, ..)| words.contains(&unit));
        let mut name = snake(&metric.name);
        if kind == FamilyType::Counter {
            shorten(&mut name, "total");
        }
        if let Some((words, base, _)) = known {
            if !words.iter().any(|word| shorten(&mut name, word)) {
                shorten(&mut name, base);
            }
            name = format!("{name}_{base}");
        }
        match kind {
            FamilyType::Counter => name += "_total",
            FamilyType::Gauge | FamilyType::Histogram if RESERVED.iter().any(|word| ends(&name, word)) => {
                name += "_value"
            }
            FamilyType::Gauge | FamilyType::Histogram => {}
        }
        FamilyName { name: format!("ingraft_{name}"), kind, digits: known.map_or(0, |(.., digits)| *digits) }
    }

    /// Returns the gauge for the sum of the keys of this family that have no series of their own.
    pub fn others(&self) -> FamilyName {
        let base = self.name.strip_suffix("_total").unwrap_or(&self.name);
        FamilyName { name: format!("{base}_other_keys"), kind: FamilyType::Gauge, digits: self.digits }
    }

    /// Returns the names of all series of the family.
    pub fn series(&self) -> Vec<String> {
        match self.kind {
            FamilyType::Counter | FamilyType::Gauge => vec![self.name.clone()],
            FamilyType::Histogram => ["", "_bucket", "_sum", "_count"].map(|end| self.name.clone() + end).into(),
        }
    }
}

/// Returns whether the last word of a name is `word`.
fn ends(name: &str, word: &str) -> bool {
    name.strip_suffix(word).is_some_and(|rest| rest.ends_with('_'))
}

/// Removes the last word of a name if it is `word` and not the only one. Returns whether it was removed.
fn shorten(name: &mut String, word: &str) -> bool {
    let shorter = name.strip_suffix(word).and_then(|rest| rest.strip_suffix('_')).filter(|rest| !rest.is_empty());
    let Some(length) = shorter.map(str::len) else { return false };
    name.truncate(length);
    true
}

/// Converts a name to snake case: lower case, and an underscore before each word and in the place of every character that a name may not
/// have.
fn snake(name: &str) -> String {
    let mut out = String::new();
    let characters: Vec<char> = name.chars().collect();
    for (at, &c) in characters.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| characters.get(before));
        let is_word = before.is_some_and(|before| before.is_ascii_lowercase() || before.is_ascii_digit());
        let ends_capitals = before.is_some_and(char::is_ascii_uppercase)
            && characters.get(at + 1).is_some_and(char::is_ascii_lowercase);
        if c.is_ascii_uppercase() && (is_word || ends_capitals) {
            out.push('_');
        }
        out.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' });
    }
    out
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Style, UnitsType};
    use proptest::prelude::*;

    use super::*;

    fn metric(name: &str, unit: &str) -> MetricInfo {
        MetricInfo {
            name: name.to_owned(),
            unit: unit.to_owned(),
            aggregate: Aggregate::Sum,
            style: Style::EventCounter,
            units_type: UnitsType::Unnormalized,
            histogram: false,
            constraints: Vec::new(),
            flavors: Vec::new(),
            developer: false,
            doc: String::new(),
            text: "".into(),
        }
    }

    fn named(metric: &MetricInfo) -> String {
        let FamilyName { name, kind, digits } = FamilyName::of(metric);
        format!("{name} {} {digits}", kind.word())
    }

    #[test]
    fn names_follow_the_conventions() {
        let histogram = |name, unit| MetricInfo { histogram: true, ..metric(name, unit) };
        let level = |name, unit| MetricInfo {
            style: Style::SampledFunction,
            units_type: UnitsType::Sampled,
            ..metric(name, unit)
        };
        let time = |name| MetricInfo { units_type: UnitsType::Normalized, ..metric(name, "CPUs") };
        for (metric, expected) in [
            (metric("calls", "calls"), "ingraft_calls_total counter 0"),
            (metric("malloc_bytes", "bytes"), "ingraft_malloc_bytes_total counter 0"),
            (metric("bytes", "bytes"), "ingraft_bytes_bytes_total counter 0"),
            (metric("total", "calls"), "ingraft_total_total counter 0"),
            (metric("hits_total", "hits"), "ingraft_hits_total counter 0"),
            (metric("wait_ns", "ns"), "ingraft_wait_seconds_total counter 9"),
            (time("wall_time"), "ingraft_wall_time_seconds_total counter 9"),
            (histogram("latency", "nanoseconds"), "ingraft_latency_seconds histogram 9"),
            (histogram("sizes", "bytes"), "ingraft_sizes_bytes histogram 0"),
            (histogram("row_count", "rows"), "ingraft_row_count_value histogram 0"),
            (level("active_threads", "threads"), "ingraft_active_threads gauge 0"),
            (level("numOfCurrentThreads", "threads"), "ingraft_num_of_current_threads gauge 0"),
            (level("predicted_cost", "ns/s"), "ingraft_predicted_cost_ratio gauge 9"),
            (level("heap_total", "bytes"), "ingraft_heap_total_bytes gauge 0"),
            (level("rows_total", "rows"), "ingraft_rows_total_value gauge 0"),
            (metric("CPUTime2Go", "x"), "ingraft_cpu_time2_go_total counter 0"),
            (metric("größe von:x", "x"), "ingraft_gr__e_von_x_total counter 0"),
            (metric("", "x"), "ingraft__total counter 0"),
        ] {
            assert_eq!(named(&metric), expected);
        }
        let mean = MetricInfo { aggregate: Aggregate::Avg, ..metric("depth", "calls") };
        assert_eq!(named(&mean), "ingraft_depth gauge 0");
        assert_eq!(FamilyName::of(&metric("calls", "calls")).others().name, "ingraft_calls_other_keys");
    }

    proptest! {
        #[test]
        fn any_text_gives_a_valid_name(name: String, unit: String, histogram: bool) {
            let family = FamilyName::of(&MetricInfo { histogram, ..metric(&name, &unit) });
            for series in family.series() {
                let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                prop_assert!(series.starts_with("ingraft_") && series.chars().all(valid));
            }
        }
    }
}
