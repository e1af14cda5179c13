//! The other sides of sockets that threads of a target wait for.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use ingraft_process::{SocketPeer, Target, WaitedObject, socket_inode, socket_peers};
use rustc_hash::FxHashMap;

use crate::api::{WaitedKind, WaitedThing};

/// Shortest time between two readings of the tables of sockets.
const PAUSE: Duration = Duration::from_millis(200);
/// Number of times that the pause after a reading is longer than the reading: tables may have many thousands of lines.
const SHARE: u32 = 50;
/// Number of sockets that are remembered.
const KNOWN_MAX: usize = 1 << 14;

/// The sockets that were met.
#[derive(Debug, Default)]
pub(super) struct SocketPeers {
    /// By inode; `None` for a socket that no table had.
    known: FxHashMap<u64, Option<SocketPeer>>,
    /// Time from which on the tables may be read again; `None` before the first reading.
    due: Option<Instant>,
}

impl SocketPeers {
    /// Looks for the other sides of the sockets among these objects that are not known yet.
    pub fn find<'o>(&mut self, target: &Target, objects: impl Iterator<Item = &'o WaitedObject>) {
        let inodes = objects.filter_map(|object| match object {
            WaitedObject::File(link) => socket_inode(link),
            WaitedObject::Futex { .. } => None,
        });
        let wanted: HashSet<u64> = inodes.filter(|inode| !self.known.contains_key(inode)).collect();
        let begin = Instant::now();
        if wanted.is_empty() || self.due.is_some_and(|due| begin < due) {
            return;
        }
        if self.known.len() > KNOWN_MAX {
            self.known.clear();
        }
        let mut found = socket_peers(target, &wanted);
        self.known.extend(wanted.into_iter().map(|inode| (inode, found.remove(&inode))));
        self.due = Some(begin + PAUSE.max(begin.elapsed() * SHARE));
    }

    /// An object with what is known of it.
    pub fn describe(&self, object: &WaitedObject) -> WaitedThing {
        let name = match object {
            WaitedObject::File(name) => name,
            WaitedObject::Futex { address, operation, expected, owner } => {
                let (operation, expected, owner) = (*operation, *expected, *owner);
                let kind = WaitedKind::Futex;
                return WaitedThing { kind, address: address.0, operation, expected, owner, ..WaitedThing::default() };
            }
        };
        let peer = socket_inode(name).and_then(|inode| self.known.get(&inode)?.clone());
        let accepted = peer.as_ref().is_some_and(|peer| peer.accepted);
        let peer = peer.map(|peer| peer.address).unwrap_or_default();
        WaitedThing { kind: kind_of(name), name: name.clone(), peer, accepted, ..WaitedThing::default() }
    }
}

/// The kind of a file, by the text of its link in /proc/PID/fd.
fn kind_of(link: &str) -> WaitedKind {
    match link {
        _ if link.starts_with("socket:") => WaitedKind::Socket,
        _ if link.starts_with("pipe:") => WaitedKind::Pipe,
        _ if link.starts_with("/dev/") && !link.starts_with("/dev/shm/") => WaitedKind::Device,
        _ if link.starts_with('/') => WaitedKind::File,
        _ => WaitedKind::Anonymous,
    }
}

#[cfg(test)]
mod tests {
    use ingraft_model::Avma;

    use super::*;

    #[test]
    fn objects_are_described_by_their_links() {
        let links = ["socket:[1]", "pipe:[2]", "/dev/pts/0", "/dev/shm/a", "/var/a b", "anon_inode:[eventfd]", ""];
        let kinds = links.map(kind_of);
        use WaitedKind::{Anonymous, Device, File, Pipe, Socket};
        assert_eq!(kinds, [Socket, Pipe, Device, File, File, Anonymous, Anonymous]);
    }

    #[test]
    fn sockets_have_their_peers() {
        let peer = SocketPeer { address: "127.0.0.1:9999".to_owned(), accepted: false };
        let peers = SocketPeers { known: [(7, Some(peer)), (8, None)].into_iter().collect(), due: None };
        let of = |link: &str| peers.describe(&WaitedObject::File(link.to_owned()));
        assert_eq!((of("socket:[7]").peer, of("socket:[7]").accepted), ("127.0.0.1:9999".to_owned(), false));
        assert_eq!((of("socket:[8]").peer, of("socket:[9]").peer), (String::new(), String::new()));
        let futex = peers.describe(&WaitedObject::Futex { address: Avma(64), operation: 128, expected: 2, owner: 9 });
        assert_eq!((futex.kind, futex.address, futex.expected, futex.owner), (WaitedKind::Futex, 64, 2, 9));
    }
}
