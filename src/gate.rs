//! The door of a service: who may stand in it before anybody knows them, and for how long.
//!
//! Every service that others can connect to has a gate of its own, with a bounded number of places. Whoever connects takes
//! one, and gives it back when it is known and let in, or gone. When all places are taken, the guest that has stood about
//! for longest goes, so that nobody keeps others out by doing nothing. One origin (an IPv4 address, the /64 of an IPv6
//! address, a user of this machine) gets a part of the places only.
//!
//! Knows tokio and nothing of what is served.

mod seldom;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

pub use seldom::Seldom;

/// How long a guest may stand about before it has to go for another one: a handshake over a slow line takes less than
/// twice that, and only those who wait in a crowd are asked.
const GRACE: Duration = Duration::from_secs(2);

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

impl Origin {
    /// Who is on this machine has no slow line.
    fn grace(self) -> Duration {
        if matches!(self, Self::User(_)) { Duration::ZERO } else { GRACE }
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
        self.since + self.origin.grace()
    }
}

enum Door {
    Open,
    /// The origin has its part of the places.
    Shut,
    /// Until somebody goes, or has stood there for long enough.
    Full(Option<Instant>),
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

    /// Waits for a place; whoever has stood about for longest may have to go for that. `None` if the origin has its part
    /// of the places, and none of those can be freed. For one caller at a time; safe to cancel.
    pub async fn enter(self: &Arc<Self>, origin: Origin) -> Option<Guest> {
        loop {
            let until = match self.look(origin) {
                Ok(entered) => return entered,
                Err(until) => until,
            };
            tokio::select! {
                () = self.freed.notified() => {}
                () = async { match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                } } => {}
            }
        }
    }

    /// Takes a place if there is one now.
    pub fn try_enter(self: &Arc<Self>, origin: Origin) -> Option<Guest> {
        self.look(origin).ok().flatten()
    }

    fn look(self: &Arc<Self>, origin: Origin) -> Result<Option<Guest>, Option<Instant>> {
        let mut state = self.lock();
        match state.open(origin, self.limits, Instant::now()) {
            Door::Shut => Ok(None),
            Door::Full(until) => Err(until),
            Door::Open => {
                let (number, go) = (state.next, Arc::new(Notify::new()));
                state.next += 1;
                state.stand(number, origin, &go);
                Ok(Some(Guest { gate: Arc::clone(self), number, origin, go }))
            }
        }
    }
}

impl State {
    fn open(&mut self, origin: Origin, limits: GateLimits, now: Instant) -> Door {
        let own = self.of_origin.get(&origin).copied().unwrap_or_default();
        if origin != Origin::Loopback && own >= limits.for_one && limits.for_one < limits.places {
            return match self.oldest(|standing| standing.origin == origin) {
                Some((number, until)) if until <= now => self.send_away(number),
                _ => Door::Shut,
            };
        }
        if self.standing.len() < limits.places {
            return Door::Open;
        }
        // The one of those origins that have most.
        let most = |origin: Origin| self.of_origin.get(&origin).copied().unwrap_or_default();
        let idle = self.standing.values().filter(|standing| !standing.busy && standing.until() <= now);
        let crowd = idle.map(|standing| most(standing.origin)).max();
        let oldest = self.oldest(|standing| crowd.is_none_or(|crowd| most(standing.origin) == crowd));
        match oldest {
            Some((number, until)) if until <= now => self.send_away(number),
            Some((_, until)) => Door::Full(Some(until)),
            None => Door::Full(None),
        }
    }

    /// Who of some has stood about for longest, and until when it may.
    fn oldest(&self, of: impl Fn(&Standing) -> bool) -> Option<(u64, Instant)> {
        let idle = self.standing.iter().filter(|(_, standing)| !standing.busy && of(standing));
        idle.map(|(number, standing)| (*number, standing.until()))
            .min_by_key(|(number, until)| (*until, *number))
    }

    fn stand(&mut self, number: u64, origin: Origin, go: &Arc<Notify>) {
        *self.of_origin.entry(origin).or_default() += 1;
        let (since, go) = (Instant::now(), Arc::clone(go));
        self.standing.insert(number, Standing { origin, since, busy: false, go });
    }

    fn send_away(&mut self, number: u64) -> Door {
        if let Some(standing) = self.leave(number) {
            standing.go.notify_one();
        }
        Door::Open
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
