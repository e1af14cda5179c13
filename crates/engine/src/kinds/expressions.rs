//! Expressions of a request: each is the code of a metric that the engine defines for the request.

use ingraft_mdl::{Evaluated, Evaluator};
use ingraft_model::{Expr, Focus, FunctionId, Instrumentation, ResourcePath};

use crate::api::Kind;
use crate::error::Error;
use crate::measure::request::resolve_patterns;
use crate::session::KindRequest;

use super::contexts::sums;
use super::slow::told;
use super::trace::condition;

/// Words of the code language that are known at the end of a call only.
const AT_END: [&str; 5] = ["$return", "$elapsed", "$self", "$own", "$cpu"];

/// A metric that the engine defines for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DefinedMetric {
    /// Name of the metric.
    pub metric: String,
    /// Name of the source for messages, and its text.
    pub source: (String, String),
}

impl DefinedMetric {
    /// A metric of functions with code that stands where the values of an expression are known. `flag` is the one that has the expression.
    pub fn new(flag: &str, metric: &str, expression: &str, code: &str) -> DefinedMetric {
        if AT_END.iter().any(|word| expression.contains(word)) {
            return DefinedMetric::at_return(flag, metric, code);
        }
        DefinedMetric::at(flag, metric, "append preInsn $constraint[0].entry", code)
    }

    /// A metric of functions with code that stands at their returns.
    pub fn at_return(flag: &str, metric: &str, code: &str) -> DefinedMetric {
        DefinedMetric::at(flag, metric, "prepend preInsn $constraint[0].return", code)
    }

    fn at(flag: &str, metric: &str, point: &str, code: &str) -> DefinedMetric {
        let text = format!(
            "metric {metric} {{ name \"{metric}\"; units times; aggregateOperator sum; style EventCounter;\n\
             constraint function /Code/* is replace counter {{\n\
             {point} (* {code} *)\n\
             }}\n\
             base is counter {{ }}\n\
             }}\n"
        );
        DefinedMetric { metric: metric.to_owned(), source: (flag.to_owned(), text) }
    }
}

/// The metrics that the engine defines for a measurement of this kind.
pub fn defined(kind: &Kind) -> Vec<DefinedMetric> {
    match kind {
        Kind::Trace(options) => options.when.iter().map(condition::definition).collect(),
        Kind::Contexts(options) => options.sums.iter().enumerate().map(|(n, sum)| sums::definition(n, sum)).collect(),
        Kind::Slow(options) => options.told.iter().enumerate().map(|(n, told)| told::definition(n, told)).collect(),
        Kind::Metrics | Kind::Counts(_) | Kind::Coverage(_) | Kind::Print(_) => Vec::new(),
        Kind::Paths(_) | Kind::Shares(_) => Vec::new(),
    }
}

/// The code of such a metric in a function; `None` if no name means this function alone. Fails if the expression is wrong.
pub fn evaluate(asked: &KindRequest<'_>, metric: &str, function: FunctionId) -> Result<Option<Instrumentation>, Error> {
    let named = asked.modules.focus_name(function);
    let focus = named.and_then(|(module, name)| Focus::new([ResourcePath::new("Code", [module, name])]).ok());
    let Some(focus) = focus else { return Ok(None) };
    let evaluator = Evaluator::new(asked.library, asked.modules, &asked.request.flavors);
    let Evaluated { instrumentation, .. } = evaluator.evaluate(metric, &focus).map_err(Error::mdl)?;
    Ok(Some(instrumentation))
}

/// The metrics of several expressions of a request, which are told apart by a number.
pub struct ExpressionMetrics {
    /// The flag that has the expressions.
    pub flag: &'static str,
    /// Name of the metrics without the number.
    pub prefix: &'static str,
}

impl ExpressionMetrics {
    /// Name of the metric of an expression.
    pub fn name(&self, index: usize) -> String {
        format!("{}_{index}", self.prefix)
    }

    /// Calls `each` with the code of each expression in each function that its pattern matches, and with the index of the expression.
    pub fn evaluate<'p>(
        &self,
        asked: &KindRequest<'_>,
        patterns: impl Iterator<Item = &'p String>,
        mut each: impl FnMut(usize, FunctionId, &Instrumentation) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for (index, pattern) in patterns.enumerate() {
            let functions = resolve_patterns(asked.modules, std::slice::from_ref(pattern), asked.missing)?;
            for function in functions {
                if let Some(code) = evaluate(asked, &self.name(index), function)? {
                    each(index, function, &code)?;
                }
            }
        }
        Ok(())
    }
}

/// Whether an expression uses no variable of its metric: other code has other variables.
pub fn has_no_variable(e: &Expr) -> bool {
    let mut none = true;
    e.each(&mut |part| {
        none &= !matches!(
            part,
            Expr::Variable(_)
                | Expr::ValueAt(..)
                | Expr::ValueIn(..)
                | Expr::Since(..)
                | Expr::Event(_)
                | Expr::Address(_)
                | Expr::Lost(_)
                | Expr::Number(_)
                | Expr::Restored
        );
    });
    none
}
