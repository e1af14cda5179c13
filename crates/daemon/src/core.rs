//! State that all services share: the engine, the program that serves it, the leases, and whether the engine is closing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use ingraft_api::Reason;
use ingraft_engine::{Engine, Error, Removed, Undertaking};
use ingraft_wire::ProtocolFailure;
use tokio::sync::{RwLock, Semaphore, watch};

use crate::audit::Audit;
use crate::failure::failed;
use crate::keeper::{self, Keeper};
use crate::quota::{CountedCall, Payer, TURNS};
use crate::recorder::HistoryRecorder;

/// Least time between two samples of a stream.
pub const INTERVAL_MIN: Duration = Duration::from_millis(1);
/// Number of readings that wait for a slow client before the oldest is dropped.
pub const BACKLOG: usize = 16;

/// Time for calls of the engine in progress to finish after [`Core::close`] begins.
const CALLS_GRACE: Duration = Duration::from_secs(10);
/// Time between two looks whether only insertions that were given up are in progress.
const GIVING_UP: Duration = Duration::from_millis(5);
/// Time for the engine, after the calls in progress, to remove all measurements that are not kept.
const REMOVAL_GRACE: Duration = Duration::from_secs(20);

/// Additional time after [`REMOVAL_GRACE`], after which [`Core::close`] no longer waits for the engine.
const GOODBYE: Duration = Duration::from_secs(2);

/// Maximum number of calls of one user that build long lists at the same time.
const LISTS: u32 = 4;

/// The program that serves the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServingProgram {
    /// The command line, whose embedded engine serves one user.
    CommandLine,
    /// The daemon, which serves several users.
    Daemon,
}

impl ServingProgram {
    /// The name of the program.
    pub fn program(self) -> &'static str {
        match self {
            ServingProgram::CommandLine => "ingraft",
            ServingProgram::Daemon => "ingraftd",
        }
    }
}

/// Handle to the state that all services share. Clones are cheap.
#[derive(Clone)]
pub struct Core {
    shared: Arc<CoreState>,
}

struct CoreState {
    engine: Engine,
    host: ServingProgram,
    keeper: Arc<Keeper>,
    recorder: HistoryRecorder,
    audit: Arc<Audit>,
    /// Number of bytes of MDL definitions that the daemon keeps for all clients.
    defined: Mutex<usize>,
    closing: watch::Sender<bool>,
    /// Lock that every call which may change a target holds shared. [`Core::close`] holds it exclusively, so that no call inserts anything
    /// after that.
    changes: Arc<RwLock<()>>,
    calls: Arc<OpenCalls>,
    /// Insertions in progress, and some that have ended.
    undertakings: Mutex<Vec<Weak<Undertaking>>>,
}

/// Calls of the engine in progress, each with the name of the function that makes it and the time of its beginning.
#[derive(Default)]
struct OpenCalls {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, (&'static str, Instant)>>,
}

impl OpenCalls {
    fn open(&self) -> MutexGuard<'_, BTreeMap<u64, (&'static str, Instant)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call as open until the returned value is dropped.
    fn note(self: &Arc<Self>, what: &'static str) -> OpenCall {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.open().insert(number, (what, Instant::now()));
        OpenCall { calls: Arc::clone(self), number }
    }
}

/// A call that is in progress.
struct OpenCall {
    calls: Arc<OpenCalls>,
    number: u64,
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.calls.open().remove(&self.number);
    }
}

/// Returns the name of the function that makes a call, from the name of the type of its closure.
fn caller_of<F>(_: &F) -> &'static str {
    let name = std::any::type_name::<F>();
    name.split("::{{closure}}").next().unwrap_or(name)
}

/// Receiver of the announcement that the engine ends.
#[derive(Clone)]
pub struct Closing(watch::Receiver<bool>);

impl Closing {
    /// Returns when the engine begins to end.
    pub async fn wait(&mut self) {
        // The sender exists as long as the core. An error means that the core is gone, so the engine has ended.
        drop(self.0.wait_for(|closing| *closing).await);
    }
}

impl Core {
    /// Creates the shared state for an engine.
    pub fn new(engine: Engine, host: ServingProgram) -> Self {
        let shared = CoreState {
            engine,
            host,
            keeper: Arc::default(),
            recorder: HistoryRecorder::default(),
            audit: Arc::default(),
            defined: Mutex::default(),
            closing: watch::Sender::new(false),
            changes: Arc::default(),
            calls: Arc::default(),
            undertakings: Mutex::default(),
        };
        Core { shared: Arc::new(shared) }
    }

    /// Returns the engine, for calls that do not block.
    pub fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Returns the program that serves the engine.
    pub fn host(&self) -> ServingProgram {
        self.shared.host
    }

    /// Returns the leases.
    pub fn keeper(&self) -> &Arc<Keeper> {
        &self.shared.keeper
    }

    /// Returns the recorder of histories of values.
    pub fn recorder(&self) -> &HistoryRecorder {
        &self.shared.recorder
    }

    /// Returns the audit log of measurements.
    pub fn audit(&self) -> &Arc<Audit> {
        &self.shared.audit
    }

    /// Returns the number of bytes of MDL definitions that the daemon keeps for all clients. The guard locks it while a client adds
    /// definitions.
    pub fn defined(&self) -> MutexGuard<'_, usize> {
        self.shared.defined.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver of the announcement that the engine ends.
    pub fn closing(&self) -> Closing {
        Closing(self.shared.closing.subscribe())
    }

    /// Starts the task that removes expired measurements.
    pub fn start_keeper(&self) {
        tokio::spawn(keeper::keep_house(self.clone()));
    }

    /// Calls the engine on a blocking thread. If its caller is cancelled, the call still runs to its end. A panic of the engine ends only
    /// this call.
    pub async fn engine_call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, ProtocolFailure> {
        self.engine_value(call).await?.map_err(failed)
    }

    /// Calls the engine as [`Core::engine_call`] does, for a call that returns no error of the engine. The call first waits for one of its
    /// user's turns, so that the calls of one user do not occupy all threads.
    pub async fn engine_value<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, ProtocolFailure> {
        self.engine_turns(1, call).await
    }

    /// Calls the engine as [`Core::engine_value`] does, for a call that may need an unknown, large amount of memory. Only few such calls of
    /// one user run at the same time.
    pub async fn engine_list<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, ProtocolFailure> {
        self.engine_turns(TURNS / LISTS, call).await
    }

    async fn engine_turns<T: Send + 'static>(
        &self,
        turns: u32,
        call: impl FnOnce(&Engine) -> T + Send + 'static,
    ) -> Result<T, ProtocolFailure> {
        let behalf = behalf();
        let turn = match &behalf {
            // The semaphore is never closed, so this does not fail.
            Some(behalf) => Arc::clone(&behalf.turns).acquire_many_owned(turns).await.ok(),
            None => None,
        };
        let changes = self.shared.changes.clone();
        let guard = changes.try_read_owned().map_err(|_| shutting_down())?;
        if *self.shared.closing.borrow() {
            return Err(shutting_down());
        }
        let shared = self.shared.clone();
        let noted = shared.calls.note(caller_of(&call));
        tokio::task::spawn_blocking(move || {
            let _held = (guard, turn, noted, behalf);
            call(&shared.engine)
        })
        .await
        .map_err(|e| {
            ProtocolFailure::new(
                Reason::Bug,
                format!("the engine failed in an unforeseen way: {e}"),
                "please report this with the log; `ingraft detach` restores the target",
            )
        })
    }

    /// Ends the engine. Streams end, calls in progress finish, and measurements that are not kept are removed. Later calls are refused.
    /// Calls and removals that take too long are reported and abandoned; the journal has their records.
    pub async fn close(&self) -> Vec<Result<Removed, Error>> {
        self.close_within(CALLS_GRACE, REMOVAL_GRACE).await
    }

    /// Begins an insertion. It is given up when the engine ends.
    pub fn undertake(&self) -> Arc<Undertaking> {
        let undertaking = Arc::new(Undertaking::default());
        let mut all = self.undertakings();
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&undertaking));
        undertaking
    }

    fn undertakings(&self) -> MutexGuard<'_, Vec<Weak<Undertaking>>> {
        self.shared.undertakings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up all insertions. Returns whether all calls in progress are such insertions and will never touch their targets, and the
    /// engine has no other target. Then the process may end without them.
    fn gives_all_up(&self) -> bool {
        let running = self.undertakings().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
        let untouched = running.iter().filter(|undertaking| undertaking.give_up()).count();
        let engine = &self.shared.engine;
        untouched > 0 && self.shared.calls.open().len() <= untouched && engine.targets() <= untouched
    }

    async fn close_within(&self, calls: Duration, removal: Duration) -> Vec<Result<Removed, Error>> {
        self.shared.closing.send_replace(true);
        let quiet = tokio::time::timeout(calls, self.shared.changes.clone().write_owned());
        tokio::pin!(quiet);
        let guard = loop {
            if self.gives_all_up() {
                return Vec::new();
            }
            tokio::select! {
                guard = &mut quiet => break guard,
                () = tokio::time::sleep(GIVING_UP) => {}
            }
        };
        if guard.is_err() {
            for (call, since) in self.shared.calls.open().values() {
                let seconds = since.elapsed().as_secs();
                tracing::warn!(call = *call, seconds, "a call of the engine does not end; the end goes on without it");
            }
        }
        let shared = self.shared.clone();
        let (tell, removed) = tokio::sync::oneshot::channel();
        // Use a separate thread, because calls that hang may have taken all threads of the runtime.
        let spawned = std::thread::Builder::new().name("end".into()).spawn(move || {
            let _guard = guard;
            drop(tell.send(shared.engine.shutdown(removal)));
        });
        // The engine limits the time of its own end. This timeout covers the case that it cannot get a lock.
        let why = match (spawned, tokio::time::timeout(removal + GOODBYE, removed).await) {
            (Err(e), _) => format!("no thread can be started to end the engine: {e}"),
            (_, Ok(Ok(removed))) => return removed,
            (_, Ok(Err(_))) => "the engine's end failed in an unforeseen way".to_owned(),
            (_, Err(_)) => "the engine does not end".to_owned(),
        };
        let hint = "what it has inserted is in the journal: the next start, or `ingraft detach --all`, restores it";
        vec![Err(Error::new(Reason::ShutdownTimeout, why, hint))]
    }
}

/// The user on whose behalf a task runs.
#[derive(Clone)]
pub struct Behalf {
    /// Semaphore with the user's turns at the engine.
    pub turns: Arc<Semaphore>,
    /// Holder whose quota pays for the data that is kept for the call.
    pub payer: Payer,
    /// The call. It counts towards the user's quota while any work is done or any data is kept for it, even if its client is gone.
    pub call: Arc<Mutex<CountedCall>>,
}

tokio::task_local! {
    static BEHALF: Behalf;
}

/// Returns the payer of the data that the current task keeps; `None` if the task runs for the program itself.
pub fn payer() -> Option<Payer> {
    BEHALF.try_with(|behalf| behalf.payer.clone()).ok()
}

fn behalf() -> Option<Behalf> {
    BEHALF.try_with(Behalf::clone).ok()
}

/// Runs a task on behalf of a user.
pub fn on_behalf<T>(behalf: Behalf, task: impl Future<Output = T>) -> impl Future<Output = T> {
    BEHALF.scope(behalf, task)
}

/// Spawns a task that runs on behalf of the same user as the current one.
pub fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    match behalf() {
        Some(behalf) => drop(tokio::spawn(on_behalf(behalf, task))),
        None => drop(tokio::spawn(task)),
    }
}

/// Returns the failure with which calls and streams end while the engine ends.
pub fn shutting_down() -> ProtocolFailure {
    ProtocolFailure::new(
        Reason::ShuttingDown,
        "the engine is shutting down",
        "measurements that are not kept are being removed; try again when it runs again",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::{QuotaHolder, Quotas, ResourceTable};

    fn engine(directory: &std::path::Path) -> Engine {
        let config = ingraft_engine::Config {
            state_dir: directory.to_owned(),
            program: "ingraftd".into(),
            max_overhead: 1.0,
            clock: ingraft_engine::ClockChoice::Auto,
        };
        Engine::start(config).unwrap()
    }

    /// If a cancelled call did not count until its end, a user could have any number of calls running by cancelling them repeatedly.
    #[test]
    fn a_call_that_was_cancelled_counts_until_its_work_ends() {
        let directory = tempfile::tempdir().unwrap();
        let core = Core::new(engine(directory.path()), ServingProgram::Daemon);
        let table = ResourceTable::new(Quotas::default(), 1 << 20);
        let alice = QuotaHolder::User(4_000_001);
        let calls = || table.used(alice).iter().find(|(key, ..)| *key == "max-user-calls").map(|(_, _, used)| *used);
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (release, hanging) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let call = table.call(alice).unwrap();
            let behalf = Behalf { turns: call.turns(), payer: call.payer(), call: Arc::new(Mutex::new(call)) };
            let (begun, ended) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
            let (tell_begun, tell_ended) = (Arc::clone(&begun), Arc::clone(&ended));
            let work = async move {
                let work = core.engine_value(move |_| {
                    tell_begun.notify_one();
                    // An error means that the test has dropped the sender to release this call.
                    let _ = hanging.recv();
                });
                drop(work.await);
                tell_ended.notify_one();
            };
            let asking = tokio::spawn(on_behalf(behalf, async move {
                spawn(work);
                std::future::pending::<()>().await;
            }));
            begun.notified().await;
            asking.abort();
            assert!(asking.await.unwrap_err().is_cancelled());
            assert_eq!(calls(), Some(1), "it is still at work");
            drop(release);
            ended.notified().await;
            while calls() != Some(0) {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_call_that_hangs_does_not_keep_it_from_ending() {
        let directory = tempfile::tempdir().unwrap();
        let engine = engine(directory.path());
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (release, hanging) = std::sync::mpsc::channel::<()>();
        runtime.block_on(async {
            let core = Core::new(engine, ServingProgram::Daemon);
            let begun = Arc::new(tokio::sync::Notify::new());
            let (caller, tell) = (core.clone(), Arc::clone(&begun));
            let call = tokio::spawn(async move {
                caller
                    .engine_value(move |_| {
                        tell.notify_one();
                        hanging.recv()
                    })
                    .await
            });
            begun.notified().await;
            let what: Vec<_> = core.shared.calls.open().values().map(|(what, _)| *what).collect();
            assert!(matches!(*what, [name] if name.contains("a_call_that_hangs")), "{what:?}");
            let removed = core.close_within(Duration::from_millis(50), Duration::from_millis(50)).await;
            assert!(removed.is_empty());
            assert!(!call.is_finished());
            drop(release);
            assert!(call.await.unwrap().unwrap().is_err());
            assert!(core.shared.calls.open().is_empty());
        });
    }
}
