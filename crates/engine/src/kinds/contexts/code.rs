//! The code that tells calling contexts. The entry of a function enters its context, and the end of the call, however it ends, goes back to
//! that of the caller: the activation record of the call restores it ([`ingraft_model::contexts`]).

use std::sync::Arc;

use ingraft_model::contexts::CURRENT;
use ingraft_model::{
    BinaryOp, CallRecord, Clock, ContextShape, Expr, FunctionId, Insertion, Instrumentation, KeptValue, MetricInfo,
    Order, Placing, PointKind, Restore, Shape, Snippet, Stmt, Variable, VariableId, VariableKind,
};

use crate::api::{ContextMetric, ContextsOptions};
use crate::kinds::code;

/// Name of the metric of the pairs of functions.
pub const METRIC: &str = "contexts";
/// Name of the metric of the pair that holds the tree.
pub const TREE: &str = "context_tree";

/// The variables of a function: one that is always 0, the activations, the tree, and the context of the thread.
pub const ACTIVATIONS: VariableId = VariableId(1);
const TREE_OF: VariableId = VariableId(2);
const CURRENT_OF: VariableId = VariableId(3);

/// Effects of a function of the C library that metrics are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LibraryRole {
    /// Whether threads wait in it.
    pub waits: bool,
    /// Whether it waits for a lock.
    pub locks: bool,
    /// The number of bytes that it is asked for.
    pub allocates: Option<Size>,
}

/// A number of bytes, by the arguments that hold it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// One argument.
    Argument(u8),
    /// The product of two arguments.
    Product(u8, u8),
}

/// The variable of the tree, which a pair of its own holds for all functions.
pub fn held(shape: ContextShape) -> Variable {
    code::named(TREE, VariableKind::Scratch, Shape::Contexts(shape))
}

/// The variables of all functions; `tree` is the first counter of the tree.
pub fn variables(tree: u32) -> Arc<[Variable]> {
    let alias = |name, counter| code::named(name, VariableKind::Scratch, Shape::Alias(counter));
    [
        code::named("calls", VariableKind::Counter, Shape::Counter),
        code::named("activations", VariableKind::Activations, Shape::Activations),
        alias("tree", tree),
        alias("current", tree + CURRENT),
    ]
    .into()
}

/// The metric of a pair.
pub fn metric(name: &str) -> Arc<MetricInfo> {
    let doc = "Calls by calling context.".to_owned();
    Arc::new(MetricInfo { unit: "calls".to_owned(), doc, ..(*code::metric_named(name)).clone() })
}

/// The code of functions.
pub struct ContextCode<'a> {
    /// Size of the tree.
    pub shape: ContextShape,
    /// The metrics. Their values are numbered in their order.
    pub metrics: &'a [ContextMetric],
    /// The variables of all functions.
    pub variables: &'a Arc<[Variable]>,
    /// The metric of their pairs.
    pub metric: &'a Arc<MetricInfo>,
}

impl ContextCode<'_> {
    /// The code in a function with a number.
    pub fn of(&self, function: FunctionId, number: u32, role: LibraryRole) -> Instrumentation {
        let mut kept = Vec::new();
        let (mut entry, mut exit) = (vec![Stmt::Enter(TREE_OF, self.shape, number)], Vec::new());
        for (n, metric) in (0..).zip(ContextsOptions::values(self.metrics)) {
            let add = |e| Stmt::AddContext(TREE_OF, self.shape, n, e);
            if let Some(clock) = clock(metric, role) {
                for value in [KeptValue::Time(clock), KeptValue::Spent(clock)] {
                    if !kept.contains(&value) {
                        kept.push(value);
                    }
                }
                exit.push(add(Expr::Saved(KeptValue::Spent(clock))));
            }
            if let Some(size) = role.allocates.filter(|_| metric == ContextMetric::AllocatedBytes) {
                entry.push(add(size.expr()));
            }
        }
        // Code that reads a clock cannot stand right at a point.
        let placing = if kept.is_empty() { Placing::InCopyIfBusy } else { Placing::Anywhere };
        // Times are the first words of a record.
        kept.sort_by_key(|kept| !matches!(kept, KeptValue::Time(_)));
        exit.push(Stmt::Set(CURRENT_OF, Expr::Restored));
        let record = CallRecord { activations: ACTIVATIONS, kept, restore: Some(Restore::Value(CURRENT_OF)) };
        let at = |point, order, stmt| {
            let snippet = Arc::new(Snippet { stmts: vec![stmt] });
            Insertion { order, ..code::insertion_of(function, point, snippet) }
        };
        let insertions = vec![
            at(PointKind::Entry, Order::Append, Stmt::Open(record.clone(), entry)),
            at(PointKind::Exit, Order::Prepend, Stmt::Close(record, exit)),
        ];
        let variables = Arc::clone(self.variables);
        Instrumentation { variables, placing, ..code::empty(insertions, Arc::clone(self.metric)) }
    }
}

/// The clock whose own time of a call is added to the metric in a function; `None` if none is.
fn clock(metric: ContextMetric, role: LibraryRole) -> Option<Clock> {
    match metric {
        ContextMetric::WallTime => Some(Clock::Wall),
        ContextMetric::CpuTime => Some(Clock::Cpu),
        ContextMetric::WaitTime => role.waits.then_some(Clock::Wall),
        ContextMetric::LockTime => role.locks.then_some(Clock::Wall),
        ContextMetric::AllocatedBytes | ContextMetric::Looks => None,
    }
}

impl Size {
    fn expr(self) -> Expr {
        match self {
            Size::Argument(n) => Expr::Arg(n),
            Size::Product(a, b) => Expr::Binary(BinaryOp::Multiply, Box::new(Expr::Arg(a)), Box::new(Expr::Arg(b))),
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::{ModuleId, WallClock};

    use crate::measure::lower::worst_case;

    use super::*;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    fn texts(metrics: &[ContextMetric], role: LibraryRole) -> Vec<String> {
        let shape = ContextShape::of_bits(4, !metrics.is_empty(), false).expect("a size");
        let (variables, metric) = (variables(7), metric(METRIC));
        let code = ContextCode { shape, metrics, variables: &variables, metric: &metric };
        code.of(F, 9, role).insertions.iter().map(|i| format!("{:?} {}", i.point, i.snippet)).collect()
    }

    #[test]
    fn a_call_enters_its_context_and_goes_back() {
        assert_eq!(
            texts(&[], LibraryRole::default()),
            ["Entry open r1 restore v3 { enter v2 9; }", "Exit close r1 restore v3 { v3 = restored; }"]
        );
    }

    /// Without a prediction, a request would not know which functions are called too often.
    #[test]
    fn the_cost_of_the_largest_tree_is_predicted() {
        let shape = ContextShape::of_bits(*ContextShape::BITS.end(), true, false).expect("a size");
        let (variables, metric) = (variables(0), metric(METRIC));
        let code = ContextCode { shape, metrics: &ContextMetric::ALL[..4], variables: &variables, metric: &metric };
        for insertion in code.of(F, 1, LibraryRole::default()).insertions {
            let cost = worst_case(&insertion, &variables, WallClock::Tsc);
            assert!(cost.is_some(), "{}", insertion.snippet);
        }
    }

    #[test]
    fn metrics_are_added_where_they_belong() {
        use ContextMetric::{AllocatedBytes, CpuTime, LockTime, WaitTime, WallTime};
        let role = LibraryRole { waits: true, locks: false, allocates: Some(Size::Product(0, 1)) };
        let all = texts(&[WallTime, WaitTime, LockTime, AllocatedBytes], role);
        assert_eq!(
            all,
            [
                "Entry open r1 time spent restore v3 { enter v2 9; v2 metric 3 += ($arg[0] * $arg[1]); }",
                "Exit close r1 time spent restore v3 { v2 metric 0 += saved spent; v2 metric 1 += saved spent; v3 = restored; }",
            ]
        );
        let looks = texts(&[ContextMetric::Looks, AllocatedBytes], role);
        assert!(
            looks[0].ends_with("{ enter v2 9; v2 metric 2 += ($arg[0] * $arg[1]); }"),
            "two values without code: {looks:?}"
        );
        assert!(
            texts(&[WallTime, CpuTime], LibraryRole::default())[0].contains("time cpu_time spent cpu_spent"),
            "times first"
        );
    }
}
