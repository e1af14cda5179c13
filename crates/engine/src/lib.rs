//! Sessions with targets: one driver per process, metric-focus pairs, plans, journal, sampling. Knows no gRPC and no terminal;
//! runs embedded in the command line and in the daemon. All calls block: call them from threads, not from tasks.

#![forbid(unsafe_code)]

pub mod api;
pub mod error;

pub use api::*;
pub use error::{Error, ErrorKind};

pub use ingraft_mdl::{Diagnostic, Severity};
use ingraft_model::{MetricInfo, Pid};

/// The engine: cheap to clone, shared by all callers.
#[derive(Clone)]
pub struct Engine {}

impl Engine {
    /// Starts an engine: checks that the state directory can be written, loads the shipped metrics.
    pub fn start(_config: Config) -> Result<Engine, Error> {
        unimplemented!()
    }

    /// Takes over what dead engines with this state directory left in living targets: what was asked to stay goes on and is listed,
    /// the rest is removed.
    pub fn recover(&self) -> Vec<Result<Inserted, Error>> {
        unimplemented!()
    }

    /// The processes of this machine whose name matches the glob (all without one), and whether each can be attached to.
    pub fn processes(&self, _glob: Option<&str>, _caller: Caller) -> Result<Vec<ProcessEntry>, Error> {
        unimplemented!()
    }

    /// Functions of a target that match any of the patterns (all without one). `progress` is called now and then with a line of text.
    pub fn functions(
        &self,
        _target: &TargetSpec,
        _patterns: &[String],
        _caller: Caller,
        _progress: &dyn Fn(&str),
    ) -> Result<(Pid, Vec<FunctionEntry>), Error> {
        unimplemented!()
    }

    /// The metrics that are known: shipped, defined in this engine, and in these additional sources.
    pub fn metrics(&self, _definitions: &[(String, String)]) -> Result<Vec<MetricInfo>, Error> {
        unimplemented!()
    }

    /// Checks MDL sources (name, text) without keeping them.
    pub fn check(&self, _definitions: &[(String, String)]) -> Vec<Diagnostic> {
        unimplemented!()
    }

    /// Defines metrics for all later requests; all or nothing.
    pub fn define(&self, _definitions: &[(String, String)]) -> Result<Vec<Diagnostic>, Error> {
        unimplemented!()
    }

    /// Inserts a measurement.
    pub fn enable(
        &self,
        _request: &EnableRequest,
        _caller: Caller,
        _progress: &dyn Fn(&str),
    ) -> Result<Enabled, Error> {
        unimplemented!()
    }

    /// Starts a program, inserts a measurement before its first instruction, lets it run.
    pub fn launch(
        &self,
        _request: &LaunchRequest,
        _caller: Caller,
        _progress: &dyn Fn(&str),
    ) -> Result<Enabled, Error> {
        unimplemented!()
    }

    /// What is measured by a measurement, in the order of its values.
    pub fn pairs(&self, _id: MeasurementId, _caller: Caller) -> Result<(Pid, std::sync::Arc<Vec<PairInfo>>), Error> {
        unimplemented!()
    }

    /// Reads the values without stopping the target. After the target's end the last values stay readable until the measurement is removed.
    pub fn read(&self, _id: MeasurementId, _threads: bool, _caller: Caller) -> Result<Reading, Error> {
        unimplemented!()
    }

    /// Removes a measurement; the last one of a target takes everything out of it.
    pub fn remove(&self, _id: MeasurementId, _caller: Caller) -> Result<Removed, Error> {
        unimplemented!()
    }

    /// Sets whether a measurement stays when its client goes away.
    pub fn keep(&self, _id: MeasurementId, _keep: bool, _caller: Caller) -> Result<(), Error> {
        unimplemented!()
    }

    /// What is inserted where, by this engine or by another one that can be seen.
    pub fn status(&self, _caller: Caller) -> Result<Vec<Inserted>, Error> {
        unimplemented!()
    }

    /// Removes everything from a target, also what a dead engine left there. `None` if there was nothing.
    pub fn detach(&self, _target: &TargetSpec, _caller: Caller) -> Result<Option<Removed>, Error> {
        unimplemented!()
    }

    /// Ends: removes every measurement that is not to be kept; kept ones stay in their targets.
    pub fn shutdown(&self) -> Vec<Result<Removed, Error>> {
        unimplemented!()
    }
}
