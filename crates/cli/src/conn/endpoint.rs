//! Opens the channel to an engine from the engine's address.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use ingraft_api::Reason;
use ingraft_model::Pid;
use ingraft_wire::{PROTOCOL, PROTOCOL_HEADER};
use tokio::net::UnixStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

use crate::args::Common;
use crate::exit::{Exit, Failure};

/// Longest time to connect; a daemon that does not accept the connection within it is not running.
const CONNECT: Duration = Duration::from_secs(5);

/// Headers of every request: the protocol's version, and the token if there is one.
#[derive(Clone, Default)]
pub(super) struct RequestHeaders {
    token: Option<MetadataValue<Ascii>>,
}

impl Interceptor for RequestHeaders {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        request.metadata_mut().insert(PROTOCOL_HEADER, MetadataValue::from(PROTOCOL));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

/// Address of a daemon, by the way to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum DaemonAddress {
    Unix(PathBuf),
    /// TCP without TLS: loopback only, with a token.
    Plain(String),
    /// TCP with TLS on both sides.
    Tls(String),
}

fn parse(uri: &str) -> Result<DaemonAddress, Failure> {
    let wrong = |what: String| Failure::usage(what, "write unix:/PATH, http://127.0.0.1:PORT or https://HOST:PORT");
    if let Some(path) = uri.strip_prefix("unix:") {
        // The address has one of two spellings: unix:/p or unix:///p.
        let path = path.strip_prefix("//").unwrap_or(path);
        if !path.starts_with('/') {
            return Err(wrong(format!("`{uri}` names no absolute path")));
        }
        return Ok(DaemonAddress::Unix(PathBuf::from(path)));
    }
    let (address, authority): (fn(String) -> DaemonAddress, &str) = match uri.split_once("://") {
        Some(("http", rest)) => (DaemonAddress::Plain, rest),
        Some(("https", rest)) => (DaemonAddress::Tls, rest),
        _ => return Err(wrong(format!("`{uri}` is no address of a daemon"))),
    };
    if authority.trim_end_matches('/').rsplit_once(':').is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        return Err(wrong(format!("`{uri}` names no port")));
    }
    Ok(address(uri.to_owned()))
}

/// Use that a command makes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// The command measures. Other commands of its user may join its engine.
    Measures,
    /// The command only reads.
    Reads,
    /// The command only removes code. The state directory need not be writable.
    Removes,
}

/// Starts the engine inside this command.
pub(super) async fn embedded(
    common: &Common,
    purpose: Use,
    state_dir: PathBuf,
) -> Result<(Channel, ingraft_daemon::Embedded), Failure> {
    let max_overhead = ingraft_daemon::MAX_OVERHEAD;
    let clock = common.clock.unwrap_or_default();
    let config = ingraft_daemon::Config { state_dir, program: "ingraft".to_owned(), max_overhead, clock };
    let cannot = |why: String| Failure::failed(format!("the engine cannot start: {why}"), "please report this");
    let start = move || match purpose {
        Use::Removes => Ok(ingraft_daemon::Engine::start_for_removal(config)),
        Use::Measures | Use::Reads => ingraft_daemon::Engine::start(config),
    };
    let engine = tokio::task::spawn_blocking(start).await;
    let engine = engine.map_err(|e| cannot(e.to_string()))?;
    let engine = engine.map_err(|e| Failure::from(ingraft_daemon::failure::failed(e)))?;
    let embedded = ingraft_daemon::embedded(engine, purpose == Use::Measures).await.map_err(|e| cannot(chain(&e)))?;
    Ok((embedded.channel(), embedded))
}

/// Directory of the journal and the cache.
pub(super) fn state_dir(common: &Common) -> Result<PathBuf, Failure> {
    if let Some(dir) = &common.state_dir {
        return Ok(dir.clone());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/ingraft"));
    }
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|dir| dir.join("ingraft"))
        .ok_or_else(|| {
            Failure::failed("no directory for the journal: HOME is not set", "name one with --state-dir DIR")
        })
}

/// Connects to a daemon.
pub(super) async fn connect(uri: &str, common: &Common) -> Result<(Channel, RequestHeaders), Failure> {
    let address = parse(uri)?;
    let token = token(common)?;
    let channel = match address {
        DaemonAddress::Unix(path) => unix(uri, &path).await?,
        DaemonAddress::Plain(uri) => dial(&uri, endpoint(&uri)?).await?,
        DaemonAddress::Tls(uri) => {
            let tls = tls(common)?;
            let endpoint = endpoint(&uri)?.tls_config(tls).map_err(|e| {
                Failure::usage(
                    format!("the certificates cannot be used: {}", chain(&e)),
                    "check --tls-ca, --tls-cert and --tls-key",
                )
            })?;
            dial(&uri, endpoint).await?
        }
    };
    Ok((channel, RequestHeaders { token }))
}

fn endpoint(uri: &str) -> Result<Endpoint, Failure> {
    let endpoint = Endpoint::from_shared(uri.to_owned()).map_err(|e| {
        Failure::usage(format!("`{uri}` is no address: {e}"), "write http://127.0.0.1:PORT or https://HOST:PORT")
    })?;
    Ok(endpoint.connect_timeout(CONNECT).tcp_nodelay(true))
}

async fn dial(uri: &str, endpoint: Endpoint) -> Result<Channel, Failure> {
    endpoint.connect().await.map_err(|e| unreachable(uri, &chain(&e)))
}

async fn unix(uri: &str, path: &Path) -> Result<Channel, Failure> {
    // This function first connects to the socket itself, because the errors of the socket are more exact than those of the channel.
    match tokio::time::timeout(CONNECT, UnixStream::connect(path)).await {
        Ok(Ok(_)) => {}
        Ok(Err(e)) if e.kind() == std::io::ErrorKind::PermissionDenied => {
            let hint = "ask for access to the socket (--socket-group of ingraftd), or run as its user";
            return Err(Failure::new(Exit::Denied, format!("not permitted to use {uri}"), hint));
        }
        Ok(Err(e)) => return Err(unreachable(uri, &e.to_string())),
        Err(_) => return Err(unreachable(uri, "no answer")),
    }
    socket(path.to_owned()).await.map_err(|e| unreachable(uri, &chain(&e)))
}

/// Opens a channel on a Unix socket.
async fn socket(path: PathBuf) -> Result<Channel, tonic::transport::Error> {
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The channel needs an authority, but the connector ignores it.
    let endpoint = Endpoint::from_static("http://localhost").connect_timeout(CONNECT);
    endpoint.connect_with_connector(connector).await
}

/// Socket of the engine of another command.
#[derive(Debug)]
pub(super) struct Neighbour {
    /// The opened directory, through which the path leads.
    _folder: File,
    path: PathBuf,
}

impl Neighbour {
    /// Finds the socket of the engine of a process; `None` if that engine has none in this state directory.
    pub(super) fn find(state_dir: &Path, engine: i32) -> Option<Self> {
        let path = ingraft_daemon::socket_path(state_dir, Pid(engine));
        let (folder, path) = ingraft_daemon::short(&path).ok()?;
        fs::symlink_metadata(&path).ok()?;
        Some(Neighbour { _folder: folder, path })
    }

    /// Connects to the engine; `None` if no process of this user listens.
    pub(super) async fn connect(&self) -> Option<Channel> {
        let own = rustix::process::geteuid().as_raw();
        let tried = UnixStream::connect(&self.path).await.ok()?;
        tried.peer_cred().ok().filter(|peer| peer.uid() == own)?;
        socket(self.path.clone()).await.ok()
    }
}

fn unreachable(uri: &str, why: &str) -> Failure {
    let hint = "start ingraftd, or leave --daemon (INGRAFT_DAEMON) out to do without one";
    Failure::failed(format!("no daemon answers at {uri}: {why}"), hint).because(Reason::Unavailable)
}

/// The token. `INGRAFT_TOKEN` may hold the token itself, or name a file as --token-file does.
fn token(common: &Common) -> Result<Option<MetadataValue<Ascii>>, Failure> {
    let Some(path) = &common.token_file else { return Ok(None) };
    let from_environment = std::env::var_os("INGRAFT_TOKEN").is_some_and(|v| v == path.as_os_str());
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(_) if from_environment => path.to_string_lossy().into_owned(),
        Err(e) => {
            let hint = "give a file that holds the daemon's token";
            return Err(Failure::usage(format!("cannot read the token from {}: {e}", path.display()), hint));
        }
    };
    let value = MetadataValue::try_from(format!("Bearer {}", text.trim()));
    let mut value = value.map_err(|_| {
        Failure::usage("the token has characters that cannot be sent", "use the file that ingraftd was given")
    })?;
    value.set_sensitive(true);
    Ok(Some(value))
}

fn tls(common: &Common) -> Result<ClientTlsConfig, Failure> {
    let read = |path: &Option<PathBuf>, flag: &str| -> Result<Vec<u8>, Failure> {
        let hint = "an https daemon needs --tls-ca FILE --tls-cert FILE --tls-key FILE";
        let path = path.as_ref().ok_or_else(|| Failure::usage(format!("{flag} is missing"), hint))?;
        fs::read(path).map_err(|e| Failure::usage(format!("cannot read {}: {e}", path.display()), hint))
    };
    let ca = Certificate::from_pem(read(&common.tls_ca, "--tls-ca")?);
    let identity = Identity::from_pem(read(&common.tls_cert, "--tls-cert")?, read(&common.tls_key, "--tls-key")?);
    Ok(ClientTlsConfig::new().ca_certificate(ca).identity(identity))
}

/// An error with its causes, which say more than the error that tonic wraps around them.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let unix = |p: &str| DaemonAddress::Unix(PathBuf::from(p));
        for (uri, expected) in [
            ("unix:/run/i.sock", Ok(unix("/run/i.sock"))),
            ("unix:///run/i.sock", Ok(unix("/run/i.sock"))),
            ("http://127.0.0.1:7440", Ok(DaemonAddress::Plain("http://127.0.0.1:7440".to_owned()))),
            ("https://host:7440/", Ok(DaemonAddress::Tls("https://host:7440/".to_owned()))),
            ("unix:relative", Err("`unix:relative` names no absolute path")),
            ("https://host", Err("`https://host` names no port")),
            ("/run/i.sock", Err("`/run/i.sock` is no address of a daemon")),
            ("ftp://x:1", Err("`ftp://x:1` is no address of a daemon")),
        ] {
            assert_eq!(parse(uri).map_err(|e| e.what), expected.map_err(str::to_owned), "{uri}");
        }
    }
}
