//! The traffic beside reports: Leases, and the items of the outbox with their effects.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use crate::cloud::CloudEffect;
use crate::edge::{EdgeEffect, EdgeMachine};
use crate::frame::Up;
use crate::timing::Now;
use crate::upload::Lane;
use edgesync_object::Budget;

use super::super::model::{Thing, noise};
use super::{Event, Sizes, World};

/// The history of uploads, independent of the databases.
#[derive(Default)]
pub(super) struct Upstream {
    /// Items created so far.
    made: u64,
    /// Items that have taken effect in any timeline of the cloud.
    pub(super) ever: HashSet<u64>,
    /// Items that may take effect again.
    excused: HashSet<u64>,
    /// The time of the last Lease that the cloud has received.
    pub(super) renewed: Option<Now>,
    /// Frames sent, by name.
    pub(super) frames: BTreeMap<&'static str, usize>,
    /// Bytes of Uploads sent.
    pub(super) bytes: usize,
}

impl World {
    /// Posts an item about a key, as a program on the node.
    pub(in crate::simulation) fn post(&mut self, agent: usize, lane: Lane, key: u64) {
        self.post_text(agent, lane, key, 0);
    }

    /// Posts an item with a text of `size` bytes.
    pub(in crate::simulation) fn post_text(&mut self, agent: usize, lane: Lane, key: u64, size: usize) {
        self.upstream.made += 1;
        let (key, made) = (format!("{agent}/{}/{key}", lane.name()), self.upstream.made);
        let thing = Thing { key, made, text: noise(made, size) };
        self.time.say(|| format!("agent {agent} puts {} as {}", thing.key, thing.made));
        let it = &mut self.agents[agent];
        it.db.outbox.put(lane, thing);
        let life = it.life;
        self.time.after(5, Event::Marks { agent, life });
    }

    /// Posts items to all running agents.
    pub(super) fn post_something(&mut self) {
        for agent in 0..self.agents.len() {
            if self.agents[agent].machine.is_none() {
                continue;
            }
            for _ in 0..self.time.random.below(4) {
                let lane = Lane::ALL[usize::try_from(self.time.random.below(3)).unwrap()];
                let keys = if lane == Lane::Status { 4 } else { 16 };
                let key = self.time.random.below(keys);
                self.post(agent, lane, key);
            }
        }
    }

    /// Answers the machine's effects on its outbox.
    pub(super) fn read_outbox(&mut self, agent: usize, effect: &EdgeEffect) {
        let now = self.time.now;
        let fails = self.time.random.percent(self.chaos.crash / 2);
        let it = &mut self.agents[agent];
        let Some(machine) = &mut it.machine else { return };
        match *effect {
            EdgeEffect::ReadOutbox { .. } | EdgeEffect::RenumberOutbox { .. } if fails => {
                machine.outbox_failed(now);
            }
            EdgeEffect::ReadOutbox { lane, after, limit, bytes } => {
                let limit = if self.sizes == Sizes::Small { limit.min(8) } else { limit };
                machine.outbox_read(now, it.db.outbox.items.page(lane, after, limit, bytes));
            }
            EdgeEffect::RenumberOutbox { lane, sent, above } => {
                it.db.outbox.items.renumber(lane, sent, above);
                machine.outbox_changed(now, &it.db.outbox.items.marks());
            }
            _ => {}
        }
    }

    pub(super) fn handle_upstream(&mut self, event: Event) -> Result<(), String> {
        let now = self.time.now;
        match event {
            Event::Marks { agent, life } if self.agents[agent].life == life => {
                let it = &mut self.agents[agent];
                if let Some(machine) = &mut it.machine {
                    machine.outbox_changed(now, &it.db.outbox.items.marks());
                }
            }
            Event::Settle { agent, life, lane, upto } if self.agents[agent].life == life => {
                let settled = self.agents[agent].db.outbox.settle(lane, upto);
                let lost = settled.iter().find(|thing| !self.upstream.ever.contains(&thing.made));
                if let Some(lost) = lost {
                    return Err(format!("outbox: {lost:?} was confirmed and has no effect"));
                }
                self.time.after(5, Event::Marks { agent, life });
            }
            Event::Take { life, token, upload } if self.cloud_life == life => {
                if self.time.random.percent(self.chaos.crash / 2) {
                    if let Some(cloud) = &mut self.cloud {
                        cloud.taken(now, token, None);
                    }
                    return Ok(());
                }
                let effects = &mut self.cloud_db.effects;
                let start = effects.log.len();
                let result = effects.take(&upload)?;
                self.upstream.ever.extend(effects.log[start..].iter().map(|thing| thing.made));
                // Two agents that share a name alternate with two outboxes, and the cloud knows the
                // numbers of the last one only: items unconfirmed at the switch may take effect
                // again.
                if !self.chaos_has_twins {
                    effects.check(start, &self.upstream.excused)?;
                }
                self.time.after(5, Event::IngestCursor { life, token, result });
                self.time.after(40, Event::SaveNumbers { life });
            }
            Event::IngestCursor { life, token, result } if self.cloud_life == life => {
                if let Some(cloud) = &mut self.cloud {
                    cloud.taken(now, token, Some(result));
                }
            }
            Event::SaveNumbers { life } if self.cloud_life == life => self.cloud_db.effects.save_numbers(),
            _ => {} // for a life that has ended
        }
        Ok(())
    }

    pub(super) fn perform_upstream(&mut self, effect: CloudEffect) {
        let life = self.cloud_life;
        match effect {
            CloudEffect::Renew(_) => self.upstream.renewed = Some(self.time.now),
            CloudEffect::Ingest { token, upload } => {
                self.at_the_store(10, Event::Take { life, token, upload });
            }
            _ => {}
        }
    }

    /// Replaces the agent's database by an older copy.
    pub(super) fn roll_back(&mut self) {
        let it = &mut self.agents[0];
        let current = it.db.outbox.items.id.clone();
        it.db = it.backup.clone();
        let outbox = &mut it.db.outbox;
        outbox.was_rolled_back();
        // If another outbox was used meanwhile, the cloud has forgotten the numbers of this one:
        // its pending items may have taken effect, and do so again.
        if outbox.items.id != current || outbox.items.id != self.cloud_db.effects.outbox() {
            self.upstream.excused.extend(outbox.waiting());
        }
        self.forget_uploads();
    }

    /// Drops all uploads in flight, because the agent's database is replaced. A restore takes
    /// longer than a frame travels: no frame of a lost life arrives in a later session.
    pub(super) fn forget_uploads(&mut self) {
        let limit = self.sizes.max_frame();
        let is_upload = |bytes: &[u8]| matches!(Up::decode(bytes, &mut Budget::of(limit)), Ok(Up::Upload(_)));
        self.time.retain(|next| !matches!(next, Event::ToCloud { bytes } if is_upload(bytes)));
    }

    /// Checks that every pending item that was not dropped has taken effect, and that none is
    /// pending.
    pub(super) fn outbox_converged(&self) -> Result<(), String> {
        let it = &self.agents[0];
        let is_empty = it.machine.as_ref().is_some_and(EdgeMachine::outbox_is_empty);
        if !is_empty || !it.db.outbox.items.rows.is_empty() {
            return Err(format!(
                "outbox: {} items wait, edge {:?}",
                it.db.outbox.items.rows.len(),
                it.machine
            ));
        }
        match it.db.outbox.owed().find(|made| !self.upstream.ever.contains(made)) {
            Some(lost) => Err(format!("outbox: item {lost} has no effect")),
            None => Ok(()),
        }
    }

    /// Checks that the Lease is renewed while the node is connected.
    pub(super) fn check_lease(&self) -> Result<(), String> {
        match self.upstream.renewed {
            Some(at) if self.time.now - at <= self.sizes.edge().lease_interval + Duration::from_secs(1) => {
                Ok(())
            }
            renewed => Err(format!("lease: renewed at {renewed:?}, now {:?}", self.time.now)),
        }
    }
}
