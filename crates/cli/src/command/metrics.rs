//! `ingraft metrics`: lists the metrics that are known.

use ingraft_model::Flavor;
use ingraft_model::glob::glob_match;

use crate::args::{Common, MetricsArgs};
use crate::conn::Engines;
use crate::exit::{Exit, Failure, Stop};
use crate::measure;
use crate::objects::{EventObject, MetricObject, Object};
use crate::output::number::plural;
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, Output};

/// Width of descriptions for which other columns are omitted on a narrow screen.
const DESCRIBED: usize = 32;

/// Runs the command.
pub(crate) async fn run(args: MetricsArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let definitions = measure::sources(&args.include.files)?;
    let flavors = args.include.flavors.names;
    super::mdl::accept(&definitions, common.format)?;
    let glob = args.glob.as_deref();
    if args.cost {
        return super::lower::costs((definitions, flavors, glob), &args.target, engines, common, out).await;
    }
    if args.events {
        return events(glob, engines, common, out).await;
    }
    let mut metrics = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("reading definitions", common.format);
        let found = client.metrics(&definitions, &mut progress).await?;
        metrics.extend(found.into_iter().map(|metric| MetricObject::new(metric, client.host())));
    }
    let listed = |flavor: &Flavor| metrics.iter().any(|m| m.flavors.iter().any(|known| known == flavor.as_str()));
    let strange: Vec<Flavor> = flavors.iter().filter(|flavor| !listed(flavor)).cloned().collect();
    super::mdl::warn_of_flavors(&strange, &definitions, common.format);
    keep_matching(&mut metrics, glob, "metric", |m| vec![m.name.as_str()])?;
    let mut left_out = 0;
    if !measure::running(&args.target).is_empty() {
        let without = super::lower::without_meaning(&definitions, &flavors, &args.target, engines, common).await?;
        for m in &mut metrics {
            m.applies = Some(!without.iter().any(|(host, name)| (host, name) == (&m.host, &m.name)));
        }
        left_out = metrics.iter().filter(|m| !m.developer && m.applies == Some(false)).count();
    }
    let mut text = render(&metrics, out.width());
    if left_out > 0 {
        let others = plural(left_out as u64, "other metric measures", "other metrics measure");
        text += &format!("{DIM}{others} nothing in this program{DIM:#}\n");
    }
    out.text(&text)?;
    metrics.into_iter().try_for_each(|m| out.object(&Object::Metric(m)))
}

/// Removes what has no name that matches. Fails if nothing is left, and names the kind then.
pub(super) fn keep_matching<T>(
    all: &mut Vec<T>,
    glob: Option<&str>,
    kind: &str,
    names: impl Fn(&T) -> Vec<&str>,
) -> Result<(), Stop> {
    let Some(glob) = glob else { return Ok(()) };
    all.retain(|one| names(one).iter().any(|name| glob_match(glob, name)));
    if all.is_empty() {
        let hint = "leave the pattern out to see all of them";
        return Err(Failure::new(Exit::NotFound, format!("no {kind} matches `{glob}`"), hint).into());
    }
    Ok(())
}

/// Prints the events that metrics can name.
async fn events(glob: Option<&str>, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut events = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("trying events", common.format);
        let found = client.events(&mut progress).await?;
        events.extend(found.into_iter().map(|event| EventObject::new(event, client.host())));
    }
    keep_matching(&mut events, glob, "event", |e| {
        std::iter::once(&e.name).chain(&e.aliases).map(String::as_str).collect()
    })?;
    let mut table = TextTable::new().shrinking("HOST").left("EVENT").left("COUNTED BY").left("AT POINTS").shrinking("");
    for e in &events {
        let names = std::iter::once(&e.name).chain(&e.aliases).map(String::as_str).collect::<Vec<_>>().join(", ");
        let problem = e.problem.as_deref().unwrap_or_default();
        let host = e.host.clone().unwrap_or_default();
        let at_points = e.at_points.as_deref().unwrap_or_default();
        table.row(vec![
            host.into(),
            names.into(),
            e.group.as_str().into(),
            at_points.into(),
            Cell::styled(problem, DIM),
        ]);
    }
    out.text(&table.render(out.width()))?;
    events.into_iter().try_for_each(|e| out.object(&Object::Event(e)))
}

fn render(metrics: &[MetricObject], width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("HOST")
        .left("METRIC")
        .left("UNIT")
        .left("COMBINES BY")
        .shrinking("CONSTRAINTS")
        .shrinking("FLAVORS")
        .shrinking("")
        .kept("", DESCRIBED)
        .optional(&["COMBINES BY", "CONSTRAINTS", "FLAVORS"]);
    for m in metrics.iter().filter(|m| !m.developer && m.applies != Some(false)) {
        table.row(vec![
            m.host.clone().unwrap_or_default().into(),
            m.name.as_str().into(),
            m.unit.as_str().into(),
            m.aggregate.into(),
            m.constraints.join(" ").into(),
            flavors_shown(m).into(),
            Cell::styled(m.doc.as_str(), DIM),
        ]);
    }
    table.render(width)
}

/// The flavors of a metric that a program has only if the user names them; empty for a metric of every program.
fn flavors_shown(metric: &MetricObject) -> String {
    let everywhere = metric.flavors.iter().any(|flavor| flavor == "linux" || flavor == "unix");
    if everywhere { String::new() } else { metric.flavors.join(" ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metric(name: &str) -> MetricObject {
        MetricObject {
            name: name.to_owned(),
            unit: "operations".to_owned(),
            aggregate: "sum",
            constraints: ["/Code", "/Process", "/Machine", "/SyncObject"].map(str::to_owned).to_vec(),
            doc: "operations on mutexes, with those that wait and those that do not".to_owned(),
            ..MetricObject::default()
        }
    }

    #[test]
    fn a_narrow_screen_shows_units_and_descriptions() {
        let text = anstream::adapter::strip_str(&render(&[metric("lock_operations")], Some(80))).to_string();
        assert!(text.contains("UNIT") && text.contains("operations on mu"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let wide = anstream::adapter::strip_str(&render(&[metric("lock_operations")], Some(200))).to_string();
        assert!(wide.contains("COMBINES BY") && wide.contains("/SyncObject"), "{wide}");
    }

    #[test]
    fn a_pattern_chooses_metrics() {
        let mut all = vec![metric("calls"), metric("calls_made"), metric("wall_time")];
        let names = |m: &MetricObject| vec![m.name.clone()];
        keep_matching(&mut all, Some("calls*"), "metric", |m| vec![m.name.as_str()]).expect("two match");
        assert_eq!(all.iter().flat_map(names).collect::<Vec<_>>(), ["calls", "calls_made"]);
        let none = keep_matching(&mut all, Some("time"), "metric", |m| vec![m.name.as_str()]);
        assert!(matches!(none, Err(Stop::Failure(failure)) if failure.exit == Exit::NotFound));
    }
}
