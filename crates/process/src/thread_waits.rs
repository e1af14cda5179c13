//! Objects that waiting threads wait for: the object that the arguments of its system call name, and the peers of sockets.
//!
//! All of it comes from /proc, so the thread is not touched, and no descriptor of the target is duplicated: a duplicate would keep a connection
//! open that the target closes meanwhile.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ingraft_model::{Avma, Pid, Tid};

use crate::procfs::{self, KernelSleep};
use crate::target::Target;

/// Largest part of a table of sockets that is read, in bytes.
const TABLE_MAX: u64 = 8 << 20;
/// State of a listening TCP socket in /proc/PID/net/tcp.
const LISTENS: &str = "0A";
/// Flag of a listening socket in /proc/PID/net/unix (SO_ACCEPTCON).
const ACCEPTS: u32 = 1 << 16;
/// Length of a `struct pollfd` in bytes; the descriptor is first.
const POLLED: usize = 4;

/// The object of a wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WaitedObject {
    /// An open file, by the text of its link in /proc/PID/fd: a path, `socket:[INODE]`, `pipe:[INODE]` or `anon_inode:NAME`.
    File(String),
    /// A futex.
    Futex {
        /// Address of the futex in the target.
        address: Avma,
        /// The operation with its flags (futex(2)).
        operation: u32,
        /// Value that the futex had when the wait began.
        expected: u32,
        /// Id of the thread of the target that the memory behind the futex names, as a mutex of glibc names its holder; 0 if it names none.
        owner: u32,
    },
}

/// Details of a thread's wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitDetails {
    /// Whether the wait cannot be interrupted by signals (state D), as for a disk.
    pub uninterruptible: bool,
    /// Whether a signal or a tracer has stopped the thread.
    pub stopped: bool,
    /// The object; `None` if the system call names none, or if it cannot be read.
    pub object: Option<WaitedObject>,
}

impl Target {
    /// Whether a thread of the target waits for a change of the futex at an address. `None` if the thread is on a processor or ready for one, so that
    /// it may wait soon.
    pub fn waits_for_futex(&self, tid: Tid, address: Avma) -> Option<bool> {
        match procfs::in_kernel_of(self.pid(), tid) {
            Some(KernelSleep::Running) => None,
            Some(KernelSleep::Asleep { nr, args: [word, ..], .. }) => Some(nr == libc::SYS_futex && word == address.0),
            None => Some(false),
        }
    }
}

impl WaitDetails {
    /// Reads how a thread waits in a system call with these arguments. `None` if the thread has ended.
    pub(crate) fn of(target: &Target, tid: Tid, nr: i64, args: &[u64; 6]) -> Option<Self> {
        let stat = procfs::thread_stat_of(target.pid(), tid)?;
        let object = match nr {
            libc::SYS_futex => Some(WaitedObject::Futex {
                address: Avma(args[0]),
                operation: args[1] as u32,
                expected: args[2] as u32,
                owner: owner(target, Avma(args[0])),
            }),
            _ => descriptor(target, nr, args).and_then(|fd| file(target.pid(), fd)),
        };
        Some(WaitDetails { uninterruptible: stat.state == b'D', stopped: matches!(stat.state, b'T' | b't'), object })
    }
}

/// Distance of the holder's id from the futex in a mutex of glibc (nptl, `struct __pthread_mutex_s`).
const OWNER: i64 = 8;

/// The thread of the target that the memory behind a futex names; 0 if it names none.
fn owner(target: &Target, futex: Avma) -> u32 {
    let mut word = [0; 4];
    if target.read(futex.offset(OWNER), &mut word).is_err() {
        return 0;
    }
    let id = u32::from_le_bytes(word);
    let is_thread = i32::try_from(id).is_ok_and(|id| id > 0 && target.thread_began(Tid(id)).is_some());
    if is_thread { id } else { 0 }
}

/// The descriptor for which a system call waits; `None` if it waits for none or for several.
fn descriptor(target: &Target, nr: i64, args: &[u64; 6]) -> Option<i32> {
    match nr {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_sendto
        | libc::SYS_recvfrom
        | libc::SYS_sendmsg
        | libc::SYS_recvmsg
        | libc::SYS_sendmmsg
        | libc::SYS_recvmmsg
        | libc::SYS_connect
        | libc::SYS_accept
        | libc::SYS_accept4
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_sync_file_range
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_getdents64
        | libc::SYS_flock
        | libc::SYS_fcntl
        | libc::SYS_ioctl
        | libc::SYS_sendfile => i32::try_from(args[0]).ok(),
        libc::SYS_poll | libc::SYS_ppoll if args[1] == 1 => {
            let mut first = [0; POLLED];
            target.read(Avma(args[0]), &mut first).ok()?;
            Some(i32::from_le_bytes(first)).filter(|fd| *fd >= 0)
        }
        _ => None,
    }
}

fn file(pid: Pid, fd: i32) -> Option<WaitedObject> {
    let link = fs::read_link(format!("/proc/{pid}/fd/{fd}")).ok()?;
    Some(WaitedObject::File(link.to_string_lossy().into_owned()))
}

/// The other side of a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketPeer {
    /// Address and port of the other side, or the path of a Unix socket; empty if it is not known.
    pub address: String,
    /// Whether the other side has connected to this process: the local port is one at which a socket of the network namespace listens, or the
    /// socket has the path of a listening one. Also true of a socket that listens itself, which waits for others to connect.
    pub accepted: bool,
}

/// The inode in the link text of a socket; `None` for other files.
pub fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

/// The peers of these sockets, by inode, in the network namespace of a process. A socket that is in no table is left out.
pub fn socket_peers(target: &Target, wanted: &HashSet<u64>) -> HashMap<u64, SocketPeer> {
    let table = |name: &str| {
        let mut text = Vec::new();
        if let Ok(file) = fs::File::open(format!("/proc/{}/net/{name}", target.pid())) {
            // Lines that were read before an error are used.
            let _ = file.take(TABLE_MAX).read_to_end(&mut text);
        }
        String::from_utf8_lossy(&text).into_owned()
    };
    let mut peers = internet_peers(&[table("tcp"), table("tcp6")], wanted);
    if peers.len() < wanted.len() {
        peers.extend(internet_peers(&[table("udp"), table("udp6")], wanted));
    }
    if peers.len() < wanted.len() {
        peers.extend(unix_peers(&table("unix"), wanted));
    }
    peers
}

/// Peers from tables such as /proc/PID/net/tcp.
fn internet_peers(tables: &[String], wanted: &HashSet<u64>) -> HashMap<u64, SocketPeer> {
    let (mut listening, mut found) = (HashSet::new(), Vec::new());
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, local, remote, state, _, _, _, _, _, inode, ..] = words.as_slice() else { continue };
        let (Some(local), Some(remote)) = (socket_address(local), socket_address(remote)) else { continue };
        if *state == LISTENS {
            listening.insert(local.port());
        }
        if let Some(inode) = inode.parse().ok().filter(|inode| wanted.contains(inode)) {
            found.push((inode, local.port(), remote));
        }
    }
    found
        .into_iter()
        .map(|(inode, port, remote)| {
            // A socket without a peer takes datagrams from anybody.
            let open = remote.port() == 0;
            let address = if open { String::new() } else { remote.to_string() };
            (inode, SocketPeer { address, accepted: open || listening.contains(&port) })
        })
        .collect()
}

/// An address and a port of such a table: words of the address in the byte order of the machine, `:`, and the port, all in hexadecimal.
fn socket_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(address.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (i, to) in bytes.chunks_exact_mut(4).enumerate() {
                to.copy_from_slice(&word(8 * i)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// Peers from /proc/PID/net/unix. The table has no peers, but an accepted socket has the path of the one that listens.
fn unix_peers(table: &str, wanted: &HashSet<u64>) -> HashMap<u64, SocketPeer> {
    let mut found = HashMap::new();
    let mut listening = HashSet::new();
    for line in table.lines().skip(1) {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, flags, _, _, inode, path @ ..] = words.as_slice() else { continue };
        let path = path.join(" ");
        if u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & ACCEPTS != 0) {
            listening.insert(path.clone());
        }
        if let Some(inode) = inode.parse().ok().filter(|inode| wanted.contains(inode)) {
            found.insert(inode, SocketPeer { address: path, accepted: false });
        }
    }
    for peer in found.values_mut() {
        peer.accepted = !peer.address.is_empty() && listening.contains(&peer.address);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets() {
        let of = |text| socket_address(text).map(|address| address.to_string());
        assert_eq!(of("0100007F:1F90").as_deref(), Some("127.0.0.1:8080"));
        assert_eq!(of("00000000000000000000000001000000:0050").as_deref(), Some("[::1]:80"));
        assert_eq!(of("0000000000000000FFFF00000100007F:0050").as_deref(), Some("127.0.0.1:80"), "a mapped one");
        for wrong in ["", ":", "0100007F", "01:0050", "0100007F:10000", "é100007F:0050"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn accepted_connections_are_told_from_own_ones() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 0 0 100 1 0 10\n\
            1: 0100007F:1F90 0100007F:9C40 01 0:0 0:0 0 0 0 101 1 0 10\n\
            2: 0100007F:9C41 0100007F:270F 01 0:0 0:0 0 0 0 102 1 0 10\n\
            3: 0100007F:9C42 00000000:0000 07 0:0 0:0 0 0 0 103 1 0 10\n garbage\n";
        let peers = internet_peers(&[table.to_owned()], &HashSet::from([100, 101, 102, 103, 104]));
        let of = |inode| peers.get(&inode).map(|peer: &SocketPeer| (peer.address.as_str(), peer.accepted));
        assert_eq!(of(100), Some(("", true)), "a socket that listens");
        assert_eq!(of(101), Some(("127.0.0.1:40000", true)));
        assert_eq!(of(102), Some(("127.0.0.1:9999", false)));
        assert_eq!(of(103), Some(("", true)), "datagrams from anybody");
        assert_eq!(of(104), None);
    }

    #[test]
    fn accepted_unix_sockets_have_the_path_of_the_listener() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0: 00000002 00000000 00010000 0001 01 100 /run/s\n\
            0: 00000003 00000000 00000000 0001 03 101 /run/s\n\
            0: 00000003 00000000 00000000 0001 03 102\n";
        let peers = unix_peers(table, &HashSet::from([100, 101, 102]));
        assert!(peers[&100].accepted, "a socket that listens");
        assert_eq!(peers[&101], SocketPeer { address: "/run/s".to_owned(), accepted: true });
        assert_eq!(peers[&102], SocketPeer { address: String::new(), accepted: false });
        assert_eq!((socket_inode("socket:[12]"), socket_inode("pipe:[12]")), (Some(12), None));
    }
}
