//! One request, from its head to the end of its answer: its caller, its limits of bytes and time, and the quotas to which it counts. Every
//! error carries its reason.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use ingraft_api::{ErrorClass, Reason};
use ingraft_wire::{MESSAGE_BYTES, ProtocolFailure, failure};
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tower::Service;

use crate::auth::{AuthenticatedClient, ListenerAuth, Origin};
use crate::connection::{Connection, Streaming};
use crate::core::{Behalf, Closing, on_behalf, shutting_down};
use crate::quota::{CountedCall, Payer, ResourceTable};
use crate::waiting::Unread;

/// Longest time from the head of a request to its end. Clients send a request without pauses.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// Longest time from the head to the end of a request to the reflection service, in which both sides send messages in turn.
const REFLECTION_TIME: Duration = Duration::from_secs(60);
/// Maximum size of a request's body in bytes: one message and its frame. Bytes after the message are ignored.
const BODY_BYTES: usize = MESSAGE_BYTES + (64 << 10);
/// Maximum size in bytes of a request's body for services that are open to all clients.
const OPEN_BODY_BYTES: usize = 64 << 10;
/// Maximum size in bytes of a message for services that are open to all clients. Such messages contain names of services and symbols.
pub const OPEN_MESSAGE_BYTES: usize = 4 << 10;

/// State that all requests of one listener share.
#[derive(Clone)]
pub struct Serving {
    /// The services.
    pub routes: Routes,
    /// Method by which callers are identified.
    pub access: ListenerAuth,
    /// Table of the resources that all holders use.
    pub table: Arc<ResourceTable>,
    /// Receiver of the announcement that the daemon ends.
    pub closing: Closing,
}

/// Returns whether a path belongs to a service that is open to every client that can connect.
fn is_open(path: &str) -> bool {
    path.starts_with("/grpc.reflection.") || path.starts_with("/grpc.health.v1.")
}

/// Answers one request of a connection.
pub async fn answer(
    serving: Serving,
    connection: Arc<Connection>,
    stream: Streaming,
    origin: Origin,
    request: Request<Incoming>,
) -> Response<AnswerBody> {
    let table = Arc::clone(&serving.table);
    match begin(serving, &connection, origin, request) {
        Ok(AcceptedRequest { routing, deadline, call, until }) => {
            let (turns, payer) = {
                let call = call.lock().unwrap_or_else(PoisonError::into_inner);
                (call.turns(), call.payer())
            };
            let behalf = Behalf { turns, payer: payer.clone(), call: Arc::clone(&call) };
            let routing = on_behalf(behalf, routing);
            let answered = match deadline {
                Some(deadline) => tokio::time::timeout(deadline, routing).await,
                None => Ok(routing.await),
            };
            let mut response = match answered {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => late().into_status().into_http(),
            };
            explain(response.headers_mut());
            response.map(|body| AnswerBody {
                body,
                until,
                over: false,
                payer: Some(payer),
                _call: Some(call),
                _stream: stream,
            })
        }
        Err(failure) => {
            table.note_refusal(&failure.reason);
            if failure.class == ErrorClass::Unauthenticated {
                connection.refused();
            }
            let response: Response<Body> = failure.into_status().into_http();
            response.map(|body| AnswerBody {
                body,
                until: None,
                over: false,
                payer: None,
                _call: None,
                _stream: stream,
            })
        }
    }
}

/// A request that was accepted.
struct AcceptedRequest {
    routing: <Routes as Service<Request<Body>>>::Future,
    /// Time that the client waits for the beginning of the answer; `None` if the client gives no limit.
    deadline: Option<Duration>,
    call: Arc<Mutex<CountedCall>>,
    until: Option<Until>,
}

/// Decides by the head alone whether a request is accepted, before any byte of the body is read.
fn begin(
    mut serving: Serving,
    connection: &Connection,
    origin: Origin,
    request: Request<Incoming>,
) -> Result<AcceptedRequest, ProtocolFailure> {
    if let Some(failure) = connection.turned_away() {
        return Err(failure.clone());
    }
    let open = is_open(request.uri().path());
    let deadline = request.headers().get("grpc-timeout").map(timeout).transpose()?;
    let (mut head, body) = request.into_parts();
    let holder = if open {
        connection.holder()
    } else {
        let (caller, holder) = serving.access.identify(&origin, connection.holder(), &head.headers)?;
        connection.proven(holder);
        head.extensions.insert(AuthenticatedClient { caller, holder, origin, table: Arc::clone(&serving.table) });
        holder
    };
    let call = Arc::new(Mutex::new(serving.table.call(holder)?));
    let reflection = head.uri.path().starts_with("/grpc.reflection.");
    let time = if reflection { REFLECTION_TIME } else { REQUEST_TIME };
    let body = Body::new(RequestBody {
        body,
        left: if open { OPEN_BODY_BYTES } else { BODY_BYTES },
        call: Arc::clone(&call),
        deadline: Box::pin(tokio::time::sleep_until(Instant::now() + time)),
    });
    let until = open.then(|| {
        let mut closing = serving.closing.clone();
        let until: Until = Box::pin(async move { closing.wait().await });
        until
    });
    let routing = serving.routes.call(Request::from_parts(head, body));
    Ok(AcceptedRequest { routing, deadline, call, until })
}

fn late() -> ProtocolFailure {
    let hint = "give the call more time, or ask for less";
    ProtocolFailure::new(Reason::DeadlineExceeded, "the time that the client gave the call is over", hint)
}

/// Parses the value of `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2, "Requests").
fn timeout(value: &http::HeaderValue) -> Result<Duration, ProtocolFailure> {
    let parse = || {
        let (digits, unit) = value.to_str().ok()?.split_at_checked(value.len().checked_sub(1)?)?;
        if digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let n: u64 = digits.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(n * 3600),
            "M" => Duration::from_secs(n * 60),
            "S" => Duration::from_secs(n),
            "m" => Duration::from_millis(n),
            "u" => Duration::from_micros(n),
            "n" => Duration::from_nanos(n),
            _ => return None,
        })
    };
    parse().ok_or_else(|| {
        let what = "the metadata `grpc-timeout` is no time";
        ProtocolFailure::new(Reason::InvalidField, what, "send up to eight digits and one of H M S m u n")
    })
}

/// Adds details with the reason to an error in headers or trailers, if it has none.
fn explain(headers: &mut HeaderMap) {
    let Some(status) = Status::from_header_map(headers).filter(|status| status.code() != Code::Ok) else { return };
    if let Some(explained) = failure::explained(&status) {
        headers.remove("grpc-status-details-bin");
        // The status came from headers, so it fits into them again, and this cannot fail.
        drop(explained.add_header(headers));
    }
}

/// The body of a request, with a limit of bytes and of time.
struct RequestBody {
    body: Incoming,
    left: usize,
    call: Arc<Mutex<CountedCall>>,
    deadline: Pin<Box<Sleep>>,
}

impl RequestBody {
    fn take(&mut self, bytes: usize) -> Result<(), ProtocolFailure> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            let hint = "send less in one request; `Daemon.Limits` says how much may be sent";
            ProtocolFailure::new(Reason::MessageTooLarge, "the request is too large", hint)
        })?;
        self.call.lock().unwrap_or_else(PoisonError::into_inner).receive(bytes)
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.deadline.as_mut().poll(cx).is_ready() {
            let hint = "send a request in one go";
            let what = "the request did not end in time";
            return Poll::Ready(Some(Err(ProtocolFailure::new(Reason::RequestTooSlow, what, hint).into())));
        }
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref()
                    && let Err(failure) = this.take(data.len())
                {
                    return Poll::Ready(Some(Err(failure.into())));
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(e))) => Poll::Ready(Some(Err(Status::from_error(Box::new(e))))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

type Until = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of an answer. The call counts towards its quotas while the body exists.
pub struct AnswerBody {
    body: Body,
    /// Event that ends the answer before its body ends; `None` for answers that end by themselves when the daemon ends.
    until: Option<Until>,
    over: bool,
    /// Holder whose quota pays for the answer's bytes until they are sent.
    payer: Option<Payer>,
    _call: Option<Arc<Mutex<CountedCall>>>,
    _stream: Streaming,
}

impl AnswerBody {
    /// Ends the answer with an error. Drops bytes that are not sent yet.
    fn end(&mut self, failure: ProtocolFailure) -> Frame<Unread> {
        self.over = true;
        self.body = Body::empty();
        let mut trailers = HeaderMap::new();
        // A failure is limited to a size that fits into trailers.
        drop(failure.into_status().add_header(&mut trailers));
        Frame::trailers(trailers)
    }
}

impl http_body::Body for AnswerBody {
    type Data = Unread;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Unread>, Status>>> {
        let this = &mut *self;
        if this.over {
            return Poll::Ready(None);
        }
        // Send the frames that are ready before the end of the answer.
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let frame = match frame.into_data() {
                    Ok(bytes) => match Unread::new(bytes, this.payer.as_ref()) {
                        Ok(unread) => Frame::data(unread),
                        Err(failure) => this.end(failure),
                    },
                    Err(other) => {
                        let mut trailers = other.into_trailers().unwrap_or_default();
                        explain(&mut trailers);
                        Frame::trailers(trailers)
                    }
                };
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(status))) => Poll::Ready(Some(Err(status))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending if this.until.as_mut().is_some_and(|until| until.as_mut().poll(cx).is_ready()) => {
                Poll::Ready(Some(Ok(this.end(shutting_down()))))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        // If `until` ends the answer, trailers replace the rest of the body.
        if self.until.is_some() { SizeHint::default() } else { self.body.size_hint() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read() {
        let read = |text: &str| timeout(&text.parse().unwrap()).ok();
        assert_eq!(read("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(read("99999999M"), Some(Duration::from_secs(99_999_999 * 60)));
        assert_eq!(read("250m"), Some(Duration::from_millis(250)));
        assert_eq!(read("7n"), Some(Duration::from_nanos(7)));
        for wrong in ["", "5", "S", "123456789S", "-1S", "1.5S", "1s"] {
            assert_eq!(read(wrong).filter(|_| wrong != "S"), None, "{wrong}");
        }
    }

    #[test]
    fn only_reflection_and_health_are_open() {
        assert!(is_open("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"));
        assert!(is_open("/grpc.health.v1.Health/Check"));
        for closed in ["/ingraft.v1.Daemon/Version", "/grpc.health.v1", "/", "//grpc.health.v1.Health/Check"] {
            assert!(!is_open(closed), "{closed}");
        }
    }
}
