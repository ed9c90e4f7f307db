//! The KubeEdge link: connects the bridge to machine and WebSocket, and performs the bridge's
//! effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::task::JoinHandle;

use super::{PendingMessage, Wire, trace_frame};
use crate::agent::driver::Driver;
use crate::agent::driver::reading::object_ref;
use crate::agent::events::{EventReason, Regarding};
use crate::agent::traffic::Direction;
use crate::store::{EdgeStore, InventoryCursor, OutboxWrite};
use edgesync_config::edge::Config;
use edgesync_kubeedge::link::{PING, PONG, TEXT};
use edgesync_kubeedge::{
    Bridge, BridgeConfig, BridgeEffect, BridgeNotice, FetchRule, HeldEntry, HeldPage, Moment, Name,
    RoundReason, Sent, references,
};
use edgesync_object::kinds::guess;
use edgesync_object::{NodeName, Resource};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::BucketSet;
use edgesync_runtime::random;
use edgesync_store::StoreError;
use edgesync_transport::admission::LinePermit;

/// Refusals of the dynamic controller that the status lists.
const MAX_DENIED: usize = 16;
/// Pods per page when the bridge starts.
const PODS: usize = 64;
/// Rows per read of a page, and the number of names that ends the page.
const ROWS: usize = 16;
const NAMES: usize = 2048;
/// Metadata key of the bridge's state.
const METADATA_KEY: &str = "kubeedge";
/// Bytes of a message searched for its operation: header and route precede the content.
const MAX_ROUTE: usize = 2048;

pub(in crate::agent::driver) type HeldRead = Result<HeldPage, StoreError>;

/// The bridge, with its pending read and the refusals.
pub(in crate::agent) struct CloudCore {
    pub(in crate::agent::driver) bridge: Bridge,
    /// The page of held objects that is being read.
    pub(in crate::agent::driver) reading: Option<JoinHandle<HeldRead>>,
    /// Refusals of the dynamic controller: resource and message.
    pub(in crate::agent::driver) denied: BTreeMap<String, String>,
}

impl CloudCore {
    pub(in crate::agent::driver) fn new(bridge: Bridge) -> Self {
        Self { bridge, reading: None, denied: BTreeMap::new() }
    }

    pub(in crate::agent::driver) fn disconnected(&mut self) {
        self.bridge.disconnected();
        // A page of an ended session must not reach the next one.
        if let Some(reading) = self.reading.take() {
            reading.abort();
        }
        self.denied.clear();
    }
}

/// Returns the configured bridge.
pub(in crate::agent::driver) fn bridge_config(config: &Config, node: &NodeName) -> BridgeConfig {
    let kubeedge = &config.kubeedge;
    BridgeConfig {
        node: node.clone(),
        lease_interval: config.lease.interval,
        keepalive: kubeedge.keepalive,
        answer_timeout: config.sync.report_timeout,
        retry_max: config.link.backoff_max.max(config.sync.report_timeout),
        max_object: config.sync.max_object,
        managed_fields: kubeedge.managed_fields,
        fetch: kubeedge.fetch.clone(),
        watch: kubeedge.watch.clone(),
        verify_interval: kubeedge.verify_interval,
    }
}

/// Registers the desired names with the bridge: those that held Pods reference, and those of rules
/// for a single name.
///
/// # Errors
/// Fails if the store cannot be read.
pub(in crate::agent::driver) async fn restore(
    bridge: &mut Bridge,
    config: &Config,
    store: &EdgeStore,
) -> Result<(), StoreError> {
    if let Some(text) = store.note(METADATA_KEY).await? {
        bridge.restore_state(&text);
    }
    let (pods, mut after) = (Arc::new(guess("v1", "Pod", true)), None);
    loop {
        let page = store.list(Arc::clone(&pods), None, after, PODS).await?;
        for pod in &page.items {
            for name in references(&pod.body) {
                restore_name(bridge, store, &name).await?;
            }
            bridge.restore_pod(&pod.uid, &pod.object.namespace, &pod.object.name, &pod.body);
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for name in config.kubeedge.fetch.iter().filter_map(FetchRule::exact) {
        restore_name(bridge, store, &name).await?;
    }
    Ok(())
}

async fn restore_name(bridge: &mut Bridge, store: &EdgeStore, name: &Name) -> Result<(), StoreError> {
    if !bridge.has_restored(name) {
        bridge.restore_name(name, held_under(store, name).await?.as_ref());
    }
    Ok(())
}

/// Returns the UID of the object held under a name.
async fn held_under(store: &EdgeStore, name: &Name) -> Result<Option<Uid>, StoreError> {
    let resource = Arc::new(guess("v1", name.kind.kind(), true));
    let held = store.get(resource, name.namespace.to_string(), name.name.to_string());
    Ok(held.await?.map(|held| held.uid))
}

impl Driver {
    /// Returns the current time by both clocks.
    pub(in crate::agent::driver) fn moment(&self) -> Moment {
        Moment { now: self.now(), wall: Timestamp::now().as_millisecond() }
    }

    /// Processes a message or a pong.
    pub(in crate::agent::driver) fn receive_cloud_core(&mut self, topic: &str, payload: &[u8]) {
        let at = self.moment();
        let Wire::KubeEdge(cloud_core) = &mut self.wire else { return };
        match topic {
            TEXT => {
                self.reporting.traffic.meter.frame(Direction::Down, operation(payload), payload.len());
                cloud_core.bridge.message_received(at, payload);
                self.hand_to_machine();
            }
            PONG => {
                // The link's own pings are answered, too.
                if let Ok(number) = payload.try_into() {
                    cloud_core.bridge.pong(at, u64::from_be_bytes(number));
                }
            }
            _ => {}
        }
    }

    /// Performs one step between machine, bridge and link. What was received precedes what is sent.
    pub(in crate::agent::driver) fn move_cloud_core(&mut self) -> bool {
        let Wire::KubeEdge(cloud_core) = &mut self.wire else { return false };
        if let Some(effect) = cloud_core.bridge.poll_effect() {
            self.perform_for_bridge(effect);
            return true;
        }
        if self.hand_to_machine() {
            return true;
        }
        let at = self.moment();
        let Wire::KubeEdge(cloud_core) = &mut self.wire else { return false };
        if let Some(message) = cloud_core.bridge.poll_message() {
            return self.publish(match message {
                Sent::Text { name, text } => {
                    tracing::debug!(name, bytes = text.len(), "sends");
                    PendingMessage { name, topic: TEXT.to_owned(), bytes: text.into_bytes() }
                }
                Sent::Ping(number) => {
                    let bytes = number.to_be_bytes().to_vec();
                    PendingMessage { name: "ping", topic: PING.to_owned(), bytes }
                }
            });
        }
        // Only after everything before was sent: the bridge holds at most the messages of one
        // frame.
        if !self.machine.has_frame() {
            return false;
        }
        let Some(frame) = self.machine.poll_frame(at.now) else { return false };
        // The bridge has accepted it.
        self.machine.link_progress(at.now, 0, 0);
        trace_frame(&frame, 0);
        cloud_core.bridge.up(at, frame, self.machine.totals());
        true
    }

    /// Forwards the bridge's frames to the machine.
    fn hand_to_machine(&mut self) -> bool {
        let mut moved = false;
        while self.machine.wants_frame() {
            let Wire::KubeEdge(cloud_core) = &mut self.wire else { break };
            let Some(frame) = cloud_core.bridge.poll_frame() else { break };
            self.machine.received(self.now(), frame, random());
            moved = true;
        }
        moved
    }

    fn perform_for_bridge(&mut self, effect: BridgeEffect) {
        match effect {
            BridgeEffect::ReadHeld { cursor, limit } => {
                let reading = tokio::spawn(read_held(self.store.clone(), cursor, limit));
                if let Wire::KubeEdge(cloud_core) = &mut self.wire {
                    cloud_core.reading = Some(reading);
                }
            }
            BridgeEffect::SaveState(text) => {
                let store = self.store.clone();
                tokio::spawn(async move {
                    if let Err(error) = store.post(vec![OutboxWrite::Metadata(METADATA_KEY, text)]).await {
                        tracing::warn!(%error, "progress of the comparison not stored");
                    }
                });
            }
            BridgeEffect::Reconnect => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(
                        suppressed,
                        "CloudCore accepts messages and does not respond: reconnecting"
                    );
                }
                self.link.give_up();
            }
            BridgeEffect::Notice(notice) => self.bridge_notice(notice),
        }
    }

    pub(in crate::agent::driver) fn held_read(&mut self, page: Result<HeldRead, tokio::task::JoinError>) {
        let at = self.moment();
        let Wire::KubeEdge(cloud_core) = &mut self.wire else { return };
        cloud_core.reading = None;
        let error = match page {
            Ok(Ok(page)) => return cloud_core.bridge.held_read(at, page),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        cloud_core.bridge.read_failed(at);
        if let Some(LinePermit { suppressed }) = self.peer_log.reads.permit_line() {
            tracing::warn!(error, suppressed, "read of held objects failed");
        }
    }

    fn bridge_notice(&mut self, notice: BridgeNotice) {
        match notice {
            BridgeNotice::BadMessage { problem } => {
                self.statistics.count_bad_frame("message");
                if let Some(LinePermit { suppressed }) = self.peer_log.frames.permit_line() {
                    tracing::warn!(problem, suppressed, "invalid message");
                }
            }
            BridgeNotice::Refilling(reason) => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::info!(reason = reason.name(), suppressed, "full refill started");
                }
                if reason == RoundReason::Lost {
                    self.records_differed();
                    let note = "database unknown to CloudCore: full refill started";
                    self.reporting.events.emit(
                        EventReason::RecordsDiffered,
                        Regarding::Node,
                        note.to_owned(),
                    );
                }
            }
            BridgeNotice::Verified { reason, compared, differed } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    let reason = reason.name();
                    tracing::info!(reason, compared, differed, suppressed, "held objects compared");
                }
                if differed == 0 {
                    return;
                }
                self.records_differed();
                // With the other reasons, a difference is expected or already reported.
                if matches!(reason, RoundReason::Routine | RoundReason::Asked) {
                    let note =
                        format!("{differed} of {compared} objects differ from the cloud's and are corrected");
                    self.reporting.events.emit(EventReason::RecordsDiffered, Regarding::Node, note);
                }
            }
            BridgeNotice::DynamicControllerSilent => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(
                        suppressed,
                        "CloudCore's dynamic controller does not respond: kubeedge.watch, and kubeedge.fetch with '*', \
                         have no effect"
                    );
                }
            }
            BridgeNotice::Denied { what, message } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    let message = &*message;
                    tracing::warn!(
                        what,
                        why = message,
                        suppressed,
                        "CloudCore's dynamic controller refused the request"
                    );
                }
                let Wire::KubeEdge(cloud_core) = &mut self.wire else { return };
                if cloud_core.denied.len() < MAX_DENIED || cloud_core.denied.contains_key(&what) {
                    cloud_core.denied.insert(what, message);
                }
            }
        }
    }
}

/// Reads a page of held objects, with the names that their Pods reference. Ends early at [`NAMES`].
async fn read_held(store: EdgeStore, cursor: u64, limit: usize) -> HeldRead {
    let mut all = BucketSet::default();
    (0..=u8::MAX).for_each(|bucket| all.insert(bucket));
    let (mut entries, mut names) = (Vec::with_capacity(limit), BTreeMap::new());
    let mut after = InventoryCursor::from_number(cursor);
    loop {
        let page = store.inventory(all, after, ROWS).await?;
        for entry in page.entries {
            // Only held objects have a version.
            let Some(version) = entry.version else { continue };
            let mut references = Vec::new();
            if is_pod(&entry.object.resource) {
                references = referenced(&store, &entry.uid, &mut names).await?;
            }
            entries.push(HeldEntry { uid: entry.uid, version, object: object_ref(entry.object), references });
        }
        after = page.next;
        if after.is_none() || entries.len() >= limit || names.len() >= NAMES {
            return Ok(HeldPage { entries, next: after.map(InventoryCursor::number) });
        }
    }
}

/// Returns the names that a Pod references, each with the UID held under it.
async fn referenced(
    store: &EdgeStore,
    uid: &Uid,
    names: &mut BTreeMap<Name, Option<Uid>>,
) -> Result<Vec<(Name, Option<Uid>)>, StoreError> {
    let Some(pod) = store.by_uid(uid.clone()).await? else { return Ok(Vec::new()) };
    let mut referenced = Vec::new();
    for name in references(&pod.body) {
        if !names.contains_key(&name) {
            let held = held_under(store, &name).await?;
            names.insert(name.clone(), held);
        }
        let held = names.get(&name).cloned().flatten();
        referenced.push((name, held));
    }
    Ok(referenced)
}

fn is_pod(resource: &Resource) -> bool {
    resource.kind == "Pod" && resource.group.is_empty()
}

/// Finds the operation of a message, for the meter. Only the bridge parses messages in full.
fn operation(text: &[u8]) -> &'static str {
    const FIELD: &[u8] = br#""operation":""#;
    const WORDS: [(&str, &str); 6] = [
        ("insert", "insert"),
        ("update", "update"),
        ("patch", "patch"),
        ("delete", "delete"),
        ("response", "response"),
        ("applicationResponse", "application"),
    ];
    let head = text.get(..MAX_ROUTE).unwrap_or(text);
    let Some(at) = head.windows(FIELD.len()).position(|window| window == FIELD) else { return "other" };
    let word = head.get(at + FIELD.len()..).unwrap_or_default().split(|byte| *byte == b'"').next();
    WORDS.iter().find(|(known, _)| word == Some(known.as_bytes())).map_or("other", |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operation_is_found_before_the_content() {
        let text = br#"{"header":{"msg_id":"x"},"route":{"source":"edgecontroller","operation":"update"},"content":{"operation":"delete"}}"#;
        assert_eq!(operation(text), "update");
        assert_eq!(operation(br#"{"route":{"operation":"applicationResponse"}}"#), "application");
        for odd in [&b""[..], b"{}", br#"{"route":{"operation":"#, br#"{"operation":"ping"}"#] {
            assert_eq!(operation(odd), "other");
        }
        let late = [vec![b' '; MAX_ROUTE], br#""operation":"insert""#.to_vec()].concat();
        assert_eq!(operation(&late), "other");
    }
}
