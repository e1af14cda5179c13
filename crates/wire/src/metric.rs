//! Metrics, and the events that they can name.

use ingraft_api::{EventEntry, MetricFocus};
use ingraft_model::MetricInfo;

use crate::v1;

messages! {
    MetricInfo => Metric {
        name, unit, aggregate, style, units_type, constraints, developer, doc, text, flavors, histogram
    }
    MetricFocus => MetricFocus { metric, focus }
    EventEntry => Event { name, aliases, group, problem, at_points }
}

/// An MDL source: its name and its text.
impl From<(String, String)> for v1::Source {
    fn from((name, text): (String, String)) -> Self {
        v1::Source { name, text }
    }
}

impl From<v1::Source> for (String, String) {
    fn from(v1::Source { name, text }: v1::Source) -> Self {
        (name, text)
    }
}

/// Reads MDL sources.
pub fn sources(sources: Vec<v1::Source>) -> Vec<(String, String)> {
    sources.into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::any::comes_back;
    use crate::field::round_trips;

    #[test]
    fn metrics_come_back() {
        round_trips::<MetricInfo, v1::Metric>();
        round_trips::<MetricFocus, v1::MetricFocus>();
        round_trips::<EventEntry, v1::Event>();
        comes_back(|source: (String, String)| Ok(v1::Source::from(source).into()));
    }
}
