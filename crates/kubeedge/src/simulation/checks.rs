//! The invariants checked at each step.

use std::collections::BTreeSet;

use serde_json::Value;

use super::world::{MAX_OBJECT, PushedMessage, World};
use crate::{FetchRule, Name, QueriedKind, Sent};
use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::change::{Change, Uid};

/// The longest permitted queue.
const MAX_QUEUED: usize = 4096;

impl World {
    /// Records the object of a message from CloudCore, for the check of its acknowledgement.
    pub(super) fn note_pushed(&mut self, text: &str) {
        let message: Value = serde_json::from_str(text).unwrap();
        let (header, route, content) = (&message["header"], &message["route"], &message["content"]);
        let metadata = &content["metadata"];
        if !metadata.is_object() {
            return;
        }
        let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let pushed = PushedMessage {
            source: text_of(&route["source"]),
            operation: text_of(&route["operation"]),
            kind: text_of(&route["resource"]).split('/').nth(1).unwrap_or_default().to_owned(),
            namespace: text_of(&metadata["namespace"]),
            name: text_of(&metadata["name"]),
            uid: text_of(&metadata["uid"]),
            version: text_of(&metadata["resourceVersion"]),
            bytes: content.to_string().len(),
        };
        self.record_pushed(text_of(&header["msg_id"]), pushed);
    }

    /// Checks G1: what is acknowledged is committed.
    pub(super) fn check_sent(&mut self, sent: &Sent) {
        let Sent::Text { text, .. } = sent else { return };
        let message: Value = serde_json::from_str(text).unwrap();
        if message["route"]["operation"] != "response" {
            return;
        }
        let parent = message["header"]["parent_msg_id"].as_str().unwrap_or_default().to_owned();
        let Some(pushed) = self.pushed(&parent) else { return };
        if !self.may_acknowledge(pushed) {
            self.time.violation = Some(format!("G1: acknowledged and not committed: {pushed:?}"));
        }
        self.acknowledged.insert(parent);
    }

    fn may_acknowledge(&self, pushed: &PushedMessage) -> bool {
        let held = self.disk.db.version(&pushed.uid);
        let was_held = self.disk.removed.contains(pushed.uid.as_str());
        if pushed.operation == "delete" {
            // A page of a list that is older than the deletion may bring the object back until the
            // round ends.
            return pushed.uid.is_empty() || held.is_none() || was_held;
        }
        let version = ResourceVersion::from(pushed.version.as_str());
        let is_held = held.is_some_and(|held| !held.is_older_than(&version));
        // Newer and removed since, or a newer object has its name.
        let is_config = matches!(pushed.kind.as_str(), "configmap" | "secret");
        is_held
            || was_held
            || is_bad(&pushed.name, pushed.bytes)
            || self.is_replaced(pushed, &version)
            // An undesired object that a watch pushes is not stored.
            || (is_config && pushed.source == "dynamiccontroller" && !self.is_desired(pushed))
    }

    /// Returns whether an existing held Pod references it, or a rule matches it.
    fn is_desired(&self, pushed: &PushedMessage) -> bool {
        let kinds = [QueriedKind::ConfigMap, QueriedKind::Secret];
        let Some(kind) = kinds.into_iter().find(|kind| kind.word() == pushed.kind) else { return false };
        let name = Name { namespace: (*pushed.namespace).into(), kind, name: (*pushed.name).into() };
        self.config.fetch.iter().any(|rule| rule.matches(&name))
            || self.disk.db.held().into_iter().any(|held| {
                self.bodies[&held].references.contains(&name)
                    && self.cloud.cluster.all().any(|object| object["metadata"]["uid"] == *held.0)
            })
    }

    /// Returns the references of held Pods, each with the object held under the name.
    pub(super) fn held_references(&self) -> Vec<(Name, Option<Uid>)> {
        let held = self.disk.db.held();
        // Only Pods reference names.
        let names = held.into_iter().flat_map(|held| self.bodies[&held].references.clone());
        names.map(|name| (name.clone(), self.held_under(&name))).collect()
    }

    pub(super) fn held_under(&self, name: &Name) -> Option<Uid> {
        let key = ObjectKey {
            group: "".into(),
            kind: name.kind.kind().into(),
            namespace: (&*name.namespace).into(),
            name: (&*name.name).into(),
        };
        self.disk.db.named(&key).cloned()
    }

    /// Returns whether a newer object of another UID is held under the name.
    fn is_replaced(&self, pushed: &PushedMessage, version: &ResourceVersion) -> bool {
        self.disk.db.held().into_iter().any(|(uid, held)| {
            let object = &self.bodies[&(uid, held.clone())].object;
            object.kind.to_lowercase() == pushed.kind
                && *object.namespace == *pushed.namespace
                && *object.name == *pushed.name
                && version.is_older_than(&held)
        })
    }

    /// Checks G3 beyond the database's knowledge: existing objects are not removed.
    pub(super) fn check_deletes(&self, changes: &[Change]) -> Result<(), String> {
        for change in changes {
            let Change::Delete(delete) = change else { continue };
            let lives = |object: &&Value| object["metadata"]["uid"] == *delete.uid;
            if let Some(object) = self.cloud.cluster.all().find(lives) {
                return Err(format!("G3: {} is removed and lives: {}", delete.uid, object["metadata"]));
            }
        }
        Ok(())
    }

    /// Checks G8: nothing grows without bounds.
    pub(super) fn check_bounds(&mut self) {
        if let Some(violation) = self.cloud.violations().first() {
            self.time.violation = Some(violation.clone());
        }
        let Some(agent) = &self.agent else { return };
        let bridge = &agent.bridge;
        let queues = [
            bridge.early.len(),
            bridge.outbound.messages.len(),
            bridge.outbound.frames.len(),
            bridge.outbound.effects.len(),
            usize::try_from(bridge.delivery.pending()).unwrap(),
        ];
        if queues.iter().any(|queue| *queue > MAX_QUEUED) || bridge.early.len() > super::super::MAX_EARLY {
            self.time.violation = Some(format!("G8: queues of {queues:?}"));
        }
    }

    /// Returns the ConfigMaps and Secrets, by type and name, that rules and held Pods desire.
    pub(super) fn desired_names(&self) -> BTreeSet<(String, String)> {
        let mut desired = BTreeSet::new();
        for (uid, version) in self.disk.db.held() {
            for name in &self.bodies[&(uid, version)].references {
                desired.insert((name.kind.word().to_owned(), name.name.to_string()));
            }
        }
        for object in self.cloud.cluster.all() {
            let kinds = [QueriedKind::ConfigMap, QueriedKind::Secret];
            let Some(kind) = kinds.into_iter().find(|kind| object["kind"] == kind.kind()) else { continue };
            let part = |part: &str| object["metadata"][part].as_str().unwrap_or_default().into();
            let name = Name { namespace: part("namespace"), kind, name: part("name") };
            let has_star = |rule: &FetchRule| rule.exact().is_none();
            let dynamic = self.cloud.settings.dynamic_controller;
            if self.config.fetch.iter().any(|rule| rule.matches(&name) && (dynamic || !has_star(rule))) {
                desired.insert((kind.word().to_owned(), name.name.to_string()));
            }
        }
        desired
    }

    /// Returns the numbers of the Events that have arrived.
    pub(super) fn arrived(&self) -> BTreeSet<u64> {
        let events = self.cloud.event_writes().iter();
        let number = |event: &Value| {
            let name = event["metadata"]["name"].as_str()?;
            u64::from_str_radix(name.rsplit('.').next()?, 16).ok()
        };
        events.filter_map(number).collect()
    }
}

/// Returns whether no node can hold the object.
pub(super) fn is_bad(name: &str, bytes: usize) -> bool {
    name.contains("..") || bytes > MAX_OBJECT
}
