//! Quotas of a user, and the reasons of errors, tested over a socket with a separate daemon.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::path::Path;
use std::process::Command;

use ingraft_api::ErrorClass;
use ingraft_testing::{Daemon, Mutatee, have, open_directory, skip, target, wait_until};
use ingraft_wire::v1::daemon_client::DaemonClient;
use ingraft_wire::v1::instrumentation_client::InstrumentationClient;
use ingraft_wire::v1::metrics_client::MetricsClient;
use ingraft_wire::{ProtocolFailure, v1};
use nix::sys::signal::{Signal, kill};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_prost::ProstCodec;

fn start(directory: &Path, arguments: &[&str]) -> Daemon {
    Daemon::start(Path::new(env!("CARGO_BIN_EXE_ingraftd")), directory, arguments)
}

async fn connect(daemon: &Daemon) -> Channel {
    Endpoint::try_from(daemon.uri().replacen("unix:", "unix://", 1)).unwrap().connect().await.unwrap()
}

fn failure(status: &Status) -> ProtocolFailure {
    assert!(!status.details().is_empty(), "no ErrorInfo: {status:?}");
    let failure = ProtocolFailure::from_status(status);
    assert!(!failure.what.is_empty() && !failure.hint.is_empty(), "{failure:?}");
    failure
}

#[tokio::test]
async fn quotas_are_told_and_kept() {
    let directory = open_directory();
    let daemon = start(directory.path(), &["--max-user-calls", "3", "--max-definitions", "10"]);
    let channel = connect(&daemon).await;
    let mut client = DaemonClient::new(channel.clone());
    let mut health = HealthClient::new(channel.clone());
    let _first = health.watch(HealthCheckRequest::default()).await.unwrap();
    let _second = health.watch(HealthCheckRequest::default()).await.unwrap();
    let quotas = client.limits(v1::LimitsRequest {}).await.unwrap().into_inner().quotas;
    let quota = |name: &str| quotas.iter().find(|q| q.name == name).map(|q| (q.limit, q.used)).unwrap();
    assert_eq!(quota("max-user-calls"), (3, 3), "two that watch and this one");
    assert_eq!(quota("max-connections"), (256, 1));
    assert_eq!((quota("max-user-pairs"), quota("max-user-measurements")), ((250_000, 0), (1024, 0)));
    assert_eq!((quota("max-user-histories"), quota("max-definitions")), ((4096, 0), (10, 0)));

    let source = v1::Source { name: "m.mdl".into(), text: "metric x { name \"x\"; }".into() };
    let define = v1::DefineRequest { definitions: vec![source] };
    let refused = failure(&MetricsClient::new(channel.clone()).define(define).await.unwrap_err());
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
    assert!(refused.what.contains("0 of 10 bytes"), "{refused}");

    let third = health.watch(HealthCheckRequest::default()).await.unwrap();
    let refused = failure(&client.version(v1::VersionRequest::default()).await.unwrap_err());
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
    assert!(refused.what.contains("has 3 of 3 calls in progress (max-user-calls)"), "{refused}");
    assert!(refused.hint.contains("max-user-calls") && refused.retry_ms.is_some(), "{refused:?}");
    drop(third);
    let start = std::time::Instant::now();
    while let Err(status) = client.version(v1::VersionRequest::default()).await {
        assert!(start.elapsed() < ingraft_testing::BOUND, "{status:?}");
    }
}

#[tokio::test]
async fn every_error_says_why() {
    let directory = open_directory();
    let daemon = start(directory.path(), &[]);
    let channel = connect(&daemon).await;
    let ask = async |path: &'static str, message: v1::StreamRequest| {
        let mut raw = tonic::client::Grpc::new(channel.clone());
        raw.ready().await.unwrap();
        let codec = ProstCodec::<v1::StreamRequest, v1::VersionResponse>::default();
        let path = http::uri::PathAndQuery::from_static(path);
        failure(&raw.unary(tonic::Request::new(message), path, codec).await.unwrap_err())
    };
    let message = v1::StreamRequest { measurement: 5, ..Default::default() };
    for path in ["/no.such.Service/Call", "/ingraft.v1.Daemon/NoSuchCall"] {
        let unknown = ask(path, message).await;
        assert_eq!((unknown.class, unknown.reason.as_str()), (ErrorClass::Version, "unimplemented"), "{path}");
    }
    // The body is a message of another type than the call expects.
    let malformed = ask("/ingraft.v1.Daemon/Version", message).await;
    assert_eq!((malformed.class, malformed.reason.as_str()), (ErrorClass::Usage, "malformed_message"), "{malformed}");

    let source = v1::Source { name: "m.mdl".into(), text: " ".repeat(5 << 20) };
    let large = v1::CheckRequest { definitions: vec![source] };
    let large = failure(&MetricsClient::new(channel.clone()).check(large).await.unwrap_err());
    assert_eq!(large.reason, "message_too_large", "{large:?}");

    let none = HealthCheckRequest { service: "no.such.Service".into() };
    let none = failure(&HealthClient::new(channel).check(none).await.unwrap_err());
    assert_eq!((none.class, none.reason.as_str()), (ErrorClass::NotFound, "unexplained"));
}

#[tokio::test]
async fn whoever_watches_its_health_hears_of_the_end() {
    let directory = open_directory();
    let daemon = start(directory.path(), &[]);
    let mut health = HealthClient::new(connect(&daemon).await);
    for service in ["", "ingraft.v1.Metrics"] {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "serving");
    }
    let mut watch = health.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 1, "serving");
    kill(nix::unistd::Pid::from_raw(daemon.pid()), Signal::SIGTERM).unwrap();
    assert_eq!(watch.message().await.unwrap().unwrap().status, 2, "not serving");
    let end = failure(&watch.message().await.unwrap_err());
    assert_eq!((end.class, end.reason.as_str()), (ErrorClass::Unavailable, "shutting_down"));
    assert!(end.retry_ms.is_some(), "{end:?}");
    assert!(daemon.terminate().success());
}

/// A daemon without free descriptors reports that, does not spin, serves root with its reserved descriptor, and recovers.
#[tokio::test]
async fn a_lack_of_descriptors_is_called_by_its_name() {
    if !have("prlimit") {
        skip!("there is no prlimit");
    }
    let directory = open_directory();
    let daemon = start(directory.path(), &[]);
    let open = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap().count();
    let limit = |files: usize| {
        let mut prlimit = Command::new("prlimit");
        prlimit.args(["--pid", &daemon.pid().to_string(), &format!("--nofile={files}:")]);
        assert!(prlimit.status().unwrap().success());
    };
    let idle = open();
    limit(idle + 2);
    let crowd: Vec<_> = (0..20).map(|_| std::os::unix::net::UnixStream::connect(daemon.socket()).unwrap()).collect();
    let lines = daemon.logged(&["cannot accept", "EMFILE"]);
    assert!(lines.len() < 5, "{lines:?}");
    let busy = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", daemon.pid())).unwrap();
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    };
    let before = busy();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(busy() - before < 50, "half a processor for nothing");
    drop(crowd);
    wait_until("the crowd has gone", || open() <= idle + 1);
    let mut client = DaemonClient::new(connect(&daemon).await);
    assert!(client.version(v1::VersionRequest::default()).await.is_ok());
    limit(1024);
    assert!(client.version(v1::VersionRequest::default()).await.is_ok());
    assert!(daemon.terminate().success());
}

/// Inserts a measurement. Returns the daemon's answer, or the failure.
async fn enable(
    channel: &Channel,
    pid: i32,
    functions: &[&str],
    history: bool,
) -> Result<v1::Enabled, ProtocolFailure> {
    let functions = functions.iter().map(|f| (*f).to_owned()).collect();
    let measure = v1::Measure { functions, history, ..v1::Measure::default() };
    let target = v1::Target { which: Some(v1::target::Which::Pid(pid)) };
    let request = v1::EnableRequest { target: Some(target), measure: Some(measure) };
    let mut answers = InstrumentationClient::new(channel.clone()).enable(request).await.unwrap().into_inner();
    loop {
        let event = answers.message().await.map_err(|status| failure(&status))?.expect("an answer").event;
        if let Some(v1::enable_response::Event::Enabled(enabled)) = event {
            return Ok(enabled);
        }
    }
}

/// The daemon finds the number of pairs of a pattern before it changes the target.
#[tokio::test]
async fn patterns_beyond_a_quota_touch_nothing() {
    let directory = open_directory();
    let daemon = start(directory.path(), &["--max-user-pairs", "3", "--max-user-histories", "5"]);
    let channel = connect(&daemon).await;
    let mutatee = Mutatee::start("threads", &["1"]);
    let threads = target::threads(mutatee.pid());
    // When a thread is stopped, it leaves its processor, and the kernel counts that.
    let switches = || {
        let status = |tid: &i32| std::fs::read_to_string(format!("/proc/{}/task/{tid}/status", mutatee.pid())).unwrap();
        let counts = |text: String| text.lines().filter(|l| l.contains("ctxt_switches")).map(str::to_owned).collect();
        threads.iter().map(status).map(counts).collect::<Vec<Vec<String>>>()
    };
    wait_until("it waits for commands", || threads.iter().all(|tid| target::state(*tid) == 'S'));
    let before = switches();
    let refused = enable(&channel, mutatee.pid(), &["threads:work_*"], false).await.unwrap_err();
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
    assert!(refused.what.contains("0 of 3 metric-focus pairs (max-user-pairs); 8 more do not fit"), "{refused}");
    let refused = enable(&channel, mutatee.pid(), &["work_0", "work_1", "work_2"], true).await.unwrap_err();
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
    assert!(refused.what.contains("0 of 5 histories (max-user-histories); 6 more do not fit"), "{refused}");
    assert_eq!(switches(), before, "no thread was stopped");
    let enabled = enable(&channel, mutatee.pid(), &["work_0", "work_1", "work_2"], false).await.unwrap();
    assert_eq!(enabled.pair_count, 3);
    let refused = enable(&channel, mutatee.pid(), &["work_5"], false).await.unwrap_err();
    assert!(refused.what.contains("3 of 3 metric-focus pairs"), "{refused}");
    assert!(daemon.terminate().success());
}

/// Each phase has histories of its own. The oldest ended phase is deleted to make room for a new one. If no phase has ended, the new one is
/// refused.
#[tokio::test]
async fn phases_stay_within_the_quota_of_histories() {
    let directory = open_directory();
    let daemon = start(directory.path(), &["--max-user-histories", "4"]);
    let channel = connect(&daemon).await;
    let mutatee = Mutatee::start("threads", &["1"]);
    let first = enable(&channel, mutatee.pid(), &["work_0"], true).await.unwrap().measurement;
    let mut metrics = MetricsClient::new(channel.clone());
    let mut phase = async |measurement: u64| {
        let request = v1::StartPhaseRequest { measurement, name: "next".into() };
        let answer = metrics.start_phase(request).await.map_err(|status| failure(&status))?;
        Ok::<_, ProtocolFailure>(answer.into_inner().phase.unwrap().number)
    };
    assert_eq!(phase(first).await.unwrap(), 1);
    let used = async || {
        let quotas = DaemonClient::new(channel.clone()).limits(v1::LimitsRequest {}).await.unwrap().into_inner().quotas;
        quotas.iter().find(|q| q.name == "max-user-histories").unwrap().used
    };
    assert_eq!(used().await, 3, "the whole, one phase that has ended, the current one");
    assert_eq!(phase(first).await.unwrap(), 2);
    assert_eq!(phase(first).await.unwrap(), 3);
    assert_eq!(used().await, 4, "the oldest has made room");
    let refused = enable(&channel, mutatee.pid(), &["work_1"], true).await.unwrap_err();
    assert!(refused.what.contains("4 of 4 histories"), "{refused}");
    assert!(daemon.terminate().success());

    let daemon = start(directory.path(), &["--max-user-histories", "2"]);
    let channel = connect(&daemon).await;
    let only = enable(&channel, mutatee.pid(), &["work_0"], true).await.unwrap().measurement;
    let request = v1::StartPhaseRequest { measurement: only, name: String::new() };
    let refused = failure(&MetricsClient::new(channel).start_phase(request).await.unwrap_err());
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"), "{refused}");
    assert!(daemon.terminate().success());
}

/// The memory of unread answers is limited, and a client that reads its answers is not affected.
#[tokio::test]
async fn answers_that_nobody_reads_are_bounded() {
    let directory = open_directory();
    let daemon = start(directory.path(), &[]);
    // The long name of the metric makes the answer long.
    let rest = "units calls; aggregateOperator sum; style EventCounter; unitsType unnormalized; base is counter { }";
    let text = format!("metric long {{ name \"{}\"; {rest} }}", "x".repeat(300_000));
    let definitions = vec![v1::Source { name: "long.mdl".into(), text }];
    MetricsClient::new(connect(&daemon).await).define(v1::DefineRequest { definitions }).await.unwrap();
    let request = || v1::ListMetricsRequest { definitions: Vec::new(), events: false };
    let mut unread = Vec::new();
    let refused = 'refused: loop {
        let mut client = MetricsClient::new(connect(&daemon).await);
        for _ in 0..100 {
            match client.list(request()).await {
                Ok(answer) => unread.push(answer),
                Err(status) => break 'refused failure(&status),
            }
        }
        assert!(unread.len() < 900, "any number of answers is kept");
    };
    assert_eq!((refused.class, refused.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
    assert!(refused.what.contains("bytes of answers to read"), "{refused}");
    assert!(refused.hint.contains("read answers") && refused.retry_ms.is_some(), "{refused:?}");
    drop(unread);
    let mut client = MetricsClient::new(connect(&daemon).await);
    let start = std::time::Instant::now();
    let mut answer = loop {
        assert!(start.elapsed() < ingraft_testing::BOUND, "nothing is given back");
        match client.list(request()).await {
            Ok(answer) => break answer.into_inner(),
            Err(status) => assert_eq!(failure(&status).reason, "quota_exceeded"),
        }
    };
    let mut metrics = 0;
    while let Some(part) = answer.message().await.unwrap() {
        metrics += part.metrics.len();
    }
    assert!(metrics > 20, "{metrics}");
    assert!(daemon.terminate().success());
}
