//! `ingraft watch`: streams the values of metrics.

use crate::args::WatchArgs;
use crate::conn::{PairInfo, Request, Value};
use crate::exit::Stop;
use crate::measure::{self, Context, Plan, Site, View};
use crate::objects::{Object, Sample};
use crate::output::histogram::QUANTILES;
use crate::output::number::{grouped, quantity, short, time};
use crate::output::table::{Cell, Table};
use crate::output::{DIM, Output};

/// Runs the command.
pub(crate) async fn run(args: WatchArgs, context: Context<'_>, out: &mut Output) -> Result<(), Stop> {
    let definitions = measure::sources(&args.include.files)?;
    super::mdl::accept(&definitions, context.common.format)?;
    let pairs: Vec<_> = args.pairs.iter().map(|p| (p.metric.clone(), p.focus.to_string())).collect();
    let request = |target| Request {
        target,
        pairs: pairs.clone(),
        functions: Vec::new(),
        function_metric: "",
        definitions: definitions.clone(),
        keep: args.measure.no_remove,
        max_overhead: args.measure.max_overhead,
    };
    let plan = Plan::new(&args.measure, &args.target, request, out);
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
    let value = site.reading.values.get(pair);
    Object::Sample(Sample {
        host: site.host(),
        pid: site.enabled.pid,
        time_ns: site.reading.time_ns,
        metric: info.metric.clone(),
        focus: info.focus.clone(),
        value: value.map_or(0, |v| v.value),
        rate: if info.level { None } else { site.rate(pair) },
        unit: info.unit.clone(),
        quantiles: value.and_then(|v| v.distribution.as_deref()).map(Into::into),
        missing: value.map(|v| v.activations).unwrap_or_default().into(),
        taken_out_ns: value.and_then(|v| v.taken_out).map(|why| why.time_ns),
        dropped: site.reading.dropped,
    })
}

/// The unit of a value: a histogram's is the number of its values.
fn unit<'a>(info: &'a PairInfo, value: Option<&Value>) -> &'a str {
    if value.is_some_and(|v| v.distribution.is_some()) { "values" } else { &info.unit }
}

/// The value for people.
fn number(info: &PairInfo, value: Option<&Value>) -> String {
    let value = value.map_or(0, |v| v.value);
    if info.time { time(value as f64) } else { grouped(value) }
}

/// The quantiles of a histogram, as people are shown them; empty ones if there is no value, none if it is no histogram.
fn quantiles(info: &PairInfo, value: Option<&Value>) -> Vec<String> {
    let Some(distribution) = value.and_then(|v| v.distribution.as_deref()) else { return Vec::new() };
    let text = |(_, q)| distribution.quantile(q).map(|v| quantity(v, &info.unit)).unwrap_or_default();
    QUANTILES.map(text).to_vec()
}

/// The latest value of a pair as a line of its own.
fn line(site: &Site, pair: usize, several: bool, start_ns: u64) -> String {
    let info = &site.enabled.pairs[pair];
    let seconds = site.reading.time_ns.saturating_sub(start_ns) as f64 / 1e9;
    let host = site.host().map(|h| format!("{h}  ")).unwrap_or_default();
    let pid = if several { format!("{}  ", site.enabled.pid) } else { String::new() };
    let focus = if info.focus.is_empty() { String::new() } else { format!("@{}", info.focus) };
    let value = site.reading.values.get(pair);
    let number = number(info, value);
    let change = match site.rate(pair) {
        Some(r) if info.time => format!("  {} {}", short(r), info.unit),
        Some(r) if !info.level => format!("  {} {}/s", short(r), unit(info, value)),
        _ => String::new(),
    };
    let unit = if info.time { String::new() } else { format!(" {}", unit(info, value)) };
    let named = QUANTILES.iter().zip(quantiles(info, value)).filter(|(_, text)| !text.is_empty());
    let quantiles: String = named.map(|((name, _), text)| format!("  {name} {text}")).collect();
    format!("{seconds:>9.3} s  {host}{pid}{}{focus}  {number}{unit}{change}{quantiles}\n", info.metric)
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
    table = QUANTILES.iter().fold(table, |table, (name, _)| table.right(&name.to_uppercase()));
    for site in sites {
        for (pair, info) in site.enabled.pairs.iter().enumerate() {
            let pid = if sites.len() > 1 { site.enabled.pid.to_string() } else { String::new() };
            let change = if info.level { None } else { site.rate(pair) };
            let value = site.reading.values.get(pair);
            let mut cells = vec![
                site.host().unwrap_or_default().into(),
                pid.into(),
                info.metric.as_str().into(),
                info.focus.as_str().into(),
                number(info, value).into(),
                change.map(|r| format!("{}{}", short(r), if info.time { "" } else { "/s" })).unwrap_or_default().into(),
                Cell::styled(unit(info, value), DIM),
            ];
            cells.extend(quantiles(info, value).into_iter().map(Cell::from));
            table.row(cells);
        }
    }
    table.render(width)
}
