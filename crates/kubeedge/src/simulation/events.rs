//! The scheduled events and their handling.

use super::outbox::Item;
use super::world::{Agent, Body, World};
use crate::model::Connection;
use crate::{HeldEntry, HeldPage, Sent, references};
use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::change::{Change, RejectReason, Uid};
use edgesync_protocol::edge::{Commit, EdgeEffect};
use edgesync_protocol::simulation::model::Truth;
use edgesync_protocol::simulation::timeline::{Simulated, Timeline};
use edgesync_protocol::timing::Now;
use edgesync_protocol::upload::Lane;
use serde_json::Value;
use std::time::Duration;

pub(super) enum Event {
    ToCloud {
        connection: Connection,
        what: Sent,
    },
    ToEdge {
        connection: Connection,
        what: Sent,
    },
    /// An earlier message arrives again: an answer from a lagging cache, a late repetition.
    Again {
        connection: Connection,
        text: String,
    },
    /// The node notices that CloudCore has closed the connection.
    Closed {
        connection: Connection,
    },
    Commit {
        life: u64,
        token: u64,
        changes: Vec<Change>,
    },
    Applied {
        life: u64,
        token: u64,
        result: Result<Commit, (RejectReason, String)>,
    },
    Read {
        life: u64,
        effect: EdgeEffect,
    },
    ReadHeld {
        life: u64,
        cursor: u64,
        limit: usize,
    },
    Marks {
        life: u64,
    },
    Settle {
        life: u64,
        lane: Lane,
        upto: u64,
    },
    /// The cluster's garbage collector removes the dependents of a deleted Node.
    Collect,
    Wake,
}

/// Returns the UID of the object in a message.
fn uid_in(text: &str) -> Option<String> {
    let message: Value = serde_json::from_str(text).ok()?;
    Some(message.pointer("/content/metadata/uid")?.as_str()?.to_owned())
}

impl Simulated for World {
    type Event = Event;

    fn time(&mut self) -> &mut Timeline<Event> {
        &mut self.time
    }

    fn drive(&mut self) {
        while self.drive_agent() || self.drive_cloud() {}
        self.check_bounds();
        let agent = self.agent.as_ref();
        let own = agent.into_iter().flat_map(|it| [it.machine.deadline(), it.bridge.deadline()]);
        let next = own.flatten().chain([self.cloud.next_deadline()]).min().unwrap_or(Now::MAX);
        if next != Now::MAX {
            self.time.wake_at(next, Duration::from_micros(100), Event::Wake);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, at, random) = (self.time.now, self.moment(), self.time.random.next());
        match event {
            Event::ToCloud { connection, what } if self.link == Some(connection) => match what {
                Sent::Text { text, .. } => self.cloud.receive(now, connection, &text),
                Sent::Ping(number) if self.cloud.is_open(connection) => {
                    self.send_down(connection, Sent::Ping(number));
                }
                Sent::Ping(_) => {}
            },
            Event::Again { connection, text } if self.link == Some(connection) => {
                // No messages about a deleted object remain in flight: CloudCore queues one for
                // each object.
                let uid = uid_in(&text);
                let is_held = uid.as_ref().is_some_and(|uid| self.disk.db.held().contains_key(uid.as_str()));
                let exists =
                    self.cloud.cluster.all().any(|it| uid.as_deref() == it["metadata"]["uid"].as_str());
                if let Some(agent) = self.agent.as_mut().filter(|_| is_held && exists) {
                    agent.bridge.message_received(at, text.as_bytes());
                }
            }
            Event::ToEdge { connection, what } if self.link == Some(connection) => {
                if let Sent::Text { text, .. } = &what
                    && self.time.random.percent(self.chaos.again)
                {
                    let text = text.clone();
                    self.time.after(10_000, Event::Again { connection, text });
                }
                if let Some(agent) = &mut self.agent {
                    match what {
                        Sent::Text { text, .. } => agent.bridge.message_received(at, text.as_bytes()),
                        Sent::Ping(number) => agent.bridge.pong(at, number),
                    }
                }
            }
            Event::Closed { connection } if self.link == Some(connection) => self.cut(),
            Event::Commit { life, token, changes } if self.life == life => self.commit(token, &changes)?,
            Event::Applied { life, token, result } if self.life == life => {
                if let Some(agent) = &mut self.agent {
                    agent.machine.applied(now, token, result, random);
                }
            }
            Event::Read { life, effect } if self.life == life => self.read(&effect),
            Event::ReadHeld { life, cursor, limit } if self.life == life => self.read_held(cursor, limit),
            Event::Marks { life } if self.life == life => {
                if let Some(agent) = &mut self.agent {
                    agent.machine.outbox_changed(now, &self.disk.outbox.marks());
                }
            }
            Event::Settle { life, lane, upto } if self.life == life => {
                let settled = self.disk.outbox.settle(lane, upto);
                let arrived = self.arrived();
                for item in settled {
                    if let Item::Event(number) = item
                        && !arrived.contains(&number)
                    {
                        return Err(format!("outbox: event {number} was settled and has not arrived"));
                    }
                }
                self.time.after(5, Event::Marks { life });
            }
            Event::Collect => self.collect_garbage(),
            Event::Wake => {
                self.time.woken();
                self.cloud.tick(now);
                if let Some(Agent { machine, bridge }) = &mut self.agent {
                    if machine.deadline().is_some_and(|due| due <= now) {
                        machine.tick(now, random);
                    }
                    if bridge.deadline().is_some_and(|due| due <= now) {
                        bridge.tick(at);
                    }
                }
            }
            _ => {} // for a connection or a life that has ended
        }
        Ok(())
    }
}

impl World {
    fn commit(&mut self, token: u64, changes: &[Change]) -> Result<(), String> {
        let result = if self.time.now < self.full_until {
            Err((RejectReason::StoreFull, "no room".into()))
        } else {
            self.check_deletes(changes)?;
            let commit = self.disk.db.apply(changes, &Named(changes))?;
            self.note_commit(changes, &commit);
            self.time.say(|| format!("committed: {:?}", commit.applied));
            Ok(commit)
        };
        let at = self.time.in_order(&mut self.last_answer, 5);
        let life = self.life;
        self.time.at(at, Event::Applied { life, token, result });
        Ok(())
    }

    fn note_commit(&mut self, changes: &[Change], commit: &Commit) {
        for change in changes {
            if let Change::Put(put) = change {
                let rows = self.rows.len() as u64 + 1;
                let number = *self.rows.entry(put.uid.clone()).or_insert(rows);
                self.order.insert(number, put.uid.clone());
                let is_pod = put.resource.kind == "Pod";
                let references = if is_pod { references(put.body.get()) } else { Vec::new() };
                let body = Body { object: put.object_ref(), references };
                self.bodies.insert((put.uid.clone(), put.version.clone()), body);
            }
        }
        for observed in &commit.applied.observed {
            if observed.version.is_none() {
                self.disk.removed.insert(observed.uid.clone());
            }
        }
    }

    fn read(&mut self, effect: &EdgeEffect) {
        let now = self.time.now;
        let fails = self.time.random.percent(self.chaos.crash / 2);
        let Some(Agent { machine, .. }) = &mut self.agent else { return };
        match *effect {
            EdgeEffect::ReadChanges { after, limit } => match self.disk.db.changes(after, limit) {
                Some(page) => machine.changes_read(now, page),
                None => machine.changes_compacted(now, after),
            },
            EdgeEffect::ReadOutbox { .. } if fails => machine.outbox_failed(now),
            EdgeEffect::ReadOutbox { lane, after, limit, .. } => {
                machine.outbox_read(now, self.disk.outbox.page(lane, after, limit.min(8), usize::MAX));
            }
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                self.disk.outbox.renumber(lane, sent, above);
                machine.outbox_changed(now, &self.disk.outbox.marks());
            }
            _ => self.time.violation = Some(format!("the machine wants {effect:?}")),
        }
    }

    fn read_held(&mut self, cursor: u64, limit: usize) {
        let at = self.moment();
        let fails = self.time.random.percent(self.chaos.crash / 2);
        let rows = self
            .order
            .range(cursor + 1..)
            .filter_map(|(number, uid)| Some((*number, uid.clone(), self.disk.db.version(uid)?.clone())));
        let mut rows: Vec<_> = rows.take(limit + 1).collect();
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().map(|(number, ..)| *number).filter(|_| more);
        let entries = rows
            .into_iter()
            .map(|(_, uid, version)| {
                let Body { object, references } = self.bodies[&(uid.clone(), version.clone())].clone();
                let with_held = |name| (self.held_under(&name), name);
                let references =
                    references.into_iter().map(with_held).map(|(held, name)| (name, held)).collect();
                HeldEntry { uid, version, object, references }
            })
            .collect();
        let Some(Agent { bridge, .. }) = &mut self.agent else { return };
        if fails {
            bridge.read_failed(at);
        } else {
            bridge.held_read(at, HeldPage { entries, next });
        }
    }
}

/// The UIDs that the messages of a batch name.
struct Named<'a>(&'a [Change]);

impl Truth for Named<'_> {
    fn may_replace(&self, _: &Uid, old: &ResourceVersion, new: &ResourceVersion) -> bool {
        !new.is_older_than(old)
    }

    fn may_remove(&self, uid: &Uid, key: &ObjectKey) -> bool {
        self.0.iter().any(|change| match change {
            Change::Delete(delete) => delete.uid == *uid,
            Change::Patch(_) => false,
            // A new object of the same name replaces the old one.
            Change::Put(put) => put.key() == *key,
        })
    }
}
