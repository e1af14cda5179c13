//! One connection: the limits of the time that it may spend before its first request, without a call, or without authentication, and the
//! events that end it.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use ingraft_wire::ProtocolFailure;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::auth::Origin;
use crate::call::{Serving, answer};
use crate::quota::{QuotaHolder, Seat};

/// Longest time from the connection to its first request.
const GREETING: Duration = Duration::from_secs(10);
/// Longest time without a call after the end of the last one.
const IDLE: Duration = Duration::from_secs(300);
/// Longest duration of a connection whose client has not authenticated: on TCP, or on a Unix socket whose peer the kernel does not report.
const STRANGER: Duration = Duration::from_secs(60);
/// Time that a connection stays open after the announcement of its end, or after its last accepted call if that ends later.
const FAREWELL: Duration = Duration::from_secs(2);
/// Number of requests without valid credentials after which a connection ends.
const REFUSALS: usize = 16;
/// Time between two pings, and the time that a client has to answer one. A client that does not answer is disconnected, and its
/// measurements are removed.
const KEEPALIVE: Duration = Duration::from_secs(20);

// Limits of the data that a connection may make the daemon keep: unread data, up to the window of the connection, and heads of requests.
const CONNECTION_WINDOW: u32 = 256 << 10;
const STREAM_WINDOW: u32 = 64 << 10;
const FRAME_BYTES: u32 = 16 << 10;
const HEAD_BYTES: u32 = 8 << 10;
/// Maximum number of open streams of a connection. A command that measures many processes opens one for each.
const STREAMS: u32 = 1000;
/// Maximum number of open streams of a connection of a user other than root. Before a stream counts as a call, it can take only the memory
/// for the head of a request that never ends.
const USERS_STREAMS: u32 = 250;
/// Maximum number of open streams of a connection whose client has not authenticated at its beginning.
const STRANGERS_STREAMS: u32 = 100;
/// Maximum number of bytes of an answer that wait for a slow client, besides one message.
const SEND_BYTES: usize = 64 << 10;
/// Maximum number of streams that the client resets before the server works on them. More are an attack (CVE-2023-44487), and end the
/// connection.
const RESETS: usize = 20;
/// Maximum number of streams that the server resets because of an error of the client.
const ERRORS: usize = 64;

/// State of a connection that its requests use.
#[derive(Debug)]
pub struct Connection {
    seat: Seat,
    turned_away: Option<ProtocolFailure>,
    refusals: AtomicUsize,
    activity: Mutex<Activity>,
    changed: Notify,
    /// Longest time from the connection to its first request.
    greeting: Duration,
}

#[derive(Debug)]
struct Activity {
    streams: usize,
    /// Whether the first request has come.
    greeted: bool,
    since: Instant,
}

impl Connection {
    /// Returns a connection that was admitted, or one that was not, with the failure that it is to be told.
    pub fn new(seat: Seat, turned_away: Option<ProtocolFailure>) -> Arc<Connection> {
        let activity = Mutex::new(Activity { streams: 0, greeted: false, since: Instant::now() });
        Arc::new(Connection {
            seat,
            turned_away,
            refusals: AtomicUsize::new(0),
            activity,
            changed: Notify::new(),
            greeting: GREETING,
        })
    }

    /// Returns the holder to which the connection counts at present.
    pub fn holder(&self) -> QuotaHolder {
        self.seat.holder()
    }

    /// Records that the client has authenticated as `holder`.
    pub fn proven(&self, holder: QuotaHolder) {
        self.seat.proven(holder);
    }

    /// Counts a request that was refused for lack of valid credentials.
    pub fn refused(&self) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 == REFUSALS {
            self.changed.notify_one();
        }
    }

    /// Returns the failure with which every request is answered; `None` if the connection was admitted.
    pub fn turned_away(&self) -> Option<&ProtocolFailure> {
        self.turned_away.as_ref()
    }

    fn activity(&self) -> MutexGuard<'_, Activity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream while the returned value exists.
    pub fn stream(self: &Arc<Self>) -> Streaming {
        let mut activity = self.activity();
        activity.streams += 1;
        activity.greeted = true;
        Streaming(Arc::clone(self))
    }

    /// Returns whether accepted calls may run to their end after the end of the connection was announced.
    fn finishes_streams(&self) -> bool {
        !self.is_unproven() && self.turned_away.is_none()
    }

    /// Returns whether the client has not authenticated.
    fn is_unproven(&self) -> bool {
        matches!(self.holder(), QuotaHolder::Stranger(..) | QuotaHolder::Nobody)
    }

    /// Returns the time at which the connection is closed after its end was announced; `None` while it waits for open streams.
    fn is_cut(&self, told: Instant) -> Option<Instant> {
        let activity = self.activity();
        let (open, since) = (activity.streams > 0, activity.since);
        drop(activity);
        match self.finishes_streams() {
            true if open => None,
            true => Some(told.max(since) + FAREWELL),
            false => Some(told + FAREWELL),
        }
    }

    /// Returns the time at which the connection ends without further activity; `None` for an authenticated connection with open streams.
    fn ends(&self, began: Instant) -> Option<Instant> {
        if self.turned_away.is_some() {
            return Some(began + FAREWELL);
        }
        let unproven = self.is_unproven();
        if unproven && self.refusals.load(Ordering::Relaxed) >= REFUSALS {
            return Some(began);
        }
        let activity = self.activity();
        let stranger = unproven.then(|| began + STRANGER);
        let idle = match *activity {
            Activity { greeted: false, .. } => Some(began + self.greeting),
            Activity { streams: 0, since, .. } => Some(since + IDLE),
            Activity { .. } => None,
        };
        stranger.into_iter().chain(idle).min()
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Streaming(Arc<Connection>);

impl Drop for Streaming {
    fn drop(&mut self) {
        let mut activity = self.0.activity();
        activity.streams -= 1;
        activity.since = Instant::now();
        let last = activity.streams == 0;
        drop(activity);
        if last {
            self.0.changed.notify_one();
        }
    }
}

/// Serves a connection to its end.
pub async fn serve<Io>(io: Io, connection: Arc<Connection>, origin: Origin, serving: Serving)
where
    Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut closing = serving.closing.clone();
    let streams = match connection.holder() {
        QuotaHolder::Stranger(..) | QuotaHolder::Nobody => STRANGERS_STREAMS,
        QuotaHolder::User(0) | QuotaHolder::Token | QuotaHolder::Certificate(_) => STREAMS,
        QuotaHolder::User(_) => USERS_STREAMS,
    };
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .max_frame_size(FRAME_BYTES)
        .max_header_list_size(HEAD_BYTES)
        .max_concurrent_streams(streams)
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(RESETS)
        .max_local_error_reset_streams(ERRORS)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE);
    let service = {
        let connection = Arc::clone(&connection);
        service_fn(move |request| {
            // Count the stream before the task of the request runs, so that the connection does not count as idle.
            let stream = Connection::stream(&connection);
            let answered = answer(serving.clone(), Arc::clone(&connection), stream, origin, request);
            async move { Ok::<_, std::convert::Infallible>(answered.await) }
        })
    };
    let mut served = pin!(builder.serve_connection(TokioIo::new(io), service));
    let began = Instant::now();
    // Time at which the end of the connection was announced to the client.
    let mut told: Option<Instant> = None;
    loop {
        let ends = match told {
            Some(told) => connection.is_cut(told),
            None => connection.ends(began),
        };
        let due = async {
            match ends {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = &mut served => {
                if let Err(e) = ended {
                    tracing::debug!(%origin, "a connection has ended: {e}");
                }
                return;
            }
            // The client may have authenticated since the connection was chosen to make room.
            () = connection.seat.evicted() => if connection.is_unproven() {
                return;
            },
            () = connection.changed.notified() => {}
            () = due => match told {
                Some(told) if connection.is_cut(told).is_some_and(|at| at <= Instant::now()) => return,
                Some(_) => {}
                // The connection has become active in the meantime.
                None if connection.ends(began).is_none_or(|at| at > Instant::now()) => {}
                None => {
                    tracing::debug!(%origin, "a connection is ended: it did nothing for too long, or proved nothing");
                    served.as_mut().graceful_shutdown();
                    told = Some(Instant::now());
                }
            },
            () = closing.wait(), if told.is_none() => {
                served.as_mut().graceful_shutdown();
                // The daemon's end waits for its connections, with a time limit of its own.
                return served_to_the_end(served).await;
            }
        }
    }
}

async fn served_to_the_end<E: std::fmt::Display>(served: impl Future<Output = Result<(), E>>) {
    if let Err(e) = served.await {
        tracing::debug!("a connection has ended: {e}");
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use http::{Request, Response};
    use ingraft_engine::{ClockChoice, Config, Engine};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tonic::Status;
    use tonic::body::Body;
    use tonic::server::NamedService;
    use tonic::service::Routes;

    use super::*;
    use crate::auth::{ListenerAuth, Peer};
    use crate::core::{Core, ServingProgram};
    use crate::quota::{Admission, Quotas, ResourceTable};

    const HEADERS: u8 = 1;
    const SETTINGS: u8 = 4;
    const PING: u8 = 6;
    const GO_AWAY: u8 = 7;

    /// A service whose calls take longer than an idle connection may stay open after the announcement of its end.
    #[derive(Clone)]
    struct Slow;

    impl NamedService for Slow {
        const NAME: &'static str = "test.Slow";
    }

    impl tower::Service<Request<Body>> for Slow {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = std::pin::Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            Box::pin(async {
                tokio::time::sleep(FAREWELL + Duration::from_secs(1)).await;
                Ok(Status::ok("").into_http())
            })
        }
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let length = u8::try_from(payload.len()).unwrap();
        [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
    }

    /// Reads frames until one of this kind comes; returns `None` if the connection ends before that.
    async fn until(kind: u8, io: &mut DuplexStream) -> Option<Vec<u8>> {
        loop {
            let mut head = [0; 9];
            io.read_exact(&mut head).await.ok()?;
            let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
            io.read_exact(&mut payload).await.ok()?;
            if head[3] == kind {
                return Some(payload);
            }
        }
    }

    /// A client may send a request before it reads the announcement that the connection ends.
    #[tokio::test]
    async fn a_call_that_was_accepted_runs_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let state_dir = directory.path().to_owned();
        let config = Config { state_dir, program: "ingraftd".into(), max_overhead: 1.0, clock: ClockChoice::Auto };
        let core = Core::new(Engine::start(config).unwrap(), ServingProgram::Daemon);
        let table = ResourceTable::new(Quotas::default(), 1 << 20);
        let peer = Peer { uid: 4_000_001, gid: 4_000_001, pid: None };
        let Admission::Seat(seat) = table.admit(QuotaHolder::User(peer.uid)) else { panic!("there is room") };
        let mut connection = Arc::into_inner(Connection::new(seat, None)).unwrap();
        connection.greeting = Duration::from_millis(10);
        let serving = Serving { routes: Routes::new(Slow), access: ListenerAuth::Peer, table, closing: core.closing() };
        let (mut ours, theirs) = tokio::io::duplex(1 << 16);
        let served = tokio::spawn(serve(theirs, Arc::new(connection), Origin::Socket(Some(peer)), serving));

        ours.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        ours.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        until(GO_AWAY, &mut ours).await.expect("it is told to end");
        // POST, http, the path and an authority as literals that are not indexed (RFC 7541, section 6.2.2).
        let head = [b"\x83\x86\x04\x0f".as_slice(), b"/test.Slow/Call", b"\x01\x01x"].concat();
        ours.write_all(&frame(HEADERS, 5, 1, &head)).await.unwrap();
        let ping = until(PING, &mut ours).await.expect("it asks what was sent before");
        ours.write_all(&frame(PING, 1, 0, &ping)).await.unwrap();
        assert!(until(HEADERS, &mut ours).await.is_some(), "the call is answered");
        served.await.unwrap();
        assert!(until(HEADERS, &mut ours).await.is_none(), "then the connection ends");
    }
}
