//! What CloudCore sends only when it is asked: ConfigMaps and Secrets. Names that are wanted, questions under way, and
//! what is wanted and not there.

use std::collections::{BTreeMap, VecDeque};

use super::delivery::Delivery;
use super::desk::{Desk, MessageId};
use super::message::Incoming;
use super::names::Name;
use super::types::BridgeConfig;
use crate::sync::change::{Change, Put, Uid};
use crate::sync::timing::Now;

/// Questions under way at a time.
pub(super) const WINDOW: usize = 16;
/// The most names that are remembered as wanted (by references of Pods and rules without `*`).
pub(super) const MAX_WANTED: usize = 4096;
/// The most names that wait to be asked for.
pub(super) const MAX_QUEUE: usize = 4096;

/// A question under way.
#[derive(Debug)]
struct Question {
    name: Name,
    /// The object that is held under the name, if the question is about that: if the answer is that there is none, it is
    /// removed.
    held: Option<Uid>,
    until: Now,
    attempts: u32,
}

/// A name that is to be held.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    held: bool,
    /// When it is asked for again, if it is not held: with growing delays, it may come to be at any time.
    retry_at: Option<Now>,
    attempts: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Asking {
    wanted: BTreeMap<Name, Wanted>,
    queue: VecDeque<(Name, Option<Uid>)>,
    flight: BTreeMap<MessageId, Question>,
}

impl Asking {
    /// The connection is over: questions are put again after the next one. What is wanted stays so.
    pub(super) fn forget(&mut self) {
        todo!()
    }

    /// Whether an object is to be kept. ConfigMaps and Secrets that a watch pushes and nobody wants are not; everything
    /// else is, and so is what is held or wanted already, and every delete.
    pub(super) fn wants(&self, config: &BridgeConfig, change: &Change) -> bool {
        let _ = (config, change);
        todo!()
    }

    /// Wants a name (a rule, a reference): asks for it unless it is known to be held.
    pub(super) fn want(&mut self, desk: &mut Desk, config: &BridgeConfig, name: Name) {
        let _ = (desk, config, name);
        todo!()
    }

    /// Asks for a name, whether it is held or not, once: for a round, or because it may be another object by now. `held`
    /// is the object that is held under it. As many as [`WINDOW`] at a time, the rest waits. Returns whether there was
    /// room.
    pub(super) fn ask(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        name: Name,
        held: Option<Uid>,
    ) -> bool {
        let _ = (desk, config, name, held);
        todo!()
    }

    /// A row of this name exists.
    pub(super) fn is_held(&mut self, name: &Name) {
        let _ = name;
        todo!()
    }

    /// An object is going to be stored: if it is a Pod, what it references is wanted; if it is wanted, it is held.
    pub(super) fn stored(&mut self, desk: &mut Desk, config: &BridgeConfig, put: &Put) {
        let _ = (desk, config, put);
        todo!()
    }

    /// An object is going to be removed. If its name is wanted it may have been made anew, which CloudCore never sends by
    /// itself: it is asked for.
    pub(super) fn deleted(&mut self, desk: &mut Desk, config: &BridgeConfig, incoming: &Incoming<'_>) {
        let _ = (desk, config, incoming);
        todo!()
    }

    /// A delete that names no object: asks for the name if that can be asked for.
    pub(super) fn unclear(&mut self, desk: &mut Desk, config: &BridgeConfig, incoming: &Incoming<'_>) {
        let _ = (desk, config, incoming);
        todo!()
    }

    /// An answer has come; the object in it, if there is one, takes the way of all objects. That there is none (a Status
    /// `NotFound`) removes the object that was asked about. Returns whether it was asked for here.
    pub(super) fn answered(
        &mut self,
        desk: &mut Desk,
        delivery: &mut Delivery,
        incoming: &Incoming<'_>,
    ) -> bool {
        let _ = (desk, delivery, incoming);
        todo!()
    }

    /// Gives up questions without an answer, asks again for what is missing, fills the window.
    pub(super) fn tick(&mut self, desk: &mut Desk, config: &BridgeConfig) {
        let _ = (desk, config);
        todo!()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        todo!()
    }

    /// How many more names may be asked for without waiting.
    pub(super) fn room(&self) -> usize {
        todo!()
    }

    /// Questions that wait or are under way.
    pub(super) fn open(&self) -> u64 {
        todo!()
    }

    /// Wanted and not held: at most `limit` names, and how many there are.
    pub(super) fn missing(&self, limit: usize) -> (Vec<String>, u64) {
        let _ = limit;
        todo!()
    }
}
