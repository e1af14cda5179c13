//! Values of calls inside of slow calls. Each is the `print` statement of a metric that the engine defines for the request.

use ingraft_model::{
    CallRecord, Expr, FunctionId, Instrumentation, KeptValue, PointKind, RecordColumn, RecordField, Snippet, Stmt,
};
use rustc_hash::FxHashMap;

use crate::api::ToldValue;
use crate::error::{Error, Reason};
use crate::kinds::expressions::{self, DefinedMetric, ExpressionMetrics};
use crate::session::KindRequest;

/// The metrics of values.
const METRICS: ExpressionMetrics = ExpressionMetrics { flag: "--tell", prefix: "told_value" };

/// The definition of the metric of a value.
pub fn definition(index: usize, told: &ToldValue) -> DefinedMetric {
    let metric = METRICS.name(index);
    DefinedMetric::at_return(METRICS.flag, &metric, &format!("{metric}++; print({});", told.expression))
}

/// The values of the calls of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToldValues {
    /// Meanings of the values.
    pub columns: Vec<RecordColumn>,
    /// Words that the record of a call keeps for them.
    pub kept: Vec<KeptValue>,
    /// The fields that hold them, at the end of a call.
    pub fields: Vec<RecordField>,
}

impl ToldValues {
    /// The values of all functions.
    pub fn of_functions(
        asked: &KindRequest<'_>,
        told: &[ToldValue],
    ) -> Result<FxHashMap<FunctionId, ToldValues>, Error> {
        let mut all: FxHashMap<FunctionId, ToldValues> = FxHashMap::default();
        METRICS.evaluate(asked, told.iter().map(|value| &value.function), |index, function, code| {
            all.entry(function).or_default().join(code).ok_or_else(|| {
                let expression = told.get(index).map_or("", |value| value.expression.as_str());
                let what = format!("`{expression}` cannot be told of calls inside of slow calls");
                Error::new(Reason::NoPrint, what, "use arguments, results, times and members of them")
            })
        })?;
        Ok(all)
    }

    /// Adds the values that the code of a metric prints. `None` if it does something else besides.
    fn join(&mut self, code: &Instrumentation) -> Option<()> {
        let [columns] = &*code.records else { return None };
        let mut printed = Vec::new();
        for insertion in &code.insertions {
            for stmt in &insertion.snippet.stmts {
                match (insertion.point, stmt) {
                    (PointKind::Entry, Stmt::Open(record, body)) if body.is_empty() => self.keep(record),
                    (PointKind::Exit, Stmt::Close(_, body)) => read(body, &mut printed)?,
                    (PointKind::Exit, other) => read(std::slice::from_ref(other), &mut printed)?,
                    _ => return None,
                }
            }
        }
        let [fields] = printed.as_slice() else { return None };
        self.columns.extend(columns.iter().cloned());
        self.fields.extend(fields.iter().cloned());
        Some(())
    }

    fn keep(&mut self, record: &CallRecord) {
        for value in &record.kept {
            if !self.kept.contains(value) {
                self.kept.push(*value);
            }
        }
    }
}

/// Adds the fields of all records that statements make. `None` if they do something else than to count and to make records.
fn read(stmts: &[Stmt], printed: &mut Vec<Vec<RecordField>>) -> Option<()> {
    for stmt in stmts {
        if !matches!(stmt, Stmt::Add(_, Expr::Const(_))) {
            printed.push(fields(stmt)?);
        }
    }
    Some(())
}

/// The fields of a statement that makes a record. They use no variable of their metric.
fn fields(stmt: &Stmt) -> Option<Vec<RecordField>> {
    let Stmt::Record(_, _, recorded) = stmt else { return None };
    let mut own = true;
    Snippet { stmts: vec![stmt.clone()] }.each_expr(&mut |e| own &= expressions::has_no_variable(e));
    own.then(|| recorded.fields.clone())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ingraft_mdl::{Library, ParseOptions};
    use ingraft_model::{Capacity, Clock, Insertion, ModuleId, RecordContent, Recorded, ValueNames, VariableId};

    use super::*;
    use crate::kinds::code;

    const F: FunctionId = FunctionId { module: ModuleId(0), function: 3 };

    #[test]
    fn the_definition_is_right() {
        for expression in ["$arg[0]", "str($arg[1])", "$return, $arg[2] & 7"] {
            let told = ToldValue { function: "f".to_owned(), expression: expression.to_owned() };
            let DefinedMetric { metric, source } = definition(2, &told);
            let mut library = Library::new(ParseOptions::default());
            assert_eq!(library.load(METRICS.flag, &source.1), []);
            assert!(library.metric(&metric).is_some() && source.1.contains(".return"));
        }
    }

    fn printing(kept: Vec<KeptValue>, fields: Vec<RecordField>, others: Vec<Stmt>) -> Instrumentation {
        let record = CallRecord { activations: VariableId(2), kept, restore: None };
        let recorded = Recorded { number: 0, time: true, fields, limit: None, leaves_room: false };
        let capacity = Capacity::of_bytes(1 << 12).expect("small");
        let body = [Stmt::Add(VariableId(0), Expr::Const(1)), Stmt::Record(VariableId(1), capacity, recorded)];
        let at = |point, stmts| code::insertion_of(F, point, Arc::new(Snippet { stmts }));
        let insertions: Vec<Insertion> = vec![
            at(PointKind::Entry, vec![Stmt::Open(record.clone(), Vec::new())]),
            at(PointKind::Exit, vec![Stmt::Close(record, others.into_iter().chain(body).collect())]),
        ];
        let column = RecordColumn { name: "x".to_owned(), content: RecordContent::Number(ValueNames::default()) };
        Instrumentation { records: vec![vec![column]].into(), ..code::empty(insertions, code::metric_named("m")) }
    }

    #[test]
    fn values_of_several_metrics_are_told_together() {
        let argument = |n| RecordField::Number(Expr::Saved(KeptValue::Argument(n)));
        let mut told = ToldValues::default();
        for n in [0, 1, 0] {
            let kept = vec![KeptValue::Time(Clock::Wall), KeptValue::Argument(n)];
            assert_eq!(told.join(&printing(kept, vec![argument(n)], Vec::new())), Some(()));
        }
        assert_eq!(told.columns.len(), 3);
        assert_eq!(told.fields, [argument(0), argument(1), argument(0)]);
        let all = [KeptValue::Time(Clock::Wall), KeptValue::Argument(0), KeptValue::Argument(1)];
        assert_eq!(told.kept, all, "each once");
        let variable = vec![RecordField::Number(Expr::Variable(VariableId(1)))];
        assert_eq!(told.join(&printing(Vec::new(), variable, Vec::new())), None, "a variable of the metric");
        let set = vec![Stmt::Set(VariableId(0), Expr::Const(1))];
        assert_eq!(told.join(&printing(Vec::new(), vec![argument(0)], set)), None, "another statement");
    }
}
