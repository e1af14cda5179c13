//! `ingraft count`: the metric `calls` at each function.

use std::time::Duration;

use crate::args::CountArgs;
use crate::conn::{Request, Target};
use crate::exit::Stop;
use crate::measure::{self, Context, Plan, Site, View};
use crate::objects::{Count, Object, ThreadCount, hex};
use crate::output::number::{grouped, plural, rate};
use crate::output::table::{Cell, Table};
use crate::output::{DIM, Output};

/// From so many rows on, functions without a call are summed up in one line.
const FOLD: usize = 40;

/// Runs the command.
pub(crate) async fn run(args: CountArgs, context: Context<'_>, out: &mut Output) -> Result<(), Stop> {
    let targets = measure::targets(&args.target);
    if targets.iter().any(|t| matches!(t, Target::Command(_))) {
        out.shared();
    }
    // Without a function: all functions of the program.
    let functions = if args.functions.is_empty() { vec!["*".to_owned()] } else { args.functions };
    let request = |target| Request {
        target,
        pairs: Vec::new(),
        functions: functions.clone(),
        definitions: Vec::new(),
        keep: args.measure.no_remove,
    };
    let plan = Plan {
        requests: targets.into_iter().map(request).collect(),
        interval: args.measure.interval.unwrap_or(Duration::from_secs(1)),
        measure: args.measure,
    };
    let samples = plan.measure.interval.is_some();
    measure::run(plan, context, &mut CountView { samples }, out).await
}

struct CountView {
    /// Whether scripts asked for intermediate values by giving an interval.
    samples: bool,
}

impl View for CountView {
    fn reading(&mut self, sites: &[Site], at: usize, out: &mut Output) -> Result<(), Stop> {
        if self.samples && out.json() {
            let Some(site) = sites.get(at) else { return Ok(()) };
            for pair in 0..site.enabled.pairs.len() {
                if site.before.is_none() || site.rate(pair).is_some_and(|r| r != 0.0) {
                    out.object(&super::watch::sample(site, pair))?;
                }
            }
        } else if out.live() {
            let frame = live(sites, out.width(), out.height());
            out.frame(&frame)?;
        }
        Ok(())
    }

    fn last(&mut self, sites: &[Site], out: &mut Output) -> Result<(), Stop> {
        if out.json() {
            return rows(sites).try_for_each(|(site, pair)| out.object(&Object::Count(count(site, pair))));
        }
        let text = summary(sites, out.width());
        out.text(&text)
    }
}

fn rows(sites: &[Site]) -> impl Iterator<Item = (&Site, usize)> {
    sites.iter().flat_map(|site| (0..site.enabled.pairs.len()).map(move |pair| (site, pair)))
}

fn value(site: &Site, pair: usize) -> i64 {
    site.reading.values.get(pair).map_or(0, |v| v.value)
}

fn count(site: &Site, pair: usize) -> Count {
    let info = &site.enabled.pairs[pair];
    let function = info.function.as_ref();
    let threads = site.reading.values.get(pair).map(|v| v.threads.as_slice()).unwrap_or_default();
    Count {
        host: site.host(),
        pid: site.enabled.pid,
        module: function.map(|f| f.module.clone()).unwrap_or_default(),
        function: function.map_or_else(|| info.focus.clone(), |f| f.function.clone()),
        offset: hex(function.map_or(0, |f| f.offset)),
        calls: value(site, pair),
        threads: threads.iter().map(|&(tid, calls)| ThreadCount { tid, calls }).collect(),
        exact_since_ns: info.exact_since_ns,
    }
}

/// The columns that tell rows apart.
fn table(sites: &[Site]) -> (Table, bool) {
    let several = sites.len() > 1;
    (Table::new().shrinking("HOST").right("PID").shrinking("FUNCTION").left("MODULE"), several)
}

fn names(site: &Site, pair: usize, several: bool) -> Vec<Cell> {
    let c = count(site, pair);
    let pid = if several { c.pid.to_string() } else { String::new() };
    vec![c.host.unwrap_or_default().into(), pid.into(), c.function.into(), Cell::styled(c.module, DIM)]
}

/// What changes while it counts: the busiest functions that fit on the screen.
fn live(sites: &[Site], width: Option<usize>, height: usize) -> String {
    let (table, several) = table(sites);
    let mut table = table.right("CALLS").right("CALLS/S");
    let mut order: Vec<_> = rows(sites).collect();
    let room = height.saturating_sub(3).max(1);
    let all = order.len();
    if all > room {
        order.retain(|&(site, pair)| value(site, pair) != 0);
        order.sort_by(|a, b| {
            let key = |&(site, pair): &(&Site, usize)| (site.rate(pair).unwrap_or(0.0), value(site, pair));
            let ((rate_a, calls_a), (rate_b, calls_b)) = (key(a), key(b));
            rate_b.total_cmp(&rate_a).then(calls_b.cmp(&calls_a))
        });
        order.truncate(room);
    }
    let quieter = all - order.len();
    for (site, pair) in order {
        let mut cells = names(site, pair, several);
        cells.push(grouped(value(site, pair)).into());
        cells.push(site.rate(pair).map(rate).unwrap_or_default().into());
        table.row(cells);
    }
    let mut text = table.render(width);
    if quieter > 0 {
        text += &format!("{DIM}and {}{DIM:#}\n", plural(quieter as u64, "quieter function", "quieter functions"));
    }
    text
}

/// The final table, most calls first when there are many.
fn summary(sites: &[Site], width: Option<usize>) -> String {
    let (table, several) = table(sites);
    let mut table = table.right("CALLS").right("CALLS/S").right("THREADS");
    let mut order: Vec<_> = rows(sites).collect();
    let all = order.len();
    if all > FOLD {
        order.retain(|&(site, pair)| value(site, pair) != 0);
        order.sort_by_key(|&(site, pair)| std::cmp::Reverse(value(site, pair)));
    }
    let silent = all - order.len();
    let total: i64 = order.iter().map(|&(site, pair)| value(site, pair)).sum();
    for (site, pair) in order {
        let threads = site.reading.values.get(pair).map_or(0, |v| v.threads.len());
        let mut cells = names(site, pair, several);
        cells.push(grouped(value(site, pair)).into());
        cells.push(site.mean_rate(pair).map(rate).unwrap_or_default().into());
        cells.push(threads.to_string().into());
        table.row(cells);
    }
    let mut text = table.render(width);
    if silent > 0 {
        text += &format!("{DIM}{} without a call{DIM:#}\n", plural(silent as u64, "function", "functions"));
    }
    if all > FOLD {
        text += &format!("{DIM}{} in all{DIM:#}\n", plural(u64::try_from(total).unwrap_or(0), "call", "calls"));
    }
    text
}
