//! A saved profile of calling contexts as a tree, as records, and in formats of other tools.

mod changes;

use std::rc::Rc;

use clap::ValueEnum as _;
use ingraft_report::{ContextProfile, ContextValue, SavedProfile};

use super::modules;
use crate::args::{Export, Format, MetricName, ReportArgs};
use crate::command::contexts::{ContextLayout, ShownContexts, text};
use crate::exit::{Failure, Stop};
use crate::output::Output;

pub(super) use changes::changes;

/// Prints the contexts of a profile.
pub(super) fn report(
    profile: &SavedProfile,
    contexts: &ContextProfile,
    args: &ReportArgs,
    format: Format,
    out: &mut Output,
) -> Result<(), Stop> {
    let value = args.metric.as_ref().map(|_| value(contexts, args)).transpose()?;
    let layout = ContextLayout { value, ..ContextLayout::of_tree(&args.tree, args.top) };
    if let Some(Export::Tool(exporter)) = args.export {
        return super::write(profile, exporter, value, args, format, out);
    }
    let Some(shown) = ShownContexts::of(profile, layout) else { return Ok(()) };
    if args.export.is_some() || format == Format::Json {
        return shown.export(out);
    }
    let code = modules::code(profile, &args.binary, format)?;
    let code: Vec<_> = code.into_iter().map(Rc::new).collect();
    out.text(&(text::heading(profile) + &text::text(&shown, &code, out.width())))
}

/// The value of `--metric`, or the main value of the contexts; fails if they do not have it.
pub(super) fn value(contexts: &ContextProfile, args: &ReportArgs) -> Result<ContextValue, Failure> {
    let Some(word) = &args.metric else { return Ok(contexts.main_value()) };
    // Events have the names of `perf list`.
    let name = MetricName::from_str(word, false).map_or(word.as_str(), |name| name.in_profile());
    contexts.value_named(name).ok_or_else(|| {
        let known = std::iter::once("calls").chain(contexts.metrics.iter().map(String::as_str));
        let known: Vec<String> = known.map(MetricName::word_of).collect();
        let what = format!("the profile does not have the metric {}", MetricName::word_of(name));
        Failure::usage(what, format!("it has {}", known.join(", ")))
    })
}

/// Refuses flags that belong to contexts only, or that contexts do not have.
pub(super) fn check(profile: &SavedProfile, args: &ReportArgs) -> Result<(), Failure> {
    if profile.contexts.is_none() {
        let given = args.metric.as_ref().map(|_| "--metric").or_else(|| args.tree.given());
        let refused = |flag| Failure::usage(format!("{flag} belongs to contexts"), format!("leave out {flag}"));
        return given.map_or(Ok(()), |flag| Err(refused(flag)));
    }
    if args.module.is_some() {
        return Err(Failure::usage("contexts are chains of functions of all modules", "leave out --module"));
    }
    match args.tree.of_trees_alone().filter(|_| args.diff.is_some()) {
        Some(flag) => {
            Err(Failure::usage("differences of contexts are a list, not a tree", format!("leave out {flag}")))
        }
        None => Ok(()),
    }
}
