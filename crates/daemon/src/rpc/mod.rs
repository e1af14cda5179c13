//! The services, with one file for each. A service checks parameters, calls the engine, and converts values.

use std::pin::Pin;

use ingraft_wire::v1;
use prost::Message;
use tokio_stream::Stream;
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Routes, RoutesBuilder};
use tonic::{Response, Status};

use crate::auth::Gate;
use crate::call::OPEN_MESSAGE_BYTES;
use crate::core::{Core, Host, payer};
use crate::waiting::{Part, Teller, Waiting};

mod code;
mod daemon;
mod enable;
mod instrumentation;
mod metrics;
mod processes;
mod profiles;
mod traces;

/// The messages of an answer.
pub type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Returns an answer with these messages. Fails if too many bytes of the user wait already.
fn answers<T: Message + Default + 'static>(
    messages: impl IntoIterator<Item = T>,
) -> Result<Response<Answers<T>>, Status> {
    Ok(list(Waiting::packed(payer().as_ref(), messages)?))
}

/// Returns an answer with waiting messages.
fn list<T: 'static>(messages: Waiting<T>) -> Response<Answers<T>> {
    Response::new(Box::pin(tokio_stream::iter(messages)))
}

/// Progress of a long call, as messages of its answer. The call does not wait for them: if the client reads too slowly, some lines are
/// dropped.
pub struct Progress<T> {
    send: Teller<T>,
    message: fn(String) -> T,
}

impl<T> Progress<T> {
    fn new(send: Teller<T>, message: fn(String) -> T) -> Self {
        Progress { send, message }
    }

    /// Sends a line of text, unless the channel is full.
    fn say(&self, text: &str) {
        drop(self.send.try_send(Ok(Part::Message((self.message)(text.to_owned())))));
    }
}

/// Registers all services. Reflection and health are open to every client that can connect, because generic clients and probes cannot send
/// a token. They show only the public protocol, and that the daemon runs.
pub async fn routes(core: &Core) -> Result<(Routes, Health), tonic_reflection::server::Error> {
    use tonic_reflection::server::Builder;
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
    health.set_serving::<ProcessesServer<processes::Service>>().await;
    health.set_serving::<CodeServer<code::Service>>().await;
    health.set_serving::<MetricsServer<metrics::Service>>().await;
    health.set_serving::<InstrumentationServer<instrumentation::Service>>().await;
    health.set_serving::<ProfilesServer<profiles::Service>>().await;
    health.set_serving::<TracesServer<traces::Service>>().await;
    health.set_serving::<DaemonServer<daemon::Service>>().await;

    let gate = || Gate { embedded: core.host() == Host::CommandLine, any_version: false };
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(InterceptedService::new(ProcessesServer::new(processes::Service(core.clone())), gate()))
        .add_service(InterceptedService::new(CodeServer::new(code::Service(core.clone())), gate()))
        .add_service(InterceptedService::new(MetricsServer::new(metrics::Service(core.clone())), gate()))
        .add_service(InterceptedService::new(
            InstrumentationServer::new(instrumentation::Service(core.clone())),
            gate(),
        ))
        .add_service(InterceptedService::new(ProfilesServer::new(profiles::Service(core.clone())), gate()))
        .add_service(InterceptedService::new(TracesServer::new(traces::Service(core.clone())), gate()))
        // This service answers clients of any version, because a client learns the daemon's version from it.
        .add_service(InterceptedService::new(
            DaemonServer::new(daemon::Service(core.clone())),
            Gate { any_version: true, ..gate() },
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
