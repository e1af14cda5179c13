//! Configuration of the daemon. A flag takes precedence over the environment (`INGRAFTD_*`), and the environment over the TOML file.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ingraft_engine::{ClockChoice, MAX_OVERHEAD, UnknownClock};
use serde::Deserialize;

use crate::auth::{AuthToken, TokenError};
use crate::listen::{AddressError, ListenAddress};
use crate::quota::Quotas;

/// Address at which the daemon listens if none is configured.
pub const LISTEN_DEFAULT: &str = "unix:/run/ingraft/ingraftd.sock";
const SOCKET_MODE_DEFAULT: u32 = 0o600;
const LOG_DEFAULT: &str = "info";
/// Most series of measured values for Prometheus if none is configured.
const MAX_SERIES: usize = 20_000;

/// Flags of the command line, and the environment variables that stand for them.
#[derive(Clone, Debug, Default, clap::Parser)]
#[command(
    name = "ingraftd",
    version,
    about = "Keeps instrumentation of running processes and serves it to clients over gRPC",
    after_help = "Addresses: unix:/PATH (mode 0600), http://127.0.0.1:PORT (needs --token-file), https://HOST:PORT (needs --tls-cert, \
                  --tls-key, --client-ca). PORT 0 picks one. The daemon prints `listening on ADDRESS` for each when it is ready.\n\
                  Metrics: http://ADDR:PORT/metrics with the token (--token-file); off the loopback https, with the TLS files too.\n\
                  SIGTERM removes all measurements that were not asked to stay and ends; SIGHUP reads file and token again."
)]
pub struct Flags {
    /// Configuration file (TOML) with the long names of these flags as keys
    #[arg(long, value_name = "FILE", env = "INGRAFTD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address to listen at; repeatable [default: unix:/run/ingraft/ingraftd.sock]
    #[arg(long, value_name = "URI", env = "INGRAFTD_LISTEN", value_delimiter = ',')]
    pub listen: Vec<String>,
    /// Directory of journal and cache [default: INGRAFT_STATE_DIR, else /var/lib/ingraft as root, else ~/.local/state/ingraft]
    #[arg(long, value_name = "DIR", env = "INGRAFTD_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// File that holds the token for http addresses, readable by its owner only
    #[arg(long, value_name = "FILE", env = "INGRAFTD_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
    /// Permission bits of Unix sockets, octal [default: 0600]
    #[arg(long, value_name = "MODE", env = "INGRAFTD_SOCKET_MODE")]
    pub socket_mode: Option<String>,
    /// Group of Unix sockets
    #[arg(long, value_name = "GROUP", env = "INGRAFTD_SOCKET_GROUP")]
    pub socket_group: Option<String>,
    /// Certificate chain for https addresses (PEM)
    #[arg(long, value_name = "FILE", env = "INGRAFTD_TLS_CERT")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of that certificate (PEM)
    #[arg(long, value_name = "FILE", env = "INGRAFTD_TLS_KEY")]
    pub tls_key: Option<PathBuf>,
    /// Certificates of those who may sign client certificates (PEM)
    #[arg(long, value_name = "FILE", env = "INGRAFTD_CLIENT_CA")]
    pub client_ca: Option<PathBuf>,
    /// Filter of the log on stderr, e.g. `debug` or `info,ingraft_engine=debug` [default: info]
    #[arg(long, value_name = "FILTER", env = "INGRAFTD_LOG")]
    pub log: Option<String>,
    /// Most that a measurement without a limit of its own may cost, in percent of one processor [default: 5]
    #[arg(long, value_name = "PERCENT", env = "INGRAFTD_MAX_OVERHEAD")]
    pub max_overhead: Option<f64>,
    /// The clock of timers: tsc (the time stamp counter), vdso (the kernel's, by clock_gettime), or auto: tsc where the kernel trusts it [default: auto]
    #[arg(long, value_name = "CLOCK", env = "INGRAFTD_CLOCK")]
    pub clock: Option<String>,
    /// Most connections in all [default: 256, but at most a quarter of the files that may be open]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_CONNECTIONS")]
    pub max_connections: Option<usize>,
    /// Most connections of one user [default: 64]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_USER_CONNECTIONS")]
    pub max_user_connections: Option<usize>,
    /// Most calls in progress of one user, streams included [default: 1000]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_USER_CALLS")]
    pub max_user_calls: Option<usize>,
    /// Most measurements of one user [default: 1024]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_USER_MEASUREMENTS")]
    pub max_user_measurements: Option<usize>,
    /// Most metric-focus pairs of one user's measurements [default: 250000]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_USER_PAIRS")]
    pub max_user_pairs: Option<usize>,
    /// Most histories of one user's measurements, of 32 KiB at most [default: 4096]
    #[arg(long, value_name = "N", env = "INGRAFTD_MAX_USER_HISTORIES")]
    pub max_user_histories: Option<usize>,
    /// Most bytes of metric definitions that are kept for everybody [default: 4194304]
    #[arg(long, value_name = "BYTES", env = "INGRAFTD_MAX_DEFINITIONS")]
    pub max_definitions: Option<usize>,
    /// Address at which Prometheus reads all values, at /metrics; off the loopback interface with the TLS files [default: none]
    #[arg(long, value_name = "ADDR:PORT", env = "INGRAFTD_METRICS")]
    pub metrics: Option<String>,
    /// Serve the metrics without a token, on the loopback interface only
    #[arg(long, env = "INGRAFTD_METRICS_OPEN")]
    pub metrics_open: bool,
    /// Most series of measured values for Prometheus; what is left out is counted [default: 20000]
    #[arg(long, value_name = "N", env = "INGRAFTD_METRICS_MAX_SERIES")]
    pub metrics_max_series: Option<usize>,
    /// Check the configuration, say what is wrong, and end
    #[arg(long)]
    pub check_config: bool,
}

/// The configuration file, with the long names of the flags as keys. An unknown key is an error, because it is mostly a misspelling.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Document {
    #[serde(default)]
    listen: Vec<String>,
    state_dir: Option<PathBuf>,
    token_file: Option<PathBuf>,
    socket_mode: Option<String>,
    socket_group: Option<String>,
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
    log: Option<String>,
    max_overhead: Option<f64>,
    clock: Option<String>,
    max_connections: Option<usize>,
    max_user_connections: Option<usize>,
    max_user_calls: Option<usize>,
    max_user_measurements: Option<usize>,
    max_user_pairs: Option<usize>,
    max_user_histories: Option<usize>,
    max_definitions: Option<usize>,
    metrics: Option<String>,
    metrics_open: Option<bool>,
    metrics_max_series: Option<usize>,
}

/// The configuration of the daemon, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Addresses to listen at; at least one.
    pub listen: Vec<ListenAddress>,
    /// Directory of journal and cache.
    pub state_dir: PathBuf,
    /// Token for http addresses.
    pub token: Option<AuthToken>,
    /// Permission bits of Unix sockets.
    pub socket_mode: u32,
    /// Group of Unix sockets.
    pub socket_group: Option<String>,
    /// Files for https addresses; `None` unless all three are given.
    pub tls: Option<TlsFiles>,
    /// Filter of the log.
    pub log: String,
    /// Largest cost, in percent of one processor, of a measurement without a limit of its own.
    pub max_overhead: f64,
    /// The clock of timers.
    pub clock: ClockChoice,
    /// Quotas of the users.
    pub quotas: Quotas,
    /// Listener for Prometheus; `None` if there is none.
    pub metrics: Option<MetricsSettings>,
}

/// The listener for Prometheus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricsSettings {
    /// Address to listen at.
    pub address: SocketAddr,
    /// Whether no token is needed; only with an address of the loopback interface.
    pub open: bool,
    /// Most series of measured values; at least 1.
    pub max_series: usize,
}

/// The files that TLS needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificate chain (PEM).
    pub cert: PathBuf,
    /// Private key of the certificate (PEM).
    pub key: PathBuf,
    /// Certificates of the authorities that may sign client certificates (PEM).
    pub client_ca: PathBuf,
}

/// Reason why the configuration is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error that the kernel returned.
        source: std::io::Error,
    },
    /// The file is not valid TOML, or has an unknown key.
    #[error("{path}: {source}")]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Error of the parser, with line, excerpt and reason.
        source: Box<toml::de::Error>,
    },
    /// An address to listen at is malformed.
    #[error("listen: {0}")]
    Address(#[from] AddressError),
    /// The token file is unusable.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The mode is no octal number of permission bits.
    #[error("socket-mode: `{0}` is no octal mode such as 0600 or 0660")]
    Mode(String),
    /// The limit of cost is not a number above 0.
    #[error("max-overhead: {0} is no number of percent above 0")]
    MaxOverhead(f64),
    /// A quota is 0, so that no client could be served.
    #[error("{0}: 0 is no quota: nobody could be served")]
    Quota(&'static str),
    /// The word names no clock.
    #[error("clock: {0}")]
    Clock(#[from] UnknownClock),
    /// An http address is given without a token.
    #[error("{0} needs a token: name a file that holds one with token-file")]
    NoToken(ListenAddress),
    /// An https address is given without all three files.
    #[error("{0} needs client certificates: name the files tls-cert, tls-key and client-ca")]
    NoTls(ListenAddress),
    /// The address for Prometheus is malformed.
    #[error("metrics: `{0}` is no address\nwrite an IP address and a port, e.g. 127.0.0.1:9464")]
    MetricsAddress(String),
    /// An address for Prometheus is given without a token.
    #[error(
        "metrics: {0} needs a token\nname a file that holds one with token-file, or set metrics-open to let every user of this machine read \
         the values"
    )]
    MetricsNoToken(SocketAddr),
    /// An address for Prometheus outside of the loopback interface is given without all three files.
    #[error(
        "metrics: {0} is not on the loopback interface, so it needs TLS\nname the files tls-cert, tls-key and client-ca, or listen at \
         127.0.0.1:PORT"
    )]
    MetricsNoTls(SocketAddr),
    /// Metrics are to be open to everyone outside of the loopback interface.
    #[error(
        "metrics-open: {0} is not on the loopback interface, so it needs the token\nleave out metrics-open, or listen at 127.0.0.1:PORT"
    )]
    MetricsOpen(SocketAddr),
    /// No state directory is configured, and the user has no home directory.
    #[error("there is no home directory to keep journal and cache in: name one with state-dir")]
    NoStateDir,
}

impl Settings {
    /// Combines flags, environment and file, and checks them.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let document = match &flags.config {
            Some(path) => read(path)?,
            None => Document::default(),
        };
        Settings::resolve(flags.clone(), document)
    }

    fn resolve(flags: Flags, file: Document) -> Result<Self, ConfigError> {
        let mut listen = if flags.listen.is_empty() { file.listen } else { flags.listen };
        if listen.is_empty() {
            listen.push(LISTEN_DEFAULT.to_owned());
        }
        let listen: Vec<ListenAddress> = listen.iter().map(|text| text.trim().parse()).collect::<Result<_, _>>()?;
        let token_file = flags.token_file.or(file.token_file);
        let socket_mode = flags.socket_mode.or(file.socket_mode);
        let files =
            (flags.tls_cert.or(file.tls_cert), flags.tls_key.or(file.tls_key), flags.client_ca.or(file.client_ca));
        let tls = match files {
            (Some(cert), Some(key), Some(client_ca)) => Some(TlsFiles { cert, key, client_ca }),
            _ => None,
        };
        let default = Quotas::default();
        let quota = |name, flag: Option<usize>, file: Option<usize>, default| match flag.or(file).unwrap_or(default) {
            0 => Err(ConfigError::Quota(name)),
            n => Ok(n),
        };
        let quotas = Quotas {
            connections: quota("max-connections", flags.max_connections, file.max_connections, default.connections)?,
            user_connections: quota(
                "max-user-connections",
                flags.max_user_connections,
                file.max_user_connections,
                default.user_connections,
            )?,
            user_calls: quota("max-user-calls", flags.max_user_calls, file.max_user_calls, default.user_calls)?,
            user_measurements: quota(
                "max-user-measurements",
                flags.max_user_measurements,
                file.max_user_measurements,
                default.user_measurements,
            )?,
            user_pairs: quota("max-user-pairs", flags.max_user_pairs, file.max_user_pairs, default.user_pairs)?,
            // Histories and definitions may be limited to 0, so that the daemon keeps none.
            user_histories: flags.max_user_histories.or(file.max_user_histories).unwrap_or(default.user_histories),
            definitions: flags.max_definitions.or(file.max_definitions).unwrap_or(default.definitions),
        };
        let metrics = metrics(
            flags.metrics.or(file.metrics),
            flags.metrics_open || file.metrics_open.unwrap_or(false),
            quota("metrics-max-series", flags.metrics_max_series, file.metrics_max_series, MAX_SERIES)?,
        )?;
        let settings = Settings {
            quotas,
            metrics,
            listen,
            state_dir: flags.state_dir.or(file.state_dir).or_else(state_dir).ok_or(ConfigError::NoStateDir)?,
            token: token_file.map(|path| AuthToken::read(&path)).transpose()?,
            socket_mode: socket_mode.map_or(Ok(SOCKET_MODE_DEFAULT), mode)?,
            socket_group: flags.socket_group.or(file.socket_group),
            tls,
            log: flags.log.or(file.log).unwrap_or_else(|| LOG_DEFAULT.to_owned()),
            max_overhead: flags.max_overhead.or(file.max_overhead).map_or(Ok(MAX_OVERHEAD), percent)?,
            clock: flags.clock.or(file.clock).map_or(Ok(ClockChoice::Auto), |word| word.parse())?,
        };
        settings.check()?;
        Ok(settings)
    }

    /// Checks that each address has what its callers are identified by.
    fn check(&self) -> Result<(), ConfigError> {
        for address in &self.listen {
            match address {
                ListenAddress::Http(_) if self.token.is_none() => return Err(ConfigError::NoToken(address.clone())),
                ListenAddress::Https { .. } if self.tls.is_none() => return Err(ConfigError::NoTls(address.clone())),
                ListenAddress::Unix(_) | ListenAddress::Http(_) | ListenAddress::Https { .. } => {}
            }
        }
        let Some(MetricsSettings { address, open, .. }) = self.metrics else { return Ok(()) };
        match (address.ip().is_loopback(), open) {
            (false, _) if self.tls.is_none() => Err(ConfigError::MetricsNoTls(address)),
            (false, true) => Err(ConfigError::MetricsOpen(address)),
            (_, false) if self.token.is_none() => Err(ConfigError::MetricsNoToken(address)),
            (true | false, _) => Ok(()),
        }
    }

    /// Returns the keys whose change takes effect only after a restart.
    pub fn needs_restart(&self, new: &Settings) -> Vec<&'static str> {
        let changed = [
            ("listen", self.listen != new.listen),
            ("state-dir", self.state_dir != new.state_dir),
            ("socket-mode", self.socket_mode != new.socket_mode),
            ("socket-group", self.socket_group != new.socket_group),
            ("max-overhead", self.max_overhead != new.max_overhead),
            ("clock", self.clock != new.clock),
            ("max-connections and other quotas", self.quotas != new.quotas),
            ("tls-cert, tls-key, client-ca", self.tls != new.tls),
            ("metrics, metrics-open, metrics-max-series", self.metrics != new.metrics),
        ];
        changed.iter().filter(|(_, changed)| *changed).map(|(word, _)| *word).collect()
    }
}

fn read(path: &Path) -> Result<Document, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    toml::from_str(&text).map_err(|source| ConfigError::Malformed { path: path.to_owned(), source: Box::new(source) })
}

/// Reads the settings of the listener for Prometheus; `None` without an address.
fn metrics(address: Option<String>, open: bool, max_series: usize) -> Result<Option<MetricsSettings>, ConfigError> {
    let Some(text) = address else { return Ok(None) };
    let numeric = text.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    let address = numeric.as_deref().unwrap_or(&text).parse().map_err(|_| ConfigError::MetricsAddress(text.clone()))?;
    Ok(Some(MetricsSettings { address, open, max_series }))
}

fn percent(percent: f64) -> Result<f64, ConfigError> {
    if percent > 0.0 { Ok(percent) } else { Err(ConfigError::MaxOverhead(percent)) }
}

fn mode(text: String) -> Result<u32, ConfigError> {
    match u32::from_str_radix(text.trim_start_matches("0o"), 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        Ok(_) | Err(_) => Err(ConfigError::Mode(text)),
    }
}

/// Returns the directory in which both programs keep journal and cache if no flag gives one; `None` if the user has no home directory.
pub fn state_dir() -> Option<PathBuf> {
    state_dir_of(nix::unistd::geteuid().is_root(), |name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn state_dir_of(root: bool, environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(dir) = environment("INGRAFT_STATE_DIR") {
        return Some(dir.into());
    }
    if root {
        return Some("/var/lib/ingraft".into());
    }
    let state = environment("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(environment("HOME")?).join(".local/state")))?;
    Some(state.join("ingraft"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;

    use super::*;

    fn resolve(flags: &[&str], file: &str) -> Result<Settings, String> {
        let flags = Flags::parse_from(["ingraftd", "--state-dir=/s"].iter().chain(flags));
        let file = toml::from_str(file).map_err(|e| e.message().to_owned())?;
        Settings::resolve(flags, file).map_err(|e| e.to_string())
    }

    #[test]
    fn flags_go_before_the_file() {
        let file = "listen = ['unix:/a', 'unix:/b']\nsocket-mode = '0660'\nlog = 'debug'\nstate-dir = '/f'";
        let settings = resolve(&[], file).unwrap();
        assert_eq!(settings.listen, [ListenAddress::Unix("/a".into()), ListenAddress::Unix("/b".into())]);
        assert_eq!((settings.socket_mode, settings.log.as_str()), (0o660, "debug"));
        assert_eq!(settings.state_dir, Path::new("/s"));
        let settings = resolve(&["--listen=unix:/c", "--socket-mode=600", "--log=warn"], file).unwrap();
        assert_eq!(settings.listen, [ListenAddress::Unix("/c".into())]);
        assert_eq!((settings.socket_mode, settings.log.as_str()), (0o600, "warn"));
    }

    #[test]
    fn nothing_said_is_the_documented_default() {
        let settings = resolve(&[], "").unwrap();
        assert_eq!(settings.listen, [LISTEN_DEFAULT.parse().unwrap()]);
        assert_eq!((settings.socket_mode, settings.socket_group, settings.token), (0o600, None, None));
        assert_eq!(settings.quotas, Quotas::default());
    }

    #[test]
    fn quotas_are_set_by_flags_and_file() {
        let file = "max-connections = 7\nmax-user-pairs = 5\nmax-user-histories = 0";
        let quotas = resolve(&["--max-user-pairs=6", "--max-definitions=9"], file).unwrap().quotas;
        let expected = Quotas { connections: 7, user_pairs: 6, user_histories: 0, definitions: 9, ..Quotas::default() };
        assert_eq!(quotas, expected);
    }

    #[test]
    fn metrics_are_off_unless_an_address_is_given() {
        assert_eq!(resolve(&["--metrics-open"], "metrics-max-series = 7").unwrap().metrics, None);
        let metrics = |flags: &[&str], file| {
            let MetricsSettings { address, open, max_series } =
                resolve(flags, file).unwrap().metrics.expect("an address");
            (address.to_string(), open, max_series)
        };
        let file = "metrics = 'localhost:9464'\nmetrics-open = true\nmetrics-max-series = 7";
        assert_eq!(metrics(&[], file), ("127.0.0.1:9464".into(), true, 7));
        let flags = ["--metrics=[::1]:0", "--metrics-open"];
        assert_eq!(metrics(&flags, ""), ("[::1]:0".into(), true, 20_000));
        let old = resolve(&flags, "").unwrap();
        let changed = old.needs_restart(&resolve(&["--metrics=[::1]:1", "--metrics-open"], "").unwrap());
        assert_eq!(changed, ["metrics, metrics-open, metrics-max-series"]);
    }

    #[test]
    fn mistakes_are_named() {
        for (flags, file, expected) in [
            (&[][..], "lisen = []", "unknown field `lisen`"),
            (&[], "listen = 7", "invalid type: integer `7`"),
            (&["--listen=tcp:1"], "", "listen: `tcp:1` is no address"),
            (&["--listen=http://127.0.0.1:0"], "", "http://127.0.0.1:0 needs a token"),
            (&["--listen=https://h:1", "--tls-cert=c"], "", "https://h:1 needs client certificates"),
            (&["--socket-mode=9"], "", "socket-mode: `9` is no octal mode"),
            (&["--socket-mode=7777"], "", "socket-mode: `7777` is no octal mode"),
            (&[], "clock = 'hpet'", "clock: `hpet` is no clock"),
            (&["--max-user-calls=0"], "", "max-user-calls: 0 is no quota"),
            (&[], "max-user-pairs = -1", "invalid value: integer `-1`"),
            (&["--metrics=host:1"], "", "metrics: `host:1` is no address\nwrite an IP address and a port"),
            (&["--metrics=127.0.0.1:0"], "", "metrics: 127.0.0.1:0 needs a token\nname a file"),
            (
                &["--metrics=[::]:9464"],
                "",
                "metrics: [::]:9464 is not on the loopback interface, so it needs TLS\nname",
            ),
            (
                &["--metrics=10.0.0.1:1", "--tls-cert=c", "--tls-key=k", "--client-ca=a", "--metrics-open"],
                "",
                "metrics-open: 10.0.0.1:1 is not on the loopback interface, so it needs the token\nleave out",
            ),
            (
                &["--metrics=10.0.0.1:1", "--tls-cert=c", "--tls-key=k", "--client-ca=a"],
                "",
                "metrics: 10.0.0.1:1 needs a token",
            ),
            (&["--metrics-max-series=0"], "", "metrics-max-series: 0 is no quota"),
            (&["--token-file=/no/such"], "", "cannot read the token file /no/such"),
        ] {
            let error = resolve(flags, file).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn a_changed_token_needs_no_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let settings = |secret: &str| {
            std::fs::write(&path, secret).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            resolve(&["--listen=http://127.0.0.1:0", "--token-file", path.to_str().unwrap()], "").unwrap()
        };
        let (old, new) = (settings("a secret of mine".replace(' ', "-").as_str()), settings("another-secret-16"));
        assert_ne!(old.token, new.token);
        assert!(old.needs_restart(&new).is_empty());
        let other = Settings { socket_mode: 0o777, ..new };
        assert_eq!(old.needs_restart(&other), ["socket-mode"]);
    }

    #[test]
    fn the_state_directory_follows_the_environment() {
        let of = |root, vars: &[(&str, &str)]| {
            let found = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            state_dir_of(root, found).map(|p| p.display().to_string())
        };
        assert_eq!(of(true, &[("HOME", "/root")]).as_deref(), Some("/var/lib/ingraft"));
        assert_eq!(of(true, &[("INGRAFT_STATE_DIR", "/x")]).as_deref(), Some("/x"));
        assert_eq!(of(false, &[("HOME", "/h")]).as_deref(), Some("/h/.local/state/ingraft"));
        assert_eq!(of(false, &[("HOME", "/h"), ("XDG_STATE_HOME", "/y")]).as_deref(), Some("/y/ingraft"));
        assert_eq!(of(false, &[]), None);
    }
}
