//! Identification of callers. Each listener has its own method, and every accepted request carries an [`AuthenticatedClient`]. The engine
//! decides what a caller may do with a target.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use http::HeaderMap;
use ingraft_api::Reason;
use ingraft_engine::Caller;
use ingraft_wire::{PROTOCOL_HEADER, ProtocolFailure, version};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::quota::{self, QuotaHolder, ResourceTable};

/// Method by which the callers of one listener are identified.
#[derive(Clone, Debug)]
pub enum ListenerAuth {
    /// By the credentials that the kernel reports for the peer of a Unix socket.
    Peer,
    /// By a secret in the metadata: `authorization: Bearer TOKEN`. Such callers act as the daemon's user.
    Token(TokenCell),
    /// By a certificate that the transport has verified already. Such callers act as the daemon's user.
    Certificate,
}

/// The process at the other end of a Unix socket, at the time of its connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user of the process.
    pub uid: u32,
    /// Effective group of the process.
    pub gid: u32,
    /// Process id; 0 if the process is outside of the daemon's pid namespace. `None` if tokio does not report it, which does not occur on
    /// Linux.
    pub pid: Option<i32>,
}

/// Origin of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A Unix socket, with the process at its other end; `None` if the kernel does not report it.
    Socket(Option<Peer>),
    /// TCP: the client's address, and its user if the client is on this machine.
    Address(SocketAddr, Option<u32>),
}

impl Origin {
    /// Returns the holder to which the connection counts until its client has authenticated.
    pub fn holder(&self) -> QuotaHolder {
        match self {
            Origin::Socket(Some(peer)) => QuotaHolder::User(peer.uid),
            Origin::Socket(None) => QuotaHolder::Nobody,
            Origin::Address(address, uid) => QuotaHolder::Stranger(quota::place(address.ip()), *uid),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Socket(Some(Peer { pid: Some(pid), .. })) => write!(f, "process {pid}"),
            Origin::Socket(_) => write!(f, "an unknown process"),
            Origin::Address(address, None) => write!(f, "{address}"),
            Origin::Address(address, Some(uid)) => write!(f, "{address} (uid {uid})"),
        }
    }
}

/// The client that has made a request.
#[derive(Clone, Debug)]
pub struct AuthenticatedClient {
    /// Caller whose rights the engine applies to the request.
    pub caller: Caller,
    /// Holder to which the request counts.
    pub holder: QuotaHolder,
    /// Origin of the request's connection.
    pub origin: Origin,
    /// Table of the resources that all holders use.
    pub table: Arc<ResourceTable>,
}

impl ListenerAuth {
    /// Identifies the caller by its connection and the head of its request. Fails if the request carries no credentials, or wrong ones.
    pub fn identify(
        &self,
        origin: &Origin,
        proven: QuotaHolder,
        head: &HeaderMap,
    ) -> Result<(Caller, QuotaHolder), ProtocolFailure> {
        match self {
            ListenerAuth::Certificate => Ok((Caller::Engine, proven)),
            ListenerAuth::Peer => {
                let Origin::Socket(Some(Peer { uid, gid, .. })) = *origin else {
                    let what = "the kernel does not say who is at the other end of the socket";
                    let hint = "connect from the same user namespace";
                    return Err(ProtocolFailure::new(Reason::NoPeer, what, hint));
                };
                // Root has the daemon's rights. The daemon's own user has not: if the daemon has capabilities, it may do more than its
                // user.
                let caller = if uid == 0 { Caller::Engine } else { Caller::User { uid, gid } };
                Ok((caller, QuotaHolder::User(uid)))
            }
            ListenerAuth::Token(token) => {
                let hint = "send the daemon's token: --token-file FILE or INGRAFT_TOKEN";
                let sent = head
                    .get("authorization")
                    .ok_or_else(|| ProtocolFailure::new(Reason::TokenMissing, "this address needs a token", hint))?;
                if sent.as_bytes().strip_prefix(b"Bearer ").is_some_and(|sent| token.is(sent)) {
                    Ok((Caller::Engine, QuotaHolder::Token))
                } else {
                    Err(ProtocolFailure::new(Reason::TokenWrong, "the token is not the daemon's", hint))
                }
            }
        }
    }
}

/// Interceptor for every request to a service of this project.
#[derive(Clone, Debug)]
pub struct AuthInterceptor {
    /// Whether the caller is the program itself, on an in-memory channel. If not, the server has identified the caller already.
    pub embedded: bool,
    /// Whether the service answers clients of any version.
    pub any_version: bool,
}

impl Interceptor for AuthInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if !self.any_version {
            check_version(&request)?;
        }
        let known = request.extensions().get::<AuthenticatedClient>().map(|client| client.caller);
        let caller = known.or(self.embedded.then_some(Caller::Engine)).ok_or_else(no_caller)?;
        request.extensions_mut().insert(caller);
        Ok(request)
    }
}

/// Returns the caller of a request. Fails for a request that has not passed an [`AuthInterceptor`].
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Status> {
    request.extensions().get::<Caller>().copied().ok_or_else(|| no_caller().into())
}

/// Returns the client that made a request; `None` if the program itself made it.
pub fn client<T>(request: &Request<T>) -> Option<AuthenticatedClient> {
    request.extensions().get::<AuthenticatedClient>().cloned()
}

fn no_caller() -> ProtocolFailure {
    let hint = "this is a defect of ingraft; please report it";
    ProtocolFailure::new(Reason::NoPeer, "nobody is known to have sent this request", hint)
}

/// Accepts only the daemon's user and root.
pub fn own_user_only(caller: Caller, refusal: impl FnOnce() -> ProtocolFailure) -> Result<(), ProtocolFailure> {
    let own = nix::unistd::geteuid().as_raw();
    match caller {
        Caller::Engine => Ok(()),
        Caller::User { uid, .. } if uid == own => Ok(()),
        Caller::User { .. } => Err(refusal()),
    }
}

/// Refuses requests whose metadata names another version of the protocol.
fn check_version(request: &Request<()>) -> Result<(), ProtocolFailure> {
    let theirs = request.metadata().get(PROTOCOL_HEADER).map(|v| v.to_str().unwrap_or("not readable"));
    version::check(theirs)
}

/// The secret that callers of a listener have to send.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthToken(Vec<u8>);

/// Reason why a file holds no usable token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("cannot read the token file {path}: {source}")]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
    /// Users other than the owner can read the file.
    #[error("the token file {path} has mode {mode:04o}: others than its owner can read it; chmod 600 it")]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The text is too short for a secret, or has characters that metadata cannot carry.
    #[error("the token file {path} must hold one line of at least {} visible ASCII characters", AuthToken::MIN)]
    Malformed {
        /// Path of the file.
        path: PathBuf,
    },
}

impl AuthToken {
    /// Length of the shortest valid token in bytes.
    pub const MIN: usize = 16;

    /// Reads a token file, which has one line. Blanks around the token are ignored.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let unreadable = |source| TokenError::Unreadable { path: path.to_owned(), source };
        let mode = std::fs::metadata(path).map_err(unreadable)?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(TokenError::Open { path: path.to_owned(), mode });
        }
        let text = std::fs::read(path).map_err(unreadable)?;
        let token = text.trim_ascii();
        if token.len() < AuthToken::MIN || !token.iter().all(u8::is_ascii_graphic) {
            return Err(TokenError::Malformed { path: path.to_owned() });
        }
        Ok(AuthToken(token.to_owned()))
    }

    /// Compares the token with one that was sent. The duration depends only on the lengths, so that a client cannot find the token byte by
    /// byte.
    fn is(&self, sent: &[u8]) -> bool {
        let differ = self.0.iter().zip(sent).fold(0_u8, |acc, (a, b)| std::hint::black_box(acc | (a ^ b)));
        self.0.len() == sent.len() && std::hint::black_box(differ) == 0
    }
}

impl fmt::Debug for AuthToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// The valid token. It can be replaced while the daemon runs.
#[derive(Clone, Debug)]
pub struct TokenCell(Arc<RwLock<AuthToken>>);

impl TokenCell {
    /// Makes a token the valid one.
    pub fn new(token: AuthToken) -> Self {
        TokenCell(Arc::new(RwLock::new(token)))
    }

    /// Replaces the valid token.
    pub fn replace(&self, token: AuthToken) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = token;
    }

    fn is(&self, sent: &[u8]) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).is(sent)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(dir: &tempfile::TempDir, text: &str, mode: u32) -> PathBuf {
        let path = dir.path().join("token");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn token_files_are_checked() {
        let dir = tempfile::tempdir().unwrap();
        let secret = "0123456789abcdef";
        assert!(AuthToken::read(&file(&dir, &format!("{secret}\n"), 0o600)).unwrap().is(secret.as_bytes()));
        assert!(matches!(AuthToken::read(&file(&dir, secret, 0o640)), Err(TokenError::Open { mode: 0o640, .. })));
        assert!(matches!(AuthToken::read(&file(&dir, "short", 0o600)), Err(TokenError::Malformed { .. })));
        assert!(matches!(AuthToken::read(&file(&dir, "two words and more", 0o600)), Err(TokenError::Malformed { .. })));
        assert!(matches!(AuthToken::read(&dir.path().join("none")), Err(TokenError::Unreadable { .. })));
    }

    const HERE: Origin = Origin::Socket(None);

    fn with(header: Option<&str>) -> HeaderMap {
        header.map(|header| (http::header::AUTHORIZATION, header.parse().unwrap())).into_iter().collect()
    }

    #[test]
    fn only_the_right_token_passes() {
        let cell = TokenCell::new(AuthToken(b"0123456789abcdef".to_vec()));
        let access = ListenerAuth::Token(cell.clone());
        let right = Ok((Caller::Engine, QuotaHolder::Token));
        let reason = |header| access.identify(&HERE, QuotaHolder::Nobody, &with(header)).map_err(|f| f.reason);
        assert_eq!(reason(Some("Bearer 0123456789abcdef")), right);
        assert_eq!(reason(None), Err("token_missing".into()));
        for wrong in ["Bearer 0123456789abcdeF", "Bearer ", "Bearer 0123456789abcdef0", "0123456789abcdef", "Basic x"] {
            assert_eq!(reason(Some(wrong)), Err("token_wrong".into()), "{wrong}");
        }
        cell.replace(AuthToken(b"another-secret-16".to_vec()));
        assert_eq!(reason(Some("Bearer 0123456789abcdef")), Err("token_wrong".into()));
        assert_eq!(reason(Some("Bearer another-secret-16")), right);
    }

    #[test]
    fn without_credentials_nobody_passes() {
        let reason = |access: ListenerAuth, origin| {
            access.identify(&origin, QuotaHolder::Nobody, &with(None)).map_err(|f| f.reason)
        };
        assert_eq!(reason(ListenerAuth::Peer, HERE), Err("no_peer".into()));
        assert_eq!(
            reason(ListenerAuth::Peer, Origin::Address(([127, 0, 0, 1], 1).into(), Some(0))),
            Err("no_peer".into())
        );
        assert_eq!(
            reason(ListenerAuth::Peer, Origin::Socket(Some(Peer { uid: 0, gid: 0, pid: None }))),
            Ok((Caller::Engine, QuotaHolder::User(0)))
        );
        assert_eq!(
            reason(ListenerAuth::Peer, Origin::Socket(Some(Peer { uid: 7, gid: 8, pid: None }))),
            Ok((Caller::User { uid: 7, gid: 8 }, QuotaHolder::User(7)))
        );
        assert!(caller(&Request::new(())).is_err());
        assert!(AuthInterceptor { embedded: false, any_version: true }.call(Request::new(())).is_err());
    }

    #[test]
    fn some_calls_are_for_the_own_user_only() {
        let refusal = || ProtocolFailure::new(Reason::LaunchOtherUser, "", "");
        let own = nix::unistd::geteuid().as_raw();
        assert!(own_user_only(Caller::Engine, refusal).is_ok());
        assert!(own_user_only(Caller::User { uid: own, gid: 0 }, refusal).is_ok());
        assert_eq!(
            own_user_only(Caller::User { uid: own + 1, gid: 0 }, refusal).map_err(|f| f.reason),
            Err("launch_other_user".into())
        );
    }

    #[test]
    fn other_versions_are_refused() {
        let ask = |version: Option<&str>, any_version| {
            let mut request = Request::new(());
            if let Some(version) = version {
                request.metadata_mut().insert(PROTOCOL_HEADER, version.parse().unwrap());
            }
            let answer = AuthInterceptor { embedded: true, any_version }.call(request);
            answer.map(|passed| caller(&passed).unwrap()).map_err(|status| ProtocolFailure::from_status(&status).reason)
        };
        assert_eq!(ask(None, false), Ok(Caller::Engine));
        assert_eq!(ask(Some("1"), false), Ok(Caller::Engine));
        assert_eq!(ask(Some("7"), false), Err("version_mismatch".into()));
        assert_eq!(ask(Some("7"), true), Ok(Caller::Engine));
    }
}
