//! Iterations of loops: the means follow from the counts, and the metric `trips` measures the distribution in the loops that iterate most.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ingraft_api::{EnableRequest, MetricFocus};
use ingraft_model::{Distribution, Focus, ResourcePath};
use ingraft_report::NodeTime;

use crate::measure::TargetMeasurement;
use crate::objects::times::TripsObject;
use crate::output::DIM;
use crate::output::number::{grouped_u64, short};
use crate::output::table::{Cell, TextTable};

use super::ROWS;
use super::timed::TimedFunction;

/// The metric of the numbers of iterations.
const TRIPS: &str = "trips";

/// The measured numbers of iterations in entries of loops, by the focus of the loop.
pub(super) type MeasuredTrips<'p> = BTreeMap<String, &'p Distribution>;

/// A loop that has run.
struct RanLoop<'t> {
    of: &'t TimedFunction<'t>,
    /// Offset of the header.
    header: String,
    /// Predicted number of entries.
    entries: f64,
    /// Mean number of iterations in an entry.
    iterations: f64,
    /// Time of an entry for people.
    time: String,
}

impl RanLoop<'_> {
    /// The focus of the loop; `None` if its function has no name that a focus can have.
    fn focus(&self) -> Option<Focus> {
        let id = &self.of.counts.id;
        let part = format!("#loop@{}", self.header);
        Focus::new([ResourcePath::new("Code", [id.module.clone(), id.function.clone(), part])]).ok()
    }
}

/// The loops of a function.
fn loops<'t>(one: &'t TimedFunction<'t>) -> impl Iterator<Item = RanLoop<'t>> {
    let calls = one.counts.counts.calls as f64;
    let mut seen = BTreeSet::new();
    let of = move |node: &NodeTime| {
        let entries = (node.frequency > 0.0).then_some(node.frequency * calls)?;
        let (header, iterations) = (one.node(node.origin)?, node.iterations?);
        let time = one.number(node.mean);
        seen.insert(header.clone()).then_some(RanLoop { of: one, header, entries, iterations, time })
    };
    one.times.times.nodes.iter().filter_map(of)
}

/// The loops of all functions, those with the most iterations first.
fn all<'t>(functions: &[&'t TimedFunction<'t>]) -> Vec<RanLoop<'t>> {
    let mut all: Vec<RanLoop<'_>> = functions.iter().flat_map(|one| loops(one)).collect();
    all.sort_by(|a, b| (b.entries * b.iterations).total_cmp(&(a.entries * a.iterations)));
    all
}

/// A request to measure the loops with the most iterations. `None` if there are less than `least` entries. A function that shares its name with another
/// one of its module is left out, because a focus names it.
pub(super) fn request<'t>(functions: &[&'t TimedFunction<'t>], least: u64) -> Option<EnableRequest> {
    let mut names: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for one in functions {
        *names.entry((&one.counts.id.module, &one.counts.id.function)).or_default() += 1;
    }
    let all = all(functions);
    let entries: f64 = all.iter().map(|one| one.entries).sum();
    let is_only = |one: &&RanLoop<'_>| {
        let id = &one.of.counts.id;
        names.get(&(id.module.as_str(), id.function.as_str())) == Some(&1)
    };
    let foci = all.iter().filter(is_only).filter_map(RanLoop::focus).take(ROWS);
    let pairs: Vec<_> = foci.map(|focus| Arc::new(MetricFocus { metric: TRIPS.to_owned(), focus })).collect();
    let is_enough = entries >= least as f64 && !pairs.is_empty();
    is_enough.then(|| EnableRequest { pairs, ..EnableRequest::default() })
}

/// Iterations that were measured in the loops of a process.
pub(super) fn of<'s>(sites: &'s [TargetMeasurement], site: &TargetMeasurement) -> MeasuredTrips<'s> {
    let is_its = |other: &&TargetMeasurement| (other.host(), other.pid()) == (site.host(), site.pid());
    let values = sites.iter().filter(is_its).flat_map(|other| other.enabled.pairs.iter().zip(&other.reading.values));
    let trips = values.filter(|(pair, _)| pair.pair.metric == TRIPS);
    let distribution =
        trips.filter_map(|(pair, value)| Some((pair.pair.focus.to_string(), value.details().distribution.as_deref()?)));
    distribution.filter(|(_, of)| of.count > 0).collect()
}

fn measured<'p>(one: &RanLoop<'_>, known: &MeasuredTrips<'p>) -> Option<&'p Distribution> {
    known.get(&one.focus()?.to_string()).copied()
}

fn mean(of: &Distribution) -> Option<f64> {
    Some(of.exact_sum()? as f64 / of.count as f64)
}

/// The records of the measured loops of a function.
pub(super) fn records(one: &TimedFunction<'_>, known: &MeasuredTrips<'_>) -> Vec<TripsObject> {
    let record = |one: RanLoop<'_>| {
        let of = measured(&one, known)?;
        Some(TripsObject {
            id: one.of.counts.id.clone(),
            entries: of.count,
            mean: mean(of),
            stddev: of.stddev(),
            p50: of.quantile(0.5),
            p99: of.quantile(0.99),
            max: of.quantile(1.0),
            node: one.header,
        })
    };
    loops(one).filter_map(record).collect()
}

/// The loops with the most iterations.
pub(super) fn table<'t>(
    functions: &[&'t TimedFunction<'t>],
    known: &MeasuredTrips<'_>,
    width: Option<usize>,
) -> String {
    let mut table = TextTable::new().shrinking("LOOP").right("ENTRIES").right("ITERATIONS").right("TIME OF AN ENTRY");
    if !known.is_empty() {
        table = table.right("MEASURED").right("MEAN").right("P50").right("P99").right("MAX");
    }
    for one in all(functions).into_iter().take(ROWS) {
        let name = format!("{}#loop@{}", one.of.counts.id.function, one.header);
        let mut row: Vec<Cell> = vec![name.into(), short(one.entries).into(), short(one.iterations).into()];
        row.push(one.time.clone().into());
        if !known.is_empty() {
            let of = measured(&one, known);
            let number = |number: Option<u64>| Cell::from(number.map(grouped_u64).unwrap_or_default());
            row.push(number(of.map(|of| of.count)));
            row.push(of.and_then(mean).map(short).unwrap_or_default().into());
            row.extend([0.5, 0.99, 1.0].map(|q| number(of.and_then(|of| of.quantile(q)))));
        }
        table.row(row);
    }
    let table = table.render(width);
    let more = if known.is_empty() {
        ""
    } else {
        " MEASURED\nis the number of entries since the loops were chosen, of which the columns behind it tell the iterations."
    };
    format!(
        "\n{table}{DIM}ITERATIONS is the mean number for each entry of the loop; it follows from the counts.{more}{DIM:#}\n"
    )
}
