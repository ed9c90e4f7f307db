//! The effects of the machines.

use super::events::FromCache;
use super::{COMPRESS_ABOVE, DOWN, Event, Served, UP, World};
use crate::cloud::{CloudEffect, CloudNotice};
use crate::edge::{EdgeEffect, EdgeNotice};
use crate::frame::Up;

use super::super::node::read;

impl World {
    pub(super) fn drive_node(&mut self, node: usize) {
        loop {
            let Some(edge) = &mut self.nodes[node].edge else { return };
            if let Some(effect) = edge.poll_effect() {
                self.perform(node, effect);
                continue;
            }
            let Some(connection) = self.nodes[node].link else { break };
            let Some(edge) = &mut self.nodes[node].edge else { return };
            let Some(frame) = edge.poll_frame(self.time.now) else { break };
            edge.link_progress(self.time.now, 0, 0);
            self.time.say(|| format!("node {node} → {frame:?}"));
            if let Up::Hello(_) = frame {
                self.nodes[node].held_then = self.held_by(node);
                self.nodes[node].hello = self.time.now;
            }
            let bytes = frame.encode(COMPRESS_ABOVE).unwrap();
            self.transmit(UP, connection, &bytes);
        }
        self.check_settled(node);
    }

    fn perform(&mut self, node: usize, effect: EdgeEffect) {
        let now = self.time.now;
        let it = &mut self.nodes[node];
        let life = it.life;
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let at = self.time.in_order(&mut it.last_commit, 15);
                self.time.at(at, Event::Commit { node, life, token, changes });
            }
            EdgeEffect::KeepPart { message, text } => {
                let kept = it.db.keep_part(message.clone(), &text);
                if let Some(edge) = &mut it.edge {
                    edge.part_kept(&message, Ok(kept));
                }
            }
            EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                match it.db.assemble(&message, &rest, max_object) {
                    Some(Ok(change)) => {
                        self.perform(node, EdgeEffect::Apply { token, changes: vec![change] });
                    }
                    _ => {
                        let random = self.time.random.next();
                        if let Some(edge) = &mut self.nodes[node].edge {
                            edge.parts_lost(now, token, random);
                        }
                    }
                }
            }
            EdgeEffect::DropParts => it.db.drop_parts(),
            EdgeEffect::Confirm(revision) => it.db.confirm(revision),
            EdgeEffect::SetIncarnation(incarnation) => it.db.incarnation = Some(incarnation),
            EdgeEffect::RenewLease => {
                let micros = i64::try_from(now.as_micros()).unwrap();
                if let Some(edge) = &mut it.edge {
                    edge.renew(now, 0, micros, 0);
                }
            }
            EdgeEffect::SettleOutbox { lane, upto } => {
                let settled = it.outbox.settle(lane, upto);
                it.settling.extend(settled);
                self.time.after(5, Event::Marks { node, life });
            }
            EdgeEffect::Notice(EdgeNotice::UploadRefused { content, .. }) => match read(&content) {
                Ok(content) => drop(it.refused.insert(content.made)),
                Err(why) => self.time.violation = Some(why),
            },
            EdgeEffect::Notice(notice) => self.time.say(|| format!("node {node}: {notice:?}")),
            effect => self.time.after(5, Event::Read { node, life, effect }),
        }
    }

    /// Checks the items that the node has settled, now that it knows which ones were refused.
    fn check_settled(&mut self, node: usize) {
        for thing in std::mem::take(&mut self.nodes[node].settling) {
            let is_refused = self.nodes[node].refused.remove(&thing.made);
            let it = &self.nodes[node];
            let checked = self.oracle.check_settled(&self.server, (node, it), &thing, is_refused);
            if let Err(why) = checked {
                self.time.violation.get_or_insert(why);
            }
            if !is_refused {
                self.nodes[node].settled.insert(thing.key, (thing.made, thing.at));
            }
        }
    }

    pub(super) fn drive_machine(&mut self, replica: usize, node: usize) {
        loop {
            let now = self.time.now;
            let life = self.replicas[replica].life;
            let Some(Served { machine, desired, link, .. }) = self.replicas[replica].nodes.get_mut(node)
            else {
                return;
            };
            let link = *link;
            let Some(effect) = machine.poll_effect(desired) else {
                let Some(frame) = machine.poll_frame(now, desired) else { return };
                self.time.say(|| {
                    format!("replica {replica} → node {node}: {frame:?}").chars().take(300).collect()
                });
                if let Some(connection) = link {
                    self.transmit(DOWN, connection, &frame.encode(COMPRESS_ABOVE).unwrap());
                }
                continue;
            };
            let cached = |answer| Event::Cached { replica, life, node, answer };
            match effect {
                CloudEffect::ReadRecords => self.time.after(5, cached(FromCache::Opened)),
                CloudEffect::Load { token, objects } => {
                    self.time.after(20, cached(FromCache::Loaded(token, objects)));
                }
                CloudEffect::Record(batch) => self.time.after(10, cached(FromCache::Recorded(batch))),
                CloudEffect::CatchUp { token } => self.catch_up(replica, node, token),
                CloudEffect::Renew(renewal) => {
                    let lease = renewal.into_lease(0);
                    let renewal = lease.map_or(0, |lease| lease.renewed.cast_unsigned());
                    self.replicas[replica].nodes[node].renewal = Some(renewal);
                }
                CloudEffect::Ingest { token, upload } => {
                    if let Err(why) = self.ingest(replica, node, token, upload) {
                        self.time.violation.get_or_insert(why);
                    }
                }
                CloudEffect::RollbackClaimed => {
                    self.time.violation.get_or_insert("the store went back, it is said; it did not".into());
                }
                CloudEffect::Notice(CloudNotice::Welcomed { .. }) => self.welcomed(replica, node),
                CloudEffect::Notice(notice) => {
                    self.time.say(|| format!("replica {replica}, node {node}: {notice:?}"));
                }
            }
        }
    }

    /// Passes a question of a machine to the informer.
    fn catch_up(&mut self, replica: usize, node: usize, token: u64) {
        let it = &mut self.replicas[replica];
        let question = {
            let mut state = it.flows.state.borrow_mut();
            state.requested += 1;
            state.requested
        };
        it.waiting.push_back((question, node, token));
        self.break_watch(replica);
    }
}
