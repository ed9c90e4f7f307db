//! The scheduled events and their handling.

use std::time::Duration;

use super::super::oracle::TruthOf;
use super::super::request::{Answer, Request};
use super::api::Sender;
use super::{Connection, Replica, Served, World};
use crate::body::Body;
use crate::change::{Change, RejectReason};
use crate::cloud::{LoadRequest, Loaded, RecordBatch};
use crate::edge::{Commit, EdgeEffect, EdgeMachine};
use crate::frame::{Received, Up};
use crate::simulation::timeline::{Simulated, Timeline};
use crate::timing::Now;
use edgesync_object::Budget;

pub(in super::super) enum Event {
    ToCloud {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// A frame of any connection of the node.
    ToEdge {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// The node notices that the connection is dead.
    Silent {
        connection: usize,
    },
    /// The replica notices that the connection is dead.
    Gone {
        connection: usize,
    },
    Commit {
        node: usize,
        life: u64,
        token: u64,
        changes: Vec<Change>,
    },
    Applied {
        node: usize,
        life: u64,
        token: u64,
        result: Result<Commit, (RejectReason, String)>,
    },
    Read {
        node: usize,
        life: u64,
        effect: EdgeEffect,
    },
    /// The node learns of its own items.
    Marks {
        node: usize,
        life: u64,
    },
    /// The cache of a replica answers a machine.
    Cached {
        replica: usize,
        life: u64,
        node: usize,
        answer: FromCache,
    },
    /// A request of a task arrives at the API server.
    Arrives {
        task: u64,
        sender: Sender,
        request: Request,
    },
    Answered {
        task: u64,
        answer: Answer,
    },
    WatchEnds {
        task: u64,
        after: u64,
    },
    Wake,
}

/// An answer within a replica.
pub(in super::super) enum FromCache {
    Opened,
    Loaded(u64, Vec<LoadRequest>),
    Recorded(RecordBatch),
}

impl Simulated for World {
    type Event = Event;

    fn time(&mut self) -> &mut Timeline<Event> {
        &mut self.time
    }

    fn drive(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.drive_node(node));
        for replica in 0..self.replicas.len() {
            for node in 0..self.replicas[replica].nodes.len() {
                self.drive_machine(replica, node);
            }
            self.drive_writers(replica);
        }
        let now = self.time.now;
        let machines = self.replicas.iter().flat_map(|replica| &replica.nodes);
        let machines = machines.filter_map(|served| served.machine.deadline());
        let nodes = self.nodes.iter().filter_map(|node| node.edge.as_ref().and_then(EdgeMachine::deadline));
        let writers = self.replicas.iter().filter(|replica| !replica.nodes.is_empty());
        let writers = writers.filter_map(|replica| replica.flows.state.borrow().backoff.next(now));
        if let Some(at) = machines.chain(nodes).chain(writers).min().filter(|at| *at != Now::MAX) {
            self.time.wake_at(at, Duration::from_micros(10), Event::Wake);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, random) = (self.time.now, self.time.random.next());
        match event {
            Event::ToCloud { connection, bytes } => {
                let Connection { node, replica, life, .. } = self.connections[connection];
                let it = &mut self.replicas[replica];
                if it.life != life {
                    return Ok(());
                }
                let frame = Up::decode(&bytes, &mut Budget::of(self.sizes.max_frame()))
                    .map_err(|error| error.to_string())?;
                // A node that has left begins no session.
                if matches!(frame, Up::Hello(_)) && self.nodes[node].link != Some(connection) {
                    return Ok(());
                }
                let Served { machine, desired, .. } = &mut it.nodes[node];
                machine.received(now, frame, desired);
            }
            Event::ToEdge { connection, bytes } => {
                let node = &mut self.nodes[self.connections[connection].node];
                if let Some(edge) = node.edge.as_mut().filter(|_| node.link.is_some()) {
                    let mut budget = Budget::of(self.sizes.max_frame());
                    let frame = Received::decode(&bytes, &mut budget, self.sizes.max_object())
                        .map_err(|error| error.to_string())?;
                    edge.received(now, frame, random);
                }
            }
            Event::Silent { connection } => {
                let node = self.connections[connection].node;
                if self.nodes[node].link == Some(connection) {
                    self.cut(node);
                }
            }
            Event::Gone { connection } => self.gone(connection),
            Event::Commit { node, life, token, changes } if self.nodes[node].life == life => {
                let it = &mut self.nodes[node];
                let (hello, held_then) = (it.hello, &it.held_then);
                let truth = TruthOf { history: &self.oracle.history, node, hello, held_then };
                let result =
                    Ok(it.db.apply(&changes, &truth).map_err(|why| format!("node {node}: {why}"))?);
                for uid in it.db.take_gone() {
                    it.removed.insert(uid, now);
                }
                let at = self.time.in_order(&mut it.last_answer, 5);
                self.time.at(at, Event::Applied { node, life, token, result });
            }
            Event::Applied { node, life, token, result } if self.nodes[node].life == life => {
                if let Some(edge) = &mut self.nodes[node].edge {
                    edge.applied(now, token, result, random);
                }
            }
            Event::Read { node, life, effect } if self.nodes[node].life == life => self.read(node, &effect),
            Event::Marks { node, life } if self.nodes[node].life == life => {
                let it = &mut self.nodes[node];
                if let Some(edge) = &mut it.edge {
                    edge.outbox_changed(now, &it.outbox.marks());
                }
            }
            Event::Cached { replica, life, node, answer } if self.replicas[replica].life == life => {
                self.cached(replica, node, answer);
            }
            Event::Arrives { task, sender, request } => self.arrives(task, sender, request)?,
            Event::Answered { task, answer } => self.poll(task, Some(answer)),
            Event::WatchEnds { task, after } => self.end_watch(task, after),
            Event::Wake => {
                self.time.woken();
                for node in &mut self.nodes {
                    if let Some(edge) = &mut node.edge
                        && edge.deadline().is_some_and(|at| at <= now)
                    {
                        edge.tick(now, random);
                    }
                }
                for Served { machine, desired, .. } in self.replicas.iter_mut().flat_map(|it| &mut it.nodes) {
                    if machine.deadline().is_some_and(|at| at <= now) {
                        machine.tick(now, desired);
                    }
                }
            }
            _ => {} // for a life that has ended
        }
        Ok(())
    }
}

impl World {
    /// Answers a node's request to its database.
    fn read(&mut self, node: usize, effect: &EdgeEffect) {
        let (now, random) = (self.time.now, self.time.random.next());
        let it = &mut self.nodes[node];
        let Some(edge) = &mut it.edge else { return };
        match *effect {
            EdgeEffect::ReadChanges { after, limit } => match it.db.changes(after, limit) {
                Some(page) => edge.changes_read(now, page),
                None => edge.changes_compacted(now, after),
            },
            EdgeEffect::ReadParts => edge.parts_read(now, it.db.parts(), random),
            EdgeEffect::ReadBuckets => edge.buckets_read(&it.db.buckets()),
            EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                edge.inventory_read(now, it.db.inventory(buckets, cursor, limit));
            }
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                edge.outbox_read(now, it.outbox.page(lane, after, limit.min(8), bytes));
            }
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                it.outbox.renumber(lane, sent, above);
                edge.outbox_changed(now, &it.outbox.marks());
            }
            _ => {}
        }
    }

    /// Answers a machine's request to the cache of its replica, or to the writer of ObjectSyncs.
    fn cached(&mut self, replica: usize, node: usize, answer: FromCache) {
        let (now, random) = (self.time.now, self.time.random.next());
        let Replica { nodes, view, flows, .. } = &mut self.replicas[replica];
        let Served { machine, desired, .. } = &mut nodes[node];
        match answer {
            FromCache::Opened => machine.opened(now, Some(Vec::new()), desired),
            FromCache::Loaded(token, objects) => {
                let load = |LoadRequest { uid, .. }: &LoadRequest| {
                    let object = view.get(uid)?;
                    let body = format!(
                        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{}","namespace":"default","uid":"{uid}","resourceVersion":"{}"}},"data":{{"x":"{}"}}}}"#,
                        object.name(),
                        object.version,
                        "x".repeat(object.size)
                    );
                    let (uid, version) = (uid.clone(), object.version.into());
                    Some(Loaded { uid, version, body: Body::new(body).unwrap(), patch: None })
                };
                machine.loaded(now, token, objects.iter().filter_map(load).collect(), desired);
            }
            FromCache::Recorded(RecordBatch { token, put, remove, .. }) => {
                flows.state.borrow_mut().change(node, put, remove);
                machine.recorded(now, token, true, random, desired);
            }
        }
    }
}
