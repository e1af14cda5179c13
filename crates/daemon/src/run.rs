//! The daemon from start to end: log, engine, addresses, signals.

use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use ingraft_engine::{Engine, Error};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::service::Routes;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::auth::{ListenerAuth, TokenCell};
use crate::call::Serving;
use crate::config::{ConfigError, Flags, MetricsSettings, Settings};
use crate::core::{Core, ServingProgram};
use crate::listen::{Accept, ListenAddress, ListenError, UnixSocket, accept};
use crate::metrics_page::{MetricsAccess, MetricsServer};
use crate::quota::ResourceTable;
use crate::reception::Reception;
use crate::rpc;
use crate::state::{StateError, StateLock};
use crate::tls::{self, TlsError};

/// Time for connections to end after the engine has ended, and for threads to end after that.
const GOODBYE: Duration = Duration::from_secs(2);

/// Reason why the daemon does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}\n{hint}", hint = .0.hint())]
    Engine(#[from] Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot listen at {0}: {1}")]
    Tcp(ListenAddress, io::Error),
    #[error("cannot listen at {0} for metrics: {1}")]
    Metrics(SocketAddr, io::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the log filter `{0}` is malformed: {1}")]
    Filter(String, tracing_subscriber::filter::ParseError),
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    /// Returns the exit status: 2 for an error in the configuration, 1 for an error of the system.
    fn status(&self) -> u8 {
        match self {
            StartError::Config(_) | StartError::Filter(..) => 2,
            StartError::Engine(_)
            | StartError::Listen(_)
            | StartError::Tcp(..)
            | StartError::Metrics(..)
            | StartError::State(_)
            | StartError::Tls(_)
            | StartError::Reflection(_)
            | StartError::Io(_) => 1,
        }
    }
}

/// Runs the daemon with the arguments and the environment of this process.
pub fn main() -> ExitCode {
    let flags = Flags::parse();
    match start(&flags) {
        Ok(status) => status,
        Err(error) => {
            let _ = writeln!(io::stderr(), "ingraftd: {error}");
            ExitCode::from(error.status())
        }
    }
}

fn start(flags: &Flags) -> Result<ExitCode, StartError> {
    let settings = Settings::load(flags)?;
    let filter = filter(&settings)?;
    if flags.check_config {
        let _ = writeln!(io::stdout(), "the configuration is good");
        return Ok(ExitCode::SUCCESS);
    }
    let (filter, log) = reload::Layer::new(filter);
    tracing_subscriber::registry()
        .with(filter)
        .with(
            tracing_subscriber::fmt::layer()
                .fmt_fields(tracing_subscriber::fmt::format::debug_fn(field))
                .with_ansi(io::stderr().is_terminal())
                .with_writer(io::stderr),
        )
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let follow = |settings: &Settings| match self::filter(settings) {
        Ok(filter) => drop(log.reload(filter)),
        Err(e) => tracing::error!("{e}"),
    };
    let mut lock = None;
    let status = runtime.block_on(serve(flags, settings, follow, &mut lock));
    end_runtime(runtime, lock);
    status
}

/// Ends the runtime, and then unlocks the state directory. Until the runtime has ended, a call of the engine may still change a target, so
/// no successor may take the target over. A call that hangs in its thread ends with the process.
fn end_runtime(runtime: Runtime, lock: Option<StateLock>) {
    runtime.shutdown_timeout(GOODBYE);
    drop(lock);
}

/// Writes a field of a log line. Whatever text the field has, the line stays one line, and the text cannot control a terminal.
fn field(writer: &mut Writer<'_>, field: &tracing::field::Field, value: &dyn std::fmt::Debug) -> std::fmt::Result {
    let name = field.name();
    if name != "message" {
        write!(writer, "{name}=")?;
    }
    for c in format!("{value:?}").chars() {
        // Characters that reorder text can change the apparent contents of a line, as control characters can.
        match c {
            c if c.is_control() => write!(writer, "{}", c.escape_unicode())?,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}' => {
                write!(writer, "{}", c.escape_unicode())?;
            }
            c => writer.write_char(c)?,
        }
    }
    // The space separates this field from the next.
    writer.write_char(' ')
}

fn filter(settings: &Settings) -> Result<EnvFilter, StartError> {
    settings.log.parse().map_err(|e| StartError::Filter(settings.log.clone(), e))
}

/// Serves until a signal ends the daemon. Stores the lock of the state directory in `held`.
async fn serve(
    flags: &Flags,
    settings: Settings,
    follow: impl Fn(&Settings),
    held: &mut Option<StateLock>,
) -> Result<ExitCode, StartError> {
    // Install the signal handlers first, so that no signal ends the daemon while it has code in a target.
    let mut signals = DaemonSignals::new()?;
    let (engine, lock) = engine(&settings).await?;
    *held = Some(lock);
    let core = Core::new(engine, ServingProgram::Daemon);
    core.start_keeper();
    let token = settings.token.clone().map(TokenCell::new);
    let (routes, health) = rpc::routes(&core).await?;
    let mut servers = Servers {
        core: &core,
        settings: &settings,
        token: token.as_ref(),
        routes,
        table: ResourceTable::new(settings.quotas, files()?),
        tasks: JoinSet::new(),
    };
    let mut lines = String::new();
    for address in &settings.listen {
        let address = servers.open(address).await?;
        lines += &format!("listening on {address}\n");
    }
    if let Some(metrics) = &settings.metrics {
        let address = servers.open_metrics(metrics).await?;
        lines += &format!("listening on {address}\n");
    }
    let mut tasks = servers.tasks;
    // Ignore errors: the reader of the lines may be gone.
    let _ = io::stdout().write_all(lines.as_bytes()).and_then(|()| io::stdout().flush());
    notify(sd_notify::NotifyState::Ready);

    let mut settings = settings;
    while let SignalAction::Reload = signals.next().await {
        if let Some(new) = reload(flags, &settings, token.as_ref()) {
            follow(&new);
            settings = new;
        }
    }
    notify(sd_notify::NotifyState::Stopping);
    // Clients that check or watch the health learn of the end before any stream ends.
    health.ending().await;
    Ok(end(&core, &mut tasks).await)
}

/// Returns the number of files that this process may open.
pub fn files() -> io::Result<usize> {
    let (soft, _) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE)?;
    Ok(usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Starts the engine, and takes over what a dead daemon left. The state directory is locked while the returned lock exists.
async fn engine(settings: &Settings) -> Result<(Engine, StateLock), StartError> {
    let config = ingraft_engine::Config {
        state_dir: settings.state_dir.clone(),
        program: ServingProgram::Daemon.program().to_owned(),
        max_overhead: settings.max_overhead,
        clock: settings.clock,
    };
    let started = tokio::task::spawn_blocking(move || {
        let directory = config.state_dir.clone();
        let engine = Engine::start(config)?;
        // Take the lock before anything is taken over: the state of a living daemon's targets looks like that of a dead one's.
        let lock = StateLock::take(&directory)?;
        let recovered = engine.recover();
        Ok::<_, StartError>((engine, lock, recovered))
    });
    let (engine, lock, recovered) = started.await.map_err(io::Error::other)??;
    for target in recovered {
        match target {
            Ok(found) => tracing::info!(pid = found.pid.0, points = found.points, kept = found.kept, "taken over"),
            Err(e) => tracing::error!(reason = e.reason.word(), "not taken over: {e}; {}", e.hint()),
        }
    }
    Ok((engine, lock))
}

/// Reads the configuration again. If it has an error, returns `None`, and nothing changes.
fn reload(flags: &Flags, old: &Settings, token: Option<&TokenCell>) -> Option<Settings> {
    let new = match Settings::load(flags) {
        Ok(new) => new,
        Err(e) => {
            tracing::error!("the configuration stays as it was: {e}");
            return None;
        }
    };
    for word in old.needs_restart(&new) {
        tracing::warn!("`{word}` has changed; that takes effect when ingraftd starts again");
    }
    if let (Some(cell), Some(token)) = (token, &new.token) {
        cell.replace(token.clone());
    }
    tracing::info!("the configuration was read again");
    // Settings that need a restart keep their old values.
    Some(Settings { token: new.token, log: new.log, ..old.clone() })
}

async fn end(core: &Core, tasks: &mut JoinSet<()>) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for removed in core.close().await {
        match removed {
            Ok(removed) => {
                core.audit().detached(core.engine(), "ingraftd ends", &removed);
                tracing::info!(pid = removed.pid.0, restored = removed.text_restored, "removed");
            }
            Err(e) => {
                tracing::error!(reason = e.reason.word(), "not removed: {e}; {}", e.hint());
                status = ExitCode::FAILURE;
            }
        }
    }
    core.audit().left();
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE, all).await.is_err() {
        tracing::warn!("some clients did not let go of their connections");
        tasks.shutdown().await;
    }
    status
}

/// The servers of the daemon, with one task for each address.
struct Servers<'a> {
    core: &'a Core,
    settings: &'a Settings,
    token: Option<&'a TokenCell>,
    routes: Routes,
    table: Arc<ResourceTable>,
    tasks: JoinSet<()>,
}

impl Servers<'_> {
    /// Listens at an address, and returns the address with the actual port.
    async fn open(&mut self, address: &ListenAddress) -> Result<ListenAddress, StartError> {
        let failed = |e| StartError::Tcp(address.clone(), e);
        match address {
            ListenAddress::Unix(path) => {
                let socket = UnixSocket::bind(path, self.settings.socket_mode, self.settings.socket_group.as_deref())?;
                let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
                self.serve(None, ListenerAuth::Peer, listener, Some(socket));
                Ok(address.clone())
            }
            ListenAddress::Http(at) => {
                let token = self.token.ok_or_else(|| ConfigError::NoToken(address.clone()))?;
                let listener = TcpListener::bind(at).await.map_err(failed)?;
                let bound = listener.local_addr()?;
                self.serve(None, ListenerAuth::Token(token.clone()), listener, None);
                Ok(ListenAddress::Http(bound))
            }
            ListenAddress::Https { host, port } => {
                let files = self.settings.tls.as_ref().ok_or_else(|| ConfigError::NoTls(address.clone()))?;
                let tls = tls::acceptor(files, "h2")?;
                let listener = TcpListener::bind(format!("{host}:{port}")).await.map_err(failed)?;
                let port = listener.local_addr()?.port();
                self.serve(Some(tls), ListenerAuth::Certificate, listener, None);
                Ok(ListenAddress::Https { host: host.clone(), port })
            }
        }
    }

    /// Listens for readers of the metrics, and returns the address of the page with the actual port.
    async fn open_metrics(&mut self, metrics: &MetricsSettings) -> Result<String, StartError> {
        let MetricsSettings { address, open, max_series } = *metrics;
        let token = || self.token.ok_or(ConfigError::MetricsNoToken(address)).cloned();
        let access = if open { MetricsAccess::Open } else { MetricsAccess::Token(token()?) };
        let tls = match &self.settings.tls {
            _ if address.ip().is_loopback() => None,
            Some(files) => Some(tls::acceptor(files, "http/1.1")?),
            None => return Err(ConfigError::MetricsNoTls(address).into()),
        };
        let scheme = if tls.is_some() { "https" } else { "http" };
        let listener = TcpListener::bind(address).await.map_err(|e| StartError::Metrics(address, e))?;
        let bound = listener.local_addr()?;
        let server = MetricsServer::new(self.core.clone(), Arc::clone(&self.table), access, tls, max_series);
        let closing = self.core.closing();
        self.tasks.spawn(async move {
            let mut open = JoinSet::new();
            accept(listener, closing, |io, origin| {
                while open.try_join_next().is_some() {}
                if let Some(seat) = server.admit(origin) {
                    open.spawn(Arc::clone(&server).serve(io, origin, seat));
                }
            })
            .await;
            while open.join_next().await.is_some() {}
        });
        Ok(format!("{scheme}://{bound}/metrics"))
    }

    fn serve<A: Accept>(
        &mut self,
        tls: Option<TlsAcceptor>,
        access: ListenerAuth,
        listener: A,
        socket: Option<UnixSocket>,
    ) {
        let closing = self.core.closing();
        let serving =
            Serving { routes: self.routes.clone(), access, table: Arc::clone(&self.table), closing: closing.clone() };
        let reception = Arc::new(Reception::new(serving, tls));
        self.tasks.spawn(async move {
            let mut open = JoinSet::new();
            accept(listener, closing, |io, origin| {
                while open.try_join_next().is_some() {}
                if let Some(seat) = reception.admit(origin) {
                    open.spawn(Arc::clone(&reception).serve(io, origin, seat));
                }
            })
            .await;
            while open.join_next().await.is_some() {}
            drop(socket);
        });
    }
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot tell the service manager: {e}");
    }
}

/// Action that a signal requests.
enum SignalAction {
    Reload,
    End,
}

struct DaemonSignals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl DaemonSignals {
    fn new() -> io::Result<Self> {
        Ok(DaemonSignals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.hangup.recv() => SignalAction::Reload,
            _ = self.terminate.recv() => SignalAction::End,
            _ = self.interrupt.recv() => SignalAction::End,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_state_directory_is_locked_as_long_as_anything_runs() {
        let directory = tempfile::tempdir().unwrap();
        let lock = StateLock::take(directory.path()).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let (begun, begins) = std::sync::mpsc::channel();
        let path = directory.path().to_owned();
        let call = runtime.spawn_blocking(move || {
            begun.send(()).unwrap();
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(300) {
                assert!(StateLock::take(&path).is_err(), "a successor could start");
            }
        });
        begins.recv().unwrap();
        end_runtime(runtime, Some(lock));
        let ended = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(call);
        assert!(ended.is_ok(), "{ended:?}");
        assert!(StateLock::take(directory.path()).is_ok());
    }
}
