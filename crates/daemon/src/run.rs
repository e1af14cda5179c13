//! The daemon from its start to its end: log, engine, addresses, signals.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use ingraft_engine::{Engine, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tonic::transport::server::Connected;
use tonic::transport::{Certificate, Identity, Server, ServerTlsConfig};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt;

use crate::auth::{Access, TokenCell};
use crate::config::{ConfigError, Flags, Settings, TlsFiles};
use crate::core::{Core, Host};
use crate::listen::{Accept, Address, ListenError, UnixSocket, connections};
use crate::rpc;

/// How long connections may take to end after the engine has ended.
const GOODBYE: Duration = Duration::from_secs(2);
/// A client that does not answer for this long, after being asked for as long, is gone; its measurements are removed.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Why the daemon does not start.
#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}\n{hint}", hint = .0.hint)]
    Engine(#[from] Error),
    #[error(transparent)]
    Listen(#[from] ListenError),
    #[error("cannot listen at {0}: {1}")]
    Tcp(Address, io::Error),
    #[error("cannot read the TLS file {0}: {1}")]
    TlsFile(std::path::PathBuf, io::Error),
    #[error("cannot serve TLS: {0}")]
    Tls(#[from] tonic::transport::Error),
    #[error("cannot offer reflection: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error("the log filter `{0}` is malformed: {1}")]
    Filter(String, tracing_subscriber::filter::ParseError),
    #[error("cannot start: {0}")]
    Io(#[from] io::Error),
}

impl StartError {
    /// 2 for what the configuration says, 1 for what the machine says.
    fn status(&self) -> u8 {
        match self {
            StartError::Config(_) | StartError::Filter(..) => 2,
            _ => 1,
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
        .with(tracing_subscriber::fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr))
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let follow = |settings: &Settings| match self::filter(settings) {
        Ok(filter) => drop(log.reload(filter)),
        Err(e) => tracing::error!("{e}"),
    };
    let status = runtime.block_on(serve(flags, settings, follow));
    // A call of the engine may hang in its thread: it ends with the process.
    runtime.shutdown_timeout(GOODBYE);
    status
}

fn filter(settings: &Settings) -> Result<EnvFilter, StartError> {
    settings.log.parse().map_err(|e| StartError::Filter(settings.log.clone(), e))
}

async fn serve(flags: &Flags, settings: Settings, follow: impl Fn(&Settings)) -> Result<ExitCode, StartError> {
    // Before anything else: a signal must not find us with something in a target and no way to hear it.
    let mut signals = Signals::new()?;
    let engine = engine(&settings).await?;
    let core = Core::new(engine, Host::Daemon);
    core.start_keeper();
    let token = settings.token.clone().map(TokenCell::new);
    let mut servers = Servers { core: &core, settings: &settings, token: token.as_ref(), tasks: JoinSet::new() };
    let mut lines = String::new();
    for address in &settings.listen {
        let address = servers.open(address).await?;
        lines += &format!("listening on {address}\n");
    }
    let mut tasks = servers.tasks;
    // Nobody may be there to read it.
    let _ = io::stdout().write_all(lines.as_bytes()).and_then(|()| io::stdout().flush());
    notify(sd_notify::NotifyState::Ready);

    let mut settings = settings;
    while let Event::Reload = signals.next().await {
        if let Some(new) = reload(flags, &settings, token.as_ref()) {
            follow(&new);
            settings = new;
        }
    }
    notify(sd_notify::NotifyState::Stopping);
    Ok(end(&core, &mut tasks).await)
}

/// Starts the engine and takes over what a dead one left.
async fn engine(settings: &Settings) -> Result<Engine, StartError> {
    let config = ingraft_engine::Config {
        state_dir: settings.state_dir.clone(),
        program: Host::Daemon.program().to_owned(),
        max_overhead: settings.max_overhead,
        clock: settings.clock,
    };
    let started = tokio::task::spawn_blocking(move || {
        let engine = Engine::start(config)?;
        let recovered = engine.recover();
        Ok::<_, Error>((engine, recovered))
    });
    let (engine, recovered) = started.await.map_err(io::Error::other)??;
    for target in recovered {
        match target {
            Ok(found) => tracing::info!(pid = found.pid.0, points = found.points, kept = found.kept, "taken over"),
            Err(e) => tracing::error!(reason = e.reason, "not taken over: {e}; {}", e.hint),
        }
    }
    Ok(engine)
}

/// Reads the configuration again. A mistake leaves everything as it was.
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
    // What needs a restart is still as it was.
    Some(Settings { token: new.token, log: new.log, ..old.clone() })
}

async fn end(core: &Core, tasks: &mut JoinSet<()>) -> ExitCode {
    let mut status = ExitCode::SUCCESS;
    for removed in core.close().await {
        match removed {
            Ok(removed) => tracing::info!(pid = removed.pid.0, restored = removed.text_restored, "removed"),
            Err(e) => {
                tracing::error!(reason = e.reason, "not removed: {e}; {}", e.hint);
                status = ExitCode::FAILURE;
            }
        }
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(GOODBYE, all).await.is_err() {
        tracing::warn!("some clients did not let go of their connections");
        tasks.shutdown().await;
    }
    status
}

/// The servers, one task for each address.
struct Servers<'a> {
    core: &'a Core,
    settings: &'a Settings,
    token: Option<&'a TokenCell>,
    tasks: JoinSet<()>,
}

impl Servers<'_> {
    /// Listens at an address and answers it with the port that was picked.
    async fn open(&mut self, address: &Address) -> Result<Address, StartError> {
        let failed = |e| StartError::Tcp(address.clone(), e);
        match address {
            Address::Unix(path) => {
                let socket = UnixSocket::bind(path, self.settings.socket_mode, self.settings.socket_group.as_deref())?;
                let listener = UnixListener::from_std(socket.listener.try_clone()?)?;
                self.serve(Server::builder(), Access::Peer, listener, Some(socket)).await?;
                Ok(address.clone())
            }
            Address::Http(at) => {
                let token = self.token.ok_or_else(|| ConfigError::NoToken(address.clone()))?;
                let listener = TcpListener::bind(at).await.map_err(failed)?;
                let bound = listener.local_addr()?;
                self.serve(Server::builder(), Access::Token(token.clone()), listener, None).await?;
                Ok(Address::Http(bound))
            }
            Address::Https { host, port } => {
                let files = self.settings.tls.as_ref().ok_or_else(|| ConfigError::NoTls(address.clone()))?;
                let server = Server::builder().tls_config(tls(files)?)?;
                let listener = TcpListener::bind(format!("{host}:{port}")).await.map_err(failed)?;
                let port = listener.local_addr()?.port();
                self.serve(server, Access::Certificate, listener, None).await?;
                Ok(Address::Https { host: host.clone(), port })
            }
        }
    }

    async fn serve<A>(
        &mut self,
        server: Server,
        access: Access,
        listener: A,
        socket: Option<UnixSocket>,
    ) -> Result<(), StartError>
    where
        A: Accept + Sync,
        A::Connection: Connected + AsyncRead + AsyncWrite + Unpin,
    {
        let server = server
            .http2_keepalive_interval(Some(KEEPALIVE))
            .http2_keepalive_timeout(Some(KEEPALIVE))
            .add_routes(rpc::routes(self.core, &access).await?);
        let mut closing = self.core.closing();
        let until = async move { closing.wait().await };
        let serving = server.serve_with_incoming_shutdown(connections(listener), until);
        self.tasks.spawn(async move {
            if let Err(e) = serving.await {
                tracing::error!("a server has ended: {e}");
            }
            drop(socket);
        });
        Ok(())
    }
}

fn tls(files: &TlsFiles) -> Result<ServerTlsConfig, StartError> {
    let read = |path: &std::path::PathBuf| std::fs::read(path).map_err(|e| StartError::TlsFile(path.clone(), e));
    let identity = Identity::from_pem(read(&files.cert)?, read(&files.key)?);
    Ok(ServerTlsConfig::new().identity(identity).client_ca_root(Certificate::from_pem(read(&files.client_ca)?)))
}

fn notify(state: sd_notify::NotifyState<'_>) {
    if let Err(e) = sd_notify::notify(&[state]) {
        tracing::warn!("cannot tell the service manager: {e}");
    }
}

/// What the daemon is told by signals.
enum Event {
    Reload,
    End,
}

struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Event {
        tokio::select! {
            _ = self.hangup.recv() => Event::Reload,
            _ = self.terminate.recv() => Event::End,
            _ = self.interrupt.recv() => Event::End,
        }
    }
}
