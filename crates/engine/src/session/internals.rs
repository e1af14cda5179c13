//! Pairs of a request whose values need no code: metrics of the engine itself, and events that the kernel counts.

use std::borrow::Cow;
use std::sync::Arc;

use ingraft_mdl::Library;
use ingraft_model::Focus;

use crate::api::{EnableRequest, MetricFocus, PairInfo};
use crate::error::{Error, Reason};
use crate::measure::internal;
use crate::measure::internal::Internal;
use crate::pairs::PairKey;
use crate::program::modules::Modules;

use super::events;
use super::view::View;

/// A pair whose value the engine knows without code: its position in the request, its key, and the kind of its value.
pub(super) type CodelessPair = (usize, PairKey, CodelessValue);

/// Values that the engine knows without code.
#[derive(Clone, Debug)]
pub(super) enum CodelessValue {
    /// A metric of the engine itself.
    Internal(Internal),
    /// An event that the kernel counts.
    Event(events::Wish),
}

/// The pairs of a request that need no code. A definition of the same name takes precedence.
pub(super) fn of_request(
    library: &Library,
    request: &EnableRequest,
    modules: &Modules,
) -> Result<Vec<CodelessPair>, Error> {
    let mut own = Vec::new();
    for (position, pair) in request.pairs.iter().enumerate() {
        let known = match library.metric(&pair.metric) {
            Some(_) => events::of_pair(library, pair, &request.flavors, modules)?.map(CodelessValue::Event),
            None => internal(pair)?.map(CodelessValue::Internal),
        };
        let Some(known) = known else { continue };
        let text = if let CodelessValue::Event(wish) = &known { Arc::clone(&wish.metric.text) } else { Arc::default() };
        own.push((position, PairKey::new(text, Arc::clone(pair)), known));
    }
    Ok(own)
}

fn internal(pair: &MetricFocus) -> Result<Option<Internal>, Error> {
    if let Some(why) = internal::without_meaning(&pair.metric) {
        let what = format!("the metric `{}` has no meaning here", pair.metric);
        return Err(Error::new(Reason::NoSuchMetric, what, why));
    }
    let Some(internal) = Internal::named(&pair.metric) else { return Ok(None) };
    if pair.focus != Focus::default() {
        let what =
            format!("the metric `{}` is about a whole process: `{}` cannot restrict it", pair.metric, pair.focus);
        let hint = format!("ask for `{}` without a focus", pair.metric);
        return Err(Error::new(Reason::FocusOfInternal, what, hint));
    }
    Ok(Some(internal))
}

/// The request without these pairs.
pub(super) fn without<'r>(request: &'r EnableRequest, own: &[CodelessPair]) -> Cow<'r, EnableRequest> {
    if own.is_empty() {
        return Cow::Borrowed(request);
    }
    let other = |(position, pair): (usize, &Arc<MetricFocus>)| {
        own.iter().all(|(own, ..)| *own != position).then(|| pair.clone())
    };
    let pairs = request.pairs.iter().enumerate().filter_map(other).collect();
    Cow::Owned(EnableRequest { pairs, ..request.clone() })
}

/// Inserts the pairs without code at their positions in the request.
pub(super) fn merge(own: &[CodelessPair], internal: Vec<View>, views: &mut Vec<View>, pairs: &mut Vec<PairInfo>) {
    for ((position, key, known), view) in own.iter().zip(internal) {
        let at = (*position).min(views.len()).min(pairs.len());
        views.insert(at, view);
        let metric = match known {
            CodelessValue::Internal(which) => Arc::new(which.info()),
            CodelessValue::Event(wish) => Arc::clone(&wish.metric),
        };
        pairs.insert(at, PairInfo::new(Arc::clone(&key.pair), metric));
    }
}
