//! The outbox of the node, one frame of it at a time: the Node is registered and patched, Events are written, the status
//! of Pods and custom resources is patched. A frame is confirmed to the machine when all its items are: by CloudCore's
//! answer where there is one, by the pong to a ping sent after them where there is none (Events). So nothing is lost at a
//! disconnect; what was under way is sent again, and changes nothing the second time.

use super::desk::{Desk, MessageId};
use super::message::Incoming;
use super::types::BridgeConfig;
use crate::sync::change::Put;
use crate::sync::frame::Upload;
use crate::sync::timing::Now;
use crate::sync::upload::Refused;

/// What an item still waits for.
#[derive(Debug)]
enum Waits {
    /// The answer to this message.
    Answer(MessageId),
    /// The pong to this ping.
    Pong(u64),
    /// It is settled.
    Nothing,
}

/// A frame under way.
#[derive(Debug)]
struct Flight {
    upload: Upload,
    waits: Vec<Waits>,
    refused: Vec<Refused>,
    until: Now,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    flight: Option<Flight>,
    node_uid: Option<String>,
    /// The version of the Node that an answer told last, and when.
    pub(super) node: Option<(String, i64)>,
}

impl Uploads {
    pub(super) fn forget(&mut self) {
        self.flight = None;
    }

    /// The UID of the Node, once known.
    pub(super) fn node_uid(&self) -> Option<&str> {
        self.node_uid.as_deref()
    }

    pub(super) fn set_node_uid(&mut self, uid: Option<String>) {
        self.node_uid = uid;
    }

    /// An object passes by: if it is the Node of this node, its UID is noted.
    pub(super) fn seen(&mut self, config: &BridgeConfig, put: &Put) {
        let _ = (config, put);
        todo!()
    }

    /// A frame of the outbox; one that is under way is given up for it. Without items it asks where the lanes stand:
    /// CloudCore has no numbers, so they stand where the machine says.
    pub(super) fn upload(&mut self, desk: &mut Desk, config: &BridgeConfig, upload: Upload) {
        let _ = (desk, config, upload, &self.flight);
        todo!()
    }

    /// Takes an answer if it is one to an item. `AlreadyExists` of the Node leads to a patch, `NotFound` of a patch to the
    /// registration; what else is refused is refused for good.
    pub(super) fn answered(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        incoming: &Incoming<'_>,
    ) -> bool {
        let _ = (desk, config, incoming);
        todo!()
    }

    /// Everything sent before this ping was read.
    pub(super) fn pong(&mut self, desk: &mut Desk, number: u64) {
        let _ = (desk, number);
        todo!()
    }

    /// Sends again what was not answered.
    pub(super) fn tick(&mut self, desk: &mut Desk, config: &BridgeConfig) {
        let _ = (desk, config);
        todo!()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.flight.as_ref().map(|flight| flight.until)
    }
}
