//! `ingraft read`: prints the values of measurements that were left in with `--no-remove`.

use ingraft_api::{Inserted, MeasurementId, PairInfo};
use ingraft_model::Pid;

use super::{count, latency, watch};
use crate::args::{Common, ReadArgs};
use crate::conn::{Client, Engines};
use crate::exit::{Exit, Failure, Stop};
use crate::measure::{MeasurementView, TargetMeasurement};
use crate::objects::{self, Object};
use crate::output::progress::Progress;
use crate::output::{self, DIM, Output, words};

/// Runs the command. Processes are independent: a failure with one does not keep the others from being read.
pub(crate) async fn run(args: ReadArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut worst: Option<Exit> = None;
    for pid in args.pids {
        let result = read(pid, engines, common, out).await;
        match result {
            Ok(()) => {}
            Err(Stop::Failure(failure)) => {
                output::report(&failure, common.format);
                worst.get_or_insert(failure.exit);
            }
            Err(stop) => return Err(stop),
        }
    }
    worst.map_or(Ok(()), |kind| Err(Stop::Reported(kind)))
}

/// Reads the kept measurements of one process, at each host that has some for it.
async fn read(pid: i32, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    let mut others = Vec::new();
    let mut found = false;
    for client in engines.clients() {
        let mut progress = Progress::new("looking at processes", common.format);
        let inserted = client.inserted(&mut progress).await?;
        drop(progress);
        let Some(its) = inserted.into_iter().find(|i| i.pid == Pid(pid)) else { continue };
        if !its.kept_measurements.is_empty() {
            // The engine examines its woven code when it answers this call.
            its.warnings
                .iter()
                .for_each(|what| output::warn(&words::disturbed(pid, &client.host(), what), common.format));
        }
        for measurement in &its.kept_measurements {
            found = true;
            show(client, &its, *measurement, out).await?;
        }
        others.push(its);
    }
    if found { Ok(()) } else { Err(nothing(pid, others.first(), engines.is_embedded()).into()) }
}

async fn show(client: &Client, its: &Inserted, id: MeasurementId, out: &mut Output) -> Result<(), Stop> {
    let (Pid(pid), MeasurementId(measurement)) = (its.pid, id);
    let pairs = client.measured(id).await?;
    let reading = client.read(id, pairs.len()).await?;
    out.text(&format!("{DIM}process {pid}: measurement {measurement}, held by {}{DIM:#}\n", its.holder))?;
    out.object(&Object::Kept(objects::KeptObject { host: client.host(), pid, measurement }))?;
    let site = TargetMeasurement::left_in(client.clone(), (its.pid, id), pairs, reading);
    // Times come with the numbers of calls.
    let all = |metric: &str| {
        let pairs = &site.enabled.pairs;
        let is = |pair: &PairInfo| [metric, latency::COUNTED].contains(&pair.pair.metric.as_str());
        let of_functions = pairs.iter().all(|pair| is(pair) && pair.function.is_some());
        of_functions && pairs.iter().any(|pair| pair.pair.metric == metric)
    };
    let mut view: Box<dyn MeasurementView + Send> = if all("calls") {
        count::view()
    } else if all("latency") {
        latency::view("wall")
    } else if all("cpu_latency") {
        latency::view("cpu")
    } else {
        watch::view()
    };
    view.last(&[site], out)
}

/// The failure if there is nothing to read, with the reason.
fn nothing(pid: i32, inserted: Option<&Inserted>, embedded: bool) -> Failure {
    let failure = match inserted {
        Some(i) if i.kept > 0 && i.holder.ends_with("(dead)") => Failure::new(
            Exit::Failed,
            format!("the values in process {pid} belong to {}", i.holder),
            "start ingraftd with the same --state-dir: it goes on with what was kept, and reads it",
        ),
        Some(i) if i.kept > 0 => Failure::new(
            Exit::Denied,
            format!("the values in process {pid} belong to {}", i.holder),
            "name that daemon with --daemon URI",
        ),
        _ if embedded => Failure::new(
            Exit::NotFound,
            format!("no measurement was left in process {pid}"),
            "measurements are left in by `--no-remove` with --daemon URI; `ingraft status` lists them",
        ),
        _ => Failure::new(
            Exit::NotFound,
            format!("no measurement of this daemon was left in process {pid}"),
            "measurements are left in by `--no-remove`; `ingraft status` lists them",
        ),
    };
    Failure { pid: Some(pid), ..failure }
}
