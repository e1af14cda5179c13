//! The key by which requests share a pair.

use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::Arc;

use rustc_hash::FxBuildHasher;

use crate::api::MetricFocus;
use crate::measure::request::{Owner, PairPurpose, WantedPair};

/// Key of a pair. Requests with equal keys share code and counters. A key is cheap to copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PairKey {
    /// Text of the metric, so that a redefined metric has another key.
    pub text: Arc<str>,
    /// Text of the lists, constraints and exclusions that the metric may use, except the shipped ones.
    pub helpers: Arc<str>,
    /// The measurement that has the pair alone; `None` if requests share it.
    owner: Option<Owner>,
    /// The metric and the focus.
    pub pair: Arc<MetricFocus>,
    /// Hash of the metric and focus alone, because the text is long and few metrics have the same name.
    hash: u64,
}

impl Hash for PairKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl PairKey {
    /// Key of an evaluated pair.
    pub fn of(wanted: &WantedPair) -> Self {
        let key = PairKey::new(Arc::clone(&wanted.instrumentation.metric.text), Arc::clone(&wanted.pair));
        PairKey { helpers: Arc::clone(&wanted.helpers), owner: wanted.owner, ..key }
    }

    /// Key of a pair that belongs to one measurement, and whose metric is not of MDL.
    pub fn owned(owner: Owner, pair: Arc<MetricFocus>) -> Self {
        PairKey { owner: Some(owner), ..PairKey::new(pair.metric.as_str().into(), pair) }
    }

    /// Key of a pair whose metric uses the shipped definitions alone.
    pub fn new(text: Arc<str>, pair: Arc<MetricFocus>) -> Self {
        let hash = FxBuildHasher.hash_one(&pair);
        PairKey { text, helpers: Arc::default(), owner: None, pair, hash }
    }

    /// Metric and focus.
    pub fn pair(&self) -> &MetricFocus {
        &self.pair
    }

    /// Whether the pair has no value for clients, so that no request is about it.
    pub fn is_hidden(&self) -> bool {
        self.owner.is_some_and(|owner| owner.purpose == PairPurpose::Hidden)
    }

    /// Whether values of other pairs matter more.
    pub fn helps(&self) -> bool {
        self.owner.is_some_and(|owner| owner.purpose != PairPurpose::Asked)
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Focus;
    use rustc_hash::FxHashSet;

    use super::*;

    #[test]
    fn keys_differ_in_each_of_their_parts() {
        let pair = |metric: &str, focus: &str| {
            let focus = Focus::parse(focus).expect("a focus");
            Arc::new(MetricFocus { metric: metric.to_owned(), focus })
        };
        let key = |text: &str, metric: &str, focus: &str| PairKey::new(text.into(), pair(metric, focus));
        let one = key("a", "calls", "/Code/m/f");
        let helped = PairKey { helpers: "list".into(), ..one.clone() };
        let keys = [
            one.clone(),
            key("a", "calls", "/Code/m/f"),
            helped,
            key("b", "calls", "/Code/m/f"),
            key("a", "calls", "/Code/m/g"),
            key("a", "time", "/Code/m/f"),
        ];
        assert_eq!(keys[0], keys[1]);
        assert_eq!(keys.iter().collect::<FxHashSet<_>>().len(), 5, "only the first two are equal");
        // equal keys have equal hashes, whichever texts they have
        let hash = |key: &PairKey| FxBuildHasher.hash_one(key);
        assert_eq!(hash(&keys[0]), hash(&keys[1]));
        assert_eq!(hash(&keys[0]), hash(&keys[3]));
    }
}
