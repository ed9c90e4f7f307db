//! Limits unauthenticated connections, globally and per origin.
//!
//! Each service that others can connect to has its own [`ConnectionLimiter`] with a bounded number
//! of permits. A connection acquires a permit, and releases it when its peer is authenticated or
//! the connection closes. When all permits are in use, the one idle for longest is evicted, so that
//! idle connections do not keep others out. One origin (an IPv4 address, the /64 of an IPv6
//! address, a user of this machine) gets a part of the permits only. A connection that has sent
//! nothing yet, or finds no permit, waits in a [`Queue`].
//!
//! Depends on tokio only, and not on the service.

mod log_throttle;
mod queue;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use log_throttle::{LinePermit, LogThrottle};
pub use queue::{Queue, QueueLimits, Tcp, Visitor};

/// Time for which an idle permit cannot be evicted. Applies only when no permit is free.
const GRACE: Duration = Duration::from_secs(2);
/// The same for a connection that has made progress: its line may be slow, or this service under
/// load.
const GRACE_PROGRESSED: Duration = Duration::from_secs(5);

/// Source of a connection, as far as the system knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This machine: tests, demos, tunnels and proxies share one address, so only the total limits
    /// it.
    Loopback,
    /// An IPv4 address, also one mapped into IPv6; in network byte order.
    V4([u8; 4]),
    /// The network of an IPv6 address: the owner of one address of a /64 has all of them.
    V6([u16; 4]),
    /// A user of this machine.
    User(Option<u32>),
}

impl Origin {
    /// Returns the origin of a TCP connection.
    #[must_use]
    pub fn of(peer: IpAddr) -> Self {
        match peer.to_canonical() {
            peer if peer.is_loopback() => Self::Loopback,
            IpAddr::V4(peer) => Self::V4(peer.octets()),
            IpAddr::V6(peer) => Self::V6(network(peer)),
        }
    }
}

fn network(address: Ipv6Addr) -> [u16; 4] {
    let [a, b, c, d, ..] = address.segments();
    [a, b, c, d]
}

/// Numbers of permits, at least 1 each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Permits for all origins together.
    pub total: usize,
    /// Permits for one origin.
    pub per_origin: usize,
}

/// Hands out permits to connections, and evicts idle ones.
#[derive(Debug)]
pub struct ConnectionLimiter {
    limits: ConnectionLimits,
    state: Mutex<State>,
    /// Notified when a permit is released.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    holders: HashMap<u64, Holder>,
    per_origin: HashMap<Origin, usize>,
}

/// A permit in use.
#[derive(Debug)]
struct Holder {
    origin: Origin,
    since: Instant,
    has_progressed: bool,
    /// Set while the connection is served: it is not evicted.
    busy: bool,
    evicted: Arc<Notify>,
}

/// Permission for one unauthenticated connection; dropping it releases the permit.
#[derive(Debug)]
pub struct Permit {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    origin: Origin,
    evicted: Arc<Notify>,
}

/// Protects its permit from eviction until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Permit>);

/// Gives its permit back until it is dropped.
#[derive(Debug)]
pub struct Suspended(Arc<Permit>);

impl Holder {
    /// Returns the time from which the permit can be evicted.
    fn evictable_at(&self) -> Instant {
        let grace = match self.origin {
            // A user of this machine has no slow line.
            Origin::User(_) => Duration::ZERO,
            _ if self.has_progressed => GRACE_PROGRESSED,
            _ => GRACE,
        };
        self.since + grace
    }
}

/// Reason why there is no permit, with the time at which one becomes evictable, if known.
enum NoPermit {
    /// The origin has used up its part.
    OriginFull(Option<Instant>),
    /// All permits are in use.
    Full(Option<Instant>),
}

impl ConnectionLimiter {
    /// Returns a limiter with all permits free.
    #[must_use]
    pub fn new(limits: ConnectionLimits) -> Arc<Self> {
        let limits = ConnectionLimits { total: limits.total.max(1), per_origin: limits.per_origin.max(1) };
        Arc::new(Self { limits, state: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires a permit if one is free or can be evicted now.
    pub fn try_acquire(self: &Arc<Self>, origin: Origin) -> Option<Permit> {
        self.acquire(origin).ok()
    }

    fn acquire(self: &Arc<Self>, origin: Origin) -> Result<Permit, NoPermit> {
        let mut state = self.lock();
        state.make_free(origin, self.limits, Instant::now())?;
        let (number, evicted) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.insert(number, origin, &evicted);
        Ok(Permit { limiter: Arc::clone(self), number, origin, evicted })
    }
}

impl State {
    /// Makes sure that a permit is free, if necessary by evicting the one idle for longest.
    fn make_free(&mut self, origin: Origin, limits: ConnectionLimits, now: Instant) -> Result<(), NoPermit> {
        let own = self.per_origin.get(&origin).copied().unwrap_or_default();
        if origin != Origin::Loopback && own >= limits.per_origin && limits.per_origin < limits.total {
            let oldest_idle = self.oldest_idle(|holder| holder.origin == origin);
            return self.evict(oldest_idle, now).map_err(NoPermit::OriginFull);
        }
        if self.holders.len() < limits.total {
            return Ok(());
        }
        // Evicts from one of the origins that have most permits.
        let most = |origin: Origin| self.per_origin.get(&origin).copied().unwrap_or_default();
        let idle = self.holders.values().filter(|holder| !holder.busy && holder.evictable_at() <= now);
        let largest = idle.map(|holder| most(holder.origin)).max();
        let oldest_idle =
            self.oldest_idle(|holder| largest.is_none_or(|largest| most(holder.origin) == largest));
        self.evict(oldest_idle, now).map_err(NoPermit::Full)
    }

    /// Returns the evictable permit among some that has been idle for longest, and from when it can
    /// be evicted.
    fn oldest_idle(&self, of: impl Fn(&Holder) -> bool) -> Option<(u64, Instant)> {
        let idle = self.holders.iter().filter(|(_, holder)| !holder.busy && of(holder));
        idle.map(|(number, holder)| (*number, holder.evictable_at()))
            .min_by_key(|(number, evictable_at)| (*evictable_at, *number))
    }

    /// Evicts a permit if its time has come; otherwise returns that time.
    fn evict(&mut self, holder: Option<(u64, Instant)>, now: Instant) -> Result<(), Option<Instant>> {
        match holder {
            Some((number, evictable_at)) if evictable_at <= now => {
                if let Some(holder) = self.remove(number) {
                    holder.evicted.notify_one();
                }
                Ok(())
            }
            later => Err(later.map(|(_, evictable_at)| evictable_at)),
        }
    }

    fn insert(&mut self, number: u64, origin: Origin, evicted: &Arc<Notify>) {
        *self.per_origin.entry(origin).or_default() += 1;
        let (since, evicted) = (Instant::now(), Arc::clone(evicted));
        self.holders.insert(number, Holder { origin, since, has_progressed: false, busy: false, evicted });
    }

    fn remove(&mut self, number: u64) -> Option<Holder> {
        let holder = self.holders.remove(&number)?;
        if let Some(count) = self.per_origin.get_mut(&holder.origin) {
            *count -= 1;
            if *count == 0 {
                self.per_origin.remove(&holder.origin);
            }
        }
        Some(holder)
    }
}

impl Permit {
    /// Returns when the permit has been evicted. For one caller; safe to cancel.
    pub async fn evicted(&self) {
        self.evicted.notified().await;
    }

    /// Returns the origin of the connection.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Restarts the idle time, which is longer than before the first progress. Called once per step
    /// of a handshake.
    pub fn progressed(&self) {
        if let Some(holder) = self.limiter.lock().holders.get_mut(&self.number) {
            holder.has_progressed = true;
            holder.since = Instant::now();
        }
    }

    /// Protects the permit from eviction until the result is dropped.
    #[must_use]
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.set_busy(true);
        Busy(Arc::clone(self))
    }

    /// Gives the permit back until the result is dropped: other limits apply to a connection served
    /// for long.
    #[must_use]
    pub fn suspend(self: &Arc<Self>) -> Suspended {
        drop(self.limiter.lock().remove(self.number));
        self.limiter.freed.notify_one();
        Suspended(Arc::clone(self))
    }

    fn set_busy(&self, busy: bool) {
        if let Some(holder) = self.limiter.lock().holders.get_mut(&self.number) {
            holder.busy = busy;
            holder.since = Instant::now();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set_busy(false);
        self.0.limiter.freed.notify_one();
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        self.0.limiter.lock().insert(self.0.number, self.0.origin, &self.0.evicted);
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        drop(self.limiter.lock().remove(self.number));
        self.limiter.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
