//! The ingraft command line: commands, tables and lines of JSON. Commands reach every engine through gRPC, the one inside this program too;
//! this crate does not know how a session with a target works.

#![forbid(unsafe_code)]
#![warn(clippy::too_many_lines)]

mod args;
mod command;
mod conn;
mod demo;
mod exit;
#[cfg(test)]
mod fake;
mod measure;
mod objects;
mod output;
mod perfetto;
mod picture;
mod signals;

use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use args::{Cli, Command, Common, Format};
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use conn::{Engines, Use};
use exit::{Failure, Stop};
use ingraft_api::ContextMetric;
use measure::CommandContext;
use output::Output;
use signals::Signals;

/// Time that threads of the engine get to end after everything else has ended.
const GOODBYE: Duration = Duration::from_millis(20);

/// Runs the command line of this process and returns its exit status.
pub fn main() -> ExitCode {
    let started = Instant::now();
    let words: Vec<OsString> = std::env::args_os().collect();
    match Cli::try_parse_from(&words) {
        Ok(cli) => {
            let format = cli.common.format;
            run(cli, started).unwrap_or_else(|stop| output::end(stop, format))
        }
        Err(error) => wrong_usage(&error, &words),
    }
}

/// Runs a command. Returns the exit status of the program that the command started, if it has ended, else 0.
fn run(cli: Cli, started: Instant) -> Result<ExitCode, Stop> {
    // The demo's server is measured itself, so it must have only the threads that it reports.
    if matches!(cli.command, Command::DemoServer) {
        return demo::server::run().map(|()| ExitCode::SUCCESS);
    }
    if matches!(cli.command, Command::ForwardOutput) {
        return output::forward::forward().map(|()| ExitCode::SUCCESS);
    }
    cli.check()?;
    // The file of a profile or a trace gets that, not the text.
    let saves = cli.command.saves();
    let file = cli.common.output.as_deref().filter(|_| !saves);
    let mut out = Output::open(cli.common.format, file, cli.common.record_fd)?;
    let Some(command) = without_engine(cli.command, cli.common.format, &mut out)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(|e| {
        Failure::failed(format!("cannot start threads: {e}"), "raise the limit of processes (ulimit -u)")
    })?;
    let status = Cell::new(0);
    let result = runtime.block_on(with_engines(command, &cli.common, (started, &status), &mut out));
    // If a call of the engine hangs, it ends with the process.
    runtime.shutdown_timeout(GOODBYE);
    result.map(|()| ExitCode::from(status.get()))
}

/// Runs a command that needs no engine; returns any other command.
fn without_engine(command: Command, format: Format, out: &mut Output) -> Result<Option<Command>, Stop> {
    match command {
        Command::Check(args) if !args.lower => command::mdl::check(&args, format, out)?,
        Command::Fmt(args) => command::mdl::fmt(&args, format, out)?,
        Command::Replay(args) => command::replay::run(&args, format, out)?,
        Command::Report(args) => command::report::run(&args, format, out)?,
        Command::Completions { shell, program } => command::manual::completions(shell, program, out)?,
        Command::Man { dir } => command::manual::man(dir.as_deref(), out)?,
        command => return Ok(Some(command)),
    }
    Ok(None)
}

async fn with_engines(
    command: Command,
    common: &Common,
    (started, status): (Instant, &Cell<u8>),
    out: &mut Output,
) -> Result<(), Stop> {
    let mut engines = Engines::connect(common, purpose(&command)).await?;
    let context = CommandContext { engines: &engines, common, started, status };
    let result = match command {
        Command::Ps(args) => command::ps::run(args, &engines, common, out).await,
        Command::Functions(args) => command::functions::run(args, &engines, common, out).await,
        Command::Inspect(args) => command::inspect::run(args, context, out).await,
        Command::Where(args) => command::locate::run(&args, &engines, common, out).await,
        Command::Diagnose(args) => command::diagnose::run(args, context, out).await,
        Command::Hot(args) => command::hot::run(args, context, out).await,
        Command::Count(args) => command::count::run(args, context, out).await,
        Command::Latency(args) => command::latency::run(args, context, out).await,
        Command::Callers(args) => command::callers::run(args, context, out).await,
        Command::Hist(args) => command::hist::run(args, context, out).await,
        Command::Print(args) => command::print::run(args, context, out).await,
        Command::Slow(args) => command::slow::run(args, context, out).await,
        Command::Profile(args) => command::profile::run(args, context, out).await,
        Command::Heap(args) => {
            let metrics = [ContextMetric::LiveBytes, ContextMetric::AllocatedBytes];
            command::contexts::view(args, &metrics, context, out).await
        }
        Command::Locks(args) => command::contexts::view(args, &[ContextMetric::LockTime], context, out).await,
        Command::Offcpu(args) => command::contexts::view(args, &[ContextMetric::WaitTime], context, out).await,
        Command::Trace(args) => command::trace::run(args, context, out).await,
        Command::Watch(args) => command::watch::run(args, context, out).await,
        Command::Metrics(args) => command::metrics::run(args, &engines, common, out).await,
        Command::Read(args) => command::read::run(args, &engines, common, out).await,
        Command::Status(_) => command::status::run(&engines, common, out).await,
        Command::Detach(args) => command::detach::run(args, &engines, common, out).await,
        Command::Demo(args) => demo::run(args, context, out).await,
        Command::Check(args) => command::lower::check(args, &engines, common, out).await,
        Command::Fmt(_)
        | Command::Replay(_)
        | Command::Report(_)
        | Command::Completions { .. }
        | Command::Man { .. }
        | Command::DemoServer
        | Command::ForwardOutput => Ok(()),
    };
    let result = wait_for_others(&mut engines, result, common.format).await;
    engines.close().await;
    result
}

/// Returns the use that a command makes of an engine.
fn purpose(command: &Command) -> Use {
    match command {
        Command::Detach(_) => Use::Removes,
        Command::Count(_)
        | Command::Latency(_)
        | Command::Callers(_)
        | Command::Hist(_)
        | Command::Print(_)
        | Command::Slow(_)
        | Command::Diagnose(_)
        | Command::Profile(_)
        | Command::Heap(_)
        | Command::Locks(_)
        | Command::Offcpu(_)
        | Command::Trace(_)
        | Command::Watch(_)
        | Command::Inspect(_) => Use::Measures,
        Command::Hot(args) if args.calls || !args.target.command.is_empty() => Use::Measures,
        _ => Use::Reads,
    }
}

/// Waits until no other command uses the engine of this one, or until a signal asks for the end.
async fn wait_for_others(engines: &mut Engines, result: Result<(), Stop>, format: Format) -> Result<(), Stop> {
    let others = engines.others();
    if others.is_empty() {
        return result;
    }
    // The wait may be long, so a failure is reported before it.
    let result = match result {
        Err(Stop::Failure(failure)) => {
            output::report(&failure, format);
            Err(Stop::Reported(failure.exit))
        }
        other => other,
    };
    let mut signals = Signals::take()?;
    output::warn(&output::words::waits_for(&others), format);
    tokio::select! {
        () = engines.deserted() => {}
        () = signals.asked() => {}
    }
    result
}

/// Reports wrong usage in two lines, or prints the help that was asked for.
fn wrong_usage(error: &clap::Error, words: &[OsString]) -> ExitCode {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        let asked = error.exit_code() == 0;
        // A closed output is no failure.
        let _closed = error.print();
        return if asked { ExitCode::SUCCESS } else { exit::code(exit::Exit::Usage) };
    }
    output::end(usage_failure(error, words).into(), asked_format(words))
}

fn usage_failure(error: &clap::Error, words: &[OsString]) -> Failure {
    // The first paragraph states the problem; tips, usage and the pointer to --help follow.
    let text = error.to_string();
    let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
    let suggestion = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand, ContextKind::SuggestedValue]
        .into_iter()
        .find_map(|kind| match error.get(kind)? {
            ContextValue::String(s) => Some(s.clone()),
            ContextValue::Strings(list) => list.first().cloned(),
            _ => None,
        });
    let known = <Cli as clap::CommandFactory>::command();
    let command = words
        .iter()
        .skip(1)
        .filter_map(|w| w.to_str())
        .find(|w| known.get_subcommands().any(|c| c.get_name() == *w))
        .map(|name| format!(" {name}"))
        .unwrap_or_default();
    let hint = match suggestion {
        Some(s) => format!("did you mean `{s}`? `ingraft{command} --help` shows all"),
        None => format!("`ingraft{command} --help` shows what it takes"),
    };
    Failure::usage(what.split_whitespace().collect::<Vec<_>>().join(" "), hint)
}

/// The format that was asked for, as far as wrong arguments show it.
fn asked_format(words: &[OsString]) -> Format {
    let words: Vec<&str> = words.iter().filter_map(|w| w.to_str()).take_while(|w| *w != "--").collect();
    let json = words.contains(&"--format=json") || words.windows(2).any(|pair| pair == ["--format", "json"]);
    if json { Format::Json } else { Format::Table }
}

#[cfg(test)]
mod tests;
