//! The embedded engine of the command line, used through the same services.

use ingraft_daemon::{ClockChoice, Config, Engine, MAX_OVERHEAD, embedded};
use ingraft_wire::v1;
use ingraft_wire::v1::daemon_client::DaemonClient;
use ingraft_wire::v1::instrumentation_client::InstrumentationClient;

#[tokio::test]
async fn it_answers_like_the_daemon_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(Config {
        state_dir: dir.path().to_owned(),
        program: "ingraft".into(),
        max_overhead: MAX_OVERHEAD,
        clock: ClockChoice::Auto,
    })
    .unwrap();
    let embedded = embedded(engine, false).await.unwrap();
    let mut client = DaemonClient::new(embedded.channel());
    let version = client.version(v1::VersionRequest::default()).await.unwrap().into_inner();
    assert_eq!((version.name.as_str(), version.pid.cast_unsigned()), ("ingraft", std::process::id()));
    let mut instrumentation = InstrumentationClient::new(embedded.channel());
    let nobody = v1::Target { which: Some(v1::target::Which::Pid(0)) };
    let refused = instrumentation.detach(v1::DetachRequest { target: Some(nobody) }).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert!(embedded.close().await.is_empty());
    assert!(client.version(v1::VersionRequest::default()).await.is_err(), "it is closed");
}
