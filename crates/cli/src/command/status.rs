//! `ingraft status`: what is inserted where, by whom, and what it costs.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::args::Common;
use crate::conn::Engines;
use crate::exit::Stop;
use crate::objects::{Inserted, Object};
use crate::output::number::{ago, bytes, grouped_u64, percent};
use crate::output::progress::Progress;
use crate::output::table::{Cell, Table};
use crate::output::{DIM, Output};

/// Runs the command.
pub(crate) async fn run(engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut inserted = Vec::new();
    for client in engines.clients() {
        let mut progress = Progress::new("looking at processes", common.format);
        inserted.extend(client.inserted(&mut progress).await?);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let text = render(&inserted, now, out.width());
    out.text(&text)?;
    inserted.into_iter().try_for_each(|i| out.object(&Object::Inserted(i)))
}

fn render(inserted: &[Inserted], now: Duration, width: Option<usize>) -> String {
    if inserted.is_empty() {
        return "nothing is inserted anywhere\n".to_owned();
    }
    let mut table = Table::new()
        .shrinking("HOST")
        .right("PID")
        .left("HELD BY")
        .right("POINTS")
        .right("CODE")
        .right("FOR")
        .right("COST")
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
            kept(i).into(),
            Cell::styled(i.identity.as_str(), DIM),
        ]);
    }
    table.render(width)
}

/// How many measurements stay without a client; of how many is only known of the answering engine's own.
fn kept(i: &Inserted) -> String {
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
        let inserted = Inserted {
            host: None,
            pid: 4712,
            holder: "ingraftd 812".to_owned(),
            points: 13_900,
            bytes: 600_000,
            since_ns: 1_000_000_000,
            identity: "thread id in libc".to_owned(),
            cost_ns_per_s: Some(3_000_000.0),
            measurements: vec![1, 2],
            kept: 1,
        };
        expect![[r#"
             PID  HELD BY       POINTS       CODE    FOR   COST  KEPT    THREADS BY
            4712  ingraftd 812  13,900  585.9 KiB  2 min  0.3 %  1 of 2  thread id in libc
        "#]]
        .assert_eq(&anstream::adapter::strip_str(&render(&[inserted], Duration::from_secs(130), None)).to_string());
        assert_eq!(render(&[], Duration::ZERO, None), "nothing is inserted anywhere\n");
    }
}
