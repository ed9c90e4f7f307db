//! The invariants checked at each step and after convergence.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::change::{Change, Put, Uid};
use crate::cloud::{CloudMachine, CloudPhase};
use crate::edge::EdgePhase;
use crate::frame::{Down, Up};
use edgesync_object::ResourceVersion;

use super::{Chaos, DOWN, Event, UP, World};
use crate::simulation::model::written;
use crate::simulation::timeline::Simulated;

impl World {
    /// Checks G1: what is reported was committed before.
    pub(super) fn check_report(&mut self, agent: usize, frame: &Up) {
        let items = match frame {
            Up::Report(report) => &report.objects,
            Up::Inventory(inventory) => &inventory.objects,
            Up::Hello(_) | Up::Lease(_) | Up::Renew(_) | Up::Upload(_) | Up::Credit(_) => return,
        };
        let db = &self.agents[agent].db;
        let lie = items.iter().find(|item| !db.ever_held(&item.uid, &item.resource_version));
        if let Some(item) = lie {
            self.time.violation = Some(format!("G1: reported but never committed: {item:?}"));
        }
    }

    /// Checks that the cloud's frames agree with its store.
    pub(super) fn check_told(&mut self, frame: &Down) {
        match frame {
            Down::Welcome(welcome) => self.check_welcome(&welcome.session),
            // The node forgets whatever the cloud confirms.
            Down::Confirm(confirm) if confirm.revision > self.cloud_db.facts.confirmed => {
                let stored = self.cloud_db.facts.confirmed;
                let told = confirm.revision;
                self.time.violation = Some(format!("G1: {told} is confirmed, {stored} is stored"));
            }
            _ => {}
        }
    }

    /// Checks G4: at the Welcome, the records equal exactly the objects that the node holds.
    fn check_welcome(&mut self, session: &str) {
        let Some(agent) = self.link else { return };
        let it = &self.agents[agent];
        let Some(edge) = &it.machine else { return };
        // A second Welcome in the same session makes the edge send a new Hello.
        if edge.session() != Some(session) || edge.phase() == EdgePhase::Live {
            return;
        }
        let (held, recorded) = (it.db.held(), self.recorded());
        if held != recorded {
            let differ = |a: &BTreeMap<Uid, ResourceVersion>, b: &BTreeMap<Uid, ResourceVersion>| {
                a.iter()
                    .filter(|(k, v)| b.get(*k) != Some(v))
                    .map(|(k, v)| format!("{k}@{v}"))
                    .collect::<Vec<_>>()
            };
            let (lies, missing) = (differ(&recorded, &held), differ(&held, &recorded));
            self.time.violation = Some(format!(
                "G4: welcomed, recorded but not held: {lies:?}, held but not recorded: {missing:?}"
            ));
        }
    }

    /// Returns the cloud's records of the node.
    fn recorded(&self) -> BTreeMap<Uid, ResourceVersion> {
        let records = self.cloud_db.records.iter();
        records.map(|(uid, record)| (uid.clone(), record.version.clone())).collect()
    }

    /// Returns the number of objects that may vanish on a connection without a delete: more suggest
    /// the loss of the store, and are held back.
    pub(super) fn may_vanish(&self, agent: usize) -> usize {
        let config = self.sizes.cloud();
        let share = (self.agents[agent].db.len() as f64 * config.mass_delete_share) as usize;
        share.max(usize::try_from(config.mass_delete_min).unwrap())
    }

    /// Checks the mass-delete guard: objects do not vanish in masses without a delete, unless
    /// confirmed.
    pub(super) fn check_gone(&mut self, agent: usize, connection: usize) -> Result<(), String> {
        let gone = self.agents[agent].db.take_gone().into_iter();
        let (count, most) = &mut self.vanished[connection];
        *count += gone.filter(|uid| self.history.has_vanished(uid)).count();
        if count > most {
            return Err(format!("guard: {count} objects went that nobody deleted, at most {most} may"));
        }
        Ok(())
    }

    /// Checks that the bodies of changes are those of the cloud, as far as it has that version.
    pub(super) fn check_bodies(&self, changes: &[Change]) -> Result<(), String> {
        let is_damaged = |put: &Put| {
            let object = self.cloud_db.objects.get(&put.uid);
            let body = object.filter(|it| put.version == it.version.into()).map(|it| it.body(&put.uid));
            body.is_some_and(|body| body != put.body.get() && written(&body) == written(put.body.get()))
        };
        for change in changes {
            if let Change::Put(put) = change
                && is_damaged(put)
            {
                return Err(format!("G2: {} in version {} has another body", put.uid, put.version));
            }
        }
        Ok(())
    }

    /// Confirms the removals held back after a restore of the store. Without one there must be
    /// none.
    fn confirm_held_removals(&mut self) -> Result<(), String> {
        if self.held_back() == 0 {
            return Ok(());
        }
        if self.history.restores() == 0 {
            return Err("guard: removals are held back although the store is what it was".into());
        }
        self.confirm_deletions();
        Ok(())
    }

    /// Ends all faults, and connects the node.
    pub(in crate::simulation) fn heal(&mut self) {
        self.chaos = Chaos::NONE;
        self.time.say(|| "--- the link heals".into());
        if self.cloud.is_none() {
            self.start_cloud();
        }
        self.stop_agent(1);
        if self.agents[0].machine.is_none() {
            self.start_agent(0);
        }
        if self.link.is_none() {
            self.connect(0);
        }
    }

    pub(in crate::simulation) fn run_to_convergence(&mut self) -> Result<(), String> {
        self.heal();
        // Two hours of virtual time cover every backoff.
        for _ in 0..120 {
            self.pass(Duration::from_secs(60))?;
            self.confirm_held_removals()?;
            if self.link.is_none() {
                // The connection was dead, undetected.
                self.connect(0);
            }
            if self.converged().is_ok() {
                break;
            }
        }
        self.converged()?;
        self.pass(Duration::from_secs(30))?;
        self.check_lease()?;
        self.agents[0].db.check_totals()
    }

    /// Checks G6: the edge holds the desired objects, and the records say so.
    pub(in crate::simulation) fn converged(&self) -> Result<(), String> {
        let wanted = self.cloud_db.acceptable(self.sizes.max_object());
        let mut held = self.agents[0].db.held();
        // A rejected version leaves the last good one in place.
        let refused: Vec<&Uid> =
            self.cloud.iter().flat_map(CloudMachine::refused).map(|(uid, _)| uid).collect();
        let last_good = |uid: &Uid| refused.contains(&uid) && self.cloud_db.objects.contains_key(uid);
        held.retain(|uid, _| wanted.contains_key(uid) || !last_good(uid));
        if held != wanted {
            return Err(format!("G6: wanted {wanted:?}, held {held:?}"));
        }
        let is_other =
            |uid: &&Uid| self.agents[0].db.content(uid) != Some(self.cloud_db.objects[*uid].content);
        if let Some(uid) = wanted.keys().find(is_other) {
            return Err(format!("G6: {uid} is held in its version, with another content"));
        }
        let Some(cloud) = &self.cloud else { return Err("no cloud".into()) };
        let Some(edge) = &self.agents[0].machine else { return Err("no agent".into()) };
        if cloud.phase() != CloudPhase::Live || cloud.pending() != 0 || !edge.in_sync() {
            return Err(format!("G6: {:?}, {} pending, edge {edge:?}", cloud.phase(), cloud.pending()));
        }
        let stored = self.recorded();
        if stored != self.agents[0].db.held() {
            return Err(format!("G4: recorded {stored:?} at the end"));
        }
        self.outbox_converged()
    }

    /// Changes and deletes some of the objects.
    fn touch_some(&mut self) {
        let names: Vec<String> = self.cloud_db.names().into_iter().filter(|n| !n.contains("..")).collect();
        let life = self.cloud_life;
        for name in names {
            if !self.time.random.percent(20) {
                continue;
            }
            let mut touched = Vec::new();
            match self.time.random.below(3) {
                0 => touched.extend(self.remove(&name)),
                1 => {
                    touched.extend(self.remove(&name));
                    touched.push(self.put(&name, 20));
                }
                _ => (0..5).for_each(|_| touched.push(self.put(&name, 20))),
            }
            for uid in touched {
                self.time.after(10, Event::Desire { life, uid });
            }
        }
    }

    /// Checks G5: after a reconnect exactly the changed objects are sent, once, in their latest
    /// version.
    pub(in crate::simulation) fn reconnect_with_changes(&mut self) -> Result<(), String> {
        self.time.say(|| "--- a quiet reconnect".into());
        self.cut();
        if self.time.random.percent(50) {
            // The connection ends at the moment at which its first load begins.
            self.touch_some();
            self.pass(Duration::from_millis(20))?;
            self.connect(0);
            self.loads = 0;
            let end = self.time.now + Duration::from_secs(60);
            while self.loads == 0 && self.time.now < end {
                self.step()?;
            }
            self.cut();
        }
        let before = self.agents[0].db.held();
        self.touch_some();
        self.pass(Duration::from_millis(20))?;
        let wanted = self.cloud_db.acceptable(self.sizes.max_object());
        let changed = wanted.iter().filter(|(uid, version)| before.get(*uid) != Some(version)).count();
        let kept = |uid: &Uid| self.cloud_db.objects.contains_key(uid);
        let gone = before.keys().filter(|uid| !kept(uid)).count();
        let start = (self.cloud_counters(), self.repeated_reports(), self.wakes, self.frames_sent());
        let reformatted = self.reformatted();
        self.connect(0);
        self.loads = 0;
        // Five seconds suffice, unless the line is slow or a rejected object is retried at that
        // moment.
        let is_slow = self.line.rate.iter().any(Option::is_some) || self.load_ms > 5;
        let patience = if is_slow { 60 } else { 6 };
        for _ in 0..patience {
            self.pass(Duration::from_secs(1))?;
            if self.converged().is_ok() {
                break;
            }
        }
        self.converged()?;
        let (cloud, repeated, wakes, frames) = start;
        let end = self.cloud_counters();
        // A held object may have another text since the chaos.
        let refused = end.patches_refused - cloud.patches_refused;
        if refused > reformatted {
            return Err(format!("patches: {refused} were refused, {reformatted} held objects differ"));
        }
        let retries = end.rejected - cloud.rejected + refused;
        let sent = (end.sent - cloud.sent - retries, end.removals_sent - cloud.removals_sent);
        if sent != (changed as u64, gone as u64) {
            return Err(format!(
                "G5: {changed} changed and {gone} gone, but (puts, removals) sent: {sent:?}"
            ));
        }
        if self.loads as u64 != end.sent - cloud.sent {
            return Err(format!("cost: {} bodies were loaded for {changed} objects", self.loads));
        }
        let again = (end.resent - cloud.resent, self.repeated_reports() - repeated);
        if again != (0, 0) {
            return Err(format!("cost: nothing was lost, but (objects, reports) were sent again: {again:?}"));
        }
        let woken = self.wakes[UP] + self.wakes[DOWN] - wakes[UP] - wakes[DOWN];
        let frames = self.frames_sent() - frames;
        if woken > frames + 20 {
            return Err(format!("cost: woken {woken} times for {frames} frames"));
        }
        Ok(())
    }
}
