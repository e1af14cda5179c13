//! Counts of the arrivals at each block of a function, by a measurement of a given time.

use std::collections::BTreeMap;
use std::time::Duration;

use ingraft_api::{EnableRequest, Enabled, PairInfo, Reading, Terms};
use ingraft_model::{PartName, Pid};

use crate::args::{Format, InspectArgs};
use crate::conn::{Client, InsertionRequest, RequestTarget};
use crate::exit::{Failure, Stop};
use crate::measure::{CommandContext, announcement};
use crate::objects::code::Inspected;
use crate::objects::refused::unmeasured;
use crate::objects::{Object, RemovedObject};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};
use crate::signals::Signals;

/// Metric that counts arrivals at a block.
const EXECUTIONS: &str = "executions";

/// Time between two checks whether the target has ended.
const LOOK: Duration = Duration::from_millis(200);

/// The process and the command that a measurement is for.
pub(super) struct About<'a> {
    pub(super) client: &'a Client,
    pub(super) target: &'a RequestTarget,
    pub(super) args: &'a InspectArgs,
    pub(super) context: &'a CommandContext<'a>,
}

impl About<'_> {
    /// Counts the blocks of these functions for a time, or until Ctrl-C or the end of the target. Returns the functions with their counts. If
    /// woven code is wanted, it is that of this measurement too.
    pub(super) async fn count(
        &self,
        functions: Vec<Inspected>,
        duration: Duration,
        out: &mut Output,
    ) -> Result<Vec<Inspected>, Stop> {
        let Some(pid) = functions.first().map(|function| function.graph.id.pid) else { return Ok(functions) };
        let About { client, target, args, context } = self;
        let format = context.common.format;
        let is_picture = args.dot || args.svg;
        let mut signals = Signals::take()?;
        let request = request(pid, &functions);
        let mut progress = Progress::new("inserting", format);
        let (client, enabled) = &tokio::select! {
            enabled = client.enable(&request, &mut progress) => enabled?,
            () = signals.asked() => return Err(Failure::failed("interrupted before anything was counted", "run it again").into()),
        };
        drop(progress);
        let refused = unmeasured(&enabled.pairs, &enabled.refused);
        if !refused.is_empty() {
            output::warn(&words::refused(&refused, &enabled.pairs, format), format);
        }
        enabled.warnings.iter().for_each(|what| output::warn(what, format));
        // From here on, the measurement is removed whatever happens.
        let attach_ms = context.started.elapsed().as_secs_f64() * 1e3;
        let announced = if is_picture { Ok(()) } else { out.object(&announcement(enabled, client.host(), attach_ms)) };
        let waited = match announced {
            Ok(()) => wait(client, enabled, duration, &mut signals).await.map_err(Stop::from),
            Err(stop) => Err(stop),
        };
        let mut functions = functions;
        if args.disassembly && waited.is_ok() {
            let mut progress = Progress::new("reading the program", format);
            // Without the woven code, the rest of the answer is still right.
            if let Ok(again) = client.inspect(target, &args.function, super::wanted(args), &mut progress).await {
                functions = super::records(again, client);
            }
        }
        let (answer, _) = client.remove(enabled.id, enabled.pairs.len()).await?;
        let reading = waited?;
        annotate(&mut functions, &enabled.pairs, answer.last.as_ref().unwrap_or(&reading));
        let removed = RemovedObject::new(&answer, client.host());
        removed.warnings.iter().for_each(|what| output::warn(&words::disturbed(pid, &removed.host, what), format));
        if !is_picture {
            out.object(&Object::Removed(removed))?;
        }
        Ok(functions)
    }
}

/// The request to count all blocks of functions.
fn request(pid: i32, functions: &[Inspected]) -> InsertionRequest {
    let pattern = |function: &Inspected| format!("{}+{:#x}#*", function.graph.id.module, function.start);
    let measure = EnableRequest {
        functions: functions.iter().map(pattern).collect(),
        function_metrics: vec!["calls".to_owned()],
        ..EnableRequest::default()
    };
    InsertionRequest { target: RequestTarget::Pid(pid), measure, terms: Terms::default() }
}

/// Waits for the end of the time, a signal, or the end of the target. Returns the last values.
async fn wait(
    client: &Client,
    enabled: &Enabled,
    duration: Duration,
    signals: &mut Signals,
) -> Result<Reading, Failure> {
    let end = tokio::time::Instant::now() + duration;
    loop {
        let next = end.min(tokio::time::Instant::now() + LOOK);
        let asked = tokio::select! {
            () = tokio::time::sleep_until(next) => false,
            () = signals.asked() => true,
        };
        let gone = !std::path::Path::new(&format!("/proc/{}", enabled.pid.0)).exists() && client.host().is_none();
        if asked || gone || tokio::time::Instant::now() >= end {
            return client.read(enabled.id, enabled.pairs.len()).await;
        }
    }
}

/// Writes the present counts of measurements of this engine into the blocks that they count. Measurements that the caller may not read are
/// left out.
pub(super) async fn present(client: &Client, functions: &mut [Inspected], format: Format) {
    let is_counted = |function: &Inspected| function.points.iter().any(|point| point.woven && point.kind == "block");
    let Some(pid) = functions.iter().find(|function| is_counted(function)).map(|f| f.graph.id.pid) else { return };
    let mut progress = Progress::new("reading the counts", format);
    let Ok(inserted) = client.inserted(&mut progress).await else { return };
    for measurement in inserted.into_iter().filter(|i| i.pid == Pid(pid)).flat_map(|i| i.measurements) {
        let Ok(pairs) = client.measured(measurement).await else { continue };
        if let Ok(reading) = client.read(measurement, pairs.len()).await {
            annotate(functions, &pairs, &reading);
        }
    }
}

/// Writes the counts into the blocks.
fn annotate(functions: &mut [Inspected], pairs: &[PairInfo], reading: &Reading) {
    let mut counts: BTreeMap<(&str, u64, String), i64> = BTreeMap::new();
    for (pair, value) in pairs.iter().zip(&reading.values) {
        if let (Some(function), Some(PartName::Block(block))) = (&pair.function, PartName::of(&pair.pair.focus))
            && pair.refused.is_empty()
            && pair.pair.metric == EXECUTIONS
        {
            counts.insert((function.module.as_str(), function.offset.0, block.in_name()), value.value);
        }
    }
    for function in functions {
        let (module, start) = (function.graph.id.module.clone(), function.start);
        for block in &mut function.blocks {
            let count = counts.get(&(module.as_str(), start, block.block.clone()));
            block.count = count.copied().or(block.count);
        }
    }
}
