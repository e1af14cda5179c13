//! The services, with one file for each. A service checks parameters, calls the engine, and converts values.

use std::pin::Pin;

use ingraft_wire::v1;
use prost::Message;
use tokio_stream::Stream;
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::{Response, Status};

use crate::auth::AuthInterceptor;
use crate::call::OPEN_MESSAGE_BYTES;
use crate::core::{Core, ServingProgram, payer};
use crate::waiting::{AnswerPart, PartSender, WaitingMessages};

mod calls;
mod code;
mod daemon;
mod enable;
mod instrumentation;
mod metrics;
mod processes;
mod profiles;
mod sampling;
mod traces;

/// The messages of an answer.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Returns an answer with these messages. Fails if too many bytes of the user wait already.
fn answers<T: Message + Default + 'static>(
    messages: impl IntoIterator<Item = T>,
) -> Result<Response<Answers<T>>, Status> {
    Ok(list(WaitingMessages::packed(payer().as_ref(), messages)?))
}

/// Returns an answer with waiting messages.
fn list<T: 'static>(messages: WaitingMessages<T>) -> Response<Answers<T>> {
    Response::new(Box::pin(tokio_stream::iter(messages)))
}

/// Progress of a long call, as messages of its answer. The call does not wait for them: if the client reads too slowly, some lines are
/// dropped.
pub struct CallProgress<T> {
    send: PartSender<T>,
    message: fn(String) -> T,
}

impl<T> CallProgress<T> {
    fn new(send: PartSender<T>, message: fn(String) -> T) -> Self {
        CallProgress { send, message }
    }

    /// Sends a line of text, unless the channel is full.
    fn say(&self, text: &str) {
        drop(self.send.try_send(Ok(AnswerPart::Message((self.message)(text.to_owned())))));
    }
}

/// Registers all services. Reflection and health are open to every client that can connect, because generic clients and probes cannot send
/// a token. They show only the public protocol, and that the daemon runs.
pub async fn routes(core: &Core) -> Result<(Routes, Health), tonic_reflection::server::Error> {
    use tonic_reflection::server::Builder;
    use v1::calls_server::CallsServer;
    use v1::code_server::CodeServer;
    use v1::daemon_server::DaemonServer;
    use v1::instrumentation_server::InstrumentationServer;
    use v1::metrics_server::MetricsServer;
    use v1::processes_server::ProcessesServer;
    use v1::profiles_server::ProfilesServer;
    use v1::traces_server::TracesServer;

    let reflection = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(ingraft_wire::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let (health, health_service) = tonic_health::server::health_reporter();
    health.set_serving::<ProcessesServer<processes::ProcessesService>>().await;
    health.set_serving::<CodeServer<code::CodeService>>().await;
    health.set_serving::<MetricsServer<metrics::MetricsService>>().await;
    health.set_serving::<InstrumentationServer<instrumentation::InstrumentationService>>().await;
    health.set_serving::<ProfilesServer<profiles::ProfilesService>>().await;
    health.set_serving::<TracesServer<traces::TracesService>>().await;
    health.set_serving::<CallsServer<calls::CallsService>>().await;
    health.set_serving::<DaemonServer<daemon::DaemonService>>().await;

    let gate = || AuthInterceptor { embedded: core.host() == ServingProgram::CommandLine, any_version: false };
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(InterceptedService::new(ProcessesServer::new(processes::ProcessesService(core.clone())), gate()))
        .add_service(InterceptedService::new(CodeServer::new(code::CodeService(core.clone())), gate()))
        .add_service(InterceptedService::new(MetricsServer::new(metrics::MetricsService(core.clone())), gate()))
        .add_service(InterceptedService::new(
            InstrumentationServer::new(instrumentation::InstrumentationService(core.clone())),
            gate(),
        ))
        .add_service(InterceptedService::new(ProfilesServer::new(profiles::ProfilesService(core.clone())), gate()))
        .add_service(InterceptedService::new(TracesServer::new(traces::TracesService(core.clone())), gate()))
        .add_service(InterceptedService::new(CallsServer::new(calls::CallsService(core.clone())), gate()))
        // This service answers clients of any version, because a client learns the daemon's version from it.
        .add_service(InterceptedService::new(
            DaemonServer::new(daemon::DaemonService(core.clone())),
            AuthInterceptor { any_version: true, ..gate() },
        ))
        .add_service(health_service.max_decoding_message_size(OPEN_MESSAGE_BYTES))
        .add_service(reflection().build_v1()?.max_decoding_message_size(OPEN_MESSAGE_BYTES))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(OPEN_MESSAGE_BYTES));
    Ok((routes.routes().prepare(), Health(health)))
}

/// The health service, for the daemon to set.
#[derive(Clone)]
pub struct Health(tonic_health::server::HealthReporter);

impl Health {
    /// Sets all services to "not serving".
    pub async fn ending(&self) {
        use tonic_health::ServingStatus::NotServing;
        use v1::{
            code_server, daemon_server, instrumentation_server, metrics_server, processes_server, profiles_server,
            traces_server,
        };
        let names = [
            processes_server::SERVICE_NAME,
            code_server::SERVICE_NAME,
            metrics_server::SERVICE_NAME,
            instrumentation_server::SERVICE_NAME,
            profiles_server::SERVICE_NAME,
            traces_server::SERVICE_NAME,
            daemon_server::SERVICE_NAME,
            // The empty name stands for the server as a whole.
            "",
        ];
        for name in names {
            self.0.set_service_status(name, NotServing).await;
        }
    }
}
