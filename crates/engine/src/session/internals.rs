//! Metrics of the engine's own in a request: values without code, beside those that have some.

use super::*;

/// A pair of a request that the engine knows by itself: its position among the pairs, its key, what it is.
pub(super) type Own = (usize, PairKey, Internal);

/// The pairs of a request that need no code. Definitions of the same name go first.
pub(super) fn of_request(library: &Library, request: &EnableRequest) -> Result<Vec<Own>, Error> {
    let unknown = request.pairs.iter().enumerate().filter(|(_, pair)| library.metric(&pair.metric).is_none());
    let mut own = Vec::new();
    for (position, pair) in unknown {
        if let Some(why) = internal::without_meaning(&pair.metric) {
            let what = format!("the metric `{}` has no meaning here", pair.metric);
            return Err(Error::new(ErrorKind::NotFound, "no_such_metric", what, why));
        }
        let Some(internal) = Internal::named(&pair.metric) else { continue };
        if pair.focus != Focus::default() {
            let what =
                format!("the metric `{}` is about a whole process: `{}` cannot restrict it", pair.metric, pair.focus);
            let hint = format!("ask for `{}` without a focus", pair.metric);
            return Err(Error::new(ErrorKind::Usage, "focus_of_internal", what, hint));
        }
        let key = PairKey { text: String::new(), metric: pair.metric.clone(), focus: pair.focus.clone() };
        own.push((position, key, internal));
    }
    Ok(own)
}

/// The request without them.
pub(super) fn without(request: &EnableRequest, own: &[Own]) -> EnableRequest {
    let other =
        |(position, pair): (usize, &MetricFocus)| own.iter().all(|(own, ..)| *own != position).then(|| pair.clone());
    EnableRequest { pairs: request.pairs.iter().enumerate().filter_map(other).collect(), ..request.clone() }
}

/// Puts them where the request has them.
pub(super) fn merge(own: &[Own], internal: Vec<View>, views: &mut Vec<View>, pairs: &mut Vec<PairInfo>) {
    for ((position, key, which), view) in own.iter().zip(internal) {
        let at = (*position).min(views.len()).min(pairs.len());
        views.insert(at, view);
        pairs.insert(
            at,
            PairInfo {
                pair: MetricFocus { metric: key.metric.clone(), focus: key.focus.clone() },
                metric: Arc::new(which.info()),
                function: None,
                points: 0,
                refused: Vec::new(),
                exact_since_ns: None,
            },
        );
    }
}

impl Session {
    /// What a measurement reads of them from now on.
    pub(super) fn internal_views(&self, own: &[Own]) -> Vec<View> {
        let shared = self.shared();
        let view = |(_, key, which): &Own| {
            let value = if which.adds_up() { self.internal(*which, &shared) } else { 0 };
            View {
                key: key.clone(),
                // no counter: nothing in the target has it
                value: Slots { first: u32::MAX, shape: Shape::Counter },
                activations: Vec::new(),
                unit: ValueUnit::Plain,
                aggregate: Aggregate::Sum,
                thread: None,
                internal: Some(*which),
                before: HashMap::from([(None, Raw { value, ..Raw::default() })]),
            }
        };
        own.iter().map(view).collect()
    }

    /// The pairs of a measurement that were taken out.
    pub(super) fn taken_out(&self, control: &Control, id: MeasurementId) -> HashMap<PairKey, (View, PairInfo)> {
        let Some(measurement) = control.measurements.get(&id) else { return HashMap::new() };
        let shared = self.shared();
        let both = measurement.views.iter().zip(measurement.pairs.iter());
        let out = both.filter(|(view, _)| shared.frozen.contains_key(&view.value.first));
        out.map(|(view, info)| (view.key.clone(), (view.clone(), info.clone()))).collect()
    }
}
