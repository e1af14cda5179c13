//! Code of the engine's own metrics: counters and refusals that are no metrics of MDL.

use std::sync::Arc;

use ingraft_model::{
    Aggregate, Focus, FunctionId, Insertion, Instrumentation, MetricInfo, Order, Parts, Placing, PointKind, Refusal,
    ResourcePath, Role, Shape, Snippet, Style, UnitsType, ValueUnit, Variable, VariableId, VariableKind,
};

use crate::api::{MeasurementId, MetricFocus};
use crate::measure::request::{Owner, PairPurpose, WantedPair};
use crate::pairs::PairKey;
use crate::program::modules::Modules;

/// Name of the metric of the pairs that count calls before costly code comes.
const LOOK: &str = "calls_looked_at";

/// Code of a metric of the engine's own that is refused in a function for this reason.
pub fn refused(function: FunctionId, metric: &str, why: Refusal) -> Instrumentation {
    Instrumentation { variables: [variable(0)].into(), ..empty(vec![missing(function, why)], metric_named(metric)) }
}

/// An insertion that is refused in a function for this reason.
pub fn missing(function: FunctionId, why: Refusal) -> Insertion {
    increment(function, PointKind::Block, Parts::Missing(Arc::new(why)), VariableId(0))
}

/// Code that increments a counter.
pub fn increment(function: FunctionId, point: PointKind, parts: Parts, variable: VariableId) -> Insertion {
    insertion(function, point, parts, Snippet::increment(variable))
}

/// Code of a metric of the engine's own at points of a function.
pub fn insertion(function: FunctionId, point: PointKind, parts: Parts, snippet: Snippet) -> Insertion {
    Insertion { parts, ..insertion_of(function, point, Arc::new(snippet)) }
}

/// Code of a metric of the engine's own at all points of a kind, which functions may share.
pub fn insertion_of(function: FunctionId, point: PointKind, snippet: Arc<Snippet>) -> Insertion {
    Insertion {
        function,
        point,
        parts: Parts::All,
        order: Order::Append,
        role: Role::Metric,
        snippet,
        group: 0,
        except: [].into(),
    }
}

/// A pair that counts the calls of a function before costly code comes into it, so that it is known what that code will cost.
pub fn look(function: FunctionId, focus: Focus, measurement: MeasurementId) -> WantedPair {
    let count = increment(function, PointKind::Entry, Parts::All, VariableId(0));
    let code = Instrumentation { variables: [variable(0)].into(), ..empty(vec![count], metric_named(LOOK)) };
    let pair = Arc::new(MetricFocus { metric: LOOK.to_owned(), focus });
    WantedPair {
        function: Some(function),
        ..WantedPair::owned(Owner { measurement, purpose: PairPurpose::Hidden }, pair, code)
    }
}

/// The pairs among these that only count calls before costly code comes.
pub fn looks_among(wanted: &[WantedPair]) -> Vec<PairKey> {
    wanted.iter().filter(|wanted| wanted.pair.metric == LOOK).map(PairKey::of).collect()
}

/// The whole of a function as a focus; `None` if it has no name that a focus can have.
pub fn focus(modules: &Modules, function: FunctionId) -> Option<Focus> {
    let (module, name) = modules.focus_name(function)?;
    Focus::new([ResourcePath::new("Code", [module, name])]).ok()
}

/// An instrumentation of a developer's metric, without variables.
pub fn empty(insertions: Vec<Insertion>, metric: Arc<MetricInfo>) -> Instrumentation {
    Instrumentation {
        metric,
        variables: [].into(),
        insertions,
        event: None,
        thread: None,
        object: None,
        index_names: None,
        key_names: Vec::new(),
        apart: false,
        placing: Placing::Anywhere,
        records: [].into(),
    }
}

/// A variable without a unit.
pub fn named(name: &str, kind: VariableKind, shape: Shape) -> Variable {
    Variable { name: name.to_owned(), kind, shape, unit: ValueUnit::Plain, sampled: kind == VariableKind::Activations }
}

/// A counter of a profile.
pub fn variable(n: usize) -> Variable {
    Variable {
        name: format!("counter {n}"),
        kind: VariableKind::Counter,
        shape: Shape::Counter,
        unit: ValueUnit::Plain,
        sampled: n == 0,
    }
}

/// A metric for developers, with this name.
pub fn metric_named(name: &str) -> Arc<MetricInfo> {
    Arc::new(MetricInfo {
        name: name.to_owned(),
        unit: "passages".to_owned(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        histogram: false,
        constraints: vec!["/Code".to_owned()],
        flavors: Vec::new(),
        developer: true,
        doc: "The counters of a profile, or the buffer of a trace.".to_owned(),
        text: name.into(),
    })
}
