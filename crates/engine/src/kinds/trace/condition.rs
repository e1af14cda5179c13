//! The condition of a trace. It is a metric that the engine defines for the request: its value is the number of times at which the condition
//! held.

use ingraft_mdl::{Evaluated, Evaluator, Library};
use ingraft_model::{Focus, Instrumentation, ResourcePath};

use crate::api::{EnableRequest, TraceCondition};
use crate::error::{Error, Reason};
use crate::measure::request::{Missing, resolve_patterns};
use crate::program::modules::Modules;

/// Name of the metric.
pub const METRIC: &str = "trace_condition";
/// Words of the code language that are known at the end of a call only.
const AT_END: [&str; 5] = ["$return", "$elapsed", "$self", "$own", "$cpu"];

/// The source that defines the metric: its name and its text.
pub fn definition(condition: &TraceCondition) -> (String, String) {
    let expression = condition.expression.as_str();
    let point = match AT_END.iter().any(|word| expression.contains(word)) {
        true => "prepend preInsn $constraint[0].return",
        false => "append preInsn $constraint[0].entry",
    };
    let test = if expression.is_empty() { String::new() } else { format!("if ({expression}) ") };
    let text = format!(
        "metric {METRIC} {{ name \"{METRIC}\"; units times; aggregateOperator sum; style EventCounter;\n\
         constraint function /Code/* is replace counter {{\n\
         {point} (* {test}{METRIC}++; *)\n\
         }}\n\
         base is counter {{ }}\n\
         }}\n"
    );
    ("--when".to_owned(), text)
}

/// The code of a condition. Fails if the expression is wrong, and unless the pattern matches one function.
pub fn evaluate(
    library: &Library,
    modules: &Modules,
    request: &EnableRequest,
    condition: &TraceCondition,
) -> Result<Instrumentation, Error> {
    let functions = resolve_patterns(modules, std::slice::from_ref(&condition.function), Missing::Fails)?;
    let named = match functions.as_slice() {
        [function] => modules.focus_name(*function),
        _ => None,
    };
    let focus = named.and_then(|(module, name)| Focus::new([ResourcePath::new("Code", [module, name])]).ok());
    let Some(focus) = focus else {
        let what =
            format!("a condition is tested at one function, and `{}` matches {}", condition.function, functions.len());
        return Err(Error::new(Reason::OneFunction, what, "name one as MODULE:FUNCTION"));
    };
    match Evaluator::new(library, modules, &request.flavors).evaluate(METRIC, &focus) {
        Ok(Evaluated { instrumentation, .. }) => Ok(instrumentation),
        Err(diagnostics) => Err(Error::mdl(diagnostics)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(expression: &str) -> String {
        definition(&TraceCondition { function: "f".to_owned(), expression: expression.to_owned() }).1
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
