//! The listener of the page. Connections count like those to the other TCP addresses, requests are small, few pages are made at a time, and
//! a client that is slow to send or to read is disconnected.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use ingraft_engine::{Engine, SurveyPart, TargetFigures};
use ingraft_model::Pid;
use ingraft_wire::ProtocolFailure;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tokio_rustls::TlsAcceptor;

use super::page::Page;
use super::text::MEDIA_TYPE;
use crate::audit;
use crate::auth::{ListenerAuth, Origin, TokenCell};
use crate::core::Core;
use crate::quota::{Admission, QuotaHolder, ResourceTable, Seat};
use crate::seldom::Seldom;
use crate::tls;

/// Longest time from the connection, or from the end of an answer, to the end of the next request's head.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Longest time from the head of a request to the end of its answer, as the client reads it.
const ANSWER_TIME: Duration = Duration::from_secs(20);
/// Longest duration of a connection. A client connects again.
const CONNECTION_TIME: Duration = Duration::from_secs(600);
/// Maximum number of pages that are made or sent at the same time.
const PAGES: usize = 4;
/// Longest time that a request waits until it may have a page.
const PAGE_WAIT: Duration = Duration::from_secs(5);
/// Longest time to wait for targets that are being changed, in all. Prometheus waits for a page for ten seconds by default.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// Time for which pages have the last values of a target that has ended, from the first page after its end on.
const LAST_VALUES: Duration = Duration::from_secs(300);
/// Maximum size of the head of a request, and of the part of an answer that waits in the connection.
const BUFFER_BYTES: usize = 16 << 10;
/// Maximum number of header fields of a request.
const HEADERS: usize = 64;
/// Length of the parts in which a page is given to the connection.
const PART_BYTES: usize = 64 << 10;

/// Proof that a client must show.
#[derive(Clone, Debug)]
pub enum MetricsAccess {
    /// The token of the daemon.
    Token(TokenCell),
    /// Nothing: every client that can connect reads the page.
    Open,
}

/// A target that was on an earlier page.
#[derive(Clone, Debug)]
struct KnownTarget {
    /// Name of the process on the first page with the target. A process may change its name, but the labels of a series stay.
    name: String,
    /// Time of the first page after the target's end.
    over: Option<Instant>,
}

/// The listener's state.
pub struct MetricsServer {
    core: Core,
    table: Arc<ResourceTable>,
    access: MetricsAccess,
    tls: Option<TlsAcceptor>,
    /// Most series of measured values.
    limit: usize,
    began: SystemTime,
    pages: Arc<Semaphore>,
    /// The targets of the latest page, by pid and time of the first insertion.
    known: Mutex<HashMap<(Pid, u64), KnownTarget>>,
    failed: Seldom,
}

impl MetricsServer {
    /// Returns the state of a listener whose page has at most `limit` series of measured values.
    pub fn new(
        core: Core,
        table: Arc<ResourceTable>,
        access: MetricsAccess,
        tls: Option<TlsAcceptor>,
        limit: usize,
    ) -> Arc<MetricsServer> {
        Arc::new(MetricsServer {
            core,
            table,
            access,
            tls,
            limit,
            began: SystemTime::now(),
            pages: Arc::new(Semaphore::new(PAGES)),
            known: Mutex::default(),
            failed: Seldom::default(),
        })
    }

    /// Decides about a new connection. `None` if there is no room for it; then it is closed at once.
    pub fn admit(&self, origin: Origin) -> Option<Seat> {
        match self.table.admit(origin.holder()) {
            Admission::Seat(seat) => Some(seat),
            Admission::TurnedAway(_, failure) | Admission::Closed(failure) => {
                self.failed.log(|left_out| tracing::warn!(%origin, left_out, "a connection is turned away: {failure}"));
                None
            }
        }
    }

    /// Serves a connection to its end.
    pub async fn serve<Io>(self: Arc<Self>, io: Io, origin: Origin, seat: Seat)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(acceptor) = &self.tls else { return Arc::clone(&self).exchange(io, origin, seat).await };
        let mut closing = self.core.closing();
        let shaken = tokio::select! {
            shaken = tls::handshake(acceptor, io) => shaken,
            () = seat.evicted() => return,
            () = closing.wait() => return,
        };
        match shaken {
            Ok(io) => Arc::clone(&self).exchange(io, origin, seat).await,
            Err(why) => self.failed.log(|left_out| {
                tracing::warn!(%origin, left_out, "a TLS handshake has failed: {why}");
            }),
        }
    }

    async fn exchange<Io>(self: Arc<Self>, io: Io, origin: Origin, seat: Seat)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut closing = self.core.closing();
        let due = Arc::new(DueTime::new());
        let seat = Arc::new(seat);
        let service = {
            let (due, seat) = (Arc::clone(&due), Arc::clone(&seat));
            service_fn(move |request| {
                due.begin_answer();
                let (server, due, seat) = (Arc::clone(&self), Arc::clone(&due), Arc::clone(&seat));
                async move { Ok::<_, Infallible>(server.answer(&request, &origin, &seat, due).await) }
            })
        };
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_TIME)
            .max_headers(HEADERS)
            .max_buf_size(BUFFER_BYTES)
            .half_close(false);
        let mut served = pin!(builder.serve_connection(TokioIo::new(io), service));
        loop {
            let at = due.get();
            tokio::select! {
                ended = &mut served => {
                    if let Err(e) = ended {
                        tracing::debug!(%origin, "a connection for metrics has ended: {e}");
                    }
                    return;
                }
                () = seat.evicted() => return,
                () = closing.wait() => return,
                () = sleep_until(at) => if due.get() <= Instant::now() {
                    return tracing::debug!(%origin, "a connection for metrics is ended: it was too slow");
                },
            }
        }
    }

    async fn answer(
        self: Arc<Self>,
        request: &Request<Incoming>,
        origin: &Origin,
        seat: &Seat,
        due: Arc<DueTime>,
    ) -> Response<PageBody> {
        if let Err((status, why)) = self.permit(request.headers(), origin, seat) {
            let mut response = PageBody::text(status, &why, due);
            if status == StatusCode::UNAUTHORIZED {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
                // Each further attempt to find the token costs a connection.
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            return response;
        }
        if request.uri().path() != "/metrics" {
            return PageBody::text(StatusCode::NOT_FOUND, "nothing is here\nread /metrics", due);
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response =
                PageBody::text(StatusCode::METHOD_NOT_ALLOWED, "the page can only be read\nuse GET", due);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return response;
        }
        let room = tokio::time::timeout(PAGE_WAIT, Arc::clone(&self.pages).acquire_owned());
        let Ok(Ok(room)) = room.await else {
            let mut response = PageBody::text(
                StatusCode::SERVICE_UNAVAILABLE,
                "too many clients read this page at the same time\ntry again in a moment",
                due,
            );
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            return response;
        };
        // The room stays taken while the page is made, even if the client is gone.
        let (core, server) = (self.core.clone(), self);
        match core.engine_value(move |engine| (server.page(engine), room)).await {
            Ok((page, room)) => {
                let mut response = PageBody::response(Bytes::from(page), Some(room), due);
                response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
                response
            }
            Err(failure) => PageBody::text(StatusCode::SERVICE_UNAVAILABLE, &lines(&failure), due),
        }
    }

    /// Checks the proof of a client. Fails with the status and the lines of the answer.
    fn permit(&self, head: &HeaderMap, origin: &Origin, seat: &Seat) -> Result<(), (StatusCode, String)> {
        match &self.access {
            MetricsAccess::Open if names_loopback(head) => Ok(()),
            // A web page could otherwise let its own name point here, and have a browser of this machine read the values.
            MetricsAccess::Open => {
                let why = "the header Host does not name the loopback interface\nask 127.0.0.1, [::1] or localhost";
                Err((StatusCode::FORBIDDEN, why.to_owned()))
            }
            MetricsAccess::Token(token) => {
                let access = ListenerAuth::Token(token.clone());
                let identified = access.identify(origin, QuotaHolder::Nobody, head);
                let (_, holder) = identified.map_err(|failure| {
                    self.table.note_refusal(&failure.reason);
                    let why = format!("{}\nsend the header `Authorization: Bearer TOKEN`", failure.what);
                    (StatusCode::UNAUTHORIZED, why)
                })?;
                seat.proven(holder);
                Ok(())
            }
        }
    }

    /// Makes the page.
    fn page(&self, engine: &Engine) -> String {
        let began = Instant::now();
        let mut page = Page::new(self.limit);
        let mut seen = HashMap::new();
        engine.survey(BUSY_WAIT, &mut |part| match part {
            SurveyPart::Target(figures) => {
                let known = self.know(&figures);
                let is_over = known.over.is_some_and(|over| over.elapsed() > LAST_VALUES);
                page.target(figures.clone(), known.name.clone(), is_over);
                seen.insert((figures.pid, figures.since_ns), known);
            }
            SurveyPart::Kept(values) => page.measurement(&values),
            SurveyPart::Unread(_) => page.health.unread += 1,
            SurveyPart::Busy(pid) => {
                // The name is needed when the target can be read again.
                let known = self.known();
                seen.extend(known.iter().filter(|((of, _), _)| *of == pid).map(|(key, known)| (*key, known.clone())));
                page.health.busy += 1;
            }
        });
        *self.known() = seen;
        page.health.read_time = began.elapsed();
        page.health.began = Some(self.began);
        page.health.refusals = self.table.refusals();
        page.text()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<(Pid, u64), KnownTarget>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the record of a target, with its end if it has ended.
    fn know(&self, TargetFigures { pid, since_ns, ended, .. }: &TargetFigures) -> KnownTarget {
        let known = self.known().get(&(*pid, *since_ns)).cloned();
        let mut known = known.unwrap_or_else(|| KnownTarget { name: audit::name(*pid), over: None });
        if *ended {
            known.over.get_or_insert_with(Instant::now);
        }
        known
    }
}

/// Returns the error and the hint as two lines.
fn lines(failure: &ProtocolFailure) -> String {
    format!("{}\n{}", failure.what, failure.hint)
}

/// Returns whether the header `Host` names the loopback interface. A request without the header comes from no browser.
fn names_loopback(head: &HeaderMap) -> bool {
    let Some(host) = head.get(HOST) else { return true };
    let Some(host) = host.to_str().ok().and_then(|host| host.parse::<http::uri::Authority>().ok()) else {
        return false;
    };
    let host = host.host();
    let ip = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The time at which a connection ends unless its client goes on.
struct DueTime {
    at: Mutex<Instant>,
    last: Instant,
}

impl DueTime {
    fn new() -> DueTime {
        let now = Instant::now();
        DueTime { at: Mutex::new(now + REQUEST_TIME), last: now + CONNECTION_TIME }
    }

    fn set(&self, after: Duration) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now() + after).min(self.last);
    }

    /// Gives an answer its whole time, however old the connection is.
    fn begin_answer(&self) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now() + ANSWER_TIME;
    }

    fn get(&self) -> Instant {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of an answer. It counts as a page until the connection has taken its last part.
struct PageBody {
    rest: Bytes,
    _room: Option<OwnedSemaphorePermit>,
    due: Arc<DueTime>,
}

impl PageBody {
    fn response(rest: Bytes, room: Option<OwnedSemaphorePermit>, due: Arc<DueTime>) -> Response<PageBody> {
        Response::new(PageBody { rest, _room: room, due })
    }

    /// Returns an answer of some lines of plain text.
    fn text(status: StatusCode, text: &str, due: Arc<DueTime>) -> Response<PageBody> {
        let mut response = PageBody::response(Bytes::from(format!("{text}\n")), None, due);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }
}

impl Drop for PageBody {
    fn drop(&mut self) {
        self.due.set(REQUEST_TIME);
    }
}

impl http_body::Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = self.rest.len().min(PART_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::core::ServingProgram;
    use crate::quota::Quotas;

    fn server(directory: &std::path::Path) -> Arc<MetricsServer> {
        let config = ingraft_engine::Config {
            state_dir: directory.to_owned(),
            program: "ingraftd".into(),
            max_overhead: 1.0,
            clock: ingraft_engine::ClockChoice::Auto,
        };
        let core = Core::new(Engine::start(config).unwrap(), ServingProgram::Daemon);
        let table = ResourceTable::new(Quotas::default(), 1 << 20);
        MetricsServer::new(core, table, MetricsAccess::Open, None, 10)
    }

    const ORIGIN: Origin = Origin::Address(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1), None);
    const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";

    /// A client that reads nothing keeps the page in the daemon.
    #[tokio::test]
    async fn a_client_that_does_not_read_is_disconnected() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let (mut ours, theirs) = tokio::io::duplex(64);
        let seat = server.admit(ORIGIN).unwrap();
        let served = tokio::spawn(Arc::clone(&server).serve(theirs, ORIGIN, seat));
        ours.write_all(REQUEST).await.unwrap();
        tokio::time::timeout(ANSWER_TIME + REQUEST_TIME, served).await.expect("it ends").unwrap();
        let mut rest = Vec::new();
        ours.read_to_end(&mut rest).await.unwrap();
        assert!(rest.len() <= 64, "{}", rest.len());
        assert_eq!(server.pages.available_permits(), PAGES);
    }

    #[tokio::test]
    async fn few_pages_are_made_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let taken = Arc::clone(&server.pages).acquire_many_owned(u32::try_from(PAGES).unwrap()).await.unwrap();
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let seat = server.admit(ORIGIN).unwrap();
        let served = tokio::spawn(Arc::clone(&server).serve(theirs, ORIGIN, seat));
        ours.write_all(REQUEST).await.unwrap();
        let mut answer = [0; 1 << 10];
        let length = ours.read(&mut answer).await.unwrap();
        let text = String::from_utf8_lossy(&answer[..length]).to_lowercase();
        assert!(text.starts_with("http/1.1 503 ") && text.contains("retry-after: 1"), "{text}");
        drop(taken);
        // The same connection is served once there is room.
        ours.write_all(REQUEST).await.unwrap();
        let length = ours.read(&mut answer).await.unwrap();
        assert!(answer[..length].starts_with(b"HTTP/1.1 200 "));
        drop(ours);
        served.await.unwrap();
    }

    #[test]
    fn only_the_loopback_is_named() {
        let named = |host: &str| names_loopback(&[(HOST, host.parse().unwrap())].into_iter().collect());
        for host in ["localhost:9464", "LOCALHOST", "127.0.0.1:9464", "127.1.2.3", "[::1]:9464"] {
            assert!(named(host), "{host}");
        }
        for host in ["example.org:9464", "10.0.0.1", "localhost.example.org", "[::2]:1", "a b", "127.0.0.1.example"] {
            assert!(!named(host), "{host}");
        }
        assert!(names_loopback(&HeaderMap::new()));
    }
}
