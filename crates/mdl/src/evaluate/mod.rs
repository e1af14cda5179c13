//! The request stage turns a metric, a focus and a program into points and snippets.

mod alike;
mod code;
mod data;
mod events;
mod flavor;
mod frame;
mod insert;
mod meta;
mod printed;
mod select;
mod text;
mod vector;
mod walk;

use std::sync::Arc;

use ingraft_model::{Flavor, Focus, Instrumentation, Placing};

pub use self::alike::Evaluator;
pub use self::events::EventReadMethod;
use crate::diagnostic::{Diagnostic, codes};
use crate::library::Library;
use crate::parse::closest;
use crate::program::ProgramFacts;

/// Instrumentation of a request, with findings that do not prevent it.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// Variables and code.
    pub instrumentation: Instrumentation,
    /// Warnings, in the order of the text.
    pub warnings: Vec<Diagnostic>,
}

/// Evaluates a request. Errors are complete: every reason why the request fails is among them.
pub fn evaluate(
    library: &Library,
    metric: &str,
    focus: &Focus,
    program: &dyn ProgramFacts,
) -> Result<Evaluated, Vec<Diagnostic>> {
    evaluate_and_tell(library, metric, focus, (program, &[])).map(|(evaluated, _)| evaluated)
}

/// Evaluates a request to a program that has the stated `flavors` besides its own. The second value tells whether the evaluation asked the
/// program about more than what the focus names.
fn evaluate_and_tell(
    library: &Library,
    metric: &str,
    focus: &Focus,
    (program, flavors): (&dyn ProgramFacts, &[Flavor]),
) -> Result<(Evaluated, bool), Vec<Diagnostic>> {
    let Some(entry) = library.metrics.get(metric) else {
        return Err(vec![unknown_metric(library, metric)]);
    };
    let mut evaluation = meta::Evaluation::new(library, entry, (program, flavors));
    let thread = evaluation.thread(focus);
    evaluation.run(focus);
    let beyond = evaluation.looked_beyond.get();
    let (errors, warnings): (Vec<_>, Vec<_>) = evaluation.diagnostics.into_iter().partition(Diagnostic::is_error);
    if !errors.is_empty() {
        return Err(errors);
    }
    let base = evaluation.event.and(entry.node.base()).and_then(|base| base.event.as_ref());
    let event = base.map(|event| Arc::from(event.value.as_str()));
    let instrumentation = Instrumentation {
        metric: Arc::clone(&entry.info),
        variables: evaluation.variables.into(),
        insertions: evaluation.insertions,
        event,
        thread,
        object: evaluation.object,
        index_names: evaluation.index_names,
        key_names: evaluation.key_names.unwrap_or_default(),
        apart: false,
        placing: Placing::Anywhere,
        records: evaluation.recorded.into_iter().map(|(_, columns)| columns).collect(),
    };
    Ok((Evaluated { instrumentation, warnings }, beyond))
}

fn unknown_metric(library: &Library, name: &str) -> Diagnostic {
    let names: Vec<&str> = library.metrics.keys().map(String::as_str).collect();
    let help = closest(name, &names)
        .map_or_else(|| "`ingraft metrics` lists all".to_owned(), |near| format!("did you mean `{near}`?"));
    Diagnostic::request(codes::NO_METRIC, format!("no metric has the name `{name}`")).help(help)
}
