//! What must hold at each step.

use std::collections::BTreeSet;

use serde_json::Value;

use super::world::{MAX_OBJECT, Told, World};
use crate::{AskedKind, FetchRule, Name, Sent};
use edgesync_object::{ObjectKey, ResourceVersion};
use edgesync_protocol::change::{Change, Uid};

/// More than this in a queue is too much.
const MAX_QUEUED: usize = 4096;

impl World {
    /// Notes what a message of CloudCore is about: its acknowledgement is checked against that.
    pub(super) fn note_told(&mut self, text: &str) {
        let message: Value = serde_json::from_str(text).unwrap();
        let (header, route, content) = (&message["header"], &message["route"], &message["content"]);
        let metadata = &content["metadata"];
        if !metadata.is_object() {
            return;
        }
        let text_of = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let told = Told {
            source: text_of(&route["source"]),
            operation: text_of(&route["operation"]),
            kind: text_of(&route["resource"]).split('/').nth(1).unwrap_or_default().to_owned(),
            namespace: text_of(&metadata["namespace"]),
            name: text_of(&metadata["name"]),
            uid: text_of(&metadata["uid"]),
            version: text_of(&metadata["resourceVersion"]),
            bytes: content.to_string().len(),
        };
        self.remember_told(text_of(&header["msg_id"]), told);
    }

    /// G1: what is acknowledged is committed.
    pub(super) fn check_sent(&mut self, sent: &Sent) {
        let Sent::Text { text, .. } = sent else { return };
        let message: Value = serde_json::from_str(text).unwrap();
        if message["route"]["operation"] != "response" {
            return;
        }
        let parent = message["header"]["parent_msg_id"].as_str().unwrap_or_default().to_owned();
        let Some(told) = self.told(&parent) else { return };
        if !self.may_acknowledge(told) {
            self.time.violation = Some(format!("G1: acknowledged and not committed: {told:?}"));
        }
        self.acknowledged.insert(parent);
    }

    fn may_acknowledge(&self, told: &Told) -> bool {
        let held = self.disk.db.version(&told.uid);
        if told.operation == "delete" {
            return told.uid.is_empty() || held.is_none();
        }
        let version = ResourceVersion::from(told.version.as_str());
        let is_held = held.is_some_and(|held| !held.is_older_than(&version));
        // Newer, and removed since; or a newer object has its name.
        let was_held = self.disk.removed.contains(told.uid.as_str());
        let is_config = matches!(told.kind.as_str(), "configmap" | "secret");
        is_held
            || was_held
            || is_bad(&told.name, told.bytes)
            || self.is_replaced(told, &version)
            // What a watch pushes is not kept if nobody wants it.
            || (is_config && told.source == "dynamiccontroller" && !self.is_wanted(told))
    }

    /// Whether a Pod that is held, and exists, references it, or a rule asks for it.
    fn is_wanted(&self, told: &Told) -> bool {
        let kinds = [AskedKind::ConfigMap, AskedKind::Secret];
        let Some(kind) = kinds.into_iter().find(|kind| kind.word() == told.kind) else { return false };
        let name = Name { namespace: (*told.namespace).into(), kind, name: (*told.name).into() };
        self.config.fetch.iter().any(|rule| rule.matches(&name))
            || self.disk.db.held().into_iter().any(|held| {
                self.bodies[&held].references.contains(&name)
                    && self.cloud.cluster.all().any(|object| object["metadata"]["uid"] == *held.0)
            })
    }

    /// What the Pods that are held reference, and the object that is held under each name.
    pub(super) fn held_references(&self) -> Vec<(Name, Option<Uid>)> {
        let held = self.disk.db.held();
        // Nothing but a Pod references.
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

    /// Whether a newer object of another UID is held under the name.
    fn is_replaced(&self, told: &Told, version: &ResourceVersion) -> bool {
        self.disk.db.held().into_iter().any(|(uid, held)| {
            let object = &self.bodies[&(uid, held.clone())].object;
            object.kind.to_lowercase() == told.kind
                && *object.namespace == *told.namespace
                && *object.name == *told.name
                && version.is_older_than(&held)
        })
    }

    /// G3, more than the database can know: what exists is not removed.
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

    /// G8: nothing grows without bounds.
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

    /// ConfigMaps and Secrets, by type and name, that rules and held pods want.
    pub(super) fn wanted_names(&self) -> BTreeSet<(String, String)> {
        let mut wanted = BTreeSet::new();
        for (uid, version) in self.disk.db.held() {
            for name in &self.bodies[&(uid, version)].references {
                wanted.insert((name.kind.word().to_owned(), name.name.to_string()));
            }
        }
        for object in self.cloud.cluster.all() {
            let kinds = [AskedKind::ConfigMap, AskedKind::Secret];
            let Some(kind) = kinds.into_iter().find(|kind| object["kind"] == kind.kind()) else { continue };
            let part = |part: &str| object["metadata"][part].as_str().unwrap_or_default().into();
            let name = Name { namespace: part("namespace"), kind, name: part("name") };
            let has_star = |rule: &FetchRule| rule.exact().is_none();
            let dynamic = self.cloud.settings.dynamic_controller;
            if self.config.fetch.iter().any(|rule| rule.matches(&name) && (dynamic || !has_star(rule))) {
                wanted.insert((kind.word().to_owned(), name.name.to_string()));
            }
        }
        wanted
    }

    /// The numbers of the Events that have arrived.
    pub(super) fn arrived(&self) -> BTreeSet<u64> {
        let events = self.cloud.event_writes().iter();
        let number = |event: &Value| {
            let name = event["metadata"]["name"].as_str()?;
            u64::from_str_radix(name.rsplit('.').next()?, 16).ok()
        };
        events.filter_map(number).collect()
    }
}

/// Whether no node can hold it.
pub(super) fn is_bad(name: &str, bytes: usize) -> bool {
    name.contains("..") || bytes > MAX_OBJECT
}
