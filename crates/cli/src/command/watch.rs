//! `ingraft watch`: streams the values of metrics.

use std::sync::Arc;

use ingraft_api::{EnableRequest, MetricFocus, PairInfo, Value};
use ingraft_model::Distribution;

use crate::args::{PairArg, WatchArgs};
use crate::conn::{HistorySpan, RequestTarget};
use crate::exit::Stop;
use crate::measure::{
    self, CombinedValue, CommandContext, Lately, MeasurementPlan, MeasurementView, TargetMeasurement, Together,
};
use crate::objects::{self, Interval, KeyedValues, Object, SampleObject};
use crate::output::histogram::{self, HANDFUL, QUANTILES};
use crate::output::number::{grouped, grouped_u64, plural, quantity, short, singular, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, HEADING, Output};
use crate::output::{history, keys, words};

/// Runs the command.
pub(crate) async fn run(args: WatchArgs, context: CommandContext<'_>, out: &mut Output) -> Result<(), Stop> {
    let definitions = measure::sources(&args.include.files)?;
    let metrics: Vec<&str> = args.pairs.iter().map(|p| p.metric.as_str()).collect();
    super::mdl::accept_for(&metrics, &definitions, context.common.format)?;
    let pair = |p: &PairArg| Arc::new(MetricFocus { metric: p.metric.clone(), focus: p.focus.clone() });
    let own = EnableRequest {
        pairs: args.pairs.iter().map(pair).collect(),
        definitions,
        flavors: args.include.flavors.names.clone(),
        allow_calls: args.measure.allow_calls,
        ..EnableRequest::default()
    };
    let request = |target: RequestTarget| {
        let mut request = measure::request(target, &args.measure, own.clone());
        request.terms.history = args.history || args.phases.is_some();
        request
    };
    let plan =
        MeasurementPlan::new(&args.measure, &args.target, request, out).in_phases(args.phases).scaled(args.scale);
    measure::run(plan, context, &mut WatchView::default(), out).await
}

/// Presents values of measurements that were inserted earlier.
pub(super) fn view() -> Box<dyn MeasurementView + Send> {
    Box::new(WatchView::default())
}

#[derive(Default)]
struct WatchView {
    /// Unix time of the first reading, in nanoseconds; lines show the time since then.
    start_ns: Option<u64>,
    /// Time of the last reading that was shown, by index of the site.
    shown: Vec<u64>,
    together: Together,
}

impl MeasurementView for WatchView {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        let Some(site) = sites.get(at) else { return Ok(()) };
        self.note(sites, at);
        if out.live() {
            let frame = frame(sites, out.width(), out.height());
            return out.frame(&frame);
        }
        let start = *self.start_ns.get_or_insert(site.reading.time_ns);
        out.together(|out| {
            for pair in 0..site.enabled.pairs.len() {
                if out.json() {
                    out.object(&sample(site, pair))?;
                    continue;
                }
                let curve = Curve::of(site, pair, sites.len() > 1);
                out.text(&curve.line(start))?;
                out.text(&curve.keys(out.width()))?;
            }
            self.together.reading(sites, at).iter().try_for_each(|combined| {
                out.object(&combined_object(combined))?;
                let curve = Curve::from(combined);
                out.text(&curve.line(start))?;
                out.text(&curve.keys(out.width()))
            })
        })
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        if out.live() {
            let text = frame(sites, out.width(), usize::MAX);
            out.text(&text)?;
        } else {
            for at in 0..sites.len() {
                // The values of a target at its end may have been shown already.
                if sites.get(at).is_some_and(|site| self.shown.get(at) != Some(&site.reading.time_ns)) {
                    self.reading(sites, at, out)?;
                }
            }
            let together = measure::together(sites);
            let bars = histograms(&curves(sites, &together), out.width());
            out.text(&bars.concat())?;
        }
        sites.iter().try_for_each(|site| site.chapters.iter().try_for_each(|chapter| tell(site, chapter, out)))
    }
}

impl WatchView {
    fn note(&mut self, sites: &[TargetMeasurement], at: usize) {
        self.shown.resize(sites.len().max(self.shown.len()), 0);
        if let (Some(shown), Some(site)) = (self.shown.get_mut(at), sites.get(at)) {
            *shown = site.reading.time_ns;
        }
    }
}

/// Shows the histories of a site's values, in one phase or in the whole time.
fn tell(site: &TargetMeasurement, chapter: &HistorySpan, out: &mut Output) -> Result<(), Stop> {
    let phase = chapter.phase.as_ref();
    let title = match phase {
        Some(phase) if phase.name.is_empty() => format!("phase {}", phase.number),
        Some(phase) => format!("phase {} ({})", phase.number, phase.name),
        None => "history".to_owned(),
    };
    for (pair, history) in &chapter.histories {
        let Some(info) = site.enabled.pairs.get(*pair) else { continue };
        let line = history::line(history, info.units(), info.metric.is_time());
        out.text(&format!("{title} of {}: {line}\n", named(info)))?;
        out.object(&Object::History(objects::HistoryObject::new(site.host(), site.pid(), info, phase, history)))?;
    }
    Ok(())
}

/// A metric with its focus, if it has one: `METRIC@FOCUS`.
fn named(info: &PairInfo) -> String {
    let MetricFocus { metric, focus } = info.pair.as_ref();
    let focus = words::readable_focus(&focus.to_string());
    if focus.is_empty() { metric.clone() } else { format!("{metric}@{focus}") }
}

/// The latest value of a pair as an object.
pub(super) fn sample(site: &TargetMeasurement, pair: usize) -> Object {
    let info = &site.enabled.pairs[pair];
    let value = site.reading.values.get(pair);
    Object::Sample(SampleObject {
        host: site.host(),
        pid: site.pid(),
        time_ns: site.reading.time_ns,
        metric: info.pair.metric.clone(),
        focus: info.pair.focus.to_string(),
        value: value.map_or(0, |v| v.value),
        rate: if info.metric.is_level() { None } else { site.rate(pair) },
        unit: info.metric.unit.clone(),
        quantiles: value.and_then(|v| v.details().distribution.as_deref()).map(Into::into),
        interval: site.lately(pair).as_ref().map(interval),
        keys: value.and_then(|v| v.details().keys.as_ref()).map(|keys| KeyedValues::new(keys, false)),
        object: value.and_then(|v| v.details().object).map(Into::into),
        missing: value.map(|v| v.details().activations).unwrap_or_default().into(),
        taken_out_ns: value.and_then(|v| v.details().taken_out).map(|why| why.time_ns),
        facts: site.facts(pair),
        refused: u32::try_from(info.refused.len()).unwrap_or(u32::MAX),
        dropped: site.dropped,
        counted_share: value.and_then(Value::counted_share),
        scaled: site.scaled && value.is_some_and(|v| v.details().counted.is_some()),
    })
}

/// The combined value of several targets as an object.
pub(super) fn combined_object(combined: &CombinedValue<'_>) -> Object {
    let CombinedValue { info, time_ns, ref value, rate, ref lately, targets, heard } = *combined;
    Object::Combined(objects::CombinedObject {
        time_ns,
        metric: info.pair.metric.clone(),
        focus: info.pair.focus.to_string(),
        value: value.value,
        rate,
        unit: info.metric.unit.clone(),
        quantiles: value.details().distribution.as_deref().map(Into::into),
        interval: lately.as_ref().map(interval),
        keys: value.details().keys.as_ref().map(|keys| KeyedValues::new(keys, true)),
        missing: value.details().activations.into(),
        targets,
        heard,
    })
}

/// The values of a histogram that came in the latest interval, for scripts.
fn interval(Lately { ns, distribution }: &Lately) -> Interval {
    Interval { ns: *ns, count: distribution.count, quantiles: distribution.into() }
}

/// One line or row for people: a pair in one target, or the combined value of several targets.
struct Curve<'a> {
    host: String,
    /// Process id of the target if there are several targets; for a combined value, the number of targets that are up to date.
    who: String,
    /// The parent's id and the title of the target, if there are several.
    kinship: (String, String),
    /// Whether the value is combined from several targets.
    together: bool,
    info: &'a PairInfo,
    time_ns: u64,
    value: Option<&'a Value>,
    rate: Option<f64>,
    /// The values of a histogram from the latest interval.
    lately: Option<Lately>,
}

impl<'a> Curve<'a> {
    fn of(site: &'a TargetMeasurement, pair: usize, several: bool) -> Self {
        let info = &site.enabled.pairs[pair];
        Curve {
            host: site.host().unwrap_or_default(),
            who: if several { site.pid().to_string() } else { String::new() },
            kinship: if several { site.kinship() } else { Default::default() },
            together: false,
            info,
            time_ns: site.reading.time_ns,
            value: site.reading.values.get(pair),
            rate: site.rate(pair).filter(|_| !info.metric.is_level()),
            lately: site.lately(pair),
        }
    }

    fn number(&self) -> String {
        self.amount(self.value.map_or(0, |v| v.value))
    }

    fn amount(&self, value: i64) -> String {
        if self.info.metric.is_time() { time(value as f64) } else { grouped(value) }
    }

    /// The distribution of all values of a histogram; `None` for other metrics.
    fn distribution(&self) -> Option<&'a Distribution> {
        self.value?.details().distribution.as_deref()
    }

    /// The quantiles of a histogram, formatted for people: empty texts if the histogram has no value, no texts for other metrics.
    fn quantiles(&self, distribution: Option<&Distribution>) -> Vec<String> {
        let Some(distribution) = distribution else { return Vec::new() };
        let text = |(_, q)| distribution.quantile(q).map(|v| quantity(v, &self.info.metric.unit)).unwrap_or_default();
        QUANTILES.map(text).to_vec()
    }

    /// The quantiles of a histogram with their names, for a line.
    fn named_quantiles(&self, distribution: Option<&Distribution>) -> String {
        let named = QUANTILES.iter().zip(self.quantiles(distribution)).filter(|(_, text)| !text.is_empty());
        named.map(|((name, _), text)| format!("  {name} {text}")).collect()
    }

    /// A histogram as bars under a heading; empty if the histogram has no value, and for other metrics.
    fn bars(&self, width: Option<usize>) -> String {
        let Some(distribution) = self.distribution().filter(|d| d.count > 0) else { return String::new() };
        let column = |text: &str| if text.is_empty() { String::new() } else { format!("  {text}") };
        let (host, who) = (column(&self.host), column(&self.who));
        let count = plural(distribution.count, "value", "values");
        let quantity = |value| quantity(value, &self.info.metric.unit);
        let bars = histogram::render(distribution, "VALUES", quantity, width);
        format!("\n{HEADING}{}{host}{who}{HEADING:#}: {count}\n{bars}", named(self.info))
    }

    /// The latest value as one line.
    fn line(&self, start_ns: u64) -> String {
        let info = self.info;
        let seconds = self.time_ns.saturating_sub(start_ns) as f64 / 1e9;
        let column = |text: &str| if text.is_empty() { String::new() } else { format!("{text}  ") };
        let (host, who) = (column(&self.host), column(&self.who));
        let is_time = info.metric.is_time();
        let change = match self.rate {
            Some(r) if is_time => format!("  {} {}", short(r), info.metric.unit),
            Some(r) => format!("  {} {}/s", short(r), info.units()),
            None => String::new(),
        };
        let unit = match self.value.map_or(0, |v| v.value) {
            _ if is_time => String::new(),
            1 => format!(" {}", singular(info.units())),
            _ => format!(" {}", info.units()),
        };
        let quantiles = self.named_quantiles(self.distribution());
        let lately = self.lately.as_ref().map_or_else(String::new, |Lately { ns, distribution }| {
            let (count, quantiles) = (grouped_u64(distribution.count), self.named_quantiles(Some(distribution)));
            format!("  last {}: {count}{quantiles}", time(*ns as f64))
        });
        let retired = if self.is_retired() { "  retired" } else { "" };
        format!(
            "{seconds:>9.3} s  {host}{who}{}  {}{unit}{change}{quantiles}{lately}{retired}\n",
            named(info),
            self.number()
        )
    }

    /// Whether the object of the focus is known to be destroyed.
    fn is_retired(&self) -> bool {
        self.value.and_then(|v| v.details().object).is_some_and(|object| object.retired)
    }

    /// The values by key as a table; empty if the metric is no vector over keys.
    fn keys(&self, width: Option<usize>) -> String {
        let keys = self.value.and_then(|v| v.details().keys.as_ref());
        keys.map_or_else(String::new, |of| keys::render(of, self.together, |v| self.amount(v), width))
    }

    fn cells(&self) -> Vec<Cell> {
        let change = self.rate.map(|r| format!("{}{}", short(r), if self.info.metric.is_time() { "" } else { "/s" }));
        let mut cells = vec![
            self.host.as_str().into(),
            self.who.as_str().into(),
            self.kinship.0.as_str().into(),
            Cell::styled(self.kinship.1.as_str(), DIM),
            self.info.pair.metric.as_str().into(),
            words::readable_focus(&self.info.pair.focus.to_string()).into(),
            self.number().into(),
            change.unwrap_or_default().into(),
            Cell::styled(
                if self.is_retired() {
                    format!("{} (retired)", self.info.units())
                } else {
                    self.info.units().to_owned()
                },
                DIM,
            ),
        ];
        cells.extend(self.quantiles(self.distribution()).into_iter().map(Cell::from));
        cells
    }

    /// A row with the values of a histogram from the latest interval; `None` if they are not known.
    fn cells_lately(&self) -> Option<Vec<Cell>> {
        let Lately { ns, distribution } = self.lately.as_ref()?;
        let (what, count) = (format!("  last {}", time(*ns as f64)), grouped_u64(distribution.count));
        let empty = [const { String::new() }; 4];
        let first = empty.into_iter().chain([what, String::new(), count, String::new(), String::new()]);
        Some(first.chain(self.quantiles(Some(distribution))).map(Cell::from).collect())
    }
}

impl<'a> From<&'a CombinedValue<'a>> for Curve<'a> {
    fn from(combined: &'a CombinedValue<'a>) -> Self {
        let CombinedValue { info, time_ns, ref value, rate, ref lately, targets, heard } = *combined;
        let who = if heard == targets { format!("all {targets}") } else { format!("{heard} of {targets}") };
        let lately = lately.clone();
        let kinship = Default::default();
        Curve { host: String::new(), who, kinship, together: true, info, time_ns, value: Some(value), rate, lately }
    }
}

/// All latest values as a table, with values by key and histograms below; only as many histograms as fit on a screen of `height` lines.
fn frame(sites: &[TargetMeasurement], width: Option<usize>, height: usize) -> String {
    let together = measure::together(sites);
    let all = curves(sites, &together);
    let by_key: String = all
        .iter()
        .filter_map(|curve| Some((curve, Some(curve.keys(width)).filter(|text| !text.is_empty())?)))
        .map(|(curve, text)| {
            let who = if curve.who.is_empty() { String::new() } else { format!("  {}", curve.who) };
            format!("\n{HEADING}{}{who}{HEADING:#}\n{text}", curve.info.pair.metric)
        })
        .collect();
    let mut text = table(&all, width) + &by_key;
    let mut lines = text.lines().count();
    for bars in histograms(&all, width) {
        lines = lines.saturating_add(bars.lines().count());
        if lines >= height {
            break;
        }
        text += &bars;
    }
    text
}

/// All lines to show for the sites: each pair of each site, then the combined values.
fn curves<'a>(sites: &'a [TargetMeasurement], together: &'a [CombinedValue<'a>]) -> Vec<Curve<'a>> {
    let several = sites.len() > 1;
    let pairs = sites.iter().flat_map(|site| (0..site.enabled.pairs.len()).map(move |pair| (site, pair)));
    let own = pairs.map(|(site, pair)| Curve::of(site, pair, several));
    own.chain(together.iter().map(Curve::from)).collect()
}

/// The histograms that have values, as bars; none if there are more than a handful.
fn histograms(curves: &[Curve<'_>], width: Option<usize>) -> Vec<String> {
    let bars: Vec<String> = curves.iter().map(|curve| curve.bars(width)).filter(|bars| !bars.is_empty()).collect();
    if bars.len() > HANDFUL { Vec::new() } else { bars }
}

/// The combined values of several targets over the whole measurement as a table; empty if there are none.
pub(super) fn whole(sites: &[TargetMeasurement], width: Option<usize>) -> String {
    let together = measure::whole(sites);
    if together.is_empty() {
        String::new()
    } else {
        table(&together.iter().map(Curve::from).collect::<Vec<_>>(), width)
    }
}

fn table(curves: &[Curve<'_>], width: Option<usize>) -> String {
    let mut table = TextTable::new()
        .shrinking("HOST")
        .right("PID")
        .right("PARENT")
        .shrinking("TITLE")
        .shrinking("METRIC")
        .shrinking("FOCUS")
        .right("VALUE")
        .right("RATE")
        .left("UNIT")
        .optional(&["PARENT", "TITLE", "P99.9", "P90", "UNIT", "P50", "RATE", "P99", "MAX", "HOST"]);
    table = QUANTILES.iter().fold(table, |table, (name, _)| table.right(&name.to_uppercase()));
    for curve in curves {
        table.row(curve.cells());
        curve.cells_lately().into_iter().for_each(|cells| table.row(cells));
    }
    table.render(width)
}
