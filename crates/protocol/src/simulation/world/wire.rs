//! The connection: a line of limited bandwidth in each direction, the queue before it,
//! acknowledgements, and its failures.
//!
//! Frames that an endpoint within the cloud sends wait in its queue, and the cloud's machine knows
//! the backlog. An external broker accepts and acknowledges all of the cloud's frames at once, and
//! drops those beyond its limit.

use std::time::Duration;

use crate::timing::Now;

use super::{Event, World};

pub(super) const UP: usize = 0;
pub(super) const DOWN: usize = 1;

/// The approximate overhead of a PUBLISH beside its payload: fixed header, topic, packet id; TLS,
/// TCP and IP.
const OVERHEAD: usize = 120;
/// The frames that an external broker queues for a node: as many as mosquitto keeps.
const BROKER_QUEUE: usize = 1000;
/// The frames that a node's link accepts: queued and unacknowledged ones.
const NODE_QUEUE: u64 = 64 + 64;
/// The frames, and the unsent bytes, that the endpoint queues for a node.
const ENDPOINT_QUEUE: u64 = 256;
const ENDPOINT_BYTES: usize = 4 << 20;
/// The silence after which a side drops the connection.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The properties of the link.
#[derive(Clone, Copy, Debug)]
pub(in crate::simulation) struct Line {
    /// The bandwidth in each direction, in bytes per second; `None` for unlimited.
    pub(in crate::simulation) rate: [Option<u64>; 2],
    /// The longest travel time of a frame; the shortest is a tenth less, or zero if this is short.
    pub(in crate::simulation) latency: Duration,
    /// The send buffer of the sender's kernel, in bytes.
    pub(in crate::simulation) socket: usize,
    /// Whether both sides are connected to a broker.
    pub(in crate::simulation) is_external: bool,
}

impl Line {
    pub(in crate::simulation) const FAST: Self =
        Self { rate: [None; 2], latency: Duration::from_millis(40), socket: 0, is_external: false };

    pub(in crate::simulation) fn slow(is_external: bool) -> Self {
        Self { rate: [Some(10_000); 2], latency: Duration::from_millis(200), socket: 0, is_external }
    }
}

/// One direction of the current connection.
#[derive(Default)]
pub(super) struct Way {
    /// The time when the line has carried its current load.
    free_at: Now,
    last_arrival: Now,
    unsent: u64,
    unsent_bytes: usize,
    unacknowledged: u64,
    /// Whether frames are lost without notice.
    is_dead: bool,
}

impl World {
    pub(super) fn new_ways(&mut self) {
        let now = self.time.now;
        // A link that keeps the order keeps it from one connection to the next.
        let arrived = [0, 1].map(|way| self.metered.map_or(now, |_| self.ways[way].last_arrival.max(now)));
        self.ways = arrived.map(|last_arrival| Way { free_at: now, last_arrival, ..Way::default() });
    }

    /// Ends the connection: what waits for the line is not carried.
    pub(super) fn end_ways(&mut self) {
        let now = self.time.now;
        for (direction, way) in self.ways.iter_mut().enumerate() {
            let rest = way.free_at.saturating_sub(now);
            let rate = self.line.rate[direction].unwrap_or(0);
            let waiting = u64::try_from(rest.as_micros()).unwrap() * rate / 1_000_000;
            self.carried[direction] = self.carried[direction].saturating_sub(waiting);
            way.free_at = now;
        }
    }

    /// Returns whether the sender may pass another frame.
    pub(super) fn has_room(&self, direction: usize) -> bool {
        let way = &self.ways[direction];
        match direction {
            UP => way.unacknowledged < NODE_QUEUE,
            _ if self.line.is_external || self.link.is_none() => true,
            _ => way.unsent < ENDPOINT_QUEUE && way.unsent_bytes < ENDPOINT_BYTES,
        }
    }

    pub(super) fn transmit(&mut self, direction: usize, bytes: &[u8]) {
        let (now, line, connection) = (self.time.now, self.line, self.connection);
        let travel = self.travel();
        let way = &mut self.ways[direction];
        if direction == DOWN && line.is_external && way.unsent as usize >= BROKER_QUEUE {
            return self.lost += 1;
        }
        let size = bytes.len() + OVERHEAD;
        self.carried[direction] += size as u64;
        let time = |bytes: usize| match line.rate[direction] {
            Some(rate) => Duration::from_micros(bytes as u64 * 1_000_000 / rate),
            None => Duration::ZERO,
        };
        way.free_at = way.free_at.max(now) + time(size);
        way.unsent += 1;
        way.unsent_bytes += size;
        way.unacknowledged += 1;
        let left = now.max(way.free_at.saturating_sub(time(line.socket)));
        let is_dead = way.is_dead;
        let arrival = (way.free_at + travel).max(way.last_arrival);
        self.time.at(left, Event::Left { connection, direction, size });
        if is_dead {
            return;
        }
        let acknowledged = arrival + self.travel();
        self.time.at(acknowledged, Event::Acknowledged { connection, direction });
        self.ways[direction].last_arrival = arrival;
        let copies = match () {
            // A broker acknowledges frames that it may lose.
            () if self.time.random.percent(self.chaos.drop) => 0,
            () if self.time.random.percent(self.chaos.duplicate) => 2,
            () => 1,
        };
        self.lost += usize::from(copies == 0);
        for _ in 0..copies {
            // Late and out of order, possibly into another session.
            let late =
                if self.time.random.percent(self.chaos.late) { self.time.random.below(8000) } else { 0 };
            let at = arrival + Duration::from_millis(late);
            let bytes = bytes.to_vec();
            self.time
                .at(at, if direction == UP { Event::ToCloud { bytes } } else { Event::ToEdge { bytes } });
        }
    }

    /// Acknowledges a frame and loses it.
    pub(super) fn swallow(&mut self, direction: usize) {
        let connection = self.connection;
        self.ways[direction].unacknowledged += 1;
        let acknowledged = self.time.now + self.travel() + self.travel();
        self.time.at(acknowledged, Event::Acknowledged { connection, direction });
    }

    fn travel(&mut self) -> Duration {
        let most = u64::try_from(self.line.latency.as_millis()).unwrap();
        let least = if most > 100 { most / 10 * 9 } else { 0 };
        Duration::from_millis(least + self.time.random.below(most - least) + 1)
    }

    pub(super) fn left(&mut self, direction: usize, size: usize) {
        let way = &mut self.ways[direction];
        way.unsent -= 1;
        way.unsent_bytes -= size;
        self.tell_progress(direction);
    }

    pub(super) fn acknowledged(&mut self, direction: usize) {
        self.ways[direction].unacknowledged -= 1;
        self.tell_progress(direction);
    }

    pub(super) fn tell_progress(&mut self, direction: usize) {
        let now = self.time.now;
        let Way { unsent, unacknowledged, .. } = self.ways[direction];
        if direction == UP {
            let Some(agent) = self.link else { return };
            if let Some(machine) = &mut self.agents[agent].machine {
                machine.link_progress(now, unsent, unacknowledged);
            }
        } else if !self.line.is_external
            && let Some(cloud) = &mut self.cloud
        {
            cloud.link_progress(now, unsent, unacknowledged);
        }
    }

    /// Makes the connection half-open, in one direction or both; the side without keepalives
    /// notices.
    pub(super) fn half_open(&mut self) {
        if self.link.is_none() {
            return;
        }
        let which = self.time.random.below(3);
        self.ways[UP].is_dead |= which != 1;
        self.ways[DOWN].is_dead |= which != 0;
        self.time.say(|| format!("half-open ({which})"));
        let connection = self.connection;
        let at = self.time.now + KEEPALIVE.mul_f64(0.5 + 0.1 * self.time.random.below(6) as f64);
        self.time.at(at, Event::Silent { connection });
    }

    /// Handles the node's discovery of a dead connection. An external broker informs the cloud
    /// later.
    pub(super) fn silent(&mut self) {
        let Some(agent) = self.link.take() else { return };
        self.time.say(|| format!("agent {agent} gives up a dead connection"));
        self.end_ways();
        if let Some(machine) = &mut self.agents[agent].machine {
            machine.disconnected();
        }
        let connection = self.connection;
        self.time.after(20_000, Event::Gone { connection });
    }

    /// Informs the cloud of the end of a connection, unless there is a newer one.
    pub(super) fn gone(&mut self) {
        if self.link.is_none()
            && let Some(cloud) = &mut self.cloud
        {
            cloud.disconnected();
        }
    }
}
