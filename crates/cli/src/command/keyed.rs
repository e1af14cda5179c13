//! Values by key: the calls of functions by an expression (`count --by`), the sums of another one, or their times.

use std::cmp::Reverse;

use ingraft_api::{EnableRequest, KeyValue, Keys};

use super::expression::ExpressionMetric;
use crate::args;
use crate::conn::RequestTarget;
use crate::exit::Stop;
use crate::measure::{self, CommandContext, MeasurementPlan, MeasurementView, TargetMeasurement};
use crate::objects::keyed::{KeyText, KeyedObject};
use crate::objects::{Object, RecordedFunction};
use crate::output::number::{grouped, plural, short, time};
use crate::output::table::{Cell, TextTable};
use crate::output::{DIM, Output, histogram};

/// Number of rows of a table without `--top`.
pub(super) const ROWS: usize = 20;

/// Measures definitions at functions and presents them.
pub(super) async fn measure(
    (flags, target): (&args::Measure, &args::TargetArgs),
    functions: Vec<String>,
    definitions: &[ExpressionMetric],
    view: &mut dyn MeasurementView,
    context: CommandContext<'_>,
    out: &mut Output,
) -> Result<(), Stop> {
    let sources = ExpressionMetric::sources(definitions);
    let metrics: Vec<&str> = definitions.iter().map(|definition| definition.metric.as_str()).collect();
    ExpressionMetric::accept(definitions, context.common.format)?;
    let own = EnableRequest {
        functions,
        function_metrics: metrics.into_iter().map(str::to_owned).collect(),
        definitions: sources,
        allow_calls: flags.allow_calls,
        ..EnableRequest::default()
    };
    let request = |target: RequestTarget| measure::request(target, flags, own.clone());
    let plan = MeasurementPlan::new(flags, target, request, out);
    measure::run(plan, context, view, out).await
}

/// Prints the latest values of a target for scripts.
pub(super) fn samples(site: Option<&TargetMeasurement>, out: &mut Output) -> Result<(), Stop> {
    let mut pairs = site.into_iter().flat_map(|site| (0..site.enabled.pairs.len()).map(move |pair| (site, pair)));
    pairs.try_for_each(|(site, pair)| out.object(&super::watch::sample(site, pair)))
}

/// The value of a key of one function in one target.
pub(super) struct KeyRow<'a> {
    pub(super) site: &'a TargetMeasurement,
    /// Number of the pair.
    pub(super) pair: usize,
    /// The key; `None` for all others together.
    pub(super) key: Option<&'a KeyValue>,
    /// The value.
    pub(super) value: i64,
}

impl<'a> KeyRow<'a> {
    /// The rows of all pairs of a metric, those of a function together: at most `most` keys, the largest first, and the others.
    pub(super) fn all(sites: &'a [TargetMeasurement], metric: &str, most: usize) -> Vec<KeyRow<'a>> {
        let pairs = sites.iter().flat_map(|site| (0..site.enabled.pairs.len()).map(move |pair| (site, pair)));
        let mut rows = Vec::new();
        for (site, pair) in pairs.filter(|(site, pair)| site.enabled.pairs[*pair].pair.metric == metric) {
            let value = site.reading.values.get(pair);
            let Some(Keys { values, others, .. }) = value.and_then(|value| value.details().keys.as_ref()) else {
                continue;
            };
            let (shown, beyond) = values.split_at(values.len().min(most));
            rows.extend(shown.iter().map(|key| KeyRow { site, pair, key: Some(key), value: key.value }));
            let value = beyond.iter().fold(*others, |sum, key| sum.wrapping_add(key.value));
            if value != 0 {
                rows.push(KeyRow { site, pair, key: None, value });
            }
        }
        rows
    }

    /// The function.
    pub(super) fn id(&self) -> RecordedFunction {
        let info = &self.site.enabled.pairs[self.pair];
        RecordedFunction::new(info.function.clone().unwrap_or_default(), self.site.enabled.pid, self.site.host())
    }

    /// The value of all keys together.
    pub(super) fn whole(&self) -> i64 {
        self.site.reading.values.get(self.pair).map_or(0, |value| value.value)
    }

    /// The value a second since the measurement began.
    pub(super) fn rate(&self) -> Option<f64> {
        let whole = self.site.mean_rate(self.pair)?;
        Some(if self.whole() == 0 { 0.0 } else { whole * self.value as f64 / self.whole() as f64 })
    }
}

/// The share of a value in the whole, for a table; empty if the whole is no sum of positive values.
pub(super) fn share(row: &KeyRow<'_>) -> String {
    match (u64::try_from(row.value), u64::try_from(row.whole())) {
        (Ok(value), Ok(whole)) if whole >= value && whole > 0 => histogram::share(value, whole),
        _ => String::new(),
    }
}

/// Presents values by key.
pub(super) struct KeyedView {
    /// The metric of the values.
    pub(super) metric: String,
    /// The metric of the number of calls for each time; `None` if the values are no times.
    pub(super) counting: Option<String>,
    /// The expressions whose values are the key, with commas between them; empty if there are no keys.
    pub(super) expr: String,
    /// Condition of the calls; `None` if all are measured.
    pub(super) condition: Option<String>,
    /// Title of the values.
    pub(super) title: &'static str,
    /// Largest number of keys of a function; `None` for that of a table, or for all.
    pub(super) top: Option<usize>,
    /// Whether scripts asked for intermediate values by giving an interval.
    pub(super) samples: bool,
}

impl MeasurementView for KeyedView {
    fn reading(&mut self, sites: &[TargetMeasurement], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() {
            return samples(sites.get(at), out);
        }
        if out.live() {
            let room = out.height().saturating_sub(2).max(1);
            let frame = self.table(sites, room, out.width());
            out.frame(&frame)?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[TargetMeasurement], out: &mut Output) -> Result<(), Stop> {
        if out.json() {
            return self.objects(sites).into_iter().try_for_each(|object| out.object(&object));
        }
        let text = self.table(sites, usize::MAX, out.width());
        out.text(&text)
    }
}

impl KeyedView {
    fn objects(&self, sites: &[TargetMeasurement]) -> Vec<Object> {
        let most = self.top.unwrap_or(Keys::MAX);
        let mut objects: Vec<Object> = Vec::new();
        for row in self.rows(sites, most) {
            let parts = row.key.map(KeyText::parts).unwrap_or_default();
            let named = || args::parts(&self.expr).into_iter().map(str::to_owned).zip(&parts);
            let calls = self.calls(&row);
            objects.push(Object::Keyed(KeyedObject {
                id: row.id(),
                condition: self.condition.clone(),
                keys: named().map(|(expr, part)| (expr, part.clone())).collect(),
                names: named().filter_map(|(expr, part)| Some((expr, part.enumerator()?.to_owned()))).collect(),
                cut: named().filter(|(_, part)| part.is_cut()).map(|(expr, _)| expr).collect(),
                value: row.value,
                others: row.key.is_none() && !self.expr.is_empty(),
                calls,
            }));
        }
        objects
    }

    fn rows<'a>(&self, sites: &'a [TargetMeasurement], most: usize) -> Vec<KeyRow<'a>> {
        if !self.expr.is_empty() {
            return KeyRow::all(sites, &self.metric, most);
        }
        let of = |site: &'a TargetMeasurement| {
            let pairs =
                (0..site.enabled.pairs.len()).filter(|pair| site.enabled.pairs[*pair].pair.metric == self.metric);
            pairs.map(move |pair| {
                let value = site.reading.values.get(pair).map_or(0, |value| value.value);
                KeyRow { site, pair, key: None, value }
            })
        };
        sites.iter().flat_map(of).collect()
    }

    /// The number of calls with the key of a row; `None` if the values are no times.
    fn calls(&self, row: &KeyRow<'_>) -> Option<i64> {
        let counting = self.counting.as_ref()?;
        let function = &row.site.enabled.pairs[row.pair].function;
        let is_it = |pair: &ingraft_api::PairInfo| pair.pair.metric == *counting && pair.function == *function;
        let pair = row.site.enabled.pairs.iter().position(is_it)?;
        let value = row.site.reading.values.get(pair)?;
        let keys = value.details().keys.as_ref();
        match (row.key, keys) {
            (Some(key), Some(keys)) => keys.values.iter().find(|known| known.is_of_key(key)).map(|known| known.value),
            (Some(_), None) => None,
            (None, _) if self.expr.is_empty() => Some(value.value),
            // The keys of both tables are not the same ones.
            (None, _) => None,
        }
    }

    fn table(&self, sites: &[TargetMeasurement], room: usize, width: Option<usize>) -> String {
        let mut rows = self.rows(sites, self.top.unwrap_or(ROWS).min(room));
        let several =
            rows.iter().map(|row| (row.site.pid(), row.pair)).collect::<std::collections::BTreeSet<_>>().len() > 1;
        if several {
            // A stable order: the rows of a function stay together.
            rows.sort_by_key(|row| (Reverse(row.whole()), row.site.pid(), row.pair));
        }
        let hidden = rows.len().saturating_sub(room) as u64;
        rows.truncate(room);
        let times = self.counting.is_some();
        let exprs = args::parts(&self.expr);
        let mut table = TextTable::new().shrinking("HOST").right("PID").shrinking("FUNCTION");
        for expr in &exprs {
            table = table.shrinking(expr);
        }
        if times {
            table = table.right("CALLS");
        }
        table = table.right(self.title).right("SHARE").right(if times { "MEAN" } else { "PER SECOND" });
        for row in &rows {
            let RecordedFunction { host, pid, function, .. } = row.id();
            let pid = if sites.len() > 1 { pid.to_string() } else { String::new() };
            let mut key: Vec<String> = match row.key {
                Some(key) => KeyText::parts(key).iter().map(KeyText::to_string).collect(),
                None if self.expr.is_empty() => Vec::new(),
                None => vec!["others".to_owned()],
            };
            key.resize(exprs.len(), String::new());
            let function = if several { function } else { String::new() };
            let calls = self.calls(row);
            let mut cells: Vec<Cell> = vec![host.unwrap_or_default().into(), pid.into(), function.into()];
            cells.extend(key.into_iter().map(Cell::from));
            if times {
                cells.push(calls.map(grouped).unwrap_or_default().into());
            }
            cells.push(if times { time(row.value as f64) } else { grouped(row.value) }.into());
            cells.push(share(row).into());
            cells.push(match calls {
                Some(calls) if calls > 0 => time(row.value as f64 / calls as f64).into(),
                _ if times => String::new().into(),
                _ => row.rate().map(short).unwrap_or_default().into(),
            });
            table.row(cells);
        }
        let mut text = table.render(width);
        if hidden > 0 {
            text += &format!("{DIM}and {}{DIM:#}\n", plural(hidden, "more row", "more rows"));
        }
        text
    }
}
