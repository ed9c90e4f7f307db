//! The KubeEdge link: connects the bridge to machine and WebSocket, and performs the bridge's
//! effects.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle};

use super::{PendingMessage, Step, trace_frame};
use crate::agent::driver::peer_log::PeerLog;
use crate::agent::driver::reading::object_ref;
use crate::agent::traffic::{Direction, Meter};
use crate::store::{EdgeStore, InventoryCursor, OutboxWrite};
use edgesync_config::edge::Config;
use edgesync_kubeedge::link::{PING, PONG, TEXT};
use edgesync_kubeedge::{
    Bridge, BridgeConfig, FetchRule, HeldEntry, HeldPage, Moment, Name, Sent, references,
};
use edgesync_object::kinds::guess;
use edgesync_object::{NodeName, Resource};
use edgesync_protocol::change::Uid;
use edgesync_protocol::digest::BucketSet;
use edgesync_protocol::edge::EdgeMachine;
use edgesync_protocol::timing::Now;
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

    /// Processes a message or a pong.
    pub(super) fn receive(
        &mut self,
        at: Moment,
        topic: &str,
        payload: &[u8],
        meter: &mut Meter,
        machine: &mut EdgeMachine,
    ) {
        match topic {
            TEXT => {
                meter.frame(Direction::Down, operation(payload), payload.len());
                self.bridge.message_received(at, payload);
                self.hand_to(machine, at.now);
            }
            PONG => {
                // The link's own pings are answered, too.
                if let Ok(number) = payload.try_into() {
                    self.bridge.pong(at, u64::from_be_bytes(number));
                }
            }
            _ => {}
        }
    }

    /// Performs one step between machine, bridge and link. What was received precedes what is sent.
    pub(super) fn step(&mut self, machine: &mut EdgeMachine, at: Moment) -> Step {
        if let Some(effect) = self.bridge.poll_effect() {
            return Step::Perform(effect);
        }
        if self.hand_to(machine, at.now) {
            return Step::Done;
        }
        if let Some(message) = self.bridge.poll_message() {
            return Step::Publish(match message {
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
        if !machine.has_frame() {
            return Step::Idle;
        }
        let Some(frame) = machine.poll_frame(at.now) else { return Step::Idle };
        // The bridge has accepted it.
        machine.link_progress(at.now, 0, 0);
        trace_frame(&frame, 0);
        self.bridge.up(at, frame, machine.totals());
        Step::Done
    }

    /// Forwards the bridge's frames to the machine. Returns whether there were any.
    fn hand_to(&mut self, machine: &mut EdgeMachine, now: Now) -> bool {
        let mut moved = false;
        while machine.wants_frame() {
            let Some(frame) = self.bridge.poll_frame() else { break };
            machine.received(now, frame, random());
            moved = true;
        }
        moved
    }

    /// Starts the read of a page of held objects.
    pub(super) fn begin_read(&mut self, store: EdgeStore, cursor: u64, limit: usize) {
        self.reading = Some(tokio::spawn(read_held(store, cursor, limit)));
    }

    /// Passes the page that was read to the bridge.
    pub(in crate::agent::driver) fn held_read(
        &mut self,
        at: Moment,
        page: Result<HeldRead, JoinError>,
        peer_log: &PeerLog,
    ) {
        self.reading = None;
        let error = match page {
            Ok(Ok(page)) => return self.bridge.held_read(at, page),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        self.bridge.read_failed(at);
        if let Some(LinePermit { suppressed }) = peer_log.reads.permit_line() {
            tracing::warn!(error, suppressed, "read of held objects failed");
        }
    }

    /// Records a refusal of the dynamic controller for the status, within [`MAX_DENIED`].
    pub(in crate::agent::driver) fn record_denied(&mut self, what: String, message: String) {
        if self.denied.len() < MAX_DENIED || self.denied.contains_key(&what) {
            self.denied.insert(what, message);
        }
    }
}

/// Stores the state of the bridge for the next run.
pub(super) fn save_state(store: EdgeStore, text: String) {
    tokio::spawn(async move {
        if let Err(error) = store.post(vec![OutboxWrite::Metadata(METADATA_KEY, text)]).await {
            tracing::warn!(%error, "progress of the comparison not stored");
        }
    });
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
