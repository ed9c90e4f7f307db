//! What must hold at each step, and in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::object::ResourceVersion;
use crate::sync::change::Uid;
use crate::sync::cloud::{CloudMachine, CloudPhase};
use crate::sync::edge::EdgePhase;
use crate::sync::frame::{Down, Up};

use super::{Chaos, Event, MAX_OBJECT, World};
use crate::sync::simulation::timeline::Simulated;

impl World {
    /// G1: what is reported was committed before.
    pub(super) fn check_report(&mut self, agent: usize, frame: &Up) {
        let items = match frame {
            Up::Report(report) => &report.objects,
            Up::Inventory(inventory) => &inventory.objects,
            Up::Hello(_) | Up::Lease(_) | Up::Upload(_) => return,
        };
        let db = &self.agents[agent].db;
        let lie = items.iter().find(|item| !db.ever_held(&item.uid, &item.resource_version));
        if let Some(item) = lie {
            self.time.violation = Some(format!("G1: reported but never committed: {item:?}"));
        }
    }

    /// G4: when a node is welcomed, its records are exactly what it holds.
    pub(super) fn check_welcome(&mut self, frame: &Down) {
        let (Down::Welcome(welcome), Some(agent), Some(cloud)) = (frame, self.link, &self.cloud) else {
            return;
        };
        let it = &self.agents[agent];
        let Some(edge) = &it.machine else { return };
        // A second Welcome to the same session makes the edge say Hello anew.
        if edge.session() != Some(&welcome.session) || edge.phase() == EdgePhase::Live {
            return;
        }
        let held = it.db.held();
        let recorded: BTreeMap<Uid, ResourceVersion> = cloud
            .recorded_versions(&self.wishes)
            .map(|(uid, version)| (uid.clone(), version.clone()))
            .collect();
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

    pub(in crate::sync::simulation) fn run_to_convergence(&mut self) -> Result<(), String> {
        self.chaos = Chaos::none();
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
        // An hour of virtual time covers every backoff there is.
        for _ in 0..60 {
            self.pass(Duration::from_secs(60))?;
            if let Some(cloud) = &mut self.cloud {
                cloud.confirm_deletions(self.time.now, &self.wishes);
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

    /// G6: the edge holds what it is to hold, and is recorded to do so.
    pub(super) fn converged(&self) -> Result<(), String> {
        let wanted = self.cloud_db.acceptable(MAX_OBJECT);
        let mut held = self.agents[0].db.held();
        // A refused version leaves the last good one in place.
        let refused: Vec<&Uid> =
            self.cloud.iter().flat_map(CloudMachine::refused).map(|(uid, _)| uid).collect();
        held.retain(|uid, _| wanted.contains_key(uid) || !refused.contains(&uid));
        if held != wanted {
            return Err(format!("G6: wanted {wanted:?}, held {held:?}"));
        }
        let Some(cloud) = &self.cloud else { return Err("no cloud".into()) };
        let Some(edge) = &self.agents[0].machine else { return Err("no agent".into()) };
        if cloud.phase() != CloudPhase::Live || cloud.pending() != 0 || !edge.in_sync() {
            return Err(format!("G6: {:?}, {} pending, edge {edge:?}", cloud.phase(), cloud.pending()));
        }
        let stored: BTreeMap<Uid, ResourceVersion> =
            self.cloud_db.records.iter().map(|(uid, record)| (uid.clone(), record.version.clone())).collect();
        if stored != self.agents[0].db.held() {
            return Err(format!("G4: recorded {stored:?} at the end"));
        }
        self.outbox_converged()
    }

    /// G5: after a reconnect exactly what changed is sent, once, in its latest version.
    pub(in crate::sync::simulation) fn reconnect_with_changes(&mut self) -> Result<(), String> {
        self.time.say(|| "--- a quiet reconnect".into());
        self.cut();
        let before = self.agents[0].db.held();
        let names: Vec<String> = self.cloud_db.names().into_iter().filter(|n| !n.contains("..")).collect();
        let life = self.cloud_life;
        for name in names.iter().filter(|_| self.time.random.percent(20)).cloned().collect::<Vec<_>>() {
            let mut touched = Vec::new();
            match self.time.random.below(3) {
                0 => touched.extend(self.cloud_db.delete(&name)),
                1 => {
                    touched.extend(self.cloud_db.delete(&name));
                    touched.push(self.cloud_db.write(&name, 20));
                }
                _ => (0..5).for_each(|_| touched.push(self.cloud_db.write(&name, 20))),
            }
            for uid in touched {
                self.time.after(10, Event::Desire { life, uid });
            }
        }
        self.pass(Duration::from_secs(1))?;
        let wanted = self.cloud_db.acceptable(MAX_OBJECT);
        let changed = wanted.iter().filter(|(uid, version)| before.get(*uid) != Some(version)).count();
        let kept = |uid: &Uid| self.cloud_db.objects.contains_key(uid);
        let gone = before.keys().filter(|uid| !kept(uid)).count();
        let counters = |world: &Self| world.cloud.as_ref().map(CloudMachine::counters).unwrap_or_default();
        let start = counters(self);
        self.connect(0);
        // Five seconds suffice, unless a refused object happens to be tried again just then.
        self.pass(Duration::from_secs(5))?;
        if self.converged().is_err() {
            self.pass(Duration::from_secs(1))?;
        }
        self.converged()?;
        let end = counters(self);
        let retries = end.rejected - start.rejected;
        let sent = (end.sent - start.sent - retries, end.removals_sent - start.removals_sent);
        if sent != (changed as u64, gone as u64) {
            return Err(format!(
                "G5: {changed} changed and {gone} gone, but (puts, removals) sent: {sent:?}"
            ));
        }
        Ok(())
    }
}
