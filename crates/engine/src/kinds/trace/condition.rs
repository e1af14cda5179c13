//! The condition of a trace. It is a metric that the engine defines for the request: its value is the number of times at which the condition
//! held.

use ingraft_model::Instrumentation;

use crate::api::TraceCondition;
use crate::error::{Error, Reason};
use crate::kinds::expressions::{self, DefinedMetric};
use crate::measure::request::{Missing, resolve_patterns};
use crate::session::KindRequest;

/// Name of the metric.
const METRIC: &str = "trace_condition";

/// The definition of the metric.
pub fn definition(condition: &TraceCondition) -> DefinedMetric {
    let expression = condition.expression.as_str();
    let test = if expression.is_empty() { String::new() } else { format!("if ({expression}) ") };
    DefinedMetric::new("--when", METRIC, expression, &format!("{test}{METRIC}++;"))
}

/// The code of a condition. Fails if the expression is wrong, and unless the pattern matches one function.
pub fn evaluate(asked: &KindRequest<'_>, condition: &TraceCondition) -> Result<Instrumentation, Error> {
    let functions = resolve_patterns(asked.modules, std::slice::from_ref(&condition.function), Missing::Fails)?;
    let code = match functions.as_slice() {
        [function] => expressions::evaluate(asked, METRIC, *function)?,
        _ => None,
    };
    code.ok_or_else(|| {
        let what =
            format!("a condition is tested at one function, and `{}` matches {}", condition.function, functions.len());
        Error::new(Reason::OneFunction, what, "name one as MODULE:FUNCTION")
    })
}

#[cfg(test)]
mod tests {
    use ingraft_mdl::Library;

    use super::*;

    fn text(expression: &str) -> String {
        definition(&TraceCondition { function: "f".to_owned(), expression: expression.to_owned() }).source.1
    }

    #[test]
    fn a_condition_is_tested_where_its_values_are_known() {
        assert!(
            text("$arg[0] > 3")
                .contains("append preInsn $constraint[0].entry (* if ($arg[0] > 3) trace_condition++; *)")
        );
        assert!(text("").contains("append preInsn $constraint[0].entry (* trace_condition++; *)"));
        assert!(text("$return == 0").contains("prepend preInsn $constraint[0].return (* if ($return == 0)"));
        assert!(text("$elapsed > 1000000").contains("$constraint[0].return"));
    }

    #[test]
    fn the_definition_is_right() {
        for expression in ["", "$arg[0] > 3", "($return == 0) && ($arg[1] != 5)"] {
            let mut library = Library::new(ingraft_mdl::ParseOptions::default());
            assert_eq!(library.load("--when", &text(expression)), []);
            assert!(library.metric(METRIC).is_some());
        }
    }
}
