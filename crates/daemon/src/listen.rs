//! The text form of the addresses at which the daemon listens, and sockets that have their final permissions before a client can connect.

use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};

use crate::auth::{Origin, Peer};
use crate::authority::Lenient;
use crate::core::Closing;
use crate::neighbour;
use crate::seldom::Seldom;

/// An address to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenAddress {
    /// A Unix socket at an absolute path: `unix:/p` or `unix:///p`.
    Unix(PathBuf),
    /// Plain HTTP/2 on the loopback interface, with a token: `http://127.0.0.1:PORT`.
    Http(SocketAddr),
    /// HTTP/2 with TLS, with client certificates: `https://HOST:PORT`.
    Https {
        /// Name or IP address, in brackets if it is of version 6.
        host: String,
        /// Port; with 0 the kernel chooses one.
        port: u16,
    },
}

/// Reason why a text is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text does not begin with a known scheme.
    #[error("`{0}` is no address; write unix:/PATH, http://127.0.0.1:PORT or https://HOST:PORT")]
    Scheme(String),
    /// The path of a Unix socket is not absolute.
    #[error("`{0}` needs an absolute path, e.g. unix:/run/ingraft/ingraftd.sock")]
    RelativePath(String),
    /// The text has no host or no port.
    #[error("`{0}` needs a host and a port, e.g. http://127.0.0.1:7440")]
    HostPort(String),
    /// The address is plain HTTP outside of the loopback interface, where other machines could read the traffic.
    #[error(
        "`{0}` is not on the loopback interface; without TLS only http://127.0.0.1:PORT and http://[::1]:PORT are served"
    )]
    NotLoopback(String),
}

impl FromStr for ListenAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix:") {
            // unix:///p has an empty authority.
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.starts_with('/') && !path.ends_with('/') {
                Ok(ListenAddress::Unix(PathBuf::from(path)))
            } else {
                Err(AddressError::RelativePath(text.to_owned()))
            };
        }
        let (tls, rest) = match (text.strip_prefix("http://"), text.strip_prefix("https://")) {
            (Some(rest), _) => (false, rest),
            (None, Some(rest)) => (true, rest),
            (None, None) => return Err(AddressError::Scheme(text.to_owned())),
        };
        let bad = || AddressError::HostPort(text.to_owned());
        let (host, port) = rest.strip_suffix('/').unwrap_or(rest).rsplit_once(':').ok_or_else(bad)?;
        let port: u16 = port.parse().map_err(|_| bad())?;
        if host.is_empty() || host.contains(['/', '@']) {
            return Err(bad());
        }
        if tls {
            return Ok(ListenAddress::Https { host: host.to_owned(), port });
        }
        let ip = match host {
            "localhost" => Ipv4Addr::LOCALHOST.into(),
            host => host.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| bad())?,
        };
        let address = SocketAddr::new(ip, port);
        if address.ip().is_loopback() {
            Ok(ListenAddress::Http(address))
        } else {
            Err(AddressError::NotLoopback(text.to_owned()))
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ListenAddress::Unix(path) => write!(f, "unix:{}", path.display()),
            ListenAddress::Http(address) => write!(f, "http://{address}"),
            ListenAddress::Https { host, port } => write!(f, "https://{host}:{port}"),
        }
    }
}

/// Reason why the daemon cannot listen at an address.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program listens at the address.
    #[error("another program listens at unix:{0}")]
    InUse(PathBuf),
    /// The path leads to a file that is no socket.
    #[error("{0} exists and is no socket; it is left alone")]
    NotASocket(PathBuf),
    /// The group does not exist.
    #[error("there is no group `{0}`")]
    NoGroup(String),
    /// The kernel refuses an operation.
    #[error("cannot {doing}: {source}")]
    Io {
        /// Operation that failed, e.g. `create /run/ingraft`.
        doing: String,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

fn io_error(doing: impl fmt::Display) -> impl FnOnce(io::Error) -> ListenError {
    move |source| ListenError::Io { doing: doing.to_string(), source }
}

/// A listening Unix socket. The lock file beside it stays: otherwise two daemons could lock two files of the same name.
#[derive(Debug)]
pub struct UnixSocket {
    /// The listening socket, non-blocking.
    pub listener: UnixListener,
    _file: SocketFile,
    _lock: File,
}

/// The file of a Unix socket. It is removed when this value is dropped, unless another file has taken its place.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// Listens at a path in a directory that only this user can enter. Replaces a socket that a dead process left there; the caller makes sure
/// that no living process uses the path.
pub fn listen_privately(path: &Path) -> Result<(UnixListener, SocketFile), ListenError> {
    let making = || format!("make a socket at {}", path.display());
    let (_folder, short) = short(path).map_err(io_error(making()))?;
    let new = beside(&short, ".new");
    let _ = fs::remove_file(&new);
    let (listener, inode) = make(&new, &short, 0o600, None)?;
    Ok((listener, SocketFile { path: path.to_owned(), inode }))
}

/// Returns a path to the same socket through its opened directory, which must stay open while the path is used. The address of a socket has
/// room for 107 bytes only (unix(7)).
pub fn short(path: &Path) -> io::Result<(File, PathBuf)> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let folder = File::open(folder)?;
    let short = Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name);
    Ok((folder, short))
}

impl UnixSocket {
    /// Listens at a path with this mode and group. Replaces a socket file that a dead daemon left.
    ///
    /// The socket is created in a directory that only the daemon's user can enter, and moved to its place once its mode is right. So no
    /// other user can connect before that. A lock file beside the socket prevents two daemons from replacing each other's socket.
    pub fn bind(path: &Path, mode: u32, group: Option<&str>) -> Result<Self, ListenError> {
        let folder = path.parent().unwrap_or(Path::new("/"));
        if !folder.exists() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(folder)
                .map_err(io_error(format_args!("create {}", folder.display())))?;
        }
        let lock = beside(path, ".lock");
        let locking = || format!("lock {}", lock.display());
        let mut options = File::options();
        options.create(true).truncate(false).write(true).mode(0o600).custom_flags(nix::libc::O_NOFOLLOW);
        let lock = options.open(&lock).map_err(io_error(locking()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ListenError::InUse(path.to_owned())),
            Err(TryLockError::Error(e)) => return Err(io_error(locking())(e)),
        }
        match fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(ListenError::NotASocket(path.to_owned())),
            Ok(_) if UnixStream::connect(path).is_ok() => return Err(ListenError::InUse(path.to_owned())),
            Ok(_) | Err(_) => {}
        }
        let private = beside(path, &format!(".{}", std::process::id()));
        let making = || format!("make a socket at {}", path.display());
        fs::DirBuilder::new().mode(0o700).create(&private).map_err(io_error(making()))?;
        let made = make(&private.join("s"), path, mode, group);
        // Remove both in any case. The directory is empty, or has a socket that no client knows.
        let _ = fs::remove_file(private.join("s"));
        let _ = fs::remove_dir(&private);
        let (listener, inode) = made?;
        Ok(UnixSocket { listener, _file: SocketFile { path: path.to_owned(), inode }, _lock: lock })
    }
}

fn make(new: &Path, path: &Path, mode: u32, group: Option<&str>) -> Result<(UnixListener, u64), ListenError> {
    let making = || format!("make a socket at {}", path.display());
    let listener = UnixListener::bind(new).map_err(io_error(making()))?;
    listener.set_nonblocking(true).map_err(io_error(making()))?;
    if let Some(name) = group {
        let found =
            nix::unistd::Group::from_name(name).map_err(|e| io_error(format!("look up the group {name}"))(e.into()))?;
        let gid = found.ok_or_else(|| ListenError::NoGroup(name.to_owned()))?.gid.as_raw();
        std::os::unix::fs::chown(new, None, Some(gid))
            .map_err(io_error(format!("give the socket to the group {name}")))?;
    }
    fs::set_permissions(new, fs::Permissions::from_mode(mode)).map_err(io_error(making()))?;
    let inode = fs::symlink_metadata(new).map_err(io_error(making()))?.ino();
    fs::rename(new, path).map_err(io_error(making()))?;
    Ok((listener, inode))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A listener that accepts connections.
pub trait Accept: Send + Sync + 'static {
    /// Type of the accepted connections.
    type Connection: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    /// Waits for the next connection.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Connection, Origin)>> + Send;
}

impl Accept for tokio::net::UnixListener {
    type Connection = Lenient;
    async fn next(&self) -> io::Result<(Lenient, Origin)> {
        let stream = self.accept().await?.0;
        let peer = stream.peer_cred().ok().map(|p| Peer { uid: p.uid(), gid: p.gid(), pid: p.pid() });
        Ok((Lenient::new(stream), Origin::Socket(peer)))
    }
}

impl Accept for tokio::net::TcpListener {
    type Connection = tokio::net::TcpStream;
    async fn next(&self) -> io::Result<(tokio::net::TcpStream, Origin)> {
        let (stream, address) = self.accept().await?;
        // If this fails, the connection is slower.
        let _ = stream.set_nodelay(true);
        let uid = stream.local_addr().ok().and_then(|ours| neighbour::uid(address, ours));
        Ok((stream, Origin::Address(address, uid)))
    }
}

/// A spare descriptor. It is closed when no other descriptor is free, so that a connection can be accepted and removed from the kernel's
/// queue. A connection that stayed there would wake the listener repeatedly, and block those after it.
#[derive(Debug)]
struct Reserve(Option<File>);

impl Reserve {
    fn new() -> Reserve {
        Reserve(File::open("/dev/null").ok())
    }

    fn refill(&mut self) {
        if self.0.is_none() {
            *self = Reserve::new();
        }
    }
}

/// Accepts connections until the daemon ends, and passes each to `serve`. An error of accept(2) neither ends the loop nor makes it spin.
pub async fn accept<A: Accept>(listener: A, mut closing: Closing, mut serve: impl FnMut(A::Connection, Origin)) {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut reserve = Reserve::new();
    let seldom = Seldom::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.next() => accepted,
            () = closing.wait() => return,
        };
        let error = match accepted {
            Ok((connection, origin)) => {
                reserve.refill();
                serve(connection, origin);
                continue;
            }
            Err(error) => error,
        };
        let errno = error.raw_os_error().map(nix::errno::Errno::from_raw);
        let why = match errno {
            Some(nix::errno::Errno::EMFILE) => {
                "EMFILE: the daemon has as many files open as it may (LimitNOFILE of its unit, ulimit -n)"
            }
            Some(nix::errno::Errno::ENFILE) => "ENFILE: the machine has as many files open as it may (fs.file-max)",
            Some(nix::errno::Errno::ECONNABORTED) => continue,
            _ => "",
        };
        seldom.log(|left_out| {
            tracing::warn!(
                left_out,
                "cannot accept a connection, trying again: {error}{}{why}",
                if why.is_empty() { "" } else { "; " }
            );
        });
        if !why.is_empty() && reserve.0.take().is_some() {
            // The first client in the queue gets the reserved descriptor. Root and the daemon's user are served, and others are
            // disconnected.
            if let Ok(Ok((connection, origin))) = tokio::time::timeout(PAUSE, listener.next()).await {
                if matches!(origin, Origin::Socket(Some(Peer { uid, .. })) if uid == 0 || uid == nix::unistd::geteuid().as_raw())
                {
                    serve(connection, origin);
                } else {
                    drop(connection);
                }
            }
            reserve.refill();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let round =
            |text: &str| text.parse::<ListenAddress>().map_or_else(|e| format!("error: {e}"), |a| a.to_string());
        for (text, expected) in [
            ("unix:/run/x.sock", "unix:/run/x.sock"),
            ("unix:///run/x.sock", "unix:/run/x.sock"),
            ("http://127.0.0.1:7440", "http://127.0.0.1:7440"),
            ("http://127.0.0.1:0/", "http://127.0.0.1:0"),
            ("http://localhost:1", "http://127.0.0.1:1"),
            ("http://[::1]:1", "http://[::1]:1"),
            ("https://host:7440", "https://host:7440"),
            ("https://[::]:7440", "https://[::]:7440"),
            ("unix:x", "error: `unix:x` needs an absolute path, e.g. unix:/run/ingraft/ingraftd.sock"),
            ("unix:", "error: `unix:` needs an absolute path, e.g. unix:/run/ingraft/ingraftd.sock"),
            ("/run/x", "error: `/run/x` is no address; write unix:/PATH, http://127.0.0.1:PORT or https://HOST:PORT"),
            ("http://127.0.0.1", "error: `http://127.0.0.1` needs a host and a port, e.g. http://127.0.0.1:7440"),
            ("http://127.0.0.1:x", "error: `http://127.0.0.1:x` needs a host and a port, e.g. http://127.0.0.1:7440"),
            ("https://:1", "error: `https://:1` needs a host and a port, e.g. http://127.0.0.1:7440"),
            ("https://a@b:1", "error: `https://a@b:1` needs a host and a port, e.g. http://127.0.0.1:7440"),
        ] {
            assert_eq!(round(text), expected, "{text}");
        }
        assert!(matches!("http://10.0.0.1:1".parse::<ListenAddress>(), Err(AddressError::NotLoopback(_))));
        assert!(matches!("http://0.0.0.0:1".parse::<ListenAddress>(), Err(AddressError::NotLoopback(_))));
    }

    #[test]
    fn a_socket_has_its_mode_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("deep/er/x.sock");
        let socket = UnixSocket::bind(&path, 0o600, None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(UnixStream::connect(&path).is_ok());
        assert!(matches!(UnixSocket::bind(&path, 0o600, None), Err(ListenError::InUse(_))));
        drop(socket);
        let left: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(left, ["x.sock.lock"]);
        drop(UnixSocket::bind(&path, 0o600, None).unwrap());
    }

    #[test]
    fn a_private_socket_may_have_a_long_path_and_replaces_a_dead_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("x".repeat(120));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("7.sock");
        let (listener, file) = listen_privately(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let (_folder, short) = short(&path).unwrap();
        assert!(UnixStream::connect(&short).is_ok());
        drop(listener);
        assert!(UnixStream::connect(&short).is_err() && path.exists(), "nobody listens");
        let (_listener, second) = listen_privately(&path).unwrap();
        drop(file);
        assert!(UnixStream::connect(&short).is_ok(), "the file of the second one stays");
        drop(second);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    }

    #[test]
    fn only_dead_sockets_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a dead one");
        drop(UnixSocket::bind(&path, 0o660, None).unwrap());

        let foreign = UnixListener::bind(&path).unwrap();
        assert!(matches!(UnixSocket::bind(&path, 0o600, None), Err(ListenError::InUse(_))));
        assert!(UnixStream::connect(&path).is_ok(), "a living one stays");
        drop(foreign);

        fs::remove_file(&path).unwrap();
        fs::write(&path, "precious").unwrap();
        assert!(matches!(UnixSocket::bind(&path, 0o600, None), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_group_must_exist() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let none = UnixSocket::bind(&path, 0o600, Some("no such group"));
        assert!(matches!(none, Err(ListenError::NoGroup(_))), "{none:?}");
        assert!(!path.exists());
    }
}
