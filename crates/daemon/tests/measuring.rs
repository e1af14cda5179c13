//! Measurements over the services: the contents of streams, and the removal of measurements whose lease has expired.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::time::{Duration, Instant};

use ingraft_daemon::lease::GRACE;
use ingraft_daemon::{Config, Embedded, Engine, embedded};
use ingraft_testing::Mutatee;
use ingraft_wire::v1::instrumentation_client::InstrumentationClient;
use ingraft_wire::v1::metrics_client::MetricsClient;
use ingraft_wire::v1::{self, enable_response, read_response, remove_response, stream_response};
use ingraft_wire::{ProtocolFailure, Snapshot};
use tonic::Streaming;
use tonic::transport::Channel;

const PATIENCE: Duration = Duration::from_secs(30);

struct Served {
    embedded: Embedded,
    instrumentation: InstrumentationClient<Channel>,
    metrics: MetricsClient<Channel>,
    _dir: tempfile::TempDir,
}

async fn served() -> Served {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = dir.path().to_owned();
    let start = move || {
        Engine::start(Config {
            state_dir,
            program: "ingraft".into(),
            max_overhead: ingraft_daemon::MAX_OVERHEAD,
            clock: ingraft_daemon::ClockChoice::Auto,
        })
    };
    let engine = tokio::task::spawn_blocking(start).await.unwrap().unwrap();
    let embedded = embedded(engine, false).await.unwrap();
    let instrumentation = InstrumentationClient::new(embedded.channel());
    let metrics = MetricsClient::new(embedded.channel());
    Served { embedded, instrumentation, metrics, _dir: dir }
}

/// Answer of an insertion.
struct Inserted {
    head: v1::Enabled,
    pairs: Vec<v1::Pair>,
}

impl Served {
    async fn enable(&mut self, pid: i32, functions: &[&str], keep: bool) -> Inserted {
        let functions = functions.iter().map(|f| (*f).to_owned()).collect();
        let measure = v1::Measure { functions, keep, ..v1::Measure::default() };
        let target = v1::Target { which: Some(v1::target::Which::Pid(pid)) };
        let request = v1::EnableRequest { target: Some(target), measure: Some(measure) };
        let mut answers = self.instrumentation.enable(request).await.unwrap().into_inner();
        let (mut head, mut pairs) = (None, Vec::new());
        while let Some(answer) = answers.message().await.unwrap() {
            match answer.event.unwrap() {
                enable_response::Event::Progress(progress) => assert!(head.is_none(), "{progress:?}"),
                enable_response::Event::Enabled(enabled) => head = Some(enabled),
                enable_response::Event::Pairs(chunk) => pairs.extend(chunk.pairs),
                enable_response::Event::Refused(chunk) => panic!("{chunk:?}"),
                enable_response::Event::Deferred(deferred) => panic!("{deferred:?}"),
            }
        }
        let head = head.unwrap();
        assert_eq!(head.pair_count as usize, pairs.len());
        Inserted { head, pairs }
    }

    async fn stream(&mut self, measurement: u64) -> Streaming<v1::StreamResponse> {
        let request = v1::StreamRequest { measurement, interval_ns: 5_000_000, threads: true };
        self.metrics.stream(request).await.unwrap().into_inner()
    }

    /// Waits until this engine has no measurement left in any target.
    async fn until_nothing_is_left(&mut self) {
        let start = Instant::now();
        loop {
            let mut list = self.instrumentation.list(v1::ListInsertedRequest {}).await.unwrap().into_inner();
            let mut ours = 0;
            while let Some(part) = list.message().await.unwrap() {
                ours += part.inserted.iter().filter(|i| i.ours).count();
            }
            if ours == 0 {
                return;
            }
            assert!(start.elapsed() < PATIENCE, "something stays inserted");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn next(stream: &mut Streaming<v1::StreamResponse>) -> stream_response::Event {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.expect("a message in time");
    message.unwrap().expect("the stream goes on").event.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_streamed_read_and_removed() {
    let mut target = Mutatee::start("threads", &["2"]);
    let mut served = served().await;
    let inserted = served.enable(target.pid(), &["threads:work_*"], false).await;
    assert!(inserted.head.attached && inserted.head.measurement > 0);
    assert_eq!(inserted.head.metrics.iter().map(|m| m.name.as_str()).collect::<Vec<_>>(), ["calls"]);
    let mut stream = served.stream(inserted.head.measurement).await;
    let mut snapshot = Snapshot::new(inserted.pairs.len());
    let stream_response::Event::Sample(first) = next(&mut stream).await else { panic!("no sample") };
    assert_eq!((first.sequence, first.values.len()), (0, inserted.pairs.len()), "the first sample has all values");
    assert_eq!(snapshot.apply(first), Ok(true));

    let truth = tokio::task::spawn_blocking(move || {
        let truth = target.ask("go 1000").tallies();
        (target, truth)
    });
    let (target, truth) = truth.await.unwrap();
    let expected: Vec<i64> =
        inserted.pairs.iter().map(|p| i64::try_from(truth[&p.function.as_ref().unwrap().function]).unwrap()).collect();
    let values = |snapshot: &Snapshot| snapshot.values.iter().map(|v| v.value).collect::<Vec<_>>();
    let start = Instant::now();
    while values(&snapshot) != expected {
        assert!(start.elapsed() < PATIENCE, "{:?} is not {expected:?}", values(&snapshot));
        let stream_response::Event::Sample(sample) = next(&mut stream).await else { panic!("no sample") };
        assert_eq!(snapshot.apply(sample), Ok(true));
    }
    for value in &snapshot.values {
        assert_eq!(value.details().threads.iter().map(|t| t.value).sum::<i64>(), value.value);
    }

    let measurement = inserted.head.measurement;
    let mut reading = served.metrics.read(v1::ReadRequest { measurement, threads: false }).await.unwrap().into_inner();
    let Some(read_response::Event::Sample(sample)) = reading.message().await.unwrap().unwrap().event else {
        panic!("no sample")
    };
    assert_eq!(sample.values.iter().map(|v| v.value).collect::<Vec<_>>(), expected);

    let removing = served.instrumentation.remove(v1::RemoveRequest { measurement }).await.unwrap().into_inner();
    let mut removing = removing;
    let Some(remove_response::Event::Removed(removed)) = removing.message().await.unwrap().unwrap().event else {
        panic!("no removal")
    };
    assert!(removed.text_restored && removed.pid == target.pid());
    let Some(remove_response::Event::Last(last)) = removing.message().await.unwrap().unwrap().event else {
        panic!("no last values")
    };
    assert_eq!(last.values.iter().map(|v| v.value).collect::<Vec<_>>(), expected);

    // The stream of a measurement that is gone ends with an error and its reason.
    let ended = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no reason"),
            Err(status) => break ProtocolFailure::from_status(&status),
        }
    };
    assert_eq!(ended.reason, "no_such_measurement");
    served.until_nothing_is_left().await;
    assert!(served.embedded.close().await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_leaves_nothing() {
    let target = Mutatee::start("threads", &["2"]);
    let mut served = served().await;
    let one = served.enable(target.pid(), &["work_0"], false).await;
    let mut stream = served.stream(one.head.measurement).await;
    next(&mut stream).await;
    let gone = Instant::now();
    drop(stream);
    served.until_nothing_is_left().await;
    assert!(gone.elapsed() >= GRACE, "a moment is left to open the next stream");
    let describe = v1::DescribeRequest { measurement: one.head.measurement };
    let missing = ProtocolFailure::from_status(&served.instrumentation.describe(describe).await.unwrap_err());
    assert_eq!(missing.reason, "no_such_measurement");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_measurement_needs_no_client_and_can_be_given_up() {
    let target = Mutatee::start("threads", &["2"]);
    let mut served = served().await;
    let one = served.enable(target.pid(), &["work_0"], true).await;
    let measurement = one.head.measurement;
    drop(served.stream(measurement).await);
    let mut described =
        served.instrumentation.describe(v1::DescribeRequest { measurement }).await.unwrap().into_inner();
    let Some(v1::describe_response::Event::Enabled(head)) = described.message().await.unwrap().unwrap().event else {
        panic!("no head")
    };
    assert_eq!((head.pid, head.pair_count), (target.pid(), 1));
    // Stop keeping the measurement during its stream. The end of the stream then removes it.
    let mut stream = served.stream(measurement).await;
    next(&mut stream).await;
    served.instrumentation.keep(v1::KeepRequest { measurement, keep: false }).await.unwrap();
    drop(stream);
    served.until_nothing_is_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_target_ends_the_stream_with_its_last_values() {
    let mut target = Mutatee::start("threads", &["2"]);
    let mut served = served().await;
    let one = served.enable(target.pid(), &["work_0"], false).await;
    let mut stream = served.stream(one.head.measurement).await;
    let mut snapshot = Snapshot::new(1);
    let truth = tokio::task::spawn_blocking(move || {
        let truth = target.ask("go 1000").tallies()["work_0"];
        drop(target);
        truth
    });
    let truth = truth.await.unwrap();
    while let stream_response::Event::Sample(sample) = next(&mut stream).await {
        assert_eq!(snapshot.apply(sample), Ok(true));
    }
    assert_eq!(snapshot.values[0].value, i64::try_from(truth).unwrap());
    assert!(stream.message().await.unwrap().is_none(), "nothing follows");
    let measurement = one.head.measurement;
    let mut reading = served.metrics.read(v1::ReadRequest { measurement, threads: false }).await.unwrap().into_inner();
    let mut ended = false;
    while let Some(answer) = reading.message().await.unwrap() {
        ended |= matches!(answer.event, Some(read_response::Event::Ended(_)));
    }
    assert!(ended, "the last values stay readable");
    served.instrumentation.remove(v1::RemoveRequest { measurement }).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_engine_ends_streams_and_measurements() {
    let target = Mutatee::start("threads", &["2"]);
    let mut served = served().await;
    let one = served.enable(target.pid(), &["work_0"], false).await;
    let mut stream = served.stream(one.head.measurement).await;
    next(&mut stream).await;
    let closing = tokio::spawn(served.embedded.close());
    let reason = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("no reason"),
            Err(status) => break ProtocolFailure::from_status(&status).reason,
        }
    };
    assert_eq!(reason, "shutting_down");
    let removed = closing.await.unwrap();
    assert_eq!(removed.len(), 1);
    assert!(removed[0].as_ref().is_ok_and(|r| r.text_restored), "{removed:?}");
}
