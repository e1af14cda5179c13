//! An engine for tests: the gRPC services that a measurement uses, answering from a script instead of a target.

use std::io::{self, Write};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use hyper_util::rt::TokioIo;
use ingraft_model::histogram::{HEAD, SQUARE_BITS, SQUARES};
use ingraft_model::{Activations, Aggregate, Distribution, MetricInfo, Resolution, Scale, Shape, Style, UnitsType};
use ingraft_wire::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};
use v1::instrumentation_server::{Instrumentation, InstrumentationServer};
use v1::metrics_server::{Metrics, MetricsServer};

type Answer<T> = Pin<Box<dyn tokio_stream::Stream<Item = Result<T, Status>> + Send>>;

/// Script of the engine: its answers, and a record of the removals.
#[derive(Clone, Default)]
pub(crate) struct Script {
    /// Names of the functions that are counted.
    pub(crate) functions: Vec<&'static str>,
    /// Names of the functions that are refused.
    pub(crate) refused: Vec<&'static str>,
    /// Values by reading; the target ends after the last one if `ends` is set.
    pub(crate) readings: Vec<Vec<i64>>,
    pub(crate) ends: Option<v1::Ended>,
    /// Whether the stream breaks after the last reading.
    pub(crate) breaks: bool,
    /// Values that the removal returns as the last ones.
    pub(crate) last: Vec<i64>,
    /// Gives the distribution of a histogram with this number of values; `None` if the metric is no histogram.
    pub(crate) distribution: Option<fn(i64) -> Distribution>,
    /// Numbers of calls whose values are missing, for every function.
    pub(crate) missing: Activations,
    /// Whether insertions never end.
    pub(crate) hangs: bool,
    /// Process id of a target, and the failure of insertions into it.
    pub(crate) failure: Option<(i32, ingraft_wire::ProtocolFailure)>,
    pub(crate) text_differs: bool,
    /// Ids of the measurements that were removed.
    pub(crate) removed: Arc<Mutex<Vec<u64>>>,
}

/// Returns the kinds of an edge: the one that falls through, and a branch too if the edge leaves the first block.
fn edge_kinds(name: &str) -> Vec<i32> {
    let is_edge = name.contains("/#") && name.contains("->");
    let kinds: &[v1::EdgeKind] = match (is_edge, name.contains("#0x0->")) {
        (false, _) => &[],
        (true, false) => &[v1::EdgeKind::FallThrough],
        (true, true) => &[v1::EdgeKind::Taken, v1::EdgeKind::FallThrough],
    };
    kinds.iter().map(|kind| (*kind).into()).collect()
}

/// Returns the distribution that a histogram has after these values.
pub(crate) fn distribution(values: impl IntoIterator<Item = u64>) -> Distribution {
    let mut slots = vec![0; Shape::Histogram(Resolution::Fine).slots() as usize];
    for value in values {
        slots[0] += value;
        slots[1] = slots[1].max(value);
        slots[2] = slots[2].max(!value);
        let square = u128::from(value).pow(2);
        slots[SQUARES as usize] = slots[SQUARES as usize].wrapping_add(square as u64);
        slots[SQUARES as usize + 1] = slots[SQUARES as usize + 1].wrapping_add((square >> SQUARE_BITS) as u64);
        slots[HEAD as usize + Resolution::Fine.bucket_of(value) as usize] += 1;
    }
    Distribution::from_slots(Resolution::Fine, &slots, Scale::ONE)
}

/// Returns a metric that counts calls.
pub(crate) fn metric(name: &str) -> Arc<MetricInfo> {
    Arc::new(MetricInfo {
        name: name.to_owned(),
        unit: "calls".to_owned(),
        aggregate: Aggregate::Sum,
        style: Style::EventCounter,
        units_type: UnitsType::Unnormalized,
        histogram: false,
        constraints: Vec::new(),
        flavors: Vec::new(),
        developer: false,
        doc: String::new(),
        text: "".into(),
    })
}

fn metric_message(name: &str) -> v1::Metric {
    metric(name).as_ref().clone().into()
}

/// Serves a script.
pub(crate) async fn serve(script: Script) -> Channel {
    let (ours, theirs) = tokio::io::duplex(64 << 10);
    let server = Server::builder()
        .add_service(InstrumentationServer::new(script.clone()))
        .add_service(MetricsServer::new(script))
        .serve_with_incoming(tokio_stream::once(Ok::<_, io::Error>(theirs)));
    tokio::spawn(server);
    let mut ours = Some(ours);
    let connector = tower::service_fn(move |_| {
        std::future::ready(ours.take().map(TokioIo::new).ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected)))
    });
    Endpoint::from_static("http://fake.invalid").connect_with_connector(connector).await.unwrap()
}

/// Collected output, with a reader that may go away.
#[derive(Clone, Default)]
pub(crate) struct Paper {
    pub(crate) text: Arc<Mutex<Vec<u8>>>,
    /// Number of bytes after which the reader is gone.
    pub(crate) torn_after: Option<usize>,
}

impl Paper {
    pub(crate) fn read(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut text = self.text.lock().unwrap();
        if self.torn_after.is_some_and(|limit| text.len() >= limit) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn answer<T: Send + 'static>(items: Vec<Result<T, Status>>) -> Response<Answer<T>> {
    Response::new(Box::pin(tokio_stream::iter(items)))
}

impl Script {
    fn sample(&self, sequence: usize, values: &[i64], threads: bool) -> v1::Sample {
        let activations = Some(self.missing.into());
        let values = values.iter().enumerate().map(|(pair, &value)| {
            let distribution = self.distribution.map(|of| v1::Distribution::from(of(value)));
            let thread =
                v1::ThreadValue { tid: Some(7), value, distribution: distribution.clone(), activations, pid: None };
            let threads = if threads { vec![thread] } else { Vec::new() };
            v1::PairValue { pair: pair as u32, value, threads, distribution, activations, ..Default::default() }
        });
        let time_ns = 1_000_000_000 + sequence as u64 * 500_000_000;
        v1::Sample { sequence: sequence as u64, time_ns, dropped: 0, values: values.collect(), more: false }
    }
}

fn function(name: &str) -> v1::FunctionRef {
    v1::FunctionRef { module: "server".to_owned(), function: name.to_owned(), offset: 0x5c1b0 }
}

#[tonic::async_trait]
impl Instrumentation for Script {
    type EnableStream = Answer<v1::EnableResponse>;
    type DescribeStream = Answer<v1::DescribeResponse>;
    type RemoveStream = Answer<v1::RemoveResponse>;
    type ListStream = Answer<v1::ListInsertedResponse>;

    async fn enable(&self, request: Request<v1::EnableRequest>) -> Result<Response<Self::EnableStream>, Status> {
        use v1::enable_response::Event;
        let v1::EnableRequest { target, measure } = request.into_inner();
        let target = target.and_then(|t| t.which);
        let v1::Measure { function_metric, more_function_metrics, pairs, .. } = measure.unwrap_or_default();
        let function_metric = more_function_metrics.into_iter().next().unwrap_or(function_metric);
        let metric = pairs.into_iter().next().map_or(function_metric, |pair| pair.metric);
        let Some(v1::target::Which::Pid(pid)) = target else { return Err(Status::invalid_argument("a pid")) };
        if self.hangs {
            std::future::pending::<()>().await;
        }
        if let Some((bad, failure)) = &self.failure
            && *bad == pid
        {
            return Err(failure.clone().into_status());
        }
        let enabled = v1::Enabled {
            measurement: 100 + pid as u64,
            pid,
            attached: true,
            threads: 4,
            modules: 9,
            functions: 5120,
            points: self.functions.len() as u32,
            attach_ns: 31_000_000,
            stopped_ns: 812_000,
            waited_ns: 12_000,
            pair_count: self.functions.len() as u32,
            refused_count: self.refused.len() as u32,
            metrics: vec![v1::Metric {
                unit: if self.distribution.is_some() { "nanoseconds" } else { "calls" }.to_owned(),
                histogram: self.distribution.is_some(),
                ..metric_message(&metric)
            }],
            warnings: Vec::new(),
            caught_up: 3,
            not_unwound: 0,
            since_ns: 0,
            ..Default::default()
        };
        let pair = |name: &&str| v1::Pair {
            pair: Some(v1::MetricFocus { metric: metric.clone(), focus: format!("/Code/server/{name}") }),
            function: Some(function(name.split("/#").next().unwrap_or(name))),
            points: 1,
            edge_kinds: edge_kinds(name),
            ..Default::default()
        };
        let pairs = v1::PairChunk { first: 0, pairs: self.functions.iter().map(pair).collect() };
        let refused = self.refused.iter().map(|name| v1::RefusedFunction {
            function: Some(function(name)),
            reason: Some(v1::Refusal { reason: "too_short".to_owned(), text: "too short".to_owned() }),
            pair: None,
        });
        let refused = v1::RefusedChunk { functions: refused.collect() };
        let progress = v1::Progress { text: "reading".to_owned(), ..Default::default() };
        let events = [Event::Progress(progress), Event::Enabled(enabled), Event::Pairs(pairs), Event::Refused(refused)];
        Ok(answer(events.into_iter().map(|e| Ok(v1::EnableResponse { event: Some(e) })).collect()))
    }

    async fn remove(&self, request: Request<v1::RemoveRequest>) -> Result<Response<Self::RemoveStream>, Status> {
        use v1::remove_response::Event;
        let measurement = request.into_inner().measurement;
        self.removed.lock().unwrap().push(measurement);
        let removed = v1::Removed {
            pid: measurement as i32 - 100,
            stopped_ns: 600_000,
            waited_ns: 2_000,
            text_restored: !self.text_differs,
            ..Default::default()
        };
        let last = self.sample(self.readings.len(), &self.last, true);
        let events = [Event::Removed(removed), Event::Last(last)];
        Ok(answer(events.into_iter().map(|e| Ok(v1::RemoveResponse { event: Some(e) })).collect()))
    }

    async fn list(&self, _: Request<v1::ListInsertedRequest>) -> Result<Response<Self::ListStream>, Status> {
        let cost_ns_per_s = Some(3_000_000.0);
        let inserted = v1::Inserted { pid: 7, measurements: vec![107], cost_ns_per_s, ..Default::default() };
        Ok(answer(vec![Ok(v1::ListInsertedResponse { inserted: vec![inserted], state_dir: String::new() })]))
    }

    async fn describe(&self, _: Request<v1::DescribeRequest>) -> Result<Response<Self::DescribeStream>, Status> {
        use v1::describe_response::Event;
        let pair = |name: &&str| v1::Pair {
            pair: Some(v1::MetricFocus { metric: "calls".to_owned(), focus: format!("/Code/server/{name}") }),
            function: Some(function(name)),
            points: 1,
            ..Default::default()
        };
        let (pair_count, metrics) = (self.functions.len() as u32, vec![metric_message("calls")]);
        let enabled = v1::Enabled { pair_count, metrics, ..Default::default() };
        let pairs = v1::PairChunk { first: 0, pairs: self.functions.iter().map(pair).collect() };
        let events = [Event::Enabled(enabled), Event::Pairs(pairs)];
        Ok(answer(events.into_iter().map(|e| Ok(v1::DescribeResponse { event: Some(e) })).collect()))
    }

    async fn keep(&self, _: Request<v1::KeepRequest>) -> Result<Response<v1::KeepResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }

    async fn detach(&self, _: Request<v1::DetachRequest>) -> Result<Response<v1::DetachResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
}

#[tonic::async_trait]
impl Metrics for Script {
    type ListStream = Answer<v1::ListMetricsResponse>;
    type CheckStream = Answer<v1::CheckResponse>;
    type LowerStream = Answer<v1::LowerResponse>;
    type StreamStream = Answer<v1::StreamResponse>;
    type ReadStream = Answer<v1::ReadResponse>;
    type HistoryStream = Answer<v1::HistoryResponse>;

    async fn history(&self, _: Request<v1::HistoryRequest>) -> Result<Response<Self::HistoryStream>, Status> {
        Err(Status::unimplemented("not in tests"))
    }

    async fn start_phase(&self, _: Request<v1::StartPhaseRequest>) -> Result<Response<v1::StartPhaseResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }

    async fn stream(&self, _: Request<v1::StreamRequest>) -> Result<Response<Self::StreamStream>, Status> {
        use v1::stream_response::Event;
        let (sender, receiver) = mpsc::channel(64);
        for (i, values) in self.readings.iter().enumerate() {
            let event = Some(Event::Sample(self.sample(i, values, false)));
            sender.send(Ok(v1::StreamResponse { event })).await.unwrap();
        }
        if let Some(ended) = self.ends {
            sender.send(Ok(v1::StreamResponse { event: Some(Event::Ended(ended)) })).await.unwrap();
        } else if self.breaks {
            sender.send(Err(Status::internal("the pipe to the moon broke"))).await.unwrap();
        } else {
            // The stream stays open without further readings until the client closes it.
            tokio::spawn(async move { sender.closed().await });
        }
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn read(&self, _: Request<v1::ReadRequest>) -> Result<Response<Self::ReadStream>, Status> {
        use v1::read_response::Event;
        let values = self.readings.last().cloned().unwrap_or_default();
        let event = Some(Event::Sample(self.sample(self.readings.len(), &values, true)));
        Ok(answer(vec![Ok(v1::ReadResponse { event })]))
    }

    async fn list(&self, _: Request<v1::ListMetricsRequest>) -> Result<Response<Self::ListStream>, Status> {
        Ok(answer(Vec::new()))
    }

    async fn lower(&self, _: Request<v1::LowerRequest>) -> Result<Response<Self::LowerStream>, Status> {
        Err(Status::unimplemented("not in tests"))
    }

    async fn check(&self, _: Request<v1::CheckRequest>) -> Result<Response<Self::CheckStream>, Status> {
        Ok(answer(Vec::new()))
    }

    async fn define(&self, _: Request<v1::DefineRequest>) -> Result<Response<v1::DefineResponse>, Status> {
        Err(Status::unimplemented("not in tests"))
    }
}
