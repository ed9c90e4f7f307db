//! The scheduled events and their handling.

use crate::apply::Applied;
use crate::change::{Change, RejectReason, Uid};
use crate::cloud::{CloudMachine, LoadRequest, RecordBatch};
use crate::edge::{Commit, EdgeEffect};
use crate::frame::{PartialMessage, Received, Up};
use crate::simulation::timeline::{Simulated, Timeline};
use crate::timing::Now;
use crate::upload::{IngestCursor, Lane, Refused, Upload};
use edgesync_object::Budget;
use std::time::Duration;

use super::patches::unpatched;
use super::{Agent, DOWN, UP, World};

pub(in crate::simulation) enum Event {
    ToCloud {
        bytes: Vec<u8>,
    },
    ToEdge {
        bytes: Vec<u8>,
    },
    /// The oldest unsent frame has left for the network.
    Left {
        connection: usize,
        direction: usize,
        size: usize,
    },
    /// The other end of the link has acknowledged its oldest unacknowledged frame.
    Acknowledged {
        connection: usize,
        direction: usize,
    },
    /// The node notices that the connection is dead.
    Silent {
        connection: usize,
    },
    /// The cloud notices that the connection is dead.
    Gone {
        connection: usize,
    },
    Commit {
        agent: usize,
        life: u64,
        /// The connection that delivered the changes, which may have ended.
        connection: usize,
        token: u64,
        changes: Vec<Change>,
    },
    /// Completes a message in parts from the bytes that are kept of it.
    CommitParts {
        agent: usize,
        life: u64,
        connection: usize,
        token: u64,
        message: PartialMessage,
        rest: String,
    },
    /// Keeps the next bytes of a message in parts.
    Keep {
        agent: usize,
        life: u64,
        message: PartialMessage,
        text: String,
    },
    DropParts {
        agent: usize,
        life: u64,
    },
    PartsLost {
        agent: usize,
        life: u64,
        token: u64,
    },
    Applied {
        agent: usize,
        life: u64,
        token: u64,
        result: Result<Commit, (RejectReason, String)>,
    },
    SaveTotals {
        agent: usize,
        life: u64,
    },
    Read {
        agent: usize,
        life: u64,
        effect: EdgeEffect,
    },
    /// The agent receives the state of its outbox.
    Marks {
        agent: usize,
        life: u64,
    },
    /// Confirmed items of the outbox are deleted, with a delay.
    Settle {
        agent: usize,
        life: u64,
        lane: Lane,
        upto: u64,
    },
    /// The cloud reads the records of the node.
    Opened {
        life: u64,
    },
    Loaded {
        life: u64,
        token: u64,
        objects: Vec<LoadRequest>,
    },
    Record {
        life: u64,
        batch: RecordBatch,
    },
    Recorded {
        life: u64,
        token: u64,
    },
    Take {
        life: u64,
        token: u64,
        upload: Upload,
    },
    IngestCursor {
        life: u64,
        token: u64,
        result: (IngestCursor, Vec<Refused>),
    },
    SaveNumbers {
        life: u64,
    },
    Desire {
        life: u64,
        uid: Uid,
    },
    Wake,
}

impl Event {
    fn is_for_the_cloud(&self) -> bool {
        matches!(
            self,
            Self::ToCloud { .. }
                | Self::Opened { .. }
                | Self::Loaded { .. }
                | Self::Recorded { .. }
                | Self::IngestCursor { .. }
                | Self::Desire { .. }
                | Self::Gone { .. }
        )
    }
}

impl Simulated for World {
    type Event = Event;

    fn time(&mut self) -> &mut Timeline<Event> {
        &mut self.time
    }

    fn drive(&mut self) {
        for agent in 0..self.agents.len() {
            self.drive_agent(agent);
        }
        self.drive_cloud();
        let deadlines = self.agents.iter().filter_map(|agent| agent.machine.as_ref()?.deadline());
        let cloud = self.cloud.as_ref().and_then(CloudMachine::deadline);
        let next = deadlines.chain(cloud.map(|at| at.max(self.stalled_until))).min();
        if let Some(at) = next.filter(|at| *at != Now::MAX) {
            self.time.wake_at(at, Duration::from_micros(10), Event::Wake);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, random) = (self.time.now, self.time.random.next());
        let (max_frame, max_object) = (self.sizes.max_frame(), self.sizes.max_object());
        if now < self.stalled_until && event.is_for_the_cloud() {
            self.time.at(self.stalled_until, event);
            return Ok(());
        }
        self.inputs += usize::from(event.is_for_the_cloud());
        match event {
            Event::ToCloud { bytes } => {
                // A broker delivers old messages even after their connection has ended.
                if let Some(cloud) = &mut self.cloud {
                    let mut frame =
                        Up::decode(&bytes, &mut Budget::of(max_frame)).map_err(|e| e.to_string())?;
                    if self.is_cloud_old
                        && let Up::Hello(hello) = &mut frame
                    {
                        (hello.partial, hello.patches) = (None, false);
                    }
                    let (refused, unpatched) = (cloud.counters().patches_refused, unpatched(&frame));
                    cloud.received(now, frame, &self.wishes);
                    if cloud.counters().patches_refused > refused {
                        self.patches.refuse(unpatched);
                    }
                }
            }
            Event::ToEdge { bytes } => {
                let Some(agent) = self.link else { return Ok(()) };
                if self.agents[agent].machine.is_some() {
                    let frame = Received::decode(&bytes, &mut Budget::of(max_frame), max_object)
                        .map_err(|e| e.to_string())?;
                    self.meter(&frame, bytes.len())?;
                    if let Some(machine) = &mut self.agents[agent].machine {
                        machine.received(now, frame, random);
                    }
                }
            }
            Event::Left { connection, direction, size } if self.connection == connection => {
                self.left(direction, size);
            }
            Event::Acknowledged { connection, direction } if self.connection == connection => {
                self.acknowledged(direction);
            }
            Event::Silent { connection } if self.connection == connection => self.silent(),
            Event::Gone { connection } if self.connection == connection => self.gone(),
            Event::Commit { agent, life, connection, token, changes } if self.agents[agent].life == life => {
                let result = self.commit(agent, connection, &changes)?;
                let at = self.time.in_order(&mut self.agents[agent].last_answer, 5);
                self.time.at(at, Event::Applied { agent, life, token, result });
                self.time.after(40, Event::SaveTotals { agent, life });
            }
            Event::CommitParts { agent, life, connection, token, message, rest }
                if self.agents[agent].life == life =>
            {
                let change = self.agents[agent].db.assemble(&message, &rest, max_object);
                let at = self.time.in_order(&mut self.agents[agent].last_answer, 5);
                let Some(change) = change else {
                    self.time.at(at, Event::PartsLost { agent, life, token });
                    return Ok(());
                };
                let (changes, rejected) = match change {
                    Ok(change) => (vec![change], Vec::new()),
                    Err(rejected) => (Vec::new(), vec![rejected]),
                };
                let mut result = self.commit(agent, connection, &changes)?;
                if let Ok(Commit { applied: Applied { rejected: all, .. }, .. }) = &mut result {
                    all.extend(rejected);
                }
                self.time.at(at, Event::Applied { agent, life, token, result });
                self.time.after(40, Event::SaveTotals { agent, life });
            }
            Event::Keep { agent, life, message, text } if self.agents[agent].life == life => {
                let is_full = self.time.random.percent(self.chaos.crash / 2);
                let Agent { db, machine: Some(machine), .. } = &mut self.agents[agent] else {
                    return Ok(());
                };
                let kept = match is_full {
                    true => Err((RejectReason::StoreFull, "no room".to_owned())),
                    false => Ok(db.keep_part(message.clone(), &text)),
                };
                machine.part_kept(&message, kept);
            }
            Event::DropParts { agent, life } if self.agents[agent].life == life => {
                self.agents[agent].db.drop_parts();
            }
            Event::PartsLost { agent, life, token } if self.agents[agent].life == life => {
                if let Some(machine) = &mut self.agents[agent].machine {
                    machine.parts_lost(now, token, random);
                }
            }
            Event::SaveTotals { agent, life } if self.agents[agent].life == life => {
                self.agents[agent].db.save_totals();
            }
            Event::Applied { agent, life, token, result } if self.agents[agent].life == life => {
                if let Some(machine) = &mut self.agents[agent].machine {
                    machine.applied(now, token, result, random);
                }
            }
            Event::Read { agent, life, effect } if self.agents[agent].life == life => {
                let Agent { db, machine: Some(machine), .. } = &mut self.agents[agent] else {
                    return Ok(());
                };
                match effect {
                    EdgeEffect::ReadChanges { after, limit } => match db.changes(after, limit) {
                        Some(page) => machine.changes_read(now, page),
                        None => machine.changes_compacted(now, after),
                    },
                    EdgeEffect::ReadParts => machine.parts_read(now, db.parts(), random),
                    EdgeEffect::ReadBuckets => machine.buckets_read(&db.buckets()),
                    EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                        machine.inventory_read(now, db.inventory(buckets, cursor, limit));
                    }
                    effect => self.read_outbox(agent, &effect),
                }
            }
            Event::Opened { life } if self.cloud_life == life => {
                let failed = self.time.random.percent(self.chaos.crash / 2);
                let records = (!failed).then(|| self.cloud_db.records.clone().into_iter().collect());
                if let Some(cloud) = &mut self.cloud {
                    cloud.opened(now, records, &self.wishes);
                }
            }
            Event::Loaded { life, token, objects } if self.cloud_life == life => {
                let bodies = self.cloud_db.load(&objects);
                if let Some(cloud) = &mut self.cloud {
                    cloud.loaded(now, token, bodies, &self.wishes);
                }
            }
            Event::Record { life, batch } if self.cloud_life == life => {
                let stored = !self.time.random.percent(self.chaos.crash / 2);
                if stored {
                    self.cloud_db.record(&batch);
                    self.time.after(5, Event::Recorded { life, token: batch.token });
                } else if let Some(cloud) = &mut self.cloud {
                    cloud.recorded(now, batch.token, false, random, &self.wishes);
                }
            }
            Event::Recorded { life, token } if self.cloud_life == life => {
                if let Some(cloud) = &mut self.cloud {
                    cloud.recorded(now, token, true, random, &self.wishes);
                }
            }
            Event::Desire { life, uid } if self.cloud_life == life => {
                // Occasionally the fleet has no memory for the differences.
                if let Some(cloud) = &mut self.cloud
                    && self.time.random.percent(self.chaos.late)
                {
                    cloud.fall_behind();
                }
                self.wishes.tell(now, self.cloud.as_mut(), &uid, self.cloud_db.wish(&uid));
            }
            Event::Wake => {
                self.time.woken();
                for agent in &mut self.agents {
                    if let Some(machine) = &mut agent.machine
                        && machine.deadline().is_some_and(|at| at <= now)
                    {
                        machine.tick(now, random);
                        self.wakes[UP] += 1;
                    }
                }
                if let Some(cloud) = &mut self.cloud
                    && now >= self.stalled_until
                    && cloud.deadline().is_some_and(|at| at <= now)
                {
                    cloud.tick(now, &self.wishes);
                    self.wakes[DOWN] += 1;
                }
            }
            other => self.handle_upstream(other)?,
        }
        Ok(())
    }
}

impl World {
    /// Commits changes in the store of an agent.
    fn commit(
        &mut self,
        agent: usize,
        connection: usize,
        changes: &[Change],
    ) -> Result<Result<Commit, (RejectReason, String)>, String> {
        // Occasionally the store is full: nothing is committed then.
        let is_full = self.time.random.percent(self.chaos.crash / 2);
        if is_full || changes.iter().any(self.unstorable) {
            return Ok(Err((RejectReason::StoreFull, "no room".to_owned())));
        }
        self.check_bodies(changes)?;
        let expected: Vec<_> = changes.iter().map(|change| self.expect(agent, change)).collect();
        let commit = self.agents[agent].db.apply(changes, &self.history)?;
        self.check_patched(agent, changes, &expected, &commit.applied)?;
        self.check_gone(agent, connection)?;
        Ok(Ok(commit))
    }
}
