//! The kinds of measurements, a file or a folder each. What a measurement inserts, how it begins in the stop of its insertion, how it is read,
//! how it grows with libraries that are loaded, and how it ends: a kind tells the session by [`Running`].

mod calls;
mod code;
mod contexts;
mod counts;
mod coverage;
mod event;
pub mod expressions;
mod graph;
mod metrics;
mod paths;
mod prints;
mod profile;
mod shares;
mod slow;
pub mod trace;
mod waits;
mod whole;

use std::any::Any;

use ingraft_model::{FunctionId, Refusal};
use ingraft_report::{SavedProfile, TracedCode, TracedProgram};

use crate::api::{InspectedPath, Kind, MeasurementId, PathChoice, PrintedCalls, TotalsReading};
use crate::error::{Error, Reason};
use crate::program::modules::Modules;
use crate::session::{Running, Session};

use self::contexts::ContextsKind;
use self::counts::CountsKind;
use self::coverage::CoverageKind;
use self::metrics::MetricsKind;
use self::paths::PathsKind;
use self::prints::PrintKind;
use self::profile::functions::no_profile;
use self::shares::SharesKind;
use self::slow::SlowKind;
use self::trace::TraceKind;

/// A measurement of this kind that has not begun.
pub fn new(kind: &Kind) -> Box<dyn Running> {
    match kind {
        Kind::Metrics => Box::new(MetricsKind),
        Kind::Counts(options) => Box::new(CountsKind::new(options)),
        Kind::Coverage(options) => Box::new(CoverageKind::new(*options)),
        Kind::Trace(options) => Box::new(TraceKind::new(options)),
        Kind::Print(options) => Box::new(PrintKind::new(*options)),
        Kind::Contexts(options) if options.is_executed() => Box::new(PathsKind::executed(options)),
        Kind::Contexts(options) => Box::new(ContextsKind::new(options)),
        Kind::Paths(options) => Box::new(PathsKind::new(options)),
        Kind::Shares(options) => Box::new(SharesKind::new(options.clone())),
        Kind::Slow(options) => Box::new(SlowKind::new(options.clone())),
    }
}

/// Counts or coverage of all blocks and edges of a profile's functions, their paths, or their calls by context, at one moment at which all threads are held.
pub fn read_profile(session: &Session, id: MeasurementId) -> Result<SavedProfile, Error> {
    session.with_kind(id, |kind: &dyn Any, at| {
        if let Some(counts) = kind.downcast_ref::<CountsKind>() {
            counts.read(at)
        } else if let Some(coverage) = kind.downcast_ref::<CoverageKind>() {
            coverage.read(at)
        } else if let Some(contexts) = kind.downcast_ref::<ContextsKind>() {
            Ok(contexts.read(at, &contexts.states(at)))
        } else if let Some(paths) = kind.downcast_ref::<PathsKind>() {
            paths.read(at)
        } else {
            Err(no_profile(id))
        }
    })
}

/// The calls that were printed, or were slow, since the last time. Does not stop the target.
pub fn take_printed(session: &Session, id: MeasurementId) -> Result<PrintedCalls, Error> {
    prints::take(session, id).or_else(|| slow::take(session, id)).unwrap_or_else(|| Err(no_print(id)))
}

/// Number of the paths of a function, and the path with a number; `None` if there is none. The same target, function and options give the same
/// numbers as a measurement of paths. Fails if paths of the function cannot be told.
pub fn path_of(
    modules: &Modules,
    function: FunctionId,
    choice: PathChoice,
) -> Result<(u64, Option<InspectedPath>), Refusal> {
    paths::inspected(modules, function, choice)
}

/// The error for a measurement that prints no calls.
fn no_print(id: MeasurementId) -> Error {
    let what = format!("measurement {} prints no calls", id.0);
    Error::new(Reason::NoPrint, what, "read its values instead")
}

/// Event totals of each thread in the functions of counts, at one moment at which all threads are held.
pub fn read_totals(session: &Session, id: MeasurementId) -> Result<TotalsReading, Error> {
    session.with_kind(id, |kind: &dyn Any, at| match kind.downcast_ref::<CountsKind>() {
        Some(counts) => counts::totals::totals(counts, at),
        None => Err(no_profile(id)),
    })
}

/// The program and the functions of a trace, for the beginning of its file.
pub fn traced(session: &Session, id: MeasurementId) -> Result<(TracedProgram, TracedCode), Error> {
    let beginning = |kind: &dyn Any| kind.downcast_ref::<TraceKind>().and_then(TraceKind::beginning);
    session.with_kind(id, |kind, _| beginning(kind).ok_or_else(|| trace::no_trace(id)))
}
