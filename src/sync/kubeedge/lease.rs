//! The Lease of the node: `kube-node-lease/<node>`, asked for when a session begins, written whenever the machine renews
//! it. It carries the [`Marker`] of the database: what Hello is for `edgesync-cloud`, in one annotation of a message
//! that goes anyway.

use super::desk::{Desk, MessageId};
use super::message::Incoming;
use super::types::BridgeConfig;
use crate::sync::digest::Epoch;
use crate::sync::frame::Lease;
use crate::sync::replica::Totals;
use crate::sync::timing::Now;

/// The annotation with the marker.
pub(super) const ANNOTATION: &str = "edgesync.io/store";

/// Which database the node had, and how far it was: `<epoch>.<revision>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The identity of the database file.
    pub epoch: Epoch,
    /// Its newest change.
    pub revision: u64,
}

impl Marker {
    /// The marker of a database.
    #[must_use]
    pub fn of(totals: &Totals) -> Self {
        Self { epoch: totals.epoch, revision: totals.revision }
    }

    /// Whether a database holds everything that it held when the marker was made: it is the same file, and not an older
    /// copy of it.
    #[must_use]
    pub fn is_held_by(&self, totals: &Totals) -> bool {
        self.epoch == totals.epoch && self.revision <= totals.revision
    }

    /// Reads the annotation.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let _ = text;
        todo!()
    }
}

impl std::fmt::Display for Marker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.epoch, self.revision)
    }
}

/// What an answer about the Lease says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LeaseNews {
    /// There is one: with this marker, owned by the Node with this UID.
    Found { marker: Option<Marker>, owner: Option<String> },
    /// There is none. The Node is to be registered.
    Missing,
    /// It was written.
    Renewed,
    /// It has gone since it was read.
    Gone,
}

/// What is known of the Lease.
#[derive(Debug, Default)]
enum Known {
    #[default]
    Nothing,
    Missing,
    /// What is repeated in each write, as JSON text: uid, resourceVersion, ownerReferences, annotations of others.
    There {
        metadata: serde_json::Map<String, serde_json::Value>,
    },
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LeaseKeeper {
    known: Known,
    /// The question or write under way.
    flight: Option<(MessageId, Now)>,
    /// The renewal that waits for it, or for the Node.
    waiting: Option<(Lease, Option<Marker>)>,
    /// The version that was answered last, and when.
    pub(super) answered: Option<(String, i64)>,
}

impl LeaseKeeper {
    pub(super) fn forget(&mut self) {
        let answered = self.answered.take();
        *self = Self { answered, ..Self::default() };
    }

    /// Asks for the Lease.
    pub(super) fn ask(&mut self, desk: &mut Desk, config: &BridgeConfig) {
        let _ = (desk, config);
        todo!()
    }

    /// Whether it is known that there is one, or none.
    pub(super) fn is_known(&self) -> bool {
        !matches!(self.known, Known::Nothing)
    }

    /// Renews the Lease. Only the latest renewal matters: one that waits is replaced. Without a Lease it is made once the
    /// UID of the Node, its owner, is known. `marker` is that of the database if that is proven; otherwise the annotation
    /// stays as it is.
    pub(super) fn renew(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        lease: Lease,
        owner: Option<String>,
        marker: Option<Marker>,
    ) {
        let _ = (desk, config, lease, owner, marker, &self.flight, &self.waiting);
        todo!()
    }

    /// Takes an answer if it is one to a question or a write of this keeper. A conflict asks anew and is no news.
    pub(super) fn answered(
        &mut self,
        desk: &mut Desk,
        config: &BridgeConfig,
        incoming: &Incoming<'_>,
    ) -> Option<LeaseNews> {
        let _ = (desk, config, incoming);
        todo!()
    }

    /// Asks or writes again what was not answered.
    pub(super) fn tick(&mut self, desk: &mut Desk, config: &BridgeConfig) {
        let _ = (desk, config);
        todo!()
    }

    pub(super) fn deadline(&self) -> Option<Now> {
        self.flight.as_ref().map(|(_, until)| *until)
    }
}
