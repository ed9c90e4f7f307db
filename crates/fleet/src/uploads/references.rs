//! The objects that an upload refers to: collected from its items when the frame arrives, then
//! looked up among those that the node may know. Pure.
//!
//! A node may name any object of any kind. Nothing else is looked up for it, here or in the store:
//! an object that is not placed on the node and one that does not exist are the same.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use super::event::{self, EventReference};
use edgesync_object::{NodeName, ObjectKey, ObjectRef, Resource};
use edgesync_placement::{OnNode, Placed};
use edgesync_protocol::change::Uid;
use edgesync_protocol::upload::{Content, Lane, Upload};

/// Bytes of an Event for each token that it costs.
const EVENT_UNIT: usize = 2 << 10;

/// Returns the tokens that an Event costs, by its length in bytes of JSON.
#[must_use]
pub fn event_tokens(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(EVENT_UNIT)).unwrap_or(u32::MAX).max(1)
}

/// References of an upload's items. Items that are malformed have none.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// Objects whose status or effect is reported. Only the status lane has any.
    reported: Vec<Uid>,
    /// Objects that Events refer to.
    regarded: Vec<EventReference>,
    /// Tokens that the Events cost.
    event_tokens: u32,
}

/// Placement of an object, as seen from a node.
#[derive(Clone, Debug)]
pub(crate) enum NodePlacement {
    /// Placed on this node.
    Placed(Arc<Placed>),
    /// Not placed on this node any more, but recorded as held by it.
    Held(Arc<ObjectRef>),
    /// Placed on other nodes or on none, or nonexistent.
    NotPlaced,
}

/// The references of an upload, looked up when it arrived.
#[derive(Debug, Default)]
pub(crate) struct Targets {
    reported: HashMap<Uid, NodePlacement>,
    regarded: HashMap<ObjectKey, Arc<Placed>>,
    /// Whether a reference is to an object that is not placed on the node.
    has_unplaced: bool,
    /// Whether the Events are refused, because they exceed the node's rate.
    refuses_events: bool,
    /// Number of objects that the search by name examined.
    examined: usize,
}

impl References {
    /// Collects the references of an upload.
    pub(crate) fn of(upload: &Upload) -> Self {
        let mut references = Self::default();
        for item in &upload.items {
            match Content::parse(item.content.get()) {
                Ok(Content::Status(status)) if upload.lane == Lane::Status => {
                    references.reported.push(status.uid);
                }
                Ok(Content::Effect(effect)) if upload.lane == Lane::Status => {
                    references.reported.push(effect.uid);
                }
                Ok(Content::Event(event)) => {
                    let tokens = event_tokens(event.get().len());
                    references.event_tokens = references.event_tokens.saturating_add(tokens);
                    references.regarded.extend(event::references(event.get()));
                }
                Ok(Content::Node(_) | Content::Status(_) | Content::Effect(_)) | Err(_) => {}
            }
        }
        references
    }

    /// Returns the tokens that the Events cost.
    pub(crate) fn event_tokens(&self) -> u32 {
        self.event_tokens
    }

    /// Looks up the references: `on_node` has the objects placed on the node, `held` returns an
    /// object that is recorded as held by it.
    pub(crate) fn resolve(
        self,
        node: &NodeName,
        on_node: &OnNode<'_>,
        held: impl Fn(&str) -> Option<Arc<ObjectRef>>,
    ) -> Targets {
        let mut targets = Targets::default();
        for uid in self.reported {
            let placement = match on_node.get(&uid) {
                Some(placed) => NodePlacement::Placed(placed),
                None => {
                    targets.has_unplaced = true;
                    held(&uid).map_or(NodePlacement::NotPlaced, NodePlacement::Held)
                }
            };
            targets.reported.insert(uid, placement);
        }
        targets.find_regarded(self.regarded.into_iter().filter(|regarded| !regarded.is_node(node)), on_node);
        targets
    }
}

impl Targets {
    /// Returns the placement of an object whose status or effect is reported; `None` outside of the
    /// status lane.
    pub(super) fn reported(&self, uid: &str) -> Option<&NodePlacement> {
        self.reported.get(uid)
    }

    /// Returns the object of this key, if it is placed on the node.
    pub(super) fn regarded(&self, key: &ObjectKey) -> Option<&Placed> {
        self.regarded.get(key).map(|placed| &**placed)
    }

    /// Returns whether a reference is to an object that is not placed on the node.
    pub(crate) fn has_unplaced(&self) -> bool {
        self.has_unplaced
    }

    /// Refuses all Events of the upload, because they exceed the node's rate.
    pub(crate) fn refuse_events(&mut self) {
        self.refuses_events = true;
    }

    pub(super) fn refuses_events(&self) -> bool {
        self.refuses_events
    }

    /// Returns the number of objects that the search examined.
    pub(crate) fn examined(&self) -> usize {
        self.examined
    }

    /// Finds the objects that Events refer to: by UID, otherwise by name. An object that was
    /// recreated has another UID than an Event from before.
    fn find_regarded(&mut self, all: impl Iterator<Item = EventReference>, on_node: &OnNode<'_>) {
        let mut by_name: HashMap<Arc<str>, Vec<ObjectKey>> = HashMap::new();
        for EventReference { uid, key } in all {
            match on_node.get(&uid).filter(|placed| placed.object.key() == key) {
                Some(placed) => drop(self.regarded.insert(key, placed)),
                None => by_name.entry(key.name.clone()).or_default().push(key),
            }
        }
        if by_name.is_empty() {
            return;
        }
        let examined = Cell::new(0);
        let is_regarded = |resource: &Resource, namespace: &str, name: &str| {
            examined.set(examined.get() + 1);
            by_name.get(name).is_some_and(|keys| {
                let is = |key: &ObjectKey| {
                    *key.group == *resource.group
                        && *key.kind == *resource.kind
                        && *key.namespace == *namespace
                };
                keys.iter().any(is)
            })
        };
        let found = on_node.find(is_regarded).into_iter().map(|placed| (placed.object.key(), placed));
        self.regarded.extend(found);
        self.examined = examined.get();
        self.has_unplaced |= by_name.values().flatten().any(|key| !self.regarded.contains_key(key));
    }
}
