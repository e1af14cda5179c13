//! Conversions between messages and the model. Received messages are checked, and an error names the wrong field.

use std::fmt;

use ingraft_api::Reason;
use ingraft_model::history::INTERVAL_NS;
use ingraft_model::{
    Activations, Aggregate, Bin, Bucket, Course, Distribution, EdgeKind, Focus, History, How, MetricInfo, Pid,
    PointKind, Refusal, Style, Tid, UnitsType,
};

use crate::failure::Failure;
use crate::v1;

/// Error about a field of a message: it is missing, or its value is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct FieldError {
    /// Path of the field from the request down, e.g. `measure.pairs[3].focus`.
    pub path: String,
    /// Description of the error in one line.
    pub why: String,
}

impl FieldError {
    /// An error of the field at `path`.
    pub fn new(path: impl Into<String>, why: impl fmt::Display) -> Self {
        FieldError { path: path.into(), why: why.to_string() }
    }

    /// An error about a required field that is not set.
    pub fn missing(path: impl Into<String>) -> Self {
        FieldError::new(path, "is missing")
    }

    /// Returns the error with the path from an outer message, whose field `outer` holds the message of this error.
    #[must_use]
    pub fn inside(mut self, outer: impl fmt::Display) -> Self {
        let dot = if self.path.is_empty() || self.path.starts_with('[') { "" } else { "." };
        self.path = format!("{outer}{dot}{}", self.path);
        self
    }
}

impl From<FieldError> for Failure {
    fn from(error: FieldError) -> Self {
        let hint = format!("correct the field `{}` of the request", error.path);
        Failure::new(Reason::InvalidField, error.to_string(), hint)
    }
}

/// Returns the value of a required field; an error if it is not set.
pub fn required<T>(value: Option<T>, path: &str) -> Result<T, FieldError> {
    value.ok_or_else(|| FieldError::missing(path))
}

/// Checks a process id from a message.
pub fn pid(value: i32, path: &str) -> Result<Pid, FieldError> {
    if value > 0 { Ok(Pid(value)) } else { Err(FieldError::new(path, format_args!("{value} is no process id"))) }
}

/// Parses a focus from a message.
pub fn focus(text: &str, path: &str) -> Result<Focus, FieldError> {
    Focus::parse(text).map_err(|e| FieldError::new(path, e))
}

/// A thread id for a message; `None` for events whose thread is not known.
pub fn tid(value: Option<Tid>) -> Option<i32> {
    value.map(|t| t.0)
}

macro_rules! enums {
    ($($(#[$doc:meta])* $name:ident: $model:ident { $($variant:ident),* })*) => {$(
        impl From<$model> for v1::$model {
            fn from(value: $model) -> Self {
                match value {
                    $($model::$variant => v1::$model::$variant,)*
                }
            }
        }

        $(#[$doc])*
        pub fn $name(value: i32, path: &str) -> Result<$model, FieldError> {
            match v1::$model::try_from(value) {
                $(Ok(v1::$model::$variant) => Ok($model::$variant),)*
                Ok(v1::$model::Unspecified) => Err(FieldError::missing(path)),
                Err(_) => Err(FieldError::new(path, format_args!("the value {value} is not known to this version"))),
            }
        }
    )*};
}

enums! {
    /// Checks a method of weaving from a message.
    how: How { InPlace, Relocated, Partly, Refused }
    /// Checks an aggregate operator from a message.
    aggregate: Aggregate { Sum, Min, Max, Avg }
    /// Checks a style from a message.
    style: Style { EventCounter, SampledFunction }
    /// Checks a units type from a message.
    units_type: UnitsType { Normalized, Unnormalized, Sampled }
}

/// The protocol has one kind for both sides of a call.
impl From<PointKind> for v1::PointKind {
    fn from(kind: PointKind) -> Self {
        match kind {
            PointKind::Entry => v1::PointKind::Entry,
            PointKind::Exit => v1::PointKind::Exit,
            PointKind::CallBefore | PointKind::CallAfter => v1::PointKind::Call,
            PointKind::Block => v1::PointKind::Block,
            PointKind::Edge => v1::PointKind::Edge,
        }
    }
}

impl From<EdgeKind> for v1::EdgeKind {
    fn from(kind: EdgeKind) -> Self {
        match kind {
            EdgeKind::Taken => v1::EdgeKind::Taken,
            EdgeKind::FallThrough => v1::EdgeKind::FallThrough,
            EdgeKind::CallReturn => v1::EdgeKind::CallReturn,
            EdgeKind::JumpTable => v1::EdgeKind::JumpTable,
            EdgeKind::TailJump => v1::EdgeKind::TailJump,
            EdgeKind::Return => v1::EdgeKind::Return,
        }
    }
}

impl From<&Refusal> for v1::Refusal {
    fn from(refusal: &Refusal) -> Self {
        v1::Refusal { reason: refusal.word().to_owned(), text: refusal.to_string() }
    }
}

impl From<&MetricInfo> for v1::Metric {
    fn from(metric: &MetricInfo) -> Self {
        v1::Metric {
            name: metric.name.clone(),
            unit: metric.unit.clone(),
            aggregate: v1::Aggregate::from(metric.aggregate).into(),
            style: v1::Style::from(metric.style).into(),
            units_type: v1::UnitsType::from(metric.units_type).into(),
            constraints: metric.constraints.clone(),
            flavors: metric.flavors.clone(),
            developer: metric.developer,
            doc: metric.doc.clone(),
            text: metric.text.as_ref().to_owned(),
            histogram: metric.histogram,
        }
    }
}

impl TryFrom<v1::Metric> for MetricInfo {
    type Error = FieldError;

    fn try_from(metric: v1::Metric) -> Result<Self, FieldError> {
        if metric.name.is_empty() {
            return Err(FieldError::missing("name"));
        }
        Ok(MetricInfo {
            aggregate: aggregate(metric.aggregate, "aggregate")?,
            style: style(metric.style, "style")?,
            units_type: units_type(metric.units_type, "units_type")?,
            name: metric.name,
            unit: metric.unit,
            histogram: metric.histogram,
            constraints: metric.constraints,
            flavors: metric.flavors,
            developer: metric.developer,
            doc: metric.doc,
            text: metric.text.into(),
        })
    }
}

impl From<&Distribution> for v1::Distribution {
    fn from(d: &Distribution) -> Self {
        let bucket = |&Bucket { first, end, count }: &Bucket| v1::Bucket { first, end, count };
        let buckets = d.buckets.iter().map(bucket).collect();
        v1::Distribution { count: d.count, sum: d.sum, min: d.min, max: d.max, own: d.own, buckets }
    }
}

impl TryFrom<v1::Distribution> for Distribution {
    type Error = FieldError;

    fn try_from(d: v1::Distribution) -> Result<Self, FieldError> {
        let v1::Distribution { count, sum, min, max, own, buckets } = d;
        let (mut out, mut previous) = (Distribution { count, sum, min, max, own, ..Distribution::default() }, None);
        let mut total = Some(0_u64);
        for (i, v1::Bucket { first, end, count }) in buckets.into_iter().enumerate() {
            let wrong = |field, why| Err(FieldError::new(format!("buckets[{i}].{field}"), why));
            if end <= first {
                return wrong("end", "is not above `first`");
            }
            if previous.is_some_and(|previous| previous >= (first, end)) {
                return wrong("first", "is out of order");
            }
            if count == 0 {
                return wrong("count", "is 0");
            }
            previous = Some((first, end));
            total = total.and_then(|total| total.checked_add(count));
            out.buckets.push(Bucket { first, end, count });
        }
        if total != Some(count) {
            return Err(FieldError::new("count", "is not the sum of the buckets' counts"));
        }
        if min > max {
            return Err(FieldError::new("min", "is above `max`"));
        }
        Ok(out)
    }
}

impl From<Activations> for v1::Activations {
    fn from(Activations { left, unseen, unrecorded, left_by_tail_jump }: Activations) -> Self {
        v1::Activations { left, unseen, unrecorded, left_by_tail_jump }
    }
}

impl From<v1::Activations> for Activations {
    fn from(v1::Activations { left, unseen, unrecorded, left_by_tail_jump }: v1::Activations) -> Self {
        Activations { left, unseen, unrecorded, left_by_tail_jump }
    }
}

impl From<(u32, &History)> for v1::PairHistory {
    fn from((pair, history): (u32, &History)) -> Self {
        let bin = |&Bin { intervals, sum, min, max }: &Bin| v1::Bin { intervals, sum, min, max };
        v1::PairHistory {
            pair,
            start_ns: history.start_ns(),
            width_ns: history.width_ns(),
            interval_ns: INTERVAL_NS,
            bins: history.bins().iter().map(bin).collect(),
        }
    }
}

/// Checks the history of a pair from a message.
pub fn history(history: v1::PairHistory, course: Course, path: &str) -> Result<History, FieldError> {
    let bin = |v1::Bin { intervals, sum, min, max }: v1::Bin| Bin { intervals, sum, min, max };
    let bins = history.bins.into_iter().map(bin).collect();
    if history.interval_ns != INTERVAL_NS {
        return Err(FieldError::new(format!("{path}.interval_ns"), "is another version's"));
    }
    History::from_parts(course, history.start_ns, history.width_ns, bins)
        .ok_or_else(|| FieldError::new(format!("{path}.width_ns"), "is no history's"))
}

#[cfg(test)]
mod tests {
    use ingraft_model::{Resolution, ResourcePath, Scale};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn errors_name_the_field() {
        let error = focus("Code/x", "focus").unwrap_err().inside("pairs[3]").inside("measure");
        assert_eq!(error.to_string(), "measure.pairs[3].focus: `Code/x` is no resource: it must begin with `/`");
        assert_eq!(pid(0, "pid").unwrap_err().to_string(), "pid: 0 is no process id");
        assert_eq!(how(0, "how").unwrap_err().to_string(), "how: is missing");
        assert_eq!(how(77, "how").unwrap_err().to_string(), "how: the value 77 is not known to this version");
        assert_eq!(FieldError::new("[2]", "no").inside("pairs").path, "pairs[2]");
        assert_eq!(required::<u8>(None, "measure").unwrap_err().to_string(), "measure: is missing");
        assert_eq!(Failure::from(FieldError::missing("target")).reason, "invalid_field");
    }

    #[test]
    fn every_enum_value_comes_back() {
        for h in [How::InPlace, How::Relocated, How::Partly, How::Refused] {
            assert_eq!(how(v1::How::from(h).into(), "h"), Ok(h));
        }
    }

    fn metric() -> impl Strategy<Value = MetricInfo> {
        let aggregate =
            prop_oneof![Just(Aggregate::Sum), Just(Aggregate::Min), Just(Aggregate::Max), Just(Aggregate::Avg)];
        let style = prop_oneof![Just(Style::EventCounter), Just(Style::SampledFunction)];
        let units = prop_oneof![Just(UnitsType::Normalized), Just(UnitsType::Unnormalized), Just(UnitsType::Sampled)];
        let texts = || proptest::collection::vec(".*", 0..4);
        (".+", ".*", aggregate, style, units, texts(), texts(), any::<(bool, bool)>(), ".*", ".*").prop_map(
            |(name, unit, aggregate, style, units_type, constraints, flavors, (developer, histogram), doc, text)| {
                MetricInfo {
                    name,
                    unit,
                    aggregate,
                    style,
                    units_type,
                    histogram,
                    constraints,
                    flavors,
                    developer,
                    doc,
                    text: text.into(),
                }
            },
        )
    }

    #[test]
    fn distributions_that_make_no_sense_name_the_field() {
        let bucket = |first, end, count| v1::Bucket { first, end, count };
        let check = |min, count, buckets: &[v1::Bucket]| {
            let d = v1::Distribution { count, sum: 0, min, max: 30, own: None, buckets: buckets.to_vec() };
            Distribution::try_from(d).unwrap_err().to_string()
        };
        let good = bucket(10, 20, 2);
        assert_eq!(check(10, 3, &[good, bucket(20, 20, 1)]), "buckets[1].end: is not above `first`");
        assert_eq!(check(10, 3, &[good, bucket(10, 20, 1)]), "buckets[1].first: is out of order");
        assert_eq!(check(10, 2, &[good, bucket(20, 40, 0)]), "buckets[1].count: is 0");
        assert_eq!(check(10, 3, &[good]), "count: is not the sum of the buckets' counts");
        assert_eq!(check(10, 1, &[good, bucket(20, 40, u64::MAX)]), "count: is not the sum of the buckets' counts");
        assert_eq!(check(31, 2, &[good]), "min: is above `max`");
    }

    proptest! {
        #[test]
        fn distributions_come_back(slots in proptest::collection::vec(0..u64::from(u32::MAX), 0..400), mult in any::<u32>()) {
            let d = Distribution::from_slots(Resolution::Fine, &slots, Scale { mult, shift: 24 });
            prop_assert_eq!(Distribution::try_from(v1::Distribution::from(&d)), Ok(d));
        }

        #[test]
        fn metrics_come_back(metric in metric()) {
            prop_assert_eq!(MetricInfo::try_from(v1::Metric::from(&metric)), Ok(metric));
        }

        #[test]
        fn foci_come_back(names in proptest::collection::vec("[a-zA-Z0-9_%/,.:~-]+( [a-z]+)?", 0..=2), pid in 1..i32::MAX) {
            let code = ResourcePath::new("Code", names);
            let process = ResourcePath::new("Process", [pid.to_string()]);
            let f = Focus::new([code, process]).unwrap();
            prop_assert_eq!(focus(&f.to_string(), "focus"), Ok(f));
        }

        #[test]
        fn any_focus_text_is_read_or_refused(text in ".*") {
            let _ = focus(&text, "focus");
        }

        #[test]
        fn any_number_is_read_or_refused(n in any::<i32>()) {
            let _ = (how(n, "p"), aggregate(n, "p"), style(n, "p"), units_type(n, "p"), pid(n, "p"));
        }
    }
}
