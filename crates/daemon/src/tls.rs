//! TLS with authentication of both sides: the daemon's certificate, and client certificates from an authority that the daemon trusts.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use tokio_rustls::rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;
use crate::quota::QuotaHolder;

/// Reason why TLS cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read the TLS file {0}: {1}")]
    File(PathBuf, io::Error),
    /// A file is not valid PEM, or lacks the expected contents.
    #[error("cannot use the TLS file {0}: {1}")]
    Pem(PathBuf, pem::Error),
    /// The authorities of client certificates are unusable.
    #[error("cannot use the certificates in {0}: {1}")]
    Signers(PathBuf, VerifierBuilderError),
    /// Certificate and key are unusable.
    #[error("cannot serve TLS: {0}")]
    Identity(#[from] rustls::Error),
}

/// Longest duration of a TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Time for a client to read the reason why its handshake has failed.
const LINGER: Duration = Duration::from_secs(1);

/// Makes the handshake of a connection. Fails with the reason.
pub async fn handshake<Io>(acceptor: &TlsAcceptor, io: Io) -> Result<TlsStream<Io>, String>
where
    Io: AsyncRead + AsyncWrite + Unpin,
{
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(io).into_fallible()).await {
        Ok(Ok(io)) => Ok(io),
        Ok(Err((e, mut io))) => {
            // The TLS alert has the reason. If the socket were closed with unread bytes, the client could lose the alert.
            let linger = async {
                let mut rest = [0; 1024];
                let _ = io.shutdown().await;
                while io.read(&mut rest).await.is_ok_and(|n| n > 0) {}
            };
            drop(tokio::time::timeout(LINGER, linger).await);
            Err(e.to_string())
        }
        Err(_) => Err(format!("it took longer than {} s", HANDSHAKE.as_secs())),
    }
}

/// Returns the acceptor of connections, which offers one protocol (`h2`, `http/1.1`) to clients that ask for one. In the handshake, it refuses clients without a certificate that an authority in `client-ca` has
/// signed.
pub fn acceptor(files: &TlsFiles, protocol: &str) -> Result<TlsAcceptor, TlsError> {
    let read = |path: &PathBuf| std::fs::read(path).map_err(|e| TlsError::File(path.clone(), e));
    let certificates = |path: &PathBuf| -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = read(path)?;
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match found {
            Ok(found) if found.is_empty() => Err(TlsError::Pem(path.clone(), pem::Error::NoItemsFound)),
            Ok(found) => Ok(found),
            Err(e) => Err(TlsError::Pem(path.clone(), e)),
        }
    };
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?).map_err(|e| TlsError::Pem(files.key.clone(), e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut signers = RootCertStore::empty();
    signers.add_parsable_certificates(certificates(&files.client_ca)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(signers), Arc::clone(&provider))
        .build()
        .map_err(|e| TlsError::Signers(files.client_ca.clone(), e))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&files.cert)?, key)?;
    config.alpn_protocols.push(protocol.as_bytes().to_vec());
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Returns the holder for the client's certificate; `None` if the client has sent none.
pub fn holder(connection: &ServerConnection) -> Option<QuotaHolder> {
    let certificate = connection.peer_certificates()?.first()?;
    let digest = ring::digest::digest(&ring::digest::SHA256, certificate);
    Some(QuotaHolder::Certificate(digest.as_ref().try_into().ok()?))
}
