//! The request stage: a metric, a focus and a program to points and snippets.

mod alike;
mod code;
mod data;
mod events;
mod flavor;
mod frame;
mod insert;
mod meta;
mod select;
mod text;
mod vector;
mod walk;

use std::sync::Arc;

use ingraft_model::{Flavor, Focus, MetricInfo, PointKind, Shape, Snippet, Tid};

pub use self::alike::Evaluator;
pub use self::events::Metered;
pub(crate) use self::select::parse_number;
pub use self::vector::IndexNames;
use crate::diagnostic::{Diagnostic, codes};
use crate::library::Library;
use crate::parse::closest;
use crate::program::{FunctionRef, Program};

/// What must be done to measure a metric at a focus.
#[derive(Clone, Debug)]
pub struct Instrumentation {
    /// The metric.
    pub metric: Arc<MetricInfo>,
    /// Its variables; a [`ingraft_model::VariableId`] is an index into them. The first is the metric's own.
    pub variables: Arc<[Variable]>,
    /// What goes where, in the order of the text; code that shares an activation record comes together.
    pub insertions: Vec<Insertion>,
    /// The event of the processor that its code reads, as `perf list` has it: what the variable of [`Shape::Event`] stands for.
    pub event: Option<Arc<str>>,
    /// The only thread that counts, if the focus names one.
    pub thread: Option<Tid>,
    /// The address of the synchronisation object that the focus names.
    pub object: Option<u64>,
    /// What the values of a vector over indices are called.
    pub index_names: Option<IndexNames>,
    /// Findings that do not prevent it.
    pub warnings: Vec<Diagnostic>,
}

/// One value per thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name in the text.
    pub name: String,
    /// What it is for.
    pub kind: VariableKind,
    /// What it is made of.
    pub shape: Shape,
    /// In what its values are recorded.
    pub unit: ValueUnit,
    /// Whether it is shown: the metric's own value, and what became of the calls that it measures.
    pub sampled: bool,
}

/// In what values are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ValueUnit {
    /// In the unit of the metric.
    #[default]
    Plain,
    /// Ticks of the processor's time stamp counter, to be shown as nanoseconds.
    Ticks,
}

/// What a variable is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VariableKind {
    /// The metric's own value.
    Counter,
    /// A value that the metric's code remembers.
    Scratch,
    /// Whether this thread is inside what the focus selects.
    Flag,
    /// What became of the calls that the code follows from their entry to their exit.
    Activations,
    /// The same of a second record of these calls: each is in the innermost one's already.
    OuterActivations,
}

/// When code runs among the code of one point: flags go up, metrics look at them, flags go down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Raises a flag.
    FlagSet,
    /// Belongs to a metric.
    Metric,
    /// Lowers a flag.
    FlagClear,
}

impl Role {
    /// The role at the other end of a call: what began first ends last.
    fn mirrored(self) -> Role {
        match self {
            Role::FlagSet => Role::FlagClear,
            Role::Metric => Role::Metric,
            Role::FlagClear => Role::FlagSet,
        }
    }
}

/// Where code goes among the code of its role at one point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// Behind what is there.
    Append,
    /// Before what is there.
    Prepend,
}

impl Order {
    /// The order at the other end of a call: what began first ends last.
    fn mirrored(self) -> Order {
        match self {
            Order::Append => Order::Prepend,
            Order::Prepend => Order::Append,
        }
    }
}

/// Code for one point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Insertion {
    /// The function.
    pub function: FunctionRef,
    /// Which of its points.
    pub point: PointKind,
    /// Where among the code of its role.
    pub order: Order,
    /// When among the code of the point.
    pub role: Role,
    /// What runs there; shared by points that do the same.
    pub snippet: Arc<Snippet>,
    /// The code of one definition, the metric's (0) or a constraint's, has one number. What a group has in one function is woven all or not at
    /// all: an exit undoes what the entry did.
    pub group: u32,
    /// At calls: functions that the request measures through its lists. Call sites that name one of them as their target stay without this
    /// code, so that the callee's time is its caller's (paradyn.md A.9).
    pub except: Arc<[FunctionRef]>,
}

/// Evaluates a request. Errors are complete: every reason why the request fails is among them.
pub fn evaluate(
    library: &Library,
    metric: &str,
    focus: &Focus,
    program: &dyn Program,
) -> Result<Instrumentation, Vec<Diagnostic>> {
    evaluate_and_tell(library, metric, focus, (program, &[])).map(|(instrumentation, _)| instrumentation)
}

/// The same for a program that is said to have further flavors, and whether it has asked more of the program than what the focus names.
fn evaluate_and_tell(
    library: &Library,
    metric: &str,
    focus: &Focus,
    (program, flavors): (&dyn Program, &[Flavor]),
) -> Result<(Instrumentation, bool), Vec<Diagnostic>> {
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
        warnings,
    };
    Ok((instrumentation, beyond))
}

fn unknown_metric(library: &Library, name: &str) -> Diagnostic {
    let names: Vec<&str> = library.metrics.keys().map(String::as_str).collect();
    let help = closest(name, &names)
        .map_or_else(|| "`ingraft metrics` lists all".to_owned(), |near| format!("did you mean `{near}`?"));
    Diagnostic::request(codes::NO_METRIC, format!("no metric has the name `{name}`")).help(help)
}
