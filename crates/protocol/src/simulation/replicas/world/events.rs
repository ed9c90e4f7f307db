//! The scheduled events and their handling.

use std::time::Duration;

use crate::change::{Change, RejectReason};
use crate::cloud::LoadRequest;
use crate::edge::{Commit, EdgeEffect, EdgeMachine};
use crate::frame::{Received, Up};
use crate::simulation::timeline::{Simulated, Timeline};
use crate::timing::Now;
use edgesync_object::Budget;

use super::{Connection, Replica, World};

pub(in crate::simulation::replicas) enum Event {
    ToCloud {
        connection: usize,
        bytes: Vec<u8>,
    },
    /// A frame of any connection.
    ToEdge {
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
    /// A replica receives the changes up to this one.
    Watched {
        replica: usize,
        life: u64,
        changes: usize,
    },
    /// A replica notices which objects it may read.
    Looked {
        replica: usize,
        life: u64,
    },
    Opened {
        replica: usize,
        life: u64,
    },
    Loaded {
        replica: usize,
        life: u64,
        token: u64,
        objects: Vec<LoadRequest>,
    },
    Recorded {
        replica: usize,
        life: u64,
        token: u64,
    },
    /// The replica has caught up once it knows this many changes.
    CaughtUp {
        replica: usize,
        life: u64,
        token: u64,
        changes: usize,
    },
    Wake,
}

impl Simulated for World {
    type Event = Event;

    fn time(&mut self) -> &mut Timeline<Event> {
        &mut self.time
    }

    fn drive(&mut self) {
        self.drive_node();
        (0..self.replicas.len()).for_each(|replica| self.drive_replica(replica));
        let replicas = self.replicas.iter().filter_map(|replica| replica.machine.as_ref()?.deadline());
        let node = self.edge.as_ref().and_then(EdgeMachine::deadline);
        if let Some(at) = replicas.chain(node).min().filter(|at| *at != Now::MAX) {
            self.time.wake_at(at, Duration::from_micros(10), Event::Wake);
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (now, random) = (self.time.now, self.time.random.next());
        let (max_frame, max_object) = (self.sizes.max_frame(), self.sizes.max_object());
        match event {
            Event::ToCloud { connection, bytes } => {
                let Connection { replica, life, .. } = self.connections[connection];
                let replica = &mut self.replicas[replica];
                if let Some(machine) = replica.machine.as_mut().filter(|_| replica.life == life) {
                    let frame = Up::decode(&bytes, &mut Budget::of(max_frame)).map_err(|e| e.to_string())?;
                    machine.received(now, frame, &replica.wishes);
                }
            }
            Event::ToEdge { bytes } => {
                if let Some(edge) = self.edge.as_mut().filter(|_| self.link.is_some()) {
                    let frame = Received::decode(&bytes, &mut Budget::of(max_frame), max_object)
                        .map_err(|e| e.to_string())?;
                    edge.received(now, frame, random);
                }
            }
            Event::Silent { connection } if self.link == Some(connection) => self.cut(),
            Event::Gone { connection } => self.gone(connection),
            Event::Commit { life, token, changes } if self.life == life => {
                self.check_sent(&changes)?;
                self.check_lost(&changes)?;
                self.count_written(&changes);
                let result = Ok(self.db.apply(&changes, &self.cluster)?);
                let at = self.time.in_order(&mut self.last_answer, 5);
                self.time.at(at, Event::Applied { life, token, result });
            }
            Event::Applied { life, token, result } if self.life == life => {
                if let Some(edge) = &mut self.edge {
                    edge.applied(now, token, result, random);
                }
            }
            Event::Read { life, effect } if self.life == life => {
                let Some(edge) = &mut self.edge else { return Ok(()) };
                match effect {
                    EdgeEffect::ReadChanges { after, limit } => match self.db.changes(after, limit) {
                        Some(page) => edge.changes_read(now, page),
                        None => edge.changes_compacted(now, after),
                    },
                    EdgeEffect::ReadParts => edge.parts_read(now, self.db.parts(), random),
                    EdgeEffect::ReadBuckets => edge.buckets_read(&self.db.buckets()),
                    EdgeEffect::ReadInventory { buckets, cursor, limit } => {
                        edge.inventory_read(now, self.db.inventory(buckets, cursor, limit));
                    }
                    _ => {}
                }
            }
            Event::Watched { replica, life, changes } if self.replicas[replica].life == life => {
                let until = self.replicas[replica].apart_until;
                if until > now {
                    self.time.at(until, Event::Watched { replica, life, changes });
                } else {
                    self.watched(replica, changes);
                }
            }
            Event::Looked { replica, life } if self.replicas[replica].life == life => {
                let until = self.replicas[replica].apart_until;
                match until > now {
                    true => self.time.at(until, Event::Looked { replica, life }),
                    false => self.looked(replica),
                }
            }
            Event::CaughtUp { replica, life, token, changes } if self.replicas[replica].life == life => {
                let Replica { apart_until, view, speaks_of, .. } = &self.replicas[replica];
                if *apart_until > now || view.changes < changes {
                    let at = (*apart_until).max(now + Duration::from_millis(50));
                    self.time.at(at, Event::CaughtUp { replica, life, token, changes });
                    return Ok(());
                }
                // A restored state is another life once all of it is known.
                if self.cluster.is_known(view.changes) {
                    self.cluster.name_life();
                }
                if *speaks_of != self.cluster.life {
                    self.adopt_life(replica);
                }
                let Replica { machine: Some(machine), view, wishes, .. } = &mut self.replicas[replica] else {
                    return Ok(());
                };
                machine.caught_up(now, token, &view.version().into(), wishes);
            }
            Event::Wake => {
                self.time.woken();
                self.check_woken()?;
                if let Some(edge) = &mut self.edge
                    && edge.deadline().is_some_and(|at| at <= now)
                {
                    edge.tick(now, random);
                }
                for Replica { machine, wishes, .. } in &mut self.replicas {
                    if let Some(machine) = machine
                        && machine.deadline().is_some_and(|at| at <= now)
                    {
                        machine.tick(now, wishes);
                    }
                }
            }
            other => self.answer(other, random),
        }
        Ok(())
    }
}

impl World {
    /// Answers a replica's request to its cache.
    fn answer(&mut self, event: Event, random: u64) {
        let now = self.time.now;
        let (Event::Opened { replica, life }
        | Event::Loaded { replica, life, .. }
        | Event::Recorded { replica, life, .. }) = event
        else {
            return;
        };
        let it = &mut self.replicas[replica];
        let Some(machine) = it.machine.as_mut().filter(|_| it.life == life) else { return };
        match event {
            Event::Opened { .. } => machine.opened(now, Some(Vec::new()), &it.wishes),
            Event::Loaded { token, objects, .. } => {
                machine.loaded(now, token, it.view.load(&objects), &it.wishes);
            }
            Event::Recorded { token, .. } => machine.recorded(now, token, true, random, &it.wishes),
            _ => {}
        }
    }
}
