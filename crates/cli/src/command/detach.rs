//! `ingraft detach`: takes everything out of processes, including what a crashed engine left there.

use crate::args::{Common, DetachArgs};
use crate::conn::{Client, Engines, RequestTarget};
use crate::exit::{Exit, Stop};
use crate::measure;
use crate::objects::{LookedObject, Object, RemovedObject};
use crate::output::progress::Progress;
use crate::output::{self, Output, words};
use crate::signals::Signals;

/// Runs the command. Targets are independent: a failure with one target does not keep the others from being restored.
pub(crate) async fn run(args: DetachArgs, engines: &Engines, common: &Common, out: &mut Output) -> Result<(), Stop> {
    // The command keeps the signals to the end, so that Ctrl-C cannot end it between two targets.
    let _signals = Signals::take()?;
    let mut worst: Option<Exit> = None;
    let mut found = false;
    for client in engines.clients() {
        let targets = if let Some(choice) = measure::choice(&args.target, args.all, args.cgroup.as_deref()) {
            let mut progress = Progress::new("looking at processes", common.format);
            client.choose(&choice, &mut progress).await?.into_iter().map(|p| RequestTarget::Pid(p.pid.0)).collect()
        } else if args.all {
            let mut progress = Progress::new("looking at processes", common.format);
            let (state_dir, inserted) = client.look(&mut progress).await?;
            drop(progress);
            let looked = LookedObject { host: client.host(), state_dir };
            out.text(&words::looked(&looked))?;
            out.object(&Object::Looked(looked))?;
            inserted.into_iter().map(|i| RequestTarget::Pid(i.pid.0)).collect()
        } else {
            measure::running(&args.target)
        };
        for target in targets {
            match detach(client, &target, common, out).await {
                Ok(removed) => found |= removed,
                Err(Stop::Failure(failure)) => {
                    output::report(&failure, common.format);
                    worst.get_or_insert(failure.exit);
                }
                Err(stop) => return Err(stop),
            }
        }
    }
    match worst {
        Some(kind) => Err(Stop::Reported(kind)),
        None if found => Ok(()),
        None => out.text("nothing was inserted\n"),
    }
}

async fn detach(client: &Client, target: &RequestTarget, common: &Common, out: &mut Output) -> Result<bool, Stop> {
    let mut progress = Progress::new("removing", common.format);
    let Some(removed) = client.detach(target, &mut progress).await? else { return Ok(false) };
    drop(progress);
    let removed = RemovedObject::new(&removed, client.host());
    out.text(&words::removed(&removed))?;
    if !removed.children_left.is_empty() {
        output::warn(&words::children_left(removed.pid, &removed.children_left), common.format);
    }
    for what in &removed.warnings {
        output::warn(&words::disturbed(removed.pid, &removed.host, what), common.format);
    }
    if let Some(left) = words::memory_left(&removed) {
        output::warn(&left, common.format);
    }
    let differs = (removed.text_restored == Some(false)).then(|| words::not_restored(&removed));
    out.object(&Object::Removed(removed))?;
    differs.map_or(Ok(true), |failure| Err(failure.into()))
}
