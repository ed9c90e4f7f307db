//! The layer between machine and link: topics and frames of MQTT, or the bridge to a CloudCore. The
//! loop is the same for both.

mod cloud_core;
mod mqtt;

use std::time::Duration;

use super::connection::CloudChange;
use super::{Driver, Settings, random};
use crate::agent::events::{EventReason, Regarding};
use crate::agent::files;
use crate::agent::traffic::Direction;
use crate::store::EdgeStore;
use cloud_core::restore;
pub(super) use cloud_core::{CloudCore, HeldRead, bridge_config};
use edgesync_config::LinkType;
use edgesync_config::edge::Config;
use edgesync_kubeedge::link::TEXT;
use edgesync_kubeedge::{Bridge, BridgeEffect, Moment};
use edgesync_object::NodeName;
use edgesync_object::time::rounded;
use edgesync_protocol::apply::PatchedObject;
use edgesync_protocol::change::Change;
use edgesync_protocol::edge::EdgeMachine;
use edgesync_protocol::frame::{Received, Up};
use edgesync_transport::admission::LinePermit;
use edgesync_transport::link::presence::Presence;
use edgesync_transport::link::{Cause, LinkEvent, Publish, Topic, Topics};

/// The link's protocol and its state.
pub(in crate::agent) enum Wire {
    /// Frames on the topics of a broker.
    Mqtt(Topics),
    /// Messages of KubeEdge's CloudCore.
    KubeEdge(Box<CloudCore>),
}

/// A message that waits for space in the link's queue.
pub(super) struct PendingMessage {
    /// Name of its type, for the meter.
    pub(super) name: &'static str,
    pub(super) topic: String,
    pub(super) bytes: Vec<u8>,
}

/// Next action of the loop after one step between machine and link.
pub(super) enum Step {
    /// Nothing: neither side has anything for the other.
    Idle,
    /// Nothing more: the step is complete.
    Done,
    Publish(PendingMessage),
    /// Perform an effect of the bridge.
    Perform(BridgeEffect),
}

impl Wire {
    /// Returns the wire to the configured CloudCore. Its bridge starts with the names that the held
    /// Pods reference.
    pub(in crate::agent) async fn kubeedge(config: &Config, node: &NodeName, store: &EdgeStore) -> Self {
        let mut bridge = Bridge::new(bridge_config(config, node));
        if let Err(error) = restore(&mut bridge, config, store).await {
            // The next verification of held objects reads them again.
            tracing::warn!(%error, "read of the references of held Pods failed");
        }
        Self::KubeEdge(Box::new(CloudCore::new(bridge)))
    }

    /// Returns the messages to publish before the link ends.
    pub(in crate::agent) fn farewell(&self, node: &NodeName) -> Vec<Publish> {
        match self {
            Self::Mqtt(topics) => vec![Presence::farewell(topics, node)],
            Self::KubeEdge(_) => Vec::new(),
        }
    }

    /// Returns the peer's name for messages.
    pub(super) fn peer(&self) -> &'static str {
        match self {
            Self::Mqtt(_) => "the broker",
            Self::KubeEdge(_) => "CloudCore",
        }
    }

    /// Returns the message for a link that is up while the cloud is silent.
    pub(super) fn silence(&self) -> &'static str {
        match self {
            Self::Mqtt(_) => "the broker responds, the cloud side does not",
            Self::KubeEdge(_) => "CloudCore accepted the connection and does not respond",
        }
    }

    /// Returns how long the silence lasts before an Event reports it: a restarted CloudCore is
    /// silent for a while.
    pub(super) fn silence_threshold(&self) -> Duration {
        match self {
            Self::Mqtt(_) => Duration::ZERO,
            Self::KubeEdge(_) => Duration::from_secs(60),
        }
    }

    /// Returns the message for a verification that timed out.
    pub(super) fn timeout_message(&self) -> &'static str {
        match self {
            Self::Mqtt(_) => "timed out after 60 s: no confirmation from the cloud",
            Self::KubeEdge(_) => {
                "timed out after 110 s: the comparison continues; hint: 'edgesync status' shows its progress"
            }
        }
    }

    pub(super) fn link_type(&self) -> LinkType {
        match self {
            Self::Mqtt(_) => LinkType::Mqtt,
            Self::KubeEdge(_) => LinkType::KubeEdge,
        }
    }

    pub(super) fn cloud_core(&self) -> Option<&CloudCore> {
        match self {
            Self::Mqtt(_) => None,
            Self::KubeEdge(cloud_core) => Some(cloud_core),
        }
    }

    pub(super) fn cloud_core_mut(&mut self) -> Option<&mut CloudCore> {
        match self {
            Self::Mqtt(_) => None,
            Self::KubeEdge(cloud_core) => Some(cloud_core),
        }
    }

    /// Performs one step between machine and link.
    pub(super) fn step(&mut self, machine: &mut EdgeMachine, at: Moment, settings: &Settings) -> Step {
        match self {
            Self::Mqtt(topics) => mqtt::step(topics, machine, at.now, settings),
            Self::KubeEdge(cloud_core) => cloud_core.step(machine, at),
        }
    }
}

impl Driver {
    pub(super) fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected { is_compact, .. } => self.link_up(is_compact),
            LinkEvent::Disconnected { cause, retry_in } => self.link_down(&cause, retry_in),
            LinkEvent::Rejected { topic, code, reason } => {
                if let Some(LinePermit { suppressed }) = self.peer_log.publishes.permit_line() {
                    tracing::warn!(topic, code, reason, suppressed, "publish refused by the broker");
                }
            }
            LinkEvent::Message { topic, payload, .. } => self.message_received(&topic, &payload),
        }
    }

    fn link_up(&mut self, is_compact: bool) {
        self.uplink.connection.up();
        self.classify_link();
        // A connection that breaks before its pause has undone it: the absence is announced again.
        self.check_ins.connect_now();
        self.storing.release_later();
        let limit = match &self.uplink.wire {
            Wire::Mqtt(topics) => {
                self.uplink.connection.forget_presence(is_compact);
                if !is_compact {
                    tracing::debug!(bytes = Presence::ONLINE_BYTES, "Presence");
                    self.reporting.traffic.meter.frame(Direction::Up, "Presence", Presence::ONLINE_BYTES);
                }
                self.uplink.link.max_payload(&topics.up(&self.settings.node))
            }
            Wire::KubeEdge(_) => self.uplink.link.max_payload(TEXT),
        };
        let peer = self.settings.peer(self.uplink.link.position());
        tracing::info!(peer, max_payload_bytes = limit, "connected");
        self.reporting.node.schedule_check();
        if let Some(identity) = &self.identity {
            identity.connected();
        }
        let at = self.moment();
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
            cloud_core.bridge.connected(at, random());
        }
        self.machine.connected(at.now, limit, random());
    }

    fn link_down(&mut self, cause: &Cause, retry_in: Duration) {
        if *cause == Cause::Paused {
            self.uplink.connection.down(cause.to_string(), retry_in);
            self.machine.disconnected();
            // The reason of the pause may be gone by now.
            if self.check_ins.until().is_none() && self.spent_for().is_none() {
                self.resume_link();
            }
            return;
        }
        let words = if self.uplink.is_connected() { "connection lost" } else { "connection failed" };
        let peer = self.settings.peer(self.uplink.link.position());
        tracing::warn!(peer, %cause, retry_in = %rounded(retry_in), "{words}");
        self.uplink.connection.down(cause.to_string(), retry_in);
        if matches!(cause, Cause::TakenOver { .. }) {
            self.reporting.events.emit(EventReason::SessionTakenOver, Regarding::Node, cause.to_string());
        }
        if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
            cloud_core.disconnected();
        }
        self.machine.disconnected();
    }

    /// Processes a message by its topic.
    fn message_received(&mut self, topic: &str, payload: &[u8]) {
        let at = self.moment();
        let purpose = match &mut self.uplink.wire {
            Wire::Mqtt(topics) => topics.parse(topic),
            Wire::KubeEdge(cloud_core) => {
                let meter = &mut self.reporting.traffic.meter;
                return cloud_core.receive(at, topic, payload, meter, &mut self.machine);
            }
        };
        match purpose {
            Some(Topic::Cloud) => {
                tracing::debug!(topic = "cloud", bytes = payload.len(), "received");
                self.reporting.traffic.meter.frame(Direction::Down, "Presence", payload.len());
                self.presence_received(payload);
            }
            Some(Topic::Down(node)) if self.settings.node == node => {
                tracing::debug!(topic = "down", bytes = payload.len(), "received");
                self.frame_received(payload);
            }
            _ => tracing::debug!(topic, "message on an unknown topic"),
        }
    }

    fn presence_received(&mut self, payload: &[u8]) {
        match mqtt::presence_received(payload, &mut self.uplink.connection, &self.peer_log) {
            CloudChange::Unchanged => {}
            CloudChange::Offline => self.machine.cloud_gone(self.now()),
            CloudChange::Returned => self.machine.cloud_returned(self.now(), random()),
        }
    }

    fn frame_received(&mut self, payload: &[u8]) {
        match mqtt::decode(payload, &self.settings) {
            Ok(frame) => {
                self.reporting.traffic.meter.frame(Direction::Down, frame.name(), payload.len());
                if matches!(frame, Received::Objects(_) | Received::Patches(_) | Received::Part(_)) {
                    self.reporting.metered.fed();
                }
                self.machine.received(self.now(), frame, random());
            }
            Err(error) => {
                let count = self.statistics.count_bad_frame(error.label());
                let refusal = mqtt::unreadable(payload.len(), &error, count, &self.peer_log);
                if refusal.is_some() {
                    self.uplink.connection.refusal = refusal;
                }
            }
        }
    }

    /// Records objects on their way to the store: traffic, kinds, cleared rejections.
    pub(super) fn record_changes(&mut self, changes: &[Change]) {
        for change in changes {
            if let Change::Put(put) = change {
                let bytes = put.body.get().len();
                self.reporting.traffic.meter.object(Direction::Down, &put.resource, bytes);
                self.kinds.register(&put.resource);
                self.statistics.rejected.remove(&*put.uid);
            }
        }
    }

    /// Records objects that patches have changed. Their kind is registered since they are held.
    pub(super) fn record_patched(&mut self, patched: &[PatchedObject]) {
        if patched.is_empty() {
            return;
        }
        for object in patched {
            self.reporting.traffic.meter.object(Direction::Down, &object.resource, object.bytes);
            self.statistics.rejected.remove(&*object.uid);
        }
        self.files.due(&files::rules_of_patches(&self.settings.rules, patched));
    }

    /// Forwards one pending message or frame in either direction. Returns whether there was one.
    pub(super) fn move_one(&mut self) -> bool {
        let at = self.moment();
        // A message that waits for the queue was admitted before.
        let (step, is_admitted) = match self.uplink.connection.take_waiting() {
            Some(waiting) => (Step::Publish(waiting), true),
            None => (self.uplink.wire.step(&mut self.machine, at, &self.settings), false),
        };
        match step {
            Step::Idle => false,
            Step::Done => true,
            // The announcement of an absence has its own bytes.
            Step::Publish(message)
                if !is_admitted
                    && !matches!(message.name, "Lease" | "Renew")
                    && !self.reporting.metered.admits(message.bytes.len()) =>
            {
                true
            }
            Step::Publish(message) => {
                let meter = &mut self.reporting.traffic.meter;
                self.uplink.publish(message, meter, &mut self.statistics.limits)
            }
            Step::Perform(effect) => {
                self.perform_for_bridge(effect);
                true
            }
        }
    }

    fn perform_for_bridge(&mut self, effect: BridgeEffect) {
        match effect {
            BridgeEffect::ReadHeld { cursor, limit } => {
                if let Some(cloud_core) = self.uplink.wire.cloud_core_mut() {
                    cloud_core.begin_read(self.store.clone(), cursor, limit);
                }
            }
            BridgeEffect::SaveState(text) => cloud_core::save_state(self.store.clone(), text),
            BridgeEffect::Reconnect => {
                if let Some(LinePermit { suppressed }) = self.peer_log.sessions.permit_line() {
                    tracing::warn!(
                        suppressed,
                        "CloudCore accepts messages and does not respond: reconnecting"
                    );
                }
                self.uplink.link.give_up();
            }
            BridgeEffect::Notice(notice) => self.bridge_notice(notice),
        }
    }
}

pub(super) fn trace_frame(frame: &Up, bytes: usize) {
    match frame {
        Up::Hello(hello) => {
            let (revision, count) = (hello.revision, hello.count);
            tracing::debug!(session = hello.session, revision, count, bytes, "Hello");
        }
        Up::Report(report) => {
            let (objects, removed, rejected) =
                (report.objects.len(), report.removed.len(), report.rejected.len());
            tracing::debug!(report.from, report.to, objects, removed, rejected, bytes, "Report");
        }
        Up::Lease(_) | Up::Renew(_) | Up::Credit(_) => tracing::trace!(bytes, "{}", frame.name()),
        Up::Upload(upload) => {
            let (lane, items) = (upload.lane.name(), upload.items.len());
            tracing::debug!(lane, items, bytes, "Upload");
        }
        Up::Inventory(page) => {
            tracing::debug!(page.page, objects = page.objects.len(), bytes, "Inventory");
        }
    }
}
