//! The invariants checked after convergence.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;

use super::checks::is_bad;
use super::objects::NODE;
use super::world::{Chaos, VERIFY_INTERVAL, World};
use crate::model::Deletes;
use edgesync_object::ResourceVersion;
use edgesync_protocol::change::Uid;
use edgesync_protocol::simulation::timeline::Simulated;

impl World {
    pub(super) fn heal(&mut self) {
        self.time.say(|| "--- the faults stop".into());
        self.chaos = Chaos { deletes: self.chaos.deletes, ..Chaos::none() };
        self.full_until = self.time.now;
        if self.agent.is_none() {
            self.start_agent();
        }
    }

    pub(super) fn run_to_convergence(&mut self) -> Result<(), String> {
        self.heal();
        self.wait_for_convergence()?;
        self.check_lease()?;
        // A pending comparison may have begun meanwhile.
        self.wait_for_convergence()?;
        self.disk.db.check_totals()
    }

    fn wait_for_convergence(&mut self) -> Result<(), String> {
        let limit = self.time.now + VERIFY_INTERVAL * 6;
        while self.converged().is_err() && self.time.now < limit {
            self.connect();
            self.pass(Duration::from_secs(10))?;
        }
        self.converged()
    }

    /// Checks G6: the node holds the desired objects, and its uploads have arrived.
    pub(super) fn converged(&self) -> Result<(), String> {
        let held = self.disk.db.held();
        // Without the dynamic controller Pods and custom resources cannot be queried: an object
        // that CloudCore assumes on the node stays missing, and a delete without a UID stays
        // ambiguous.
        let is_unclear = self.cloud.settings.deletes == Deletes::EmptyUid;
        let is_blind = !self.cloud.settings.dynamic_controller && (self.damaged || is_unclear);
        // No round compares the Node itself.
        let cannot_tell =
            |kind: &str| (is_blind && matches!(kind, "Pod" | "Widget")) || (self.damaged && kind == "Node");
        let alive: BTreeMap<Uid, &Value> =
            self.cloud.cluster.all().map(|object| (uid(object).into(), object)).collect();
        for (uid, version) in &held {
            let kind = &*self.bodies[&(uid.clone(), version.clone())].object.kind;
            match alive.get(uid) {
                _ if cannot_tell(kind) => {}
                Some(object) if version_of(object) == *version || is_bad_object(object) => {}
                Some(object) => return Err(format!("G6: held in version {version}: {}", object["metadata"])),
                None => return Err(format!("G6: {kind} {uid} is held and gone")),
            }
        }
        let desired = self.desired_names();
        for (uid, object) in &alive {
            let kind = object["kind"].as_str().unwrap_or_default();
            if self.is_desired_object(object, &desired) && !cannot_tell(kind) && !held.contains_key(uid) {
                return Err(format!("G6: {kind} is not held: {}", object["metadata"]));
            }
        }
        let Some(agent) = &self.agent else { return Err("no agent".into()) };
        if !agent.machine.in_sync() {
            return Err(format!("G6: not in sync: {:?} {:?}", agent.machine, agent.bridge));
        }
        if self.cloud.waiting(NODE) > 0 {
            return Err(format!("G6: {} messages wait", self.cloud.waiting(NODE)));
        }
        self.upstream_converged()
    }

    fn upstream_converged(&self) -> Result<(), String> {
        if !self.disk.outbox.rows.is_empty() {
            return Err(format!(
                "outbox: {} items wait: {:?}",
                self.disk.outbox.rows.len(),
                self.agent.as_ref().map(|it| &it.bridge)
            ));
        }
        let arrived = self.arrived();
        if let Some(lost) = self.owed.iter().find(|number| !arrived.contains(number)) {
            return Err(format!("outbox: event {lost} is lost"));
        }
        match self.cloud.object("node", "", NODE) {
            Some(node) if node["metadata"]["labels"]["node-role.kubernetes.io/edge"] == "" => Ok(()),
            node => Err(format!("the Node is not registered: {node:?}")),
        }
    }

    fn is_desired_object(&self, object: &Value, desired: &BTreeSet<(String, String)>) -> bool {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if is_bad_object(object) {
            return false;
        }
        match object["kind"].as_str().unwrap_or_default() {
            "Pod" => object["spec"]["nodeName"] == NODE,
            "Widget" => self.cloud.settings.dynamic_controller && !self.config.watch.is_empty(),
            kind @ ("ConfigMap" | "Secret") => desired.contains(&(kind.to_lowercase(), name.to_owned())),
            _ => false,
        }
    }

    /// Checks that the Lease is renewed while the node is connected.
    fn check_lease(&mut self) -> Result<(), String> {
        let version = |world: &Self| world.cloud.object("lease", "kube-node-lease", NODE).map(version_of);
        let before = version(self);
        self.pass(Duration::from_secs(15))?;
        let after = version(self);
        if after.is_none() || before == after {
            return Err(format!("the Lease is not renewed: {before:?}, {after:?}"));
        }
        Ok(())
    }
}

fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().unwrap_or_default()
}

fn version_of(object: &Value) -> ResourceVersion {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default().into()
}

fn is_bad_object(object: &Value) -> bool {
    is_bad(object["metadata"]["name"].as_str().unwrap_or_default(), object.to_string().len())
}
