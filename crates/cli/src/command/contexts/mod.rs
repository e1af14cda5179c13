//! Calling contexts: `ingraft profile contexts`, and its views `ingraft heap`, `locks` and `offcpu`.

pub(crate) mod amounts;
mod callers;
mod files;
mod holders;
mod leaves;
mod names;
mod notes;
pub(crate) mod records;
mod shown;
#[cfg(test)]
mod tests;
pub(crate) mod text;
mod tree;
mod waiters;

use std::time::Duration;

use ingraft_api::{ContextMetric, ContextsOptions, EnableRequest, Kind};
use ingraft_report::{ContextProfile, SavedProfile};

use super::{own_module, profile};
use crate::args::{ContextArgs, ContextViewArgs, Format, Measure, ProfileArgs, TargetArgs};
use crate::conn::RequestTarget;
use crate::exit::Stop;
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, Query, TargetMeasurement};
use crate::objects::totals::ProfileObject;
use crate::objects::{Object, millis};
use crate::output::{Destination, Output};

use files::ModuleFiles;
pub(crate) use files::uses;
pub(crate) use shown::{ContextLayout, ShownContexts, by_function, leave_addresses};
use waiters::Waiters;

/// Runs `ingraft profile contexts`.
pub(crate) async fn run(args: ProfileArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let options = args.context_options()?;
    let layout = ContextLayout::of(&args.contexts);
    measured(args.functions, options, (layout, false, &args.measure, &args.target), context, out).await
}

/// Runs a command that shows where the first one of some metrics comes from.
pub(crate) async fn view(
    args: ContextViewArgs,
    metrics: &[ContextMetric],
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let tells_waits = matches!(metrics, [ContextMetric::LockTime | ContextMetric::WaitTime]);
    let (metrics, full) = (metrics.to_vec(), args.contexts.full());
    let options = ContextsOptions { metrics, full, ..ContextsOptions::default() };
    let layout = ContextLayout { is_view: true, ..ContextLayout::of(&args.contexts) };
    measured(args.functions, options, (layout, tells_waits, &args.measure, &args.target), context, out).await
}

/// Measures contexts and shows them.
async fn measured(
    functions: Vec<String>,
    options: ContextsOptions,
    (layout, tells_waits, measure, target): (ContextLayout, bool, &Measure, &TargetArgs),
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let functions = own_module::unless_named(functions);
    let own = EnableRequest { functions, kind: Kind::Contexts(options), ..EnableRequest::default() };
    let request = |target: RequestTarget| measure::request(target, measure, own.clone());
    let query = measure.interval.map(|_| Query::Counts);
    let plan = MeasurementPlan::new(measure, target, request, out).queried(query);
    // A file that cannot be written is refused before the target is touched.
    let save = context.common.output.as_deref().map(Destination::prepare).transpose()?;
    let (files, waiters, format) = (ModuleFiles::default(), Waiters::default(), context.common.format);
    let mut view = ContextsView { layout, save, files, tells_waits, waiters, format };
    measure::run(plan, context, &mut view, out).await
}

struct ContextsView {
    layout: ContextLayout,
    /// File to save the contexts in.
    save: Option<Destination>,
    /// The code of the modules that the contexts are in.
    files: ModuleFiles,
    /// Whether waits are told that take longer than the measurement.
    tells_waits: bool,
    waiters: Waiters,
    format: Format,
}

impl MeasurementView for ContextsView {
    fn begun(&mut self, sites: &[TargetMeasurement]) {
        if self.tells_waits {
            self.waiters.follow(sites);
        }
    }

    fn reading(&mut self, _: &[TargetMeasurement], _: usize, _: &mut Output) -> Result<(), Stop> {
        Ok(())
    }

    fn queried(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        let Some((profile, contexts)) = contexts(site) else { return Ok(()) };
        let (functions, held) = (contexts.functions.len() as u64, Duration::from_nanos(profile.held_ns));
        out.text(&profile::heading(site, (profile.ended_ns, held), functions))?;
        out.object(&Object::Profile(ProfileObject {
            host: site.host(),
            pid: site.pid(),
            time_ns: profile.ended_ns,
            functions,
            stopped_ms: millis(held),
        }))?;
        self.show(site, profile, out)
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        if self.tells_waits {
            self.waiters.warn(self.format);
        }
        for site in sites {
            let Some((profile, _)) = contexts(site) else { continue };
            if sites.len() > 1 && !out.json() {
                out.text(&format!("\n{}", text::heading(profile)))?;
            }
            self.show(site, profile, out)?;
        }
        match &self.save {
            Some(to) => profile::save(to, sites),
            None => Ok(()),
        }
    }
}

impl ContextsView {
    fn show(&mut self, site: &TargetMeasurement, profile: &SavedProfile, out: &mut Output) -> Result<(), Stop> {
        let Some(shown) = ShownContexts::of(profile, self.layout) else { return Ok(()) };
        if out.json() {
            return shown.objects((site.host(), site.pid()), out);
        }
        out.text(&text::text(&shown, &self.files.code(profile), out.width()))
    }
}

/// The profile of a process with its contexts; `None` if it has none.
fn contexts(site: &TargetMeasurement) -> Option<(&SavedProfile, &ContextProfile)> {
    let profile = site.profile.as_ref()?;
    Some((profile, profile.contexts.as_ref()?))
}

impl ContextLayout {
    /// The layout of flags.
    pub(crate) fn of(args: &ContextArgs) -> Self {
        ContextLayout { full: args.full(), ..ContextLayout::of_tree(&args.tree, args.top.map(Into::into)) }
    }
}
