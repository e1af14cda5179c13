//! Quotas of users, and the table of the resources that each user has: connections, calls, bytes of requests, measurements, definitions.
//!
//! Every quota has a holder: the user at the other end of a Unix socket, the clients with the token, or the clients with one certificate. A
//! client on TCP that has not authenticated yet is a stranger; strangers are counted by the network address that they come from. Some
//! connections and some bytes are reserved for trusted holders: root, the daemon's own user, and clients that have authenticated.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ingraft_api::Reason;
use ingraft_engine::MeasurementId;
use ingraft_wire::ProtocolFailure;
use tokio::sync::{Notify, Semaphore};

mod answers;
mod pool;

pub use answers::{CountedBytes, Payer};
use pool::{Pool, Sizes, Standing};

/// The configured quotas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Maximum number of all connections, but at most a quarter of the descriptors that the daemon may open.
    pub connections: usize,
    /// Maximum number of connections of one user.
    pub user_connections: usize,
    /// Maximum number of calls of one user in progress, including streams.
    pub user_calls: usize,
    /// Maximum number of measurements of one user.
    pub user_measurements: usize,
    /// Maximum number of metric-focus pairs in one user's measurements.
    pub user_pairs: usize,
    /// Maximum number of histories of one user's measurements. Each pair has one, and another one in each phase.
    pub user_histories: usize,
    /// Maximum number of bytes of MDL that the daemon keeps by `Metrics.Define`.
    pub definitions: usize,
}

impl Default for Quotas {
    fn default() -> Self {
        Quotas {
            connections: 256,
            user_connections: 64,
            user_calls: 1000,
            user_measurements: 1024,
            user_pairs: 250_000,
            user_histories: 4096,
            definitions: 4 << 20,
        }
    }
}

/// Reciprocal of the share of all connections that users other than trusted holders and strangers may not take.
const RESERVED: usize = 8;
/// Reciprocal of the largest share of all connections that strangers may have together. If one more stranger connects, the daemon ends the
/// connection of another one.
const STRANGERS: usize = 4;
/// Maximum number of refused connections whose requests are answered with the error: of one holder, and in all. Further ones are closed at
/// once.
const TURNED_AWAY: (usize, usize) = (4, 16);
/// Maximum number of calls in progress of one stranger. Such calls can only read the list of services and their health.
const STRANGERS_CALLS: usize = 100;
/// Maximum number of simultaneous calls of the engine for one holder. Further calls wait. The runtime has 512 threads for such calls.
pub const TURNS: u32 = 32;
/// Maximum number of bytes of one holder's requests in the daemon at a time.
pub const REQUEST_BYTES: usize = 16 << 20;
/// Pool of the bytes of requests in progress. The share of strangers is small, because their requests contain only names of services.
const REQUESTS: Sizes =
    Sizes { all: 64 << 20, reserved: 16 << 20, strangers: 4 << 20, each: REQUEST_BYTES, each_stranger: 256 << 10 };
/// Pool of the bytes of answers that wait to be read. The share of strangers is small, because their answers contain only names of
/// services.
const ANSWERS: Sizes =
    Sizes { all: 64 << 20, reserved: 16 << 20, strangers: 4 << 20, each: 64 << 20, each_stranger: 1 << 20 };
/// Delay that a refused client is told before it tries again. By then, another connection or call may have ended.
const SOON: Duration = Duration::from_secs(1);

/// The party whose connections, calls and bytes are counted together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QuotaHolder {
    /// The user at the other end of a Unix socket.
    User(u32),
    /// All clients that have sent the token.
    Token,
    /// All clients with this certificate, identified by the SHA-256 of its encoding.
    Certificate([u8; 32]),
    /// A client on TCP that has not authenticated: its network address, as [`place`] returns it, and its user if it is on this machine.
    Stranger(IpAddr, Option<u32>),
    /// The peer of a Unix socket whose user the kernel does not report.
    Nobody,
}

/// Returns the address under which connections from an address are counted. One client can have all addresses of the loopback interface, or
/// all of an IPv6 network with a prefix of 64 bits. So all addresses of such a network count as one.
pub fn place(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        address if address.is_loopback() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address @ IpAddr::V4(_) => address,
    }
}

impl fmt::Display for QuotaHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QuotaHolder::User(uid) => write!(f, "user {uid}"),
            QuotaHolder::Token => write!(f, "the holder of the token"),
            QuotaHolder::Certificate(digest) => {
                write!(f, "the certificate SHA256:")?;
                digest.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            QuotaHolder::Stranger(address, None) => write!(f, "{address}"),
            QuotaHolder::Stranger(address, Some(uid)) => write!(f, "user {uid} at {address}"),
            QuotaHolder::Nobody => write!(f, "an unknown user"),
        }
    }
}

/// A holder's numbers of connections, calls and insertions, and its measurements, each with its number of pairs.
#[derive(Debug, Default)]
struct HolderAccount {
    connections: usize,
    turned_away: usize,
    calls: usize,
    /// Insertions in progress.
    begun: usize,
    measurements: BTreeMap<MeasurementId, usize>,
    turns: Option<Arc<Semaphore>>,
}

impl HolderAccount {
    fn is_empty(&self) -> bool {
        (self.connections, self.turned_away, self.calls, self.begun) == (0, 0, 0, 0) && self.measurements.is_empty()
    }
}

#[derive(Debug, Default)]
struct QuotaState {
    connections: usize,
    turned_away: usize,
    accounts: HashMap<QuotaHolder, HolderAccount>,
    /// Connections of strangers, the oldest first, except those that were told to make room.
    strangers: VecDeque<(QuotaHolder, Arc<Notify>)>,
    /// Number of strangers' connections that were told to make room and have not ended yet.
    leaving: usize,
}

impl QuotaState {
    fn account(&mut self, holder: QuotaHolder) -> &mut HolderAccount {
        self.accounts.entry(holder).or_default()
    }

    /// Returns the stranger with the most connections.
    fn crowd(&self) -> Option<QuotaHolder> {
        let mut count: HashMap<QuotaHolder, usize> = HashMap::new();
        self.strangers.iter().for_each(|(other, _)| *count.entry(*other).or_default() += 1);
        count.into_iter().max_by_key(|(_, n)| *n).map(|(other, _)| other)
    }

    /// Tells the oldest connection of the stranger with the most connections to end, so that many connections from one address do not
    /// displace those from another. Returns false if no stranger is connected.
    fn make_room(&mut self) -> bool {
        let crowd = self.crowd();
        let at = self.strangers.iter().position(|(other, _)| crowd == Some(*other));
        let Some((_, oldest)) = at.and_then(|at| self.strangers.remove(at)) else { return false };
        oldest.notify_one();
        self.leaving += 1;
        true
    }

    /// Changes an account, and removes it from the table if it is then empty.
    fn settle<T>(&mut self, holder: QuotaHolder, change: impl FnOnce(&mut HolderAccount) -> T) -> T {
        let account = self.account(holder);
        let out = change(account);
        if account.is_empty() {
            self.accounts.remove(&holder);
        }
        out
    }
}

/// The table of the resources that all holders use.
#[derive(Debug)]
pub struct ResourceTable {
    quotas: Quotas,
    own: u32,
    state: Mutex<QuotaState>,
    requests: Mutex<Pool>,
    answers: Mutex<Pool>,
    /// Number of refused requests by reason.
    refusals: Mutex<BTreeMap<String, u64>>,
}

/// Decision about a new connection.
#[derive(Debug)]
pub enum Admission {
    /// The connection is served.
    Seat(Seat),
    /// The connection is served for a short time, and every request gets this error.
    TurnedAway(Seat, ProtocolFailure),
    /// The connection is closed at once.
    Closed(ProtocolFailure),
}

impl ResourceTable {
    /// Returns an empty table for a daemon that may open `files` files. Connections take at most a quarter of them.
    pub fn new(quotas: Quotas, files: usize) -> Arc<ResourceTable> {
        let connections = quotas.connections.min(files / 4).max(RESERVED);
        let own = nix::unistd::geteuid().as_raw();
        Arc::new(ResourceTable {
            quotas: Quotas { connections, ..quotas },
            own,
            state: Mutex::default(),
            requests: Mutex::new(Pool::new(REQUESTS)),
            answers: Mutex::new(Pool::new(ANSWERS)),
            refusals: Mutex::default(),
        })
    }

    /// Returns the quotas in force.
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Counts a request that was refused for this reason.
    pub fn note_refusal(&self, reason: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals.entry(reason.to_owned()).or_default() += 1;
    }

    /// Returns the numbers of refused requests by reason.
    pub fn refusals(&self) -> BTreeMap<String, u64> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn state(&self) -> MutexGuard<'_, QuotaState> {
        // Every change is one call of a method, so a panic leaves the table consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standing(&self, holder: QuotaHolder) -> Standing {
        match holder {
            QuotaHolder::User(uid) if uid == 0 || uid == self.own => Standing::Trusted,
            QuotaHolder::Token | QuotaHolder::Certificate(_) => Standing::Trusted,
            QuotaHolder::User(_) => Standing::User,
            QuotaHolder::Stranger(..) | QuotaHolder::Nobody => Standing::Stranger,
        }
    }

    fn is_trusted(&self, holder: QuotaHolder) -> bool {
        self.standing(holder) == Standing::Trusted
    }

    /// Decides about a new connection.
    pub fn admit(self: &Arc<Self>, holder: QuotaHolder) -> Admission {
        let mut state = self.state();
        let refusal = self.refuse_connection(&mut state, holder);
        let seat = |kind| Seat { table: Arc::clone(self), holder: Mutex::new((holder, kind)), evicted: Arc::default() };
        let Err(failure) = refusal else {
            state.connections += 1;
            state.account(holder).connections += 1;
            let seat = seat(SeatKind::Served);
            if let QuotaHolder::Stranger(..) = holder {
                state.strangers.push_back((holder, Arc::clone(&seat.evicted)));
            }
            return Admission::Seat(seat);
        };
        if state.turned_away < TURNED_AWAY.1 && state.account(holder).turned_away < TURNED_AWAY.0 {
            state.turned_away += 1;
            state.account(holder).turned_away += 1;
            return Admission::TurnedAway(seat(SeatKind::TurnedAway), failure);
        }
        state.settle(holder, |_| ());
        Admission::Closed(failure)
    }

    /// Refuses a connection if there is no room for it.
    ///
    /// Every client on TCP begins as a stranger, even one that will send the token. So strangers may use the reserved connections too, but
    /// not permanently: the oldest makes room for another stranger, or for a trusted holder.
    fn refuse_connection(&self, state: &mut QuotaState, holder: QuotaHolder) -> Result<(), ProtocolFailure> {
        let all = self.quotas.connections;
        let unreserved = all - all / RESERVED;
        match self.standing(holder) {
            Standing::Trusted if state.connections < all || state.make_room() => Ok(()),
            Standing::Trusted => Err(daemon_full(state.connections, all)),
            Standing::Stranger if matches!(holder, QuotaHolder::Stranger(..)) => {
                let most = (all / STRANGERS).max(1);
                if state.connections < all && state.strangers.len() < most {
                    return Ok(());
                }
                // A connection that was told to make room counts until it has ended. So new strangers are admitted no faster than old ones
                // leave.
                let is_late = state.leaving >= 2 * most || state.leaving >= most && state.crowd() == Some(holder);
                if is_late || !state.make_room() { Err(daemon_full(state.connections, all)) } else { Ok(()) }
            }
            Standing::User | Standing::Stranger => {
                let (own, most) = (state.account(holder).connections, self.quotas.user_connections);
                if own >= most {
                    return Err(used_up(holder, "connections", "max-user-connections", own, most, 1).retry_after(SOON));
                }
                if state.connections >= unreserved { Err(daemon_full(state.connections, all)) } else { Ok(()) }
            }
        }
    }

    /// Counts a call of a holder. Fails if the holder has too many calls in progress.
    pub fn call(self: &Arc<Self>, holder: QuotaHolder) -> Result<CountedCall, ProtocolFailure> {
        let mut state = self.state();
        let calls = state.account(holder).calls;
        let most = match holder {
            QuotaHolder::Stranger(..) | QuotaHolder::Nobody => self.quotas.user_calls.min(STRANGERS_CALLS),
            QuotaHolder::User(_) | QuotaHolder::Token | QuotaHolder::Certificate(_) => self.quotas.user_calls,
        };
        if calls >= most {
            state.settle(holder, |_| ());
            return Err(used_up(holder, "calls in progress", "max-user-calls", calls, most, 1).retry_after(SOON));
        }
        let account = state.account(holder);
        account.calls += 1;
        account.turns.get_or_insert_with(|| Arc::new(Semaphore::new(TURNS as usize)));
        Ok(CountedCall { table: Arc::clone(self), holder, bytes: 0 })
    }

    /// Counts a measurement that is about to be inserted with at least `pairs` pairs. `alive` returns the current number of pairs of a
    /// measurement, or `None` if the measurement is gone.
    pub fn begin(
        self: &Arc<Self>,
        holder: QuotaHolder,
        pairs: usize,
        alive: impl Fn(MeasurementId) -> Option<usize>,
    ) -> Result<Begun, ProtocolFailure> {
        self.refresh(holder, alive);
        let mut state = self.state();
        let account = state.account(holder);
        let have = account.measurements.len() + account.begun;
        let (all, known) = (self.quotas.user_measurements, account.measurements.values().sum());
        let room = match () {
            () if have >= all => Err(used_up(holder, "measurements", "max-user-measurements", have, all, 1)),
            () => self.refuse_more_pairs(holder, known, pairs),
        };
        if let Err(failure) = room {
            state.settle(holder, |_| ());
            return Err(failure);
        }
        account.begun += 1;
        Ok(Begun { table: Arc::clone(self), holder, done: false })
    }

    /// Fails if the holder has no room for `more` pairs.
    pub fn refuse_pairs(&self, holder: QuotaHolder, more: usize) -> Result<(), ProtocolFailure> {
        self.refuse_more_pairs(holder, self.pairs(holder), more)
    }

    /// Returns the number of pairs of a holder's measurements.
    fn pairs(&self, holder: QuotaHolder) -> usize {
        self.state().accounts.get(&holder).map_or(0, |account| account.measurements.values().sum())
    }

    /// Returns how many more pairs a holder may have, and how many more histories if it has `histories` already.
    pub fn room(&self, holder: QuotaHolder, histories: usize) -> (usize, usize) {
        let Quotas { user_pairs, user_histories, .. } = self.quotas;
        (user_pairs.saturating_sub(self.pairs(holder)), user_histories.saturating_sub(histories))
    }

    fn refuse_more_pairs(&self, holder: QuotaHolder, have: usize, more: usize) -> Result<(), ProtocolFailure> {
        let all = self.quotas.user_pairs;
        if have.saturating_add(more) > all {
            return Err(used_up(holder, "metric-focus pairs", "max-user-pairs", have, all, more));
        }
        Ok(())
    }

    /// Updates the pair counts of a holder's measurements from the engine: `alive` returns the current number of pairs, or `None` if the
    /// measurement is gone.
    pub fn refresh(&self, holder: QuotaHolder, alive: impl Fn(MeasurementId) -> Option<usize>) {
        // `alive` calls the engine, so do not hold the lock here.
        let ids: Vec<_> = self.state().account(holder).measurements.keys().copied().collect();
        let known: Vec<_> = ids.into_iter().map(|id| (id, alive(id))).collect();
        self.state().settle(holder, |account| {
            for (id, pairs) in known {
                match pairs {
                    Some(pairs) => _ = account.measurements.entry(id).and_modify(|known| *known = pairs),
                    None => _ = account.measurements.remove(&id),
                }
            }
        });
    }

    /// Returns the holder's measurements.
    pub fn measurements(&self, holder: QuotaHolder) -> Vec<MeasurementId> {
        self.state().accounts.get(&holder).map_or_else(Vec::new, |a| a.measurements.keys().copied().collect())
    }

    /// Fails if the holder has `have` histories and no room for `more`.
    pub fn refuse_histories(&self, holder: QuotaHolder, have: usize, more: usize) -> Result<(), ProtocolFailure> {
        let all = self.quotas.user_histories;
        if have.saturating_add(more) > all {
            return Err(used_up(holder, "histories", "max-user-histories", have, all, more));
        }
        Ok(())
    }

    /// Fails if the daemon keeps `have` bytes of definitions and has no room for `more`.
    pub fn refuse_definitions(&self, have: usize, more: usize) -> Result<(), ProtocolFailure> {
        let all = self.quotas.definitions;
        if have.saturating_add(more) > all {
            let what = format!("the daemon keeps {have} of {all} bytes of definitions; {more} more do not fit");
            let hint = "send them with the requests that need them, or have max-definitions of ingraftd raised";
            return Err(ProtocolFailure::new(Reason::QuotaExceeded, what, hint));
        }
        Ok(())
    }

    /// Returns the quotas of a holder and its use of them, as (key of the configuration, quota, used).
    pub fn used(&self, holder: QuotaHolder) -> Vec<(&'static str, usize, usize)> {
        let state = self.state();
        let none = HolderAccount::default();
        let account = state.accounts.get(&holder).unwrap_or(&none);
        let quotas = &self.quotas;
        let user_connections = if self.is_trusted(holder) { quotas.connections } else { quotas.user_connections };
        vec![
            ("max-connections", quotas.connections, state.connections),
            ("max-user-connections", user_connections, account.connections),
            ("max-user-calls", quotas.user_calls, account.calls),
            ("max-user-measurements", quotas.user_measurements, account.measurements.len()),
            ("max-user-pairs", quotas.user_pairs, account.measurements.values().sum()),
        ]
    }
}

fn daemon_full(have: usize, all: usize) -> ProtocolFailure {
    ProtocolFailure::new(
        Reason::QuotaExceeded,
        format!("the daemon serves {have} of {all} connections (max-connections); the rest is reserved"),
        "try again later, or have max-connections of ingraftd raised",
    )
    .retry_after(SOON)
}

fn used_up(holder: QuotaHolder, things: &str, key: &str, have: usize, all: usize, more: usize) -> ProtocolFailure {
    let hint = match things {
        "connections" => format!("close some, or have {key} of ingraftd raised"),
        "calls in progress" => format!("end some, or have {key} of ingraftd raised"),
        _ => format!("remove measurements (`ingraft status` lists them), or have {key} of ingraftd raised"),
    };
    let more = if more == 1 { "one more does".to_owned() } else { format!("{more} more do") };
    let what = format!("{holder} has {have} of {all} {things} ({key}); {more} not fit");
    ProtocolFailure::new(Reason::QuotaExceeded, what, hint)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SeatKind {
    Served,
    TurnedAway,
}

/// A counted connection. Dropping it releases its place.
#[derive(Debug)]
pub struct Seat {
    table: Arc<ResourceTable>,
    holder: Mutex<(QuotaHolder, SeatKind)>,
    evicted: Arc<Notify>,
}

impl Seat {
    /// Returns the holder to which the connection counts at present.
    pub fn holder(&self) -> QuotaHolder {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    /// Returns when the connection is told to make room.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Counts the connection to `holder` from now on, because its client has authenticated. Until then it may have counted to a stranger.
    pub fn proven(&self, holder: QuotaHolder) {
        let mut mine = self.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if mine.0 == holder || mine.1 == SeatKind::TurnedAway {
            return;
        }
        let mut state = self.table.state();
        state.settle(mine.0, |account| account.connections -= 1);
        state.account(holder).connections += 1;
        self.leave_strangers(&mut state, mine.0);
        mine.0 = holder;
    }

    fn leave_strangers(&self, state: &mut QuotaState, holder: QuotaHolder) {
        let QuotaHolder::Stranger(..) = holder else { return };
        let before = state.strangers.len();
        state.strangers.retain(|(_, other)| !Arc::ptr_eq(other, &self.evicted));
        if state.strangers.len() == before {
            state.leaving -= 1;
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let (holder, kind) = *self.holder.get_mut().unwrap_or_else(PoisonError::into_inner);
        let table = Arc::clone(&self.table);
        let mut state = table.state();
        match kind {
            SeatKind::Served => {
                state.connections -= 1;
                state.settle(holder, |account| account.connections -= 1);
                self.leave_strangers(&mut state, holder);
            }
            SeatKind::TurnedAway => {
                state.turned_away -= 1;
                state.settle(holder, |account| account.turned_away -= 1);
            }
        }
    }
}

/// A call in progress and the bytes of its request. Dropping it releases both.
#[derive(Debug)]
pub struct CountedCall {
    table: Arc<ResourceTable>,
    holder: QuotaHolder,
    bytes: usize,
}

impl CountedCall {
    /// Returns the semaphore that limits the simultaneous calls of the engine for this call's holder.
    pub fn turns(&self) -> Arc<Semaphore> {
        let turns = self.table.state().account(self.holder).turns.clone();
        turns.unwrap_or_else(|| Arc::new(Semaphore::new(TURNS as usize)))
    }

    /// Returns the payer for the data that is kept for this call.
    pub fn payer(&self) -> Payer {
        Payer::new(&self.table, self.holder)
    }

    /// Counts bytes of the call's request. Fails if the holder's share or the pool has no room for them.
    pub fn receive(&mut self, bytes: usize) -> Result<(), ProtocolFailure> {
        let CountedCall { table, holder, .. } = self;
        let mut pool = locked(&table.requests);
        if !pool.take(*holder, table.standing(*holder), bytes) {
            let what = format!(
                "{holder} has {} bytes in requests that are in progress; {bytes} more do not fit",
                pool.of(*holder)
            );
            let hint = "send fewer requests at a time";
            return Err(ProtocolFailure::new(Reason::QuotaExceeded, what, hint).retry_after(SOON));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let CountedCall { table, holder, bytes } = self;
        locked(&table.requests).give_back(*holder, table.standing(*holder), *bytes);
        table.state().settle(*holder, |account| account.calls -= 1);
    }
}

fn locked(pool: &Mutex<Pool>) -> MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A measurement that is being inserted.
#[derive(Debug)]
pub struct Begun {
    table: Arc<ResourceTable>,
    holder: QuotaHolder,
    done: bool,
}

impl Begun {
    /// Counts the measurement as inserted with `pairs` pairs. Fails if the holder has no room for that many.
    pub fn inserted(mut self, id: MeasurementId, pairs: usize) -> Result<(), ProtocolFailure> {
        let table = Arc::clone(&self.table);
        let mut state = table.state();
        self.done = true;
        let account = state.account(self.holder);
        account.begun -= 1;
        let have = account.measurements.values().sum();
        let permitted = table.refuse_more_pairs(self.holder, have, pairs);
        if permitted.is_ok() {
            account.measurements.insert(id, pairs);
        }
        state.settle(self.holder, |_| ());
        permitted
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if !self.done {
            self.table.state().settle(self.holder, |account| account.begun -= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use ingraft_api::ErrorClass;

    use super::*;

    const QUOTAS: Quotas = Quotas {
        connections: 16,
        user_connections: 3,
        user_calls: 2,
        user_measurements: 2,
        user_pairs: 10,
        user_histories: 4,
        definitions: 100,
    };
    const ALICE: QuotaHolder = QuotaHolder::User(4_000_001);

    fn table() -> Arc<ResourceTable> {
        ResourceTable::new(QUOTAS, 1 << 20)
    }

    fn seat(table: &Arc<ResourceTable>, holder: QuotaHolder) -> Option<Seat> {
        match table.admit(holder) {
            Admission::Seat(seat) => Some(seat),
            Admission::TurnedAway(..) | Admission::Closed(_) => None,
        }
    }

    #[test]
    fn a_user_at_the_limit_leaves_room_for_others_and_for_root() {
        let table = table();
        let seats: Vec<_> = (0..20).filter_map(|_| seat(&table, ALICE)).collect();
        assert_eq!(seats.len(), QUOTAS.user_connections);
        let others: Vec<_> = (0..20).filter_map(|n| seat(&table, QuotaHolder::User(5_000_000 + n))).collect();
        assert_eq!(others.len(), 16 - 16 / RESERVED - seats.len(), "others fill all but the reserve");
        let root: Vec<_> = (0..20).filter_map(|_| seat(&table, QuotaHolder::User(0))).collect();
        assert_eq!(root.len(), 16 / RESERVED);
        drop(seats);
        assert!(seat(&table, ALICE).is_some());
        drop((others, root));
        assert!(table.state().accounts.is_empty(), "nothing is kept of those who have gone");
    }

    #[test]
    fn those_beyond_the_limit_are_told_why_as_long_as_they_are_few() {
        let table = table();
        let _seats: Vec<_> = (0..3).filter_map(|_| seat(&table, ALICE)).collect();
        let told: Vec<_> = (0..10)
            .filter_map(|_| match table.admit(ALICE) {
                Admission::TurnedAway(seat, failure) => Some((seat, failure)),
                Admission::Seat(_) | Admission::Closed(_) => None,
            })
            .collect();
        assert_eq!(told.len(), TURNED_AWAY.0);
        let failure = &told[0].1;
        assert_eq!((failure.class, failure.reason.as_str()), (ErrorClass::Exhausted, "quota_exceeded"));
        assert!(failure.what.contains("3 of 3 connections (max-user-connections)"), "{failure}");
        drop(told);
        assert!(matches!(table.admit(ALICE), Admission::TurnedAway(..)));
    }

    #[test]
    fn strangers_make_room_for_the_newest_and_are_none_once_proven() {
        let table = table();
        let stranger = QuotaHolder::Stranger([127, 0, 0, 1].into(), Some(7));
        let proven = seat(&table, stranger).unwrap();
        proven.proven(QuotaHolder::Token);
        let seats: Vec<_> = (0..4).map(|_| seat(&table, stranger).unwrap()).collect();
        let newest = seat(&table, stranger).unwrap();
        let other = seat(&table, QuotaHolder::Stranger([127, 0, 0, 1].into(), Some(8))).unwrap();
        let more: Vec<_> = (0..1).map(|_| seat(&table, stranger).unwrap()).collect();
        let told = |seat: &Seat| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(Duration::from_millis(5), seat.evicted()).await.is_ok() })
        };
        assert!((0..3).all(|n| told(&seats[n])) && !told(&seats[3]) && !told(&newest) && !told(&more[0]));
        assert!(!told(&proven) && !told(&other), "those of others are left alone");
        assert_eq!(proven.holder(), QuotaHolder::Token);
    }

    #[test]
    fn calls_and_their_bytes_are_counted() {
        let table = table();
        let mut first = table.call(ALICE).unwrap();
        let mut second = table.call(ALICE).unwrap();
        assert!(table.call(ALICE).unwrap_err().what.contains("2 of 2 calls in progress (max-user-calls)"));
        assert!(table.call(QuotaHolder::Token).is_ok());
        first.receive(REQUEST_BYTES - 1).unwrap();
        assert!(second.receive(2).is_err());
        drop(first);
        assert!(second.receive(2).is_ok());
        drop(second);
        assert!(table.state().accounts.is_empty() && locked(&table.requests).is_empty());
    }

    #[test]
    fn measurements_and_pairs_are_counted_as_the_engine_knows_them() {
        let table = table();
        let all = |_| Some(4);
        table.begin(ALICE, 1, all).unwrap().inserted(MeasurementId(1), 4).unwrap();
        drop(table.begin(ALICE, 1, all).unwrap());
        assert!(table.begin(ALICE, 7, all).unwrap_err().what.contains("4 of 10 metric-focus pairs"));
        assert!(table.begin(ALICE, 1, all).unwrap().inserted(MeasurementId(2), 7).is_err(), "counted when it is in");
        table.begin(ALICE, 1, all).unwrap().inserted(MeasurementId(2), 6).unwrap();
        let full = table.begin(ALICE, 0, all).unwrap_err();
        assert!(full.what.contains("2 of 2 measurements (max-user-measurements)"), "{full}");
        assert!(table.begin(ALICE, 0, |id| (id.0 == 1).then_some(4)).is_ok(), "one has gone");
        assert_eq!(table.measurements(ALICE), [MeasurementId(1)]);
        assert!(table.used(ALICE).contains(&("max-user-pairs", 10, 4)));
    }

    #[test]
    fn whoever_has_the_token_finds_room_when_users_have_used_up_theirs() {
        let table = table();
        let users: Vec<_> = (0..20).filter_map(|n| seat(&table, QuotaHolder::User(5_000_000 + n))).collect();
        assert_eq!(users.len(), 14);
        let stranger = |uid| QuotaHolder::Stranger(place([127, 0, 0, 1].into()), Some(uid));
        let crowd: Vec<_> = (0..2).map(|_| seat(&table, stranger(7)).unwrap()).collect();
        let late = seat(&table, stranger(8)).expect("a client that is about to show the token");
        late.proven(QuotaHolder::Token);
        let told = |seat: &Seat| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async { tokio::time::timeout(Duration::from_millis(5), seat.evicted()).await.is_ok() })
        };
        assert!(told(&crowd[0]) && !told(&crowd[1]));
        assert!(seat(&table, QuotaHolder::User(0)).is_some() && told(&crowd[1]), "strangers make room for root");
        assert!(seat(&table, QuotaHolder::User(6_000_000)).is_none(), "but not for other users");
        drop((users, crowd, late));
        assert!(table.state().accounts.is_empty() && table.state().leaving == 0);
    }

    #[test]
    fn one_client_is_at_one_place_whatever_its_address() {
        let place = |text: &str| place(text.parse().unwrap()).to_string();
        for address in ["127.0.0.1", "127.0.0.2", "127.255.1.2", "::1", "::ffff:127.0.0.3"] {
            assert_eq!(place(address), "127.0.0.1", "{address}");
        }
        assert_eq!(place("192.0.2.1"), "192.0.2.1");
        assert_eq!(place("::ffff:192.0.2.1"), "192.0.2.1");
        assert_eq!(place("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(place("2001:db8:1:2::9"), "2001:db8:1:2::");
    }

    #[test]
    fn bytes_of_requests_are_reserved_for_root() {
        let table = table();
        let mut calls: Vec<_> = (0..100).map(|n| table.call(QuotaHolder::User(5_000_000 + n)).unwrap()).collect();
        for call in &mut calls {
            while call.receive(64 << 10).is_ok() {}
        }
        let users: usize = calls.iter().map(|call| call.bytes).sum();
        assert!(users <= REQUESTS.all - REQUESTS.reserved, "{users}");
        assert!(calls[1].bytes > 0 && calls[4].bytes > 0, "those who come later find some");
        for trusted in [QuotaHolder::User(0), QuotaHolder::Token] {
            assert!(table.call(trusted).unwrap().receive(REQUEST_BYTES).is_ok(), "{trusted}");
        }
    }
}
