//! Definitions of metrics from expressions on the command line: `--if`, `--by`, `--sum`, `--hist`. The command line is a short way to write
//! MDL, and nothing more: `--show-mdl` prints the definition.

use super::mdl;
use crate::args::expressions::with_names;
use crate::args::{CallSelection, Format};
use crate::exit::{Failure, Stop};
use crate::output::Output;

/// Name of the definition in findings.
const SOURCE: &str = "command line";

/// Names of values that exist only at the end of a call.
const AT_END: [&str; 5] = ["$return", "$elapsed", "$cpu", "$self", "$own"];

/// Quantity that is measured of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Computed<'a> {
    /// Their number.
    Calls,
    /// Their number, at their ends: calls in progress do not count.
    Returns,
    /// The sum of an expression.
    Sum(&'a str),
    /// The distribution of an expression.
    Values(&'a str),
    /// The distribution of their times by the wall clock or, if the first is true, by processor time.
    Times { cpu: bool },
    /// The sum of their times, by the same clocks.
    Time { cpu: bool },
}

/// A metric that an expression defines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpressionMetric {
    /// Name of the metric.
    pub(super) metric: String,
    /// The definition.
    pub(super) text: String,
}

impl ExpressionMetric {
    /// Defines what is measured of the calls that `calls` selects.
    pub(super) fn new(computed: Computed<'_>, calls: &CallSelection) -> Self {
        let (condition, by) = (calls.condition.as_deref().map(with_names), calls.by.as_deref().map(with_names));
        let (what, units, kind) = match computed {
            Computed::Calls => ("calls".to_owned(), "calls", "counter"),
            Computed::Returns => ("returns".to_owned(), "returns", "counter"),
            Computed::Sum(value) => (format!("sum of {value}"), "units", "counter"),
            Computed::Values(value) => (format!("values of {value}"), "units", "histogram"),
            Computed::Times { cpu: false } => ("latency".to_owned(), "nanoseconds", "histogram"),
            Computed::Times { cpu: true } => ("cpu_latency".to_owned(), "nanoseconds", "histogram"),
            Computed::Time { cpu: false } => ("time".to_owned(), "nanoseconds", "counter"),
            Computed::Time { cpu: true } => ("cpu time".to_owned(), "nanoseconds", "counter"),
        };
        let clause =
            |word: &str, text: &Option<String>| text.as_ref().map_or(String::new(), |t| format!(" {word} {t}"));
        let metric = format!("{what}{}{}", clause("if", &calls.condition), clause("by", &calls.by));
        // Two definitions of one request have different variables.
        let variable = if computed == Computed::Returns { "returns_here" } else { "value" };
        let clock = |cpu| if cpu { "$cpu" } else { "$elapsed" };
        let value = by.as_ref().map_or_else(|| variable.to_owned(), |key| format!("{variable}[{key}]"));
        let act = match computed {
            Computed::Calls | Computed::Returns => format!("{value}++;"),
            Computed::Sum(added) => format!("{value} += {};", with_names(added)),
            Computed::Values(observed) => format!("observe({variable}, {});", with_names(observed)),
            Computed::Times { cpu } => format!("observe({variable}, {}, $own);", clock(cpu)),
            Computed::Time { cpu } => format!("{value} += {};", clock(cpu)),
        };
        let code = condition.as_ref().map_or_else(|| act.clone(), |condition| format!("if ({condition}) {act}"));
        let at_end = computed == Computed::Returns || AT_END.iter().any(|name| mentions(&code, name));
        let point =
            if at_end { "prepend preInsn $constraint[0].return" } else { "append preInsn $constraint[0].entry" };
        let keys = if by.is_some() { "    vector over keys;\n" } else { "" };
        let name = metric.replace('\\', "\\\\").replace('"', "\\\"");
        let text = format!(
            "metric {variable} {{\n    name \"{name}\";\n    units {units};\n    aggregateOperator sum;\n    style \
             EventCounter;\n{keys}    constraint ofFunction /Code/* is replace {kind} {{\n        {point} (* {code} \
             *)\n    }}\n    base is {kind} {{\n    }}\n}}\n"
        );
        ExpressionMetric { metric, text }
    }

    /// The sources of a request with some definitions.
    pub(super) fn sources(definitions: &[ExpressionMetric]) -> Vec<(String, String)> {
        definitions.iter().map(|definition| (SOURCE.to_owned(), definition.text.clone())).collect()
    }

    /// Refuses definitions with errors, which are those of the expressions. The caller has touched no target yet.
    pub(super) fn accept(definitions: &[ExpressionMetric], format: Format) -> Result<(), Stop> {
        mdl::accept_or(&ExpressionMetric::sources(definitions), format, |_| {
            let hint = "mend it: docs/mdl.md has the language, `--show-mdl` prints the definition";
            Failure::usage("the expression cannot be used", hint)
        })
    }

    /// Prints definitions.
    pub(super) fn show(definitions: &[ExpressionMetric], out: &mut Output) -> Result<(), Stop> {
        definitions.iter().try_for_each(|definition| out.verbatim(definition.text.as_bytes()))
    }
}

/// Whether a text has a name of MDL that begins with `$`, and not only as a part of a longer one.
fn mentions(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let next = code[at + name.len()..].chars().next();
        next.is_none_or(|c| !c.is_ascii_alphanumeric() && c != '_')
    })
}

#[cfg(test)]
mod tests {
    use ingraft_mdl::{ParseOptions, shipped};

    use super::*;

    fn calls(condition: Option<&str>, by: Option<&str>) -> CallSelection {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        CallSelection { condition: owned(condition), by: owned(by), ..CallSelection::default() }
    }

    #[test]
    fn every_definition_has_no_errors() {
        let all = [
            (Computed::Calls, calls(None, Some("$caller"))),
            (Computed::Calls, calls(Some("$arg[1] > 3 && $return < 0"), Some("$arg[0]"))),
            (Computed::Calls, calls(Some("$return == \"a\\\\b\""), None)),
            (Computed::Sum("$return"), calls(None, None)),
            (Computed::Sum("request->body->length"), calls(Some("flags == 1"), Some("request->method"))),
            (Computed::Sum("$arg[2]"), calls(Some("$arg[2] < 4096"), Some("$arg[0] & 0xff"))),
            (Computed::Values("$arg[2] / 2"), calls(None, None)),
            (Computed::Times { cpu: false }, calls(Some("$arg[0] == 1"), None)),
            (Computed::Time { cpu: true }, calls(None, Some("$arg[0]"))),
        ];
        for (computed, calls) in all {
            let ExpressionMetric { metric, text } = ExpressionMetric::new(computed, &calls);
            let mut library = shipped::library(ParseOptions::default());
            let found: Vec<_> = library.load("x", &text).into_iter().filter(|d| d.is_error()).collect();
            assert!(found.is_empty(), "{found:?}\n{text}");
            assert!(library.metrics().iter().any(|known| known.name == metric), "{metric}\n{text}");
        }
    }

    #[test]
    fn code_runs_at_the_end_of_a_call_only_if_it_needs_that() {
        let at_end = |computed, calls: &CallSelection| ExpressionMetric::new(computed, calls).text.contains(".return");
        assert!(!at_end(Computed::Calls, &calls(Some("$arg[0]"), Some("$caller"))));
        assert!(at_end(Computed::Calls, &calls(Some("$elapsed > 1000"), None)));
        assert!(at_end(Computed::Sum("$return"), &calls(None, None)));
        assert!(!mentions("$returned", "$return") && mentions("($return)", "$return"));
    }
}
