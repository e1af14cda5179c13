//! The daemon from the view of its clients: addresses, callers, versions, signals. End-to-end tests check its work on targets.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use ingraft_api::ErrorClass;
use ingraft_wire::v1::daemon_client::DaemonClient;
use ingraft_wire::v1::instrumentation_client::InstrumentationClient;
use ingraft_wire::v1::metrics_client::MetricsClient;
use ingraft_wire::{PROTOCOL, PROTOCOL_HEADER, ProtocolFailure, v1};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Request, Status};

const SECRET: &str = "0123456789abcdef-first";
const PATIENCE: Duration = Duration::from_secs(20);

/// A running daemon, which is ended when this value is dropped.
struct Daemon {
    child: Child,
    addresses: Vec<String>,
}

impl Daemon {
    fn start(dir: &Path, arguments: &[&str]) -> Daemon {
        let log = std::fs::File::create(dir.join("log")).unwrap();
        let mut child = command(dir, arguments).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listens = arguments.iter().filter(|a| a.starts_with("--listen")).count();
        let addresses = (0..listens)
            .map(|_| {
                let line = lines.next().expect("the daemon ended early").unwrap();
                line.strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned()
            })
            .collect();
        Daemon { child, addresses }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(i32::try_from(self.child.id()).unwrap()), signal).unwrap();
    }

    fn ends(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "the daemon does not end");
            std::thread::yield_now();
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ingraftd"));
    command.arg("--state-dir").arg(dir.join("state")).args(arguments);
    for name in std::env::vars_os().map(|(name, _)| name) {
        if name.to_string_lossy().starts_with("INGRAFT") {
            command.env_remove(name);
        }
    }
    command
}

fn secret(dir: &Path, text: &str) -> PathBuf {
    let path = dir.join("token");
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path
}

async fn connect(address: &str) -> Channel {
    let address = address.replacen("unix:", "unix://", 1);
    Endpoint::try_from(address).unwrap().connect().await.unwrap()
}

fn bearing<T>(message: T, token: &str) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

fn reason(status: &Status) -> (ErrorClass, String) {
    let failure = ProtocolFailure::from_status(status);
    assert!(!failure.what.is_empty() && !failure.hint.is_empty(), "{failure:?}");
    (failure.class, failure.reason)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_answers_on_a_socket_and_ends_when_told_to() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("run/d.sock");
    let mut daemon = Daemon::start(dir.path(), &[&format!("--listen=unix://{}", socket.display())]);
    assert_eq!(daemon.addresses, [format!("unix:{}", socket.display())]);
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);

    let channel = connect(&daemon.addresses[0]).await;
    let mut client = DaemonClient::new(channel.clone());
    let version = client.version(v1::VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!((version.name.as_str(), version.protocol), ("ingraftd", PROTOCOL));
    assert_eq!(version.pid.cast_unsigned(), daemon.child.id());
    let limits = client.limits(v1::LimitsRequest {}).await.unwrap().into_inner();
    assert_eq!(limits.message_bytes, 4 << 20);

    let mut instrumentation = InstrumentationClient::new(channel);
    let enable = instrumentation.enable(v1::EnableRequest::default()).await.unwrap_err();
    assert_eq!(reason(&enable), (ErrorClass::Usage, "invalid_field".into()));

    let elsewhere = tempfile::tempdir().unwrap();
    let second = command(elsewhere.path(), &[&format!("--listen=unix:{}", socket.display())]).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("listens at"), "{second:?}");

    daemon.signal(Signal::SIGTERM);
    assert!(daemon.ends().success(), "with a client connected");
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_socket_of_a_killed_daemon_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("--listen=unix:{}", dir.path().join("d.sock").display());
    let mut first = Daemon::start(dir.path(), &[&listen]);
    first.signal(Signal::SIGKILL);
    first.ends();
    let second = Daemon::start(dir.path(), &[&listen]);
    let mut client = DaemonClient::new(connect(&second.addresses[0]).await);
    assert!(client.version(v1::VersionRequest::default()).await.is_ok());
}

#[tokio::test]
async fn loopback_needs_the_token_which_can_be_changed() {
    let dir = tempfile::tempdir().unwrap();
    let token = secret(dir.path(), SECRET);
    let token_file = format!("--token-file={}", token.display());
    let daemon = Daemon::start(dir.path(), &["--listen=http://127.0.0.1:0", &token_file]);
    assert!(daemon.addresses[0].starts_with("http://127.0.0.1:") && !daemon.addresses[0].ends_with(":0"));
    let mut client = DaemonClient::new(connect(&daemon.addresses[0]).await);

    let ask = v1::VersionRequest::default;
    let none = client.version(ask()).await.unwrap_err();
    assert_eq!(reason(&none), (ErrorClass::Unauthenticated, "token_missing".into()));
    let wrong = client.version(bearing(ask(), "0123456789abcdef-other")).await.unwrap_err();
    assert_eq!(reason(&wrong), (ErrorClass::Unauthenticated, "token_wrong".into()));
    assert!(client.version(bearing(ask(), SECRET)).await.is_ok());

    // Probes and generic clients cannot send a token.
    let mut health = tonic_health::pb::health_client::HealthClient::new(connect(&daemon.addresses[0]).await);
    assert!(health.check(tonic_health::pb::HealthCheckRequest::default()).await.is_ok());

    secret(dir.path(), "another-secret-of-mine");
    daemon.signal(Signal::SIGHUP);
    let start = Instant::now();
    while client.version(bearing(ask(), SECRET)).await.is_ok() {
        assert!(start.elapsed() < PATIENCE, "the old token still passes");
    }
    assert!(client.version(bearing(ask(), "another-secret-of-mine")).await.is_ok());

    // If the configuration has an error, nothing changes.
    secret(dir.path(), "short");
    daemon.signal(Signal::SIGHUP);
    assert!(client.version(bearing(ask(), "another-secret-of-mine")).await.is_ok());
}

#[tokio::test]
async fn another_version_is_refused_and_told_ours() {
    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&format!("--listen=unix:{}", dir.path().join("d.sock").display())]);
    let channel = connect(&daemon.addresses[0]).await;
    let with = |version: &str| {
        let mut request = Request::new(v1::CheckRequest::default());
        request.metadata_mut().insert(PROTOCOL_HEADER, version.parse().unwrap());
        request
    };
    let mut metrics = MetricsClient::new(channel.clone());
    let refused = metrics.check(with("99")).await.unwrap_err();
    assert_eq!(reason(&refused), (ErrorClass::Version, "version_mismatch".into()));
    assert!(metrics.check(with(&PROTOCOL.to_string())).await.is_ok());
    assert!(metrics.check(v1::CheckRequest::default()).await.is_ok(), "a generic client");
    let mut request = Request::new(v1::VersionRequest::default());
    request.metadata_mut().insert(PROTOCOL_HEADER, "99".parse().unwrap());
    assert!(DaemonClient::new(channel).version(request).await.is_ok());
}

#[tokio::test]
async fn strangers_find_their_way_by_reflection_and_health() {
    use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
    use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
    use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
    use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

    let dir = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(dir.path(), &[&format!("--listen=unix:{}", dir.path().join("d.sock").display())]);
    let channel = connect(&daemon.addresses[0]).await;
    let mut reflection = ServerReflectionClient::new(channel.clone());
    let mut ask = async |message| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let mut answers = reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap().into_inner();
        let ServerReflectionResponse { message_response, .. } = answers.message().await.unwrap().unwrap();
        message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())).await else {
        panic!("no list of services");
    };
    let services: Vec<_> = list.service.into_iter().map(|s| s.name).collect();
    for name in ["Processes", "Code", "Metrics", "Instrumentation", "Daemon"] {
        assert!(services.contains(&format!("ingraft.v1.{name}")), "{services:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol("ingraft.v1.Metrics".into());
    let MessageResponse::FileDescriptorResponse(file) = ask(symbol).await else { panic!("no descriptor") };
    let text = String::from_utf8_lossy(&file.file_descriptor_proto[0]).into_owned();
    assert!(text.contains("Streams the values of a measurement"), "comments are part of the descriptor");

    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    let request = tonic_health::pb::HealthCheckRequest { service: "ingraft.v1.Metrics".into() };
    assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "serving");
}

#[tokio::test]
async fn https_needs_a_certificate_of_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let authority = Authority::new();
    let (server, client) = (authority.sign(), authority.sign());
    let daemon = Daemon::start(
        dir.path(),
        &[
            "--listen=https://localhost:0",
            &format!("--tls-cert={}", write("cert.pem", server.0)),
            &format!("--tls-key={}", write("key.pem", server.1)),
            &format!("--client-ca={}", write("ca.pem", authority.pem())),
        ],
    );
    let base = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authority.pem()));
    let connect = async |tls: ClientTlsConfig| {
        let channel = Endpoint::try_from(daemon.addresses[0].clone()).unwrap().tls_config(tls).unwrap().connect_lazy();
        DaemonClient::new(channel).version(v1::VersionRequest::default()).await
    };
    let known = connect(base.clone().identity(Identity::from_pem(client.0, client.1))).await;
    assert!(known.is_ok(), "{known:?}");
    assert!(connect(base.clone()).await.is_err(), "without a certificate");
    let other = Authority::new().sign();
    let refused = connect(base.identity(Identity::from_pem(other.0, other.1))).await.unwrap_err();
    let failure = ProtocolFailure::from_status(&refused);
    println!("the client is told: {failure}; {}", failure.hint);
    assert!(failure.hint.contains("certificate"), "of another authority: {failure:?}");
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    let line = log.lines().find(|line| line.contains("TLS handshake has failed")).unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("127.0.0.1:") && line.to_lowercase().contains("certificate"), "{line}");
}

#[tokio::test]
async fn a_state_directory_has_one_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let listen = |name: &str| format!("--listen=unix:{}", dir.path().join(name).display());
    let mut first = Daemon::start(dir.path(), &[&listen("a.sock")]);
    let second = command(dir.path(), &[&listen("b.sock")]).output().unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1), "{said}");
    assert!(said.contains("state directory") && said.contains(&format!("(process {})", first.child.id())), "{said}");
    // The embedded engine of the command line works at the same time as the daemon.
    let config = ingraft_daemon::Config {
        state_dir: dir.path().join("state"),
        program: "ingraft".into(),
        max_overhead: ingraft_daemon::MAX_OVERHEAD,
        clock: ingraft_daemon::ClockChoice::Auto,
    };
    assert!(ingraft_daemon::Engine::start(config).is_ok());
    first.signal(Signal::SIGKILL);
    first.ends();
    Daemon::start(dir.path(), &[&listen("b.sock")]);
}

/// Certificate authority that signs certificates for `localhost`.
struct Authority(rcgen::CertifiedIssuer<'static, rcgen::KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut parameters = rcgen::CertificateParams::new([]).unwrap();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        Authority(rcgen::CertifiedIssuer::self_signed(parameters, rcgen::KeyPair::generate().unwrap()).unwrap())
    }

    fn pem(&self) -> String {
        self.0.pem()
    }

    /// Signs a certificate, and returns it with its key.
    fn sign(&self) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        (parameters.signed_by(&key, &self.0).unwrap().pem(), key.serialize_pem())
    }
}

#[test]
fn a_configuration_is_checked_without_starting() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let out = command(dir.path(), &["--check-config", "--config", file.to_str().unwrap()]).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    assert_eq!(check("listen = ['unix:/x/y']\nlog = 'warn'"), (Some(0), String::new()));
    let (code, text) = check("listn = []");
    assert_eq!(code, Some(2));
    assert!(text.contains("unknown field `listn`") && text.contains("d.toml"), "{text}");
    let (code, text) = check("listen = ['http://0.0.0.0:1']");
    assert_eq!(code, Some(2));
    assert!(text.contains("not on the loopback interface"), "{text}");
    assert!(!dir.path().join("state").exists(), "nothing was started");
}

#[test]
fn the_environment_goes_before_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("d.toml");
    std::fs::write(&file, "socket-mode = 'nonsense'").unwrap();
    let mut command = command(dir.path(), &["--check-config"]);
    command.env("INGRAFTD_CONFIG", &file);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
    command.env("INGRAFTD_SOCKET_MODE", "0660");
    assert_eq!(command.output().unwrap().status.code(), Some(0));
}

#[test]
fn a_state_directory_that_cannot_be_written_stops_the_start() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("state"), "a file").unwrap();
    let socket = dir.path().join("d.sock");
    let mut child = command(dir.path(), &["--listen", &format!("unix:{}", socket.display())])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut text = String::new();
    child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(text.contains("state directory") && text.lines().count() == 2, "{text}");
    assert!(!socket.exists());
}

/// Refused requests end a connection that has not authenticated, but not one on which the token was sent.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_end_only_connections_that_have_proven_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let token = secret(dir.path(), SECRET);
    let daemon =
        Daemon::start(dir.path(), &["--listen=http://127.0.0.1:0", &format!("--token-file={}", token.display())]);
    let refuse = async |client: &mut DaemonClient<Channel>| {
        let refused = client.version(bearing(v1::VersionRequest::default(), "another-secret-16")).await.unwrap_err();
        ProtocolFailure::from_status(&refused).reason
    };
    // The channel may connect only once, because another connection would authenticate anew.
    let once = async || {
        let address: std::net::SocketAddr = daemon.addresses[0].strip_prefix("http://").unwrap().parse().unwrap();
        let mut stream = Some(tokio::net::TcpStream::connect(address).await.unwrap());
        let connector = tower::service_fn(move |_: tonic::transport::Uri| {
            let stream = stream.take().ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotConnected));
            std::future::ready(stream.map(hyper_util::rt::TokioIo::new))
        });
        let endpoint = Endpoint::try_from(daemon.addresses[0].clone()).unwrap();
        DaemonClient::new(endpoint.connect_with_connector(connector).await.unwrap())
    };
    let mut proven = once().await;
    proven.version(bearing(v1::VersionRequest::default(), SECRET)).await.unwrap();
    for _ in 0..40 {
        assert_eq!(refuse(&mut proven).await, "token_wrong");
    }
    proven.version(bearing(v1::VersionRequest::default(), SECRET)).await.unwrap();

    let mut stranger = once().await;
    let start = Instant::now();
    while refuse(&mut stranger).await == "token_wrong" {
        assert!(start.elapsed() < PATIENCE, "it is never ended");
    }
    proven.version(bearing(v1::VersionRequest::default(), SECRET)).await.unwrap();
}
