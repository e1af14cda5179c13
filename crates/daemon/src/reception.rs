//! Reception of a listener's connections: admission, TLS if the listener uses it, and then HTTP/2.

use std::sync::Arc;

use ingraft_wire::ProtocolFailure;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;

use crate::auth::Origin;
use crate::call::Serving;
use crate::connection::{self, Connection};
use crate::quota::{Admission, Seat};
use crate::seldom::Seldom;
use crate::tls;

/// State that all connections of a listener share.
pub struct Reception {
    serving: Serving,
    tls: Option<TlsAcceptor>,
    full: Seldom,
    failed: Seldom,
}

/// A connection that is served, or only told why it is refused.
pub struct Admitted {
    seat: Seat,
    turned_away: Option<ProtocolFailure>,
}

impl Reception {
    /// Returns the reception of a listener.
    pub fn new(serving: Serving, tls: Option<TlsAcceptor>) -> Reception {
        Reception { serving, tls, full: Seldom::default(), failed: Seldom::default() }
    }

    /// Decides about a new connection. Returns `None` if it is closed at once.
    pub fn admit(&self, origin: Origin) -> Option<Admitted> {
        let (admitted, failure) = match self.serving.table.admit(origin.holder()) {
            Admission::Seat(seat) => return Some(Admitted { seat, turned_away: None }),
            Admission::TurnedAway(seat, failure) => {
                (Some(Admitted { seat, turned_away: Some(failure.clone()) }), failure)
            }
            Admission::Closed(failure) => (None, failure),
        };
        self.full.log(|left_out| {
            tracing::warn!(%origin, left_out, "a connection is turned away: {failure}");
        });
        admitted
    }

    /// Serves a connection to its end.
    pub async fn serve<Io>(self: Arc<Self>, io: Io, origin: Origin, Admitted { seat, turned_away }: Admitted)
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let Some(acceptor) = &self.tls else {
            let connection = Connection::new(seat, turned_away);
            return connection::serve(io, connection, origin, self.serving.clone()).await;
        };
        let mut closing = self.serving.closing.clone();
        let shaken = tokio::select! {
            shaken = tls::handshake(acceptor, io) => shaken,
            () = seat.evicted() => return,
            () = closing.wait() => return,
        };
        let why = match shaken {
            Ok(io) => {
                if let Some(holder) = tls::holder(io.get_ref().1) {
                    seat.proven(holder);
                }
                let connection = Connection::new(seat, turned_away);
                return connection::serve(io, connection, origin, self.serving.clone()).await;
            }
            Err(why) => why,
        };
        self.failed.log(|left_out| {
            tracing::warn!(%origin, left_out, "a TLS handshake has failed: {why}");
        });
    }
}
