//! The user of the socket at the other end of a TCP connection within this machine. The kernel reports it to every process (sock_diag(7)).
//! The user does not authenticate the client, because a socket can be passed on, but it separates the connections of different users.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;

/// `SOCK_DIAG_BY_FAMILY`, the type of the request and of the answer.
const BY_FAMILY: u16 = 20;
/// Length of `struct nlmsghdr` in bytes.
const HEAD: usize = 16;
/// Length of `struct inet_diag_req_v2` in bytes.
const REQUEST: usize = 56;
/// Offset of `idiag_uid` in the answer: after the header, four bytes, `struct inet_diag_sockid` (48 bytes), and three numbers.
const UID: usize = HEAD + 4 + 48 + 12;

/// Returns the user of the socket at the other end; `None` unless its address is on the loopback interface and the kernel reports the user.
pub fn uid(theirs: SocketAddr, ours: SocketAddr) -> Option<u32> {
    theirs.ip().is_loopback().then(|| ask(theirs, ours).ok().flatten())?
}

fn ask(theirs: SocketAddr, ours: SocketAddr) -> io::Result<Option<u32>> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let kernel: OwnedFd = socket(AddressFamily::Netlink, SockType::Datagram, flags, SockProtocol::NetlinkSockDiag)?;
    // The kernel answers at once. The timeout makes sure that the listener never waits.
    setsockopt(&kernel, sockopt::ReceiveTimeout, &TimeVal::new(0, 100_000))?;
    send(kernel.as_raw_fd(), &request(theirs, ours), MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(kernel.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    Ok(read(answer.get(..length).unwrap_or_default()))
}

/// Returns the request for the socket whose own address is `local`.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { nix::libc::AF_INET } else { nix::libc::AF_INET6 };
    let mut out = Vec::with_capacity(HEAD + REQUEST);
    out.extend(u32::try_from(HEAD + REQUEST).unwrap_or_default().to_ne_bytes());
    out.extend(BY_FAMILY.to_ne_bytes());
    // NLM_F_REQUEST
    out.extend(1_u16.to_ne_bytes());
    // Sequence number and port id.
    out.extend([0; 8]);
    out.extend([u8::try_from(family).unwrap_or_default(), 6, 0, 0]);
    // Ask for a socket in any state.
    out.extend(u32::MAX.to_ne_bytes());
    out.extend(local.port().to_be_bytes());
    out.extend(remote.port().to_be_bytes());
    for address in [local.ip(), remote.ip()] {
        match address {
            IpAddr::V4(v4) => {
                out.extend(v4.octets());
                out.extend([0; 12]);
            }
            IpAddr::V6(v6) => out.extend(v6.octets()),
        }
    }
    // Any interface, and no cookie.
    out.extend([0; 4]);
    out.extend([0xff; 8]);
    out
}

fn read(answer: &[u8]) -> Option<u32> {
    let kind = answer.get(4..6)?.try_into().ok().map(u16::from_ne_bytes)?;
    let uid = answer.get(UID..UID + 4)?.try_into().ok().map(u32::from_ne_bytes)?;
    (kind == BY_FAMILY).then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_a_connection_is_found() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: {address} cannot be listened at");
                continue;
            };
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, theirs) = listener.accept().unwrap();
            let ours = server.local_addr().unwrap();
            assert_eq!(uid(theirs, ours), Some(nix::unistd::geteuid().as_raw()), "{address}");
            drop(client);
            assert_eq!(uid(SocketAddr::new(theirs.ip(), 1), ours), None, "nobody is there");
        }
        assert_eq!(uid(([10, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 1).into()), None);
    }
}
