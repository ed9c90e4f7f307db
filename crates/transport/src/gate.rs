//! The door of a service: who may stand in it before anybody knows them, and for how long.
//!
//! Every service that others can connect to has a gate of its own, with a bounded number of places. Whoever connects takes
//! one, and gives it back when it is known and let in, or gone. When all places are taken, the guest that has stood about
//! for longest goes, so that nobody keeps others out by doing nothing. One origin (an IPv4 address, the /64 of an IPv6
//! address, a user of this machine) gets a part of the places only. Who has said nothing yet, or finds no place, waits in a
//! [`Queue`].
//!
//! Knows tokio and nothing of what is served.

mod queue;
mod seldom;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

pub use queue::{Queue, QueueLimits, Tcp, Visitor};
pub use seldom::Seldom;

/// How long a guest may stand about before it has to go for another one; only those who stand in a crowd are asked.
const GRACE: Duration = Duration::from_secs(2);
/// The same for one that has spoken: its line may be slow, or whoever serves the crowd.
const SPOKEN: Duration = Duration::from_secs(5);

/// Who comes, as far as the system tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// This machine: tests, demos, tunnels and proxies, all behind one address. Only the places bound it.
    Loopback,
    /// An IPv4 address.
    V4([u8; 4]),
    /// The network of an IPv6 address: whoever has one address of a /64 has all of them.
    V6([u16; 4]),
    /// A user of this machine.
    User(Option<u32>),
}

impl Origin {
    /// Of a connection over TCP.
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

/// How many may stand in the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateLimits {
    /// All of them.
    pub places: usize,
    /// Those of one origin.
    pub for_one: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Gate {
    limits: GateLimits,
    state: Mutex<State>,
    /// A place was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    standing: HashMap<u64, Standing>,
    of_origin: HashMap<Origin, usize>,
}

/// Somebody in the door.
#[derive(Debug)]
struct Standing {
    origin: Origin,
    since: Instant,
    has_spoken: bool,
    /// It is being served: nobody asks it to go.
    busy: bool,
    go: Arc<Notify>,
}

/// A connection that has a place; given back when it is dropped.
#[derive(Debug)]
pub struct Guest {
    gate: Arc<Gate>,
    number: u64,
    origin: Origin,
    go: Arc<Notify>,
}

/// While it lives, its guest is not asked to go.
#[derive(Debug)]
pub struct Busy(Arc<Guest>);

/// While it lives, its guest takes no place.
#[derive(Debug)]
pub struct Aside(Arc<Guest>);

impl Standing {
    /// Until when it is not asked to go.
    fn until(&self) -> Instant {
        let grace = match self.origin {
            // Who is on this machine has no slow line.
            Origin::User(_) => Duration::ZERO,
            _ if self.has_spoken => SPOKEN,
            _ => GRACE,
        };
        self.since + grace
    }
}

/// Why somebody gets no place: until when none can be made free, if that is known.
enum NoPlace {
    /// The origin has its part of the places.
    ForOrigin(Option<Instant>),
    /// All are taken.
    ForAll(Option<Instant>),
}

impl Gate {
    /// A gate with nobody in it.
    #[must_use]
    pub fn new(limits: GateLimits) -> Arc<Self> {
        let limits = GateLimits { places: limits.places.max(1), for_one: limits.for_one.max(1) };
        Arc::new(Self { limits, state: Mutex::default(), freed: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place if there is one now, or one can be made free.
    pub fn try_enter(self: &Arc<Self>, origin: Origin) -> Option<Guest> {
        self.look(origin).ok()
    }

    fn look(self: &Arc<Self>, origin: Origin) -> Result<Guest, NoPlace> {
        let mut state = self.lock();
        state.make_room(origin, self.limits, Instant::now())?;
        let (number, go) = (state.next, Arc::new(Notify::new()));
        state.next += 1;
        state.stand(number, origin, &go);
        Ok(Guest { gate: Arc::clone(self), number, origin, go })
    }
}

impl State {
    /// Sees to it that there is a place, if whoever has stood about for longest may have to go for that.
    fn make_room(&mut self, origin: Origin, limits: GateLimits, now: Instant) -> Result<(), NoPlace> {
        let own = self.of_origin.get(&origin).copied().unwrap_or_default();
        if origin != Origin::Loopback && own >= limits.for_one && limits.for_one < limits.places {
            let oldest = self.oldest(|standing| standing.origin == origin);
            return self.replace(oldest, now).map_err(NoPlace::ForOrigin);
        }
        if self.standing.len() < limits.places {
            return Ok(());
        }
        // The one of those origins that have most.
        let most = |origin: Origin| self.of_origin.get(&origin).copied().unwrap_or_default();
        let idle = self.standing.values().filter(|standing| !standing.busy && standing.until() <= now);
        let crowd = idle.map(|standing| most(standing.origin)).max();
        let oldest = self.oldest(|standing| crowd.is_none_or(|crowd| most(standing.origin) == crowd));
        self.replace(oldest, now).map_err(NoPlace::ForAll)
    }

    /// Who of some has stood about for longest, and until when it may.
    fn oldest(&self, of: impl Fn(&Standing) -> bool) -> Option<(u64, Instant)> {
        let idle = self.standing.iter().filter(|(_, standing)| !standing.busy && of(standing));
        idle.map(|(number, standing)| (*number, standing.until()))
            .min_by_key(|(number, until)| (*until, *number))
    }

    /// Sends somebody away, who need not go before a time.
    fn replace(&mut self, standing: Option<(u64, Instant)>, now: Instant) -> Result<(), Option<Instant>> {
        match standing {
            Some((number, until)) if until <= now => {
                if let Some(standing) = self.leave(number) {
                    standing.go.notify_one();
                }
                Ok(())
            }
            later => Err(later.map(|(_, until)| until)),
        }
    }

    fn stand(&mut self, number: u64, origin: Origin, go: &Arc<Notify>) {
        *self.of_origin.entry(origin).or_default() += 1;
        let (since, go) = (Instant::now(), Arc::clone(go));
        self.standing.insert(number, Standing { origin, since, has_spoken: false, busy: false, go });
    }

    fn leave(&mut self, number: u64) -> Option<Standing> {
        let standing = self.standing.remove(&number)?;
        if let Some(count) = self.of_origin.get_mut(&standing.origin) {
            *count -= 1;
            if *count == 0 {
                self.of_origin.remove(&standing.origin);
            }
        }
        Some(standing)
    }
}

impl Guest {
    /// Returns when it has to go. For one caller; safe to cancel.
    pub async fn must_go(&self) {
        self.go.notified().await;
    }

    /// Where it comes from.
    #[must_use]
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// It has gone a step further towards being known: its time begins anew, and is longer than before it said anything.
    /// For steps that are few.
    pub fn speaks(&self) {
        if let Some(standing) = self.gate.lock().standing.get_mut(&self.number) {
            standing.has_spoken = true;
            standing.since = Instant::now();
        }
    }

    /// Is served from now on.
    #[must_use]
    pub fn busy(self: &Arc<Self>) -> Busy {
        self.set_busy(true);
        Busy(Arc::clone(self))
    }

    /// Is served from now on, for a long time and within other limits: it gives its place back.
    #[must_use]
    pub fn aside(self: &Arc<Self>) -> Aside {
        drop(self.gate.lock().leave(self.number));
        self.gate.freed.notify_one();
        Aside(Arc::clone(self))
    }

    fn set_busy(&self, busy: bool) {
        if let Some(standing) = self.gate.lock().standing.get_mut(&self.number) {
            standing.busy = busy;
            standing.since = Instant::now();
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set_busy(false);
        self.0.gate.freed.notify_one();
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.0.gate.lock().stand(self.0.number, self.0.origin, &self.0.go);
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        drop(self.gate.lock().leave(self.number));
        self.gate.freed.notify_one();
    }
}

#[cfg(test)]
mod tests;
