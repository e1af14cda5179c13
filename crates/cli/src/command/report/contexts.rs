//! A saved profile of calling contexts as a tree, as records, and in formats of other tools.

use std::rc::Rc;

use ingraft_report::{ContextProfile, ContextValue, SavedProfile};

use super::modules;
use crate::args::{Export, Format, MetricName, ReportArgs};
use crate::command::contexts::{ContextLayout, ShownContexts};
use crate::exit::{Failure, Stop};
use crate::output::Output;

/// Prints the contexts of a profile.
pub(super) fn report(
    profile: &SavedProfile,
    contexts: &ContextProfile,
    args: &ReportArgs,
    format: Format,
    out: &mut Output,
) -> Result<(), Stop> {
    let value = args.metric.map(|metric| value(contexts, metric)).transpose()?;
    let layout = ContextLayout { value, ..ContextLayout::of_tree(&args.tree, args.top) };
    let Some(shown) = ShownContexts::of(profile, layout) else { return Ok(()) };
    match (args.export, format) {
        (Some(Export::Json), _) | (None, Format::Json) => shown.export(out),
        (None, Format::Table) => {
            let code = modules::code(profile, &args.binary, format)?;
            let code: Vec<_> = code.into_iter().map(Rc::new).collect();
            let heading = ShownContexts::heading(profile);
            out.text(&format!("{}{}", heading.trim_start(), shown.text(&code, out.width())))
        }
        (Some(Export::Tool(_)), _) => {
            let what = "the format needs counts of blocks and edges, and the profile has calling contexts";
            Err(Failure::usage(what, "leave --as out for a tree, or use --as json").into())
        }
    }
}

/// The value of a metric; fails if the profile does not have it.
fn value(contexts: &ContextProfile, metric: MetricName) -> Result<ContextValue, Failure> {
    let name = metric.in_profile();
    if metric == MetricName::Calls {
        return Ok(ContextValue::Calls);
    }
    contexts.metrics.iter().position(|known| known == name).map(ContextValue::Metric).ok_or_else(|| {
        let known = std::iter::once("calls").chain(contexts.metrics.iter().map(String::as_str));
        let known: Vec<String> = known.map(MetricName::word_of).collect();
        let what = format!("the profile does not have the metric {}", MetricName::word_of(name));
        Failure::usage(what, format!("it has {}", known.join(", ")))
    })
}

/// Refuses flags that belong to contexts only, or that contexts do not have.
pub(super) fn check(profile: &SavedProfile, args: &ReportArgs) -> Result<(), Failure> {
    let is_metric = args.metric.is_some();
    if profile.contexts.is_none() {
        let given = is_metric.then_some("--metric").or_else(|| args.tree.given());
        let refused = |flag| Failure::usage(format!("{flag} belongs to contexts"), format!("leave out {flag}"));
        return given.map_or(Ok(()), |flag| Err(refused(flag)));
    }
    match &args.module {
        Some(_) => Err(Failure::usage("contexts are chains of functions of all modules", "leave out --module")),
        None => Ok(()),
    }
}
