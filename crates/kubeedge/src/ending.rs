//! Pods that are to end. CloudCore takes a Pod for gone when its node says that it has ended, and nothing runs here: so the
//! node says so at once, with the UID as a precondition. Otherwise `kubectl delete pod` would wait for ever.

use std::collections::BTreeMap;
use std::time::Duration;

use super::message::MessageId;
use super::message::{self, Incoming};
use super::outbound::Outbound;
use super::types::BridgeConfig;
use edgesync_object::member;
use edgesync_protocol::change::{Put, Uid};
use edgesync_protocol::timing::Now;

/// The most Pods that are remembered.
const MAX_PODS: usize = 1024;
/// How long an answer may take.
const AGAIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Ending {
    resource: Box<str>,
    due: Now,
    asked: Option<MessageId>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Endings {
    pods: BTreeMap<Uid, Ending>,
}

impl Endings {
    /// The connection is over: what was not answered is said again after the next one.
    pub(super) fn forget(&mut self) {
        for ending in self.pods.values_mut() {
            (ending.due, ending.asked) = (Now::ZERO, None);
        }
    }

    /// An object is going to be stored.
    pub(super) fn seen(&mut self, config: &BridgeConfig, put: &Put) {
        if put.resource.kind == "Pod" && put.resource.group.is_empty() {
            self.remember(config, &put.uid, &put.namespace, &put.name, put.body.get());
        }
    }

    /// A Pod is held, or going to be: if it is this node's, and to end, that is said.
    pub(super) fn remember(
        &mut self,
        config: &BridgeConfig,
        uid: &Uid,
        namespace: &str,
        name: &str,
        body: &str,
    ) {
        let is_ending = member(body, &["metadata", "deletionTimestamp"]).is_some_and(|at| at != "null");
        let is_ours = member(body, &["spec", "nodeName"])
            .is_some_and(|node| serde_json::from_str::<String>(node).is_ok_and(|node| node == config.node));
        if is_ending && is_ours && self.pods.len() < MAX_PODS && !self.pods.contains_key(uid) {
            let resource = format!("{namespace}/pod/{name}").into();
            self.pods.insert(uid.clone(), Ending { resource, due: Now::ZERO, asked: None });
        }
    }

    /// A Pod is held no more.
    pub(super) fn gone(&mut self, uid: &Uid) {
        self.pods.remove(uid);
    }

    /// Takes an answer if it is one to this. It is "OK" for a Pod that is gone already, too.
    pub(super) fn answered(&mut self, incoming: &Incoming<'_>) {
        if incoming.parent.is_some() && incoming.content.is_some_and(|content| content.get() == "\"OK\"") {
            self.pods.retain(|_, ending| ending.asked != incoming.parent);
        }
    }

    /// Says what is due.
    pub(super) fn tick(&mut self, outbound: &mut Outbound) {
        let now = outbound.at.now;
        for (uid, ending) in self.pods.iter_mut().filter(|(_, ending)| ending.due <= now) {
            let content =
                serde_json::json!({"gracePeriodSeconds": 0, "preconditions": {"uid": &**uid}}).to_string();
            ending.asked = Some(outbound.send(&message::write("pod", "delete", &*ending.resource, content)));
            ending.due = now + AGAIN;
        }
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.pods.values().map(|ending| ending.due).min()
    }
}
