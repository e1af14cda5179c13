//! Sums of expressions in contexts. An expression is the code of a metric that the engine defines for the request. What this code adds to the
//! metric's value is added in the context of the thread instead, and what it keeps from the beginning of a call is in the record of the context.

use ingraft_model::{
    CallRecord, Expr, FunctionId, Instrumentation, KeptValue, PointKind, Stmt, VariableId, VariableKind,
};
use rustc_hash::FxHashMap;

use crate::api::ContextSum;
use crate::error::{Error, Reason};
use crate::kinds::expressions::{self, DefinedMetric, ExpressionMetrics};
use crate::session::KindRequest;

/// The metrics of sums.
const METRICS: ExpressionMetrics = ExpressionMetrics { flag: "--sum", prefix: "context_sum" };

/// The definition of the metric of a sum.
pub fn definition(index: usize, sum: &ContextSum) -> DefinedMetric {
    let (metric, expression) = (METRICS.name(index), sum.expression.as_str());
    DefinedMetric::new(METRICS.flag, &metric, expression, &format!("{metric} += {expression};"))
}

/// Code that sums add to that of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SumCode {
    /// Values that the record of a call keeps.
    pub kept: Vec<KeptValue>,
    /// Statements that run once the call is in its context.
    pub entry: Vec<Stmt>,
    /// Statements that run before the call leaves it.
    pub exit: Vec<Stmt>,
}

impl SumCode {
    /// The code of all sums, by function. `add` makes the statement that adds a value to the sum with an index.
    pub fn of_functions(
        asked: &KindRequest<'_>,
        sums: &[ContextSum],
        add: &dyn Fn(usize, Expr) -> Stmt,
    ) -> Result<FxHashMap<FunctionId, SumCode>, Error> {
        let mut all: FxHashMap<FunctionId, SumCode> = FxHashMap::default();
        METRICS.evaluate(asked, sums.iter().map(|sum| &sum.function), |index, function, code| {
            let joined = all.entry(function).or_default().join(code, &|value| add(index, value));
            joined.ok_or_else(|| refused(sums.get(index)))
        })?;
        Ok(all)
    }

    /// Whether there are no sums.
    pub fn is_empty(&self) -> bool {
        self.entry.is_empty() && self.exit.is_empty()
    }

    /// Adds the code of a metric. `None` if it does something else than to add values at the beginning or the end of a call.
    fn join(&mut self, code: &Instrumentation, add: &dyn Fn(Expr) -> Stmt) -> Option<()> {
        let value = code.variables.iter().position(|variable| variable.kind == VariableKind::Counter)?;
        let adding = Adding { value: VariableId(u32::try_from(value).ok()?), add };
        for insertion in &code.insertions {
            let (begins, stmts) = match insertion.point {
                PointKind::Entry => (true, &mut self.entry),
                PointKind::Exit => (false, &mut self.exit),
                _ => return None,
            };
            for stmt in &insertion.snippet.stmts {
                match stmt {
                    Stmt::Open(record, body) if begins => {
                        stmts.extend(adding.all(body)?);
                        keep(&mut self.kept, record)?;
                    }
                    Stmt::Close(_, body) if !begins => stmts.extend(adding.all(body)?),
                    other => stmts.push(adding.one(other)?),
                }
            }
        }
        Some(())
    }
}

/// The error for a sum that is not possible.
pub fn refused(sum: Option<&ContextSum>) -> Error {
    let expression = sum.map_or("", |sum| sum.expression.as_str());
    let what = format!("the values of `{expression}` cannot be added up in contexts");
    let hint = "use arguments of the call, its result, and `$elapsed`, in few sums and times of one function";
    Error::new(Reason::NoSum, what, hint)
}

/// Adds the values that a record keeps. `None` if there are too many, or if the record restores a variable.
fn keep(kept: &mut Vec<KeptValue>, record: &CallRecord) -> Option<()> {
    for value in &record.kept {
        if !kept.contains(value) {
            kept.push(*value);
        }
    }
    (record.restore.is_none() && kept.len() <= CallRecord::KEPT_MAX).then_some(())
}

/// Statements that add to a value, as they are in contexts.
struct Adding<'a> {
    value: VariableId,
    add: &'a dyn Fn(Expr) -> Stmt,
}

impl Adding<'_> {
    fn all(&self, stmts: &[Stmt]) -> Option<Vec<Stmt>> {
        stmts.iter().map(|stmt| self.one(stmt)).collect()
    }

    fn one(&self, stmt: &Stmt) -> Option<Stmt> {
        match stmt {
            Stmt::Add(v, e) if *v == self.value && expressions::has_no_variable(e) => Some((self.add)(e.clone())),
            Stmt::If(condition, body) if expressions::has_no_variable(condition) => {
                Some(Stmt::If(condition.clone(), self.all(body)?))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_mdl::{Library, ParseOptions};
    use ingraft_model::{Clock, ContextShape, MetricInfo, ModuleId, Shape, Snippet, TimeUnit, ValueUnit, Variable};

    use super::*;
    use crate::kinds::code;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    fn sum(name: &str, expression: &str) -> ContextSum {
        ContextSum { name: name.into(), function: "f".to_owned(), expression: expression.to_owned() }
    }

    #[test]
    fn a_definition_adds_where_the_values_are_known() {
        let text = |expression| definition(3, &sum("a", expression)).source.1;
        assert!(text("$arg[2]").contains("append preInsn $constraint[0].entry (* context_sum_3 += $arg[2]; *)"));
        assert!(text("$return * $arg[0]").contains("prepend preInsn $constraint[0].return (* context_sum_3 +="));
        for expression in ["$arg[0]", "$return * ($return > 0)", "$elapsed"] {
            let mut library = Library::new(ParseOptions::default());
            assert_eq!(library.load(METRICS.flag, &definition(0, &sum("a", expression)).source.1), []);
            assert!(library.metric("context_sum_0").is_some());
        }
    }

    /// The code of a metric in a function: a value, records of calls and another variable.
    fn metric_code(points: &[(PointKind, Vec<Stmt>)]) -> Instrumentation {
        let variable =
            |kind, shape| Variable { name: String::new(), kind, shape, unit: ValueUnit::Plain, sampled: false };
        let variables = [
            variable(VariableKind::Activations, Shape::Activations),
            variable(VariableKind::Counter, Shape::Counter),
            variable(VariableKind::Scratch, Shape::Counter),
        ];
        let insertion = |(point, stmts): &(PointKind, Vec<Stmt>)| {
            code::insertion_of(F, *point, std::sync::Arc::new(Snippet { stmts: stmts.clone() }))
        };
        let metric: std::sync::Arc<MetricInfo> = code::metric_named("m");
        Instrumentation { variables: variables.into(), ..code::empty(points.iter().map(insertion).collect(), metric) }
    }

    fn joined(codes: &[Instrumentation]) -> Option<SumCode> {
        let shape = ContextShape::of_bits(4, true, false).expect("a size");
        let mut joined = SumCode::default();
        for (n, code) in codes.iter().enumerate() {
            joined.join(code, &|value| Stmt::AddContext(VariableId(2), shape, n as u8, value))?;
        }
        Some(joined)
    }

    fn add(e: Expr) -> Stmt {
        Stmt::Add(VariableId(1), e)
    }

    fn record(kept: Vec<KeptValue>) -> CallRecord {
        CallRecord { activations: VariableId(0), kept, restore: None }
    }

    #[test]
    fn values_are_added_in_contexts() {
        let argument = KeptValue::Argument(1);
        let at_entry = metric_code(&[(PointKind::Entry, vec![Stmt::If(Expr::Arg(0), vec![add(Expr::Arg(1))])])]);
        let at_exit = metric_code(&[(PointKind::Exit, vec![add(Expr::Return)])]);
        let kept = vec![KeptValue::Time(Clock::Wall), argument];
        let elapsed = vec![add(Expr::Elapsed(Clock::Wall, TimeUnit::Nanoseconds)), add(Expr::Saved(argument))];
        let both = metric_code(&[
            (PointKind::Entry, vec![Stmt::Open(record(kept.clone()), Vec::new())]),
            (PointKind::Exit, vec![Stmt::Close(record(kept.clone()), elapsed)]),
        ]);
        let code = joined(&[at_entry, at_exit, both.clone(), both]).expect("sums");
        let text = |stmts: &[Stmt]| Snippet { stmts: stmts.to_vec() }.to_string();
        assert_eq!(text(&code.entry), "if ($arg[0]) { v2 metric 0 += $arg[1]; }");
        assert!(text(&code.exit).starts_with("v2 metric 1 += $return; v2 metric 2 += "), "{}", text(&code.exit));
        assert_eq!(code.kept, kept, "each value once");
    }

    #[test]
    fn other_code_is_refused() {
        let at = |point, stmts| joined(&[metric_code(&[(point, stmts)])]);
        assert_eq!(at(PointKind::Block, vec![add(Expr::Arg(0))]), None);
        assert_eq!(at(PointKind::Entry, vec![add(Expr::Variable(VariableId(2)))]), None);
        assert_eq!(at(PointKind::Entry, vec![Stmt::Add(VariableId(2), Expr::Arg(0))]), None);
        let many = (0..=CallRecord::KEPT_MAX as u8).map(KeptValue::Argument).collect();
        assert_eq!(at(PointKind::Entry, vec![Stmt::Open(record(many), Vec::new())]), None);
    }
}
