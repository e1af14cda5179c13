//! `ingraft watch`: streams the values of metrics.

use std::time::Duration;

use crate::args::WatchArgs;
use crate::conn::{Request, Target};
use crate::exit::Stop;
use crate::measure::{self, Context, Plan, Site, View};
use crate::objects::{Object, Sample};
use crate::output::number::{grouped, rate};
use crate::output::table::{Cell, Table};
use crate::output::{DIM, Output};

/// Runs the command.
pub(crate) async fn run(args: WatchArgs, context: Context<'_>, out: &mut Output) -> Result<(), Stop> {
    let targets = measure::targets(&args.target);
    if targets.iter().any(|t| matches!(t, Target::Command(_))) {
        out.shared();
    }
    let definitions = measure::sources(&args.include.files)?;
    super::mdl::accept(&definitions, context.common.format)?;
    let pairs: Vec<_> = args.pairs.iter().map(|p| (p.metric.clone(), p.focus.to_string())).collect();
    let request = |target| Request {
        target,
        pairs: pairs.clone(),
        functions: Vec::new(),
        definitions: definitions.clone(),
        keep: args.measure.no_remove,
    };
    let plan = Plan {
        requests: targets.into_iter().map(request).collect(),
        interval: args.measure.interval.unwrap_or(Duration::from_secs(1)),
        measure: args.measure,
    };
    measure::run(plan, context, &mut WatchView::default(), out).await
}

#[derive(Default)]
struct WatchView {
    /// Unix time of the first reading, for the clock of the lines.
    start_ns: Option<u64>,
    /// Time of the last reading that was shown, by site.
    shown: Vec<u64>,
}

impl View for WatchView {
    fn reading(&mut self, sites: &[Site], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        self.note(sites, at);
        if out.live() {
            let frame = frame(sites, out.width());
            return out.frame(&frame);
        }
        let start = *self.start_ns.get_or_insert(site.reading.time_ns);
        for pair in 0..site.enabled.pairs.len() {
            out.object(&sample(site, pair))?;
            out.text(&line(site, pair, sites.len() > 1, start))?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[Site], out: &mut Output) -> Result<(), Stop> {
        if out.live() {
            let text = frame(sites, out.width());
            return out.text(&text);
        }
        for at in 0..sites.len() {
            // The values after the end of a target have been shown already.
            if sites.get(at).is_some_and(|site| self.shown.get(at) != Some(&site.reading.time_ns)) {
                self.reading(sites, at, out)?;
            }
        }
        Ok(())
    }
}

impl WatchView {
    fn note(&mut self, sites: &[Site], at: usize) {
        self.shown.resize(sites.len().max(self.shown.len()), 0);
        if let (Some(shown), Some(site)) = (self.shown.get_mut(at), sites.get(at)) {
            *shown = site.reading.time_ns;
        }
    }
}

/// The latest value of a pair as an object.
pub(super) fn sample(site: &Site, pair: usize) -> Object {
    let info = &site.enabled.pairs[pair];
    Object::Sample(Sample {
        host: site.host(),
        pid: site.enabled.pid,
        time_ns: site.reading.time_ns,
        metric: info.metric.clone(),
        focus: info.focus.clone(),
        value: site.reading.values.get(pair).map_or(0, |v| v.value),
        rate: if info.level { None } else { site.rate(pair) },
        unit: info.unit.clone(),
        dropped: site.reading.dropped,
    })
}

/// The latest value of a pair as a line of its own.
fn line(site: &Site, pair: usize, several: bool, start_ns: u64) -> String {
    let info = &site.enabled.pairs[pair];
    let seconds = site.reading.time_ns.saturating_sub(start_ns) as f64 / 1e9;
    let host = site.host().map(|h| format!("{h}  ")).unwrap_or_default();
    let pid = if several { format!("{}  ", site.enabled.pid) } else { String::new() };
    let focus = if info.focus.is_empty() { String::new() } else { format!("@{}", info.focus) };
    let value = grouped(site.reading.values.get(pair).map_or(0, |v| v.value));
    let change = match site.rate(pair) {
        Some(r) if !info.level => format!("  {} {}/s", rate(r), info.unit),
        _ => String::new(),
    };
    format!("{seconds:>9.3} s  {host}{pid}{}{focus}  {value} {}{change}\n", info.metric, info.unit)
}

/// All latest values as a table.
fn frame(sites: &[Site], width: Option<usize>) -> String {
    let mut table = Table::new()
        .shrinking("HOST")
        .right("PID")
        .left("METRIC")
        .shrinking("FOCUS")
        .right("VALUE")
        .right("RATE")
        .left("UNIT");
    for site in sites {
        for (pair, info) in site.enabled.pairs.iter().enumerate() {
            let pid = if sites.len() > 1 { site.enabled.pid.to_string() } else { String::new() };
            let change = if info.level { None } else { site.rate(pair) };
            table.row(vec![
                site.host().unwrap_or_default().into(),
                pid.into(),
                info.metric.as_str().into(),
                info.focus.as_str().into(),
                grouped(site.reading.values.get(pair).map_or(0, |v| v.value)).into(),
                change.map(|r| format!("{}/s", rate(r))).unwrap_or_default().into(),
                Cell::styled(info.unit.as_str(), DIM),
            ]);
        }
    }
    table.render(width)
}
