//! The effects of the machines, and the invariants at each step.

use crate::change::Change;
use crate::cloud::CloudEffect;
use crate::edge::{EdgeEffect, EdgeMachine, EdgePhase};
use crate::frame::{Confirm, Down, HelloRequest, InventoryRequest, ObjectsText, Part, Patches, Up, Welcome};
use crate::renewal::Stay;
use crate::upload::UploadConfirm;

use super::{COMPRESS_ABOVE, DOWN, Event, MAX_WAKES, Replica, UP, World};

impl World {
    pub(super) fn drive_node(&mut self) {
        loop {
            let Some(edge) = &mut self.edge else { return };
            if let Some(effect) = edge.poll_effect() {
                self.perform(effect);
                continue;
            }
            let Some(connection) = self.link else { return };
            let Some(frame) = edge.poll_frame(self.time.now) else { return };
            edge.link_progress(self.time.now, 0, 0);
            self.time.say(|| format!("node → {frame:?}"));
            if let Up::Hello(hello) = &frame {
                let begun = hello.partial.as_ref();
                let begun = begun.map(|partial| (partial.uid.clone(), partial.resource_version.clone()));
                self.cluster.said_hello(self.time.now, self.db.held().into_keys().collect(), begun);
                self.delivered.clear();
                self.lost = 0;
            }
            let bytes = frame.encode(COMPRESS_ABOVE).unwrap();
            if let Up::Hello(_) = frame {
                self.last_hello = Some((connection, bytes.clone()));
            }
            if !matches!(frame, Up::Lease(_) | Up::Renew(_)) {
                self.traffic = (self.traffic.0 + 1, self.traffic.1 + bytes.len());
            }
            self.transmit(UP, connection, &bytes);
        }
    }

    fn perform(&mut self, effect: EdgeEffect) {
        let life = self.life;
        match effect {
            EdgeEffect::Apply { token, changes } => {
                let at = self.time.in_order(&mut self.last_commit, 15);
                self.time.at(at, Event::Commit { life, token, changes });
            }
            EdgeEffect::KeepPart { message, text } => {
                let kept = self.db.keep_part(message.clone(), &text);
                if let Some(edge) = &mut self.edge {
                    edge.part_kept(&message, Ok(kept));
                }
            }
            EdgeEffect::ApplyParts { token, message, rest, max_object } => {
                match self.db.assemble(&message, &rest, max_object) {
                    Some(Ok(change)) => self.perform(EdgeEffect::Apply { token, changes: vec![change] }),
                    _ => {
                        let (now, random) = (self.time.now, self.time.random.next());
                        if let Some(edge) = &mut self.edge {
                            edge.parts_lost(now, token, random);
                        }
                    }
                }
            }
            EdgeEffect::DropParts => self.db.drop_parts(),
            EdgeEffect::Confirm(revision) => self.db.confirm(revision),
            EdgeEffect::SetIncarnation(incarnation) => self.db.incarnation = Some(incarnation),
            EdgeEffect::RenewLease => {
                let (now, micros) = (self.time.now, i64::try_from(self.time.now.as_micros()).unwrap());
                if let Some(edge) = &mut self.edge {
                    edge.renew(now, 0, micros, 0);
                }
            }
            EdgeEffect::Notice(notice) => self.time.say(|| format!("node: {notice:?}")),
            read => self.time.after(5, Event::Read { life, effect: read }),
        }
    }

    pub(super) fn drive_replica(&mut self, replica: usize) {
        loop {
            let now = self.time.now;
            let Replica { machine: Some(machine), wishes, life, serves, .. } = &mut self.replicas[replica]
            else {
                return;
            };
            let (life, serves) = (*life, *serves);
            match machine.poll_effect(wishes) {
                Some(CloudEffect::ReadRecords) => self.time.after(5, Event::Opened { replica, life }),
                Some(CloudEffect::Load { token, objects }) => {
                    self.time.after(20, Event::Loaded { replica, life, token, objects });
                }
                Some(CloudEffect::Record(batch)) => {
                    self.time.after(self.chaos.write, Event::Recorded { replica, life, token: batch.token });
                }
                Some(CloudEffect::CatchUp { token }) => {
                    let changes = self.cluster.view.changes;
                    self.time.after(50, Event::CaughtUp { replica, life, token, changes });
                }
                Some(CloudEffect::RollbackClaimed) => {
                    if !self.cluster.was_restored() {
                        self.time.violation = Some("the store went back, it is said; it did not".into());
                    }
                    // The only node suffices as a witness.
                    self.cluster.begin_another();
                    self.adopt_life(replica);
                }
                Some(CloudEffect::Notice(notice)) => {
                    self.time.say(|| format!("replica {replica}: {notice:?}"));
                }
                Some(_) => {}
                None => {
                    if machine.held_count() > 0 && !self.cluster.was_restored() {
                        self.time.violation =
                            Some("guard: removals are held back although the store is what it was".into());
                    }
                    let Some(frame) = machine.poll_frame(now, wishes) else { return };
                    self.time.say(|| format!("replica {replica} → {frame:?}").chars().take(300).collect());
                    let Some(connection) = serves else { continue };
                    self.check_welcome(replica, connection, &frame);
                    let bytes = frame.encode(COMPRESS_ABOVE).unwrap();
                    // Traffic without a receiver costs nothing, nor does that of an earlier
                    // session.
                    if self.link == Some(connection) && self.is_of_current_session(&frame) {
                        self.traffic = (self.traffic.0 + 1, self.traffic.1 + bytes.len());
                        self.inventories += u64::from(matches!(frame, Down::InventoryRequest(_)));
                    }
                    self.transmit(DOWN, connection, &bytes);
                }
            }
        }
    }

    /// Returns whether a frame belongs to the session that the node is in: it drops all others.
    fn is_of_current_session(&self, frame: &Down) -> bool {
        let session = match frame {
            Down::Welcome(Welcome { session, .. })
            | Down::Objects(ObjectsText { session, .. })
            | Down::Part(Part { session, .. })
            | Down::Patches(Patches { session, .. })
            | Down::Confirm(Confirm { session, .. })
            | Down::InventoryRequest(InventoryRequest { session, .. })
            | Down::HelloRequest(HelloRequest { session, .. })
            | Down::UploadConfirm(UploadConfirm { session, .. })
            | Down::Stay(Stay { session, .. }) => session,
        };
        self.edge.as_ref().and_then(EdgeMachine::session) == Some(session)
    }

    /// Counts the changes that a transaction of the node brings, whatever the replica that has sent
    /// them counts.
    pub(super) fn count_written(&mut self, changes: &[Change]) {
        let puts = changes.iter().filter(|change| matches!(change, Change::Put(_))).count() as u64;
        self.written.0 += puts;
        self.written.1 += changes.len() as u64 - puts;
    }

    /// Checks G4: at the Welcome, the ledger equals exactly the objects that the node holds.
    fn check_welcome(&mut self, replica: usize, connection: usize, frame: &Down) {
        let (Down::Welcome(welcome), Some(edge)) = (frame, &self.edge) else { return };
        let is_current = self.link == Some(connection) && edge.session() == Some(&welcome.session);
        let Replica { machine: Some(machine), wishes, .. } = &self.replicas[replica] else { return };
        if !is_current || edge.phase() == EdgePhase::Live {
            return;
        }
        let known = machine.recorded_versions(wishes).map(|(uid, version)| (uid.into(), version)).collect();
        let held = self.db.held();
        if held != known {
            self.time.violation = Some(format!("G4: welcomed, known {known:?}, held {held:?}"));
        }
    }

    /// Checks that no version is sent that the node held at its Hello.
    pub(super) fn check_sent(&mut self, changes: &[Change]) -> Result<(), String> {
        let held = self.db.held();
        for change in changes {
            let Change::Put(put) = change else { continue };
            let is_first = self.delivered.insert((put.uid.clone(), put.version.clone()));
            if is_first && held.get(&put.uid) == Some(&put.version) {
                return Err(format!("cost: {} was sent at {}, which was held", put.uid, put.version));
            }
        }
        Ok(())
    }

    /// Checks that objects lost with a life of the cluster are not removed in masses without a
    /// confirmation.
    pub(super) fn check_lost(&mut self, changes: &[Change]) -> Result<(), String> {
        let held = self.db.held();
        let is_lost = |change: &&Change| {
            let Change::Delete(_) = change else { return false };
            held.contains_key(change.uid()) && self.cluster.has_lost(change.uid())
        };
        self.lost += changes.iter().filter(is_lost).count() as u64;
        let config = self.sizes.cloud();
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let share = (config.mass_delete_share * held.len() as f64) as u64;
        match self.lost > config.mass_delete_min.max(share) {
            true => Err(format!("guard: {} objects went with a life of the cluster", self.lost)),
            false => Ok(()),
        }
    }

    /// Checks that the timers do not wake the machines too often.
    pub(super) fn check_woken(&mut self) -> Result<(), String> {
        let (second, count) = self.woken;
        let now = self.time.now.as_secs();
        self.woken = if now == second { (second, count + 1) } else { (now, 1) };
        match self.woken.1 > MAX_WAKES {
            true => Err(format!("cost: woken {MAX_WAKES} times in a second")),
            false => Ok(()),
        }
    }
}
