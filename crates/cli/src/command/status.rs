//! `ingraft status`: shows the instrumentation in each target, its owner, and its cost.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::Common;
use crate::conn::Engines;
use crate::exit::Stop;
use crate::objects::inserted::PairCostFacts;
use crate::objects::{InsertedObject, Object};
use crate::output::number::{ago, bytes, grouped_u64, percent, short};
use crate::output::progress::Progress;
use crate::output::table::{Cell, TextTable};
use crate::output::{self, DIM, Output, words};

/// Number of pairs of a target that people see; scripts get more.
const PAIRS: usize = 5;

/// Runs the command.
pub(crate) async fn run(engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut inserted = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("looking at processes", common.format);
        let found = client.inserted(&mut progress).await?;
        inserted.extend(found.into_iter().map(|one| InsertedObject::new(one, client.host())));
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = render(&inserted, now, out.width());
    out.text(&text)?;
    for i in &inserted {
        i.warnings.iter().for_each(|what| output::warn(&words::disturbed(i.pid, &i.host, what), common.format));
    }
    inserted.into_iter().try_for_each(|i| out.object(&Object::Inserted(i)))
}

fn render(inserted: &[InsertedObject], now: Duration, width: Option<usize>) -> String {
    if inserted.is_empty() {
        return "nothing is inserted anywhere\n".to_owned();
    }
    let mut table = TextTable::new()
        .shrinking("HOST")
        .right("PID")
        .left("HELD BY")
        .right("POINTS")
        .right("CODE")
        .right("FOR")
        .right("COST")
        .right("SO FAR")
        .left("KEPT")
        .shrinking("THREADS BY");
    for i in inserted {
        let since = now.saturating_sub(Duration::from_nanos(i.since_ns));
        table.row(vec![
            i.host.clone().unwrap_or_default().into(),
            i.pid.to_string().into(),
            i.holder.as_str().into(),
            grouped_u64(i.points.into()).into(),
            bytes(i.bytes).into(),
            ago(since).into(),
            i.cost_ns_per_s.map(|ns| percent(ns / 1e7)).unwrap_or_default().into(),
            so_far(i).into(),
            kept(i).into(),
            Cell::styled(i.identity.as_str(), DIM),
        ]);
    }
    table.render(width) + &inserted.iter().map(|i| dearest(i, width)).collect::<String>()
}

/// Observed cost, as a share of one processor and of the processor time that the target has used.
fn so_far(i: &InsertedObject) -> String {
    let Some(ns) = i.observed_ns_per_s else { return String::new() };
    let of_target = i.observed_of_target.map(|share| format!(", {} of its own", percent(share * 100.0)));
    percent(ns / 1e7) + &of_target.unwrap_or_default()
}

/// The pairs of a target that cost most.
fn dearest(i: &InsertedObject, width: Option<usize>) -> String {
    let shown: Vec<_> = i.pairs.iter().filter(|p| p.cost_ns_per_s > 0.0).take(PAIRS).collect();
    if shown.is_empty() {
        return String::new();
    }
    let table =
        TextTable::new().right("PID").left("METRIC").shrinking("FOCUS").right("RUNS/S").right("NS").right("COST");
    let row = |mut table: TextTable, p: &&PairCostFacts| {
        table.row(vec![
            i.pid.to_string().into(),
            p.metric.as_str().into(),
            words::readable_focus(&p.focus).into(),
            short(p.hits_per_s).into(),
            format!("{:.1}", p.hit_ns).into(),
            percent(p.percent).into(),
        ]);
        table
    };
    format!("\n{}", shown.iter().fold(table, row).render(width))
}

/// Number of measurements that stay without a client. The number of all measurements is known only if they are the answering engine's own.
fn kept(i: &InsertedObject) -> String {
    match (i.kept, i.measurements.len()) {
        (0, _) => String::new(),
        (kept, 0) => kept.to_string(),
        (kept, all) => format!("{kept} of {all}"),
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    #[test]
    fn status_for_people() {
        let inserted = InsertedObject {
            host: None,
            pid: 4712,
            holder: "ingraftd 812".to_owned(),
            points: 13_900,
            bytes: 600_000,
            since_ns: 1_000_000_000,
            identity: "thread id in libc".to_owned(),
            cost_ns_per_s: Some(3_000_000.0),
            observed_ns_per_s: Some(2_000_000.0),
            observed_of_target: Some(0.01),
            pair_count: 1,
            pairs: vec![PairCostFacts {
                metric: "calls".to_owned(),
                focus: "/Code/server/handle".to_owned(),
                hit_ns: 1.5,
                hits_per_s: 2_000_000.0,
                cost_ns_per_s: 3_000_000.0,
                percent: 0.3,
                observed_ns: 1e9,
            }],
            measurements: vec![1, 2],
            kept_measurements: vec![2],
            kept: 1,
            warnings: Vec::new(),
        };
        expect![[r#"
             PID  HELD BY       POINTS       CODE    FOR   COST                   SO FAR  KEPT    THREADS BY
            4712  ingraftd 812  13,900  585.9 KiB  2 min  0.3 %  0.2 %, 1.0 % of its own  1 of 2  thread id in libc

             PID  METRIC  FOCUS                   RUNS/S   NS   COST
            4712  calls   /Code/server/handle  2,000,000  1.5  0.3 %
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&render(&[inserted], Duration::from_secs(130), None)).to_string());
        assert_eq!(render(&[], Duration::ZERO, None), "nothing is inserted anywhere\n");
    }
}
