//! Questions of a session to the kind of a measurement: which pairs it needs, and its part at the insertion, in the rounds of the thread `watch`,
//! when libraries are loaded, and at the end. The session itself knows no kind.

use std::any::Any;

use ingraft_mdl::Library;
use ingraft_model::FunctionId;
use ingraft_process::Target;

use crate::api::{EnableRequest, MeasurementId, Removed};
use crate::error::Error;
use crate::measure::request::{self, Missing, WantedPair};
use crate::pairs::PairKey;
use crate::program::images::ImageStore;
use crate::program::modules::Modules;
use crate::weaving::catch_up::CaughtUp;
use crate::weaving::positions::{Observer, ProgramCounters};

use super::locked::Locked;

/// A measurement of one kind, from its request to its end.
pub(crate) trait Running: Any + Send {
    /// Patterns of functions, besides those of the request, whose modules must be analysed before [`Running::wanted`].
    fn patterns(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The pairs that the request needs now. Called again if further modules were analysed for it, and whenever libraries were loaded.
    fn wanted(&mut self, asked: &KindRequest<'_>) -> Result<Vec<WantedPair>, Error>;

    /// Whether code that only counts comes first, and tells what the other code would cost.
    fn looks_first(&self, request: &EnableRequest) -> bool {
        request.function_metrics.len() > 1
    }

    /// Warnings about what the values will lack in a target with these modules.
    fn warnings(&self, _modules: &Modules) -> Vec<String> {
        Vec::new()
    }

    /// Number of counters to reserve for functions of libraries that the request waits for.
    fn reserved(&self) -> u64 {
        0
    }

    /// Adds to the wanted pairs what depends on the session, right before they are inserted. Returns an observer of the stop in which they
    /// come.
    fn prepare(&mut self, _at: &mut Locked<'_>, _wanted: &mut Vec<WantedPair>) -> Result<Observer, Error> {
        Ok(Observer::default())
    }

    /// Notes that the wanted pairs were inserted.
    fn inserted(&mut self, _at: &mut Locked<'_>, _begun: &mut InsertedPairs<'_>) {}

    /// Undoes [`Running::prepare`] after an insertion that has failed.
    fn failed(&mut self, _at: &mut Locked<'_>) {}

    /// Weaves code into libraries that were loaded since. Returns false if the request is evaluated and inserted again instead.
    fn grown(&mut self, _at: &mut Locked<'_>) -> Result<bool, Error> {
        Ok(false)
    }

    /// Whether libraries that are loaded after the measurement has begun have no part in it. Then it begins in a started program once the libraries are
    /// mapped that the program needs.
    fn needs_libraries(&self) -> bool {
        false
    }

    /// Does periodic work, about ten times a second while there is code.
    fn tick(&mut self, _at: &mut Locked<'_>) {}

    /// Reads what can only be read before the code of the measurement is taken out.
    fn last(&mut self, _at: &mut Locked<'_>) {}

    /// Whether the last values are exact only if they are read before the target ends by itself, because they depend on where its threads are.
    fn reads_before_end(&self) -> bool {
        false
    }

    /// Adds the last values to the answer to a removal, after the code was taken out.
    fn ended(&mut self, _at: &mut Locked<'_>, _removed: &mut Removed) {}
}

/// A request to a kind, and what it is evaluated with.
pub(crate) struct KindRequest<'a> {
    /// The measurement.
    pub id: MeasurementId,
    /// The target.
    pub target: &'a Target,
    /// Modules of the target.
    pub modules: &'a Modules,
    /// Definitions of metrics.
    pub library: &'a Library,
    /// The request, without pairs whose values need no code.
    pub request: &'a EnableRequest,
    /// Treatment of names that nothing in the target has.
    pub missing: Missing,
}

/// The state of the program when code is inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// The program runs.
    Running,
    /// The engine starts the program. Only the loader has run.
    Start,
    /// The program has loaded a library. `ran` tells whether its code may have run already.
    Library { ran: bool },
}

/// An insertion that has succeeded.
pub(crate) struct InsertedPairs<'a> {
    /// Keys of all wanted pairs, with the functions that they are about. The kind may add others that it holds.
    pub keys: &'a mut Vec<(PairKey, Option<FunctionId>)>,
    /// Calls in progress that were caught up.
    pub caught_up: &'a CaughtUp,
    /// Where threads were in the stop.
    pub seen: ProgramCounters,
    /// The state of the program.
    pub occasion: Occasion,
}

impl KindRequest<'_> {
    /// The pairs of the request that need code. Also returns the errors of modules that cannot be analysed. `has_own` tells whether the
    /// request has other pairs.
    pub(super) fn evaluate(
        &self,
        kind: &mut dyn Running,
        images: &ImageStore,
        has_own: bool,
        progress: &dyn Fn(&str),
    ) -> (Vec<Error>, Result<Vec<WantedPair>, Error>) {
        if has_own && self.request.pairs.is_empty() && self.request.functions.is_empty() {
            return (Vec::new(), Ok(Vec::new()));
        }
        let patterns: Vec<String> = kind.patterns().into_iter().map(str::to_owned).collect();
        let places = (self.target, images, self.modules);
        request::evaluate(places, (self.request, &patterns), progress, &mut || kind.wanted(self))
    }
}
