//! Terminating Pods: reported as ended at once, with the UID as a precondition.
//!
//! CloudCore considers a Pod deleted when its node reports the end, and nothing runs on this node.
//! Without the report `kubectl delete pod` would wait forever.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::MessageId;
use super::message::{self, Incoming};
use super::outbound::Outbound;
use super::types::BridgeConfig;
use edgesync_object::member;
use edgesync_protocol::change::{Put, Uid};
use edgesync_protocol::timing::Now;

/// The most terminating Pods tracked.
const MAX_PODS: usize = 1024;
/// The timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct TerminatingPod {
    resource: Box<str>,
    due: Now,
    asked: Option<MessageId>,
}

/// The terminating Pods and their deletion requests.
#[derive(Debug, Default)]
pub(super) struct TerminatingPods {
    pods: BTreeMap<Uid, TerminatingPod>,
}

impl TerminatingPods {
    /// Ends the connection: unanswered requests are repeated after the next one.
    pub(super) fn forget(&mut self) {
        for ending in self.pods.values_mut() {
            (ending.due, ending.asked) = (Now::ZERO, None);
        }
    }

    /// Handles an object about to be stored.
    pub(super) fn seen(&mut self, config: &BridgeConfig, put: &Put) {
        if put.resource.kind == "Pod" && put.resource.group.is_empty() {
            self.restore(config, &put.uid, &put.namespace, &put.name, put.body.get());
        }
    }

    /// Records a held Pod if it is this node's and terminating.
    pub(super) fn restore(
        &mut self,
        config: &BridgeConfig,
        uid: &Uid,
        namespace: &str,
        name: &str,
        body: &str,
    ) {
        let is_ending = member(body, &["metadata", "deletionTimestamp"]).is_some_and(|at| at != "null");
        let is_ours = member(body, &["spec", "nodeName"])
            .is_some_and(|node| serde_json::from_str::<String>(node).is_ok_and(|node| *node == *config.node));
        if is_ending && is_ours && self.pods.len() < MAX_PODS && !self.pods.contains_key(uid) {
            let resource = format!("{namespace}/pod/{name}").into();
            self.pods.insert(uid.clone(), TerminatingPod { resource, due: Now::ZERO, asked: None });
        }
    }

    /// Forgets a deleted Pod.
    pub(super) fn gone(&mut self, uid: &Uid) {
        self.pods.remove(uid);
    }

    /// Handles an answer. It is "OK" for an already deleted Pod, too.
    pub(super) fn answered(&mut self, incoming: &Incoming<'_>) {
        if incoming.parent.is_some() && incoming.content.is_some_and(|content| content.get() == "\"OK\"") {
            self.pods.retain(|_, ending| ending.asked != incoming.parent);
        }
    }

    /// Sends the requests that are due.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        for (uid, ending) in self.pods.iter_mut().filter(|(_, ending)| ending.due <= now) {
            let content =
                serde_json::json!({"gracePeriodSeconds": 0, "preconditions": {"uid": &**uid}}).to_string();
            ending.asked = Some(outbound.send(&message::write("pod", "delete", &*ending.resource, content)));
            ending.due = now + ANSWER_TIMEOUT;
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.pods.values().map(|ending| ending.due).min()
    }
}
